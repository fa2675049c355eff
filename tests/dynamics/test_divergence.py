"""What is said of runs that leave the finite numbers, or climb: blow-up, overflow, instability, no number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor

import otflow as of

FIXED = {"Euler": of.Euler, "Heun": of.Heun, "RK4": of.RK4}
ONE = of.Particles([[1.0]])


class Given(of.VelocityField):
    """The velocity of a function of time and positions."""

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.f = f

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        return mu.coords.map(lambda x: self.f(t, x))


def run(
    f: Callable[[Tensor, Tensor], Tensor], stepper: of.Stepper, mu: of.Particles = ONE, **options: Any
) -> Any:
    return of.flow(mu, Given(f), stepper, on_failure="return", **options)


def descend(U: Callable[[Tensor], Tensor], mu: of.Particles, stepper: of.Stepper, **options: Any) -> Any:
    field = of.SteepestDescent(of.Potential(U), of.Wasserstein())
    return of.flow(mu, field, stepper, on_failure="return", observe={"F": field.energy}, **options)


# --- steps that are too long ---------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_stiff_decay_under_long_steps_is_unstable_and_raises() -> None:
    with pytest.raises(
        of.errors.FlowError, match=r"unstable.*dt = 1 is too long.*pass dt=.*Dopri5"
    ) as caught:
        of.flow(ONE, Given(lambda t, x: -30.0 * x), of.RK4(), t1=400.0, dt=1.0)
    assert caught.value.trajectory.status == "unstable"
    assert caught.value.trajectory.blow_up_time.isnan()


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e3, 1e8])
def test_no_rate_of_decay_is_taken_for_a_blow_up(rate: float) -> None:
    traj = run(lambda t, x: -rate * x, of.RK4(), t1=100.0, dt=1.0)
    assert traj.status == "unstable"


@pytest.mark.slow(but_for=["30.0"])
@pytest.mark.parametrize("dt", [3.0, 30.0, 1e4])
def test_the_step_that_a_climbing_descent_names_descends(dt: float) -> None:
    """Half of a step that is ten times too long is no remedy."""
    traj = descend(lambda x: x.square().sum(-1) / 2, ONE, of.RK4(), t1=6 * dt, dt=dt)
    assert traj.status == "unstable"
    named = float(traj.message.split("pass dt=")[1].split(",")[0])
    assert 0.9 * 2.785 < named <= 2.785
    assert descend(lambda x: x.square().sum(-1) / 2, ONE, of.RK4(), t1=60.0, dt=named).status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rate", "limit"), [("Euler", 3.0, 2.0), ("RK4", 6.0, 2.785)])
def test_the_step_that_is_named_survives(name: str, rate: float, limit: float) -> None:
    traj = run(lambda t, x: -rate * x, FIXED[name](), t1=3000.0, dt=1.0, save_at=[3000.0])
    assert traj.status == "unstable"
    dt = float(traj.message.split("pass dt=")[1].split(",")[0])
    assert 0.9 * limit < dt * rate <= limit  # it is the largest that is stable, but for a margin
    assert run(lambda t, x: -rate * x, FIXED[name](), t1=30.0, dt=dt).status == "ok"


@pytest.mark.slow
def test_turning_too_fast_for_the_step_is_unstable() -> None:
    """Complex eigenvalues: RK4 is stable up to 2.828 on the imaginary axis."""
    turn = lambda t, x: 30 * torch.stack([-x[..., 1], x[..., 0]], -1)  # noqa: E731
    traj = run(turn, of.RK4(), of.Particles([[1.0, 0.0]]), t1=500.0, dt=0.2, save_at=[500.0])
    assert traj.status == "unstable"


@pytest.mark.slow
def test_a_growing_mode_of_a_decaying_cloud_is_found_by_its_jacobian() -> None:
    stiff = torch.tensor([40.0, 1.0], dtype=torch.float64)
    traj = run(
        lambda t, x: -stiff * x, of.Euler(), of.Particles([[1.0, 1.0]]), t1=90.0, dt=0.1, save_at=[90.0]
    )
    assert traj.status == "unstable"


@pytest.mark.thorough
def test_growth_by_long_steps_to_finite_numbers_is_unstable() -> None:
    """It reaches 1e226 at t = 20, and would leave the finite numbers at 28."""
    traj = run(lambda t, x: -1000.0 * x, of.RK4(), t1=20.0, dt=1.0)
    assert traj.status == "unstable"
    assert "dt = 1 " in traj.message


def test_a_stiff_mode_that_grows_beside_one_that_should_is_unstable() -> None:
    rates = torch.tensor([3.0, -300.0], dtype=torch.float64)
    traj = run(lambda t, x: rates * x, of.RK4(), of.Particles([[1.0, 1.0]]), t1=1.0, dt=0.1)
    assert traj.status == "unstable"


def test_growth_that_the_equation_asks_for_is_no_failure() -> None:
    traj = run(lambda t, x: 3.0 * x, of.Euler(), t1=8.0, dt=0.5)
    assert traj.x[-1] > 1e6
    assert traj.status == "ok"


@pytest.mark.parametrize("name", FIXED)
def test_growth_that_long_steps_lag_behind_is_no_failure(name: str) -> None:
    """Steps that study an order of convergence are coarse on purpose, and nothing else is wrong with them."""
    traj = run(lambda t, x: 4.0 * x, FIXED[name](), t1=8.0, dt=0.8)
    assert float(traj.x[-1]) < math.exp(32.0) / 10
    assert traj.status == "ok"


@pytest.mark.thorough
def test_a_pole_that_a_long_step_jumps_over_is_found() -> None:
    """Euler steps of 0.5 reach 9e32 at t = 5, far beyond the pole of tan t."""
    traj = run(lambda t, x: 1 + x * x, of.Euler(), of.Particles([[0.0]]), t1=5.0, dt=0.5)
    assert traj.status == "blow_up"
    assert abs(traj.blow_up_time.item() - np.pi / 2) <= traj.blow_up_error.item()


# --- blow-up -------------------------------------------------------------------------------------------

POLES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float, float]] = {
    "square": (lambda t, x: x**2, 1.0, 1.0),
    "cube": (lambda t, x: x**3, 1.0, 0.5),
    "exponential": (lambda t, x: x * torch.exp(x**2), 0.5, float(scipy.special.exp1(0.25)) / 2),
}


@pytest.mark.slow(but_for=["cube-RK4-0.1", "exponential-Heun-0.02", "square-Euler-0.1"])
@pytest.mark.parametrize("dt", [0.1, 0.02])
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("pole", POLES)
def test_times_of_blow_up_are_within_their_error_bars(pole: str, name: str, dt: float) -> None:
    f, start, true = POLES[pole]
    traj = run(f, FIXED[name](), of.Particles([[start]]), t1=5.0, dt=dt)
    assert traj.status == "blow_up"
    assert abs(traj.blow_up_time.item() - true) <= traj.blow_up_error.item() < 3 * dt


@pytest.mark.slow(but_for=["square"])
@pytest.mark.parametrize(
    ("power", "pole", "name", "dt"),
    [pytest.param(2.0, 1.0, "Heun", 1 / 2560, id="square"), (1.5, 2.0, "Euler", 1 / 2560)],
)
def test_a_pole_is_found_after_thousands_of_steps(power: float, pole: float, name: str, dt: float) -> None:
    traj = run(lambda t, x: x**power, FIXED[name](), t1=5.0, dt=dt, save_at=[5.0])
    assert traj.status == "blow_up"
    assert abs(traj.blow_up_time.item() - pole) < traj.blow_up_error.item() < 0.02


def test_members_of_a_batch_have_times_of_their_own() -> None:
    traj = run(lambda t, x: x**2, of.RK4(), of.Particles([[[2.0]], [[0.1]], [[4.0]]]), t1=1.0, dt=0.05)
    assert traj.status.tolist() == ["blow_up", "ok", "blow_up"]
    for i, true in ((0, 0.5), (2, 0.25)):
        assert abs(traj.blow_up_time[i].item() - true) <= traj.blow_up_error[i].item()
    assert traj.blow_up_error[1].isnan()


COARSE = {"Euler": (0.5, 2.0), "Heun": (0.1, 1.1), "RK4": (0.5, 1.1)}  # dt, t1


@pytest.mark.slow
@pytest.mark.parametrize("name", COARSE)
def test_shorter_steps_that_pass_a_pole_too_are_no_remedy(name: str) -> None:
    """x is 24 or so, and finite for half of the step as well, and for a quarter."""
    dt, t1 = COARSE[name]
    traj = run(lambda t, x: x * x, FIXED[name](), t1=t1, dt=dt)
    assert traj.status == "blow_up"
    assert abs(float(traj.blow_up_time) - 1) <= float(traj.blow_up_error)


@pytest.mark.thorough
def test_a_rule_that_stops_past_a_pole_hides_nothing() -> None:
    square = lambda t, x: x * x  # noqa: E731
    traj = run(square, of.RK4(), t1=2.0, dt=0.1, stop=lambda t, mu: bool(mu.x.max() > 1e100))
    assert traj.status == "blow_up"
    assert abs(float(traj.blow_up_time) - 1) <= float(traj.blow_up_error)
    before = run(square, of.RK4(), t1=2.0, dt=0.1, stop=lambda t, mu: bool(mu.x.max() > 3))
    assert before.status == "stopped"


@pytest.mark.thorough
def test_steps_that_are_too_long_are_noticed_when_their_number_runs_out() -> None:
    traj = run(lambda t, x: -1000.0 * x, of.RK4(), t1=20.0, dt=1.0, max_steps=10)
    assert traj.status == "unstable"


@pytest.mark.slow(but_for=["Dopri5"])
@pytest.mark.parametrize("stepper", [of.Dopri5(), of.Rosenbrock()], ids=["Dopri5", "Rosenbrock"])
def test_a_state_that_vanishes_in_finite_time_does_not_blow_up(stepper: of.Stepper) -> None:
    assert run(lambda t, x: -x.sqrt(), stepper, t1=3.0).status == "invalid"  # at t = 2, x = 0
    assert run(lambda t, x: -1 / x, stepper, t1=3.0).status == "stalled"  # the velocity is unbounded, not x


def test_a_coarse_run_past_the_pole_is_a_blow_up_none_the_less() -> None:
    traj = run(lambda t, x: x**2, of.RK4(), t1=5.0, dt=0.5)
    assert traj.status == "blow_up"
    assert abs(traj.blow_up_time.item() - 1.0) <= traj.blow_up_error.item()


@pytest.mark.slow(but_for=["0.02"])
@pytest.mark.parametrize("dt", [0.02, 0.05, 1.0])
def test_growth_at_a_constant_rate_is_no_blow_up(dt: float) -> None:
    traj = run(lambda t, x: 40.0 * x, of.RK4(), t1=100.0, dt=dt, save_at=[100.0])
    assert traj.status == "overflow"
    assert traj.blow_up_time.isnan()


def test_growth_at_a_constant_rate_is_no_blow_up_for_adaptive_steps_either() -> None:
    big = of.Particles([[1e290]])
    assert run(lambda t, x: 40.0 * x, of.Dopri5(rtol=1e-3), big, t1=100.0).status == "overflow"


@pytest.mark.thorough
def test_growth_that_is_double_exponential_is_no_blow_up() -> None:
    """x log x: log x = e^t passes 709 at t = 6.6, but no time is the last."""
    traj = run(lambda t, x: x * torch.log(x), of.RK4(), of.Particles([[np.e]]), t1=20.0, dt=0.1)
    assert traj.status == "overflow"


def test_a_pole_at_which_the_state_stays_moderate_is_a_blow_up() -> None:
    """x = -log(1 - t) is 36 one rounding before the pole: the velocity runs away, and not the state."""
    traj = run(lambda t, x: torch.exp(x), of.Euler(), of.Particles([[0.0]]), t1=5.0, dt=0.2)
    assert traj.status == "blow_up"
    assert abs(traj.blow_up_time.item() - 1.0) <= traj.blow_up_error.item()


def test_nothing_is_kept_from_beyond_a_pole() -> None:
    observe = {"largest": lambda mu: mu.x.abs().amax()}
    traj = run(lambda t, x: x**2, of.RK4(), t1=5.0, dt=0.5, observe=observe)
    assert float(traj.ts[-1]) == traj.blow_up_time.item()
    assert bool((traj.ts.diff() > 0).all())
    assert len(traj.observed["largest"]) == len(traj.ts) == len(traj)
    assert traj.observed["largest"][-1] == traj.final.x.abs().amax()


def test_members_stand_still_from_their_blow_up_on_while_others_go_on() -> None:
    observe = {"x": lambda mu: mu.x.flatten(1)}
    start = of.Particles([[[2.0]], [[0.1]]])
    traj = run(lambda t, x: x**2, of.RK4(), start, t1=2.0, dt=0.25, observe=observe)
    assert traj.status.tolist() == ["blow_up", "ok"]
    late = traj.ts > traj.blow_up_time[0]
    beyond = traj.observed["x"][late]
    assert late.sum() > 4
    assert len(beyond[:, 0].unique()) == 1
    torch.testing.assert_close(beyond[:, 1, 0], 1 / (10 - traj.ts[late]), rtol=1e-6, atol=0)
    assert torch.equal(traj.x[late][:, 0].flatten(), beyond[:, 0].flatten())


def test_the_gradients_of_others_survive_a_blow_up() -> None:
    x = torch.tensor([[[2.0]], [[0.1]]], dtype=torch.float64, requires_grad=True)
    traj = run(lambda t, x: x**2, of.RK4(), of.Particles(x), t1=2.0, dt=0.05)
    traj.final.x[1].sum().backward()
    assert x.grad is not None
    assert x.grad[1].item() == pytest.approx(1 / 0.8**2, rel=1e-4)  # of x / (1 - 2 x)


# --- examinations that come to nothing -----------------------------------------------------------------


class Moody(Given):
    """A field whose patience ends: it raises from some evaluation on."""

    def __init__(self, f: Callable[[Tensor, Tensor], Tensor], calls: int, error: BaseException) -> None:
        super().__init__(f)
        self.left, self.error = calls, error

    def velocity(self, t: Tensor, mu: of.Measure) -> of.Tangent:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().velocity(t, mu)


@pytest.mark.parametrize("error", [RuntimeError("no more"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_an_examination_that_breaks_off_loses_nothing(error: BaseException) -> None:
    calls = 4 * 29 + 10  # the run itself takes 28 steps and a part of one more
    field = Moody(lambda t, x: -1000.0 * x, calls, error)
    traj = of.flow(ONE, field, of.RK4(), t1=40.0, dt=1.0, on_failure="return")
    assert traj.status == "unstable"
    assert "shorter steps" in traj.message
    assert len(traj) > 20


def test_few_states_of_a_large_cloud_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otflow.dynamics.stepping.ROOM", 5)
    traj = run(lambda t, x: x**2, of.RK4(), of.Particles([[1.0], [0.5], [0.1]]), t1=5.0, dt=0.1)
    assert traj.status in {"blow_up", "unstable"}
    assert not (abs(traj.blow_up_time.item() - 1.0) > traj.blow_up_error.item())


def test_a_slow_instability_is_seen_from_the_start_of_a_large_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Euler grows by a half in each step, and only the last state is kept."""
    monkeypatch.setattr("otflow.dynamics.stepping.ROOM", 1)
    assert run(lambda t, x: -1000.0 * x, of.Euler(), t1=0.025, dt=0.0025).status == "unstable"


