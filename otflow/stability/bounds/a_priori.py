"""The a-priori stability estimate W_p(t) <= C W_p(0), whose constant C is known before a flow is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import OdeSolution, solve_ivp
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import ConvergenceError, UnknownBoundError
from otflow.base.spaces import Euclidean
from otflow.fields import VelocityField
from otflow.measures import Gaussian, Measure, Particles
from otflow.stability.bounds.constants import Constants, constants
from otflow.stability.bounds.time_and_radius import Kept, Moment, Radius
from otflow.transport.comparable import exponent

Array = NDArray[np.float64]
TOL = 1e-13  # tolerance of the solver for the radius; chosen: some hundred roundings
# At least so many panels, and the orders of the two Gauss rules that are compared on each; chosen.
PANELS, RULES = 32, (5, 8)
LIMIT = 200_000  # evaluations of the field between two switches, at most; chosen
# Growth by a factor e within 1 / STEEP of the time span counts as blow-up; chosen: time has no more digits.
STEEP = 1e12


@dataclass(frozen=True, eq=False)
class APriori:
    """W_p(mu_t, nu_t) <= C(t) W_p(mu_0, nu_0) for all laws on B_R0: how large C is, at times ts.

    Attributes:
        ts: times, (T,).
        log_radius: log R(t) of a ball that holds both laws, (T, *batch).
        log_log_C: log log C(t), (T, *batch); -inf where C = 1.
        blow_up_time: when the radius becomes infinite, within 1e-12 of the time span; NaN if it does not.
        p: the order of the distance.
    """

    ts: Tensor
    log_radius: Tensor
    log_log_C: Tensor
    blow_up_time: Tensor
    p: float

    @property
    def log_C(self) -> Tensor:
        """log C, (T, *batch); infinite where even that overflows."""
        return self.log_log_C.exp()

    @property
    def radius(self) -> Tensor:
        """R, (T, *batch); infinite where it overflows."""
        return self.log_radius.exp()

    def __repr__(self) -> str:
        if self.blow_up_time.ndim:
            return f"APriori({len(self.ts)} times, p={self.p:g}, batch {tuple(self.blow_up_time.shape)})"
        log_C, u = self.log_C[-1].item(), self.log_radius[-1].item()
        size = (
            f"log C = {log_C:.6g}" if math.isfinite(log_C) else f"log log C = {self.log_log_C[-1].item():.6g}"
        )
        ball = f"R = {math.exp(u):.6g}" if u < 700 else f"log R = {u:.6g}"
        late = self.blow_up_time.item()
        end = "" if math.isnan(late) else f", blow-up at t = {late:.6g}"
        return f"APriori(p={self.p:g}; at t = {self.ts[-1].item():g}: {size}, {ball}{end})"


def a_priori(
    field: VelocityField,
    R0: Any = None,
    *,
    t1: float,
    t0: float = 0.0,
    ts: Any = None,
    p: float = 2.0,
    mu0: Measure | None = None,
) -> APriori:
    """log C(t) = int_t0^t L_p(s, R(s)) ds, where R' = sup(s, R) and R(t0) = R0; see `constants`.

    Then W_p(mu_t, nu_t) <= C(t) W_p(mu_0, nu_0) for all solutions that start in the ball B_R0, in the
    conditional distance for masked attention, where p = 1 has no bound. C grows doubly exponentially for
    softmax attention, so its logarithm and the logarithm of that are given. Relative errors of log C are
    below 1e-8 as long as log log C is below 1e4, and those of log log C beyond that; norms may have kinks in
    time. No gradient passes; differentiate `constants`.

    Args:
        field: whatever has `constants`; its weights may have batch axes.
        R0: radius, a number or (*batch,); the one of the support of ``mu0`` if left out.
        t1, t0: the interval of time.
        ts: increasing times in it, 101 equally spaced ones by default.
        p: the order of the distance, from 1 to infinity.
        mu0: particles that must lie in the ball.

    References: Castin, Ablin, Carrillo, Peyré 2025, arXiv 2501.18322, Theorem 3.1.

    >>> import torch
    >>> from otflow.stability import a_priori
    >>> import otflow as of
    >>> I = torch.eye(2, dtype=torch.float64)
    >>> a_priori(of.SoftmaxAttention(I, I, 1.1 * I), 1.0, t1=1.0)  # C overflows
    APriori(p=2; at t = 1: log C = 3.65465e+07, R = 3.00417)
    """
    checks.instance(field, VelocityField, "field")
    t0, t1 = _interval(t0, t1)
    times = _times(ts, t0, t1)
    log_R0 = _start(R0, mu0)
    with torch.no_grad():
        first = constants(field, Radius(log_R0), Moment(torch.tensor(t0, dtype=torch.float64)))
        p, shape = exponent(p), torch.broadcast_shapes(first.log_lip(p).shape, log_R0.shape)
        run = _Run(field, p, shape, t1 - t0, log_R0.expand(shape).flatten().numpy().copy())
        inner = sorted(s for s in field.switches if t0 < s < t1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            rows = [
                row for a, b in zip([t0, *inner], [*inner, t1], strict=True) for row in run.piece(a, b, times)
            ]
    if times[0] == t0:
        rows.insert(0, (run.start, np.full_like(run.start, -math.inf)))
    u, total = (torch.from_numpy(np.stack(part)).reshape(-1, *shape) for part in zip(*rows, strict=True))
    return APriori(torch.from_numpy(times), u, total, torch.from_numpy(run.blow_up).reshape(shape), p)


# --- what comes in -------------------------------------------------------------------------------------


def _interval(t0: float, t1: float) -> tuple[float, float]:
    t0, t1 = checks.number(t0, "t0"), checks.number(t1, "t1")
    checks.require(t1 > t0, "t1", t1, f"it must lie after t0 = {t0}", f"pass t1={t0 + 1:g}, say")
    return t0, t1


def _times(ts: Any, t0: float, t1: float) -> Array:
    if ts is None:
        return np.linspace(t0, t1, 101)
    times: Array = checks.tensor(ts, "ts").detach().double().cpu().numpy().copy()
    if times.ndim != 1 or not len(times) or (np.diff(times) <= 0).any():
        checks.fail("ts", times.tolist(), "increasing times are needed", "sort them and drop repetitions")
    if times[0] < t0 or times[-1] > t1:
        span = f"times from {times[0]} to {times[-1]}"
        checks.fail(
            "ts",
            span,
            f"they must lie in [t0, t1] = [{t0}, {t1}]",
            f"pass np.clip(ts, {t0:g}, {t1:g}), or t1={max(float(times[-1]), t1):g}",
        )
    return times


def _start(R0: Any, mu0: Measure | None) -> Tensor:
    """log R0, on the CPU."""
    if mu0 is None:
        if R0 is None:
            checks.fail("R0", None, "the flow starts in a ball", "pass its radius, or mu0")
        return _positive(R0).log()
    held = support_radius(mu0)
    if R0 is None:
        return _positive(held).log()
    R = _positive(R0)
    if bool((held * (1 - 1e-12) > R).any()):
        worst = held.max().item()
        rule = f"radius smaller than the support of mu0, which reaches {worst:.17g}"
        checks.fail("R0", R.min().item(), rule, f"pass R0={worst:.17g} or more, or leave R0 out")
    both: tuple[Tensor, ...] = torch.broadcast_tensors(R, held)
    return both[0].log()


def _positive(R0: Any) -> Tensor:
    R: Tensor = checks.tensor(R0, "R0").detach().double().cpu()
    if not bool((R > 0).all()):
        checks.fail("R0", R.min().item(), "a ball has a radius > 0", "pass the largest |x| of the tokens")
    return R


@singledispatch
def support_radius(mu: Measure) -> Tensor:
    """max |x| over the support of mu, (*batch,); atoms without mass do not count.

    >>> from otflow import Particles
    >>> from otflow.stability.bounds.a_priori import support_radius
    >>> support_radius(Particles([[3.0, 4.0], [9.0, 9.0]], [1.0, 0.0])).item()
    5.0
    """
    checks.instance(mu, Measure, "mu0")
    checks.fail("mu0", repr(mu), "the radius of its support is not known", "pass R0 instead")


@support_radius.register
def _(mu: Gaussian) -> Tensor:
    rule = "a Gaussian has no compact support, which the estimate is about"
    checks.fail("mu0", repr(mu), rule, "draw Particles from it, or pass R0 instead")


@support_radius.register
def _(mu: Particles) -> Tensor:
    if not isinstance(mu.space, Euclidean):
        rule = "the constants are those of fields on R^d, not of their projections"
        checks.fail("mu0", repr(mu), rule, "use Euclidean()", UnknownBoundError)
    norms: Tensor = torch.linalg.vector_norm(mu.x.detach().double(), dim=-1)
    return norms.masked_fill(mu.w == 0, 0.0).amax(-1).cpu()


# --- the radius ------------------------------------------------------------------------------------------


class _Path:
    """log R along pieces of time that follow each other: an interpolant on each, from its start."""

    def __init__(self) -> None:
        self.parts: list[tuple[float, Array, OdeSolution]] = []

    def __call__(self, times: Array) -> Array:
        """(N,) -> (N, B)."""
        starts = np.array([start for start, _, _ in self.parts])
        which = np.clip(np.searchsorted(starts, times, side="right") - 1, 0, None)
        out = np.empty((len(times), len(self.parts[0][1])))
        for i in np.unique(which):
            _, base, solution = self.parts[i]
            out[which == i] = base + solution(times[which == i]).T
        return out


class _Piece:
    """The field between two switches, where what does not vary is asked once."""

    def __init__(self, field: VelocityField, shape: torch.Size, a: float, b: float) -> None:
        self.field, self.shape, self.a, self.b, self.kept = field, shape, a, b, Kept()

    def constants(self, t: float, u: Array) -> Constants:
        """At time t on balls exp(u), (..., B)."""
        inside = min(t, math.nextafter(self.b, self.a))  # at b itself the next weights are in force
        log_R = torch.from_numpy(u).reshape((*u.shape[:-1], *self.shape))
        return constants(
            self.field, Radius(log_R), Moment(torch.tensor(inside, dtype=torch.float64), self.kept)
        )

    def log_rate(self, t: float, u: Array) -> Array:
        """log u', u' = sup / R."""
        return _plain(self.constants(t, u).log_sup, u) - u

    def log_lip(self, times: Array, u: Array, p: float) -> Array:
        """log L_p at each time, (N,) and (N, B) -> (N, B)."""
        if not self.kept.varied:
            return _plain(self.constants(times[0], u).log_lip(p), u)
        each = zip(times, u, strict=True)
        return np.stack([_plain(self.constants(t, one).log_lip(p), one) for t, one in each])


def _plain(x: Tensor, like: Array) -> Array:
    out: Array = x.cpu().numpy().reshape(like.shape)
    rule = "they are logarithms of numbers >= 0"
    checks.require(
        not np.isnan(out).any(),
        "constants",
        "NaN",
        rule,
        "let the function given to constants.register return logarithms, -inf for 0",
    )
    return out


class _Run:
    """The state that is handed from piece to piece: log R, log log C, and who has blown up when."""

    def __init__(self, field: VelocityField, p: float, shape: torch.Size, span: float, u: Array) -> None:
        self.field, self.p, self.shape, self.span = field, p, shape, span
        self.start, self.u = u, u
        self.total, self.blow_up = np.full_like(u, -math.inf), np.full_like(u, math.nan)

    def piece(self, a: float, b: float, times: Array) -> Iterator[tuple[Array, Array]]:
        """Go on from a to b; log R and log log C at the times in between, b included."""
        piece = _Piece(self.field, self.shape, a, b)
        path = self.follow(piece)
        saves = times[(times > a) & (times <= b)]
        grid = np.linspace(a, b, 2 + math.ceil(PANELS * (b - a) / self.span))
        ends, totals = _integrals(
            lambda t: self.beyond(t, piece.log_lip(t, path(t), self.p)), np.union1d(grid, saves), self.total
        )
        self.u, self.total = path(np.array([b]))[0], self.beyond(np.array([b]), totals[-1:])[0]
        us = self.beyond(saves, path(saves)) if len(saves) else saves
        late = self.beyond(saves, totals[np.searchsorted(ends, saves)])
        yield from zip(us, late, strict=True)

    def beyond(self, times: Array, values: Array) -> Array:
        """The values, infinite from the blow-up on."""
        return np.where(times[:, None] >= self.blow_up, math.inf, values)

    def follow(self, piece: _Piece) -> _Path:
        """log R on a piece; who blows up is recorded and held, and the others go on."""
        path, t, u = _Path(), piece.a, self.u
        while not path.parts or t < piece.b:
            self.blow_up[self.margin(piece, t, u) > -math.log(2)] = t
            base, held = u, ~np.isnan(self.blow_up)

            def speed(s: float, w: Array, base: Array = base, held: Array = held) -> Array:
                return np.where(held, 0.0, np.exp(np.minimum(piece.log_rate(s, base + w), 80)))

            def edge(s: float, w: Array, base: Array = base) -> float:
                return float(self.margin(piece, s, base + w).max())

            edge.terminal = True  # type: ignore[attr-defined]
            solution = _solve(speed, edge, t, piece.b, base)
            path.parts.append((t, base, solution.sol))
            t, u = float(solution.t[-1]), base + solution.y[:, -1]
        return path

    def margin(self, piece: _Piece, t: float, u: Array) -> Array:
        """How far log u' is above what counts as blow-up, where it grows with u; -1e3 for others."""
        now, later = piece.log_rate(t, u), piece.log_rate(t, u + 1)
        grows = np.isnan(self.blow_up) & ((later > now + 1e-3) | (now == math.inf))
        return np.where(grows, np.clip(now - math.log(STEEP / self.span), -1e3, 1e3), -1e3)


