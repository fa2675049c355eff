"""Quadrature for standard normal laws in up to three dimensions: two rules, which are compared.

What must agree is not only E[u] but also E[u z] and E[u (z z^T - I)], which by Stein's identity are the
derivatives of E[u(z)] when the law moves, whether or not u has any. Where the rules do not agree there are
`meshes`. Whoever computes an integral notes how good it is, and flows record that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Points of the trapezoidal rule on the line for up to so many laws, 0.03 and 0.13 apart in the middle;
# chosen: of single laws nothing is to be missed, of many the time counts.
GRIDS = ((64, 384), (math.inf, 96))
# The part of a tolerance that a gap may have, by dimension: at a kink it may nearly vanish by chance. On the
# line, as on lattices, the rule is exact to many digits or not to be trusted; chosen.
STRICT = {1: 1e-4, 2: 0.1, 3: 0.1}
REACH = 12.0  # standard deviations to which it goes; exp(-72) is below rounding
# Points per axis of the two Gauss-Hermite rules; an odd and an even one, since at a jump near the middle all
# even ones say one half.
HERMITE = {2: (15, 22), 3: (9, 12)}

# The rule of Kronrod with 15 points and that of Gauss with 7 (QUADPACK, Piessens et al. 1983).
NODES = (0.991455371120812639, 0.949107912342758525, 0.864864423359769073, 0.741531185599394440,
         0.586087235467691130, 0.405845151377397167, 0.207784955007898468, 0.0)  # fmt: skip
KRONROD = (0.022935322010529225, 0.063092092629978553, 0.104790010322250184, 0.140653259715525919,
           0.169004726639267903, 0.190350578064785410, 0.204432940075298892,
           0.209482141084727828)  # fmt: skip
GAUSS = (0.0, 0.129484966168869693, 0.0, 0.279705391489276668,
         0.0, 0.381830050505118945, 0.0, 0.417959183673469388)  # fmt: skip


class Rules(NamedTuple):
    """Points (n, r) and weights (n,) of a rule, and what it takes to compare it with a coarser one."""

    z: Tensor
    fine: Tensor
    gaps: Tensor  # (n, k), the functions of `stein` with the difference of the weights
    moments: Tensor  # (n, k), with the weights of the finer rule
    sizes: Tensor  # (n, k), and their absolute values

    @staticmethod
    def of(z: Tensor, fine: Tensor, coarse: Tensor) -> Rules:
        h, w = stein(z), fine[:, None]
        return Rules(z, fine, (fine - coarse)[:, None] * h, w * h, w * h.abs())


class Record:
    """The worst relative error of the integrals computed under `recorded`, (*batch,), or None without any."""

    def __init__(self) -> None:
        self.worst: Tensor | None = None

    def add(self, error: Tensor) -> None:
        old, new = self.worst, error.detach().double()
        if old is not None and old.shape != new.shape:  # a batch and its members: who knows whose it was
            old, new = old.max(), new.max()
        self.worst = new if old is None else torch.fmax(old, new)


_RECORDS: ContextVar[tuple[Record, ...]] = ContextVar("records", default=())


@contextmanager
def recorded() -> Iterator[Record]:
    """Keep the errors of all integrals that are computed inside, however deep."""
    record = Record()
    token = _RECORDS.set((*_RECORDS.get(), record))
    try:
        yield record
    finally:
        _RECORDS.reset(token)


def note(error: Tensor) -> None:
    """Tell those who record how good an integral is."""
    for record in _RECORDS.get():  # none as a rule, and then this costs nothing
        record.add(error)


# --- two rules on one set of points ------------------------------------------------------------------


@lru_cache(maxsize=16)
def pair(r: int, grid: int, dtype: torch.dtype, device: torch.device) -> Rules:
    """The two rules that are tried first; ``grid`` is the number of points on the line."""
    arrays = _line(grid) if r == 1 else _two(*(hermite(r, n) for n in HERMITE[r]))
    rules = Rules.of(*(torch.as_tensor(a) for a in arrays))
    return Rules(*(a.to(dtype=dtype, device=device) for a in rules))


def grid(laws: int) -> int:
    """Points on the line for each of so many laws."""
    return next(points for most, points in GRIDS if laws <= most)


def _line(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The trapezoidal rule in t for z = 3 sinh t, exponentially accurate.

    The coarser one has every second point. It ends earlier, so that tails which have not died away are a
    disagreement. Neither is symmetric: at a kink in the middle errors of both would be the same.
    """
    end = math.asinh(REACH / 3)
    t = (np.arange(count) + 0.37) * (2 * end / count) - end
    z = 3 * np.sinh(t)
    w = 3 * np.cosh(t) * np.exp(-(z**2) / 2)
    half = np.where((np.arange(count) % 2 == 0) & (np.abs(z) < 10), w, 0.0)
    return z[:, None], w / w.sum(), half / half.sum()


