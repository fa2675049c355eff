"""Transformers as interacting particles on the sphere: clusters, energies and phase transitions

With layer normalisation tokens live on the unit sphere. Geshkovski, Letrouit, Polyanskiy and Rigollet (2025)
study attention with Q = K = V = I and inverse temperature beta there: with softmax (SA), and without (USA).
Both ascend the energy E = 1/(2 beta) int int exp(beta x.y), which is least for uniform tokens and largest
when all agree; from almost every start all tokens meet in one point.

How long that takes is seen in phase diagrams: the probability that two tokens have met, over time and beta.
In high dimension random tokens are almost orthogonal, all angles between them stay almost equal, and one ODE
for the cosine gamma of the angle tells the whole story. Its time is a closed form in exponential integrals.
The curve on which gamma = 1 - delta is drawn over the diagrams: it is the boundary, and turns up near beta =
log n. In low dimension there is another region where the probability is neither 0 nor 1. Tokens there sit in
a few clusters, two on the circle for beta = 4 and three for beta = 9, for a very long time.

The diagrams use Euler's steps of 0.1, brought back to the sphere, as the paper does; the step is projected to
the tangent space first. Weights can be random, too: symmetric ones keep the structure of an ascent or
descent, and tokens meet for many others as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

import otflow as of
from otflow.experiments.base import Progress, Result
from otflow.systems import sphere
from otflow.systems.phases import share_met

KINDS = {"SA": True, "USA": False}
CIRCLE = {4.0: 2, 9.0: 3}  # beta and the number of clusters in Figure 4
SHOTS = (2.5, 18.0, 30.0)
Array = np.ndarray
Diagrams = dict[str, sphere.PhaseDiagram]


class Curve(NamedTuple):
    """The overlap of equiangular tokens, in closed form and of tokens."""

    ts: Array
    closed: Array
    followed: Array  # (T, 2): the least and the largest over pairs


def run(*, quick: bool, progress: Progress) -> Result:
    """All flows, all claims, all figures."""
    from otflow.experiments import perspective_draw as draw
    from otflow.experiments.perspective_claims import all_claims

    progress(0.0, "equal angles")
    curves = {f"{kind}, beta = {b:g}": equal_angles(b, kind) for kind in KINDS for b in (1.0, 3.0)}
    progress(0.05, "circle and sphere")
    rings = {beta: on_the_circle(beta, 16 if quick else 64) for beta in CIRCLE}
    globe = on_the_sphere()
    progress(0.2, "random weights")
    shares = random_weights(6 if quick else 24)
    diagrams: Diagrams = {}
    for share, name, diagram in phases(quick):
        progress(0.3 + 0.55 * share, name)
        diagrams[name] = diagram
    progress(0.9, "claims")
    claims = all_claims(curves, diagrams, rings, quick=quick)
    figures = {
        "phases": draw.phases(diagrams),
        "equal-angles": draw.equal_angles(curves),
        "circle": draw.circles(rings),
        "sphere": draw.globes(globe),
        "random-weights": draw.random_weights(shares),
    }
    return Result(claims, figures, _data(diagrams, curves, shares))


# --- what is computed ----------------------------------------------------------------------------------


def equal_angles(beta: float, kind: str, n: int = 8) -> Curve:
    """Orthonormal tokens, followed until gamma = 1 - 1e-4."""
    normalised = KINDS[kind]
    t1 = sphere.collapse_time(beta, n, 1e-4, normalised=normalised).item()
    ts = np.linspace(0, t1, 21)
    mu = of.Particles(np.eye(n), space=of.Sphere())
    field = sphere.attention(beta, n, normalised=normalised)
    x = of.flow(mu, field, of.Dopri5(rtol=1e-8, atol=1e-10), t1=t1, save_at=ts).stacked.coords[0]
    pairs = (x @ x.mT)[:, ~torch.eye(n, dtype=torch.bool)]
    closed = sphere.equiangular(ts, beta, n, normalised=normalised)
    return Curve(ts, closed.numpy(), torch.stack([pairs.amin(-1), pairs.amax(-1)], -1).numpy())


def on_the_circle(beta: float, samples: int, n: int = 32) -> of.Trajectory:
    mu = sphere.uniform(n, 2, rng=np.random.default_rng(0), batch=(samples,))
    return of.flow(mu, sphere.attention(beta, 2), of.RK4(), t1=SHOTS[-1], dt=0.25, save_at=[0.0, *SHOTS])


def on_the_sphere() -> of.Trajectory:
    mu = sphere.uniform(64, 3, rng=np.random.default_rng(1))
    return of.flow(mu, sphere.attention(1.0, 3), of.Euler(), t1=15.0, dt=0.1)


def phases(quick: bool) -> Iterator[tuple[float, str, sphere.PhaseDiagram]]:
    """Diagrams, each with the fraction of the work before it; USA has less time and fewer beta."""
    n, samples = (16, 6) if quick else (32, 24)
    dims = (2, 128) if quick else (2, 8, 32, 128, 512)
    t = np.linspace(0, 15, 31) if quick else np.linspace(0, 30, 101)
    beta = np.linspace(0.2, 6, 8) if quick else np.linspace(0.1, 9, 30)
    for i, d in enumerate(dims):
        rng = np.random.default_rng(d)
        diagram = sphere.phase_diagram(beta, t, n=n, d=d, samples=samples, rng=rng)
        yield i / (len(dims) + 1), f"SA, d = {d}", diagram
    b, rng = np.linspace(0.2, 2.0 if quick else 4.0, 5 if quick else 24), np.random.default_rng(0)
    t = np.linspace(0, 6, 61)
    last = sphere.phase_diagram(b, t, n=n, d=dims[-1], samples=4 if quick else 8, rng=rng, normalised=False)
    yield len(dims) / (len(dims) + 1), f"USA, d = {dims[-1]}", last


def random_weights(samples: int, n: int = 16, d: int = 32, beta: float = 2.0) -> dict[str, Array]:
    """The share of pairs that have met, for random A = K^T Q and V; (T,) each, and the times as "t"."""
    rng, eye, ts = np.random.default_rng(3), torch.eye(d, dtype=torch.float64), np.linspace(0, 20, 21)
    scale = beta * math.sqrt(d)  # entries of size beta in A
    H = sphere.goe(d, rng=rng)
    choices = {
        "A and V = I": (beta * eye, eye),
        "A Ginibre, V = I": (scale * sphere.ginibre(d, rng=rng), eye),
        "A and V Ginibre": (scale * sphere.ginibre(d, rng=rng), sphere.ginibre(d, rng=rng)),
        "A GOE, V ~ A": (scale * H, H),
        "A GOE, V ~ -A": (scale * H, -H),
        "A GOE redrawn, V = I": (sphere.redrawn(lambda: scale * sphere.goe(d, rng=rng), 1.0, 20.0), eye),
        "A and V learned-like": tuple(c * sphere.learned_like(d, 8, rng=rng) for c in (2 * beta, 1.0)),
    }
    mu, out = sphere.uniform(n, d, rng=rng, batch=(samples,)), {"t": ts}
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


def _data(diagrams: Diagrams, curves: dict[str, Curve], shares: dict[str, Array]) -> dict[str, Array]:
    out = {f"random_{_key(name)}": values for name, values in shares.items()}
    for name, c in curves.items():
        out |= {f"equal_{_key(name)}": np.column_stack([c.ts, c.closed, c.followed])}
    for name, diagram in diagrams.items():
        for field in ("t", "beta", "probability", "stderr", "prediction"):
            out[f"phases_{_key(name)}_{field}"] = getattr(diagram, field).numpy()
    return out


def _key(name: str) -> str:
    """A name of letters, digits and _ only."""
    return "_".join(re.findall(r"[A-Za-z0-9]+", name.replace("-A", "minus A")))
