"""JKO on particles and Gaussians: exact steps, certificates, orders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor

import otflow as of
from tests import zoo
from tests.samples import normal, slope

I2 = np.eye(2)


def quartic(x: Tensor, y: Tensor) -> Tensor:
    r = (x - y).square().sum(-1)
    return r**2 / 4 - r / 2


def log_gas(x: Tensor, y: Tensor) -> Tensor:
    r = (x - y).square().sum(-1)
    return r / 2 - torch.log(r) / 2


def half_square(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().sum(-1) / 2


def spd(d: int, seed: int) -> np.ndarray:
    a = normal(d, d, seed=seed)
    return a @ a.T / d + 0.1 * np.eye(d)


def fokker_planck(
    S: np.ndarray, m: np.ndarray, A: np.ndarray, b: np.ndarray, h: float, tau: float
) -> tuple[np.ndarray, np.ndarray]:
    """The step of F = int (x - b).A(x - b)/2 + (h/tau) int rho log rho, by scipy."""
    eye = np.eye(len(A))
    B = eye + tau * A
    half = np.linalg.inv(np.real(sqrtm(B)))
    M = half @ S @ half
    return np.linalg.solve(B, m + tau * A @ b), half @ (
        M + 2 * h * eye + np.real(sqrtm(M @ (M + 4 * h * eye)))
    ) @ half / 2


# --- particles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cloud", "weighted", "labelled", "batched"])
@pytest.mark.parametrize("tau", [0.01, 0.7, 20.0])
def test_quadratic_attraction_shrinks_a_cloud_about_its_mean(name: str, tau: float) -> None:
    mu = zoo.MEASURES[name]()
    move = of.jko_step(mu, of.Interaction(half_square), tau)
    mean = (mu.w[..., None] * mu.x).sum(-2, keepdim=True)
    torch.testing.assert_close(move.mu.x, mean + (mu.x - mean) / (1 + tau), rtol=0, atol=1e-10)


ENERGIES: dict[str, Callable[[], of.Energy]] = {
    "quartic": lambda: of.Interaction(quartic),
    "bell": lambda: of.Interaction(zoo.bell),
    "log_gas": lambda: of.Interaction(log_gas, diagonal=False),
    "sum": lambda: of.Interaction(zoo.bell) + 0.3 * of.Potential(zoo.harmonic),
    "scores": lambda: of.SquaredScores(zoo.spd()),
    "transport": lambda: of.SelfTransport(zoo.spd(), 0.8),
}


@pytest.mark.thorough
@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("name", ["cloud", "weighted", "batched"])
def test_the_step_is_stationary_an_optimal_map_and_lowers_the_energy(name: str, energy: str) -> None:
    mu, F, tau = zoo.MEASURES[name](), ENERGIES[energy](), 0.05
    move = of.jko_step(mu, F, tau)
    u = move.mu.x - mu.x
    g = F.differential(move.mu)[0] / mu.w[..., None]
    assert float((u / tau + g).abs().max()) < 1e-6 * float(g.abs().max())
    exact = of.wasserstein(mu, move.mu)
    torch.testing.assert_close(move.cost, exact**2, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(move.cost, (mu.w * u.square().sum(-1)).sum(-1), rtol=1e-12, atol=0)
    assert bool((move.energy_gap < 0).all())
    torch.testing.assert_close(move.energy_gap, F(move.mu) + move.cost / (2 * tau) - F(mu))
    assert bool((move.concavity < 1).all())


def test_labels_stay_and_the_cost_is_that_of_conditional_transport() -> None:
    mu = zoo.MEASURES["labelled"]()
    move = of.jko_step(mu, of.Interaction(quartic), 0.05)
    assert torch.equal(move.mu.label, mu.label)
    conditional = of.distance(mu, move.mu, of.Wasserstein())
    torch.testing.assert_close(move.cost, conditional**2, rtol=1e-9, atol=1e-12)


def test_tokens_on_the_sphere_stay_there_and_pay_for_geodesics() -> None:
    mu = of.Particles(zoo.unit(7, 3), space=of.Sphere())
    F = -1 * of.Interaction(lambda x, y: torch.exp(2 * (x * y).sum(-1)))
    move = of.jko_step(mu, F, 0.02)
    torch.testing.assert_close(move.mu.x.norm(dim=-1), torch.ones(7).double())
    angles = mu.space.distance(mu.x, move.mu.x)
    torch.testing.assert_close(move.cost, angles.square().mean(), rtol=1e-9, atol=0)
    # Stationary in the tangent space of the end: the geodesic arrives with velocity -tau grad F.
    arrival = -mu.space.log(move.mu.x, mu.x)
    grad = move.mu.sharp(F.differential(move.mu))[0]
    torch.testing.assert_close(arrival, -0.02 * grad, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_the_ring_of_quartic_repulsion_has_radius_one_over_root_three() -> None:
    field = of.SteepestDescent(of.Interaction(quartic), of.Wasserstein())
    traj = of.flow(of.Particles(0.3 * normal(24, 2)), field, of.JKO(), t1=200.0, dt=2.0)
    x = traj.final.x - traj.final.x.mean(0)
    torch.testing.assert_close(x.norm(dim=-1), torch.full((24,), 3**-0.5).double(), rtol=0, atol=1e-6)
    assert float(traj.certificates["energy_gap"][1:].max()) <= 1e-12
    assert float(traj.certificates["residual"].max()) <= 1e-9


@pytest.mark.slow
def test_the_second_moment_of_the_log_gas_is_half_less_one_over_two_n() -> None:
    n = 30
    field = of.SteepestDescent(of.Interaction(log_gas, diagonal=False), of.Wasserstein())
    traj = of.flow(of.Particles(0.5 * normal(n, 2)), field, of.JKO(), t1=800.0, dt=20.0)
    x = traj.final.x - traj.final.x.mean(0)
    assert x.square().sum(-1).mean().item() == pytest.approx((1 - 1 / n) / 2, abs=1e-6)
    assert float(traj.certificates["energy_gap"][1:].max()) < 0


def test_convex_energies_contract() -> None:
    """W2(J mu, J nu) <= W2(mu, nu) / (1 + lambda tau) for lambda-convex energies."""
    F = of.QuadraticPotential(np.diag([1.0, 3.0])) + of.Potential(lambda x: x.square().sum(-1).square() / 4)
    mu, nu = of.Particles(normal(8, 2)), of.Particles(normal(8, 2, seed=1))
    before, tau = of.wasserstein(mu, nu), 0.4
    after = of.wasserstein(of.jko_step(mu, F, tau).mu, of.jko_step(nu, F, tau).mu)
    assert float(after) <= float(before) / (1 + tau)


def test_members_of_a_batch_are_solved_as_if_alone() -> None:
    mu, F = zoo.MEASURES["batched"](), ENERGIES["sum"]()
    together = of.jko_step(mu, F, 0.3)
    for k in range(2):
        alone = of.jko_step(mu[k], F, 0.3)
        torch.testing.assert_close(together.mu.x[k], alone.mu.x, rtol=0, atol=1e-9)
        torch.testing.assert_close(together.cost[k], alone.cost, rtol=1e-8, atol=0)


def test_single_precision_stays_single() -> None:
    mu = of.Particles(normal(6, 2).astype(np.float32))
    move = of.jko_step(mu, of.Interaction(half_square), 0.5)
    assert move.mu.x.dtype == torch.float32
    mean = mu.x.mean(0)
    torch.testing.assert_close(move.mu.x, mean + (mu.x - mean) / 1.5, rtol=0, atol=1e-4)


# --- Gaussians -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("tau", [1e-3, 0.3, 10.0])
def test_the_closed_form_is_the_formula_of_fokker_planck(d: int, tau: float) -> None:
    S, A, K, m, b, beta = spd(d, 1), spd(d, 2), spd(d, 3), normal(d, seed=4), normal(d, seed=5), 1.7
    F = of.QuadraticPotential(A, b) + of.QuadraticInteraction(K) + of.Entropy() / beta
    mu = of.Gaussian(m, cov=S)
    move = of.jko_step(mu, F, tau)
    mean, _ = fokker_planck(S, m, A, b, tau / beta, tau)
    _, cov = fokker_planck(S, m, A + K, b, tau / beta, tau)
    np.testing.assert_allclose(move.mu.mean, mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(move.mu.cov, cov, rtol=0, atol=1e-10 * np.abs(cov).max())
    torch.testing.assert_close(move.cost, of.bures_wasserstein(mu, move.mu) ** 2, rtol=1e-9, atol=1e-13)
    assert float(move.residual) < 1e-9
    assert float(move.energy_gap) < 0


@pytest.mark.parametrize("tau", [0.02, 1.0])
def test_the_search_by_displacements_finds_the_closed_form(tau: float) -> None:
    S, A, m, b = spd(3, 1), spd(3, 2), normal(3, seed=4), normal(3, seed=5)
    mu, At, bt = of.Gaussian(m, cov=S), torch.tensor(A), torch.tensor(b)
    general = of.Potential(lambda x: ((x - bt) * ((x - bt) @ At)).sum(-1) / 2) + of.Entropy()
    known = of.jko_step(mu, of.QuadraticPotential(A, b) + of.Entropy(), tau).mu
    found = of.jko_step(mu, general, tau).mu
    torch.testing.assert_close(found.mean, known.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.root, known.root, rtol=0, atol=1e-9)  # the same optimal map


def test_a_dirac_spreads_by_heat() -> None:
    """From covariance zero, sigma' = sqrt(tau)."""
    move = of.jko_step(of.Gaussian(np.zeros(2), root=np.zeros((2, 2))), of.Entropy(), 0.25)
    torch.testing.assert_close(move.mu.cov, 0.25 * torch.eye(2).double())


