"""Points and covariances at scales whose squares leave floating point: the right number, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.errors import NotFiniteError
from tests.corpus.transports import assignment, exact_bures, normal

X, Y = normal(2, 7, 2)
LABEL = np.arange(7) % 3
R, Q = normal(2, 3, 3, seed=1)
M, N = normal(2, 3, seed=2)


class Given(NamedTuple):
    """Clouds and Gaussians of some size s, and that size as it is after rounding."""

    mu: of.Particles
    nu: of.Particles
    g: of.Gaussian
    h: of.Gaussian
    s: float

    @staticmethod
    def of(s: float, dtype: Any) -> Given:
        mu, nu = (of.Particles((s * z).astype(dtype), label=LABEL) for z in (X, Y))
        g, h = (of.Gaussian((s * m).astype(dtype), root=(s * r).astype(dtype)) for m, r in ((M, R), (N, Q)))
        return Given(mu, nu, g, h, s)

    @property
    def twisted(self) -> of.Twisted:
        return of.Twisted(matrix=torch.eye(2, dtype=self.mu.dtype))

    @property
    def eps(self) -> float:
        return self.s * self.s


def slope(F: of.Energy, mu: of.Measure) -> Tensor:
    return F.differential(mu)[-1].abs().amax()


Measured = Callable[[Given], Tensor]
LENGTHS: dict[str, Measured] = {
    "exact": lambda v: of.solve(v.mu, v.nu).distance,
    "exact, cubes": lambda v: of.solve(v.mu, v.nu, 3).distance,
    "wasserstein": lambda v: of.wasserstein(v.mu, v.nu),
    "conditional plan": lambda v: of.transport.solve_conditional(v.mu, v.nu).distance,
    "conditional": lambda v: of.conditional_wasserstein(v.mu, v.nu),
    "relaxed": lambda v: of.transport.relaxed_conditional(v.mu, v.nu, 1e300).distance,
    "sequences": lambda v: of.sequence_distance(v.mu, v.nu),
    "sliced": lambda v: of.sliced_wasserstein(v.mu, v.nu, rng=0, directions=5),
    "twisted": lambda v: of.metrics.solve_twisted(v.mu, v.nu, v.twisted).distance,
    "gaussian": lambda v: of.solve(v.g, v.h).distance,
    "bures-wasserstein": lambda v: of.bures_wasserstein(v.g, v.h),
    "geodesic": lambda v: of.transport.bures_geodesic(v.g, v.h, 0.5).root.abs().amax(),
    "velocity": lambda v: of.transport.bures_log(v.g, v.h)[1].abs().amax(),
    "slope of the square": lambda v: slope(of.SquaredWasserstein(v.nu), v.mu),
    "slope of the square, gaussian": lambda v: slope(of.SquaredWasserstein(v.h), v.g),
}
EPS_LENGTHS: dict[str, Measured] = {  # with an eps that has to be a number
    "entropic": lambda v: of.sinkhorn(v.mu, v.nu, v.eps).distance,
    "entropic, gaussian": lambda v: of.sinkhorn(v.g, v.h, v.eps).distance,
    "slope of the divergence": lambda v: slope(of.SinkhornDivergence(v.nu, v.eps), v.mu),
    "slope of the divergence, gaussian": lambda v: slope(of.SinkhornDivergence(v.h, v.eps), v.g),
}
COSTS: dict[str, Measured] = {
    "exact": lambda v: of.solve(v.mu, v.nu).cost,
    "bound": lambda v: of.solve(v.mu, v.nu).bound,
    "potentials": lambda v: of.solve(v.mu, v.nu).potentials[0].abs().amax(),
    "conditional": lambda v: of.transport.solve_conditional(v.mu, v.nu).cost,
    "gaussian": lambda v: of.solve(v.g, v.h).cost,
    "cross-covariance": lambda v: of.solve(v.g, v.h).cross.abs().amax(),
    "gaussian potentials": lambda v: of.solve(v.g, v.h).potentials[0].constant,
    "entropic": lambda v: of.sinkhorn(v.mu, v.nu, v.eps).cost,
    "regularised": lambda v: of.sinkhorn(v.mu, v.nu, v.eps).regularised_cost,
    "divergence": lambda v: of.sinkhorn_divergence(v.mu, v.nu, v.eps),
    "entropic, gaussian": lambda v: of.sinkhorn(v.g, v.h, v.eps).cost,
    "regularised, gaussian": lambda v: of.sinkhorn(v.g, v.h, v.eps).regularised_cost,
    "divergence, gaussian": lambda v: of.sinkhorn_divergence(v.g, v.h, v.eps),
    "twisted": lambda v: of.metrics.solve_twisted(v.mu, v.nu, v.twisted).cost,
    "SquaredWasserstein": lambda v: of.SquaredWasserstein(v.nu)(v.mu),
    "SquaredWasserstein, gaussian": lambda v: of.SquaredWasserstein(v.h)(v.g),
    "SinkhornDivergence": lambda v: of.SinkhornDivergence(v.nu, v.eps)(v.mu),
    "SinkhornDivergence, gaussian": lambda v: of.SinkhornDivergence(v.h, v.eps)(v.g),
}
# 0 between equal measures
VANISHING = [name for name in COSTS if name.startswith(("Squ", "Sin", "div"))]
VANISHING += ["exact", "bound", "conditional", "gaussian", "twisted"]
SINGLE, DOUBLE = (1e-36, 1e-25, 1e20, 1e36), (1e-300, 1e-170, 1e-155, 1e155, 1e170, 1e300)
SCALES = [(np.float32, s) for s in SINGLE] + [(np.float64, s) for s in DOUBLE]
EXACT = {"exact", "bound", "potentials", "conditional"}  # numbers in double precision whatever they are given


def agrees(f: Measured, s: float, dtype: Any) -> bool:
    one, many = (f(Given.of(z, dtype)).double().item() for z in (1.0, s))
    return many / s == pytest.approx(one, rel=1e-5 if dtype == np.float32 else 1e-9)


# Labels move at a price of 1e300 where tokens are that far apart, and not before.
AT_SCALES = [(name, *one) for name in LENGTHS for one in SCALES if name != "relaxed" or one[1] < 1e150]


@pytest.mark.parametrize(("name", "dtype", "s"), AT_SCALES)
def test_lengths_are_right_where_their_squares_leave_floating_point(name: str, dtype: Any, s: float) -> None:
    assert agrees(LENGTHS[name], s, dtype)


@pytest.mark.parametrize("s", SINGLE)
@pytest.mark.parametrize("name", EPS_LENGTHS)
def test_entropic_lengths_are_right_where_their_squares_leave_single_precision(name: str, s: float) -> None:
    assert agrees(EPS_LENGTHS[name], s, np.float32)


@pytest.mark.parametrize(("dtype", "s"), SCALES)
@pytest.mark.parametrize("name", COSTS)
def test_costs_without_room_are_refused_in_words(name: str, dtype: Any, s: float) -> None:
    v = Given.of(s, dtype)
    if name in EXACT and dtype == np.float32:
        one = COSTS[name](Given.of(1.0, dtype)).item()
        assert COSTS[name](v).item() / s**2 == pytest.approx(one, rel=1e-5)
    elif dtype == np.float32:
        with pytest.raises(NotFiniteError, match=r"it leaves the range of torch.float32; convert to double"):
            COSTS[name](v)
    else:  # where eps itself is 0 or infinite, that is what is refused
        with pytest.raises((NotFiniteError, of.InputError), match=r"divide the points|eps = "):
            COSTS[name](v)


@pytest.mark.parametrize("s", [1e-36, 1e-25, 1e20])
@pytest.mark.parametrize("name", VANISHING)
def test_a_cost_of_zero_is_zero_at_every_scale(name: str, s: float) -> None:
    v = Given.of(s, np.float32)
    order = torch.tensor([2, 0, 1])
    turned = v.g.at([v.g.mean, v.g.root[:, order]])  # another root of the same covariance
    twin = of.Particles(v.mu.x[[3, 1, 2, 0, 4, 5, 6]], label=LABEL[[3, 1, 2, 0, 4, 5, 6]])
    for other, law in ((v.mu.at(v.mu.coords), v.g.at(v.g.coords)), (twin, turned)):
        assert COSTS[name](v._replace(nu=other, h=law)).item() == pytest.approx(0.0, abs=1e-10 * s * s)


def test_a_refusal_carries_the_number_in_double_precision() -> None:
    v = Given.of(1e-25, np.float32)
    with pytest.raises(NotFiniteError) as caught:
        _ = of.sinkhorn(v.mu, v.nu, v.eps).cost
    wide = of.sinkhorn(v.mu.to(torch.float64), v.nu.to(torch.float64), v.eps)
    assert caught.value.result.item() == pytest.approx(wide.cost.item(), rel=1e-6)
    assert wide.cost.item() > 0


def test_a_distance_beyond_its_dtype_is_refused() -> None:
    mu, nu = (of.Particles(np.full((2, 2), s, np.float32)) for s in (3e38, -3e38))
    for call in (of.wasserstein, of.sequence_distance):
        label = torch.arange(2)
        with pytest.raises(NotFiniteError, match=r"distance = .*float32"):
            call(of.Particles(mu.x, label=label), of.Particles(nu.x, label=label))
    g, h = (of.Gaussian(np.full(1, s, np.float32), root=np.ones((1, 1), np.float32)) for s in (3e38, -3e38))
    with pytest.raises(NotFiniteError, match=r"distance = .*float32"):
        of.bures_wasserstein(g, h)


def test_a_map_whose_matrix_has_no_room_is_refused_and_the_plan_is_not() -> None:
    eye = np.eye(2, dtype=np.float32)
    found = of.solve(*(of.Gaussian(np.zeros(2, np.float32), root=s * eye) for s in (1e-25, 1e25)))
    for name in ("map", "back"):
        with pytest.raises(NotFiniteError, match=r"matrix of the map = .*float32"):
            getattr(found, name)
    assert found.distance.item() == pytest.approx(1e25 * math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize("near", [1e-20, 1e-155, 1e-162, 1e-200, 1e-300])
@pytest.mark.parametrize("name", ["wasserstein", "solve", "sliced", "conditional"])
def test_points_that_nearly_coincide_next_to_others_that_do_not(name: str, near: float) -> None:
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    y = np.array([[near, 0.0], [1.0, 0.0], [0.0, 1.0]])
    mu, nu = (of.Particles(z, label=[0, 0, 0]) for z in (x, y))
    calls: dict[str, tuple[Callable[[], Tensor], float]] = {
        "wasserstein": (lambda: of.wasserstein(mu, nu), 3),
        "solve": (lambda: of.solve(mu, nu).distance, 3),
        "sliced": (lambda: of.sliced_wasserstein(mu, nu, directions=np.eye(2)), 6),
        "conditional": (lambda: of.transport.solve_conditional(mu, nu).distance, 3),
    }
    call, share = calls[name]
    assert call().item() == pytest.approx(near / math.sqrt(share), rel=1e-9)


@pytest.mark.parametrize("far", [1e100, 1e140, 1e153, 1e155, 1e158, 1e160, 1e162, 1e200])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_plan_near_is_as_good_as_without_points_far_away(p: float, far: float) -> None:
    x, y = normal(2, 20, 2, seed=5)
    x[10:, 0] = y[10:, 0] = far
    x[:10, 0] = y[:10, 0] = 0.0
    plan = of.solve(of.Particles(x), of.Particles(y), p)
    cost = (assignment(x[:10], y[:10], p) + assignment(x[10:], y[10:], p)) / 2
    assert plan.status == "ok"
    assert plan.distance.item() == pytest.approx(cost ** (1 / p), rel=1e-9)


@pytest.mark.parametrize("s", [1e-3, 1e-8, 1e-10, 1e-25, 1e-100, 1e-150])
def test_entropic_costs_far_below_eps_keep_their_digits(s: float) -> None:
    # As eps -> infinity the regularised cost is that of the product, and the divergence |E x - E y|^2.
    mu, nu = of.Particles(s * X), of.Particles(s * Y)
    product = ((X[:, None] - Y[None]) ** 2).sum(-1).mean()
    means = ((X.mean(0) - Y.mean(0)) ** 2).sum()
    tol = 10 * s * s + 1e-9
    assert of.sinkhorn(mu, nu, 1.0).regularised_cost.item() / s**2 == pytest.approx(product, rel=tol)
    assert of.sinkhorn_divergence(mu, nu, 1.0).item() / s**2 == pytest.approx(means, rel=20 * tol)


@pytest.mark.parametrize("s", [1e-160, 1e-200])
def test_entropic_costs_far_below_eps_are_refused_where_they_vanish(s: float) -> None:
    mu, nu = of.Particles(s * X), of.Particles(s * Y)
    found = of.sinkhorn(mu, nu, 1.0)
    for call in (
        lambda: found.cost,
        lambda: found.regularised_cost,
        lambda: found.distance,
        lambda: of.sinkhorn_divergence(mu, nu, 1.0),
    ):
        with pytest.raises(NotFiniteError, match=r"distance\^2"):
            call()


def test_the_divergence_of_a_cloud_from_itself_is_not_refused_where_costs_vanish() -> None:
    mu = of.Particles(np.full((3, 2), 1e-200))
    assert of.sinkhorn_divergence(mu, of.Particles(mu.x), 1.0).item() == 0.0


@pytest.mark.parametrize("s", [1e-300, 1e-170, 1e155, 1e300])
def test_roots_are_aligned_at_every_scale(s: float) -> None:
    for t in (1.0, s):  # against sixty digits, at the one scale where covariances are numbers
        g, h = of.Gaussian(np.zeros(3), root=t * R), of.Gaussian(np.zeros(3), root=t * Q)
        end = of.transport.bures_exp(g, of.transport.bures_log(g, h)).root.numpy() / t
        assert np.abs(end @ end.T - Q @ Q.T).max() < 1e-13
        away = of.transport.bures_log(g, h)[1].numpy() / t
        assert np.linalg.norm(away) == pytest.approx(exact_bures(R @ R.T, Q @ Q.T), rel=1e-12)


def test_a_covariance_made_of_products_is_known_up_to_rounding_and_a_root_is_not() -> None:
    flat, thick = np.diag([1.0, 0.0]), np.diag([1.0, 1e-7])
    mu = of.Gaussian(np.zeros(2), cov=flat)
    by_root, by_cov = of.Gaussian(np.zeros(2), root=thick), of.Gaussian(np.zeros(2), cov=thick @ thick)
    statuses = [of.transport.bures_map(mu, nu, on_failure="return").status for nu in (by_root, by_cov)]
    assert statuses == ["degenerate", "ok"]
    far = of.Gaussian(np.zeros(2), cov=np.diag([1.0, 1e-12]))
    assert of.transport.bures_map(mu, far, on_failure="return").status == "degenerate"
    assert of.solve(mu, by_cov).map.status == of.solve(by_cov, mu).back.status == "ok"


def test_the_gradient_of_a_barycentre_in_single_precision_is_that_in_double() -> None:
    roots = torch.from_numpy(normal(4, 3, 3).astype(np.float32))
    grads = []
    for dtype in (torch.float32, torch.float64):
        leaf = roots.to(dtype).requires_grad_()
        mus = of.Gaussian(torch.zeros(4, 3, dtype=dtype), root=leaf)
        root = of.transport.bures_barycentre(mus).measure.root
        grads.append(torch.autograd.grad((root @ root.mT)[0, 1], leaf)[0].double())
    assert float((grads[0] - grads[1]).abs().max()) < 1e-5 * float(grads[1].abs().max())
    leaf = roots.clone().requires_grad_()
    root = of.transport.bures_barycentre(of.Gaussian(torch.zeros(4, 3), root=leaf)).measure.root
    with pytest.raises(of.errors.DerivativeError, match="depends on the root"):
        root[0, 1].backward()
