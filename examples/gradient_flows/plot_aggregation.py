r"""
Rings and discs by minimising movements
=======================================

Particles that repel when near and attract when far settle on shapes that depend on the kernel. For
:math:`W(x) = |x|^4/4 - |x|^2/2` in the plane it is a ring of radius :math:`1/\sqrt3`; for
:math:`W(x) = |x|^2/2 - \log|x|` it is the unit disc, evenly filled. Each JKO step minimises

.. math::

   \frac12 \iint W(x - y)\, d\nu\, d\nu + \frac1{2\tau} W_2^2(\nu, \mu_k)

over the positions of the particles, so that steps may be long where explicit ones would throw close
neighbours across the plane.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import otflow as of

plt.rcParams.update(of.plot.STYLE)


def ring(x, y):
    r2 = (x - y).square().sum(-1)
    return r2**2 / 4 - r2 / 2


def disc(x, y):
    r2 = (x - y).square().sum(-1)
    return r2 / 2 - torch.log(r2) / 2


# %%
# The logarithm is infinite for a particle and itself, so that pair is left out: ``diagonal=False``.

rng = np.random.default_rng(0)
cloud = of.Particles(0.4 * rng.normal(size=(80, 2)))
energies = {"a ring": of.Interaction(ring), "a disc": of.Interaction(disc, diagonal=False)}
runs = {}
for name, F in energies.items():
    field = of.SteepestDescent(F, of.Wasserstein())
    runs[name] = of.flow(cloud, field, of.JKO(), t1=40.0, dt=0.5, observe={"F": F})

# %%
# Every step carries its certificates: how stationary it is, and that the energy paid for the way.

for name, run in runs.items():
    worst = {key: f"{float(run.certificates[key][1:].max()):.0e}" for key in ("residual", "energy_gap")}
    moment = (run.final.x - run.final.x.mean(0)).square().sum(-1).mean().item()
    print(f"{name}: worst {worst}, second moment {moment:.4f}")

blue, orange, green, *_ = of.plot.COLOURS
angle = np.linspace(0, 2 * np.pi, 200)
fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), layout="constrained")
for ax, (name, run), radius in zip(axes, runs.items(), (3**-0.5, 1.0), strict=False):
    centre = run.final.x.mean(0).numpy()
    circle = centre[:, None] + radius * np.stack([np.cos(angle), np.sin(angle)])
    ax.plot(*circle, color=orange, lw=1, label="exact limit")
    of.plot.trails(run, ax=ax, size=12)
    ax.set(title=name, aspect="equal", adjustable="box", xlim=(-1.3, 1.3), ylim=(-1.1, 1.5))
    ax.legend(loc="upper center", ncols=3)
for (name, run), colour in zip(runs.items(), (blue, green), strict=True):
    F = run.observed["F"]
    axes[2].semilogy(run.ts[:-10], F[:-10] - F[-1], color=colour, label=name)
axes[2].set(xlabel="$t$", ylabel=r"$F(\mu_t) - F(\mu_{40})$", title="energy above its last value")
axes[2].legend()
plt.show()
