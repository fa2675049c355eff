"""Entropic transport, its debiased flow and its heat limit, against transport, quadrature and autograd."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
import otflow.closed_forms as cf
from otflow.base.errors import InputError
from otflow.measures import Gaussian
from otflow.papers.unified import printed
from otflow.transport import bures


def roots(seed: int, d: int, rank: int | None = None) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((4, d, rank or d)), rng.standard_normal((4, d, d))
    return torch.as_tensor(a), torch.as_tensor(b)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
@pytest.mark.parametrize("eps", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("rank", [None, 1])
def test_value_and_cross_covariance_are_those_of_transport(d: int, eps: float, rank: int | None) -> None:
    a, b = roots(d, d, rank)
    shift = torch.linspace(-1, 2, d, dtype=torch.float64)
    plan = of.sinkhorn(Gaussian(torch.zeros_like(shift), root=a), Gaussian(shift, root=b), eps)
    S1, S2 = a @ a.mT, b @ b.mT
    torch.testing.assert_close(
        cf.entropic_value(S1, S2, eps, shift=shift), plan.regularised_cost, rtol=1e-8, atol=1e-8
    )
    torch.testing.assert_close(cf.entropic_cross(S1, S2, eps), plan.cross, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("d", [1, 3])
def test_the_precision_of_the_plan_has_the_cost_beside_its_diagonal(d: int) -> None:
    a, b = roots(1, d)
    S1, S2, eps = (a @ a.mT)[0] + torch.eye(d), (b @ b.mT)[0] + torch.eye(d), 0.8
    C = cf.entropic_cross(S1, S2, eps)
    joint = torch.cat([torch.cat([S1, C], -1), torch.cat([C.mT, S2], -1)], -2)
    torch.testing.assert_close(torch.linalg.inv(joint)[:d, d:], -2 / eps * torch.eye(d, dtype=torch.float64))


def test_the_value_is_the_least_over_all_cross_covariances() -> None:
    s1, s2, eps = 0.7, 2.0, 0.9
    c = np.linspace(-1, 1, 200001)[1:-1] * np.sqrt(s1 * s2)
    cost = s1 + s2 - 2 * c - eps / 2 * np.log1p(-(c**2) / (s1 * s2))
    assert cf.entropic_value([[s1]], [[s2]], eps).item() == pytest.approx(cost.min(), rel=1e-9)
    assert cf.entropic_cross([[s1]], [[s2]], eps).item() == pytest.approx(c[cost.argmin()], abs=1e-5)


def test_without_regularisation_the_value_is_that_of_optimal_transport() -> None:
    a, b = roots(2, 3)
    S1, S2 = a @ a.mT, b @ b.mT
    torch.testing.assert_close(cf.entropic_value(S1, S2, 1e-10), bures(S1, S2) ** 2, rtol=1e-6, atol=1e-6)


def descent(root: Tensor, eps: float) -> Tensor:
    """dS/dt along the flow of the debiased divergence: x' = B x moves a root by -dE/dR."""
    root = root.detach().requires_grad_()
    zero = torch.zeros(*root.shape[:-1], dtype=torch.float64)
    target = Gaussian(zero, root=torch.eye(root.shape[-1], dtype=torch.float64))
    (slope,) = torch.autograd.grad(of.sinkhorn_divergence(Gaussian(zero, root=root), target, eps).sum(), root)
    return -(slope @ root.detach().mT + root.detach() @ slope.mT)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("eps", [0.1, 1.0, 10.0])
def test_the_debiased_flow_descends_the_divergence_and_the_printed_one_does_not(d: int, eps: float) -> None:
    root, _ = roots(d, d)
    S, expected = root @ root.mT, descent(root, eps)
    torch.testing.assert_close(cf.debiased_rate(S, eps), expected, rtol=1e-7, atol=1e-7)
    wrong = printed.debiased_rate_erratum(S, eps)
    assert ((wrong - expected).norm(dim=(-1, -2)) > 1e-3 * expected.norm(dim=(-1, -2))).all()


def test_only_the_right_debiased_flow_stands_still_at_its_target() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    assert cf.debiased_rate(eye, 0.7).norm() < 1e-14
    assert printed.debiased_rate_erratum(eye, 0.7).norm() > 0.1


def slope(S: float, eps: float, scale: bool) -> float:
    """(E[y | x] - x) / eps at x = 1, by scaling the kernel on a fine grid."""
    x = np.linspace(-9, 9, 1201) * np.sqrt(S)
    w = np.exp(-(x**2) / (2 * S))
    w /= w.sum()
    k = np.exp(-((x[:, None] - x) ** 2) / (2 * eps))
    f = np.ones_like(x)
    for _ in range(2000 if scale else 0):
        f = np.sqrt(f / (k @ (w * f)))
    weight = k * (w * f)
    mean = (weight @ x) / weight.sum(-1)
    inner = np.abs(x) < 2 * np.sqrt(S)
    return float(np.polyfit(x[inner], mean[inner] - x[inner], 1)[0] / eps)