def _solve(speed: Callable[..., Array], edge: Callable[..., float], t: float, end: float, like: Array) -> Any:
    left = iter(range(LIMIT))

    def counted(s: float, w: Array) -> Array:
        if next(left, None) is None:
            raise ConvergenceError(
                f"the radius could not be followed beyond t = {s}: is a weight infinite? pass t1={s}, or a "
                "field that is finite there",
                w,
            )
        return speed(s, w)

    options = {"method": "DOP853", "rtol": TOL, "atol": TOL, "max_step": (end - t) / 8}
    solution = solve_ivp(counted, (t, end), np.zeros_like(like), dense_output=True, events=edge, **options)
    if solution.status < 0:
        raise ConvergenceError(
            f"the radius could not be followed beyond t = {solution.t[-1]}: {solution.message}; "
            f"pass t1={solution.t[-1]:g}",
            solution,
        )
    return solution


# --- the integral ----------------------------------------------------------------------------------------


def _integrals(ell: Callable[[Array], Array], edges: Array, start: Array) -> tuple[Array, Array]:
    """log(e^start + int_{edges[0]}^b e^ell) for ends b of panels, which include the edges: (P,), (P, B).

    A panel is halved until its two Gauss rules agree relative to the integral up to the next edge; what is
    far below needs no digits, so that a steep ell costs only the logarithm of its slope.
    """
    a, b = edges[:-1], edges[1:]
    values = _gauss(ell, a, b)
    least = 1e-15 * max(abs(edges[0]), abs(edges[-1]), edges[-1] - edges[0])
    while True:
        total: Array = np.logaddexp.accumulate(np.concatenate([start[None], values[1]]))[1:]
        goal = edges[np.searchsorted(edges, b)]
        rough = _rough(values, total[np.searchsorted(b, goal)]) & (b - a > 4 * least)
        if not rough.any():
            return b, total
        middle = (a[rough] + b[rough]) / 2
        new = np.concatenate([a[rough], middle]), np.concatenate([middle, b[rough]])
        values = np.concatenate([values[:, ~rough], _gauss(ell, *new)], 1)
        a, b = (np.concatenate([old[~rough], extra]) for old, extra in zip((a, b), new, strict=True))
        order = np.argsort(a)
        a, b, values = a[order], b[order], values[:, order]


