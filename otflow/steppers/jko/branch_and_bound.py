"""Branch and bound for particles that minimise by themselves, on the line and in the plane.

On a box with centre c and half widths h, where D^2 phi >= kappa,

    phi(z) >= phi(c) + min over |t_k| <= h_k of  grad phi(c).t + kappa |t|^2 / 2,

and phi(z) >= inf U + |z - x|^2 / (2 tau). Boxes whose bound is not below the least value met are left out,
the others are halved (Horst and Tuy 1996, "Global optimization", Chapter IV). When none is left, the value
met is the least one up to the tolerance. When phi is strictly convex on the hull of those that are left and
of the best point, a stationary point in it is the minimiser: what is left is up to a local search.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otflow.energies.base import gradient
from otflow.steppers.jko.proof import MARGIN, Separate

# Chosen.
PLANE = 2  # dimensions: the number of boxes grows exponentially with them
PARTICLES = 1024  # of all members together
ROUNDS = 60  # of halving: beyond, boxes are below rounding
BOXES = 2**17  # of all particles together; more end the search without a proof
EACH = 2**11  # of one particle
ROOM = 0.1  # around hulls, relative to their widths
ACCURACY = 1e-10  # of values, relative to that of the start above inf U


@dataclass(frozen=True)
class Candidates:
    """Boxes that may hold the minimiser of a particle, in an axis of their own; closed ones are padding."""

    centre: Tensor  # (*batch, n, k, d)
    half: Tensor  # (*batch, n, k, d)
    open: Tensor  # (*batch, n, k), bool

    def split(self) -> Candidates:
        """The halves of open boxes along every axis."""
        room = int(self.open.sum(-1).max())
        order = self.open.to(torch.int8).argsort(-1, descending=True)[..., :room]
        index = order[..., None].expand(*order.shape, self.centre.shape[-1])
        centre, half = self.centre.gather(-2, index), self.half.gather(-2, index) / 2
        signs = centre.new_tensor(list(itertools.product((-1, 1), repeat=centre.shape[-1])))
        centre = (centre[..., None, :] + half[..., None, :] * signs).flatten(-3, -2)
        half = half[..., None, :].expand(*half.shape[:-1], *signs.shape).flatten(-3, -2)
        still = self.open.gather(-1, order)[..., None].expand(*order.shape, len(signs))
        return Candidates(centre, half, still.flatten(-2))


@dataclass(frozen=True)
class Best:
    """The best point of each particle; whether no other is better by more than ``slack``, or outside a box.

    In that box, of ``confined`` particles, phi is strictly convex.
    """

    z: Tensor  # (*batch, n, d)
    value: Tensor  # (*batch, n)
    slack: Tensor  # (*batch, n)
    proved: Tensor  # (*batch, n), bool
    confined: Tensor  # (*batch, n), bool
    lower: Tensor  # (*batch, n, d)
    upper: Tensor  # (*batch, n, d)

    def above(self, height: Tensor) -> Tensor:
        """Which particles are at a height phi at which a better point is known, (*batch, n)."""
        return height > self.value + self.slack

    def certain(self, z: Tensor, height: Tensor) -> Tensor:
        """Which particles are at the minimiser, if z are stationary points, (*batch, n)."""
        inside = ((z > self.lower) & (z < self.upper)).all(-1)
        return self.proved & torch.where(self.confined, inside, ~self.above(height))


def searched(step: Separate, y: Tensor) -> Best | None:
    """The best points, from trial points y; None if this search is not for such a step."""
    small = step.mu.d <= PLANE and step.mu.x[..., 0].numel() <= PARTICLES and step.bounded
    reach = step.radius(y) if small else None
    if reach is None or not bool(torch.isfinite(reach).any()):
        return None
    value = step.heights(y).detach()
    possible = torch.isfinite(reach)
    reach = torch.where(possible, reach, torch.zeros_like(reach))
    slack = ACCURACY * (value - step.infimum[..., None]) + 16 * torch.finfo(value.dtype).eps * value.abs()
    half = reach[..., None, None].expand(*reach.shape, 1, step.mu.d)
    boxes = Candidates(step.mu.x[..., None, :].clone(), half, possible[..., None].clone())
    best = Best(y, value, slack, possible, torch.zeros_like(possible), y, y)
    for _ in range(ROUNDS):
        best, boxes = _confined(step, *_bounded(step, best, boxes))
        if not bool(boxes.open.any()):
            return best
        most = int(boxes.open.sum(-1).max()) * 2**step.mu.d
        if most > EACH or most * boxes.open[..., 0].numel() > BOXES:
            break
        boxes = boxes.split()
    return replace(best, proved=best.proved & ~boxes.open.any(-1))


def _bounded(step: Separate, best: Best, boxes: Candidates) -> tuple[Best, Candidates]:
    """The best points with the centres of boxes among them, and the boxes that may hold better ones."""
    x = step.mu.x[..., None, :]
    value, slope = _expanded(step, boxes.centre)
    lower, upper = boxes.centre - boxes.half, boxes.centre + boxes.half
    low = step.curvature(lower.movedim(-2, 0), upper.movedim(-2, 0)).movedim(0, -1) + 1 / step.tau
    apart = ((boxes.centre - x).abs() - boxes.half).clamp(min=0).square().sum(-1) / (2 * step.tau)
    bound = torch.maximum(value + _least(slope, low, boxes.half), step.infimum[..., None, None] + apart)
    least, index = torch.where(boxes.open, value, torch.inf).min(-1)
    point = boxes.centre.gather(-2, index[..., None, None].expand(*index.shape, 1, step.mu.d))[..., 0, :]
    better = least < best.value
    best = replace(
        best,
        z=torch.where(better[..., None], point, best.z),
        value=torch.where(better, least, best.value),
    )
    return best, replace(boxes, open=boxes.open & (bound < (best.value - best.slack)[..., None]))


def _confined(step: Separate, best: Best, boxes: Candidates) -> tuple[Best, Candidates]:
    """Close the boxes of particles whose phi is strictly convex on all of them and on the best point."""
    still = boxes.open[..., None]
    lower = torch.where(still, boxes.centre - boxes.half, torch.inf).amin(-2).minimum(best.z)
    upper = torch.where(still, boxes.centre + boxes.half, -torch.inf).amax(-2).maximum(best.z)
    room = ROOM * (upper - lower)  # so that a minimiser is not on the rim
    lower, upper = lower - room, upper + room
    convex = 1 + step.tau * step.curvature(lower, upper) > MARGIN
    fresh = boxes.open.any(-1) & convex
    best = replace(
        best,
        confined=best.confined | fresh,
        lower=torch.where(fresh[..., None], lower, best.lower),
        upper=torch.where(fresh[..., None], upper, best.upper),
    )
    return best, replace(boxes, open=boxes.open & ~fresh[..., None])


def _expanded(step: Separate, z: Tensor) -> tuple[Tensor, Tensor]:
    """phi and its gradient at points (*batch, n, k, d)."""
    with torch.enable_grad():
        points = z.detach().requires_grad_()
        phi = step.heights(points.movedim(-2, 0)).movedim(0, -1)  # clouds of n points, as U may expect
        (slope,) = gradient(phi.sum(), [points])
    return phi.detach(), slope.detach()


def _least(slope: Tensor, low: Tensor, half: Tensor) -> Tensor:
    """min over |t_k| <= h_k of g.t + low |t|^2 / 2, (*batch, n, k); -inf for low = -inf."""
    low, steep = low[..., None], slope.abs()
    convex = low > 0
    t = torch.where(convex, torch.minimum(steep / torch.where(convex, low, 1.0), half), half)
    return torch.where(t > 0, low * t.square() / 2 - steep * t, 0.0).sum(-1)
