"""Exceptions of otflow. Each one says what was wrong, with which value, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otflow.dynamics.trajectory import Trajectory


# What to do where a derivative has no derivative in its turn.
ONCE = "differentiate once, and take finite differences of the gradient"


class OtflowError(Exception):
    """Base class of everything that otflow raises on purpose."""


class InputError(OtflowError, ValueError):
    """An argument that makes no sense: the message names it, its value and the remedy."""


class UnknownBoundError(InputError):
    """No bound is known for a field, a space or an order; measuring is still possible."""


class MissingExtraError(OtflowError, ImportError):
    """An optional dependency is not installed; the message gives the pip line."""


class DerivativeError(OtflowError, RuntimeError):
    """A derivative that otflow cannot give; silence would be a wrong gradient."""


class PartialError(OtflowError):
    """A failure that keeps what was computed; it survives pickling, say to another process."""

    def __init__(self, message: str, kept: Any) -> None:
        super().__init__(message)
        self.kept = kept

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.kept)


class ConvergenceError(PartialError, RuntimeError):
    """An inner solver missed its tolerance; ``result`` is the best answer that it has."""

    @property
    def result(self) -> Any:
        return self.kept


class NotFiniteError(PartialError, ArithmeticError):
    """A number left the range of floating point; ``result`` is what came out."""

    @property
    def result(self) -> Any:
        return self.kept


class StepError(PartialError, RuntimeError):
    """A step that cannot be taken (say, beyond a CFL limit); ``status`` says of which kind."""

    def __init__(self, message: str, status: str = "degenerate") -> None:
        super().__init__(message, status)

    @property
    def status(self) -> str:
        return str(self.kept)


class FlowError(PartialError, RuntimeError):
    """A run that did not end well; ``trajectory`` holds everything computed until then."""

    @property
    def trajectory(self) -> Trajectory:
        return self.kept
