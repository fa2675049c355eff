"""Draws the figures of the experiment `clusters`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import otflow as of
from otflow.papers import clusters
from otflow.papers.clusters.runs import Array, ClusterRun, eye, spectra

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT
WINDOW: Any = {"aspect": "equal", "xlim": (-7, 7), "ylim": (-6, 8)}  # the box of the start, and a legend
TOP: Any = {"loc": "upper center", "fontsize": 6.5, "columnspacing": 0.8}


def polytope(c: ClusterRun) -> Any:
    """Paths with hulls; the final polytope with S; the approach to S."""
    fig, ((left, middle, right),) = of.plot.figure(1, 3, size=(11.4, 3.9))
    _hulls(left, c.ts, c.z[:, 0])
    _limits(middle, c)
    values = c.violations
    right.semilogy(c.ts, values[:, 0], color=BLUE, label="this cloud")
    right.semilogy(c.ts, values[:, 1:], color=FAINT, linewidth=0.8, zorder=0)
    right.semilogy(c.ts, 40 * np.exp(-c.ts), "--", color=INK, linewidth=1, label="$40\\,e^{-t}$")
    title = "Tokens approach $S$ like $e^{-t}$"
    of.plot.panel(right, title, "time $t$", r"$\max_i\,(\max_v z_i\cdot v-|z_i|^2)$", legend=True)
    return fig


def _hulls(ax: Any, ts: Array, z: torch.Tensor) -> None:
    _paths(ax, z.numpy())
    for t, style, colour in ((0.0, ":", GREEN), (1.0, "--", INK), (float(ts[-1]), "-", RED)):
        k = int(np.abs(ts - t).argmin())
        _ring(ax, clusters.hull(z[k]).vertices.numpy(), style, colour, f"hull, $t = {ts[k]:g}$")
    legend = {"ncols": 3, "handlelength": 1.4, **TOP}
    of.plot.panel(ax, "$z = e^{-t}x$: the hull shrinks", "$z_1$", "$z_2$", legend=legend, **WINDOW)


def _paths(ax: Any, z: Array) -> None:
    """Paths (T, n, 2) and their starts."""
    ax.plot(*z.transpose(2, 0, 1), color=BLUE, linewidth=0.7, alpha=0.6)
    ax.plot(*z[0].T, ".", color=BLUE, markersize=4)


def _ring(ax: Any, v: Array, style: str, colour: Any, label: str | None = None) -> None:
    """A closed polygon."""
    ax.plot(*np.vstack([v, v[:1]]).T, style, color=colour, linewidth=1.2, label=label)


def _limits(ax: Any, c: ClusterRun) -> None:
    """The polytope, all points of S, and to which vertex each token goes."""
    z, K, S = c.limits(eye(2))[0]
    goal, v = torch.cdist(z, K.vertices).argmin(1), K.vertices.numpy()
    for k in range(len(v)):
        colour = of.plot.COLOURS[k % len(of.plot.COLOURS)]
        ax.plot(*c.z[0, 0][goal == k].numpy().T, "o", color=colour, markersize=3.5)
    _ring(ax, v, "-", RED)
    rest = S[torch.cdist(S, K.vertices).amin(1) > 1e-6].numpy()
    ax.plot(*v.T, "s", color=RED, markersize=6, label=f"leaders, {len(v)} vertices")
    ax.plot(*rest.T, "x", color=INK, markersize=6, label=f"other points of $S$, {len(rest)}")
    title, legend = "Starts, coloured by their limits, and $S$", {"ncols": 2, **TOP}
    of.plot.panel(ax, title, "$z_1$", "$z_2$", legend=legend, **WINDOW)


def boolean(c: ClusterRun) -> Any:
    """Attention matrices at four times; tokens in the order of their places."""
    fig, axes = of.plot.figure(1, 4, size=(11.4, 3.1))
    order, ticks = c.z[0, 0, :, 0].argsort(), {0.5: "min", 11.5: "max"}
    for ax, t in zip(axes.flat, (0.0, 0.5, 2.0, float(c.ts[-1])), strict=True):
        k = int(np.abs(c.ts - t).argmin())
        P = c.P[k, 0][order][:, order].numpy()
        mesh = ax.pcolormesh(P, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=0.3)
        title = f"$t = {c.ts[k]:g}$: rank {c.rank[k, 0]}"
        of.plot.panel(ax, title, "attended to", xticks=ticks, yticks=ticks, aspect="equal")
    axes[0, 0].set_ylabel("token")
    fig.colorbar(mesh, ax=axes.ravel().tolist(), shrink=0.8).ax.set_title("$P$")
    return fig


def planes(c: ClusterRun) -> Any:
    """The tokens at the end with their lines, and the coordinate along the leading eigenvector over time."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.0, 3.9))
    normal = clusters.hyperplanes(eye(2), eye(2), c.V).normal
    heights = c.z[:, 0] @ normal
    values = clusters.distinct(heights[-1], 1e-2)
    left.plot(*c.z[0, 0].T, ".", color=FAINT, label="$t = 0$")
    left.plot(*c.z[-1, 0].T, "o", color=BLUE, markersize=4, label=f"$t = {c.ts[-1]:g}$")
    right.plot(c.ts, heights, color=BLUE, linewidth=0.8)
    for value in values:
        foot, along = value * normal / normal.square().sum(), torch.stack([-normal[1], normal[0]])
        left.plot(*torch.stack([foot - 14 * along, foot + 14 * along]).T, "--", color=RED, linewidth=1)
        right.axhline(float(value), color=RED, linestyle="--", linewidth=1, zorder=0)
    title = f"Tokens end on {len(values)} parallel lines"
    of.plot.panel(left, title, "$z_1$", "$z_2$", legend=True, aspect="equal", xlim=(-15, 15), ylim=(-12, 12))
    of.plot.panel(right, "Coordinate along the leading eigenvector", "time $t$", r"$\varphi^*(z)$")
    return fig


