"""The base of adaptive steppers, which choose the step of each member of a batch by its own error."""

from __future__ import annotations

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.status import code
from otflow.base.tangent import Tangent, align
from otflow.fields import VelocityField
from otflow.measures import Measure, where
from otflow.steppers.base import Memory, Step, Stepper
from otflow.steppers.explicit import Stages

# Of the step size: its safety factor, and the most it may shrink or grow at once; customary (Hairer,
# Norsett, Wanner II.4).
SAFETY, SHRINK, GROW = 0.9, 0.2, 5.0
ALPHA, BETA = 0.7, 0.4  # exponents of the PI controller, times the order (Hairer, Norsett, Wanner II.4)


class Adaptive(Stepper):
    """A one-step method with an error estimate and PI step control.

    A step is accepted when the error, measured in units of atol + rtol |coordinate| and averaged
    quadratically over the coordinates of a member of the batch, is at most one.
    """

    adaptive = True
    order: int

    def __init__(self, rtol: float, atol: float) -> None:
        self.rtol, self.atol = checks.positive(rtol, "rtol"), checks.positive(atol, "atol")

    def conclude(
        self,
        t: Tensor,
        dt: Tensor,
        mu: Measure,
        moved: Measure,
        error: Tangent,
        done: Stages,
        last: Tensor | None,
    ) -> Step:
        """Accept ``moved`` or stay at mu; ``done.v`` begins with v(t, mu) and ends with v(t + dt, moved)."""
        size = self.norm(error, mu, moved)
        accept = torch.isfinite(size) & (size <= 1.0) & moved.finite()
        last = torch.ones_like(size) if last is None else last
        dt_next = dt * _factor(size, last, accept, self.order)
        # A solver that gave up during a step that is rejected anyway gets another chance.
        failed = (
            None if done.failed is None else torch.where(accept, done.failed, torch.zeros_like(done.failed))
        )
        size = torch.where(accept & (dt > 0), size.clamp(min=1e-4), last)
        return Step(
            mu=where(accept, moved, mu),
            dt=torch.where(accept, dt, torch.zeros_like(dt)),
            dt_next=dt_next,
            memory=Memory(done.carry, _choose(accept & (dt > 0), done.v[-1], done.v[0]), size),
            failed=_underflow(t, dt, dt_next, mu, done, failed),
            message=done.message,
            certificate=done.certificate if done.certificate and bool(accept.any()) else {},
        )

    def first_dt(self, field: VelocityField, t: Tensor, mu: Measure, longest: float) -> Tensor:
        """The starting step of Hairer, Norsett, Wanner II.4: Euler should be 1 % accurate over it."""
        v, carry = field.evaluate(t, mu)
        d0, d1 = self.norm(mu.coords, mu, mu), self.norm(v, mu, mu)
        usable = (d0 > 1e-5) & (d1 > 1e-5) & torch.isfinite(d1)
        slow = torch.full_like(d0, 1e-6)
        h0 = torch.where(usable, 0.01 * d0 / torch.where(usable, d1, slow), slow).clamp(max=longest)
        ahead, _ = field.evaluate(t + h0, mu.move(h0 * v), carry)
        d2 = self.norm((ahead - v) / h0, mu, mu)
        slope = torch.maximum(d1, d2)
        h1 = torch.where(
            slope > 1e-15,
            (0.01 / slope.clamp(min=1e-15)) ** (1 / self.order),
            torch.clamp(1e-3 * h0, min=1e-6),
        )
        h = torch.minimum(100 * h0, torch.where(torch.isfinite(h1), h1, h0))
        return h.clamp(max=longest).detach()

    def norm(self, u: Tangent, mu: Measure, moved: Measure) -> Tensor:
        """The root mean square of u in units of the tolerance, (*batch,) in float64."""
        parts = [
            _squares(a, x, y, self.rtol, self.atol, mu)
            for a, x, y in zip(u, mu.coords, moved.coords, strict=True)
        ]
        return torch.sqrt(sum((s for s, _ in parts[1:]), start=parts[0][0]) / sum(m for _, m in parts))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rtol={self.rtol:g}, atol={self.atol:g})"


def _squares(u: Tensor, x: Tensor, y: Tensor, rtol: float, atol: float, mu: Measure) -> tuple[Tensor, int]:
    rule = "error control needs a velocity for each coordinate, which a grid has not"
    checks.require(u.shape == x.shape, "mu", mu, rule, "use Euler() with a small dt")
    scale = torch.maximum(x.detach().abs(), y.detach().abs()).mul_(rtol).add_(atol)
    own = tuple(range(len(mu.batch), u.ndim))
    return (u.detach() / scale).double().square_().sum(own), u.shape[len(mu.batch) :].numel()


def _factor(error: Tensor, last: Tensor, accept: Tensor, order: int) -> Tensor:
    """How much to change dt: proportional-integral after success, plain proportional after failure."""
    safe = torch.where(torch.isfinite(error), error, torch.full_like(error, 1e10)).clamp(min=1e-10)
    up = SAFETY * safe ** (-ALPHA / order) * last ** (BETA / order)
    down = SAFETY * safe ** (-1 / order)
    return torch.where(accept, up.clamp(SHRINK, GROW), down.clamp(SHRINK, 1.0))


def _choose(accept: Tensor, new: Tangent, old: Tangent) -> Tangent:
    if checks.on_host(accept) and bool(accept.all()):
        return new
    return new.zip(old, lambda a, b: torch.where(align(accept, a), a, b))


def _underflow(
    t: Tensor, dt: Tensor, dt_next: Tensor, mu: Measure, done: Stages, failed: Tensor | None
) -> Tensor | None:
    """Steps below the resolution of t end a run: a blow-up if the state explodes within it, else a stall."""
    ulp = torch.nextafter(t.abs(), torch.full_like(t, torch.inf)) - t.abs()
    tiny = (dt > 0) & (dt_next < 4 * ulp)
    if checks.on_host(tiny) and not bool(tiny.any()):
        return failed
    speed, size = _reach(done.v[0], mu), _reach(mu.coords, mu)
    huge = size > 1e-8 * torch.finfo(mu.dtype).max
    # A state that shrinks does not explode, however fast it shrinks.
    exploding = (1e4 * ulp * speed > size) & (_product(done.v[0], mu.coords, mu) > 0)
    if done.failed is not None:  # an inner solver met scores beyond floating point
        large = size > torch.finfo(mu.dtype).max ** 0.25
        huge = huge | (large & (done.failed == code("blow_up")))
    bad = torch.stack([~torch.isfinite(_reach(v, mu)) for v in done.v]).any(0)
    codes = torch.where(bad, code("invalid"), code("stalled"))
    codes = torch.where(huge, code("overflow"), codes)
    codes = torch.where(exploding, code("blow_up"), codes)
    return torch.where(tiny, codes, torch.zeros_like(codes) if failed is None else failed)


def _product(u: Tangent, v: Tangent, mu: Measure) -> Tensor:
    """The sum of the products of coordinates, (*batch,)."""
    parts = [(a.detach().double() * b.detach().double()) for a, b in zip(u, v, strict=True)]
    return torch.stack([p.reshape(*mu.batch, -1).sum(-1) for p in parts]).sum(0)


def _reach(u: Tangent, mu: Measure) -> Tensor:
    """The largest coordinate of each member, summed over the pieces, (*batch,)."""
    return torch.stack([p.detach().double().reshape(*mu.batch, -1).abs().amax(-1) for p in u]).sum(0)
