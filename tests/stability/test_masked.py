"""Masked attention in the conditional distance: what it controls, with which constant, and where it fails."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import otflow as of
from otflow.transport.exact.sequences import positions, sequence_distance

Array = np.ndarray
RNG = np.random.default_rng(0)
Q, K, V = (0.6 * RNG.normal(size=(2, 2)) for _ in range(3))
ZERO, ONE = [[0.0]], [[1.0]]
AVERAGE = of.SoftmaxAttention(ZERO, ZERO, ONE, causal=True)  # the mean of the tokens up to one's own
FIELDS: dict[str, of.VelocityField] = {
    "softmax": of.SoftmaxAttention(Q, K, V, causal=True),
    "L2": of.L2Attention(Q, K, V, causal=True),
    "sigmoid": of.SigmoidAttention(Q, K, V, causal=True),
    "multi-head": of.MultiHead(
        [of.SoftmaxAttention(Q, K, V, causal=True), of.L2Attention(K, Q, V, causal=True)], mix=[V, Q]
    ),
}
STEPPERS: dict[str, tuple[of.Stepper, float | None]] = {
    "Euler": (of.Euler(), 0.1),
    "Heun": (of.Heun(), 0.1),
    "RK4": (of.RK4(), 0.1),
    "Dopri5": (of.Dopri5(rtol=1e-10, atol=1e-12), None),
    "Rosenbrock": (of.Rosenbrock(), None),
}


def in_ball(rng: np.random.Generator, *shape: int) -> Array:
    """Points of the unit ball, half of them on its boundary."""
    x = rng.normal(size=shape)
    radius = np.where(rng.random((*shape[:-1], 1)) < 0.5, 1.0, rng.random((*shape[:-1], 1)))
    return radius * x / np.linalg.norm(x, axis=-1, keepdims=True)


def moved(field: of.VelocityField, mu: of.Particles) -> of.Particles:
    """The velocities of the tokens, as a sequence."""
    return of.Particles(field(0.0, mu)[0], mu.w, mu.label)


def gain(field: of.VelocityField, mu: of.Particles, nu: of.Particles, p: float) -> torch.Tensor:
    """d_p(Gamma mu, Gamma nu) / d_p(mu, nu), (*batch,)."""
    after = of.conditional_wasserstein(moved(field, mu), moved(field, nu), p)
    return after / of.conditional_wasserstein(mu, nu, p)


def first_token_moved(n: int) -> tuple[of.Particles, of.Particles]:
    x = np.zeros((n, 1))
    y = x.copy()
    y[0] = 1.0
    return of.Particles(x, label=positions(n)), of.Particles(y, label=positions(n))


# --- labels --------------------------------------------------------------------------------------------


@pytest.mark.slow(but_for=["*-Euler", "*-Heun", "*-RK4", "softmax-*", "sigmoid-Dopri5"])
@pytest.mark.parametrize("stepper", STEPPERS)
@pytest.mark.parametrize("field", FIELDS)
def test_labels_stay_and_the_past_does_not_see_the_future(field: str, stepper: str) -> None:
    rng = np.random.default_rng(1)
    x = in_ball(rng, 12, 2)
    y = x.copy()
    late = np.array([1, 4, 7, 11])
    y[late] = in_ball(rng, 4, 2)
    label = rng.permutation(12) // 2 * 1.0  # in pairs
    label[late] += 20.0
    method, dt = STEPPERS[stepper]
    a, b = (of.flow(of.Particles(z, label=label), FIELDS[field], method, t1=0.5, dt=dt).final for z in (x, y))
    early = np.setdiff1d(np.arange(12), late)
    tol = 1e-13 if dt else 1e-5  # steps that adapt to the future move the past within their tolerance
    assert torch.equal(a.label, torch.from_numpy(label))
    assert (a.x[early] - b.x[early]).abs().max() <= tol
    assert (a.x[late] - b.x[late]).abs().max() > 1e-2


# --- one order too low ---------------------------------------------------------------------------------


@pytest.mark.slow(but_for=["10", "100", "1000"])
@pytest.mark.parametrize("n", [10, 100, 1000, 10_000])
def test_the_first_of_n_tokens_moves_all_velocities_by_a_harmonic_number(n: int) -> None:
    mu, nu = first_token_moved(n)
    inverse = 1 / np.arange(1, n + 1)
    assert gain(AVERAGE, mu, nu, 1).item() == pytest.approx(math.fsum(inverse), rel=1e-10)
    assert gain(AVERAGE, mu, nu, 2).item() == pytest.approx(math.sqrt(math.fsum(inverse**2)), rel=1e-10)
    assert gain(AVERAGE, mu, nu, 2).item() <= math.pi / math.sqrt(6)
    assert gain(AVERAGE, mu, nu, math.inf).item() == 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2, 10, 100, 400])
def test_along_the_flow_the_first_token_acts_like_a_mean_of_bessel_functions(n: int) -> None:
    """sum_i e_i(t) = E I_0(2 sqrt(t M)), M the largest of n standard exponential variables.

    exp(t C), C the means of the first i tokens, is the Hausdorff matrix with the moments exp(t / (k + 1)).
    """
    mu, nu = first_token_moved(n)
    found = of.coupled(mu, nu, AVERAGE, of.RK4(), t1=1.0, dt=0.025, p=1).final.item()
    density = lambda s: n * mpmath.exp(-s) * (1 - mpmath.exp(-s)) ** (n - 1)  # noqa: E731
    exact = mpmath.quad(
        lambda s: density(s) * mpmath.besseli(0, 2 * mpmath.sqrt(s)), [0, 2, 5, 10, 20, 40, 80]
    )
    assert found == pytest.approx(float(exact), rel=1e-6)
    assert found > float(mpmath.besseli(0, 2 * mpmath.sqrt(mpmath.harmonic(n)))) * (1 - 1e-6)


def test_along_the_flow_order_two_stays_below_hardys_constant() -> None:
    ratios = [
        of.coupled(*first_token_moved(n), AVERAGE, of.RK4(), t1=1.0, dt=0.1).final.item() for n in (10, 300)
    ]
    assert ratios[0] < ratios[1] < math.exp(2.0)


# --- the estimate --------------------------------------------------------------------------------------


def norms() -> tuple[float, float, float, float]:
    v, a, q, k = (float(np.linalg.norm(m, 2)) for m in (V, K.T @ Q, Q, K))
    return v, a, q, k


def softmax_constant(p: float) -> float:
    v, a, *_ = norms()
    return v * a + hardy(p) * v * (1 + 2 * a) * math.exp(2 * a)


def l2_constant(p: float) -> float:
    v, a, q, k = norms()
    return 2 * v * a + hardy(p) * v * (1 + 2 * k * math.sqrt(2 / math.e)) * math.exp((q + k) ** 2)


def sigmoid_constant(p: float) -> float:
    v, a, *_ = norms()
    return v * a / 4 + v * (1 + a / 4)


def hardy(p: float) -> float:
    return 1.0 if math.isinf(p) else p / (p - 1)


CONSTANTS: dict[str, Callable[[float], float]] = {
    "softmax": softmax_constant,
    "L2": l2_constant,
    "sigmoid": sigmoid_constant,
}


@pytest.mark.parametrize("p", [1.5, 2.0, 4.0, math.inf])
@pytest.mark.parametrize("field", CONSTANTS)
def test_velocities_are_lipschitz_in_the_conditional_distance(field: str, p: float) -> None:
    rng = np.random.default_rng(2)
    ties = not math.isinf(p)
    label = rng.integers(0, 8, 16) if ties else rng.permutation(16)
    w = rng.dirichlet(np.ones(16))
    x = in_ball(rng, 100, 16, 2)
    toward = in_ball(rng, 100, 16, 2) * (rng.random((100, 16, 1)) < rng.random((100, 1, 1)))
    size = 10 ** -rng.uniform(0, 6, (100, 1, 1))
    mu, nu = (of.Particles(z, w, label) for z in (x, (1 - size) * x + size * toward))
    ratio = gain(FIELDS[field], mu, nu, p)
    assert ratio.max() <= CONSTANTS[field](p)
    assert ratio.max() >= CONSTANTS[field](p) / 100  # the bound is of the size of what happens


@pytest.mark.parametrize(("p", "reached"), [(1.5, 2.1), (2.0, 1.65), (4.0, 1.25)])
def test_hardys_factor_is_needed(p: float, reached: float) -> None:
    n = 4000
    x = np.arange(1.0, n + 1)[:, None] ** (-1 / p)
    mu, nu = (of.Particles(z, label=positions(n)) for z in (0 * x, x))
    assert reached < gain(AVERAGE, mu, nu, p).item() < p / (p - 1)


def test_the_norm_at_order_two_is_that_of_the_cesaro_matrix() -> None:
    n = 200
    C = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    _, s, right = np.linalg.svd(C)
    mu, nu = (of.Particles(z, label=positions(n)) for z in (np.zeros((n, 1)), right[0][:, None]))
    assert gain(AVERAGE, mu, nu, 2).item() == pytest.approx(s[0], rel=1e-10)
    assert s[0] < 2


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), p=st.sampled_from([1.1, 1.5, 2.0, 4.0]), ties=st.booleans())
def test_averages_over_the_past_obey_hardys_inequality_with_any_weights(
    seed: int, p: float, ties: bool
) -> None:
    """sum_n w_n (A_n / W_n)^p <= (p / (p - 1))^p sum_n w_n a_n^p (Copson 1928), and fibres average first."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    w = 10 ** rng.uniform(-8, 0, n)
    a = 10 ** rng.uniform(-4, 1, n)
    label = rng.integers(0, n, n) if ties else rng.permutation(n)
    mu = of.Particles(a[:, None], w / w.sum(), label)
    mean = AVERAGE(0.0, mu)[0][:, 0].numpy()
    seen = label[:, None] >= label
    np.testing.assert_allclose(mean, (seen @ (w * a)) / (seen @ w), rtol=1e-12)
    assert (w * mean**p).sum() <= (p / (p - 1)) ** p * (w * a**p).sum() * (1 + 1e-12)


