"""Numbers that formulas take, one or many at once: in float64, of shapes that broadcast, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from otflow.base import checks

Array: TypeAlias = NDArray[np.float64]


def number(value: Any, name: str) -> Tensor:
    """A number, or a tensor of numbers, in float64 and with its graph."""
    return checks.tensor(value, name).double()


def alongside(**named: Any) -> tuple[Tensor, ...]:
    """Numbers that broadcast with each other, as they are and with their graphs."""
    tensors = tuple(number(value, name) for name, value in named.items())
    _broadcast(named, tensors, "give them equal batch axes")
    return tensors


def numbers(**named: Any) -> list[Array]:
    """Numbers that broadcast with each other, in float64, copied and broadcast.

    >>> from otflow.base.numbers import numbers
    >>> [a.tolist() for a in numbers(t=[1, 2], beta=0.5)]
    [[1.0, 2.0], [0.5, 0.5]]
    """
    arrays = [number(value, name).detach().cpu() for name, value in named.items()]
    shape = _broadcast(named, arrays, "give them equal axes")
    return [np.array(np.broadcast_to(a.numpy(), shape)) for a in arrays]


def tensors(**named: Any) -> list[Tensor]:
    """The same, for formulas in torch."""
    return [torch.from_numpy(a) for a in numbers(**named)]


def _broadcast(names: Iterable[str], tensors: Sequence[Tensor], remedy: str) -> torch.Size:
    """The common shape of some arguments, or an error that shows all of them."""
    shapes = [tuple(a.shape) for a in tensors]
    try:
        return torch.Size(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        checks.fail(f"shapes of {', '.join(names)}", shapes, "they do not broadcast", remedy)


def insist(good: Any, name: str, value: Any, rule: str, remedy: str) -> None:
    """`checks.require` entry by entry: the error shows the first wrong entry of ``value``."""
    bad = ~np.asarray(good)
    if bad.any():
        checks.fail(name, float(np.broadcast_to(np.asarray(value), bad.shape)[bad].flat[0]), rule, remedy)


def above(value: Any, name: str, rule: str, remedy: str) -> Tensor:
    """All entries > 0; the error shows the least."""
    x = number(value, name)
    return _least(x, x <= 0, name, rule, remedy)


def variance(value: Any, name: str) -> Tensor:
    """All entries >= 0; the error shows the least."""
    x = number(value, name)
    return _least(x, x < 0, name, "a variance is >= 0", f"pass {name}.clamp(min=0) if that is rounding")


def _least(x: Tensor, bad: Tensor, name: str, rule: str, remedy: str) -> Tensor:
    if bad.any():
        checks.fail(f"min({name})", x.min().item(), rule, remedy)
    return x


def shown(t: Any) -> str:
    """For messages: one number, or from where to where."""
    low, high = (f"{x.item():g}" for x in torch.aminmax(number(t, "t")))
    return low if low == high else f"{low} to {high}"


def positive(value: Any, name: str) -> None:
    """All entries > 0."""
    remedy = f"drop such entries, or pass {name}=1.0, say"
    insist(np.asarray(value) > 0, name, value, f"{name} must be > 0", remedy)


def at_least_zero(value: Any, name: str) -> None:
    """All entries >= 0."""
    remedy = f"drop such entries, or pass {name}=0.0"
    insist(np.asarray(value) >= 0, name, value, f"{name} must be >= 0", remedy)


def between(low: float, high: float, good: Any, name: str, value: Any, rule: str) -> None:
    """`insist` on an interval; the remedy is its nearest end, or, where that is left out, a number inside."""
    bad = np.broadcast_to(np.asarray(value), np.asarray(good).shape)[~np.asarray(good)]
    near = f"{min(max(float(bad.flat[0]), low), high):g}" if bad.size else ""
    insist(good, name, value, rule, f"pass {name}={near}, which is the nearest that is allowed")


def whole(value: Any, name: str, least: int) -> None:
    """All entries whole numbers from ``least`` on."""
    v = np.asarray(value)
    good = (v >= least) & (v == np.floor(v))
    bad = v[~good]
    nearest = max(least, round(float(bad.flat[0]))) if bad.size and np.isfinite(bad.flat[0]) else least
    insist(good, name, value, f"a whole number >= {least} is needed", f"pass {name}={nearest}")


def batch_shape(batch: Any) -> tuple[int, ...]:
    """Axes of a batch: a tuple of numbers >= 1, or one number."""
    axes = batch if isinstance(batch, tuple | list | torch.Size) else (batch,)
    return tuple(checks.count(k, "batch") for k in axes)


def tensor(a: Any) -> Tensor:
    """The result of a formula, in float64."""
    return torch.as_tensor(np.asarray(a, dtype=np.float64))
