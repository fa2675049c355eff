"""Limits of laws in single precision: their flow is followed in double, if the field takes that.

The tolerances of a limit, on steps and on what counts as rest, are below the rounding of single precision.
"""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from otflow.base.errors import InputError
from otflow.energies import Energy
from otflow.fields import VelocityField
from otflow.fields.weights import Weight
from otflow.measures import Gaussian


def in_double(field: VelocityField, mu: Gaussian) -> tuple[VelocityField, Gaussian]:
    """Field and law in double precision; as they are where a function insists on its own."""
    if mu.dtype == torch.float64:
        return field, mu
    wide, nu = _doubled(field), mu.at([c.double() for c in mu.coords])
    try:
        wide.evaluate(torch.zeros(mu.batch, dtype=torch.float64, device=mu.device), nu)
    except (RuntimeError, TypeError, InputError):
        return field, mu
    return wide, nu


def _doubled(value: Any) -> Any:
    """A copy of a field with every tensor in it, at any depth, in double precision."""
    if isinstance(value, Tensor):
        return value.double() if value.dtype == torch.float32 else value
    if type(value) in (tuple, list):
        return type(value)(_doubled(one) for one in value)
    if not isinstance(value, VelocityField | Weight | Energy):
        return value
    other = copy.copy(value)
    for name, one in vars(value).items():
        own = isinstance(one, MethodType) and one.__self__ is value
        vars(other)[name] = MethodType(one.__func__, other) if own else _doubled(one)
    return other
