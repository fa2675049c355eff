"""Attention with a perceptron: energy, fields, variations and bounds, against quadrature and differences."""

from __future__ import annotations

import math
from typing import Any, cast

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

import otflow as of
from otflow.papers import perceptron as sp

A2 = [[1.0, 0.3], [-0.4, 1.0]]
OMEGA = np.array([0.8, -0.6])
ACTIVATIONS = (sp.ReLU(), sp.GELU(), sp.Tanh())


def cloud(n: int, d: int, seed: int = 0, batch: tuple[int, ...] = (), weighted: bool = True) -> of.Particles:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*batch, n, d))
    w = rng.uniform(0.5, 1.5, (*batch, n))
    weights = w / w.sum(-1, keepdims=True) if weighted else None
    return of.Particles(x / np.linalg.norm(x, axis=-1, keepdims=True), w=weights, space=of.Sphere())


def neurons(m: int, d: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, d)), rng.standard_normal(m)


def circle(theta: Any, w: Any = None) -> of.Particles:
    t = np.asarray(theta)
    return of.Particles(np.stack([np.cos(t), np.sin(t)], -1), w=w, space=of.Sphere())


# --- activations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_the_primitive_is_twice_the_integral_of_sigma(act: sp.Activation) -> None:
    def sigma(z: float) -> float:
        return float(act(torch.tensor(z, dtype=torch.float64)))

    zero = act.primitive(torch.zeros(1, dtype=torch.float64)).item()
    for z in (-3.0, -0.7, 0.4, 2.5):
        integral = quad(sigma, 0, z, epsabs=1e-13, points=[0.0])[0]
        found = act.primitive(torch.tensor(z, dtype=torch.float64)).item() - zero
        assert found == pytest.approx(2 * integral, abs=1e-11)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_the_derivative_is_that_of_autograd_and_stays_below_the_lipschitz_constant(
    act: sp.Activation,
) -> None:
    z = torch.linspace(-6, 6, 4001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(act(z).sum(), z)
    away = z.detach().abs() > 1e-9  # the kink of ReLU
    torch.testing.assert_close(act.derivative(z.detach())[away], slope[away], rtol=1e-12, atol=1e-14)
    assert act.lipschitz * 0.999 < slope.abs().max() <= act.lipschitz * (1 + 1e-12)


def test_gelu_is_torchs_and_its_constant_is_known() -> None:
    z = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(sp.GELU()(z), torch.nn.functional.gelu(z), rtol=1e-13, atol=1e-15)
    assert sp.GELU.lipschitz == pytest.approx(1.128904145, abs=1e-9)


def test_log_cosh_does_not_overflow() -> None:
    z = torch.tensor([-1e6, 1e6], dtype=torch.float64)
    torch.testing.assert_close(sp.Tanh().primitive(z), 2 * (z.abs() - math.log(2)))


# --- energy and fields ---------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_the_energy_is_the_double_sum(act: sp.Activation) -> None:
    mu, (a, omega), beta = cloud(7, 3), neurons(4, 3), 2.5
    x, w = mu.x.numpy(), mu.w.numpy()
    expected = 0.0
    for i in range(7):
        for j in range(7):
            expected += w[i] * w[j] * math.exp(beta * (float(x[i] @ x[j]) - 1)) / (2 * beta)
        z = torch.from_numpy(a @ x[i])
        expected += w[i] / 2 * float(omega @ act.primitive(z).numpy())
    assert sp.energy(beta, a, omega, act)(mu).item() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("d", [2, 3, 5])
def test_ascent_and_descent_are_the_gradient_flows_of_the_energy(act: sp.Activation, d: int) -> None:
    mu, (a, omega), beta = cloud(9, d, batch=(2,)), neurons(3, d), 3.0
    E = sp.energy(beta, a, omega, act)
    up, down = sp.ascent(beta, a, omega, act)(0.0, mu)[0], sp.descent(beta, a, omega, act)(0.0, mu)[0]
    torch.testing.assert_close(
        up, of.SteepestDescent(-E, of.Wasserstein())(0.0, mu)[0], rtol=1e-12, atol=1e-14
    )
    torch.testing.assert_close(
        down, of.SteepestDescent(E, of.Wasserstein())(0.0, mu)[0], rtol=1e-12, atol=1e-14
    )


def test_the_ascent_is_unnormalised_attention_and_the_perceptron_of_the_library() -> None:
    mu, (a, omega), beta = cloud(6, 3), neurons(4, 3), 1.5
    eye = torch.eye(3, dtype=torch.float64)
    attention = of.UnnormalisedAttention(beta * eye, eye, eye)
    block = of.Perceptron(W=a.T @ np.diag(omega), U=a)
    expected = (math.exp(-beta) * attention + block)(0.0, mu)[0]
    torch.testing.assert_close(sp.ascent(beta, a, omega)(0.0, mu)[0], expected, rtol=1e-13, atol=1e-15)


def test_the_printed_normalisation_is_the_same_landscape_times_a_constant() -> None:
    mu, (a, omega), beta = cloud(6, 2), neurons(3, 2), 2.0
    printed = (
        of.ExponentialInteraction(beta * torch.eye(2, dtype=torch.float64)) / beta
        + of.Potential(
            lambda x: torch.relu(x @ torch.from_numpy(a).mT).square() @ sp.printed_weights(beta, omega)
        )
        * 0.5
    )
    assert printed(mu).item() == pytest.approx(
        math.exp(beta) * sp.energy(beta, a, omega)(mu).item(), rel=1e-13
    )


def test_the_residual_is_the_largest_velocity_of_the_descent() -> None:
    mu, (a, omega) = cloud(6, 3, batch=(4,)), neurons(3, 3)
    v = sp.descent(2.0, a, omega, sp.GELU())(0.0, mu)[0]
    found = sp.residual(mu, 2.0, a, omega, sp.GELU())
    torch.testing.assert_close(found, v.norm(dim=-1).amax(-1), rtol=1e-12, atol=0)


def test_tokens_without_mass_have_no_residual() -> None:
    mu = circle([0.0, math.pi, 1.0], [0.5, 0.5, 0.0])
    assert sp.residual(mu, 2.0, [[1.0, 0.0]], [0.0]).item() < 1e-15


def test_the_first_variation_is_the_derivative_along_mixtures() -> None:
    (a, omega), beta = neurons(3, 3), 2.0
    mu, nu = cloud(5, 3), cloud(4, 3, seed=7)
    E = sp.energy(beta, a, omega, sp.GELU())

    def mixed(s: float) -> float:
        x, w = torch.cat([mu.x, nu.x]), torch.cat([(1 - s) * mu.w, s * nu.w])
        return E(of.Particles(x, w=w, space=of.Sphere())).item()

    at = [(m.w * sp.first_variation(mu, m.x, beta, a, omega, sp.GELU())).sum().item() for m in (mu, nu)]
    slope = (mixed(1e-5) - mixed(0.0)) / 1e-5
    assert slope == pytest.approx(at[1] - at[0], rel=1e-4)
    # E is convex along mixtures: the tangent lies below.
    assert all(mixed(s) >= mixed(0.0) + s * (at[1] - at[0]) for s in (0.1, 0.5, 1.0))


def test_the_largest_energy_is_that_of_a_dirac_at_a_maximiser_of_v() -> None:
    beta, grid = 3.0, 2 * np.pi * np.arange(7200) / 7200
    E = sp.energy(beta, A2, OMEGA, sp.GELU())
    one = E(circle(grid[:, None]))  # a batch of Diracs
    top = one.max().item()
    v = sp.GELU().primitive(circle(grid).x @ torch.tensor(A2, dtype=torch.float64).mT) @ torch.from_numpy(
        OMEGA
    )
    assert top == pytest.approx(1 / (2 * beta) + v.max().item() / 2, rel=1e-12)
    rng = np.random.default_rng(0)
    others = E(circle(rng.uniform(0, 2 * np.pi, (500, 6))))
    assert others.max().item() < top


@pytest.mark.slow
def test_ascent_ends_in_a_dirac_at_a_maximiser_of_v() -> None:
    beta = 1.0
    start = circle(np.random.default_rng(2).uniform(0.0, 2 * np.pi, 24))
    field, E = sp.ascent(beta, A2, OMEGA), sp.energy(beta, A2, OMEGA)
    run = of.flow(start, field, of.Dopri5(), t1=200.0, save_at=np.linspace(0, 200, 41), observe={"E": E})
    assert of.observables.diameter(run.final).item() < 1e-6
    assert (run.observed["E"].diff() > -1e-9).all()
    x = run.final.nodes()[0][0]
    best = minimize_scalar(lambda t: -_v(t), bounds=_around(x), method="bounded", options={"xatol": 1e-10})
    assert math.remainder(best.x - math.atan2(x[1], x[0]), 2 * math.pi) == pytest.approx(0, abs=1e-5)


def _v(t: float) -> float:
    z = np.array(A2) @ np.array([math.cos(t), math.sin(t)])
    return float(OMEGA @ np.maximum(z, 0) ** 2)


def _around(x: Tensor) -> tuple[float, float]:
    t = math.atan2(x[1], x[0])
    return t - 0.5, t + 0.5


# --- second variation ----------------------------------------------------------------------------------


def quadratic(mu: of.Particles, u: Tensor, E: of.Energy, h: float) -> float:
    """d^2/ds^2 E along the geodesics, by differences of fourth order."""
    e = [E(mu.exp(of.Tangent([k * h * u]))).item() for k in (-2, -1, 0, 1, 2)]
    return (-e[0] + 16 * e[1] - 30 * e[2] + 16 * e[3] - e[4]) / (12 * h**2)


@pytest.mark.parametrize("act", [sp.GELU(), sp.Tanh(), sp.ReLU()])
@pytest.mark.parametrize("d", [2, 3, 4])
def test_the_second_variation_is_that_of_the_energy_along_great_circles(act: sp.Activation, d: int) -> None:
    mu, (a, omega), beta = cloud(5, d, seed=7), neurons(3, d), 2.0
    assert (mu.x @ torch.from_numpy(a).mT).abs().min() > 0.05  # no difference reaches over a kink of ReLU
    second = sp.second_variation(mu, beta, a, omega, act)
    rng = np.random.default_rng(3)
    for _ in range(3):
        c = torch.from_numpy(rng.standard_normal((5, d - 1)))
        u = (c[:, None, :] @ second.frames)[:, 0]
        found = c.flatten() @ second.matrix @ c.flatten()
        expected = quadratic(mu, u, sp.energy(beta, a, omega, act), 2e-3)
        assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_the_matrix_is_autograds_hessian_in_the_angles_of_a_circle() -> None:
    theta = torch.from_numpy(np.random.default_rng(4).uniform(0, 2 * np.pi, 6))
    mu = circle(theta, cloud(6, 2).w)
    E = sp.energy(4.0, A2, OMEGA, sp.GELU())

    def of_angles(t: Tensor) -> Tensor:
        return E(mu.at([torch.stack([t.cos(), t.sin()], -1)]))

    hessian = torch.autograd.functional.hessian(of_angles, theta)
    second = sp.second_variation(mu, 4.0, A2, OMEGA, sp.GELU())
    turn = torch.stack([-theta.sin(), theta.cos()], -1)
    sign = (second.frames[:, 0] * turn).sum(-1)
    torch.testing.assert_close(sign[:, None] * second.matrix * sign, hessian, rtol=1e-10, atol=1e-13)
    root = mu.w.sqrt()
    least = torch.linalg.eigvalsh(hessian / (root[:, None] * root))[0]
    torch.testing.assert_close(second.least, least, rtol=1e-10, atol=1e-13)


def test_frames_are_orthonormal_and_tangent() -> None:
    mu = cloud(8, 4)
    F = sp.second_variation(mu, 1.0, *neurons(2, 4)).frames
    torch.testing.assert_close(
        F @ F.mT, torch.eye(3, dtype=torch.float64).expand(8, 3, 3), rtol=0, atol=1e-14
    )
    assert (F @ mu.x[..., None]).abs().max() < 1e-14


@pytest.mark.parametrize("d", [2, 3])
def test_splitting_is_the_second_derivative_when_halves_of_an_atom_part(d: int) -> None:
    mu, (a, omega), beta, i = cloud(4, d), neurons(3, d), 2.0, 1
    second = sp.second_variation(mu, beta, a, omega, sp.GELU())
    halves = torch.cat([mu.w, mu.w[i : i + 1] / 2])
    halves[i] /= 2
    twin = of.Particles(torch.cat([mu.x, mu.x[i : i + 1]]), w=halves, space=of.Sphere())
    E, values = sp.energy(beta, a, omega, sp.GELU()), []
    for angle in np.linspace(0, np.pi, 60 if d == 3 else 1, endpoint=False):
        c = torch.tensor([math.cos(angle), math.sin(angle)][: d - 1], dtype=torch.float64)
        u = torch.zeros_like(twin.x)
        u[i], u[-1] = c @ second.frames[i], -(c @ second.frames[i])
        values.append(quadratic(twin, u, E, 2e-3) / mu.w[i].item())
    assert min(values) == pytest.approx(second.splitting[i].item(), rel=1e-2 if d == 3 else 1e-5, abs=1e-6)


def test_a_measure_that_does_not_split_is_second_order() -> None:
    rng = np.random.default_rng(5)
    for seed in range(200):
        mu, (a, omega) = cloud(4, 3, seed=seed), neurons(6, 3, seed=seed)
        second = sp.second_variation(mu, rng.uniform(0.1, 9), a, omega, sp.Tanh())
        assert second.least - second.splitting.min() > -1e-12  # what ties atoms is positive semidefinite
    second = sp.second_variation(cloud(1, 3), 1.0, [[1.0, 0, 0]], [0.0])
    assert second.splitting.item() == pytest.approx(-1)
    assert second.least.item() == pytest.approx(0, abs=1e-15)


def test_a_batch_has_the_second_variations_of_its_members() -> None:
    mu, (a, omega) = cloud(4, 3, batch=(3,)), neurons(2, 3)
    together = sp.second_variation(mu, 2.0, a, omega)
    for k in range(3):
        alone = sp.second_variation(mu[k], 2.0, a, omega)
        torch.testing.assert_close(alone.matrix, together.matrix[k], rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(alone.splitting, together.splitting[k], rtol=1e-12, atol=1e-15)


# --- bounds --------------------------------------------------------------------------------------------


def test_the_mass_bound_tends_to_a_known_number() -> None:
    assert sp.mass_bound(1e9, 5.0).item() == pytest.approx(0.574192, abs=5e-7)
    exact = 2 * mpmath.exp(-1.5) / (2 * mpmath.exp(-1.5) + mpmath.mpf(3) / 8 * mpmath.exp(-0.125))
    assert sp.mass_bound(700.0).item() == pytest.approx(float(exact), rel=1e-15)


def test_the_mass_bound_is_the_printed_formula() -> None:
    for beta, C in ((0.5, 0.3), (2.0, 1.7), (30.0, 1e12)):
        top = 2 * mpmath.exp(beta - 1.5)
        printed = (top + C) / (top + mpmath.mpf(3) / 8 * mpmath.exp(beta - 0.125))
        assert sp.mass_bound(beta, C).item() == pytest.approx(float(printed), rel=1e-14)
    batch = sp.mass_bound([1.0, 2.0, 1e4], [[0.0], [1.0]])
    assert batch.shape == (2, 3)


def curvature(t: np.ndarray, beta: float) -> np.ndarray:
    return np.asarray((beta * np.sin(t) ** 2 - np.cos(t)) * np.exp(beta * (np.cos(t) - 1)))


@pytest.mark.parametrize("beta", [0.02, 0.1, 0.3, 0.8, 1.0, 4.0, 25.0, 1e3, 1e6])
def test_the_bound_from_the_kernel_has_the_largest_slopes_of_the_kernel(beta: float) -> None:
    P = curvature(np.r_[np.linspace(0, np.pi, 20001), np.linspace(0, 5, 20001) / math.sqrt(beta)], beta).max()
    N = -curvature(np.linspace(0, min(np.pi, 0.5 / math.sqrt(beta)), 20001), beta).max()
    expected = 1.0 if N <= 0 else (P + 0.1 * math.exp(-beta) / 2) / (P + N / 2)
    assert sp.kernel_mass_bound(beta, 0.1).item() == pytest.approx(min(1.0, expected), rel=1e-6)


def test_the_bound_from_the_kernel_proves_the_printed_one_from_a_threshold_on() -> None:
    def gap(beta: float) -> float:
        return (sp.kernel_mass_bound(beta) - sp.mass_bound(beta)).item()

    assert brentq(gap, 0.3, 1.0) == pytest.approx(0.7977, abs=1e-4)
    beta = torch.logspace(math.log10(0.7978), 12, 400, dtype=torch.float64)
    for C in (0.0, 0.3, 10.0):
        assert bool((sp.kernel_mass_bound(beta, C) <= sp.mass_bound(beta, C) * (1 + 1e-12)).all())


def test_the_constant_of_a_perceptron_bounds_the_second_derivative_of_v() -> None:
    for act in (sp.ReLU(), sp.Tanh()):
        for seed in range(20):
            a, omega = neurons(3, 2, seed)
            t = torch.linspace(0, 6.2, 500, dtype=torch.float64, requires_grad=True)
            x = torch.stack([t.cos(), t.sin()], -1)
            v = act.primitive(x @ torch.from_numpy(a).mT) @ torch.from_numpy(omega)
            (first,) = torch.autograd.grad(v.sum(), t, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), t)
            assert second.abs().max() <= sp.perceptron_constant(a, omega)
    assert sp.perceptron_constant(A2, OMEGA).item() == pytest.approx(2 * (0.8 * 1.09 + 0.6 * 1.16))


def test_the_number_of_heavy_atoms_is_bounded_as_printed() -> None:
    expected = 3 / 0.05 * (1 + 2 * 0.4 * 3) * sp.mass_bound(9.0).item()
    assert sp.atom_bound(3, 0.4, 9.0, 0.05).item() == pytest.approx(expected, rel=1e-15)
    assert sp.atom_bound(1, 0.0, 1e4, 1.0).item() == pytest.approx(0.5742, abs=5e-5)


@pytest.mark.parametrize("masses", [(0.5, 0.5), (0.9, 0.1)])
def test_antipodes_are_one_cluster_of_all_the_mass_if_beta_is_small(masses: tuple[float, float]) -> None:
    """The statement that no second-order measure is a single cluster fails for beta <= 1 / (4 pi^2)."""
    for beta, one in ((1 / (4 * math.pi**2) * (1 - 1e-9), True), (1 / (4 * math.pi**2) * (1 + 1e-9), False)):
        mu = circle([0.3, 0.3 + math.pi], masses)
        assert sp.residual(mu, beta, [[1.0, 0.0]], [0.0]).item() < 1e-15
        assert sp.second_variation(mu, beta, [[1.0, 0.0]], [0.0]).least.item() > -1e-15
        found = sp.cluster_masses([0.3, 0.3 + math.pi], masses, 1 / (2 * math.sqrt(beta)))
        assert bool((found.size == 2).all()) is one
        assert (found.mass.max().item() > sp.mass_bound(beta).item()) is (one or max(masses) > 0.58)


# --- on the circle -------------------------------------------------------------------------------------


def test_empty_arcs_wrap_around_and_fill_the_circle() -> None:
    arcs = sp.empty_arcs([[0.1, 6.2, 3.0], [-7.0, 9.0, 40.0]])
    torch.testing.assert_close(arcs.sum(-1), torch.full((2,), 2 * math.pi, dtype=torch.float64))
    assert arcs[0].tolist() == pytest.approx([3.2, 2.9, 0.1 + 2 * math.pi - 6.2])
    assert sp.empty_arcs([1.0]).tolist() == pytest.approx([2 * math.pi])


def test_the_heaviest_cluster_is_that_of_all_subsets() -> None:
    rng, width = np.random.default_rng(8), 0.8
    for _ in range(20):
        t, m = rng.uniform(0, 2 * np.pi, 7), rng.dirichlet(np.ones(7))
        far = np.abs(np.angle(np.exp(1j * (t[:, None] - t))))
        best = 0.0
        for bits in range(1, 2**7):
            s = [i for i in range(7) if bits >> i & 1]
            if far[np.ix_(s, s)].max() <= width:
                best = max(best, float(m[s].sum()))
        found = sp.cluster_masses(t, m, width)
        assert found.mass.max().item() == pytest.approx(best, rel=1e-12)


def test_clusters_come_in_batches_and_count_atoms_with_mass_only() -> None:
    found = sp.cluster_masses([[0.0, 0.1, 3.0], [0.0, 6.2, 0.05]], [0.5, 0.0, 0.5], 0.2)
    assert found.size.tolist() == [[1, 0, 1], [2, 2, 1]]
    assert found.mass[1].tolist() == pytest.approx([1.0, 1.0, 0.5])


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sp.energy(1.0, A2, [1.0]), r"a\.shape, omega\.shape = \(\(2, 2\), \(1,\)\)"),
        (lambda: sp.energy(1.0, [1.0, 0.0], [1.0]), r"a\.shape, omega\.shape"),
        (lambda: sp.ascent(0.0, A2, OMEGA), "beta = 0.0"),
        (lambda: sp.descent(-1.0, A2, OMEGA), "beta = -1.0"),
        (lambda: sp.energy(701.0, A2, OMEGA), "beta = 701.*limit 700"),
        (
            lambda: sp.energy(1.0, A2, OMEGA, cast(Any, torch.relu)),
            r"activation = .*primitive.*ReLU\(\), GELU\(\), Tanh\(\)",
        ),
        (lambda: sp.energy(1.0, A2, OMEGA, cast(Any, sp.ReLU)), r"activation = "),
        (lambda: sp.energy(1.0, [[1.0]], [1.0]), r"a\.shape = \(1, 1\).*d >= 2"),
        (lambda: sp.residual(of.Particles([[1.0, 0.0]]), 1.0, A2, OMEGA), "mu = .*Sphere"),
        (lambda: sp.residual(cloud(3, 3), 1.0, A2, OMEGA), r"a\.shape = \(2, 2\).*tokens have d = 3"),
        (lambda: sp.second_variation(of.Particles([[0.5, 0.0]]), 1.0, A2, OMEGA), "mu = "),
        (lambda: sp.first_variation(circle([0.0]), [[2.0, 0.0]], 1.0, A2, OMEGA), r"\|x\| - 1"),
        (lambda: sp.find_atoms(cloud(4, 2, batch=(2,)), 1.0, A2, OMEGA), "one cloud at a time"),
        (lambda: sp.find_atoms(circle([0.0, 1.0], [1.0, 0.0]), 1.0, A2, OMEGA), "every particle has mass"),
        (lambda: sp.find_atoms(circle([0.0, 1.0]), 1.0, A2, OMEGA, tol=0.0), "tol = 0.0"),
        (lambda: sp.find_atoms(circle([0.0, 1.0]), 1.0, A2, OMEGA, radius=-1.0), "radius = -1.0"),
        (lambda: sp.find_atoms(circle([0.0, 1.0]), 1.0, A2, OMEGA, max_iter=0), "max_iter = 0"),
        (lambda: sp.mass_bound(0.0), r"min\(beta\) = 0.0"),
        (lambda: sp.kernel_mass_bound(1.0, -1.0), r"min\(C\) = -1.0"),
        (lambda: sp.atom_bound(0, 1.0, 1.0, 0.1), "M = 0"),
        (lambda: sp.atom_bound(1, -1.0, 1.0, 0.1), "L = -1.0"),
        (lambda: sp.atom_bound(1, 1.0, 1.0, 1.5), "eps = 1.5"),
        (lambda: sp.atom_bound(1, 1.0, 1.0, 0.0), "eps = 0.0"),
        (lambda: sp.atom_bound(1, 1.0, 1.0, 1e-310), "atom_bound"),
        (lambda: sp.mass_bound([1.0, 2.0], [0.0] * 3), "shapes of beta, C"),
        (lambda: sp.kernel_mass_bound(1.0, 1e308), r"max\(C\) = 1e\+308"),
        (lambda: sp.find_atoms(circle([0.0, 1.0]), 1e-320, A2, OMEGA), "beta = 1e-320"),
        (lambda: sp.residual(circle([0.0, 1.0]), 1e30, A2, OMEGA), r"beta = 1e\+30"),
        (lambda: sp.printed_weights(700.0, [1e10]), "e.beta omega.* = inf"),
        (lambda: sp.perceptron_constant(A2, [1e308] * 2), "omega_j.* = inf"),
        (lambda: sp.find_atoms(circle([0.0]), 1.0, [[1e200, 0.0]], [1.0]), "omega_j.* = inf"),
        (
            lambda: sp.first_variation(cloud(3, 2, batch=(2,)), cloud(4, 2, batch=(3,)).x, 1.0, A2, OMEGA),
            r"x\.shape = \(3, 4, 2\)",
        ),
        (lambda: sp.first_variation(circle([0.0]), 1.0, 1.0, A2, OMEGA), "x"),
        (lambda: sp.first_variation(circle([0.0]), [1.0, 0.0], 1.0, A2, OMEGA), "x"),
        (lambda: sp.cluster_masses(np.zeros((2, 3)), np.ones((4, 3)), 0.1), "shapes of theta, masses"),
        (lambda: sp.empty_arcs(1.0), r"theta\.shape"),
        (lambda: sp.cluster_masses([0.0, 1.0], [1.0], 0.1), "masses = "),
        (lambda: sp.cluster_masses([0.0, 1.0], [1.5, -0.5], 0.1), "masses = "),
        (lambda: sp.cluster_masses([0.0], [1.0], 0.0), "width = 0.0"),
    ],
)
def test_wrong_input_is_named_with_its_limit(call: Any, words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        call()
