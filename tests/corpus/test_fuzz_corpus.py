"""Cases that the fuzzer of `tests/fuzz` found, each by what went wrong."""

from __future__ import annotations

import numpy as np

import otflow as of


def test_an_entropic_plan_is_zero_where_atoms_without_mass_meet_at_small_eps() -> None:
    """The density exp((f + g - c) / eps) overflows there, and inf times a mass of 0 was NaN."""
    x, y = np.array([[1.0, 2.0], [-1.0, 0.0]]), np.array([[1.0, 2.0], [1.0, 1.0]])
    found = of.sinkhorn(of.Particles(x, [0.0, 1.0]), of.Particles(y, [0.0, 1.0]), 0.002)
    assert found.status == "ok"
    assert np.abs(found.plan.numpy() - [[0, 0], [0, 1]]).max() < 1e-12