def _rough(values: Array, total: Array) -> Array:
    """Where the rules differ by more than ell itself is known to, (P,)."""
    # An error of 1e-13 in log R is one of about 1e-13 |ell| in ell: asking for more would halve for ever.
    tol = np.minimum(1e-3, 1e-11 + 1e-12 * np.abs(total))
    gap = np.abs(np.exp(values[0] - total) - np.exp(values[1] - total))
    return (gap > tol).any(-1)


def _gauss(ell: Callable[[Array], Array], a: Array, b: Array) -> Array:
    """log int_a^b e^ell on each panel by both rules, (2, P, B)."""
    rules = [np.polynomial.legendre.leggauss(n) for n in RULES]
    nodes = np.concatenate([x for x, _ in rules])
    times = (a + b)[:, None] / 2 + (b - a)[:, None] / 2 * nodes
    heights = np.split(ell(times.flatten()).reshape(*times.shape, -1), [RULES[0]], axis=1)
    widths = (b - a)[:, None, None] / 2
    return np.stack([_log_sum(h, w[:, None] * widths) for h, (_, w) in zip(heights, rules, strict=True)])


def _log_sum(h: Array, w: Array) -> Array:
    """log sum_n w_n e^h_n along axis 1, for h with infinite entries, too."""
    top = h.max(1)
    safe = np.where(np.isfinite(top), top, 0.0)
    out: Array = safe + np.log((w * np.exp(h - safe[:, None])).sum(1))
    return np.where(top == math.inf, math.inf, out)
