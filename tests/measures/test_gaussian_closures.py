"""Attention on Gaussians: closed forms against quadrature of the definition and published formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

import otflow as of
from tests import dense, zoo

Array = np.ndarray

# --- the formulas for (d mean/dt, d covariance/dt), in numpy ------------------------------------------


def softmax(Q: Array, K: Array, V: Array, a: Array, S: Array) -> tuple[Array, Array]:
    A = K.T @ Q
    B = V @ S @ A
    return V @ (a + S @ A @ a), B @ S + S @ B.T


def l2(Q: Array, K: Array, V: Array, a: Array, S: Array) -> tuple[Array, Array]:
    A, H = K.T @ Q, K.T @ K
    tilt = np.linalg.inv(np.eye(len(a)) + 2 * S @ H)  # free of inverses of S
    B = 2 * V @ tilt @ S @ A
    return V @ tilt @ (a + 2 * S @ A @ a), B @ S + S @ B.T


def sinkhorn(Q: Array, K: Array, V: Array, a: Array, S: Array, eps: float = 1.0) -> tuple[Array, Array]:
    A, eye = K.T @ Q, np.eye(len(a))
    root = np.real(scipy.linalg.sqrtm(eye + 4 / eps**2 * S @ A.T @ S @ A))
    B = V @ (2 / eps * S @ A @ np.linalg.inv(eye + root)) / eps
    return V @ a / eps, B @ S + S @ B.T


Formula = Callable[..., tuple[Array, Array]]
FORMULAS: dict[str, Formula] = {"softmax": softmax, "l2": l2, "sinkhorn": sinkhorn}
FIELDS: dict[str, Any] = {
    "softmax": of.SoftmaxAttention,
    "l2": of.L2Attention,
    "sinkhorn": of.SinkhornAttention,
}


def law(seed: int, d: int, r: int | None = None, scale: float = 0.7) -> of.Gaussian:
    rng = np.random.default_rng(seed)
    return of.Gaussian(rng.standard_normal(d), root=scale * rng.standard_normal((d, r or d)))


def matrices(seed: int, d: int, k: int, scale: float = 0.7, e: int | None = None) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [scale * rng.standard_normal(shape) for shape in ((k, d), (k, d), (e or d, d))]


def motion(field: of.VelocityField, mu: of.Gaussian, t: float = 0.0) -> tuple[Array, Array]:
    """The derivatives of the mean and of the covariance."""
    mean, root = (p.numpy() for p in field(t, mu))
    R = mu.root.numpy()
    return mean, root @ np.swapaxes(R, -1, -2) + R @ np.swapaxes(root, -1, -2)


def same(got: tuple[Array, Array], expected: tuple[Array, Array], tol: float = 1e-11) -> None:
    for a, b in zip(got, expected, strict=True):
        assert np.abs(a - b).max() <= tol * max(1.0, np.abs(b).max())


@pytest.mark.parametrize("r", [1, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("kind", FIELDS)
def test_closures_follow_the_formulas_whatever_the_ranks(kind: str, k: int, r: int) -> None:
    """k < 5 makes A singular, r < 5 the covariance; r = 8 is a root with more columns than needed."""
    for seed in range(3):
        mu, (Q, K, V) = law(seed, 5, r), matrices(seed + 10, 5, k)
        expected = FORMULAS[kind](Q, K, V, mu.mean.numpy(), mu.cov.numpy())
        same(motion(FIELDS[kind](Q, K, V), mu), expected, 1e-10 if kind == "sinkhorn" else 1e-12)


@pytest.mark.parametrize("kind", FIELDS)
def test_closures_hold_for_square_singular_matrices(kind: str) -> None:
    mu, (Q, K, V) = law(20, 5), matrices(21, 5, 5)
    Q[3:] = 0.0  # A = K^T Q has rank three though Q and K are square
    same(motion(FIELDS[kind](Q, K, V), mu), FORMULAS[kind](Q, K, V, mu.mean.numpy(), mu.cov.numpy()), 1e-10)


@pytest.mark.parametrize("eps", [0.05, 0.5, 3.0, 100.0])
def test_the_sinkhorn_closure_has_eps_in_the_right_places(eps: float) -> None:
    mu, (Q, K, V) = law(22, 5), matrices(23, 5, 5)
    expected = sinkhorn(Q, K, V, mu.mean.numpy(), mu.cov.numpy(), eps)
    same(motion(of.SinkhornAttention(Q, K, V, eps), mu), expected, 1e-10)


def test_the_sinkhorn_closure_equals_the_form_with_inverses_where_there_are_inverses() -> None:
    mu, (Q, K, V) = law(24, 4), matrices(25, 4, 4)
    A, S = K.T @ Q, mu.cov.numpy()
    half = np.real(scipy.linalg.sqrtm(S))
    middle = np.real(scipy.linalg.sqrtm(4 * half @ A @ S @ A.T @ half + np.eye(4)))
    C = (half @ middle @ np.linalg.inv(half) - np.eye(4)) / 2
    plan = C @ np.linalg.inv(A).T
    assert np.abs(motion(of.SinkhornAttention(Q, K, V), mu)[1] - V @ plan - plan.T @ V.T).max() < 1e-9


# --- quadrature of the definition ---------------------------------------------------------------------


def hermite(mu: of.Gaussian, nodes: int) -> tuple[Array, Array]:
    """Gauss-Hermite nodes and weights of a Gaussian law in one or two dimensions."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    d = mu.d
    grid = np.stack(np.meshgrid(*[z] * d, indexing="ij"), -1).reshape(-1, d)
    weight = np.stack(np.meshgrid(*[w] * d, indexing="ij"), -1).reshape(-1, d).prod(-1)
    keep = weight > 1e-25  # what is lost is far below the error of the rule
    return mu.mean.numpy() + grid[keep] @ mu.root.numpy().T, weight[keep] / weight[keep].sum()


