"""Modes of kernel density estimators, counted by other means."""

from __future__ import annotations

import math
import time

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from otflow.base.errors import InputError
from otflow.papers import kde_modes
from otflow.papers.kde_modes import counting

Floats = NDArray[np.float64]
TOKENS = st.lists(st.floats(-4, 4), min_size=1, max_size=12)


def slope(x: Floats, t: Floats, beta: float) -> Floats:
    """The derivative of the estimator, over beta and over its largest term at t."""
    d = x - t[:, None]
    log = -beta / 2 * d**2
    return np.asarray((d * np.exp(log - log.max(1, keepdims=True))).sum(1))


def on_a_grid(x: Floats, beta: float, size: int = 20_001) -> int:
    """Changes from plus to minus on a fine grid."""
    reach = 1e-3 / math.sqrt(beta)
    sign = np.sign(slope(x, np.linspace(x.min() - reach, x.max() + reach, size), beta))
    sign = sign[sign != 0]
    return int(((sign[:-1] > 0) & (sign[1:] < 0)).sum())


@pytest.mark.parametrize(("n", "beta"), [(2, 1.0), (5, 40.0), (40, 3.0), (80, 300.0), (60, 4e4), (80, 1.0)])
def test_the_count_is_that_of_a_fine_grid(n: int, beta: float) -> None:
    rng = np.random.default_rng(n)
    clouds = np.stack([rng.standard_normal((8, n)), rng.standard_cauchy((8, n)).clip(-5, 5)])
    expected = [[on_a_grid(x, beta) for x in clouds_of_a_law] for clouds_of_a_law in clouds]
    assert kde_modes.count_modes(clouds, beta).tolist() == expected


@pytest.mark.parametrize("seed", range(6))
def test_the_positions_are_roots_at_fifty_digits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(5)
    beta = 20.0

    def F(t: mpmath.mpf) -> mpmath.mpf:
        return sum(
            (mpmath.mpf(float(a)) - t) * mpmath.exp(-beta * (t - mpmath.mpf(float(a))) ** 2 / 2) for a in x
        )

    with mpmath.workdps(50):
        grid = [mpmath.mpf(float(t)) for t in np.linspace(x.min() - 0.01, x.max() + 0.01, 800)]
        values = [F(t) for t in grid]
        roots = [
            mpmath.findroot(F, (a, b), solver="anderson", tol=1e-40)
            for a, b, u, v in zip(grid, grid[1:], values, values[1:], strict=False)
            if u > 0 > v
        ]
    found = kde_modes.mode_positions(x, beta)
    assert len(found) == len(roots) == kde_modes.count_modes(x, beta)
    torch.testing.assert_close(
        found, torch.tensor([float(r) for r in roots], dtype=torch.float64), rtol=0, atol=2e-14
    )


def test_the_polynomial_of_a_few_tokens_has_these_modes() -> None:
    """On the circle with beta small, sum_i exp(beta cos) is a trigonometric polynomial up to rounding."""
    rng, beta, K = np.random.default_rng(4), 3.0, 40
    for _ in range(20):
        theta = rng.uniform(0, 2 * np.pi, 6)
        k = np.arange(1, K + 1)
        bessel = np.array([float(mpmath.besseli(int(j), beta)) for j in k])
        a = bessel * k * np.exp(-1j * np.outer(theta, k)).sum(0)  # derivative = -2 Im sum a_k z^k
        roots = np.roots(np.concatenate([-1j * a[::-1], [0], 1j * a.conj()]))  # of 2 K trigonometric degrees
        z = roots[np.abs(np.abs(roots) - 1) < 1e-7]
        second = (k * a * z[:, None] ** k).real.sum(1)
        assert int((second > 0).sum()) == kde_modes.count_modes_circle(theta, beta).item()


