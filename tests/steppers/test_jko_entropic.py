"""Entropic JKO steps on grids, against convex solvers, closed forms and exact time-discrete flows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import brentq, minimize, minimize_scalar
from scipy.special import wrightomega
from torch import Tensor

import otflow as of
from otflow.energies.internal import DensityBound, Entropy, Internal, PorousMedium
from otflow.steppers.jko.grid.entropic import EntropicJKO, Factor, HeatKernel, log_apply
from otflow.steppers.jko.grid.prox import Split, log_omega, of_mass_one, split

BOWL = of.Potential(lambda x: 4 * (x - 0.6).square().sum(-1))
SPRINGS = of.Interaction(lambda x, y: (x - y).square().sum(-1))
ENERGIES = {
    "entropy": Entropy(),
    "entropy in a bowl": 0.5 * Entropy() + BOWL,
    "slow diffusion": PorousMedium(2.0),
    "slower diffusion in a bowl": 0.3 * PorousMedium(3.5) + BOWL,
    "fast diffusion": PorousMedium(0.5),
    "two diffusions": PorousMedium(2.0) + 0.5 * Entropy(),
    "crowd in a bowl": DensityBound(1.5) + BOWL,
    "bowl": BOWL,
}


def centres(n: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    return low + (high - low) * (np.arange(n) + 0.5) / n


def density(n: int, seed: int = 0, *, batch: tuple[int, ...] = (), vacuum: bool = True) -> of.Grid:
    """A rough density on n cells of [0, 1], a third of them empty."""
    rng = np.random.default_rng(seed)
    rho = rng.exponential(size=(*batch, n)) * ((rng.random((*batch, n)) < 0.67) | (not vacuum))
    return of.Grid(rho / rho.mean(-1, keepdims=True), [centres(n)])


def take(mu: of.Measure, F: of.Energy, stepper: EntropicJKO, dt: float, steps: int = 1) -> of.Trajectory:
    return of.flow(mu, of.SteepestDescent(F, of.Wasserstein()), stepper, t1=steps * dt, dt=dt)


def L1(mu: of.Measure, nu: np.ndarray | Tensor) -> float:
    assert isinstance(mu, of.Grid)
    return float((mu.density - torch.as_tensor(nu)).abs().sum()) * mu.cell


# --- proximal maps ---------------------------------------------------------------------------------------


def test_log_omega_is_the_logarithm_of_wrights_function() -> None:
    x = torch.linspace(-50, 300, 1001, dtype=torch.float64)
    expected = np.log(wrightomega(x.numpy()))
    assert np.abs(log_omega(x).numpy() - expected).max() < 1e-13 * 50
    far = torch.tensor([-1e6, 1e6, 1e12], dtype=torch.float64)
    assert (log_omega(far) + log_omega(far).exp() - far).abs().max() / 1e12 < 1e-15


@pytest.mark.parametrize(
    "U", [None, PorousMedium(2.0), PorousMedium(3.5), PorousMedium(0.5), PorousMedium(1.2)]
)
@pytest.mark.parametrize("entropy", [0.0, 0.7, -0.15])
def test_the_prox_minimises_the_energy_of_a_cell(U: Internal | None, entropy: float) -> None:
    V, log_q = torch.tensor([[-2.0, 0.0, 1.0], [3.0, -9.0, 0.5]], dtype=torch.float64)
    scale, factor = 0.3, 0.8
    got = Split(V, U, factor, entropy).prox(log_q, scale)
    for i in range(3):

        def value(log_r: float, i: int = i) -> float:
            r = torch.tensor(log_r, dtype=torch.float64).exp()
            own = 0.0 if U is None else factor * U.U(r)
            kl = r * (log_r - log_q[i]) - r
            return float(own + entropy * r * log_r + V[i] * r + scale * kl)

        middle = got[i].item()
        best = minimize_scalar(
            value, bounds=(middle - 3, middle + 3), method="bounded", options={"xatol": 1e-10}
        )
        assert middle == pytest.approx(best.x, abs=2e-6)  # half the digits: the minimum is flat


def test_the_prox_of_a_bound_cuts() -> None:
    parts = Split(torch.zeros(3), DensityBound(2.0), 1.0)
    assert parts.prox(torch.tensor([0.0, 0.5, 5.0]), 0.1).exp().tolist() == pytest.approx(
        [1.0, math.exp(0.5), 2.0]
    )


@pytest.mark.parametrize("name", ENERGIES)
def test_the_prox_of_mass_one_differs_by_a_multiplier(name: str) -> None:
    mu = density(40, batch=(3,), vacuum=False)
    parts = split(ENERGIES[name], mu)
    log_q = mu.density.log() + torch.tensor([[-0.3], [0.0], [0.2]])
    rho = of_mass_one(parts, log_q, 0.2, mu)
    assert (rho.sum(-1) * mu.cell - 1).abs().max() < 1e-13
    for i in range(3):
        alone = Split(parts.V[i], parts.internal, parts.factor, parts.entropy)
        t = brentq(
            lambda t, i=i, p=alone: float(p.prox(log_q[i], 0.2, t).exp().mean()) - 1, -60, 60, xtol=1e-14
        )
        assert (alone.prox(log_q[i], 0.2, t).exp() - rho[i]).abs().max() < 1e-11


# --- the kernel ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-2, 1e-4, 1e-6])
def test_the_kernel_is_summed_to_rounding_over_any_range(eps: float) -> None:
    """At eps = 1e-6 of the box the logarithms reach -5e5; products of exponentials would all be 0."""
    rng = np.random.default_rng(1)
    mu = of.Grid(np.ones((2, 20, 30)), [centres(20), centres(30)])
    kernel = HeatKernel.gibbs(mu, eps)
    m = torch.from_numpy(rng.standard_normal((2, 20, 30))) * 0.3 / eps
    m[0, :7], m[1, :, 4] = -math.inf, -math.inf
    x = mu.nodes()[0][0]
    L = (x[:, None] - x).square().sum(-1) / (-2 * eps) + math.log(mu.cell / (2 * math.pi * eps))
    expected = (L + m.reshape(2, 1, 600)).logsumexp(-1).reshape(m.shape)
    assert ((kernel(m) - expected).abs() / expected.abs().clamp(min=1)).max() < 1e-13


def test_an_empty_line_stays_empty() -> None:
    m = torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]], dtype=torch.float64)
    out = log_apply(Factor.of(torch.zeros(2, 2, dtype=torch.float64)), m)
    assert out[0].tolist() == pytest.approx([math.log(2)] * 2)
    assert out[1].tolist() == [-math.inf] * 2


# --- one step --------------------------------------------------------------------------------------------


def direct(mu: of.Grid, F: of.Energy, eps: float, tau: float) -> Tensor:
    """The step by a quasi-Newton method on plans: column j is mu_j times a softmax, so the marginal is mu."""
    x, w = mu.nodes()
    c, filled = (x - x.mT).square() / 2, w > 0
    bound = next((term.limit for term, _ in F.pairs() if isinstance(term, DensityBound)), None)
    rest = [f * term for term, f in F.pairs() if not isinstance(term, DensityBound)]

    def plan(z: Tensor) -> Tensor:
        return (z.reshape(len(w), -1).log_softmax(0) + w[filled].log()).exp()

    def value(z: np.ndarray, penalty: Tensor | float = 0.0) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(z).requires_grad_()
        pi = plan(leaf)
        nu = mu.at([pi.sum(1) / mu.cell])
        total = ((c[:, filled] * pi).sum() + eps * torch.xlogy(pi, pi).sum()) / tau
        total = total + sum(term(nu) for term in rest)
        if bound is not None:  # augmented Lagrangian for nu <= bound
            excess = (penalty + 1e2 * (nu.density - bound)).clamp(min=0)
            total = total + excess.square().sum() / 2e2
        (g,) = torch.autograd.grad(total, leaf)
        return total.item(), g.numpy()

    z, multiplier = (-c[:, filled] / eps).flatten().numpy(), torch.zeros(len(w))
    for _ in range(1 if bound is None else 20):
        options = {"maxiter": 2000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-9}
        z = minimize(value, z, args=(multiplier,), jac=True, method="L-BFGS-B", options=options).x
        nu = plan(torch.from_numpy(z)).sum(1) / mu.cell
        if bound is not None:
            multiplier = (multiplier + 1e2 * (nu - bound)).clamp(min=0)
    return nu


@pytest.mark.thorough
@pytest.mark.slow(but_for=["entropy", "slow diffusion"])
@pytest.mark.parametrize("name", ENERGIES)
def test_a_step_solves_the_convex_problem_over_plans(name: str) -> None:
    mu, eps, tau = density(10), 2e-2, 0.1
    got = take(mu, ENERGIES[name], EntropicJKO(of.Sinkhorn(2 * eps, tol=1e-11)), tau)
    assert L1(got.final, direct(mu, ENERGIES[name], eps, tau)) < 2e-5


@pytest.mark.slow
def test_a_debiased_step_is_one_of_less_entropy() -> None:
    mu, eps, tau = density(10), 2e-2, 0.1
    F = PorousMedium(2.0) + BOWL
    got = take(mu, F, EntropicJKO(of.Sinkhorn(2 * eps, tol=1e-11), debiased=True), tau).final
    assert L1(got, direct(mu, F - eps / (2 * tau) * Entropy(), eps, tau)) < 2e-5
    same = take(mu, F - eps / (2 * tau) * Entropy(), EntropicJKO(of.Sinkhorn(2 * eps, tol=1e-11)), tau).final
    assert L1(got, same.coords[0]) < 1e-10


@pytest.mark.parametrize("name", ENERGIES)
def test_the_plan_is_that_of_sinkhorn_between_the_two_densities(name: str) -> None:
    mu, eps, tau, F = density(24), 5e-3, 0.02, ENERGIES[name]
    traj = take(mu, F, EntropicJKO(of.Sinkhorn(2 * eps, tol=1e-12)), tau)
    (x, a), (_, b) = traj.final.nodes(), mu.nodes()
    C = ((x - x.mT) ** 2).numpy()
    b = b + 1e-300  # its sums of logarithms take no empty cell
    plan = ot.bregman.sinkhorn_log(a.numpy(), b.numpy(), C / 2, eps, stopThr=1e-13, numItermax=100_000)
    expected = F(traj.final) + (C * plan).sum() / (2 * tau) - F(mu)
    gap = traj.certificates["energy_gap"][-1]
    assert gap.item() == pytest.approx(expected.item(), rel=1e-7)


def test_interactions_are_linearised_at_the_old_density() -> None:
    mu = density(32)
    x, w = mu.nodes()
    field = of.Potential(lambda y: ((y - x.mT).square() * w).sum(-1))
    a, b = (
        take(mu, Entropy() + F, EntropicJKO(of.Sinkhorn(2e-3, tol=1e-11)), 0.01).final
        for F in (SPRINGS, field)
    )
    assert L1(a, b.coords[0]) < 1e-10


def test_a_product_density_stays_one_in_three_dimensions() -> None:
    """Entropy and a separable bowl: the step of a product is the product of the steps."""
    sizes = (9, 12, 16)
    lines = [density(n, seed=n) for n in sizes]
    product = torch.einsum("i,j,k->ijk", *(mu.density for mu in lines))
    stepper, F = EntropicJKO(of.Sinkhorn(1e-2, tol=1e-12)), Entropy() + BOWL
    box = of.Grid(product, [mu.axes[0] for mu in lines])
    got = take(box, F, stepper, 0.02).final
    parts = [take(mu, F, stepper, 0.02).final.coords[0] for mu in lines]
    assert L1(got, torch.einsum("i,j,k->ijk", *parts)) < 1e-10


# --- flows -----------------------------------------------------------------------------------------------


def gaussian(x: np.ndarray, s: float) -> np.ndarray:
    return np.exp(-(x**2) / (2 * s**2)) / math.sqrt(2 * math.pi) / s


def blurred(s: float, tau: float, eps: float, weight: float) -> float:
    """The step of weight * entropy from N(0, s^2), over the covariances [[r^2, c], [c, s^2]] of plans."""

    def value(z: np.ndarray) -> float:
        r, c = math.exp(z[0]), math.tanh(z[1]) * math.exp(z[0]) * s
        transport = (r * r + s * s) / 2 - c - eps / 2 * math.log(r * r * s * s - c * c)
        return -weight * math.log(r) + transport / tau

    start = np.array([math.log(s), math.atanh(s**2 / math.sqrt(s**2 * (s**2 + eps)))])
    best = minimize(value, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-15})
    return math.exp(best.x[0])


@pytest.mark.parametrize("debiased", [False, True])
def test_heat_keeps_a_gaussian_with_the_variance_of_the_blurred_scheme(debiased: bool) -> None:
    x, eps, tau = centres(200, -7, 7), 0.05, 0.2
    mu = of.Grid(gaussian(x, 1.0), [x])
    got = take(mu, Entropy(), EntropicJKO(of.Sinkhorn(2 * eps, tol=1e-11), debiased=debiased), tau).final
    s = blurred(1.0, tau, eps, 1 - debiased * eps / (2 * tau))
    assert L1(got, gaussian(x, s)) < 1e-6


@pytest.mark.parametrize(("debiased", "order"), [(False, 1), (True, 2)])
def test_the_error_against_the_exact_scheme_falls_with_eps(debiased: bool, order: int) -> None:
    """Exact JKO of the heat flow: sigma' = (sigma + sqrt(sigma^2 + 4 tau)) / 2."""
    x, tau, s = centres(200, -7, 7), 0.2, 1.0
    for _ in range(3):
        s = (s + math.sqrt(s * s + 4 * tau)) / 2
    mu = of.Grid(gaussian(x, 1.0), [x])
    steppers = [EntropicJKO(2 * eps, debiased=debiased) for eps in (0.08, 0.02)]
    coarse, fine = (L1(take(mu, Entropy(), stepper, tau, 3).final, gaussian(x, s)) for stepper in steppers)
    assert math.log(coarse / fine) / math.log(4) == pytest.approx(order, abs=0.2)


