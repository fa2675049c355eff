"""First half of the interpolation: clouds that overlap become points, or a few atoms each.

One measure at a time (Geshkovski, Rigollet, Ruiz-Balet 2026, Lemma 3.3): attention with V = alpha alpha^T and
alpha orthogonal to the barycentre of mu^i leaves mu^i where it is and drives all others towards alpha or
-alpha; a gate that only mu^i reaches gathers it; and V = -alpha alpha^T puts the others back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from otflow.base import checks
from otflow.base.numbers import Array
from otflow.papers.interpolation.builder import Builder, fail, unit
from otflow.papers.interpolation.gates import gather, split
from otflow.papers.interpolation.pieces import COARSE, GreatCircle, SpherePiece, shifts

SPREAD, CAP = 1.2, 0.75  # clouds wider than this about the centre are first driven into a cap of radius CAP
ASIDE = 0.7  # how far from +-alpha others may be while a cloud is cut into atoms, as a distance from its line
LATEST, GRID = 9.0, 90  # the longest time that attention drives clouds apart, and how finely it is searched
TRIED, SAMPLE = 8, 1000  # directions that are tried in full, and points of a cloud that decide between them
COLINEAR = 0.02  # barycentres at a smaller angle are first driven apart by a gate


# --- to a cap ------------------------------------------------------------------------------------------


def hole(x: Array, rng: np.random.Generator) -> tuple[Array, float]:
    """The centre and the radius of a large ball without points: the best of many directions, improved."""
    drawn = rng.standard_normal((1500, x.shape[1]))
    drawn[0] -= 1e3 * x.mean(0)
    centre = unit(drawn)
    nearest = np.array([np.max(x @ z) for z in centre])
    best = centre[int(nearest.argmin())]
    for scale in 0.3 * 0.85 ** np.arange(30):
        near = np.vstack([best, unit(best + scale * rng.standard_normal((20, x.shape[1])))])
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
        what, found = "largest hole in the supports of the sources", f"a ball of radius {radius:.3g}"
        rule = f"the construction drives everything away from a common hole of radius {least:g}"
        checks.fail(
            what, found, rule, f"pass least_hole={radius / 2:.3g}, or sources that leave a larger one"
        )
    time = math.log(math.tan((math.pi - radius) / 2) / math.tan(CAP / 2))
    if time > 0:
        b.run(SpherePiece(time, -omega, speed=1.0, phase="to a cap"))


# --- colinear barycentres ------------------------------------------------------------------------------


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
            f"two sources have barycentres at an angle of {_angle(b.means()):.1e}, and no gate on a ball "
            "drives these apart: the sources are too much alike to be told apart by their means; "
            "move points of one of them"
        )


def _angle(means: Array) -> float:
    """The smallest angle between two directions."""
    e = unit(means)
    i, j = np.triu_indices(len(e), 1)
    return float((2 * np.arcsin(np.clip(np.linalg.norm(e[i] - e[j], axis=1) / 2, 0, 1))).min())


def _angle_after(b: Builder, piece: SpherePiece) -> float:
    few = (_thin(x, w, np.random.default_rng(0)) for x, w in zip(b.x, b.w, strict=True))
    return _angle(np.stack([w @ piece.move(x, w) for x, w in few]))


def _balls(b: Builder) -> list[SpherePiece]:
    """Gates a = z, c = -cos R about points of the clouds, which gather a ball at its centre, or elsewhere."""
    x = np.concatenate(b.x)
    centres = x[b.rng.choice(len(x), min(len(x), 60), replace=False)]
    return [
        SpherePiece(
            4.0, unit(z + shift * b.rng.standard_normal(b.d)), speed=1.0, a=z, c=-math.cos(R), phase="balls"
        )
        for z in centres
        for R in (0.25, 0.5, 1.0)
        for shift in (0.0, 0.5)
    ]


# --- one measure at a time -----------------------------------------------------------------------------


def disentangle(b: Builder, i: int, margin: float, radius: float) -> None:
    """Drive the others aside, gather mu^i within the radius of its barycentre, drive the others back."""
    e = unit(b.means()[i])
    level = float((b.x[i] @ e).min()) - 2 * margin
    with _others_aside(b, i, e, level, _across(e, b.rng)) as alpha:
        gather(b, i, e, radius)
    b.alphas[i] = alpha


def carve(b: Builder, i: int, masses: Array, radius: float) -> None:
    """The same, but mu^i, small by now and apart from others, is cut into an atom for each mass.

    The mean of a fresh sample is not quite orthogonal to alpha, and attention shifts the sample along alpha
    by its error, amplified. The cuts are parallel to alpha, so that this changes no mass: the alpha of the
    step before is kept.
    """
    e, old = unit(b.means()[i]), b.alphas[i]
    alphas = _across(e, b.rng)
    if (
        old is not None
        and _when(_others(b, i), mine := unit(old - (old @ e) * e), e, ASIDE, True).excess == 0
    ):
        alphas = mine[None]
    with _others_aside(b, i, e, ASIDE, alphas, atoms=True) as alpha:
        b.groups[i] = split(b, i, e, alpha, masses, radius)


@contextmanager
def _others_aside(
    b: Builder, i: int, e: Array, level: float, alphas: Array, *, atoms: bool = False
) -> Iterator[Array | None]:
    """Attention before and, turned, after: the others come back to where they were."""
    before = list(b.x)
    aside = _aside(b, i, e, level, alphas, atoms=atoms)
    if aside is not None:
        b.run(aside)
    yield None if aside is None else aside.pole
    if aside is not None:
        b.run(aside.reverse(f"restore {i}"))
    others = [np.abs(x - y).max() for j, (x, y) in enumerate(zip(b.x, before, strict=True)) if j != i]
    b.returned.append(float(max(others, default=0.0)))


def _aside(b: Builder, i: int, e: Array, level: float, alphas: Array, *, atoms: bool) -> SpherePiece | None:
    """V = alpha alpha^T for the least time after which the others are below the level; None if they are."""
    others = _others(b, i)
    if not others or (not atoms and max(float((x @ e).max()) for x, _ in others) <= level):
        return None
    means = np.stack([w @ x for x, w in others])
    ranked = alphas[np.argsort(-np.abs(means @ alphas.T).min(0))[:: _stride(len(alphas))][:TRIED]]
    few = [_thin(x, w, b.rng) for x, w in others]
    first = min(ranked, key=lambda alpha: _when(few, alpha, e, level, atoms))
    _, time, height = _when(others, first, e, level, atoms)
    low = float((b.x[i] @ e).min())
    if height >= low - 1e-3:
        raise fail(
            f"source {i} cannot be told from the others by a gate: attention leaves points of another at "
            f"{height:.3g} along its barycentre, where its own lowest has {low:.3g}; pass sources of "
            "smaller diameter, or with barycentres farther apart"
        )
    return SpherePiece(time, first, gain=1.0, phase=f"disentangle {i}")


def _others(b: Builder, i: int) -> list[tuple[Array, Array]]:
    return [(x, w) for j, (x, w) in enumerate(zip(b.x, b.w, strict=True)) if j != i]


class _Aside(NamedTuple):
    """How well a direction drives the others aside; smaller is better."""

    excess: float  # by how much they stay above the level
    time: float
    height: float


def _stride(n: int) -> int:
    """Neighbours among directions are alike: take every so many."""
    return max(1, n // (5 * TRIED))


def _across(e: Array, rng: np.random.Generator) -> Array:
    """Directions orthogonal to e: evenly on a half circle for d = 3, else drawn."""
    basis = np.linalg.svd(e[None])[2][1:]
    if len(e) == 3:
        t = np.pi * np.arange(160) / 160
        drawn = np.stack([np.cos(t), np.sin(t)], 1)
    else:
        drawn = unit(rng.standard_normal((600, len(e) - 1)))
    out: Array = drawn @ basis
    return out


def _thin(x: Array, w: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    if len(x) <= SAMPLE:
        return x, w
    kept = rng.choice(len(x), SAMPLE, replace=False)
    return x[kept], w[kept] / w[kept].sum()


def _when(others: list[tuple[Array, Array]], alpha: Array, e: Array, level: float, atoms: bool) -> _Aside:
    """The first time at which all others are below the level, and how high they are; else the best time."""
    times = LATEST * np.arange(1, GRID + 1) / GRID
    height = np.full(GRID, -1.0)
    for x, w in others:
        path = GreatCircle.of(x, alpha)
        along = np.ones(len(x)) if atoms else path.e @ e
        s = path.s + shifts(path.s, w, 1.0, times, COARSE)[:, None]
        height = np.maximum(height, (along / np.cosh(s)).max(1))
    below = np.flatnonzero(height <= level)
    k = int(below[0]) if len(below) else int(height.argmin())
    return _Aside(max(0.0, float(height[k]) - level), float(times[k]), float(height[k]))
