"""Sensitivity of attention flows: how fast nearby Gaussians are pulled apart in W2.

On the line a centred Gaussian is its deviation sigma = sqrt(s), and W2 is the difference of deviations. If
s' = f(s), then f(s) is itself a solution of the linearised equation, so that

    d sigma(t) / d sigma(0) = (f(s(t)) / f(s0)) sqrt(s0 / s(t)):

    softmax    (s / s0)^(3/2)
    L2         (s / s0)^(3/2) (1 + 2 k^2 s0) / (1 + 2 k^2 s)
    Sinkhorn   (s / s0)^(3/2) (1 + sqrt(1 + u0^2)) / (1 + sqrt(1 + u^2)),    u = 2 a s / eps

For two centred Gaussians, near or not, W2(mu_t, nu_t) / W2(mu_0, nu_0) is the mean of this derivative over
the deviations between them: its supremum over them all is the best constant of stability. Under softmax
attention that is infinite at every t > 0 if v a > 0, since some variance blows up by then; under L2 and
Sinkhorn attention it is finite. Laws on a ball have a finite constant (Castin, Ablin, Carrillo, Peyré, A
unified perspective on the dynamics of deep Transformers, 2025, arXiv 2501.18322, section 3), but Gaussians
are on none.

In higher dimension the distance is that of Bures, with the metric |D|_S^2 = tr(L S L), L S + S L = D, at the
covariance S, and softmax attention with V = I has a closed form again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base import matrices, numbers
from otflow.closed_forms.line import l2_variance, sinkhorn_variance, softmax_variance
from otflow.closed_forms.matrices import eye, solve
from otflow.closed_forms.softmax import softmax_blow_up_direction, softmax_path


def softmax_sensitivity(s0: Any, a: Any, v: Any, t: Any) -> Tensor:
    """d sigma(t) / d sigma(0) = (1 - 2 v a s0 t)^(-3/2), sigma = sqrt(s): softmax attention on the line.

    Diverges like (t* - t)^(-3/2) at the blow-up, sigma itself only like (t* - t)^(-1/2), and so does the
    derivative of the mean about a centred Gaussian, exp(v t) sigma(t) / sigma(0).

    Args:
        s0: variance, > 0.
        a, v, t: K^T Q, V and times before the blow-up; numbers that broadcast.

    >>> from otflow.closed_forms import softmax_sensitivity
    >>> softmax_sensitivity(1.0, 0.375, 1.0, 1.0).item()
    8.0
    """
    s0 = _positive(s0)
    return _growth(softmax_variance(s0, a, v, t), s0)


def l2_sensitivity(s0: Any, q: Any, k: Any, v: Any, t: Any) -> Tensor:
    """(s / s0)^(3/2) (1 + 2 k^2 s0) / (1 + 2 k^2 s), s = s(t): d sigma(t) / d sigma(0) under L2 attention.

    At most exp((9/8) |v q t / k|) for all s0: sigma' = (v q / k) sigma x / (1 + x), x = 2 k^2 s, has the
    slope (v q / k) x (x + 3) / (1 + x)^2, largest at x = 3.

    >>> from otflow.closed_forms import l2_sensitivity
    >>> import math
    >>> round(l2_sensitivity(1.0, 1.0, 1.0, 0.25, 3 - 1 / math.e).item() / math.e**1.5 * (1 + 2 * math.e), 12)
    3.0
    """
    s0 = _positive(s0)
    s, k = l2_variance(s0, q, k, v, t), numbers.number(k, "k")
    return _growth(s, s0) * (1 + 2 * k**2 * s0) / (1 + 2 * k**2 * s)


def sinkhorn_sensitivity(s0: Any, a: Any, v: Any, t: Any, *, eps: float = 1.0) -> Tensor:
    """(s / s0)^(3/2) (1 + q0) / (1 + q), q = sqrt(1 + (2 a s / eps)^2): d sigma(t) / d sigma(0), Sinkhorn.

    At most exp(c |v t| / eps) with c = (3 sqrt(3) / (2 + sqrt(3)))^(1/2) = 1.17996 for all s0 and a: up to
    the sign of a, sigma' has the slope (v / eps) sqrt((q - 1) / (q + 1)) (q + 2) / q, largest at
    q = 1 + sqrt(3).

    >>> from otflow.closed_forms import sinkhorn_sensitivity
    >>> import math
    >>> got = sinkhorn_sensitivity(3 / 8, 1.0, 0.5, 1 + math.log(3 / 2)).item()  # s = 2/3, q0 = 5/4, q = 5/3
    >>> round(got / (16 / 9) ** 1.5, 12)
    0.84375
    """
    s0 = _positive(s0)
    s, a = sinkhorn_variance(s0, a, v, t, eps=eps), numbers.number(a, "a")
    q0, q = (torch.hypot(torch.ones_like(x), x) for x in (2 * a * s0 / eps, 2 * a * s / eps))
    return _growth(s, s0) * (1 + q0) / (1 + q)


def _positive(s0: Any) -> Tensor:
    return numbers.above(s0, "s0", "the derivative is taken at s0 > 0", "pass positive variances")


def _growth(s: Tensor, s0: Tensor) -> Tensor:
    return (s / s0) ** 1.5


def softmax_path_sensitivity(S0: Any, A: Any, t: Any) -> Tensor:
    """sup over D of |G D G^T|_S(t) / |D|_S0, G = (I - t S0 H)^-1, H = A + A^T: softmax attention with V = I.

    The derivative of `softmax_path` is D -> G D G^T; its norm between the metrics of Bures is the limit of
    W2(mu_t, nu_t) / W2(mu_0, nu_0) for the worst centred nu_0 near mu_0 = N(0, S0). If S0 and A + A^T commute
    it is max_i (1 - t s_i h_i)^(-3/2) over their joint eigenvectors. One singular value of a matrix of size
    d^2, (*batch,).

    Args:
        S0: covariance, > 0, (*batch, d, d).
        A: K^T Q, (*batch, d, d).
        t: times before the blow-up, (*batch,).

    >>> from otflow.closed_forms import softmax_path_sensitivity
    >>> round(softmax_path_sensitivity([[1.0, 0.0], [0.0, 1.0]], [[0.375, 0.0], [0.0, -2.0]], 1.0).item(), 9)
    8.0
    """
    S = softmax_path(S0, A, t)
    start, a = matrices.positive_definite(S0, "S0"), matrices.square(A, "A")
    G = solve(eye(start) - matrices.time(t, start, "S0") * start @ (a + a.mT), eye(start))
    before, after = _metric_root(start), _metric_root(S)
    # Only symmetric D count: the metrics keep both parts of D apart, so that the other one just adds length.
    moved = _kron(G, G) @ _symmetriser(start) @ before
    batch = torch.broadcast_shapes(moved.shape, after.shape)
    seen = torch.linalg.solve_triangular(after.expand(batch), moved.expand(batch), upper=False)
    return torch.linalg.matrix_norm(seen, 2)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    """The matrix of D -> a D b^T on vec(D), row by row; (*batch, d^2, d^2)."""
    return torch.einsum("...ij,...kl->...ikjl", a, b).flatten(-2).flatten(-3, -2)


def _metric_root(S: Tensor) -> Tensor:
    """L with L L^T = S x I + I x S, lower triangular."""
    one = eye(S).expand_as(S)
    return torch.linalg.cholesky(_kron(S, one) + _kron(one, S))


def _symmetriser(S: Tensor) -> Tensor:
    """D -> (D + D^T) / 2 on vec(D)."""
    d = S.shape[-1]
    same = torch.eye(d * d, dtype=S.dtype, device=S.device)
    return (same + same.reshape(d, d, d * d).transpose(0, 1).reshape(d * d, d * d)) / 2


def softmax_blow_up_sensitivity(S0: Any, A: Any, *, rtol: float = 1e-10) -> Tensor:
    """lim (1 - t/t*)^(3/2) `softmax_path_sensitivity` = |S0^(1/2) w| |S0^(-1/2) w| as t -> t*, (*batch,).

    w is the top unit eigenvector of S0^(1/2) (A + A^T) S0^(1/2): to leading order G is u e^T / (1 - t/t*) and
    S(t) is u u^T / (1 - t/t*), u = S0^(1/2) w, e = S0^(-1/2) w. The limit is 1 if w is an eigenvector of S0,
    else larger. Domain: S0 > 0, and a blow-up in one direction, as for `softmax_blow_up_direction`.

    >>> from otflow.closed_forms import softmax_blow_up_sensitivity
    >>> softmax_blow_up_sensitivity([[4.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 0.0]]).item()
    1.0
    """
    S, u = matrices.positive_definite(S0, "S0"), softmax_blow_up_direction(S0, A, rtol=rtol)
    return u.norm(dim=-1) * solve(S, u[..., None])[..., 0].norm(dim=-1)
