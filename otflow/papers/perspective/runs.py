"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

import otflow as of
from otflow.papers import perspective
from otflow.papers.perspective.phases import share_met

KINDS = {"SA": True, "USA": False}
CIRCLE = {4.0: 2, 9.0: 3}  # beta and the number of clusters in Figure 4
SHOTS = (2.5, 18.0, 30.0)
Array = np.ndarray
Diagrams = dict[str, perspective.PhaseDiagram]


class DiagramCurve(NamedTuple):
    """The overlap of equiangular tokens, in closed form and of tokens."""

    ts: Array
    closed: Array
    followed: Array  # (T, 2): the least and the largest over pairs


def equal_angles(beta: float, kind: str, n: int = 8) -> DiagramCurve:
    """Orthonormal tokens, followed until gamma = 1 - 1e-4."""
    normalised = KINDS[kind]
    t1 = perspective.collapse_time(beta, n, 1e-4, normalised=normalised).item()
    ts = np.linspace(0, t1, 21)
    mu = of.Particles(np.eye(n), space=of.Sphere())
    field = perspective.attention(beta, n, normalised=normalised)
    x = of.flow(mu, field, of.Dopri5(rtol=1e-8, atol=1e-10), t1=t1, save_at=ts).stacked.coords[0]
    pairs = (x @ x.mT)[:, ~torch.eye(n, dtype=torch.bool)]
    closed = perspective.equiangular(ts, beta, n, normalised=normalised)
    return DiagramCurve(ts, closed.numpy(), torch.stack([pairs.amin(-1), pairs.amax(-1)], -1).numpy())


def on_the_circle(beta: float, samples: int, n: int = 32) -> of.Trajectory:
    mu = perspective.uniform(n, 2, rng=np.random.default_rng(0), batch=(samples,))
    return of.flow(mu, perspective.attention(beta, 2), of.RK4(), t1=SHOTS[-1], dt=0.25, save_at=[0.0, *SHOTS])


def on_the_sphere() -> of.Trajectory:
    mu = perspective.uniform(64, 3, rng=np.random.default_rng(1))
    return of.flow(mu, perspective.attention(1.0, 3), of.Euler(), t1=15.0, dt=0.1)


def phases(quick: bool) -> Iterator[tuple[float, str, perspective.PhaseDiagram]]:
    """Diagrams, each with the fraction of the work before it; USA has less time and fewer beta."""
    n, samples = (16, 6) if quick else (32, 24)
    dims = (2, 128) if quick else (2, 8, 32, 128, 512)
    t = np.linspace(0, 15, 31) if quick else np.linspace(0, 30, 101)
    beta = np.linspace(0.2, 6, 8) if quick else np.linspace(0.1, 9, 30)
    for i, d in enumerate(dims):
        rng = np.random.default_rng(d)
        diagram = perspective.phase_diagram(beta, t, n=n, d=d, samples=samples, rng=rng)
        yield i / (len(dims) + 1), f"SA, d = {d}", diagram
    b, rng = np.linspace(0.2, 2.0 if quick else 4.0, 5 if quick else 24), np.random.default_rng(0)
    t = np.linspace(0, 6, 61)
    last = perspective.phase_diagram(
        b, t, n=n, d=dims[-1], samples=4 if quick else 8, rng=rng, normalised=False
    )
    yield len(dims) / (len(dims) + 1), f"USA, d = {dims[-1]}", last


def random_weights(samples: int, n: int = 16, d: int = 32, beta: float = 2.0) -> dict[str, Array]:
    """The share of pairs that have met, for random A = K^T Q and V; (T,) each, and the times as "t"."""
    rng, eye, ts = np.random.default_rng(3), torch.eye(d, dtype=torch.float64), np.linspace(0, 20, 21)
    scale = beta * math.sqrt(d)  # entries of size beta in A
    H = perspective.goe(d, rng=rng)
    choices = {
        "A and V = I": (beta * eye, eye),
        "A Ginibre, V = I": (scale * perspective.ginibre(d, rng=rng), eye),
        "A and V Ginibre": (scale * perspective.ginibre(d, rng=rng), perspective.ginibre(d, rng=rng)),
        "A GOE, V ~ A": (scale * H, H),
        "A GOE, V ~ -A": (scale * H, -H),
        "A GOE redrawn, V = I": (
            perspective.redrawn(lambda: scale * perspective.goe(d, rng=rng), 1.0, 20.0),
            eye,
        ),
        "A and V learned-like": tuple(c * perspective.learned_like(d, 8, rng=rng) for c in (2 * beta, 1.0)),
    }
    mu, out = perspective.uniform(n, d, rng=rng, batch=(samples,)), {"t": ts}
    for name, (A, V) in choices.items():
        field = of.SoftmaxAttention(A, eye, V)
        traj = of.flow(
            mu,
            field,
            of.Euler(),
            t1=20.0,
            dt=0.1,
            save_at=ts,
            observe={"met": lambda nu: share_met(nu, 1e-3)},
        )
        out[name] = traj.observed["met"].mean(1).numpy()
    return out
