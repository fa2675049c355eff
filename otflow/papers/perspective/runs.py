"""Runs that the claims and the pictures of this room look at."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from scipy.integrate import quad, simpson

import otflow as of
from otflow.papers import perspective as p
from otflow.papers.perspective.phases import share_met, tokens_in_span
from otflow.reproduce.frame import Frame

KINDS = {"SA": True, "USA": False}
CIRCLE = {4.0: 2, 9.0: 3}  # beta and the number of clusters in Figure 4
SHOTS = (2.5, 18.0, 30.0)  # the times of Figure 4
Array = np.ndarray
Diagrams = dict[str, p.PhaseDiagram]


def follow(mu: of.Particles, beta: float, t1: float, dt: float, **options: Any) -> of.Trajectory:
    """SA until t1 by the steps of Runge and Kutta."""
    return of.flow(mu, p.attention(beta, mu.d), of.RK4(), t1=t1, dt=dt, **options)


# --- equal angles --------------------------------------------------------------------------------------


def equal_angles(beta: float, kind: str, n: int = 8) -> Array:
    """Orthonormal tokens until gamma = 1 - 1e-4, (T, 4): t, gamma, and the least and the largest overlap."""
    normalised, mu = KINDS[kind], of.Particles(np.eye(n), space=of.Sphere())
    t1 = p.collapse_time(beta, n, 1e-4, normalised=normalised).item()
    ts, field = np.linspace(0, t1, 21), p.attention(beta, n, normalised=normalised)
    x = of.flow(mu, field, of.Dopri5(rtol=1e-8, atol=1e-10), t1=t1, save_at=ts).stacked.coords[0]
    pairs = (x @ x.mT)[:, ~torch.eye(n, dtype=torch.bool)]
    closed = p.equiangular(ts, beta, n, normalised=normalised)
    return np.column_stack([ts, closed, pairs.amin(-1), pairs.amax(-1)])


def time_by_quadrature(beta: float, n: int, delta: float, normalised: bool) -> float:
    """int dgamma / gamma', in v = log 1 / (1 - gamma): the time at which gamma = 1 - delta."""

    def density(v: float) -> float:
        u = math.exp(-v)
        top = math.exp(beta * u) + n - 1 if normalised else n * math.exp(-beta * (1 - u))
        return top / (2 * (n - (n - 1) * u))

    return float(quad(density, 0, -math.log(delta), epsabs=0, epsrel=1e-12)[0])


def deviation(d: int, samples: int, n: int = 16, beta: float = 3.0) -> float:
    """|<x_i, x_j> - gamma| of uniform tokens: largest over time and pairs, mean over starts."""
    ts, off = np.linspace(0, 12, 49), ~torch.eye(n, dtype=torch.bool)
    path = follow(tokens_in_span(n, d, samples, rng=0), beta, 12.0, 0.25, save_at=ts).stacked.coords[0]
    gamma = p.equiangular(ts, beta, n)[:, None, None, None]
    return (path @ path.mT - gamma)[..., off].abs().amax((0, 2)).mean().item()


def phases(frame: Frame) -> Diagrams:
    """Diagrams of SA in several dimensions, then of USA in the largest: it has less time and fewer beta."""
    n, dims = frame.size((16, (2, 128)), (32, (2, 8, 32, 128, 512)))
    sa = frame.size(((0.2, 6, 8), (0, 15, 31), 6), ((0.1, 9, 30), (0, 30, 101), 24))  # beta, t, samples
    usa = frame.size(((0.2, 2, 5), (0, 6, 61), 4), ((0.2, 4, 24), (0, 6, 61), 8))
    cases = [("SA", d, d, sa) for d in dims] + [("USA", dims[-1], 0, usa)]
    out = {}
    for i, (kind, d, seed, (beta, t, samples)) in enumerate(cases):
        frame.stage(0.3 + 0.55 * i / len(cases), f"{kind}, d = {d}")
        grid = np.linspace(*beta), np.linspace(*t)
        out[f"{kind}, d = {d}"] = p.phase_diagram(
            *grid, n=n, d=d, samples=samples, rng=seed, normalised=KINDS[kind]
        )
    return out


# --- energies and meeting ------------------------------------------------------------------------------


