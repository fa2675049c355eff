"""Bad input and hard input that broke other libraries, by number: 10-13, 17, 21-24, 32, entropic transport.

Small eps, massless atoms, conventions, flags, signs, a flow. What the others did is said where it explains a
test; none depends on their staying wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import ot
import pytest
import torch
from geomloss import SamplesLoss
from torch import Tensor

import otflow as of
from otflow.transport.entropic.engines import ColumnPotential
from tests.corpus.transports import (
    CLOUDS,
    ENGINES,
    Watch,
    labelled,
    normal,
)
from tests.samples import with_options

# --- 10-13: small eps, massless atoms, stalls ----------------------------------------------------------


def attempt(
    mu: of.Measure, nu: of.Measure, eps: float, **options: Any
) -> of.transport.EntropicTransport | None:
    """The plan as it is, good or bad; None if it was refused, since numbers leave floating point."""
    try:
        return of.sinkhorn(mu, nu, on_failure="return", **with_options(eps, **options))
    except (of.InputError, of.errors.NotFiniteError):
        return None


def entropic_bounds(plan: of.transport.EntropicTransport, best: float) -> None:
    """A converged plan has its marginals, and its costs are where theory puts them; from the plan alone."""
    P, (a, b) = plan.plan, (plan.problem.pair.w[0], plan.problem.pair.v[0])
    off = max((P.sum(-1) - a).abs().sum().item(), (P.sum(-2) - b).abs().sum().item())
    assert off < 2e-9
    slack = 1e-7 * best
    assert best - slack <= plan.cost.item() <= plan.regularised_cost.item() + slack
    assert plan.regularised_cost.item() <= best + plan.eps * math.log(min(P.shape)) + slack


@pytest.mark.parametrize("eps", [1.0, 1e-1, 1e-2, 1e-3, 1e-4])
def test_10_a_small_eps_converges_to_the_exact_cost(eps: float) -> None:
    # POT at 1e-2 and a cost of 16: 4e-6 by `sinkhorn`, NaN by `sinkhorn_stabilized`, 9.2 by `sinkhorn_log`.
    x, y = 2 * normal(50, 2), 2 * normal(40, 2, seed=1) + 3
    mu, nu = of.Particles(x), of.Particles(y)
    entropic_bounds(of.sinkhorn(mu, nu, eps), float(of.solve(mu, nu).cost))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("eps", [1e-2, 1e-6, 1e-12])
def test_10_an_eps_beyond_reach_is_right_or_refused(eps: float, engine: str) -> None:
    mu, nu = of.Particles(normal(15, 2)), of.Particles(normal(12, 2, seed=1))
    best = float(of.solve(mu, nu).cost)
    plan = of.sinkhorn(mu, nu, of.Sinkhorn(eps, engine=ENGINES[engine], max_iter=300), on_failure="return")
    if plan.status == "ok":
        entropic_bounds(plan, best)
    else:
        assert not plan.error.item() <= 1e-9
        with pytest.raises(of.errors.ConvergenceError, match="marginal error"):
            of.sinkhorn_divergence(mu, nu, of.Sinkhorn(eps, engine=ENGINES[engine], max_iter=300))


def test_10_an_eps_far_beyond_reach_is_not_called_converged() -> None:
    x, y = normal(2, 20, 2)
    mu, nu = of.Particles(x[:15]), of.Particles(y[:12])
    for eps in (1e-30, 1e-100, 1e-300):
        for engine in ENGINES.values():
            plan = attempt(mu, nu, eps, engine=engine, max_iter=300)
            if plan is not None and plan.status == "ok":
                entropic_bounds(plan, float(of.solve(mu, nu).cost))


@pytest.mark.parametrize("name", CLOUDS)
def test_11_atoms_without_mass_change_nothing(name: str) -> None:
    x, y = normal(2, 9, 2)
    more = [np.vstack([z, normal(3, 2, seed=7)]) for z in (x, y)]
    w = np.append(np.full(9, 1 / 9), np.zeros(3))
    got = CLOUDS[name].of(labelled(more[0], w), labelled(more[1], w), 1.0)
    assert got.item() == pytest.approx(CLOUDS[name].of(labelled(x), labelled(y), 1.0).item(), rel=1e-8)


@pytest.mark.parametrize("far", [1e4, 1e8, 1e100])
@pytest.mark.parametrize("name", CLOUDS)
def test_11_atoms_without_mass_change_nothing_however_far_they_are(name: str, far: float) -> None:
    x, y = normal(2, 9, 2)
    w = np.append(np.full(9, 1 / 9), 0.0)
    mu, nu = (labelled(np.vstack([z, [[far, far]]]), w) for z in (x, y))
    got = CLOUDS[name].of(mu, nu, 1.0)
    assert got.item() == pytest.approx(CLOUDS[name].of(labelled(x), labelled(y), 1.0).item(), rel=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_11_a_plan_with_empty_atoms_has_mass_one(engine: str) -> None:
    w, v = np.array([0.5, 0.0, 0.5, 0.0]), np.array([0.0, 0.25, 0.75])
    plan = of.sinkhorn(
        of.Particles(normal(4, 2), w),
        of.Particles(normal(3, 2, seed=1), v),
        of.Sinkhorn(0.1, engine=ENGINES[engine]),
    )
    P = plan.plan  # POT, stabilised: mass 0.11
    assert P.sum().item() == pytest.approx(1.0, abs=1e-9)
    assert P.sum(-1).tolist() == pytest.approx(w, abs=1e-9)
    assert P.sum(-2).tolist() == pytest.approx(v, abs=1e-9)
    assert bool(torch.cat([plan.f, plan.g]).isfinite().all())


def test_11_an_atom_without_mass_does_not_make_the_line_quadratic() -> None:
    x, y = normal(2, 3000, 1)
    w = np.append(0.0, np.full(2999, 1 / 2999))
    work = []
    for weights in (None, w):
        with Watch() as watch:
            of.wasserstein(of.Particles(x, weights), of.Particles(y))
        work.append(watch.total)
    assert work[1] < 10 * work[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tol", [1e-17, 1e-30])
def test_12_a_tolerance_that_rounding_forbids_is_reported_and_not_chased_for_ever(
    tol: float, engine: str
) -> None:
    mu, nu = of.Particles(normal(15, 2)), of.Particles(normal(12, 2, seed=1))
    with pytest.raises(of.errors.ConvergenceError) as caught:
        of.sinkhorn(mu, nu, of.Sinkhorn(1.0, tol=tol, max_iter=3000, engine=ENGINES[engine]))
    plan = caught.value.result
    assert plan.sweeps <= 3010
    assert 0 < plan.error.item() < 1e-13  # as good as it gets, and kept
    truth = of.sinkhorn(mu, nu, of.Sinkhorn(1.0, tol=1e-12)).regularised_cost.item()
    assert plan.regularised_cost.item() == pytest.approx(truth, rel=1e-11)


@pytest.mark.parametrize("eps", [1.0, 0.1])
def test_12_newton_stops_when_it_stalls(eps: float) -> None:
    mu, nu = of.Particles(normal(15, 2)), of.Particles(normal(12, 2, seed=1))
    plan = of.sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-30, max_iter=100_000), on_failure="return")
    assert plan.status == "stalled"
    assert plan.sweeps < 3000


@pytest.mark.parametrize("tol", [1e-15, 1e-17])
@pytest.mark.parametrize("eps", [0.1, 0.01])
def test_12_a_limit_is_blamed_only_if_it_was_reached(eps: float, tol: float) -> None:
    mu, nu = of.Particles(normal(20, 2)), of.Particles(normal(20, 2, seed=1))
    plan = of.sinkhorn(mu, nu, of.Sinkhorn(eps, tol=tol), on_failure="return")
    assert plan.status == ("ok" if plan.error.item() <= tol else "stalled")
    assert plan.sweeps < 10_000


@pytest.mark.parametrize("eps", [1.0, 0.1, 0.01])
def test_12_grids_with_ties_everywhere_do_not_get_stuck(eps: float) -> None:
    g = np.stack(np.meshgrid(*2 * [np.arange(5.0)], indexing="ij"), -1).reshape(-1, 2)
    plan = of.sinkhorn(of.Particles(g), of.Particles(g + np.array([0.5, 0.0])), eps)
    entropic_bounds(plan, 0.25)


def kl(P: Tensor, a: Tensor, b: Tensor) -> float:
    """sum P log(P / a b), 0 log 0 = 0, for measures of equal mass."""
    return torch.xlogy(P, P / (a[:, None] * b)).nan_to_num().sum().item()


@pytest.mark.parametrize("eps", [2.0, 1.0, 0.05, 0.005])
def test_13_the_regularised_cost_is_the_cost_plus_eps_kl_also_where_the_plan_underflows(eps: float) -> None:
    # POT: logarithms of zeros in the plan, and a regularisation that entered the objective wrongly.
    mu = of.Particles(normal(20, 2), np.append(0.0, np.full(19, 1 / 19)))
    nu = of.Particles(normal(15, 2, seed=1))
    plan = of.sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-12))
    P, c = plan.plan, torch.cdist(mu.x, nu.x).square()
    assert (P == 0).any() or eps > 0.01
    assert plan.cost.item() == pytest.approx((P * c).sum().item(), rel=1e-9)
    assert plan.regularised_cost.item() == pytest.approx(
        (P * c).sum().item() + eps * kl(P, mu.w, nu.w), rel=1e-9
    )


def test_13_nothing_is_nan_in_a_plan_that_converged_at_a_small_eps() -> None:
    g = np.arange(30.0)[:, None]  # plans of 0 and 1 up to exp(-1e6)
    plan = of.sinkhorn(of.Particles(g), of.Particles(g + 0.25), 1e-6)
    assert plan.status == "ok"
    for z in (plan.f, plan.g, plan.plan, plan.barycentric(), plan.cost, plan.regularised_cost):
        assert bool(z.isfinite().all())
    assert plan.barycentric().tolist() == pytest.approx(g + 0.25)


# --- 17: conventions -----------------------------------------------------------------------------------

EPS = 0.7
FAR = math.exp(-1 / EPS)  # the kernel between 0 and 1
PAIR = np.array([[0.0], [1.0]])


def dirac(*x: float) -> of.Particles:
    return of.Particles([x])


def janati(a: float, b: float, eps: float) -> float:
    """OT_eps between N(0, a) and N(0, b) on the line, as in Janati et al. 2020 with 2 sigma^2 = eps."""
    s = eps / 2
    D = math.sqrt(4 * a * b + s * s)
    return a + b - D + s * (1 - math.log(2 * s)) + s * math.log(D + s)


def two_points(**options: Any) -> of.transport.EntropicTransport:
    """Between the uniform measure on {0, 1} and itself, known by hand."""
    return of.sinkhorn(of.Particles(PAIR), of.Particles(PAIR), **with_options(EPS, tol=1e-13, **options))


def line(*roots: float) -> list[of.Gaussian]:
    return [of.Gaussian([0.0], root=[[r]]) for r in roots]


CONVENTIONS: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "W_p is a length": (lambda: of.wasserstein(dirac(0.0), dirac(3.0), 3), 3.0),
    "a plan has the value W_p^p": (lambda: of.solve(dirac(0.0), dirac(3.0), 3).cost, 27.0),
    "the squared distance has no factor": (
        lambda: of.sinkhorn(dirac(0.0), dirac(3.0), 1.0).cost,
        9.0,
    ),
    "a product plan pays no entropy": (
        lambda: of.sinkhorn(dirac(0.0), of.Particles(1 + PAIR), 1.0).regularised_cost,
        2.5,
    ),
    "entropy is relative to the product": (
        lambda: two_points().regularised_cost,
        -EPS * math.log((1 + FAR) / 2),
    ),
    "the transport cost is without entropy": (lambda: two_points().cost, FAR / (1 + FAR)),
    "the entropic distance is the root of the transport cost": (
        lambda: two_points().distance,
        math.sqrt(FAR / (1 + FAR)),
    ),
    "potentials add up to c + eps log(P / ab)": (
        lambda: two_points().f[:, None] + two_points().g,
        np.full((2, 2), EPS * math.log(2 / (1 + FAR))),
    ),
    "f belongs to mu": (
        lambda: of.sinkhorn(of.Particles([[0.0], [9.0]]), dirac(0.0), 1.0).f.diff(),
        [81.0],
    ),
    "exact potentials add up to the value": (
        lambda: (lambda plan: plan.f.mean() + plan.g.mean())(
            of.solve(of.Particles(PAIR), of.Particles(2 - PAIR))
        ),
        1.0,
    ),
    "divergences of points are costs": (lambda: of.sinkhorn_divergence(dirac(0.0), dirac(3.0), 1.0), 9.0),
    "divergences of order one are lengths": (
        lambda: of.sinkhorn_divergence(dirac(0.0), dirac(3.0), 1.0, cost=of.transport.PowerCost(1)),
        3.0,
    ),
    "divergences of translates are squared lengths": (
        lambda: of.sinkhorn_divergence(of.Particles(PAIR), of.Particles(PAIR + 5), EPS),
        25.0,
    ),
    "a blurred divergence is half the squared energy distance": (
        lambda: of.sinkhorn_divergence(of.Particles(PAIR), dirac(3.0), 1e8, cost=of.transport.PowerCost(1)),
        4.5 / 2,
    ),
    "a bilinear cost is -<Ax, y>": (
        lambda: (
            of.sinkhorn(
                dirac(1.0, 0.0),
                dirac(0.0, 1.0),
                1.0,
                cost=of.transport.BilinearCost([[0.0, 0.0], [5.0, 0.0]]),
            ).cost
        ),
        -5.0,
    ),
    "the energy distance is a root": (
        lambda: of.mmd(dirac(0.0), dirac(3.0), of.transport.EnergyKernel()),
        math.sqrt(6),
    ),
    "a Gaussian kernel has twice its variance": (
        lambda: of.mmd(dirac(0.0), dirac(2.0), of.transport.GaussianKernel(2.0)),
        math.sqrt(2 - 2 * math.exp(-0.5)),
    ),
    "slices are averaged": (
        lambda: of.sliced_wasserstein(dirac(0.0, 0.0), dirac(3.0, 4.0), directions=np.eye(2)),
        math.sqrt(12.5),
    ),
    "Bures is a length": (lambda: of.transport.bures([[4.0]], [[25.0]]), 3.0),
    "W2 of Gaussians is a length": (
        lambda: of.bures_wasserstein(of.Gaussian([0.0], root=[[2.0]]), of.Gaussian([4.0], root=[[5.0]])),
        5.0,
    ),
    "entropic transport of Gaussians has the same cost": (
        lambda: of.sinkhorn(*line(1.0, 2.0), 6.0).cost,
        5 - 2 * (math.sqrt(16 + 9) - 3) / 2,
    ),
    "entropic transport of Gaussians has the same entropy": (
        lambda: of.sinkhorn(*line(1.0, 2.0), EPS).regularised_cost,
        janati(1, 4, EPS),
    ),
    "Gaussian divergences subtract half of each": (
        lambda: of.sinkhorn_divergence(*line(1.0, 2.0), EPS),
        janati(1, 4, EPS) - (janati(1, 1, EPS) + janati(4, 4, EPS)) / 2,
    ),
    "a relaxed label pays beta times its square": (
        lambda: (
            of.transport.relaxed_conditional(
                of.Particles([[0.0]], label=[0]), of.Particles([[3.0]], label=[2]), 4.0
            ).distance
        ),
        5.0,
    ),
    "a conditional distance is an average over labels": (
        lambda: of.conditional_wasserstein(
            of.Particles(PAIR, label=[0, 1]), of.Particles(PAIR[::-1], label=[0, 1])
        ),
        1.0,
    ),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_17_conventions_are_pinned(name: str) -> None:
    call, expected = CONVENTIONS[name]
    assert call().tolist() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_17_all_engines_mean_the_same_problem(engine: str) -> None:
    plan = two_points(engine=ENGINES[engine])
    expected = np.array([[1, FAR], [FAR, 1]]) / (2 * (1 + FAR))
    assert plan.plan.tolist() == pytest.approx(expected, rel=1e-11)
    assert plan.regularised_cost.item() == pytest.approx(-EPS * math.log((1 + FAR) / 2), rel=1e-11)


def test_17_plans_are_those_of_pot_for_the_same_eps() -> None:
    (x, y), a, b = normal(2, 12, 2), np.full(12, 1 / 12), np.full(12, 1 / 12)
    M = ot.dist(x, y)
    P = ot.sinkhorn(a, b, M, 0.5, method="sinkhorn_log", numItermax=10_000, stopThr=1e-13)
    plan = of.sinkhorn(of.Particles(x), of.Particles(y), of.Sinkhorn(0.5, tol=1e-12))
    assert float((plan.plan - torch.from_numpy(P)).abs().max()) < 1e-11
    assert plan.cost.item() == pytest.approx(float((P * M).sum()), rel=1e-10)


def test_17_divergences_are_twice_those_of_geomloss_for_eps_twice_the_squared_blur() -> None:
    x, y = (torch.from_numpy(z) for z in normal(2, 30, 2))
    theirs = SamplesLoss("sinkhorn", p=2, blur=0.5, scaling=0.99, backend="tensorized")(
        x, y
    )  # cost |x - y|^2 / 2
    assert of.sinkhorn_divergence(of.Particles(x), of.Particles(y), 0.5).item() == pytest.approx(
        2 * theirs.item(), rel=1e-3
    )


# --- 21-24: flags and signs ----------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-1, 1e-3, 1e-5])
def test_21_a_converged_plan_has_finite_costs_at_every_eps(eps: float) -> None:
    # Elsewhere: a cost of NaN next to a flag that said converged, and nothing below eps = 1e-4.
    x, y = normal(2, 40, 2)
    w = np.append(np.full(20, 1e-300), np.full(20, 1 / 20))  # logarithms of weights far from each other
    mu, nu = of.Particles(x, w), of.Particles(y)
    plan = of.sinkhorn(mu, nu, eps)
    best = of.solve(mu, nu).cost.item()
    assert plan.status == "ok"
    assert best * (1 - 1e-6) <= plan.cost.item() <= plan.regularised_cost.item() * (1 + 1e-6)
    assert plan.regularised_cost.item() <= best + eps * math.log(40) + 1e-6


class Wrong(of.transport.Engine):
    """An engine that is sure of itself."""

    def __init__(self, value: float) -> None:
        self.value = value

    def potential(self, kernel: Any, *, tol: float, max_iter: int, start: Tensor | None) -> ColumnPotential:
        G = torch.full_like(kernel.logb, 0.0)
        G[..., 0] = self.value
        return ColumnPotential(G, 1, torch.zeros(len(G), dtype=torch.bool))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, 5.0])
def test_22_convergence_is_measured_and_not_believed(value: float) -> None:
    mu, nu = (of.Particles(x) for x in normal(2, 10, 2))
    plan = attempt(mu, nu, 1.0, engine=Wrong(value))
    assert plan is None or plan.status != "ok"
    for call in (of.sinkhorn, of.sinkhorn_divergence):
        with pytest.raises((of.errors.ConvergenceError, of.errors.NotFiniteError)):
            call(mu, nu, of.Sinkhorn(1.0, engine=Wrong(value)))


SIZES = [(size, engine) for engine in ENGINES for size in (1.0, 1e8, 1e100, 1e160)]


@pytest.mark.parametrize(
    ("size", "engine"),
    SIZES,
)
def test_22_a_plan_that_is_ok_has_no_nan_in_it(size: float, engine: str) -> None:
    x, y = normal(2, 8, 2)
    mu, nu = of.Particles(size * x), of.Particles(size * y)
    plan = attempt(mu, nu, 1.0, engine=ENGINES[engine], max_iter=100)
    if plan is None:
        assert size > 1e50
    elif plan.status == "ok":
        numbers = torch.cat([plan.f, plan.g, plan.plan.flatten(), plan.regularised_cost[None]])
        assert bool(numbers.isfinite().all())
        assert float((plan.plan.sum(-2) - nu.w).abs().sum()) < 1e-8
    else:
        assert not plan.error.item() <= 1e-9


@pytest.mark.parametrize("shift", [1e3, 1e5])
def test_22_the_marginal_error_is_that_of_the_plan_that_is_returned(shift: float) -> None:
    x, y = normal(2, 20, 2)
    mu, nu = of.Particles(x), of.Particles(y + shift)
    plan = of.sinkhorn(mu, nu, 0.01)
    P = plan.plan
    assert (P.sum(-2) - nu.w).abs().sum().item() < 2e-9
    assert (P.sum(-1) - mu.w).abs().sum().item() < 2e-9


def test_22_a_start_that_is_not_a_number_is_forgotten() -> None:
    mu, nu = (of.Particles(x) for x in normal(2, 10, 2))
    good = of.sinkhorn(mu, nu, 1.0)
    bad = replace(good, f=torch.full_like(good.f, torch.nan), g=torch.full_like(good.g, torch.nan))
    assert of.sinkhorn(mu, nu, 1.0, start=bad).regularised_cost.item() == pytest.approx(
        good.regularised_cost.item()
    )


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("h", [1e-6, 1e-4])
def test_23_divergences_of_nearby_clouds_are_not_negative_and_not_refused(h: float, dtype: Any) -> None:
    for seed in range(10):
        x = normal(20, 2, seed=seed)
        y = np.random.default_rng(seed).permutation(x) + h * normal(20, 2, seed=100 + seed)
        clouds = [z.astype(dtype) for z in (x, y)]
        got = of.sinkhorn_divergence(*(of.Particles(z) for z in clouds), 1.0).item()
        truth = of.sinkhorn_divergence(*(of.Particles(z.astype(float)) for z in clouds), 1.0).item()
        assert got >= 0
        assert got == pytest.approx(truth, rel=1e-5, abs=1e-14)
        assert truth > 0.01 * h**2


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_23_rounding_does_not_make_a_divergence_negative(engine: str) -> None:
    for seed in range(20):  # about half of them would be
        x = normal(8, 2, seed=seed)
        y = np.random.default_rng(seed).permutation(x) + 1e-9 * normal(8, 2, seed=100 + seed)
        got = of.sinkhorn_divergence(
            of.Particles(x), of.Particles(y), of.Sinkhorn(4.0, engine=ENGINES[engine])
        ).item()
        assert 0 <= got < 1e-8


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_23_a_coarse_tolerance_gives_a_coarse_divergence_and_not_a_negative_one(engine: str) -> None:
    for seed in range(5):
        mu, nu = (of.Particles(x) for x in normal(2, 15, 2, seed=seed))
        truth = of.sinkhorn_divergence(mu, nu, 0.5).item()
        got = of.sinkhorn_divergence(mu, nu, of.Sinkhorn(0.5, tol=1e-2, engine=ENGINES[engine])).item()
        assert got >= 0
        assert got == pytest.approx(truth, abs=1e-2 * 20)  # the error of the marginals times the largest cost


def test_23_a_divergence_that_is_negative_in_earnest_is_an_error() -> None:
    class Upside(of.transport.PowerCost):  # -|x - y|
        def scores(self, x: Tensor, y: Tensor, space: of.measures.Space, eps: float) -> Tensor:
            return -super().scores(x, y, space, eps)

    mu, nu = (of.Particles(x) for x in normal(2, 6, 2))
    with pytest.raises(of.errors.ConvergenceError, match="below zero") as caught:
        of.sinkhorn_divergence(mu, nu, 5.0, cost=Upside(1))
    assert caught.value.result.item() < 0


NODES = np.linspace(-7, 7, 151)  # sums over which are integrals against a Gaussian to all digits
BELL = np.exp(-(NODES**2) / 2) / np.exp(-(NODES**2) / 2).sum()


def scaled(s: Tensor | float) -> of.Particles:
    """N(0, s^2)."""
    return of.Particles(s * torch.from_numpy(NODES)[:, None], BELL)


@pytest.mark.parametrize("eps", [0.5, 1.0])
@pytest.mark.parametrize("s", [0.7, 1.0, 1.5])
def test_24_divergences_of_gaussians_agree_with_their_closed_form(s: float, eps: float) -> None:
    truth = janati(1, s * s, eps) - (janati(1, 1, eps) + janati(s * s, s * s, eps)) / 2
    assert of.sinkhorn_divergence(scaled(1.0), scaled(s), eps).item() == pytest.approx(truth, abs=1e-9)
    assert of.sinkhorn_divergence(*line(1.0, s), eps).item() == pytest.approx(truth, abs=1e-13)
    plan = of.sinkhorn(scaled(1.0), scaled(s), eps)
    assert plan.regularised_cost.item() == pytest.approx(janati(1, s * s, eps), abs=1e-9)


@pytest.mark.parametrize("eps", [0.5, 1.0])
def test_24_the_divergence_has_its_minimum_at_the_target_and_the_cost_where_theory_puts_it(
    eps: float,
) -> None:
    for s, f in (
        (1.0, lambda nu: of.sinkhorn_divergence(scaled(1.0), nu, eps)),
        (math.sqrt(1 - eps / 2), lambda nu: of.sinkhorn(scaled(1.0), nu, eps).regularised_cost),
    ):
        at, away = (torch.tensor(z, dtype=torch.float64, requires_grad=True) for z in (s, 1.1 * s))
        slopes = [torch.autograd.grad(f(scaled(z)), z)[0].item() for z in (at, away)]
        assert abs(slopes[0]) < 1e-7
        assert slopes[1] > 0.05


# --- 32: a flow -----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("eps", [0.1, 0.01, 0.0025])
def test_32_the_gradient_flow_of_a_divergence_on_the_line_decreases_and_arrives(eps: float) -> None:
    # GeomLoss 0.2.6: NaN from the first step on.
    rng, n, step = np.random.default_rng(0), 20, 0.25
    x, nu = torch.from_numpy(rng.uniform(0.0, 0.2, (n, 1))), of.Particles(rng.uniform(0.6, 1.0, (n, 1)))
    values, ways = [], [of.wasserstein(of.Particles(x), nu).item()]
    for _ in range(25):
        x = x.requires_grad_()
        value = of.sinkhorn_divergence(of.Particles(x), nu, eps)
        (grad,) = torch.autograd.grad(value, x)
        assert bool(grad.isfinite().all())
        x = (x - step * n * grad).detach()  # explicit Euler for the Wasserstein gradient
        values.append(value.item())
        ways.append(of.wasserstein(of.Particles(x), nu).item())
    assert all(b <= a for a, b in pairwise(values))
    assert values[-1] < 1e-4 * values[0]
    assert ways[-1] < 0.05 * ways[0]


def test_32_a_flow_that_starts_in_one_point_moves_to_the_mean_of_its_target() -> None:
    x, nu = torch.full((10, 1), 0.1, dtype=torch.float64), of.Particles(0.6 + 0.4 * normal(10, 1))
    for _ in range(12):
        x = x.requires_grad_()
        (grad,) = torch.autograd.grad(of.sinkhorn_divergence(of.Particles(x), nu, 0.1), x)
        x = (x - 0.25 * 10 * grad).detach()
    assert x.flatten().tolist() == pytest.approx([nu.x.mean().item()] * 10, abs=1e-3)
