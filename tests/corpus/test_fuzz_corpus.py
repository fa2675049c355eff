"""Cases that the fuzzer of `tests/fuzz` found, each by what went wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import otflow as of
from otflow.base import linalg


def test_an_entropic_plan_is_zero_where_atoms_without_mass_meet_at_small_eps() -> None:
    """The density exp((f + g - c) / eps) overflows there, and inf times a mass of 0 was NaN."""
    x, y = np.array([[1.0, 2.0], [-1.0, 0.0]]), np.array([[1.0, 2.0], [1.0, 1.0]])
    found = of.sinkhorn(of.Particles(x, [0.0, 1.0]), of.Particles(y, [0.0, 1.0]), 0.002)
    assert found.status == "ok"
    assert np.abs(found.plan.numpy() - [[0, 0], [0, 1]]).max() < 1e-12


TURNS = {np.float64: (0.01, 0.03, 0.045), np.float32: (0.05, 0.3, 0.5)}


@pytest.mark.parametrize(("dtype", "angle"), [(dtype, a) for dtype, angles in TURNS.items() for a in angles])
def test_exponentials_of_single_matrices_are_right_though_those_of_torch_are_not(
    dtype: type, angle: float
) -> None:
    """A wrong coefficient of torch's: 8e-11 in double precision, 2e-5 in single, for rotations."""
    a = torch.from_numpy(np.array([[0.0, -angle], [angle, 0.0]], dtype=dtype)).requires_grad_()
    exact = scipy.linalg.expm(a.detach().numpy().astype(float))
    unit = np.finfo(dtype).eps
    for batch in ((), (1,), (2,)):
        found = linalg.matrix_exp(a.expand(*batch, 2, 2))
        assert np.abs(found.detach().numpy() - exact).max() < 2 * unit
    (grad,) = torch.autograd.grad(linalg.matrix_exp(a)[1, 0], a)
    seed = np.array([[0.0, 0.0], [1.0, 0.0]])
    truth = scipy.linalg.expm_frechet(a.detach().numpy().astype(float).T, seed, compute_expm=False)
    assert np.abs(grad.numpy() - truth).max() < 8 * unit


def test_a_lie_step_on_the_line_is_exact() -> None:
    a, m, dt = 0.0382, -1.7, 0.65
    field = of.Perceptron([[a]], [[1.0]], activation=None)
    traj = of.flow(of.Gaussian([m], root=[[1.0]]), field, of.Lie(), t1=dt, dt=dt)
    assert abs(traj.final.mean.item() - m * math.exp(a * dt)) < 1e-15 * abs(m) * 4


def test_a_fokker_planck_mean_decays_exactly() -> None:
    found, _ = of.closed_forms.fokker_planck(0.04, [1.0, 0.0], np.eye(2), np.eye(2), [0.0, 0.0], 1.0)
    assert abs(found[0].item() - math.exp(-0.04)) < 1e-15


def test_only_one_place_asks_torch_for_exponentials_of_matrices() -> None:
    package = Path(of.__file__).parent
    asking = [p.name for p in package.rglob("*.py") if "torch.linalg.matrix_exp(" in p.read_text()]
    assert asking == ["linalg.py"]
    assert not [p for p in package.rglob("*.py") if "torch.matrix_exp" in p.read_text()]


POLES = {"square": (torch.square, 1.0), "one and square": (lambda y: 1 + y * y, math.pi / 4)}


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("name", POLES)
def test_a_rosenbrock_method_does_not_pass_the_pole_of_a_riccati_equation(name: str, tokens: int) -> None:
    """It solves these without error on both sides, so that the run was "ok" and had -2 after 1 / (1 - t)."""
    rate, when = POLES[name]
    field = of.Perceptron([[1.0]], [[1.0]], activation=rate)
    run = of.flow(of.Particles([[1.0]] * tokens), field, of.Rosenbrock(), t1=1.5)
    assert run.status == "blow_up"
    assert abs(float(run.blow_up_time) - when) < 1e-5


