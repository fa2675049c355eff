"""Pictures of measures and trajectories: each function draws on ``ax``, by default pyplot's, and returns it.

The house style `STYLE` is applied to what is created here and never set globally; axes of your own get it by
``with matplotlib.rc_context(otflow.plot.STYLE): ...``.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from mpl_toolkits.mplot3d.art3d import Line3DCollection, Poly3DCollection  # type: ignore[import-untyped]
from torch import Tensor

from otflow import checks
from otflow.measures import Gaussian, Measure, Particles
from otflow.spaces import Space, Sphere, Torus
from otflow.trajectory import Trajectory

# Okabe and Ito's colours, which colour-blind eyes tell apart; their yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# For time and labels: viridis, even to the eye and monotone in grey, without its palest end.
SEQUENCE = ListedColormap(mpl.colormaps["viridis"](np.linspace(0.0, 0.9, 256)), name="otflow")
INK, FAINT, PAPER = "#333333", "#CFCFCF", "#F7F7F7"
STYLE: dict[Any, Any] = {
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "font.size": 8.5,
    "figure.dpi": 120,
}
SPHERE = "otflow-sphere"  # marks a sphere that is already on the axes


def figure(
    rows: int = 1, cols: int = 1, *, size: tuple[float, float] | None = None, spatial: bool = False
) -> tuple[Figure, np.ndarray]:
    """A figure in the house style with rows x cols axes, always as an array of that shape.

    It is independent of pyplot: nothing is shown, kept open, or in need of a display; use ``savefig``.

    Args:
        rows, cols: number of axes.
        size: inches; by default 3.2 x 2.8 for each of the axes.
        spatial: make the axes 3-d.

    >>> fig, axes = figure(1, 2)
    >>> axes.shape
    (1, 2)
    """
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=size or (3.2 * cols, 2.8 * rows), layout="constrained")
        FigureCanvasAgg(fig)
        axes = fig.subplots(rows, cols, squeeze=False, subplot_kw={"projection": "3d" if spatial else None})
    return fig, axes


def particles(mu: Measure, *, ax: Axes | None = None, color: Any = None, size: float = 22.0) -> Axes:
    """The tokens of one cloud: on a line, in the plane, or in space, as d is 1, 2 or 3.

    On a sphere of R^3 the far side is veiled as seen from the current view of ``ax``.

    Args:
        mu: `Particles` without batch.
        color: one colour, one per token, or an array of one number per token; by default the labels.
        size: area of a token of weight 1/n, in points squared; others in proportion to their weight.

    >>> import otflow as of
    >>> _, axes = figure()
    >>> particles(of.Particles([[0.0, 1.0], [1.0, 0.0]]), ax=axes[0, 0]) is axes[0, 0]
    True
    """
    cloud = _single(mu, "mu")
    ax = _stage(cloud, ax)
    x = _numpy(cloud.x)
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
    """The tokens of one cloud with the ways they came: faint at the start, strong at the end.

    In one dimension time is the horizontal axis. The ways are straight between save times.

    Args:
        traj: a trajectory of `Particles` without batch.
        color, size: as in `particles`.
        width: of the lines, in points.

    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[-1.0]])
    >>> traj = of.flow(of.Particles([[1.0], [2.0]]), field, of.RK4(), t1=1.0, dt=0.25)
    >>> _, axes = figure()
    >>> trails(traj, ax=axes[0, 0]) is axes[0, 0]
    True
    """
    cloud = _single(traj.final, "traj.final")
    ax = _stage(cloud, ax)
    x, t = _numpy(traj.stacked.coords[0]), _numpy(traj.ts)  # (T, n, d), (T,)
    if cloud.d == 1:
        x = np.stack([np.broadcast_to(t[:, None], x.shape[:2]), x[..., 0]], -1)
        ax.set(xlabel="t", ylabel="x")
    rgba = _rgba(cloud, color)
    _ways(ax, cloud, x, t, rgba, width)
    _dots(ax, cloud, x[0], rgba * (1, 1, 1, 0.3), size / 3)
    _dots(ax, cloud, x[-1], rgba, size)
    ax.autoscale_view()
    return ax


def energy(traj: Trajectory, *names: str, ax: Axes | None = None, log: bool = False) -> Axes:
    """Observed quantities against time: those named, or all of them; one line per member of a batch.

    Args:
        traj: a trajectory from ``flow(..., observe={...})``.
        names: keys of ``traj.observed``.
        log: logarithmic vertical axis, for which every value must be positive.

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> traj = of.flow(of.Particles([[1.0]]), pull, of.RK4(), t1=1.0, dt=0.25, observe={"F": pull.energy})
    >>> _, axes = figure()
    >>> energy(traj, "F", ax=axes[0, 0], log=True).get_ylabel()
    'F'
    """
    curves = {name: _curves(traj, name, log) for name in names or tuple(traj.observed)}
    if not curves:
        checks.fail("traj.observed", {}, "nothing was observed", 'pass flow(..., observe={"F": energy})')
    ax = _axes(ax)
    with mpl.rc_context(STYLE):
        for name, values in curves.items():
            alpha = max(0.25, values.shape[1] ** -0.5)
            first, *rest = ax.plot(_numpy(traj.ts), values, label=name, alpha=alpha)
            for line in rest:
                line.set(color=first.get_color(), label="_member")
        ax.set_xlabel("t")
        if log:
            ax.set_yscale("log")
        if len(curves) == 1:
            ax.set_ylabel(next(iter(curves)))
        else:
            ax.legend()
    return ax


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

    >>> import otflow as of
    >>> _, axes = figure()
    >>> ellipses(of.Gaussian([0.0, 0.0], [[2.0, 0.0], [0.0, 1.0]]), ax=axes[0, 0]) is axes[0, 0]
    True
    """
    if not 0 < level < 1:
        checks.fail("level", level, "a mass between 0 and 1 is needed", "use level=0.9")
    t, measures = _chosen(mu_or_traj, int(checks.positive(count, "count")))
    outlines = [_outline(mu, math.sqrt(-2 * math.log(1 - level))) for mu in measures]
    ax = _axes(ax)
    lines = LineCollection(list(np.concatenate(outlines)), linewidths=1.3)
    lines.set_color(COLOURS[0] if color is None else color)
    if color is None and t is not None:
        scale = ScalarMappable(Normalize(t[0], t[-1]), SEQUENCE)
        lines.set_color(list(scale.to_rgba(np.repeat(t, len(outlines[0])))))
        if bar:
            with mpl.rc_context(STYLE):
                ax.figure.colorbar(scale, ax=ax, label="t", shrink=0.8).outline.set_visible(False)
    ax.add_collection(lines)
    _equal(ax)
    ax.autoscale_view()
    return ax


