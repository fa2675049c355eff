"""Adaptive steps: errors follow the tolerance, members of a batch go at their own pace, trouble is named."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import RK45, solve_ivp
from scipy.special import exp1
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.fields import Carry
from otflow.steppers import Memory, dopri5
from tests.samples import DECAY, ZERO, Given, Linear, hill, normal, slope

ONE = torch.ones(1, 1, dtype=torch.float64)
EXPLODING = of.UnnormalisedAttention(ONE, ONE, ONE)  # one token: x' = exp(x^2) x


def attention(seed: int = 0) -> of.SoftmaxAttention:
    return of.SoftmaxAttention(*(normal(2, 2, seed=seed + s) for s in range(3)))


def by_scipy(field: of.VelocityField, mu0: of.Particles, ts: np.ndarray) -> np.ndarray:
    """Positions at ts, by DOP853 with the field as right-hand side."""

    def rhs(t: float, y: np.ndarray) -> np.ndarray:
        return field(t, mu0.at([torch.from_numpy(y).reshape(mu0.x.shape)]))[0].numpy().ravel()

    out = solve_ivp(rhs, (0.0, ts[-1]), mu0.x.numpy().ravel(), "DOP853", ts, rtol=1e-12, atol=1e-14)
    return out.y.T.reshape(len(ts), *mu0.x.shape)


def blow_up_time(x0: float) -> float:
    """The integral of exp(-s^2) / s from x0 to infinity."""
    return float(exp1(x0**2)) / 2


def test_the_coefficients_are_those_of_scipy() -> None:
    for row, expected in zip(dopri5.A[1:6], RK45.A[1:], strict=True):
        np.testing.assert_allclose(row, expected[: len(row)], rtol=1e-15)
    np.testing.assert_allclose(dopri5.B, RK45.B, rtol=1e-15)
    np.testing.assert_allclose(dopri5.C[:6], RK45.C, rtol=1e-15)
    np.testing.assert_allclose(np.abs(dopri5.E), np.abs(RK45.E), rtol=1e-15)
    assert abs(sum(dopri5.E)) < 1e-16


@pytest.mark.thorough
def test_about_as_many_steps_are_taken_as_by_scipy() -> None:
    mu0, field, tol = of.Particles(normal(5, 2)), attention(), 1e-8

    def rhs(t: float, y: np.ndarray) -> np.ndarray:
        return field(t, mu0.at([torch.from_numpy(y).reshape(5, 2)]))[0].numpy().ravel()

    theirs = solve_ivp(rhs, (0.0, 2.0), mu0.x.numpy().ravel(), method="RK45", rtol=tol, atol=tol).nfev / 6
    ours = of.flow(mu0, field, of.Dopri5(rtol=tol, atol=tol), t1=2.0, save_at=[2.0]).steps
    assert 0.7 * theirs < ours < 1.3 * theirs


@pytest.mark.thorough
def test_the_error_is_proportional_to_the_tolerance() -> None:
    mu0, tols = of.Particles(normal(5, 2)), 10.0 ** -np.arange(4, 10)
    exact = by_scipy(attention(), mu0, np.array([2.0]))[0]
    ends = [
        of.flow(mu0, attention(), of.Dopri5(rtol=tol, atol=tol), t1=2.0, save_at=[2.0]).final for tol in tols
    ]
    errors = np.array([np.abs(mu.x.numpy() - exact).max() for mu in ends])
    assert slope(tols, errors) == pytest.approx(1.0, abs=0.25)
    assert np.all(errors < 100 * tols)


@pytest.mark.slow
def test_a_tighter_tolerance_takes_more_steps() -> None:
    mu0 = of.Particles(normal(5, 2))
    counts = [
        of.flow(mu0, attention(), of.Dopri5(rtol=tol, atol=tol), t1=2.0, save_at=[2.0]).steps
        for tol in (1e-4, 1e-7, 1e-10)
    ]
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.thorough
def test_the_whole_trajectory_agrees_with_scipy() -> None:
    mu0, field = of.Particles(normal(6, 2, seed=4)), attention(5)
    traj = of.flow(mu0, field, of.Dopri5(rtol=1e-9, atol=1e-11), t1=2.0)
    np.testing.assert_allclose(traj.stacked.x, by_scipy(field, mu0, traj.ts.numpy()), rtol=1e-7, atol=1e-8)


def test_save_times_are_hit_to_the_last_bit() -> None:
    wanted = [0.1, 0.1 + 1e-9, 1 / 3, 0.7000000000000001, math.sqrt(0.9)]
    traj = of.flow(of.Particles(normal(3, 2)), attention(), of.Dopri5(), t1=1.1, save_at=wanted)
    assert traj.ts.tolist() == [*wanted, 1.1]


def test_clocks_are_exact_at_the_save_times_for_every_member_of_a_batch() -> None:
    seen: list[list[float]] = []

    def watch(t: Tensor, mu: of.Measure) -> bool:
        seen.append(t.tolist())
        return False

    mu0 = of.Particles(np.array([[[0.1]], [[5.0]]]))
    wanted = [1 / 3, 0.7]
    of.flow(mu0, Given(lambda t, x: -(x**3)), of.Dopri5(), t1=1.0, save_at=wanted, stop=watch)
    for t in [*wanted, 1.0]:
        assert [t, t] in seen


@pytest.mark.slow
def test_saving_often_does_not_change_the_result_beyond_the_tolerance() -> None:
    mu0, field, stepper = of.Particles(normal(5, 2)), attention(), of.Dopri5(rtol=1e-8, atol=1e-10)
    often = of.flow(mu0, field, stepper, t1=2.0, save_at=np.linspace(0.05, 2, 40)).final.x
    once = of.flow(mu0, field, stepper, t1=2.0, save_at=[2.0]).final.x
    torch.testing.assert_close(often, once, rtol=1e-7, atol=1e-8)


@pytest.mark.thorough
def test_a_step_cut_short_by_a_save_time_does_not_slow_down_the_next_ones() -> None:
    mu0, field = of.Particles(normal(5, 2)), attention()
    once = of.flow(mu0, field, of.Dopri5(), t1=2.0, save_at=[2.0]).steps
    cut = of.flow(mu0, field, of.Dopri5(), t1=2.0, save_at=[1.0, 1.0 + 1e-6, 2.0]).steps
    assert cut <= once + 4


def stiff_pair() -> tuple[of.VelocityField, list[of.Particles]]:
    """x' = -x^3: slow from 0.5, very fast from 50."""
    members = [of.Particles([[0.5], [0.4]]), of.Particles([[50.0], [-30.0]])]
    return Given(lambda t, x: -(x**3)), members


