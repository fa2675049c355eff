"""One ReLU neuron at a time permutes a picture and follows a diffeomorphism

The flow of x' = w (a.x + b)_+ with piecewise constant w, a, b is a composition of maps that are known in
closed form, and so are its inverse and its Jacobian. Geshkovski and Ruiz-Balet (2026) show that such flows
approximate any diffeomorphism in L^p, together with the law that it carries, and how many switches of the
weights are needed. Known to us are the abstract and the statements therein; the constructions are ours.

Shears keep volume. Five staircases of shears permute the cells of a square in any order, and off thin strips
the permutation is exact: a picture is scrambled, and the reversed flow puts it together again. A
diffeomorphism is approximated by a shear, one monotone map of x_1, which has all of the Jacobians, and a
permutation of slivers. The error decays like the size of the mesh, and so does the total variation between
the laws that the flow and the map make of a uniform one.

A velocity that is a sum of many neurons needs no mesh. Neurons drawn at random, each for a short time, follow
it with an error of M^(-1/2) for M pieces, in any dimension; sweeps through all of them have an error of 1 /
M.
"""

from __future__ import annotations

import math

from otflow.papers.relu_flows import runs
from otflow.papers.relu_flows.runs import CELLS, DELTA, DIMENSIONS, SWEEPS
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = "Geshkovski, Ruiz-Balet 2026, arXiv 2602.08606"
SHEARS = f"{PAPER}: permutations by shears"
OURS = "otflow.papers.relu_flows"


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    from otflow.papers.relu_flows import draw

    frame.stage(0.0, "permutations")
    permuted = [runs.permutation(K, frame.size(100_000, 1_000_000)) for K in CELLS]
    frame.stage(0.2, "polar maps")
    polars = runs.approximated(frame.size((4, 8, 16), (4, 8, 16, 32)))
    frame.stage(0.5, "neurons")
    neurons = runs.drawn(frame.size((25, 100, 400), (50, 200, 800, 3200)), 16)
    frame.stage(0.9, "claims")
    claims = [*_permutation_claims(permuted), *_polar_claims(polars), *_neuron_claims(neurons)]
    figures = {
        "permutation": draw.scrambled(),
        "polar": draw.twisted(polars),
        "rates": draw.rates(polars, neurons),
    }
    data = {"cells": polars.K, "l2": polars.l2, "tv": polars.tv, "M": neurons.M, "trotter": neurons.trotter}
    return Result(claims, figures, data | {f"maurey_{d}": e for d, e in neurons.maurey.items()})


def _permutation_claims(permuted: list[runs.Permuted]) -> list[Claim]:
    claims = []
    for p in permuted:
        count = Source(f"{OURS}.permutation")(
            f"{p.K} x {p.K} cells: pieces of the permutation, 6 K^2 + 4 K - 7"
        ).equal(6 * p.K**2 + 4 * p.K - 7, p.pieces)
        share = Source(f"{SHEARS}; strips of measure 4 (K - 1) delta")(
            f"{p.K} x {p.K} cells: share of points that do not go where the permutation says"
        ).at_most(4 * (p.K - 1) * DELTA, p.wrong, slack=0.5)
        claims += [count, share]
    volume, back = max(p.log_det for p in permuted), max(p.back for p in permuted)
    return [
        *claims,
        Source(SHEARS)("permutations keep volume: largest |log det|").equal(0.0, volume),
        Source(f"{OURS}.PiecewiseFlow")(
            "permutations: forward, then inverse, off strips (largest error)"
        ).at_most(1e-13, back),
    ]


def _polar_claims(polars: runs.Polars) -> list[Claim]:
    l2, tv = (slope(polars.K, errors) for errors in (polars.l2, polars.tv))
    return [
        Source(f"{PAPER}: switches scale at best like eps^-d")(
            "a swirl with a stretch: exponent of the L2 error against the cells along a side"
        ).equal(-1.0, l2, atol=0.15),
        Source(f"{PAPER}: convergence of laws in total variation")(
            "the images of the uniform law: exponent of total variation"
        ).equal(-1.0, tv, atol=0.25),
        Source(f"{OURS}.polar")("share of points whose log det is not that of their cell").at_most(
            1e-4, 1 - polars.same
        ),
    ]


def _neuron_claims(neurons: runs.Neurons) -> list[Claim]:
    constants = [errors[-1] * math.sqrt(neurons.M[-1]) for errors in neurons.maurey.values()]
    rates = [
        Source(f"{PAPER}: eps^-2 switches by Maurey's argument")(
            f"neurons at random in dimension {d}: exponent of the error against pieces"
        ).equal(-0.5, slope(neurons.M, errors), atol=0.1)
        for d, errors in neurons.maurey.items()
    ]
    return [
        *rates,
        Source(f"{PAPER}: no curse of dimension")(
            f"error times M^(1/2): largest over smallest of the dimensions {', '.join(map(str, DIMENSIONS))}"
        ).at_most(2.0, max(constants) / min(constants)),
        Source(f"{OURS}.lie_trotter")("neurons in turn: exponent of the error against sweeps").equal(
            -1.0, slope(SWEEPS, neurons.trotter), atol=0.1
        ),
    ]
