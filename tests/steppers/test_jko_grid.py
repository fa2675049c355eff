"""JKO steps of densities on grids, against the exact time-discrete solutions."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from scipy.ndimage import map_coordinates
from scipy.optimize import brentq, isotonic_regression
from scipy.special import ndtr

import otflow as of
from otflow.base import multigrid
from otflow.base.errors import DerivativeError, InputError
from otflow.base.status import code
from otflow.energies.internal import DensityBound, Entropy, PorousMedium
from otflow.measures import Grid
from otflow.steppers.jko.base import Move, MovementProblem, minimise
from otflow.steppers.jko.grid import exact as solver
from otflow.steppers.jko.grid.dual import Dual, particles
from otflow.steppers.jko.grid.energy_terms import split
from otflow.steppers.jko.grid.line import LineDual
from otflow.steppers.jko.grid.spline import Stencil, coefficients

W2 = of.Wasserstein()
BOWL = of.Potential(lambda x: x.square().sum(-1) / 2)


def centres(n, low, high):
    return low + (np.arange(n) + 0.5) * (high - low) / n


def grid(density, *axes):
    cell = math.prod(a[1] - a[0] for a in axes)
    mass = density.sum(tuple(range(-len(axes), 0)), keepdims=True) * cell
    return Grid(density / mass, list(axes))


def step(mu, energy, tau, start=None, **options):
    return minimise(mu, MovementProblem(energy, W2, tau, **options), start)


def run(mu, energy, tau, steps, **options):
    move = None
    for _ in range(steps):
        move = step(
            mu if move is None else move.mu, energy, tau, None if move is None else move.state, **options
        )
        assert (move.failed == 0).all()
    return move


def mass(mu):
    return mu.density.flatten(len(mu.batch)).sum(-1) * mu.cell


def L1(mu, density):
    return (mu.density - torch.as_tensor(density)).abs().sum().item() * mu.cell


# --- the Barenblatt solution -----------------------------------------------------------------------------

K = 1 / 16  # d = m = 2
C = math.sqrt(2 * K / math.pi)


def radius(t):
    return math.sqrt(C / K) * t**0.25


def barenblatt(R, n, fine=8):
    """Cell averages on [-1/2, 1/2]^2 of the profile of radius R and mass one."""
    x = centres(n * fine, -0.5, 0.5)
    rho = np.maximum(1 - (x[:, None] ** 2 + x**2) / R**2, 0) * 2 / (math.pi * R**2)
    return rho.reshape(n, fine, n, fine).mean((1, 3))


def next_radius(R, tau):
    """R' - R = tau / q R'^(1 - q) with q = 4, in units where the radius is 1 at t = 1."""
    unit = math.sqrt(C / K)
    return unit * brentq(lambda s: s - R / unit - tau / 4 * s**-3, R / unit, 10)


def barenblatt_run(n, tau):
    """L1 distances to the time-discrete solution and to the PDE, iterations a step, seconds."""
    x, R, steps = centres(n, -0.5, 0.5), radius(1e-3), round(3e-3 / tau)
    mu, start, iterations, begin = grid(barenblatt(R, n), x, x), None, 0, time.perf_counter()
    for _ in range(steps):
        move = step(mu, PorousMedium(2.0), tau, start)
        assert move.failed == 0
        assert abs(mass(move.mu).item() - 1) < 1e-10
        assert move.mu.density.min() >= 0
        mu, start, iterations, R = move.mu, move.state, iterations + move.iterations, next_radius(R, tau)
    seconds = time.perf_counter() - begin
    return L1(mu, barenblatt(R, n)), L1(mu, barenblatt(radius(4e-3), n)), iterations / steps, seconds


@pytest.mark.slow
def test_the_porous_medium_spreads_like_the_time_discrete_barenblatt_solution():
    errors = [barenblatt_run(128, tau)[:2] for tau in (1e-3, 5e-4)]
    assert max(oracle for oracle, _ in errors) < 6e-4
    assert 0.85 < math.log2(errors[0][1] / errors[1][1]) < 1.1


@pytest.mark.slow
def test_the_porous_medium_at_256_squared_has_no_blur_at_any_step_size():
    taus = np.array([1e-3, 5e-4, 2.5e-4, 1.25e-4])
    oracle, pde, iterations, seconds = np.array([barenblatt_run(256, tau) for tau in taus]).T
    print(f"oracle {oracle}, PDE {pde}, iterations {iterations}, seconds {seconds}")  # noqa: T201
    assert oracle.max() < 1e-3
    assert 0.9 < np.polyfit(np.log(taus), np.log(pde), 1)[0] < 1.1
    np.testing.assert_allclose(pde, [5.546e-2, 2.984e-2, 1.554e-2, 7.94e-3], rtol=0.03)


# --- Gaussians ------------------------------------------------------------------------------------------


def gaussian(axes, m, S):
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1) - m
    return np.exp(-np.einsum("...i,ij,...j", x, np.linalg.inv(S), x) / 2)


def fokker_planck(m, S, A, b, beta, tau):
    """The JKO step of a Gaussian for quadratic V and entropy over beta."""
    values, Q = np.linalg.eigh(np.eye(len(A)) + tau * A)
    root = Q @ np.diag(values**-0.5) @ Q.T
    w, P = np.linalg.eigh(root @ S @ root)
    h = tau / beta
    grown = P @ np.diag((w + 2 * h + np.sqrt(w * (w + 4 * h))) / 2) @ P.T
    return root @ root @ (m + tau * A @ b), root @ grown @ root


@pytest.mark.parametrize(("D", "bound"), [(1, 1e-3), (2, 1e-3)])
def test_fokker_planck_steps_of_gaussians_follow_the_exact_formula(D, bound):
    n, tau, beta = (256, 80)[D - 1], 0.1, 2.0
    axes = [centres(n, -7.0, 7.0)] * D
    m, b = np.array([-1.0, 0.5])[:D], np.array([0.5, -0.3])[:D]
    S, A = np.array([[1.0, 0.4], [0.4, 0.7]])[:D, :D], np.array([[1.0, -0.3], [-0.3, 0.5]])[:D, :D]
    tA, tb = torch.tensor(A), torch.tensor(b)
    V = of.Potential(lambda x: torch.einsum("...i,ij,...j->...", x - tb, tA, x - tb) / 2)
    move = run(grid(gaussian(axes, m, S), *axes), V + Entropy() / beta, tau, 3, tol=1e-3)
    for _ in range(3):
        m, S = fokker_planck(m, S, A, b, beta, tau)
    assert L1(move.mu, grid(gaussian(axes, m, S), *axes).density) < bound


def test_the_cost_is_the_squared_distance_of_the_two_gaussians():
    x = centres(200, -8.0, 8.0)
    move = step(grid(np.exp(-(x**2) / 2), x), Entropy(), 0.3, tol=1e-4)
    assert move.cost.item() == pytest.approx(((1 + math.sqrt(1 + 4 * 0.3)) / 2 - 1) ** 2, rel=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("D", [1, 2])
def test_heavy_tails_of_fast_diffusion_keep_their_mass(D):
    axes = [centres((128, 48)[D - 1], -4.0, 4.0)] * D
    square = sum(a**2 for a in np.meshgrid(*axes, indexing="ij"))
    move = step(grid((1 + square) ** -3.0, *axes), PorousMedium(0.7), 0.1)
    assert move.failed == 0
    assert move.mu.density.min() > 0
    assert mass(move.mu).item() == pytest.approx(1, abs=1e-10)


# --- crowds ---------------------------------------------------------------------------------------------


def test_a_crowd_moves_to_the_projection_of_the_free_move():
    """In quantiles X: min (1 + tau)/(2 tau) |X - X_0/(1 + tau)|^2 with X' >= 1/limit, isotonic regression."""
    x, tau, limit, fine = centres(256, -2.0, 2.0), 0.3, 1.0, 200_000
    cuts = np.linspace(-2, 2, 257)
    cdf = lambda y: 0.6 * ndtr((y - 0.6) / 0.3) + 0.4 * ndtr((y + 0.8) / 0.25)  # noqa: E731
    mu = grid(np.diff(cdf(cuts)), x)
    move = step(mu, DensityBound(limit) + BOWL, tau)
    assert move.failed == 0
    levels = (np.arange(fine) + 0.5) / fine
    X0 = np.interp(levels, np.concatenate([[0], np.cumsum(mu.density.numpy()) * mu.cell]), cuts)
    X = isotonic_regression(X0 / (1 + tau) - levels / limit).x + levels / limit
    cumulative = np.concatenate([[0], np.cumsum(move.mu.density.numpy()) * mu.cell])
    mine = np.interp(levels, cumulative, cuts)
    assert np.abs(mine - X).mean() < 0.02 * mu.cell
    assert move.mu.density.max().item() <= limit * (1 + 1e-9)
    assert np.histogram(X, cuts)[0].max() / fine / mu.cell == pytest.approx(limit, rel=1e-2)  # it is active


