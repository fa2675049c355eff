"""How smooth is attention? The root of n, where it ends, and bounds that know of both

The local Lipschitz constant of a layer of attention says how much a small change of the tokens can change its
output. Castin, Ablin and Peyré (2024) show that among n tokens in a ball of radius R it is at most of order
sqrt(n), that it is bounded whatever n is, and that there are clouds for which sqrt(n) is seen: all tokens but
one sit at one place and look at the last. Here the constants are measured, for A = I and for A = -I, with and
without a mask, and the bounds are laid over them. For tokens drawn at random in the same disc they hardly
grow. (They start higher for A = I, which needs a larger disc: there a few tokens are torn between two others
that are far apart, so that sqrt(n) wins only beyond some hundreds of tokens.)

How long sqrt(n) lasts depends on the scores: until n = exp(g), where g is the gap between the scores of the
one token and of the others, 2 |A| R^2 at most. From there on there are too many others, and the constant
falls. What it reaches is of order exp(|A| R^2), the root of the published bound exp(2 |A| R^2) for all n. A
bound of that order is easily proved (see `ball_bound`); it is below both published ones for every n, and less
than twice the largest constant found. Tokens that share a place may be merged into one with their weights,
which changes no constant and lets n be a million, or more.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

import otflow as of
from otflow.papers.how_smooth import draw, runs
from otflow.papers.how_smooth.runs import GAP, NARROW, SIGNS, Array, Peaks, SmoothnessCurve, exponent
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.stability.local_constant import local_constant
from otflow.stability.smoothness import ball_bound, data_bound, discrete_bound

PAPER = Source("Castin, Ablin, Peyré 2024, section 3")
TYPICAL = Source(f"{PAPER} (the worst case is not the typical one)")
OURS = "otflow.stability.smoothness"
BALL, TOKENS = Source(f"{OURS}.ball_bound"), Source(f"{OURS}.adversarial_tokens")


def run(frame: Frame) -> Result:
    """All constants, all claims, all figures."""
    ns = frame.size((10, 30, 100, 200), (10, 30, 100, 300, 1000, 2000))
    curves: dict[str, SmoothnessCurve] = {}
    for k, (name, masked) in enumerate(product(SIGNS, (False, True))):
        words = name + ", masked" * masked
        frame.stage(0.2 * k, words)
        curves[words] = runs.curve(SIGNS[name], ns, masked=masked)
    frame.stage(0.8, "merged tokens")
    narrow, peaks = runs.merged(math.sqrt(NARROW), runs.MANY), runs.reached()
    frame.stage(0.9, "claims")
    claims = [
        *_growth_claims(curves),
        *_bound_claims(curves),
        _merged_claim(curves["A = -I"]),
        *_saturation_claims(narrow, peaks),
        _counterexample_claim(),
    ]
    figures = {"growth": draw.growth(curves), "saturation": draw.saturation(narrow)}
    return Result(claims, figures | {"peaks": draw.peaks(peaks)}, _data(curves, narrow, peaks))


def _growth_claims(curves: dict[str, SmoothnessCurve]) -> list[Claim]:
    """The root of n for the worst tokens, less for others."""
    root = f"adversarial tokens, scores {GAP:g} apart: the local constant grows like n^0.5 (slope)"
    less = "tokens drawn in the disc: the median constant grows more slowly (slope)"
    return [
        *(PAPER(f"{k}, {root}").within(0.49, 0.51, exponent(c.n, c.adversarial)) for k, c in curves.items()),
        *(TYPICAL(f"{k}, {less}").at_most(0.35, exponent(c.n, c.drawn)) for k, c in curves.items()),
    ]


def _bound_claims(curves: dict[str, SmoothnessCurve]) -> list[Claim]:
    """No cloud is above a bound, and no adversarial one below what moving its one token shows."""
    found = [
        (max(pair), (c.field, c.R, n))
        for c in curves.values()
        for n, *pair in zip(c.n, c.adversarial, c.drawn, strict=True)
    ]
    both = "the constant over the bound that knows of both regimes (largest over n and clouds)"
    printed = "the constant over sqrt(3) |V| (|A|^2 R^4 (4n + 1) + n)^(1/2) (largest over n and clouds)"
    below = "sqrt(n - 1) p (1 + (1 - p) g) over the constant of adversarial tokens (largest over n)"
    bare = [pair for name in SIGNS for pair in zip(curves[name].n, curves[name].adversarial, strict=True)]
    return [
        PAPER(printed).at_most(1.0, max(value / discrete_bound(*at) for value, at in found)),
        BALL(both).at_most(1.0, max(value / ball_bound(*at).exp() for value, at in found)),
        TOKENS(below).at_most(1.0, max(_floor(n, GAP) / value for n, value in bare), slack=1e-9),
    ]


def _floor(n: float, g: float) -> float:
    """What moving the one token shows; p is its weight in the eyes of the others."""
    p = 1 / (1 + (n - 1) * math.exp(-g))
    return math.sqrt(n - 1) * p * (1 + (1 - p) * g)


def _merged_claim(curve: SmoothnessCurve) -> Claim:
    """Tokens one by one, for as many as that is possible, against two with weights."""
    words = "merging tokens that share a place leaves the constant as it is (largest relative difference)"
    found = runs.merged(curve.R, np.array(curve.n, dtype=float))
    gap = np.abs(found / curve.adversarial - 1).max()
    return Source("the norm is that of L2(mu)")(words).at_most(1e-6, gap)


def _saturation_claims(narrow: Array, peaks: Peaks) -> list[Claim]:
    """Where the growth ends, and how high it comes."""
    y, ratio, narrowly = peaks.y, np.exp(np.log(peaks.found) - peaks.ball), f"|A| R^2 = {NARROW:g}:"
    rise = np.polyfit(y[y > 2], (np.log(peaks.found) - np.log1p(y))[y > 2], 1)[0]
    last = f"{narrowly} the constant is largest near n = exp(g) (that n over exp(g))"
    cross = f"{narrowly} the first n for which the bound without n is smaller than that with n"
    order = "A = -I: log of the largest constant over n, less log(1 + y), against y = |A| R^2 > 2: the slope"
    sharp = "A = -I: the largest constant over the bound for all n ({} over |A| R^2 from 1/4 to 8)".format
    return [
        TOKENS(last).within(1.0, 5.0, runs.MANY[narrow.argmax()] / math.exp(2 * NARROW)),
        PAPER(cross).equal(_crossing(NARROW), runs.first_beyond(NARROW), atol=1.0),
        Source(f"{BALL} has 1, {PAPER} has 2")(order).within(0.95, 1.05, rise),
        BALL(sharp("smallest")).within(0.5, 1.0, ratio.min()),
        BALL(sharp("largest")).at_most(1.0, ratio.max()),
    ]


def _crossing(y: float) -> float:
    """The real n at which the published bounds are equal, y = |A| R^2.

    sqrt(3) (y^2 (4n + 1) + n)^(1/2) = (1 + 3y) exp(2y), Castin, Ablin and Peyré 2024, section 3.
    """
    return (((1 + 3 * y) * math.exp(2 * y)) ** 2 / 3 - y**2) / (4 * y**2 + 1)


def _counterexample_claim() -> Claim:
    """A maps both tokens to zero, but not their displacements."""
    mu = of.Particles([[-1.0, 0.0], [1.0, 0.0]])
    field = of.SoftmaxAttention([[0.0, 8.0], [0.0, 0.0]], runs.EYE, runs.EYE)
    words = (
        "A = 8 e_1 e_2^T, tokens -e_1 and e_1: the constant is 4 + sqrt(17), so that "
        "(max |Ax|^2 diam^2 (n + 1) + n)^(1/2) = 1.41 is no bound of it "
        f"({OURS}.data_bound gives {data_bound(mu, field).item():.6g})"
    )
    order_two = Source("the largest eigenvalue of a matrix of order two")
    return order_two(words).equal(4 + math.sqrt(17), local_constant(mu, field).value, rtol=1e-9)


def _data(curves: dict[str, SmoothnessCurve], narrow: Array, peaks: Peaks) -> dict[str, Array]:
    """Constants against n, one by one and merged, and the largest ones against |A| R^2."""
    keys = ("minus", "minus_masked", "plus", "plus_masked")
    pairs = list(zip(keys, curves.values(), strict=True))
    return {
        "n": np.array(curves["A = I"].n),
        "n_merged": runs.MANY,
        "merged": narrow,
        **{f"adversarial_{key}": curve.adversarial for key, curve in pairs},
        **{f"drawn_{key}": curve.drawn for key, curve in pairs},
        **{f"peaks_{key}": value for key, value in peaks._asdict().items()},
    }