def test_a_stiff_member_does_not_change_the_result_of_another() -> None:
    field, members = stiff_pair()
    both = of.Particles(torch.stack([mu.x for mu in members]))
    traj = of.flow(both, field, of.Dopri5(), t1=1.0, save_at=[0.1, 1.0])
    for i, mu in enumerate(members):
        alone = of.flow(mu, field, of.Dopri5(), t1=1.0, save_at=[0.1, 1.0])
        torch.testing.assert_close(traj.stacked.x[:, i], alone.stacked.x, rtol=1e-9, atol=1e-12)
        exact = mu.x / (1 + 2 * mu.x**2).sqrt()
        torch.testing.assert_close(traj.final.x[i], exact, rtol=1e-6, atol=1e-7)


def test_members_of_a_batch_take_steps_of_their_own_size() -> None:
    field, members = stiff_pair()
    both, t = of.Particles(torch.stack([mu.x for mu in members])), torch.zeros(2, dtype=torch.float64)
    dt = of.Dopri5().first_dt(field, t, both, 1.0)
    assert dt[0] > 20 * dt[1] > 0


def test_a_rejected_step_moves_nothing_and_shrinks() -> None:
    stepper, mu = of.Dopri5(), of.Particles(np.array([[[0.5]], [[50.0]]]))
    t, dt = torch.zeros(2, dtype=torch.float64), torch.full((2,), 1e-3, dtype=torch.float64)
    step = stepper.step(Given(lambda t, x: -(x**3)), t, dt, mu, Memory())
    assert step.dt.tolist() == [1e-3, 0.0]
    assert step.mu.coords[0][1].item() == 50.0
    assert step.mu.coords[0][0].item() < 0.5
    assert step.dt_next[1] < dt[1] < step.dt_next[0]


class Fussy(of.VelocityField):
    """x' = -100 x, by a solver that gives up beyond |x| = 5, where only a step that is too long can lead."""

    def evaluate(self, t: Tensor, mu: of.Measure, carry: Carry | None = None) -> tuple[of.Tangent, Carry]:
        x = mu.coords[0]
        return of.Tangent([-100 * x]), Carry(failed=(x.abs() > 5).any(-1).any(-1), message="too far out")


