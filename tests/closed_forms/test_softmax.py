"""Explicit softmax attention against integrated equations, limits of paths, and each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import otflow.closed_forms as cf
from otflow.base.errors import InputError

SEEDS = [(d, seed) for d in (1, 2, 4, 6) for seed in (0, 1)]


def covariance(rng: np.random.Generator, d: int, rank: int | None = None) -> np.ndarray:
    root = rng.standard_normal((d, rank or d))
    return root @ root.T / d


def negative(rng: np.random.Generator, d: int, rank: int) -> np.ndarray:
    """A with A + A^T <= 0 of the given rank, and a skew part."""
    root, skew = rng.standard_normal((d, rank)), rng.standard_normal((d, d))
    return -root @ root.T + skew - skew.T


def integrated(S0: np.ndarray, A: np.ndarray, V: np.ndarray, t: float) -> np.ndarray:
    """S' = V S A S + S A^T S V^T by an integrator."""

    def rate(_: float, s: np.ndarray) -> np.ndarray:
        S = s.reshape(S0.shape)
        X = V @ S @ A @ S
        return (X + X.T).ravel()

    y = solve_ivp(rate, (0, t), S0.ravel(), "DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
    return y.reshape(S0.shape)


@pytest.mark.parametrize(("d", "seed"), SEEDS)
@pytest.mark.parametrize("fraction", [-0.5, 0.3, 0.9])
def test_the_path_solves_the_equation_of_the_covariance(d: int, seed: int, fraction: float) -> None:
    rng = np.random.default_rng(seed)
    S0, A = covariance(rng, d), rng.standard_normal((d, d))
    both = [cf.softmax_blow_up_time(S0, s * A).item() for s in (1, -1)]
    t = fraction * min(both)
    np.testing.assert_allclose(
        cf.softmax_path(S0, A, t), integrated(S0, A, np.eye(d), t), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_path_of_a_singular_covariance_solves_the_equation_and_keeps_its_rank(rank: int) -> None:
    rng = np.random.default_rng(rank)
    S0, A = covariance(rng, 5, rank), rng.standard_normal((5, 5))
    t = 0.7 * min(1.0, cf.softmax_blow_up_time(S0, A).item())
    S = cf.softmax_path(S0, A, t)
    np.testing.assert_allclose(S, integrated(S0, A, np.eye(5), t), rtol=1e-8, atol=1e-10)
    assert torch.linalg.matrix_rank(S, hermitian=True, rtol=1e-10) == rank


def test_the_inverse_of_the_covariance_falls_linearly_in_a_batch_of_times_and_covariances() -> None:
    rng = np.random.default_rng(0)
    S0 = np.stack([covariance(rng, 3) for _ in range(3)]) + np.eye(3)
    A, t = negative(rng, 3, 2), np.array([[0.0], [1.0], [5.0], [40.0]])
    S = cf.softmax_path(S0, A, t)
    assert S.shape == (4, 3, 3, 3)
    expected = np.linalg.inv(S0) - t[..., None, None] * (A + A.T)
    np.testing.assert_allclose(torch.linalg.inv(S), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("d", "seed"), SEEDS)
def test_the_least_eigenvalue_of_the_inverse_vanishes_at_the_blow_up(d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    S0, A = covariance(rng, d), rng.standard_normal((d, d)) + np.eye(d)
    t = cf.softmax_blow_up_time(S0, A).item()
    inverse = np.linalg.inv(S0)
    assert abs(np.linalg.eigvalsh(inverse - t * (A + A.T))[0]) < 1e-9 * np.linalg.norm(inverse)
    assert np.linalg.eigvalsh(inverse - 0.999 * t * (A + A.T))[0] > 0


def test_only_what_the_covariance_spans_can_blow_up() -> None:
    A = np.diag([5.0, -1.0, 0.25])
    S0 = np.diag([0.0, 1.0, 1.0])
    assert cf.softmax_blow_up_time(S0, A).item() == pytest.approx(2)
    assert cf.softmax_blow_up_time(np.diag([0.0, 1.0, 0.0]), A).item() == torch.inf
    assert cf.softmax_blow_up_time(np.zeros((3, 3)), A).item() == torch.inf


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_kernel_is_not_taken_for_a_slow_blow_up(rank: int) -> None:
    rng = np.random.default_rng(rank)
    A = np.stack([negative(rng, 5, rank) for _ in range(20)])
    S0 = np.stack([covariance(rng, 5) for _ in range(20)])
    assert (cf.softmax_blow_up_time(S0, A) == torch.inf).all()


def test_the_path_past_the_blow_up_is_refused_in_both_directions_of_time() -> None:
    for sign in (1.0, -1.0):
        with pytest.raises(InputError, match=r"blows up at \|t\| = 0.5"):
            cf.softmax_path([[1.0]], [[sign]], [0.1, sign * 0.5])


@pytest.mark.parametrize(("d", "seed"), SEEDS)
def test_the_rescaled_path_tends_to_the_profile_at_first_order(d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    S0, A = covariance(rng, d, max(1, d - 1)), rng.standard_normal((d, d)) + np.eye(d)
    T = cf.softmax_blow_up_time(S0, A)
    profile, u = cf.softmax_blow_up_profile(S0, A), cf.softmax_blow_up_direction(S0, A)
    torch.testing.assert_close(profile, T * torch.outer(u, u), rtol=1e-10, atol=1e-12)
    gaps = [(h * T * cf.softmax_path(S0, A, (1 - h) * T) - profile).norm().item() for h in (1e-3, 1e-5)]
    assert gaps[0] < profile.norm()
    assert gaps[1] < 0.011 * gaps[0] + 1e-9


def test_a_repeated_top_eigenvalue_blows_up_in_all_its_directions() -> None:
    S0, A = np.diag([1.0, 4.0, 1.0]), np.diag([4.0, 1.0, 1.0])
    profile = cf.softmax_blow_up_profile(S0, A)
    torch.testing.assert_close(profile, torch.diag(torch.tensor([1.0, 4.0, 0.0], dtype=torch.float64)) / 8)
    with pytest.raises(InputError, match="several directions"):
        cf.softmax_blow_up_direction(S0, A)


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("rank", [1, 2])
def test_the_limit_of_an_invertible_covariance_is_the_formula_on_the_kernel(d: int, rank: int) -> None:
    rng = np.random.default_rng(d)
    S0, A = covariance(rng, d) + 0.1 * np.eye(d), negative(rng, d, rank)
    N = np.linalg.svd(A + A.T)[2][rank:].T
    expected = N @ np.linalg.inv(N.T @ np.linalg.inv(S0) @ N) @ N.T
    np.testing.assert_allclose(cf.softmax_limit(S0, A), expected, rtol=1e-9, atol=1e-11)
    assert cf.softmax_limit_rank(S0, A).item() == d - rank == cf.softmax_limit_rank_bound(A).item()


@pytest.mark.parametrize(("covered", "rank"), [(1, 1), (2, 1), (3, 2), (4, 3), (3, 5), (5, 5)])
def test_the_limit_of_a_singular_covariance_is_where_the_path_goes(covered: int, rank: int) -> None:
    rng = np.random.default_rng(10 * covered + rank)
    S0, A = covariance(rng, 5, covered), negative(rng, 5, rank)
    limit = cf.softmax_limit(S0, A)
    gaps = [(cf.softmax_path(S0, A, t) - limit).norm().item() for t in (1e5, 1e6)]
    assert gaps[0] < 1e-2
    assert gaps[1] < 0.11 * gaps[0] + 1e-9
    expected = max(0, covered - rank)
    assert cf.softmax_limit_rank(S0, A).item() == expected
    assert (torch.linalg.eigvalsh(limit) > 1e-8).sum() == expected


def test_a_badly_scaled_covariance_does_not_hide_what_falls() -> None:
    S0, A = np.diag([1.0, 1e-6]), -np.diag([1.0, 1e-6])
    torch.testing.assert_close(cf.softmax_limit(S0, A), torch.zeros(2, 2, dtype=torch.float64))
    assert cf.softmax_limit_rank(S0, A).item() == 0


def test_limits_of_a_batch_have_ranks_of_their_own() -> None:
    S0 = np.stack([np.eye(2), np.diag([1.0, 0.0]), np.zeros((2, 2))])
    A = np.stack([np.zeros((2, 2)), np.diag([-1.0, 0.0]), -np.eye(2)])
    assert cf.softmax_limit_rank(S0[:, None], A).tolist() == [[2, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_no_limit_is_given_to_a_flow_that_blows_up() -> None:
    for f in (cf.softmax_limit, cf.softmax_limit_rank):
        with pytest.raises(InputError, match="<= 0"):
            f(np.eye(2), np.diag([-1.0, 0.5]))
    with pytest.raises(InputError, match="A \\+ A\\^T <= 0"):
        cf.softmax_limit_rank_bound(np.eye(2))
    with pytest.raises(InputError, match="no blow-up"):
        cf.softmax_blow_up_profile(np.eye(2), -np.eye(2))


@pytest.mark.parametrize("d", [1, 2, 4])
def test_softmax_with_another_v_blows_up_before_the_bound(d: int) -> None:
    rng = np.random.default_rng(d)
    S0, V = covariance(rng, d), covariance(rng, d) + 0.2 * np.eye(d)
    skew = rng.standard_normal((d, d))
    A = covariance(rng, d) + 0.2 * np.eye(d) + skew - skew.T
    bound = cf.softmax_blow_up_bound(S0, A, V).item()

    def rate(_: float, s: np.ndarray) -> np.ndarray:
        X = V @ s.reshape(d, d) @ A @ s.reshape(d, d)
        return (X + X.T).ravel()

    def large(_: float, s: np.ndarray) -> float:
        return float(np.trace(s.reshape(d, d)) - 1e6)

    large.terminal = True  # type: ignore[attr-defined]
    out = solve_ivp(rate, (0, 2 * bound), S0.ravel(), "DOP853", rtol=1e-9, events=large)
    assert out.status == 1
    assert out.t[-1] <= bound * (1 + 1e-6)  # equal on the line


def test_the_bound_is_sharp_for_multiples_of_the_identity() -> None:
    S0, A, V = 2 * np.eye(3), 0.7 * np.eye(3), np.eye(3)
    torch.testing.assert_close(cf.softmax_blow_up_bound(S0, A, V), cf.softmax_blow_up_time(S0, A))


@pytest.mark.parametrize(("d", "seed"), SEEDS)
def test_the_lyapunov_function_changes_at_its_rate_along_the_flow(d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    S, A, V = covariance(rng, d), rng.standard_normal((d, d)), covariance(rng, d) + 0.3 * np.eye(d)
    h = 1e-4
    ends = [cf.softmax_lyapunov(integrated(S, A, V, s), V).item() for s in (h, -h)]
    slope = (ends[0] - ends[1]) / (2 * h)
    assert slope == pytest.approx(cf.softmax_lyapunov_rate(S, A).item(), rel=1e-4, abs=1e-5)


def test_the_path_can_be_differentiated_even_at_a_singular_covariance() -> None:
    rng = np.random.default_rng(0)
    S0, A = torch.as_tensor(covariance(rng, 3, 2)), torch.as_tensor(negative(rng, 3, 2))
    leaves = [x.clone().requires_grad_() for x in (A, torch.tensor(0.4, dtype=torch.float64))]
    assert torch.autograd.gradcheck(lambda a, t: cf.softmax_path(S0, a, t), leaves)
    bump = torch.as_tensor(covariance(rng, 3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda b: cf.softmax_path(S0 + b @ b.mT, A, 0.4), [bump])
    near = torch.zeros((), dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(cf.softmax_path(S0 + near * torch.eye(3), A, 0.4).sum(), near)[0]
    ends = [cf.softmax_path(S0 + h * torch.eye(3), A, 0.4).sum() for h in (0.0, 1e-6)]
    assert slope.item() == pytest.approx((ends[1] - ends[0]).item() / 1e-6, rel=1e-4)


def test_blow_up_times_and_limits_can_be_differentiated() -> None:
    rng = np.random.default_rng(1)
    root = torch.as_tensor(rng.standard_normal((3, 3))).requires_grad_()
    A = torch.as_tensor(rng.standard_normal((3, 3)) + np.eye(3)).requires_grad_()
    assert torch.autograd.gradcheck(lambda r, a: cf.softmax_blow_up_time(r @ r.mT, a), [root, A])
    fixed = negative(rng, 3, 1)
    assert torch.autograd.gradcheck(
        lambda r: cf.softmax_lyapunov(r @ r.mT + torch.eye(3), r @ r.mT + torch.eye(3) * 2), [root]
    )
    assert cf.softmax_limit(root @ root.mT, fixed).requires_grad


def test_the_largest_entry_of_the_direction_is_positive_whatever_the_eigenvectors_are() -> None:
    rng = np.random.default_rng(4)
    R = rng.standard_normal((50, 3, 3))
    u = cf.softmax_blow_up_direction(R @ R.swapaxes(-1, -2), np.eye(3))
    assert (u.amax(-1) >= u.amin(-1).abs()).all()
