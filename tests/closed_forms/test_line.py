"""Variances on the line against mpmath and an integrator."""

from __future__ import annotations

import sys
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mp
from scipy.integrate import solve_ivp

import otflow.closed_forms as cf
from otflow.base.errors import InputError

SIGNS = [1.0, -1.0]


def exact_l2(s0: float, q: float, k: float, v: float, t: float) -> mpmath.mpf:
    """s = 1 / (b W(exp(z) / b)), with enough digits."""
    with mp.workdps(60):
        s, b = mp.mpf(s0), 2 * mp.mpf(k) ** 2
        z = (1 / s - 4 * mp.mpf(v) * k * mp.mpf(q) * t) / b - mp.log(s)
        # W(e^x) for x = z - log b beyond the range of the exponential: w + log w = x
        x = z - mp.log(b)
        w = mp.lambertw(mp.exp(x)).real if x < 10**4 else mp.findroot(lambda w: w + mp.log(w) - x, x)
        return 1 / (b * w)


def exact_sinkhorn(s0: float, a: float, v: float, t: float, eps: float) -> float:
    """The integrated equation solved for s, by bisection with 60 digits."""
    with mp.workdps(60):
        a, eps, v = mp.mpf(a), mp.mpf(eps), mp.mpf(v)

        def h(log_s: mpmath.mpf) -> mpmath.mpf:
            u = 2 * a * mp.exp(log_s) / eps
            return mp.asinh(u) - (1 + mp.sqrt(1 + u * u)) / u

        goal = h(mp.log(mp.mpf(s0))) + 2 * v * t / eps
        up = 1 if a > 0 else -1  # h rises with s if a > 0
        low, high = mp.mpf(-1000), mp.mpf(1000)
        for _ in range(180):
            middle = (low + high) / 2
            low, high = (middle, high) if up * (h(middle) - goal) < 0 else (low, middle)
        return float(mp.exp(low))


@pytest.mark.parametrize("v", SIGNS)
@pytest.mark.parametrize("k", [1.0, -0.3, 3.0, 1e-3, 1e-7])
@pytest.mark.parametrize("q", [0.8, -2.0])
@pytest.mark.parametrize("t", [1e-9, 0.01, 1.0, 20.0, -3.0])
def test_l2_agrees_with_lamberts_function_to_machine_precision(
    v: float, k: float, q: float, t: float
) -> None:
    for s0 in (0.01, 1.0, 50.0):
        expected = exact_l2(s0, q, k, v, t)
        if expected > sys.float_info.max:
            with pytest.raises(InputError, match="floating point"):
                cf.l2_variance(s0, q, k, v, t)
            continue
        # What a rounding of v would do to s: d log s / d log v.
        condition = abs(4 * v * k * q * t) / (1 / float(expected) + 2 * k**2)
        got = cf.l2_variance(s0, q, k, v, t).item()
        assert got == pytest.approx(float(expected), rel=2e-15 * (1 + condition))


@pytest.mark.parametrize("v", SIGNS)
@pytest.mark.parametrize("a", [1.0, -0.3, 30.0, 1e-3, -1e-9])
@pytest.mark.parametrize("t", [1e-9, 0.1, 2.0, -3.0])
def test_sinkhorn_agrees_with_the_integrated_equation_to_machine_precision(
    v: float, a: float, t: float
) -> None:
    for s0, eps in ((0.01, 1.0), (1.0, 0.3), (5.0, 2.0)):
        expected = exact_sinkhorn(s0, a, v, t, eps)
        got = cf.sinkhorn_variance(s0, a, v, t, eps=eps).item()
        u = 2 * abs(a) * expected / eps
        condition = abs(2 * v * t / eps) * u / (1 + np.hypot(1, u))  # d log s / d log v
        assert got == pytest.approx(expected, rel=2e-15 * (1 + condition))


def check_equation(path: Callable[[float], torch.Tensor], rate: Callable[[float], float], t: float) -> None:
    out = solve_ivp(lambda _, s: [rate(s[0])], (0, t), [path(0.0).item()], "DOP853", rtol=1e-12, atol=1e-14)
    assert path(t).item() == pytest.approx(out.y[0, -1], rel=1e-9)


@pytest.mark.parametrize("v", SIGNS)
@pytest.mark.parametrize("a", [0.4, -0.4])
def test_all_three_laws_solve_their_equations(v: float, a: float) -> None:
    s0, k, q, eps = 0.7, 0.9, a / 0.9, 0.6
    check_equation(lambda t: cf.softmax_variance(s0, a, v, t), lambda s: 2 * v * a * s**2, 1.5)
    check_equation(
        lambda t: cf.l2_variance(s0, q, k, v, t), lambda s: 4 * v * k * q * s**2 / (1 + 2 * k**2 * s), 3.0
    )
    check_equation(
        lambda t: cf.sinkhorn_variance(s0, a, v, t, eps=eps),
        lambda s: v / (eps * a) * (np.sqrt(eps**2 + 4 * a**2 * s**2) - eps),
        3.0,
    )


