"""What a flow must not change: mass, signs, weights, labels, the space."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import otflow as of
from otflow.base.errors import StepError
from tests import zoo
from tests.samples import ENERGIES, MEASURES, centres, double_well, hill, random_tangent

GRIDS = ["grid", "grid_2d", "grid_3d", "grid_batched"]


def mass(mu: of.Measure) -> torch.Tensor:
    return mu.nodes()[1].sum(-1)


@pytest.mark.slow(but_for=["grid-*", "grid_batched-*", "grid_3d-longer_sum", "grid_2d-potential"])
@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_keeps_its_mass_and_its_sign(name: str, energy: str) -> None:
    field = of.SteepestDescent(ENERGIES[energy](), of.Wasserstein())
    traj = of.flow(MEASURES[name](), field, of.Euler(), t1=0.1, dt=1e-3)
    assert len(traj) == 101
    torch.testing.assert_close(mass(traj.stacked), torch.ones_like(mass(traj.stacked)), rtol=0, atol=1e-12)
    assert bool((traj.stacked.density >= 0).all())
    assert not torch.allclose(traj.final.density, traj.measures[0].density, atol=1e-4)


@pytest.mark.thorough
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_below_the_cfl_limit_any_velocity_keeps_mass_and_sign(seed: int, axes: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 6, axes))
    rho = rng.uniform(0, 1, shape) * (rng.uniform(0, 1, shape) < 0.7) + 1e-300
    mu = of.Grid(rho / rho.mean() / 2.0**axes, [centres(n) for n in shape])
    u = random_tangent(mu, seed % 1000)
    out = mu.move(0.999 / cfl_number(mu, u) * u)
    assert mass(out).item() == pytest.approx(1.0, abs=1e-13)
    assert float(out.density.min()) >= -1e-16


def cfl_number(mu: of.Grid, u: of.Tangent) -> float:
    """The largest part of a cell that leaves it, computed cell by cell."""
    leaving = np.zeros(tuple(mu.density.shape))
    for axis, (h, speed) in enumerate(zip(mu.spacing, u, strict=True)):
        v = speed.numpy() / h
        for index in np.ndindex(*v.shape):
            after = tuple(k + (a == axis) for a, k in enumerate(index))
            leaving[index] += max(v[index], 0.0)
            leaving[after] += max(-v[index], 0.0)
    return float(leaving.max())


@pytest.mark.parametrize("name", ["grid", "grid_2d", "grid_3d"])
def test_beyond_the_cfl_limit_a_step_is_refused_with_the_factor_that_helps(name: str) -> None:
    mu = MEASURES[name]()
    u = random_tangent(mu)
    u = 1.7 / cfl_number(mu, u) * u
    with pytest.raises(StepError, match=r"CFL number = 1\.7") as caught:
        mu.move(u)
    factor = float(re.search(r"at most ([\d.e+-]+) times", str(caught.value))[1])
    assert factor == pytest.approx(1 / 1.7, rel=1e-2)
    mu.move(0.99 * factor * u)


def test_a_flow_beyond_the_cfl_limit_fails_and_keeps_the_run_so_far() -> None:
    field = of.SteepestDescent(of.Potential(double_well), of.Wasserstein())
    traj = of.flow(hill(40), field, of.Euler(), t1=1.0, dt=0.5, on_failure="return")
    assert traj.status == "degenerate"
    assert "CFL" in traj.message
    assert traj.ts.tolist() == [0.0]


def test_nothing_leaves_a_grid_through_its_walls() -> None:
    field = of.SteepestDescent(of.Potential(lambda x: -3 * x[..., 0]), of.Wasserstein())
    mu = of.flow(hill(20), field, of.Euler(), t1=2.0, dt=0.01).final
    assert mass(mu).item() == pytest.approx(1.0, abs=1e-12)
    assert mu.density[-1].item() * mu.cell > 0.95


@pytest.mark.parametrize("stepper", zoo.STEPPERS)
@pytest.mark.parametrize("name", zoo.LABELLED)
def test_weights_labels_and_space_stay_as_they_are(name: str, stepper: str) -> None:
    mu0, method = zoo.MEASURES[name](), zoo.STEPPERS[stepper]()
    dt = None if method.adaptive else 0.05
    final = of.flow(mu0, zoo.FIELDS["softmax_causal"](), method, t1=0.1, dt=dt, save_at=[0.1]).final
    assert torch.equal(final.w, mu0.w)
    assert torch.equal(final.label, mu0.label)
    assert final.space == mu0.space
    assert not torch.allclose(final.x, mu0.x, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("stepper", zoo.STEPPERS)
def test_tokens_stay_on_the_sphere(stepper: str) -> None:
    method = zoo.STEPPERS[stepper]()
    dt = None if method.adaptive else 0.5
    x = of.flow(zoo.MEASURES["sphere"](), zoo.FIELDS["softmax"](), method, t1=5.0, dt=dt).stacked.x
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(x.shape[:-1], dtype=x.dtype), rtol=0, atol=1e-15)


def test_tokens_stay_in_the_fundamental_cell_of_a_torus() -> None:
    field = of.SteepestDescent(of.Potential(lambda x: -5 * x[..., 0] + 3 * x[..., 1]), of.Wasserstein())
    x = of.flow(zoo.MEASURES["torus"](), field, of.RK4(), t1=2.0, dt=0.1).stacked.x
    assert bool(((x >= 0) & (x < 2.0)).all())
    assert bool((x.diff(dim=0)[..., 0].abs() > 1.0).any()), "nobody went round"


def test_inputs_are_not_changed_by_a_flow() -> None:
    x, w = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.full((4,), 0.25)
    before = x.clone(), w.clone()
    of.flow(of.Particles(x, w), of.SoftmaxAttention(*[torch.eye(2)] * 3), of.RK4(), t1=1.0, dt=0.25)
    assert torch.equal(x, before[0])
    assert torch.equal(w, before[1])


def test_the_mean_of_a_symmetric_interaction_stays() -> None:
    mu = MEASURES["weighted"]()
    field = of.SteepestDescent(of.Interaction(zoo.bell), of.Wasserstein())
    final = of.flow(mu, field, of.RK4(), t1=1.0, dt=0.1).final
    torch.testing.assert_close(mu.w @ mu.x, final.w @ final.x, rtol=0, atol=1e-13)