@pytest.mark.parametrize("beta", [0.01, 1.0, 1e8])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_two_tokens_have_two_modes_beyond_two_bandwidths(beta: float, shift: float) -> None:
    d = np.array([1.9, 1.999, 2.001, 2.1, 50.0, 1e9])[:, None] / math.sqrt(beta)
    x = np.concatenate([0 * d, d], 1)
    if beta < 1e8 or not shift:  # 1000 + 2e-4 has not the digits
        assert kde_modes.count_modes(shift + x, beta).tolist() == [1, 1, 2, 2, 2, 2]


def test_only_a_flat_mode_is_undecided_and_it_is_counted_once() -> None:
    gaps = torch.tensor([2 - 1e-6, 2.0, 2 + 1e-6], dtype=torch.float64)
    count, undecided = kde_modes.certified_modes(torch.stack([0 * gaps, gaps], -1), 1.0)
    assert count.tolist() == [1, 1, 2]
    assert (undecided > 0).tolist() == [False, True, False]


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_equal_tokens_have_one_mode_where_they_are(n: int) -> None:
    assert kde_modes.mode_positions(np.full(n, 0.3), 7.0).tolist() == pytest.approx([0.3], abs=1e-14)
    assert kde_modes.count_modes_circle(np.full(n, 0.3), 7.0).item() == 1


def test_tokens_within_two_bandwidths_have_one_mode() -> None:
    x = 1.9999 * np.random.default_rng(0).uniform(size=(500, 9)).round(1)
    assert kde_modes.count_modes(x, 1.0).eq(1).all()


def test_isolated_tokens_are_modes_however_far_apart() -> None:
    x = np.concatenate([-np.geomspace(1, 1e300, 60), [0.0], np.geomspace(1, 1e300, 60)])
    assert kde_modes.count_modes(x, 1e4).item() == 121
    torch.testing.assert_close(
        kde_modes.mode_positions(x, 1e4), torch.from_numpy(np.sort(x)), rtol=1e-15, atol=1e-18
    )
    assert kde_modes.count_modes([-1.7e308, 1.7e308], 1.0).item() == 2


@pytest.mark.slow
def test_no_mode_is_lost_next_to_a_million_tokens() -> None:
    """The bump of one token at a distance where a million others are about as high."""
    for gap in (5.2, 5.6, 6.0, 7.0, 9.0):
        heavy, t = 10**6, np.linspace(-1.5, 1.5, 30_001)
        F = -t * np.exp(-(t**2) / 2) + heavy * (gap - t) * np.exp(-((gap - t) ** 2) / 2)
        expected = 1 + bool(((F[:-1] > 0) & (F[1:] < 0)).any())
        x = np.concatenate([[0.0], np.full(heavy, gap)])
        assert kde_modes.count_modes(x, 1.0).item() == expected


@given(x=TOKENS, log=st.floats(-3, 8), factor=st.floats(1e-3, 1e3), shift=st.integers(-50, 50))
@settings(max_examples=60, deadline=None)
def test_the_count_knows_no_units(x: list[float], log: float, factor: float, shift: int) -> None:
    beta, x = math.exp(log), [round(a, 6) for a in x]
    one = kde_modes.certified_modes(x, beta)
    other = kde_modes.certified_modes(factor * (np.array(x) + shift), beta / factor**2)
    assert one.modes == other.modes or one.undecided or other.undecided


@given(x=TOKENS)
@settings(max_examples=60, deadline=None)
def test_the_count_falls_with_the_bandwidth(x: list[float]) -> None:
    found = kde_modes.certified_modes(np.array(x), np.geomspace(1e-2, 1e6, 60))
    sure = found.modes[found.undecided == 0]
    assert sure.diff().ge(0).all()
    assert 1 <= found.modes.min() <= found.modes.max() <= len(x)


