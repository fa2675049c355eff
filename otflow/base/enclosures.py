"""Enclosures of a function on a box: of its values, its slope and its second derivatives.

A function written in torch is called with an `Enclosure` in place of a tensor, which answers the operations
that it knows with intervals for the value f, the gradient and the Hessian, and with bounds
low <= D^2 f <= high of the eigenvalues. For h(f),

    D^2 h(f) = h'(f) D^2 f + h''(f) grad f grad f^T,

so that h' [low, high] bounds it where h'' >= 0, whatever the gradient is; Gershgorin's circles bound what is
nearly diagonal, as sums over coordinates are. Any other operation raises, and then nothing is known
(Neumaier 1990, "Interval methods for systems of equations"; Adjiman, Dallwig, Floudas and Neumaier 1998, "A
global optimization method, alpha BB, for general twice-differentiable constrained NLPs", Section 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from otflow.base import intervals as iv
from otflow.base.captured import captured
from otflow.base.intervals import Interval

Shaper: TypeAlias = Callable[[np.ndarray], np.ndarray]
_KEPT: WeakKeyDictionary[Any, dict[Any, tuple[Any, Any]]] = WeakKeyDictionary()


class Known(NamedTuple):
    """What is known of a function on boxes (*batch,): the least value, and bounds of eigenvalues of D^2 f."""

    least: Tensor
    low: Tensor
    high: Tensor


def enclosed(f: Callable[..., Any], lower: Tensor, upper: Tensor, *, pair: bool = False) -> Known | None:
    """What is known of f on boxes with corners (*batch, d), possibly infinite; None if nothing is.

    With ``pair`` f is a function of two points (p + q) / 2^(1/2) and (p - q) / 2^(1/2), the boxes are of
    (p, q), and low is a number with D^2 f((u, v), (u, v)) >= low |u - v|^2 if f does not depend on p, or else
    with D^2 f((u, v), (u, v)) >= low (|u|^2 + |v|^2).

    >>> import torch
    >>> from otflow.base.enclosures import enclosed
    >>> far = torch.full((1,), torch.inf)
    >>> known = enclosed(lambda x: ((x**2 - 1) ** 2 / 4 + torch.cos(3 * x)).sum(-1), -far, far)
    >>> [round(a.item(), 6) for a in known[:2]]  # -1 at least, and -1 - 9
    [-1.0, -10.0]
    """
    box = Interval(lower.detach().cpu().double().numpy(), upper.detach().cpu().double().numpy())
    with np.errstate(all="ignore"), torch.no_grad():
        try:
            out = f(*_points(box)) if pair else f(variable(box))
        except Exception:  # a function of somebody else may refuse in its own way what is no tensor
            return None
    if not isinstance(out, Enclosure) or out.shape != lower.shape[:-1]:
        return None
    low = _of_pairs(out) if pair else out.low
    return Known(*(torch.from_numpy(np.array(a)).to(lower) for a in (out.value.lo, low, out.high)))


def _of_pairs(out: Enclosure) -> np.ndarray:
    """From |dp|^2 + |dq|^2 = |u|^2 + |v|^2 and |dq|^2 = |u - v|^2 / 2."""
    common = out.slope.size[: len(out.slope.lo) // 2]
    return np.where((common == 0).all(0), out.low / 2, out.low)


def everywhere(f: Callable[..., Any], like: Tensor, *, pair: bool = False) -> Known | None:
    """What is known of f on all of R^d, for points like these (*batch, d); kept as long as f is the same."""
    seen, place = captured(f), (like.shape, like.dtype, like.device, pair)
    if seen is not None:
        before, known = _KEPT.get(f, {}).get(place, (None, None))
        if before == seen:
            return known
    whole = torch.full_like(like, torch.inf)
    known = enclosed(f, -whole, whole, pair=pair)
    if seen is not None:
        _KEPT.setdefault(f, {})[place] = (seen, known)
    return known


def variable(box: Interval) -> Enclosure:
    """The point x itself, (*batch, d)."""
    d = box.lo.shape[-1]
    eye = np.eye(d).reshape(d, *[1] * (box.lo.ndim - 1), d)
    slope = iv.point(np.broadcast_to(eye, (d, *box.lo.shape)))
    zero = np.zeros(box.lo.shape)
    return Enclosure(box, slope, iv.point(np.zeros((d, d, *box.lo.shape))), zero, zero)


def _points(box: Interval) -> tuple[Enclosure, Enclosure]:
    """(p + q) / 2^(1/2) and (p - q) / 2^(1/2), with slopes in p that cancel exactly in the difference."""
    d, half = box.lo.shape[-1] // 2, 0.5**0.5
    both = variable(box)
    p, q = both[..., :d], both[..., d:]

    def at(side: float) -> Enclosure:
        slope = iv.point(half * (p.slope.lo + side * q.slope.lo))
        value = iv.scaled(iv.add(p.value, iv.scaled(q.value, side)), half)
        return Enclosure(value, slope, p.hess, p.low, p.high)

    return at(1.0), at(-1.0)


class Enclosure:
    """Intervals (*shape) for values, (d, *shape) for gradients, (d, d, *shape) for Hessians, and bounds."""

    __slots__ = ("hess", "high", "low", "slope", "value")
    __array_ufunc__ = None  # so that numpy numbers on the left leave the operation to us

    def __init__(
        self, value: Interval, slope: Interval, hess: Interval, low: np.ndarray, high: np.ndarray
    ) -> None:
        self.value, self.slope, self.hess = value, slope, hess
        self.low, self.high = _refined(hess, low, high)

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.value.lo.shape)

    @property
    def ndim(self) -> int:
        return self.value.lo.ndim

    @property
    def steep(self) -> np.ndarray:
        """The largest |grad f|."""
        return np.sqrt(np.square(self.slope.size).sum(0)) * (1 + iv.EPS * len(self.slope.lo))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Enclosure:
        found = OPERATIONS.get(getattr(func, "__name__", ""))
        return NotImplemented if found is None else found(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in OPERATIONS:
            raise AttributeError(f"the enclosure of {name} is not known")
        return lambda *args, **kwargs: OPERATIONS[name](self, *args, **kwargs)

    def __bool__(self) -> bool:
        raise TypeError("an enclosure is neither true nor false")

    def __getitem__(self, index: Any) -> Enclosure:
        index = index if isinstance(index, tuple) else (index,)
        good = index[0] is Ellipsis and all(i is None or isinstance(i, int | slice) for i in index[1:])
        if not good:
            raise TypeError("axes are counted from the last one")
        return self.reshaped(lambda a: a[index])

    def reshaped(self, f: Shaper) -> Enclosure:
        """The same numbers in another order; f counts axes from the last one."""
        value, slope, hess = (Interval(f(a.lo), f(a.hi)) for a in (self.value, self.slope, self.hess))
        return Enclosure(value, slope, hess, f(self.low), f(self.high))

    def lifted(self, ndim: int) -> Enclosure:
        """With axes in front, up to ``ndim``."""
        extra, own = (1,) * (ndim - self.ndim), self.ndim
        if not extra:
            return self
        return self.reshaped(lambda a: a.reshape(*a.shape[: a.ndim - own], *extra, *a.shape[a.ndim - own :]))

    def __add__(self, other: Any) -> Enclosure:
        return add(self, other)

    def __mul__(self, other: Any) -> Enclosure:
        return multiply(self, other)

    def __sub__(self, other: Any) -> Enclosure:
        return add(self, negative(other))

    def __rsub__(self, other: Any) -> Enclosure:
        return add(negative(self), other)

    def __neg__(self) -> Enclosure:
        return negative(self)

    def __truediv__(self, other: Any) -> Enclosure:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Enclosure:
        return multiply(other, raised(self, -1))

    def __pow__(self, p: Any) -> Enclosure:
        return raised(self, p)

    def __matmul__(self, A: Any) -> Enclosure:
        return matmul(self, A)

    __radd__, __rmul__ = __add__, __mul__


def _refined(hess: Interval, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of eigenvalues, or those by Gershgorin's circles where these are better."""
    d = len(hess.lo)
    if d == 1:
        return np.fmax(low, hess.lo[0, 0]), np.fmin(high, hess.hi[0, 0])
    k, size = np.arange(d), hess.size
    apart = (size.sum(1) - size[k, k]) * (1 + iv.EPS * d) if np.isfinite(size).all() else _others(size)
    return np.fmax(low, (hess.lo[k, k] - apart).min(0)), np.fmin(high, (hess.hi[k, k] + apart).max(0))


