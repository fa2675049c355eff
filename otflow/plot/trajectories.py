"""Trajectories: the natural picture of each kind of measure along time, and the same as a film."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NoReturn

import matplotlib as mpl
import numpy as np
from matplotlib.animation import FuncAnimation
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from otflow.base import checks
from otflow.dynamics.trajectory import Trajectory
from otflow.measures import Gaussian, Grid, Measure, Particles, Quantiles
from otflow.plot.clouds import trails
from otflow.plot.curves import energy
from otflow.plot.densities import density
from otflow.plot.gaussians import disk, ellipses
from otflow.plot.style import FAINT, SEQUENCE, STYLE, array, at_time, canvas, equal, figure

TIMES = 8  # how many densities one picture shows
Scene = Callable[[Axes, int], Any]  # draws the save time of this number


class Film(FuncAnimation):
    """An animation that plays by itself in a notebook, whatever ``animation.html`` is set to."""

    def _repr_html_(self) -> str:
        return str(self.to_jshtml())


def trajectory(traj: Trajectory, *, ax: Axes | None = None) -> Axes:
    """The natural picture of a trajectory.

        Particles      their ways, `trails`, up to three dimensions
        Gaussian       `ellipses` at several times in the plane; a batch of them in the `disk`
        Grid           densities at several times on the line; in the plane, where they are half as high as
                       they get at that time, on the image of the last one
        Quantiles      densities at several times

    Colours run from the first time (dark) to the last (bright). What has no picture, being a batch or of
    higher dimension, shows what was observed along time, and is refused if nothing was.

    >>> from otflow.plot import trajectory
    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[-1.0]])
    >>> traj = of.flow(of.Particles([[1.0], [2.0]]), field, of.RK4(), t1=1.0, dt=0.25)
    >>> _, axes = of.plot.figure()
    >>> trajectory(traj, ax=axes[0, 0]).get_xlabel()
    '$t$'
    """
    problem = _problem(traj)
    if problem is None:
        return _picture(traj.final, traj, ax)
    if not traj.observed:
        _refuse(traj, problem, ', or observe something and see its curve: flow(..., observe={"F": energy})')
    return energy(traj, ax=ax)


def animate(traj: Trajectory, *, interval: float = 50.0, frames: int | None = None) -> FuncAnimation:
    """A film of a trajectory, one frame per save time, on a figure of its own in the house style.

    A notebook shows it with controls; elsewhere ``film.save("run.gif", writer="pillow")``.

    Args:
        traj: a trajectory that has a picture, see `trajectory`.
        interval: milliseconds per frame.
        frames: how many of the save times to show, equally spaced in number; by default all.

    >>> from otflow.plot import animate
    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[-1.0]])
    >>> traj = of.flow(of.Particles([[1.0], [2.0]]), field, of.RK4(), t1=1.0, dt=0.25)
    >>> film = animate(traj)
    >>> "<img" in film.to_jshtml()
    True
    """
    problem = _problem(traj)
    if problem is not None:
        _refuse(traj, problem, "")
    checks.positive(interval, "interval")
    chosen = _spread(len(traj), len(traj) if frames is None else checks.count(frames, "frames"))
    scene = _scene(traj.final, traj)
    fig, axes = figure(spatial=isinstance(traj.final, Particles) and traj.final.d == 3)
    ax = axes[0, 0]
    limits = _limits(ax, scene, _tell_all(traj))

    def draw(k: int) -> list[Any]:
        with mpl.rc_context(STYLE):
            _wipe(ax)
            scene(ax, k)
            ax.set(**limits, title=at_time(float(traj.ts[k])))
        return []

    return Film(fig, draw, frames=chosen, init_func=lambda: draw(chosen[0]), interval=interval, blit=False)


def _wipe(ax: Axes) -> None:
    """Take what was drawn from the axes; clearing them would make new ticks, in matplotlib's own style."""
    legend = ax.get_legend()
    for artist in [*ax.lines, *ax.collections, *ax.patches, *ax.images, *([legend] if legend else [])]:
        artist.remove()


