"""Weights of a Transformer as functions of depth: constant, piecewise constant, or any callable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from otflow.base import checks
from otflow.measures import Measure


class Weight(ABC):
    """A matrix (or vector) that may depend on time."""

    switches: tuple[float, ...] = ()
    varies: ClassVar[bool] = True
    unit: bool = False  # whether it is the identity for good, so that products with it can be left out

    @abstractmethod
    def __call__(self, t: Tensor) -> Tensor:
        """The value at time t, with the axes of t in front if it varies."""

    def pick(self, which: Tensor, keep: int = 2) -> Weight | None:
        """The weight of some members of a batch, given by a mask; None if it cannot tell."""
        return None


class Constant(Weight):
    """A weight that every layer shares."""

    varies: ClassVar[bool] = False

    def __init__(self, value: Tensor) -> None:
        self.value = value
        square = value.ndim == 2 and value.shape[0] == value.shape[1] and not value.requires_grad
        self.unit = square and torch.equal(
            value, torch.eye(len(value), dtype=value.dtype, device=value.device)
        )

    def __call__(self, t: Tensor) -> Tensor:
        return self.value

    def pick(self, which: Tensor, keep: int = 2) -> Weight:
        if self.value.ndim <= keep:
            return self
        tail = self.value.shape[-keep:]
        return Constant(self.value.expand(*which.shape, *tail)[which])


class Varying(Weight):
    """A user's function of time, called with t as a tensor of shape ().

    Members of an adaptive batch have clocks of their own; the function is then mapped over them, in one
    go if it is written in torch, one by one if not.
    """

    def __init__(self, f: Callable[[Tensor], Any], name: str) -> None:
        self.f, self.name = f, name

    def __call__(self, t: Tensor) -> Tensor:
        if not t.ndim:
            return self._once(t)
        times = t.flatten()
        try:
            values: Tensor = torch.vmap(self.f)(times)
        except Exception:  # numpy, math, branches on t: whatever vmap cannot follow
            values = torch.stack([self._once(s) for s in times])
        return values.reshape(*t.shape, *values.shape[1:])

    def _once(self, t: Tensor) -> Tensor:
        value = self.f(t)
        return value if isinstance(value, Tensor) else checks.tensor(value, f"{self.name}(t)")


class Layers(Weight):
    """Piecewise constant weights: ``values[l]`` is used for edges[l] <= t < edges[l+1].

    Before the first edge and after the last one, the first and last values go on. A flow ends a step
    at each inner edge, so that no step straddles a jump.

    Args:
        values: (L, ...), one entry per layer.
        edges: L + 1 increasing times; ``dt`` times 0..L if left out.
        dt: duration of a layer when ``edges`` is left out.

    >>> from otflow import Layers
    >>> import torch
    >>> Q = Layers(torch.stack([torch.eye(2), 2 * torch.eye(2)]))
    >>> Q(torch.tensor(0.5))[0, 0].item(), Q(torch.tensor(1.0))[0, 0].item(), Q.switches
    (1.0, 2.0, (1.0,))
    """

    def __init__(self, values: Any, edges: Any = None, *, dt: float = 1.0) -> None:
        self.values = checks.tensor(values, "values")
        good = self.values.ndim >= 1 and len(self.values)
        rule = "one entry per layer is needed, (L, ...)"
        checks.require(good, "values.shape", self.values.shape, rule, "stack the layers along the first axis")
        times = (
            checks.positive(dt, "dt") * torch.arange(len(self.values) + 1, dtype=torch.float64)
            if edges is None
            else checks.tensor(edges, "edges")
        )
        self.edges = times.to(dtype=torch.float64, device=self.values.device)
        if self.edges.shape != (len(self.values) + 1,) or bool((torch.diff(self.edges) <= 0).any()):
            rule = f"{len(self.values) + 1} increasing times are needed for {len(self.values)} layers"
            checks.fail("edges", self.edges.tolist(), rule, "pass one more edge than layers")
        self.switches = tuple(self.edges[1:-1].tolist())

    def __call__(self, t: Tensor) -> Tensor:
        return self.values[torch.searchsorted(self.edges[1:-1].contiguous(), t.to(self.edges), right=True)]


def weight(value: Any, name: str, ndim: int = 2) -> Weight:
    """Any of the three kinds, from what a user passes as Q, K, V, ..."""
    if isinstance(value, Weight):
        return value
    if callable(value) and not isinstance(value, Tensor):
        return Varying(value, name)
    value = checks.tensor(value, name)
    if value.ndim < ndim or 0 in value.shape:
        kind = "a matrix" if ndim == 2 else "a vector"
        rule = f"{kind} is needed, with batch axes in front if any"
        checks.fail(f"{name}.shape", tuple(value.shape), rule, f"reshape {name}")
    return Constant(value)


def fits(w: Weight, name: str, keep: int, mu: Measure, t: Tensor) -> Tensor:
    """The weight at time t, if it lives where mu does and its batch axes (all but the last ``keep``) match.

    When both the clocks of a batch and the weight itself have batch axes, each member takes its own.
    """
    value = checks.alike(w(t), name, mu.coords[0], "the measure")
    if w.varies and t.ndim and value.ndim > keep + t.ndim:
        value = _own(value, keep, t)
    axes = tuple(value.shape[: max(0, value.ndim - keep)])
    if value.ndim < keep or not checks.extends(mu.batch, axes):
        rule = f"its batch axes {axes} do not match those of the measure, {tuple(mu.batch)}"
        remedy = f"give {name} the axes of the measure, or none; layers of a network go into Layers({name})"
        checks.fail(f"{name}.shape", value.shape, rule, remedy)
    return value


def _own(value: Tensor, keep: int, t: Tensor) -> Tensor:
    """The value of each member at its own clock, for a weight of shape (*clocks, *members, ...).

    The last axes of the clocks are those of the members.
    """
    members = value.shape[t.ndim : value.ndim - keep]
    grid = torch.meshgrid(*(torch.arange(n, device=value.device) for n in t.shape), indexing="ij")
    paired = list(zip(members, grid[t.ndim - len(members) :], strict=False))
    if len(members) > t.ndim or any(
        n not in (1, g.shape[t.ndim - len(members) + i]) for i, (n, g) in enumerate(paired)
    ):
        return value  # `fits` says what is wrong
    return value[(*grid, *(g if n > 1 else torch.zeros_like(g) for n, g in paired))]


def act(w: Weight, matrix: Tensor, x: Tensor) -> Tensor:
    """M x_i for every token, M the value of the weight w now; x itself if that is the identity for good."""
    return x if w.unit else apply(matrix, x)


def apply(matrix: Tensor, x: Tensor) -> Tensor:
    """M x_i for every token, (*batch, n, d) -> (*batch, n, k)."""
    return x @ matrix.mT
