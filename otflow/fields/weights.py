"""Weights of a Transformer as functions of depth: constant, piecewise constant, or any callable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import followed
from otflow.base.parameters import Derived, Parametric, Seen, held, live
from otflow.measures import Measure


class Weight(Parametric, ABC):
    """A matrix (or vector) that may depend on time."""

    switches: tuple[float, ...] = ()
    varies: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, t: Tensor) -> Tensor:
        """The value at time t, with the axes of t in front if it varies."""

    @property
    def unit(self) -> bool:
        """Whether it is the identity and nothing else, so that products with it can be left out."""
        return False

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape at each time, batch axes included; None if only a call would tell."""
        return None

    @property
    def pace(self) -> str:
        """How it depends on time, in words; nothing if it does not."""
        return ""

    def pick(self, which: Tensor, keep: int = 2) -> Weight | None:
        """The weight of some members of a batch, given by a mask; None if it cannot tell."""
        return None


class Constant(Weight):
    """A weight that every layer shares."""

    varies: ClassVar[bool] = False
    anonymous: ClassVar[tuple[str, ...]] = ("value",)

    def __init__(self, value: Any, name: str = "value") -> None:
        self.value = held(value, name)
        self._seen: Seen[bool] = Seen()
        _ = self.unit  # a first look now, since it may go to an accelerator later

    @property
    def unit(self) -> bool:
        # One that learns may be the identity now, but not for good: writes through .data leave no trace.
        if not isinstance(self.value, Tensor) or live(self.value):
            return False
        return self._seen(self.value, _is_identity)

    def __call__(self, t: Tensor | None = None) -> Tensor:
        return self.value if isinstance(self.value, Tensor) else torch.stack(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self().shape)

    def pick(self, which: Tensor, keep: int = 2) -> Weight:
        value = self()
        if value.ndim <= keep:
            return self
        return Constant(value.expand(*which.shape, *value.shape[-keep:])[which])


def _is_identity(a: Tensor) -> bool:
    square = a.ndim == 2 and a.shape[0] == a.shape[1]
    # With a tangent it is the identity plus something.
    return square and not followed(a) and torch.equal(a, torch.eye(len(a), dtype=a.dtype, device=a.device))


class Slice(Weight):
    """factor * whole[rows, columns]: a block of a parameter in which torch stacks the heads of attention."""

    varies: ClassVar[bool] = False
    whole = Derived[Tensor]()

    def __init__(self, whole: Tensor, rows: slice, columns: slice, factor: float = 1.0) -> None:
        self.whole, self.rows, self.columns, self.factor = whole, rows, columns, factor

    def __call__(self, t: Tensor) -> Tensor:
        block = self.whole[self.rows, self.columns]
        return block if self.factor == 1.0 else self.factor * block

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.whole[self.rows, self.columns].shape)

    def pick(self, which: Tensor, keep: int = 2) -> Weight:
        return self


class Varying(Weight):
    """A user's function of time, called with t as a tensor of shape ().

    Members of an adaptive batch have clocks of their own; the function is then mapped over them, in one
    go if it is written in torch, one by one if not.
    """

    anonymous: ClassVar[tuple[str, ...]] = ("f",)

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

    @property
    def pace(self) -> str:
        return "time-dependent"

    def _once(self, t: Tensor) -> Tensor:
        value = self.f(t)
        return value if isinstance(value, Tensor) else checks.tensor(value, f"{self.name}(t)")