BURES: dict[str, Callable[[], of.Energy]] = {
    "scores": lambda: of.SquaredScores(zoo.spd()),
    "transport": lambda: of.SelfTransport(zoo.spd(), 0.7),
    "l2": lambda: of.L2Energy(zoo.matrix(3), 0.8),
}


@pytest.mark.parametrize("energy", BURES)
@pytest.mark.parametrize("name", ["gaussian", "gaussian_of_rank_two", "gaussian_batched"])
def test_bures_energies_of_attention_step_along_optimal_maps(name: str, energy: str) -> None:
    mu, F, tau = zoo.MEASURES[name](), BURES[energy](), 0.1
    move = of.jko_step(mu, F, tau)
    torch.testing.assert_close(move.cost, of.bures_wasserstein(mu, move.mu) ** 2, rtol=1e-6, atol=1e-9)
    u = move.mu.coords - mu.coords
    miss = u / tau + F.differential(move.mu)
    assert max(float(p.abs().max()) for p in miss) < 1e-7
    assert bool((move.energy_gap < 0).all())


def errors(stepper: of.Stepper, steps: np.ndarray) -> list[float]:
    """Bures distance to the solution of the Fokker-Planck equation at t = 1."""
    S, A, b, m = spd(3, 1) + np.eye(3), spd(3, 2), normal(3, seed=5), normal(3, seed=4)
    F = of.QuadraticPotential(A, b) + of.Entropy()
    w, U = np.linalg.eigh(A)
    decay = U @ np.diag(np.exp(-w)) @ U.T
    exact = of.Gaussian(
        b + decay @ (m - b), cov=decay @ S @ decay + U @ np.diag((1 - np.exp(-2 * w)) / w) @ U.T
    )
    field = of.SteepestDescent(F, of.Wasserstein())
    ends = [of.flow(of.Gaussian(m, cov=S), field, stepper, t1=1.0, dt=h).final for h in steps.tolist()]
    return [of.bures_wasserstein(end, exact).item() for end in ends]


