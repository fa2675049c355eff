"""Repetitions: a stretch of a run once more, from a state before and with shorter steps."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from otflow.base import status
from otflow.base.tangent import Tangent, align
from otflow.dynamics.recorder import Recorder
from otflow.dynamics.stepping import FlowProblem, FlowRun, StepLimits, Suspects, advance
from otflow.fields import VelocityField
from otflow.measures import Measure
from otflow.steppers import Memory

# Chosen.
STEPS = 2000  # of one repetition
ALL_STEPS = 10_000  # of all of one failure
MORE = 64  # steps that a repetition goes on if its last ones were beyond the limit of stability
LATEST = 5  # states of a repetition that are kept
POWER = 12  # iterations that estimate the largest modulus of the Jacobian


def again(
    start: FlowRun, which: Tensor, problem: FlowProblem, h: float, end: float, deadline: float
) -> FlowRun:
    """Some members once more, from a state before and with another step."""
    return deque(_states(start, which, problem, h, end, deadline), maxlen=1).pop()


def _states(
    start: FlowRun, which: Tensor, problem: FlowProblem, h: float, end: float, deadline: float
) -> Iterator[FlowRun]:
    others = torch.where(start.codes == 0, status.code("stopped"), start.codes)
    run = replace(start, dt=torch.full_like(start.dt, h), memory=Memory(), steps=0, intact=False)
    run = replace(run, codes=torch.where(which, 0, others), ended=torch.full_like(run.ended, torch.nan))
    yield run  # the start itself
    jumps = [s for s in problem.field.switches if float(run.t) < s < end]
    for stop in (*jumps, end):
        for state in advance(run, problem, stop, StepLimits(None, STEPS, deadline), Recorder({})):
            run = state
            yield run


@dataclass
class Repetitions:
    """Repetitions of one failure from one start."""

    start: FlowRun
    suspects: Suspects
    problem: FlowProblem
    deadline: float
    times: list[Tensor] = field(default_factory=list)  # of failure, NaN for all others
    latest: deque[FlowRun] = field(default_factory=lambda: deque(maxlen=LATEST))  # of the last repetition
    sizes: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # of the last one: time and |x|
    steps: int = 0

    def run(self, h: float) -> Tensor:
        """Which members survived the step h; ``times`` and ``latest`` keep the rest.

        Those that end with steps beyond the limit of stability did not survive, as coarse steps past a pole:
        they go on for a while, to see whether they leave the finite numbers.
        """
        which, self.sizes = self.suspects.which, []
        run = self._followed(self.start, which, h, self.suspects.t + float(self.start.dt))
        times, good = _left(run, which), (run.codes == 0) & which
        # Those whose time was up are well if they have not grown: a short step takes long to get there.
        calm = (run.codes == status.code("budget")) & (size(run.mu) <= 1.001 * size(self.start.mu))
        long = good & (h * radii(self.problem.limiting, run.t, run.mu) > self.problem.stepper.stability)
        if bool(long.any()):
            run = self._followed(run, long, h, float(run.t) + MORE * h)
            times = torch.where(long, _left(run, long), times)
        self.times.append(times)
        return (good & ~long) | (calm & which)

    def _followed(self, start: FlowRun, which: Tensor, h: float, end: float) -> FlowRun:
        for run in _states(start, which, self.problem, h, end, self.deadline):
            self.latest.append(run)
            self.sizes.append((run.t, size(run.mu)))
        self.steps += self.latest[-1].steps
        return self.latest[-1]

    def halfway(self) -> Tensor:
        """When log |x| had come half of the way to its end, (*batch,); NaN if that is not far."""
        times, sizes = (torch.stack(column) for column in zip(*self.sizes, strict=True))
        first, last = sizes[0].clamp(min=1.0), sizes[-1]
        index = (sizes < first.sqrt() * last.sqrt()).sum(0).clamp(max=len(times) - 1)
        far = last > math.sqrt(torch.finfo(self.start.mu.dtype).max)
        return torch.where(far, times[index], torch.nan)

    @property
    def over(self) -> bool:
        return self.late or self.steps > ALL_STEPS

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline


def rate(field: VelocityField, run: FlowRun) -> Tensor:
    """|v| / |x| of each member, (*batch,): the rate of its growth."""
    v, _ = field.evaluate(run.t, run.mu)
    return largest(v, run.mu) / size(run.mu).clamp(min=1e-300)


def size(mu: Measure) -> Tensor:
    """The largest coordinate of each member, (*batch,)."""
    return largest(mu.coords, mu)


def largest(u: Tangent, mu: Measure) -> Tensor:
    return torch.stack([p.double().abs().reshape(*mu.batch, -1).amax(-1) for p in u]).amax(0)


def radius(field: VelocityField, t: Tensor, mu: Measure, which: Tensor) -> float:
    """The largest modulus of the Jacobian among some members; NaN if it has none."""
    return float(radii(field, t, mu)[which].amax())


def radii(field: VelocityField, t: Tensor, mu: Measure) -> Tensor:
    """The largest modulus of the Jacobian of each member by the power method, (*batch,); NaN if it has none.

    The growth of a vector over the second half of the iterations, which is right for pairs of complex
    eigenvalues too. Infinite where the Jacobian is beyond floating point.
    """
    seed = torch.Generator().manual_seed(0)
    u = Tangent(torch.randn(c.shape, generator=seed, dtype=torch.float64).to(c) for c in mu.coords)
    growth = []
    try:
        for _ in range(POWER):
            length = largest(u, mu).clamp(min=1e-300)
            u = field.linearised(t, mu, Tangent(p / align(length, p) for p in u), torch.zeros_like(t))
            growth.append(largest(u, mu))
    except Exception:  # a field of somebody else may have no derivative, and says so in its own way
        return torch.full(mu.batch, torch.nan, dtype=torch.float64, device=mu.device)
    rates = torch.stack(growth)
    found: Tensor = rates[POWER // 2 :].log().mean(0).exp()
    return torch.where(rates.isinf().any(0), torch.inf, found)


def _left(run: FlowRun, which: Tensor) -> Tensor:
    """When some members left the finite numbers, NaN for all others."""
    return torch.where((run.codes == status.code("unstable")) & which, run.ended, torch.nan)
