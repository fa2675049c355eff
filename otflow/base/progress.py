"""Bars of progress, which say what is done and in which unit, in notebooks as in terminals."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from tqdm import tqdm

from otflow.base import checks

COUNTED = "{l_bar}{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}<{remaining}, {rate_fmt}]"
MEASURED = "{l_bar}{bar}| {n:.3g}/{total:.3g}{unit} [{elapsed}<{remaining}]"


def bar(total: float, doing: str, unit: str, *, progress: bool) -> Any:
    """A bar of tqdm on stderr, or a widget in a notebook; hidden unless ``progress``.

    A total that is a float is a quantity rather than a count: then parts of a unit are shown, and no rate.

    >>> from otflow.base.progress import bar
    >>> with bar(3, "flow", "steps", progress=False) as shown:
    ...     shown.update(1), shown.disable
    (None, True)
    """
    if not checks.instance(progress, bool, "progress"):
        return tqdm(total=total, disable=True)  # which loads nothing for notebooks
    layout = MEASURED if isinstance(total, float) else COUNTED
    return _kind()(total=total, desc=doing, unit=f" {unit}", bar_format=layout)


@cache
def _kind() -> Any:
    """The bar for this place: a widget in a notebook that has widgets, else text; without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm as shown
    return shown
