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
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otflow.base import status
from otflow.base.errors import InputError
from otflow.dynamics.repetition import STEPS, Repetitions, again, largest, radii, radius, rate, size
from otflow.dynamics.stepping import RECENT, FlowProblem, FlowRun, Halt, Suspects, Trail, mark
from otflow.fields import VelocityField
from otflow.fields.base import SumField
from otflow.measures import Measure, where

# All chosen.
HALVINGS = 12
PATIENCE = 20.0  # seconds, if the run itself took less
GROUPS = 16  # failures of a batch that are examined; more are called unstable without
TOL = 0.02  # of times of failure, relative to the time since the start of the repetition
VAGUE = 0.2  # error bars of times of blow-up, relative to the time since the start, that say too little
RESOLVED = 0.25  # of the stability limit: where a step is short enough for errors to shrink with it
AGO = 64  # steps, of which 32 times as many shorter ones are within STEPS
SIMILAR = 1.5  # ratio of lengths of steps, in units of the limit of stability, that hardly differ
GROWN = 1e3  # a state that grew by less than this did not run away
SUSPECT = 2.0  # growth after which steps beyond the limit of stability are held against shorter ones
LITTLE, PARTS = 100.0, 8  # growth that is looked at again if within that limit, and parts of a step then
EDGE = 1e-8  # of the largest number: what is beyond has run away
CLOSER = 64  # parts of a step by which a failure is approached
LEAP = 0.5  # of the size of a state: what a step that is too long moves it by, and more
SAFE = 0.95  # of the limit of stability, for steps that are advised
FASTER = 4.0  # what the velocity gains on the way, if it is infinite there


@dataclass(frozen=True)
class Diagnosis:
    """What became of the members of a batch, (*batch,) each."""

    codes: Tensor
    time: Tensor  # of the blow-up
    error: Tensor  # its error bar
    message: str = ""
    last: Measure | None = None  # before the blow-up


@torch.no_grad()
def examine(run: FlowRun, problem: FlowProblem, deadline: float | None) -> tuple[FlowRun, Tensor]:
    """The run with its failures named, and error bars of times of blow-up, (*batch,)."""
    error = torch.full_like(run.ended, torch.nan)
    trail, quiet = problem.trail, replace(problem, trail=None)
    if trail is None:
        return _named(run, quiet), error
    deadline = _patience(trail, deadline)
    late = []
    for halt in _halts(run, trail, deadline):
        run = _uphill(run, halt, problem, deadline)
        if (grown := _outgrown(halt, problem, deadline)) is not None:
            late.append(grown)
    for suspects in [*trail.suspects[:GROUPS], *late]:
        found = _careful(suspects, quiet, run.message, deadline)
        if suspects.lags is not None:
            # Coarse steps that lag behind growth are inaccurate and no more, unless they have passed a pole.
            fine = suspects.lags & (found.codes == status.code("unstable"))
            suspects = replace(suspects, which=suspects.which & ~fine)
            if not bool(suspects.which.any()):
                continue
            run = _verdict_on(run, "unstable", suspects.which)
        blown = suspects.which & (found.codes == status.code("blow_up"))
        run = replace(
            run,
            mu=run.mu if found.last is None else where(blown, found.last, run.mu),
            codes=torch.where(suspects.which, found.codes, run.codes),
            ended=torch.where(blown, found.time, run.ended),
            message=found.message or run.message,
        )
        error = torch.where(blown, found.error, error)
    return run, error


def _halts(run: FlowRun, trail: Trail, deadline: float) -> list[Halt]:
    """Where members were stopped, ran out of steps or arrived; nothing if there is no time left."""
    if time.monotonic() > deadline or not trail.recent or run.interrupted:
        return []
    end = Halt(run, run.running | (run.codes == status.code("budget")), trail.past())
    return [end, *trail.halts]


def _verdict_on(run: FlowRun, name: str, which: Tensor) -> FlowRun:
    """The run with the status of some members, whatever it was."""
    code = status.code(name)
    marked = mark(run, code, which)
    return replace(marked, codes=torch.where(which, code, marked.codes))


def _patience(trail: Trail, deadline: float | None) -> float:
    """Until when to examine: no longer than the run took, or some seconds."""
    now = time.monotonic()
    patience = now + max(PATIENCE, now - trail.began)
    return patience if deadline is None else min(patience, deadline)


def _careful(suspects: Suspects, problem: FlowProblem, message: str, deadline: float) -> Diagnosis:
    """The verdict; where none is reached, whatever the reason, nothing but that the step was too long."""
    before = suspects.past[-1]
    unknown = torch.full_like(before.ended, torch.nan)
    codes = torch.full_like(before.codes, status.code("unstable"))
    try:
        return _verdict(suspects, problem, deadline)
    except KeyboardInterrupt:
        why = "shorter steps were not tried, as the examination was interrupted"
    except Exception as error:  # of a field or a solver that shorter steps led astray
        why = f"shorter steps ended with {type(error).__name__}: {error}"
    return Diagnosis(codes, unknown, unknown, f"{message}; {why}")


