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

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.papers.mean_field_limit import draw
from otflow.papers.mean_field_limit.runs import (
    SETTINGS,
    TIMES,
    Array,
    Run,
    Sample,
    SamplingRates,
    evolve,
    in_space,
    independent,
    on_line,
    quantiles,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame
from otflow.stability.bounds.a_priori import a_priori

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
SEED = 31


def run(frame: Frame) -> Result:
    """All rates, all claims, all figures."""
    rng = np.random.default_rng(SEED)
    found: dict[str, dict[str, SamplingRates]] = {}
    samples: dict[str, Sample] = {}
    for k, (name, field) in enumerate(on_line().items()):
        frame.stage(0.2 * k, f"{name}, on the line")
        limit = evolve(quantiles(1024 if frame.quick else 2048), field)
        found[name] = _line_rates(field, limit, rng, quick=frame.quick)
        samples[name] = Sample(limit, evolve(independent(48, (), rng), field))
    for k, (name, field) in enumerate(in_space().items()):
        frame.stage(0.6 + 0.13 * k, f"{name}, in space")
        found[name][SETTINGS[2].name] = _space_rates(field, rng, quick=frame.quick)
    figures = {"rates": draw.rates(found), "factors": draw.factors(found), "laws": draw.laws(samples)}
    return Result([*_slope_claims(found), *_factor_claims(found)], figures, _data(found))


# --- clouds ------------------------------------------------------------------------------------------


def _sizes(first: int, last: int) -> list[int]:
    return [2**k for k in range(first.bit_length() - 1, last.bit_length())]


def _line_rates(
    field: of.VelocityField, limit: Run, rng: np.random.Generator, *, quick: bool
) -> dict[str, SamplingRates]:
    log_C = float(a_priori(field, 1.0, t1=TIMES[-1]).log_C[-1])
    few, many = _sizes(16, 128 if quick else 256), _sizes(32, 256 if quick else 1024)
    total = 16384 if quick else 32768  # tokens in all repetitions
    random = (independent(n, (min(256, total // n),), rng) for n in many)
    return {
        SETTINGS[0].name: _rates(many, ((evolve(mu, field), limit) for mu in random), log_C),
        SETTINGS[1].name: _rates(few, ((evolve(quantiles(n), field), limit) for n in few), log_C),
    }


def _space_rates(field: of.VelocityField, rng: np.random.Generator, *, quick: bool) -> SamplingRates:
    """Pairs of independent clouds in [-1/2, 1/2]^3."""
    sizes = _sizes(32, 512 if quick else 1024)
    log_C = float(a_priori(field, 0.75**0.5, t1=TIMES[-1]).log_C[-1])
    clouds = (rng.random((2, max(12, 2048 // n), n, 3)) - 0.5 for n in sizes)
    pairs = ([evolve(of.Particles(x), field) for x in two] for two in clouds)
    return _rates(sizes, pairs, log_C)


def _rates(sizes: list[int], pairs: Iterable[Sequence[Run]], log_C: float) -> SamplingRates:
    d = [
        torch.stack([of.wasserstein(a, b) for a, b in zip(*two, strict=True)]).reshape(3, -1) for two in pairs
    ]
    growth = [one[-1] / one[0] for one in d]
    return SamplingRates(
        np.array(sizes),
        _stack(one.median(-1).values for one in d),
        _stack(one.median() for one in growth),
        _stack(one.max() for one in growth),
        log_C,
    )


def _stack(values: Iterable[Tensor]) -> Array:
    return torch.stack(list(values)).numpy()


# --- claims ------------------------------------------------------------------------------------------


def _slope_claims(found: dict[str, dict[str, SamplingRates]]) -> list[Claim]:
    return [
        PAPER.at("Theorem 3.1 (mean-field limit)")(
            f"{name}, {setting.name}, t = {TIMES[k]:g}: W_2 falls like n^{setting.exponent:.3g} (slope)"
        ).within(setting.low, setting.high, slope(rates[setting.name].n, rates[setting.name].median[:, k]))
        for name, rates in found.items()
        for setting in SETTINGS
        for k in (0, 2)
    ]


def _factor_claims(found: dict[str, dict[str, SamplingRates]]) -> list[Claim]:
    source = PAPER.at("Theorem 3.1 (stability)")
    claims = []
    for name, rates in found.items():
        for setting in SETTINGS:
            one, words = rates[setting.name], f"{name}, {setting.name}"
            claims += [
                source(f"{words}: log of W_2(1) / W_2(0) (largest) is at most int L").at_most(
                    one.log_C, np.log(one.worst.max())
                ),
                source(
                    f"{words}: W_2(1) / W_2(0) for the most tokens over that for the fewest (medians)"
                ).within(0.8, 1.25, one.ratio[-1] / one.ratio[0]),
            ]
    return claims


def _data(found: dict[str, dict[str, SamplingRates]]) -> dict[str, Array]:
    return {
        f"{name}_{k}_{key}": value
        for name, rates in found.items()
        for k, setting in enumerate(SETTINGS)
        for key, value in rates[setting.name]._asdict().items()
        if key != "log_C"
    }
