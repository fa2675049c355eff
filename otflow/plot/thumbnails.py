"""Thumbnails: the small pictures that notebooks show beside the table of an object, a few kilobytes each.

They have no words, and colours that are readable on white and on black. What an object looks like in full is
`traj.plot()` and the other functions of `otflow.plot`.
"""

from __future__ import annotations

import base64
import io
import math
import warnings
from functools import singledispatch
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from otflow.base.spaces import Sphere, Torus
from otflow.dynamics.trajectory import Trajectory
from otflow.measures import Gaussian, Grid, Measure, Particles, Quantiles
from otflow.plot.style import array

WIDTH, HEIGHT, SCALE, INCH = 200, 150, 1.5, 72  # pixels of the page, and how many of the picture for each
SHADES = 64  # colours of a picture, with their transparency; chosen: the eye misses none
TOKENS = 300  # tokens that are drawn, equally spaced in number; chosen: more is a blot
CELLS = 96  # cells along an axis of a picture
MEMBERS = 8  # of a batch
# Contrast with white and with #111111 is at least 3 for each of these.
START, END, FRAME = "#B8860B", "#2F86C9", "#808080"
RUNGS = ("#808080", "#D9632A", "#1E9C78", "#2F86C9")
HEAT = "cividis"
PLAIN: dict[Any, Any] = {
    "axes.edgecolor": FRAME,
    "axes.linewidth": 0.8,
    "xtick.color": FRAME,
    "ytick.color": FRAME,
    "font.size": 7.5,
}


def image(thing: Any) -> str:
    """The HTML image of an object: a PNG in the page itself, on a transparent ground; '' if it has none.

    >>> from otflow import Particles
    >>> from otflow.plot.thumbnails import image
    >>> image(Particles([[0.0, 1.0], [1.0, 0.0]]))[:32]
    '<img width="200" height="150" al'
    """
    with mpl.rc_context(PLAIN), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that a picture of one point has no extent
        fig = Figure(figsize=(WIDTH / INCH, HEIGHT / INCH), dpi=SCALE * INCH, layout="constrained")
        words = draw(thing, fig)
        return _encoded(fig, words) if words else ""


def _encoded(fig: Figure, words: str) -> str:
    canvas: Any = FigureCanvasAgg(fig)
    file = io.BytesIO()
    fig.patch.set_alpha(0.0)
    for ax in fig.axes:
        ax.patch.set_alpha(0.0)
    canvas.draw()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba()))
    few = pixels.quantize(SHADES, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)  # keeps transparency
    few.save(file, format="png", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img width="{WIDTH}" height="{HEIGHT}" alt="{words}" src="data:image/png;base64,{data}"/>'


# --- what is drawn -------------------------------------------------------------------------------------


@singledispatch
def draw(thing: Any, fig: Figure) -> str:
    """Draw on a new figure and say in words what is seen; nothing, if there is no picture of it."""
    if type(thing).__name__ != "Ladder":  # which is of a layer that pictures of clouds do not load
        return ""
    return _ladder(thing, fig)


@draw.register
def _(mu: Measure, fig: Figure) -> str:
    ax = _axes(fig)
    for one in _members(mu):
        _show(one, ax, END)
    return "a picture of the measure"


@draw.register
def _(traj: Trajectory, fig: Figure) -> str:
    """The start and the end; of tokens also the way between them."""
    if not len(traj):
        return ""
    ax = _axes(fig)
    if isinstance(traj.final, Particles):
        _ways(traj, ax)
    for one in [] if _is_image(traj.final) else _members(traj[0]):
        _show(one, ax, START)
    for one in _members(traj.final):
        _show(one, ax, END)
    return "the end" if _is_image(traj.final) else "the start, brown, and the end, blue"


def _ladder(found: Any, fig: Figure) -> str:
    """log C at the end, a bar for each rung; far from 0 the axis is logarithmic."""
    ax = fig.subplots()
    logs = [float(log.median()) for log in found.rungs.values()]
    finite = [log for log in logs if math.isfinite(log)]
    bars = [log if math.isfinite(log) else 10 * max(map(abs, finite), default=1.0) for log in logs]
    ax.set_xscale("asinh", linear_width=0.1)
    ax.barh(range(len(bars)), bars, color=RUNGS[: len(bars)], height=0.7)
    ax.set_xlim(min(0.0, 1.2 * min(bars)), max(0.0, 1.2 * max(bars)) or 1.0)
    ax.axvline(0.0, color=FRAME, linewidth=0.8)
    ax.set(yticks=range(len(bars)), yticklabels=list(found.rungs), xticks=[0.0])
    ax.minorticks_off()
    ax.invert_yaxis()
    ax.spines[["top", "right", "left"]].set_visible(False)
    return "the rungs of the ladder"


def _axes(fig: Figure) -> Axes:
    ax = fig.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(3))
    return ax


def _members(mu: Measure) -> list[Measure]:
    """Some members of a batch, the first ones, or the measure itself; of images only one fits."""
    mu = mu.detach()
    if not mu.batch:
        return [mu]
    flat = [tuple(index) for index in np.ndindex(*mu.batch[:-1], min(mu.batch[-1], MEMBERS))]
    return [mu[index] for index in flat[: 1 if _is_image(mu) else MEMBERS]]