def test_error_bars_are_kept_in_files() -> None:
    traj = run(lambda t, x: x**2, of.RK4(), t1=5.0, dt=0.1)
    again = of.Trajectory.from_xarray(traj.to_xarray())
    assert again.blow_up_error.item() == traj.blow_up_error.item()


# --- no number -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stepper", [of.Euler(), of.RK4(), of.Dopri5()], ids=repr)
@pytest.mark.parametrize("start", [0.0, 0.5])
def test_a_velocity_that_is_no_number_is_invalid_and_named(stepper: of.Stepper, start: float) -> None:
    dt = None if stepper.adaptive else 0.1
    bad = lambda t, x: x * torch.where(t >= start, torch.nan, 0.1)  # noqa: E731
    traj = run(bad, stepper, t1=1.0, dt=dt)
    assert traj.status == "invalid"
    assert "Given" in traj.message
    assert float(traj.ended) == pytest.approx(start, abs=0.1)


@pytest.mark.parametrize("stepper", [of.Euler(), of.RK4()], ids=repr)
def test_a_place_without_a_velocity_is_invalid(stepper: of.Stepper) -> None:
    traj = run(lambda t, x: torch.where(x > 3.0, torch.nan, x), stepper, t1=5.0, dt=0.1)
    assert traj.status == "invalid"
    assert "Given" in traj.message


