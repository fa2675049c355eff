"""Runs on Gaussians, on the line and of particles, next to the steps and the flows that are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

import otflow as of
from otflow import closed_forms as exact
from otflow.reproduce.claim import Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.oracle import JKO98, Oracle, distance, final, gauss_points, largest, march

CASTIN = Source("Castin, Ablin, Carrillo, Peyré 2025, section 4")
SEED = 6
TAUS = (0.1, 0.05, 0.025, 0.0125)
H = np.array([[1.0, 0.3], [0.3, 0.4]])  # of attention: minus the matrix of scores,
S0 = np.array([[1.2, -0.5], [-0.5, 0.8]])  # and the first covariance, which does not commute with it
ATTENTION_END = 1.0
LINE_END = 1.5  # of Barenblatt's profile, which is born at 1; heat spreads for as long, from N(0, 1)


# --- Gaussians ---------------------------------------------------------------------------------------


class GaussianOracle(NamedTuple):
    """A Gaussian in dimension 3 and quadratic forms, no two of which commute."""

    mu: of.Gaussian
    A: np.ndarray
    b: np.ndarray
    K: np.ndarray

    def scheme(self, tau: float, K: np.ndarray | None) -> of.Gaussian:
        """The law after exact steps of length tau until t = 1; 2 is the inverse temperature."""
        mean, cov = self.mu.mean, self.mu.cov
        for _ in range(round(1.0 / tau)):
            mean, cov = exact.fokker_planck_step(mean, cov, self.A, self.b, 2.0, tau, K=K)
        return of.Gaussian(mean, cov=cov)

    def oracle(
        self, name: str, energy: of.Energy, bound: float, taus: Iterable[float] = TAUS, K: Any = None
    ) -> Oracle:
        """The descent of the energy and half the entropy until t = 1; K is the matrix of its interaction."""
        runs = {tau: final(self.mu, energy + 0.5 * of.Entropy(), 1.0, tau) for tau in taus}
        scheme = {tau: self.scheme(tau, K) for tau in runs}
        law = exact.fokker_planck(1.0, self.mu.mean, self.mu.cov, self.A, self.b, 2.0, K=K)
        norm, last = "mean and covariance, largest difference", of.Gaussian(law[0], cov=law[1])
        return Oracle.between(name, norm, bound, apart, runs, scheme, last)


def law() -> GaussianOracle:
    """A fixed draw.

    >>> from otflow.papers.jko.runs import law
    >>> bool((law().A @ law().K == law().K @ law().A).all())
    False
    """
    rng = np.random.default_rng(SEED)
    A, K, S = (a @ a.T / 3 + 0.2 * np.eye(3) for a in rng.normal(size=(3, 3, 3)))
    return GaussianOracle(of.Gaussian(rng.normal(size=3), cov=S), A, rng.normal(size=3), K)


def apart(p: of.Gaussian, q: of.Gaussian) -> float:
    """The largest difference between entries of means and covariances.

    >>> import otflow as of
    >>> from otflow.papers.jko.runs import apart
    >>> apart(of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([0.5], root=[[1.0]]))
    0.5
    """
    return max(largest(p.mean, q.mean), largest(p.cov, q.cov))


def fokker_planck(frame: Frame) -> list[Oracle]:
    """A potential and entropy; the same for a solver that is not told that all is quadratic; interaction.

    >>> from otflow.papers.jko.runs import fokker_planck
    >>> from otflow.reproduce.frame import Frame
    >>> len(fokker_planck(Frame(quick=True)))
    3
    """
    one = law()
    A, b = (torch.from_numpy(a) for a in (one.A, one.b))
    hidden = of.Potential(lambda x: ((x - b) * ((x - b) @ A)).sum(-1) / 2)
    known = of.QuadraticPotential(one.A, one.b)
    both = known + of.QuadraticInteraction(one.K)
    few = frame.size(TAUS[:2], TAUS[:3])
    return [
        one.oracle("Fokker-Planck, Gaussians, closed form", known, 1e-12),
        one.oracle("Fokker-Planck, Gaussians, Newton's method", hidden, 1e-9, few),
        one.oracle("with quadratic interaction, Gaussians", both, 1e-12, K=one.K),
    ]


# --- attention ---------------------------------------------------------------------------------------


class Bracket(NamedTuple):
    """Covariances at the end: explicit steps, the flow, implicit steps, and the exact implicit ones."""

    explicit: Tensor
    flow: Tensor
    implicit: Tensor
    scheme: Tensor


def brackets() -> dict[float, Bracket]:
    """Softmax attention with V = I and A = -H on centred Gaussians, for every tau.

    >>> from otflow.papers.jko.runs import brackets
    >>> bool(brackets()[0.1].explicit.trace() < brackets()[0.1].implicit.trace())
    True
    """
    softmax, mu = of.SoftmaxAttention(-H, np.eye(2), np.eye(2)), of.Gaussian(np.zeros(2), cov=S0)
    descent, flow = softmax.as_gradient_flow(of.Gaussian), exact.softmax_path(S0, -H, ATTENTION_END)
    return {
        tau: Bracket(
            explicit=final(mu, softmax, ATTENTION_END, tau, of.Euler()).cov,
            flow=flow,
            implicit=final(mu, descent, ATTENTION_END, tau).cov,
            scheme=attention_scheme(tau),
        )
        for tau in TAUS[:3]
    }


def attention_scheme(tau: float) -> Tensor:
    """H^(-1/2) Z H^(-1/2) after steps Z' (I + tau Z')^2 = Z: a cubic equation for every eigenvalue.

    >>> from otflow.papers.jko.runs import attention_scheme
    >>> attention_scheme(0.1).shape
    torch.Size([2, 2])
    """
    values, vectors = np.linalg.eigh(H)
    root, inverse = ((vectors * values**p) @ vectors.T for p in (0.5, -0.5))
    z, frame = np.linalg.eigh(root @ S0 @ root)
    z = march(_cubic, z, ATTENTION_END, tau)
    return torch.from_numpy(inverse @ ((frame * z) @ frame.T) @ inverse)


def _cubic(z: np.ndarray, tau: float) -> np.ndarray:
    """The real roots y of tau^2 y^3 + 2 tau y^2 + y = z >= 0, the only ones that are not negative."""
    roots = [np.roots([tau**2, 2 * tau, 1.0, -each]) for each in z]
    return np.array([three[np.abs(three.imag).argmin()].real for three in roots])


def attention(each: dict[float, Bracket]) -> Oracle:
    """The implicit steps of `brackets` as an oracle.

    >>> from otflow.papers.jko.runs import attention, brackets
    >>> sorted(attention(brackets()).solver)
    [0.025, 0.05, 0.1]
    """
    solver = {tau: largest(b.implicit, b.scheme) for tau, b in each.items()}
    scheme, norm = (
        {tau: largest(b.scheme, b.flow) for tau, b in each.items()},
        "covariance, largest difference",
    )
    return Oracle("softmax attention, Gaussians", norm, CASTIN, solver, scheme, 1e-9)


# --- the line, in the quantile function --------------------------------------------------------------


def on_line(n: int) -> list[tuple[Oracle, Oracle]]:
    """The heat equation and two porous media: on n intervals, and extrapolated from n / 2 and n.

    >>> from otflow.papers.jko.runs import on_line
    >>> [plain.name.split(",")[0] for plain, refined in on_line(40)]
    ['heat equation', 'porous medium', 'porous medium']
    """
    heat = float(exact.heat_deviation(1.0, LINE_END - 1))
    both = [_both("heat equation, quantiles", n, of.Entropy(), _normal, heat, exact.heat_step)]
    for m in (2.0, 4.0):
        energy, ppf = of.PorousMedium(m), partial(exact.barenblatt_quantile, m=m)
        name, last = f"porous medium, m = {m:g}, quantiles", LINE_END ** (1 / (m + 1))
        both.append(_both(name, n, energy, ppf, last, exact.barenblatt_radius_step, m, 1))
    return both


def _normal(s: Any, R: float) -> Any:
    return R * special.ndtri(s)


def _both(
    name: str, n: int, energy: of.Energy, ppf: Callable[..., Any], last: float, step: Any, *args: Any
) -> tuple[Oracle, Oracle]:
    """All laws are one profile times R: 1 at the start, `last` at the end, ``step(R, tau)`` in the scheme."""
    length, plain, refined, behind = LINE_END - 1, {}, {}, {}
    for tau in TAUS[:3]:
        R = float(march(step, 1.0, length, tau, *args))
        start = [of.Quantiles.from_ppf(partial(ppf, R=1.0), k) for k in (n // 2, n)]
        coarse, fine = (final(mu, energy, length, tau) for mu in start)
        plain[tau] = distance(fine, partial(ppf, R=R))
        refined[tau] = distance(of.measures.richardson(coarse, fine), partial(ppf, R=R))
        behind[tau] = abs(R - last) * root_mean_square(partial(ppf, R=1.0))
    meshes = Source(f"{JKO98}; extrapolated from {n // 2} and {n} intervals")
    return (
        Oracle(name, "W2", JKO98, plain, behind, 1e-4),
        Oracle(name, "W2", meshes, refined, behind, 1e-6),
    )


def root_mean_square(ppf: Callable[[np.ndarray], Any]) -> float:
    """(int ppf^2 ds)^(1/2): the laws of a X and b X are |a - b| times this apart.

    >>> from otflow.papers.jko.runs import root_mean_square
    >>> round(root_mean_square(lambda s: 2 * s - 1), 9)  # 1 / sqrt(3)
    0.577350269
    """
    s, w = gauss_points(of.measures.graded_levels(1000).numpy())
    return float(np.sqrt((w * np.asarray(ppf(s)) ** 2).sum()))


# --- particles ---------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """Radii of clouds that repel: of the explicit flow at times t, and of JKO steps from its middle."""

    t: np.ndarray
    radius: np.ndarray
    jko: float
    concavity: float


def aggregation() -> Oracle:
    """W = |x|^2 / 2 between 40 particles with weights: the flow is c + exp(-t) (x - c), c their centre.

    >>> from otflow.papers.jko.runs import aggregation
    >>> max(aggregation().solver.values()) < 1e-10
    True
    """
    rng = np.random.default_rng(SEED)
    x, w = torch.from_numpy(rng.normal(size=(40, 2))), torch.from_numpy(rng.dirichlet(np.ones(40)))
    pull, centre = of.Interaction(lambda x, y: (x - y).square().sum(-1) / 2), w @ x
    runs = {tau: final(of.Particles(x, w), pull, 1.0, tau).x for tau in TAUS}
    scheme = {tau: march(exact.aggregation_step, x, 1.0, tau, w=w) for tau in TAUS}
    last, norm = centre + np.exp(-1.0) * (x - centre), "positions, largest difference"
    return Oracle.between("quadratic interaction, particles", norm, 1e-10, largest, runs, scheme, last)


def spread(n: int, tau: float) -> Spread:
    """The flow of -1/2 iint |x - y| from n particles in a disc of radius 1e-6: RK4, and JKO from t = 1/2.

    >>> from otflow.papers.jko.runs import spread
    >>> round(float(spread(20, 0.125).radius[-1]), 2)
    0.78
    """
    k = np.arange(n) + 0.5
    angle = np.pi * (1 + 5**0.5) * k  # the golden angle: every particle has the same share of the disc
    start = 1e-6 * np.sqrt(k / n)[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    push = of.Interaction(lambda x, y: -(x - y).square().sum(-1).sqrt(), diagonal=False)
    field, times = of.SteepestDescent(push, of.Wasserstein()), np.linspace(0, 1, 11)
    traj = of.flow(of.Particles(start), field, of.RK4(), t1=1.0, dt=0.01, save_at=times)
    # JKO steps cannot leave the point itself: there the curvature of the energy has no bound.
    late = of.flow(traj.measures[5], field, of.JKO(), t1=1.0, t0=0.5, dt=tau)
    radius = np.array([_radius(mu) for mu in traj.measures])
    return Spread(times, radius, _radius(late.final), float(late.certificates["concavity"][1:].max()))


def _radius(mu: of.Measure) -> float:
    """That of the ball on which (R^2 - |x|^2)^(-1/2) has the second moment of the cloud, 2 R^2 / 3."""
    x = mu.coords[0]
    return float((1.5 * (x - x.mean(0)).square().sum(-1).mean()).sqrt())
