"""Exact transport: right and proved at every scale, honest where it fails, the same from a warm start."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import otflow as of
from otflow.transport.exact import network_simplex
from otflow.transport.exact import wasserstein as exact
from otflow.transport.exact.plans import ExactTransport
from otflow.transport.exact.wasserstein import solve, wasserstein

Array = np.ndarray


def assignment(x: Array, y: Array, p: float = 2) -> float:
    """The optimal mean cost between as many points, by another solver."""
    c = cdist(x, y) ** p
    return float(c[linear_sum_assignment(c)].mean())


def expanded(x: Array, y: Array, k: Array, m: Array, p: float = 2) -> float:
    """The optimal cost for whole weights k and m, each atom taken that many times."""
    return assignment(np.repeat(x, k, 0), np.repeat(y, m, 0), p)


def cloud(rng: np.random.Generator, n: int, d: int, spread: float | None = None) -> Array:
    """Points of the unit cube, or of two clusters at distance one."""
    x = rng.random((n, d))
    if spread is not None:
        x *= spread
        x[:, 0] += np.arange(n) % 2
    return x


def parts(rng: np.random.Generator, total: int, n: int) -> Array:
    """``n`` whole numbers >= 1 of the given sum."""
    cuts = np.sort(rng.choice(np.arange(1, total), n - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [total]]))


def check(plan: ExactTransport, mu: of.Measure, nu: of.Measure) -> None:
    """Everything that a certified plan claims, computed again."""
    (x, a), (y, b) = mu.nodes(), nu.nodes()
    space = mu.space if isinstance(mu, of.Particles) else of.Euclidean()
    c = space.distance(x[..., :, None, :], y[..., None, :, :]).double() ** plan.p
    assert np.all(plan.status == "ok")
    assert bool((plan.f[..., :, None] + plan.g[..., None, :] <= c * (1 + 1e-13)).all())
    P = plan.plan
    torch.testing.assert_close(P.sum(-1), a.double().expand(P.shape[:-1]), rtol=1e-6, atol=1e-13)
    torch.testing.assert_close(P.sum(-2), b.double().expand(P.mT.shape[:-1]), rtol=1e-6, atol=1e-13)
    torch.testing.assert_close((P * c).sum((-1, -2)), plan.cost, rtol=1e-12, atol=0)
    dual = (a * plan.f).sum(-1) + (b * plan.g).sum(-1)
    torch.testing.assert_close(dual, plan.cost, rtol=2e-9, atol=0)
    assert bool(((plan.gap >= 0) & (plan.gap <= 1e-9)).all())
    torch.testing.assert_close(plan.distance, plan.cost ** (1 / plan.p))


# Scales and clusters, where solvers with an absolute tolerance are silently wrong


@pytest.mark.parametrize("exponent", [20, 10, 0, -8, -10, -12, -14, -16, -20])
def test_costs_of_every_scale_are_right_and_certified(exponent: int) -> None:
    rng = np.random.default_rng(exponent + 100)
    for _ in range(50):
        n, d = int(rng.integers(5, 65)), int(rng.integers(2, 4))
        x, y = (10.0 ** (exponent / 2) * cloud(rng, n, d) for _ in range(2))
        plan = solve(of.Particles(x), of.Particles(y))
        assert plan.status == "ok"
        assert plan.cost.item() == pytest.approx(assignment(x, y), rel=1e-12, abs=0)


@pytest.mark.parametrize("exponent", range(4, 10))
def test_two_tight_clusters_far_apart_are_right_and_certified(exponent: int) -> None:
    rng = np.random.default_rng(exponent)
    for _ in range(52):
        n, d = int(rng.integers(5, 65)), int(rng.integers(2, 4))
        x, y = (cloud(rng, n, d, 10.0**-exponent) for _ in range(2))
        plan = solve(of.Particles(x), of.Particles(y))
        assert plan.status == "ok"
        assert plan.cost.item() == pytest.approx(assignment(x, y), rel=1e-12, abs=0)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("exponent", [3, 4, 5, 6, 7, 8])
def test_weighted_clusters_agree_with_the_expanded_assignment(exponent: int, p: float) -> None:
    rng = np.random.default_rng(10 * exponent + int(p))
    for _ in range(12):
        sizes, d = rng.integers(2, 14, 4), int(rng.integers(2, 4))
        points = [10.0**-exponent * rng.random((n, d)) + np.eye(d)[0] * (i % 2) for i, n in enumerate(sizes)]
        counts = [parts(rng, (100, 150)[i % 2], n) for i, n in enumerate(sizes)]
        x, y = np.concatenate(points[:2]), np.concatenate(points[2:])
        k, m = np.concatenate(counts[:2]), np.concatenate(counts[2:])
        plan = solve(of.Particles(x, w=k / 250), of.Particles(y, w=m / 250), p)
        assert plan.status == "ok"
        assert plan.cost.item() == pytest.approx(expanded(x, y, k, m, p), rel=1e-10, abs=0)


def test_clusters_within_clusters_agree_with_the_expanded_assignment() -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        n, m = rng.integers(3, 24, 2)
        x, y = np.zeros((n, 2)), np.zeros((m, 2))
        for scale in (1, 1e-3, 1e-6, 1e-9):
            centres = scale * rng.random((3, 2))
            x, y = x + centres[rng.integers(0, 3, n)], y + centres[rng.integers(0, 3, m)]
        k, ell = parts(rng, 250, n), parts(rng, 250, m)
        plan = solve(of.Particles(x, w=k / 250), of.Particles(y, w=ell / 250))
        assert plan.status == "ok"
        assert plan.cost.item() == pytest.approx(expanded(x, y, k, ell), rel=1e-10, abs=0)


@pytest.mark.parametrize("h", [1e-3, 1e-6, 1e-10, 1e-14])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_a_small_move_of_a_weighted_cloud_costs_what_each_atom_moves(h: float, p: float) -> None:
    rng = np.random.default_rng(5)
    x, w, order = rng.random((50, 3)), rng.random(50), rng.permutation(50)
    y, w = x + h * rng.standard_normal((50, 3)), w / w.sum()
    plan = solve(of.Particles(x, w=w), of.Particles(y[order], w=w[order]), p)
    expected = float((w * np.linalg.norm(x - y, axis=1) ** p).sum())
    assert plan.cost.item() == pytest.approx(expected, rel=1e-12, abs=0)


def test_masses_of_clusters_that_agree_up_to_rounding_count_as_equal() -> None:
    rng = np.random.default_rng(6)
    label, centres = np.arange(40) % 4, rng.random((4, 3))
    x, y = (centres[label] + 1e-8 * rng.random((40, 3)) for _ in range(2))
    a, b = rng.random(40), rng.random(40)
    for c in range(4):
        b[label == c] *= a[label == c].sum() / b[label == c].sum()
    plan = solve(of.Particles(x, w=a / a.sum()), of.Particles(y, w=b / b.sum()))
    assert plan.status == "ok"
    assert plan.cost.item() < 1e-15
    within = sum(
        a[label == c].sum()
        / a.sum()
        * solve(
            *(of.Particles(z[label == c], w=v[label == c] / v[label == c].sum()) for z, v in ((x, a), (y, b)))
        ).cost.item()
        for c in range(4)
    )
    assert plan.cost.item() == pytest.approx(within, rel=1e-9)


def test_a_legitimate_atom_of_tiny_mass_is_not_taken_for_noise() -> None:
    tiny = 2.0**-50
    w = [0.5, 0.5 - tiny, tiny]
    mu = of.Particles([[0.0, 0.0], [1.0, 0.0], [1e6, 0.0]], w=w)
    nu = of.Particles([[0.0, 0.0], [1.0, 0.0], [1e6, 1e3]], w=w)
    assert solve(mu, nu).cost.item() == pytest.approx(tiny * 1e6, rel=1e-12, abs=0)


@pytest.mark.parametrize("p", [8, 50, 400])
def test_high_powers_do_not_underflow(p: float) -> None:
    rng = np.random.default_rng(7)
    x, y = (cloud(rng, 6, 2, 1e-3) for _ in range(2))
    lengths = (
        np.linalg.norm(x - y[list(s)], axis=1)
        for s in itertools.permutations(range(6))
        if (np.arange(6) - s) @ np.ones(6) == 0
    )
    best = min(z.max() * float(((z / z.max()) ** p).mean()) ** (1 / p) for z in lengths)
    assert wasserstein(of.Particles(x), of.Particles(y), p).item() == pytest.approx(best, rel=1e-9)


# Against other solvers


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_small_problems_agree_with_all_permutations(p: float) -> None:
    rng = np.random.default_rng(0)
    for n in (2, 3, 6):
        x, y = rng.standard_normal((n, 2)), rng.standard_normal((n, 2))
        c = cdist(x, y) ** p
        best = min(c[range(n), s].mean() for s in itertools.permutations(range(n)))
        assert solve(of.Particles(x), of.Particles(y), p).cost.item() == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 2.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_benign_problems_agree_with_pot(p: float, weighted: bool) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((40, 3)), rng.standard_normal((60, 3)) + 0.3
    a, b = (rng.random(n) if weighted else np.ones(n) for n in (40, 60))
    a, b = a / a.sum(), b / b.sum()
    mu, nu = of.Particles(x, w=a), of.Particles(y, w=b)
    plan = solve(mu, nu, p)
    assert plan.cost.item() == pytest.approx(ot.emd2(a, b, cdist(x, y) ** p), rel=1e-10)
    check(plan, mu, nu)


def sphere_costs(x: Array, y: Array) -> Array:
    return np.arccos(np.clip(x @ y.T, -1, 1))


def torus_costs(x: Array, y: Array) -> Array:
    z = np.abs(x[:, None] - y[None])
    return np.linalg.norm(np.minimum(z, 2.0 - z), axis=-1)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", ["sphere", "torus"])
def test_curved_spaces_agree_with_pot_on_their_own_costs(name: str, p: float, d: int) -> None:
    rng = np.random.default_rng(d)
    x, y = (rng.standard_normal((n, d + (name == "sphere"))) for n in (12, 17))
    if name == "sphere":
        x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
        space: of.measures.Space = of.Sphere()
        D = sphere_costs(x, y)
    else:
        x, y, space = x % 2.0, y % 2.0, of.Torus(2.0)
        D = torus_costs(x, y)
    a, b = (rng.random(n) for n in (12, 17))
    a, b = a / a.sum(), b / b.sum()
    mu, nu = of.Particles(x, w=a, space=space), of.Particles(y, w=b, space=space)
    plan = solve(mu, nu, p)
    assert plan.cost.item() == pytest.approx(ot.emd2(a, b, D**p), rel=1e-9)
    check(plan, mu, nu)


def test_grids_are_atoms_in_the_centres_of_their_cells() -> None:
    rng = np.random.default_rng(2)
    axes = [np.linspace(0, 1, 5), np.linspace(0, 2, 4)]
    cell = 0.25 * 2 / 3
    rho, sigma = (z / z.sum() / cell for z in rng.random((2, 5, 4)))
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    expected = ot.emd2(rho.ravel() * cell, sigma.ravel() * cell, cdist(points, points) ** 2)
    mu, nu = of.Grid(rho, axes), of.Grid(sigma, axes)
    assert solve(mu, nu).cost.item() == pytest.approx(expected, rel=1e-9)
    assert wasserstein(mu, of.Particles(points, w=sigma.ravel() * cell)).item() == pytest.approx(
        math.sqrt(expected), rel=1e-9
    )


def test_the_cost_is_the_distance_to_the_power_p_with_no_factor() -> None:
    mu, nu = of.Particles([[0.0, 0.0]]), of.Particles([[3.0, 4.0]])
    for p in (1, 2, 3):
        plan = solve(mu, nu, p)
        assert plan.cost.item() == pytest.approx(5.0**p)
        assert plan.distance.item() == pytest.approx(5.0)


# Degenerate inputs


def test_identical_measures_in_another_order_are_at_distance_exactly_zero() -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-100, 1e-7, 1.0, 1e100):
        x, w, order = scale * rng.standard_normal((30, 3)), rng.random(30), rng.permutation(30)
        w /= w.sum()
        plan = solve(of.Particles(x, w=w), of.Particles(x[order], w=w[order]))
        assert (plan.cost.item(), plan.gap.item(), plan.status) == (0.0, 0.0, "ok")
    assert wasserstein(of.Particles(np.ones((4, 2))), of.Particles(np.ones((7, 2)))).item() == 0.0


def test_atoms_without_mass_change_nothing_and_have_feasible_potentials() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((8, 2)), rng.standard_normal((9, 2))
    a, b = rng.random(8), rng.random(9)
    a[[0, 5]], b[[3, 8]] = 0.0, 0.0
    x[0] = y[3] = [100.0, 100.0]
    a, b = a / a.sum(), b / b.sum()
    mu, nu = of.Particles(x, w=a), of.Particles(y, w=b)
    plan = solve(mu, nu)
    check(plan, mu, nu)
    alive = solve(of.Particles(x[a > 0], w=a[a > 0]), of.Particles(y[b > 0], w=b[b > 0]))
    assert plan.cost.item() == pytest.approx(alive.cost.item(), rel=1e-12)
    slack = (of.Euclidean().pairwise(mu.x, nu.x) ** 2 - plan.f[:, None] - plan.g).amin(1)
    assert float(slack.abs().max()) < 1e-9  # as large as they may be


def test_a_single_atom_has_only_one_plan() -> None:
    rng = np.random.default_rng(5)
    y, b = rng.standard_normal((3, 6, 2)), rng.random((3, 6))
    b /= b.sum(1, keepdims=True)
    mu, nu = of.Particles(np.zeros((1, 2))), of.Particles(y, w=b)
    for one, two in ((mu, nu), (nu, mu)):
        plan = solve(one, two, 3)
        np.testing.assert_allclose(plan.cost, (b * np.linalg.norm(y, axis=2) ** 3).sum(1), rtol=1e-13)
        check(plan, one, two)


def test_single_precision_far_from_the_origin_keeps_its_digits() -> None:
    rng = np.random.default_rng(6)
    x, y = (
        np.float32(1000) + np.float32(1e-3) * rng.standard_normal((20, 3)).astype(np.float32)
        for _ in range(2)
    )
    distance = wasserstein(of.Particles(x), of.Particles(y))
    assert distance.dtype == torch.float32
    assert distance.item() == pytest.approx(math.sqrt(assignment(x.astype(float), y.astype(float))), rel=1e-6)


def test_weights_in_single_precision_and_whole_positions_are_fine() -> None:
    w = np.array([0.1, 0.2, 0.7], np.float32)
    mu = of.Particles(np.eye(3, dtype=np.float32), w=w)
    nu = of.Particles(-np.eye(3, dtype=np.float32), w=w[::-1].copy())
    expected = ot.emd2(
        w.astype(float) / w.sum(), w[::-1].astype(float) / w.sum(), cdist(np.eye(3), -np.eye(3)) ** 2
    )
    assert solve(mu, nu).cost.item() == pytest.approx(expected, rel=1e-6)
    assert wasserstein(of.Particles(np.array([[0], [2]])), of.Particles(np.array([[2], [4]]))).item() == 2.0


def test_costs_of_1e32_are_solved_and_not_trusted_blindly() -> None:
    rng = np.random.default_rng(8)
    x, y = rng.random((30, 2)), rng.random((30, 2))
    x[0], y[7] = 1e16, 1e16 + np.array([4.0, 0.0])
    plan = solve(of.Particles(x), of.Particles(y))
    assert plan.cost.item() == pytest.approx(assignment(x, y), rel=1e-9)
    assert plan.cost.item() < 1


# The plan


def test_a_batch_is_the_stack_of_its_members_and_broadcasts() -> None:
    rng = np.random.default_rng(9)
    x, y = rng.standard_normal((3, 1, 7, 2)), rng.standard_normal((2, 5, 2))
    mu, nu = of.Particles(x), of.Particles(y)
    plan = solve(mu, nu)
    assert (plan.f.shape, plan.g.shape) == ((3, 2, 7), (3, 2, 5))
    assert plan.status.shape == (3, 2)
    check(plan, mu, nu)
    for i, j in np.ndindex(3, 2):
        alone = solve(of.Particles(x[i, 0]), of.Particles(y[j]))
        assert alone.cost.item() == plan.cost[i, j].item()
        torch.testing.assert_close(alone.plan, plan.plan[i, j], rtol=0, atol=0)


def test_a_plan_has_at_most_n_plus_m_minus_one_pairs() -> None:
    rng = np.random.default_rng(10)
    w = rng.random(30)
    plan = solve(of.Particles(rng.random((30, 2)), w=w / w.sum()), of.Particles(rng.random((20, 2))))
    assert plan.mass.shape == (49,)
    assert plan.rows.dtype == plan.cols.dtype == torch.int64


def test_averages_of_target_points_are_the_optimal_map_between_uniform_clouds() -> None:
    rng = np.random.default_rng(11)
    x, y = rng.random((12, 2)), rng.random((12, 2))
    plan = solve(of.Particles(x), of.Particles(y))
    _, s = linear_sum_assignment(cdist(x, y) ** 2)
    np.testing.assert_allclose(plan.average(torch.from_numpy(y)), y[s])


def test_atoms_without_mass_have_average_zero() -> None:
    plan = solve(of.Particles([[0.0, 0.0], [1.0, 1.0]], w=[0.0, 1.0]), of.Particles([[2.0, 5.0], [2.0, 5.0]]))
    assert plan.average(torch.tensor([[2.0, 5.0], [2.0, 5.0]])).tolist() == [[0.0, 0.0], [2.0, 5.0]]


def test_a_dense_plan_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = solve(of.Particles(np.zeros((5, 1))), of.Particles(np.zeros((4, 1))))
    monkeypatch.setattr("otflow.transport.exact.plans.LARGEST", 19)
    with pytest.raises(of.InputError, match="use rows, cols and mass"):
        _ = plan.plan


def test_a_plan_says_what_it_is() -> None:
    batch = of.Particles(np.zeros((2, 3, 2)))
    assert repr(solve(batch, batch)) == "ExactTransport(n=3, m=3, batch=(2,), p=2, gap=0, status=['ok'])"


# Failures


def test_too_few_pivots_are_a_failure_and_not_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    mu, nu = of.Particles(rng.random((50, 2))), of.Particles(rng.random((50, 2)))
    monkeypatch.setattr(network_simplex, "PIVOTS", 1)
    with pytest.raises(of.errors.ConvergenceError, match="not certified") as caught:
        solve(mu, nu)
    assert isinstance(caught.value.result, ExactTransport)
    assert caught.value.result.status == "max_iter"
    assert solve(mu, nu, on_failure="return").status == "max_iter"
    with pytest.raises(of.errors.ConvergenceError):
        wasserstein(mu, nu)


@pytest.mark.parametrize("blunder", ["plan", "mass", "potentials"])
def test_a_solver_that_lies_is_not_believed(monkeypatch: pytest.MonkeyPatch, blunder: str) -> None:
    honest = network_simplex._emd

    def liar(problem: network_simplex.SimplexProblem, c: Any) -> tuple[Any, Array, Array, int]:
        plan, f, g, code = honest(problem, c)
        if blunder == "plan":
            plan = plan[[1, 0, *range(2, len(plan))]]
        if blunder == "mass":
            plan = plan * np.where(np.arange(len(plan)) == 0, 1 - 1e-8, 1)[:, None]
        return plan, f + 1e-3 * np.arange(len(f)) if blunder == "potentials" else f, g, code

    monkeypatch.setattr(network_simplex, "_emd", liar)
    monkeypatch.setattr(network_simplex, "_along_tree", lambda edges, near, c: edges.f)
    rng = np.random.default_rng(13)
    mu, nu = of.Particles(rng.random((2, 20, 2))), of.Particles(rng.random((20, 2)))
    plan = solve(mu, nu, on_failure="return")
    assert plan.status.tolist() == ["uncertified", "uncertified"]
    with pytest.raises(of.errors.ConvergenceError, match="2 of 2"):
        solve(mu, nu)


def test_poor_potentials_are_repaired_along_the_tree_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = network_simplex._emd
    noise = np.random.default_rng(0)

    def noisy(problem: network_simplex.SimplexProblem, c: Any) -> tuple[Any, Array, Array, int]:
        plan, f, g, code = honest(problem, c)
        return plan, f + 1e-7 * noise.standard_normal(len(f)), g, code

    monkeypatch.setattr(network_simplex, "_emd", noisy)
    monkeypatch.setattr(network_simplex, "LEVELS", 1)
    rng = np.random.default_rng(14)
    w = rng.random(40)
    mu, nu = of.Particles(rng.random((40, 2)), w=w / w.sum()), of.Particles(rng.random((33, 2)))
    plan = solve(mu, nu)
    assert plan.gap.item() < 1e-13


def test_problems_that_do_not_fit_into_memory_are_refused_before_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "_memory", lambda: 2**30)
    mu = of.Particles(np.zeros((50_000, 2), np.float32))
    with pytest.raises(of.InputError, match=r"1\.5 GiB.*sliced"):
        solve(mu, mu)


def test_this_machine_has_some_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exact._memory() > 2**28
    monkeypatch.setattr("os.sysconf_names", {})
    assert exact._memory() == 2**33


def test_values_beyond_floating_point_are_refused_though_the_distance_exists() -> None:
    for scale in (1e-200, 1e200):
        mu, nu = of.Particles(scale * np.eye(3)), of.Particles(-scale * np.eye(3)[:2])
        found = solve(mu, nu)
        for name in ("cost", "bound", "potentials"):
            with pytest.raises(of.errors.NotFiniteError, match=r"\^2 = .*e[+-]200\^2.*divide the points"):
                getattr(found, name)
        one = solve(of.Particles(np.eye(3)), of.Particles(-np.eye(3)[:2]))
        assert found.distance.item() == pytest.approx(one.distance.item() * scale)
        assert found.distance.item() == wasserstein(mu, nu).item()
        assert torch.equal(found.plan, one.plan)
        assert found.status == "ok"
    far = of.Particles(1.5e308 * np.eye(2)), of.Particles(-1.5e308 * np.eye(2))
    with pytest.raises(of.InputError, match="rescale the points"):
        wasserstein(*far)


@pytest.mark.parametrize("p", [0.5, 0, -1, math.inf, math.nan, 501, "2", True])
def test_orders_outside_the_range_are_refused(p: Any) -> None:
    mu = of.Particles(np.zeros((2, 1)))
    with pytest.raises(of.InputError, match="p = "):
        solve(mu, mu, p)


def test_measures_that_cannot_be_compared_are_refused() -> None:
    flat, ball = of.Particles([[1.0, 0.0]]), of.Particles([[1.0, 0.0]], space=of.Sphere())
    gauss = of.Gaussian([0.0, 0.0], root=np.eye(2))
    for one, two in ((flat, ball), (flat, of.Particles([[1.0]])), (flat, gauss), (gauss, flat)):
        with pytest.raises(of.InputError):
            wasserstein(one, two)
        with pytest.raises(of.InputError):
            solve(one, two)
    with pytest.raises(of.InputError, match="only p = 2"):
        wasserstein(gauss, gauss, 1)
    with pytest.raises(of.InputError, match="on_failure"):
        solve(flat, flat, on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(of.InputError, match="finite"):
        solve(flat.at([math.nan * flat.x]), flat)


def test_gaussians_have_their_closed_form() -> None:
    mu, nu = of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([3.0], root=[[5.0]])
    assert wasserstein(mu, nu).item() == pytest.approx(5.0)


# Warm starts


def moving(
    n: int, d: int, step: float, *, weighted: bool = False
) -> tuple[of.Particles, of.Particles, of.Particles]:
    rng = np.random.default_rng(n + d)
    x, y, v = rng.random((n, d)), rng.random((n, d)), rng.standard_normal((n, d))
    w = rng.random(n) if weighted else np.ones(n)
    return tuple(of.Particles(z, w=w / w.sum()) for z in (x, x + step * v, y))  # type: ignore[return-value]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("step", "fresh"), [(1e-3, 0), (0.1, 0), (100.0, 1)])
def test_a_warm_start_changes_the_time_and_not_the_answer(
    monkeypatch: pytest.MonkeyPatch, step: float, fresh: int, weighted: bool
) -> None:
    before, after, nu = moving(400, 2, step, weighted=weighted)
    start, cold = solve(before, nu), solve(after, nu)
    dense = []
    honest = network_simplex._dense
    monkeypatch.setattr(network_simplex, "_dense", lambda *args: dense.append(1) or honest(*args))
    warm = solve(after, nu, start=start)
    check(warm, after, nu)
    assert warm.cost.item() == pytest.approx(cold.cost.item(), rel=1e-9)
    assert len(dense) == fresh
    assert wasserstein(after, nu, start=start).item() == pytest.approx(cold.distance.item(), rel=1e-9)


def test_a_plan_that_is_still_optimal_is_returned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mu, _, nu = moving(400, 2, 0.0)
    start = solve(mu, nu)
    monkeypatch.setattr(network_simplex, "_emd", None)
    assert solve(mu, nu, start=start).cost.item() == start.cost.item()


def test_a_start_of_another_scale_or_shape_does_no_harm() -> None:
    before, after, nu = moving(400, 5, 1e-3)
    tiny, huge = (solve(of.Particles(s * before.x), of.Particles(s * nu.x)) for s in (1e-150, 1e150))
    expected = solve(after, nu).cost.item()
    for start in (tiny, huge):
        assert solve(after, nu, start=start).cost.item() == pytest.approx(expected, rel=1e-9)
    with pytest.raises(of.InputError, match="start"):
        solve(after, nu, start=solve(of.Particles(np.zeros((3, 5))), nu))
