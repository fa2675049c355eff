"""Closed laws of overlaps: tokens at equal angles, high temperature, low temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from scipy.special import softmax
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import Array, at_least_zero, between, insist, numbers, tensor
from otflow.base.spaces import Sphere
from otflow.base.tangent import Tangent
from otflow.dynamics.flow import flow
from otflow.dynamics.noise import IndependentNoise
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles
from otflow.papers.homogenized.random_energy import chi_rule, participation
from otflow.papers.homogenized.weights import Seed
from otflow.steppers import Dopri5, Euler

CHUNK = 2**19  # scores at once
NODES = 33  # of gamma, between which f and g are interpolated


# --- tokens at equal angles ----------------------------------------------------------------------------


def simplex(n: int, d: int, gamma: float = 0.0) -> Particles:
    """n tokens on the sphere of R^d, all at inner products gamma; orthonormal ones if gamma = 0.

    Args:
        n: number of tokens, in [2, d]; gamma: in (-1/(n - 1), 1].

    >>> from otflow.papers.homogenized import simplex
    >>> x = simplex(3, 4, 0.5).x
    >>> (x @ x.mT)[0]
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    n, d = several(n), checks.count(d, "d")
    if n > d:
        checks.fail("n", n, f"at most d = {d} tokens are independent", f"choose n <= {d}")
    gamma = one_angle(gamma, "gamma", n)
    # (a I + c 1 1^T)^2 has 1 on the diagonal and gamma beside it.
    a = math.sqrt(1 - gamma)
    c = (math.sqrt(1 + (n - 1) * gamma) - a) / n
    x = torch.zeros(n, d, dtype=torch.float64)
    x[:, :n] = a * torch.eye(n, dtype=torch.float64) + c
    return Particles(x, space=Sphere())


def several(n: int) -> int:
    """At least two tokens."""
    if checks.count(n, "n") < 2:
        checks.fail("n", n, "two tokens at least are needed", "choose n >= 2")
    return int(n)


def equal_angles(gamma: Any, n: int) -> Array:
    """Numbers in (-1/(n - 1), 1], the inner products that n tokens can have at equal angles."""
    (values,) = numbers(gamma=gamma)
    rule = f"{n} tokens have equal inner products in (-1/{n - 1}, 1]"
    insist(
        (values > -1 / (n - 1)) & (values <= 1),
        "gamma",
        values,
        rule,
        f"pass gamma in (-1/{n - 1}, 1], 0.0 say",
    )
    return values


def one_angle(gamma: float, name: str, n: int) -> float:
    """One such number."""
    return float(equal_angles(checks.number(gamma, name), n))


class Ratios(NamedTuple):
    """f = E sum_k pi_ik^2 and g = E sum_k pi_ik pi_jk, i != j, with the standard error of g."""

    f: Tensor
    g: Tensor
    error: Tensor


