"""Attention on the sphere: units of time, energies and their extremes, hemispheres, random weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad, solve_ivp

import otflow as of
from otflow.base.errors import InputError
from otflow.papers import perspective

RNG = np.random.default_rng


def eye(d: int) -> torch.Tensor:
    return torch.eye(d, dtype=torch.float64)


def angles(mu: of.Measure) -> torch.Tensor:
    assert isinstance(mu, of.Particles)
    return perspective.angles(mu)


# --- the fields ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalised", [True, False])
def test_a_velocity_is_the_sum_of_the_paper(normalised: bool) -> None:
    n, d, beta = 5, 3, 1.7
    mu = perspective.uniform(n, d, rng=RNG(0))
    x = mu.x.numpy()
    e = np.exp(beta * x @ x.T)
    v = e @ x / (e.sum(1, keepdims=True) if normalised else n)
    v -= (v * x).sum(1, keepdims=True) * x
    found = perspective.attention(beta, d, normalised=normalised)(0.0, mu)[0].numpy()
    assert np.abs(found - v).max() < 1e-14 * math.exp(beta)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_batch_of_temperatures_is_one_run_for_each(normalised: bool) -> None:
    mu = perspective.uniform(6, 4, rng=RNG(1), batch=(3,))
    beta = [0.0, 1.0, 3.0]
    together = perspective.attention(beta, 4, normalised=normalised)(0.0, mu)[0]
    for i, b in enumerate(beta):
        alone = perspective.attention(b, 4, normalised=normalised)(0.0, mu[i])[0]
        assert torch.allclose(together[i], alone, rtol=0, atol=1e-13)


@pytest.mark.parametrize("beta", [0.0, 1.5])
def test_usa_on_the_circle_is_the_equation_of_angles(beta: float) -> None:
    theta = RNG(2).uniform(-1.4, 1.4, 7)

    def angular(_: float, a: np.ndarray) -> np.ndarray:
        gap = a[:, None] - a
        out: np.ndarray = -(np.exp(beta * np.cos(gap)) * np.sin(gap)).mean(1)
        return out

    reference = solve_ivp(angular, (0, 2), theta, method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    field = perspective.attention(beta, 2, normalised=False)
    final = of.flow(perspective.circle(theta), field, of.RK4(), t1=2.0, dt=0.01).final
    assert np.abs(angles(final).numpy() - reference).max() < 1e-8


def test_without_temperature_it_is_the_kuramoto_model_and_the_mean_angle_rests() -> None:
    theta = RNG(3).uniform(-1, 1, (2, 9))
    field = perspective.attention(0.0, 2, normalised=False)
    mu = perspective.circle(theta)
    z = np.exp(1j * theta)
    order = z.mean(
        -1, keepdims=True
    )  # Kuramoto: theta_i' = |r| sin(psi - theta_i) for the order r exp(i psi)
    v = field(0.0, mu)[0].numpy()
    speed = v[..., 1] * np.cos(theta) - v[..., 0] * np.sin(theta)
    assert np.abs(speed - (order * z.conj()).imag).max() < 1e-14
    final = of.flow(mu, field, of.RK4(), t1=12.0, dt=0.05).final
    assert np.abs(angles(final).numpy() - theta.mean(-1, keepdims=True)).max() < 1e-4


def test_angles_come_back() -> None:
    theta = RNG(4).uniform(-np.pi, np.pi, (2, 3, 5))
    assert np.abs(perspective.angles(perspective.circle(theta)).numpy() - theta).max() < 1e-15 * 8


def test_uniform_tokens_have_the_moments_of_the_uniform_law() -> None:
    d, n = 4, 200_000
    x = perspective.uniform(n, d, rng=RNG(5)).x
    assert float((x.norm(dim=-1) - 1).abs().max()) < 1e-14
    assert float(x.mean(0).abs().max()) < 5 / math.sqrt(d * n)
    assert float((x.T @ x / n - eye(d) / d).abs().max()) < 5 / math.sqrt(n) / d
    assert float((x**4).mean() - 3 / (d * (d + 2))) == pytest.approx(0, abs=2e-3)


# --- energies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalised", [True, False])
def test_the_energy_grows_by_the_dissipation(normalised: bool) -> None:
    """dE/dt = int |v|^2 dmu for USA, int |v|^2 Z dmu for SA, along the flow and by differences."""
    beta, d = 2.0, 3
    E, field = perspective.energy(beta, d), perspective.attention(beta, d, normalised=normalised)
    mu = perspective.uniform(8, d, rng=RNG(6))
    ts = [0.3 - 1e-3, 0.3, 0.3 + 1e-3]
    traj = of.flow(mu, field, of.RK4(), t1=ts[-1], dt=0.01, save_at=ts)
    before, at, after = traj.measures
    x = at.coords[0]
    Z = torch.exp(beta * x @ x.mT).mean(-1) if normalised else torch.ones(8, dtype=torch.float64)
    rate = (field(0.0, at)[0].square().sum(-1) * Z).mean()
    assert float((E(after) - E(before)) / 2e-3) == pytest.approx(float(rate), rel=1e-5)


def test_usa_is_n_times_the_gradient_in_the_positions() -> None:
    mu = perspective.uniform(6, 3, rng=RNG(7))
    x = mu.x.clone().requires_grad_()
    (g,) = torch.autograd.grad(perspective.energy(1.3, 3)(mu.at([x])), x)
    ascent = mu.space.tangent(mu.x, 6 * g)
    assert torch.allclose(perspective.attention(1.3, 3, normalised=False)(0.0, mu)[0], ascent, atol=1e-13)


@pytest.mark.parametrize("normalised", [True, False])
def test_the_balance_of_energy_and_dissipation_closes(normalised: bool) -> None:
    """As steepest descent of -E: in W2 for USA, in the metric weighed by the partition function for SA."""
    beta, d = 1.5, 3
    A = beta * eye(d)
    metric = of.Twisted(of.metrics.Partition(A)) if normalised else of.Wasserstein()
    descent = of.SteepestDescent(-1.0 * perspective.energy(beta, d), metric)
    field = perspective.attention(beta, d, normalised=normalised)
    mu = perspective.uniform(10, d, rng=RNG(8))
    assert torch.allclose(descent(0.0, mu)[0], field(0.0, mu)[0], atol=1e-12)
    balance = of.energy_balance(of.flow(mu, field, of.RK4(), t1=1.0, dt=0.005), descent)
    assert bool(balance.monotone)
    assert float(balance.relative) < 1e-4


def test_extreme_energies_are_those_of_the_uniform_law_and_of_a_point() -> None:
    for beta, d in [(0.5, 2), (2.0, 3), (7.0, 5)]:
        low, high = perspective.extreme_energies(beta, d)
        weight, value = (  # the law of x_1 = cos a has density sin(a)^(d - 2)
            quad(lambda a, b=b, d=d: math.exp(b * math.cos(a)) * math.sin(a) ** (d - 2), 0, math.pi)[0]
            for b in (0.0, beta)
        )
        assert float(low) == pytest.approx(value / weight / (2 * beta), rel=1e-8)
        point = of.Particles(eye(d)[:1], space=of.Sphere())
        assert float(high) == pytest.approx(float(perspective.energy(beta, d)(point)), rel=1e-14)


@pytest.mark.parametrize("d", [2, 3, 17, 512, 10**5])
def test_the_least_energy_has_its_digits_for_large_beta_and_d(d: int) -> None:
    with mpmath.workdps(40):
        for beta in (1e-6, 0.3, 12.0, 150.0, 600.0, 5000.0):
            exact = mpmath.log(mpmath.hyp0f1(mpmath.mpf(d) / 2, mpmath.mpf(beta) ** 2 / 4))
            found = perspective.log_extreme_energies(beta, d)[0].item()
            assert found == pytest.approx(
                float(exact - mpmath.log(2 * mpmath.mpf(beta))), rel=0, abs=1e-14 * beta + 4e-15
            )
    low, high = perspective.extreme_energies(600.0, d)
    assert 0 < low < high < math.inf


def test_energies_of_clouds_lie_between_the_extremes() -> None:
    mu = perspective.uniform(400, 3, rng=RNG(9), batch=(4,))
    low, high = perspective.extreme_energies(1.0, 3)
    E = perspective.energy(1.0, 3)(mu)
    assert float(low) < float(E.min()) < float(E.max()) < 1.01 * float(low) < float(high)


# --- hemispheres ---------------------------------------------------------------------------------------


def test_the_probability_of_a_hemisphere_is_the_number_of_the_paper() -> None:
    assert float(perspective.hemisphere_probability(10, 3)) == pytest.approx(0.08984, abs=5e-6)


@pytest.mark.parametrize(
    ("n", "d"), [(2, 2), (5, 3), (64, 10), (300, 140), (1000, 3), (1000, 600), (10**5, 50_000)]
)
def test_the_probability_of_a_hemisphere_is_a_sum_of_binomials(n: int, d: int) -> None:
    term, total = 1, 0
    for k in range(d):
        total, term = total + term, term * (n - 1 - k) // (k + 1)
    assert float(perspective.hemisphere_probability(n, d)) == pytest.approx(
        float(Fraction(total, 2 ** (n - 1))), rel=1e-13
    )


def test_tokens_in_the_plane_share_a_half_plane_as_often_as_wendel_says() -> None:
    n, samples = 6, 40_000
    theta = np.sort(RNG(10).uniform(0, 2 * np.pi, (samples, n)))
    gaps = np.diff(np.concatenate([theta, theta[:, :1] + 2 * np.pi], 1))
    share = (gaps.max(1) > np.pi).mean()
    p = float(perspective.hemisphere_probability(n, 2))
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / samples)


@pytest.mark.slow
def test_from_a_hemisphere_tokens_meet_at_least_as_fast_as_the_bound() -> None:
    """alpha = min <x_i, x*>: alpha' >= (1 - alpha) / (2 n exp(2 beta)) (Lemma 6.4 and its proof)."""
    beta, n, d = 1.0, 6, 3
    x = perspective.uniform(n, d, rng=RNG(11)).x
    x = torch.where(x[:, :1] > 0, x, -x)
    traj = of.flow(
        of.Particles(x, space=of.Sphere()), perspective.attention(beta, d), of.RK4(), t1=40.0, dt=0.1
    )
    path = traj.stacked.coords[0]
    alpha = (path @ path[-1, 0]).amin(-1)
    ts = traj.ts
    assert float(1 - alpha[-1]) < 1e-12
    held = 1 - alpha <= (1 - alpha[0]) * torch.exp(-ts / (2 * n * math.exp(2 * beta))) + 1e-12
    assert bool(held.all())
    rate = -torch.log((1 - alpha[60]) / (1 - alpha[50])) / (ts[60] - ts[50])
    assert float(rate) > 10 / (2 * n * math.exp(2 * beta))  # the bound is far from what is seen