@pytest.mark.thorough
def test_jko_is_of_order_one_against_the_equation() -> None:
    steps = 1 / np.array([20.0, 40, 80, 160])
    assert 0.95 <= slope(steps, errors(of.JKO(), steps)) <= 1.02


@pytest.mark.slow
def test_extrapolated_jko_is_of_order_two() -> None:
    steps = 1 / np.array([40.0, 80, 160, 320])
    assert 1.9 <= slope(steps, errors(of.Extrapolated(of.JKO()), steps)) <= 2.1


@pytest.mark.slow
def test_forward_backward_is_of_order_one() -> None:
    S, A = spd(2, 1), spd(2, 2)
    V, H = of.QuadraticPotential(A), of.Entropy()
    field = of.SteepestDescent(V + H, of.Wasserstein())
    mu = of.Gaussian(np.ones(2), cov=S)
    reference = of.flow(mu, field, of.Extrapolated(of.JKO()), t1=1.0, dt=0.002).final
    steps = 1 / np.array([20.0, 40, 80])
    gaps = [
        of.bures_wasserstein(of.flow(mu, field, of.ForwardBackward(V), t1=1.0, dt=h).final, reference).item()
        for h in steps.tolist()
    ]
    assert slope(steps, gaps) == pytest.approx(1.0, abs=0.1)


