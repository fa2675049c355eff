"""Tokens wait, then merge in pairs: a staircase of the energy, with its times predicted

Under attention at low temperature, tokens on a circle form clusters which seem to stay for ever, until two of
them merge, and so on down to one. The energy climbs a staircase, on a clock that counts log t / beta
(Geshkovski, Koubbi, Polyanskiy and Rigollet 2024). Two clusters alone can be solved by quadrature. Taking
neighbours pair by pair then predicts every step: who merges, when, where, and how high the energy jumps. This
is laid over a simulation that makes no such assumption. Velocities go down to exp(-2 beta), beyond floating
point from beta = 400 on, so the flow is run along its arclength and time is kept as a logarithm.

Predictions of log t / beta are good to a fraction of a per cent wherever one pair is clearly first. For the
start of the authors' figure this excludes the first step, since their first two tokens are so close that
nothing waits there, and for beta = 500 the others are good to two per cent: there, competing merges are
within a factor of three in time. Without normalisation clusters meet in their centre of mass. With softmax,
the heavier one moves less, as if masses were squared, up to a correction of order beta^(-1/2).

The theorem of metastability, which holds on spheres of any dimension, is checked as well: tokens collapse
before T1 and stay in their caps until T2. Both bounds are safe, and not sharp: the collapse is much faster
than T1, and the time at which caps are left has a larger rate than T2. Two errors, in the statements as they
are transcribed in a third-party formalisation, are shown with the computations that tell. (The energy has a
factor 1 / (2 beta) there with which it would tend to zero; the staircase is that of the energy without it.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from otflow.papers.metastability import merge_point, merge_time, metastable_times, runs, separation, slow_flow
from otflow.papers.metastability.runs import APART, COLD, EPS, KINDS, Array, CapTimes, N, StaircaseRun
from otflow.papers.tokens import sphere
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833 (as formalised)")
SCALES, THEOREM, UNIFORM = (PAPER.at(f"section {k}") for k in (6, 2, 4))
PAIRS = Source("two clusters alone, by quadrature (otflow.papers.metastability)")
LEVELS = (0.2, 0.28, 0.44, 0.52, 1.0)  # sum of squared masses, as five equal tokens merge one by one


def run(frame: Frame) -> Result:
    """All staircases, all times, all claims, all figures."""
    from otflow.papers.metastability import draw

    betas = frame.size((1000.0, 4000.0), (500.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0))
    authors = {}
    for i, beta in enumerate(betas):
        frame.stage(0.3 * i / len(betas), f"staircase, beta = {beta:g}")
        authors[beta] = runs.steps(list(runs.AUTHORS), None, beta, "USA")
    frame.stage(0.3, "predictions")
    names = list(runs.STARTS)[: frame.size(1, 3)]
    cold = {(name, kind): runs.steps(*runs.STARTS[name], COLD, kind) for name in names for kind in KINDS}
    frame.stage(0.6, "caps")
    betas = frame.size((8.0, 14.0, 24.0), tuple(range(8, 42, 3)))
    times = {kind: [runs.cap_times(float(beta), kind) for beta in betas] for kind in KINDS}
    frame.stage(0.8, "the theorem")
    claims = [
        *_staircase_claims(authors),
        *_cold_claims(cold),
        *_pair_claims(),
        *_theorem_claims(),
        *_time_claims(times),
        *_errata(),
    ]
    frame.stage(0.9, "figures")
    movie = runs.movie()
    figures = {
        "staircases": draw.staircases(authors, cold),
        "paths": draw.paths({kind: cold[names[0], kind] for kind in KINDS}),
        "circle": draw.circles(movie),
        "caps": draw.scales(times),
    }
    return Result(claims, figures, _data(authors, cold, times, movie))


def _staircase_claims(authors: dict[float, StaircaseRun]) -> Iterator[Claim]:
    coldest = max(authors)
    yield SCALES(
        f"the authors' start, beta = {coldest:g}: plateaus at 0.2, 0.28, 0.44, 0.52, 1 (largest error)"
    ).at_most(0.005, np.abs(authors[coldest].plateaus - LEVELS).max())
    yield PAIRS(
        "the authors' start, beta from 1000 to 4000: log t / beta of steps two to four (relative error)"
    ).at_most(0.01, max(steps.error[1:].max() for beta, steps in authors.items() if beta >= 1000))


def _cold_claims(cold: dict[tuple[str, str], StaircaseRun]) -> Iterator[Claim]:
    for (name, kind), steps in cold.items():
        start, (late, far) = f"beta = {COLD:g}, {name}, {kind}", steps.worst
        yield PAIRS(f"{start}: log t / beta of all steps (relative error)").at_most(0.01, late)
        yield PAIRS(f"{start}: merge points (error of the angle)").at_most(0.002, far)


def _pair_claims() -> list[Claim]:
    theta, beta, (p, q) = 1.2, 60.0, (0.3, 0.7)
    exact = math.exp(merge_time(theta, beta, [p, q]))
    formula = beta * (1 - math.cos(theta)) - math.log((p + q) * beta * math.sin(theta) ** 2)
    merge, betas = slow_flow([0.0, theta], beta, masses=[p, q]).merges[0], [100.0, 400.0, 1600.0]
    off = theta * q**2 / (p**2 + q**2) - merge_point(theta, betas, [p, q], normalised=True).numpy()
    two = f"masses 0.3 and 0.7, gap {theta:g}, beta = {beta:g}, USA"
    return [
        PAIRS(f"{two}: merge time of the simulation").equal(exact, math.exp(merge.log_t), rtol=0.005),
        PAIRS(f"{two}: exp(beta (1 - cos)) / (beta sin^2) against quadrature").equal(
            exact, math.exp(formula), rtol=0.02
        ),
        SCALES(f"{two}: clusters meet in their centre of mass").equal(
            theta * q / (p + q), merge.theta, atol=1e-9
        ),
        PAIRS("SA: the merge point tends to the centre of squared masses like beta^-0.5 (slope)").within(
            -0.51, -0.49, slope(betas, off)
        ),
    ]


def _theorem_claims(beta: float = 11.0, lam: float = 0.6) -> Iterator[Claim]:
    for kind in KINDS:
        caps, (away, spread) = f"three caps, beta = {beta:g}, {kind}", runs.three_caps(kind, beta, lam)
        yield THEOREM(f"{caps}: tokens outside their caps at 200 times until T2").equal(0.0, away)
        yield THEOREM(f"{caps}: |x_i - x_j|^2 from T1 to T2 (largest)").at_most(
            2 * math.exp(-lam * beta), spread
        )


def _time_claims(times: dict[str, list[CapTimes]]) -> Iterator[Claim]:
    bound = [t for own in times.values() for t in own if t.applies]
    yield THEOREM("two caps, all beta: log of the collapse time, less log T1 (largest)").at_most(
        0.0, max((t.collapse - t.log_T1 for t in bound), default=math.inf)
    )
    yield THEOREM(
        "two caps, all beta: log T2, less log of the time at which caps are left (largest)"
    ).at_most(0.0, max((t.log_T2 - t.exit for t in bound), default=math.inf))
    for kind, (*_, last) in times.items():
        yield PAIRS(
            f"two caps, beta = {last.beta:g}, {kind}: caps are left when clusters merge (log t)"
        ).equal(merge_time(APART, last.beta, [0.5, 0.5], normalised=KINDS[kind]), last.exit, rtol=0.01)


def _errata(beta: float = 4.45, eps: float = 0.02) -> list[Claim]:
    caps = metastable_times(sphere.circle([0.0, np.pi]).x, EPS, beta, N, 1e-3)
    factor = (beta - 1) * EPS / (beta**2 * N**2 * math.e)
    rest = math.exp((1 - caps.alpha) * beta) * (1 - math.exp(-caps.gamma * beta))
    cosine = separation(np.eye(2), eps)
    return [
        THEOREM.at("as transcribed in a formalisation: a sign in the condition on lambda")(
            f"antipodal caps, eps = {EPS:g}, n = {N}, beta = {beta:g}: lambda up to which T1 < T2"
        ).erratum(
            printed=rest / factor, corrected=rest * factor, measured=runs.largest_rate(beta), rtol=1e-6
        ),
        UNIFORM.at("as transcribed in a formalisation: at most eps^2 + 2 eps")(
            f"caps of orthogonal centres, eps = {eps:g}: the largest cosine between their points"
        ).erratum(printed=eps**2 + 2 * eps, corrected=cosine, measured=runs.largest_cosine(eps), rtol=1e-6),
    ]


def _data(
    authors: dict[float, StaircaseRun],
    cold: dict[tuple[str, str], StaircaseRun],
    times: dict[str, list[CapTimes]],
    movie: Array,
) -> dict[str, Array]:
    out = {"movie_times": np.array(runs.MOVIE), "movie_angles": movie}
    out |= {f"caps_{kind}": np.array(own)[:, :5] for kind, own in times.items()}
    climbs = {f"authors_{beta:g}": steps for beta, steps in authors.items()}
    climbs |= {f"{name.replace(' ', '_')}_{kind}": steps for (name, kind), steps in cold.items()}
    for key, (run, predicted) in climbs.items():
        out |= {f"{key}_s": run.s.numpy(), f"{key}_energy": run.energy.numpy()}
        out |= {f"{key}_jumps": run.jumps.numpy(), f"{key}_predicted": predicted.log_times.numpy()}
    return out