def test_a_solver_that_gives_up_within_a_rejected_step_does_not_end_the_run() -> None:
    traj = of.flow(of.Particles([[1.0]]), Fussy(), of.Dopri5(), t1=0.1, dt=0.1, save_at=[0.1])
    assert traj.status == "ok"
    assert traj.final.x.item() == pytest.approx(math.exp(-10), abs=1e-7)


def test_the_velocity_at_the_end_of_a_step_is_reused() -> None:
    calls: list[float] = []

    def f(t: Tensor, x: Tensor) -> Tensor:
        calls.append(float(t))
        return -x

    traj = of.flow(of.Particles([[1.0]]), Given(f), of.Dopri5(adaptive=False), t1=1.0, dt=0.1)
    assert traj.steps == 10
    assert len(calls) == 7 + 9 * 6


def test_the_velocity_is_computed_afresh_after_a_jump() -> None:
    field = Given(lambda t, x: torch.where(t < 0.5, 1.0, -3.0) * torch.ones_like(x), switches=(0.5,))
    traj = of.flow(of.Particles([[0.0]]), field, of.Dopri5(), t1=1.0)
    assert traj.final.coords[0].item() == pytest.approx(0.5 - 1.5, abs=1e-13)


def test_a_jump_that_is_declared_costs_no_rejected_steps() -> None:
    def run(*switches: float) -> int:
        field = Given(lambda t, x: torch.where(t < 1 / 3, 1.0, -3.0) * torch.ones_like(x), switches=switches)
        return of.flow(of.Particles([[0.0]]), field, of.Dopri5(), t1=1.0, save_at=[1.0]).steps

    assert run(1 / 3) < run()


def test_a_field_that_vanishes_leaves_the_measure_alone() -> None:
    mu0 = of.Particles(normal(3, 2))
    traj = of.flow(mu0, ZERO, of.Dopri5(), t1=5.0)
    assert torch.equal(traj.final.x, mu0.x)


def test_tokens_at_the_origin_get_a_usable_first_step() -> None:
    field = Given(lambda t, x: torch.ones_like(x) * torch.cos(t))
    traj = of.flow(of.Particles([[0.0]]), field, of.Dopri5(), t1=1.0)
    assert traj.final.x.item() == pytest.approx(math.sin(1.0), abs=1e-7)


@pytest.mark.thorough
@pytest.mark.slow(but_for=["1.0"])
@pytest.mark.parametrize("x0", [0.5, 1.0, 2.0])
def test_blow_up_is_a_result_with_its_time(x0: float) -> None:
    traj = of.flow(of.Particles([[x0]]), EXPLODING, of.Dopri5(rtol=1e-8, atol=1e-10), t1=5.0, save_at=[5.0])
    assert traj.status == "blow_up"
    assert traj.blow_up_time.item() == pytest.approx(blow_up_time(x0), rel=1e-6)
    assert traj.ts[-1].item() == traj.blow_up_time.item()
    assert torch.isfinite(traj.final.x).all()
    assert traj.final.x.item() > 5.0


@pytest.mark.thorough
def test_a_slow_blow_up_is_found_too() -> None:
    field = Given(lambda t, x: x.square())
    traj = of.flow(of.Particles([[0.8]]), field, of.Dopri5(rtol=1e-8, atol=1e-10), t1=2.0, save_at=[2.0])
    assert traj.status == "blow_up"
    assert traj.blow_up_time.item() == pytest.approx(1 / 0.8, rel=1e-6)


@pytest.mark.slow
def test_blow_up_is_still_told_from_a_stall_at_a_tight_tolerance() -> None:
    traj = of.flow(of.Particles([[2.0]]), EXPLODING, of.Dopri5(rtol=1e-11, atol=1e-13), t1=1.0, save_at=[1.0])
    assert traj.status == "blow_up"
    assert traj.blow_up_time.item() == pytest.approx(blow_up_time(2.0), rel=1e-9)


