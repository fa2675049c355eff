"""Experiments that take no time, for the tests of the command line and of the page."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import numpy as np
from matplotlib.figure import Figure

from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.registry import Entry, Registry


def picture() -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [0, 1])
    return figure


def claim(measured: float = 1.0, **changes: str) -> Claim:
    words = {"statement": "the mass is one", "source": "Nobody 2025, Theorem 1"} | changes
    return Source(words["source"])(words["statement"]).equal(1.0, measured)


def result(*claims: Claim) -> Result:
    return Result(
        claims=claims or (claim(),), figures={"two_clouds": picture()}, data={"file": np.arange(3.0)}
    )


def good(frame: Frame) -> Result:
    frame.stage(0.5, "half way")
    return result(claim(), claim(statement="quick" if frame.quick else "thorough"))


def failing(frame: Frame) -> Result:
    return result(claim(), claim(measured=2.0))


def crashing(frame: Frame) -> Result:
    raise FloatingPointError("the cloud left the plane")


def interrupted(frame: Frame) -> Result:
    raise KeyboardInterrupt


def erratum(frame: Frame) -> Result:
    return result(Source("Nobody 2025, (7)")("the rate").erratum(printed=2.0, corrected=1.0, measured=1.0))


def unwritable(frame: Frame) -> Result:
    broken = SimpleNamespace(savefig=lambda *_, **__: 1 / 0)
    return Result(claims=[claim()], figures={"broken": broken}, data={})


RUNS = {
    "good": good,
    "failing": failing,
    "crashing": crashing,
    "interrupted": interrupted,
    "erratum": erratum,
    "unwritable": unwritable,
}


def registry(*names: str) -> Registry:
    return Registry({name: Entry(f"fake_{name}", f"The {name} experiment", "Nobody 2025") for name in names})


def modules() -> dict[str, ModuleType]:
    """Modules by the names that `registry` gives them."""
    found = {}
    for name, run in RUNS.items():
        module = ModuleType(
            f"fake_{name}", f"The {name} experiment.\n\nProse with ``code``.\n\n    x = y < z"
        )
        module.run = run  # type: ignore[attr-defined]
        found[module.__name__] = module
    return found
