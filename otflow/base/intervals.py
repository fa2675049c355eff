"""Intervals of real numbers, rounded outwards, and functions on them with two derivatives.

0 times infinity is 0, as for the product of two sets of real numbers one of which is {0}. Callers silence the
warnings of numpy about infinities, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

# Chosen: elementary functions err by a few units in the last place.
EPS = 8 * float(np.finfo(np.float64).eps)


class Interval(NamedTuple):
    """All numbers between ``lo`` and ``hi``, entry by entry."""

    lo: np.ndarray
    hi: np.ndarray

    @property
    def size(self) -> np.ndarray:
        """The largest absolute value."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))


Triple: TypeAlias = tuple[Interval, Interval, Interval]  # of a function and its two derivatives


def outwards(lo: np.ndarray, hi: np.ndarray) -> Interval:
    """A little more than [lo, hi]; all numbers where a bound is none."""
    lo, hi = lo - EPS * np.abs(lo), hi + EPS * np.abs(hi)
    return Interval(np.where(lo == lo, lo, -np.inf), np.where(hi == hi, hi, np.inf))


def point(a: np.ndarray) -> Interval:
    return Interval(a, a)


def add(a: Interval, b: Interval) -> Interval:
    return outwards(a.lo + b.lo, a.hi + b.hi)


def negative(a: Interval) -> Interval:
    return Interval(-a.hi, -a.lo)


def multiply(a: Interval, b: Interval) -> Interval:
    # NaN is 0 times infinity, which is 0, and 0 is among the other products unless these are NaN, too.
    p, q, r, s = a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi
    lo, hi = np.fmin(np.fmin(p, q), np.fmin(r, s)), np.fmax(np.fmax(p, q), np.fmax(r, s))
    return outwards(np.where(lo == lo, lo, 0.0), np.where(hi == hi, hi, 0.0))


def scaled(a: Interval, c: float) -> Interval:
    """c a for one number c."""
    if c == 0:
        return point(np.zeros_like(a.lo))
    return outwards(a.lo * c, a.hi * c) if c > 0 else outwards(a.hi * c, a.lo * c)


def total(a: Interval, axis: int, *, keepdims: bool = False) -> Interval:
    """The sum over an axis."""
    n = a.lo.shape[axis]
    lo, hi = a.lo.sum(axis, keepdims=keepdims), a.hi.sum(axis, keepdims=keepdims)
    below, above = (n * EPS * np.abs(b).sum(axis, keepdims=keepdims) for b in a)
    return outwards(lo - below, hi + above)


def power(a: Interval, p: int) -> Interval:
    """All x^p, for a whole p >= 0."""
    if p == 0:
        return point(np.ones_like(a.lo))
    lo, hi = a.lo**p, a.hi**p
    if p % 2:
        return outwards(lo, hi)
    least = np.where((a.lo <= 0) & (a.hi >= 0), 0.0, np.minimum(lo, hi))
    return outwards(least, np.maximum(lo, hi))


def rising(f: Callable[[np.ndarray], np.ndarray], a: Interval) -> Interval:
    """The image under an increasing function."""
    return outwards(f(a.lo), f(a.hi))


def reciprocal(a: Interval) -> Interval:
    """All 1 / x, for an interval on one side of 0."""
    if not bool(((a.lo >= 0) | (a.hi <= 0)).all()):
        raise ValueError("0 is no denominator")
    one, two = 1 / a.hi, 1 / a.lo
    zero = a.hi <= 0
    lo = np.where(zero & (a.hi == 0), -np.inf, one)
    hi = np.where(~zero & (a.lo == 0), np.inf, two)
    return outwards(lo, hi)


def cosine(a: Interval) -> Interval:
    """All cos(x): 1 if a multiple of 2 pi is among them, -1 if an odd multiple of pi is."""
    far = (a.size > 1e8) | ~np.isfinite(a.size)
    lo, hi = np.where(far, 0.0, a.lo), np.where(far, 2 * math.pi, a.hi)
    slack = 1e-15 * (1 + np.maximum(np.abs(lo), np.abs(hi)))  # of the arguments: the slope is at most 1
    turn = 2 * math.pi

    def meets(phase: float) -> np.ndarray:
        return np.floor((hi + slack - phase) / turn) >= np.ceil((lo - slack - phase) / turn)

    ends = np.cos(lo), np.cos(hi)
    top = np.where(meets(0.0), 1.0, np.minimum(np.maximum(*ends) + slack, 1.0))
    low = np.where(meets(math.pi), -1.0, np.maximum(np.minimum(*ends) - slack, -1.0))
    return Interval(low, top)


