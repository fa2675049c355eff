"""Rates of covariances against quadrature of the attention integrals, and the forms against each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import otflow.closed_forms as cf
from otflow.base.errors import InputError
from otflow.papers.unified import printed

Kernel = Callable[[np.ndarray, np.ndarray], np.ndarray]
DIMENSIONS = [1, 2, 3, 6]


def random(seed: int, d: int, *names: str) -> list[np.ndarray]:
    """A covariance for S, else a square matrix."""
    rng = np.random.default_rng(seed)
    draws = [rng.standard_normal((d, d)) for _ in names]
    return [x @ x.T / d + 0.1 * np.eye(d) if n == "S" else x for n, x in zip(names, draws, strict=True)]


def gauss(S: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for N(0, S) on the plane."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    return grid @ np.linalg.cholesky(S).T, np.outer(w, w).ravel() / w.sum() ** 2


def slope(S: np.ndarray, kernel: Kernel) -> np.ndarray:
    """B with int y k(x, y) dmu / int k dmu = B x, by quadrature at x = e1, e2."""
    y, w = gauss(S, 60)
    k = kernel(np.eye(2), y) * w
    return np.asarray((k @ y / k.sum(-1, keepdims=True)).T)


def rate(B: np.ndarray, S: np.ndarray) -> np.ndarray:
    return np.asarray(B @ S + S @ B.T)


@pytest.mark.parametrize("seed", range(3))
def test_softmax_moves_covariances_as_quadrature_of_its_integral_does(seed: int) -> None:
    S, A, V = random(seed, 2, "S", "A", "V")
    S, A = S / np.linalg.norm(S), A / np.linalg.norm(A)
    B = V @ slope(S, lambda x, y: np.exp(x @ A.T @ y.T))
    np.testing.assert_allclose(cf.softmax_rate(S, A, V), rate(B, S), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_l2_moves_covariances_as_quadrature_of_its_integral_does(rows: int) -> None:
    rng = np.random.default_rng(rows)
    (S, V), (Q, K) = random(rows, 2, "S", "V"), rng.standard_normal((2, rows, 2)) / 2
    S = S / np.linalg.norm(S)

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(-(((x @ Q.T)[:, None] - (y @ K.T)[None]) ** 2).sum(-1)))

    np.testing.assert_allclose(cf.l2_rate(S, Q, K, V), rate(V @ slope(S, kernel), S), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("eps", [0.7, 2.0])
def test_sinkhorn_moves_covariances_as_scaling_the_kernel_on_nodes_does(eps: float) -> None:
    S, A, V = random(5, 2, "S", "A", "V")
    S, A = S / np.linalg.norm(S), A / (2 * np.linalg.norm(A))
    x, w = gauss(S, 24)
    k = np.exp(x @ A.T @ x.T / eps)  # k[i, j] at x_i, y_j
    f = np.ones(len(x))
    for _ in range(500):
        g = 1 / (k.T @ (w * f))
        f = 1 / (k @ (w * g))
    C = x.T @ ((w * g)[:, None] * (k.T * (w * f))) @ x  # E y x^T
    np.testing.assert_allclose(cf.sinkhorn_cross(S, A, eps=eps), C, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        cf.sinkhorn_rate(S, A, V, eps=eps), (V @ C + C.T @ V.T) / eps, rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("eps", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("rank", [None, 1])
def test_the_precision_of_the_scaled_plan_has_the_scores_beside_its_diagonal(
    d: int, eps: float, rank: int
) -> None:
    S, A = random(d, d, "S", "A")
    A = A if rank is None else np.outer(A[0], A[-1])
    C = cf.sinkhorn_cross(S, A, eps=eps).numpy()
    precision = np.linalg.inv(np.block([[S, C], [C.T, S]]))
    np.testing.assert_allclose(-eps * precision[:d, d:], A, rtol=1e-6, atol=1e-7 * np.linalg.norm(A))


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("eps", [0.3, 1.0, 5.0])
def test_the_three_forms_of_the_sinkhorn_rate_agree(d: int, eps: float) -> None:
    S, A, V = (np.stack(x) for x in zip(*(random(s, d, "S", "A", "V") for s in range(6)), strict=True))
    expected = cf.sinkhorn_rate(S, A, V, eps=eps)
    for f in (cf.sinkhorn_rate_inverse_left, cf.sinkhorn_rate_inverse_right):
        torch.testing.assert_close(f(S, A, V, eps=eps), expected, rtol=1e-7, atol=1e-8)


def test_sinkhorn_holds_for_a_singular_covariance_as_the_limit_of_regular_ones() -> None:
    S, A, V = random(3, 4, "S", "A", "V")
    S = S @ np.diag([1.0, 1.0, 0.0, 0.0]) @ S
    near = cf.sinkhorn_rate(S + 1e-8 * np.eye(4), A, V)
    torch.testing.assert_close(cf.sinkhorn_rate(S, A, V), near, rtol=1e-2, atol=1e-3)
    # On the range of S the rate is that of the projected scores.
    P = np.linalg.svd(S)[0][:, :2]
    C = P @ cf.sinkhorn_cross(P.T @ S @ P, P.T @ A @ P).numpy() @ P.T
    np.testing.assert_allclose(cf.sinkhorn_cross(S, A), C, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_of_the_poster_is_wrong_unless_covariance_and_scores_commute(seed: int) -> None:
    S, A, V = random(seed, 3, "S", "A", "V")
    right, poster = cf.sinkhorn_rate(S, A, V), printed.sinkhorn_poster_rate(S, A, V)
    assert (right - poster).norm() > 0.1 * right.norm()
    B = 0.3 * S @ S - 2 * S + np.eye(3)  # commutes with S
    right, poster = cf.sinkhorn_rate(S, B, V), printed.sinkhorn_poster_rate(S, B, V)
    torch.testing.assert_close(right, poster, rtol=1e-8, atol=1e-9)
    # Its own kernel exp(-|Qx - Ky|^2) is exp(2 Ax.y) up to scaling, and its velocity has no factor 1 / eps.
    # With S A = I / 2 all correlations are 2 / (1 + sqrt(5)) for the latter, and sqrt(2) - 1 for exp(Ax.y).
    own, poster = (
        f(S, np.linalg.inv(S) / 2, V)
        for f in (lambda *x: cf.sinkhorn_rate(*x, eps=0.5) / 2, printed.sinkhorn_poster_rate)
    )
    torch.testing.assert_close(poster * 2 / (1 + 5**0.5), own * (2**0.5 - 1), rtol=1e-8, atol=1e-9)


def test_sinkhorn_tends_to_softmax_and_to_transport() -> None:
    S, A, V = random(1, 3, "S", "A", "V")
    weak = cf.sinkhorn_rate(S, A, V, eps=1e5) * 1e10
    torch.testing.assert_close(weak, cf.softmax_rate(S, A, V), rtol=1e-6, atol=1e-6)
    P = A @ A.T + np.eye(3)
    np.testing.assert_allclose(cf.sinkhorn_cross(S, P, eps=1e-9), S, rtol=1e-6, atol=1e-7)


def test_several_heads_add_and_one_head_is_softmax() -> None:
    S, A, C, B, D = random(2, 3, "S", "A", "C", "B", "D")
    both = cf.multihead_rate(S, np.stack([A, B]), np.stack([C, D]))
    torch.testing.assert_close(both, cf.softmax_rate(S, A, C) + cf.softmax_rate(S, B, D))
    torch.testing.assert_close(cf.multihead_rate(S, A[None], C[None]), cf.softmax_rate(S, A, C))


RATES: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": cf.softmax_rate,
    "sinkhorn": cf.sinkhorn_rate,
    "left": cf.sinkhorn_rate_inverse_left,
    "right": cf.sinkhorn_rate_inverse_right,
    "poster": printed.sinkhorn_poster_rate,
    "l2": lambda S, A, V: cf.l2_rate(S, A, A, V),
    "multihead": lambda S, A, V: cf.multihead_rate(S, A[..., None, :, :], V[..., None, :, :]),
    "path": lambda S, A, V: cf.softmax_path(S, -A @ A.mT, 1.0) @ V,
    "bound": lambda S, A, V: cf.softmax_blow_up_bound(S, A @ A.mT + torch.eye(3), V @ V.mT + torch.eye(3)),
    "lyapunov": lambda S, A, V: cf.softmax_lyapunov(S, V @ V.mT + torch.eye(3)),
}


@pytest.mark.parametrize("name", RATES)
def test_a_batch_of_as_many_matrices_as_dimensions_is_still_a_batch(name: str) -> None:
    S, A, V = (
        torch.as_tensor(np.stack(x)) for x in zip(*(random(s, 3, *"SAV") for s in range(3)), strict=True)
    )
    f = RATES[name]
    for one in range(3):
        mixed = [x[0] if one == i else x for i, x in enumerate((S, A, V))]
        each = torch.stack([f(*(x if x.ndim == 2 else x[j] for x in mixed)) for j in range(3)])
        torch.testing.assert_close(f(*mixed).expand_as(each), each, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", RATES)
def test_rates_can_be_differentiated(name: str) -> None:
    S, A, V = (torch.as_tensor(x).requires_grad_() for x in random(1, 3, "S", "A", "V"))
    assert torch.autograd.gradcheck(lambda s, a, v: RATES[name]((s + s.mT) / 2, a, v), [S, A, V])


def test_the_sinkhorn_rate_can_be_differentiated_where_singular_values_meet() -> None:
    S, V = (torch.eye(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    A = torch.eye(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, a, v: cf.sinkhorn_rate((s + s.mT) / 2, a, v), [S, A, V])


def test_singular_matrices_are_refused_by_the_forms_with_inverses() -> None:
    singular, eye = np.diag([1.0, 0.0]), np.eye(2)
    for f in (cf.sinkhorn_rate_inverse_left, cf.sinkhorn_rate_inverse_right, printed.sinkhorn_poster_rate):
        with pytest.raises(InputError, match="least singular value of A"):
            f(eye, singular, eye)
        with pytest.raises(InputError, match="min eigenvalue of S"):
            f(singular, eye, eye)


def test_matrices_that_do_not_fit_are_refused_by_shape() -> None:
    eye, wide = np.eye(2), np.ones((1, 2))
    with pytest.raises(InputError, match=r"A\.shape = \(1, 2\)"):
        cf.softmax_rate(eye, wide, eye)
    with pytest.raises(InputError, match=r"V\.shape = \(3, 3\).*S has shape \(2, 2\)"):
        cf.sinkhorn_rate(eye, eye, np.eye(3))
    with pytest.raises(InputError, match=r"K\.shape = \(2, 2\).*Q has shape \(1, 2\)"):
        cf.l2_rate(eye, wide, eye, eye)
    with pytest.raises(InputError, match="batch axes do not broadcast"):
        cf.softmax_rate(np.stack([eye] * 2), np.stack([eye] * 3), eye)
    with pytest.raises(InputError, match="heads"):
        cf.multihead_rate(eye, eye, eye)
    with pytest.raises(InputError, match="2 heads"):
        cf.multihead_rate(eye, np.stack([eye] * 2), eye[None])
