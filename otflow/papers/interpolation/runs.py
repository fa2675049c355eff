"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

import otflow as of
from otflow.papers import interpolation as it

CENTRES = np.array([[0.25, 0.0, 1.0], [-0.2, 0.25, 1.0], [-0.1, -0.3, 1.0]])
MASSES = np.array([0.5, 0.3, 0.2])
RADIUS, TOL = 0.6, 1e-3
Array = np.ndarray
AIMS = np.array([[-0.3, -0.95, 0.0], [0.95, 0.25, 0.1], [0.5, -0.75, -0.45]])
TARGETS = AIMS / np.linalg.norm(AIMS, axis=1, keepdims=True)


class InterpolationRuns(NamedTuple):
    """The paths that were built, and what they were built on."""

    clouds: list[of.Particles]
    path: it.Path  # with shortcuts
    paper: it.Path  # gather, corridor, restore
    atoms: it.Path
    targets: list[of.Particles]  # of the atoms
    large: it.Path  # built on many points
    fresh: list[of.Particles]  # other samples of the same laws, as many points


def unit(x: Array) -> Array:
    out: Array = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return out


def ball(n: int, centre: Array, rng: np.random.Generator) -> of.Particles:
    """Points of a ball on the sphere, uniform in its tangent space."""
    basis = np.linalg.svd(centre[None])[2][1:]
    r = RADIUS * rng.uniform(size=(n, 1)) ** (1 / len(basis))
    y = unit(rng.standard_normal((n, len(basis)))) @ basis
    return of.Particles(np.cos(r) * centre + np.sin(r) * y, space=of.Sphere())


def clouds(n: int, seed: int) -> list[of.Particles]:
    rng = np.random.default_rng(seed)
    return [ball(n, c, rng) for c in unit(CENTRES)]


def masses(mu: of.Particles, nu: of.Particles) -> Array:
    """What is nearest to each atom of nu."""
    nearest = mu.space.pairwise(mu.x, nu.x).argmin(1).numpy()
    return np.bincount(nearest, weights=mu.w.numpy(), minlength=nu.n)


def atomic(seed: int = 4) -> list[of.Particles]:
    """Three measures of three atoms."""
    x = unit(np.random.default_rng(seed).standard_normal((3, 3, 3)))
    return [of.Particles(atoms, w=MASSES, space=of.Sphere()) for atoms in x]


def build(many: int) -> InterpolationRuns:
    small, targets = clouds(60, 0), atomic()
    return InterpolationRuns(
        small,
        it.interpolate(small, TARGETS, TOL),
        it.interpolate(small, TARGETS, TOL, shortcuts=False),
        it.interpolate(clouds(many, 1), targets, TOL),
        targets,
        it.interpolate(clouds(many, 1), TARGETS, TOL),
        clouds(many, 2),
    )


def pieces_against_N(Ns: tuple[int, ...], seeds: int) -> dict[tuple[int, int], list[tuple[int, int, float]]]:
    """(d, N) -> pieces of both kinds of paths and the largest error, for each seed."""
    out: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
    for d in (3, 4):
        for N in Ns:
            out[d, N] = [_counted(d, N, seed) for seed in range(seeds)]
    return out


def _counted(d: int, N: int, seed: int) -> tuple[int, int, float]:
    rng = np.random.default_rng([d, N, seed])
    base, centres = unit(rng.standard_normal(d)), np.empty((0, d))
    while len(centres) < N:
        c = unit(base + 0.45 * rng.standard_normal(d))
        if not len(centres) or float((centres @ c).max()) < math.cos(0.25):
            centres = np.vstack([centres, c])
    sources = [ball(40, c, rng) for c in centres]
    targets = unit(rng.standard_normal((N, d)))
    try:
        both = [it.interpolate(sources, targets, TOL, shortcuts=s) for s in (True, False)]
    except of.ConvergenceError:
        return 0, 0, math.inf
    return len(both[0].pieces), len(both[1].pieces), max(float(p.errors.max()) for p in both)


def away(mu: of.Particles, y: Array) -> float:
    """The largest angle between points and the nearest of the places y (M, d)."""
    return float(mu.space.pairwise(mu.x, torch.from_numpy(y)).amin(1).max())
