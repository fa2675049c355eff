r"""
When do tokens meet? A phase diagram and its boundary
=====================================================

Tokens on the unit sphere move by softmax attention at inverse temperature :math:`\beta`,

.. math::

   \dot x_i = P_{x_i} \sum_j \frac{e^{\beta x_i \cdot x_j}}{\sum_k e^{\beta x_i \cdot x_k}}\, x_j ,

and in the long run all of them meet (Geshkovski, Letrouit, Polyanskiy and Rigollet, *A mathematical
perspective on Transformers*, 2025). How long is the long run? The diagrams below show the probability that
two tokens of a random start have met, :math:`x_i \cdot x_j \ge 0.999`, over time and :math:`\beta`.
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of

plt.rcParams.update(of.plot.STYLE)

sphere = of.papers.perspective

# %%
# Sixteen tokens, in the plane and in dimension 256. The probability is an average over a few random starts
# and over all pairs of tokens.

beta, times = np.linspace(0.1, 6, 17), np.linspace(0, 20, 41)
diagrams = {
    d: sphere.phase_diagram(beta, times, n=16, d=d, samples=6, rng=np.random.default_rng(0)) for d in (2, 256)
}

# %%
# In high dimension random tokens are almost orthogonal, and stay at almost equal angles. Then one equation
# for the common inner product :math:`\gamma` is left,
#
# .. math::
#
#    \dot\gamma = \frac{2 e^{\beta\gamma} (1 - \gamma) ((n - 1) \gamma + 1)}
#                    {e^\beta + (n - 1) e^{\beta\gamma}} ,
#
# and the time at which :math:`\gamma = 0.999` is known in closed form.

fine = np.linspace(0.1, 6, 200)
boundary = sphere.collapse_time(fine, n=16, delta=1e-3)
half = diagrams[256].boundary()
low = beta <= np.log(16)
error = (half / diagrams[256].prediction - 1).abs()[low].max().item()
print(f"half of the pairs have met at the closed-form time, up to {error:.1%}, for beta <= log n")

# %%
# In high dimension the closed form (orange) is the boundary between "not yet" and "all": flat at first, and
# exponential in :math:`\beta` beyond :math:`\log n`. At the largest :math:`\beta` pairs meet a little
# earlier, since angles are not quite equal and attention sees the differences. In the plane there is a
# third region: for large :math:`\beta` tokens have gathered in a few clusters, and wait.

fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), sharey=True, layout="constrained")
for ax, (d, diagram) in zip(axes, diagrams.items(), strict=True):
    colours = ax.pcolormesh(times, beta, diagram.probability.T, cmap=of.plot.SEQUENCE, vmin=0, vmax=1)
    ax.plot(boundary, fine, color=of.plot.COLOURS[1], linewidth=2, label=r"closed form, $d = \infty$")
    ax.axhline(np.log(16), color="white", linewidth=0.8, linestyle=":")
    ax.text(19.5, np.log(16) - 0.08, r"$\beta = \log n$", color="white", ha="right", va="top", fontsize=8)
    ax.set(xlabel="time $t$", xlim=(0, 20), ylim=(0.1, 6), title=f"$n = 16$ tokens in dimension {d}")
axes[0].set_ylabel(r"inverse temperature $\beta$")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center")
fig.colorbar(colours, ax=axes, label="probability that two tokens have met")
plt.show()
