"""The figures of Castin et al. can be redrawn, and what their experiments compare is independent."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import otflow as of
from otflow import papers
from otflow.papers.unified import figure1, figure2, runs, sinkhorn
from otflow.reproduce.claim import Result
from otflow.reproduce.frame import Frame

NAMES = ("castin-fig1", "castin-fig2", "castin-l2", "castin-multihead", "castin-sinkhorn")


@cache
def result(name: str) -> Result:
    return papers.REGISTRY.load(name).run(Frame(quick=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_claim_holds_but_for_one_erratum(name: str) -> None:
    others = [claim for claim in result(name).claims if claim.verdict != "holds"]
    assert [claim.verdict for claim in others] == ["erratum found"] * (name == "castin-l2")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_two_claims_say_the_same(name: str) -> None:
    statements = [claim.statement for claim in result(name).claims]
    assert len(set(statements)) == len(statements)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_figure_has_a_title_and_something_drawn_on_all_axes(name: str) -> None:
    (figure,) = result(name).figures.values()
    for i, ax in enumerate(figure.axes):  # type: ignore[attr-defined]
        assert ax.collections or ax.lines
        assert ax.get_title() or ax.get_xlabel().startswith("blow-up time") or i >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_data_are_finite_but_for_blow_up_times(name: str) -> None:
    for key, values in result(name).data.items():
        assert np.isfinite(values).all() or key == "blow_up_time_2d"


@pytest.mark.parametrize("name", ["1a", "1d", "2b", "A3 L2", "A Sinkhorn 2a"])
def test_the_independent_run_and_the_flow_agree(name: str) -> None:
    p = runs.panel(name, quick=True, keep=40)
    S = runs.reference(p, length=0.3, own_time=False).S
    np.testing.assert_allclose(runs.final(runs.follow(p, t1=0.3)), S, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_time_of_its_own_leads_along_the_same_orbits() -> None:
    p = runs.panel("2b", quick=True, keep=400)
    own = runs.reference(p, length=3.0, own_time=True)
    for S0, S, t in zip(p.covariances, own.S, own.t, strict=True):
        field = p.field()
        end = of.flow(of.Gaussian(np.zeros(2), cov=S0), field, of.Dopri5(1e-10, 1e-12), t1=float(t)).final
        np.testing.assert_allclose(end.cov.numpy(), S, rtol=1e-3, atol=1e-5)  # type: ignore[attr-defined]
    np.testing.assert_allclose(runs.final(runs.orbits(p, length=3.0)), own.S, rtol=1e-3, atol=1e-3)


def test_the_limit_of_two_heads_is_reached_by_the_shear_that_they_make() -> None:
    q, S0 = runs.panel("1c", quick=True).Q[0], np.array([[0.7, 0.2], [0.2, 0.3]])
    S = figure1.two_head_limit(S0, q)
    assert abs(S[0] @ q) < 1e-14
    assert S[1, 1] == S0[1, 1]
    tau = -np.log1p(-q[0] * (S0[0] @ q) / (q @ S0 @ q)) / q[0]
    E = expm(-tau * np.outer([1.0, 0.0], q))
    np.testing.assert_allclose(E @ S0 @ E.T, S, atol=1e-13)


@pytest.mark.parametrize("name", ["1a", "A1 L2", "A1 heads", "A Sinkhorn 1a"])
def test_the_profile_solves_its_lyapunov_equation(name: str) -> None:
    p = runs.panel(name, quick=True)
    M = runs.profile(p)
    B = p.rate()(torch.tensor(1e-8 * M)).numpy() * 1e8
    np.testing.assert_allclose(B @ M + M @ B.T, -M, rtol=1e-5, atol=1e-5)


def test_isotropic_lines_are_where_the_quadratic_form_vanishes() -> None:
    A = runs.panel("1d", quick=True).A
    for u in runs.isotropic(A):
        assert abs(u @ A @ u) < 1e-14
        assert np.linalg.norm(u) == pytest.approx(1.0)


@pytest.mark.slow(but_for=["1d"])
@pytest.mark.parametrize("name", ["1d", "2d"])
def test_stable_lines_attract_their_neighbours_and_the_others_do_not(name: str) -> None:
    p = runs.panel(name, quick=True)
    stable = runs.stable_lines(p)
    for u in runs.isotropic(p.A):
        turned = np.array([[np.cos(1e-3), -np.sin(1e-3)], [np.sin(1e-3), np.cos(1e-3)]]) @ u
        S = np.outer(turned, turned) + 1e-8 * np.eye(2)
        rate = p.rate()
        for _ in range(4000):
            E = torch.linalg.matrix_exp(0.01 * rate(torch.from_numpy(S))).numpy()
            S = E @ S @ E.T
        stays = runs.apart(S[None], u[None])[0][0] < 1e-4
        assert stays == any(np.allclose(u, v) for v in stable)


def test_directions_of_blow_up_of_two_heads_are_kept_by_the_flow_of_rank_one() -> None:
    p = runs.panel("2b", quick=True)
    for x in figure2.head_directions(p):
        v = p.rate()(torch.tensor(np.outer(x, x))).numpy() @ x
        assert abs(v[0] * x[1] - v[1] * x[0]) < 1e-13


def test_large_covariances_grow_under_sinkhorn_attention_at_the_rate_of_transport() -> None:
    p = runs.panel("A Sinkhorn 2a", quick=True, keep=100)
    S = 1e8 * p.covariances
    B = p.rate()(torch.tensor(S)).numpy()
    rate = 2 * np.trace(B @ S, axis1=1, axis2=2) / np.trace(S, axis1=1, axis2=2)
    np.testing.assert_allclose(rate, sinkhorn.transport_rate(S, p.A), rtol=1e-5)


def test_a_rank_counts_what_does_not_fall_like_a_power_of_time() -> None:
    p = runs.panel("1b", quick=True)
    traj = runs.follow(p, t1=1e4, save_at=runs.decades(1e4))
    exact = of.closed_forms.softmax_limit_rank(p.covariances, runs.scores(p))
    assert (runs.ranks(traj) == exact.numpy()).all()
