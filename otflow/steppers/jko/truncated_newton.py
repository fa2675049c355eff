"""A truncated Newton method for batches of small and large minimisations, in the geometry of a measure.

Only values and gradients are asked for: curvature comes from differences of gradients, so that energies
which stream their gradients need no second derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from otflow.base.status import code
from otflow.base.tangent import Tangent, align

INNER = 100  # steps of conjugate gradients for one Newton direction, at most; chosen
HALVINGS = 40  # of a step in a line search; chosen: 2^-40 = 1e-12 of it is no progress
PROBES = 12  # steps of conjugate gradients that look for negative curvature at the end; chosen


class Objective(Protocol):
    """A function of tangents u, with values of shape (*batch,)."""

    @property
    def reach(self) -> Tensor:
        """The distance over which differences of gradients are taken: above noise, below curvature."""
        ...

    @property
    def height(self) -> Tensor:
        """The size of terms that may cancel in a value, which is rounded as they are."""
        ...

    def value(self, u: Tangent) -> Tensor: ...

    def gradient(self, u: Tangent) -> Tangent: ...

    def inner(self, u: Tangent, v: Tangent) -> Tensor: ...

    def tangent(self, u: Tangent) -> Tangent: ...

    def rounding(self, curvature: Tensor) -> Tensor:
        """The norm of a gradient below which there is only rounding."""
        ...


@dataclass(frozen=True)
class Minimum:
    """Where the search ended; ``least`` is the smallest curvature that was met, in units of the metric."""

    u: Tangent
    residual: Tensor
    failed: Tensor
    iterations: int
    least: Tensor
    noise: Tensor


def newton(J: Objective, start: Tangent, size: Tensor, *, tol: float, max_iter: int) -> Minimum:
    """Minimise J from ``start`` until |grad J| <= tol size, member by member of the batch."""
    at = _Point(start, J.value(start), J.gradient(start), torch.zeros_like(size))
    failed = torch.where(torch.isfinite(size), code("max_iter"), code("degenerate"))
    least, most = torch.full_like(size, torch.inf), torch.zeros_like(size)
    for k in range(max_iter + 1):
        r = _norm(J, at.g)
        failed = torch.where(r <= tol * size + _noise(J, most), 0, failed)
        busy = failed == code("max_iter")
        if k == max_iter or not bool(busy.any()):
            break
        forcing = (r / size.clamp(min=torch.finfo(r.dtype).tiny)).sqrt().clamp(max=0.1)
        p, low, high = _direction(J, at, -at.g, forcing, busy, INNER)
        least, most = torch.minimum(least, low), torch.maximum(most, high)
        new = _search(J, at, p, busy)
        failed = torch.where(busy & (new.step == 0), code("stalled"), failed)
        at = new
    _, low, _ = _direction(J, at, _probe(J, at), torch.full_like(size, 1e-5), failed == 0, PROBES)
    failed = torch.where((failed == 0) & (low <= 0), code("uncertified"), failed)
    return Minimum(at.u, _norm(J, at.g), failed, k, torch.minimum(least, low), _noise(J, most))


def _norm(J: Objective, u: Tangent) -> Tensor:
    return J.inner(u, u).clamp(min=0).sqrt()


def _noise(J: Objective, most: Tensor) -> Tensor:
    """Rounding of the gradient, once a curvature has been met."""
    return torch.where(most > 0, J.rounding(most), torch.zeros_like(most))


@dataclass(frozen=True)
class _Point:
    """A place, with what is known there; ``step`` is the length of the search that led to it."""

    u: Tangent
    value: Tensor
    g: Tangent
    step: Tensor


def _direction(
    J: Objective, at: _Point, r: Tangent, forcing: Tensor, busy: Tensor, steps: int
) -> tuple[Tangent, Tensor, Tensor]:
    """Conjugate gradients for H p = r, until the residual has fallen by ``forcing`` or curvature turns.

    Also the least and the largest curvature p.Hp / p.p that was met.
    """
    p = at.g * 0.0
    q, rr = r, J.inner(r, r)
    goal = forcing.square() * rr
    low, high = torch.full_like(rr, torch.inf), torch.zeros_like(rr)
    for k in range(steps):
        Hq, qq = _curved(J, at, q), J.inner(q, q)
        qHq = J.inner(q, Hq)
        curvature = qHq / torch.where(qq > 0, qq, torch.ones_like(qq))
        low = torch.where(busy, torch.minimum(low, curvature), low)
        high = torch.where(busy, torch.maximum(high, curvature), high)
        convex = busy & (qHq > 0)
        alpha = torch.where(convex, rr / torch.where(convex, qHq, torch.ones_like(qHq)), torch.zeros_like(rr))
        if k == 0:  # no curvature to go by: down the gradient, by what the convex part of J allows
            p = q * torch.where(busy & ~convex, 1 / curvature.abs().clamp(min=1e-300), torch.zeros_like(rr))
        p, r = p + alpha * q, r - alpha * Hq
        new = J.inner(r, r)
        busy = convex & (new > goal)
        if not bool(busy.any()):
            break
        q, rr = r + torch.where(busy, new / rr, torch.zeros_like(rr)) * q, new
    return p, low, high


def _curved(J: Objective, at: _Point, q: Tangent) -> Tangent:
    """H q by a difference of gradients."""
    size = _norm(J, q)
    h = J.reach / torch.where(size > 0, size, torch.ones_like(size))
    return (J.gradient(at.u + h * q) - at.g) / h


def _probe(J: Objective, at: _Point) -> Tangent:
    """A fixed tangent without structure, which meets every eigenvector."""
    generator = torch.Generator().manual_seed(
        977_231_665_301
    )  # nobody's own seed, or it could be parallel to x
    noise = at.g.map(lambda a: torch.randn(a.shape, generator=generator, dtype=a.dtype).to(a.device))
    return J.tangent(noise)


def _search(J: Objective, at: _Point, p: Tangent, busy: Tensor) -> _Point:
    """Halve the step until J falls enough, or, where it cannot be told from rounding, its gradient does."""
    slope, norm = J.inner(at.g, p), J.inner(at.g, at.g)
    slack = 100 * torch.finfo(slope.dtype).eps * torch.maximum(at.value.abs(), J.height)
    step = torch.where(busy, torch.ones_like(slope), torch.zeros_like(slope))
    best = replace(at, step=torch.zeros_like(step))
    waiting = busy
    for _ in range(HALVINGS):
        u = at.u + step * p
        value, g = J.value(u), J.gradient(u)
        falls = value <= at.value + 1e-4 * step * slope
        flat = (value <= at.value + slack) & (J.inner(g, g) <= 0.81 * norm)
        good = waiting & (falls | flat) & torch.isfinite(J.inner(g, g))
        best = _Point(_where(good, u, best.u), torch.where(good, value, best.value),
                      _where(good, g, best.g), torch.where(good, step, best.step))  # fmt: skip
        waiting = waiting & ~good
        if not bool(waiting.any()):
            break
        step = torch.where(waiting, step / 2, step)
    return best


def _where(condition: Tensor, u: Tangent, v: Tangent) -> Tangent:
    return u.zip(v, lambda a, b: torch.where(align(condition, a), a, b))
