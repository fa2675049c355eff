"""Runs from Barenblatt's profile and from two bumps, next to what the exact scheme does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.reproduce.oracle import box, distance, final, unit

TOL = {2.0: 3e-3, 4.0: 1e-2}  # of a step: the density has an infinite slope at the front if m = 4
BUMPS = ((0.6, (-0.17, -0.1), 0.13), (0.4, (0.2, 0.13), 0.1))  # mass, centre, radius
LINE_TAUS = (0.1, 0.05, 0.025)
SEEN = 1e-6  # of the largest density: what is below does not count as support
STEPPERS: dict[str, of.Stepper] = {"JKO": of.JKO(), "extrapolated": of.Extrapolated(of.JKO())}


class BarenblattRun(NamedTuple):
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
        return np.array([float(of.PorousMedium(self.m)(mu)) for mu in self.densities])

    @property
    def lost(self) -> np.ndarray:
        """|mass - 1| at all times."""
        return np.array([abs(float(mu.density.sum()) * mu.cell - 1) for mu in self.densities])

    @property
    def virial(self) -> np.ndarray:
        """(M2' - M2 + W2^2) / (4 (m - 1) tau F(mu')) - 1 for every step."""
        nodes = [mu.nodes() for mu in self.densities]
        M2 = [float((w * x.square().sum(-1)).sum()) for x, w in nodes]
        moved = np.diff(M2) + self.cost.numpy()
        return np.asarray(moved / (4 * (self.m - 1) * self.tau * self.energy[1:]) - 1)


def growth(m: float) -> float:
    """q = d (m - 1) + 2 in the plane.

    >>> from otflow.papers.porous_medium.runs import growth
    >>> growth(2.0)
    4.0
    """
    return 2 * (m - 1) + 2


def radii(found: BarenblattRun) -> np.ndarray:
    """The R of the exact scheme at all times of the run, in units of that at t = 1.

    >>> from otflow.papers.porous_medium.runs import radii, spread
    >>> len(radii(spread(32, 2.0, 1e-3, 2e-3, 1)))
    2
    """
    R = [found.t[0] ** (1 / growth(found.m))]
    for _ in found.cost:
        R.append(float(closed_forms.barenblatt_radius_step(R[-1], found.tau, found.m, 2)))
    return np.array(R)


def exact_energy(R: np.ndarray, m: float) -> np.ndarray:
    """int rho^m / (m - 1) of Barenblatt's profile, pi C^(pm + 1) / (k (pm + 1) (m - 1)) R^(-2(m - 1)).

    >>> import numpy as np
    >>> import otflow as of
    >>> from otflow import closed_forms
    >>> from otflow.papers.porous_medium.runs import exact_energy
    >>> from otflow.reproduce.oracle import box, unit
    >>> mu = unit(closed_forms.barenblatt_grid([box(64), box(64)], 0.2, 2.0), box(64))
    >>> round(float(exact_energy(np.array(0.2), 2.0)) / float(of.PorousMedium(2.0)(mu)), 2)
    1.0
    """
    C, k = closed_forms.barenblatt_constant(m, 2), (m - 1) / (2 * m * growth(m))
    power = m / (m - 1) + 1
    return np.asarray(math.pi * C**power / (k * power * (m - 1)) * R ** (-2 * (m - 1)))


def descend(mu: of.Grid, m: float, t0: float, tau: float, steps: int, tol: float = 3e-3) -> BarenblattRun:
    """JKO steps of int rho^m / (m - 1).

    >>> from otflow import closed_forms
    >>> from otflow.papers.porous_medium.runs import descend
    >>> from otflow.reproduce.oracle import box, unit
    >>> start = unit(closed_forms.barenblatt_grid([box(32), box(32)], 0.2, 2.0), box(32))
    >>> descend(start, 2.0, 0.0, 1e-3, 1).t.tolist()
    [0.0, 0.001]
    """
    field = of.SteepestDescent(of.PorousMedium(m), of.Wasserstein())
    traj = of.flow(mu, field, of.JKO(tol=tol), t0=t0, t1=t0 + steps * tau, dt=tau)
    cost, gap = (traj.certificates[name][1:] for name in ("cost", "energy_gap"))
    densities = [nu for nu in traj.measures if isinstance(nu, of.Grid)]
    return BarenblattRun(m, tau, traj.ts.numpy(), densities, cost, gap)


def spread(n: int, m: float, first: float, last: float, steps: int) -> BarenblattRun:
    """Barenblatt's profile from the time ``first`` to ``last``, on n^2 cells of [-1/2, 1/2]^2.

    >>> from otflow.papers.porous_medium.runs import spread
    >>> len(spread(32, 2.0, 1e-3, 2e-3, 1).densities)
    2
    """
    start = closed_forms.barenblatt_grid([box(n), box(n)], first ** (1 / growth(m)), m)
    return descend(unit(start, box(n)), m, first, (last - first) / steps, steps, TOL[m])


def front(mu: of.Grid) -> float:
    """The radius of the disc that is as large as the support.

    >>> from otflow import closed_forms
    >>> from otflow.papers.porous_medium.runs import front
    >>> from otflow.reproduce.oracle import box, unit
    >>> x = box(64)
    >>> round(front(unit(closed_forms.barenblatt_grid([x, x], 0.2, 2.0), x)) - 0.357, 2)
    0.0
    """
    return math.sqrt(float((mu.density > SEEN * mu.density.max()).sum()) * mu.cell / math.pi)


def bump(n: int, mass: float, centre: tuple[float, float], radius: float) -> Tensor:
    """Barenblatt's profile, m = 2, of this mass about another centre, as means over n^2 cells.

    >>> from otflow.papers.porous_medium.runs import bump
    >>> round(float(bump(32, 0.5, (0.1, 0.0), 0.2).mean()), 4)
    0.5
    """
    R = radius / closed_forms.barenblatt_radius(1.0, 2.0, 2, mass=mass).item()
    return closed_forms.barenblatt_grid([box(n) - c for c in centre], R, 2.0, mass=mass)


def _both(n: int, radii: Iterable[float]) -> Tensor:
    return torch.stack([bump(n, mass, c, r) for (mass, c, _), r in zip(BUMPS, radii, strict=True)]).sum(0)


def two_bumps(n: int) -> of.Grid:
    """The start: two discs that do not touch.

    >>> from otflow.papers.porous_medium.runs import fronts, two_bumps
    >>> fronts(two_bumps(64))
    2
    """
    return unit(_both(n, [r for _, _, r in BUMPS]), box(n))


def fronts(mu: of.Grid) -> int:
    """The number of connected components of the support.

    >>> import torch
    >>> from otflow.papers.porous_medium.runs import fronts
    >>> from otflow.reproduce.oracle import box, unit
    >>> fronts(unit(torch.eye(4).double(), box(4)))
    4
    """
    return int(ndimage.label(mu.density.numpy() > SEEN * float(mu.density.max()))[1])


def alone(n: int, tau: float, steps: int) -> list[Tensor]:
    """Both bumps by the exact scheme, each as if it were alone, as long as they do not touch.

    >>> from otflow.papers.porous_medium.runs import alone
    >>> len(alone(32, 1e-5, 3)), len(alone(32, 1e-2, 3))
    (4, 1)
    """
    gap, out = math.dist(*(centre for _, centre, _ in BUMPS)), list[Tensor]()
    # R is the radius in units of that which a bump of its mass has at t = 1.
    ones = torch.stack([closed_forms.barenblatt_radius(1.0, 2.0, 2, mass=mass) for mass, _, _ in BUMPS])
    R = torch.tensor([r for _, _, r in BUMPS], dtype=torch.float64) / ones
    while len(out) <= steps and sum((R * ones).tolist()) < gap:
        out.append(_both(n, (R * ones).tolist()))
        R = closed_forms.barenblatt_radius_step(R, tau, 2.0, 2)
    return out


def on_line(m: float, name: str, n: int) -> dict[float, float]:
    """W2 to Barenblatt's profile on the line at t = 1.5, from t = 1, for every tau; extrapolated in the mesh.

    >>> from otflow.papers.porous_medium.runs import on_line
    >>> errors = on_line(2.0, "JKO", 100)
    >>> errors[0.025] < errors[0.1]
    True
    """
    energy, stepper, quantile = of.PorousMedium(m), STEPPERS[name], closed_forms.barenblatt_quantile
    start = [of.Quantiles.from_ppf(partial(quantile, R=1.0, m=m), k) for k in (n, 2 * n)]
    exact, out = partial(quantile, R=1.5 ** (1 / (m + 1)), m=m), {}
    for tau in LINE_TAUS:
        coarse, fine = (final(mu, energy, 0.5, tau, stepper) for mu in start)
        out[tau] = distance(of.measures.richardson(coarse, fine), exact)
    return out
