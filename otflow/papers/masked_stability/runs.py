"""The runs: how distances between sequences grow under masked attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import iv

import otflow as of
from otflow.papers.masked_stability.long_sequences import Array, on_curve
from otflow.stability.bounds.a_priori import a_priori
from otflow.stability.coupled import coupled
from otflow.transport.exact.sequences import positions

# Of no symmetry; V turns tokens while it drives them out.
Q, K, V = ((0.7, 0.2), (-0.3, 0.5)), ((0.6, -0.4), (0.1, 0.7)), ((0.3, -0.8), (0.8, 0.3))
TIME = 1.0


class MaskedEstimate(NamedTuple):
    """log d_p(mu_t, nu_t) / d_p(mu_0, nu_0) of several perturbations (T, B), and its bound (T,)."""

    t: Array
    gain: Array
    bound: Array


class DistanceGrowth(NamedTuple):
    """By how much d_1 and d_2 grow when the first of n tokens moves, and d_2 at worst (measured)."""

    n: Array
    one: Array
    two: Array
    worst: Array


class Orders(NamedTuple):
    """Two orders of the same tokens: both runs, and the distances between them."""

    mu: of.Trajectory
    nu: of.Trajectory
    plain: Array
    conditional: Array
    offsets: Array  # sizes of a perturbation that is added to the second one ...
    ratios: Array  # ... and the growth of W_2 then


def bessel_mean(n: float, t: float) -> float:
    """E I_0(2 sqrt(t M)), M the largest of n standard exponential variables: sum of column one of exp(t C).

    E f(M) = f(0) + int f'(s) (1 - (1 - exp(-s))^n) ds, with s = r^2.

    >>> from otflow.papers.masked_stability.runs import bessel_mean
    >>> bessel_mean(1, 1.0)  # exp(t)
    2.7183
    """
    c, end = 2 * math.sqrt(t), math.sqrt(math.log(n) + 45.0)  # M is beyond end^2 with probability 1e-19

    def integrand(r: float) -> float:
        return -c * float(iv(1, c * r)) * math.expm1(n * math.log1p(-math.exp(-r * r))) if r > 0 else 0.0

    return 1.0 + float(quad(integrand, 0.0, end, limit=200, epsabs=0.0, epsrel=1e-11)[0])


def harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n.

    >>> from otflow.papers.masked_stability.runs import harmonic
    >>> harmonic(2)
    1.5
    """
    return math.fsum(1 / np.arange(1, n + 1))


def attention() -> of.VelocityField:
    """Causal softmax attention with the weights of this experiment.

    >>> from otflow.papers.masked_stability.runs import attention
    >>> attention()
    SoftmaxAttention(d=2, causal=True)
    """
    return of.SoftmaxAttention(Q, K, V, causal=True)


def estimate(field: of.VelocityField, p: float, n: int, d: int, rng: np.random.Generator) -> MaskedEstimate:
    """Perturbations of n tokens in B_(1/2): eight of all tokens, eight of the first, eight that fade away.

    >>> import numpy as np
    >>> from otflow.papers.masked_stability.runs import average, estimate
    >>> found = estimate(average(), 2.0, 4, 1, np.random.default_rng(0))
    >>> bool((found.gain <= found.bound[:, None]).all())
    True
    """
    x = rng.uniform(-0.35, 0.35, (n, d))
    move = rng.normal(size=(24, n, d))
    move[8:16, 1:] = 0.0
    # Moves i^(-1/p), whose powers of order p just fail to be summable: the worst for Hardy's inequality.
    move[16:] = rng.normal(size=(8, 1, d)) * np.arange(1, n + 1)[:, None] ** (-1 / p)
    y = x + 1e-3 * move / np.abs(move).max((1, 2), keepdims=True)
    mu, nu = (of.Particles(z, label=positions(n)) for z in (x, y))
    both = coupled(mu, nu, field, of.RK4(), t1=TIME, dt=0.05, p=p)
    bound = a_priori(field, 0.5, t1=TIME, ts=both.ts, p=p).log_C
    return MaskedEstimate(both.ts.numpy(), both.ratios.log().numpy(), bound.numpy())


def average() -> of.VelocityField:
    """Each token follows the mean of the tokens up to its own: A = 0, V = I, on the line.

    >>> import otflow as of
    >>> from otflow.papers.masked_stability.runs import average
    >>> average()(0.0, of.Particles([[1.0], [3.0]], label=[0, 1]))[0].flatten().tolist()
    [1.0, 2.0]
    """
    return of.SoftmaxAttention([[0.0]], [[0.0]], [[1.0]], causal=True)


def velocities(sizes: tuple[int, ...]) -> DistanceGrowth:
    """The growth from tokens to velocities.

    >>> from otflow.papers.masked_stability.runs import velocities
    >>> velocities((2,)).one.tolist()
    [1.5]
    """
    return _growth(sizes, lambda mu: of.Particles(average()(0.0, mu)[0], label=mu.label))


def growth(sizes: tuple[int, ...]) -> DistanceGrowth:
    """The growth from t = 0 to t = 1 along the flow.

    >>> from otflow.papers.masked_stability.runs import growth
    >>> growth((1,)).one.round(5).tolist()
    [2.71828]
    """

    def end(mu: of.Particles) -> of.Measure:
        return of.flow(mu, average(), of.RK4(), t1=TIME, dt=TIME / 20, save_at=[TIME]).final

    return _growth(sizes, end)


def _growth(sizes: tuple[int, ...], to: Callable[[of.Particles], of.Measure]) -> DistanceGrowth:
    """From sequences of zeros and their perturbations to what ``to`` makes of them."""
    rows = []
    for n in sizes:
        # Two perturbations at once: the first token, and i^(-1/2), which nearly attains Hardy's constant.
        fading = torch.arange(1, n + 1, dtype=torch.float64) ** -0.5
        moves = torch.stack([torch.eye(1, n).double()[0], fading])[..., None]
        mu, nu = (of.Particles(x, label=positions(n)) for x in (torch.zeros_like(moves[0]), moves))
        after, then, d = to(mu), to(nu), of.conditional_wasserstein
        (one, _), two = ((d(after, then, p) / d(mu, nu, p)).tolist() for p in (1, 2))
        rows.append([one, *two])
    return DistanceGrowth(np.array(sizes), *np.array(rows).T)


def reordered(n: int) -> Orders:
    """A spiral read from inside and from outside.

    >>> from otflow.papers.masked_stability.runs import reordered
    >>> abs(reordered(4).plain[0].item()) < 1e-12
    True
    """
    mu, offsets = on_curve(n), 10.0 ** -torch.arange(1.0, 5.0).double()
    nu, near = (of.Particles(mu.x.flip(0) + h, label=mu.label) for h in (0.0, offsets[:, None, None]))
    a, b, c = (of.flow(one, attention(), of.RK4(), t1=TIME, dt=0.05) for one in (mu, nu, near))
    plain, conditional = (
        np.array([float(d(u, v)) for u, v in zip(a.measures, b.measures, strict=True)])
        for d in (of.wasserstein, of.conditional_wasserstein)
    )
    ratios = of.wasserstein(a.final, c.final) / of.wasserstein(mu, near)
    return Orders(a, b, plain, conditional, offsets.numpy(), ratios.numpy())
