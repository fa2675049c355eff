"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

import otflow as of
from otflow.reproduce.fits import slope
from otflow.stability.local_constant import local_constant
from otflow.stability.smoothness import (
    adversarial_tokens,
    ball_bound,
    mean_field_bound,
)

EYE = torch.eye(2, dtype=torch.float64)

NARROW = 2.0  # |A| R^2 in the ball where it does not
SIGNS = {"A = -I": -1.0, "A = I": 1.0}
Array = np.ndarray


class SmoothnessCurve(NamedTuple):
    """Local constants of adversarial tokens, and the median over clouds drawn in the same disc, against n."""

    field: of.SoftmaxAttention
    R: float
    adversarial: Array
    drawn: Array


def many() -> tuple[Array, float]:
    """Numbers of tokens up to a million, and the sign of A."""
    return np.geomspace(2, 1e6, 60), -1.0


class Peaks(NamedTuple):
    """y = |A| R^2, the largest constant found over all n, and the logarithms of two bounds for all n."""

    y: Array
    found: Array
    ball: Array
    published: Array


def exponent(n: Any, values: Any) -> float:
    """The exponent of n, from n = 30 on, where n and n - 1 are alike."""
    keep = np.asarray(n) >= 30
    return slope(np.asarray(n)[keep], np.asarray(values)[keep])


def _field(sign: float, masked: bool = False) -> of.SoftmaxAttention:
    return of.SoftmaxAttention(sign * EYE, EYE, EYE, causal=masked)


def in_disc(R: float, n: int) -> of.Particles:
    """Some clouds of n tokens drawn uniformly in the disc, labelled in the order in which they were drawn."""
    rng, shape = np.random.default_rng(n), (max(1, min(16, 400_000 // n**2)), n)
    r, angle = R * np.sqrt(rng.uniform(size=shape)), rng.uniform(0, 2 * np.pi, shape)
    return of.Particles(np.stack([r * np.cos(angle), r * np.sin(angle)], -1), label=np.arange(n))


def merged(R: float | Array, n: Array, sign: float) -> Array:
    """Local constants of n adversarial tokens, those that share a place merged into one of weight 1 - 1/n."""
    R, n = np.broadcast_arrays(R, n)
    x = adversarial_tokens(sign * EYE, 1.0, 2).x * torch.from_numpy(R.copy())[..., None, None]
    w = torch.from_numpy(np.stack([1 / n, 1 - 1 / n], -1))
    return np.asarray(local_constant(_field(sign), of.Particles(x, w=w)).value.numpy())


def reached() -> Peaks:
    y = np.linspace(0.25, 8.0, 32)
    n = np.maximum(2.0, np.exp(2 * y)[:, None] * np.geomspace(0.05, 20.0, 41))
    found = merged(np.sqrt(y)[:, None], n, -1.0).max(1)
    bounds = [
        [bound(_field(-1.0), math.sqrt(r)).item() for r in y] for bound in (ball_bound, mean_field_bound)
    ]
    return Peaks(y, found, *map(np.array, bounds))
