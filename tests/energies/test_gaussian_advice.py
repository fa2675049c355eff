"""Energies of Gaussians in the plane and in space are right, or name a tolerance for which they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from torch import Tensor

import otflow as of
from tests.energies.bumps import Function, bump

OBLIQUE = np.array([1.0, 2.0, -1.5])
Truth = tuple[float, np.ndarray, np.ndarray]  # E[U], and its slopes in mean and root, at the standard law


def ridge(d: int, f: Callable[[Tensor], Tensor], value: float, first: float, second: float) -> Any:
    """f(e.x), with the means of f and of its first two derivatives."""
    e = OBLIQUE[:d] / np.linalg.norm(OBLIQUE[:d])
    direction = torch.from_numpy(e)
    return (lambda x: f(x @ direction)), (value, first * e, second * np.outer(e, e))


def hill(d: int, width: float, centre: float) -> tuple[Function, Truth]:
    """With v = 1 + w^2: E = (w^2 / v)^(d/2) exp(-|c|^2 / 2v), slopes E c / v and E (cc^T / v^2 - I / v)."""
    v, c = 1 + width**2, np.full(d, centre)
    value = (width**2 / v) ** (d / 2) * math.exp(-c @ c / (2 * v))
    return bump(width, centre), (value, value * c / v, value * (np.outer(c, c) / v**2 - np.eye(d) / v))


def ball(d: int) -> tuple[Function, Truth]:
    value, outer = chi2(d).cdf(1), chi2(d + 2).cdf(1)  # E[1_B |z|^2] = d P(chi2(d + 2) < 1)
    U = lambda x: (x.square().sum(-1) < 1).to(x.dtype)  # noqa: E731
    return U, (value, np.zeros(d), (outer - value) * np.eye(d))


def maximum(d: int) -> tuple[Function, Truth]:
    """E[grad U z^T] = E[1_i z_j]: on average the largest is E max, and others share the opposite of it."""
    value = {2: 1.0, 3: 1.5}[d] / math.sqrt(math.pi)
    root = value / d * (np.eye(d) - (1 - np.eye(d)) / (d - 1))
    return (lambda x: x.amax(-1)), (value, np.full(d, 1 / d), root)


CASES: dict[str, Callable[[int], tuple[Function, Truth]]] = {
    "bump": lambda d: hill(d, 0.05, 0.0),
    "bump off the middle": lambda d: hill(d, 0.05, 0.3),
    "narrow bump": lambda d: hill(d, 0.005, 0.3),
    "half space": lambda d: ridge(
        d, lambda s: (s > 0.3).to(s.dtype), norm.sf(0.3), norm.pdf(0.3), 0.3 * norm.pdf(0.3)
    ),
    "relu": lambda d: ridge(
        d, lambda s: torch.relu(s - 0.5), norm.pdf(0.5) - 0.5 * norm.sf(0.5), norm.sf(0.5), norm.pdf(0.5)
    ),
    "ball": ball,
    "maximum": maximum,
    "moduli": lambda d: (
        lambda x: x.abs().sum(-1),
        (d * math.sqrt(2 / math.pi), np.zeros(d), math.sqrt(2 / math.pi) * np.eye(d)),
    ),
}
QUICK = {(2, name) for name in CASES if name != "ball"}


def followed(make: Callable[[float], of.Energy], ask: Callable[[of.Energy], Any]) -> tuple[Any, float]:
    """The answer, by the tolerance that the refusal names if there is one, and that tolerance."""
    try:
        return ask(make(1e-6)), 1e-6
    except of.InputError as refused:
        rtol = float(str(refused).partition("pass rtol=")[2].split()[0].rstrip(","))
    assert 1e-6 < rtol <= 0.1
    return ask(make(rtol)), rtol


@pytest.mark.parametrize(
    ("d", "name"),
    [
        pytest.param(d, name, marks=() if (d, name) in QUICK else pytest.mark.slow, id=f"{name}-{d}")
        for d in (2, 3)
        for name in CASES
    ],
)
def test_an_answer_is_given_or_the_tolerance_named_gives_it(d: int, name: str) -> None:
    U, (value, in_mean, in_root) = CASES[name](d)
    mu = of.Gaussian(np.zeros(d), root=np.eye(d))
    make = lambda rtol: of.Potential(U, rtol=rtol)  # noqa: E731
    found, rtol = followed(make, lambda F: F(mu).item())
    assert found == pytest.approx(value, rel=rtol)
    slope, rtol = followed(make, lambda F: F.differential(mu))
    # Relative to E|(U - c) h|, where |h| = |z_i| or |z_i z_j - (i = j)| is a few at most where U is large.
    np.testing.assert_allclose(slope[0], in_mean, rtol=0, atol=4 * rtol * value)
    np.testing.assert_allclose(slope[1], in_root, rtol=0, atol=4 * rtol * value)


def test_narrow_bumps_are_found_in_several_places_and_under_each_law_of_a_batch() -> None:
    near, far = bump(0.005, 0.3), bump(0.005, -1.0)
    mu = of.Gaussian(np.array([[0.0, 0.0], [0.2, -0.1], [0.3, 0.3]]), root=np.stack([np.eye(2)] * 3))
    v, places = 1 + 0.005**2, (np.full(2, 0.3), np.full(2, -1.0))
    masses = [[np.exp(-((c - m) @ (c - m)) / (2 * v)) for c in places] for m in mu.mean.numpy()]
    exact = 0.005**2 / v * np.sum(masses, -1)
    assert of.Potential(lambda x: near(x) + far(x))(mu).tolist() == pytest.approx(exact.tolist(), rel=1e-6)


@pytest.mark.thorough
def test_a_bump_that_the_slope_finds_is_in_the_value_too() -> None:
    """On a floor the values at the first points differ by 1e-9 only, but their slopes in nothing else."""
    c, w = np.array([1.3, 0.7]), 0.05
    peak = bump(w, torch.from_numpy(c))
    F, mu = of.Potential(lambda x: 1 + 100 * peak(x)), of.Gaussian(np.zeros(2), root=np.eye(2))
    hidden = 100 * w**2 / (1 + w**2) * math.exp(-c @ c / 2 / (1 + w**2))
    assert F(mu).item() == pytest.approx(1 + hidden, rel=1e-6)  # was 1
    np.testing.assert_allclose(F.differential(mu)[0], hidden * c / (1 + w**2), rtol=2e-6)
