"""Brownian paths that refine, and the strong orders of Euler-Maruyama on them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from torch import Tensor

import otflow as of
from tests.samples import DECAY, ZERO, Linear, hill, normal, slope, unit

SIGMAS = 4.5  # a fair statistic strays this far once in 150 000 seeds
times = st.floats(0.0, 5.0, allow_nan=False, allow_subnormal=False)


def strays(sample: np.ndarray, mean: float, deviation: float) -> float:
    """How many standard errors the mean of a sample is off."""
    return abs(float(sample.mean()) - mean) / (deviation / math.sqrt(sample.size))


# --- the path ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (0.3, 0.4), (0.7, 2.2), (0.1, 0.1 + 1e-4), (1.0, 4.0)])
def test_an_increment_is_normal_with_variance_b_minus_a(a: float, b: float) -> None:
    scaled = of.dynamics.BrownianPath(1, (40_000,)).increment(a, b) / math.sqrt(b - a)
    assert strays(scaled, 0.0, 1.0) < SIGMAS
    assert strays(scaled**2, 1.0, math.sqrt(2)) < SIGMAS
    assert strays(scaled**4, 3.0, math.sqrt(96)) < SIGMAS


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.0, 0.5), (0.5, 1.0)),
        ((0.1, 0.3), (0.3, 0.9)),
        ((0.2, 0.6), (1.1, 3.0)),
        ((0.25, 0.375), (0.375, 0.4)),
    ],
)
def test_increments_over_disjoint_intervals_are_uncorrelated(
    first: tuple[float, float], second: tuple[float, float]
) -> None:
    path = of.dynamics.BrownianPath(2, (40_000,))
    x, y = (path.increment(a, b) / math.sqrt(b - a) for a, b in (first, second))
    assert strays(x * y, 0.0, 1.0) < SIGMAS
    assert strays(x**2 * y**2, 1.0, math.sqrt(8)) < SIGMAS


def test_overlapping_increments_share_the_variance_of_their_overlap() -> None:
    path = of.dynamics.BrownianPath(3, (40_000,))
    product = path.increment(0.0, 0.7) * path.increment(0.4, 1.3)
    assert strays(product, 0.3, math.sqrt(0.7 * 0.9 + 0.3**2)) < SIGMAS


def test_components_are_uncorrelated() -> None:
    x, y = of.dynamics.BrownianPath(4, (2, 40_000)).increment(0.0, 1.0)
    assert strays(x * y, 0.0, 1.0) < SIGMAS


def test_different_seeds_are_uncorrelated() -> None:
    x, y = (of.dynamics.BrownianPath(seed, (40_000,))(0.8) / math.sqrt(0.8) for seed in (5, 6))
    assert strays(x * y, 0.0, 1.0) < SIGMAS


def test_a_path_starts_at_zero() -> None:
    assert np.array_equal(of.dynamics.BrownianPath(0, (2, 3))(0.0), np.zeros((2, 3)))


@given(st.lists(times, min_size=2, max_size=6))
@settings(deadline=None, max_examples=40)
def test_increments_add_up_over_any_subdivision(cuts: list[float]) -> None:
    path, cuts = of.dynamics.BrownianPath(7, (3,)), sorted(cuts)
    parts = sum(path.increment(a, b) for a, b in itertools.pairwise(cuts))
    np.testing.assert_allclose(parts, path.increment(cuts[0], cuts[-1]), rtol=0, atol=1e-13)


@given(st.permutations([0.0, 0.1, 0.125, 0.3, 0.5, 0.77, 1.0, 1.6, 2.25, 3.9]))
@settings(deadline=None, max_examples=30)
def test_the_path_does_not_depend_on_the_order_of_queries(order: list[float]) -> None:
    one, other = of.dynamics.BrownianPath(8, (2,)), of.dynamics.BrownianPath(8, (2,))
    expected = {t: one(t) for t in sorted(order)}
    assert all(np.array_equal(other(t), expected[t]) for t in order)


def test_a_seed_fixes_the_path_and_another_seed_changes_it() -> None:
    assert np.array_equal(of.dynamics.BrownianPath(9, (3,))(0.3), of.dynamics.BrownianPath(9, (3,))(0.3))
    assert not np.allclose(of.dynamics.BrownianPath(9, (3,))(0.3), of.dynamics.BrownianPath(10, (3,))(0.3))


def test_a_generator_gives_a_new_path_each_time_and_the_same_ones_again() -> None:
    def two(rng: np.random.Generator) -> list[np.ndarray]:
        return [of.dynamics.BrownianPath(rng, (2,))(1.0) for _ in range(2)]

    a, b = two(np.random.default_rng(0)), two(np.random.default_rng(0))
    assert np.array_equal(a, b)
    assert not np.allclose(a[0], a[1])


@pytest.mark.parametrize("t", [-0.1, math.nan, math.inf])
def test_there_is_no_path_before_zero_or_at_infinity(t: float) -> None:
    with pytest.raises(of.InputError, match="starts at 0"):
        of.dynamics.BrownianPath(0, (1,))(t)


def test_below_its_finest_level_the_path_is_linear() -> None:
    path, h = of.dynamics.BrownianPath(0, (3,), depth=4), 2.0**-4
    np.testing.assert_allclose(path(h / 4), path(h) / 4, rtol=1e-14)


# --- the noise in a flow -----------------------------------------------------------------------------


def test_a_run_with_zero_field_follows_the_path() -> None:
    path, x = of.dynamics.BrownianPath(11, (4, 2)), normal(4, 2)
    traj = of.flow(
        of.Particles(x), ZERO, of.Euler(), t1=1.0, dt=0.3, noise=of.IndependentNoise(0.7, path=path)
    )
    for t, mu in zip(traj.ts.tolist(), traj.measures, strict=True):
        np.testing.assert_allclose(mu.coords[0], x + 0.7 * path(t), atol=1e-12)


def test_runs_with_different_steps_share_a_path() -> None:
    path = of.dynamics.BrownianPath(12, (4, 2))
    ends = [
        of.flow(
            of.Particles(normal(4, 2)),
            ZERO,
            of.Euler(),
            t1=1.0,
            dt=dt,
            noise=of.IndependentNoise(1.0, path=path),
        )
        for dt in (0.5, 0.11, 0.01)
    ]
    for traj in ends:
        torch.testing.assert_close(traj.final.x, ends[0].final.x, rtol=0, atol=1e-11)


def test_a_run_is_reproduced_by_its_seed() -> None:
    def run(seed: int) -> Tensor:
        noise = of.IndependentNoise(1.0, rng=seed)
        return of.flow(of.Particles(normal(3, 2)), DECAY, of.Euler(), t1=1.0, dt=0.1, noise=noise).final.x

    assert torch.equal(run(0), run(0))
    assert not torch.allclose(run(0), run(1))


def test_sigma_may_be_a_matrix() -> None:
    path, sigma = of.dynamics.BrownianPath(13, (4, 2)), np.array([[1.0, 2.0], [0.0, 0.5]])
    noise = of.IndependentNoise(sigma, path=path)
    final = of.flow(of.Particles(np.zeros((4, 2))), ZERO, of.Euler(), t1=1.0, dt=0.25, noise=noise).final
    np.testing.assert_allclose(final.x, path(1.0) @ sigma.T, atol=1e-12)


def test_common_noise_translates_the_cloud() -> None:
    path, x = of.dynamics.BrownianPath(14, (2,)), normal(5, 2)
    traj = of.flow(of.Particles(x), ZERO, of.Euler(), t1=1.0, dt=0.1, noise=of.CommonNoise(0.5, path=path))
    np.testing.assert_allclose(traj.final.x, x + 0.5 * path(1.0), atol=1e-12)


def test_common_noise_may_be_shaped_by_a_matrix() -> None:
    path, sigma = of.dynamics.BrownianPath(17, (3, 2)), np.array([[1.0, 2.0], [0.0, 0.5]])
    noise = of.CommonNoise(sigma, path=path)
    final = of.flow(of.Particles(np.zeros((3, 4, 2))), ZERO, of.Euler(), t1=1.0, dt=0.25, noise=noise).final
    expected = (path(1.0) @ sigma.T)[:, None].repeat(4, axis=1)
    np.testing.assert_allclose(final.coords[0], expected, atol=1e-12)


def test_common_noise_cancels_in_the_differences_of_a_linear_flow() -> None:
    """x_i - x_j solves the deterministic equation, here by the same Euler steps."""
    matrix, x = normal(2, 2, seed=1), normal(5, 2)
    options: dict[str, Any] = {"t1": 1.0, "dt": 0.01}
    noisy = of.flow(
        of.Particles(x), Linear(matrix), of.Euler(), noise=of.CommonNoise(2.0, rng=0), **options
    ).final.x
    plain = of.flow(of.Particles(x), Linear(matrix), of.Euler(), **options).final.x
    torch.testing.assert_close(noisy - noisy[:1], plain - plain[:1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(plain, x @ expm(matrix).T, rtol=0.1, atol=0.1)
    assert not torch.allclose(noisy, plain, atol=0.1)


def test_common_noise_is_shared_within_a_member_and_not_between_members() -> None:
    mu0 = of.Particles(np.zeros((3, 4, 2)))
    x = of.flow(mu0, ZERO, of.Euler(), t1=1.0, dt=0.5, noise=of.CommonNoise(1.0, rng=0)).final.x
    assert torch.equal(x, x[:, :1].expand_as(x))
    assert not torch.allclose(x[0], x[1])


def test_common_noise_moves_the_mean_of_a_gaussian_alone() -> None:
    path, g = of.dynamics.BrownianPath(15, (2,)), of.Gaussian(normal(2), root=np.eye(2))
    zero = of.SteepestDescent(of.Potential(lambda x: 0 * x.sum(-1)), of.Wasserstein())
    final = of.flow(g, zero, of.Euler(), t1=1.0, dt=0.25, noise=of.CommonNoise(0.5, path=path)).final
    np.testing.assert_allclose(final.mean, g.mean.numpy() + 0.5 * path(1.0), atol=1e-12)
    assert torch.equal(final.root, g.root)


@pytest.mark.parametrize("mu", [of.Gaussian(np.zeros(2), root=np.eye(2)), hill(12)], ids=repr)
def test_independent_noise_needs_particles_and_names_the_entropy(mu: of.Measure) -> None:
    field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1)), of.Wasserstein())
    with pytest.raises(of.InputError, match="Entropy"):
        of.flow(mu, field, of.Euler(), t1=0.01, dt=0.001, noise=of.IndependentNoise(1.0, rng=0))


def test_common_noise_refuses_grids() -> None:
    field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1)), of.Wasserstein())
    with pytest.raises(of.InputError, match="translates Particles and Gaussians"):
        of.flow(hill(12), field, of.Euler(), t1=0.01, dt=0.001, noise=of.CommonNoise(1.0, rng=0))


def test_a_path_of_the_wrong_shape_is_refused_with_the_right_one() -> None:
    noise = of.IndependentNoise(1.0, path=of.dynamics.BrownianPath(0, (2,)))
    with pytest.raises(of.InputError, match=r"BrownianPath\(rng, \(4, 2\)\)"):
        of.flow(of.Particles(normal(4, 2)), ZERO, of.Euler(), t1=1.0, dt=0.5, noise=noise)


@pytest.mark.parametrize(
    "options", [{}, {"path": of.dynamics.BrownianPath(0, (1,)), "rng": 0}], ids=["neither", "both"]
)
def test_exactly_one_source_of_randomness_is_needed(options: dict[str, Any]) -> None:
    with pytest.raises(of.InputError, match="exactly one"):
        of.IndependentNoise(1.0, **options)


def test_the_stored_velocity_is_forgotten_after_noise() -> None:
    """Dopri5 reuses its last stage as the next first one, which noise makes wrong."""
    path = of.dynamics.BrownianPath(16, (1, 1))
    noise = of.IndependentNoise(1.0, path=path)
    x = of.flow(of.Particles([[1.0]]), DECAY, of.Dopri5(adaptive=False), t1=0.5, dt=0.25, noise=noise).final.x
    one = math.exp(-0.25) + path.increment(0.0, 0.25)
    assert x.item() == pytest.approx((one * math.exp(-0.25) + path.increment(0.25, 0.5)).item(), abs=1e-6)


# --- strong orders -----------------------------------------------------------------------------------

PATHS = 4000
DTS = 2.0 ** -np.arange(3, 8)  # four halvings


class Geometric(of.dynamics.Noise):
    """sigma x dW, in the sense of Ito."""

    def increment(self, t: Tensor, mu: of.Measure, dW: Tensor) -> of.Tangent:
        return of.Tangent([0.8 * mu.coords[0] * dW])


def strong_errors(field: of.VelocityField, noise: of.dynamics.Noise, exact: np.ndarray) -> np.ndarray:
    """Root mean square errors at t = 1 over many tokens, each with a path of its own."""
    mu0 = of.Particles(np.ones((PATHS, 1)))
    ends = [of.flow(mu0, field, of.Euler(), t1=1.0, dt=dt, save_at=[1.0], noise=noise).final for dt in DTS]
    return np.array([np.sqrt(np.mean((mu.coords[0].numpy() - exact) ** 2)) for mu in ends])


def test_euler_maruyama_has_strong_order_one_half_for_multiplicative_noise() -> None:
    path = of.dynamics.BrownianPath(21, (PATHS, 1))
    exact = np.exp((0.3 - 0.8**2 / 2) + 0.8 * path(1.0))  # dX = 0.3 X dt + 0.8 X dW, X_0 = 1
    errors = strong_errors(Linear([[0.3]]), Geometric(path=path), exact)
    assert slope(DTS, errors) == pytest.approx(0.5, abs=0.15)


@pytest.mark.thorough
def test_euler_maruyama_has_strong_order_one_for_additive_noise() -> None:
    path = of.dynamics.BrownianPath(22, (PATHS, 1))
    # dX = -2 X dt + 0.7 dW: X_1 = exp(-2) + 0.7 (W_1 - 2 int_0^1 exp(-2 (1 - s)) W_s ds), trapezoidal.
    cells = 2**12
    interior = sum(math.exp(-2 * (1 - k / cells)) * path(k / cells) for k in range(1, cells))
    exact = math.exp(-2) + 0.7 * (path(1.0) - 2 * (interior + path(1.0) / 2) / cells)
    errors = strong_errors(Linear([[-2.0]]), of.IndependentNoise(0.7, path=path), exact)
    assert slope(DTS, errors) == pytest.approx(1.0, abs=0.15)


def test_an_ornstein_uhlenbeck_process_reaches_its_stationary_variance() -> None:
    x = of.flow(
        of.Particles(np.zeros((PATHS, 1))), DECAY, of.Euler(), t1=4.0, dt=2.0**-5, save_at=[4.0],
        noise=of.IndependentNoise(1.0, rng=23),
    ).final.x.numpy()  # fmt: skip
    h = 2.0**-5
    variance = h * (1 - (1 - h) ** 256) / (1 - (1 - h) ** 2)  # of the Euler scheme itself
    assert strays(x**2, variance, math.sqrt(2) * variance) < SIGMAS


# --- the sphere --------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 3, 5])
def test_brownian_motion_on_the_sphere_forgets_its_start_at_the_right_rate(d: int) -> None:
    """The coordinates are eigenfunctions of the Laplacian: E <x_t, x_0> = exp(-(d - 1) t / 2)."""
    x = unit(6000, d, seed=d)
    mu0 = of.Particles(x, space=of.Sphere())
    noise = of.IndependentNoise(1.0, rng=30 + d)
    traj = of.flow(mu0, ZERO, of.Euler(), t1=0.5, dt=2.0**-7, save_at=[0.25, 0.5], noise=noise)
    for t, mu in zip(traj.ts.tolist(), traj.measures, strict=True):
        torch.testing.assert_close(
            mu.x.norm(dim=-1), torch.ones(6000, dtype=torch.float64), rtol=0, atol=1e-14
        )
        overlap = (mu.x.numpy() * x).sum(-1)
        assert strays(overlap, math.exp(-(d - 1) * t / 2), overlap.std()) < SIGMAS


@pytest.mark.parametrize(
    "noise", [of.IndependentNoise(1.0, rng=0), of.CommonNoise(1.0, rng=0)], ids=["own", "common"]
)
def test_noise_on_the_sphere_is_tangent(noise: of.dynamics.Noise) -> None:
    mu = of.Particles(unit(10, 3), space=of.Sphere())
    dW = torch.from_numpy(noise.bind(mu)(1.0))
    u = noise.increment(torch.zeros(()), mu, dW)[0]
    assert float((u * mu.x).sum(-1).abs().max()) < 1e-15
    assert float(u.abs().max()) > 0.1


def test_common_noise_on_the_sphere_keeps_the_norm() -> None:
    mu0 = of.Particles(unit(10, 3), space=of.Sphere())
    final = of.flow(mu0, ZERO, of.Euler(), t1=1.0, dt=0.05, noise=of.CommonNoise(1.0, rng=0)).final
    torch.testing.assert_close(final.x.norm(dim=-1), torch.ones(10, dtype=torch.float64), rtol=0, atol=1e-14)
    assert not torch.allclose(final.x, mu0.x, atol=0.1)


@pytest.mark.parametrize("rng", [None, -1, 1.5, "seed", True])
def test_a_path_needs_a_source_of_randomness(rng: Any) -> None:
    with pytest.raises(of.InputError, match=r"rng = .*a seed >= 0"):
        of.dynamics.BrownianPath(rng, (2,))
