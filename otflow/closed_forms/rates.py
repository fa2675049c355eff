"""Rates of covariances: dS/dt = B S + S B^T, where attention moves tokens of law N(0, S) by x' = B x.

The forms here are written with covariances, inverses where the literature has them, and symmetric roots.

Castin, Ablin, Carrillo, Peyré, A unified perspective on the dynamics of deep Transformers, 2025,
arXiv 2501.18322, section 4. A = K^T Q throughout; the mean does not enter.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from otflow.base import checks, matrices
from otflow.base.linalg import sqrtm
from otflow.closed_forms.matrices import eye, scaled, solve, solve_right


def softmax_rate(S: Any, A: Any, V: Any) -> Tensor:
    """dS/dt = V S A S + S A^T S V^T, (*batch, d, d).

    Tilting N(m, S) by exp(Ax.y) gives N(m + S A x, S), so that B = V S A.

    >>> from otflow.closed_forms import softmax_rate
    >>> softmax_rate([[2.0]], [[0.5]], [[1.0]]).item()
    4.0
    """
    S = matrices.covariance(S, "S")
    A, V = (matrices.fits(matrices.square(a, n), n, S, "S") for a, n in ((A, "A"), (V, "V")))
    return _both(V @ S @ A @ S)


def multihead_rate(S: Any, A: Any, C: Any) -> Tensor:
    """dS/dt = sum_h C_h S A_h S + S A_h^T S C_h^T, C_h = W_h V_h: multi-head softmax, (*batch, d, d).

    Args:
        S: covariance, (*batch, d, d).
        A, C: one matrix for each head, (*batch, heads, d, d).

    >>> from otflow.closed_forms import multihead_rate
    >>> multihead_rate([[2.0]], [[[0.5]], [[1.0]]], [[[1.0]], [[1.0]]]).item()
    12.0
    """
    S = matrices.covariance(S, "S")
    A, C = matrices.heads(A, "A", S, "S"), matrices.heads(C, "C", S, "S")
    rule = f"A has {A.shape[-3]} heads"
    checks.require(A.shape[-3] == C.shape[-3], "C.shape", C.shape, rule, "pass one C for each A")
    each = S[..., None, :, :]
    return _both((C @ each @ A @ each).sum(-3))


def l2_rate(S: Any, Q: Any, K: Any, V: Any) -> Tensor:
    """dS/dt = 2 V P A S + 2 S A^T P V^T with P = S (I + 2 K^T K S)^-1, A = K^T Q, (*batch, d, d).

    The kernel is exp(-|Qx - Ky|^2), without a half; P is the covariance of the law tilted by it.

    >>> from otflow.closed_forms import l2_rate
    >>> l2_rate([[1.0]], [[1.0]], [[1.0]], [[1.5]]).item()
    2.0
    """
    S = matrices.covariance(S, "S")
    Q, K = (matrices.fits(matrices.matrix(a, n), n, S, "S") for a, n in ((Q, "Q"), (K, "K")))
    V = matrices.fits(matrices.square(V, "V"), "V", S, "S")
    checks.require(
        Q.shape[-2] == K.shape[-2],
        "K.shape",
        K.shape,
        f"Q has shape {tuple(Q.shape)}",
        f"pass K with {Q.shape[-2]} rows",
    )
    return _both(2 * V @ tilted(S, K) @ K.mT @ Q @ S)


def tilted(S: Tensor, K: Tensor) -> Tensor:
    """S (I + 2 K^T K S)^-1."""
    return solve_right(S, eye(S) + 2 * K.mT @ K @ S)


def sinkhorn_rate(S: Any, A: Any, V: Any, *, eps: float = 1.0) -> Tensor:
    """dS/dt = (V C + C^T V^T) / eps with C = `sinkhorn_cross(S, A, eps=eps)`, (*batch, d, d).

    S and A may be singular. The kernel is exp(Ax.y / eps), the velocity has the factor 1 / eps.

    >>> from otflow.closed_forms import sinkhorn_rate
    >>> round(sinkhorn_rate([[1.0]], [[1.0]], [[1.0]]).item(), 12)
    1.2360679775
    """
    S = matrices.covariance(S, "S")
    V = matrices.fits(matrices.square(V, "V"), "V", S, "S")
    return _both(V @ sinkhorn_cross(S, A, eps=eps)) / eps


def sinkhorn_cross(S: Any, A: Any, *, eps: float = 1.0) -> Tensor:
    """C = E[y x^T] = 2b S A (I + (I + 4 b^2 S A^T S A)^(1/2))^-1 S, b = 1 / eps, (*batch, d, d).

    The cross-covariance of the plan with density exp(Ax.y / eps) scaled to have both marginals N(0, S).
    With N = S^(1/2) A S^(1/2) = U diag(s) W^T it is S^(1/2) U diag(m) W^T S^(1/2), where
    m = 2 b s / (1 + sqrt(1 + 4 b^2 s^2)) solves m = b (1 - m^2) s. Once differentiable where S > 0.

    >>> from otflow.closed_forms import sinkhorn_cross
    >>> round(sinkhorn_cross([[1.0]], [[1.0]]).item(), 12)
    0.61803398875
    """
    S = matrices.covariance(S, "S")
    A = matrices.fits(matrices.square(A, "A"), "A", S, "S")
    b, R = 1 / checks.positive(eps, "eps"), sqrtm(S)
    return R @ scaled(2 * b * R @ A @ R) @ R


def sinkhorn_rate_inverse_right(S: Any, A: Any, V: Any, *, eps: float = 1.0) -> Tensor:
    """dS/dt = (V X A^-T + A^-1 X^T V^T) / eps, X = (R (4b^2 R A S A^T R + I)^(1/2) R^-1 - I) / (2b).

    R = S^(1/2), b = 1 / eps. Domain: S and A invertible; elsewhere `sinkhorn_rate` holds.

    >>> from otflow.closed_forms import sinkhorn_rate_inverse_right
    >>> round(sinkhorn_rate_inverse_right([[1.0]], [[1.0]], [[1.0]]).item(), 12)
    1.2360679775
    """
    S, A, V, b = _regular(S, A, V, eps)
    return b * _both(V @ solve_right(_bracket(S, A, b), A.mT))


def sinkhorn_rate_inverse_left(S: Any, A: Any, V: Any, *, eps: float = 1.0) -> Tensor:
    """dS/dt = (V Y + Y^T V^T) / eps, Y = A^-T S^-1 X S, X = (R (4b^2 R A^T S A R + I)^(1/2) R^-1 - I) / (2b).

    R = S^(1/2), b = 1 / eps. Domain: S and A invertible; elsewhere `sinkhorn_rate` holds.

    >>> from otflow.closed_forms import sinkhorn_rate_inverse_left
    >>> round(sinkhorn_rate_inverse_left([[1.0]], [[1.0]], [[1.0]]).item(), 12)
    1.2360679775
    """
    S, A, V, b = _regular(S, A, V, eps)
    return b * _both(V @ solve(A.mT, solve(S, _bracket(S, A.mT, b)) @ S))


def _regular(S: Any, A: Any, V: Any, eps: float = 1.0) -> tuple[Tensor, Tensor, Tensor, float]:
    """S > 0, an invertible A, V, and b = 1 / eps."""
    S = matrices.positive_definite(S, "S")
    A = matrices.fits(matrices.invertible(A, "A"), "A", S, "S")
    V = matrices.fits(matrices.square(V, "V"), "V", S, "S")
    return S, A, V, 1 / checks.positive(eps, "eps")


def _bracket(S: Tensor, A: Tensor, b: float) -> Tensor:
    """(R (4 b^2 R A S A^T R + I)^(1/2) R^-1 - I) / (2b)."""
    R = sqrtm(S)
    N = 2 * b * R @ A @ R
    return (solve_right(R @ sqrtm(N @ N.mT + eye(S)), R) - eye(S)) / (2 * b)


def _both(X: Tensor) -> Tensor:
    """X + X^T."""
    return X + X.mT
