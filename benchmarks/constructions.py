"""Constructed flows and random layers against straightforward scipy and numpy, as ratios measured in one run.

    python benchmarks/constructions.py

Pieces: a Knothe-Rosenblatt flow of 213 neurons on 2,000 points in closed form, against scipy's RK45 piece by
piece. Paths: three clouds of 1,000 points run along the path that was built for them, against scipy's DOP853.
Layers: 36 random layers of 8 tokens in dimension 64, 256 samples, against a loop that draws the matrices.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.stats import norm
from timing import timed

import otflow as of
from otflow.papers import homogenized, interpolation, relu_flows
from otflow.papers.relu_flows.controllability import curved


def report(name: str, what: str, ours: float, theirs: float, gap: str) -> None:
    print(f"{name:<8} {what}: {ours:.3g} s, peer {theirs:.3g} s, ratio {theirs / ours:.3g}, {gap}")


# --- ReLU flows ----------------------------------------------------------------------------------------


def pieces(n: int = 2_000) -> None:
    flow = relu_flows.knothe_rosenblatt([norm(), norm()], curved, 36, delta=1e-3, samples=64).flow
    x = np.random.default_rng(0).standard_normal((n, 2))
    flow(x)  # tables are made on first use
    ours, y = timed(lambda: flow(x))
    theirs, z = timed(lambda: _neurons(flow, x), 1)
    report(
        "pieces", f"{len(flow)} pieces, {n} points", ours, theirs, f"gap {np.abs(y.numpy() - z).max():.0e}"
    )


def _neurons(flow: relu_flows.PiecewiseFlow, x: Any) -> Any:
    for w, a, b, T in zip(*(v.numpy() for v in (flow.w, flow.a, flow.b, flow.T)), strict=True):

        def velocity(_: float, y: Any, w: Any = w, a: Any = a, b: Any = b) -> Any:
            return (np.maximum(y.reshape(-1, 2) @ a + b, 0)[:, None] * w).ravel()

        x = solve_ivp(velocity, (0, T), x.ravel(), rtol=1e-8, atol=1e-10).y[:, -1].reshape(-1, 2)
    return x


# --- interpolation -------------------------------------------------------------------------------------


def paths(n: int = 1_000) -> None:
    rng = np.random.default_rng(0)
    centres = [[0.2, 0.0, 1.0], [-0.2, 0.1, 1.0], [0.0, -0.3, 1.0]]
    clouds = [_sphere(np.array(c) + 0.25 * rng.uniform(-1, 1, (n, 3))) for c in centres]
    build, path = timed(lambda: interpolation.interpolate(clouds, -np.eye(3)), 1)
    ours, ends = timed(lambda: [path(mu).x.numpy() for mu in clouds])
    theirs, other = timed(lambda: [_along(path, mu.x.numpy()) for mu in clouds], 1)
    gap = max(np.abs(a - b).max() for a, b in zip(ends, other, strict=True))
    what = f"{len(path.pieces)} pieces, 3 x {n} points (built in {build:.2g} s)"
    report("paths", what, ours, theirs, f"gap {gap:.0e}")


def _sphere(x: Any) -> of.Particles:
    return of.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=of.Sphere())


def _along(path: interpolation.Path, x: Any) -> Any:
    for piece in path.pieces:

        def velocity(_: float, y: Any, piece: Any = piece) -> Any:
            z = y.reshape(-1, 3)
            gate = np.maximum(z @ piece.direction + piece.c, 0)[:, None]
            v = piece.V @ z.mean(0) + gate * piece.w
            return (v - (v * z).sum(1, keepdims=True) * z).ravel()

        y = solve_ivp(velocity, (0, piece.time), x.ravel(), method="DOP853", rtol=1e-9, atol=1e-11).y[:, -1]
        x = y.reshape(-1, 3)
    return x


# --- random layers -------------------------------------------------------------------------------------


def layers(n: int = 8, d: int = 64, depth: int = 36, samples: int = 256) -> None:
    start, law = homogenized.simplex(n, d), homogenized.GaussianWeights(d)
    ours, run = timed(
        lambda: homogenized.chain(start, weights=law, beta=1.0, eta=0.2, layers=depth, samples=samples, rng=0)
    )
    theirs, x = timed(lambda: _layers(start.x.numpy(), 1.0, 0.2, depth, samples), 1)
    other = (n * (x.mean(1) ** 2).sum(-1) - 1) / (n - 1)
    gap = f"overlaps {run.pair_overlap[-1].mean():.3f} and {other.mean():.3f} (other draws)"
    report("layers", f"{depth} layers, n = {n}, d = {d}, {samples} samples", ours, theirs, gap)


def _layers(start: Any, beta: float, eta: float, depth: int, samples: int) -> Any:
    rng, d, out = np.random.default_rng(1), start.shape[1], []
    for _ in range(samples):
        x = start
        for _ in range(depth):
            V = rng.standard_normal((d, d)) / math.sqrt(d)
            A = rng.standard_normal((d, d)) @ rng.standard_normal((d, d)).T / d
            scores = beta * (x @ A.T) @ x.T
            p = np.exp(scores - scores.max(1, keepdims=True))
            x = x + eta * (p / p.sum(1, keepdims=True)) @ x @ V.T
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
        out.append(x)
    return np.stack(out)


if __name__ == "__main__":
    for benchmark in (pieces, paths, layers):
        benchmark()
