"""The little linear algebra that torch does not do right for us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from otflow.errors import DerivativeError


class _Root(torch.autograd.Function):
    """S -> R = S^(1/2) for symmetric positive semidefinite S, differentiable at repeated eigenvalues.

    dR solves R dR + dR R = dS (see `_Lyapunov`); autograd through eigh divides by differences of
    eigenvalues instead and gives NaN where they meet.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(s)
        root: Tensor = (vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT
        ctx.save_for_backward(root)
        ctx.save_for_forward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return lyapunov(root, _symmetric(grad))

    @staticmethod
    def jvp(ctx: Any, ds: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return lyapunov(root, _symmetric(ds))


class _Lyapunov(torch.autograd.Function):
    """(R, C) -> X with R X + X R = C; its derivatives are solutions of the same equation.

    In the eigenbasis of R, X_ij = C_ij / (r_i + r_j). Where r_i + r_j vanishes, up to the rounding of R^2,
    there is no solution, and zero is used.
    """

    @staticmethod
    def forward(ctx: Any, root: Tensor, c: Tensor) -> Tensor:
        r, vectors = torch.linalg.eigh(root)
        total = r[..., :, None] + r[..., None, :]
        noise = 4 * torch.finfo(r.dtype).eps ** 0.5 * r.abs().amax(-1)[..., None, None]
        solvable = total > noise
        inverse = torch.where(
            solvable, 1 / torch.where(solvable, total, torch.ones_like(total)), torch.zeros_like(total)
        )
        x: Tensor = vectors @ (inverse * (vectors.mT @ c @ vectors)) @ vectors.mT
        ctx.save_for_backward(root, x)
        ctx.save_for_forward(root, x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        root, x = ctx.saved_tensors
        y = lyapunov(root, _symmetric(grad))
        return -(y @ x + x @ y), y

    @staticmethod
    def jvp(ctx: Any, droot: Tensor | None, dc: Tensor | None) -> Tensor:
        root, x = ctx.saved_tensors
        c = torch.zeros_like(x) if dc is None else dc
        return lyapunov(root, c if droot is None else c - droot @ x - x @ droot)


def _symmetric(a: Tensor) -> Tensor:
    return (a + a.mT) / 2


def lyapunov(root: Tensor, c: Tensor) -> Tensor:
    """X with R X + X R = C for symmetric R >= 0 and C, (*batch, d, d)."""
    out: Tensor = _Lyapunov.apply(root, c)  # type: ignore[no-untyped-call]
    return out


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


class _Contraction(torch.autograd.Function):
    """N = U diag(s) W^T -> U diag(g) W^T with g = z / (1 + sqrt(1 + z^2)), z = 2 s, for square N.

    Since z = 2 g / (1 - g^2), the divided differences that its derivative needs have no denominators that
    vanish: (g_i -+ g_j) / (z_i -+ z_j) = (1 - g_i^2)(1 - g_j^2) / (2 (1 +- g_i g_j)). They act on the
    symmetric and the skew part of U^T dN W, and the map is its own transpose.
    """

    @staticmethod
    def forward(ctx: Any, n: Tensor) -> Tensor:
        u, s, wt = torch.linalg.svd(n)
        q = torch.hypot(torch.ones_like(s), 2 * s)
        g, rest = 2 * s / (1 + q), 2 / (1 + q)  # rest = 1 - g^2, without cancellation
        ctx.save_for_backward(u, wt, g, rest)
        ctx.save_for_forward(u, wt, g, rest)
        out: Tensor = (u * g[..., None, :]) @ wt
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise DerivativeError(
                "the second derivative of Sinkhorn attention on Gaussians is not known here"
            )
        u, wt, g, rest = ctx.saved_tensors
        return _contraction_tangent(u, wt, g, rest, grad)

    @staticmethod
    def jvp(ctx: Any, dn: Tensor) -> Tensor:
        u, wt, g, rest = ctx.saved_tensors
        return _contraction_tangent(u, wt, g, rest, dn)


def _contraction_tangent(u: Tensor, wt: Tensor, g: Tensor, rest: Tensor, dn: Tensor) -> Tensor:
    p = u.mT @ dn @ wt.mT
    a, b, g_i, g_j = rest[..., :, None], rest[..., None, :], g[..., :, None], g[..., None, :]
    less = (a + b + (g_i - g_j) ** 2) / 2  # 1 - g_i g_j, without cancellation
    even, odd = a * b / (1 + g_i * g_j) * (p + p.mT) / 2, a * b / less * (p - p.mT) / 2
    return u @ (even + odd) @ wt


def contraction(n: Tensor) -> Tensor:
    """2N (I + (I + 4 N^T N)^(1/2))^-1, (*batch, r, r): the solution M of M = (I - M M^T) N with |M| < 1.

    >>> import torch
    >>> contraction(torch.tensor([[1.0]], dtype=torch.float64))
    tensor([[0.6180]], dtype=torch.float64)
    """
    out: Tensor = _Contraction.apply(n)  # type: ignore[no-untyped-call]
    return out


def conjugate_gradient(
    matvec: Callable[[Tensor], Tensor], b: Tensor, w: Tensor, *, tol: float, max_iter: int
) -> tuple[Tensor, int, bool]:
    """Solve M x = b for M self-adjoint and positive in the inner product sum_i w_i x_i y_i.

    Batched over the leading axes; a member that has converged (relative residual ``tol``) stands still.
    Returns x, the number of products with M, and whether all members have converged.
    """

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (w * x * y).sum(-1, keepdim=True)

    x, r, p = torch.zeros_like(b), b, b
    rr = inner(r, r)
    goal, open_ = tol**2 * rr, rr > 0
    for used in range(max_iter):
        open_ = open_ & (rr > goal)
        if not bool(open_.any()):
            return x, used, bool((rr <= goal).all())
        mp = matvec(p)
        curvature = inner(p, mp)
        open_ = open_ & (curvature > 0)  # without curvature there is nowhere to go: not converged
        alpha = _ratio(rr, curvature, open_)
        x, r = x + alpha * p, r - alpha * mp
        new = torch.where(open_, inner(r, r), rr)
        p, rr = r + _ratio(new, rr, open_) * p, new
    return x, max_iter, bool((rr <= goal).all())


def _ratio(a: Tensor, b: Tensor, where: Tensor) -> Tensor:
    """a / b where asked for, else 0."""
    return torch.where(where, a / torch.where(where, b, torch.ones_like(b)), torch.zeros_like(a))
