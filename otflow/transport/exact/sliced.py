"""Sliced Wasserstein distances: optimal transport on lines, by sorting."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.kernels import row_tiles
from otflow.base.spaces import norm
from otflow.measures import Grid, Measure
from otflow.transport.comparable import Pair, exponent, pair, power_mean, streamed
from otflow.transport.exact.densities import of_atoms
from otflow.transport.exact.line_densities import line_distance, on_line
from otflow.transport.exact.network_simplex import negligible
from otflow.transport.ranges import rounded


def sliced_wasserstein(
    mu: Measure,
    nu: Measure,
    p: float = 2,
    *,
    directions: Any = 100,
    rng: int | np.random.Generator | None = None,
) -> Tensor:
    """SW_p = (1/k sum_j W_p(theta_j.x, theta_j.y)^p)^(1/p), shape (*batch,): the mean over k lines.

    At most W_p, and a distance itself in the limit of all directions; random ones estimate the p-th power
    without bias, with a relative error of order 1/sqrt(k). Any weights; takes O(k n log n) time, and O(k + n)
    memory also for the gradient. Points on a sphere are taken as points of the space around it.

    Where the cumulative weights of both measures agree up to (n + m) units of rounding, they count as equal.

    Args:
        mu, nu: `Particles`, or densities on a `Grid`. On the line these are constant on cells, and the
            distance is that of `wasserstein`; in the plane they count as atoms in the centres of the cells.
        p: the order, >= 1.
        directions: how many random ones, or unit vectors (k, d).
        rng: a seed or a `numpy.random.Generator`, which random directions need.

    Raises:
        ConvergenceError: densities in the plane are within some cells of each other, where atoms are too far
            apart by more than 5% as far as is known: see `wasserstein`, which measures them.

    Reference: Bonneel, Rabin, Peyre and Pfister 2015, "Sliced and Radon Wasserstein barycenters of measures".

    >>> from otflow import sliced_wasserstein
    >>> import numpy as np
    >>> import otflow as of
    >>> mu, nu = of.Particles([[0.0, 0.0], [1.0, 0.0]]), of.Particles([[0.0, 3.0], [1.0, 3.0]])
    >>> sliced_wasserstein(mu, nu, directions=np.eye(2)).item()  # 3 along one axis, 0 along the other
    2.1213
    """
    p, both = exponent(p), pair(mu, nu)
    rule = "lines wind around a torus, so there are no slices"
    remedy = "use wasserstein, or embed the tokens by cosines and sines"
    checks.require(both.space.linear, "mu.space", both.space, rule, remedy)
    theta = _directions(directions, rng, both.x.shape[-1]).to(both.x.device)
    if on_line(mu, nu):  # all directions are that of the line
        return line_distance(mu, nu, p)
    tiles = row_tiles(len(theta), both.w.numel() + both.v.numel())
    slices = streamed(partial(_slices, p, _plain(both)), tiles, theta, *_centred(both))
    out = power_mean(slices, torch.full_like(slices, 1 / len(theta)), p).reshape(both.batch)
    if isinstance(mu, Grid) and isinstance(nu, Grid):
        of_atoms(mu, nu, p, out, lines=True).trusted(mu)
    return rounded(out, mu.dtype, "distance", noise=lambda: _noise(both))


def _directions(directions: Any, rng: int | np.random.Generator | None, d: int) -> Tensor:
    """Unit vectors (k, d)."""
    if np.ndim(directions) == 0:
        k = checks.count(directions, "directions")
        if rng is None:
            checks.fail("rng", None, "random directions need a source", "pass a seed, rng=0, or directions")
        z = checks.generator(rng).standard_normal((k, d))
        return torch.from_numpy(z / np.linalg.norm(z, axis=-1, keepdims=True))
    theta = checks.tensor(directions, "directions").double()
    good = theta.ndim == 2 and theta.shape[-1] == d and len(theta)
    rule = f"(k, d) is needed, with d = {d}"
    checks.require(good, "directions.shape", theta.shape, rule, "pass one unit vector per row")
    length = norm(theta)[:, None]
    if ((length - 1).abs() > 1e-6).any():
        worst = length.flatten()[(length - 1).abs().argmax()].item()
        checks.fail(
            "|direction|",
            worst,
            "directions are unit vectors within 1e-6",
            "pass theta / theta.norm(dim=-1, keepdim=True)",
        )
    return theta / length


def _centred(both: Pair) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both clouds shifted alike, so that projections far from the origin keep their digits."""
    centre = (both.w[..., None] * both.x).sum(-2, keepdim=True).detach()
    return both.x - centre, both.w, both.y - centre, both.v


def _noise(both: Pair) -> Tensor:
    """What the rounding of projections may make of a distance 0, (*batch,)."""
    size = torch.maximum(*(z.detach().abs().amax((-1, -2)) for z in (both.x, both.y)))
    return (64 * torch.finfo(size.dtype).eps * size).reshape(both.batch)


def _plain(both: Pair) -> bool:
    """Whether atoms are matched one to one: as many in both measures, with equal weights."""
    if both.w.shape != both.v.shape or both.w.requires_grad or both.v.requires_grad:
        return False
    return bool((both.w == both.w[:, :1]).all()) and bool((both.v == both.v[:, :1]).all())


def _slices(
    p: float, plain: bool, rows: slice, theta: Tensor, x: Tensor, w: Tensor, y: Tensor, v: Tensor
) -> Tensor:
    """W_p along some directions, (B, k)."""
    x, y = theta[rows] @ x.mT, theta[rows] @ y.mT  # (B, k, n), (B, k, m)
    if plain:
        gap = x.sort(-1).values - y.sort(-1).values
        return power_mean(gap, torch.full_like(gap, 1 / gap.shape[-1]), p)
    return _weighted(x, w[:, None].expand_as(x), y, v[:, None].expand_as(y), p)


def _weighted(x: Tensor, w: Tensor, y: Tensor, v: Tensor, p: float) -> Tensor:
    """W_p = (int_0^1 |F^-1 - G^-1|^p)^(1/p) for weighted atoms on lines, over the last axis."""
    (x, w, F), (y, v, G) = _quantiles(x, w), _quantiles(y, v)
    level = torch.cat([F, G], -1).sort(-1).values
    i, j = (torch.searchsorted(c.detach(), level.detach()) for c in (F, G))
    mass = torch.diff(level, dim=-1, prepend=torch.zeros_like(level[..., :1]))
    # Where F and G meet in exact arithmetic, rounding leaves slivers of heavier atoms, matched wrongly.
    sliver = negligible(mass, w.gather(-1, i), v.gather(-1, j), level.shape[-1])
    mass = torch.where(sliver, torch.zeros_like(mass), mass)
    return power_mean(x.gather(-1, i) - y.gather(-1, j), mass, p)


def _quantiles(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Atoms in order, their weights, and the cumulative weights, which end in 1 exactly."""
    x, order = x.sort(-1)
    w = w.gather(-1, order)
    F = w.cumsum(-1)
    return x, w, F / F[..., -1:]
