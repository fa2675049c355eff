"""Bounds along integrated flows, and the L2 attention that blows up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import otflow.closed_forms as cf
from otflow.base.errors import InputError

TIMES = np.linspace(0, 1.5, 7)


def integrated(rate: Callable[[np.ndarray], torch.Tensor], S0: np.ndarray, times: np.ndarray) -> np.ndarray:
    def field(_: float, s: np.ndarray) -> np.ndarray:
        S = s.reshape(S0.shape)
        return rate((S + S.T) / 2).numpy().ravel()

    out = solve_ivp(field, (0, times[-1]), S0.ravel(), "DOP853", t_eval=times, rtol=1e-11, atol=1e-13)
    return out.y.T.reshape(-1, *S0.shape)


def traces(path: np.ndarray) -> np.ndarray:
    return np.trace(path, axis1=-2, axis2=-1)


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_sinkhorn_stays_below_its_bound(d: int, eps: float) -> None:
    rng = np.random.default_rng(d)
    R, A, V = rng.standard_normal((3, d, d))
    S0, V = R @ R.T, V / np.linalg.norm(V)
    path = integrated(lambda S: cf.sinkhorn_rate(S, A, V, eps=eps), S0, TIMES)
    bound = cf.sinkhorn_trace_bound(S0, V, TIMES, eps=eps).numpy()
    assert (traces(path) <= bound * (1 + 1e-9)).all()


def test_the_bound_of_sinkhorn_is_reached_as_eps_vanishes() -> None:
    # A > 0 and V = I: the plan tends to the identity, x' = x / eps.
    S0, eps, t = np.diag([1.0, 2.0]), 1e-4, 1e-4
    path = integrated(lambda S: cf.sinkhorn_rate(S, np.eye(2), np.eye(2), eps=eps), S0, np.array([0, t]))
    assert traces(path)[-1] == pytest.approx(
        cf.sinkhorn_trace_bound(S0, np.eye(2), t, eps=eps).item(), rel=1e-3
    )


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("sign", [1, -1])
def test_l2_with_injective_keys_stays_below_its_bound(rows: int, sign: int) -> None:
    rng = np.random.default_rng(rows)
    Q, K = rng.standard_normal((2, rows, 2))
    R, V = rng.standard_normal((2, 2, 2))
    S0, V = R @ R.T, sign * V / np.linalg.norm(V)
    path = integrated(lambda S: cf.l2_rate(S, Q, K, V), S0, TIMES / 2)
    assert (traces(path) <= cf.l2_trace_bound(S0, Q, K, V, TIMES / 2).numpy() * (1 + 1e-9)).all()


def test_the_bound_of_l2_is_reached_for_large_covariances() -> None:
    S0, K, V, Q = 1e8 * np.eye(2), 2 * np.eye(2), 0.5 * np.eye(2), 3 * np.eye(2)
    path = integrated(lambda S: cf.l2_rate(S, Q, K, V), S0, np.array([0, 0.4]))
    assert traces(path)[-1] == pytest.approx(cf.l2_trace_bound(S0, Q, K, V, 0.4).item(), rel=1e-6)


def test_no_bound_is_given_for_keys_that_are_not_injective() -> None:
    eye = np.eye(2)
    with pytest.raises(InputError, match="K must be injective"):
        cf.l2_trace_bound(eye, eye[:1], eye[:1], eye, 1.0)
    with pytest.raises(InputError, match="K must be injective"):
        cf.l2_trace_bound(eye, eye, np.diag([1.0, 0.0]), eye, 1.0)


@pytest.mark.parametrize("cross", [0.5, -0.5, 0.0])
def test_the_counterexample_solves_the_equation_of_l2(cross: float) -> None:
    example = cf.l2_counterexample()
    S0 = np.array([[1.0, cross], [cross, 0.7]])
    times = np.array([0.0, 1.0, 2.0, 2.9])
    path = integrated(lambda S: cf.l2_rate(S, example.Q, example.K, example.V), S0, times)
    np.testing.assert_allclose(example.path(S0, times), path, rtol=1e-7, atol=1e-9)


def test_the_counterexample_blows_up_although_the_keys_are_bounded() -> None:
    example = cf.l2_counterexample()
    S0 = np.array([[[1.0, 0.5], [0.5, 1.0]], [[1.0, -0.5], [-0.5, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    assert example.blow_up_time(S0).tolist() == [3.0, np.inf, np.inf]
    assert example.path(S0[0], 0.999 * 3)[0, 1].item() == pytest.approx(500)
    with pytest.raises(InputError, match="blown up"):
        example.path(S0, 3.0)
    with pytest.raises(InputError, match="plane"):
        example.path(np.eye(3), 0.0)
