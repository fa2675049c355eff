"""Ties between merges, where pairs alone say little, and gaps and masses of any size."""

from __future__ import annotations

import math

import pytest

from otflow.papers.metastability import merge_point, merge_time, slow_flow, staircase


@pytest.mark.parametrize("normalised", [False, True])
def test_the_first_jump_of_equal_gaps_is_late_by_a_factor_of_two(normalised: bool) -> None:
    """A triple merge, which pairs do not see; what comes after it is decided by rounding."""
    steps = staircase([0.0, 0.6, 1.2], 200.0, normalised=normalised)
    run = slow_flow([0.0, 0.6, 1.2], 200.0, normalised=normalised)
    assert steps.margins[0].item() < 1e-9
    assert run.merges[0].log_t - steps.log_t[0].item() == pytest.approx(math.log(2), abs=0.005)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_light_cluster_between_heavy_ones_is_late_by_more_but_within_the_bound(normalised: bool) -> None:
    """With the light one at rest, gaps close at a share q / (p + q) of the speed, or 1 / (1 + (p/q)^2)."""
    p, q = 0.45, 0.1
    steps = staircase([0.0, 0.6, 1.2], 40.0, [p, q, p], normalised=normalised)
    run = slow_flow([0.0, 0.6, 1.2], 40.0, masses=[p, q, p], normalised=normalised)
    late = math.exp(run.merges[0].log_t - steps.log_t[0].item())
    assert steps.margins[0].item() < 1e-9
    assert 2.5 < late < 1.01 * (1 + (p / q) ** 2 if normalised else (p + q) / q)


def test_small_gaps_close_in_the_time_of_a_parabola() -> None:
    gaps = [1e-300, 1e-200, 1e-155, 1e-100, 1e-8]
    for normalised, rate in ((False, 0.5), (True, 1.0)):
        log_T = merge_time(gaps, 60.0, [0.2, 0.3], normalised=normalised)
        assert log_T.tolist() == pytest.approx([math.log(math.log(2) / 2 / rate)] * 5, abs=1e-9)


def test_only_the_ratio_of_masses_counts_for_sa() -> None:
    for scale in (1e-300, 1e-200, 1e300):
        both = [0.3 * scale, 0.7 * scale]
        for f in (merge_time, merge_point):
            exact = f(1.2, 60.0, [0.3, 0.7], normalised=True).item()
            assert f(1.2, 60.0, both, normalised=True).item() == pytest.approx(exact, rel=1e-14)
        slower = merge_time(1.2, 60.0, both) - merge_time(1.2, 60.0, [0.3, 0.7])
        assert slower.item() == pytest.approx(-math.log(scale), rel=1e-13)
