"""Kinks on the line, where the slope of a step changes its sign without a zero.

Newton's method finds no gradient below its tolerance there. A particle that minimises by itself a continuous
phi(z) = U(z) + |z - x|^2 / (2 tau) has a local minimiser between any two points with phi'(a) <= 0 <= phi'(b):
halving finds it to rounding. Whether there is a better one elsewhere is asked afterwards, as of any other.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from otflow.base.status import code
from otflow.base.tangent import Tangent, align
from otflow.energies.base import gradient
from otflow.steppers.jko.proof import Separate
from otflow.steppers.jko.truncated_newton import Minimum

# Chosen: from NEAR to the whole problem by doubling, and from there to rounding by halving.
NEAR = 2.0**-40
DOUBLINGS = 42
HALVINGS = 100


def bracketed(step: Separate, found: Minimum) -> Minimum:
    """What was found, and where the tolerance was missed the kinks nearby, if all particles have one."""
    missed = (found.failed == code("max_iter")) | (found.failed == code("stalled"))
    if not bool(missed.any()):
        return found
    x = step.mu.x
    start = x + found.u[0]
    z, between = _halved(step, *_around(step, start))
    lower = step.heights(z).detach() <= step.heights(torch.where(between[..., None], x, start)).detach()
    good = missed & (between & lower).all(-1)
    return replace(
        found,
        u=Tangent([torch.where(align(good, x), z - x, found.u[0])]),
        residual=torch.where(good, 0.0, found.residual),  # between two slopes of either sign
        failed=torch.where(good, 0, found.failed),
    )


def _around(step: Separate, y: Tensor) -> tuple[Tensor, Tensor]:
    """Points below and above y, (*batch, n, 1): the first with slopes of either sign, by doubling."""
    reach = (y - step.mu.x).abs() + step.mu.x.abs()
    h = NEAR * torch.where(reach > 0, reach, 1.0)
    for _ in range(DOUBLINGS):
        open_ = (_slope(step, y - h) > 0) | (_slope(step, y + h) < 0)
        if not bool(open_.any()):
            break
        h = torch.where(open_, 2 * h, h)
    return y - h, y + h


def _halved(step: Separate, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The lower end of the interval to which [a, b] shrinks, and where its slopes are of either sign."""
    between = ((_slope(step, a) <= 0) & (_slope(step, b) >= 0))[..., 0]
    width = torch.finfo(a.dtype).eps * (step.mu.x.abs() + torch.maximum(a.abs(), b.abs()))
    for _ in range(HALVINGS):
        if bool((b - a <= width).all()):
            break
        middle = (a + b) / 2
        slope = _slope(step, middle)
        a, b = torch.where(slope <= 0, middle, a), torch.where(slope >= 0, middle, b)
    first = (step.heights(a) <= step.heights(b)).detach()
    return torch.where(first[..., None], a, b), between


def _slope(step: Separate, z: Tensor) -> Tensor:
    with torch.enable_grad():
        points = z.detach().requires_grad_()
        (slope,) = gradient(step.heights(points).sum(), [points])
    return slope.detach()
