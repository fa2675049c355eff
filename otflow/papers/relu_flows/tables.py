"""Runs of pieces x' = w (a.x + b)_+ along one axis as tables: a piecewise linear map, looked up.

A shear (a = s e_j, w_j = 0) adds to x a piecewise linear function of x_j; a stretch (a = s e_j, w = c e_j) is
a monotone piecewise linear map of x_j. Both are closed under composition as long as j stays the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from otflow.base.numbers import Array

Index: TypeAlias = NDArray[np.int64]
FREE = -1  # the axis of a translation, which fits into any run
SHORTEST = 2  # runs from this length on are worth a table


class Table(ABC):
    """A map of columns (d, n) that was put together from several pieces."""

    @abstractmethod
    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor | None]:
        """The columns afterwards, and what is to be added to log det (n,), if anything."""


@dataclass(frozen=True)
class Shear(Table):
    """x_to += value[m] + slope[m] (x_j - foot[m]), m = number of knots below x_j."""

    axis: int
    to: Tensor  # (k,)
    knots: Tensor  # (L,)
    foot: Tensor  # (L + 1,)
    value: Tensor  # (k, L + 1)
    slope: Tensor  # (k, L + 1)

    def __call__(self, X: Tensor) -> tuple[Tensor, None]:
        x = X[self.axis]
        m = torch.searchsorted(self.knots, x.detach().contiguous())
        return X.index_add(0, self.to, self.value[:, m] + self.slope[:, m] * (x - self.foot[m])), None


@dataclass(frozen=True)
class Stretch(Table):
    """x_j -> image[m] + slope[m] (x_j - foot[m]), with log det gain[m]."""

    axis: int
    knots: Tensor  # (L,)
    foot: Tensor  # (L + 1,)
    image: Tensor  # (L + 1,)
    slope: Tensor  # (L + 1,)
    gain: Tensor  # (L + 1,)

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:
        x = X[self.axis]
        m = torch.searchsorted(self.knots, x.detach().contiguous())
        y = self.image[m] + self.slope[m] * (x - self.foot[m])
        return X.index_copy(0, torch.tensor([self.axis]), y[None]), self.gain[m]


def tabulate(w: Tensor, a: Tensor, b: Tensor, T: Tensor) -> Iterator[Table | int]:
    """The pieces in order of time: a table for each run along one axis, else the number of the piece."""
    W, A, B, S = (v.detach().numpy() for v in (w, a, b, T))
    for kind, axis, run in _runs(W, A):
        if kind == "other" or len(run) < SHORTEST:
            yield from run
        else:
            table = _table(kind, axis, W[run], A[run, axis], B[run], S[run])
            yield from run if table is None else [table]


def _table(kind: str, axis: int, W: Array, s: Array, b: Array, T: Array) -> Table | None:
    """None if numbers leave floating point on the way: the pieces are then taken one by one."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            return _shear(axis, W, s, b, T) if kind == "shear" else _stretch(axis, W[:, axis], s, b, T)
    except (OverflowError, FloatingPointError):
        return None


# --- runs ----------------------------------------------------------------------------------------------


def _runs(W: Array, A: Array) -> Iterator[tuple[str, int, list[int]]]:
    """Kind, axis and numbers of the pieces of each run."""
    kind, axis, run = "", FREE, list[int]()
    for k in np.flatnonzero(W.any(axis=1)):  # a piece without w does nothing
        w = W[k]
        new, on = _kind(w, A[k])
        if run and new == "free" and _joins(kind, axis, w):
            run.append(int(k))
        elif run and kind == "free" and new in ("shear", "stretch") and _all_join(new, on, W[run]):
            kind, axis, run = new, on, [*run, int(k)]
        elif run and (new, on) == (kind, axis) and new != "other":
            run.append(int(k))
        else:
            if run:
                yield _named(kind), axis, run
            kind, axis, run = new, on, [int(k)]
    if run:
        yield _named(kind), axis, run


def _kind(w: Array, a: Array) -> tuple[str, int]:
    reads, writes = np.flatnonzero(a), np.flatnonzero(w)
    if len(reads) == 0:
        return "free", FREE
    if len(reads) == 1 and w[reads[0]] == 0:
        return "shear", int(reads[0])
    if len(reads) == 1 and len(writes) == 1 and writes[0] == reads[0]:
        return "stretch", int(reads[0])
    return "other", FREE


def _joins(kind: str, axis: int, w: Array) -> bool:
    """Whether a translation along w commutes well enough to be part of a run."""
    if kind == "shear":
        return bool(w[axis] == 0)
    if kind == "stretch":
        return bool((np.delete(w, axis) == 0).all())
    return kind == "free"


