"""JKO steps in the quantile function, against the exact steps of the scheme and against scipy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special, stats

import otflow as of
from otflow.base.errors import InputError
from otflow.base.status import code
from otflow.base.tangent import Tangent
from otflow.energies.internal import DensityBound, Entropy, PorousMedium
from otflow.measures.quantiles import Quantiles, richardson
from otflow.steppers.jko import quantiles as solver
from otflow.steppers.jko.base import Move, MovementProblem, minimise
from tests.samples import slope

Function = Callable[[Any], Any]
WELL = of.Potential(lambda x: (x.square() - 1).square().sum(-1))
SMALL = [0.0, 0.1, 0.3, 0.5, 0.8, 0.9, 1.0]


def parabola(rate: float, centre: float = 0.0) -> of.Potential:
    return of.Potential(lambda x: rate * (x - centre).square().sum(-1) / 2)


def small(*batch: int, seed: int = 0) -> Quantiles:
    gaps = np.random.default_rng(seed).uniform(0.1, 1.0, (*batch, len(SMALL)))
    return Quantiles(gaps.cumsum(-1) - 2, SMALL)


def jko(mu: Quantiles, energy: of.Energy, tau: float, start: Any = None, **options: Any) -> Move:
    return minimise(mu, MovementProblem(energy, of.Wasserstein(), tau, **options), start)


def run(mu: Quantiles, energy: of.Energy, tau: float, steps: int) -> Quantiles:
    state = None
    for _ in range(steps):
        move = jko(mu, energy, tau, state)
        assert int(move.failed) == 0, move.message
        mu, state = move.mu, move.state
    return mu


def error(mu: Quantiles, lower: Function) -> float:
    """W2 to a law symmetric about 0 with quantiles lower(s), s <= 1/2; upper ones by their mass beyond.

    Gauss' rule with ten points in each interval, adaptive quadrature in log s in the tails.
    """
    s, x = mu.levels.numpy(), mu.x.numpy()
    r, w = np.polynomial.legendre.leggauss(10)
    r, w, total = (r + 1) / 2, w / 2, 0.0
    for level, value in ((s, x), (1 - s[::-1], -x[::-1])):
        last = np.searchsorted(level, 0.5) + 1
        level, value = level[:last], value[:last]
        h, d = np.diff(level)[1:, None], np.diff(value)[1:, None]
        total += (h * w * (value[1:-1, None] + d * r - lower(level[1:-1, None] + h * r)) ** 2).sum()
        total += tail(level[1], value[0], value[1], lower)
    return math.sqrt(total)


def tail(s: float, a: float, b: float, lower: Function) -> float:
    def integrand(y: float) -> float:
        return float((a + (b - a) * math.exp(-y) - lower(s * math.exp(-y))) ** 2 * math.exp(-y))

    return float(s * integrate.quad(integrand, 0, 60)[0])


def barenblatt(s: Any) -> Any:
    """The root x in [-1, 0] of (2 + 3 x - x^3) / 4 = s: the quantiles of 3/4 (1 - x^2)."""
    return 2 * np.cos((2 * np.arcsin(np.sqrt(s)) + 4 * np.pi) / 3)


def symmetric(lower: Function) -> Function:
    return lambda s: np.where(s <= 0.5, lower(np.minimum(s, 1 - s)), -lower(np.minimum(s, 1 - s)))


def heat(n: int, tau: float = 0.05, steps: int = 10) -> tuple[Quantiles, Function]:
    sigma = 1.0
    for _ in range(steps):
        sigma = (sigma + math.sqrt(sigma**2 + 4 * tau)) / 2
    start = Quantiles.from_ppf(special.ndtri, n)
    return run(start, Entropy(), tau, steps), lambda s: sigma * special.ndtri(s)


def porous(n: int, tau: float = 0.05, steps: int = 10) -> tuple[Quantiles, Function]:
    """Barenblatt's profile, m = 2, of time one: its radius is (C / k)^(1/2) with k = 1/12 and mass one."""
    radius, R = math.sqrt((3 * math.sqrt(1 / 12) / 4) ** (2 / 3) * 12), 1.0
    start = Quantiles.from_ppf(symmetric(lambda s: radius * barenblatt(s)), n)
    for _ in range(steps):
        R = optimize.brentq(lambda r, R=R: r - R - tau / 3 / r**2, R, R + 1, xtol=1e-15)
    return run(start, PorousMedium(2.0), tau, steps), lambda s: R * radius * barenblatt(s)


