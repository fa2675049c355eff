"""Finite prompts: the exponential of the causal attention matrix ("attention rollout").

At leading order, E exp(in (theta_N(t) - theta_i(0))) is the entry (N, i) of exp(a_n t Omega) for i < N, where
Omega is the strictly lower triangular matrix of attention weights and a_n = n^2 I_n(beta). It holds for any
causal weights, so also for windows and for several heads, and tends to `retrieval.response` for ALiBi.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import at_least_zero, insist, tensors
from otflow.papers.lost_in_the_middle.retrieval import coupling, enough, words

__all__ = ["alibi_matrix", "finite_response", "finite_profile"]


def alibi_matrix(N: int, lam: float, *, window: int | None = None) -> Tensor:
    """Omega_jk = exp(-lam (j-k)/N) / Z_j for k < j, else 0: what token j listens to; the first row is zero.

    Args:
        N: number of tokens; lam: slope of ALiBi >= 0.
        window: how many tokens back one sees, by default all.

    >>> from otflow.papers.lost_in_the_middle import alibi_matrix
    >>> alibi_matrix(3, 0.0)
    tensor([[0.0000, 0.0000, 0.0000],
            [1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    N, lam = checks.count(N, "N"), checks.number(lam, "lam")
    at_least_zero(lam, "lam")
    window = N if window is None else checks.count(window, "window")
    back = torch.arange(N, dtype=torch.float64)[:, None] - torch.arange(N, dtype=torch.float64)
    seen = (back >= 1) & (back <= window)
    weight = torch.where(seen, torch.exp(-lam * (back - 1).clamp(min=0) / N), 0.0)
    return weight / weight.sum(-1, keepdim=True).clamp(min=1.0)  # the token before has weight one


def finite_response(Omega: Any, a: Any, t: float, *, row: int = -1) -> Tensor:
    """Row of exp(a t Omega), or of exp(t sum_h a_h Omega_h) for heads h: what each token left in that one.

    By the power series on the row, in O(N^2) per term: for weights >= 0 all terms are >= 0, so that no digits
    are lost.

    Args:
        Omega: (N, N), or (H, N, N) for H heads.
        a: couplings >= 0, (*batch,), or (*batch, H) for H heads.
        t: time >= 0.
        row: which token reads.

    Returns: (*batch, N).

    >>> from otflow.papers.lost_in_the_middle import alibi_matrix, finite_response
    >>> finite_response(alibi_matrix(3, 0.0), 1.0, 1.0)
    tensor([0.7500, 0.5000, 1.0000], dtype=torch.float64)
    """
    Omega, rate = _heads(Omega, a, t)
    N = Omega.shape[-1]
    if not isinstance(row, Integral) or not -N <= row < N:
        checks.fail("row", row, f"there are {N} tokens", f"choose a whole number from {-N} to {N - 1}")
    batch, rate = rate.shape[:-1], rate.reshape(-1, rate.shape[-1])
    term = torch.eye(N, dtype=torch.float64)[row].expand(len(rate), N)
    total = term.clone()
    for m in range(1, _terms(Omega, rate)):
        heads = (rate / m)[:, :, None] * term[:, None, :]
        term = heads.flatten(1) @ Omega.flatten(0, 1)
        total += term
    return total.reshape(*batch, N)


def finite_profile(Omega: Any, t: float, beta: float, M: int, *, modes: int = 20) -> Tensor:
    """N sum_n exp(-pi^2 n^2 / (2 M^2)) (exp(a_n t Omega))_{N,i}: the retrieval score of any causal weights.

    Args:
        Omega: attention weights (N, N), or (H, N, N) for heads of the same beta; t, beta: >= 0.
        M: number of words; modes: number of terms.

    Returns: (N - 1,), one score for each token before the last.

    >>> from otflow.papers.lost_in_the_middle import alibi_matrix, finite_profile
    >>> finite_profile(alibi_matrix(512, 1.0), 1.0, 1.0, 8)[[25, 153, 460]]
    tensor([1.4237, 1.2008, 1.5480], dtype=torch.float64)
    """
    Omega = _weights(Omega)
    n, log_omega = words(M, modes)
    a = coupling(n, checks.number(beta, "beta"))
    rows = finite_response(Omega, a if Omega.ndim == 2 else a[:, None].expand(-1, len(Omega)), t)
    terms = torch.from_numpy(log_omega).exp()[:, None] * rows[:, :-1]
    enough(terms.mT.numpy(), modes)
    scores: Tensor = Omega.shape[-1] * terms.sum(0)
    S = scores.detach()
    insist(S.isfinite(), "scores", S, "they must be float64", "pass t / 10, or beta / 10")
    return scores


def _weights(value: Any) -> Tensor:
    """Causal weights (N, N) or (H, N, N)."""
    Omega = checks.tensor(value, "Omega").double()
    if Omega.ndim not in (2, 3) or Omega.shape[-1] != Omega.shape[-2] or 0 in Omega.shape:
        checks.fail(
            "Omega.shape",
            tuple(Omega.shape),
            "(N, N) or (H, N, N) is needed",
            "pass Omega[None], or one matrix for each head",
        )
    if bool(Omega.triu().any()):
        checks.fail(
            "Omega",
            "a matrix with entries on or above the diagonal",
            "it must be causal",
            "pass Omega.tril(-1)",
        )
    return Omega


def _heads(Omega: Any, a: Any, t: float) -> tuple[Tensor, Tensor]:
    """Omega (H, N, N) and the rates (*batch, H)."""
    Omega, (a,), t = _weights(Omega), tensors(a=a), checks.number(t, "t")
    at_least_zero(a, "a")
    at_least_zero(t, "t")
    if Omega.ndim == 2:
        return Omega[None], t * a[..., None]
    if a.ndim == 0 or a.shape[-1] != len(Omega):
        checks.fail(
            "a.shape", tuple(a.shape), f"one coupling for each of {len(Omega)} heads", "give a[..., h]"
        )
    return Omega, t * a


def _terms(Omega: Tensor, rate: Tensor) -> int:
    """So many that c^m / m! < 1e-17 for the norm c of the exponent; a nilpotent matrix needs at most N."""
    c = float((rate @ Omega.abs().sum(-1).amax(-1)).max()) if len(rate) else 0.0
    if not c <= 700:  # NaN if the rate is infinite and the matrix zero
        checks.fail(
            "a t |Omega|",
            c,
            "its exponential must be a float64",
            f"divide t by {c / 600:.3g}",
        )
    m = 1
    while m < Omega.shape[-1] and (
        m <= c or m * math.log(max(c, 1e-300)) - math.lgamma(m + 1) > math.log(1e-17)
    ):
        m += 1
    return m + 1
