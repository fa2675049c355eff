"""Laws on the line for transport by ReLU flows: what is asked of them, mixtures, and how heavy tails are.

`otflow.systems.relu_flows` offers `Law` and `Mixture1d`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import logsumexp

from otflow import checks
from otflow.systems.inputs import Array

BISECTIONS = 200  # at most: each halves a bracket, which ends at neighbouring numbers
DEEP = (1e-30, 1e-60)  # levels at which the weight of a tail is read off
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
            checks.fail("weights.shape", tuple(p.shape), f"one per law, ({len(self.laws)},)", "pass as many")
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
        return _bisect(lambda y: self.cdf(y) < q, ends.min(0), ends.max(0))

    def isf(self, q: Any) -> Array:
        """The y with 1 - F(y) = q, to rounding."""
        ends = np.stack([np.asarray(law.isf(q), dtype=float) for law in self._used()])
        return _bisect(lambda y: self.sf(y) > q, ends.min(0), ends.max(0))

    def _used(self) -> list[Law]:
        return [law for p, law in zip(self.weights, self.laws, strict=True) if p > 0]

    def __repr__(self) -> str:
        return f"Mixture1d({len(self.laws)} laws)"


def _bisect(below: Any, low: Array, high: Array) -> Array:
    """The place in [low, high] where ``below`` turns from true to false."""
    for _ in range(BISECTIONS):
        middle = low + (high - low) / 2
        left = below(middle)
        low, high = np.where(left, middle, low), np.where(left, high, middle)
        if bool((np.abs(high - low) <= 2e-16 * np.abs(middle)).all()):
            break
    return np.asarray(low + (high - low) / 2)


def is_law(law: Any, name: str) -> Any:
    """A law, or an error that says what is missing."""
    missing = [m for m in METHODS if not callable(getattr(law, m, None))]
    if missing or isinstance(law, type):
        rule = f"a law with {', '.join(METHODS)} is needed; it lacks {', '.join(missing) or 'an instance'}"
        checks.fail(name, f"{law!r:.60}", rule, "use scipy.stats.norm(0, 1), say, or Mixture1d")
    return law


# --- tails ---------------------------------------------------------------------------------------------


class End(NamedTuple):
    """Where a piecewise linear map from base to target goes on as an affine one: x -> y + slope (x - at)."""

    at: Any
    y: Any
    slope: Any
    upper: bool

    def quantile(self, law: Law, u: Any) -> Array:
        """The place beyond which a mass u is left."""
        return np.asarray(law.isf(u) if self.upper else law.ppf(u), dtype=float)

    def log_ratio(self, base: Law, target: Law, y: Array) -> Array:
        """log of the density of the target over that of the image of base, where the map is affine."""
        image = base.logpdf(self.at + (y - self.y) / self.slope) - np.log(self.slope)
        return np.asarray(target.logpdf(y) - image, dtype=float)


def decay(base: Law, target: Law, end: End) -> Array:
    """p with u g(u) ~ u^p for u -> 0, g = log ratio at the quantile u of the target; KL = inf if p <= 0.

    Where g <= 0, or u g is below 1e-12 already, p = inf; where the image of base has no mass, p = -inf.
    """
    logs = []
    for u in DEEP:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            g = end.log_ratio(base, target, end.quantile(target, u))
            # no ratio where the target has no density: its quantiles are at the end of its support
            logs.append(np.log(u) + np.log(np.where(np.isnan(g) | (g <= 0), 0.0, g)))
    shallow, deep = logs
    with np.errstate(invalid="ignore"):
        p = (shallow - deep) / (np.log(DEEP[0]) - np.log(DEEP[1]))
    return np.where(deep == np.inf, -np.inf, np.where(deep < np.log(1e-12), np.maximum(p, SLOW * 2), p))


def obstruction(base: Law, target: Law, ends: Sequence[End]) -> str | None:
    """Why no finite number of pieces gives a finite KL, or None."""
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
