"""Flows and minimising movements of lambda-convex energies contract W2.

    flow             W2(mu_t, nu_t) <= exp(-lambda t) W2(mu_0, nu_0)
    k JKO steps      W2(mu_k, nu_k) <= (1 + lambda tau)^-k W2(mu_0, nu_0),  1 + lambda tau > 0

The first is Ambrosio, Gigli, Savaré 2008, Theorem 11.2.1. The second is a theorem wherever the step is the
proximal map of a lambda-convex function on a Hilbert space that W2 is a quotient of:

    particles   L2(w; R^d), for potentials and interactions: split atoms along an optimal plan, and move both
                clouds by it; pieces of one atom stay together, since the minimiser is unique
    Gaussians   means and roots, for the same energies: W2 is the least distance between roots
    quantiles   L2(0, 1), also for internal energies, which are convex there on the line

and for entropy plus quadratic energies on Gaussians in every dimension, where roots do not help, since
-log|det R| is not convex. There S' = B^(-1/2) f(B^(-1/2) S B^(-1/2)) B^(-1/2), see `fokker_planck_step`: the
outer maps have the Lipschitz constant (1 + lambda tau)^(-1/2) each, and f, a heat step with h = tau / beta,
does not expand. Between eigenvectors i and j of S, with x = s'_i / h >= 1 and y = s'_j / h >= 1, its
derivative multiplies lengths by the root of (1 + 1/(xy) - 4/(x + y)) / (1 - 1/(xy))^2, which is at most 1
because (3 - 1/(xy)) (1/x + 1/y) <= 4.

Entropy with other potentials on Gaussians in two dimensions is only observed here.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import otflow as of
from otflow import closed_forms

TURN = np.array([[0.8, -0.6], [0.6, 0.8]])
STEPS = 5


def turned(*values: float) -> np.ndarray:
    """A symmetric matrix of the plane with these eigenvalues, the first one along TURN[:, 0]."""
    return TURN @ np.diag(values) @ TURN.T


def descent(energy: of.Energy) -> of.SteepestDescent:
    return of.SteepestDescent(energy, of.Wasserstein())


def jko(mu: of.Measure, nu: of.Measure, energy: of.Energy, tau: float, steps: int = STEPS) -> Tensor:
    """The ratios at k = 0, ..., steps, times (1 + lambda tau)^k at most 1."""
    return of.coupled(mu, nu, descent(energy), of.JKO(), t1=steps * tau, dt=tau).ratios


def slack(ratios: Tensor, lam: float, tau: float) -> float:
    """The largest (1 + lambda tau)^k times the ratio after k steps."""
    k = torch.arange(len(ratios), dtype=torch.float64).reshape(-1, *[1] * (ratios.ndim - 1))
    return float((ratios * (1 + lam * tau) ** k).max())


def flow_slack(found: of.stability.Coupled, lam: float) -> float:
    """The largest exp(lambda t) times the ratio."""
    t = found.ts.reshape(-1, *[1] * (found.ratios.ndim - 1))
    return float((found.ratios * torch.exp(lam * t)).max())


# --- particles -----------------------------------------------------------------------------------------


def bowl(x: Tensor) -> Tensor:
    return x.square().sum(-1).square() / 4 + 0.15 * x.square().sum(-1) + (1 + x[..., 0].exp()).log()


def waves(x: Tensor) -> Tensor:
    return x.cos().sum(-1)


def far_pull(x: Tensor, y: Tensor) -> Tensor:
    return (1 + (x - y).square().sum(-1)).sqrt()


# energy, lambda, whether both clouds must have the same mean
ENERGIES: dict[str, tuple[of.Energy, float, bool]] = {
    "quadratic": (of.QuadraticPotential(turned(0.4, 3.0), [0.3, 0.1]), 0.4, False),
    "bowl": (of.Potential(bowl), 0.3, False),
    "waves": (of.Potential(waves), -1.0, False),
    "saddle": (of.QuadraticPotential(turned(-0.7, 1.0)), -0.7, False),
    "attraction": (of.QuadraticInteraction(turned(0.6, 2.0)), 0.6, True),
    "repulsion": (of.QuadraticInteraction(turned(-0.5, -0.2)), -0.5, True),
    "attraction, any means": (of.QuadraticInteraction(turned(0.6, 2.0)), 0.0, False),
    "potential and interaction": (of.Potential(bowl) + of.Interaction(far_pull), 0.3, False),
}


def clouds(*, centred: bool, weighted: bool) -> tuple[of.Particles, of.Particles]:
    """Two clouds, of different sizes if they have weights."""
    rng = np.random.default_rng(5)
    made = []
    for n in (9, 6 if weighted else 9):
        w = rng.dirichlet(np.ones(n)) if weighted else np.full(n, 1 / n)
        x = rng.normal(size=(n, 2)) @ np.diag([1.0, 0.6]) + rng.normal(size=2)
        made.append(of.Particles(x - w @ x if centred else x, w if weighted else None))
    return made[0], made[1]


@pytest.mark.thorough
@pytest.mark.slow(but_for=["quadratic-*", "saddle-*", "repulsion-*", "bowl-equal weights"])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "other weights"])
@pytest.mark.parametrize("name", ENERGIES)
def test_jko_steps_of_clouds_contract(name: str, weighted: bool) -> None:
    energy, lam, centred = ENERGIES[name]
    mu, nu = clouds(centred=centred, weighted=weighted)
    for tau in (0.1, 0.9, 5.0):
        if 1 + lam * tau > 0:
            assert slack(jko(mu, nu, energy, tau), lam, tau) <= 1 + 1e-9


@pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "other weights"])
@pytest.mark.parametrize("name", ENERGIES)
def test_flows_of_clouds_contract(name: str, weighted: bool) -> None:
    energy, lam, centred = ENERGIES[name]
    mu, nu = clouds(centred=centred, weighted=weighted)
    found = of.coupled(mu, nu, descent(energy), of.RK4(), t1=1.5, dt=0.05, save_at=np.linspace(0, 1.5, 7))
    assert flow_slack(found, lam) <= 1 + 1e-6


# energy, lambda, what is added to a cloud: a shift, or a stretch about its mean
SHARP: dict[str, tuple[of.Energy, float, float, float]] = {
    "quadratic": (of.QuadraticPotential(turned(0.4, 3.0), [0.3, 0.1]), 0.4, 0.7, 0.0),
    "saddle": (of.QuadraticPotential(turned(-0.7, 1.0)), -0.7, 0.7, 0.0),
    "attraction": (of.QuadraticInteraction(turned(0.6, 2.0)), 0.6, 0.0, 0.5),
    "repulsion": (of.QuadraticInteraction(turned(-0.5, -0.2)), -0.5, 0.0, 0.5),
    "attraction, any means": (of.QuadraticInteraction(turned(0.6, 2.0)), 0.0, 0.7, 0.0),
}


@pytest.mark.thorough
@pytest.mark.slow(but_for=["quadratic", "repulsion"])
@pytest.mark.parametrize("name", SHARP)
def test_along_the_weakest_direction_the_bound_is_attained(name: str) -> None:
    energy, lam, shift, stretch = SHARP[name]
    mu, _ = clouds(centred=False, weighted=False)
    along = torch.from_numpy(TURN[:, 0])
    nu = of.Particles(mu.x + shift * along + stretch * ((mu.x - mu.x.mean(0)) @ along)[:, None] * along)
    for tau in (0.1, 1.0):
        k = torch.arange(STEPS + 1, dtype=torch.float64)
        torch.testing.assert_close(jko(mu, nu, energy, tau), (1 + lam * tau) ** -k, rtol=1e-9, atol=0)
    found = of.coupled(mu, nu, descent(energy), of.RK4(), t1=1.0, dt=0.01, save_at=[0.0, 0.5])
    torch.testing.assert_close(found.ratios, torch.exp(-lam * found.ts), rtol=1e-9, atol=0)


def test_clouds_with_other_means_need_not_contract_under_attraction() -> None:
    energy = of.QuadraticInteraction(np.eye(2))
    mu, nu = clouds(centred=False, weighted=False)
    assert jko(mu, nu, energy, 1.0)[-1] > 2.0**-STEPS * 1.5


def test_a_step_beyond_convexity_is_refused() -> None:
    mu, nu = clouds(centred=False, weighted=False)
    with pytest.raises(of.errors.FlowError):
        jko(mu, nu, of.QuadraticPotential(turned(-0.7, 1.0)), 2.0)


# --- Gaussians -----------------------------------------------------------------------------------------


def gaussians(n: int, d: int, seed: int, spread: float = 1.0) -> of.Gaussian:
    """n Gaussians with logarithms of eigenvalues of the size of the spread, no two of them commuting."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((n, d, d)))[0]
    values = np.exp(spread * rng.standard_normal((n, 1, d)))
    return of.Gaussian(rng.standard_normal((n, d)), cov=(Q * values) @ Q.swapaxes(-1, -2))


