"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms

SEED = 6
TAUS = (0.1, 0.05, 0.025, 0.0125)


H = np.array([[1.0, 0.3], [0.3, 0.4]])
S0 = np.array([[1.2, -0.5], [-0.5, 0.8]])
ATTENTION_END = 1.0
ATTENTION_TAUS = TAUS[:3]


class Bracket(NamedTuple):
    """Covariances at the end: explicit steps, the flow, implicit steps, and the exact implicit ones."""

    explicit: Tensor
    flow: Tensor
    implicit: Tensor
    scheme: Tensor


class Spread(NamedTuple):
    """Radii of clouds that repel: of the explicit flow at times t, and of JKO steps from its middle."""

    t: np.ndarray
    radius: np.ndarray
    jko: float
    concavity: float


def _steps(length: float, tau: float) -> int:
    return round(length / tau)


class GaussianOracle(NamedTuple):
    """A Gaussian in dimension 3 and quadratic forms, no two of which commute."""

    mu: of.Gaussian
    A: np.ndarray
    b: np.ndarray
    K: np.ndarray

    def exact(self, t: float, K: np.ndarray | None) -> of.Gaussian:
        """The law at time t."""
        return of.Gaussian.from_cov(
            *closed_forms.fokker_planck(t, self.mu.mean, self.mu.cov, self.A, self.b, 2.0, K=K)
        )

    def scheme(self, tau: float, K: np.ndarray | None) -> of.Gaussian:
        """The law after steps of length tau until t = 1."""
        mean, cov = self.mu.mean, self.mu.cov
        for _ in range(_steps(1.0, tau)):
            mean, cov = closed_forms.fokker_planck_step(mean, cov, self.A, self.b, 2.0, tau, K=K)
        return of.Gaussian.from_cov(mean, cov)


def law() -> GaussianOracle:
    """A fixed draw.

    >>> bool((law().A @ law().K == law().K @ law().A).all())
    False
    """
    rng = np.random.default_rng(SEED)
    A, K, S = (a @ a.T / 3 + 0.2 * np.eye(3) for a in rng.normal(size=(3, 3, 3)))
    return GaussianOracle(of.Gaussian.from_cov(rng.normal(size=3), S), A, rng.normal(size=3), K)


def apart(p: of.Gaussian, q: of.Gaussian) -> float:
    """The largest difference between entries of means and covariances.

    >>> apart(of.Gaussian([0.0], [[1.0]]), of.Gaussian([0.5], [[1.0]]))
    0.5
    """
    return max(float((p.mean - q.mean).abs().max()), float((p.cov - q.cov).abs().max()))


def brackets() -> dict[float, Bracket]:
    """Softmax attention with V = I and A = -H on centred Gaussians, for every tau.

    >>> bool(brackets()[0.1].explicit.trace() < brackets()[0.1].implicit.trace())
    True
    """
    return {tau: _bracket(tau) for tau in ATTENTION_TAUS}


def _bracket(tau: float) -> Bracket:
    softmax = of.SoftmaxAttention(-H, np.eye(2), np.eye(2))
    mu = of.Gaussian.from_cov(np.zeros(2), S0)
    flows: dict[of.Stepper, of.VelocityField] = {
        of.Euler(): softmax,
        of.JKO(): softmax.as_gradient_flow(of.Gaussian),
    }
    ends = [
        of.flow(mu, f, stepper, t1=ATTENTION_END, dt=tau, save_at=[0.0]).final for stepper, f in flows.items()
    ]
    explicit, implicit = (of.Gaussian(*end.coords).cov for end in ends)
    return Bracket(
        explicit, closed_forms.softmax_path(S0, -H, ATTENTION_END), implicit, attention_scheme(tau)
    )


def attention_scheme(tau: float) -> Tensor:
    """H^(-1/2) Z H^(-1/2) after steps Z' (I + tau Z')^2 = Z: a cubic equation for every eigenvalue.

    >>> attention_scheme(0.1).shape
    torch.Size([2, 2])
    """
    values, vectors = np.linalg.eigh(H)
    root, inverse = ((vectors * values**p) @ vectors.T for p in (0.5, -0.5))
    z, frame = np.linalg.eigh(root @ S0 @ root)
    for _ in range(_steps(ATTENTION_END, tau)):
        z = np.array([_cubic(tau, a) for a in z])
    out = inverse @ ((frame * z) @ frame.T) @ inverse
    return torch.from_numpy(out)


def _cubic(tau: float, z: float) -> float:
    """The real root y of tau^2 y^3 + 2 tau y^2 + y = z >= 0, the only one that is not negative."""
    roots = np.roots([tau**2, 2 * tau, 1.0, -z])
    return float(roots[np.abs(roots.imag).argmin()].real)


def spread(n: int, *, quick: bool) -> Spread:
    """The flow of -1/2 iint |x - y| from n particles in a disc of radius 1e-6: RK4, and JKO from t = 1/2.

    >>> round(float(spread(20, quick=True).radius[-1]), 2)
    0.78
    """
    k = np.arange(n) + 0.5
    angle = np.pi * (1 + 5**0.5) * k
    start = 1e-6 * np.sqrt(k / n)[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    push = of.Interaction(lambda x, y: -(x - y).square().sum(-1).sqrt(), diagonal=False)
    field = of.SteepestDescent(push, of.Wasserstein())
    times = np.linspace(0, 1, 11)
    traj = of.flow(of.Particles(start), field, of.RK4(), t1=1.0, dt=0.01, save_at=times)
    middle = traj.measures[5]
    late = of.flow(middle, field, of.JKO(), t1=1.0, t0=0.5, dt=0.125 if quick else 0.0625)
    radius = np.array([_radius(mu) for mu in traj.measures])
    return Spread(times, radius, _radius(late.final), float(late.certificates["concavity"][1:].max()))


def _radius(mu: of.Measure) -> float:
    """That of the ball on which (R^2 - |x|^2)^(-1/2) has the second moment of the cloud, 2 R^2 / 3."""
    x = mu.coords[0]
    return float((1.5 * (x - x.mean(0)).square().sum(-1).mean()).sqrt())
