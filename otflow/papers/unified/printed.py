"""Printed formulas that are wrong, kept to be compared with the right ones of `otflow.closed_forms`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from otflow.base import checks, matrices
from otflow.base.linalg import sqrtm
from otflow.closed_forms.matrices import eye, solve, solve_right


def sinkhorn_poster_rate(S: Any, A: Any, V: Any) -> Tensor:
    """ERRATUM: dS/dt = V X S^-1 A^-T S + (the same)^T, X as below, on a poster of Castin et al. 2025.

    X = (R (4 R A S A^T R + I)^(1/2) R^-1 - I) / 2, R = S^(1/2). Two things are wrong with it. S^-1 and A^-T
    stand in the wrong order: V X A^-T S^-1 S is meant, see `otflow.closed_forms.sinkhorn_rate_inverse_right`,
    and the two agree where S and A commute. And its constants 1/2 and 4 are those of the kernel exp(Ax.y),
    while the kernel given there, exp(-|Qx - Ky|^2), has the scaling of exp(2 Ax.y) and needs 1/4 and 16:
    scaling removes all factors of x alone and of y alone, so that of exp(-b |Qx - Ky|^2 / 2) only exp(b Ax.y)
    is left, with 1 / (2b) and 4 b^2 in X.

    >>> from otflow.papers.unified.printed import sinkhorn_poster_rate
    >>> round(sinkhorn_poster_rate([[1.0]], [[1.0]], [[1.0]]).item(), 12)
    1.2360679775
    """
    S = matrices.positive_definite(S, "S")
    A = matrices.fits(matrices.invertible(A, "A"), "A", S, "S")
    V = matrices.fits(matrices.square(V, "V"), "V", S, "S")
    R = sqrtm(S)
    N = 2 * R @ A @ R
    X = (solve_right(R @ sqrtm(N @ N.mT + eye(S)), R) - eye(S)) / 2
    half = V @ X @ solve(S, solve(A.mT, S))
    return half + half.mT


def debiased_rate_erratum(S: Any, eps: float) -> Tensor:
    """ERRATUM: dS/dt = 4 (S + e)^(1/2) - 2 (S^2 + e)^(1/2) - 2 S - eps / 2 with e = eps^2 / 16.

    The row on the debiased divergence to N(0, I) in the catalogue of covariance flows in Peyré's book Optimal
    Transport for Machine Learners; `otflow.closed_forms.debiased_rate` is right. The book's exceeds it by
    2 (S^2 + e)^(1/2) - 2 S - eps / 2, which vanishes at S = 0 and as eps -> 0 only.

    >>> from otflow.papers.unified.printed import debiased_rate_erratum
    >>> debiased_rate_erratum([[0.0]], 2.0).item(), round(debiased_rate_erratum([[1.0]], 2.0).item(), 6)
    (0.0, -0.763932)
    """
    S = matrices.covariance(S, "S")
    e = checks.positive(eps, "eps") ** 2 / 16 * eye(S)
    return 4 * sqrtm(S + e) - 2 * sqrtm(S @ S + e) - 2 * S - eps / 2 * eye(S)
