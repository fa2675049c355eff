"""Distances between densities on the line, which are constant on cells."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm
from torch import Tensor

import otflow as of
from otflow.transport.exact.sliced import sliced_wasserstein
from otflow.transport.exact.wasserstein import solve, wasserstein
from tests.samples import by_quantiles, centres, slope

Array = np.ndarray


def rough(cells: int, low: float, high: float, seed: int) -> of.Grid:
    """A random density with empty cells."""
    rho = np.random.default_rng(seed).random(cells)
    rho[rho < 0.3] = 0.0
    return of.Grid(rho / rho.sum() * cells / (high - low), [centres(cells, low, high)])


def bell(mean: float, deviation: float, cells: int) -> of.Grid:
    """The mass of a normal law in the cells of [-8, 8]."""
    walls = np.linspace(-8, 8, cells + 1)
    mass = np.diff(norm.cdf(walls, mean, deviation))
    return of.Grid(mass / mass.sum() * cells / 16, [centres(cells, -8, 8)])


@pytest.mark.parametrize(("p", "accuracy"), [(2, 1e-12), (4, 1e-12), (1, 1e-4), (2.5, 1e-4)])
def test_it_is_the_integral_of_quantiles_also_between_different_grids(p: float, accuracy: float) -> None:
    for n, m, seed in ((6, 6, 0), (7, 31, 1), (40, 3, 2)):
        mu, nu = rough(n, -1, 1, seed), rough(m, -0.5, 2, seed + 10)
        expected = by_quantiles(mu, nu, p)
        assert wasserstein(mu, nu, p).item() == pytest.approx(expected, rel=accuracy)
        assert wasserstein(nu, mu, p).item() == pytest.approx(expected, rel=accuracy)
        assert wasserstein(mu, mu, p).item() == 0


def test_an_atom_is_as_far_from_a_cell_as_its_points() -> None:
    cell, atom = of.Grid([1.0, 0.0], [[0.5, 1.5]]), of.Particles([[0.5]])
    for p in (1.0, 1.5, 2.0, 3.0, 50.0):
        expected = 0.5 / (p + 1) ** (1 / p)  # of int_0^1 |x - 1/2|^p dx
        assert wasserstein(cell, atom, p).item() == pytest.approx(expected, rel=1e-12)
        assert wasserstein(atom, cell, p).item() == pytest.approx(expected, rel=1e-12)


def test_the_distance_is_that_of_many_atoms_spread_in_the_cells() -> None:
    mu, nu, k = rough(9, -1, 1, 3), rough(5, -1, 2, 4), 200

    def spread(rho: of.Grid) -> of.Particles:
        x, w = (a.numpy() for a in rho.nodes())
        inside = rho.spacing[0] * (np.arange(k) + 0.5) / k - rho.spacing[0] / 2
        return of.Particles((x + inside).reshape(-1, 1), w=np.repeat(w / k, k))

    found = solve(spread(mu), spread(nu)).distance.item()
    off = (mu.spacing[0] + nu.spacing[0]) / k / math.sqrt(12)  # W2 from a short piece to its middle
    assert wasserstein(mu, nu).item() == pytest.approx(found, abs=off)


def test_a_shift_far_below_a_cell_is_measured_to_second_order_in_the_cell() -> None:
    cells = np.array([50, 100, 200, 400])
    for share in (1e-2, 1e-5):
        shifts = share * 16 / cells
        pairs = ((bell(0.0, 1.0, n), bell(d, 1.0, n), d) for n, d in zip(cells, shifts, strict=True))
        errors = [abs(wasserstein(mu, nu).item() / d - 1) for mu, nu, d in pairs]
        assert errors[-1] < 1e-3
        assert slope(16 / cells, errors) == pytest.approx(2, abs=0.1)


def test_a_growing_bell_moves_by_the_change_of_its_deviation() -> None:
    for growth in (1e-1, 1e-3, 1e-5):
        d = wasserstein(bell(0.0, 1.0, 400), bell(0.0, 1.0 + growth, 400)).item()
        assert d == pytest.approx(growth, rel=1e-3)


def test_islands_in_a_vacuum_move_on_their_own() -> None:
    def islands(shift: float) -> of.Grid:
        walls = np.linspace(-8, 8, 321)
        steep = {"a": 5, "b": 5}
        mass = np.diff(beta.cdf(walls, **steep, loc=-5.0, scale=2)) / 2
        mass += np.diff(beta.cdf(walls, **steep, loc=3.0 + shift, scale=2)) / 2
        return of.Grid(mass / mass.sum() * 20, [centres(320, -8, 8)])

    for shift in (1e-1, 1e-2, 1e-3):
        d = wasserstein(islands(0.0), islands(shift)).item()
        assert d == pytest.approx(shift / math.sqrt(2), rel=1e-2)


@pytest.mark.parametrize("p", [1, 2, 3.5])
def test_its_derivative_in_the_density_is_a_potential_also_where_there_is_no_mass(p: float) -> None:
    mu, nu = rough(12, -1, 1, 5), rough(7, -1, 1.5, 6)
    rho = mu.density.clone().requires_grad_()
    (found,) = torch.autograd.grad(wasserstein(mu.at([rho]), nu, p), rho)
    full = int(mu.density.argmax())

    def moved(i: int, step: float) -> Tensor:
        change = torch.zeros_like(mu.density)
        change[i], change[full] = step, -step
        return wasserstein(mu.at([mu.density + change]), nu, p)

    for i in range(12):
        step = 1e-7 if i != full else 0.0  # into an empty cell there is one side only
        expected = (moved(i, step) - moved(i, 0.0)).item() / 1e-7
        assert (found[i] - found[full]).item() == pytest.approx(expected, abs=1e-5)


def test_batches_broadcast() -> None:
    many, few = (
        of.Grid(torch.stack([rough(9, -1, 1, s).density for s in seeds]), [centres(9)])
        for seeds in (range(2), range(3))
    )
    d = wasserstein(of.Grid(many.density[:, None], many.axes), few)
    assert d.shape == (2, 3)
    assert d[1, 2].item() == pytest.approx(wasserstein(many[1], few[2]).item(), rel=1e-14)
    assert d[1, 1].item() == 0


def test_slices_of_the_line_are_the_line() -> None:
    mu, nu = rough(9, -1, 1, 7), rough(5, -1, 2, 8)
    assert sliced_wasserstein(mu, nu, 3, rng=0).item() == wasserstein(mu, nu, 3).item()
    end = sliced_wasserstein(of.Grid([1.0, 0.0], [[0.5, 1.5]]), of.Particles([[0.25]]), math.inf, rng=0)
    assert end.item() == 0.75