def test_a_part_of_a_sum_that_is_no_number_is_named() -> None:
    one = np.eye(2)
    field = of.SoftmaxAttention(one, one, -one) + Given(lambda t, x: torch.sqrt(0.5 - t) * x)
    mu = of.Particles(np.random.default_rng(0).normal(size=(4, 2)))
    traj = of.flow(mu, field, of.RK4(), t1=1.0, dt=0.1, on_failure="return")
    assert (traj.status, "Given" in traj.message, "Softmax" in traj.message) == ("invalid", True, False)


@pytest.mark.parametrize("stepper", [of.RK4(), of.Dopri5()], ids=repr)
def test_a_weight_that_turns_nan_is_invalid(stepper: of.Stepper) -> None:
    one = np.eye(2)
    field = of.SoftmaxAttention(one, one, lambda t: one * (np.nan if float(t) > 0.5 else -1.0))
    mu = of.Particles(np.random.default_rng(0).normal(size=(4, 2)))
    dt = None if stepper.adaptive else 0.05
    traj = of.flow(mu, field, stepper, t1=1.0, dt=dt, on_failure="return")
    assert traj.status == "invalid"
    assert "SoftmaxAttention" in traj.message


# --- descents that climb -------------------------------------------------------------------------------


def test_a_descent_that_climbs_is_unstable() -> None:
    traj = descend(lambda x: x.square().sum(-1) / 2, ONE, of.RK4(), t1=30.0, dt=3.0)
    assert traj.observed["F"][-1] > 100 * traj.observed["F"][0]
    assert traj.status == "unstable"
    assert "dt = 3" in traj.message


