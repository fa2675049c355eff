"""Energies of centred Gaussians whose Bures-Wasserstein flow is attention with V = -A.

Along the flow of G the tokens move by x' = B x with B = -2 grad G(S) (the gradient with respect to the
symmetric matrix S). With V = +A the signs of energy and velocity flip.

Castin, Ablin, Carrillo, Peyré, A unified perspective on the dynamics of deep Transformers, 2025,
arXiv 2501.18322; Sander, Ablin, Blondel, Peyré, Sinkformers, 2022, section 4, for the energies of measures.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base import checks, matrices, numbers
from otflow.base.linalg import sqrtm, symmetric
from otflow.closed_forms.matrices import eye, solve_right, trace
from otflow.closed_forms.rates import sinkhorn_cross, tilted


def _gradient_weights(A: Tensor) -> Tensor:
    """A itself, or an error unless A = A^T or A = -A^T: only then is A S A a gradient."""
    even, odd = not matrices.unequal(A, A.mT), not matrices.unequal(A, -A.mT)
    checks.require(
        even or odd, "A", "a matrix", "a gradient flow needs A = A^T or A = -A^T", "use (A + A.T) / 2"
    )
    return symmetric(A) if even else (A - A.mT) / 2


def softmax_energy(S: Any, A: Any) -> Tensor:
    """G(S) = tr(A S A S) / 4, (*batch,): its flow is softmax attention with V = -A.

    The energy (1/4) E (x.Ay)^2 of linear attention, which agrees with softmax on Gaussians. Domain: A
    symmetric, or skew (then G = (1/4) E (x.Ay)(y.Ax) <= 0).

    >>> from otflow.closed_forms import softmax_energy
    >>> softmax_energy([[2.0]], [[3.0]]).item()
    9.0
    """
    S = matrices.covariance(S, "S")
    X = matrices.fits(_gradient_weights(matrices.square(A, "A")), "A", S, "S") @ S
    return trace(X @ X) / 4


def softmax_descent(S: Any, A: Any) -> Tensor:
    """B = -2 grad G = -A S A for G = `softmax_energy`, (*batch, d, d).

    >>> from otflow.closed_forms import softmax_descent
    >>> softmax_descent([[2.0]], [[3.0]]).item()
    -18.0
    """
    S = matrices.covariance(S, "S")
    a = matrices.fits(_gradient_weights(matrices.square(A, "A")), "A", S, "S")
    return -symmetric(a @ S @ a)


def multihead_energy(S: Any, A: Any) -> Tensor:
    """G(S) = sum_h tr(A_h S A_h S) / 4, (*batch,): its flow is multi-head softmax with W_h V_h = -A_h.

    A is (*batch, heads, d, d); all A_h symmetric, or all skew.

    >>> from otflow.closed_forms import multihead_energy
    >>> multihead_energy([[2.0]], [[[3.0]], [[1.0]]]).item()
    10.0
    """
    S = matrices.covariance(S, "S")
    X = _gradient_weights(matrices.heads(A, "A", S, "S")) @ S[..., None, :, :]
    return trace(X @ X).sum(-1) / 4


def multihead_descent(S: Any, A: Any) -> Tensor:
    """B = -2 grad G = -sum_h A_h S A_h for G = `multihead_energy`, (*batch, d, d).

    >>> from otflow.closed_forms import multihead_descent
    >>> multihead_descent([[2.0]], [[[3.0]], [[1.0]]]).item()
    -20.0
    """
    S = matrices.covariance(S, "S")
    a = _gradient_weights(matrices.heads(A, "A", S, "S"))
    return -symmetric((a @ S[..., None, :, :] @ a).sum(-3))


def sinkhorn_energy(S: Any, A: Any, *, eps: float = 1.0) -> Tensor:
    """G(S) = (1/4) sum_i (q_i - 1 - log((1 + q_i) / 2)), q_i = sqrt(1 + 4 s_i^2 / eps^2), (*batch,).

    s_i are the singular values of S^(1/2) A S^(1/2). G = -OT_eps(mu, mu) / (2 eps) for the cost -Ax.y, and
    its flow is Sinkhorn attention with V = -A. Domain: A = A^T.

    >>> from otflow.closed_forms import sinkhorn_energy
    >>> import math
    >>> round(sinkhorn_energy([[1.0]], [[math.sqrt(2)]]).item() - (2 - math.log(2)) / 4, 12)
    0.0
    """
    S = matrices.covariance(S, "S")
    A = matrices.fits(matrices.symmetric_matrix(A, "A"), "A", S, "S")
    R = sqrtm(S)
    z = torch.linalg.svdvals(2 / checks.positive(eps, "eps") * R @ A @ R)
    less = z * (z / (1 + torch.hypot(torch.ones_like(z), z)))  # q - 1 without cancellation
    return (less - torch.log1p(less / 2)).sum(-1) / 4


def sinkhorn_descent(S: Any, A: Any, *, eps: float = 1.0) -> Tensor:
    """B = -2 grad G = -A C S^-1 / eps for G = `sinkhorn_energy`, (*batch, d, d).

    C S^-1 = 2b S A (I + (I + 4b^2 S A S A)^(1/2))^-1, b = 1 / eps, is the slope of E[y | x]. Domain: A = A^T,
    S > 0; where S is singular, only `sinkhorn_rate` makes sense in general.

    >>> from otflow.closed_forms import sinkhorn_descent
    >>> round(sinkhorn_descent([[1.0]], [[1.0]]).item(), 12)
    -0.61803398875
    """
    S = matrices.positive_definite(S, "S")
    A = matrices.fits(matrices.symmetric_matrix(A, "A"), "A", S, "S")
    return -symmetric(A @ solve_right(sinkhorn_cross(S, A, eps=eps), S)) / eps


def l2_energy(S: Any, K: Any, c: Any) -> Tensor:
    """G(S) = (c^2 / 2) (tr(H S) - log det(I + 2 H S) / 2), H = K^T K, (*batch,).

    Its flow is L2 attention with Q = cK and V = -A = -cH. For other Q there is no energy: the field is not
    a gradient. K is (*batch, k, d), c a number or (*batch,).

    >>> from otflow.closed_forms import l2_energy
    >>> import math
    >>> round(l2_energy([[1.0]], [[1.0]], 2.0).item() - (2 - math.log(3)), 12)
    0.0
    """
    S, K, c = _multiples(S, K, c)
    H = K.mT @ K
    return c**2 / 2 * (trace(H @ S) - torch.linalg.slogdet(eye(S) + 2 * H @ S).logabsdet / 2)


def l2_descent(S: Any, K: Any, c: Any) -> Tensor:
    """B = -2 grad G = -2 c^2 H S (I + 2 H S)^-1 H for G = `l2_energy`, H = K^T K, (*batch, d, d).

    >>> from otflow.closed_forms import l2_descent
    >>> l2_descent([[1.0]], [[1.0]], 3.0).item()
    -6.0
    """
    S, K, c = _multiples(S, K, c)
    H = K.mT @ K
    return -2 * c[..., None, None] ** 2 * symmetric(H @ tilted(S, K) @ H)


def _multiples(S: Any, K: Any, c: Any) -> tuple[Tensor, Tensor, Tensor]:
    S, c = matrices.covariance(S, "S"), numbers.number(c, "c")
    matrices.broadcasting(c, c.shape, "c", S, "S")
    return S, matrices.fits(matrices.matrix(K, "K"), "K", S, "S"), c


def twisted_energy(S: Any, A: Any) -> Tensor:
    """(1/2) E exp(Ax.y) = det(I - S A^T S A)^(-1/2) / 2 for independent x, y of law N(0, S), (*batch,).

    Infinite once the largest singular value of S^(1/2) A S^(1/2) reaches one, although the flow goes on.
    For A = A^T, softmax attention with V = -A is its flow in the metric twisted by E_y exp(Ax.y).

    >>> from otflow.closed_forms import twisted_energy
    >>> twisted_energy([[1.0]], [[0.6]]).item(), twisted_energy([[1.0]], [[1.0]]).item()
    (0.625, inf)
    """
    S = matrices.covariance(S, "S")
    A = matrices.fits(matrices.square(A, "A"), "A", S, "S")
    R = sqrtm(S.detach())
    yes = torch.linalg.svdvals(R @ A.detach() @ R)[..., 0] < 1
    X = torch.where(yes[..., None, None], S @ A.mT @ S @ A, 0)
    return torch.where(yes, torch.exp(-torch.linalg.slogdet(eye(S) - X).logabsdet / 2) / 2, torch.inf)