def _named(run: FlowRun, problem: FlowProblem) -> FlowRun:
    """An adaptive run with the name of the field that gave it no number, if one did."""
    which = run.codes == status.code("invalid")
    if not bool(which.any()):
        return run
    t = float(run.ended[which].min())
    ahead = run.t + 1e-9 * run.t.abs().clamp(min=1.0)  # where the last step failed
    name = broken(problem.field, run.t, run.mu) or broken(problem.field, ahead, run.mu)
    return replace(run, message=_not_a_number(name or repr(problem.field), t))


def _verdict(suspects: Suspects, problem: FlowProblem, deadline: float) -> Diagnosis:
    before = suspects.past[-1]
    unknown = torch.full_like(before.ended, torch.nan)
    calm = len(suspects.past) == 1 or not _hurries(suspects.past[-2], before, suspects.which)
    if calm and (name := broken(problem.field, before.t, before.mu)) is not None:
        codes = torch.full_like(before.codes, status.code("invalid"))
        return Diagnosis(codes, unknown, unknown, _not_a_number(name, float(before.t)))
    start, stiff = _resolved(suspects, problem)
    trial = Repetitions(start, suspects, problem, deadline)
    return _judge(trial, *_repeat(trial, stiff))


def _resolved(suspects: Suspects, problem: FlowProblem) -> tuple[FlowRun, float]:
    """A good state at which the step was short enough, and by what to divide the step at first.

    It is the oldest of the last AGO steps, so that shorter ones mend most of what led there, else the latest.
    It has the few latest behind it, so that there is time to see times of failure converge. Where
    every step was too long, it is the oldest: nothing after it can be trusted. But if all were as much
    too long, as those of a linear field are, the latest tells as much, and sooner.
    """
    final = suspects.past[-1].steps
    late = [run for run in suspects.past if run.steps <= max(final - 3, 0)]
    late = late or [suspects.past[0]]  # of a large cloud few states are kept
    limit, lengths = problem.stepper.stability, []
    for k, run in reversed(list(enumerate(late))):
        z = float(run.dt) * radius(problem.limiting, run.t, run.mu, suspects.which)
        if not z > RESOLVED * limit:  # also where it is not known
            return next((old for old in late[:k] if old.steps >= final - AGO), run), 1.0
        lengths.append(min(z, 2.0**40))
    start = late[-1] if max(lengths) <= SIMILAR * min(lengths) else late[0]
    beyond = lengths[-1] / limit
    return start, beyond / (2 * SAFE) if beyond > 1 else 1.0  # the first step that is tried is half of this


def _repeat(trial: Repetitions, divide: float) -> tuple[Tensor, float]:
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


def _converged(trial: Repetitions, h: float) -> tuple[Tensor, Tensor, Tensor]:
    """Whose times of failure converge to a positive time, that time, and its error bar; (*batch,) each.

    The bar is twice the last change and the step, by which any time is rounded.
    """
    if len(trial.times) < 3:
        nan = torch.full_like(trial.times[0], torch.nan)
        return torch.zeros_like(nan, dtype=torch.bool), nan, nan
    a, b, c = trial.times[-3:]
    span, before, now = c - float(trial.start.t), (b - a).abs(), (c - b).abs()
    shrinks = (now <= 0.75 * before) | (before <= 1e-9 * span)
    return (span > 0) & shrinks & (now.clamp(min=h / 2) <= TOL * span), c, 2 * (now + h)


def _judge(trial: Repetitions, survived: Tensor, h: float) -> Diagnosis:
    which, start = trial.suspects.which, trial.start
    last = trial.latest[-1]
    converged, when, error = _converged(trial, h)
    left = converged & ~survived
    far = torch.clamp(GROWN * size(start.mu).clamp(min=1.0), max=EDGE * torch.finfo(last.mu.dtype).max)
    ran = (size(last.mu) > far) | _hastens(trial, left, h)
    slow = when - trial.halfway() > TOL * (when - float(start.t)) + 2 * h  # NaN: it never came so far
    codes = torch.full_like(last.codes, status.code("unstable"))
    for name, these in (("blow_up", ran & ~slow), ("overflow", ran & slow), ("invalid", ~ran)):
        codes = torch.where(left & these, status.code(name), codes)
    if start.steps == 0:  # the run began so far out that not even the first velocity is a number
        lost = which & ~survived & ~torch.isfinite(rate(trial.problem.field, start))
        codes = torch.where(lost, status.code("overflow"), codes)
    blown = which & (codes == status.code("blow_up"))
    if bool(blown.any()):
        error = error + _earlier(trial, when, h)
        vague = blown & ~(error <= VAGUE * (when - float(trial.suspects.past[0].t)))
        codes = torch.where(vague, status.code("unstable"), codes)
    message = _message(trial, which & survived, torch.where(which, codes, 0), h)
    return Diagnosis(codes, when, error, message, last.mu)


