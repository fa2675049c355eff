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

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.experiments import porous_medium_draw as draw
from otflow.experiments.base import Claim, Progress, Result
from otflow.experiments.jko_oracles_claims import JKO98, order
from otflow.experiments.jko_oracles_grid import box, l1, unit
from otflow.experiments.jko_oracles_line import distance

BARENBLATT = "Barenblatt 1952; Vázquez 2007"
OTTO = "Otto 2001; virial theorem of the scheme, see the text"
SPANS = {2.0: (2e-4, 4.2e-3, 16), 4.0: (2e-6, 4.02e-4, 8)}  # first time, last time, number of steps
ALLOWED = {2.0: 2e-3, 4.0: 1e-2}  # L1 to the scheme: an infinite slope at the front costs accuracy
TOL = {2.0: 3e-3, 4.0: 1e-2}  # of a step, for the same reason
BUMP_TOL = 1e-2  # kinks where fronts meet are not smooth either
BUMPS = ((0.6, (-0.17, -0.1), 0.13), (0.4, (0.2, 0.13), 0.1))  # mass, centre, radius
BUMP_TAU, BUMP_STEPS = 2e-4, 9  # the walls are not reached
LINE_TAUS = (0.1, 0.05, 0.025)
SEEN = 1e-6  # of the largest density: what is below does not count as support


class Run(NamedTuple):
    """A run on a grid, every step of it."""

    m: float
    tau: float
    t: np.ndarray
    densities: list[of.Grid]
    cost: Tensor
    energy_gap: Tensor

    @property
    def energy(self) -> np.ndarray:
        """int rho^m / (m - 1) at all times."""
        F = of.PorousMedium(self.m)
        return np.array([float(F(mu)) for mu in self.densities])

    @property
    def virial(self) -> np.ndarray:
        """(M2' - M2 + W2^2) / (4 (m - 1) tau F(mu')) - 1 for every step."""
        M2 = np.array([_second_moment(mu) for mu in self.densities])
        moved = np.diff(M2) + self.cost.numpy()
        return np.asarray(moved / (4 * (self.m - 1) * self.tau * self.energy[1:]) - 1)


def run(*, quick: bool, progress: Progress) -> Result:
    """Two profiles, two bumps, and the line."""
    cells = {2.0: 128 if quick else 256, 4.0: 128}
    profiles = {}
    for k, (m, n) in enumerate(cells.items()):
        progress(0.3 * k, f"Barenblatt's profile, m = {m:g}, {n} x {n} cells")
        profiles[m] = spread(n, m, *SPANS[m])
    progress(0.6, "two bumps")
    bumps = descend(two_bumps(128), 2.0, 0.0, BUMP_TAU, BUMP_STEPS, BUMP_TOL)
    progress(0.8, "the line")
    line = {(m, name): on_line(m, name, 300 if quick else 500) for m in SPANS for name in STEPPERS}
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


def descend(mu: of.Grid, m: float, t0: float, tau: float, steps: int, tol: float = 3e-3) -> Run:
    """JKO steps of int rho^m / (m - 1).

    >>> start = unit(closed_forms.barenblatt_grid([box(32), box(32)], 0.2, 2.0), box(32))
    >>> descend(start, 2.0, 0.0, 1e-3, 1).t.tolist()
    [0.0, 0.001]
    """
    field = of.SteepestDescent(of.PorousMedium(m), of.Wasserstein())
    traj = of.flow(mu, field, of.JKO(tol=tol), t0=t0, t1=t0 + steps * tau, dt=tau)
    cost, gap = (traj.certificates[name][1:] for name in ("cost", "energy_gap"))
    densities = [nu for nu in traj.measures if isinstance(nu, of.Grid)]
    return Run(m, tau, traj.ts.numpy(), densities, cost, gap)


def spread(n: int, m: float, first: float, last: float, steps: int) -> Run:
    """Barenblatt's profile from the time ``first`` to ``last``, on n^2 cells of [-1/2, 1/2]^2.

    >>> len(spread(32, 2.0, 1e-3, 2e-3, 1).densities)
    2
    """
    start = closed_forms.barenblatt_grid([box(n), box(n)], first ** (1 / growth(m)), m)
    return descend(unit(start, box(n)), m, first, (last - first) / steps, steps, TOL[m])


def growth(m: float) -> float:
    """q = d (m - 1) + 2 in the plane.

    >>> growth(2.0)
    4.0
    """
    return 2 * (m - 1) + 2


