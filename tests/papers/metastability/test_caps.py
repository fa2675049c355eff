"""The theorem of metastability: its constants against brute force, its conclusions against real flows."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import otflow as of
from otflow.base.errors import InputError
from otflow.papers.metastability import cap_index, metastable_times, separation, uniform_condition

ANTIPODES = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
TRIANGLE = np.array([[1.0, 0.0, 0.0], [-0.5, 0.75**0.5, 0.0], [-0.5, -(0.75**0.5), 0.0]])
EPS = 0.01


def rim(w: np.ndarray, eps: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Points with <x, w_q> = 1 - eps in random directions, (k, count, d)."""
    u = rng.normal(size=(len(w), count, w.shape[-1]))
    u -= (u * w[:, None]).sum(-1, keepdims=True) * w[:, None]
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    return np.asarray((1 - eps) * w[:, None] + math.sqrt(eps * (2 - eps)) * u)


def attention(beta: float, normalised: bool, d: int) -> of.VelocityField:
    eye = torch.eye(d, dtype=torch.float64)
    A = beta**0.5 * eye
    return (
        of.SoftmaxAttention(A, A, eye)
        if normalised
        else math.exp(-beta) * of.UnnormalisedAttention(A, A, eye)
    )


def test_separation_is_the_largest_cosine_between_points_of_caps() -> None:
    rng = np.random.default_rng(0)
    w = np.array([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8], [0.0, -1.0, 0.0]])
    for eps in (0.005, 0.03):
        alpha = separation(w, eps).item()
        x, y, z = rim(w, 2 * eps, 3000, rng)
        found = max(float((a @ b.T).max()) for a, b in ((x, y), (x, z), (y, z)))
        assert alpha - 2e-4 < found <= alpha


def test_separation_of_orthogonal_and_of_overlapping_caps() -> None:
    eps = 0.02
    exact = 4 * (1 - 2 * eps) * math.sqrt(eps * (1 - eps))
    assert separation(np.eye(5), eps).item() == pytest.approx(exact, rel=1e-13)
    assert exact <= 4 * math.sqrt(eps) + 4 * eps
    assert separation([[1.0, 0.0], [math.cos(0.1), math.sin(0.1)]], eps).item() == 1.0
    batch = separation(torch.stack([torch.eye(3)[:2], -torch.eye(3)[:2]]), eps)
    assert batch.tolist() == pytest.approx([exact] * 2)


def test_the_cap_of_a_token() -> None:
    x = rim(TRIANGLE, EPS, 4, np.random.default_rng(1))
    assert cap_index(x, TRIANGLE, EPS).tolist() == [[0] * 4, [1] * 4, [2] * 4]
    assert cap_index(x, TRIANGLE, EPS * (1 - 1e-6)).tolist() == [[-1] * 4] * 3


def test_the_times_are_those_of_the_formula_also_beyond_floating_point() -> None:
    n, lam, beta = 8, 0.7, 3000.0
    caps = metastable_times(TRIANGLE, EPS, beta, n, lam)
    with mpmath.workdps(50):
        rho = mpmath.acos(1 - 2 * mpmath.mpf(EPS))
        alpha = mpmath.cos(2 * mpmath.pi / 3 - 2 * rho)
        T1 = 2 * n * mpmath.exp(8 * EPS * beta) + mpmath.e * n * lam * beta**2 / (beta - 1)
        T2 = EPS / n * mpmath.exp((1 - alpha) * beta)
        gamma = 1 - alpha - 8 * EPS - mpmath.log(2 * n**2 / EPS) / beta
    assert caps.alpha == pytest.approx(float(alpha), rel=1e-13)
    assert caps.gamma == pytest.approx(float(gamma), rel=1e-12)
    assert caps.log_T1 == pytest.approx(float(mpmath.log(T1)), rel=1e-13)
    assert caps.log_T2 == pytest.approx(float(mpmath.log(T2)), rel=1e-12)
    assert caps.applies


