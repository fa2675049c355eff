"""A Gaussian flow in stretched time, and how its law moves there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base.linalg import lyapunov, ratio
from otflow.base.tangent import Tangent
from otflow.fields import Carry, VelocityField
from otflow.measures import Gaussian, Measure


class Stretched(VelocityField):
    """A field in the time s, t = scale (exp(s) - 1); s counts from ``start``.

    Roots R and R O mean the same law, and a root may turn for ever though its law is at rest. Where it is to
    be kept ``still``, R W is added to the velocity U of the root, with the skew W that makes it least,
    R^T R W + W R^T R = U^T R - R^T U; the law does not feel it.
    """

    def __init__(self, field: VelocityField, scale: Tensor, start: Tensor, still: Tensor) -> None:
        self.field, self.scale, self.start, self.still = field, scale, start, still

    @classmethod
    def of(cls, field: VelocityField, mu0: Gaussian) -> Stretched:
        """From 0, on the time scale of the covariance (or, if that is at rest, of the mean)."""
        start = torch.zeros(mu0.batch, dtype=torch.float64, device=mu0.device)
        motion = Motion.of(field.evaluate(start, mu0)[0], mu0)
        rate = torch.maximum(ratio(motion.speed, motion.size), ratio(motion.drift, motion.offset))
        return cls(
            field, torch.where(rate > 0, 1 / rate, 1.0), start, torch.zeros_like(rate, dtype=torch.bool)
        )

    def after(self, s: Tensor, still: Tensor) -> Stretched:
        """The same path from s on."""
        return Stretched(self.field, self.scale, self.start + s, still)

    def time(self, s: Tensor) -> Tensor:
        return self.scale * torch.expm1(self.start + s)

    def evaluate(self, t: Tensor, mu: Measure, carry: Carry | None = None) -> tuple[Tangent, Carry | None]:
        v, carry = self.field.evaluate(self.time(t), mu, carry)
        if bool(self.still.any()):
            R = mu.coords[1]
            turn = R.mT @ v[1]
            usable = self.still & torch.isfinite(R).all(-1).all(-1)
            gram, skew = (torch.where(usable[..., None, None], a, 0.0) for a in (R.mT @ R, turn.mT - turn))
            v = Tangent([v[0], v[1] + R @ lyapunov(gram, skew)])
        return self.scale * torch.exp(self.start + t) * v, carry


@dataclass(frozen=True)
class Motion:
    """How fast a law moves: Frobenius norms of the covariance, its velocity, and the like for the mean."""

    size: Tensor
    speed: Tensor
    offset: Tensor
    drift: Tensor

    @classmethod
    def of(cls, v: Tangent, mu: Gaussian) -> Motion:
        R, U = mu.root, v[1]
        half = U @ R.mT
        frobenius = torch.linalg.matrix_norm
        return cls(
            size=frobenius(R @ R.mT).double(),
            speed=frobenius(half + half.mT).double(),
            offset=torch.linalg.vector_norm(mu.mean, dim=-1).double(),
            drift=torch.linalg.vector_norm(v[0], dim=-1).double(),
        )


class Modes(NamedTuple):
    """The singular value decomposition of a root, and d log(eigenvalue of the covariance) / d log t."""

    u: Tensor
    sigma: Tensor
    wt: Tensor
    slopes: Tensor

    @classmethod
    def of(cls, path: Stretched, s: Tensor, mu: Gaussian) -> Modes:
        v = path.evaluate(s, mu)[0]
        u, sigma, wt = torch.linalg.svd(torch.nan_to_num(mu.root), full_matrices=False)
        return cls(u, sigma, wt, 2 * ratio((u * (v[1] @ wt.mT)).sum(-2), sigma))

    def root(self, which: Tensor) -> Tensor:
        """The root with some of its directions only."""
        return (self.u * torch.where(which, self.sigma, 0.0)[..., None, :]) @ self.wt


def shaken(mu: Gaussian, pattern: int = 0) -> Gaussian:
    """The same law with mean and root wrong in their last digit, to see what rounding does."""
    mean, root = mu.mean, mu.root
    m, r = _shake(mean, mean.shape[-1:], pattern), _shake(root, root.shape[-2:], pattern)
    return mu.at([mean * (1 + m), root * (1 + r)])


def _shake(a: Tensor, shape: torch.Size, pattern: int) -> Tensor:
    """One rounding up or down for every entry."""
    index = torch.arange(pattern, pattern + shape.numel(), dtype=a.dtype, device=a.device)
    return torch.finfo(a.dtype).eps * torch.cos(index.square()).sign().reshape(shape)