# --- what the plain distance does not see ----------------------------------------------------------------


def test_the_same_tokens_in_another_order_flow_apart() -> None:
    x = in_ball(np.random.default_rng(3), 20, 2)
    mu, nu = of.Particles(x, label=positions(20)), of.Particles(x[::-1].copy(), label=positions(20))
    assert of.wasserstein(mu, nu).item() <= 1e-12
    a, b = (of.flow(m, FIELDS["softmax"], of.RK4(), t1=1.0, dt=0.1).final for m in (mu, nu))
    assert of.wasserstein(a, b).item() > 0.05


# --- limits of long sequences --------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 4])
def test_long_sequences_follow_the_limit_of_averages_on_curves(p: float) -> None:
    """x(s)' = 1/s int_0^s x: monomials are eigenfunctions, s^k grows like exp(t / (k + 1))."""
    t, fine = 1.0, positions(8192)
    exact = torch.stack([math.exp(t) + 0 * fine, math.exp(t / 2) * fine, math.exp(t / 4) * fine**3], -1)
    field = of.SoftmaxAttention(np.zeros((3, 3)), np.zeros((3, 3)), np.eye(3), causal=True)
    errors = []
    for n in (64, 256):
        s = positions(n)
        mu = of.Particles(torch.stack([s**0, s, s**3], -1), label=s)
        end = of.flow(mu, field, of.RK4(), t1=t, dt=0.05).final
        errors.append(sequence_distance(end, of.Particles(exact, label=fine), p).item())
    assert math.log(errors[0] / errors[1], 4) == pytest.approx(1.0, abs=0.05)


