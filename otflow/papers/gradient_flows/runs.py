"""The runs: attention beside the descents that it is said to be, and what tells them apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of

SEED, N, D, EPS, BETA = 5, 16, 2, 0.8, 2.0
# Scores A: definite, and of both signs; keys of L2 attention that are no multiple of Q; a metric P.
EYE, Q, MIXED, OTHER, P = torch.tensor(
    [
        [[1.0, 0.0], [0.0, 1.0]],
        [[1.0, 0.4], [-0.2, 0.7]],
        [[0.9, 0.3], [0.3, -0.6]],
        [[0.6, -0.5], [0.3, 0.8]],
        [[1.6, 0.5], [0.5, 0.7]],
    ],
    dtype=torch.float64,
)
DEFINITE = Q.mT @ Q
KINDS: dict[str, Callable[..., of.VelocityField]] = {
    "unnormalised": of.UnnormalisedAttention,
    "sigmoid": of.SigmoidAttention,
    "Sinkhorn": lambda Q, K, V: of.SinkhornAttention(Q, K, V, of.Sinkhorn(EPS, tol=1e-11)),
    "softmax": of.SoftmaxAttention,
}


class DescentCase(NamedTuple):
    """An attention field, the descent that it is said to be, and a measure to try them on."""

    field: of.VelocityField
    descent: of.SteepestDescent
    mu: of.Measure


def case(field: of.VelocityField, mu: of.Measure) -> DescentCase:
    """A field with its own descent.

    >>> from otflow.papers.gradient_flows.runs import DEFINITE, EYE, KINDS, case, cloud
    >>> case(KINDS["softmax"](DEFINITE, EYE, -DEFINITE), cloud()).descent
    SteepestDescent(ExponentialInteraction(d=2), Twisted(Partition(d=2)))
    """
    return DescentCase(field, field.as_gradient_flow(type(mu)), mu)


def cloud(*, labelled: bool = False) -> of.Particles:
    """Weighted tokens of the plane.

    >>> from otflow.papers.gradient_flows.runs import cloud
    >>> cloud()
    Particles(n=16, d=2, weighted, space=Euclidean())
    """
    rng = np.random.default_rng(SEED)
    x, w = 0.7 * rng.normal(size=(N, D)), rng.uniform(0.5, 1.5, N)
    return of.Particles(x, w / w.sum(), label=np.linspace(0, 1, N) if labelled else None)


def law() -> of.Gaussian:
    """A centred Gaussian of the plane.

    >>> from otflow.papers.gradient_flows.runs import law
    >>> law().d
    2
    """
    return of.Gaussian([0.0, 0.0], cov=np.array([[0.8, 0.25], [0.25, 0.5]]))


# --- Jacobians ----------------------------------------------------------------------------------------


def asymmetries() -> dict[str, float]:
    """|J - J^T| / |J| for Jacobians of covectors; zero for those of an energy.

    >>> from otflow.papers.gradient_flows.runs import asymmetries
    >>> found = asymmetries()
    >>> found["softmax, weighed by Z"] < 1e-8 < 0.1 < found["softmax"]
    True
    """
    mu, masked, A, K = cloud(), cloud(labelled=True), 2 * MIXED, OTHER
    Z, before = of.metrics.Partition(A), torch.ones(N, N, dtype=torch.float64).tril()
    fields = {name: make(A, EYE, -A) for name, make in KINDS.items()}
    causal = of.SoftmaxAttention(A, EYE, -A, causal=True)

    def seen(m: of.Particles) -> Tensor:  # the normaliser of masked softmax
        return (before * m.w * torch.exp(m.x @ A @ m.x.mT)).sum(-1, keepdim=True)

    jacobians = {
        **{name: _jacobian(field, mu) for name, field in fields.items()},
        "softmax, weighed by Z": _jacobian(fields["softmax"], mu, lambda m: Z(m, m.x)[..., None]),
        "softmax, masked": _jacobian(causal, masked),
        "softmax, masked, weighed by Z": _jacobian(causal, masked, seen),
        "L2, Q = cK": _gaussian_jacobian(of.L2Attention(1.5 * K, K, -1.5 * K.mT @ K)),
        "L2, other Q": _gaussian_jacobian(of.L2Attention(Q, K, -Q.mT @ K)),
    }
    return {name: skew(J) for name, J in jacobians.items()}


def _jacobian(
    field: of.VelocityField, mu: of.Particles, weight: Callable[[Any], Tensor | float] = lambda _: 1.0
) -> Any:
    """Of the covectors w_i weight_i v_i, (nd, nd)."""

    def covectors(x: Tensor) -> Tensor:
        at = mu.at([x])
        return (mu.w[:, None] * weight(at) * field(0.0, at)[0]).flatten()

    return torch.autograd.functional.jacobian(covectors, mu.x).reshape(N * D, N * D)


def _gaussian_jacobian(field: Any) -> Any:
    """Of S -> B(S), x' = Bx, in an orthonormal basis of symmetric matrices."""
    half = 0.5**0.5
    basis = torch.tensor([[[1, 0], [0, 0]], [[0, 0], [0, 1]], [[0, half], [half, 0]]], dtype=torch.float64)

    def components(s: Tensor) -> Tensor:
        mu = of.Gaussian(torch.zeros(D).double(), cov=torch.einsum("k,kij->ij", s, basis))
        return torch.einsum("kij,ij->k", basis, field.matrix(torch.zeros(()).double(), mu))

    return torch.autograd.functional.jacobian(components, torch.einsum("kij,ij->k", basis, law().cov))