def test_a_stiff_mode_that_grows_late_is_noticed_though_the_energy_ends_below_its_start() -> None:
    stiff = torch.tensor([1.0, 25.0], dtype=torch.float64)
    traj = descend(
        lambda x: (stiff * x.square()).sum(-1) / 2, of.Particles([[10.0, 1e-6]]), of.Euler(), t1=3.5, dt=0.1
    )
    F = traj.observed["F"]
    assert F.min() < F[-1] < F[0]
    assert traj.status == "unstable"


KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "|x|": lambda x: x.abs().sum(-1),
    "relu": lambda x: torch.relu(x).sum(-1) - 0.5 * torch.relu(x - 1).sum(-1),
    "two slopes": lambda x: (torch.tensor([1.0, 100.0], dtype=x.dtype) * x.abs()).sum(-1),
    "largest": lambda x: x.abs().amax(-1),
}


@pytest.mark.slow(but_for=["*-Euler-0.033", "largest-RK4-*"])
@pytest.mark.parametrize("start", [0.01, 0.033, 2.0])
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("kink", KINKS)
def test_steps_to_and_fro_at_a_kink_are_no_failure(kink: str, name: str, start: float) -> None:
    mu = of.Particles(start * np.random.default_rng(1).normal(size=(5, 2)))
    traj = descend(KINKS[kink], mu, FIXED[name](), t1=5.0, dt=0.1)
    assert traj.status == "ok"
    assert bool(torch.isfinite(traj.certificates["energy_gap"]).all())