def test_tokens_that_are_random_given_their_label_have_no_limit_in_the_conditional_distance() -> None:
    """Every label has one token, at the mean square distance 2 Var from the law there."""
    rng = np.random.default_rng(4)
    law = of.Particles(np.linspace(-1, 1, 201)[:, None], label=np.zeros(201))  # the same at every quantile
    for n in (100, 1600):
        mu = of.Particles(rng.uniform(-1, 1, (n, 1)), label=positions(n))
        assert sequence_distance(mu, law).item() == pytest.approx(math.sqrt(2 / 3), rel=0.1)
        assert of.wasserstein(mu, law).item() < 2 / math.sqrt(n)


# --- errors --------------------------------------------------------------------------------------------


def test_sequences_that_cannot_be_compared_are_refused() -> None:
    mu = of.Particles([[0.0], [1.0]], label=[0, 1])
    other, heavy = (
        of.Particles([[0.0], [2.0]], label=[0, 2]),
        of.Particles([[0.0], [2.0]], [0.3, 0.7], [0, 1]),
    )
    options = {"t1": 1.0, "dt": 0.5}
    for nu in (other, heavy):
        with pytest.raises(of.InputError, match="law of labels"):
            of.coupled(mu, nu, AVERAGE, of.RK4(), **options)
    with pytest.raises(of.InputError, match="only one of the measures has labels"):
        of.coupled(mu, of.Particles([[0.0], [2.0]]), AVERAGE, of.RK4(), **options)
    with pytest.raises(of.InputError, match=r"p = 0\.9"):
        of.coupled(mu, of.Particles([[0.0], [2.0]], label=[0, 1]), AVERAGE, of.RK4(), p=0.9, **options)
    with pytest.raises(of.InputError, match="order of the tokens"):
        AVERAGE(0.0, of.Particles([[0.0]]))


def test_a_fibre_without_mass_does_not_count() -> None:
    x, label = [[0.0], [5.0], [1.0]], [0.0, 0.5, 1.0]
    mu = of.Particles(x, [0.5, 0.0, 0.5], label)
    nu = of.Particles([[0.5], [1.0]], label=[0.0, 1.0])
    assert of.conditional_wasserstein(mu, nu).item() == pytest.approx(math.sqrt(0.125))
    full = of.coupled(of.Particles([[0.0], [1.0]], label=[0.0, 1.0]), nu, AVERAGE, of.RK4(), t1=1.0, dt=0.1)
    assert of.coupled(mu, nu, AVERAGE, of.RK4(), t1=1.0, dt=0.1).final.item() == pytest.approx(
        full.final.item(), rel=1e-12
    )
