"""The frame of an experiment: how large it is, how far it has come, what it hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from otflow.reproduce.claim import Result

Progress: TypeAlias = Callable[[float, str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Frame:
    """What an experiment is run in.

    `quick` asks for a rough version that takes seconds. `stage(fraction, message)` says how much is done and
    what comes next; it may be called often.

    >>> from otflow.reproduce.frame import Frame
    >>> frame = Frame(quick=True)
    >>> seeds, steps = frame.size(quick=(3, 10), full=(12, 20))
    >>> frame.stage(0.5, f"{seeds} seeds")
    """

    quick: bool = False
    stage: Progress = lambda fraction, message: None

    def size(self, quick: T, full: T) -> T:
        """One of the two, by what was asked for."""
        return quick if self.quick else full


class Experiment(Protocol):
    """A module whose docstring is its text on the page (first line: the title) and that can run."""

    __doc__: str | None

    def run(self, frame: Frame) -> Result:
        """Compute, and hand back claims, figures and data."""
