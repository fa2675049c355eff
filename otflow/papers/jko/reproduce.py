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

from typing import Any

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.papers.jko import draw
from otflow.papers.jko import grid_oracles as grids
from otflow.papers.jko.line_oracles import on_line
from otflow.papers.jko.runs import SEED, TAUS, Bracket, Spread, _steps, apart, brackets, law, spread
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.oracle import JKO98, Oracle, order

HERTRICH = "Hertrich, Gräf, Beinert, Steidl 2024"
CASTIN = Source("Castin, Ablin, Carrillo, Peyré 2025, section 4")


def run(frame: Frame) -> Result:
    """All oracles, all claims, all figures."""
    frame.stage(0.0, "Gaussians")
    attention = brackets()
    oracles = [*_fokker_planck(quick=frame.quick), _aggregation(), _attention(attention)]
    frame.stage(0.1, "the line")
    lines = on_line(1000)
    frame.stage(0.25, "particles from a point")
    riesz = {n: spread(n, quick=frame.quick) for n in ((50, 100) if frame.quick else (50, 100, 200, 400))}
    frame.stage(0.35, "grids")
    found = grids.compute(quick=frame.quick, progress=frame.stage)
    oracles += [*lines.refined, *found.oracles]
    claims = [
        *(claim for oracle in oracles for claim in oracle.claims()),
        *lines.claims(),
        *_bracket_claims(attention),
        *_riesz_claims(riesz),
        *found.claims(),
    ]
    figures = {
        "oracles": draw.table(oracles),
        "blur": draw.blur(found),
        "attention-and-riesz": draw.pair(attention, riesz),
    }
    return Result(claims, figures, _data(oracles))


def _data(oracles: list[Oracle]) -> dict[str, np.ndarray]:
    """For every oracle the rows tau, solver against scheme, scheme against equation."""
    names = [f"oracle_{k}" for k in range(len(oracles))]
    rows = [np.array([list(o.scheme), list(o.solver.values()), list(o.scheme.values())]) for o in oracles]
    return dict(zip(names, rows, strict=True)) | {"names": np.array([o.name for o in oracles])}


# --- Gaussians ---------------------------------------------------------------------------------------


def _fokker_planck(*, quick: bool) -> list[Oracle]:
    """A potential and entropy; the same for a solver that is not told that all is quadratic; interaction."""
    one, noise = law(), 0.5 * of.Entropy()
    A, b = (torch.from_numpy(a) for a in (one.A, one.b))
    hidden = of.Potential(lambda x: ((x - b) * ((x - b) @ A)).sum(-1) / 2)
    known = of.QuadraticPotential(one.A, one.b)
    rows: list[tuple[str, of.Energy, Any, float, tuple[float, ...]]] = [
        ("Fokker-Planck, Gaussians, closed form", known + noise, None, 1e-12, TAUS),
        (
            "Fokker-Planck, Gaussians, Newton's method",
            hidden + noise,
            None,
            1e-9,
            TAUS[:2] if quick else TAUS[:3],
        ),
        (
            "with quadratic interaction, Gaussians",
            known + of.QuadraticInteraction(one.K) + noise,
            one.K,
            1e-12,
            TAUS,
        ),
    ]
    return [_on_gaussians(*row) for row in rows]


def _on_gaussians(name: str, energy: of.Energy, K: Any, bound: float, taus: tuple[float, ...]) -> Oracle:
    one, field = law(), of.SteepestDescent(energy, of.Wasserstein())
    solver, scheme = {}, {}
    for tau in taus:
        end = of.flow(one.mu, field, of.JKO(), t1=1.0, dt=tau, save_at=[0.0]).final
        oracle = one.scheme(tau, K)
        solver[tau], scheme[tau] = (
            apart(of.Gaussian(*end.coords), oracle),
            apart(oracle, one.exact(1.0, K)),
        )
    return Oracle(name, "mean and covariance, largest difference", JKO98, solver, scheme, bound)


# --- attention ---------------------------------------------------------------------------------------


def _attention(each: dict[float, Bracket]) -> Oracle:
    solver = {tau: float((b.implicit - b.scheme).abs().max()) for tau, b in each.items()}
    scheme = {tau: float((b.scheme - b.flow).abs().max()) for tau, b in each.items()}
    return Oracle(
        "softmax attention, Gaussians", "covariance, largest difference", CASTIN, solver, scheme, 1e-9
    )


def _bracket_claims(each: dict[float, Bracket]) -> list[Claim]:
    below = max(_excess(b.explicit, b.flow) for b in each.values())
    above = max(_excess(b.flow, b.implicit) for b in each.values())
    width = {tau: float((b.implicit - b.explicit).abs().max()) for tau, b in each.items()}
    return [
        Source(f"{CASTIN}; see the text")(
            "softmax attention: explicit runs end below the closed form (top eigenvalue of the difference)"
        ).at_most(0.0, below),
        Source(f"{CASTIN}; see the text")(
            "softmax attention: JKO runs end above the closed form (top eigenvalue of the difference)"
        ).at_most(0.0, above),
        Source(f"{CASTIN}; {JKO98}")("softmax attention: the bracket closes with the order 1 in tau").within(
            0.9, 1.1, order(width)
        ),
    ]


def _excess(low: Tensor, high: Tensor) -> float:
    """The largest eigenvalue of low - high: not positive if low <= high as quadratic forms."""
    return float(torch.linalg.eigvalsh(low - high).max())


# --- particles ---------------------------------------------------------------------------------------


def _aggregation() -> Oracle:
    rng = np.random.default_rng(SEED)
    x, w = torch.from_numpy(rng.normal(size=(40, 2))), torch.from_numpy(rng.dirichlet(np.ones(40)))
    pull = of.Interaction(lambda x, y: (x - y).square().sum(-1) / 2)
    field = of.SteepestDescent(pull, of.Wasserstein())
    centre = w @ x
    solver, scheme = {}, {}
    for tau in TAUS:
        end = of.flow(of.Particles(x, w), field, of.JKO(), t1=1.0, dt=tau, save_at=[0.0]).final.coords[0]
        oracle = x
        for _ in range(_steps(1.0, tau)):
            oracle = closed_forms.aggregation_step(oracle, tau, w=w)
        exact = centre + np.exp(-1.0) * (x - centre)
        solver[tau], scheme[tau] = float((end - oracle).abs().max()), float((oracle - exact).abs().max())
    return Oracle(
        "quadratic interaction, particles", "positions, largest difference", JKO98, solver, scheme, 1e-10
    )


def _riesz_claims(riesz: dict[int, Spread]) -> list[Claim]:
    n, last = max(riesz.items())
    exact = float(closed_forms.riesz_radius(1.0, 1.0, 2))
    source = Source(f"{HERTRICH}; the radius is (3/2 int |x|^2)^(1/2)")
    return [
        source(f"Riesz energy, d = 2, r = 1: the radius of {n} particles that leave a point, at t = 1").equal(
            exact, last.radius[-1], rtol=1e-3
        ),
        source(f"the same by JKO steps from t = 1/2 on, with {n} particles").equal(
            exact, last.jko, rtol=1e-3
        ),
        Source("a particle is spread over 1/N of the area but does not repel itself")(
            "Riesz energy: the error of the radius falls like N^-1.5 (slope)"
        ).within(-1.75, -1.25, order({k: abs(one.radius[-1] - exact) for k, one in riesz.items()})),
        Source("uniqueness of the step")(
            "the same: -tau times the lowest curvature met by JKO (below 1 a step is convex there)"
        ).at_most(1.0, last.concavity),
    ]
