"""Gaussians, held by their mean and a root of their covariance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.integrals.quadrature import hermite
from otflow.base.linalg import sqrtm
from otflow.base.matrices import of_covariance, semidefinite
from otflow.base.tangent import Tangent, as_tangent
from otflow.measures.base import Change, Measure, Random, total
from otflow.measures.particles import Particles

# Gauss-Hermite nodes per axis; chosen: at most 1728 in all; beyond three axes a cubature of degree five.
HERMITE = {1: 32, 2: 24, 3: 12}
# Roundings per dimension in eigenvalues of covariances that are products; chosen: 999 in 1000 random T S T^T,
# S of rank one, have fewer.
GRAIN = 64


@dataclass(frozen=True, eq=False)
class Gaussian(Measure):
    """N(m, S) with mean m and covariance S = R R^T, given by S or by its root R and held by the root.

    A root rather than a covariance: positive semidefinite by construction, harmless when the rank
    collapses, autograd on it is the Bures-Wasserstein gradient, and an explicit step (I + hB) R is a
    residual layer acting on the law. Roots R and R O (O orthogonal) mean the same measure.

    Args:
        mean: (*batch, d).
        cov: covariance (*batch, d, d), which may be singular; its symmetric root is taken.
        root: instead of it, a root (*batch, d, r), any r >= 1.
        rtol: eigenvalues of ``cov`` down to -rtol times the largest one are rounding and set to zero; by
            default 1e-10 in float64 and 1e-5 in float32.

    >>> from otflow import Gaussian
    >>> import numpy as np
    >>> g = Gaussian(np.zeros(2), cov=np.diag([4.0, 1.0]))
    >>> g.cov
    tensor([[4., 0.],
            [0., 1.]], dtype=torch.float64)
    """

    names: ClassVar[tuple[str, ...]] = ("mean", "root")
    mean: Tensor
    root: Tensor
    rule: int = 0  # which cubature the nodes use beyond three axes
    grain: float = 0.0  # eigenvalues that may be the rounding of the covariance it was made of, relative

    def __init__(self, mean: Any, *, cov: Any = None, root: Any = None, rtol: float | None = None) -> None:
        mean = checks.tensor(mean, "mean").clone()  # so that no later change of it changes the measure
        remedy = "pass Gaussian(mean, cov=S) or Gaussian(mean, root=R), S = R R^T"
        given = [name for name, value in (("cov", cov), ("root", root)) if value is not None]
        checks.require(len(given) == 1, "given", given, "one of cov and root is needed", remedy)
        root = checks.tensor(root, "root").clone() if cov is None else _root(cov, rtol)
        root = checks.alike(root, given[0], mean, "mean")
        name, needed = (f"{given[0]}.shape", "(*batch, d, r)" if cov is None else "(*batch, d, d)")
        checks.require(
            mean.ndim >= 1 and root.ndim >= 2 and 0 not in root.shape and root.shape[-2] == mean.shape[-1],
            name,
            root.shape,
            f"{needed} is needed, mean has shape {tuple(mean.shape)}",
            f"let {given[0]} have one row per coordinate of the mean",
        )
        rule = f"its batch axes do not match those of mean, {tuple(mean.shape)}"
        batch = checks.common(mean.shape[:-1], root.shape[:-2], name, root.shape, rule, "make them broadcast")
        self._set(mean.expand(*batch, mean.shape[-1]), root.expand(*batch, *root.shape[-2:]))
        if cov is not None:
            object.__setattr__(self, "grain", GRAIN * self.d * torch.finfo(mean.dtype).eps)

    def _set(self, mean: Tensor, root: Tensor) -> None:
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "root", root)

    @classmethod
    def fit(cls, mu: Measure) -> Self:
        """The Gaussian with the mean and the covariance of ``mu``, by its nodes; any batch.

        >>> from otflow import Gaussian, Particles
        >>> Gaussian.fit(Particles([[0.0], [2.0]])).cov.item()
        1.0
        """
        x, w = checks.instance(mu, Measure, "mu").nodes()
        space = getattr(mu, "space", None)
        rule = "points that wrap around have no mean"
        checks.require(
            space is None or space.linear,
            "mu.space",
            space,
            rule,
            "pass its positions, Gaussian.fit(Particles(mu.x, mu.w))",
        )
        mean = (w[..., None] * x).sum(-2)
        y = x - mean[..., None, :]
        return cls(mean, cov=(w[..., None] * y).mT @ y)

    @property
    def cov(self) -> Tensor:
        """The covariance R R^T, (*batch, d, d)."""
        return self.root @ self.root.mT

    @property
    def coords(self) -> Tangent:
        return Tangent([self.mean, self.root])

    @property
    def batch(self) -> torch.Size:
        return self.mean.shape[:-1]

    @property
    def d(self) -> int:
        """Dimension of the space."""
        return self.mean.shape[-1]

    def at(self, coords: Sequence[Tensor]) -> Self:
        other = object.__new__(type(self))
        other._set(*coords)
        return other

    def each(self, f: Change, exact: Change) -> Self:
        return self.at([f(self.mean), f(self.root)])

    def parts(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "cov": self.cov, "root": self.root}

    def sample(self, n: int, *, rng: Random) -> Particles:
        """m + R z, z standard normal: differentiable in mean and root.

        >>> from otflow import Gaussian
        >>> Gaussian([0.0, 0.0], cov=[[1.0, 0.0], [0.0, 1.0]]).sample(5, rng=0)
        Particles(n=5, d=2, space=Euclidean())
        """
        size = (*self.batch, checks.count(n, "n"), self.root.shape[-1])
        z = torch.from_numpy(checks.generator(rng).standard_normal(size)).to(self.root)
        return Particles(self.mean[..., None, :] + z @ self.root.mT)

    def nodes(self) -> tuple[Tensor, Tensor]:
        """m + R z_q with Gauss-Hermite nodes up to r = 3, else Stroud's cubature of degree five.

        The latter is exact for polynomials up to degree five only; energies check it against their `twin`.
        """
        z, w = self.standard_nodes()
        return self.mean[..., None, :] + z @ self.root.mT, w.expand(*self.batch, len(w))

    def standard_nodes(self) -> tuple[Tensor, Tensor]:
        """Nodes (q, r) and weights (q,) for the standard normal law."""
        arrays = _standard_nodes(self.root.shape[-1], self.rule)
        z, w = (torch.tensor(a, dtype=self.dtype, device=self.device) for a in arrays)  # the table is shared
        return z, w

    def probe(self) -> Tensor:
        return self.mean[..., None, :] + self.standard_nodes()[0][:1] @ self.root.mT

    @property
    def requires_grad(self) -> bool:
        return any(c.requires_grad for c in self.coords)

    def twin(self) -> Self | None:
        """The root turned by a fixed rotation and another rule: where both are exact, energies agree."""
        r = self.root.shape[-1]
        if r in HERMITE:
            return None
        turn = torch.as_tensor(_rotation(r), dtype=self.dtype, device=self.device)
        other = self.at([self.mean, self.root @ turn])
        object.__setattr__(other, "rule", 1)
        return other

    def inner(self, u: Tangent, v: Tangent) -> Tensor:
        # An affine field b + B(x - m) moves the root by BR, and E|B(x - m)|^2 = |BR|^2.
        return total(u[0] * v[0], self.batch) + total(u[1] * v[1], self.batch)

    def sharp(self, covector: Tangent) -> Tangent:
        return covector

    def move(self, u: Tangent) -> Self:
        u = as_tangent(u, "u", self.shapes())
        return self.at([u[0] + self.mean, u[1] + self.root])  # a sum has the memory layout of its first term

    def __repr__(self) -> str:
        batch = f", batch={tuple(self.batch)}" if self.batch else ""
        columns = self.root.shape[-1]  # the rank of the covariance, at most
        rank = f", rank<={columns}" if columns < self.d else ""
        return f"Gaussian(d={self.d}{rank}{batch})"


def _root(cov: Any, rtol: float | None) -> Tensor:
    """The symmetric root: the one that depends continuously on the covariance."""
    cov = checks.tensor(cov, "cov")
    rule = "a covariance has shape (*batch, d, d), d >= 1"
    square = cov.ndim >= 2 and cov.shape[-1] == cov.shape[-2] and 0 not in cov.shape
    checks.require(square, "cov.shape", cov.shape, rule, "pass a square matrix")
    if rtol is None:
        rtol = 1e-10 if cov.dtype == torch.float64 else 1e-5
    return sqrtm(semidefinite(of_covariance(cov, "cov"), "cov", rtol))


@lru_cache(maxsize=16)
def _standard_nodes(r: int, rule: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for N(0, I_r)."""
    if r not in HERMITE:
        return _stroud(r) if rule == 0 else _mcnamee_stenger(r)
    return hermite(r, HERMITE[r])


