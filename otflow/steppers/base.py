"""The base of all steppers: what a step takes and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base.status import brief, graded, names, summary
from otflow.base.tangent import Tangent
from otflow.fields import Carry, VelocityField
from otflow.measures import Measure

# Chosen: a descent that gives back a quarter of what it had won, by steps beyond the limit of stability, is
# none; to and fro around a kink costs a few percent of it.
LOST = 0.25


class Fall(NamedTuple):
    """How the energy of a descent has fallen under explicit steps, (*batch,) each."""

    energy: Tensor
    start: Tensor
    least: Tensor  # so far
    power: Tensor  # dt |grad F|^2 in the step that led there: what it promised

    def after(self, energy: Tensor, power: Tensor) -> Fall:
        """With the energy after one more step."""
        lower = energy < self.least
        least, known = torch.where(lower, energy, self.least), torch.where(lower, power, self.power)
        return Fall(energy, self.start, least, known)

    def rose(self) -> Tensor:
        """Whether the energy is above its least value by more than a step can explain.

        At a kink, as of |x|, steps go to and fro for ever, and the energy too, by less than dt |grad F|^2.
        """
        return self._rise() > 2 * self.power

    def lost(self) -> Tensor:
        """Whether much of the fall is lost again: a kink may explain that, but see whether there is one."""
        return self._rise() > LOST * (self.start - self.least)

    def _rise(self) -> Tensor:
        """Above the least value, less rounding."""
        return self.energy - self.least - 1e-9 * (self.energy.abs() + self.least.abs())


class Memory(NamedTuple):
    """What a step leaves for the next one.

    ``first`` is the velocity at the new state when the step knows it already (it is forgotten where
    weights jump or noise strikes); ``error`` is the last accepted error of an adaptive stepper; ``fall`` is
    about the energy of a descent, and forgotten where noise strikes.
    """

    carry: Carry | None = None
    first: Tangent | None = None
    error: Tensor | None = None
    fall: Fall | None = None


@dataclass(frozen=True)
class Step:
    """The outcome of one step.

    ``dt`` is the time that was really advanced, 0 for members of a batch whose step was rejected;
    ``dt_next`` is the proposal for the next one; ``failed`` holds status codes, 0 where all is well;
    ``local`` says where a minimiser is not proved to be the best of all, which is a success of its own kind.
    """

    mu: Measure
    dt: Tensor
    dt_next: Tensor
    memory: Memory
    failed: Tensor | None = None
    message: str = ""
    certificate: Mapping[str, Tensor] = field(default_factory=dict)
    local: Tensor | None = None  # (*batch,), bool

    def __repr__(self) -> str:
        ended = "ok" if self.failed is None else summary(names(graded(self.failed, self.local)))
        return f"Step(to {self.mu!r}, dt={brief(self.dt)}, dt_next={brief(self.dt_next)}, status={ended!r})"


class Stepper(ABC):
    """A one-step method. Pure: everything it remembers travels in `Memory`."""

    adaptive: bool = False
    stability: float = 2.0  # longer steps, times the largest modulus of the Jacobian, may grow

    @abstractmethod
    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        """Advance mu from t by dt."""

    def limiting(self, field: VelocityField) -> VelocityField:
        """The part of a field to whose Jacobian the limit of stability applies."""
        return field

    def first_dt(self, field: VelocityField, t: Tensor, mu: Measure, longest: float) -> Tensor:
        """A first step size, at most ``longest``; only adaptive steppers know one."""
        raise TypeError(f"{type(self).__name__} has no step size of its own; pass dt to flow.")


def stage_time(t: Tensor, dt: Tensor, c: float) -> Tensor:
    """t + c dt; at c = 1 a hair *before* the end, where weights that jump there have not jumped yet.

    The hair is a few roundings wide, because t + dt may itself be rounded up past the jump.
    """
    end = t + c * dt
    size = torch.maximum(t.abs(), dt.abs())
    return torch.maximum(t, end - 8 * torch.finfo(end.dtype).eps * size) if c == 1.0 else end
