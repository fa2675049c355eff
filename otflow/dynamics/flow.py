"""The one verb: a measure, a field and a stepper go in, a trajectory comes out."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import FlowError, StepError
from otflow.base.progress import bar
from otflow.base.tangent import align, as_tangent
from otflow.dynamics.noise import BrownianPath, Noise
from otflow.dynamics.recorder import Observables, Recorder, observables
from otflow.dynamics.schedule import StepEnd, saves_start, schedule
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import VelocityField
from otflow.fields.base import extended
from otflow.measures import Measure, where
from otflow.steppers import Memory, Step, Stepper

# Chosen: a batch of at least MANY members goes on without those that have arrived once no more than the
# part FEW of it still runs.
MANY, FEW = 512, 0.8
ORDER = "flow takes a measure such as Particles(x), a field and a stepper, in this order"
Stop = Callable[[Tensor, Measure], Any]


def flow(
    mu0: Measure,
    field: VelocityField,
    stepper: Stepper,
    *,
    t1: float,
    dt: float | None = None,
    t0: float = 0.0,
    noise: Noise | None = None,
    observe: Observables | None = None,
    save_at: Any = None,
    stop: Stop | None = None,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    progress: bool = False,
    on_failure: Literal["raise", "return"] = "raise",
) -> Trajectory:
    """Solve d/dt mu + div(mu v(t, mu)) = 0 from mu0 at t0 to t1, plus noise if there is any.

    Differentiable in mu0 and in the weights of the field when one of them requires grad.

    Args:
        mu0: the measure at t0. A batch is extended by batch axes of the weights: clouds (4, n, d) under
            weights (5, 1, d, d) are a batch (5, 4).
        field: its velocity; steps end exactly where its weights jump.
        stepper: `Euler()`, `Heun()`, `RK4()`, `JKO()` with ``dt``, or the adaptive `Dopri5()` without.
        t1, dt, t0: final time, step, initial time.
        noise: an Ito noise, for steppers of fixed step.
        observe: name -> function of the measure, recorded at the save times.
        save_at: increasing times to save at (t1 is added); by default every step, or 101 equal times
            for adaptive steppers. They are hit exactly.
        stop: ``stop(t, mu)`` -> bool, or one per member of the batch; checked after every step.
        max_steps, max_seconds: budgets; exceeding one is the status "budget".
        progress: show a bar.
        on_failure: "raise" raises `FlowError`, which carries the partial trajectory, when the run fails;
            "return" returns that trajectory. A blow-up is a result, not a failure.

    >>> import torch
    >>> import otflow as of
    >>> mu0 = of.Particles([[1.0, 0.0], [0.0, 1.0]])
    >>> I = torch.eye(2, dtype=torch.float64)
    >>> traj = of.flow(mu0, of.SoftmaxAttention(I, I, -I), of.Dopri5(), t1=1.0)
    >>> traj.status, len(traj)
    ('ok', 101)
    """
    times = _check(mu0, field, stepper, t0, t1, dt, noise, on_failure)
    mu0 = extended(mu0, field, times.t0)
    ends = schedule(times.t0, times.t1, times.dt, save_at, field.switches, adaptive=stepper.adaptive)
    limits = _limits(stop, max_steps, max_seconds)
    with torch.set_grad_enabled(_wants_grad(mu0, field, noise, times)):
        path = None if noise is None else noise.bind(mu0)
        run = _start(mu0, field, stepper, times)
        log = Recorder(observables(observe), _origin(field, stepper, noise, path, times))
        if saves_start(times.t0, times.t1, save_at):
            log.save(times.t0, mu0)
        with bar(*_extent(times, ends, stepper), progress=progress) as shown:
            run = _drive(run, FlowProblem(field, stepper, noise, path), ends, limits, log, shown)
    return _finish(run, log, on_failure)


@dataclass(frozen=True)
class FlowTimes:
    t0: float
    t1: float
    dt: float | None


@dataclass(frozen=True)
class StepLimits:
    stop: Stop | None
    max_steps: int | None
    deadline: float | None


@dataclass(frozen=True)
class FlowProblem:
    field: VelocityField
    stepper: Stepper
    noise: Noise | None
    path: BrownianPath | None


@dataclass(frozen=True)
class FlowRun:
    """The state of a run. t and dt are (*batch,) in adaptive runs, else of shape ()."""

    mu: Measure
    t: Tensor
    dt: Tensor
    codes: Tensor  # (*batch,): status of each member, 0 while it runs
    ended: Tensor  # (*batch,): time at which a member stopped, NaN while it runs
    memory: Memory = field(default_factory=Memory)
    steps: int = 0
    message: str = ""
    intact: bool = True  # if so no member has ended, which then need not be asked of the device; else unknown

    @property
    def running(self) -> Tensor:
        return self.codes == 0


def _check(
    mu0: Measure,
    field: VelocityField,
    stepper: Stepper,
    t0: float,
    t1: float,
    dt: float | None,
    noise: Noise | None,
    on_failure: str,
) -> FlowTimes:
    for name, value, kind in (
        ("mu0", mu0, Measure),
        ("field", field, VelocityField),
        ("stepper", stepper, Stepper),
    ):
        if not isinstance(value, kind):
            hint = f"call it: {value.__name__}()" if isinstance(value, type) else ORDER
            checks.fail(name, f"{value!r:.60}", f"a {kind.__name__} is needed", hint)
    t0, t1 = checks.number(t0, "t0"), checks.number(t1, "t1")
    if t1 <= t0:
        rule = f"time runs forward from t0 = {t0}"
        checks.fail("t1", t1, rule, "choose t1 > t0; to go back in time, negate the field")
    if dt is not None:
        dt = checks.positive(dt, "dt")
    elif not stepper.adaptive:
        checks.fail("dt", None, f"{stepper!r} has a fixed step", "pass dt=..., or use the adaptive Dopri5()")
    if noise is not None:
        checks.instance(noise, Noise, "noise")
    if noise is not None and stepper.adaptive:
        rule = "noise needs a fixed step"
        checks.fail("stepper", repr(stepper), rule, "use Euler() with dt=..., which is Euler-Maruyama")
    checks.raises(on_failure)
    return FlowTimes(t0, t1, dt)


def _origin(
    field: VelocityField,
    stepper: Stepper,
    noise: Noise | None,
    path: BrownianPath | None,
    times: FlowTimes,
) -> dict[str, Any]:
    """What the trajectory will say it came from."""
    found = {"field": repr(field), "stepper": repr(stepper), "t0": times.t0, "t1": times.t1, "dt": times.dt}
    if noise is not None and path is not None:
        found |= {"noise": repr(noise), "seed": path.seed}
    return {name: value for name, value in found.items() if value is not None}


def _limits(stop: Stop | None, max_steps: int | None, max_seconds: float | None) -> StepLimits:
    steps = None if max_steps is None else checks.count(max_steps, "max_steps")
    deadline = None if max_seconds is None else time.monotonic() + checks.positive(max_seconds, "max_seconds")
    return StepLimits(stop, steps, deadline)


def _wants_grad(mu0: Measure, field: VelocityField, noise: Noise | None, times: FlowTimes) -> bool:
    if not torch.is_grad_enabled():
        return False
    start = torch.tensor(times.t0, dtype=torch.float64)
    shaking = any(a.requires_grad for a in noise.parameters()) if noise else False
    return mu0.requires_grad or shaking or field.requires_grad(start, mu0)


def _start(mu0: Measure, field: VelocityField, stepper: Stepper, times: FlowTimes) -> FlowRun:
    shape = mu0.batch if stepper.adaptive else torch.Size()
    t = torch.full(shape, times.t0, dtype=torch.float64, device=mu0.device)
    dt = (
        stepper.first_dt(field, t, mu0, times.t1 - times.t0)
        if times.dt is None
        else torch.full_like(t, times.dt)
    )
    codes = torch.zeros(mu0.batch, dtype=torch.int64, device=mu0.device)
    nan = torch.full(mu0.batch, torch.nan, dtype=torch.float64, device=mu0.device)
    return FlowRun(mu0, t, dt, codes, nan)


def _drive(
    run: FlowRun, problem: FlowProblem, ends: list[StepEnd], limits: StepLimits, log: Recorder, shown: Any
) -> FlowRun:
    """Advance from one forced end to the next, saving on the way; keep everything whatever happens."""
    try:
        for end in ends:
            for state in _advance(run, problem, end.t, limits, log):
                if not shown.disable:
                    shown.update(_reached(state, problem.stepper) - _reached(run, problem.stepper))
                run = state  # the latest state, also when the next step raises
            if not (run.intact or bool(run.running.any())):
                break
            if end.switch:
                run = replace(run, memory=run.memory._replace(first=None))
            if end.save:
                log.save(end.t, run.mu)
    except KeyboardInterrupt:
        message = f"flow was interrupted at t = {float(run.t.max()):g}; what was computed is kept."
        with suppress(Warning):  # where warnings are errors, the status says the same
            warnings.warn(message, stacklevel=3)
        return _end(run, "stopped", message)
    except StepError as error:
        return _end(run, error.status, str(error))
    except Exception as error:
        if run.steps == 0:
            raise
        ended = _end(run, "degenerate", f"{type(error).__name__}: {error}")
        partial = _trajectory(ended, log)  # without the last state: an observable may be what raised
        raise FlowError(f"the run broke at t = {float(run.t.max()):g}: {error}", partial) from error
    return run


def _extent(times: FlowTimes, ends: list[StepEnd], stepper: Stepper) -> tuple[float, str, str]:
    """What a bar counts: steps, where their number is known, else time; what is done, and the unit."""
    doing = f"flow by {type(stepper).__name__}"
    if times.dt is None:
        return float(times.t1 - times.t0), doing, "units of time"
    stops = [times.t0, *(end.t for end in ends)]
    return sum(max(1, math.ceil((b - a) / times.dt - 1e-9)) for a, b in pairwise(stops)), doing, "steps"


def _reached(run: FlowRun, stepper: Stepper) -> float:
    """Steps done, or the time up to which every member that still runs has come."""
    going = run.t[run.running] if stepper.adaptive else None
    if going is None:
        return run.steps
    return float(going.min() if going.numel() else run.t.max())


def _advance(
    run: FlowRun, problem: FlowProblem, end: float, limits: StepLimits, log: Recorder
) -> Iterator[FlowRun]:
    """Step until every running member has reached ``end``."""
    while bool(((left := _left(run, end)) > 0).any()):
        if _exhausted(run, limits):
            yield _end(run, "budget", f"budget used up at t = {float(run.t.max()):g} after {run.steps} steps")
            return
        if (some := _some(run, problem, limits, left > 0)) is not None:
            latest = some[0]
            try:
                for part in _advance(*some, end, limits, log):
                    latest = part
            finally:  # also when a step raises: what these members have done is kept
                yield (run := _scattered(run, left > 0, latest))
            continue
        run = _step(run, problem, end, left, log)
        if limits.stop is not None:
            run = _mark(run, status.code("stopped"), _verdict(limits.stop(run.t, run.mu), run))
        yield run


def _some(
    run: FlowRun, problem: FlowProblem, limits: StepLimits, which: Tensor
) -> tuple[FlowRun, FlowProblem] | None:
    """The members that have not arrived, as a run of their own, once they are few enough to be worth it."""
    plain = run.memory.carry is None and limits.stop is None and not torch.is_grad_enabled()
    many = which.ndim > 0 and which.numel() >= MANY
    field = problem.field.pick(which) if plain and many and which.sum() <= FEW * which.numel() else None
    if field is None:
        return None
    first, error = run.memory.first, run.memory.error
    memory = Memory(None, first and first.map(lambda a: a[which]), None if error is None else error[which])
    own = {name: getattr(run, name)[which] for name in ("mu", "t", "dt", "codes", "ended")}
    return replace(run, memory=memory, **own), replace(problem, field=field)


def _scattered(run: FlowRun, which: Tensor, part: FlowRun) -> FlowRun:
    """A run with some of its members replaced by the same ones at a later time."""

    def fill(a: Tensor, b: Tensor) -> Tensor:
        return b.masked_scatter(align(which, b).expand_as(b), a)

    mu = run.mu.at(part.mu.coords.zip(run.mu.coords, fill))
    names = ("t", "dt", "codes", "ended")
    own: dict[str, Any] = {name: fill(getattr(part, name), getattr(run, name)) for name in names}
    return replace(part, mu=mu, memory=Memory(), **own)


def _verdict(value: Any, run: FlowRun) -> Tensor:
    """What a stopping rule said, one truth value per member."""
    try:
        return torch.as_tensor(value).bool().to(run.codes.device).expand(run.codes.shape)
    except (TypeError, RuntimeError):
        checks.fail(
            "stop(t, mu)",
            repr(value),
            "it returns True or False, for all or for each member",
            "let stop return bool(...)",
        )


def _left(run: FlowRun, end: float) -> Tensor:
    """Time to go, 0 for members that have ended; a fixed step has one clock for all."""
    running = run.running if run.t.ndim else run.running.any()
    return torch.where(running, end - run.t, torch.zeros_like(run.t))


def _exhausted(run: FlowRun, limits: StepLimits) -> bool:
    over = limits.max_steps is not None and run.steps >= limits.max_steps
    return over or (limits.deadline is not None and time.monotonic() > limits.deadline)


def _step(run: FlowRun, problem: FlowProblem, end: float, left: Tensor, log: Recorder) -> FlowRun:
    """One step of at most ``left``, stretched by a hair to land on ``end``."""
    clamped = run.dt * (1 + 1e-9) >= left
    h = torch.where(clamped, left, run.dt)
    if problem.stepper.adaptive:  # two equal steps rather than a full one and a tiny one
        h = torch.where(~clamped & (2 * run.dt > left), left / 2, h)
    step, moved, memory = _move(run, problem, h, end)
    t = torch.where(clamped & (step.dt > 0), torch.full_like(run.t, end), run.t + step.dt)
    dt = run.dt
    if problem.stepper.adaptive:  # a step cut short by a save time says little about the next one
        proposal = torch.where(clamped & (step.dt > 0), torch.maximum(run.dt, step.dt_next), step.dt_next)
        dt = torch.where(h > 0, proposal, run.dt)
    new = _accept(run, replace(run, mu=moved, t=t, dt=dt, memory=memory, steps=run.steps + 1), step)
    if torch.is_grad_enabled() and not new.intact and bool((run.running & ~new.running).any()):
        # Infinities of members that fail now would spoil the gradients of the others: step without them.
        return _step(
            replace(run, codes=new.codes, ended=new.ended, message=new.message, intact=False),
            problem,
            end,
            left,
            log,
        )
    log.certify(step)
    return new


def _move(run: FlowRun, problem: FlowProblem, h: Tensor, end: float) -> tuple[Step, Measure, Memory]:
    """The step of the stepper, then that of the noise; members that have ended take no part."""
    mu = _healthy(run)
    step = problem.stepper.step(problem.field, run.t, h, mu, run.memory)
    if problem.noise is None or problem.path is None:
        return step, step.mu, step.memory
    dW = problem.path.increment(float(run.t), min(float(run.t + h), end))
    noise = problem.noise.increment(
        run.t, mu, torch.from_numpy(dW).to(mu.coords[0]).expand(problem.noise.shape(mu))
    )
    noise = as_tangent(noise, "noise.increment")
    return step, step.mu.move(noise), step.memory._replace(first=None)


def _healthy(run: FlowRun) -> Measure:
    """The state, with a member that still runs in place of those that have ended: a harmless stand-in."""
    running = run.running.flatten()
    if run.intact or bool(running.all()):
        return run.mu
    k = int(running.to(torch.int8).argmax())
    batch = len(run.mu.batch)
    one = run.mu.coords.map(
        lambda c: c.detach().flatten(0, batch - 1)[k].expand_as(c) if batch else c.detach()
    )
    return where(run.running, run.mu, run.mu.at(one))


def _accept(old: FlowRun, new: FlowRun, step: Step) -> FlowRun:
    """Keep members that ended before or fail now at their last good state."""
    blown = ~new.mu.finite()
    failed = torch.zeros_like(old.codes) if step.failed is None else step.failed.expand(old.codes.shape)
    codes = torch.where(blown, status.code("blow_up"), failed)
    keep = old.running & (codes == 0)
    mu = where(keep, new.mu, old.mu)
    t = torch.where(keep, new.t, old.t) if old.t.ndim or not keep.ndim else new.t
    message = old.message
    failing = bool((old.running & (codes > 0)).any())
    if failing:
        size = max(float(c.detach().abs().max()) for c in old.mu.coords)
        where_to = f"t = {float(old.t.max()):.17g}, dt = {float(old.dt.min()):.3g}, |x| = {size:.3g}"
        left = f"the state leaves the finite numbers after {where_to}"
        message = left if bool((codes == status.code("blow_up")).any()) else step.message
    kept = replace(new, mu=mu, t=t, codes=old.codes, message=message)
    return replace(_mark(kept, codes, codes > 0, old.t), intact=old.intact and not failing)


def _mark(run: FlowRun, codes: Tensor | int, now: Tensor, t: Tensor | None = None) -> FlowRun:
    """Give members a status, and note when."""
    fresh = now & run.running
    when = (run.t if t is None else t).expand(run.ended.shape)
    codes = status.merge(run.codes, codes, now)
    return replace(run, codes=codes, ended=torch.where(fresh, when, run.ended), intact=False)


def _end(run: FlowRun, name: str, message: str) -> FlowRun:
    marked = _mark(run, status.code(name), torch.ones_like(run.running))
    return replace(marked, message=message)


def _trajectory(run: FlowRun, log: Recorder) -> Trajectory:
    blown = run.codes == status.code("blow_up")
    return Trajectory(
        ts=torch.tensor(log.ts, dtype=torch.float64),
        measures=tuple(log.measures),
        observed={name: torch.stack(values) for name, values in log.observed.items()},
        certificates=log.certificate_table(),
        status=status.names(run.codes),
        ended=run.ended,
        blow_up_time=torch.where(blown, run.ended, torch.full_like(run.ended, torch.nan)),
        message=run.message,
        steps=run.steps,
        origin=log.origin,
    )


def _finish(run: FlowRun, log: Recorder, on_failure: str) -> Trajectory:
    if not bool(run.running.any()) and (not log.ts or float(run.ended.max()) > log.ts[-1]):
        log.save(float(run.ended.max()), run.mu)  # the last state, between two save times
    traj = _trajectory(run, log)
    bad = sorted(set(np.atleast_1d(traj.status).ravel().tolist()) - set(status.HARMLESS))
    if bad and on_failure == "raise":
        when = float(run.ended[~run.ended.isnan()].min())
        why = run.message.rstrip(".") or "evaluate the field at trajectory.final to see why"
        raise FlowError(
            f"status {', '.join(bad)} at t = {when:g}: {why}. "
            "The run so far is in the .trajectory of this exception.",
            traj,
        )
    return traj
