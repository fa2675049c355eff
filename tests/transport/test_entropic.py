"""Entropic transport: against POT, closed forms and numpy, in every way in which it can be summed."""

from __future__ import annotations

import itertools
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.stats import ortho_group
from torch import Tensor

import otflow as of
from otflow.transport.entropic import laplacian
from otflow.transport.entropic import sinkhorn as entropic
from otflow.transport.entropic.costs import BilinearCost, PowerCost
from otflow.transport.entropic.sinkhorn import EntropicTransport, sinkhorn, sinkhorn_divergence
from tests.regimes import regime
from tests.samples import Array, centres, unit, with_options

# Kernels held in memory or streamed in tiles, scores from differences of points or from scalar products.
PATHS = {
    "dense": ("dense", 2**22),
    "streaming": ("streaming", 2**22),
    "products": ("dense", 0),
    "streamed products": ("streaming", 0),
}
ULP = 2.0**-53
A = np.array([[0.5, 1.0], [-0.3, 0.2]])


@contextmanager
def path(name: str) -> Iterator[None]:
    how, differences = PATHS[name]
    with regime(how), pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropic, "DIFFERENCES", differences)
        yield


def cloud(
    seed: int, n: int, d: int = 2, *, uniform: bool = False, batch: tuple[int, ...] = ()
) -> of.Particles:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((*batch, n, d)), rng.uniform(0.2, 1.0, (*batch, n))
    return of.Particles(x) if uniform else of.Particles(x, w / w.sum(-1, keepdims=True))


def heavy(mu: of.Particles) -> of.Particles:
    """The atoms that have mass."""
    keep = mu.w > 0
    return of.Particles(mu.x[keep], mu.w[keep], space=mu.space)


def uneven(x: Tensor, y: Tensor) -> Tensor:
    """A cost that tells x from y."""
    return (x - 2 * y).square().sum(-1) + x[..., 0] * y[..., 1]


def wrapped(x: Array, y: Array, period: float) -> Array:
    shifts = np.array(list(itertools.product([-period, 0.0, period], repeat=x.shape[1])))
    return np.min([cdist(x + s, y) for s in shifts], 0)


@dataclass(frozen=True)
class Case:
    """A problem with its cost matrix written down once more, in numpy."""

    mu: of.Measure
    nu: of.Measure
    matrix: Callable[[Array, Array], Array]
    cost: Any = None
    eps: float = 0.5

    @property
    def a(self) -> Array:
        return self.mu.nodes()[1].numpy()

    @property
    def b(self) -> Array:
        return self.nu.nodes()[1].numpy()

    @property
    def C(self) -> Array:
        return self.matrix(self.mu.nodes()[0].numpy(), self.nu.nodes()[0].numpy())

    def solve(self, **options: Any) -> EntropicTransport:
        return sinkhorn(self.mu, self.nu, cost=self.cost, **with_options(self.eps, **options))

    def by_pot(self) -> Array:
        return ot.bregman.sinkhorn_log(
            self.a, self.b, self.C, self.eps, numItermax=100_000, stopThr=1e-13, warn=False
        )


def squares(x: Array, y: Array) -> Array:
    return cdist(x, y, "sqeuclidean")


def ball(seed: int, n: int) -> of.Particles:
    return of.Particles(unit(n, 3, seed=seed), cloud(seed, n).w, space=of.Sphere())


def loop(seed: int, n: int) -> of.Particles:
    x = np.random.default_rng(seed).uniform(0, 2, (n, 2))
    return of.Particles(x, cloud(seed, n).w, space=of.Torus(2.0))


def density(seed: int, *cells: int) -> of.Grid:
    rho = np.random.default_rng(seed).uniform(0.5, 1.5, cells)
    return of.Grid(rho / rho.sum() * math.prod(cells) / 2 ** len(cells), [centres(k) for k in cells])


REPEATED = of.Particles([[0.0, 1.0], [0.0, 1.0], [2.0, 0.0], [0.0, 1.0]], [0.1, 0.2, 0.4, 0.3])
CASES = {
    "squared": Case(cloud(1, 9), cloud(2, 14), squares),
    "uniform": Case(cloud(3, 12, uniform=True), cloud(4, 12, uniform=True), squares),
    "on the line": Case(cloud(5, 9, 1), cloud(6, 7, 1), squares),
    "many dimensions": Case(cloud(7, 6, 20), cloud(8, 9, 20), squares, eps=8.0),
    "root": Case(cloud(1, 9), cloud(2, 14), lambda x, y: cdist(x, y) ** 0.5, PowerCost(0.5)),
    "distance": Case(cloud(1, 9), cloud(2, 14), cdist, PowerCost(1)),
    "cubed": Case(cloud(1, 9), cloud(2, 14), lambda x, y: cdist(x, y) ** 3, PowerCost(3)),
    "bilinear": Case(cloud(1, 9), cloud(2, 14), lambda x, y: -(x @ A.T) @ y.T, BilinearCost(A)),
    "function": Case(
        cloud(1, 9),
        cloud(2, 14),
        lambda x, y: cdist(x, 2 * y, "sqeuclidean") + np.outer(x[:, 0], y[:, 1]),
        uneven,
        eps=1.0,
    ),
    "sphere": Case(ball(1, 9), ball(2, 14), lambda x, y: np.arccos(x @ y.T) ** 2),
    "arc": Case(ball(1, 9), ball(2, 14), lambda x, y: np.arccos(x @ y.T), PowerCost(1)),
    "torus": Case(loop(1, 9), loop(2, 14), lambda x, y: wrapped(x, y, 2.0) ** 2, eps=0.1),
    "grids": Case(density(1, 6, 5), density(2, 4, 7), squares),
    "grid and cloud": Case(density(1, 3, 4), cloud(2, 9), squares),
    "repeated atoms": Case(REPEATED, cloud(2, 5), squares),
    "one to many": Case(cloud(1, 1), cloud(2, 14), squares),
    "many to one": Case(cloud(1, 9), cloud(2, 1), squares),
    "one to one": Case(cloud(1, 1), cloud(2, 1), squares),
}
PATHS_OF = [
    (name, how)
    for name in CASES
    for how in PATHS
    if how in ("dense", "streaming") or CASES[name].cost is None
]


