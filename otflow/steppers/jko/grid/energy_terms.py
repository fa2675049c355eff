"""The terms of an energy on a grid: one internal energy and a potential, as the dual of a step needs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from otflow.base import checks
from otflow.energies import Energy, Interaction, Potential
from otflow.energies.internal import DensityBound, Internal
from otflow.measures import Grid

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Conjugate:
    """c U*(p / c) and its slope, the density, for the internal energy c U; arrays in and out."""

    U: Internal
    c: float

    def value(self, p: Array) -> Array:
        return self.c * _applied(self.U.conjugate, p / self.c)

    def density(self, p: Array) -> Array:
        return _applied(self.U.density, p / self.c)

    def curvature(self, p: Array) -> Array:
        """The slope of the density by differences, which stay finite where U* has a corner."""
        d = 1e-6 * self.c * (1 + np.abs(p / self.c))
        up, down = self.density(p + d), self.density(p - d)
        here = np.minimum(self.density(p), 1e100)  # beyond the end of U*, where no iterate stays
        return np.where(np.isfinite(up), np.minimum(up, 1e100) - down, 2 * (here - down)) / (2 * d)

    def secant(self, p: Array, goal: Array) -> Array:
        """The slope of the density for a model that is to reach ``goal`` from p; the tangent will do."""
        return self.curvature(p)

    def energy(self, rho: Array) -> Array:
        """c U(rho), elementwise."""
        return self.c * _applied(self.U.U, rho)

    def inverse(self, rho: Array) -> Array:
        """A p at which the density is about rho; the floor keeps logarithms finite in a vacuum."""
        floor = 1e-9 * rho.max(axis=tuple(range(1, rho.ndim)), keepdims=True)
        return self.c * _applied(self.U.slope, np.maximum(rho, floor))

    def wider(self, factor: float) -> Conjugate:
        """An easier problem nearby; itself where the density is continuous in p."""
        return self

    def eases(self, V: Array) -> int:
        """How many times `wider` by four makes the problem easy."""
        return 0

    def carry(self, p: Array, factor: float) -> Array:
        """The p that has here the density which p had in a problem ``factor`` times as wide."""
        return p


def _applied(f: Callable[[Tensor], Tensor], p: Array) -> Array:
    return np.asarray(f(torch.from_numpy(np.ascontiguousarray(p))))


@dataclass(frozen=True)
class Bounded(Conjugate):
    """The bound rho <= limit, with U*(p) = limit max(p, 0) averaged over a window of half-width w.

    The density then climbs from 0 to limit over the window, which is to add (w / limit) int rho^2.
    """

    limit: float
    w: float

    def value(self, p: Array) -> Array:
        inside = np.clip((p + self.w) / (2 * self.w), 0, 1)
        return self.limit * (self.w * inside**2 + np.maximum(p - self.w, 0))

    def density(self, p: Array) -> Array:
        return self.limit * np.clip((p + self.w) / (2 * self.w), 0, 1)

    def curvature(self, p: Array) -> Array:
        return np.where(np.abs(p) < self.w, 1.0, 1e-6) * self.limit / (2 * self.w)

    def secant(self, p: Array, goal: Array) -> Array:
        """The slope between p and where the density is ``goal``: tangents overshoot the corners."""
        way, rise = p - self.inverse(goal), self.density(p) - goal
        slope = np.where(way * rise > 0, rise / np.where(way == 0, 1.0, way), 0.0)
        return np.maximum(self.curvature(p), slope)

    def energy(self, rho: Array) -> Array:
        return np.zeros_like(rho)

    def inverse(self, rho: Array) -> Array:
        return self.w * (2 * np.minimum(rho / self.limit, 1) - 1)

    def wider(self, factor: float) -> Conjugate:
        return Bounded(self.U, self.c, self.limit, self.w * factor)

    def eases(self, V: Array) -> int:
        return max(0, math.ceil(math.log(max(0.1 * float(np.ptp(V)) / self.w, 1.0), 4)))

    def carry(self, p: Array, factor: float) -> Array:
        inside = np.clip(p, -factor * self.w, factor * self.w)
        return p - inside + inside / factor


@dataclass(frozen=True)
class Terms:
    """F(rho) = int c U(rho) + int V rho, V of shape (members, n_1, .., n_D)."""

    internal: Conjugate
    V: Array


def split(energy: Energy, mu: Grid, tau: float) -> Terms:
    """The internal term and the sum of all others as a potential at the nodes of mu.

    Interactions are linearised at mu, W * mu: the step is implicit in the rest and explicit in them, first
    order in time like the scheme.
    """
    internal, V = [], torch.zeros_like(mu.density, dtype=torch.float64)
    for term, factor in energy.pairs():
        if isinstance(term, Internal):
            internal.append((term, factor))
        else:
            V = V + factor * _potential(term, mu)
    U, c = _only(internal, energy)
    return Terms(_conjugate(U, c, mu, tau), V.reshape(-1, *mu.density.shape[len(mu.batch) :]).numpy())


def _only(internal: list[tuple[Internal, float]], energy: Energy) -> tuple[Internal, float]:
    if len(internal) != 1:
        rule = f"a JKO step on a Grid needs exactly one internal energy, and here are {len(internal)}"
        remedy = "add Entropy(), PorousMedium(m) or DensityBound(limit), or use Particles without one"
        checks.fail("energy", [repr(term) for term, _ in energy.pairs()], rule, remedy)
    U, c = internal[0]
    checks.require(
        c > 0, f"factor of {U!r}", c, "an internal energy must be convex", f"pass {abs(c) or 1.0:g} * {U!r}"
    )
    return U, c


@singledispatch
def _potential(term: Energy, mu: Grid) -> Tensor:
    rule = "a JKO step on a Grid does not support this term"
    checks.fail("energy", repr(term), rule, "use internal energies, Potential and Interaction, or Particles")


@_potential.register(Potential)
@_potential.register(Interaction)
def _(term: Energy, mu: Grid) -> Tensor:
    V = term.differential(mu)[0].detach() / mu.cell
    return checks.finite(V.to(torch.float64), f"first variation of {term!r:.40}")


@singledispatch
def _conjugate(U: Internal, c: float, mu: Grid, tau: float) -> Conjugate:
    return Conjugate(U, c)


@_conjugate.register(DensityBound)
def _(U: DensityBound, c: float, mu: Grid, tau: float) -> Conjugate:
    volume = math.prod(mu.density.shape[len(mu.batch) :]) * mu.cell
    rule = f"a unit of mass does not fit under {U!r} in this box"
    remedy = f"pass DensityBound({math.ceil(100 / volume) / 100:g}) or more, or wider axes"
    checks.require(U.limit * volume >= 1, "limit * volume of the box", U.limit * volume, rule, remedy)
    window = 0.1 * min(mu.spacing) ** 2 / tau  # spreads a free density by less than half a cell a step
    return Bounded(U, 1.0, U.limit, window)
