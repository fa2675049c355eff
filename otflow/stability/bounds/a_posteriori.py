"""A-posteriori bounds on the distance of two flows, computed along one of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import UnknownBoundError
from otflow.base.spaces import Euclidean
from otflow.base.tangent import align
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles
from otflow.stability.bounds.a_priori import APriori, a_priori
from otflow.stability.bounds.constants import Constants, constants
from otflow.stability.bounds.rates import Rates, rates
from otflow.stability.perturbations import farthest, per_member
from otflow.transport.comparable import exponent

HUGE = 1e30  # a radius as good as infinite; chosen: its square is finite in float64 and itself in float32
TINY = 1e-30  # stands for a radius of zero, which has no logarithm; chosen: representable in float32
SLACK = 1.05  # the error of a stepper may make a step longer than the field allows, by this factor; chosen
# A tube may grow by this factor between two save times, else only a-priori constants remain; chosen.
ROOM = 2.0


@dataclass(frozen=True, eq=False)
class APosteriori:
    """d_p(mu_t, nu_t) <= C(t) |e|_p, |e|_p = (sum_i w_i |e_i|^p)^(1/p) <= size: nu_0 is mu_0 moved by e.

    This is C(t) d_p(mu_0, nu_0) if matching by index is optimal at the start: so for every nu_0 of as many
    tokens if weights are equal, or no two labels are. With other weights it is so for small perturbations,
    but beyond these a token may be split, and its parts go further than any e_i.

    Attributes:
        ts: the save times of the run, (T,).
        log_C: the logarithm of the constant at each of them, (T, *batch); NaN for members that have ended.
        tube: how far a token of nu can be from its partner in mu, (T, *batch).
        size: the length |e|_p up to which this holds, (*batch,).
        p: the order of the distance.
        a_priori: the bound beforehand, on the smallest ball that contains all these nu_0, at the same times.
    """

    ts: Tensor
    log_C: Tensor
    tube: Tensor
    size: Tensor
    p: float
    a_priori: APriori

    def __repr__(self) -> str:
        own, before = (status.brief(bound.log_C[-1]) for bound in (self, self.a_priori))
        return f"APosteriori(p={self.p:g}, log C({self.ts[-1]:g}) = {own}, a priori {before})"


def a_posteriori(
    traj: Trajectory,
    field: VelocityField,
    *,
    size: float | Tensor = 0.0,
    reach: float | Tensor | None = None,
    p: float = 2.0,
) -> APosteriori:
    """log C(t) = int_0^t sup of the local Lipschitz constant of the field, over a tube around the run.

    The local constants come from the tilted covariances and the radii that occurred, see
    `otflow.stability.bounds.rates`. The tube contains every flow that starts within ``size``, and the motion
    of the run between its save times, so this is an upper sum of the integral: more save times, a sharper
    bound. It is never worse than the a-priori constant. Two things are taken as they are: the states of the
    run, up to the error of its stepper, and weights that vary in time, of which three moments per interval
    are seen.

    Args:
        traj: a run of particles in R^d under ``field``, without noise, with save times that resolve it.
        field: the field; its a-priori `constants` must be known.
        size: a bound on (sum_i w_i |e_i|^p)^(1/p), a number or (*batch,). Zero is for tangents.
        reach: a bound on the distance between partners at the start, if they do not match by index. Else it
            follows from ``size``: no token is moved further than size / w_i^(1/p).
        p: the order of the distance, from 1; conditional for causal fields.

    >>> import torch
    >>> import otflow as of
    >>> I = torch.eye(2, dtype=torch.float64)
    >>> field, mu0 = of.SoftmaxAttention(I, I, -I), of.Particles([[1.0, 0.0], [0.0, 1.0]])
    >>> traj = of.flow(mu0, field, of.RK4(), t1=1.0, dt=0.05)
    >>> of.stability.a_posteriori(traj, field)
    APosteriori(p=2, log C(1) = 1.53956, a priori 1.40489e+06)
    """
    mu0, p = _admit(traj), exponent(p)
    size = _given(size, "size", mu0)
    start = farthest(mu0, size, p)
    far = start if reach is None else _given(reach, "reach", mu0)
    state = TubeState(torch.zeros_like(size), torch.zeros_like(size), start if reach is None else None, far)
    pieces = list(_pieces(traj.ts.tolist(), field.switches))
    before = _beforehand(field, mu0, far, pieces, p)
    known = _at(before, traj.ts)
    _insist(traj, mu0.w, known)
    logs, tubes = [state.log_p], [state.tube]
    for piece, least, most in zip(pieces, before.log_C[:-1], before.log_C[1:], strict=True):
        state = _advance(state, piece, traj, field, _increment(least, most), p)
        state = state._replace(log_p=torch.minimum(state.log_p, most))
        if piece.end == float(traj.ts[len(logs)]):
            logs.append(state.log_p)
            tubes.append(state.tube)
    over = traj.clocks.to(size.device) < align(traj.ts.to(size.device), traj.clocks)
    log_C, tube = (torch.stack(rows).masked_fill(over, torch.nan) for rows in (logs, tubes))
    return APosteriori(traj.ts, log_C, tube, size, p, known)


def _admit(traj: Trajectory) -> Particles:
    checks.instance(traj, Trajectory, "traj")
    checks.require(
        len(traj) >= 2,
        "len(traj)",
        len(traj),
        "a bound along a run needs two save times",
        "run flow with save_at=None",
    )
    mu: Particles = checks.instance(traj.measures[0], Particles, "traj.measures[0]")
    rule = "the constants are those of R^d"
    checks.require(mu.space == Euclidean(), "space", mu.space, rule, "use Euclidean()", UnknownBoundError)
    return mu.at([c.detach() for c in mu.coords])


def _given(value: float | Tensor, name: str, mu: Particles) -> Tensor:
    a = per_member(value, name, mu)
    checks.require(not (a < 0).any(), name, value, "a distance is not negative", "pass a number >= 0")
    return a


class BoundPiece(NamedTuple):
    """A stretch of time that is nearer to the k-th save time than to others, and on which no weight jumps."""

    k: int
    start: float
    end: float
    way: tuple[tuple[float, float], ...]  # the stretches from that save time to the far end of this one


def _pieces(ts: list[float], switches: tuple[float, ...]) -> Iterator[BoundPiece]:
    for k, (a, b) in enumerate(itertools.pairwise(ts)):
        middle = (a + b) / 2
        edges = sorted({a, middle, b, *(s for s in switches if a < s < b)})
        both = list(itertools.pairwise(edges))
        early = sum(end <= middle for _, end in both)
        for i, (start, end) in enumerate(both):
            way = both[: i + 1] if i < early else both[i:][::-1]
            yield BoundPiece(k if i < early else k + 1, start, end, tuple(way))


def _beforehand(
    field: VelocityField, mu0: Particles, far: Tensor, pieces: list[BoundPiece], p: float
) -> APriori:
    """The a-priori bound at the ends of the pieces."""
    R0 = (mu0.x.norm(dim=-1).masked_fill(mu0.w == 0, 0).amax(-1) + far).clamp(min=TINY)
    ts = [pieces[0].start, *(piece.end for piece in pieces)]
    return a_priori(field, R0, t0=ts[0], t1=ts[-1], ts=ts, p=p)


def _at(before: APriori, ts: Tensor) -> APriori:
    """The same bound at some of its times."""
    rows = torch.searchsorted(before.ts, ts.cpu())
    return replace(before, ts=ts, log_radius=before.log_radius[rows], log_log_C=before.log_log_C[rows])


def _increment(least: Tensor, most: Tensor) -> Tensor:
    """most - least, rounded up: next to a large log C, what is added later would be lost."""
    return torch.where(torch.isfinite(most), most - least + 1e-10 * most, torch.inf)


def _insist(traj: Trajectory, w: Tensor, known: APriori) -> None:
    """Refuse runs that the field cannot have made: no token moves further than the radius R' = sup grows."""
    R = known.radius
    x = torch.stack([mu.coords[0].detach() for mu in traj.measures]).cpu()
    moved = x.diff(dim=0).norm(dim=-1).masked_fill(w.cpu() == 0, 0).amax(-1)
    allowed = torch.nan_to_num(R.diff(dim=0), nan=torch.inf)
    bad = moved > SLACK * allowed + 1e-9 * R[1:]
    if bool(bad.any()):
        k = int(bad.reshape(len(bad), -1).any(1).nonzero()[0])
        shown = f"a run in which a token moves by {float(moved[k].max()):.6g} after t = {float(traj.ts[k]):g}"
        rule = f"the field cannot move it by more than {float(allowed[k].max()):.6g}"
        checks.fail("traj", shown, rule, "pass the field of this run, which must be one without noise")


