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
from scipy.stats import cauchy, norm, t

from otflow.papers import relu_flows as rf
from otflow.papers.relu_flows.transports import (
    LEVELS,
    LINE,
    MIXTURE,
    Array,
    Plane,
    beyond,
    in_the_plane,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Alvarez-Lopez, Geshkovski, Ruiz-Balet 2025, arXiv 2412.19366")
OURS = Source("otflow.papers.relu_flows")
HEAVY = {"Cauchy": cauchy(), "t, 2 degrees": t(2), "t, 3 degrees": t(3), "mixture": MIXTURE}


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    from otflow.papers.relu_flows import draw_controllability as draw

    frame.stage(0.0, "on the line")
    line = [rf.transport_1d(norm(), MIXTURE, K) for K in LINE]
    frame.stage(0.3, "in the plane")
    plane = in_the_plane(
        (9, 18, 36) if frame.quick else (9, 18, 36, 72, 144), 2**16 if frame.quick else 2**19
    )
    frame.stage(0.7, "tails")
    heavy = {name: rf.transport_1d(norm(), law, 32) for name, law in HEAVY.items()}
    missing = {name: beyond(heavy[name], law) for name, law in HEAVY.items()}
    frame.stage(0.8, "claims")
    claims = [*_line_claims(line), *_plane_claims(plane), *_tail_claims(heavy, missing)]
    figures = {
        "line": draw.line(line),
        "plane": draw.plane(plane),
        "rates": draw.rates(line, plane),
        "tails": draw.tails(missing),
    }
    data = {"line_kl": np.array([r.kl for r in line]), "line_tv": np.array([r.tv for r in line])}
    for name, runs in (("plain", plane.plain), ("centred", plane.centred)):
        data[f"plane_kl_{name}"] = np.array([r.kl for r in runs])
    return Result(claims, figures, data)


# --- what is computed ----------------------------------------------------------------------------------


# --- claims --------------------------------------------------------------------------------------------


def _line_claims(line: list[rf.Transport]) -> list[Claim]:
    fine = [(K, r) for K, r in zip(LINE, line, strict=True) if K >= 16]
    K = [k for k, _ in fine]
    return [
        Source(f"{OURS}.transport_1d: K + 2")("on the line: pieces for K = 128").equal(130, line[-1].pieces),
        Source(f"{PAPER}: KL by switches; exponent ours")(
            "on the line: exponent of KL against K, from K = 16 on"
        ).equal(-2.0, slope(K, [r.kl for _, r in fine]), atol=0.15),
        Source(f"{OURS}.transport_1d")(
            "on the line: exponent of total variation against K, from K = 16 on"
        ).equal(-1.0, slope(K, [r.tv for _, r in fine]), atol=0.15),
        Source("Pinsker 1964")("on the line: 2 TV^2 over KL, largest (Pinsker's inequality)").at_most(
            1.0, max(2 * r.tv**2 / r.kl for r in line)
        ),
    ]


def _plane_claims(plane: Plane) -> list[Claim]:
    K = plane.K
    return [
        Source(f"{OURS}.knothe_rosenblatt: 6 K - 3")(f"in the plane: pieces for K = {K[-1]}").equal(
            6 * K[-1] - 3, plane.plain[-1].pieces
        ),
        *(
            Source(
                str(
                    f"{PAPER}: KL by switches; exponent ours" if what == "KL" else f"{OURS}.knothe_rosenblatt"
                )
            )(f"in the plane: exponent of {what} against K{where}").equal(
                predicted, slope(K, values), atol=0.15
            )
            for what, where, predicted, values in (
                ("KL", "", -2.0, [r.kl for r in plane.plain]),
                ("the L2 error", "", -1.0, [r.l2 for r in plane.plain]),
                ("KL", ", medians off first", -2.0, [r.kl for r in plane.centred]),
            )
        ),
        Source(f"{OURS}.knothe_rosenblatt")(
            "in the plane: KL as it is over KL with medians off first, K = 9"
        ).within(40, 80, plane.plain[0].kl / plane.centred[0].kl),
    ]


def _tail_claims(heavy: dict[str, rf.Transport], missing: dict[str, Array]) -> list[Claim]:
    claims = [
        Source(f"{PAPER}: assumption on tails")(f"{name}: KL(target | image of a Gaussian)").equal(
            wanted, "inf" if np.isinf(heavy[name].kl) else "finite"
        )
        for name, wanted in (
            ("Cauchy", "inf"),
            ("t, 2 degrees", "inf"),
            ("t, 3 degrees", "finite"),
            ("mixture", "finite"),
        )
    ]
    small = LEVELS < 1e-6
    for name, p in (("Cauchy", -1.0), ("t, 2 degrees", 0.0), ("t, 3 degrees", 1 / 3)):
        claims.append(
            Source(f"{OURS}.transport_1d")(f"{name}: exponent of u g(u) as u falls, 1 - 2 / degrees").equal(
                p, slope(LEVELS[small], missing[name][small]), atol=0.03
            )
        )
    return claims