def barenblatt(n: int, R: float) -> of.Grid:
    """The profile of d/dt rho = Laplace rho^2 in the plane, scaled by R; R = t^(1/4) solves the equation."""
    x = centres(n, -0.5, 0.5)
    square = (x[:, None] ** 2 + x**2) / R**2
    rho = np.maximum(math.sqrt(1 / (8 * math.pi)) - square / 16, 0) / R**2
    return of.Grid(rho / rho.mean(), [x, x])


def error(n: int, eps: float, *, debiased: bool = False) -> float:
    """L1 error after six steps of 5e-4 from t = 1e-3; the exact scheme has R' - R = tau / 4 R'^-3."""
    tau, R = 5e-4, 1e-3**0.25
    start = barenblatt(n, R)
    for _ in range(6):
        R = brentq(lambda r, R=R: r - R - tau / 4 * r**-3, R, 2 * R, xtol=1e-15)
    traj = take(
        start, PorousMedium(2.0), EntropicJKO(of.Sinkhorn(2 * eps, tol=1e-7), debiased=debiased), tau, 6
    )
    assert traj.certificates["mass"].max() < 1e-10
    assert traj.final.coords[0].min() >= 0
    return L1(traj.final, barenblatt(n, R).density)


@pytest.mark.thorough
def test_barenblatt_errors_are_those_of_the_published_scheme_and_proportional_to_eps() -> None:
    coarse, fine = error(64, 1e-3), error(64, 3e-4)
    assert (coarse, fine) == (pytest.approx(0.120, rel=0.1), pytest.approx(0.039, rel=0.1))
    assert 0.8 < math.log(coarse / fine) / math.log(10 / 3) < 1.2


