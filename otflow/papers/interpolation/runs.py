"""Runs that the claims and the pictures of `interpolation` look at."""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

import otflow as of
from otflow.papers import interpolation as it

Array = np.ndarray
Counts: TypeAlias = dict[tuple[int, int], list[tuple[int, int, float]]]


def unit(x: Array) -> Array:
    """x / |x|."""
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


CENTRES = np.array([[0.25, 0.0, 1.0], [-0.2, 0.25, 1.0], [-0.1, -0.3, 1.0]])
TARGETS = unit(np.array([[-0.3, -0.95, 0.0], [0.95, 0.25, 0.1], [0.5, -0.75, -0.45]]))
MASSES = np.array([0.5, 0.3, 0.2])
RADIUS, TOL = 0.6, 1e-3


class InterpolationRuns(NamedTuple):
    """The paths that were built, and what they were built on."""

    clouds: list[of.Particles]
    path: it.Path  # with shortcuts
    paper: it.Path  # gather, corridor, restore
    atoms: it.Path
    targets: list[of.Particles]  # of the atoms
    large: it.Path  # built on many points
    fresh: list[of.Particles]  # other samples of the same laws, as many points


def ball(n: int, centre: Array, rng: np.random.Generator) -> of.Particles:
    """Points of a ball on the sphere, uniform in its tangent space."""
    basis = np.linalg.svd(centre[None])[2][1:]
    r = RADIUS * rng.uniform(size=(n, 1)) ** (1 / len(basis))
    y = unit(rng.standard_normal((n, len(basis)))) @ basis
    return of.Particles(np.cos(r) * centre + np.sin(r) * y, space=of.Sphere())


def clouds(n: int, seed: int) -> list[of.Particles]:
    """Three balls that overlap."""
    rng = np.random.default_rng(seed)
    return [ball(n, c, rng) for c in unit(CENTRES)]


def build(many: int) -> InterpolationRuns:
    """To points from 60 points each, to points and to three measures of three atoms from many."""
    small, large, fresh = clouds(60, 0), clouds(many, 1), clouds(many, 2)
    places = unit(np.random.default_rng(4).standard_normal((3, 3, 3)))
    targets = [of.Particles(atoms, w=MASSES, space=of.Sphere()) for atoms in places]
    path, paper = (it.interpolate(small, TARGETS, tol=TOL, shortcuts=s) for s in (True, False))
    atoms, points = (it.interpolate(large, aims, tol=TOL) for aims in (targets, TARGETS))
    return InterpolationRuns(small, path, paper, atoms, targets, points, fresh)


def pieces_against_N(Ns: tuple[int, ...], seeds: int) -> Counts:
    """(d, N) -> pieces of both kinds of paths and the largest error, for each seed."""
    return {(d, N): [_counted(d, N, seed) for seed in range(seeds)] for d in (3, 4) for N in Ns}


def _counted(d: int, N: int, seed: int) -> tuple[int, int, float]:
    rng = np.random.default_rng([d, N, seed])
    base, centres = unit(rng.standard_normal(d)), np.empty((0, d))
    while len(centres) < N:  # clouds overlap, but their barycentres are not too near to each other
        c = unit(base + 0.45 * rng.standard_normal(d))
        if not len(centres) or float((centres @ c).max()) < math.cos(0.25):
            centres = np.vstack([centres, c])
    sources = [ball(40, c, rng) for c in centres]
    targets = unit(rng.standard_normal((N, d)))
    try:
        one, other = (it.interpolate(sources, targets, tol=TOL, shortcuts=s) for s in (True, False))
    except of.errors.ConvergenceError:
        return 0, 0, math.inf
    return len(one.pieces), len(other.pieces), max(one.errors.max(), other.errors.max())


# --- what is read off them -----------------------------------------------------------------------------


def apart(points: Array) -> float:
    """The least distance between two of the points."""
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(points, 2))


def away(path: it.Path, mus: list[of.Particles]) -> float:
    """The largest angle to its target of any point at the end of the path."""
    ends = zip(map(path, mus), torch.from_numpy(TARGETS), strict=True)
    return max(mu.space.pairwise(mu.x, y[None]).max().item() for mu, y in ends)


def off_the_flow(runs: InterpolationRuns) -> float:
    """The largest angle between closed forms and `flow`, for twenty points of a cloud."""
    mu, T = of.Particles(runs.clouds[0].x[:20], space=of.Sphere()), float(runs.path.edges[-1])
    end = of.flow(mu, runs.path.field, of.Dopri5(1e-9, 1e-11), t1=T, save_at=[T])
    return float(mu.space.distance(end.final.coords[0], runs.path(mu).x).max())


def shared_point(runs: InterpolationRuns) -> tuple[Array, Array]:
    """Where the middle of the clouds ends as a point of each: along the path, and by its gates alone."""
    shared = unit(CENTRES.sum(0))[None]
    ends, alone = [], []
    for mu in runs.clouds:
        x, w = np.vstack([mu.x.numpy(), shared]), np.append(np.full(mu.n, 1 / mu.n), 0.0)
        # A grain without mass feels the cloud it is in, and leaves its mean as it is.
        ends.append(runs.path(of.Particles(x, w=w, space=of.Sphere())).x[-1].numpy())
        for gate in (piece for piece in runs.path.pieces if piece.gain == 0):
            x = gate.move(x, np.full(len(x), 1 / len(x)))
        alone.append(x[-1])
    return np.stack(ends), np.stack(alone)


def masses(mu: of.Particles, nu: of.Particles) -> Array:
    """What is nearest to each atom of nu."""
    nearest = mu.space.pairwise(mu.x, nu.x).argmin(1).numpy()
    return np.bincount(nearest, weights=mu.w.numpy(), minlength=nu.n)


def mass_error(n: int) -> Array:
    """The standard errors of masses by cuts at quantiles of one sample of n points, measured in another."""
    return np.asarray(np.sqrt(2 * MASSES * (1 - MASSES) / n))


def inside_of_moved() -> float:
    """Of the points that a gate on a ball moves, the share in the ball."""
    z, R = np.array([0.0, 0.0, 1.0]), 0.7
    x = unit(np.random.default_rng(0).standard_normal((4000, 3)))
    gate = it.ball(z, R, towards=unit(np.array([1.0, 0.0, 1.0])))
    moved = np.linalg.norm(gate.move(x, np.full(len(x), 1 / len(x))) - x, axis=1) > 0
    return float((np.arccos(x @ z) < R)[moved].mean())
