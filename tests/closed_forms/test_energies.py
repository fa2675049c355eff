"""Energies of Gaussians against quadrature and transport, their gradients against autograd and the rates."""

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

Function = Callable[[Tensor], Tensor]


def covariance(rng: np.random.Generator, d: int) -> Tensor:
    x = rng.standard_normal((d, d))
    return torch.as_tensor(x @ x.T / d + 0.1 * np.eye(d))


def scores(rng: np.random.Generator, *shape: int) -> Tensor:
    x = torch.as_tensor(rng.standard_normal(shape))
    return (x + x.mT) / 2


def flows(d: int) -> dict[str, tuple[Function, Function, Function]]:
    """Energy, velocity, and the rate of the attention that they should give."""
    rng = np.random.default_rng(d)
    A, H, K = scores(rng, d, d), scores(rng, 3, d, d), torch.as_tensor(rng.standard_normal((2, d)))
    W = torch.as_tensor(rng.standard_normal((d, d)))
    W = W - W.mT
    return {
        "softmax": (
            lambda S: cf.softmax_energy(S, A),
            lambda S: cf.softmax_descent(S, A),
            lambda S: cf.softmax_rate(S, A, -A),
        ),
        "skew": (
            lambda S: cf.softmax_energy(S, W),
            lambda S: cf.softmax_descent(S, W),
            lambda S: cf.softmax_rate(S, W, -W),
        ),
        "multihead": (
            lambda S: cf.multihead_energy(S, H),
            lambda S: cf.multihead_descent(S, H),
            lambda S: cf.multihead_rate(S, H, -H),
        ),
        "sinkhorn": (
            lambda S: cf.sinkhorn_energy(S, A, eps=0.6),
            lambda S: cf.sinkhorn_descent(S, A, eps=0.6),
            lambda S: cf.sinkhorn_rate(S, A, -A, eps=0.6),
        ),
        "l2": (
            lambda S: cf.l2_energy(S, K, -1.7),
            lambda S: cf.l2_descent(S, K, -1.7),
            lambda S: cf.l2_rate(S, -1.7 * K, K, 1.7 * K.mT @ K),
        ),
    }


@pytest.mark.parametrize("d", [1, 2, 3, 6])
@pytest.mark.parametrize("name", flows(2))
def test_the_velocity_is_minus_twice_the_gradient_and_moves_covariances_as_attention_does(
    name: str, d: int
) -> None:
    energy, velocity, rate = flows(d)[name]
    rng = np.random.default_rng(0)
    S = torch.stack([covariance(rng, d) for _ in range(4)])
    B = velocity(S)
    torch.testing.assert_close(B, B.mT)
    torch.testing.assert_close(B @ S + S @ B.mT, rate(S), rtol=1e-8, atol=1e-9)
    dS = torch.stack([scores(rng, d, d) for _ in range(4)])
    h = 1e-5
    slope = (energy(S + h * dS) - energy(S - h * dS)) / (2 * h)
    torch.testing.assert_close(slope, -(B * dS).sum((-1, -2)) / 2, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", flows(2))
def test_energies_and_velocities_can_be_differentiated(name: str) -> None:
    energy, velocity, _ = flows(3)[name]
    S = covariance(np.random.default_rng(1), 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: energy((s + s.mT) / 2), [S])
    assert torch.autograd.gradcheck(lambda s: velocity((s + s.mT) / 2), [S])


def plane(S: Tensor, nodes: int = 40) -> tuple[np.ndarray, np.ndarray]:
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    return grid @ np.linalg.cholesky(S.numpy()).T, np.outer(w, w).ravel() / w.sum() ** 2


def test_the_softmax_energy_is_that_of_linear_attention() -> None:
    rng = np.random.default_rng(3)
    S, A = covariance(rng, 2), scores(rng, 2, 2)
    x, w = plane(S, 8)
    expected = w @ (x @ A.numpy() @ x.T) ** 2 @ w / 4
    assert cf.softmax_energy(S, A).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_sinkhorn_energy_is_the_entropic_cost_of_a_law_to_itself(d: int) -> None:
    # For A = P^T P and the cost -Px.Py = |Px - Py|^2 / 2 - ..., so OT_eps = OT_2eps(|x - y|^2) / 2 - tr S'.
    rng, eps = np.random.default_rng(d), 0.4
    S, P = covariance(rng, d), torch.as_tensor(rng.standard_normal((d, d)))
    image = P @ S @ P.mT
    mu = Gaussian(torch.zeros(d, dtype=torch.float64), cov=image)
    cost = of.sinkhorn(mu, mu, 2 * eps).regularised_cost / 2 - image.trace()
    torch.testing.assert_close(cf.sinkhorn_energy(S, P.mT @ P, eps=eps), -cost / (2 * eps))


def test_the_sinkhorn_energy_keeps_its_digits_when_small() -> None:
    # (q - 1 - log((1 + q) / 2)) / 4 = s^2 / (4 eps^2) + O(s^4)
    s = 1e-9
    assert cf.sinkhorn_energy([[s]], [[1.0]]).item() == pytest.approx(s**2 / 4, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_twisted_energy_is_a_double_integral(seed: int) -> None:
    rng = np.random.default_rng(seed)
    S, A = covariance(rng, 2), torch.as_tensor(rng.standard_normal((2, 2)))
    A = 0.3 * A / torch.linalg.matrix_norm(A, 2) / torch.linalg.matrix_norm(S, 2)
    x, w = plane(S)
    expected = w @ np.exp(x @ A.numpy().T @ x.T) @ w / 2
    assert cf.twisted_energy(S, A).item() == pytest.approx(expected, rel=1e-9)


def test_the_twisted_energy_is_infinite_from_the_edge_of_its_domain_on() -> None:
    A = torch.eye(2, dtype=torch.float64) * torch.tensor([0.5, 0.999, 1.0, -1.0, 3.0])[:, None, None]
    out = cf.twisted_energy(np.diag([1.0, 0.5]), A)
    assert torch.isfinite(out).tolist() == [True, True, False, False, False]
    assert (out[2:] == torch.inf).all()
    S = torch.eye(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: cf.twisted_energy((s + s.mT) / 2, 0.4 * np.eye(2)), [S])
    # A member beyond the domain leaves the gradients of the others alone.
    (beside,) = torch.autograd.grad(cf.twisted_energy(S, A)[0], S)
    (alone,) = torch.autograd.grad(cf.twisted_energy(S, A[0]), S)
    torch.testing.assert_close(beside, alone)


def test_energies_decrease_along_the_rates() -> None:
    for energy, _, rate in flows(4).values():
        S = covariance(np.random.default_rng(9), 4)
        assert energy(S + 1e-4 * rate(S)) < energy(S)


def test_scores_without_an_energy_are_refused() -> None:
    S, A = np.eye(2), np.array([[1.0, 1.0], [0.0, 1.0]])
    for f in (cf.softmax_energy, cf.softmax_descent):
        with pytest.raises(InputError, match=r"A = A\^T or A = -A\^T"):
            f(S, A)
    for f in (cf.sinkhorn_energy, cf.sinkhorn_descent):
        with pytest.raises(InputError, match=r"A = .*symmetric"):
            f(S, A)
    with pytest.raises(InputError, match="A = A"):
        cf.multihead_energy(S, np.stack([np.eye(2), np.array([[0.0, 1.0], [-1.0, 0.0]])]))
    with pytest.raises(InputError, match=r"c\.shape"):
        cf.l2_energy(np.stack([S, S]), S, [1.0, 2.0, 3.0])
