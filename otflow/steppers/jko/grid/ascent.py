"""The ascent of the dual of a JKO step on a grid, by quasi-Newton steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otflow.base import multigrid
from otflow.base.status import code
from otflow.steppers.jko.grid.dual import Dual, Point, extend
from otflow.steppers.jko.grid.energy_terms import Terms
from otflow.steppers.jko.grid.line import LineDual
from otflow.steppers.jko.grid.spline import Array

NEVER = 1e100  # stands for infinity in a bracket; chosen: sums and differences of two stay finite
SHORTEST = 1e-5  # step below which a line search gives up; chosen
SMOOTH = 12  # first iterations, in which the vacuum is smoothed; chosen
OK, LATE, STALLED = code("ok"), code("max_iter"), code("stalled")


@dataclass(frozen=True)
class Ascent:
    """Where an ascent of the dual ended: residual and status codes are per member."""

    at: Point
    residual: Array
    failed: NDArray[np.int64]
    iterations: int


def ascend(dual: Dual | LineDual, f: Array, tol: float, max_iter: int) -> Ascent:
    """Climb the dual from f; members that have converged or stalled wait for the others."""
    at, it = dual.at(-unit_mass(dual.terms, -f - dual.terms.V, dual.cell)[1] - dual.terms.V), 0
    failed, residual = np.full(len(f), LATE), np.full(len(f), np.inf)
    for it in range(max_iter + 1):
        d = _direction(dual, at)
        gain = dual.cell * (at.r * d).reshape(len(f), -1).sum(-1)
        residual = np.where(failed == STALLED, residual, _relative(dual, at, gain))
        failed = np.where((failed == LATE) & (residual <= tol), OK, failed)
        if not (failed == LATE).any() or it == max_iter:
            break
        at, stuck = _search(dual, at, d, gain, failed == LATE, smooth=it < SMOOTH)
        failed = np.where(stuck, STALLED, failed)
    return Ascent(at, residual, failed, it)


def _relative(dual: Dual | LineDual, at: Point, gain: Array) -> Array:
    """The decrement as a displacement relative to that of the step, or the relative gap if that is larger.

    In the plane also the total variation between nu and S_# mu: specks weigh little in the others.
    """
    least = (0.01 * min(dual.spacing)) ** 2
    way = np.sqrt(np.abs(gain) * dual.tau / np.maximum(at.cost, least))
    axes, internal = tuple(range(1, at.f.ndim)), dual.terms.internal
    rho = np.maximum(at.pushed, 0)
    size = np.abs(rho * dual.terms.V).sum(axes) + np.abs(internal.energy(rho).sum(axes))
    f = at.f - (at.f * at.pushed).sum(axes, keepdims=True) / at.pushed.sum(axes, keepdims=True)
    gap = np.abs((f * at.r).sum(axes)) / (size + at.cost / (2 * dual.tau * dual.cell))
    apart = 0.0 if len(axes) == 1 else dual.cell * np.abs(at.r).sum(axes) / 2
    return np.asarray(np.maximum(np.maximum(way, gap), apart))


def _direction(dual: Dual | LineDual, at: Point) -> Array:
    """Solves (U*'' - div K grad) d = r, the model of a Newton step."""
    model, D = dual.model(at), len(dual.spacing)
    A = multigrid.operator(model.mass + 1e-12 * model.mass.max(), model.edges, model.cross, dual.spacing)
    b = at.r.reshape(len(at.f), -1)
    return multigrid.solve(A, multigrid.hierarchy(A, at.f.shape, D), b, tol=1e-2).reshape(at.f.shape)


def _search(
    dual: Dual | LineDual, at: Point, d: Array, gain: Array, active: NDArray[np.bool_], *, smooth: bool
) -> tuple[Point, NDArray[np.bool_]]:
    """Halve the step of each member until its dual climbs; the second answer marks those that cannot.

    Early on, phi is continued smoothly into the vacuum afterwards, unless that undoes the progress.
    """
    axes = tuple(range(1, d.ndim))
    t = np.where(active, 1.0, 0.0)
    while True:
        new = dual.at(at.f + np.expand_dims(t, axes) * d, at.u)
        poor = (t > 0) & ~(at.J + 0.1 * t * gain - 1e-12 * np.abs(at.J) <= new.J)
        if not poor.any():
            break
        t = np.where(poor, np.where(t < SHORTEST, 0.0, t / 2), t)
    if smooth and not new.full.all():
        other = dual.at(np.where(np.expand_dims(t > 0, axes), extend(new.f, new.full), at.f), new.u)
        good = np.expand_dims(other.J + gain - at.J >= 0, axes)
        new = other if good.all() else dual.at(np.where(good, other.f, new.f), new.u)
    return new, active & (t == 0)


def unit_mass(terms: Terms, p: Array, cell: float) -> tuple[Array, Array]:
    """density(p + c), of mass one, and p + c, the constants c of the members by safe Newton steps."""
    axes = tuple(range(1, p.ndim))
    low, high = np.full(len(p), -NEVER), np.full(len(p), NEVER)
    c, stride = np.zeros(len(p)), np.full(len(p), 1e-3 * (1 + np.abs(p).max()))
    for _ in range(200):
        q = p + np.expand_dims(c, axes)
        rho = terms.internal.density(q)
        excess = np.minimum(cell * rho.sum(axes), 1e100) - 1
        if (np.abs(excess) <= 1e-13).all():
            break
        low, high = np.where(excess < 0, c, low), np.where(excess > 0, c, high)
        slope = cell * terms.internal.curvature(q).sum(axes)
        new = c - excess / np.maximum(slope, 1e-100)
        far = c - np.sign(excess) * stride
        middle = np.where(high - low < NEVER, (low + high) / 2, far)
        stride = 2 * stride
        c = np.where((new > low) & (new < high) & (np.abs(new - c) < stride), new, middle)
    return rho / (1 + np.expand_dims(excess, axes)), q
