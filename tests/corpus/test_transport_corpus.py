"""Bad input and hard input that broke other libraries, by number: 1 to 9 and 14 to 16, exact transport.

Exact solvers that call a wrong plan optimal, weights that do not sum to one, covariances that touch or lose
rank. What the others did is said where it explains a test; none depends on their staying wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.transport.entropic import sinkhorn as entropic
from otflow.transport.exact import network_simplex, wasserstein
from otflow.transport.exact import wasserstein as exact
from tests.corpus.refusals import refuses
from tests.corpus.transports import (
    CLOUDS,
    ENGINES,
    ENTROPIC,
    GAUSSIANS,
    Watch,
    assignment,
    costs,
    exact_bures,
    labelled,
    normal,
    pairs_of_clusters,
)

REGIMES = {"differences": 2**22, "scalar products": 0}  # entropic.DIFFERENCES


class Shrink(of.VelocityField):
    """x' = -x."""

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return mu.coords.map(torch.neg)


def proved(plan: of.transport.ExactTransport, c: np.ndarray) -> bool:
    """Whether the potentials of a uniform plan are feasible and its value meets their bound, by numpy."""
    f, g = plan.f.numpy(), plan.g.numpy()
    feasible = bool((f[:, None] + g[None] <= c * (1 + 1e-9)).all())
    return feasible and float(plan.cost) <= (f.mean() + g.mean()) * (1 + 1e-9)


# --- 1-3: exact transport that is not exact ------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-10, -12, -14, -16, -40, -200])
def test_01_small_costs_are_solved_and_certified(exponent: int) -> None:
    size = 10 ** (exponent / 2)
    for seed in range(20):  # POT: up to 20 of 20 wrong, by up to a factor of ten, all "optimal"
        n = 5 + 3 * seed
        x, y = size * normal(2, n, 2, seed=seed)
        plan = of.solve(of.Particles(x), of.Particles(y))
        assert float(plan.cost) == pytest.approx(assignment(x / size, y / size) * size**2, rel=1e-9)
        assert plan.status == "ok"
        assert proved(plan, costs(x, y))


@pytest.mark.parametrize("name", [name for name in CLOUDS if name not in ENTROPIC])
def test_01_a_cloud_of_spread_1e_8_is_measured_as_well_as_one_of_spread_one(name: str) -> None:
    f, degree = CLOUDS[name]
    x, y = normal(2, 30, 2)
    large, small = (f(labelled(s * x), labelled(s * y), s).item() for s in (1.0, 1e-8))
    assert small == pytest.approx(large * 1e-8**degree, rel=1e-12)


def test_01_speeds_and_distances_are_right_while_a_cloud_collapses_by_seventeen_decades() -> None:
    x = normal(25, 2)
    save = [0.0, 10.0, 20.0, 30.0, 40.0]
    runs = [
        of.flow(of.Particles(s * x), Shrink(), of.Dopri5(rtol=1e-12), t1=40.0, save_at=save) for s in (1, 2)
    ]
    size, left = math.sqrt((x**2).sum(-1).mean()), np.exp(-np.array(save))
    assert of.observables.distances(*runs).tolist() == pytest.approx(size * left, rel=1e-6)
    assert runs[0].speed().tolist() == pytest.approx(-np.diff(left) * size / 10, rel=1e-6)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("spread", [1e-6, 1e-7, 1e-8])
def test_02_two_tight_clusters_are_solved_and_certified(spread: float, p: float) -> None:
    for seed in range(5):  # POT, also with the cost divided by its maximum: up to 5 times too large
        x, y = pairs_of_clusters(spread, 40, seed=seed)
        plan = of.solve(of.Particles(x), of.Particles(y), p)
        halves = [assignment(x[half], y[half], p) for half in (slice(20), slice(20, 40))]
        assert float(plan.cost) == pytest.approx(sum(halves) / 2, rel=1e-9)
        assert proved(plan, costs(x, y, p))


def test_02_clusters_that_move_by_1e_9_have_that_distance_and_speed() -> None:
    x, _ = pairs_of_clusters(1e-6, 40)
    h = np.array([1.1, -0.7]) * 1e-9
    mu, nu = of.Particles(x), of.Particles(x + h)
    moved = np.linalg.norm((x + h) - x, axis=-1)  # what rounding made of the move
    assert of.wasserstein(mu, nu).item() == pytest.approx(math.sqrt((moved**2).mean()), rel=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6])
