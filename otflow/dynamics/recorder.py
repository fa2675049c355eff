"""The recorder of a flow: measures, observables and certificates at the save times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.parameters import edits
from otflow.measures import Measure, where
from otflow.measures.parts import fixed
from otflow.steppers import Step

Observables = Mapping[str, Callable[[Measure], Any]]


@dataclass
class Recorder:
    """What has been saved so far."""

    observe: Observables
    origin: Mapping[str, Any] = field(default_factory=dict)  # what the run was started with
    ts: list[float] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    observed: dict[str, list[Tensor]] = field(default_factory=dict)
    worst: dict[str, Tensor] = field(default_factory=dict)
    certificates: list[dict[str, Tensor]] = field(default_factory=list)
    moved: bool = False  # whether a step was taken since the last save
    rests: list[bool] = field(default_factory=list)  # whether none was taken before a save, as at t0

    def save(self, t: float, mu: Measure) -> None:
        values = {name: self._observed(name, f, mu) for name, f in self.observe.items()}
        self.ts.append(t)
        self.measures.append(mu)
        self.certificates.append(self.worst)
        self.rests.append(not self.moved)
        self.worst, self.moved = {}, False
        for name, value in values.items():
            self.observed.setdefault(name, []).append(value)

    def _observed(self, name: str, f: Callable[[Measure], Any], mu: Measure) -> Tensor:
        with unedited(f"observe[{name!r}](mu)", mu):
            value = f(mu)
        return self._value(name, value)

    def _value(self, name: str, value: Any) -> Tensor:
        """What an observable returned, plain numbers in double precision, always of one shape."""
        array = value if isinstance(value, Tensor) else np.asarray(value)
        if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
            checks.fail(
                f"observe[{name!r}](mu)",
                repr(value),
                "an observable returns numbers",
                f"let observe[{name!r}] return a number or a tensor",
            )
        out = torch.as_tensor(array).clone()  # an observable may use its buffer again
        before = self.observed.get(name)
        if before and before[0].shape != out.shape:
            rule, remedy = f"it was {tuple(before[0].shape)} before", "return one shape at all times"
            checks.fail(f"observe[{name!r}]", f"shape {tuple(out.shape)}", rule, remedy)
        return out

    def shared(self) -> tuple[str, ...]:
        """Names of the observables with no value for each member of a batch: those that do not grow with it.

        Only where the shape leaves it open is the function asked again, after the run, of the last measure
        with one member more along each axis of the batch. If it refuses that one, its shape decides.
        """
        batch = self.measures[-1].batch if self.measures else torch.Size()
        last = {name: values[-1] for name, values in self.observed.items() if batch}
        return tuple(sorted(name for name, value in last.items() if not self._grows(name, value, batch)))

    def _grows(self, name: str, value: Tensor, batch: torch.Size) -> bool:
        if value.shape[: len(batch)] != batch:
            return False
        mu, wanted = self.measures[-1], tuple(n + 1 for n in batch)
        rows = torch.meshgrid(*(torch.arange(n + 1, device=mu.device) % n for n in batch), indexing="ij")
        with torch.no_grad(), torch.random.fork_rng([]), suppress(Exception):  # the run itself is over
            return tuple(np.shape(self.observe[name](mu[rows])))[: len(batch)] == wanted
        return True

    def certify(self, step: Step) -> None:
        self.moved = True
        for name, value in step.certificate.items():
            self.worst[name] = torch.fmax(self.worst[name], value) if name in self.worst else value

    def cut(self, blown: Tensor, ended: Tensor, last: Measure) -> None:
        """Forget what was saved of members after they had blown up; in a batch, their last state stays.

        A long step jumps over a pole and finds finite numbers beyond, which mean nothing.
        """
        if not bool(blown.any()):
            return
        late = [blown & (t > ended) for t in self.ts]
        first = next((k for k, over in enumerate(late) if bool(over.any())), len(late))
        rows = list(zip(self.ts, self.measures, self.certificates, self.rests, late, strict=True))[first:]
        kept: list[list[Any]] = [
            self.ts,
            self.measures,
            self.certificates,
            self.rests,
            *self.observed.values(),
        ]
        for column in kept:
            del column[first:]
        for t, mu, worst, rest, over in rows if last.batch else ():
            self.worst = {name: _without(over, value) for name, value in worst.items()}
            self.moved = not rest
            self.save(t, where(over, last, mu))

    def certificate_table(self) -> dict[str, Tensor]:
        """Worst values between saves: 0 where no step was taken, as at t0, and NaN where one left nothing.

        No step is a step of length 0: it costs nothing, leaves no residual, and in the energy inequality
        there is equality. So the largest value of a run is a number, unless something is really not known.
        """
        known = {name: value for row in self.certificates for name, value in row.items()}
        return {name: self._column(name, known[name]) for name in sorted(known)}

    def _column(self, name: str, like: Tensor) -> Tensor:
        blank = {True: torch.zeros_like(like), False: torch.full_like(like, torch.nan)}
        rows = zip(self.certificates, self.rests, strict=True)
        return torch.stack(torch.broadcast_tensors(*(row.get(name, blank[rest]) for row, rest in rows)))


@contextmanager
def unedited(name: str, mu: Measure) -> Iterator[None]:
    """Refuse a function of the user that edits the measure it is given: the run would go on from there."""
    held = [*mu.coords, *(a for a in fixed(mu).values() if isinstance(a, Tensor))]
    before = [edits(a) for a in held]
    yield
    rule, remedy = "it must not edit the measure it is given", "write x = mu.x.clone() first, and edit that"
    checks.require([edits(a) for a in held] == before, name, "a measure edited in place", rule, remedy)


def _without(members: Tensor, value: Tensor) -> Tensor:
    """A certificate with NaN for some members, if it has one number for each."""
    return torch.where(members, torch.nan, value) if value.shape == members.shape else value


def observables(observe: Observables | None) -> Observables:
    """The functions to observe, checked."""
    if observe is not None and not isinstance(observe, Mapping):
        checks.fail(
            "observe", f"{observe!r:.60}", "names and functions are needed", 'pass {"F": energy}, say'
        )
    return {name: checks.function(f, f"observe[{name!r}]") for name, f in (observe or {}).items()}
