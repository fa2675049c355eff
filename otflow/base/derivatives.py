"""Derivatives: whether they are asked for, and what a formula of its own keeps for both modes of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def learns(*tensors: Tensor) -> bool:
    """Whether a derivative in one of these is asked for."""
    return torch.is_grad_enabled() and any(a.requires_grad for a in tensors)


def keep(ctx: Any, *tensors: Tensor | None) -> None:
    """Save tensors for `backward` and for `jvp` of a `torch.autograd.Function`; both find them in ctx."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
