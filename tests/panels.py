"""Panels of a figure, judged by their pixels: is anything drawn in them, and does a legend lie on it?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

DPI = 50.0
BACKDROP = "otflow-"  # how the marks of what shows a space, not data, begin


class Faults(NamedTuple):
    """Panels that look the same without their data, and panels on whose data a legend lies."""

    empty: list[str]
    covered: list[str]


def judge(figure: Any) -> Faults:
    """What is wrong with the panels, by name: what is off the limits is not there."""
    with settled(figure):
        places = [place(figure, legend.get_window_extent()) for legend in legends(figure)]
        drawn = list(zip(figure.axes, inks(figure), strict=True))
        bare = [name(ax) for ax, ink in drawn if not ink[place(figure, ax.bbox)].any()]
        return Faults(bare, [name(ax) for ax, ink in drawn if lies_on(ink, places)])


def lies_on(drawn: np.ndarray, places: list[tuple[slice, slice]]) -> bool:
    return any(drawn[place].any() for place in places)


def name(ax: Any) -> str:
    """What a reader would call the panel."""
    return str(ax.get_title() or ax.get_xlabel() or ax.get_ylabel() or ax.get_label() or ax)


def inks(figure: Any) -> Iterator[np.ndarray]:
    """For each panel, which pixels change when its data are hidden."""
    with hidden(legends(figure)):
        shown = pixels(figure)
        for ax in figure.axes:
            with hidden(data(ax)):
                yield np.asarray((pixels(figure) != shown).any(-1))


def data(ax: Any) -> list[Any]:
    """What is drawn in the coordinates of the panel: backdrops, and lines across all of it, are not."""
    own = [
        a for a in [*ax.lines, *ax.patches] if all(a.get_transform().contains_branch_seperately(ax.transData))
    ]
    found = [*own, *ax.collections, *ax.images]
    return [a for a in found if not str(a.get_gid() or "").startswith(BACKDROP)]


def legends(figure: Any) -> list[Any]:
    found = [*figure.legends, *(ax.get_legend() for ax in figure.axes)]
    return [legend for legend in found if legend is not None]


def place(figure: Any, box: Any) -> tuple[slice, slice]:
    """The pixels of a box, whose rows count from the top."""
    left, right, low, high = (max(0, round(edge)) for edge in (box.x0, box.x1, box.y0, box.y1))
    height = round(figure.bbox.height)
    return slice(max(0, height - high), max(0, height - low)), slice(left, right)


def pixels(figure: Any) -> np.ndarray:
    figure.canvas.draw()
    return np.array(figure.canvas.buffer_rgba())


@contextmanager
def settled(figure: Any) -> Iterator[None]:
    """Few pixels, and a layout that stays when something is hidden."""
    dpi = figure.dpi
    figure.dpi = DPI
    figure.canvas.draw()
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.dpi = dpi


@contextmanager
def hidden(artists: list[Any]) -> Iterator[None]:
    seen = [artist for artist in artists if artist.get_visible()]
    for artist in seen:
        artist.set_visible(False)
    try:
        yield
    finally:
        for artist in seen:
            artist.set_visible(True)
