"""Spaces in which tokens live: R^d, the unit sphere, a flat torus."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from otflow.base.checks import fail, on_host, positive


class Space(ABC):
    """A manifold embedded in R^d (or a quotient of it): tangent projection, moves and distances."""

    linear: ClassVar[bool] = True  # whether positions are vectors, so that matrices may act on them

    @abstractmethod
    def check(self, x: Tensor) -> Tensor:
        """``x`` if it lies in the space (cleaned of rounding), else an error."""

    @abstractmethod
    def tangent(self, x: Tensor, u: Tensor) -> Tensor:
        """The orthogonal projection of ``u`` onto the tangent space at ``x``."""

    @abstractmethod
    def retract(self, x: Tensor, u: Tensor) -> Tensor:
        """``x + u`` brought back to the space; ``u`` is *not* projected first."""

    @abstractmethod
    def exp(self, x: Tensor, u: Tensor) -> Tensor:
        """The end of the geodesic that leaves ``x`` with the tangent velocity ``u``."""

    @abstractmethod
    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """The velocity with which a shortest geodesic from ``x`` reaches ``y`` at time one."""

    @abstractmethod
    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance, over the last axis."""

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances (*batch, n, m) between all points of x (*batch, n, d) and of y (*batch, m, d)."""
        return self.distance(x[..., :, None, :], y[..., None, :, :])


@dataclass(frozen=True)
class Euclidean(Space):
    """R^d.

    >>> from otflow import Euclidean
    >>> import torch
    >>> Euclidean().distance(torch.zeros(2), torch.tensor([3.0, 4.0]))
    tensor(5.)
    """

    def check(self, x: Tensor) -> Tensor:
        return x

    def tangent(self, x: Tensor, u: Tensor) -> Tensor:
        return u

    def retract(self, x: Tensor, u: Tensor) -> Tensor:
        return x + u

    def exp(self, x: Tensor, u: Tensor) -> Tensor:
        return x + u

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        return y - x

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return norm(x - y)

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        # Many times faster than `distance`, and also from differences: |x|^2 + |y|^2 - 2 x.y loses digits.
        # The powers of two change no digit and keep squares of differences within floating point.
        scale = torch.maximum(power_of_two(x), power_of_two(y))
        # Next to far larger ones, small squares would vanish. On an accelerator they may: a look would wait.
        if on_host(x) and any(_has_small(z, scale) for z in (x, y)):
            return super().pairwise(x, y)
        return scale * torch.cdist(x / scale, y / scale, compute_mode="donot_use_mm_for_euclid_dist")


@dataclass(frozen=True)
class Sphere(Space):
    """The unit sphere S^(d-1) of R^d.

    ``retract`` is normalise(x + u). A Runge-Kutta method keeps its order on the sphere because its
    stages then see the 0-homogeneous extension x -> v(x/|x|) of the field, an ordinary smooth field
    around the sphere that preserves |x|; projecting u again would break this.

    >>> from otflow import Sphere
    >>> import torch
    >>> x, u = torch.tensor([1.0, 0.0]), torch.tensor([0.0, torch.pi / 2])
    >>> Sphere().exp(x, u).round(decimals=6)
    tensor([0., 1.])
    """

    atol: float = 1e-6  # how far norms of tokens that are given may be from 1

    def check(self, x: Tensor) -> Tensor:
        off = (norm(x) - 1).abs()
        if (off > self.atol).any():
            rule = f"tokens on the sphere have norm 1 within {self.atol:g}"
            fail("max | |x| - 1 |", off.max().item(), rule, "normalise x, x / x.norm(dim=-1, keepdim=True)")
        return normalise(x)

    def tangent(self, x: Tensor, u: Tensor) -> Tensor:
        return u - (x * u).sum(-1, keepdim=True) * x

    def retract(self, x: Tensor, u: Tensor) -> Tensor:
        return normalise(x + u)

    def exp(self, x: Tensor, u: Tensor) -> Tensor:
        r = norm(u)[..., None]
        return normalise(torch.cos(r) * x + torch.sinc(r / math.pi) * u)

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        """Zero between antipodes, where no direction is the shortest."""
        u = self.tangent(x, y - x)
        r = norm(u)
        return (self.distance(x, y) / torch.where(r > 0, r, torch.ones_like(r)))[..., None] * u

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        # Kahan's formula is accurate for points near each other and near antipodes; acos(x.y) for neither.
        return 2 * torch.atan2(norm(x - y), norm(x + y))

    def pairwise(self, x: Tensor, y: Tensor) -> Tensor:
        flat = Euclidean()
        return 2 * torch.atan2(flat.pairwise(x, y), flat.pairwise(x, -y))


@dataclass(frozen=True)
class Torus(Space):
    """The flat torus (R / period Z)^d; positions are kept in [0, period).

    >>> from otflow import Torus
    >>> import torch
    >>> Torus(1.0).distance(torch.tensor([0.1]), torch.tensor([0.9])).round(decimals=6)
    tensor(0.2000)
    """

    linear: ClassVar[bool] = False  # coordinates wrap around
    period: float = 2 * math.pi

    def __post_init__(self) -> None:
        positive(self.period, "period")

    def check(self, x: Tensor) -> Tensor:
        return self._wrap(x)

    def tangent(self, x: Tensor, u: Tensor) -> Tensor:
        return u

    def retract(self, x: Tensor, u: Tensor) -> Tensor:
        return self._wrap(x + u)

    def exp(self, x: Tensor, u: Tensor) -> Tensor:
        return self._wrap(x + u)

    def log(self, x: Tensor, y: Tensor) -> Tensor:
        z = y - x
        return z - self.period * torch.round(z / self.period)  # keeps the digits of small differences

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return norm(self.log(x, y))

    def _wrap(self, x: Tensor) -> Tensor:
        y = torch.remainder(x, self.period)
        return torch.where(y >= self.period, y - self.period, y)  # remainder(-1e-20, p) rounds to p


def _has_small(x: Tensor, scale: Tensor) -> bool:
    """Whether some coordinate is so small that its difference from the next number has no square there."""
    limits, size = torch.finfo(x.dtype), x.detach().abs()
    small = limits.tiny**0.5 / limits.eps
    if not x.numel() or size.amin().item() >= small * scale.max().item():
        return False
    return bool(((size < scale * small) & (size > 0)).any())


def power_of_two(x: Tensor) -> Tensor:
    """The power of two just below max |x| of each cloud, (*batch, 1, 1), to scale by without rounding."""
    return torch.exp2(torch.frexp(x.detach().abs().amax((-1, -2), keepdim=True)).exponent.to(x.dtype) - 1)


def norm(x: Tensor) -> Tensor:
    """|x| over the last axis, scaled against overflow, with gradient 0 (not NaN) at x = 0."""
    # Divided by its largest entry, a vector has squares that neither overflow nor all underflow.
    scale = x.detach().abs().amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    square = (x / scale).square().sum(-1)
    zero = square == 0
    # The root has an infinite slope at 0. There it is taken at 1 instead, and the result is not used.
    root = torch.where(zero, torch.ones_like(square), square).sqrt()
    return torch.where(zero, torch.zeros_like(root), root) * scale[..., 0]


def normalise(x: Tensor) -> Tensor:
    """x / |x|; the zero vector has no direction and gives NaN, which a flow reports as a failure."""
    return x / norm(x)[..., None]
