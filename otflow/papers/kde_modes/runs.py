"""Runs that the claims and the pictures of this room look at: modes counted, and clusters on the circle."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import otflow as of
from otflow.papers import kde_modes

EXPONENTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.3, 1.6)  # beta = n^b
CURVE = (10_000, 300.0)  # n and beta of the curve in the paper's figure
HISTOGRAM = (10_000, 100.0, 80)  # n, beta and number of runs of its histogram
TIMES = np.geomspace(1.0, 100.0, 13)  # of the clusters on the circle
Array = NDArray[np.float64]


class ModeGrowth(NamedTuple):
    """Mean numbers of modes against beta for one n, their standard errors, and what is expected."""

    beta: Array
    mean: Array
    error: Array
    expected: Array


class CircleModes(NamedTuple):
    """Modes of the start (B,), and clusters (T, B) of attention and of the frozen estimator."""

    modes: Array
    clusters: Array
    frozen: Array


def sample() -> Array:
    """The tokens of the curve."""
    return np.random.default_rng(0).standard_normal(CURVE[0])


def counted(n: int, beta: float, runs: int) -> Array:
    """Numbers of modes in independent runs, some at a time."""
    rng, tile = np.random.default_rng(n), max(1, 1_000_000 // n)
    sizes = [min(tile, runs - start) for start in range(0, runs, tile)]
    tiles = [kde_modes.count_modes(rng.standard_normal((size, n)), beta) for size in sizes]
    return torch.cat(tiles).double().numpy()


def places(runs: int) -> tuple[Array, int]:
    """Where the modes of some runs with the n and beta of the curve are, all together."""
    (n, beta), rng = CURVE, np.random.default_rng(2)
    found = [kde_modes.mode_positions(rng.standard_normal(n), beta) for _ in range(runs)]
    return torch.cat(found).numpy(), runs


def in_belt(t: Array) -> NDArray[np.bool_]:
    """Which places are in the belt of the curve, on either side."""
    low, high = (edge.item() for edge in kde_modes.belt(*CURVE))
    return (np.abs(t) >= low) & (np.abs(t) <= high)


def threshold() -> float:
    """The smallest distance, to 2^-28, at which two tokens have two modes of bandwidth one."""
    low, high = 1.0, 3.0
    for _ in range(29):
        middle = (low + high) / 2
        low, high = (low, middle) if kde_modes.count_modes([0.0, middle], 1.0) == 2 else (middle, high)
    return high


def grown(n: int, tokens: int) -> ModeGrowth:
    """As many runs as there are tokens for, but more where there are few modes."""
    beta = float(n) ** np.array(EXPONENTS)
    expected = kde_modes.expected_modes(n, beta).numpy()
    runs = np.clip(tokens / n * np.clip(40 / expected, 0.3, 4), 10, 4000).astype(int)
    counts = [counted(n, b, r) for b, r in zip(beta.tolist(), runs.tolist(), strict=True)]
    mean, error = np.array([[c.mean(), c.std(ddof=1) / math.sqrt(len(c))] for c in counts]).T
    return ModeGrowth(beta, mean, error, expected)


def clustered(beta: float, runs: int, n: int = 64) -> CircleModes:
    """Clusters of n tokens drawn on the circle, under attention and under the estimator of their start."""
    theta = np.random.default_rng(int(beta)).uniform(0, 2 * np.pi, (runs, n))
    y, eye = torch.from_numpy(np.stack([np.cos(theta), np.sin(theta)], -1)), torch.eye(2, dtype=torch.float64)

    def depth(x: Tensor) -> Tensor:
        """Minus the logarithm of the estimator, whose steepest descent is mean shift."""
        return -torch.logsumexp(beta * (x @ y.mT - 1), -1) / beta

    def clusters(field: of.VelocityField) -> Array:
        traj = of.flow(
            of.Particles(y, space=of.Sphere()), field, of.RK4(), t1=TIMES[-1], dt=0.5, save_at=TIMES
        )
        x = traj.stacked.coords[0]
        return kde_modes.clusters_of_state(torch.atan2(x[..., 1], x[..., 0]), beta).double().numpy()

    moving = of.SoftmaxAttention(math.sqrt(beta) * eye, math.sqrt(beta) * eye, eye)
    frozen = of.SteepestDescent(of.Potential(depth), of.Wasserstein())
    modes = kde_modes.count_modes_circle(theta, beta).double().numpy()
    return CircleModes(modes, clusters(moving), clusters(frozen))


def damped(n: float, beta: float, power: int) -> float:
    """sqrt(beta) int M(nu) exp(-A_t) dt, with n to some power in A_t."""
    t = np.linspace(-9, 9, 20_001)
    M = kde_modes.shot_noise_modes(n * np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi * beta))
    density = math.sqrt(beta) * M * (-kde_modes.drift_damping(t, n**power, beta)).exp()
    return float(np.trapezoid(density.numpy(), t))
