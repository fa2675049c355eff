"""Second half of the interpolation: points go to their targets one at a time, and the others stay.

One gate on a half-space that has the way of a point in it, and no other point, moves it in one piece (ours).
Where there is none, the others are first gathered in a small ball (Geshkovski, Rigollet, Ruiz-Balet 2026,
Prop. 4.2): gates +-gamma.x > eps/2, with gamma orthogonal to the way, drive them to omega, then a gate that
is open outside of the ball moves the point, and the first gates, turned, put the others back. Where points
wait for each other to leave their targets, one of them is first brought to a free place (ours).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from otflow.base.numbers import Array
from otflow.papers.interpolation.builder import Builder, Indices, fail, unit
from otflow.papers.interpolation.gates import rapidity
from otflow.papers.interpolation.pieces import NEAR, SpherePiece

BALL, TILT = 3 * math.pi / 16, math.pi / 8
INSIDE = BALL - TILT - 0.1  # gathered points come so near to omega_+-
ENOUGH, LEAST = 0.03, 1e-4  # a gate with so much to spare is good; with less than this there is none
WAYPOINTS, NORMALS = 150, 300
ANTIPODAL = 0.2  # |p + y| below which the way from p to y is not tried
HERE, THERE = 1e-12, 0.05  # a point is at its target; it is in the way of one that goes there


class Way(NamedTuple):
    """Pieces that bring a point to its target, and the least that their gates have to spare."""

    margin: float
    pieces: tuple[SpherePiece, ...]


class Job(NamedTuple):
    """Points of a cloud, as one cluster, and where it is to go."""

    source: int
    points: Indices
    target: Array  # (d,)


def match(b: Builder, jobs: list[Job], *, shortcuts: bool) -> None:
    """Bring the clusters to their targets, at each turn the one that can go with most to spare."""
    left, yielding = list(range(len(jobs))), len(jobs)
    while left:
        at = np.stack([_centre(b, job) for job in jobs])
        k, way = _best(at, jobs, left, b.rng, shortcuts)
        arrives = way.margin >= LEAST
        if not arrives and yielding and len(waiting := _in_the_way(at, jobs, left)):
            free, yielding = _free(at, jobs, b.rng), yielding - 1
            k, way = _best(at, [job._replace(target=free) for job in jobs], waiting, b.rng, shortcuts)
        if way.margin < LEAST:
            raise fail(
                "no gate brings any of the clusters to its target without moving another, the best has "
                f"{way.margin:.1e} to spare; move targets[i] apart from each other"
            )
        before = list(b.x)
        for piece in way.pieces:
            b.run(replace(piece, phase=f"{piece.phase} {jobs[k].source}"))
        b.returned.append(_disturbed(b, before, jobs[k]))
        left = [j for j in left if j != k or not arrives]


def _in_the_way(at: Array, jobs: list[Job], left: list[int]) -> list[int]:
    """Clusters that are where another is to go."""
    apart = np.linalg.norm(at[:, None] - np.stack([job.target for job in jobs]), axis=2)
    return [k for k in left if any(j != k and apart[k, j] < THERE for j in left)]


def _free(at: Array, jobs: list[Job], rng: np.random.Generator) -> Array:
    """A place far from all clusters and all targets, the best of some."""
    drawn = unit(rng.standard_normal((WAYPOINTS, at.shape[1])))
    taken = np.concatenate([at, np.stack([job.target for job in jobs])])
    return np.asarray(drawn[(drawn @ taken.T).max(1).argmin()])


def _disturbed(b: Builder, before: list[Array], job: Job) -> float:
    """How far points that were not to move are from where they were."""
    moved = [np.abs(x - y) for x, y in zip(b.x, before, strict=True)]
    moved[job.source] = np.delete(moved[job.source], job.points, 0)
    return max(float(m.max(initial=0.0)) for m in moved)


def _centre(b: Builder, job: Job) -> Array:
    return unit(b.w[job.source][job.points] @ b.x[job.source][job.points])


def _best(
    at: Array, jobs: list[Job], left: list[int], rng: np.random.Generator, shortcuts: bool
) -> tuple[int, Way]:
    """The cluster and the way with most to spare; longer ways only if shorter ones have too little."""
    best = left[0], Way(-1.0, ())
    for kind in (_straight, _bent, _gathered, _gathered_bent)[0 if shortcuts else 2 :]:
        for k in left:
            way = kind(at[k], jobs[k].target, np.delete(at, k, 0), rng)
            if way.margin > best[1].margin:
                best = k, way
        if best[1].margin >= ENOUGH:
            return best
    return best


# --- one gate ------------------------------------------------------------------------------------------


def _straight(p: Array, y: Array, others: Array, rng: np.random.Generator) -> Way:
    """w along the great circle, the gate on the half-space that parts it best from the others."""
    if np.linalg.norm(y - p) < HERE:
        return Way(math.inf, ())
    if np.linalg.norm(y + p) < ANTIPODAL:
        return Way(-1.0, ())
    if not len(others):
        return Way(math.inf, (_along(p, y, None, 1.0, "move"),))
    arc = _arc(p, y)
    a = _parting(arc, others)
    low, high = float((arc @ a).min()), float((others @ a).max())
    gap = low - high
    return Way(gap / 2, () if gap < 2e-4 else (_along(p, y, a, -(low + high) / 2, "move"),))


def _bent(p: Array, y: Array, others: Array, rng: np.random.Generator) -> Way:
    """Two such, by way of a third point."""
    found = Way(-1.0, ())
    for z in unit(rng.standard_normal((WAYPOINTS, len(p)))):
        first = _straight(p, z, others, rng)
        if first.margin > found.margin:
            second = _straight(z, y, others, rng)
            found = max(found, _joined(first, second), key=lambda way: way.margin)
    return found


def _joined(first: Way, second: Way) -> Way:
    return Way(min(first.margin, second.margin), (*first.pieces, *second.pieces))


def _arc(p: Array, y: Array) -> Array:
    """Points of the shorter great circle, (17, d)."""
    t = np.linspace(0, 1, 17)[:, None]
    angle = 2 * math.atan2(np.linalg.norm(y - p), np.linalg.norm(y + p))
    return unit(np.sin((1 - t) * angle) * p + np.sin(t * angle) * y)


def _parting(one: Array, other: Array) -> Array:
    """The unit normal of the hyperplane that parts two sets best: nearest points of their convex hulls."""
    weight = 100.0  # of the two sums that are one
    sums = weight * np.stack([np.r_[np.ones(len(one)), np.zeros(len(other))]] * 2)
    sums[1] = weight - sums[1]
    system = np.vstack([np.hstack([one.T, -other.T]), sums])
    parts = nnls(system, np.r_[np.zeros(one.shape[1]), weight, weight])[0]
    normal = one.T @ parts[: len(one)] - other.T @ parts[len(one) :]
    length = float(np.linalg.norm(normal))
    return unit(one[0] - other[0]) if length < 1e-9 else normal / length


def _along(p: Array, y: Array, a: Array | None, c: float, phase: str) -> SpherePiece:
    """w beyond y on the great circle, half way between p and y at a right angle, until p is at y."""
    pole = unit(y - p)
    piece = SpherePiece(1.0, pole, speed=1.0, a=a, c=c, phase=phase)
    if piece.awkward:
        piece = replace(piece, c=c + 4 * NEAR)
    s = np.array([math.asinh(float(y @ pole) / float(np.linalg.norm(y - (y @ pole) * pole)))])
    return piece.during(float(piece.times(p[None], s)[0]))


# --- gather, corridor, restore -------------------------------------------------------------------------


def _gathered(p: Array, y: Array, others: Array, rng: np.random.Generator) -> Way:
    """Five pieces at most: the others to omega, the point to y, the others back."""
    if np.linalg.norm(y - p) < HERE or np.linalg.norm(y + p) < ANTIPODAL or not len(others):
        return _straight(p, y, others, rng)
    gamma = _normal(p, y, others, rng)
    eps = float(np.abs(others @ gamma).min())
    if eps < 2e-4:
        return Way(eps / 2, ())
    omega = -unit(p + y)
    first = [g for sign in (1, -1) if (g := _towards(omega, sign * gamma, eps, others)) is not None]
    corridor = _along(p, y, -omega, math.cos(BALL), "corridor")
    back = [g.reverse("restore") for g in reversed(first)]
    return Way(min(eps / 2, math.cos(BALL - 0.1) - math.cos(BALL)), (*first, corridor, *back))


def _towards(omega: Array, gamma: Array, eps: float, others: Array) -> SpherePiece | None:
    """w = omega tilted towards gamma, open where gamma.x > eps/2, until what is there is near omega."""
    mine = others[others @ gamma > 0]
    if not len(mine):
        return None
    pole = unit(math.cos(TILT) * omega + math.sin(TILT) * gamma)
    gate = SpherePiece(1.0, pole, speed=1.0, a=gamma, c=-eps / 2, phase="gather others of")
    there = np.arctanh(np.clip(mine @ pole, -1 + 1e-15, 1 - 1e-15))
    return gate.during(float(gate.times(mine, np.maximum(there, rapidity(INSIDE))).max()))


def _normal(p: Array, y: Array, others: Array, rng: np.random.Generator) -> Array:
    """gamma orthogonal to p and y, as far from orthogonal to all others as can be."""
    plane = p[None] if np.linalg.norm(y - p) < 1e-6 else np.stack([p, y])
    basis = np.linalg.svd(plane)[2][len(plane) :]
    drawn = unit(rng.standard_normal((NORMALS, len(basis)))) @ basis if len(basis) > 1 else basis
    return np.asarray(drawn[np.abs(others @ drawn.T).min(0).argmax()])


def _gathered_bent(p: Array, y: Array, others: Array, rng: np.random.Generator) -> Way:
    """The same, twice, by way of a third point."""
    middle = unit(rng.standard_normal((WAYPOINTS, len(p))))
    ways = (_joined(_gathered(p, z, others, rng), _gathered(z, y, others, rng)) for z in middle)
    return max(ways, key=lambda way: way.margin)
