"""The line: the dual of a JKO step on a one-dimensional grid, where it is exact and conserves mass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from otflow.steppers.jko.grid.dual import Model, Point
from otflow.steppers.jko.grid.energy_terms import Terms
from otflow.steppers.jko.grid.spline import Array

FLOOR = 1e-6  # part of the largest coefficient that stands in for the vacuum, where it would be zero; chosen


@dataclass(frozen=True)
class LineDual:
    """The dual of `grid_dual.Dual` on the line, in finite volumes.

    The face between cells k - 1 and k goes to T_k = y_k - tau (phi_k - phi_{k-1}) / h, and cell k receives
    M(T_{k+1}) - M(T_k), M the distribution function of mu, a monotone cubic in each cell. This is the
    gradient of a concave function of phi, whatever phi, with a tridiagonal Hessian.
    """

    terms: Terms
    spacing: tuple[float, ...]
    tau: float
    mass: Array  # (members, n)

    @property
    def cell(self) -> float:
        return self.spacing[0]

    @cached_property
    def _slopes(self) -> Array:
        """M' at the faces, (members, n + 1): fourth order, limited so that M stays monotone."""
        m = np.pad(self.mass, ((0, 0), (2, 2)), mode="symmetric")
        far, a, b, beyond = m[:, :-3], m[:, 1:-2], m[:, 2:-1], m[:, 3:]
        low, high = np.minimum(a, b), np.maximum(a, b)
        return np.minimum(np.clip((7 * (a + b) - far - beyond) / 12, low, high), 3 * low)

    @cached_property
    def _cubics(self) -> Array:
        """(members, n, 4): M in cell k is M_k + c_1 s + c_2 s^2 + c_3 s^3, 0 <= s <= 1."""
        e, m = self._slopes, self.mass
        left = np.cumsum(m, -1) - m
        return np.stack([left, e[:, :-1], 3 * m - 2 * e[:, :-1] - e[:, 1:], e[:, :-1] + e[:, 1:] - 2 * m], -1)

    @cached_property
    def _areas(self) -> Array:
        """The integral of M up to each face, in cells."""
        whole = (self._cubics / np.arange(1, 5)).sum(-1)
        return np.pad(np.cumsum(whole, -1), ((0, 0), (1, 0)))

    @cached_property
    def _ends(self) -> Array:
        """Where the mass begins and ends, in cells, (members, 2)."""
        there = self.mass > 1e-9 * self.mass.max(-1, keepdims=True)
        return np.stack([there.argmax(-1), there.shape[1] - there[:, ::-1].argmax(-1)], -1)

    def _at(self, T: Array) -> tuple[Array, Array, Array]:
        """M', M and its integral at T, in cells; beyond the walls there is no mass."""
        n = self.mass.shape[1]
        k = np.clip(np.floor(T), 0, n - 1).astype(np.intp)
        s, over = np.clip(T - k, 0, 1), np.maximum(T - n, 0)
        c = np.take_along_axis(self._cubics, k[..., None], 1)
        M = c[..., 0] + s * (c[..., 1] + s * (c[..., 2] + s * c[..., 3]))
        slope = c[..., 1] + s * (2 * c[..., 2] + 3 * s * c[..., 3])
        area = s * (c[..., 0] + s * (c[..., 1] / 2 + s * (c[..., 2] / 3 + s * c[..., 3] / 4)))
        area = area + np.take_along_axis(self._areas, k, 1) + over * self.mass.sum(-1, keepdims=True)
        return np.where(np.abs(T - n / 2) < n / 2, slope, 0.0), M, area

    def at(self, f: Array, u: Array | None = None) -> Point:
        """The dual at f."""
        h, n = self.cell, f.shape[1]
        faces = np.arange(1.0, n)
        T = faces - self.tau * np.diff(f, axis=1) / h**2
        slope, M, area = self._at(T)
        total = self.mass.sum(-1)
        still = np.broadcast_to(self._areas[:, 1:-1], area.shape)
        lead = h**2 / self.tau * (still - area).sum(-1) - f[:, -1] * total
        moved = np.diff(np.pad(M, ((0, 0), (1, 0))), axis=1, append=total[:, None])
        p = -f - self.terms.V
        J = lead - h * self.terms.internal.value(p).sum(-1)
        # Mass at a wall comes from where the mass ends, and not from the wall.
        first, last = np.minimum(self._ends[:, :1], T[:, :1]), np.maximum(self._ends[:, 1:], T[:, -1:])
        way = np.concatenate([-first, faces - T, n - last], 1) * h
        squares = (way[:, 1:] ** 2 + way[:, 1:] * way[:, :-1] + way[:, :-1] ** 2) / 3
        r = self.terms.internal.density(p) - moved / h
        top = moved.max(-1, keepdims=True)
        K = self.tau * slope / h
        return Point(f, f, moved > 1e-12 * top, J, (moved * squares).sum(-1), moved / h, r, K, np.ones(1))

    def model(self, at: Point) -> Model:
        """The Hessian of -J, exact but for the vacuum."""
        edges = at.K + FLOOR * at.K.max(-1, keepdims=True)
        return Model(
            self.terms.internal.secant(-at.f - self.terms.V, np.maximum(at.pushed, 0)), [edges], None
        )
