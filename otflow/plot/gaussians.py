"""Gaussians in the plane: their ellipses, and their covariances as points of a cone or a disk."""

from __future__ import annotations

import math
from functools import singledispatch
from itertools import pairwise
from typing import Any, NamedTuple, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from mpl_toolkits.mplot3d.art3d import Line3DCollection, Poly3DCollection  # type: ignore[import-untyped]

from otflow.base import checks
from otflow.base.status import STATUSES
from otflow.dynamics.trajectory import Trajectory
from otflow.measures import Gaussian, Measure
from otflow.plot.style import (
    COLOURS,
    FAINT,
    INK,
    PAPER,
    SEQUENCE,
    STYLE,
    array,
    canvas,
    colours,
    direction,
    equal,
)

# Colours of the ways in which a member can end; what is not here did not go well, and is dark.
ENDINGS = {"ok": COLOURS[0], "local": COLOURS[0], "stopped": COLOURS[2], "blow_up": COLOURS[1]}
FADED = (1, 1, 1, 0.45)  # lines are paler than dots
HEAVY = 20_000  # from so many vertices on, lines are drawn as pixels
RIM = "otflow-rim"  # marks the boundary of the semidefinite matrices and its centre, on the axes once


def ellipses(
    mu_or_traj: Measure | Trajectory,
    *,
    ax: Axes | None = None,
    level: float = 0.9,
    color: Any = None,
    count: int = 12,
    bar: bool = True,
) -> Axes:
    """The sets (x - m)^T S^-1 (x - m) = -2 log(1 - level), which hold the mass ``level`` of plane Gaussians.

    Args:
        mu_or_traj: a `Gaussian` in the plane, with any batch, or a trajectory of them, coloured by time.
        level: mass inside, between 0 and 1.
        color: one colour, instead.
        count: how many save times of a trajectory to draw, equally spaced in number.
        bar: whether the colours of time get a colour bar.

    >>> from otflow.plot import ellipses
    >>> import otflow as of
    >>> _, axes = of.plot.figure()
    >>> ellipses(of.Gaussian([0.0, 0.0], root=[[2.0, 0.0], [0.0, 1.0]]), ax=axes[0, 0]) is axes[0, 0]
    True
    """
    if not 0 < level < 1:
        checks.fail("level", level, "a mass between 0 and 1 is needed", "use level=0.9")
    t, measures = _chosen(mu_or_traj, int(checks.positive(count, "count")))
    outlines = [_outline(mu, math.sqrt(-2 * math.log(1 - level))) for mu in measures]
    ax = canvas(ax)
    lines = LineCollection(list(np.concatenate(outlines)), linewidths=1.3)
    lines.set_color(COLOURS[0] if color is None else color)
    if color is None and t is not None:
        scale = ScalarMappable(Normalize(t[0], t[-1]), SEQUENCE)
        lines.set_color(list(scale.to_rgba(np.repeat(t, len(outlines[0])))))
        if bar:
            with mpl.rc_context(STYLE):
                ax.figure.colorbar(scale, ax=ax, label="$t$", shrink=0.8).outline.set_visible(False)
    ax.add_collection(lines)
    equal(ax)
    ax.autoscale_view()
    return ax