# --- against the exact scheme --------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("scheme", "bound"), [(heat, 1e-5), (porous, 3e-6)])
def test_ten_steps_on_a_thousand_levels_follow_the_scheme(scheme: Any, bound: float) -> None:
    sizes = (250, 500, 1000)
    runs = [scheme(n) for n in sizes]
    errors = [error(mu, exact) for mu, exact in runs]
    assert errors[-1] < bound
    assert slope(np.array(sizes), np.array(errors)) == pytest.approx(-2.0, abs=0.05)


@pytest.mark.parametrize(("scheme", "bound"), [(heat, 5e-7), (porous, 1e-7)])
def test_richardson_in_the_mesh_gains_an_order_of_magnitude(scheme: Any, bound: float) -> None:
    (coarse, _), (fine, exact) = scheme(500), scheme(1000)
    assert error(richardson(coarse, fine), exact) < bound


def test_barenblatts_profile_is_what_it_should_be() -> None:
    s = np.array([0.0, 1e-9, 0.1, 0.5])
    x = barenblatt(s)
    np.testing.assert_allclose((2 + 3 * x - x**3) / 4, s, atol=1e-15)
    assert x[0] == pytest.approx(-1.0)


@pytest.mark.parametrize("tau", [0.01, 1.0, 100.0])
def test_one_step_of_fokker_planck_is_the_gaussian_one(tau: float) -> None:
    rate, centre, noise, m, sigma = 0.7, -1.0, 0.3, 2.0, 1.5
    mu = Quantiles.from_ppf(stats.norm(m, sigma).ppf, 1000)
    nu = jko(mu, parabola(rate, centre) + noise * Entropy(), tau).mu
    B, h = 1 + tau * rate, tau * noise
    M = sigma**2 / B
    mean, root = (m + tau * rate * centre) / B, math.sqrt((M + 2 * h + math.sqrt(M * (M + 4 * h))) / 2 / B)
    assert isinstance(nu, Quantiles)
    assert error(nu.at([nu.x - mean]), lambda s: root * special.ndtri(s)) < 2e-5


@pytest.mark.thorough
def test_fokker_planck_arrives_at_the_gibbs_measure() -> None:
    start = Quantiles.from_ppf(stats.uniform(1, 1).ppf, 400)
    end = run(start, parabola(2.0) + 0.5 * Entropy(), 1.0, 15)
    assert error(end, lambda s: 0.5 * special.ndtri(s)) < 5e-5


def test_quadratic_attraction_contracts_to_the_mean() -> None:
    mu, tau = small(2), 0.3
    F = of.Interaction(lambda x, y: (x - y).square().sum(-1) / 2)
    mean = (mu.gram @ torch.ones_like(mu.x) * mu.x).sum(-1, keepdim=True)
    torch.testing.assert_close(jko(mu, F, tau).mu.coords[0], mean + (mu.x - mean) / (1 + tau))


def test_aggregation_against_the_distance_ends_uniform() -> None:
    F = of.Interaction(lambda x, y: ((x - y).square() / 2 - (x - y).abs()).sum(-1))
    end = run(Quantiles.from_ppf(stats.norm(0, 0.3).ppf, 40), F, 1.0, 20)
    assert end.distance(Quantiles([-1.0, 1.0], [0.0, 1.0])).item() < 2e-4


# --- against another minimiser -------------------------------------------------------------------------


ENERGIES: dict[str, of.Energy] = {
    "entropy": Entropy(),
    "porous": PorousMedium(3.0),
    "fast": PorousMedium(0.5),
    "gibbs": parabola(2.0) + 0.3 * Entropy(),
    "well": 0.2 * WELL + PorousMedium(2.0),
    "bell": of.Interaction(lambda x, y: -torch.exp(-(x - y).square().sum(-1))) + 0.2 * Entropy(),
    "crowd": parabola(1.0, 3.0) + DensityBound(0.7),
    "warm crowd": WELL + 0.1 * Entropy() + DensityBound(0.6),
}


def constraint(limit: float) -> dict[str, Any]:
    return {"type": "ineq", "fun": lambda x: np.diff(x) - np.diff(SMALL) / limit}