def _tell_all(traj: Trajectory) -> list[int]:
    """Frames that together reach as far as all do: the last one where it shows the whole way."""
    ways = isinstance(traj.final, Particles) or traj.final.batch
    return [len(traj) - 1] if ways else _spread(len(traj), 40)


def _limits(ax: Axes, scene: Scene, times: list[int]) -> dict[str, tuple[float, float]]:
    """Limits that hold every frame, and a layout that stays."""
    with mpl.rc_context(STYLE):
        for k in times:
            scene(ax, k)
        ax.set_title("t")
    fig: Any = ax.figure
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    return {f"{axis}lim": getattr(ax, f"get_{axis}lim")() for axis in ("xyz" if ax.name == "3d" else "xy")}


def _spread(length: int, count: int) -> list[int]:
    """At most ``count`` numbers below ``length``, the first and the last among them."""
    return [int(k) for k in np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(int))]


# --- what can be drawn ---------------------------------------------------------------------------------


def _problem(traj: Trajectory) -> tuple[str, str] | None:
    """Why there is no picture of the measures, and what to do; None if there is one."""
    checks.instance(traj, Trajectory, "traj")
    rule = "a picture needs a measure"
    checks.require(len(traj), "len(trajectory)", 0, rule, "save at least one time")
    mu = traj.final
    d, most, remedy = _dimension(mu)
    if mu.batch and not (isinstance(mu, Gaussian) and d == 2):
        index = 0 if len(mu.batch) == 1 else (0,) * len(mu.batch)
        return "a picture shows one measure, and this is a batch", f"pick a member: traj.member({index})"
    if d > most:
        return f"pictures of {type(mu).__name__} have at most {most} dimensions, and this has {d}", remedy
    return None


@singledispatch
def _dimension(mu: Measure) -> tuple[int, int, str]:
    """The dimension, the highest that can be drawn, and the way down from above; others have no picture."""
    return 1, 0, "draw its coordinates, traj.stacked, by hand"


@_dimension.register
def _(mu: Particles) -> tuple[int, int, str]:
    return mu.d, 3, "project it: otflow.plot.particles(Particles(traj.final.x[..., :2]))"


@_dimension.register
def _(mu: Gaussian) -> tuple[int, int, str]:
    return mu.d, 2, "take a marginal: Gaussian(mu.mean[..., :2], root=mu.root[..., :2, :])"


@_dimension.register
def _(mu: Grid) -> tuple[int, int, str]:
    return len(mu.axes), 2, "sum the density over an axis"


@_dimension.register
def _(mu: Quantiles) -> tuple[int, int, str]:
    return 1, 1, ""


def _refuse(traj: Trajectory, problem: tuple[str, str], more: str) -> NoReturn:
    rule, remedy = problem
    checks.fail("trajectory", traj, rule, remedy + more)


# --- pictures ------------------------------------------------------------------------------------------


@singledispatch
def _picture(mu: Measure, traj: Trajectory, ax: Axes | None) -> Axes:
    """Curves of densities at several times, with a bar that tells which is which."""
    ax = canvas(ax)
    for k in _spread(len(traj), TIMES):
        _curve(traj, ax, k)
    ax.set_ylim(0.0, 1.05 * _top(traj, _spread(len(traj), TIMES)))
    return _bar(traj, ax)


@_picture.register
def _(mu: Particles, traj: Trajectory, ax: Axes | None) -> Axes:
    return trails(traj, ax=ax)


@_picture.register
def _(mu: Gaussian, traj: Trajectory, ax: Axes | None) -> Axes:
    if mu.batch:
        return disk(traj, ax=ax)
    return ellipses(traj, ax=ax) if mu.d == 2 else _picture.dispatch(Measure)(mu, traj, ax)


