"""W2 between densities that are close, on the same cells of a plane or of space, by a dual norm with bounds.

For mu and nu = mu + f with the mean m = (mu + nu) / 2 let phi solve -div(m grad phi) = f without flux through
the walls. Then

    |f|_{H^-1(m)}^2 = int |grad phi|^2 dm = int f phi dx

is W2(mu, nu)^2 up to the square of the displacement over the length on which the densities vary.

From above: J = m grad phi carries mu into nu, so that the path of densities mu + s f is one of action

    C int (s (1 - s))^theta ds |J|^2 / (mu + s f),    C = B(1 - theta, 1 - theta),

when it is run through with speed s' = C (s (1 - s))^theta (Benamou and Brenier 2000). This bounds W2^2 for
every theta in [0, 1), also where one density is 0, if theta > 0. Within a cell J is affine along each axis,
with the fluxes through the walls (Raviart and Thomas), so that the bound is one for densities constant on
cells.

From below: along the geodesic rho_s, of speed v, int phi df = int int grad phi . v drho_s ds, and so

    (int phi df)^2 <= W2^2 int int |grad phi|^2 drho_s ds <= W2^2 (int |grad phi|^2 dm + int K |v|^2 dm / 12),

where -K is the least eigenvalue of the second derivatives of |grad phi|^2; v = grad phi to leading order. The
second bound is computed by differences: it is an estimate.

References: Peyre 2018, "Comparison between W2 distance and H^-1 norm, and localization of Wasserstein
distance"; Santambrogio 2015, "Optimal transport for applied mathematicians", Section 5.5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import generate_binary_structure, label, maximum_position
from scipy.special import beta, hyp2f1

from otflow.base import multigrid
from otflow.base.multigrid import spans

Array = NDArray[np.float64]

SOLVED = 1e-12  # relative residual of the equation for phi; chosen: what is not carried counts by its root
THIN = 1e-16  # of the largest density, below which nothing flows; chosen at rounding: its mass counts as left
ROUNDING = 1e-12  # of the mass of an island, within which it counts as kept; chosen: cells times rounding
SWEEPS = 200  # of conjugate gradients, at most; chosen
PACES = (0.0, 0.01, 0.03, 0.1, 0.3)  # theta: 0 is best for comparable densities, more where one has no mass


@dataclass(frozen=True)
class DualNorm:
    """The potential of f = nu - mu, |f|_{H^-1(m)}, and bounds between which W2 lies; all (B,) but for phi.

    ``phi`` is a potential in all cells only if ``full``, that is if none counts as empty. ``motion`` is
    ``high`` for a law in motion, of which the densities are the masses in cells: its front may advance within
    a cell rather than fill it at once. The flux through the wall behind the front is then right, and the
    density beside it off by a factor of two at most, so that the action of the wall is its own error.
    """

    phi: Array  # (B, n_1, .., n_D)
    full: NDArray[np.bool_]
    value: Array
    low: Array
    high: Array
    motion: Array


def dual_norm(mu: Array, nu: Array, spacing: tuple[float, ...]) -> DualNorm:
    """|nu - mu|_{H^-1((mu + nu) / 2)} of densities (B, n_1, .., n_D) on cells, with bounds for W2.

    >>> import numpy as np
    >>> from otflow.transport.exact.close_densities import dual_norm
    >>> x = (np.arange(40) + 0.5) / 40
    >>> mu = np.ones((1, 40, 40))
    >>> found = dual_norm(mu, mu + 1e-3 * np.cos(np.pi * x), (1 / 40, 1 / 40))
    >>> round(float(found.value[0] * np.pi * np.sqrt(2) / 1e-3), 3)  # |cos(pi x)|_{H^-1} = 1 / (pi sqrt(2))
    1.0
    """
    mean, cell = _thick((mu + nu) / 2), float(np.prod(spacing))
    island, count = _islands(mean)
    f = _balanced(nu - mu, mean, island, count)
    edges = [_edges(mean, a) for a in range(1, mean.ndim)]
    tops = maximum_position(mean, island, np.arange(1, count + 1))
    poisson = _Poisson(edges, tied=tuple(np.transpose(tops)), empty=island == 0, spacing=spacing)
    phi = poisson.solve(f)
    slopes = poisson.slopes(phi)
    kept = sum(_total(k * g**2) for k, g in zip(edges, slopes, strict=True)) * cell
    square = np.maximum(2 * _total(f * phi) * cell - kept, 0)  # the dual problem: errors of phi count squared
    bent = _bent(mean, edges, slopes, spacing) * cell
    value = np.sqrt(square)
    low = square / np.sqrt(np.where(square > 0, square + bent, 1.0))
    fluxes, rest = poisson.carry(f, phi)
    full = np.asarray((island > 0).reshape(len(mean), -1).all(-1))
    walls = _beside([k * g**2 for k, g in zip(edges, slopes, strict=True)], mean)
    high, motion = (z + _left(rest, spacing) for z in _actions(mu, nu, fluxes, walls, spacing))
    return DualNorm(phi, full, value, low, high, motion)


def _thick(mean: Array) -> Array:
    """Cells of next to no mass count as empty, because coefficients of any size would defeat multigrid."""
    return np.where(mean > THIN * mean.max(axis=tuple(range(1, mean.ndim)), keepdims=True), mean, 0.0)


def _islands(mean: Array) -> tuple[NDArray[np.int32], int]:
    """The number of the connected set of cells with mass that a cell belongs to, 0 without mass; how many."""
    near = generate_binary_structure(mean.ndim, 1)
    near[0], near[2] = False, False  # members of the batch are no neighbours
    return label(mean > 0, near)


def _balanced(f: Array, mean: Array, island: NDArray[np.int32], count: int) -> Array:
    """f without the mass that rounding, but nothing else, adds to an island or takes from it."""
    sums = [np.bincount(island.ravel(), z.ravel(), minlength=count + 1) for z in (f, mean)]
    share = sums[0] / np.where(sums[1] > 0, sums[1], 1.0)
    return f - mean * np.where(np.abs(share) <= ROUNDING, share, 0.0)[island]


def _edges(mean: Array, axis: int) -> Array:
    """The mean density beside the walls between cells, 0 unless both of them have mass."""
    first, last = spans(axis, mean.ndim)
    a, b = mean[first], mean[last]
    return np.where((a > 0) & (b > 0), (a + b) / 2, 0.0)


class _Poisson:
    """-div(k grad phi) = f on the grid, for any number of f without mass on any island.

    The potential is tied down in one cell of each island, and in those that are empty. This moves no mass.
    """

    def __init__(
        self,
        edges: list[Array],
        tied: tuple[Array, ...],
        empty: NDArray[np.bool_],
        spacing: tuple[float, ...],
    ) -> None:
        self.edges, self.spacing = edges, spacing
        largest = max(float(k.max()) / h**2 for k, h in zip(edges, spacing, strict=True))
        ties = np.where(empty, 1.0, 0.0)
        ties[tied] = 1.0
        ties *= largest if largest > 0 else 1.0
        self.matrix = multigrid.operator(ties, edges, None, spacing)
        self.grids = multigrid.hierarchy(self.matrix, ties.shape, len(spacing))

    def solve(self, f: Array) -> Array:
        b = f.reshape(len(f), -1)
        return multigrid.solve(self.matrix, self.grids, b, tol=SOLVED, max_iter=SWEEPS).reshape(f.shape)

    def slopes(self, phi: Array) -> list[Array]:
        return [np.diff(phi, axis=a + 1) / h for a, h in enumerate(self.spacing)]

    def carry(self, f: Array, phi: Array) -> tuple[list[Array], Array]:
        """Fluxes through all walls along each axis, and what they leave of f.

        Once more for the remainder, because the mass that is left counts by the root of its size.
        """
        fluxes = self._fluxes(phi)
        rest = self._rest(f, fluxes)
        fluxes = [a + b for a, b in zip(fluxes, self._fluxes(self.solve(rest)), strict=True)]
        return fluxes, self._rest(f, fluxes)

    def _fluxes(self, phi: Array) -> list[Array]:
        pairs = zip(self.edges, self.slopes(phi), strict=True)
        return [_walled(k * g, axis) for axis, (k, g) in enumerate(pairs, start=1)]

    def _rest(self, f: Array, fluxes: list[Array]) -> Array:
        pairs = zip(fluxes, self.spacing, strict=True)
        return f + sum(np.diff(flux, axis=axis) / h for axis, (flux, h) in enumerate(pairs, start=1))


def _total(a: Array) -> Array:
    return a.reshape(len(a), -1).sum(-1)


def _walled(flux: Array, axis: int) -> Array:
    """Fluxes through all walls along an axis, 0 through the outer ones."""
    return np.pad(flux, [(1, 1) if a == axis else (0, 0) for a in range(flux.ndim)])


def _beside(walls: list[Array], mean: Array) -> Array:
    """The mean of what is on the two walls of a cell along an axis, 0 on the outer ones, summed over axes."""
    out = np.zeros_like(mean)
    for axis, wall in enumerate(walls, start=1):
        whole = _walled(wall, axis)
        first, last = spans(axis, whole.ndim)
        out += (whole[first] + whole[last]) / 2
    return out


def _actions(
    mu: Array, nu: Array, fluxes: list[Array], walls: Array, spacing: tuple[float, ...]
) -> tuple[Array, Array]:
    """The roots of two actions of the fluxes: `DualNorm.high`, least over the paces, and `DualNorm.motion`.

    The first is an upper bound of W2 if the fluxes carry mu into nu. The second is at constant pace, and as
    an estimate counts no cell more than four times as much as its ``walls`` do, which count half of their
    own.
    """
    square = np.zeros_like(mu)
    for axis, flux in enumerate(fluxes, start=1):
        first, last = spans(axis, flux.ndim)
        a, b = flux[first], flux[last]
        square += (a * a + a * b + b * b) / 3
    moved = square > 0
    most, least = np.maximum(mu, nu)[moved], np.minimum(mu, nu)[moved]

    def total(weight: Array) -> Array:
        cost = np.zeros_like(mu)
        cost[moved] = weight * square[moved]
        return _total(cost) * float(np.prod(spacing))

    # int (s (1 - s))^theta / (1 - z s) ds = B(1 + theta, 1 + theta) 2F1(1, 1 + theta; 2 + 2 theta; z)
    shares = [hyp2f1(1.0, 1 + theta, 2 + 2 * theta, 1 - least / most) / most for theta in PACES]
    paces = [beta(1 - theta, 1 - theta) * beta(1 + theta, 1 + theta) for theta in PACES]
    totals = [total(pace * share) for pace, share in zip(paces, shares, strict=True)]
    motion = total(np.minimum(shares[0], 4 * walls[moved] / square[moved]))
    high = np.min(totals, axis=0)
    return np.sqrt(high), np.sqrt(np.minimum(motion, high))


def _left(rest: Array, spacing: tuple[float, ...]) -> Array:
    """W2 for mass that is left behind, at most: it goes across the whole grid."""
    across = sum((n * h) ** 2 for n, h in zip(rest.shape[1:], spacing, strict=True))
    return np.sqrt(across * _total(np.abs(rest)) / 2 * float(np.prod(spacing)))


def _bent(mean: Array, edges: list[Array], slopes: list[Array], spacing: tuple[float, ...]) -> Array:
    """sum over cells of K |grad phi|^2 m / 12."""
    q = _beside([np.where(k > 0, g**2, 0.0) for k, g in zip(edges, slopes, strict=True)], mean)
    inner, D = tuple(range(1, q.ndim)), len(spacing)
    rise = [np.asarray(np.gradient(q, h, axis=a)) for a, h in zip(inner, spacing, strict=True)]
    H = np.empty((*q.shape, D, D))
    for a in range(D):
        for b in range(D):
            H[..., a, b] = np.gradient(rise[a], spacing[b], axis=inner[b])
    K = np.maximum(-np.linalg.eigvalsh((H + H.swapaxes(-1, -2)) / 2)[..., 0], 0)
    return _total(K * q * mean) / 12