def hermite(r: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (n^r, r) and weights of the product of Gauss-Hermite rules."""
    z, w = np.polynomial.hermite_e.hermegauss(n)
    return product([z] * r), product([w / w.sum()] * r).prod(-1)


def product(axes: list[np.ndarray]) -> np.ndarray:
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def _two(
    coarse: tuple[np.ndarray, np.ndarray], fine: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both sets of points, each weight zero where the other rule is."""
    (y, v), (z, w) = coarse, fine
    return np.concatenate([z, y]), np.r_[w, 0 * v], np.r_[0 * w, v]


def stein(z: Tensor) -> Tensor:
    """1, and for each i z_i and z_i z_j - (i = j) for all j: (*, n, r) -> (*, n, 1 + r + r^2)."""
    r = z.shape[-1]
    one = torch.ones_like(z[..., :1])
    products = z[..., None] * torch.cat([one, z], -1)[..., None, :]
    products[..., 1:] -= torch.eye(r, dtype=z.dtype, device=z.device)
    return torch.cat([one, products.flatten(-2)], -1)


def worst_gap(u: Tensor, rules: Rules, slopes: Tensor | None = None, mean: Tensor | None = None) -> Tensor:
    """How far E[u h] is apart by the two rules on values u (*batch, n); the worst h, (*batch,).

    Relative to E|u| for h = 1, and else to E|(u - c) h| with c = E[u] by the finer rule, the ``mean`` if it
    is known: constants have no slope, and both rules say so up to rounding. Slopes (*batch, r, 1 + r),
    derivatives of E[u] in mean and root found in another way, are compared too.

    NaN where all values are zero, which may be what the points have missed of a narrow bump.
    """
    c = (u @ rules.fine if mean is None else mean)[..., None]
    v = u - c
    size = (v.abs() @ rules.sizes).clamp_(min=torch.finfo(u.dtype).tiny)
    size[..., 0] = u.abs() @ rules.sizes[:, 0]
    apart = (u @ rules.gaps).abs_()
    if slopes is not None:
        other = ((v @ rules.moments)[..., 1:] - slopes.flatten(-2)).abs()
        apart[..., 1:] = torch.maximum(apart[..., 1:], other)
    noise = 64 * torch.finfo(u.dtype).eps * c.abs()  # what rounding leaves of u is no disagreement
    return ((apart - noise).clamp_(min=0) / size).amax(-1)


# --- rules on an interval -------------------------------------------------------------------------------


class Axis(NamedTuple):
    """A rule on [-1, 1] and a coarser one on the same points."""

    x: Tensor
    fine: Tensor
    coarse: Tensor


@lru_cache(maxsize=4)
def kronrod(device: torch.device) -> Axis:
    x, wide, narrow = (np.array(a) for a in (NODES, KRONROD, GAUSS))
    arrays = (np.r_[-x, x[-2::-1]], np.r_[wide, wide[-2::-1]], np.r_[narrow, narrow[-2::-1]])
    return Axis(*(torch.as_tensor(a, device=device) for a in arrays))


@lru_cache(maxsize=4)
def extrapolation(device: torch.device) -> Tensor:
    """What takes values at the points of `kronrod` to those of their polynomial at -1 and 1, (15, 2)."""
    x = kronrod(device).x
    apart = x[:, None] - x + torch.eye(len(x), device=device)
    factors = torch.where(torch.eye(len(x), dtype=torch.bool, device=device), 1.0, (1 - x) / apart)
    end = factors.prod(-1)
    return torch.stack([end.flip(0), end], -1)


@lru_cache(maxsize=16)
def trapezoid(count: int, device: torch.device) -> Axis:
    """Exponentially accurate for what vanishes at both ends; not symmetric, as kinks in the middle are."""
    x = (np.arange(count) + 0.37) * (2 / count) - 1
    fine = np.full(count, 2 / count)
    coarse = np.where(np.arange(count) % 2, 0, 2 * fine)
    return Axis(*(torch.as_tensor(a, device=device) for a in (x, fine, coarse)))