def kl(P: Array, a: Array, b: Array) -> float:
    """sum P log(P / (a b)) over what has mass."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(P > 0, P * np.log(P / np.outer(a, b)), 0.0).sum())


def marginal_errors(P: Array, a: Array, b: Array) -> tuple[float, float]:
    """L1 errors of the rows and of the columns."""
    return float(np.abs(P.sum(1) - a).sum()), float(np.abs(P.sum(0) - b).sum())


def rounding(plan: EntropicTransport) -> float:
    """What the rounding of potentials alone does to marginals."""
    return 1e-14 + 16 * ULP * float(max(plan.f.abs().max(), plan.g.abs().max())) / plan.eps


# --- the plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "how"), PATHS_OF)
def test_plan_costs_and_potentials_are_those_of_pot(name: str, how: str) -> None:
    case = CASES[name]
    with path(how):
        plan = case.solve(tol=1e-12)
        P, cost = plan.plan.numpy(), plan.cost.item()
    exact = case.by_pot()
    np.testing.assert_allclose(P, exact, rtol=1e-8, atol=1e-13)
    assert cost == pytest.approx((exact * case.C).sum(), rel=1e-10, abs=1e-12)
    regularised = (exact * case.C).sum() + case.eps * kl(exact, case.a, case.b)
    assert plan.regularised_cost.item() == pytest.approx(regularised, rel=1e-10, abs=1e-12)
    both = plan.f.numpy()[:, None] + plan.g.numpy() - case.C
    np.testing.assert_allclose(
        both, case.eps * np.log(exact / np.outer(case.a, case.b)), rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize(("name", "how"), PATHS_OF)
def test_the_reported_error_is_that_of_the_matrix(name: str, how: str) -> None:
    case = CASES[name]
    for max_iter in (2, 1000):
        with path(how):
            plan = case.solve(max_iter=max_iter, on_failure="return")
            P = plan.plan.numpy()
        rows, columns = marginal_errors(P, case.a, case.b)
        assert rows < 1e-13
        assert plan.error.item() == pytest.approx(columns, rel=1e-8, abs=2e-14)
        assert plan.status == ("ok" if plan.error.item() <= 1e-9 else "max_iter")


@pytest.mark.parametrize(("name", "how"), PATHS_OF)
def test_averages_need_no_matrix(name: str, how: str) -> None:
    case = CASES[name]
    v = torch.from_numpy(np.random.default_rng(0).standard_normal((len(case.b), 3)))
    with path(how):
        plan = case.solve()
        P, average = plan.plan, plan.average(v)
        mean = None if name == "torus" else plan.barycentric()
    kernel = P / torch.from_numpy(case.a)[:, None]
    torch.testing.assert_close(average, kernel @ v, rtol=1e-10, atol=1e-12)
    if mean is not None:
        torch.testing.assert_close(mean, kernel @ case.nu.nodes()[0], rtol=1e-10, atol=1e-12)


def test_points_that_wrap_around_have_no_average() -> None:
    with pytest.raises(of.InputError, match="wrap"):
        CASES["torus"].solve().barycentric()


@pytest.mark.parametrize("p", [0.5, 1, 2, 3])
def test_the_distance_has_the_unit_of_length(p: float) -> None:
    plan = sinkhorn(cloud(1, 5), cloud(2, 6), 0.5, cost=PowerCost(p))
    assert plan.distance.item() == pytest.approx(plan.cost.item() ** (1 / p), rel=1e-12)
    with pytest.raises(of.InputError, match=r"take \.cost"):
        _ = CASES["bilinear"].solve().distance


@pytest.mark.parametrize("how", PATHS)
@pytest.mark.parametrize("eps", [0.02, 1.0, 50.0])
def test_two_by_two_is_a_logistic_function(eps: float, how: str) -> None:
    """P_11 / P_12 = exp(-(c_11 + c_22 - c_12 - c_21) / (2 eps)) for uniform weights."""
    mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[0.25], [1.1]])
    with path(how):
        P = sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-13)).plan
    c = squares(mu.x.numpy(), nu.x.numpy())
    ratio = math.exp(-(c[0, 0] + c[1, 1] - c[0, 1] - c[1, 0]) / (2 * eps))
    assert P[0, 0].item() == pytest.approx(ratio / (1 + ratio) / 2, rel=1e-11)
    assert P[0, 1].item() == pytest.approx(1 / (1 + ratio) / 2, rel=1e-11, abs=1e-14)


def test_one_atom_goes_everywhere() -> None:
    mu, nu = cloud(1, 1), cloud(2, 9)
    plan = sinkhorn(mu, nu, 0.1)
    mean = (nu.w * (mu.x - nu.x).square().sum(-1)).sum().item()
    torch.testing.assert_close(plan.plan[0], nu.w, rtol=1e-13, atol=0)
    assert plan.cost.item() == pytest.approx(mean, rel=1e-13)
    assert plan.regularised_cost.item() == pytest.approx(mean, rel=1e-13)  # the plan is the product


def bell(mean: float, deviation: float) -> of.Grid:
    """A Gaussian on so fine a grid that sums are integrals to all digits."""
    x = np.linspace(-9, 9, 181)
    rho = np.exp(-(((x - mean) / deviation) ** 2) / 2)
    return of.Grid(rho / rho.sum() / (x[1] - x[0]), [x])


def entropic_cost_of_gaussians(m: float, s: float, t: float, eps: float) -> tuple[float, float]:
    """Of all couplings with covariance k, min m^2 + s^2 + t^2 - 2 k - (eps / 2) log(1 - (k / (s t))^2):
    the transport cost and the regularised cost."""
    k = -eps / 4 + math.sqrt(eps**2 / 16 + (s * t) ** 2)
    cost = m**2 + s**2 + t**2 - 2 * k
    return cost, cost - eps / 2 * math.log1p(-((k / (s * t)) ** 2))


@pytest.mark.parametrize("how", ["dense", "products"])
@pytest.mark.parametrize("eps", [0.1, 0.5, 3.0, 100.0])
def test_gaussians_on_a_fine_grid_have_a_closed_form(eps: float, how: str) -> None:
    mu, nu = bell(0.3, 1.0), bell(-0.4, 0.7)
    with path(how):
        plan = sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-11))
        cost = plan.cost.item()
        divergence = sinkhorn_divergence(mu, nu, of.Sinkhorn(eps, tol=1e-11)).item()
    expected, regularised = entropic_cost_of_gaussians(0.7, 1.0, 0.7, eps)
    assert cost == pytest.approx(expected, rel=1e-8)
    assert plan.regularised_cost.item() == pytest.approx(regularised, rel=1e-8)
    own = [entropic_cost_of_gaussians(0.0, s, s, eps)[1] for s in (1.0, 0.7)]
    assert divergence == pytest.approx(regularised - sum(own) / 2, rel=1e-7)


@pytest.mark.thorough
def test_divergences_of_samples_are_those_of_gaussians_up_to_sampling() -> None:
    rng, eps = np.random.default_rng(0), 1.0
    exact = entropic_cost_of_gaussians(1.0, 1.0, 0.5, eps)[1] - sum(
        entropic_cost_of_gaussians(0.0, s, s, eps)[1] / 2 for s in (1.0, 0.5)
    )
    values = [
        sinkhorn_divergence(
            of.Particles(rng.standard_normal((300, 1))),
            of.Particles(1 + 0.5 * rng.standard_normal((300, 1))),
            of.Sinkhorn(eps, tol=1e-6),
        ).item()
        for _ in range(8)
    ]
    error = np.std(values, ddof=1) / len(values) ** 0.5
    assert error < 0.1 * exact
    assert abs(np.mean(values) - exact) < 4 * error + 2 / 300


@pytest.mark.parametrize("how", PATHS)
@pytest.mark.parametrize("eps", [0.05, 1.0])
def test_atoms_without_mass_change_nothing(eps: float, how: str) -> None:
    mu, nu = (of.Particles(z.x, w) for z, w in zip((cloud(1, 4), cloud(2, 5)), ZEROS, strict=True))
    with path(how):
        plan, rest = (
            sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-11)),
            sinkhorn(heavy(mu), heavy(nu), of.Sinkhorn(eps, tol=1e-11)),
        )
        P, average, cost = plan.plan, plan.barycentric(), plan.cost
        rest_average, rest_cost = rest.barycentric(), rest.cost
    i, j = mu.w > 0, nu.w > 0
    torch.testing.assert_close(P[i][:, j], rest.plan, rtol=1e-8, atol=1e-12)
    assert float(P[~i].abs().sum() + P[:, ~j].abs().sum()) == 0
    torch.testing.assert_close(plan.regularised_cost, rest.regularised_cost, rtol=1e-10, atol=0)
    torch.testing.assert_close(cost, rest_cost, rtol=1e-9, atol=0)
    torch.testing.assert_close(average[i], rest_average, rtol=1e-8, atol=1e-10)
    assert all(bool(torch.isfinite(z).all()) for z in (plan.f, plan.g, average))


ZEROS = [0.0, 0.3, 0.5, 0.2], [0.4, 0.0, 0.0, 0.5, 0.1]


@pytest.mark.parametrize("how", PATHS)
@pytest.mark.parametrize("far", [3.0, 40.0, 1e3])
def test_atoms_without_mass_may_be_anywhere(far: float, how: str) -> None:
    """Between two of them the scaled kernel leaves the range of floating point."""
    mu = of.Particles([[0.0], [1.0], [3.0], [far]], [0.2, 0.3, 0.5, 0.0])
    nu = of.Particles([[0.5], [1.5], [2.0], [far + 1]], [0.5, 0.1, 0.4, 0.0])
    with path(how):
        for one, other in ((mu, nu), (mu, mu), (nu, mu)):
            plan, rest = sinkhorn(one, other, 1.0), sinkhorn(heavy(one), heavy(other), 1.0)
            torch.testing.assert_close(plan.regularised_cost, rest.regularised_cost, rtol=1e-8, atol=0)
            assert bool((torch.isfinite(plan.f).all() & torch.isfinite(plan.g).all()).item())
        assert math.isfinite(sinkhorn_divergence(mu, nu, 1.0).item())


@pytest.mark.thorough
@pytest.mark.slow(but_for=["squared-*", "function-dense", "bilinear-products"])
@pytest.mark.parametrize("how", ["dense", "products"])
@pytest.mark.parametrize("name", ["squared", "cubed", "bilinear", "function"])
def test_atoms_without_mass_change_nothing_however_sharp_the_plan_is(name: str, how: str) -> None:
    """Their part of the scaled kernel may overflow, and infinity times no mass is not zero."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        clouds = []
        for n in (13, 9):
            w = rng.uniform(0.2, 1.0, n)
            w[rng.integers(0, n, 2)] = 0.0
            clouds.append(of.Particles(2 * rng.standard_normal((n, 2)), w / w.sum()))
        mu, nu = clouds
        with path(how):
            plan = sinkhorn(mu, nu, 0.01, cost=CASES[name].cost)
            rest = sinkhorn(heavy(mu), heavy(nu), 0.01, cost=CASES[name].cost)
        assert plan.regularised_cost.item() == pytest.approx(rest.regularised_cost.item(), rel=1e-8)
        assert bool(torch.isfinite(plan.f).all() & torch.isfinite(plan.g).all())


