"""The circle: tokens as angles, their order and the gaps between them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks

TURN = 2 * math.pi


def angles(theta: Any, name: str = "theta") -> Tensor:
    """Angles (*batch, n) in float64, n >= 1."""
    x = checks.tensor(theta, name).detach().cpu().double()
    if not x.ndim or 0 in x.shape:
        checks.fail(
            f"{name}.shape",
            tuple(x.shape),
            "(*batch, n) with n >= 1 is needed",
            f"pass {name}=[0.0, 1.0], say",
        )
    return x


def gaps(theta: Tensor) -> tuple[Tensor, Tensor]:
    """The order of angles (*batch, n) around the circle, and the gap from each to the next in it.

    >>> import torch
    >>> from otflow.papers.tokens.circle import gaps
    >>> gaps(torch.tensor([6.0, 1.0, 2.0]))[1]
    tensor([1.0000, 4.0000, 1.2832])
    """
    y, order = torch.remainder(theta, TURN).sort(-1)
    return order, torch.cat([y[..., 1:] - y[..., :-1], TURN - y[..., -1:] + y[..., :1]], -1)
