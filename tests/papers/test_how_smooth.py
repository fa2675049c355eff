"""How smooth attention is: every claim holds, and what is measured is what is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

import otflow as of
from otflow.papers.how_smooth import reproduce as experiment
from otflow.papers.how_smooth import runs
from otflow.stability.local_constant import local_constant
from otflow.stability.smoothness import adversarial_tokens


def test_tokens_in_a_small_ball_do_not_grow_like_the_root_of_n() -> None:
    """Scores that are one apart: sqrt(n) ends before n = 30."""
    values = runs.merged(math.sqrt(0.5), np.array([30.0, 100.0, 300.0]), -1.0)
    assert runs.exponent([30, 100, 300], values) < 0.1


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_merged_tokens_have_the_constant_of_all_of_them(sign: float) -> None:
    field = of.SoftmaxAttention(sign * np.eye(2), np.eye(2), np.eye(2))
    for R in (1.0, 3.0):
        full = local_constant(adversarial_tokens(field, R, 40), field).value.item()
        assert runs.merged(R, np.array(40.0), sign).item() == pytest.approx(full, rel=1e-9)


def test_the_crossing_is_where_the_published_bounds_are_equal() -> None:
    for y in (0.3, 1.0, 2.5):
        n = experiment._crossing(y)
        left, right = math.sqrt(3 * (y**2 * (4 * n + 1) + n)), (1 + 3 * y) * math.exp(2 * y)
        assert left == pytest.approx(right, rel=1e-12)


def test_drawn_tokens_fill_the_disc() -> None:
    r = np.linalg.norm(runs.in_disc(3.0, 400).x.numpy(), axis=-1)
    assert r.max() <= 3.0
    assert (r**2).mean() == pytest.approx(4.5, rel=0.05)  # uniform: half of R^2