def _uphill(run: FlowRun, halt: Halt, problem: FlowProblem, deadline: float) -> FlowRun:
    """Descents that end too far above their least energy by steps beyond the limit of stability are unstable.

    Too far is more than a step can explain, or more than a part of what had been won; see `Fall`. Where no
    step was beyond that limit nothing is said, as on a torus around which the potential has no single value,
    nor under noise, which climbs. Where the limit is not known, only what no step explains counts.
    """
    fall, limit = halt.run.memory.fall, problem.stepper.stability
    if fall is None or problem.noise is not None:
        return run
    lost = fall.energy.isnan() & halt.which
    if bool(lost.any()):
        message = f"the energy of {problem.field!r} is no number; let it return finite numbers there"
        return replace(_verdict_on(run, "invalid", lost), message=message)
    rose, undone = fall.rose() & halt.which, fall.lost() & halt.which
    if not bool((rose | undone).any()):
        return run
    z = _longest(halt, problem, deadline)
    bad = (rose & ~(z <= limit)) | (undone & (z > limit))
    if not bool(bad.any()):
        return run
    up, dt = float((fall.energy - fall.least)[bad].max()), float(run.dt)
    stable = SAFE * limit * dt / float(z[bad].max())  # NaN or 0 where that is not known
    message = f"the energy of a descent ends {up:.3g} above its least value: dt = {dt:g} is too long; pass "
    message += f"dt={_advised(stable if 0 < stable < dt else dt / 2)}, or use Dopri5() or JKO()"
    return replace(_verdict_on(run, "unstable", bad), message=message)


def _longest(halt: Halt, problem: FlowProblem, deadline: float) -> Tensor:
    """dt times the largest modulus of the Jacobian at the states kept, (*batch,); NaN where none is known."""
    longest = torch.full(halt.run.mu.batch, torch.nan, dtype=torch.float64, device=halt.run.mu.device)
    for past in reversed(halt.past):
        z = float(past.dt) * radii(problem.limiting, past.t, past.mu)
        longest = torch.fmax(longest, z)
        if time.monotonic() > deadline:
            break
    return longest


def _outgrown(halt: Halt, problem: FlowProblem, deadline: float) -> Suspects | None:
    """Members that have grown to finite numbers by steps that were too long, and not as shorter ones do.

    Steps from there are taken again in parts: what differs tenfold then grew by the step and not by the
    equation, or not as fast as the equation says, as where coarse steps pass a pole.
    """
    run, past, limit = halt.run, halt.past, problem.stepper.stability
    if problem.noise is not None or problem.trail is None or not math.isfinite(limit):
        return None
    growth = size(run.mu) / size(problem.trail.start)
    grown = halt.which & (growth > SUSPECT)
    if not bool(grown.any()):
        return None
    try:
        # The Jacobian costs dozens of velocities, so that those which did not leap in the end are not asked.
        leaps = float(run.dt) * rate(problem.field, run) > LEAP
        grown = grown & ((growth > GROWN) | leaps)
        if not bool(grown.any()):
            return None
        latest = (past[-1], run)
        z = float(run.dt) * max(radius(problem.limiting, one.t, one.mu, grown) for one in latest) / limit
        grown = grown & ((growth > GROWN) | (z > 1))
        if not (z > RESOLVED and bool(grown.any())):  # also where it is not known
            return None
        old, h = _mended(halt, grown, z)
        fine = again(old, grown, replace(problem, trail=None), h, float(run.t), deadline)
    except Exception:  # of somebody else's field: nothing is known
        return None
    ratio = size(fine.mu) / size(run.mu)
    gone = (fine.codes != 0) | (ratio < 0.1)
    lags = grown & ~gone & (ratio > 10) & (z > 1)
    wrong = (grown & gone) | lags
    return Suspects(wrong, past, float(run.t - run.dt), lags) if bool(wrong.any()) else None