def disk(
    source: Measure | Trajectory,
    *,
    ax: Axes | None = None,
    color: Any = None,
    size: float = 16.0,
    width: float = 0.7,
) -> Axes:
    """(S11 - S22, 2 S12) / tr S: covariances of plane Gaussians up to scale, in the unit disk.

    The circle is rank one, its centre isotropic, and a turn of the plane by an angle turns the disk by twice
    that angle. A member of a batch is a thin line with a small dot where it starts and a bigger one where it
    ends. Covariances that are exactly zero have no place in the disk and are left out.

    Args:
        source: a `Gaussian` in the plane, with any batch, or a trajectory of them.
        color: one colour, one per member, or an array of one number per member; by default how the
            member ended: with a legend if there are several ways.
        size: area of the dot at the end, in points squared.
        width: of the lines, in points.

    >>> from otflow.plot import disk
    >>> import otflow as of
    >>> _, axes = of.plot.figure()
    >>> disk(of.Gaussian([0.0, 0.0], root=[[2.0, 0.0], [0.0, 1.0]]), ax=axes[0, 0]) is axes[0, 0]
    True
    """
    path = _path(source)
    ax = canvas(ax)
    _rim(ax)
    shade, endings = _endings(path, color)
    x = _coordinates(path.root / _scale(path.root))
    with np.errstate(invalid="ignore"):
        x = x[..., :2] / x[..., 2:]
    pixels = x[..., 0].size > HEAVY  # as curves they would weigh megabytes in vector graphics
    lines = LineCollection(list(x.swapaxes(0, 1)), colors=shade * FADED, linewidths=width, rasterized=pixels)
    ax.add_collection(lines)
    if len(x) > 1:
        ax.scatter(x[0, :, 0], x[0, :, 1], s=size / 6, c=shade, linewidths=0, zorder=3)
    ax.scatter(x[-1, :, 0], x[-1, :, 1], s=size, c=shade, linewidths=0, zorder=4)
    _legend(ax, endings)
    return ax


def cone(
    source: Measure | Trajectory,
    *,
    ax: Axes | None = None,
    color: Any = None,
    size: float = 16.0,
    width: float = 0.7,
    top: float | None = None,
) -> Axes:
    """(S11 - S22, 2 S12, tr S): covariances of plane Gaussians, in the cone of those that are semidefinite.

    Its surface is rank one, its axis isotropic. What rises above ``top`` leaves through the lid: lines
    stop there, at a small triangle if they do not come back.

    Args:
        source, color, size, width: as in `disk`.
        top: the highest trace in the picture; by default the highest there is, but no more than four
            times the highest at the start, so that members that blew up leave the others room.

    >>> from otflow.plot import cone
    >>> import otflow as of
    >>> _, axes = of.plot.figure(spatial=True)
    >>> ax = cone(of.Gaussian([0.0, 0.0], root=[[2.0, 0.0], [0.0, 1.0]]), ax=axes[0, 0], top=6.0)
    >>> float(ax.get_zlim()[1])
    6.0
    """
    path = _path(source)
    solid: Any = canvas(ax, spatial=True)
    shade, endings = _endings(path, color)
    x = _coordinates(path.root)
    top = _top(x[..., 2]) if top is None else checks.positive(top, "top")
    _hull(solid, top)
    pieces, owner = _below(x, top)
    lines = Line3DCollection(
        pieces, colors=shade[owner] * FADED, linewidths=width, zorder=2, rasterized=x[..., 0].size > HEAVY
    )
    solid.add_collection(lines, autolim=False)
    inside = x[-1, :, 2] <= top
    out = _exits(x, top)
    marks = [(x[-1], size, "o", inside)]
    if len(x) > 1:
        marks += [
            (x[0], size / 6, "o", x[0, :, 2] <= top),
            (out, size, "^", ~inside & np.isfinite(out[:, 2])),
        ]
    for at, area, marker, kept in marks:
        solid.scatter(
            *at[kept].T, s=area, c=shade[kept], marker=marker, linewidths=0, zorder=3, depthshade=False
        )
    _legend(solid, endings)
    return cast(Axes, solid)


@singledispatch
def _chosen(source: Measure | Trajectory, count: int) -> tuple[np.ndarray | None, list[Measure]]:
    """Save times, if there are any, and the measures to draw."""
    return None, [cast(Measure, source)]


@_chosen.register(Trajectory)
def _(source: Trajectory, count: int) -> tuple[np.ndarray | None, list[Measure]]:
    index = np.unique(np.linspace(0, len(source) - 1, count).round().astype(int))
    return array(source.ts)[index], [source.measures[i] for i in index]


