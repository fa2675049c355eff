r"""
Lost in the middle
==================

Tokens :math:`\theta_1, \dots, \theta_N` on the circle follow causal attention with ALiBi,

.. math::

   \dot\theta_j = \frac1{Z_j} \sum_{k<j} e^{-\lambda (j-k)/N}\, w'(\theta_j - \theta_k), \qquad
   w(x) = e^{\beta \cos x} ,

and after a time :math:`t` the last one is asked for the word at position :math:`\sigma` of the prompt. Above
chance, its score is :math:`S_t(\sigma)/N` with a closed form (Duerinckx, Geshkovski and Rossi, *Kinetic
theory for Transformers and the lost-in-the-middle phenomenon*, 2026): a U, until a critical time.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import otflow as of
from otflow.papers import lost_in_the_middle as causal

plt.rcParams.update(of.plot.STYLE)

beta, lam, M = 1.0, 1.0, 8
sigma = np.linspace(0.01, 0.99, 400)

# %%
# Up to the time of their theorem the profile has one minimum. At the critical time the minimum reaches the
# last token, and recency is lost.

proved, critical = (
    causal.u_shape_time(beta, lam).item(),
    causal.critical_time(beta, lam, M).item(),
)
print(f"a U is proved until t = {proved:.4f}, and seen until t = {critical:.4f}")

# %%
# The same from the tokens themselves: two thousand prompts of 64 tokens, uniform on the circle, until
# :math:`t = 1`. Counting how often the last token is near another one's start would need a million prompts.
# Integration by parts needs few: it weighs each prompt by the slope
# :math:`\partial\theta_N(t) / \partial\theta_i(0)`, which torch finds by differentiating the flow.

N, B = 64, 2000
start = causal.angles(causal.prompts(N, rng=np.random.default_rng(0), batch=(B,))).requires_grad_()
field = causal.CausalAlibi(beta, lam, modes=8)
end = of.flow(causal.tokens(start), field, of.RK4(), t1=1.0, dt=0.25, save_at=[1.0]).final
reader = causal.angles(end)[:, -1]
(slope,) = torch.autograd.grad(reader.sum(), start)
start, reader = start.detach(), reader.detach()

n = np.arange(1, 9)
found = [causal.gradient_correlations(start, reader, slope, k) for k in n.tolist()]
omega = np.exp(-((np.pi * n / M) ** 2) / 2)
score = N * sum(w * f.value[:-1] for w, f in zip(omega, found, strict=True))
position = (np.arange(N - 1) + 0.5) / N

# %%
# Left: profiles and their minima; the dashed one falls to the end. Middle: at :math:`t = 1`, one step of
# attention favours what is near, further steps favour the beginning; tokens agree but for the first few, for
# which :math:`N` is not large. Right: the minimum moves to the end, and is there at the critical time.

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3.5), layout="constrained")
times = (0.5, 1.0, 1.5, 2.0, 4.0)
for k, t in enumerate(times):
    S, colour = (
        causal.retrieval_profile(sigma, t, beta, lam, M),
        of.plot.SEQUENCE(k / (len(times) - 1)),
    )
    left.semilogy(sigma, S, "--" if t > critical else "-", color=colour, label=f"$t = {t:g}$")
    if t < critical:
        left.plot(sigma[S.argmin()], S.min(), "o", color=colour, markersize=4)
left.set(
    xlabel=r"position $\sigma$",
    ylabel=r"score $S_t(\sigma)$",
    title="Beginning and end are retrieved",
    ylim=(0.3, 90),
)
left.legend(ncols=3, loc="upper right")

for m in (1, 2, 3):
    hop = causal.hop(m, sigma, 1.0, beta, lam, M)
    middle.plot(sigma, hop, linewidth=1, label=f"{m} step{'s' * (m > 1)}")
middle.plot(
    sigma,
    causal.retrieval_profile(sigma, 1.0, beta, lam, M),
    color=of.plot.INK,
    label="all steps",
)
middle.plot(position, score, ".", color=of.plot.COLOURS[3], markersize=4, label=f"{B} prompts, $N = {N}$")
middle.set(xlabel=r"position $\sigma$", ylabel="score", title="$t = 1$: theory and tokens", ylim=(0, 2.8))
middle.legend(ncols=2, loc="upper right")

t = np.linspace(0.02, 3, 150)
lowest = causal.retrieval_profile(np.append(sigma, 1 - 1e-9), t[:, None], beta, lam, M).argmin(-1)
right.plot(t, np.append(sigma, 1.0)[lowest], color=of.plot.COLOURS[0])
for when, name in ((proved, "proved "), (critical, " critical")):
    right.axvline(when, color=of.plot.FAINT, zorder=0)
    right.text(when, 0.05, name, ha="right" if when == proved else "left", color=of.plot.INK)
right.set(xlabel="time $t$", ylabel="position of the minimum", title="The end is lost too")
plt.show()