def _others(size: np.ndarray) -> np.ndarray:
    """Sums over the off-diagonal entries of each row, where diagonal entries may be infinite."""
    off = size.copy()
    k = np.arange(len(size))
    off[k, k] = 0.0
    return off.sum(1) * (1 + iv.EPS * len(size))


# --- operations ----------------------------------------------------------------------------------------


def constant(a: Any) -> np.ndarray:
    out = a.detach().cpu().double().numpy() if isinstance(a, Tensor) else np.asarray(a, dtype=np.float64)
    if not bool(np.isfinite(out).all()):
        raise ValueError("a constant is finite")
    return out


def add(f: Any, g: Any) -> Enclosure:
    if not isinstance(f, Enclosure):
        f, g = g, f
    if not isinstance(g, Enclosure):
        c = constant(g)
        f = f.lifted(c.ndim)
        return _alike(Enclosure(iv.add(f.value, iv.point(c)), f.slope, f.hess, f.low, f.high))
    ndim = max(f.ndim, g.ndim)
    f, g = f.lifted(ndim), g.lifted(ndim)
    both = (f.value, g.value), (f.slope, g.slope), (f.hess, g.hess)
    value, slope, hess = (iv.add(a, b) for a, b in both)
    return Enclosure(value, slope, hess, *iv.add(Interval(f.low, f.high), Interval(g.low, g.high)))


