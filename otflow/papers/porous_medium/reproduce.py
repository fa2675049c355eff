"""Slow diffusion spreads at finite speed: Barenblatt's profile, and two bumps that meet

The porous medium equation d rho / dt = Laplace rho^m, m > 1, is the gradient flow of int rho^m / (m - 1)
(Otto 2001). Unlike heat it has a front: the density vanishes outside a disc of radius proportional to
t^(1/q), q = d (m - 1) + 2, and is t^(-d/q) (C - k |x|^2 t^(-2/q))_+^(1/(m-1)) inside (Barenblatt 1952). For m
= 2 the density reaches the front with a finite slope, for m = 4 with an infinite one.

The steps of the JKO scheme keep this profile too, with a radius of their own, R' - R = (tau/q) R'^(1-q) in
units of the radius at t = 1. So the density on a grid can be compared with the exact minimiser step by step,
and with it the front, the energy, which is proportional to R^(-d(m-1)), and what moves the second moment,

    M2' - M2 + W2(mu', mu)^2 = 2 d (m - 1) tau F(mu'),

the virial theorem of the scheme, which holds for every density: |x|^2 = |x' + tau grad F|^2 on the way.

Two bumps of different mass know nothing of each other until their fronts meet: until then the scheme moves
each as if it were alone, one profile of its own mass, and afterwards there is one front. On the line the
minimisation is done in the quantile function, where it is so precise that the order of the scheme, and that
of its extrapolation by half steps, can be read off against the equation.
"""

from __future__ import annotations

import numpy as np

