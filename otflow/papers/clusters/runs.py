"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.dynamics.trajectory import Trajectory
from otflow.papers import clusters

Array = np.ndarray


def eye(d: int) -> Tensor:
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


def spectra(fall: Trajectory) -> Tensor:
    """2t times the eigenvalues of the covariance, from the second save time on, (T, B, d)."""
    values = torch.linalg.eigvalsh(of.observables.covariance(fall.stacked))
    out: Tensor = (2 * fall.ts[:, None, None] * values)[1:]
    return out


def polytopes(c: ClusterRun, basis: Tensor) -> list[tuple[Tensor, clusters.Polytope]]:
    """The last positions of every cloud in the given coordinates, and the hull of its leaders."""
    return [(z @ basis, clusters.hull((z @ basis)[led])) for z, led in zip(c.z[-1], c.leaders, strict=True)]


def violations(c: ClusterRun) -> Array:
    """max_i (max_v z_i.v - |z_i|^2) against the leaders of the end, (T, B)."""
    return np.stack(
        [
            clusters.violation(c.z[:, b], c.z[-1, b, led], eye(2)).amax(-1).numpy()
            for b, led in enumerate(c.leaders)
        ],
        1,
    )


def times(end: float, m: int) -> Array:
    """Twice as many save times until t = 2, when most happens, as afterwards."""
    return np.concatenate([np.linspace(0, 2, 2 * m, endpoint=False), np.linspace(2, end, m + 1)])


def boxes(n: int, d: int, seeds: int) -> Array:
    """Clouds of n tokens drawn in the cube [-5, 5]^d."""
    return np.stack([np.random.default_rng(5 + seed).uniform(-5, 5, (n, d)) for seed in range(seeds)])


def case(x: Array, V: Tensor, ts: Array, stepper: of.Stepper | None = None) -> ClusterRun:
    one = eye(len(V))
    traj = clusters.run(x, one, one, V, t1=float(ts[-1]), save_at=ts, stepper=stepper)
    P = of.observables.along(traj, lambda t, mu: clusters.attention_matrix(t, mu, one, one, V))
    return ClusterRun(ts, traj.stacked.coords[0], P, V)


def eighty(seeds: int, stepper: of.Stepper) -> ClusterRun:
    """Forty tokens in eighty dimensions; V = M M^T with independent entries, scaled to the norm one."""
    rng = np.random.default_rng(0)
    M = rng.uniform(-1, 1, (80, 80))
    V = torch.from_numpy(M @ M.T / np.linalg.norm(M, 2) ** 2)
    return case(rng.uniform(-1, 1, (seeds, 40, 80)), (V + V.mT) / 2, np.linspace(0, 11, 23), stepper)


def repelled(seeds: int) -> Trajectory:
    """Tokens in the plane under V = -I."""
    field = of.SoftmaxAttention(eye(2), eye(2), -eye(2))
    ts = np.geomspace(0.1, 2000, 60)
    start = of.Particles(boxes(20, 2, seeds))
    return of.flow(start, field, of.Dopri5(1e-6, 1e-9), t1=2000.0, save_at=[0.0, *ts])
