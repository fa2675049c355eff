"""The systems are found by name, and nothing else is offered."""

from __future__ import annotations

import pytest

import otflow as of

NAMES = [
    "causal",
    "clusters",
    "homogenized",
    "interpolation",
    "metastability",
    "modes",
    "perceptron",
    "relu_flows",
    "sphere",
]


def test_the_systems_are_listed_and_load() -> None:
    assert dir(of.systems) == NAMES
    for name in NAMES:
        module = getattr(of.systems, name)
        assert all(hasattr(module, public) for public in module.__all__)


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'shpere'; it has causal, .*sphere"):
        of.systems.shpere  # noqa: B018
