"""External potentials: the energy int U dmu."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.tables import named
from otflow.base.tangent import Tangent
from otflow.energies.base import Energy, called, trust_nodes
from otflow.energies.gaussian_means import RTOL, lean, mean, pulled_slope, resolvable
from otflow.measures import Gaussian, Measure


class Potential(Energy):
    """F(mu) = int U dmu.

    On Gaussians in up to three dimensions, or of a covariance of that rank, quadrature checks itself: two
    rules are compared first, and where they disagree space is cut into pieces until they agree, so that U may
    have kinks, jumps and narrow bumps. The differential is then that of the moving density, which needs no
    derivative of U. What is far narrower than the law and hidden beside something smooth can escape: a bump
    of 1/300 of a standard deviation on the line (1/50 for more than 64 laws), of 1/5 in more dimensions.

    Args:
        U: (*batch, n, d) -> (*batch, n), written with torch operations.
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

    def __init__(self, U: Callable[[Tensor], Tensor], *, rtol: float = RTOL) -> None:
        self.U = checks.function(U, "U")
        self.rtol = checks.positive(rtol, "rtol")

    def __call__(self, mu: Measure) -> Tensor:
        if isinstance(mu, Gaussian) and resolvable(mu):
            return mean(self._values, lean(mu), self.rtol, f"{self!r}")
        trust_nodes(mu, self._integral, lambda mu: self._integral(mu, absolute=True))
        return self._integral(mu)

    def covector_at(self, mu: Measure, coords: Sequence[Tensor], *, create_graph: bool) -> Tangent:
        closed = type(self).__call__ is not Potential.__call__  # a subclass that knows its value better
        if closed or not (isinstance(mu, Gaussian) and resolvable(mu)):
            return super().covector_at(mu, coords, create_graph=create_graph)
        return pulled_slope(self._values, lean(mu), coords, self.rtol, f"{self!r}", create_graph=create_graph)

    def __repr__(self) -> str:
        return f"Potential({named(self.U)})"

    def wants_graph(self, mu: Measure) -> bool:
        return super().wants_graph(mu) or (
            torch.is_grad_enabled() and called(self.U, "U(x)", mu.probe().detach()).requires_grad
        )

    def _values(self, x: Tensor) -> Tensor:
        u = called(self.U, "U(x)", x)
        if u.shape != x.shape[:-1]:
            rule = f"U maps points {tuple(x.shape)} to one number each, {tuple(x.shape[:-1])}"
            checks.fail("U(x).shape", tuple(u.shape), rule, "sum over the last axis in U")
        return u

    def _integral(self, mu: Measure, *, absolute: bool = False) -> Tensor:
        x, w = mu.nodes()
        u = self._values(x)
        return ((w * u).abs() if absolute else w * u).sum(-1)
