"""Two runs side by side: shared noise, families, and the distance that the measures call for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.optimize import linear_sum_assignment

import otflow as of
from otflow.stability.coupled import coupled
from tests.samples import DECAY, Given, Linear, normal

RUN: dict[str, Any] = {"t1": 1.0, "dt": 0.25}
STEP = 1 - 0.25 + 0.25**2 / 2 - 0.25**3 / 6 + 0.25**4 / 24  # of RK4 for x' = -x


def pair(n: int = 5, d: int = 2, size: float = 1e-3, label: Any = None) -> tuple[of.Particles, of.Particles]:
    x = normal(n, d, seed=1)
    return of.Particles(x, label=label), of.Particles(x + size * normal(n, d, seed=2), label=label)


# --- ratios --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_a_contraction_contracts_by_the_factor_of_its_steps(p: float) -> None:
    run = coupled(*pair(), DECAY, of.RK4(), **RUN, p=p)
    assert torch.allclose(
        run.ratios, torch.tensor([STEP**k for k in range(5)], dtype=torch.float64), rtol=1e-9
    )
    assert run.ts.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert torch.equal(run.final, run.ratios[-1])
    assert repr(run) == f"Coupled(5 times in [0, 1], p={p:g}, ratio {run.final.item():.6g} at the last)"
    assert run.status == "ok"


def test_the_distances_are_those_of_assignment_problems() -> None:
    mu, nu = pair(size=1.0)
    run = coupled(mu, nu, Linear([[0.0, 2.0], [-1.0, 0.5]]), of.RK4(), **RUN)
    for distance, a, b in zip(run.distances, run.mu.measures, run.nu.measures, strict=True):
        cost = ((a.coords[0][:, None] - b.coords[0]) ** 2).sum(-1).numpy()
        assert distance.item() == pytest.approx(
            math.sqrt(cost[linear_sum_assignment(cost)].mean()), rel=1e-12
        )
    assert run.start.item() == run.distances[0].item()


def test_gaussians_are_compared_by_bures() -> None:
    pull = of.Perceptron(-np.eye(2), np.eye(2), activation=None)
    mu, nu = (
        of.Gaussian([0.0, 0.0], root=np.diag([1.0, 2.0])),
        of.Gaussian([1.0, 0.0], root=np.diag([2.0, 1.5])),
    )
    run = coupled(mu, nu, pull, of.RK4(), **RUN)
    assert run.start.item() == pytest.approx(math.sqrt(1 + 1 + 0.25), rel=1e-12)
    assert run.final.item() == pytest.approx(STEP**4, rel=1e-12)


def test_save_times_are_those_of_the_runs() -> None:
    run = coupled(*pair(), DECAY, of.RK4(), t1=2.0, dt=0.25, t0=1.0, save_at=[1.5, 2.0])
    assert run.ts.tolist() == [1.5, 2.0]
    assert torch.allclose(run.ratios, torch.tensor([STEP**2, STEP**4], dtype=torch.float64), rtol=1e-9)


def test_any_distance_can_be_asked_for() -> None:
    mu, nu = pair()
    run = coupled(mu, nu, DECAY, of.RK4(), **RUN, of=lambda a, b: (a.x - b.x).abs().amax((-1, -2)))
    assert run.start.item() == (mu.x - nu.x).abs().max().item()
    assert run.final.item() == pytest.approx(STEP**4, rel=1e-9)


def test_fixed_and_adaptive_steps_agree_on_perturbations_above_the_tolerance() -> None:
    mu, nu = pair(size=0.3)
    field = of.SoftmaxAttention(np.eye(2), np.eye(2), -np.eye(2))
    fixed = coupled(mu, nu, field, of.RK4(), t1=1.0, dt=0.02, save_at=[0.5, 1.0])
    adaptive = coupled(mu, nu, field, of.Dopri5(1e-9, 1e-11), t1=1.0, save_at=[0.5, 1.0])
    assert torch.allclose(fixed.ratios, adaptive.ratios, rtol=1e-6)


def test_fixed_steps_keep_the_digits_of_tiny_perturbations() -> None:
    M = np.array([[0.5, 2.0], [-1.0, 0.1]])
    mu = of.Particles([[1.0, 2.0]])
    for size in (1e-3, 1e-9):
        run = coupled(mu, of.Particles([[1.0 + size, 2.0]]), Linear(M), of.RK4(), t1=1.0, dt=0.01)
        assert run.final.item() == pytest.approx(np.linalg.norm(expm(M)[:, 0]), rel=1e-5)


# --- labels --------------------------------------------------------------------------------------------


def test_labelled_measures_are_compared_label_by_label() -> None:
    x, label = normal(4, 2), [0, 1, 2, 3]
    swapped = x[[1, 0, 3, 2]]
    run = coupled(
        of.Particles(x, label=label), of.Particles(swapped, label=label), DECAY, of.RK4(), **RUN, p=3.0
    )
    by_index = np.mean(np.linalg.norm(x - swapped, axis=-1) ** 3) ** (1 / 3)
    assert run.start.item() == pytest.approx(by_index, rel=1e-12)
    assert run.final.item() == pytest.approx(STEP**4, rel=1e-12)


def test_the_order_of_labelled_tokens_does_not_matter() -> None:
    mu, nu = pair(label=[0.0, 1.0, 2.0, 3.0, 4.0])
    field = of.SoftmaxAttention(np.eye(2), np.eye(2), np.eye(2), causal=True)
    turned = of.Particles(nu.x.flip(0), label=[4.0, 3.0, 2.0, 1.0, 0.0])
    straight, mixed = (coupled(mu, one, field, of.RK4(), **RUN).ratios for one in (nu, turned))
    assert torch.allclose(straight, mixed, rtol=1e-9)


# --- families ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [None, [0, 1, 2]])
def test_a_family_of_perturbations_is_a_batch(label: Any) -> None:
    x = normal(3, 2)
    mu = of.Particles(x, label=label)
    moves = [1e-3 * normal(3, 2, seed=s) for s in range(4)]
    field = of.SoftmaxAttention(np.eye(2), np.eye(2), -np.eye(2))
    family = coupled(mu, of.Particles(np.stack([x + e for e in moves]), label=label), field, of.RK4(), **RUN)
    assert family.distances.shape == (5, 4)
    for k, e in enumerate(moves):
        alone = coupled(mu, of.Particles(x + e, label=label), field, of.RK4(), **RUN)
        assert torch.allclose(family.ratios[:, k], alone.ratios, rtol=1e-9)
    assert repr(family) == "Coupled(5 times in [0, 1], p=2, ratio (4,) at the last)"


# --- noise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [of.IndependentNoise, of.CommonNoise])
@pytest.mark.parametrize("rng", [7, "generator"])
def test_both_runs_see_the_same_noise(kind: Any, rng: Any) -> None:
    # x' = -x: additive noise cancels from the difference, which shrinks by 1 - dt in every step.
    seed = np.random.default_rng(3) if rng == "generator" else rng
    run = coupled(*pair(), DECAY, of.Euler(), **RUN, noise=kind(0.4, rng=seed))
    assert torch.allclose(
        run.ratios, torch.tensor([0.75**k for k in range(5)], dtype=torch.float64), rtol=1e-8
    )
    quiet = coupled(*pair(), DECAY, of.Euler(), **RUN)
    assert (run.mu.final.coords[0] - quiet.mu.final.coords[0]).abs().max() > 0.05


def test_a_given_path_is_used_and_left_alone() -> None:
    mu, nu = pair()
    path = of.dynamics.BrownianPath(5, (5, 2))
    noise = of.IndependentNoise(0.4, path=path)
    run = coupled(mu, nu, DECAY, of.Euler(), **RUN, noise=noise)
    alone = of.flow(
        nu, DECAY, of.Euler(), **RUN, noise=of.IndependentNoise(0.4, path=of.dynamics.BrownianPath(5, (5, 2)))
    )
    assert torch.equal(run.nu.final.coords[0], alone.final.coords[0])
    assert noise.path is path


def test_the_noise_of_the_caller_keeps_its_generator() -> None:
    noise = of.CommonNoise(0.4, rng=np.random.default_rng(3))
    first, second = (coupled(*pair(), DECAY, of.Euler(), **RUN, noise=noise) for _ in range(2))
    assert noise.path is None
    assert not torch.equal(first.mu.final.coords[0], second.mu.final.coords[0])


def test_a_family_shares_the_noise_of_the_unperturbed_run() -> None:
    mu, _ = pair()
    family = of.Particles(mu.x + 1e-3 * torch.from_numpy(normal(3, 5, 2, seed=4)))
    for kind in (of.IndependentNoise, of.CommonNoise):
        run = coupled(mu, family, DECAY, of.Euler(), **RUN, noise=kind(0.4, rng=0))
        assert torch.allclose(run.final, torch.full((3,), 0.75**4, dtype=torch.float64), rtol=1e-8)


# --- runs that break off -------------------------------------------------------------------------------

SQUARE = Given(lambda t, x: x.square())  # x' = x^2 is infinite at t = 1 / x(0)


def test_runs_are_compared_up_to_the_last_time_that_both_reached() -> None:
    mu, nu = of.Particles([[0.5]]), of.Particles([[1.2]])
    run = coupled(mu, nu, SQUARE, of.Dopri5(), t1=1.5, save_at=[0.25, 0.5, 1.0, 1.5])
    assert run.status == "blow_up"
    assert run.ts.tolist() == [0.25, 0.5]
    gap = [1 / (1 / 1.2 - t) - 1 / (2 - t) for t in (0.25, 0.5)]
    assert run.distances.tolist() == pytest.approx(gap, rel=1e-4)


def test_members_of_a_family_that_broke_off_have_no_distance() -> None:
    family = of.Particles([[[1.2]], [[0.6]]])
    run = coupled(
        of.Particles([[0.5]]),
        family,
        SQUARE,
        of.RK4(),
        t1=1.5,
        dt=0.125,
        save_at=[0.5, 1.5],
    )
    assert run.status.tolist() == ["blow_up", "ok"]
    assert repr(run).endswith("status blow_up)")
    assert run.distances.isnan().tolist() == [[False, False], [True, False]]


# --- wrong input ---------------------------------------------------------------------------------------


def refused(message: str, mu: Any, nu: Any, **options: Any) -> None:
    with pytest.raises(of.InputError, match=message):
        coupled(mu, nu, DECAY, of.RK4(), **RUN, **options)


def test_equal_measures_are_refused() -> None:
    mu, nu = pair()
    refused("at distance 0", mu, mu)
    refused("at distance 0", mu, of.Particles(torch.stack([nu.x, mu.x])))


def test_labels_that_do_not_match_are_refused() -> None:
    x = normal(2, 2)
    refused("mass of label", of.Particles(x, label=[0, 1]), of.Particles(x + 1, label=[0, 2]))
    refused("only one of the measures has labels", of.Particles(x, label=[0, 1]), of.Particles(x + 1))


@pytest.mark.parametrize("p", [0.5, math.nan, "two"])
def test_orders_that_are_none_are_refused(p: Any) -> None:
    refused("the order of a distance", *pair(), p=p)


def test_gaussians_have_only_the_order_two() -> None:
    bells = of.Gaussian([0.0], root=[[1.0]]), of.Gaussian([1.0], root=[[1.0]])
    refused("only particles have distances of any order", *bells, p=3.0)


def test_what_is_no_measure_or_no_noise_is_refused() -> None:
    mu, nu = pair()
    refused("mu0", mu.x, nu)
    refused("nu0", mu, nu.x)
    refused("noise", mu, nu, noise=0.3)


def test_clouds_that_cannot_be_compared_are_refused() -> None:
    mu, nu = pair()
    refused("nu0.d = 1: mu0 is in dimension 2", mu, of.Particles(nu.x[:, :1]))
    refused("its batch must extend that of mu0", of.Particles(torch.stack([mu.x, mu.x])), nu)
    refused("it is not of the kind of mu0", mu, of.Gaussian([0.0, 0.0], root=np.eye(2)))
    few = of.Particles(nu.x[:3])
    with pytest.raises(of.InputError, match="cannot share the noise of each token"):
        coupled(mu, few, DECAY, of.Euler(), **RUN, noise=of.IndependentNoise(0.1, rng=0))


def test_adaptive_steps_do_not_go_with_noise() -> None:
    with pytest.raises(of.InputError, match="noise needs a fixed step"):
        coupled(*pair(), DECAY, of.Dopri5(), t1=1.0, noise=of.CommonNoise(0.1, rng=0))
