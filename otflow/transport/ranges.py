"""Ranges of floating point: numbers that are known, asked for in a dtype that may have no room for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor

from otflow.base.errors import NotFiniteError


def lost(exact: Tensor, out: Tensor) -> Tensor:
    """Where a number other than 0 has become 0, infinite, or so small that its last digits are gone.

    >>> from otflow.transport.ranges import lost
    >>> import torch
    >>> exact = torch.tensor([1e-50, 0.0, 1.0, 1e40, 1e-40], dtype=torch.float64)
    >>> lost(exact, exact.float())
    tensor([ True, False, False,  True,  True])
    """
    limits, size = torch.finfo(out.dtype), out.detach().abs()
    inside = (size >= limits.tiny) & (size <= limits.max)
    return ~(inside | (exact.detach() == 0) | exact.detach().isnan())  # of which a status tells


def ordinary(out: Tensor) -> bool:
    """Whether all numbers are far from 0 and infinity, as they mostly are: a quick look before `lost`."""
    if not out.numel():
        return True
    low, high = torch.aminmax(out.detach().abs())
    limits = torch.finfo(out.dtype)
    return limits.tiny <= low.item() and high.item() <= limits.max


def rounded(
    exact: Tensor, dtype: torch.dtype, name: str, noise: Callable[[], Tensor] | None = None
) -> Tensor:
    """``exact`` in ``dtype``, with its derivatives; an error if that dtype has no room for it.

    Numbers within ``noise()`` of 0 have no digits to lose, and become 0 where they are too small.

    >>> from otflow.transport.ranges import rounded
    >>> import torch
    >>> rounded(torch.tensor(0.1, dtype=torch.float64), torch.float32, "cost")
    tensor(0.1000)
    """
    out, plain = exact.to(dtype), exact.detach()
    if ordinary(out) or not bool((bad := lost(exact, out)).any()):
        return out
    out, bad = _without_noise(out, bad, plain.abs() <= (noise() if noise else 0.0))
    if bool(bad.any()):
        leaves(name, f"{plain[bad][0].item():.3g}", dtype, plain)
    return out


def _without_noise(out: Tensor, bad: Tensor, quiet: Tensor) -> tuple[Tensor, Tensor]:
    """What is quiet and has become too small as 0, with its derivatives; and what is bad beyond that."""
    zero = bad & quiet & (out.detach().abs() < 1)
    return torch.where(zero, out - out.detach(), out), bad & ~zero


def squared(x: Tensor, name: str) -> Tensor:
    """x^2, with its derivatives; an error where x has a square in its dtype neither as 0 nor as a number.

    >>> from otflow.transport.ranges import squared
    >>> import torch
    >>> squared(torch.tensor([0.0, 3.0]), "cost")
    tensor([0., 9.])
    """
    out = x.square()
    if not ordinary(out) and bool((bad := lost(x, out)).any()):
        leaves(name, f"({x.detach()[bad][0].item():.3g})^2", x.dtype, x.detach())
    return out


def in_units(
    x: Tensor, unit: Tensor, power: float, dtype: torch.dtype, name: str, noise: float = 0.0
) -> Tensor:
    """x unit^power in ``dtype``, (*batch,), with its derivatives; an error if there is no room for it.

    Numbers x within ``noise`` of 0 become 0 where they are too small.

    >>> from otflow.transport.ranges import in_units
    >>> import torch
    >>> one = torch.ones((), dtype=torch.float64)
    >>> in_units(3 * one, 1e-10 * one, 2, torch.float32, "cost")
    tensor(3.0000e-20)
    """
    out = (x * unit**power).to(dtype)
    if ordinary(out) or not bool((bad := lost(x, out)).any()):
        return out
    out, bad = _without_noise(out, bad, x.detach().abs() <= noise)
    if bool(bad.any()):
        value = f"{x.detach()[bad][0].item():.3g} * {unit.expand(x.shape)[bad][0].item():.3g}^{power:g}"
        leaves(name, value, dtype, x.detach())
    return out


def matrices_in_units(x: Tensor, unit: Tensor, power: float, dtype: torch.dtype, name: str) -> Tensor:
    """x unit^power in ``dtype``, (*batch, m, n); an error if there is no room for the largest entries."""
    in_units(x.detach().abs().amax((-1, -2)), unit, power, dtype, f"the largest entry of {name}")
    return (x * unit[..., None, None] ** power).to(dtype)


def leaves(name: str, value: str, dtype: torch.dtype, result: Tensor) -> NoReturn:
    """The error for a number that leaves the range of its dtype; it carries what is known."""
    double = dtype == torch.float64
    remedy = "divide the points by their size" if double else "convert to double, mu.to(torch.float64)"
    raise NotFiniteError(f"{name} = {value}: it leaves the range of {dtype}; {remedy}.", result)
