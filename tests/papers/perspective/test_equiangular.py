"""Equiangular tokens: the closed form of time, its inverse, and what layers do to angles."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import otflow as of
from otflow.base.errors import InputError
from otflow.papers import perspective
from otflow.papers.perspective.phases import tokens_in_span

BOTH = pytest.mark.parametrize("normalised", [True, False], ids=["SA", "USA"])


def law(beta: float, n: int, normalised: bool) -> Callable[[float, np.ndarray], np.ndarray]:
    """gamma' as in the paper."""

    def rate(_: float, g: np.ndarray) -> np.ndarray:
        e = np.exp(beta * g)
        z = np.exp(beta) + (n - 1) * e if normalised else n
        out: np.ndarray = 2 * e * (1 - g) * ((n - 1) * g + 1) / z
        return out

    return rate


def time_by_quadrature(beta: float, n: int, delta: float, normalised: bool) -> mpmath.mpf:
    """int_0^(1 - delta) dgamma / gamma', in v = log 1 / (1 - gamma), with 30 digits."""
    b = mpmath.mpf(beta)

    def density(v: mpmath.mpf) -> mpmath.mpf:
        u = mpmath.exp(-v)
        top = (mpmath.exp(b * u) + n - 1) if normalised else n * mpmath.exp(-b * (1 - u))
        return top / (2 * (n - (n - 1) * u))

    end = -mpmath.log(mpmath.mpf(delta))
    return mpmath.quad(density, [0, *(end * mpmath.mpf(2) ** (-k) for k in range(15, -1, -1))])


# --- the time to meet ----------------------------------------------------------------------------------


def test_the_times_of_the_reference_are_met() -> None:
    beta = [1.0, 4.0]
    softmax = perspective.collapse_time(beta, 32, 1e-3)
    plain = perspective.collapse_time(beta, 32, 1e-3, normalised=False)
    assert softmax.tolist() == pytest.approx([5.270284, 6.953502], abs=5e-7)
    assert plain.tolist() == pytest.approx([2.897049, 1.130770], abs=5e-7)


@pytest.mark.slow(but_for=["*-USA", "0.0-SA", "0.9-SA", "4.0-SA"])
@BOTH
@pytest.mark.parametrize("beta", [0.0, 1e-8, 0.4, 0.9, 1.1, 4.0, 55.0, 600.0])
def test_the_time_to_meet_is_the_integral(beta: float, normalised: bool) -> None:
    with mpmath.workdps(30):
        for n, delta in [(2, 1e-3), (32, 1e-12), (32, 0.4), (10**6, 1e-3), (3, 0.999), (32, 1 - 1e-7)]:
            exact = time_by_quadrature(beta, n, delta, normalised)
            found = perspective.collapse_time(beta, n, delta, normalised=normalised).item()
            assert abs(found / exact - 1) < 1e-12


def test_without_temperature_both_times_are_the_logarithm() -> None:
    n, delta = 7, 0.01
    exact = (math.log(1 / delta) + math.log(1 + (n - 1) * (1 - delta))) / 2
    for normalised in (True, False):
        assert perspective.collapse_time(0.0, n, delta, normalised=normalised).item() == pytest.approx(
            exact, rel=1e-14
        )


def test_times_broadcast_and_end_at_zero_for_delta_one() -> None:
    t = perspective.collapse_time(np.array([0.5, 2.0])[:, None, None], [[2], [9]], [1e-3, 0.1, 1.0])
    assert t.shape == (2, 2, 3)
    assert bool((t.diff(dim=-1) < 0).all())
    assert bool((t[..., -1] == 0).all())
    assert t[1, 0, 1] == perspective.collapse_time(2.0, 2, 0.1)


def test_the_time_of_softmax_turns_up_near_log_n() -> None:
    """Flat below log n, exponential above: slope of log t in beta."""
    for n in (32, 1024):
        beta = math.log(n) + np.array([-2.5, -2.4, 4.0, 4.1])
        t = perspective.collapse_time(beta, n, 1e-3).log()
        assert float(t[1] - t[0]) / 0.1 < 0.15
        assert float(t[3] - t[2]) / 0.1 > 0.75


# --- the overlap ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("beta", "n", "gamma0"), [(0.0, 5, 0.0), (1.0, 32, 0.0), (4.0, 2, -0.9), (6.0, 9, 0.3)]
)
def test_the_overlap_solves_its_equation(beta: float, n: int, gamma0: float, normalised: bool) -> None:
    end = perspective.collapse_time(beta, n, 1e-6, normalised=normalised).item() if gamma0 == 0 else 6.0
    ts = np.linspace(0, end, 40)
    rate = law(beta, n, normalised)
    options = {"method": "DOP853", "rtol": 1e-13, "atol": 1e-14}
    exact = solve_ivp(rate, (0, end), [gamma0], t_eval=ts, **options).y[0]
    found = perspective.equiangular(ts, beta, n, gamma0=gamma0, normalised=normalised).numpy()
    assert np.abs(found - exact).max() < 1e-10


