"""Runs that the claims and the pictures of `lost-in-the-middle` look at."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

import otflow as of
from otflow.papers import lost_in_the_middle as causal

BETA = LAM = 1.0  # with M words and these times: the setting of the figure
M, N = 8, 64
TIMES = (0.25, 0.5, *np.arange(1.0, 2.05, 0.1).round(1).tolist(), 5.0)
GRID = np.linspace(0.02, 0.98, 800)
SIZES = (64, 128, 256, 512, 1024)
CUTS = np.cumsum([0, 2, 4, 6, 8, 10, 10, 10, 8, 5])  # of 63 positions; narrow where the profile is steep
KAPPA = 0.8  # of von Mises' law, for prompts that are not uniform
Array = np.ndarray


class Blocks(NamedTuple):
    """N times correlations (or a score), averaged over blocks of positions: values and errors (9,)."""

    value: Array
    error: Array


class Phases(NamedTuple):
    """Where the minimum of the profile lies, (beta, t); 1 where it falls to the end."""

    t: Array
    beta: Array
    where: Array


# --- closed forms --------------------------------------------------------------------------------------


def profile(sigma0: Any, t: Any, beta: Any = BETA, lam: Any = LAM, modes: int = 20) -> Array:
    """The score S_t(sigma_0) among M words."""
    return np.asarray(causal.retrieval_profile(sigma0, t, beta, lam, M, modes=modes))


def middle(n: int) -> Array:
    """Positions (i - 1/2) / N of the tokens before the last."""
    return (np.arange(n - 1) + 0.5) / n


def blocks(values: Any) -> Array:
    """Means over nine blocks of the positions before the last, (..., n - 1) -> (..., 9)."""
    values = np.asarray(values)
    cuts = CUTS * ((values.shape[-1] + 1) // N)
    return np.stack([values[..., a:b].mean(-1) for a, b in pairwise(cuts)], -1)


def theory(n: int = N) -> Array:
    """Modes 1 and 2 of the response and the score at t = 1, at the positions `middle`, (3, n - 1)."""
    g = [causal.response(1.0, 1.0, middle(n), causal.coupling(k, BETA), LAM) for k in (1, 2)]
    return np.stack([*g, profile(middle(n), 1.0)])


def phase_diagram(size: int) -> Phases:
    """The minimum over positions for size times and as many temperatures."""
    t, beta = np.geomspace(0.03, 6.0, size), np.linspace(0.3, 3.0, size)
    sigma0 = np.concatenate([np.linspace(0.005, 0.99, 80), [1 - 1e-6]])
    return Phases(t, beta, sigma0[profile(sigma0, t[:, None], beta[:, None, None]).argmin(-1)])


def recency_ends(beta: float) -> float:
    """The time at which dS/dsigma changes sign at 1, by a polynomial through eight points before it."""
    h = np.linspace(1e-3, 0.02, 8)
    return float(brentq(lambda t: -np.polyfit(h, profile(1 - h, t, beta), 7)[-2], 0.01, 10.0, xtol=1e-12))


# --- finite prompts ------------------------------------------------------------------------------------


def finite_error(n: int) -> float:
    """The largest |N (exp(at Omega))_{N,i} - g| over positions from 0.02 on, at t = beta = lam = 1."""
    row = n * causal.finite_response(causal.alibi_matrix(n, LAM), causal.coupling(1, BETA), 1.0)[:-1]
    return float(np.abs(row.numpy() - theory(n)[0])[middle(n) >= 0.02].max())


def other_weights(n: int = 512) -> dict[str, Tensor]:
    """Scores by the matrix exponential for windows, and for two heads, which have half of the time each."""
    near = causal.alibi_matrix(n, LAM, window=32)
    cases = {
        r"ALiBi, $\lambda = 1$": (causal.alibi_matrix(n, LAM), 1.0),
        "window of 128": (causal.alibi_matrix(n, LAM, window=128), 1.0),
        "window of 32": (near, 1.0),
        r"window of 32, and a head of $\lambda = 0$": (torch.stack([near, causal.alibi_matrix(n, 0.0)]), 0.5),
    }
    return {name: causal.finite_profile(Omega, t, BETA, M) for name, (Omega, t) in cases.items()}


# --- simulations ---------------------------------------------------------------------------------------


def moved(x: Tensor, modes: int) -> Tensor:
    """Angles (B, N) of prompts at time one."""
    field = causal.CausalAlibi(BETA, LAM, modes=modes)
    return causal.angles(of.flow(causal.tokens(x), field, of.RK4(), t1=1.0, dt=0.25, save_at=[1.0]).final)


def sampled(n: int, prompts: int, *, slopes: bool) -> list[Blocks]:
    """N E[u(theta_N(t) - theta_i(0))] for the u of `_read`; by slopes, N E[d theta_N / d theta_i u]."""
    rng, chunk = np.random.default_rng(int(slopes)), 32_000 // n
    samples = []
    for _ in range(math.ceil(prompts / chunk)):
        x = causal.angles(causal.prompts(n, rng=rng, batch=(chunk,))).requires_grad_(slopes)
        reader = moved(x, 7)[:, -1]
        factor = torch.autograd.grad(reader.sum(), x)[0] if slopes else torch.ones_like(x)
        gap = (reader[:, None] - x).detach()
        samples.append([blocks((n * factor * u)[:, :-1]) for u in _read(gap)])
    parts = [np.concatenate(part) for part in zip(*samples, strict=True)]
    return [Blocks(part.mean(0), part.std(0) / math.sqrt(len(part))) for part in parts]


def _read(gap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Modes 1 and 2, and the soft accuracy above chance in units of the score; all have mean zero."""
    above = causal.soft_accuracy(gap, 0.0, M) - causal.accuracy(0.0, 1, M)
    return gap.cos(), (2 * gap).cos(), above * M / math.sqrt(2 * math.pi)


def law_of_tokens(prompts: int) -> Array:
    """|E exp(i theta)| at t = 1 in ten stretches of prompts of 2000 tokens that start with von Mises' law."""
    x = torch.from_numpy(np.random.default_rng(2).vonmises(0.0, KAPPA, (prompts, 2000)))
    return np.array([part.cos().mean() for part in moved(x, 8).chunk(10, -1)])


def four_clusters() -> tuple[Array, Array]:
    """Times, and angles (T, N) that do not wrap, of a prompt that starts in four clusters."""
    rng, ts = np.random.default_rng(17), np.linspace(0, 10, 201)
    theta = np.pi / 2 * rng.integers(4, size=N) + 0.15 * rng.normal(size=N)
    traj = of.flow(causal.tokens(theta), causal.CausalAlibi(BETA, LAM), of.Dopri5(), t1=10.0, save_at=ts)
    return ts, np.unwrap(np.asarray(causal.angles(traj.stacked)), axis=0)


def follower_rate(h: float = 1e-4) -> float:
    """d/dt E cos(theta_2 - theta_1) at t = 0 for prompts of two tokens: the second hears the first."""
    theta = np.stack([np.zeros(256), 2 * np.pi * np.arange(256) / 256], -1)
    end = of.flow(causal.tokens(theta), causal.CausalAlibi(BETA, LAM), of.RK4(), t1=h, dt=h).final
    return float(causal.angles(end)[:, 1].cos().mean() / h)
