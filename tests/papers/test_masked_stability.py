"""Masked stability and the mean-field limit: claims hold, and what they compare with is right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import expm
from scipy.stats import kstest

import otflow as of
from otflow.papers.masked_stability import long_sequences
from otflow.papers.masked_stability import runs as masked_stability_runs
from otflow.papers.mean_field_limit import runs as mean_field_limit_runs

# --- masked stability ----------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_the_mean_of_bessel_functions_is_a_column_of_a_matrix_exponential(n: int, t: float) -> None:
    C = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    assert masked_stability_runs.bessel_mean(n, t) == pytest.approx(expm(t * C)[:, 0].sum(), rel=1e-9)


def test_the_first_token_is_the_worst_one_at_order_one() -> None:
    C = np.tril(np.ones((50, 50))) / np.arange(1, 51)[:, None]
    assert expm(C).sum(0).argmax() == 0


def test_the_measured_growth_is_that_of_the_matrix_exponential() -> None:
    found = masked_stability_runs.growth((20,))
    C = np.tril(np.ones((20, 20))) / np.arange(1, 21)[:, None]
    first, fading = expm(C)[:, 0], expm(C) @ np.arange(1, 21.0) ** -0.5
    assert found.one[0] == pytest.approx(first.sum(), rel=1e-6)
    assert found.two[0] == pytest.approx(np.linalg.norm(first), rel=1e-6)
    assert found.worst[0] == pytest.approx(
        np.linalg.norm(fading) / np.linalg.norm(np.arange(1, 21.0) ** -0.5), rel=1e-6
    )


def test_without_scores_the_bound_is_hardys_factor_times_time() -> None:
    found = masked_stability_runs.estimate(
        masked_stability_runs.average(), 4.0, 5, 1, np.random.default_rng(0)
    )
    np.testing.assert_allclose(found.bound, 4 / 3 * found.t, rtol=1e-6)


def test_fibres_hold_the_law_of_random_tokens() -> None:
    """The largest gap of distribution functions is half an atom."""
    law = long_sequences.fibred(3, 50)
    for s in law.label.unique().tolist():
        x = law.x[law.label == s].flatten().numpy()
        middle = math.sin(4 * s) / 2
        assert kstest(x, "uniform", args=(middle - 0.5, 1.0)).statistic == pytest.approx(0.01, rel=1e-6)


# --- mean-field limit ----------------------------------------------------------------------------------


def test_quantiles_are_those_of_the_density() -> None:
    for u in (0.1, 0.5, 0.9):
        assert quad(lambda x: (3 + x) / 6, -1, mean_field_limit_runs.quantile(u))[0] == pytest.approx(u)


def test_quantile_tokens_are_at_the_distance_that_calculus_gives() -> None:
    """n^2 W_2^2 tends to int q'^2 / 12 = int 1 / f / 12 dx: each token serves an interval of the law."""
    n = 64
    exact = math.sqrt(quad(lambda x: 6 / (3 + x), -1, 1)[0] / 12) / n
    found = of.wasserstein(mean_field_limit_runs.quantiles(n), mean_field_limit_runs.quantiles(64 * n))
    assert found.item() == pytest.approx(exact, rel=2e-3)


@pytest.mark.slow
def test_independent_tokens_are_at_the_distance_that_theory_gives() -> None:
    """n E W_2^2 tends to int F (1 - F) / f dx (Bobkov and Ledoux 2019)."""
    F, f = (lambda x: ((x + 3) ** 2 / 4 - 1) / 3), (lambda x: (3 + x) / 6)
    exact = quad(lambda x: F(x) * (1 - F(x)) / f(x), -1, 1)[0]
    mu = mean_field_limit_runs.independent(200, (2000,), np.random.default_rng(1))
    square = of.wasserstein(mu, mean_field_limit_runs.quantiles(2000)).square().mean().item()
    assert 200 * square == pytest.approx(exact, rel=0.08)
