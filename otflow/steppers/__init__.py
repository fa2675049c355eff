"""Steppers: how a field moves a measure over one step of time."""

from otflow.steppers.base import Memory, Step, Stepper
from otflow.steppers.dopri5 import Dopri5
from otflow.steppers.explicit import RK4, Euler, Heun
from otflow.steppers.jko import JKO, EntropicJKO, Move, jko_step
from otflow.steppers.lie import Lie
from otflow.steppers.rosenbrock import Rosenbrock
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
