"""Spaces: projections, moves, geodesics and distances, at ordinary points and at the worst ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import otflow as of
from otflow.base.spaces import norm, normalise
from tests.samples import normal, slope, unit

SPACES = {"euclidean": of.Euclidean(), "sphere": of.Sphere(), "torus": of.Torus(2.0)}


def points(name: str, n: int = 6, d: int = 3, seed: int = 0) -> Tensor:
    return torch.tensor(unit(n, d, seed=seed) if name == "sphere" else np.mod(normal(n, d, seed=seed), 2.0))


def tangents(name: str, x: Tensor, size: float = 1.0, seed: int = 9) -> Tensor:
    return SPACES[name].tangent(x, torch.tensor(size * normal(*x.shape, seed=seed)))


# --- laws of all spaces ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
def test_the_tangent_projection_is_idempotent_and_symmetric(name: str) -> None:
    space, x = SPACES[name], points(name)
    u, v = (torch.tensor(normal(6, 3, seed=s)) for s in (1, 2))
    torch.testing.assert_close(space.tangent(x, space.tangent(x, u)), space.tangent(x, u))
    torch.testing.assert_close((space.tangent(x, u) * v).sum(-1), (u * space.tangent(x, v)).sum(-1))


@pytest.mark.parametrize("name", SPACES)
def test_a_geodesic_has_the_length_of_its_velocity(name: str) -> None:
    space, x = SPACES[name], points(name)
    u = tangents(name, x, size=0.3)
    torch.testing.assert_close(space.distance(x, space.exp(x, u)), norm(u), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("size", [1e-8, 0.3])
def test_the_logarithm_undoes_the_geodesic(name: str, size: float) -> None:
    space, x = SPACES[name], points(name)
    u = tangents(name, x, size=size)
    torch.testing.assert_close(space.log(x, space.exp(x, u)), u, rtol=1e-7, atol=1e-15)
    assert bool((space.log(x, x) == 0).all())


@pytest.mark.parametrize("name", SPACES)
def test_a_geodesic_can_be_walked_in_two_halves(name: str) -> None:
    space, x = SPACES[name], points(name)
    u = tangents(name, x, size=0.3)
    middle, end = space.exp(x, u / 2), space.exp(x, u)
    torch.testing.assert_close(space.distance(middle, end), norm(u) / 2, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", SPACES)
def test_a_retraction_agrees_with_the_geodesic_to_second_order(name: str) -> None:
    space, x = SPACES[name], points(name)
    u, steps = tangents(name, x), 2.0 ** -np.arange(4, 10)
    gaps = [
        space.distance(space.retract(x, float(h) * u), space.exp(x, float(h) * u)).max().item() for h in steps
    ]
    if name == "sphere":
        assert slope(steps, gaps) == pytest.approx(3.0, abs=0.05)
    else:
        assert max(gaps) < 1e-15


@pytest.mark.parametrize("name", SPACES)
def test_no_move_ends_outside_the_space(name: str) -> None:
    space, x = SPACES[name], points(name)
    for size in (0.0, 1e-12, 1.0, 30.0):
        u = tangents(name, x, size)
        for y in (space.retract(x, u), space.exp(x, u)):
            torch.testing.assert_close(space.check(y), y, rtol=0, atol=3e-16)


@pytest.mark.parametrize("name", SPACES)
def test_moving_by_zero_stays(name: str) -> None:
    space, x = SPACES[name], points(name)
    torch.testing.assert_close(space.exp(x, torch.zeros_like(x)), x, rtol=0, atol=3e-16)
    torch.testing.assert_close(space.retract(x, torch.zeros_like(x)), x, rtol=0, atol=3e-16)


@pytest.mark.parametrize("name", SPACES)
def test_distances_are_symmetric_and_satisfy_the_triangle_inequality(name: str) -> None:
    space = SPACES[name]
    x, y, z = (points(name, seed=s) for s in range(3))
    torch.testing.assert_close(space.distance(x, y), space.distance(y, x))
    assert bool((space.distance(x, z) <= space.distance(x, y) + space.distance(y, z) + 1e-14).all())
    assert bool((space.distance(x, x) == 0).all())


@pytest.mark.parametrize("name", SPACES)
def test_the_gradient_of_a_distance_is_finite_where_points_coincide(name: str) -> None:
    space, x = SPACES[name], points(name)
    y = x.clone().requires_grad_()
    space.distance(x, y).sum().backward()
    assert bool(torch.isfinite(y.grad).all())


@pytest.mark.parametrize("name", SPACES)
def test_the_gradient_of_a_distance_is_a_unit_vector(name: str) -> None:
    space, x = SPACES[name], points(name)
    y = points(name, seed=5).requires_grad_()
    space.distance(x, y).sum().backward()
    torch.testing.assert_close(norm(space.tangent(y.detach(), y.grad)), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("gap", [1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("name", SPACES)
def test_the_gradient_of_a_distance_is_finite_within_a_tight_cluster(name: str, gap: float) -> None:
    space, x = SPACES[name], points(name)
    y = space.exp(x, tangents(name, x, gap)).requires_grad_()
    space.distance(x, y).sum().backward()
    assert bool(torch.isfinite(y.grad).all())
    torch.testing.assert_close(norm(y.grad), torch.ones(6, dtype=torch.float64), rtol=1e-3, atol=0)


# --- the sphere --------------------------------------------------------------------------------------


def test_tangents_of_the_sphere_are_orthogonal_to_the_point() -> None:
    x = points("sphere")
    u = of.Sphere().tangent(x, torch.tensor(normal(6, 3)))
    assert float((x * u).sum(-1).abs().max()) < 1e-15


@pytest.mark.parametrize("angle", [1e-12, 1e-8, 1e-3, 1.0, math.pi / 2, 3.0, math.pi - 1e-3, math.pi - 1e-9])
def test_angles_are_accurate_near_and_far(angle: float) -> None:
    x, y = (
        torch.tensor([1.0, 0.0]).double(),
        torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64),
    )
    assert of.Sphere().distance(x, y).item() == pytest.approx(angle, rel=1e-11)


def test_antipodes_are_at_distance_pi() -> None:
    x = points("sphere")
    torch.testing.assert_close(of.Sphere().distance(x, -x), torch.full((6,), math.pi, dtype=torch.float64))


def test_a_great_circle_returns_after_two_pi() -> None:
    x = points("sphere")
    u = normalise(tangents("sphere", x))
    torch.testing.assert_close(of.Sphere().exp(x, 2 * math.pi * u), x, rtol=0, atol=1e-14)
    torch.testing.assert_close(of.Sphere().exp(x, math.pi * u), -x, rtol=0, atol=1e-14)


def test_points_off_the_sphere_are_refused_with_their_distance() -> None:
    with pytest.raises(of.InputError, match=r"\| \|x\| - 1 \| = 0.0100.*normalise"):
        of.Sphere().check(torch.tensor([[1.01, 0.0]], dtype=torch.float64))


def test_points_within_rounding_of_the_sphere_are_put_on_it() -> None:
    x = of.Sphere().check(torch.tensor([[1 + 1e-8, 0.0]], dtype=torch.float64))
    assert x.tolist() == [[1.0, 0.0]]


def test_the_zero_vector_has_no_direction() -> None:
    assert bool(normalise(torch.zeros(3)).isnan().all())


# --- the torus ---------------------------------------------------------------------------------------

finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(finite, finite, st.floats(0.1, 100.0))
@settings(deadline=None, max_examples=60)
def test_positions_on_a_torus_lie_in_one_period(x: float, u: float, period: float) -> None:
    y = of.Torus(period).retract(
        torch.tensor([x], dtype=torch.float64), torch.tensor([u], dtype=torch.float64)
    )
    assert 0 <= y.item() < period


@pytest.mark.parametrize("x", [-1e-20, -0.0, 2.0, -2.0, 4.0, math.nextafter(2.0, 3.0), -5e-324])
def test_positions_at_the_seam_of_a_torus_are_wrapped(x: float) -> None:
    y = of.Torus(2.0).check(torch.tensor([x], dtype=torch.float64)).item()
    assert 0 <= y < 2.0
    assert min(y, 2 - y) < 1e-15


def test_the_short_way_round_a_torus_is_taken() -> None:
    x, y = torch.tensor([0.1, 1.0]).double(), torch.tensor([1.9, 1.5]).double()
    assert of.Torus(2.0).distance(x, y).item() == pytest.approx(math.hypot(0.2, 0.5), rel=1e-7)


@pytest.mark.parametrize("period", [0.0, -1.0, math.nan, math.inf])
def test_a_period_is_positive(period: float) -> None:
    with pytest.raises(of.InputError, match="period"):
        of.Torus(period)


# --- norms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_norms_do_not_under_or_overflow(scale: float) -> None:
    x = scale * torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert norm(x).item() == pytest.approx(5 * scale, rel=1e-14)


def test_the_gradient_of_a_norm_is_zero_at_zero_and_right_elsewhere() -> None:
    zero = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    norm(zero).backward()
    assert zero.grad.tolist() == [0.0, 0.0, 0.0]
    assert torch.autograd.gradcheck(norm, torch.tensor(normal(4, 3), requires_grad=True))