def affine(field: of.VelocityField, mu: of.Gaussian, z: Array) -> Array:
    """The closure's velocity at the points mean + root z."""
    mean, root = (p.numpy() for p in field(0.0, mu))
    return mean + z @ root.T


Z = {
    1: np.array([[-1.5], [-0.4], [0.0], [1.1]]),
    2: np.array([[0.0, 0.0], [1.0, -0.5], [-1.2, 0.3], [0.4, 1.4]]),
}


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("kind", ["softmax", "l2"])
def test_closures_equal_the_integrals_that_define_them(kind: str, d: int) -> None:
    for seed in range(3):
        mu, (Q, K, V) = law(30 + seed, d, scale=0.6), matrices(40 + seed, d, d, scale=0.5)
        y, w = hermite(mu, 64 if d == 1 else 48)
        points = mu.mean.numpy() + Z[d] @ mu.root.numpy().T
        integral = dense.VELOCITIES[kind](Q, K, V, y, w, points)
        assert np.abs(affine(FIELDS[kind](Q, K, V), mu, Z[d]) - integral).max() < 1e-9


@pytest.mark.parametrize(("d", "nodes", "tol"), [(1, 48, 1e-10), (2, 20, 1e-8)])
@pytest.mark.parametrize("eps", [1.0, 2.5])
def test_the_sinkhorn_closure_equals_the_scaling_of_its_kernel(
    d: int, nodes: int, tol: float, eps: float
) -> None:
    mu, (Q, K, V) = law(50 + d, d, scale=0.6), matrices(60 + d, d, d, scale=0.6)
    y, w = hermite(mu, nodes)
    points = mu.mean.numpy() + Z[d] @ mu.root.numpy().T
    scaled = dense.sinkhorn(Q, K, V, y, w, points, eps=eps)
    assert np.abs(affine(of.SinkhornAttention(Q, K, V, eps), mu, Z[d]) - scaled).max() < tol


def test_a_thin_head_closes_like_its_integral_too() -> None:
    mu, (Q, K, V) = law(70, 2), matrices(71, 2, 1)
    y, w = hermite(mu, 48)
    points = mu.mean.numpy() + Z[2] @ mu.root.numpy().T
    for kind in ("softmax", "l2"):
        integral = dense.VELOCITIES[kind](Q, K, V, y, w, points)
        assert np.abs(affine(FIELDS[kind](Q, K, V), mu, Z[2]) - integral).max() < 1e-9


