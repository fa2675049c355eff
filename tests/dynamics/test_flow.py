"""The verb: what is saved and when, how a run ends, and that nothing computed is ever lost."""

from __future__ import annotations

import math
import pickle
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import otflow as of
from otflow.base.errors import StepError
from otflow.fields import Carry
from tests.samples import DECAY, ZERO, Given, hill, normal

POINT = of.Particles([[1.0]])
PAIR = of.Particles(np.array([[[1.0]], [[2.0]]]))
DRIFT = Given(lambda t, x: torch.ones_like(x))  # x' = 1: the position is a clock
TURN = 0.8 * normal(2, 2, seed=3)


def ends(**options: Any) -> list[float]:
    """The save times of a run of x' = 1 from 0 at t = 0 to t = 1."""
    traj = of.flow(of.Particles([[0.0]]), DRIFT, options.pop("stepper", of.Euler()), t1=1.0, **options)
    positions = traj.stacked.coords[0].flatten()
    torch.testing.assert_close(positions, traj.ts, rtol=0, atol=1e-12)
    return traj.ts.tolist()


# --- save times --------------------------------------------------------------------------------------


def test_a_run_of_fixed_step_saves_every_step() -> None:
    assert ends(dt=0.25) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_an_adaptive_run_saves_101_equal_times() -> None:
    assert ends(stepper=of.Dopri5()) == np.linspace(0, 1, 101).tolist()


def test_the_last_step_is_shortened_when_dt_does_not_divide_the_span() -> None:
    assert ends(dt=0.3) == pytest.approx([0.0, 0.3, 0.6, 0.9, 1.0])
    assert of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.3).steps == 4


@pytest.mark.slow
@given(st.integers(1, 300))
@settings(deadline=None, max_examples=40)
def test_dt_of_one_nth_takes_n_steps_in_spite_of_rounding(n: int) -> None:
    traj = of.flow(POINT, ZERO, of.Euler(), t1=1.0, dt=1.0 / n)
    assert traj.steps == n
    assert len(traj) == n + 1
    assert traj.ts[-1].item() == 1.0


def test_a_dt_beyond_the_span_is_one_step() -> None:
    assert ends(dt=7.0) == [0.0, 1.0]


def test_t1_is_added_to_the_save_times() -> None:
    assert ends(dt=0.1, save_at=[0.3]) == [0.3, 1.0]


def test_t1_is_not_saved_twice() -> None:
    assert ends(dt=0.1, save_at=[0.3, 1.0]) == [0.3, 1.0]


def test_t0_is_saved_only_if_asked_for() -> None:
    assert ends(dt=0.1, save_at=[0.0, 0.5]) == [0.0, 0.5, 1.0]
    assert ends(dt=0.1, save_at=[0.0]) == [0.0, 1.0]


@pytest.mark.parametrize("stepper", [of.Euler(), of.Dopri5()], ids=repr)
def test_save_times_off_the_steps_are_hit_exactly(stepper: of.Stepper) -> None:
    wanted = [1 / 7, 0.35, 0.35 + 1e-8, 1 / math.pi + 0.5]
    assert ends(stepper=stepper, dt=0.1, save_at=wanted) == [*wanted, 1.0]


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor], ids=["tuple", "numpy", "torch"])
def test_save_times_come_in_any_kind_of_list(kind: Callable[[list[float]], Any]) -> None:
    assert ends(dt=0.1, save_at=kind([0.25, 0.5])) == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(
    ("save_at", "words"),
    [
        ([], "non-empty"),
        ([[0.1, 0.2]], "list of times"),
        ([0.2, 0.1], r"save_at\[1\]"),
        ([0.1, 0.1], r"save_at\[1\]"),
        ([-0.1, 0.5], r"\[t0, t1\]"),
        ([0.5, 1.1], r"\[t0, t1\]"),
        ([0.5, math.nan], r"save_at\[1\]"),
        (["soon"], "save_at"),
    ],
)
def test_wrong_save_times_are_refused(save_at: list[Any], words: str) -> None:
    with pytest.raises(of.InputError, match=words):
        ends(dt=0.1, save_at=save_at)


def test_time_may_start_anywhere() -> None:
    traj = of.flow(POINT, Given(lambda t, x: t * torch.ones_like(x)), of.RK4(), t0=-1.0, t1=2.0, dt=0.5)
    assert traj.ts.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]
    assert traj.final.x.item() == pytest.approx(1.0 + (4 - 1) / 2)


