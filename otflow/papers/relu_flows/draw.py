"""The figures of the experiment `relu-flows`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import otflow as of
from otflow.papers import relu_flows as rf
from otflow.papers.relu_flows.runs import NEURONS, log_jacobian, twist

if TYPE_CHECKING:
    from otflow.papers.relu_flows.runs import Neurons, Polars

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK, FAINT = of.plot.INK, of.plot.FAINT
Array = np.ndarray


def picture(x: Array) -> Array:
    """Values of a picture: rings about a point, on a slope.

    >>> picture(np.array([[0.35, 0.6]])).shape
    (1,)
    """
    r = np.hypot(x[:, 0] - 0.35, x[:, 1] - 0.6)
    return np.asarray(np.cos(18 * r) + 1.2 * (x[:, 0] - x[:, 1]))


def scrambled() -> Any:
    """A picture, the same after each of the parts of a permutation, and put together again."""
    K, n = 6, 300
    perm = np.random.default_rng(5).permutation(K * K).reshape(K, K)
    flow = rf.permutation(perm)
    axis = (np.arange(n) + 0.5) / n
    grid = np.stack(np.meshgrid(axis, axis, indexing="xy"), -1).reshape(-1, 2)
    back = flow.inverse(grid).numpy()
    again = flow.inverse(flow(grid)).numpy()
    fig, axes = of.plot.figure(1, 4, size=(11.4, 3.1))
    titles = ("a picture", f"permuted by {len(flow)} neurons", "and by the reversed flow")
    for ax, places, title in zip(axes[0, [0, 2, 3]], (grid, back, again), titles, strict=True):
        _image(ax, picture(places).reshape(n, n), title, K)
    _lift(axes[0, 1], flow, K)
    return fig


def _image(ax: Any, values: Array, title: str, K: int) -> None:
    ax.imshow(values, origin="lower", extent=(0, 1, 0, 1), cmap=of.plot.SEQUENCE, interpolation="nearest")
    for edge in np.arange(1, K) / K:
        ax.axhline(edge, color="white", linewidth=0.4, alpha=0.6)
        ax.axvline(edge, color="white", linewidth=0.4, alpha=0.6)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=9.5)


def _lift(ax: Any, flow: rf.PiecewiseFlow, K: int) -> None:
    """Half of the way: every cell in a slot of its own."""
    count = 2 * (K - 1) + 1 + 2 * (K * K - 1)
    half = rf.PiecewiseFlow(rf.Piece(flow.w[:count], flow.a[:count], flow.b[:count], flow.T[:count]))
    side = np.linspace(0.02, 0.98, 14) / K
    cells = np.stack(np.meshgrid(np.arange(K), np.arange(K), side, side, indexing="ij"), -1).reshape(-1, 4)
    x = cells[:, :2] / K + cells[:, 2:]
    ax.scatter(*half(x).numpy().T, c=picture(x), s=5, cmap=of.plot.SEQUENCE, linewidth=0)
    ax.set(xlabel="x_1", ylabel="x_2")
    ax.set_title("on the way: a slot for each cell", fontsize=9.5)


def twisted(polars: Polars) -> Any:
    """Where a chequerboard goes, under the map and under flows, and the Jacobians of cells."""
    shown = [polars.maps[0], polars.maps[-1]]
    fig, axes = of.plot.figure(2, 3, size=(9.6, 6.2))
    x = np.random.default_rng(1).random((24_000, 2))
    board = (np.floor(6 * x).sum(1) % 2).astype(float)
    ends = [twist(x), *(p.flow(x).numpy() for p in shown)]
    jacobians = [log_jacobian(x), *(p.flow.log_det(x).numpy() for p in shown)]
    names = [
        "the map",
        *(f"{len(p.jacobians)} x {len(p.jacobians)} cells, {len(p.flow)} pieces" for p in shown),
    ]
    low, high = jacobians[0].min(), jacobians[0].max()
    for k in range(3):
        top, bottom = axes[:, k]
        top.scatter(*ends[k].T, c=board, s=1.6, cmap=of.plot.SEQUENCE, linewidth=0)
        colours = bottom.scatter(
            *ends[k].T, c=jacobians[k], s=1.6, cmap=of.plot.SEQUENCE, vmin=low, vmax=high, linewidth=0
        )
        top.set_title(names[k], fontsize=9.5)
        bottom.set_title("log Jacobian" if k == 0 else f"L2 error {shown[k - 1].l2:.3f}", fontsize=9.5)
        for ax in (top, bottom):
            ax.set(aspect="equal", xlim=(-0.15, 1.15), ylim=(-0.1, 1.2), xticks=[], yticks=[])
    fig.colorbar(colours, ax=axes[1, 2], shrink=0.8, label="log Jacobian")
    return fig


def rates(polars: Polars, neurons: Neurons) -> Any:
    """Errors against cells, pieces and sweeps, logarithmically."""
    fig, axes = of.plot.figure(1, 2, size=(9.4, 3.8))
    left, right = axes.flat
    left.plot(polars.K, polars.l2, "o-", color=BLUE, label="L2 distance of the maps")
    left.plot(polars.K, polars.tv, "s-", color=RED, label="total variation of the images")
    left.plot(
        polars.K, 0.7 * polars.l2[0] * polars.K[0] / polars.K, "--", color=INK, linewidth=1, label="1 / K"
    )
    left.set(xscale="log", yscale="log", xlabel="cells along a side, K", ylabel="error")
    left.set_xticks(polars.K, [str(k) for k in polars.K])
    left.set_title("a diffeomorphism by permute, compress, permute", fontsize=9.5)
    for (d, errors), colour in zip(neurons.maurey.items(), (BLUE, RED, PINK), strict=True):
        right.plot(neurons.M, errors, "o-", color=colour, label=f"at random, d = {d}")
    right.plot(neurons.M, 1.5 * errors[0] * np.sqrt(neurons.M[0] / neurons.M), "--", color=INK, linewidth=1)
    right.plot(NEURONS * neurons.sweeps, neurons.trotter, "s-", color=GREEN, label="in turn, d = 10")
    right.set(xscale="log", yscale="log", xlabel="pieces, M", ylabel="root mean square error")
    right.set_title("fifty neurons, one at a time (dashed: M^(-1/2))", fontsize=9.5)
    for ax in (left, right):
        ax.minorticks_off()
        ax.legend(fontsize=7.5, loc="lower left")
    return fig
