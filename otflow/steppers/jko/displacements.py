"""JKO steps by displacements of particles and Gaussians: the energy is taken where the measure ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from otflow.base.status import code
from otflow.base.tangent import Tangent
from otflow.energies.base import gradient
from otflow.measures import Measure, Particles
from otflow.metrics import Metric
from otflow.steppers.jko.base import Move, MovementProblem, minimise
from otflow.steppers.jko.branch_and_bound import searched
from otflow.steppers.jko.kinks import bracketed
from otflow.steppers.jko.proof import UNPROVED, Separate, proved, refuse_refuted
from otflow.steppers.jko.starts import joined, lowest, scattered, taken
from otflow.steppers.jko.truncated_newton import Minimum, newton

ITERATIONS = 100  # Newton steps unless the user says; chosen
# Chosen: the part of the largest mass below which a residual tells nothing of a particle, and its own then.
LIGHT, RESTS = 1e-10, 1e-3
ADRIFT = (
    "JKO step: particles of less than 1e-10 of the largest mass are not at rest; leave them out, and ask the "
    "field for their velocities"
)
FIRST = 20  # of these before kinks are looked for, where that can be; chosen


@dataclass(frozen=True)
class Displaced:
    """J(u) = F((id + u)_# mu) + action(mu, u) / (2 tau), with its gradient in the metric at mu."""

    mu: Measure
    problem: MovementProblem

    @cached_property
    def metric(self) -> Metric:
        """The metric with its weight evaluated at mu, once."""
        return self.problem.metric.held(self.mu)

    def value(self, u: Tangent) -> Tensor:
        return self.problem.energy(self.mu.exp(u)) + self.cost(u) / (2 * self.problem.tau)

    def cost(self, u: Tangent) -> Tensor:
        whole = self.problem.metric
        return (self.metric if whole.quadratic else whole).action(self.mu, u)

    def gradient(self, u: Tangent) -> Tangent:
        with torch.enable_grad():
            v = u.map(lambda a: a.detach().requires_grad_())
            end = self.mu.exp(v)
            c = self.problem.energy.differential(end.at(end.coords.map(lambda a: a.detach())))
            pulled = torch.stack([(a * b).sum() for a, b in zip(end.coords, c, strict=True)]).sum()
            covector = gradient(pulled + self.cost(v).sum() / (2 * self.problem.tau), v)
        return self.metric.gradient(self.mu, covector)

    def inner(self, u: Tangent, v: Tangent) -> Tensor:
        return self.metric.inner(self.mu, u, v)

    def tangent(self, u: Tangent) -> Tangent:
        return self.mu.tangent(u)

    @cached_property
    def drive(self) -> Tangent:
        """The gradient of the energy at mu."""
        return self.gradient(self.mu.coords * 0.0)

    @cached_property
    def far(self) -> Tensor:
        """The size of the coordinates, which rounding is relative to."""
        return self.mu.inner(self.mu.coords, self.mu.coords).sqrt()  # twisted, points on a sphere are normal

    @cached_property
    def reach(self) -> Tensor:
        """The geometric mean of the noise of positions and of the distance on which curvature changes."""
        x, w = self.mu.nodes()
        y = x - (w[..., None] * x).sum(-2, keepdim=True)
        spread = (w * y.square().sum(-1)).sum(-1).clamp(min=0).sqrt()
        alone = self.problem.tau * self.inner(self.drive, self.drive).sqrt()  # of a single particle
        scale = torch.where(spread > 1e-8 * self.far, spread, alone)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        noise = max(float(self.problem.energy.precision), torch.finfo(scale.dtype).eps)
        least = 32 * torch.finfo(scale.dtype).eps * torch.maximum(self.far, alone)  # positions are rounded
        return torch.maximum(torch.sqrt(noise * torch.maximum(self.far, scale) * scale), least)

    @cached_property
    def height(self) -> Tensor:
        """What a move as long as the coordinates would change in the energy, whose terms are of that size."""
        return self.far * self.inner(self.drive, self.drive).sqrt()

    @cached_property
    def extent(self) -> Tensor:
        """The length of the problem: the largest of spread, size of coordinates and explicit step, else 1."""
        alone = self.problem.tau * self.inner(self.drive, self.drive).sqrt()
        scale = torch.maximum(self.far, alone)  # the spread is at most twice the size
        return torch.where(scale > 0, scale, torch.ones_like(scale))

    def rounding(self, curvature: Tensor) -> Tensor:
        """The noise of a gradient: positions are rounded, and the curvature of the energy passes that on."""
        own = (curvature - 1 / self.problem.tau).abs()
        return 32 * torch.finfo(self.far.dtype).eps * self.far * own

    def doubt(self, noise: Tensor, size: Tensor) -> Tensor:
        """The error of a curvature by a difference of gradients, given the noise and the size of these.

        What is averaged over the difference is not an error: a bound on curvature holds for averages as well.
        """
        own = max(float(self.problem.energy.precision), torch.finfo(size.dtype).eps)
        return 10 * (noise + 32 * own * size) / self.reach


@minimise.register(Particles)
def displace(mu: Measure, problem: MovementProblem, start: Any = None) -> Move:
    """Minimise over displacements by a truncated Newton method, from the displacement of the step before."""
    J = Displaced(mu, problem)
    rest = mu.coords * 0.0
    size = J.inner(J.drive, J.drive).sqrt()
    tol = problem.tol or (1e-10 if mu.dtype == torch.float64 else 1e-4)
    found = _search(J, _start(J, rest, start), size, tol)
    refuse_refuted(mu, problem, found.least - 1 / problem.tau, J.doubt(found.noise, size))
    found, local = _judged(J, found, size, tol)
    adrift = _adrift(J, found)
    found = replace(found, failed=torch.where(adrift, code("stalled"), found.failed))
    u = found.u
    # At rest there is no gradient to compare with: what is below rounding counts as solved.
    whole = size + found.noise / tol
    residual = found.residual / torch.where(whole > 0, whole, torch.ones_like(whole))
    return Move(
        mu=mu.exp(u),
        cost=J.cost(u),
        residual=residual,
        failed=found.failed,
        iterations=found.iterations,
        message=ADRIFT if bool(adrift.any()) else _message(found, residual, size, tol, local),
        concavity=1 - problem.tau * found.least,
        local=local,
        state=u,
    )


def _adrift(J: Displaced, found: Minimum) -> Tensor:
    """Where particles of next to no mass are not at rest, which no mean over the mass shows, (*batch,)."""
    none = torch.zeros_like(found.failed, dtype=torch.bool)
    if not isinstance(J.mu, Particles) or J.mu.uniform:
        return none
    light = (J.mu.w > 0) & (J.mu.w < LIGHT * J.mu.w.amax(-1, keepdim=True))
    if not bool(light.any()):
        return none
    slope, drive, way = (a[0].norm(dim=-1) for a in (J.gradient(found.u), J.drive, found.u))
    whole = (drive + way / J.problem.tau).amax(-1, keepdim=True)
    return (found.failed == 0) & (light & ~(slope <= RESTS * whole)).any(-1)


def _search(J: Displaced, start: Tangent, size: Tensor, tol: float) -> Minimum:
    """The best minimum that searches from ``start`` and from as many other places as asked for find."""
    count = J.problem.starts
    if count == 1:
        return _minimum(J, start, size, tol)
    many = Displaced(J.mu.expand(count, *J.mu.batch), J.problem)
    places = scattered(start, count, J.extent, lambda u: many.inner(u, u).sqrt())
    every = _minimum(many, places, size.expand(count, *J.mu.batch), tol)
    best = lowest(every, many.value(every.u))
    each = Separate.of(J.mu, J.problem)
    if each is None or each.mu.n == 1:
        return best
    heights = each.heights(each.mu.x + every.u[0])
    return _better(J, best, Tangent([taken(every.u[0], heights.argmin(0))]), size, tol)


def _minimum(J: Displaced, start: Tangent, size: Tensor, tol: float) -> Minimum:
    """What Newton's method finds; on the line particles that go by themselves may be at kinks instead."""
    limit = J.problem.max_iter or ITERATIONS
    each = Separate.of(J.mu, J.problem) if J.mu.coords[0].shape[-1] == 1 else None
    if each is None:
        return newton(J, start, size, tol=tol, max_iter=limit)
    found = bracketed(each, newton(J, start, size, tol=tol, max_iter=min(limit, FIRST)))
    if limit <= FIRST or not bool((found.failed == code("max_iter")).any()):
        return found
    more = bracketed(each, newton(J, found.u, size, tol=tol, max_iter=limit - FIRST))
    return lowest(joined(found, more), torch.stack([J.value(found.u), J.value(more.u)]))


def _judged(J: Displaced, found: Minimum, size: Tensor, tol: float) -> tuple[Minimum, Tensor]:
    """What was found, or a better minimum, and for which members it is not proved to be the best one."""
    good = proved(J.mu, J.problem, J.mu.exp(found.u))
    each = None if bool(good.all()) else Separate.of(J.mu, J.problem)
    best = None if each is None else searched(each, each.mu.x + found.u[0])
    if each is None or best is None:
        return found, ~good
    found = _better(J, found, Tangent([best.z - each.mu.x]), size, tol)
    z = each.mu.x + found.u[0]
    height = each.heights(z).detach()
    missed = (found.failed == 0) & best.above(height).any(
        -1
    )  # no search arrived at a better place that is known
    found = replace(found, failed=torch.where(missed, code("stalled"), found.failed))
    return found, ~(good | best.certain(z, height).all(-1))


def _better(J: Displaced, found: Minimum, start: Tangent, size: Tensor, tol: float) -> Minimum:
    """What was found, or what another search finds if that is better."""
    other = _minimum(J, start, size, tol)
    both = joined(found, other)
    return lowest(both, torch.stack([J.value(found.u), J.value(other.u)]))


def _start(J: Displaced, rest: Tangent, start: Any) -> Tangent:
    """The last displacement where it is a better start than standing still."""
    if start is None or [a.shape for a in start] != [a.shape for a in rest]:
        return rest
    u = J.mu.tangent(start)
    better = J.value(u) < J.value(rest)
    return u * better.to(rest[0].dtype)


def _message(found: Minimum, residual: Tensor, size: Tensor, tol: float, local: Tensor) -> str:
    if not bool(torch.isfinite(size).all()):
        return "JKO step: the energy has no finite gradient where the step starts; do particles coincide?"
    if bool((found.failed == code("uncertified")).any()):
        return (
            "the JKO step found a saddle: the inner problem is not convex there; take dt below 1 / |lambda|, "
            "lambda the lowest curvature of the energy"
        )
    if not bool((found.failed > 0).any()):
        return UNPROVED if bool(local.any()) else ""
    worst = (
        f"relative residual {float(residual.max()):.2e} after {found.iterations} iterations, tol = {tol:.1e}"
    )
    hint = (
        "; not convex on the way: take a smaller dt, or is F unbounded below?"
        if bool((found.least < 0).any())
        else ""
    )
    return f"JKO step: {worst}{hint}"
