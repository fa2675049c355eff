"""Stepping: how a run advances, member by member, from one forced end to the next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.integrals.quadrature import recorded
from otflow.base.tangent import align, as_tangent
from otflow.dynamics.noise import BrownianPath, Noise
from otflow.dynamics.recorder import Recorder, unedited
from otflow.fields import VelocityField
from otflow.measures import Measure, where
from otflow.steppers import Memory, Step, Stepper

# Chosen: a batch of at least MANY members goes on without those that have arrived once no more than the
# part FEW of it still runs.
MANY, FEW = 512, 0.8
# Chosen: states kept at hand, as it takes three steps past the pole of x' = x^2 to leave the numbers, and the
# numbers that all states kept may have together (128 MB).
RECENT, ROOM = 8, 2**24
HALTS = 16  # times at which members were stopped that are looked at; chosen
Stop = Callable[[Tensor, Measure], Any]


@dataclass(frozen=True)
class StepLimits:
    stop: Stop | None
    max_steps: int | None
    deadline: float | None


@dataclass(frozen=True)
class Suspects:
    """Members that left the finite numbers in one step of fixed length."""

    which: Tensor  # (*batch,)
    past: tuple[FlowRun, ...]  # good states, oldest first: the latest few, and fewer and fewer of older ones
    t: float  # when that step would have ended
    lags: Tensor | None = (
        None  # (*batch,): who grew less than shorter steps do, which may be no more than an error
    )


class Halt(NamedTuple):
    """Where members came to rest that did not leave the finite numbers."""

    run: FlowRun
    which: Tensor  # (*batch,)
    past: tuple[FlowRun, ...]  # as of `Suspects`


class Trail:
    """The states of a run with fixed steps that would be looked at again if it left the finite numbers."""

    def __init__(self, mu: Measure) -> None:
        self.room = max(1, ROOM // max(1, sum(c.numel() for c in mu.coords)))
        self.start = mu
        self.recent: deque[FlowRun] = deque(maxlen=min(RECENT, self.room))
        # The latest four with a number of steps that 2^k divides and 2^(k + 1) does not, while there is room:
        # for each age in steps there is a state hardly older.
        self.older: dict[int, deque[FlowRun]] = {}
        self.suspects: list[Suspects] = []
        self.halts: list[Halt] = []  # the first few
        self.began = time.monotonic()

    def follow(self, old: FlowRun, new: FlowRun) -> None:
        """Take the state before a step along, and notice what that step has broken."""
        again = bool(self.recent) and self.recent[-1].steps == old.steps  # without the members that failed
        if not again:
            self._keep(replace(old, memory=Memory()))  # without the potentials of inner solvers
        if new.intact:
            return
        which = old.running & (new.codes == status.code("unstable"))
        self.stop(old, old.running & ~new.running & ~which)
        if bool(which.any()):
            self.suspects.append(Suspects(which, self.past(), float(old.t + old.dt)))

    def stop(self, run: FlowRun, which: Tensor) -> None:
        """Remember how members came to where they were stopped, or where a solver failed."""
        if len(self.halts) < HALTS and bool(which.any()):
            self.halts.append(Halt(replace(run, memory=Memory(fall=run.memory.fall)), which, self.past()))

    def _keep(self, state: FlowRun) -> None:
        power = state.steps & -state.steps  # 0 at the start, which is thus kept
        if power in self.older or RECENT + 4 * len(self.older) < self.room:
            self.older.setdefault(power, deque(maxlen=4)).append(state)
        self.recent.append(state)

    def past(self) -> tuple[FlowRun, ...]:
        """The states kept, oldest first."""
        if not self.recent:
            return ()
        older = (run for runs in self.older.values() for run in runs if run.steps < self.recent[0].steps)
        return (*sorted(older, key=lambda run: run.steps), *self.recent)


@dataclass(frozen=True)
class FlowProblem:
    field: VelocityField
    stepper: Stepper
    noise: Noise | None
    path: BrownianPath | None
    trail: Trail | None = None  # of a fixed step

    @property
    def limiting(self) -> VelocityField:
        """The part of the field that limits the step."""
        return self.stepper.limiting(self.field)


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
    local: Tensor | None = None  # (*batch,), bool: which members owe a step to a search without proof
    interrupted: bool = False
    intact: bool = True  # if so no member has ended, which then need not be asked of the device; else unknown

    @property
    def running(self) -> Tensor:
        return self.codes == 0


def advance(
    run: FlowRun, problem: FlowProblem, end: float, limits: StepLimits, log: Recorder
) -> Iterator[FlowRun]:
    """Step until every running member has reached ``end``."""
    while bool(((left := _left(run, end)) > 0).any()):
        if _exhausted(run, limits):
            yield conclude(
                run, "budget", f"budget used up at t = {float(run.t.max()):g} after {run.steps} steps"
            )
            return
        if (some := _some(run, problem, limits, left > 0)) is not None:
            latest = some[0]
            try:
                for part in advance(*some, end, limits, log):
                    latest = part
            finally:  # also when a step raises: what these members have done is kept
                yield (run := _scattered(run, left > 0, latest))
            continue
        run = _step(run, problem, end, left, log)
        if limits.stop is not None:
            run = _stopped(run, problem, limits.stop)
        yield run


def _stopped(run: FlowRun, problem: FlowProblem, stop: Stop) -> FlowRun:
    which = _verdict(_asked(stop, run), run)
    if problem.trail is not None:
        problem.trail.stop(run, which & run.running)
    return mark(run, status.code("stopped"), which)


def _some(
    run: FlowRun, problem: FlowProblem, limits: StepLimits, which: Tensor
) -> tuple[FlowRun, FlowProblem] | None:
    """The members that have not arrived, as a run of their own, once they are few enough to be worth it."""
    whole = limits.stop is not None or run.local is not None
    plain = run.memory.carry is None and not whole and not torch.is_grad_enabled()
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


def _asked(stop: Stop, run: FlowRun) -> Any:
    with unedited("stop(t, mu)", run.mu):
        return stop(run.t.clone(), run.mu)


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
    moved_on = replace(run, mu=moved, t=t, dt=dt, memory=memory, steps=run.steps + 1)
    new = _accept(run, moved_on, step, adaptive=problem.stepper.adaptive)
    if problem.trail is not None:
        problem.trail.follow(run, new)
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
    mu = healthy(run)
    with recorded() as integrals:
        step = problem.stepper.step(problem.field, run.t, h, mu, run.memory)
    if integrals.worst is not None:
        step = replace(step, certificate={**step.certificate, "quadrature": integrals.worst})
    if problem.noise is None or problem.path is None:
        return step, step.mu, step.memory
    dW = problem.path.increment(float(run.t), min(float(run.t + h), end))
    noise = problem.noise.increment(
        run.t, mu, torch.from_numpy(dW).to(mu.coords[0]).expand(problem.noise.shape(mu))
    )
    noise = as_tangent(noise, "noise.increment")
    return step, step.mu.move(noise), step.memory._replace(first=None, fall=None)


def healthy(run: FlowRun) -> Measure:
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


def _accept(old: FlowRun, new: FlowRun, step: Step, *, adaptive: bool) -> FlowRun:
    """Keep members that ended before or fail now at their last good state."""
    blown = ~new.mu.finite()
    failed = torch.zeros_like(old.codes) if step.failed is None else step.failed.expand(old.codes.shape)
    if adaptive:
        codes = torch.where(blown, status.code("blow_up"), failed)
    else:  # the step may be to blame
        gone = blown | (failed == status.code("blow_up"))
        codes = torch.where(gone, status.code("unstable"), failed)
    keep = old.running & (codes == 0)
    mu = where(keep, new.mu, old.mu)
    t = torch.where(keep, new.t, old.t) if old.t.ndim or not keep.ndim else new.t
    message = old.message
    failing = bool((old.running & (codes > 0)).any())
    if failing:
        size = max(float(c.detach().abs().max()) for c in old.mu.coords)
        where_to = f"t = {float(old.t.max()):.17g}, dt = {float(old.dt.min()):.3g}, |x| = {size:.3g}"
        left = f"the state leaves the finite numbers after {where_to}"
        message = left if bool(_gone(codes).any()) else step.message
    local = _either(old.local, None if step.local is None else keep & step.local)
    kept = replace(new, mu=mu, t=t, codes=old.codes, message=message, local=local)
    return replace(mark(kept, codes, codes > 0, old.t), intact=old.intact and not failing)


def _either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """a or b, where None is false."""
    return a if b is None else b if a is None else a | b


def _gone(codes: Tensor) -> Tensor:
    """Which members have left the finite numbers."""
    return (codes == status.code("blow_up")) | (codes == status.code("unstable"))


def mark(run: FlowRun, codes: Tensor | int, now: Tensor, t: Tensor | None = None) -> FlowRun:
    """Give members a status, and note when."""
    fresh = now & run.running
    when = (run.t if t is None else t).expand(run.ended.shape)
    codes = status.merge(run.codes, codes, now)
    return replace(run, codes=codes, ended=torch.where(fresh, when, run.ended), intact=False)


def conclude(run: FlowRun, name: str, message: str) -> FlowRun:
    marked = mark(run, status.code(name), torch.ones_like(run.running))
    return replace(marked, message=message)