def matrices(n: int, d: int, seed: int, low: float) -> np.ndarray:
    """n symmetric matrices with the lowest eigenvalue ``low``."""
    a = np.random.default_rng(seed).standard_normal((n, d, d))
    a = a + a.swapaxes(-1, -2)
    return a + (low - np.linalg.eigvalsh(a)[:, :1, None]) * np.eye(d)


@pytest.mark.parametrize("spread", [0.5, 3.0])
@pytest.mark.parametrize("lam", [0.5, 0.0, -0.4])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_jko_steps_of_the_fokker_planck_equation_contract_gaussians(
    d: int, lam: float, spread: float
) -> None:
    n = 100
    energy = of.QuadraticPotential(matrices(n, d, 1, lam)) + 0.7 * of.Entropy()
    mu, nu = gaussians(n, d, 2, spread), gaussians(n, d, 3, spread)
    near = of.Gaussian(mu.mean, cov=mu.cov + 1e-3 * nu.cov)
    for tau in (0.1, 2.0):
        assert slack(jko(mu, nu, energy, tau, 3), lam, tau) <= 1 + 1e-9
        assert slack(jko(mu, near, energy, tau, 3), lam, tau) <= 1 + 1e-7


@pytest.mark.thorough
def test_the_covariance_feels_the_interaction_and_the_mean_does_not() -> None:
    n, d, tau = 200, 3, 0.8
    A, K = matrices(n, d, 1, 0.2), matrices(n, d, 2, 0.5)
    energy = of.QuadraticPotential(A) + of.QuadraticInteraction(K) + of.Entropy()
    mu, nu = gaussians(n, d, 3), gaussians(n, d, 4)
    together = torch.linalg.eigvalsh(torch.from_numpy(A + K))[:, 0]
    k = torch.arange(STEPS + 1)[:, None]
    centred = jko(mu.at([0 * mu.mean, mu.root]), nu.at([0 * nu.mean, nu.root]), energy, tau)
    assert float((centred * (1 + together * tau) ** k).max()) <= 1 + 1e-9
    assert slack(jko(mu, nu, energy, tau), 0.2, tau) <= 1 + 1e-9


