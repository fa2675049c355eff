"""Entropic transport between Gaussians, the flow of its debiased divergence, and its heat-flow limit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base import checks, matrices
from otflow.base.linalg import sqrtm
from otflow.closed_forms.matrices import eye, scaled, trace


def entropic_cross(S1: Any, S2: Any, eps: float) -> Tensor:
    """C = E x y^T = S1^(1/2) U diag(tau) W^T S2^(1/2) for N(0, S1), N(0, S2), (*batch, d, d).

    S1^(1/2) S2^(1/2) = U diag(s) W^T and tau = (sqrt(eps^2 + 16 s^2) - eps) / (4 s). The optimal plan of
    E|x - y|^2 + eps KL(plan | product); note |x - y|^2 rather than its half. S1 and S2 may be
    singular. (Janati, Muzellec, Peyré, Cuturi 2020, Theorem 1.)

    >>> from otflow.closed_forms import entropic_cross
    >>> entropic_cross([[1.0]], [[4.0]], 6.0).item()
    1.0
    """
    R1, R2 = _roots(S1, S2)
    return R1 @ scaled(4 / checks.positive(eps, "eps") * R1 @ R2) @ R2


def entropic_value(S1: Any, S2: Any, eps: float, *, shift: Any = None) -> Tensor:
    """|shift|^2 + tr S1 + tr S2 - sum_i (2 s_i tau_i + (eps / 2) log(1 - tau_i^2)), (*batch,).

    OT_eps between N(m, S1) and N(m + shift, S2), s and tau as in `entropic_cross`: the least value of
    E|x - y|^2 + eps KL(plan | product). (Janati, Muzellec, Peyré, Cuturi 2020, Theorem 1.)

    >>> from otflow.closed_forms import entropic_value
    >>> import math
    >>> round(entropic_value([[1.0]], [[4.0]], 6.0).item() - 3 + 3 * math.log(0.75), 12)
    0.0
    """
    R1, R2 = _roots(S1, S2)
    s = torch.linalg.svdvals(R1 @ R2)
    z = 4 / checks.positive(eps, "eps") * s
    q = torch.hypot(torch.ones_like(z), z)
    # tau = z / (1 + q) and 1 - tau^2 = 2 / (1 + q), neither with cancellation
    pairs = (2 * s * z / (1 + q) + eps / 2 * torch.log(2 / (1 + q))).sum(-1)
    return _squared(shift, R1) + trace(R1 @ R1) + trace(R2 @ R2) - pairs


def _squared(shift: Any, S: Tensor) -> Tensor:
    if shift is None:
        return S.new_zeros(())
    return matrices.vector(shift, "shift", S, "S1").square().sum(-1)


def _roots(S1: Any, S2: Any) -> tuple[Tensor, Tensor]:
    one, two = matrices.covariance(S1, "S1"), matrices.covariance(S2, "S2")
    matrices.fits(two, "S2", one, "S1")
    return sqrtm(one), sqrtm(two)


def debiased_rate(S: Any, eps: float) -> Tensor:
    """dS/dt = (16 S + eps^2)^(1/2) - (16 S^2 + eps^2)^(1/2): the flow towards N(0, I), (*batch, d, d).

    The Wasserstein flow of OT_eps(mu, N(0, I)) - (OT_eps(mu, mu) + OT_eps(N(0, I), N(0, I))) / 2 for the cost
    |x - y|^2, from a centred Gaussian. The roots are matrix roots, and S commutes with the target, so there
    is nothing else to it; S = I stands still.

    >>> from otflow.closed_forms import debiased_rate
    >>> debiased_rate([[0.0]], 2.0).item(), debiased_rate([[1.0]], 2.0).item()
    (0.0, 0.0)
    """
    S = matrices.covariance(S, "S")
    square = checks.positive(eps, "eps") ** 2 * eye(S)
    return sqrtm(16 * S + square) - sqrtm(16 * S @ S + square)


def score(S: Any) -> Tensor:
    """-S^-1: the slope of x -> grad log rho(x) for rho = N(0, S), S > 0, (*batch, d, d).

    >>> from otflow.closed_forms import score
    >>> score([[4.0]]).item()
    -0.25
    """
    S = matrices.positive_definite(S, "S")
    return -torch.linalg.inv(S)


def l2_displacement(S: Any, eps: float) -> Tensor:
    """-(S + eps)^-1: the slope of x -> (E[y | x] - x) / eps under exp(-|x - y|^2 / (2 eps)) N(0, S)(dy).

    Kernels normalised over y. As eps -> 0 it tends to the score -S^-1 with error O(eps), so that
    x' = (x - E[y | x]) / eps follows the heat equation d rho / dt = Laplace rho: `heat_path`.
    (Sander, Ablin, Blondel, Peyré 2022, Theorem 1.)

    >>> from otflow.closed_forms import l2_displacement
    >>> l2_displacement([[1.5]], 0.5).item()
    -0.5
    """
    S = matrices.covariance(S, "S")
    return -torch.linalg.inv(S + checks.positive(eps, "eps") * eye(S))


def sinkhorn_displacement(S: Any, eps: float) -> Tensor:
    """-2 (2 S + eps + (4 S^2 + eps^2)^(1/2))^-1: `l2_displacement` for the kernel scaled to be bistochastic.

    Tends to half the score, -S^-1 / 2, as eps -> 0: the heat equation at half the speed. (Sander, Ablin,
    Blondel, Peyré 2022, Theorem 1; Agarwal, Harchaoui, Mulcahy, Pal 2024, arXiv 2406.10823.)

    >>> from otflow.closed_forms import sinkhorn_displacement
    >>> round(sinkhorn_displacement([[2.0]], 3.0).item(), 12)
    -0.166666666667
    """
    S = matrices.covariance(S, "S")
    shift = checks.positive(eps, "eps") * eye(S)
    return -2 * torch.linalg.inv(2 * S + shift + sqrtm(4 * S @ S + shift @ shift))


def heat_path(S0: Any, t: Any) -> Tensor:
    """S(t) = S0 + 2 t I: the heat equation d rho / dt = Laplace rho from a Gaussian, (*batch, d, d).

    The limit eps -> 0 of x' = -`l2_displacement` x; that of x' = -`sinkhorn_displacement` x is S0 + t I.
    Domain: S0 + 2 t I >= 0.

    >>> from otflow.closed_forms import heat_path
    >>> heat_path([[1.0]], 2.0).item()
    5.0
    """
    S = matrices.covariance(S0, "S0")
    return matrices.covariance(S + 2 * matrices.time(t, S, "S0") * eye(S), "S0 + 2 t I")
