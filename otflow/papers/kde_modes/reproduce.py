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

import numpy as np

from otflow.papers import kde_modes
from otflow.papers.kde_modes.runs import (
    CURVE,
    EXPONENTS,
    HISTOGRAM,
    TIMES,
    Array,
    CircleModes,
    ModeGrowth,
    clustered,
    counted,
    damped,
    grown,
    places,
    sample,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Geshkovski, Rigollet, Sun 2026, arXiv 2412.09080")
OURS = Source("otflow.papers.kde_modes.expected_modes")


def run(frame: Frame) -> Result:
    """All counts, all claims, all figures."""
    from otflow.papers.kde_modes import draw

    frame.stage(0.0, "histogram")
    n, beta, runs = HISTOGRAM
    counts = counted(n, beta, runs)
    where = places(60 if frame.quick else 600)
    growth = {}
    sizes = (1000, 10_000) if frame.quick else (1000, 10_000, 100_000)
    for i, n in enumerate(sizes):
        frame.stage(0.1 + 0.4 * i / len(sizes), f"{n} tokens")
        growth[n] = grown(n, 150_000 if frame.quick else 4_000_000)
    frame.stage(0.5, "circle")
    circles = {beta: clustered(beta, 12 if frame.quick else 100) for beta in (25.0, 100.0)}
    frame.stage(0.9, "claims")
    claims = [
        *_number_claims(counts, growth),
        *_law_claims(),
        *_place_claims(where),
        _erratum(where),
        *_circle_claims(circles),
    ]
    figures = {
        "curve": draw.curve(sample()),
        "histogram": draw.histogram(counts),
        "growth": draw.growth(growth),
        "density": draw.density(*where),
        "circle": draw.circle(circles),
    }
    return Result(claims, figures, _data(counts, where, growth, circles))


# --- what is measured ----------------------------------------------------------------------------------


# --- claims --------------------------------------------------------------------------------------------


def _number_claims(counts: Array, growth: dict[int, ModeGrowth]) -> list[Claim]:
    n, beta, runs = HISTOGRAM
    expected = kde_modes.expected_modes(n, beta).item()
    histogram = OURS(
        f"n = {n}, beta = {beta:g}: the mean number of modes over {runs} runs (within 4 standard errors)"
    ).equal(expected, counts.mean(), atol=4 * float(counts.std(ddof=1)) / math.sqrt(runs))
    high = np.array(EXPONENTS) >= 0.6
    ratios = [
        OURS(
            f"n = {n}, beta = n^0.6 to n^1.6: expected against simulated (largest relative difference)"
        ).at_most(0.04, np.abs(g.expected / g.mean - 1)[high].max())
        for n, g in growth.items()
    ]
    diagonal = [(n, g.mean[EXPONENTS.index(1.0)]) for n, g in growth.items()]
    x = [math.sqrt(n * math.log(n)) for n, _ in diagonal]
    power = PAPER.at("main theorem")(
        "beta = n: the number of modes grows like a power of sqrt(beta log beta) (exponent 1)"
    ).within(0.95, 1.05, slope(x, [m for _, m in diagonal]))
    return [histogram, *ratios, power]


def _law_claims() -> list[Claim]:
    n = 1e120
    ratio = (kde_modes.expected_modes(n, n) / math.sqrt(n * math.log(n))).item()
    threshold = _threshold()
    inside = [
        kde_modes.kac_rice_modes(1e15, 1e15**b, between=(-1.0, 1.0)).item() for b in (0.3, 0.55, 0.6, 0.9)
    ]
    return [
        PAPER.at("main theorem, with the constant of the formula of Kac and Rice")(
            "n = beta = 1e120: expected number over sqrt(beta log beta), limit sqrt(3/2) / pi"
        ).equal(kde_modes.asymptotic_constant(1.0).item(), ratio, rtol=0.01),
        Source("second derivative in the middle")(
            "two tokens have two modes beyond a distance of 2 bandwidths (bisection)"
        ).equal(2.0, threshold, atol=1e-8),
        Source(f"Mammen, quoted in {PAPER}")("n = 1e15, beta = n^0.3: expected modes in [-1, 1]").equal(
            1.0, inside[0], rtol=0.01
        ),
        Source(f"Mammen, quoted in {PAPER}")(
            "n = 1e15, beta from n^0.55 to n^0.6: exponent of beta for the modes expected in [-1, 1]"
        ).equal(1.25, slope([1e15**0.55, 1e15**0.6], inside[1:3]), rtol=0.01),
        Source(f"Mammen, quoted in {PAPER}")(
            "n = 1e15, beta = n^0.9: modes expected in [-1, 1], per bandwidth, tend to sqrt(3/2) / (2 pi)"
        ).equal(math.sqrt(1.5) / (2 * math.pi), inside[3] / (2 * 1e15**0.45), rtol=0.01),
    ]


def _threshold() -> float:
    """The smallest distance, to 2^-28, at which two tokens have two modes of bandwidth one."""
    low, high = 1.0, 3.0
    for _ in range(29):
        middle = (low + high) / 2
        low, high = (low, middle) if kde_modes.count_modes([0.0, middle], 1.0) == 2 else (middle, high)
    return high


def _place_claims(where: tuple[Array, int]) -> list[Claim]:
    n, beta = CURVE
    t = where[0]
    low, high = (edge.item() for edge in kde_modes.belt(n, beta))
    grid = np.linspace(0, 8, 8001)
    density = kde_modes.mode_density(grid, n, beta).numpy()
    in_belt = (grid >= low) & (grid <= high)
    share = float(((np.abs(t) >= low) & (np.abs(t) <= high)).mean())
    share_below = np.interp(np.sort(np.abs(t)), grid, np.cumsum(density) / density.sum())
    off = np.abs(share_below - (np.arange(len(t)) + 0.5) / len(t))
    return [
        OURS(f"n = {n}, beta = {beta:g}: share of the modes in the belt").equal(
            density[in_belt].sum() / density.sum(), share, atol=0.05
        ),
        Source("otflow.papers.kde_modes.mode_density")(
            f"n = {n}, beta = {beta:g}: share of the modes below |t| (largest difference to that expected)"
        ).at_most(0.05, off.max()),
    ]


def _erratum(where: tuple[Array, int]) -> Claim:
    n, beta = CURVE
    t, runs = where
    return Source(f"script of the figures of {PAPER}, which has n^2 in A_t")(
        f"n = {n}, beta = {beta:g}: modes expected with exp(-A_t); A_t is linear in n"
    ).erratum(printed=damped(n, beta, 2), corrected=damped(n, beta, 1), measured=len(t) / runs, rtol=0.05)


def _circle_claims(circles: dict[float, CircleModes]) -> list[Claim]:
    i = int(np.argmin(np.abs(TIMES - 10)))
    formed = [
        Source("clusters that have formed and not merged yet; measured, no theorem")(
            f"circle, beta = {beta:g}: mean clusters of attention at t = {TIMES[i]:.3g} over mean modes at 0"
        ).within(0.85, 1.15, c.clusters[i].mean() / c.modes.mean())
        for beta, c in circles.items()
    ]
    frozen = [
        Source("mean shift climbs to modes")(
            f"circle, beta = {beta:g}: mean clusters in the frozen estimator, t = {TIMES[-1]:g}, over modes"
        ).within(0.97, 1.03, c.frozen[-1].mean() / c.modes.mean())
        for beta, c in circles.items()
    ]
    return formed + frozen


def _data(
    counts: Array, where: tuple[Array, int], growth: dict[int, ModeGrowth], circles: dict[float, CircleModes]
) -> dict[str, Array]:
    out = {"counts": counts, "places": where[0], "times": TIMES}
    for n, g in growth.items():
        out |= {f"growth_{n}_{key}": value for key, value in g._asdict().items()}
    for beta, c in circles.items():
        out |= {f"circle_{beta:g}_{key}": value for key, value in c._asdict().items()}
    return out
