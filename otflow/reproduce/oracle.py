"""An oracle of minimising movements: how far a run is from it, what is claimed, and the order in the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from otflow.measures import Grid, Quantiles
from otflow.reproduce.claim import Claim, Source
from otflow.reproduce.fits import slope

JKO98 = Source("Jordan, Kinderlehrer, Otto 1998")


class Oracle(NamedTuple):
    """An energy whose JKO steps are known: distances at the end of a run, for every step tau."""

    name: str
    norm: str  # in which distances are measured
    source: Source
    solver: dict[float, float]  # of the run to the exact scheme
    scheme: dict[float, float]  # of the exact scheme to the equation
    bound: float  # on the former

    def claims(self) -> list[Claim]:
        """The solver is at the scheme, and the scheme is of first order."""
        return [
            Source(str(self.source))(
                f"{self.name}: solver against scheme ({self.norm}; largest of {len(self.solver)} steps tau)"
            ).at_most(self.bound, max(self.solver.values())),
            Source(str(self.source))(f"{self.name}: scheme against equation, order in tau").within(
                0.85, 1.1, order(self.scheme)
            ),
        ]


def order(errors: dict[float, float]) -> float:
    """The slope of log error against log of the key.

    >>> round(order({0.1: 0.02, 0.2: 0.08}), 9)
    2.0
    """
    return slope(list(errors), list(errors.values()))


def box(n: int, width: float = 1.0) -> np.ndarray:
    """The centres of n cells of [-width/2, width/2].

    >>> box(2).tolist()
    [-0.25, 0.25]
    """
    return width * ((np.arange(n) + 0.5) / n - 0.5)


def unit(density: Tensor, x: np.ndarray) -> Grid:
    """The density on the square with centres x along both axes, of mass one.

    >>> import torch
    >>> unit(torch.ones(4, 4).double(), box(4)).density.sum().item()
    16.0
    """
    return Grid(density / (density.sum() * (x[1] - x[0]) ** 2), [x, x])


def l1(a: Tensor, b: Tensor) -> float:
    """int |a - b| over the box, from means over its cells.

    >>> import torch
    >>> l1(torch.ones(4, 4), torch.zeros(4, 4))
    1.0
    """
    return float((a - b).abs().mean())


def distance(mu: Quantiles, ppf: Callable[[np.ndarray], np.ndarray]) -> float:
    """W2 = (int |X - ppf|^2 ds)^(1/2), by three Gauss points in each interval of mu.

    >>> round(distance(Quantiles([0.0, 1.0], [0.0, 1.0]), lambda s: s + 2.0), 12)
    2.0
    """
    s, w = gauss_points(mu.levels.numpy())
    x = mu.nodes()[0].numpy()[:, 0]
    return float(np.sqrt((w * (x - ppf(s)) ** 2).sum()))


def gauss_points(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Three Gauss points between each two levels, and their weights."""
    z, w = np.polynomial.legendre.leggauss(3)
    gap = np.diff(levels)[:, None]
    return (levels[:-1, None] + gap * (z + 1) / 2).ravel(), (gap * w / 2).ravel()
