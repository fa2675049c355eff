"""An oracle of minimising movements: how far a run is from it, what is claimed, and the order in the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from torch import Tensor

import otflow as of
from otflow.reproduce.claim import Claim, Source
from otflow.reproduce.fits import slope

JKO98 = Source("Jordan, Kinderlehrer, Otto 1998")
M = TypeVar("M", bound=of.Measure)
T = TypeVar("T")


class Oracle(NamedTuple):
    """An energy whose JKO steps are known: distances at the end of a run, for every step tau."""

    name: str
    norm: str  # in which distances are measured
    source: Source
    solver: dict[float, float]  # of the run to the exact scheme
    scheme: dict[float, float]  # of the exact scheme to the equation
    bound: float  # on the former

    @classmethod
    def between(cls, name: str, norm: str, bound: float, apart: Callable[[T, T], float],
                runs: Mapping[float, T], scheme: Mapping[float, T], equation: T) -> Oracle:  # fmt: skip
        """By the ends, for every tau, of runs and of the exact scheme, and by that of the equation."""
        solver = {tau: apart(end, scheme[tau]) for tau, end in runs.items()}
        behind = {tau: apart(end, equation) for tau, end in scheme.items()}
        return cls(name, norm, JKO98, solver, behind, bound)

    def claims(self) -> list[Claim]:
        """The solver is at the scheme, and the scheme is of first order."""
        how = f"({self.norm}; largest of {len(self.solver)} steps tau)"
        solver = self.source(f"{self.name}: solver against scheme {how}")
        scheme = self.source(f"{self.name}: scheme against equation, order in tau")
        worst = max(self.solver.values())
        return [solver.at_most(self.bound, worst), scheme.within(0.85, 1.1, order(self.scheme))]


def final(
    mu: M, flow: of.Energy | of.VelocityField, length: float, tau: float, stepper: of.Stepper | None = None
) -> M:
    """Where mu is after the time `length`, by JKO unless told otherwise; an energy stands for its descent.

    >>> import otflow as of
    >>> from otflow.reproduce.oracle import final
    >>> final(of.Gaussian([0.0], root=[[1.0]]), of.QuadraticPotential([[1.0]], [4.0]), 1.0, 1.0).mean.item()
    2.0
    """
    field = of.SteepestDescent(flow, of.Wasserstein()) if isinstance(flow, of.Energy) else flow
    # Saving the start only keeps one measure in memory; a flow never changes the kind of its measure.
    return cast(M, of.flow(mu, field, stepper or of.JKO(), t1=length, dt=tau, save_at=[0.0]).final)


def march(step: Callable[..., T], start: Any, length: float, tau: float, *args: Any, **kwargs: Any) -> T:
    """`start` after the time `length`, by the exact steps ``step(start, tau, ...)``.

    >>> import otflow as of
    >>> from otflow.reproduce.oracle import march
    >>> march(of.closed_forms.heat_step, 0.0, 1.0, 1.0).item()
    1.0
    """
    for _ in range(round(length / tau)):
        start = step(start, tau, *args, **kwargs)
    return cast(T, start)


def order(errors: Mapping[Any, float]) -> float:
    """The slope of log error against log of the key.

    >>> from otflow.reproduce.oracle import order
    >>> round(order({0.1: 0.02, 0.2: 0.08}), 9)
    2.0
    """
    return slope(list(errors), list(errors.values()))


def box(n: int, width: float = 1.0) -> np.ndarray:
    """The centres of n cells of [-width/2, width/2].

    >>> from otflow.reproduce.oracle import box
    >>> box(2).tolist()
    [-0.25, 0.25]
    """
    return width * ((np.arange(n) + 0.5) / n - 0.5)


def unit(density: Tensor, x: np.ndarray) -> of.Grid:
    """The density on the square with centres x along both axes, of mass one.

    >>> from otflow.reproduce.oracle import box, unit
    >>> import torch
    >>> unit(torch.ones(4, 4).double(), box(4)).density.sum().item()
    16.0
    """
    return of.Grid(density / (density.sum() * (x[1] - x[0]) ** 2), [x, x])


def l1(a: Tensor, b: Tensor) -> float:
    """int |a - b| over the box, from means over its cells.

    >>> from otflow.reproduce.oracle import l1
    >>> import torch
    >>> l1(torch.ones(4, 4), torch.zeros(4, 4))
    1.0
    """
    return float((a - b).abs().mean())


def largest(a: Tensor, b: Tensor) -> float:
    """max |a - b| over all entries.

    >>> from otflow.reproduce.oracle import largest
    >>> import torch
    >>> largest(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0]))
    3.0
    """
    return float((a - b).abs().max())


def distance(mu: of.Quantiles, ppf: Callable[[np.ndarray], Any]) -> float:
    """W2 = (int |X - ppf|^2 ds)^(1/2), by three Gauss points in each interval of mu.

    >>> import otflow as of
    >>> from otflow.reproduce.oracle import distance
    >>> round(distance(of.Quantiles([0.0, 1.0], [0.0, 1.0]), lambda s: s + 2.0), 12)
    2.0
    """
    s, w = gauss_points(mu.levels.numpy())
    x = mu.nodes()[0].numpy()[:, 0]
    return float(np.sqrt((w * (x - np.asarray(ppf(s))) ** 2).sum()))


def gauss_points(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Three Gauss points between each two levels, and their weights."""
    z, w = np.polynomial.legendre.leggauss(3)
    gap = np.diff(levels)[:, None]
    return (levels[:-1, None] + gap * (z + 1) / 2).ravel(), (gap * w / 2).ravel()
