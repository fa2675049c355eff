r"""
The rank of a limit, by slopes and by thresholds
================================================

Under softmax attention with :math:`A = -Q^\top Q` and :math:`V = I`, a Gaussian law of tokens in dimension
:math:`d` converges, and the rank of its limiting covariance is exactly :math:`d - \operatorname{rank} Q`.
How does one see that in a computation? Eigenvalues that vanish do so like :math:`1/t`, so that they are
never zero; others have a limit that is tiny. The size of an eigenvalue says nothing. Its slope does:

.. math:: \frac{d \log \lambda}{d \log t} \to -1 \ \text{ for those that vanish,}
   \qquad 0 \ \text{ for those that stay.}
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# A hundred laws in dimension four, each with attention of its own: weights may have a batch, too.

d, members = 4, 100
rng = np.random.default_rng(3)
Q = rng.normal(size=(members, d // 2, d))
field = of.SoftmaxAttention(Q, -Q, np.eye(d))
start = of.Gaussian(np.zeros(d), root=rng.normal(size=(members, d, d)))

# %%
# `limit` stretches time, :math:`t = c\,(e^s - 1)`, so that many powers of ten cost little more than one,
# and stops when every eigenvalue has made up its mind.

end = of.limit(start, field)
print("all settled:", bool((end.status == "ok").all()), "- ranks:", set(end.rank.tolist()))
A = -Q.swapaxes(1, 2) @ Q
exact = of.closed_forms.softmax_limit(start.cov, A)
print(f"distance to the closed form: {float((end.measure.cov - exact).abs().max()):.1e}")

# %%
# One of them in detail, the one whose smallest surviving eigenvalue is the smallest. And two rules that count
# eigenvalues above 0.1: at the limit, and at a time when a run might be stopped.

survivors = end.spectrum[:, d // 2 - 1]
worst = int(survivors.argmin())
times = np.geomspace(1e-3, 1e6, 181)
one = of.SoftmaxAttention(Q[worst], -Q[worst], np.eye(d))
observe = {"spectrum": lambda mu: torch.linalg.eigvalsh(of.observables.covariance(mu))}
traj = of.flow(start[worst], one, of.Dopri5(), t1=1e6, save_at=[0.0, *times], observe=observe)

threshold = 0.1
early = torch.linalg.eigvalsh(of.closed_forms.softmax_path(start.cov, A, 1.0))
counts = {
    "by slopes": end.rank,
    "limits $> 0.1$": (end.spectrum > threshold).sum(-1),
    "$> 0.1$ at $t = 1$": (early > threshold).sum(-1),
}

# %%
# Top left, that one law: until :math:`t = 10^4` the eigenvalue that will survive is the smallest of all, far
# below the threshold (dashed), and the two above it that fall with slope -1 overtake it on the way down. Top
# right, all hundred laws where `limit` stopped: no threshold says where the survivors end. Bottom left, the
# slopes there, which leave no doubt. Bottom right, what each rule counts: rank two, always, is right.

fig, axes = plt.subplots(2, 2, figsize=(9, 7.2), layout="constrained")
flow, last, slopes, bars = axes.flat
of.plot.spectra(traj.observed["spectrum"][1:], t=times, ax=flow)
of.plot.spectra(end.spectrum, ax=last)
for ax in (flow, last):
    ax.axhline(threshold, color=of.plot.INK, linestyle="--", linewidth=0.8, label="threshold 0.1")
flow.legend(loc="upper right")
flow.set(xscale="log", title="one law")
last.set(title="all laws, where limit stopped")
for i in range(d):
    slopes.scatter(np.arange(members), end.slopes[:, i], s=9, color=of.plot.COLOURS[i], linewidths=0)
slopes.set(xlabel="member", ylabel=r"$d \log \lambda \,/\, d \log t$", title="their slopes there")
slopes.set(ylim=(-1.15, 0.15), yticks=[-1, -0.5, 0])
of.plot.ranks(counts, d=d, ax=bars).set_ylabel("number of laws")
plt.show()
