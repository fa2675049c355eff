"""First half of the interpolation: clouds that overlap become points, or a few atoms each.

One measure at a time (Geshkovski, Rigollet, Ruiz-Balet 2026, Lemma 3.3): attention with V = alpha alpha^T and
alpha orthogonal to the barycentre of mu^i leaves mu^i where it is and drives all others towards alpha or
-alpha; a gate that only mu^i reaches gathers it; and V = -alpha alpha^T takes the others back where they were.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from otflow.systems.inputs import Array
from otflow.systems.interpolation_builder import Builder, fail, unit
from otflow.systems.interpolation_pieces import Circle, Piece, shifts
from otflow.systems.splitting import gather, split

SPREAD, CAP = 1.2, 1.0  # wider than this about the centre, all clouds are first driven into a cap of radius CAP
ASIDE = 0.25  # how far from the circle of +-alpha others may be while a cloud is cut into atoms
LATEST, GRID = 9.0, 90  # the longest time that attention drives clouds apart, and how finely it is searched
TRIED, SAMPLE = 8, 1000  # directions that are tried in full, and points of a cloud that decide between them
COLINEAR = 0.02  # barycentres at a smaller angle are first driven apart by a gate


# --- to a cap -------------------------------------------------------------------------------------------


def hole(x: Array, rng: np.random.Generator) -> tuple[Array, float]:
    """The centre and the radius of a large ball without points: the best of many directions, improved."""
    centre = unit(np.concatenate([-x.mean(0, keepdims=True), rng.standard_normal((1500, x.shape[1]))]))
    nearest = np.array([np.max(x @ z) for z in centre])
    best = centre[int(nearest.argmin())]
    for scale in 0.3 * 0.85 ** np.arange(30):
        near = unit(best + scale * rng.standard_normal((20, x.shape[1])))
        near = np.concatenate([best[None], near])
        best = near[int((x @ near.T).max(0).argmin())]
    return best, float(np.arccos(np.clip(np.max(x @ best), -1, 1)))


def to_cap(b: Builder, least: float) -> None:
    """Drive everything away from a common hole, w = -omega, if the clouds are spread widely."""
    x = np.concatenate(b.x)
    centre = unit(b.means().sum(0))
    if float(np.min(x @ centre)) > math.cos(SPREAD):
        return
    omega, radius = hole(x, b.rng)
    if radius < least:
        raise fail(
            f"the supports of the sources have no common hole of radius {least:g} (the largest that was found "
            f"has {radius:.3g}), and the construction starts from one; move the sources, or lower least_hole"
        )
    time = math.log(math.tan((math.pi - radius) / 2) / math.tan(CAP / 2))
    if time > 0:
        b.run(Piece(time, -omega, speed=1.0, phase="to a cap"))


# --- colinear barycentres --------------------------------------------------------------------------------


def uncolinear(b: Builder) -> None:
    """Gates on balls where masses differ, until no two barycentres have the same direction (Lemma 3.4)."""
    for _ in range(3):
        if len(b.x) < 2 or _angle(b.means()) > COLINEAR:
            return
        found = max(((_angle_after(b, p), p) for p in _balls(b)), key=lambda pair: pair[0])
        if found[0] <= max(1e-4, _angle(b.means())):
            break
        b.run(found[1])
    if _angle(b.means()) < 1e-3:
        raise fail(
            f"two sources have barycentres at an angle of {_angle(b.means()):.1e}, and no gate on a ball drives "
            "these apart: the sources are too much alike to be told apart by their means"
        )


def _angle(means: Array) -> float:
    """The smallest angle between two directions."""
    e = unit(means)
    i, j = np.triu_indices(len(e), 1)
    return float((2 * np.arcsin(np.clip(np.linalg.norm(e[i] - e[j], axis=1) / 2, 0, 1))).min())


def _angle_after(b: Builder, piece: Piece) -> float:
    moved = [w @ piece.move(x, w) for x, w in zip(b.x, b.w, strict=True)]
    return _angle(np.stack(moved))


def _balls(b: Builder) -> list[Piece]:
    """Gates a = z, c = -cos R about points of the clouds, which gather a ball at its centre, or towards alpha."""
    x = np.concatenate(b.x)
    centres = x[b.rng.choice(len(x), min(len(x), 60), replace=False)]
    return [
        Piece(4.0, unit(z + shift * b.rng.standard_normal(b.d)), speed=1.0, a=z, c=-math.cos(R), phase="balls")
        for z in centres
        for R in (0.25, 0.5, 1.0)
        for shift in (0.0, 0.5)
    ]


# --- one measure at a time ---------------------------------------------------------------------------------


def disentangle(b: Builder, i: int, masses: Array, margin: float, radius: float) -> None:
    """Step i: drive the others aside, gather mu^i in one point (or an atom for each mass), drive them back."""
    before = [x.copy() for x in b.x]
    e = unit(b.means()[i])
    low = float((b.x[i] @ e).min())
    level = low - 2 * margin if len(masses) == 1 else min(low - 2 * margin, ASIDE)
    aside = _aside(b, i, e, level, atoms=len(masses) > 1)
    if aside is not None:
        b.run(aside)
    alpha = None if aside is None else aside.pole
    if len(masses) == 1:
        b.groups[i] = gather(b, i, e, radius)
    else:
        b.groups[i] = split(b, i, e, alpha, masses, radius)
    if aside is not None:
        b.run(aside.reverse(f"restore {i}"))
    others = [np.abs(x - y).max() for j, (x, y) in enumerate(zip(b.x, before, strict=True)) if j != i]
    b.returned.append(float(max(others, default=0.0)))


def _aside(b: Builder, i: int, e: Array, level: float, *, atoms: bool) -> Piece | None:
    """V = alpha alpha^T for the shortest time after which the others are below the level; None if they are."""
    if max((_height(x, e, atoms) for j, x in enumerate(b.x) if j != i), default=-1.0) <= level:
        return None
    means = np.delete(b.means(), i, 0)
    alphas = _across(e, b.rng)
    ranked = alphas[np.argsort(-np.abs(means @ alphas.T).min(0))[:: _stride(len(alphas))][:TRIED]]
    few = [_thin(x, w, b.rng) for j, (x, w) in enumerate(zip(b.x, b.w, strict=True)) if j != i]
    first = min(ranked, key=lambda alpha: _when(few, alpha, e, level, atoms))
    full = [(x, w) for j, (x, w) in enumerate(zip(b.x, b.w, strict=True)) if j != i]
    _, time, height = _when(full, first, e, level, atoms)
    low = float((b.x[i] @ e).min())
    if height >= low - 1e-3:
        raise fail(
            f"source {i} cannot be told from the others by a gate: attention leaves points of another at "
            f"{height:.3g} along its barycentre, where its own lowest has {low:.3g}; sources of smaller "
            "diameter, or barycentres farther apart, are needed"
        )
    return Piece(time, first, gain=1.0, phase=f"disentangle {i}")


class _Aside(NamedTuple):
    """How well a direction drives the others aside; smaller is better."""

    excess: float  # by how much they stay above the level
    time: float
    height: float


def _stride(n: int) -> int:
    """Neighbours among directions are alike: take every so many."""
    return max(1, n // (5 * TRIED))


def _height(x: Array, e: Array, atoms: bool) -> float:
    """max x.e; what is to be cut into atoms needs more room, and never goes without attention."""
    return 1.0 if atoms else float((x @ e).max())


def _across(e: Array, rng: np.random.Generator) -> Array:
    """Directions orthogonal to e: evenly on a half circle for d = 3, else drawn."""
    basis = np.linalg.svd(e[None])[2][1:]
    if len(e) == 3:
        t = np.pi * np.arange(160) / 160
        return np.stack([np.cos(t), np.sin(t)], 1) @ basis
    return unit(rng.standard_normal((600, len(e) - 1))) @ basis


def _thin(x: Array, w: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    if len(x) <= SAMPLE:
        return x, w
    kept = rng.choice(len(x), SAMPLE, replace=False)
    return x[kept], w[kept] / w[kept].sum()


def _when(
    others: list[tuple[Array, Array]], alpha: Array, e: Array, level: float, atoms: bool
) -> _Aside:
    """The first time at which all others are below the level, and how high they are; else the best time."""
    times = LATEST * np.arange(1, GRID + 1) / GRID
    height = np.full(GRID, -1.0)
    for x, w in others:
        path = Circle.of(x, alpha)
        along = np.ones(len(x)) if atoms else path.e @ e
        S = shifts(path.s, w, 1.0, times)
        s = path.s + S[:, None]
        height = np.maximum(height, (along / np.cosh(s)).max(1))
    below = np.flatnonzero(height <= level)
    k = int(below[0]) if len(below) else int(height.argmin())
    return _Aside(max(0.0, float(height[k]) - level), float(times[k]), float(height[k]))