@pytest.mark.parametrize("name", ENERGIES)
def test_the_step_is_the_minimiser_that_scipy_finds(name: str) -> None:
    mu, F, tau = small(), ENERGIES[name], 0.2
    move = jko(mu, F, tau)
    smooth = solver.Sum([(f, c) for f, c in F.pairs() if not isinstance(f, DensityBound)])
    limits = [f.limit for f, _ in F.pairs() if isinstance(f, DensityBound)]

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        nu = mu.at([torch.from_numpy(x)])
        u = Tangent([nu.x - mu.x])
        g = smooth.differential(nu)[0] + mu.gram @ u[0] / tau
        return (smooth(nu) + mu.inner(u, u) / (2 * tau)).item(), g.numpy()

    first, _ = solver._widened(mu, mu.mass / limits[0]) if limits else (mu.x, None)
    floor = constraint(limits[0]) if limits else constraint(1e9)
    found = optimize.minimize(
        objective, first.numpy(), jac=True, method="SLSQP", constraints=[floor], options={"ftol": 1e-15}
    )
    assert int(move.failed) == 0
    np.testing.assert_allclose(move.mu.coords[0], found.x, atol=2e-6)
    assert float(move.cost) == pytest.approx(mu.distance(move.mu).item() ** 2, rel=1e-12)  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ENERGIES)
def test_every_step_obeys_the_energy_inequality(name: str) -> None:
    tau, F, mu = 0.3, ENERGIES[name], jko(Quantiles.from_ppf(stats.norm.ppf, 80), ENERGIES[name], 0.3).mu
    for _ in range(5):
        move = jko(mu, F, tau)  # type: ignore[arg-type]
        assert int(move.failed) == 0
        assert float(F(move.mu) + move.cost / (2 * tau)) <= float(F(mu)) + 1e-9
        mu = move.mu


@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_two_runs_contract(rate: float) -> None:
    tau, F = 0.4, parabola(rate) + Entropy()
    mu, nu = small(seed=1), small(seed=2)
    before, after = mu.distance(nu), jko(mu, F, tau).mu.distance(jko(nu, F, tau).mu)  # type: ignore[attr-defined]
    assert after.item() <= before.item() / (1 + rate * tau) * (1 + 1e-9)
    shifted = mu.at([mu.x + 1.0])  # a translation contracts exactly so fast
    gap = jko(shifted, F, tau).mu.coords[0] - jko(mu, F, tau).mu.coords[0]
    torch.testing.assert_close(gap, torch.full_like(gap, 1 / (1 + rate * tau)))


# --- crowds --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_crowd_fills_the_ground_at_the_allowed_density() -> None:
    limit, F = 0.8, parabola(1.0) + DensityBound(0.8)
    mu: Any = Quantiles.from_ppf(stats.norm.ppf, 200)
    for _ in range(9):
        move = jko(mu, F, 1.0)
        assert int(move.failed) == 0
        assert move.gap is not None
        assert float(move.gap) <= 1e-9
        mu = move.mu
        assert F(mu).item() < math.inf
    assert mu.distance(Quantiles([-0.5 / limit, 0.5 / limit], [0.0, 1.0])).item() < 1e-3
    assert jko(mu, F, 1.0).cost.item() < 1e-6


def test_a_dense_crowd_is_projected() -> None:
    mu = Quantiles([0.0, 0.5, 1.0], [0.0, 0.5, 1.0])
    nu = jko(mu, DensityBound(0.5), 1.0).mu
    np.testing.assert_allclose(nu.coords[0], [-0.5, 0.5, 1.5], atol=1e-6)


# --- outcomes ------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_members_of_a_batch_are_solved_as_if_alone() -> None:
    mu = small(2, 2)
    for F in (Entropy() + WELL, ENERGIES["bell"], ENERGIES["crowd"]):
        together = jko(mu, F, 0.1)
        assert together.failed.shape == together.cost.shape == together.residual.shape == (2, 2)
        for i, j in np.ndindex(2, 2):
            alone = jko(mu[i, j], F, 0.1)
            torch.testing.assert_close(together.mu.coords[0][i, j], alone.mu.coords[0], atol=1e-7, rtol=0)