def simplex_ratios(
    gamma: Any, n: int, b: float, *, d: float = math.inf, samples: int = 8192, rng: Seed = 0
) -> Ratios:
    """f(gamma) = E sum_k pi_ik^2 and g(gamma) = E sum_k pi_ik pi_jk for n tokens at inner products gamma.

    Given the queries q_i = W'^T x_i, scores are normal, and what tokens have in common cancels in the
    softmax: row i has scores b |q_i| sqrt(1 - gamma) xi_k, and rows i and j have correlation cos(q_i, q_j).
    Norms and angle are those of two normal vectors of R^d of correlation gamma (in units of sqrt(d) sigma_A);
    for d = infinity norms are 1 and the cosine is gamma. f is a quadrature, g a mean over samples.

    Args:
        gamma: in (-1/(n - 1), 1], any shape; n: number of tokens, >= 2.
        b: beta sigma_A^2 sqrt(d), see `GaussianWeights.logit_scale`, >= 0.
        d: dimension, or infinity.
        samples: how many, for g; every gamma sees the same numbers, so that g is smooth.
        rng: a seed or a `numpy.random.Generator`, for these samples.

    >>> from otflow.papers.homogenized import simplex_ratios
    >>> simplex_ratios(0.0, 8, 0.0).f.item(), simplex_ratios(0.0, 8, 0.0).g.item()
    (0.125, 0.125)
    >>> ratios = simplex_ratios([0.0, 1.0], 8, 3.0)
    >>> ratios.f
    tensor([0.5727, 0.1250], dtype=torch.float64)
    """
    n, b = several(n), checks.number(b, "b")
    at_least_zero(b, "b")
    values, total = equal_angles(gamma, n), checks.count(samples, "samples")
    f = participation(b * np.sqrt(1 - values), n, d=d)
    rng = checks.generator(rng)
    sums = np.zeros((2, *values.shape))
    for k in range(0, total, step := max(1, CHUNK // n)):
        sums += _moments(values, n, b, d, min(step, total - k), rng)
    mean = sums[0] / total
    spread = np.sqrt(np.maximum(sums[1] / total - mean**2, 0.0) / total)
    return Ratios(f, tensor(mean), tensor(spread))


def _moments(gamma: Array, n: int, b: float, d: float, size: int, rng: np.random.Generator) -> Array:
    """Sums of g and g^2 over samples, for every gamma."""
    queries, z = _Queries.draw(d, size, rng), rng.standard_normal((2, size, n))
    out = np.zeros((2, gamma.size))
    for i, c in enumerate(gamma.flat):
        first, second, cosine = queries.at(float(c))
        scale = b * math.sqrt(1 - c)
        p = softmax(scale * first[:, None] * z[0], axis=-1)
        mixed = cosine[:, None] * z[0] + np.sqrt(1 - cosine**2)[:, None] * z[1]
        q = (p * softmax(scale * second[:, None] * mixed, axis=-1)).sum(-1)
        out[:, i] = q.sum(), (q**2).sum()
    return out.reshape(2, *gamma.shape)


class _Queries(NamedTuple):
    """Two queries: one along an axis, and what the other has along it and across, all over sqrt(d)."""

    norm: Array
    along: Array
    across: Array
    flat: bool

    @classmethod
    def draw(cls, d: float, size: int, rng: np.random.Generator) -> _Queries:
        if d == math.inf:
            return cls(np.ones(size), np.zeros(size), np.ones(size), True)
        chi_rule(d)  # checks d
        norm, across = (np.sqrt(rng.chisquare(k, size) / d) if k else np.zeros(size) for k in (d, d - 1))
        return cls(norm, rng.standard_normal(size) / math.sqrt(d), across, False)

    def at(self, gamma: float) -> tuple[Array, Array, Array]:
        """Norms and cosine at correlation gamma."""
        rest = math.sqrt(1 - gamma**2)
        x, y = gamma * self.norm + rest * self.along, rest * self.across
        second = np.hypot(x, y)
        return self.norm, second, np.clip(x / second, -1, 1)


def simplex_velocity(gamma: Any, f: Any, g: Any, d: float = math.inf) -> Tensor:
    """gamma' = (d - 2 + gamma^2)/d (gamma + (1 - gamma) g) - (d - 1)/d gamma (gamma + (1 - gamma) f).

    The drift of overlaps of tokens at equal angles, where s_ii = gamma + (1 - gamma) f and s_ij the same with
    g. For d = infinity it is (1 - gamma)(gamma + g - gamma f), the form that the paper prints.

    Args:
        gamma: in [-1, 1]; f, g: `simplex_ratios` at gamma; d: dimension, or infinity.

    >>> from otflow.papers.homogenized import simplex_velocity
    >>> simplex_velocity(0.0, 0.125, 0.125, 64).item(), simplex_velocity(0.0, 0.125, 0.125).item()
    (0.12109375, 0.125)

    Reference: Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978, on simplex data; exact in d, ours.
    """
    gamma, f, g = numbers(gamma=gamma, f=f, g=g)
    between(-1, 1, np.abs(gamma) <= 1, "gamma", gamma, "a cosine is in [-1, 1]")
    if d != math.inf:
        chi_rule(d)
    drawn = (1 - (2 - gamma**2) / d) * (gamma + (1 - gamma) * g)
    return tensor(drawn - (1 - 1 / d) * gamma * (gamma + (1 - gamma) * f))


def simplex_overlap(
    t: Any, n: int, b: float, *, d: float = math.inf, gamma0: float = 0.0, samples: int = 8192, rng: Seed = 0
) -> Tensor:
    """gamma(t) on the rescaled clock: the solution of `simplex_velocity` from gamma0, shape of t.

    It leaves out fluctuations: overlaps of a chain have this drift while they are equal, and spread by
    O(1/sqrt(d)).

    Args:
        t: times, >= 0, any shape.
        n, b, d, samples, rng: as in `simplex_ratios`, tabulated at 33 values of gamma; n <= d.
        gamma0: at time zero, in (-1/(n - 1), 1].

    >>> from otflow.papers.homogenized import simplex_overlap
    >>> simplex_overlap([0.0, 1.44, 2.88], 8, 0.0)  # beta = 0: m = gamma + (1 - gamma)/n is logistic
    tensor([0.0000, 0.2870, 0.6776], dtype=torch.float64)
    """
    n, (times,) = several(n), numbers(t=t)
    at_least_zero(times, "t")
    start = one_angle(gamma0, "gamma0", n)
    if n > d:
        checks.fail("n", n, f"at most d = {d} tokens are at equal angles", f"choose n <= {d}")
    if start == 1.0:
        return tensor(np.ones_like(times))
    grid = np.linspace(min(start, 0.0), 1.0, NODES)  # gamma' >= 0 at gamma = 0
    ratios = simplex_ratios(grid, n, b, d=d, samples=samples, rng=rng)
    f, g = (CubicSpline(grid, a.numpy()) for a in ratios[:2])

    def rate(gamma: Array) -> Array:
        c = np.clip(gamma, grid[0], 1.0)
        return simplex_velocity(c, f(c), g(c), d).numpy()

    return _solved(rate, start, times)


class _Scalar(VelocityField):
    """x' = rate(x) for each coordinate."""

    def __init__(self, rate: Callable[[Array], Array]) -> None:
        self.rate = rate

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        return Tangent([torch.as_tensor(self.rate(mu.coords[0].numpy()))])


def _solved(rate: Callable[[Array], Array], start: float, times: Array) -> Tensor:
    """The solution of a scalar ODE at all times."""
    at, where = np.unique(times, return_inverse=True)
    later = at[at > 0]
    if not later.size:
        return tensor(np.full(times.shape, start))
    run = flow(
        Particles([[start]]), _Scalar(rate), Dopri5(rtol=1e-8, atol=1e-10), t1=later[-1], save_at=later
    )
    values = [start] * int(at[0] == 0) + [m.coords[0].item() for m in run.measures]
    return tensor(np.array(values)[where].reshape(times.shape))


# --- high temperature ----------------------------------------------------------------------------------


def logistic(t: Any, u0: Any) -> Tensor:
    """u = u0 / (u0 + (1 - u0) e^-t), the solution of u' = u (1 - u): mean overlap at high temperature.

    The mean overlap n^-2 sum_ij R_ij follows it up to C e^(C t) max(1/d, d^2 sigma_A^4 beta^2) and
    fluctuations of the order sqrt(t/d).

    Args:
        t: rescaled time, >= 0; u0: mean overlap at time zero, in [0, 1].

    >>> from otflow.papers.homogenized import logistic
    >>> logistic([0.0, 1.0], 0.5)
    tensor([0.5000, 0.7311], dtype=torch.float64)

    Reference: Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978, high temperature.
    """
    t, u0 = numbers(t=t, u0=u0)
    at_least_zero(t, "t")
    between(0, 1, (u0 >= 0) & (u0 <= 1), "u0", u0, "a mean overlap |mean of x|^2 is in [0, 1]")
    return tensor(u0 / np.where(u0 > 0, u0 + (1 - u0) * np.exp(-t), 1.0))


# --- low temperature -----------------------------------------------------------------------------------


def aligned_probability(u0: Any) -> Tensor:
    """P(u -> 1) = 1/2 + arcsin(u0) / pi for du = -u (1 - u^2) dt + sqrt(2) (1 - u^2) dB; else u -> -1.

    arcsin u is a bounded martingale, and both ends absorb.

    Args:
        u0: overlap at time zero, in [-1, 1].

    >>> from otflow.papers.homogenized import aligned_probability
    >>> aligned_probability([-1.0, 0.0, 0.5])
    tensor([0.0000, 0.5000, 0.6667], dtype=torch.float64)

    Reference: Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978, low temperature.
    """
    return tensor(0.5 + np.arcsin(_cosines(u0)) / np.pi)


def _cosines(u0: Any) -> Array:
    (values,) = numbers(u0=u0)
    between(-1, 1, np.abs(values) <= 1, "u0", values, "an overlap is in [-1, 1]")
    return values


def low_temperature_paths(
    u0: Any, t: Any, *, samples: int, rng: Seed, dt: float = 0.02, c: float = 1.0
) -> Tensor:
    """Overlaps u(t) of du = -c u (1 - u^2) dt + sqrt(2) (1 - u^2) dB, (len(t), samples, len(u0)).

    The limit for two tokens among very many at zero temperature: insert s_ii = 1, s_ij = R_ij in the drift
    and the bracket of overlaps for c = 1. With y = artanh u it reads dy = (2 - c) tanh(y) dt + sqrt(2) dB,
    which Euler and Maruyama's steps of `otflow.flow` solve, no end of the interval in the way.

    Which c: near the uniform law m_A(x) = A x / |A x|, and s_ij = R_ij if A is a multiple of a rotation. For
    A = W W'^T with square normal W and W', s_ij = R_ij (1 - (1 - R_ij^2)/d + O(d^-2)), since each factor
    takes a half of that from the cosine, and over times of order d this adds to the drift as much again:
    c = 2, where y is a Brownian motion, and pairs go on changing their sign (ours; c = 1 is what is printed).

    Args:
        u0: overlaps at time zero, a list or a number, in (-1, 1).
        t: increasing times >= 0, the clock of `chain` over d.
        samples, dt, c: number of paths, step, and the c above.
        rng: a seed or a `numpy.random.Generator`.

    >>> from otflow.papers.homogenized import low_temperature_paths
    >>> u = low_temperature_paths([0.0, 0.5], [1.0, 20.0], samples=500, rng=0)
    >>> u.shape, round((u[-1].abs() > 0.99).double().mean().item(), 1)
    (torch.Size([2, 500, 2]), 1.0)
    """
    start, (times,), c = np.atleast_1d(_cosines(u0)), numbers(t=np.atleast_1d(t)), checks.number(c, "c")
    insist(np.abs(start) < 1, "u0", start, "tokens at an end stay there", "choose u0 in (-1, 1)")
    at_least_zero(times, "t")
    if start.ndim != 1 or times.ndim != 1 or not times.size or (np.diff(times) <= 0).any():
        checks.fail(
            "u0, t",
            (start.shape, times.shape),
            "two lists, t increasing, are needed",
            "pass u0=[...], t=np.sort(t)",
        )
    y = np.broadcast_to(np.arctanh(start), (checks.count(samples, "samples"), start.size))
    later = times[times > 0]
    kept = [y] * int(times[0] == 0)
    if later.size:
        noise = IndependentNoise(math.sqrt(2), rng=checks.generator(rng))
        pull = _Scalar(lambda y: np.multiply(2 - c, np.tanh(y)))
        run = flow(Particles(y), pull, Euler(), t1=later[-1], dt=dt, noise=noise, save_at=later)
        kept += [m.coords[0].numpy() for m in run.measures]
    return tensor(np.tanh(np.stack(kept)))
