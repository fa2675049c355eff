"""The little linear algebra that torch does not do right for us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Root(torch.autograd.Function):
    """S -> S^(1/2) for symmetric positive semidefinite S, differentiable at repeated eigenvalues.

    dR solves R dR + dR R = dS, that is dR_ij = dS_ij / (r_i + r_j) in the eigenbasis (Daleckii-Krein);
    autograd through eigh divides by r_i - r_j instead and gives NaN. Where r_i + r_j = 0 the root has
    no derivative, and zero is used.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(s)
        r = values.clamp(min=0).sqrt()
        ctx.save_for_backward(r, vectors)
        ctx.save_for_forward(r, vectors)
        root: Tensor = (vectors * r[..., None, :]) @ vectors.mT
        return root

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        r, vectors = ctx.saved_tensors
        return _lyapunov(r, vectors, (grad + grad.mT) / 2)

    @staticmethod
    def jvp(ctx: Any, ds: Tensor) -> Tensor:
        r, vectors = ctx.saved_tensors
        return _lyapunov(r, vectors, (ds + ds.mT) / 2)


def _lyapunov(r: Tensor, vectors: Tensor, c: Tensor) -> Tensor:
    """X with R X + X R = C, R = vectors diag(r) vectors^T."""
    total = r[..., :, None] + r[..., None, :]
    inverse = torch.where(
        total > 0, 1 / torch.where(total > 0, total, torch.ones_like(total)), torch.zeros_like(total)
    )
    return vectors @ (inverse * (vectors.mT @ c @ vectors)) @ vectors.mT


def sqrtm(s: Tensor) -> Tensor:
    """The symmetric root of a symmetric positive semidefinite matrix, (*batch, d, d).

    >>> import torch
    >>> s = torch.eye(2, requires_grad=True)
    >>> sqrtm(s).sum().backward()
    >>> s.grad[0, 0].item()
    0.5
    """
    out: Tensor = _Root.apply(s)  # type: ignore[no-untyped-call]
    return out


def conjugate_gradient(
    matvec: Callable[[Tensor], Tensor], b: Tensor, w: Tensor, *, tol: float, max_iter: int
) -> tuple[Tensor, int]:
    """Solve M x = b for M self-adjoint and positive in the inner product sum_i w_i x_i y_i.

    Batched over the leading axes; a member that has converged (relative residual ``tol``) stands still.
    Returns x and the number of products with M.
    """

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (w * x * y).sum(-1, keepdim=True)

    x, r, p = torch.zeros_like(b), b, b
    rr = inner(r, r)
    goal = tol**2 * rr
    for used in range(max_iter):
        if not bool((rr > goal).any()):
            return x, used
        mp = matvec(p)
        curvature = inner(p, mp)
        active = (rr > goal) & (curvature > 0)
        alpha = _ratio(rr, curvature, active)
        x, r = x + alpha * p, r - alpha * mp
        new = torch.where(active, inner(r, r), torch.zeros_like(rr))
        p, rr = r + _ratio(new, rr, active) * p, new
    return x, max_iter


def _ratio(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
    """a / b where asked for, else 0."""
    return torch.where(where, a / torch.where(where, b, torch.ones_like(b)), torch.zeros_like(a))
