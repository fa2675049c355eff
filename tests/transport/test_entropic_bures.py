"""Entropic transport between Gaussians: Sinkhorn's iteration, 80 digits, conditions of optimality, laws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import otflow as of
from otflow.base.errors import DerivativeError, InputError
from otflow.transport.bures.geometry import bures_map, bures_wasserstein
from tests.samples import normal

Array = np.ndarray
EPS = [1e-12, 1e-6, 1e-2, 1.0, 1e3, 1e12]
RANKS = [(1, 1, 1), (2, 2, 2), (3, 3, 3), (3, 2, 3), (3, 1, 2), (4, 2, 2), (2, 5, 3)]


def gaussian(d: int, r: int, seed: int = 0) -> of.Gaussian:
    return of.Gaussian(normal(d, seed=seed), root=normal(d, r, seed=seed + 1))


def near(mu: of.Gaussian, h: float) -> of.Gaussian:
    return of.Gaussian(mu.mean, root=mu.root + h * torch.tensor(normal(*mu.root.shape, seed=9)))


def exact(a: Tensor) -> mpmath.matrix:
    return mpmath.matrix(a.tolist())


def singular_values(n: mpmath.matrix) -> list[Any]:
    g = n.T * n
    return [mpmath.sqrt(max(x, 0)) for x in mpmath.eigsy((g + g.T) / 2, eigvals_only=True)]


def textbook(mu: of.Gaussian, nu: of.Gaussian, eps: float) -> tuple[Any, Any]:
    """Value and transport cost with tau_i = ((eps^2 + 16 s_i^2)^(1/2) - eps) / (4 s_i), with 80 digits."""
    a, b, e = exact(mu.root), exact(nu.root), mpmath.mpf(eps)
    s = [x for x in singular_values(a.T * b) if x > mpmath.mpf(10) ** -35]
    tau = [(mpmath.sqrt(e**2 + 16 * x**2) - e) / (4 * x) for x in s]
    cost = sum(x * x for x in [*a, *b, *(exact(mu.mean[:, None]) - exact(nu.mean[:, None]))])
    cost -= 2 * sum(x * t for x, t in zip(s, tau, strict=True))
    return cost - e / 2 * sum(mpmath.log(1 - t**2) for t in tau), cost


def relative_error(found: Tensor, true: Any) -> float:
    return float(abs(mpmath.mpf(float(found)) / true - 1))


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("ranks", RANKS)
def test_value_and_cost_are_those_of_the_textbook(ranks: tuple[int, int, int], eps: float) -> None:
    d, r1, r2 = ranks
    mu, nu = gaussian(d, r1), gaussian(d, r2, seed=4)
    plan = of.sinkhorn(mu, nu, eps)
    with mpmath.workdps(80):
        value, cost = textbook(mu, nu, eps)
        assert relative_error(plan.regularised_cost, value) < 1e-13
        assert relative_error(plan.cost, cost) < 1e-13


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("h", [1.0, 1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("ranks", [(1, 1), (2, 2), (3, 3), (4, 2), (2, 3), (2, 5)])
def test_value_and_divergence_keep_their_digits_when_roots_are_close(
    ranks: tuple[int, int], h: float, eps: float
) -> None:
    mu = gaussian(*ranks)
    nu = near(mu, h)
    with mpmath.workdps(80):
        both, first, second = (textbook(x, y, eps)[0] for x, y in ((mu, nu), (mu, mu), (nu, nu)))
        assert relative_error(of.sinkhorn(mu, nu, eps).regularised_cost, both) < 1e-13
        assert relative_error(of.sinkhorn_divergence(mu, nu, eps), both - (first + second) / 2) < 1e-12


@pytest.mark.parametrize("h", [1e-2, 1e-4, 1e-6])
def test_the_divergence_of_turned_roots_is_as_good_as_their_rounding(h: float) -> None:
    mu = gaussian(3, 3)
    turn = torch.tensor(np.linalg.qr(normal(3, 3, seed=8))[0])
    nu = of.Gaussian(mu.mean, root=near(mu, h).root @ turn)
    with mpmath.workdps(80):
        both, first, second = (textbook(x, y, 0.1)[0] for x, y in ((mu, nu), (mu, mu), (nu, nu)))
        true = both - (first + second) / 2
        assert relative_error(of.sinkhorn_divergence(mu, nu, 0.1), true) < 1e-14 / h


# --- the plan ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.1, 1.0, 30.0])
def test_the_plan_is_a_kernel_scaled_by_functions_of_either_point(eps: float) -> None:
    """exp(-|x - y|^2 / eps) f(x) g(y): the off-diagonal block of the precision is -2 I / eps."""
    mu, nu = gaussian(3, 3), gaussian(3, 3, seed=4)
    plan = of.sinkhorn(mu, nu, eps)
    joint = np.block([[mu.cov.numpy(), plan.cross.numpy()], [plan.cross.numpy().T, nu.cov.numpy()]])
    np.testing.assert_allclose(np.linalg.inv(joint)[:3, 3:], -2 / eps * np.eye(3), rtol=1e-7, atol=1e-7 / eps)
    entropy = [np.linalg.slogdet(x)[1] for x in (mu.cov.numpy(), nu.cov.numpy(), joint)]
    kl = (entropy[0] + entropy[1] - entropy[2]) / 2
    assert float(plan.regularised_cost - plan.cost) == pytest.approx(eps * kl, rel=1e-9)
    # E[y | x] by the regression formula
    slope = np.linalg.solve(mu.cov.numpy(), plan.cross.numpy()).T
    np.testing.assert_allclose(plan.map.matrix, slope, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(plan.map(mu.mean[None])[0], nu.mean)


def sinkhorn(x: Array, y: Array, w: Array, v: Array, eps: float) -> Array:
    """The optimal plan between weighted points, by the plain iteration in the log domain."""
    k = -((x[:, None] - y[None]) ** 2).sum(-1) / eps
    g = np.zeros(len(y))
    for _ in range(2000):
        f = -logsumexp(k + (g + np.log(v))[None], axis=1)
        g = -logsumexp(k + (f + np.log(w))[:, None], axis=0)
    return np.exp(k + (f + np.log(w))[:, None] + (g + np.log(v))[None])


@pytest.mark.thorough
@pytest.mark.slow(but_for=["1-1-1", "2-1-1"])
@pytest.mark.parametrize(("d", "r1", "r2"), [(1, 1, 1), (2, 1, 1), (2, 2, 1)])
def test_sinkhorn_on_quadrature_nodes_finds_the_same_plan(d: int, r1: int, r2: int) -> None:
    mu = of.Gaussian(0.3 * normal(d), root=0.5 * normal(d, r1, seed=1))
    nu = of.Gaussian(0.3 * normal(d, seed=2), root=0.6 * normal(d, r2, seed=3))
    (x, w), (y, v) = ((a.numpy() for a in g.nodes()) for g in (mu, nu))
    eps, plan = 1.5, of.sinkhorn(mu, nu, 1.5)
    p = sinkhorn(x, y, w, v, eps)
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)
    kl = (p * np.log(p / (w[:, None] * v[None]))).sum()
    assert float(plan.cost) == pytest.approx((p * cost).sum(), rel=1e-7)
    assert float(plan.regularised_cost) == pytest.approx((p * cost).sum() + eps * kl, rel=1e-7)
    cross = (x - mu.mean.numpy()).T @ p @ (y - nu.mean.numpy())
    np.testing.assert_allclose(plan.cross, cross, atol=1e-7)
    middle = w > 1e-8
    np.testing.assert_allclose(plan.map(x)[middle], ((p @ y) / w[:, None])[middle], atol=1e-5)


def test_pot_finds_the_same_value_on_a_line() -> None:
    mu, nu = of.Gaussian([0.2], root=[[0.7]]), of.Gaussian([-0.1], root=[[0.4]])
    x = np.linspace(-4, 4, 201)
    a, b = (np.exp(-((x - float(g.mean)) ** 2) / (2 * float(g.cov))) for g in (mu, nu))
    a, b = a / a.sum(), b / b.sum()
    cost = (x[:, None] - x[None]) ** 2
    p = ot.sinkhorn(a, b, cost, 0.5, method="sinkhorn_log", stopThr=1e-12)
    assert float(of.sinkhorn(mu, nu, 0.5).cost) == pytest.approx((p * cost).sum(), rel=1e-6)


# --- limits ------------------------------------------------------------------------------------------


def test_without_noise_everything_is_that_of_unregularised_transport() -> None:
    mu, nu = gaussian(3, 3), gaussian(3, 3, seed=4)
    plan = of.sinkhorn(mu, nu, 1e-12)
    w = bures_wasserstein(mu, nu)
    torch.testing.assert_close(plan.regularised_cost, w**2, rtol=1e-9, atol=0)
    torch.testing.assert_close(plan.cost, w**2, rtol=1e-9, atol=0)
    torch.testing.assert_close(plan.map.matrix, bures_map(mu, nu).matrix, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(of.sinkhorn_divergence(mu, nu, 1e-12), w**2, rtol=1e-9, atol=0)


def test_with_nothing_but_noise_the_points_are_independent() -> None:
    mu, nu = gaussian(3, 3), gaussian(3, 2, seed=4)
    plan = of.sinkhorn(mu, nu, 1e12)
    shift = (mu.mean - nu.mean).square().sum()
    independent = shift + mu.root.square().sum() + nu.root.square().sum()
    for x in (plan.regularised_cost, plan.cost):
        torch.testing.assert_close(x, independent, rtol=1e-10, atol=0)
    torch.testing.assert_close(1e12 * plan.cross, 2 * mu.cov @ nu.cov, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(1e12 * plan.map.matrix, 2 * nu.cov, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(of.sinkhorn_divergence(mu, nu, 1e12), shift, rtol=1e-9, atol=0)


@pytest.mark.parametrize("eps", EPS)
def test_points_have_no_blur(eps: float) -> None:
    zero = np.zeros((3, 2))
    mu, nu = of.Gaussian(normal(3), root=zero), of.Gaussian(normal(3, seed=2), root=zero)
    square = (mu.mean - nu.mean).square().sum()
    plan = of.sinkhorn(mu, nu, eps)
    for x in (plan.regularised_cost, plan.cost, of.sinkhorn_divergence(mu, nu, eps)):
        torch.testing.assert_close(x, square, rtol=1e-14, atol=0)
    assert not plan.cross.any()
    assert not plan.map.matrix.any()


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
def test_only_the_ratio_of_noise_and_covariance_matters(scale: float) -> None:
    mu, nu = gaussian(3, 3), gaussian(3, 2, seed=4)
    big = [of.Gaussian(scale * g.mean, root=scale * g.root) for g in (mu, nu)]
    one, other = of.sinkhorn(mu, nu, 0.3), of.sinkhorn(*big, 0.3 * scale**2)
    torch.testing.assert_close(
        other.regularised_cost / scale / scale, one.regularised_cost, rtol=1e-12, atol=0
    )
    torch.testing.assert_close(other.map.matrix, one.map.matrix, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        of.sinkhorn_divergence(*big, 0.3 * scale**2) / scale / scale,
        of.sinkhorn_divergence(mu, nu, 0.3),
        rtol=1e-12,
        atol=0,
    )


def test_float32_and_batches_come_back_as_they_went_in() -> None:
    mu = of.Gaussian(normal(2, 1, 3).astype(np.float32), root=normal(2, 1, 3, 3).astype(np.float32))
    nu = of.Gaussian(normal(4, 3, seed=2).astype(np.float32), root=normal(4, 3, 2, seed=3).astype(np.float32))
    plan = of.sinkhorn(mu, nu, 0.5)
    shapes = [tuple(x.shape) for x in (plan.regularised_cost, plan.cost, plan.cross, plan.map.matrix)]
    assert shapes == [(2, 4), (2, 4), (2, 4, 3, 3), (2, 4, 3, 3)]
    assert plan.regularised_cost.dtype == plan.cross.dtype == plan.map.matrix.dtype == torch.float32
    s = of.sinkhorn_divergence(mu, nu, 0.5)
    assert (s.dtype, tuple(s.shape)) == (torch.float32, (2, 4))
    alone = of.sinkhorn(mu[1, 0], nu[2], 0.5)
    torch.testing.assert_close(plan.regularised_cost[1, 2], alone.regularised_cost)


@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan"), float("inf"), 1e-320])
def test_noise_that_is_not_positive_is_refused(eps: float) -> None:
    mu = of.Gaussian(np.zeros(2), root=1e10 * np.eye(2))
    for f in (of.sinkhorn, of.sinkhorn_divergence):
        with pytest.raises(InputError, match="eps"):
            f(mu, mu, eps)


# --- derivatives -------------------------------------------------------------------------------------

QUANTITIES: dict[str, Callable[[of.Gaussian, of.Gaussian], Tensor]] = {
    "value": lambda mu, nu: of.sinkhorn(mu, nu, 0.7).regularised_cost,
    "value, almost no noise": lambda mu, nu: of.sinkhorn(mu, nu, 1e-6).regularised_cost,
    "transport cost": lambda mu, nu: of.sinkhorn(mu, nu, 0.7).cost,
    "cross-covariance": lambda mu, nu: of.sinkhorn(mu, nu, 0.7).cross,
    "map": lambda mu, nu: of.sinkhorn(mu, nu, 0.7).map(torch.ones(1, mu.d).double()),
    "divergence": lambda mu, nu: of.sinkhorn_divergence(mu, nu, 0.7),
}


@pytest.mark.slow(but_for=["ranks0-*", "*-transport cost", "ranks2-map"])
@pytest.mark.parametrize("name", QUANTITIES)
@pytest.mark.parametrize("ranks", [(1, 1, 1), (3, 2, 3), (2, 4, 1)])
def test_gradients_in_means_and_roots_are_right(name: str, ranks: tuple[int, int, int]) -> None:
    d, r1, r2 = ranks

    def f(m1: Tensor, R1: Tensor, m2: Tensor, R2: Tensor) -> Tensor:
        return QUANTITIES[name](of.Gaussian(m1, root=R1), of.Gaussian(m2, root=R2))

    leaves = [
        x.clone().requires_grad_() for g in (gaussian(d, r1), gaussian(d, r2, seed=5)) for x in g.coords
    ]
    assert gradcheck(f, leaves, check_forward_ad=True, fast_mode=True)


@pytest.mark.parametrize("name", ["value", "transport cost", "cross-covariance", "map", "divergence"])
@pytest.mark.parametrize("root", [np.eye(3), np.diag([1.0, 1.0, 0.0]), np.zeros((3, 3))])
def test_gradients_are_right_at_repeated_and_vanishing_singular_values(name: str, root: Array) -> None:
    def f(R1: Tensor, R2: Tensor) -> Tensor:
        zero = torch.zeros(3, dtype=torch.float64)
        return QUANTITIES[name](of.Gaussian(zero, root=R1), of.Gaussian(zero, root=R2))

    leaves = [torch.tensor(c * root).requires_grad_() for c in (1.0, 2.0)]
    assert gradcheck(f, leaves)


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [(2, 2, 2), (1, 2, 1), (2, 3, 5), (3, 1, 4)])
def test_value_and_divergence_have_second_derivatives(ranks: tuple[int, int, int]) -> None:
    d, r1, r2 = ranks
    leaves = [
        x.clone().requires_grad_() for g in (gaussian(d, r1), gaussian(d, r2, seed=5)) for x in g.coords
    ]
    for name in ("value", "divergence"):

        def f(m1: Tensor, R1: Tensor, m2: Tensor, R2: Tensor, name: str = name) -> Tensor:
            return QUANTITIES[name](of.Gaussian(m1, root=R1), of.Gaussian(m2, root=R2))

        assert gradgradcheck(f, leaves)


def test_second_derivatives_see_a_root_leave_its_row_space() -> None:
    """On the line the value is f(|R|), so that its Hessian at (x, 0) has the entry f'(x) / x."""
    other = of.Gaussian([0.0], root=[[2.0]])
    for f in (of.sinkhorn_divergence, lambda *args: of.sinkhorn(*args).regularised_cost):

        def g(root: Tensor, f: Any = f) -> Tensor:
            return f(of.Gaussian([0.0], root=root), other, 1.0)

        slope = torch.autograd.functional.jacobian(g, torch.tensor([[1.0]], dtype=torch.float64))
        hessian = torch.autograd.functional.hessian(g, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
        assert float(hessian[0, 1, 0, 1]) == pytest.approx(slope.item(), rel=1e-12)
        assert abs(slope.item()) > 0.1


def test_second_derivatives_of_the_plan_are_refused() -> None:
    root = torch.eye(2, dtype=torch.float64, requires_grad=True)
    plan = of.sinkhorn(of.Gaussian(np.zeros(2), root=root), gaussian(2, 2), 1.0)
    with pytest.raises(DerivativeError, match="Gaussian Sinkhorn scaling"):
        torch.autograd.grad(plan.cross.sum(), root, create_graph=True)


@pytest.mark.parametrize("eps", [1e-3, 1.0, 1e3])
def test_the_descent_of_the_divergence_to_the_standard_normal_follows_its_equation(eps: float) -> None:
    """dC/dt = (16 C + eps^2)^(1/2) - (16 C^2 + eps^2)^(1/2), not what one finds in print."""
    for c in (0.1, 1.0, 7.0):
        root = torch.tensor([[c**0.5]], dtype=torch.float64, requires_grad=True)
        standard = of.Gaussian([0.0], root=[[1.0]])
        s = of.sinkhorn_divergence(of.Gaussian([0.0], root=root), standard, eps)
        (slope,) = torch.autograd.grad(s, root)
        expected = (16 * c + eps**2) ** 0.5 - (16 * c**2 + eps**2) ** 0.5
        assert -2 * c**0.5 * slope.item() == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_debiasing_removes_the_shrinking() -> None:
    """OT_eps(mu, nu) as a function of nu is least at a narrower Gaussian, the divergence at mu."""
    root = torch.eye(2, dtype=torch.float64, requires_grad=True)
    mu, nu = of.Gaussian(np.zeros(2), root=np.eye(2)), of.Gaussian(np.zeros(2), root=root)
    (biased,) = torch.autograd.grad(of.sinkhorn(mu, nu, 1.0).regularised_cost, root)
    (debiased,) = torch.autograd.grad(of.sinkhorn_divergence(mu, nu, 1.0), root)
    assert float(biased[0, 0]) > 0.1
    torch.testing.assert_close(debiased, torch.zeros_like(debiased), rtol=0, atol=1e-15)


# --- laws --------------------------------------------------------------------------------------------


@st.composite
def pairs(draw: Any) -> tuple[of.Gaussian, of.Gaussian]:
    d, seed = draw(st.integers(1, 4)), draw(st.integers(0, 10_000))
    mu = gaussian(d, draw(st.integers(1, 5)), seed)
    return mu, gaussian(d, draw(st.integers(1, 5)), seed + 2) if draw(st.booleans()) else near(mu, 1e-5)


@given(pairs(), st.floats(-6, 6))
@settings(max_examples=40)
def test_cost_and_value_are_ordered(pair: tuple[of.Gaussian, of.Gaussian], k: float) -> None:
    mu, nu = pair
    plan, more = (of.sinkhorn(mu, nu, 10**x) for x in (k, k + 1))
    independent = (mu.mean - nu.mean).square().sum() + mu.root.square().sum() + nu.root.square().sum()
    chain = [
        bures_wasserstein(mu, nu) ** 2,
        plan.cost,
        plan.regularised_cost,
        more.regularised_cost,
        independent,
    ]
    for low, high in itertools.pairwise(chain):
        assert float(low) <= float(high) * (1 + 1e-12)
    assert float(plan.cost) <= float(more.cost) * (1 + 1e-12)


@pytest.mark.thorough
@given(pairs(), st.floats(-6, 6))
@settings(max_examples=40)
def test_roles_may_be_exchanged(pair: tuple[of.Gaussian, of.Gaussian], k: float) -> None:
    mu, nu = pair
    one, other = (of.sinkhorn(*x, 10**k) for x in ((mu, nu), (nu, mu)))
    torch.testing.assert_close(one.regularised_cost, other.regularised_cost, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(one.cross, other.cross.mT, rtol=1e-7, atol=1e-9)
    s, t = (of.sinkhorn_divergence(*x, 10**k) for x in ((mu, nu), (nu, mu)))
    torch.testing.assert_close(s, t, rtol=1e-8, atol=1e-18)
    assert float(s) >= 0
    assert float(of.sinkhorn_divergence(mu, mu, 10**k)) < 1e-28
