"""Optimal transport on the line by sorting: the monotone coupling, with potentials that prove it.

For a convex cost h(x - y) the coupling that keeps the order is optimal. Let (r_k, s_k) be the pairs that it
joins, from left to right. Potentials are feasible as soon as every step from one pair to the next has

    c(r', s') - c(r, s')  <=  f(r') - f(r)  <=  c(r', s) - c(r, s)          (c = d^p, Monge's condition).

Both sides agree where an atom is split, and the step is forced; elsewhere we take the smallest step, so that
potentials within a tight cluster are as small as the costs there and keep their digits.

Reference: Santambrogio 2015, "Optimal transport for applied mathematicians", Section 2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otflow.base.kernels import row_tiles
from otflow.base.status import code
from otflow.transport.exact.network_simplex import TOL, negligible, unit_of
from otflow.transport.exact.plans import Coupling

TOTAL = 2**62  # units of mass: cumulative sums of whole numbers have no rounding errors, and int64 holds them


def line(x: Tensor, y: Tensor, a: Tensor, b: Tensor, p: float) -> Coupling:
    """Plans between points x (B, n) and y (B, m) with weights a (B, n) and b (B, m) of sum one."""
    (a_, b_), total = _counts(a, b)
    i, j = (torch.where(w > 0, z, torch.inf).argsort(dim=-1, stable=True) for z, w in ((x, a_), (y, b_)))
    r, s, mass = _monotone(a_.gather(-1, i), b_.gather(-1, j), total)
    rows, cols = i.gather(-1, r), j.gather(-1, s)
    X, Y = x.gather(-1, rows), y.gather(-1, cols)
    unit = units((X - Y).abs().amax(-1))
    F, G = _potentials(X, Y, mass, unit[:, None], p)
    f = torch.full_like(x, -torch.inf).scatter(-1, rows, F)
    g = torch.full_like(y, torch.inf).scatter_reduce(-1, cols, G, "amin")
    f, g = _extend(x, y, f, torch.where(b_ > 0, g, -torch.inf), unit[:, None, None], p)
    value = (mass * _cost(X - Y, unit[:, None], p)).sum(-1)
    bound = ((a * f).sum(-1) + (b * g).sum(-1)).clamp(min=0)
    codes = torch.where((value - bound).abs() <= TOL * value, 0, code("uncertified"))
    return Coupling(rows, cols, mass, f, g, value, bound, unit, codes)


def units(distance: Tensor) -> Tensor:
    """A power of two just above each distance."""
    return torch.tensor([unit_of(d) for d in distance.tolist()], dtype=distance.dtype, device=distance.device)


def _counts(a: Tensor, b: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Weights as whole numbers of the same sum: exact if both are uniform, else in units of 1 / TOTAL."""
    n, m = a.shape[-1], b.shape[-1]
    uniform = ((a == a[:, :1]).all(-1) & (b == b[:, :1]).all(-1))[:, None]
    total = torch.where(uniform, n * m, TOTAL)
    return (torch.where(uniform, m, _whole(a)), torch.where(uniform, n, _whole(b))), total


def _whole(w: Tensor) -> Tensor:
    k = (w * float(TOTAL)).round().long()
    rest = TOTAL - k.sum(-1, keepdim=True)  # of the size of rounding; the largest atom takes it
    return k.scatter_add(-1, k.argmax(-1, keepdim=True), rest)


def _monotone(a: Tensor, b: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ranks and masses of the pairs that the monotone coupling joins, padded by repeating the last one."""
    ends_a, ends_b = a.cumsum(-1), b.cumsum(-1)
    ends = torch.cat([ends_a, ends_b], -1).sort(-1).values
    total = total.double()  # the quotient of whole numbers would be in single precision
    mass = torch.diff(ends, prepend=torch.zeros_like(ends[:, :1])) / total
    r, s = torch.searchsorted(ends_a, ends), torch.searchsorted(ends_b, ends)
    noise = negligible(mass, a.gather(-1, r) / total, b.gather(-1, s) / total, ends.shape[-1])
    kept = (~noise).sum(-1, keepdim=True)
    k = torch.arange(int(kept.max()), device=a.device).expand(len(a), -1)
    place = noise.long().argsort(dim=-1, stable=True).gather(-1, torch.minimum(k, kept - 1))
    r, s, mass = (z.gather(-1, place) for z in (r, s, mass))
    return r, s, torch.where(k < kept, mass, 0.0)


def _potentials(X: Tensor, Y: Tensor, mass: Tensor, unit: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """f and g along the pairs (X_k, Y_k), shifted such that they have the same mean."""
    c = _cost(X - Y, unit, p)
    low = c[:, 1:] - _cost(X[:, :-1] - Y[:, 1:], unit, p)
    high = _cost(X[:, 1:] - Y[:, :-1], unit, p) - c[:, :-1]
    f = torch.cat([torch.zeros_like(c[:, :1]), torch.maximum(low, high.clamp(max=0)).cumsum(-1)], -1)
    shift = (mass * (c / 2 - f)).sum(-1, keepdim=True)
    return f + shift, c - (f + shift)


def _extend(x: Tensor, y: Tensor, f: Tensor, g: Tensor, unit: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Potentials also of atoms without mass, which have -inf so far: the largest ones that are feasible."""
    f = _filled(x, y, f, g, unit, p)
    return f, _filled(y, x, g, f, unit, p)


def _filled(x: Tensor, y: Tensor, f: Tensor, g: Tensor, unit: Tensor, p: float) -> Tensor:
    empty = torch.isinf(f).any(0)  # only these columns: the conjugate of all would be quadratic
    if not bool(empty.any()):
        return f
    some = torch.where(torch.isinf(f[:, empty]), _conjugate(x[:, empty], y, g, unit, p), f[:, empty])
    return f.masked_scatter(empty.expand_as(f), some)


def _conjugate(x: Tensor, y: Tensor, g: Tensor, unit: Tensor, p: float) -> Tensor:
    """min_j c(x_i, y_j) - g_j, over those j with g_j > -inf."""
    tiles = row_tiles(x.shape[-1], y.numel())
    f = [(_cost(x[:, rows, None] - y[:, None], unit, p) - g[:, None]).amin(-1) for rows in tiles]
    return torch.cat(f, -1).clamp(max=torch.finfo(x.dtype).max)


def _cost(z: Tensor, unit: Tensor, p: float) -> Tensor:
    return (z / unit).abs() ** p
