"""Caps on the sphere in which tokens stay for a time that is exponential in beta, and collapse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.spaces import Sphere

WIDEST = 1 / 16  # eps is below it in the theorem


def separation(w: Any, eps: float) -> Tensor:
    """alpha = max_{q != r} sup {<x, y> : <x, w_q> >= 1 - 2 eps, <y, w_r> >= 1 - 2 eps}.

    The largest cosine between tokens of different caps: cos(max(0, angle(w_q, w_r) - 2 arccos(1 - 2 eps)))
    for the nearest centres; 1 if two caps overlap.

    Args:
        w: centres (*batch, k, d) of norm one, k >= 2.
        eps: half the height of the caps, in (0, 1/16).

    >>> from otflow.papers.metastability import separation
    >>> separation([[1.0, 0.0], [0.0, 1.0]], 0.01)  # sin(2 arccos(1 - 2 eps))
    tensor(0.3900, dtype=torch.float64)

    Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833, section 2.
    """
    w, eps = _centres(w), checks.number(eps, "eps")
    if not 0 < eps < WIDEST:
        checks.fail("eps", eps, "0 < eps < 1/16 is needed", "pass eps=0.01, say")
    own = torch.eye(w.shape[-2], dtype=torch.bool)
    nearest = Sphere().pairwise(w, w).masked_fill(own, math.inf).amin((-2, -1))
    return torch.cos((nearest - 4 * math.asin(math.sqrt(eps))).clamp_min(0.0))


def cap_index(x: Any, w: Any, eps: float) -> Tensor:
    """The cap <x, w_q> >= 1 - eps that holds each token, -1 if none does; (*batch, n).

    Args:
        x: tokens (*batch, n, d) of norm one.
        w: centres (k, d), the same for all, of norm one.
        eps: the height of the caps, > 0.

    >>> from otflow.papers.metastability import cap_index
    >>> cap_index([[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [0.0, 1.0]], 0.1)
    tensor([ 0, -1])
    """
    eps, w = checks.positive(eps, "eps"), _centres(w, least=1)
    x = checks.tensor(x, "x").detach().to(torch.float64)
    if w.ndim != 2 or x.ndim < 2 or x.shape[-1] != w.shape[-1]:
        shapes = tuple(x.shape), tuple(w.shape)
        checks.fail(
            "x.shape, w.shape",
            shapes,
            "(*batch, n, d) and (k, d) are needed",
            "pass x[None] for one token, w[None] for one cap",
        )
    x = Sphere().check(x)
    # 1 - <x, w> = |x - w|^2 / 2, which keeps its digits
    height = (x[..., :, None, :] - w).square().sum(-1) / 2
    least, q = height.min(-1)
    return torch.where(least <= eps * (1 + 1e-12), q, torch.full_like(q, -1))


@dataclass(frozen=True)
class Caps:
    """What the theorem of metastability says for one set of caps; see `metastable_times`.

    Attributes:
        alpha: the largest cosine between different caps.
        gamma: 1 - alpha - 8 eps - log(2 n^2 / eps) / beta, to be positive.
        lam: the rate of collapse that was asked for.
        lam_max: the least of both upper limits of lam; no rate is allowed where this is <= 0.
        log_T1: the logarithm of the time by which tokens of a cap have collapsed.
        log_T2: the logarithm of the time until which they stay in the caps of height 2 eps.
        failures: the conditions that do not hold, in words; none if the theorem applies.
    """

    alpha: float
    gamma: float
    lam: float
    lam_max: float
    log_T1: float
    log_T2: float
    failures: tuple[str, ...]

    @property
    def applies(self) -> bool:
        return not self.failures


def metastable_times(w: Any, eps: float, beta: float, n: int, lam: float) -> Caps:
    """T1 = 2 n exp(8 eps beta) + e n lam beta^2 / (beta - 1),  T2 = (eps / n) exp((1 - alpha) beta).

    If every one of n tokens starts in a cap <x, w_q> >= 1 - eps and the conditions hold, then under SA and
    under USA (with the kernel exp(beta (<x, y> - 1))) it stays in <x, w_q> >= 1 - 2 eps until T2, and
    |x_i - x_j|^2 <= 2 exp(-lam beta) for tokens of the same cap from T1 to T2. The conditions are beta > 1,
    gamma > 0 and 0 < lam < lam_max, where lam_max is the least of

        exp((1 - alpha) beta) (beta - 1) eps / (beta^2 n^2 e) (1 - exp(-gamma beta)),
        1 - alpha - 8 eps - log(2 n^2 / (1 - 8 eps)) / beta.

    The first of the two says that T1 < T2. (It is printed with the other sign in front of the logarithm of
    (beta - 1) eps / (beta^2 n^2 e), in a third-party formalisation of the statement, which is what was read.)

    Args:
        w: centres (k, d) of norm one, k >= 2.
        eps: the height of the caps of the start, in (0, 1/16).
        beta: the inverse temperature, > 0.
        n: the number of tokens.
        lam: the rate of collapse, > 0.

    >>> from otflow.papers.metastability import metastable_times
    >>> caps = metastable_times([[1.0, 0.0], [-1.0, 0.0]], 0.01, 20.0, n=4, lam=0.5)
    >>> caps.applies, round(caps.gamma, 4), round(caps.log_T2 - caps.log_T1, 2)
    (True, 1.4373, 27.39)
    >>> metastable_times([[1.0, 0.0], [-1.0, 0.0]], 0.01, 3.0, n=4, lam=0.5).failures[0]
    'gamma = -0.849502 is not positive: raise beta, or choose caps that are farther apart'

    Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833, section 2.
    """
    cosine = separation(w, eps)
    if cosine.ndim:
        checks.fail("w", "a batch", "one set of centres is needed", "pass w of shape (k, d)")
    alpha = cosine.item()
    eps, beta, lam = float(eps), checks.positive(beta, "beta"), checks.positive(lam, "lam")
    log_n = math.log(_count(n, "n"))
    gamma = 1 - alpha - 8 * eps - (math.log(2 / eps) + 2 * log_n) / beta
    log_T2 = math.log(eps) - log_n + (1 - alpha) * beta
    if not (math.isfinite(log_T2) and math.isfinite(gamma)):
        checks.fail("beta", beta, "T2 is beyond float64 even as a logarithm", "choose 1e-300 < beta < 1e300")
    second = 1 - alpha - 8 * eps - (math.log(2 / (1 - 8 * eps)) + 2 * log_n) / beta
    limits = _log_first(alpha, gamma, eps, beta, log_n), second
    lam_max = min(math.exp(min(limits[0], 700.0)), limits[1])
    failures = _failures(beta, gamma, lam, limits)
    return Caps(alpha, gamma, lam, lam_max, _log_T1(eps, beta, log_n, lam), log_T2, failures)


@dataclass(frozen=True)
class UniformCaps:
    """The condition under which n uniform tokens in dimension d are metastable; see `uniform_condition`.

    Attributes:
        eps: 4 log(d) / d, 0 below the smallest number.
        value: the left side of the condition, which holds if this is < 1.
        printed: the left side as it is transcribed from the paper, which is too small.
        probability: a lower bound, 0 where there is none.
    """

    eps: float
    value: float
    printed: float
    probability: float

    @property
    def holds(self) -> bool:
        return self.value < 1 and self.eps < WIDEST


def uniform_condition(d: int, n: int, beta: float) -> UniformCaps:
    """4 sqrt(eps) + 12 eps + log(2 n^2 / eps) / beta < 1,  eps = 4 log(d) / d.

    Then n tokens that are drawn uniformly on the sphere of R^d lie in caps of height eps around n orthogonal
    centres to which `metastable_times` applies, with probability at least 1 - 2 n^2 d^(-1/64) for large d.
    The caps of orthogonal centres have alpha = 4 (1 - 2 eps) sqrt(eps (1 - eps)) < 4 sqrt(eps) + 4 eps; the
    paper, as transcribed in a formalisation, bounds it by eps^2 + 2 eps, and so has eps^2 + 10 eps in place
    of 4 sqrt(eps) + 12 eps. The probability is of use only beyond d = (2 n^2)^64.

    Args:
        d: the dimension, at least 2.
        n: the number of tokens, at most d: there are no more orthogonal centres.
        beta: the inverse temperature, > 0.

    >>> from otflow.papers.metastability import uniform_condition
    >>> found = uniform_condition(4096, 8, 50.0)
    >>> found.holds, round(found.value, 4), round(found.printed, 4)
    (True, 0.6513, 0.2746)

    Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833, section 4.
    """
    d, n, beta = _count(d, "d"), _count(n, "n"), checks.positive(beta, "beta")
    if d < 2:
        checks.fail("d", d, "a sphere needs d >= 2", "pass d=2 or more")
    if n > d:
        checks.fail("n", n, f"there are no more than d = {d} orthogonal centres", "choose n <= d")
    log_n, log_d = math.log(n), math.log(d)
    log_eps = math.log(4 * log_d) - log_d
    eps = 4 * log_d / d if log_d < 700 else math.exp(log_eps)
    tail = (math.log(2) + 2 * log_n - log_eps) / beta
    if not math.isfinite(tail):
        checks.fail("beta", beta, "the condition is beyond float64", "pass a larger beta, 1e-280 or more")
    likely = max(0.0, -math.expm1(min(math.log(2) + 2 * log_n - log_d / 64, 0.0)))
    return UniformCaps(eps, 4 * math.sqrt(eps) + 12 * eps + tail, eps**2 + 10 * eps + tail, likely)


def _count(value: int, name: str) -> int:
    """A whole number >= 1, however large: only its logarithm is used."""
    huge = isinstance(value, int) and value > 2**1000
    return value if huge else checks.count(value, name)


def _centres(w: Any, least: int = 2) -> Tensor:
    w = checks.tensor(w, "w").detach().to(torch.float64)
    if w.ndim < 2 or w.shape[-2] < least or w.shape[-1] < 2:
        checks.fail("w.shape", tuple(w.shape), f"(k, d) with k >= {least} and d >= 2", "pass centres of caps")
    return Sphere().check(w)


def _log_T1(eps: float, beta: float, log_n: float, lam: float) -> float:
    """inf for beta <= 1, where there is no such bound."""
    if beta <= 1:
        return math.inf
    a = math.log(2) + log_n + 8 * eps * beta
    b = 1 + log_n + math.log(lam) + 2 * math.log(beta) - math.log(beta - 1)
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _log_first(alpha: float, gamma: float, eps: float, beta: float, log_n: float) -> float:
    """The logarithm of the first limit, -inf where no rate is allowed."""
    if beta <= 1 or gamma <= 0:
        return -math.inf
    factor = math.log(beta - 1) + math.log(eps) - 2 * (math.log(beta) + log_n) - 1
    return (1 - alpha) * beta + factor + math.log(-math.expm1(-gamma * beta))


def _failures(beta: float, gamma: float, lam: float, limits: tuple[float, float]) -> tuple[str, ...]:
    """One sentence for every condition that does not hold."""
    rate = f"lam = {lam:g} is not below"
    # Every sentence is written, needed or not, so that exp must not overflow.
    first = f"{rate} {math.exp(min(limits[0], 709.0)):g}, so that T1 >= T2: lower lam"
    conditions = {
        f"beta = {beta:g} is not above 1: raise beta": beta > 1,
        f"gamma = {gamma:g} is not positive: raise beta, or choose caps that are farther apart": gamma > 0,
        first: gamma <= 0 or math.log(lam) < limits[0],  # without gamma > 0 there is no such limit
        f"{rate} {limits[1]:g}, the rate that other caps allow: lower lam": lam < limits[1],
    }
    return tuple(sentence for sentence, holds in conditions.items() if not holds)
