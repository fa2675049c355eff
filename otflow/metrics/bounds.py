"""Lower bounds for distances twisted by a weight.

If the weight is at least c on every path, the distance d is at least c^(1/2) W2. The weight of `Partition`
has such a floor on the sphere, c = exp(-|A|). In R^d it has none: far away from where most mass is, motion
may cost nothing. But for a function f, along any path of measures mu_t with velocity v_t,

    d/dt int f dmu_t = int grad f.v_t dmu_t <= (int a |v_t|^2 dmu_t)^(1/2) (int |grad f|^2 / a dmu_t)^(1/2),

so that d >= int f d(nu - mu) if the last factor is at most 1 for all measures. Let |grad f| <= g in a ball of
centre c and radius rho, and grad f = 0 outside. With m the mean of the mass in the ball, relative to c, and B
that mass, convexity of exp gives a(c + x) >= B exp(A(c + x).(c + m)), and so

    int |grad f|^2 / a dmu <= g^2 E exp(-A(c + X).(c + m)),   m = E X, |X| <= rho.

The mass has gone from the bound: nothing is assumed on the path. The right side is at most

    g^2 exp(-Ac.c + (|Ac| + |A^T c|) rho) b(|A| rho^2),   b(z) = e^z,

and, if A is symmetric and positive semidefinite, b(z) = max over 0 <= s <= z of cosh s - (s/z) sinh s, which
is 1 for z <= 2: X.Am / |Am| has the mean m.Am / |Am| >= |Am| / |A|, and exp lies below its chord. All such f
together tell measures in the ball apart by at least g k W1, where k = min(1, 2 (rho - R) / D) if both lie
within R of c and D is the largest distance between them: a way through the outside is free, but not to the
outside. On the sphere there is no outside.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base.linalg import sqrtm
from otflow.base.spaces import Euclidean, Space, Sphere
from otflow.measures import Particles
from otflow.metrics.partition import Partition
from otflow.metrics.twisted import Twisted

# Radii rho that are tried; chosen: any rho gives a bound, and the best of many is near the best of all.
RADII = 200


class GroundDistances(NamedTuple):
    """W1 and W2 between two clouds, (*batch,)."""

    w1: Tensor
    w2: Tensor


@singledispatch
def lower_bound(weight: Any, metric: Twisted, mu: Particles, nu: Particles, w: GroundDistances) -> Tensor:
    """What the distance is not less than, (*batch,); 0 where nothing is known.

    ``mu`` and ``nu`` are the images under M^(1/2), between which there is no matrix any more.
    """
    return torch.zeros_like(w.w2)


@lower_bound.register(Partition)
def _(weight: Partition, metric: Twisted, mu: Particles, nu: Particles, w: GroundDistances) -> Tensor:
    A = weight.A.detach()
    if metric.matrix is not None:
        root = sqrtm(metric.matrix.detach())
        A = torch.linalg.solve(root, torch.linalg.solve(root, A).mT).mT  # of the images
    return _partition_bound(mu.space, A, mu, nu, w)


@singledispatch
def _partition_bound(space: Space, A: Tensor, mu: Particles, nu: Particles, w: GroundDistances) -> Tensor:
    return torch.zeros_like(w.w2)


@_partition_bound.register(Sphere)
def _(space: Sphere, A: Tensor, mu: Particles, nu: Particles, w: GroundDistances) -> Tensor:
    L = torch.linalg.matrix_norm(A, 2)
    return torch.maximum(torch.exp(-L / 2) * w.w2, torch.exp(-log_growth(L, _definite(A)) / 2) * w.w1)


@_partition_bound.register(Euclidean)
def _(space: Euclidean, A: Tensor, mu: Particles, nu: Particles, w: GroundDistances) -> Tensor:
    reach = space.pairwise(mu.x, nu.x).amax((-1, -2))
    middle = (mu.x.mean(-2) + nu.x.mean(-2)) / 2
    balls = [ball_factor(A, c, _radius(mu, nu, c), reach) for c in (torch.zeros_like(middle), middle)]
    return torch.maximum(*balls) * w.w1


def _radius(mu: Particles, nu: Particles, c: Tensor) -> Tensor:
    """How far the atoms are from c at most."""
    return torch.maximum(*((one.x - c[..., None, :]).norm(dim=-1).amax(-1) for one in (mu, nu)))


def ball_factor(A: Tensor, c: Tensor, radius: Tensor, reach: Tensor) -> Tensor:
    """g k of the argument above, at the best rho, for the ball around c; (*batch,).

    >>> import torch
    >>> from otflow.metrics.bounds import ball_factor
    >>> A, c = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    >>> ball_factor(A, c, torch.tensor(1.0), torch.tensor(0.5)).item()  # rho = 1.25: 1 while rho^2 <= 2
    1.0
    """
    L, definite = torch.linalg.matrix_norm(A, 2), _definite(A)
    forth, back = ((M @ c[..., None])[..., 0] for M in (A, A.mT))
    slack = torch.linspace(0, 0.5, RADII + 1, dtype=A.dtype, device=A.device)[1:].reshape(
        -1, *[1] * radius.ndim
    )
    rho = radius + slack * reach
    slope = forth.norm(dim=-1) + back.norm(dim=-1)
    log = slope * rho - (forth * c).sum(-1) + log_growth(L * rho**2, definite)
    return (torch.exp(-log / 2) * (2 * slack).clamp(max=1)).amax(0)


def log_growth(z: Tensor, definite: Tensor) -> Tensor:
    """log b(z), for A that is positive semidefinite or not.

    >>> import torch
    >>> from otflow.metrics.bounds import log_growth
    >>> log_growth(torch.tensor([2.0, 8.0, 8.0]), torch.tensor([True, True, False]))
    tensor([0.0000, 4.2275, 8.0000])
    """
    wide = z.clamp(min=2)
    s = wide
    for _ in range(200):  # where the slope vanishes; a small error of s makes none in the maximum
        s = (wide - 1) * torch.tanh(s)
    top = s + torch.log((1 - s / wide) + (1 + s / wide) * torch.exp(-2 * s)) - math.log(2)
    return torch.where(definite, torch.where(z > 2, top.clamp(min=0) + 1e-6, torch.zeros_like(z)), z)


def _definite(A: Tensor) -> Tensor:
    """Whether A is symmetric and positive semidefinite, (*batch,)."""
    skew = (A - A.mT).abs().amax((-1, -2))
    return (skew == 0) & (torch.linalg.eigvalsh(A)[..., 0] >= 0)