# --- jumps -------------------------------------------------------------------------------------------


def stop_log() -> tuple[list[float], Callable[[Tensor, of.Measure], bool]]:
    """A list that a stop callback fills with the ends of all steps."""
    seen: list[float] = []

    def watch(t: Tensor, mu: of.Measure) -> bool:
        seen.append(float(t))
        return False

    return seen, watch


def test_a_step_ends_at_each_jump_without_saving_it() -> None:
    seen, watch = stop_log()
    field = Given(lambda t, x: torch.ones_like(x), switches=(0.37, 0.5, 2.0))
    traj = of.flow(POINT, field, of.Euler(), t1=1.0, dt=0.25, stop=watch)
    assert seen == [0.25, 0.37, 0.5, 0.75, 1.0]
    assert traj.ts.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    "stepper", [of.Euler(), of.Heun(), of.RK4(), of.Dopri5(), of.Dopri5(adaptive=False)], ids=repr
)
def test_a_stage_never_sees_the_weights_behind_a_jump(stepper: of.Stepper) -> None:
    field = Given(lambda t, x: torch.where(t < 0.37, 1.0, 1000.0) * torch.ones_like(x), switches=(0.37,))
    traj = of.flow(of.Particles([[0.0]]), field, stepper, t1=1.0, dt=0.25, save_at=[0.37])
    assert traj.stacked.coords[0].flatten().tolist() == pytest.approx([0.37, 0.37 + 630.0], rel=1e-13)


@pytest.mark.parametrize(("t0", "jump"), [(0.17, 0.44), (0.16, 0.44), (0.08, 0.21), (0.18, 0.44)])
def test_a_stage_does_not_see_them_either_when_t_plus_dt_rounds_up(t0: float, jump: float) -> None:
    """In floating point, 0.17 + (0.44 - 0.17) > 0.44."""
    field = Given(lambda t, x: torch.where(t < jump, 1.0, 1000.0) * torch.ones_like(x), switches=(jump,))
    traj = of.flow(of.Particles([[0.0]]), field, of.RK4(), t0=t0, t1=1.0, dt=1.0, save_at=[jump])
    assert traj.measures[0].coords[0].item() == pytest.approx(jump - t0, rel=1e-12)


@pytest.mark.parametrize(("stepper", "dt"), [(of.RK4(), 0.25), (of.Dopri5(), None)], ids=repr)
def test_weights_are_asked_for_times_within_the_run_only(stepper: of.Stepper, dt: float | None) -> None:
    """A function of time may be a table that knows nothing outside."""
    asked: list[float] = []

    def V(t: Tensor) -> Tensor:
        asked.append(float(t))
        return 1e-3 * torch.eye(1, dtype=torch.float64)

    of.flow(POINT, of.SoftmaxAttention([[1.0]], [[1.0]], V), stepper, t0=1.0, t1=2.0, dt=dt, save_at=[2.0])
    assert min(asked) >= 1.0
    assert max(asked) <= 2.0


# --- stopping ----------------------------------------------------------------------------------------


def test_a_stop_callback_ends_the_run_and_the_state_is_kept() -> None:
    traj = of.flow(
        POINT, DRIFT, of.Euler(), t1=1.0, dt=0.1, save_at=[1.0], stop=lambda t, mu: mu.x.max() > 1.45
    )
    assert traj.status == "stopped"
    assert traj.ts.tolist() == pytest.approx([0.5])
    assert traj.final.x.item() == pytest.approx(1.5)


def test_a_stop_at_a_save_time_is_recorded_once() -> None:
    traj = of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.25, stop=lambda t, mu: t >= 0.5)
    assert traj.ts.tolist() == [0.0, 0.25, 0.5]


@pytest.mark.parametrize(("stepper", "dt"), [(of.Euler(), 0.125), (of.Dopri5(), None)], ids=repr)
def test_members_of_a_batch_stop_one_by_one(stepper: of.Stepper, dt: float | None) -> None:
    def stop(t: Tensor, mu: of.Measure) -> Tensor:
        return mu.coords[0][:, 0, 0] > 2.3

    traj = of.flow(PAIR, DRIFT, stepper, t1=1.0, dt=dt, stop=stop)
    assert traj.status.tolist() == ["ok", "stopped"]
    assert traj.ts[-1].item() == 1.0
    x = traj.stacked.coords[0][:, :, 0, 0]
    assert x[-1, 0].item() == pytest.approx(2.0)
    assert x[-1, 1].item() == pytest.approx(2.375 if dt else 2.31, abs=0.011 if dt is None else 1e-12)
    assert torch.equal(x[-1, 1], x[-2, 1])


