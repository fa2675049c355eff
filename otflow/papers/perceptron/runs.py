"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

import otflow as of
from otflow.papers import perceptron as sp

SPATIAL_OMEGA = 0.3 * np.array([0.8, -0.6, 0.5])
N = 300

A = np.array([[1.0, 0.3], [-0.4, 1.0]])
OMEGA = np.array([0.8, -0.6])
SPATIAL = np.array([[1.0, 0.3, 0.0], [-0.4, 1.0, 0.2], [0.0, -0.3, 1.0]])
Array = np.ndarray


class AtomsCase(NamedTuple):
    """A perceptron of weights c OMEGA."""

    activation: sp.Activation
    c: float

    @property
    def name(self) -> str:
        return f"{type(self.activation).__name__}, c = {self.c:g}"


class Cell(NamedTuple):
    """What descents from several starts ended in."""

    case: AtomsCase
    beta: float
    runs: tuple[sp.Atoms, ...]

    @property
    def counts(self) -> Array:
        return np.array([atoms.n for atoms in self.runs])

    @property
    def arcs(self) -> Array:
        """The longest empty arc of each run."""
        return np.array([sp.empty_arcs(angles(atoms.measure))[0].item() for atoms in self.runs])

    @property
    def constant(self) -> float:
        """C for the weights as they are printed."""
        return sp.perceptron_constant(A, sp.printed_weights(self.beta, self.case.c * OMEGA)).item()


WEAK, STRONG = AtomsCase(sp.ReLU(), 0.05), AtomsCase(sp.ReLU(), 1.0)
CASES = (WEAK, AtomsCase(sp.ReLU(), 0.3), STRONG, AtomsCase(sp.GELU(), 0.3))


def angles(mu: of.Particles) -> torch.Tensor:
    return torch.atan2(mu.x[:, 1], mu.x[:, 0])


def heaviest(cell: Cell) -> float:
    """The largest mass of a cluster of two atoms or more, over the runs; 0 if there is none."""
    width, found = 0.5 / math.sqrt(cell.beta), [0.0]
    for atoms in cell.runs:
        clusters = sp.cluster_masses(angles(atoms.measure), atoms.measure.w, width)
        found += clusters.mass[clusters.size >= 2].tolist()
    return max(found)


def start(seed: int) -> of.Particles:
    """Equispaced for seed -1, else drawn uniformly on the circle."""
    even = 2 * np.pi * np.arange(N) / N
    theta = even if seed < 0 else np.random.default_rng(seed).uniform(0, 2 * np.pi, N)
    return of.Particles(np.stack([np.cos(theta), np.sin(theta)], -1), space=of.Sphere())


def descents(case: AtomsCase, beta: float, starts: int) -> Cell:
    seeds = range(-1, starts - 1)
    runs = [sp.find_atoms(start(s), beta, A, case.c * OMEGA, case.activation) for s in seeds]
    return Cell(case, beta, tuple(runs))


def on_sphere(activation: sp.Activation) -> sp.Atoms:
    """Two hundred particles in three dimensions."""
    x = np.random.default_rng(0).standard_normal((200, 3))
    mu = of.Particles(x / np.linalg.norm(x, axis=1, keepdims=True), space=of.Sphere())
    return sp.find_atoms(mu, 4.0, SPATIAL, SPATIAL_OMEGA, activation)
