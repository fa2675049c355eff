"""Lines: integrals over standard normal laws, along one axis after the other.

Lines are cut into pieces until the rules of Kronrod and Gauss agree on every piece: kinks, jumps and narrow
bumps end up in small pieces of their own. Along the last axis a jump costs a few pieces; what is left along
the axes before is smoother. All lines along an axis are refined together.

Both rules leave out the ends of a piece, and nothing tells of a jump there but the pieces on either side:
what they say of the face between them has to agree too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from otflow.base.integrals.boxes import density
from otflow.base.integrals.quadrature import (
    NODES,
    REACH,
    Axis,
    extrapolation,
    grid,
    kronrod,
    stein,
    trapezoid,
)

Integrand: TypeAlias = Callable[[Tensor], Tensor]  # (members, n, r) -> (members, n)
Triple: TypeAlias = tuple[Tensor, Tensor, Tensor]

# Pieces of the line in one dimension to begin with, in parts of the first rule's points: then the points of a
# piece are as dense as those, and nothing is lost again that they have seen.
DENSE = 1 / 4
BLIND = 1 - NODES[0]  # the part of half a piece that lies beyond its last point
PARTS = {1: 8, 2: 3}  # into how many one is cut; chosen: on the line rounds count, else points
ROUNDS = 34  # cuts of a piece, at most: 3^-34 is below rounding
GRADES = 8  # sizes of pieces on the line at 0, where kernels may be narrow; chosen: down to 8^-7 of one
MERCY = 1e3  # by how much a line may be less accurate because it counts little; chosen
TILE = 2**19  # points at a time; chosen: 4 MB a coordinate


class Intervals(NamedTuple):
    """Intervals of lines in order: integrals of moments, sizes, errors of the rule and of the integrand."""

    line: Tensor  # (I,)
    middle: Tensor
    half: Tensor
    value: Tensor  # (I, k)
    size: Tensor
    error: Tensor
    inner: Tensor
    ends: Tensor  # the integrand at both ends, extrapolated: (I, 2, k)

    def pick(self, which: Tensor) -> Intervals:
        return Intervals(*(a[which] for a in self))

    def over(self, a: Tensor, lines: int) -> Tensor:
        """The sum of a over the pieces of each line."""
        return a.new_zeros(lines, *a.shape[1:]).index_add(0, self.line, a)

    def warned(self, rough: Tensor) -> Intervals:
        """The same, with errors for what may hide beyond the last points at the ends, (I, k).

        At a jump or a kink there what neighbours say of their face is apart by at least as much as the
        integrand is from its extrapolation, and that on the blind end at most. Those that are ``rough`` will
        be cut in any case, and their neighbours can wait for it.
        """
        apart = (self.ends[:-1, 1] - self.ends[1:, 0]).abs().nan_to_num(torch.inf)
        asked = (self.line[:-1] == self.line[1:]) & ~rough[:-1] & ~rough[1:]
        error, apart = self.error.clone(), BLIND * torch.where(asked[:, None], apart, 0.0)
        error[:-1] += self.half[:-1, None] * apart
        error[1:] += self.half[1:, None] * apart
        return self._replace(error=error)

    def between(self) -> Triple:
        """Lines, middles and halves of the intervals from the middle of each one to that of the next."""
        one = torch.ones_like(self.line[:1], dtype=torch.bool)
        apart = self.line[:-1] != self.line[1:]
        first, last = torch.cat([one, apart]), torch.cat([apart, one])
        start = torch.where(first, self.middle - self.half, self.middle.roll(1))
        order = torch.cat([2 * torch.arange(len(self.line), device=one.device), 2 * last.nonzero()[:, 0] + 1])
        left = torch.cat([start, self.middle[last]])
        right = torch.cat([self.middle, (self.middle + self.half)[last]])
        line, order = torch.cat([self.line, self.line[last]]), order.argsort()
        return line[order], ((left + right) / 2)[order], ((right - left) / 2)[order]


class Cuts(NamedTuple):
    """What lines are made of: some of them of one piece, others cut."""

    whole: Intervals | None
    cut: Intervals

    def sums(self, lines: int) -> Triple:
        """Integrals, sizes and errors of the lines, (L, k) each."""
        kinds = [self.cut] if self.whole is None else [self.whole, self.cut]
        parts = [[p.over(a, lines) for a in (p.value, p.size, p.error + p.inner)] for p in kinds]
        value, size, error = (sum(a[1:], start=a[0]) for a in zip(*parts, strict=True))
        return value, size, error


class Lines(NamedTuple):
    """Lines along one axis: the law to which each belongs, the coordinates before, and their density."""

    law: Tensor  # (L,)
    head: Tensor  # (L, axis)
    weight: Tensor  # (L,)


class Work:
    """The integration of one u: how far, how fine, and how much has been spent."""

    def __init__(self, u: Integrand, centre: Tensor, wanted: Tensor, r: int, reach: float) -> None:
        self.u, self.centre, self.wanted, self.r, self.reach = u, centre, wanted, r, reach
        self.laws, self.left = len(centre), math.inf
        self.cut, self.ends = kronrod(centre.device), extrapolation(centre.device)
        self.panels = math.ceil(DENSE * grid(self.laws) * reach / REACH)
        self.whole = self.cut  # not used on the line, where all of it has been tried
        self.kernel = False
        self.scale = torch.zeros(self.laws, 1 + r + r * r, dtype=torch.float64, device=centre.device)

    def begin_with(self, points: int, panels: int) -> None:
        """Take so many points for a whole line, and so many pieces for one that is cut."""
        self.whole, self.panels = trapezoid(points, self.scale.device), panels

    def first(self) -> Lines:
        """The first axis of every law that is wanted."""
        law = self.wanted.nonzero()[:, 0]
        return Lines(law, self.scale.new_zeros(len(law), 0), self.scale.new_ones(len(law)))

    def values(self, law: Tensor, z: Tensor) -> Tensor:
        """u at points z (N, r) of the laws (N,)."""
        self.left -= len(z)
        if self.left < 0:
            raise Spent
        table, row, column = packed(law, z, self.laws)
        tiles = table.split(max(1, TILE // self.laws), 1)
        return torch.cat([self.u(tile).double() for tile in tiles], 1)[row, column]

    def integrand(self, lines: Lines, line: Tensor, z: Tensor, goal: float) -> Triple:
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

    def below(self, lines: Lines, line: Tensor, z: Tensor) -> Lines:
        """The points z (I, 15) of lines, as lines along the next axis."""
        head = lines.head[line][:, None].expand(*z.shape, -1)
        law, weight = (a[line][:, None].expand(z.shape) for a in (lines.law, lines.weight))
        points = torch.cat([head, z[..., None]], -1).reshape(z.numel(), head.shape[-1] + 1)
        return Lines(law.reshape(-1), points, (weight * density(z[..., None])).reshape(-1))

    def pieces(
        self, rule: Axis, lines: Lines, line: Tensor, middle: Tensor, half: Tensor, goal: float
    ) -> Intervals:
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
        ends = (f.mT @ self.ends).mT if rule is self.cut else f[:, :2]  # a whole line has no neighbours
        return Intervals(line, middle, half, value, size, error, inner, ends)

    def refined(self, lines: Lines, goal: float, start: Triple | None = None) -> Cuts:
        """Pieces of lines on which the two rules agree up to ``goal``, or the best that the budget allows."""
        line = torch.arange(len(lines.law), device=self.scale.device)
        if self.r == 1:  # the whole line has been tried
            return Cuts(None, self.cut_up(lines, start or self.panelled(line), goal))
        middle = self.scale.new_zeros(len(line))
        whole = self.pieces(self.whole, lines, line, middle, torch.full_like(middle, self.reach), goal)
        rough = self.relative(lines, whole)[0] > goal
        return Cuts(whole.pick(~rough), self.cut_up(lines, self.panelled(line[rough]), goal))

    def panelled(self, line: Tensor) -> Triple:
        """Lines, middles and halves of pieces of lines to begin with."""
        width = 2 * self.reach / self.panels
        faces = torch.arange(self.panels + 1).to(self.scale) * width - self.reach
        if self.kernel and self.r == 1:
            close = 0.3 * width * torch.logspace(1 - GRADES, 0, GRADES, PARTS[1]).to(faces)
            faces = torch.cat([-close, faces[faces.abs() > close[0]], close]).sort().values
        middle, half = (faces[1:] + faces[:-1]) / 2, (faces[1:] - faces[:-1]) / 2
        return line.repeat_interleave(len(half)), middle.repeat(len(line)), half.repeat(len(line))

    def cut_up(self, lines: Lines, start: Triple, goal: float) -> Intervals:
        """Pieces of some of the lines."""
        found = self.pieces(self.cut, lines, *start, goal)
        for _ in range(ROUNDS):
            rough = self.rough(lines, found, goal)
            bad = rough | self.rough(lines, found.warned(rough), goal)
            if not bool(bad.any()) or self.spent(int(bad.sum())):
                break
            found = self.cut_more(lines, found, bad, goal)
        return found.warned(torch.zeros_like(found.line, dtype=torch.bool))

    def rough(self, lines: Lines, found: Intervals, goal: float) -> Tensor:
        """Which pieces have more than their share of the error, on lines that have too much of it."""
        error, total = self.relative(lines, found)
        share = goal / (2 * torch.bincount(found.line, minlength=len(lines.law)))
        return (error > share[found.line]) & ~(total <= goal)[found.line]

    def spent(self, pieces: int) -> bool:
        """Whether the line, for which the best that there is will do, cannot afford to cut so many pieces."""
        return self.r == 1 and self.left < pieces * PARTS[1] * len(NODES) * 2

    def relative(self, lines: Lines, found: Intervals) -> tuple[Tensor, Tensor]:
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

    def cut_more(self, lines: Lines, found: Intervals, bad: Tensor, goal: float) -> Intervals:
        """Pieces, some of them cut into `PARTS`, in their order."""
        n, old = PARTS[min(self.r, 2)], found.pick(bad)
        offset = (torch.arange(n, device=bad.device) + 0.5) * (2 / n) - 1
        middle = (old.middle[:, None] + old.half[:, None] * offset).reshape(-1)
        line, half = (a.repeat_interleave(n) for a in (old.line, old.half / n))
        new = self.pieces(self.cut, lines, line, middle, half, goal)
        place = torch.where(bad, n, 1).cumsum(0)  # behind each one
        at = torch.cat(
            [place[~bad] - 1, (place[bad][:, None] + torch.arange(-n, 0, device=bad.device)).reshape(-1)]
        )
        return joined(found.pick(~bad), new, at)

    def points(self, lines: Lines, share: Tensor, found: Cuts, goal: float) -> Triple:
        """The points of all pieces of lines with weights ``share``: laws (N,), coordinates and weights."""
        kinds = [(self.cut, found.cut), *([(self.whole, found.whole)] if found.whole else [])]
        nodes = [self.below(lines, p.line, p.middle[:, None] + p.half[:, None] * rule.x) for rule, p in kinds]
        below = Lines(*(torch.cat(a) for a in zip(*nodes, strict=True)))
        shares = [((share[p.line] * p.half)[:, None] * rule.fine).reshape(-1) for rule, p in kinds]
        share = torch.cat(shares)
        if below.head.shape[-1] == self.r:
            return below.law, below.head, below.weight * share
        # What is below has been refined before; to keep all that would take more than doing it again.
        return self.points(below, share, self.refined(below, goal / 4), goal / 4)

    def attempt(self, goal: float, budget: float, start: Triple | None = None) -> tuple[Cuts, Tensor] | None:
        """The pieces of the first axis, and the relative error of each law; None beyond the budget."""
        self.left, lines = budget * self.laws, self.first()
        try:
            found = self.refined(lines, goal, start)
        except Spent:
            return None
        _, size, rest = found.sums(len(lines.law))
        error = self.scale.new_zeros(self.laws)
        error[lines.law] = (rest / size.clamp(min=1e-300)).amax(-1)
        return found, error

    def all_points(self, found: Cuts, goal: float) -> Triple:
        """The laws, points and weights of pieces of the first axis."""
        self.left = math.inf
        lines = self.first()
        return self.points(lines, torch.ones_like(lines.weight), found, goal)


class Spent(Exception):
    """The budget is used up."""


def joined(a: Intervals, b: Intervals, place: Tensor) -> Intervals:
    """Both, each of them in its place."""
    order = torch.empty_like(place).index_put((place,), torch.arange(len(place), device=place.device))
    return Intervals(*(torch.cat(both)[order] for both in zip(a, b, strict=True)))


def packed(law: Tensor, z: Tensor, laws: int) -> Triple:
    """Points (N, r) side by side in a table (laws, n, r), filled up with zeros, and where each one stands."""
    order = torch.argsort(law, stable=True)
    count = torch.bincount(law, minlength=laws)
    column = torch.empty_like(order)
    column[order] = torch.arange(len(z), device=z.device) - (count.cumsum(0) - count)[law[order]]
    table = z.new_zeros(laws, int(count.max()), z.shape[-1])
    return table.index_put((law, column), z), law, column


def apart(value: Tensor, other: Tensor, size: Tensor) -> Tensor:
    """How far integrals (L, k) are from others, relative to the sizes of those; the worst for each line."""
    size = torch.maximum(size, size[:, :1] * 1e-13)  # constants have no slope, but for rounding
    return ((value - other).abs() / size.clamp(min=1e-300)).amax(-1)
