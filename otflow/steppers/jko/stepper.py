"""The JKO stepper, and the minimising movement as a function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Literal

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import ConvergenceError, DerivativeError
from otflow.energies import Energy
from otflow.energies.base import one_each
from otflow.fields import Carry, SteepestDescent, VelocityField
from otflow.fields.descent import joint_descent
from otflow.measures import Grid, Measure
from otflow.metrics import Metric, Wasserstein
from otflow.steppers.base import Memory, Step, Stepper
from otflow.steppers.jko.base import Move, MovementProblem, minimise

_FAILS = (
    "the energy inequality of the JKO step fails by {:.2e}; on a grid where the density jumps and mass moves "
    "by less than a cell, take a longer dt, smooth the density, refine the grid, or use EntropicJKO()"
)


class JKO(Stepper):
    """mu_{k+1} = argmin_nu F(nu) + d(nu, mu_k)^2 / (2 dt): the minimising movement (Jordan et al. 1998).

    For a `SteepestDescent` of F; d is the distance of its metric. Order 1 and no bound on dt but that of
    convexity. What is minimised over, and how, the measure decides:

        Particles   displacements, by a truncated Newton method: the minimiser is an optimal map
        Gaussian    the same; closed form for quadratic energies plus entropy
        Quantiles   Newton's method on the line, for every internal energy
        Grid        the dual problem, without blur

    Labels do not move. Under `Twisted` the weight is frozen at mu_k, unless the metric says ``frozen=False``.
    Certificates, the worst since the last save: "cost", the squared distance d^2; "residual", |u/dt + grad F|
    relative to |grad F(mu_k)|; "energy_gap", F(mu_{k+1}) + d^2/(2 dt) - F(mu_k), which is not positive;
    "gap", the relative duality gap, on grids; "concavity", the largest -dt lambda met among curvatures lambda
    of F along the search, a sample that proves nothing; "blur", on grids, the variance
    by which transport was blurred, 0 but for steps that the exact problem does not resolve, as from
    densities that jump: there the step is the debiased entropic one with a blur below the width of a cell,
    if that keeps the energy inequality; "mass" and "negative", on grids, the error of the mass and the depth
    below zero. Inner solves that fail end the run with a status.

    A step is "ok" where it is proved to be the argmin, and "local" where no better measure was met and none
    is excluded; a run with a local step is "local", which is a success. The proof on particles, Gaussians and
    quantiles is a bound F'' >= lambda, 1 + dt lambda > 0, wherever a minimiser can be. Quadratic and internal
    energies, those of attention on Gaussians that are convex, and `MMD` with a Gaussian kernel know theirs;
    `Potential` and `Interaction` take it as ``curvature=``. Where potentials alone act, each particle goes by
    itself, and ``infimum=`` confines it: |y - x|^2 <= 2 dt (phi - inf U), phi the least value met of what it
    minimises. Then the bound is needed in that ball only, and on the line and in the plane branch and bound
    searches the ball. In other metrics, F has to be convex.

    Args:
        tol: bound on the relative residual of the inner solver; by default 1e-10 (1e-4 on tokens in float32),
            1e-9 on quantiles; Gaussians and quantiles in float32 are moved in float64, if the energy takes
            that. On grids it bounds the relative error of the displacement: 1e-4 on the line, in the plane
            3e-3 or, if larger, 0.4 over the number of cells along an axis.
        max_iter: limit on the iterations of the inner solver; by default that of the solver.
        starts: how many searches a step makes, from as many places, as one batch; the lowest minimum is
            taken. That may show that a minimum is not the best one, and never that it is. Steps in closed
            form, on quantiles and on grids take no notice.

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> traj = of.flow(of.Particles([[1.0]]), pull, of.JKO(), t1=1.0, dt=0.5)
    >>> round(traj.final.x.item(), 10)  # 1 / 1.5^2
    0.4444444444
    """

    stability = math.inf  # a minimiser exists for any step, or the step says that none does

    def __init__(self, *, tol: float | None = None, max_iter: int | None = None, starts: int = 1) -> None:
        self.tol = None if tol is None else checks.positive(tol, "tol")
        self.max_iter = None if max_iter is None else checks.count(max_iter, "max_iter")
        self.starts = checks.count(starts, "starts")

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        descent = as_descent(field)
        admit(field, mu)
        refuse_gradients(descent, mu)
        problem = self.problem(descent.energy, descent.metric, float(dt))
        carry = memory.carry
        move, certificate = certified(mu, problem, carry.state if carry else None)
        carry = Carry(state=move.state, residual=float(move.residual.max()))
        return Step(move.mu, dt, dt, Memory(carry), move.failed, move.message, certificate, move.local)

    def problem(self, energy: Energy, metric: Metric, tau: float) -> MovementProblem:
        """The minimisation of one step with these options."""
        return MovementProblem(energy, metric, tau, self.tol, self.max_iter, self.starts)

    def __repr__(self) -> str:
        given = {
            "tol": self.tol,
            "max_iter": self.max_iter,
            "starts": None if self.starts == 1 else self.starts,
        }
        return f"JKO({', '.join(f'{name}={v:g}' for name, v in given.items() if v is not None)})"


def jko_step(
    mu: Measure,
    energy: Energy,
    tau: float,
    *,
    metric: Metric | None = None,
    tol: float | None = None,
    max_iter: int | None = None,
    starts: int = 1,
    on_failure: Literal["raise", "return"] = "raise",
) -> Move:
    """One step, argmin_nu energy(nu) + d(nu, mu)^2 / (2 tau), with its certificates.

    Args:
        mu: where the step starts.
        energy: what it minimises.
        tau: its length, > 0.
        metric: that of d; `Wasserstein()` if left out.
        tol, max_iter, starts: as for `JKO`.
        on_failure: "raise" raises `ConvergenceError`, which carries the result, if it is neither "ok" nor
            "local"; "return" returns it.

    >>> import otflow as of
    >>> move = of.jko_step(of.Gaussian([0.0], root=[[1.0]]), of.Entropy(), 0.5)
    >>> round(move.mu.cov.item(), 6), move.status  # ((1 + 3 ** 0.5) / 2) ** 2
    (1.866025, 'ok')
    """
    checks.instance(mu, Measure, "mu")
    strict = checks.raises(on_failure)
    metric = Wasserstein() if metric is None else checks.instance(metric, Metric, "metric")
    refuse_gradients(SteepestDescent(energy, metric), mu)
    problem = JKO(tol=tol, max_iter=max_iter, starts=starts).problem(
        energy, metric, checks.positive(tau, "tau")
    )
    with torch.no_grad():
        move, _ = certified(mu, problem, None)
    if strict and bool((move.failed > 0).any()):
        raise ConvergenceError(move.message, move)
    return move


def certified(mu: Measure, problem: MovementProblem, start: object) -> tuple[Move, Mapping[str, Tensor]]:
    """The minimiser, with the energy inequality checked."""
    before = problem.energy(mu)
    one_each(before, mu)
    move = minimise(mu, problem, start)
    after = problem.energy(move.mu)
    paid = move.cost / (2 * problem.tau)
    gap = torch.where(before == torch.inf, -torch.inf, after + paid - before)
    slack = _slack(mu, (before.abs() + after.abs()).nan_to_num(posinf=0.0), paid)
    wrong = (move.failed == 0) & ~(gap <= slack)
    move = replace(
        move,
        energy_gap=gap,
        failed=torch.where(wrong, status.code("uncertified"), move.failed),
        message=_FAILS.format(float(gap.max())) if bool(wrong.any()) else move.message,
    )
    known = {
        "cost": move.cost,
        "residual": move.residual,
        "energy_gap": gap,
        "gap": move.gap,
        "concavity": move.concavity,
        "blur": move.blur,
    }
    own = {name: value for name, value in known.items() if value is not None}
    return move, own | dict(on_density(move.mu))


@singledispatch
def _slack(mu: Measure, size: Tensor, paid: Tensor) -> Tensor:
    """By how much the energy inequality may fail: there is equality at rest, up to rounding."""
    return max(1e-9, 64 * torch.finfo(paid.dtype).eps) * size


@_slack.register(Grid)
def _(mu: Grid, size: Tensor, paid: Tensor) -> Tensor:
    return 1e-5 * size + 1e-2 * paid  # and what the tolerance of the solver leaves


@singledispatch
def on_density(mu: Measure) -> Mapping[str, Tensor]:
    """How well mass and sign of a density were kept; other measures keep them by nature."""
    return {}


@on_density.register(Grid)
def _(mu: Grid) -> Mapping[str, Tensor]:
    rho = mu.density.reshape(*mu.batch, -1)
    return {"mass": (rho.sum(-1) * mu.cell - 1).abs(), "negative": -rho.amin(-1).clamp(max=0)}


def as_descent(field: VelocityField) -> SteepestDescent:
    """A sum of steepest descents in one metric as the descent of one energy."""
    rule = "an energy is needed, and this field is not the steepest descent of one"
    remedy = "use field.as_gradient_flow() if it has an energy, or step it with ForwardBackward()"
    checks.require(
        all(isinstance(term, SteepestDescent) for term, _ in field.pairs()), "field", field, rule, remedy
    )
    found = joint_descent(field)
    if found is None:
        checks.fail("field", repr(field), "its descents have several metrics", "let them share one")
    return found


def admit(field: VelocityField, mu: Measure) -> None:
    """Let every descent in a sum refuse the measure."""
    for term, _ in field.pairs():
        if isinstance(term, SteepestDescent):
            term.admit(mu)


def refuse_gradients(field: SteepestDescent, mu: Measure) -> None:
    if torch.is_grad_enabled() and (any(c.requires_grad for c in mu.coords) or field.energy.wants_graph(mu)):
        raise DerivativeError("a JKO step has no gradients; use Euler() or Dopri5().")
