"""JKO on Gaussians: closed form for quadratic energies plus entropy, else by displacements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.matrices import fitting
from otflow.base.status import code
from otflow.base.tangent import Tangent
from otflow.energies import Energy
from otflow.energies.internal import Entropy
from otflow.energies.quadratic import QuadraticInteraction, QuadraticPotential
from otflow.measures import Gaussian
from otflow.metrics import Wasserstein
from otflow.steppers.jko.base import Move, MovementProblem, minimise
from otflow.steppers.jko.displacements import displace
from otflow.steppers.jko.precision import Asked, doubled, in_double, rounded

CLOSED = (Entropy, QuadraticInteraction, QuadraticPotential)


@minimise.register(Gaussian)
def _(mu: Gaussian, problem: MovementProblem, start: Any = None) -> Move:
    terms = [term for term, _ in problem.energy.pairs()]
    if isinstance(problem.metric, Wasserstein) and all(isinstance(term, CLOSED) for term in terms):
        return fokker_planck(mu, problem)
    return _in_double(mu, problem, start) or displace(mu, problem, start)


def _in_double(mu: Gaussian, problem: MovementProblem, start: Any) -> Move | None:
    """The step of a law in single precision by one in double, if the energy takes that."""
    if mu.dtype == torch.float64 or mu.twin() is not None or not isinstance(problem.metric, Wasserstein):
        return None
    energy = in_double(problem.energy, mu)
    if any(isinstance(term, Asked) for term, _ in energy.pairs()):
        return None
    return rounded(displace(doubled(mu), replace(problem, energy=energy), start), mu)


@dataclass(frozen=True)
class QuadraticEnergy:
    """F = int (x.Ax / 2 - l.x) + 1/2 tr(K Cov) + heat int rho log rho."""

    A: Tensor
    K: Tensor
    l: Tensor  # noqa: E741
    heat: float


def quadratic(energy: Energy, mu: Gaussian) -> QuadraticEnergy:
    """The matrices of a sum of quadratic energies and entropies."""
    A = K = torch.zeros_like(mu.cov)
    l, heat = torch.zeros_like(mu.mean), 0.0  # noqa: E741
    for term, c in energy.pairs():
        if isinstance(term, QuadraticPotential):
            own = fitting(term.A, "A", mu.d, mu.mean)
            A, l = A + c * own, l + c * (own @ term.b[..., None])[..., 0]  # noqa: E741
        elif isinstance(term, QuadraticInteraction):
            K = K + c * fitting(term.K, "K", mu.d, mu.mean)
        else:
            heat += c
    rule = "its JKO step has no minimiser below 0"
    checks.require(heat >= 0, "factor of Entropy()", heat, rule, f"pass {abs(heat):g} * Entropy()")
    return QuadraticEnergy(A, K, l, heat)


def fokker_planck(mu: Gaussian, problem: MovementProblem) -> Move:
    """m' = (I + tau A)^-1 (m + tau l); with B = I + tau (A + K), h = tau heat and B^(-1/2) R = W s U^T,

        R' = B^(-1/2) W diag((s^2 + 2h + s (s^2 + 4h)^(1/2)) / 2)^(1/2) U^T,

    the image of the root R under the optimal map; no inverse of a covariance appears.
    """
    F, tau = quadratic(problem.energy, mu), problem.tau
    eye = torch.eye(mu.d, dtype=mu.dtype, device=mu.device)
    C, B = eye + tau * F.A, eye + tau * (F.A + F.K)
    values, vectors = torch.linalg.eigh(B)
    low = torch.minimum(values[..., 0], torch.linalg.eigvalsh(C)[..., 0])
    scale = values.clamp(min=torch.finfo(mu.dtype).tiny).sqrt()[..., None, :]
    half = (vectors / scale) @ vectors.mT
    W, s, Ut = torch.linalg.svd(half @ mu.root, full_matrices=False)
    h = tau * F.heat
    wide = ((s.square() + 2 * h + s * torch.sqrt(s.square() + 4 * h)) / 2).sqrt()[..., None, :]
    mean = torch.linalg.solve(C, mu.mean + tau * F.l)
    end = mu.at([mean, half @ (W * wide) @ Ut])
    u = Tangent([end.mean - mu.mean, end.root - mu.root])
    dual = (vectors * scale) @ vectors.mT @ (W / wide) @ Ut if h > 0 else 0 * mu.root  # R' dual^T = I
    return Move(
        mu=end,
        cost=mu.inner(u, u),
        residual=_residual(u / tau, _gradient(end, F, dual), mu),
        failed=torch.where(low > 0, 0, code("uncertified")).expand(mu.batch),
        concavity=(1 - low).expand(mu.batch),
        message=f"I + dt (A + K) has the eigenvalue {float(low.min()):.2g}: not convex; halve dt",
    )


def _residual(u: Tangent, g: Tangent, mu: Gaussian) -> Tensor:
    """|u / tau + grad F(end)|, relative to |grad F(end)| or to |u| / tau if that is larger."""
    size = torch.maximum(mu.inner(u, u), mu.inner(g, g))
    miss = mu.inner(u + g, u + g)
    return (miss / torch.where(size > 0, size, torch.ones_like(size))).sqrt()


def _gradient(mu: Gaussian, F: QuadraticEnergy, dual: Tensor) -> Tangent:
    mean = (F.A @ mu.mean[..., None])[..., 0] - F.l
    return Tangent([mean, (F.A + F.K) @ mu.root - F.heat * dual])
