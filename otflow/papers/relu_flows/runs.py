"""Runs that the claims and the pictures of `relu-flows` look at."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

import otflow as of
from otflow.papers import relu_flows as rf

CELLS, DELTA = (3, 4, 8), 1e-5
DIMENSIONS, NEURONS = (2, 10, 40), 50
SWEEPS = np.array([2, 4, 8, 16, 32])
Array = np.ndarray


# --- permutations --------------------------------------------------------------------------------------


class Permuted(NamedTuple):
    """How well a permutation of K x K cells does on random points."""

    K: int
    pieces: int
    wrong: float
    log_det: float
    back: float


def permutation(K: int, n: int) -> Permuted:
    """A random permutation, on n random points."""
    rng = np.random.default_rng(K)
    perm, x = rng.permutation(K * K).reshape(K, K), rng.random((n, 2))
    flow = rf.permutation(perm, delta=DELTA)
    y, gain = flow.with_log_det(x)
    cell = (x * K).astype(int)
    want = x + (np.stack(np.unravel_index(perm[cell[:, 0], cell[:, 1]], (K, K)), -1) - cell) / K
    wrong = np.abs(y.numpy() - want).max(1) > 1e-12
    # In a strip the flow is steep, and the way back loses digits there: only points off strips count.
    back = np.abs(flow.inverse(y).numpy() - x).max(1)[~wrong].max()
    return Permuted(K, len(flow), wrong.mean(), gain.abs().max().item(), back)


# --- polar maps ----------------------------------------------------------------------------------------


class Polars(NamedTuple):
    """Errors of polar maps against the number of cells along a side."""

    K: Array
    l2: Array
    tv: Array
    maps: list[rf.Polar]
    same: float


def twist(x: Array) -> Array:
    """A swirl about the centre of the square, then a stretch along x_1.

    >>> import numpy as np
    >>> from otflow.papers.relu_flows.runs import twist, untwist
    >>> bool(np.allclose(untwist(twist(np.array([[0.3, 0.6]]))), [[0.3, 0.6]]))
    True
    """
    y = _swirl(np.asarray(x), 1.0)
    return np.stack([y[:, 0] + 0.12 * np.sin(2 * np.pi * y[:, 0]), y[:, 1]], -1)


def log_jacobian(x: Array) -> Array:
    """log det D twist: the swirl keeps area."""
    return np.asarray(np.log(1 + 0.24 * np.pi * np.cos(2 * np.pi * _swirl(x, 1.0)[:, 0])))


def untwist(y: Array) -> Array:
    """Its inverse: Newton's method for x_1, and the swirl backwards."""
    s = y[:, 0].copy()
    for _ in range(50):
        s -= (s + 0.12 * np.sin(2 * np.pi * s) - y[:, 0]) / (1 + 0.24 * np.pi * np.cos(2 * np.pi * s))
    return _swirl(np.stack([s, y[:, 1]], -1), -1.0)


def _swirl(x: Array, sign: float) -> Array:
    """A rotation by an angle that falls with the distance to the centre, which keeps that distance."""
    u, v = (x - 0.5).T
    angle = sign * 2 * np.exp(-6 * (u**2 + v**2))
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([cos * u - sin * v, sin * u + cos * v], -1) + 0.5


def approximated(cells: tuple[int, ...]) -> Polars:
    """L2 errors, and total variation of the images of the uniform law, on a grid that covers both."""
    maps, x = [rf.polar(twist, K) for K in cells], np.random.default_rng(0).random((40_000, 2))
    i, j = np.minimum((x * cells[-1]).astype(int), cells[-1] - 1).T
    same = np.abs(maps[-1].flow.log_det(x).numpy() - np.log(maps[-1].jacobians[i, j])) < 1e-9
    l2, tv = np.array([[p.l2, total_variation(p.flow)] for p in maps]).T
    return Polars(np.array(cells), l2, tv, maps, same.mean())


def total_variation(flow: rf.PiecewiseFlow, n: int = 400) -> float:
    """1/2 int |rho - rho*| for the images of the uniform law on the square under flow and `twist`."""
    axis = -0.5 + 2 * (np.arange(n) + 0.5) / n
    y = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    x, gain = (t.numpy() for t in flow.reversed.with_log_det(y))
    back = untwist(y)
    rho, wanted = (
        np.where(((start > 0) & (start < 1)).all(-1), np.exp(log), 0.0)
        for start, log in ((x, gain), (back, -log_jacobian(back)))
    )
    return float(0.5 * np.abs(rho - wanted).mean() * 4)  # the grid covers an area of 4


# --- many neurons, one at a time -----------------------------------------------------------------------


class Neurons(NamedTuple):
    """Root mean square errors of Maurey's flows, by dimension, and of sweeps."""

    M: Array
    maurey: dict[int, Array]
    trotter: Array


def drawn(M: tuple[int, ...], seeds: int) -> Neurons:
    """Errors at 40 points of flows that are to follow a sum of fifty neurons; of sweeps, in dimension 10."""
    maurey = {}
    for d in DIMENSIONS:
        neurons, x, end = exact(d)
        runs = [[rf.maurey(neurons, m, rng=s) for s in range(seeds)] for m in M]
        maurey[d] = np.array([_rms(flows, x, end) for flows in runs])
        if d == DIMENSIONS[1]:
            trotter = np.array([_rms([rf.lie_trotter(neurons, int(s))], x, end) for s in SWEEPS])
    return Neurons(np.array(M), maurey, trotter)


def exact(d: int) -> tuple[rf.Piece, Array, Array]:
    """Neurons, points, and where Dopri5 takes them."""
    rng = np.random.default_rng(d)
    w, a = rng.standard_normal((2, NEURONS, d)) / math.sqrt(d)
    neurons = rf.Piece(2 * w / NEURONS, 2 * a, rng.standard_normal(NEURONS))
    x = rng.standard_normal((40, d)) / math.sqrt(d)
    field = of.Perceptron(W=neurons.w.T, U=neurons.a, b=neurons.b)
    end = of.flow(of.Particles(x), field, of.Dopri5(rtol=1e-9, atol=1e-11), t1=1.0, save_at=[0.0, 1.0]).final
    return neurons, x, end.coords[0].numpy()


def _rms(flows: list[rf.PiecewiseFlow], x: Array, end: Array) -> float:
    return math.sqrt(np.mean([((flow(x).numpy() - end) ** 2).sum(-1).mean() for flow in flows]))