@pytest.mark.slow
def test_other_members_of_a_batch_go_on_after_a_blow_up() -> None:
    x0 = [1.0, 0.3, 2.0]
    t1 = 0.9 * blow_up_time(0.3)
    stepper = of.Dopri5(rtol=1e-8, atol=1e-10)
    traj = of.flow(of.Particles(np.array(x0)[:, None, None]), EXPLODING, stepper, t1=t1, save_at=[0.05, 0.2])
    assert traj.status.tolist() == ["blow_up", "ok", "blow_up"]
    assert traj.ts.tolist() == [0.05, 0.2, t1]
    for i in (0, 2):
        assert traj.blow_up_time[i].item() == pytest.approx(blow_up_time(x0[i]), rel=1e-6)
    assert torch.isnan(traj.blow_up_time[1])
    alone = of.flow(of.Particles([[0.3]]), EXPLODING, stepper, t1=t1, save_at=[t1])
    assert traj.final.x[1].item() == pytest.approx(alone.final.x.item(), rel=1e-7)
    assert torch.isfinite(traj.stacked.x).all()


def test_a_run_of_fixed_step_stops_at_the_last_finite_state() -> None:
    traj = of.flow(of.Particles([[1.0]]), EXPLODING, of.RK4(), t1=1.0, dt=0.01)
    assert traj.status == "blow_up"
    assert torch.isfinite(traj.stacked.x).all()
    assert traj.blow_up_time.item() == traj.ts[-1].item() < 1.0
    assert traj.ts[-1].item() == pytest.approx(blow_up_time(1.0), abs=0.05)
    assert len(traj) == math.floor(traj.ts[-1].item() / 0.01) + 2  # whole steps, and the end between two


def test_a_batch_of_fixed_step_freezes_the_member_that_blew_up() -> None:
    mu0 = of.Particles(np.array([[[1.0]], [[0.1]]]))
    traj = of.flow(mu0, EXPLODING, of.RK4(), t1=1.0, dt=0.01)
    assert traj.status.tolist() == ["blow_up", "ok"]
    assert traj.ts[-1].item() == 1.0
    assert torch.isfinite(traj.stacked.x).all()
    frozen = traj.stacked.x[traj.ts >= traj.blow_up_time[0], 0]
    assert len(frozen) > 50
    assert torch.equal(frozen, frozen[:1].expand_as(frozen))
    alone = of.flow(of.Particles([[0.1]]), EXPLODING, of.RK4(), t1=1.0, dt=0.01)
    assert traj.final.x[1].item() == pytest.approx(alone.final.x.item(), rel=1e-14)


def test_a_field_that_ends_in_nan_is_named_with_the_time() -> None:
    field = Given(lambda t, x: x * torch.sqrt(1.5 - t))
    with pytest.raises(of.errors.FlowError, match=r"invalid.*velocity of .*Given") as caught:
        of.flow(of.Particles([[1.0]]), field, of.Dopri5(), t1=2.0)
    traj = caught.value.trajectory
    assert traj.status == "invalid"
    assert traj.ts[-1].item() == pytest.approx(1.5, abs=1e-12)
    assert traj.final.x.item() == pytest.approx(math.exp(1.5**1.5 * 2 / 3), rel=1e-6)


def test_a_field_that_ends_in_nan_at_the_origin_is_no_blow_up() -> None:
    field = Given(lambda t, x: torch.where(t < 1.5, 0.0, torch.nan) * torch.ones_like(x))
    traj = of.flow(of.Particles([[0.0]]), field, of.Dopri5(), t1=2.0, on_failure="return")
    assert traj.status == "invalid"


def test_a_jump_too_large_for_the_tolerance_stalls() -> None:
    field = Given(lambda t, x: torch.where(t < math.sqrt(2), 0.0, 1e8) * torch.ones_like(x))
    stepper = of.Dopri5(rtol=1e-12, atol=1e-12)
    traj = of.flow(of.Particles([[1.0]]), field, stepper, t0=1.0, t1=2.0, on_failure="return")
    assert traj.status == "stalled"
    assert traj.ts[-1].item() == pytest.approx(math.sqrt(2), abs=1e-12)
    assert traj.final.x.item() == pytest.approx(1.0, abs=1e-9)


def test_a_member_whose_field_ends_does_not_stop_the_others() -> None:
    field = Given(lambda t, x: torch.where(x < 2.0, torch.sqrt(1.5 - t)[:, None, None] * x, -x))
    mu0 = of.Particles(np.array([[[0.01]], [[50.0]]]))
    traj = of.flow(mu0, field, of.Dopri5(), t1=2.0, save_at=[2.0], on_failure="return")
    assert traj.status.tolist() == ["invalid", "ok"]
    assert traj.final.x[1].item() == pytest.approx(50 * math.exp(-2.0), rel=1e-5)


