"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import otflow as of
from otflow.transport.exact.sequences import positions

SPACE = (
    ((0.6, 0.2, 0.0), (-0.1, 0.4, 0.3), (0.1, -0.2, 0.6)),
    ((0.4, -0.1, 0.2), (0.3, 0.5, 0.0), (0.0, 0.2, 0.4)),
)
TURN = ((0.5, -0.4, 0.0), (0.4, 0.5, 0.2), (0.0, -0.2, 0.4))

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


class Sample(NamedTuple):
    """The limit on the line and one cloud, at all times."""

    limit: Run
    cloud: Run


def on_line() -> dict[str, of.VelocityField]:
    """Three attentions on the line.

    >>> list(on_line())
    ['softmax', 'L2', 'sigmoid']
    """
    return _attentions([[0.6]], [[0.6]], [[0.5]])


def in_space() -> dict[str, of.VelocityField]:
    """Three attentions in R^3.

    >>> list(in_space())
    ['softmax', 'L2', 'sigmoid']
    """
    return _attentions(*SPACE, TURN)


def _attentions(Q: Any, K: Any, V: Any) -> dict[str, of.VelocityField]:
    return {
        "softmax": of.SoftmaxAttention(Q, K, V),
        "L2": of.L2Attention(Q, K, V),
        "sigmoid": of.SigmoidAttention(Q, K, V),
    }


def quantile(u: Any) -> Any:
    """2 sqrt(1 + 3u) - 3, the quantiles of the density (3 + x)/6 on [-1, 1].

    >>> quantile(0.0), quantile(1.0)
    (-1.0, 1.0)
    """
    return 2 * (1 + 3 * u) ** 0.5 - 3


def quantiles(n: int) -> of.Particles:
    """Tokens at the quantiles (i - 1/2)/n.

    >>> quantiles(2).x.flatten()
    tensor([-0.3542,  0.6056], dtype=torch.float64)
    """
    return of.Particles(quantile(positions(n))[:, None])


def independent(n: int, batch: tuple[int, ...], rng: np.random.Generator) -> of.Particles:
    """Independent tokens on the line, (*batch, n, 1).

    >>> independent(3, (2,), np.random.default_rng(0))
    Particles(n=3, d=1, batch=(2,), space=Euclidean())
    """
    return of.Particles(quantile(rng.random((*batch, n, 1))))


def evolve(mu: of.Particles, field: of.VelocityField) -> Run:
    """The flow from mu at the times 0, 1/2 and 1.

    >>> len(evolve(quantiles(2), on_line()["softmax"]))
    3
    """
    return tuple(of.flow(mu, field, of.RK4(), t1=TIMES[-1], dt=0.25, save_at=TIMES).measures)
