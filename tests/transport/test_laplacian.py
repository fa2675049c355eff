"""Newton's equation of sharp plans: both ways to solve it, against a dense pseudo-inverse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import otflow as of
from otflow.transport.entropic import laplacian, scaling


def plan(seed: int, n: int, m: int, sharp: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that are probabilities, and the weights of rows and columns."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.rand(k, 2, generator=generator, dtype=torch.float64) for k in (n, m))
    P = torch.softmax(-sharp * torch.cdist(x, y) ** 2, -1)
    a = torch.softmax(torch.randn(n, generator=generator, dtype=torch.float64), -1)
    return P, a, a @ P


def exact(P: Tensor, a: Tensor, b: Tensor, rhs: Tensor) -> Tensor:
    L = torch.diag(b) - P.mT @ (a[:, None] * P)
    return torch.linalg.lstsq(L, rhs[:, None], driver="gelsd").solution[:, 0]


@pytest.mark.parametrize("sharp", [1.0, 30.0, 200.0])
@pytest.mark.parametrize("way", ["factorised", "sparse"])
def test_the_step_solves_the_laplacian_system_up_to_a_constant(
    way: str, sharp: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "sparse":
        monkeypatch.setattr(laplacian, "FACTORISE", 0)
    P, a, b = plan(1, 30, 20, sharp)
    rhs = b * torch.randn(20, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rhs = rhs - b * rhs.sum()
    d = laplacian.solve(P[None], a[None], b[None], rhs[None])
    assert d is not None
    residual = (torch.diag(b) - P.mT @ (a[:, None] * P)) @ d[0] - rhs
    assert float(residual.norm() / rhs.norm()) < (1e-8 if way == "factorised" else 2e-3)
    if way == "factorised" and sharp < 100:
        gap = d[0] - exact(P, a, b, rhs)
        assert float((gap - gap.mean()).abs().max()) < 1e-6 * float(gap.abs().max() + d.abs().max())


def test_degrees_of_columns_that_hardly_see_each_other_keep_their_digits() -> None:
    """Two columns coupled by 1e-12: as a difference of diagonals their degree would be noise."""
    t = 1e-12
    P = torch.tensor([[[1 - t, t], [t, 1 - t]]], dtype=torch.float64)
    a = torch.full((1, 2), 0.5, dtype=torch.float64)
    rhs = torch.tensor([[1e-13, -1e-13]], dtype=torch.float64)
    d = laplacian.solve(P, a, a, rhs)
    assert d is not None
    # The edge weighs t (1 - t), and a ridge of 1e-13 times the weight of a column is added.
    assert float(d[0, 0] - d[0, 1]) == pytest.approx(2e-13 / (2 * t + 0.5e-13), rel=1e-3)


def test_columns_without_mass_do_not_move() -> None:
    P, a, _ = plan(3, 6, 4, 5.0)
    P = torch.cat([P, torch.zeros(6, 1, dtype=torch.float64)], -1)
    b = a @ P
    rhs = torch.tensor([0.1, -0.1, 0.0, 0.0, 0.0], dtype=torch.float64)
    d = laplacian.solve(P[None], a[None], b[None], rhs[None])
    assert d is not None
    assert bool(torch.isfinite(d).all())


def test_a_large_plan_that_is_not_sparse_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplacian, "FACTORISE", 0)
    monkeypatch.setattr(laplacian, "EDGES", 10)
    P, a, b = plan(4, 9, 8, 1.0)
    assert laplacian.solve(P[None], a[None], b[None], b[None] * 0) is None


@pytest.mark.parametrize("eps", [1e-2, 1e-3])
def test_sharp_problems_converge_through_the_sparse_system(
    eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laplacian, "FACTORISE", 0)
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(2, 150, 3, generator=generator, dtype=torch.float64)
    soft = of.sinkhorn(of.Particles(x), of.Particles(y), eps)
    assert soft.status == "ok"
    columns = soft.plan.sum(0)
    assert float((columns - 1 / 150).abs().sum()) <= 1.1e-9


def test_without_any_direct_step_the_status_is_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "ABSORB", 0)
    generator = torch.Generator().manual_seed(6)
    x, y = torch.randn(2, 60, 4, generator=generator, dtype=torch.float64)
    soft = of.sinkhorn(of.Particles(x), of.Particles(y), of.Sinkhorn(1e-3, max_iter=300), on_failure="return")
    error = float((soft.plan.sum(0) - 1 / 60).abs().sum())
    assert error == pytest.approx(float(soft.error), rel=1e-6, abs=1e-11)
    assert (soft.status == "ok") == (error <= 1e-9)
