"""Roots of covariances, which are known up to rotation: the distance min_U |R1 - R2 U| over orthogonal U."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base.derivatives import ByFormula, keep
from otflow.base.errors import ONCE, DerivativeError
from otflow.base.linalg import displacement, known, ratio, widen
from otflow.base.spaces import power_of_two
from otflow.transport.bures.covariances import CHUNK, CLOSE, NEAR, nuclear, split


def distance(a: Tensor, b: Tensor) -> Tensor:
    """min_U |A - B U| for float64 roots (*batch, d, r1) and (*batch, d, r2) of one batch, (*batch,)."""
    batch = a.shape[:-2]
    a, b = (r.reshape(-1, *r.shape[-2:]) for r in (a, b))
    unit = power_of_two(torch.cat([a, b], -1))
    d: Tensor = _Distance.apply(a / unit, b / unit)  # type: ignore[no-untyped-call]
    return (d * unit[:, 0, 0]).reshape(batch)


class _Distance(ByFormula):
    """(n, d, r1), (n, d, r2) -> (n,). At the minimum U moves without changing the distance."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        d = _squared(*equal_width(a, b)).sqrt()
        keep(ctx, a, b, d)
        return d

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            raise DerivativeError(
                "second derivatives of the distance between roots are not available; " + ONCE
            )
        ga, gb = _gradients(*ctx.saved_tensors)
        return ga * grad[:, None, None], gb * grad[:, None, None]

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None) -> Tensor:
        a, b, d = ctx.saved_tensors
        both = zip(_gradients(a, b, d), (da, db), strict=True)
        return sum(((g * dr).sum((-1, -2)) for g, dr in both if dr is not None), torch.zeros_like(d))


def _gradients(a: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """(A - B U) / d and (B - A U^T) / d, zero where d = 0."""
    inverse = ratio(torch.ones_like(d), d)
    return _towards(a, b) * inverse[:, None, None], _towards(b, a) * inverse[:, None, None]


def _towards(a: Tensor, b: Tensor) -> Tensor:
    """A - B U."""
    x, change, turn = common(a, b)
    away = -displacement(x, change)
    return (away if turn is None else away @ turn.mT)[..., : a.shape[-1]]


def _squared(a: Tensor, b: Tensor) -> Tensor:
    size = CHUNK // max(a.shape[-1], a.shape[-2]) ** 2 + 1
    return torch.cat([_chunk(x, y) for x, y in zip(a.split(size), b.split(size), strict=True)])


def _chunk(a: Tensor, b: Tensor) -> Tensor:
    sizes = a.square().sum((-1, -2)) + b.square().sum((-1, -2))
    close = (a - b).square().sum((-1, -2)) < NEAR * sizes
    return split(close, _near, _far, (a, b, sizes)).clamp(min=0)


def _far(a: Tensor, b: Tensor, sizes: Tensor) -> Tensor:
    """|A|^2 + |B|^2 - 2 |B^T A|_*, unless that loses digits."""
    a, b = thin(a), thin(b)
    out = sizes - 2 * _nuclear(b.mT @ a)
    near = out < NEAR * sizes
    if bool(near.any()):
        out[near] = _near(a[near], b[near], sizes[near])
    return out


def _near(a: Tensor, b: Tensor, sizes: Tensor) -> Tensor:
    """|A - B U|^2."""
    same = (a == b).flatten(1).all(-1)
    x, change, _ = common(a, b)
    return torch.where(same, torch.zeros_like(sizes), displacement(x, change).square().sum((-1, -2)))


def _nuclear(n: Tensor) -> Tensor:
    """The sum of the singular values of square matrices."""
    if n.shape[-1] == 1:
        return n[:, 0, 0].abs()
    if n.shape[-1] == 2:
        determinant = n[:, 0, 0] * n[:, 1, 1] - n[:, 0, 1] * n[:, 1, 0]
        return (n.square().sum((-1, -2)) + 2 * determinant.abs()).sqrt()
    total, error = nuclear(n, torch.linalg.slogdet(n).logabsdet)
    loose = ~(error <= CLOSE * total)
    if bool(loose.any()):
        n = n[loose]
        g = n @ torch.linalg.eigh(n.mT @ n).eigenvectors  # norms of columns keep the digits that squares lose
        total[loose] = g.square().sum(-2).sqrt().sum(-1)
    return total


def frame(r: Tensor) -> Tensor | None:
    """For roots wider than high, orthonormal columns Q with R = (R Q) Q^T."""
    if r.shape[-1] <= r.shape[-2]:
        return None
    return torch.linalg.qr(r.detach().mT).Q


def thin(r: Tensor) -> Tensor:
    """A root of the same covariance with at most d columns.

    The frame needs no derivative, but only to first order: what moves out of it changes the covariance to
    second order.
    """
    turn = frame(r)
    return r if turn is None else r @ turn


def common(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """(A Q, (B - A) Q, Q) with at most 2 d columns, or (A, B - A, None): in one frame close roots stay so."""
    a, b = equal_width(a, b)
    if a.shape[-1] <= 2 * a.shape[-2]:
        return a, b - a, None
    q = torch.linalg.qr(torch.cat([a, b - a], -2).mT).Q
    return a @ q, (b - a) @ q, q


def graded(r: Tensor) -> Tensor:
    """The root V diag(s) of the same covariance, s decreasing, differentiable like `thin`.

    Between such roots R2^T R1 is graded, and its small singular values keep their digits and signs.
    """
    v, s, wt = torch.linalg.svd(r.detach(), full_matrices=False)
    return known(v * s[..., None, :], r @ wt.mT)


def equal_width(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both roots with as many columns as the wider one."""
    width = max(a.shape[-1], b.shape[-1])
    return widen(a, width), widen(b, width)
