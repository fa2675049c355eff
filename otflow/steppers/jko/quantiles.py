"""JKO steps in quantiles: on the line the step is a convex problem in the quantile function.

In X the step is min over increasing Y of F(Y) + |Y - X|^2 / (2 tau), with the norm of L2(0, 1). Newton's
method with a line search solves it; for internal and potential energies the Hessian is tridiagonal and an
iteration takes linear time, with interactions it is dense. An upper bound on the density bounds the gaps,

    x_i+1 - x_i >= m_i / limit,

and is met from inside, by the primal-dual method: a barrier -nu sum_i m_i log(slack_i), multipliers z_i with
z_i slack_i near nu m_i, and nu to zero; sum_i z_i slack_i is the duality gap (Nocedal and Wright 2006,
"Numerical optimization", Chapter 19).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.status import code
from otflow.base.tangent import Tangent
from otflow.energies import Energy, Potential
from otflow.energies.base import Sum
from otflow.energies.internal import DensityBound, Internal
from otflow.energies.quantiles import curvature
from otflow.measures.quantiles import Quantiles, Tridiagonal
from otflow.metrics import Wasserstein
from otflow.steppers.jko.base import Move, MovementProblem, minimise
from otflow.steppers.jko.precision import SINGLE, Asked, doubled, in_double, rounded
from otflow.steppers.jko.proof import UNPROVED, convex

TOL = 1e-9
COARSE = 1e-4  # with a bound on the density, if other terms are in single precision: what that leaves
MAX_ITER = 200  # Newton steps unless the user says; chosen
HALVINGS = 40  # of a step in a line search; chosen: 2^-40 = 1e-12 of it is no progress
DENSE = 4000  # levels up to which an interaction is solved; chosen: its dense Hessian has 128 MB then


@minimise.register(Quantiles)
def _(mu: Quantiles, problem: MovementProblem, start: Any = None) -> Move:
    """The step in the quantile function, by Newton's method.

    ``residual`` is the Newton decrement, sqrt(g.H^-1 g / tau) for the gradient g of the objective, relative
    to the larger one of |grad F| and |u| / tau: near the minimiser, tau times their product is at least the
    distance to it in W2 if the energy is convex. A member whose Hessian is not positive definite somewhere on
    the way is "uncertified": what was found may be one of several minima, or a saddle. If it was, but is not
    known to be so everywhere, the member is "local". The result has derivatives with respect to mu and to
    parameters of the energy, by the implicit function theorem.

    Single precision is computed in double: where gaps are small next to x, it leaves no digit of them.
    """
    wide = replace(problem, energy=in_double(problem.energy, mu))
    return rounded(_minimise(doubled(mu), wide, start), mu)


def _minimise(mu: Quantiles, problem: MovementProblem, start: Any) -> Move:
    step = _Step.of(mu, problem)
    own = TOL if step.asked is None or step.floor is None else COARSE
    tol = own if problem.tol is None else problem.tol
    with torch.no_grad():
        at, newton, iterations, stalled = _solve(step, step.first(start), tol, problem.max_iter or MAX_ITER)
    good = _optimal(step, at, newton, tol)
    short = torch.where(stalled, code("stalled"), code("max_iter"))
    failed = torch.where(good, torch.where(newton.convex, 0, code("uncertified")), short)
    u = at.x - step.mu.x
    local = ~convex(mu, problem)
    return Move(
        mu=mu.at([_attached(mu, step, at, newton)]),
        cost=step.squared(u),
        residual=newton.residual,
        failed=failed,
        iterations=iterations,
        message=_message(newton, iterations, failed, local),
        gap=None if step.floor is None else _gap(step, at, newton),
        local=local,
        state=u,
    )


@dataclass(frozen=True)
class _Dense:
    """A symmetric matrix (*batch, k, k), with the methods of `Tridiagonal` that Newton's method needs."""

    matrix: Tensor

    def __add__(self, other: Tridiagonal) -> _Dense:
        return _Dense(self.matrix + other.dense())

    @cached_property
    def factor(self) -> tuple[Tensor, Tensor]:
        L, info = torch.linalg.cholesky_ex(self.matrix)
        return L, info

    @property
    def diag(self) -> Tensor:
        return self.matrix.diagonal(dim1=-2, dim2=-1)

    def definite(self) -> Tensor:
        return (self.factor[1] == 0) & torch.isfinite(self.matrix).all(-1).all(-1)

    def solve(self, b: Tensor) -> Tensor:
        return torch.cholesky_solve(b.double()[..., None], self.factor[0])[..., 0].to(b.dtype)