@BOTH
def test_the_overlap_inverts_the_time_with_the_digits_of_one_minus_gamma(normalised: bool) -> None:
    beta, n = np.array([0.0, 0.5, 3.0, 8.0])[:, None, None], np.array([2, 32, 1000])[:, None]
    delta = np.array([1 - 1e-9, 0.7, 1e-2, 1e-5, 1e-8])
    t = perspective.collapse_time(beta, n, delta, normalised=normalised)
    gap = 1 - perspective.equiangular(t, beta, n, normalised=normalised).numpy()
    # rounding of gamma next to 1, and of t: d log(1 - gamma) = -rate dt with rate 2, or 2 exp(beta)
    rate = 2.0 if normalised else 2 * np.exp(beta)
    allowed = 4e-16 / delta + 16 * 2.3e-16 * (1 + rate * t.numpy())
    assert (np.abs(gap / delta - 1) < allowed + 1e-13).all()


@BOTH
def test_at_low_temperature_the_overlap_comes_back_as_far_as_t_has_digits(normalised: bool) -> None:
    for beta in (100.0, 600.0):
        t = perspective.collapse_time(beta, 32, [0.999, 0.97], normalised=normalised)
        again = perspective.collapse_time(
            beta, 32, 1 - perspective.equiangular(t, beta, 32, normalised=normalised), normalised=normalised
        )
        assert torch.allclose(t, again, rtol=1e-12 * beta, atol=0)


@BOTH
def test_tokens_follow_the_overlap(normalised: bool) -> None:
    beta, n = 2.0, 6
    mu = of.Particles(np.eye(n), space=of.Sphere())
    ts = np.linspace(0, 2.0, 9)
    field = perspective.attention(beta, n, normalised=normalised)
    x = of.flow(mu, field, of.Dopri5(rtol=1e-11, atol=1e-12), t1=2.0, save_at=ts).stacked.coords[0]
    gram = x @ x.mT
    predicted = perspective.equiangular(ts, beta, n, normalised=normalised)[:, None, None]
    off = ~torch.eye(n, dtype=torch.bool)
    assert float((gram - predicted)[:, off].abs().max()) < 1e-8


@BOTH
def test_the_rate_at_the_end_is_two_or_two_exp_beta(normalised: bool) -> None:
    beta, n = 1.2, 10
    rate = 2.0 if normalised else 2 * math.exp(beta)
    t = perspective.collapse_time(beta, n, [1e-9, 1e-10], normalised=normalised)
    assert math.log(10) / float(t[1] - t[0]) == pytest.approx(rate, rel=1e-6)


def test_long_times_end_at_one_and_time_zero_at_the_start() -> None:
    g = perspective.equiangular([0.0, 1e-300, 1e4, 1e300], 3.0, 4, gamma0=0.25)
    assert g.tolist() == [0.25, 0.25, 1.0, 1.0]
    late = perspective.equiangular([0.0, 1e300], [[0.0], [600.0]], 4, normalised=False)
    assert late.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert bool((perspective.equiangular(np.linspace(0, 40, 300), 5.0, 32).diff() >= 0).all())


# --- high dimension ------------------------------------------------------------------------------------


def test_random_tokens_deviate_from_the_overlap_like_the_root_of_the_dimension() -> None:
    """n = 16, beta = 3: a run has a largest deviation of .386 at d = 128, and of .098 at d = 1024."""
    beta, n, samples = 3.0, 16, 12
    ts = np.linspace(0, 12.0, 49)
    predicted = perspective.equiangular(ts, beta, n)[:, None, None, None]
    off = ~torch.eye(n, dtype=torch.bool)
    worst = {}
    for d in (128, 1024):
        mu = tokens_in_span(n, d, samples, rng=np.random.default_rng(0))
        x = of.flow(
            mu, perspective.attention(beta, n), of.RK4(), t1=12.0, dt=0.125, save_at=ts
        ).stacked.coords[0]
        worst[d] = (x @ x.mT - predicted)[..., off].abs().amax((0, 2))
    assert float(worst[128].min()) < 0.386 < 1.5 * float(worst[128].max())
    assert float(worst[1024].min()) < 0.098 < float(worst[1024].max())
    assert float(worst[128].mean() / worst[1024].mean()) == pytest.approx(math.sqrt(8), rel=0.15)


def test_the_bound_in_high_dimension_is_its_formula_and_holds_at_time_zero() -> None:
    t, beta, n, d = 0.01, 2.0, 3, 5000
    plain = 2 * math.exp(10 * beta) ** (n * t) * math.sqrt(math.log(d) / d)
    assert float(perspective.high_dimension_bound(t, beta, n, d).exp()) == pytest.approx(plain, rel=1e-12)
    mu = tokens_in_span(16, d, 20, rng=np.random.default_rng(1))
    off = ~torch.eye(16, dtype=torch.bool)
    assert float((mu.x @ mu.x.mT)[:, off].abs().max()) < float(
        perspective.high_dimension_bound(0.0, 1.0, 16, d).exp()
    )


