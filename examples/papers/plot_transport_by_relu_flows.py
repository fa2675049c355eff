r"""
From a Gaussian to any law, and where this ends
===============================================

How many switches of a ReLU network of width one, :math:`\dot x = w\,(a \cdot x + b)_+`, carry a Gaussian
:math:`\rho_B` to a law near :math:`\rho_*`? Nearness is relative entropy, and the tails of
:math:`\rho_*` matter (Alvarez-Lopez, Geshkovski and Ruiz-Balet, *Constructive approximate transport maps with
normalizing flows*, 2025). The constructions here are ours.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import cauchy, norm

import otflow as of
from otflow.papers import relu_flows as rf

plt.rcParams.update(of.plot.STYLE)

# %%
# On the line: a translation, one slope, and a kink at each quantile make the monotone map, piecewise
# linearly. KL decays like :math:`K^{-2}`, total variation like :math:`K^{-1}`.

target = rf.Mixture1d([0.3, 0.7], [norm(-2, 0.5), norm(1, 0.8)])
for K in (8, 32, 128):
    print(rf.transport_1d(norm(), target, K))

# %%
# A Cauchy law is out of reach, for every number of pieces. This is no failure but a result, which says why.

print(rf.transport_1d(norm(), cauchy(), 128).obstruction)

# %%
# In the plane: :math:`x_2` given :math:`x_1` is normal, with a mean that is bent and a width that varies.
# Slabs of :math:`x_1` are lifted into windows of :math:`x_2`, one monotone map acts in all of them, and the
# lift is undone.


def law(j, y):
    if j == 0:
        return norm(np.zeros(len(y)), 1)
    return norm(0.6 * (y[:, 0] ** 2 - 1), 0.5 + 0.2 * np.tanh(y[:, 0]))


base = [norm(), norm()]
runs = {
    "12 slabs": rf.knothe_rosenblatt(base, law, 12, delta=1e-8),
    "48 slabs": rf.knothe_rosenblatt(base, law, 48, delta=1e-8),
    "12 slabs, medians off first": rf.knothe_rosenblatt(base, law, 12, delta=1e-8, centre=True),
}
for name, run in runs.items():
    print(f"{name}: {run}")

# %%
# Densities are exact: ``log_density`` follows points back through the flow.

axis = np.linspace(-2.8, 2.8, 300), np.linspace(-2.4, 4.4, 340)
grid = np.stack(np.meshgrid(*axis), -1)
flat = grid.reshape(-1, 2)
exact = law(0, flat).logpdf(flat[:, 0]) + law(1, flat).logpdf(flat[:, 1])
fig, axes = plt.subplots(1, 4, figsize=(12, 3.5), layout="constrained", sharey=True)
shown = {"target": exact}
for name, run in runs.items():
    image = run.flow.log_density(flat, lambda x: norm.logpdf(x.numpy()).sum(-1))
    shown[f"{name}\n{run.pieces} pieces, $KL = {run.kl:.2g}$"] = image.numpy()
for ax, (title, values) in zip(axes, shown.items(), strict=True):
    density = np.exp(values).reshape(grid.shape[:2])
    image = ax.pcolormesh(
        *axis, density, cmap=of.plot.SEQUENCE, vmin=0, vmax=np.exp(exact).max(), rasterized=True
    )
    ax.set(title=title, xlabel="$x_1$")
axes[0].set_ylabel("$x_2$")
fig.colorbar(image, ax=axes, label="density")
plt.show()
