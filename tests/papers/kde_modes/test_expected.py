"""How many modes are expected: formulas against quadrature, simulations and limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from otflow.base.errors import InputError
from otflow.papers import kde_modes
from otflow.papers.kde_modes.shot_noise import MEASURED, NOISE, TRIPLES, shot_noise_modes

TABLE = [  # n = beta, simulated with standard error, with the sparse tail, Gaussian on the belt only
    (1000, 36.7, 0.5, 37.5, 31.8),
    (4000, 81.6, 0.7, 81.0, 70.4),
    (20_000, 198.0, 1.3, 195.1, 172.8),
]


def drawn(n: int, beta: float, runs: int, seed: int = 0) -> tuple[float, float]:
    """The mean number of modes in simulations, and its standard error."""
    rng = np.random.default_rng(seed)
    tiles = [kde_modes.count_modes(rng.standard_normal((20, n)), beta) for _ in range(runs // 20)]
    count = torch.cat(tiles).double()
    return count.mean().item(), count.std().item() / math.sqrt(len(count))


# --- shot noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nu", [0.06, 0.25, 0.65, 2.2])
def test_shot_noise_has_as_many_modes_as_a_simulation(nu: float) -> None:
    """Lines far apart are one cloud; where a mode is tells to which line it belongs."""
    rng, lines, length, far = np.random.default_rng(11), 25, 1e4, 1e7
    x = [far * i + rng.uniform(0, length, rng.poisson(nu * length)) for i in range(lines)]
    where = kde_modes.mode_positions(np.concatenate(x), 1.0).numpy()
    rate = np.bincount((where / far + 0.5).astype(int), minlength=lines) / length
    error = rate.std(ddof=1) / math.sqrt(lines)
    assert error < 0.012 * rate.mean()
    assert abs(rate.mean() - shot_noise_modes(nu).item()) < 4 * error


def test_the_interpolation_of_shot_noise_stays_within_the_errors_of_its_table() -> None:
    nu, M, error = np.array(MEASURED).T
    off = (shot_noise_modes(nu).numpy() - M) / error
    assert np.abs(off).max() < 2.6
    assert (off**2).mean() < 1.5
    assert (error / M).max() < 1e-3


def test_the_ends_of_shot_noise_are_known() -> None:
    assert pytest.approx(0.194924, abs=5e-7) == NOISE
    assert shot_noise_modes(1e12).item() == pytest.approx(NOISE, rel=1e-9)
    nu = np.array([1e-6, 1e-4, 1e-3])
    np.testing.assert_allclose((nu - shot_noise_modes(nu).numpy()) / nu**2, 2.0, rtol=2e-3)
    assert shot_noise_modes(0.0).item() == 0.0


@pytest.mark.parametrize(("nu", "M"), [(0.1, 0.082), (0.2, 0.130), (0.4, 0.179), (0.7, 0.193), (1.0, 0.195)])
def test_earlier_rough_measurements_of_shot_noise_agree(nu: float, M: float) -> None:
    assert shot_noise_modes(nu).item() == pytest.approx(M, rel=0.015)


@pytest.mark.slow
def test_the_third_order_of_shot_noise_is_that_of_triples() -> None:
    """nu^3 times the sum over triples of (modes - pairs' modes), integrated by brute force."""
    h = 0.02
    a = np.arange(h / 2, 6, h)
    gaps = np.stack(np.meshgrid(a, a, indexing="ij"), -1)  # u1 < u2 < u3
    x = np.concatenate([np.zeros((*gaps.shape[:-1], 1)), np.cumsum(gaps, -1)], -1)
    inclusion = kde_modes.count_modes(x, 1.0).double().numpy() - 3
    inclusion += sum((d < 2).astype(float) for d in (gaps[..., 0], gaps[..., 1], gaps.sum(-1)))
    third = inclusion.sum() * h**2
    nu = 0.02
    assert (shot_noise_modes(nu).item() - nu + 2 * nu**2) / nu**3 == pytest.approx(third, abs=0.15)


# --- Kac and Rice --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "n", "beta"), [(0.0, 50, 3.0), (1.2, 2000, 60.0), (3.0, 6500, 81.0)])
def test_the_density_of_kac_and_rice_is_that_of_quadrature(t: float, n: int, beta: float) -> None:
    def mean(f: Callable[[float], float]) -> float:
        width = 12 / math.sqrt(1 + beta)
        return float(
            quad(
                lambda x: f(x - t) * norm.pdf(x), t - width, t + width, epsabs=1e-14, epsrel=1e-12, limit=400
            )[0]
        )

    def F(z: float) -> float:
        return z * math.exp(-beta * z**2 / 2)

    def dF(z: float) -> float:
        return (beta * z**2 - 1) * math.exp(-beta * z**2 / 2)

    f, g = mean(F), mean(dF)
    a, b, c = (mean(lambda z, p=p, q=q: p(z) * q(z)) for p, q in ((F, F), (F, dF), (dF, dF)))  # type: ignore[misc]
    S = n * np.array([[a - f * f, b - f * g], [b - f * g, c - g * g]])
    m = n * (g - S[0, 1] / S[0, 0] * f)
    s = math.sqrt(S[1, 1] - S[0, 1] ** 2 / S[0, 0])
    below = (
        quad(lambda v: -v * norm.pdf(v, m, s), m - 12 * s, 0.0, epsabs=0, epsrel=1e-11)[0]
        if m < 12 * s
        else 0
    )
    expected = norm.pdf(0.0, n * f, math.sqrt(S[0, 0])) * below
    assert kde_modes.kac_rice_density(t, n, beta).item() == pytest.approx(expected, rel=1e-8)


def test_the_density_is_that_of_noise_where_the_slope_does_not_matter() -> None:
    ratio = kde_modes.kac_rice_density(0.7, 1e4, 1e6) / 1e3
    assert ratio.item() == pytest.approx(NOISE, rel=1e-3)
    t, n, beta = torch.linspace(0.1, 4, 30), 1e9, 1e7
    damped = NOISE * math.sqrt(beta) * (-kde_modes.drift_damping(t, n, beta)).exp()
    torch.testing.assert_close(kde_modes.kac_rice_density(t, n, beta), damped, rtol=0.02, atol=1e-3)


def test_no_tail_is_too_far() -> None:
    density = kde_modes.mode_density(torch.tensor([0.0, 10.0, 40.0, 1e3]), 1000, 1000.0)
    assert torch.isfinite(density).all()
    assert density[-2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("n", "beta"), [(1000, 1000.0), (20_000, 380.0), (1e8, 1e3), (1e12, 30.0)])
def test_the_integral_is_that_of_quadrature(n: float, beta: float) -> None:
    total = 2 * sum(
        quad(lambda t: kde_modes.mode_density(t, n, beta).item(), a, b, epsrel=1e-9, epsabs=1e-12, limit=200)[
            0
        ]
        for a, b in ((0, 1e-4), (1e-4, 1e-2), (1e-2, 0.3), (0.3, 2.0), (2.0, 5.0), (5.0, 11.0))
    )
    assert kde_modes.expected_modes(n, beta).item() == pytest.approx(total, rel=1e-6)


# --- expected numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "simulated", "error", "formula", "on_the_belt"), TABLE)
def test_reference_numbers(
    n: int, simulated: float, error: float, formula: float, on_the_belt: float
) -> None:
    assert kde_modes.kac_rice_modes(n, n).item() == pytest.approx(on_the_belt, abs=0.05)
    expected = kde_modes.expected_modes(n, n).item()
    assert expected == pytest.approx(formula, rel=0.006)  # which had M to a per cent
    assert abs(expected - simulated) < 3 * error


@pytest.mark.slow(but_for=["0.8-60", "1.0-60", "1.3-20"])
@pytest.mark.parametrize(("b", "runs"), [(0.6, 400), (0.8, 60), (1.0, 60), (1.3, 20)])
def test_simulations_are_within_three_per_cent_of_what_is_expected(b: float, runs: int) -> None:
    n = 20_000
    mean, error = drawn(n, n**b, runs)
    assert error < 0.01 * mean
    assert kde_modes.expected_modes(n, n**b).item() == pytest.approx(mean, rel=0.03)


def test_in_the_end_all_tokens_are_modes_but_those_of_close_pairs() -> None:
    n, beta = 1000, 1e10
    pairs = n**2 / 2 * 4 / math.sqrt(beta) / (2 * math.sqrt(math.pi))
    triples = TRIPLES * n**3 / beta / (2 * math.pi * math.sqrt(3))
    assert kde_modes.expected_modes(n, beta).item() == pytest.approx(n - pairs + triples, abs=1e-3)


def test_wide_bandwidths_leave_one_mode() -> None:
    assert kde_modes.expected_modes(1e6, 3.0).item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("b", [0.5, 0.8, 1.0, 1.5])
def test_the_constant_is_the_limit(b: float) -> None:
    """From numbers of tokens that no computer holds."""
    n = torch.tensor([1e15, 1e30, 1e60, 1e120], dtype=torch.float64)
    beta = n**b
    ratio = kde_modes.expected_modes(n, beta) / (beta * beta.log()).sqrt()
    off = (ratio / kde_modes.asymptotic_constant(b) - 1).abs()
    assert (off.diff() < 0).all()
    assert off[-1] < 0.05


def test_the_constant_in_closed_form() -> None:
    assert kde_modes.asymptotic_constant(1.0).item() == pytest.approx(math.sqrt(1.5) / math.pi)
    assert kde_modes.asymptotic_constant([2 / 3, 0.5]).tolist() == pytest.approx(
        [math.sqrt(3) / math.pi, math.sqrt(1.5) / math.pi * (math.sqrt(3) - 1)]
    )


def test_the_regimes_of_mammen() -> None:
    n, inside = 1e15, (-1.0, 1.0)

    def count(b: float) -> float:
        return kde_modes.kac_rice_modes(n, n**b, between=inside).item()

    assert count(0.3) == pytest.approx(1.0, abs=0.01)
    slope = math.log(count(0.6) / count(0.55)) / (0.05 * math.log(n))
    assert slope == pytest.approx(1.25, abs=0.01)
    more = kde_modes.kac_rice_modes(100 * n, n**0.58, between=inside).item()
    assert more / count(0.58) == pytest.approx(0.1, rel=0.05)
    assert count(0.9) / n**0.45 == pytest.approx(2 * NOISE, rel=0.01)
    assert kde_modes.kac_rice_modes(n, n**0.55, between=(0.5, 1.0)).item() < 1e-6


def test_the_belt() -> None:
    low, high = kde_modes.belt([1000, 10_000], [1000.0, 300.0])
    assert low.tolist() == pytest.approx([0.0, math.sqrt(2 * math.log(1e4) - 3 * math.log(300))])
    assert high.tolist() == pytest.approx([math.sqrt(math.log(1000)), math.sqrt(math.log(1e8 / 300))])


def test_most_modes_are_in_the_belt() -> None:
    n, beta = 10**6, 1e4
    where = kde_modes.mode_positions(np.random.default_rng(0).standard_normal(n), beta).abs()
    low, high = kde_modes.belt(n, beta)
    inside = ((where >= low) & (where <= high)).double().mean().item()
    assert inside > 0.7
    density: NDArray[np.float64] = kde_modes.mode_density(torch.linspace(0, 8, 4001), n, beta).numpy()
    t = np.linspace(0, 8, 4001)
    share = density[(t >= low.item()) & (t <= high.item())].sum() / density.sum()
    assert inside == pytest.approx(share, abs=0.1)


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [0.0, 2.0, -1.0, 3.0, math.nan])
def test_constants_exist_between_zero_and_two(b: float) -> None:
    with pytest.raises(InputError, match="b"):
        kde_modes.asymptotic_constant(b)


