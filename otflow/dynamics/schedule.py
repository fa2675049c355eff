"""The schedule of a flow: the times at which a step must end, to save or because a weight jumps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from otflow.base import checks

SNAP = 1e-12  # times closer than this, relative to the span, are one; chosen: some thousand roundings


class StepEnd(NamedTuple):
    """A forced end of a step: a save time, a jump of the weights, or both."""

    t: float
    save: bool
    switch: bool


def schedule(
    t0: float, t1: float, dt: float | None, save_at: Any, switches: Iterable[float], *, adaptive: bool
) -> list[StepEnd]:
    """Forced step ends in (t0, t1], in order. t1 is always saved."""
    span = t1 - t0
    saves = _save_times(t0, t1, dt, save_at, adaptive=adaptive)
    jumps = [s for s in switches if t0 + SNAP * span < s < t1 - SNAP * span]
    marks = sorted([(s, False) for s in saves if s > t0] + [(s, True) for s in jumps])
    ends: list[StepEnd] = []
    for t, switch in marks:
        if ends and t - ends[-1].t <= SNAP * span:
            last = ends.pop()
            # A save time within rounding of a jump becomes the jump itself: weights are looked up at t.
            ends.append(StepEnd(t if switch else last.t, last.save or not switch, last.switch or switch))
        else:
            ends.append(StepEnd(t, not switch, switch))
    return ends


def saves_start(t0: float, t1: float, save_at: Any) -> bool:
    """Whether t0 itself is a save time."""
    return save_at is None or _check_save_at(save_at, t0, t1)[0] == t0


def _save_times(t0: float, t1: float, dt: float | None, save_at: Any, *, adaptive: bool) -> list[float]:
    if save_at is not None:
        return [*_check_save_at(save_at, t0, t1), t1]
    if adaptive or dt is None:
        return [float(t) for t in np.linspace(t0, t1, 101)]
    steps = math.ceil((t1 - t0) / dt * (1 - 1e-10))
    return [t0 + i * dt for i in range(steps)] + [t1]


def _check_save_at(save_at: Any, t0: float, t1: float) -> list[float]:
    times = checks.tensor(save_at, "save_at").double()
    good = times.ndim == 1 and len(times)
    rule = "a non-empty list of times is needed"
    checks.require(good, "save_at.shape", times.shape, rule, "leave save_at out for the default")
    if bool((times.diff() <= 0).any()):
        index = int((times.diff() <= 0).nonzero()[0])
        rule = f"save times increase, but the one before is {float(times[index])}"
        checks.fail(f"save_at[{index + 1}]", float(times[index + 1]), rule, "sort them and drop repetitions")
    slack = SNAP * (t1 - t0)
    checks.require(
        times[0] >= t0 - slack and times[-1] <= t1 + slack,
        "save_at",
        f"times from {float(times[0])} to {float(times[-1])}",
        f"they must lie in [t0, t1] = [{t0}, {t1}]",
        f"pass np.clip(save_at, {t0:g}, {t1:g}), or flow to t1={max(float(times[-1]), t1):g}",
    )
    return [min(max(float(t), t0), t1) for t in times]