def radii(found: Run) -> np.ndarray:
    """The R of the exact scheme at all times of the run, in units of that at t = 1.

    >>> len(radii(spread(32, 2.0, 1e-3, 2e-3, 1)))
    2
    """
    R = [torch.tensor(found.t[0] ** (1 / growth(found.m)), dtype=torch.float64)]
    for _ in found.cost:
        R.append(closed_forms.barenblatt_radius_step(R[-1], found.tau, found.m, 2))
    return np.array([float(r) for r in R])


def exact_energy(R: np.ndarray, m: float) -> np.ndarray:
    """int rho^m / (m - 1) of Barenblatt's profile, pi C^(pm + 1) / (k (pm + 1) (m - 1)) R^(-2(m - 1)).

    >>> mu = unit(closed_forms.barenblatt_grid([box(64), box(64)], 0.2, 2.0), box(64))
    >>> round(float(exact_energy(np.array(0.2), 2.0)) / float(of.PorousMedium(2.0)(mu)), 2)
    1.0
    """
    C, k = closed_forms.barenblatt_constant(m, 2), (m - 1) / (2 * m * growth(m))
    power = m / (m - 1) + 1
    return np.asarray(math.pi * C**power / (k * power * (m - 1)) * R ** (-2 * (m - 1)))


def front(mu: of.Grid) -> float:
    """The radius of the disc that is as large as the support.

    >>> x = box(64)
    >>> round(front(unit(closed_forms.barenblatt_grid([x, x], 0.2, 2.0), x)) - 0.357, 2)
    0.0
    """
    return math.sqrt(float((mu.density > SEEN * mu.density.max()).sum()) * mu.cell / math.pi)


def _second_moment(mu: of.Grid) -> float:
    x, w = mu.nodes()
    return float((w * x.square().sum(-1)).sum())


def _profile_claims(found: Run) -> list[Claim]:
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
        Claim.at_most(
            f"{words}: L1 distance to Barenblatt's profile in the exact scheme (largest of {len(R)} times)",
            f"{BARENBLATT}; {JKO98}",
            bound=ALLOWED[m],
            measured=max(behind),
        ),
        Claim.at_most(
            f"{words}: the front is where the exact scheme has it (largest difference, in cells)",
            f"{BARENBLATT}; {JKO98}",
            bound=1.5,
            measured=float(off.max()),
        ),
        Claim.at_most(
            f"{words}: the energy is that of the exact scheme (largest relative difference)",
            f"{BARENBLATT}; {JKO98}",
            bound=5e-3,
            measured=float(np.abs(energy).max()),
        ),
    ]


# --- two bumps ---------------------------------------------------------------------------------------


def bump(n: int, mass: float, centre: tuple[float, float], radius: float) -> Tensor:
    """Barenblatt's profile, m = 2, of this mass about another centre, as means over n^2 cells.

    >>> round(float(bump(32, 0.5, (0.1, 0.0), 0.2).mean()), 4)
    0.5
    """
    R = radius / closed_forms.barenblatt_radius(1.0, 2.0, 2, mass=mass).item()
    return closed_forms.barenblatt_grid([box(n) - c for c in centre], R, 2.0, mass=mass)


def two_bumps(n: int) -> of.Grid:
    """The start: two discs that do not touch.

    >>> fronts(two_bumps(64))
    2
    """
    return unit(sum((bump(n, *one) for one in BUMPS), start=torch.zeros(n, n, dtype=torch.float64)), box(n))


def fronts(mu: of.Grid) -> int:
    """The number of connected components of the support.

    >>> fronts(unit(torch.eye(4).double(), box(4)))
    4
    """
    return int(ndimage.label(mu.density.numpy() > SEEN * float(mu.density.max()))[1])


def alone(n: int, tau: float, steps: int) -> list[Tensor]:
    """Both bumps by the exact scheme, each as if it were alone, as long as they do not touch.

    >>> len(alone(32, 1e-5, 3)), len(alone(32, 1e-2, 3))
    (4, 1)
    """
    gap = math.dist(*(centre for _, centre, _ in BUMPS))
    ones = torch.stack([closed_forms.barenblatt_radius(1.0, 2.0, 2, mass=mass) for mass, _, _ in BUMPS])
    R = torch.tensor([r for _, _, r in BUMPS], dtype=torch.float64) / ones
    out = []
    for _ in range(steps + 1):
        radius = (R * ones).tolist()
        if sum(radius) >= gap:
            break
        out.append(
            sum(
                (bump(n, mass, c, r) for (mass, c, _), r in zip(BUMPS, radius, strict=True)),
                start=torch.zeros(n, n, dtype=torch.float64),
            )
        )
        R = closed_forms.barenblatt_radius_step(R, tau, 2.0, 2)
    return out


