"""Axes that the figures of Castin et al. on Gaussians share: orbits above, what is measured below."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

import otflow as of
from otflow.papers.unified.parameters import Panel
from otflow.papers.unified.runs import Array, apart, covariances, isotropic

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK = of.plot.INK
REACH = 1.22  # half the width of a disk with its words


def board(cols: int, *, cones: Collection[int] = ()) -> tuple[Any, Array]:
    """Two rows of axes, above for orbits and below for numbers; those of ``cones`` in the first row are 3-d.

    >>> board(2, cones=[1])[1].shape
    (2, 2)
    """
    fig, axes = of.plot.figure(2, cols, size=(3.3 * cols, 6.4))
    for k in cones:
        axes[0, k] = of.plot.spatial(axes[0, k])
    engine: Any = fig.get_layout_engine()
    engine.set(w_pad=0.08, h_pad=0.08)
    return fig, axes


def titled(ax: Any, panel: str, words: str) -> None:
    """The name of the panel in bold, then what is seen.

    >>> titled(board(1)[1][0, 0], "1a", "all shrink")
    """
    ax.set_title(rf"$\bf{{{panel}}}$  {words}", fontsize=9, color=INK)


def discs(
    ax: Any, traj: of.Trajectory, *, color: Any = BLUE, many: bool = False, size: float | None = None
) -> None:
    """Orbits up to scale, in the unit disk; thinner ones if there are many.

    >>> from otflow.papers.unified.runs import follow, panel
    >>> discs(board(1)[1][0, 0], follow(panel("1b", quick=True), t1=1.0))
    """
    of.plot.disk(traj, ax=ax, color=color, size=size or (5.0 if many else 14.0), width=0.4 if many else 0.7)
    ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH))


def rim(ax: Any, line: Array, word: str, *, color: str = INK, reach: float = 1.12) -> None:
    """Mark where the matrices uu^T are on the circle, for one line u of the plane.

    >>> rim(board(1)[1][0, 0], np.array([1.0, 0.0]), "here")
    """
    angle = 2 * np.arctan2(line[1], line[0])
    x, y = np.cos(angle), np.sin(angle)
    ax.plot([x], [y], "o", mfc="none", mec=color, ms=8, mew=1.3, zorder=6)
    side = "left" if x > 0.3 else "right" if x < -0.3 else "center"
    ax.text(reach * x, reach * y, word, color=color, fontsize=8, ha=side, va="center")


def mark(ax: Any, M: Array, word: str, *, color: str = RED) -> None:
    """A ring around one matrix in the disk.

    >>> mark(board(1)[1][0, 0], np.eye(2), "I")
    """
    x, y = (M[0, 0] - M[1, 1]) / np.trace(M), 2 * M[0, 1] / np.trace(M)
    ax.plot([x], [y], "o", mfc="none", mec=color, ms=8, mew=1.3, zorder=6)
    ax.annotate(word, (x, y), (9, -3), textcoords="offset points", color=color, fontsize=8)


def rays(ax: Any, lines: Array, top: float, *, color: str = INK) -> None:
    """The half-lines of the matrices c uu^T on the surface of the cone, up to a trace.

    >>> rays(board(1, cones=[0])[1][0, 0], np.eye(2), 1.0)
    """
    for a, b in lines:
        end = top * np.array([a * a - b * b, 2 * a * b, 1.0])
        ax.plot(*np.stack([np.zeros(3), end], -1), color=color, lw=1.2, ls=(0, (4, 2)), zorder=5)


def settled(ax: Any, p: Panel, traj: of.Trajectory) -> None:
    """Orbits in the cone, coloured by which of the two lines u^T A u = 0 they end on, and these lines.

    >>> from otflow.papers.unified.runs import follow, panel
    >>> p = panel("1d", quick=True)
    >>> settled(board(1, cones=[0])[1][0, 0], p, follow(p, t1=1.0))
    """
    lines = isotropic(p.A)
    which = apart(covariances(traj)[-1], lines)[1]
    ax.view_init(elev=22, azim=-60)
    of.plot.cone(traj, ax=ax, color=[(BLUE, RED)[k] for k in which], size=7.0, width=0.5)
    ax.set_box_aspect((1, 1, 0.9), zoom=1.15)
    rays(ax, lines, ax.get_zlim()[1])


def eigenvalues(ax: Any, traj: of.Trajectory, *, floor: float = 1e-12) -> None:
    """Both eigenvalues of every member against time, on logarithmic axes.

    >>> from otflow.papers.unified.runs import follow, panel
    >>> eigenvalues(board(1)[1][0, 0], follow(panel("1b", quick=True), t1=1.0, save_at=[0.0, 0.5, 1.0]))
    """
    values = np.linalg.eigvalsh(covariances(traj))[1:]
    of.plot.spectra(values, t=traj.ts[1:].numpy(), ax=ax, floor=floor)
    ax.set(xscale="log", ylabel="eigenvalues of $S$", xlim=(float(traj.ts[1]), float(traj.ts[-1])))
    key(ax, {"larger": BLUE, "smaller": RED}, loc="lower left")


def slope(ax: Any, t: Array, values: Array, word: str) -> None:
    """A dotted line to compare with.

    >>> slope(board(1)[1][0, 0], np.ones(2), np.ones(2), "1/t")
    """
    ax.plot(t, values, color=INK, lw=1.3, ls=":", zorder=5)
    ax.annotate(word, (t[-1], values[-1]), (2, 3), textcoords="offset points", fontsize=8, color=INK)


def traces(
    ax: Any, traj: of.Trajectory, *, color: Any = BLUE, weight: Any = ((1.0, 0.0), (0.0, 1.0))
) -> None:
    """tr W S W^T of every member against time, over its start; ``color`` may hold one colour per member.

    >>> from otflow.papers.unified.runs import follow, panel
    >>> traces(board(1)[1][0, 0], follow(panel("1b", quick=True), t1=1.0))
    """
    W = np.asarray(weight)
    values = np.trace(W @ covariances(traj) @ W.T, axis1=-2, axis2=-1)
    shades = np.broadcast_to(np.asarray(color), values.shape[1:])
    for shade in dict.fromkeys(shades.tolist()):
        ax.plot(traj.ts.numpy(), (values / values[0])[:, shades == shade], color=shade, lw=0.6, alpha=0.35)
    ax.set(xlabel="t", ylabel="tr $S$, over its start", yscale="log")


def against(ax: Any, exact: Array, found: Array, word: str) -> None:
    """Measured blow-up times over predicted ones: on the diagonal if they agree.

    >>> against(board(1)[1][0, 0], np.array([1.0, 2.0]), np.array([1.0, 2.0]), "closed form")
    """
    low, high = exact.min() / 1.1, exact.max() * 1.1
    ax.plot([low, high], [low, high], color=INK, lw=0.8)
    ax.plot(exact, found, "o", color=RED, ms=3.2, mew=0, alpha=0.5)
    ax.set(xscale="log", yscale="log", xlabel=f"blow-up time: {word}", ylabel="blow-up time: flow")
    ax.minorticks_off()
    ticks = [x for x in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= x <= high]
    words = [f"{x:g}" for x in ticks]
    ax.set_xticks(ticks, words)
    ax.set_yticks(ticks, words)


def key(ax: Any, meaning: dict[str, str], *, loc: str = "best") -> None:
    """What the colours mean.

    >>> key(board(1)[1][0, 0], {"blows up": "red"})
    """
    dots = [ax.plot([], [], "o", ms=4, color=c)[0] for c in meaning.values()]
    ax.legend(dots, list(meaning), loc=loc, handletextpad=0.2, fontsize=8, frameon=False)