def _outline(mu: Measure, radius: float) -> np.ndarray:
    """Ellipses (K, points, 2) of a batch of Gaussians; segments where the rank has collapsed."""
    if not isinstance(mu, Gaussian):
        checks.fail("mu_or_traj", repr(mu), "ellipses show Gaussians", "use otflow.plot.particles")
    if mu.d != 2:
        remedy = "take a marginal: Gaussian(mu.mean[..., :2], root=mu.root[..., :2, :])"
        checks.fail("d", mu.d, "ellipses are drawn in the plane", remedy)
    values, vectors = np.linalg.eigh(array(mu.cov).reshape(-1, 2, 2))
    axes = radius * vectors * np.sqrt(values.clip(min=0))[:, None, :]
    circle = direction(np.linspace(0, 2 * np.pi, 121), 0.0)[:, :2]
    return np.asarray(array(mu.mean).reshape(-1, 1, 2) + circle @ axes.swapaxes(-1, -2))


class _Path(NamedTuple):
    """Roots (T, K, 2, r) of covariances along time, and how each of the K members ended."""

    root: np.ndarray
    status: np.ndarray


def _path(source: Measure | Trajectory) -> _Path:
    mu, status = _members(source)
    if not isinstance(mu, Gaussian):
        checks.fail("source", repr(mu), "Gaussians are needed", "use otflow.plot.particles or trails")
    if mu.d != 2:
        remedy = "take a marginal: Gaussian(mu.mean[..., :2], root=mu.root[..., :2, :])"
        checks.fail("d", mu.d, "covariances of the plane are needed", remedy)
    root = array(mu.root)
    return _Path(root.reshape(len(root), -1, 2, root.shape[-1]), np.asarray(status).reshape(-1))


@singledispatch
def _members(source: Measure | Trajectory) -> tuple[Measure, Any]:
    """All measures as one with time in front, and the status of every member."""
    mu = cast(Measure, source)
    return mu.at([a[None] for a in mu.coords]), np.full(mu.batch, "ok")


@_members.register(Trajectory)
def _(source: Trajectory) -> tuple[Measure, Any]:
    return source.stacked, source.status


def _scale(root: np.ndarray) -> np.ndarray:
    """The largest entry of each root, so that squares neither overflow nor vanish; 1 for zero."""
    largest = np.abs(root).max((-1, -2), keepdims=True)
    return np.where(largest > 0, largest, 1.0)


def _coordinates(root: np.ndarray) -> np.ndarray:
    """(S11 - S22, 2 S12, S11 + S22) of S = R R^T, (..., 3); what is huge after a blow-up stays finite."""
    root = root / np.maximum(1.0, _scale(root) / 1e100)
    S = root @ root.swapaxes(-1, -2)
    a, b, c = S[..., 0, 0], S[..., 1, 1], S[..., 0, 1]
    return np.stack([a - b, 2 * c, a + b], -1)