def _is_image(mu: Measure) -> bool:
    return isinstance(mu, Grid) and len(mu.axes) > 1


@singledispatch
def _show(mu: Measure, ax: Axes, colour: str) -> None:
    """Nodes of a measure of another kind."""
    x, w = mu.nodes()
    _dots(array(x), array(w), ax, colour)


@_show.register
def _(mu: Particles, ax: Axes, colour: str) -> None:
    if mu.d > 1:
        _frame(mu, ax)
        _dots(array(mu.x), array(mu.w), ax, colour)
        return
    order, some = np.argsort(array(mu.x)[:, 0]), _some(mu.n)
    x, share = array(mu.x)[order, 0][some], array(mu.w)[order].cumsum()[some]
    ax.step([x[0], *x], [0.0, *share], where="post", color=colour, linewidth=1.0)


@_show.register
def _(mu: Gaussian, ax: Axes, colour: str) -> None:
    mean, R = array(mu.mean), array(mu.root)
    if mu.d == 1:
        z, deviation = np.linspace(-4, 4, 121), max(float(np.linalg.norm(R)), 1e-300)
        ax.fill_between(
            mean[0] + deviation * z, np.exp(-(z**2) / 2) / deviation, color=colour, alpha=0.4, lw=0
        )
        return
    a = np.linspace(0, 2 * np.pi, 121)
    u, s, _ = np.linalg.svd(R[:2])
    for radius in (1.0, 2.0):
        k = min(2, len(s))
        x, y = mean[:2, None] + radius * (u[:, :k] * s[:k]) @ np.stack([np.cos(a), np.sin(a)])[:k]
        ax.fill(x, y, facecolor=(colour, 0.25), edgecolor=colour, linewidth=1.0)
    ax.set_aspect("equal", adjustable="datalim")


@_show.register
def _(mu: Grid, ax: Axes, colour: str) -> None:
    rho, axes = array(mu.density), [array(a) for a in mu.axes]
    if len(axes) == 1:
        stride = -(-len(rho) // (4 * CELLS))
        ax.fill_between(axes[0][::stride], rho[::stride], color=colour, alpha=0.4, linewidth=0)
        return
    rho = rho.sum(tuple(range(2, rho.ndim)))
    strides = [-(-n // CELLS) for n in rho.shape]
    (left, right), (low, high), *_ = (
        (a[0] - h / 2, a[-1] + h / 2) for a, h in zip(axes, mu.spacing, strict=True)
    )
    extent = (left, right, low, high)
    ax.imshow(rho[:: strides[0], :: strides[1]].T, origin="lower", extent=extent, cmap=HEAT, aspect="equal")


@_show.register
def _(mu: Quantiles, ax: Axes, colour: str) -> None:
    edges, rho = (array(a) for a in mu.density())
    keep = np.unique(np.linspace(0, len(rho) - 1, 4 * CELLS).astype(int))
    top = 20 * np.median(rho[np.isfinite(rho)])
    ax.stairs(np.minimum(rho[keep], top), edges[[*keep, -1]], fill=True, color=colour, alpha=0.4)


def _dots(x: np.ndarray, w: np.ndarray, ax: Axes, colour: str) -> None:
    """The first two coordinates of points, with areas in proportion to their weights."""
    some = _some(len(x))
    x, w = x[some], w[some] / max(w[some].max(), 1e-300)
    y = x[:, 1] if x.shape[1] > 1 else np.zeros(len(x))
    ax.scatter(x[:, 0], y, s=7 * w, color=colour, alpha=0.9, linewidths=0)


def _frame(mu: Particles, ax: Axes) -> None:
    """The space, where it has an end."""
    if isinstance(mu.space, Torus):
        ax.set_aspect("equal", adjustable="box")
        ax.set(xlim=(0, mu.space.period), ylim=(0, mu.space.period))
    if isinstance(mu.space, Sphere):
        a = np.linspace(0, 2 * np.pi, 121)
        ax.plot(np.cos(a), np.sin(a), color=FRAME, linewidth=0.8, zorder=0)
    if not isinstance(mu.space, Torus):
        ax.set_aspect("equal", adjustable="datalim")


def _ways(traj: Trajectory, ax: Axes) -> None:
    """The ways of some tokens at some of the save times; on a torus they would jump."""
    cloud: Any = traj.final
    if cloud.d == 1 or isinstance(cloud.space, Torus):
        return
    times = np.unique(np.linspace(0, len(traj) - 1, 40).astype(int))
    for member in range(len(_members(cloud))):
        states: list[Any] = [_members(traj[int(k)])[member] for k in times]
        x = np.stack([array(mu.x)[_some(cloud.n), :2] for mu in states], 1)  # (tokens, times, 2)
        ax.add_collection(LineCollection(list(x), colors=FRAME, linewidths=0.4, alpha=0.6))


def _some(n: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(n, TOKENS)).astype(int))