@dataclass(frozen=True)
class _Step:
    """The objective F(x) + |x - x_k|^2 / (2 tau), subject to gaps of at least ``floor``."""

    mu: Quantiles
    energy: Energy | None
    tau: float
    floor: Tensor | None

    @classmethod
    def of(cls, mu: Quantiles, problem: MovementProblem) -> _Step:
        good = isinstance(problem.metric, Wasserstein)
        checks.require(good, "metric", problem.metric, "quantiles are moved in W2", "use Wasserstein()")
        pairs = problem.energy.pairs()
        bounds = [(term, c) for term, c in pairs if isinstance(term, DensityBound)]
        if any(c <= 0 for _, c in bounds):
            checks.fail(
                "factor",
                min(c for _, c in bounds),
                "a bound has a positive factor",
                "leave out the factor: DensityBound(limit)",
            )
        smooth = [(term, c) for term, c in pairs if not isinstance(term, DensityBound)]
        limit = min((term.limit for term, _ in bounds), default=math.inf)
        floor = mu.mass / limit if bounds else None
        return cls(mu.at([mu.x.detach()]), Sum(smooth) if smooth else None, problem.tau, floor)

    @cached_property
    def asked(self) -> _Step | None:
        """The part of the energy that is rounded to single precision, without the metric."""
        pairs = [] if self.energy is None else self.energy.pairs()
        some = [(term, c) for term, c in pairs if isinstance(term, Asked)]
        return _Step(self.mu, Sum(some), math.inf, None) if some else None

    def coarse(self, x: Tensor, tau: float) -> Tensor:
        """What single precision does to the gradient, as a decrement times tau^(1/2), (*batch,)."""
        g = self.differential(x)
        slope = (g * self.mu.gram.solve(g)).sum(-1).clamp(min=0).sqrt()
        turned = (self.hessian(x).diag.abs() * x.square()).sum(-1).sqrt()
        return 4 * SINGLE * (turned + math.sqrt(tau) * slope)

    def squared(self, u: Tensor) -> Tensor:
        return self.mu.inner(Tangent([u]), Tangent([u]))

    def merit(self, x: Tensor, slack: Tensor, nu: Tensor) -> Tensor:
        """The objective, with the barrier; infinite where it makes no sense."""
        value = self.squared(x - self.mu.x) / (2 * self.tau)
        if self.energy is not None:
            value = value + self.energy(self.mu.at([x])).detach()
        if self.floor is not None:
            value = value - nu[..., 0] * (self.mu.mass * slack.log()).sum(-1)
        return torch.where((torch.diff(x) > 0).all(-1) & torch.isfinite(value), value, torch.inf)

    def differential(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x) if self.energy is None else self.energy.differential(self.mu.at([x]))[0]

    def hessian(self, x: Tensor) -> Tridiagonal | _Dense:
        # In double precision always: next to the barrier of a bound the metric would be lost in rounding.
        local = self.mu.gram * (torch.ones_like(x[..., :1], dtype=torch.float64) / self.tau)
        wide: list[Tensor] = []
        for term, c in self.energy.pairs() if self.energy is not None else []:
            H = curvature(term, _admitted(term, self.mu.at([x])))
            if isinstance(H, Tridiagonal):
                local = local + H * c
            else:
                wide.append(c * H)
        return _Dense(local.dense() + torch.stack(wide).sum(0)) if wide else local

    def first(self, start: Any) -> _Point:
        """From x_k, or from where the last displacement leads if that is lower; inside the bound."""
        x, nu = self.mu.x, torch.zeros_like(self.mu.x[..., :1])
        if self.floor is not None:
            x, slack = _widened(self.mu, self.floor)
            return _Point(x, slack, nu)
        if isinstance(start, Tensor) and start.shape == x.shape:
            better = self.merit(x + start, x, nu) < self.merit(x, x, nu)
            x = torch.where(better[..., None], x + start, x)
        return _Point(x, torch.diff(x), nu)


@dataclass(frozen=True)
class _Point:
    """An iterate: quantiles, the weight of the barrier, multipliers of the bound.

    ``slack`` is how far the gaps are above their floor: a number of its own, because the difference of a gap
    and its floor has no digits left near the bound.
    """

    x: Tensor
    slack: Tensor
    nu: Tensor  # (*batch, 1)
    z: Tensor | None = None