def test_a_run_ends_when_all_members_have_stopped() -> None:
    traj = of.flow(
        PAIR,
        DRIFT,
        of.Euler(),
        t1=1.0,
        dt=0.125,
        stop=lambda t, mu: mu.x[:, 0, 0] > mu.x[:, 0, 0].new([1.3, 2.55]),
    )
    assert traj.status.tolist() == ["stopped", "stopped"]
    assert traj.ts[-1].item() == 0.625
    assert traj.final.x.flatten().tolist() == [1.375, 2.625]


# --- budgets -----------------------------------------------------------------------------------------


def test_too_many_steps_raise_an_error_that_carries_the_run_so_far() -> None:
    with pytest.raises(of.errors.FlowError, match="budget") as caught:
        of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.125, max_steps=3)
    traj = caught.value.trajectory
    assert traj.status == "budget"
    assert traj.ts.tolist() == [0.0, 0.125, 0.25, 0.375]
    assert traj.steps == 3


def test_a_budget_that_is_just_enough_is_no_failure() -> None:
    assert of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.125, max_steps=8).status == "ok"


def test_on_failure_return_hands_the_run_back() -> None:
    traj = of.flow(POINT, DRIFT, of.Dopri5(), t1=1.0, save_at=[1.0], max_steps=2, on_failure="return")
    assert traj.status == "budget"
    assert 0 < traj.ts[-1].item() < 1
    assert traj.final.x.item() == pytest.approx(1 + traj.ts[-1].item())
    assert "2 steps" in traj.message


def test_a_budget_of_seconds_ends_a_slow_run() -> None:
    def slow(t: Tensor, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return -x

    start = time.monotonic()
    traj = of.flow(POINT, Given(slow), of.Euler(), t1=1e3, dt=1.0, max_seconds=0.2, on_failure="return")
    assert time.monotonic() - start < 5.0
    assert traj.status == "budget"
    assert 2 <= len(traj) <= 20


# --- interruptions and errors ------------------------------------------------------------------------


class Bomb:
    """Raises from the given call on, or on that call only."""

    def __init__(self, error: BaseException, call: int, *, once: bool = False) -> None:
        self.error, self.call, self.once, self.calls = error, call, once, 0

    def __call__(self, *_: Any) -> bool:
        self.calls += 1
        if self.calls == self.call or (self.calls > self.call and not self.once):
            raise self.error
        return False


def test_ctrl_c_in_a_stop_callback_keeps_what_was_computed() -> None:
    with pytest.warns(UserWarning, match="interrupted at t = 0"):
        traj = of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.125, stop=Bomb(KeyboardInterrupt(), 4))
    assert traj.status == "stopped"
    assert 0.375 <= traj.ts[-1].item() <= 0.5
    assert traj.final.x.item() == pytest.approx(1 + traj.ts[-1].item())
    assert "interrupted" in traj.message


def test_ctrl_c_in_the_field_keeps_the_last_complete_step() -> None:
    bomb = Bomb(KeyboardInterrupt(), 10)
    field = Given(lambda t, x: torch.ones_like(x) + bomb())
    with pytest.warns(UserWarning, match="interrupted"):
        traj = of.flow(POINT, field, of.RK4(), t1=1.0, dt=0.125)
    assert traj.status == "stopped"
    assert traj.ts.tolist() == [0.0, 0.125, 0.25]


def test_ctrl_c_while_observing_keeps_what_was_computed() -> None:
    bomb = Bomb(KeyboardInterrupt(), 4, once=True)
    with pytest.warns(UserWarning, match="interrupted"):
        traj = of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.125, observe={"bomb": bomb})
    assert traj.status == "stopped"
    assert traj.ts[:3].tolist() == [0.0, 0.125, 0.25]
    assert len(traj.observed["bomb"]) == len(traj) >= 3


