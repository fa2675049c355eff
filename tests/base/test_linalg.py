"""Roots at repeated and vanishing eigenvalues; conjugate gradients in a weighted inner product."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from scipy.linalg import sqrtm as scipy_sqrtm
from torch import Tensor

from otflow.base.errors import DerivativeError
from otflow.base.linalg import (
    conjugate_gradient,
    contraction,
    displacement,
    known,
    lyapunov,
    procrustes,
    ratio,
    sqrtm,
    widen,
)
from tests.samples import normal

REPEATED = [(1.0, 1.0, 1.0), (2.0, 2.0, 1.0), (4.0, 1e-3, 1e-3), (3.0, 2.0, 1.0)]


def spd(values: tuple[float, ...], seed: int = 0) -> Tensor:
    turn = np.linalg.qr(normal(len(values), len(values), seed=seed))[0]
    s = (turn * np.array(values)) @ turn.T
    return torch.tensor((s + s.T) / 2)


def root(a: Tensor) -> Tensor:
    """sqrtm as a function of any matrix, so that differences may leave the symmetric ones."""
    return sqrtm((a + a.mT) / 2)


@pytest.mark.parametrize("values", REPEATED)
def test_the_root_is_that_of_scipy(values: tuple[float, ...]) -> None:
    s = spd(values)
    np.testing.assert_allclose(sqrtm(s), scipy_sqrtm(s.numpy()).real, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("values", REPEATED)
def test_the_derivative_of_a_root_is_right_at_repeated_eigenvalues(values: tuple[float, ...]) -> None:
    s = spd(values).requires_grad_()
    assert torch.autograd.gradcheck(root, s, eps=1e-6, atol=1e-5, check_forward_ad=True)


def test_the_derivative_is_right_at_the_identity_of_a_batch() -> None:
    s = torch.eye(2, dtype=torch.float64).repeat(3, 1, 1).requires_grad_()
    assert torch.autograd.gradcheck(root, s, check_forward_ad=True)


def test_the_root_solves_its_lyapunov_equation() -> None:
    """R dR + dR R = dS, with dR by forward mode."""
    s, ds = spd((3.0, 1.0, 1.0)), spd((0.3, -1.0, 2.0), seed=4)
    with forward_ad.dual_level():
        r, dr = forward_ad.unpack_dual(sqrtm(forward_ad.make_dual(s, ds)))
    torch.testing.assert_close(r @ dr + dr @ r, ds, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("values", REPEATED)
def test_a_root_has_second_derivatives(values: tuple[float, ...]) -> None:
    """Differences are off by (eps / smallest eigenvalue)^2, so eps is far below the smallest eigenvalue."""
    assert torch.autograd.gradgradcheck(root, spd(values).requires_grad_(), eps=1e-6, atol=1e-4, rtol=1e-4)


def test_a_lyapunov_equation_is_solved_and_differentiated() -> None:
    r, c = spd((2.0, 1.0, 1.0)), spd((0.3, -1.0, 2.0), seed=4)
    x = lyapunov(r, c)
    torch.testing.assert_close(r @ x + x @ r, c, rtol=1e-13, atol=1e-14)

    def solve(r: Tensor, c: Tensor) -> Tensor:
        return lyapunov((r + r.mT) / 2, (c + c.mT) / 2)

    assert torch.autograd.gradcheck(solve, (r.requires_grad_(), c.requires_grad_()), check_forward_ad=True)


SINGULAR = [(3.0, 2.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 0.0), (0.0, 0.0, 0.0)]


@pytest.mark.parametrize("values", SINGULAR)
def test_a_contraction_solves_its_equation(values: tuple[float, ...]) -> None:
    n = spd(values) @ torch.tensor(np.linalg.qr(normal(3, 3, seed=8))[0])
    m = contraction(n)
    torch.testing.assert_close((torch.eye(3).double() - m @ m.mT) @ n, m, rtol=1e-12, atol=1e-13)


def test_a_contraction_contracts_however_large_its_matrix() -> None:
    m = contraction(torch.diag(torch.tensor([1e12, 1.0, 1e-12], dtype=torch.float64)))
    expected = [1.0, 2 / (1 + 5**0.5), 1e-12]
    torch.testing.assert_close(m, torch.diag(torch.tensor(expected, dtype=torch.float64)), rtol=1e-11, atol=0)


@pytest.mark.parametrize("values", SINGULAR)
def test_a_contraction_is_differentiable_at_equal_and_at_zero_singular_values(
    values: tuple[float, ...],
) -> None:
    n = spd(values) @ torch.tensor(np.linalg.qr(normal(3, 3, seed=8))[0])
    assert torch.autograd.gradcheck(contraction, n.requires_grad_(), check_forward_ad=True)


@pytest.mark.parametrize("values", [(1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)])
def test_at_a_singular_matrix_root_and_gradient_stay_finite(values: tuple[float, ...]) -> None:
    s = spd(values).requires_grad_()
    r = sqrtm(s)
    torch.testing.assert_close(r @ r, s, rtol=0, atol=1e-14)
    r.diagonal().sum().backward()
    assert bool(torch.isfinite(s.grad).all())


def test_the_root_of_a_zero_that_was_rounded_is_zero() -> None:
    for seed in range(20):
        v = normal(3, 1, seed=seed)
        singular = torch.linalg.svdvals(sqrtm(torch.tensor(v @ v.T)))
        assert float(singular[1]) < 1e-15 * float(singular[0])
    small = torch.diag(torch.tensor([1.0, 1e-30], dtype=torch.float64))
    assert float(sqrtm(small)[1, 1]) == pytest.approx(1e-15)  # no rounding, no zero


def test_an_eigenvalue_below_zero_is_taken_for_zero() -> None:
    torch.testing.assert_close(
        sqrtm(torch.diag(torch.tensor([4.0, -1e-9]))), torch.diag(torch.tensor([2.0, 0.0]))
    )


# --- alignment ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "r"), [(1, 1), (3, 3), (5, 2), (2, 4)])
def test_the_least_difference_is_that_of_scipy(d: int, r: int) -> None:
    a, b = normal(d, r), normal(d, r, seed=1)
    u, _ = orthogonal_procrustes(b, a)
    f = procrustes(torch.tensor(a), torch.tensor(b))
    assert float(f.norm()) == pytest.approx(np.linalg.norm(b @ u - a), rel=1e-13)
    if r <= d:  # else the rotation is not unique
        np.testing.assert_allclose(f, b @ u - a, rtol=1e-11, atol=1e-13)


def test_a_small_difference_keeps_its_digits() -> None:
    """B = (I + h S) A with S symmetric is aligned with A; with integers and h = 2^-33, B is exact."""
    rng = np.random.default_rng(0)
    a, s = (torch.tensor(rng.integers(-3, 4, (4, 4)).astype(float)) for _ in range(2))
    b = a + 2.0**-33 * ((s + s.mT) @ a)
    assert float((procrustes(a, b) - (b - a)).norm() / (b - a).norm()) < 1e-12
    assert float(procrustes(a, a).norm()) < 1e-28


ALIGNED = {
    "generic": (normal(3, 3), normal(3, 3, seed=1)),
    "equal singular values": (np.eye(3), 2 * np.eye(3)),
    "narrow": (normal(4, 2), normal(4, 2, seed=1)),
    "close": (normal(3, 3), normal(3, 3) + 1e-3 * normal(3, 3, seed=1)),
    "a batch": (normal(2, 3, 2), normal(2, 3, 2, seed=1)),
}


@pytest.mark.parametrize("name", ALIGNED)
def test_the_least_difference_is_differentiable(name: str) -> None:
    a, b = (torch.tensor(x).requires_grad_() for x in ALIGNED[name])
    assert torch.autograd.gradcheck(procrustes, (a, b), check_forward_ad=True)


def test_zero_columns_may_be_appended_without_harm_to_the_derivative() -> None:
    def covariance_half_way(a: Tensor, b: Tensor) -> Tensor:
        wide = widen(a, 4)
        half = wide + procrustes(wide, widen(b, 4)) / 2
        return half @ half.mT

    a, b = (torch.tensor(normal(3, r, seed=r)).requires_grad_() for r in (2, 3))
    assert torch.autograd.gradcheck(covariance_half_way, (a, b), check_forward_ad=True)


def test_what_is_free_in_an_alignment_stays_where_it_is() -> None:
    """Roots wider than their rank: a small difference keeps its digits, whatever happens in the kernel."""
    a, d = torch.tensor(normal(2, 4)), torch.tensor(normal(2, 4, seed=1))
    slow, fast = (procrustes(a, a + h * d) / h for h in (1e-7, 1e-13))
    torch.testing.assert_close(fast, slow, rtol=0, atol=5e-3)
    first, second = (displacement(a, h * d) / h for h in (1e-9, 1e-20))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-8)
    torch.testing.assert_close(slow, second, rtol=0, atol=1e-6)


def test_ratios_are_zero_where_they_are_not_asked_for() -> None:
    a, b = torch.ones(3, requires_grad=True), torch.tensor([2.0, 0.0, -1.0], requires_grad=True)
    assert ratio(a, b).tolist() == [0.5, 0.0, 0.0]
    assert ratio(a, b, b != 0).tolist() == [0.5, 0.0, -1.0]
    ratio(a, b).sum().backward()
    assert b.grad.tolist() == [-0.25, 0.0, 0.0]


def test_second_derivatives_of_alignment_are_refused() -> None:
    a = torch.tensor(normal(3, 3)).requires_grad_()
    with pytest.raises(DerivativeError, match="second"):
        torch.autograd.grad(procrustes(a, torch.eye(3).double()).sum(), a, create_graph=True)


def test_a_known_value_has_the_derivatives_of_its_formula() -> None:
    x = torch.tensor([1e-20, 2.0], dtype=torch.float64, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return known(torch.log1p(x), torch.log(1 + x))

    assert torch.equal(f(x), torch.log1p(x))
    assert torch.autograd.gradcheck(f, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, x)


# --- conjugate gradients -----------------------------------------------------------------------------


def self_adjoint(n: int, w: np.ndarray, seed: int) -> np.ndarray:
    """M = W^-1 S with S positive definite, self-adjoint in the inner product of w."""
    a = normal(n, n, seed=seed)
    return (a @ a.T + np.eye(n)) / w[:, None]


@given(st.integers(1, 12), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_conjugate_gradients_solve_what_numpy_solves(n: int, seed: int) -> None:
    w = np.random.default_rng(seed).uniform(0.5, 2.0, n)
    M, b = self_adjoint(n, w, seed), normal(n, seed=seed + 1)
    x, used, done = conjugate_gradient(
        lambda p: p @ torch.tensor(M).mT, torch.tensor(b), torch.tensor(w), tol=1e-13, max_iter=20 * n + 20
    )
    assert done
    assert used < 20 * n + 20
    np.testing.assert_allclose(x, np.linalg.solve(M, b), rtol=1e-8, atol=1e-9)


def test_conjugate_gradients_end_after_as_many_products_as_there_are_eigenvalues() -> None:
    w = torch.ones(20, dtype=torch.float64)
    values = torch.tensor([1.0, 2.0, 5.0]).double().repeat(7)[:20]
    x, used, done = conjugate_gradient(lambda p: values * p, w, w, tol=1e-12, max_iter=20)
    assert done
    assert used == 3
    torch.testing.assert_close(x, 1 / values)


def test_members_of_a_batch_are_solved_independently() -> None:
    n, w = 5, np.full(5, 0.2)
    M = np.stack([self_adjoint(n, w, 0), 1e3 * self_adjoint(n, w, 1)])
    b = torch.tensor(normal(2, n))
    x, _, done = conjugate_gradient(
        lambda p: (torch.tensor(M) @ p[..., None])[..., 0], b, torch.tensor(w), tol=1e-13, max_iter=50
    )
    assert done
    for i in range(2):
        np.testing.assert_allclose(x[i], np.linalg.solve(M[i], b[i]), rtol=1e-9, atol=1e-12)


def test_a_zero_right_hand_side_needs_no_product() -> None:
    zero = torch.zeros(4, dtype=torch.float64)
    x, used, done = conjugate_gradient(lambda p: p, zero, zero + 1, tol=1e-10, max_iter=10)
    assert done
    assert used == 0
    assert torch.equal(x, zero)


def test_a_zero_member_does_not_turn_into_nan() -> None:
    b = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    x, _, done = conjugate_gradient(
        lambda p: 2 * p, b, torch.ones(2, dtype=torch.float64), tol=1e-12, max_iter=5
    )
    assert done
    torch.testing.assert_close(x, b / 2)


def test_the_limit_on_products_is_kept() -> None:
    calls = []
    values = torch.linspace(1, 1e6, 50, dtype=torch.float64)

    def matvec(p: Tensor) -> Tensor:
        calls.append(1)
        return values * p

    _, used, done = conjugate_gradient(
        matvec, torch.ones(50).double(), torch.ones(50).double(), tol=1e-14, max_iter=4
    )
    assert not done
    assert used == len(calls) == 4


@pytest.mark.parametrize("values", [(-1.0, -1.0), (1.0, -1.0), (0.0, 0.0), (2.0, 0.0)])
def test_convergence_is_not_claimed_for_an_operator_that_is_not_positive(values: tuple[float, ...]) -> None:
    """The right-hand side (1, 2) is out of the reach of these, or of the method."""
    m, b = torch.tensor(values, dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    x, _, done = conjugate_gradient(lambda p: m * p, b, torch.ones(2).double(), tol=1e-10, max_iter=10)
    assert bool(torch.isfinite(x).all())
    assert done == bool((m * x - b).norm() <= 1e-9 * b.norm())