# --- one layer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rho", "beta", "n"), [(0.0, 1.0, 4), (0.6, 3.0, 9), (-0.2, 0.5, 5), (0.9, 40.0, 3)])
def test_the_angle_after_a_layer_is_that_of_the_field(rho: float, beta: float, n: int) -> None:
    gram = (1 - rho) * torch.eye(n, dtype=torch.float64) + rho
    x = torch.linalg.cholesky(gram)
    eye = torch.eye(n, dtype=torch.float64)
    y = of.SoftmaxAttention(beta * eye, eye, eye)(0.0, of.Particles(x))[0]
    y = y / y.norm(dim=-1, keepdim=True)
    assert float(y[0] @ y[-1]) == pytest.approx(perspective.layer_overlap(rho, beta, n).item(), abs=1e-13)


def test_many_tokens_have_three_regimes_of_temperature() -> None:
    rho = 0.5
    gamma = np.array([1.5, 2.0, 2.5])
    n = 1e12
    finite = perspective.layer_overlap(rho, gamma * math.log(n), n)
    assert torch.allclose(finite, perspective.temperature_regime(rho, gamma), atol=1e-2)
    assert float(perspective.layer_overlap(0.2, math.log(1e15) / 0.8, 1e15)) == pytest.approx(
        0.8 / 1.6, abs=1e-10
    )
    assert perspective.temperature_regime(0.2, 1 / 0.8).item() == pytest.approx(0.5)


def test_orthogonal_tokens_have_regimes_of_their_own() -> None:
    gamma = np.array([0.25, 0.5, 0.75, 1.0, 1.5])
    for n in (1e12, 1e18):
        finite = perspective.layer_overlap(0.0, gamma * math.log(n), n)
        assert torch.allclose(finite, perspective.temperature_regime(0.0, gamma), atol=3e-6)
    assert perspective.temperature_regime(0.0, gamma).tolist() == [1.0, 0.5, 0.0, 0.0, 0.0]


# --- extreme numbers -----------------------------------------------------------------------------------


@BOTH
def test_the_time_to_meet_within_the_smallest_numbers_goes_on_with_its_rate(normalised: bool) -> None:
    t = perspective.collapse_time(1.0, 32, [1e-290, 1e-300, 1e-310, 5e-324], normalised=normalised)
    rate = 2.0 if normalised else 2 * math.e
    logs = [10 * math.log(10), 10 * math.log(10), math.log(1e-310) - math.log(5e-324)]
    assert (t.diff() * rate).tolist() == pytest.approx(logs, rel=1e-11)


@BOTH
@pytest.mark.parametrize(("beta", "n"), [(1e300, 4), (1.0, 1e300), (1e300, 1e300)])
def test_the_overlap_stays_between_its_ends_for_huge_numbers(beta: float, n: float, normalised: bool) -> None:
    g = perspective.equiangular(
        [0.0, 1e-300, 1e-3, 1.0, 1e3, 1e300], beta, n, gamma0=0.3, normalised=normalised
    )
    assert bool((g.diff() >= -1e-15).all())
    assert g[0] == 0.3
    assert g[-1] <= 1.0


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: perspective.equiangular(-1.0, 1.0, 4), "t = -1"),
        (lambda: perspective.equiangular(1.0, -0.1, 4), "beta = -0.1"),
        (lambda: perspective.equiangular(1.0, 1.0, 1), "n = 1"),
        (lambda: perspective.equiangular(1.0, 1.0, 2.5), "n = 2.5"),
        (lambda: perspective.equiangular(1.0, 1.0, 4, gamma0=1.0), "gamma0 = 1"),
        (lambda: perspective.equiangular(1.0, 1.0, 4, gamma0=[0.0, -1 / 3]), "gamma0 = -0.33"),
        (lambda: perspective.equiangular([1.0, 2.0], [1.0, 2.0, 3.0], 4), "shapes of t"),
        (lambda: perspective.collapse_time(1.0, 4, 0.0), "delta = 0"),
        (lambda: perspective.collapse_time(1.0, 4, 1.5), "delta = 1.5"),
        (lambda: perspective.collapse_time(-1.0, 4, 0.1), "beta = -1"),
        (lambda: perspective.collapse_time(2000.0, 4, 0.1), "beta = 2000"),
        (lambda: perspective.layer_overlap(1.5, 1.0, 4), "rho = 1.5"),
        (lambda: perspective.temperature_regime(1.0, 1.0), "rho = 1"),
        (lambda: perspective.high_dimension_bound(0.0, 1.0, 2, 1), "d = 1"),
        (lambda: perspective.high_dimension_bound(1e300, 1e10, 10, 2), "t = 1e\\+300"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}"):
        call()
