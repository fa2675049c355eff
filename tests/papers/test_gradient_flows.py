"""Attention as a gradient flow: every claim holds, none would hold of the wrong field, metric or energy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

import otflow as of
from otflow import closed_forms
from otflow.papers.gradient_flows import reproduce as experiment
from otflow.papers.gradient_flows import runs
from otflow.reproduce.claim import Verdict
from otflow.reproduce.quadrature import scaled

A, EYE = runs.MIXED, runs.EYE


# --- claims that can fail ------------------------------------------------------------------------------


def test_a_field_that_is_not_the_descent_is_found_out() -> None:
    right = runs.case(of.SoftmaxAttention(A, EYE, -A), runs.cloud())
    wrong = right._replace(field=of.SoftmaxAttention(A, EYE, -1.0001 * A))
    assert [c.verdict for c in experiment._descent_claims({"right": [right]})] == [Verdict.HOLDS]
    assert [c.verdict for c in experiment._descent_claims({"wrong": [wrong]})] == [Verdict.FAILS]


def test_softmax_attention_does_not_dissipate_as_a_gradient_in_w2() -> None:
    right = runs.case(of.SoftmaxAttention(A, EYE, -A), runs.cloud())
    plain = of.SteepestDescent(right.descent.energy, of.Wasserstein())
    assert [c.verdict for c in experiment._dissipation_claims({"right": [right]})] == [Verdict.HOLDS]
    wrong = {"wrong": [right._replace(descent=plain)]}
    assert [c.verdict for c in experiment._dissipation_claims(wrong)] == [Verdict.FAILS]


def test_energies_on_the_wrong_sides_are_found_out() -> None:
    case = runs.case(of.SigmoidAttention(runs.DEFINITE, EYE, -runs.DEFINITE), runs.cloud())
    found = runs.follow(case, (0.1,), t1=0.1)
    swapped = {"JKO": found.runs["Euler"], "Euler": found.runs["JKO"]}
    assert found.excess() < 0 < found._replace(runs=swapped).excess()


# --- what is measured ----------------------------------------------------------------------------------


def _covectors(x: np.ndarray, w: np.ndarray, scores: np.ndarray, *, weighed: bool) -> np.ndarray:
    """w v, or Z w v, of softmax attention with V = -A, in numpy."""
    s = x @ scores @ x.T + np.log(w)
    v = -softmax(s, axis=1) @ x @ scores
    return np.asarray((w * (np.exp(s).sum(1) if weighed else 1.0))[:, None] * v)


@pytest.mark.parametrize(("name", "weighed"), [("softmax", False), ("softmax, weighed by Z", True)])
def test_asymmetries_are_those_of_finite_differences(name: str, weighed: bool) -> None:
    mu, h = runs.cloud(), 1e-6
    x, w, scores = mu.x.numpy(), mu.w.numpy(), 2 * A.numpy()

    def column(k: int) -> np.ndarray:
        u = h * np.eye(x.size)[k].reshape(x.shape)
        gap = _covectors(x + u, w, scores, weighed=weighed) - _covectors(x - u, w, scores, weighed=weighed)
        return np.asarray(gap.ravel() / (2 * h))

    J = np.stack([column(k) for k in range(x.size)], 1)
    exact = np.linalg.norm(J - J.T) / np.linalg.norm(J)
    assert runs.asymmetries()[name] == pytest.approx(exact, abs=1e-7)


def test_pairs_are_joined_by_straight_lines_of_roots() -> None:
    mu, nu = runs.pairs(4)
    for t in (0.3, 0.8):
        R = mu.root + t * (nu.root - mu.root)
        torch.testing.assert_close(R @ R.mT, of.transport.bures_geodesic(mu, nu, t).cov, rtol=1e-9, atol=1e-9)


def test_curvatures_are_second_derivatives_of_the_closed_form() -> None:
    mu, nu = runs.pairs(4)
    found = runs.curvatures(4)["of both signs"]["softmax"][1]
    for R, u, value in zip(mu.root, nu.root - mu.root, found, strict=True):

        def G(t: torch.Tensor, R: torch.Tensor = R, u: torch.Tensor = u) -> torch.Tensor:
            return closed_forms.softmax_energy((R + t * u) @ (R + t * u).mT, A)

        second = torch.autograd.functional.hessian(G, torch.tensor(0.5, dtype=torch.float64))
        assert value == pytest.approx(float(second / u.square().sum()), rel=1e-6, abs=1e-8)


def test_the_energy_with_the_wrong_cost_is_the_entropic_cost_of_a_plan_scaled_by_hand() -> None:
    mu, eps = runs.cloud(), runs.EPS
    w, z = mu.w.numpy(), (mu.x @ runs.Q.mT).numpy()
    cost = ((z[:, None] - z) ** 2).sum(-1) / 2
    plan = scaled(-cost / eps, w, w)
    value = (plan * cost).sum() + eps * (plan * np.log(plan / np.outer(w, w))).sum()
    assert float(experiment.WrongCost()(mu)) == pytest.approx(-value / (2 * eps), rel=1e-10)


def test_the_energy_that_is_infinite_at_first_follows_the_explicit_variances() -> None:
    path = runs.infinite_path()
    a, s = np.array([1.0, 0.6]), np.array([2.5, 1.5])
    later = path.t > path.last + 1e-9
    variances = s / (1 + 2 * a**2 * s * path.t[later, None])
    assert np.isinf(path.F[path.t < path.last - 1e-9]).all()
    exact = 0.5 * ((1 - (a * variances) ** 2) ** -0.5).prod(-1)
    np.testing.assert_allclose(path.F[later][1:], exact[1:], rtol=1e-4)


def test_orders_are_read_off_the_last_two_steps() -> None:
    assert runs.order({0.4: 7.0, 0.2: 8.0, 0.1: 1.0}) == pytest.approx(3.0)
