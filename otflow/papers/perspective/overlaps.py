"""Overlaps of equiangular tokens: all pairs at one inner product gamma, which attention moves along one ODE.

Write u = 1 - gamma, a = n / (n - 1) and w = log(u0 / u) + log((a - u) / (a - u0)), which grows from 0 to
infinity as the tokens meet. The two laws of motion are then

    SA:    dt/dw = (exp(beta u) + n - 1) / (2 n),          USA:    dt/dw = exp(-beta gamma) / 2,

and the time is, up to the multiple (n - 1) w of SA, the integral J = int_0^w exp(beta u) dw, known in terms
of the exponential integrals Ei and E1. Everything below is computed as a logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import exp1, expi
from torch import Tensor

from otflow.base.numbers import Array, insist, numbers, tensor, whole

FAR = 700.0  # u = exp(-FAR) and 1 - u is 1
TINY, EPS = float(np.finfo(float).tiny), float(np.finfo(float).eps)
NODES, WEIGHTS = (a.astype(float) for a in np.polynomial.legendre.leggauss(24))  # enough for w <= 1/2


# --- the integral --------------------------------------------------------------------------------------


class Start(NamedTuple):
    """beta, n, and gamma at time zero; u0 = 1 - gamma0 and rho0 = u0 / (a - u0)."""

    beta: Array
    n: Array
    gamma0: Array

    @property
    def a(self) -> Array:
        return self.n / (self.n - 1)

    @property
    def rho0(self) -> Array:
        return (1 - self.gamma0) / (1 / (self.n - 1) + self.gamma0)

    def u(self, w: Array) -> Array:
        rho = self.rho0 * np.exp(-w)
        return self.a * rho / (1 + rho)

    def fallen(self, w: Array) -> Array:
        """u0 - u(w), with its digits."""
        rho = self.rho0 * np.exp(-w)
        return -self.a * (self.rho0 / (1 + self.rho0)) * np.expm1(-w) / (1 + rho)


def _log_integral(w: Array, s: Start) -> Array:
    """log of exp(-beta u0) J = int_0^w exp(-beta (u0 - u)) dw, for w > 0; beyond FAR u is 0."""
    beyond, w = np.maximum(w - FAR, 0.0) * np.exp(-s.beta * (1 - s.gamma0)), np.minimum(w, FAR)
    near = (w <= 0.5) & (s.beta * s.fallen(w) <= 1)
    flat = ~near & (s.beta * s.a <= 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        value = np.where(near, _by_nodes(w, s), np.where(flat, _by_series(w, s), _by_functions(w, s)))
        return np.asarray(np.log(value + beyond))


def _by_nodes(w: Array, s: Start) -> Array:
    """Gauss and Legendre's rule, to rounding where w is small: nothing cancels."""
    half = w / 2
    total = sum(c * np.exp(-s.beta * s.fallen(half * (1 + x))) for x, c in zip(NODES, WEIGHTS, strict=True))
    return np.asarray(half * total)


def _by_series(w: Array, s: Start) -> Array:
    """By the entire function Ein, which has no logarithm of beta to cancel."""
    u0, u = 1 - s.gamma0, s.u(w)
    other = np.log1p(s.rho0) - np.log1p(s.rho0 * np.exp(-w))  # log((a - u) / (a - u0))
    left = (w - other) + _ein(s.beta * u0) - _ein(s.beta * u)
    right = other + _ein(-s.beta * (s.a - u)) - _ein(-s.beta * (s.a - u0))
    return np.asarray(np.exp(-s.beta * u0) * (left + np.exp(s.beta * s.a) * right))


def _ein(x: Array) -> Array:
    """int_0^x (exp(y) - 1) / y dy for |x| <= 2, by its power series."""
    x = np.clip(x, -2, 2)
    return np.asarray(sum(x**k / (k * math.factorial(k)) for k in range(25, 0, -1)))


