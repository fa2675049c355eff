"""Cubic splines on grids with even reflection at the walls: values, slopes, and deposits of mass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray
from scipy.ndimage import spline_filter1d

Array = NDArray[np.float64]


class Jet(NamedTuple):
    """A function at k points: value (k,), gradient (D, k), Hessian (D, D, k)."""

    value: Array
    slope: Array
    bend: Array


def coefficients(f: Array, D: int) -> Array:
    """The c with f_i = sum_k c_k B(i - k), B the cubic B-spline, along the last D axes.

    >>> import numpy as np
    >>> from otflow.steppers.jko.grid.spline import coefficients
    >>> np.allclose(coefficients(np.ones(6), 1), 1.0)
    True
    """
    for axis in range(f.ndim - D, f.ndim):
        f = spline_filter1d(f, order=3, axis=axis, mode="reflect")
    return f


def weights(t: Array) -> tuple[Array, Array, Array]:
    """B(t + 1 - k) for k = 0..3 and its two derivatives, each (4, *t.shape), for t in [0, 1]."""
    s = 1 - t
    value = np.stack([s**3, 4 - 6 * t**2 + 3 * t**3, 4 - 6 * s**2 + 3 * s**3, t**3]) / 6
    slope = np.stack([-(s**2), 3 * t**2 - 4 * t, 4 * s - 3 * s**2, t**2]) / 2
    bend = np.stack([s, 3 * t - 2, 3 * s - 2, t])
    return value, slope, bend


class Stencil:
    """The 4^D nodes around points u, (D, k), in units of cells; point k belongs to block member[k]."""

    def __init__(self, u: Array, member: NDArray[np.intp], shape: tuple[int, ...]) -> None:
        base = [np.clip(np.floor(a), -1, n - 1).astype(np.intp) for a, n in zip(u, shape, strict=True)]
        self.w = [weights(a - b) for a, b in zip(u, base, strict=True)]
        self.D, self.size = len(shape), int(np.prod(shape))
        index: Any = (member * self.size)[None]
        for a, n in enumerate(shape):
            k = base[a] + np.arange(-1, 3)[:, None]
            k = np.where(k < 0, -1 - k, np.where(k >= n, 2 * n - 1 - k, k))
            stride = int(np.prod(shape[a + 1 :]))
            index = (index[:, None] + stride * k[None]).reshape(-1, u.shape[1])
        self.index = index  # (4^D, k)

    def weigh(self, orders: tuple[int, ...]) -> Array:
        """Tensor weights (4^D, k) for derivatives of the given order along each axis."""
        out = self.w[0][orders[0]]
        for w, order in zip(self.w[1:], orders[1:], strict=True):
            out = (out[:, None] * w[order][None]).reshape(-1, out.shape[-1])
        return out

    def jet(self, c: Array, spacing: tuple[float, ...]) -> Jet:
        """Value, gradient and Hessian of the spline with coefficients c."""
        parts = self._parts(c.ravel()[self.index].reshape(*(4,) * self.D, -1), self.D, 2)
        unit, h = np.eye(self.D, dtype=int), np.asarray(spacing)
        slope = np.stack([parts[tuple(e)] / a for e, a in zip(unit, h, strict=True)])
        pairs = [[parts[tuple(e + g)] for g in unit] for e in unit]
        bend = np.stack([np.stack(row) for row in pairs]) / (h[:, None] * h)[..., None]
        return Jet(parts[(0,) * self.D], slope, bend)

    def _parts(self, patch: Array, axes: int, most: int) -> dict[tuple[int, ...], Array]:
        """Every mixed derivative of total order at most ``most`` along the first axes of a patch."""
        if axes == 0:
            return {(): patch}
        out = {}
        for order in range(most + 1):
            inner = np.einsum("...ik,ik->...k", patch, self.w[axes - 1][order])
            rest = self._parts(inner, axes - 1, most - order)
            out.update({(*orders, order): part for orders, part in rest.items()})
        return out

    def matrix(self, blocks: int) -> Any:
        """The sparse (grid, points) matrix that deposits masses with the B-spline."""
        k = self.index.shape[1]
        data, rows = self.weigh((0,) * self.D).T.ravel(), self.index.T.ravel()
        return sparse.csc_array(
            (data, rows, np.arange(k + 1) * len(self.index)), shape=(blocks * self.size, k)
        )
