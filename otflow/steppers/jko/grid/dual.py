"""The dual of a JKO step on a grid, for cubic-spline potentials and mass that moves from the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, minimum_filter

from otflow.base.multigrid import spans
from otflow.steppers.jko.grid.energy_terms import Terms
from otflow.steppers.jko.grid.spline import Array, Stencil, coefficients

SOFT = 0.05  # eigenvalues of DT below this are lifted to it, because phi is not (yet) c-concave there; chosen
CLOSE = 1e-5  # cells; rounding: after a Newton step this short the error is its square
# Factor on K, because splines at the mesh width are stiffer than second differences, by up to 2.3; chosen
# between 1 and that.
STIFFER = 1.5
# Part of the largest K that is added everywhere, so that corrections reach smoothly into the vacuum;
# chosen.
FLOOR = 1e-3
INNER = 15  # Newton steps for the targets of the particles, at most; chosen


@dataclass(frozen=True)
class CellParticles:
    """The mass m, (k,), of the old density at the places x, (D, k), in cells; k runs over all members."""

    x: Array
    m: Array
    member: NDArray[np.intp]


@dataclass(frozen=True)
class Point:
    """The dual at a potential: its value, the pieces of its gradient and of a model of its Hessian."""

    f: Array  # (members, n_1, .., n_D): phi at the nodes
    u: Array  # (D, k): where the particles go, in cells
    full: NDArray[np.bool_]  # the nodes next to particles
    J: Array  # (members,)
    cost: Array  # (members,): int |S(x) - x|^2 dmu
    pushed: Array  # the density of S_# mu
    r: Array  # density(-phi - V) - pushed, minus the gradient of J
    K: Array  # (D, D, members, n_1, .., n_D): int tau DT^-1 dS_# mu around each node
    stretch: Array  # (k,): the norm of DS, how far neighbours are drawn apart


class Model(NamedTuple):
    """The operator delta -> mass delta - div(K grad delta), as `multigrid.operator` takes it."""

    mass: Array
    edges: list[Array]
    cross: Array | None


@dataclass(frozen=True)
class Dual:
    """J(phi) = int phi^c dmu - int U*(-phi - V), phi^c(x) = min over y of |x - y|^2 / (2 tau) - phi(y).

    It is concave, its maximum is the minimum of F(nu) + W2(nu, mu)^2 / (2 tau), and its gradient is
    S_# mu - (U*)'(-phi - V), S(x) the minimiser (Jacobs, Lee, Leger 2021, section 3). Here phi is the cubic
    spline through its values at the nodes and mu a sum of point masses at the nodes; S solves
    x = S - tau grad phi(S) to rounding. The gradient in the node values is then what the interpolating
    spline makes of the deposited mass: fourth order in the mesh, and every particle of mass is kept.
    """

    terms: Terms
    spacing: tuple[float, ...]
    tau: float
    mu: CellParticles

    @property
    def cell(self) -> float:
        return float(np.prod(self.spacing))

    def at(self, f: Array, u: Array | None = None) -> Point:
        """The dual at f, the search for S beginning at u, or at rest."""
        D, shape = len(self.spacing), f.shape[1:]
        c = coefficients(f, D)
        u, stencil = self._targets(c, self.mu.x if u is None else u, shape)
        jet = stencil.jet(c, self.spacing)
        squares = (((u - self.mu.x) * np.asarray(self.spacing)[:, None]) ** 2).sum(0)
        inverse = _inverse(np.eye(D)[..., None] - self.tau * jet.bend)
        loads = np.concatenate([np.ones((1, u.shape[1])), self.tau * inverse.reshape(D * D, -1)])
        deposit = (stencil.matrix(len(f)) @ (self.mu.m * loads).T).T / self.cell
        pushed = coefficients(deposit[0].reshape(f.shape), D)
        p = -f - self.terms.V
        cost = self.total(self.mu.m * squares)
        J = cost / (2 * self.tau) - self.total(self.mu.m * jet.value)
        J = J - self.cell * self.terms.internal.value(p).reshape(len(f), -1).sum(-1)
        full = occupied(u, self.mu.member, f.shape)
        r = self.terms.internal.density(p) - pushed
        stretch = np.sqrt(np.einsum("abk,abk->k", inverse, inverse))
        return Point(f, u, full, J, cost, pushed, r, deposit[1:].reshape(D, D, *f.shape), stretch)

    def model(self, at: Point) -> Model:
        """The Hessian of -J as an elliptic operator on node values: U*'' - tau div(rho DT^-1 grad)."""
        D = len(self.spacing)
        K, top = STIFFER * at.K, at.K.max(axis=tuple(range(-D, 0)), keepdims=True)
        edges = []
        for a in range(D):
            first, last = spans(a + 1, D + 1)
            node = K[a, a] + FLOOR * top[a, a]
            edges.append((node[first] + node[last]) / 2)
        mass = self.terms.internal.secant(-at.f - self.terms.V, np.maximum(at.pushed, 0))
        return Model(mass, edges, K[0, 1] if D == 2 else None)

    def total(self, q: Array) -> Array:
        """Sums over the particles of each member."""
        return np.asarray(np.bincount(self.mu.member, q, minlength=len(self.terms.V)), dtype=float)

    def _targets(self, c: Array, u: Array, shape: tuple[int, ...]) -> tuple[Array, Stencil]:
        """S(x), by Newton's method for |x - y|^2 / 2 - tau phi(y) with steps of at most a cell."""
        h, top = np.asarray(self.spacing)[:, None], np.asarray(shape)[:, None] - 0.5
        u, todo = u.copy(), np.arange(u.shape[1])
        for _ in range(INNER):
            stencil = Stencil(u[:, todo], self.mu.member[todo], shape)
            jet = stencil.jet(c, self.spacing)
            g = (u[:, todo] - self.mu.x[:, todo]) * h - self.tau * jet.slope
            inverse = _inverse(np.eye(len(h))[..., None] - self.tau * jet.bend)
            s = -np.einsum("abk,bk->ak", inverse, g) / h
            s /= np.maximum(1, np.abs(s).max(0))
            u[:, todo] = np.clip(u[:, todo] + s, -0.5, top)
            todo = todo[np.abs(s).max(0) > CLOSE]
            if not len(todo):
                break
        return u, Stencil(u, self.mu.member, shape)