def test_error_control_refuses_grids_and_names_a_remedy() -> None:
    field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1)), of.Wasserstein())
    with pytest.raises(of.InputError, match="Euler"):
        of.flow(hill(12), field, of.Dopri5(), t1=0.1)


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [0.0, -1e-6, math.nan, math.inf])
def test_tolerances_must_be_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(of.InputError, match=name):
        of.Dopri5(**{name: value})


def test_a_float32_run_stays_float32_and_is_accurate_to_it() -> None:
    mu0 = of.Particles(torch.tensor([[1.0], [-2.0]]))
    traj = of.flow(mu0, DECAY, of.Dopri5(rtol=1e-5, atol=1e-6), t1=1.0)
    assert traj.final.x.dtype == torch.float32
    assert traj.ts.dtype == torch.float64
    np.testing.assert_allclose(traj.final.x, np.array([[1.0], [-2.0]]) * math.exp(-1), rtol=1e-4)


def test_a_linear_flow_follows_the_exponential_of_its_matrix() -> None:
    matrix = torch.tensor(normal(3, 3, seed=9))
    mu0 = of.Particles(normal(4, 3))
    traj = of.flow(mu0, Linear(matrix), of.Dopri5(rtol=1e-9, atol=1e-12), t1=1.0)
    torch.testing.assert_close(traj.final.x, mu0.x @ torch.linalg.matrix_exp(matrix).mT, rtol=1e-7, atol=1e-8)


@pytest.mark.slow
def test_a_large_batch_that_goes_on_without_those_that_have_arrived_keeps_every_member() -> None:
    """Members with scores of very different size: some arrive in a few steps, some explode."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((600, 2, 2)) * 10 ** rng.uniform(-3, 1, (600, 1, 1))
    mu = of.Gaussian(rng.standard_normal((600, 2)), root=rng.standard_normal((600, 2, 2)))
    eye = np.eye(2)
    together = of.flow(mu, of.SoftmaxAttention(A, eye, eye), of.Dopri5(), t1=0.3, save_at=[0.0, 0.1])
    assert set(together.status) == {"ok", "blow_up"}
    for i in range(0, 600, 37):
        alone = of.flow(mu[i], of.SoftmaxAttention(A[i], eye, eye), of.Dopri5(), t1=0.3, save_at=[0.0, 0.1])
        assert alone.status == together.status[i]
        if alone.status == "ok":
            assert all(
                float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())
                for a, b in zip(together.final[i].coords, alone.final.coords, strict=True)
            )
        else:
            assert float(together.blow_up_time[i]) == pytest.approx(float(alone.blow_up_time), rel=1e-5)


class Interrupted(of.SoftmaxAttention):
    """Somebody presses Ctrl-C while the last members of a large batch are on their way."""

    def evaluate(
        self, t: Tensor, mu: of.Measure, carry: Carry | None = None
    ) -> tuple[of.Tangent, Carry | None]:
        if mu.batch.numel() < 600:
            self.calls = getattr(self, "calls", 0) + 1
        if getattr(self, "calls", 0) > 60:
            raise KeyboardInterrupt
        return super().evaluate(t, mu, carry)


def test_an_interrupt_loses_nothing_of_members_that_go_on_alone() -> None:
    rng = np.random.default_rng(1)
    A = -np.eye(2) * 10 ** rng.uniform(-3, 2, (600, 1, 1))
    mu, eye = of.Gaussian(np.zeros((600, 2)), root=rng.standard_normal((600, 2, 2))), np.eye(2)
    with pytest.warns(UserWarning, match="interrupted"):
        traj = of.flow(mu, Interrupted(A, eye, eye), of.Dopri5(), t1=5.0, save_at=[0.0])
    assert "stopped" in set(traj.status)
    late = traj.ended[torch.from_numpy(traj.status == "stopped")]
    exact = closed_forms.softmax_path(mu.cov, A, traj.ended.nan_to_num(5.0))
    assert float(late.max()) > 0
    gap = (traj.final.cov - exact).abs().amax((-1, -2)) / exact.abs().amax((-1, -2))  # type: ignore[attr-defined]
    assert float(gap.max()) < 1e-4  # every state belongs to its own time
    assert traj.steps > 15