def test_02_entropic_transport_of_tight_clusters_is_right_or_refused(
    spread: float, regime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entropic, "DIFFERENCES", REGIMES[regime])
    (x, y), eps = pairs_of_clusters(spread, 20), 0.1 * spread**2
    best = float(of.solve(of.Particles(x), of.Particles(y)).cost)
    plan = of.sinkhorn(of.Particles(x), of.Particles(y), eps, on_failure="return")
    if plan.status == "ok":
        assert best * (1 - 1e-6) <= plan.cost.item() <= best + eps * math.log(20) * (1 + 1e-6)
    else:
        assert spread < 1e-3, "scores of 1e5 are no excuse"
        assert plan.error.item() > 1e-9


@pytest.mark.parametrize("far", [1e10, 1e16, 1e50, 1e150])
def test_03_costs_of_1e32_next_to_costs_of_one_do_not_spoil_the_plan(far: float) -> None:
    x, y = normal(2, 30, 2)
    x[15:, 0] = y[15:, 0] = far  # POT: 88.5 instead of 57.5 for entries of 1e32, without a warning
    x[:15, 0] = y[:15, 0] = 0.0
    halves = [assignment(x[half], y[half]) for half in (slice(15), slice(15, 30))]
    assert of.wasserstein(of.Particles(x), of.Particles(y)).item() ** 2 == pytest.approx(sum(halves) / 2)


@pytest.mark.parametrize("far", [1e140, 1e150, 1e153, 1e155, 1e158, 1e160, 1e161, 1e162, 1e200])
def test_03_near_points_do_not_lose_their_distance_because_others_are_very_far(far: float) -> None:
    x, y = np.zeros((2, 4, 2))
    x[2:, 0] = y[2:, 0] = far
    y[:, 1] = 0.7
    assert of.solve(of.Particles(x), of.Particles(y)).distance.item() == pytest.approx(0.7, rel=1e-9)


@pytest.mark.parametrize("beta", [1e8, 1e16, 1e32, 1e100])
def test_03_a_price_of_1e32_on_labels_forbids_moving_them(beta: float) -> None:
    mu, nu = (labelled(x) for x in normal(2, 12, 2))
    relaxed = of.transport.relaxed_conditional(mu, nu, beta)
    assert relaxed.status == "ok"
    assert relaxed.shortfall.item() == pytest.approx(0.0, abs=1e-12)
    assert relaxed.moved.item() == 0.0


# --- 4-9: input ----------------------------------------------------------------------------------------

BROKEN = {"nan": math.nan, "inf": math.inf}


@pytest.mark.parametrize("value", BROKEN)
def test_04_positions_and_covariances_that_are_not_finite_are_refused_by_index(value: str) -> None:
    x, S = normal(5, 2), np.eye(3)
    x[3, 1] = S[1, 1] = BROKEN[value]
    refuses(lambda: of.Particles(x), f"x[3, 1] = {value}", "finite")
    refuses(lambda: of.transport.bures(S, np.eye(3)), f"S1[1, 1] = {value}", "finite")
    refuses(lambda: of.transport.bures(np.eye(3), S), f"S2[1, 1] = {value}", "finite")
    refuses(lambda: of.Gaussian(np.zeros(3), cov=S), f"cov[1, 1] = {value}", "finite")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", BROKEN)
def test_04_a_cost_that_is_not_finite_is_refused_by_index(value: str, engine: str) -> None:
    def cost(x: Tensor, y: Tensor) -> Tensor:  # POT: 0.0 or infinity, or "optimal" with one NaN
        c = (x - y).square().sum(-1)
        return torch.where(c == c.amax(), BROKEN[value], c)

    mu, nu = (of.Particles(x) for x in normal(2, 6, 2))
    call: Callable[..., Any]
    for call in (of.sinkhorn, of.sinkhorn_divergence):
        options = of.Sinkhorn(1.0, engine=ENGINES[engine])
        refuses(lambda call=call, o=options: call(mu, nu, o, cost=cost), "cost(x, y)[", value)


