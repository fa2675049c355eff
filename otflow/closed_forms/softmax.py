"""Softmax attention on Gaussians: explicit paths, blow-up, limits, and the Lyapunov function.

With H = A + A^T, A = K^T Q, and V = I the covariance solves S' = S H S, so that S^-1 falls linearly:

    S(t) = (S0^-1 - t H)^-1 = R (I - t R H R)^-1 R,    R = S0^(1/2),

where the second form needs no inverse of S0. Everything about it is in the eigenvalues of R H R; their
signs are those of H on the range of S0 (Sylvester), which is how they are counted here.

Castin, Ablin, Carrillo, Peyré, A unified perspective on the dynamics of deep Transformers, 2025,
arXiv 2501.18322, section 4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, matrices, numbers
from otflow.base.linalg import ratio, sqrtm, symmetric
from otflow.closed_forms.matrices import eye, norm, solve, solve_right, support, trace


class _Spectrum(NamedTuple):
    """S0, its root R, H = A + A^T, and R H R = W diag(values) W^T."""

    S: Tensor
    R: Tensor
    H: Tensor
    values: Tensor
    vectors: Tensor


def _matrices(S0: Any, A: Any) -> tuple[Tensor, Tensor]:
    S = matrices.covariance(S0, "S0")
    a = matrices.fits(matrices.square(A, "A"), "A", S, "S0")
    return S, a + a.mT


def _spectrum(S0: Any, A: Any) -> _Spectrum:
    S, H = _matrices(S0, A)
    R = sqrtm(S)
    values, vectors = torch.linalg.eigh(symmetric(R @ H @ R))
    return _Spectrum(S, R, H, values, vectors)


def _seen(S: Tensor, H: Tensor) -> Tensor:
    """H on the range of S."""
    P = support(S)
    return symmetric(P @ H.detach() @ P)


def _explodes(S: Tensor, H: Tensor, rtol: float) -> Tensor:
    """Whether H has an eigenvalue beyond rtol |H| on the range of S, (*batch,)."""
    return torch.linalg.eigvalsh(_seen(S, H))[..., -1] > rtol * norm(H.detach())


def softmax_path(S0: Any, A: Any, t: Any) -> Tensor:
    """S(t) = (S0^-1 - t (A + A^T))^-1 = S0 (I - t (A + A^T) S0)^-1: softmax attention with V = I.

    S0 may be singular, and its rank is kept. Domain: t between the blow-up times of either direction of
    time, an error beyond. (Castin et al. 2025, section 4.)

    Args:
        S0: covariance, (*batch, d, d).
        A: K^T Q, (*batch, d, d).
        t: times, (*batch,).

    >>> from otflow.closed_forms import softmax_path
    >>> softmax_path([[1.0]], [[0.25]], 1.0)
    tensor([[2.]], dtype=torch.float64)
    """
    S, H = _matrices(S0, A)
    time = matrices.time(t, S, "S0")
    R = sqrtm(S.detach())
    values = torch.linalg.eigvalsh(symmetric(R @ H.detach() @ R))
    past = time[..., 0] * values >= 1
    if bool(past.any()):
        worst = (1 / values.expand(past.shape)[past]).abs().min().item()
        rule = f"a covariance blows up at |t| = {worst:g}"
        checks.fail("t", numbers.shown(t), rule, f"pass |t| < {worst:g}, as softmax_blow_up_time(S0, A) says")
    # A solve without the root: smooth in S0 even where S0 is singular.
    return symmetric(solve_right(S, eye(S) - time * H @ S))


def softmax_blow_up_time(S0: Any, A: Any, *, rtol: float = 1e-10) -> Tensor:
    """t* = 1 / lambda_max(S0^(1/2) (A + A^T) S0^(1/2)) for V = I, infinity if there is no blow-up, (*batch,).

    Eigenvalues of A + A^T on the range of S0 up to rtol |A + A^T| count as zero. (Castin et al. 2025,
    section 4.)

    >>> from otflow.closed_forms import softmax_blow_up_time
    >>> softmax_blow_up_time([[2.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, -3.0]]).item()
    0.5
    >>> softmax_blow_up_time([[1.0]], [[-1.0]]).item()
    inf
    """
    s = _spectrum(S0, A)
    top = s.values[..., -1]
    yes = _explodes(s.S, s.H, rtol) & (top > 0)
    return torch.where(yes, ratio(torch.ones_like(top), top, yes), torch.inf)


def _top(S0: Any, A: Any, rtol: float) -> tuple[_Spectrum, Tensor]:
    """Which eigenvalues equal the largest one up to rtol, all of them positive."""
    s = _spectrum(S0, A)
    top = s.values[..., -1:]
    if not bool((_explodes(s.S, s.H, rtol) & (top[..., 0] > 0)).all()):
        rule, remedy = "without a positive one there is no blow-up", "ask softmax_blow_up_time first"
        checks.fail("max eigenvalue of A + A^T on the range of S0", top.min().item(), rule, remedy)
    return s, s.values >= top * (1 - rtol)


def softmax_blow_up_profile(S0: Any, A: Any, *, rtol: float = 1e-10) -> Tensor:
    """lim (t* - t) S(t) = t* R P R as t -> t*, V = I, (*batch, d, d).

    P projects onto the eigenvectors of R (A + A^T) R for its largest eigenvalue, R = S0^(1/2); eigenvalues
    within the factor 1 - rtol of it are taken as equal. The rank is one unless that eigenvalue is repeated.

    >>> from otflow.closed_forms import softmax_blow_up_profile
    >>> softmax_blow_up_profile([[4.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 0.0]])
    tensor([[1., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    s, top = _top(S0, A, rtol)
    u = s.R @ (s.vectors * top[..., None, :])
    return u @ u.mT / s.values[..., -1:, None]


def softmax_blow_up_direction(S0: Any, A: Any, *, rtol: float = 1e-10) -> Tensor:
    """u = S0^(1/2) w with (t* - t) S(t) -> t* u u^T, w the top unit eigenvector, V = I, (*batch, d).

    Its largest entry is positive. Domain: a positive, simple largest eigenvalue of
    S0^(1/2) (A + A^T) S0^(1/2); `softmax_blow_up_profile` covers repeated ones.

    >>> from otflow.closed_forms import softmax_blow_up_direction
    >>> softmax_blow_up_direction([[4.0, 0.0], [0.0, 1.0]], [[0.5, 0.0], [0.0, 0.0]])
    tensor([2., 0.], dtype=torch.float64)
    """
    s, top = _top(S0, A, rtol)
    rule = "its blow-up has several directions"
    checks.require(not (top.sum(-1) > 1).any(), "A", "a matrix", rule, "use softmax_blow_up_profile")
    u: Tensor = (s.R @ s.vectors[..., -1:])[..., 0]
    return u * u.gather(-1, u.abs().argmax(-1, keepdim=True)).sign()


def softmax_limit(S0: Any, A: Any, *, rtol: float = 1e-10) -> Tensor:
    """lim S(t) = R P R as t -> infinity for V = I, P the projection onto ker R (A + A^T) R, R = S0^(1/2).

    For invertible S0 this is N (N^T S0^-1 N)^-1 N^T with N a basis of ker(A + A^T). Domain: A + A^T <= 0 on
    the range of S0, with eigenvalues up to rtol |A + A^T| taken for zero. (Castin et al. 2025, section 4.)

    >>> from otflow.closed_forms import softmax_limit
    >>> softmax_limit([[2.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, -1.0]])
    tensor([[1., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    s = _spectrum(S0, A)
    falling = _falling(s.S, s.H, rtol)
    # Ascending and none positive, so the kernel comes last; counted for H, where S0 cannot hide it.
    index = torch.arange(s.S.shape[-1], device=s.S.device)
    u = s.R @ (s.vectors * (index >= falling[..., None])[..., None, :])
    return u @ u.mT


def softmax_limit_rank(S0: Any, A: Any, *, rtol: float = 1e-10) -> Tensor:
    """rank S0 - rank(S0 (A + A^T) S0): the exact rank of `softmax_limit`, (*batch,), as int64.

    d - rank(A + A^T) if S0 is invertible. Domain and rtol as there.

    >>> from otflow.closed_forms import softmax_limit_rank
    >>> softmax_limit_rank([[2.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, -1.0]]).item()
    1
    """
    S, H = _matrices(S0, A)
    full = trace(support(S)).round().long()
    return full - _falling(S, H, rtol)


def _falling(S: Tensor, H: Tensor, rtol: float) -> Tensor:
    """Number of negative eigenvalues of H on the range of S; an error if one is positive."""
    values, scale = torch.linalg.eigvalsh(_seen(S, H)), rtol * norm(H.detach())[..., None]
    if bool((values > scale).any()):
        rule, remedy = "a limit needs all of them <= 0", "the flow blows up at softmax_blow_up_time(S0, A)"
        checks.fail("max eigenvalue of A + A^T on the range of S0", values.max().item(), rule, remedy)
    return (values < -scale).sum(-1)


def softmax_limit_rank_bound(A: Any, *, rtol: float = 1e-10) -> Tensor:
    """d - rank(A + A^T): the largest rank that a limit can have if A + A^T <= 0 and V = V^T > 0, (*batch,).

    Limit points satisfy (A + A^T) S = 0. Eigenvalues up to rtol times the largest one count as zero.

    >>> from otflow.closed_forms import softmax_limit_rank_bound
    >>> softmax_limit_rank_bound([[0.0, 0.0], [0.0, -1.0]]).item()
    1
    """
    a = matrices.square(A, "A")
    H = a + a.mT
    values, scale = torch.linalg.eigvalsh(H.detach()), rtol * norm(H.detach())[..., None]
    if bool((values > scale).any()):
        high = values.max().item()
        checks.fail(
            "max eigenvalue of A + A^T",
            high,
            "the bound is for A + A^T <= 0",
            "pass A - c I with c >= half of that",
        )
    return a.shape[-1] - (values < -scale).sum(-1)


def softmax_blow_up_bound(S0: Any, A: Any, V: Any) -> Tensor:
    """d / (lambda_min(A + A^T) lambda_min(V)^2 tr(V^-1 S0)): softmax blows up before that time, (*batch,).

    Domain: V = V^T > 0 and A + A^T > 0. Since y = tr(V^-1 S) has y' >= lambda_min(A + A^T) |S|^2 in the
    Frobenius norm, and |S| >= lambda_min(V) y / sqrt(d), y blows up no later than y' = c y^2. Infinite for
    S0 = 0.

    >>> from otflow.closed_forms import softmax_blow_up_bound
    >>> softmax_blow_up_bound([[1.0]], [[0.5]], [[2.0]]).item()
    0.5
    """
    S, H = _matrices(S0, A)
    V = matrices.fits(matrices.positive_definite(V, "V"), "V", S, "S0")
    low = torch.linalg.eigvalsh(matrices.positive_definite(H, "A + A^T"))[..., 0]
    return S.shape[-1] / (low * torch.linalg.eigvalsh(V)[..., 0] ** 2 * trace(solve(V, S)))


def softmax_lyapunov(S: Any, V: Any) -> Tensor:
    """tr(V^-1 S), (*batch,), for V = V^T > 0: along softmax attention its rate is `softmax_lyapunov_rate`.

    So it falls if A + A^T <= 0, and the covariance stays bounded.

    >>> from otflow.closed_forms import softmax_lyapunov
    >>> softmax_lyapunov([[3.0]], [[2.0]]).item()
    1.5
    """
    S = matrices.covariance(S, "S")
    V = matrices.fits(matrices.positive_definite(V, "V"), "V", S, "S")
    return trace(solve(V, S))


def softmax_lyapunov_rate(S: Any, A: Any) -> Tensor:
    """d/dt tr(V^-1 S) = tr(S (A + A^T) S) along softmax attention, for every V = V^T > 0, (*batch,).

    >>> from otflow.closed_forms import softmax_lyapunov_rate
    >>> softmax_lyapunov_rate([[3.0]], [[-1.0]]).item()
    -18.0
    """
    S = matrices.covariance(S, "S")
    a = matrices.fits(matrices.square(A, "A"), "A", S, "S")
    return 2 * trace(S @ a @ S)
