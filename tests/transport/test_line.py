"""Transport on the line: the monotone coupling, its potentials, and what rounding must not do to them."""

from __future__ import annotations

import time

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

import otflow as of
from otflow.transport.exact import network_simplex
from otflow.transport.exact.plans import ExactTransport
from otflow.transport.exact.wasserstein import solve, wasserstein

Array = np.ndarray


def measures(x: Array, y: Array, a: Array | None = None, b: Array | None = None) -> tuple[of.Particles, ...]:
    weights = (None if w is None else w / w.sum(-1, keepdims=True) for w in (a, b))
    return tuple(of.Particles(z[..., None], w=w) for z, w in zip((x, y), weights, strict=True))


def check(plan: ExactTransport, mu: of.Particles, nu: of.Particles) -> None:
    """Marginals, monotonicity, feasible potentials, and no gap."""
    c = (mu.x - nu.x.mT).abs() ** plan.p
    size = plan.f.abs()[..., :, None] + plan.g.abs()[..., None, :] + c
    assert np.all(plan.status == "ok")
    assert bool((plan.f[..., :, None] + plan.g[..., None, :] <= c + 1e-13 * size).all())
    P = plan.plan
    torch.testing.assert_close(P.sum(-1), mu.w.expand(P.shape[:-1]), rtol=1e-6, atol=1e-13)
    torch.testing.assert_close(P.sum(-2), nu.w.expand(P.mT.shape[:-1]), rtol=1e-6, atol=1e-13)
    torch.testing.assert_close((P * c).sum((-1, -2)), plan.cost, rtol=1e-12, atol=0)
    dual = (mu.w * plan.f).sum(-1) + (nu.w * plan.g).sum(-1)
    torch.testing.assert_close(dual, plan.cost, rtol=2e-9, atol=0)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1.5, 2.0, 3.0]), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_random_problems_agree_with_pot_and_are_proved(seed: int, p: float, ties: bool, empty: bool) -> None:
    rng = np.random.default_rng(seed)
    n, m = rng.integers(2, 20, 2)
    x, y, a, b = rng.standard_normal(n), rng.standard_normal(m), rng.random(n), rng.random(m)
    if ties:
        x, y, a, b = (
            x.round(),
            y.round(),
            rng.integers(1, 4, n).astype(float),
            rng.integers(1, 4, m).astype(float),
        )
    if empty:
        a[rng.random(n) < 0.3], b[rng.random(m) < 0.3] = 0, 0
        a[0] = b[-1] = 1
    mu, nu = measures(x, y, a, b)
    plan = solve(mu, nu, p)
    expected = ot.emd2_1d(x, y, a / a.sum(), b / b.sum(), metric="minkowski", p=p)
    if p != 1:
        expected = ot.emd2(a / a.sum(), b / b.sum(), np.abs(x[:, None] - y) ** p)
    assert plan.cost.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    check(plan, mu, nu)


def test_uniform_clouds_of_the_same_size_are_matched_in_order_without_rounding() -> None:
    rng = np.random.default_rng(1)
    x, y = 1e6 * rng.standard_normal((4, 1000)), rng.standard_normal((4, 1000))
    mu, nu = measures(x, y)
    plan = solve(mu, nu, 1)
    assert plan.mass.shape == (4, 1000)
    assert torch.equal(plan.mass, torch.full_like(plan.mass, 1 / 1000))
    np.testing.assert_allclose(plan.cost, np.abs(np.sort(x) - np.sort(y)).mean(-1), rtol=1e-14)
    check(plan, mu, nu)


def test_the_first_distance_is_the_area_between_the_distribution_functions() -> None:
    rng = np.random.default_rng(2)
    x, y, a, b = rng.standard_normal(200), rng.standard_normal(300), rng.random(200), rng.random(300)
    z = np.sort(np.concatenate([x, y]))
    F, G = ((w[None] * (v[None] <= z[:, None])).sum(1) / w.sum() for v, w in ((x, a), (y, b)))
    area = (np.abs(F - G)[:-1] * np.diff(z)).sum()
    assert wasserstein(*measures(x, y, a, b), 1).item() == pytest.approx(area, rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("spread", [1e-4, 1e-9, 1e-12])
def test_tight_clusters_with_masses_equal_up_to_rounding_do_not_exchange_mass(
    spread: float, p: float
) -> None:
    rng = np.random.default_rng(3)
    k, m = rng.integers(1, 20, (2, 50))
    k[25:], m[25:] = k[:25][::-1], m[:25][::-1]  # both halves weigh the same
    k, m = k * m.sum(), m * k.sum()
    x, y = (np.repeat([0.0, 1.0], 25) + spread * rng.random(50) for _ in range(2))
    plan = solve(*measures(x, y, k.astype(float), m.astype(float)), p)
    assert plan.status == "ok"
    mp.dps = 40
    exact = monotone_cost(x, y, k.tolist(), m.tolist(), p)
    assert plan.cost.item() == pytest.approx(float(exact), rel=1e-10, abs=0)


def monotone_cost(x: Array, y: Array, k: list[int], m: list[int], p: int) -> mp.mpf:
    """The cost of the coupling that keeps the order, in exact arithmetic, for whole weights of equal sums."""
    total, cost = sum(k), mp.mpf(0)
    rows, cols = np.argsort(x).tolist(), np.argsort(y).tolist()
    k, m, i, j = list(k), list(m), 0, 0
    while i < len(rows) and j < len(cols):
        r, s = rows[i], cols[j]
        moved = min(k[r], m[s])
        cost += moved * abs(mp.mpf(float(x[r])) - mp.mpf(float(y[s]))) ** p
        k[r], m[s] = k[r] - moved, m[s] - moved
        i, j = i + (k[r] == 0), j + (m[s] == 0)
    return cost / total


def test_the_same_weights_in_another_order_leave_nothing_behind() -> None:
    rng = np.random.default_rng(4)
    x, w, order = rng.standard_normal(1000), rng.random(1000), rng.permutation(1000)
    mu, nu = measures(x, x[order], w, w[order])
    assert solve(mu, nu).cost.item() == 0
    mu, nu = measures(x, x[order] + 1e-9, w, w[order])
    assert solve(mu, nu).distance.item() == pytest.approx(1e-9, rel=1e-6)


def test_weights_may_be_uniform_on_both_sides_with_different_sizes() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, 30)), rng.standard_normal((2, 70))
    mu, nu = measures(x, y)
    plan = solve(mu, nu)
    check(plan, mu, nu)
    lcm = [np.repeat(np.sort(z), k, -1) for z, k in ((x, 7), (y, 3))]
    np.testing.assert_allclose(plan.cost, ((lcm[0] - lcm[1]) ** 2).mean(-1), rtol=1e-13)