@pytest.mark.parametrize("name", CLOUDS)
def test_04_a_cloud_that_has_turned_nan_is_refused(name: str) -> None:
    mu = labelled(normal(6, 2))
    nan = mu.at([torch.where(torch.arange(6)[:, None] == 3, torch.nan, mu.x)])
    for pair in ((nan, mu), (mu, nan)):
        refuses(lambda pair=pair: CLOUDS[name].of(*pair, 1.0), "nan", "finite")


@pytest.mark.parametrize("name", GAUSSIANS)
def test_04_a_gaussian_that_has_turned_nan_is_refused(name: str) -> None:
    mu = of.Gaussian(np.zeros(3), root=np.eye(3))
    nan = mu.at([mu.mean, mu.root * torch.tensor([1.0, torch.nan, 1.0], dtype=torch.float64)])
    for pair in ((nan, mu), (mu, nan)):
        refuses(lambda pair=pair: GAUSSIANS[name].of(*pair, 1.0), "nan", "finite")


def single(weighted: bool) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Two clouds in single precision whose weights sum to one only up to 1e-7, in different ways."""
    out = []
    for n, seed in ((30, 1), (42, 2)):
        w = np.random.default_rng(seed).uniform(0.2, 1.0, n // 3).repeat(3)  # of the same law for every label
        w = np.full(n, 1 / n) if not weighted else w / w.sum()
        out.append((normal(n, 2, seed=seed).astype(np.float32), w.astype(np.float32) if weighted else None))
    return out


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CLOUDS)
def test_05_weights_in_single_precision_are_normalised_in_double_precision(name: str, weighted: bool) -> None:
    # The masses of both clouds differ by 1e-8 in single precision: POT called this infeasible.
    clouds = single(weighted)
    mu, nu = (labelled(x, w) for x, w in clouds)
    double = [labelled(x.astype(float), None if w is None else w.astype(float)) for x, w in clouds]
    got, expected = (CLOUDS[name].of(*pair, 1.0) for pair in ((mu, nu), double))
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(expected.item(), rel=2e-7)


def test_05_a_hundred_thousand_weights_in_single_precision_are_transported_whole() -> None:
    n = 100_000
    x = np.linspace(0, 1, n, dtype=np.float32)[:, None]
    w = np.full(n, 1 / n, np.float32)
    plan = of.solve(of.Particles(x, w), of.Particles(x[::2] + 1))
    assert plan.mass.sum().item() == pytest.approx(1.0, abs=1e-12)
    assert plan.distance.item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_05_negative_weights_are_refused(dtype: Any) -> None:
    w = np.array([0.6, 0.6, -0.2], dtype)  # POT: a distance of 0.0 and a warning
    refuses(lambda: of.Particles(np.zeros((3, 2), dtype), w), "min(w) = -0.2", ">= 0")
    refuses(
        lambda: of.transport.bures_barycentre(of.Gaussian(np.zeros((3, 1)), root=np.ones((3, 1, 1))), w),
        "weights",
        "-0.2",
    )


def test_06_whole_numbers_mean_the_same_as_floats() -> None:
    x, y = [[0, 0], [3, 0], [0, 4]], [[1, 1], [2, 2]]
    mu, nu = of.Particles(x, [0, 1, 0]), of.Particles(y)
    assert of.wasserstein(mu, nu, 1).item() == pytest.approx(math.sqrt(5))
    plan = of.solve(of.Particles(x), nu)
    assert plan.plan.dtype == torch.float64  # POT: a plan of whole numbers, all zero
    assert plan.plan.sum().item() == pytest.approx(1.0, abs=1e-15)
    assert of.transport.bures(np.diag([4, 1]), np.diag([1, 1])).item() == 1.0


@pytest.mark.parametrize("engine", ENGINES)
def test_06_a_cost_of_whole_numbers_is_a_cost(engine: str) -> None:
    mu, nu = (of.Particles(np.random.default_rng(s).integers(0, 9, (7, 2))) for s in (0, 1))
    options = of.Sinkhorn(2.0, engine=ENGINES[engine])
    whole = of.sinkhorn(mu, nu, options, cost=lambda x, y: (x - y).abs().sum(-1).long())
    real = of.sinkhorn(mu, nu, options, cost=lambda x, y: (x - y).abs().sum(-1))
    assert torch.equal(whole.plan, real.plan)


def test_06_weights_that_count_are_refused_with_the_remedy() -> None:
    refuses(lambda: of.Particles(np.zeros((3, 2)), [1, 1, 2]), "sum(w) = 4.0", "w / w.sum()")


LENGTHS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "weights": (lambda: of.Particles(np.zeros((3, 2)), np.full(4, 0.25)), ("w.shape = (4,)", "(3,)")),
    "points": (
        lambda: of.wasserstein(of.Particles(np.zeros((3, 2))), of.Particles(np.zeros((3, 1)))),
        ("dimension 1", "dimension 2"),
    ),
    "batches": (
        lambda: of.sinkhorn(of.Particles(np.zeros((2, 3, 1))), of.Particles(np.zeros((4, 3, 1))), 1.0),
        ("nu.batch = (4,)", "(2,)"),
    ),
    "covariances": (lambda: of.transport.bures(np.eye(2), np.eye(3)), ("S2.shape = (3, 3)", "(2, 2)")),
    "gaussians": (
        lambda: of.bures_wasserstein(
            of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([0.0] * 2, root=np.eye(2))
        ),
        ("nu.d = 2", "dimension 1"),
    ),
    "weights of a barycentre": (
        lambda: of.transport.bures_barycentre(
            of.Gaussian(np.zeros((3, 1)), root=np.ones((3, 1, 1))), [0.5, 0.5]
        ),
        ("weights.shape = (2,)", "(3,)"),
    ),
    "a cost matrix": (
        lambda: of.sinkhorn(
            of.Particles(np.zeros((3, 1))), of.Particles(np.ones((2, 1))), 1.0, cost=one_less
        ),
        ("cost(x, y) = (1, 2, 2)", "(1, 3, 2)"),
    ),
    "directions": (
        lambda: of.sliced_wasserstein(
            labelled(np.zeros((3, 2))), labelled(np.ones((3, 2))), directions=np.eye(3)
        ),
        ("directions.shape = (3, 3)", "d = 2"),
    ),
}


def one_less(x: Tensor, y: Tensor) -> Tensor:
    return (x - y)[..., 1:, :, :].sum(-1)


@pytest.mark.parametrize("name", LENGTHS)
def test_07_lengths_that_do_not_fit_are_refused(name: str) -> None:
    call, parts = LENGTHS[name]
    refuses(call, *parts)


@pytest.mark.slow
def test_07_lengths_are_checked_also_when_python_drops_assertions(without_assertions: dict[str, Any]) -> None:
    assert without_assertions["refused"] == ["InputError"] * 3  # POT checked lengths by assert


def product(a: np.ndarray, b: np.ndarray, c: Any, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """What a simplex that has made no step knows."""
    return np.outer(a, b), {"u": 0 * a, "v": 0 * b, "result_code": 3}


def empty(a: np.ndarray, b: np.ndarray, c: Any, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """A plan of zeros, which some solvers return for infeasible problems, called optimal."""
    return np.zeros(c.shape), {"u": 0 * a, "v": 0 * b, "result_code": 1}


def not_a_number(a: np.ndarray, b: np.ndarray, c: Any, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
    return np.full(c.shape, np.nan), {"u": np.nan * a, "v": np.nan * b, "result_code": 1}


LIMITED: dict[str, Callable[[of.Particles, of.Particles], Any]] = {
    "solve": of.solve,
    "wasserstein": of.wasserstein,
    "conditional": of.conditional_wasserstein,
    "relaxed": lambda mu, nu: of.transport.relaxed_conditional(mu, nu, [1.0, 2.0]),
    "distance": lambda mu, nu: of.distance(mu, nu, of.Wasserstein()),
    "distances": lambda mu, nu: of.observables.distances(
        of.flow(mu, Shrink(), of.Euler(), t1=0.2, dt=0.1), nu
    ),
    "speed": lambda mu, nu: of.flow(mu, Shrink(), of.Euler(), t1=0.2, dt=0.1).speed(of.solve),
}


@pytest.mark.parametrize("engine", [product, empty, not_a_number])
@pytest.mark.parametrize("name", LIMITED)
def test_08_a_simplex_that_has_not_finished_raises_and_keeps_what_it_has(
    name: str, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ot, "emd", engine)
    mu, nu = (labelled(x) for x in normal(2, 12, 2))
    with pytest.raises(of.errors.ConvergenceError) as caught:
        LIMITED[name](mu, nu)
    assert caught.value.result is not None


def test_08_a_limit_on_pivots_never_gives_a_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    mu, nu = (of.Particles(x) for x in normal(2, 60, 2))
    truth = of.wasserstein(mu, nu).item()
    for pivots in (0.01, 0.1, 0.5, 2):  # per atom; POT: 0.04 instead of 18.4, and a warning
        monkeypatch.setattr(network_simplex, "PIVOTS", pivots)
        monkeypatch.setattr(network_simplex, "_emd", whole_pivots(network_simplex._emd))
        plan = of.solve(mu, nu, on_failure="return")
        assert plan.status != "ok" or plan.distance.item() == pytest.approx(truth, rel=1e-9)
        if pivots == 0.01:
            assert plan.status == "max_iter"


def whole_pivots(emd: Any) -> Any:
    def limited(problem: Any, c: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            real = ot.emd
            patch.setattr(ot, "emd", lambda *a, numItermax, **k: real(*a, numItermax=int(numItermax), **k))
            return emd(problem, c)

    return limited


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_iter", [1, 3])
def test_08_entropic_engines_that_stop_at_their_limit_raise(engine: str, max_iter: int) -> None:
    mu, nu = (of.Particles(x) for x in 3 * normal(2, 30, 2))
    options = of.Sinkhorn(0.1, engine=ENGINES[engine], max_iter=max_iter)
    for call in (of.sinkhorn, of.sinkhorn_divergence):
        with pytest.raises(of.errors.ConvergenceError, match="max_iter"):
            call(mu, nu, options)
    plan = of.sinkhorn(mu, nu, options, on_failure="return")
    assert plan.status == "max_iter"
    off = (plan.plan.sum(-2) - nu.w).abs().sum().item()  # measured here, not believed
    assert plan.error.item() == pytest.approx(off, rel=1e-6)
    assert off > 1e-3


def test_08_a_barycentre_that_stops_at_its_limit_raises() -> None:
    mus = of.Gaussian(np.zeros((4, 3)), root=normal(4, 3, 3))
    with pytest.raises(of.errors.ConvergenceError, match="residual") as caught:
        of.transport.bures_barycentre(mus, max_iter=1)
    assert caught.value.result.status == "max_iter"
    assert caught.value.result.residual.item() > 1e-6


def test_08_divergences_that_fail_along_a_flow_do_not_leave_other_numbers_behind() -> None:
    mu = of.Particles(normal(12, 2))
    nu, run = of.Particles(mu.x + 1), of.flow(mu, Shrink(), of.Euler(), t1=0.2, dt=0.1)
    few = of.Sinkhorn(0.01, max_iter=4)
    with pytest.raises(of.errors.ConvergenceError) as caught:
        of.observables.distances(run, nu, lambda mu, nu: of.sinkhorn_divergence(mu, nu, few))
    truth = of.observables.distances(run, nu, lambda mu, nu: of.sinkhorn_divergence(mu, nu, 0.01))
    left = caught.value.result
    assert bool((left.isnan() | ((left - truth).abs() < 0.1 * truth)).all())


MANY = 50_000
LARGE: dict[str, Callable[[of.Particles, of.Particles], Any]] = {
    **{name: LIMITED[name] for name in ("solve", "wasserstein", "conditional", "relaxed", "distance")},
    "pot": lambda mu, nu: of.sinkhorn(mu, nu, of.Sinkhorn(1.0, engine=of.transport.POT())),
    "geomloss": lambda mu, nu: of.sinkhorn(mu, nu, of.Sinkhorn(1.0, engine=of.transport.GeomLoss())),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LARGE)
def test_09_fifty_thousand_atoms_are_refused_before_anything_is_allocated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_memory", lambda: 2**30)  # POT: the process was aborted, with 16 times that
    mu, nu = (of.Particles(x, label=np.zeros(MANY)) for x in normal(2, MANY, 2))
    with Watch() as watch:
        refuses(lambda: LARGE[name](mu, nu), "50000", "G", "use")
    assert watch.largest <= 10 * MANY


def test_09_fifty_thousand_atoms_on_the_line_need_no_matrix() -> None:
    mu, nu = (of.Particles(x) for x in normal(2, MANY, 1))
    with Watch() as watch:
        assert of.solve(mu, nu).status == "ok"
    assert watch.largest <= 10 * MANY


@pytest.mark.slow
def test_09_the_estimate_of_memory_is_not_too_small(without_assertions: dict[str, Any]) -> None:
    n, peak = (without_assertions["solve"][key] for key in ("n", "peak"))
    assert 24 * n**2 < peak < wasserstein.BYTES * n**2 + 2**24


# --- 14-16: covariances --------------------------------------------------------------------------------

SINGULAR = {
    "one zero": np.diag([1.0, 2.0, 0.0]),
    "rank one": np.outer([1.0, -2.0, 3.0], [1.0, -2.0, 3.0]),
    "zero": np.zeros((3, 3)),
    "by rounding": normal(3, 2) @ normal(3, 2).T,
    "tiny": 1e-30 * np.diag([1.0, 2.0, 0.0]),
    "huge": 1e30 * np.diag([1.0, 2.0, 0.0]),
}


@pytest.mark.parametrize("other", ["regular", *SINGULAR])
@pytest.mark.parametrize("name", SINGULAR)
def test_14_the_distance_between_singular_covariances_is_real_and_right(name: str, other: str) -> None:
    # Elsewhere: NaN from roots of matrices, and a square that was missing.
    S1, S2 = SINGULAR[name], SINGULAR.get(other, np.diag([3.0, 1.0, 0.5]))
    size = math.sqrt(np.trace(S1) + np.trace(S2))
    truth = exact_bures(S1, S2)
    assert of.transport.bures(S1, S2).item() == pytest.approx(truth, rel=1e-9, abs=2e-8 * size)
    mu, nu = (of.Gaussian(np.zeros(3), cov=S) for S in (S1, S2))
    assert of.bures_wasserstein(mu, nu).item() == pytest.approx(truth, rel=1e-9, abs=2e-8 * size)


@pytest.mark.parametrize("name", [name for name in SINGULAR if name != "zero"])
def test_14_a_map_from_a_singular_covariance_reaches_what_can_be_reached(name: str) -> None:
    values, vectors = np.linalg.eigh(SINGULAR[name])
    R = vectors * np.sqrt(np.where(values > 1e-12 * values.max(), values, 0.0))
    A = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]])
    mu, nu = of.Gaussian(np.zeros(3), root=R), of.Gaussian(np.ones(3), root=A @ R)  # A > 0 is the optimal map
    f = of.transport.bures_map(mu, nu)
    assert f.status == "ok"
    moved = f(mu)
    assert float((moved.cov - nu.cov).abs().max()) < 1e-7 * float(nu.cov.abs().max())
    assert moved.mean.tolist() == [1.0] * 3
    way = torch.cat([moved.root - mu.root, moved.mean[:, None]], -1).norm().item()
    assert way == pytest.approx(of.bures_wasserstein(mu, nu).item(), rel=1e-7)


def test_14_a_map_between_covariances_of_rank_one_is_not_refused_because_of_rounding() -> None:
    for seed in range(200):
        v, A = normal(3, 1, seed=seed), normal(3, 3, seed=1000 + seed)
        T, S = A @ A.T + 0.1 * np.eye(3), v @ v.T
        mu, nu = (of.Gaussian(np.zeros(3), cov=cov) for cov in (S, T @ S @ T))
        assert of.transport.bures_map(mu, nu, on_failure="return").status == "ok", f"seed {seed}"


def test_14_a_map_that_does_not_exist_is_an_error_that_carries_the_best_one() -> None:
    mu, nu = (
        of.Gaussian(np.zeros(2), cov=np.diag([1.0, 0.0])),
        of.Gaussian(np.zeros(2), root=np.diag([3.0, 1.0])),
    )
    with pytest.raises(of.errors.ConvergenceError, match="no map leads from mu to nu") as caught:
        of.transport.bures_map(mu, nu)  # POT: LinAlgError
    assert caught.value.result.status == "degenerate"
    assert caught.value.result.matrix.tolist() == [[3.0, 0.0], [0.0, 0.0]]
    batch = of.Gaussian(np.zeros((2, 2)), root=np.stack([np.diag([1.0, 0.0]), np.eye(2)]))
    assert of.transport.bures_map(batch, nu, on_failure="return").status.tolist() == ["degenerate", "ok"]


@pytest.mark.parametrize("d", [1, 2, 3, 8])
@pytest.mark.parametrize("h", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-13])
def test_15_small_displacements_of_covariances_keep_all_digits(h: float, d: int) -> None:
    A, H = normal(2, d, d, seed=d)
    S = A @ A.T + 0.1 * np.eye(d)
    for dtype in (np.float64, np.float32):  # "trace minus twice root" returns 0 from 1e-8 (1e-6) on
        S1, S2 = (s.astype(dtype) for s in (S, S + h * (H + H.T)))
        w, truth = of.transport.bures(S1, S2).item(), exact_bures(S1, S2)
        assert w == pytest.approx(truth, rel=1e-12 if dtype == np.float64 else 1e-6)
        assert of.transport.bures(S1, S1).item() == 0.0


@pytest.mark.parametrize("h", [1e-3, 1e-6, 1e-9, 1e-12])
def test_15_the_speed_of_a_gaussian_is_right_however_often_it_is_saved(h: float) -> None:
    mu = of.Gaussian(normal(3), root=normal(3, 3))
    speed = of.flow(mu, Shrink(), of.RK4(), t1=2 * h, dt=h).speed()
    size = math.sqrt(float(mu.mean.square().sum() + mu.root.square().sum()))
    assert speed.tolist() == pytest.approx([size] * 2, rel=2 * h + 1e-15 / h)


def slope(S1: Any, S2: Any) -> Tensor:
    """The gradient of the Bures distance in S1."""
    s = torch.tensor(S1, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(of.transport.bures(s, torch.tensor(S2, dtype=torch.float64)), s)
    return grad


@pytest.mark.parametrize("d", [1, 2, 3])
def test_16_the_gradient_at_a_singular_covariance_is_refused_where_it_is_infinite(d: int) -> None:
    S = np.diag(np.append(np.ones(d - 1), 0.0))
    with pytest.raises(of.errors.DerivativeError, match="infinite"):
        slope(S, 2 * np.eye(d))  # POT: +0.33, and the truth is -infinity


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("small", [1e-8, 1e-12, 1e-16, 1e-24])
def test_16_the_gradient_close_to_a_singular_covariance_is_right(small: float, d: int) -> None:
    S = np.append(np.ones(d - 1), small)
    distance = math.sqrt(((math.sqrt(2) - np.sqrt(S)) ** 2).sum())
    expected = (1 - np.sqrt(2 / S)) / (2 * distance)
    assert slope(np.diag(S), 2 * np.eye(d)).diagonal().tolist() == pytest.approx(expected, rel=1e-7)


def test_16_a_finite_gradient_at_a_singular_covariance_is_given() -> None:
    S1, S2 = np.diag([1.0, 4.0, 0.0]), np.diag([4.0, 1.0, 0.0])
    grad = slope(S1, S2)  # of ((s1 - 2)^2 + (s2 - 1)^2 + lambda3)^(1/2)
    assert grad.diagonal().tolist() == pytest.approx(np.array([-1.0, 0.5, 1.0]) / math.sqrt(8))


def test_16_the_root_of_a_singular_covariance_has_a_finite_gradient() -> None:
    root = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)).requires_grad_()
    nu = of.Gaussian(np.zeros(3), root=math.sqrt(2) * np.eye(3))
    distance = of.bures_wasserstein(of.Gaussian(torch.zeros(3, dtype=torch.float64), root=root), nu)
    (grad,) = torch.autograd.grad(distance, root)
    expected = (np.array([1.0, 1.0, 0.0]) - math.sqrt(2)) / distance.item()
    assert grad.diagonal().tolist() == pytest.approx(expected)