def _by_functions(w: Array, s: Start) -> Array:
    """G(u0) - exp(beta (u - u0)) G(u), G(u) = exp(-beta u) Ei(beta u) + exp(x) E1(x), x = beta (a - u)."""
    rho = s.rho0 * np.exp(-w)

    def G(u: Array, r: Array) -> Array:
        return _scaled(expi, 1.0, s.beta * u) + _scaled(exp1, -1.0, s.beta * s.a / (1 + r))

    return G(1 - s.gamma0, s.rho0) - np.exp(-s.beta * s.fallen(w)) * G(s.u(w), rho)


def _scaled(f: Callable[[Array], Array], sign: float, x: Array) -> Array:
    """exp(-sign x) f(x) for x > 0: Ei with sign 1, E1 with sign -1.

    From 50 on by sum_k k! sign^k / x^(k + 1), whose terms fall below rounding before they grow.
    """
    small, large = np.minimum(x, 50.0), np.maximum(x, 50.0)
    total = np.ones_like(large)
    for k in range(30, 0, -1):
        total = 1 + sign * k / large * total
    return np.where(x <= 50, np.exp(-sign * small) * f(small), total / large)


# --- time as a function of w, and back -----------------------------------------------------------------


def _log_time(w: Array, s: Start, normalised: bool) -> Array:
    J = _log_integral(w, s)
    if not normalised:
        return J - s.beta * s.gamma0 - math.log(2)
    rest = np.log(s.n - 1) + np.log(w)
    return np.asarray(np.logaddexp(s.beta * (1 - s.gamma0) + J, rest) - np.log(s.n) - math.log(2))


def _log_slope(w: Array, s: Start, normalised: bool) -> Array:
    """log dt/dw."""
    if not normalised:
        return -s.beta * (1 - s.u(w)) - math.log(2)
    return np.asarray(np.logaddexp(s.beta * s.u(w), np.log(s.n - 1)) - np.log(s.n) - math.log(2))


def _w_of(log_t: Array, s: Start, normalised: bool) -> Array:
    """The w at which the time is t.

    t is concave in w, so that w lies between t over the first and t over the last slope. In logarithms the
    bracket is short, and Newton's method with bisection as its guard settles within some ten steps.
    """
    top = np.full_like(log_t, math.log(FAR))
    over = log_t >= _log_time(np.exp(top), s, normalised)
    log_t = np.where(over, _log_time(np.ones_like(log_t), s, normalised), log_t)  # any time that is reached
    low = np.minimum(log_t - _log_slope(np.zeros_like(log_t), s, normalised), top)
    high = np.minimum(log_t - _log_slope(np.full_like(log_t, FAR), s, normalised), top) + 1e-12
    z = low
    for _ in range(200):
        w = np.maximum(np.exp(z), TINY)
        time = _log_time(w, s, normalised)
        low, high = np.where(time <= log_t, z, low), np.where(time <= log_t, high, z)
        with np.errstate(over="ignore"):  # an infinite step is out of the bracket
            step = (time - log_t) * np.exp(np.minimum(time - z - _log_slope(w, s, normalised), FAR))
        new = np.where((low < z - step) & (z - step < high), z - step, (low + high) / 2)
        # Where t is flat in w, rounding of t decides about w, and there is nothing left to gain.
        found = np.abs(time - log_t) <= EPS * (1 + np.abs(log_t))
        settled = found | (np.abs(new - z) <= EPS * (1 + np.abs(z)))
        if settled.all():
            break
        z = np.where(settled, z, new)
    return np.where(over, FAR, np.exp(z))


# --- what people call ----------------------------------------------------------------------------------


def _admit(beta: Array, n: Array) -> None:
    insist(beta >= 0, "beta", beta, "the formula is for beta >= 0", "choose beta >= 0")
    whole(n, "n", 2)


