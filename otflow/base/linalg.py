"""Linear algebra with derivatives that torch gets wrong or lacks: roots, polar factors, small products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from otflow.base.derivatives import ByFormula, keep
from otflow.base.errors import ONCE, DerivativeError
from otflow.base.spaces import power_of_two

# Matrices up to this size, in stacks from this many on, are multiplied entry by entry; measured: several
# times as fast as torch there.
SMALL, MANY = 6, 512


def symmetric(a: Tensor) -> Tensor:
    """(A + A^T) / 2."""
    return (a + a.mT) / 2


def product(a: Tensor, b: Tensor) -> Tensor:
    """A B for stacks of matrices, (*batch, m, k) times (*batch, k, n).

    torch multiplies a stack one matrix at a time. Many small ones are multiplied several times as fast by
    sums over entries, each of them a whole batch. For that the batch is made the last axis in memory, a
    layout that results inherit and pass on.

    >>> from otflow.base.linalg import product
    >>> import torch
    >>> a = torch.randn(600, 2, 2).double()
    >>> bool(torch.allclose(product(a, a), a @ a))
    True
    """
    stack = max(a.shape[:-2].numel(), b.shape[:-2].numel())
    if stack < MANY or max(*a.shape[-2:], *b.shape[-2:]) > SMALL:
        return a @ b
    if a.ndim == 2:
        columns = b.movedim((-2, -1), (0, 1))
        out = a @ columns.reshape(len(columns), -1)
        return out.reshape(len(a), *columns.shape[1:]).movedim((0, 1), (-2, -1))
    a, b = _batch_last(a), b if b.ndim == 2 else _batch_last(b)
    out = a[..., :, :1] * b[..., :1, :]
    for i in range(1, a.shape[-1]):
        out.addcmul_(a[..., :, i : i + 1], b[..., i : i + 1, :])  # in place: out is new
    return out


def matrix_exp(a: Tensor) -> Tensor:
    """exp(A) for (*batch, d, d), to rounding.

    torch takes a polynomial of degree 8, one coefficient of which is wrong, for a matrix that no other one of
    the batch resembles in norm: off by 2e-10 for norms around 0.04 and by 5e-5 in single precision around
    0.5, and so are gradients. So every matrix comes with a twin of its own.

    >>> from otflow.base.linalg import matrix_exp
    >>> import math, torch
    >>> turn = torch.tensor([[0.0, -0.04], [0.04, 0.0]], dtype=torch.float64)
    >>> bool(abs(matrix_exp(turn)[1, 0] - math.sin(0.04)) < 1e-16)
    True
    """
    return torch.linalg.matrix_exp(torch.stack([a, a])).mean(0)  # the mean, so that gradients have twins too


def _batch_last(a: Tensor) -> Tensor:
    """The same tensor, with neighbours in the batch next to each other in memory."""
    if a.stride(-3) == 1:
        return a
    return a.movedim((-2, -1), (0, 1)).contiguous().movedim((0, 1), (-2, -1))


def ratio(a: Tensor, b: Tensor, where: Tensor | None = None) -> Tensor:
    """a / b where asked for, by default where b > 0, else 0; derivatives, too, are 0 there.

    >>> from otflow.base.linalg import ratio
    >>> import torch
    >>> ratio(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]))
    tensor([0.5000, 0.0000])
    """
    yes = b > 0 if where is None else where
    return torch.where(yes, a / torch.where(yes, b, torch.ones_like(b)), torch.zeros_like(a))


class _Root(ByFormula):
    """S -> R = S^(1/2) for symmetric positive semidefinite S, differentiable at repeated eigenvalues.

    dR solves R dR + dR R = dS (see `_Lyapunov`); autograd through eigh divides by differences of
    eigenvalues instead and gives NaN where they meet.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        vectors = torch.linalg.eigh(s).eigenvectors
        size, eps = vectors.abs(), torch.finfo(s.dtype).eps
        # v^T S v knows small eigenvalues better than eigh. Those that rounding of the entries makes of a zero
        # must go: their roots would be 1e8 times as large.
        values = (vectors * (s @ vectors)).sum(-2)
        noise = 4 * s.shape[-1] * eps * (size * (s.abs() @ size)).sum(-2)
        values = torch.where(values > noise, values, torch.zeros_like(values))
        root: Tensor = (vectors * values.sqrt()[..., None, :]) @ vectors.mT
        keep(ctx, root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return lyapunov(root, symmetric(grad))

    @staticmethod
    def jvp(ctx: Any, ds: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return lyapunov(root, symmetric(ds))


class _Lyapunov(ByFormula):
    """(R, C) -> X with R X + X R = C; its derivatives are solutions of the same equation.

    In the eigenbasis of R, X_ij = C_ij / (r_i + r_j). Where r_i + r_j vanishes, up to the rounding of R^2,
    there is no solution, and zero is used.
    """

    @staticmethod
    def forward(ctx: Any, root: Tensor, c: Tensor) -> Tensor:
        r, vectors = torch.linalg.eigh(root)
        total = r[..., :, None] + r[..., None, :]
        noise = 4 * torch.finfo(r.dtype).eps ** 0.5 * r.abs().amax(-1)[..., None, None]
        inverse = ratio(torch.ones_like(total), total, total > noise)
        x: Tensor = vectors @ (inverse * (vectors.mT @ c @ vectors)) @ vectors.mT
        keep(ctx, root, x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        root, x = ctx.saved_tensors
        y = lyapunov(root, symmetric(grad))
        return -(y @ x + x @ y), y

    @staticmethod
    def jvp(ctx: Any, droot: Tensor | None, dc: Tensor | None) -> Tensor:
        root, x = ctx.saved_tensors
        c = torch.zeros_like(x) if dc is None else dc
        return lyapunov(root, c if droot is None else c - droot @ x - x @ droot)


def lyapunov(root: Tensor, c: Tensor) -> Tensor:
    """X with R X + X R = C for symmetric R >= 0 and C, (*batch, d, d)."""
    return _Lyapunov.apply(root, c)  # type: ignore[no-untyped-call]


def sqrtm(s: Tensor) -> Tensor:
    """The symmetric root of a symmetric positive semidefinite matrix, (*batch, d, d).

    Eigenvalues within the rounding of the entries, 4 d eps |v|^T |S| |v| for the eigenvector v, count as 0.

    >>> from otflow.base.linalg import sqrtm
    >>> import torch
    >>> s = torch.eye(2, requires_grad=True)
    >>> sqrtm(s).sum().backward()
    >>> s.grad[0, 0].item()
    0.5
    """
    return _Root.apply(s)  # type: ignore[no-untyped-call]


class _Contraction(ByFormula):
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
        keep(ctx, u, wt, g, rest)
        return (u * g[..., None, :]) @ wt

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise DerivativeError(
                "second derivatives of Gaussian Sinkhorn scaling are not available; " + ONCE
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

    >>> from otflow.base.linalg import contraction
    >>> import torch
    >>> contraction(torch.tensor([[1.0]], dtype=torch.float64))
    tensor([[0.6180]], dtype=torch.float64)
    """
    return _Contraction.apply(n)  # type: ignore[no-untyped-call]


class _Procrustes(ByFormula):
    """(A, B) -> F = B U - A with U the polar factor of N = B^T A = X diag(s) Y^T, U = X Y^T.

    dU = X (K / (s_i + s_j)) Y^T with K the skew part of twice X^T dN Y; it is its own transpose. Where
    s_i + s_j vanishes, U is not unique; of the possible ones that nearest to I is taken, and zero for dU.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        x, inverse, yt = _polar(a, b)
        keep(ctx, a, b, x, inverse, yt)
        return _aligned_difference(a, b, b - a, x @ yt, inverse, yt)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            raise DerivativeError("second derivatives of optimally aligned roots are not available; " + ONCE)
        a, b, x, inverse, yt = ctx.saved_tensors
        dn = _turn(x, inverse, yt, b.mT @ grad)
        return b @ dn - grad, a @ dn.mT + grad @ (x @ yt).mT

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None) -> Tensor:
        a, b, x, inverse, yt = ctx.saved_tensors
        da, db = torch.zeros_like(a) if da is None else da, torch.zeros_like(b) if db is None else db
        return db @ (x @ yt) + b @ _turn(x, inverse, yt, db.mT @ a + b.mT @ da) - da


def _polar(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """X, 1 / (s_i + s_j) and Y^T."""
    x, s, yt = torch.linalg.svd(b.mT @ a)
    inverse = _inverse_sums(s)
    return _nearest(x, yt, inverse.diagonal(dim1=-2, dim2=-1) == 0), inverse, yt


def _inverse_sums(s: Tensor) -> Tensor:
    """1 / (s_i + s_j), or 0 where that is rounding."""
    total = s[..., :, None] + s[..., None, :]
    seen = total > s.shape[-1] * torch.finfo(s.dtype).eps * s[..., :1, None]
    return ratio(torch.ones_like(total), total, seen)


def _nearest(x: Tensor, yt: Tensor, free: Tensor) -> Tensor:
    """X with those columns turned among themselves that are free, such that X Y^T comes nearest to I."""
    if not bool(free.any()):
        return x
    block = torch.where(free[..., :, None] & free[..., None, :], x.mT @ yt.mT, torch.zeros_like(x))
    p, _, qt = torch.linalg.svd(block + torch.diag_embed((~free).to(x.dtype)))
    return x @ (p @ qt)


def _turn(x: Tensor, inverse: Tensor, yt: Tensor, dn: Tensor) -> Tensor:
    p = x.mT @ dn @ yt.mT
    return x @ (inverse * (p - p.mT)) @ yt


def _aligned_difference(a: Tensor, b: Tensor, d: Tensor, u: Tensor, inverse: Tensor, yt: Tensor) -> Tensor:
    """B U - A, given D = B - A, without the loss of digits where B is almost A and U almost I.

    With Z = U - I, Newton steps make U^T N symmetric and U orthogonal (Z + Z^T = -Z^T Z). Two are enough: the
    first starts with an error of rounding times the condition of N, the second with the square of that. They
    gain as long as |Z|^2 times this condition is small.
    """
    eye = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
    n, z = b.mT @ a, u - eye
    skew = d.mT @ a - a.mT @ d  # N - N^T
    condition = 2 * inverse.diagonal(dim1=-2, dim2=-1).amax(-1) * n.square().sum((-1, -2)).sqrt()
    small = z.square().sum((-1, -2)) * condition < 1
    for _ in range(2):
        rest = skew + (z.mT @ n - n.mT @ z)  # U^T N - N^T U
        step = yt.mT @ (inverse * (yt @ rest @ yt.mT)) @ yt
        z = z + step + z @ step
        z = (z - z.mT) / 2 - z.mT @ z / 2
    return torch.where(small[..., None, None], d + b @ z, b @ u - a)


def procrustes(a: Tensor, b: Tensor) -> Tensor:
    """B U - A with the orthogonal U that makes it least in norm; A, B of shape (*batch, d, r).

    Between roots of covariances this is the optimal displacement, and its norm the Bures distance. To
    relative precision if B is near A column by column, else up to the rounding of A and B.

    >>> from otflow.base.linalg import procrustes
    >>> import torch
    >>> a = torch.eye(2, dtype=torch.float64)
    >>> procrustes(a, torch.tensor([[0.0, -3.0], [1.0, 0.0]], dtype=torch.float64))
    tensor([[2., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    unit = power_of_two(torch.cat([a, b], -1))  # so that products neither over- nor underflow
    out: Tensor = _Procrustes.apply(a / unit, b / unit)  # type: ignore[no-untyped-call]
    return out * unit


@torch.no_grad()
def displacement(a: Tensor, d: Tensor) -> Tensor:
    """procrustes(A, A + D) for a D of which A + D would lose digits; without derivatives.

    >>> from otflow.base.linalg import displacement
    >>> import torch
    >>> displacement(torch.eye(1, dtype=torch.float64), torch.tensor([[1e-20]], dtype=torch.float64)).item()
    1e-20
    """
    x, inverse, yt = _polar(a, a + d)
    return _aligned_difference(a, a + d, d, x @ yt, inverse, yt)


class _Known(ByFormula):
    """(value, formula) -> value, with the derivatives of formula."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, formula: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad

    @staticmethod
    def jvp(ctx: Any, dvalue: Tensor | None, dformula: Tensor) -> Tensor:
        return dformula.clone()


def known(value: Tensor, formula: Tensor) -> Tensor:
    """``value`` with the derivatives of ``formula``: for two expressions of the same number, the first of
    which is accurate and the second easy to differentiate.

    >>> from otflow.base.linalg import known
    >>> import torch
    >>> x = torch.tensor(1e-20, dtype=torch.float64, requires_grad=True)
    >>> known(torch.log1p(x.detach()), torch.log(1 + x)).item()
    1e-20
    """
    return _Known.apply(value.detach(), formula)  # type: ignore[no-untyped-call]


def widen(a: Tensor, columns: int) -> Tensor:
    """``a`` with columns of zeros appended: another root of the same covariance."""
    return torch.nn.functional.pad(a, (0, columns - a.shape[-1]))


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
        alpha = ratio(rr, curvature, open_)
        x, r = x + alpha * p, r - alpha * mp
        new = torch.where(open_, inner(r, r), rr)
        p, rr = r + ratio(new, rr, open_) * p, new
    return x, max_iter, bool((rr <= goal).all())
