"""What a function sees besides its arguments, so that what is known of it can be kept until that changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

LIBRARIES = (math, np, torch)  # whose functions do not change
PLAIN = (int, float, bool, str, type(None))
DEEP = 3  # functions that call functions; chosen


def captured(f: Any, deep: int = DEEP) -> tuple[Any, ...] | None:
    """Numbers, versions of tensors and functions that a plain function sees; None if there may be more.

    Equal as long as the function is the same. Tensors stand for themselves by their identity.

    >>> import torch
    >>> from otflow.base.captured import captured
    >>> a = torch.ones(2)
    >>> f = lambda x: a * x
    >>> before = captured(f)
    >>> _ = a.mul_(2.0)
    >>> before == captured(f), captured(f) == captured(f), captured(print) is None
    (False, True, True)
    """
    if not isinstance(f, FunctionType) or any(isinstance(c, CodeType) for c in f.__code__.co_consts):
        return None
    found: list[Any] = [f.__code__]
    for value in _seen(f):
        if any(value is library for library in LIBRARIES) or type(value) in PLAIN:
            found.append(value)
        elif isinstance(value, Tensor):
            found += [_Same(value), value._version]
        elif deep and (inner := captured(value, deep - 1)) is not None:
            found.append(inner)
        else:
            return None
    return tuple(found)


def _seen(f: FunctionType) -> Iterator[Any]:
    try:
        yield from (cell.cell_contents for cell in f.__closure__ or ())
    except ValueError:  # a cell that is still empty
        yield object()
    yield from f.__defaults__ or ()
    yield from (f.__kwdefaults__ or {}).values()
    yield from (f.__globals__[name] for name in f.__code__.co_names if name in f.__globals__)


class _Same:
    """Equal to what holds the same object, which is kept alive: a new one could have its address."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]
