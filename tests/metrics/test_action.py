"""What a move costs in a twisted metric, and what a path does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor
from torch.autograd import gradcheck

import otflow as of
from otflow.base.errors import InputError
from otflow.metrics import Partition, Twisted, Wasserstein, path_action

M = np.array([[2.0, 0.3], [0.3, 1.0]])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


def cloud(n: int = 4, space: of.measures.Space | None = None, batch: tuple[int, ...] = ()) -> of.Particles:
    x, w = normal(*batch, n, 2 if space is None else 3), torch.softmax(normal(n, seed=1), -1)
    return of.Particles(x if space is None else x / x.norm(dim=-1, keepdim=True), w, space=space)


def exact(mu: of.Particles, u: Tensor, A: Tensor, matrix: np.ndarray | None = None) -> float:
    """The integral by scipy, with the path, the weight and the speed written out."""
    size = u if matrix is None else u @ torch.as_tensor(matrix)

    def rate(s: float) -> float:
        if isinstance(mu.space, of.Sphere):
            r = s * u.norm(dim=-1, keepdim=True)
            x = torch.cos(r) * mu.x + torch.sin(r) / r * s * u
        else:
            x = mu.x + s * u
        a = torch.exp((x @ A.mT) @ x.mT) @ mu.w
        return float((mu.w * a * (u * size).sum(-1)).sum())

    return float(integrate.quad(rate, 0, 1, epsabs=0, epsrel=1e-12)[0])


@pytest.mark.parametrize("matrix", [None, M])
def test_the_full_action_is_the_integral_along_the_move(matrix: np.ndarray | None) -> None:
    mu, u, A = cloud(), 0.4 * normal(4, 2, seed=2), 0.7 * normal(2, 2, seed=3)
    metric = Twisted(Partition(A), matrix=matrix, frozen=False)
    assert metric.action(mu, of.Tangent([u])).item() == pytest.approx(exact(mu, u, A, matrix), rel=1e-7)


def test_on_the_sphere_moves_are_great_circles() -> None:
    mu = cloud(space=of.Sphere())
    u, A = mu.tangent(of.Tangent([0.2 * normal(4, 3, seed=2)]))[0], normal(3, 3, seed=3)
    action = Twisted(Partition(A), frozen=False).action(mu, of.Tangent([u])).item()
    assert action == pytest.approx(exact(mu, u, A), rel=1e-8)


def test_a_frozen_action_is_the_inner_product_and_agrees_for_small_moves() -> None:
    mu, u = cloud(), of.Tangent([normal(4, 2, seed=2)])
    frozen, full = (Twisted(Partition(np.eye(2)), frozen=frozen) for frozen in (True, False))
    assert torch.equal(frozen.action(mu, u), frozen.inner(mu, u, u))
    gaps = [(full.action(mu, h * u) / frozen.action(mu, h * u) - 1).item() for h in (1e-3, 5e-4)]
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=1e-2)  # first order
    torch.testing.assert_close(Twisted(matrix=M, frozen=False).action(mu, u), Twisted(matrix=M).action(mu, u))


def test_actions_take_batches_one_by_one() -> None:
    mu, u, metric = cloud(batch=(3,)), normal(3, 4, 2, seed=2), Twisted(Partition(0.1 * M), frozen=False)
    together = metric.action(mu, of.Tangent([u]))
    alone = torch.stack([metric.action(mu[i], of.Tangent([u[i]])) for i in range(3)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("space", [None, of.Sphere()])
def test_the_full_action_has_derivatives(space: of.measures.Space | None) -> None:
    mu = cloud(space=space)
    metric = Twisted(Partition(0.3 * torch.eye(mu.d, dtype=mu.dtype)), frozen=False)
    u = mu.tangent(of.Tangent([0.3 * normal(4, mu.d, seed=2)]))[0].requires_grad_()
    assert gradcheck(lambda u: metric.action(mu, mu.tangent(of.Tangent([u]))), u)


def test_gaussians_pay_by_the_matrix_alone() -> None:
    mu = of.Gaussian([0.0, 1.0], root=np.eye(2))
    u = of.Tangent([normal(2), normal(2, 2, seed=1)])
    got = Twisted(matrix=M, frozen=False).action(mu, u).item()
    m = torch.as_tensor(M)
    assert got == pytest.approx((u[0] @ m @ u[0] + torch.trace(u[1].mT @ m @ u[1])).item(), rel=1e-13)
    with pytest.raises(InputError, match="constant matrix"):
        Twisted(Partition(np.eye(2)), frozen=False).action(mu, u)


# --- paths -----------------------------------------------------------------------------------------------


def circle(n: int) -> list[of.Measure]:
    angles = np.linspace(0, math.pi / 2, n)
    return [of.Particles([[math.cos(a), math.sin(a)]]) for a in angles]


def test_the_action_of_a_path_tends_to_that_of_a_curve() -> None:
    assert path_action(circle(201), Wasserstein()).item() == pytest.approx(math.pi**2 / 4, rel=1e-5)
    weight: Callable[[Any, Tensor], Tensor] = lambda mu, x: 1 + x[..., 0] ** 2  # noqa: E731
    expected = math.pi / 2 * integrate.quad(lambda a: 1 + math.cos(a) ** 2, 0, math.pi / 2)[0]
    assert path_action(circle(201), Twisted(weight, frozen=False)).item() == pytest.approx(expected, rel=1e-4)


def test_a_slower_path_costs_less() -> None:
    path = circle(11)
    fast, slow = (path_action(path, Wasserstein(), ts=np.linspace(0, t, 11)) for t in (1, 3))
    torch.testing.assert_close(fast, 3 * slow)


def test_cutting_a_straight_path_changes_nothing() -> None:
    mu, u = cloud(), of.Tangent([0.3 * normal(4, 2, seed=2)])
    metric = Twisted(Partition(np.eye(2)), frozen=False)
    cut = path_action([mu.exp(s * u) for s in (0.0, 0.2, 0.7, 1.0)], metric, ts=[0, 0.2, 0.7, 1])
    torch.testing.assert_close(cut, metric.action(mu, u), rtol=1e-8, atol=0)


def test_gaussian_paths_are_joined_by_optimal_maps() -> None:
    mu, nu = of.Gaussian([0.0, 0.0], root=np.eye(2)), of.Gaussian([1.0, 0.0], root=[[0.0, -3.0], [1.0, 0.0]])
    assert path_action([mu, nu], Wasserstein()).item() == pytest.approx(1 + 4, rel=1e-13)
    with pytest.raises(InputError, match=r"nu\.root\.shape"):
        path_action([of.Gaussian([0.0, 0.0], root=[[1.0], [0.0]]), nu], Wasserstein())


def test_paths_that_are_none_are_refused() -> None:
    mu = cloud()
    for measures, ts, words in (
        ([mu], None, "two ends"),
        ([mu, mu], [0.0, 0.0], "increasing"),
        ([mu, mu], [0.0, 1.0, 2.0], "increasing"),
        ([mu, cloud(3)], None, "same atoms"),
        ([mu, of.Particles(mu.x)], None, "same atoms"),
        ([mu, of.Gaussian([0.0, 0.0], root=np.eye(2))], None, "same atoms"),
    ):
        with pytest.raises(InputError, match=words):
            path_action(measures, Wasserstein(), ts=ts)
    x = (np.arange(4) + 0.5) / 4
    with pytest.raises(InputError, match="Particles or Gaussians"):
        path_action([of.Grid(np.ones(4), [x])] * 2, Wasserstein())
    with pytest.raises(InputError, match="metric"):
        path_action([mu, mu], Wasserstein)  # type: ignore[arg-type]
