"""Derivatives of optimal transport by the envelope theorem: the plan and the potentials stand still."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from otflow.base.derivatives import ByFormula
from otflow.base.errors import DerivativeError
from otflow.base.spaces import Euclidean, Space, Sphere, Torus
from otflow.transport.comparable import Pair, kinked
from otflow.transport.exact.plans import Coupling

MIXED = (
    "second derivatives of optimal transport in weights and points together are not available; "
    "detach the weights or the points"
)


def value(both: Pair, c: Coupling, p: float) -> Tensor:
    """sum_k mass_k d(x_rows_k, y_cols_k)^p in units of unit^p, (B,), with derivatives in points and weights.

    In the points it has derivatives of every order, as long as no other plan is optimal as well. In the
    weights its derivatives are the potentials.
    """
    x, y = (_pick(z, k) for z, k in ((both.x, c.rows), (both.y, c.cols)))
    cost = power(both.space, x, y, c.unit[:, None], p)
    cost = kinked(cost, lambda cost: bool((cost == 0).any())) if p < 2 else cost
    total = (c.mass * cost).sum(-1)
    for w, h in ((both.w, c.f), (both.v, c.g)):
        w = w / w.sum(-1, keepdim=True)
        total = total + ((w - w.detach()) * _frozen(h, w, both.x, both.y)).sum(-1)
    return total


def _frozen(h: Tensor, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The potentials h; if weights and points both vary, with an error for the mixed derivative."""
    dual = [unpack_dual(z).tangent is not None for z in (w, x, y)]
    if (dual[0] and (x.requires_grad or y.requires_grad)) or (w.requires_grad and any(dual[1:])):
        raise DerivativeError(MIXED)
    if not (w.requires_grad and (x.requires_grad or y.requires_grad)):
        return h
    return _Frozen.apply(h, x, y)  # type: ignore[no-untyped-call]


def _pick(x: Tensor, k: Tensor) -> Tensor:
    """x at the indices k, (B, k, d)."""
    return x.gather(-2, k[..., None].expand(*k.shape, x.shape[-1]))


def power(space: Space, x: Tensor, y: Tensor, unit: Tensor, p: float) -> Tensor:
    """(d(x, y) / unit)^p over the last axis, with derivative 0 (not NaN) at x = y."""
    q = squared(space, x, y, unit)
    if p == 2:
        return q
    zero = q == 0
    return torch.where(zero, torch.zeros_like(q), torch.where(zero, torch.ones_like(q), q) ** (p / 2))


@singledispatch
def squared(space: Space, x: Tensor, y: Tensor, unit: Tensor) -> Tensor:
    """(d(x, y) / unit)^2, smooth also at x = y where the space allows it."""
    return (space.distance(x, y) / unit) ** 2


@squared.register(Euclidean)
def _(space: Euclidean, x: Tensor, y: Tensor, unit: Tensor) -> Tensor:
    return ((x - y) / unit[..., None]).square().sum(-1)


@squared.register(Torus)
def _(space: Torus, x: Tensor, y: Tensor, unit: Tensor) -> Tensor:
    turns = ((x - y).detach() / space.period).round() * space.period
    return ((x - y - turns) / unit[..., None]).square().sum(-1)


@squared.register(Sphere)
def _(space: Sphere, x: Tensor, y: Tensor, unit: Tensor) -> Tensor:
    # d = 2 atan t with t^2 = |x - y|^2 / |x + y|^2, and atan(t)^2 is a power series in t^2.
    t2 = ((x - y) / unit[..., None]).square().sum(-1) / (x + y).square().sum(-1).clamp(min=1.0)
    t = t2 * unit**2
    near = t.detach() < 1e-4
    series = 4 * t2 * (1 - t * (2 / 3 - t * (23 / 45 - t * (44 / 105 - t * 563 / 1575))))
    far = torch.where(near[..., None], -y.detach(), x)  # any point off y: this branch is not taken there
    return torch.where(near, series, (space.distance(far, y) / unit) ** 2)


class _Frozen(ByFormula):
    """Potentials as a function of the points, whose derivative first derivatives of the value do not need.

    For these it comes multiplied by zero. Mixed second derivatives would need it, and are refused.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        if torch.is_grad_enabled() or bool((grad != 0).any()):
            raise DerivativeError(MIXED)
        return None, None, None