def test_the_derivative_of_a_heat_step_has_the_factors_of_the_proof() -> None:
    s, h, size = np.array([0.02, 3.0]), 0.3, 1e-5
    new = closed_forms.heat_step(np.sqrt(s), h).numpy() ** 2
    x, y = new / h
    expected = math.sqrt(1 + 1 / (x * y) - 4 / (x + y)) / (1 - 1 / (x * y))
    mu = of.Gaussian(np.zeros(2), cov=np.diag(s) - size * np.fliplr(np.eye(2)))
    nu = of.Gaussian(np.zeros(2), cov=np.diag(s) + size * np.fliplr(np.eye(2)))
    assert jko(mu, nu, of.Entropy(), h, 1)[-1].item() == pytest.approx(expected, rel=1e-5)


def test_heat_steps_never_part_gaussians_and_hardly_move_broad_ones() -> None:
    a, b = np.meshgrid(*2 * [np.linspace(1e-6, 1, 400)])
    assert ((3 - a * b) * (a + b)).max() <= 4 + 1e-12
    mu, nu = gaussians(500, 2, 1, 4.0), gaussians(500, 2, 2, 4.0)
    ratios = jko(mu, nu, of.Entropy(), 0.5, 2)[-1]
    assert 0.999 < float(ratios.max()) <= 1 + 1e-9


def test_the_fokker_planck_equation_contracts_gaussians_at_the_rate_of_its_potential() -> None:
    n, d, lam = 100, 3, 0.5
    A = matrices(n, d, 5, lam)
    mu, nu = gaussians(n, d, 6), gaussians(n, d, 7)
    for t in (0.1, 1.0, 4.0):
        laws = [closed_forms.fokker_planck(t, m.mean, m.cov, A, np.zeros(d), 1.0) for m in (mu, nu)]
        ratio = of.bures_wasserstein(*(of.Gaussian(mean, cov=S) for mean, S in laws)) / of.bures_wasserstein(
            mu, nu
        )
        assert float(ratio.max()) <= math.exp(-lam * t) * (1 + 1e-9)


