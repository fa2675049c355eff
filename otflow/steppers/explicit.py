"""Explicit Runge-Kutta methods of fixed step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base.status import code
from otflow.base.tangent import Tangent, leading
from otflow.fields import Carry, SteepestDescent, VelocityField
from otflow.fields.descent import joint_descent
from otflow.measures import Measure
from otflow.steppers.base import Fall, Memory, Step, Stepper, stage_time

Row = tuple[float, ...]


class RungeKutta(Stepper):
    """mu_{k+1} = mu_k.move(dt sum_i b_i v_i), with v_i = v(t + c_i dt, mu_k.move(dt sum_j a_ij v_j))."""

    a: tuple[Row, ...]
    b: Row
    c: Row

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        done = stages(field, t, dt, mu, memory.carry, self.a, self.c)
        moved = mu.move(combine(self.b, done.v, dt))
        fall, gap = fallen(field, mu, moved, done.v[0], dt, memory.fall)
        certificate = {**done.certificate, **gap}
        return Step(moved, dt, dt, Memory(done.carry, fall=fall), done.failed, done.message, certificate)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Stages(NamedTuple):
    """Stage velocities, and what the inner solvers of the field said on the way."""

    v: list[Tangent]
    carry: Carry | None = None
    failed: Tensor | None = None  # status codes
    message: str = ""
    certificate: Mapping[str, Tensor] = MappingProxyType({})

    def after(self, v: Tangent, carry: Carry | None) -> Stages:
        """With one more stage; the worst residual and all failures are kept."""
        if carry is None:
            return self._replace(v=[*self.v, v])
        worst = torch.tensor(carry.residual, dtype=torch.float64)
        if "residual" in self.certificate:
            worst = torch.maximum(worst, self.certificate["residual"])
        failed, message = self.failed, self.message
        if carry.failed is not None and bool(carry.failed.any()):
            kind = "blow_up" if math.isnan(carry.residual) else "max_iter"  # scores beyond floating point
            bad = carry.failed.to(torch.int64) * code(kind)
            failed, message = bad if failed is None else torch.maximum(failed, bad), carry.message
        return Stages([*self.v, v], carry, failed, message, {"residual": worst})


def stages(
    field: VelocityField,
    t: Tensor,
    dt: Tensor,
    mu: Measure,
    carry: Carry | None,
    a: Sequence[Row],
    c: Row,
    first: Tangent | None = None,
) -> Stages:
    """Evaluate the field at all stages; ``first``, if known, is the velocity of the first one."""
    done = Stages([] if first is None else [first], carry)
    for row, c_i in list(zip(a, c, strict=True))[len(done.v) :]:
        here = mu.move(combine(row, done.v, dt)) if row else mu
        done = done.after(*field.evaluate(stage_time(t, dt, c_i), here, done.carry))
    return done


@torch.no_grad()
def fallen(
    field: VelocityField, mu: Measure, moved: Measure, v: Tangent, dt: Tensor, before: Fall | None
) -> tuple[Fall | None, dict[str, Tensor]]:
    """How the energy of a descent fell in a step, and its ``energy_gap``; nothing for other fields.

    The gap is F(moved) + dt |v|^2 / 2 - F(mu), as in the inequality of minimising movements. It is at most 0
    as long as dt times the curvature of F is at most 1; a stable step that is longer may exceed it.
    """
    descent = joint_descent(field)
    if descent is None:
        return None, {}
    power = dt * descent.metric.inner(mu, v, v)
    before = first_fall(descent, mu, power) if before is None else before
    after = before.after(descent.energy(moved), power)
    return after, {"energy_gap": after.energy + power / 2 - before.energy}


def first_fall(descent: SteepestDescent, mu: Measure, power: Tensor) -> Fall:
    """Before the first step."""
    energy = descent.energy(mu)
    return Fall(energy, energy, energy, power)


def combine(coefficients: Row, v: Sequence[Tangent], dt: Tensor) -> Tangent:
    """dt sum_i c_i v_i over the non-zero coefficients."""
    (c, first), *rest = ((c, u) for c, u in zip(coefficients, v, strict=False) if c != 0.0)
    total = c * first
    for k, a in enumerate(total):  # in place: total is new, and nobody has seen it
        for c, u in rest:
            a.add_(u[k], alpha=c)
        a.mul_(leading(dt, a))
    return total


class Euler(RungeKutta):
    """The explicit Euler method: a residual layer x + dt v(x). Order 1.

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> of.flow(of.Particles([[1.0]]), pull, of.Euler(), t1=1.0, dt=0.5).final.x.item()
    0.25
    """

    a = ((),)
    b = (1.0,)
    c = (0.0,)


class Heun(RungeKutta):
    """Heun's method, the explicit trapezoidal rule. Order 2."""

    a = ((), (1.0,))
    b = (0.5, 0.5)
    c = (0.0, 1.0)


class RK4(RungeKutta):
    """The classical Runge-Kutta method. Order 4, on the sphere too."""

    stability = 2.785  # on the negative axis (Hairer, Wanner IV.2)
    a = ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0))
    b = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
    c = (0.0, 0.5, 0.5, 1.0)