@dataclass(frozen=True)
class _Newton:
    """What is known at an iterate: gradient, Hessian, direction, and how far it is from optimal."""

    g: Tensor
    H: Tridiagonal | _Dense
    dx: Tensor
    scale: Tensor  # (*batch,)
    residual: Tensor  # (*batch,)
    convex: Tensor  # (*batch,), bool: the Hessian was definite here and before


def _admitted(term: Energy, mu: Quantiles) -> Quantiles:
    if mu.n >= DENSE and not isinstance(term, Internal | Potential):
        checks.fail(
            "n",
            mu.n,
            f"{type(term).__name__} has a dense Hessian, limited to {DENSE} levels",
            f"pass Quantiles.from_ppf(mu.ppf, {DENSE - 1})",
        )
    return mu


def _widened(mu: Quantiles, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Gaps raised above the floor, with the same mean: a start that is strictly inside; and the slack."""
    slack = torch.maximum(torch.diff(mu.x) - floor, 0.01 * floor)
    x = torch.cat([mu.x[..., :1], mu.x[..., :1] + (floor + slack).cumsum(-1)], -1)
    mean = mu.gram @ torch.ones_like(mu.x)  # the linear form u -> int u ds
    return x - (mean * (x - mu.x)).sum(-1, keepdim=True), slack


def _linearise(step: _Step, at: _Point, tol: float) -> tuple[_Point, _Newton]:
    """Gradient and Newton's direction; a point without multipliers gets its barrier here."""
    u, dF = at.x - step.mu.x, step.differential(at.x)
    g, H = dF + step.mu.gram @ u / step.tau, step.hessian(at.x)
    rounded = 2 * torch.finfo(at.x.dtype).eps * (H.diag * at.x.square()).sum(-1).clamp(min=0).sqrt()
    if (asked := step.asked) is not None:
        rounded = rounded + asked.coarse(at.x, step.tau)
    scale = _scale(step, u, dF, rounded / math.sqrt(step.tau) / tol)
    if step.floor is not None:
        at, z = _with_multipliers(step, at, scale)
        g = g - _outward(at.nu * step.mu.mass / at.slack)
        c = z.double() / at.slack
        H = H + Tridiagonal.from_intervals(c, -c, c)
    convex = H.definite()
    H = _shifted(H, convex, step)
    dx = -H.solve(g)
    decrement = (-(g * dx).sum(-1) / step.tau).clamp(min=0).sqrt()
    return at, _Newton(g, H, dx, scale, decrement / scale, convex)


def _with_multipliers(step: _Step, at: _Point, scale: Tensor) -> tuple[_Point, Tensor]:
    if at.z is not None:
        return at, at.z
    nu = 0.1 * step.tau * scale[..., None] ** 2
    z = nu * step.mu.mass / at.slack
    return replace(at, nu=nu, z=z), z


def _outward(p: Tensor) -> Tensor:
    """The derivative in x of sum_i p_i (x_i+1 - x_i), p fixed."""
    return -torch.diff(torch.nn.functional.pad(p, (1, 1)))


def _scale(step: _Step, u: Tensor, dF: Tensor, noise: Tensor) -> Tensor:
    """max(|grad F|, |u| / tau), and not below ``noise``, what rounding does to the decrement by tolerance."""
    slope = (dF * step.mu.gram.solve(dF)).sum(-1).clamp(min=0).sqrt()
    return torch.maximum(torch.maximum(slope, step.squared(u).sqrt() / step.tau), noise.to(slope))


def _shifted(H: Tridiagonal | _Dense, good: Tensor, step: _Step) -> Tridiagonal | _Dense:
    """H plus multiples of the metric where it is not definite, so that Newton's direction descends."""
    shift = 1.0
    while not bool(good.all()) and shift < 1e12:
        H = H + step.mu.gram * torch.where(good, 0.0, shift / step.tau).double()[..., None]
        good, shift = H.definite(), 4 * shift
    return H


def _solve(step: _Step, at: _Point, tol: float, max_iter: int) -> tuple[_Point, _Newton, int, Tensor]:
    """Newton's method until every member is optimal or stalls; also which members stalled."""
    stalled = torch.zeros(step.mu.batch, dtype=torch.bool, device=at.x.device)
    at, newton = _linearise(step, at, tol)
    for iteration in range(max_iter):
        done = stalled | _optimal(step, at, newton, tol)
        if bool(done.all()):
            return at, newton, iteration, stalled
        t = _line_search(step, at, newton, done)
        stalled = stalled | (~done & (t == 0))
        convex = newton.convex
        at, newton = _linearise(step, _advance(step, at, newton, t, tol), tol)
        newton = replace(newton, convex=newton.convex & convex)
    return at, newton, max_iter, stalled


def _optimal(step: _Step, at: _Point, newton: _Newton, tol: float) -> Tensor:
    done = newton.residual <= tol
    return done if at.z is None else done & (_gap(step, at, newton) <= tol)


def _gap(step: _Step, at: _Point, newton: _Newton) -> Tensor:
    """The duality gap sum_i z_i slack_i relative to tau |grad F|^2, what a step gains."""
    z = torch.zeros_like(at.x[..., 1:]) if at.z is None else at.z
    return (z * at.slack).sum(-1) / (step.tau * newton.scale**2)


def _line_search(step: _Step, at: _Point, newton: _Newton, done: Tensor) -> Tensor:
    """Step lengths (*batch,): gaps stay open and the merit decreases as it should; 0 if none does."""
    start = step.merit(at.x, at.slack, at.nu)
    slope = (newton.g * newton.dx).sum(-1)
    eps = torch.finfo(at.x.dtype).eps if step.asked is None else SINGLE
    noise = 64 * eps * (1 + start.abs())  # below, decrease cannot be seen
    t = torch.where(done, 0.0, torch.ones_like(slope))
    for _ in range(HALVINGS):
        value = step.merit(*_moved(step, at, t[..., None] * newton.dx), at.nu)
        bad = value > start + 1e-4 * t * slope + noise
        if not bool(bad.any()):
            return t
        t = torch.where(bad, t / 2, t)
    return torch.where(bad, 0.0, t)


def _moved(step: _Step, at: _Point, dx: Tensor) -> tuple[Tensor, Tensor]:
    """x + dx and its slack, except that a slack which would lose more than half only shrinks like -1 / (4 r).

    So no gap closes, and one that would like to does not hold up the others. The mean is that of x + dx.
    """
    ds = torch.diff(dx)
    slack = at.slack * _positive(ds / at.slack)
    cut = torch.where(ds < -0.5 * at.slack, slack - at.slack - ds, 0.0)
    shift = torch.nn.functional.pad(cut.cumsum(-1), (1, 0))
    mean = (step.mu.gram @ torch.ones_like(dx) * shift).sum(-1, keepdim=True)
    return at.x + dx + (shift - mean), slack


def _positive(r: Tensor) -> Tensor:
    """1 + r for r > -1/2, continued by -1 / (4 r), with the same slope."""
    return torch.where(r > -0.5, 1 + r, -0.25 / r.clamp(max=-0.5))


def _advance(step: _Step, at: _Point, newton: _Newton, t: Tensor, tol: float) -> _Point:
    x, slack = _moved(step, at, t[..., None] * newton.dx)
    if at.z is None:
        return replace(at, x=x, slack=torch.diff(x))
    dz = at.nu * step.mu.mass / at.slack - at.z - at.z / at.slack * torch.diff(newton.dx)
    z = at.z * torch.where(t[..., None] > 0, _positive(dz / at.z), 1.0)
    # Once the centre for this barrier is near, go on to a weaker one; multipliers stay near the centre.
    near = (newton.residual * newton.scale) ** 2 * step.tau <= at.nu[..., 0]
    least = 0.01 * tol * step.tau * newton.scale**2
    nu = torch.where(near & (t > 0), torch.maximum(0.1 * at.nu[..., 0], least), at.nu[..., 0])[..., None]
    centre = nu * step.mu.mass / slack
    return _Point(x, slack, nu, torch.minimum(torch.maximum(z, 1e-6 * centre), 1e6 * centre))


def _attached(mu: Quantiles, step: _Step, at: _Point, newton: _Newton) -> Tensor:
    """x with its derivatives: -H^-1 times those of the gradient of the objective, which vanishes at x."""
    if not (torch.is_grad_enabled() and (mu.x.requires_grad or _has_parameters(step))):
        return at.x
    g = step.differential(at.x) + mu.gram @ (at.x - mu.x) / step.tau
    return at.x - newton.H.solve(g - g.detach())


def _has_parameters(step: _Step) -> bool:
    return step.energy is not None and step.energy.wants_graph(step.mu)


def _message(newton: _Newton, iterations: int, failed: Tensor, local: Tensor) -> str:
    if bool((failed == 0).all()):
        return UNPROVED if bool(local.any()) else ""
    worst = newton.residual.max().item()
    convex = "" if bool(newton.convex.all()) else ", and the Hessian was not positive definite"
    return f"after {iterations} Newton iterations the residual is {worst:.2g}{convex}; halve dt"