def test_potentials_extend_to_atoms_without_mass() -> None:
    """f_i = -eps log sum_j b_j exp((g_j - c_ij) / eps) also where a_i = 0, and the same for g."""
    mu, nu = (of.Particles(z.x, w) for z, w in zip((cloud(1, 4), cloud(2, 5)), ZEROS, strict=True))
    plan, C, eps = (
        sinkhorn(mu, nu, of.Sinkhorn(0.3, tol=1e-12)),
        squares(*(z.x.numpy() for z in (mu, nu))),
        0.3,
    )
    f, g = plan.f.numpy(), plan.g.numpy()
    np.testing.assert_allclose(f, -eps * np.log(np.exp((g - C) / eps) @ nu.w.numpy()), atol=1e-10)
    np.testing.assert_allclose(g, -eps * np.log(mu.w.numpy() @ np.exp((f[:, None] - C) / eps)), atol=1e-8)


@pytest.mark.parametrize("tiny", [1e-12, 1e-100, 1e-300])
def test_tiny_weights_are_weights(tiny: float) -> None:
    mu = of.Particles(cloud(1, 5).x, [0.2, 0.3, tiny, 0.1, 0.4])
    plan, nu = sinkhorn(mu, cloud(2, 6), 0.1), cloud(2, 6)
    rest = sinkhorn(heavy(of.Particles(mu.x, [0.2, 0.3, 0.0, 0.1, 0.4])), nu, 0.1)
    assert plan.regularised_cost.item() == pytest.approx(rest.regularised_cost.item(), rel=1e-8)
    assert marginal_errors(plan.plan.numpy(), mu.w.numpy(), nu.w.numpy())[1] <= 1.1e-9