def _inverse(A: Array) -> Array:
    """Inverses of symmetric matrices (D, D, k), D <= 2, lifted to eigenvalues >= SOFT."""
    if len(A) == 1:
        return 1 / np.maximum(A, SOFT)
    a, b, d = A[0, 0], A[0, 1], A[1, 1]
    low = (a + d) / 2 - np.hypot((a - d) / 2, b)
    lift = np.maximum(SOFT - low, 0)
    a, d = a + lift, d + lift
    return np.stack([np.stack([d, -b]), np.stack([-b, a])]) / (a * d - b * b)


def particles(mu: Array, parts: NDArray[np.intp]) -> CellParticles:
    """Point masses from the masses of cells, parts^D of them in a cell, alike shapes (members, n_1, .., n_D).

    Within a cell the density is the interpolating spline, so that finer particles do not blur.
    """
    c = coefficients(mu, mu.ndim - 1)
    top = mu.max(axis=tuple(range(1, mu.ndim)), keepdims=True)
    some = np.where(mu > 1e-15 * top, parts, 0)
    pieces = [_pieces(mu, c, some == k, int(k)) for k in np.unique(some) if k]
    x, m, member = (np.concatenate([piece[i] for piece in pieces], -1) for i in range(3))
    whole = mu.reshape(len(mu), -1).sum(-1) / np.bincount(member, m, minlength=len(mu))
    return CellParticles(x, m * whole[member], member)


def _pieces(mu: Array, c: Array, where: NDArray[np.bool_], k: int) -> tuple[Array, Array, NDArray[np.intp]]:
    """Places, masses and members of the k^D particles in each of the cells marked."""
    member, *index = np.nonzero(where)
    D, m = len(index), mu[where]
    if k == 1:
        return np.stack(index).astype(float), m, member
    shifts = [(np.arange(k) + 0.5) / k - 0.5] * D
    grid = np.stack(np.meshgrid(*shifts, indexing="ij")).reshape(D, 1, -1)
    x = (np.stack(index)[..., None] + grid).reshape(D, -1)
    member = np.repeat(member, k**D)
    near = Stencil(x, member, mu.shape[1:]).jet(c, (1.0,) * D).value.reshape(len(m), -1)
    near = np.clip(near, 1e-3 * m[:, None], 2 * m[:, None])
    return x, (m[:, None] * near / near.sum(-1, keepdims=True)).ravel(), member


def occupied(u: Array, member: NDArray[np.intp], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """The nodes at the corners of the cells of the dual mesh that hold mass."""
    full = np.zeros(shape, dtype=bool)
    for corner in np.ndindex(*(2,) * len(u)):
        near = [
            np.clip(np.floor(a) + k, 0, n - 1).astype(int)
            for a, k, n in zip(u, corner, shape[1:], strict=True)
        ]
        full[(member, *near)] = True
    return full


def extend(f: Array, full: NDArray[np.bool_]) -> Array:
    """f continued linearly from the occupied nodes into the vacuum, where the dual does not see it.

    There phi only has to be smooth and to rise, so that mass finds its way when the support grows.
    """
    D = f.ndim - 1
    core = minimum_filter(full, size=(1, *(3,) * D), mode="reflect")
    if full.all() or not core.reshape(len(f), -1).any(-1).all():
        return f
    apart = (1e9, *(1.0,) * D)  # members of a batch are far from each other
    home = distance_transform_edt(~core, sampling=apart, return_distances=False, return_indices=True)
    near = tuple(home)
    out = f[near]
    for axis in range(1, f.ndim):
        out = out + _central(f, axis)[near] * (np.indices(f.shape, sparse=True)[axis] - home[axis])
    return np.where(full, f, out)


def _central(f: Array, axis: int) -> Array:
    """Half the difference of the two neighbours; even reflection at the walls."""
    first, last = spans(axis, f.ndim)
    step = np.diff(f, axis=axis) / 2
    out = np.zeros_like(f)
    out[first] += step
    out[last] += step
    return out