@pytest.mark.slow
def test_the_debiased_step_beats_the_plain_one_tenfold_on_barenblatt() -> None:
    assert error(64, 3e-4, debiased=True) < 0.1 * error(64, 3e-4)


@pytest.mark.slow
def test_barenblatt_errors_on_a_fine_grid() -> None:
    errors = [error(128, eps) for eps in (1e-3, 3e-4, 1e-4)]
    assert errors == pytest.approx([0.120, 0.039, 0.013], rel=0.05)
    assert error(128, 1e-4, debiased=True) < 8e-4


@pytest.mark.thorough
def test_a_crowd_goes_down_its_potential_and_is_never_too_dense() -> None:
    x = centres(24)
    rho = 1.0 * ((x[:, None] < 0.6) & (x < 0.8))
    mu = of.Grid(rho / rho.mean(), [x, x])
    exit_ = of.Potential(lambda x: (x[..., 0] - 1).abs() + (x[..., 1] - 0.5).abs())
    traj = take(mu, DensityBound(2.2) + exit_, EntropicJKO(4e-3), 0.05, 8)
    assert max(float(nu.coords[0].max()) for nu in traj.measures) <= 2.2 * (1 + 1e-12)
    assert traj.certificates["mass"].max() < 1e-10
    assert exit_(traj.final) < exit_(mu) - 0.2
    full = (x[:, None] > 0.6) & (np.abs(x - 0.5) < 0.1)
    assert traj.final.coords[0][torch.from_numpy(full)].min() > 2.1


