"""External potentials: the energy int U dmu."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.enclosures import enclosed, everywhere
from otflow.base.tables import named
from otflow.base.tangent import Tangent
from otflow.energies.base import Bounds, Energy, called, trust_nodes
from otflow.energies.gaussian_means import RTOL, lean, mean, pulled_slope, resolvable
from otflow.measures import Gaussian, Measure

BoxBound: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Potential(Energy):
    """F(mu) = int U dmu.

    On Gaussians in up to three dimensions, or of a covariance of that rank, quadrature checks itself: two
    rules are compared first, and where they disagree space is cut into pieces until they agree, so that U may
    have kinks, jumps and narrow bumps. The differential is then that of the moving density, which needs no
    derivative of U. What is far narrower than the law and hidden beside something smooth can escape: a bump
    of 1/300 of a standard deviation on the line (1/50 for more than 64 laws), of 1/5 in more dimensions.

    Args:
        U: (*batch, n, d) -> (*batch, n), written with torch operations.
        curvature: what is known of D^2 U, for proofs that a JKO step is the best of all: a number that no
            eigenvalue is below, negative where U is not convex; or a function of the corners of boxes,
            (*batch, n, d) each and possibly infinite, that gives such a number for each, (*batch, n). If left
            out it is found by interval arithmetic where U is made of sums, products and elementary functions.
        infimum: a number that U is nowhere below; likewise.
        rtol: bound on the quadrature error on Gaussians, relative to int |U| dmu. If it is not reached, the
            error names one that is. Flows record what was left as the certificate "quadrature".

    >>> from otflow import Potential
    >>> from otflow import Gaussian
    >>> import numpy as np
    >>> F = Potential(lambda x: x.square().sum(-1))
    >>> round(F(Gaussian(np.zeros(2), cov=np.diag([4.0, 1.0]))).item(), 10)
    5.0
    >>> positive = Potential(lambda x: (x[..., 0] > 0).to(x.dtype))
    >>> round(positive(Gaussian([1.0], cov=[[1.0]])).item(), 10)
    0.8413447461
    """

    def __init__(
        self,
        U: Callable[[Tensor], Tensor],
        *,
        curvature: float | BoxBound | None = None,
        infimum: float | None = None,
        rtol: float = RTOL,
    ) -> None:
        self.U = checks.function(U, "U")
        self.curvature = curvature if callable(curvature) else checks.optional(curvature, "curvature")
        self.infimum = checks.optional(infimum, "infimum")
        self.rtol = checks.positive(rtol, "rtol")

    def __call__(self, mu: Measure) -> Tensor:
        if isinstance(mu, Gaussian) and resolvable(mu):
            return mean(self.values, lean(mu), self.rtol, f"{self!r}")
        trust_nodes(mu, self._integral, lambda mu: self._integral(mu, absolute=True))
        return self._integral(mu)

    def covector_at(self, mu: Measure, coords: Sequence[Tensor], *, create_graph: bool) -> Tangent:
        closed = type(self).__call__ is not Potential.__call__  # a subclass that knows its value better
        if closed or not (isinstance(mu, Gaussian) and resolvable(mu)):
            return super().covector_at(mu, coords, create_graph=create_graph)
        return pulled_slope(self.values, lean(mu), coords, self.rtol, f"{self!r}", create_graph=create_graph)

    def __repr__(self) -> str:
        return f"Potential({named(self.U)})"

    def wants_graph(self, mu: Measure) -> bool:
        return super().wants_graph(mu) or (
            torch.is_grad_enabled() and called(self.U, "U(x)", mu.probe().detach()).requires_grad
        )

    def curvature_bounds(self, mu: Measure) -> Bounds:
        probe = mu.probe().detach()
        if self.curvature is None:
            known = everywhere(self.U, probe)
            return (-math.inf, math.inf) if known is None else (known.low[..., 0], known.high[..., 0])
        whole = torch.full_like(probe, torch.inf)
        low, high = self.on_boxes(-whole, whole)
        return low[..., 0], high[..., 0]

    def on_boxes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the eigenvalues of D^2 U on boxes, (*batch, n) each; infinite where none is known."""
        none = torch.full_like(lower[..., 0], -torch.inf)
        if self.curvature is None:
            known = enclosed(self.U, lower, upper)
            return (none, -none) if known is None else (known.low, known.high)
        if not callable(self.curvature):
            return torch.full_like(none, self.curvature), -none
        low = called(self.curvature, "curvature(lower, upper)", lower, upper)
        if low.shape != none.shape:
            rule = f"one number is needed for each of the boxes, {tuple(none.shape)}"
            remedy = "take the least over the last axis"
            checks.fail("curvature(lower, upper).shape", tuple(low.shape), rule, remedy)
        return torch.where(low.isnan(), none, low), -none

    def least(self, mu: Measure) -> Tensor:
        """A number that U is nowhere below, (*batch,) or (); -inf where none is known."""
        known = everywhere(self.U, mu.probe().detach()) if self.infimum is None else None
        if known is not None:
            return known.least[..., 0]
        return mu.coords[0].new_tensor(-math.inf if self.infimum is None else self.infimum)

    def _integral(self, mu: Measure, *, absolute: bool = False) -> Tensor:
        x, w = mu.nodes()
        u = self.values(x)
        return ((w * u).abs() if absolute else w * u).sum(-1)

    def values(self, x: Tensor) -> Tensor:
        """U at points (*batch, n, d), checked to be one number for each."""
        u = called(self.U, "U(x)", x)
        if u.shape != x.shape[:-1]:
            rule = f"U maps points {tuple(x.shape)} to one number each, {tuple(x.shape[:-1])}"
            checks.fail("U(x).shape", tuple(u.shape), rule, "sum over the last axis in U")
        return u
