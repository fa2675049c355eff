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

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

import otflow as of
from otflow.experiments import crowd_motion_draw as draw
from otflow.experiments.base import Claim, Progress, Result
from otflow.experiments.jko_oracles_claims import JKO98, order
from otflow.experiments.jko_oracles_grid import box, unit

MAURY = "Maury, Roudneff-Chupin, Santambrogio 2010"
EPS = 1e-3
HALOS = (4e-3, 2e-3, 1e-3)  # blurs for which the end in the bowl is compared
WIDTH = 2.0  # of the square room
SHARP_STEPS, SHARP_TOL = 5, 5e-2
LINE_LIMIT, LINE_TAU, LINE_STEPS = 1.0, 0.25, 24
EXIT, PILLAR = (0.55, 0.0), (0.2, 0.05)


class Scene(NamedTuple):
    """Where people want to go, how dense they may be, and where they are at first."""

    V: Callable[[Tensor], Tensor]
    limit: float
    start: Callable[[np.ndarray, np.ndarray], np.ndarray]
    tau: float
    steps: int


def bowl(x: Tensor) -> Tensor:
    """|x|^2 / 2.

    >>> bowl(torch.tensor([3.0, 4.0])).item()
    12.5
    """
    return x.square().sum(-1) / 2


def past_a_pillar(x: Tensor) -> Tensor:
    """About the distance to the exit, plus a hill.

    >>> past_a_pillar(torch.tensor([PILLAR, EXIT])).argmax().item()
    0
    """
    a, p = (torch.tensor(c, dtype=x.dtype) for c in (EXIT, PILLAR))
    hill = 1.5 * torch.exp(-(((x - p).square().sum(-1) / 0.13**2) ** 2))
    return ((x - a).square().sum(-1) + 0.01).sqrt() + hill


def _two_groups(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    first, second = (x + 0.45) ** 2 + (y + 0.35) ** 2, (x - 0.4) ** 2 + (y + 0.5) ** 2
    return np.asarray(np.exp(-first / 0.08) + np.exp(-second / 0.08))


def _one_group(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-(((x + 0.5) / 0.28) ** 4) - (y / 0.55) ** 4))


SCENES = {
    "bowl": Scene(bowl, 2.2, _two_groups, 0.2, 25),
    "pillar": Scene(past_a_pillar, 2.5, _one_group, 0.1, 30),
}


class Crowd(NamedTuple):
    """A run, every step of it."""

    scene: Scene
    t: np.ndarray
    densities: list[of.Grid]
    energy: np.ndarray
    energy_gap: np.ndarray
    status: str

    @property
    def potential(self) -> Tensor:
        """V at the centres of the cells."""
        x, _ = self.densities[0].nodes()
        return self.scene.V(x).reshape(self.densities[0].density.shape)


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


def follow(scene: Scene, n: int, stepper: of.Stepper, steps: int) -> Crowd:
    """The crowd of a scene on n^2 cells; a run that fails is handed back as far as it came.

    >>> follow(SCENES["bowl"], 16, of.EntropicJKO(0.02), 1).t.tolist()
    [0.0, 0.2]
    """
    x = box(n, WIDTH)
    energy = of.Potential(scene.V) + of.DensityBound(scene.limit)
    field = of.SteepestDescent(energy, of.Wasserstein())
    mu = unit(torch.from_numpy(scene.start(x[:, None], x)), x)
    traj = of.flow(
        mu, field, stepper, t1=steps * scene.tau, dt=scene.tau, observe={"F": energy}, on_failure="return"
    )
    gap = traj.certificates["energy_gap"].numpy()[1:] if len(traj) > 1 else np.array([math.nan])
    densities = [nu for nu in traj.measures if isinstance(nu, of.Grid)]
    return Crowd(scene, traj.ts.numpy(), densities, traj.observed["F"].numpy(), gap, str(traj.status))


def packed(crowd: Crowd) -> Tensor:
    """The density of least energy: the cells with the least V at the limit, the last one in part.

    >>> crowd = follow(SCENES["bowl"], 16, of.EntropicJKO(0.02), 1)
    >>> round(float(packed(crowd).sum()) * crowd.densities[0].cell, 12)
    1.0
    """
    V, full = crowd.potential, crowd.scene.limit * crowd.densities[0].cell
    order = V.flatten().argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    share = (1 / full - rank.to(V.dtype)).clamp(0, 1)
    return crowd.scene.limit * share.reshape(V.shape)


def least(crowd: Crowd) -> float:
    """Its energy, which is the least of all on this grid.

    >>> crowd = follow(SCENES["bowl"], 16, of.EntropicJKO(0.02), 1)
    >>> bool(least(crowd) < crowd.energy.min())
    True
    """
    return float((packed(crowd) * crowd.potential).sum()) * crowd.densities[0].cell


def full_share(mu: of.Grid, limit: float) -> float:
    """The part of the mass where the density is within a hundredth of the limit.

    >>> full_share(of.Grid([0.5, 1.5], [[0.25, 0.75]]), 1.5)
    0.75
    """
    return float(mu.density[mu.density > 0.99 * limit].sum()) * mu.cell


def _l1(a: Tensor, b: Tensor, mu: of.Grid) -> float:
    return float((a - b).abs().sum()) * mu.cell


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


def halo(eps: float) -> float:
    """The L1 distance at the end between the crowd in the bowl, on 64^2 cells, and the packed one.

    >>> halo(0.02) > 0.05
    True
    """
    scene = SCENES["bowl"]
    found = follow(scene, 64, of.EntropicJKO(eps, debiased=True), scene.steps)
    return _l1(found.densities[-1].density, packed(found), found.densities[-1])


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


class Line(NamedTuple):
    """A crowd on the line, V = x^2 / 2: the run, scipy's projections, and the certificates of the steps."""

    t: np.ndarray
    runs: list[of.Quantiles]
    projected: np.ndarray
    energy_gap: np.ndarray


def on_line(n: int) -> Line:
    """Two groups, n intervals of mass.

    >>> on_line(20).projected.shape
    (25, 21)
    """
    levels = of.graded_levels(n, grading=1.0)
    s = levels.numpy()
    mu = of.Quantiles(2.5 * np.sign(s - 0.5) * np.abs(2 * s - 1) ** 0.5 + 0.3 * s + 0.4, levels)
    energy = of.Potential(bowl) + of.DensityBound(LINE_LIMIT)
    traj = of.flow(
        mu, of.SteepestDescent(energy, of.Wasserstein()), of.JKO(), t1=LINE_TAU * LINE_STEPS, dt=LINE_TAU
    )
    weights = np.where((s == 0) | (s == 1), 0.5, 1.0)
    X = [mu.x.numpy()]
    for _ in range(LINE_STEPS):
        free = X[-1] / (1 + LINE_TAU) - s / LINE_LIMIT
        X.append(isotonic_regression(free, weights=weights).x + s / LINE_LIMIT)
    runs = [nu for nu in traj.measures if isinstance(nu, of.Quantiles)]
    return Line(traj.ts.numpy(), runs, np.stack(X), traj.certificates["energy_gap"].numpy()[1:])


def _line_claims(line: Line) -> list[Claim]:
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