def test_a_box_that_the_bound_fills_is_full() -> None:
    got = take(density(30), DensityBound(1.0), EntropicJKO(4e-3), 0.1).final
    assert (got.coords[0] - 1).abs().max() < 1e-12


def test_members_of_a_batch_go_alone() -> None:
    mu = density(40, batch=(2, 3))
    F, stepper = PorousMedium(3.0) + BOWL + SPRINGS, EntropicJKO(4e-3)
    together = take(mu, F, stepper, 0.01, 2)
    alone = take(mu[1, 2], F, stepper, 0.01, 2)
    assert together.certificates["residual"].shape == (3, 2, 3)
    assert L1(together.final[1, 2], alone.final.coords[0]) < 1e-12


def test_a_warm_start_changes_nothing_but_the_work() -> None:
    mu, stepper = density(60), EntropicJKO(of.Sinkhorn(2e-3, tol=1e-11))
    field = of.SteepestDescent(PorousMedium(2.0), of.Wasserstein())
    t, dt = torch.tensor(0.0), torch.tensor(1e-2)
    first = stepper.step(field, t, dt, mu, of.steppers.Memory())
    again = stepper.step(field, t, dt, mu, first.memory)
    hasty = EntropicJKO(of.Sinkhorn(2e-3, tol=1e-11, max_iter=1)).step(field, t, dt, mu, first.memory)
    assert L1(again.mu, first.mu.coords[0]) < 1e-10
    assert hasty.failed is not None
    assert hasty.failed.item() == 0