@pytest.mark.parametrize("name", FIXED)
def test_tokens_that_attract_each_other_by_their_distance_are_no_failure(name: str) -> None:
    pull = of.SteepestDescent(of.Interaction(lambda x, y: (x - y).norm(dim=-1)), of.Wasserstein())
    mu = of.Particles(np.random.default_rng(2).normal(size=(6, 2)))
    assert of.flow(mu, pull, FIXED[name](), t1=8.0, dt=0.1).status == "ok"


def cloud(space: of.measures.Space | None = None, d: int = 2) -> of.Particles:
    x = np.random.default_rng(0).standard_normal((16, d))
    if isinstance(space, of.Sphere):
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return of.Particles(x, space=space or of.Euclidean())


# Bounded, or nearly so: steps that are far too long throw tokens about, and nothing leaves the numbers.
THROWN: dict[str, tuple[of.Measure, of.Energy, of.Stepper, float]] = {
    "logarithm": (
        cloud(),
        of.Potential(lambda x: 1e3 * torch.log1p((x.square() - 1).square()).sum(-1)),
        of.Euler(),
        0.05,
    ),
    "bell": (
        cloud(),
        of.Interaction(lambda x, y: -1e3 * torch.exp(-(x - y).square().sum(-1) / 2)),
        of.Euler(),
        0.05,
    ),
    "sphere": (cloud(of.Sphere(), 3), of.Potential(lambda x: 500 * x[..., 1].square()), of.Euler(), 0.01),
    "attention": (cloud(of.Sphere(), 3), -of.ExponentialInteraction(4 * np.eye(3)), of.Euler(), 0.1),
    "torus": (
        cloud(of.Torus(2 * np.pi), 1),
        of.Interaction(lambda x, y: -100 * torch.cos(x - y).sum(-1)),
        of.RK4(),
        0.1,
    ),
    "out of its well": (
        of.Particles([[0.02]]),
        of.Potential(lambda x: (0.1 * (x - 3).square() - 10 * torch.exp(-200 * x.square())).sum(-1)),
        of.Euler(),
        0.002,
    ),
}


