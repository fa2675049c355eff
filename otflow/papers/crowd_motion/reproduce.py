"""A crowd that cannot be denser than a limit fills up the lowest places

Everybody walks down a potential V, say the distance to an exit, as far as the others let them: the density
must not exceed a limit (Maury, Roudneff-Chupin and Santambrogio 2010). This is the gradient flow of int V dmu
under the constraint rho <= limit. A step of the JKO scheme is a projection, and for any V the end is known:
among all densities below the limit the one with the least energy is at the limit on a sublevel set {V < c} of
area 1/limit and zero outside. For V = |x|^2 / 2 that is a disc of radius (pi limit)^(-1/2).

Two crowds are followed in the plane. Two groups in a bowl, V = |x|^2 / 2, meet and merge in the disc. One
group walks past a pillar, a hill of V, to the point it wants to be at, and packs around that point; the
pillar cuts a piece out of the final set. Both runs use the entropic scheme, debiased, with the blur eps =
1e-3: it meets the bound and the mass exactly, and its energy inequality up to the blur, d eps / (2 tau). At
the edge, where the density jumps, blur is not removed: it leaves a halo, by which the area with more than
half the limit falls about one percent short of 1/limit, and which shrinks with eps. Steps without blur are
hard to solve on a grid where the density jumps; the first five of them show that the blur makes little
difference.

On the line everything is exact. In the quantile function X of the crowd, the bound says that X(s) - s / limit
does not decrease, and for V = x^2 / 2 a step is the projection of X / (1 + tau) onto these functions in L2:
an isotonic regression, for which scipy has an algorithm of its own.
"""

from __future__ import annotations

import numpy as np

import otflow as of
from otflow.papers.crowd_motion import draw
from otflow.papers.crowd_motion.runs import (
    LINE_LIMIT,
    SCENES,
    Crowd,
    CrowdOnLine,
    _l1,
    follow,
    full_share,
    halo,
    least,
    on_line,
    packed,
)
from otflow.reproduce.claim import Claim, Progress, Result
from otflow.reproduce.oracle import JKO98, order

MAURY = "Maury, Roudneff-Chupin, Santambrogio 2010"
EPS = 1e-3
HALOS = (4e-3, 2e-3, 1e-3)  # blurs for which the end in the bowl is compared
SHARP_STEPS, SHARP_TOL = 5, 5e-2


def run(*, quick: bool, progress: Progress) -> Result:
    """Two crowds with blur, one without, and the line."""
    n = 64 if quick else 128
    crowds = {}
    for k, (name, scene) in enumerate(SCENES.items()):
        progress(0.35 * k, f"{name}, {n} x {n} cells")
        crowds[name] = follow(scene, n, of.EntropicJKO(EPS, debiased=True), scene.steps)
    progress(0.7, "steps without blur")
    sharp = follow(SCENES["bowl"], 64, of.JKO(tol=SHARP_TOL), SHARP_STEPS)
    blurred = follow(SCENES["bowl"], 64, of.EntropicJKO(EPS, debiased=True), SHARP_STEPS)
    progress(0.75, "weaker and weaker blur")
    halos = {eps: halo(eps) for eps in HALOS}
    progress(0.85, "the line")
    line = on_line(200 if quick else 800)
    claims = [
        *(claim for name, crowd in crowds.items() for claim in _crowd_claims(name, crowd)),
        *_sharp_claims(sharp, blurred),
        _halo_claim(halos),
        *_line_claims(line),
    ]
    figures = {name: draw.scene(crowd) for name, crowd in crowds.items()}
    figures["certificates"] = draw.certificates(crowds, sharp, halos, line)
    data = {name: np.stack([mu.density.numpy() for mu in crowd.densities]) for name, crowd in crowds.items()}
    return Result(claims, figures, data | {"line": np.stack([mu.x.numpy() for mu in line.runs])})


# --- the plane ---------------------------------------------------------------------------------------


def _over(crowd: Crowd) -> float:
    """By how much the limit is exceeded after a step, relatively; negative before anybody is in the way."""
    return max(float(mu.density.max()) / crowd.scene.limit - 1 for mu in crowd.densities[1:])


def _lost(crowd: Crowd) -> float:
    return max(abs(float(mu.density.sum()) * mu.cell - 1) for mu in crowd.densities)


