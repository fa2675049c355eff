"""Densities: images of grids in the plane, lines and steps on the line."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from otflow.base import checks
from otflow.measures import Grid, Measure, Quantiles
from otflow.plot.style import COLOURS, INK, STYLE, array, canvas, equal

# White where there is nothing, then ever darker.
DENSITY = LinearSegmentedColormap.from_list(
    "otflow-density", ["#FFFFFF", "#9ECAE1", COLOURS[0], "#003A5C", "#00131F"]
)


def density(
    mu: Measure,
    *,
    ax: Axes | None = None,
    top: float | None = None,
    levels: Any = (),
    color: Any = None,
    label: str | None = None,
) -> Axes:
    """The density of a `Grid` in the plane as an image, of a `Grid` or `Quantiles` on the line as a curve.

    Args:
        mu: one measure, no batch.
        top: the density at the dark end of the colours, or at the top of the axes; by default the largest.
        levels: densities whose contours are drawn, in the plane.
        color: of the curve, or of the contours.
        label: of the curve, for a legend.

    >>> from otflow.plot import density
    >>> import otflow as of
    >>> _, axes = of.plot.figure()
    >>> mu = of.Grid([[0.5, 1.5]] * 2, [[0.25, 0.75]] * 2)
    >>> density(mu, ax=axes[0, 0], top=2.0).get_images()[0].get_clim()
    (0.0, 2.0)
    """
    checks.instance(mu, Measure, "mu")
    if mu.batch:
        checks.fail("mu", repr(mu), "a picture shows one measure", "pick a member of the batch")
    ax = canvas(ax)
    with mpl.rc_context(STYLE):
        _draw(mu, ax, None if top is None else checks.positive(top, "top"), levels, color, label)
    return ax


@singledispatch
def _draw(mu: Measure, ax: Axes, top: float | None, levels: Any, color: Any, label: str | None) -> None:
    checks.fail("mu", repr(mu), "it has no density that could be drawn", "use Grid or Quantiles")


@_draw.register
def _(mu: Quantiles, ax: Axes, top: float | None, levels: Any, color: Any, label: str | None) -> None:
    edges, rho = (array(a) for a in mu.density())
    ax.stairs(rho, edges, baseline=None, color=COLOURS[0] if color is None else color, label=label)
    _curve(ax, top)


@_draw.register
def _(mu: Grid, ax: Axes, top: float | None, levels: Any, color: Any, label: str | None) -> None:
    x, rho = [array(a) for a in mu.axes], array(mu.density)
    if len(x) == 1:
        ax.plot(x[0], rho, color=COLOURS[0] if color is None else color, label=label)
        _curve(ax, top)
    elif len(x) == 2:
        _image(ax, x, rho, top, np.atleast_1d(levels), INK if color is None else color)
    else:
        checks.fail("mu", repr(mu), "pictures have one or two dimensions", "sum over an axis")


def _curve(ax: Axes, top: float | None) -> None:
    ax.set(xlabel="$x$", ylabel="density")
    ax.set_ylim(bottom=0.0, top=top)


def _image(
    ax: Axes, x: list[np.ndarray], rho: np.ndarray, top: float | None, levels: np.ndarray, color: Any
) -> None:
    ends = [end for a in x for end in (a[0] - (a[1] - a[0]) / 2, a[-1] + (a[1] - a[0]) / 2)]
    ax.imshow(
        rho.T,
        origin="lower",
        extent=(ends[0], ends[1], ends[2], ends[3]),
        cmap=DENSITY,
        vmin=0.0,
        vmax=top or rho.max(),
        interpolation="nearest",
    )
    if len(levels):
        ax.contour(x[0], x[1], rho.T, levels=np.sort(levels), colors=[color], linewidths=0.8)
    ax.set(xlabel="$x_1$", ylabel="$x_2$")
    equal(ax, fixed=True)
