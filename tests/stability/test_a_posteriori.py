"""Bounds along a run hold where it is easy to be wrong: weights that jump, long steps, shared weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import otflow as of
from otflow.fields.weights import Constant, Layers

ONE = [[1.0]]


def layers(values: list[float], edges: list[float]) -> Layers:
    return Layers(torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1), edges)


@pytest.mark.slow
def test_a_huge_constant_of_an_early_layer_does_not_hide_what_comes_later() -> None:
    """The second layer is x' = mean(x), under which translations grow by e."""
    edges = [0.0, 1.0, 2.0]
    score = layers([5.0, 0.0], edges)
    field = of.SoftmaxAttention(score, score, layers([1e-3, 1.0], edges))
    found = of.ladder(of.Particles([[-1.0], [0.3], [1.0]]), field, t1=2.0, steps=200)
    assert float(found.rungs["a priori"]) > 1e20
    assert 1.0 < float(found.rungs["adversary"]) < float(found.rungs["a posteriori"]) < 3.0
    assert found.holds(1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mirrored", [False, True])
def test_what_an_earlier_layer_moves_between_two_save_times_counts(mirrored: bool) -> None:
    """Tokens fly apart before they attend, or attend before they fall together, within one interval."""
    edges, speeds, looks = [0.0, 0.1, 0.5, 1.0], [30.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    if mirrored:
        edges, speeds, looks = [0.0, 0.5, 0.9, 1.0], [0.0, 0.0, -30.0], [0.0, 1.0, 0.0]
    push = of.Perceptron(layers(speeds, edges), ONE, activation=None)
    field = push + of.SoftmaxAttention([[5.0]], ONE, layers(looks, edges))
    mu0 = of.Particles(np.array([[-0.05], [0.0], [0.05]]) * (math.exp(3) if mirrored else 1))
    run = of.flow(mu0, field, of.RK4(), t1=1.0, dt=0.002, save_at=[0.0, 1.0])
    bound = of.stability.a_posteriori(run, field, size=1e-7).log_C[-1]
    truth = of.stability.singular_values(mu0, field, of.RK4(), t1=1.0, dt=0.002).values.log()
    assert float(truth.max()) <= float(bound)


@pytest.mark.slow
def test_blocks_that_share_weights_have_their_own_constants() -> None:
    W, U = Constant(torch.tensor([[100.0]]).double()), [[1e-6]]
    blocks = of.Perceptron(W, U, activation=torch.relu) + of.Perceptron(W, U, activation=torch.cos)
    field = blocks + of.UnnormalisedAttention([[0.01]], ONE, [[1e-6]])
    mu0 = of.Particles([[1.0], [0.9]])
    found = of.ladder(mu0, field, t1=0.36, steps=200)
    assert float(found.rungs["adversary"]) > 0.3
    assert found.holds(1e-9)
    reach = of.stability.a_priori(blocks, mu0=mu0, t1=1.0).radius[-1]
    assert float(reach) == pytest.approx(1 + 100, rel=1e-3)


@pytest.mark.thorough
def test_a_contraction_holds_up_to_the_error_of_its_steps() -> None:
    mu0 = of.Particles([[1.0, 0.0], [0.0, 1.0], [-0.5, -0.5]])
    found = of.ladder(mu0, of.Perceptron(-5 * np.eye(2), np.eye(2), activation=None), t1=1.0)
    assert float(found.rungs["a posteriori"]) == pytest.approx(-5.0, rel=1e-12)
    h = 0.1  # each of 50 steps multiplies by the polynomial of RK4
    step = 1 - h + h**2 / 2 - h**3 / 6 + h**4 / 24
    assert float(found.rungs["adversary"]) == pytest.approx(50 * math.log(step), rel=1e-9)
    assert float(found.step_error) == pytest.approx(50 * math.log(step) + 5, rel=0.1)
    assert found.holds()
    assert not found.holds(1e-9)


@pytest.mark.slow
def test_tokens_of_unequal_weight_may_be_split_and_reach_covers_it() -> None:
    """nu has the places of mu and nearly its masses, so W_2 is small, but by index tokens moved far."""
    far, small = 0.1, 1e-7
    w = [0.25, 0.25 + small, 0.25 - small, 0.25]
    mu = of.Particles([[-1.0], [-far], [far], [1.0]], w)
    nu = of.Particles([[-1.0], [far], [-far], [1.0]], w)
    field = of.SoftmaxAttention([[100.0]], ONE, ONE)
    a, b = (of.flow(one, field, of.RK4(), t1=0.1, dt=1e-3) for one in (mu, nu))
    start = of.wasserstein(mu, nu)
    grown = (of.wasserstein(a.final, b.final) / start).log()
    assert float(of.stability.a_posteriori(a, field, size=start).log_C[-1]) < float(
        grown
    )  # as its docstring says
    assert float(grown) <= float(of.stability.a_posteriori(a, field, size=start, reach=2 * far).log_C[-1])
