"""Optimal plans between Gaussians in closed form, exact and entropic, as one kind of solution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.linalg import ratio, symmetric
from otflow.base.spaces import power_of_two
from otflow.base.tables import table
from otflow.measures import Gaussian
from otflow.transport.bures.entropic import blurred
from otflow.transport.bures.geometry import (
    NOISE,
    AffineMap,
    AffineParts,
    affine_parts,
    aligned,
    in_double,
    matched,
)
from otflow.transport.ranges import in_units, matrices_in_units


@dataclass(frozen=True, eq=False, repr=False)
class QuadraticFunction:
    """x -> c + b.(x - m) + (x - m).A (x - m), on points (*batch, n, d): a potential between Gaussians.

    >>> import torch
    >>> from otflow.transport.bures.gaussian_transport import QuadraticFunction
    >>> one = torch.ones(1)
    >>> QuadraticFunction(torch.tensor(3.0), 2 * one, torch.eye(1), one)(torch.tensor([[1.0], [2.0]]))
    tensor([3., 6.])
    """

    constant: Tensor  # (*batch,)
    slope: Tensor  # (*batch, d)
    matrix: Tensor  # (*batch, d, d)
    centre: Tensor  # (*batch, d)

    def __call__(self, x: Any) -> Tensor:
        u = checks.alike(checks.tensor(x, "x"), "x", self.centre, "the potential")
        good = u.ndim >= 2 and u.shape[-1] == self.centre.shape[-1]
        rule = f"points have shape (*batch, n, {self.centre.shape[-1]})"
        checks.require(good, "x.shape", u.shape, rule, "for one point pass x[None]")
        u = u - self.centre[..., None, :]
        return self.constant[..., None] + (u * (self.slope[..., None, :] + u @ self.matrix)).sum(-1)

    def __repr__(self) -> str:
        return f"QuadraticFunction(d={self.centre.shape[-1]})"


class QuadraticCosts(NamedTuple):
    """What plans between Gaussians cost, in double precision and in units in which these are of size one."""

    distance: Tensor  # in units of unit, (*batch,)
    cost: Tensor  # in units of unit^2, like the others
    regularised_cost: Tensor
    cross: Tensor  # (*batch, d, d)
    unit: Tensor  # (*batch,), a power of two


@dataclass(frozen=True, eq=False, repr=False)
class GaussianTransport:
    """The optimal plan between two Gaussians for the cost |x - y|^2, in closed form: itself a Gaussian.

    From `solve`, which minimises E|x - y|^2, or from `sinkhorn`, which minimises E|x - y|^2 + eps KL(P | mu
    nu). Costs, ``cross`` and ``map`` have derivatives in means and roots; potentials and plan are numbers.

    The plan is known at every scale. What has no room in the dtype, as a cost of 1e-50 in single precision,
    raises `NotFiniteError` when it is asked for.

    Attributes:
        eps: the regularisation, 0 for exact transport.
        plan: the joint law of (x, y), a `Gaussian` in R^(2d), singular if eps = 0.
        certificates: ``residual``, how far the plan is from the condition of optimality, relative to its
            size: that R1^T R2 U is symmetric and positive, or that M = (I - M M^T)(2 / eps) R1^T R2.
        status: "ok": there always is a plan.

    >>> import otflow as of
    >>> mu, nu = of.Gaussian([0.0], cov=[[1.0]]), of.Gaussian([3.0], cov=[[25.0]])
    >>> found = of.solve(mu, nu)
    >>> found.distance.item(), found.map([[1.0]]).item(), found.plan.cov.tolist()
    (5.0, 8.0, [[1.0, 5.0], [5.0, 25.0]])
    >>> f, g = found.potentials  # f(x) + g(y) <= |x - y|^2, with equality along the map
    >>> (f([[1.0]]) + g([[8.0]])).item(), (f([[1.0]]) + g([[7.0]])).item() <= 36.0
    (49.0, True)
    """

    relative: QuadraticCosts
    eps: float
    plan: Gaussian
    ways: tuple[AffineParts, AffineParts]  # x -> E[y | x] and y -> E[x | y]
    certificates: dict[str, Tensor]
    status: Any

    @property
    def batch(self) -> torch.Size:
        """Shape of the leading axes."""
        return self.relative.unit.shape

    @cached_property
    def cost(self) -> Tensor:
        """E|x - y|^2 under the plan, (*batch,)."""
        return self._in_units(self.relative.cost, 2, "cost")

    @cached_property
    def regularised_cost(self) -> Tensor:
        """cost + eps KL(P | mu nu), (*batch,); the cost itself if eps = 0."""
        return self._in_units(self.relative.regularised_cost, 2, "regularised cost")

    @cached_property
    def distance(self) -> Tensor:
        """The root of the cost, (*batch,)."""
        return self._in_units(self.relative.distance, 1, "distance")

    @cached_property
    def cross(self) -> Tensor:
        """The cross-covariance E (x - m1)(y - m2)^T, (*batch, d, d)."""
        exact = self.relative
        return matrices_in_units(exact.cross, exact.unit, 2, self.plan.dtype, "the cross-covariance")

    @cached_property
    def map(self) -> AffineMap:
        """The conditional mean x -> E[y | x]: the optimal map if eps = 0 and ``map.status`` is "ok"."""
        return self.ways[0].map

    @cached_property
    def back(self) -> AffineMap:
        """The conditional mean y -> E[x | y]."""
        return self.ways[1].map

    def _in_units(self, x: Tensor, power: int, name: str) -> Tensor:
        return in_units(x, self.relative.unit, power, self.plan.dtype, name, noise=NOISE**power)

    @property
    def potentials(self) -> tuple[QuadraticFunction, QuadraticFunction]:
        """f and g, each with half of the constant: E f + E g = regularised_cost, and f + g <= c if eps = 0.

        Since grad f(x) = 2 (x - E[y | x]), and likewise for g. Refused where no map leads from mu to nu or
        back, as between laws of different rank: potentials of exact transport are infinite there.
        """
        rule = "they are infinite where one covariance is singular and the other is not"
        good = all(status.all_ok(one.status) for one in (self.map, self.back))
        checks.require(good, "potentials", self, rule, "use plan, or sinkhorn with a small eps")
        with torch.no_grad():
            f, g = _bowl(self.map), _bowl(self.back)
            d = self.plan.d // 2
            total = self.regularised_cost - _mean(f, self.plan.root[..., :d, :])
            total = total - _mean(g, self.plan.root[..., d:, :])
            return replace(f, constant=total / 2), replace(g, constant=total / 2)

    def _repr_html_(self) -> str:
        rows = {"d": self.plan.d // 2, "eps": self.eps, "distance": self.distance}
        return table("GaussianTransport", rows | {"status": status.summary(self.status)})

    def __repr__(self) -> str:
        batch = f", batch={tuple(self.batch)}" if self.batch else f", distance={self.distance.item():g}"
        eps = f", eps={self.eps:g}" if self.eps else ""
        return f"GaussianTransport(d={self.plan.d // 2}{batch}{eps}, {status.summary(self.status)!r})"


def _bowl(f: AffineMap) -> QuadraticFunction:
    """The function with gradient 2 (x - f(x)) that vanishes in the mean."""
    eye = torch.eye(f.matrix.shape[-1], dtype=f.matrix.dtype, device=f.matrix.device)
    matrix = symmetric(eye - f.matrix.detach())
    shift = 2 * (f.source - f.target).detach()
    return QuadraticFunction(torch.zeros_like(shift[..., 0]), shift, matrix, f.source.detach())


def _mean(f: QuadraticFunction, root: Tensor) -> Tensor:
    """E f(m + R z), up to the constant."""
    return (root * (f.matrix @ root)).sum((-1, -2))


def solve_gaussians(mu: Gaussian, nu: Gaussian) -> GaussianTransport:
    """Exact transport between Gaussians: `solve` for them."""
    grains = mu.grain, nu.grain
    mu, nu = matched(mu, nu)
    units = [power_of_two(g.root.detach().double()) for g in (mu, nu)]
    a, b = aligned(*(g.root.double() / unit for g, unit in zip((mu, nu), units, strict=True)))
    distance = in_double(mu, nu)
    sizes = [g.root.detach().double().abs().amax((-1, -2)) for g in (mu, nu)]
    unit = power_of_two(torch.stack([*sizes, distance.detach()], -1)[..., None])[..., 0, 0]
    relative = distance / unit
    cross = (a * (units[0] / unit[..., None, None])) @ (b * (units[1] / unit[..., None, None])).mT
    return GaussianTransport(
        QuadraticCosts(relative, relative.square(), relative.square(), cross, unit),
        0.0,
        plan=_joint(mu, nu, torch.cat([a * units[0], b * units[1]], -2)),
        ways=(affine_parts(mu, nu, grain=grains[1]), affine_parts(nu, mu, grain=grains[0])),
        certificates={"residual": _asymmetry(a, b).to(mu.dtype)},
        status=_fine(unit),
    )


def sinkhorn_gaussians(mu: Gaussian, nu: Gaussian, eps: float) -> GaussianTransport:
    """Entropic transport between Gaussians: `sinkhorn` for them.

    Tends to W2^2 and the optimal map as eps -> 0, to E|x - y|^2 under independence and a constant map as
    eps -> infinity. ``regularised_cost`` has second derivatives. Where S1 is singular, ``map`` is the limit
    of those of invertible covariances; off the support of mu its slope may reach 2 |S2| / eps.

    References: Janati, Muzellec, Peyré and Cuturi, Entropic optimal transport between unbalanced Gaussian
    measures has a closed form, 2020, Theorem 1.

    >>> from otflow import Gaussian
    >>> from otflow.transport.bures.gaussian_transport import sinkhorn_gaussians
    >>> mu, nu = Gaussian([0.0], root=[[1.0]]), Gaussian([1.0], root=[[2.0]])
    >>> found = sinkhorn_gaussians(mu, nu, 6.0)
    >>> found.cross.item(), found.cost.item(), found.map([[2.0]]).item()
    (1.0, 4.0, 3.0)
    """
    mu, nu = matched(mu, nu)
    found = blurred(mu, nu, eps)
    one, codes = torch.ones_like(found.unit), torch.zeros(found.unit.shape, dtype=torch.long)
    ends = mu.mean.clone(), nu.mean.clone()
    return GaussianTransport(
        QuadraticCosts(found.cost.sqrt(), found.cost, found.regularised_cost, found.cross, found.unit),
        eps,
        plan=_joint(mu, nu, found.root),
        ways=(
            AffineParts(found.forward, one, *ends, codes),
            AffineParts(found.backward, one, *ends[::-1], codes),
        ),
        certificates={"residual": found.residual.to(mu.dtype)},
        status=_fine(one),
    )


def _fine(unit: Tensor) -> Any:
    return status.names(torch.zeros(unit.shape, dtype=torch.long))


def _joint(mu: Gaussian, nu: Gaussian, root: Tensor) -> Gaussian:
    """The law of (x, y), (*batch, 2d)."""
    return Gaussian(torch.cat([mu.mean, nu.mean], -1).detach(), root=root.detach().to(mu.dtype))


@torch.no_grad()
def _asymmetry(a: Tensor, b: Tensor) -> Tensor:
    """How far N = A^T B is from (N^T N)^(1/2), relative, (*batch,): 0 if no rotation brings B nearer to A."""
    n = a.mT @ b
    _, s, yt = torch.linalg.svd(n)
    off = (n - (yt.mT * s[..., None, :]) @ yt).square().sum((-1, -2)).sqrt()
    return ratio(off, s.square().sum(-1).sqrt())
