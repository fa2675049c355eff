"""Closed forms of retrieval against quadrature, mpmath, scipy's matrix exponential and reference numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.polynomial import chebyshev
from scipy import integrate, special

from otflow.base.errors import InputError
from otflow.papers import lost_in_the_middle as causal

GRID = np.linspace(0.02, 0.98, 800)  # the authors'


def by_collocation(t: float, sigma0: float, a: float, lam: float, nodes: int = 48) -> tuple[Any, Any]:
    """dg/dt = a (k + int k g) on Chebyshev nodes in log sigma: a linear system with constant coefficients."""
    x = np.cos(np.pi * np.arange(nodes) / (nodes - 1))[::-1]
    half = -math.log(sigma0) / 2
    sigma = np.exp(half * (x - 1))
    lagrange = np.linalg.inv(chebyshev.chebvander(x, nodes - 1))
    primitive = np.array([chebyshev.chebval(x, chebyshev.chebint(c, lbnd=-1)) for c in np.eye(nodes)]).T
    integral = half * (primitive @ lagrange)  # int_0^x in log sigma

    def k(s: Any, s0: Any) -> Any:
        return lam * np.exp(-lam * (s - s0)) / (1 - np.exp(-lam * s)) if lam else 1 / s + 0 * s0

    K = integral * k(sigma[:, None], sigma[None, :]) * sigma[None, :]
    system = np.zeros((nodes + 1, nodes + 1))
    system[:-1, :-1], system[:-1, -1] = a * K, a * k(sigma, sigma0)
    return sigma, scipy.linalg.expm(t * system)[:-1, -1]


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0, 6.0])
@pytest.mark.parametrize(("a", "t"), [(0.565, 1.0), (2.7, 3.0), (0.01, 0.5)])
def test_the_response_solves_its_integral_equation(lam: float, a: float, t: float) -> None:
    for sigma0 in (0.02, 0.4, 0.9):
        sigma, g = by_collocation(t, sigma0, a, lam)
        ours = causal.response(t, sigma[1:], sigma0, a, lam).numpy()
        np.testing.assert_allclose(ours, g[1:], rtol=1e-9, atol=1e-12)


def test_the_profile_is_the_sum_of_solutions_of_integral_equations() -> None:
    sigma0, t, beta, M = 0.2, 1.3, 2.0, 8
    omega = [math.exp(-((math.pi * n / M) ** 2) / 2) for n in range(1, 21)]
    g = [by_collocation(t, sigma0, float(mpmath.besseli(n, beta)) * n**2, 1.0)[1][-1] for n in range(1, 21)]
    assert causal.retrieval_profile(sigma0, t, beta, 1.0, M).item() == pytest.approx(
        np.dot(omega, g), rel=1e-9
    )


def test_the_times_are_those_of_the_reference() -> None:
    np.testing.assert_allclose(causal.critical_time([1.0, 2.0], 1.0, 8), [2.457489, 0.600716], atol=5e-7)
    np.testing.assert_allclose(
        causal.u_shape_time([1.0, 2.0, 3.0], 1.0), [2.236965, 0.458758, 0.140771], atol=5e-7
    )
    assert causal.dominant_mode([1.0, 2.0, 3.0]).tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("t", "where", "value"), [(0.25, 0.0621, 0.196849), (0.5, 0.1257, 0.467546), (1.0, 0.2591, 1.195306)]
)
def test_the_minima_are_those_of_the_reference(t: float, where: float, value: float) -> None:
    S = causal.retrieval_profile(GRID, t, 1.0, 1.0, 8).numpy()
    assert GRID[S.argmin()] == pytest.approx(where, abs=5e-5)
    assert S.min() == pytest.approx(value, abs=5e-7)


def test_the_profile_at_the_end_is_that_of_the_reference_and_late_it_falls() -> None:
    assert causal.retrieval_profile(1 - 1e-13, 1.0, 1.0, 1.0, 8).item() == pytest.approx(1.63825, abs=5e-6)
    assert (causal.retrieval_profile(GRID, 5.0, 1.0, 1.0, 8).diff() < 0).all()


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.0, 3.0, 8.0])
@pytest.mark.parametrize("lam", [0.2, 1.0, 5.0])
def test_up_to_the_time_of_the_theorem_the_profile_is_a_u(beta: float, lam: float) -> None:
    modes = int(20 + 2 * beta)
    sigma0 = np.concatenate([np.geomspace(1e-12, 0.02, 400)[:-1], np.linspace(0.02, 1 - 1e-9, 2000)])
    for part in (0.05, 0.5, 1.0):
        t = part * causal.u_shape_time(beta, lam)
        rising = causal.retrieval_profile(sigma0, t, beta, lam, 8, modes=modes).diff() > 0
        assert not rising[0]  # primacy
        assert rising[-1]  # recency
        assert rising.int().diff().ne(0).sum() == 1  # one minimum
    ends = causal.retrieval_profile([1e-300, 1e-100, 1e-3], float(t), beta, lam, 8, modes=modes)
    assert (ends.diff() < 0).all()


@pytest.mark.parametrize(("beta", "lam", "M"), [(1.0, 1.0, 8), (2.0, 0.5, 4), (4.0, 3.0, 16)])
def test_recency_ends_at_the_critical_time(beta: float, lam: float, M: int) -> None:
    crit = causal.critical_time(beta, lam, M).item()
    h = 1e-5
    for t, sign in ((0.99 * crit, 1), (1.01 * crit, -1)):
        early, late = causal.retrieval_profile([1 - 2 * h, 1 - h], t, beta, lam, M)
        assert sign * (late - early) > 0
    assert crit >= causal.u_shape_time(beta, lam)


def exact_response(t: float, sigma: float, sigma0: float, a: float, lam: float) -> float:
    with mpmath.workdps(60):
        t, sigma, sigma0, a, lam = map(mpmath.mpf, (t, sigma, sigma0, a, lam))
        Y = (
            mpmath.log(mpmath.expm1(lam * sigma) / mpmath.expm1(lam * sigma0))
            if lam
            else mpmath.log(sigma / sigma0)
        )
        k = lam * mpmath.exp(-lam * (sigma - sigma0)) / -mpmath.expm1(-lam * sigma) if lam else 1 / sigma
        return float(k * mpmath.sqrt(a * t / Y) * mpmath.besseli(1, 2 * mpmath.sqrt(a * t * Y)))


@pytest.mark.parametrize(
    "args",
    [
        (1.0, 1.0, 0.5, 2000.0, 900.0),  # k is exp(-450), I_1 is exp(1897)
        (1.0, 1.0, 0.01, 1e4, 1.0),
        (1.0, 1.0, 1 - 1e-15, 3.0, 1.0),
        (1e-200, 0.7, 0.3, 1e-50, 2.0),
        (2.0, 0.7, 0.3, 1.5, 1e-12),
        (2.0, 0.7, 1e-300, 1.5, 0.0),
        (1.0, 1.0, 0.5, 0.5, 1400.0),
        (1.0, 1.0, 0.1, 300.0, 1000.0),  # k vanishes, the response is 2e61
        (1.0, 1.0, 0.05, 190.0, 780.0),  # k has a few digits only
        (1e-200, 1e-300, 1e-301, 1e-150, 0.0),  # at vanishes, k is 1e300
        (1.0, 1.0, 5e-324, 1.0, 0.0),
        (1.0, 1.0, 0.5, 10.0, 1e5),
    ],
)
def test_the_response_keeps_its_digits_where_exponentials_overflow(args: tuple[float, ...]) -> None:
    exact = exact_response(*args)
    if math.isinf(exact):
        with pytest.raises(InputError, match="largest float64"):
            causal.response(*args)
    else:
        assert causal.response(*args).item() == pytest.approx(exact, rel=2e-13, abs=0)


def test_profiles_and_hops_are_those_of_mpmath_where_the_graphon_vanishes() -> None:
    sigma0, t, beta, lam, M = 0.1, 1e-4, 15.0, 900.0, 8
    omega = [math.exp(-((math.pi * n / M) ** 2) / 2) for n in range(1, 21)]
    a = [float(n**2 * mpmath.besseli(n, beta)) for n in range(1, 21)]
    exact = sum(w * exact_response(t, 1.0, sigma0, b, lam) for w, b in zip(omega, a, strict=True))
    assert causal.retrieval_profile(sigma0, t, beta, lam, M).item() == pytest.approx(exact, rel=1e-12)
    hops = sum(causal.hop(m, sigma0, t, beta, lam, M).item() for m in range(1, 1500))
    assert hops == pytest.approx(exact, rel=1e-9)


def test_beta_and_lam_may_be_extreme() -> None:
    """a_1 = beta / 2 and the rest vanishes (Bessel functions go through log beta and lose a digit)."""
    beta, lam = 1e-100, 1.0
    limit = -2 * math.expm1(-lam) * 2 / beta
    assert causal.coupling([1, 2], beta).tolist() == pytest.approx([beta / 2, beta**2 / 2], rel=1e-13)
    assert causal.critical_time(beta, lam, 8).item() == pytest.approx(limit, rel=1e-13)
    assert causal.u_shape_time(beta, lam).item() == pytest.approx(limit, rel=1e-13)
    assert causal.coupling([400, 1e200], 1.0).tolist() == [0.0, 0.0]
    assert causal.retrieval_profile(0.5, 1.0, [0.0, beta], lam, 8)[0] == 0
    assert causal.response(1.0, 1.0, 0.5, 10.0, 1e308) == 0


def test_nothing_in_gives_nothing_out() -> None:
    assert causal.retrieval_profile([], 1.0, 1.0, 1.0, 8).shape == (0,)
    assert causal.hop(1, [], 1.0, 1.0, 1.0, 8).shape == (0,)
    assert causal.response([], 1.0, 0.5, 1.0, 1.0).shape == (0,)
    assert causal.finite_response(causal.alibi_matrix(5, 0.0), [], 1.0).shape == (
        0,
        5,
    )


def test_no_token_hears_itself_or_the_future() -> None:
    assert causal.response(1.0, [0.2, 0.5], [0.5, 0.5], 1.0, 1.0).tolist() == [0.0, 0.0]
    assert causal.graphon([0.2, 0.5], 0.5, 1.0).tolist() == [0.0, 0.0]
    assert causal.depth([0.2, 0.5], 0.5, 1.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("lam", [0.0, 1e-9, 1.0, 40.0])
def test_the_graphon_integrates_to_one(lam: float) -> None:
    s, w = special.roots_legendre(100)
    for sigma in (0.1, 1.0):
        k = causal.graphon(sigma, sigma * (s + 1) / 2, lam).numpy()
        assert (k @ w) * sigma / 2 == pytest.approx(1.0, rel=1e-11)


@pytest.mark.parametrize("lam", [1e-12, 3.0, 1000.0, 1e6])
def test_the_graphon_is_that_of_mpmath(lam: float) -> None:
    for sigma, sigma0 in ((1.0, 0.9999), (0.3, 0.2), (1e-8, 0.0)):
        with mpmath.workdps(40):
            s, s0, slope = map(mpmath.mpf, (sigma, sigma0, lam))
            exact = slope * mpmath.exp(-slope * (s - s0)) / -mpmath.expm1(-slope * s)
        assert causal.graphon(sigma, sigma0, lam).item() == pytest.approx(float(exact), rel=1e-10, abs=1e-300)


def test_the_coupling_is_the_normalised_fourier_coefficient_of_the_force() -> None:
    beta = 1.7
    for n in (1, 2, 5):
        force = lambda x: -beta * math.sin(x) * math.exp(beta * math.cos(x)) * math.sin(n * x)  # noqa: E731, B023
        sine = integrate.quad(force, -math.pi, math.pi, epsabs=1e-14)[0] / (2 * math.pi)  # -n I_n
        assert causal.coupling(n, beta).item() == pytest.approx(-n * sine, rel=1e-11)


def test_the_largest_coupling_is_that_of_mpmath() -> None:
    for beta in (0.5, 2.0, 30.0, 650.0):
        a = [n**2 * mpmath.besseli(n, beta) for n in range(1, 80)]
        best = max(range(79), key=lambda i: a[i])
        assert causal.dominant_mode(beta).item() == best + 1
        assert causal.coupling(best + 1, beta).item() == pytest.approx(float(a[best]), rel=1e-12)


def test_hops_sum_up_to_the_profile_and_few_suffice_early() -> None:
    hops = torch.stack([causal.hop(m, GRID, 1.0, 1.0, 1.0, 8) for m in range(1, 25)])
    np.testing.assert_allclose(hops.sum(0), causal.retrieval_profile(GRID, 1.0, 1.0, 1.0, 8), rtol=1e-13)
    assert (hops[0].diff() > 0).all()
    assert causal.hop(500, 0.5, 1.0, 1.0, 1.0, 8) == 0  # far below the smallest float64, and no overflow
    assert causal.hop(1, [0.1, 0.5], 0.0, 1.0, 1.0, 8).tolist() == [0.0, 0.0]
    for t in (1e-2, 1e-3):
        two = causal.hop(1, GRID, t, 1.0, 1.0, 8) + causal.hop(2, GRID, t, 1.0, 1.0, 8)
        error = (two - causal.retrieval_profile(GRID, t, 1.0, 1.0, 8)).abs().max()
        assert error < 20 * t**3


def test_arguments_broadcast() -> None:
    S = causal.retrieval_profile(GRID[:5], [[0.5], [1.0]], 1.0, 1.0, 8)
    assert S.shape == (2, 5)
    assert S[1, 3] == causal.retrieval_profile(GRID[3], 1.0, 1.0, 1.0, 8)
    assert causal.critical_time([1.0, 2.0], [[1.0], [2.0], [3.0]], 8).shape == (3, 2)
    assert causal.hop(2, GRID[:4], [[0.5], [1.0]], 1.0, 1.0, 8).shape == (2, 4)
    assert causal.retrieval_profile(0.5, 1.0, 1.0, 1.0, 8).shape == ()


@pytest.mark.parametrize("M", [2, 3, 8, 50])
def test_the_soft_accuracy_has_the_modes_of_its_expansion(M: int) -> None:
    x = 2 * np.pi * np.arange(4096) / 4096
    values = causal.soft_accuracy(x, 0.0, M).numpy()
    n = np.arange(1, 30)
    modes = np.fft.rfft(values).real / 4096
    assert modes[0] == pytest.approx(math.sqrt(math.pi / 2) / M, rel=1e-13)
    expected = math.sqrt(math.pi / 2) / M * np.exp(-((np.pi * n / M) ** 2) / 2)
    np.testing.assert_allclose(modes[1:30], expected, rtol=1e-9, atol=1e-16)
    # so correlations g_n / N of the modes add sqrt(2 pi) / (M N) sum omega_n g_n
    gain = (
        2
        * expected[:20]
        @ [causal.response(1.0, 1.0, 0.4, causal.coupling(k, 1.0), 1.0).item() for k in n[:20]]
    )
    predicted = causal.predicted_accuracy(64, 0.4, 1.0, 1.0, 1.0, M).item()
    assert predicted == pytest.approx(modes[0] + gain / 64, rel=1e-12)


# --- finite N ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("N", "error"), [(64, 0.01315), (256, 0.00334), (1024, 0.00084)])
def test_finite_responses_tend_to_the_closed_form_as_in_the_reference(N: int, error: float) -> None:
    """Away from the first few tokens, where the limit is not uniform."""
    a, sigma0 = causal.coupling(1, 1.0), (np.arange(N - 1) + 0.5) / N
    row = N * causal.finite_response(causal.alibi_matrix(N, 1.0), a, 1.0)[:-1]
    gap = (row - causal.response(1.0, 1.0, sigma0, a, 1.0)).abs()
    assert gap[sigma0 >= 0.02].max().item() == pytest.approx(error, abs=5e-6)


@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("lam", [0.0, 1.0, 5000.0])
def test_weights_are_causal_and_sum_to_one(window: int | None, lam: float) -> None:
    Omega = causal.alibi_matrix(30, lam, window=window)
    assert not Omega.triu().any()
    np.testing.assert_allclose(Omega.sum(-1), [0.0] + 29 * [1.0], rtol=1e-14)
    j, k = np.indices((30, 30))
    seen = (k < j) & (j - k <= (window or 30))
    raw = np.where(seen, np.exp(-lam * (j - k - 1).clip(0) / 30), 0)
    np.testing.assert_allclose(Omega[1:], raw[1:] / raw[1:].sum(1, keepdims=True), rtol=1e-14)


def test_finite_responses_are_rows_of_the_matrix_exponential() -> None:
    heads = torch.stack([causal.alibi_matrix(80, 1.0, window=9), causal.alibi_matrix(80, 0.0)])
    a = [[0.4, 1.2], [3.0, 0.0], [0.0, 0.0]]
    rows = causal.finite_response(heads, a, 2.5, row=60)
    assert rows.shape == (3, 80)
    for ours, (first, second) in zip(rows, a, strict=True):
        exact = scipy.linalg.expm(2.5 * (first * heads[0] + second * heads[1]).numpy())[60]
        np.testing.assert_allclose(ours, exact, rtol=1e-12, atol=1e-14)
    one = causal.finite_response(heads[1], [[0.1, 40.0]], 1.0)
    assert one.shape == (1, 2, 80)
    np.testing.assert_allclose(one[0, 1], scipy.linalg.expm(40.0 * heads[1].numpy())[-1], rtol=1e-11)


def test_the_finite_profile_tends_to_the_profile() -> None:
    sigma0 = (np.arange(1999) + 0.5) / 2000
    S = causal.retrieval_profile(sigma0, 1.0, 1.0, 1.0, 8)
    gap = (causal.finite_profile(causal.alibi_matrix(2000, 1.0), 1.0, 1.0, 8) - S)[sigma0 > 0.02]
    assert 0 < gap.abs().max() < 3 / 2000
    halves = torch.stack(2 * [causal.alibi_matrix(50, 1.0)])
    np.testing.assert_allclose(
        causal.finite_profile(halves, 1.0, 1.0, 8),
        causal.finite_profile(halves[0], 2.0, 1.0, 8),
        rtol=1e-12,
    )


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: causal.retrieval_profile(0.0, 1.0, 1.0, 1.0, 8), "sigma0 = 0"),
    (lambda: causal.retrieval_profile([0.5, 1.0], 1.0, 1.0, 1.0, 8), "sigma0 = 1"),
    (lambda: causal.retrieval_profile(0.5, -1.0, 1.0, 1.0, 8), "t = -1"),
    (lambda: causal.retrieval_profile(0.5, 1.0, -1.0, 1.0, 8), "beta = -1"),
    (lambda: causal.retrieval_profile(0.5, 1.0, 1.0, -1.0, 8), "lam = -1"),
    (lambda: causal.retrieval_profile(0.5, 1.0, 1.0, 1.0, 1), "M = 1"),
    (lambda: causal.retrieval_profile(0.5, 1.0, 1.0, 1.0, 8, modes=0), "modes = 0"),
    (lambda: causal.retrieval_profile(math.nan, 1.0, 1.0, 1.0, 8), "finite"),
    (lambda: causal.response(1.0, 0.0, 0.5, 1.0, 1.0), "sigma = 0"),
    (lambda: causal.response(1.0, 1.0, 0.5, -1.0, 1.0), "a = -1"),
    (lambda: causal.response(1.0, 1.0, 0.5, 1e6, 1.0), "largest float64"),
    (lambda: causal.response(1e300, 1.0, 0.5, 1e300, 1.0), "largest float64"),
    (lambda: causal.retrieval_profile(0.5, 1e200, 600.0, 1.0, 8), "largest float64"),
    (lambda: causal.hop(3, 0.5, 1e200, 1.0, 1.0, 8), "largest float64"),
    (lambda: causal.graphon(1.5, 0.5, 1.0), "sigma = 1.5"),
    (lambda: causal.coupling(1.5, 1.0), "n = 1.5"),
    (lambda: causal.coupling(1, 800.0), "exp"),
    (lambda: causal.critical_time(0.0, 1.0, 8), "beta = 0"),
    (lambda: causal.u_shape_time(0.0, 1.0), "beta = 0"),
    (lambda: causal.hop(0, 0.5, 1.0, 1.0, 1.0, 8), "m = 0"),
    (lambda: causal.accuracy(0.0, 0, 8), "N = 0"),
    (lambda: causal.soft_accuracy(0.0, 0.0, 1), "M = 1"),
    (lambda: causal.alibi_matrix(5, -1.0), "lam"),
    (lambda: causal.alibi_matrix(5, 1.0, window=0), "window = 0"),
    (lambda: causal.finite_response(torch.eye(3), 1.0, 1.0), "causal"),
    (lambda: causal.finite_response(torch.zeros(3, 2), 1.0, 1.0), "Omega.shape"),
    (lambda: causal.finite_response(torch.zeros(2, 3, 3), [1.0], 1.0), "a.shape"),
    (
        lambda: causal.finite_response(causal.alibi_matrix(900, 0.0), 900.0, 1.0),
        "float64",
    ),
    (
        lambda: causal.finite_response(causal.alibi_matrix(5, 0.0), 1.0, 1.0, row=5),
        "row = 5",
    ),
    (
        lambda: causal.finite_response(causal.alibi_matrix(5, 0.0), 1.0, -1.0),
        "t = -1",
    ),
    (
        lambda: causal.finite_response(causal.alibi_matrix(5, 0.0), 1.0, 1.0, row=1.5),
        "row = 1.5",
    ),  # type: ignore[arg-type]
    (
        lambda: causal.finite_response(causal.alibi_matrix(5, 0.0), 1.0, 1.0, row=None),
        "row = None",
    ),  # type: ignore[arg-type]
    (lambda: causal.finite_response(torch.zeros(5, 5), 1e300, 1e300), "float64"),
    (lambda: causal.finite_profile(1.0, 1.0, 1.0, 8), "Omega.shape"),
    (
        lambda: causal.finite_profile(causal.alibi_matrix(5, 0.0), 1.0, [1.0, 2.0], 8),
        "beta = ",
    ),  # type: ignore[arg-type]
    (lambda: causal.retrieval_profile(1e-300, 1e-8, 30.0, 1000.0, 8), "largest float64"),
    (lambda: causal.graphon(5e-324, 0.0, 0.0), "largest float64"),
    (lambda: causal.coupling(1, 1e-310), "beta = 1e-310"),
    (lambda: causal.u_shape_time(1e-300, 1.0), "beta = 1e-300"),
    (lambda: causal.critical_time(1e-200, 1.0, 8), "beta = 1e-200"),
    (lambda: causal.retrieval_profile(0.5, 1.0, 1e-310, 1.0, 8), "beta = 1e-310"),
    (lambda: causal.response([1.0, 2.0], 1.0, [0.1, 0.2, 0.3], 1.0, 1.0), "broadcast"),
    (lambda: causal.retrieval_profile([0.1, 0.2], [1.0, 2.0, 3.0], 1.0, 1.0, 8), "broadcast"),
    (lambda: causal.hop(1, [0.1, 0.2], [1.0, 2.0, 3.0], 1.0, 1.0, 8), "broadcast"),
    (lambda: causal.graphon([0.1, 0.2], [0.1, 0.2, 0.3], 1.0), "broadcast"),
    (lambda: causal.coupling([1, 2], [1.0, 2.0, 3.0]), "broadcast"),
    (lambda: causal.critical_time([1.0, 2.0], [1.0, 2.0, 3.0], 8), "broadcast"),
    (lambda: causal.u_shape_time([1.0, 2.0], [1.0, 2.0, 3.0]), "broadcast"),
    (lambda: causal.soft_accuracy([1.0, 2.0], [1.0, 2.0, 3.0], 8), "broadcast"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_wrong_input_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda modes: causal.retrieval_profile([0.1, 0.5], 1e-44, 100.0, 1.0, 64, modes),
        lambda modes: causal.hop(1, 0.5, 1e-44, 100.0, 1.0, 64, modes=modes),
        lambda modes: causal.critical_time(100.0, 1.0, 64, modes),
        lambda modes: causal.finite_profile(causal.alibi_matrix(8, 1.0), 1e-44, 100.0, 64, modes=modes),
    ],
)
def test_too_few_modes_are_refused_and_enough_change_nothing(call: Any) -> None:
    with pytest.raises(InputError, match="raise modes"):
        call(20)
    torch.testing.assert_close(call(100), call(150), rtol=1e-8, atol=0.0)