def skew(J: Tensor) -> float:
    """|J - J^T| / |J|.

    >>> import torch
    >>> from otflow.papers.gradient_flows.runs import skew
    >>> round(skew(torch.tensor([[0.0, 1.0], [0.0, 0.0]])) ** 2, 6)
    2.0
    """
    return float((J - J.mT).norm() / J.norm())


# --- explicit and implicit runs -----------------------------------------------------------------------


class Followed(NamedTuple):
    """The exact run, those of all schemes and steps, and W2 of their ends to its end."""

    case: DescentCase
    exact: of.Trajectory
    runs: dict[str, dict[float, of.Trajectory]]
    errors: dict[str, dict[float, float]]

    def excess(self) -> float:
        """The most by which an energy is on the wrong side: JKO below the exact one, or Euler above it.

        After every step, relative to the whole fall.
        """
        F, sides = self.exact.observed["F"], {"JKO": -1, "Euler": 1}
        return max(
            float((side * (G - F[:: (len(F) - 1) // (len(G) - 1)]) / (F[0] - F[-1]))[1:].max())
            for scheme, side in sides.items()
            for G in (run.observed["F"] for run in self.runs[scheme].values())
        )

    def balances(self) -> list[of.dynamics.EnergyBalance]:
        """Of the JKO runs, from the longest step to the shortest."""
        return [of.energy_balance(run, self.case.descent) for run in self.runs["JKO"].values()]


def to_follow() -> dict[str, DescentCase]:
    """All kinds of attention with A > 0 on particles, two on Gaussians, and softmax once more.

    Its metric depends on the law: frozen at the start of a move, or taken along, the limit is the same.

    >>> from otflow.papers.gradient_flows.runs import to_follow
    >>> len(to_follow())
    7
    """
    A, mu, nu = DEFINITE, cloud(), law()
    fields = {name: make(A, EYE, -A) for name, make in KINDS.items()}
    full = of.SteepestDescent(of.ExponentialInteraction(A), of.Twisted(of.metrics.Partition(A), frozen=False))
    return {
        **{name: case(field, mu) for name, field in fields.items()},
        "softmax, weight along the move": DescentCase(fields["softmax"], full, mu),
        **{f"{name}, Gaussians": case(fields[name], nu) for name in ("softmax", "Sinkhorn")},
    }


def follow(c: DescentCase, steps: tuple[float, ...], *, t1: float) -> Followed:
    """All runs, saved after every step, and the exact one saved at multiples of 0.0125.

    >>> from otflow.papers.gradient_flows.runs import DEFINITE, EYE, KINDS, case, follow, law
    >>> found = follow(case(KINDS["softmax"](DEFINITE, EYE, -DEFINITE), law()), (0.1,), t1=0.2)
    >>> list(found.runs), len(found.exact), found.excess() < 0
    (['Euler', 'JKO', 'extrapolated'], 17, True)
    """
    observe, times = {"F": c.descent.energy}, np.linspace(0, t1, round(t1 / 0.0125) + 1)
    exact = of.flow(c.mu, c.field, of.Dopri5(rtol=1e-9, atol=1e-11), t1=t1, save_at=times, observe=observe)
    jko = of.JKO(tol=1e-7)
    schemes: dict[str, of.Stepper] = {"Euler": of.Euler(), "JKO": jko, "extrapolated": of.Extrapolated(jko)}
    runs = {
        name: {dt: of.flow(c.mu, c.descent, stepper, t1=t1, dt=dt, observe=observe) for dt in steps}
        for name, stepper in schemes.items()
    }
    errors = {
        name: {dt: float(of.wasserstein(r.final, exact.final)) for dt, r in each.items()}
        for name, each in runs.items()
    }
    return Followed(c, exact, runs, errors)


def order(errors: dict[float, float]) -> float:
    """The slope of log error against log step, between the last two steps.

    >>> from otflow.papers.gradient_flows.runs import order
    >>> round(order({0.2: 0.08, 0.1: 0.02}), 9)
    2.0
    """
    (h, a), (k, b) = list(errors.items())[-2:]
    return math.log(a / b) / math.log(h / k)


# --- Gaussians ----------------------------------------------------------------------------------------


def pairs(count: int) -> tuple[of.Gaussian, of.Gaussian]:
    """Pairs of centred Gaussians whose roots are aligned: their difference is the optimal displacement.

    >>> import otflow as of
    >>> import torch
    >>> from otflow.papers.gradient_flows.runs import pairs
    >>> mu, nu = pairs(3)
    >>> bool(torch.allclose(of.wasserstein(mu, nu), (mu.root - nu.root).norm(dim=(-1, -2))))
    True
    """
    R, S = torch.from_numpy(np.random.default_rng(SEED).normal(size=(2, count, D, D)))
    U, _, Vh = torch.linalg.svd(S.mT @ R)
    return of.Gaussian(R.new_zeros(count, D), root=R), of.Gaussian(R.new_zeros(count, D), root=S @ U @ Vh)


def energies(A: Tensor, *, sign: float = -1.0) -> dict[str, of.Energy]:
    """What softmax and Sinkhorn attention with V = sign A descend on Gaussians.

    >>> from otflow.papers.gradient_flows.runs import EYE, energies
    >>> energies(EYE)["softmax"]
    SquaredScores(d=2)
    """
    fields = {name: KINDS[name](A, EYE, sign * A) for name in ("softmax", "Sinkhorn")}
    return {name: field.as_gradient_flow(of.Gaussian).energy for name, field in fields.items()}


def curvatures(count: int) -> dict[str, dict[str, np.ndarray]]:
    """Second derivatives of energies along Bures geodesics of length one, at three points of each.

    >>> from otflow.papers.gradient_flows.runs import curvatures
    >>> {name: bool(found["softmax"].min() > 0) for name, found in curvatures(50).items()}
    {'definite': True, 'of both signs': False, 'definite, V = A': False}
    """
    mu, nu = pairs(count)
    sets = {
        "definite": energies(DEFINITE),
        "of both signs": energies(MIXED),
        "definite, V = A": energies(DEFINITE, sign=1.0),
    }
    return {name: {k: _second(G, mu, nu) for k, G in found.items()} for name, found in sets.items()}


def _second(G: of.Energy, mu: of.Gaussian, nu: of.Gaussian, h: float = 0.01) -> np.ndarray:
    """By central differences of order four; roots are aligned, so that geodesics are straight."""
    u, s = nu.coords - mu.coords, torch.tensor([0.1, 0.5, 0.9]).double()
    times = (s[:, None] + h * torch.arange(-2, 3)).flatten()
    values = torch.stack([G(mu.at(mu.coords + float(t) * u)) for t in times])
    c = torch.tensor([-1.0, 16.0, -30.0, 16.0, -1.0]).double() / (12 * h**2)
    second = torch.einsum("skb,k->sb", values.reshape(3, 5, -1), c)
    return np.asarray(second / u[1].square().sum((-1, -2)))


class DescentPath(NamedTuple):
    """Twisted and Bures energies of a softmax flow; ``last`` is when the first becomes finite."""

    t: np.ndarray
    F: np.ndarray
    G: np.ndarray
    last: float


def infinite_path() -> DescentPath:
    """From a Gaussian of infinite energy.

    With diagonal A and S the variances are s / (1 + 2 a^2 s t), and a s reaches one at (a s - 1) / (2 a^2 s).

    >>> from otflow.papers.gradient_flows.runs import infinite_path
    >>> infinite_path().F[0], round(infinite_path().last, 9)
    (np.float64(inf), 0.3)
    """
    a, s = np.array([1.0, 0.6]), np.array([2.5, 1.5])
    field = of.SoftmaxAttention(np.diag(a), EYE, -np.diag(a))
    observe = {"F": of.ExponentialInteraction(np.diag(a)), "G": of.SquaredScores(np.diag(a))}
    mu = of.Gaussian([0.0, 0.0], cov=np.diag(s))
    traj = of.flow(mu, field, of.Dopri5(), t1=1.0, save_at=np.linspace(0, 1, 201), observe=observe)
    t, F, G = (z.numpy() for z in (traj.ts, traj.observed["F"], traj.observed["G"]))
    return DescentPath(t, F, G, float(((a * s - 1) / (2 * a**2 * s)).max()))