def _endings(path: _Path, color: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """One colour (K, 4) per member, and what the colours mean if they tell how members ended."""
    if color is not None:
        return colours(color, len(path.status), "member"), {}
    shade = colours([ENDINGS.get(s, INK) for s in path.status], len(path.status), "member")
    found = [s for s in STATUSES if s in path.status]
    return shade, {s: ENDINGS.get(s, INK) for s in found} if len(found) > 1 else {}


def _legend(ax: Axes, meaning: dict[str, Any]) -> None:
    """Dots with words below the axes, if there is something to tell apart."""
    if meaning:
        dots = [Line2D([], [], marker="o", ls="", ms=4, color=c) for c in meaning.values()]
        names = [name.replace("_", " ") for name in meaning]
        with mpl.rc_context(STYLE):
            place = (0.5, 0.14 if ax.name == "3d" else 0.02)  # a cone leaves room below
            ax.legend(dots, names, loc="upper center", bbox_to_anchor=place, ncols=len(dots), handletextpad=0)


def _rim(ax: Axes) -> None:
    """The unit circle, with its centre, once."""
    if any(a.get_gid() == RIM for a in ax.get_children()):
        return
    ax.add_patch(Circle((0, 0), 1, facecolor=PAPER, edgecolor=INK, linewidth=0.8, zorder=0, gid=RIM))
    ax.plot(0, 0, "+", color=INK, markersize=5, markeredgewidth=0.6, zorder=1, gid=RIM)
    ax.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal")
    ax.set_axis_off()


def _hull(ax: Any, top: float) -> None:
    """The cone up to ``top``: a faint surface, some of its lines, its rim and axis, and what they measure."""
    ax.set_proj_type("ortho")
    ax.computed_zorder = False
    ax.set(xlim=(-top, top), ylim=(-top, top), zlim=(0, top))
    ax.set_box_aspect((1, 1, 0.9), zoom=1.1)
    ax.set_axis_off()
    rim = top * (direction(np.linspace(0, 2 * np.pi, 97), 0.0) + np.array([0, 0, 1]))
    fan = [np.stack([np.zeros(3), p, q]) for p, q in pairwise(rim)]
    ax.add_collection(Poly3DCollection(fan, facecolor=FAINT, alpha=0.12, linewidths=0, zorder=0, gid=RIM))
    rays = [np.stack([np.zeros(3), p]) for p in rim[:-1:8]]
    ax.add_collection(Line3DCollection([*rays, rim], colors=FAINT, linewidths=0.6, zorder=1, gid=RIM))
    ax.plot([0, 0], [0, 0], [0, top], color=INK, linewidth=0.5, linestyle=(0, (4, 4)), zorder=1, gid=RIM)
    words = {
        (0, 0, -0.1): f"up to tr $S$ = {top:.3g}",
        (1.2, 0, 1): "$S_{11}-S_{22}$",
        (0, 1.2, 1): r"$2\,S_{12}$",
    }
    for place, word in words.items():
        ax.text(*(top * np.array(place)), word, color=INK, fontsize=7.5, ha="center", va="center", zorder=4)


def _top(z: np.ndarray) -> float:
    """The highest trace, but no more than four times the highest at the start; 1 if all are zero."""
    return float(min(z.max(), 4 * z[0].max())) or 1.0


def _below(x: np.ndarray, top: float) -> tuple[list[np.ndarray], np.ndarray]:
    """The pieces of the curves x (T, K, 3) with a height up to ``top``, and which curve each belongs to."""
    ends = np.stack([x[:-1], x[1:]], -2)  # (T - 1, K, 2, 3)
    low = ends[..., 2].min(-1) <= top
    owner = np.broadcast_to(np.arange(x.shape[1]), low.shape)[low]
    return list(_clipped(ends[low], top)), owner


def _clipped(ends: np.ndarray, top: float) -> np.ndarray:
    """Segments (M, 2, 3) with the end above ``top``, if any, moved along them down to it."""
    rise = ends[:, 1, 2] - ends[:, 0, 2]
    share = (top - ends[:, 0, 2]) / np.where(rise == 0, 1.0, rise)
    crossing = ends[:, 0] + share[:, None] * (ends[:, 1] - ends[:, 0])
    return np.where(ends[..., 2:] > top, crossing[:, None], ends)


def _exits(x: np.ndarray, top: float) -> np.ndarray:
    """Where each of the curves x (T, K, 3) last rises through ``top``, (K, 3); NaN if it never does."""
    out = np.full(x.shape[1:], np.nan)
    if len(x) > 1:
        up = (x[:-1, :, 2] <= top) & (x[1:, :, 2] > top)
        last = len(up) - 1 - np.argmax(up[::-1], 0)
        k = np.flatnonzero(up.any(0))
        out[k] = _clipped(np.stack([x[last[k], k], x[last[k] + 1, k]], 1), top)[:, 1]
    return out
