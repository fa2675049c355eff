"""The adversary finds what linear algebra says is there, and nothing beats it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from torch import Tensor

import otflow as of
from otflow.stability.adversary import adversary, dual
from otflow.stability.coupled import coupled
from otflow.stability.perturbations import perturbations
from otflow.stability.propagator import Propagator
from otflow.transport.comparable import power_mean
from otflow.transport.exact.conditional import conditional_wasserstein
from tests.samples import DECAY, Given, Linear, normal, unit

M = np.array([[0.3, 1.0], [-0.4, -0.6]])
RUN: dict[str, Any] = {"t1": 1.0, "dt": 0.1}


def matrices(members: int, scale: float, count: int, seed: int) -> list[Tensor]:
    return [torch.from_numpy(scale * normal(members, 2, 2, seed=seed + i)) for i in range(count)]


def largest(mu: of.Particles, field: of.VelocityField) -> Tensor:
    """The largest singular value of the whole matrix, by numpy."""
    J = Propagator(mu, field, of.RK4(), **RUN).matrix()
    root = mu.w.sqrt().repeat_interleave(mu.d, -1)
    scaled = (J * root[..., :, None] / root[..., None, :]).numpy()
    return torch.from_numpy(np.linalg.svd(scaled, compute_uv=False)[..., 0])


def configurations(kind: str, members: int) -> tuple[of.Particles, of.VelocityField]:
    small = kind in ("unnormalised", "sinkhorn")
    W = matrices(members, 0.25 if small else 0.8, 6, seed=10)
    mu = of.Particles(
        (0.5 if small else 1.0) * normal(members, 5, 2), label=np.arange(5) if kind == "causal" else None
    )
    fields: dict[str, Callable[[], of.VelocityField]] = {
        "softmax": lambda: of.SoftmaxAttention(*W[:3]),
        "l2": lambda: of.L2Attention(*W[:3]),
        "sigmoid": lambda: of.SigmoidAttention(*W[:3]),
        "unnormalised": lambda: of.UnnormalisedAttention(*W[:3]),
        "multi-head": lambda: of.MultiHead([of.SoftmaxAttention(*W[:3]), of.SoftmaxAttention(*W[3:])]),
        "causal": lambda: of.SoftmaxAttention(*W[:3], causal=True),
        "sinkhorn": lambda: of.SinkhornAttention(W[0], W[1], W[2], of.Sinkhorn(1.0, tol=1e-11)),
    }
    return mu, fields[kind]()


KINDS = ("softmax", "l2", "sigmoid", "unnormalised", "multi-head", "causal", "sinkhorn")


@pytest.mark.thorough
@pytest.mark.slow(but_for=["sigmoid", "causal"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_reaches_the_linearised_constant_on_random_configurations(kind: str) -> None:
    mu, field = configurations(kind, 20 if kind == "sinkhorn" else 500)
    size = 1e-6 * mu.x.norm(dim=-1).amax(-1)
    worst, s = adversary(mu, field, of.RK4(), **RUN, size=size), largest(mu, field)
    assert ((worst.ratio >= 0.9 * s).double().mean() >= 0.95).item()
    assert torch.allclose(worst.linearised, s, rtol=1e-5)
    assert all(bool((r <= worst.ratio).all()) for r in worst.observed.values())
    distance = of.wasserstein if mu.label is None else conditional_wasserstein
    assert torch.allclose(distance(mu, worst.nu0), size, rtol=1e-6)


def test_the_ratio_is_what_coupled_runs_show() -> None:
    mu, field = of.Particles(normal(4, 2), [0.1, 0.2, 0.3, 0.4]), Linear(M)
    worst = adversary(mu, field, of.RK4(), **RUN, size=0.2, p=3.0)
    run = coupled(mu, worst.nu0, field, of.RK4(), **RUN, p=3.0)
    assert worst.ratio.item() == pytest.approx(run.final.item(), rel=1e-10)
    assert run.start.item() == pytest.approx(0.2, rel=1e-8)
    assert worst.exponents.item() == pytest.approx(math.log(worst.ratio.item()), rel=1e-12)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0, math.inf])
def test_tokens_on_their_own_grow_by_the_norm_of_the_exponential(p: float) -> None:
    mu = of.Particles(normal(3, 2), [0.5, 0.2, 0.3])
    worst = adversary(mu, Linear(M), of.RK4(), **RUN, size=1e-3, p=p)
    norm = np.linalg.norm(expm(M), 2)
    assert worst.ratio.item() == pytest.approx(norm, rel=1e-5)
    assert worst.linearised.item() == pytest.approx(norm, rel=1e-5)
    assert worst.residual.item() <= 1e-3


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_large_clouds_are_searched_without_the_whole_matrix(p: float) -> None:
    mu = of.Particles(normal(40, 2))
    worst = adversary(mu, Linear(M), of.RK4(), t1=1.0, dt=0.25, size=1e-4, p=p)
    assert worst.ratio.item() == pytest.approx(np.linalg.norm(expm(M), 2), rel=2e-3)
    assert worst.ratio.item() == pytest.approx(worst.linearised.item(), rel=2e-3)


# --- other orders: without scores, x_i(t) = x_i(0) + E mean with E = exp(tV) - I -----------------------


def circle(count: int = 721) -> np.ndarray:
    a = np.linspace(0, 2 * np.pi, count)
    return np.stack([np.cos(a), np.sin(a)])


def mean_field(V: np.ndarray) -> of.VelocityField:
    zero = np.zeros((2, 2))
    return of.SoftmaxAttention(zero, zero, V)


@pytest.mark.parametrize("w", [[0.25] * 4, [0.1, 0.2, 0.3, 0.4]])
def test_for_order_one_a_single_token_is_worst(w: list[float]) -> None:
    V = 2 * M
    E = expm(V) - np.eye(2)
    grid = circle()
    exact = max(
        np.linalg.norm((np.eye(2) + wi * E) @ grid, axis=0)[k]
        + (1 - wi) * np.linalg.norm(E @ grid, axis=0)[k]
        for wi in w
        for k in range(grid.shape[1])
    )
    worst = adversary(of.Particles(normal(4, 2), w), mean_field(V), of.RK4(), **RUN, size=1e-4, p=1.0)
    assert worst.ratio.item() == pytest.approx(exact, rel=2e-3)
    assert int(((worst.nu0.x - of.Particles(normal(4, 2)).x).abs().amax(-1) > 0).sum()) == 1


def test_for_order_infinity_all_tokens_move_equally_far() -> None:
    V, n = 2 * M, 4
    E = expm(V) - np.eye(2)
    grid = circle(181)
    one, rest = (np.eye(2) + E / n) @ grid, (n - 1) / n * E @ grid
    exact = np.linalg.norm(one[:, :, None] + rest[:, None, :], axis=0).max()
    mu = of.Particles(normal(n, 2))
    worst = adversary(mu, mean_field(V), of.RK4(), **RUN, size=1e-4, p=math.inf)
    assert worst.ratio.item() == pytest.approx(exact, rel=2e-3)
    moves = (worst.nu0.x - mu.x).norm(dim=-1)
    assert torch.allclose(moves, torch.full_like(moves, 1e-4), rtol=1e-6)


@pytest.mark.parametrize("p", [1.0, 1.5, 3.0, math.inf])
def test_no_random_direction_beats_the_linearised_constant(p: float) -> None:
    mu, field = configurations("causal", 6)
    worst = adversary(mu, field, of.RK4(), **RUN, size=1e-6, p=p)
    u = torch.from_numpy(
        normal(2000, 6, 5, 2, seed=4) * np.random.default_rng(3).choice([1.0, 10.0, 0.0], (2000, 6, 5, 1))
    )
    J = Propagator(mu, field, of.RK4(), **RUN).matrix()
    images = (J @ u.flatten(-2)[..., None])[..., 0].reshape(u.shape)
    growth = power_mean(images.norm(dim=-1), mu.w, p) / power_mean(u.norm(dim=-1), mu.w, p)
    growth = torch.where(torch.isfinite(growth), growth, 0.0)
    assert bool((growth.amax(0) <= worst.linearised * 1.005).all())
    assert bool((worst.ratio >= 0.99 * worst.linearised).all())


@pytest.mark.parametrize("p", [1.0, 1.3, 2.0, 7.0, math.inf])
def test_the_duality_map_attains_the_norm(p: float) -> None:
    q = math.inf if p == 1 else 1.0 if math.isinf(p) else p / (p - 1)
    u, w = torch.from_numpy(normal(3, 6, 2)), torch.from_numpy(np.array([0.1, 0.1, 0.2, 0.2, 0.25, 0.15]))
    u[1, 2] = 0.0
    z = dual(u, w, p)
    assert torch.allclose((w[:, None] * z * u).sum((-1, -2)), power_mean(u.norm(dim=-1), w, p))
    assert torch.allclose(power_mean(z.norm(dim=-1), w, q), torch.ones(3, dtype=torch.float64))
    assert torch.equal(dual(torch.zeros_like(u), w, p), torch.zeros_like(u))


# --- beyond the linear regime --------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_large_perturbation_is_improved_uphill() -> None:
    # x' = x - x^3 on a line: tokens near 0 are driven apart, so a large perturbation crosses 0.
    well = Given(lambda t, x: x - x**3)
    mu = of.Particles([[0.4], [1.0]])
    run: dict[str, Any] = {"t1": 3.0, "dt": 0.05, "size": 0.5}
    still, moved = (adversary(mu, well, of.RK4(), **run, rounds=k) for k in (1, 10))
    assert moved.ratio.item() >= still.ratio.item() >= max(r.item() for r in still.observed.values())
    grid = np.linspace(0, 2 * np.pi, 721)
    offsets = torch.from_numpy(0.5 * math.sqrt(2) * np.stack([np.cos(grid), np.sin(grid)], -1))[..., None]
    scan = coupled(mu, mu.at([mu.x + offsets]), well, of.RK4(), t1=3.0, dt=0.05, save_at=[3.0])
    assert moved.ratio.item() >= 0.98 * scan.final[scan.start > 0.49].max().item()


def test_tokens_that_have_met_are_matched_anew() -> None:
    mu = of.Particles([[-1.0], [1.0]])
    worst = adversary(mu, DECAY, of.RK4(), t1=8.0, dt=0.1, size=3.0)
    assert worst.ratio.item() == pytest.approx(math.exp(-8), rel=1e-3)
    assert worst.ratio.item() <= worst.linearised.item() * (1 + 1e-9)


def test_a_perturbation_that_blows_up_is_infinitely_worse() -> None:
    worst = adversary(of.Particles([[0.6]]), Given(lambda t, x: x**3), of.RK4(), t1=1.3, dt=0.05, size=0.2)
    assert worst.ratio.item() == math.inf
    assert worst.nu0.x.item() == pytest.approx(0.8)
    assert math.isfinite(worst.linearised.item())


def test_on_a_sphere_tokens_stay_on_it() -> None:
    mu = of.Particles(unit(4, 3), space=of.Sphere())
    A = 2 * np.eye(3)
    worst = adversary(mu, of.SoftmaxAttention(A, np.eye(3), -np.eye(3)), of.RK4(), **RUN, size=1e-4)
    assert torch.allclose(worst.nu0.x.norm(dim=-1), torch.ones(4, dtype=torch.float64), atol=1e-14)
    assert worst.ratio.item() == pytest.approx(worst.linearised.item(), rel=1e-3)


# --- what a user may add -------------------------------------------------------------------------------


def test_tries_are_compared_and_may_win() -> None:
    step = Given(lambda t, x: torch.where(x > 5, x, torch.zeros_like(x)))  # only beyond 5 does anything grow
    mu = of.Particles([[0.0], [1.0]])
    far = of.Particles([[0.0], [6.0]])
    worst = adversary(mu, step, of.RK4(), **RUN, size=0.1, tries={"far": far})
    assert torch.equal(worst.nu0.x, far.x)
    assert worst.ratio.item() == worst.observed["far"].item()
    assert worst.ratio.item() == pytest.approx((6 * math.e - 1) / 5, rel=1e-4)
    assert "random" in worst.observed


@pytest.mark.thorough
def test_a_batch_takes_the_best_for_each_member() -> None:
    mu, field = configurations("softmax", 4)
    tries = perturbations(mu, 0.3, rng=8)
    worst = adversary(mu, field, of.RK4(), **RUN, size=0.3, tries={f"my {k}": v for k, v in tries.items()})
    assert worst.ratio.shape == (4,)
    assert {"my random", "random"} <= set(worst.observed)
    final = coupled(mu, worst.nu0, field, of.RK4(), **RUN).final
    assert torch.allclose(final, worst.ratio, rtol=1e-9)
    assert repr(worst) == f"Adversary(ratio=(4,), p=2, {len(worst.observed)} families tried)"


@pytest.mark.parametrize(
    "bad",
    [
        of.Particles([[0.0], [1.0], [2.0]]),
        of.Particles([[0.0], [2.0]], [0.4, 0.6]),
        of.Particles([[0.0], [2.0]], label=[0, 1]),
    ],
)
def test_tries_with_other_tokens_are_refused(bad: of.Particles) -> None:
    with pytest.raises(of.InputError, match="with their weights and labels"):
        adversary(of.Particles([[0.0], [1.0]]), DECAY, of.RK4(), **RUN, size=0.1, tries={"bad": bad})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"p": 0.5}, "the order of a distance"),
        ({"size": 0.0}, "a distance > 0"),
        ({"stepper": of.Dopri5()}, "use RK4"),
        ({"rounds": 0}, "rounds"),
        ({"tries": {"same": of.Particles([[0.0], [1.0]])}}, "at distance 0"),
        ({"mu0": of.Gaussian([0.0], root=[[1.0]])}, "Particles is needed"),
        ({"mu0": of.Particles([[0.0], [1.0]], [0.0, 1.0])}, "without mass"),
    ],
)
def test_wrong_input_is_refused(wrong: dict[str, Any], message: str) -> None:
    right = {"mu0": of.Particles([[0.0], [1.0]]), "field": DECAY, "stepper": of.RK4(), **RUN, "size": 0.1}
    with pytest.raises(of.InputError, match=message):
        adversary(**{**right, **wrong})
