"""Attention to orthogonal tokens as a random-energy model: how many tokens does a head look at?

The scores of one query are b xi_k with independent normal xi_k, and the participation ratio of their softmax

    Phi_n(b) = E sum_k pi_k^2,    pi_k = exp(b xi_k) / Z,   Z = sum_l exp(b xi_l),

is 1/n for b = 0 and 1 for b = infinity. With 1/Z^2 = int_0^inf u exp(-u Z) du, u = e^tau, it is one integral,

    Phi_n(b) = n int E[k(tau + b xi)] (E exp(-e^(tau + b xi)))^(n - 1) dtau,     k(y) = exp(2 y - e^y),

of functions that are analytic in the strip |Im tau| < pi/2, so that trapezoidal sums converge geometrically.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import Array, at_least_zero, insist, numbers, positive, tensor, whole

STEP = 0.3  # of tau, and of b xi; the error is exp(-pi^2 / STEP)
REACH = 10.0  # |xi| beyond it does not happen
LARGEST_B = 200.0  # beyond it the sums are long, and Phi is 1 up to a few per cent of b_c / b
LARGEST_N = 1e8  # 1 - E exp(...) has so many digits


def critical_scale(n: Any) -> Tensor:
    """b_c = sqrt(2 log n): above it the largest of n scores b xi_k has a finite part of the softmax.

    Args:
        n: number of tokens, >= 2.

    >>> from otflow.papers.homogenized import critical_scale
    >>> round(critical_scale(2000).item(), 4)
    3.8989

    Reference: Derrida 1981, the random-energy model.
    """
    (n,) = numbers(n=n)
    whole(n, "n", 2)
    return tensor(np.sqrt(2 * np.log(n)))


def frozen_participation(b: Any, n: Any) -> Tensor:
    """(1 - b_c / b)_+, b_c = sqrt(2 log n): the limit of Phi_n(b) for n -> infinity at fixed b / b_c.

    Args:
        b: scale of scores, >= 0; n: number of tokens, >= 2.

    >>> from otflow.papers.homogenized import critical_scale, frozen_participation
    >>> frozen_participation([0.0, 2 * critical_scale(100).item()], 100)
    tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    b, n = numbers(b=b, n=n)
    at_least_zero(b, "b")
    whole(n, "n", 2)
    return tensor(np.maximum(1 - np.sqrt(2 * np.log(n)) / np.maximum(b, 1e-300), 0.0))


def participation(b: Any, n: Any, *, d: float = math.inf) -> Tensor:
    """Phi_n(b) = E sum_k pi_k^2 for n normal scores of deviation b, or b chi_d / sqrt(d).

    At finite d, scores beta <A x, x_k> of orthonormal tokens with A = W W'^T are, given W', normal with
    deviation beta sigma_A |W'^T x|, and |W'^T x| is sigma_A chi_d: so b = beta sigma_A^2 sqrt(d) times
    chi_d / sqrt(d), over which `chi_rule` averages (errors are about 1e-9, for d = 1 and b > 20 1e-8).

    Args:
        b: scale of scores, in [0, 200], any shape.
        n: number of tokens, in [2, 1e8], broadcast against b.
        d: dimension, or infinity.

    >>> from otflow.papers.homogenized import participation
    >>> participation([0.0, 1.0, 3.0], 4)
    tensor([0.2500, 0.3920, 0.6871], dtype=torch.float64)
    """
    b, n = numbers(b=b, n=n)
    at_least_zero(b, "b")
    whole(n, "n", 2)
    insist(b <= LARGEST_B, "b", b, f"b <= {LARGEST_B:g} is computed", "use frozen_participation")
    insist(n <= LARGEST_N, "n", n, f"n <= {LARGEST_N:g} is computed", "use frozen_participation")
    r, p = chi_rule(d)
    out = np.empty(b.shape)
    for scale in np.unique(b):  # lengths of context share the means over xi
        at = b == scale
        out[at] = p @ np.stack([_integral(float(s), n[at]) for s in scale * r])
    return tensor(out)


def chi_rule(d: float, nodes: int = 24) -> tuple[Array, Array]:
    """Nodes and weights for E F(chi_d / sqrt(d)), by Gauss and Laguerre's rule; one node if d = infinity.

    F may change at any small scale, which for d < 32 has a weight that Gauss' nodes miss: there it is a sum
    over equal steps of tau, r = exp(tau - e^-tau).

    >>> from otflow.papers.homogenized.random_energy import chi_rule
    >>> r, p = chi_rule(5)
    >>> round(float(p @ r**4), 9)  # (d + 2) / d
    1.4
    """
    if d == math.inf:
        return np.ones(1), np.ones(1)
    d = dimension(d)
    if d < 32:
        return _double_exponential(d)
    k = np.arange(nodes)
    off = np.sqrt(k[1:] * (k[1:] + d / 2 - 1))
    values, vectors = np.linalg.eigh(np.diag(2 * k + d / 2) + np.diag(off, 1) + np.diag(off, -1))
    return np.sqrt(2 * values / d), vectors[0] ** 2


