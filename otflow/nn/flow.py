"""A flow as a module of torch: tokens go in, tokens come out, and the weights of the field are learnt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from otflow.base import checks, status
from otflow.base.errors import FlowError
from otflow.dynamics.flow import flow
from otflow.fields import VelocityField
from otflow.measures import Measure
from otflow.nn.field_module import FieldModule, as_measure
from otflow.steppers import Stepper


class Flow(nn.Module):
    """x(t0) -> x(t1), where x' = v(t, mu)(x) and mu is the law of the tokens: a deep residual network.

    Its parameters are those of the field, under the names ``field.*``. Tokens with weights, labels or a
    space of their own come as a measure. A run that does not reach t1, be it for a blow-up, raises
    `FlowError`.

    Args:
        field, stepper, t1, dt, t0: as in `flow`.
        checkpoint: keep about sqrt(N) of the states of N steps for the backward pass rather than all that
            the steps computed, and compute the rest again: once more the work of the forward pass. Steps
            are the same up to rounding (inner solvers start cold in each stretch). For a fixed step.

    >>> import torch
    >>> import otflow as of
    >>> V = torch.nn.Parameter(-torch.eye(2))
    >>> net = of.nn.Flow(of.SoftmaxAttention(torch.eye(2), torch.eye(2), V), of.RK4(), t1=1.0, dt=0.1)
    >>> net(torch.ones(5, 3, 2)).shape, [name for name, _ in net.named_parameters()]
    (torch.Size([5, 3, 2]), ['field.V'])
    """

    def __init__(
        self,
        field: VelocityField,
        stepper: Stepper,
        *,
        t1: float,
        dt: float | None = None,
        t0: float = 0.0,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.stepper: Stepper = checks.instance(stepper, Stepper, "stepper")
        self.t0, self.t1 = checks.number(t0, "t0"), checks.number(t1, "t1")
        checks.require(self.t1 > self.t0, "t1", t1, f"time runs forward from t0 = {t0}", "choose t1 > t0")
        self.dt = None if dt is None else checks.positive(dt, "dt")
        self.checkpoint = checkpoint
        if checkpoint and (stepper.adaptive or dt is None):
            rule = "checkpoint=True cuts the run after a number of steps, which must be known"
            checks.fail("stepper, dt", (stepper, dt), rule, "use RK4() with dt=..., or checkpoint=False")
        self.field = FieldModule(field)

    def forward(self, x: Any) -> Any:
        """Tokens (*batch, n, d) at t0 -> tokens at t1; a measure -> a measure."""
        mu = as_measure(x)
        keep = self.checkpoint and torch.is_grad_enabled()
        for start, end in self._stretches() if keep else [(self.t0, self.t1)]:
            mu = self._again(mu, start, end) if keep else self._run(mu, start, end)
        return mu if isinstance(x, Measure) else mu.coords[0]

    def _run(self, mu: Measure, start: float, end: float) -> Measure:
        field = self.field.velocity_field
        # By default a flow ends a step at each multiple of dt, which matters after a jump; else one will do.
        save_at = None if self._jumps(start, end) and self.dt else [end]
        traj = flow(mu, field, self.stepper, t0=start, t1=end, dt=self.dt, save_at=save_at)
        found = set(np.atleast_1d(traj.status).ravel().tolist())
        if not status.all_ok(traj.status):
            raise FlowError(f"status {', '.join(sorted(found))} before t = {end:g}: {traj.message}.", traj)
        return traj.final

    def _again(self, mu: Measure, start: float, end: float) -> Measure:
        """The same, computed once more when gradients are asked for."""

        def run(*coords: Tensor) -> tuple[Tensor, ...]:
            return tuple(self._run(mu.at(coords), start, end).coords)

        with set_checkpoint_early_stop(False):  # which is an exception, and would look like a broken run
            return mu.at(checkpoint(run, *mu.coords, use_reentrant=False))

    def _stretches(self) -> Iterator[tuple[float, float]]:
        """About sqrt(N) intervals of as many steps; an end within rounding of a jump is the jump itself."""
        steps = (self.t1 - self.t0) / float(self.dt or math.inf)
        length = math.ceil(math.sqrt(steps)) * float(self.dt or math.inf)
        hair = 1e-9 * length
        times = [self.t0]
        for k in range(1, math.ceil((self.t1 - self.t0 - hair) / length)):
            t = self.t0 + k * length
            times.append(next(iter(self._jumps(t - hair, t + hair)), t))
        return zip(times, [*times[1:], self.t1], strict=True)

    def _jumps(self, start: float, end: float) -> list[float]:
        return [s for s in self.field.velocity_field.switches if start < s < end]

    def extra_repr(self) -> str:
        step = "" if self.dt is None else f", dt={self.dt:g}"
        return f"{self.stepper!r}, t0={self.t0:g}, t1={self.t1:g}{step}, checkpoint={self.checkpoint}"
