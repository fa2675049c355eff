"""Matrices: the few functions of them that the closed forms share."""

from __future__ import annotations

import torch
from torch import Tensor

from otflow.base.linalg import known, sqrtm


def eye(S: Tensor) -> Tensor:
    """The identity of the size of S."""
    return torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)


def trace(a: Tensor) -> Tensor:
    """tr A, (*batch,)."""
    return a.diagonal(dim1=-2, dim2=-1).sum(-1)


def norm(a: Tensor) -> Tensor:
    """The largest singular value, (*batch,)."""
    return torch.linalg.matrix_norm(a, 2)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """A^-1 B; torch alone would take B for a batch of vectors if A has d batch members and B none."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return torch.linalg.solve(a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:]))


def solve_right(b: Tensor, a: Tensor) -> Tensor:
    """B A^-1."""
    return solve(a.mT, b.mT).mT


def support(S: Tensor) -> Tensor:
    """The projection onto the range of S; eigenvalues within the rounding of the entries count as zero."""
    vectors = torch.linalg.eigh(S.detach()).eigenvectors
    size = vectors.abs()
    values = (vectors * (S.detach() @ vectors)).sum(-2)
    noise = 4 * S.shape[-1] * torch.finfo(S.dtype).eps * (size * (S.detach().abs() @ size)).sum(-2)
    return (vectors * (values > noise)[..., None, :]) @ vectors.mT


def scaled(N: Tensor) -> Tensor:
    """U diag(z / (1 + sqrt(1 + z^2))) W^T for N = U diag(z) W^T: the correlations of a scaled Gaussian plan.

    Once differentiable: singular vectors are not, where singular values meet, but the same matrix written as
    N (I + (I + N^T N)^(1/2))^-1 is.
    """
    u, z, wt = torch.linalg.svd(N.detach())
    M = (u * (z / (1 + torch.hypot(torch.ones_like(z), z)))[..., None, :]) @ wt
    return known(M, solve_right(N, eye(N) + sqrtm(eye(N) + N.mT @ N)))