def test_heads_with_mixing_close_like_their_integral() -> None:
    mu = law(72, 2)
    y, w = hermite(mu, 48)
    points = mu.mean.numpy() + Z[2] @ mu.root.numpy().T
    heads = [("softmax", *matrices(73, 2, 1, e=1)), ("l2", *matrices(74, 2, 2, e=3))]
    mix = [zoo.matrix(75, 2, 1).numpy(), zoo.matrix(76, 2, 3).numpy()]
    field = of.MultiHead([FIELDS[kind](Q, K, V) for kind, Q, K, V in heads], mix=mix)
    dense_heads = [(*head, W, False) for head, W in zip(heads, mix, strict=True)]
    assert np.abs(affine(field, mu, Z[2]) - dense.multihead(dense_heads, y, w, points)).max() < 1e-9


def test_heads_of_all_kinds_follow_the_sum_of_their_formulas() -> None:
    mu = law(77, 5)
    a, S = mu.mean.numpy(), mu.cov.numpy()
    heads = {kind: matrices(78 + i, 5, 2, e=3) for i, kind in enumerate(FIELDS)}
    mix = [zoo.matrix(81 + i, 5, 3).numpy() for i in range(len(heads))]
    field = of.MultiHead([FIELDS[kind](*m) for kind, m in heads.items()], mix=mix)
    parts = [
        FORMULAS[kind](Q, K, W @ V, a, S) for (kind, (Q, K, V)), W in zip(heads.items(), mix, strict=True)
    ]
    same(motion(field, mu), (sum(p[0] for p in parts), sum(p[1] for p in parts)), 1e-11)


def test_a_linear_block_with_a_bias_moves_a_law_as_its_tokens() -> None:
    """x -> W (U x + b) of the mean, and W U S + S (W U)^T of the covariance."""
    mu, rng = law(83, 3, 2), np.random.default_rng(84)
    W, U, b = rng.standard_normal((3, 4)), rng.standard_normal((4, 3)), rng.standard_normal(4)
    field, S, B = of.Perceptron(W, U, b, activation=None), mu.cov.numpy(), W @ U
    same(motion(field, mu), (W @ (U @ mu.mean.numpy() + b), B @ S + S @ B.T), 1e-13)
    tokens = of.Particles(rng.standard_normal((5, 3)))
    expected = tokens.x.numpy() @ B.T + W @ b
    np.testing.assert_allclose(field(0.0, tokens)[0].numpy(), expected, rtol=0, atol=1e-13)


# --- invariances and limits -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FIELDS)
def test_the_choice_of_root_does_not_matter(kind: str) -> None:
    mu, (Q, K, V) = law(90, 4), matrices(91, 4, 3)
    turn = scipy.linalg.qr(np.random.default_rng(92).standard_normal((4, 4)))[0]
    other = of.Gaussian(mu.mean, root=mu.root @ torch.from_numpy(turn))
    field = FIELDS[kind](Q, K, V)
    same(motion(field, other), motion(field, mu), 1e-12)


@pytest.mark.parametrize("kind", FIELDS)
def test_members_of_a_batch_of_gaussians_are_independent(kind: str) -> None:
    rng = np.random.default_rng(93)
    mean, root, Q = (
        rng.standard_normal((3, 4)),
        rng.standard_normal((3, 4, 4)),
        rng.standard_normal((3, 2, 4)),
    )
    K, V = rng.standard_normal((2, 4)), rng.standard_normal((4, 4))
    together = motion(FIELDS[kind](Q, K, V), of.Gaussian(mean, root=root))
    for i in range(3):
        expected = FORMULAS[kind](Q[i], K, V, mean[i], root[i] @ root[i].T)
        same((together[0][i], together[1][i]), expected, 1e-10)


@pytest.mark.parametrize("kind", FIELDS)
def test_a_gaussian_without_spread_moves_like_one_token(kind: str) -> None:
    a, (Q, K, V) = np.array([0.3, -1.0, 2.0]), matrices(94, 3, 3)
    mean, root = FIELDS[kind](Q, K, V)(0.0, of.Gaussian(a, root=np.zeros((3, 3))))
    token = FIELDS[kind](Q, K, V)(0.0, of.Particles(a[None]))[0][0]
    assert float((mean - token).abs().max()) < 1e-14
    assert (root == 0).all()


