"""Energies of measures on the line in their quantile function X: values and second derivatives.

With gaps g_i = x_i+1 - x_i and masses m_i of the intervals, an internal energy is sum_i g_i U(m_i / g_i),
that is -int log X' ds for the entropy and int (X')^(1-m) / (m - 1) ds for porous media: convex in X, because
r U(1/r) is convex in r for a convex U (McCann's condition on the line; Santambrogio 2015, Section 7.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import torch
from torch import Tensor

from otflow.base.kernels import row_tiles
from otflow.energies.base import Energy
from otflow.energies.interaction import Interaction
from otflow.energies.internal import Internal, integral
from otflow.energies.potential import Potential
from otflow.measures.quantiles import Quantiles, Tridiagonal, gauss


@integral.register(Quantiles)
def _(mu: Quantiles, energy: Internal) -> Tensor:
    return _per_gap(mu, energy)(torch.diff(mu.x)).sum(-1)


def _per_gap(mu: Quantiles, energy: Internal) -> Callable[[Tensor], Tensor]:
    return lambda gap: gap * energy.U(mu.mass / gap)


@singledispatch
def curvature(energy: Energy, mu: Quantiles) -> Tridiagonal | Tensor:
    """The Hessian of the energy in x: tridiagonal where the energy is local, else (*batch, n + 1, n + 1).

    A kink counts as straight. An energy of the user's own costs one backward pass per level.

    >>> from otflow import Quantiles
    >>> from otflow.energies.quantiles import curvature
    >>> from otflow.energies.internal import Entropy
    >>> curvature(Entropy(), Quantiles([0.0, 0.5, 1.0], [0.0, 0.5, 1.0])).diag
    tensor([2., 4., 2.], dtype=torch.float64)
    """
    with torch.enable_grad():
        x = mu.x.detach().requires_grad_()
        (g,) = torch.autograd.grad(energy(mu.at([x])).sum(), x, create_graph=True)
        rows = [_derivative(g[..., i], x) for i in range(mu.n + 1)]
    H = torch.stack(rows, -2).detach()
    return (H + H.mT) / 2


@curvature.register(Internal)
def _(energy: Internal, mu: Quantiles) -> Tridiagonal:
    c = second_derivative(_per_gap(mu, energy), torch.diff(mu.x))
    return Tridiagonal.from_intervals(c, -c, c)


@curvature.register(Potential)
def _(energy: Potential, mu: Quantiles) -> Tridiagonal:
    x, w = mu.nodes()
    c = w * second_derivative(lambda x: energy.U(x)[..., None], x)[..., 0]
    return _local(c, mu)


def _local(c: Tensor, mu: Quantiles) -> Tridiagonal:
    """sum_q c_q u(s_q)^2 for piecewise linear u."""
    r, _ = gauss(mu.x)
    c = c.unflatten(-1, (mu.n, len(r)))
    left, cross, right = (c * (1 - r) ** 2).sum(-1), (c * r * (1 - r)).sum(-1), (c * r**2).sum(-1)
    return Tridiagonal.from_intervals(left, cross, right)


@curvature.register(Interaction)
def _(energy: Interaction, mu: Quantiles) -> Tensor:
    """Rows by tiles of nodes: only the n^2 numbers of the result are ever kept."""
    x, w = mu.nodes()
    mixed, own = [], []
    for rows in row_tiles(x.shape[-2], x.numel()):
        same, cross = _pair_curvature(energy, x, rows)
        own.append((same * w[..., None, :]).sum(-1))
        mixed.append(_spread(cross * w[..., rows, None] * w[..., None, :], mu))
    local = _local(w * torch.cat(own, -1), mu).dense()
    H = _spread(torch.cat(mixed, -2).mT, mu)
    return local + (H + H.mT) / 2


def _pair_curvature(energy: Interaction, x: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """W_xx and W_xy between the nodes in ``rows`` and all nodes, 0 where a node is not to meet itself."""
    shape = (*x.shape[:-2], rows.stop - rows.start, *x.shape[-2:])
    near, far = x[..., rows, None, :].expand(shape), x[..., None, :, :].expand(shape)
    index = torch.arange(x.shape[-2], device=x.device)
    alone = (index[rows, None] == index) & (not energy.diagonal)
    with torch.enable_grad():
        a, b = near.detach().clone().requires_grad_(), far + alone[..., None] * 1.0
        b = b.detach().requires_grad_()
        g = _derivative(energy.W(a, b), a)
        both = [_derivative(g, z).detach()[..., 0].masked_fill(alone, 0.0) for z in (a, b)]
    return both[0], both[1]


def _spread(a: Tensor, mu: Quantiles) -> Tensor:
    """sum_q a_q u(s_q) as a linear form in the values of u at the levels: (..., 3 n) to (..., n + 1)."""
    r, _ = gauss(mu.x)
    a = a.unflatten(-1, (mu.n, len(r)))
    left, right = (a * (1 - r)).sum(-1), (a * r).sum(-1)
    zero = torch.zeros_like(left[..., :1])
    return torch.cat([left, zero], -1) + torch.cat([zero, right], -1)


def second_derivative(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f'' of a function that acts on each entry by itself.

    >>> import torch
    >>> from otflow.energies.quantiles import second_derivative
    >>> second_derivative(torch.exp, torch.zeros(2))
    tensor([1., 1.])
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return _derivative(_derivative(f(x), x), x).detach()


def _derivative(y: Tensor, x: Tensor) -> Tensor:
    """d(sum of y)/dx with its graph; 0 where y does not see x or autograd has no answer, as at kinks."""
    if not y.requires_grad:
        return torch.zeros_like(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True, allow_unused=True)
    return torch.zeros_like(x) if g is None else torch.nan_to_num(g, nan=0.0)