def test_a_thousand_problems_are_one() -> None:
    rng = np.random.default_rng(0)
    mu = of.Gaussian(rng.standard_normal((1000, 8)), root=rng.standard_normal((1000, 8, 8)))
    A = torch.from_numpy(np.stack([spd(8, k) for k in range(1000)]))
    F = of.QuadraticPotential(A, rng.standard_normal((1000, 8))) + of.Entropy()
    move = of.jko_step(mu, F, 0.1)
    assert move.cost.shape == (1000,)
    k = 437
    mean, cov = fokker_planck(
        mu.cov[k].numpy(), mu.mean[k].numpy(), A[k].numpy(), F.pairs()[0][0].b[k].numpy(), 0.1, 0.1
    )
    np.testing.assert_allclose(move.mu.mean[k], mean, atol=1e-10)
    np.testing.assert_allclose(move.mu.cov[k], cov, atol=1e-10 * np.abs(cov).max())


# --- twisted -------------------------------------------------------------------------------------------


def twisted(frozen: bool) -> of.Twisted:
    return of.Twisted(of.metrics.Partition(zoo.spd()), frozen=frozen)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["frozen"])
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "full"])
def test_twisted_steps_are_of_order_one_towards_softmax_attention(frozen: bool) -> None:
    A = zoo.spd()
    attention = of.SoftmaxAttention(A, np.eye(3), -A)
    mu = of.Particles(0.7 * normal(6, 3))
    exact = of.flow(mu, attention, of.Dopri5(rtol=1e-10, atol=1e-12), t1=0.4).final.x
    field = of.SteepestDescent(of.ExponentialInteraction(A), twisted(frozen))
    steps = 0.4 / np.array([8.0, 16, 32])
    gaps = [
        float((of.flow(mu, field, of.JKO(), t1=0.4, dt=h).final.x - exact).norm()) for h in steps.tolist()
    ]
    assert slope(steps, gaps) == pytest.approx(1.0, abs=0.15)


def test_a_constant_matrix_measures_lengths() -> None:
    """u = -tau M^-1 grad V at the end, for a quadratic: (M + tau A) x' = M x."""
    M, A, tau = spd(2, 1), spd(2, 2), 0.6
    mu = of.Particles(normal(5, 2))
    move = of.jko_step(mu, of.QuadraticPotential(A), tau, metric=of.Twisted(matrix=M))
    expected = np.linalg.solve(M + tau * A, M @ mu.x.numpy().T).T
    np.testing.assert_allclose(move.mu.x, expected, atol=1e-10)


# --- what does not go well -------------------------------------------------------------------------------


