"""JKO on clouds of particles."""

from __future__ import annotations

from typing import Any

from otflow.measures import Particles
from otflow.steppers.jko.base import Move, Problem, minimise
from otflow.steppers.jko.displacements import displace


@minimise.register(Particles)
def _(mu: Particles, problem: Problem, start: Any = None) -> Move:
    return displace(mu, problem, start)
