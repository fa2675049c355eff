"""The path of a measure-to-measure interpolation: built piece by piece, replayed, and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree

from otflow.base import checks
from otflow.base.errors import ConvergenceError
from otflow.base.numbers import Array
from otflow.fields import VelocityField
from otflow.measures import Particles
from otflow.papers.interpolation.builder import Builder, unit
from otflow.papers.interpolation.disentangle import carve, disentangle, to_cap, uncolinear
from otflow.papers.interpolation.endpoints import Target, dimension, same, sources_of, targets_of
from otflow.papers.interpolation.gates import ball, rapidity
from otflow.papers.interpolation.matching import Job, match
from otflow.papers.interpolation.pieces import SpherePiece, as_field

FINER = (1 / 30, 1 / 1000, 1 / 30000)  # radii of clusters over tol that are tried in turn
LARGEST = 0.1  # the tolerance
SMALL = 0.02  # radius of the clusters that are then cut into atoms
STAGE = 0.3  # clusters with one target come so near to it before they are gathered there


class Frames(NamedTuple):
    """A measure along a path: times, phases and measures, one for each frame."""

    times: tuple[float, ...]
    phases: tuple[str, ...]
    measures: tuple[Particles, ...]


class Path:
    """A piecewise constant theta(t); ``path(mu)`` moves the measure mu along all of it.

    Attributes:
        pieces: a `Piece` for each constant part: `time`, `V`, `w`, `a`, `c`, `phase` and `margin`.
        errors: for each source, the largest angle between its points and the nearest atom of its target
            after a replay.
        masses: for each source, the masses that ended nearest to the atoms of its target.
        mass_errors: for each source, the largest difference of these to the masses asked for.
        returned: for each step (a measure disentangled or cut, a cluster brought to its target), how far it
            left all others from where they were.
        disjoint: the least distance between points of different sources after disentangling.
        status: "ok", or "uncertified" if an error is above tol, or none was measured: the path is a part.
    """

    def __init__(self, pieces: Sequence[SpherePiece], targets: Sequence[Target], tol: float) -> None:
        self.pieces, self.tol = tuple(pieces), tol
        self._targets = tuple(targets)
        self.errors = self.mass_errors = np.zeros(0)
        self.masses: tuple[Array, ...] = ()
        self.returned = np.zeros(0)
        self.disjoint = math.inf

    @property
    def d(self) -> int:
        """Dimension of the space around the sphere."""
        return int(self._targets[0].x.shape[1])

    @property
    def edges(self) -> Array:
        """Times at which pieces begin and end, one more than pieces."""
        return np.concatenate([[0.0], np.cumsum([piece.time for piece in self.pieces])])

    @property
    def switches(self) -> tuple[float, ...]:
        """Times at which theta jumps."""
        return tuple(self.edges[1:-1].tolist())

    @property
    def margins(self) -> Array:
        """min |a.x + c| over the sources as a gate begins, one that it cuts left out; inf if always open."""
        return np.array([piece.margin for piece in self.pieces])

    @property
    def status(self) -> str:
        good = len(self.errors) > 0 and bool((self.errors <= self.tol).all())
        return "ok" if good else "uncertified"

    @property
    def field(self) -> VelocityField:
        """V(t) E_mu[x] + w(t) (a(t).x + c(t))_+ for `flow`, whose steps end where it jumps."""
        rest = SpherePiece(1.0, np.eye(self.d)[0], phase="rest")  # a path without pieces moves nothing
        return as_field(list(self.pieces) or [rest])

    def __call__(self, mu: Particles) -> Particles:
        """The measure at the end of the path, in closed form piece by piece."""
        return self._moved(self._admit(mu), self.pieces)

    def trajectory(self, mu: Particles, frames: int = 1) -> Frames:
        """The measure at the beginning, and at so many equal times of each piece.

        Args:
            mu: on the sphere, without batch axes.
            frames: for each piece, >= 1; its end is the last of them.
        """
        frames = checks.count(frames, "frames")
        times, phases, measures = [0.0], ["start"], [self._admit(mu)]
        for short in (piece.during(piece.time / frames) for piece in self.pieces for _ in range(frames)):
            times.append(times[-1] + short.time)
            phases.append(short.phase)
            measures.append(self._moved(measures[-1], (short,)))
        return Frames(tuple(times), tuple(phases), tuple(measures))

    def __repr__(self) -> str:
        worst = f"{self.errors.max():.2g}" if len(self.errors) else "?"
        return (
            f"Path({len(self._targets)} measures, d={self.d}, {len(self.pieces)} pieces, largest error "
            f"{worst}, status={self.status!r})"
        )

    def _admit(self, mu: Particles) -> Particles:
        mu = dimension(mu, "mu")
        if mu.d != self.d:
            checks.fail("mu.d", mu.d, f"the path was built for d = {self.d}", "pass a measure there")
        return mu

    def _moved(self, mu: Particles, pieces: Sequence[SpherePiece]) -> Particles:
        x, w = mu.x.detach().cpu().numpy(), mu.w.detach().cpu().numpy()
        for piece in pieces:
            x = piece.move(x, w)
        return mu.at([torch.from_numpy(x)])

    def _measure(self, sources: Sequence[Particles]) -> None:
        """Run the path on the sources themselves and note where they end."""
        found = [t.nearest(self(mu)) for mu, t in zip(sources, self._targets, strict=True)]
        self.errors = np.array([error for error, _ in found])
        self.masses = tuple(mass for _, mass in found)
        off = [np.abs(mass - t.w).max() for mass, t in zip(self.masses, self._targets, strict=True)]
        self.mass_errors = np.array(off)


def interpolate(
    sources: Sequence[Particles],
    targets: Any,
    *,
    tol: float = 1e-3,
    margin: float = 0.1,
    least_hole: float = 0.1,
    shortcuts: bool = True,
    rng: int | np.random.Generator = 0,
) -> Path:
    """One theta(t), piecewise constant, whose flow takes every source within tol of its target.

    Args:
        sources: N measures, `Particles` on `Sphere()` in R^d, d >= 3, of any sizes and weights.
        targets: N points on the sphere, (N, d), or a list of points and measures of few atoms.
        tol: bound on `errors`, angles in radians that remain between points and their atoms, at most 0.1;
            targets nearer to each other than half of it count as one.
        margin: how far from the edge of a gate points are to be while measures are disentangled, where this
            can be had; a path with large margins also serves fresh samples of the same laws.
        least_hole: radius of the smallest hole in the supports that counts as one.
        shortcuts: False brings points to their targets as Prop. 4.2 does, with five pieces each or more,
            also where one or two gates are enough.
        rng: a seed or a `numpy.random.Generator`, for the directions that are tried.

    A target of M atoms needs a source that can be cut: masses come as near as its points allow, and are
    reported. Sources alike in all points cannot have different targets. `ConvergenceError` says which step
    failed; if all went well but errors are above tol, it carries the path.

    >>> from otflow.papers.interpolation import interpolate
    >>> import otflow as of
    >>> clouds = [of.Particles([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0]], space=of.Sphere()),
    ...           of.Particles([[1.0, 0.0, 0.0], [0.8, 0.0, 0.6]], space=of.Sphere())]
    >>> path = interpolate(clouds, [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> path(clouds[0]).x.round(decimals=2) + 0.0  # both points, though one is also in the other cloud
    tensor([[0., 1., 0.],
            [0., 1., 0.]], dtype=torch.float64)

    Reference: Geshkovski, Rigollet, Ruiz-Balet 2026, arXiv 2411.04551v3, Theorems 1.1 and 1.2.
    """
    mus = sources_of(sources)
    aims = targets_of(targets, mus)
    tol, margin = checks.positive(tol, "tol"), checks.positive(margin, "margin")
    if tol > LARGEST:
        checks.fail("tol", tol, f"at most {LARGEST:g} is needed, an angle", f"pass tol={LARGEST:g} or less")
    least_hole, seed = checks.positive(least_hole, "least_hole"), checks.generator(rng)
    checks.instance(shortcuts, bool, "shortcuts")
    chosen = same(mus, aims)
    for finer in FINER:
        b = _builder([mus[i] for i in chosen], seed)
        radius = min(finer * tol, SMALL / 2)
        plan = BuildPlan([aims[i] for i in chosen], radius, tol / 2, margin, least_hole, shortcuts)
        try:
            apart = _build(b, plan)
        except ConvergenceError as error:
            raise ConvergenceError(f"{error}.", Path(b.pieces, aims, tol)) from None
        path = Path(b.pieces, aims, tol)
        path.returned, path.disjoint = np.array(b.returned), apart
        path._measure(mus)
        if path.status == "ok":
            return path
    raise ConvergenceError(f"{path!r}: errors {path.errors} are above tol = {tol:g}; raise tol.", path)


class BuildPlan(NamedTuple):
    """What is to be built."""

    aims: list[Target]
    radius: float  # of the clusters
    near: float  # targets at a smaller distance are one
    margin: float
    least_hole: float
    shortcuts: bool


def _builder(mus: list[Particles], rng: np.random.Generator) -> Builder:
    """The clouds, without points that have no mass."""
    pairs = [(mu.x.numpy(), mu.w.numpy()) for mu in mus]
    return Builder([x[w > 0] for x, w in pairs], [w[w > 0] for _, w in pairs], rng)


def _build(b: Builder, plan: BuildPlan) -> float:
    """All pieces; returned is how far apart the sources are once they are disentangled."""
    to_cap(b, plan.least_hole)
    uncolinear(b)
    for i, aim in enumerate(plan.aims):
        disentangle(b, i, plan.margin, plan.radius if len(aim.w) == 1 else SMALL)
    apart = _apart(b)
    for i, aim in enumerate(plan.aims):
        if len(aim.w) > 1:
            carve(b, i, aim.w, plan.radius)
    _match(b, plan)
    return apart


def _apart(b: Builder) -> float:
    """The least distance between clusters of different sources, from their points."""
    trees = [cKDTree(x) for x in b.x]
    found = [tree.query(y)[0].min() for i, tree in enumerate(trees) for y in b.x[i + 1 :]]
    return float(min(found, default=math.inf))


def _match(b: Builder, plan: BuildPlan) -> None:
    """Bring clusters to their atoms; those that share one come near it first and are gathered there last."""
    pairs = [
        (i, points, y)
        for i, aim in enumerate(plan.aims)
        for points, y in zip(b.groups[i], aim.x, strict=True)
    ]
    ends = np.stack([y for *_, y in pairs])
    shared = _shared(ends, plan.near)
    stages = _stages(ends, shared, b.rng)
    jobs = [Job(i, points, z) for (i, points, _), z in zip(pairs, stages, strict=True)]
    match(b, jobs, shortcuts=plan.shortcuts)
    for mine in shared:
        others = [job for k, job in enumerate(jobs) if k not in mine]
        _join(b, [jobs[k] for k in mine], others, ends[mine[0]], plan.radius)


def _shared(ends: Array, near: float) -> list[list[int]]:
    """Which ends are the same, or nearly so, for each of those that occur more than once."""
    left, found = list(range(len(ends))), []
    while left:
        mine = [k for k in left if np.linalg.norm(ends[k] - ends[left[0]]) <= near]
        left = [k for k in left if k not in mine]
        found += [mine] if len(mine) > 1 else []
    return found


def _stages(ends: Array, shared: list[list[int]], rng: np.random.Generator) -> Array:
    """For each end itself, or a place of its own near it if it is shared."""
    stages = ends.copy()
    for mine in shared:
        y, others = ends[mine[0]], np.delete(ends, mine, 0)
        nearest = float(np.linalg.norm(others - y, axis=1).min()) if len(others) else 2.0
        r = min(STAGE, 0.4 * nearest)
        plane = np.linalg.svd(y[None])[2][1:3]
        t = 2 * np.pi * np.arange(len(mine)) / len(mine) + float(rng.uniform(0, 6))
        stages[mine] = math.cos(r) * y + math.sin(r) * np.stack([np.cos(t), np.sin(t)], 1) @ plane
    return unit(stages)


def _join(b: Builder, mine: list[Job], rest: list[Job], y: Array, radius: float) -> None:
    """One ball about a target that is shared, for as long as its clusters need."""
    x = np.concatenate([b.x[job.source][job.points] for job in mine])
    away = [float((b.x[job.source][job.points] @ y).max()) for job in rest]
    low, high = float((x @ y).min()), max(away, default=-1.0)
    gate = ball(y, math.acos((low + high) / 2), phase="join")
    aim = np.full(len(x), rapidity(radius))
    b.run(gate.during(float(gate.times(x, aim).max())))