class TubeState(NamedTuple):
    """Logarithms of how much displacements have grown at most, (*batch,) each."""

    log_p: Tensor
    log_sup: Tensor
    start: Tensor | None  # what max_i |e_i| is at most in terms of ||e||_p, at the start
    far: Tensor  # max_i |e_i| at the start

    @property
    def tube(self) -> Tensor:
        """max_i |e_i| by now: as far as both norms tell."""
        return torch.stack(self.reaches(0.0, 0.0)).amin(0)

    def reaches(self, more_p: Tensor | float, more_sup: Tensor | float) -> list[Tensor]:
        """What each norm says of max_i |e_i| after it has grown some more."""
        by_sup = _grown(self.far, self.log_sup + more_sup)
        return [by_sup] if self.start is None else [by_sup, _grown(self.start, self.log_p + more_p)]


def _grown(a: Tensor, log: Tensor) -> Tensor:
    return torch.where(a == 0, a, a * log.exp())


def _advance(
    state: TubeState, piece: BoundPiece, traj: Trajectory, field: VelocityField, most: Tensor, p: float
) -> TubeState:
    h, tube = piece.end - piece.start, ROOM * state.tube
    found = _largest(field, traj.measures[piece.k], piece, tube, p)
    more_p, more_sup = h * found.p, h * found.sup
    within = torch.stack([reach <= tube for reach in state.reaches(more_p, more_sup)]).any(0)
    more_p = torch.where(within & (more_p < most), more_p, most)
    more_sup = torch.where(within, more_sup, torch.inf)
    return state._replace(log_p=state.log_p + more_p, log_sup=state.log_sup + more_sup)