def prism(c: ClusterRun) -> Any:
    """Tokens in space over the vertices of a polygon, and their projections."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.0, 4.2))
    ax, z = of.plot.spatial(left), c.z[:, 0].numpy()
    v, ends = c.limits(eye(3)[:, :2])[0][1].vertices.numpy(), [z[-1, :, 2].min(), z[-1, :, 2].max()]
    for height in ends:
        ax.plot(*np.vstack([v, v[:1]]).T, height, color=RED, linewidth=0.8)
    for corner in v:
        ax.plot(*np.tile(corner, (2, 1)).T, ends, color=RED, linewidth=0.8)
    ax.scatter(*z[-1].T, color=BLUE, s=12, depthshade=False)
    of.plot.panel(ax, rf"$t = {c.ts[-1]:g}$: polygon $\times$ line", "$z_1$", "$z_2$", zlabel="$z_3$")
    _paths(right, z[..., :2])
    _ring(right, v, "-", RED)
    right.plot(*v.T, "s", color=RED, markersize=6)
    of.plot.panel(right, "Projected to the leading eigenspace", "$z_1$", "$z_2$", aspect="equal")
    return fig


def ranks(deep: ClusterRun, plane: ClusterRun, line: ClusterRun) -> Any:
    """The rank of attention over time, in 80, 2 and 1 dimensions."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.0, 3.6))
    named = (deep, RED, "$d = 80$, $n = 40$"), (plane, BLUE, "$d = 2$, $n = 40$"), (line, GREEN, "$d = 1$")
    for c, colour, name in named:
        left.plot(c.ts, c.rank.double().mean(1), "o-", color=colour, markersize=3, label=name)
    title, words, ticks = "Attention loses rank", "rank of $P$ (mean over clouds)", [1, 2, 5, 10, 20, 40]
    of.plot.panel(left, title, "time $t$", words, yticks=ticks, yscale="log", legend=True)
    right.pcolormesh(deep.P[-1, 0].numpy(), cmap="Blues", vmin=0, vmax=1)
    title = f"$d = 80$, $t = {deep.ts[-1]:g}$: rank {deep.rank[-1, 0]}"
    of.plot.panel(right, title, "attended to", "token", aspect="equal")
    return fig


def decay(fall: of.Trajectory) -> Any:
    """Covariances times 2t, and norms."""
    fig, ((left, right),) = of.plot.figure(1, 2, size=(9.0, 3.6))
    ts, radius = fall.ts.numpy()[1:], of.observables.radius(fall.stacked).numpy()[1:]
    left.semilogx(ts, spectra(fall).flatten(1), color=BLUE, linewidth=0.9)
    left.axhline(1.0, color=INK, linestyle="--", linewidth=1)
    right.loglog(ts, radius, color=BLUE, linewidth=0.9)
    right.loglog(ts, 1.2 * ts**-0.5, "--", color=INK, linewidth=1, label="$1.2\\,t^{-1/2}$")
    of.plot.panel(left, "$V = -I$: the covariance is $I/(2t)$", "time $t$", r"$2t\times$ eigenvalues of $S$")
    of.plot.panel(right, "$V = -I$: tokens go to 0, but slowly", "time $t$", "largest $|x|$", legend=True)
    return fig