def test_a_start_saves_iterations_and_changes_nothing() -> None:
    mu: Any = Quantiles.from_ppf(stats.norm.ppf, 300)
    F = Entropy()
    first = jko(mu, F, 1e-3)
    cold, warm = (jko(first.mu, F, 1e-3, start) for start in (None, first.state))  # type: ignore[arg-type]
    assert warm.iterations < cold.iterations
    torch.testing.assert_close(cold.mu.coords[0], warm.mu.coords[0], atol=1e-7, rtol=0)
    bad = jko(mu, F, 1e-3, torch.full_like(mu.x, math.nan))
    torch.testing.assert_close(bad.mu.coords[0], first.mu.coords[0])


def test_a_long_step_in_a_double_well_is_not_certified() -> None:
    mu = Quantiles.from_ppf(stats.norm.ppf, 200)
    short, long = (jko(mu, WELL + 0.1 * Entropy(), tau) for tau in (0.1, 2.0))
    assert int(short.failed) == 0
    assert short.message == ""
    assert int(long.failed) == code("uncertified")
    assert float(long.residual) < 1e-9
    assert "not positive definite" in long.message


@pytest.mark.thorough
def test_thin_tails_that_must_gather_do_not_hold_up_the_rest() -> None:
    mu: Any = Quantiles.from_ppf(stats.norm.ppf, 500)
    F = PorousMedium(2.0) + of.Potential(lambda x: (x**4).sum(-1) / 4)
    for _ in range(10):
        move = jko(mu, F, 1.0)
        assert int(move.failed) == 0  # also at rest, where only rounding is left
        assert move.iterations < 40
        mu = move.mu
    assert float(move.cost) < 1e-12


def test_too_few_iterations_are_reported() -> None:
    mu = Quantiles.from_ppf(stats.norm.ppf, 100)
    move = jko(mu, PorousMedium(2.0), 100.0, max_iter=2)
    assert int(move.failed) == code("max_iter")
    assert move.iterations == 2
    assert float(move.residual) > 1e-9
    assert "after 2 Newton iterations" in move.message


def test_a_looser_tolerance_is_respected() -> None:
    mu = Quantiles.from_ppf(stats.norm.ppf, 100)
    loose, tight = (jko(mu, PorousMedium(2.0), 1.0, tol=tol) for tol in (1e-2, 1e-9))
    assert loose.iterations < tight.iterations
    assert 1e-9 < float(loose.residual) <= 1e-2
    assert loose.mu.distance(tight.mu).item() < 1e-2  # type: ignore[attr-defined]


def test_the_residual_bounds_the_distance_to_the_minimiser() -> None:
    mu, tau = Quantiles.from_ppf(stats.norm.ppf, 100), 1.0
    exact = jko(mu, Entropy(), tau, tol=1e-12).mu
    for tol in (1e-1, 1e-2, 1e-4):
        move = jko(mu, Entropy(), tau, tol=tol)
        slope_of_f = of.Wasserstein().gradient(move.mu, Entropy().differential(move.mu))
        scale = max(move.mu.inner(slope_of_f, slope_of_f).sqrt().item(), move.cost.sqrt().item() / tau)
        assert move.mu.distance(exact).item() <= 1.1 * tau * scale * float(move.residual)  # type: ignore[attr-defined]


def test_single_precision_gives_the_same_to_single_precision() -> None:
    mu = Quantiles.from_ppf(stats.norm.ppf, 100)
    rough = Quantiles(mu.x.float(), mu.levels)
    for F in (Entropy(), ENERGIES["bell"], parabola(1.0) + DensityBound(0.5)):
        move = jko(rough, F, 0.5)
        assert move.mu.dtype == torch.float32
        assert int(move.failed) == 0
        assert mu.distance(move.mu).item() == pytest.approx(jko(mu, F, 0.5).cost.sqrt().item(), rel=1e-4)  # type: ignore[arg-type]


ONE = torch.ones(1, 1)
ROUGH: dict[str, Callable[[torch.dtype], of.Energy]] = {  # by the precision that they are made for
    "entropy": lambda dtype: Entropy(),
    "porous": lambda dtype: PorousMedium(2.0),
    "porous in a well": lambda dtype: PorousMedium(3.0) + WELL,
    "crowd": lambda dtype: DensityBound(2.0) + of.QuadraticPotential(ONE.to(dtype)),
    "attracting": lambda dtype: Entropy() + of.QuadraticInteraction(ONE.to(dtype)),
    "function of one precision": lambda dtype: (
        Entropy() + of.Potential(lambda x: (x @ ONE.to(dtype)).square().sum(-1) / 2)
    ),
}