def test_single_precision_is_served_in_double() -> None:
    mu = density(32)
    single = of.Grid(mu.density.float(), [mu.axes[0].float()])
    got = take(single, Entropy(), EntropicJKO(2e-3), 0.01).final
    assert got.dtype == torch.float32
    assert L1(take(mu, Entropy(), EntropicJKO(2e-3), 0.01).final, got.coords[0].double()) < 1e-5


def test_at_rest_the_energy_gap_is_the_price_of_the_blur() -> None:
    n, eps, tau = 128, 1e-3, 1e-2
    traj = take(of.Grid(np.ones(n), [centres(n)]), 0.0 * Entropy(), EntropicJKO(2 * eps), tau)
    assert traj.certificates["energy_gap"][-1].item() == pytest.approx(eps / (2 * tau), rel=0.05)  # walls


# --- refusals --------------------------------------------------------------------------------------------


def test_too_few_iterations_are_a_status() -> None:
    field = of.SteepestDescent(PorousMedium(2.0), of.Wasserstein())
    hasty = EntropicJKO(of.Sinkhorn(4e-4, max_iter=5))
    traj = of.flow(density(50), field, hasty, t1=0.1, dt=0.1, on_failure="return")
    assert traj.status == "max_iter"
    assert "after 5 iterations" in traj.message
    with pytest.raises(of.errors.FlowError, match="max_iter"):
        of.flow(density(50), field, hasty, t1=0.1, dt=0.1)


