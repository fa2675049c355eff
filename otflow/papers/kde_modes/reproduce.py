"""Modes of a kernel density estimator: how many, where, and what they have to do with clusters

Mean shift, that is attention with a frozen cloud, carries each token to a local maximum of the Gaussian
kernel density estimator sum_i exp(-beta (t - X_i)^2 / 2) of all tokens. For n tokens drawn from N(0, 1)
Geshkovski, Rigollet and Sun (2026) show that there are of order sqrt(beta log beta) such modes, nearly all of
them in a belt, t^2 between 2 log n - 3 log beta and 2 log n - log beta: further in, the estimator follows the
bell of the normal law; further out there are no tokens. Here modes are counted to rounding, and compared with
what the formula of Kac and Rice expects, corrected by the modes of shot noise where tokens are so sparse that
the noise is not Gaussian. That expectation is met within a few per cent from beta = n^0.6 on. What holds for
n to infinity is approached slowly: for ten thousand tokens half of the modes are outside the belt, and the
constant of the law is not seen in any simulation.

On the circle the tokens of attention climb an estimator that changes as they move. If it is frozen, the
number of clusters becomes that of its modes. If not, clusters are formed by the time t = 5 to 10, about as
many as there were modes, though seldom exactly as many; and then they merge, the close ones first, without a
plateau that would single out the modes of the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from otflow.papers import kde_modes
from otflow.papers.kde_modes import runs
from otflow.papers.kde_modes.runs import CURVE, EXPONENTS, HISTOGRAM, TIMES, Array, CircleModes, ModeGrowth
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Geshkovski, Rigollet, Sun 2026, arXiv 2412.09080")
EXPECTED, DENSITY = (Source(f"otflow.papers.kde_modes.{name}") for name in ("expected_modes", "mode_density"))
MAMMEN = Source(f"Mammen, quoted in {PAPER}")


def run(frame: Frame) -> Result:
    """All counts, all claims, all figures."""
    from otflow.papers.kde_modes import draw

    frame.stage(0.0, "histogram")
    counts, where = runs.counted(*HISTOGRAM), runs.places(frame.size(60, 600))
    growth, sizes = {}, frame.size((1000, 10_000), (1000, 10_000, 100_000))
    for i, n in enumerate(sizes):
        frame.stage(0.1 + 0.4 * i / len(sizes), f"{n} tokens")
        growth[n] = runs.grown(n, frame.size(150_000, 4_000_000))
    frame.stage(0.5, "circle")
    circles = {beta: runs.clustered(beta, frame.size(12, 100)) for beta in (25.0, 100.0)}
    frame.stage(0.9, "claims")
    claims = [
        *_number_claims(counts, growth),
        *_law_claims(),
        *_place_claims(*where),
        *_circle_claims(circles),
    ]
    figures = {
        "curve": draw.curve(runs.sample()),
        "histogram": draw.histogram(counts),
        "growth": draw.growth(growth),
        "density": draw.density(*where),
        "circle": draw.circle(circles),
    }
    data = {"counts": counts, "places": where[0], "times": TIMES}
    parts = {f"growth_{n}": g for n, g in growth.items()} | {f"circle_{b:g}": c for b, c in circles.items()}
    data |= {
        f"{name}_{key}": values for name, part in parts.items() for key, values in part._asdict().items()
    }
    return Result(claims, figures, data)


def _number_claims(counts: Array, growth: dict[int, ModeGrowth]) -> Iterator[Claim]:
    n, beta, many = HISTOGRAM
    error = float(counts.std(ddof=1)) / math.sqrt(many)
    yield EXPECTED(
        f"n = {n}, beta = {beta:g}: the mean number of modes over {many} runs (within 4 standard errors)"
    ).equal(kde_modes.expected_modes(n, beta), counts.mean(), atol=4 * error)
    for n, g in growth.items():
        yield EXPECTED(
            f"n = {n}, beta = n^0.6 to n^1.6: expected against simulated (largest relative difference)"
        ).at_most(0.04, np.abs(g.expected / g.mean - 1)[np.array(EXPONENTS) >= 0.6].max())
    x, diagonal = [math.sqrt(n * math.log(n)) for n in growth], EXPONENTS.index(1.0)
    yield PAPER.at("main theorem")(
        "beta = n: the number of modes grows like a power of sqrt(beta log beta) (exponent 1)"
    ).within(0.95, 1.05, slope(x, [g.mean[diagonal] for g in growth.values()]))


def _law_claims() -> list[Claim]:
    n, N = 1e120, 1e15
    ratio = kde_modes.expected_modes(n, n) / math.sqrt(n * math.log(n))
    inside = [kde_modes.kac_rice_modes(N, N**b, between=(-1.0, 1.0)).item() for b in (0.3, 0.55, 0.6, 0.9)]
    return [
        PAPER.at("main theorem, with the constant of the formula of Kac and Rice")(
            "n = beta = 1e120: expected number over sqrt(beta log beta), limit sqrt(3/2) / pi"
        ).equal(kde_modes.asymptotic_constant(1.0), ratio, rtol=0.01),
        Source("second derivative in the middle")(
            "two tokens have two modes beyond a distance of 2 bandwidths (bisection)"
        ).equal(2.0, runs.threshold(), atol=1e-8),
        MAMMEN("n = 1e15, beta = n^0.3: expected modes in [-1, 1]").equal(1.0, inside[0], rtol=0.01),
        MAMMEN(
            "n = 1e15, beta from n^0.55 to n^0.6: exponent of beta for the modes expected in [-1, 1]"
        ).equal(1.25, slope([N**0.55, N**0.6], inside[1:3]), rtol=0.01),
        MAMMEN(
            "n = 1e15, beta = n^0.9: modes expected in [-1, 1], per bandwidth, tend to sqrt(3/2) / (2 pi)"
        ).equal(math.sqrt(1.5) / (2 * math.pi), inside[3] / (2 * N**0.45), rtol=0.01),
    ]


def _place_claims(t: Array, many: int) -> list[Claim]:
    (n, beta), grid, places = CURVE, np.linspace(0, 8, 8001), np.sort(np.abs(t))
    density = kde_modes.mode_density(grid, n, beta).numpy()
    expected, found = (runs.in_belt(s) for s in (grid, places))
    share_below = np.interp(places, grid, np.cumsum(density) / density.sum())
    off = np.abs(share_below - (np.arange(len(t)) + 0.5) / len(t))
    case = f"n = {n}, beta = {beta:g}"
    return [
        EXPECTED(f"{case}: share of the modes in the belt").equal(
            density[expected].sum() / density.sum(), found.mean(), atol=0.05
        ),
        DENSITY(f"{case}: share of the modes below |t| (largest difference to that expected)").at_most(
            0.05, off.max()
        ),
        Source(f"script of the figures of {PAPER}, which has n^2 in A_t")(
            f"{case}: modes expected with exp(-A_t); A_t is linear in n"
        ).erratum(
            printed=runs.damped(n, beta, 2),
            corrected=runs.damped(n, beta, 1),
            measured=len(t) / many,
            rtol=0.05,
        ),
    ]


def _circle_claims(circles: dict[float, CircleModes]) -> Iterator[Claim]:
    i = np.abs(TIMES - 10).argmin()
    for beta, c in circles.items():
        yield Source("clusters that have formed and not merged yet; measured, no theorem")(
            f"circle, beta = {beta:g}: mean clusters of attention at t = {TIMES[i]:.3g} over mean modes at 0"
        ).within(0.85, 1.15, c.clusters[i].mean() / c.modes.mean())
    for beta, c in circles.items():
        yield Source("mean shift climbs to modes")(
            f"circle, beta = {beta:g}: mean clusters in the frozen estimator, t = {TIMES[-1]:g}, over modes"
        ).within(0.97, 1.03, c.frozen[-1].mean() / c.modes.mean())