def test_a_mode_that_grows_but_is_not_excited_bounds_no_step_of_a_rosenbrock_method() -> None:
    field = of.Perceptron([[1e4, 0.0], [0.0, -1.0]], np.eye(2), activation=None)
    run = of.flow(of.Particles([[0.0, 1.0]]), field, of.Rosenbrock(), t1=10.0)
    assert run.status == "ok"
    assert run.steps < 1000


COARSE = ((of.Euler(), 0.01, 1.05), (of.Heun(), 0.3, 1.05), (of.RK4(), 0.3, 1.05), (of.Heun(), 0.1, 1.05))


@pytest.mark.parametrize(("stepper", "dt", "t1"), COARSE)
def test_fixed_steps_that_pass_a_pole_by_less_than_a_thousandfold_are_not_ok(
    stepper: of.Stepper, dt: float, t1: float
) -> None:
    """x' = x^2 from 1 ends at t = 1; Euler had x = 415 at t = 1.05, with the status "ok"."""
    field = of.Perceptron([[1.0]], [[1.0]], activation=torch.square)
    run = of.flow(of.Particles([[1.0]]), field, stepper, t1=t1, dt=dt, on_failure="return")
    assert run.status != "ok"


def test_a_damped_oscillation_that_euler_makes_grow_is_not_ok() -> None:
    """dt |lambda| = 1.6 is below 2, the limit for modes that do not oscillate."""
    A = 1.6 * np.array([[-0.2, 1.0], [-1.0, -0.2]])
    field = of.Perceptron(A, np.eye(2), activation=None)
    run = of.flow(of.Particles([[1.0, 0.0]]), field, of.Euler(), t1=20.0, dt=1.0, on_failure="return")
    assert run.status == "unstable"
    grows = of.Perceptron(-A, np.eye(2), activation=None)  # this one does so by itself
    assert of.flow(of.Particles([[1.0, 0.0]]), grows, of.RK4(), t1=25.0, dt=0.5).status == "ok"


class Bent(of.fields.TokenField):
    """relu(x + 2.753...), which two quadratures of a field had wrong by 6e-5, and equal to 1e-6."""

    def velocity_at(self, t: Any, mu: Any, points: Tensor, label: Any, carry: Any) -> tuple[Tensor, None]:
        return 0.545751007497881 * torch.relu(points + 2.753298029946945), None


def test_a_kink_on_which_two_rules_agree_by_chance_is_refused() -> None:
    mu = of.Gaussian([0.04830971394311856], root=[[0.9201920679825857]])
    with pytest.raises(of.InputError, match="quadrature error"):
        of.GaussianProjection(Bent())(0.0, mu)


def test_tokens_without_weight_to_speak_of_are_at_rest_after_a_step_or_it_says_so() -> None:
    """A residual is a mean over the mass: one of 1e-24 of it ended 13 away from its minimiser, ok."""
    x = np.array([[0.86675831644061, 0.20887216454537], [0.16314570921102, -0.61298876938382]])
    F = of.QuadraticPotential([[0.25, 0.05], [0.05, 1.8]], [-0.5, 1.6]) + of.QuadraticInteraction(
        [[2.55, 0.6], [0.6, 1.9]]
    )
    heavy = of.jko_step(of.Particles(x[:1]), F, 62.0).mu.x
    move = of.jko_step(of.Particles(x, [1.0, 1.5e-24]), F, 62.0, on_failure="return")
    torch.testing.assert_close(move.mu.x[:1], heavy)
    # (I + tau (A + K)) y = x + tau (b + K m), with m the heavy one
    A, K = np.array([[0.25, 0.05], [0.05, 1.8]]), np.array([[2.55, 0.6], [0.6, 1.9]])
    right = np.array([-0.5, 1.6]) + K @ heavy[0].numpy()
    light = np.linalg.solve(np.eye(2) + 62.0 * (A + K), x[1] + 62.0 * right)
    assert move.status == "stalled" or np.abs(move.mu.x[1].numpy() - light).max() < 1e-6
    assert of.jko_step(of.Particles(x, [1.0, 1e-6]), F, 62.0).status == "ok"
