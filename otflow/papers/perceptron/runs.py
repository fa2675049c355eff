"""Runs that the claims and the pictures of this room look at: descents of many particles to a few atoms."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

import otflow as of
from otflow.papers import perceptron as sp
from otflow.papers.tokens import sphere

N = 300  # particles on the circle
# Two neurons in the plane and three in space, in general position, with weights of both signs.
A, OMEGA = np.array([[1.0, 0.3], [-0.4, 1.0]]), np.array([0.8, -0.6])
SPATIAL = np.array([[1.0, 0.3, 0.0], [-0.4, 1.0, 0.2], [0.0, -0.3, 1.0]])
SPATIAL_OMEGA = 0.3 * np.array([0.8, -0.6, 0.5])
Array = np.ndarray


class AtomsCase(NamedTuple):
    """A perceptron of weights c OMEGA."""

    activation: sp.Activation
    c: float

    @property
    def name(self) -> str:
        """What claims and pictures call it."""
        return f"{type(self.activation).__name__}, c = {self.c:g}"


WEAK, STRONG = AtomsCase(sp.ReLU(), 0.05), AtomsCase(sp.ReLU(), 1.0)
CASES = (WEAK, AtomsCase(sp.ReLU(), 0.3), STRONG, AtomsCase(sp.GELU(), 0.3))


class Cell(NamedTuple):
    """What descents from several starts ended in."""

    case: AtomsCase
    beta: float
    runs: tuple[sp.Atoms, ...]

    @property
    def counts(self) -> Array:
        """The number of atoms of each run."""
        return np.array([atoms.n for atoms in self.runs])

    @property
    def arcs(self) -> Array:
        """The longest empty arc of each run."""
        return np.array([longest_arc(atoms) for atoms in self.runs])

    @property
    def constant(self) -> float:
        """C for the weights as they are printed."""
        return sp.perceptron_constant(A, sp.printed_weights(self.beta, self.case.c * OMEGA)).item()

    @property
    def heaviest(self) -> float:
        """The largest mass of a cluster of two atoms or more, over the runs; 0 if there is none."""
        clouds, width = [atoms.measure for atoms in self.runs], 0.5 / math.sqrt(self.beta)
        found = [sp.cluster_masses(sphere.angles(mu), mu.w, width) for mu in clouds]
        return float(max([0.0, *(mass for one in found for mass in one.mass[one.size >= 2])]))

    @property
    def stability(self) -> tuple[float, float]:
        """The least eigenvalues of the Hessian, and of Hess dE/dmu at atoms of several particles."""
        weights, clouds = (
            (A, self.case.c * OMEGA, self.case.activation),
            [atoms.measure for atoms in self.runs],
        )
        second = [sp.second_variation(mu, self.beta, *weights) for mu in clouds]
        several = [s.splitting[mu.w > 1.5 / N].min() for s, mu in zip(second, clouds, strict=True)]
        return min(s.least.item() for s in second), min(several).item()


def longest_arc(atoms: sp.Atoms) -> float:
    """The longest arc of the circle without atoms."""
    return sp.empty_arcs(sphere.angles(atoms.measure))[0].item()


def on_circle(theta: Any) -> of.Particles:
    """Particles at the angles theta (*batch, n)."""
    return of.Particles(np.stack([np.cos(theta), np.sin(theta)], -1), space=of.Sphere())


def start(seed: int) -> of.Particles:
    """Equispaced for seed -1, else drawn uniformly on the circle."""
    even = 2 * np.pi * np.arange(N) / N
    return on_circle(even if seed < 0 else np.random.default_rng(seed).uniform(0, 2 * np.pi, N))


def descents(case: AtomsCase, beta: float, starts: int) -> Cell:
    """From equispaced particles, and from starts - 1 random ones."""
    weights = A, case.c * OMEGA, case.activation
    return Cell(
        case, beta, tuple(sp.find_atoms(start(s - 1), beta, *weights, max_iter=20_000) for s in range(starts))
    )


def on_sphere(activation: sp.Activation) -> sp.Atoms:
    """Two hundred particles in three dimensions."""
    return sp.find_atoms(
        sphere.uniform(200, 3, rng=0), 4.0, SPATIAL, SPATIAL_OMEGA, activation, max_iter=20_000
    )


def ascended(beta: float = 1.0) -> tuple[float, float, float]:
    """Ascent, on which tokens attract: their diameter and energy at the end, and the best of all Diracs."""
    E, field = sp.energy(beta, A, OMEGA), sp.ascent(beta, A, OMEGA)
    tokens = on_circle(np.random.default_rng(2).uniform(0, 2 * np.pi, 24))
    end = of.flow(tokens, field, of.Dopri5(), t1=60.0, save_at=[0.0, 60.0]).final
    diracs = E(on_circle(2 * np.pi * np.arange(3600)[:, None] / 3600))
    return of.observables.diameter(end).item(), E(end).item(), diracs.max().item()


def antipodal_cluster() -> float:
    """The largest beta at which two antipodal atoms, without perceptron, are one second-order cluster."""
    mu = of.Particles([[1.0, 0.0], [-1.0, 0.0]], space=of.Sphere())

    def room(beta: float) -> float:
        """> 0 while they are second-order and within the distance."""
        second = sp.second_variation(mu, beta, A, 0 * OMEGA).least.item() > -1e-12
        still = sp.residual(mu, beta, A, 0 * OMEGA).item() < 1e-12
        return 0.5 / math.sqrt(beta) - of.observables.diameter(mu).item() if second and still else -1.0

    return float(brentq(room, 1e-3, 1.0))