@pytest.mark.parametrize("once", [True, False], ids=["once", "for good"])
def test_an_observable_that_breaks_keeps_the_run_so_far(once: bool) -> None:
    bomb = Bomb(ZeroDivisionError("no logarithm"), 4, once=once)
    with pytest.raises(of.errors.FlowError, match="no logarithm") as caught:
        of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.125, observe={"bomb": bomb})
    traj = caught.value.trajectory
    assert traj.ts[:3].tolist() == [0.0, 0.125, 0.25]
    assert len(traj.observed["bomb"]) == len(traj)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_observable_that_breaks_at_once_raises_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError):
        of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.5, observe={"bomb": Bomb(ZeroDivisionError(), 1)})


def test_an_observable_that_changes_its_shape_is_named_and_the_run_is_kept() -> None:
    sizes = iter(range(1, 100))
    observe = {"growing": lambda mu: torch.zeros(next(sizes))}
    with pytest.raises(of.errors.FlowError, match="growing") as caught:
        of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.125, observe=observe)
    assert len(caught.value.trajectory) >= 1


def test_an_error_survives_the_trip_to_another_process() -> None:
    with pytest.raises(of.errors.FlowError) as caught:
        of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.5, max_steps=1)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.trajectory.ts.tolist() == [0.0, 0.5]


def test_a_field_that_breaks_keeps_the_run_so_far() -> None:
    bomb = Bomb(RuntimeError("out of memory"), 6)
    with pytest.raises(of.errors.FlowError, match="out of memory") as caught:
        of.flow(POINT, Given(lambda t, x: x + bomb()), of.Euler(), t1=1.0, dt=0.125)
    assert caught.value.trajectory.ts.tolist() == [0.0, 0.125, 0.25, 0.375, 0.5, 0.625]


def test_a_wrong_input_found_in_the_first_step_is_raised_as_such() -> None:
    field = of.SoftmaxAttention(np.eye(3), np.eye(3), np.eye(3))
    with pytest.raises(of.InputError, match=r"Q\.shape"):
        of.flow(POINT, field, of.Euler(), t1=1.0, dt=0.5)


def test_a_step_that_cannot_be_taken_is_the_status_degenerate() -> None:
    field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1)), of.Wasserstein())
    with pytest.raises(of.errors.FlowError, match="CFL") as caught:
        of.flow(hill(20), field, of.Euler(), t1=10.0, dt=10.0)
    assert caught.value.trajectory.status == "degenerate"
    assert caught.value.trajectory.ts.tolist() == [0.0]


def test_a_stepper_of_ones_own_may_name_its_failure() -> None:
    class Giving(of.Euler):
        def step(self, field: Any, t: Tensor, *rest: Any) -> of.steppers.Step:
            if t >= 0.5:
                raise StepError("no proof", status="uncertified")
            return super().step(field, t, *rest)

    traj = of.flow(POINT, DRIFT, Giving(), t1=1.0, dt=0.25, on_failure="return")
    assert (traj.status, traj.message) == ("uncertified", "no proof")
    assert traj.ts.tolist() == [0.0, 0.25, 0.5]


# --- observables and certificates --------------------------------------------------------------------


def test_observables_are_stacked_along_time_and_batch() -> None:
    mu0 = of.Particles(normal(2, 3, 4, 2))
    observe = {
        "mean": lambda mu: mu.x.mean(-2),
        "energy": of.Potential(lambda x: x.square().sum(-1)),
        "count": lambda mu: 7,
        "numpy": lambda mu: mu.x.numpy().max((-1, -2)),
    }
    traj = of.flow(mu0, DECAY, of.RK4(), t1=1.0, dt=0.25, observe=observe)
    shapes = {name: tuple(value.shape) for name, value in traj.observed.items()}
    assert shapes == {"mean": (5, 2, 3, 2), "energy": (5, 2, 3), "count": (5,), "numpy": (5, 2, 3)}
    torch.testing.assert_close(traj.observed["mean"], traj.stacked.x.mean(-2))


def test_a_plain_number_is_recorded_in_double_precision() -> None:
    traj = of.flow(POINT, ZERO, of.Euler(), t1=1.0, dt=0.5, observe={"tenth": lambda mu: 0.1})
    assert traj.observed["tenth"].tolist() == [0.1, 0.1, 0.1]


def test_observables_see_the_saved_measures() -> None:
    traj = of.flow(
        POINT, DRIFT, of.Euler(), t1=1.0, dt=0.25, save_at=[0.5], observe={"x": lambda mu: mu.x[0, 0]}
    )
    assert traj.observed["x"].tolist() == [1.5, 2.0]