def test_gamma_is_what_makes_the_first_part_of_t1_shorter_than_t2() -> None:
    n, beta = 4, 9.0
    caps = metastable_times(TRIANGLE, EPS, beta, n, 0.1)
    left = math.exp(caps.log_T2 - caps.gamma * beta)
    assert left == pytest.approx(2 * n * math.exp(8 * EPS * beta), rel=1e-12)


def narrow() -> tuple[float, float, float]:
    """beta just above the one where gamma = 0, and the first limit of lam: corrected and as printed."""
    n, beta = 4, 4.45
    caps = metastable_times(ANTIPODES, EPS, beta, n, 1e-3)
    factor = (beta - 1) * EPS / (beta**2 * n**2 * math.e)
    rest = math.exp((1 - caps.alpha) * beta) * (1 - math.exp(-caps.gamma * beta))
    return beta, rest * factor, rest / factor


def test_the_first_limit_of_lam_is_where_t1_is_t2_and_the_printed_one_is_not() -> None:
    beta, corrected, printed = narrow()
    caps = metastable_times(ANTIPODES, EPS, beta, 4, 1e-3)
    assert caps.lam_max == pytest.approx(corrected, rel=1e-12)
    at = metastable_times(ANTIPODES, EPS, beta, 4, corrected)
    assert at.log_T1 == pytest.approx(at.log_T2, abs=1e-12)
    second = 1 - caps.alpha - 8 * EPS - math.log(2 * 16 / (1 - 8 * EPS)) / beta
    allowed = 0.9 * min(printed, second)  # by what is printed
    wrong = metastable_times(ANTIPODES, EPS, beta, 4, allowed)
    assert wrong.log_T1 > wrong.log_T2
    assert "T1 >= T2" in wrong.failures[0]


def test_every_condition_that_fails_is_named() -> None:
    assert [f.split(" ")[0] for f in metastable_times(TRIANGLE, EPS, 0.9, 4, 5.0).failures] == [
        "beta",
        "gamma",
        "lam",
    ]
    assert metastable_times(TRIANGLE, EPS, 0.9, 4, 5.0).log_T1 == math.inf
    high = metastable_times(TRIANGLE, EPS, 40.0, 4, 1.1)
    assert high.failures == (
        f"lam = 1.1 is not below {high.lam_max:g}, the rate that other caps allow: lower lam",
    )
    assert metastable_times(TRIANGLE, EPS, 40.0, 4, 0.9 * high.lam_max).applies


@pytest.mark.slow(but_for=["w0-6.0-1.2-True", "w1-11.0-0.6-False"])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("w", "beta", "lam"), [(ANTIPODES, 6.0, 1.2), (TRIANGLE, 11.0, 0.6)])
def test_tokens_stay_in_their_caps_until_t2_and_have_collapsed_by_t1(
    w: np.ndarray, beta: float, lam: float, normalised: bool
) -> None:
    x = rim(w, EPS, 2, np.random.default_rng(3))
    caps = metastable_times(w, EPS, beta, 2 * len(w), lam)
    assert caps.applies
    T1, T2 = math.exp(caps.log_T1), math.exp(caps.log_T2)
    assert T2 > 2 * T1
    cloud = of.Particles(x.reshape(-1, 3), space=of.Sphere())
    traj = of.flow(cloud, attention(beta, normalised, 3), of.Dopri5(), t1=T2, save_at=np.linspace(0, T2, 120))
    states = traj.stacked.nodes()[0].reshape(-1, *x.shape)
    own = torch.arange(len(w))[:, None].expand(len(w), 2)
    assert bool((cap_index(states, w, 2 * EPS) == own).all())
    gap = (states[0, :, 0] - states[0, :, 1]).square().sum(-1).max().item()
    assert gap > 2 * math.exp(-lam * beta)  # there is something to collapse
    late = states[traj.ts >= T1]
    spread = (late[:, :, 0] - late[:, :, 1]).square().sum(-1).max().item()
    assert spread <= 2 * math.exp(-lam * beta)