def _largest(field: VelocityField, state: Measure, piece: BoundPiece, tube: Tensor, p: float) -> Rates:
    """The largest rates in the tube around mu, while weights vary and mu moves."""
    mu: Particles = checks.instance(state, Particles, "mu").at([c.detach() for c in state.coords])
    rho = tube + _drift(field, mu, piece)
    near = torch.isfinite(rho)
    rho = torch.where(near, rho, 0.0)
    found = [_rates(field, mu, t, rho, p) for t in _moments(field, piece.start, piece.end, mu)]
    most = (torch.stack(one).amax(0) for one in zip(*found, strict=True))
    return Rates(*(torch.where(near & ~rate.isnan(), rate, torch.inf) for rate in most))


def _drift(field: VelocityField, mu: Particles, piece: BoundPiece) -> Tensor:
    """How far the run gets from a save time on its way, (*batch,); infinite if steps are too long to tell."""
    radius = mu.x.norm(dim=-1).amax(-1).clamp(min=TINY)
    drift = torch.zeros_like(radius)

    def speed(R: Tensor, ts: list[Tensor]) -> Tensor:
        return torch.stack([constants(field, R, t).log_sup.exp() for t in ts]).amax(0)

    for a, b in piece.way:
        ts, R = _moments(field, a, b, mu), (radius + drift).clamp(max=HUGE)
        slow = speed(R, ts)
        fast = speed((R + 2 * (b - a) * slow).clamp(max=HUGE), ts)
        # If fast <= 2 slow, the run stays in that ball, and its speed below fast.
        drift = drift + (b - a) * torch.where(fast <= 2 * slow, fast, torch.inf)
    return drift


def _moments(field: VelocityField, a: float, b: float, mu: Particles) -> list[Tensor]:
    """Three times between a and b, or one if the weights are the same at all of them."""
    three = [a + c * (b - a) for c in (1 / 6, 1 / 2, 5 / 6)]
    ts = [torch.tensor(t, dtype=torch.float64, device=mu.device) for t in three]
    first, *others = (list(field.tensors(t)) for t in ts)
    same = all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    return ts[1:2] if same else ts


def _rates(field: VelocityField, mu: Particles, t: Tensor, rho: Tensor, p: float) -> Rates:
    radius = mu.x.norm(dim=-1).amax(-1).clamp(min=TINY) + rho
    sharp, ball = rates(field, mu, t, rho, p), constants(field, radius, t)
    return Rates(*(torch.fmin(own, _lip(ball, q)) for own, q in zip(sharp, (p, math.inf), strict=True)))


def _lip(ball: Constants, p: float) -> Tensor:
    if ball.order not in (None, p):
        return torch.full_like(ball.log_sup, torch.inf)
    return ball.log_lip(p).exp()
