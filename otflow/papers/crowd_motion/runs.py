"""Runs of crowds in the plane and on the line, and where theory lets them end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

import otflow as of
from otflow.reproduce.oracle import box, unit

WIDTH = 2.0  # of the square room
LINE_LIMIT, LINE_TAU, LINE_STEPS = 1.0, 0.25, 24
EXIT, PILLAR = (0.55, 0.0), (0.2, 0.05)  # the pillar stands a little beside the straight way


class Scene(NamedTuple):
    """Where people want to go, how dense they may be, and where they are at first."""

    V: Callable[[Tensor], Tensor]
    limit: float
    start: Callable[[np.ndarray, np.ndarray], np.ndarray]
    tau: float
    steps: int


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

    @property
    def packed(self) -> Tensor:
        """The density of least energy: the cells with the least V at the limit, the last one in part.

        >>> import otflow as of
        >>> from otflow.papers.crowd_motion.runs import SCENES, follow
        >>> crowd = follow(SCENES["bowl"], 16, of.EntropicJKO(0.04), 1)
        >>> round(float(crowd.packed.sum()) * crowd.densities[0].cell, 12)
        1.0
        """
        V, full = self.potential, self.scene.limit * self.densities[0].cell
        rank = V.flatten().argsort().argsort()  # how many cells have a lower V
        return self.scene.limit * (1 / full - rank.to(V.dtype)).clamp(0, 1).reshape(V.shape)

    @property
    def least(self) -> float:
        """Its energy, which is the least of all on this grid.

        >>> import otflow as of
        >>> from otflow.papers.crowd_motion.runs import SCENES, follow
        >>> crowd = follow(SCENES["bowl"], 16, of.EntropicJKO(0.04), 1)
        >>> bool(crowd.least < crowd.energy.min())
        True
        """
        return float((self.packed * self.potential).sum()) * self.densities[0].cell

    @property
    def over(self) -> float:
        """By how much the limit is exceeded after a step, relatively; negative before it is reached."""
        return max(float(mu.density.max()) / self.scene.limit - 1 for mu in self.densities[1:])

    def full_share(self, k: int) -> float:
        """The part of the mass where the density after k steps is within a hundredth of the limit.

        >>> import numpy as np
        >>> import otflow as of
        >>> from otflow.papers.crowd_motion.runs import Crowd, SCENES
        >>> scene = SCENES["bowl"]._replace(limit=1.5)
        >>> mu = of.Grid([0.5, 1.5], [[0.25, 0.75]])
        >>> Crowd(scene, np.zeros(1), [mu], np.zeros(1), np.zeros(1), "ok").full_share(0)
        0.75
        """
        mu = self.densities[k]
        return float(mu.density[mu.density > 0.99 * self.scene.limit].sum()) * mu.cell


class CrowdOnLine(NamedTuple):
    """A crowd on the line, V = x^2 / 2: the run, scipy's projections, and the certificates of the steps."""

    t: np.ndarray
    runs: list[of.Quantiles]
    projected: np.ndarray
    energy_gap: np.ndarray


def bowl(x: Tensor) -> Tensor:
    """|x|^2 / 2.

    >>> import torch
    >>> from otflow.papers.crowd_motion.runs import bowl
    >>> bowl(torch.tensor([3.0, 4.0])).item()
    12.5
    """
    return x.square().sum(-1) / 2


def past_a_pillar(x: Tensor) -> Tensor:
    """About the distance to the exit, plus a hill.

    >>> import torch
    >>> from otflow.papers.crowd_motion.runs import EXIT, PILLAR, past_a_pillar
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


def follow(scene: Scene, n: int, stepper: of.Stepper, steps: int) -> Crowd:
    """The crowd of a scene on n^2 cells; a run that fails is handed back as far as it came.

    >>> import otflow as of
    >>> from otflow.papers.crowd_motion.runs import SCENES, follow
    >>> follow(SCENES["bowl"], 16, of.EntropicJKO(0.04), 1).t.tolist()
    [0.0, 0.2]
    """
    x = box(n, WIDTH)
    energy = of.Potential(scene.V) + of.DensityBound(scene.limit)
    field = of.SteepestDescent(energy, of.Wasserstein())
    mu = unit(torch.from_numpy(scene.start(x[:, None], x)), x)
    t1, seen = steps * scene.tau, {"F": energy}
    traj = of.flow(mu, field, stepper, t1=t1, dt=scene.tau, observe=seen, on_failure="return")
    gap = traj.certificates["energy_gap"].numpy()[1:] if len(traj) > 1 else np.array([math.nan])
    densities = [nu for nu in traj.measures if isinstance(nu, of.Grid)]
    return Crowd(scene, traj.ts.numpy(), densities, traj.observed["F"].numpy(), gap, str(traj.status))


def l1(a: Tensor, b: Tensor, mu: of.Grid) -> float:
    """int |a - b| on the cells of mu.

    >>> import otflow as of
    >>> import torch
    >>> from otflow.papers.crowd_motion.runs import l1
    >>> l1(torch.ones(2), torch.zeros(2), of.Grid([0.5, 1.5], [[0.25, 0.75]]))
    1.0
    """
    return float((a - b).abs().sum()) * mu.cell


def halo(eps: float) -> float:
    """The L1 distance at the end between the crowd in the bowl, on 64^2 cells, and the packed one.

    >>> from otflow.papers.crowd_motion.runs import halo
    >>> halo(0.02) > 0.05
    True
    """
    scene = SCENES["bowl"]
    found = follow(scene, 64, of.EntropicJKO(of.Sinkhorn(eps, tol=1e-8), debiased=True), scene.steps)
    return l1(found.densities[-1].density, found.packed, found.densities[-1])


def on_line(n: int) -> CrowdOnLine:
    """Two groups, n intervals of mass.

    >>> from otflow.papers.crowd_motion.runs import on_line
    >>> on_line(20).projected.shape
    (25, 21)
    """
    levels = of.measures.graded_levels(n, grading=1.0)
    s = levels.numpy()
    mu = of.Quantiles(2.5 * np.sign(s - 0.5) * np.abs(2 * s - 1) ** 0.5 + 0.3 * s + 0.4, levels)
    energy = of.Potential(bowl) + of.DensityBound(LINE_LIMIT)
    field = of.SteepestDescent(energy, of.Wasserstein())
    traj = of.flow(mu, field, of.JKO(), t1=LINE_TAU * LINE_STEPS, dt=LINE_TAU)
    weights, X = np.where((s == 0) | (s == 1), 0.5, 1.0), [mu.x.numpy()]  # of the trapezoidal rule
    for _ in range(LINE_STEPS):
        # Nobody in the way, x becomes x / (1 + tau); then X - s / limit is made not to decrease.
        free = X[-1] / (1 + LINE_TAU) - s / LINE_LIMIT
        X.append(isotonic_regression(free, weights=weights).x + s / LINE_LIMIT)
    runs = [nu for nu in traj.measures if isinstance(nu, of.Quantiles)]
    return CrowdOnLine(traj.ts.numpy(), runs, np.stack(X), traj.certificates["energy_gap"].numpy()[1:])


SCENES = {
    "bowl": Scene(bowl, 2.2, _two_groups, 0.2, 25),
    "pillar": Scene(past_a_pillar, 2.5, _one_group, 0.1, 30),
}
