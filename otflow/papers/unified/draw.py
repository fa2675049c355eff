"""Drawing what the figures of Castin et al. on Gaussians share: orbits above, what is measured below."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

import otflow as of
from otflow.papers.unified.parameters import trace
from otflow.papers.unified.runs import LAST, Array, PanelRun, apart, covariances, isotropic

BLUE, RED, GREEN, PINK = of.plot.COLOURS[:4]
INK = of.plot.INK
REACH = 1.22  # half the width of a disk with its words


def board(cols: int, *, cones: Collection[int] = ()) -> tuple[Any, Array]:
    """Two rows of axes, above for orbits and below for numbers; those of ``cones`` in the first row are 3-d.

    >>> from otflow.papers.unified.draw import board
    >>> board(2, cones=[1])[1].shape
    (2, 2)
    """
    fig, axes = of.plot.figure(2, cols, size=(3.3 * cols, 6.4))
    for k in cones:
        axes[0, k] = of.plot.spatial(axes[0, k])
    engine: Any = fig.get_layout_engine()
    engine.set(w_pad=0.08, h_pad=0.08)
    return fig, axes


def titled(ax: Any, seen: str, run: PanelRun | None = None) -> None:
    """What is seen, below the name and the words of its panel.

    >>> from otflow.papers.unified.draw import board, titled
    >>> titled(board(1)[1][0, 0], "both fall")
    """
    head = rf"$\bf{{{run.label.split()[0]}}}$  {run.words}" + "\n" if run else ""
    of.plot.panel(ax, head + seen)


def discs(ax: Any, traj: of.Trajectory, *, color: Any = BLUE, many: bool = False) -> None:
    """Orbits up to scale, in the unit disk; thinner ones if there are many.

    >>> from otflow.papers.unified.draw import board, discs
    >>> from otflow.papers.unified.runs import follow, panel
    >>> discs(board(1)[1][0, 0], follow(panel("1b", quick=True), t1=1.0))
    """
    of.plot.disk(traj, ax=ax, color=color, size=5.0 if many else 14.0, width=0.4 if many else 0.7)
    ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH))


def rim(ax: Any, line: Array, word: str, *, color: str = INK) -> None:
    """Mark where the matrices uu^T are on the circle, for one line u of the plane.

    >>> import numpy as np
    >>> from otflow.papers.unified.draw import board, rim
    >>> rim(board(1)[1][0, 0], np.array([1.0, 0.0]), "here")
    """
    angle = 2 * np.arctan2(line[1], line[0])
    x, y = np.cos(angle), np.sin(angle)
    ax.plot([x], [y], "o", mfc="none", mec=color, ms=8, mew=1.3, zorder=6)
    side = "left" if x > 0.3 else "right" if x < -0.3 else "center"
    ax.text(1.12 * x, 1.12 * y, word, color=color, fontsize=8, ha=side, va="center")


def mark(ax: Any, M: Array, word: str) -> None:
    """A ring around one matrix in the disk.

    >>> import numpy as np
    >>> from otflow.papers.unified.draw import board, mark
    >>> mark(board(1)[1][0, 0], np.eye(2), "I")
    """
    x, y = (M[0, 0] - M[1, 1]) / np.trace(M), 2 * M[0, 1] / np.trace(M)
    ax.plot([x], [y], "o", mfc="none", mec=RED, ms=8, mew=1.3, zorder=6)
    ax.annotate(word, (x, y), (9, -3), textcoords="offset points", color=RED, fontsize=8)


def dying(run: PanelRun, above: Any, below: Any) -> None:
    """Orbits that end at the profile M, and eigenvalues that fall."""
    discs(above, run.traj)
    mark(above, run.profile, "$M$")
    titled(above, r"$S\to 0$ along one direction", run)
    eigenvalues(below, run.traj, "both fall like $1/t$")


def rank_one(run: PanelRun, above: Any, below: Any) -> None:
    """Orbits that end across q, and eigenvalues one of which falls."""
    discs(above, run.traj)
    q = run.panel.Q[0]
    rim(above, np.array([-q[1], q[0]]), r"$\perp q$", color=RED)
    rim(above, q, "$q$")
    titled(above, "limits of rank one, across $q$", run)
    eigenvalues(below, run.traj, "one falls like $1/t$")


def settled(run: PanelRun, above: Any, below: Any) -> None:
    """Orbits in the cone, coloured by which of the two lines u^T A u = 0 they end on; and these lines.

    A line is drawn as what it is there: the ray of the matrices c uu^T, on the surface of the cone.
    """
    lines = isotropic(run.panel.A)
    which = apart(run.end, lines)[1]
    above.view_init(elev=22, azim=-60)
    of.plot.cone(run.traj, ax=above, color=[(BLUE, RED)[k] for k in which], size=7.0, width=0.5)
    above.set_box_aspect((1, 1, 0.9), zoom=1.15)
    top = above.get_zlim()[1]
    for a, b in lines:
        end = top * np.array([a * a - b * b, 2 * a * b, 1.0])
        above.plot(*np.stack([np.zeros(3), end], -1), color=INK, lw=1.2, ls=(0, (4, 2)), zorder=5)
    titled(above, "limits on two lines $u^TAu=0$", run)
    eigenvalues(below, run.traj, "one falls exponentially", floor=1e-10)


def eigenvalues(ax: Any, traj: of.Trajectory, seen: str, *, floor: float = 1e-16) -> None:
    """Both eigenvalues of every member against time, on logarithmic axes.

    >>> from otflow.papers.unified.draw import board, eigenvalues
    >>> from otflow.papers.unified.runs import follow, panel
    >>> traj = follow(panel("1b", quick=True), t1=1.0, save_at=[0.0, 0.5, 1.0])
    >>> eigenvalues(board(1)[1][0, 0], traj, "one falls")
    """
    values, t = np.linalg.eigvalsh(covariances(traj))[1:], traj.ts[1:].numpy()
    of.plot.spectra(values, t=t, ax=ax, floor=floor)
    ax.set(xscale="log", ylabel="eigenvalues of $S$", xlim=(t[0], t[-1]))
    titled(ax, seen)
    key(ax, {"larger": BLUE, "smaller": RED}, loc="lower left")


def hyperbola(ax: Any, c: float, *, since: float = 30.0) -> None:
    """A dotted line c / t to compare with, from the time ``since`` on.

    >>> from otflow.papers.unified.draw import board, hyperbola
    >>> hyperbola(board(1)[1][0, 0], 3.0)
    """
    ax.plot([since, LAST], [c / since, c / LAST], color=INK, lw=1.3, ls=":", zorder=5)
    ax.annotate("$1/t$", (LAST, c / LAST), (2, 3), textcoords="offset points", fontsize=8, color=INK)


def traces(ax: Any, t: Array, S: Array, *, color: Any = GREEN) -> None:
    """tr S of every member against time, over its start; ``color`` may hold one colour per member.

    >>> import numpy as np
    >>> from otflow.papers.unified.draw import board, traces
    >>> traces(board(1)[1][0, 0], np.arange(2.0), np.ones((2, 5, 2, 2)))
    """
    values = trace(S)
    shades = np.broadcast_to(np.asarray(color), values.shape[1:])
    for shade in dict.fromkeys(shades.tolist()):
        ax.plot(t, (values / values[0])[:, shades == shade], color=shade, lw=0.6, alpha=0.35)
    of.plot.panel(ax, "", "$t$", "tr $S$, over its start", yscale="log")


def note(ax: Any, x: float, y: float, words: str) -> None:
    """Words at a place that is given in parts of the axes.

    >>> from otflow.papers.unified.draw import board, note
    >>> note(board(1)[1][0, 0], 0.1, 0.9, "dashed: the bound")
    """
    ax.text(x, y, words, va="top", fontsize=8, transform=ax.transAxes)


def against(ax: Any, exact: Array, found: Array, word: str) -> None:
    """Measured blow-up times over predicted ones: on the diagonal if they agree.

    >>> import numpy as np
    >>> from otflow.papers.unified.draw import against, board
    >>> against(board(1)[1][0, 0], np.array([1.0, 2.0]), np.array([1.0, 2.0]), "closed form")
    """
    low, high = exact.min() / 1.1, exact.max() * 1.1
    ax.plot([low, high], [low, high], color=INK, lw=0.8)
    ax.plot(exact, found, "o", color=RED, ms=3.2, mew=0, alpha=0.5)
    ticks = [x for x in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= x <= high]
    words = f"blow-up time: {word}", "blow-up time: flow"
    of.plot.panel(ax, "", *words, xscale="log", yscale="log", xticks=ticks, yticks=ticks)


def key(ax: Any, meaning: dict[str, str], *, loc: str = "best") -> None:
    """What the colours mean.

    >>> from otflow.papers.unified.draw import board, key
    >>> key(board(1)[1][0, 0], {"blows up": "red"})
    """
    dots = [ax.plot([], [], "o", ms=4, color=c)[0] for c in meaning.values()]
    keys = {"handles": dots, "labels": list(meaning), "loc": loc, "handletextpad": 0.2}
    of.plot.panel(ax, legend=keys)
