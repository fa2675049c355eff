r"""
A picture permuted by one neuron at a time
==========================================

The flow of a ReLU network of width one,

.. math:: \dot x = w\, (a \cdot x + b)_+ , \qquad x \mapsto x + w\, (a \cdot x + b)_+\, T\,
          \frac{e^{\kappa T} - 1}{\kappa T}, \quad \kappa = a \cdot w,

is known in closed form while :math:`w, a, b` are constant, and so are its inverse and its Jacobian. If
:math:`a \perp w` it is a shear, which keeps area. Shears alone permute the cells of a square in any order
(announced by Geshkovski and Ruiz-Balet, *Constructive conditional normalizing flows*, 2026; the construction
is ours).
"""

import matplotlib.pyplot as plt
import numpy as np

import otflow as of
from otflow.papers import relu_flows as rf

plt.rcParams.update(of.plot.STYLE)

# %%
# Sixteen by sixteen cells in a random order. Staircases of shears give each cell an interval of :math:`x_1`
# for itself, then a slot of :math:`x_2`, and from there they set it down where it belongs.

K, n = 16, 480
perm = np.random.default_rng(0).permutation(K * K).reshape(K, K)
flow = rf.permutation(perm)
print(f"{flow}: 6 K^2 + 4 K - 7 = {6 * K**2 + 4 * K - 7}, {flow.switches} switches")

# %%
# Off strips of width :math:`10^{-5}` between cells every point goes where the permutation says, to
# rounding, and nowhere is area lost: :math:`\log\det` is 0, exactly.

x = np.random.default_rng(1).random((200_000, 2))
y, log_det = flow.with_log_det(x)
cell = (x * K).astype(int)
new = np.stack(np.unravel_index(perm[cell[:, 0], cell[:, 1]], (K, K)), -1)
error = np.abs(y.numpy() - (x + (new - cell) / K)).max(1)
print(f"exact for {np.mean(error < 1e-12):.4%} of all points, largest |log det| {log_det.abs().max():g}")
print(f"forward, then inverse: {np.abs(flow.inverse(y).numpy() - x).max(1)[error < 1e-12].max():.1e}")

# %%
# A diffeomorphism is not a permutation, but nearly: line up the cells, give each the area of its image by
# one monotone map of :math:`x_1`, and permute slivers into the place of the image. The error decays like
# :math:`1/K`.


def twist(x):
    c = x - 0.5
    angle = 2.5 * np.exp(-5 * (c**2).sum(-1, keepdims=True))
    return c * np.cos(angle) + c[:, ::-1] * [-1, 1] * np.sin(angle) + 0.5


followed = {k: rf.polar(twist, k) for k in (6, 20)}
for found in followed.values():
    print(found)

# %%
# First row: a picture, permuted, and put together again by the reversed flow. Second row: the picture
# carried by a swirl, and by flows of single neurons that follow it.


def picture(x):
    r = np.hypot(x[:, 0] - 0.35, x[:, 1] - 0.6)
    return np.cos(20 * r) + 1.2 * (x[:, 0] - x[:, 1])


axis = (np.arange(n) + 0.5) / n
grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
z = np.random.default_rng(2).random((60_000, 2))
fig, axes = plt.subplots(2, 3, figsize=(9.6, 6.6), layout="constrained")
places = (grid, flow.inverse(grid).numpy(), flow.inverse(flow(grid)).numpy())
titles = ("a picture", f"permuted by {len(flow)} neurons", "and by the reversed flow")
for ax, where, title in zip(axes[0], places, titles, strict=True):
    ax.imshow(picture(where).reshape(n, n), origin="lower", extent=(0, 1, 0, 1), cmap=of.plot.SEQUENCE)
    ax.set_title(title)
ends = {"carried by a swirl": twist(z)}
ends |= {rf"${k} \times {k}$ cells, {len(p.flow)} neurons": p.flow(z).numpy() for k, p in followed.items()}
for ax, (title, end) in zip(axes[1], ends.items(), strict=True):
    ax.scatter(*end.T, c=picture(z), s=4, cmap=of.plot.SEQUENCE, linewidth=0)
    ax.set_title(title)
    ax.set(xlim=(-0.12, 1.12), ylim=(-0.12, 1.12), aspect="equal")
for ax in axes.flat:
    ax.axis("off")
plt.show()