@pytest.mark.slow
@given(x=TOKENS, log=st.floats(-3, 8))
@settings(max_examples=60, deadline=None)
def test_modes_are_zeros_of_the_slope_with_valleys_between(x: list[float], log: float) -> None:
    beta, tokens = math.exp(log), np.array(x)
    t = kde_modes.mode_positions(tokens, beta).numpy()
    assert len(t) == kde_modes.count_modes(tokens, beta)
    assert (np.diff(t) > 0).all()
    step = 2e-4 / math.sqrt(beta)
    if not kde_modes.certified_modes(tokens, beta).undecided:
        assert (slope(tokens, t - step, beta) > 0).all()
        assert (slope(tokens, t + step, beta) < 0).all()


def test_orders_repetitions_and_batches_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 100))
    beta = torch.tensor([10.0, 100.0, 1e3, 1e4], dtype=torch.float64)
    count = kde_modes.count_modes(torch.from_numpy(x), beta)
    assert count.shape == (3, 4)
    assert count.dtype == torch.int64
    assert torch.equal(count, kde_modes.count_modes(rng.permuted(x, axis=-1).repeat(2, -1), beta))
    alone = [[kde_modes.count_modes(x[i, j], beta[j]).item() for j in range(4)] for i in range(3)]
    assert count.tolist() == alone
    assert kde_modes.count_modes(x.astype(np.float32), 10.0).shape == (3, 4)


@pytest.mark.slow
def test_tiles_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(5).standard_normal((3, 400))
    theta = np.random.default_rng(5).uniform(0, 2 * np.pi, (3, 400))
    whole = (
        kde_modes.count_modes(x, 1e5),
        kde_modes.count_modes_circle(theta, 1e3),
        kde_modes.mode_positions(x[0], 1e5),
    )
    monkeypatch.setattr(counting, "TILE", 7)
    parts = (
        kde_modes.count_modes(x, 1e5),
        kde_modes.count_modes_circle(theta, 1e3),
        kde_modes.mode_positions(x[0], 1e5),
    )
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)


@pytest.mark.parametrize("gap", [1.0, 3.0, 5.0, 6.0, 8.0])
def test_the_expansions_are_right_to_the_tolerance_and_that_is_small(gap: float) -> None:
    rng, exact = np.random.default_rng(0), np.longdouble
    x = np.sort(np.concatenate([rng.uniform(0, 0.3, 3), gap + 0.3 + rng.uniform(0, 0.2, 2000)]))
    layout, clusters = counting.line_layout(x[None], np.ones(1))
    p = counting._expansions(layout, counting.gaussian_bumps(), 0, int(layout.end[-1]))
    for box, c, tolerance in zip(p.box, p.c, p.tolerance, strict=True):
        largest = 0.0
        for z in (-1.0, -0.3, 0.5, 1.0):
            s = exact(x[0]) + exact(box - clusters.start[0]) + exact(z) / 2
            d = x.astype(exact) - s
            F = (d * np.exp(-d * d / 2)).sum()
            largest = max(largest, float((np.abs(d) * np.exp(-d * d / 2)).sum()))
            assert abs(float(chebyshev.chebval(z, c) - F)) < tolerance / 2
        assert tolerance < 1e-13 * largest


def test_a_million_tokens_take_seconds() -> None:
    x = np.random.default_rng(0).standard_normal(10**6)
    start = time.perf_counter()
    found = kde_modes.certified_modes(x, 1e6)
    assert time.perf_counter() - start < 20
    assert found.undecided.item() == 0
    assert found.modes.item() == pytest.approx(kde_modes.expected_modes(10**6, 1e6).item(), rel=0.05)


# --- the circle ----------------------------------------------------------------------------------------


@pytest.mark.slow(but_for=["0.3", "31.0", "5000.0"])
@pytest.mark.parametrize("beta", [0.3, 2.0, 20.0, 31.0, 200.0, 5e3])
def test_the_count_on_the_circle_is_that_of_a_fine_grid(beta: float) -> None:
    theta = np.random.default_rng(int(beta)).uniform(-9, 9, (15, 40))
    t = np.linspace(0, 2 * np.pi, 30_001)[:-1]
    for row, found in zip(theta, kde_modes.count_modes_circle(theta, beta).tolist(), strict=True):
        d = row - t[:, None]
        sign = np.sign((np.sin(d) * np.exp(-2 * beta * np.sin(d / 2) ** 2)).sum(1))
        assert found == int(((sign > 0) & (np.roll(sign, -1) < 0)).sum())


