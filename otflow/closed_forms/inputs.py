"""What comes into a closed form: matrices and numbers in float64, or an error that names the shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.linalg import symmetric


def matrix(value: Any, name: str) -> Tensor:
    """(*batch, m, n) in float64, no axis of the matrix empty."""
    a = checks.tensor(value, name).double()
    if a.ndim < 2 or 0 in a.shape[-2:]:
        checks.fail(
            f"{name}.shape", tuple(a.shape), "(*batch, m, n) with m, n >= 1 is needed", "pass a matrix"
        )
    return a


def square(value: Any, name: str) -> Tensor:
    """(*batch, d, d) in float64."""
    a = matrix(value, name)
    if a.shape[-1] != a.shape[-2]:
        checks.fail(f"{name}.shape", tuple(a.shape), "(*batch, d, d) is needed", "pass a square matrix")
    return a


def symmetric_matrix(value: Any, name: str) -> Tensor:
    """(A + A^T) / 2 of a matrix that is symmetric up to 1e-6 of its largest entry."""
    a = square(value, name)
    if unequal(a, a.mT):
        gap = (a - a.mT).abs().max().item()
        remedy = f"pass ({name} + {name}.T) / 2 if that is what you mean"
        checks.fail(name, f"a matrix with asymmetry {gap:.2g}", "it must be symmetric", remedy)
    return symmetric(a)


def unequal(a: Tensor, b: Tensor) -> bool:
    """Whether some A differs from B by more than 1e-6 of its largest entry."""
    scale = a.detach().abs().amax((-1, -2), keepdim=True)
    return bool(((a - b).detach().abs() > 1e-6 * scale).any())


def covariance(value: Any, name: str) -> Tensor:
    """A symmetric matrix with eigenvalues down to -1e-10 times the largest one, which is rounding."""
    S = symmetric_matrix(value, name)
    values = torch.linalg.eigvalsh(S.detach())
    if bool((values[..., 0] < -1e-10 * values.abs().amax(-1)).any()):
        checks.fail(
            f"min eigenvalue of {name}",
            values[..., 0].min().item(),
            "a covariance is positive semidefinite, up to rounding of 1e-10 times the largest one",
            "pass a positive semidefinite matrix",
        )
    return S


def positive_definite(value: Any, name: str) -> Tensor:
    """A symmetric matrix whose eigenvalues exceed 1e-14 times the largest one."""
    P = symmetric_matrix(value, name)
    values = torch.linalg.eigvalsh(P.detach())
    if bool((values[..., 0] <= 1e-14 * values.abs().amax(-1)).any()):
        low = values[..., 0].min().item()
        checks.fail(
            f"min eigenvalue of {name}", low, "it must be symmetric and > 0", f"choose another {name}"
        )
    return P


def invertible(value: Any, name: str) -> Tensor:
    """A square matrix with singular values above 1e-14 times the largest one."""
    a = square(value, name)
    s = torch.linalg.svdvals(a.detach())
    if bool((s[..., -1] <= 1e-14 * s[..., 0]).any()):
        low = s[..., -1].min().item()
        checks.fail(f"least singular value of {name}", low, "it must be invertible", f"choose another {name}")
    return a


def fits(a: Tensor, name: str, S: Tensor, other: str) -> Tensor:
    """``a`` itself, or an error unless it has d columns and batch axes that broadcast with those of S."""
    checks.beside(a, name, S, other)
    if a.shape[-1] != S.shape[-1]:
        _clash(a, name, S, other, f"{S.shape[-1]} columns are needed")
    broadcast(a.shape[:-2], S.shape[:-2], a, name, S, other)
    return a


def heads(value: Any, name: str, S: Tensor, other: str) -> Tensor:
    """(*batch, h, d, d): one matrix for each head."""
    a = square(value, name)
    if a.ndim < 3 or a.shape[-1] != S.shape[-1]:
        _clash(a, name, S, other, f"(*batch, heads, d, d) with d = {S.shape[-1]} is needed")
    broadcast(a.shape[:-3], S.shape[:-2], a, name, S, other)
    return a


def number(value: Any, name: str) -> Tensor:
    """A number, or a tensor of numbers, in float64."""
    return checks.tensor(value, name).double()


def variance(value: Any, name: str) -> Tensor:
    """Numbers >= 0."""
    s = number(value, name)
    if bool((s < 0).any()):
        checks.fail(f"min({name})", s.min().item(), "a variance is >= 0", "pass variances")
    return s


def alongside(**named: Any) -> tuple[Tensor, ...]:
    """Numbers that broadcast with each other, as they are."""
    tensors = [number(value, name) for name, value in named.items()]
    names, shapes = ", ".join(named), [tuple(x.shape) for x in tensors]
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        checks.fail(f"shapes of {names}", shapes, "they do not broadcast", "give them equal batch axes")
    return tuple(tensors)


def time(value: Any, S: Tensor, other: str) -> Tensor:
    """t of shape (*batch), as (*batch, 1, 1)."""
    t = number(value, "t")
    broadcast(t.shape, S.shape[:-2], t, "t", S, other)
    return t[..., None, None]


def broadcast(one: torch.Size, two: torch.Size, a: Tensor, name: str, S: Tensor, other: str) -> None:
    """An error unless the two batch shapes broadcast."""
    try:
        torch.broadcast_shapes(one, two)
    except RuntimeError:
        _clash(a, name, S, other, "their batch axes do not broadcast")


def _clash(a: Tensor, name: str, S: Tensor, other: str, rule: str) -> None:
    here = f"{other} has shape {tuple(S.shape)}"
    checks.fail(f"{name}.shape", tuple(a.shape), f"{here}, and {rule}", f"change {name} or {other}")


def shown(t: Any) -> str:
    """For messages: one time, or from where to where."""
    low, high = (f"{x.item():g}" for x in torch.aminmax(number(t, "t")))
    return low if low == high else f"{low} to {high}"