@pytest.mark.thorough
@pytest.mark.parametrize(("S", "eps"), [(1.0, 0.2), (0.5, 1.0), (2.0, 0.5)])
def test_displacements_are_those_of_the_kernel_on_a_grid(S: float, eps: float) -> None:
    assert cf.l2_displacement([[S]], eps).item() == pytest.approx(slope(S, eps, False), rel=1e-6)
    assert cf.sinkhorn_displacement([[S]], eps).item() == pytest.approx(slope(S, eps, True), rel=1e-6)


@pytest.mark.parametrize("d", [1, 3, 6])
def test_displacements_tend_to_the_score_and_to_half_of_it(d: int) -> None:
    root, _ = roots(d, d)
    S = root @ root.mT + torch.eye(d)

    def gaps(f: Callable[[Tensor, float], Tensor], part: float) -> list[float]:
        return [(f(S, eps) - part * cf.score(S)).norm().item() for eps in (1e-3, 1e-4)]

    for f, part in ((cf.l2_displacement, 1.0), (cf.sinkhorn_displacement, 0.5)):
        coarse, fine = gaps(f, part)
        assert 9 < coarse / fine < 11


def test_the_score_is_the_gradient_of_the_log_density() -> None:
    S = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    x = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)
    law = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), S)
    (expected,) = torch.autograd.grad(law.log_prob(x), x)
    torch.testing.assert_close(cf.score(S) @ x.detach(), expected)


def test_heat_paths_are_moved_by_minus_the_score_twice_as_fast_as_by_sinkhorn() -> None:
    S = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    h, eps = 1e-6, 1e-7
    rate = (cf.heat_path(S, h) - cf.heat_path(S, 0.0)) / h
    for B, speed in (
        (cf.score(S), 1.0),
        (cf.l2_displacement(S, eps), 1.0),
        (cf.sinkhorn_displacement(S, eps), 0.5),
    ):
        torch.testing.assert_close(-(B @ S + S @ B.mT), speed * rate, rtol=1e-5, atol=1e-6)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "value": lambda S: cf.entropic_value(S, torch.eye(3), 0.7),
    "cross": lambda S: cf.entropic_cross(S, torch.eye(3), 0.7),
    "debiased": lambda S: cf.debiased_rate(S, 0.7),
    "erratum": lambda S: printed.debiased_rate_erratum(S, 0.7),
    "score": cf.score,
    "l2": lambda S: cf.l2_displacement(S, 0.7),
    "sinkhorn": lambda S: cf.sinkhorn_displacement(S, 0.7),
    "heat": lambda S: cf.heat_path(S, 0.7),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("repeated", [False, True])
def test_all_of_it_can_be_differentiated(name: str, repeated: bool) -> None:
    S = torch.eye(3, dtype=torch.float64) if repeated else (lambda r: r @ r.mT)(roots(0, 3)[0][0])
    assert torch.autograd.gradcheck(lambda s: FUNCTIONS[name]((s + s.mT) / 2), [S.requires_grad_()])


def test_wrong_input_is_refused() -> None:
    eye = np.eye(2)
    with pytest.raises(InputError, match="eps"):
        cf.entropic_value(eye, eye, -1.0)
    with pytest.raises(InputError, match=r"shift\.shape = \(3,\)"):
        cf.entropic_value(eye, eye, 1.0, shift=np.ones(3))
    with pytest.raises(InputError, match=r"S2\.shape = \(3, 3\)"):
        cf.entropic_cross(eye, np.eye(3), 1.0)
    with pytest.raises(InputError, match="min eigenvalue of S0"):
        cf.heat_path(eye, -1.0)
    with pytest.raises(InputError, match="min eigenvalue of S "):
        cf.score(np.diag([1.0, 0.0]))


@pytest.mark.parametrize("eps", [0.3, 4.0])
def test_the_printed_flow_is_off_by_what_its_docstring_says(eps: float) -> None:
    s = np.array([0.0, 0.2, 1.0, 7.0])
    excess = (
        printed.debiased_rate_erratum(s[:, None, None], eps) - cf.debiased_rate(s[:, None, None], eps)
    ).flatten()
    np.testing.assert_allclose(excess, 2 * np.sqrt(s**2 + eps**2 / 16) - 2 * s - eps / 2, atol=1e-13)