@pytest.mark.slow
def test_a_crowd_in_a_bowl_ends_as_a_block_of_the_largest_density():
    x = centres(200, -2.0, 2.0)
    move = run(grid(((x > 0.5) & (x < 1.5)) * 1.0, x), DensityBound(1.0) + BOWL, 0.2, 30)
    assert L1(move.mu, (np.abs(x) < 0.5) * 1.0) < 0.02
    assert move.mu.density.max().item() <= 1 + 1e-9
    assert mass(move.mu).item() == pytest.approx(1, abs=1e-10)


@pytest.mark.thorough
def test_a_crowd_in_the_plane_respects_the_bound():
    x = centres(48, -2.0, 2.0)
    mu = grid(np.exp(-((x[:, None] - 0.3) ** 2 + x**2) / 0.4), x, x)
    energy = DensityBound(0.5) + BOWL  # the start has density 0.79
    move = run(mu, energy, 0.05, 3)
    assert move.mu.density.max().item() <= 0.5 * (1 + 1e-9)
    assert mass(move.mu).item() == pytest.approx(1, abs=1e-10)
    later = step(move.mu, energy, 0.05, move.state)
    assert energy(later.mu) + later.cost / 0.1 <= energy(move.mu)


# --- certificates ----------------------------------------------------------------------------------------

