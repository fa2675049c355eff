"""Small clouds, Gaussians, grids, energies and fields that the tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import otflow as of
from tests import zoo

Array = np.ndarray


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def unit(*shape: int, seed: int = 0) -> Array:
    x = normal(*shape, seed=seed)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def centres(cells: int, low: float = -1.0, high: float = 1.0) -> Array:
    """Centres of equal cells that fill [low, high]."""
    return low + (high - low) * (np.arange(cells) + 0.5) / cells


def hill(cells: int, *, at: float = 0.0, width: float = 0.4) -> of.Grid:
    """A smooth positive density on [-1, 1]."""
    x = centres(cells)
    rho = np.exp(-(((x - at) / width) ** 2)) + 0.1
    return of.Grid(rho / rho.sum() * cells / 2, [x])


def by_quantiles(mu: of.Grid, nu: of.Grid, p: float = 2) -> float:
    """W_p between densities on the line in plain numpy: Gauss' rule for |X - Y|^p between all levels."""
    levels, quantiles = [], []
    for one in (mu, nu):
        (h,), x = one.spacing, one.axes[0].numpy()
        levels.append(np.append(0.0, np.cumsum(one.density.numpy() * h)))
        quantiles.append(np.append(x - h / 2, x[-1] + h / 2))
    s = np.unique(np.concatenate(levels))
    r, w = np.polynomial.legendre.leggauss(60)
    at = s[:-1, None] + np.diff(s)[:, None] * (r + 1) / 2
    X, Y = (np.interp(at, F, x) for F, x in zip(levels, quantiles, strict=True))
    return float((np.diff(s) * (np.abs(X - Y) ** p @ w) / 2).sum() ** (1 / p))


def plateau(rows: int, columns: int, *batch: int, seed: int = 0) -> of.Grid:
    """A random positive density on [-1, 1]^2."""
    rho = np.random.default_rng(seed).uniform(0.5, 1.5, (*batch, rows, columns))
    cell = 4 / (rows * columns)
    return of.Grid(rho / rho.sum((-1, -2), keepdims=True) / cell, [centres(rows), centres(columns)])


# The zoo's Gaussians of full rank in dimension three have too many nodes for pairwise energies.
LIGHT = tuple(name for name in zoo.MEASURES if name not in ("gaussian", "gaussian_batched"))
MEASURES: dict[str, Callable[[], of.Measure]] = {
    **{name: zoo.MEASURES[name] for name in LIGHT},
    "gaussian_on_the_line": lambda: of.Gaussian([0.4], root=[[0.6]]),
    "gaussian_in_the_plane": lambda: of.Gaussian(normal(2), root=0.5 * np.eye(2) + 0.2 * normal(2, 2)),
    "gaussian_with_cubature": lambda: of.Gaussian(0.3 * normal(4), root=0.4 * normal(4, 4)),
    "gaussian_batch": lambda: of.Gaussian(normal(3, 1), root=0.5 + 0.1 * normal(3, 1, 1)),
    "grid_batched": lambda: plateau(5, 6, 2),
}


def double_well(x: Tensor) -> Tensor:
    return (x.square().sum(-1) - 1).square() / 4 + 0.3 * x[..., 0]


CUBATURE = ("cubature", "gaussian_with_cubature")


def makes_sense(measure: str, energy: str) -> bool:
    """Gaussians have no atoms to leave out, and cubature integrates polynomials only."""
    if "gaussian" in measure or measure in CUBATURE:
        if energy == "interaction_without_diagonal":
            return False
        return measure not in CUBATURE or energy in ("potential", "double_well")
    return True


ENERGIES: dict[str, Callable[[], of.Energy]] = {
    **zoo.ENERGIES,
    "double_well": lambda: of.Potential(double_well),
    "longer_sum": lambda: (
        of.Interaction(zoo.bell) - 0.5 * of.Potential(double_well) + 2 * of.Potential(zoo.harmonic)
    ),
}


def random_tangent(mu: of.Measure, seed: int = 0) -> of.Tangent:
    """A tangent at mu with normal entries."""
    shape_of = mu.sharp(mu.coords.map(torch.ones_like))
    generator = torch.Generator().manual_seed(seed)
    pieces = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in shape_of]
    return mu.tangent(of.Tangent(pieces))


class Linear(of.VelocityField):
    """x' = M x for every token."""

    def __init__(self, matrix: Any) -> None:
        self.matrix = torch.as_tensor(matrix, dtype=torch.float64)

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        assert isinstance(mu, of.Particles)
        return mu.tangent(of.Tangent([mu.x @ self.matrix.mT]))


class Given(of.VelocityField):
    """A function of time and positions as a field."""

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor], switches: tuple[float, ...] = ()) -> None:
        self.f, self.switches = f, switches

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return of.Tangent([self.f(t, mu.coords[0])])


ZERO = Given(lambda t, x: torch.zeros_like(x))
DECAY = Given(lambda t, x: -x)


def slope(steps: Any, errors: Any) -> float:
    """The order p in error = C step^p, by least squares in logarithms."""
    return float(np.polyfit(np.log(np.asarray(steps)), np.log(np.asarray(errors)), 1)[0])


class Largest(TorchDispatchMode):
    """Notes the largest array that any operation makes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        pieces = out if isinstance(out, tuple | list) else [out]
        self.size = max(self.size, *(a.numel() for a in pieces if isinstance(a, torch.Tensor)), 0)
        return out


def largest(a: Tensor) -> float:
    """The largest absolute value."""
    return float(a.detach().abs().max())


def rate(F: of.Energy, mu: of.Measure, u: of.Tangent) -> Tensor:
    """d/dt F(mu moved by tu) at t = 0, by central differences of order six."""
    h = 2e-3 / max(1.0, *(largest(piece) for piece in u))
    steps = {1: 0.75, 2: -0.15, 3: 1 / 60}
    terms = [c * (F(mu.move((k * h) * u)) - F(mu.move((-k * h) * u))) / h for k, c in steps.items()]
    return torch.stack(terms).sum(0)


def with_options(
    eps: float, tol: float = 1e-9, max_iter: int = 10_000, engine: Any = None, **others: Any
) -> dict[str, Any]:
    """Keywords of `sinkhorn`, those that are options put into one object."""
    return {"eps": of.Sinkhorn(eps, tol, max_iter, engine or of.transport.NewtonSinkhorn()), **others}