def test_sinkhorn_leaves_a_certificate_below_its_tolerance() -> None:
    field = of.SinkhornAttention(TURN, TURN, TURN, of.Sinkhorn(0.5, tol=1e-8))
    traj = of.flow(of.Particles(normal(5, 2)), field, of.RK4(), t1=0.4, dt=0.1)
    residual = traj.certificates["residual"]
    assert residual.shape == (5,)
    assert residual[0] == 0
    assert bool((residual[1:] <= 1e-8).all())
    assert bool((residual[1:] > 0).any())


def test_fields_without_inner_solvers_leave_no_certificate() -> None:
    assert of.flow(POINT, DECAY, of.RK4(), t1=1.0, dt=0.5).certificates == {}


def test_a_sinkhorn_field_that_misses_its_tolerance_is_a_failure() -> None:
    field = of.SinkhornAttention(3 * TURN, TURN, TURN, of.Sinkhorn(0.02, tol=1e-12, max_iter=2))
    with pytest.raises(of.errors.FlowError, match=r"max_iter.*marginal error") as caught:
        of.flow(of.Particles(normal(5, 2)), field, of.Euler(), t1=1.0, dt=0.1)
    assert caught.value.trajectory.status == "max_iter"


class Confessing(of.VelocityField):
    """A field whose inner solver is worst at the first stage of each step."""

    def __init__(self) -> None:
        self.residuals = [8.0, 4.0, 2.0, 1.0]

    def evaluate(self, t: Tensor, mu: of.Measure, carry: Carry | None = None) -> tuple[of.Tangent, Carry]:
        self.residuals = [*self.residuals[1:], self.residuals[0]]
        return 0 * mu.coords, Carry(residual=self.residuals[-1])


def test_a_certificate_is_the_worst_over_all_stages_since_the_last_save() -> None:
    traj = of.flow(POINT, Confessing(), of.RK4(), t1=1.0, dt=0.25, save_at=[0.5])
    assert traj.certificates["residual"].tolist() == [8.0, 8.0]


class Improving(of.VelocityField):
    """A field whose inner solver gets better with time."""

    def evaluate(self, t: Tensor, mu: of.Measure, carry: Carry | None = None) -> tuple[of.Tangent, Carry]:
        return 0 * mu.coords, Carry(residual=1.0 - float(t))


def test_a_certificate_forgets_what_came_before_the_last_save() -> None:
    traj = of.flow(POINT, Improving(), of.Euler(), t1=1.0, dt=0.25, save_at=[0.5])
    assert traj.certificates["residual"].tolist() == [1.0, 0.5]


# --- derivatives -------------------------------------------------------------------------------------


def loss(x: Tensor, Q: Tensor, stepper: of.Stepper) -> Tensor:
    K, V = torch.tensor(TURN), torch.tensor(normal(2, 2, seed=5))
    dt = None if stepper.adaptive else 0.25
    end = of.flow(of.Particles(x), of.SoftmaxAttention(Q, K, V), stepper, t1=0.5, dt=dt, save_at=[0.5]).final
    return end.coords[0].square().sum()


@pytest.mark.parametrize("stepper", [of.Euler(), of.RK4(), of.Dopri5(adaptive=False)], ids=repr)
def test_a_flow_is_differentiable_in_its_start_and_in_the_weights(stepper: of.Stepper) -> None:
    x = torch.tensor(normal(3, 2), requires_grad=True)
    Q = torch.tensor(normal(2, 2, seed=6), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, Q: loss(x, Q, stepper), (x, Q))