def test_a_batch_broadcasts_and_mixes_uniform_with_weighted_members() -> None:
    rng = np.random.default_rng(6)
    x, y, a = rng.standard_normal((3, 1, 6)), rng.standard_normal((2, 8)), rng.random((3, 1, 6))
    a[0], a[1, 0, 2] = 1.0, 0.0
    mu, nu = measures(x, y, a, np.ones((2, 8)))
    plan = solve(mu, nu)
    check(plan, mu, nu)
    for i, j in np.ndindex(3, 2):
        alone = solve(*measures(x[i, 0], y[j], a[i, 0], np.ones(8)))
        assert plan.cost[i, j].item() == pytest.approx(alone.cost.item(), rel=1e-13)


def test_a_hundred_thousand_points_take_less_than_a_second_and_no_matrix() -> None:
    rng = np.random.default_rng(7)
    x, y, a = rng.standard_normal(100_000), rng.standard_normal(80_000), rng.random(100_000)
    mu, nu = measures(x, y + 1, a)
    began = time.perf_counter()
    plan = solve(mu, nu)
    assert time.perf_counter() - began < 2
    assert plan.gap.item() < 1e-10
    assert plan.distance.item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("p", [2, 30, 500])
def test_high_powers_and_extreme_scales_keep_their_digits(p: float) -> None:
    x, y = np.array([0.0, 1.0, 1e9]), np.array([3e-4, 1 + 2e-4, 1e9 + 1e-3])
    for scale in (1e-150, 1.0, 1e150):
        top = np.abs(y - x).max()
        expected = top * float(((np.abs(y - x) / top) ** p).mean()) ** (1 / p)
        distance = wasserstein(*measures(scale * x, scale * y), p).item() / scale
        assert distance == pytest.approx(expected, rel=1e-4 if scale != 1 else 1e-12)


def test_far_outliers_without_mass_do_not_blur_the_potentials() -> None:
    rng = np.random.default_rng(8)
    x, y = (
        np.concatenate([[0.5], np.repeat([0.0, 1.0], 10) + 1e-8 * rng.random(20), [1e3]]) for _ in range(2)
    )
    a = np.concatenate([[0.0], np.ones(20), [0.0]])
    mu, nu = measures(x, y, a, a)
    check(solve(mu, nu), mu, nu)


def test_a_broken_coupling_is_not_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    mu, nu = measures(rng.standard_normal(9), rng.standard_normal(9))
    monkeypatch.setattr(
        "otflow.transport.exact.line._cost", lambda z, unit, p: (z / unit) ** 2 + z / unit + 1e-3 * z**4
    )
    assert solve(mu, nu, on_failure="return").status == "uncertified"


def test_the_simplex_agrees_with_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(10)
    x, y, a = rng.standard_normal(40), rng.standard_normal(30), rng.random(40)
    mu, nu = measures(x, y, a)
    D = np.abs(x[:, None] - y)
    answer = network_simplex.couple(D, a / a.sum(), np.full(30, 1 / 30), None, 2.0)
    assert solve(mu, nu).cost.item() == pytest.approx(answer.value * answer.unit**2, rel=1e-9)


def test_densities_on_a_grid_are_sorted_too() -> None:
    x = np.linspace(-1, 1, 50)
    rho, sigma = np.exp(-8 * (x - 0.2) ** 2), np.exp(-8 * (x + 0.2) ** 2)
    h = x[1] - x[0]
    mu, nu = (of.Grid(z / z.sum() / h, [x]) for z in (rho, sigma))
    expected = ot.emd2(rho / rho.sum(), sigma / sigma.sum(), (x[:, None] - x) ** 2)
    assert solve(mu, nu).cost.item() == pytest.approx(expected, rel=1e-9)
