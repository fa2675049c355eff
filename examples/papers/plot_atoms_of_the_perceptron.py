r"""
A perceptron makes atoms of a uniform law
=========================================

Tokens on a circle that repel each other by attention spread evenly. With a perceptron in every layer they do
not: they gather in a few atoms. Both are descents of one energy,

.. math::

   E(\mu) = \frac1{2\beta} \iint e^{\beta (x \cdot y - 1)}\, d\mu(x)\, d\mu(y)
            + \frac12 \int \sum_j \omega_j\, \varphi(a_j \cdot x)\, d\mu(x), \qquad \varphi' = 2\sigma ,

in which a perceptron with input weights :math:`a_j` and output weights :math:`\omega_j a_j` adds a potential.
If :math:`\sigma` is a ReLU, every stationary law on the circle is a finite number of atoms (Alvarez-Lopez,
Geshkovski and Ruiz-Balet, *Perceptrons and localization of attention's mean-field landscape*, 2026).
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of
from otflow.papers import perceptron as sp

plt.rcParams.update(of.plot.STYLE)

# %%
# Three hundred particles of equal mass, drawn uniformly, go downhill until the gradient is below
# :math:`10^{-8}`. Particles that have met are merged into atoms.

beta = 4.0
a, omega = np.array([[1.0, 0.3], [-0.4, 1.0]]), np.array([0.8, -0.6])
theta = np.random.default_rng(0).uniform(0, 2 * np.pi, 300)
start = of.Particles(np.stack([np.cos(theta), np.sin(theta)], -1), space=of.Sphere())

sizes = (0.0, 0.05, 0.3, 1.0)
found = {c: sp.find_atoms(start, beta, a, c * omega) for c in sizes}
for c, atoms in found.items():
    print(f"c = {c:4g}: {atoms}, no particle between {atoms.gap[0]:.1e} and {atoms.gap[1]:.1e} of another")

# %%
# What is found is stationary, and stable: the Hessian of the energy is positive for atoms that move as one
# (``least``), and for atoms whose mass may go different ways (``splitting``).

for c in sizes[1:]:
    print(f"c = {c:4g}: {sp.second_variation(found[c].measure, beta, a, c * omega)}")

# %%
# First row: the atoms, by mass, for weights :math:`c\,\omega`. Stronger perceptrons leave longer arcs empty,
# and fewer atoms or as many. Second row: what a grain of mass would feel, :math:`\delta E / \delta \mu`. Each
# atom sits in a well of this landscape, often a flat one, which the atoms make themselves; mind the scales.

grid = np.linspace(-np.pi, np.pi, 721)
points = np.stack([np.cos(grid), np.sin(grid)], -1)
fig, axes = plt.subplots(2, 4, figsize=(11, 5), layout="constrained", height_ratios=(1.6, 1))
for (top, bottom), (c, atoms), colour in zip(axes.T, found.items(), of.plot.COLOURS, strict=False):
    mu = atoms.measure
    top.plot(*points.T, color=of.plot.FAINT, linewidth=1)
    top.scatter(*mu.x.numpy().T, s=np.maximum(8, 700 * mu.w.numpy()), color=colour, alpha=0.8, zorder=3)
    arc = sp.empty_arcs(np.arctan2(*mu.x.numpy().T[::-1]))[0].item()
    what = "places" if c == 0 else "atoms"
    top.set_title(f"$c = {c:g}$: {atoms.n} {what}\nlongest empty arc {arc:.2f}")
    top.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
    top.axis("off")
    felt = sp.first_variation(mu, points, beta, a, c * omega).numpy()
    bottom.plot(grid, felt, color=of.plot.INK, linewidth=1)
    at = sp.first_variation(mu, mu.x, beta, a, c * omega).numpy()
    bottom.plot(np.arctan2(*mu.x.numpy().T[::-1]), at, "o", color=colour, markersize=4, alpha=0.8)
    bottom.set_xticks([-np.pi, 0, np.pi], [r"$-\pi$", "0", r"$\pi$"])
    middle, half = (felt.max() + felt.min()) / 2, max(5e-4, 0.6 * np.ptp(felt))
    bottom.set(xlabel="angle", ylim=(middle - half, middle + half))
axes[1, 0].set_ylabel(r"$\delta E / \delta \mu$")
plt.show()
