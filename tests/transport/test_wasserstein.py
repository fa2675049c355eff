"""Wasserstein distances: the laws of a distance, its symmetries, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import otflow as of
from otflow.transport.exact.wasserstein import solve, wasserstein

Array = np.ndarray
SEEDS = st.integers(0, 2**32 - 1)
ORDERS = st.sampled_from([1.0, 1.5, 2.0, 3.0, 7.0])
DIMENSIONS = st.integers(1, 3)


def cloud(rng: np.random.Generator, d: int, clustered: bool = False) -> tuple[Array, Array]:
    """A few points and weights; possibly in clusters of the same three sites, some atoms without mass."""
    n = int(rng.integers(1, 9))
    x, w = rng.standard_normal((n, d)), rng.integers(0, 5, n).astype(float)
    if clustered:
        x = 1e-6 * x + np.arange(3.0)[rng.integers(0, 3, n)][:, None]
    w[0] += 1
    return x, w / w.sum()


def distance(mu: tuple[Array, Array], nu: tuple[Array, Array], p: float) -> float:
    return wasserstein(of.Particles(mu[0], w=mu[1]), of.Particles(nu[0], w=nu[1]), p).item()


@given(SEEDS, DIMENSIONS, ORDERS, st.booleans())
@settings(max_examples=40)
def test_it_is_symmetric_and_satisfies_the_triangle_inequality(
    seed: int, d: int, p: float, clustered: bool
) -> None:
    rng = np.random.default_rng(seed)
    mu, nu, rho = (cloud(rng, d, clustered) for _ in range(3))
    there, back = distance(mu, nu, p), distance(nu, mu, p)
    assert there == pytest.approx(back, rel=2e-9)
    assert there <= (distance(mu, rho, p) + distance(rho, nu, p)) * (1 + 1e-9)
    assert distance(mu, mu, p) == 0


@given(SEEDS, DIMENSIONS, ORDERS, st.floats(-100, 100))
@settings(max_examples=40)
def test_it_scales_with_the_points_over_two_hundred_decades(
    seed: int, d: int, p: float, power: float
) -> None:
    rng = np.random.default_rng(seed)
    mu, nu = cloud(rng, d), cloud(rng, d)
    s = 10.0**power
    scaled = distance((s * mu[0], mu[1]), (s * nu[0], nu[1]), p)
    assert scaled == pytest.approx(s * distance(mu, nu, p), rel=2e-9, abs=0)


@given(SEEDS, st.integers(1, 3), ORDERS)
@settings(max_examples=30)
def test_translations_and_rotations_change_nothing(seed: int, d: int, p: float) -> None:
    rng = np.random.default_rng(seed)
    mu, nu = cloud(rng, d), cloud(rng, d)
    q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    shift = 10 * rng.standard_normal(d)
    moved = distance((mu[0] @ q + shift, mu[1]), (nu[0] @ q + shift, nu[1]), p)
    assert moved == pytest.approx(distance(mu, nu, p), rel=1e-9, abs=1e-13)


@given(SEEDS, DIMENSIONS, ORDERS, st.booleans())
@settings(max_examples=40)
def test_splitting_and_permuting_atoms_changes_nothing(seed: int, d: int, p: float, clustered: bool) -> None:
    rng = np.random.default_rng(seed)
    (x, a), nu = cloud(rng, d, clustered), cloud(rng, d, clustered)
    expected = distance((x, a), nu, p)
    share = rng.random(len(a))
    order = rng.permutation(2 * len(a))
    split = np.concatenate([x, x])[order], np.concatenate([share * a, (1 - share) * a])[order]
    assert distance(split, nu, p) == pytest.approx(expected, rel=2e-9, abs=1e-18)


@given(SEEDS, DIMENSIONS)
@settings(max_examples=30)
def test_it_grows_with_the_order(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    mu, nu = cloud(rng, d), cloud(rng, d)
    values = np.array([distance(mu, nu, p) for p in (1, 1.3, 2, 4, 20, 200)])
    assert (np.diff(values) >= -2e-9 * values[1:]).all()
    assert values[-1] <= np.linalg.norm(mu[0][:, None] - nu[0], axis=-1).max() * (1 + 1e-12)


def test_translating_a_cloud_moves_it_by_the_translation_for_every_order() -> None:
    x = np.random.default_rng(0).standard_normal((30, 2))
    for p in (1, 2, 5):
        assert distance(
            (x, np.full(30, 1 / 30)), (x + np.array([3, 4]), np.full(30, 1 / 30)), p
        ) == pytest.approx(5)


# Derivatives


def points(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def on_circle(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], -1)


DISTANCES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "plane": lambda x, y, p: wasserstein(of.Particles(x), of.Particles(y), p),
    "line": lambda x, y, p: wasserstein(of.Particles(x[..., :1]), of.Particles(y[..., :1]), p),
    "torus": lambda x, y, p: wasserstein(*(of.Particles(z, space=of.Torus(2.0)) for z in (x, y)), p),
    "sphere": lambda x, y, p: wasserstein(
        *(of.Particles(on_circle(z[..., 0]), space=of.Sphere()) for z in (x, y)), p
    ),
}


@pytest.mark.thorough
@pytest.mark.slow(but_for=["plane-*", "line-1", "torus-2", "sphere-1.5"])
@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("name", DISTANCES)
def test_derivatives_in_the_points_are_right_to_second_order(name: str, p: float) -> None:
    x, y = points(2, 3, 2, seed=1), points(2, 2, seed=2)
    assert gradcheck(lambda x, y: DISTANCES[name](x, y, p), (x, y), check_forward_ad=True)
    assert gradgradcheck(lambda x, y: DISTANCES[name](x, y, p), (x, y))


@pytest.mark.parametrize("d", [1, 2])
def test_derivatives_in_the_weights_are_the_potentials(d: int) -> None:
    x, y = points(5, d, seed=3).detach(), points(4, d, seed=4).detach()

    def of_weights(u: Tensor, v: Tensor) -> Tensor:
        return wasserstein(of.Particles(x, w=u.softmax(-1)), of.Particles(y, w=v.softmax(-1)), 2)

    u, v = points(5, seed=5), points(4, seed=6)
    assert gradcheck(of_weights, (u, v), check_forward_ad=True)
    w = u.softmax(-1).detach().requires_grad_()
    (grad,) = torch.autograd.grad(wasserstein(of.Particles(x, w=w), of.Particles(y), 1), w)
    f = solve(of.Particles(x, w=w.detach()), of.Particles(y), 1).f
    torch.testing.assert_close(grad - grad.mean(), f - f.mean())


def test_derivatives_in_points_and_weights_together_are_right_and_mixed_second_ones_refused() -> None:
    def whole(u: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return wasserstein(of.Particles(x, w=u.softmax(-1)), of.Particles(y), 2)

    inputs = points(5, seed=7), points(5, 2, seed=8), points(4, 2, seed=9)
    assert gradcheck(whole, inputs, check_forward_ad=True)
    (slope,) = torch.autograd.grad(whole(*inputs), inputs[0], create_graph=True)
    with pytest.raises(of.errors.DerivativeError, match="weights and points together"):
        torch.autograd.grad(slope[0], inputs[1])
    with pytest.raises(of.errors.DerivativeError, match="weights and points together"):
        torch.autograd.grad(whole(*inputs), inputs[1], create_graph=True)
    u, x, y = (z.detach() for z in inputs)
    with (
        forward_ad.dual_level(),
        pytest.raises(of.errors.DerivativeError, match="weights and points together"),
    ):
        whole(forward_ad.make_dual(u, torch.ones_like(u)), x.requires_grad_(), y)
    with (
        forward_ad.dual_level(),
        pytest.raises(of.errors.DerivativeError, match="weights and points together"),
    ):
        whole(u.requires_grad_(), forward_ad.make_dual(x.detach(), torch.ones_like(x)), y)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("name", DISTANCES)
def test_the_derivative_is_zero_where_the_distance_is(name: str, p: float) -> None:
    x = points(5, 2, seed=1)
    d = DISTANCES[name](x, x.detach(), p)
    (grad,) = torch.autograd.grad(d, x)
    assert d.item() == 0
    assert grad.abs().max().item() == 0


@pytest.mark.parametrize("p", [1, 1.5])
def test_atoms_that_stay_have_slope_zero_and_no_second_derivative_below_order_two(p: float) -> None:
    x = torch.tensor([[0.0, 0.0], [5.0, 0.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    (grad,) = torch.autograd.grad(wasserstein(of.Particles(x), of.Particles(y), p), x, create_graph=True)
    assert grad[0].tolist() == [0, 0]
    assert torch.isfinite(grad).all()
    with pytest.raises(of.errors.DerivativeError, match="coincide"):
        torch.autograd.grad(grad.square().sum(), x)


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("name", DISTANCES)
def test_atoms_that_stay_have_second_derivatives_from_order_two(name: str, p: float) -> None:
    x = torch.tensor([[0.2, 0.2], [0.9, 0.3]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.2, 0.2], [0.8, 0.5]], dtype=torch.float64)
    assert gradgradcheck(lambda x: DISTANCES[name](x, y, p), (x,), atol=1e-3)  # finite differences of |x|^3


def test_the_gradient_has_the_dtype_and_shape_of_the_points() -> None:
    x = torch.rand(2, 3, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(wasserstein(of.Particles(x), of.Particles(x[0].detach() + 1)).sum(), x)
    assert (grad.dtype, grad.shape) == (torch.float32, x.shape)
