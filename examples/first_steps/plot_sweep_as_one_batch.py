r"""
Many temperatures and many starts as one batch
==============================================

Leading axes of a measure are independent runs, and weights may have such axes too. They broadcast as arrays
do: weights of shape ``(12, 1, d, d)`` and clouds of shape ``(8, n, d)`` are ``12 x 8`` runs, in one call.

Tokens on the circle move by softmax attention at inverse temperature :math:`\beta`,

.. math::

   \dot x_i = P_{x_i} \sum_j \frac{e^{\beta x_i \cdot x_j}}{\sum_k e^{\beta x_i \cdot x_k}}\, x_j .

How soon do they agree, and how much of that is the luck of the start?
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of

# %%
# One axis for the temperatures, with a 1 where the starts go, and one for the starts.

beta, seeds = np.geomspace(0.5, 16, 12), np.arange(8)
angles = np.stack([np.random.default_rng(seed).uniform(0, 2 * np.pi, 24) for seed in seeds])
start = of.Particles(np.stack([np.cos(angles), np.sin(angles)], -1), space=of.Sphere())
field = of.SoftmaxAttention(beta[:, None, None, None] * np.eye(2), np.eye(2), np.eye(2))


def disorder(mu):
    """1 - |mean|: 0 when all tokens agree."""
    return 1 - mu.x.mean(-2).norm(dim=-1)


run = of.flow(start, field, of.RK4(), t1=16.0, dt=0.1, observe={"disorder": disorder})
run

# %%
# The dataset has names for the axes, and the values for which they stand. From here on it is xarray's: select
# by value, average over the starts, or turn it into a table.

ds = run.to_xarray(batch={"beta": beta, "seed": seeds})
print(ds["disorder"].sel(beta=4, method="nearest").isel(t=-1).to_series().round(3))
mean = ds["disorder"].mean("seed")

# %%
# One member is a trajectory like any other, also when it comes back from a file.

one = of.Trajectory.from_xarray(ds.sel(seed=3).isel(beta=-1))
print(one)

# %%
# Warm tokens agree soon and whatever the start; cold ones gather in groups that hardly see each other, and
# then the start decides. Shades are the range over the eight starts.

with plt.rc_context(of.plot.STYLE):
    fig, axes = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
for k, colour in zip((0, 6, 11), of.plot.COLOURS, strict=False):
    one_beta = ds["disorder"].isel(beta=k)
    axes[0].fill_between(ds["t"], one_beta.min("seed"), one_beta.max("seed"), color=colour, alpha=0.2, lw=0)
    axes[0].plot(ds["t"], one_beta.mean("seed"), color=colour, label=rf"$\beta={beta[k]:.2g}$")
axes[0].set(xlabel="$t$", ylabel="$1-|$mean$|$", xlim=(0, 16), ylim=(0, 1))
axes[0].legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
colours = axes[1].pcolormesh(ds["t"], beta, mean.T, cmap=of.plot.SEQUENCE, vmin=0, vmax=1)
axes[1].set(xlabel="$t$", ylabel=r"inverse temperature $\beta$", yscale="log", yticks=(1, 4, 16))
axes[1].set_yticklabels(["1", "4", "16"])
axes[1].minorticks_off()
fig.colorbar(colours, ax=axes[1], label="$1-|$mean$|$, averaged over the starts")
plt.show()
