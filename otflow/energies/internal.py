"""Internal energies int U(rho) dx: entropy, porous media, and an upper bound on the density."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import singledispatch

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import DerivativeError
from otflow.base.tangent import Tangent
from otflow.energies.base import Bounds, Energy
from otflow.measures import Gaussian, Grid, Measure


class Internal(Energy):
    """F(mu) = int U(rho(x)) dx for a convex U with U(0) = 0; +inf or undefined on atoms.

    A subclass gives U, its slope, and the inverse of the slope, from which solvers build the dual.
    """

    @abstractmethod
    def U(self, rho: Tensor) -> Tensor:
        """U(rho), elementwise, for rho >= 0."""

    @abstractmethod
    def slope(self, rho: Tensor) -> Tensor:
        """U'(rho)."""

    @abstractmethod
    def density(self, p: Tensor) -> Tensor:
        """The rho >= 0 with U'(rho) = p, 0 where p is below U'(0): the slope of the conjugate U*."""

    def conjugate(self, p: Tensor) -> Tensor:
        """U*(p) = sup over rho >= 0 of p rho - U(rho)."""
        rho = self.density(p)
        return p * rho - self.U(rho)

    @abstractmethod
    def on_gaussian(self, logdet: Tensor, d: int) -> Tensor:
        """int U(rho) for a Gaussian in dimension d, from log det of its covariance."""

    def __call__(self, mu: Measure) -> Tensor:
        return integral(mu, self)

    def curvature_bounds(self, mu: Measure) -> Bounds:
        """Convex along optimal maps if r^d U(r^-d) is convex and falls (McCann 1997, Condition 1.1)."""
        return (0.0 if self.displacement_convex(mu.probe().shape[-1]) else -math.inf), math.inf

    def displacement_convex(self, d: int) -> bool:
        """Whether r^d U(r^-d) is convex and falls in r; an energy of your own may know."""
        return False


class Entropy(Internal):
    """F(mu) = int rho log rho; its flow in W2 is the heat equation, d/dt rho = Laplace rho.

    >>> from otflow import Entropy
    >>> import otflow as of, math
    >>> F = Entropy()
    >>> round(F(of.Gaussian([0.0], root=[[1.0]])).item() + math.log(2 * math.pi * math.e) / 2, 12)
    0.0
    """

    def U(self, rho: Tensor) -> Tensor:
        return torch.xlogy(rho, rho)

    def slope(self, rho: Tensor) -> Tensor:
        return rho.log() + 1

    def displacement_convex(self, d: int) -> bool:
        return True

    def density(self, p: Tensor) -> Tensor:
        return (p - 1).exp()

    def conjugate(self, p: Tensor) -> Tensor:
        return (p - 1).exp()

    def on_gaussian(self, logdet: Tensor, d: int) -> Tensor:
        return -(logdet + d * math.log(2 * math.pi * math.e)) / 2


class PorousMedium(Internal):
    """F(mu) = int rho^m / (m - 1); its flow in W2 is d/dt rho = Laplace rho^m.

    Args:
        m: > 0 and not 1; slow diffusion with compact support for m > 1, fast diffusion for m < 1.

    >>> from otflow import PorousMedium
    >>> import otflow as of
    >>> PorousMedium(2.0)(of.Grid([[0.5, 1.5]], [[0.25, 0.75]])).item()
    1.25
    """

    def __init__(self, m: float) -> None:
        self.m = checks.positive(m, "m")
        checks.require(self.m != 1.0, "m", m, "the limit m = 1 is the entropy", "use Entropy()")

    def U(self, rho: Tensor) -> Tensor:
        return rho**self.m / (self.m - 1)

    def slope(self, rho: Tensor) -> Tensor:
        return self.m / (self.m - 1) * rho ** (self.m - 1)

    def displacement_convex(self, d: int) -> bool:
        return self.m >= 1 - 1 / d

    def density(self, p: Tensor) -> Tensor:
        base = (self.m - 1) / self.m * p
        if self.m > 1:
            return base.clamp(min=0) ** (1 / (self.m - 1))
        return torch.where(base > 0, base, torch.zeros_like(base)) ** (1 / (self.m - 1))  # inf for p >= 0

    def on_gaussian(self, logdet: Tensor, d: int) -> Tensor:
        m = self.m
        scale = (m - 1) * (logdet + d * math.log(2 * math.pi)) + d * math.log(m)
        return torch.exp(-scale / 2) / (m - 1)

    def __repr__(self) -> str:
        return f"PorousMedium({self.m:g})"


class DensityBound(Internal):
    """F(mu) = 0 if rho <= limit everywhere, else +inf: crowds that cannot be denser (Maury et al. 2010).

    It has no differential, so explicit steps refuse it; JKO steps on grids and quantiles take it.

    >>> from otflow import DensityBound
    >>> import otflow as of
    >>> F = DensityBound(1.0)
    >>> F(of.Grid([1.0, 1.0], [[0.25, 0.75]])).item(), F(of.Grid([0.5, 1.5], [[0.25, 0.75]])).item()
    (0.0, inf)
    """

    def __init__(self, limit: float) -> None:
        self.limit = checks.positive(limit, "limit")

    def U(self, rho: Tensor) -> Tensor:
        over = rho > self.limit * (1 + 1e-9)  # rounding is not a crowd
        return torch.where(over, torch.full_like(rho, math.inf), torch.zeros_like(rho))

    def displacement_convex(self, d: int) -> bool:
        return True

    def slope(self, rho: Tensor) -> Tensor:
        raise DerivativeError("a density bound has no differential; use JKO() on a Grid or on Quantiles.")

    def density(self, p: Tensor) -> Tensor:
        return torch.where(p > 0, torch.full_like(p, self.limit), torch.zeros_like(p))

    def conjugate(self, p: Tensor) -> Tensor:
        return self.limit * p.clamp(min=0)

    def on_gaussian(self, logdet: Tensor, d: int) -> Tensor:
        return self.U(torch.exp(-(logdet + d * math.log(2 * math.pi)) / 2))

    def differential(self, mu: Measure) -> Tangent:
        self(mu)  # which refuses measures without a density
        raise DerivativeError("a density bound has no differential; use JKO() on a Grid or on Quantiles.")

    def __repr__(self) -> str:
        return f"DensityBound({self.limit:g})"


@singledispatch
def integral(mu: Measure, energy: Internal) -> Tensor:
    """int U(rho) dx, for each kind of measure that has a density."""
    rule = f"{energy!r} needs a density, and a finite cloud has none"
    checks.fail("mu", repr(mu), rule, "use a Gaussian, a Grid, or Quantiles on the line")


@integral.register(Grid)
def _(mu: Grid, energy: Internal) -> Tensor:
    return energy.U(mu.density).reshape(*mu.batch, -1).sum(-1) * mu.cell


@integral.register(Gaussian)
def _(mu: Gaussian, energy: Internal) -> Tensor:
    R = mu.root
    if R.shape[-1] < mu.d:
        rule = f"{energy!r} needs a density, and this covariance is singular"
        checks.fail("mu.root.shape", tuple(R.shape), rule, "pass a root with at least d columns")
    logdet = torch.linalg.slogdet(R).logabsdet * 2 if R.shape[-1] == mu.d else torch.logdet(R @ R.mT)
    return energy.on_gaussian(logdet, mu.d)
