"""Runs that the claims and the pictures of this room look at: staircases, caps, and tokens on a circle."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq

import otflow as of
from otflow.papers import metastability as ms
from otflow.papers.tokens import sphere

KINDS = {"USA": False, "SA": True}
COLD = 200.0  # beta at which neighbours are predicted pair by pair
EPS, LAM, APART, N = 0.01, 0.8, 2.5, 4  # two caps at an angle of 2.5, two tokens in each
MOVIE = (0.0, 10.0, 100.0, 400.0)
AUTHORS = np.array([0, 0.5, 2, 4, 7]) / 2 * math.log(2000) / math.sqrt(2000)  # the start of their figure
STARTS: dict[str, tuple[list[float], list[float] | None]] = {
    "four unequal clusters": ([0.0, 0.6, 1.5, 3.2], [0.1, 0.4, 0.3, 0.2]),
    "five clusters around the circle": ([6.0, 0.5, 2.1, 3.3, 4.6], [0.3, 0.1, 0.15, 0.25, 0.2]),
    "four equal clusters": ([0.0, 0.5, 2.0, 3.3], None),
}
Array = np.ndarray


# --- staircases ----------------------------------------------------------------------------------------


class StaircaseRun(NamedTuple):
    """A simulation and what was predicted of it."""

    run: ms.SaddleToSaddle
    predicted: ms.Staircase

    @property
    def error(self) -> Array:
        """Relative errors of log t / beta."""
        return (self.run.jumps / self.predicted.log_times - 1).abs().numpy()

    @property
    def worst(self) -> tuple[float, float]:
        """The largest error of log t / beta and of the angle of a merge, inf if other clusters merge."""
        if [set(m.clusters) for m in self.run.merges] != [set(pair) for pair in self.predicted.pairs]:
            return math.inf, math.inf
        angles = np.array([m.theta for m in self.run.merges]) - self.predicted.merge_points.numpy()
        return self.error.max(), np.abs(angles).max()

    @property
    def plateaus(self) -> Array:
        """The energy of the simulation amid the predicted plateaus, first and last included."""
        s, energy = self.predicted.log_times, self.run.energy
        amid = torch.searchsorted(self.run.s, (s[1:] + s[:-1]) / 2).clamp(max=len(energy) - 1)
        return torch.cat([energy[:1], energy[amid], energy[-1:]]).numpy()


def steps(theta: list[float], masses: list[float] | None, beta: float, kind: str) -> StaircaseRun:
    """The same start, simulated and predicted."""
    run = ms.slow_flow(theta, beta, masses=masses, normalised=KINDS[kind])
    return StaircaseRun(run, ms.staircase(theta, beta, masses, normalised=KINDS[kind]))


def movie() -> Array:
    """Five tokens on the circle at beta = 4, from a start that leaves one cluster; angles (T, 5)."""
    theta = np.random.default_rng(18).uniform(0, 2 * np.pi, 5)
    traj = of.flow(sphere.circle(theta), _attention(4.0, "SA", 2), of.Dopri5(), t1=MOVIE[-1], save_at=MOVIE)
    x = traj.stacked.nodes()[0].numpy()
    return np.asarray(np.arctan2(x[..., 1], x[..., 0]))


def _attention(beta: float, kind: str, d: int) -> of.VelocityField:
    """SA, or USA in the time of the kernel exp(beta (<x, y> - 1))."""
    field = sphere.attention(beta, d, normalised=KINDS[kind])
    return field if KINDS[kind] else math.exp(-beta) * field


# --- caps ----------------------------------------------------------------------------------------------


class CapTimes(NamedTuple):
    """Two caps at one beta: the bounds of the theorem, and log t of the collapse and of the exit."""

    beta: float
    log_T1: float
    collapse: float
    log_T2: float
    exit: float
    applies: bool


def cap_times(beta: float, kind: str) -> CapTimes:
    """Tokens on the rims of two caps collapse, then wait, then leave."""
    caps = ms.metastable_times(sphere.circle([0.0, APART]).x, EPS, beta, N, LAM)
    return CapTimes(beta, caps.log_T1, _collapse(beta, kind), caps.log_T2, _exit(beta, kind), caps.applies)


def _collapse(beta: float, kind: str) -> float:
    """log t at which |x_i - x_j|^2 <= 2 exp(-lam beta) in both caps."""
    rim, field = math.acos(1 - EPS), _attention(beta, kind, 2)
    start = sphere.circle([-rim, rim, APART - rim, APART + rim])

    def collapsed(t: torch.Tensor, mu: of.measures.Measure) -> torch.Tensor:
        x = mu.nodes()[0]
        return (x[..., ::2, :] - x[..., 1::2, :]).square().sum(-1).amax() <= 2 * math.exp(-LAM * beta)

    traj = of.flow(start, field, of.RK4(), t1=1e3, dt=0.2, save_at=[1e3], stop=collapsed)
    return math.log(float(traj.ended))


def _exit(beta: float, kind: str) -> float:
    """log t at which the clusters leave the caps of height 2 eps."""
    run = ms.slow_flow([0.0, APART], beta, normalised=KINDS[kind])
    moved = run.theta[:, 0].abs() > math.acos(1 - 2 * EPS)
    return run.log_t[int(moved.to(torch.int8).argmax())].item()


def three_caps(kind: str, beta: float, lam: float) -> tuple[float, float]:
    """Three caps of a sphere in three dimensions, two tokens on the rim of each, until T2.

    How often a token is outside its cap, at 200 times, inf if the theorem does not apply; and the largest
    |x_i - x_j|^2 in a cap from T1 on.
    """
    angle = 2 * np.pi * np.arange(3) / 3
    w = np.stack([np.cos(angle), np.sin(angle), 0 * angle], -1)
    caps = ms.metastable_times(w, EPS, beta, 6, lam)
    T1, T2 = math.exp(caps.log_T1), math.exp(caps.log_T2)
    cloud = of.Particles(_rims(w).reshape(-1, 3), space=of.Sphere())
    traj = of.flow(cloud, _attention(beta, kind, 3), of.Dopri5(), t1=T2, save_at=np.linspace(0, T2, 200))
    states = traj.stacked.nodes()[0].reshape(-1, 3, 2, 3)  # time, cap, token, coordinate
    away = (ms.cap_index(states, w, 2 * EPS) != torch.arange(3)[:, None]).sum().item()
    spread = (states[:, :, 0] - states[:, :, 1])[traj.ts >= T1].square().sum(-1).max().item()
    return away if caps.applies else math.inf, spread


def _rims(w: Array) -> Array:
    """Two points with <x, w_q> = 1 - eps in random directions for each centre, (k, 2, d)."""
    u = np.random.default_rng(0).normal(size=(len(w), 2, w.shape[-1]))
    u -= (u * w[:, None]).sum(-1, keepdims=True) * w[:, None]
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    return np.asarray((1 - EPS) * w[:, None] + math.sqrt(EPS * (2 - EPS)) * u)


def largest_rate(beta: float) -> float:
    """The lambda up to which T1 < T2, by bisection, for antipodal caps."""

    def excess(log_lam: float) -> float:
        caps = ms.metastable_times(sphere.circle([0.0, np.pi]).x, EPS, beta, N, math.exp(log_lam))
        return caps.log_T1 - caps.log_T2

    return math.exp(brentq(excess, -20.0, 20.0, xtol=1e-13))


def largest_cosine(eps: float) -> float:
    """On a grid of pairs of points of two caps of height 2 eps on the circle, at right angles."""
    rim = math.acos(1 - 2 * eps)
    a = np.linspace(-rim, rim, 401)
    return float((sphere.circle(a).x @ sphere.circle(np.pi / 2 + a).x.mT).max())
