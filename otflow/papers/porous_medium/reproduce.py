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
from otflow.papers.porous_medium import draw, runs
from otflow.papers.porous_medium.runs import BarenblattRun
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.oracle import JKO98, l1, order

BARENBLATT = Source(f"Barenblatt 1952; Vázquez 2007; {JKO98}")
ALONE = Source("Barenblatt 1952; Vázquez 2007; finite speed")
OTTO = Source("Otto 2001; virial theorem of the scheme, see the text")
RICHARDSON = Source("Richardson's extrapolation")
SPANS = {2.0: (2e-4, 4.2e-3, 16), 4.0: (2e-6, 4.02e-4, 8)}  # first time, last time, number of steps
ALLOWED = {2.0: 2e-3, 4.0: 1e-2}  # L1 to the scheme: an infinite slope at the front costs accuracy
BUMP_TOL = 1e-2  # kinks where fronts meet are not smooth either
BUMP_TAU, BUMP_STEPS = 2e-4, 9  # the walls are not reached


def run(frame: Frame) -> Result:
    """Two profiles, two bumps, and the line."""
    cells, profiles = {2.0: frame.size(128, 256), 4.0: 128}, {}
    for k, (m, n) in enumerate(cells.items()):
        frame.stage(0.3 * k, f"Barenblatt's profile, m = {m:g}, {n} x {n} cells")
        profiles[m] = runs.spread(n, m, *SPANS[m])
    frame.stage(0.6, "two bumps")
    bumps = runs.descend(runs.two_bumps(128), 2.0, 0.0, BUMP_TAU, BUMP_STEPS, BUMP_TOL)
    frame.stage(0.8, "the line")
    n = frame.size(300, 500)
    line = {(m, name): runs.on_line(m, name, n) for m in SPANS for name in runs.STEPPERS}
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
    last = {f"density_{m:g}": found.densities[-1].density.numpy() for m, found in profiles.items()}
    return Result(claims, figures, last | {"bumps": np.stack([mu.density.numpy() for mu in bumps.densities])})


def _profile_claims(found: BarenblattRun) -> list[Claim]:
    m, R, x, every = found.m, runs.radii(found), found.densities[0].axes, found.densities
    behind = [l1(mu.density, closed_forms.barenblatt_grid(x, r, m)) for mu, r in zip(every, R, strict=True)]
    edge = closed_forms.barenblatt_radius(1.0, m, 2).item() * R
    off = np.abs([runs.front(mu) for mu in every] - edge) / every[0].spacing[0]
    energy = np.abs(found.energy / runs.exact_energy(R, m) - 1)
    words = f"m = {m:g}, {len(x[0])} x {len(x[0])} cells"
    profile = f"L1 distance to Barenblatt's profile in the exact scheme (largest of {len(R)} times)"
    front = "the front is where the exact scheme has it (largest difference, in cells)"
    fall = "the energy is that of the exact scheme (largest relative difference)"
    return [
        BARENBLATT(f"{words}: {profile}").at_most(ALLOWED[m], max(behind)),
        BARENBLATT(f"{words}: {front}").at_most(1.5, off.max()),
        BARENBLATT(f"{words}: {fall}").at_most(5e-3, energy.max()),
    ]


def _bump_claims(found: BarenblattRun) -> list[Claim]:
    first, last = found.densities[0], found.densities[-1]
    apart = runs.alone(len(first.axes[0]), found.tau, len(found.cost))
    behind = max(l1(mu.density, rho) for mu, rho in zip(found.densities, apart, strict=False))
    moved = float((of.observables.mean(last) - of.observables.mean(first)).norm()) / first.spacing[0]
    fronts = Source("finite speed")("two bumps: fronts at the start and at the end")
    centre = Source("no force from outside")("two bumps: the centre of mass stays (distance, in cells)")
    return [
        ALONE(
            f"two bumps: each is alone in the {len(apart) - 1} steps before their fronts meet (largest L1)"
        ).at_most(4e-3, behind),
        fronts.equal("2, 1", f"{runs.fronts(first)}, {runs.fronts(last)}"),
        centre.at_most(0.1, moved),
    ]


def _certificates(found: list[BarenblattRun]) -> list[Claim]:
    steps, gap = sum(len(one.cost) for one in found), max(one.energy_gap.max() for one in found)
    lost = max(one.lost.max() for one in found)
    low = min(mu.density.min() for one in found for mu in one.densities)
    names = [f"m = {one.m:g}{word}" for one, word in zip(found, ("", "", ", two bumps"), strict=True)]
    excess = f"all {steps} steps: F(mu') + W2(mu', mu)^2 / (2 tau) <= F(mu) (largest excess)"
    virial = "M2' - M2 + W2^2 = 2 d (m - 1) tau F(mu') (largest rel. difference)"
    return [
        JKO98(excess).at_most(0.0, gap),
        Source("conservation")(f"all {steps} steps: |mass - 1| (largest)").at_most(1e-10, lost),
        Source("positivity")("no density is negative (lowest, with the sign turned)").at_most(0.0, -low),
        *(
            OTTO(f"{name}: {virial}").at_most(2e-2, np.abs(one.virial).max())
            for name, one in zip(names, found, strict=True)
        ),
    ]


def _line_claims(line: dict[tuple[float, str], dict[float, float]]) -> list[Claim]:
    expected = {"JKO": (JKO98, 1, 0.9, 1.05), "extrapolated": (RICHARDSON, 2, 1.8, 2.1)}
    claims = []
    for (m, name), errors in line.items():
        source, power, low, high = expected[name]
        meets = source(f"m = {m:g}, on the line: {name} meets the equation with the order {power} in tau")
        claims.append(meets.within(low, high, order(errors)))
    return claims
