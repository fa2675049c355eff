"""Laws on the line for transport by ReLU flows: what is asked of them, mixtures, and how heavy tails are.

`otflow.papers.relu_flows` offers `Law` and `Mixture1d`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import logsumexp

from otflow.base import checks
from otflow.base.numbers import Array

BISECTIONS = 200  # at most: each halves a bracket, which ends at neighbouring numbers
DEEP = (1e-60, 1e-30, 1e-16, 1e-12)  # levels at which tails are read off: the first at which laws are sound
FAINT = (1e-120, 1e-240)  # levels from which a density that underflows is continued
ROUND = 1e-15  # what is this near to the end of a support, relatively, is at the end
SLOW = 0.005  # exponents of u g(u) up to here count as no decay
METHODS = ("cdf", "ppf", "isf", "logpdf")


class Law(Protocol):
    """A law on the line; every frozen continuous distribution of ``scipy.stats`` is one."""

    def cdf(self, x: Any) -> Any:
        """F(x)."""

    def ppf(self, q: Any) -> Any:
        """The quantile, F^-1(q)."""

    def isf(self, q: Any) -> Any:
        """The quantile from above, F^-1(1 - q), accurate for small q."""

    def logpdf(self, x: Any) -> Any:
        """log F'(x)."""


class Mixture1d:
    """sum_i p_i law_i: densities and distribution functions add up, quantiles are found by bisection.

    Args:
        weights: (m,), >= 0, of sum 1.
        laws: m laws, for instance of ``scipy.stats``.

    >>> from otflow.papers.relu_flows import Mixture1d
    >>> from scipy.stats import norm
    >>> law = Mixture1d([0.3, 0.7], [norm(-2, 0.5), norm(1, 0.8)])
    >>> round(float(law.ppf(0.3)), 4), round(float(law.cdf(law.ppf(1e-9))) * 1e9, 4)
    (-0.9459, 1.0)
    """

    def __init__(self, weights: Any, laws: Sequence[Law]) -> None:
        if not isinstance(laws, Sequence):
            checks.fail("laws", f"{laws!r:.60}", "a list of laws is needed", "pass [law, law, ..]")
        self.laws = tuple(is_law(law, f"laws[{i}]") for i, law in enumerate(laws))
        p = checks.tensor(weights, "weights").detach().double()
        if p.shape != (len(self.laws),) or not len(self.laws):
            checks.fail(
                "weights.shape",
                tuple(p.shape),
                f"one per law, ({len(self.laws)},)",
                f"pass {len(self.laws)} weights, one for each law",
            )
        self.weights: Array = checks.probability(p, "weights", "divide them by their sum").numpy()

    def cdf(self, x: Any) -> Array:
        """sum_i p_i F_i(x)."""
        return np.asarray(sum(p * law.cdf(x) for p, law in zip(self.weights, self.laws, strict=True)))

    def sf(self, x: Any) -> Array:
        """sum_i p_i (1 - F_i(x)), accurate where it is small if the laws have ``sf``."""
        parts = (
            p * (law.sf(x) if hasattr(law, "sf") else 1 - law.cdf(x))
            for p, law in zip(self.weights, self.laws, strict=True)
        )
        return np.asarray(sum(parts))

    def logpdf(self, x: Any) -> Array:
        """log sum_i p_i F_i'(x)."""
        used = [(p, law) for p, law in zip(self.weights, self.laws, strict=True) if p > 0]
        return np.asarray(logsumexp(np.stack([np.log(p) + law.logpdf(x) for p, law in used]), axis=0))

    def ppf(self, q: Any) -> Array:
        """The y with F(y) = q, to rounding."""
        ends = np.stack([np.asarray(law.ppf(q), dtype=float) for law in self._used()])
        return _bisect(lambda y: self.cdf(y) < q, ends.min(0), ends.max(0), np.asarray(q) <= 0)

    def isf(self, q: Any) -> Array:
        """The y with 1 - F(y) = q, to rounding."""
        ends = np.stack([np.asarray(law.isf(q), dtype=float) for law in self._used()])
        return _bisect(lambda y: self.sf(y) > q, ends.min(0), ends.max(0), np.asarray(q) >= 1)

    def _used(self) -> list[Law]:
        return [law for p, law in zip(self.weights, self.laws, strict=True) if p > 0]

    def __repr__(self) -> str:
        return f"Mixture1d({len(self.laws)} laws)"


def _bisect(below: Any, low: Array, high: Array, first: Any) -> Array:
    """The place in [low, high] where ``below`` turns from true to false; low itself where ``first``."""
    high = np.where(first, low, high)
    low = np.where(np.isinf(high), high, low)  # levels 0 and 1 of laws without end
    apart = low != high
    for _ in range(BISECTIONS):
        width = np.subtract(high, low, where=apart, out=np.zeros(apart.shape))
        if bool((width <= 2e-16 * np.abs(low)).all()):
            break
        middle = low + width / 2
        left = below(middle)
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return np.asarray(low + width / 2)


def is_law(law: Any, name: str) -> Any:
    """A law, or an error that says what is missing."""
    missing = [m for m in METHODS if not callable(getattr(law, m, None))]
    if missing or isinstance(law, type):
        rule = f"a law with {', '.join(METHODS)} is needed; it lacks {', '.join(missing) or 'an instance'}"
        checks.fail(name, f"{law!r:.60}", rule, "use scipy.stats.norm(0, 1), say, or Mixture1d")
    return law


