"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.papers import lost_in_the_middle as causal

KAPPA = 0.8

BETA = LAM = 1.0
M, N = 8, 64
TIMES = (0.25, 0.5, *np.arange(1.0, 2.05, 0.1).round(1).tolist(), 5.0)  # of the paper's figure
GRID = np.linspace(0.02, 0.98, 800)
CUTS = np.cumsum([0, 2, 4, 6, 8, 10, 10, 10, 8, 5])
SIZES = (64, 128, 256, 512, 1024)
Array = np.ndarray


class Blocks(NamedTuple):
    """N times correlations (or a score), averaged over blocks of positions: values and errors (9,)."""

    value: Array
    error: Array


class Simulation(NamedTuple):
    """Correlations of modes 1 and 2, and the retrieval score: plain means over prompts, and by slopes."""

    prompts: int
    plain: list[Blocks]
    slopes: list[Blocks]


def profile(sigma0: Any, t: Any, beta: Any = BETA, lam: Any = LAM, modes: int = 20) -> Array:
    return np.asarray(causal.retrieval_profile(sigma0, t, beta, lam, M, modes=modes))


class Phases(NamedTuple):
    """Where the minimum of the profile lies, (beta, t); 1 where it falls to the end."""

    t: Array
    beta: Array
    where: Array


def middle(n: int) -> Array:
    """Positions (i - 1/2) / N of the tokens before the last."""
    return (np.arange(n - 1) + 0.5) / n


def blocks(values: Any) -> Array:
    """Means over nine blocks of the positions before the last, (..., n - 1) -> (..., 9)."""
    values = np.asarray(values)
    cuts = CUTS * ((values.shape[-1] + 1) // N)
    return np.stack([values[..., a:b].mean(-1) for a, b in pairwise(cuts)], -1)


def theory(n: int = N) -> list[Array]:
    """The closed forms of modes 1, 2 and of the score, in the same blocks."""
    g = [blocks(causal.response(1.0, 1.0, middle(n), causal.coupling(k, BETA), LAM)) for k in (1, 2)]
    return [*g, blocks(profile(middle(n), 1.0))]


def phase_diagram(size: int) -> Phases:
    t, beta = np.geomspace(0.03, 6.0, size), np.linspace(0.3, 3.0, size)
    sigma0 = np.concatenate([np.linspace(0.005, 0.99, 80), [1 - 1e-6]])
    S = profile(sigma0, t[:, None], beta[:, None, None])
    return Phases(t, beta, sigma0[S.argmin(-1)])


def finite_error(n: int) -> float:
    """The largest |N (exp(at Omega))_{N,i} - g| over positions from 0.02 on, at t = beta = lam = 1."""
    a, sigma0 = causal.coupling(1, BETA), middle(n)
    row = n * causal.finite_response(causal.alibi_matrix(n, LAM), a, 1.0)[:-1]
    gap = (row - causal.response(1.0, 1.0, sigma0, a, LAM)).abs().numpy()
    return float(gap[sigma0 >= 0.02].max())


def last_token(x: Tensor, modes: int = 7) -> Tensor:
    """Where the last token of prompts (B, N) is at time one."""
    field = causal.CausalAlibi(BETA, LAM, modes=modes)
    end = of.flow(causal.tokens(x), field, of.RK4(), t1=1.0, dt=0.25, save_at=[1.0]).final
    return causal.angles(end)[:, -1]


def simulation(prompts: int, fewer: int) -> Simulation:
    """Uniform prompts of N tokens until t = 1."""
    return Simulation(prompts, sampled(N, prompts, slopes=False), sampled(N, fewer, slopes=True))


def sampled(n: int, prompts: int, *, slopes: bool) -> list[Blocks]:
    """N E[u(theta_N(t) - theta_i(0))] for the u of `_read`; by slopes, N E[d theta_N / d theta_i u]."""
    rng, chunk = np.random.default_rng(int(slopes)), 32_000 // n
    samples = []
    for _ in range(math.ceil(prompts / chunk)):
        x = causal.angles(causal.prompts(n, rng=rng, batch=(chunk,))).requires_grad_(slopes)
        reader = last_token(x)
        factor = torch.autograd.grad(reader.sum(), x)[0] if slopes else torch.ones_like(x)
        gap = (reader[:, None] - x).detach()
        samples.append([blocks((n * factor * u)[:, :-1]) for u in _read(gap)])
    return [_mean(np.concatenate(parts)) for parts in zip(*samples, strict=True)]


def _read(gap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Modes 1 and 2, and the soft accuracy above chance in units of the score; all have mean zero."""
    above = causal.soft_accuracy(gap, 0.0, M) - causal.accuracy(0.0, 1, M)
    return gap.cos(), (2 * gap).cos(), above * M / math.sqrt(2 * math.pi)


def _mean(samples: Array) -> Blocks:
    return Blocks(samples.mean(0), samples.std(0) / math.sqrt(len(samples)))


def vonmises(theta: Any) -> Any:
    return np.exp(KAPPA * np.cos(theta))


def law_of_tokens(prompts: int) -> Array:
    """|E exp(i theta)| at t = 1 in ten stretches of prompts of 2000 tokens that start with von Mises' law."""
    x = torch.from_numpy(np.random.default_rng(2).vonmises(0.0, KAPPA, (prompts, 2000)))
    field = causal.CausalAlibi(BETA, LAM, modes=8)
    end = of.flow(causal.tokens(x), field, of.RK4(), t1=1.0, dt=0.25, save_at=[1.0]).final
    return np.array([part.cos().mean() for part in causal.angles(end).chunk(10, -1)])


def four_clusters() -> tuple[Array, Array]:
    """Times, and angles (T, N) that do not wrap, of a prompt that starts in four clusters."""
    rng = np.random.default_rng(17)
    theta = np.pi / 2 * rng.integers(4, size=N) + 0.15 * rng.normal(size=N)
    ts = np.linspace(0, 10, 201)
    traj = of.flow(
        causal.tokens(theta),
        causal.CausalAlibi(BETA, LAM),
        of.Dopri5(),
        t1=10.0,
        save_at=ts,
    )
    return ts, np.unwrap(np.asarray(causal.angles(traj.stacked)), axis=0)


def end_slope(t: float, beta: float) -> float:
    """dS/dsigma at 1, from a polynomial through eight points before it."""
    h = np.linspace(1e-3, 0.02, 8)
    return -float(np.polyfit(h, profile(1 - h, t, beta), 7)[-2])
