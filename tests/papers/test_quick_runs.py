"""Experiments that state theorems: every claim holds, nothing is said twice, no panel is empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otflow import papers
from otflow.papers.ornstein_uhlenbeck.runs import PUBLISHED
from otflow.papers.stability_estimate.random_fields import FIELDS
from otflow.reproduce.claim import Result, Verdict
from otflow.reproduce.frame import Frame
from tests import panels


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


PANELS: dict[str, tuple[int, Callable[[Any], bool]]] = {  # how many figures, and what their axes have
    "aggregation": (1, titled),
    "clusters": (6, titled),
    "controllability": (4, pictured),
    "gradient-flows": (2, labelled),
    "homogenized": (5, titled),
    "how-smooth": (3, titled_lines),
    "interpolation": (4, titled),
    "jko-ou-benchmark": (1, titled),
    "kde-modes": (5, titled),
    "lost-in-the-middle": (5, titled),
    "masked-stability": (4, titled),
    "mean-field-limit": (3, titled),
    "metastability": (4, titled),
    "perceptron": (4, titled),
    "perspective": (5, titled),
    "relu-flows": (3, pictured),
    "stability": (2, titled_lines),
}
ERRATA: dict[str, int] = {  # how many printed statements are shown to be false
    "clusters": 1,
    "homogenized": 2,
    "interpolation": 1,
    "kde-modes": 1,
    "lost-in-the-middle": 1,
    "metastability": 2,
    "perceptron": 1,
}


@pytest.mark.slow(but_for=["jko-ou-benchmark"])
@pytest.mark.parametrize("name", PANELS)
def test_a_quick_run_is_right(name: str, tmp_path: Path) -> None:
    fractions: list[float] = []
    result: Result = papers.REGISTRY.load(name).run(Frame(True, lambda f, _: fractions.append(f)))
    assert fractions == sorted(fractions)
    assert all(0 <= f <= 1 for f in fractions)

    assert [claim for claim in result.claims if claim.verdict is Verdict.FAILS] == []
    errata = sum(claim.verdict is Verdict.ERRATUM for claim in result.claims)
    assert errata == ERRATA.get(name, 0)
    statements = [claim.statement for claim in result.claims]
    assert len(set(statements)) == len(statements)

    many, full = PANELS[name]
    assert len(result.figures) == many
    for title, figure in result.figures.items():
        figure.savefig(f"{tmp_path}/{title}.svg")
        assert all(full(ax) for ax in figure.axes)  # type: ignore[attr-defined]
        assert panels.judge(figure) == ([], [])

    for array in result.data.values():
        assert array.size
        assert np.isfinite(array).all()
    OF_ITS_OWN.get(name, lambda _: None)(result)


def every_ladder_is_in_order(result: Result) -> None:
    panels = result.figures["ladders"].axes  # type: ignore[attr-defined]
    assert [ax.get_title() for ax in panels] == list(FIELDS)
    for name in FIELDS:
        observed, worst, after, before = result.data[f"rungs-{name.replace(' ', '-')}"]
        assert observed <= worst <= after <= before


def exact_jko_has_less_than_two_thirds_of_the_published_error_in_every_dimension(result: Result) -> None:
    data = result.data
    means = dict(zip(data["dimensions"].tolist(), data["divergence_JKO"].mean(1).tolist(), strict=True))
    assert all(mean < PUBLISHED[d] / 1.5 for d, mean in means.items())


OF_ITS_OWN: dict[str, Callable[[Result], None]] = {
    "jko-ou-benchmark": exact_jko_has_less_than_two_thirds_of_the_published_error_in_every_dimension,
    "stability": every_ladder_is_in_order,
}