@pytest.mark.parametrize("how", PATHS)
def test_a_cloud_to_itself_has_a_symmetric_plan(how: str) -> None:
    mu = cloud(1, 12)
    with path(how):
        plan, twin = (
            sinkhorn(mu, mu, of.Sinkhorn(0.1, tol=1e-12)),
            sinkhorn(mu, of.Particles(mu.x, mu.w), of.Sinkhorn(0.1, tol=1e-12)),
        )
        P, Q = plan.plan, twin.plan
    torch.testing.assert_close(P, P.mT, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(P, Q, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(plan.regularised_cost, twin.regularised_cost, rtol=1e-12, atol=0)


def test_the_first_argument_of_a_function_comes_from_mu() -> None:
    """c(x, y) = y - x x: with one atom on a side the cost is its mean."""
    mu, nu = of.Particles([[2.0]]), of.Particles([[5.0], [7.0]])

    def c(x: Tensor, y: Tensor) -> Tensor:
        return y[..., 0] - x[..., 0] ** 2

    assert sinkhorn(mu, nu, 1.0, cost=c).cost.item() == pytest.approx(2.0)
    assert sinkhorn(nu, mu, 1.0, cost=c).cost.item() == pytest.approx(2.0 - 37.0)


def test_the_matrix_of_a_bilinear_cost_acts_on_the_first_cloud() -> None:
    mu, nu = of.Particles([[1.0, 0.0]]), of.Particles([[0.0, 1.0]])
    plan = sinkhorn(mu, nu, 1.0, cost=BilinearCost([[0.0, 3.0], [5.0, 0.0]]))
    assert plan.cost.item() == pytest.approx(-5.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cost", "how"),
    [
        (None, "dense"),
        (None, "streamed products"),
        (PowerCost(1), "streaming"),
        (BilinearCost(A), "products"),
        (BilinearCost(A), "streamed products"),
        (uneven, "dense"),
        (uneven, "streaming"),
    ],
    ids=[
        "squared",
        "squared streamed",
        "distance streamed",
        "bilinear",
        "bilinear streamed",
        "function",
        "function streamed",
    ],
)
def test_members_of_a_batch_are_solved_as_if_alone(cost: Any, how: str) -> None:
    mu, nu = cloud(1, 5, batch=(3, 1)), cloud(2, 6, batch=(2,))
    mu = of.Particles(mu.x * torch.tensor([0.1, 1.0, 6.0]).double()[:, None, None, None], mu.w)
    with path(how):
        plan = sinkhorn(mu, nu, 0.3, cost=cost)
        P, average = plan.plan, plan.barycentric()
        assert plan.regularised_cost.shape == plan.cost.shape == plan.error.shape == (3, 2)
        assert plan.status.shape == (3, 2)
        assert plan.f.shape == (3, 2, 5)
        assert plan.g.shape == (3, 2, 6)
        for i, j in itertools.product(range(3), range(2)):
            alone = sinkhorn(mu[i, 0], nu[j], 0.3, cost=cost)
            torch.testing.assert_close(P[i, j], alone.plan, rtol=1e-5, atol=2e-9)
            torch.testing.assert_close(average[i, j], alone.barycentric(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(
                plan.regularised_cost[i, j], alone.regularised_cost, rtol=1e-9, atol=1e-9
            )
            torch.testing.assert_close(plan.cost[i, j], alone.cost, rtol=1e-6, atol=1e-6)


def test_members_of_a_batch_do_not_fail_with_one_that_cannot_be_solved() -> None:
    x, y = cloud(1, 12).x, cloud(2, 12).x
    scale = torch.tensor([0.5, 1e6, 0.1, 30.0, 1.0]).double()[:, None, None]
    plan = sinkhorn(of.Particles(scale * x), of.Particles(scale * y), 0.3, on_failure="return")
    assert [s == "ok" for s in plan.status] == [True, False, True, True, True]
    for member in (0, 2, 3, 4):
        P = plan.plan[member].numpy()
        assert max(marginal_errors(P, *2 * [np.full(12, 1 / 12)])) <= 1.1e-9


@pytest.mark.parametrize("how", PATHS)
def test_single_precision_is_computed_in_double(how: str) -> None:
    mu, nu = (of.Particles(z.x.float(), z.w.float()) for z in (cloud(1, 7), cloud(2, 8)))
    exact = [of.Particles(z.x.double(), z.w.double() / z.w.double().sum()) for z in (mu, nu)]
    with path(how):
        plan, reference = sinkhorn(mu, nu, 0.05), sinkhorn(*exact, 0.05)  # sums of weights differ in float32
    assert plan.regularised_cost.dtype == plan.cost.dtype == torch.float32
    assert plan.f.dtype == plan.g.dtype == torch.float64
    assert plan.error.item() <= 1e-9
    assert plan.regularised_cost.item() == pytest.approx(reference.regularised_cost.item(), rel=2e-7)


@pytest.mark.parametrize(("n", "m"), [(30, 25), (7, 3), (49, 49)])
def test_uniform_clouds_in_single_precision_have_the_same_mass(n: int, m: int) -> None:
    """n times the float32 number 1 / n is not one."""
    mu, nu = of.Particles(cloud(1, n).x.float()), of.Particles(cloud(2, m).x.float())
    assert sinkhorn(mu, nu, of.Sinkhorn(0.1, tol=1e-11)).error.item() <= 1e-11


# --- honesty ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow(but_for=["*-dense", "-7-products", "1-products"])
@pytest.mark.parametrize("how", ["dense", "products"])
@pytest.mark.parametrize("k", range(4, -8, -1))
def test_over_all_temperatures_the_error_is_what_numpy_measures(k: int, how: str) -> None:
    eps, mu, nu = 10.0**k, cloud(1, 30), cloud(2, 25)
    with path(how):
        plan = sinkhorn(mu, nu, eps, on_failure="return")
        P = plan.plan.numpy()
    rows, columns = marginal_errors(P, mu.w.numpy(), nu.w.numpy())
    floor = rounding(plan)
    assert rows <= floor
    assert abs(plan.error.item() - columns) <= floor
    assert (plan.status == "ok") == (plan.error.item() <= 1e-9)
    C = squares(mu.x.numpy(), nu.x.numpy())
    again = np.outer(mu.w, nu.w) * np.exp((plan.f.numpy()[:, None] + plan.g.numpy() - C) / eps)
    assert marginal_errors(again, mu.w.numpy(), nu.w.numpy())[1] <= plan.error.item() + 4 * floor
    assert plan.status == "ok" or k < (-6 if how == "dense" else -5)  # where rounding begins


@pytest.mark.parametrize("how", ["dense", "products"])
@pytest.mark.parametrize("shift", [1e2, 1e3, 1e5])
def test_the_error_of_clouds_far_apart_is_that_of_their_matrix(shift: float, how: str) -> None:
    """Potentials of 1e12 have four digits left where marginals see them."""
    mu, nu = cloud(1, 12), cloud(2, 10)
    with path(how):
        plan = sinkhorn(of.Particles(mu.x + shift, mu.w), nu, 0.01, on_failure="return")
        P, cost = plan.plan.numpy(), plan.cost.item()
    rows, columns = marginal_errors(P, mu.w.numpy(), nu.w.numpy())
    assert plan.status != "ok" or max(rows, columns) <= 1.1e-9
    C = squares(mu.x.numpy() + shift, nu.x.numpy())
    assert plan.status != "ok" or cost == pytest.approx((P * C).sum(), rel=1e-8)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["-8", "-13"])
@pytest.mark.parametrize("k", [-8, -10, -13, -16, -20])
def test_beyond_rounding_it_gives_up_soon_and_says_so(k: int) -> None:
    mu, nu = cloud(1, 30), cloud(2, 25)
    began = time.process_time()
    plan = sinkhorn(mu, nu, of.Sinkhorn(10.0**k, max_iter=10**7), on_failure="return")
    assert time.process_time() - began < 10
    assert plan.error.item() > 1e-9
    assert plan.status == "stalled"  # the sweeps that were allowed are not what was missing
    assert plan.sweeps < 10**5


@pytest.mark.parametrize(("seed", "k"), [(5, -18.0), (27, -17.0), (1, -18.0), (24, -17.0), (26, -17.0)])
def test_convergence_is_not_claimed_where_no_digit_is_left_to_see_it(seed: int, k: float) -> None:
    """In potentials of 1e17 even the logarithms of the weights are lost, and sums of nothing look right."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(12, 2)), rng.normal(size=(10, 2))
    plan = sinkhorn(
        of.Particles(x), of.Particles(y), of.Sinkhorn(10.0**k, tol=0.1, max_iter=500), on_failure="return"
    )
    columns = marginal_errors(plan.plan.numpy(), np.full(12, 1 / 12), np.full(10, 1 / 10))[1]
    assert plan.status != "ok" or columns < 0.2


@pytest.mark.parametrize("max_iter", [1, 2, 5, 20])
def test_too_few_sweeps_raise_with_the_plan(max_iter: int) -> None:
    case = Case(cloud(1, 20), cloud(2, 25), squares, eps=1e-3)
    with pytest.raises(of.errors.ConvergenceError, match=r"marginal error .* on_failure") as caught:
        case.solve(max_iter=max_iter)
    plan, back = caught.value.result, case.solve(max_iter=max_iter, on_failure="return")
    assert isinstance(plan, EntropicTransport)
    assert plan.status == back.status == "max_iter"
    assert torch.equal(plan.g, back.g)
    assert back.sweeps <= max_iter + 4
    columns = marginal_errors(plan.plan.numpy(), case.a, case.b)[1]
    assert plan.error.item() == pytest.approx(columns, rel=1e-9)
    assert columns > 1e-9


def test_a_failure_survives_pickling() -> None:
    with pytest.raises(of.errors.ConvergenceError) as caught:
        sinkhorn(cloud(1, 20), cloud(2, 25), of.Sinkhorn(1e-3, max_iter=2))
    back = pickle.loads(pickle.dumps(caught.value))
    assert torch.equal(back.result.g, caught.value.result.g)


@pytest.mark.parametrize("how", PATHS)
def test_the_dual_value_never_exceeds_the_optimum(how: str) -> None:
    case = Case(cloud(1, 9), cloud(2, 8), squares, eps=0.1)
    P = case.by_pot()
    best = (P * case.C).sum() + case.eps * kl(P, case.a, case.b)
    for max_iter in (1, 3, 10, 30, 1000):
        with path(how):
            value = case.solve(max_iter=max_iter, on_failure="return").regularised_cost.item()
        assert value <= best * (1 + 1e-12)
    assert value == pytest.approx(best, rel=1e-10)


# --- the requirement --------------------------------------------------------------------------------


def eight_dimensions(n: int = 1000) -> tuple[of.Particles, of.Particles]:
    rng = np.random.default_rng(3)
    x, y = (0.87 * rng.standard_normal((n, 8)) for _ in range(2))
    assert squares(x, y).mean() == pytest.approx(12.0, rel=0.03)
    return of.Particles(x), of.Particles(y)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "eps", [1.0, *(pytest.param(eps, marks=pytest.mark.slow) for eps in (0.1, 0.01, 0.001))]
)
def test_a_thousand_atoms_in_eight_dimensions_reach_nine_digits(eps: float) -> None:
    mu, nu = eight_dimensions()
    plan = sinkhorn(mu, nu, eps)
    rows, columns = marginal_errors(plan.plan.numpy(), mu.w.numpy(), nu.w.numpy())
    assert max(rows, columns) <= 1e-9
    best = sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-12), start=plan, on_failure="return")
    assert best.error.item() < 2e-12
    assert plan.regularised_cost.item() == pytest.approx(best.regularised_cost.item(), rel=1e-7)
    assert plan.cost.item() == pytest.approx(best.cost.item(), rel=1e-7)


@pytest.mark.thorough
def test_three_hundred_atoms_at_a_hundredth_reach_nine_digits() -> None:
    mu, nu = eight_dimensions(300)
    plan, best = sinkhorn(mu, nu, 0.01), sinkhorn(mu, nu, of.Sinkhorn(0.01, tol=1e-12))
    assert max(marginal_errors(plan.plan.numpy(), mu.w.numpy(), nu.w.numpy())) <= 1e-9
    assert plan.regularised_cost.item() == pytest.approx(best.regularised_cost.item(), rel=1e-9)


# --- hard regimes -----------------------------------------------------------------------------------


def clusters(seed: int, spread: float, *, n: int = 40) -> Array:
    at = np.repeat([[0.0, 0.0], [1.0, 0.0]], n // 2, 0)
    return at + spread * np.random.default_rng(seed).standard_normal((n, 2))


def assignment(x: Array, y: Array) -> float:
    C = squares(x, y)
    return float(C[linear_sum_assignment(C)].mean())


@pytest.mark.parametrize(
    ("spread", "eps", "how"),
    [
        (1e-6, 1e-3, "dense"),
        (1e-6, 1e-8, "dense"),
        (1e-6, 1e-3, "products"),
        (1e-3, 1e-6, "dense"),
        (1e-3, 1e-8, "dense"),
        (1e-3, 1e-6, "products"),
    ],
)
def test_tight_clusters_far_apart(spread: float, eps: float, how: str) -> None:
    x, y = clusters(1, spread), clusters(2, spread)
    with path(how):
        plan = sinkhorn(of.Particles(x), of.Particles(y), eps)
        P, cost = plan.plan.numpy(), plan.cost.item()
    assert max(marginal_errors(P, *2 * [np.full(40, 1 / 40)])) <= 1.1e-9
    digits = 1e-8 if how == "dense" else 1e-8 + 1e-15 / assignment(x, y)
    assert cost == pytest.approx((P * squares(x, y)).sum(), rel=digits)
    best = assignment(x, y)
    assert best * (1 - digits) <= cost <= best + eps * math.log(40)
    if eps > 1e3 * spread**2:  # within a cluster the plan is a product
        within = [squares(x[s], y[s]).mean() for s in (slice(0, 20), slice(20, 40))]
        assert cost == pytest.approx(np.mean(within), rel=20 * spread**2 / eps + digits)


def test_tight_clusters_of_unequal_mass() -> None:
    """A quarter of the mass has to cross the gap, whatever happens inside."""
    x, y = clusters(1, 1e-6, n=8), clusters(2, 1e-6, n=8)
    y[0] = y[4]
    y[1] = y[5]
    plan = sinkhorn(of.Particles(x), of.Particles(y), 1e-3)
    P = plan.plan.numpy()
    assert plan.cost.item() == pytest.approx(0.25, rel=1e-5)
    assert P[:4, [0, 1, 4, 5, 6, 7]].sum() == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("how", PATHS)
def test_collapsed_clouds_cost_what_their_points_cost(how: str) -> None:
    mu, nu = of.Particles(np.full((10, 3), 0.3)), of.Particles(np.full((4, 3), 1.3))
    with path(how):
        for eps in (1e-6, 1e-3, 1e3):
            plan = sinkhorn(mu, nu, eps)
            assert plan.regularised_cost.item() == pytest.approx(3.0, rel=1e-9)
            assert plan.cost.item() == pytest.approx(3.0, rel=1e-9)
            assert sinkhorn(mu, mu, eps).regularised_cost.item() == pytest.approx(0.0, abs=1e-9 * eps)
            assert sinkhorn_divergence(mu, nu, eps).item() == pytest.approx(3.0, rel=1e-9)
    assert sinkhorn(mu, mu, 1e-3, cost=PowerCost(1)).cost.item() == 0


@pytest.mark.parametrize("how", ["dense", "products"])
@pytest.mark.parametrize("offset", [1e6, 1e10])
@pytest.mark.parametrize("eps", [1.0, 0.01])
def test_an_offset_costs_no_digits(eps: float, offset: float, how: str) -> None:
    """On a lattice of step 1/64 the sums with the offset are exact."""
    x, y = (np.round(64 * cloud(seed, 20).x.numpy()) / 64 for seed in (1, 2))
    with path(how):
        here, there = (sinkhorn(of.Particles(x + h), of.Particles(y + h), eps) for h in (0.0, offset))
    assert there.regularised_cost.item() == pytest.approx(here.regularised_cost.item(), rel=1e-11)
    assert there.cost.item() == pytest.approx(here.cost.item(), rel=1e-8)


@pytest.mark.parametrize("how", ["dense", "streamed products"])
@pytest.mark.parametrize("scale", [2.0**-500, 2.0**498])
@pytest.mark.parametrize("p", [0.5, 1, 2])
def test_the_unit_of_length_does_not_matter(p: float, scale: float, how: str) -> None:
    x, y = cloud(1, 10).x, cloud(2, 9).x
    with path(how):
        here, there = (
            sinkhorn(of.Particles(s * x), of.Particles(s * y), 0.2 * s**p, cost=PowerCost(p))
            for s in (1.0, scale)
        )
    assert there.regularised_cost.item() / scale**p == pytest.approx(here.regularised_cost.item(), rel=1e-12)
    assert there.distance.item() / scale == pytest.approx(here.distance.item(), rel=1e-8)


@pytest.mark.parametrize("name", ["squared", "root", "cubed", "bilinear", "function"])
def test_at_infinite_temperature_the_plan_is_the_product(name: str) -> None:
    mu, nu, cost = cloud(1, 10), cloud(2, 9), CASES[name].cost
    for eps in (1e10, 1e100, 1e300):
        P = sinkhorn(mu, nu, eps, cost=cost).plan
        torch.testing.assert_close(P, mu.w[:, None] * nu.w, rtol=1e-8, atol=0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n", [2, 30, 100])
@pytest.mark.parametrize("eps", [1e-2, 1e-4, 1e-6])
def test_at_low_temperature_the_cost_approaches_the_assignment_from_above(
    eps: float, n: int, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laplacian, "FACTORISE", 0 if sparse else 3072)
    x, y = cloud(1, n).x.numpy(), cloud(2, n).x.numpy()
    plan = sinkhorn(of.Particles(x), of.Particles(y), eps)
    best = assignment(x, y)
    assert -1e-8 * best <= plan.cost.item() - best <= eps * math.log(n)
    assert plan.regularised_cost.item() <= best + eps * math.log(n) + 1e-8


@pytest.mark.parametrize("cost", [PowerCost(1), PowerCost(2), PowerCost(0.5)], ids=str)
def test_ties_between_optimal_plans_are_no_trouble(cost: PowerCost) -> None:
    """On a lattice thousands of plans are optimal, and entropy takes their middle."""
    x = np.stack(np.meshgrid(np.arange(6.0), np.arange(6.0)), -1).reshape(-1, 2)
    mu, nu = of.Particles(x), of.Particles(x + np.array([0.5, 0.0]))
    for eps in (1.0, 0.1, 0.01):
        P = sinkhorn(mu, nu, eps, cost=cost).plan.numpy()
        assert max(marginal_errors(P, *2 * [np.full(36, 1 / 36)])) <= 1.1e-9


# --- laws -------------------------------------------------------------------------------------------

seeds, sizes = st.integers(0, 2**31), st.integers(1, 12)
temperatures = st.sampled_from([0.03, 0.3, 3.0, 300.0])
COSTS = {
    "squared": (None, None),
    "distance": (PowerCost(1), PowerCost(1)),
    "bilinear": (BilinearCost(A), BilinearCost(A.T)),
    "function": (uneven, lambda x, y: uneven(y, x)),
}


@pytest.mark.slow
@settings(max_examples=20)
@given(
    seed=seeds,
    n=sizes,
    m=sizes,
    eps=temperatures,
    name=st.sampled_from(list(COSTS)),
    how=st.sampled_from(list(PATHS)),
)
def test_exchanging_the_clouds_transposes_the_plan(
    seed: int, n: int, m: int, eps: float, name: str, how: str
) -> None:
    mu, nu, (cost, flipped) = cloud(seed, n), cloud(seed + 1, m), COSTS[name]
    with path(how):
        plan, back = (
            sinkhorn(one, other, of.Sinkhorn(eps, tol=1e-11), cost=c, on_failure="return")
            for one, other, c in ((mu, nu, cost), (nu, mu, flipped))
        )
        P, Q = plan.plan, back.plan
    size = 1e-10 + 10 * (rounding(plan) + rounding(back))
    assert plan.regularised_cost.item() == pytest.approx(back.regularised_cost.item(), rel=1e-8, abs=size)
    assert float((P - Q.mT).abs().sum()) < 1e5 * size


@pytest.mark.thorough
@settings(max_examples=20)
@given(seed=seeds, n=sizes, m=sizes, eps=temperatures, d=st.integers(1, 4))
def test_motions_of_space_change_nothing(seed: int, n: int, m: int, eps: float, d: int) -> None:
    mu, nu = cloud(seed, n, d), cloud(seed + 1, m, d)
    turn = np.eye(1) if d == 1 else ortho_group.rvs(d, random_state=seed % 2**31)
    shift = np.random.default_rng(seed).standard_normal(d)
    moved = [of.Particles(z.x.numpy() @ turn.T + shift, z.w) for z in (mu, nu)]
    here, there = sinkhorn(mu, nu, eps), sinkhorn(*moved, eps)
    assert there.regularised_cost.item() == pytest.approx(here.regularised_cost.item(), rel=1e-8, abs=1e-12)
    assert there.cost.item() == pytest.approx(here.cost.item(), rel=1e-5, abs=1e-8)


@pytest.mark.thorough
@settings(max_examples=15)
@given(seed=seeds, n=sizes, m=sizes, eps=temperatures, part=st.floats(0.0, 1.0))
def test_splitting_an_atom_changes_nothing(seed: int, n: int, m: int, eps: float, part: float) -> None:
    mu, nu = cloud(seed, n), cloud(seed + 1, m)
    w = torch.cat([mu.w, part * mu.w[:1]])
    w[0] *= 1 - part
    split = of.Particles(torch.cat([mu.x, mu.x[:1]]), w)
    plan, other = sinkhorn(mu, nu, eps), sinkhorn(split, nu, eps)
    assert other.regularised_cost.item() == pytest.approx(plan.regularised_cost.item(), rel=1e-8, abs=1e-12)
    P, Q = plan.plan, other.plan
    torch.testing.assert_close(Q[0] + Q[-1], P[0], rtol=1e-4, atol=1e-7)


@settings(max_examples=15)
@given(seed=seeds, n=sizes, m=sizes, eps=temperatures)
def test_the_order_of_atoms_does_not_matter(seed: int, n: int, m: int, eps: float) -> None:
    mu, nu = cloud(seed, n), cloud(seed + 1, m)
    p, q = (torch.from_numpy(np.random.default_rng(seed).permutation(k)) for k in (n, m))
    plan = sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-11))
    other = sinkhorn(
        of.Particles(mu.x[p], mu.w[p]), of.Particles(nu.x[q], nu.w[q]), of.Sinkhorn(eps, tol=1e-11)
    )
    torch.testing.assert_close(other.plan, plan.plan[p][:, q], rtol=1e-5, atol=1e-8)


@settings(max_examples=20)
@given(seed=seeds, n=sizes, m=sizes, eps=temperatures, name=st.sampled_from(list(COSTS)))
def test_primal_and_dual_values_meet(seed: int, n: int, m: int, eps: float, name: str) -> None:
    mu, nu, cost = cloud(seed, n), cloud(seed + 1, m), COSTS[name][0]
    plan = sinkhorn(mu, nu, of.Sinkhorn(eps, tol=1e-11), cost=cost)
    P = plan.plan.numpy()
    primal = plan.cost.item() + eps * kl(P, mu.w.numpy(), nu.w.numpy())
    swing = float(plan.g.max() - plan.g.min())
    assert primal == pytest.approx(plan.regularised_cost.item(), rel=1e-9, abs=2e-11 * swing + 1e-12)


@pytest.mark.thorough
@settings(max_examples=15)
@given(seed=seeds, n=sizes, m=sizes)
def test_the_regularised_cost_grows_with_eps_and_the_plan_relaxes(seed: int, n: int, m: int) -> None:
    mu, nu = cloud(seed, n), cloud(seed + 1, m)
    plans = [sinkhorn(mu, nu, eps) for eps in (0.03, 0.1, 1.0, 10.0)]
    for one, other in itertools.pairwise(plans):
        assert one.regularised_cost.item() <= other.regularised_cost.item() + 1e-8
        assert one.cost.item() <= other.cost.item() + 1e-7


# --- the divergence ---------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25)
@given(
    seed=seeds,
    n=sizes,
    m=sizes,
    eps=temperatures,
    p=st.sampled_from([0.5, 1.0, 2.0]),
    how=st.sampled_from(list(PATHS)),
)
def test_the_divergence_is_symmetric_and_not_negative(
    seed: int, n: int, m: int, eps: float, p: float, how: str
) -> None:
    mu, nu = cloud(seed, n), cloud(seed + 1, m)
    with path(how):
        there, back = (
            sinkhorn_divergence(a, b, eps, cost=PowerCost(p)).item() for a, b in ((mu, nu), (nu, mu))
        )
    assert there >= 0
    assert there == pytest.approx(back, rel=1e-7, abs=1e-9)


@pytest.mark.thorough
@settings(max_examples=15)
@given(seed=seeds, n=sizes, eps=temperatures)
def test_the_divergence_of_a_translation_is_its_square(seed: int, n: int, eps: float) -> None:
    """|x - y - h|^2 = |x - y|^2 - 2 <h, x - y> + |h|^2, and x - y has mean zero under every coupling of mu
    with itself: the plan is the same and the cost grows by |h|^2, which nothing else does."""
    mu, h = cloud(seed, n), np.random.default_rng(seed).standard_normal(2)
    nu = of.Particles(mu.x.numpy() + h, mu.w)
    assert sinkhorn_divergence(mu, nu, eps).item() == pytest.approx(h @ h, rel=1e-6, abs=1e-9)


@pytest.mark.thorough
@settings(max_examples=15)
@given(seed=seeds, n=sizes, eps=temperatures, p=st.sampled_from([1.0, 2.0]), digits=st.integers(0, 12))
def test_the_divergence_vanishes_at_equality_only(
    seed: int, n: int, eps: float, p: float, digits: int
) -> None:
    mu = cloud(seed, n)
    assert sinkhorn_divergence(mu, mu, eps).item() == 0
    same = sinkhorn_divergence(
        mu, of.Particles(mu.x, mu.w), of.Sinkhorn(eps, tol=1e-12), cost=PowerCost(p)
    ).item()
    assert 0 <= same <= 1e-11 * (1 + eps)
    h = 10.0**-digits
    value = sinkhorn_divergence(mu, of.Particles(mu.x + h, mu.w), of.Sinkhorn(eps, tol=1e-12)).item()
    assert value == pytest.approx(2 * h * h, rel=1e-6, abs=1e-12 * (1 + eps))


@pytest.mark.thorough
@pytest.mark.parametrize("tol", [1e-4, 1e-2, 0.3])
def test_a_loose_tolerance_is_no_reason_to_fail(tol: float) -> None:
    for seed in range(8):
        mu, nu = cloud(seed, 8), cloud(seed + 100, 6)
        near = of.Particles(mu.x + 1e-3 * nu.x[0], mu.w)
        assert sinkhorn_divergence(mu, nu, of.Sinkhorn(0.1, tol=tol)).item() >= 0
        assert sinkhorn_divergence(mu, near, of.Sinkhorn(0.1, tol=tol)).item() >= 0


def test_at_high_temperature_the_divergence_is_a_squared_mmd() -> None:
    mu, nu = cloud(1, 10), cloud(2, 9)
    z, c = torch.cat([mu.x, nu.x]).numpy(), torch.cat([mu.w, -nu.w]).numpy()
    for p in (1, 1.5):
        expected = -c @ cdist(z, z) ** p @ c / 2
        assert sinkhorn_divergence(mu, nu, 1e6, cost=PowerCost(p)).item() == pytest.approx(expected, rel=1e-4)


def test_at_low_temperature_the_divergence_is_the_transport_cost() -> None:
    x, y = cloud(1, 12).x.numpy(), cloud(2, 12).x.numpy()
    value = sinkhorn_divergence(of.Particles(x), of.Particles(y), 1e-5).item()
    assert value == pytest.approx(assignment(x, y), rel=1e-4)


@pytest.mark.thorough
def test_the_divergence_is_least_at_the_target_and_the_plain_cost_is_not() -> None:
    """The entropic cost prefers a shrunken cloud: for Gaussians of deviation s and 1 it is least where
    s^2 = 1 - eps / 2, and that of an atom if eps is larger."""
    nu, eps = bell(0.0, 1.0), 0.8
    scales = np.linspace(0.5, 1.3, 33)
    plain = [sinkhorn(bell(0.0, s), nu, of.Sinkhorn(eps, tol=1e-7)).regularised_cost.item() for s in scales]
    debiased = [sinkhorn_divergence(bell(0.0, s), nu, of.Sinkhorn(eps, tol=1e-7)).item() for s in scales]
    assert scales[np.argmin(debiased)] == pytest.approx(1.0)
    assert scales[np.argmin(plain)] == pytest.approx(math.sqrt(1 - eps / 2), abs=0.026)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["dense", "streamed products"])
def test_divergences_of_a_batch_broadcast(how: str) -> None:
    mu, nu = cloud(1, 5, batch=(3, 1)), cloud(2, 6, batch=(2,))
    with path(how):
        value = sinkhorn_divergence(mu, nu, 0.5)
        assert value.shape == (3, 2)
        for i, j in itertools.product(range(3), range(2)):
            assert value[i, j].item() == pytest.approx(
                sinkhorn_divergence(mu[i, 0], nu[j], 0.5).item(), rel=1e-7
            )


@pytest.mark.thorough
@pytest.mark.parametrize("eps", [0.1, 1.0, 30.0])
def test_single_precision_divergences_are_subtracted_in_double(eps: float) -> None:
    for seed in range(5):
        x = cloud(seed, 8).x.float()
        y = x + 1e-3 * cloud(seed + 1, 8).x.float()
        value = sinkhorn_divergence(of.Particles(x), of.Particles(y), eps)
        exact = sinkhorn_divergence(of.Particles(x.double()), of.Particles(y.double()), eps)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(exact.item(), rel=1e-5)


def test_arguments_are_checked_also_where_the_answer_is_zero() -> None:
    mu = cloud(1, 5)
    with pytest.raises(of.InputError, match="eps"):
        sinkhorn_divergence(mu, mu, -1.0)


# --- warm starts ------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("eps", "how"), [(1.0, "dense"), (0.1, "dense"), (0.01, "dense"), (0.01, "products"), (0.3, "streaming")]
)
def test_a_solution_nearby_saves_sweeps(eps: float, how: str) -> None:
    mu, nu = cloud(1, 10, 3), cloud(2, 12, 3)
    near = of.Particles(mu.x + 1e-5 * cloud(3, 10, 3).x, mu.w)
    with path(how):
        first, cold = sinkhorn(mu, nu, eps), sinkhorn(near, nu, eps)
        warm, again = sinkhorn(near, nu, eps, start=first), sinkhorn(mu, nu, eps, start=first)
    assert warm.sweeps < cold.sweeps
    assert warm.error.item() <= 1e-9
    assert warm.regularised_cost.item() == pytest.approx(cold.regularised_cost.item(), rel=1e-9)
    assert again.sweeps <= 2


def test_a_useless_start_does_no_harm() -> None:
    mu, nu = cloud(1, 25, 3), cloud(2, 20, 3)
    other = sinkhorn(of.Particles(50 * mu.x), nu, of.Sinkhorn(0.01, max_iter=3), on_failure="return")
    plan, cold = sinkhorn(mu, nu, 0.1, start=other), sinkhorn(mu, nu, 0.1)
    assert plan.error.item() <= 1e-9
    assert plan.regularised_cost.item() == pytest.approx(cold.regularised_cost.item(), rel=1e-9)


@pytest.mark.parametrize(("n", "m", "batch"), [(5, 6, ()), (6, 6, ()), (6, 5, (1,)), (6, 5, (2,))], ids=str)
def test_a_start_of_another_shape_is_refused(n: int, m: int, batch: tuple[int, ...]) -> None:
    start = sinkhorn(cloud(1, n, batch=batch), cloud(2, m), 1.0)
    with pytest.raises(of.InputError, match="start"):
        sinkhorn(cloud(1, 6), cloud(2, 5), 1.0, start=start)


def test_a_start_that_is_no_plan_is_refused() -> None:
    with pytest.raises(of.InputError, match="start"):
        sinkhorn(cloud(1, 6), cloud(2, 5), 1.0, start=torch.zeros(5))  # type: ignore[arg-type]


# --- wrong input ------------------------------------------------------------------------------------


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "eps is zero": ({"eps": 0.0}, "eps"),
    "eps is negative": ({"eps": -1.0}, "eps"),
    "eps is nan": ({"eps": math.nan}, "eps"),
    "eps is infinite": ({"eps": math.inf}, "eps"),
    "tol is zero": ({"tol": 0.0}, "tol"),
    "no sweeps": ({"max_iter": 0}, "max_iter"),
    "half a sweep": ({"max_iter": 2.5}, "max_iter"),
    "cost is a string": ({"cost": "squared"}, "cost"),
    "cost is a class": ({"cost": PowerCost}, "cost"),
    "matrix of another dimension": ({"cost": BilinearCost(np.eye(3))}, r"A\.shape"),
    "cost of another shape": ({"cost": lambda x, y: (x - y).square()}, r"cost\(x, y\)"),
    "cost is infinite": ({"cost": lambda x, y: (x - y).square().sum(-1) / 0}, "finite"),
    "cost is no tensor": ({"cost": lambda x, y: (x - y).sum(-1).numpy()}, r"cost\(x, y\)"),
    "engine is a string": ({"engine": "pot"}, "engine"),
    "on_failure is unknown": ({"on_failure": "ignore"}, "on_failure"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name: str) -> None:
    options, match = WRONG[name]
    with pytest.raises(of.InputError, match=match):
        sinkhorn(cloud(1, 5), cloud(2, 6), **with_options(**{"eps": 1.0, **options}))


def test_measures_that_cannot_be_compared_are_refused() -> None:
    mu = cloud(1, 5)
    others = {
        "dimension": cloud(1, 5, 3),
        "Sphere": ball(1, 5),
        "float32": of.Particles(mu.x.float()),
        "batch": cloud(1, 5, batch=(2,)),
        "Gaussian": of.Gaussian([0.0, 0.0], root=np.eye(2)),
    }
    for match, nu in others.items():
        with pytest.raises(of.InputError, match=match):
            sinkhorn(cloud(1, 5, batch=(3,)) if match == "batch" else mu, nu, 1.0)


@pytest.mark.parametrize("p", [0.0, -1.0, math.inf, math.nan])
def test_a_power_has_to_be_positive(p: float) -> None:
    with pytest.raises(of.InputError, match="p"):
        PowerCost(p)


def test_values_of_the_wrong_shape_cannot_be_averaged() -> None:
    plan = sinkhorn(cloud(1, 5), cloud(2, 6), 1.0)
    with pytest.raises(of.InputError):
        plan.average(torch.zeros(5, 2))


def test_a_matrix_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sinkhorn(cloud(1, 5), cloud(2, 6), 1.0)
    monkeypatch.setattr(entropic, "MATRIX", 29)
    with pytest.raises(of.InputError, match="average or barycentric"):
        _ = plan.plan


def test_costs_beyond_floating_point_are_reported() -> None:
    """Scores of 1e320 and more have no potentials."""
    with pytest.raises(of.OtflowError):
        sinkhorn(cloud(1, 5), cloud(2, 6), 1e-320)
    with pytest.raises(of.OtflowError):
        sinkhorn(of.Particles(1e200 * cloud(1, 5).x), cloud(2, 6), 1.0)


def test_single_precision_results_that_overflow_are_reported() -> None:
    mu, nu = (of.Particles((1e25 * cloud(seed, 5).x).float()) for seed in (1, 2))
    found = sinkhorn(mu, nu, 1e50)
    for name in ("cost", "regularised_cost"):
        with pytest.raises(of.errors.NotFiniteError, match=r"float32.*to double"):
            getattr(found, name)
    assert found.distance.isfinite()


# --- memory -----------------------------------------------------------------------------------------

MEMORY = """
import resource, sys
import numpy as np
import torch
import otflow as of
from otflow.transport.entropic import scaling
from otflow.transport.entropic.costs import BilinearCost, PowerCost
from otflow.transport.entropic.engines import ColumnPotential, Engine
from otflow.transport.entropic.sinkhorn import sinkhorn

class Nothing(Engine):
    def potential(self, kernel, *, tol, max_iter, start):
        done = torch.zeros(len(kernel.logb), dtype=torch.bool)
        return ColumnPotential(torch.zeros_like(kernel.logb), 0, done)

name, n, grad = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
scaling.ABSORB = 0
cost = {
    "squared": None,
    "distance": PowerCost(1),
    "bilinear": BilinearCost(np.eye(3)),
    "function": lambda x, y: (x - y).abs().sum(-1),
}[name]
rng = np.random.default_rng(0)
x, y = (torch.from_numpy(rng.standard_normal((n, 3))) for _ in range(2))
x.requires_grad_(grad)

def used(n):
    mu, nu, options = of.Particles(x[:n]), of.Particles(y[:n]), of.Sinkhorn(5.0, engine=Nothing())
    plan = sinkhorn(mu, nu, options, cost=cost, on_failure="return")
    plan.barycentric()
    plan.cost
    if grad:
        plan.regularised_cost.backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

small = used(50)
print(used(n) - small)
"""


def growth(*arguments: str) -> float:
    """Peak of the memory in MB that a problem needs beyond a small one."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True, timeout=600
    )
    return float(run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_streaming_holds_no_matrix() -> None:
    assert growth("distance", "6000") < 200  # the matrix would be 288 MB


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("name", ["distance", "function"])
def test_tiles_leave_no_holes_in_memory(name: str) -> None:
    """Small results that are kept between large ones that are not make the heap as large as the matrix."""
    assert growth(name, "9000") < 200  # the matrix would be 648 MB


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("name", ["squared", "distance", "bilinear", "function"])
def test_twenty_thousand_atoms_need_no_matrix(name: str) -> None:
    assert growth(name, "20000") < 400  # the matrix would be 3.2 GB


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("name", ["squared", "distance", "bilinear", "function"])
def test_gradients_of_ten_thousand_atoms_need_no_matrix(name: str) -> None:
    assert growth(name, "10000", "grad") < 400  # the matrix would be 800 MB
