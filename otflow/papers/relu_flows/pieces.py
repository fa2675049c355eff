"""Flows of x' = w (a.x + b)_+ with piecewise constant (w, a, b): forward, inverse and density in closed form.

`otflow.papers.relu_flows` offers `Piece` and `PiecewiseFlow`; `tables` holds the tables that they use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import NotFiniteError
from otflow.fields import Layers, Perceptron
from otflow.papers.relu_flows.tables import Table, tabulate

STEEPEST = 700.0  # exp(kappa T) is a number up to here
SERIES = 1e-2  # below, phi1 by its series: the derivative of expm1(z) / z loses digits like eps / z


class Piece(NamedTuple):
    """x' = w (a.x + b)_+ during a time T: vectors w, a (d,), numbers b, T; or L of them, (L, d) and (L,)."""

    w: Any
    a: Any
    b: Any
    T: Any = 1.0


class PiecewiseFlow:
    """x -> x + w (a.x + b)_+ T phi1(kappa T), kappa = a.w, phi1(z) = (e^z - 1) / z, piece after piece.

    The flow of a ReLU network of width one with piecewise constant weights, exactly: no ODE is solved.
    log det = kappa T where a.x + b > 0, else 0; on the hyperplane itself either side may be taken. The
    inverse is w -> -w in reverse order. Runs of pieces that act along one axis are merged into a table when
    the flow is first used, shears in rational arithmetic: L pieces then cost log L instead of L, and large
    weights of staircases do not cancel. If a parameter needs a gradient, pieces are taken one by one, and a
    staircase of height h and width delta at position R has an error of the order 1e-16 R h / delta.
    Forward then inverse is the identity up to 1e-14 times |x| on the way times what the way back stretches.

    Args:
        pieces: a sequence of `Piece`, or one `Piece` of stacked arrays w, a (L, d) and b, T (L,) or numbers.

    >>> from otflow.papers.relu_flows import Piece, PiecewiseFlow
    >>> f = PiecewiseFlow([Piece([1.0, 0.0], [1.0, 0.0], 0.0), Piece([0.0, 2.0], [1.0, 0.0], -1.0)])
    >>> f([1.0, 0.0])  # e, then 2 (e - 1) upwards
    tensor([2.7183, 3.4366], dtype=torch.float64)
    >>> f.log_det([1.0, 0.0]).item(), len(f), f.switches
    (1.0, 2, 1)

    Reference: Geshkovski, Ruiz-Balet 2026, arXiv 2602.08606; the closed form is elementary.
    """

    def __init__(self, pieces: Piece | Sequence[Piece]) -> None:
        self._parts = self.w, self.a, self.b, self.T = stacked(pieces)
        if bool((self.T <= 0).any()):
            checks.fail("min(T)", self.T.min().item(), "a time > 0 is needed", "turn w to go back in time")
        growth = self._growth.detach().abs()
        if not bool((growth <= STEEPEST).all()):
            rule = f"exp leaves floating point beyond {STEEPEST:g}"
            checks.fail(
                "max |a.w| T", growth.max().item(), rule, f"divide T by {growth.max().item() / STEEPEST:.3g}"
            )

    @classmethod
    def identity(cls, d: int) -> PiecewiseFlow:
        """The flow of no pieces in d dimensions.

        >>> from otflow.papers.relu_flows import PiecewiseFlow
        >>> PiecewiseFlow.identity(2)([1.0, 2.0]).tolist()
        [1.0, 2.0]
        """
        none = torch.zeros((0, checks.count(d, "d")), dtype=torch.float64)
        return cls(Piece(none, none, none[:, 0], none[:, 0]))

    @property
    def d(self) -> int:
        """The dimension."""
        return self.w.shape[-1]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces, one by one, in the order of time."""
        return tuple(Piece(*one) for one in zip(*self._parts, strict=True))

    @property
    def switches(self) -> int:
        """How often the weights jump: one less than there are pieces."""
        return max(len(self) - 1, 0)

    @property
    def duration(self) -> float:
        """The sum of all T."""
        return float(self.T.detach().sum())

    def __len__(self) -> int:
        return len(self.w)

    def __repr__(self) -> str:
        return f"PiecewiseFlow({len(self)} pieces, d={self.d})"

    def __call__(self, x: Any) -> Tensor:
        """Where the points x (*batch, d) end."""
        return self.with_log_det(x)[0]

    def log_det(self, x: Any) -> Tensor:
        """log |det D flow(x)|, (*batch): the sum of kappa T over the pieces that are active along the way."""
        return self.with_log_det(x)[1]

    def with_log_det(self, x: Any) -> tuple[Tensor, Tensor]:
        """Both at the price of one."""
        start = self._points(x, "x")
        X, gain = start.reshape(-1, self.d).mT, start.new_zeros(start.shape[:-1].numel())
        for step in self._steps:
            X, more = step(X)
            gain = gain if more is None else gain + more
        return _sound(X.mT.reshape(start.shape)), gain.reshape(start.shape[:-1])

    def inverse(self, y: Any) -> Tensor:
        """The points that end in y (*batch, d)."""
        return self.reversed(self._points(y, "y"))

    def log_density(self, y: Any, base: Callable[[Tensor], Any]) -> Tensor:
        """log rho(y) = base(x) - log det D flow(x), x = inverse(y): the law that base is carried to.

        Args:
            y: (*batch, d).
            base: log-density of the law at the start, (*batch, d) -> (*batch), torch or numpy.

        >>> from otflow.papers.relu_flows import Piece, PiecewiseFlow
        >>> f = PiecewiseFlow([Piece([1.0], [1.0], 0.0)])  # doubles nothing, stretches x > 0 by e
        >>> f.log_density([[2.7182818]], lambda x: -x[..., 0] ** 2 / 2).item()
        -1.5
        """
        checks.function(base, "base")
        x, minus = self.reversed.with_log_det(self._points(y, "y"))
        value = _numbers(base(x))
        if value.shape != minus.shape:
            rule = f"one number per point is needed, {tuple(minus.shape)}"
            checks.fail("base(x).shape", tuple(value.shape), rule, "sum over the last axis")
        return value + minus

    @property
    def reversed(self) -> PiecewiseFlow:
        """The inverse as a flow of its own, made anew if parameters are learned: they may have changed."""
        return self._turned if self._learned else self._reversed

    @property
    def _turned(self) -> PiecewiseFlow:
        w, a, b, T = (part.flip(0) for part in self._parts)
        return PiecewiseFlow(Piece(-w, a, b, T))

    @cached_property
    def _reversed(self) -> PiecewiseFlow:
        return self._turned

    def then(self, other: PiecewiseFlow) -> PiecewiseFlow:
        """This flow, and after it the other.

        >>> from otflow.papers.relu_flows import Piece, PiecewiseFlow
        >>> f = PiecewiseFlow([Piece([1.0], [0.0], 1.0)])
        >>> f.then(f)([0.0]).item()
        2.0
        """
        checks.instance(other, PiecewiseFlow, "other")
        if other.d != self.d:
            checks.fail("other.d", other.d, f"this flow is in dimension {self.d}", "compose flows of equal d")
        return PiecewiseFlow(Piece(*map(torch.cat, zip(self._parts, other._parts, strict=True))))

    def field(self) -> Perceptron:
        """The same motion as a field for `otflow.flow`, which integrates it up to ``t1=duration``.

        >>> from otflow.papers.relu_flows import Piece, PiecewiseFlow
        >>> import otflow as of
        >>> f = PiecewiseFlow([Piece([1.0], [1.0], 0.0), Piece([-1.0], [0.0], 2.0)])
        >>> end = of.flow(of.Particles([[1.0]]), f.field(), of.Dopri5(), t1=f.duration).final.x.item()
        >>> round(end, 4), round(f([[1.0]]).item(), 4)
        (0.7183, 0.7183)
        """
        if not len(self):
            checks.fail("len(flow)", 0, "a field needs at least one piece", "add pieces")
        edges = torch.cat([self.T.new_zeros(1), self.T.detach().cumsum(0)])
        return Perceptron(*(Layers(v, edges) for v in (self.w[..., None], self.a[:, None], self.b[:, None])))

    @property
    def _steps(self) -> Sequence[Table | One]:
        """Single pieces, anew for each graph, if a parameter needs a gradient; else tables where they fit."""
        return self._singles() if self._learned else self._tables

    @property
    def _learned(self) -> bool:
        return any(part.requires_grad for part in self._parts)

    @property
    def _growth(self) -> Tensor:
        """kappa T, (L,)."""
        return (self.a * self.w).sum(-1) * self.T

    @cached_property
    def _tables(self) -> list[Table | One]:
        single = self._singles()
        return [step if isinstance(step, Table) else single[step] for step in tabulate(*self._parts)]

    def _singles(self) -> list[One]:
        pace = self.w * (self.T * phi1(self._growth))[:, None]
        return [One(*each) for each in zip(pace, self.a, self.b, self._growth, strict=True)]

    def _points(self, x: Any, name: str) -> Tensor:
        points = checks.tensor(x, name).double()
        if points.ndim < 1 or points.shape[-1] != self.d:
            remedy = f"pass {name} with {self.d} coordinates" if self.d > 1 else f"pass {name}[..., None]"
            checks.fail(f"{name}.shape", tuple(points.shape), f"points (*batch, {self.d}) are needed", remedy)
        return points


class One(NamedTuple):
    """One piece: x + pace (a.x + b)_+ with log det growth, in operations that carry gradients."""

    pace: Tensor  # w T phi1(kappa T), (d,)
    a: Tensor  # (d,)
    b: Tensor  # ()
    growth: Tensor  # kappa T, ()

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:  # (d, n) -> (d, n), (n,)
        z = self.a @ X + self.b
        return X + self.pace[:, None] * z.clamp(min=0), self.growth * (z > 0)


def phi1(z: Any) -> Tensor:
    """(e^z - 1) / z, smooth at 0, with its derivatives.

    >>> from otflow.papers.relu_flows import phi1
    >>> phi1([0.0, 1.0])
    tensor([1.0000, 1.7183], dtype=torch.float64)
    """
    z = checks.tensor(z, "z").double()
    if bool((z > STEEPEST).any()):
        checks.fail(
            "max(z)",
            z.max().item(),
            f"exp leaves floating point beyond {STEEPEST:g}",
            f"pass z.clamp(max={STEEPEST:g})",
        )
    small = z.abs() < SERIES
    safe = torch.where(small, torch.ones_like(z), z)
    series = 1 + z / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5 * (1 + z / 6 * (1 + z / 7)))))
    return torch.where(small, series, torch.expm1(safe) / safe)


def stacked(pieces: Piece | Sequence[Piece]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """w, a (L, d) and b, T (L,) of the pieces."""
    if not isinstance(pieces, Piece):
        pieces = _gathered(pieces)
    w, a, b, T = (checks.tensor(v, name).double() for v, name in zip(pieces, "wabT", strict=True))
    if w.ndim != 2 or a.shape != w.shape or w.shape[1] < 1:
        shapes = tuple(w.shape), tuple(a.shape)
        checks.fail(
            "w.shape, a.shape", shapes, "both are (L, d), d >= 1", "pass w[None], a[None] for one neuron"
        )
    for v, name in ((b, "b"), (T, "T")):
        if v.shape not in ((), (len(w),)):
            rule = f"() or ({len(w)},) is needed"
            checks.fail(f"{name}.shape", tuple(v.shape), rule, "pass one number per piece")
    parts = (w, a, b.expand(len(w)), T.expand(len(w)))
    w, a, b, T = (v if v.requires_grad else v.clone() for v in parts)  # tables must not go stale
    return w, a, b, T


def _gathered(pieces: Any) -> Piece:
    """A sequence of single pieces as one stacked piece, with its graph."""
    listed = list(pieces) if isinstance(pieces, Sequence | Iterator) and not isinstance(pieces, str) else []
    if not listed or not all(isinstance(p, tuple) and len(p) in (3, 4) for p in listed):
        rule = "a sequence of Piece(w, a, b, T), or one Piece of stacked arrays, is needed"
        checks.fail("pieces", f"{pieces!r:.60}", rule, "for no pieces use PiecewiseFlow.identity(d)")
    rows = [Piece(*p) for p in listed]
    d = checks.tensor(rows[0].w, "pieces[0].w").shape[-1:] or (1,)
    columns = zip("wabT", zip(*rows, strict=True), (d, d, (), ()), strict=True)
    stacks = (
        torch.stack([_shaped(value, f"pieces[{k}].{name}", shape) for k, value in enumerate(column)])
        for name, column, shape in columns
    )
    return Piece(*stacks)


def _shaped(value: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    """A vector or a number."""
    v = checks.tensor(value, name).double()
    if v.shape != shape:
        what = f"a vector {tuple(shape)}" if shape else "a number"
        checks.fail(
            f"{name}.shape",
            tuple(v.shape),
            f"{what} is needed",
            f"pass {name} with {shape[0]} entries" if shape else f"pass {name}[0]",
        )
    return v


def _numbers(value: Any) -> Tensor:
    """What a log-density returned, -inf allowed."""
    try:
        out = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        out = None
    if out is None or out.is_complex() or bool(out.detach().isnan().any()):
        checks.fail("base(x)", f"{value!r:.60}", "numbers are needed", "return one log-density per point")
    return out


def _sound(y: Tensor) -> Tensor:
    if not bool(torch.isfinite(y.detach()).all()):
        raise NotFiniteError(
            "the flow left the range of floating point; divide the times T of its pieces by 2, or the "
            "points by 10.",
            y,
        )
    return y