def equiangular(t: Any, beta: Any, n: Any, *, gamma0: Any = 0.0, normalised: bool = True) -> Tensor:
    """gamma(t) = <x_i(t), x_j(t)> of n tokens at equal angles, gamma(0) = gamma0; the arguments broadcast.

        SA:   gamma' = 2 e^(beta gamma) (1 - gamma) ((n - 1) gamma + 1) / (e^beta + (n - 1) e^(beta gamma))
        USA:  gamma' = 2 e^(beta gamma) (1 - gamma) ((n - 1) gamma + 1) / n

    (arXiv 2312.10794, Theorem 6.8.) With gamma0 = 0 it is what all pairs of tokens follow in high dimension
    (Theorem 6.9). The rate at the end is 2 for SA and 2 e^beta for USA. Time is known in closed form as a
    function of gamma, and inverted here. 1 - gamma has the digits that float64 has next to 1 and those that t
    has: for large beta tokens meet within a time that is short next to t.

    Args:
        t: times >= 0.
        beta: inverse temperature, >= 0.
        n: number of tokens, >= 2.
        gamma0: inner product at time zero, between -1 / (n - 1) and 1.
        normalised: SA rather than USA.

    >>> from otflow.papers.perspective import equiangular
    >>> equiangular([0.0, 5.270284], beta=1.0, n=32).round(decimals=6)
    tensor([0.0000, 0.9990], dtype=torch.float64)
    """
    t, beta, n, gamma0 = numbers(t=t, beta=beta, n=n, gamma0=gamma0)
    _admit(beta, n)
    insist(t >= 0, "t", t, "tokens are followed forward in time", "choose t >= 0")
    good, rule = (
        (gamma0 < 1) & (gamma0 * (n - 1) > -1),
        "n tokens have equal angles for -1 / (n - 1) < gamma0 < 1",
    )
    insist(good, "gamma0", gamma0, rule, "pass gamma0=0.0, say")
    later, s = t > 0, Start(beta, n, gamma0)
    w = _w_of(np.log(np.where(later, t, 1.0)), s, normalised)
    return tensor(np.where(later, np.where(w < 0.5, gamma0 + s.fallen(w), 1 - s.u(w)), gamma0))


def collapse_time(beta: Any, n: Any, delta: Any, *, normalised: bool = True) -> Tensor:
    """The time at which `equiangular` tokens that start at gamma = 0 reach gamma = 1 - delta.

    With Ei and E1 the exponential integrals, b = beta and a = n / (n - 1),

        SA:   1/(2n) {Ei(b) - Ei(b delta) + exp(a b) [E1(b / (n - 1)) - E1(a b - b delta)]
                      + (n - 1) [log(1 / delta) + log(1 + (n - 1) (1 - delta))]}
        USA:  1/2 {exp(-b) [Ei(b) - Ei(b delta)] + exp(b / (n - 1)) [E1(b / (n - 1)) - E1(a b - b delta)]}.

    In high dimension this is the line in the plane of t and beta where tokens meet, see `phase_diagram`. For
    SA it turns up near beta = log n. The arguments broadcast: beta >= 0, n >= 2, 0 < delta <= 1.

    >>> from otflow.papers.perspective import collapse_time
    >>> collapse_time([1.0, 4.0], n=32, delta=1e-3)
    tensor([5.2703, 6.9535], dtype=torch.float64)
    """
    beta, n, delta = numbers(beta=beta, n=n, delta=delta)
    _admit(beta, n)
    insist((delta > 0) & (delta <= 1), "delta", delta, "0 < delta <= 1 is needed", "pass delta=0.01, say")
    w = np.log1p((n - 1) * (1 - delta)) - np.log(delta)
    s = Start(beta, n, np.zeros_like(beta))
    log_t = np.where(w > 0, _log_time(np.where(w > 0, w, 1.0), s, normalised), -np.inf)
    rule = "the time exceeds the largest number"
    insist(log_t < math.log(np.finfo(float).max), "beta", beta, rule, "choose beta < 700")
    return tensor(np.exp(log_t))


