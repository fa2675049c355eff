"""Experiments that state theorems: every claim holds, nothing is said twice, no axes are empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from otflow.experiments import (
    aggregation,
    clusters,
    controllability,
    gradient_flows,
    homogenized,
    how_smooth,
    interpolation,
    jko_ou,
    kde_modes,
    lost_in_the_middle,
    masked_stability,
    mean_field_limit,
    metastability,
    perceptron,
    perspective,
    relu_flows,
    stability,
)
from otflow.experiments.base import Result, Verdict
from otflow.experiments.stability_cases import FIELDS


def titled(ax: Any) -> bool:
    return bool(ax.get_title() and (ax.lines or ax.collections))


def titled_lines(ax: Any) -> bool:
    return bool(ax.get_title() and ax.lines)


def labelled(ax: Any) -> bool:
    """Panels below others have no title of their own."""
    return bool((ax.get_title() or ax.get_xlabel()) and (ax.lines or ax.patches or ax.collections))


def pictured(ax: Any) -> bool:
    """Pictures count as contents, and scales of colours need a label only."""
    if ax.get_label() == "<colorbar>":
        return bool(ax.get_ylabel())
    return bool(ax.get_title() and (ax.lines or ax.collections or ax.images))


PANELS: dict[ModuleType, tuple[int, Callable[[Any], bool]]] = {  # how many figures, and what their axes have
    aggregation: (1, titled),
    clusters: (6, titled),
    controllability: (4, pictured),
    gradient_flows: (2, labelled),
    homogenized: (5, titled),
    how_smooth: (3, titled_lines),
    interpolation: (4, titled),
    jko_ou: (1, titled),
    kde_modes: (5, titled),
    lost_in_the_middle: (5, titled),
    masked_stability: (4, titled),
    mean_field_limit: (3, titled),
    metastability: (4, titled),
    perceptron: (4, titled),
    perspective: (5, titled),
    relu_flows: (3, pictured),
    stability: (2, titled_lines),
}
ERRATA: dict[ModuleType, int] = {  # how many printed statements are shown to be false
    clusters: 1,
    homogenized: 2,
    interpolation: 1,
    kde_modes: 1,
    lost_in_the_middle: 1,
    metastability: 2,
    perceptron: 1,
}


@pytest.mark.parametrize("module", PANELS, ids=lambda m: m.__name__.rpartition(".")[-1])
def test_a_quick_run_is_right(module: ModuleType, tmp_path: Path) -> None:
    fractions: list[float] = []
    result: Result = module.run(quick=True, progress=lambda f, _: fractions.append(f))
    assert fractions == sorted(fractions)
    assert all(0 <= f <= 1 for f in fractions)

    assert [claim for claim in result.claims if claim.verdict is Verdict.FAILS] == []
    errata = sum(claim.verdict is Verdict.ERRATUM for claim in result.claims)
    assert errata == ERRATA.get(module, 0)
    statements = [claim.statement for claim in result.claims]
    assert len(set(statements)) == len(statements)

    many, full = PANELS[module]
    assert len(result.figures) == many
    for name, figure in result.figures.items():
        figure.savefig(f"{tmp_path}/{name}.svg")
        assert all(full(ax) for ax in figure.axes)  # type: ignore[attr-defined]

    for array in result.data.values():
        assert array.size
        assert np.isfinite(array).all()
    OF_ITS_OWN.get(module, lambda _: None)(result)


def every_ladder_is_in_order(result: Result) -> None:
    panels = result.figures["ladders"].axes  # type: ignore[attr-defined]
    assert [ax.get_title() for ax in panels] == list(FIELDS)
    for name in FIELDS:
        observed, worst, after, before = result.data[f"rungs-{name.replace(' ', '-')}"]
        assert observed <= worst <= after <= before


def exact_jko_has_less_than_two_thirds_of_the_published_error_in_every_dimension(result: Result) -> None:
    data = result.data
    means = dict(zip(data["dimensions"].tolist(), data["divergence_JKO"].mean(1).tolist(), strict=True))
    assert all(mean < jko_ou.PUBLISHED[d] / 1.5 for d, mean in means.items())


OF_ITS_OWN: dict[ModuleType, Callable[[Result], None]] = {
    jko_ou: exact_jko_has_less_than_two_thirds_of_the_published_error_in_every_dimension,
    stability: every_ladder_is_in_order,
}
