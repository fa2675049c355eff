"""Token systems of the literature, one module each, on top of `flow`: closed forms, predictors, pictures."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = [
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


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        have = ", ".join(__all__)
        raise AttributeError(f"module 'otflow.systems' has no attribute {name!r}; it has {have}", name=None)
    return importlib.import_module(f"otflow.systems.{name}")
