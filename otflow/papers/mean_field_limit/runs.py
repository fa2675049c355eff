"""The runs: clouds of tokens and laws under attention, and the distances between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import otflow as of
from otflow.stability.bounds.a_priori import a_priori
from otflow.transport.exact.sequences import positions

# Queries, keys and values in space, of no symmetry.
Q = ((0.6, 0.2, 0.0), (-0.1, 0.4, 0.3), (0.1, -0.2, 0.6))
K = ((0.4, -0.1, 0.2), (0.3, 0.5, 0.0), (0.0, 0.2, 0.4))
V = ((0.5, -0.4, 0.0), (0.4, 0.5, 0.2), (0.0, -0.2, 0.4))
KINDS: dict[str, Callable[..., of.VelocityField]] = {
    "softmax": of.SoftmaxAttention,
    "L2": of.L2Attention,
    "sigmoid": of.SigmoidAttention,
}
TIMES = (0.0, 0.5, 1.0)
Array = np.ndarray[Any, Any]
Run = tuple[of.Measure, ...]  # at TIMES


class Setting(NamedTuple):
    """How tokens are chosen, with the exponent that theory gives and the range of slopes that is allowed."""

    name: str
    exponent: float
    low: float
    high: float


SETTINGS = (
    Setting("independent tokens on the line", -1 / 2, -0.6, -0.4),
    Setting("quantiles on the line", -1.0, -1.05, -0.95),
    Setting("independent tokens in space", -1 / 3, -0.4, -0.28),
)


class SamplingRates(NamedTuple):
    """Distances to the limit, or between two clouds, for each number of tokens."""

    n: Array
    median: Array  # (sizes, times)
    ratio: Array  # (sizes,), the median of W_2(1) / W_2(0)
    worst: Array  # (sizes,), the largest one
    log_C: float  # the bound of its logarithm


def on_line() -> dict[str, of.VelocityField]:
    """Three attentions on the line.

    >>> from otflow.papers.mean_field_limit.runs import on_line
    >>> list(on_line())
    ['softmax', 'L2', 'sigmoid']
    """
    return {name: kind([[0.6]], [[0.6]], [[0.5]]) for name, kind in KINDS.items()}


def in_space() -> dict[str, of.VelocityField]:
    """Three attentions in R^3.

    >>> from otflow.papers.mean_field_limit.runs import in_space
    >>> list(in_space())
    ['softmax', 'L2', 'sigmoid']
    """
    return {name: kind(Q, K, V) for name, kind in KINDS.items()}


def quantile(u: Any) -> Any:
    """2 sqrt(1 + 3u) - 3, the quantiles of the density (3 + x)/6 on [-1, 1].

    >>> from otflow.papers.mean_field_limit.runs import quantile
    >>> quantile(0.0), quantile(1.0)
    (-1.0, 1.0)
    """
    return 2 * (1 + 3 * u) ** 0.5 - 3


def quantiles(n: int) -> of.Particles:
    """Tokens at the quantiles (i - 1/2)/n.

    >>> from otflow.papers.mean_field_limit.runs import quantiles
    >>> quantiles(2).x.flatten()
    tensor([-0.3542,  0.6056], dtype=torch.float64)
    """
    return of.Particles(quantile(positions(n))[:, None])


def independent(n: int, batch: tuple[int, ...], rng: np.random.Generator) -> of.Particles:
    """Independent tokens on the line, (*batch, n, 1).

    >>> import numpy as np
    >>> from otflow.papers.mean_field_limit.runs import independent
    >>> independent(3, (2,), np.random.default_rng(0))
    Particles(n=3, d=1, batch=(2,), space=Euclidean())
    """
    return of.Particles(quantile(rng.random((*batch, n, 1))))


def evolve(mu: of.Particles, field: of.VelocityField) -> Run:
    """The flow from mu at the times 0, 1/2 and 1.

    >>> from otflow.papers.mean_field_limit.runs import evolve, on_line, quantiles
    >>> len(evolve(quantiles(2), on_line()["softmax"]))
    3
    """
    return tuple(of.flow(mu, field, of.RK4(), t1=TIMES[-1], dt=0.25, save_at=TIMES).measures)


def random_rates(
    sizes: Sequence[int], field: of.VelocityField, limit: Run, rng: np.random.Generator, *, total: int
) -> SamplingRates:
    """Independent tokens on the line against the limit, ``total`` of them in all repetitions, or fewer."""
    clouds = (independent(n, (min(256, total // n),), rng) for n in sizes)
    return _rates(sizes, ((evolve(mu, field), limit) for mu in clouds), field, 1.0)


def quantile_rates(sizes: Sequence[int], field: of.VelocityField, limit: Run) -> SamplingRates:
    """Tokens at the quantiles against the limit."""
    return _rates(sizes, ((evolve(quantiles(n), field), limit) for n in sizes), field, 1.0)


def space_rates(sizes: Sequence[int], field: of.VelocityField, rng: np.random.Generator) -> SamplingRates:
    """Pairs of independent clouds in [-1/2, 1/2]^3."""
    clouds = (rng.random((2, max(12, 2048 // n), n, 3)) - 0.5 for n in sizes)
    return _rates(sizes, ([evolve(of.Particles(x), field) for x in two] for two in clouds), field, 0.75**0.5)


def _rates(
    sizes: Sequence[int], pairs: Iterable[Sequence[Run]], field: of.VelocityField, R: float
) -> SamplingRates:
    """Of pairs of runs, one pair for each size, with the bound for data in the ball of radius R."""
    each = [torch.stack([of.wasserstein(a, b) for a, b in zip(*two, strict=True)]) for two in pairs]
    d = [one.reshape(len(TIMES), -1) for one in each]  # repetitions in one row
    growth = [one[-1] / one[0] for one in d]
    rows = [(a.median(-1).values, b.median(), b.max()) for a, b in zip(d, growth, strict=True)]
    median, ratio, worst = (torch.stack(column).numpy() for column in zip(*rows, strict=True))
    return SamplingRates(
        np.array(sizes), median, ratio, worst, float(a_priori(field, R, t1=TIMES[-1]).log_C[-1])
    )