# --- functions with two derivatives ------------------------------------------------------------------------


def square(a: Interval) -> Triple:
    return powers(a, 2)


def powers(a: Interval, p: int) -> Triple:
    """x^p with its derivatives, for a whole p; below 0 on one side of 0."""
    if p < 0:
        return chained(a, _inverse, lambda r: powers(r, -p))
    slope = scaled(power(a, p - 1), p) if p > 0 else point(np.zeros_like(a.lo))
    bend = scaled(power(a, p - 2), p * (p - 1)) if p > 1 else point(np.zeros_like(a.lo))
    return power(a, p), slope, bend


def _inverse(a: Interval) -> Triple:
    r = reciprocal(a)
    return r, negative(power(r, 2)), scaled(power(r, 3), 2)


def chained(a: Interval, inner: Callable[[Interval], Triple], outer: Callable[[Interval], Triple]) -> Triple:
    """outer(inner(x)) with its derivatives."""
    g, g1, g2 = inner(a)
    h, h1, h2 = outer(g)
    return h, multiply(h1, g1), add(multiply(h1, g2), multiply(h2, power(g1, 2)))


def exp(a: Interval) -> Triple:
    e = rising(np.exp, a)
    return e, e, e


def log(a: Interval) -> Triple:
    if not bool((a.lo >= 0).all()):
        raise ValueError("a logarithm is of positive numbers")
    r = reciprocal(a)
    return rising(np.log, a), r, negative(power(r, 2))


def sqrt(a: Interval) -> Triple:
    if not bool((a.lo >= 0).all()):
        raise ValueError("a root is of positive numbers")
    s = rising(np.sqrt, a)
    r = reciprocal(s)
    return s, scaled(r, 0.5), scaled(power(r, 3), -0.25)


def cos(a: Interval) -> Triple:
    c = cosine(a)
    return c, negative(_sine(a)), negative(c)


def sin(a: Interval) -> Triple:
    s = _sine(a)
    return s, cosine(a), negative(s)


def _sine(a: Interval) -> Interval:
    return cosine(add(a, point(np.asarray(-math.pi / 2))))


def tanh(a: Interval) -> Triple:
    t = rising(np.tanh, a)
    slope = meet(add(point(np.ones_like(t.lo)), negative(power(t, 2))), 0.0, 1.0)
    return t, slope, meet(scaled(multiply(t, slope), -2), -0.7699, 0.7699)  # 4 / 3^(3/2) = 0.7698


def sigmoid(a: Interval) -> Triple:
    """(1 + tanh(x / 2)) / 2."""
    t, slope, bend = tanh(scaled(a, 0.5))
    value = scaled(add(point(np.ones_like(t.lo)), t), 0.5)
    return meet(value, 0.0, 1.0), scaled(slope, 0.25), scaled(bend, 0.125)


def softplus(a: Interval) -> Triple:
    s, slope, _ = sigmoid(a)
    return rising(lambda x: np.logaddexp(x, 0.0), a), s, slope


def absolute(a: Interval) -> Triple:
    """The second derivative is a mass at 0, which counts as any number >= 0."""
    size = Interval(np.where((a.lo <= 0) & (a.hi >= 0), 0.0, np.minimum(np.abs(a.lo), np.abs(a.hi))), a.size)
    slope = Interval(np.where(a.lo > 0, 1.0, -1.0), np.where(a.hi < 0, -1.0, 1.0))
    return size, slope, _mass(a)


def relu(a: Interval) -> Triple:
    slope = Interval(np.where(a.lo > 0, 1.0, 0.0), np.where(a.hi < 0, 0.0, 1.0))
    return Interval(np.maximum(a.lo, 0), np.maximum(a.hi, 0)), slope, _mass(a)


def _mass(a: Interval) -> Interval:
    return Interval(np.zeros_like(a.lo), np.where((a.lo <= 0) & (a.hi >= 0), np.inf, 0.0))


def cosh(a: Interval) -> Triple:
    up, down = rising(np.exp, a), rising(np.exp, negative(a))
    c, s = scaled(add(up, down), 0.5), rising(np.sinh, a)
    c = Interval(np.maximum(c.lo, 1.0), c.hi)
    return c, s, c


def meet(a: Interval, lo: float, hi: float) -> Interval:
    """The part within [lo, hi], which is known to hold all."""
    return Interval(np.maximum(a.lo, lo), np.minimum(a.hi, hi))