@pytest.mark.slow(but_for=["attention", "out of its well"])
@pytest.mark.parametrize("name", THROWN)
def test_tokens_thrown_about_by_a_descent_are_unstable(name: str) -> None:
    mu, F, stepper, dt = THROWN[name]
    field = of.SteepestDescent(F, of.Wasserstein())
    traj = of.flow(mu, field, stepper, t1=500 * dt, dt=dt, save_at=[500 * dt], on_failure="return")
    assert traj.status == "unstable"
    assert "pass dt=" in traj.message


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["norm", "largest"])
def test_kinks_in_the_plane_are_no_failure_though_their_curvature_is_infinite(kind: str) -> None:
    U = {"norm": lambda x: x.norm(dim=-1), "largest": lambda x: x.abs().amax(-1)}[kind]
    traj = descend(U, cloud(), of.Euler(), t1=5.0, dt=0.05)
    assert traj.status == "ok"
    assert float(traj.certificates["energy_gap"].max()) > 0


STIFF = of.SteepestDescent(of.Potential(lambda x: 250 * x.square().sum(-1)), of.Wasserstein())
SAME: dict[str, of.VelocityField] = {  # x' = -1000 x
    "multiple": 2 * STIFF,
    "sum": STIFF + STIFF,
    "ascent": -of.SteepestDescent(-2 * STIFF.energy, of.Wasserstein()),
    "nothing added": 2 * STIFF + 0 * STIFF,
}


@pytest.mark.parametrize("name", SAME)
def test_a_descent_in_another_guise_is_examined_as_one(name: str) -> None:
    traj = of.flow(ONE, SAME[name], of.Euler(), t1=0.0125, dt=0.0025, on_failure="return")
    assert traj.status == "unstable"
    assert "energy_gap" in traj.certificates


@pytest.mark.slow
@pytest.mark.parametrize(("dt", "t1"), [(0.005, 0.05), (0.01, 10.0)], ids=["finite", "a solver fails"])
def test_the_explicit_part_of_a_splitting_is_examined(dt: float, t1: float) -> None:
    field = of.SteepestDescent(STIFF.energy + of.QuadraticPotential([[1.0]]), of.Wasserstein())
    split = of.ForwardBackward(STIFF.energy)
    assert of.flow(ONE, field, split, t1=t1, dt=dt, on_failure="return").status == "unstable"
    assert of.flow(ONE, field, split, t1=0.05, dt=0.002, on_failure="return").status == "ok"


@pytest.mark.thorough
def test_an_energy_that_is_no_number_is_invalid() -> None:
    """The derivative of 0 log x is 0 beyond 0, as far as a step of RK4 that passes it can see."""
    traj = descend(lambda x: (x + 0 * x.log()).sum(-1), ONE, of.RK4(), t1=3.0, dt=0.3)
    assert traj.status == "invalid"
    assert "energy" in traj.message


def test_noise_climbs_and_that_is_no_failure() -> None:
    field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    mu = of.Particles(np.zeros((50, 2)))
    traj = of.flow(mu, field, of.Euler(), t1=2.0, dt=0.1, noise=of.IndependentNoise(1.0, rng=0))
    assert traj.status == "ok"


def test_the_energy_gap_of_a_smooth_descent_is_negative_as_long_as_steps_are_short() -> None:
    traj = descend(lambda x: x.square().sum(-1) / 2, ONE, of.Euler(), t1=2.0, dt=0.5)
    gaps = traj.certificates["energy_gap"]
    F = traj.observed["F"]
    expected = F[1:] + 0.25 * 2 * F[:-1] - F[:-1]  # |v|^2 = 2 F
    torch.testing.assert_close(gaps[1:], expected)
    assert bool((gaps <= 0).all())


# --- observables ---------------------------------------------------------------------------------------


def test_an_observable_may_use_its_buffer_again() -> None:
    buffer = torch.zeros(1, dtype=torch.float64)

    def mean(mu: of.Measure) -> Tensor:
        return buffer.copy_(mu.coords[0].mean())

    traj = of.flow(ONE, Given(lambda t, x: -x), of.RK4(), t1=1.0, dt=0.25, observe={"mean": mean})
    assert traj.observed["mean"].flatten().tolist() == pytest.approx(np.exp(-np.linspace(0, 1, 5)), abs=1e-3)
