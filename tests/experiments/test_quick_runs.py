"""Experiments that state theorems: every claim holds, nothing is said twice, no axes are empty."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from otflow.experiments import (
    aggregation,
    gradient_flows,
    how_smooth,
    jko_ou,
    masked_stability,
    mean_field_limit,
    stability,
)
from otflow.experiments.base import Result, Verdict

MODULES = (aggregation, gradient_flows, how_smooth, jko_ou, masked_stability, mean_field_limit, stability)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[-1])
def test_a_quick_run_is_right(module: ModuleType, tmp_path: Path) -> None:
    fractions: list[float] = []
    result: Result = module.run(quick=True, progress=lambda f, _: fractions.append(f))
    assert fractions == sorted(fractions)
    assert all(0 <= f <= 1 for f in fractions)

    assert [claim for claim in result.claims if claim.verdict is not Verdict.HOLDS] == []
    statements = [claim.statement for claim in result.claims]
    assert len(set(statements)) == len(statements)

    for name, figure in result.figures.items():
        figure.savefig(f"{tmp_path}/{name}.svg")
        axes = figure.axes  # type: ignore[attr-defined]
        assert all(ax.lines or ax.patches or ax.collections for ax in axes)
        assert all(ax.get_title() or ax.get_xlabel() for ax in axes)

    for array in result.data.values():
        assert array.size
        assert np.isfinite(array).all()
