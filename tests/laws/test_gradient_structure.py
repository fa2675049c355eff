"""Energies in metrics on measures, wherever they are defined: first variation, Riesz, dissipation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from tests import zoo
from tests.laws.test_riesz import divergence
from tests.samples import random_tangent

D = zoo.D
A = zoo.spd() / 4


def target() -> of.Particles:
    return of.Particles(zoo.rng(31).standard_normal((5, D)), zoo.weights(32, 5))


def normal_target() -> of.Gaussian:
    return of.Gaussian(zoo.rng(33).standard_normal(D), root=zoo.matrix(34))


def quantiles() -> of.Quantiles:
    s = np.linspace(0, 1, 12)
    return of.Quantiles(s + 0.3 * s**2 + 0.05 * np.sin(9 * s), s)


MEASURES: dict[str, Callable[[], of.Measure]] = {
    **{name: zoo.MEASURES[name] for name in (*zoo.CLOUDS, *zoo.GAUSSIANS, *zoo.GRIDS)},
    "gaussian_on_the_line": lambda: of.Gaussian([0.4], root=[[0.6]]),
    "quantiles": quantiles,
}
FLAT = tuple(name for name in zoo.CLOUDS if name != "sphere")
FULL = ("gaussian", "gaussian_batched")  # those that have a density
LINE = ("gaussian_on_the_line", "quantiles")

# energy -> (how it is made, the measures on which it is defined)
ENERGIES: dict[str, tuple[Callable[[], of.Energy], tuple[str, ...]]] = {
    "potential": (lambda: of.Potential(lambda x: torch.cos(x).sum(-1)), (*zoo.CLOUDS, *zoo.GRIDS, *LINE)),
    "interaction": (lambda: of.Interaction(zoo.bell), (*zoo.CLOUDS, *zoo.GRIDS, *LINE)),
    "log_gas": (lambda: of.Interaction(zoo.log_distance, diagonal=False), (*zoo.CLOUDS, *zoo.GRIDS)),
    "quadratic": (lambda: of.QuadraticPotential(A, np.ones(D)), (*zoo.CLOUDS, *zoo.GAUSSIANS)),
    "attraction": (lambda: of.QuadraticInteraction(A), (*zoo.CLOUDS, *zoo.GAUSSIANS)),
    "entropy": (of.Entropy, (*FULL, *zoo.GRIDS, *LINE)),
    "porous": (lambda: of.PorousMedium(2.5), (*FULL, *zoo.GRIDS, *LINE)),
    "fast": (lambda: of.PorousMedium(0.8), (*FULL, *zoo.GRIDS, *LINE)),
    "exponential": (lambda: of.ExponentialInteraction(A), (*zoo.CLOUDS, "gaussian_of_rank_two")),
    "sigmoid": (lambda: of.SigmoidInteraction(A), (*zoo.CLOUDS, *zoo.GAUSSIANS)),
    "scores": (lambda: of.SquaredScores(A), (*zoo.CLOUDS, *zoo.GAUSSIANS)),
    "transport": (lambda: of.SelfTransport(A, of.Sinkhorn(0.8, tol=1e-13)), (*zoo.CLOUDS, *zoo.GAUSSIANS)),
    "l2": (lambda: of.L2Energy(zoo.matrix(35), 0.7), zoo.GAUSSIANS),
    "wasserstein": (lambda: of.SquaredWasserstein(target()), FLAT),
    "bures": (lambda: of.SquaredWasserstein(normal_target()), FULL),
    "divergence": (lambda: of.SinkhornDivergence(target(), of.Sinkhorn(0.5, tol=1e-13)), FLAT),
    "mmd": (lambda: of.MMD(target(), of.transport.GaussianKernel(1.0)), FLAT),
    "sum": (lambda: 0.5 * of.SigmoidInteraction(A) - of.SquaredScores(A), (*zoo.CLOUDS, *zoo.GAUSSIANS)),
    "negative": (lambda: -of.Entropy(), (*FULL, *LINE)),
}
METRICS: dict[str, tuple[Callable[[], of.Metric], tuple[str, ...]]] = {
    "w2": (of.Wasserstein, tuple(MEASURES)),
    "weight": (lambda: of.Twisted(of.metrics.Partition(A)), zoo.CLOUDS),
    "matrix": (lambda: of.Twisted(matrix=zoo.spd()), (*FLAT, *zoo.GAUSSIANS)),
    "both": (lambda: of.Twisted(of.metrics.Partition(A), matrix=zoo.spd()), FLAT),
}
PAIRS = [(e, m) for e, (_, measures) in ENERGIES.items() for m in measures]
TRIPLES = [(e, g, m) for e, m in PAIRS for g, (_, measures) in METRICS.items() if m in measures]


def differenced(rows: list[Any]) -> list[Any]:
    """Differences of these energies solve a problem each: one cloud stands for the other measures."""
    slow = [
        row[0] in {"divergence", "transport"} and row[1:] not in {("cloud",), ("w2", "cloud")} for row in rows
    ]
    return [pytest.param(*row, marks=[pytest.mark.slow] * s) for row, s in zip(rows, slow, strict=True)]


def rate(mu: of.Measure, u: of.Tangent) -> of.Tangent:
    """How the coordinates change when mu moves with the tangent u."""
    return divergence(mu, u) if isinstance(mu, of.Grid) else u


def pairing(c: of.Tangent, u: of.Tangent, mu: of.Measure) -> Tensor:
    return sum((a * b).reshape(*mu.batch, -1).sum(-1) for a, b in zip(c, u, strict=True))


def moved(mu: of.Measure, u: of.Tangent, h: float) -> of.Measure:
    return mu.exp(h * u) if isinstance(mu, of.Particles) else mu.at(mu.coords + h * rate(mu, u))


def derivative(F: of.Energy, mu: of.Measure, u: of.Tangent) -> Tensor:
    """d/dh F along u, by central differences of order six, over the distance on which they agree best."""
    pieces = zip(rate(mu, u), mu.coords, strict=True)
    size = max(float((p.abs() / (1e-3 + c.abs().max())).max()) for p, c in pieces)
    found = torch.stack([_difference(F, mu, u, 2.0**-k / max(size, 1e-3)) for k in range(5, 16, 2)])
    best = found.diff(dim=0).abs().nan_to_num(torch.inf).argmin(0, keepdim=True)
    return found.gather(0, best + 1)[0]


def _difference(F: of.Energy, mu: of.Measure, u: of.Tangent, h: float) -> Tensor:
    gaps = [F(moved(mu, u, k * h)) - F(moved(mu, u, -k * h)) for k in (1, 2, 3)]
    return (45 * gaps[0] - 9 * gaps[1] + gaps[2]) / (60 * h)


@pytest.mark.parametrize(("energy", "name"), differenced(PAIRS))
def test_the_differential_is_the_first_variation(energy: str, name: str) -> None:
    F, mu = ENERGIES[energy][0](), MEASURES[name]()
    u = random_tangent(mu)
    found, exact = derivative(F, mu, u), pairing(F.differential(mu), rate(mu, u), mu)
    scale = sum(p.abs().max() * q.abs().max() for p, q in zip(F.differential(mu), rate(mu, u), strict=True))
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6 * float(scale))


@pytest.mark.parametrize(("energy", "metric", "name"), TRIPLES)
def test_the_gradient_represents_the_differential(energy: str, metric: str, name: str) -> None:
    F, g, mu = ENERGIES[energy][0](), METRICS[metric][0](), MEASURES[name]()
    c, u = F.differential(mu), random_tangent(mu)
    torch.testing.assert_close(
        g.inner(mu, g.gradient(mu, c), u), pairing(c, rate(mu, u), mu), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize(("energy", "metric", "name"), differenced(TRIPLES))
def test_the_energy_falls_by_the_squared_speed(energy: str, metric: str, name: str) -> None:
    """d/dt F = -<v, v> to 1e-8."""
    F, g, mu = ENERGIES[energy][0](), METRICS[metric][0](), MEASURES[name]()
    v = of.SteepestDescent(F, g)(0.0, mu)
    lost = g.inner(mu, v, v)
    if float(lost.max()) < 1e-20:
        assert (energy, name) == ("quadratic", "none"), "nothing moves"
    torch.testing.assert_close(derivative(F, mu, v), -lost, rtol=1e-8, atol=1e-11)


def test_every_public_energy_is_in_the_table() -> None:
    kinds = {type(term) for make, _ in ENERGIES.values() for term, _ in make().pairs()}
    public = {getattr(of, name) for name in of.__all__ if isinstance(getattr(of, name), type)}
    energies = {kind for kind in public if issubclass(kind, of.Energy)} - {of.Energy}
    assert energies - kinds == {of.DensityBound}  # which has no differential


@pytest.mark.parametrize("energy", [of.Entropy(), of.PorousMedium(2.0), of.DensityBound(1.0)], ids=repr)
def test_internal_energies_refuse_clouds(energy: of.Energy) -> None:
    with pytest.raises(of.InputError, match="density"):
        energy(zoo.MEASURES["cloud"]())
    with pytest.raises((of.InputError, of.errors.DerivativeError)):
        energy.differential(zoo.MEASURES["cloud"]())


def test_a_degenerate_gaussian_has_no_entropy() -> None:
    with pytest.raises(of.InputError, match="singular"):
        of.Entropy()(zoo.MEASURES["gaussian_of_rank_two"]())


@pytest.mark.parametrize("m", [0.0, -1.0, 1.0, float("nan")])
def test_a_porous_medium_needs_an_exponent(m: float) -> None:
    with pytest.raises(of.InputError, match="m"):
        of.PorousMedium(m)
