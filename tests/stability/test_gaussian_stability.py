"""How far attention pulls Gaussians apart: two runs side by side against the derivative in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, linalg, stats
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.closed_forms.sensitivity import (
    l2_sensitivity,
    sinkhorn_sensitivity,
    softmax_path_sensitivity,
    softmax_sensitivity,
)

FINE = of.Dopri5(1e-11, 1e-13)
SOFTMAX = of.SoftmaxAttention([[0.5]], [[1.0]], [[1.0]])  # N(0, 1) blows up at t = 1
S0 = np.array([[1.0, 0.6], [0.6, 0.9]])
A = np.array([[0.5, 0.3], [-0.1, 0.2]])


def around(sigma: float, size: float) -> tuple[of.Gaussian, of.Gaussian]:
    """Centred Gaussians on the line with deviations sigma - size and sigma + size."""
    return of.Gaussian([0.0], root=[[sigma - size]]), of.Gaussian([0.0], root=[[sigma + size]])


def nearby(S: np.ndarray, D: np.ndarray) -> tuple[of.Gaussian, of.Gaussian]:
    """N(0, S - D) and N(0, S + D), D may be many."""
    zero = np.zeros(len(S))
    return of.Gaussian(zero, cov=S - D), of.Gaussian(zero, cov=S + D)


CASES = {
    "softmax": (SOFTMAX, lambda s, t: softmax_sensitivity(s, 0.5, 1.0, t)),
    "falling softmax": (
        of.SoftmaxAttention([[1.0]], [[0.7]], [[-1.0]]),
        lambda s, t: softmax_sensitivity(s, 0.7, -1.0, t),
    ),
    "L2": (
        of.L2Attention([[0.9]], [[0.8]], [[0.7]]),
        lambda s, t: l2_sensitivity(s, 0.9, 0.8, 0.7, t),
    ),
    "Sinkhorn": (
        of.SinkhornAttention([[0.9]], [[0.8]], [[0.7]], eps=0.6),
        lambda s, t: sinkhorn_sensitivity(s, 0.72, 0.7, t, eps=0.6),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nearby_gaussians_part_as_fast_as_the_derivative_says(name: str) -> None:
    field, closed = CASES[name]
    found = of.coupled(*around(0.9, 1e-5), field, of.RK4(), t1=0.8, dt=0.005, save_at=[0.0, 0.4])
    torch.testing.assert_close(found.ratios, closed(0.81, found.ts), rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_distant_gaussians_part_by_the_mean_of_the_derivative(name: str) -> None:
    field, closed = CASES[name]
    found = of.coupled(*around(0.7, 0.3), field, of.RK4(), t1=0.7, dt=0.005, save_at=[0.0])
    mean = integrate.quad(lambda x: closed(x**2, 0.7).item(), 0.4, 1.0, epsrel=1e-10)[0] / 0.6
    assert found.final.item() == pytest.approx(mean, rel=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_autograd_through_the_flow_gives_the_same(name: str) -> None:
    field, closed = CASES[name]
    sigma = torch.tensor([[0.9]], dtype=torch.float64, requires_grad=True)
    end = of.flow(of.Gaussian([0.0], root=sigma), field, of.RK4(), t1=0.8, dt=0.01, save_at=[0.0]).final
    (slope,) = torch.autograd.grad(end.cov.sqrt().sum(), sigma)
    assert slope.item() == pytest.approx(closed(0.81, 0.8).item(), rel=1e-6)


@pytest.mark.slow
def test_at_the_blow_up_covariances_part_with_the_power_three_halves_and_means_with_one_half() -> None:
    left = 2.0 ** -np.arange(1, 8)
    found = of.coupled(*around(1.0, 1e-6), SOFTMAX, FINE, t1=1 - left[-1], save_at=1 - left)
    slope = np.polyfit(np.log(left), found.ratios.log().numpy(), 1)[0]
    assert slope == pytest.approx(-1.5, abs=1e-4)
    mu, nu = of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([1e-3], root=[[1.0]])
    found = of.coupled(mu, nu, SOFTMAX, FINE, t1=1 - left[-1], save_at=1 - left)
    expected = torch.exp(found.ts) * torch.from_numpy(left) ** -0.5
    torch.testing.assert_close(found.ratios, expected, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_no_constant_serves_all_gaussians_under_softmax_attention() -> None:
    t, ratios = 0.5, []
    for left in (1e-1, 1e-2):  # variances that blow up a little later than t
        sigma = math.sqrt((1 - left) / t)
        found = of.coupled(*around(sigma, 1e-4 * left), SOFTMAX, FINE, t1=t, save_at=[0.0])
        ratios.append(found.final.item())
    np.testing.assert_allclose(ratios, [10**1.5, 10**3], rtol=1e-5)


def test_one_constant_serves_all_gaussians_under_l2_and_sinkhorn_attention() -> None:
    root = torch.logspace(-2, 2, 60, dtype=torch.float64)[:, None, None]
    mean = torch.zeros(60, 1, dtype=torch.float64)
    mu, nu = of.Gaussian(mean, root=root), of.Gaussian(mean, root=1.3 * root)
    sinkhorn = math.sqrt(3 * math.sqrt(3) / (2 + math.sqrt(3))) * 0.7 / 0.6
    for name, rate in (("L2", 9 / 8 * 0.7 * 0.9 / 0.8), ("Sinkhorn", sinkhorn)):
        found = of.coupled(mu, nu, CASES[name][0], of.RK4(), t1=2.0, dt=0.05, save_at=[0.0])
        worst = float(found.final.max())
        assert math.exp(0.75 * rate * 2.0) < worst <= math.exp(rate * 2.0)


def test_clouds_of_the_same_shape_survive_the_blow_up_of_their_gaussians() -> None:
    x = stats.norm.ppf((np.arange(40) + 0.5) / 40)[:, None]
    mu, nu = of.Particles(x), of.Particles(1.01 * x)
    found = of.coupled(mu, nu, SOFTMAX, of.RK4(), t1=1.2, dt=0.05, save_at=[0.0, 1.0])
    assert found.mu.status == "ok"
    assert 1.0 < float(found.final) < 1e3


# --- two dimensions ------------------------------------------------------------------------------------


def worst_direction(S: np.ndarray, A: np.ndarray, t: float) -> np.ndarray:
    """The D with the largest |G D G^T|_S(t) / |D|_S, G = (I - t S (A + A^T))^-1, by scipy."""
    basis = np.array([[[1.0, 0], [0, 0]], [[0, 1.0], [1.0, 0]], [[0, 0], [0, 1.0]]])
    G = linalg.inv(np.eye(2) - t * S @ (A + A.T))

    def form(S: np.ndarray, basis: np.ndarray) -> np.ndarray:
        L = [linalg.solve_continuous_lyapunov(S, D) for D in basis]
        return np.array([[np.trace(a @ S @ b) for a in L] for b in L])

    vectors = linalg.eigh(form(G @ S, G @ basis @ G.T), form(S, basis))[1]
    return np.tensordot(vectors[:, -1], basis, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.5, 0.9, 0.98])
def test_in_the_plane_the_worst_perturbation_attains_the_norm_and_no_other_exceeds_it(share: float) -> None:
    t = share * closed_forms.softmax_blow_up_time(S0, A).item()
    D = np.concatenate([worst_direction(S0, A, t)[None], np.random.default_rng(0).normal(size=(30, 2, 2))])
    D = 1e-6 * (D + D.swapaxes(-1, -2))
    field = of.SoftmaxAttention(A, np.eye(2), np.eye(2))
    found = of.coupled(*nearby(S0, D), field, FINE, t1=t, save_at=[0.0]).final
    norm = softmax_path_sensitivity(S0, A, t).item()
    assert found[0].item() == pytest.approx(norm, rel=1e-5)
    assert float(found.max()) <= norm * (1 + 1e-5)


def blow_up_time(mu: of.Gaussian, field: of.VelocityField) -> float:
    return float(of.flow(mu, field, of.Dopri5(1e-9, 1e-11), t1=10.0, save_at=[0.0]).blow_up_time)


def local_slopes(left: np.ndarray, ratios: Tensor) -> np.ndarray:
    return np.diff(ratios.log().numpy()) / np.diff(np.log(left))


@pytest.mark.slow
def test_other_values_leave_the_power_three_halves() -> None:
    """Observed: for V != I, here symmetric and commuting with nothing, there is no closed form."""
    field = of.SoftmaxAttention(A, np.eye(2), [[1.0, 0.3], [0.3, 0.7]])
    D = 1e-6 * np.array([[1.0, 0.4], [0.4, -0.3]])
    end = blow_up_time(of.Gaussian(np.zeros(2), cov=S0), field)
    left = 4.0 ** -np.arange(2, 6)
    found = of.coupled(*nearby(S0, D), field, FINE, t1=end * (1 - left[-1]), save_at=end * (1 - left))
    assert local_slopes(left, found.ratios)[-1] == pytest.approx(-1.5, abs=0.01)