def _double_exponential(d: int, step: float = 0.07) -> tuple[Array, Array]:
    tau = np.arange(-4.0, 2.5, step)
    log_r = tau - np.exp(-tau)
    log_p = d * (log_r - np.exp(2 * log_r) / 2) + np.log1p(np.exp(-tau))  # r^(d - 1) e^(-d r^2 / 2) dr
    p = np.exp(log_p - log_p.max())
    seen = p > 1e-17
    return np.exp(log_r[seen]), p[seen] / p[seen].sum()


def dimension(d: float) -> int:
    """A whole number >= 1; floats such as 64.0 will do."""
    if not checks.number(d, "d") >= 1 or d != int(d):
        checks.fail(
            "d",
            d,
            "a dimension is a whole number >= 1, or math.inf",
            f"pass d={max(1, round(d))}" if math.isfinite(d) else "pass d=64",
        )
    return int(d)


def _integral(b: float, n: Array) -> Array:
    """Phi_n(b), (m,), by sums; tau and b xi share a grid unless b is small: means over xi convolve."""
    if b == 0:
        return 1 / n
    h = min(0.5, STEP / b)
    xi: Array = h * np.arange(-math.ceil(REACH / h), math.ceil(REACH / h) + 1.0)
    p = np.exp(-(xi**2) / 2)
    tau = np.arange(-REACH * b - math.log(n.max()) - 25, REACH * b + 5, STEP)
    with np.errstate(under="ignore"):
        taken, lost = _means(tau, np.multiply(b, xi), p / p.sum(), joined=h < 0.5)
        total = taken @ np.exp(np.multiply.outer(np.log1p(-np.minimum(lost, 1 - 1e-16)), n - 1))
    return np.asarray(n * STEP * total)


def _means(tau: Array, shift: Array, p: Array, *, joined: bool) -> tuple[Array, Array]:
    """E k(tau + b xi) and 1 - E exp(-e^(tau + b xi))."""
    half = len(shift) // 2
    if joined:
        y = tau[0] + STEP * np.arange(-half, len(tau) + half)
        return np.convolve(_taken(y), p, "valid"), np.convolve(_lost(y), p, "valid")
    y = tau[:, None] + shift
    return _taken(y) @ p, _lost(y) @ p


def _taken(y: Array) -> Array:
    y = np.minimum(y, 50.0)  # exp(-e^50) is 0
    return np.exp(2 * y - np.exp(y))


def _lost(y: Array) -> Array:
    return -np.expm1(-np.exp(np.minimum(y, 50.0)))


# --- the diagram ---------------------------------------------------------------------------------------


class CollapseDiagram(NamedTuple):
    """Over beta (rows) and n (columns): b, b / b_c, f(0), rate 1 - f(0) and time log n / (1 - f(0))."""

    b: Tensor
    reduced: Tensor
    f: Tensor
    rate: Tensor
    time: Tensor


def collapse_diagram(
    beta: Any, n: Any, d: int, *, sigma_A: float | None = None, finite: bool = True
) -> CollapseDiagram:
    """Rate 1 - f(0) at which n orthonormal tokens collapse, f(0) = Phi_n(beta sigma_A^2 sqrt(d)).

    Near orthogonality overlaps grow at the rate 1 - f(0) from about 1/n on the rescaled clock, hence the
    time. Heads that look at one token (f near 1) only rotate tokens; those that average draw them together.
    More than d tokens cannot be orthonormal: for n > d it is a guide for tokens that nearly are, no theorem.

    Args:
        beta: inverse temperatures (p,), >= 0; n: context lengths (q,), >= 2; d: dimension.
        sigma_A: deviation of the entries of W and W', by default 1/sqrt(d).
        finite: average over |W'^T x| at this d, rather than take its limit.

    >>> from otflow.papers.homogenized import collapse_diagram
    >>> diagram = collapse_diagram([0.0, 100.0], [16, 256], 64)
    >>> diagram.rate.shape, round(diagram.time[0, 0].item(), 4)
    (torch.Size([2, 2]), 2.9574)
    """
    d = checks.count(d, "d")
    sigma = 1 / math.sqrt(d) if sigma_A is None else checks.positive(sigma_A, "sigma_A")
    (betas,), (lengths,) = numbers(beta=beta), numbers(n=n)
    if betas.ndim != 1 or lengths.ndim != 1:
        checks.fail(
            "shapes of beta, n",
            (betas.shape, lengths.shape),
            "two lists are needed",
            "pass beta=[...], n=[...]",
        )
    positive(lengths, "n")
    b, n = np.broadcast_arrays(betas[:, None] * sigma**2 * math.sqrt(d), lengths)
    f = participation(b, n, d=d if finite else math.inf)
    time = tensor(np.log(n)) / (1 - f)
    return CollapseDiagram(tensor(b), tensor(b) / critical_scale(n), f, 1 - f, time)
