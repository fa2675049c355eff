"""The house style, figures in it, and what every picture needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap, Normalize, to_rgba_array
from matplotlib.figure import Figure
from torch import Tensor

from otflow.base import checks

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
    "axes.titlecolor": INK,
    "axes.titlesize": 9,  # small enough for three titles in a row
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "font.size": 8.5,
    "figure.dpi": 120,
}


def figure(
    rows: int = 1, cols: int = 1, *, size: tuple[float, float] | None = None, spatial: bool = False
) -> tuple[Figure, np.ndarray]:
    """A figure in the house style with rows x cols axes, always as an array of that shape.

    It is independent of pyplot: nothing is shown, kept open, or in need of a display; use ``savefig``.

    Args:
        rows, cols: number of axes.
        size: inches; by default 3.2 x 2.8 for each of the axes.
        spatial: make the axes 3-d.

    >>> from otflow.plot import figure
    >>> fig, axes = figure(1, 2)
    >>> axes.shape
    (1, 2)
    """
    with mpl.rc_context(STYLE):
        fig = Figure(figsize=size or (3.2 * cols, 2.8 * rows), layout="constrained")
        FigureCanvasAgg(fig)
        axes = fig.subplots(rows, cols, squeeze=False, subplot_kw={"projection": "3d" if spatial else None})
    return fig, axes


def panel(
    ax: Axes,
    title: str = "",
    x: str = "",
    y: str = "",
    *,
    legend: bool | str | Mapping[str, Any] = False,
    xticks: Mapping[float, str] | Iterable[float] | None = None,
    yticks: Mapping[float, str] | Iterable[float] | None = None,
    **properties: Any,
) -> Axes:
    """Title, labels, ticks and legend of ``ax`` in the house style, in one call; ``ax`` itself.

    Args:
        title, x, y: words above, below and beside.
        legend: True, a place such as "upper left" or "beside" (to the right of the axes), or keywords of
            `matplotlib.axes.Axes.legend`.
        xticks, yticks: numbers, or numbers with their words; there are no others then, nor minor ones.
        properties: of the axes, such as xlim, yscale or aspect.

    >>> from otflow.plot import figure, panel
    >>> fig, axes = figure()
    >>> ax = panel(axes[0, 0], "Decay", "time t", "energy", yscale="log", xticks=[0, 1, 2])
    >>> ax.get_title(), [tick.get_text() for tick in ax.get_xticklabels()]
    ('Decay', ['0', '1', '2'])
    """
    words = {"title": title, "xlabel": x, "ylabel": y}
    # A scale replaces the ticks, and ticks may widen the limits: so scales come first and limits last.
    ax.set(**{name: properties.pop(name) for name in ("xscale", "yscale") if name in properties})
    for axis, ticks in ((ax.xaxis, xticks), (ax.yaxis, yticks)):
        if ticks is not None:
            named = ticks if isinstance(ticks, Mapping) else {tick: f"{tick:g}" for tick in ticks}
            axis.set_ticks(list(named), labels=list(named.values()))
            axis.set_ticks([], minor=True)
    with mpl.rc_context(STYLE):
        ax.set(**{name: word for name, word in words.items() if word}, **properties)
        if legend:
            ax.legend(**_legend(legend))
    return ax


def _legend(given: bool | str | Mapping[str, Any]) -> Mapping[str, Any]:
    if given == "beside":
        return {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    return given if isinstance(given, Mapping) else {} if given is True else {"loc": given}


def spatial(ax: Axes) -> Any:
    """New 3-d axes in the place of ``ax``, which is taken from its figure: for figures with both kinds.

    >>> from otflow.plot import figure, spatial
    >>> fig, axes = figure(1, 2)
    >>> axes[0, 1] = spatial(axes[0, 1])
    >>> [ax.name for ax in axes.flat]
    ['rectilinear', '3d']
    """
    fig, place = ax.get_figure(), ax.get_subplotspec()
    if not isinstance(fig, Figure) or place is None:
        checks.fail("ax", repr(ax), "it must be one of a grid", "make it with otflow.plot.figure()")
    ax.remove()
    with mpl.rc_context(STYLE):
        return fig.add_subplot(place, projection="3d")


def canvas(ax: Axes | None, *, spatial: bool = False) -> Axes:
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


def equal(ax: Axes, *, fixed: bool = False) -> None:
    """One unit on both axes, by wider limits where matplotlib allows, else by narrower axes."""
    shared = len(ax.get_shared_x_axes().get_siblings(ax)) + len(ax.get_shared_y_axes().get_siblings(ax)) > 2
    ax.set_aspect("equal", adjustable="box" if fixed or shared else "datalim")


def colours(color: Any, n: int, what: str) -> np.ndarray:
    """One colour (n, 4) for each of n things: from one colour, n of them, or n numbers."""
    values = array(color) if isinstance(color, Tensor) else color
    try:
        plain = not (isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "fiu")
        found = to_rgba_array(values) if plain else SEQUENCE(Normalize()(values))
        return np.broadcast_to(found, (n, 4)) * (1, 1, 1, 0.9)
    except ValueError:
        rule = f"one colour, or one per {what} ({n}), is needed"
        checks.fail("color", repr(color), rule, 'use color="black"')


def array(a: Tensor) -> np.ndarray:
    """The numbers of a tensor."""
    return a.detach().cpu().numpy()


def at_time(t: float) -> str:
    """``$t = 2.5$``, to three digits; what is huge or tiny with a power of ten."""
    mantissa, _, power = f"{t:.3g}".partition("e")
    return f"$t = {mantissa}$" if not power else rf"$t = {mantissa} \times 10^{{{int(power)}}}$"


def direction(azimuth: Any, elevation: Any) -> np.ndarray:
    """The unit vector with these angles, in radians."""
    parts = np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)
    return np.stack(np.broadcast_arrays(*parts), -1)