class Layers(Weight):
    """Piecewise constant weights: ``values[l]`` is used for edges[l] <= t < edges[l+1].

    Before the first edge and after the last one, the first and last values go on. A flow ends a step
    at each inner edge, so that no step straddles a jump.

    Args:
        values: (L, ...), one entry per layer; a list of parameters is kept as such, and each is learnt.
        edges: L + 1 increasing times; ``dt`` times 0..L if left out.
        dt: duration of a layer when ``edges`` is left out.

    >>> from otflow import Layers
    >>> import torch
    >>> Q = Layers(torch.stack([torch.eye(2), 2 * torch.eye(2)]))
    >>> Q(torch.tensor(0.5))[0, 0].item(), Q(torch.tensor(1.0))[0, 0].item(), Q.switches
    (1.0, 2.0, (1.0,))
    """

    anonymous: ClassVar[tuple[str, ...]] = ("values",)
    aside: ClassVar[tuple[str, ...]] = ("_edges", "switches")
    values = Derived[Tensor](lambda values, name: _one_per_layer(values))

    def __init__(self, values: Any, edges: Any = None, *, dt: float = 1.0) -> None:
        self.values = values
        times = (
            checks.positive(dt, "dt") * torch.arange(len(self.values) + 1, dtype=torch.float64)
            if edges is None
            else checks.tensor(edges, "edges")
        )
        self._edges = times.detach().to(dtype=torch.float64, device=self.values.device, copy=True)
        if self._edges.shape != (len(self.values) + 1,) or bool((torch.diff(self._edges) <= 0).any()):
            rule = f"{len(self.values) + 1} increasing times are needed for {len(self.values)} layers"
            checks.fail("edges", self._edges.tolist(), rule, "pass one more edge than layers")
        self.switches = tuple(self._edges[1:-1].tolist())

    def __call__(self, t: Tensor) -> Tensor:
        layer = torch.searchsorted(self._edges[1:-1].contiguous(), t.to(self._edges), right=True)
        raw = vars(self)["values"]
        if isinstance(raw, tuple) and not layer.ndim:  # no stack, nor a gradient, of layers that are not used
            return raw[int(layer)]
        if checks.on_host(layer):
            return self.values[layer]
        chosen = self.values.index_select(
            0, layer.flatten()
        )  # a scalar in brackets would go by way of the host
        return chosen.reshape(*layer.shape, *chosen.shape[1:])

    @property
    def edges(self) -> Tensor:
        """The times between the layers, the first and the last included, (L + 1,); a copy."""
        return self._edges.clone()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[1:])

    @property
    def pace(self) -> str:
        return f"{len(self.values)} layers"

    def __repr__(self) -> str:
        span = f"t in [{float(self.edges[0]):g}, {float(self.edges[-1]):g}]"
        return f"Layers({self.pace} of shape {self.shape}, {span})"


def pace(weights: Iterable[Weight]) -> list[str]:
    """How any of several weights depend on time, each way once."""
    return sorted({w.pace for w in weights} - {""})


def axes(w: Weight, t: Tensor, keep: int = 2) -> tuple[int, ...]:
    """The batch axes that a weight has at the scalar time t."""
    shape = tuple(w(t).shape) if w.shape is None else w.shape
    return shape[: max(0, len(shape) - keep)]


def last(w: Weight, axis: int) -> int | None:
    """The length of an axis counted from the last, -1 or -2, as far as it is known."""
    return None if w.shape is None or len(w.shape) < -axis else w.shape[axis]


def _one_per_layer(values: Tensor) -> Tensor:
    good = values.ndim >= 1 and len(values)
    rule = "one entry per layer is needed, (L, ...)"
    checks.require(good, "values.shape", values.shape, rule, "stack the layers along the first axis")
    return values


def weight(value: Any, name: str, ndim: int = 2) -> Weight:
    """Any of the three kinds, from what a user passes as Q, K, V, ..."""
    if isinstance(value, Weight):
        return value
    if callable(value) and not isinstance(value, Tensor | torch.nn.ParameterList):
        return Varying(value, name)
    constant = Constant(value, name)
    shape = constant().shape
    if len(shape) < ndim or 0 in shape:
        kind = "a matrix" if ndim == 2 else "a vector"
        rule = f"{kind} is needed, with batch axes in front if any"
        alone = f"reshape {name}, {name}[None] if it is one {'row' if ndim == 2 else 'number'}"
        remedy = alone if 0 not in shape else f"pass {name} with at least one entry"
        checks.fail(f"{name}.shape", tuple(shape), rule, remedy)
    return constant


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
        remedy = (
            f"layers of a network go into Layers({name}); for a sweep over {name} give the measure the same "
            f"axes, mu.expand{axes if len(axes) != 1 else f'({axes[0]})'}"
        )
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
    """M x_i for every token, M the value of the weight w now; x itself if that is the identity."""
    return x if w.unit else apply(matrix, x)


def apply(matrix: Tensor, x: Tensor) -> Tensor:
    """M x_i for every token, (*batch, n, d) -> (*batch, n, k)."""
    return x @ matrix.mT
