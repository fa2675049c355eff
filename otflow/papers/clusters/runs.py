"""Runs that the claims and the pictures of this room look at: clouds with Q = K = I and several V."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.papers import clusters
from otflow.reproduce.frame import Frame

LONG = 12.0  # near the horizon of float64 for V = I
# The value matrix of the figures for Theorem 4.2, and one whose leading eigenvalue is double.
PUBLISHED = torch.tensor([[0.64709742, 0.81911926], [0.61210449, 0.63263484]], dtype=torch.float64)
DOUBLE = torch.diag(torch.tensor([1.0, 1.0, -0.1], dtype=torch.float64))
Array = np.ndarray


def eye(d: int) -> Tensor:
    """The identity matrix, in float64."""
    return torch.eye(d, dtype=torch.float64)


class ClusterRun(NamedTuple):
    """A run of some clouds with Q = K = I: positions (T, B, n, d), attention matrices (T, B, n, n)."""

    ts: Array
    z: Tensor
    P: Tensor
    V: Tensor

    @property
    def leaders(self) -> Tensor:
        """Who is attended to at the end, (B, n)."""
        return clusters.leaders(self.P[-1])

    @property
    def rank(self) -> Tensor:
        """The rank of every attention matrix, (T, B)."""
        return clusters.rank(self.P)

    @property
    def violations(self) -> Array:
        """max_i (max_v z_i.v - |z_i|^2) against the leaders of the end, (T, B)."""
        ends = [self.z[-1, b, led] for b, led in enumerate(self.leaders)]
        own = [clusters.violation(self.z[:, b], v, eye(2)).amax(-1).numpy() for b, v in enumerate(ends)]
        return np.stack(own, 1)

    def limits(self, basis: Tensor) -> list[tuple[Tensor, clusters.Polytope, Tensor]]:
        """Of every cloud in the given coordinates: last positions, the hull K of its leaders, its set S."""
        ends = [z @ basis for z in self.z[-1]]
        hulls = [clusters.hull(y[led]) for y, led in zip(ends, self.leaders, strict=True)]
        sets = [clusters.limit_set(K.vertices, eye(basis.shape[1])) for K in hulls]
        return list(zip(ends, hulls, sets, strict=True))


def case(x: Array, V: Tensor, ts: Array, stepper: of.Stepper | None = None) -> ClusterRun:
    """Clouds x (B, n, d), and their attention matrices, at the times ts."""
    one = eye(len(V))
    traj = clusters.run(x, one, one, V, t1=float(ts[-1]), save_at=ts, stepper=stepper)
    P = of.observables.along(traj, lambda t, mu: clusters.attention_matrix(t, mu, one, one, V))
    return ClusterRun(ts, traj.stacked.coords[0], P, V)


def cases(frame: Frame) -> dict[str, ClusterRun]:
    """On a line, in the plane, for the published V, for a double eigenvalue, and in eighty dimensions."""
    seeds, m = frame.size((3, 10), (12, 20))
    table = {
        "line": (0.0, 12, seeds, eye(1), LONG),
        "plane": (0.1, 40, seeds, eye(2), LONG),
        "hyperplanes": (0.3, 20, seeds, PUBLISHED, 9.0),
        "prism": (0.45, 40, frame.size(1, 4), DOUBLE, LONG),
    }
    out = {}
    for name, (share, n, clouds, V, end) in table.items():
        frame.stage(share, name)
        out[name] = case(boxes(n, len(V), clouds), V, times(end, m))
    frame.stage(0.6, "eighty dimensions")
    return out | {"deep": eighty(*frame.size((1, of.Dopri5(1e-3, 1e-5)), (3, of.Dopri5(1e-5, 1e-7))))}


def times(end: float, m: int) -> Array:
    """Twice as many save times until t = 2, when most happens, as afterwards."""
    return np.concatenate([np.linspace(0, 2, 2 * m, endpoint=False), np.linspace(2, end, m + 1)])


def boxes(n: int, d: int, seeds: int) -> Array:
    """Clouds of n tokens drawn in the cube [-5, 5]^d."""
    return np.stack([np.random.default_rng(5 + seed).uniform(-5, 5, (n, d)) for seed in range(seeds)])


def eighty(seeds: int, stepper: of.Stepper) -> ClusterRun:
    """Forty tokens in eighty dimensions; V = M M^T with independent entries, scaled to the norm one."""
    rng = np.random.default_rng(0)
    M = rng.uniform(-1, 1, (80, 80))
    V = torch.from_numpy(M @ M.T / np.linalg.norm(M, 2) ** 2)
    return case(rng.uniform(-1, 1, (seeds, 40, 80)), (V + V.mT) / 2, np.linspace(0, 11, 23), stepper)


def repelled(seeds: int) -> of.Trajectory:
    """Tokens in the plane under V = -I."""
    field, save_at = of.SoftmaxAttention(eye(2), eye(2), -eye(2)), [0.0, *np.geomspace(0.1, 2000, 60)]
    start = of.Particles(boxes(20, 2, seeds))
    return of.flow(start, field, of.Dopri5(1e-6, 1e-9), t1=2000.0, save_at=save_at)


def spectra(fall: of.Trajectory) -> Tensor:
    """2t times the eigenvalues of the covariance, from the second save time on, (T, B, d)."""
    values = torch.linalg.eigvalsh(of.observables.covariance(fall.stacked))
    out: Tensor = (2 * fall.ts[:, None, None] * values)[1:]
    return out
