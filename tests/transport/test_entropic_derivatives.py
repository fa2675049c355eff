"""Derivatives of entropic transport: by finite differences, from the plan, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import otflow as of
from otflow.transport.entropic import sinkhorn as entropic
from otflow.transport.entropic.costs import BilinearCost, PowerCost
from otflow.transport.entropic.sinkhorn import sinkhorn, sinkhorn_divergence
from tests.regimes import regime
from tests.samples import with_options

A = [[0.5, 1.0], [-0.3, 0.2]]


def uneven(x: Tensor, y: Tensor) -> Tensor:
    return (x - 2 * y).square().sum(-1) + x[..., 0] * y[..., 1] ** 2


COSTS: dict[str, Any] = {
    "squared": None,
    "root": PowerCost(0.5),
    "distance": PowerCost(1),
    "cubed": PowerCost(3),
    "bilinear": BilinearCost(A),
    "function": uneven,
}
SMOOTH = ("squared", "bilinear")  # have second derivatives
PATHS = {"dense": ("dense", 2**22), "streaming": ("streaming", 2**22), "products": ("dense", 0)}
WAYS = [(name, how) for name in COSTS for how in PATHS if how != "products" or name in SMOOTH]
EPS = 0.7


@contextmanager
def path(name: str) -> Iterator[None]:
    """In memory or in tiles, from differences of points or from scalar products."""
    how, differences = PATHS[name]
    with regime(how), pytest.MonkeyPatch.context() as patch:
        patch.setattr(entropic, "DIFFERENCES", differences)
        yield


def leaves(n: int = 3, m: int = 4, *, seed: int = 1) -> tuple[Tensor, ...]:
    """x, w, y, v with gradients; the weights are not normalised."""
    rng = np.random.default_rng(seed)
    arrays = (
        rng.standard_normal((n, 2)),
        rng.uniform(0.3, 1, n),
        rng.standard_normal((m, 2)),
        rng.uniform(0.3, 1, m),
    )
    return tuple(torch.from_numpy(a).requires_grad_() for a in arrays)


def measure(x: Tensor, w: Tensor) -> of.Particles:
    return of.Particles(x, w / w.sum(-1, keepdim=True))


def value(cost: Any, **options: Any) -> Callable[..., Tensor]:
    def f(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return sinkhorn(
            measure(x, w), measure(y, v), cost=cost, **with_options(EPS, tol=1e-12, **options)
        ).regularised_cost

    return f


def divergence(cost: Any) -> Callable[..., Tensor]:
    def f(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return sinkhorn_divergence(measure(x, w), measure(y, v), of.Sinkhorn(EPS, tol=1e-12), cost=cost)

    return f


# --- first derivatives ------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "how"), WAYS)
def test_the_cost_has_a_gradient_in_points_and_weights(name: str, how: str) -> None:
    with path(how):
        assert gradcheck(value(COSTS[name]), leaves(), fast_mode=True)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["squared-*", "root-dense", "bilinear-*", "distance-streaming", "function-dense"])
@pytest.mark.parametrize(("name", "how"), WAYS)
def test_the_divergence_has_a_gradient_in_points_and_weights(name: str, how: str) -> None:
    with path(how):
        assert gradcheck(divergence(COSTS[name]), leaves(), fast_mode=True)


@pytest.mark.parametrize("how", ["dense", "streaming"])
@pytest.mark.parametrize("name", ["squared", "distance", "function"])
def test_gradients_are_right_in_each_argument_alone(name: str, how: str) -> None:
    all_ = leaves()
    with path(how):
        whole = torch.autograd.grad(value(COSTS[name])(*all_), all_)
        for i, expected in enumerate(whole):
            args = [z.detach().requires_grad_(j == i) for j, z in enumerate(all_)]
            (alone,) = torch.autograd.grad(value(COSTS[name])(*args), args[i])
            torch.testing.assert_close(alone, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("space", [of.Sphere(), of.Torus(2.0)], ids=["sphere", "torus"])
@pytest.mark.parametrize("p", [1, 2])
def test_geodesic_costs_have_gradients(p: float, space: of.measures.Space) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        if isinstance(space, of.Sphere):
            x, y = (z / z.norm(dim=-1, keepdim=True) for z in (x, y))
        mu, nu = of.Particles(x, space=space), of.Particles(y, space=space)
        return sinkhorn(mu, nu, of.Sinkhorn(EPS, tol=1e-12), cost=PowerCost(p)).regularised_cost

    x, _, y, _ = leaves()
    assert gradcheck(f, (x, y), fast_mode=True)


def test_a_density_has_a_gradient() -> None:
    axis, y = np.linspace(-1, 1, 5), leaves()[2].detach()

    def f(rho: Tensor) -> Tensor:
        mu = of.Grid(rho / rho.sum() / 0.5, [axis])
        return sinkhorn(mu, of.Particles(y[:, :1]), of.Sinkhorn(EPS, tol=1e-12)).regularised_cost

    assert gradcheck(f, torch.rand(5, dtype=torch.float64).add(0.5).requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("how", PATHS)
def test_a_cloud_to_itself_has_a_gradient(how: str) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        mu = measure(x, w)
        return sinkhorn(mu, mu, of.Sinkhorn(EPS, tol=1e-12)).regularised_cost

    with path(how):
        assert gradcheck(f, leaves()[:2], fast_mode=True)


@pytest.mark.parametrize("how", PATHS)
def test_gradients_of_a_batch_are_summed_over_what_is_shared(how: str) -> None:
    x, w, y, v = leaves()
    several = torch.stack([x, 0.5 * x, 2 * x]).detach().requires_grad_()
    with path(how):
        total = value(None)(several, w.expand(3, 3), y, v).sum()
        batch = torch.autograd.grad(total, (several, w, y, v))
        alone = [torch.autograd.grad(value(None)(several[i], w, y, v), (several, w, y, v)) for i in range(3)]
    for together, *parts in zip(batch, *alone, strict=True):
        torch.testing.assert_close(together, torch.stack(parts).sum(0), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("how", PATHS)
@pytest.mark.parametrize("eps", [1.0, 0.05])
def test_the_gradient_of_the_squared_distance_is_the_barycentric_displacement(eps: float, how: str) -> None:
    """d/dx_i = 2 a_i (x_i - sum_j P_ij y_j / a_i)."""
    x, w, y, v = leaves(6, 7)
    with path(how):
        plan = sinkhorn(measure(x, w), measure(y, v), of.Sinkhorn(eps, tol=1e-11))
        (gradient,) = torch.autograd.grad(plan.regularised_cost, x)
        expected = 2 * (w / w.sum())[:, None] * (x - plan.barycentric())
    torch.testing.assert_close(gradient, expected.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("how", PATHS)
def test_the_gradient_in_weights_is_the_potential(how: str) -> None:
    """Up to a constant, which weights that sum to one do not see."""
    x, _, y, _ = leaves()
    w = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64, requires_grad=True)
    with path(how):
        plan = sinkhorn(of.Particles(x, w), of.Particles(y), of.Sinkhorn(EPS, tol=1e-12))
        (gradient,) = torch.autograd.grad(plan.regularised_cost, w)
    expected = plan.f - (w * plan.f).sum()
    torch.testing.assert_close(gradient - (w * gradient).sum(), expected.detach(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3])
def test_gradients_are_finite_where_points_coincide(p: float) -> None:
    x = leaves()[0].detach()
    y = torch.cat([x[:2], x[:1], leaves()[2].detach()])
    for f in (
        lambda *a: sinkhorn(*a, EPS, cost=PowerCost(p)).regularised_cost,
        lambda *a: sinkhorn_divergence(*a, EPS, cost=PowerCost(p)),
    ):
        own, other = x.clone().requires_grad_(), y.clone().requires_grad_()
        gradients = torch.autograd.grad(f(of.Particles(own), of.Particles(other)), (own, other))
        assert all(bool(torch.isfinite(g).all()) for g in gradients)


@pytest.mark.parametrize(("name", "how"), WAYS)
def test_gradients_without_mass_are_finite_and_those_of_the_rest(name: str, how: str) -> None:
    x, _, y, _ = leaves(4, 4)
    w = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([0.3, 0.5, 0.0, 0.2], dtype=torch.float64, requires_grad=True)
    heavy, rest = w.detach() > 0, v.detach() > 0
    with path(how):
        for f in (value(COSTS[name]), divergence(COSTS[name])):
            gradients = torch.autograd.grad(f(x, w, y, v), (x, w, y, v))
            few = [z.detach()[k].requires_grad_() for z, k in ((x, heavy), (w, heavy), (y, rest), (v, rest))]
            expected = torch.autograd.grad(f(*few), few)
            assert all(bool(torch.isfinite(g).all()) for g in gradients)
            for g, e, keep in zip(gradients, expected, (heavy, heavy, rest, rest), strict=True):
                torch.testing.assert_close(g[keep], e, rtol=1e-6, atol=1e-8)
            assert float(gradients[0][~heavy].abs().max()) == float(gradients[2][~rest].abs().max()) == 0


@pytest.mark.parametrize("scale", [1e-120, 1e120])
def test_gradients_are_scale_free(scale: float) -> None:
    x, w, y, v = (z.detach() for z in leaves())

    def gradient(s: float, f: Callable[..., Tensor]) -> Tensor:
        own = (s * x).requires_grad_()
        return torch.autograd.grad(f(measure(own, w), measure(s * y, v), EPS * s * s), own)[0] / s

    for f in (lambda *a: sinkhorn(*a).regularised_cost, sinkhorn_divergence):
        torch.testing.assert_close(gradient(scale, f), gradient(1.0, f), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spread", [1e-4, 1e-9, 1e-12])
def test_gradients_keep_their_digits_in_tight_clusters(spread: float) -> None:
    """2 sum_j P_ij (x_i - y_j), where the differences are small and the points are not."""
    rng = np.random.default_rng(1)
    at = np.repeat([[0.0, 0.0], [1.0, 0.0]], 6, 0)
    x, y = (at + spread * rng.standard_normal((12, 2)) for _ in range(2))
    own = torch.from_numpy(x).requires_grad_()
    plan = sinkhorn(of.Particles(own), of.Particles(y), 1e-3)
    (gradient,) = torch.autograd.grad(plan.regularised_cost, own)
    expected = 2 * np.einsum("ij,ijd->id", plan.plan.numpy(), x[:, None] - y)
    assert np.abs(gradient.numpy() - expected).max() < 1e-6 * np.abs(expected).max()


def test_single_precision_has_gradients_of_its_own_precision() -> None:
    x, _, y, _ = (z.detach() for z in leaves())
    single = x.float().requires_grad_()
    nu = of.Particles(y.float())
    (gradient,) = torch.autograd.grad(
        sinkhorn(of.Particles(single), nu, of.Sinkhorn(EPS, tol=1e-7)).regularised_cost, single
    )
    own = single.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(
        sinkhorn(of.Particles(own), of.Particles(nu.x.double()), EPS).regularised_cost, own
    )
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient, exact.float(), rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_divergence_with_itself_is_zero() -> None:
    x, w, _, _ = leaves()
    mu = measure(x, w)
    for gradient in torch.autograd.grad(sinkhorn_divergence(mu, mu, EPS), (x, w)):
        assert float(gradient.abs().max()) == 0


@pytest.mark.parametrize("h", [1e-7, 1e-9, 1e-11])
def test_the_gradient_of_a_divergence_survives_where_rounding_hides_its_value(h: float) -> None:
    """S(mu + h, mu) = |h|^2, so the gradients in the atoms sum to 2 h, though 1e-18 may round below zero."""
    for seed in range(6):
        x, w, _, _ = (z.detach() for z in leaves(4, 4, seed=seed))
        own = (x + h).requires_grad_()
        value = sinkhorn_divergence(measure(own, w), measure(x, w), of.Sinkhorn(EPS, tol=1e-14))
        (gradient,) = torch.autograd.grad(value, own)
        assert value.item() >= 0
        torch.testing.assert_close(gradient.sum(0), torch.full((2,), 2 * h).double(), rtol=1e-2, atol=1e-14)


def test_nothing_is_recorded_where_nothing_asks_for_it() -> None:
    x, w, y, v = leaves()
    with torch.no_grad():
        assert not value(None)(x, w, y, v).requires_grad
    assert not value(None)(*(z.detach() for z in (x, w, y, v))).requires_grad


@pytest.mark.parametrize("moving", [False, True])
def test_only_the_regularised_cost_has_derivatives(moving: bool) -> None:
    """Others would need those of the potentials; half a derivative is worse than none."""
    learned = BilinearCost(torch.tensor(A, dtype=torch.float64, requires_grad=True))
    x, w, y, v = (z.detach().requires_grad_(moving) for z in leaves())
    for cost in (None, PowerCost(1), learned):
        plan = sinkhorn(measure(x, w), measure(y, v), EPS, cost=cost)
        for half in (plan.cost, plan.plan, plan.barycentric(), plan.f, plan.g):
            assert not half.requires_grad


@pytest.mark.parametrize("f", [value, divergence], ids=["cost", "divergence"])
@pytest.mark.parametrize("moving", [False, True])
def test_the_matrix_of_a_bilinear_cost_has_a_gradient(moving: bool, f: Callable[..., Any]) -> None:
    args = [z.detach().requires_grad_(moving) for z in leaves()]
    matrix = torch.tensor(A, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda a: f(BilinearCost(a))(*args), matrix, fast_mode=True)


@pytest.mark.parametrize("moving", [False, True])
def test_a_function_with_parameters_is_differentiated_or_refused(moving: bool) -> None:
    theta = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    args = [z.detach().requires_grad_(moving) for z in leaves()]
    f = value(lambda x, y: theta * (x - y).square().sum(-1))
    try:
        (slope,) = torch.autograd.grad(f(*args), theta, allow_unused=True)
    except of.errors.DerivativeError:
        return
    h = 1e-5
    up, down = (
        value(lambda x, y, t=t: t * (x - y).square().sum(-1))(*args).item() for t in (1.3 + h, 1.3 - h)
    )
    assert slope is not None  # torch takes this for zero
    assert slope.item() == pytest.approx((up - down) / (2 * h), rel=1e-6)


# --- forward mode -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "f", [value(None), divergence(None), value(PowerCost(1))], ids=["cost", "divergence", "distance"]
)
def test_forward_mode_is_right_or_refused(f: Callable[..., Tensor]) -> None:
    args = leaves()
    along = [torch.from_numpy(np.random.default_rng(i).standard_normal(z.shape)) for i, z in enumerate(args)]
    gradients = torch.autograd.grad(f(*args), args)
    expected = sum((g * u).sum() for g, u in zip(gradients, along, strict=True))
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(z.detach(), u) for z, u in zip(args, along, strict=True)]
        try:
            tangent = forward_ad.unpack_dual(f(*duals)).tangent
        except (of.errors.DerivativeError, NotImplementedError):
            return
    assert tangent is not None  # torch takes this for zero
    torch.testing.assert_close(tangent, expected, rtol=1e-7, atol=1e-9)


# --- second derivatives -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", PATHS)
@pytest.mark.parametrize("name", SMOOTH)
def test_the_cost_has_second_derivatives(name: str, how: str) -> None:
    with path(how):
        assert gradgradcheck(value(COSTS[name]), leaves(), fast_mode=True, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["bilinear-dense"])
@pytest.mark.parametrize("how", ["dense", "streaming"])
@pytest.mark.parametrize("name", SMOOTH)
def test_the_divergence_has_second_derivatives(name: str, how: str) -> None:
    with path(how):
        assert gradgradcheck(divergence(COSTS[name]), leaves(), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("argument", range(4))
@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_exist_in_each_argument_alone(name: str, argument: int) -> None:
    constant = [z.detach() for z in leaves()]

    def f(z: Tensor) -> Tensor:
        return value(COSTS[name])(*(z if i == argument else c for i, c in enumerate(constant)))

    assert gradgradcheck(f, constant[argument].clone().requires_grad_(), atol=1e-4)


def test_the_hessian_is_that_of_finite_differences() -> None:
    x, w, y, v = (z.detach() for z in leaves())
    y, v = y.requires_grad_(), v.requires_grad_()

    def gradient(z: Tensor) -> Tensor:
        z = z.detach().requires_grad_()
        return torch.autograd.grad(value(None)(z, w, y, v), z)[0]

    H = torch.autograd.functional.hessian(lambda z: value(None)(z, w, y, v), x).reshape(6, 6)
    h = 1e-4
    steps = h * torch.eye(6, dtype=torch.float64).reshape(6, 3, 2)
    expected = torch.stack([(gradient(x + s) - gradient(x - s)).flatten() / (2 * h) for s in steps])
    torch.testing.assert_close(H, H.mT, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(H, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_a_divergence_is_curved_where_it_is_least(seed: int) -> None:
    """Whether its value at mu = nu comes out as 1e-17 or as -1e-17."""
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((4, 1)))
    nu = of.Particles(x.clone().requires_grad_())
    H = torch.autograd.functional.hessian(
        lambda z: sinkhorn_divergence(of.Particles(z), nu, of.Sinkhorn(0.5, tol=1e-13)), x
    )
    assert H.sum().item() == pytest.approx(2.0, rel=1e-6)  # S(mu + h, mu) = h^2


@pytest.mark.parametrize("how", ["dense", "streaming"])
@pytest.mark.parametrize("name", [name for name in COSTS if name not in SMOOTH])
def test_other_second_derivatives_are_refused(name: str, how: str) -> None:
    args = leaves()
    with path(how):
        for f in (value(COSTS[name]), divergence(COSTS[name])):
            with pytest.raises(of.errors.DerivativeError, match="second derivatives"):
                torch.autograd.grad(f(*args), args, create_graph=True)


def test_second_derivatives_without_mass_are_refused() -> None:
    x, _, y, v = leaves()
    w = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    with pytest.raises(of.errors.DerivativeError, match="positive weights"):
        torch.autograd.grad(value(None)(x, w, y, v), x, create_graph=True)


def test_third_derivatives_are_refused() -> None:
    args = leaves()
    (first,) = torch.autograd.grad(value(None)(*args), args[0], create_graph=True)
    with pytest.raises(of.errors.DerivativeError):
        torch.autograd.grad(first.square().sum(), args[0], create_graph=True)
