"""Closed forms of retrieval by causal attention: what the last token of a prompt still knows of the others.

Uniform prompts of N tokens on the circle follow `causal.CausalAlibi`. To leading order the correlation of the
token at sigma = j/N with the start of the token at sigma_0 is g / N, Fourier mode by Fourier mode, and g has
a closed form (Duerinckx, Geshkovski, Rossi 2026, arXiv 2605.09213). Functions take numbers, numpy or torch
that broadcast, and return float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import Array, at_least_zero, insist, numbers, tensor, whole

NEGLIGIBLE = 1e-8  # part of the sum over modes that the last term may have
LARGEST_BETA = 700.0  # exp(beta) is a float64 up to here
SMALLEST_BETA = 1e-100  # the square of a coupling is a float64 down to here; Bessel functions fail at 1e-308
LOG_2 = (0.693147180369123816490, 1.90821492927058770002e-10)  # log 2 in two parts; the first is short
TINY = 1e-300  # quotients of positions that are not smaller do not overflow
MANY = 400  # modes among which the largest coupling is sought: it sits near n = sqrt(2 beta) <= 38


def graphon(sigma: Any, sigma0: Any, lam: Any) -> Tensor:
    """k(sigma, sigma_0) = lam exp(-lam (sigma - sigma_0)) / (1 - exp(-lam sigma)), 0 unless sigma_0 < sigma.

    How much the token at sigma listens to that at sigma_0: N times the weight of ALiBi with slope lam.

    Args:
        sigma: positions in (0, 1]; sigma0: positions in [0, 1]; lam: slopes >= 0. They broadcast.

    >>> from otflow.papers.lost_in_the_middle import graphon
    >>> graphon(0.5, [0.25, 0.75], 0.0)
    tensor([2., 0.], dtype=torch.float64)

    Reference: Duerinckx, Geshkovski, Rossi 2026.
    """
    sigma, sigma0, lam = numbers(sigma=sigma, sigma0=sigma0, lam=lam)
    _inside(sigma, "sigma", left=False)
    _inside(sigma0, "sigma0")
    at_least_zero(lam, "lam")
    width, decay = _graphon(sigma, sigma0, lam)
    return _result(np.where(sigma0 < sigma, _product(decay, below=width), 0.0), -np.log(width))


def depth(sigma: Any, sigma0: Any, lam: Any) -> Tensor:
    """Y = log((exp(lam sigma) - 1) / (exp(lam sigma_0) - 1)), and 0 for sigma <= sigma_0.

    At lam = 0 it is log(sigma / sigma_0). Beyond one hop, position enters by it only: m hops from sigma_0 to
    sigma weigh k Y^(m-1) / (m-1)!.

    Args:
        sigma: positions in (0, 1]; sigma0: positions in (0, 1); lam: slopes >= 0. They broadcast.

    >>> from otflow.papers.lost_in_the_middle import depth
    >>> depth(1.0, 0.5, 0.0)
    tensor(0.6931, dtype=torch.float64)
    """
    sigma, sigma0, lam = places(sigma, sigma0, lam)
    return tensor(_depth(sigma, sigma0, lam))


def coupling(n: Any, beta: Any) -> Tensor:
    """a_n = n^2 I_n(beta): the rate at which one token pulls the n-th Fourier mode of another.

    With the normalised coefficients I_n(beta) of exp(beta cos); un-normalised ones are 2 pi times larger.

    Args:
        n: whole numbers >= 1; beta: inverse temperatures, 0 or from 1e-100 to 700. They broadcast.

    >>> from otflow.papers.lost_in_the_middle import coupling
    >>> coupling([1, 2], 1.0)
    tensor([0.5652, 0.5430], dtype=torch.float64)
    """
    n, beta = numbers(n=n, beta=beta)
    whole(n, "n", 1)
    return tensor(_coupling(n, inverse_temperature(beta)))


def response(t: Any, sigma: Any, sigma0: Any, a: Any, lam: Any) -> Tensor:
    """g_a(t, sigma; sigma_0) = k(sigma, sigma_0) (at/Y)^(1/2) I_1(2 (atY)^(1/2)), Y = `depth`.

    The solution of dg/dt = a (k(sigma, sigma_0) + int k(sigma, s) g(s) ds), g = 0 at t = 0: everything that
    arrives from sigma_0 at sigma, through any number of tokens in between. 0 for sigma <= sigma_0.

    Args:
        t: times >= 0; sigma: in (0, 1]; sigma0: in (0, 1); a: couplings >= 0; lam: slopes >= 0.

    >>> from otflow.papers.lost_in_the_middle import response
    >>> response(1.0, 1.0, 0.5, a=2.0, lam=0.0)
    tensor(3.7463, dtype=torch.float64)

    Reference: Duerinckx, Geshkovski, Rossi 2026.
    """
    t, sigma, sigma0, a, lam = numbers(t=t, sigma=sigma, sigma0=sigma0, a=a, lam=lam)
    places(sigma, sigma0, lam)
    at_least_zero(a, "a")
    at_least_zero(t, "t")
    return _result(*_response(a, t, sigma, sigma0, lam))


def retrieval_profile(sigma0: Any, t: Any, beta: Any, lam: Any, M: int, modes: int = 20) -> Tensor:
    """S_t(sigma_0) = sum_n exp(-pi^2 n^2 / (2 M^2)) g_{a_n}(t, 1; sigma_0), a_n = `coupling`.

    How well the last token retrieves the token at sigma_0 among M words, above chance and in units of 1/N. It
    is high at both ends and low in between for moderate t ("lost in the middle").

    Args:
        sigma0: positions in (0, 1); t: times >= 0; beta: 0 or from 1e-100 to 700; lam: >= 0. They broadcast.
        M: number of words, at least 2.
        modes: number of terms of the sum.

    >>> from otflow.papers.lost_in_the_middle import retrieval_profile
    >>> retrieval_profile([0.05, 0.3, 0.9], 1.0, beta=1.0, lam=1.0, M=8)
    tensor([1.4198, 1.1981, 1.5455], dtype=torch.float64)

    Reference: Duerinckx, Geshkovski, Rossi 2026.
    """
    n, log_omega = words(M, modes)
    sigma0, t, beta, lam = _before_last(sigma0, t, beta, lam)
    value, size = _response(_coupling(n, beta), t, np.ones(1), sigma0, lam, log_omega)
    enough(value, modes)
    return _result(value.sum(-1), size.max(-1))


def hop(m: int, sigma0: Any, t: Any, beta: Any, lam: Any, M: int, *, modes: int = 20) -> Tensor:
    """sum_n omega_n (a_n t)^m / (m! (m-1)!) k Y^(m-1): what reaches the last token through m attention steps.

    One hop is the graphon, which rises towards the end (recency); two hops rise like log(1/sigma_0) towards
    the beginning (primacy). The sum over m is `retrieval_profile`, whose other arguments these are.

    >>> from otflow.papers.lost_in_the_middle import hop
    >>> parts = [hop(m, 0.5, 1.0, 1.0, 1.0, 8).item() for m in (1, 2, 3)]
    >>> [round(part, 4) for part in parts]
    [0.9936, 0.249, 0.0219]
    """
    m = checks.count(m, "m")
    n, log_omega = words(M, modes)
    sigma0, t, beta, lam = _before_last(sigma0, t, beta, lam)
    width, decay = _graphon(np.ones(1), sigma0, lam)
    with np.errstate(divide="ignore", over="ignore"):  # zeros have the logarithm -inf
        size = m * (np.log(_coupling(n, beta)) + np.log(t)) - special.gammaln(m + 1) - special.gammaln(m)
        size = (
            size + special.xlogy(m - 1, _depth(np.ones(1), sigma0, lam)) + decay - np.log(width) + log_omega
        )
        value = np.exp(size)
    enough(value, modes)
    return _result(value.sum(-1), size.max(-1))


def critical_time(beta: Any, lam: Any, M: int, modes: int = 20) -> Tensor:
    """t_crit = 2 (1 - exp(-lam)) sum_n omega_n a_n / sum_n omega_n a_n^2, omega_n = exp(-pi^2 n^2 / (2 M^2)).

    Later than this the profile falls all the way to the last token: recency is lost.

    Args:
        beta: from 1e-100 to 700; lam: >= 0. They broadcast. M: number of words; modes: number of terms.

    >>> from otflow.papers.lost_in_the_middle import critical_time
    >>> critical_time([1.0, 2.0], 1.0, 8)
    tensor([2.4575, 0.6007], dtype=torch.float64)

    Reference: Duerinckx, Geshkovski, Rossi 2026.
    """
    n, log_omega = words(M, modes)
    beta, lam = numbers(beta=beta, lam=lam)
    beta = inverse_temperature(beta, zero=False)[..., None]
    at_least_zero(lam, "lam")
    a, omega = n**2 * special.ive(n, beta), np.exp(log_omega)  # a exp(-beta): no overflow
    enough(omega * a**2, modes)
    ratio = (omega * a).sum(-1) / (omega * a**2).sum(-1) * np.exp(-beta[..., 0])
    return tensor(-2 * np.expm1(-lam) * ratio)


def dominant_mode(beta: Any) -> Tensor:
    """The n that maximises a_n = n^2 I_n(beta): 1 for small beta, about (2 beta)^(1/2) for large.

    >>> from otflow.papers.lost_in_the_middle import dominant_mode
    >>> dominant_mode([1.0, 2.0, 50.0])
    tensor([ 1,  2, 10])
    """
    n = np.arange(1.0, MANY)
    a = n**2 * special.ive(n, inverse_temperature(beta, zero=False)[..., None])
    return torch.from_numpy(np.asarray(a.argmax(-1) + 1))


def u_shape_time(beta: Any, lam: Any) -> Tensor:
    """min(3 - sqrt 3, 2 (1 - exp(-lam))) / sup_n a_n: up to this time the profile has the shape of a U.

    Primacy, recency and one interior minimum are then proved; `dominant_mode` attains the supremum.

    Args:
        beta: from 1e-100 to 700; lam: >= 0. They broadcast.

    >>> from otflow.papers.lost_in_the_middle import u_shape_time
    >>> u_shape_time([1.0, 2.0, 3.0], 1.0)
    tensor([2.2370, 0.4588, 0.1408], dtype=torch.float64)

    Reference: Duerinckx, Geshkovski, Rossi 2026, the theorem on the U-shape.
    """
    beta, lam = numbers(beta=beta, lam=lam)
    at_least_zero(lam, "lam")
    limit = np.minimum(3 - math.sqrt(3), -2 * np.expm1(-lam))
    return tensor(limit / coupling(dominant_mode(beta), beta).numpy())


def accuracy(score: Any, N: int, M: int) -> Tensor:
    """(pi/2)^(1/2) / M + (2 pi)^(1/2) S / (M N): the soft accuracy that belongs to a score S at length N.

    >>> from otflow.papers.lost_in_the_middle import accuracy
    >>> accuracy(0.0, 64, 8)
    tensor(0.1567, dtype=torch.float64)
    """
    N, M = checks.count(N, "N"), vocabulary(M)
    S = checks.tensor(score, "score").double()
    return math.sqrt(math.pi / 2) / M + math.sqrt(2 * math.pi) / (M * N) * S


def predicted_accuracy(
    N: int, sigma0: Any, t: Any, beta: Any, lam: Any, M: int, *, modes: int = 20
) -> Tensor:
    """`accuracy` of `retrieval_profile`: how often, softly, the last of N tokens names the one at sigma_0.

    >>> from otflow.papers.lost_in_the_middle import predicted_accuracy
    >>> predicted_accuracy(64, 0.5, 1.0, 1.0, 1.0, 8)
    tensor(0.1629, dtype=torch.float64)
    """
    return accuracy(retrieval_profile(sigma0, t, beta, lam, M, modes=modes), N, M)


# --- formulas on arrays that have been checked ---------------------------------------------------------


def _graphon(sigma: Array, sigma0: Array, lam: Array) -> tuple[Array, Array]:
    """(1 - exp(-lam sigma)) / lam and -lam (sigma - sigma_0): k is exp of the second over the first."""
    width = sigma * special.exprel(-lam * sigma)  # exprel(x) = (exp(x) - 1) / x: lam = 0 needs no case
    return np.asarray(width), np.asarray(-lam * np.maximum(sigma - sigma0, 0.0))


def log_graphon(sigma: Array, sigma0: Array, lam: Array) -> Array:
    """log k(sigma, sigma_0), -inf unless sigma_0 < sigma."""
    width, decay = _graphon(sigma, sigma0, lam)
    return np.where(sigma0 < sigma, decay - np.log(width), -np.inf)


def _depth(sigma: Array, sigma0: Array, lam: Array) -> Array:
    """exp(lam s) - 1 = s lam exp(lam s) exprel(-lam s), in logarithms."""
    safe = np.maximum(sigma0, TINY)
    inner = np.log(special.exprel(-lam * sigma) / special.exprel(-lam * sigma0)) + np.log(safe / sigma0)
    Y = lam * (sigma - sigma0) + (np.log(sigma / safe) + inner)
    return np.asarray(np.where(sigma0 < sigma, np.maximum(Y, 0.0), 0.0))


def _coupling(n: Array, beta: Array) -> Array:
    return np.asarray(n * (n * special.iv(n, beta)))  # in this order n^2 does not overflow


def _response(
    a: Array, t: Array, sigma: Array, sigma0: Array, lam: Array, log_omega: Array | float = 0.0
) -> tuple[Array, Array]:
    """omega k (c/Y)^(1/2) I_1(2 (cY)^(1/2)), c = at, and its exponent; inf where it overflows."""
    width, decay = _graphon(sigma, sigma0, lam)
    Y = _depth(sigma, sigma0, lam)
    with np.errstate(over="ignore", invalid="ignore"):  # where sigma <= sigma_0, or the answer overflows
        c = a * t
        x = 2 * np.where(np.isfinite(c * Y), np.sqrt(c * Y), np.sqrt(c) * np.sqrt(Y))
        ratio = np.where(x > 0, special.i1e(x) / np.where(x > 0, x / 2, 1.0), 1.0)
        size = np.where(sigma0 < sigma, x + decay + log_omega, -np.inf)
        value = np.where(np.isposinf(size), np.inf, _product(size, a, t, ratio, below=width))
    return value, size


def _product(exponent: Array, *factors: Array, below: Array) -> Array:
    """exp(exponent) prod(factors) / below: neither overflows nor vanishes unless the answer does."""
    turns = np.rint(np.clip(exponent, -8000.0, 8000.0) / math.log(2))
    with np.errstate(over="ignore"):
        rest = np.exp(np.clip(exponent - turns * LOG_2[0] - turns * LOG_2[1], -1.0, 1.0))
        last, powers = np.frexp(below)
        rest, powers = rest / last, turns.astype(np.int64) - powers
        for factor in factors:
            part, power = np.frexp(factor)
            rest, powers = rest * part, powers + power
        return np.asarray(np.ldexp(rest, powers))


def _result(value: Array, exponent: Array) -> Tensor:
    """The value, unless it is too large."""
    rule = "the response, of the order of its exponential, exceeds the largest float64"
    insist(
        np.isfinite(value), "the exponent", exponent, rule, "choose smaller a, t, or beta, or a larger sigma"
    )
    return tensor(value)


def words(M: int, modes: int) -> tuple[Array, Array]:
    """n = 1..modes and log omega_n = -pi^2 n^2 / (2 M^2)."""
    n = np.arange(1.0, checks.count(modes, "modes") + 1)
    return n, -((math.pi * n / vocabulary(M)) ** 2) / 2


def enough(terms: Array, modes: int) -> None:
    """An error unless the last of the terms (*batch, modes), all >= 0, is negligible next to their sum."""
    if not terms.size:
        return
    total = terms.sum(-1)
    part = np.divide(terms[..., -1], total, out=np.zeros_like(total), where=np.isfinite(total) & (total > 0))
    if part.max() > NEGLIGIBLE:
        rule = f"the last term is {part.max():.1g} of the sum, and those beyond it are missing"
        checks.fail("modes", modes, rule, "raise modes: more are needed for a large beta and M")


# --- what comes in -------------------------------------------------------------------------------------


def inverse_temperature(beta: Any, *, zero: bool = True) -> Array:
    """beta from 0 (or above it) to where exp(beta) overflows."""
    (x,) = numbers(beta=beta)
    at_least_zero(x, "beta")
    rule = f"exp(beta) must be a float64, beta <= {LARGEST_BETA:g}"
    insist(x <= LARGEST_BETA, "beta", x, rule, f"pass beta={LARGEST_BETA:g} or less")
    rule = f"beta is 0 or >= {SMALLEST_BETA:g}, so that squares of couplings are float64"
    insist(
        (x == 0) | (x >= SMALLEST_BETA), "beta", x, rule, f"pass beta=0, or beta={SMALLEST_BETA:g} or more"
    )
    if not zero:
        insist(x > 0, "beta", x, "without attention every time is allowed", "choose beta > 0")
    return x


def places(sigma: Any, sigma0: Any, lam: Any) -> list[Array]:
    """Positions of two tokens and the slope, for formulas with a depth."""
    sigma, sigma0, lam = numbers(sigma=sigma, sigma0=sigma0, lam=lam)
    _inside(sigma, "sigma", left=False)
    _inside(sigma0, "sigma0", left=False, right=False)
    at_least_zero(lam, "lam")
    return [sigma, sigma0, lam]


def _before_last(sigma0: Any, t: Any, beta: Any, lam: Any) -> list[Array]:
    """The arguments of a profile, each with a last axis for the modes; not broadcast: most are scalars."""
    named = {"sigma0": sigma0, "t": t, "beta": beta, "lam": lam}
    numbers(**named)
    arrays = [numbers(**{name: value})[0] for name, value in named.items()]
    _inside(arrays[0], "sigma0", left=False, right=False)
    at_least_zero(arrays[1], "t")
    inverse_temperature(arrays[2])
    at_least_zero(arrays[3], "lam")
    return [a[..., None] for a in arrays]


def _inside(x: Array, name: str, *, left: bool = True, right: bool = True) -> None:
    """Positions in [0, 1], without the ends that are not allowed."""
    good = ((x >= 0) if left else (x > 0)) & ((x <= 1) if right else (x < 1))
    interval = f"{'[' if left else '('}0, 1{']' if right else ')'}"
    insist(good, name, x, f"positions lie in {interval}", "divide the index of a token by N")


def vocabulary(M: int) -> int:
    """A number of words, at least two."""
    if checks.count(M, "M") < 2:
        checks.fail("M", M, "at least two words are needed to tell apart", "choose M >= 2")
    return int(M)
