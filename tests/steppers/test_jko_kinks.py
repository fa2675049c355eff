"""Steps that end at kinks: against proximal maps in closed form, and brute force where nothing is convex."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of


def soft(x: Tensor, tau: float) -> Tensor:
    return x.sign() * (x.abs() - tau).clamp(min=0)


CONVEX: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, float], Tensor]]] = {
    "modulus": (lambda x: x.abs().sum(-1), soft),
    "relu": (lambda x: x.relu().sum(-1), lambda x, tau: torch.where(x > 0, (x - tau).clamp(min=0), x)),
    "elastic": (lambda x: (x.abs() + x.square()).sum(-1), lambda x, tau: soft(x, tau) / (1 + 2 * tau)),
    "shifted": (lambda x: 3 * (x - 0.7).abs().sum(-1), lambda x, tau: 0.7 + soft(x - 0.7, 3 * tau)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("tau", [0.05, 1.0])
@pytest.mark.parametrize("name", CONVEX)
def test_a_convex_kink_on_the_line_is_found_and_proved(name: str, tau: float) -> None:
    U, exact = CONVEX[name]
    x = torch.tensor([[0.3, -0.04, 5.0, 0.72], [0.01, -2.0, 0.7, -0.7]], dtype=torch.float64)[..., None]
    move = of.jko_step(of.Particles(x), of.Potential(U), tau)
    assert move.status.tolist() == ["ok", "ok"]
    torch.testing.assert_close(move.mu.x, exact(x, tau), rtol=1e-10, atol=1e-10)


def test_single_precision_ends_at_its_own_rounding() -> None:
    move = of.jko_step(of.Particles(torch.tensor([[0.3], [-0.2]])), of.Potential(CONVEX["modulus"][0]), 1.0)
    assert move.status == "ok"
    assert float(move.mu.x.abs().max()) < 1e-6


def test_a_kink_is_local_where_nothing_is_known_of_the_function() -> None:
    U = of.Potential(lambda x: torch.special.expm1(x.abs().sum(-1)))
    move = of.jko_step(of.Particles([[0.3]]), U, 1.0)
    assert move.status == "local"
    assert abs(float(move.mu.x)) < 1e-15


def test_a_flow_arrives_at_a_kink_and_stays() -> None:
    field = of.SteepestDescent(of.Potential(CONVEX["modulus"][0]), of.Wasserstein())
    traj = of.flow(of.Particles([[1.0]]), field, of.JKO(), t1=1.5, dt=0.3)
    assert traj.status == "ok"
    torch.testing.assert_close(traj.stacked.x[:, 0, 0], (1 - traj.ts).clamp(min=0), rtol=0, atol=1e-9)


@pytest.mark.slow(but_for=["0"])
@pytest.mark.parametrize("seed", range(4))
def test_kinks_that_are_called_ok_are_the_argmin_in_wells_too(seed: int) -> None:
    """|x - c| plus cosines: held against a grid; at a kink that is not the lowest nothing is called ok."""
    a, b, c, w = np.random.default_rng(seed).uniform([0.5, 0.5, -1, 2], [2, 2, 1, 5], (12, 4)).T
    a, b, c, w = (torch.from_numpy(v)[:, None, None] for v in (a, b, c, w))

    def U(x: Tensor) -> Tensor:
        return (a * (x - c).abs() + b * torch.cos(w * x)).sum(-1)

    x, tau = torch.from_numpy(np.random.default_rng(seed + 9).uniform(-2, 2, (12, 1, 1))), 0.7
    move = of.jko_step(of.Particles(x), of.Potential(U), tau, on_failure="return")
    z = torch.linspace(-4, 4, 200_001, dtype=torch.float64)[None, :, None].expand(12, -1, 1)
    z = torch.cat([z, c], 1)
    best = (U(z) + (z - x)[..., 0].square() / (2 * tau)).amin(-1)
    value = (U(move.mu.x) + (move.mu.x - x)[..., 0].square() / (2 * tau))[:, 0]
    ok = torch.from_numpy(move.status == "ok")
    assert set(move.status.tolist()) <= {"ok", "local", "stalled"}
    assert int(ok.sum()) >= 10
    assert bool((value[ok] <= best[ok] + 1e-8).all())


def test_the_tip_of_a_roof_is_no_minimum() -> None:
    """-|x| + x^2 / (2 tau): slopes at 0 are of the wrong signs."""
    move = of.jko_step(of.Particles([[1e-3]]), of.Potential(lambda x: -x.abs().sum(-1)), 1.0)
    assert float(move.mu.x) == pytest.approx(1.001, rel=1e-9)
