"""Exact JKO steps of densities on grids, without entropic blur."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from otflow.base import checks, multigrid
from otflow.base.errors import DerivativeError
from otflow.measures import Grid
from otflow.metrics import Wasserstein
from otflow.steppers.jko.base import Move, MovementProblem, minimise
from otflow.steppers.jko.grid.ascent import LATE, OK, STALLED, Ascent, ascend, unit_mass
from otflow.steppers.jko.grid.blurred import BlurredState, blurred, joined, patched
from otflow.steppers.jko.grid.dual import Dual, Point, extend, particles
from otflow.steppers.jko.grid.energy_terms import Terms, split
from otflow.steppers.jko.grid.line import LineDual
from otflow.steppers.jko.grid.spline import Array, Stencil, coefficients

LINE_TOL = 1e-4  # default tolerance on the line, where the dual is exact; chosen
# Default tolerance in the plane: the larger of the first number and of the second over the cells along the
# shorter axis, because a mesh resolves the edge of a support no better; chosen.
PLANE_TOL = (3e-3, 0.4)
COARSE_TOL = 2e-2  # tolerance on coarser meshes, whose answers are only starts; chosen
MAX_ITER = 100  # iterations on one mesh unless the user says; chosen
REACH = 3.0  # cells; if mass goes further, the step is first solved on a coarser mesh; chosen
# A cell whose mass is stretched by more than this, the norm of DS, is cut into more particles, because they
# would land further apart than the splines resolve; chosen: two cells.
SPREAD = 2.0
MOST_PARTS = 8  # particles of a cell along an axis, at most; chosen: 64 in the plane
ROUNDS = 3  # ascents between which cells are cut, at most; chosen
# Part of the mass below which stretched cells are left uncut; chosen: of the order of the tolerance.
LITTLE = 5e-3
# An ascent that stalls above this many times the tolerance is given up, because more particles do not
# bring it there; chosen.
HOPELESS = 15.0
# A density that falls by more than this part of its maximum between two cells counts as discontinuous;
# chosen.
JUMP = 0.25
_REMEDY = "relative error of the step about {:.1e}: smooth the density, raise tol, or refine the grid"


@minimise.register(Grid)
def on_grid(mu: Grid, problem: MovementProblem, start: Any = None) -> Move:
    """min over densities nu of F(nu) + W2(nu, mu)^2 / (2 tau) in one or two dimensions, no flux at the walls.

    F is one internal energy plus potentials and interactions (these linearised at mu). The concave dual of
    Jacobs, Lee and Leger (2021) is climbed in spline potentials by a quasi-Newton method: its Hessian is
    modelled by the elliptic operator U*'' - tau div(rho DT^-1 grad), solved by multigrid. The density is
    nu = (U*)'(c - phi - V), >= 0, with c such that the mass is kept.

    ``tol`` (by default `tolerance`) bounds the relative L2 error of the displacement, estimated by the Newton
    decrement with |u| not counted below a hundredth of a cell; the relative gap int phi d(nu - S_# mu); and
    in the plane the total variation between nu and S_# mu. There splines do not resolve jumps of the density:
    where the climb stalls above tol, the step is the debiased entropic one, and ``blur`` is its variance.

    >>> from otflow import Grid
    >>> from otflow.steppers.jko.base import MovementProblem, minimise
    >>> import numpy as np, otflow as of
    >>> x = (np.arange(64) + 0.5) / 16 - 2
    >>> mu = Grid((np.abs(x) < 0.5) * 1.0, [x])
    >>> move = minimise(mu, MovementProblem(of.PorousMedium(2.0), of.Wasserstein(), 0.05))
    >>> int(move.failed), round(float(move.mu.density.sum() * mu.cell), 12)
    (0, 1.0)
    """
    _admit(mu, problem)
    if len(mu.axes) == 1 or mu.density.shape[: len(mu.batch)].numel() <= 1:
        return _step(mu, problem, start)
    # In the plane climbs differ in length and in kind: one member after the other, so that none sees another.
    flat = mu.at([mu.density.flatten(0, len(mu.batch) - 1)])
    f = start.f if isinstance(start, BlurredState) and len(start.f) == len(flat.density) else None
    moves = [
        _step(flat[k : k + 1], problem, None if f is None else BlurredState(f[k : k + 1]))
        for k in range(len(flat.density))
    ]
    return joined(moves, mu)


def _step(mu: Grid, problem: MovementProblem, start: Any) -> Move:
    level = _level(mu, problem)
    warm = start if isinstance(start, BlurredState) and start.f.shape == level.mass.shape else None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # wild trial steps are rejected
        end, dual = _best(level, mu, problem, warm)
    if len(level.spacing) == 2 and level.jumps():  # steps of less than a cell from a jump are not resolved
        short = end.at.cost < (min(level.spacing) / 2) ** 2
        end = replace(end, failed=np.where(short & (end.failed == OK), STALLED, end.failed))
    rho, p = unit_mass(level.terms, -end.at.f - level.terms.V, mu.cell)
    move = _move(mu, rho, p, end, dual)
    given_up = (end.failed == STALLED) | ((end.failed == LATE) & (problem.max_iter is None))
    return patched(move, mu, problem) if given_up.any() else move


def tolerance(sizes: tuple[int, ...]) -> float:
    """What ``tol`` is on a grid of these sizes unless given.

    >>> from otflow.steppers.jko.grid.exact import tolerance
    >>> tolerance((64,)), tolerance((256, 256)), tolerance((40, 80))
    (0.0001, 0.003, 0.01)
    """
    return LINE_TOL if len(sizes) == 1 else max(PLANE_TOL[0], PLANE_TOL[1] / min(sizes))


def _admit(mu: Grid, problem: MovementProblem) -> None:
    checks.positive(problem.tau, "tau")
    good = isinstance(problem.metric, Wasserstein)
    checks.require(good, "metric", problem.metric, "grids know W2 only", "use Wasserstein()")
    sizes = tuple(mu.density.shape[len(mu.batch) :])
    checks.require(
        len(sizes) <= 2, "mu", mu, "a JKO step on a Grid has one or two dimensions", "use Particles"
    )
    checks.require(
        min(sizes) >= 4, "mu", mu, "splines need at least four cells along each axis", "refine the grid"
    )
    if problem.energy.wants_graph(mu):
        raise DerivativeError("a JKO step on a Grid has no derivative; call it under torch.no_grad().")


@dataclass(frozen=True)
class GridLevel:
    """A step on one mesh: masses of the cells, (members, n_1, .., n_D), and what to reach there."""

    mass: Array
    terms: Terms
    spacing: tuple[float, ...]
    tau: float
    tol: float
    max_iter: int

    def dual(self, parts: NDArray[np.intp], shorter: int = 0, easier: int = 0) -> Dual | LineDual:
        """The dual of a step 2^shorter times as short, with an internal energy 4^easier times as wide."""
        terms = replace(self.terms, internal=self.terms.internal.wider(4.0**easier))
        if len(self.spacing) == 1:
            return LineDual(terms, self.spacing, self.tau / 2**shorter, self.mass)
        return Dual(terms, self.spacing, self.tau / 2**shorter, particles(self.mass, parts))

    def guess(self) -> Array:
        """-U'(mu) - V, the potential of a step of no length, continued into the vacuum."""
        f = -self.terms.internal.inverse(self.mass / math.prod(self.spacing)) - self.terms.V
        return extend(f, self.mass > 1e-9 * self.mass.max(axis=tuple(range(1, f.ndim)), keepdims=True))

    def reach(self, f: Array) -> float:
        """The longest way of mass under the potential f, in cells."""
        ways = [0.0]
        for a, h in enumerate(self.spacing):
            first, last = multigrid.spans(a + 1, f.ndim)
            there = (self.mass[first] > 0) & (self.mass[last] > 0)
            ways.append(float((np.abs(np.diff(f, axis=a + 1)) * there).max()) * self.tau / h**2)
        return max(ways)

    def jumps(self) -> bool:
        """Whether the density of some member falls by a large part of its maximum between two cells."""
        top = self.mass.max(axis=tuple(range(1, self.mass.ndim)), keepdims=True)
        falls = [np.abs(np.diff(self.mass, axis=a)) for a in range(1, self.mass.ndim)]
        return any(bool((fall > JUMP * top).any()) for fall in falls)

    def carry(self, f: Array, easier: int) -> Array:
        """A potential from an internal energy 4^easier times as wide, for one that is four times narrower."""
        V, internal = self.terms.V, self.terms.internal.wider(4.0 ** (easier - 1))
        return -internal.carry(-f - V, 4.0) - V

    def coarser(self) -> GridLevel:
        """The same step on cells twice as wide."""
        terms = Terms(self.terms.internal.wider(4.0), _halved(self.terms.V))
        spacing = tuple(2 * h for h in self.spacing)
        mass = _halved(self.mass) * 2 ** len(spacing)
        return replace(self, mass=mass, terms=terms, spacing=spacing, tol=max(self.tol, COARSE_TOL))


Found = tuple["Ascent", "Dual | LineDual"]


def _best(level: GridLevel, mu: Grid, problem: MovementProblem, warm: BlurredState | None) -> Found:
    """The first ascent that converges, or else the one that comes closest.

    Its start is the potential of the step before; that of a blurred step, which is robust where the density
    jumps or mass goes far; or -U'(mu) - V.
    """

    def plain() -> Found:
        return _solve(level, None)

    def smooth() -> Found:
        f = _from_blur(mu, problem)
        return plain() if f is None else _climb(level, f)

    rough = len(level.spacing) == 2 and level.jumps()
    far = len(level.spacing) == 2 and level.reach(level.guess()) > 1.0
    best = _solve(level, warm) if warm else smooth() if far or rough else plain()
    for attempt in (smooth,) if rough else (smooth, plain) if far else (plain, smooth):
        if not best[0].failed.any():
            break
        best = min(best, attempt(), key=lambda found: float(found[0].residual.max()))
    return best


def _from_blur(mu: Grid, problem: MovementProblem) -> Array | None:
    """-U'(nu) - V for the end nu of a blurred step, brought to the mesh of mu."""
    if (start := blurred(mu, problem)) is None:
        return None
    coarse, end, times = start
    f = replace(_level(coarse, problem), mass=_members(end) * end.cell).guess()
    for _ in range(times):
        f = _doubled(f)
    return f


def _members(mu: Grid) -> Array:
    """Densities (members, n_1, .., n_D) in double precision."""
    sizes = mu.density.shape[len(mu.batch) :]
    return np.asarray(mu.density.detach().to(torch.float64).reshape(-1, *sizes).cpu())


def _level(mu: Grid, problem: MovementProblem) -> GridLevel:
    old = _members(mu)
    terms = split(problem.energy, mu, problem.tau)
    tol = problem.tol or tolerance(old.shape[1:])
    return GridLevel(old * mu.cell, terms, mu.spacing, problem.tau, tol, problem.max_iter or MAX_ITER)


def _solve(level: GridLevel, start: BlurredState | None) -> Found:
    """The ascent from a warm start, or else from -U'(mu) - V.

    Ways of many cells are found on coarser meshes; on the coarsest, a cold start goes along shorter steps.
    """
    f = start.f if start else level.guess()
    parts, done, stages = np.ones(f.shape, dtype=np.intp), 0, []
    if (reach := level.reach(f)) > REACH and _divisible(f.shape):
        rough, _ = _solve(level.coarser(), BlurredState(_halved(f)) if start else None)
        f, done = level.carry(_doubled(rough.at.f), 1), rough.iterations
    elif start is None:
        shorter = int(np.clip(math.ceil(math.log2(max(reach, 1.0))), 0, 10))
        easier = level.terms.internal.eases(level.terms.V)
        stages = [(j, easier) for j in range(shorter, 0, -1)] + [(0, j) for j in range(easier, 0, -1)]
    for shorter, easier in stages:
        dual = level.dual(parts, shorter, easier)
        end = ascend(dual, f, 0.1, 20)
        done, parts = done + end.iterations, _finer(parts, end.at, dual)
        f = end.at.f if shorter else level.carry(end.at.f, easier)
    return _climb(level, f, parts, done)


def _climb(level: GridLevel, f: Array, parts: NDArray[np.intp] | None = None, done: int = 0) -> Found:
    """The ascent from f on this mesh; between rounds, cells whose mass is stretched get more particles."""
    parts = np.ones(f.shape, dtype=np.intp) if parts is None else parts
    for _ in range(ROUNDS):
        dual = level.dual(parts)
        end = ascend(dual, f, level.tol, level.max_iter)
        f, done, old = end.at.f, done + end.iterations, parts
        parts = _finer(parts, end.at, dual)
        hopeless = (end.failed == STALLED).any() and end.residual.max() > HOPELESS * level.tol
        if (parts == old).all() or hopeless:
            break
    return replace(end, iterations=done), dual


def _divisible(shape: tuple[int, ...]) -> bool:
    return all(n % 2 == 0 and n >= 32 for n in shape[1:])


def _halved(f: Array) -> Array:
    """Means over 2^D cells."""
    for axis in range(1, f.ndim):
        f = (f.take(range(0, f.shape[axis], 2), axis) + f.take(range(1, f.shape[axis], 2), axis)) / 2
    return f


def _doubled(f: Array) -> Array:
    """The spline through f at the centres of cells half as wide."""
    fine = (len(f), *(2 * n for n in f.shape[1:]))
    member, *index = (i.ravel() for i in np.indices(fine))
    D = len(index)
    stencil = Stencil((np.stack(index) - 0.5) / 2, member, f.shape[1:])
    return stencil.jet(coefficients(f, D), (1.0,) * D).value.reshape(fine)


def _finer(parts: NDArray[np.intp], at: Point, dual: Dual | LineDual) -> NDArray[np.intp]:
    """More particles for the cells whose mass is stretched by more than SPREAD."""
    if isinstance(dual, LineDual):
        return parts
    need = np.ceil(at.stretch / SPREAD).astype(np.intp)
    where = np.rint(dual.mu.x).astype(np.intp)
    short = need > parts[(dual.mu.member, *where)]
    if (dual.total(dual.mu.m * short) < LITTLE * dual.total(dual.mu.m)).all():
        return parts
    out = parts.copy()
    np.maximum.at(out, (dual.mu.member, *where), np.clip(need, 1, MOST_PARTS))
    return out


def _move(mu: Grid, rho: Array, p: Array, end: Ascent, dual: Dual | LineDual) -> Move:
    def out(a: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(a)).reshape(mu.batch).to(mu.density)

    gap = _gap(rho, p, end.at, dual)
    bad = (end.failed != OK).any()
    worst = float(end.residual.max())
    return Move(
        mu=mu.at([torch.from_numpy(rho).reshape(mu.density.shape).to(mu.density)]),
        cost=out(end.at.cost),
        residual=out(end.residual),
        failed=torch.from_numpy(end.failed).reshape(mu.batch).to(mu.density.device),
        iterations=end.iterations,
        message=_REMEDY.format(worst) if bad else "",
        gap=out(gap),
        blur=torch.zeros_like(out(gap)),
        state=BlurredState(end.at.f),
    )


def _gap(rho: Array, p: Array, at: Point, dual: Dual | LineDual) -> Array:
    """F(rho) + cost / (2 tau) - J(-p - V), relative to the sum of the sizes of these terms."""
    axes, internal, V = tuple(range(1, rho.ndim)), dual.terms.internal, dual.terms.V
    shift = (p + at.f + V).mean(axes)
    rise = dual.cell * (internal.value(p) - internal.value(-at.f - V)).sum(axes)
    inner = dual.cell * internal.energy(rho).sum(axes)
    outer = dual.cell * (rho * V).sum(axes)
    move = at.cost / (2 * dual.tau)
    size = np.maximum(np.abs(inner) + np.abs(outer) + move, 1e-300)
    return (inner + outer + move - (at.J + shift - rise)) / size
