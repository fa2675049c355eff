"""Distances between densities in the plane and in space: dual norms with bounds, atoms, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import ot
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.stats import norm

import otflow as of
from otflow.transport.exact.close_densities import dual_norm
from otflow.transport.exact.densities import TOL
from otflow.transport.exact.sliced import sliced_wasserstein
from otflow.transport.exact.wasserstein import solve, w2, wasserstein
from tests.samples import centres, slope

Array = np.ndarray


def bell(mean: Array, deviation: float, cells: int, width: float = 12.0) -> of.Grid:
    """The mass of a normal law in the cells of a square or a cube around 0."""
    walls = np.linspace(-width / 2, width / 2, cells + 1)
    rho = np.ones(())
    for m in mean:
        mass = np.diff(norm.cdf(walls, m, deviation))
        rho = rho[..., None] * mass / mass.sum()
    return of.Grid(rho * (cells / width) ** len(mean), [centres(cells, -width / 2, width / 2)] * len(mean))


def waves(cells: int, amplitude: float, seed: int) -> of.Grid:
    """A few random cosines on the unit square, around 1."""
    rng, x = np.random.default_rng(seed), centres(cells, 0, 1)
    cosines = np.cos(np.pi * np.arange(3)[:, None] * x)
    rho = 1 + amplitude * np.einsum("ab,ai,bj->ij", rng.uniform(-1, 1, (3, 3)), cosines, cosines)
    return of.Grid(rho / rho.mean(), [x, x])


def paraboloid(radius: float, cells: int) -> of.Grid:
    """The mass of (1 - |x|^2 / R^2)_+ in the cells of [-2, 2]^2, by 8 x 8 points in each."""
    fine = centres(8 * cells, -2, 2)
    rho = np.maximum(1 - (fine[:, None] ** 2 + fine**2) / radius**2, 0)
    rho = rho.reshape(cells, 8, cells, 8).mean((1, 3))
    return of.Grid(rho / rho.sum() * (cells / 4) ** 2, [centres(cells, -2, 2)] * 2)


DIRECTION = np.array([0.6, 0.8])
CHANGES: dict[str, Callable[[float, int], tuple[of.Grid, of.Grid]]] = {
    "moved": lambda d, n: (bell(np.zeros(2), 1.0, n), bell(d * DIRECTION, 1.0, n)),
    "grown": lambda d, n: (bell(np.zeros(2), 1.0, n), bell(np.zeros(2), 1.0 + d / math.sqrt(2), n)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_moves_far_below_a_cell_are_measured_to_second_order_in_the_cell(change: str) -> None:
    cells = np.array([48, 72, 108])
    for share in (1e-1, 1e-4):
        shifts = share * 12 / cells
        found = [wasserstein(*CHANGES[change](d, n)).item() for d, n in zip(shifts, cells, strict=True)]
        errors = np.abs(found / shifts - 1)
        assert errors[-1] < 1e-2
        assert slope(12 / cells, errors) > 1.9


@pytest.mark.parametrize("cells", [3.0, 1.0, 0.1, 0.01, 0.001])
def test_the_speed_in_the_plane_does_not_depend_on_the_time_between_saves(cells: float) -> None:
    d = 12 / 48 * cells
    laws = bell(np.zeros(2), 1.0, 48), bell(d * DIRECTION, 1.0, 48)
    assert of.distance(*laws, of.Wasserstein()).item() == pytest.approx(d, rel=1e-2)


def test_tails_thinner_than_rounding_do_no_harm() -> None:
    mu, nu = bell(np.zeros(2), 0.4, 96), bell(1e-3 * DIRECTION, 0.4, 96)
    assert mu.density.min().item() < 1e-90
    assert wasserstein(mu, nu).item() == pytest.approx(1e-3, rel=1e-2)


def test_a_derivative_close_by_needs_mass_in_every_cell() -> None:
    mu, nu = bell(np.zeros(2), 0.4, 64), bell(1e-3 * DIRECTION, 0.4, 64)
    rho = mu.density.clone().requires_grad_()
    with pytest.raises(of.errors.ConvergenceError):
        wasserstein(mu.at([rho]), nu)


def test_in_space_too() -> None:
    d = np.array([0.02, 0.01, -0.02])
    found = w2(bell(np.zeros(3), 1.0, 12, 8.0), bell(d, 1.0, 12, 8.0))
    assert found.distance.item() == pytest.approx(0.03, rel=TOL)
    assert found.plan is None


def test_the_free_boundary_of_a_vacuum_may_move() -> None:
    for growth in (1e-2, 1e-3):
        d = wasserstein(paraboloid(1.0, 64), paraboloid(1.0 + growth, 64)).item()
        assert d == pytest.approx(growth / math.sqrt(3), rel=1e-2)  # E|x|^2 = R^2 / 3


@pytest.mark.parametrize("seed", range(2))
def test_the_bounds_hold_for_atoms_spread_in_the_cells(seed: int) -> None:
    n, k = 8, 3
    mu, nu = waves(n, 0.1, seed), waves(n, 0.1, seed + 10)
    fine = np.stack(np.meshgrid(*[centres(n * k, 0, 1)] * 2, indexing="ij"), -1).reshape(-1, 2)
    a, b = (np.kron(m.density.numpy(), np.ones((k, k))).ravel() / (n * k) ** 2 for m in (mu, nu))
    spread = math.sqrt(ot.emd2(a / a.sum(), b / b.sum(), cdist(fine, fine) ** 2, numItermax=10**6))
    found = w2(mu, nu)
    assert found.low.item() <= spread  # which is above that of the densities, because blurs contract
    assert spread <= found.high.item() + 2 * math.sqrt(2 / 12) / (n * k)
    assert found.distance.item() <= spread


def test_with_one_wave_the_dual_norm_is_its_amplitude_over_its_number() -> None:
    x, small = centres(64, 0, 1), 1e-4
    one = of.Grid(np.ones((64, 64)), [x, x])
    for number in (1, 2, 3):
        wave = of.Grid(1 + small * np.cos(number * np.pi * x) * np.ones((64, 1)), [x, x])
        expected = small / (number * math.pi * math.sqrt(2))
        assert wasserstein(one, wave).item() == pytest.approx(expected, rel=1e-2)


def test_what_the_cells_decide_is_refused_with_bounds() -> None:
    rng = np.random.default_rng(0)
    rho, sigma = rng.uniform(0.1, 1, (2, 6, 6))
    mu, nu = (of.Grid(z / z.mean(), [centres(6, 0, 1)] * 2) for z in (rho, sigma))
    for ask in (wasserstein, w2, lambda a, b: of.distance(a, b, of.Wasserstein())):
        with pytest.raises(
            of.errors.ConvergenceError, match=r"1 of 1 .*refine the grid.*solve\(mu, nu\)"
        ) as e:
            ask(mu, nu)
        assert e.value.result.error.item() > TOL
    assert solve(mu, nu).distance.item() > 0
    for p in (1.0, 3.0):
        with pytest.raises(of.errors.ConvergenceError):
            wasserstein(mu, nu, p)


def test_a_block_that_advances_into_a_vacuum_by_part_of_a_cell_is_refused() -> None:
    walls = np.linspace(-2, 2, 33)

    def block(shift: float) -> of.Grid:
        rho = np.outer(np.diff(np.clip(walls, shift - 1, shift + 1)), np.diff(np.clip(walls, -1, 1)))
        return of.Grid(rho / rho.sum() * 64, [centres(32, -2, 2)] * 2)

    with pytest.raises(of.errors.ConvergenceError):
        wasserstein(block(0.0), block(1e-3))


def test_islands_that_exchange_mass_are_not_close() -> None:
    rho = np.zeros((2, 20, 20))
    rho[:, 2:8, 5:15], rho[:, 12:18, 5:15] = 1.0, 1.0
    rho[1, 2:8] *= 3
    mu, nu = (of.Grid(z / z.mean(), [centres(20, 0, 1)] * 2) for z in rho)
    found = dual_norm(mu.density[None].numpy(), nu.density[None].numpy(), mu.spacing)
    exact = solve(mu, nu).distance.item()
    assert found.high.item() > exact
    assert wasserstein(mu, nu).item() == pytest.approx(exact, rel=1e-9)


def test_far_densities_are_atoms_and_their_bounds_hold_a_translation() -> None:
    mu = bell(np.zeros(2), 0.3, 20, 8.0)  # what wraps around is below rounding
    nu = of.Grid(mu.density.roll(4, 0), mu.axes)
    found = w2(mu, nu)
    assert found.plan is not None
    assert found.low.item() <= 1.6 <= found.high.item() * (1 + 1e-9)
    again = w2(mu, nu, start=found)
    assert again.distance.item() == pytest.approx(found.distance.item(), rel=1e-9)


@pytest.mark.parametrize("p", [1, 4])
def test_far_densities_are_known_at_other_orders(p: float) -> None:
    mu, nu = (bell(np.array([m, 0.0]), 0.15, 20, 4.0) for m in (-1.0, 1.0))
    assert wasserstein(mu, nu, p).item() == pytest.approx(2.0, rel=TOL)


def test_between_different_cells_only_what_is_far_is_known() -> None:
    here, there = bell(np.zeros(2), 0.5, 16, 8.0), bell(np.array([1.8, 0.0]), 0.5, 20, 8.0)
    assert wasserstein(here, there).item() == pytest.approx(1.8, rel=TOL)
    with pytest.raises(of.errors.ConvergenceError):
        wasserstein(here, bell(np.array([0.1, 0.0]), 0.5, 20, 8.0))


def test_members_of_a_batch_are_measured_each_on_its_own() -> None:
    others = [bell(np.array([s, 0.0]), 0.8, 24, 8.0) for s in (0.0, 0.01, 1.5)]
    mu, many = others[0], of.Grid(torch.stack([m.density for m in others]), others[0].axes)
    d = wasserstein(mu, many)
    assert d.tolist() == pytest.approx([wasserstein(mu, m).item() for m in others], rel=1e-9)
    assert d[0].item() == 0
    assert wasserstein(mu, mu, 1).item() == 0


def test_its_derivative_in_the_density_is_that_of_differences_and_the_only_one() -> None:
    mu, nu = waves(16, 0.1, 1), waves(16, 0.1, 2)
    rho = mu.density.clone().requires_grad_()
    value = wasserstein(mu.at([rho]), nu)
    (found,) = torch.autograd.grad(value, rho, create_graph=True)
    u = torch.from_numpy(np.random.default_rng(3).standard_normal((16, 16)))
    u, step = u - u.mean(), 1e-5
    ahead, behind = (wasserstein(mu.at([mu.density + s * u]), nu) for s in (step, -step))
    assert (found * u).sum().item() == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-6)
    with pytest.raises(of.errors.DerivativeError, match="second derivative"):
        torch.autograd.grad(found.sum(), rho)


def test_single_precision_is_kept_and_enough() -> None:
    mu, nu = (of.Grid(m.density.float(), [a.float() for a in m.axes]) for m in CHANGES["moved"](0.1, 32))
    d = wasserstein(mu, nu)
    assert d.dtype == torch.float32
    assert d.item() == pytest.approx(0.1, rel=1e-2)


def test_slices_of_the_plane_know_what_is_far_and_refuse_the_rest() -> None:
    mu, near, far = (bell(np.array([0.0, d]), 0.6, 32, 8.0) for d in (0.0, 0.02, 2.0))
    assert sliced_wasserstein(mu, mu, rng=0).item() == 0
    assert sliced_wasserstein(mu, far, directions=np.eye(2)).item() == pytest.approx(math.sqrt(2), rel=TOL)
    with pytest.raises(of.errors.ConvergenceError, match=r"cells are 0\.25 x 0\.25 wide"):
        sliced_wasserstein(mu, near, directions=np.eye(2))


def test_numbers_that_are_not_finite_are_named() -> None:
    mu = bell(np.zeros(2), 1.0, 8)
    with pytest.raises(of.InputError, match=r"nu\[2, 3\] = nan"):
        wasserstein(
            mu,
            mu.at(
                [mu.density.index_put((torch.tensor(2), torch.tensor(3)), torch.tensor(math.nan).double())]
            ),
        )
