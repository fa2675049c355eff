"""The figures of the experiment `clusters`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import otflow as of
from otflow.papers import clusters
from otflow.papers.clusters.runs import eye, polytopes, spectra, violations

if TYPE_CHECKING:
    from otflow.dynamics.trajectory import Trajectory
    from otflow.papers.clusters.runs import ClusterRun

BLUE, RED, GREEN = of.plot.COLOURS[:3]
INK, FAINT = of.plot.INK, of.plot.FAINT


def polytope(c: ClusterRun) -> Any:
    """Paths with hulls; the final polytope with S; the approach to S."""
    fig, axes = of.plot.figure(1, 3, size=(11.4, 3.9))
    z, (last, K) = c.z[:, 0], polytopes(c, eye(2))[0]
    _paths(axes[0, 0], c.ts, z)
    _limits(axes[0, 1], last, K, z[0])
    ax = axes[0, 2]
    values = violations(c)
    ax.semilogy(c.ts, values[:, 0], color=BLUE, label="this cloud")
    ax.semilogy(c.ts, values[:, 1:], color=FAINT, linewidth=0.8, zorder=0)
    ax.semilogy(c.ts, 40 * np.exp(-c.ts), "--", color=INK, linewidth=1, label="exp(-t)")
    ax.set(xlabel="time t", ylabel="max of max v·z - |z|²", title="Tokens approach S like exp(-t)")
    ax.legend()
    return fig


def _paths(ax: Any, ts: np.ndarray, z: torch.Tensor) -> None:
    ax.plot(*z.numpy().transpose(2, 0, 1), color=BLUE, linewidth=0.7, alpha=0.6)
    ax.plot(*z[0].numpy().T, ".", color=BLUE, markersize=4)
    for k, (t, style) in enumerate(((0.0, ":"), (1.0, "--"), (float(ts[-1]), "-"))):
        near = int(np.abs(ts - t).argmin())
        _ring(
            ax,
            clusters.hull(z[near]).vertices.numpy(),
            style,
            (GREEN, INK, RED)[k],
            f"hull, t = {ts[near]:g}",
        )
    ax.set(title="z = exp(-t) x: the hull shrinks", aspect="equal", xlim=(-7, 7), ylim=(-6, 8))
    ax.legend(loc="upper center", ncols=3, fontsize=6.5, columnspacing=0.8, handlelength=1.4)


def _ring(ax: Any, v: np.ndarray, style: str, colour: Any, label: str | None = None) -> None:
    ax.plot(*np.vstack([v, v[:1]]).T, style, color=colour, linewidth=1.2, label=label)


def _limits(ax: Any, z: torch.Tensor, K: clusters.Polytope, start: torch.Tensor) -> None:
    """The polytope, all points of S, and to which vertex each token goes."""
    S = clusters.limit_set(K.vertices, eye(2))
    goal = torch.cdist(z, K.vertices).argmin(1)
    for k in range(len(K.vertices)):
        own = start[goal == k].numpy()
        ax.plot(*own.T, "o", color=of.plot.COLOURS[k % len(of.plot.COLOURS)], markersize=3.5)
    _ring(ax, K.vertices.numpy(), "-", RED)
    rest = S[torch.cdist(S, K.vertices).amin(1) > 1e-6].numpy()
    ax.plot(*K.vertices.numpy().T, "s", color=RED, markersize=6, label=f"leaders, {len(K.vertices)} vertices")
    ax.plot(*rest.T, "x", color=INK, markersize=6, label=f"other points of S, {len(rest)}")
    ax.set(title="Starts, coloured by their limits, and S", aspect="equal", xlim=(-7, 7), ylim=(-6, 8))
    ax.legend(loc="upper center", ncols=2, fontsize=6.5, columnspacing=0.8)


def boolean(c: ClusterRun) -> Any:
    """Attention matrices at four times; tokens in the order of their places."""
    fig, axes = of.plot.figure(1, 4, size=(11.4, 3.1))
    order = c.z[0, 0, :, 0].argsort()
    for ax, t in zip(axes.flat, (0.0, 0.5, 2.0, float(c.ts[-1])), strict=True):
        k = int(np.abs(c.ts - t).argmin())
        P = c.P[k, 0]
        mesh = ax.pcolormesh(P[order][:, order].numpy(), cmap="Blues", vmin=0, vmax=1, edgecolors="white")
        mesh.set_linewidth(0.3)
        ax.set(title=f"t = {c.ts[k]:g}: rank {int(clusters.rank(P))}", aspect="equal", xlabel="attended to")
        ax.set_xticks([0.5, 11.5], ["min", "max"])
        ax.set_yticks([0.5, 11.5], ["min", "max"])
        ax.grid(visible=False)
    axes[0, 0].set_ylabel("token")
    fig.colorbar(mesh, ax=axes.ravel().tolist(), shrink=0.8).ax.set_title("P")
    return fig


def planes(c: ClusterRun) -> Any:
    """The tokens at the end with their lines, and the coordinate along the leading eigenvector over time."""
    fig, axes = of.plot.figure(1, 2, size=(9.0, 3.9))
    normal = clusters.hyperplanes(eye(2), eye(2), c.V).normal
    heights = c.z[:, 0] @ normal
    values = clusters.distinct(heights[-1], 1e-2)
    ax = axes[0, 0]
    ax.plot(*c.z[0, 0].numpy().T, ".", color=FAINT, label="t = 0")
    ax.plot(*c.z[-1, 0].numpy().T, "o", color=BLUE, markersize=4, label=f"t = {c.ts[-1]:g}")
    for value in values:
        foot, along = value * normal / normal.square().sum(), torch.stack([-normal[1], normal[0]])
        ends = torch.stack([foot - 14 * along, foot + 14 * along]).numpy()
        ax.plot(*ends.T, "--", color=RED, linewidth=1)
    ax.set(
        title=f"Tokens end on {len(values)} parallel lines", aspect="equal", xlim=(-15, 15), ylim=(-12, 12)
    )
    ax.legend()
    axes[0, 1].plot(c.ts, heights.numpy(), color=BLUE, linewidth=0.8)
    for value in values:
        axes[0, 1].axhline(float(value), color=RED, linestyle="--", linewidth=1, zorder=0)
    axes[0, 1].set(xlabel="time t", ylabel="φ*(z)", title="Coordinate along the leading eigenvector")
    return fig


def prism(c: ClusterRun) -> Any:
    """Tokens in space over the vertices of a polygon, and their projections."""
    fig, axes = of.plot.figure(1, 2, size=(9.0, 4.2))
    ax = axes[0, 0] = of.plot.spatial(axes[0, 0])
    z = c.z[:, 0].numpy()
    _, K = polytopes(c, eye(3)[:, :2])[0]
    v, (low, high) = K.vertices.numpy(), (z[-1, :, 2].min(), z[-1, :, 2].max())
    for height in (low, high):
        ax.plot(*np.vstack([v, v[:1]]).T, height, color=RED, linewidth=0.8)
    for corner in v:
        ax.plot(*np.tile(corner, (2, 1)).T, [low, high], color=RED, linewidth=0.8)
    ax.scatter(*z[-1].T, color=BLUE, s=12, depthshade=False)
    ax.set(title=f"t = {c.ts[-1]:g}: polygon × line")
    ax.set_xlabel("z₁")
    ax.set_ylabel("z₂")
    ax.set_zlabel("z₃")
    _paths_in_plane(axes[0, 1], z[..., :2], v)
    return fig


def _paths_in_plane(ax: Any, z: np.ndarray, v: np.ndarray) -> None:
    ax.plot(*z.transpose(2, 0, 1), color=BLUE, linewidth=0.7, alpha=0.6)
    ax.plot(*z[0].T, ".", color=BLUE, markersize=4)
    _ring(ax, v, "-", RED)
    ax.plot(*v.T, "s", color=RED, markersize=6)
    ax.set(title="Projected to the leading eigenspace", aspect="equal", xlabel="z₁", ylabel="z₂")


def ranks(deep: ClusterRun, plane: ClusterRun, line: ClusterRun) -> Any:
    """The rank of attention over time, in 80, 2 and 1 dimensions."""
    fig, axes = of.plot.figure(1, 2, size=(9.0, 3.6))
    ax = axes[0, 0]
    for c, colour, name in (
        (deep, RED, "d = 80, n = 40"),
        (plane, BLUE, "d = 2, n = 40"),
        (line, GREEN, "d = 1"),
    ):
        many = clusters.rank(c.P).double()
        ax.plot(c.ts, many.mean(1).numpy(), "o-", color=colour, markersize=3, label=name)
    ax.set(xlabel="time t", ylabel="rank of P (mean over clouds)", title="Attention loses rank", yscale="log")
    ax.set_yticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
    ax.legend()
    ax = axes[0, 1]
    ax.pcolormesh(deep.P[-1, 0].numpy(), cmap="Blues", vmin=0, vmax=1)
    ax.set(xlabel="attended to", ylabel="token", aspect="equal")
    ax.set(title=f"d = 80, t = {deep.ts[-1]:g}: rank {int(clusters.rank(deep.P[-1, 0]))}")
    ax.grid(visible=False)
    return fig


def decay(fall: Trajectory) -> Any:
    """Covariances times 2t, and norms."""
    fig, axes = of.plot.figure(1, 2, size=(9.0, 3.6))
    ts = fall.ts.numpy()[1:]
    values = spectra(fall).flatten(1).numpy()
    axes[0, 0].semilogx(ts, values, color=BLUE, linewidth=0.9)
    axes[0, 0].axhline(1.0, color=INK, linestyle="--", linewidth=1)
    axes[0, 0].set(
        xlabel="time t", ylabel="2t × eigenvalues of S", title="V = -I: the covariance is I / (2t)"
    )
    radius = of.observables.radius(fall.stacked).numpy()[1:]
    axes[0, 1].loglog(ts, radius, color=BLUE, linewidth=0.9)
    axes[0, 1].loglog(ts, 1.2 * ts**-0.5, "--", color=INK, linewidth=1, label="t^(-1/2)")
    axes[0, 1].set(xlabel="time t", ylabel="largest |x|", title="V = -I: tokens go to 0, but slowly")
    axes[0, 1].legend()
    return fig
