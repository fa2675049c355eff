"""Steppers: how a field moves a measure over one step of time."""

from otflow.steppers.base import Memory, Step, Stepper
from otflow.steppers.dopri5 import Dopri5
from otflow.steppers.explicit import RK4, Euler, Heun
from otflow.steppers.lie import Lie
from otflow.steppers.rosenbrock import Rosenbrock

__all__ = ["RK4", "Dopri5", "Euler", "Heun", "Lie", "Memory", "Rosenbrock", "Step", "Stepper"]
