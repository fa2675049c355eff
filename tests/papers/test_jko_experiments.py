"""Aggregation and the Ornstein-Uhlenbeck benchmark: claims hold, and what they compare with is right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

import otflow as of
from otflow.papers.aggregation import runs as aggregation_runs
from otflow.papers.ornstein_uhlenbeck import runs as ornstein_uhlenbeck

# --- aggregation -------------------------------------------------------------------------------------


def quartic_gradient(x: np.ndarray) -> np.ndarray:
    z = x[:, None] - x
    return np.asarray(((np.square(z).sum(-1, keepdims=True) - 1) * z).mean(1))


def implicit(x: np.ndarray, tau: float) -> np.ndarray:
    """The root of y + tau grad F(y) = x, by scipy."""

    def miss(y: np.ndarray) -> np.ndarray:
        z = y.reshape(x.shape)
        return np.asarray(z + tau * quartic_gradient(z) - x).ravel()

    return np.asarray(optimize.root(miss, x.ravel(), tol=1e-13).x.reshape(x.shape))


def test_a_descent_by_several_steps_is_the_implicit_euler_scheme() -> None:
    x = np.random.default_rng(0).normal(size=(5, 2))
    run = aggregation_runs.descend(of.Particles(x), aggregation_runs.quartic(), ((0.1, 1), (0.2, 1)))
    for k, tau in ((1, 0.1), (2, 0.2)):
        y = implicit(x, tau)
        np.testing.assert_allclose(run.x[k].numpy(), y, atol=1e-9)
        cost = run.certificates["cost"][k - 1]
        np.testing.assert_allclose(cost, np.square(y - x).sum(-1).mean(), rtol=1e-7)
        x = y


def test_no_law_of_a_batch_of_random_ones_has_less_quartic_energy_than_the_ring() -> None:
    x = np.random.default_rng(1).normal(scale=0.4, size=(500, 3, 2))
    assert aggregation_runs.quartic()(of.Particles(x)).min() > -1 / 12
    angle = 2 * np.pi * np.arange(3) / 3
    ring = np.stack([np.cos(angle), np.sin(angle)], -1) / np.sqrt(3)
    assert float(aggregation_runs.quartic()(of.Particles(ring))) == pytest.approx(-1 / 12, abs=1e-15)


def test_the_unit_disc_has_the_least_energy_of_all_uniform_discs() -> None:
    """R^2/4 - log(R)/2 + 1/8 for the radius R; points on a spiral of equal areas."""
    k = np.arange(1500) + 0.5
    spiral = np.sqrt(k / 1500)[:, None] * np.stack([np.cos(2.4 * k), np.sin(2.4 * k)], -1)
    found = {R: float(aggregation_runs.logarithmic()(of.Particles(R * spiral))) for R in (0.8, 1.0, 1.25)}
    for R, value in found.items():
        assert value == pytest.approx(R**2 / 4 - np.log(R) / 2 + 1 / 8, abs=3e-3)
    assert found[1.0] == min(found.values())


def test_the_discrepancy_of_radii_is_kolmogorovs_distance_of_scipy() -> None:
    x = torch.from_numpy(np.random.default_rng(2).uniform(-0.7, 0.7, (40, 2)))
    expected = stats.kstest(x.norm(dim=-1).numpy(), lambda r: np.minimum(r, 1) ** 2).statistic
    assert aggregation_runs.discrepancy(x) == pytest.approx(expected, abs=1e-12)


def test_the_midpoints_are_the_minimum_on_the_line_among_ordered_positions() -> None:
    rest = of.closed_forms.line_equilibrium(6)[:, None]
    F, least = aggregation_runs.newtonian_line(), float(aggregation_runs.newtonian_line()(of.Particles(rest)))
    assert least == pytest.approx(-(1 - 1 / 36) / 6, abs=1e-14)
    moved = rest + torch.from_numpy(np.random.default_rng(3).normal(scale=0.1, size=(200, 6, 1)))
    assert float(F(of.Particles(moved)).min()) > least


# --- the benchmark -----------------------------------------------------------------------------------


def test_targets_are_drawn_as_the_benchmark_draws_them() -> None:
    """One eigenvalue near d, the others below one, interlacing with uniform numbers; and reproducible."""
    problem = ornstein_uhlenbeck.targets(8)
    low, high = torch.linalg.eigvalsh(problem.S)[:, :-1], torch.linalg.eigvalsh(problem.S)[:, -1]
    assert low.min() > 0
    assert low.max() < 1
    assert ((high > 8) & (high < 9)).all()
    assert torch.equal(problem.S, ornstein_uhlenbeck.targets(8).S)
    assert not torch.allclose(problem.S[0], problem.S[1])


def test_the_divergence_is_the_sum_of_both_integrals() -> None:
    p, q = stats.norm(0.3, 1.2), stats.norm(-0.4, 0.7)
    both = integrate.quad(lambda x: (p.pdf(x) - q.pdf(x)) * (p.logpdf(x) - q.logpdf(x)), -12, 12, limit=200)[
        0
    ]
    one, two = (of.Gaussian([law.mean()], [[law.std()]]) for law in (p, q))
    assert float(ornstein_uhlenbeck.divergence(one, two)) == pytest.approx(both, rel=1e-8)


def test_the_divergence_agrees_with_the_two_of_torch_in_several_dimensions() -> None:
    problem = ornstein_uhlenbeck.targets(3)
    p, q = of.Gaussian.from_cov(problem.b, problem.S), problem.exact()
    one, two = (torch.distributions.MultivariateNormal(law.mean, law.cov) for law in (p, q))
    kl = torch.distributions.kl_divergence
    torch.testing.assert_close(ornstein_uhlenbeck.divergence(p, q), kl(one, two) + kl(two, one))


def test_the_exact_law_solves_the_equations_of_moments() -> None:
    """Against scipy's integrator for m' = -A(m - b), S' = 2 - A S - S A."""
    problem = ornstein_uhlenbeck.targets(2)
    A, b, exact = problem.A[4].numpy(), problem.b[4].numpy(), problem.exact()

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        m, S = y[:2], y[2:].reshape(2, 2)
        return np.concatenate([-A @ (m - b), (2 * np.eye(2) - A @ S - S @ A).ravel()])

    start = np.concatenate([np.zeros(2), np.eye(2).ravel()])
    end = integrate.solve_ivp(rate, (0, ornstein_uhlenbeck.END), start, rtol=1e-11, atol=1e-13).y[:, -1]
    np.testing.assert_allclose(exact.mean[4], end[:2], atol=1e-9)
    np.testing.assert_allclose(exact.cov[4], end[2:].reshape(2, 2), atol=1e-9)
