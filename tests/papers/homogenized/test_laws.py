"""Laws of overlaps under random weights: equal angles, high and low temperature, freezing."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import expit

from otflow.base.errors import InputError
from otflow.papers import homogenized as hom


def softmax(s: np.ndarray) -> np.ndarray:
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.asarray(p / p.sum(-1, keepdims=True))


def strays(sample: np.ndarray, truth: float) -> float:
    return float(abs(sample.mean() - truth) / (sample.std() / math.sqrt(sample.size)))


# --- random energies -----------------------------------------------------------------------------------


def test_the_participation_ratio_of_two_scores_is_one_integral() -> None:
    for b in (0.05, 0.5, 3.0, 20.0):  # pi_1 = 1 / (1 + exp(-sqrt(2) b z))
        z = mpmath.quad(
            lambda z, b=b: (
                2 * mpmath.npdf(z) / (1 + mpmath.exp(-mpmath.sqrt(2) * b * z)) ** 2  # type: ignore[misc]
            ),
            [-12, -1, 0, 1, 12],
        )
        assert hom.participation(b, 2).item() == pytest.approx(float(z), abs=1e-9)


@pytest.mark.parametrize(("n", "b"), [(5, 0.7), (64, 3.0), (2000, 3.9)])
def test_the_participation_ratio_is_that_of_samples(n: int, b: float) -> None:
    p = softmax(b * np.random.default_rng(0).standard_normal((400_000 // n, n)))
    assert strays((p**2).sum(-1), hom.participation(b, n).item()) < 3


def test_small_scales_follow_the_expansion_in_b() -> None:
    """f = 1/n (1 + b^2 (1 - 1/n)) + O(b^4): weights are (1 + b (xi - mean)) / n to first order."""
    for n in (2, 10, 1000):
        f = hom.participation(0.01, n).item()
        assert f == pytest.approx((1 + 1e-4 * (1 - 1 / n)) / n, rel=2e-8)
    assert hom.participation(0.0, 7).item() == 1 / 7


def test_levels_freeze_at_the_root_of_two_log_n() -> None:
    n = 2000
    b = hom.critical_scale(n).item() * np.array([0.5, 1.0, 1.5, 2.0, 4.0])
    f = hom.participation(b, n).numpy()
    np.testing.assert_allclose(f, [0.015, 0.23, 0.44, 0.57, 0.79], atol=0.011)
    assert (f[1:] - hom.frozen_participation(b, n).numpy()[1:] > 0).all()
    gap = [
        abs(hom.participation(x * hom.critical_scale(m).item(), m).item() - max(0, 1 - 1 / x))
        for x in (0.7, 2.0)
        for m in (100, 10_000, 1_000_000)
    ]
    assert gap[0] > gap[1] > gap[2]
    assert gap[3] > gap[4] > gap[5]


def test_a_finite_dimension_spreads_the_scale_of_scores() -> None:
    n, d, beta = 6, 5, 7.0
    law = hom.GaussianWeights(d)
    rng = np.random.default_rng(0)
    W, W_ = rng.standard_normal((2, 100_000, d)) / math.sqrt(d), rng.standard_normal((100_000, n))
    scale = beta * law.sigma_A * np.linalg.norm(W[0], axis=-1)  # beta sigma_A |W'^T x|
    f = (softmax(scale[:, None] * W_) ** 2).sum(-1)
    b = law.logit_scale(beta)
    assert strays(f, hom.participation(b, n, d=d).item()) < 3
    assert strays(f, hom.participation(b, n).item()) > 10
    assert hom.participation(b, n, d=10**6).item() == pytest.approx(hom.participation(b, n).item(), abs=1e-6)


@pytest.mark.parametrize(("d", "b"), [(1, 5.0), (2, 20.0), (4, 20.0), (31, 5.0)])
def test_two_scores_in_few_dimensions_are_an_integral_over_the_radius(d: int, b: float) -> None:
    """Scores differ by sqrt(2) b r z, r = chi_d / sqrt(d): radii are summed over in steps of log r."""
    z = np.linspace(-10, 10, 4001)
    log_r = np.linspace(-25 if d == 1 else -14, 2.0, 1201)
    phi = 2 * expit(math.sqrt(2) * b * np.exp(log_r)[:, None] * z) ** 2 @ (np.exp(-(z**2) / 2))
    p = np.exp(d * (log_r - np.exp(2 * log_r) / 2) - d * log_r.max())
    truth = p @ phi / p.sum() / np.exp(-(z**2) / 2).sum()
    assert hom.participation(b, 2, d=d).item() == pytest.approx(truth, abs=1e-8)


def test_the_diagram_collects_rates_and_times() -> None:
    diagram = hom.collapse_diagram([1.0, 30.0, 90.0], [8, 100], 64)
    f = hom.participation(30 / 8, 100, d=64)
    assert diagram.f[1, 1] == f
    assert diagram.time[1, 1].item() == pytest.approx(math.log(100) / (1 - f.item()))
    assert (diagram.time[1:] > diagram.time[:-1]).all()  # colder is slower
    assert (diagram.rate[:, 1] > diagram.rate[:, 0]).all()  # longer contexts are hotter


@pytest.mark.slow(but_for=["1.0"])
@pytest.mark.parametrize("beta", [1.0, 20.0, 40.0])
def test_the_collapse_time_is_that_of_the_ode_up_to_a_constant(beta: float) -> None:
    n, d = 256, 1024
    b = hom.GaussianWeights(d).logit_scale(beta)
    time = hom.collapse_diagram([beta], [n], d).time.item()
    gamma = hom.simplex_overlap(np.linspace(0.5, 2.0, 16) * time, n, b, d=d, samples=256)
    crossed = np.interp(0.5, gamma.numpy(), np.linspace(0.5, 2.0, 16))
    assert 0.6 < crossed < 1.3


# --- equal angles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [-0.1, 0.0, 0.4])
def test_ratios_are_the_s_of_tokens_at_equal_angles(gamma: float) -> None:
    n, d, beta = 5, 6, 8.0
    law = hom.GaussianWeights(d)
    s = hom.s_matrix(hom.simplex(n, d, gamma), weights=law, beta=beta, draws=100_000, rng=0)
    found = hom.simplex_ratios(gamma, n, law.logit_scale(beta), d=d, samples=100_000)
    own, mixed = s.trace().item() / n, (s.sum() - s.trace()).item() / (n * (n - 1))
    assert own == pytest.approx(gamma + (1 - gamma) * found.f.item(), abs=3e-3)
    assert mixed == pytest.approx(gamma + (1 - gamma) * found.g.item(), abs=3e-3)
    assert found.error < 1.2e-3


def test_the_velocity_is_the_drift_of_overlaps_and_the_printed_one_its_limit() -> None:
    gamma, f, g, d = 0.3, 0.6, 0.2, 7
    R = torch.tensor([[1.0, gamma], [gamma, 1.0]], dtype=torch.float64)
    own, mixed = gamma + (1 - gamma) * f, gamma + (1 - gamma) * g
    s = torch.tensor([[own, mixed], [mixed, own]], dtype=torch.float64)
    drift = hom.overlap_drift(R, s, d)[0, 1].item()
    assert hom.simplex_velocity(gamma, f, g, d).item() == pytest.approx(drift, abs=1e-15)
    printed = (1 - gamma) * (gamma + g - gamma * f)
    assert hom.simplex_velocity(gamma, f, g).item() == pytest.approx(printed, abs=1e-15)


def test_the_ode_is_scipys_at_beta_0_in_every_dimension() -> None:
    n, t = 4, np.array([0.0, 0.7, 3.0])
    for d in (5, 50):
        run = solve_ivp(
            lambda _, c, d=d: (c + (1 - c) / n) * (1 - c) * (d - 2 - c) / d,
            (0, 3),
            [0.1],
            t_eval=t,
            rtol=1e-10,
            atol=1e-12,
        )
        found = hom.simplex_overlap(t, n, 0.0, d=d, gamma0=0.1)
        np.testing.assert_allclose(found.numpy(), run.y[0], atol=1e-6)


def chain_and_odes(samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    n, d, beta = 8, 64, 1.0
    law = hom.GaussianWeights(d)
    run = hom.chain(
        hom.simplex(n, d),
        weights=law,
        beta=beta,
        eta=0.2,
        layers=72,
        samples=samples,
        rng=0,
        save_at=[36, 72],
    )
    t, b = run.clock.numpy(), law.logit_scale(beta)
    np.testing.assert_allclose(t, [1.44, 2.88])
    R = run.pair_overlap
    exact, large = (hom.simplex_overlap(t, n, b, d=k).numpy() for k in (d, math.inf))
    return R.mean(1).numpy(), R.std(1).numpy() / math.sqrt(samples), exact, large


@pytest.mark.slow
def test_the_ode_for_this_dimension_is_closer_to_the_chain_than_the_printed_one() -> None:
    mean, error, exact, large = chain_and_odes(400)
    np.testing.assert_allclose(exact, [0.272, 0.654], atol=0.003)
    np.testing.assert_allclose(large, [0.285, 0.679], atol=0.003)
    assert (np.abs(mean - [0.261, 0.611]) < 3 * np.hypot(error, [0.011, 0.013])).all()
    assert (np.abs(exact - mean) < np.abs(large - mean)).all()
    assert (np.abs(large - mean) > 3 * error).all()


@pytest.mark.slow
def test_in_high_dimension_the_step_is_all_that_is_left_between_the_ode_and_the_chain() -> None:
    """At beta = 0 and d = infinity a layer is gamma <- (gamma + eta^2 s) / (1 + eta^2 s)."""
    n, d, eta, layers = 8, 256, 0.2, 36
    run = hom.chain(
        hom.simplex(n, d),
        weights=hom.GaussianWeights(d),
        beta=0.0,
        eta=eta,
        layers=layers,
        samples=4000,
        rng=0,
    )
    gap = run.pair_overlap[-1].numpy() - hom.simplex_overlap(eta**2 * layers, n, 0.0, d=d).item()
    gamma = 0.0
    for _ in range(layers):
        s = gamma + (1 - gamma) / n
        gamma = (gamma + eta**2 * s) / (1 + eta**2 * s)
    left = gamma - hom.simplex_overlap(eta**2 * layers, n, 0.0).item()
    assert left < -0.007
    assert strays(gap, left) < 3


# --- high and low temperature --------------------------------------------------------------------------


@pytest.mark.slow
def test_at_high_temperature_the_mean_overlap_is_logistic() -> None:
    n, d, beta = 8, 256, 0.05
    run = hom.chain(
        hom.simplex(n, d),
        weights=hom.GaussianWeights(d),
        beta=beta,
        eta=0.25,
        layers=48,
        samples=200,
        rng=0,
        save_at=[0, 16, 32, 48],
    )
    m = run.mean_overlap
    t = run.clock[-1].item()
    bound = math.exp(t) * max(1 / d, beta**2) / 2  # C = 1 in the exponent and 1/2 before it
    gap = (m.mean(1) - hom.logistic(run.clock, 1 / n)).abs().numpy()
    error = (m.std(1) / math.sqrt(200)).numpy()
    assert (gap <= bound + 3 * error).all(), (gap, bound, error)
    assert bound < 0.05
    assert (m.std(1)[1:] < math.sqrt(t / d)).all()  # fluctuations


def test_the_logistic_law_solves_its_equation() -> None:
    t = torch.linspace(0, 5, 5001, dtype=torch.float64)
    u = hom.logistic(t, 0.2)
    slope = (u[2:] - u[:-2]) / (t[2:] - t[:-2])
    torch.testing.assert_close(slope, (u * (1 - u))[1:-1], rtol=1e-6, atol=1e-6)
    assert hom.logistic(1e4, 0.0).item() == 0
    assert hom.logistic([0.0, 1e4], 1.0).tolist() == [1, 1]


def test_low_temperature_is_s_equal_to_the_overlaps() -> None:
    R = torch.tensor([[1.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
    d, u = 11, 0.3
    assert hom.overlap_drift(R, R, d)[0, 1].item() == pytest.approx(-u * (1 - u**2) / d, abs=1e-15)
    assert hom.overlap_bracket(R, R, d)[0, 1].item() == pytest.approx(2 * (1 - u**2) ** 2 / d, abs=1e-15)


def test_pairs_end_parallel_or_antipodal_by_the_arcsine_law() -> None:
    u0 = [-0.9, -0.3, 0.0, 0.5, 0.8]
    end = hom.low_temperature_paths(u0, [25.0], samples=4000, rng=0, dt=1 / 16)[0].numpy()
    assert (np.abs(end) > 0.9).mean() > 0.999
    p = hom.aligned_probability(u0).numpy()
    np.testing.assert_allclose(p, 0.5 + np.arcsin(u0) / np.pi)
    share = (end > 0).mean(0)
    assert (np.abs(share - p) < 3 * np.sqrt(p * (1 - p) / 4000)).all()


@pytest.mark.slow
def test_the_arcsine_of_a_path_has_a_constant_mean_and_its_variance_grows_as_it_should() -> None:
    u0, t = 0.4, [0.0, 0.05, 0.5]
    angle = np.arcsin(hom.low_temperature_paths(u0, t, samples=40_000, rng=1, dt=0.005).numpy()[..., 0])
    for k in (1, 2):
        assert strays(angle[k], math.asin(u0)) < 3
    assert angle[1].var() == pytest.approx(2 * 0.05 * (1 - u0**2), rel=0.1)  # dtheta = sqrt(2) cos(theta) dB


def test_a_product_of_gaussian_matrices_blurs_angles_by_one_over_d() -> None:
    """At zero temperature in a uniform crowd s = E cos(A x, A y), A = W W'^T drawn as matrices."""
    d, u, size = 16, 0.8, 20_000
    x, rng = np.array([[1.0, u], [0.0, math.sqrt(1 - u**2)]]), np.random.default_rng(0)
    cosines = []
    for _ in range(20):
        W, W_ = rng.standard_normal((2, size // 20, d, d))
        y = W @ (W_.swapaxes(1, 2)[..., :2] @ x)
        y /= np.linalg.norm(y, axis=1, keepdims=True)
        cosines.append((y[..., 0] * y[..., 1]).sum(1))
    c = np.concatenate(cosines)
    assert strays(c, u * (1 - (1 - u**2) / d)) < 3
    assert strays(c, u) > 10


def test_with_twice_the_drift_artanh_of_the_overlap_is_a_brownian_motion() -> None:
    u = hom.low_temperature_paths(0.3, [0.5, 1.0], samples=20_000, rng=0, dt=0.25, c=2.0).numpy()[..., 0]
    for k, t in enumerate((0.5, 1.0)):
        y = np.arctanh(u[k])
        assert strays(y, math.atanh(0.3)) < 3
        assert strays((y - math.atanh(0.3)) ** 2, 2 * t) < 3


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hom.simplex(5, 4), "n = 5: at most d = 4"),
        (lambda: hom.simplex(1, 4), "two tokens"),
        (lambda: hom.simplex(3, 4, -0.5), r"in \(-1/2, 1\]"),
        (lambda: hom.simplex(3, 4, 1.1), "gamma"),
        (lambda: hom.simplex_ratios([0.0, -0.2], 6, 1.0), "gamma = -0.2"),
        (lambda: hom.simplex_ratios(0.0, 6, -1.0), "b"),
        (lambda: hom.simplex_ratios(0.0, 6, 1.0, d=2.5), "d = 2.5"),
        (lambda: hom.simplex_ratios(0.0, 6, 1.0, samples=0), "samples"),
        (lambda: hom.simplex_overlap(-1.0, 6, 1.0), "t"),
        (lambda: hom.simplex_overlap(1.0, 6, 1.0, gamma0=2.0), "gamma"),
        (lambda: hom.simplex(3, 4, [0.1, 0.2]), "gamma"),  # type: ignore[arg-type]
        (lambda: hom.simplex_overlap(1.0, 6, 1.0, gamma0=[0.1, 0.2]), "gamma0"),  # type: ignore[arg-type]
        (lambda: hom.simplex_overlap(1.0, 2, 1.0, d=1), "n = 2: at most d = 1"),
        (lambda: hom.low_temperature_paths(0.0, [], samples=2, rng=0), "two lists"),
        (lambda: hom.simplex_velocity(1.5, 0.1, 0.1), "gamma"),
        (lambda: hom.participation(1.0, 1), "n"),
        (lambda: hom.participation(-1.0, 4), "b"),
        (lambda: hom.participation(1e4, 4), "frozen_participation"),
        (lambda: hom.participation(1.0, 4, d=0), "d"),
        (lambda: hom.participation("b", 4), "real numbers"),
        (lambda: hom.participation([1.0, 2.0], [2, 3, 4]), "broadcast"),
        (lambda: hom.critical_scale(1.5), "n"),
        (lambda: hom.collapse_diagram([1.0], 4, 8), "two lists"),
        (lambda: hom.collapse_diagram([-1.0], [4], 8), "b"),
        (lambda: hom.collapse_diagram([1.0], [1], 8), "n"),
        (lambda: hom.logistic(1.0, 1.5), "u0"),
        (lambda: hom.logistic(-1.0, 0.5), "t"),
        (lambda: hom.aligned_probability(1.01), r"u0 = 1.01: an overlap is in \[-1, 1\]"),
        (lambda: hom.aligned_probability(math.nan), "u0"),
        (lambda: hom.low_temperature_paths(1.0, [1.0], samples=2, rng=0), "stay there"),
        (lambda: hom.low_temperature_paths(0.0, [1.0, 0.5], samples=2, rng=0), r"np\.sort\(t\)"),
        (lambda: hom.low_temperature_paths(0.0, [1.0], samples=0, rng=0), "samples"),
        (lambda: hom.low_temperature_paths(0.0, [1.0], samples=2, rng=0, c=math.nan), "c = nan"),
    ],
)
def test_laws_refuse_what_makes_no_sense(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_ends_are_ends() -> None:
    assert hom.simplex_overlap([0.0, 2.0], 4, 1.0, gamma0=1.0).tolist() == [1, 1]
    assert hom.simplex_overlap([], 4, 1.0).shape == (0,)
    assert hom.aligned_probability([-1.0, 1.0]).tolist() == [0, 1]