@pytest.mark.slow(but_for=["1.0"])
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.5])
def test_in_three_dimensions_all_tokens_meet(beta: float) -> None:
    mu = perspective.uniform(8, 3, rng=RNG(12), batch=(6,))
    final = of.flow(mu, perspective.attention(beta, 3), of.Dopri5(), t1=1000.0, save_at=[1000.0]).final
    assert bool((of.observables.cluster_count(final, radius=1e-3) == 1).all())


# --- random weights ------------------------------------------------------------------------------------


def test_random_matrices_have_their_spectra() -> None:
    d = 400
    G, H = perspective.ginibre(d, rng=RNG(13)), perspective.goe(d, rng=RNG(14))
    assert float(torch.linalg.eigvals(G).abs().max()) == pytest.approx(1.0, abs=0.1)
    assert float(torch.linalg.svdvals(G)[0]) == pytest.approx(2.0, abs=0.1)
    values = torch.linalg.eigvalsh(H)
    assert float(values[-1]) == pytest.approx(2.0, abs=0.1)
    assert float(values.square().mean()) == pytest.approx(1.0, abs=0.05)


def test_a_learned_like_matrix_is_a_multiple_of_the_identity_plus_a_power_law() -> None:
    A = perspective.learned_like(12, 5, rng=RNG(15), decay=0.7, identity=0.3, batch=(2,))
    s = torch.linalg.svdvals(A - 0.3 * eye(12))
    expected = torch.zeros(12, dtype=torch.float64)
    expected[:5] = torch.arange(1.0, 6.0, dtype=torch.float64) ** -0.7
    assert torch.allclose(s, expected.expand(2, 12), atol=1e-13)