@pytest.mark.parametrize("f", [kde_modes.expected_modes, kde_modes.kac_rice_modes, kde_modes.belt])
@pytest.mark.parametrize(("n", "beta", "word"), [(0, 1.0, "n"), (10, 0.0, "beta"), (10, -2.0, "beta")])
def test_numbers_must_be_positive(f: Callable[..., object], n: float, beta: float, word: str) -> None:
    with pytest.raises(InputError, match=word):
        f(n, beta)


def test_there_is_no_belt_beyond_the_square_of_n_and_no_negative_intensity() -> None:
    with pytest.raises(InputError, match="empty"):
        kde_modes.belt(10, 101.0)
    with pytest.raises(InputError, match="nu"):
        shot_noise_modes(-0.1)
    with pytest.raises(InputError, match="between"):
        kde_modes.kac_rice_modes(10, 10.0, between=(0.0, math.inf))


@pytest.mark.parametrize("f", [kde_modes.expected_modes, kde_modes.kac_rice_modes, kde_modes.belt])
def test_shapes_that_do_not_broadcast_are_named(f: Callable[..., object]) -> None:
    with pytest.raises(InputError, match="shapes of n, beta"):
        f([10, 20, 30], [1.0, 2.0])


@pytest.mark.parametrize("f", [kde_modes.mode_density, kde_modes.kac_rice_density, kde_modes.drift_damping])
def test_shapes_of_places_that_do_not_broadcast_are_named(f: Callable[..., object]) -> None:
    with pytest.raises(InputError, match="shapes of t, n, beta"):
        f([0.0, 1.0], [10, 20, 30], 1.0)


@pytest.mark.parametrize("between", [(1.0,), (0.0, 1.0, 2.0), 1.0])
def test_an_interval_has_two_ends(between: Any) -> None:
    with pytest.raises(InputError, match=r"between.*two ends"):
        kde_modes.kac_rice_modes(10, 10.0, between=between)
