"""Boxes: space is cut where products of the rules of Kronrod and Gauss disagree, along the worst axis.

They follow what is narrow in all directions, which lines one axis after the other cannot afford, and how far
they have come after so many points is known at every tolerance on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from otflow.base.integrals.quadrature import Axis, kronrod, stein

Values: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # laws (N,) and points (N, r) -> (N,)

# Boxes per axis to begin with, of two partitions; what both say must agree, as a cap of a ball may hide
# between the points of a box, or a jump beyond the last of them. The second ends farther out on one side by a
# part of the reach, so that faces lie elsewhere however often boxes are halved; chosen.
PARTITIONS = {2: ((8, 0.0), (11, 0.0371)), 3: ((4, 0.0), (5, 0.0371))}
WORST = 0.1  # boxes are cut that have this part of the error of the worst one; chosen
ROUNDS = 400  # of cuts, at most; chosen
PEAKS = 8  # places where the integrand is largest at which a partition begins finer; chosen
TILE = 2**17  # points at a time, with some dozen numbers each; chosen


class Boxes(NamedTuple):
    """Boxes of laws with integrals of all moments, of their absolute values, and errors along each axis."""

    law: Tensor  # (I,)
    middle: Tensor  # (I, r)
    half: Tensor
    value: Tensor  # (I, k)
    size: Tensor
    error: Tensor  # (I, r, k)

    def pick(self, which: Tensor) -> Boxes:
        return Boxes(*(a[which] for a in self))

    def over(self, a: Tensor, laws: int) -> Tensor:
        """The sum of a over the boxes of each law."""
        return a.new_zeros(laws, *a.shape[1:]).index_add(0, self.law, a)

    def relative(self, laws: int) -> Tensor:
        """The errors along each axis, in units of the integrals of absolute values: (I, r)."""
        size = self.over(self.size, laws)
        size[:, 1:] = torch.maximum(size[:, 1:], size[:, :1] * 1e-13)  # constants have no slope
        return (self.error / size.clamp(min=1e-300)[self.law][:, None]).amax(-1)

    def points(self, rule: Axis) -> tuple[Tensor, Tensor, Tensor]:
        """Laws (N,), points (N, r) and weights (N,) with the density."""
        r = self.half.shape[-1]
        x, weights = _product(rule, r)
        z = self.middle[:, None] + self.half[:, None] * x
        w = self.half.prod(-1)[:, None] * weights[:, 0] * density(z)
        return self.law.repeat_interleave(len(x)), z.reshape(-1, r), w.reshape(-1)


class Stop(NamedTuple):
    """Boxes with which a tolerance was reached, the error of each law, and the points that it took."""

    boxes: Boxes
    error: Tensor  # (laws,)
    points: float

    def sums(self) -> tuple[Tensor, Tensor]:
        laws = len(self.error)
        return self.boxes.over(self.boxes.value, laws), self.boxes.over(self.boxes.size, laws)


def density(z: Tensor) -> Tensor:
    """That of the standard normal law at points (*, r)."""
    return torch.exp(-z.square().sum(-1) / 2) / (2 * math.pi) ** (z.shape[-1] / 2)


def settled(
    values: Values, centre: Tensor, first: Sequence[Boxes], tolerances: Sequence[float], budget: float
) -> dict[float, Stop]:
    """For each tolerance that is reached by two partitions which agree, the boxes of the second one."""
    one, two = (refined(values, centre, start, tolerances, budget) for start in first)
    found = {}
    for tol in tolerances:
        if tol not in one or tol not in two:
            continue
        (value, _), (other, size) = one[tol].sums(), two[tol].sums()
        size[:, 1:] = torch.maximum(size[:, 1:], size[:, :1] * 1e-13)
        error = two[tol].error + ((value - other).abs() / size.clamp(min=1e-300)).amax(-1)
        if bool((error <= tol).all()):
            found[tol] = Stop(two[tol].boxes, error, max(one[tol].points, two[tol].points))
    return found


def refined(
    values: Values, centre: Tensor, start: Boxes, tolerances: Sequence[float], budget: float
) -> dict[float, Stop]:
    """The boxes at half of each tolerance that is reached within ``budget`` points per law."""
    laws, each = len(centre), len(_product(kronrod(centre.device), start.half.shape[-1])[0])
    boxes, spent = _integrated(values, centre, start), len(start.law) * each
    stops: dict[float, Stop] = {}
    for _ in range(ROUNDS):
        error = boxes.relative(laws)
        own = error.sum(-1)
        total = boxes.over(own, laws)
        for tol in tolerances:
            if tol not in stops and bool((total <= tol / 2).all()):
                stops[tol] = Stop(boxes, total, spent / laws)
        worst = torch.zeros_like(total).scatter_reduce(0, boxes.law, own, "amax")
        bad = (own >= WORST * worst[boxes.law]) & (total > min(tolerances) / 2)[boxes.law]
        spent += 2 * int(bad.sum()) * each
        if not bool(bad.any()) or spent > budget * laws:
            break
        halves = _integrated(values, centre, halved(boxes.pick(bad), error[bad]))
        boxes = Boxes(*(torch.cat(both) for both in zip(boxes.pick(~bad), halves, strict=True)))
    return stops


def halved(boxes: Boxes, by: Tensor) -> Boxes:
    """Each box cut in two across the axis where ``by`` (I, r) is largest; integrals are not known yet."""
    axis = torch.nn.functional.one_hot(by.argmax(-1), by.shape[-1]).to(boxes.half)
    half = boxes.half * (1 - axis / 2)
    middle = torch.cat([boxes.middle - axis * half, boxes.middle + axis * half])
    law, half, value, size, error = (torch.cat([a, a]) for a in (boxes.law, half, *boxes[3:]))
    return Boxes(law, middle, half, value, size, error)


def partition(law: Tensor, reach: float, cubed: tuple[int, float], peaks: Tensor, spacing: float) -> Boxes:
    """Cubes up to ``reach`` for the laws (L,), cut around their ``peaks`` (laws, p, r) to ``spacing``."""
    r, (count, more) = peaks.shape[-1], cubed
    half = reach * (1 + more / 2) / count
    ticks = (2 * torch.arange(count, device=law.device) + 1).to(peaks) * half - reach
    cubes = torch.cartesian_prod(*[ticks] * r)
    k, n = 1 + r + r * r, len(cubes) * len(law)
    start = peaks.new_zeros(n, k)
    boxes = Boxes(
        law.repeat_interleave(len(cubes)), cubes.repeat(len(law), 1), peaks.new_full((n, r), half),
        start, start, peaks.new_zeros(n, r, k),
    )  # fmt: skip
    while True:
        inside = ((peaks[boxes.law] - boxes.middle[:, None]).abs() <= boxes.half[:, None]).all(-1).any(-1)
        near = inside & (boxes.half > spacing).any(-1)
        if not bool(near.any()):
            return boxes
        two = halved(boxes.pick(near), boxes.half[near])
        boxes = Boxes(*(torch.cat(both) for both in zip(boxes.pick(~near), two, strict=True)))


def highest(u: Tensor, z: Tensor, n: int) -> Tensor:
    """Where |u| (laws, n^r) times the density is largest around, on a lattice z (n^r, r): (laws, p, r).

    Fewer than `PEAKS` of them leave NaN, which is in no box.
    """
    r = z.shape[-1]
    log = u.abs().nan_to_num(0.0, 0.0, 0.0).log() - z.square().sum(-1) / 2
    grid = log.reshape(len(u), 1, *[n] * r)
    pool = {2: torch.nn.functional.max_pool2d, 3: torch.nn.functional.max_pool3d}[r]
    peak = torch.isfinite(grid) & (pool(grid, 3, stride=1, padding=1) == grid)
    height, where = torch.where(peak.reshape(len(u), -1), log, -torch.inf).topk(PEAKS)
    return torch.where(torch.isfinite(height)[..., None], z[where], torch.nan)


def _integrated(values: Values, centre: Tensor, boxes: Boxes) -> Boxes:
    """The boxes with their integrals."""
    rule = kronrod(centre.device)
    step = max(1, TILE // len(_product(rule, boxes.half.shape[-1])[0]))
    tiles = torch.arange(len(boxes.law), device=centre.device).split(step)
    done = [_tile(values, centre, boxes.pick(tile), rule) for tile in tiles]
    return Boxes(*(torch.cat(parts) for parts in zip(*done, strict=True)))


def _tile(values: Values, centre: Tensor, boxes: Boxes, rule: Axis) -> Boxes:
    r = boxes.half.shape[-1]
    x, weights = _product(rule, r)
    z = boxes.middle[:, None] + boxes.half[:, None] * x
    law = boxes.law.repeat_interleave(len(x))
    u = values(law, z.reshape(-1, r)).reshape(len(z), -1)
    broken = ~torch.isfinite(u).all(-1)
    u = torch.where(broken[:, None], 0.0, u)
    mass = density(z) * boxes.half.prod(-1)[:, None]
    h = stein(z).movedim(-1, 0) * mass  # (k, I, n)
    f = h * (u - centre[boxes.law][:, None])
    f[0] = u * mass
    sums = (f @ weights).movedim(0, -1)  # (I, 1 + r, k)
    size = (f.abs() @ weights[:, 0]).movedim(0, -1)
    error = torch.where(broken[:, None, None], torch.inf, sums[:, 1:].abs())
    return boxes._replace(value=sums[:, 0], size=size, error=error)


@lru_cache(maxsize=8)
def _product(rule: Axis, r: int) -> tuple[Tensor, Tensor]:
    """Points (n^r, r), weights (n^r, 1 + r): of the product, and what changes with Gauss along one axis."""
    x = torch.cartesian_prod(*[rule.x] * r)

    def product(coarse: int | None) -> Tensor:
        axes = [rule.fine - rule.coarse if i == coarse else rule.fine for i in range(r)]
        return torch.cartesian_prod(*axes).prod(-1)

    return x, torch.stack([product(i) for i in (None, *range(r))], -1)