@pytest.mark.thorough
def test_its_flow_on_gaussians_contracts_and_a_shift_along_the_weakest_direction_attains_the_rate() -> None:
    field = descent(of.QuadraticPotential(turned(0.4, 3.0)) + of.Entropy())
    mu, nu = gaussians(10, 2, 1, 0.2), gaussians(10, 2, 2, 0.2)
    found = of.coupled(mu, nu, field, of.Dopri5(1e-7, 1e-9), t1=1.0, save_at=[0.0, 0.5])
    assert flow_slack(found, 0.4) <= 1 + 1e-6
    moved = mu.at([mu.mean + torch.from_numpy(TURN[:, 0]), mu.root])
    found = of.coupled(mu, moved, field, of.RK4(), t1=1.0, dt=0.02, save_at=[0.0, 0.5])
    expected = torch.exp(-0.4 * found.ts)[:, None].expand_as(found.ratios)
    torch.testing.assert_close(found.ratios, expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize(
    ("energy", "lam"),
    [
        (of.Potential(bowl), 0.3),
        (of.Potential(bowl) + of.QuadraticInteraction(turned(0.0, 2.0)), 0.3),
        (of.Potential(waves), -1.0),
        (of.Potential(bowl) + of.Entropy(), 0.3),  # the one that is observed and not proved
    ],
    ids=["bowl", "bowl and interaction", "waves", "bowl and entropy"],
)
def test_jko_steps_of_gaussians_contract_in_potentials_that_are_not_quadratic(
    energy: of.Energy, lam: float
) -> None:
    mu, nu, tau = gaussians(1, 2, 1, 0.5), gaussians(1, 2, 2, 0.5), 0.6
    assert slack(jko(mu, nu, energy, tau, 1), lam, tau) <= 1 + 1e-8


# --- densities on the line -----------------------------------------------------------------------------


def line(x: Tensor) -> Tensor:
    return x[..., 0] ** 4 / 12 + 0.2 * x[..., 0].square()


LINE: dict[str, tuple[of.Energy, float]] = {
    "entropy": (of.Entropy() + of.QuadraticPotential([[0.7]]), 0.7),
    "entropy, any potential": (of.Entropy() + of.Potential(line), 0.4),
    "entropy, hill": (of.Entropy() + of.QuadraticPotential([[-0.4]]), -0.4),
    "porous medium": (of.PorousMedium(2.0) + of.QuadraticPotential([[0.7]]), 0.7),
    "fast diffusion": (of.PorousMedium(0.8) + of.Potential(line), 0.4),
}


def densities(n: int) -> tuple[of.Quantiles, of.Quantiles]:
    return (
        of.Quantiles.from_ppf(stats.norm(0.2, 0.6).ppf, n),
        of.Quantiles.from_ppf(stats.gumbel_r(-0.5, 0.8).ppf, n),
    )


@pytest.mark.thorough
@pytest.mark.slow(but_for=["entropy", "porous medium"])
@pytest.mark.parametrize("name", LINE)
def test_jko_steps_of_densities_on_the_line_contract(name: str) -> None:
    energy, lam = LINE[name]
    for tau in (0.1, 1.0):
        assert slack(jko(*densities(40), energy, tau), lam, tau) <= 1 + 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["entropy", "porous medium"])
def test_flows_of_densities_on_the_line_contract(name: str) -> None:
    energy, lam = LINE[name]
    stepper = of.Rosenbrock(1e-6, 1e-9)
    found = of.coupled(*densities(6), descent(energy), stepper, t1=1.0, save_at=[0.0, 0.3])
    assert flow_slack(found, lam) <= 1 + 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["entropy", "entropy, hill", "porous medium"])
def test_a_shift_of_a_density_attains_the_bound(name: str) -> None:
    energy, lam = LINE[name]
    mu, _ = densities(40)
    nu, tau = of.Quantiles(mu.x + 0.5, mu.levels), 0.5
    k = torch.arange(STEPS + 1, dtype=torch.float64)
    torch.testing.assert_close(jko(mu, nu, energy, tau), (1 + lam * tau) ** -k, rtol=1e-8, atol=0)