def layer_overlap(rho: Any, beta: Any, n: Any) -> Tensor:
    """cos(y_i, y_j) for y_i = sum_k softmax_k(beta x_i.x_k) x_k, when <x_i, x_j> = rho for all pairs.

    The outputs of one layer of softmax attention without residual, for n equiangular tokens.

    >>> from otflow.papers.perspective import layer_overlap
    >>> layer_overlap(0.5, 0.0, 10).item()  # without temperature all outputs agree
    1.0
    """
    rho, beta, n = numbers(rho=rho, beta=beta, n=n)
    whole(n, "n", 2)
    good = (rho <= 1) & ((n - 1) * rho > -1)
    insist(good, "rho", rho, "n tokens have equal angles for -1 / (n - 1) < rho <= 1", "pass rho=0.5, say")
    p = 1 / (1 + (n - 1) * np.exp(np.minimum(-beta * (1 - rho), 700.0)))  # the attention to oneself
    q = (1 - p) / (n - 1)
    # y_i = (p - q) x_i + q sum_k x_k
    common = q * (1 + (n - 1) * rho) * (2 * (p - q) + q * n)
    return tensor(((p - q) ** 2 * rho + common) / ((p - q) ** 2 + common))


def temperature_regime(rho: Any, gamma: Any) -> Tensor:
    """lim `layer_overlap` (rho, gamma log n, n) as n grows: 1, 4 rho / (1 + 3 rho) or rho.

    These are for gamma below, at, and above 1 / (1 - rho). Below it all outputs agree, above it the layer
    leaves the tokens as they are. ("At" means up to rounding.) Orthogonal tokens, rho = 0, are a case of
    their own: their mean is as short as n^(-1/2), and the limit is 1, 1/2 or 0 for gamma below, at, and above
    1/2.

    Args:
        rho: inner product of the tokens, 0 <= rho < 1.
        gamma: beta / log n.

    >>> from otflow.papers.perspective import temperature_regime
    >>> temperature_regime(0.5, [1.0, 2.0, 3.0])
    tensor([1.0000, 0.8000, 0.5000], dtype=torch.float64)
    """
    rho, gamma = numbers(rho=rho, gamma=gamma)
    insist((rho >= 0) & (rho < 1), "rho", rho, "0 <= rho < 1 is needed", "pass rho=0.5, say")
    side = np.where(rho > 0, gamma * (1 - rho) - 1, 2 * gamma - 1)
    middle = np.where(rho > 0, 4 * rho / (1 + 3 * rho), 0.5)
    return tensor(np.where(np.abs(side) <= 1e-12, middle, np.where(side < 0, 1.0, rho)))


def high_dimension_bound(t: Any, beta: Any, n: Any, d: Any) -> Tensor:
    """log of 2 c^(n t) sqrt(log d / d), c = exp(10 max(1, beta)): a bound of |<x_i, x_j> - gamma(t)|.

    For tokens drawn uniformly on the sphere of R^d, with probability at least 1 - 2 n^2 d^(-1/64) (arXiv
    2312.10794, Theorem 6.9; the theorem goes on with a bound C exp(-lambda t) whose constants are not
    explicit). The deviation is never above 2, so that the bound says something for times up to about
    log(d) / (20 n max(1, beta)) only.

    >>> from otflow.papers.perspective import high_dimension_bound
    >>> high_dimension_bound(0.0, 1.0, 2, 10**6).exp().item()  # 2 sqrt(log d / d)
    0.00743384...
    """
    t, beta, n, d = numbers(t=t, beta=beta, n=n, d=d)
    insist(t >= 0, "t", t, "tokens are followed forward in time", "choose t >= 0")
    _admit(beta, n)
    whole(d, "d", 2)
    with np.errstate(over="ignore"):
        growth = 10 * n * t * np.maximum(1, beta)
    insist(np.isfinite(growth), "t", t, "the logarithm exceeds the largest number", "pass t / 10, or less")
    return tensor(math.log(2) + growth + (np.log(np.log(d)) - np.log(d)) / 2)
