"""Clouds of n tokens converge to the flow of a law as fast as they do at the start

The law mu_t of infinitely many tokens and n tokens that interact obey the same equation: the cloud is the
solution that starts at its own empirical law. Theorem 3.1 of Castin, Ablin, Carrillo and Peyré (2025) bounds
the distance of any two solutions with compact support, so that

    W_2(mu^n_t, mu_t) <= C(t) W_2(mu^n_0, mu_0),

with a constant that does not depend on n. The rate is thus that of the start, which depends on how tokens are
chosen and on the dimension, not on attention. On the line, for a density that is bounded from below on its
interval, independent tokens have W_2 of order n^(-1/2), and tokens at the quantiles (i - 1/2)/n have 1/n; a
density that falls linearly to zero at an end would cost the quantiles a factor sqrt(log n). In three
dimensions independent tokens of a uniform law have n^(-1/3) (Talagrand 1992, "Matching random samples in many
dimensions"), while laws in several pieces may have n^(-1/4) (Fournier and Guillin 2015, Theorem 1).

On the line the law has density (3 + x)/6 on [-1, 1], and the limit is computed with many tokens at its
quantiles. In space tokens are uniform in a cube and two independent clouds of the same size are compared, by
exact optimal transport. That is at most the sum of their distances to the law; at the start, as W_2^2 is
convex, its mean square is at least that of one of them, so that the rate is the same. Lines are medians over
repetitions.

What attention does is to multiply: by a factor that we measure, and that does not grow from small clouds to
large ones. In space it falls a little. Attention sees a cloud through averages of smooth functions, which
fluctuate by n^(-1/2) only, so that what the rest of the cloud adds to a difference n^(-1/3) dies out first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.experiments import mean_field_limit_draw as draw
from otflow.experiments.base import Claim, Progress, Result
from otflow.experiments.fits import slope
from otflow.stability.apriori import a_priori
from otflow.transport.sequences import positions

PAPER = "Castin, Ablin, Carrillo, Peyré 2025"
SEED = 31
TIMES = (0.0, 0.5, 1.0)
SPACE = (
    ((0.6, 0.2, 0.0), (-0.1, 0.4, 0.3), (0.1, -0.2, 0.6)),
    ((0.4, -0.1, 0.2), (0.3, 0.5, 0.0), (0.0, 0.2, 0.4)),
)
TURN = ((0.5, -0.4, 0.0), (0.4, 0.5, 0.2), (0.0, -0.2, 0.4))
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


class Rates(NamedTuple):
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


def run(*, quick: bool, progress: Progress) -> Result:
    """All rates, all claims, all figures."""
    rng = np.random.default_rng(SEED)
    found: dict[str, dict[str, Rates]] = {}
    samples: dict[str, Sample] = {}
    for k, (name, field) in enumerate(on_line().items()):
        progress(0.2 * k, f"{name}, on the line")
        limit = evolve(quantiles(1024 if quick else 2048), field)
        found[name] = _line_rates(field, limit, rng, quick=quick)
        samples[name] = Sample(limit, evolve(independent(48, (), rng), field))
    for k, (name, field) in enumerate(in_space().items()):
        progress(0.6 + 0.13 * k, f"{name}, in space")
        found[name][SETTINGS[2].name] = _space_rates(field, rng, quick=quick)
    figures = {"rates": draw.rates(found), "factors": draw.factors(found), "laws": draw.laws(samples)}
    return Result([*_slope_claims(found), *_factor_claims(found)], figures, _data(found))


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


# --- clouds ------------------------------------------------------------------------------------------


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


def _sizes(first: int, last: int) -> list[int]:
    return [2**k for k in range(first.bit_length() - 1, last.bit_length())]


def _line_rates(
    field: of.VelocityField, limit: Run, rng: np.random.Generator, *, quick: bool
) -> dict[str, Rates]:
    log_C = float(a_priori(field, 1.0, t1=TIMES[-1]).log_C[-1])
    few, many = _sizes(16, 128 if quick else 256), _sizes(32, 256 if quick else 1024)
    total = 16384 if quick else 32768  # tokens in all repetitions
    random = (independent(n, (min(256, total // n),), rng) for n in many)
    return {
        SETTINGS[0].name: _rates(many, ((evolve(mu, field), limit) for mu in random), log_C),
        SETTINGS[1].name: _rates(few, ((evolve(quantiles(n), field), limit) for n in few), log_C),
    }


def _space_rates(field: of.VelocityField, rng: np.random.Generator, *, quick: bool) -> Rates:
    """Pairs of independent clouds in [-1/2, 1/2]^3."""
    sizes = _sizes(32, 512 if quick else 1024)
    log_C = float(a_priori(field, 0.75**0.5, t1=TIMES[-1]).log_C[-1])
    clouds = (rng.random((2, max(12, 2048 // n), n, 3)) - 0.5 for n in sizes)
    pairs = ([evolve(of.Particles(x), field) for x in two] for two in clouds)
    return _rates(sizes, pairs, log_C)


def _rates(sizes: list[int], pairs: Iterable[Sequence[Run]], log_C: float) -> Rates:
    d = [
        torch.stack([of.wasserstein(a, b) for a, b in zip(*two, strict=True)]).reshape(3, -1) for two in pairs
    ]
    growth = [one[-1] / one[0] for one in d]
    return Rates(
        np.array(sizes),
        _stack(one.median(-1).values for one in d),
        _stack(one.median() for one in growth),
        _stack(one.max() for one in growth),
        log_C,
    )


def _stack(values: Iterable[Tensor]) -> Array:
    return torch.stack(list(values)).numpy()


# --- claims ------------------------------------------------------------------------------------------


def _slope_claims(found: dict[str, dict[str, Rates]]) -> list[Claim]:
    return [
        Claim.within(
            f"{name}, {setting.name}, t = {TIMES[k]:g}: W_2 falls like n^{setting.exponent:.3g} (slope)",
            f"{PAPER}, Theorem 3.1 (mean-field limit)",
            low=setting.low,
            high=setting.high,
            measured=slope(rates[setting.name].n, rates[setting.name].median[:, k]),
        )
        for name, rates in found.items()
        for setting in SETTINGS
        for k in (0, 2)
    ]


def _factor_claims(found: dict[str, dict[str, Rates]]) -> list[Claim]:
    source = f"{PAPER}, Theorem 3.1 (stability)"
    claims = []
    for name, rates in found.items():
        for setting in SETTINGS:
            one, words = rates[setting.name], f"{name}, {setting.name}"
            claims += [
                Claim.at_most(
                    f"{words}: log of W_2(1) / W_2(0) (largest) is at most int L",
                    source,
                    bound=one.log_C,
                    measured=float(np.log(one.worst.max())),
                ),
                Claim.within(
                    f"{words}: W_2(1) / W_2(0) for the most tokens over that for the fewest (medians)",
                    source,
                    low=0.8,
                    high=1.25,
                    measured=float(one.ratio[-1] / one.ratio[0]),
                ),
            ]
    return claims


def _data(found: dict[str, dict[str, Rates]]) -> dict[str, Array]:
    return {
        f"{name}_{k}_{key}": value
        for name, rates in found.items()
        for k, setting in enumerate(SETTINGS)
        for key, value in rates[setting.name]._asdict().items()
        if key != "log_C"
    }
