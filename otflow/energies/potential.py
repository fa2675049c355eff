"""External potentials: the energy int U dmu."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.tables import named
from otflow.energies.base import Energy, called, trust_nodes
from otflow.measures import Measure


class Potential(Energy):
    """F(mu) = int U dmu.

    Args:
        U: (*batch, n, d) -> (*batch, n), written with torch operations.

    >>> from otflow import Potential
    >>> from otflow import Gaussian
    >>> import numpy as np
    >>> F = Potential(lambda x: x.square().sum(-1))
    >>> round(F(Gaussian(np.zeros(2), cov=np.diag([4.0, 1.0]))).item(), 10)
    5.0
    """

    def __init__(self, U: Callable[[Tensor], Tensor]) -> None:
        self.U = checks.function(U, "U")

    def __call__(self, mu: Measure) -> Tensor:
        trust_nodes(mu, self._integral, lambda mu: self._integral(mu, absolute=True))
        return self._integral(mu)

    def __repr__(self) -> str:
        return f"Potential({named(self.U)})"

    def wants_graph(self, mu: Measure) -> bool:
        return super().wants_graph(mu) or (
            torch.is_grad_enabled() and called(self.U, "U(x)", mu.probe().detach()).requires_grad
        )

    def _integral(self, mu: Measure, *, absolute: bool = False) -> Tensor:
        x, w = mu.nodes()
        u = called(self.U, "U(x)", x)
        if u.shape != w.shape:
            rule = f"U maps points {tuple(x.shape)} to one number each, {tuple(w.shape)}"
            checks.fail("U(x).shape", tuple(u.shape), rule, "sum over the last axis in U")
        return ((w * u).abs() if absolute else w * u).sum(-1)