def _alike(f: Enclosure) -> Enclosure:
    """With derivatives broadcast to the shape of the values."""
    s, d = f.value.lo.shape, len(f.slope.lo)
    slope = Interval(*(np.broadcast_to(a, (d, *s)) for a in f.slope))
    hess = Interval(*(np.broadcast_to(a, (d, d, *s)) for a in f.hess))
    return Enclosure(f.value, slope, hess, np.broadcast_to(f.low, s), np.broadcast_to(f.high, s))


def negative(f: Any) -> Any:
    if not isinstance(f, Enclosure):
        return -f
    value, slope, hess = (iv.negative(a) for a in (f.value, f.slope, f.hess))
    return Enclosure(value, slope, hess, -f.high, -f.low)


def multiply(f: Any, g: Any) -> Enclosure:
    if not isinstance(f, Enclosure):
        f, g = g, f
    if not isinstance(g, Enclosure):
        c = constant(g)
        f = f.lifted(c.ndim)
        some = (f.value, f.slope, f.hess, Interval(f.low, f.high))
        value, slope, hess, bounds = (
            iv.scaled(a, float(c)) if c.ndim == 0 else iv.multiply(a, iv.point(c)) for a in some
        )
        return Enclosure(value, slope, hess, *bounds)
    if f is g:
        return applied(f, iv.square)
    ndim = max(f.ndim, g.ndim)
    f, g = f.lifted(ndim), g.lifted(ndim)
    slope = iv.add(iv.multiply(f.value, g.slope), iv.multiply(g.value, f.slope))
    mixed = iv.multiply(Interval(*(a[:, None] for a in f.slope)), Interval(*(a[None] for a in g.slope)))
    both = iv.add(mixed, Interval(*(a.swapaxes(0, 1) for a in mixed)))
    own = iv.add(iv.multiply(f.value, g.hess), iv.multiply(g.value, f.hess))
    bounds = iv.add(
        iv.multiply(f.value, Interval(g.low, g.high)), iv.multiply(g.value, Interval(f.low, f.high))
    )
    twice = 2 * iv.multiply(iv.point(f.steep), iv.point(g.steep)).hi  # a b^T + b a^T is within 2 |a| |b|
    low, high = iv.add(bounds, Interval(-twice, twice))
    return Enclosure(iv.multiply(f.value, g.value), slope, iv.add(own, both), low, high)


def divide(f: Any, g: Any) -> Enclosure:
    if not isinstance(g, Enclosure):
        c = constant(g)
        if bool((c == 0).any()):
            raise ValueError("0 is no denominator")
        return multiply(f, 1 / c)
    return multiply(f, raised(g, -1))


