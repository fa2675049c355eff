"""sharp and gradient represent covectors: inner(gradient, u) = <covector, u> for every tangent u."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from tests import zoo
from tests.samples import MEASURES, random_tangent

CLOUDS = [name for name in zoo.CLOUDS if name in MEASURES]
GAUSSIANS = [name for name in MEASURES if name.startswith("gaussian")]
GRIDS = [name for name in MEASURES if name.startswith("grid")]


def covector(mu: of.Measure) -> of.Tangent:
    generator = torch.Generator().manual_seed(7)
    return mu.coords.map(lambda c: torch.randn(c.shape, generator=generator, dtype=c.dtype))


def pairing(c: of.Tangent, rate: of.Tangent, batch: torch.Size) -> Tensor:
    """<c, rate>, one number per member of the batch."""
    return sum((a * b).reshape(*batch, -1).sum(-1) for a, b in zip(c, rate, strict=True))


def divergence(mu: of.Grid, u: of.Tangent) -> of.Tangent:
    """The rate -div(rho u) with the mean density on each face and no flux through the walls, cell by cell."""
    rho, batch = mu.density.numpy(), len(mu.batch)
    rate = np.zeros_like(rho)
    for axis, (h, speed) in enumerate(zip(mu.spacing, u, strict=True)):
        lower = [slice(None)] * rho.ndim
        upper = list(lower)
        lower[batch + axis], upper[batch + axis] = slice(None, -1), slice(1, None)
        flux = (rho[tuple(lower)] + rho[tuple(upper)]) / 2 * speed.numpy() / h
        rate[tuple(lower)] -= flux
        rate[tuple(upper)] += flux
    return of.Tangent([torch.from_numpy(rate)])


@pytest.mark.parametrize("name", CLOUDS + GAUSSIANS)
def test_sharp_is_the_riesz_map(name: str) -> None:
    mu = MEASURES[name]()
    c, u = covector(mu), random_tangent(mu)
    torch.testing.assert_close(mu.inner(mu.sharp(c), u), pairing(c, u, mu.batch))


@pytest.mark.parametrize("name", GRIDS)
def test_sharp_is_the_riesz_map_of_transport_on_grids(name: str) -> None:
    """A tangent of a grid acts on the density by -div(rho u)."""
    mu = MEASURES[name]()
    c, u = covector(mu), random_tangent(mu)
    torch.testing.assert_close(mu.inner(mu.sharp(c), u), pairing(c, divergence(mu, u), mu.batch))


@pytest.mark.parametrize("name", GRIDS)
def test_the_covector_of_the_mass_has_no_gradient_on_a_grid(name: str) -> None:
    mu = MEASURES[name]()
    assert all(bool((p == 0).all()) for p in mu.sharp(mu.coords.map(torch.ones_like)))


@pytest.mark.parametrize("name", [*CLOUDS, *GAUSSIANS, *GRIDS])
def test_the_inner_product_is_symmetric_bilinear_and_positive(name: str) -> None:
    mu = MEASURES[name]()
    u, v, w = (random_tangent(mu, seed) for seed in range(3))
    torch.testing.assert_close(mu.inner(u, v), mu.inner(v, u))
    torch.testing.assert_close(mu.inner(u, 2 * v - 3 * w), 2 * mu.inner(u, v) - 3 * mu.inner(u, w))
    assert mu.inner(u, u).shape == mu.batch
    assert bool((mu.inner(u, u) > 0).all())


def test_sharp_gives_tangent_vectors_on_the_sphere() -> None:
    mu = MEASURES["sphere"]()
    g = mu.sharp(covector(mu))[0]
    torch.testing.assert_close(
        (g * mu.coords[0]).sum(-1), torch.zeros(mu.n, dtype=g.dtype), rtol=0, atol=1e-14
    )


def weighted(mu: of.Measure) -> of.Twisted:
    return of.Twisted(zoo.partition)


def by_matrix(mu: of.Measure) -> of.Twisted:
    d = mu.coords[0].shape[-1]
    return of.Twisted(matrix=np.eye(d) + 0.2 * np.ones((d, d)))


def both(mu: of.Measure) -> of.Twisted:
    return of.Twisted(zoo.partition, matrix=by_matrix(mu).matrix)


def wasserstein(mu: of.Measure) -> of.Wasserstein:
    return of.Wasserstein()


FLAT = [name for name in CLOUDS if name != "sphere"]
METRICS = [
    *((wasserstein, name) for name in CLOUDS + GAUSSIANS),
    *((weighted, name) for name in CLOUDS),
    *((by_matrix, name) for name in FLAT + GAUSSIANS),
    *((both, name) for name in FLAT),
]


@pytest.mark.parametrize(("metric", "name"), METRICS)
def test_gradient_is_the_riesz_map_of_the_metric(
    metric: Callable[[of.Measure], of.Metric], name: str
) -> None:
    mu = MEASURES[name]()
    g, c, u, v = metric(mu), covector(mu), random_tangent(mu), random_tangent(mu, 1)
    torch.testing.assert_close(g.inner(mu, g.gradient(mu, c), u), pairing(c, u, mu.batch))
    torch.testing.assert_close(g.inner(mu, u, v), g.inner(mu, v, u))
    torch.testing.assert_close(g.action(mu, u), g.inner(mu, u, u))
    assert bool((g.action(mu, u) > 0).all())


def test_a_matrix_does_not_fit_the_sphere() -> None:
    mu = MEASURES["sphere"]()
    with pytest.raises(of.InputError, match="weight= alone"):
        by_matrix(mu).gradient(mu, covector(mu))


@pytest.mark.parametrize("name", GAUSSIANS)
def test_a_weight_does_not_fit_a_gaussian(name: str) -> None:
    mu = MEASURES[name]()
    with pytest.raises(of.InputError, match="constant matrix"):
        weighted(mu).gradient(mu, covector(mu))


def test_a_twist_by_one_is_the_wasserstein_metric() -> None:
    mu = MEASURES["weighted"]()
    c, plain = covector(mu), of.Twisted(lambda mu, x: torch.ones_like(x[..., 0]), matrix=np.eye(3))
    torch.testing.assert_close(plain.gradient(mu, c)[0], of.Wasserstein().gradient(mu, c)[0])


@pytest.mark.parametrize("name", GRIDS)
def test_the_twisted_metric_refuses_grids(name: str) -> None:
    mu = MEASURES[name]()
    with pytest.raises(of.InputError, match="grids"):
        of.Twisted(zoo.partition).gradient(mu, covector(mu))


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.ones((2, 3)), "symmetric"),
        (np.array([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (np.diag([1.0, 0.0]), "positive definite"),
        (np.diag([1.0, -1.0]), "min eigenvalue"),
    ],
)
def test_a_metric_needs_a_positive_definite_matrix(matrix: np.ndarray, words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        of.Twisted(matrix=matrix)


def test_the_matrix_of_a_metric_fits_the_measure() -> None:
    mu = MEASURES["cloud"]()
    with pytest.raises(of.InputError, match=r"matrix\.shape"):
        of.Twisted(matrix=np.eye(2)).gradient(mu, covector(mu))


@pytest.mark.parametrize(
    "weight",
    [lambda mu, x: -torch.ones_like(x[..., 0]), lambda mu, x: torch.ones_like(x)],
    ids=["sign", "shape"],
)
def test_a_weight_is_positive_and_one_number_per_token(weight: object) -> None:
    mu = MEASURES["cloud"]()
    with pytest.raises(of.InputError, match="weight"):
        of.Twisted(weight).gradient(mu, covector(mu))


def test_an_atom_without_mass_has_no_gradient() -> None:
    mu = of.Particles([[0.0], [1.0]], w=[1.0, 0.0])
    with pytest.raises(of.InputError, match=r"field\.at"):
        mu.sharp(mu.coords)
