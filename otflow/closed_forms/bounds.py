"""Bounds on covariances under L2 and Sinkhorn attention, and an L2 flow that blows up because none holds.

Castin, Ablin, Carrillo, Peyré, A unified perspective on the dynamics of deep Transformers, 2025,
arXiv 2501.18322, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks, matrices, numbers
from otflow.base.linalg import ratio
from otflow.closed_forms.matrices import norm, trace


def sinkhorn_trace_bound(S0: Any, V: Any, t: Any, *, eps: float = 1.0) -> Tensor:
    """tr S(t) <= exp(2 |V| |t| / eps) tr S0 under Sinkhorn attention, whatever A is, (*batch,).

    The plan has marginals S, so its cross-covariance C has S^(-1/2) C S^(-1/2) of norm <= 1: no blow-up.

    >>> from otflow.closed_forms import sinkhorn_trace_bound
    >>> sinkhorn_trace_bound([[2.0]], [[0.0]], 1.0).item()
    2.0
    """
    S = matrices.covariance(S0, "S0")
    V = matrices.fits(matrices.square(V, "V"), "V", S, "S0")
    t = matrices.time(t, S, "S0")[..., 0, 0]
    return torch.exp(2 * norm(V) * t.abs() / checks.positive(eps, "eps")) * trace(S)


def l2_trace_bound(S0: Any, Q: Any, K: Any, V: Any, t: Any) -> Tensor:
    """tr S(t) <= exp(2 |V K^+| |Q| |t|) tr S0 under L2 attention with injective K, (*batch,).

    Q and K are (*batch, k, d), and K must have rank d, so k >= d; K^+ is its left inverse. Then
    x' = V K^+ X (I + X)^-1 Q x with X = 2 K S K^T, and |X (I + X)^-1| <= 1. Without it the claim is false:
    `l2_counterexample`.

    >>> from otflow.closed_forms import l2_trace_bound
    >>> l2_trace_bound([[2.0]], [[0.0]], [[1.0]], [[1.0]], 1.0).item()
    2.0
    """
    S = matrices.covariance(S0, "S0")
    Q, K = (
        matrices.fits(matrices.matrix(Q, "Q"), "Q", S, "S0"),
        matrices.fits(matrices.matrix(K, "K"), "K", S, "S0"),
    )
    V = matrices.fits(matrices.square(V, "V"), "V", S, "S0")
    t = matrices.time(t, S, "S0")[..., 0, 0]
    _injective(K)
    return torch.exp(2 * norm(V @ torch.linalg.pinv(K)) * norm(Q) * t.abs()) * trace(S)


def _injective(K: Tensor) -> None:
    remedy = "pass a K of d independent rows, such as torch.eye(d): no bound holds for others"
    rule = "K must be injective, (k, d) with k >= d"
    checks.require(K.shape[-2] >= K.shape[-1], "K.shape", K.shape, rule, remedy)
    matrices.injective(K, "K", "K must be injective", remedy)


@dataclass(frozen=True, eq=False)
class L2Counterexample:
    """L2 attention on the plane that blows up, and its explicit solution; made by `l2_counterexample`.

    Args:
        Q, K: (1, 2).
        V: (2, 2).
    """

    Q: Tensor
    K: Tensor
    V: Tensor

    def path(self, S0: Any, t: Any) -> Tensor:
        """S(t) = D S0 D, D = diag(1, 1 / (1 - t / t*)), 1 / t* = 2 S0_12 / (1 + 2 S0_11), (*batch, 2, 2)."""
        S = _plane(S0)
        time = matrices.time(t, S, "S0")[..., 0, 0]
        left = 1 - time * _growth(S)
        if bool((left <= 0).any()):
            checks.fail(
                "t",
                numbers.shown(t),
                "a covariance has blown up by then",
                "pass times below blow_up_time(S0)",
            )
        D = torch.stack([torch.ones_like(left), 1 / left], -1)
        return D[..., :, None] * S * D[..., None, :]

    def blow_up_time(self, S0: Any) -> Tensor:
        """t* = (1 + 2 S0_11) / (2 S0_12) if that is positive, else infinity, (*batch,)."""
        rate = _growth(_plane(S0))
        return torch.where(rate > 0, ratio(torch.ones_like(rate), rate), torch.inf)


def _growth(S: Tensor) -> Tensor:
    return 2 * S[..., 0, 1] / (1 + 2 * S[..., 0, 0])


def _plane(S0: Any) -> Tensor:
    S = matrices.covariance(S0, "S0")
    checks.require(
        S.shape[-1] == 2, "S0.shape", S.shape, "the counterexample lives on the plane", "pass (*batch, 2, 2)"
    )
    return S


def l2_counterexample() -> L2Counterexample:
    """K = e1^T, Q = e2^T, V = e2 e2^T: L2 attention that blows up in finite time, as K is not injective.

    x' = 2 S_12 / (1 + 2 S_11) x_2 e2, so that S_11 stays and S_12' = 2 S_12^2 / (1 + 2 S_11).

    >>> from otflow.closed_forms import l2_counterexample
    >>> import torch
    >>> example = l2_counterexample()
    >>> S0 = [[1.0, 0.5], [0.5, 1.0]]
    >>> example.blow_up_time(S0).item()
    3.0
    >>> example.path(S0, 1.5)
    tensor([[1., 1.],
            [1., 4.]], dtype=torch.float64)
    """
    e1, e2 = torch.eye(2, dtype=torch.float64)
    return L2Counterexample(Q=e2[None], K=e1[None], V=torch.outer(e2, e2))
