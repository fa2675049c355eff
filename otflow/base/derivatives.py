"""Derivatives: whether they are asked for, and what a formula of its own keeps for both modes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from otflow.base.errors import DerivativeError


class ByFormula(torch.autograd.Function):
    """A function with derivatives of its own, in both modes of autograd, which torch.func cannot follow.

    Solvers, loops over tiles and looks at values stand within; a `setup_context` would promise them to vmap.
    """

    if not TYPE_CHECKING:  # torch's own is not annotated either

        @classmethod
        def apply(cls, *args, **kwargs):
            refuse_func()
            return super().apply(*args, **kwargs)


def refuse_func() -> None:
    """Say that torch.func cannot follow, where torch itself would say what to change in otflow.

    >>> import torch
    >>> from otflow.base.linalg import sqrtm
    >>> torch.func.grad(lambda s: sqrtm(s).sum())(torch.eye(2))
    Traceback (most recent call last):
    otflow.base.errors.DerivativeError: torch.func (jvp, grad, vmap, ...) cannot follow what otflow ...
    """
    if torch._C._are_functorch_transforms_active():
        raise DerivativeError(
            "torch.func (jvp, grad, vmap, ...) cannot follow what otflow differentiates by formulas of its "
            "own; use torch.autograd.grad, torch.autograd.forward_ad, or jvp and vjp of the field, and axes "
            "in front instead of vmap."
        )


def learns(*tensors: Tensor) -> bool:
    """Whether a derivative in one of these is asked for."""
    return torch.is_grad_enabled() and any(a.requires_grad for a in tensors)


def keep(ctx: Any, *tensors: Tensor | None) -> None:
    """Save tensors for `backward` and for `jvp` of a `torch.autograd.Function`; both find them in ctx."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def forward_mode() -> bool:
    """Whether tensors may carry tangents at all: asked first where many would have to be looked at."""
    return forward_ad._current_level >= 0


def dual(a: Tensor) -> bool:
    """Whether a tensor carries a tangent, for forward mode."""
    return forward_ad.unpack_dual(a).tangent is not None


def without_graph(a: Tensor) -> Tensor:
    """The tensor detached, but with its tangent, which torch's own `detach` drops."""
    primal, tangent = forward_ad.unpack_dual(a)
    return a.detach() if tangent is None else forward_ad.make_dual(primal.detach(), tangent.detach())


def followed(a: Tensor) -> bool:
    """Whether a derivative may be asked for in a tensor: backward, forward, or through torch.func.

    If not, its values are all that counts, and a zero or an identity may be left out of products.

    >>> import torch
    >>> from otflow.base.derivatives import followed
    >>> followed(torch.ones(1)), followed(torch.ones(1, requires_grad=True))
    (False, True)
    """
    return a.requires_grad or dual(a) or _wrapped(a)


def _wrapped(a: Tensor) -> bool:
    """Whether torch.func stands in for a tensor; of nested ones `dual` sees the innermost alone."""
    try:
        a.data_ptr()
    except RuntimeError:  # a wrapper has no storage of its own
        return True
    return False
