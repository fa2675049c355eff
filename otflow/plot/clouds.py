"""Clouds of tokens: where they are, and the ways they came."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from mpl_toolkits.mplot3d.art3d import Line3DCollection, Poly3DCollection  # type: ignore[import-untyped]

from otflow.base import checks
from otflow.base.spaces import Space, Sphere, Torus
from otflow.dynamics.trajectory import Trajectory
from otflow.measures import Measure, Particles
from otflow.plot.style import (
    COLOURS,
    FAINT,
    INK,
    PAPER,
    STYLE,
    array,
    at_time,
    canvas,
    colours,
    direction,
    equal,
)

SPHERE = "otflow-sphere"  # marks a sphere that is already on the axes


def particles(mu: Measure, *, ax: Axes | None = None, color: Any = None, size: float = 22.0) -> Axes:
    """The tokens of one cloud: on a line, in the plane, or in space, as d is 1, 2 or 3.

    On a sphere of R^3 the far side is veiled as seen from the current view of ``ax``.

    Args:
        mu: `Particles` without batch.
        color: one colour, one per token, or an array of one number per token; by default the labels.
        size: area of a token of weight 1/n, in points squared; others in proportion to their weight.

    >>> from otflow.plot import particles
    >>> import otflow as of
    >>> _, axes = of.plot.figure()
    >>> particles(of.Particles([[0.0, 1.0], [1.0, 0.0]]), ax=axes[0, 0]) is axes[0, 0]
    True
    """
    cloud = _single(mu, "mu")
    ax = _stage(cloud, ax)
    x = array(cloud.x)
    if cloud.d == 1:
        x = np.stack([x[:, 0], np.zeros(cloud.n)], -1)
        ax.yaxis.set_visible(False)
        ax.spines["left"].set_visible(False)
        with mpl.rc_context(STYLE):  # moving a spine makes new ticks
            ax.spines["bottom"].set_position("zero")
    _dots(ax, cloud, x, _rgba(cloud, color), size)
    return ax


def trails(
    traj: Trajectory, *, ax: Axes | None = None, color: Any = None, size: float = 22.0, width: float = 0.9
) -> Axes:
    """The tokens of one cloud with the ways they came: a ring at the start, a dot at the end.

    In one dimension time is the horizontal axis; in more, ``ax.legend()`` says which times the rings and the
    dots are. The ways are straight between save times.

    Args:
        traj: a trajectory of `Particles` without batch.
        color, size: as in `particles`.
        width: of the lines, in points.

    >>> from otflow.plot import trails
    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[-1.0]])
    >>> traj = of.flow(of.Particles([[1.0], [2.0]]), field, of.RK4(), t1=1.0, dt=0.25)
    >>> _, axes = of.plot.figure()
    >>> trails(traj, ax=axes[0, 0]) is axes[0, 0]
    True
    """
    cloud = _single(traj.final, "traj.final")
    ax = _stage(cloud, ax)
    x, t = array(traj.stacked.coords[0]), array(traj.ts)  # (T, n, d), (T,)
    if cloud.d == 1:
        x = np.stack([np.broadcast_to(t[:, None], x.shape[:2]), x[..., 0]], -1)
        ax.set(xlabel="$t$", ylabel="$x$")
    rgba = _rgba(cloud, color)
    _ways(ax, cloud, x, t, rgba, width)
    _dots(ax, cloud, x[0], rgba * (1, 1, 1, 0.6), size / 2, ring=True)
    _dots(ax, cloud, x[-1], rgba, size)
    if cloud.d > 1 and len(t) > 1:
        _key(ax, t)
    ax.autoscale_view()
    return ax


def _stage(cloud: Particles, ax: Axes | None) -> Axes:
    """Axes that show the space of a cloud."""
    if cloud.d > 3:
        checks.fail("d", cloud.d, "at most 3 dimensions can be drawn", "project: Particles(mu.x[..., :2])")
    ax = canvas(ax, spatial=cloud.d == 3)
    if cloud.d == 2:
        equal(ax, fixed=isinstance(cloud.space, Torus))
        ax.set(xlabel=ax.get_xlabel() or "$x_1$", ylabel=ax.get_ylabel() or "$x_2$")
    if cloud.d > 1:
        _backdrop(cloud.space, ax, cloud.d)
    return ax


@singledispatch
def _backdrop(space: Space, ax: Any, d: int) -> None:
    """What of the space itself is worth drawing."""


@_backdrop.register(Torus)
def _(space: Torus, ax: Any, d: int) -> None:
    ax.set(**{f"{axis}lim": (0.0, space.period) for axis in "xyz"[:d]})


@_backdrop.register(Sphere)
def _(space: Sphere, ax: Any, d: int) -> None:
    if any(a.get_gid() == SPHERE for a in ax.get_children()):
        return
    if d == 2:
        ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=FAINT, linewidth=0.8, gid=SPHERE))
        ax.set_axis_off()
    if d == 3:
        _globe(ax)


def _globe(ax: Any) -> None:
    """A faint globe: its outline, filled, and the front halves of some circles."""
    ax.set_proj_type("ortho")
    ax.computed_zorder = False
    ax.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
    ax.set_box_aspect((1, 1, 1), zoom=1.55)
    ax.set_axis_off()
    a = np.linspace(0, 2 * np.pi, 145)
    one, two = np.linalg.svd(_view(ax)[None])[2][1:]  # an orthonormal basis of the plane of the screen
    rim = np.cos(a)[:, None] * one + np.sin(a)[:, None] * two
    ax.add_collection3d(Poly3DCollection([rim], facecolor=PAPER, edgecolor=FAINT, zorder=0, gid=SPHERE))
    meridians = [direction(b, a) for b in np.arange(6) * np.pi / 6]
    parallels = [direction(a, np.full_like(a, b)) for b in np.arange(-2, 3) * np.pi / 6]
    segments = _segments(np.stack([*meridians, *parallels], 1)).reshape(-1, 2, 3)
    front = segments[segments.mean(1) @ _view(ax) > 0]
    ax.add_collection3d(Line3DCollection(list(front), colors=FAINT, linewidths=0.4, zorder=1, gid=SPHERE))


def _view(ax: Any) -> np.ndarray:
    """The unit vector towards the eye."""
    return direction(math.radians(ax.azim), math.radians(ax.elev))


def _dots(
    ax: Any, cloud: Particles, x: np.ndarray, rgba: np.ndarray, size: float, *, ring: bool = False
) -> None:
    """Tokens at x (n, 2 or 3), with areas in proportion to their weights."""
    area = size * cloud.n * array(cloud.w)
    shade = _veiled(ax, cloud, x, rgba)
    style: dict[str, Any] = {"c": shade, "linewidths": 0}
    if ring:
        style = {"facecolors": shade * (1, 1, 1, 0), "edgecolors": shade, "linewidths": 0.6}
    if x.shape[-1] == 3:
        style["depthshade"] = False
    ax.scatter(*x.T, s=area, zorder=3, **style)


def _key(ax: Any, t: np.ndarray) -> None:
    """Entries for a legend, which nobody sees before ``ax.legend()``: once, whatever else is drawn."""
    known = ax.get_legend_handles_labels()[1]
    for time, fill in ((t[0], "none"), (t[-1], INK)):
        label = at_time(float(time))
        if label not in known:
            mark: dict[str, Any] = {"marker": "o", "ms": 4.0, "mfc": fill, "mec": INK, "mew": 0.6, "ls": ""}
            ax.add_line(Line2D([], [], label=label, **mark))


def _ways(ax: Any, cloud: Particles, x: np.ndarray, t: np.ndarray, rgba: np.ndarray, width: float) -> None:
    """Segments between successive positions x (T, n, 2 or 3), more opaque as time goes on."""
    age = (t[1:] - t[0]) / max(t[-1] - t[0], 1e-300)
    shade = np.broadcast_to(rgba, (len(age), *rgba.shape)) * [1, 1, 1, 0.4]
    shade[..., 3] *= 0.5 + age[:, None]
    near = ~_jumps(cloud.space, x[..., -cloud.d :])
    segments = _segments(x)[near]
    kind = Line3DCollection if x.shape[-1] == 3 else LineCollection
    colours = _veiled(ax, cloud, segments.mean(1), shade[near])
    pixels = len(segments) > 2000  # as curves they would weigh megabytes in vector graphics
    ax.add_collection(kind(list(segments), colors=colours, linewidths=width, zorder=2, rasterized=pixels))
    if cloud.d == 3:
        ax.auto_scale_xyz(*x.reshape(-1, 3).T)


def _segments(x: np.ndarray) -> np.ndarray:
    """The segments (T - 1, n, 2, d) of curves x (T, n, d)."""
    return np.stack([x[:-1], x[1:]], -2)


def _jumps(space: Space, x: np.ndarray) -> np.ndarray:
    """Which segments (T - 1, n) leave a torus on one side and come back on the other."""
    step = np.abs(np.diff(x, axis=0)).max(-1)
    return np.asarray(step > (space.period / 2 if isinstance(space, Torus) else np.inf))


def _veiled(ax: Any, cloud: Particles, x: np.ndarray, rgba: np.ndarray) -> np.ndarray:
    """Colours with the far side of a sphere made paler."""
    if not (isinstance(cloud.space, Sphere) and cloud.d == 3):
        return rgba
    front = np.clip(0.5 + 2 * x @ _view(ax), 0.2, 1.0)
    return np.concatenate([rgba[:, :3], rgba[:, 3:] * front[:, None]], -1)


def _rgba(cloud: Particles, color: Any) -> np.ndarray:
    """One colour (n, 4) per token, by default that of its label."""
    if color is None:
        color = COLOURS[0] if cloud.label is None else array(cloud.label)
    return colours(color, cloud.n, "token")


def _single(mu: Measure, name: str) -> Particles:
    """One cloud of tokens, or an error."""
    if not isinstance(mu, Particles):
        checks.fail(name, repr(mu), "Particles are needed", "use otflow.plot.ellipses for Gaussians")
    if mu.batch:
        remedy = "pick a member: mu[0], or traj.member(0)"
        checks.fail(f"{name}.batch", tuple(mu.batch), "one cloud is drawn at a time", remedy)
    return mu
