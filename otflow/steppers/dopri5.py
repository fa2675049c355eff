"""The adaptive method of Dormand and Prince (1980), each member of a batch at its own pace."""

from __future__ import annotations

from torch import Tensor

from otflow.fields import VelocityField
from otflow.measures import Measure
from otflow.steppers.adaptive import Adaptive
from otflow.steppers.base import Memory, Step
from otflow.steppers.explicit import combine, stages

A = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
B = A[-1]
C = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
E = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)  # fifth minus fourth order


class Dopri5(Adaptive):
    """Order 5 with an embedded error estimate and PI step control.

    A step is accepted when the error, measured in units of atol + rtol |coordinate| and averaged
    quadratically over the coordinates of a member of the batch, is at most one.

    Args:
        rtol, atol: tolerances.
        adaptive: False takes steps of the given dt whatever the error, to measure orders.
    """

    order = 5

    def __init__(self, rtol: float = 1e-7, atol: float = 1e-9, *, adaptive: bool = True) -> None:
        super().__init__(rtol, atol)
        self.adaptive = adaptive

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        done = stages(field, t, dt, mu, memory.carry, A, C, memory.first)
        moved = mu.move(combine(B, done.v, dt))  # the place where the last velocity was evaluated
        if not self.adaptive:
            kept = Memory(done.carry, done.v[-1])
            return Step(moved, dt, dt, kept, done.failed, done.message, done.certificate)
        return self.conclude(t, dt, mu, moved, combine(E, done.v, dt), done, memory.error)

    def __repr__(self) -> str:
        return super().__repr__() if self.adaptive else "Dopri5(adaptive=False)"
