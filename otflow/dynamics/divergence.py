"""Divergence under a fixed step: whether the equation blew up, the step was too long, or the field broke.

A run that leaves the finite numbers says nothing about its equation yet. From a good state before, it is
repeated with halved steps:

- times of failure that converge to a positive time are a blow-up, with an error bar, or an overflow if the
  growth was exponential, which takes for ever;
- steps that survive show that the run was unstable, and which step is not;
- a state that did not grow was broken by a velocity that is no number;
- else nothing is known but that the step was too long: unstable.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from otflow.base import status
from otflow.base.errors import InputError
from otflow.base.tangent import Tangent
from otflow.dynamics.recorder import Recorder
from otflow.dynamics.stepping import FlowProblem, FlowRun, StepLimits, Suspects, advance
from otflow.fields import VelocityField
from otflow.fields.base import SumField
from otflow.measures import Measure
from otflow.steppers import Memory

# All chosen.
HALVINGS = 12
STEPS = 4000  # of one repetition
ALL_STEPS = 16_000  # of all of one failure
GROUPS = 16  # failures of a batch that are examined; more are called unstable without
TOL = 0.02  # of times of failure, relative to the time since the start of the repetition
RESOLVED = 0.25  # of the stability limit: where a step is short enough for errors to shrink with it
POWER = 12  # iterations that estimate the largest modulus of the Jacobian
GROWN = 1e3  # a state that grew by less than this did not run away
FASTER = 10.0  # growth is faster than exponential if its rate has grown by this


@dataclass(frozen=True)
class Diagnosis:
    """What became of the members of a batch, (*batch,) each."""

    codes: Tensor
    time: Tensor  # of the blow-up
    error: Tensor  # its error bar
    message: str = ""


@dataclass
class _Trial:
    """Repetitions of one failure from one start."""

    start: FlowRun
    suspects: Suspects
    problem: FlowProblem
    deadline: float | None
    times: list[Tensor] = field(default_factory=list)  # of failure, NaN for all others
    last: FlowRun | None = None
    steps: int = 0

    def run(self, h: float) -> Tensor:
        """Which members survived the step h; ``times`` and ``last`` keep the rest."""
        end = self.suspects.t + float(self.start.dt)
        run = _again(self.start, self.suspects.which, self.problem, h, end, self.deadline)
        left = (run.codes == status.code("unstable")) & self.suspects.which
        self.times.append(torch.where(left, run.ended, torch.nan))
        self.last, self.steps = run, self.steps + run.steps
        # Those whose time was up are well if they have not grown: a short step takes long to get there.
        calm = (run.codes == status.code("budget")) & (_size(run.mu) <= 2 * _size(self.start.mu))
        return ((run.codes == 0) | calm) & self.suspects.which

    @property
    def over(self) -> bool:
        late = self.deadline is not None and time.monotonic() > self.deadline
        return late or self.steps > ALL_STEPS


def _again(
    start: FlowRun, which: Tensor, problem: FlowProblem, h: float, end: float, deadline: float | None
) -> FlowRun:
    """Some members once more, from a state before and with another step."""
    others = torch.where(start.codes == 0, status.code("stopped"), start.codes)
    run = replace(start, dt=torch.full_like(start.dt, h), memory=Memory(), steps=0, intact=False)
    run = replace(run, codes=torch.where(which, 0, others), ended=torch.full_like(run.ended, torch.nan))
    jumps = [s for s in problem.field.switches if float(run.t) < s < end]
    for stop in (*jumps, end):
        for state in advance(run, problem, stop, StepLimits(None, STEPS, deadline), Recorder({})):
            run = state
    return run


@torch.no_grad()
def examine(run: FlowRun, problem: FlowProblem, deadline: float | None) -> tuple[FlowRun, Tensor]:
    """The run with its failures named, and error bars of times of blow-up, (*batch,)."""
    error = torch.full_like(run.ended, torch.nan)
    trail, quiet = problem.trail, replace(problem, trail=None)
    if trail is None:
        return _named(run, quiet), error
    for suspects in trail.suspects[:GROUPS]:
        found = _verdict(suspects, quiet, deadline)
        blown = found.codes == status.code("blow_up")
        run = replace(
            run,
            codes=torch.where(suspects.which, found.codes, run.codes),
            ended=torch.where(blown, found.time, run.ended),
            message=found.message or run.message,
        )
        error = torch.where(blown, found.error, error)
    return run, error


def _named(run: FlowRun, problem: FlowProblem) -> FlowRun:
    """An adaptive run with the name of the field that gave it no number, if one did."""
    which = run.codes == status.code("invalid")
    if not bool(which.any()):
        return run
    t = float(run.ended[which].min())
    ahead = run.t + 1e-9 * run.t.abs().clamp(min=1.0)  # where the last step failed
    name = broken(problem.field, run.t, run.mu) or broken(problem.field, ahead, run.mu)
    return replace(run, message=_not_a_number(name or repr(problem.field), t))


def _verdict(suspects: Suspects, problem: FlowProblem, deadline: float | None) -> Diagnosis:
    before = suspects.past[-1]
    unknown = torch.full_like(before.ended, torch.nan)
    calm = len(suspects.past) == 1 or not _hurries(problem.field, suspects.past[-2], suspects.which)
    if calm and (name := broken(problem.field, before.t, before.mu)) is not None:
        codes = torch.full_like(before.codes, status.code("invalid"))
        return Diagnosis(codes, unknown, unknown, _not_a_number(name, float(before.t)))
    start, stiff = _resolved(suspects, problem)
    trial = _Trial(start, suspects, problem, deadline)
    return _judge(trial, *_repeat(trial, stiff))


def _resolved(suspects: Suspects, problem: FlowProblem) -> tuple[FlowRun, float]:
    """The latest good state at which the step was short enough, and by what to divide the step at first.

    That state has the few latest behind it, so that there is time to see times of failure converge.
    """
    late = [run for run in suspects.past if run.steps <= max(suspects.past[-1].steps - 3, 0)]
    limit = problem.stepper.stability
    for run in reversed(late):
        z = float(run.dt) * radius(problem.field, run.t, run.mu, suspects.which)
        if not z > RESOLVED * limit:  # also where it is not known
            return run, 1.0
    return late[0], 2.0 ** max(0, math.ceil(math.log2(min(z, 2.0**40) / limit)))


def _repeat(trial: _Trial, divide: float) -> tuple[Tensor, float]:
    """Halve the step until all survive or all times of failure converge: who survived, and the last step."""
    which, h = trial.suspects.which, float(trial.start.dt) / divide
    survived = torch.zeros_like(which)
    for _ in range(HALVINGS):
        h /= 2
        now = trial.run(h)
        survived |= now
        done = survived | _converged(trial, h)[0]
        if bool(done[which].all()) or trial.over:
            break
    return survived, h


def _converged(trial: _Trial, h: float) -> tuple[Tensor, Tensor, Tensor]:
    """Whose times of failure converge to a positive time, that time, and its error bar; (*batch,) each.

    The bar is twice the last change and the step, by which any time is rounded.
    """
    if len(trial.times) < 3:
        nan = torch.full_like(trial.times[0], torch.nan)
        return torch.zeros_like(nan, dtype=torch.bool), nan, nan
    a, b, c = trial.times[-3:]
    span, before, now = c - float(trial.start.t), (b - a).abs(), (c - b).abs()
    shrinks = (now <= 0.75 * before) | (before <= 1e-9 * span)
    return (span > 0) & shrinks & (now <= TOL * span), c, 2 * (now + h)


def _judge(trial: _Trial, survived: Tensor, h: float) -> Diagnosis:
    which, start = trial.suspects.which, trial.start
    last = start if trial.last is None else trial.last
    converged, when, error = _converged(trial, h)
    left = converged & ~survived
    rate, before = (_rate(trial.problem.field, run) for run in (last, start))
    growth = _size(last.mu) / _size(start.mu).clamp(min=1.0)
    hurries = (rate * float(last.dt) > 1) & (rate.isfinite() | (growth > 10))
    ran = (growth > GROWN) | hurries
    faster = ~(rate <= FASTER * before)  # a velocity beyond floating point is faster
    codes = torch.full_like(last.codes, status.code("unstable"))
    for name, these in (("blow_up", ran & faster), ("overflow", ran & ~faster), ("invalid", ~ran)):
        codes = torch.where(left & these, status.code(name), codes)
    if bool((codes == status.code("blow_up"))[which].any()):
        error = error + 3 * (_refined(trial, h) - when).abs()
    return Diagnosis(codes, when, error, _message(trial, which & survived, torch.where(which, codes, 0), h))


def _refined(trial: _Trial, h: float) -> Tensor:
    """The time of failure if the run until the start of the repetitions had taken half of its step.

    Three times the difference is taken for what the steps before that start add to the error: Roache's factor
    of safety for two meshes at order one ("Verification and validation", 1998).
    """
    start = trial.start
    near = [run for run in trial.suspects.past if 2 * (start.steps - run.steps) <= STEPS]
    origin = min(near, key=lambda run: run.steps)
    half = _again(
        origin, trial.suspects.which, trial.problem, float(start.dt) / 2, float(start.t), trial.deadline
    )
    other = _Trial(replace(half, dt=start.dt), trial.suspects, trial.problem, trial.deadline)
    other.run(h)
    return other.times[-1]


def _hurries(field: VelocityField, run: FlowRun, which: Tensor) -> bool:
    """Whether a step moves some of these members by more than a tenth of their size."""
    return bool((_rate(field, run) * float(run.dt) > 0.1)[which].any())


def _rate(field: VelocityField, run: FlowRun) -> Tensor:
    """|v| / |x| of each member, (*batch,): the rate of its growth."""
    v, _ = field.evaluate(run.t, run.mu)
    return _largest(v, run.mu) / _size(run.mu).clamp(min=1e-300)


def _message(trial: _Trial, survived: Tensor, codes: Tensor, h: float) -> str:
    start, field = trial.start, trial.problem.field
    dt, until = float(start.dt), f"before t = {trial.suspects.t:.6g}"
    if bool((codes == status.code("invalid")).any()) and trial.last is not None:
        ahead = torch.full_like(start.t, trial.suspects.t)
        return _not_a_number(broken(field, ahead, trial.last.mu) or repr(field), float(trial.last.t))
    if bool((codes == status.code("blow_up")).any()):
        return f"the state leaves the finite numbers {until}, whatever the step"
    if bool((codes == status.code("overflow")).any()):
        return (
            f"the state grows beyond floating point {until}, by a constant rate; stop before, or rescale it"
        )
    if not bool(survived.any()):
        known = radius(field, start.t, start.mu, trial.suspects.which)
        h = trial.problem.stepper.stability / known if known > 0 else h
    return f"the step dt = {dt:g} is too long {until}: pass dt={h:.2g}, or use Dopri5()"


def _not_a_number(name: str, t: float) -> str:
    return f"the velocity of {name} is not a number at t = {t:.6g}; let it return finite numbers there"


def _size(mu: Measure) -> Tensor:
    """The largest coordinate of each member, (*batch,)."""
    return _largest(mu.coords, mu)


def _largest(u: Tangent, mu: Measure) -> Tensor:
    return torch.stack([p.double().abs().reshape(*mu.batch, -1).amax(-1) for p in u]).amax(0)


def broken(field: VelocityField, t: Tensor, mu: Measure) -> str | None:
    """The first part of a field whose velocity is not finite though the state is moderate, if any."""
    if not bool((_size(mu) < torch.finfo(mu.dtype).max ** 0.25).all()):
        return None
    for term in field.terms if isinstance(field, SumField) else (field,):
        try:
            v, _ = term.evaluate(t, mu)
        except InputError:  # a weight that is checked
            return repr(term)
        if not all(bool(torch.isfinite(p).all()) for p in v):
            return repr(term)
    return None


def radius(field: VelocityField, t: Tensor, mu: Measure, which: Tensor) -> float:
    """The largest modulus of the Jacobian among some members, by the power method; NaN if it has none.

    The growth of a vector over the second half of the iterations, which is right for pairs of complex
    eigenvalues too.
    """
    seed = torch.Generator().manual_seed(0)
    u = Tangent(torch.randn(c.shape, generator=seed, dtype=torch.float64).to(c) for c in mu.coords)
    growth = []
    try:
        for _ in range(POWER):
            size = _norm(u, mu)
            u = u.map(lambda p, s=size: p / s.reshape(*s.shape, *[1] * (p.ndim - s.ndim)).clamp(min=1e-300))
            u = field.linearised(t, mu, u, torch.zeros_like(t))
            growth.append(_norm(u, mu))
    except Exception:  # a field of somebody else may have no derivative, and says so in its own way
        return math.nan
    rates = torch.stack(growth[POWER // 2 :]).log().mean(0).exp()
    return float(rates[which].amax())


def _norm(u: Tangent, mu: Measure) -> Tensor:
    return torch.stack([p.double().square().reshape(*mu.batch, -1).sum(-1) for p in u]).sum(0).sqrt()