def _crowd_claims(name: str, crowd: Crowd) -> list[Claim]:
    last, steps = crowd.densities[-1], len(crowd.energy_gap)
    shape = "the disc of area 1/limit" if name == "bowl" else "the sublevel set of V of area 1/limit"
    area = float((last.density > crowd.scene.limit / 2).sum()) * last.cell
    return [
        Claim.equal(f"{name}: the run", MAURY, predicted="ok", measured=crowd.status),
        Claim.at_most(
            f"{name}: largest density over the limit, less 1, in {steps} steps",
            MAURY,
            bound=1e-6,
            measured=_over(crowd),
        ),
        Claim.at_most(f"{name}: |mass - 1| (largest)", "conservation", bound=1e-10, measured=_lost(crowd)),
        Claim.at_most(
            f"{name}: the energy falls in every step (largest increase)",
            JKO98,
            bound=0.0,
            measured=float(np.diff(crowd.energy).max()),
        ),
        Claim.at_most(
            f"{name}: F(mu') + W2^2 / (2 tau) - F(mu), at most d eps / (2 tau) in every step",
            "Peyré 2015; the cost of a plan of blur eps at rest",
            bound=EPS / crowd.scene.tau,
            measured=float(crowd.energy_gap.max()),
        ),
        Claim.at_most(
            f"{name}: the crowd ends at the limit on {shape}, and nowhere else (L1)",
            f"{MAURY}; least energy under the bound",
            bound=0.04,
            measured=_l1(last.density, packed(crowd), last),
        ),
        Claim.equal(
            f"{name}: area of the congested set (density above half the limit), 1/limit",
            MAURY,
            predicted=1 / crowd.scene.limit,
            measured=area,
            rtol=0.02,
        ),
        Claim.within(
            f"{name}: energy at the end over the least one, less 1",
            "least energy under the bound",
            low=0.0,
            high=2e-3,
            measured=float(crowd.energy[-1]) / least(crowd) - 1,
        ),
        Claim.at_most(
            f"{name}: part of the mass that is not at the limit at the end",
            MAURY,
            bound=0.1,
            measured=1 - full_share(last, crowd.scene.limit),
        ),
    ]


def _halo_claim(halos: dict[float, float]) -> Claim:
    return Claim.within(
        "bowl: L1 to the packed crowd against eps: between the order 1/2 of a blurred jump and 1 (slope)",
        "Peyré 2015",
        low=0.4,
        high=1.1,
        measured=order(halos),
    )


def _sharp_claims(sharp: Crowd, blurred: Crowd) -> list[Claim]:
    k = min(len(sharp.densities), len(blurred.densities)) - 1
    apart = _l1(sharp.densities[k].density, blurred.densities[k].density, sharp.densities[k])
    return [
        Claim.equal(
            f"bowl, without blur: the run of {SHARP_STEPS} steps",
            JKO98,
            predicted="ok",
            measured=sharp.status,
        ),
        Claim.at_most(
            "bowl, without blur: largest density over the limit, less 1",
            MAURY,
            bound=1e-6,
            measured=_over(sharp),
        ),
        Claim.at_most(
            "bowl, without blur: F(mu') + W2^2 / (2 tau) - F(mu) in every step (largest)",
            JKO98,
            bound=0.0,
            measured=float(sharp.energy_gap.max()),
        ),
        Claim.at_most(
            f"bowl: densities with and without blur after {k} steps (L1)",
            "the blur is removed to first order",
            bound=0.06,
            measured=apart,
        ),
    ]


# --- the line ----------------------------------------------------------------------------------------


def _line_claims(line: CrowdOnLine) -> list[Claim]:
    x = np.stack([mu.x.numpy() for mu in line.runs])
    n, last = x.shape[1] - 1, line.runs[-1]
    top = max(float(mu.density()[1].max()) for mu in line.runs[1:])
    wanted = (np.arange(n + 1) / n - 0.5) / LINE_LIMIT
    apart = np.sqrt(np.mean((x - line.projected) ** 2, axis=1))
    return [
        Claim.at_most(
            f"line, {n} intervals: distance to scipy's isotonic regression (W2, largest of {len(x)} times)",
            f"{MAURY}; the step is a projection, see the text",
            bound=1e-3,
            measured=float(apart.max()),
        ),
        Claim.at_most(
            "line: largest density over the limit, less 1", MAURY, bound=1e-6, measured=top / LINE_LIMIT - 1
        ),
        Claim.at_most(
            "line: F(mu') + W2^2 / (2 tau) - F(mu) in every step (largest)",
            JKO98,
            bound=0.0,
            measured=float(line.energy_gap.max()),
        ),
        Claim.at_most(
            "line: the crowd ends on an interval of length 1/limit about 0 (largest difference of quantiles)",
            MAURY,
            bound=0.01,
            measured=float(np.abs(last.x.numpy() - wanted).max()),
        ),
    ]
