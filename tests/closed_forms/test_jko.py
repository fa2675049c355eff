"""Minimising movements, diffusion and aggregation in closed form, against scipy and mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, linalg, optimize
from torch.autograd import gradcheck

import otflow.closed_forms as cf
from otflow.base.errors import InputError


def spd(d: int, seed: int, low: float = 0.1) -> np.ndarray:
    r = np.random.default_rng(seed).standard_normal((d, d))
    return r @ r.T / d + low * np.eye(d)


def bures_squared(S: np.ndarray, T: np.ndarray) -> float:
    root = linalg.sqrtm(S).real
    return float(np.trace(S) + np.trace(T) - 2 * np.trace(linalg.sqrtm(root @ T @ root).real))


# --- Fokker-Planck -------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("interacting", [False, True])
def test_a_fokker_planck_step_minimises_what_it_says(d: int, interacting: bool) -> None:
    rng = np.random.default_rng(d)
    m, b, S, A = rng.standard_normal(d), rng.standard_normal(d), spd(d, 1), spd(d, 2) - 0.3 * np.eye(d)
    K = spd(d, 3) if interacting else None
    beta, tau = 1.7, 0.4
    mean, cov = cf.fokker_planck_step(m, S, A, b, beta, tau, K=K)

    def value(z: np.ndarray) -> float:
        n, L = z[:d], np.zeros((d, d))
        L[np.tril_indices(d)] = z[d:]
        T = L @ L.T
        C = A if K is None else A + K
        energy = (n - b) @ A @ (n - b) / 2 + np.trace(C @ T) / 2 - np.log(np.abs(np.diag(L))).sum() / beta
        return float(energy + ((n - m) @ (n - m) + bures_squared(S, T)) / (2 * tau))

    start = np.concatenate([m, np.linalg.cholesky(S)[np.tril_indices(d)]])
    found = optimize.minimize(value, start, method="BFGS", options={"gtol": 1e-9})
    ours = np.concatenate([mean, np.linalg.cholesky(cov)[np.tril_indices(d)]])
    assert value(ours) <= found.fun + 1e-12
    np.testing.assert_allclose(ours, found.x, atol=2e-5)


def test_a_fokker_planck_step_satisfies_the_optimality_condition_of_bures_steps() -> None:
    S, A, beta, tau = spd(4, 0), spd(4, 1), 0.6, 0.3
    cov = cf.fokker_planck_step(np.zeros(4), S, A, np.zeros(4), beta, tau)[1].numpy()
    inverse = np.eye(4) + tau * (A - np.linalg.inv(cov) / beta)  # I + 2 tau grad G
    np.testing.assert_allclose(inverse @ cov @ inverse, S, rtol=1e-12, atol=1e-13)


def test_many_small_fokker_planck_steps_converge_to_the_equation_at_first_order() -> None:
    m, b, S, A, K = np.ones(3), np.zeros(3), spd(3, 4), spd(3, 5) - 0.5 * np.eye(3), spd(3, 6)
    exact = torch.cat([z.flatten() for z in cf.fokker_planck(0.8, m, S, A, b, 2.0, K=K)])
    errors = []
    for steps in (40, 80):
        now: tuple[torch.Tensor, torch.Tensor] = (torch.as_tensor(m), torch.as_tensor(S))
        for _ in range(steps):
            now = cf.fokker_planck_step(*now, A, b, 2.0, 0.8 / steps, K=K)
        errors.append((torch.cat([z.flatten() for z in now]) - exact).norm().item())
    assert errors[1] < 0.02
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("low", [-1.0, 0.0, 2.0])
def test_the_fokker_planck_equation_agrees_with_an_integrator(low: float) -> None:
    A, K = np.diag([low, 1.0]) + 0.1, np.array([[0.3, 0.2], [0.2, -0.1]])
    m, b, S, C = np.array([1.0, -2.0]), np.array([0.5, 0.0]), spd(2, 8), A + K

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        T = y[2:].reshape(2, 2)
        return np.concatenate([-A @ (y[:2] - b), (-C @ T - T @ C + 2 / 0.7 * np.eye(2)).ravel()])

    end = integrate.solve_ivp(rate, (0, 1.3), np.concatenate([m, S.ravel()]), rtol=1e-11, atol=1e-12).y[:, -1]
    mean, cov = cf.fokker_planck(1.3, m, S, A, b, 0.7, K=K)
    np.testing.assert_allclose(np.concatenate([mean, cov.flatten()]), end, rtol=1e-8)


def test_a_singular_drift_leaves_the_heat_equation() -> None:
    _, cov = cf.fokker_planck(0.75, np.zeros(2), np.eye(2), np.zeros((2, 2)), np.zeros(2), 1.0)
    torch.testing.assert_close(cov, 2.5 * torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(cf.heat_path(np.eye(2), 0.75), cov)


def test_the_heat_step_is_the_fokker_planck_step_without_a_potential() -> None:
    s, tau = torch.tensor([0.0, 1e-5, 0.3, 4.0], dtype=torch.float64), 0.2
    zero = np.zeros((1, 1))
    _, cov = cf.fokker_planck_step([0.0], (s**2)[:, None, None], zero, [0.0], 1.0, tau)
    torch.testing.assert_close(cf.heat_step(s, tau), cov.flatten().sqrt(), rtol=1e-14, atol=0)


def test_many_heat_steps_converge_to_the_heat_equation_from_below() -> None:
    s = torch.tensor(0.5, dtype=torch.float64)
    for _ in range(1000):
        s = cf.heat_step(s, 1e-3)
    exact = cf.heat_deviation(0.5, 1.0)
    assert 0 < (exact - s).item() < 1e-3
    assert exact.item() == 1.5


def test_gaussian_steps_take_batches_and_singular_covariances() -> None:
    S = np.stack([np.diag([1.0, 0.0]), np.zeros((2, 2)), np.eye(2)])
    A = np.stack([spd(2, 1), spd(2, 2), spd(2, 3)])
    m = np.arange(6.0).reshape(3, 2)
    both = cf.fokker_planck_step(m, S, A, np.ones(2), 1.0, 0.1), cf.fokker_planck([0, 1, 2], m, S, A, m, 1.0)
    for i in range(3):
        alone = (
            cf.fokker_planck_step(m[i], S[i], A[i], np.ones(2), 1.0, 0.1),
            cf.fokker_planck(float(i), m[i], S[i], A[i], m[i], 1.0),
        )
        for together, single in zip(both, alone, strict=True):
            for x, y in zip(together, single, strict=True):
                torch.testing.assert_close(x[i], y, rtol=1e-13, atol=1e-14)


def test_small_variances_keep_their_digits_beside_large_ones() -> None:
    s, tau = 1e-9, 1e-20
    _, cov = cf.fokker_planck_step(np.zeros(2), np.diag([1.0, s]), np.zeros((2, 2)), np.zeros(2), 1.0, tau)
    with mpmath.workdps(40):
        M, h = mpmath.mpf(s), mpmath.mpf(tau)
        exact = float((M + 2 * h + mpmath.sqrt(M * (M + 4 * h))) / 2)
    assert cov[1, 1].item() == pytest.approx(exact, rel=1e-14)


def test_gaussian_closed_forms_have_derivatives() -> None:
    S, A = torch.as_tensor(spd(2, 0)).requires_grad_(), torch.as_tensor(spd(2, 1)).requires_grad_()
    m = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def step(m: torch.Tensor, S: torch.Tensor, A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cf.fokker_planck_step(m, (S + S.mT) / 2, (A + A.mT) / 2, [0.0, 1.0], 1.3, 0.2)

    def path(m: torch.Tensor, S: torch.Tensor, A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cf.fokker_planck(0.3, m, (S + S.mT) / 2, (A + A.mT) / 2, [0.0, 1.0], 1.3)

    assert gradcheck(step, (m, S, A))
    assert gradcheck(path, (m, S, A))


# --- porous medium -------------------------------------------------------------------------------------

MEDIA = [(2.0, 1), (2.0, 2), (3.0, 1), (1.5, 3), (4.0, 2), (1.1, 2)]


@pytest.mark.parametrize(("m", "d"), MEDIA)
def test_a_barenblatt_has_its_mass(m: float, d: int) -> None:
    surface = 2 * math.pi ** (d / 2) / math.gamma(d / 2)
    end = cf.barenblatt_radius(0.3, m, d, mass=2.5).item()
    with mpmath.workdps(20):  # tanh-sinh: the edge may be a root
        total = mpmath.quad(
            lambda r: surface * r ** (d - 1) * cf.barenblatt(float(r), 0.3, m, d, mass=2.5).item(), [0, end]
        )
    assert float(total) == pytest.approx(2.5, rel=1e-8)
    assert cf.barenblatt(end * (1 + 1e-9), 0.3, m, d, mass=2.5).item() == 0


@pytest.mark.parametrize(("m", "d"), MEDIA)
def test_a_barenblatt_solves_the_porous_medium_equation(m: float, d: int) -> None:
    t, r = 0.7, torch.linspace(0.2, 0.8, 5, dtype=torch.float64) * cf.barenblatt_radius(0.7, m, d)
    r.requires_grad_()
    time = torch.full_like(r, t, requires_grad=True)
    rho = cf.barenblatt(r, time, m, d)
    (rate,) = torch.autograd.grad(rho.sum(), time, retain_graph=True)
    (slope,) = torch.autograd.grad((rho**m).sum(), r, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), r)
    torch.testing.assert_close(rate, bend + (d - 1) / r * slope, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("m", "d"), [*MEDIA, (60.0, 3)])
def test_the_radius_step_minimises_energy_and_distance_among_scaled_profiles(m: float, d: int) -> None:
    """F(R) = F(1) R^(-d (m - 1)) and W2(R, R') = |R - R'| M2^(1/2), which mpmath integrates."""
    with mpmath.workdps(25):
        p, end = 1 / (mpmath.mpf(m) - 1), mpmath.mpf(cf.barenblatt_radius(1.0, m, d).item())
        shell = [
            end ** (d + a) * mpmath.beta((d + mpmath.mpf(a)) / 2, e + 1) / 2
            for a, e in ((0, p), (2, p), (0, p * m))
        ]
        top = 1 / shell[0]  # mass one, up to the common factor of the sphere
        second, power = top * shell[1], cf.barenblatt(0.0, 1.0, m, d).item() ** (m - 1) * top * shell[2]
    for R, tau in ((1.0, 0.5), (0.3, 1e-3), (2.0, 7.0)):
        step = cf.barenblatt_radius_step(R, tau, m, d).item()
        slope = -d * float(power) * step ** (-d * (m - 1) - 1) + float(second) * (step - R) / tau
        rounding = float(second) * (step / tau + d * m * (step - R) / tau)
        assert abs(slope) < 1e-14 * rounding


def test_the_radius_step_has_no_trouble_with_extremes_and_derivatives() -> None:
    R = torch.tensor([0.0, 1e-200, 1e-8, 1.0, 1e8], dtype=torch.float64)
    for tau in (1e-30, 1e-3, 1e6):
        step = cf.barenblatt_radius_step(R, tau, 2.0, 2)
        assert bool((step >= R).all())
        torch.testing.assert_close(step - R, tau / 4 * step**-3, rtol=1e-8, atol=1e-7)
    assert cf.barenblatt_radius_step(0.0, 4e-30, 2.0, 2).item() == pytest.approx(1e-30**0.25, rel=1e-14)
    pair = [torch.tensor(z, dtype=torch.float64, requires_grad=True) for z in (0.4, 0.3)]
    assert gradcheck(lambda R, tau: cf.barenblatt_radius_step(R, tau, 1.7, 2), pair)


@pytest.mark.parametrize(
    ("tau", "known"), [(1e-3, 5.5455e-2), (5e-4, 2.984e-2), (2.5e-4, 1.554e-2), (1.25e-4, 7.94e-3)]
)
def test_the_error_of_the_scheme_on_a_barenblatt_is_what_it_was(tau: float, known: float) -> None:
    R = torch.tensor(1e-3**0.25, dtype=torch.float64)
    for _ in range(round(3e-3 / tau)):
        R = cf.barenblatt_radius_step(R, tau, 2.0, 2)
    r = np.linspace(0, 1.01 * cf.barenblatt_radius(4e-3, 2.0, 2).item(), 200_001)
    gap = (cf.barenblatt_profile(r, R, 2.0, 2) - cf.barenblatt(r, 4e-3, 2.0, 2)).abs().numpy()
    error = integrate.trapezoid(2 * np.pi * r * gap, r)
    assert error == pytest.approx(known, abs=5e-6)


@pytest.mark.parametrize("m", [1.2, 2.0, 3.0, 10.0])
def test_quantiles_of_a_barenblatt_invert_its_distribution(m: float) -> None:
    u = np.array([1e-6, 0.1, 0.37, 0.5, 0.9])
    x = cf.barenblatt_quantile(u, 0.7, m).numpy()
    end = 0.7 * cf.barenblatt_radius(1.0, m, 1).item()
    with mpmath.workdps(20):
        mass = [
            float(mpmath.quad(lambda z: cf.barenblatt_profile(float(z), 0.7, m, 1).item(), [-end, b]))
            for b in x
        ]
    np.testing.assert_allclose(mass, u, rtol=1e-6)
    if m == 2:
        np.testing.assert_allclose(x, 2 * end * np.sin(np.arcsin(2 * u - 1) / 3), rtol=1e-9, atol=1e-15)
    v = torch.tensor([0.2, 0.6], dtype=torch.float64, requires_grad=True)
    R = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda v, R: cf.barenblatt_quantile(v, R, m), (v, R))


@pytest.mark.parametrize(("m", "d"), [(2.0, 1), (2.0, 2), (3.0, 2), (1.5, 3)])
def test_cell_averages_of_a_barenblatt_keep_its_mass_and_agree_with_quadrature(m: float, d: int) -> None:
    axes = [np.linspace(-1, 1, n) for n in (12, 15, 9)[:d]]
    R = 0.8 / cf.barenblatt_radius(1.0, m, d).item()
    rho = cf.barenblatt_grid(axes, R, m).numpy()
    h = [a[1] - a[0] for a in axes]
    assert rho.sum() * math.prod(h) == pytest.approx(1, rel=1e-4)
    cells = [
        (4,) * d,
        tuple(n - 2 for n in rho.shape),
        tuple(n // 2 if i else 2 for i, n in enumerate(rho.shape)),
    ]
    z, w = np.polynomial.legendre.leggauss(6)
    fine = (np.arange(40)[:, None] + (z + 1) / 2).ravel() / 40 - 0.5, np.tile(w / 80, 40)
    if d == 3:
        fine = (z / 2, w / 2)
    for cell in cells:
        x = np.stack(np.meshgrid(*[axes[i][c] + h[i] * fine[0] for i, c in enumerate(cell)], indexing="ij"))
        weight = np.prod(np.meshgrid(*[fine[1]] * d, indexing="ij"), 0)
        mean = (weight * cf.barenblatt_profile(np.sqrt((x**2).sum(0)), R, m, d).numpy()).sum()
        assert rho[cell] == pytest.approx(mean, abs=(1e-3 if d == 3 else 1e-4) * rho.max())


@pytest.mark.parametrize(("m", "error"), [(2.0, 2e-7), (3.0, 3e-6)])
def test_cell_averages_of_a_barenblatt_sharpen_on_finer_grids(m: float, error: float) -> None:
    x = (np.arange(64) + 0.5) / 64 - 0.5
    rho = cf.barenblatt_grid([x, x], 0.45 / cf.barenblatt_radius(1.0, m, 2).item(), m)
    assert rho.mean().item() == pytest.approx(1, rel=error)


# --- aggregation ---------------------------------------------------------------------------------------


def test_an_aggregation_step_minimises_what_it_says() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 2)), np.array([0.1, 0.2, 0.3, 0.4])

    def value(flat: np.ndarray) -> float:
        y = flat.reshape(4, 2)
        pairs = ((y[:, None] - y[None]) ** 2).sum(-1)
        return float(w @ pairs @ w / 4 + w @ ((y - x) ** 2).sum(-1) / (2 * 0.7))

    found = optimize.minimize(value, x.ravel(), options={"gtol": 1e-10}).x.reshape(4, 2)
    np.testing.assert_allclose(cf.aggregation_step(x, 0.7, w=w), found, atol=1e-7)
    np.testing.assert_allclose(cf.aggregation_step(x, 0.7), cf.aggregation_step(x, 0.7, w=np.full(4, 0.25)))


@pytest.mark.parametrize(("a", "b"), [(4, 2), (3, 1), (2.5, 0.5)])
def test_a_ring_of_the_radius_given_is_in_equilibrium(a: float, b: float) -> None:
    r = cf.ring_radius(a, b)

    def force(angle: float) -> float:  # the radial part, of the point at angle 0
        z = np.array([r - r * math.cos(angle), -r * math.sin(angle)])
        s = float(np.hypot(*z))
        return float((s ** (a - 2) - s ** (b - 2)) * z[0]) if s else 0.0

    assert integrate.quad(force, 0, 2 * math.pi, epsabs=1e-12)[0] == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("d", [2, 3])
def test_a_gas_with_logarithmic_repulsion_has_its_second_moment(d: int) -> None:
    n = 7

    def value(flat: np.ndarray) -> float:
        x = flat.reshape(n, d)
        s = ((x[:, None] - x[None]) ** 2).sum(-1)[np.triu_indices(n, 1)]
        return float((s / 2 - np.log(s) / 2).sum() / n**2)

    x = optimize.minimize(value, np.random.default_rng(1).standard_normal(n * d)).x.reshape(n, d)
    assert ((x - x.mean(0)) ** 2).sum(-1).mean() == pytest.approx(cf.log_gas_second_moment(n), rel=1e-4)


def test_particles_on_the_line_are_in_equilibrium() -> None:
    x = cf.line_equilibrium(9)
    force = (x[:, None] - x[None]) - torch.sign(x[:, None] - x[None])
    torch.testing.assert_close(force.mean(1), torch.zeros(9, dtype=torch.float64), rtol=0, atol=1e-15)
    assert x.abs().max().item() == pytest.approx(8 / 9)


@pytest.mark.parametrize(("r", "d"), [(1.0, 2), (1.5, 2), (0.5, 3), (0.9, 3), (1.2, 1), (0.3, 2)])
def test_the_force_at_the_centre_of_a_riesz_ball_drives_its_radius(r: float, d: int) -> None:
    """x' = r (r + d - 2) / d int |y|^(r - 2) dmu x near 0, and x' = x / ((2 - r) t) for all x."""
    with mpmath.workdps(20):
        R, e = mpmath.mpf(cf.riesz_radius(0.8, r, d).item()), 1 - (d + mpmath.mpf(r)) / 2
        inner = mpmath.beta((d + mpmath.mpf(r) - 2) / 2, e + 1) / mpmath.beta(mpmath.mpf(d) / 2, e + 1)
        force = float(r * (r + d - 2) / d * inner * R ** (r - 2))
    assert force == pytest.approx(1 / ((2 - r) * 0.8), rel=1e-12)


@pytest.mark.parametrize(("r", "d"), [(1.0, 3), (1.5, 3), (0.5, 4), (1.9, 5)])
def test_the_force_on_a_riesz_sphere_drives_its_radius(r: float, d: int) -> None:
    R = cf.riesz_radius(0.8, r, d).item()

    def density(angle: float) -> float:
        return math.sin(angle) ** (d - 2)

    def force(angle: float) -> float:  # r |x - y|^(r - 2) (x - y).x / R
        return float(density(angle) * r * (2 * R * math.sin(angle / 2)) ** r / (2 * R))

    total = integrate.quad(force, 0, math.pi, epsabs=1e-13)[0] / integrate.quad(density, 0, math.pi)[0]
    assert total == pytest.approx(R / ((2 - r) * 0.8), rel=1e-8)


def test_riesz_balls_turn_into_spheres_at_one_radius() -> None:
    assert cf.riesz_radius(1.0, 1 - 1e-9, 3).item() == pytest.approx(2 / 3, rel=1e-7)
    assert cf.riesz_radius(1.0, 1.0, 3).item() == pytest.approx(2 / 3, rel=1e-13)
    assert round(cf.riesz_radius(1.0, 1.0, 2).item(), 6) == 0.785398


@pytest.mark.parametrize("mass", [1.0, 8 * math.pi, 40.0])
def test_the_second_moment_of_keller_and_segel_is_that_of_diffusion_and_attraction(mass: float) -> None:
    """int |x|^2 d rho/dt = 4 M + 2 int x.grad c rho, with x.grad c = -M(|x|)/(2 pi) for radial rho."""

    def inside(r: float) -> float:  # of a Gaussian
        return mass * (1 - math.exp(-(r**2) / 2))

    pull = integrate.quad(lambda r: mass * r * math.exp(-(r**2) / 2) * inside(r) / math.pi, 0, 12)[0]
    assert cf.keller_segel_rate(mass).item() == pytest.approx(4 * mass - pull, abs=1e-7)


# --- what is refused -----------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[], object], str]] = {
    "a covariance": (lambda: cf.fokker_planck_step([0.0], [[-1.0]], [[1.0]], [0.0], 1.0, 1.0), "of cov"),
    "a mean": (lambda: cf.fokker_planck_step([0.0, 1.0], [[1.0]], [[1.0]], [0.0], 1.0, 1.0), "mean.shape"),
    "an asymmetric drift": (
        lambda: cf.fokker_planck(1.0, [0, 0], np.eye(2), [[1, 1], [0, 1]], [0, 0], 1.0),
        "symmetric",
    ),
    "a step that is not convex": (
        lambda: cf.fokker_planck_step([0.0], [[1.0]], [[-2.0]], [0.0], 1.0, 0.5),
        r"I \+ tau A",
    ),
    "an interaction that is not": (
        lambda: cf.fokker_planck_step([0.0], [[1.0]], [[1.0]], [0.0], 1.0, 0.5, K=[[-4.0]]),
        r"A \+ K",
    ),
    "a negative time": (lambda: cf.fokker_planck(-1.0, [0.0], [[1.0]], [[1.0]], [0.0], 1.0), "backwards"),
    "no temperature": (lambda: cf.fokker_planck(1.0, [0.0], [[1.0]], [[1.0]], [0.0], 0.0), "beta"),
    "a negative deviation": (lambda: cf.heat_step(-1.0, 1.0), "sigma"),
    "fast diffusion": (lambda: cf.barenblatt(0.0, 1.0, 0.5, 2), "m > 1"),
    "half a dimension": (lambda: cf.barenblatt(0.0, 1.0, 2.0, 1.5), "d = 1.5"),  # type: ignore[arg-type]
    "time zero": (lambda: cf.barenblatt(0.0, 0.0, 2.0, 2), "min"),
    "no radius": (lambda: cf.barenblatt_radius_step(-1.0, 1.0, 2.0, 2), "R"),
    "no step": (lambda: cf.barenblatt_radius_step(1.0, 0.0, 2.0, 2), "tau"),
    "no probability": (lambda: cf.barenblatt_quantile(1.5, 1.0, 2.0), "0 <= u <= 1"),
    "an uneven axis": (lambda: cf.barenblatt_grid([[0.0, 1.0, 3.0]], 1.0, 2.0), r"axes\[0\]"),
    "weights of others": (lambda: cf.aggregation_step(np.zeros((3, 1)), 1.0, w=[0.5, 0.5]), "w.shape"),
    "repulsion far away": (lambda: cf.ring_radius(2, 4), "a > b"),
    "a Riesz kernel": (lambda: cf.riesz_radius(1.0, 2.0, 2), "0 < r < 2"),
    "a negative mass": (lambda: cf.keller_segel_rate(-1.0), "mass"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    call, words = BAD[name]
    with pytest.raises(InputError, match=words):
        call()
