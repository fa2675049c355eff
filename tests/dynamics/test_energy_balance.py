"""The energy-dissipation identity along trajectories."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otflow as of
from tests import zoo
from tests.samples import hill, normal


def decay(stepper: of.Stepper, dt: float) -> tuple[of.Trajectory, of.SteepestDescent]:
    """x' = -x from 2, whose energy is 2 exp(-2t) and whose slope is 4 exp(-2t)."""
    pull = of.SteepestDescent(of.QuadraticPotential([[1.0]]), of.Wasserstein())
    return of.flow(of.Particles([[2.0]]), pull, stepper, t1=1.0, dt=dt), pull


def test_energy_slope_and_length_are_those_of_the_curve() -> None:
    balance = of.energy_balance(*decay(of.RK4(), 0.01))
    t = balance.ts
    torch.testing.assert_close(balance.energy, 2 * torch.exp(-2 * t), rtol=1e-8, atol=0)
    torch.testing.assert_close(balance.slope, 4 * torch.exp(-2 * t), rtol=1e-8, atol=0)
    torch.testing.assert_close(balance.length.sqrt(), -2 * torch.exp(-t).diff(), rtol=1e-7, atol=0)
    assert bool(balance.monotone)
    assert float(balance.relative) < 1e-4


def test_the_residual_of_a_single_step_is_the_formula() -> None:
    traj, pull = decay(of.JKO(), 1.0)
    a, b = 2.0, 1.0  # one implicit step of length one halves
    expected = (a**2 - b**2) / 2 - (a - b) ** 2 / 2 - (a**2 + b**2) / 4
    assert float(of.energy_balance(traj, pull).residual[-1]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("stepper", [of.Euler(), of.JKO(), of.RK4()], ids=["euler", "jko", "rk4"])
def test_the_residual_is_of_order_two(stepper: of.Stepper) -> None:
    balances = [of.energy_balance(*decay(stepper, 0.1 / 2**k)) for k in range(4)]
    assert float(of.dynamics.balance_order(balances)) == pytest.approx(2.0, abs=0.1)


def test_a_run_that_is_no_gradient_flow_of_the_energy_is_found_out() -> None:
    """Rotation conserves |x|^2: energy is not lost, but motion and slope are there."""
    spin = of.Perceptron([[0.0, -1.0], [1.0, 0.0]], np.eye(2), activation=None)
    traj = of.flow(of.Particles(normal(3, 2)), spin, of.RK4(), t1=1.0, dt=0.01)
    pull = of.SteepestDescent(of.Potential(zoo.harmonic), of.Wasserstein())
    balance = of.energy_balance(traj, pull)
    moment = float(traj.final.x.square().sum(-1).mean())
    assert float(balance.residual[-1]) == pytest.approx(-moment, rel=1e-4)


def test_an_energy_that_rises_is_not_monotone() -> None:
    traj, pull = decay(of.RK4(), 0.1)
    ascent = of.SteepestDescent(-pull.energy, of.Wasserstein())
    balance = of.energy_balance(traj, ascent)
    assert not bool(balance.monotone)
    assert float(balance.increase) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_attention_balances_energy_and_dissipation(kind: str) -> None:
    A = zoo.spd() / 2
    make = {"softmax": of.SoftmaxAttention, "sigmoid": of.SigmoidAttention}[kind]
    field = make(A, np.eye(3), -A)
    for mu in (zoo.MEASURES["weighted"](), zoo.MEASURES["sphere"](), zoo.MEASURES["batched"]()):
        traj = of.flow(mu, field, of.Dopri5(), t1=0.5, save_at=np.linspace(0, 0.5, 101))
        balance = of.energy_balance(traj, field.as_gradient_flow())
        assert bool((balance.relative < 1e-3).all())
        assert bool(balance.monotone.all())


@pytest.mark.thorough
def test_gaussians_and_grids_balance_too() -> None:
    F = of.QuadraticPotential(np.eye(2)) + of.Entropy()
    field = of.SteepestDescent(F, of.Wasserstein())
    traj = of.flow(of.Gaussian(np.ones(2), root=0.5 * np.eye(2)), field, of.Dopri5(), t1=1.0)
    assert float(of.energy_balance(traj, field).relative) < 1e-3
    field = of.SteepestDescent(of.Potential(zoo.harmonic), of.Wasserstein())
    traj = of.flow(hill(80), field, of.Euler(), t1=0.2, dt=0.002, save_at=np.linspace(0, 0.2, 21))
    assert float(of.energy_balance(traj, field).relative) < 0.05  # an upwind step is diffusive


@pytest.mark.thorough
def test_in_the_plane_the_way_is_that_of_the_least_flux() -> None:
    x = (np.arange(24) + 0.5) / 6 - 2
    mu = of.Grid.from_function(lambda a, b: np.exp(-2 * (a - 0.3) ** 2 - 2 * b**2), [x, x])
    field = of.SteepestDescent(of.Potential(zoo.harmonic) + 0.2 * of.Entropy(), of.Wasserstein())
    traj = of.flow(mu, field, of.JKO(), t1=0.02, dt=0.01)
    balance = of.energy_balance(traj, field)
    torch.testing.assert_close(balance.length, traj.certificates["cost"][1:], rtol=0.05, atol=0)


def test_lengths_can_be_those_of_the_steps() -> None:
    traj, pull = decay(of.JKO(), 0.1)
    own = of.energy_balance(traj, pull)
    given = of.energy_balance(traj, pull, lengths=traj.certificates["cost"][1:])
    torch.testing.assert_close(own.residual, given.residual)
    with pytest.raises(of.InputError, match=r"lengths\.shape"):
        of.energy_balance(traj, pull, lengths=np.ones(3))


def test_a_balance_needs_an_energy_and_two_times() -> None:
    traj, pull = decay(of.RK4(), 0.5)
    with pytest.raises(of.InputError, match="steepest descent"):
        of.energy_balance(traj, of.SoftmaxAttention([[1.0]], [[1.0]], [[1.0]]))
    short = of.flow(of.Particles([[2.0]]), pull, of.Euler(), t1=1.0, dt=1.0, save_at=[1.0])
    with pytest.raises(of.InputError, match="two save times"):
        of.energy_balance(short, pull)
    with pytest.raises(of.InputError, match="two runs"):
        of.dynamics.balance_order([of.energy_balance(traj, pull)])


def test_empty_tails_of_a_grid_count_for_nothing() -> None:
    x = (np.arange(200) + 0.5) / 20 - 5
    rho = np.exp(-((x + 1) ** 2) / 0.1)
    mu = of.Grid(rho / (rho.sum() / 20), [x])
    field = of.SteepestDescent(of.Potential(zoo.harmonic) + 0.1 * of.Entropy(), of.Wasserstein())
    traj = of.flow(mu, field, of.JKO(), t1=0.2, dt=0.02)
    known = of.energy_balance(traj, field, lengths=traj.certificates["cost"][1:])
    assert float(of.energy_balance(traj, field).relative) == pytest.approx(float(known.relative), abs=0.05)


def test_the_slope_of_entropy_is_infinite_where_a_grid_is_empty() -> None:
    x = (np.arange(20) + 0.5) / 20
    mu = of.Grid(2.0 * (x < 0.5), [x])
    field = of.SteepestDescent(of.Entropy(), of.Wasserstein())
    balance = of.energy_balance(of.flow(mu, field, of.JKO(), t1=0.02, dt=0.01), field)
    assert float(balance.slope[0]) == np.inf
    assert not bool(balance.residual.isnan().any())