def _axes(ax: Axes | None, *, spatial: bool = False) -> Axes:
    """The given axes, or the current ones of pyplot; new ones if those do not fit."""
    if ax is not None:
        if (ax.name == "3d") != spatial:
            kind, remedy = ("3-d", "figure(spatial=True)") if spatial else ("plane", "figure()")
            checks.fail("ax", repr(ax), f"{kind} axes are needed", f"make them with otflow.plot.{remedy}")
        return ax
    from matplotlib import pyplot as plt

    with mpl.rc_context(STYLE):
        if plt.get_fignums() and plt.gcf().axes and (plt.gca().name == "3d") == spatial:
            return plt.gca()
        fig = plt.gcf() if plt.get_fignums() and not plt.gcf().axes else plt.figure(layout="constrained")
        return fig.add_subplot(projection="3d" if spatial else None)


def _stage(cloud: Particles, ax: Axes | None) -> Axes:
    """Axes that show the space of a cloud."""
    if cloud.d > 3:
        checks.fail("d", cloud.d, "at most 3 dimensions can be drawn", "project: Particles(mu.x[..., :2])")
    ax = _axes(ax, spatial=cloud.d == 3)
    if cloud.d == 2:
        _equal(ax, fixed=isinstance(cloud.space, Torus))
    if cloud.d > 1:
        _backdrop(cloud.space, ax, cloud.d)
    return ax


def _equal(ax: Axes, *, fixed: bool = False) -> None:
    """One unit on both axes, by wider limits where matplotlib allows, else by narrower axes."""
    shared = len(ax.get_shared_x_axes().get_siblings(ax)) + len(ax.get_shared_y_axes().get_siblings(ax)) > 2
    ax.set_aspect("equal", adjustable="box" if fixed or shared else "datalim")


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
    meridians = [_direction(b, a) for b in np.arange(6) * np.pi / 6]
    parallels = [_direction(a, np.full_like(a, b)) for b in np.arange(-2, 3) * np.pi / 6]
    segments = _segments(np.stack([*meridians, *parallels], 1)).reshape(-1, 2, 3)
    front = segments[segments.mean(1) @ _view(ax) > 0]
    ax.add_collection3d(Line3DCollection(list(front), colors=FAINT, linewidths=0.4, zorder=1))


