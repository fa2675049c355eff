"""Minimising movements (JKO): the step is a minimisation, certified."""

from otflow.steppers.jko import gaussian, quantiles  # noqa: F401  (they register their solvers)
from otflow.steppers.jko.base import Move, MovementProblem, minimise
from otflow.steppers.jko.grid import exact  # noqa: F401  (likewise)
from otflow.steppers.jko.grid.entropic import EntropicJKO
from otflow.steppers.jko.stepper import JKO, jko_step

__all__ = ["JKO", "EntropicJKO", "Move", "MovementProblem", "jko_step", "minimise"]
