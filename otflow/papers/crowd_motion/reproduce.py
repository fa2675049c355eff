"""A crowd that cannot be denser than a limit fills up the lowest places

Everybody walks down a potential V, say the distance to an exit, as far as the others let them: the density
must not exceed a limit (Maury, Roudneff-Chupin and Santambrogio 2010). This is the gradient flow of int V dmu
under the constraint rho <= limit. A step of the JKO scheme is a projection, and for any V the end is known:
among all densities below the limit the one with the least energy is at the limit on a sublevel set {V < c} of
area 1/limit and zero outside. For V = |x|^2 / 2 that is a disc of radius (pi limit)^(-1/2).

Two crowds are followed in the plane. Two groups in a bowl, V = |x|^2 / 2, meet and merge in the disc. One
group walks past a pillar, a hill of V, to the point it wants to be at, and packs around that point; the
pillar cuts a piece out of the final set. Both runs use the entropic scheme, debiased, with the blur eps =
2e-3: it meets the bound and the mass exactly, and its energy inequality up to the blur, d eps / (4 tau). At
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
from otflow.papers.crowd_motion.runs import LINE_LIMIT, SCENES, Crowd, CrowdOnLine, follow, halo, l1, on_line
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.oracle import JKO98, order

MAURY = Source("Maury, Roudneff-Chupin, Santambrogio 2010")
PACKED = Source(f"{MAURY}; least energy under the bound")
PROJECTION = Source(f"{MAURY}; the step is a projection, see the text")
REST = Source("Peyré 2015; the cost of a plan of blur eps at rest")
EPS = 2e-3
HALOS = (8e-3, 4e-3, 2e-3)  # blurs for which the end in the bowl is compared
SHARP_STEPS, SHARP_TOL = 5, 5e-2  # without blur the density jumps, and more steps or digits are hard to get


def run(frame: Frame) -> Result:
    """Two crowds with blur, one without, and the line."""
    n, blur, crowds = frame.size(64, 128), of.EntropicJKO(of.Sinkhorn(EPS, tol=1e-8), debiased=True), {}
    for k, (name, scene) in enumerate(SCENES.items()):
        frame.stage(0.35 * k, f"{name}, {n} x {n} cells")
        crowds[name] = follow(scene, n, blur, scene.steps)
    frame.stage(0.7, "steps without blur")
    sharp, blurred = (follow(SCENES["bowl"], 64, by, SHARP_STEPS) for by in (of.JKO(tol=SHARP_TOL), blur))
    frame.stage(0.75, "weaker and weaker blur")
    halos = {eps: halo(eps) for eps in HALOS}
    frame.stage(0.85, "the line")
    line = on_line(frame.size(200, 800))
    claims = [
        *(claim for name, crowd in crowds.items() for claim in _crowd_claims(name, crowd)),
        *_sharp_claims(sharp, blurred),
        Source("Peyré 2015")(
            "bowl: L1 to the packed crowd against eps: between the order 1/2 of a blurred jump and 1 (slope)"
        ).within(0.4, 1.1, order(halos)),
        *_line_claims(line),
    ]
    figures = {name: draw.scene(crowd) for name, crowd in crowds.items()}
    figures["certificates"] = draw.certificates(crowds, sharp, halos, line)
    data = {name: np.stack([mu.density.numpy() for mu in crowd.densities]) for name, crowd in crowds.items()}
    return Result(claims, figures, data | {"line": np.stack([mu.x.numpy() for mu in line.runs])})


def _crowd_claims(name: str, crowd: Crowd) -> list[Claim]:
    last, steps, limit = crowd.densities[-1], len(crowd.energy_gap), crowd.scene.limit
    shape = "the disc of area 1/limit" if name == "bowl" else "the sublevel set of V of area 1/limit"
    ends = f"the crowd ends at the limit on {shape}, and nowhere else (L1)"
    gap = "F(mu') + W2^2 / (2 tau) - F(mu), at most d eps / (4 tau) in every step"
    area = float((last.density > limit / 2).sum()) * last.cell
    rise, above = np.diff(crowd.energy).max(), crowd.energy[-1] / crowd.least - 1
    lost = max(abs(float(mu.density.sum()) * mu.cell - 1) for mu in crowd.densities)
    least = Source("least energy under the bound")(f"{name}: energy at the end over the least one, less 1")
    congested = MAURY(f"{name}: area of the congested set (density above half the limit), 1/limit")
    free = MAURY(f"{name}: part of the mass that is not at the limit at the end")
    return [
        MAURY(f"{name}: the run").equal("ok", crowd.status),
        MAURY(f"{name}: largest density over the limit, less 1, in {steps} steps").at_most(1e-6, crowd.over),
        Source("conservation")(f"{name}: |mass - 1| (largest)").at_most(1e-10, lost),
        JKO98(f"{name}: the energy falls in every step (largest increase)").at_most(0.0, rise),
        REST(f"{name}: {gap}").at_most(EPS / 2 / crowd.scene.tau, crowd.energy_gap.max()),
        PACKED(f"{name}: {ends}").at_most(0.04, l1(last.density, crowd.packed, last)),
        congested.equal(1 / limit, area, rtol=0.02),
        least.within(0.0, 2e-3, above),
        free.at_most(0.1, 1 - crowd.full_share(-1)),
    ]


def _sharp_claims(sharp: Crowd, blurred: Crowd) -> list[Claim]:
    k = min(len(sharp.densities), len(blurred.densities)) - 1
    apart = l1(sharp.densities[k].density, blurred.densities[k].density, sharp.densities[k])
    gap = JKO98("bowl, without blur: F(mu') + W2^2 / (2 tau) - F(mu) in every step (largest)")
    both = Source("the blur is removed to first order")
    return [
        JKO98(f"bowl, without blur: the run of {SHARP_STEPS} steps").equal("ok", sharp.status),
        MAURY("bowl, without blur: largest density over the limit, less 1").at_most(1e-6, sharp.over),
        gap.at_most(0.0, sharp.energy_gap.max()),
        both(f"bowl: densities with and without blur after {k} steps (L1)").at_most(0.06, apart),
    ]


def _line_claims(line: CrowdOnLine) -> list[Claim]:
    x = np.stack([mu.x.numpy() for mu in line.runs])
    n, top = x.shape[1] - 1, max(float(mu.density()[1].max()) for mu in line.runs[1:])
    wanted = (np.arange(n + 1) / n - 0.5) / LINE_LIMIT
    apart = np.sqrt(np.mean((x - line.projected) ** 2, axis=1)).max()
    gap = JKO98("line: F(mu') + W2^2 / (2 tau) - F(mu) in every step (largest)")
    return [
        PROJECTION(
            f"line, {n} intervals: distance to scipy's isotonic regression (W2, largest of {len(x)} times)"
        ).at_most(1e-3, apart),
        MAURY("line: largest density over the limit, less 1").at_most(1e-6, top / LINE_LIMIT - 1),
        gap.at_most(0.0, line.energy_gap.max()),
        MAURY(
            "line: the crowd ends on an interval of length 1/limit about 0 (largest difference of quantiles)"
        ).at_most(0.01, np.abs(x[-1] - wanted).max()),
    ]