def _all_join(kind: str, axis: int, W: Array) -> bool:
    return all(_joins(kind, axis, w) for w in W)


def _named(kind: str) -> str:
    """Translations alone are left as they are: there is nothing to look up."""
    return "other" if kind == "free" else kind


# --- tables --------------------------------------------------------------------------------------------


def _shear(axis: int, W: Array, s: Array, b: Array, T: Array) -> Shear:
    """sum_k w_k T_k (s_k x + b_k)_+, in rational arithmetic: steep pieces that cancel leave no rounding."""
    to = np.flatnonzero(np.any(W != 0, axis=0))
    moving = np.flatnonzero(s).astype(np.int64)
    order = moving[np.argsort(-b[moving] / s[moving], kind="stable")]
    knots = -b[order] / s[order]
    # feet are the points nearest to 0 of their intervals: then knots far away cost no digits
    foot = np.clip(0.0, np.append(-np.inf, knots), np.append(knots, np.inf))
    columns = [_summed(W[:, i], s, b, T, order, foot) for i in to]
    value, slope = (np.array([c[part] for c in columns]).reshape(len(to), -1) for part in (0, 1))
    parts = (torch.from_numpy(np.ascontiguousarray(v)) for v in (to, knots, foot, value, slope))
    return Shear(axis, *parts)


def _summed(
    w: Array, s: Array, b: Array, T: Array, order: Index, foot: Array
) -> tuple[list[float], list[float]]:
    """Values at the feet and slopes of the intervals between knots, exact up to the last rounding."""
    c = [Fraction(float(x)) * Fraction(float(t)) for x, t in zip(w, T, strict=True)]
    S, B = [Fraction(float(x)) for x in s], [Fraction(float(x)) for x in b]
    P = [Fraction(float(x)) for x in foot]
    level = sum((c[k] * max(B[k], Fraction(0)) for k in range(len(c)) if not S[k]), Fraction(0))
    level += sum((c[k] * B[k] for k in order if S[k] < 0), Fraction(0))
    slope = sum((c[k] * S[k] for k in order if S[k] < 0), Fraction(0))
    values, slopes = [level + slope * P[0]], [slope]
    for m, k in enumerate(order, start=1):  # a knot may be rounded, but the lines that meet there are not
        level += c[k] * (B[k] if S[k] > 0 else -B[k])
        slope += c[k] * abs(S[k])
        values.append(level + slope * P[m])
        slopes.append(slope)
    return [float(v) for v in values], [float(v) for v in slopes]


def _stretch(axis: int, w: Array, s: Array, b: Array, T: Array) -> Stretch:
    """The composition of maps y -> y + (y - q) (e^g - 1) on one side of q = -b / s, g = s w T, and shifts."""
    p, y = np.zeros(1), np.zeros(1)  # a knot without a kink: the start is the identity
    gain = np.zeros(2)
    for k in range(len(w)):
        if s[k] == 0:
            y = y + w[k] * T[k] * max(b[k], 0.0)
            continue
        q, g = -b[k] / s[k], s[k] * w[k] * T[k]
        p, y, gain = _with_knot(p, y, gain, q)
        at = int(np.searchsorted(y, q))
        side = np.arange(len(y)) > at if s[k] > 0 else np.arange(len(y)) < at
        y = np.where(side, y + (y - q) * np.expm1(g), y)
        gain = gain + g * (np.arange(len(gain)) > at if s[k] > 0 else np.arange(len(gain)) <= at)
    near = [_near(p, m) for m in range(len(gain))]
    foot, image = p[near], y[near]
    with np.errstate(over="ignore"):  # infinite slopes are found out at the points that meet them
        slope = np.exp(gain)
    return Stretch(axis, *(torch.from_numpy(v) for v in (p, foot, image, slope, gain)))


def _with_knot(p: Array, y: Array, gain: Array, q: float) -> tuple[Array, Array, Array]:
    """A knot whose image is q, if there is none yet."""
    m = int(np.searchsorted(y, q))
    if m < len(y) and y[m] == q:
        return p, y, gain
    near = _near(p, m)
    new = p[near] + (q - y[near]) * np.exp(-gain[m])
    return np.insert(p, m, new), np.insert(y, m, q), np.insert(gain, m, gain[m])


def _near(p: Array, m: int) -> int:
    """The end of interval m that is nearer to 0, itself a knot: far knots cost no digits."""
    return m - 1 if m and (m == len(p) or p[m - 1] >= 0) else m
