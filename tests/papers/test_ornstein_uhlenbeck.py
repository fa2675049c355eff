"""What `jko-ou-benchmark` compares with: targets, divergence and exact law, against scipy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import otflow as of
from otflow.papers.ornstein_uhlenbeck import runs


def test_targets_are_drawn_as_the_benchmark_draws_them() -> None:
    """One eigenvalue near d, the others below one, interlacing with uniform numbers; and reproducible."""
    problem = runs.targets(8)
    low, high = torch.linalg.eigvalsh(problem.S)[:, :-1], torch.linalg.eigvalsh(problem.S)[:, -1]
    assert low.min() > 0
    assert low.max() < 1
    assert ((high > 8) & (high < 9)).all()
    assert torch.equal(problem.S, runs.targets(8).S)
    assert not torch.allclose(problem.S[0], problem.S[1])


def test_the_divergence_is_the_sum_of_both_integrals() -> None:
    p, q = stats.norm(0.3, 1.2), stats.norm(-0.4, 0.7)
    both = integrate.quad(lambda x: (p.pdf(x) - q.pdf(x)) * (p.logpdf(x) - q.logpdf(x)), -12, 12, limit=200)[
        0
    ]
    one, two = (of.Gaussian([law.mean()], root=[[law.std()]]) for law in (p, q))
    assert float(runs.divergence(one, two)) == pytest.approx(both, rel=1e-8)


def test_the_divergence_agrees_with_the_two_of_torch_in_several_dimensions() -> None:
    problem = runs.targets(3)
    p, q = of.Gaussian(problem.b, cov=problem.S), problem.exact()
    one, two = (torch.distributions.MultivariateNormal(law.mean, law.cov) for law in (p, q))
    kl = torch.distributions.kl_divergence
    torch.testing.assert_close(runs.divergence(p, q), kl(one, two) + kl(two, one))


def test_the_exact_law_solves_the_equations_of_moments() -> None:
    """Against scipy's integrator for m' = -A(m - b), S' = 2 - A S - S A."""
    problem = runs.targets(2)
    A, b, exact = problem.A[4].numpy(), problem.b[4].numpy(), problem.exact()

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        m, S = y[:2], y[2:].reshape(2, 2)
        return np.concatenate([-A @ (m - b), (2 * np.eye(2) - A @ S - S @ A).ravel()])

    start = np.concatenate([np.zeros(2), np.eye(2).ravel()])
    end = integrate.solve_ivp(rate, (0, runs.END), start, rtol=1e-11, atol=1e-13).y[:, -1]
    np.testing.assert_allclose(exact.mean[4], end[:2], atol=1e-9)
    np.testing.assert_allclose(exact.cov[4], end[2:].reshape(2, 2), atol=1e-9)