ENERGIES = [Entropy(), 0.5 * Entropy() + BOWL, PorousMedium(2.0), PorousMedium(4.0), PorousMedium(1.5) + BOWL]


@pytest.mark.parametrize("energy", ENERGIES, ids=lambda F: "+".join(repr(t) for t, _ in F.pairs()))
@pytest.mark.parametrize("D", [1, 2])
def test_steps_pay_for_their_way_and_close_the_duality_gap(energy, D):
    axes = [centres((96, 40)[D - 1], -3.0, 3.0)] * D
    mu = grid(gaussian(axes, np.full(D, 0.4), 0.3 * np.eye(D)), *axes)
    move = step(mu, energy, 0.05)
    assert isinstance(move, Move)
    assert move.failed == 0
    assert move.residual <= solver.tolerance(mu.density.shape)
    assert energy(move.mu) + move.cost / 0.1 <= energy(mu)
    assert move.gap.abs() <= (1e-3, 1e-2)[D - 1]
    assert abs(mass(move.mu).item() - 1) < 1e-10
    again = step(move.mu, energy, 0.05, move.state)
    assert again.failed == 0


@pytest.mark.parametrize("energy", [Entropy(), PorousMedium(2.0), PorousMedium(4.0)], ids=repr)
def test_blocks_with_jumps_and_a_vacuum_around_them_spread_on_the_line(energy):
    x = centres(200, -10.0, 10.0)
    move = run(grid((np.abs(x) < 1) * 1.0, x), energy, 0.1, 3)
    torch.testing.assert_close(move.mu.density, move.mu.density.flip(0), rtol=0, atol=2e-3)
    assert mass(move.mu).item() == pytest.approx(1, abs=1e-10)


def test_mass_that_reaches_the_walls_stays_inside():
    x = centres(64, 0.0, 1.0)
    move = run(grid(1 + 0.5 * np.cos(math.pi * x), x), Entropy(), 0.05, 8, tol=1e-4)
    first = (
        (move.mu.density.numpy() - 1) @ np.cos(math.pi * x) / 32 / 0.5
    )  # implicit Euler for the slowest mode
    assert first == pytest.approx((1 + 0.05 * math.pi**2) ** -8, rel=0.03)


def test_an_interaction_acts_as_the_potential_of_the_old_density():
    x = centres(80, -4.0, 4.0)
    mu = grid(np.exp(-((x - 0.5) ** 2)), x)
    pair = of.Interaction(lambda x, y: (x - y).square().sum(-1) / 2)
    mean = (mu.nodes()[0][..., 0] * mu.nodes()[1]).sum()
    bowl = of.Potential(lambda x: (x[..., 0] - mean).square() / 2)
    one, two = (step(mu, 0.2 * Entropy() + F, 0.1, tol=1e-5).mu.density for F in (pair, bowl))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


