"""What comes into the formulas of the systems: numbers that broadcast, in float64, or a clear error."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from otflow.base import checks

Array: TypeAlias = NDArray[np.float64]


def numbers(**named: Any) -> list[Array]:
    """Numbers that broadcast with each other, in float64, copied and broadcast.

    >>> [a.tolist() for a in numbers(t=[1, 2], beta=0.5)]
    [[1.0, 2.0], [0.5, 0.5]]
    """
    arrays = [checks.tensor(v, name).detach().cpu().double().numpy() for name, v in named.items()]
    try:
        return [np.array(a) for a in np.broadcast_arrays(*arrays)]
    except ValueError:
        shapes = [a.shape for a in arrays]
        checks.fail(f"shapes of {', '.join(named)}", shapes, "they do not broadcast", "give them equal axes")


def tensors(**named: Any) -> list[Tensor]:
    """The same, for formulas in torch."""
    return [torch.from_numpy(a) for a in numbers(**named)]


def insist(good: Any, name: str, value: Any, rule: str, remedy: str) -> None:
    """An error that shows the first wrong entry of ``value`` (numpy or torch)."""
    bad = ~np.asarray(good)
    if bad.any():
        checks.fail(name, float(np.broadcast_to(np.asarray(value), bad.shape)[bad].flat[0]), rule, remedy)


def positive(value: Any, name: str) -> None:
    """All entries > 0."""
    insist(np.asarray(value) > 0, name, value, f"{name} must be > 0", f"choose another {name}")


def at_least_zero(value: Any, name: str) -> None:
    """All entries >= 0."""
    insist(np.asarray(value) >= 0, name, value, f"{name} must be >= 0", f"choose another {name}")


def whole(value: Any, name: str, least: int) -> None:
    """All entries whole numbers from ``least`` on."""
    v = np.asarray(value)
    good = (v >= least) & (v == np.floor(v))
    insist(good, name, value, f"a whole number >= {least} is needed", f"choose another {name}")


def batch_shape(batch: Any) -> tuple[int, ...]:
    """Axes of a batch: a tuple of numbers >= 1, or one number."""
    axes = batch if isinstance(batch, tuple | list | torch.Size) else (batch,)
    return tuple(checks.count(k, "batch") for k in axes)


def tensor(a: Any) -> Tensor:
    """The result of a formula, in float64."""
    return torch.as_tensor(np.asarray(a, dtype=np.float64))
