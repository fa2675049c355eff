"""Large exact problems: the same answers as with all costs at once, with the same proof, in little memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array
from scipy.spatial.distance import cdist

import otflow as of
from otflow.transport.exact import column_generation, network_simplex
from otflow.transport.exact import wasserstein as exact
from otflow.transport.exact.plans import ExactTransport
from otflow.transport.exact.wasserstein import solve, wasserstein
from tests.samples import Array, normal, unit

Measures = tuple[of.Measure, of.Measure]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem counts as large, and samples of it down to 20 atoms as well."""
    monkeypatch.setattr(exact, "LARGE", 0)
    monkeypatch.setattr(network_simplex, "COARSE", 400)


def both_ways(
    mu: of.Measure, nu: of.Measure, p: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[ExactTransport, ExactTransport]:
    """The plans with few pairs and with all."""
    few = solve(mu, nu, p)
    monkeypatch.setattr(exact, "LARGE", 2**40)
    return few, solve(mu, nu, p)


def check(
    plan: ExactTransport, mu: of.Measure, nu: of.Measure, space: of.measures.Space | None = None
) -> None:
    """Everything that a certified plan claims, computed again."""
    (x, a), (y, b) = mu.nodes(), nu.nodes()
    c = (space or of.Euclidean()).distance(x[:, None], y) ** plan.p
    assert plan.status == "ok"
    rounding = 1e-15 * (plan.f.abs()[:, None] + plan.g.abs())
    assert bool((plan.f[:, None] + plan.g <= c * (1 + 1e-13) + rounding).all())
    P = plan.plan
    torch.testing.assert_close(P.sum(1), a, rtol=1e-6, atol=1e-13)
    torch.testing.assert_close(P.sum(0), b, rtol=1e-6, atol=1e-13)
    torch.testing.assert_close((P * c).sum(), plan.cost, rtol=1e-12, atol=0)
    torch.testing.assert_close(a @ plan.f + b @ plan.g, plan.cost, rtol=2e-9, atol=0)
    assert 0 <= plan.gap.item() <= 1e-9


def weights(n: int, seed: int) -> Array:
    w = np.random.default_rng(seed).random(n) ** 4
    return w / w.sum()


def clumps(spread: float, n: int, seed: int) -> Array:
    """Points near four corners, as many at each."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [3.0, 2.0]])
    return corners[np.arange(n) % 4] + spread * normal(n, 2, seed=seed)


def tails(at: float) -> of.Grid:
    """A Gaussian on a grid, down to densities of 1e-60."""
    t = np.linspace(-8, 8, 15)
    rho = np.exp(-((t[:, None] - at) ** 2) - (t - 2 * at) ** 2)
    return of.Grid(rho / rho.sum() / (t[1] - t[0]) ** 2, [t, t])


def cloud(x: Array, w: Array | None = None) -> of.Particles:
    return of.Particles(x, w=w)


def massless(n: int, seed: int) -> Array:
    w = weights(n, seed)
    w[::3] = 0.0
    return w / w.sum()


CASES: dict[str, Callable[[], Measures]] = {
    "uniform": lambda: (cloud(normal(150, 3)), cloud(normal(150, 3, seed=1) + 1)),
    "uneven": lambda: (cloud(normal(150, 3)), cloud(normal(97, 3, seed=1))),
    "weighted": lambda: (
        cloud(normal(150, 2), weights(150, 0)),
        cloud(normal(130, 2, seed=1), weights(130, 1)),
    ),
    "without mass": lambda: (
        cloud(normal(150, 2), massless(150, 0)),
        cloud(normal(90, 2, seed=1), massless(90, 1)),
    ),
    "one with mass": lambda: (cloud(normal(40, 2), np.eye(40)[7]), cloud(normal(30, 2, seed=1))),
    "duplicates": lambda: (cloud(normal(150, 2).round()), cloud(normal(200, 2, seed=1).round())),
    "small": lambda: (cloud(normal(2, 2)), cloud(normal(3, 2, seed=1))),
    "high dimension": lambda: (cloud(normal(120, 30)), cloud(normal(120, 30, seed=1))),
    "tails": lambda: (tails(0.5), tails(-0.7)),
    "clumps": lambda: (cloud(clumps(1e-3, 160, 0)), cloud(clumps(1e-3, 160, 1))),
    "tight clumps": lambda: (cloud(clumps(1e-6, 160, 0)), cloud(clumps(1e-6, 160, 1))),
    "uneven clumps": lambda: (cloud(clumps(1e-6, 160, 0), weights(160, 0)), cloud(clumps(1e-6, 160, 1))),
    "tiny": lambda: (cloud(1e-100 * normal(150, 2)), cloud(1e-100 * normal(150, 2, seed=1))),
    "huge": lambda: (cloud(1e100 * normal(150, 2)), cloud(1e100 * normal(150, 2, seed=1))),
}


# The same answers


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_few_pairs_give_the_same_answer_as_all(
    name: str, p: float, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mu, nu = CASES[name]()
    few, whole = both_ways(mu, nu, p, monkeypatch)
    assert few.cost.item() == pytest.approx(whole.cost.item(), rel=2e-9, abs=0)
    check(few, mu, nu)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("space", [of.Sphere(), of.Torus(2.0)])
def test_curved_spaces_have_large_problems_too(
    space: of.measures.Space, p: float, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = (unit(n, 3, seed=n) for n in (150, 120))
    mu, nu = (of.Particles(z % 2.0 if isinstance(space, of.Torus) else z, space=space) for z in (x, y))
    few, whole = both_ways(mu, nu, p, monkeypatch)
    assert few.cost.item() == pytest.approx(whole.cost.item(), rel=2e-9)
    check(few, mu, nu, space)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6, 1e-8])
@pytest.mark.parametrize("p", [1, 2])
def test_clusters_agree_with_an_assignment(spread: float, p: float, large: None) -> None:
    for seed in range(5):
        x, y = clumps(spread, 120, seed), clumps(spread, 120, seed + 10)
        c = cdist(x, y) ** p
        expected = c[linear_sum_assignment(c)].mean()
        assert solve(cloud(x), cloud(y), p).cost.item() == pytest.approx(expected, rel=1e-9, abs=0)


def test_a_sample_that_misses_the_farthest_atom_does_no_harm(large: None) -> None:
    x, y = normal(200, 2), normal(200, 2, seed=1)
    away = np.setdiff1d(np.arange(200), column_generation.sample(np.full(200, 1 / 200), 50)[0])[0]
    x[away] = 1e4
    c = cdist(x, y)
    assert solve(cloud(x), cloud(y), 1).cost.item() == pytest.approx(
        c[linear_sum_assignment(c)].mean(), rel=1e-9
    )


def test_identical_clouds_in_another_order_are_at_distance_exactly_zero(large: None) -> None:
    x, order = normal(150, 3), np.random.default_rng(0).permutation(150)
    plan = solve(cloud(x), cloud(x[order]))
    assert (plan.cost.item(), plan.gap.item(), plan.status) == (0.0, 0.0, "ok")
    assert wasserstein(cloud(np.ones((50, 2))), cloud(np.ones((70, 2)))).item() == 0.0


def test_few_pairs_at_a_time_are_enough(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    mu, nu = CASES["weighted"]()
    expected = solve(mu, nu, 1)
    counts: list[int] = []
    honest = network_simplex._sparse

    def counting(
        problem: network_simplex.SimplexProblem, c: Any, pairs: Array
    ) -> tuple[network_simplex.Edges, Array]:
        counts.append(len(pairs))
        return honest(problem, c, pairs)

    monkeypatch.setattr(network_simplex, "_sparse", counting)
    monkeypatch.setattr(network_simplex, "WIDTH", 2)
    monkeypatch.setattr(network_simplex, "MOST", 3)
    assert solve(mu, nu, 1).cost.item() == pytest.approx(expected.cost.item(), rel=2e-9)
    assert max(counts) < (3 + 2) * 280 < 150 * 130 / 10


def test_batches_and_gradients_are_those_of_the_whole_problem(
    large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.from_numpy(normal(2, 60, 2)).requires_grad_()
        distance = wasserstein(of.Particles(x), cloud(normal(50, 2, seed=1)))
        return distance.detach(), torch.autograd.grad(distance.sum(), x)[0]

    few = gradient()
    monkeypatch.setattr(exact, "LARGE", 2**40)
    for one, other in zip(few, gradient(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_plan_of_the_step_before_saves_the_sample(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_simplex, "SMALL", 0)
    x, y = normal(150, 2), normal(150, 2, seed=1)
    start = solve(cloud(x), cloud(y))
    moved = cloud(x + 1e-3 * normal(150, 2, seed=2))
    expected = solve(moved, cloud(y)).cost.item()
    monkeypatch.setattr(column_generation, "sample", None)
    plan = solve(moved, cloud(y), start=start)
    assert plan.cost.item() == pytest.approx(expected, rel=2e-9)
    check(plan, moved, cloud(y))


# Failures


@pytest.mark.parametrize("blunder", ["plan", "mass", "potentials"])
def test_a_solver_that_lies_is_not_believed(
    blunder: str, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = network_simplex._sparse

    def liar(
        problem: network_simplex.SimplexProblem, c: Any, pairs: Array
    ) -> tuple[network_simplex.Edges, Array]:
        edges, g = honest(problem, c, pairs)
        if blunder == "plan":
            edges = edges._replace(cols=np.roll(edges.cols, 1))
        if blunder == "mass":
            edges = edges._replace(mass=edges.mass * np.where(np.arange(len(edges.mass)) == 0, 1 - 1e-8, 1))
        if blunder == "potentials":
            edges = edges._replace(f=edges.f + 1e-3 * np.arange(len(edges.f)))
        return edges, g

    monkeypatch.setattr(network_simplex, "_sparse", liar)
    monkeypatch.setattr(network_simplex, "_along_tree", lambda edges, near, c: edges.f)
    plan = solve(*CASES["uniform"](), on_failure="return")
    assert plan.status != "ok"


def test_too_few_rounds_are_a_failure_and_not_a_value(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_simplex, "ROUNDS", 1)
    monkeypatch.setattr(network_simplex, "LEVELS", 1)
    monkeypatch.setattr(network_simplex, "WIDTH", 1)
    plan = solve(*CASES["weighted"](), on_failure="return")
    assert plan.status == "max_iter"
    assert plan.bound.item() < plan.cost.item()


def test_poor_potentials_are_repaired_along_the_tree_of_the_plan(
    large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = network_simplex._among
    noise = np.random.default_rng(0)

    def noisy(*args: Any) -> tuple[network_simplex.Edges, Array]:
        edges, pairs = honest(*args)
        return edges._replace(f=edges.f + 1e-7 * noise.standard_normal(len(edges.f))), pairs

    monkeypatch.setattr(network_simplex, "_among", noisy)
    monkeypatch.setattr(network_simplex, "LEVELS", 1)
    assert solve(*CASES["weighted"]()).gap.item() < 1e-12


# The parts


def test_costs_are_the_same_by_rows_by_pairs_and_transposed() -> None:
    x, y = torch.from_numpy(normal(30, 3)), torch.from_numpy(normal(20, 3, seed=1))
    D = column_generation.LazyDistances(of.Euclidean(), x, y)
    c = column_generation.Costs(D, np.square)
    expected = cdist(x, y, "sqeuclidean")
    i, j = np.divmod(np.arange(600), 20)
    assert c.shape == (30, 20)
    np.testing.assert_allclose(c[3:9], expected[3:9], rtol=1e-14)
    np.testing.assert_allclose(c[i, j].reshape(30, 20), expected, rtol=1e-14)
    np.testing.assert_allclose(c.T[:], expected.T, rtol=1e-14)
    np.testing.assert_allclose(D.at(np.array([4, 1]), np.arange(20))[:] ** 2, expected[[4, 1]], rtol=1e-14)
    assert D.max() == pytest.approx(expected.max() ** 0.5)


@pytest.fixture
def tiny_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otflow.base.kernels.TILE", 60)


def test_the_nearest_pairs_are_those_of_each_row_and_column(tiny_tiles: None) -> None:
    rng = np.random.default_rng(0)
    c, f, g = rng.random((25, 20)), rng.random(25), rng.random(20)
    slack = c - f[:, None] - g
    rows, cols = slack.argsort(1)[:, :3], slack.argsort(0)[:3]
    expected = np.zeros((25, 20), bool)
    np.put_along_axis(expected, rows, True, 1)
    np.put_along_axis(expected, cols, True, 0)
    np.testing.assert_array_equal(column_generation.nearest(c, f, g, 3), np.flatnonzero(expected))
    np.testing.assert_array_equal(column_generation.nearest(c, f, g, 99), np.arange(500))


def test_violations_are_found_and_none_twice_as_bad_is_missed(tiny_tiles: None) -> None:
    rng = np.random.default_rng(1)
    c, f, g = rng.random((25, 20)), rng.random(25), rng.random(20) - 0.5
    excess = f[:, None] + g - c - 0.1
    found, best = column_generation.violated(c, f, g, 4, 0.1)
    i, j = np.divmod(found, 20)
    counts = np.bincount(i, minlength=25)
    assert len(np.unique(found)) == len(found)
    np.testing.assert_array_equal(counts, np.minimum((excess > 0).sum(1), 4))
    assert 0 < (counts == 4).sum() < 25
    missed = np.where(np.isin(np.arange(500), found).reshape(25, 20), 0, excess).max(1)
    assert bool((excess[i, j] > np.maximum(missed[i] / 2, 0)).all())
    np.testing.assert_array_equal(best, (c - f[:, None]).min(0))
    assert len(column_generation.violated(c, f, g - 9, 4, 0.1)[0]) == 0


def test_rows_alike_do_not_all_ask_for_the_same_columns() -> None:
    found, _ = column_generation.violated(-np.ones((50, 200)), np.zeros(50), np.zeros(200), 4, 0.0)
    assert len(np.unique(found % 200)) > 20


@pytest.mark.parametrize(("n", "m"), [(1, 5), (5, 1), (30, 30), (40, 23)])
@pytest.mark.parametrize("even", [True, False])
def test_a_staircase_carries_a_plan(n: int, m: int, even: bool) -> None:
    a, b = (np.full(k, 1 / k) if even else weights(k, k) for k in (n, m))
    pairs = column_generation.staircase(a, b)
    assert len(np.unique(pairs)) == n + m - 1
    rows, cols = np.divmod(pairs, m)
    _, log = ot.emd(a, b, coo_array((np.ones(len(pairs)), (rows, cols)), shape=(n, m)), log=True)
    assert log["result_code"] == 1
    assert log["cost"] == pytest.approx(1.0, rel=1e-12)


def test_a_sample_stands_for_all_atoms() -> None:
    even, w = column_generation.sample(np.full(100, 0.01), 25)
    assert len(even) == 25
    np.testing.assert_allclose(w, 1 / 25)
    heavy = np.array([0.9, *np.full(99, 0.1 / 99)])
    i, w = column_generation.sample(heavy, 25)
    assert w.sum() == pytest.approx(1.0)
    assert dict(zip(i, w, strict=True))[0] == pytest.approx(0.9, abs=0.05)


def test_pairs_that_are_kept_come_before_tight_ones() -> None:
    rng = np.random.default_rng(2)
    c, f, g = rng.random((10, 8)), np.zeros(10), np.zeros(8)
    pairs, kept = np.arange(5, 60), np.array([7, 20, 41])
    found = column_generation.tightest(c, f, g, pairs, kept, 10)
    rest = np.setdiff1d(pairs, kept)
    expected = np.sort(np.concatenate([kept, rest[c.flat[rest].argsort()[:7]]]))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(column_generation.missing(np.array([3, 5, 8, 99]), kept), [3, 5, 8, 99])
    np.testing.assert_array_equal(column_generation.missing(np.array([7, 8, 41]), kept), [8])


# Memory

PEAK = """
import resource, numpy as np, otflow as of, ot
rng = np.random.default_rng(0)
of.solve(*(of.Particles(x) for x in rng.random((2, 50, 3))))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
plan = of.solve(*(of.Particles(x) for x in rng.random((2, 6000, 3))))
assert plan.status == "ok" and plan.gap.item() < 1e-9
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_six_thousand_atoms_take_little_memory() -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", PEAK], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    peak = int(run.stdout) * (1 if sys.platform == "darwin" else 1024)  # bytes there, kilobytes elsewhere
    assert peak < exact.SPARSE * 12_000  # 36 million distances alone take 288 MB