@pytest.mark.parametrize("D", [1, 2])
def test_members_of_a_batch_are_solved_as_if_alone(D):
    axes = [centres((96, 40)[D - 1], -3.0, 3.0)] * D
    members = [gaussian(axes, np.full(D, m), s * np.eye(D)) for m, s in ((0.0, 0.3), (0.5, 0.5), (-0.5, 0.4))]
    both = step(grid(np.stack(members).reshape(3, 1, *members[0].shape), *axes), Entropy() + BOWL, 0.1)
    assert both.failed.shape == both.cost.shape == both.residual.shape == (3, 1)
    assert (both.failed == 0).all()
    for i, member in enumerate(members):
        alone = step(grid(member, *axes), Entropy() + BOWL, 0.1)
        assert L1(alone.mu, both.mu.density[i, 0]) < (1e-4, 5e-3)[D - 1]


def test_single_precision_comes_back_in_single_precision():
    x = torch.arange(-32, 32, dtype=torch.float32) / 8
    rho = torch.exp(-x.square())
    move = step(Grid(rho / (rho.sum() * (x[1] - x[0])), [x]), Entropy(), 0.1)
    assert move.mu.density.dtype == move.cost.dtype == torch.float32


# --- refusals --------------------------------------------------------------------------------------------


def bump(D=1):
    axes = [centres(16, -2.0, 2.0)] * D
    return grid(gaussian(axes, np.zeros(D), np.eye(D) / 4), *axes)


@pytest.mark.parametrize(
    ("mu", "energy", "metric", "words"),
    [
        (bump(), BOWL, W2, "exactly one internal energy"),
        (bump(), Entropy() + PorousMedium(2.0), W2, "exactly one internal energy"),
        (bump(), -1.0 * Entropy(), W2, "must be convex"),
        (bump(), DensityBound(0.2), W2, "limit \\* volume of the box = 0.8"),
        (bump(), Entropy(), of.Twisted(), "use Wasserstein"),
        (bump(3), Entropy(), W2, "one or two dimensions"),
    ],
    ids=["none", "two", "concave", "full", "twisted", "3-d"],
)
def test_problems_out_of_reach_are_refused_with_a_remedy(mu, energy, metric, words):
    with pytest.raises(InputError, match=words):
        minimise(mu, MovementProblem(energy, metric, 0.1))


def test_terms_that_are_not_supported_are_named():
    class Other(type(Entropy()).__mro__[2]):  # an Energy of another kind
        def __call__(self, mu):
            return mass(mu)

        def __repr__(self):
            return "Other()"

    with pytest.raises(InputError, match=r"Other\(\)"):
        step(bump(), Entropy() + Other(), 0.1)


def test_gradients_through_a_step_are_refused():
    mu = bump()
    with pytest.raises(DerivativeError, match="no derivative"):
        step(mu.at([mu.density.clone().requires_grad_()]), Entropy(), 0.1)


def test_a_step_cut_short_says_so():
    move = step(bump(), Entropy(), 0.5, max_iter=1, tol=1e-9)
    assert move.failed.item() in (code("max_iter"), code("stalled"))
    assert "relative error" in move.message
    assert abs(mass(move.mu).item() - 1) < 1e-10