def test_turning_the_circle_changes_nothing() -> None:
    theta = np.random.default_rng(1).uniform(0, 2 * np.pi, (20, 100))
    for beta in (1.0, 50.0, 1e5):
        turned = [kde_modes.count_modes_circle(theta + turn, beta) for turn in (0.0, 1.0, 3.0, 100.0)]
        assert all(torch.equal(a, turned[0]) for a in turned)


def test_on_a_small_arc_the_circle_is_a_line() -> None:
    theta = np.random.default_rng(2).normal(0.0, 1e-3, (50, 200))
    line, circle = kde_modes.count_modes(theta, 1e9), kde_modes.count_modes_circle(theta, 1e9)
    assert torch.equal(line, circle)
    assert line.double().mean() > 10


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_evenly_spread_tokens_are_modes_each(k: int) -> None:
    assert kde_modes.count_modes_circle(2 * np.pi * np.arange(k) / k, 10.0).item() == k


def test_clusters_are_counted_across_the_cut() -> None:
    theta = torch.tensor([[6.28, 0.01, 3.0, 3.01], [0.0, 0.1, 0.2, 0.3]], dtype=torch.float64)
    assert kde_modes.clusters_of_state(theta, 25.0).tolist() == [2, 1]
    assert kde_modes.clusters_of_state(torch.linspace(0, 6.2, 100), 1.0).item() == 1


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count", [kde_modes.count_modes, kde_modes.mode_positions, kde_modes.count_modes_circle]
)
@pytest.mark.parametrize(
    ("x", "beta", "word"),
    [
        ([0.0], 0.0, "beta"),
        ([0.0], -1.0, "beta"),
        ([0.0], math.nan, "beta"),
        ([0.0], math.inf, "beta"),
        ([], 1.0, "token"),
        (3.0, 1.0, "token"),
        ([0.0, math.nan], 1.0, "finite"),
        ([math.inf], 1.0, "finite"),
    ],
)
def test_wrong_input_is_named(count: object, x: object, beta: float, word: str) -> None:
    with pytest.raises(InputError, match=word):
        count(x, beta)  # type: ignore[operator]


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(InputError, match=r"beta\.shape"):
        kde_modes.count_modes(np.zeros((3, 5)), [1.0, 2.0])
    with pytest.raises(InputError, match=r"x\.shape"):
        kde_modes.mode_positions(np.zeros((3, 5)), 1.0)
    with pytest.raises(InputError, match=r"beta\.shape.*empty"):
        kde_modes.count_modes(np.zeros((1, 5)), [])
    with pytest.raises(InputError, match=r"beta\.shape"):
        kde_modes.count_modes([0.0, 1.0], [])
    with pytest.raises(InputError, match="digits"):
        kde_modes.count_modes_circle([0.0], 1e30)


def test_tokens_on_the_circle_are_modes_in_the_end() -> None:
    theta = np.random.default_rng(0).uniform(0, 2 * np.pi, (20, 50))
    assert kde_modes.count_modes_circle(theta, 1e10).eq(50).all()


def test_lone_tokens_on_the_circle_cost_no_empty_boxes() -> None:
    theta = np.random.default_rng(0).uniform(0, 2 * np.pi, (1000, 10))
    begin = time.perf_counter()
    assert kde_modes.count_modes_circle(theta, 1e16).eq(10).all()
    assert time.perf_counter() - begin < 2  # 12 s if every token costs a tile of boxes
    pair = theta[:, :1] + 1e-6 * np.array([0.0, 1.99, 40.0, 42.01])
    for turn in (0.0, -theta[:, :1] - 41e-6):  # also across the cut
        assert kde_modes.count_modes_circle(pair + turn, 1e12).eq(3).all()
