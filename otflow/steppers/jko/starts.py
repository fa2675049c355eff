"""Searches from several starts, as one batch: they may refute a minimiser, and never prove one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from otflow.base.tangent import Tangent, align
from otflow.steppers.jko.truncated_newton import Minimum

# Chosen: lengths of first moves grow by equal factors between these multiples of the extent of the problem.
SHORTEST, LONGEST = 1 / 8, 4.0


def scattered(first: Tangent, count: int, extent: Tensor, norm: Callable[[Tangent], Tensor]) -> Tangent:
    """``first`` and count - 1 other displacements, in a new leading axis; the same for every member.

    They go in random directions and in the opposite ones, by lengths around ``extent`` (*batch,).
    """
    batch = extent.ndim
    ways = first.map(lambda a: _directions(a.new_empty(a.shape[batch:]), count).to(a))
    ways = ways.zip(first, lambda w, a: w.reshape(count, *[1] * batch, *w.shape[1:]).expand(count, *a.shape))
    pairs = torch.arange(count, dtype=extent.dtype, device=extent.device).sub(1).clamp(min=0).div(2).floor()
    share = pairs / pairs[-1].clamp(min=1)
    length = align(SHORTEST * (LONGEST / SHORTEST) ** share, extent[None]) * extent
    scale = length / norm(ways).clamp(min=torch.finfo(extent.dtype).tiny)
    return (ways * scale).zip(first, lambda u, a: torch.cat([a[None], u[1:]]))


def _directions(like: Tensor, count: int) -> Tensor:
    """Random directions in pairs of opposites, after the first one; (count, ...)."""
    generator = torch.Generator().manual_seed(5_774_300_912)
    half = torch.randn(count // 2 + 1, *like.shape, generator=generator, dtype=torch.float64)
    pairs = torch.stack([half, -half], 1).flatten(0, 1)
    return torch.cat([half[:1], pairs])[:count]


def lowest(found: Minimum, value: Tensor) -> Minimum:
    """Of searches (count, *batch) the one with the least value among those that arrived, else the first."""
    slack = 1e-12 * value[:1].abs()  # others have to be better by more than rounding
    value = torch.cat([value[:1] - slack, value[1:]])
    best = torch.where((found.failed == 0) & torch.isfinite(value), value, torch.inf).argmin(0)
    return _changed(found, lambda a: taken(a, best))


def joined(a: Minimum, b: Minimum) -> Minimum:
    """Two searches as one, in a new leading axis."""
    others = iter((*b.u, b.residual, b.failed, b.least, b.noise))
    most = max(a.iterations, b.iterations)
    return replace(_changed(a, lambda p: torch.stack([p, next(others)])), iterations=most)


def _changed(found: Minimum, f: Callable[[Tensor], Tensor]) -> Minimum:
    """The minimum with all of its tensors changed, u first."""
    u = found.u.map(f)
    residual, failed, least, noise = (f(a) for a in (found.residual, found.failed, found.least, found.noise))
    return replace(found, u=u, residual=residual, failed=failed, least=least, noise=noise)


def taken(a: Tensor, best: Tensor) -> Tensor:
    """a[best], for an index into the leading axis that depends on the axes after it."""
    index = align(best, a[0])[None].expand(1, *a.shape[1:])
    return a.gather(0, index)[0]
