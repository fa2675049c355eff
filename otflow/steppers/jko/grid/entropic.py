"""Entropic JKO steps on grids: blurred, but cheap, for any energy with a pointwise proximal map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import DerivativeError
from otflow.base.kernels import row_tiles
from otflow.base.status import code
from otflow.base.tangent import align
from otflow.fields import Carry, SteepestDescent, VelocityField
from otflow.measures import Grid, Measure
from otflow.measures.base import total
from otflow.metrics import Wasserstein
from otflow.steppers.base import Memory, Step, Stepper
from otflow.steppers.jko.base import Move
from otflow.steppers.jko.grid.prox import Split, of_mass_one, split
from otflow.steppers.jko.stepper import as_descent, on_density
from otflow.transport.entropic.newton import NewtonSinkhorn
from otflow.transport.entropic.options import Sinkhorn, as_options

# A sum in the kernel domain above this is exact: the terms that underflow, below 1e-308, are rounding to
# it.
SAFE = 1e-280


class EntropicJKO(Stepper):
    """mu_{k+1} = argmin over nu of F(nu) + W_eps(nu, mu_k) / (2 dt) on a `Grid` (Peyré 2015), with

        W_eps(nu, mu) = min over plans pi of int |x - y|^2 dpi + eps KL(pi | dx dy),

    as in `sinkhorn`: the Gibbs kernel is exp(-|x - y|^2 / eps), a Gaussian of variance eps / 2. With F = 0 a
    step blurs mu_k by it: an error in proportion to eps, as if F had the additional term eps / (4 dt)
    Entropy(). ``debiased=True`` takes just this term away: W_eps(nu, mu) - eps / 2 (int nu log nu + int mu
    log mu) is W_2(nu, mu)^2 up to a constant and O(eps^2) where both have a finite Fisher information
    (Conforti and Tamanini 2021), and then so is the error.

    F is a sum of at most one `PorousMedium` or `DensityBound`, and of `Entropy`, `Potential` and
    `Interaction` terms; interactions are linearised at mu_k, all else is implicit. The step alternates
    between the two marginals in the log domain, with momentum; the number of iterations grows as eps falls.
    An eps below two thirds of the squared spacing is refused: moves shorter than a cell would be lost.

    Certificates of a step: ``residual``, the L1 error of the marginal of the plan; ``mass``, |mass - 1|;
    ``energy_gap``, F(mu_{k+1}) + int |x - y|^2 dpi / (2 dt) - F(mu_k). The inequality of the scheme holds
    for the blurred functional, eps KL / (2 dt) included: at rest in dimension d the gap is near
    d eps / (4 dt). When debiased, the cost in it is so too, and the inequality that of JKO up to
    O(eps^2 / dt).

    Args:
        eps: as in `sinkhorn`, twice the variance of the blur; or `Sinkhorn` with a bound ``tol`` on
            ``residual`` and with the iterations a step, ``max_iter``, beyond which its status is "max_iter".
        debiased: whether to remove the blur to first order.

    >>> import numpy as np, otflow as of
    >>> x = (np.arange(32) + 0.5) / 32
    >>> crowd = of.SteepestDescent(of.DensityBound(2.0), of.Wasserstein())
    >>> mu = of.Grid(4.0 * (x < 0.25), [x])
    >>> of.flow(mu, crowd, of.EntropicJKO(2e-3), t1=0.1, dt=0.1).final.density.max().item()
    2.0
    """

    stability = math.inf  # a minimiser exists for any step, or the step says that none does

    def __init__(self, eps: float | Sinkhorn, *, debiased: bool = False) -> None:
        self.sinkhorn = as_options(eps)
        rule = "densities on a grid have an iteration of their own"
        own = isinstance(self.sinkhorn.engine, NewtonSinkhorn)
        checks.require(own, "engine", self.sinkhorn.engine, rule, "leave engine out")
        self.debiased = debiased

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        descent, grid = _admitted(field, t, mu)
        _resolved(grid, self.sinkhorn.eps)
        with torch.no_grad():
            move = self.move(descent, float(dt.max()), grid, memory.carry)
            gap = descent.energy(move.mu) + move.cost / (2 * dt) - descent.energy(grid)
        carry = Carry(move.state, float(move.residual.max()), move.failed > 0, move.message)
        certificate = {"residual": move.residual, "energy_gap": gap, **on_density(move.mu)}
        return Step(move.mu, dt, dt, Memory(carry), move.failed, move.message, certificate)

    def move(self, field: SteepestDescent, tau: float, mu: Grid, carry: Carry | None) -> Move:
        """The step from mu; its state is the first variation of F on the way, which no time step scales."""
        options, variance = self.sinkhorn, self.sinkhorn.eps / 2
        scale = variance / tau
        parts = split(field.energy, mu, entropy=-scale / 2 if self.debiased else 0.0)
        parts.admits(scale)
        kernel = HeatKernel.gibbs(mu, variance)
        u = torch.zeros_like(parts.V) if carry is None else -carry.state / scale
        plan = scaling(kernel, mu, parts, scale, u, options.tol, options.max_iter)
        rho = of_mass_one(parts, plan.log_q, scale, mu)
        failed = (~(plan.residual <= options.tol)).to(torch.int64) * code("max_iter")
        worst = f"marginal error {float(plan.residual.max()):.3g} after {plan.iterations} iterations"
        message = f"{worst}, tol = {options.tol:g}: raise max_iter, eps or tol" if bool(failed.any()) else ""
        return Move(
            mu.at([rho.to(mu.dtype)]),
            sharp_cost(plan, mu, variance) if self.debiased else kernel.cost(plan.u, plan.v, mu),
            plan.residual,
            failed,
            plan.iterations,
            message,
            state=-scale * plan.u,
        )

    def __repr__(self) -> str:
        return f"EntropicJKO({self.sinkhorn.eps:g}{', debiased=True' if self.debiased else ''})"


def _admitted(field: VelocityField, t: Tensor, mu: Measure) -> tuple[SteepestDescent, Grid]:
    """The field and the measure, if this step can be taken with them."""
    descent = as_descent(field)
    checks.instance(descent.metric, Wasserstein, "metric")
    grid: Grid = checks.instance(mu, Grid, "mu")
    if torch.is_grad_enabled() and (grid.density.requires_grad or descent.requires_grad(t, grid)):
        raise DerivativeError("a flow by EntropicJKO() has no gradients; use torch.no_grad().")
    return descent, grid


def _resolved(mu: Grid, eps: float) -> None:
    """Refuse a kernel that the grid cannot carry by a fraction of a cell.

    The sum of a Gaussian over a lattice depends on its centre by 2 exp(-pi^2 eps / h^2), 0.3 % at
    eps = 2 h^2 / 3; at h^2 / 5 a drift by 0.3 h a step is 60 % too slow.
    """
    least = 2 * max(mu.spacing) ** 2 / 3
    if eps < least * (1 - 1e-9):
        checks.fail(
            "eps",
            eps,
            f"on this grid mass is stuck below eps = {least:.3g}",
            f"pass eps={least:.3g} or more, or a finer grid",
        )


@dataclass(frozen=True)
class BlurredPlan:
    """pi = exp(u + v) times the kernel: marginal mu in the second argument, exp(u + log_q) in the first."""

    u: Tensor
    v: Tensor
    log_q: Tensor  # log of the kernel applied to exp(v)
    residual: Tensor  # (*batch,)
    iterations: int


def scaling(
    kernel: HeatKernel, mu: Grid, parts: Split, scale: float, u: Tensor, tol: float, max_iter: int
) -> BlurredPlan:
    """Alternate: v makes the second marginal mu, then u makes the first one proximal; with momentum in u.

    This is exact block ascent of a concave dual. Nesterov's extrapolation has the same fixed point; it is
    forgotten as soon as it works against the ascent (O'Donoghue and Candès 2015, section 3.2).
    """
    log_mu = mu.density.to(u.dtype).log()  # -inf in empty cells
    relax = min(1.0, 1 + parts.entropy / scale)  # a negative entropy makes the plain ascent overshoot
    old, age = u, torch.zeros(mu.batch, dtype=u.dtype, device=u.device)
    for iterations in range(1, max_iter + 1):
        v = log_mu - kernel(u)
        log_q = kernel(v)
        log_r = parts.prox(log_q, scale)
        error = (u + log_q).exp() - log_r.exp()
        residual = total(error.abs(), mu.batch) * mu.cell
        going = residual > tol
        if iterations == max_iter or not bool(going.any()):
            break
        new = u + relax * (log_r - log_q - u)
        age = torch.where(total(error * (new - old), mu.batch) > 0, torch.zeros_like(age), age + 1)
        ahead = new + align(age / (age + 3), u) * (new - old)
        u, old = torch.where(align(going, u), ahead, u), new  # who has arrived waits for the others
    return BlurredPlan(u, v, log_q, residual, iterations)


def sharp_cost(plan: BlurredPlan, mu: Grid, variance: float) -> Tensor:
    """W_eps(nu, mu) - s (int nu log nu + int mu log mu) + s D log(2 pi s), s = eps / 2: W2^2 + O(eps^2).

    W_eps is the dual value, eps (int u dnu + int v dmu), the kernel being normalised; shape (*batch,).
    """
    log_mu, log_nu = mu.density.to(plan.u.dtype).log(), plan.u + plan.log_q
    parts = [
        torch.where(log_rho > -math.inf, log_rho.exp() * (w - log_rho / 2), 0.0)
        for w, log_rho in ((plan.u, log_nu), (plan.v, log_mu))
    ]
    return 2 * variance * total(parts[0] + parts[1], mu.batch) * mu.cell


class Factor(NamedTuple):
    """The kernel along one axis, (n, n): its logarithm and itself."""

    log: Tensor
    exp: Tensor

    @classmethod
    def of(cls, log: Tensor) -> Factor:
        return cls(log, log.exp())


@dataclass(frozen=True)
class HeatKernel:
    """A product of one factor per axis, applied in the log domain: n^(D+1) operations for n^D cells.

    ``squares`` are the squared distances along the axes.
    """

    factors: Sequence[Factor]
    squares: Sequence[Tensor]

    @classmethod
    def gibbs(cls, mu: Grid, variance: float) -> HeatKernel:
        """exp(-|x - y|^2 / (2 s)) dy / (2 pi s)^(D/2), the Gaussian of variance s."""
        squares = [(a[:, None] - a).square() for a in (axis.to(torch.float64) for axis in mu.axes)]
        units = [math.log(h / math.sqrt(2 * math.pi * variance)) for h in mu.spacing]
        return cls(
            [Factor.of(c / (-2 * variance) + unit) for c, unit in zip(squares, units, strict=True)], squares
        )

    def __call__(self, m: Tensor) -> Tensor:
        """log sum_j exp(L_ij + m_j), L the sum of the logarithms over the axes."""
        return _along_axes(self.factors, m)

    def cost(self, u: Tensor, v: Tensor, mu: Grid) -> Tensor:
        """int |x - y|^2 dpi for pi = exp(u + v) times the kernel, shape (*batch,); axis by axis."""
        parts = []
        for k, square in enumerate(self.squares):
            factors = [Factor.of(f.log + square.log()) if i == k else f for i, f in enumerate(self.factors)]
            parts.append(total((u + _along_axes(factors, v)).exp(), mu.batch) * mu.cell)
        return torch.stack(parts).sum(0)


def _along_axes(factors: Sequence[Factor], m: Tensor) -> Tensor:
    for k, factor in enumerate(factors, start=m.ndim - len(factors)):
        m = log_apply(factor, m.movedim(k, -1)).movedim(-1, k)
    return m


def log_apply(factor: Factor, m: Tensor) -> Tensor:
    """log sum_j exp(L_ij + m_j) along the last axis: a matrix product of exponentials where that is safe.

    With the maximum of each line taken out, a term that underflows is below 1e-300 or so, which cannot
    matter for a sum above 1e-280. The other sums are formed from the logarithms.

    >>> import torch
    >>> from otflow.steppers.jko.grid.entropic import Factor, log_apply
    >>> L = -torch.tensor([[0.0, 1e4], [1e4, 0.0]], dtype=torch.float64)
    >>> log_apply(Factor.of(L), torch.tensor([0.0, -5e3], dtype=torch.float64))
    tensor([    0., -5000.], dtype=torch.float64)
    """
    top = m.amax(-1, keepdim=True)
    filled = torch.isfinite(top)  # an empty line stays empty
    top = torch.where(filled, top, torch.zeros_like(top))
    sums = (m - top).exp() @ factor.exp.mT
    out = sums.log() + top
    lost = (sums < SAFE) & filled
    return _repaired(out, lost, factor.log, m) if bool(lost.any()) else out


def _repaired(out: Tensor, lost: Tensor, L: Tensor, m: Tensor) -> Tensor:
    """``out`` with the lost entries summed from logarithms, some at a time."""
    n = L.shape[0]
    which = lost.reshape(-1).nonzero()[:, 0]
    lines, values = m.reshape(-1, n), out.reshape(-1).clone()
    for rows in row_tiles(len(which), n):
        at = which[rows]
        values[at] = (lines[at // n] + L[at % n]).logsumexp(-1)
    return values.reshape(out.shape)
