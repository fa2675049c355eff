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
from typing import Any

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.papers.how_smooth.runs import (
    EYE,
    NARROW,
    SIGNS,
    Array,
    Peaks,
    SmoothnessCurve,
    _field,
    exponent,
    in_disc,
    many,
    merged,
    reached,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.stability.local_constant import local_constant
from otflow.stability.smoothness import (
    adversarial_tokens,
    ball_bound,
    data_bound,
    discrete_bound,
    mean_field_bound,
)

PAPER = Source("Castin, Ablin, Peyré 2024, section 3")
OURS = Source("otflow.stability.smoothness")
GAP = 16.0  # sqrt(n) lasts until exp(16)


def run(frame: Frame) -> Result:
    """All constants, all claims, all figures."""
    from otflow.papers.how_smooth.draw import growth, ratios, saturation

    ns = (10, 30, 100, 200) if frame.quick else (10, 30, 100, 300, 1000, 2000)
    curves: dict[str, SmoothnessCurve] = {}
    for i, (name, sign) in enumerate(SIGNS.items()):
        for j, masked in enumerate((False, True)):
            frame.stage(0.8 * (2 * i + j) / 4, f"{name}{', masked' * masked}")
            curves[name + ", masked" * masked] = _curve(sign, masked, ns)
    frame.stage(0.8, "merged tokens")
    narrow = merged(_radius(-1.0, 2 * NARROW), *many())
    peaks = reached()
    frame.stage(0.9, "claims")
    claims = [
        *_growth_claims(curves, ns),
        *_bound_claims(curves, ns),
        _merged_claim(curves["A = -I"], ns),
        *_saturation_claims(narrow, peaks),
        _counterexample_claim(),
    ]
    figures = {"growth": growth(curves, ns), "saturation": saturation(narrow), "peaks": ratios(peaks)}
    return Result(claims, figures, _data(curves, ns, narrow, peaks))


# --- what is measured ----------------------------------------------------------------------------------


def _radius(sign: float, gap: float) -> float:
    """The radius at which adversarial tokens have this gap: R^2 / 4, or 2 R^2."""
    return math.sqrt(4 * gap if sign > 0 else gap / 2)


def _curve(sign: float, masked: bool, ns: tuple[int, ...]) -> SmoothnessCurve:
    field, R = _field(sign, masked), _radius(sign, GAP)
    bad = [local_constant(field, adversarial_tokens(field, R, n)).value.item() for n in ns]
    drawn = [local_constant(field, in_disc(R, n), tol=1e-4).value.median().item() for n in ns]
    return SmoothnessCurve(field, R, np.array(bad), np.array(drawn))


# --- claims --------------------------------------------------------------------------------------------


def _growth_claims(curves: dict[str, SmoothnessCurve], ns: tuple[int, ...]) -> list[Claim]:
    adversarial = [
        PAPER(
            f"{name}, adversarial tokens, scores {GAP:g} apart: the local constant grows like n^0.5 (slope)"
        ).within(0.49, 0.51, exponent(ns, curve.adversarial))
        for name, curve in curves.items()
    ]
    drawn = [
        Source(f"{PAPER} (the worst case is not the typical one)")(
            f"{name}, tokens drawn in the disc: the median constant grows more slowly (slope)"
        ).at_most(0.35, exponent(ns, curve.drawn))
        for name, curve in curves.items()
    ]
    return adversarial + drawn


def _bound_claims(curves: dict[str, SmoothnessCurve], ns: tuple[int, ...]) -> list[Claim]:
    def worst(bound: Any) -> float:
        return max(
            float(max(bad, drawn) / bound(c.field, c.R, n))
            for c in curves.values()
            for n, bad, drawn in zip(ns, c.adversarial, c.drawn, strict=True)
        )

    floors = [
        _floor(n, GAP) / bad for name in SIGNS for n, bad in zip(ns, curves[name].adversarial, strict=True)
    ]
    return [
        PAPER(
            "the constant over sqrt(3) |V| (|A|^2 R^4 (4n + 1) + n)^(1/2) (largest over n and clouds)"
        ).at_most(1.0, worst(discrete_bound)),
        Source(f"{OURS}.ball_bound")(
            "the constant over the bound that knows of both regimes (largest over n and clouds)"
        ).at_most(1.0, worst(lambda field, R, n: ball_bound(field, R, n).exp())),
        Source(f"{OURS}.adversarial_tokens")(
            "sqrt(n - 1) p (1 + (1 - p) g) over the constant of adversarial tokens (largest over n)"
        ).at_most(1.0, max(floors), slack=1e-9),
    ]


def _floor(n: float, g: float) -> float:
    """What moving the one token shows."""
    p = 1 / (1 + (n - 1) * math.exp(-g))
    return math.sqrt(n - 1) * p * (1 + (1 - p) * g)


def _merged_claim(curve: SmoothnessCurve, ns: tuple[int, ...]) -> Claim:
    found = merged(curve.R, np.array(ns, dtype=float), -1.0)
    return Source("the norm is that of L2(mu)")(
        "merging tokens that share a place leaves the constant as it is (largest relative difference)"
    ).at_most(1e-6, np.abs(found / curve.adversarial - 1).max())


def _saturation_claims(narrow: Array, peaks: Peaks) -> list[Claim]:
    n, _ = many()
    y, ratio = peaks.y, np.log(peaks.found) - peaks.ball
    top = float(n[narrow.argmax()])
    return [
        Source(f"{OURS}.adversarial_tokens")(
            f"|A| R^2 = {NARROW:g}: the constant is largest near n = exp(g) (that n over exp(g))"
        ).within(1.0, 5.0, top / math.exp(2 * NARROW)),
        PAPER(
            f"|A| R^2 = {NARROW:g}: the first n for which the bound without n is smaller than that with n"
        ).equal(_crossing(NARROW), _first_beyond(NARROW), atol=1.0),
        Source(f"{OURS}.ball_bound has 1, {PAPER} has 2")(
            "A = -I: log of the largest constant over n, less log(1 + y), against y = |A| R^2 > 2: the slope"
        ).within(0.95, 1.05, np.polyfit(y[y > 2], (np.log(peaks.found) - np.log1p(y))[y > 2], 1)[0]),
        Source(f"{OURS}.ball_bound")(
            "A = -I: the largest constant over the bound for all n (smallest over |A| R^2 from 1/4 to 8)"
        ).within(0.5, 1.0, np.exp(ratio.min())),
        Source(f"{OURS}.ball_bound")(
            "A = -I: the largest constant over the bound for all n (largest over |A| R^2 from 1/4 to 8)"
        ).at_most(1.0, np.exp(ratio.max())),
    ]


def _crossing(y: float) -> float:
    """The real n at which the published bounds are equal, y = |A| R^2."""
    return (((1 + 3 * y) * math.exp(2 * y)) ** 2 / 3 - y**2) / (4 * y**2 + 1)


def _first_beyond(y: float) -> int:
    """By bisection among whole numbers."""
    field, R = _field(-1.0), math.sqrt(y)
    low, high = 1, 10**9
    while high - low > 1:
        n = (low + high) // 2
        low, high = (low, n) if discrete_bound(field, R, n).log() > mean_field_bound(field, R) else (n, high)
    return high


def _counterexample_claim() -> Claim:
    """A maps both tokens to zero, but not their displacements."""
    A = torch.tensor([[0.0, 8.0], [0.0, 0.0]], dtype=torch.float64)
    field, mu = of.SoftmaxAttention(A, EYE, EYE), of.Particles([[-1.0, 0.0], [1.0, 0.0]])
    sigma: Tensor = local_constant(field, mu).value
    return Source("the largest eigenvalue of a matrix of order two")(
        "A = 8 e_1 e_2^T, tokens -e_1 and e_1: the constant is 4 + sqrt(17), so that "
        "(max |Ax|^2 diam^2 (n + 1) + n)^(1/2) = 1.41 is no bound of it "
        f"({OURS}.data_bound gives {data_bound(field, mu).item():.6g})"
    ).equal(4 + math.sqrt(17), sigma.item(), rtol=1e-9)


def _data(
    curves: dict[str, SmoothnessCurve], ns: tuple[int, ...], narrow: Array, peaks: Peaks
) -> dict[str, Array]:
    out = {"n": np.array(ns), "n_merged": many()[0], "merged": narrow}
    for name, curve in curves.items():
        key = "_".join(["minus" if "-" in name else "plus", "masked"][: 1 + ("masked" in name)])
        out |= {f"adversarial_{key}": curve.adversarial, f"drawn_{key}": curve.drawn}
    return out | {f"peaks_{key}": value for key, value in peaks._asdict().items()}
