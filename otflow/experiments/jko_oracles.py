"""Minimising movements against their oracles: solver and scheme, scheme and equation

A JKO run has two errors: that of the solver, which may miss the minimiser of a step, and that of the scheme,
whose minimisers are O(tau) away from the gradient flow. Both have signs. A solver that blurs spreads the mass
more than it should, the implicit scheme spreads it less than the equation does, and a blurred run can look
better against the equation than an exact one. So each solver is compared with the scheme, for energies whose
steps are known in closed form, and the scheme with the equation.

The steps that are known: the Fokker-Planck equation on Gaussians, with a potential, an interaction and a
covariance of which no two commute; the heat equation on the line; the porous medium equation, whose steps
keep Barenblatt's profile, R' - R = (tau/q) R'^(1-q) with q = d(m-1) + 2; the quadratic interaction of
particles, whose steps divide x - c by 1 + tau; and softmax attention on Gaussians. With V = I and A = -H, H
positive definite, that is a gradient flow for the metric H; Z = H^(1/2) S H^(1/2) obeys dZ/dt = -2 Z^2, an
explicit step is Z (I - tau Z)^2 and an implicit one the root of Z' (I + tau Z')^2 = Z. The explicit step is
too short and the implicit one too long for every eigenvalue, so that the two runs enclose the covariance of
the flow.

Two more facts are checked that are not steps. The flow of -1/2 iint |x - y|^r from a point mass has the
radius ((2-r) c t)^(1/(2-r)) (Hertrich et al. 2024), and for r = 1 so have its JKO steps, as R' - R = tau c
R'^(r-1). The second moment of Keller and Segel's equation changes at the rate 4 (1 - M/(8 pi)), M the mass,
whatever the density: the virial theorem. Entropy contributes 4, the logarithm -M/(2 pi). A JKO step has a
virial theorem too, M2' - M2 + W2^2 = tau times this rate, up to what the linearisation of the interaction
costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.experiments import jko_oracles_draw as draw
from otflow.experiments import jko_oracles_grid as grids
from otflow.experiments.base import Claim, Progress, Result
from otflow.experiments.jko_oracles_claims import JKO98, Oracle, order
from otflow.experiments.jko_oracles_line import on_line

HERTRICH = "Hertrich, Gräf, Beinert, Steidl 2024"
CASTIN = "Castin, Ablin, Carrillo, Peyré 2025, section 4"
SEED = 6
TAUS = (0.1, 0.05, 0.025, 0.0125)


def run(*, quick: bool, progress: Progress) -> Result:
    """All oracles, all claims, all figures."""
    progress(0.0, "Gaussians")
    attention = brackets()
    oracles = [*_fokker_planck(quick=quick), _aggregation(), _attention(attention)]
    progress(0.1, "the line")
    lines = on_line(1000)
    progress(0.25, "particles from a point")
    riesz = {n: spread(n, quick=quick) for n in ((50, 100) if quick else (50, 100, 200, 400))}
    progress(0.35, "grids")
    found = grids.compute(quick=quick, progress=progress)
    oracles += [*lines.refined, *found.oracles]
    claims = [
        *(claim for oracle in oracles for claim in oracle.claims()),
        *lines.claims(),
        *_bracket_claims(attention),
        *_riesz_claims(riesz),
        *found.claims(),
    ]
    figures = {
        "oracles": draw.table(oracles),
        "blur": draw.blur(found),
        "attention-and-riesz": draw.pair(attention, riesz),
    }
    return Result(claims, figures, _data(oracles))


def _data(oracles: list[Oracle]) -> dict[str, np.ndarray]:
    """For every oracle the rows tau, solver against scheme, scheme against equation."""
    names = [f"oracle_{k}" for k in range(len(oracles))]
    rows = [np.array([list(o.scheme), list(o.solver.values()), list(o.scheme.values())]) for o in oracles]
    return dict(zip(names, rows, strict=True)) | {"names": np.array([o.name for o in oracles])}


def _steps(length: float, tau: float) -> int:
    return round(length / tau)


# --- Gaussians ---------------------------------------------------------------------------------------


class Law(NamedTuple):
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


def law() -> Law:
    """A fixed draw.

    >>> bool((law().A @ law().K == law().K @ law().A).all())
    False
    """
    rng = np.random.default_rng(SEED)
    A, K, S = (a @ a.T / 3 + 0.2 * np.eye(3) for a in rng.normal(size=(3, 3, 3)))
    return Law(of.Gaussian.from_cov(rng.normal(size=3), S), A, rng.normal(size=3), K)


def _fokker_planck(*, quick: bool) -> list[Oracle]:
    """A potential and entropy; the same for a solver that is not told that all is quadratic; interaction."""
    one, noise = law(), 0.5 * of.Entropy()
    A, b = (torch.from_numpy(a) for a in (one.A, one.b))
    hidden = of.Potential(lambda x: ((x - b) * ((x - b) @ A)).sum(-1) / 2)
    known = of.QuadraticPotential(one.A, one.b)
    rows: list[tuple[str, of.Energy, Any, float, tuple[float, ...]]] = [
        ("Fokker-Planck, Gaussians, closed form", known + noise, None, 1e-12, TAUS),
        (
            "Fokker-Planck, Gaussians, Newton's method",
            hidden + noise,
            None,
            1e-9,
            TAUS[:2] if quick else TAUS[:3],
        ),
        (
            "with quadratic interaction, Gaussians",
            known + of.QuadraticInteraction(one.K) + noise,
            one.K,
            1e-12,
            TAUS,
        ),
    ]
    return [_on_gaussians(*row) for row in rows]


def _on_gaussians(name: str, energy: of.Energy, K: Any, bound: float, taus: tuple[float, ...]) -> Oracle:
    one, field = law(), of.SteepestDescent(energy, of.Wasserstein())
    solver, scheme = {}, {}
    for tau in taus:
        end = of.flow(one.mu, field, of.JKO(), t1=1.0, dt=tau, save_at=[0.0]).final
        oracle = one.scheme(tau, K)
        solver[tau], scheme[tau] = (
            apart(of.Gaussian(*end.coords), oracle),
            apart(oracle, one.exact(1.0, K)),
        )
    return Oracle(name, "mean and covariance, largest difference", JKO98, solver, scheme, bound)


def apart(p: of.Gaussian, q: of.Gaussian) -> float:
    """The largest difference between entries of means and covariances.

    >>> apart(of.Gaussian([0.0], [[1.0]]), of.Gaussian([0.5], [[1.0]]))
    0.5
    """
    return max(float((p.mean - q.mean).abs().max()), float((p.cov - q.cov).abs().max()))


# --- attention ---------------------------------------------------------------------------------------


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


def _attention(each: dict[float, Bracket]) -> Oracle:
    solver = {tau: float((b.implicit - b.scheme).abs().max()) for tau, b in each.items()}
    scheme = {tau: float((b.scheme - b.flow).abs().max()) for tau, b in each.items()}
    return Oracle(
        "softmax attention, Gaussians", "covariance, largest difference", CASTIN, solver, scheme, 1e-9
    )


def _bracket_claims(each: dict[float, Bracket]) -> list[Claim]:
    below = max(_excess(b.explicit, b.flow) for b in each.values())
    above = max(_excess(b.flow, b.implicit) for b in each.values())
    width = {tau: float((b.implicit - b.explicit).abs().max()) for tau, b in each.items()}
    return [
        Claim.at_most(
            "softmax attention: explicit runs end below the closed form (top eigenvalue of the difference)",
            f"{CASTIN}; see the text",
            bound=0.0,
            measured=below,
        ),
        Claim.at_most(
            "softmax attention: JKO runs end above the closed form (top eigenvalue of the difference)",
            f"{CASTIN}; see the text",
            bound=0.0,
            measured=above,
        ),
        Claim.within(
            "softmax attention: the bracket closes with the order 1 in tau",
            f"{CASTIN}; {JKO98}",
            low=0.9,
            high=1.1,
            measured=order(width),
        ),
    ]


def _excess(low: Tensor, high: Tensor) -> float:
    """The largest eigenvalue of low - high: not positive if low <= high as quadratic forms."""
    return float(torch.linalg.eigvalsh(low - high).max())


# --- particles ---------------------------------------------------------------------------------------


def _aggregation() -> Oracle:
    rng = np.random.default_rng(SEED)
    x, w = torch.from_numpy(rng.normal(size=(40, 2))), torch.from_numpy(rng.dirichlet(np.ones(40)))
    pull = of.Interaction(lambda x, y: (x - y).square().sum(-1) / 2)
    field = of.SteepestDescent(pull, of.Wasserstein())
    centre = w @ x
    solver, scheme = {}, {}
    for tau in TAUS:
        end = of.flow(of.Particles(x, w), field, of.JKO(), t1=1.0, dt=tau, save_at=[0.0]).final.coords[0]
        oracle = x
        for _ in range(_steps(1.0, tau)):
            oracle = closed_forms.aggregation_step(oracle, tau, w=w)
        exact = centre + np.exp(-1.0) * (x - centre)
        solver[tau], scheme[tau] = float((end - oracle).abs().max()), float((oracle - exact).abs().max())
    return Oracle(
        "quadratic interaction, particles", "positions, largest difference", JKO98, solver, scheme, 1e-10
    )


class Spread(NamedTuple):
    """Radii of clouds that repel: of the explicit flow at times t, and of JKO steps from its middle."""

    t: np.ndarray
    radius: np.ndarray
    jko: float
    concavity: float


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


def _riesz_claims(riesz: dict[int, Spread]) -> list[Claim]:
    n, last = max(riesz.items())
    exact = float(closed_forms.riesz_radius(1.0, 1.0, 2))
    source = f"{HERTRICH}; the radius is (3/2 int |x|^2)^(1/2)"
    return [
        Claim.equal(
            f"Riesz energy, d = 2, r = 1: the radius of {n} particles that leave a point, at t = 1",
            source,
            predicted=exact,
            measured=float(last.radius[-1]),
            rtol=1e-3,
        ),
        Claim.equal(
            f"the same by JKO steps from t = 1/2 on, with {n} particles",
            source,
            predicted=exact,
            measured=last.jko,
            rtol=1e-3,
        ),
        Claim.within(
            "Riesz energy: the error of the radius falls like N^-1.5 (slope)",
            "a particle is spread over 1/N of the area but does not repel itself",
            low=-1.75,
            high=-1.25,
            measured=order({k: abs(one.radius[-1] - exact) for k, one in riesz.items()}),
        ),
        Claim.at_most(
            "the same: -tau times the lowest curvature met by JKO (below 1 a step is convex there)",
            "uniqueness of the step",
            bound=1.0,
            measured=last.concavity,
        ),
    ]