def test_redrawn_weights_change_at_each_period_and_can_be_flowed_with() -> None:
    rng = RNG(16)
    Q = perspective.redrawn(lambda: perspective.ginibre(3, rng=rng), 0.5, 2.0)
    assert Q.values.shape == (4, 3, 3)
    assert Q.switches == (0.5, 1.0, 1.5)
    assert not torch.equal(Q.values[0], Q.values[1])
    mu = perspective.uniform(5, 3, rng=rng)
    traj = of.flow(mu, of.SoftmaxAttention(Q, eye(3), eye(3)), of.RK4(), t1=2.0, dt=0.2)
    assert traj.status == "ok"


def test_a_seed_is_as_good_as_its_generator() -> None:
    draws = (
        lambda rng: perspective.uniform(3, 2, rng=rng, batch=(2,)).x,
        lambda rng: perspective.ginibre(3, rng=rng),
        lambda rng: perspective.goe(3, rng=rng, batch=(2,)),
        lambda rng: perspective.learned_like(4, 2, rng=rng),
    )
    for draw in cast("Any", draws):
        assert torch.equal(draw(5), draw(RNG(5)))
    A = perspective.learned_like(4, 2, rng=5, identity=0.0)
    assert not torch.allclose(A, A.mT)  # two sets of directions, not one twice


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: perspective.attention(math.nan, 2), "beta"),
        (lambda: perspective.attention(1.0, 0), "d"),
        (lambda: perspective.circle(1.0), "theta"),
        (lambda: perspective.angles(perspective.uniform(3, 3, rng=RNG(0))), "mu.d"),
        (lambda: perspective.uniform(0, 3, rng=RNG(0)), "n"),
        (lambda: perspective.uniform(2, 3, rng=cast("Any", None)), "rng"),
        (lambda: perspective.goe(2, rng=-1), "rng"),
        (lambda: perspective.uniform(2, 3, rng=0, batch=(0,)), "batch"),
        (lambda: perspective.ginibre(2, rng=0, batch=cast("Any", (1.5,))), "batch"),
        (lambda: perspective.redrawn(iter([eye(2), eye(3)]).__next__, 1.0, 2.0), "draw"),
        (lambda: perspective.redrawn(lambda: 1.0, 1.0, 2.0), "draw"),
        (lambda: perspective.energy(0.0, 2), "beta"),
        (lambda: perspective.extreme_energies(-1.0, 2), "beta"),
        (lambda: perspective.extreme_energies(1.0, 1), "d"),
        (lambda: perspective.extreme_energies(800.0, 3), "beta = 800.0"),
        (lambda: perspective.hemisphere_probability(0, 2), "n"),
        (lambda: perspective.hemisphere_probability([2, 3], [2, 3, 4]), "shapes of n, d"),
        (lambda: perspective.learned_like(3, 4, rng=RNG(0)), "rank"),
        (lambda: perspective.learned_like(3, 2, rng=RNG(0), decay=-1.0), "decay"),
        (lambda: perspective.redrawn(cast("Any", 3), 1.0, 2.0), "draw"),
        (lambda: perspective.redrawn(lambda: eye(2), 0.0, 2.0), "period"),
    ],
)
def test_wrong_input_is_named(call: Callable[[], object], name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}"):
        call()
