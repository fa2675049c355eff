"""Tables that notebooks show of an object, in place of its repr."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def table(title: str, rows: Mapping[str, Any], *, of: Any = None) -> str:
    """A small HTML table with a caption; numbers in six digits, long arrays by their shape.

    Beside it stands a picture of the object ``of``, if there is one.

    >>> from otflow.base.tables import table
    >>> table("Plan", {"gap": 0.25})
    '<table><caption>Plan</caption><tr><th>gap</th><td>0.25</td></tr></table>'
    """
    cells = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(shown(value))}</td></tr>" for name, value in rows.items()
    )
    html = f"<table><caption>{escape(title)}</caption>{cells}</table>"
    drawn = "" if of is None else picture(of)
    return f'<div style="display: flex; align-items: center; gap: 1em">{html}{drawn}</div>' if drawn else html


def picture(thing: Any) -> str:
    """A small picture as an HTML image, or nothing: a repr never fails because of its picture."""
    try:
        from otflow.plot import thumbnails

        return thumbnails.image(thing)
    except Exception:
        return ""


def named(f: Any) -> str:
    """A function of the user in one word: its name, the kind of a module, "lambda".

    >>> from otflow.base.tables import named
    >>> named(abs), named(lambda x: x)
    ('abs', 'lambda')
    """
    name = getattr(f, "__name__", None) or getattr(getattr(f, "func", f), "__name__", type(f).__name__)
    return str(name).strip("<>")


def signed(pairs: Sequence[tuple[Any, float]]) -> str:
    """A linear combination as people write it.

    >>> from otflow.base.tables import signed
    >>> signed([("F", 1.0), ("G", -0.5), ("H", 2.0)])
    "'F' - 0.5 * 'G' + 2 * 'H'"
    """
    terms = (f"{'-' if c < 0 else '+'} {'' if abs(c) == 1 else f'{abs(c):g} * '}{one!r}" for one, c in pairs)
    return " ".join(terms).removeprefix("+ ")


def shown(value: Any) -> str:
    """A value in few words.

    >>> import torch
    >>> from otflow.base.tables import shown
    >>> shown(torch.tensor([1.0, 2.5])), shown(torch.zeros(40, 3)), shown(1 / 3)
    ('1, 2.5', 'an array (40, 3)', '0.333333')
    """
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # minus zero says nothing
    if not hasattr(value, "ravel"):  # neither of numpy nor of torch, which lists of claims do not load
        return str(value)
    if math.prod(value.shape) > 6:
        return f"an array {tuple(value.shape)}"
    return ", ".join(map(shown, value.ravel().tolist()))
