"""Deferred imports: a package loads a name when it is first asked for, so that no part loads all others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def deferred(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for `package` that finds `name` in the module ``homes[name]`` and keeps it.

    >>> load = deferred("otflow.steppers", {"JKO": "otflow.steppers.jko"})
    >>> load("JKO").__name__
    'JKO'
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
