"""Gates on balls: gather a cloud in one point, or cut it into atoms of given masses.

A gate a = z, c = -cos R, w = z is open on the ball B(z, R) and drives what is in it to z, so that a cloud is
torn along the sphere of radius R: points at a distance delta inside it leave like delta exp(t sin^2 R). It
is eq. (B.4) of Geshkovski, Rigollet, Ruiz-Balet 2026 with its signs turned: as printed, U = -1 z^T and
b = cos R, the gate is open outside of the ball.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from otflow.base import checks
from otflow.base.numbers import Array
from otflow.papers.interpolation.builder import Builder, Indices, fail, unit
from otflow.papers.interpolation.endpoints import on_sphere
from otflow.papers.interpolation.pieces import SpherePiece

TIED = 1e-9  # values nearer than this are one: no cut goes between them
OUTERMOST, SHRINK = 25.0, 0.42  # degrees from the middle to the outermost atoms; the next are so much nearer
SMALL = 0.2  # radius of the cloud over the angle to the innermost atoms


def ball(z: Any, R: float, time: float = 1.0, *, towards: Any = None, phase: str = "ball") -> SpherePiece:
    """The gate (x.z - cos R)_+, open on B(z, R), which drives towards z or another point.

    Args:
        z: unit vector (d,); R: angle, in (0, pi); time: how long; towards: unit vector, z if left out.

    >>> import numpy as np
    >>> from otflow.papers.interpolation import ball
    >>> gate = ball([0.0, 0.0, 1.0], 0.5)
    >>> gate.gate(np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])) > 0
    array([ True, False])

    Reference: Geshkovski, Rigollet, Ruiz-Balet 2026, eq. (B.4) with U = 1 z^T, b = -cos R.
    """
    if checks.positive(R, "R") >= math.pi:
        checks.fail("R", R, "the radius of a ball on the sphere is below pi", "pass R=1.0, say")
    centre = on_sphere(z, "z")
    pole = centre if towards is None else on_sphere(towards, "towards")
    if len(pole) != len(centre):
        checks.fail(
            "len(towards)",
            len(pole),
            f"z has {len(centre)} entries",
            "pass a point of the same sphere, or leave towards out",
        )
    time = checks.positive(time, "time")
    return SpherePiece(time, pole, speed=1.0, a=centre, c=-math.cos(R), phase=phase)


def rapidity(radius: float) -> float:
    """That of a point at the given angle from the pole."""
    return math.asinh(1 / math.tan(radius))


def gather(b: Builder, i: int, e: Array, radius: float) -> None:
    """Cluster mu^i within the radius of e; the gate lies half way between mu^i and the rest."""
    _close(b, i, np.arange(len(b.x[i])), e, radius, f"gather {i}")


def split(b: Builder, i: int, e: Array, alpha: Array | None, masses: Array, radius: float) -> list[Indices]:
    """Cluster slices of mu^i, of the given masses, at points of a great circle orthogonal to alpha."""
    m = len(masses)
    phi = _places(m)
    _close(b, i, np.arange(len(b.x[i])), e, SMALL * float(np.abs(phi[:-1]).min()), f"gather {i}")
    across = _widest(b.x[i], e, alpha)
    left, groups = np.arange(len(b.x[i])), []
    for k, (angle, mass) in enumerate(zip(phi[:-1], np.cumsum(masses)[:-1], strict=True)):
        z = math.cos(angle) * e + math.sin(angle) * across
        missing = float(mass - 1 + b.w[i][left].sum())  # what atoms before it lack, or have too much, counts
        top, c = _slice(b.x[i], b.w[i], left, z, missing, i, m - 1 - k)
        _insist(c, _rest(b, i, left) @ z, i)
        _run(b, b.x[i][top], SpherePiece(1.0, z, speed=1.0, a=z, c=-c, phase=f"split {i}"), radius, cut=i)
        groups.append(top)
        left = np.setdiff1d(left, top)
    _close(b, i, left, e, radius, f"split {i}")
    return [*groups, left]


def _places(m: int) -> Array:
    """Angles from e at which atoms gather, outermost first, on both sides in turn, the last at e itself.

    A gate at phi whose edge is near e must not reach the atom before it on the same side, so that angles
    shrink by more than a half.
    """
    k = np.arange(m - 1)
    return np.append(math.radians(OUTERMOST) * SHRINK ** (k // 2) * (-1.0) ** k, 0.0)


def _close(b: Builder, i: int, which: Indices, z: Array, radius: float, phase: str) -> None:
    """A gate at z that some points of mu^i are in and nothing else is, for as long as they need."""
    mine = b.x[i][which]
    low, heights = float((mine @ z).min()), _rest(b, i, which) @ z
    high = float(heights.max(initial=-1.0))
    _insist(low, heights, i)
    if float(np.arccos(np.clip(low, -1, 1))) > radius:
        _run(b, mine, SpherePiece(1.0, z, speed=1.0, a=z, c=-(low + high) / 2, phase=phase), radius)


def _rest(b: Builder, i: int, which: Indices) -> Array:
    """All points but some of mu^i, (n, d)."""
    return np.concatenate([np.delete(x, which, 0) if j == i else x for j, x in enumerate(b.x)])


def _insist(low: float, heights: Array, i: int) -> None:
    """The edge of a gate, or the lowest point that is to be in it, must be above all that is not."""
    high = float(heights.max(initial=-1.0))
    if high >= low - 1e-6:
        raise fail(
            f"source {i}: no gate parts what is to be gathered from the rest ({low:.3g} and {high:.3g}); "
            "sources of smaller diameter can be gathered: pass Particles(...) nearer to one point each"
        )


def _run(b: Builder, mine: Array, gate: SpherePiece, radius: float, cut: int | None = None) -> None:
    """The gate, until what is in it is within the radius of its pole."""
    aim = np.maximum(rapidity(radius), np.arctanh(np.clip(mine @ gate.pole, -1 + 1e-15, 1 - 1e-15)))
    b.run(gate.during(float(gate.times(mine, aim).max())), cut)


def _widest(x: Array, e: Array, alpha: Array | None) -> Array:
    """The direction orthogonal to e and alpha in which the cloud is widest."""
    normal = e[None] if alpha is None else np.stack([e, alpha])
    basis = np.linalg.svd(normal)[2][len(normal) :]
    y = (x - x.mean(0)) @ basis.T
    return unit(np.linalg.svd(y, full_matrices=False)[2][0] @ basis)


def _slice(
    x: Array, w: Array, left: Indices, z: Array, mass: float, i: int, later: int
) -> tuple[Indices, float]:
    """Those of the points left that are highest along z, of about the mass, and the height of the cut.

    Points remain for each of the atoms that come later.
    """
    height = x[left] @ z
    order = np.argsort(-height, kind="stable")
    h, total = height[order], np.cumsum(w[left][order])
    cuts = np.flatnonzero(h[:-1] - h[1:] > TIED)
    cuts = cuts[: max(0, len(cuts) - later + 1)]
    if not len(cuts):
        raise fail(
            f"source {i} has too few distinct points to be cut into the atoms of its target; pass a target "
            "of fewer atoms, or a source of more distinct points"
        )
    k = int(cuts[np.abs(total[cuts] - mass).argmin()])
    return left[order[: k + 1]], float(h[k] + h[k + 1]) / 2
