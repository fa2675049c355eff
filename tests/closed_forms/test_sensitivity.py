"""How nearby Gaussians part under attention, against integrators and an eigenvalue problem of scipy's."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import linalg
from scipy.integrate import solve_ivp
from torch import Tensor
from torch.autograd import gradcheck

import otflow.closed_forms as cf
from otflow.base.errors import InputError
from otflow.closed_forms.sensitivity import (
    l2_sensitivity,
    sinkhorn_sensitivity,
    softmax_blow_up_sensitivity,
    softmax_path_sensitivity,
    softmax_sensitivity,
)

SINKHORN = math.sqrt(3 * math.sqrt(3) / (2 + math.sqrt(3)))
Scalar = Callable[[float], float]

# sigma' and its slope in sigma, worked out from the laws of the variance one by one.
LINE: dict[str, tuple[Scalar, Scalar, Callable[[float, float], Tensor]]] = {
    "softmax": (
        lambda x: 0.3 * x**3,
        lambda x: 0.9 * x**2,
        lambda s, t: softmax_sensitivity(s, 0.5, 0.6, t),
    ),
    "falling softmax": (
        lambda x: -0.3 * x**3,
        lambda x: -0.9 * x**2,
        lambda s, t: softmax_sensitivity(s, -0.5, 0.6, t),
    ),
    "L2": (
        lambda x: 0.96 * x**3 / (1 + 1.28 * x**2),
        lambda x: 0.96 * x**2 * (3 + 1.28 * x**2) / (1 + 1.28 * x**2) ** 2,
        lambda s, t: l2_sensitivity(s, 1.5, 0.8, 0.4, t),
    ),
    "Sinkhorn": (
        lambda x: 0.6 / (0.5 * 0.7 * 2 * x) * (math.hypot(0.5, 1.4 * x**2) - 0.5),
        lambda x: (
            0.6
            / 0.7
            * (3.92 * x**2 / math.hypot(0.5, 1.4 * x**2) - (math.hypot(0.5, 1.4 * x**2) - 0.5) / x**2)
        ),
        lambda s, t: sinkhorn_sensitivity(s, 0.7, 0.6, t, eps=0.5),
    ),
}


def spd(d: int, seed: int, low: float = 0.1) -> np.ndarray:
    r = np.random.default_rng(seed).standard_normal((d, d))
    return r @ r.T / d + low * np.eye(d)


# --- on the line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINE)
@pytest.mark.parametrize("s0", [0.04, 0.7, 1.2])
def test_on_the_line_it_solves_the_linearised_equation(name: str, s0: float) -> None:
    velocity, slope, closed = LINE[name]
    found = solve_ivp(
        lambda t, z: (velocity(z[0]), slope(z[0]) * z[1]),
        (0.0, 1.2),
        (math.sqrt(s0), 1.0),
        method="DOP853",
        rtol=1e-12,
        atol=1e-14,
        t_eval=[0.4, 1.2],
    )
    got = [closed(s0, t).item() for t in (0.4, 1.2)]
    np.testing.assert_allclose(got, found.y[1], rtol=1e-9)


@pytest.mark.parametrize("t", [0.3, -0.5, 2.0])
def test_it_is_the_derivative_of_the_deviation(t: float) -> None:
    sigma = torch.linspace(0.2, 0.9, 8, dtype=torch.float64, requires_grad=True)
    for variance, closed in (
        (cf.softmax_variance(sigma**2, -0.4, 0.5, abs(t)), softmax_sensitivity(sigma**2, -0.4, 0.5, abs(t))),
        (cf.l2_variance(sigma**2, 0.9, -1.2, 0.7, t), l2_sensitivity(sigma**2, 0.9, -1.2, 0.7, t)),
        (
            cf.sinkhorn_variance(sigma**2, -0.8, 0.7, t, eps=0.3),
            sinkhorn_sensitivity(sigma**2, -0.8, 0.7, t, eps=0.3),
        ),
    ):
        (slope,) = torch.autograd.grad(variance.sqrt().sum(), sigma)
        torch.testing.assert_close(closed.detach(), slope, rtol=1e-11, atol=0)


def test_softmax_diverges_with_the_power_three_halves_and_the_deviation_with_one_half() -> None:
    left = torch.logspace(-8, -2, 7, dtype=torch.float64)
    t = cf.softmax_variance_blow_up(0.8, 0.5, 1.3) * (1 - left)
    exact = [softmax_sensitivity(0.8, 0.5, 1.3, t), cf.softmax_variance(0.8, 0.5, 1.3, t).sqrt()]
    slopes = [np.polyfit(left.log(), y.log(), 1)[0] for y in exact]
    np.testing.assert_allclose(slopes, [-1.5, -0.5], atol=1e-7)


def test_l2_and_sinkhorn_attention_have_one_constant_for_all_gaussians() -> None:
    s0 = torch.logspace(-8, 8, 4001, dtype=torch.float64)
    for t in (0.01, 1.0, 10.0):
        worst = l2_sensitivity(s0, 1.5, 0.8, 0.4, t).max().log().item()
        assert worst <= 9 / 8 * 0.4 * 1.5 / 0.8 * t
        worst = sinkhorn_sensitivity(s0, 0.7, 0.6, t, eps=0.5).max().log().item()
        assert worst <= SINKHORN * 0.6 / 0.5 * t


def test_both_constants_are_the_best_ones_for_short_times() -> None:
    t = 1e-5  # the worst place is reached, and hardly left
    x, q = 3 / (2 * 0.8**2), 1 + math.sqrt(3)
    got = l2_sensitivity(x, 1.5, 0.8, 0.4, t).log().item() / t
    assert got == pytest.approx(9 / 8 * 0.4 * 1.5 / 0.8, rel=1e-6)
    s0 = 0.5 * math.sqrt(q**2 - 1) / (2 * 0.7)
    got = sinkhorn_sensitivity(s0, 0.7, 0.6, t, eps=0.5).log().item() / t
    assert got == pytest.approx(SINKHORN * 0.6 / 0.5, rel=1e-6)


def test_weak_sinkhorn_and_weak_l2_are_softmax() -> None:
    expected = softmax_sensitivity(1.0, 1.0, 0.25, 1.0).item()
    assert sinkhorn_sensitivity(1.0, 1e-6, 0.25e6, 1.0).item() == pytest.approx(expected, rel=1e-9)
    assert l2_sensitivity(1.0, 0.5e4, 1e-4, 0.25, 1.0).item() == pytest.approx(expected, rel=1e-6)


# --- in higher dimension -------------------------------------------------------------------------------


def bures_form(S: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """The metric of Bures at S on a basis of symmetric matrices: tr(L S M), L S + S L = D, M S + S M = E."""
    L = [linalg.solve_continuous_lyapunov(S, D) for D in basis]
    return np.array([[np.trace(a @ S @ b) for a in L] for b in L])


def symmetric_basis(d: int) -> np.ndarray:
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    basis = np.zeros((len(pairs), d, d))
    for k, (i, j) in enumerate(pairs):
        basis[k, i, j] = basis[k, j, i] = 1.0
    return basis


def worst(S0: np.ndarray, A: np.ndarray, t: float) -> float:
    """The square root of the largest eigenvalue of |dS(t)|^2 against |dS0|^2, the derivative by autograd."""
    basis = symmetric_basis(len(S0))
    S, start = cf.softmax_path(S0, A, t).numpy(), torch.from_numpy(S0)
    moved = [
        torch.autograd.functional.jvp(lambda S: cf.softmax_path(S, A, t), start, torch.from_numpy(D))[1]
        for D in basis
    ]
    pulled = bures_form(S, np.stack(moved))
    return math.sqrt(linalg.eigh(pulled, bures_form(S0, basis), eigvals_only=True)[-1])


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("share", [0.2, 0.7, 0.95, -0.5])
def test_the_norm_is_the_largest_eigenvalue_of_one_metric_against_the_other(d: int, share: float) -> None:
    S0, A = spd(d, d), spd(d, d + 10) + np.triu(np.ones((d, d)), 1) - 0.3 * np.eye(d)
    end = cf.softmax_blow_up_time(S0, A if share > 0 else -A)  # backwards, A has the other sign
    t = share * end.clamp(max=3.0).item()
    assert softmax_path_sensitivity(S0, A, t).item() == pytest.approx(worst(S0, A, t), rel=1e-7)


@pytest.mark.parametrize("d", [2, 3])
def test_matrices_that_commute_reduce_to_the_line(d: int) -> None:
    rng = np.random.default_rng(d)
    Q = linalg.qr(rng.standard_normal((d, d)))[0]
    s, h = rng.uniform(0.2, 2, d), rng.uniform(-1, 1, d)
    t = 0.4
    got = softmax_path_sensitivity(Q @ np.diag(s) @ Q.T, Q @ np.diag(h / 2) @ Q.T, t).item()
    assert got == pytest.approx(((1 - t * s * h) ** -1.5).max(), rel=1e-11)
    line = softmax_path_sensitivity([[s[0]]], [[h[0]]], t)
    torch.testing.assert_close(line, softmax_sensitivity(s[0], h[0], 1.0, t), rtol=1e-13, atol=0)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_at_the_blow_up_the_norm_diverges_as_predicted(d: int) -> None:
    S0, A = spd(d, d, 0.05), spd(d, d + 20)
    amplitude, end = softmax_blow_up_sensitivity(S0, A), cf.softmax_blow_up_time(S0, A)
    left = torch.tensor([1e-4, 1e-5, 1e-6], dtype=torch.float64)
    got = left**1.5 * softmax_path_sensitivity(S0, A, end * (1 - left))
    assert amplitude.item() > 1.01
    assert bool(((got - amplitude).abs() <= 20 * left).all())


def test_without_scores_nothing_moves_and_the_norm_is_one() -> None:
    assert softmax_path_sensitivity(spd(3, 0), np.zeros((3, 3)), 5.0).item() == pytest.approx(1.0, rel=1e-12)


def test_numbers_and_matrices_broadcast() -> None:
    s0, t = torch.tensor([[0.3], [0.9]]), torch.tensor([0.0, 0.2, 0.4])
    for closed in (
        lambda s, t: softmax_sensitivity(s, 0.5, 1.0, t),
        lambda s, t: l2_sensitivity(s, 0.5, 0.8, 1.0, t),
        lambda s, t: sinkhorn_sensitivity(s, 0.5, 1.0, t),
        lambda s, t: softmax_path_sensitivity(
            s[..., None, None] * torch.diag(torch.tensor([1.0, 0.5])), [[0.3, 0.1], [0.0, -0.2]], t
        ),
    ):
        together = closed(s0, t)
        assert together.shape == (2, 3)
        each = torch.stack([torch.stack([closed(s, x) for x in t]) for s in s0[:, 0]])
        torch.testing.assert_close(together, each, rtol=1e-12, atol=0)
        torch.testing.assert_close(together[:, 0], torch.ones(2).double())
    both = softmax_blow_up_sensitivity(np.stack([spd(2, 1), spd(2, 2)]), spd(2, 3))
    each = [softmax_blow_up_sensitivity(spd(2, k), spd(2, 3)) for k in (1, 2)]
    torch.testing.assert_close(both, torch.stack(each))


def test_derivatives_are_right() -> None:
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.7, 0.4, -0.8, 0.6)]
    assert gradcheck(softmax_sensitivity, leaves)
    assert gradcheck(lambda *x: sinkhorn_sensitivity(*x, eps=0.5), leaves)
    assert gradcheck(lambda s, k, v, t: l2_sensitivity(s, 0.9, k, v, t), leaves)
    S, A = (torch.from_numpy(spd(2, k)).requires_grad_() for k in (3, 4))
    t = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda S, A, t: softmax_path_sensitivity((S + S.mT) / 2, A, t), (S, A, t))


def test_times_and_variances_beyond_the_domain_are_refused() -> None:
    with pytest.raises(InputError, match="blows up at"):
        softmax_sensitivity(1.0, 0.5, 1.0, 1.0)
    with pytest.raises(InputError, match="blows up at"):
        softmax_path_sensitivity(np.eye(2), np.eye(2), 0.5)
    for closed in (softmax_sensitivity, sinkhorn_sensitivity):
        with pytest.raises(InputError, match="s0 > 0"):
            closed([1.0, 0.0], 1.0, 1.0, 0.1)
    with pytest.raises(InputError, match="S0"):
        softmax_path_sensitivity(np.diag([1.0, 0.0]), np.eye(2), 0.1)
    with pytest.raises(InputError, match="no blow-up"):
        softmax_blow_up_sensitivity(np.eye(2), -np.eye(2))