def test_a_step_that_is_not_convex_says_so() -> None:
    """A particle on top of a hill: standing still is stationary, but no minimum for large tau."""
    hill = of.Potential(lambda x: -x.square().sum(-1) / 2 + x.square().sum(-1).square() / 4, curvature=-1.0)
    mu = of.Particles([[0.0, 0.0]])
    assert of.jko_step(mu, hill, 0.5).status == "ok"
    move = of.jko_step(mu, hill, 2.0, on_failure="return")
    assert move.status == "uncertified"
    assert float(move.concavity) == pytest.approx(2.0, rel=1e-4)
    with pytest.raises(of.errors.ConvergenceError, match="saddle"):
        of.jko_step(mu, hill, 2.0)


def test_a_gaussian_step_that_is_not_convex_says_so() -> None:
    mu = of.Gaussian([1.0], root=[[1.0]])
    assert of.jko_step(mu, of.QuadraticPotential([[-1.0]]), 0.5).status == "ok"
    assert of.jko_step(mu, of.QuadraticPotential([[-1.0]]), 1.5, on_failure="return").status == "uncertified"


def test_a_gaussian_step_on_a_saddle_says_so_although_the_energy_falls() -> None:
    """There is no minimiser: the first coordinate may go as far as it likes, but starts on the ridge."""
    mu = of.Gaussian([0.0, 3.0], root=np.diag([0.0, 1.0]))
    saddle = of.QuadraticPotential(np.diag([-1.0, 1.0]))
    move = of.jko_step(mu, saddle, 1.5, on_failure="return")
    assert float(saddle(move.mu) + move.cost / 3.0) < float(saddle(mu))
    assert move.status == "uncertified"


def test_an_inner_solve_that_runs_out_of_iterations_ends_the_run() -> None:
    field = of.SteepestDescent(of.Interaction(log_gas, diagonal=False), of.Wasserstein())
    traj = of.flow(of.Particles(normal(9, 2)), field, of.JKO(max_iter=1), t1=1.0, dt=1.0, on_failure="return")
    assert traj.status == "max_iter"
    assert torch.equal(traj.final.x, traj.measures[0].x)
    with pytest.raises(of.errors.FlowError, match="relative residual"):
        of.flow(of.Particles(normal(9, 2)), field, of.JKO(max_iter=1), t1=1.0, dt=1.0)


def test_particles_on_top_of_each_other_are_named_as_the_trouble() -> None:
    with pytest.raises(of.errors.ConvergenceError, match="coincide"):
        of.jko_step(of.Particles(np.zeros((3, 2))), of.Interaction(log_gas, diagonal=False), 0.1)


@pytest.mark.parametrize("size", [1e-6, 1e6])
@pytest.mark.parametrize("centre", [0.0, 1e4])
def test_scale_and_place_do_not_matter(size: float, centre: float) -> None:
    """x -> c + sx with W -> W(x/s) and tau -> s^2 tau changes the step in the same way."""
    x = normal(8, 2)
    near = of.jko_step(of.Particles(x), of.Interaction(quartic), 0.1).mu.x
    mu = of.Particles(size * (centre + x))
    F = of.Interaction(lambda x, y: quartic(x / size, y / size))
    far = of.jko_step(mu, F, 0.1 * size**2).mu.x / size - centre
    torch.testing.assert_close(far, near, rtol=0, atol=1e-9 if centre == 0 else 1e-7)


def test_single_precision_passes_the_energy_inequality_at_rest() -> None:
    mu = of.Gaussian(np.zeros(2, np.float32), root=np.eye(2, dtype=np.float32))
    F = of.QuadraticPotential(np.eye(2, dtype=np.float32)) + of.Entropy()
    assert of.jko_step(mu, F, 0.1).status == "ok"


def nudged(x: np.ndarray, seed: int) -> np.ndarray:
    """Every number in single precision moved to one of its neighbours."""
    return np.nextafter(x, np.random.default_rng(seed).choice(np.float32([-1e9, 1e9]), x.shape))


def well(x: Tensor) -> Tensor:
    return (x.square().sum(-1) - 1).square() / 4 + 0.3 * x[..., 0]