import otflow as of
from otflow import closed_forms
from otflow.papers.porous_medium import draw
from otflow.papers.porous_medium.runs import (
    STEPPERS,
    BarenblattRun,
    alone,
    descend,
    exact_energy,
    front,
    fronts,
    on_line,
    radii,
    spread,
    two_bumps,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.oracle import JKO98, l1, order

BARENBLATT = "Barenblatt 1952; Vázquez 2007"
OTTO = Source("Otto 2001; virial theorem of the scheme, see the text")
SPANS = {2.0: (2e-4, 4.2e-3, 16), 4.0: (2e-6, 4.02e-4, 8)}  # first time, last time, number of steps
ALLOWED = {2.0: 2e-3, 4.0: 1e-2}  # L1 to the scheme: an infinite slope at the front costs accuracy
BUMP_TOL = 1e-2  # kinks where fronts meet are not smooth either
BUMP_TAU, BUMP_STEPS = 2e-4, 9  # the walls are not reached


def run(frame: Frame) -> Result:
    """Two profiles, two bumps, and the line."""
    cells = {2.0: 128 if frame.quick else 256, 4.0: 128}
    profiles = {}
    for k, (m, n) in enumerate(cells.items()):
        frame.stage(0.3 * k, f"Barenblatt's profile, m = {m:g}, {n} x {n} cells")
        profiles[m] = spread(n, m, *SPANS[m])
    frame.stage(0.6, "two bumps")
    bumps = descend(two_bumps(128), 2.0, 0.0, BUMP_TAU, BUMP_STEPS, BUMP_TOL)
    frame.stage(0.8, "the line")
    line = {(m, name): on_line(m, name, 300 if frame.quick else 500) for m in SPANS for name in STEPPERS}
    claims = [
        *(claim for found in profiles.values() for claim in _profile_claims(found)),
        *_bump_claims(bumps),
        *_certificates([*profiles.values(), bumps]),
        *_line_claims(line),
    ]
    figures = {
        "barenblatt": draw.profiles(profiles),
        "two-bumps": draw.bumps(bumps),
        "errors": draw.errors(profiles, bumps, line),
    }
    last = {f"density_{m:g}": a.densities[-1].density.numpy() for m, a in profiles.items()}
    return Result(claims, figures, last | {"bumps": np.stack([mu.density.numpy() for mu in bumps.densities])})


# --- runs on grids -----------------------------------------------------------------------------------


def _profile_claims(found: BarenblattRun) -> list[Claim]:
    m, R, x = found.m, radii(found), found.densities[0].axes
    behind = [
        l1(mu.density, closed_forms.barenblatt_grid(x, r, m))
        for mu, r in zip(found.densities, R, strict=True)
    ]
    edge = closed_forms.barenblatt_radius(1.0, m, 2).item() * R
    off = np.abs([front(mu) for mu in found.densities] - edge) / found.densities[0].spacing[0]
    energy = found.energy / exact_energy(R, m) - 1
    words = f"m = {m:g}, {len(x[0])} x {len(x[0])} cells"
    return [
        Source(f"{BARENBLATT}; {JKO98}")(
            f"{words}: L1 distance to Barenblatt's profile in the exact scheme (largest of {len(R)} times)"
        ).at_most(ALLOWED[m], max(behind)),
        Source(f"{BARENBLATT}; {JKO98}")(
            f"{words}: the front is where the exact scheme has it (largest difference, in cells)"
        ).at_most(1.5, off.max()),
        Source(f"{BARENBLATT}; {JKO98}")(
            f"{words}: the energy is that of the exact scheme (largest relative difference)"
        ).at_most(5e-3, np.abs(energy).max()),
    ]


# --- two bumps ---------------------------------------------------------------------------------------


def _bump_claims(found: BarenblattRun) -> list[Claim]:
    apart = alone(len(found.densities[0].axes[0]), found.tau, len(found.cost))
    behind = [l1(mu.density, rho) for mu, rho in zip(found.densities, apart, strict=False)]
    counts = [fronts(mu) for mu in (found.densities[0], found.densities[-1])]
    centres = [of.observables.mean(mu) for mu in (found.densities[0], found.densities[-1])]
    return [
        Source(f"{BARENBLATT}; finite speed")(
            f"two bumps: each is alone in the {len(apart) - 1} steps before their fronts meet (largest L1)"
        ).at_most(4e-3, max(behind)),
        Source("finite speed")("two bumps: fronts at the start and at the end").equal(
            "2, 1", ", ".join(map(str, counts))
        ),
        Source("no force from outside")("two bumps: the centre of mass stays (distance, in cells)").at_most(
            0.1, float((centres[1] - centres[0]).norm()) / found.densities[0].spacing[0]
        ),
    ]


# --- certificates ------------------------------------------------------------------------------------


def _certificates(runs: list[BarenblattRun]) -> list[Claim]:
    every = [mu for found in runs for mu in found.densities]
    mass = max(abs(float(mu.density.sum()) * mu.cell - 1) for mu in every)
    steps = sum(len(found.cost) for found in runs)
    return [
        JKO98(f"all {steps} steps: F(mu') + W2(mu', mu)^2 / (2 tau) <= F(mu) (largest excess)").at_most(
            0.0, max(float(found.energy_gap.max()) for found in runs)
        ),
        Source("conservation")(f"all {steps} steps: |mass - 1| (largest)").at_most(1e-10, mass),
        Source("positivity")("no density is negative (lowest, with the sign turned)").at_most(
            0.0, -min(float(mu.density.min()) for mu in every)
        ),
        *(
            OTTO(
                f"m = {found.m:g}{word}: M2' - M2 + W2^2 = 2 d (m - 1) tau F(mu') (largest rel. difference)"
            ).at_most(2e-2, np.abs(found.virial).max())
            for found, word in zip(runs, ("", "", ", two bumps"), strict=True)
        ),
    ]


# --- the line ----------------------------------------------------------------------------------------


def _line_claims(line: dict[tuple[float, str], dict[float, float]]) -> list[Claim]:
    expected = {"JKO": (1, 0.9, 1.05, JKO98), "extrapolated": (2, 1.8, 2.1, "Richardson's extrapolation")}
    return [
        Source(str(expected[name][3]))(
            f"m = {m:g}, on the line: {name} meets the equation with the order {expected[name][0]} in tau"
        ).within(expected[name][1], expected[name][2], order(errors))
        for (m, name), errors in line.items()
    ]
