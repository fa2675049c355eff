"""Metrics on measures: how a differential becomes a velocity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from otflow import checks
from otflow.measures import Gaussian, Grid, Measure, Particles
from otflow.spaces import Euclidean, Torus
from otflow.tangent import Tangent


class Metric(ABC):
    """A Riemannian metric on measures, in the sense of Otto."""

    @abstractmethod
    def inner(self, mu: Measure, u: Tangent, v: Tangent) -> Tensor:
        """<u, v> at mu, shape (*batch,)."""

    @abstractmethod
    def gradient(self, mu: Measure, covector: Tangent) -> Tangent:
        """The tangent g with inner(mu, g, u) = <covector, u> for all u."""

    def action(self, mu: Measure, u: Tangent) -> Tensor:
        """The squared length of the move u; JKO steps pay for it."""
        return self.inner(mu, u, u)


class Wasserstein(Metric):
    """W2: <u, v> = int u.v dmu. Bures-Wasserstein on Gaussians, conditional on labelled particles.

    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [4.0]], w=[0.25, 0.75])
    >>> u = of.Tangent([mu.x])
    >>> of.Wasserstein().inner(mu, u, u).item()
    12.0
    """

    def inner(self, mu: Measure, u: Tangent, v: Tangent) -> Tensor:
        return mu.inner(u, v)

    def gradient(self, mu: Measure, covector: Tangent) -> Tangent:
        return mu.sharp(covector)

    def __repr__(self) -> str:
        return "Wasserstein()"


class Twisted(Metric):
    """The twisted metric <u, v> = int a_mu(x) u(x).M v(x) dmu(x).

    With a_mu(x) = int exp(Ax.y) dmu(y) and M = I this is the geometry in which softmax attention with
    symmetric A = -V is a gradient flow.

    Args:
        weight: ``weight(mu, x)`` -> (*batch, n), positive; None means 1.
        matrix: a constant symmetric positive definite M, (d, d); None means the identity.

    >>> import otflow as of
    >>> mu = of.Particles([[1.0], [3.0]])
    >>> metric = of.Twisted(lambda mu, x: 2 * x[..., 0])
    >>> metric.gradient(mu, of.Tangent([mu.w[:, None]]))[0].flatten()
    tensor([0.5000, 0.1667], dtype=torch.float64)
    """

    def __init__(
        self, weight: Callable[[Measure, Tensor], Tensor] | None = None, *, matrix: Any = None
    ) -> None:
        self.weight = weight
        self.matrix = None if matrix is None else _spd(checks.tensor(matrix, "matrix"))

    def inner(self, mu: Measure, u: Tangent, v: Tangent) -> Tensor:
        return mu.inner(u, twist(mu, self, v, inverse=False))

    def gradient(self, mu: Measure, covector: Tangent) -> Tangent:
        return twist(mu, self, mu.sharp(covector), inverse=True)

    def __repr__(self) -> str:
        return f"Twisted(weight={self.weight}, matrix={'I' if self.matrix is None else 'M'})"


def _spd(m: Tensor) -> Tensor:
    if m.ndim != 2 or m.shape[0] != m.shape[1] or not torch.allclose(m, m.mT):
        checks.fail(
            "matrix.shape", tuple(m.shape), "a symmetric (d, d) matrix is needed", "pass (M + M.T) / 2"
        )
    low = torch.linalg.eigvalsh(m)[0].item()
    if low <= 0:
        checks.fail(
            "min eigenvalue of matrix",
            low,
            "the matrix of a metric is positive definite",
            "shift or replace it",
        )
    return m


@singledispatch
def twist(mu: Measure, metric: Twisted, v: Tangent, *, inverse: bool) -> Tangent:
    """a M v, or its inverse M^-1 v / a."""
    checks.fail(
        "mu", repr(mu), "the twisted metric is defined for Particles and Gaussian", "use Wasserstein()"
    )


@twist.register(Grid)
def _(mu: Grid, metric: Twisted, v: Tangent, *, inverse: bool) -> Tangent:
    checks.fail(
        "mu", repr(mu), "the twisted metric is not defined on grids", "use Particles, or Wasserstein()"
    )


@twist.register(Particles)
def _(mu: Particles, metric: Twisted, v: Tangent, *, inverse: bool) -> Tangent:
    if metric.matrix is not None and not isinstance(mu.space, Euclidean | Torus):
        checks.fail(
            "matrix",
            "M",
            f"a constant matrix does not preserve the tangent spaces of {mu.space}",
            "use weight= alone there",
        )
    u = _multiply(metric.matrix, v[0].mT, "mu", inverse).mT
    if metric.weight is None:
        return mu.tangent(Tangent([u]))
    a = metric.weight(mu, mu.x)
    if a.shape != mu.x.shape[:-1] or not bool((a > 0).all()):
        checks.fail(
            "weight(mu, x)",
            f"shape {tuple(a.shape)}, minimum {a.min().item():g}",
            f"it must be positive, of shape {tuple(mu.x.shape[:-1])}",
            "check the weight function",
        )
    return mu.tangent(Tangent([u / a[..., None] if inverse else u * a[..., None]]))


@twist.register(Gaussian)
def _(mu: Gaussian, metric: Twisted, v: Tangent, *, inverse: bool) -> Tangent:
    if metric.weight is not None:
        checks.fail(
            "weight",
            metric.weight,
            "a Gaussian stays Gaussian under a constant matrix only",
            "pass weight=None, or use Particles",
        )
    mean = _multiply(metric.matrix, v[0][..., None], "mu", inverse)[..., 0]
    return Tangent([mean, _multiply(metric.matrix, v[1], "mu", inverse)])


def _multiply(m: Tensor | None, u: Tensor, other: str, inverse: bool) -> Tensor:
    """M u or M^-1 u, columns of u."""
    if m is None:
        return u
    if m.shape[-1] != u.shape[-2]:
        checks.fail(
            "matrix.shape",
            tuple(m.shape),
            f"{other} lives in dimension {u.shape[-2]}",
            "pass a (d, d) matrix",
        )
    m = checks.alike(m, "matrix", u, other)
    return torch.linalg.solve(m, u) if inverse else m @ u


# --- distances -----------------------------------------------------------------------------------------


def distance(mu: Measure, nu: Measure, metric: Metric) -> Tensor:
    """The geodesic distance of a metric, shape (*batch,).

    For `Wasserstein()` the measures decide what that is: W2 for `Particles` and densities on a `Grid`,
    conditional W2 (mass keeps its label) for particles that are labelled, Bures-Wasserstein for Gaussians.

    >>> import otflow as of
    >>> x, y = [[0.0], [1.0]], [[1.0], [0.0]]
    >>> distance(of.Particles(x), of.Particles(y), of.Wasserstein()).item()
    0.0
    >>> distance(of.Particles(x, label=[0, 1]), of.Particles(y, label=[0, 1]), of.Wasserstein()).item()
    1.0
    """
    return _distance(checks.instance(metric, Metric, "metric"), mu, nu)


@singledispatch
def _distance(metric: Metric, mu: Measure, nu: Measure) -> Tensor:
    checks.fail(
        "metric", repr(metric), "its distance is not available", "use Wasserstein(), or a function of yours"
    )


@_distance.register(Wasserstein)
def _(metric: Wasserstein, mu: Measure, nu: Measure) -> Tensor:
    from otflow.transport.along import geodesic

    result = geodesic(mu, nu)
    out: Tensor = getattr(result, "distance", result)
    return out
