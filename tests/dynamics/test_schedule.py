"""Forced ends of steps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otflow.dynamics.schedule import SNAP, StepEnd, schedule

inner = st.floats(0.001, 0.999, allow_nan=False)


def ends(
    t1: float = 1.0,
    dt: float | None = None,
    save_at: Any = None,
    switches: tuple[float, ...] = (),
    **options: Any,
) -> list[StepEnd]:
    options = {"t0": 0.0, "adaptive": False} | options
    return schedule(options.pop("t0"), t1, dt, save_at, switches, **options)


def test_saves_and_jumps_are_merged_in_order() -> None:
    assert ends(save_at=[0.2, 0.7], switches=(0.5,)) == [
        StepEnd(0.2, True, False),
        StepEnd(0.5, False, True),
        StepEnd(0.7, True, False),
        StepEnd(1.0, True, False),
    ]


def test_a_save_at_a_jump_is_one_end() -> None:
    assert ends(save_at=[0.5], switches=(0.5,)) == [StepEnd(0.5, True, True), StepEnd(1.0, True, False)]


@pytest.mark.parametrize("side", [-1, 1])
def test_a_save_within_rounding_of_a_jump_becomes_the_jump(side: int) -> None:
    (first, last) = ends(save_at=[0.5 + side * 1e-14], switches=(0.5,))
    assert first == StepEnd(0.5, True, True)
    assert last == StepEnd(1.0, True, False)


def test_a_save_near_a_jump_but_beyond_rounding_is_another_end() -> None:
    assert [e.t for e in ends(save_at=[0.5 + 1e-9], switches=(0.5,))] == [0.5, 0.5 + 1e-9, 1.0]


def test_jumps_outside_the_span_are_ignored() -> None:
    assert ends(save_at=[1.0], switches=(-1.0, 0.0, 1.0, 2.0)) == [StepEnd(1.0, True, False)]


def test_jumps_within_rounding_of_the_ends_are_ignored() -> None:
    assert ends(save_at=[1.0], switches=(1e-14, 1 - 1e-14)) == [StepEnd(1.0, True, False)]


def test_fixed_steps_are_saved_one_by_one() -> None:
    assert [e.t for e in ends(dt=0.25)] == [0.25, 0.5, 0.75, 1.0]


def test_adaptive_runs_are_saved_a_hundred_times() -> None:
    assert [e.t for e in ends(adaptive=True)] == np.linspace(0, 1, 101)[1:].tolist()
    assert len(ends(adaptive=True, dt=0.25)) == 100


@pytest.mark.parametrize(
    ("t0", "t1", "dt"), [(0.0, 0.3, 0.1), (0.1, 0.7, 0.1), (1e6, 1e6 + 1, 0.1), (-1.0, 1.0, 0.2)]
)
def test_rounding_adds_no_tiny_step(t0: float, t1: float, dt: float) -> None:
    times = [t0, *(e.t for e in ends(t0=t0, t1=t1, dt=dt))]
    assert times[-1] == t1
    assert len(times) == round((t1 - t0) / dt) + 1
    assert min(np.diff(times)) > 0.99 * dt


@given(st.lists(inner, min_size=1, max_size=6, unique=True), st.lists(inner, max_size=6, unique=True))
@settings(deadline=None, max_examples=80)
def test_every_save_and_every_jump_is_an_end_and_there_are_no_others(
    saves: list[float], jumps: list[float]
) -> None:
    found = ends(save_at=sorted(saves), switches=tuple(jumps))
    times = [e.t for e in found]
    assert all(a < b for a, b in itertools.pairwise(times))
    for t, flag in [*((s, "save") for s in saves), *((j, "switch") for j in jumps), (1.0, "save")]:
        assert any(abs(e.t - t) <= 8 * SNAP and getattr(e, flag) for e in found)
    assert all(min(abs(e.t - t) for t in [*saves, *jumps, 1.0]) == 0 for e in found)
    assert all(e.save or e.switch for e in found)


@given(st.floats(1e-3, 2.0), st.floats(-10.0, 10.0), st.floats(0.01, 5.0))
@settings(deadline=None, max_examples=80)
def test_fixed_steps_never_exceed_dt(dt: float, t0: float, span: float) -> None:
    times = [t0, *(e.t for e in ends(t0=t0, t1=t0 + span, dt=dt))]
    assert times[-1] == t0 + span
    assert max(np.diff(times)) <= dt * (1 + 1e-9) + 1e-14