def on_the_line(law: Any, name: str) -> Any:
    """One law, not an array of laws, with all its parameters."""
    try:
        shape = np.shape(is_law(law, name).ppf(0.5))
    except TypeError:
        checks.fail(name, f"{law!r:.60}", "its quantiles need parameters", "use scipy.stats.gamma(3), say")
    if shape:
        checks.fail(f"{name}.ppf(0.5).shape", shape, "one law is needed", "give it numbers, not arrays")
    return law


# --- tails ---------------------------------------------------------------------------------------------


class TailEnd(NamedTuple):
    """Where a piecewise linear map from base to target goes on as an affine one: x -> y + slope (x - at)."""

    at: Any
    y: Any
    slope: Any
    upper: bool

    def quantile(self, law: Law, u: Any) -> Array:
        """The place beyond which a mass u is left."""
        with np.errstate(all="ignore"):
            return np.asarray(law.isf(u) if self.upper else law.ppf(u), dtype=float)

    def edge(self, law: Law) -> Array:
        """The end of the support, infinite if there is none or if it is not known."""
        q, out = self.quantile(law, 0.0), np.inf if self.upper else -np.inf
        return np.where(np.isnan(q), out, q)

    def within(self, law: Law, x: Array, node: Any) -> Array:
        """x, moved off the end of the support by a rounding: densities may be 0 or infinite there."""
        edge = self.edge(law)
        with np.errstate(invalid="ignore"):
            margin = ROUND * (np.abs(edge) + np.abs(edge - node))
            inside = np.minimum(x, edge - margin) if self.upper else np.maximum(x, edge + margin)
        return np.where(np.isinf(edge), x, inside)

    def uncovered(self, base: Law, target: Law) -> Array:
        """Whether the target has mass beyond the image of the support of base, by more than roundings."""
        end = self.edge(target)
        with np.errstate(invalid="ignore"):
            image = self.y + self.slope * (self.edge(base) - self.at)
            size = np.abs(self.y) + np.abs(image - self.y) + np.where(np.isinf(end), 0.0, np.abs(end))
            return np.asarray((end - image if self.upper else image - end) > 1e3 * ROUND * size)

    def log_ratio(self, base: Law, target: Law, y: Array) -> Array:
        """log of the density of the target over that of the image of base, where the map is affine."""
        with np.errstate(all="ignore"):
            y = self.within(target, y, self.y)
            x = self.at + (y - self.y) / self.slope
            x = np.where(self.uncovered(base, target), x, self.within(base, x, self.at))
            return np.asarray(target.logpdf(y) - self._log_base(base, x) + np.log(self.slope), dtype=float)

    def _log_base(self, base: Law, x: Array) -> Array:
        """log-density of base; where it underflows, continued as a power of |x|, as e^-|x|^r has it."""
        log, far = np.asarray(base.logpdf(x), dtype=float), self.quantile(base, np.array(FAINT))
        if not bool(np.isneginf(log).any() and np.isinf(self.edge(base)) and np.isfinite(far).all()):
            return log
        near, deep = base.logpdf(far)
        power = np.log(deep / near) / np.log(far[1] / far[0])
        return np.where(np.isneginf(log), deep * (x / far[1]) ** power, log)


def depth(base: Law, target: Law, end: TailEnd) -> float | None:
    """The deepest level at which quantiles and densities can be relied upon, if any.

    Quantiles of many laws of scipy fail far out: the mass between those of u and u / 2 must be about u / 2.
    """
    for u in DEEP:
        with np.errstate(all="ignore"):
            q = np.stack([end.quantile(target, u), end.quantile(target, u / 2)])
            log = np.asarray(target.logpdf(q)).mean(0) + np.log(np.abs(q[1] - q[0]))
            sound = np.isfinite(q).all(0) & (np.abs(log - np.log(u / 2)) < np.log(10.0))
            sound |= np.isfinite(end.edge(target))
            known = np.isfinite(end.log_ratio(base, target, q[0])) | end.uncovered(base, target)
        if bool((sound & known).all()):
            return u
    return None


def decay(base: Law, target: Law, end: TailEnd) -> Array:
    """p with u g(u) ~ u^p for u -> 0, g = log ratio at the quantile u of the target; KL = inf if p <= 0.

    Where g <= 0, or u g is below 1e-12 already, or tails are not known, p = inf; where the image of base has
    no mass, p = -inf.
    """
    last = depth(base, target, end)
    if last is None:
        return np.where(end.uncovered(base, target), -np.inf, np.inf)
    logs = []
    for u in (math.sqrt(last), last):
        g = end.log_ratio(base, target, end.quantile(target, u))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs.append(np.log(u) + np.log(np.where(g > 0, g, 0.0)))
    shallow, deep = logs
    with np.errstate(invalid="ignore"):
        p = (shallow - deep) / -math.log(math.sqrt(last))
    p = np.where(np.isneginf(deep), np.inf, p)
    p = np.where(deep < np.log(1e-12), np.maximum(p, SLOW * 2), p)
    return np.where(end.uncovered(base, target), -np.inf, p)


def obstruction(base: Law, target: Law, ends: Sequence[TailEnd]) -> str | None:
    """Why KL(target | image) is infinite for a map with these ends, or None."""
    for end in ends:
        p = float(np.min(decay(base, target, end)))
        side = "upper" if end.upper else "lower"
        if p == -np.inf:
            return (
                f"the target has mass beyond the image of the support of base ({side} end): its density is 0 "
                "there, so KL(target | image) = inf; take a base with more support"
            )
        if p <= SLOW:
            return (
                f"the {side} tail of the target is too heavy: beyond the last node the map is affine, so the "
                "image has the tail of base, scaled, whatever the number of pieces, and log(target / image) "
                f"grows like u^{p - 1:.2f} at the quantile u, not integrable: KL(target | image) = inf; "
                "take a base with tails as heavy as those of the target"
            )
    return None
