"""JKO steps in closed form: the exact minimising movement over one step of length tau.

    mu' = argmin over nu of F(nu) + W2(nu, mu)^2 / (2 tau)

A solver is to be judged by these, and the scheme by the equation that it approximates: an error of the solver
can cancel the O(tau) error of the scheme.

Jordan, Kinderlehrer, Otto 1998, "The variational formulation of the Fokker-Planck equation".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base import checks, matrices, numbers
from otflow.base.errors import ConvergenceError
from otflow.base.linalg import known, sqrtm, symmetric
from otflow.closed_forms.barenblatt import exponents, positive
from otflow.closed_forms.diffusion import quadratic
from otflow.closed_forms.matrices import eye, solve


def fokker_planck_step(
    mean: Any, cov: Any, A: Any, b: Any, beta: float, tau: float, *, K: Any = None
) -> tuple[Tensor, Tensor]:
    """m' = (I + tau A)^-1 (m + tau A b),  S' = B^(-1/2) (M + 2h I + (M (M + 4h I))^(1/2)) / 2 B^(-1/2).

    B = I + tau (A + K), M = B^(-1/2) S B^(-1/2), h = tau / beta: the JKO step from N(m, S) of

        F = int (x - b).A(x - b) / 2 dmu + (1/2) iint (x - y).K(x - y) / 2 dmu dmu + (1/beta) int rho log rho.

    From S = (B - h S'^-1) S' (B - h S'^-1), where B - h S'^-1 is the inverse of the optimal map if S > 0. The
    matrices need not commute, S may be singular, A and K are symmetric, of any sign as long as the step is
    convex: I + tau A > 0 and B > 0. Mean (*batch, d) and covariance (*batch, d, d).

    >>> from otflow.closed_forms import fokker_planck_step
    >>> m, S = fokker_planck_step([1.0], [[1.0]], [[1.0]], [0.0], 1.0, 1.0)
    >>> m.item(), S.item()
    (0.5, 1.0)
    """
    q, beta, tau = quadratic(mean, cov, A, b, K), checks.positive(beta, "beta"), checks.positive(tau, "tau")
    pull = matrices.positive_definite(eye(q.A) + tau * q.A, "I + tau A")
    B = matrices.positive_definite(eye(q.C) + tau * q.C, "I + tau (A + K)")
    inverse = solve(sqrtm(B), eye(B))
    mean = solve(pull, q.mean + tau * q.A @ q.b)[..., 0]
    return mean, symmetric(inverse @ _spread(inverse @ q.cov @ inverse, tau / beta) @ inverse)


def _spread(M: Tensor, h: float) -> Tensor:
    """(M + 2h + (M (M + 4h))^(1/2)) / 2: eigenvalue by eigenvalue, so that small ones keep their digits."""
    M = symmetric(M)
    values, vectors = torch.linalg.eigh(M.detach())
    values = values.clamp(min=0)
    moved = (values + 2 * h + (values * (values + 4 * h)).sqrt()) / 2
    exact = (vectors * moved[..., None, :]) @ vectors.mT
    return known(exact, (M + 2 * h * eye(M) + sqrtm(symmetric(M @ M) + 4 * h * M)) / 2)


def heat_step(sigma: Any, tau: Any) -> Tensor:
    """sigma' = (sigma + sqrt(sigma^2 + 4 tau)) / 2: the JKO step of int rho log rho from N(m, sigma^2).

    From a point mass, sigma = 0, it is sqrt(tau), against sqrt(2 tau) for the heat equation.

    >>> from otflow.closed_forms import heat_step
    >>> heat_step(3.0, 4.0).item()
    4.0
    """
    s, tau = numbers.alongside(sigma=numbers.variance(sigma, "sigma"), tau=numbers.variance(tau, "tau"))
    return (s + torch.sqrt(s**2 + 4 * tau)) / 2


def barenblatt_radius_step(R: Any, tau: Any, m: float, d: int) -> Tensor:
    """R' - R = (tau / q) R'^(1 - q), q = d (m - 1) + 2: the JKO step of int rho^m / (m - 1) on Barenblatts.

    The profile is kept, rho = R^-d rho_1(x / R), and R is its radius in units of that at t = 1, which makes
    R = t^(1/q) for the porous medium equation; see `barenblatt_profile`. R = 0 is a point mass. The mass
    makes no difference to R.

    >>> from otflow.closed_forms import barenblatt_radius_step
    >>> barenblatt_radius_step(0.0, 4.0, 2.0, 2).item()
    1.0
    """
    q = exponents(m, d).q
    R, tau = numbers.alongside(R=numbers.variance(R, "R"), tau=positive(tau, "tau"))
    R, s = torch.broadcast_tensors(R, (tau / q) ** (1 / q))
    x = _rise(R.detach(), s.detach(), q)
    # One more step of Newton's method, which carries the derivatives.
    rest, slope = x - R - x * (s / x) ** q, 1 + (q - 1) * (s.detach() / x) ** q
    return x - rest / slope


@torch.no_grad()
def _rise(R: Tensor, s: Tensor, q: float, max_iter: int = 200) -> Tensor:
    """The x with x - R = x (s / x)^q. x - R - x (s / x)^q is increasing and concave in x, and <= 0 where x is
    R or s: from there Newton's method rises to the root."""
    x = torch.maximum(R, s)
    for _ in range(max_iter):
        power = (s / x) ** q
        step = (R - x + x * power) / (1 + (q - 1) * power)
        if not bool((step > 4 * torch.finfo(x.dtype).eps * x).any()):
            return x
        x = x + step.clamp(min=0)
    raise ConvergenceError(
        f"Newton's method is not done after {max_iter} steps; split tau into several steps", x
    )


def aggregation_step(x: Any, tau: float, *, w: Any = None) -> Tensor:
    """x' = c + (x - c) / (1 + tau), c = sum_i w_i x_i: the JKO step of (1/2) iint |x - y|^2 / 2 dmu dmu.

    Args:
        x: positions (*batch, n, d).
        w: weights (*batch, n) that sum to one; uniform if left out.

    >>> from otflow.closed_forms import aggregation_step
    >>> aggregation_step([[0.0], [4.0]], 1.0).flatten()
    tensor([1., 3.], dtype=torch.float64)
    """
    x, tau = matrices.matrix(x, "x"), checks.positive(tau, "tau")
    centre = x.mean(-2, keepdim=True) if w is None else _mean(x, w)
    return centre + (x - centre) / (1 + tau)


def _mean(x: Tensor, w: Any) -> Tensor:
    w = checks.probability(numbers.number(w, "w"), "w", "pass w / w.sum()")
    rule = f"one weight for each of {x.shape[-2]} points"
    checks.require(
        w.shape[-1] == x.shape[-2],
        "w.shape",
        w.shape,
        rule,
        f"pass w with {x.shape[-2]} entries, or leave it out for equal weights",
    )
    return w[..., None, :] @ x
