"""Matrices of energies: their shape, their symmetry, and whether they fit a measure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base import checks


def square(value: Any, name: str) -> Tensor:
    """One square matrix."""
    A = checks.tensor(value, name)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
        checks.fail(f"{name}.shape", tuple(A.shape), "a square matrix is needed", "pass a (d, d) matrix")
    return A


def squares(value: Any, name: str) -> Tensor:
    """One square matrix, or a batch of them."""
    A = checks.tensor(value, name)
    if A.ndim < 2 or A.shape[-1] != A.shape[-2] or 0 in A.shape:
        checks.fail(f"{name}.shape", tuple(A.shape), "(*batch, d, d) is needed", "pass a square matrix")
    return A


def symmetric(A: Tensor, name: str) -> Tensor:
    """Symmetric matrices, cleaned of rounding."""
    skew = (A - A.mT).detach().abs().max().item()
    if skew > 1e-6 * A.detach().abs().max().item():
        checks.fail(
            f"max |{name} - {name}^T|",
            f"{skew:.3g}",
            f"this energy is defined for symmetric {name} only",
            f"pass ({name} + {name}.T) / 2 if that is what you mean",
        )
    return (A + A.mT) / 2


def fitting(A: Tensor, name: str, d: int, like: Tensor) -> Tensor:
    """The matrix itself if it acts on points in dimension d, of the kind of ``like``."""
    if A.shape[-1] != d:
        checks.fail(f"{name}.shape", tuple(A.shape), f"the measure has dimension {d}", f"resize {name}")
    return checks.alike(A, name, like, "the measure")


def learns(A: Tensor) -> bool:
    """Whether a derivative in A is asked for."""
    return torch.is_grad_enabled() and A.requires_grad
