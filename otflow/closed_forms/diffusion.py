"""Linear diffusion of Gaussians: the Fokker-Planck equation with a quadratic potential, solved in time.

    F(mu) = int (x - b).A(x - b) / 2 dmu + (1/2) iint (x - y).K(x - y) / 2 dmu dmu + (1/beta) int rho log rho

Its Wasserstein gradient flow keeps Gaussians Gaussian. `otflow.closed_forms.jko` has the minimising movements
of the same energy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, matrices, numbers
from otflow.base.linalg import matrix_exp, symmetric
from otflow.closed_forms.matrices import eye


class Quadratic(NamedTuple):
    """A Gaussian in a quadratic energy: all that a Fokker-Planck equation needs to know."""

    mean: Tensor  # (*batch, d, 1)
    cov: Tensor  # (*batch, d, d)
    A: Tensor  # (*batch, d, d)
    b: Tensor  # (*batch, d, 1)
    C: Tensor  # (*batch, d, d), A + K: what the covariance feels


def quadratic(mean: Any, cov: Any, A: Any, b: Any, K: Any = None) -> Quadratic:
    """The five of them checked, of shapes that broadcast."""
    S = matrices.covariance(cov, "cov")
    A = matrices.fits(matrices.symmetric_matrix(A, "A"), "A", S, "cov")
    m, b = (matrices.vector(value, name, S, "cov")[..., None] for value, name in ((mean, "mean"), (b, "b")))
    if K is None:
        return Quadratic(m, S, A, b, A)
    return Quadratic(m, S, A, b, A + matrices.fits(matrices.symmetric_matrix(K, "K"), "K", A, "A"))


def fokker_planck(
    t: Any, mean: Any, cov: Any, A: Any, b: Any, beta: float, *, K: Any = None
) -> tuple[Tensor, Tensor]:
    """m(t) = b + e^(-At) (m - b),  S(t) = e^(-Ct) S e^(-Ct) + C^-1 (I - e^(-2Ct)) / beta,  C = A + K.

    Mean (*batch, d) and covariance (*batch, d, d) of the solution of
    d rho / dt = div(rho A(x - b)) + div(rho K(x - m)) + (1/beta) Laplace rho at time t >= 0. A and K are
    symmetric, of any sign; where C is singular the limit 2t of (1 - e^(-2ct)) / c is taken.

    Reference: Risken 1989, "The Fokker-Planck equation", on Ornstein-Uhlenbeck processes.

    >>> from otflow.closed_forms import fokker_planck
    >>> import math
    >>> m, S = fokker_planck(math.log(2), [3.0], [[4.0]], [[1.0]], [1.0], 1.0)
    >>> round(m.item(), 12), round(S.item(), 12)
    (2.0, 1.75)
    """
    q, beta = quadratic(mean, cov, A, b, K), checks.positive(beta, "beta")
    t = matrices.time(t, q.cov, "cov")
    if bool((t < 0).any()):
        checks.fail("t", numbers.shown(t), "diffusion does not run backwards", "pass times >= 0")
    decay, noise = _noise(q.C, t)
    m = q.b + matrix_exp(-t * q.A) @ (q.mean - q.b)
    return m[..., 0], symmetric(decay @ q.cov @ decay + noise / beta)


def _noise(C: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """e^(-Ct) and C^-1 (I - e^(-2Ct)), the latter a corner of one exponential, for C singular as well."""
    X = t * C
    d, zero = C.shape[-1], torch.zeros_like(X)
    blocks = torch.cat([torch.cat([-2 * X, eye(X).expand_as(X)], -1), torch.cat([zero, zero], -1)], -2)
    return matrix_exp(-X), 2 * t * matrix_exp(blocks)[..., :d, d:]


def heat_deviation(sigma: Any, t: Any) -> Tensor:
    """sigma(t) = sqrt(sigma^2 + 2t): the heat equation d rho / dt = rho'' from N(m, sigma^2), on the line.

    >>> from otflow.closed_forms import heat_deviation
    >>> heat_deviation(3.0, 8.0).item()
    5.0
    """
    s, t = numbers.alongside(sigma=numbers.variance(sigma, "sigma"), t=numbers.variance(t, "t"))
    return torch.sqrt(s**2 + 2 * t)