@pytest.mark.slow(but_for=["crowd-0.0", "entropy-50.0"])
@pytest.mark.parametrize("far", [0.0, 50.0])
@pytest.mark.parametrize("name", ROUGH)
def test_quantiles_close_to_each_other_are_moved_in_single_precision_as_in_double(
    name: str, far: float
) -> None:
    """Gaps down to 1e-5: in single precision their curvature hid the metric, and a step stood still."""
    if far and "well" in name:
        return
    levels, digits = np.linspace(0, 1, 61), 3e-6 if "function" in name else 3e-7
    for seed in range(3):
        gaps = np.random.default_rng(seed).exponential(size=61) ** 2 / 30 + 3e-5
        x = (far + gaps.cumsum()).astype(np.float32)
        for shake in range(2):
            if shake:  # to one of the neighbours of each number
                x = np.nextafter(x, np.random.default_rng(shake).choice(np.float32([-1e9, 1e9]), x.shape))
            for tau in (1e-3, 1.0):
                single = jko(Quantiles(x, levels), ROUGH[name](torch.float32), tau)
                double = jko(Quantiles(x.astype(float), levels), ROUGH[name](torch.float64), tau)
                assert single.mu.dtype == single.cost.dtype == single.residual.dtype == torch.float32
                assert single.status == double.status
                assert single.cost.item() == pytest.approx(double.cost.item(), rel=1e-5)
                torch.testing.assert_close(
                    single.mu.coords[0].double(), double.mu.coords[0], rtol=digits, atol=digits
                )


def test_a_bound_and_a_function_of_single_precision_leave_four_digits() -> None:
    crowd = [
        DensityBound(2.0) + of.Potential(lambda x, one=one: (x @ one).square().sum(-1) / 2)  # type: ignore[misc]
        for one in (ONE, ONE.double())
    ]
    x, levels = (
        np.sort(np.random.default_rng(0).standard_normal(41)).astype(np.float32),
        np.linspace(0, 1, 41),
    )
    single, double = (
        jko(Quantiles(x, levels), crowd[0], 1.0),
        jko(Quantiles(x.astype(float), levels), crowd[1], 1.0),
    )
    assert single.status == double.status == "ok"
    assert single.cost.item() == pytest.approx(double.cost.item(), rel=1e-4)


def test_a_step_in_single_precision_has_derivatives_in_the_measure() -> None:
    x = small().x.float().requires_grad_()
    wide = x.detach().double().requires_grad_()
    for one in (x, wide):
        jko(Quantiles(one, SMALL), Entropy() + parabola(1.0), 0.2).mu.coords[0].square().sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-5, atol=1e-5)


# --- derivatives ---------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow(but_for=["entropy", "gibbs", "bell"])
@pytest.mark.parametrize("name", ["entropy", "gibbs", "bell", "warm crowd"])
def test_a_step_has_derivatives_in_the_measure(name: str) -> None:
    mu = small()
    x = mu.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: jko(mu.at([x]), ENERGIES[name], 0.2, tol=1e-11).mu.coords[0], x, atol=2e-5
    )


def test_a_step_has_derivatives_in_the_energy() -> None:
    def moved(c: torch.Tensor) -> torch.Tensor:
        F = of.Potential(lambda x: c * (x - 1).square().sum(-1)) + Entropy()
        return jko(small(), F, 0.2, tol=1e-12).mu.coords[0]

    assert torch.autograd.gradcheck(moved, torch.tensor(0.5, dtype=torch.float64, requires_grad=True))


# --- refusals ------------------------------------------------------------------------------------------


def test_what_cannot_be_solved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mu = small()
    with pytest.raises(InputError, match="Wasserstein"):
        minimise(mu, MovementProblem(Entropy(), of.Twisted(), 0.1))
    with pytest.raises(InputError, match="positive factor"):
        jko(mu, Entropy() - DensityBound(1.0), 0.1)
    monkeypatch.setattr(solver, "DENSE", 3)
    with pytest.raises(InputError, match="dense Hessian"):
        jko(mu, ENERGIES["bell"], 0.1)
    assert int(jko(mu, ENERGIES["gibbs"], 0.1).failed) == 0
