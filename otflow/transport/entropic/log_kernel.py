"""Log-kernels S (B, n, m), held in memory as a whole only if a caller asks for that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otflow.base import kernels
from otflow.base.spaces import Space
from otflow.transport.comparable import side_by_side, streamed
from otflow.transport.entropic.costs import Cost, Features


class LogKernel(ABC):
    """S_ij for a flat batch of problems; softmax averages over columns, without the matrix."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """(B, n, m)."""

    @property
    @abstractmethod
    def mT(self) -> LogKernel:
        """The transposed matrices."""

    @abstractmethod
    def __getitem__(self, members: Tensor) -> LogKernel:
        """Some members of the batch."""

    @abstractmethod
    def times(self, theta: Tensor) -> LogKernel:
        """theta S, theta (B,)."""

    @abstractmethod
    def tile(self, rows: slice) -> Tensor:
        """Some rows, (B, r, m)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The whole matrix, (B, n, m), in memory of its own."""

    @abstractmethod
    def attend(self, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """sum_j softmax_j(S_ij + bias_j) v_j, (B, n, e), and the logarithm of the normaliser, (B, n)."""

    def lse(self, bias: Tensor) -> Tensor:
        return self.attend(bias[..., None].detach().clamp(min=0, max=0), bias)[1]

    @abstractmethod
    def expected(self, bias: Tensor) -> Tensor:
        """sum_j softmax_j(S_ij + bias_j) S_ij, (B, n)."""

    @abstractmethod
    def features(self) -> Features | None:
        """S = <q, k> - row - column, where such a form exists."""

    def moments(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Centred keys and the covariances of queries under a and of keys under b."""
        f = self.features()
        if f is None or f.q.shape[-1] > 256:
            return None
        q, k = (z - (w[..., None] * z).sum(-2, keepdim=True) for z, w in ((f.q, a), (f.k, b)))
        return k, (a[..., None] * q).mT @ q, (b[..., None] * k).mT @ k

    def spread(self, a: Tensor, b: Tensor) -> Tensor:
        """The standard deviation of the part of the scores that potentials cannot absorb, roughly, (B,)."""
        m = self.moments(a, b)
        if m is not None:
            return (m[1] @ m[2]).diagonal(dim1=-1, dim2=-2).sum(-1).clamp(min=0).sqrt()
        some = self.tile(slice(0, 256))
        return some.flatten(1).std(-1, correction=0)

    def guess(self, a: Tensor, b: Tensor) -> Tensor:
        """The column potential if both clouds were Gaussian, (B, m); zero where the form is unknown.

        For the kernel exp(<q, k>) between N(0, A) and N(0, B), B = R R^T, it is -k^T H k / 2 with
        H = R^-T (N^-1 - I) R^-1, where N solves N W N + N = I for W = R^T A R.
        """
        m, f = self.moments(a, b), self.features()
        if m is None or f is None:
            return torch.zeros(self.shape[0], self.shape[2], dtype=a.dtype, device=a.device)
        k, A, B = m
        values, vectors = torch.linalg.eigh(B)
        seen = values > 1e-12 * values.amax(-1, keepdim=True)
        root = torch.where(seen, values, torch.zeros_like(values)).sqrt()
        R, inverse = vectors * root[..., None, :], torch.where(seen, 1 / root, torch.zeros_like(root))
        w, U = torch.linalg.eigh(R.mT @ A @ R)
        w = w.clamp(min=0)
        z = k @ (vectors * inverse[..., None, :]) @ U
        centre = (a[..., None] * f.q).sum(-2, keepdim=True)
        linear = (f.k @ centre.mT)[..., 0]  # queries that are not centred tilt the keys
        quadratic: Tensor = (z.square() * (w / (1 + (1 + 4 * w).sqrt()))[..., None, :]).sum(-1)
        return f.column - linear - quadratic


@dataclass(frozen=True)
class Bilinear(LogKernel):
    """S_ij = <q_i, k_j>."""

    q: Tensor  # (B, n, c)
    k: Tensor  # (B, m, c)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.q.shape[0], self.q.shape[1], self.k.shape[1]))

    @property
    def mT(self) -> Bilinear:
        return Bilinear(self.k, self.q)

    def __getitem__(self, members: Tensor) -> Bilinear:
        return Bilinear(self.q[members], self.k[members])

    def times(self, theta: Tensor) -> Bilinear:
        return Bilinear(self.q * theta[:, None, None], self.k)

    def tile(self, rows: slice) -> Tensor:
        return self.q[:, rows] @ self.k.mT

    def dense(self) -> Tensor:
        return self.q @ self.k.mT

    def attend(self, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.attend(self.q, self.k, v, bias)

    def expected(self, bias: Tensor) -> Tensor:
        return (self.q * self.attend(self.k, bias)[0]).sum(-1)

    def features(self) -> Features:
        return Features(self.q, self.k, torch.zeros_like(self.q[..., 0]), torch.zeros_like(self.k[..., 0]))


@dataclass(frozen=True)
class Pairwise(LogKernel):
    """S_ij = -theta c(x_i, y_j) / eps for any cost, from the points themselves."""

    cost: Cost
    x: Tensor  # (B, n, d)
    y: Tensor  # (B, m, d)
    space: Space
    eps: float
    theta: Tensor  # (B,)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.x.shape[0], self.x.shape[1], self.y.shape[1]))

    @property
    def mT(self) -> Pairwise:
        return replace(self, cost=self.cost.flipped(), x=self.y, y=self.x)

    def __getitem__(self, members: Tensor) -> Pairwise:
        return replace(self, x=self.x[members], y=self.y[members], theta=self.theta[members])

    def times(self, theta: Tensor) -> Pairwise:
        return replace(self, theta=self.theta * theta)

    def tile(self, rows: slice) -> Tensor:
        return self.theta[:, None, None] * self.cost.scores(self.x[:, rows], self.y, self.space, self.eps)

    def tiles(self) -> Iterator[slice]:
        """Rows to be treated at once: a cost may need as much room as all differences x_i - y_j."""
        return kernels.row_tiles(self.shape[1], self.shape[0] * self.y[0].numel())

    def dense(self) -> Tensor:
        out = torch.empty(self.shape, dtype=self.x.dtype, device=self.x.device)
        for rows in self.tiles():
            out[:, rows] = self.tile(rows)
        return out

    def attend(self, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        def part(rows: slice, x: Tensor, y: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            s = replace(self, x=x, y=y).tile(rows) + bias[:, None, :]
            lse = torch.logsumexp(s, -1, keepdim=True)
            return torch.cat([torch.exp(s - lse) @ v, lse], -1)

        both = streamed(part, self.tiles(), self.x, self.y, v, bias)
        return both[..., :-1], both[..., -1]

    def expected(self, bias: Tensor) -> Tensor:
        def part(rows: slice) -> Tensor:
            s = self.tile(rows)
            return (torch.softmax(s + bias[:, None, :], -1) * s).sum(-1)

        return side_by_side(part, list(self.tiles()))

    def features(self) -> Features | None:
        f = self.cost.features(self.x, self.y, self.space, self.eps)
        if f is None:
            return None
        t = self.theta[:, None]
        return Features(f.q * t[..., None], f.k, f.row * t, f.column * t)