@pytest.mark.parametrize("eps", [0.0, -1.0, math.nan, math.inf, "1"])
def test_a_blur_that_is_no_positive_number_is_refused(eps: float) -> None:
    with pytest.raises(of.InputError, match="eps"):
        EntropicJKO(2 * eps)


@pytest.mark.parametrize(
    ("F", "named"),
    [
        (of.SquaredScores([[1.0]]), "SquaredScores"),
        (-1.0 * PorousMedium(2.0), "PorousMedium"),
        (PorousMedium(2.0) + DensityBound(3.0), "DensityBound"),
        (DensityBound(0.9), "limit"),
        (-1.0 * Entropy(), "Entropy"),
        (of.Potential(lambda x: -x[..., 0].log() + math.inf), "potential"),
    ],
)
def test_energies_without_a_proximal_map_are_refused(F: of.Energy, named: str) -> None:
    with pytest.raises(of.InputError, match=named):
        take(density(20), F, EntropicJKO(2e-3), 0.01)


class Quartic(Internal):
    """An internal energy of somebody else."""

    def U(self, rho: Tensor) -> Tensor:
        return rho**4

    def slope(self, rho: Tensor) -> Tensor:
        return 4 * rho**3

    def density(self, p: Tensor) -> Tensor:
        return (p.clamp(min=0) / 4) ** (1 / 3)

    def on_gaussian(self, logdet: Tensor, d: int) -> Tensor:
        return logdet


def test_a_drift_by_a_third_of_a_cell_is_not_lost_and_a_finer_blur_is_refused() -> None:
    x, h = centres(50), 0.02
    rho = gaussian(x - 0.4, 0.08)
    mu, wind = of.Grid(rho / rho.mean(), [x]), of.Potential(lambda x: -x[..., 0])
    got = take(mu, wind, EntropicJKO(h * h), h / 3, 4).final
    assert (wind(mu) - wind(got)).item() == pytest.approx(4 * h / 3, rel=2e-3)
    with pytest.raises(of.InputError, match="stuck"):
        take(mu, wind, EntropicJKO(h * h / 2), h / 3)


REFUSED: dict[str, tuple[Callable[[], of.Trajectory], type[Exception], str]] = {
    "not a grid": (
        lambda: take(of.Particles([[0.0], [1.0]]), BOWL, EntropicJKO(2e-3), 0.01),
        of.InputError,
        "Grid",
    ),
    "not a steepest descent": (
        lambda: of.flow(density(20), of.Perceptron([[1.0]], [[1.0]]), EntropicJKO(2e-3), t1=1.0, dt=0.1),
        of.InputError,
        "steepest descent",
    ),
    "another metric": (
        lambda: of.flow(
            density(20), of.SteepestDescent(BOWL, of.Twisted()), EntropicJKO(2e-3), t1=1.0, dt=0.1
        ),
        of.InputError,
        "Wasserstein",
    ),
    "gradients": (
        lambda: take(
            density(20).at([density(20).density.requires_grad_()]), Entropy(), EntropicJKO(2e-3), 0.01
        ),
        of.errors.DerivativeError,
        "no gradients",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_step_cannot_do_is_refused(name: str) -> None:
    call, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.thorough
def test_an_internal_energy_of_somebody_else_needs_its_slope_only() -> None:
    """int rho^4 is three times the porous medium of exponent four."""
    found, known = (
        take(density(20), F, EntropicJKO(2e-3), 0.01) for F in (Quartic(), 3 * of.PorousMedium(4.0))
    )
    torch.testing.assert_close(found.final.density, known.final.density, rtol=0, atol=1e-9)
