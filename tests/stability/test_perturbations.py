"""Perturbations are as far from the cloud as they say, whatever the weights, labels and space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import otflow as of
from otflow.stability.perturbations import apart, perturbations, scaled
from otflow.transport.exact.conditional import conditional_wasserstein
from tests.samples import normal, unit

ALL = {"random", "token", "outwards", "translation", "dilation", "rotation"}


def cloud(*shape: int, weighted: bool = False, label: Any = None, seed: int = 0) -> of.Particles:
    w = np.random.default_rng(seed + 1).uniform(0.2, 1.0, shape[:-1])
    return of.Particles(
        normal(*shape, seed=seed), w / w.sum(-1, keepdims=True) if weighted else None, label=label
    )


def matched(x: Tensor, y: Tensor, p: float) -> float:
    """W_p of uniform clouds by scipy."""
    cost = (((x[:, None] - y) ** 2).sum(-1) ** (p / 2)).numpy()
    return float(cost[linear_sum_assignment(cost)].mean() ** (1 / p))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("size", [1e-6, 0.1, 5.0])
def test_every_family_is_at_the_distance_asked_for_also_where_tokens_mix(p: float, size: float) -> None:
    mu = cloud(6, 2)
    family = perturbations(mu, size, p=p, rng=1)
    assert set(family) == ALL
    for nu in family.values():
        assert matched(mu.x, nu.x, p) == pytest.approx(size, rel=1e-8)


@pytest.mark.parametrize("label", [None, [3.0, 1.0, 1.0, 2.0, 1.0]])
def test_weights_labels_and_batches_are_respected(label: Any) -> None:
    mu = cloud(3, 5, 2, weighted=True, label=label)
    size = torch.tensor([0.01, 0.5, 3.0], dtype=torch.float64)
    family = perturbations(mu, size, p=2, rng=0)
    assert set(family) == ALL | (set() if label is None else {"first"})
    distance = of.wasserstein if label is None else conditional_wasserstein
    for nu in family.values():
        assert torch.allclose(distance(mu, nu), size, rtol=1e-8)
        assert torch.equal(nu.w, mu.w)
    moves = family["random"].x - mu.x
    assert not torch.allclose(moves[0] / moves[0].norm(), moves[1] / moves[1].norm(), atol=1e-3)


def test_families_move_what_their_names_say() -> None:
    mu = of.Particles([[0.0, 0.0], [1.0, 0.0], [0.0, 4.0]], label=[2, 0, 1])
    family = perturbations(mu, 0.01, rng=3)
    moved = {name: ((nu.x - mu.x).norm(dim=-1) > 0).tolist() for name, nu in family.items()}
    assert moved["first"] == [False, True, False]
    assert moved["outwards"] == [False, False, True]
    assert sum(moved["token"]) == 1
    shift = family["translation"].x - mu.x
    assert torch.allclose(shift, shift[:1].expand(3, 2))
    off = mu.x - mu.x.mean(0)
    turn, growth = (family[name].x - mu.x for name in ("rotation", "dilation"))
    assert torch.allclose((turn * off).sum(-1), torch.zeros(3, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(growth / off, (growth / off)[:1, :1].expand(3, 2))


def test_families_that_move_nothing_are_left_out() -> None:
    assert set(perturbations(cloud(4, 1), 0.1, rng=0)) == ALL - {"rotation"}
    assert set(perturbations(cloud(1, 3), 0.1, rng=0)) == {"random", "token", "translation"}
    stacked = of.Particles(np.ones((2, 4, 2)) / 3)
    assert set(perturbations(stacked, 0.1, rng=0)) == {"random", "token", "translation"}


def test_on_a_sphere_tokens_move_along_geodesics() -> None:
    mu = of.Particles(unit(5, 3), space=of.Sphere())
    for nu in perturbations(mu, 0.2, p=2, rng=0).values():
        assert torch.allclose(nu.x.norm(dim=-1), torch.ones(5, dtype=torch.float64), atol=1e-14)
        assert of.wasserstein(mu, nu).item() == pytest.approx(0.2, rel=1e-8)


def test_the_same_seed_gives_the_same_clouds() -> None:
    one, two, other = (perturbations(cloud(4, 2), 0.1, rng=seed)["random"].x for seed in (5, 5, 6))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_small_clouds_far_away_have_small_perturbations() -> None:
    mu = of.Particles(1e-12 * normal(4, 2))
    for nu in perturbations(mu, 1e-15, rng=0).values():
        assert matched(1e12 * mu.x, 1e12 * nu.x, 2) == pytest.approx(1e-3, rel=1e-8)


# --- one direction -------------------------------------------------------------------------------------


def test_tokens_that_swap_have_to_go_farther() -> None:
    mu = of.Particles([[0.0], [1.0]])
    u = of.Tangent([torch.tensor([[1.0], [-1.0]], dtype=torch.float64)])
    assert torch.allclose(scaled(mu, u, 0.25).x.flatten(), torch.tensor([0.25, 0.75]).double())
    assert torch.allclose(scaled(mu, u, 0.75).x.flatten(), torch.tensor([1.75, -0.75]).double())
    labelled = of.Particles(mu.x, label=[0, 1])
    assert torch.allclose(scaled(labelled, u, 0.75).x.flatten(), torch.tensor([0.75, 0.25]).double())


def test_the_largest_displacement_counts_for_order_infinity() -> None:
    mu = of.Particles([[0.0], [10.0]])
    u = of.Tangent([torch.tensor([[1.0], [2.0]], dtype=torch.float64)])
    assert torch.allclose(scaled(mu, u, 0.5, math.inf).x.flatten(), torch.tensor([0.25, 10.5]).double())


def test_no_cloud_on_a_sphere_is_farther_away_than_half_a_circle() -> None:
    mu = of.Particles(unit(1, 3), space=of.Sphere())
    u = mu.tangent(of.Tangent([torch.ones(1, 3, dtype=torch.float64)]))
    assert of.wasserstein(mu, scaled(mu, u, 3.0)).item() == pytest.approx(3.0, rel=1e-12)
    with pytest.raises(of.InputError, match="does not get that far"):
        scaled(mu, u, 4.0)
    assert perturbations(mu, 4.0, rng=0) == {}


# --- distances -----------------------------------------------------------------------------------------


@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.sampled_from([1.0, 2.0, 3.0]),
    st.sampled_from([1e-8, 0.3, 3.0]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_matching_by_index_is_used_only_where_it_is_optimal(
    seed: int, n: int, p: float, size: float, labelled: bool
) -> None:
    label = np.random.default_rng(seed).integers(0, 2, n) if labelled else None
    mu = cloud(2, n, 2, weighted=True, label=label, seed=seed)
    nu = mu.at([mu.x + size * torch.from_numpy(normal(3, 2, n, 2, seed=seed + 7))])
    solver = conditional_wasserstein if labelled else of.wasserstein
    both = solver(mu, nu, p)
    assert torch.allclose(apart(mu, nu, p), both, rtol=1e-8)


def test_the_distance_has_the_derivative_of_the_optimal_matching() -> None:
    mu = cloud(5, 2)
    for size in (0.05, 2.0):  # matched by index, and otherwise
        x = (mu.x + size * torch.from_numpy(normal(5, 2, seed=4))).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: apart(mu, mu.at([x]), 3.0), (x,))


# --- wrong input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.0, -1.0, 1e-16, math.nan, "much"])
def test_a_size_that_is_no_distance_is_refused(size: Any) -> None:
    with pytest.raises(of.InputError, match="size"):
        perturbations(cloud(4, 2), size, rng=0)


def test_sizes_that_do_not_match_the_batch_are_refused() -> None:
    with pytest.raises(of.InputError, match=r"size\.shape"):
        perturbations(cloud(3, 4, 2), [0.1, 0.2], rng=0)


def test_orders_below_one_and_other_measures_are_refused() -> None:
    with pytest.raises(of.InputError, match=r"p = 0\.5"):
        perturbations(cloud(4, 2), 0.1, p=0.5, rng=0)
    bell: Any = of.Gaussian([0.0], root=[[1.0]])
    with pytest.raises(of.InputError, match="Particles is needed"):
        perturbations(bell, 0.1, rng=0)


def test_a_direction_that_moves_nothing_is_refused() -> None:
    mu = cloud(4, 2)
    with pytest.raises(of.InputError, match="it moves no mass"):
        scaled(mu, of.Tangent([torch.zeros_like(mu.x)]), 0.1)
    with pytest.raises(of.InputError, match=r"u\.shape"):
        scaled(mu, of.Tangent([mu.x[:2]]), 0.1)


@pytest.mark.parametrize("rng", [None, -1, 1.5, "seed", True])
def test_what_is_no_source_of_randomness_is_refused(rng: Any) -> None:
    with pytest.raises(of.InputError, match=r"rng = .*a seed >= 0 or a numpy\.random\.Generator"):
        perturbations(cloud(3, 2), 0.1, rng=rng)
