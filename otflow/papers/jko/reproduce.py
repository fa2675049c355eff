"""Minimising movements against their oracles: solver and scheme, scheme and equation

A JKO run has two errors: that of the solver, which may miss the minimiser of a step, and that of the scheme,
whose minimisers are O(tau) away from the gradient flow. Both have signs. A solver that blurs spreads the mass
more than it should, the implicit scheme spreads it less than the equation does, and a blurred run can look
better against the equation than an exact one. So each solver is compared with the scheme, for energies whose
steps are known in closed form, and the scheme with the equation.

The steps that are known: the Fokker-Planck equation on Gaussians, with a potential, an interaction and a
covariance of which no two commute; the heat equation on the line; the porous medium equation, whose steps
keep Barenblatt's profile, R' - R = (tau/q) R'^(1-q) with q = d(m-1) + 2; the quadratic interaction of
particles, whose steps divide x - c by 1 + tau; and softmax attention on Gaussians. With V = I and A = -H, H
positive definite, that is a gradient flow for the metric H; Z = H^(1/2) S H^(1/2) obeys dZ/dt = -2 Z^2, an
explicit step is Z (I - tau Z)^2 and an implicit one the root of Z' (I + tau Z')^2 = Z. The explicit step is
too short and the implicit one too long for every eigenvalue, so that the two runs enclose the covariance of
the flow.

Two more facts are checked that are not steps. The flow of -1/2 iint |x - y|^r from a point mass has the
radius ((2-r) c t)^(1/(2-r)) (Hertrich et al. 2024), and for r = 1 so have its JKO steps, as R' - R = tau c
R'^(r-1). The second moment of Keller and Segel's equation changes at the rate 4 (1 - M/(8 pi)), M the mass,
whatever the density: the virial theorem. Entropy contributes 4, the logarithm -M/(2 pi). A JKO step has a
virial theorem too, M2' - M2 + W2^2 = tau times this rate, up to what the linearisation of the interaction
costs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.papers.jko import draw, runs
from otflow.papers.jko import grid_oracles as grids
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.oracle import JKO98, Oracle, largest, order

BRACKET = Source(f"{runs.CASTIN}; see the text")
CLOSES = Source(f"{runs.CASTIN}; {JKO98}")
RADIUS = Source("Hertrich, Gräf, Beinert, Steidl 2024; the radius is (3/2 int |x|^2)^(1/2)")
OPPOSITE = Source("errors of opposite signs, see the text")
VIRIAL = Source("Blanchet, Dolbeault, Perthame 2006; virial theorem, see the text")


Blur = dict[str, dict[float, grids.Blurred]]  # with and without the correction, for every eps


def run(frame: Frame) -> Result:
    """All oracles, all claims, all figures."""
    frame.stage(0.0, "Gaussians")
    brackets = runs.brackets()
    oracles = [*runs.fokker_planck(frame), runs.aggregation(), runs.attention(brackets)]
    frame.stage(0.1, "the line")
    lines = runs.on_line(1000)
    frame.stage(0.25, "particles from a point")
    numbers, tau = frame.size(((50, 100), 0.125), ((50, 100, 200, 400), 0.0625))
    riesz = {n: runs.spread(n, tau) for n in numbers}
    frame.stage(0.35, "grids")
    porous = grids.barenblatt_oracle(*frame.size((128, grids.TAUS[:2]), (256, grids.TAUS)))
    frame.stage(0.6, "heat on a grid")
    heat = grids.heat_oracle(*frame.size((64, 2), (128, 3)))
    frame.stage(0.7, "entropic steps")
    blur, sharp = _blurred(frame), grids.blurred(128, of.JKO())
    frame.stage(0.9, "Keller and Segel")
    keller = {share: grids.keller_rate(share, frame.size(48, 64)) for share in grids.MASSES}
    oracles += [*(refined for _, refined in lines), porous, heat]
    claims = [
        *(claim for oracle in oracles for claim in oracle.claims()),
        *_mesh_claims([plain for plain, _ in lines]),
        *_bracket_claims(brackets),
        *_riesz_claims(riesz),
        *_blur_claims(blur, sharp),
        *_keller_claims(keller),
    ]
    figures = {
        "oracles": draw.table(oracles),
        "blur": draw.blur(blur, sharp, porous, keller),
        "attention-and-riesz": draw.pair(brackets, riesz),
    }
    return Result(claims, figures, _data(oracles))


def _blurred(frame: Frame) -> Blur:
    cells, eps = frame.size((64, (2e-3, 6e-4)), (128, (2e-3, 6e-4, 2e-4)))
    return {
        word: {
            e: grids.blurred(cells, of.EntropicJKO(of.Sinkhorn(e, tol=1e-8), debiased="debiased" in word))
            for e in eps
        }
        for word in ("entropic", "entropic, debiased")
    }


def _data(oracles: list[Oracle]) -> dict[str, np.ndarray]:
    """For every oracle the rows tau, solver against scheme, scheme against equation."""
    rows = [[list(o.scheme), list(o.solver.values()), list(o.scheme.values())] for o in oracles]
    names = np.array([o.name for o in oracles])
    return {f"oracle_{k}": np.array(row) for k, row in enumerate(rows)} | {"names": names}


def _mesh_claims(plain: list[Oracle]) -> list[Claim]:
    against = "one mesh, solver against scheme (W2, largest over tau)"
    return [JKO98(f"{o.name}: {against}").at_most(o.bound, max(o.solver.values())) for o in plain]


def _bracket_claims(each: dict[float, runs.Bracket]) -> list[Claim]:
    below = max(_excess(b.explicit, b.flow) for b in each.values())
    above = max(_excess(b.flow, b.implicit) for b in each.values())
    width = {tau: largest(b.implicit, b.explicit) for tau, b in each.items()}
    form = "the closed form (top eigenvalue of the difference)"
    closes = CLOSES("softmax attention: the bracket closes with the order 1 in tau")
    return [
        BRACKET(f"softmax attention: explicit runs end below {form}").at_most(0.0, below),
        BRACKET(f"softmax attention: JKO runs end above {form}").at_most(0.0, above),
        closes.within(0.9, 1.1, order(width)),
    ]


def _excess(low: Tensor, high: Tensor) -> float:
    """The largest eigenvalue of low - high: not positive if low <= high as quadratic forms."""
    return float(torch.linalg.eigvalsh(low - high).max())


def _riesz_claims(riesz: dict[int, runs.Spread]) -> list[Claim]:
    n, last = max(riesz.items())
    exact = float(closed_forms.riesz_radius(1.0, 1.0, 2))
    behind = {k: abs(one.radius[-1] - exact) for k, one in riesz.items()}
    leave = f"Riesz energy, d = 2, r = 1: the radius of {n} particles that leave a point, at t = 1"
    steps = f"the same by JKO steps from t = 1/2 on, with {n} particles"
    return [
        RADIUS(leave).equal(exact, last.radius[-1], rtol=1e-3),
        RADIUS(steps).equal(exact, last.jko, rtol=1e-3),
        Source("a particle is spread over 1/N of the area but does not repel itself")(
            "Riesz energy: the error of the radius falls like N^-1.5 (slope)"
        ).within(-1.75, -1.25, order(behind)),
        Source("uniqueness of the step")(
            "the same: -tau times the lowest curvature met by JKO (below 1 a step is convex there)"
        ).at_most(1.0, last.concavity),
    ]


def _blur_claims(blur: Blur, sharp: grids.Blurred) -> list[Claim]:
    plain, debiased = blur.values()
    eps, last = min(plain.items())
    against = {e: b.scheme for e, b in plain.items()}
    smaller = OPPOSITE("while without blur L1 to the exact scheme is smaller (ratio)")
    return [
        Source("Peyré 2015")(
            f"entropic steps, tau = {grids.BLUR_TAU:g}: L1 to the exact scheme is proportional to eps (slope)"
        ).within(0.85, 1.15, order(against)),
        Source("Conforti, Tamanini 2021")(
            f"the same with the blur taken away to first order, over that without, at eps = {eps:g}"
        ).at_most(0.5, debiased[eps].scheme / last.scheme),
        OPPOSITE(
            f"blur hides the error of the scheme: L1 to the equation at eps = {eps:g}, over that without"
        ).at_most(1.0, last.equation / sharp.equation),
        smaller.at_most(0.1, sharp.scheme / last.scheme),
    ]


def _keller_claims(rates: dict[float, float]) -> list[Claim]:
    rate = f"(M2' - M2 + W2^2) / tau for tau = {grids.KELLER_TAU:g}"
    return [
        VIRIAL(f"Keller and Segel, mass {share:g} x 8 pi: {rate}").equal(4 * (1 - share), found, atol=0.12)
        for share, found in rates.items()
    ]