@lru_cache(maxsize=16)
def _rotation(r: int) -> np.ndarray:
    q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((r, r)))
    return q


def _stroud(r: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact up to degree five, 2 r^2 + 1 nodes (Stroud and Secrest 1963); r > 4 has negative weights."""
    z = _symmetric_nodes(r, np.sqrt(r + 2), np.sqrt((r + 2) / 2))
    w = np.full(len(z), 1 / (r + 2) ** 2)
    w[0], w[1 : 2 * r + 1] = 2 / (r + 2), (4 - r) / (2 * (r + 2) ** 2)
    return z, w


def _mcnamee_stenger(r: int) -> tuple[np.ndarray, np.ndarray]:
    """Another rule of degree five, at other distances (McNamee and Stenger 1967)."""
    z = _symmetric_nodes(r, np.sqrt(3), np.sqrt(3))
    w = np.full(len(z), 1 / 36)
    w[1 : 2 * r + 1] = (4 - r) / 18
    w[0] = 1 - w[1:].sum()
    return z, w


def _symmetric_nodes(r: int, axis: float, pair: float) -> np.ndarray:
    """The origin, +-axis e_i, and pair (+-e_i +-e_j)."""
    i, j = np.triu_indices(r, 1)
    eye = np.eye(r)
    pairs = [pair * (a * eye[i] + b * eye[j]) for a in (1, -1) for b in (1, -1)]
    return np.concatenate([np.zeros((1, r)), axis * eye, -axis * eye, *pairs])
