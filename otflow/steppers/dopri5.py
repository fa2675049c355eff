"""The adaptive method of Dormand and Prince (1980), each member of a batch at its own pace."""

from __future__ import annotations

import torch
from torch import Tensor

from otflow import checks
from otflow.fields import VelocityField
from otflow.measures import Measure, where
from otflow.status import code
from otflow.steppers.base import Memory, Step, Stepper
from otflow.steppers.explicit import Stages, combine, stages
from otflow.tangent import Tangent, align

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
SAFETY, SHRINK, GROW = 0.9, 0.2, 5.0
ALPHA, BETA = 0.7 / 5, 0.4 / 5  # exponents of the PI controller (Hairer, Norsett, Wanner II.4)


class Dopri5(Stepper):
    """Order 5 with an embedded error estimate and PI step control.

    A step is accepted when the error, measured in units of atol + rtol |coordinate| and averaged
    quadratically over the coordinates of a member of the batch, is at most one.

    Args:
        rtol, atol: tolerances.
        adaptive: False takes steps of the given dt whatever the error, to measure orders.
    """

    def __init__(self, rtol: float = 1e-7, atol: float = 1e-9, *, adaptive: bool = True) -> None:
        self.rtol, self.atol = checks.positive(rtol, "rtol"), checks.positive(atol, "atol")
        self.adaptive = adaptive

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        done = stages(field, t, dt, mu, memory.carry, A, C, memory.first)
        v, moved = done.v, mu.move(dt * combine(B, done.v))  # the place where v[6] was evaluated
        if not self.adaptive:
            kept = Memory(done.carry, v[-1])
            return Step(moved, dt, dt, kept, done.failed, done.message, done.certificate)
        error = self._norm(dt * combine(E, v), mu, moved)
        accept = torch.isfinite(error) & (error <= 1.0) & moved.finite()
        last = memory.error if memory.error is not None else torch.ones_like(error)
        dt_next = dt * _factor(error, last, accept)
        # A solver that gave up during a step that is rejected anyway gets another chance.
        failed = (
            None if done.failed is None else torch.where(accept, done.failed, torch.zeros_like(done.failed))
        )
        error = torch.where(accept & (dt > 0), error.clamp(min=1e-4), last)
        return Step(
            mu=where(accept, moved, mu),
            dt=torch.where(accept, dt, torch.zeros_like(dt)),
            dt_next=dt_next,
            memory=Memory(done.carry, _choose(accept, v[-1], v[0]), error),
            failed=_underflow(t, dt, dt_next, mu, done, failed),
            message=done.message,
            certificate=done.certificate if bool(accept.any()) else {},
        )

    def first_dt(self, field: VelocityField, t: Tensor, mu: Measure, longest: float) -> Tensor:
        """The starting step of Hairer, Norsett, Wanner II.4: Euler should be 1 % accurate over it."""
        v, carry = field.evaluate(t, mu)
        d0, d1 = self._norm(mu.coords, mu, mu), self._norm(v, mu, mu)
        usable = (d0 > 1e-5) & (d1 > 1e-5) & torch.isfinite(d1)
        slow = torch.full_like(d0, 1e-6)
        h0 = torch.where(usable, 0.01 * d0 / torch.where(usable, d1, slow), slow).clamp(max=longest)
        ahead, _ = field.evaluate(t + h0, mu.move(h0 * v), carry)
        d2 = self._norm((ahead - v) / h0, mu, mu)
        slope = torch.maximum(d1, d2)
        h1 = torch.where(
            slope > 1e-15, (0.01 / slope.clamp(min=1e-15)) ** 0.2, torch.clamp(1e-3 * h0, min=1e-6)
        )
        h = torch.minimum(100 * h0, torch.where(torch.isfinite(h1), h1, h0))
        return h.clamp(max=longest).detach()

    def _norm(self, u: Tangent, mu: Measure, moved: Measure) -> Tensor:
        """The root mean square of u in units of the tolerance, (*batch,) in float64."""
        parts = [
            _squares(a, x, y, self.rtol, self.atol, mu)
            for a, x, y in zip(u, mu.coords, moved.coords, strict=True)
        ]
        return torch.sqrt(sum((s for s, _ in parts[1:]), start=parts[0][0]) / sum(m for _, m in parts))

    def __repr__(self) -> str:
        return (
            f"Dopri5(rtol={self.rtol:g}, atol={self.atol:g})" if self.adaptive else "Dopri5(adaptive=False)"
        )


def _squares(u: Tensor, x: Tensor, y: Tensor, rtol: float, atol: float, mu: Measure) -> tuple[Tensor, int]:
    if u.shape != x.shape:
        checks.fail(
            "mu",
            repr(mu),
            "error control needs a velocity for each coordinate, which a grid has not",
            "use Euler() with a small dt",
        )
    scale = torch.maximum(x.detach().abs(), y.detach().abs()).mul_(rtol).add_(atol)
    own = tuple(range(len(mu.batch), u.ndim))
    return (u.detach() / scale).double().square_().sum(own), u.shape[len(mu.batch) :].numel()


def _factor(error: Tensor, last: Tensor, accept: Tensor) -> Tensor:
    """How much to change dt: proportional-integral after success, plain proportional after failure."""
    safe = torch.where(torch.isfinite(error), error, torch.full_like(error, 1e10)).clamp(min=1e-10)
    up = SAFETY * safe**-ALPHA * last**BETA
    down = SAFETY * safe**-0.2
    return torch.where(accept, up.clamp(SHRINK, GROW), down.clamp(SHRINK, 1.0))


def _choose(accept: Tensor, new: Tangent, old: Tangent) -> Tangent:
    if bool(accept.all()):
        return new
    return new.zip(old, lambda a, b: torch.where(align(accept, a), a, b))


def _underflow(
    t: Tensor, dt: Tensor, dt_next: Tensor, mu: Measure, done: Stages, failed: Tensor | None
) -> Tensor | None:
    """Steps below the resolution of t end a run: a blow-up if the state explodes within it, else a stall."""
    ulp = torch.nextafter(t.abs(), torch.full_like(t, torch.inf)) - t.abs()
    tiny = (dt > 0) & (dt_next < 4 * ulp)
    if not bool(tiny.any()):
        return failed
    speed, size = (
        sum(p.detach().double().reshape(*mu.batch, -1).abs().amax(-1) for p in c)
        for c in (done.v[0], mu.coords)
    )
    huge = size > 1e-8 * torch.finfo(mu.dtype).max
    if done.failed is not None:  # an inner solver met numbers beyond floating point
        huge = huge | (done.failed == code("blow_up"))
    exploding = huge | ~(1e4 * ulp * speed <= size)  # a velocity that is not finite counts as exploding
    codes = torch.where(exploding, code("blow_up"), code("stalled"))
    return torch.where(tiny, codes, torch.zeros_like(codes) if failed is None else failed)
