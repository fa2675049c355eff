"""The targets of the benchmark, runs towards them, and how far these are from the exact law."""

from __future__ import annotations

import zlib
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.reproduce.oracle import final, largest, order

# Means over 15 targets of the results that the authors distribute with their script, for d = 1, ..., 12.
PUBLISHED = dict(enumerate((1.051e-3, 3.460e-3, 5.607e-3, 8.554e-3, 1.1827e-2, 1.8471e-2, 1.4934e-2,
                            1.8926e-2, 2.4400e-2, 1.8039e-2, 2.2899e-2, 2.6541e-2), start=1))  # fmt: skip
BEYOND = (20, 32, 64)  # dimensions of our own
SEEDS, END, TAU = 15, 0.5, 0.05  # as published
TAUS = (0.05, 0.025, 0.0125, 0.00625)
ORDERS_FROM = 3  # orders are taken from the last three steps: the first is too long for stiff targets
SCHEMES: dict[str, of.Stepper] = {"JKO": of.JKO(), "extrapolated": of.Extrapolated(of.JKO())}
Divergences: TypeAlias = dict[str, dict[int, Tensor]]  # scheme, dimension: one for every target
Errors: TypeAlias = dict[str, dict[int, dict[float, float]]]  # scheme, dimension, tau


class Targets(NamedTuple):
    """Gaussians N(b, S) with A = S^-1, all seeds at once."""

    b: Tensor  # (seeds, d)
    S: Tensor  # (seeds, d, d)
    A: Tensor  # (seeds, d, d)

    @property
    def start(self) -> of.Gaussian:
        """N(0, I), once for every target."""
        return of.Gaussian(
            torch.zeros_like(self.b), root=torch.eye(self.S.shape[-1]).to(self.S).expand_as(self.S)
        )

    @property
    def field(self) -> of.SteepestDescent:
        """The descent of the relative entropy with respect to the target."""
        return of.SteepestDescent(of.QuadraticPotential(self.A, self.b) + of.Entropy(), of.Wasserstein())

    def exact(self) -> of.Gaussian:
        """The law at the end."""
        mu = self.start
        mean, cov = closed_forms.fokker_planck(END, mu.mean, mu.cov, self.A, self.b, 1.0)
        return of.Gaussian(mean, cov=cov)


def targets(d: int) -> Targets:
    """The targets of the benchmark in dimension d.

    >>> import torch
    >>> from otflow.papers.ornstein_uhlenbeck.runs import targets
    >>> targets(2).b.shape, bool((torch.linalg.eigvalsh(targets(2).S) > 0).all())
    (torch.Size([15, 2]), True)
    """
    drawn = zip(*(_target(d, k) for k in range(SEEDS)), strict=True)
    b, S = (torch.from_numpy(np.stack(part)) for part in drawn)
    A = torch.linalg.inv(S)
    return Targets(b, S, (A + A.mT) / 2)


def _target(d: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """b and S in the order of draws of the authors' script, from the seed that it computes."""
    rng = np.random.RandomState(zlib.crc32(f"abacaba@{d}@{number}numpy".encode()))
    X = rng.uniform(size=(d, d))
    U, _, V = np.linalg.svd(X.T @ X)
    S = U @ (1.0 + np.diag(rng.uniform(size=d))) @ V
    return rng.standard_normal(d), (S + S.T) / 2


def divergence(p: of.Gaussian, q: of.Gaussian) -> Tensor:
    """KL(p|q) + KL(q|p) = (tr(S_q^-1 S_p + S_p^-1 S_q) - 2d + (m_p - m_q).(S_p^-1 + S_q^-1)(m_p - m_q)) / 2.

    >>> import otflow as of
    >>> from otflow.papers.ornstein_uhlenbeck.runs import divergence
    >>> round(divergence(of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([3.0], root=[[1.0]])).item(), 9)
    9.0
    """
    apart, move = p.cov - q.cov, (p.mean - q.mean)[..., None]
    # tr(S_q^-1 S_p + S_p^-1 S_q) - 2d = tr(S_q^-1 D S_p^-1 D), D = S_p - S_q: no digits are lost to 2d
    spread = (torch.linalg.solve(q.cov, apart) * torch.linalg.solve(p.cov, apart).mT).sum((-1, -2))
    mean = sum((move * torch.linalg.solve(S, move)).sum((-1, -2)) for S in (p.cov, q.cov))
    out: Tensor = (spread + mean) / 2
    return out


def errors(d: int, stepper: of.Stepper) -> dict[float, float]:
    """(|mean - exact|^2 + |cov - exact|^2)^(1/2) at the end, root mean square over targets, for every tau.

    >>> import otflow as of
    >>> from otflow.papers.ornstein_uhlenbeck.runs import errors
    >>> found = errors(2, of.JKO())
    >>> found[0.00625] < found[0.05]
    True
    """
    problem, exact, out = targets(d), targets(d).exact(), {}
    for tau in TAUS:
        mu = final(problem.start, problem.field, END, tau, stepper)
        square = (mu.mean - exact.mean).square().sum(-1) + (mu.cov - exact.cov).square().sum((-1, -2))
        out[tau] = float(square.mean().sqrt())
    return out


def late_order(errors: dict[float, float]) -> float:
    """The order in tau, without the steps that are too long.

    >>> from otflow.papers.ornstein_uhlenbeck.runs import late_order
    >>> round(late_order({0.4: 1.0, 0.3: 0.18, 0.2: 0.08, 0.1: 0.02}), 9)
    2.0
    """
    return order(dict(list(errors.items())[-ORDERS_FROM:]))


def check_steps(problem: Targets, field: of.VelocityField) -> tuple[float, float, float]:
    """The largest difference between a run and the closed form marched beside it, energy gap and residual.

    >>> from otflow.papers.ornstein_uhlenbeck.runs import check_steps, targets
    >>> max(check_steps(targets(1), targets(1).field)) < 1e-9
    True
    """
    traj = of.flow(problem.start, field, of.JKO(), t1=END, dt=TAU)
    mean, cov, worst = problem.start.mean, problem.start.cov, 0.0
    for mu in traj.measures[1:]:
        mean, cov = closed_forms.fokker_planck_step(mean, cov, problem.A, problem.b, 1.0, TAU)
        at, root = mu.coords
        worst = max(worst, largest(at, mean), largest(root @ root.mT, cov))
    gap, residual = (float(traj.certificates[name][1:].max()) for name in ("energy_gap", "residual"))
    return worst, gap, residual


def opaque(problem: Targets) -> of.SteepestDescent:
    """The same descent, of a potential whose form is not told, so that no closed form applies.

    >>> from otflow.papers.ornstein_uhlenbeck.runs import opaque, targets
    >>> opaque(targets(1))(0.0, targets(1).start)[0].shape
    torch.Size([15, 1])
    """
    A, b = problem.A, problem.b[..., None, :]
    energy = of.Potential(lambda x: ((x - b) * ((x - b) @ A)).sum(-1) / 2)
    return of.SteepestDescent(energy + of.Entropy(), of.Wasserstein())
