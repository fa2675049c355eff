r"""
Attention as a gradient flow, explicit and implicit
===================================================

For symmetric :math:`A = K^\top Q` and :math:`V = -A` softmax attention is the steepest descent of

.. math::

   F(\mu) = \frac12 \iint e^{Ax\cdot y} \, d\mu(x)\, d\mu(y)

not in the Wasserstein metric, but where the length of a move is weighed by the partition function
:math:`Z_\mu(x) = \int e^{Ax\cdot y} d\mu(y)`. ``as_gradient_flow`` finds energy and metric, and from then on
everything that works for gradient flows works for attention: minimising movements, certificates, and the
energy-dissipation identity.
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of

plt.rcParams.update(of.plot.STYLE)

# %%
# Two descriptions of one velocity.

rng = np.random.default_rng(2)
A = np.array([[1.0, 0.3], [0.3, 0.6]])
softmax = of.SoftmaxAttention(A, np.eye(2), -A)
descent = softmax.as_gradient_flow()
tokens = of.Particles(0.8 * rng.normal(size=(40, 2)))
gap = (softmax(0.0, tokens)[0] - descent(0.0, tokens)[0]).abs().max().item()
print(descent, f"differs from the field by {gap:.0e}")

# %%
# Explicit steps follow the field; JKO minimises the energy plus the squared length of the move. The smaller
# the steps, the closer the two.

times = np.linspace(0, 1, 151) ** 2  # dense at the start, where tokens are fast
exact = of.flow(tokens, softmax, of.Dopri5(), t1=1.0, save_at=times, observe={"F": descent.energy})
steps = [0.2, 0.1, 0.05, 0.025]
runs = [of.flow(tokens, descent, of.JKO(), t1=1.0, dt=h, observe={"F": descent.energy}) for h in steps]
errors = [of.wasserstein(run.final, exact.final).item() for run in runs]
second = [of.flow(tokens, descent, of.Extrapolated(of.JKO()), t1=1.0, dt=h) for h in steps]
errors_of_second = [of.wasserstein(run.final, exact.final).item() for run in second]

# %%
# The energy-dissipation identity holds along the run in the twisted metric. In the Wasserstein metric, where
# softmax attention is no gradient flow, something is missing.

balance = of.energy_balance(exact, descent)
plain = of.energy_balance(exact, of.SteepestDescent(descent.energy, of.Wasserstein()))
print(f"missing: {balance.relative.item():.1e} twisted, {plain.relative.item():.1e} in W2")

blue, orange, green, *_ = of.plot.COLOURS
fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), layout="constrained")
of.plot.trails(exact, ax=axes[0], size=10)
axes[0].set_title("tokens contract")
axes[0].legend()
for run, h, shade in zip(runs[:3], steps, (0.25, 0.5, 0.75), strict=False):
    label = rf"JKO, $\Delta t = {h:g}$"
    axes[1].plot(run.ts, run.observed["F"], "o-", ms=3, color=orange, alpha=shade, label=label)
axes[1].plot(exact.ts, exact.observed["F"], color=blue, label="explicit")
axes[1].set(xlabel="$t$", ylabel=r"$F(\mu_t)$", title="energy")
axes[1].legend()
axes[2].loglog(steps, errors, "o-", ms=4, color=orange, label="JKO, order 1")
axes[2].loglog(steps, errors_of_second, "o-", ms=4, color=green, label="extrapolated, order 2")
of.plot.panel(axes[2], "distance to the explicit end", r"$\Delta t$", "$W_2$", legend=True, xticks=steps)
plt.show()