@_picture.register
def _(mu: Grid, traj: Trajectory, ax: Axes | None) -> Axes:
    if len(mu.axes) == 1:
        return _picture.dispatch(Measure)(mu, traj, ax)
    ax = density(mu, ax=ax)
    for k in _spread(len(traj), TIMES):
        rho = array(traj[k].coords[0])
        if rho.min() < rho.max() / 2:  # else there is no such line
            lines = [array(a) for a in mu.axes]
            colour = [_colour(traj, k)]
            ax.contour(*lines, rho.T, levels=[rho.max() / 2], colors=colour, linewidths=1.0)
    return _bar(traj, ax)


def _curve(traj: Trajectory, ax: Axes, k: int, color: Any = None) -> None:
    """The density at one time."""
    shade = _colour(traj, k) if color is None else color
    mu = traj[k]
    if isinstance(mu, Gaussian):
        x, rho = _bell(mu)
        ax.plot(x, rho, color=shade)
        ax.set(xlabel="$x$", ylabel="density")
    else:
        density(mu, ax=ax, color=shade)


def _bell(mu: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """The density of a Gaussian on the line over four standard deviations; a point has none."""
    mean, deviation = float(mu.mean[0]), math.sqrt(float(mu.cov[0, 0]))
    z = np.linspace(-4, 4, 201)
    with np.errstate(divide="ignore"):
        return mean + deviation * z, np.exp(-(z**2) / 2) / np.float64(deviation * math.sqrt(2 * math.pi))


def _top(traj: Trajectory, times: list[int]) -> float:
    """The highest finite density of several times; a peak beyond 20 times the median one is cut off."""
    peaks = np.array([_peak(traj[k]) for k in times])
    peaks = peaks[np.isfinite(peaks)]
    return float(min(peaks.max(), 20 * np.median(peaks))) if len(peaks) else 1.0


@singledispatch
def _peak(mu: Any) -> float:
    return float(mu.density.max())


@_peak.register
def _(mu: Quantiles) -> float:
    return float(mu.density()[1].max())


@_peak.register
def _(mu: Gaussian) -> float:
    variance = 2 * math.pi * float(mu.cov[0, 0])
    return variance**-0.5 if variance > 0 else math.inf


def _scale(traj: Trajectory) -> ScalarMappable:
    return ScalarMappable(Normalize(float(traj.ts[0]), float(traj.ts[-1])), SEQUENCE)


def _colour(traj: Trajectory, k: int) -> Any:
    return _scale(traj).to_rgba(array(traj.ts[k]))


def _bar(traj: Trajectory, ax: Axes) -> Axes:
    if len(traj) > 1:
        with mpl.rc_context(STYLE):
            bar = ax.figure.colorbar(_scale(traj), ax=ax, label="$t$", shrink=0.8)
            bar.outline.set_visible(False)
    return ax


# --- films ---------------------------------------------------------------------------------------------


@singledispatch
def _scene(mu: Measure, traj: Trajectory) -> Scene:
    """One density at a time, before that of the start."""
    top = 1.05 * _top(traj, list(range(len(traj))))

    def draw(ax: Axes, k: int) -> None:
        _curve(traj, ax, 0, color=FAINT)
        _curve(traj, ax, k)
        ax.set_ylim(0.0, top)

    return draw


@_scene.register
def _(mu: Particles, traj: Trajectory) -> Scene:
    return lambda ax, k: trails(traj[: k + 1], ax=ax)


@_scene.register
def _(mu: Gaussian, traj: Trajectory) -> Scene:
    if mu.batch:
        return lambda ax, k: disk(traj[: k + 1], ax=ax)
    if mu.d == 1:
        return _scene.dispatch(Measure)(mu, traj)

    def draw(ax: Axes, k: int) -> None:
        ellipses(traj[0], ax=ax, color=FAINT)
        ellipses(traj[k], ax=ax, color=_colour(traj, k))
        equal(ax, fixed=True)

    return draw


@_scene.register
def _(mu: Grid, traj: Trajectory) -> Scene:
    if len(mu.axes) == 1:
        return _scene.dispatch(Measure)(mu, traj)
    top = _top(traj, list(range(len(traj))))
    return lambda ax, k: density(traj[k], ax=ax, top=top)