@pytest.mark.parametrize("name", ["softmax_of_time", "softmax_of_layers", "sinkhorn_of_layers"])
@pytest.mark.parametrize("t", [0.0, 0.9, 1.2, 1.9])
def test_closures_use_the_weights_of_their_time(name: str, t: float) -> None:
    field, mu = zoo.FIELDS[name](), law(95, 3)
    Q, K, V = (w(torch.tensor(t, dtype=torch.float64)).numpy() for w in (field.Q, field.K, field.V))
    same(motion(field, mu, t), FORMULAS[name.split("_")[0]](Q, K, V, mu.mean.numpy(), mu.cov.numpy()), 1e-11)


@pytest.mark.parametrize("size", [1e-150, 1e-8, 1e8, 1e150])
def test_the_sinkhorn_closure_neither_overflows_nor_loses_small_couplings(size: float) -> None:
    one = np.ones((1, 1))
    root = of.SinkhornAttention(one, one, one)(0.0, of.Gaussian([0.0], root=[[size]]))[1].item()
    z = 2 * size * size  # may be 0 or infinite
    gain = 1.0 if z > 1e20 else z / (1 + np.hypot(1, z))
    assert root == pytest.approx(size * gain, rel=1e-14, abs=1e-300)


def test_a_softmax_flow_in_one_dimension_is_the_known_hyperbola() -> None:
    v, a, s0, t = 0.8, 0.5, 1.1, 0.6
    mu = of.Gaussian([0.0], root=[[np.sqrt(s0)]])
    final = of.flow(
        mu, of.SoftmaxAttention([[a]], [[1.0]], [[v]]), of.Dopri5(1e-11, 1e-13), t1=t, save_at=[t]
    ).final
    assert final.cov.item() == pytest.approx(s0 / (1 - 2 * v * a * s0 * t), rel=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_softmax_with_identity_values_inverts_a_straight_line(seed: int) -> None:
    """The inverse covariance moves with the constant velocity -(A + A^T)."""
    mu, (Q, K, _) = law(seed, 4), matrices(seed + 5, 4, 4, scale=0.3)
    S, A = mu.cov.numpy(), K.T @ Q
    top = np.linalg.eigvals(S @ (A + A.T)).real.max()
    t = 0.5 / top if top > 0 else 1.0
    final = of.flow(
        mu, of.SoftmaxAttention(Q, K, np.eye(4)), of.Dopri5(1e-11, 1e-13), t1=t, save_at=[t]
    ).final
    expected = np.linalg.inv(np.linalg.inv(S) - t * (A + A.T))
    assert np.abs(final.cov.numpy() - expected).max() < 1e-7 * np.abs(expected).max()


# --- what has no closure says so --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [of.SigmoidAttention, of.UnnormalisedAttention])
def test_attention_that_leaves_the_gaussians_refuses_them(kind: Any) -> None:
    with pytest.raises(of.InputError, match=rf"Gaussian\(d=3\).*{kind.__name__}.*Particles"):
        kind(*zoo.QKV(1))(0.0, law(96, 3))


@pytest.mark.parametrize("kind", [of.SoftmaxAttention, of.L2Attention, of.SigmoidAttention])
def test_masked_attention_refuses_gaussians(kind: Any) -> None:
    with pytest.raises(of.InputError, match=r"causal = True.*labels.*causal=False"):
        kind(*zoo.QKV(1), causal=True)(0.0, law(97, 3))


def test_a_head_without_closure_is_found_among_others() -> None:
    field = of.MultiHead([of.SoftmaxAttention(*zoo.QKV(1)), of.SigmoidAttention(*zoo.QKV(4))])
    with pytest.raises(of.InputError, match="SigmoidAttention"):
        field(0.0, law(98, 3))


@pytest.mark.parametrize("e", [1, 2, 4])
def test_values_of_another_dimension_need_a_mixing_matrix_on_gaussians_too(e: int) -> None:
    Q, K, V = zoo.QKV(1, e=e)
    with pytest.raises(of.InputError, match=r"V\.shape.*MultiHead"):
        of.SoftmaxAttention(Q, K, V)(0.0, law(99, 3))
