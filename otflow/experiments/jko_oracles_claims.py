"""One oracle of the experiment `jko-oracles`: distances, claims, and the order in the step."""

from __future__ import annotations

from typing import NamedTuple

from otflow.experiments.base import Claim
from otflow.experiments.fits import slope

JKO98 = "Jordan, Kinderlehrer, Otto 1998"


class Oracle(NamedTuple):
    """An energy whose JKO steps are known: distances at the end of a run, for every step tau."""

    name: str
    norm: str  # in which distances are measured
    source: str
    solver: dict[float, float]  # of the run to the exact scheme
    scheme: dict[float, float]  # of the exact scheme to the equation
    bound: float  # on the former

    def claims(self) -> list[Claim]:
        """The solver is at the scheme, and the scheme is of first order."""
        return [
            Claim.at_most(
                f"{self.name}: solver against scheme ({self.norm}; largest of {len(self.solver)} steps tau)",
                self.source,
                bound=self.bound,
                measured=max(self.solver.values()),
            ),
            Claim.within(
                f"{self.name}: scheme against equation, order in tau",
                self.source,
                low=0.85,
                high=1.1,
                measured=order(self.scheme),
            ),
        ]


def order(errors: dict[float, float]) -> float:
    """The slope of log error against log of the key.

    >>> round(order({0.1: 0.02, 0.2: 0.08}), 9)
    2.0
    """
    return slope(list(errors), list(errors.values()))
