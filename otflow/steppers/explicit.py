"""Explicit Runge-Kutta methods of fixed step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otflow.fields import Carry, VelocityField
from otflow.measures import Measure
from otflow.status import code
from otflow.steppers.base import Memory, Step, Stepper, residual, stage_time
from otflow.tangent import Tangent

Row = tuple[float, ...]


class RungeKutta(Stepper):
    """mu_{k+1} = mu_k.move(dt sum_i b_i v_i), with v_i = v(t + c_i dt, mu_k.move(dt sum_j a_ij v_j))."""

    a: tuple[Row, ...]
    b: Row
    c: Row

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        v, carry, failed = stages(field, t, dt, mu, memory.carry, self.a, self.c)
        moved = mu.move(dt * combine(self.b, v))
        return Step(
            moved, dt, dt, Memory(carry=carry), failed, carry.message if carry else "", residual(carry)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def stages(
    field: VelocityField,
    t: Tensor,
    dt: Tensor,
    mu: Measure,
    carry: Carry | None,
    a: Sequence[Row],
    c: Row,
    first: Tangent | None = None,
) -> tuple[list[Tangent], Carry | None, Tensor | None]:
    """All stage velocities, the last carry, and status codes of inner solvers that missed their tolerance."""
    v, bad = ([] if first is None else [first]), None
    for row, c_i in list(zip(a, c, strict=True))[len(v) :]:
        here = mu.move(dt * combine(row, v)) if row else mu
        new, carry = field.evaluate(stage_time(t, dt, c_i), here, carry)
        v.append(new)
        if carry is not None and carry.failed is not None:
            bad = carry.failed if bad is None else bad | carry.failed
    return v, carry, None if bad is None else bad.to(torch.int64) * code("max_iter")


def combine(coefficients: Row, v: Sequence[Tangent]) -> Tangent:
    """sum_i c_i v_i over the non-zero coefficients."""
    first, *rest = (c * u for c, u in zip(coefficients, v, strict=False) if c != 0.0)
    return sum(rest, start=first)


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

    a = ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0))
    b = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
    c = (0.0, 0.5, 0.5, 1.0)
