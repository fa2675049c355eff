"""The rooms are found by name, and nothing else is offered."""

from __future__ import annotations

import pytest

import otflow as of

NAMES = [
    "clusters",
    "homogenized",
    "interpolation",
    "kde_modes",
    "lost_in_the_middle",
    "metastability",
    "perceptron",
    "perspective",
    "relu_flows",
]


def test_the_rooms_are_listed_and_load() -> None:
    assert dir(of.papers) == NAMES
    for name in NAMES:
        module = getattr(of.papers, name)
        assert all(hasattr(module, public) for public in module.__all__)


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'perspectiv'; it has clusters, .*perspective"):
        of.papers.perspectiv  # noqa: B018
