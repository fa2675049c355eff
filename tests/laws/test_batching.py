"""A batch is its members: running them together or one by one is the same."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
import pytest
import torch

import otflow as of
from tests import zoo
from tests.samples import ENERGIES, makes_sense, normal, plateau, unit

BATCHES: dict[str, of.Measure] = {
    "particles": of.Particles(normal(2, 4, 2)),
    "weighted": of.Particles(normal(2, 4, 2), zoo.weights(0, 2, 4), normal(2, 4)),
    "two axes": of.Particles(normal(2, 2, 3, 2), zoo.weights(0, 3)),
    "sphere": of.Particles(unit(2, 4, 3), space=of.Sphere()),
    "torus": of.Particles(normal(2, 4, 2), space=of.Torus(3.0)),
    "gaussian": of.Gaussian(normal(2, 1), root=0.5 + 0.1 * normal(2, 1, 1)),
    "cubature": of.Gaussian(0.3 * normal(2, 4), root=0.4 * normal(2, 4, 4)),
    "grid": plateau(5, 4, 2),
}
CASES = [
    (m, e, s)
    for m in BATCHES
    for e in ENERGIES
    for s in zoo.STEPPERS
    if makes_sense(m, e) and not (m == "grid" and zoo.STEPPERS[s]().adaptive)
]


@singledispatch
def member(mu: Any, index: tuple[int, ...]) -> of.Measure:
    raise TypeError(mu)


@member.register
def _(mu: of.Particles, index: tuple[int, ...]) -> of.Measure:
    w, label = mu.w[index], None if mu.label is None else mu.label[index]
    return of.Particles(mu.x[index], w, label, mu.space)


@member.register
def _(mu: of.Gaussian, index: tuple[int, ...]) -> of.Measure:
    return of.Gaussian(mu.mean[index], root=mu.root[index])


@member.register
def _(mu: of.Grid, index: tuple[int, ...]) -> of.Measure:
    return of.Grid(mu.density[index], mu.axes)


def assert_members_agree(mu: of.Measure, run: Any, **close: float) -> None:
    together = run(mu)
    for index in np.ndindex(tuple(mu.batch)):
        alone = run(member(mu, index))
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[index], b, **close)


@pytest.mark.slow(but_for=["*-sum-*", "*-double_well-rosenbrock", "*-longer_sum-euler"])
@pytest.mark.parametrize(("name", "energy", "stepper"), CASES)
def test_a_gradient_flow_of_a_batch_is_that_of_its_members(name: str, energy: str, stepper: str) -> None:
    method = zoo.STEPPERS[stepper]()
    dt = None if method.adaptive else 0.005
    field = of.SteepestDescent(ENERGIES[energy](), of.Wasserstein())

    def run(mu: of.Measure) -> list[torch.Tensor]:
        traj = of.flow(mu, field, method, t1=0.01, dt=dt, save_at=[0.01], observe={"F": field.energy})
        return [*traj.final.coords, traj.observed["F"][-1]]

    tolerance = 1e-9 if method.adaptive else 1e-12
    assert_members_agree(BATCHES[name], run, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "energy"), [(m, e) for m in BATCHES for e in ENERGIES if makes_sense(m, e)])
def test_energies_and_differentials_of_a_batch_are_those_of_its_members(name: str, energy: str) -> None:
    F = ENERGIES[energy]()
    assert F(BATCHES[name]).shape == BATCHES[name].batch
    assert_members_agree(BATCHES[name], lambda mu: [F(mu), *F.differential(mu)], rtol=1e-12, atol=1e-14)


@pytest.mark.slow(
    but_for=["*-euler", "*-heun", "*-rk4", "*-dopri5_fixed", "softmax-*", "sigmoid-*", "block-dopri5"]
)
@pytest.mark.parametrize("stepper", zoo.STEPPERS)
@pytest.mark.parametrize(
    "field", ["softmax", "l2", "sinkhorn", "sigmoid", "multihead", "softmax_of_time", "block"]
)
def test_attention_moves_a_batch_like_its_members(field: str, stepper: str) -> None:
    method, v = zoo.STEPPERS[stepper](), zoo.FIELDS[field]()
    dt = None if method.adaptive else 0.25

    def run(mu: of.Measure) -> of.Tangent:
        return of.flow(mu, v, method, t1=0.5, dt=dt, save_at=[0.5]).final.coords

    assert_members_agree(zoo.MEASURES["batched_labelled"](), run, rtol=1e-8, atol=1e-8)


@pytest.mark.thorough
def test_each_member_may_have_weights_of_its_own() -> None:
    mu = BATCHES["particles"]
    Q, K, V = (torch.tensor(normal(2, 2, 2, seed=s)) for s in range(3))
    together = of.flow(mu, of.SoftmaxAttention(Q, K, V), of.Dopri5(), t1=0.5).final.coords[0]
    for i in range(2):
        field = of.SoftmaxAttention(Q[i], K[i], V[i])
        alone = of.flow(member(mu, (i,)), field, of.Dopri5(), t1=0.5).final.coords[0]
        torch.testing.assert_close(together[i], alone, rtol=1e-9, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("stepper", ["rk4", "dopri5"])
def test_weights_written_for_one_time_are_right_in_a_batch_too(stepper: str) -> None:
    """Members of an adaptive batch have clocks of their own: two of them, in dimension two, must not mix."""
    zero, turn = np.zeros((2, 2)), torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    field, method = of.SoftmaxAttention(zero, zero, lambda t: (1 + t) * turn), zoo.STEPPERS[stepper]()
    mu = of.Particles(np.array([[[1.0, 0.0]], [[100.0, 3.0]]]))

    def run(mu: of.Measure) -> of.Tangent:
        dt = None if method.adaptive else 0.25
        return of.flow(mu, field, method, t1=2.0, dt=dt, save_at=[2.0]).final.coords

    assert_members_agree(mu, run, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", BATCHES)
def test_inner_products_sharp_and_nodes_of_a_batch_are_those_of_its_members(name: str) -> None:
    mu = BATCHES[name]
    c = mu.coords.map(torch.sin)
    u = mu.sharp(c)

    def parts(nu: of.Measure, index: Any) -> list[torch.Tensor]:
        g = nu.sharp(c.map(lambda a: a[index]))
        return [*nu.nodes(), *g, nu.inner(g, g), *nu.move(0.01 * g).coords]

    together = [*mu.nodes(), *u, mu.inner(u, u), *mu.move(0.01 * u).coords]
    for index in np.ndindex(tuple(mu.batch)):
        for a, b in zip(together, parts(member(mu, index), index), strict=True):
            torch.testing.assert_close(a[index], b, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", BATCHES)
def test_a_member_that_is_not_finite_is_found(name: str) -> None:
    mu = BATCHES[name]
    bad = mu.coords.map(torch.clone)
    bad[-1][(0,) * bad[-1].ndim] = torch.nan
    found = mu.at(bad).finite()
    assert found.shape == mu.batch
    assert not found.flatten()[0]
    assert bool(found.flatten()[1:].all())
