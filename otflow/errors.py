"""Exceptions of otflow. Each one says what was wrong, with which value, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otflow.trajectory import Trajectory


class OtflowError(Exception):
    """Base class of everything that otflow raises on purpose."""


class InputError(OtflowError, ValueError):
    """An argument that makes no sense: the message names it, its value and the remedy."""


class ConvergenceError(OtflowError, RuntimeError):
    """An inner solver missed its tolerance; ``result`` is the best answer that it has."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class StepError(OtflowError, RuntimeError):
    """A step that cannot be taken (say, beyond a CFL limit); ``status`` says of which kind."""

    def __init__(self, message: str, status: str = "degenerate") -> None:
        super().__init__(message)
        self.status = status


class FlowError(OtflowError, RuntimeError):
    """A run that did not end well; ``trajectory`` holds everything computed until then."""

    def __init__(self, message: str, trajectory: Trajectory) -> None:
        super().__init__(message)
        self.trajectory = trajectory


class MissingExtraError(OtflowError, ImportError):
    """An optional dependency is not installed; the message gives the pip line."""
