"""The runs: local Lipschitz constants of clouds that are worst and of clouds that are drawn."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import otflow as of
from otflow.reproduce.fits import slope
from otflow.stability.local_constant import local_constant
from otflow.stability.smoothness import adversarial_tokens, ball_bound, discrete_bound, mean_field_bound

EYE = torch.eye(2, dtype=torch.float64)
SIGNS = {"A = -I": -1.0, "A = I": 1.0}
GAP = 16.0  # of the scores: sqrt(n) lasts until exp(16), beyond all n that are measured one by one
NARROW = 2.0  # |A| R^2 in the ball where it does not last
MANY = np.geomspace(2, 1e6, 60)  # numbers of tokens, merged
Array = np.ndarray


class SmoothnessCurve(NamedTuple):
    """Local constants of adversarial tokens, and the median over clouds drawn in the same disc, against n."""

    field: of.SoftmaxAttention
    R: float
    n: Sequence[int]
    adversarial: Array
    drawn: Array


class Peaks(NamedTuple):
    """y = |A| R^2, the largest constant found over all n, and the logarithms of two bounds for all n."""

    y: Array
    found: Array
    ball: Array
    published: Array


def attention(sign: float, *, masked: bool = False) -> of.SoftmaxAttention:
    """Softmax attention with A = I or A = -I, and V = I."""
    return of.SoftmaxAttention(sign * EYE, EYE, EYE, causal=masked)


def curve(sign: float, ns: Sequence[int], *, masked: bool) -> SmoothnessCurve:
    """Constants in the disc where adversarial tokens have the gap GAP."""
    # The gap of adversarial tokens is R^2 / 4 if A = I, and 2 R^2 if A = -I.
    field, R = attention(sign, masked=masked), math.sqrt(4 * GAP if sign > 0 else GAP / 2)
    bad = [local_constant(adversarial_tokens(field, R, n), field).value.item() for n in ns]
    drawn = [local_constant(in_disc(R, n), field, tol=1e-4).value.median().item() for n in ns]
    return SmoothnessCurve(field, R, ns, np.array(bad), np.array(drawn))


def exponent(n: Any, values: Any) -> float:
    """The exponent of n, from n = 30 on, where n and n - 1 are alike.

    >>> from otflow.papers.how_smooth.runs import exponent
    >>> round(exponent([10, 30, 300], [9.0, 3.0, 30.0]), 9)
    1.0
    """
    keep = np.asarray(n) >= 30
    return slope(np.asarray(n)[keep], np.asarray(values)[keep])


def in_disc(R: float, n: int) -> of.Particles:
    """Some clouds of n tokens drawn uniformly in the disc, labelled in the order in which they were drawn.

    >>> from otflow.papers.how_smooth.runs import in_disc
    >>> in_disc(1.0, 400)
    Particles(n=400, d=2, batch=(2,), labelled, space=Euclidean())
    """
    # Fewer clouds of many tokens: a derivative costs n^2.
    rng, shape = np.random.default_rng(n), (max(1, min(16, 400_000 // n**2)), n)
    r, angle = R * np.sqrt(rng.uniform(size=shape)), rng.uniform(0, 2 * np.pi, shape)
    return of.Particles(np.stack([r * np.cos(angle), r * np.sin(angle)], -1), label=np.arange(n))


def merged(R: float | Array, n: Array, sign: float = -1.0) -> Array:
    """Local constants of n adversarial tokens, those that share a place merged into one of weight 1 - 1/n."""
    R, n = np.broadcast_arrays(R, n)
    x = adversarial_tokens(sign * EYE, 1.0, 2).x * torch.from_numpy(R.copy())[..., None, None]
    w = torch.from_numpy(np.stack([1 / n, 1 - 1 / n], -1))
    return np.asarray(local_constant(of.Particles(x, w=w), attention(sign)).value.numpy())


def reached() -> Peaks:
    """The worst n for every radius, searched around exp(g), g = 2 |A| R^2, where the growth ends."""
    y = np.linspace(0.25, 8.0, 32)
    n = np.maximum(2.0, np.exp(2 * y)[:, None] * np.geomspace(0.05, 20.0, 41))
    ball, published = (
        np.array([bound(attention(-1.0), math.sqrt(r)).item() for r in y])
        for bound in (ball_bound, mean_field_bound)
    )
    return Peaks(y, merged(np.sqrt(y)[:, None], n).max(1), ball, published)


def first_beyond(y: float) -> int:
    """The first n for which the published bound without n is the smaller one, |A| R^2 = y, by bisection."""
    field, R, numbers = attention(-1.0), math.sqrt(y), range(2, 10**9)
    top = mean_field_bound(field, R)
    return numbers[bisect_left(numbers, True, key=lambda n: bool(discrete_bound(field, R, n).log() > top))]
