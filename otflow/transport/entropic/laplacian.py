"""The Laplacian of a sharp plan, for Newton's equation where conjugate gradients on the kernel are slow.

For a plan with rows p_i (probabilities over columns) and weights a, the Hessian of the semi-dual is the
Laplacian of a graph between columns with edges M_jl = sum_i a_i p_ij p_il. A sharp plan makes columns that
hardly see each other, whose degree sum_l M_jl is a tiny difference of large numbers; summed over the edges
instead, it keeps its digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

FACTORISE = 3072  # columns up to which the matrix is factorised; chosen: 75 MB each
ENTRIES = 2**26  # entries in one batch of such matrices, at most; chosen: 512 MB
EDGES = 5 * 10**7  # products of entries of a sparse plan, beyond which its Laplacian is not sparse; chosen
# Probability below which an entry of a sparse plan is dropped; chosen: far below any tolerance.
NEGLIGIBLE = 1e-13


def solve(P: Tensor, a: Tensor, b: Tensor, rhs: Tensor) -> Tensor | None:
    """d (B, m) with L d = rhs up to a constant; None if the plan P (B, n, m) is large and not sparse."""
    d: Tensor | None = None
    members, _, m = P.shape
    if m <= FACTORISE and members * m**2 <= ENTRIES:
        d = _factorised(P, a, b, rhs)
    elif members == 1 and P.device.type == "cpu":
        d = _sparse(P[0], a[0], b[0], rhs[0])
    return None if d is None else d - d.median(-1, keepdim=True).values


def _factorised(P: Tensor, a: Tensor, b: Tensor, rhs: Tensor) -> Tensor:
    M = P.mT @ (a[..., None] * P)
    diagonal = M.diagonal(dim1=-1, dim2=-2)
    diagonal.zero_()
    degree = M.sum(-1) + NEGLIGIBLE * b
    scale = torch.where(degree > 0, degree, torch.ones_like(degree)).rsqrt()
    H = M.mul_(-scale[..., None]).mul_(scale[..., None, :])
    H.diagonal(dim1=-1, dim2=-2).fill_(1 + 1e-15)
    factor, failed = torch.linalg.cholesky_ex(H)
    if bool((failed > 0).any()):
        H.diagonal(dim1=-1, dim2=-2).add_(1e-12)
        factor, failed = torch.linalg.cholesky_ex(H)
    d = scale * torch.cholesky_solve((scale * rhs)[..., None], factor)[..., 0]
    fine = (failed == 0) & torch.isfinite(d).all(-1)
    return torch.where(fine[..., None], d, torch.zeros_like(d))


def _sparse(P: Tensor, a: Tensor, b: Tensor, rhs: Tensor) -> Tensor | None:
    """The same by conjugate gradients on the sparse Laplacian, with its degrees as preconditioner."""
    from scipy.sparse import csr_array, diags_array
    from scipy.sparse.linalg import cg

    seen = P > NEGLIGIBLE
    if float(seen.sum(-1).double().square().sum()) > EDGES:
        return None
    entries = csr_array((P[seen].numpy(), tuple(k.numpy() for k in seen.nonzero(as_tuple=True))), P.shape)
    M: Any = entries.T @ (diags_array(a.numpy()) @ entries)
    M.setdiag(0.0)
    degree = M.sum(1) + NEGLIGIBLE * b.numpy()
    degree = np.where(degree > 0, degree, 1.0)
    d, _ = cg(diags_array(degree) - M, rhs.numpy(), rtol=1e-3, maxiter=2000, M=diags_array(1 / degree))
    return torch.from_numpy(d)[None] if np.isfinite(d).all() else None
