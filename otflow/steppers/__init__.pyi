from .base import Memory, Step, Stepper
from .dopri5 import Dopri5
from .explicit import RK4, Euler, Heun
from .jko import JKO, EntropicJKO, Move, MovementProblem, jko_step, minimise
from .lie import Lie
from .rosenbrock import Rosenbrock
from .splitting import Extrapolated, ForwardBackward

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
    "MovementProblem",
    "Rosenbrock",
    "Step",
    "Stepper",
    "jko_step",
    "minimise",
]
