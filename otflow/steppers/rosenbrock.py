"""A Rosenbrock method, which is linearly implicit, for stiff flows of few coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import DerivativeError
from otflow.base.tangent import Tangent
from otflow.fields import VelocityField
from otflow.measures import Measure
from otflow.steppers.adaptive import Adaptive
from otflow.steppers.base import Memory, Step, stage_time
from otflow.steppers.explicit import Stages

# (I / (h gamma) - J) k_i = f(t + c_i h, x + sum_j a_ij k_j) + sum_j b_ij k_j / h + g_i h f_t
GAMMA = 0.5
A = ((), (0.0,), (2.0, 0.0), (2.0, 0.0, 1.0))
B = ((), (4.0,), (1.0, -1.0), (1.0, -1.0, -8 / 3))
C = (0.0, 0.0, 1.0, 1.0)
G = (0.5, 1.5, 0.0, 0.0)
M = (2.0, 0.0, 1.0, 1.0)
E = (0.0, 0.0, 0.0, 1.0)


class Rosenbrock(Adaptive):
    """Order 3, L-stable: four linear solves with the Jacobian of the field, and no bound on the step by its
    fastest modes (Rodas3 of Sandu et al. 1997).

    For laws where fast exponential modes outlive their interest and slow ones remain. The Jacobian has the
    square of the number of coordinates of a member: good for Gaussians and for few tokens. No gradients.

    Args:
        rtol, atol: tolerances, as for `Dopri5`.
        longest: a bound on the steps, for fields that change with time in ways that the state does not show.

    >>> import otflow as of
    >>> decay = of.Perceptron([[-1e6, 0.0], [0.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]], activation=None)
    >>> traj = of.flow(of.Gaussian([1.0, 1.0], root=[[1.0], [1.0]]), decay, of.Rosenbrock(), t1=1.0)
    >>> traj.steps < 1000, traj.final.mean
    (True, tensor([0.0000, 0.3679], dtype=torch.float64))
    """

    order = 3

    def __init__(self, rtol: float = 1e-6, atol: float = 1e-9, *, longest: float | None = None) -> None:
        super().__init__(rtol, atol)
        self.longest = math.inf if longest is None else checks.positive(longest, "longest")

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        _refuse_gradients(field, t, mu)
        h = torch.where(dt > 0, dt, torch.ones_like(dt))  # members that wait or have ended do not move
        done = Stages([memory.first], memory.carry) if memory.first else _evaluated(field, t, mu, memory)
        J, slope = _jacobian(field, t, mu)
        own = h.to(J.dtype)[..., None]  # clocks are in double precision, whatever the measure
        solve, rise = _solver(J, own[..., None]), own * slope
        k: list[Tensor] = []
        for a, b, c, g in zip(A, B, C, G, strict=True):
            if c:
                here = mu.move(_unflat(_sum(a, k), mu))
                done = done.after(*field.evaluate(stage_time(t, h, c), here, done.carry))
            rhs = _flat(done.v[-1], mu) + g * rise
            k.append(solve(rhs + _sum(b, k) / own if k else rhs))
        moved = mu.move(_unflat(torch.where(dt[..., None] > 0, _sum(M, k), 0.0), mu))
        done = done.after(*field.evaluate(stage_time(t, h, 1.0), moved, done.carry))
        error = _sum(E, k).masked_fill(self._passes(J, own, mu, moved)[..., None], math.inf)
        step = self.conclude(t, dt, mu, moved, _unflat(error, mu), done, memory.error)
        return replace(step, dt_next=step.dt_next.clamp(max=self.longest))

    def _passes(self, J: Tensor, h: Tensor, mu: Measure, moved: Measure) -> Tensor:
        """Who passed a pole: I / (h' gamma) - J is singular for an h' <= h, and the state leaps; (*batch,).

        Riccati equations are solved without error on either side of their poles, so that no estimate tells.
        A mode that grows as fast but is not excited does not move the state, and bounds no step.
        """
        before, after = _flat(mu.coords, mu), _flat(moved.coords, mu)
        leaps = ((after - before).abs() > before.abs() + self.atol).any(-1)
        known = leaps & torch.isfinite(J).all((-1, -2))
        if not bool(known.any()):
            return known
        modes = torch.linalg.eigvals(torch.where(known[..., None, None], J, 0.0))
        rounding = torch.finfo(J.dtype).eps ** 0.5 * modes.abs()  # splits a double eigenvalue into a pair
        return known & ((modes.imag.abs() <= rounding) & (GAMMA * h * modes.real >= 1)).any(-1)

    def first_dt(self, field: VelocityField, t: Tensor, mu: Measure, longest: float) -> Tensor:
        return super().first_dt(field, t, mu, min(longest, self.longest))


def _refuse_gradients(field: VelocityField, t: Tensor, mu: Measure) -> None:
    if torch.is_grad_enabled() and (any(c.requires_grad for c in mu.coords) or field.requires_grad(t, mu)):
        raise DerivativeError("a flow by Rosenbrock() has no gradients; use Dopri5().")


def _evaluated(field: VelocityField, t: Tensor, mu: Measure, memory: Memory) -> Stages:
    return Stages([]).after(*field.evaluate(t, mu, memory.carry))


def _solver(J: Tensor, h: Tensor) -> Callable[[Tensor], Tensor]:
    """b -> (I / (h gamma) - J)^-1 b; not finite where that is singular, so that the step is rejected."""
    eye = torch.eye(J.shape[-1], dtype=J.dtype, device=J.device)
    LU, pivots, _ = torch.linalg.lu_factor_ex(eye / (GAMMA * h) - J)
    return lambda b: torch.linalg.lu_solve(LU, pivots, b[..., None])[..., 0]


def _jacobian(field: VelocityField, t: Tensor, mu: Measure) -> tuple[Tensor, Tensor]:
    """The derivatives of the velocity in the coordinates, (*batch, m, m), and in time, (*batch, m)."""
    # The copies for J are one axis more in front; a single measure keeps its time of shape (), as fields are
    # promised, so that the derivative in time, of another clock than its copies have, is a call of its own.
    m = sum(c.shape[len(mu.batch) :].numel() for c in mu.coords)
    copies = mu.at(mu.coords.map(lambda c: c.expand(m, *c.shape).clone()))
    eye = torch.eye(m, dtype=mu.dtype, device=mu.device)
    eye = eye.reshape(m, *[1] * len(mu.batch), m).expand(m, *mu.batch, m).clone()
    clocks = t.expand(copies.batch).clone() if t.ndim else t
    J = field.linearised(clocks, copies, _unflat(eye, copies), torch.zeros_like(clocks))
    slope = field.linearised(t, mu, mu.coords.map(torch.zeros_like), torch.ones_like(t))
    return _flat(J, copies).movedim(0, -1), _flat(slope, mu)


def _flat(u: Tangent, mu: Measure) -> Tensor:
    """All pieces of a tangent in one vector per member, (*batch, m)."""
    return torch.cat([piece.reshape(*mu.batch, -1) for piece in u], -1)


def _unflat(vector: Tensor, mu: Measure) -> Tangent:
    sizes = [c.shape[len(mu.batch) :].numel() for c in mu.coords]
    parts = vector.split(sizes, -1)
    return Tangent(part.reshape(c.shape) for part, c in zip(parts, mu.coords, strict=True))


def _sum(coefficients: Sequence[float], k: Sequence[Tensor]) -> Tensor:
    return torch.stack([c * u for c, u in zip(coefficients, k, strict=True)]).sum(0)