def _mended(halt: Halt, grown: Tensor, z: float) -> tuple[FlowRun, float]:
    """From where to take the latest steps again, and how long: z is a step over the limit of stability.

    Steps beyond the limit differ from stable ones within a few. The limit is that of real modes: within it
    those that oscillate may grow, slowly, so that all steps since a hundredth of the size are taken again.
    """
    run, past = halt.run, halt.past
    if z > 1:
        return past[-RECENT:][0], float(run.dt) * max(1 / (2 * z), RECENT / STEPS)
    small = [old for old in past if bool((size(old.mu) * LITTLE < size(run.mu))[grown].all())]
    old = small[-1] if small else past[0]
    parts = min(PARTS, (STEPS - 1) // max(1, run.steps - old.steps))
    return old, float(run.dt) / max(1, parts)


def _hastens(trial: Repetitions, which: Tensor, h: float) -> Tensor:
    """Whether velocities run away as the failure is approached by shorter steps, (*batch,).

    They do so before a pole, and settle before a state at which the field has no number to give.
    """
    if not bool(which.any()):
        return which
    first, last = trial.latest[0], trial.latest[-1]
    closer = again(last, which, trial.problem, h / CLOSER, float(last.t) + 2 * h, trial.deadline)
    before, after = (largest(trial.problem.field.evaluate(r.t, r.mu)[0], r.mu) for r in (first, closer))
    return after > FASTER * before


def _earlier(trial: Repetitions, when: Tensor, h: float) -> Tensor:
    """What the steps before the start of the repetitions add to the error of a time of failure, (*batch,).

    The latest of them are taken once more by halves; three times the change is Roache's factor of safety for
    two meshes at order one ("Verification and validation", 1998). What steps before these add is taken to be
    as much for equal times, though a failure that approaches hurries more and more.
    """
    start, oldest = trial.start, trial.suspects.past[0]
    near = [run for run in trial.suspects.past if 2 * (start.steps - run.steps) <= STEPS]
    origin = min(near, key=lambda run: run.steps)
    half = again(
        origin, trial.suspects.which, trial.problem, float(start.dt) / 2, float(start.t), trial.deadline
    )
    other = Repetitions(replace(half, dt=start.dt), trial.suspects, trial.problem, trial.deadline)
    other.run(h)
    share = float((start.t - oldest.t) / (start.t - origin.t)) if start.t > origin.t else 1.0
    return 3 * share * (other.times[-1] - when).abs()


def _hurries(before: FlowRun, last: FlowRun, which: Tensor) -> bool:
    """Whether some of these members grew by more than a tenth in a step."""
    return bool((size(last.mu) > 1.1 * size(before.mu))[which].any())


def _message(trial: Repetitions, survived: Tensor, codes: Tensor, h: float) -> str:
    start, field = trial.start, trial.problem.field
    dt, until = float(start.dt), f"before t = {trial.suspects.t:.6g}"
    if bool((codes == status.code("invalid")).any()):
        ahead = torch.full_like(start.t, trial.suspects.t)
        return _not_a_number(
            broken(field, ahead, trial.latest[-1].mu) or repr(field), float(trial.latest[-1].t)
        )
    if bool((codes == status.code("blow_up")).any()):
        return f"the state leaves the finite numbers {until}, whatever the step"
    if bool((codes == status.code("overflow")).any()):
        half = float(trial.halfway()[codes == status.code("overflow")].nan_to_num(float(start.t)).min())
        earlier = f"pass t1={_advised(half)} or less, or " if half > 0 else ""
        remedy = f"{earlier}divide positions by 1e3"
        return f"the state or its velocity outgrows floating point {until}, and no pole was seen; {remedy}"
    if bool(survived.any()):
        return f"the step dt = {dt:g} is too long {until}: pass dt={_advised(h)}, or use Dopri5()"
    said = ", and there was no time for all repetitions with shorter steps" if trial.late else ""
    known = radius(trial.problem.limiting, start.t, start.mu, trial.suspects.which)
    h = min(h, SAFE * trial.problem.stepper.stability / known if known > 0 else h)
    remedy = f"pass dt={_advised(h)}, or use Dopri5()"
    return f"the state leaves the finite numbers {until} with dt = {dt:g}{said}: {remedy}"


def _advised(h: float) -> str:
    """Two digits of a step, rounded down: a longer one was not tried."""
    unit = 10.0 ** (math.floor(math.log10(h)) - 1)
    return f"{math.floor(h / unit * (1 + 1e-9)) * unit:.2g}"


def _not_a_number(name: str, t: float) -> str:
    remedy = "let it return finite numbers there, or rescale what overflows"
    return f"the velocity of {name} is not finite at t = {t:.6g}; {remedy}"


def broken(field: VelocityField, t: Tensor, mu: Measure) -> str | None:
    """The first part of a field whose velocity is not finite though the state is moderate, if any.

    It is no number, or overflows: exp(x.x) does so at |x| = 27.
    """
    if not bool((size(mu) < torch.finfo(mu.dtype).max ** 0.25).all()):
        return None
    for term in field.terms if isinstance(field, SumField) else (field,):
        try:
            v, _ = term.evaluate(t, mu)
        except InputError:  # a weight that is checked
            return repr(term)
        if not all(bool(torch.isfinite(p).all()) for p in v):
            return repr(term)
    return None
