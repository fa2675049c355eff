"""Hard input, by number: 61, energies on Gaussians that fixed Gauss-Hermite rules got wrong without a word.

32 points on the line, 24 per axis in the plane and 12 in space; what these gave is said in each test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

import otflow as of

STANDARD = of.Gaussian([0.0], root=[[1.0]])


def first(x: Tensor) -> Tensor:
    return x[..., 0]


def push(F: of.Energy, mu: of.Gaussian) -> float:
    """The velocity of the mean."""
    return float(of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[0][..., 0])


def test_61_a_bump_of_width_one_twentieth_is_not_overlooked() -> None:
    w, mu = 0.05, of.Gaussian([0.1], root=[[1.0]])
    F = of.Potential(lambda x: torch.exp(-first(x).square() / (2 * w**2)))
    assert F(STANDARD).item() == pytest.approx(w / math.sqrt(1 + w**2), rel=1e-10)  # was 1.1e-7
    value = w / math.sqrt(1 + w**2) * math.exp(-0.01 / (2 + 2 * w**2))
    assert push(F, mu) == pytest.approx(value * 0.1 / (1 + w**2), rel=1e-9)


def test_61_an_indicator_has_the_mass_of_its_set_and_a_slope() -> None:
    F = of.Potential(lambda x: (first(x) > 0.3).to(x.dtype))
    assert F(STANDARD).item() == pytest.approx(norm.sf(0.3), rel=1e-10)  # was off by 17 %
    assert push(F, STANDARD) == pytest.approx(-norm.pdf(0.3), rel=1e-10)  # was 0


def test_61_a_kink_in_the_tail_costs_no_digits() -> None:
    F = of.Potential(lambda x: torch.relu(first(x) - 2))
    assert F(STANDARD).item() == pytest.approx(norm.pdf(2) - 2 * norm.sf(2), rel=1e-10)  # was off by 9 %
    assert push(F, STANDARD) == pytest.approx(-norm.sf(2), rel=1e-10)


def test_61_the_mean_modulus_is_right() -> None:
    F = of.Potential(lambda x: first(x).abs())
    assert F(STANDARD).item() == pytest.approx(math.sqrt(2 / math.pi), rel=1e-12)  # was off by 1.3 %
    assert push(F, of.Gaussian([0.2], root=[[1.0]])) == pytest.approx(1 - 2 * norm.cdf(0.2), rel=1e-10)


def test_61_what_has_no_expectation_is_refused() -> None:
    with pytest.raises(of.InputError, match="no expectation"):  # was 1e22
        of.Potential(lambda x: torch.exp(first(x).square()))(STANDARD)


@pytest.mark.parametrize("c", [1.9957685703696924, 5.997478991596639, -0.9958, 2.0004])
def test_61_a_jump_beyond_the_last_point_of_a_piece_is_not_overlooked(c: float) -> None:
    F = of.Potential(lambda x: (first(x) > c).to(x.dtype))
    assert F(STANDARD).item() == pytest.approx(norm.sf(c), rel=1e-9)  # was off by 1 to 3 %
    assert push(F, STANDARD) == pytest.approx(-norm.pdf(c), rel=1e-8)


@pytest.mark.thorough
def test_61_laws_of_a_batch_meet_jumps_and_kinks_wherever_these_are() -> None:
    m = np.random.default_rng(61).uniform(-3, 3, 300)
    laws = of.Gaussian(m[:, None], root=np.ones((300, 1, 1)))
    jump = of.Potential(lambda x: (first(x) > 1).to(x.dtype))
    np.testing.assert_allclose(jump(laws), norm.sf(1 - m), rtol=1e-8)  # 14 were wrong
    kink = of.Potential(lambda x: torch.relu(first(x) - 1))
    exact = norm.pdf(1 - m) - (1 - m) * norm.sf(1 - m)
    np.testing.assert_allclose(kink(laws), exact, rtol=1e-8)  # 5 were


@pytest.mark.thorough
@pytest.mark.parametrize("axis", [0, 1])
def test_61_a_jump_beyond_the_last_point_of_a_line_in_the_plane_is_not_overlooked(axis: int) -> None:
    plane = of.Gaussian([0.0, 0.0], root=torch.eye(2, dtype=torch.float64))
    for c in (0.0021, 1.746, -1.7535):
        F = of.Potential(lambda x, c=c: (x[..., axis] > c).to(x.dtype))
        assert F(plane).item() == pytest.approx(norm.sf(c), rel=1e-6)


@pytest.mark.thorough
def test_61_a_wave_in_space_is_not_taken_for_another() -> None:
    mu = of.Gaussian([0.2, 0.1, -0.1], root=0.1 * torch.eye(3, dtype=torch.float64))
    F = of.Potential(lambda x: torch.cos(30 * first(x)))
    damped = math.exp(-4.5)
    assert F(mu).item() == pytest.approx(damped * math.cos(6), rel=1e-6)
    assert push(F, mu) == pytest.approx(30 * damped * math.sin(6), rel=1e-6)
    assert (
        abs(F(of.Gaussian([0.0] * 3, root=torch.eye(3, dtype=torch.float64))).item()) < 1e-6
    )  # exp(-450); was 0.24
