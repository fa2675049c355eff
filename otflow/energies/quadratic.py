"""Quadratic energies, which steps on Gaussians solve in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.matrices import fitting, of_energy, squares
from otflow.base.parameters import Derived
from otflow.base.tangent import Tangent
from otflow.energies.base import Bounds, Energy
from otflow.energies.interaction import Interaction
from otflow.energies.potential import Potential
from otflow.measures import Gaussian, Measure


class QuadraticPotential(Potential):
    """F(mu) = int 1/2 (x - b).A(x - b) dmu(x).

    Args:
        A: (*batch, d, d), symmetric.
        b: (*batch, d); the origin if left out.

    >>> from otflow import QuadraticPotential
    >>> import otflow as of
    >>> F = QuadraticPotential([[2.0]], [1.0])
    >>> F(of.Particles([[0.0], [3.0]])).item()
    2.5
    """

    A = Derived[Tensor](lambda A, name: of_energy(squares(A, name), name))
    b = Derived[Tensor]()

    def __init__(self, A: Any, b: Any = None) -> None:
        self.A = A
        self.b = self.A.new_zeros(self.A.shape[-1]) if b is None else b
        checks.alike(self.b, "b", self.A, "A")
        good = self.b.ndim and self.b.shape[-1] == self.A.shape[-1]
        checks.require(
            good,
            "b.shape",
            self.b.shape,
            f"A has shape {tuple(self.A.shape)}",
            f"pass b with {self.A.shape[-1]} entries",
        )
        super().__init__(self._at)

    def _at(self, x: Tensor) -> Tensor:
        A = fitting(self.A, "A", x.shape[-1], x)
        return half_square(x - self.b[..., None, :], A)

    def __call__(self, mu: Measure) -> Tensor:
        return _spread(mu, self.A, "A", self.b)

    def curvature_bounds(self, mu: Measure) -> Bounds:
        eigenvalues = _eigenvalues(self.A, mu)
        return eigenvalues[..., 0], eigenvalues[..., -1]

    def on_boxes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        eigenvalues = torch.linalg.eigvalsh(self.A.detach()).to(lower)[..., None, :]
        return eigenvalues[..., 0].expand(lower.shape[:-1]), eigenvalues[..., -1].expand(lower.shape[:-1])

    def least(self, mu: Measure) -> Tensor:
        low = _eigenvalues(self.A, mu)[..., 0]
        return torch.where(low >= 0, torch.zeros_like(low), -torch.inf)

    def __repr__(self) -> str:
        return f"QuadraticPotential(d={self.A.shape[-1]})"


class QuadraticInteraction(Interaction):
    """F(mu) = 1/2 int int 1/2 (x - y).K(x - y) dmu dmu = 1/2 tr(K Cov(mu)); O(n).

    Args:
        K: (*batch, d, d), symmetric.

    >>> from otflow import QuadraticInteraction
    >>> import otflow as of
    >>> QuadraticInteraction([[1.0]])(of.Particles([[0.0], [2.0]])).item()
    0.5
    """

    K = Derived[Tensor](lambda K, name: of_energy(squares(K, name), name))

    def __init__(self, K: Any) -> None:
        self.K = K
        super().__init__(lambda x, y: half_square(x - y, self.K[..., None, :, :]))

    def __call__(self, mu: Measure) -> Tensor:
        return _spread(mu, self.K, "K", None)

    def curvature_bounds(self, mu: Measure) -> Bounds:
        eigenvalues = _eigenvalues(self.K, mu)  # and 0, of common translations
        return eigenvalues[..., 0].clamp(max=0), eigenvalues[..., -1].clamp(min=0)

    def differential(self, mu: Measure) -> Tangent:
        return Energy.differential(self, mu)  # O(n) by way of the covariance, not of all pairs

    def __repr__(self) -> str:
        return f"QuadraticInteraction(d={self.K.shape[-1]})"


def _spread(mu: Measure, A: Tensor, name: str, about: Tensor | None) -> Tensor:
    """int 1/2 (x - c).A(x - c) dmu about the point c, or about the mean."""
    if isinstance(mu, Gaussian):
        A = fitting(A, name, mu.d, mu.mean)
        own = (mu.root * (A @ mu.root)).sum((-1, -2)) / 2
        return own if about is None else own + half_square((mu.mean - about)[..., None, :], A)[..., 0]
    x, w = mu.nodes()
    A = fitting(A, name, x.shape[-1], x)
    c = (w[..., None] * x).sum(-2) if about is None else about
    return (w * half_square(x - c[..., None, :], A)).sum(-1)


def _eigenvalues(A: Tensor, mu: Measure) -> Tensor:
    return torch.linalg.eigvalsh(A.detach()).to(mu.coords[0])


def half_square(x: Tensor, A: Tensor) -> Tensor:
    """x.Ax / 2 for rows x."""
    return (x * (x @ A)).sum(-1) / 2
