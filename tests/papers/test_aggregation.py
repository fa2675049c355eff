"""What `aggregation` compares with, against scipy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import otflow as of
from otflow.papers.aggregation import runs


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
    run = runs.descend(of.Particles(x), runs.quartic(), ((0.1, 1), (0.2, 1)))
    for k, tau in ((1, 0.1), (2, 0.2)):
        y = implicit(x, tau)
        np.testing.assert_allclose(run.x[k].numpy(), y, atol=1e-9)
        cost = run.certificates["cost"][k - 1]
        np.testing.assert_allclose(cost, np.square(y - x).sum(-1).mean(), rtol=1e-7)
        x = y


def test_no_law_of_a_batch_of_random_ones_has_less_quartic_energy_than_the_ring() -> None:
    x = np.random.default_rng(1).normal(scale=0.4, size=(500, 3, 2))
    assert runs.quartic()(of.Particles(x)).min() > -1 / 12
    angle = 2 * np.pi * np.arange(3) / 3
    ring = np.stack([np.cos(angle), np.sin(angle)], -1) / np.sqrt(3)
    assert float(runs.quartic()(of.Particles(ring))) == pytest.approx(-1 / 12, abs=1e-15)


def test_the_unit_disc_has_the_least_energy_of_all_uniform_discs() -> None:
    """R^2/4 - log(R)/2 + 1/8 for the radius R; points on a spiral of equal areas."""
    k = np.arange(1500) + 0.5
    spiral = np.sqrt(k / 1500)[:, None] * np.stack([np.cos(2.4 * k), np.sin(2.4 * k)], -1)
    found = {R: float(runs.logarithmic()(of.Particles(R * spiral))) for R in (0.8, 1.0, 1.25)}
    for R, value in found.items():
        assert value == pytest.approx(R**2 / 4 - np.log(R) / 2 + 1 / 8, abs=3e-3)
    assert found[1.0] == min(found.values())


def test_the_discrepancy_of_radii_is_kolmogorovs_distance_of_scipy() -> None:
    x = torch.from_numpy(np.random.default_rng(2).uniform(-0.7, 0.7, (40, 2)))
    expected = stats.kstest(x.norm(dim=-1).numpy(), lambda r: np.minimum(r, 1) ** 2).statistic
    assert runs.discrepancy(x) == pytest.approx(expected, abs=1e-12)


def test_the_midpoints_are_the_minimum_on_the_line_among_ordered_positions() -> None:
    rest = of.closed_forms.line_equilibrium(6)[:, None]
    F, least = runs.newtonian_line(), float(runs.newtonian_line()(of.Particles(rest)))
    assert least == pytest.approx(-(1 - 1 / 36) / 6, abs=1e-14)
    moved = rest + torch.from_numpy(np.random.default_rng(3).normal(scale=0.1, size=(200, 6, 1)))
    assert float(F(of.Particles(moved)).min()) > least