# --- the parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", [1, 2])
def test_the_residual_is_minus_the_gradient_of_the_dual(D):
    axes = [centres(16, -2.0, 2.0)] * D
    mu, rng = grid(gaussian(axes, np.zeros(D), np.eye(D)), *axes), np.random.default_rng(1)
    terms, tau = split(Entropy() + BOWL, mu, 0.2), 0.2
    cells = mu.density.numpy()[None] * mu.cell
    kind = (
        (lambda *a: LineDual(*a, cells))
        if D == 1
        else (lambda *a: Dual(*a, particles(cells, np.ones(cells.shape, int))))
    )
    dual = kind(terms, mu.spacing, tau)
    wave = np.cos(rng.uniform(0.2, 1, D) @ np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")]))
    f, d = 0.5 * wave.reshape(cells.shape) + 1.0, rng.standard_normal(cells.shape)
    up, down = dual.at(f + 1e-5 * d).J, dual.at(f - 1e-5 * d).J
    slope = (dual.at(f).r * d).sum() * mu.cell
    assert (up - down).item() / 2e-5 == pytest.approx(slope, rel=1e-5)


def test_multigrid_agrees_with_a_direct_solver_for_degenerate_coefficients():
    rng, n = np.random.default_rng(0), 64
    x = centres(n, -0.5, 0.5)
    w = np.maximum(1 - 6 * (x[:, None] ** 2 + x**2), 0) + 1e-3
    node = np.stack([w, 2 * w])
    edges = [(node[:, 1:] + node[:, :-1]) / 2, (node[..., 1:] + node[..., :-1]) / 2]
    A = multigrid.operator(0.1 * np.ones((2, n, n)), edges, 0.5 * node, [1 / n, 1 / n])
    assert abs(A - A.T).max() < 1e-9
    b = rng.standard_normal((2, n * n))
    got = multigrid.solve(A, multigrid.hierarchy(A, (2, n, n), 2), b, tol=1e-10)
    np.testing.assert_allclose(
        got.ravel(), scipy.sparse.linalg.spsolve(A.tocsc(), b.ravel()), rtol=1e-6, atol=1e-8
    )


def test_splines_agree_with_scipy():
    rng = np.random.default_rng(2)
    f, u = rng.standard_normal((1, 9, 7)), rng.uniform(-0.5, 6.5, (2, 50))
    jet = Stencil(u, np.zeros(50, dtype=int), (9, 7)).jet(coefficients(f, 2), (1.0, 1.0))
    np.testing.assert_allclose(jet.value, map_coordinates(f[0], u, order=3, mode="reflect"), atol=1e-10)
    shifted = [
        map_coordinates(f[0], u + np.array([[s], [0]]), order=3, mode="reflect") for s in (1e-5, -1e-5)
    ]
    np.testing.assert_allclose(jet.slope[0], (shifted[0] - shifted[1]) / 2e-5, atol=1e-4)


def test_finer_particles_keep_the_mass_of_every_cell():
    rng = np.random.default_rng(3)
    cells = rng.uniform(0, 1, (2, 6, 5)) * (rng.uniform(size=(2, 6, 5)) > 0.3)
    fine = particles(cells, rng.integers(1, 4, cells.shape))
    where = (fine.member, *np.rint(fine.x).astype(int))
    got = np.zeros_like(cells)
    np.add.at(got, where, fine.m)
    np.testing.assert_allclose(got, cells, atol=1e-14)


# --- densities that jump -------------------------------------------------------------------------------


def block(n: int) -> tuple[of.Grid, np.ndarray]:
    """The indicator of a square, of mass one."""
    x = (np.arange(n) + 0.5) / n - 0.5
    inside = np.maximum(np.abs(x)[:, None], np.abs(x)) < 0.2
    return of.Grid(inside / (inside.sum() / n**2), [x, x]), x


@pytest.mark.thorough
@pytest.mark.slow(but_for=["Entropy()", "DensityBound(4)"])
@pytest.mark.parametrize("energy", [of.Entropy(), of.PorousMedium(2.0), of.DensityBound(4.0)], ids=repr)
def test_a_step_from_a_density_that_jumps_is_taken_with_less_blur_than_a_cell(energy: of.Energy) -> None:
    mu, x = block(32)
    move = of.jko_step(mu, energy, 1e-3)
    assert move.status == "ok"
    assert 0 <= float(move.blur) <= 1 / 32**2
    assert float(move.energy_gap) < 0
    assert float(move.mu.density.sum()) * mu.cell == pytest.approx(1, abs=1e-10)
    assert float(move.mu.density.min()) >= 0
    turned = move.mu.density.mT  # the square has symmetries, and so has the answer
    assert float((turned - move.mu.density).abs().sum()) * mu.cell < 2e-2
    square = torch.from_numpy(x[:, None] ** 2 + x**2)
    assert float((move.mu.density * square).sum()) > float((mu.density * square).sum())


def test_the_stand_in_for_a_stalled_step_agrees_with_the_exact_one_where_both_exist() -> None:
    from otflow.steppers.jko.base import MovementProblem
    from otflow.steppers.jko.grid.blurred import replacement

    x = (np.arange(64) + 0.5) / 64 - 0.5
    rho = np.exp(-(x[:, None] ** 2 + x**2) / 0.02)
    mu = of.Grid(rho / (rho.sum() / 64**2), [x, x])
    exact = of.jko_step(mu, of.Entropy(), 2e-3)
    other = replacement(mu, MovementProblem(of.Entropy(), of.Wasserstein(), 2e-3))
    assert other is not None
    assert float(exact.blur) == 0
    assert float((exact.mu.density - other.mu.density).abs().sum()) * mu.cell < 2e-3
    assert float(other.cost) == pytest.approx(float(exact.cost), rel=2e-2)


@pytest.mark.slow
def test_a_crowd_walks_without_specks() -> None:
    """Steps of a packed crowd leave no single cells behind; near rest they are refused, not guessed."""
    mu, x = block(32)
    aim = torch.tensor([0.2, 0.0], dtype=torch.float64)
    F = of.DensityBound(float(mu.density.max())) + of.Potential(lambda z: 4 * (z - aim).square().sum(-1))
    field = of.SteepestDescent(F, of.Wasserstein())
    traj = of.flow(mu, field, of.JKO(), t1=1.0, dt=0.05, on_failure="return")
    assert len(traj) > 2
    assert traj.status == "uncertified"
    assert "shorter" in traj.message or "longer dt" in traj.message
    end = traj.final
    behind = torch.from_numpy((x[:, None] < -0.25) | (np.abs(x) > 0.3))
    assert float(end.density[behind].max()) < 1e-2 * float(mu.density.max())
    assert float((end.density * torch.from_numpy(x)[:, None]).sum()) * mu.cell > 0.08
    assert float(traj.certificates["energy_gap"][1:].max()) < 0


@pytest.mark.slow
def test_mass_and_sign_are_certified() -> None:
    mu, _ = block(32)
    traj = of.flow(mu, of.SteepestDescent(of.PorousMedium(2.0), of.Wasserstein()), of.JKO(), t1=2e-3, dt=1e-3)
    assert float(traj.certificates["mass"].max()) < 1e-10
    assert float(traj.certificates["negative"].max()) == 0


@pytest.mark.slow
def test_steps_of_less_than_a_cell_from_a_jump_are_not_taken_for_rest() -> None:
    x = (np.arange(40) + 0.5) / 40 - 0.5
    line = (np.abs(x) < 0.2) / ((np.abs(x) < 0.2).sum() / 40)
    stripe = of.Grid(np.tile(line, (40, 1)), [x, x])
    move = of.jko_step(stripe, of.PorousMedium(2.0), 1e-4, on_failure="return")
    assert move.status != "ok"
    longer = of.jko_step(stripe, of.PorousMedium(2.0), 3e-3)
    alone = of.jko_step(of.Grid(line, [x]), of.PorousMedium(2.0), 3e-3)
    assert float(longer.cost) == pytest.approx(float(alone.cost), rel=0.1)


@pytest.mark.thorough
def test_long_cells_are_not_blurred_across_short_ones() -> None:
    x, y = (np.arange(16) + 0.5) / 4 - 2, (np.arange(64) + 0.5) / 64 - 0.5
    rho = ((np.abs(x) < 1)[:, None] & (np.abs(y) < 0.1)).astype(float)
    mu = of.Grid(rho / (rho.sum() / 256), [x, y])
    move = of.jko_step(mu, 0.01 * of.Entropy(), 1e-3, on_failure="return")
    assert move.status != "ok"
    assert float(move.blur) == 0


@pytest.mark.slow
def test_mass_that_reaches_a_wall_is_charged_for_its_way() -> None:
    """The quantile function of a block [0, 0.2] against that of its end."""
    n = 80
    x = (np.arange(n) + 0.5) / n
    mu = of.Grid((x < 0.2) / 0.2, [x])
    move = of.jko_step(mu, of.PorousMedium(2.0), 1.0)
    s = (np.arange(20000) + 0.5) / 20000
    edges = np.linspace(0, 1, n + 1)
    far = np.interp(s, np.concatenate([[0], move.mu.density.numpy().cumsum() / n]), edges)
    assert float(move.cost) == pytest.approx(float(np.mean((far - 0.2 * s) ** 2)), rel=2e-3)


@pytest.mark.slow
def test_members_of_a_batch_in_the_plane_do_not_see_each_other() -> None:
    x, y = (np.arange(16) + 0.5) / 16, (np.arange(21) + 0.5) / 21
    X, Y = np.meshgrid(x, y, indexing="ij")
    rho = np.stack([1.0 * (X < 0.4), np.exp(-((X - 0.5) ** 2 + (Y - 0.5) ** 2) / 0.05)])
    rho = rho / (rho.sum((-1, -2), keepdims=True) / (16 * 21))
    together = of.jko_step(of.Grid(rho, [x, y]), of.Entropy(), 0.01, on_failure="return")
    for k in range(2):
        alone = of.jko_step(of.Grid(rho[k], [x, y]), of.Entropy(), 0.01, on_failure="return")
        torch.testing.assert_close(together.mu.density[k], alone.mu.density, rtol=0, atol=1e-12)
        assert together.status[k] == alone.status