@pytest.mark.slow
def test_narrow_gaussians_in_single_precision_end_where_those_in_double_do() -> None:
    """Relative to the gradient at a narrow law a loose tolerance is met far from the minimiser."""
    F = of.Entropy() + of.Potential(well)
    for seed in range(4):
        mean, root = (normal(*s, seed=seed).astype(np.float32) for s in ((2,), (2, 2)))
        for shake in range(2):
            m, r = (a if shake == 0 else nudged(a, shake) for a in (mean, np.float32(1e-2) * root))
            single = of.jko_step(of.Gaussian(m, root=r), F, 0.2, on_failure="return")
            double = of.jko_step(
                of.Gaussian(m.astype(float), root=r.astype(float)), F, 0.2, on_failure="return"
            )
            assert single.status == double.status
            assert single.mu.dtype == single.cost.dtype == single.residual.dtype == torch.float32
            torch.testing.assert_close(single.mu.root.double(), double.mu.root, rtol=1e-5, atol=1e-5)


def test_a_law_that_its_energy_takes_in_single_precision_only_is_moved_there() -> None:
    A = torch.eye(2)
    F = of.Potential(lambda x: (x @ A).square().sum(-1) / 2)
    move = of.jko_step(of.Gaussian(torch.ones(2), root=A), F, 1.0)
    assert move.mu.dtype == torch.float32
    torch.testing.assert_close(move.mu.mean, torch.full((2,), 0.5), rtol=1e-4, atol=0)


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1.0])
def test_tokens_next_to_each_other_that_go_far_are_moved_in_single_precision(size: float) -> None:
    """Curvature is seen over a distance that positions resolve where they arrive, not where they start."""
    for seed in range(4):
        x = (size * normal(3, 2, seed=seed)).astype(np.float32)
        for shake in range(3):
            mu = of.Particles(x if shake == 0 else nudged(x, shake))
            move = of.jko_step(mu, of.Potential(well), 0.2, on_failure="return")
            assert move.status == "ok"
            double = of.jko_step(mu.to(torch.float64), of.Potential(well), 0.2)
            torch.testing.assert_close(move.mu.x.double(), double.mu.x, rtol=0, atol=1e-4)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan")])
def test_a_step_takes_time(tau: float) -> None:
    with pytest.raises(of.InputError, match="tau"):
        of.jko_step(of.Particles([[0.0]]), of.Potential(zoo.harmonic), tau)


def test_fields_without_an_energy_are_refused() -> None:
    with pytest.raises(of.InputError, match="steepest descent"):
        of.flow(of.Particles(normal(4, 2)), of.SoftmaxAttention(I2, I2, I2), of.JKO(), t1=1.0, dt=0.1)


def test_the_entropy_of_a_cloud_is_refused() -> None:
    with pytest.raises(of.InputError, match="density"):
        of.jko_step(of.Particles(normal(4, 2)), of.Entropy(), 0.1)


def test_a_bound_on_the_density_has_no_differential() -> None:
    for mu in (of.Gaussian([0.0], root=[[1.0]]), of.Grid(np.ones(4), [np.arange(4) / 4 + 0.125])):
        with pytest.raises(of.errors.DerivativeError, match="density bound"):
            of.SteepestDescent(of.DensityBound(2.0), of.Wasserstein())(0.0, mu)


def test_gradients_through_a_step_are_refused() -> None:
    x = torch.tensor(normal(4, 2), requires_grad=True)
    with pytest.raises(of.errors.DerivativeError, match="JKO"):
        of.jko_step(of.Particles(x), of.Potential(zoo.harmonic), 0.1)


def test_a_splitting_has_two_parts() -> None:
    V, H = of.QuadraticPotential(I2), of.Entropy()
    mu, metric = of.Gaussian(np.zeros(2), root=I2), of.Wasserstein()
    for stepper, F in (
        (of.ForwardBackward(), V + H),
        (of.ForwardBackward(V), V),
        (of.ForwardBackward(of.QuadraticPotential(I2)), V + H),
    ):
        with pytest.raises(of.InputError, match="forward"):
            of.flow(mu, of.SteepestDescent(F, metric), stepper, t1=1.0, dt=0.1)


