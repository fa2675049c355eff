"""Pictures of the experiment `relu-flows`."""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow.papers import relu_flows as rf
from otflow.papers.relu_flows import runs
from otflow.papers.relu_flows.runs import Array

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
DASHED: Any = {"linestyle": "--", "color": of.plot.INK, "linewidth": 1}
BOX: Any = {"xlim": (-0.15, 1.15), "ylim": (-0.1, 1.2)}  # of the images of the square


def picture(x: Array) -> Array:
    """Values of a picture: rings about a point, on a slope.

    >>> import numpy as np
    >>> from otflow.papers.relu_flows.draw import picture
    >>> picture(np.array([[0.35, 0.6]])).shape
    (1,)
    """
    r = np.hypot(x[:, 0] - 0.35, x[:, 1] - 0.6)
    return np.asarray(np.cos(18 * r) + 1.2 * (x[:, 0] - x[:, 1]))


def scrambled() -> Any:
    """A picture, the same after each of the parts of a permutation, and put together again."""
    K, n = 6, 300
    flow = rf.permutation(np.random.default_rng(5).permutation(K * K).reshape(K, K))
    axis = (np.arange(n) + 0.5) / n
    grid = np.stack(np.meshgrid(axis, axis, indexing="xy"), -1).reshape(-1, 2)
    fig, ((first, lift, *last),) = of.plot.figure(1, 4, size=(11.4, 3.1))
    # The colour of a place is that of the point that came there.
    origins = (grid, flow.inverse(grid).numpy(), flow.inverse(flow(grid)).numpy())
    titles = ("a picture", f"permuted by {len(flow)} neurons", "and by the reversed flow")
    look = {"origin": "lower", "extent": (0, 1, 0, 1), "interpolation": "nearest"}
    for ax, places, title in zip((first, *last), origins, titles, strict=True):
        ax.imshow(picture(places).reshape(n, n), cmap=of.plot.SEQUENCE, **look)
        for draw_line in (ax.axhline, ax.axvline):
            for edge in np.arange(1, K) / K:
                draw_line(edge, color="white", linewidth=0.4, alpha=0.6)
        of.plot.panel(ax, title, xticks=[], yticks=[])
    _lift(lift, flow, K)
    return fig


def _lift(ax: Any, flow: rf.PiecewiseFlow, K: int) -> None:
    """Half of the way: every cell in a slot of its own."""
    count = 2 * (K - 1) + 1 + 2 * (K * K - 1)  # the shifts of rows, a translation, the lifts of cells
    half = rf.PiecewiseFlow(flow.pieces[:count])
    side = np.linspace(0.02, 0.98, 14) / K
    cells = np.stack(np.meshgrid(np.arange(K), np.arange(K), side, side, indexing="ij"), -1).reshape(-1, 4)
    x = cells[:, :2] / K + cells[:, 2:]
    ax.scatter(*half(x).numpy().T, c=picture(x), s=5, cmap=of.plot.SEQUENCE, linewidth=0)
    of.plot.panel(ax, "on the way: a slot for each cell", "$x_1$", "$x_2$")


def twisted(polars: runs.Polars) -> Any:
    """Where a chequerboard goes, under the map and under flows, and the Jacobians of cells."""
    fig, axes = of.plot.figure(2, 3, size=(9.6, 6.2))
    x = np.random.default_rng(1).random((24_000, 2))
    board = np.floor(6 * x).sum(1) % 2
    cases = [(runs.twist(x), runs.log_jacobian(x), "the map", "log Jacobian")]
    for p in (polars.maps[0], polars.maps[-1]):
        K, (ends, gains) = len(p.jacobians), p.flow.with_log_det(x)
        cells = rf"${K}\times{K}$ cells, {len(p.flow)} pieces"
        cases.append((ends.numpy(), gains.numpy(), cells, f"$L^2$ error {p.l2:.3f}"))
    limits = {"vmin": cases[0][1].min(), "vmax": cases[0][1].max()}
    for (top, bottom), (end, gain, *titles) in zip(axes.T, cases, strict=True):
        top.scatter(*end.T, 1.6, board, cmap=of.plot.SEQUENCE, linewidth=0)
        colours = bottom.scatter(*end.T, 1.6, gain, cmap=of.plot.SEQUENCE, linewidth=0, **limits)
        for ax, title in zip((top, bottom), titles, strict=True):
            of.plot.panel(ax, title, xticks=[], yticks=[], aspect="equal", **BOX)
    fig.colorbar(colours, ax=axes[1, 2], shrink=0.8, label="log Jacobian")
    return fig


def rates(polars: runs.Polars, neurons: runs.Neurons) -> Any:
    """Errors against cells, pieces and sweeps, logarithmically."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.4, 3.8))
    K, M = polars.K, neurons.M
    left.loglog(K, polars.l2, "o-", color=BLUE, label="$L^2$ distance of the maps")
    left.loglog(K, polars.tv, "s-", color=RED, label="total variation of the images")
    left.loglog(K, 0.7 * polars.l2[0] * K[0] / K, **DASHED, label="$1/K$")
    title = "a diffeomorphism by permute, compress, permute"
    of.plot.panel(left, title, "cells along a side, $K$", "error", legend="lower left", xticks=K)
    for (d, errors), colour in zip(neurons.maurey.items(), (BLUE, RED, PINK), strict=True):
        right.loglog(M, errors, "o-", color=colour, label=f"at random, $d = {d}$")
    right.loglog(M, 1.5 * errors[0] * np.sqrt(M[0] / M), **DASHED)
    right.loglog(runs.NEURONS * runs.SWEEPS, neurons.trotter, "s-", color=GREEN, label="in turn, $d = 10$")
    title = "fifty neurons, one at a time (dashed: $M^{-1/2}$)"
    of.plot.panel(right, title, "pieces, $M$", "root mean square error", legend="lower left")
    for ax in (left, right):
        ax.minorticks_off()
    return fig