def applied(f: Enclosure, h: Callable[[Interval], iv.Triple]) -> Enclosure:
    """h(f) for a function h of one variable."""
    value, h1, h2 = h(f.value)
    rank_one = iv.multiply(Interval(*(a[:, None] for a in f.slope)), Interval(*(a[None] for a in f.slope)))
    k = np.arange(len(f.slope.lo))
    squares = iv.power(f.slope, 2)
    rank_one.lo[k, k], rank_one.hi[k, k] = squares.lo, squares.hi
    hess = iv.add(iv.multiply(h1, f.hess), iv.multiply(h2, rank_one))
    steep = Interval(np.zeros_like(f.steep), np.square(f.steep) * (1 + iv.EPS))
    bend = iv.multiply(h2, steep)  # the eigenvalues of h'' grad f grad f^T: this one, and 0
    bend = Interval(np.minimum(bend.lo, 0.0), np.maximum(bend.hi, 0.0))
    low, high = iv.add(iv.multiply(h1, Interval(f.low, f.high)), bend)
    return Enclosure(value, iv.multiply(h1, f.slope), hess, low, high)


def raised(f: Any, p: Any) -> Enclosure:
    p = p.item() if isinstance(p, Tensor) else p
    if not isinstance(f, Enclosure):
        raise TypeError("the exponent is a number")
    if p == 0.5:
        return applied(f, iv.sqrt)
    if p != int(p):
        raise ValueError("the exponent is whole")
    return f if p == 1 else applied(f, lambda a: iv.powers(a, int(p)))


def summed(f: Enclosure, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Enclosure:
    dim = axis if dim is None else dim
    if isinstance(dim, tuple | list) and len(dim) == 1:
        dim = dim[0]
    if not isinstance(dim, int) or dim >= 0:
        raise TypeError("axes are counted from the last one")
    parts = (iv.total(a, dim, keepdims=keepdim) for a in (f.value, f.slope, f.hess, Interval(f.low, f.high)))
    value, slope, hess, bounds = parts
    return Enclosure(value, slope, hess, *bounds)


def mean(f: Enclosure, dim: Any = None, keepdim: bool = False) -> Enclosure:
    return multiply(summed(f, dim, keepdim), 1 / f.shape[dim])


def matmul(f: Any, A: Any) -> Enclosure:
    """x A for rows x and a constant matrix, or x.a for a vector a."""
    if not isinstance(f, Enclosure):
        raise TypeError("the constant stands on the right")
    a = constant(A)
    if a.ndim == 1:
        return summed(multiply(f, a), -1)
    if a.ndim > 2 and f.ndim < 2:
        raise TypeError("one matrix is needed")
    # x_i A_ij: rows keep their axis, (*batch, n, i) times (*batch, 1, i, j)
    spread = f.reshaped(lambda b: b[..., None])
    return summed(multiply(spread, a if a.ndim == 2 else a[..., None, :, :]), -2)


def _of(h: Callable[[Interval], iv.Triple]) -> Callable[[Enclosure], Enclosure]:
    return lambda f: applied(f, h)


def _reversed(f: Any, g: Any) -> Enclosure:
    return add(negative(f), g)


OPERATIONS: dict[str, Callable[..., Enclosure]] = {
    **dict.fromkeys(("add", "__add__", "__radd__"), add),
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), multiply),
    **{name: (lambda f, g: add(f, negative(g))) for name in ("sub", "subtract", "__sub__")},
    **dict.fromkeys(("rsub", "__rsub__"), _reversed),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), divide),
    "__rtruediv__": lambda f, g: divide(g, f),
    **dict.fromkeys(("neg", "negative", "__neg__"), negative),
    **dict.fromkeys(("pow", "__pow__"), raised),
    **dict.fromkeys(("matmul", "__matmul__"), matmul),
    "sum": summed,
    "mean": mean,
    "unsqueeze": lambda f, dim: f.reshaped(lambda a: np.expand_dims(a, _last(dim))),
    "squeeze": lambda f, dim: f.reshaped(lambda a: a.squeeze(_last(dim))),
    "double": lambda f: f,
    "clone": lambda f: f,
    "reciprocal": lambda f: raised(f, -1),
    **{name: _of(getattr(iv, name)) for name in ("square", "exp", "log", "sqrt", "cos", "sin")},
    "tanh": _of(iv.tanh),
    "cosh": _of(iv.cosh),
    **{name: _of(iv.absolute) for name in ("abs", "absolute", "__abs__")},
    "sigmoid": _of(iv.sigmoid),
    "softplus": _of(iv.softplus),
    "relu": _of(iv.relu),
    "log1p": lambda f: applied(add(f, 1.0), iv.log),
    "expm1": lambda f: add(applied(f, iv.exp), -1.0),
}


def _last(dim: int) -> int:
    if dim >= 0:
        raise TypeError("axes are counted from the last one")
    return dim
