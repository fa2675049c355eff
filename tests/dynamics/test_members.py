"""Members of a batch that end early, and observables that are about all members: each against a run alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of
from tests.samples import DECAY, normal

# x' = x^3 blows up at 1 / (2 x^2); the second is stopped on its way, the last goes through.
GROWTH = of.SteepestDescent(of.Potential(lambda x: -x.square().sum(-1).square() / 4), of.Wasserstein())
START = of.Particles([[[1.0], [-1.0]], [[0.5], [0.0]], [[0.3], [0.2]]])
STEPPERS: dict[str, tuple[of.Stepper, dict[str, Any]]] = {
    "rk4": (of.RK4(), {"dt": 0.025}),
    "dopri5": (of.Dopri5(), {"save_at": np.linspace(0, 1, 31)}),
}


def early(t: Tensor, mu: of.Measure) -> Tensor:
    """Stops the second member a little after t = 3 / 4, between two save times."""
    x = mu.nodes()[0][..., 0, 0]
    return (x > 0.625) & (mu.nodes()[0][..., 1, 0] == 0)


@cache
def run(stepper: str, *member: int, scale: float = 1.0) -> of.Trajectory:
    """All three, or one of them alone."""
    one, options = STEPPERS[stepper]
    mu = of.Particles(scale * START.x)[member]
    return of.flow(mu, GROWTH, one, t1=1.0, stop=early, on_failure="return", **options)


@pytest.mark.slow(but_for=["rk4"])
@pytest.mark.parametrize("stepper", STEPPERS)
def test_members_are_balanced_up_to_their_own_end(stepper: str) -> None:
    traj = run(stepper)
    assert traj.status.tolist() == ["blow_up", "stopped", "ok"]
    balance = of.energy_balance(traj, GROWTH)
    for i in range(3):
        alone = of.energy_balance(run(stepper, i), GROWTH)
        for name in ("relative", "increase"):
            torch.testing.assert_close(
                getattr(balance, name)[i], getattr(alone, name), rtol=1e-6, atol=1e-9, equal_nan=True
            )
        assert bool(balance.monotone[i]) == bool(alone.monotone)
    assert bool((balance.relative[1:] < 1e-3).all())


@pytest.mark.parametrize("stepper", STEPPERS)
def test_speeds_and_paths_are_those_of_the_member_alone(stepper: str) -> None:
    traj = run(stepper)
    speed = traj.speed()
    path = of.metrics.path_action(traj.measures, of.Wasserstein(), ts=traj.clocks)
    for i in range(1, 3):
        alone = run(stepper, i)
        assert float(alone.clocks[-1]) == pytest.approx(float(traj.clocks[-1, i]), abs=1e-12)
        other = of.metrics.path_action(alone.measures, of.Wasserstein(), ts=alone.ts)
        torch.testing.assert_close(path[i], other, rtol=1e-9, atol=0)
        torch.testing.assert_close(speed[: len(alone) - 1, i], alone.speed(), rtol=1e-9, atol=1e-12)
        assert not bool(speed[len(alone) - 1 :, i].any())


def test_lengths_of_members_that_have_ended_count_for_nothing() -> None:
    """A solver goes on with a stand-in for them, of which the certificates are."""
    pull = of.SteepestDescent(of.QuadraticPotential([[1.0]]), of.Wasserstein())
    mu = of.Particles([[[1.0]], [[3.0]]])
    options: dict[str, Any] = {"t1": 1.0, "dt": 0.05, "stop": lambda t, mu: mu.coords[0][..., 0, 0] < 0.8}
    traj = of.flow(mu, pull, of.JKO(), **options)
    balance = of.energy_balance(traj, pull, lengths=traj.certificates["cost"][1:])
    for i in range(2):
        alone = of.flow(mu[i], pull, of.JKO(), **options)
        own = of.energy_balance(alone, pull, lengths=alone.certificates["cost"][1:])
        torch.testing.assert_close(balance.residual[-1, i], own.residual[-1], rtol=1e-9, atol=1e-12)


def test_the_order_of_the_balance_is_that_of_each_member() -> None:
    pull = of.SteepestDescent(of.QuadraticPotential([[1.0]]), of.Wasserstein())
    mu = of.Particles([[[1.0]], [[3.0]]])

    def stop(t: Tensor, mu: of.Measure) -> Tensor:
        return (t > 0.39) & (mu.coords[0][..., 0, 0] < 1.0)

    def order(mu: of.Measure) -> Tensor:
        runs = [of.flow(mu, pull, of.Euler(), t1=1.0, dt=0.2 / 2**k, stop=stop) for k in range(3)]
        return of.dynamics.balance_order([of.energy_balance(one, pull) for one in runs])

    together = order(mu)
    for i in range(2):
        torch.testing.assert_close(together[i], order(mu[i]), rtol=1e-9, atol=1e-9)
        assert float(together[i]) == pytest.approx(2.0, abs=0.25)


def test_states_at_different_times_have_no_distance() -> None:
    a, b = run("rk4"), run("rk4", scale=0.9)
    found = of.observables.distances(a, b)
    late = (a.ts[:, None] > a.ended.fmin(b.ended)) & (a.clocks != b.clocks)
    assert torch.equal(found.isnan(), late)
    assert bool(late[:, :2].any(0).all())
    assert not bool(of.observables.distances(a, START).isnan().any())


def test_a_bound_along_a_run_ends_with_the_run() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    field, mu = of.SoftmaxAttention(eye, eye, -eye), of.Particles(normal(2, 4, 2))

    def stop(t: Tensor, mu: of.Measure) -> Tensor:
        return (t > 0.35) & torch.tensor([True, False])

    traj = of.flow(mu, field, of.RK4(), t1=0.8, dt=0.1, stop=stop)
    bound = of.stability.a_posteriori(traj, field)
    assert bound.log_C[:, 0].isnan().tolist() == [False] * 5 + [True] * 4
    alone = of.stability.a_posteriori(of.flow(mu[1], field, of.RK4(), t1=0.8, dt=0.1), field)
    torch.testing.assert_close(bound.log_C[:, 1], alone.log_C)


# --- observables that are about the whole batch --------------------------------------------------------

B = 3
TABLE = torch.arange(B * B, dtype=torch.float64).reshape(B, B)
CLOUDS = of.Particles(normal(B, B, 2))  # as many tokens as members
SHARED: dict[str, Callable[[Any], Any]] = {
    "constants": lambda mu: TABLE[0],
    "table": lambda mu: TABLE,
    "list": lambda mu: [1.0, 2.0, 3.0],
    "tokens": lambda mu: mu.x.mean(0)[:, 0],
    "number": lambda mu: mu.x.mean(),
    "moments": lambda mu: torch.stack([mu.x.mean(), mu.x.square().mean(), mu.x.amax()]),
}
OWN: dict[str, Callable[[Any], Any]] = {
    "moment": of.observables.second_moment,
    "array": lambda mu: mu.x.mean((-1, -2)).numpy(),
    "covariance": of.observables.covariance,
    "positions": lambda mu: mu.x,
    "weighed": lambda mu: TABLE[0] * mu.x.mean((-1, -2)),  # which refuses more members than it has constants
    "drawn": lambda mu: mu.x.mean((-1, -2)) + torch.randn(len(mu)),
}


def test_observables_about_all_members_stay_whole() -> None:
    traj = of.flow(CLOUDS, DECAY, of.Euler(), t1=1.0, dt=0.5, observe=SHARED | OWN)
    assert traj.shared == tuple(sorted(SHARED))
    for i in range(B):
        one = traj.member(i)
        assert one.shared == ()
        for name in SHARED:
            assert torch.equal(one.observed[name], traj.observed[name]), name
        for name in OWN:
            assert torch.equal(one.observed[name], traj.observed[name][:, i]), name
    some = traj.member(slice(2))
    assert some.shared == traj.shared
    assert some.observed["table"].shape == (3, B, B)
    assert some.observed["moment"].shape == (3, 2)


def test_several_batch_axes_grow_together() -> None:
    mu = of.Particles(normal(2, 3, 4, 2))
    observe = {"own": lambda mu: mu.x.mean((-1, -2)), "table": lambda mu: np.ones((2, 3))}
    traj = of.flow(mu, DECAY, of.Euler(), t1=1.0, dt=0.5, observe=observe)
    assert traj.shared == ("table",)
    assert traj.member((1, 2)).observed["own"].shape == (3,)
    assert traj.member((1, 2)).observed["table"].shape == (3, 2, 3)


def test_a_dataset_knows_what_is_shared() -> None:
    traj = of.flow(CLOUDS, DECAY, of.Euler(), t1=1.0, dt=0.5, observe={"table": SHARED["table"]} | OWN)
    ds = traj.to_xarray()
    assert "batch0" not in ds["table"].dims
    assert ds["moment"].dims == ("t", "batch0")
    assert of.Trajectory.from_xarray(ds).shared == ("table",)
    assert traj.join(later(traj, {"table": SHARED["table"]} | OWN)).shared == ("table",)


def later(traj: of.Trajectory, observe: dict[str, Callable[[Any], Any]]) -> of.Trajectory:
    return of.flow(traj.final, DECAY, of.Euler(), t0=1.0, t1=2.0, dt=0.5, observe=observe)


def test_random_observables_draw_during_a_run_what_they_draw_without_a_batch() -> None:
    """The question whether it grows is asked after the run, and torch's own generator is put back."""
    drawn: list[float] = []

    def draw(mu: of.Measure) -> Tensor:
        out = torch.rand(len(mu), dtype=torch.float64)
        drawn.extend(out.tolist())
        return out

    torch.manual_seed(0)
    traj = of.flow(CLOUDS, DECAY, of.Euler(), t1=1.0, dt=0.5, observe={"u": draw})
    after = torch.rand(1, dtype=torch.float64)
    torch.manual_seed(0)
    assert traj.observed["u"].flatten().tolist() == torch.rand(3 * B, dtype=torch.float64).tolist()
    assert torch.equal(after, torch.rand(1, dtype=torch.float64))


def test_an_observable_whose_shape_decides_is_asked_once_per_save_time() -> None:
    calls: list[int] = []

    def count(mu: of.Measure) -> float:
        calls.append(1)
        return 1.0

    of.flow(CLOUDS, DECAY, of.Euler(), t1=1.0, dt=0.5, observe={"count": count})
    of.flow(CLOUDS[0], DECAY, of.Euler(), t1=1.0, dt=0.5, observe={"count": count})
    assert len(calls) == 6
