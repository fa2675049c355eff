"""How smooth attention is: every claim holds, and what is measured is what is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

import otflow as of
from otflow.experiments import how_smooth as experiment
from otflow.experiments.base import Result, Verdict
from otflow.stability.local import local_constant
from otflow.stability.smoothness import adversarial_tokens


@pytest.fixture(scope="module")
def result() -> Result:
    fractions: list[float] = []
    found = experiment.run(quick=True, progress=lambda f, _: fractions.append(f))
    assert fractions == sorted(fractions)
    assert all(0 <= f <= 1 for f in fractions)
    return found


def test_every_claim_holds(result: Result) -> None:
    assert [claim for claim in result.claims if claim.verdict is not Verdict.HOLDS] == []


def test_no_two_claims_say_the_same(result: Result) -> None:
    statements = [claim.statement for claim in result.claims]
    assert len(set(statements)) == len(statements)


def test_figures_can_be_written_and_all_axes_have_something_on_them(result: Result, tmp_path: object) -> None:
    for name, figure in result.figures.items():
        figure.savefig(f"{tmp_path}/{name}.svg")
        assert all(ax.lines for ax in figure.axes)  # type: ignore[attr-defined]


def test_the_data_are_finite(result: Result) -> None:
    for array in result.data.values():
        assert array.size
        assert np.isfinite(array).all()


def test_tokens_in_a_small_ball_do_not_grow_like_the_root_of_n() -> None:
    """Scores that are one apart: sqrt(n) ends before n = 30."""
    values = experiment.merged(math.sqrt(0.5), np.array([30.0, 100.0, 300.0]), -1.0)
    assert experiment.slope([30, 100, 300], values) < 0.1


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_merged_tokens_have_the_constant_of_all_of_them(sign: float) -> None:
    field = of.SoftmaxAttention(sign * np.eye(2), np.eye(2), np.eye(2))
    for R in (1.0, 3.0):
        full = local_constant(field, adversarial_tokens(field, R, 40)).value.item()
        assert experiment.merged(R, np.array(40.0), sign).item() == pytest.approx(full, rel=1e-9)


def test_the_crossing_is_where_the_published_bounds_are_equal() -> None:
    for y in (0.3, 1.0, 2.5):
        n = experiment._crossing(y)
        left, right = math.sqrt(3 * (y**2 * (4 * n + 1) + n)), (1 + 3 * y) * math.exp(2 * y)
        assert left == pytest.approx(right, rel=1e-12)


def test_drawn_tokens_fill_the_disc() -> None:
    r = np.linalg.norm(experiment.in_disc(3.0, 400).x.numpy(), axis=-1)
    assert r.max() <= 3.0
    assert (r**2).mean() == pytest.approx(4.5, rel=0.05)  # uniform: half of R^2
