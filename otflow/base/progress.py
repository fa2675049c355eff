"""Progress bars: a widget where a notebook has one to offer, a line of text elsewhere."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any


def bar(*args: Any, progress: bool, **options: Any) -> Any:
    """A bar of tqdm, with its arguments; one that shows nothing unless ``progress``.

    >>> from otflow.base.progress import bar
    >>> list(bar([1, 2], progress=False))
    [1, 2]
    """
    return _kind()(*args, disable=not progress, **options)


@cache
def _kind() -> Any:
    """The bar of tqdm for the place where we are."""
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # that ipywidgets is missing: text serves as well
        from tqdm.auto import tqdm
    return tqdm
