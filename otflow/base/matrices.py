"""Matrices that come as arguments: of the right shape, symmetric, positive, or an error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.linalg import symmetric
from otflow.base.numbers import number

# --- in the dtype in which they come: energies, metrics, measures -------------------------------------


def one_square(value: Any, name: str) -> Tensor:
    """One square matrix."""
    A = checks.tensor(value, name)
    good = A.ndim == 2 and A.shape[0] == A.shape[1] and len(A)
    checks.require(
        good,
        f"{name}.shape",
        A.shape,
        "a square matrix is needed",
        f"pass {name} of shape (d, d), such as torch.eye(d)",
    )
    return A


def squares(value: Any, name: str) -> Tensor:
    """One square matrix, or a batch of them that is not empty."""
    A = checks.tensor(value, name)
    _require_square(A, name, A.ndim >= 2 and A.shape[-1] == A.shape[-2] and 0 not in A.shape)
    return A


def _require_square(A: Tensor, name: str, good: bool) -> None:
    checks.require(
        good,
        f"{name}.shape",
        A.shape,
        "(*batch, d, d) is needed",
        f"pass {name} of shape (d, d), such as torch.eye(d)",
    )


def of_energy(A: Tensor, name: str) -> Tensor:
    """(A + A^T) / 2 of matrices that are symmetric up to 1e-6 of the largest entry of all."""
    skew = (A - A.mT).detach().abs().max().item()
    if skew > 1e-6 * A.detach().abs().max().item():
        rule = f"this energy is defined for symmetric {name} only"
        checks.fail(f"max |{name} - {name}^T|", f"{skew:.3g}", rule, _symmetrise(name))
    return symmetric(A)


def of_covariance(S: Tensor, name: str) -> Tensor:
    """(S + S^T) / 2 of covariances that are symmetric up to 1e-6 of their largest entries."""
    size = S.detach().abs().amax((-1, -2), keepdim=True)
    skew = ((S - S.mT).detach().abs() / torch.where(size > 0, size, torch.ones_like(size))).max()
    if skew > 1e-6:
        value = f"a matrix with relative asymmetry {skew.item():.2g}"
        checks.fail(name, value, "a covariance is symmetric", _symmetrise(name))
    return symmetric(S)


def semidefinite(S: Tensor, name: str, tol: float) -> Tensor:
    """``S`` itself if its eigenvalues are >= 0, down to -tol times the largest one, which is rounding."""
    values = torch.linalg.eigvalsh(S.detach())
    low = values[..., 0]
    if (low < -tol * values.abs().amax(-1)).any():
        checks.fail(f"min eigenvalue of {name}", low.min().item(), *not_semidefinite(tol))
    return S


def not_semidefinite(tol: float) -> tuple[str, str]:
    """Rule and remedy for a covariance with an eigenvalue below zero."""
    rule = f"a covariance is positive semidefinite, up to rounding of {tol:g} times the largest one"
    return rule, "pass (S + S.T) / 2 + c I with a c above minus that eigenvalue"


def _symmetrise(name: str) -> str:
    return f"pass ({name} + {name}.T) / 2 if that is what you mean"


def fitting(A: Tensor, name: str, d: int, like: Tensor) -> Tensor:
    """The matrix itself if it acts on points in dimension d, of the kind of ``like``."""
    if A.shape[-1] != d:
        checks.fail(
            f"{name}.shape", A.shape, f"the measure has dimension {d}", f"pass {name} with {d} columns"
        )
    return checks.alike(A, name, like, "the measure")


# --- in float64: closed forms --------------------------------------------------------------------------


def matrix(value: Any, name: str) -> Tensor:
    """(*batch, m, n), no axis of the matrix empty."""
    a = number(value, name)
    rule = "(*batch, m, n) with m, n >= 1 is needed"
    checks.require(
        a.ndim >= 2 and 0 not in a.shape[-2:],
        f"{name}.shape",
        a.shape,
        rule,
        f"pass {name}[:, None] for one column, or {name}[None] for one row",
    )
    return a


def square(value: Any, name: str) -> Tensor:
    """(*batch, d, d); the batch may be empty."""
    a = matrix(value, name)
    _require_square(a, name, a.shape[-1] == a.shape[-2])
    return a


def symmetric_matrix(value: Any, name: str) -> Tensor:
    """(A + A^T) / 2 of matrices that are symmetric up to 1e-6 of their largest entries."""
    a = square(value, name)
    if unequal(a, a.mT):
        gap = (a - a.mT).abs().max().item()
        checks.fail(name, f"a matrix with asymmetry {gap:.2g}", "it must be symmetric", _symmetrise(name))
    return symmetric(a)


def unequal(a: Tensor, b: Tensor) -> bool:
    """Whether some A differs from B by more than 1e-6 of its largest entry."""
    scale = a.detach().abs().amax((-1, -2), keepdim=True)
    return bool(((a - b).detach().abs() > 1e-6 * scale).any())


def covariance(value: Any, name: str) -> Tensor:
    """A symmetric matrix with eigenvalues down to -1e-10 times the largest one, which is rounding."""
    return semidefinite(symmetric_matrix(value, name), name, 1e-10)


def positive_definite(value: Any, name: str) -> Tensor:
    """A symmetric matrix whose eigenvalues exceed 1e-14 times the largest one."""
    P = symmetric_matrix(value, name)
    values = torch.linalg.eigvalsh(P.detach())
    least, remedy = f"min eigenvalue of {name}", f"add a multiple of I: {name} + 1e-6 * torch.eye(d)"
    _beyond(values[..., 0], values.abs().amax(-1), least, "it must be symmetric and > 0", remedy)
    return P


def invertible(value: Any, name: str) -> Tensor:
    """A square matrix with singular values above 1e-14 times the largest one."""
    a = square(value, name)
    injective(a, name, "it must be invertible", f"add a multiple of I: {name} + 1e-6 * torch.eye(d)")
    return a


def injective(a: Tensor, name: str, rule: str, remedy: str) -> None:
    """Singular values above 1e-14 times the largest one."""
    s = torch.linalg.svdvals(a.detach())
    _beyond(s[..., -1], s[..., 0], f"least singular value of {name}", rule, remedy)


def _beyond(low: Tensor, high: Tensor, name: str, rule: str, remedy: str) -> None:
    # 1e-14: some forty roundings of float64; below that an inverse has no digits.
    if (low <= 1e-14 * high).any():
        checks.fail(name, low.min().item(), rule, remedy)


def fits(a: Tensor, name: str, S: Tensor, other: str) -> Tensor:
    """``a`` itself, or an error unless it has d columns and batch axes that broadcast with those of S."""
    checks.beside(a, name, S, other)
    if a.shape[-1] != S.shape[-1]:
        _clash(a, name, S, other, f"{S.shape[-1]} columns are needed")
    return broadcasting(a, a.shape[:-2], name, S, other)


def heads(value: Any, name: str, S: Tensor, other: str) -> Tensor:
    """(*batch, h, d, d): one matrix for each head."""
    a = square(value, name)
    if a.ndim < 3 or a.shape[-1] != S.shape[-1]:
        _clash(a, name, S, other, f"(*batch, heads, d, d) with d = {S.shape[-1]} is needed")
    return broadcasting(a, a.shape[:-3], name, S, other)


def vector(value: Any, name: str, S: Tensor, other: str) -> Tensor:
    """(*batch, d)."""
    v, d = number(value, name), S.shape[-1]
    good = v.ndim >= 1 and v.shape[-1] == d
    checks.require(
        good, f"{name}.shape", v.shape, f"(*batch, {d}) is needed", f"pass {name} with {d} entries"
    )
    return broadcasting(v, v.shape[:-1], name, S, other)


def time(value: Any, S: Tensor, other: str) -> Tensor:
    """t of shape (*batch), as (*batch, 1, 1)."""
    t = number(value, "t")
    return broadcasting(t, t.shape, "t", S, other)[..., None, None]


def broadcasting(a: Tensor, batch: torch.Size, name: str, S: Tensor, other: str) -> Tensor:
    """``a`` itself, or an error unless its batch axes broadcast with those of S."""
    try:
        torch.broadcast_shapes(batch, S.shape[:-2])
    except RuntimeError:
        _clash(a, name, S, other, "their batch axes do not broadcast")
    return a


def _clash(a: Tensor, name: str, S: Tensor, other: str, rule: str) -> None:
    here = f"{other} has shape {tuple(S.shape)}"
    remedy = f"pass {name} with {S.shape[-1]} columns, and the batch axes of {other} or none"
    checks.fail(f"{name}.shape", a.shape, f"{here}, and {rule}", remedy)