def test_the_laws_in_one_dimension_move_at_the_rates_for_matrices() -> None:
    s, a, v, k, q = 0.8, -0.6, 1.3, 0.5, 2.0
    h = 1e-6

    def slope(path: Callable[[float], torch.Tensor]) -> float:
        return float(path(h) - path(-h)) / (2 * h)

    S, A, V = [[s]], [[a]], [[v]]
    assert slope(lambda t: cf.softmax_variance(s, a, v, t)) == pytest.approx(cf.softmax_rate(S, A, V).item())
    expected = cf.sinkhorn_rate(S, A, V, eps=0.4).item()
    assert slope(lambda t: cf.sinkhorn_variance(s, a, v, t, eps=0.4)) == pytest.approx(expected)
    expected = cf.l2_rate(S, [[q]], [[k]], V).item()
    assert slope(lambda t: cf.l2_variance(s, q, k, v, t)) == pytest.approx(expected)


def test_sinkhorn_tends_to_softmax_as_the_scores_vanish() -> None:
    s0, v, t, eps = 0.7, 1e8, 0.5, 2.0
    got = cf.sinkhorn_variance(s0, 1e-8, v, t, eps=eps)
    torch.testing.assert_close(got, cf.softmax_variance(s0, 1.0, 1 / eps**2, t), rtol=1e-12, atol=0)


def test_nothing_moves_without_scores_or_without_spread() -> None:
    assert cf.sinkhorn_variance(0.7, 0.0, 1.0, 3.0).item() == 0.7
    assert cf.l2_variance(0.7, 1.0, 0.0, 1.0, 3.0).item() == 0.7
    assert cf.l2_variance(0.0, 1.0, 1.0, 1.0, 3.0).item() == 0.0
    assert cf.sinkhorn_variance(0.0, 1.0, 1.0, 3.0).item() == 0.0


def test_almost_softmax_l2_survives_where_softmax_blows_up() -> None:
    # s0 = 1, 4 v k q t = 1 with k -> 0: the softmax law would be at its blow-up.
    k = 1e-6
    got = cf.l2_variance(1.0, 1 / k, k, 0.25, 1.0).item()
    assert got == pytest.approx(float(exact_l2(1.0, 1 / k, k, 0.25, 1.0)), rel=1e-3)
    assert 1e9 < got < 1e12


def test_numbers_broadcast_and_times_may_be_many() -> None:
    t = np.linspace(0, 1, 5)
    a = np.array([[0.2], [-0.3]])
    for f in (
        lambda a, t: cf.softmax_variance(1.0, a, 1.0, t),
        lambda a, t: cf.l2_variance(1.0, a, 1.0, 1.0, t),
        lambda a, t: cf.sinkhorn_variance(1.0, a, 1.0, t),
    ):
        together = f(a, t)
        assert together.shape == (2, 5)
        one_by_one = torch.stack([torch.stack([f(x[0], s) for s in t]) for x in a])
        torch.testing.assert_close(together, one_by_one, rtol=1e-14, atol=0)


def test_derivatives_are_those_of_the_solutions() -> None:
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.7, 0.4, -0.8, 0.6)]
    assert torch.autograd.gradcheck(cf.softmax_variance, leaves)
    assert torch.autograd.gradcheck(lambda *x: cf.sinkhorn_variance(*x, eps=0.5), leaves)
    assert torch.autograd.gradcheck(lambda s, q, v, t: cf.l2_variance(s, q, 1.3, v, t), leaves)
    assert torch.autograd.gradcheck(lambda s, k, v, t: cf.l2_variance(s, 0.9, k, v, t), leaves)


def test_times_beyond_the_domain_are_refused() -> None:
    assert cf.softmax_variance_blow_up([1.0, 1.0, 0.0], [0.5, -0.5, 1.0], 2.0).tolist() == [
        0.5,
        np.inf,
        np.inf,
    ]
    with pytest.raises(InputError, match="blows up at"):
        cf.softmax_variance(1.0, 0.5, 1.0, [0.0, 1.0])
    with pytest.raises(InputError, match="floating point"):
        cf.l2_variance(1.0, 1.0, 1.0, 1.0, 1e6)
    with pytest.raises(InputError, match="floating point"):
        cf.sinkhorn_variance(1.0, 1.0, 1.0, 1e6)


def test_variances_below_zero_and_shapes_that_do_not_fit_are_refused() -> None:
    for f in (cf.softmax_variance, cf.sinkhorn_variance):
        with pytest.raises(InputError, match="variance is >= 0"):
            f(-1.0, 1.0, 1.0, 1.0)
        with pytest.raises(InputError, match="do not broadcast"):
            f([1.0, 2.0], [1.0, 2.0, 3.0], 1.0, 0.0)
    with pytest.raises(InputError, match="eps"):
        cf.sinkhorn_variance(1.0, 1.0, 1.0, 1.0, eps=0.0)
