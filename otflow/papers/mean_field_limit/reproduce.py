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

import numpy as np

from otflow.papers.mean_field_limit import draw, runs
from otflow.papers.mean_field_limit.runs import SETTINGS, TIMES, Array
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
LIMIT, STABLE = PAPER.at("Theorem 3.1 (mean-field limit)"), PAPER.at("Theorem 3.1 (stability)")
SEED = 31


def run(frame: Frame) -> Result:
    """All rates, all claims, all figures."""
    rng, found, samples = np.random.default_rng(SEED), {}, {}
    many, total = frame.size((1024, 16384), (2048, 32768))  # tokens of the limit; and in all repetitions
    independent, line, space = frame.size(
        ((32, 64, 128, 256), (16, 32, 64, 128), (32, 64, 128, 256, 512)),
        ((32, 64, 128, 256, 512, 1024), (16, 32, 64, 128, 256), (32, 64, 128, 256, 512, 1024)),
    )
    first, second, third = (setting.name for setting in SETTINGS)
    for k, (name, field) in enumerate(runs.on_line().items()):
        frame.stage(0.2 * k, f"{name}, on the line")
        limit = runs.evolve(runs.quantiles(many), field)
        found[name] = {
            first: runs.random_rates(independent, field, limit, rng, total=total),
            second: runs.quantile_rates(line, field, limit),
        }
        samples[name] = (limit, runs.evolve(runs.independent(48, (), rng), field))
    for k, (name, field) in enumerate(runs.in_space().items()):
        frame.stage(0.6 + 0.13 * k, f"{name}, in space")
        found[name][third] = runs.space_rates(space, field, rng)
    figures = {"rates": draw.rates(found), "factors": draw.factors(found), "laws": draw.laws(samples)}
    return Result(_claims(found), figures, _data(found))


def _claims(found: draw.Found) -> list[Claim]:
    """Slopes at the first and the last time, then factors: below the bound, and the same for all n."""
    rows = [(f"{name}, {s.name}", s, some[s.name]) for name, some in found.items() for s in SETTINGS]
    claims = [
        LIMIT(f"{words}, t = {TIMES[k]:g}: W_2 falls like n^{s.exponent:.3g} (slope)").within(
            s.low, s.high, slope(one.n, one.median[:, k])
        )
        for words, s, one in rows
        for k in (0, 2)
    ]
    for words, _, one in rows:
        top = STABLE(f"{words}: log of W_2(1) / W_2(0) (largest) is at most int L")
        same = STABLE(f"{words}: W_2(1) / W_2(0) for the most tokens over that for the fewest (medians)")
        claims += [
            top.at_most(one.log_C, np.log(one.worst.max())),
            same.within(0.8, 1.25, one.ratio[-1] / one.ratio[0]),
        ]
    return claims


def _data(found: draw.Found) -> dict[str, Array]:
    """Sizes, medians and growth, numbered by setting."""
    return {
        f"{name}_{k}_{key}": getattr(some[setting.name], key)
        for name, some in found.items()
        for k, setting in enumerate(SETTINGS)
        for key in ("n", "median", "ratio", "worst")
    }
