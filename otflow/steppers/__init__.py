"""Steppers: how a field moves a measure over one step of time.

Minimising movements are loaded when they are asked for, because explicit steps need none of their solvers.
"""

from typing import TYPE_CHECKING

from otflow.base.deferred import deferred
from otflow.steppers.base import Memory, Step, Stepper
from otflow.steppers.dopri5 import Dopri5
from otflow.steppers.explicit import RK4, Euler, Heun
from otflow.steppers.lie import Lie
from otflow.steppers.rosenbrock import Rosenbrock

if TYPE_CHECKING:
    from otflow.steppers.jko import JKO, EntropicJKO, Move, jko_step
    from otflow.steppers.splitting import Extrapolated, ForwardBackward

__all__ = [
    "JKO",
    "RK4",
    "Dopri5",
    "EntropicJKO",
    "Euler",
    "Extrapolated",
    "ForwardBackward",
    "Heun",
    "Lie",
    "Memory",
    "Move",
    "Rosenbrock",
    "Step",
    "Stepper",
    "jko_step",
]

__getattr__ = deferred(
    __name__,
    dict.fromkeys(("JKO", "EntropicJKO", "Move", "jko_step"), "otflow.steppers.jko")
    | dict.fromkeys(("Extrapolated", "ForwardBackward"), "otflow.steppers.splitting"),
)
