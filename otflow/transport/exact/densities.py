"""Distances between densities in the plane or in space, with bounds: dual norms if close, else atoms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import learns
from otflow.base.errors import ONCE, ConvergenceError, DerivativeError
from otflow.measures import Grid
from otflow.transport.comparable import Pair, merge, pair, root
from otflow.transport.exact.close_densities import dual_norm
from otflow.transport.exact.plans import ExactTransport

TOL = 0.05  # relative error of a distance between densities, at most, as far as its bounds tell; chosen

Atoms = Callable[[Pair], tuple[Tensor, ExactTransport]]  # the distance between atoms, with derivatives


@dataclass(frozen=True, eq=False)
class DensityDistance:
    """A distance between densities that are constant on cells, and between what it lies.

    Attributes:
        distance: (*batch,), with derivatives if they are asked for.
        low, high: bounds (*batch,): from above without error if the cells of both are the same, from below
            an estimate.
        plan: that of the atoms in the centres of cells, where these were needed.
    """

    distance: Tensor
    low: Tensor
    high: Tensor
    plan: ExactTransport | None = None

    @property
    def error(self) -> Tensor:
        """The relative error that the bounds leave open, (*batch,)."""
        d = self.distance.detach()
        off = torch.maximum((self.high - d).abs(), (d - self.low).abs())
        return torch.where(off > 0, off / d, torch.zeros_like(off))

    def trusted(self, mu: Grid) -> DensityDistance:
        """Itself, or an error if it is not known to `TOL`."""
        bad = ~(self.error <= TOL)
        if not bool(bad.any()):
            return self
        low, high = (float(z[bad].flatten()[0]) for z in (self.low, self.high))
        cells = " x ".join(f"{h:.3g}" for h in mu.spacing)
        raise ConvergenceError(
            f"{int(bad.sum())} of {bad.numel()} distances between densities are not known to {TOL:.0%}: one "
            f"lies between {min(low, high):.3g} and {max(low, high):.3g}, where cells are {cells} wide; "
            "refine the grid until densities vary over two cells or more, or compare times between which "
            "mass moves by three cells or more. solve(mu, nu) takes the cells for atoms.",
            self,
        )


def between(mu: Grid, nu: Grid, p: float, atoms: Atoms) -> DensityDistance:
    """W_p between densities: the dual norm of `close_densities` where its bounds are tight, else atoms.

    Atoms in the centres of the cells are off by the width of a cell in the square, because a move by a part
    of a cell has to be split between neighbours. With u uniform on a cell of mu, v on one of nu,

        W_2^2 - E|u - v|^2 <= W_2(atoms)^2 <~ W_2^2 + sum_a (h_a + h'_a)^2 / 12,

    the first with u - v as small as possible; the second to leading order, if the map is smooth. For p > 2
    both deviations are times p - 1, and no larger than the way from points to the centres of their cells.
    """
    both = pair(mu, nu)
    if p == 2 and _same_cells(mu, nu):
        found = _close(mu, nu, both)
        # Atoms take their time, and below some cells they cannot do better.
        enough = _blur(mu, nu, p)[0] * (1 / (1 - (1 - TOL) ** 2) - 1)
        far = ~(found.error <= TOL) & ~(found.high.square() < enough)
        if bool(far.any()):
            found = _merged(found, _far(mu, nu, p, both, far, atoms), far)
    else:
        found = _far(mu, nu, p, both, torch.ones(both.batch.numel(), dtype=torch.bool), atoms)
    distance, low, high = (z.reshape(both.batch) for z in (found.distance, found.low, found.high))
    return DensityDistance(distance, low, high, found.plan)


def in_motion(mu: Grid, nu: Grid) -> DensityDistance | None:
    """W2 between laws in motion, of which the densities are the masses in cells, if the cells are the same.

    The distance between densities constant on cells is another one where a jump enters an empty cell: they
    fill all of it at once, and the less of it is filled between two times, the larger is their speed. The
    dual norm, in which fluxes go through the walls of cells, sees the jump advance.
    """
    if not _same_cells(mu, nu):
        return None
    both = pair(mu, nu)
    found = _close(mu, nu, both, motion=True)
    distance, low, high = (z.reshape(both.batch) for z in (found.distance, found.low, found.high))
    return DensityDistance(distance.to(mu.dtype), low, high)


def _same_cells(mu: Grid, nu: Grid) -> bool:
    pairs = zip(mu.axes, nu.axes, strict=True)
    live = learns(*mu.axes, *nu.axes)  # only atoms know the derivative in where the cells are
    return not live and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


# --- close ---------------------------------------------------------------------------------------------


def _close(mu: Grid, nu: Grid, both: Pair, *, motion: bool = False) -> DensityDistance:
    D = len(mu.axes)
    a, b = (merge(m.density.double(), both.batch, D) for m in (mu, nu))
    a, b = (z / (z.flatten(1).sum(-1).reshape(-1, *(1,) * D) * mu.cell) for z in (a, b))
    norm = dual_norm(a.detach().cpu().numpy(), b.detach().cpu().numpy(), mu.spacing)
    above = norm.motion if motion else norm.high
    value, low, high = (torch.from_numpy(z).to(a) for z in (norm.value, norm.low, above))
    if both.moves:
        value = _with_derivatives(value, torch.from_numpy(norm.phi).to(a), a, b, mu.spacing)
        full = torch.from_numpy(norm.full).to(high.device)
        low = torch.where(full, low, 0.0)  # not known well: potentials of empty cells are known to atoms only
    return DensityDistance(value, low, high)


def _with_derivatives(value: Tensor, phi: Tensor, a: Tensor, b: Tensor, spacing: tuple[float, ...]) -> Tensor:
    """The root of max over phi of 2 int phi (b - a) - int |grad phi|^2 (a + b) / 2, phi standing still."""
    mean = (a + b) / 2
    square = 2 * (phi * (b - a)).flatten(1).sum(-1)
    for axis, h in enumerate(spacing, start=1):
        n = mean.shape[axis] - 1
        edges = (mean.narrow(axis, 0, n) + mean.narrow(axis, 1, n)) / 2
        square = square - (edges * (phi.diff(dim=axis) / h).square()).flatten(1).sum(-1)
    square = value.square() + math.prod(spacing) * (square - square.detach())
    return root(_Once.apply(square), 2)  # type: ignore[no-untyped-call]


class _Once(torch.autograd.Function):
    """The identity, which has a first derivative only."""

    @staticmethod
    def forward(v: Tensor) -> Tensor:
        return v.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Refusal.apply(grad) if torch.is_grad_enabled() else grad  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, dv: Tensor) -> Tensor:
        return dv.clone()


class _Refusal(torch.autograd.Function):
    """The identity, without derivative."""

    @staticmethod
    def forward(v: Tensor) -> Tensor:
        return v.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise DerivativeError(f"a distance between close densities has no second derivative here; {ONCE}")


# --- far -----------------------------------------------------------------------------------------------


def _blur(mu: Grid, nu: Grid, p: float) -> tuple[float, float]:
    """How far above and below W^2 the square of the distance between atoms may lie, see `between`."""
    h, k = (np.asarray(m.spacing) for m in (mu, nu))
    factor = max(1.0, p - 1) / 12
    return factor * float(((h + k) ** 2).sum()), factor * float(((h - k) ** 2).sum())


def _reach(mu: Grid, nu: Grid) -> float:
    """How far points are from the centres of their cells, added for both; a bound at every order."""
    return sum(math.hypot(*m.spacing) for m in (mu, nu)) / 2


def _far(mu: Grid, nu: Grid, p: float, both: Pair, far: Tensor, atoms: Atoms) -> DensityDistance:
    """By atoms, for the members that are marked; 0 for densities that are the same."""
    batch = both.batch if bool(far.all()) else torch.Size([int(far.sum())])
    x, w, y, v = (z[far.to(z.device)] for z in (both.x, both.w, both.y, both.v))
    some = Pair(x, w, y, v, both.space, batch)
    distance, plan = atoms(some)
    return of_atoms(mu, nu, p, distance, plan)


def of_atoms(
    mu: Grid, nu: Grid, p: float, distance: Tensor, plan: ExactTransport | None = None, lines: bool = False
) -> DensityDistance:
    """A distance between atoms in the centres of cells with its bounds; ``lines`` if it is a sliced one."""
    share = 1 / len(mu.axes) if lines else 1.0  # of the square of a vector, which a line sees on average
    above, below = (share * z for z in _blur(mu, nu, p))
    value, reach = distance.detach(), torch.full_like(distance.detach(), _reach(mu, nu))
    low = torch.maximum((value.square() - above).clamp(min=0).sqrt(), value - reach)
    high = torch.minimum((value.square() + below).sqrt(), value + reach)
    same = (value == 0) & _same_cells(mu, nu)  # atoms on the same cells
    return DensityDistance(distance, torch.where(same, 0.0, low), torch.where(same, 0.0, high), plan)


def _merged(near: DensityDistance, far: DensityDistance, where: Tensor) -> DensityDistance:
    """Of both the better one, for the members that have both."""
    better = far.error < near.error[where]
    place = where.nonzero()[:, 0][better]

    def put(name: str) -> Tensor:
        a, b = getattr(near, name), getattr(far, name)
        return a.index_put((place,), b[better])

    return DensityDistance(put("distance"), put("low"), put("high"), far.plan)


def admit(mu: Any, nu: Any) -> bool:
    """Whether both are densities, in as many dimensions, with more than a line."""
    grids = isinstance(mu, Grid) and isinstance(nu, Grid)
    if grids and len(mu.axes) == len(nu.axes):
        checks.alike(checks.finite(nu.density, "nu"), "nu", checks.finite(mu.density, "mu"), "mu")
    return grids and len(mu.axes) == len(nu.axes) > 1