def test_an_adaptive_flow_is_differentiable_to_its_tolerance() -> None:
    x = torch.tensor(normal(3, 2), requires_grad=True)
    Q = torch.tensor(normal(2, 2, seed=6), requires_grad=True)
    adaptive = torch.autograd.grad(loss(x, Q, of.Dopri5()), (x, Q))
    fine = torch.autograd.grad(loss(x, Q, of.RK4()), (x, Q))
    for a, b in zip(adaptive, fine, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("root", [np.eye(2), np.diag([1.0, 0.0])], ids=["regular", "singular"])
def test_a_flow_of_gaussians_is_differentiable(root: np.ndarray) -> None:
    def end(mean: Tensor, root: Tensor, V: Tensor) -> Tensor:
        field = of.SoftmaxAttention(TURN, TURN, V)
        final = of.flow(of.Gaussian(mean, root=root), field, of.Heun(), t1=0.04, dt=0.02).final
        return torch.cat([c.flatten() for c in final.coords])

    inputs = (torch.tensor(normal(2)), torch.tensor(root), torch.tensor(TURN))
    assert torch.autograd.gradcheck(end, [a.requires_grad_() for a in inputs])


def test_a_gradient_flow_is_differentiable_in_its_start() -> None:
    energy = of.Interaction(lambda x, y: -torch.exp(-(x - y).square().sum(-1))) + of.Potential(
        lambda x: (x**4).sum(-1)
    )
    field = of.SteepestDescent(energy, of.Wasserstein())

    def end(x: Tensor) -> Tensor:
        return of.flow(of.Particles(x), field, of.Heun(), t1=0.2, dt=0.1).final.coords[0]

    assert torch.autograd.gradcheck(end, torch.tensor(normal(3, 2), requires_grad=True))


def test_weights_in_layers_get_gradients() -> None:
    values = torch.tensor(np.stack([TURN, -TURN]), requires_grad=True)
    field = of.SoftmaxAttention(TURN, TURN, of.Layers(values, edges=[0.0, 0.3, 1.0]))
    of.flow(of.Particles(normal(3, 2)), field, of.RK4(), t1=1.0, dt=0.25).final.coords[0].sum().backward()
    assert values.grad is not None
    assert bool((values.grad.abs().amax((-1, -2)) > 1e-3).all())


def test_no_graph_is_built_when_nothing_requires_grad() -> None:
    field = of.SteepestDescent(
        of.Potential(lambda x: (x**4).sum(-1)), of.Wasserstein()
    ) + of.SoftmaxAttention(TURN, TURN, TURN)
    traj = of.flow(
        of.Particles(normal(3, 2)), field, of.RK4(), t1=0.2, dt=0.1, observe={"x": lambda mu: mu.x.sum()}
    )
    assert all(mu.coords[0].grad_fn is None and not mu.coords[0].requires_grad for mu in traj.measures)
    assert not traj.observed["x"].requires_grad


def test_no_graph_is_built_within_no_grad() -> None:
    x = torch.tensor(normal(3, 2), requires_grad=True)
    with torch.no_grad():
        final = of.flow(of.Particles(x), DECAY, of.RK4(), t1=0.2, dt=0.1).final
    assert final.coords[0].grad_fn is None


def test_the_grad_mode_of_the_caller_is_restored() -> None:
    of.flow(POINT, DECAY, of.Euler(), t1=1.0, dt=0.5)
    assert torch.is_grad_enabled()
    with pytest.raises(of.errors.FlowError):
        of.flow(POINT, DECAY, of.Euler(), t1=1.0, dt=0.5, max_steps=1)
    assert torch.is_grad_enabled()


@pytest.mark.thorough
@pytest.mark.parametrize(("stepper", "dt"), [(of.RK4(), 0.02), (of.Dopri5(), None)], ids=repr)
def test_a_member_that_blows_up_does_not_spoil_the_gradient_of_the_others(
    stepper: of.Stepper, dt: float | None
) -> None:
    def gradient(x: list[float]) -> float:
        one = torch.ones(1, 1, dtype=torch.float64)
        Q = one.clone().requires_grad_()
        mu0 = of.Particles(np.array(x)[:, None, None])
        field = of.UnnormalisedAttention(Q, one, one)
        final = of.flow(mu0, field, stepper, t1=0.5, dt=dt, save_at=[0.5]).final
        return torch.autograd.grad(final.coords[0][-1].sum(), Q)[0].item()

    assert gradient([1.0, 0.1]) == pytest.approx(gradient([0.1]), rel=1e-6)


# --- the trajectory ----------------------------------------------------------------------------------


def test_stacked_puts_time_in_front_of_the_batch() -> None:
    mu0 = of.Particles(normal(2, 3, 2), w=[0.2, 0.3, 0.5], label=[0.0, 1.0, 2.0])
    traj = of.flow(mu0, DECAY, of.RK4(), t1=1.0, dt=0.25)
    mu = traj.stacked
    assert mu.batch == (5, 2)
    assert mu.x.shape == (5, 2, 3, 2)
    assert torch.equal(mu.w, mu0.w.expand(5, 2, 3))
    assert torch.equal(mu.label, mu0.label.expand(5, 2, 3))
    assert torch.equal(mu.x[-1], traj.final.x)
    assert torch.equal(mu.x[0], mu0.x)
    assert len(traj) == len(traj.measures) == 5


def test_the_start_is_saved_as_it_came_and_apart() -> None:
    mu0 = of.Particles(normal(3, 2), [0.2, 0.3, 0.5], [0.0, 1.0, 2.0])
    before = mu0.numpy()
    traj = of.flow(mu0, DRIFT, of.Euler(), t1=1.0, dt=0.5)
    for a in (mu0.x, mu0.w, mu0.label):
        a.zero_()
    for mu in traj:
        assert all(np.array_equal(mu.numpy()[name], before[name]) for name in ("w", "label"))
    assert np.array_equal(traj[0].x.numpy(), before["x"])


@pytest.mark.parametrize("what", ["observe", "stop"])
def test_a_function_that_edits_the_measure_is_refused(what: str) -> None:
    def centred(mu: of.Measure) -> float:
        return float(mu.coords[0].sub_(mu.coords[0].mean(-2, keepdim=True)).square().sum())

    options = (
        {"observe": {"spread": centred}} if what == "observe" else {"stop": lambda t, mu: centred(mu) < 0}
    )
    with pytest.raises((of.InputError, of.errors.FlowError), match=r"clone\(\)"):
        of.flow(of.Particles(normal(3, 2)), DRIFT, of.Euler(), t1=1.0, dt=0.5, **options)


def test_a_stopping_rule_cannot_turn_the_clock() -> None:
    def stop(t: Tensor, mu: of.Measure) -> bool:
        return bool((t.add_(0.4) > 5.0).all())

    assert of.flow(POINT, DRIFT, of.Euler(), t1=1.0, dt=0.5, stop=stop).final.x.item() == 2.0


class Clocked(of.VelocityField):
    """-x cos t, with the time as torch broadcasts it by itself, or as it should."""

    def __init__(self, axes: int) -> None:
        self.axes = axes

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return mu.coords.map(lambda x: -x * torch.cos(t)[(..., *[None] * self.axes)])


def test_clocks_that_are_taken_for_coordinates_are_refused() -> None:
    """Two members in the plane: nothing else tells their clocks (2,) from two coordinates."""
    mu = of.Particles(np.stack([normal(3, 2), 10 * normal(3, 2)]))
    with pytest.raises(of.InputError, match="broadcast from the left"):
        of.flow(mu, Clocked(0), of.Dopri5(), t1=1.0)
    right = of.flow(mu, Clocked(2), of.Dopri5(rtol=1e-10, atol=1e-12), t1=1.0).final.x
    torch.testing.assert_close(right, mu.x * math.exp(-math.sin(1.0)), rtol=1e-8, atol=0.0)
    alone = of.flow(mu[0], Clocked(0), of.Dopri5(rtol=1e-10, atol=1e-12), t1=1.0).final.x
    torch.testing.assert_close(alone, right[0], rtol=1e-8, atol=0.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mu0", "dims"),
    [
        (of.Particles(normal(2, 3, 2)), {"x": ("t", "batch0", "token", "coordinate")}),
        (
            of.Gaussian(normal(2), root=np.eye(2)),
            {"mean": ("t", "coordinate"), "root": ("t", "coordinate", "column")},
        ),
        (hill(12), {"density": ("t", "x")}),
    ],
    ids=["particles", "gaussian", "grid"],
)
def test_a_trajectory_becomes_an_xarray_dataset(mu0: of.Measure, dims: dict[str, tuple[str, ...]]) -> None:
    energy = of.Potential(lambda x: x.square().sum(-1) / 2)
    field = of.SteepestDescent(energy, of.Wasserstein())
    traj = of.flow(mu0, field, of.Euler(), t1=0.02, dt=0.01, observe={"F": energy})
    data = traj.to_xarray()
    assert {name: data[name].dims for name in dims} == dims
    integrated = {"certificate_quadrature"} if isinstance(mu0, of.Gaussian) else set()
    assert set(data.data_vars) == {*dims, "F", "certificate_energy_gap"} | integrated
    assert {"status", "ended", "blow_up_time"} <= set(data.coords)
    for name, piece in zip(dims, traj.stacked.coords, strict=True):
        np.testing.assert_array_equal(data[name].values, piece.numpy())
    np.testing.assert_array_equal(data["F"].values, traj.observed["F"].numpy())
    np.testing.assert_array_equal(data["t"].values, traj.ts.numpy())
    assert "ok" in data.attrs["status"]


def test_a_dataset_may_hold_observables_that_do_not_know_of_the_batch() -> None:
    traj = of.flow(PAIR, DRIFT, of.Euler(), t1=1.0, dt=0.5, observe={"total": lambda mu: mu.x.sum()})
    assert traj.to_xarray()["total"].values.tolist() == [3.0, 4.0, 5.0]


def test_a_dataset_of_a_run_with_a_graph_holds_plain_numbers() -> None:
    mu0 = of.Particles(torch.ones(1, 1, requires_grad=True))
    traj = of.flow(mu0, DECAY, of.Euler(), t1=1.0, dt=0.5, observe={"x": lambda mu: mu.x.sum()})
    assert traj.to_xarray()["observed_x"].values.tolist() == [1.0, 0.5, 0.25]


def test_the_representation_names_times_measure_and_status() -> None:
    text = repr(of.flow(POINT, DECAY, of.Euler(), t1=1.0, dt=0.5))
    assert text == "Trajectory(3 times in [0, 1], Particles(n=1, d=1, space=Euclidean()), status='ok')"


def test_a_progress_bar_reaches_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    traj = of.flow(POINT, DECAY, of.Euler(), t1=1.0, dt=0.25, progress=True)
    assert traj.status == "ok"
    assert "100%" in capsys.readouterr().err


def test_there_is_no_output_without_progress(capsys: pytest.CaptureFixture[str]) -> None:
    of.flow(POINT, DECAY, of.Euler(), t1=1.0, dt=0.25)
    assert capsys.readouterr() == ("", "")


# --- wrong input -------------------------------------------------------------------------------------


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "t1 before t0": ({"t1": -1.0}, "t1 = -1.0"),
    "t1 at t0": ({"t1": 0.0}, "t1 > t0"),
    "t1 not a number": ({"t1": math.nan}, "t1 = nan"),
    "t1 infinite": ({"t1": math.inf}, "t1 = inf"),
    "t1 a word": ({"t1": "late"}, "t1 = 'late'"),
    "t0 not a number": ({"t0": math.nan}, "t0 = nan"),
    "dt zero": ({"dt": 0.0}, "dt = 0.0"),
    "dt negative": ({"dt": -0.1}, "dt = -0.1"),
    "dt missing": ({"dt": None}, "dt = None.*Dopri5"),
    "stepper a class": ({"stepper": of.RK4}, r"stepper = .*call it: RK4\(\)"),
    "field a class": ({"field": of.SoftmaxAttention}, "field = .*VelocityField is needed"),
    "field and measure swapped": ({"mu0": DECAY, "field": POINT}, "mu0 = .*in this order"),
    "measure an array": ({"mu0": np.ones((3, 2))}, "mu0 = .*Measure is needed"),
    "noise with adaptive steps": (
        {"stepper": of.Dopri5(), "noise": of.CommonNoise(1.0, rng=0)},
        "stepper = Dopri5.*noise needs a fixed step.*Euler",
    ),
    "unknown on_failure": ({"on_failure": "ignore"}, "on_failure = 'ignore'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_with_its_name_and_value(name: str) -> None:
    changes, words = WRONG[name]
    options = {"mu0": POINT, "field": DECAY, "stepper": of.Euler(), "t1": 1.0, "dt": 0.1} | changes
    with pytest.raises(of.InputError) as caught:
        of.flow(options.pop("mu0"), options.pop("field"), options.pop("stepper"), **options)
    assert re.search(words, str(caught.value), re.DOTALL)


@pytest.mark.parametrize(
    "dt", [np.float64(0.5), np.float32(0.5), 1, np.int64(1)], ids=lambda dt: type(dt).__name__
)
def test_dt_may_be_any_kind_of_number(dt: Any) -> None:
    assert of.flow(POINT, DRIFT, of.Euler(), t1=np.float32(2.0), dt=dt).final.x.item() == pytest.approx(3.0)


def test_an_observable_may_use_its_buffer_again() -> None:
    buffer = torch.zeros(1, dtype=torch.float64)

    def mean(mu: of.Measure) -> torch.Tensor:
        return buffer.copy_(mu.coords[0].mean())

    traj = of.flow(POINT, DECAY, of.RK4(), t1=1.0, dt=0.25, observe={"mean": mean})
    expected = [mu.coords[0].mean().item() for mu in traj]
    assert len(set(expected)) == 5
    assert traj.observed["mean"].flatten().tolist() == expected
