"""Transport of one law to another by piecewise ReLU flows, with relative entropy (our constructions).

`otflow.papers.relu_flows` offers `transport_1d` and `ReluTransport`; `relu_knothe` has more dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from otflow.base import checks
from otflow.base.numbers import Array
from otflow.papers.relu_flows.laws import Law, TailEnd, decay, depth, obstruction, on_the_line
from otflow.papers.relu_flows.pieces import PiecewiseFlow
from otflow.papers.relu_flows.shears import monotone

PANELS, ORDER = 8, 32  # Gauss-Legendre panels per interval between nodes, and points in each
MISSED = 1e-7  # intervals whose mass is wrong by more than this share are taken by equal masses
DEEPEST = 1e-8  # the last level of the quadrature if tails are not known
GAP = (
    "the image of base has density 0 where the target has mass, so KL(target | image) = inf; take a base "
    "whose support is the whole line"
)


@dataclass(frozen=True, eq=False)
class ReluTransport:
    """A flow and how near the image rho of the base law comes to the target rho*.

    ``kl`` is KL(rho* | rho) and ``tv`` the total variation, both by quadrature in one dimension, by
    quasi-Monte Carlo under rho* in more (then ``kl_error`` is the standard error, were the points
    independent). ``l2`` is the L2(base) distance of the flow to the monotone map, between the first and the
    last node, or to the Knothe-Rosenblatt map. If kl = inf, ``obstruction`` says why; such a flow is a
    result and no failure.
    """

    flow: PiecewiseFlow
    kl: float
    tv: float
    l2: float
    kl_error: float = 0.0
    obstruction: str | None = None

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return len(self.flow)

    def __repr__(self) -> str:
        more = ", obstructed" if self.obstruction else ""
        return (
            f"ReluTransport({self.pieces} pieces, KL={self.kl:.4g}, TV={self.tv:.4g}, L2={self.l2:.4g}{more})"
        )


# --- on the line ---------------------------------------------------------------------------------------


def transport_1d(base: Law, target: Law, K: int, *, tail: float = 2e-4) -> ReluTransport:
    """The piecewise linear interpolant of F*^-1(F(x)) at K + 1 quantiles of base: K + 2 pieces.

    KL(rho* | rho) decays like K^-2 and total variation like K^-1, until what lies beyond the nodes shows.
    There the map is affine, and rho has the tail of base, scaled: for a Gaussian base KL is finite if and
    only if the target has a second moment. Heavier tails are detected: KL = inf, and ``obstruction`` says so.
    They are read off at quantiles of level 1e-60 or, if the laws fail there, less deep; near the border (2.01
    moments, a log-normal law of shape 7) they count as too heavy although KL is finite.

    Args:
        base, target: laws with cdf, ppf, isf and logpdf: ``scipy.stats``, or `Mixture1d`.
        K: number of intervals between nodes.
        tail: level of the first node and, from above, of the last one; equally spaced levels between.

    >>> from otflow.papers.relu_flows import transport_1d
    >>> from scipy.stats import cauchy, norm
    >>> transport_1d(norm(0, 1), norm(1, 2), 1)
    ReluTransport(3 pieces, KL=0, TV=0, L2=0)
    >>> transport_1d(norm(0, 1), cauchy(), 64).obstruction[:48]
    'the lower tail of the target is too heavy: beyon'

    Reference: Alvarez-Lopez, Geshkovski, Ruiz-Balet 2025, arXiv 2412.19366, bounds KL by switches under an
    assumption on tails; the construction is ours.
    """
    on_the_line(base, "base"), on_the_line(target, "target")
    u = levels(checks.count(K, "K") + 1, tail)
    x, y = quantiles(base, u, "base"), quantiles(target, u, "target")
    flow = monotone(x, y)
    m = np.diff(y) / np.diff(x)
    ends = TailEnd(x[0], y[0], m[0], False), TailEnd(x[-1], y[-1], m[-1], True)
    kl, tv = _divergences(base, target, x, y, ends, tail)
    why = obstruction(base, target, ends) or (GAP if kl == math.inf else None)
    v = levels(1025, tail)
    apart = flow(quantiles(base, v, "base")[:, None]).numpy()[:, 0] - quantiles(target, v, "target")
    l2 = math.hypot(*apart) / math.sqrt(len(apart))
    return ReluTransport(flow, math.inf if why else rounded(kl), rounded(tv), rounded(l2), obstruction=why)


def _divergences(
    base: Law, target: Law, x: Array, y: Array, ends: tuple[TailEnd, TailEnd], tail: float
) -> tuple[float, float]:
    """KL and TV: Gauss-Legendre between nodes, and beyond them in log u, u the mass that is left."""
    t, weights = _panels(np.linspace(0, 1, PANELS + 1))
    places = y[:-1, None] + np.diff(y)[:, None] * t
    mass = np.diff(y)[:, None] * weights * np.exp(target.logpdf(places))
    share = (1 - 2 * tail) / len(mass)
    lost = np.abs(mass.sum(1) / share - 1) > MISSED  # spikes, gaps, decades: there by equal masses
    if bool(lost.any()):
        u = tail + share * (np.flatnonzero(lost)[:, None] + t)
        places[lost], mass[lost] = (
            quantiles(target, u.ravel(), "target", strict=False).reshape(u.shape),
            share * weights,
        )
    m = (np.diff(y) / np.diff(x))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_rho = base.logpdf(x[:-1, None] + (places - y[:-1, None]) / m) - np.log(m)
        kl, tv = _terms(mass, target.logpdf(places) - log_rho)
    for end in ends:
        last = depth(base, target, end)
        v, dv = _panels(np.linspace(np.log(DEEPEST if last is None else last), np.log(tail), 41))
        g = end.log_ratio(base, target, end.quantile(target, np.exp(v)))
        more, apart = _terms(np.exp(v) * dv, g)
        kl, tv = kl + more, tv + apart
        p = float(decay(base, target, end))
        if last is not None and 0 < p < np.inf:
            kl += last * max(g[0], 0.0) / p  # what is left beyond the last panel
    return kl, tv


def _terms(mass: Array, g: Array) -> tuple[float, float]:
    """sum mass g and sum mass (1 - e^-g)_+, where there is mass."""
    with np.errstate(invalid="ignore", over="ignore"):
        kl = np.where((mass > 0) & (g > -np.inf), mass * g, 0.0)
    return float(kl.sum()), float((mass * -np.expm1(-np.maximum(np.nan_to_num(g), 0.0))).sum())


def _panels(edges: Array) -> tuple[Array, Array]:
    z, w = np.polynomial.legendre.leggauss(ORDER)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (z + 1)).ravel(), (half * w).ravel()


def levels(n: int, tail: float) -> Array:
    if not 0 < checks.number(tail, "tail") < 0.5:
        checks.fail("tail", tail, "a level in (0, 1/2) is needed", "pass tail=1e-4, say")
    return np.linspace(tail, 1 - tail, n)


def quantiles(law: Law, u: Array, name: str, *, strict: bool = True) -> Array:
    """From above where levels are above 1/2, which keeps digits."""
    with np.errstate(invalid="ignore"):
        q = np.where(u <= 0.5, law.ppf(np.minimum(u, 0.5)), law.isf(np.minimum(1 - u, 0.5)))
    if not bool(np.isfinite(q).all()) or (strict and bool((np.diff(q, axis=0) <= 0).any())):
        rule = "quantiles must be finite and increase"
        checks.fail(f"{name}.ppf", f"{q.ravel()[:3]} ..", rule, "take a law with a density, or fewer nodes")
    return np.asarray(q, dtype=float)


def rounded(value: float) -> float:
    """Below 1e-13, zero: quadrature knows no better."""
    return 0.0 if abs(value) < 1e-13 else float(value)
