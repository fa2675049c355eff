"""Time and radius at which constants are asked for; a time keeps norms of weights, a radius its logarithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.fields.weights import Layers, Weight


@dataclass(frozen=True, eq=False)
class Radius:
    """A radius by its logarithm, (*batch,), because radii of flows leave the range of floating point."""

    log: Tensor


@dataclass(eq=False)
class Kept:
    """A cache of norms of weights that do not vary, and whether anything else was asked for."""

    norms: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    varied: bool = False


class Moment:
    """A time, and norms of weights at it; moments share those that do not vary through ``kept``."""

    def __init__(self, t: Tensor, kept: Kept | None = None) -> None:
        self._t, self.kept = t, Kept() if kept is None else kept

    @property
    def t(self) -> Tensor:
        """The time; whoever asks for it is taken to vary with it, so that nothing is reused."""
        self.kept.varied = True
        return self._t

    def log_norm(self, name: str, make: Callable[..., Tensor], *weights: Weight) -> Tensor:
        """log |make(*weights)|, the spectral norm of a matrix (*batch, m, n); (*batch,).

        ``name`` tells apart what is made of the same weights.
        """
        key = (name, *weights)
        if key not in self.kept.norms:
            steady = all(_steady(w) for w in weights)
            value = _log_norm(name, make, [w(self._t if steady else self.t) for w in weights])
            if not steady:
                return value
            self.kept.norms[key] = value
        return self.kept.norms[key]


def _log_norm(name: str, make: Callable[..., Tensor], values: list[Tensor]) -> Tensor:
    try:
        made = make(*(value.double() for value in values))
    except RuntimeError:
        shapes = ", ".join(str(tuple(value.shape)) for value in values)
        checks.fail(f"shapes in {name}", shapes, "they do not fit together", "reshape the weights")
    norm: Tensor = torch.linalg.matrix_norm(checks.finite(made, name), 2)
    return norm.log()


@singledispatch
def _steady(w: Weight) -> bool:
    """Whether a weight is the same at all times between two switches."""
    return not w.varies


_steady.register(Layers, lambda w: True)


@dataclass(frozen=True)
class Mixed(Weight):
    """W V, the values of a head in a field with several."""

    W: Weight
    V: Weight

    def __call__(self, t: Tensor) -> Tensor:
        return self.W(t) @ self.V(t)


@_steady.register
def _(w: Mixed) -> bool:
    return _steady(w.W) and _steady(w.V)


def log_radius(R: float | Tensor | Radius) -> Tensor:
    """log R, for functions that are registered with `constants`."""
    if isinstance(R, Radius):
        return R.log
    R = checks.tensor(R, "R")
    if not bool((R > 0).all()):
        checks.fail("R", R.min().item(), "a ball has a radius > 0", "pass the largest |x| of the tokens")
    return R.double().log()


def moment(t: float | Tensor | Moment) -> Moment:
    """The time, for functions that are registered with `constants`."""
    if isinstance(t, Moment):
        return t
    t = checks.tensor(t, "t")
    checks.require(not t.ndim, "t.shape", t.shape, "one time is needed", "call constants for each of them")
    return Moment(t.double())
