"""Cases that the fuzzer of `tests/fuzz` found, each by what went wrong."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch

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
