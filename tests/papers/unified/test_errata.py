"""Every claim of the rank histograms, the errata and the sampled Gaussians holds, in the quick version."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad

from otflow import papers
from otflow.papers.unified.parameters import above, first, histograms
from otflow.reproduce.claim import Result, Verdict
from otflow.reproduce.frame import Frame
from otflow.reproduce.quadrature import nodes, normalised, power, scaled

NAMES = ("castin-fig3", "castin-errata", "gaussian-particles")


@pytest.fixture(scope="module", params=NAMES)
def result(request: pytest.FixtureRequest) -> Result:
    fractions: list[float] = []
    found = papers.REGISTRY.load(request.param).run(Frame(True, lambda f, _: fractions.append(f)))
    assert fractions == sorted(fractions)
    assert all(0 <= f <= 1 for f in fractions)
    return found


@pytest.mark.slow
def test_no_claim_fails(result: Result) -> None:
    assert [claim for claim in result.claims if claim.verdict is Verdict.FAILS] == []


@pytest.mark.slow
def test_figures_can_be_written_and_data_are_finite_or_marked(result: Result, tmp_path: object) -> None:
    for name, figure in result.figures.items():
        figure.savefig(f"{tmp_path}/{name}.svg")
    assert result.data
    for name, array in result.data.items():
        assert array.size
        assert name.startswith("behind") or np.isfinite(array).all()


def test_nodes_integrate_polynomials_exactly() -> None:
    S = np.array([[0.8, 0.3], [0.3, 0.4]])
    x, w = nodes(S, 6)
    assert w.sum() == pytest.approx(1.0, abs=1e-13)
    np.testing.assert_allclose(np.einsum("i,ij,ik->jk", w, x, x), S, atol=1e-13)
    fourth = S[0, 0] * S[1, 1] + 2 * S[0, 1] ** 2  # Isserlis
    assert float(w @ (x[:, 0] ** 2 * x[:, 1] ** 2)) == pytest.approx(fourth, abs=1e-12)


def test_a_scaled_plan_has_its_marginals_and_a_score_that_splits_is_scaled_away() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(7))
    score = rng.normal(size=(5, 7))
    plan = scaled(score, a, b)
    np.testing.assert_allclose(plan.sum(1), a, atol=1e-12)
    np.testing.assert_allclose(plan.sum(0), b, atol=1e-12)
    shifted = scaled(score + rng.normal(size=(5, 1)) + rng.normal(size=7), a, b)
    np.testing.assert_allclose(shifted, plan, atol=1e-12)


def test_the_rate_by_nodes_is_the_double_integral_of_softmax_attention_on_the_line() -> None:
    """E[x.v(x)] for N(0, s) and scores axy, by adaptive quadrature of both integrals."""
    s, a = 0.7, 0.6
    x, w = nodes(np.array([[s]]), 30)
    found = power(normalised(a * x @ x.T, w), x, x)

    def density(y: float, z: float) -> float:
        """z.y under the law of z and the tilted law of y, whose normalisation is exp(a^2 s z^2 / 2)."""
        law = np.exp(-(y**2 + z**2) / (2 * s)) / (2 * np.pi * s)
        return float(z * y * law * np.exp(a * y * z - a**2 * s * z**2 / 2))

    exact, _ = dblquad(density, -9, 9, -9, 9, epsabs=1e-10)
    assert found == pytest.approx(2 * exact, rel=1e-8)


def test_eigenvalues_are_counted_above_the_threshold_of_the_figure() -> None:
    S = torch.diag_embed(torch.tensor([[1.0, 0.2, 0.05], [0.11, 0.09, 0.0]]))
    assert above(S).tolist() == [2, 1]


def test_the_first_runs_are_a_picture_of_their_own() -> None:
    panel = histograms()["3", 2, 3]
    few = first(panel, 4)
    assert (panel.V[:4] == few.V).all()
    assert (few.covariances == panel.covariances[:4]).all()
    assert (few.h, few.source) == (panel.h, panel.source)
