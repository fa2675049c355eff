"""Transformers as interacting particles on the sphere: clusters, energies and phase transitions

With layer normalisation tokens live on the unit sphere. Geshkovski, Letrouit, Polyanskiy and Rigollet (2025)
study attention with Q = K = V = I and inverse temperature beta there: with softmax (SA), and without (USA).
Both ascend the energy E = 1/(2 beta) int int exp(beta x.y), which is least for uniform tokens and largest
when all agree; from almost every start all tokens meet in one point.

How long that takes is seen in phase diagrams: the probability that two tokens have met, over time and beta.
In high dimension random tokens are almost orthogonal, all angles between them stay almost equal, and one ODE
for the cosine gamma of the angle tells the whole story. Its time is a closed form in exponential integrals.
The curve on which gamma = 1 - delta is drawn over the diagrams: it is the boundary, and turns up near beta =
log n. In low dimension there is another region where the probability is neither 0 nor 1. Tokens there sit in
a few clusters, two on the circle for beta = 4 and three for beta = 9, for a very long time.

The diagrams use Euler's steps of 0.1, brought back to the sphere, as the paper does; the step is projected to
the tangent space first. Weights can be random, too: symmetric ones keep the structure of an ascent or
descent, and tokens meet for many others as well.
"""

from __future__ import annotations

import re

import numpy as np

from otflow.papers.perspective.runs import (
    CIRCLE,
    KINDS,
    Array,
    DiagramCurve,
    Diagrams,
    equal_angles,
    on_the_circle,
    on_the_sphere,
    phases,
    random_weights,
)
from otflow.reproduce.claim import Result
from otflow.reproduce.frame import Frame


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    from otflow.papers.perspective import draw
    from otflow.papers.perspective.claims import all_claims

    frame.stage(0.0, "equal angles")
    curves = {f"{kind}, beta = {b:g}": equal_angles(b, kind) for kind in KINDS for b in (1.0, 3.0)}
    frame.stage(0.05, "circle and sphere")
    rings = {beta: on_the_circle(beta, 16 if frame.quick else 64) for beta in CIRCLE}
    globe = on_the_sphere()
    frame.stage(0.2, "random weights")
    shares = random_weights(6 if frame.quick else 24)
    diagrams: Diagrams = {}
    for share, name, diagram in phases(frame.quick):
        frame.stage(0.3 + 0.55 * share, name)
        diagrams[name] = diagram
    frame.stage(0.9, "claims")
    claims = all_claims(curves, diagrams, rings, quick=frame.quick)
    figures = {
        "phases": draw.phases(diagrams),
        "equal-angles": draw.equal_angles(curves),
        "circle": draw.circles(rings),
        "sphere": draw.globes(globe),
        "random-weights": draw.random_weights(shares),
    }
    return Result(claims, figures, _data(diagrams, curves, shares))


# --- what is computed ----------------------------------------------------------------------------------


def _data(diagrams: Diagrams, curves: dict[str, DiagramCurve], shares: dict[str, Array]) -> dict[str, Array]:
    out = {f"random_{_key(name)}": values for name, values in shares.items()}
    for name, c in curves.items():
        out |= {f"equal_{_key(name)}": np.column_stack([c.ts, c.closed, c.followed])}
    for name, diagram in diagrams.items():
        for field in ("t", "beta", "probability", "stderr", "prediction"):
            out[f"phases_{_key(name)}_{field}"] = getattr(diagram, field).numpy()
    return out


def _key(name: str) -> str:
    """A name of letters, digits and _ only."""
    return "_".join(re.findall(r"[A-Za-z0-9]+", name.replace("-A", "minus A")))
