"""A Gaussian becomes another law, and relative entropy says how nearly

The continuity equation with velocity w (a.x + b)_+ and piecewise constant w, a, b is controllable in relative
entropy: Alvarez-Lopez, Geshkovski and Ruiz-Balet (2025) bound KL(target | image) by the number of switches,
if the tails of the target are no heavier than the base law allows. Known to us is the abstract; the
constructions are ours. On the line, K + 2 pieces interpolate the monotone map at K + 1 quantiles; KL decays
like K^-2 and total variation like K^-1. In the plane, staircases lift K slabs into windows of their own, one
monotone map carries all conditional maps, and the staircases are undone: the Knothe-Rosenblatt map. If the
conditional median is taken off first and put back by a shear, KL is about fifty times smaller.

The assumption on tails is needed. Beyond the last node every such flow is affine, so that the image of a
Gaussian has Gaussian tails whatever the number of pieces. For a Cauchy target KL is infinite, and what a
finite integral leaves out grows without bound as it reaches further into the tail.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from otflow.papers import relu_flows as rf
from otflow.papers.relu_flows import transports as tr
from otflow.papers.relu_flows.transports import HEAVY, LEVELS, LINE, MIXTURE, values
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = "Alvarez-Lopez, Geshkovski, Ruiz-Balet 2025, arXiv 2412.19366"
SWITCHES, TAILS = Source(f"{PAPER}: KL by switches; exponent ours"), Source(f"{PAPER}: assumption on tails")
ON_THE_LINE, KNOTHE = (Source(f"otflow.papers.relu_flows.{n}") for n in ("transport_1d", "knothe_rosenblatt"))


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    from otflow.papers.relu_flows import draw_controllability as draw

    frame.stage(0.0, "on the line")
    line = [rf.transport_1d(norm(), MIXTURE, int(K)) for K in LINE]
    frame.stage(0.3, "in the plane")
    plane = tr.in_the_plane(*frame.size(((9, 18, 36), 2**16), ((9, 18, 36, 72, 144), 2**19)))
    frame.stage(0.7, "tails")
    heavy = {name: rf.transport_1d(norm(), law, 32) for name, law in HEAVY.items()}
    missing = {name: tr.beyond(heavy[name], law) for name, law in HEAVY.items()}
    frame.stage(0.8, "claims")
    claims = [*_line_claims(line), *_plane_claims(plane), *_tail_claims(heavy, missing)]
    figures = {
        "line": draw.line(line),
        "plane": draw.plane(plane),
        "rates": draw.rates(line, plane),
        "tails": draw.tails(missing),
    }
    data = {
        "line_kl": values(line, "kl"),
        "line_tv": values(line, "tv"),
        "plane_kl_plain": values(plane.plain, "kl"),
        "plane_kl_centred": values(plane.centred, "kl"),
    }
    return Result(claims, figures, data)


def _line_claims(line: list[rf.ReluTransport]) -> list[Claim]:
    kl, tv = values(line, "kl"), values(line, "tv")
    fine = LINE >= 16  # the rates are asymptotic in K
    return [
        Source(f"{ON_THE_LINE}: K + 2")("on the line: pieces for K = 128").equal(130, line[-1].pieces),
        SWITCHES("on the line: exponent of KL against K, from K = 16 on").equal(
            -2.0, slope(LINE[fine], kl[fine]), atol=0.15
        ),
        ON_THE_LINE("on the line: exponent of total variation against K, from K = 16 on").equal(
            -1.0, slope(LINE[fine], tv[fine]), atol=0.15
        ),
        Source("Pinsker 1964")("on the line: 2 TV^2 over KL, largest (Pinsker's inequality)").at_most(
            1.0, (2 * tv**2 / kl).max()
        ),
    ]


def _plane_claims(plane: tr.Plane) -> list[Claim]:
    K, kl = plane.K, values(plane.plain, "kl")
    l2, centred = values(plane.plain, "l2"), values(plane.centred, "kl")
    exponents = (
        (SWITCHES, "KL against K", -2.0, kl),
        (KNOTHE, "the L2 error against K", -1.0, l2),
        (SWITCHES, "KL against K, medians off first", -2.0, centred),
    )
    return [
        Source(f"{KNOTHE}: 6 K - 3")(f"in the plane: pieces for K = {K[-1]}").equal(
            6 * K[-1] - 3, plane.plain[-1].pieces
        ),
        *(
            source(f"in the plane: exponent of {what}").equal(p, slope(K, errors), atol=0.15)
            for source, what, p, errors in exponents
        ),
        KNOTHE("in the plane: KL as it is over KL with medians off first, K = 9").within(
            40, 80, kl[0] / centred[0]
        ),
    ]


def _tail_claims(heavy: dict[str, rf.ReluTransport], missing: dict[str, tr.Array]) -> list[Claim]:
    """KL is finite if and only if the target has a second moment, so for more than two degrees."""
    wanted = {"Cauchy": "inf", "t, 2 degrees": "inf", "t, 3 degrees": "finite", "mixture": "finite"}
    powers = {"Cauchy": -1.0, "t, 2 degrees": 0.0, "t, 3 degrees": 1 / 3}
    small = LEVELS < 1e-6
    return [
        *(
            TAILS(f"{name}: KL(target | image of a Gaussian)").equal(
                word, "inf" if np.isinf(heavy[name].kl) else "finite"
            )
            for name, word in wanted.items()
        ),
        *(
            ON_THE_LINE(f"{name}: exponent of u g(u) as u falls, 1 - 2 / degrees").equal(
                p, slope(LEVELS[small], missing[name][small]), atol=0.03
            )
            for name, p in powers.items()
        ),
    ]
