r"""
One Transformer takes overlapping clouds to different points
============================================================

Tokens on the sphere move with attention and a perceptron of one neuron,

.. math::

   \dot x = P_x \bigl( V\, \mathbb E_\mu[x] + w\, (a \cdot x + c)_+ \bigr) ,

where :math:`\mu` is the law of all tokens of one cloud. Three clouds overlap. With the same parameters for
all of them, constant but for a few switches, each can be sent to a point of its own (Geshkovski, Rigollet and
Ruiz-Balet, *Measure-to-measure interpolation using Transformers*, 2026). A field that does not depend on
:math:`\mu` cannot: a point that is in two clouds would go one way.
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of
from otflow.papers import interpolation

plt.rcParams.update(of.plot.STYLE)

# %%
# Three clouds of 300 points, in balls of radius 0.6 whose centres are about 0.5 apart, and three targets.


def sample(n, seed):
    """Three clouds of n points."""
    rng, clouds = np.random.default_rng(seed), []
    for centre in ([0.25, 0.0, 1.0], [-0.2, 0.25, 1.0], [-0.1, -0.3, 1.0]):
        e = np.array(centre) / np.linalg.norm(centre)
        plane = np.linalg.svd(e[None])[2][1:]
        r, t = 0.6 * np.sqrt(rng.uniform(size=(n, 1))), rng.uniform(0, 2 * np.pi, (n, 1))
        x = np.cos(r) * e + np.sin(r) * (np.hstack([np.cos(t), np.sin(t)]) @ plane)
        clouds.append(of.Particles(x, space=of.Sphere()))
    return clouds


clouds = sample(300, 0)
targets = np.array([[-0.3, -0.95, 0.0], [0.95, 0.25, 0.1], [0.5, -0.75, -0.45]])
targets /= np.linalg.norm(targets, axis=1, keepdims=True)
path = interpolation.interpolate(clouds, targets, tol=1e-3)
print(path)
print("largest angles to the targets:", path.errors)
print(f"others come back to within {path.returned.max():.0e} after each step")

# %%
# What each piece does. Attention, :math:`V = \alpha \alpha^\top` with :math:`\alpha` orthogonal to the mean
# of one cloud, leaves that cloud alone and drives the others aside. A gate gathers it, and attention with the
# sign turned puts the others back. The margin says how far the nearest point is from the edge of a gate.

for piece in path.pieces:
    print(f"{piece.phase:15s} for a time of {piece.time:6.2f}, margin {piece.margin:.2f}")

# %%
# The same path on other samples of the same laws, of 2000 points each.

for k, (mu, y) in enumerate(zip(sample(2000, 1), targets, strict=True)):
    print(f"cloud {k + 1}: {np.linalg.norm(path(mu).x.numpy() - y, axis=1).max():.1e} from its target")

# %%
# One point that all three clouds have in common, here in three copies, each without mass and carried by one
# cloud. In black, where it goes with each of them.

shared = np.array([[0.0, 0.0, 1.0]])
fig = plt.figure(figsize=(10.5, 4.1), layout="constrained")
frames = [path.trajectory(mu) for mu in clouds]
first = next(k for k, piece in enumerate(path.pieces) if piece.gain)
for column, (k, words) in enumerate(
    [
        (0, "three clouds that overlap"),
        (first + 1, "the first rests, the others aside"),
        (-1, "at the targets"),
    ]
):
    ax = fig.add_subplot(1, 3, column + 1, projection="3d")
    ax.view_init(elev=25, azim=-50)
    for number, (f, y, colour) in enumerate(zip(frames, targets, of.plot.COLOURS, strict=False), start=1):
        of.plot.particles(f.measures[k], ax=ax, color=colour, size=9)
        ax.plot(*(1.02 * y), "x", ms=7, color=colour, label=f"target of cloud {number}")
    ax.set_title(words, pad=0)
for mu in clouds:
    w = np.append(np.full(mu.n, 1 / mu.n), 0.0)
    grain = of.Particles(np.vstack([mu.x.numpy(), shared]), w=w, space=of.Sphere())
    way = np.stack([m.x[-1].numpy() for m in path.trajectory(grain, 20).measures])
    (line,) = ax.plot(*(1.01 * way.T), color=of.plot.INK, linewidth=0.8)
line.set_label("the shared point, with each cloud")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()
