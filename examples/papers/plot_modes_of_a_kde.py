r"""
Modes of a kernel density estimator, and the belt
=================================================

Mean shift moves a token to the nearest maximum of the Gaussian kernel density estimator

.. math:: \hat P(t) \propto \sum_{i=1}^n e^{-\beta (t - X_i)^2 / 2}

of all tokens, and so does attention if the cloud is frozen. How many such maxima are there? For tokens drawn
from :math:`N(0, 1)` and :math:`n^c \le \beta \le n^{2 - c}` there are of order
:math:`\sqrt{\beta \log \beta}`, and in the limit all but a vanishing share of them lie where
:math:`2 \log n - 3 \log \beta \le t^2 \le 2 \log n - \log \beta` (Geshkovski, Rigollet and Sun, *On the
number of modes of Gaussian kernel density estimators*, 2026).
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of
from otflow.papers import kde_modes

plt.rcParams.update(of.plot.STYLE)

# %%
# Ten thousand tokens. Modes are counted to rounding, in time that grows like n log n; the certificate says in
# how many places rounding leaves the count open.

n, beta = 10_000, 300.0
rng = np.random.default_rng(0)
x = rng.standard_normal(n)
found = kde_modes.mode_positions(x, beta).numpy()
low, high = (edge.item() for edge in kde_modes.belt(n, beta))
print(kde_modes.certified_modes(x, beta), "expected:", kde_modes.expected_modes(n, beta).item())
print(f"in the belt: {((abs(found) > low) & (abs(found) < high)).sum()} of {len(found)}")

# %%
# The expected number adds up the density of modes in t. Around zero, where the bell of the normal law is
# flat, noise makes a few modes; on its flanks the slope sweeps them away; in the belt noise wins over the
# slope; and beyond, a bandwidth holds less than one token, and modes become as rare as tokens. The limit is
# far: for this n half of the modes are still outside the belt.

draws = rng.standard_normal((150, n))
places = np.concatenate([kde_modes.mode_positions(row, beta).numpy() for row in draws])
betas = np.geomspace(10, 1e7, 40)
simulated = kde_modes.count_modes(x, betas)

# %%
# First row: the estimator with its modes and the belt, on a logarithmic scale. Second row: where the modes of
# 150 clouds are, and the number of modes of the first cloud for all bandwidths. The latter never falls when
# beta grows, a property of Gaussian kernels (Silverman 1981).

fig, axes = plt.subplot_mosaic(
    [["curve", "curve"], ["where", "many"]], figsize=(9, 5.8), layout="constrained"
)
blue, red, *_ = of.plot.COLOURS


def estimator(t):
    return (beta / (2 * np.pi)) ** 0.5 * np.array([np.exp(-beta / 2 * (x - s) ** 2).mean() for s in t])


ax, t = axes["curve"], np.linspace(-4.5, 4.5, 1501)
for side in (-1, 1):
    ax.axvspan(*sorted((side * low, side * high)), color=of.plot.FAINT, alpha=0.4, linewidth=0)
ax.semilogy(t, estimator(t), color=blue)
ax.semilogy(found, estimator(found), "o", color=red, markersize=4)
ax.set(xlim=(-4.5, 4.5), ylim=(1e-6, 1), xlabel="$t$", title=f"{len(found)} modes, and the belt in grey")
ax.set_ylabel(r"$\hat P(t)$")

ax, s = axes["where"], np.linspace(0, 5, 300)
edges = np.linspace(0, 5, 51)
ax.stairs(
    np.histogram(abs(places), edges)[0] / (300 * 0.1),
    edges,
    fill=True,
    color=blue,
    alpha=0.45,
    label="counted",
)
ax.plot(s, kde_modes.mode_density(s, n, beta), color=red, label="expected")
for edge, label in ((low, "edges of the belt"), (high, None)):
    ax.axvline(edge, color=of.plot.INK, linestyle=":", linewidth=1.2, label=label)
ax.set(xlabel="$|t|$", ylabel="modes per unit length", title="where the modes are", ylim=(0, 5))
ax.legend(loc="upper center")

ax = axes["many"]
ax.loglog(betas, simulated, "o", color=blue, markersize=4, label="one cloud")
ax.loglog(betas, kde_modes.expected_modes(n, betas), color=red, label="expected")
ax.axhline(n, color=of.plot.INK, linestyle=":", linewidth=1.2, label="number of tokens")
ax.set(xlabel=r"$\beta$", ylabel="number of modes", title="from one mode to all tokens")
ax.legend()
plt.show()