def test_the_condition_for_uniform_tokens_is_the_corrected_one() -> None:
    d, n, beta = 2000, 6, 30.0
    found = uniform_condition(d, n, beta)
    eps = 4 * math.log(d) / d
    assert found.eps == eps
    assert found.value == pytest.approx(4 * eps**0.5 + 12 * eps + math.log(2 * n**2 / eps) / beta, rel=1e-14)
    assert found.probability == 0.0  # the bound says something beyond d = (2 n^2)^64 only
    assert uniform_condition(10**300, 2, beta).probability == pytest.approx(1 - 8 * 10 ** (-300 / 64))


def test_caps_of_orthogonal_centres_satisfy_the_theorem_where_the_corrected_condition_holds() -> None:
    n = 6
    for d in (500, 2000, 20000):
        for beta in (20.0, 50.0, 200.0):
            found = uniform_condition(d, n, beta)
            caps = metastable_times(np.eye(n), found.eps, beta, n, 1e-6)
            assert not found.holds or caps.gamma > 0
    # the printed one holds where gamma < 0, so that the theorem says nothing
    found = uniform_condition(500, n, 20.0)
    assert found.printed < 1 < found.value
    assert metastable_times(np.eye(n), found.eps, 20.0, n, 1e-6).gamma < 0


def test_numbers_beyond_floating_point_are_taken_as_logarithms() -> None:
    with mpmath.workdps(30):
        for n in (10**200, 10**400):
            caps = metastable_times(ANTIPODES, EPS, 3000.0, n, 0.1)
            alpha = mpmath.mpf(caps.alpha)
            gamma = 1 - alpha - 8 * EPS - mpmath.log(2 * mpmath.mpf(n) ** 2 / EPS) / 3000
            assert caps.gamma == pytest.approx(float(gamma), rel=1e-12)
            T2 = mpmath.log(EPS / mpmath.mpf(n)) + (1 - alpha) * 3000
            assert caps.log_T2 == pytest.approx(float(T2), rel=1e-12)
        d, n = 10**400, 10**2
        eps = 4 * mpmath.log(d) / mpmath.mpf(d)
        value = 4 * mpmath.sqrt(eps) + 12 * eps + mpmath.log(2 * n**2 / eps) / 2000
        found = uniform_condition(d, n, 2000.0)
        assert found.value == pytest.approx(float(value), rel=1e-12)
        assert found.probability == pytest.approx(
            float(1 - 2 * n**2 * mpmath.mpf(d) ** (-mpmath.mpf(1) / 64))
        )
    cold = metastable_times(ANTIPODES, EPS, 1e200, 4, 0.5)
    assert cold.applies
    assert cold.log_T1 == pytest.approx(8 * EPS * 1e200)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: separation(np.eye(2), 1 / 16), "1/16"),
        (lambda: separation(np.eye(2), 0.0), "1/16"),
        (lambda: separation(2 * np.eye(2), 0.01), "norm 1"),
        (lambda: separation([[1.0, 0.0]], 0.01), "w.shape"),
        (lambda: metastable_times(np.eye(2), 0.01, -1.0, 4, 0.1), "beta"),
        (lambda: metastable_times(np.eye(2), 0.01, 9.0, 0, 0.1), "n = 0"),
        (lambda: metastable_times(np.eye(2), 0.01, 9.0, 4, 0.0), "lam"),
        (lambda: metastable_times(np.eye(2)[None], 0.01, 9.0, 4, 0.1), "one set of centres"),
        (lambda: cap_index(np.eye(2), np.eye(2), -0.1), "eps"),
        (lambda: uniform_condition(1, 4, 9.0), "d >= 2"),
        (lambda: uniform_condition(10, 4, 0.0), "beta"),
        (lambda: uniform_condition(10, 4, 5e-324), "larger beta"),
        (lambda: uniform_condition(4096, 4097, 50.0), "n <= d"),
        (lambda: metastable_times(ANTIPODES, EPS, 1.7e308, 4, 0.5), "logarithm"),
        (lambda: cap_index([1.0, 0.0], np.eye(2), 0.1), "x.shape"),
        (lambda: cap_index(np.eye(3), np.eye(2), 0.1), "x.shape"),
        (lambda: cap_index(np.eye(2), np.eye(2)[None], 0.1), "w.shape"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        call()