def test_a_multiple_of_an_energy_names_it_too() -> None:
    V, H = 2 * of.QuadraticPotential(I2), of.Entropy()
    field, mu = of.SteepestDescent(V + H, of.Wasserstein()), of.Gaussian(np.ones(2), root=I2)
    end = of.flow(mu, field, of.ForwardBackward(V), t1=0.1, dt=0.1).final
    torch.testing.assert_close(end.mean, torch.full((2,), 0.8).double())


@pytest.mark.slow
def test_attention_goes_forward_while_entropy_goes_backward() -> None:
    """Softmax attention on a Gaussian plus heat, split: the limit of small steps is the sum."""
    A = zoo.spd() / 4
    attention, heat = (
        of.SoftmaxAttention(A, np.eye(3), -A),
        of.SteepestDescent(of.Entropy(), of.Wasserstein()),
    )
    mu = of.Gaussian(np.zeros(3), root=0.5 * np.eye(3))
    split = of.flow(mu, attention + 0.1 * heat, of.ForwardBackward(), t1=0.5, dt=0.001).final
    exact = of.flow(mu, attention + 0.1 * heat, of.Dopri5(), t1=0.5).final
    assert of.bures_wasserstein(split, exact).item() < 1e-3


def test_extrapolation_needs_a_fixed_step_and_no_grid() -> None:
    with pytest.raises(of.InputError, match="fixed step"):
        of.Extrapolated(of.Dopri5())
    field = of.SteepestDescent(of.Potential(zoo.harmonic), of.Wasserstein())
    with pytest.raises(of.InputError, match="negative"):
        of.flow(zoo.MEASURES["grid"](), field, of.Extrapolated(of.Euler()), t1=0.01, dt=0.001)


def test_steps_far_from_the_origin_are_taken_in_single_precision() -> None:
    """A pull of unit speed over 5e-4, at a distance of 140: eighty roundings."""
    x = (100 + torch.from_numpy(normal(20, 2))).float()
    move = of.jko_step(of.Particles(x), of.Potential(lambda x: x.square().sum(-1).sqrt()), 5e-4)
    way = (move.mu.x - x).norm(dim=-1)
    torch.testing.assert_close(way, torch.full((20,), 5e-4), rtol=0.05, atol=0)


@pytest.mark.slow
def test_twisted_steps_on_the_sphere() -> None:
    A = 2 * np.eye(3)
    softmax = of.SoftmaxAttention(A, np.eye(3), -A)
    mu = of.Particles(zoo.unit(32, 3), space=of.Sphere())
    exact = of.flow(mu, softmax, of.Dopri5(), t1=0.4).final.x
    gaps = [
        float((of.flow(mu, softmax.as_gradient_flow(), of.JKO(), t1=0.4, dt=h).final.x - exact).norm())
        for h in (0.1, 0.05)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(2.0, abs=0.4)


def test_the_search_for_saddles_is_not_fooled_by_a_seed() -> None:
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(6, 3, dtype=torch.float64), dim=-1)
    assert (
        of.jko_step(of.Particles(x, space=of.Sphere()), of.ExponentialInteraction(np.eye(3)), 0.01).status
        == "local"
    )


def test_more_matrices_than_members_are_refused() -> None:
    A = np.stack([np.eye(2), 2 * np.eye(2)])
    for mu in (of.Particles(np.ones((1, 2))), of.Gaussian(np.ones(2), root=I2)):
        for F in (of.QuadraticPotential(A), of.QuadraticInteraction(A)):
            with pytest.raises(of.InputError, match="one number per member"):
                of.SteepestDescent(F, of.Wasserstein())(0.0, mu)
            with pytest.raises(of.InputError, match="one number per member"):
                of.jko_step(mu, F, 0.1)
