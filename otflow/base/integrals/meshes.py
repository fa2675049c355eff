"""Meshes: points for integrals over standard normal laws, made for what is integrated.

On the line they are made of pieces; in the plane and in space lattices are tried first, then lines within
`lines`, then `boxes`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow.base.integrals import boxes
from otflow.base.integrals.lines import TILE, Cuts, Integrand, Work, apart, packed
from otflow.base.integrals.quadrature import STRICT, Rules, product, worst_gap

AXES = 3  # dimensions that meshes go up to
NEAR = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)  # standard deviations with which tails are compared
# Standard deviations at which integrals end: the first at which the integrand has vanished.
FARTHER = {1: (12.0, 16.0, 22.0, 30.0, 37.0), 2: (7.0, 9.0, 12.0, 16.0, 22.0, 30.0, 37.0)}
LATTICE = {2: (52, 104, 208), 3: (26, 52, 104)}  # points per axis of lattices; chosen: a million at most
NARROW = 1e-4  # half the boxes at 0 to begin with, where kernels may be narrow; chosen
EXTENT = 8.5  # standard deviations to which lattices go; exp(-36) is below rounding
# Points of a line to begin with, or else its pieces, in two and three dimensions: what two of them say must
# agree, as lines may pass unseen through what is narrow on them, and so their pieces have no face in common.
# 36 are exact to rounding for what is smooth; chosen.
DENSITIES = {2: ((36, 4), (108, 7), (324, 23)), 3: ((36, 4), (52, 5))}
MISSED = 1e-3  # a mesh that finds so little of what a lattice found has missed something; chosen
BUDGET = 2**22  # points per law, at most, in two and three dimensions; chosen: a second or two
LINE_BUDGET = 2**18  # and on the line
MESHES = 4  # of which two in succession have to agree on the line; chosen
FINER = 8  # times as many pieces, if a mesh on the line has missed something; chosen
GOAL = 1e-12  # relative error that is aimed at on the line, where accuracy costs little


class Mesh(NamedTuple):
    """Points (members, n, r) and weights (members, n) of each law, and the error, relative to E|u|."""

    z: Tensor
    w: Tensor
    error: Tensor


class Unresolved(Exception):
    """No mesh within the budget; ``reachable`` is a tolerance for which there is one, or None.

    What is wrong somewhere is so ``at`` a point z of a member.
    """

    def __init__(
        self, reason: str, reachable: float | None = None, at: tuple[int, Tensor] | None = None
    ) -> None:
        super().__init__(reason)
        self.reachable, self.at = reachable, at


def mesh(
    u: Integrand,
    centre: Tensor,
    wanted: Tensor,
    r: int,
    rtol: float,
    goal: float = GOAL,
    *,
    kernel: bool = False,
) -> Mesh:
    """Points and weights that integrate u(z) for laws of a batch up to ``rtol``, or `Unresolved`.

    Args:
        u: (members, n, r) -> (members, n), the members of the batch side by side.
        centre: E[u], roughly, (members,).
        wanted: which members are asked for, (members,); the weights of others are 0.
        r: dimension, at most `AXES`.
        rtol: relative to E|u| and, for slopes, to E|(u - c) h|.
        goal: the error that is aimed at on the line, where accuracy costs little.
        kernel: whether u may be narrow at 0.
    """
    work = Work(u, centre, wanted, r, _reach(u, wanted, r, goal if r == 1 else min(rtol, 1e-6)))
    work.kernel = kernel
    if r == 1:
        return _on_the_line(work, rtol, goal)
    seen = _lattice(work, rtol)
    if seen.mesh is not None:
        return seen.mesh
    unseen = bool((seen.size[wanted, 0] == 0).any())
    if not (kernel and unseen) and _scaled(work, seen):
        found = _settled(work, rtol, BUDGET)
        if found is not None:
            return _mesh_of(work, found, rtol / 2)
    tolerances = [rtol, *_decades(rtol)]
    stops = _boxes(work, seen, tolerances)
    if rtol in stops:
        return _packed(work, *stops[rtol].boxes.points(work.cut), stops[rtol].error)
    raise Unresolved(f"{BUDGET} points are not enough", _reachable(work, tolerances[1:], seen, stops))


def _scaled(work: Work, seen: _Seen) -> bool:
    """Whether lines find what the lattice has seen; they learn then what is negligible."""
    work.scale = 1e-2 * seen.size  # a first guess
    work.begin_with(*DENSITIES[work.r][0])
    rough = work.attempt(0.1, BUDGET)
    work.scale = torch.zeros_like(seen.size)
    if rough is None:
        return True
    work.scale[work.wanted] = rough[0].sums(int(work.wanted.sum()))[1]
    return not seen.missed(work.scale, work.wanted)


def _boxes(work: Work, seen: _Seen, tolerances: list[float]) -> dict[float, boxes.Stop]:
    """Boxes for each of the tolerances that they reach, unless what the lattice has seen is not in them."""
    law, starts = work.wanted.nonzero()[:, 0], boxes.PARTITIONS[work.r]
    peaks, spacing = seen.peaks, seen.spacing
    if work.kernel:
        peaks, spacing = torch.cat([peaks, torch.zeros_like(peaks[:, :1])], 1), NARROW
    first = [boxes.partition(law, work.reach, start, peaks, spacing) for start in starts]
    work.left = math.inf  # the boxes count for themselves
    stops = boxes.settled(work.values, work.centre, first, tolerances, BUDGET)
    return {tol: stop for tol, stop in stops.items() if not seen.missed(stop.sums()[1], work.wanted)}


def _settled(work: Work, rtol: float, budget: float) -> tuple[Cuts, Tensor] | None:
    """Pieces that have the error ``rtol``, by their own account and by that of a mesh with fewer points."""
    before = None
    for start in DENSITIES[work.r]:
        work.begin_with(*start)
        found = work.attempt(rtol / 2, budget)
        if found is None or not bool((found[1] <= rtol).all()):
            return None
        value, size, _ = found[0].sums(int(work.wanted.sum()))
        if before is not None:
            error = found[1].clone()
            error[work.wanted] += apart(value, before, size)
            if bool((error <= rtol).all()):
                return found[0], error
        before = value
    return None


def _on_the_line(work: Work, rtol: float, goal: float) -> Mesh:
    """Pieces that have the error ``rtol``, by their own account and by that of pieces with other faces."""
    start = before = None
    for _ in range(MESHES):
        found = work.attempt(goal, LINE_BUDGET, start)
        worst = math.inf if found is None else float(found[1].max())
        if found is None or not worst <= rtol:
            break
        value, size, _ = found[0].sums(int(work.wanted.sum()))
        if bool((size[:, 0] < MISSED * work.centre[work.wanted].abs()).any()):  # the first rule saw more
            work.panels, before = FINER * work.panels, None
            continue
        error = found[1].clone()
        error[work.wanted] += math.inf if before is None else apart(value, before, size)
        worst = float(error.max())
        if worst <= rtol:
            return _mesh_of(work, (found[0], error), goal)
        before, start = value, found[0].cut.between()
    hopeless = "it does not settle where it is singular"
    reason = hopeless if math.isinf(worst) else f"an error of {worst:.1e} is left"
    raise Unresolved(reason, _decade(worst) if worst < 0.05 else None)


def _reachable(
    work: Work, tolerances: list[float], seen: _Seen, stops: dict[float, boxes.Stop]
) -> float | None:
    """The least of some tolerances for which there is a mesh with half of the budget, found by trying."""
    for tol in tolerances:
        if seen.error <= tol or (tol in stops and stops[tol].points <= BUDGET / 2):
            return tol
        if bool((work.scale[work.wanted, 0] > 0).all()) and _settled(work, tol, BUDGET / 2) is not None:
            return tol
    return None


def _decades(rtol: float) -> list[float]:
    """The powers of ten above a tolerance, up to 0.1."""
    return [10.0**e for e in range(math.floor(math.log10(rtol)) + 1, 0)]


class _Seen(NamedTuple):
    """What lattices have seen: a mesh if they will do, how good they are, and where |u| is large."""

    mesh: Mesh | None
    error: float  # the tolerance for which they would do
    size: Tensor  # E|u| and E|(u - c) h|, (laws, k)
    peaks: Tensor  # (laws, p, r)
    spacing: float

    def missed(self, size: Tensor, wanted: Tensor) -> bool:
        return bool((size[wanted, 0] < MISSED * self.size[wanted, 0]).any())


def _lattice(work: Work, rtol: float) -> _Seen:
    """The trapezoidal rule on lattices, for what is smooth but oscillates."""
    for n in LATTICE[work.r]:
        rules = _lattice_rule(work.r, n, work.scale.device)
        tiles = rules.z.split(max(1, TILE // work.laws))
        u = torch.cat([work.u(z.expand(work.laws, *z.shape)).double() for z in tiles], 1)
        error = torch.where(work.wanted & (u != 0).any(-1), worst_gap(u, rules), 0.0)
        worst = float(error.max()) if bool(torch.isfinite(error).all()) else math.inf
        size = (u - (u @ rules.fine)[:, None]).abs() @ rules.sizes
        size[:, 0] = u.abs() @ rules.fine
        empty = bool((size[work.wanted, 0] == 0).any()) and (n < LATTICE[work.r][-1] or work.kernel)
        if worst <= STRICT[1] * rtol and not empty:
            weights = torch.where(work.wanted[:, None], rules.fine, 0.0)
            found = Mesh(rules.z.expand(work.laws, *rules.z.shape), weights, error)
            return _Seen(found, worst, size, rules.z[:0], 0.0)
    peaks = boxes.highest(u, rules.z, n)
    return _Seen(None, worst / STRICT[1], size, peaks, 2 * EXTENT / n)


@lru_cache(maxsize=4)
def _lattice_rule(r: int, n: int, device: torch.device) -> Rules:
    """A lattice of n^r points, and the one of every second point along each axis."""
    x = ((np.arange(n) + 0.37) / n * 2 - 1) * EXTENT
    w = np.exp(-(x**2) / 2)
    half = np.where(np.arange(n) % 2 == 0, w, 0.0)
    fine, coarse = (product([a / a.sum()] * r).prod(-1) for a in (w, half))
    z, fine, coarse = (torch.as_tensor(a, device=device) for a in (product([x] * r), fine, coarse))
    return Rules.of(z, fine, coarse)


def _decade(error: float) -> float:
    """The power of ten above twice an error."""
    return float(10.0 ** math.ceil(math.log10(2 * error)))


def _reach(u: Integrand, wanted: Tensor, r: int, tol: float) -> float:
    """How far to integrate, in standard deviations, or `Unresolved` if u does not vanish against the law."""
    axes = np.array([a for a in product([np.arange(-1.0, 2.0)] * r) if a.any()])
    rays = torch.as_tensor(axes / np.linalg.norm(axes, axis=-1, keepdims=True), device=wanted.device)
    radii = torch.tensor((*NEAR, *FARTHER[min(r, 2)]), dtype=torch.float64, device=wanted.device)
    z = (radii[:, None, None] * rays).reshape(-1, r)
    values = u(z.expand(len(wanted), *z.shape)).double().abs()
    nan = (values.isnan() & wanted[:, None]).nonzero()
    if len(nan):
        raise Unresolved("it is not a number", at=(int(nan[0, 0]), z[nan[0, 1]]))
    values = values.reshape(len(wanted), len(radii), -1).amax(-1)
    mass = values.log() - radii**2 / 2 + (r + 1) * radii.log()  # in logarithms
    small = torch.isfinite(mass[:, 1:]) & (
        mass[:, 1:] <= mass.cummax(-1).values[:, :-1] + math.log(0.1 * tol)
    )
    good = (small | (values[:, 1:] == 0) | ~wanted[:, None])[:, len(NEAR) - 1 :]
    far = radii[len(NEAR) :]
    lost = ~good.any(-1)
    if bool(lost.any()):
        grows = mass[lost, -1] >= mass[lost, -2]  # infinity too
        limit = f"{float(far[-1]):g} standard deviations"
        if bool(grows.any()):
            raise Unresolved(f"it has no expectation: its tails outgrow the law, seen up to {limit}")
        raise Unresolved(f"its tails are too heavy: they have not vanished against the law within {limit}")
    return float(far[good.to(torch.int8).argmax(-1)].max())


def _mesh_of(work: Work, found: tuple[Cuts, Tensor], goal: float) -> Mesh:
    return _packed(work, *work.all_points(found[0], goal), found[1])


def _packed(work: Work, law: Tensor, z: Tensor, w: Tensor, error: Tensor) -> Mesh:
    table, row, column = packed(law, z, work.laws)
    return Mesh(table, w.new_zeros(table.shape[:-1]).index_put((row, column), w), error)