def _bump_claims(found: Run) -> list[Claim]:
    apart = alone(len(found.densities[0].axes[0]), found.tau, len(found.cost))
    behind = [l1(mu.density, rho) for mu, rho in zip(found.densities, apart, strict=False)]
    counts = [fronts(mu) for mu in (found.densities[0], found.densities[-1])]
    centres = [of.observables.mean(mu) for mu in (found.densities[0], found.densities[-1])]
    return [
        Claim.at_most(
            f"two bumps: each is alone in the {len(apart) - 1} steps before their fronts meet (largest L1)",
            f"{BARENBLATT}; finite speed",
            bound=4e-3,
            measured=max(behind),
        ),
        Claim.equal(
            "two bumps: fronts at the start and at the end",
            "finite speed",
            predicted="2, 1",
            measured=", ".join(map(str, counts)),
        ),
        Claim.at_most(
            "two bumps: the centre of mass stays (distance, in cells)",
            "no force from outside",
            bound=0.1,
            measured=float((centres[1] - centres[0]).norm()) / found.densities[0].spacing[0],
        ),
    ]


# --- certificates ------------------------------------------------------------------------------------


def _certificates(runs: list[Run]) -> list[Claim]:
    every = [mu for found in runs for mu in found.densities]
    mass = max(abs(float(mu.density.sum()) * mu.cell - 1) for mu in every)
    steps = sum(len(found.cost) for found in runs)
    return [
        Claim.at_most(
            f"all {steps} steps: F(mu') + W2(mu', mu)^2 / (2 tau) <= F(mu) (largest excess)",
            JKO98,
            bound=0.0,
            measured=max(float(found.energy_gap.max()) for found in runs),
        ),
        Claim.at_most(f"all {steps} steps: |mass - 1| (largest)", "conservation", bound=1e-10, measured=mass),
        Claim.at_most(
            "no density is negative (lowest, with the sign turned)",
            "positivity",
            bound=0.0,
            measured=-min(float(mu.density.min()) for mu in every),
        ),
        *(
            Claim.at_most(
                f"m = {found.m:g}{word}: M2' - M2 + W2^2 = 2 d (m - 1) tau F(mu') (largest rel. difference)",
                OTTO,
                bound=2e-2,
                measured=float(np.abs(found.virial).max()),
            )
            for found, word in zip(runs, ("", "", ", two bumps"), strict=True)
        ),
    ]


# --- the line ----------------------------------------------------------------------------------------

STEPPERS: dict[str, of.Stepper] = {"JKO": of.JKO(), "extrapolated": of.Extrapolated(of.JKO())}


def on_line(m: float, name: str, n: int) -> dict[float, float]:
    """W2 to Barenblatt's profile on the line at t = 1.5, from t = 1, for every tau; extrapolated in the mesh.

    >>> errors = on_line(2.0, "JKO", 100)
    >>> errors[0.025] < errors[0.1]
    True
    """
    field = of.SteepestDescent(of.PorousMedium(m), of.Wasserstein())

    def end(k: int, tau: float) -> of.Quantiles:
        mu = of.Quantiles.from_ppf(lambda s: closed_forms.barenblatt_quantile(s, 1.0, m), k)
        final = of.flow(mu, field, STEPPERS[name], t1=0.5, dt=tau, save_at=[0.0]).final
        return of.Quantiles(final.coords[0], mu.levels)

    def exact(s: np.ndarray) -> np.ndarray:
        return closed_forms.barenblatt_quantile(s, 1.5 ** (1 / (m + 1)), m).numpy()

    return {tau: distance(of.richardson(end(n, tau), end(2 * n, tau)), exact) for tau in LINE_TAUS}


def _line_claims(line: dict[tuple[float, str], dict[float, float]]) -> list[Claim]:
    expected = {"JKO": (1, 0.9, 1.05, JKO98), "extrapolated": (2, 1.8, 2.1, "Richardson's extrapolation")}
    return [
        Claim.within(
            f"m = {m:g}, on the line: {name} meets the equation with the order {expected[name][0]} in tau",
            expected[name][3],
            low=expected[name][1],
            high=expected[name][2],
            measured=order(errors),
        )
        for (m, name), errors in line.items()
    ]