def growth(beta: float, d: int, n: int, kind: str) -> tuple[float, float]:
    """int int |v|^2 Z dmu dt until t = 1 by Simpson's rule, with Z = 1 for USA, and the growth of E."""
    field, E = p.attention(beta, d, normalised=KINDS[kind]), p.energy(beta, d)
    traj = of.flow(p.uniform(n, d, rng=2), field, of.RK4(), t1=1.0, dt=0.01)
    Z = of.metrics.Partition(beta * torch.eye(d, dtype=torch.float64))
    rate = [
        (field(0.0, mu)[0].square().sum(-1) * (Z(mu, mu.coords[0]) if KINDS[kind] else 1.0)).mean()
        for mu in traj.measures
    ]
    return simpson(np.array(rate), dx=0.01), (E(traj.final) - E(traj.measures[0])).item()


def cone(beta: float = 1.0, n: int = 8, d: int = 3) -> float:
    """1 - min <x_i, x*> from random starts in a hemisphere, over the bound of Lemma 6.4 (largest)."""
    x = p.uniform(n, d, rng=5, batch=(16,)).x
    mu = of.Particles(torch.where(x[..., :1] > 0, x, -x), space=of.Sphere())
    traj = follow(mu, beta, 40.0, 0.25)
    path = traj.stacked.coords[0]
    gap = 1 - (path @ path[-1, :, :1].mT)[..., 0].amin(-1)  # the last place of one token stands for x*
    bound = gap[0] * torch.exp(-traj.ts / (2 * n * math.exp(2 * beta)))[:, None]
    return (gap / bound).max().item()


def share_in_hemispheres(samples: int, n: int = 10) -> float:
    """Tokens share a hemisphere of R^3 if all lie on one side of a plane through two of them."""
    x = p.uniform(n, 3, rng=6, batch=(samples,)).x
    i, j = np.array(list(combinations(range(n), 2))).T
    side = (torch.linalg.cross(x[:, i], x[:, j]) @ x.mT).sign()  # (samples, pairs, n)
    rows = np.arange(len(i))
    side[:, rows, i] = side[:, rows, j] = 0.0  # on the plane, whatever rounding says
    return float((side.sum(-1).abs() == n - 2).any(-1).double().mean())


# --- pictures ------------------------------------------------------------------------------------------


def on_the_circle(beta: float, samples: int, n: int = 32) -> of.Trajectory:
    """Uniform tokens on the circle under SA, at the start and at `SHOTS`."""
    mu = p.uniform(n, 2, rng=0, batch=(samples,))
    return follow(mu, beta, SHOTS[-1], 0.25, save_at=[0.0, *SHOTS])


def on_the_sphere() -> of.Trajectory:
    """Uniform tokens on the sphere in three dimensions, with the steps of the paper's figures."""
    field = p.attention(1.0, 3)
    return of.flow(p.uniform(64, 3, rng=1), field, of.Euler(), t1=15.0, dt=0.1)


def random_weights(samples: int, n: int = 16, d: int = 32, beta: float = 2.0) -> dict[str, Array]:
    """The share of pairs that have met, for random A = K^T Q and V; (T,) each, and the times as "t"."""
    rng, eye, ts = np.random.default_rng(3), torch.eye(d, dtype=torch.float64), np.linspace(0, 20, 21)
    goe, ginibre, learned_like = (partial(f, d, rng=rng) for f in (p.goe, p.ginibre, p.learned_like))
    scale, H = beta * math.sqrt(d), goe()  # entries of size beta in A
    choices = {  # one generator serves all, so that their order matters
        "A and V = I": (beta * eye, eye),
        "A Ginibre, V = I": (scale * ginibre(), eye),
        "A and V Ginibre": (scale * ginibre(), ginibre()),
        "A GOE, V ~ A": (scale * H, H),
        "A GOE, V ~ -A": (scale * H, -H),
        "A GOE redrawn, V = I": (p.redrawn(lambda: scale * goe(), 1.0, 20.0), eye),
        "A and V learned-like": (2 * beta * learned_like(rank=8), learned_like(rank=8)),
    }
    mu, observe = p.uniform(n, d, rng=rng, batch=(samples,)), {"met": lambda nu: share_met(nu, 1e-3)}
    fields = {name: of.SoftmaxAttention(A, eye, V) for name, (A, V) in choices.items()}
    go = partial(of.flow, mu, stepper=of.Euler(), t1=20.0, dt=0.1, save_at=ts, observe=observe)
    return {"t": ts} | {name: go(f).observed["met"].mean(1).numpy() for name, f in fields.items()}
