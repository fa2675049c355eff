"""Multigrid for degenerate elliptic systems on grids, as the preconditioner of conjugate gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sparse
import scipy.sparse.linalg as direct
from numpy.typing import NDArray

Array = NDArray[np.float64]
COARSE = 24  # nodes along an axis below which a factorisation is cheaper than another level; chosen
DAMPING = 0.8  # of the Jacobi smoother; customary: 4/5 smooths best for the five-point Laplacian


def operator(mass: Array, edges: Sequence[Array], cross: Array | None, spacing: Sequence[float]) -> Any:
    """delta -> mass delta - div(K grad delta) with no flux through the walls, a symmetric sparse matrix.

    ``edges`` holds K_aa on the edges along each axis; ``cross`` is K_12 at the nodes of the plane, where it
    pairs central differences. On smooth K the symbol is that of the compact second differences, and the
    matrix is positive definite if edge values are means of node values of a positive definite K. Members of
    a batch, (*batch, n_1, .., n_D), are blocks of one matrix.

    >>> import numpy as np
    >>> from otflow.base.multigrid import operator
    >>> operator(np.zeros(3), [np.ones(2)], None, [1.0]).toarray()
    array([[ 1., -1.,  0.],
           [-1.,  2., -1.],
           [ 0., -1.,  1.]])
    """
    D = len(spacing)
    shape = mass.shape[mass.ndim - D :]
    strides = [int(np.prod(shape[a + 1 :])) for a in range(D)]
    diagonal, bands = mass.copy(), {}
    for a, h in enumerate(spacing):
        axis = mass.ndim - D + a
        edge = edges[a] / h**2
        first, last = spans(axis, mass.ndim)
        diagonal[first] += edge
        diagonal[last] += edge
        bands[strides[a]] = _filled(-edge, mass.shape, first)
    if cross is not None:
        k = _interior(cross) / (4 * spacing[0] * spacing[1])
        bands[strides[0] + strides[1]], bands[strides[0] - strides[1]] = _corners(k)
    return _banded(diagonal, bands)


def spans(axis: int, ndim: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Everything but the last, and everything but the first, along an axis."""
    whole = [slice(None)] * ndim
    first, last = list(whole), list(whole)
    first[axis], last[axis] = slice(None, -1), slice(1, None)
    return tuple(first), tuple(last)


def _filled(values: Array, shape: tuple[int, ...], where: tuple[slice, ...]) -> Array:
    out = np.zeros(shape)
    out[where] = values
    return out


def _interior(k: Array) -> Array:
    """k with zeros at the walls, where mixed derivatives of even functions vanish."""
    inner = (..., slice(1, -1), slice(1, -1))
    out = np.zeros_like(k)
    out[inner] = k[inner]
    return out


def _corners(k: Array) -> tuple[Array, Array]:
    """Couplings of (i, j) to (i+1, j+1) and to (i+1, j-1) from k times two central differences."""
    up, down = np.zeros_like(k), np.zeros_like(k)
    up[..., :-1, :-1] = -k[..., :-1, 1:] - k[..., 1:, :-1]
    down[..., :-1, 1:] = k[..., :-1, :-1] + k[..., 1:, 1:]
    return up, down


def _banded(diagonal: Array, bands: dict[int, Array]) -> Any:
    n = diagonal.size
    data, offsets = [diagonal.ravel()], [0]
    for offset, values in bands.items():
        band = values.ravel()
        data += [np.concatenate([np.zeros(offset), band[: n - offset]]), band]
        offsets += [offset, -offset]
    return sparse.dia_array((np.stack(data), offsets), shape=(n, n)).tocsr()


@dataclass(frozen=True)
class MultigridLevel:
    """One grid of the hierarchy: its matrix, what divides a Jacobi sweep, the way up from the next one."""

    A: Any
    D: Array
    P: Any


@dataclass(frozen=True)
class Hierarchy:
    """Grids from fine to coarse, and the factorised matrix of the coarsest."""

    levels: tuple[MultigridLevel, ...]
    bottom: Any


def hierarchy(A: Any, shape: tuple[int, ...], D: int) -> Hierarchy:
    """Galerkin coarsening by two along the last D axes, with linear interpolation."""
    levels = []
    while D > 1 and min(shape[-D:]) > COARSE:
        P, R = _interpolation(shape, D)
        levels.append(MultigridLevel(A, A.diagonal() / DAMPING, P))
        A = (R @ (A @ P)).tocsr()
        shape = (*shape[:-D], *((n + 1) // 2 for n in shape[-D:]))
    return Hierarchy(tuple(levels), direct.splu(A.tocsc()))


@lru_cache(maxsize=32)
def _interpolation(shape: tuple[int, ...], D: int) -> tuple[Any, Any]:
    P = sparse.identity(int(np.prod(shape[:-D])), format="csr")
    for n in shape[-D:]:
        P = sparse.kron(P, _halves(n), format="csr")
    return P, P.T.tocsr()


def _halves(n: int) -> Any:
    """Every other node of n is kept; those between take the mean, a last one alone its neighbour."""
    i = np.arange(n)
    left, right = i // 2, np.minimum((i + 1) // 2, (n - 1) // 2)
    rows, cols = np.concatenate([i, i]), np.concatenate([left, right])
    return sparse.coo_array((np.full(2 * n, 0.5), (rows, cols)), shape=(n, (n + 1) // 2)).tocsr()


def cycle(grids: Hierarchy, b: Array, depth: int = 0) -> Array:
    """One symmetric V-cycle with two Jacobi sweeps on either side, for A x = b."""
    if depth == len(grids.levels):
        return grids.bottom.solve(b)
    A, D, P = (level := grids.levels[depth]).A, level.D, level.P
    x = b / D
    x += (b - A @ x) / D
    x += P @ cycle(grids, P.T @ (b - A @ x), depth + 1)
    x += (b - A @ x) / D
    x += (b - A @ x) / D
    return x


def solve(A: Any, grids: Hierarchy, b: Array, *, tol: float, max_iter: int = 60) -> Array:
    """x with |A x - b| <= tol |b| for each row of b, (members, n), by conjugate gradients.

    >>> import numpy as np
    >>> from otflow.base.multigrid import hierarchy, operator, solve
    >>> A = operator(np.ones(5), [np.ones(4)], None, [1.0])
    >>> x = solve(A, hierarchy(A, (5,), 1), np.ones((1, 5)), tol=1e-8)
    >>> np.allclose(x, 1.0)
    True
    """
    if not grids.levels:
        return np.asarray(grids.bottom.solve(b.ravel())).reshape(b.shape)
    x, r = np.zeros_like(b), b.copy()
    goal = tol * np.linalg.norm(b, axis=-1)
    p, rz = np.zeros_like(b), np.ones(b.shape[:-1])
    for _ in range(max_iter):
        if (np.linalg.norm(r, axis=-1) <= goal).all():
            break
        z = cycle(grids, r.ravel()).reshape(b.shape)
        rz, old = (r * z).sum(-1), rz
        p = z + (rz / np.where(old > 0, old, 1.0))[..., None] * p
        Ap = (A @ p.ravel()).reshape(b.shape)
        pAp = (p * Ap).sum(-1)
        step = np.where(pAp > 0, rz / np.where(pAp > 0, pAp, 1.0), 0.0)[..., None]
        x += step * p
        r -= step * Ap
    return x
