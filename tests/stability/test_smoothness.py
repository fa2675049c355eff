"""Local Lipschitz constants against dense Jacobians, and bounds that hold but not by much."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import otflow as of
from otflow.base.errors import ConvergenceError, InputError, NotFiniteError
from otflow.stability.local_constant import local_constant
from otflow.stability.smoothness import (
    adversarial_tokens,
    ball_bound,
    data_bound,
    discrete_bound,
    mean_field_bound,
)
from tests import dense
from tests.samples import Given, Largest, Linear, normal, slope, unit

Array = np.ndarray
Q, K, V, W = (0.7 * normal(3, 3, seed=s) for s in range(4))
EYE = np.eye(3)
LABEL = np.array([3, 0, 1, 1, 2, 5, 4])
HEADS = [("softmax", Q, K, V, W, False), ("l2", K, Q, V[:2], W[:, :2], True)]
FIELDS: dict[str, tuple[of.VelocityField, Callable[..., Array]]] = {
    "softmax": (of.SoftmaxAttention(Q, K, V), lambda x, w: dense.softmax(Q, K, V, x, w, x)),
    "L2": (of.L2Attention(Q, K, V), lambda x, w: dense.l2(Q, K, V, x, w, x)),
    "sigmoid": (of.SigmoidAttention(Q, K, V), lambda x, w: dense.sigmoid(Q, K, V, x, w, x)),
    "unnormalised": (
        of.UnnormalisedAttention(0.5 * Q, K, V),
        lambda x, w: dense.unnormalised(0.5 * Q, K, V, x, w, x),
    ),
    "causal": (
        of.SoftmaxAttention(Q, K, V, causal=True),
        lambda x, w: dense.softmax(Q, K, V, x, w, x, dense.visible(LABEL)),
    ),
    "multi-head": (
        of.MultiHead(
            [of.SoftmaxAttention(Q, K, V), of.L2Attention(K, Q, V[:2], causal=True)], mix=[W, W[:, :2]]
        ),
        lambda x, w: dense.multihead(HEADS, x, w, x, dense.visible(LABEL)),
    ),
    "Sinkhorn": (
        of.SinkhornAttention(Q, K, V, of.Sinkhorn(2.0, tol=1e-12)),
        lambda x, w: dense.sinkhorn(Q, K, V, x, w, x, eps=2.0),
    ),
    "with a perceptron": (
        of.SoftmaxAttention(Q, K, V) + 0.5 * of.Perceptron(W, V, EYE[0], torch.tanh),
        lambda x, w: dense.softmax(Q, K, V, x, w, x) + 0.5 * dense.perceptron(W, V, EYE[0], np.tanh, x),
    ),
}


def jacobian(velocity: Callable[[Array, Array], Array], x: Array, w: Array, h: float = 1e-5) -> Array:
    """sqrt(w_i) d v_i / d x_j / sqrt(w_j) by central differences, (n d, n d)."""

    def column(k: int) -> Array:
        u = h * np.eye(x.size)[k].reshape(x.shape)
        gap = (velocity(x + u, w) - velocity(x - u, w)) / (2 * h)
        return np.asarray((np.sqrt(w)[:, None] * gap).ravel())

    J = np.stack([column(k) for k in range(x.size)], 1)
    return np.asarray(J / np.repeat(np.sqrt(w), x.shape[1]))


def weights(n: int = 7, seed: int = 0) -> Array:
    w = np.random.default_rng(seed).uniform(0.5, 2.0, n)
    return np.asarray(w / w.sum())


def softmax_on_the_line(a: float, v: float = 1.0) -> of.SoftmaxAttention:
    return of.SoftmaxAttention([[a]], [[1.0]], [[v]])


# --- the local constant --------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", FIELDS)
def test_the_local_constant_is_the_largest_singular_value_of_the_dense_jacobian(
    name: str, weighted: bool
) -> None:
    field, velocity = FIELDS[name]
    x, w = 0.8 * normal(7, 3, seed=9), weights() if weighted else np.full(7, 1 / 7)
    found = local_constant(of.Particles(x, w=w if weighted else None, label=LABEL), field, tol=1e-7)
    J = jacobian(velocity, x, w)
    assert found.value.item() == pytest.approx(np.linalg.norm(J, 2), rel=1e-7)
    u = (np.sqrt(w)[:, None] * found.direction[0].numpy()).ravel()
    image = (np.sqrt(w)[:, None] * found.image[0].numpy()).ravel()
    assert np.linalg.norm(u) == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(image, J @ u, atol=1e-6)
    residual = np.linalg.norm(J.T @ J @ u - found.value.item() ** 2 * u) / found.value.item() ** 2
    assert found.residual.item() <= 1e-7
    assert residual <= 1e-6
    assert found.status == "ok"


def test_the_members_of_a_batch_have_their_own_constants() -> None:
    x, w, A = normal(2, 3, 6, 2, seed=4), weights(6), normal(3, 2, 2, seed=5)
    eye = np.eye(2)
    found = local_constant(of.Particles(x, w=w), of.SoftmaxAttention(A, eye, eye))
    exact = dense.over_batch(
        lambda y, a: np.linalg.norm(
            jacobian(lambda z, v: dense.softmax(a, eye, eye, z, v, z), y, w), 2, keepdims=True
        )[0],
        (x, 2),
        (A, 2),
    )
    np.testing.assert_allclose(found.value, exact[..., 0], rtol=1e-6)
    assert found.status.shape == (2, 3)
    assert found.direction[0].shape == x.shape


def test_on_a_sphere_it_is_the_covariant_derivative() -> None:
    x, w = unit(5, 3, seed=2), weights(5)
    P = EYE - x[:, :, None] * x[:, None, :]

    def projected(z: Array, v: Array) -> Array:
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
        u = dense.softmax(Q, K, V, z, v, z)
        return np.asarray(u - (u * z).sum(1, keepdims=True) * z)

    J = jacobian(projected, x, w).reshape(5, 3, 5, 3)  # z / |z| has made the directions tangent
    J = np.einsum("iab,ibjc->iajc", P, J).reshape(15, 15)
    mu = of.Particles(x, w=w, space=of.Sphere())
    found = local_constant(mu, of.SoftmaxAttention(Q, K, V))
    assert found.value.item() == pytest.approx(np.linalg.norm(J, 2), rel=1e-6)
    assert float((found.direction[0] * mu.x).sum(-1).abs().max()) < 1e-12


def test_attention_that_averages_has_the_norm_of_its_values() -> None:
    """A = 0 makes J = 11^T / n (x) V."""
    zero = np.zeros((3, 3))
    found = local_constant(of.Particles(normal(9, 3)), of.SoftmaxAttention(zero, zero, V))
    assert found.value.item() == pytest.approx(np.linalg.norm(V, 2), rel=1e-12)


def test_a_single_token_is_moved_by_its_values() -> None:
    field = of.SoftmaxAttention(Q, K, V)
    found = local_constant(of.Particles(normal(1, 3)), field)
    assert found.value.item() == pytest.approx(np.linalg.norm(V, 2), rel=1e-12)
    assert local_constant(of.Particles([[5.0]]), softmax_on_the_line(2.0, -3.0)).value.item() == 3.0


def test_fields_that_do_not_move_with_the_tokens_have_the_constant_zero() -> None:
    found = local_constant(of.Particles(normal(4, 3)), of.SoftmaxAttention(Q, K, 0 * V))
    assert (found.value.item(), found.residual.item(), found.status) == (0.0, 0.0, "ok")
    assert (
        local_constant(of.Particles(normal(4, 3)), Given(lambda t, x: torch.ones_like(x))).value.item() == 0
    )


def test_a_field_that_acts_on_each_token_has_the_norm_of_its_matrix() -> None:
    M = expm(normal(4, 4))
    found = local_constant(of.Particles(normal(30, 4), w=weights(30)), Linear(M))
    assert found.value.item() == pytest.approx(np.linalg.norm(M, 2), rel=1e-10)


def test_weights_may_depend_on_time() -> None:
    field = of.SoftmaxAttention([[0.0]], [[0.0]], lambda t: t.reshape(1, 1))
    assert local_constant(of.Particles([[0.0], [1.0]]), field, 2.5).value.item() == pytest.approx(2.5)


def _power_iteration(field: of.VelocityField, mu: of.Particles, sigma: float, tol: float) -> int:
    """Steps of u <- J*Ju / |J*Ju| until the residual is small."""
    u = torch.from_numpy(np.random.default_rng(0).standard_normal(mu.x.shape))
    for step in range(1, 2000):
        u = u / u.norm()
        v = field.vjp(0.0, mu, field.jvp(0.0, mu, of.Tangent([u])))[0]
        if float((v - (u * v).sum() * u).norm()) <= tol * sigma**2:
            return step
        u = v
    return 2000


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_it_takes_a_third_of_the_steps_of_power_iteration(seed: int) -> None:
    field = of.SoftmaxAttention(*0.3 * normal(3, 12, 12, seed=seed))
    mu = of.Particles(normal(60, 12, seed=seed))
    found = local_constant(mu, field)
    assert 3 * found.iterations <= _power_iteration(field, mu, found.value.item(), 1e-6)


@pytest.mark.thorough
def test_restarts_lose_nothing() -> None:
    field, mu = (
        FIELDS["sigmoid"][0] + 0.3 * of.Perceptron(W, V, EYE[0], torch.tanh),
        of.Particles(normal(80, 3)),
    )
    short, long = (local_constant(mu, field, tol=1e-9, basis=k) for k in (4, 40))
    assert short.value.item() == pytest.approx(long.value.item(), rel=1e-12)
    assert short.iterations > 4


def test_a_start_near_the_answer_saves_steps() -> None:
    field, x = of.SoftmaxAttention(Q, K, V), normal(60, 3)
    cold = local_constant(of.Particles(x), field)
    moved = of.Particles(x + 1e-5 * normal(60, 3, seed=1))
    warm = local_constant(moved, field, start=cold.direction)
    assert warm.value.item() == pytest.approx(local_constant(moved, field).value.item(), rel=1e-9)
    assert warm.iterations < cold.iterations


def test_a_start_in_an_invariant_subspace_does_not_trap_the_search() -> None:
    """With A = 0 directions of mean zero are mapped to zero."""
    zero = np.zeros((2, 2))
    field, mu = of.SoftmaxAttention(zero, zero, np.diag([1.0, 3.0])), of.Particles(normal(4, 2))
    start = of.Tangent([torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]).double()])
    assert local_constant(mu, field, start=start).value.item() == pytest.approx(3.0)


def test_single_precision_will_do() -> None:
    x = normal(40, 3)
    single, double = (
        local_constant(of.Particles(y), of.SoftmaxAttention(*(torch.from_numpy(a).to(k) for a in (Q, K, V))))
        for k, y in ((torch.float32, x.astype(np.float32)), (torch.float64, x))
    )
    assert single.value.dtype == torch.float32
    assert single.value.item() == pytest.approx(double.value.item(), rel=1e-5)


def test_a_search_that_is_cut_short_says_so_and_keeps_a_lower_bound() -> None:
    field, mu = of.SoftmaxAttention(Q, K, V), of.Particles(normal(60, 3))
    exact = local_constant(mu, field)
    with pytest.raises(
        ConvergenceError, match=r"residual .* after 2 steps, tol = 1e-06; raise max_iter"
    ) as error:
        local_constant(mu, field, max_iter=2)
    cut = local_constant(mu, field, max_iter=2, on_failure="return")
    assert cut.status == error.value.result.status == "max_iter"
    assert cut.residual.item() > 1e-6
    assert 0 < cut.value.item() <= exact.value.item() * (1 + 1e-12)
    assert cut.iterations == 2


def test_what_makes_no_sense_is_refused() -> None:
    field, mu = of.SoftmaxAttention(Q, K, V), of.Particles(normal(4, 3))
    with pytest.raises(InputError, match="atom without mass"):
        local_constant(of.Particles(normal(2, 3), w=[1.0, 0.0]), field)
    with pytest.raises(InputError, match="at least four"):
        local_constant(mu, field, basis=3)
    with pytest.raises(InputError, match=r"start\.shape"):
        local_constant(mu, field, start=of.Tangent([torch.zeros(3, 3).double()]))
    with pytest.raises(InputError, match="an instance of Particles"):
        local_constant(of.Gaussian(np.zeros(3), root=EYE), field)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tol"):
        local_constant(mu, field, tol=0.0)


def test_derivatives_that_overflow_are_not_handed_out() -> None:
    field = of.UnnormalisedAttention([[1.0]], [[1.0]], [[1.0]])
    with pytest.raises(NotFiniteError, match="not finite"):
        local_constant(of.Particles([[26.55], [26.6]]), field)


def test_the_constant_carries_no_graph() -> None:
    mu = of.Particles(torch.from_numpy(normal(4, 3)).requires_grad_())
    found = local_constant(mu, of.SoftmaxAttention(torch.from_numpy(Q).requires_grad_(), K, V))
    assert not any(a.requires_grad for a in (found.value, found.residual, *found.direction, *found.image))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [of.SoftmaxAttention, of.SigmoidAttention])
def test_no_array_is_larger_than_the_basis_or_a_tile(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    n, mu, field = 3000, of.Particles(normal(3000, 2)), kind(*(a[:2, :2] for a in (Q, K, V)))
    monkeypatch.setattr("otflow.base.kernels.TILE", 20 * n)
    with Largest() as mode:
        local_constant(mu, field, max_iter=2, on_failure="return")
        data_bound(mu, of.SoftmaxAttention(Q[:2, :2], K[:2, :2], V[:2, :2]))
    assert mode.size <= 12 * 2 * n  # twelve directions in the plane


# --- bounds --------------------------------------------------------------------------------------------


def _search(count: int, *, causal: bool) -> Array:
    """|J| and the four bounds on random clouds of few tokens, drawn so that all regimes are seen."""
    rows = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        d, n = rng.integers(1, 4), rng.integers(2, 6)
        x = rng.normal(size=(64, n, d)) * np.exp(0.7 * rng.normal(size=(64, 1, 1)))
        x = x + rng.integers(0, 2, (64, 1, 1)) * rng.normal(size=(64, 1, d))
        A, M = rng.normal(size=(64, d, d)) * np.exp(rng.normal(size=(64, 1, 1))), rng.normal(size=(64, d, d))
        w = None if seed % 2 else rng.dirichlet(np.ones(n), 64)
        R = np.linalg.norm(x, axis=-1).max()
        field = of.SoftmaxAttention(A, np.eye(d), M, causal=causal)
        mu = of.Particles(x, w=w, label=rng.permutation(n))
        sigma = local_constant(mu, field, tol=1e-4).value.log()
        bounds = [data_bound(mu, field).log(), ball_bound(field, R), mean_field_bound(field, R)]
        if w is None:
            bounds += [ball_bound(field, R, n), discrete_bound(field, R, n).log()]
        rows.append([(sigma - b).exp().max().item() for b in bounds] + [0.0] * (5 - len(bounds)))
    return np.array(rows)


@pytest.mark.thorough
@pytest.mark.parametrize(("causal", "reached"), [(False, 0.95), (True, 0.7)])
def test_bounds_hold_over_a_random_search_and_data_bound_is_nearly_reached(
    causal: bool, reached: float
) -> None:
    worst = _search(12, causal=causal).max(0)
    assert worst.max() <= 1 + 1e-12
    assert worst[0] > reached


@pytest.mark.parametrize("a", [1.0, -1.0])
@pytest.mark.parametrize("n", [2, 10, 100])
def test_bounds_hold_at_adversarial_tokens(a: float, n: int) -> None:
    field = softmax_on_the_line(a)
    for R in (0.3, 1.0, 2.0, 4.0):
        mu = adversarial_tokens([[a]], R, n)
        sigma = local_constant(mu, field).value
        assert sigma <= data_bound(mu, field) * (1 + 1e-12)
        assert data_bound(mu, field) <= ball_bound(field, R, n).exp() * (1 + 1e-12)
        assert ball_bound(field, R, n).exp() <= discrete_bound(field, R, n)
        assert ball_bound(field, R, n) <= ball_bound(field, R) <= mean_field_bound(field, R)


def test_the_bound_in_a_ball_is_reached_up_to_a_factor_of_two() -> None:
    for y in (0.5, 1.0, 2.0, 3.0):
        field, n = softmax_on_the_line(-1.0), 1 + round(math.exp(2 * y))
        sigma = local_constant(adversarial_tokens([[-1.0]], math.sqrt(y), n), field).value
        assert 0.5 <= (sigma.log() - ball_bound(field, math.sqrt(y))).exp() <= 1
        assert (sigma.log() - mean_field_bound(field, math.sqrt(y))).exp() < math.exp(-y)


def test_the_formula_with_the_queries_alone_is_no_bound() -> None:
    """|V| (R^2 r^2 (n + 1) + n)^(1/2), R = max |Ax_i|, at tokens that A maps to zero."""
    x, A = np.array([[-1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 8.0], [0.0, 0.0]])
    J = jacobian(lambda z, w: dense.softmax(A, np.eye(2), np.eye(2), z, w, z), x, np.full(2, 0.5))
    R, r, n = np.linalg.norm(x @ A.T, axis=1).max(), 2.0, 2
    assert math.sqrt(R**2 * r**2 * (n + 1) + n) == pytest.approx(math.sqrt(2))
    assert np.linalg.norm(J, 2) == pytest.approx((8 + math.sqrt(68)) / 2, rel=1e-8)
    field = of.SoftmaxAttention(A, np.eye(2), np.eye(2))
    assert data_bound(of.Particles(x), field).item() == pytest.approx(9.0)


@pytest.mark.thorough
def test_the_formula_with_the_queries_alone_holds_for_normal_matrices() -> None:
    for seed in range(6):
        B = normal(64, 3, 3, seed=seed)
        A = B + B.swapaxes(-1, -2) if seed % 2 else B - B.swapaxes(-1, -2)
        field, mu = of.SoftmaxAttention(A, EYE, EYE), of.Particles(0.7 * normal(64, 4, 3, seed=50 + seed))
        R = np.linalg.norm(mu.x.numpy() @ A.swapaxes(-1, -2), axis=-1).max(-1)
        bound = np.sqrt(R**2 * of.observables.diameter(mu).numpy() ** 2 * 5 + 4)
        assert (local_constant(mu, field, tol=1e-4).value.numpy() <= bound).all()


def test_heads_and_sums_add_up() -> None:
    one, two = of.SoftmaxAttention(Q, K, V), of.SoftmaxAttention(K, Q, V[:2], causal=True)
    both = of.MultiHead([one, two], mix=[W, W[:, :2]])
    parts = of.SoftmaxAttention(Q, K, W @ V), of.SoftmaxAttention(K, Q, W[:, :2] @ V[:2], causal=True)
    mu = of.Particles(normal(7, 3), label=LABEL)
    for field in (both, parts[0] + parts[1]):
        assert discrete_bound(field, 1.3, 7).item() == pytest.approx(
            sum(discrete_bound(p, 1.3, 7).item() for p in parts)
        )
        assert data_bound(mu, field).item() == pytest.approx(sum(data_bound(mu, p).item() for p in parts))
        for bound in (ball_bound, mean_field_bound):
            logs = [bound(p, 1.3).item() for p in parts]
            assert bound(field, 1.3).item() == pytest.approx(np.logaddexp(*logs))
    assert data_bound(mu, -2.0 * one).item() == pytest.approx(2 * data_bound(mu, one).item())


def test_published_bounds_are_what_is_printed() -> None:
    a, v, R, n = np.linalg.norm(K.T @ Q, 2), np.linalg.norm(V, 2), 1.7, 11
    field = of.SoftmaxAttention(Q, K, V)
    printed = math.sqrt(3) * v * math.sqrt(a**2 * R**4 * (4 * n + 1) + n)
    assert discrete_bound(field, R, n).item() == pytest.approx(printed, rel=1e-12)
    printed = math.log(v * (1 + 3 * a * R**2)) + 2 * a * R**2
    assert mean_field_bound(field, R).item() == pytest.approx(printed, rel=1e-12)
    assert math.isfinite(mean_field_bound(field, 100.0).item())


def test_bounds_of_batches_of_weights_and_of_no_scores() -> None:
    A, M = normal(5, 3, 3, seed=1), normal(5, 3, 3, seed=2)
    field = of.SoftmaxAttention(A, EYE, M)
    for bound in (lambda f: discrete_bound(f, 1.0, 4), lambda f: ball_bound(f, 1.0, 4)):
        single = [bound(of.SoftmaxAttention(a, EYE, m)).item() for a, m in zip(A, M, strict=True)]
        np.testing.assert_allclose(bound(field), single, rtol=1e-12)
    flat = of.SoftmaxAttention(0 * EYE, EYE, 2 * EYE)
    mu = of.Particles(normal(4, 3))
    assert (
        ball_bound(flat, 1.0).exp().item() == mean_field_bound(flat, 1.0).exp().item() == pytest.approx(2.0)
    )
    assert data_bound(mu, flat).item() == pytest.approx(2.0)


def test_bounds_refuse_other_fields_spaces_and_radii() -> None:
    mu = of.Particles(unit(4, 3), space=of.Sphere())
    with pytest.raises(InputError, match="softmax attention, its heads and sums"):
        discrete_bound(of.L2Attention(Q, K, V), 1.0, 3)
    with pytest.raises(InputError, match="Euclidean"):
        data_bound(mu, of.SoftmaxAttention(Q, K, V))
    with pytest.raises(InputError, match=r"R = 0\.0"):
        mean_field_bound(of.SoftmaxAttention(Q, K, V), 0.0)
    with pytest.raises(InputError, match=r"n = 1\.5"):
        ball_bound(of.SoftmaxAttention(Q, K, V), 1.0, 1.5)


# --- adversarial tokens --------------------------------------------------------------------------------


def test_the_other_tokens_look_at_the_first_one() -> None:
    for A in (EYE, -EYE, np.diag([9.0, 0.0, -1.0]), np.diag([7.0, 0.0, -1.0]), Q + 3 * EYE):
        x = adversarial_tokens(A, 6.0, 5).x.numpy()
        scores = x @ A.T @ x.T
        assert (scores[1:].argmax(1) == 0).all()
        assert np.linalg.norm(x, axis=1).max() == pytest.approx(6.0)


@pytest.mark.parametrize(("low", "c"), [(-1.0, 0.5), (-1.1, 1.0), (1.0, 0.5)])
def test_the_eigenvalue_that_does_more_is_taken(low: float, c: float) -> None:
    """l_max > 8 |l_min| compares l_max R^2 / 4 with 2 |l_min| R^2; an l_min above zero does nothing."""
    x = adversarial_tokens(np.diag([8.5, low]), 2.0, 3).x
    assert x[1].abs().max().item() == pytest.approx(2.0 * c)


@pytest.mark.parametrize("a", [1.0, -1.0])
def test_adversarial_constants_are_at_least_what_moving_one_token_shows(a: float) -> None:
    for n in (3, 30, 300):
        for R in (0.5, 2.0, 4.0):
            g = R**2 / 4 if a > 0 else 2 * R**2
            p = 1 / (1 + (n - 1) * math.exp(-g))
            floor = math.sqrt(n - 1) * p * (1 + (1 - p) * g)
            sigma = local_constant(adversarial_tokens([[a]], R, n), softmax_on_the_line(a)).value.item()
            assert floor * (1 - 1e-12) <= sigma <= 1.2 * floor + 1.5


def test_constants_grow_like_the_root_of_n_until_n_is_exp_g() -> None:
    def constants(g: float, ns: list[int]) -> list[float]:
        field, R = softmax_on_the_line(-1.0), math.sqrt(g / 2)
        return [local_constant(adversarial_tokens([[-1.0]], R, n), field).value.item() for n in ns]

    ns = [10, 30, 100, 300]
    assert slope(np.array(ns) - 1, constants(14.0, ns)) == pytest.approx(0.5, abs=0.01)
    assert slope([400, 800], constants(3.0, [400, 800])) < -0.3


def test_random_tokens_do_not_grow() -> None:
    mu = [of.Particles(normal(n, 3)) for n in (30, 300)]
    few, many = (local_constant(m, of.SoftmaxAttention(Q, K, V)).value.item() for m in mu)
    assert many < 1.5 * few


def test_tokens_for_masked_fields_are_labelled_so_that_all_see_the_first() -> None:
    field = of.SoftmaxAttention([[-1.0]], [[1.0]], [[1.0]], causal=True)
    few, many = (local_constant(adversarial_tokens(field, 3.0, n), field).value.item() for n in (10, 160))
    assert many == pytest.approx(4 * few, rel=0.1)


def test_adversarial_tokens_come_in_batches_and_keep_what_they_are_given() -> None:
    A = np.stack([EYE, -EYE])
    mu = adversarial_tokens(torch.from_numpy(A).float(), 1.0, 4)
    assert mu.x.shape == (2, 4, 3)
    assert mu.dtype == torch.float32
    for a, x in zip(A, mu.x, strict=True):
        torch.testing.assert_close(x.double().abs(), adversarial_tokens(a, 1.0, 4).x.abs())


def test_adversarial_tokens_refuse_what_has_no_preferred_line() -> None:
    with pytest.raises(InputError, match="all tokens look alike"):
        adversarial_tokens([[0.0, 1.0], [-1.0, 0.0]], 1.0, 4)
    with pytest.raises(InputError, match="n >= 2"):
        adversarial_tokens([[1.0]], 1.0, 1)
    with pytest.raises(InputError, match=r"A is \(\*batch, d, d\)"):
        adversarial_tokens([1.0], 1.0, 4)
    heads = of.MultiHead([of.SoftmaxAttention(Q, K, V), of.SoftmaxAttention(K, Q, V)])
    with pytest.raises(InputError, match="A of one head"):
        adversarial_tokens(heads, 1.0, 4)
