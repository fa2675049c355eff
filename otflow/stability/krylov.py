"""Krylov methods for the largest singular values of linear maps that are known by their products only."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Map(Protocol):
    """J and its transpose on columns, (*batch, N, k) each."""

    def push(self, V: Tensor) -> Tensor:
        """J V."""
        ...

    def pull(self, W: Tensor) -> Tensor:
        """J* W."""
        ...


class Triples(NamedTuple):
    """Approximate singular triples, J right = s left, and rest = J* left - s right."""

    s: Tensor  # (*batch, k)
    right: Tensor  # (*batch, N, k)
    left: Tensor  # (*batch, N, k)
    rest: Tensor  # (*batch, N, k)

    @property
    def residuals(self) -> Tensor:
        """|rest|, (*batch, k): a singular value is as near to s."""
        return torch.linalg.vector_norm(self.rest, dim=-2)

    def open(self, tol: float) -> Tensor:
        """Which members are not yet found, (*batch,)."""
        return (self.residuals > tol * self.s[..., :1]).any(-1)


def largest(
    J: Map, V: Tensor, W: Tensor, k: int, *, tol: float, max_iter: int, room: int | None = None
) -> tuple[Triples, int]:
    """The k largest singular triples from orthonormal columns V with images W = J V, and the rounds taken.

    Block Golub-Kahan-Lanczos iteration with full reorthogonalisation: a round enlarges V by the residuals of
    the best triples in its span. Beyond ``room`` columns the better half of them is kept (thick restart).

    Reference: Golub and Van Loan 2013, "Matrix computations", Section 10.4.
    """
    best, turn = _ritz(J, V, W, k), 1
    while bool(best.open(tol).any()) and turn < max_iter and V.shape[-1] < V.shape[-2]:
        if room is not None and V.shape[-1] + k > room:
            Z = torch.linalg.svd(torch.linalg.qr(W).R, full_matrices=False).Vh[..., : room // 2, :].mT
            V, W = V @ Z, W @ Z
        new = orthonormal(best.rest, V)
        V, W = torch.cat([V, new], -1), torch.cat([W, J.push(new)], -1)
        best, turn = _ritz(J, V, W, k), turn + 1
    return best, turn


def _ritz(J: Map, V: Tensor, W: Tensor, k: int) -> Triples:
    """The best k triples with right vectors in the span of V, given its image W."""
    Q, R = torch.linalg.qr(W)
    U, s, Zt = torch.linalg.svd(R, full_matrices=False)
    s, right, left = s[..., :k], V @ Zt[..., :k, :].mT, Q @ U[..., :k]
    return Triples(s, right, left, J.pull(left) - right * s[..., None, :])


def orthonormal(block: Tensor, V: Tensor) -> Tensor:
    """An orthonormal basis of a block, orthogonal to V; columns for which there is no room are 0."""
    for _ in range(3):  # the first round finds the directions, the others make up for what rounding left
        block = torch.linalg.qr(block - V @ (V.mT @ block)).Q
    block = block - V @ (V.mT @ block)
    size = torch.linalg.vector_norm(block, dim=-2, keepdim=True)
    return torch.where(size > 0.999, block / size.clamp(min=0.5), torch.zeros_like(block))
