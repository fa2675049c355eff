"""The one verb: a measure, a field and a stepper go in, a trajectory comes out."""

from __future__ import annotations

import math
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import FlowError, InputError, StepError
from otflow.base.progress import bar
from otflow.dynamics.divergence import broken, examine
from otflow.dynamics.noise import BrownianPath, Noise
from otflow.dynamics.recorder import Observables, Recorder, observables
from otflow.dynamics.schedule import StepEnd, saves_start, schedule
from otflow.dynamics.stepping import FlowProblem, FlowRun, StepLimits, Stop, Trail, advance, conclude
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import VelocityField
from otflow.fields.base import extended
from otflow.measures import Measure
from otflow.measures.base import copied
from otflow.steppers import Stepper

# Chosen: by which part of the run one clock is put ahead, and how much the members of a batch may differ from
# themselves because an inner solver stopped at its tolerance.
AHEAD, MEMBERS = 0.01, 1e-6
ORDER = "flow takes a measure such as Particles(x), a field and a stepper, in this order"


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
        observe: name -> function of the measure, recorded at the save times. It must not edit the measure.
            Of a batch it returns (*batch, ...), a value for each member, or something about all of them. What
            it is shows by asking once more, after the run, with one member more: if the shape grows, there is
            a value for each, and `Trajectory.member` takes it; else it is shared. A function that cannot be
            asked so, as one with constants for each member, has a value for each if its shape says so.
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
    mu0 = extended(copied(mu0), field, times.t0)
    if stepper.adaptive:
        _check_clocks(field, mu0, times)
    ends = schedule(times.t0, times.t1, times.dt, save_at, field.switches, adaptive=stepper.adaptive)
    limits = _limits(stop, max_steps, max_seconds)
    with torch.set_grad_enabled(_wants_grad(mu0, field, noise, times)):
        path = None if noise is None else noise.bind(mu0)
        run = _start(mu0, field, stepper, times)
        log = Recorder(observables(observe), _origin(field, stepper, noise, path, times))
        if saves_start(times.t0, times.t1, save_at):
            log.save(times.t0, mu0)
        with bar(*_extent(times, ends, stepper), progress=progress) as shown:
            problem = FlowProblem(field, stepper, noise, path, None if stepper.adaptive else Trail(mu0))
            run = _drive(run, problem, ends, limits, log, shown)
    run, error = examine(run, problem, limits.deadline)
    return _finish(run, error, log, on_failure)


@dataclass(frozen=True)
class FlowTimes:
    t0: float
    t1: float
    dt: float | None


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


@torch.no_grad()
def _check_clocks(field: VelocityField, mu0: Measure, times: FlowTimes) -> None:
    """Refuse a velocity that takes the clocks of members for something else of that length.

    Clocks of shape (2,) broadcast silently against the two coordinates of a plane. One that is ahead must not
    change the velocities of the other members.
    """
    if mu0.batch.numel() < 2 or not any(_broadcasts(mu0.batch, c.shape) for c in mu0.coords):
        return
    clocks = torch.full(mu0.batch, times.t0, dtype=torch.float64, device=mu0.device)
    ahead = clocks.clone()
    ahead.view(-1)[0] += AHEAD * (times.t1 - times.t0)
    pairs = list(zip(*(field.evaluate(t, mu0)[0] for t in (clocks, ahead)), strict=True))
    apart, size = (
        max(float(a.reshape(mu0.batch.numel(), -1)[1:].abs().max()) for a in parts)
        for parts in ([a - b for a, b in pairs], [a for a, _ in pairs])
    )
    if apart > MEMBERS * size:
        rule = f"clocks of the {tuple(mu0.batch)} members reach velocities of others"
        checks.fail(
            "field", repr(field), rule, "let t broadcast from the left, torch.cos(t)[..., None, None] * x"
        )


def _broadcasts(clocks: torch.Size, shape: torch.Size) -> bool:
    """Whether clocks broadcast from the right, as torch does it, without a change of shape."""
    return all(a in (1, b) for a, b in zip(reversed(clocks), reversed(shape), strict=False))


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
            for state in advance(run, problem, end.t, limits, log):
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
        return replace(conclude(run, "stopped", message), interrupted=True)
    except StepError as error:
        return conclude(run, error.status, str(error))
    except Exception as error:
        if run.steps == 0:
            raise
        weight = isinstance(error, InputError)  # as a weight that is checked raises when it turns NaN
        if weight and (name := broken(problem.field, run.t + run.dt, run.mu)) is not None:
            return conclude(run, "invalid", f"{name}: {error}")
        ended = conclude(run, "degenerate", f"{type(error).__name__}: {error}")
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


def _trajectory(run: FlowRun, log: Recorder) -> Trajectory:
    blown = run.codes == status.code("blow_up")
    return Trajectory(
        ts=torch.tensor(log.ts, dtype=torch.float64),
        measures=tuple(log.measures),
        observed={name: torch.stack(values) for name, values in log.observed.items()},
        certificates=log.certificate_table(),
        status=status.names(status.graded(run.codes, run.local)),
        ended=run.ended,
        blow_up_time=torch.where(blown, run.ended, torch.full_like(run.ended, torch.nan)),
        message=run.message,
        steps=run.steps,
        origin=log.origin,
        shared=log.shared(),
    )


def _finish(run: FlowRun, error: Tensor, log: Recorder, on_failure: str) -> Trajectory:
    log.cut(run.codes == status.code("blow_up"), run.ended, run.mu)
    if not bool(run.running.any()) and (not log.ts or float(run.ended.max()) > log.ts[-1]):
        log.save(float(run.ended.max()), run.mu)  # the last state, between two save times
    traj = replace(_trajectory(run, log), blow_up_error=error)
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
