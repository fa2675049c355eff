"""Measures among arrays: draws, conversions, precision, and what other libraries hand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import otflow as of
from tests.samples import normal

X = (np.arange(8) + 0.5) / 4 - 1
MEASURES: dict[str, Callable[[], of.Measure]] = {
    "particles": lambda: of.Particles(normal(5, 2), w=[0.1, 0.2, 0.3, 0.4, 0.0], label=np.arange(5) + 0.1),
    "batch of particles": lambda: of.Particles(normal(3, 5, 2)),
    "gaussian": lambda: of.Gaussian(normal(2), root=normal(2, 2)),
    "batch of gaussians": lambda: of.Gaussian(normal(3, 2), root=normal(3, 2, 1)),
    "grid": lambda: of.Grid.from_function(lambda x, y: np.exp(x - y**2), [X, X]),
    "quantiles": lambda: of.Quantiles(np.cumsum(1 + normal(2, 6) ** 2, -1), np.linspace(0, 1, 6)),
}
every_measure = pytest.mark.parametrize("name", MEASURES)


def moments(mu: of.Measure) -> tuple[torch.Tensor, torch.Tensor]:
    return of.observables.mean(mu), of.observables.covariance(mu)


@every_measure
def test_draws_have_the_moments_of_the_measure(name: str) -> None:
    mu, n = MEASURES[name](), 40_000
    drawn = mu.sample(n, rng=1)
    assert isinstance(drawn, of.Particles)
    assert drawn.batch == mu.batch
    (mean, cov), (m, S) = moments(mu), moments(drawn)
    size = cov.diagonal(0, -2, -1).sum(-1).sqrt()
    assert bool((((m - mean).norm(dim=-1)) < 5 * size / n**0.5).all())  # five standard errors
    # Draws from a grid are spread within their cells, which its nodes do not show.
    cell = sum(h**2 for h in mu.spacing) / 12 if isinstance(mu, of.Grid) else 0.0
    excess = (S - cov).diagonal(0, -2, -1).sum(-1) - cell
    assert bool((excess.abs() < 0.05 * size**2).all())


@every_measure
def test_draws_are_those_of_their_seed(name: str) -> None:
    mu = MEASURES[name]()
    a, b, c = (mu.sample(7, rng=seed).coords[0] for seed in (3, np.random.default_rng(3), 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_draws_of_a_gaussian_can_be_differentiated() -> None:
    root = torch.eye(2, dtype=torch.float64, requires_grad=True)
    of.Gaussian([0.0, 0.0], root=root).sample(3, rng=0).coords[0].sum().backward()
    assert root.grad is not None
    assert bool(root.grad.any())


@every_measure
def test_another_precision_and_back(name: str) -> None:
    mu = MEASURES[name]()
    single = mu.to(torch.float32)
    assert single.dtype == torch.float32
    assert all(a.dtype == torch.float64 for k, a in single.parts().items() if k in ("label", "levels"))
    back = single.to(dtype=torch.float64, device="cpu")
    for k, a in mu.parts().items():
        torch.testing.assert_close(back.parts()[k], a, rtol=1e-6, atol=1e-6)


@every_measure
def test_detached_measures_have_no_graph(name: str) -> None:
    mu = MEASURES[name]()
    live = mu.at([c.clone().requires_grad_() for c in mu.coords])
    assert live.requires_grad
    assert not live.detach().requires_grad
    assert repr(live.detach()) == repr(mu)


@every_measure
def test_arrays_are_copies(name: str) -> None:
    mu = MEASURES[name]()
    arrays = mu.numpy()
    assert set(arrays) == set(mu.parts())
    for k, a in arrays.items():
        np.testing.assert_array_equal(a, mu.parts()[k].numpy())
        a += 1
        assert not np.array_equal(a, mu.parts()[k].numpy())


@every_measure
def test_a_measure_is_not_an_array_and_says_so(name: str) -> None:
    mu = MEASURES[name]()
    with pytest.raises(of.InputError, match=r"more than one array.*mu\.numpy\(\)"):
        np.asarray(mu)


@every_measure
def test_batches_have_a_length_and_members_and_single_measures_have_none(name: str) -> None:
    mu = MEASURES[name]()
    assert mu
    if mu.batch:
        assert len(mu) == mu.batch[0]
        for k, one in enumerate(mu):
            assert torch.equal(one.coords[0], mu.coords[0][k])
    else:
        with pytest.raises(TypeError, match="one measure and not a batch"):
            len(mu)
        with pytest.raises(TypeError, match="one measure and not a batch"):
            list(mu)


class Foreign:
    """An array of another library, which speaks DLPack and nothing else."""

    def __init__(self, a: np.ndarray) -> None:
        self.tensor = torch.from_numpy(a)

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


CONTAINERS: dict[str, Callable[[np.ndarray], Any]] = {
    "dlpack": Foreign,
    "pandas": lambda a: pd.DataFrame(a, columns=["x", "y"]),
    "xarray": lambda a: xr.DataArray(a, dims=("token", "coordinate")),
    "buffer": memoryview,
    "torch": torch.from_numpy,
    "list": np.ndarray.tolist,
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_numbers_come_in_any_container_and_are_copied(name: str) -> None:
    a = normal(4, 2)
    mu = of.Particles(CONTAINERS[name](a))
    expected = a.copy()
    a += 1
    np.testing.assert_array_equal(mu.x.numpy(), expected)


def test_words_in_a_table_are_refused() -> None:
    with pytest.raises(of.InputError, match="real numbers are needed"):
        of.Particles(pd.DataFrame({"x": [1.0, 2.0], "word": ["a", "b"]}))


def test_grids_and_clouds_convert() -> None:
    grid = of.Grid.from_function(lambda x, y: x + y + 3, [X, X])
    cloud = of.Particles.from_grid(grid)
    assert cloud.n == 64
    torch.testing.assert_close(of.Grid.histogram(cloud, [X, X]).density, grid.density)
    with pytest.raises(of.InputError, match="off the grid along axis 0"):
        of.Grid.histogram(of.Particles([[9.0, 0.0]]), [X, X])
    with pytest.raises(of.InputError, match="no cells"):
        of.Particles.from_grid(cloud)


@every_measure
def test_a_fitted_gaussian_has_the_moments(name: str) -> None:
    mu = MEASURES[name]()
    law = of.Gaussian.fit(mu)
    mean, cov = moments(mu)
    torch.testing.assert_close(law.mean, mean)
    torch.testing.assert_close(law.cov, cov, rtol=1e-9, atol=1e-9)


def test_angles_have_no_mean_to_fit() -> None:
    with pytest.raises(of.InputError, match="wrap around"):
        of.Gaussian.fit(of.Particles([[0.1], [6.0]], space=of.Torus()))


@pytest.mark.parametrize("index", [0, slice(1), (0, 0), None])
def test_one_measure_has_no_members(index: Any) -> None:
    with pytest.raises(IndexError, match=r"not a batch has no members; .*mu.x\[0\]"):
        of.Particles([[0.0], [1.0]])[index]
