"""Splitting and extrapolation: steppers that are made of steps of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from otflow.base import checks
from otflow.energies import Energy
from otflow.fields import Carry, SteepestDescent, VelocityField
from otflow.fields.base import SumField
from otflow.fields.descent import joint_descent
from otflow.measures import Grid, Measure
from otflow.steppers.base import Fall, Memory, Step, Stepper
from otflow.steppers.explicit import Euler, first_fall
from otflow.steppers.jko import JKO
from otflow.steppers.jko.stepper import admit


class ForwardBackward(Stepper):
    """An explicit step for one part of the field, then a JKO step for the other (Salim et al. 2020).

    The parts of the field that are not steepest descents go forward, by Euler's method; so do the energies
    that are named; what remains is minimised. Order 1.

    Args:
        forward: energies, as they stand in the sum that the field descends.
        backward: the step for the others; `JKO()` by default.

    >>> import otflow as of
    >>> V, H = of.QuadraticPotential([[1.0]]), of.Entropy()
    >>> field = of.SteepestDescent(V + H, of.Wasserstein())
    >>> traj = of.flow(of.Gaussian([1.0], root=[[1.0]]), field, of.ForwardBackward(V), t1=1.0, dt=0.5)
    >>> round(traj.final.mean.item(), 6)
    0.25
    """

    def __init__(self, *forward: Energy, backward: Stepper | None = None) -> None:
        self.forward = tuple(checks.instance(F, Energy, "forward") for F in forward)
        self.explicit = [term for F in self.forward for term, _ in F.pairs()]
        self.backward = JKO() if backward is None else checks.instance(backward, Stepper, "backward")

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        explicit, implicit = self.split(field)
        admit(field, mu)
        old = memory.carry.parts if memory.carry else (None, None)
        first = Euler().step(explicit, t, dt, mu, Memory(old[0]))
        first = replace(first, certificate={})  # whose energy is that of its part alone
        second = self.backward.step(implicit, t, dt, first.mu, Memory(old[1]))
        carry = Carry(parts=(first.memory.carry, second.memory.carry))
        return joint(second, [first, second], Memory(carry, fall=_fallen(field, mu, second.mu, memory.fall)))

    def limiting(self, field: VelocityField) -> VelocityField:
        return self.split(field)[0]

    def split(self, field: VelocityField) -> tuple[VelocityField, VelocityField]:
        """The parts that go forward and backward."""
        pairs = [pair for term, c in field.pairs() for pair in self._parts(term, c)]
        explicit = [(term, c) for term, c, ahead in pairs if ahead]
        implicit = [(term, c) for term, c, ahead in pairs if not ahead]
        rule = "one part of it has to go forward and one backward"
        remedy = "name the energies that go forward as they stand in the sum, ForwardBackward(V) for V + H"
        checks.require(explicit and implicit, "field", field, rule, remedy)
        return SumField(explicit), SumField(implicit)

    def _parts(self, term: VelocityField, c: float) -> list[tuple[VelocityField, float, bool]]:
        if not isinstance(term, SteepestDescent):
            return [(term, c, True)]
        return [
            (SteepestDescent(F, term.metric), c * b, any(F is G for G in self.explicit))
            for F, b in term.energy.pairs()
        ]

    def __repr__(self) -> str:
        return f"ForwardBackward({', '.join(map(repr, self.forward))})"


@torch.no_grad()
def _fallen(field: VelocityField, mu: Measure, moved: Measure, before: Fall | None) -> Fall | None:
    """How the whole energy fell, if there is one; what a step promised is not known."""
    descent = joint_descent(field)
    if descent is None:
        return None
    power = torch.full(mu.batch, torch.inf, dtype=mu.dtype, device=mu.device)
    before = first_fall(descent, mu, power) if before is None else before
    return before.after(descent.energy(moved), power)


class Extrapolated(Stepper):
    """2 (two half steps) - (one whole step), in displacements: Richardson's extrapolation to order 2.

    For steppers of order 1, `JKO()` above all. Not for densities on grids, which could become negative.

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.QuadraticPotential([[1.0]]), of.Wasserstein())
    >>> traj = of.flow(of.Particles([[1.0]]), pull, of.Extrapolated(of.JKO()), t1=1.0, dt=0.1)
    >>> round(traj.final.x.item(), 5)  # exp(-1) = 0.36788
    0.36841
    """

    def __init__(self, base: Stepper) -> None:
        self.base: Stepper = checks.instance(base, Stepper, "base")
        checks.require(not base.adaptive, "base", base, "a fixed step is needed", "use JKO() or Euler()")
        self.stability = base.stability

    def limiting(self, field: VelocityField) -> VelocityField:
        return self.base.limiting(field)

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        checks.require(
            not isinstance(mu, Grid), "mu", mu, "extrapolated densities may be negative", "use JKO() itself"
        )
        old = memory.carry.parts if memory.carry else (None, None)
        whole = self.base.step(field, t, dt, mu, Memory(old[0]))
        half = self.base.step(field, t, dt / 2, mu, Memory(old[1]))
        two = self.base.step(field, t + dt / 2, dt / 2, half.mu, half.memory)
        u = 2.0 * (two.mu.coords - mu.coords) - (whole.mu.coords - mu.coords)
        carry = Carry(parts=(whole.memory.carry, two.memory.carry))
        return replace(joint(two, [whole, half, two], Memory(carry)), mu=mu.move(u), dt=dt, dt_next=dt)

    def __repr__(self) -> str:
        return f"Extrapolated({self.base!r})"


def joint(last: Step, steps: list[Step], memory: Memory) -> Step:
    """The last of several steps, with the failures of all and their worst certificates: local if one is."""
    failed = [s.failed for s in steps if s.failed is not None]
    codes = torch.stack(torch.broadcast_tensors(*failed)).amax(0) if failed else None
    local = [s.local for s in steps if s.local is not None]
    unproved = torch.stack(torch.broadcast_tensors(*local)).any(0) if local else None
    guilty = [s for s in steps if s.failed is not None and bool((s.failed > 0).any())]
    message = (guilty or [last])[0].message
    worst: dict[str, Tensor] = {}
    for certificate in (s.certificate for s in steps):
        worst = _worst(worst, certificate)
    return replace(last, memory=memory, failed=codes, message=message, local=unproved, certificate=worst)


def _worst(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**a, **{k: torch.fmax(a[k], v) if k in a else v for k, v in b.items()}}
