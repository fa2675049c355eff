"""Tables that notebooks show of an object, in place of its repr."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any


def table(title: str, rows: Mapping[str, Any]) -> str:
    """A small HTML table with a caption; numbers in six digits, long arrays by their shape.

    >>> from otflow.base.tables import table
    >>> table("Plan", {"gap": 0.25})
    '<table><caption>Plan</caption><tr><th>gap</th><td>0.25</td></tr></table>'
    """
    cells = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(shown(value))}</td></tr>" for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def shown(value: Any) -> str:
    """A value in few words.

    >>> import torch
    >>> from otflow.base.tables import shown
    >>> shown(torch.tensor([1.0, 2.5])), shown(torch.zeros(40, 3)), shown(1 / 3)
    ('1, 2.5', 'an array (40, 3)', '0.333333')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if not hasattr(value, "ravel"):  # neither of numpy nor of torch, which lists of claims do not load
        return str(value)
    if math.prod(value.shape) > 6:
        return f"an array {tuple(value.shape)}"
    return ", ".join(map(shown, value.ravel().tolist()))
