r"""
Porous media and crowds on a grid
=================================

Two gradient flows that explicit steps do not like. The porous medium equation
:math:`\partial_t\rho = \Delta\rho^m` descends :math:`\int \rho^m/(m-1)`: its fronts move with finite
speed, and the density vanishes beyond them. A crowd descends a potential under the bound
:math:`\rho \le` limit, an energy that is zero or infinite and has no differential at all. JKO steps take
both; on a grid they solve the dual problem, so that fronts stay sharp.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import otflow as of

plt.rcParams.update(of.plot.STYLE)

n = 64
x = (np.arange(n) + 0.5) / n - 0.5
X, Y = np.meshgrid(x, x, indexing="ij")


def grid(rho):
    return of.Grid(rho / (rho.sum() / n**2), [x, x])


# %%
# Two bumps spread until they meet.

bumps = grid(np.maximum(0.015 - (X - 0.2) ** 2 - Y**2, 0) + np.maximum(0.01 - (X + 0.18) ** 2 - Y**2, 0))
medium = of.SteepestDescent(of.PorousMedium(2.0), of.Wasserstein())
spread = of.flow(bumps, medium, of.JKO(), t1=3e-3, dt=5e-4, observe={"F": medium.energy})

# %%
# A crowd walks to a door on the right, and packs around it. The density never exceeds the limit.

limit = 6.0
door = of.Potential(lambda z: 4 * torch.sqrt((z[..., 0] - 0.3) ** 2 + z[..., 1] ** 2 + 1e-3))
crowd = of.SteepestDescent(door + of.DensityBound(limit), of.Wasserstein())
people = grid(np.exp(-(((X + 0.2) / 0.14) ** 4) - (Y / 0.3) ** 4))
walk = of.flow(people, crowd, of.JKO(), t1=0.16, dt=0.02)
print(
    f"largest density over the limit: {max(mu.density.max().item() for mu in walk.measures[1:]) / limit:.9f}"
)

# %%
# The certificates of the steps: the energy inequality, the mass, and where the exact problem could not be
# resolved because the density jumps, the blur of the step that stands in (a variance, below a cell squared).

for name, run in {"medium": spread, "crowd": walk}.items():
    mass = max(abs(mu.density.sum().item() * mu.cell - 1) for mu in run.measures)
    gap, blur = (float(run.certificates[key][1:].max()) for key in ("energy_gap", "blur"))
    print(
        f"{name}: energy gap {gap:.1e}, mass error {mass:.0e}, blur {blur:.1e}, cell squared {1 / n**2:.1e}"
    )

# %%
# Above, the porous medium; each picture has its own scale, since the peak falls. Below, the crowd, on one
# scale up to the limit.

fig, axes = plt.subplots(2, 4, figsize=(10.0, 5.0), layout="constrained", sharex=True, sharey=True)
for row, run, top in zip(axes, (spread, walk), (None, limit), strict=True):
    for ax, k in zip(row, np.linspace(0, len(run) - 1, 4).round().astype(int), strict=True):
        mu = run.measures[k]
        of.plot.density(mu, ax=ax, top=top)
        ax.set_title(f"$t = {run.ts[k].item():.2g}$, largest density {mu.density.max().item():.3g}")
        ax.label_outer()
fig.colorbar(axes[0, 3].images[0], ax=axes[0], label="share of the peak").set_ticks([])
fig.colorbar(axes[1, 3].images[0], ax=axes[1], label="density")
plt.show()
