"""Exact transport on the line between densities constant on cells, and atoms, by quantile functions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.spaces import Euclidean
from otflow.measures import Grid, Measure, Particles
from otflow.transport.comparable import common_batch, merge, root
from otflow.transport.exact.network_simplex import negligible
from otflow.transport.ranges import rounded


class Pieces(NamedTuple):
    """Mass that is spread evenly over intervals, from left to right; an atom is an interval of length 0."""

    low: Tensor  # (B, n)
    high: Tensor  # (B, n)
    mass: Tensor  # (B, n), of sum one

    def flipped(self) -> Pieces:
        """The mirror image x -> -x."""
        return Pieces(-self.high.flip(-1), -self.low.flip(-1), self.mass.flip(-1))


def on_line(mu: Measure, nu: Measure) -> bool:
    """Whether one of the measures is a density on the line, and the other one that or atoms in R."""
    both = (mu, nu)
    flat = all((isinstance(m, Particles) and m.space == Euclidean()) or isinstance(m, Grid) for m in both)
    return flat and any(isinstance(m, Grid) and len(m.axes) == 1 for m in both) and _d(mu) == _d(nu) == 1


def _d(mu: Measure) -> int:
    return len(mu.axes) if isinstance(mu, Grid) else mu.coords[0].shape[-1]


def line_distance(mu: Measure, nu: Measure, p: float) -> Tensor:
    """W_p^p = int_0^1 |X(s) - Y(s)|^p ds for the quantile functions X, Y of mu and nu, (*batch,).

    Where the density is constant on cells, X is linear between the levels that are reached at their walls. So
    the integral is a sum of powers over the levels of both, without error but rounding, also between
    different grids and at displacements far below a cell. Levels are counted from either end to the
    median, so that thin tails keep their digits; levels that differ by rounding count as equal.

    Reference: Santambrogio 2015, "Optimal transport for applied mathematicians", Proposition 2.17.

    >>> from otflow.transport.exact.line_densities import line_distance
    >>> import otflow as of
    >>> mu, nu = of.Grid([1.0, 0.0], [[0.5, 1.5]]), of.Grid([0.0, 1.0], [[0.5, 1.5]])
    >>> line_distance(mu, nu, 2).item(), line_distance(mu, of.Particles([[0.5]]), 1).item()
    (1.0, 0.25)
    """
    checks.alike(checks.finite(nu.coords[0], "nu"), "nu", checks.finite(mu.coords[0], "mu"), "mu")
    batch = common_batch(mu, nu)
    a, b = (Pieces(*(merge(z, batch, 1) for z in _pieces(m))) for m in (mu, nu))
    halves = [_half(a, b), _half(a.flipped(), b.flipped())]
    mass, start, end = (torch.cat(z, -1) for z in zip(*halves, strict=True))
    top = torch.where(mass > 0, torch.maximum(start.abs(), end.abs()), 0.0).amax(-1, keepdim=True)
    unit = torch.where(top > 0, top, torch.ones_like(top)).detach()
    if math.isinf(p):
        distance = top[:, 0]
    else:
        distance = root((mass * _mean_power(start / unit, end / unit, p)).sum(-1), p) * unit[:, 0]
    return rounded(distance.reshape(batch), mu.dtype, "distance")


def _pieces(mu: Measure) -> Pieces:
    x, w = (z.double() for z in mu.nodes())
    x, order = x[..., 0].sort(-1)
    w = w.gather(-1, order)
    half = torch.diff(mu.axes[0].double()[:2]) / 2 if isinstance(mu, Grid) else 0.0  # with its derivative
    return Pieces(x - half, x + half, w / w.sum(-1, keepdim=True))


def _half(a: Pieces, b: Pieces) -> tuple[Tensor, Tensor, Tensor]:
    """Below the median: masses over which X and Y are linear, and X - Y where each begins and ends."""
    (A, n), (B, m) = ((z.mass.cumsum(-1), z.mass.shape[-1]) for z in (a, b))
    # Ranks rather than a search, so that cells without mass have their place, and with it a derivative.
    level, order = torch.cat([A, B], -1).clamp(max=0.5).sort(dim=-1, stable=True)
    of_a = (order < n).long()
    i = (of_a.cumsum(-1) - of_a).clamp(max=n - 1)
    j = ((1 - of_a).cumsum(-1) - (1 - of_a)).clamp(max=m - 1)
    before = torch.cat([torch.zeros_like(level[..., :1]), level[..., :-1]], -1)
    (x0, x1, own), (y0, y1, other) = _ends(a, A, i, before, level), _ends(b, B, j, before, level)
    mass = level - before
    sliver = negligible(mass, own, other, n + m) & (mass > 0)
    return torch.where(sliver, torch.zeros_like(mass), mass), x0 - y0, x1 - y1


def _ends(z: Pieces, Z: Tensor, i: Tensor, before: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantiles within the pieces i at two levels, and the masses of these pieces."""
    start = torch.cat([torch.zeros_like(Z[..., :1]), Z[..., :-1]], -1).gather(-1, i)
    mass = Z.gather(-1, i) - start  # rather than z.mass, so that a piece ends in its wall to the last digit
    empty = mass <= 0
    size = torch.where(empty, torch.ones_like(mass), mass)
    at = ((before - start) / size).clamp(0, 1), ((level - start) / size).clamp(0, 1)
    at = torch.where(empty, torch.zeros_like(mass), at[0]), torch.where(empty, torch.ones_like(mass), at[1])
    low, width = z.low.gather(-1, i), (z.high - z.low).gather(-1, i)
    return low + at[0] * width, low + at[1] * width, mass


def _mean_power(u: Tensor, v: Tensor, p: float) -> Tensor:
    """int_0^1 |u + (v - u) r|^p dr."""
    if p == 2:
        return (u.square() + u * v + v.square()) / 3
    big, small = torch.maximum(u.abs(), v.abs()), torch.minimum(u.abs(), v.abs())
    none = big == 0
    big = torch.where(none, torch.ones_like(big), big)
    through = (big ** (p + 1) + small ** (p + 1)) / ((p + 1) * (big + small))
    # On one side of 0: big^p (1 - (1 - z)^(p + 1)) / ((p + 1) z), which loses its digits at small z.
    z = (big - small) / big
    flat, low = z == 0, z < 0.5
    near = torch.where(low & ~flat, z, torch.full_like(z, 0.25))
    near = -torch.expm1((p + 1) * torch.log1p(-near)) / near
    far = torch.where(low, torch.ones_like(z), z)
    far = (1 - (1 - far) ** (p + 1)) / far
    aside = big**p * torch.where(flat, torch.ones_like(z), torch.where(low, near, far) / (p + 1))
    return torch.where(none, torch.zeros_like(big), torch.where(u * v < 0, through, aside))
