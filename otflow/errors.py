"""Errors that otflow raises, all of them kinds of `OtflowError`."""

from otflow.base.errors import (
    ConvergenceError,
    DerivativeError,
    FlowError,
    InputError,
    MissingExtraError,
    NotFiniteError,
    OtflowError,
    PartialError,
    StepError,
    UnknownBoundError,
)

__all__ = [
    "ConvergenceError",
    "DerivativeError",
    "FlowError",
    "InputError",
    "MissingExtraError",
    "NotFiniteError",
    "OtflowError",
    "PartialError",
    "StepError",
    "UnknownBoundError",
]
