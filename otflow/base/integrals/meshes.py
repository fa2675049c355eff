"""Meshes: points for integrals over standard normal laws, made for what is integrated.

Space is cut into pieces, along one axis after the other, until the rules of Kronrod and Gauss agree on every
piece: kinks, jumps and narrow bumps end up in small pieces of their own. Along the last axis a jump costs a
few pieces; what is left along the axes before is smoother. All lines along an axis are refined together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from otflow.base.integrals import boxes
from otflow.base.integrals.boxes import density
from otflow.base.integrals.quadrature import (
    NODES,
    STRICT,
    Axis,
    Rules,
    gap,
    kronrod,
    product,
    slope_gap,
    stein,
    trapezoid,
)

Integrand: TypeAlias = Callable[[Tensor], Tensor]  # (members, n, r) -> (members, n)
Triple: TypeAlias = tuple[Tensor, Tensor, Tensor]

AXES = 3  # dimensions that meshes go up to
NEAR = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)  # standard deviations with which tails are compared
# Standard deviations at which integrals end: the first at which the integrand has vanished.
FARTHER = {1: (12.0, 16.0, 22.0, 30.0, 37.0), 2: (7.0, 9.0, 12.0, 16.0, 22.0, 30.0, 37.0)}
LATTICE = {2: (52, 104, 208), 3: (26, 52, 104)}  # points per axis of lattices; chosen: a million at most
EXTENT = 8.5  # standard deviations to which lattices go; exp(-36) is below rounding
# Points of a line to begin with, in two and three dimensions: what two densities of points say must agree, as
# lines may pass unseen through what is narrow on them. 36 are exact to rounding for what is smooth; chosen.
DENSITIES = {2: (36, 108, 324), 3: (36, 52)}
PANELS = 24  # pieces of the line in one dimension, to begin with; chosen
PARTS = {1: 8, 2: 3}  # into how many one is cut; chosen: on the line rounds count, else points
ROUNDS = 34  # cuts of a piece, at most: 3^-34 is below rounding
MERCY = 1e3  # by how much a line may be less accurate because it counts little; chosen
MISSED = 1e-3  # a mesh that finds so little of what a lattice found has missed something; chosen
BUDGET = 2**22  # points per law, at most, in two and three dimensions; chosen: a second or two
LINE_BUDGET = 2**18  # and on the line
GOAL = 1e-12  # relative error that is aimed at on the line, where accuracy costs little
TILE = 2**19  # points at a time; chosen: 4 MB a coordinate


class Mesh(NamedTuple):
    """Points (members, n, r) and weights (members, n) of each law, and the error, relative to E|u|."""

    z: Tensor
    w: Tensor
    error: Tensor


class Unresolved(Exception):
    """No mesh within the budget; ``reachable`` is a tolerance for which there is one, or None."""

    def __init__(self, reason: str, reachable: float | None = None) -> None:
        super().__init__(reason)
        self.reachable = reachable


def mesh(u: Integrand, centre: Tensor, wanted: Tensor, r: int, rtol: float, goal: float = GOAL) -> Mesh:
    """Points and weights that integrate u(z) for laws of a batch up to ``rtol``, or `Unresolved`.

    Args:
        u: (members, n, r) -> (members, n), the members of the batch side by side.
        centre: E[u], roughly, (members,).
        wanted: which members are asked for, (members,); the weights of others are 0.
        r: dimension, at most `AXES`.
        rtol: relative to E|u| and, for slopes, to E|(u - c) h|.
        goal: the error that is aimed at on the line, where accuracy costs little.
    """
    work = _Work(u, centre, wanted, r, _reach(u, wanted, r, goal if r == 1 else min(rtol, 1e-6)))
    if r == 1:
        return _on_the_line(work, rtol, goal)
    seen = _lattice(work, rtol)
    if seen.mesh is not None:
        return seen.mesh
    if _scaled(work, seen):
        found = _settled(work, rtol, BUDGET)
        if found is not None:
            return work.mesh(*found, rtol / 2)
    tolerances = [rtol, *_decades(rtol)]
    stops = _boxes(work, seen, tolerances)
    if rtol in stops:
        return work.mesh_of(stops[rtol])
    raise Unresolved(f"{BUDGET} points are not enough", _reachable(work, tolerances[1:], seen, stops))


def _scaled(work: _Work, seen: _Seen) -> bool:
    """Whether lines find what the lattice has seen; they learn then what is negligible."""
    work.scale = 1e-2 * seen.size  # a first guess
    work.begin_with(DENSITIES[work.r][0])
    rough = work.attempt(0.1, BUDGET)
    work.scale = torch.zeros_like(seen.size)
    if rough is None:
        return True
    work.scale[work.wanted] = rough[0].sums(int(work.wanted.sum()))[1]
    return not seen.missed(work.scale, work.wanted)


def _boxes(work: _Work, seen: _Seen, tolerances: list[float]) -> dict[float, boxes.Stop]:
    """Boxes for each of the tolerances that they reach, unless what the lattice has seen is not in them."""
    law, counts = work.wanted.nonzero()[:, 0], boxes.PARTITIONS[work.r]
    first = [boxes.partition(law, work.reach, n, seen.peaks, seen.spacing) for n in counts]
    work.left = math.inf  # the boxes count for themselves
    stops = boxes.settled(work.values, work.centre, first, tolerances, BUDGET)
    return {tol: stop for tol, stop in stops.items() if not seen.missed(stop.sums()[1], work.wanted)}


def _settled(work: _Work, rtol: float, budget: float) -> tuple[_Found, Tensor] | None:
    """Pieces that have the error ``rtol``, by their own account and by that of a mesh with fewer points."""
    before = None
    for count in DENSITIES[work.r]:
        work.begin_with(count)
        found = work.attempt(rtol / 2, budget)
        if found is None or not bool((found[1] <= rtol).all()):
            return None
        value, size, _ = found[0].sums(int(work.wanted.sum()))
        if before is not None:
            error = found[1].clone()
            error[work.wanted] += ((value - before).abs() / size.clamp(min=1e-300)).amax(-1)
            if bool((error <= rtol).all()):
                return found[0], error
        before = value
    return None


def _on_the_line(work: _Work, rtol: float, goal: float) -> Mesh:
    found = work.attempt(goal, LINE_BUDGET)
    worst = math.inf if found is None else float(found[1].max())
    if found is None or not worst <= rtol:
        hopeless = "it does not settle where it is singular"
        reason = hopeless if math.isinf(worst) else f"an error of {worst:.1e} is left"
        raise Unresolved(reason, _decade(worst) if worst < 0.05 else None)
    return work.mesh(*found, goal)


def _reachable(
    work: _Work, tolerances: list[float], seen: _Seen, stops: dict[float, boxes.Stop]
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


def _lattice(work: _Work, rtol: float) -> _Seen:
    """The trapezoidal rule on lattices, for what is smooth but oscillates."""
    for n in LATTICE[work.r]:
        rules = _lattice_rule(work.r, n, work.scale.device)
        tiles = rules.z.split(max(1, TILE // work.laws))
        u = torch.cat([work.u(z.expand(work.laws, *z.shape)).double() for z in tiles], 1)
        apart = torch.maximum(gap(u, rules), slope_gap(u, rules))
        error = torch.where(work.wanted & (u != 0).any(-1), apart, 0.0)
        worst = float(error.max()) if bool(torch.isfinite(error).all()) else math.inf
        size = (u - (u @ rules.fine)[:, None]).abs() @ rules.sizes
        size[:, 0] = u.abs() @ rules.fine
        empty = bool((size[work.wanted, 0] == 0).any()) and n < LATTICE[work.r][-1]
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
    """How far to integrate, in standard deviations, or `Unresolved` if the tails of u outgrow the law."""
    axes = np.array([a for a in product([np.arange(-1.0, 2.0)] * r) if a.any()])
    rays = torch.as_tensor(axes / np.linalg.norm(axes, axis=-1, keepdims=True), device=wanted.device)
    radii = torch.tensor((*NEAR, *FARTHER[min(r, 2)]), dtype=torch.float64, device=wanted.device)
    z = (radii[:, None, None] * rays).reshape(-1, r)
    values = u(z.expand(len(wanted), *z.shape)).double().abs().reshape(len(wanted), len(radii), -1).amax(-1)
    mass = values.log() - radii**2 / 2 + (r + 1) * radii.log()  # in logarithms
    small = torch.isfinite(mass[:, 1:]) & (
        mass[:, 1:] <= mass.cummax(-1).values[:, :-1] + math.log(0.1 * tol)
    )
    good = (small | (values[:, 1:] == 0) | ~wanted[:, None])[:, len(NEAR) - 1 :]
    far = radii[len(NEAR) :]
    if not bool(good.any(-1).all()):
        limit = f"{float(far[-1]):g} standard deviations"
        raise Unresolved(f"it has no expectation: its tails outgrow the law, seen up to {limit}")
    return float(far[good.to(torch.int8).argmax(-1)].max())


class _Pieces(NamedTuple):
    """Intervals of lines: integrals and sizes of all moments, errors of the rule and of the integrand."""

    line: Tensor  # (I,)
    middle: Tensor
    half: Tensor
    value: Tensor  # (I, k)
    size: Tensor
    error: Tensor
    inner: Tensor

    def pick(self, which: Tensor) -> _Pieces:
        return _Pieces(*(a[which] for a in self))

    def over(self, a: Tensor, lines: int) -> Tensor:
        """The sum of a over the pieces of each line."""
        return a.new_zeros(lines, *a.shape[1:]).index_add(0, self.line, a)


class _Found(NamedTuple):
    """What lines are made of: some of them of one piece, others cut."""

    whole: _Pieces | None
    cut: _Pieces

    def sums(self, lines: int) -> Triple:
        """Integrals, sizes and errors of the lines, (L, k) each."""
        kinds = [self.cut] if self.whole is None else [self.whole, self.cut]
        parts = [[p.over(a, lines) for a in (p.value, p.size, p.error + p.inner)] for p in kinds]
        value, size, error = (sum(a[1:], start=a[0]) for a in zip(*parts, strict=True))
        return value, size, error


class _Lines(NamedTuple):
    """Lines along one axis: the law to which each belongs, the coordinates before, and their density."""

    law: Tensor  # (L,)
    head: Tensor  # (L, axis)
    weight: Tensor  # (L,)


class _Work:
    """The integration of one u: how far, how fine, and how much has been spent."""

    def __init__(self, u: Integrand, centre: Tensor, wanted: Tensor, r: int, reach: float) -> None:
        self.u, self.centre, self.wanted, self.r, self.reach = u, centre, wanted, r, reach
        self.laws, self.left = len(centre), math.inf
        self.cut, self.panels = kronrod(centre.device), PANELS
        self.whole = trapezoid(PANELS, centre.device)  # not used on the line, where all of it has been tried
        self.scale = torch.zeros(self.laws, 1 + r + r * r, dtype=torch.float64, device=centre.device)

    def begin_with(self, points: int) -> None:
        """Take so many points for a line, whole or cut."""
        self.whole = trapezoid(points, self.scale.device)
        self.panels = max(4, math.ceil(points / len(self.cut.x)))

    def first(self) -> _Lines:
        """The first axis of every law that is wanted."""
        law = self.wanted.nonzero()[:, 0]
        return _Lines(law, self.scale.new_zeros(len(law), 0), self.scale.new_ones(len(law)))

    def values(self, law: Tensor, z: Tensor) -> Tensor:
        """u at points z (N, r) of the laws (N,)."""
        self.left -= len(z)
        if self.left < 0:
            raise _Spent
        table, row, column = packed(law, z, self.laws)
        tiles = table.split(max(1, TILE // self.laws), 1)
        return torch.cat([self.u(tile).double() for tile in tiles], 1)[row, column]

    def integrand(self, lines: _Lines, line: Tensor, z: Tensor, goal: float) -> Triple:
        """The moments along lines at z (I, 15), their sizes, and errors of inner integrals: (I, 15, k)."""
        below = self.below(lines, line, z)
        weight = density(z[..., None])[..., None]
        if below.head.shape[-1] < self.r:
            found = self.refined(below, goal / 4)
            parts = found.sums(len(below.law))
            value, size, error = (weight * a.reshape(*z.shape, self.scale.shape[-1]) for a in parts)
            return value, size, error
        u = self.values(below.law, below.head)
        h = stein(below.head)
        shifted = (u - self.centre[below.law])[:, None] * h
        shifted[:, 0] = u
        value = weight * shifted.reshape(*z.shape, self.scale.shape[-1])
        return value, value.abs(), torch.zeros_like(value)

    def below(self, lines: _Lines, line: Tensor, z: Tensor) -> _Lines:
        """The points z (I, 15) of lines, as lines along the next axis."""
        head = lines.head[line][:, None].expand(*z.shape, -1)
        law, weight = (a[line][:, None].expand(z.shape) for a in (lines.law, lines.weight))
        points = torch.cat([head, z[..., None]], -1).reshape(z.numel(), head.shape[-1] + 1)
        return _Lines(law.reshape(-1), points, (weight * density(z[..., None])).reshape(-1))

    def pieces(
        self, rule: Axis, lines: _Lines, line: Tensor, middle: Tensor, half: Tensor, goal: float
    ) -> _Pieces:
        """Integrals over intervals by the two rules, and how far these are apart."""
        z = middle[:, None] + half[:, None] * rule.x
        parts = self.integrand(lines, line, z, goal)
        broken = ~torch.isfinite(parts[0]).all(-1).all(-1)[:, None]
        f, size, inner = (torch.where(broken[..., None], 0.0, a) for a in parts)
        width, w = half[:, None], rule.fine[:, None]
        value, size, inner = (width * (a * w).sum(1) for a in (f, size, inner))
        error = (value - width * (f * rule.coarse[:, None]).sum(1)).abs()
        if rule is self.cut:  # the formula of QUADPACK for what is left by the better rule
            spread = width * ((f - (value / (2 * width))[:, None]).abs() * w).sum(1)
            ratio = (200 * error / torch.where(spread > 0, spread, 1.0)).clamp(max=1.0)
            error = spread * ratio**1.5
        error = torch.where(broken, torch.inf, error)
        return _Pieces(line, middle, half, value, size, error, inner)

    def refined(self, lines: _Lines, goal: float) -> _Found:
        """Pieces of lines on which the two rules agree up to ``goal``, or the best that the budget allows."""
        line = torch.arange(len(lines.law), device=self.scale.device)
        if self.r == 1:  # the whole line has been tried
            return _Found(None, self.cut_up(lines, line, goal))
        middle = self.scale.new_zeros(len(line))
        whole = self.pieces(self.whole, lines, line, middle, torch.full_like(middle, self.reach), goal)
        rough = self.relative(lines, whole)[0] > goal
        return _Found(whole.pick(~rough), self.cut_up(lines, line[rough], goal))

    def cut_up(self, lines: _Lines, line: Tensor, goal: float) -> _Pieces:
        """Pieces of some of the lines."""
        panels, count = self.panels, len(lines.law)
        half = self.reach / panels
        middle = (2 * torch.arange(panels, device=line.device) + 1) * half - self.reach
        middle = middle.to(self.scale).repeat(len(line))
        start = (line.repeat_interleave(panels), middle, torch.full_like(middle, half))
        found = self.pieces(self.cut, lines, *start, goal)
        for _ in range(ROUNDS):
            error, total = self.relative(lines, found)
            share = goal / (2 * torch.bincount(found.line, minlength=count))
            bad = (error > share[found.line]) & ~(total <= goal)[found.line]
            if not bool(bad.any()) or self.spent(int(bad.sum())):
                break
            found = _joined(found.pick(~bad), self.parts(lines, found.pick(bad), goal))
        return found

    def spent(self, pieces: int) -> bool:
        """Whether the line, for which the best that there is will do, cannot afford to cut so many pieces."""
        return self.r == 1 and self.left < pieces * PARTS[1] * len(NODES) * 2

    def relative(self, lines: _Lines, found: _Pieces) -> tuple[Tensor, Tensor]:
        """The errors of pieces (I,) and of lines (L,), in units of the integral along the line or of all."""
        count = len(lines.law)
        # A line counts by its density; lines within ten standard deviations, say, may err by as much.
        law = self.scale[lines.law] / (10 * lines.weight[:, None]).clamp(min=1e-300)
        own = found.over(found.size, count)
        # Constants have no slope, but for rounding.
        own[:, 1:] = torch.maximum(own[:, 1:], own[:, :1] * 1e-13)
        # What a line seems to hold may be all that its points have seen of a bump, so mercy is limited.
        size = torch.maximum(torch.minimum(law, MERCY * own), own).clamp(min=1e-300)
        error = (found.error / size[found.line]).amax(-1)
        return error, found.over(error, count)

    def parts(self, lines: _Lines, found: _Pieces, goal: float) -> _Pieces:
        """Pieces, each cut into `PARTS`."""
        n = PARTS[min(self.r, 2)]
        offset = (torch.arange(n, device=found.line.device) + 0.5) * (2 / n) - 1
        middle = (found.middle[:, None] + found.half[:, None] * offset).reshape(-1)
        line, half = (a.repeat_interleave(n) for a in (found.line, found.half / n))
        return self.pieces(self.cut, lines, line, middle, half, goal)

    def points(self, lines: _Lines, share: Tensor, found: _Found, goal: float) -> Triple:
        """The points of all pieces of lines with weights ``share``: laws (N,), coordinates and weights."""
        kinds = [(self.cut, found.cut), *([(self.whole, found.whole)] if found.whole else [])]
        nodes = [self.below(lines, p.line, p.middle[:, None] + p.half[:, None] * rule.x) for rule, p in kinds]
        below = _Lines(*(torch.cat(a) for a in zip(*nodes, strict=True)))
        shares = [((share[p.line] * p.half)[:, None] * rule.fine).reshape(-1) for rule, p in kinds]
        share = torch.cat(shares)
        if below.head.shape[-1] == self.r:
            return below.law, below.head, below.weight * share
        # What is below has been refined before; to keep all that would take more than doing it again.
        return self.points(below, share, self.refined(below, goal / 4), goal / 4)

    def attempt(self, goal: float, budget: float) -> tuple[_Found, Tensor] | None:
        """The pieces of the first axis, and the relative error of each law; None beyond the budget."""
        self.left, lines = budget * self.laws, self.first()
        try:
            found = self.refined(lines, goal)
        except _Spent:
            return None
        _, size, rest = found.sums(len(lines.law))
        error = self.scale.new_zeros(self.laws)
        error[lines.law] = (rest / size.clamp(min=1e-300)).amax(-1)
        return found, error

    def mesh(self, found: _Found, error: Tensor, goal: float) -> Mesh:
        self.left = math.inf
        lines = self.first()
        return self.packed(*self.points(lines, torch.ones_like(lines.weight), found, goal), error)

    def mesh_of(self, stop: boxes.Stop) -> Mesh:
        return self.packed(*stop.boxes.points(self.cut), stop.error)

    def packed(self, law: Tensor, z: Tensor, w: Tensor, error: Tensor) -> Mesh:
        table, row, column = packed(law, z, self.laws)
        return Mesh(table, w.new_zeros(table.shape[:-1]).index_put((row, column), w), error)


class _Spent(Exception):
    """The budget is used up."""


def _joined(a: _Pieces, b: _Pieces) -> _Pieces:
    return _Pieces(*(torch.cat(both) for both in zip(a, b, strict=True)))


def packed(law: Tensor, z: Tensor, laws: int) -> Triple:
    """Points (N, r) side by side in a table (laws, n, r), filled up with zeros, and where each one stands."""
    order = torch.argsort(law, stable=True)
    count = torch.bincount(law, minlength=laws)
    column = torch.empty_like(order)
    column[order] = torch.arange(len(z), device=z.device) - (count.cumsum(0) - count)[law[order]]
    table = z.new_zeros(laws, int(count.max()), z.shape[-1])
    return table.index_put((law, column), z), law, column
