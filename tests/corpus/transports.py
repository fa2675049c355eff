"""Every distance between clouds and between Gaussians in a table, oracles for them, and an eye on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import otflow as of
from tests.samples import with_options

Array = np.ndarray


class Distance(NamedTuple):
    """of(mu, nu, unit), where unit is a length to which kernels and eps refer, of some degree in it."""

    of: Callable[[Any, Any, float], Tensor]
    degree: float


def _sinkhorn(mu: of.Measure, nu: of.Measure, eps: float, **options: Any) -> of.transport.EntropicTransport:
    return of.sinkhorn(mu, nu, **with_options(eps, **options))


CLOUDS: dict[str, Distance] = {
    "wasserstein": Distance(lambda mu, nu, s: of.wasserstein(mu, nu), 1),
    "wasserstein of order one": Distance(lambda mu, nu, s: of.wasserstein(mu, nu, 1), 1),
    "conditional": Distance(lambda mu, nu, s: of.conditional_wasserstein(mu, nu), 1),
    "relaxed": Distance(lambda mu, nu, s: of.transport.relaxed_conditional(mu, nu, s * s).distance, 1),
    "sliced": Distance(lambda mu, nu, s: of.sliced_wasserstein(mu, nu, rng=0, directions=20), 1),
    "energy distance": Distance(lambda mu, nu, s: of.mmd(mu, nu, of.transport.EnergyKernel()), 0.5),
    "gaussian mmd": Distance(lambda mu, nu, s: of.mmd(mu, nu, of.transport.GaussianKernel(s)), 0),
    "laplace mmd": Distance(lambda mu, nu, s: of.mmd(mu, nu, of.transport.LaplaceKernel(s)), 0),
    "entropic distance": Distance(lambda mu, nu, s: _sinkhorn(mu, nu, s * s).distance, 1),
    "regularised cost": Distance(lambda mu, nu, s: _sinkhorn(mu, nu, s * s).regularised_cost, 2),
    "divergence": Distance(lambda mu, nu, s: of.sinkhorn_divergence(mu, nu, s * s), 2),
    "divergence of order one": Distance(
        lambda mu, nu, s: of.sinkhorn_divergence(mu, nu, s, cost=of.transport.PowerCost(1)), 1
    ),
}
ENTROPIC = ("entropic distance", "regularised cost", "divergence", "divergence of order one")

GAUSSIANS: dict[str, Distance] = {
    "bures": Distance(lambda mu, nu, s: of.transport.bures(mu.cov, nu.cov), 1),
    "bures-wasserstein": Distance(lambda mu, nu, s: of.bures_wasserstein(mu, nu), 1),
    "map": Distance(lambda mu, nu, s: of.transport.bures_map(mu, nu).matrix, 0),
    "geodesic": Distance(lambda mu, nu, s: of.transport.bures_geodesic(mu, nu, 0.5).root, 1),
    "entropic cost": Distance(lambda mu, nu, s: of.sinkhorn(mu, nu, s * s).regularised_cost, 2),
    "gaussian divergence": Distance(lambda mu, nu, s: of.sinkhorn_divergence(mu, nu, s * s), 2),
    "barycentre": Distance(
        lambda mu, nu, s: of.transport.bures_barycentre(both(mu, nu)).measure.root.double().norm(), 1
    ),
}

WITHOUT_GRADIENT = ("relaxed", "entropic distance", "barycentre")

ENGINES = {
    "newton": of.transport.NewtonSinkhorn(),
    "pot": of.transport.POT(),
    "geomloss": of.transport.GeomLoss(),
}


def both(mu: of.Gaussian, nu: of.Gaussian) -> of.Gaussian:
    """Two Gaussians as a batch."""
    return mu.at([torch.stack([a, b]) for a, b in zip(mu.coords, nu.coords, strict=True)])


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def labelled(x: Any, w: Any = None) -> of.Particles:
    """A cloud with three labels; those of any two clouds with equal weights have the same law."""
    return of.Particles(x, w, label=np.arange(np.shape(x)[-2]) % 3)


def costs(x: Array, y: Array, p: float = 2) -> Array:
    """|x_i - y_j|^p from differences."""
    return np.linalg.norm(x[:, None] - y[None], axis=-1) ** p


def assignment(x: Array, y: Array, p: float = 2) -> float:
    """The optimal transport cost between uniform clouds of equal size, by scipy's assignment."""
    c = costs(x, y, p)
    return float(c[linear_sum_assignment(c / c.max())].mean())


def pairs_of_clusters(spread: float, n: int, d: int = 2, seed: int = 0) -> tuple[Array, Array]:
    """Two clouds that both consist of two clusters at distance one."""
    centre = np.zeros((n, d))
    centre[n // 2 :, 0] = 1.0
    x, y = spread * normal(2, n, d, seed=seed)
    return centre + x, centre + y


def exact_bures(S1: Array, S2: Array) -> float:
    """tr S1 + tr S2 - 2 tr (S1^(1/2) S2 S1^(1/2))^(1/2) with sixty digits, and its root."""
    with mpmath.workdps(60):
        a, b = (mpmath.matrix(s.astype(float).tolist()) for s in (S1, S2))
        r = _root(a)
        m = _root(r * b * r)
        square = sum(a[i, i] + b[i, i] - 2 * m[i, i] for i in range(a.rows))
        return float(mpmath.sqrt(max(square, mpmath.mpf(0))))


def _root(a: Any) -> Any:
    values, vectors = mpmath.eigsy((a + a.T) / 2)
    return vectors * mpmath.diag([mpmath.sqrt(max(v, mpmath.mpf(0))) for v in values]) * vectors.T


class Watch(TorchDispatchMode):
    """Looks at all tensors that torch makes: the largest, their total, and products in single precision."""

    PRODUCTS = ("mm", "mv", "dot", "matmul", "attention", "cdist", "linalg", "svd", "solve", "cholesky")

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.total = 0, 0
        self.single: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, Tensor):
                entries = made.untyped_storage().nbytes() // 8
                self.largest, self.total = max(self.largest, entries), self.total + entries
        name = str(func).removeprefix("aten.")
        single = any(isinstance(a, Tensor) and a.dtype == torch.float32 for a in args)
        if single and any(product in name for product in self.PRODUCTS):
            self.single.add(name)
        return out