def _direction(azimuth: Any, elevation: Any) -> np.ndarray:
    """The unit vector with these angles, in radians."""
    parts = np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)
    return np.stack(np.broadcast_arrays(*parts), -1)


def _view(ax: Any) -> np.ndarray:
    """The unit vector towards the eye."""
    return _direction(math.radians(ax.azim), math.radians(ax.elev))


def _dots(ax: Any, cloud: Particles, x: np.ndarray, rgba: np.ndarray, size: float) -> None:
    """Tokens at x (n, 2 or 3), with areas in proportion to their weights."""
    area = size * cloud.n * _numpy(cloud.w)
    extra = {"depthshade": False} if x.shape[-1] == 3 else {}
    ax.scatter(*x.T, s=area, c=_veiled(ax, cloud, x, rgba), linewidths=0, zorder=3, **extra)


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
    """One colour (n, 4) per token."""
    if color is None:
        color = COLOURS[0] if cloud.label is None else _numpy(cloud.label)
    values = _numpy(color) if isinstance(color, Tensor) else color
    try:
        plain = not (isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "fiu")
        rgba = to_rgba_array(values) if plain else SEQUENCE(Normalize()(values))
        return np.broadcast_to(rgba, (cloud.n, 4)) * (1, 1, 1, 0.9)
    except ValueError:
        rule = f"one colour, or one per token ({cloud.n}), is needed"
        checks.fail("color", repr(color), rule, 'use color="black"')


@singledispatch
def _chosen(source: Measure | Trajectory, count: int) -> tuple[np.ndarray | None, list[Measure]]:
    """Save times, if there are any, and the measures to draw."""
    return None, [cast(Measure, source)]


@_chosen.register(Trajectory)
def _(source: Trajectory, count: int) -> tuple[np.ndarray | None, list[Measure]]:
    index = np.unique(np.linspace(0, len(source) - 1, count).round().astype(int))
    return _numpy(source.ts)[index], [source.measures[i] for i in index]


def _outline(mu: Measure, radius: float) -> np.ndarray:
    """Ellipses (K, points, 2) of a batch of Gaussians; segments where the rank has collapsed."""
    if not isinstance(mu, Gaussian):
        checks.fail("mu_or_traj", repr(mu), "ellipses show Gaussians", "use otflow.plot.particles")
    if mu.d != 2:
        remedy = "take a marginal: Gaussian(mu.mean[..., :2], mu.root[..., :2, :])"
        checks.fail("d", mu.d, "ellipses are drawn in the plane", remedy)
    values, vectors = np.linalg.eigh(_numpy(mu.cov).reshape(-1, 2, 2))
    axes = radius * vectors * np.sqrt(values.clip(min=0))[:, None, :]
    circle = _direction(np.linspace(0, 2 * np.pi, 121), 0.0)[:, :2]
    return np.asarray(_numpy(mu.mean).reshape(-1, 1, 2) + circle @ axes.swapaxes(-1, -2))


def _curves(traj: Trajectory, name: str, log: bool) -> np.ndarray:
    """One observable as columns (T, K)."""
    if name not in traj.observed:
        known = ", ".join(map(repr, traj.observed)) or "nothing"
        checks.fail("name", repr(name), f"this run observed {known}", "add it to observe={...} of flow")
    values = _numpy(traj.observed[name]).reshape(len(traj.ts), -1)
    if log and not (values > 0).all():
        remedy = "use log=False, or observe the distance to the limit"
        checks.fail(f"min({name})", values.min(), "a logarithmic axis needs values > 0", remedy)
    return values


def _single(mu: Measure, name: str) -> Particles:
    """One cloud of tokens, or an error."""
    if not isinstance(mu, Particles):
        checks.fail(name, repr(mu), "Particles are needed", "use otflow.plot.ellipses for Gaussians")
    if mu.batch:
        remedy = "pick a member: mu[0], or traj.member(0)"
        checks.fail(f"{name}.batch", tuple(mu.batch), "one cloud is drawn at a time", remedy)
    return mu


def _numpy(a: Tensor) -> np.ndarray:
    return a.detach().cpu().numpy()
