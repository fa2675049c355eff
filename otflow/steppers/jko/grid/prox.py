"""Pointwise proximal maps in the Kullback-Leibler divergence, in logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.tangent import align
from otflow.energies import Energy, Interaction, Potential
from otflow.energies.internal import DensityBound, Entropy, Internal, PorousMedium
from otflow.measures import Grid

NEWTON = 8  # quadratic and monotone from the start below: 7 steps reach rounding for every argument
BISECTIONS = 60  # more than the 53 bits of a float64
SECANT = 30  # steps for the multiplier of the mass, at most; chosen


@dataclass(frozen=True)
class Split:
    """F(r) = factor int U(r) + entropy int r log r + int V r: what can be minimised cell by cell.

    ``internal`` is the energy of U, or None; ``V`` has the shape of the density.

    >>> from otflow import Entropy, Potential
    >>> from otflow.steppers.jko.grid.prox import split
    >>> import math, torch, otflow as of
    >>> mu = of.Grid([1.0, 1.0], [[0.25, 0.75]])
    >>> F = split(3 * Entropy() + Potential(lambda x: -3 + 0 * x[..., 0]), mu)
    >>> F.prox(torch.tensor([0.0, 4.0]), 1.0)  # 3 (log r + 1) - 3 + log r - log q = 0
    tensor([0., 1.], dtype=torch.float64)
    """

    V: Tensor
    internal: Internal | None = None
    factor: float = 0.0
    entropy: float = 0.0

    def prox(self, log_q: Tensor, scale: float, shift: Tensor | float = 0.0) -> Tensor:
        """log r for r = argmin F(r) + scale KL(r | q), KL(r | q) = int r log(r / q) - r + q.

        Entropy and KL join into one logarithm, of weight sigma = scale + entropy; what is left to solve
        is log r + (factor / sigma) U'(r) = h + shift, with a ``shift`` that changes the mass alone.
        """
        sigma = scale + self.entropy
        h = (scale * log_q - self.V - self.entropy) / sigma + shift
        return h if self.internal is None else log_root(self.internal, h, self.factor / sigma)

    def admits(self, scale: float) -> None:
        """Refuse an entropy so negative that the step has no minimiser."""
        good = scale + self.entropy > 0
        rule = f"eps / dt = {scale:g} must outweigh it"
        checks.require(
            good,
            "factor of Entropy()",
            self.entropy,
            rule,
            f"divide dt by {-1.1 * self.entropy / scale:.3g}, or pass a larger eps",
        )


def split(energy: Energy, mu: Grid, *, entropy: float = 0.0) -> Split:
    """The energy plus ``entropy * Entropy()`` as a `Split`; interactions are linearised at mu, to W * mu."""
    parts = Split(torch.zeros_like(mu.density, dtype=torch.float64), entropy=entropy)
    for term, factor in energy.pairs():
        parts = _with(term, parts, factor, mu) if factor else parts
    checks.finite(parts.V, "potential on the grid")
    return parts


@singledispatch
def _with(term: Energy, parts: Split, factor: float, mu: Grid) -> Split:
    """The split with one more term."""
    rule = "EntropicJKO() takes one internal energy, entropies, potentials and interactions"
    checks.fail("energy", repr(term), rule, "use JKO(), or leave this term out")


@_with.register
def _(term: Entropy, parts: Split, factor: float, mu: Grid) -> Split:
    return replace(parts, entropy=parts.entropy + factor)


@_with.register(Potential)
@_with.register(Interaction)
def _(term: Energy, parts: Split, factor: float, mu: Grid) -> Split:
    variation = term.differential(mu)[0].to(torch.float64) / mu.cell
    return replace(parts, V=parts.V + factor * variation)


@_with.register
def _(term: Internal, parts: Split, factor: float, mu: Grid) -> Split:
    if factor < 0 or parts.internal is not None:
        checks.fail(
            "energy",
            f"{factor:g} * {term!r}" + (f" beside {parts.internal!r}" if parts.internal else ""),
            "besides entropies there may be one internal energy, with a positive factor",
            "use JKO(), or leave this term out",
        )
    _fits(term, mu)
    return replace(parts, internal=term, factor=factor)


def _fits(term: Internal, mu: Grid) -> None:
    """Refuse a density bound under which the box cannot hold a unit of mass."""
    volume = mu.cell * mu.density[(0,) * len(mu.batch)].numel()
    if isinstance(term, DensityBound):
        room, rule = term.limit * volume, "the grid cannot hold the mass 1 below this density"
        remedy = f"pass DensityBound({math.ceil(100 / volume) / 100:g}) or more, or wider axes"
        checks.require(room >= 1 - 1e-12, "limit * volume of the grid", room, rule, remedy)


def of_mass_one(parts: Split, log_q: Tensor, scale: float, mu: Grid) -> Tensor:
    """The density of `Split.prox` under the constraint that its mass is one: the multiplier is the shift.

    The logarithm of the mass rises with the shift, by at most as much; secants find the root from there.
    """

    def at(shift: Tensor) -> tuple[Tensor, Tensor]:
        log_r = parts.prox(log_q, scale, align(shift, log_q))
        return log_r, log_r.reshape(*mu.batch, -1).logsumexp(-1) + math.log(mu.cell)

    t = torch.zeros(mu.batch, dtype=log_q.dtype, device=log_q.device)
    log_r, excess = at(t)
    slope = torch.ones_like(t)
    for _ in range(SECANT):
        if bool((excess.abs() <= 1e-14).all()):
            break
        step, before = -excess / slope, excess
        log_r, excess = at(t := t + step)
        secant = (excess - before) / step
        slope = torch.where(secant > 1e-6, secant, torch.ones_like(secant))
    return (log_r - align(excess, log_r)).exp()


@singledispatch
def log_root(internal: Internal, h: Tensor, kappa: float) -> Tensor:
    """log r for the r > 0 with log r + kappa U'(r) = h, elementwise, kappa > 0; by bisection in general."""

    def above(t: Tensor) -> Tensor:
        return t + kappa * internal.slope(t.exp()) > at

    full = h > -math.inf
    at = torch.where(full, h, torch.zeros_like(h))
    low, high, reach = at, at, 1.0
    for _ in range(NEWTON):
        low, high = torch.where(above(low), low - reach, low), torch.where(above(high), high, high + reach)
        reach *= 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        up = above(middle)
        low, high = torch.where(up, low, middle), torch.where(up, middle, high)
    return torch.where(full, (low + high) / 2, h)


@log_root.register
def _(internal: DensityBound, h: Tensor, kappa: float) -> Tensor:
    return h.clamp(max=math.log(internal.limit))


@log_root.register
def _(internal: PorousMedium, h: Tensor, kappa: float) -> Tensor:
    # z = (m - 1) log r solves z + kappa m e^z = (m - 1) h on both sides of m = 1.
    offset = math.log(kappa * internal.m)
    return (log_omega((internal.m - 1) * h + offset) - offset) / (internal.m - 1)


def log_omega(x: Tensor) -> Tensor:
    """The t with t + e^t = x, that is log W(e^x) with Lambert's W.

    >>> import torch
    >>> from otflow.steppers.jko.grid.prox import log_omega
    >>> log_omega(torch.tensor([1.0, 1000.0], dtype=torch.float64))
    tensor([0.0000, 6.9008], dtype=torch.float64)
    """
    t = torch.where(x > 1, x.clamp(min=1).log(), x)  # above the root, from where Newton's method descends
    for _ in range(NEWTON):
        e = t.exp()
        t = t - (t + e - x) / (1 + e)
    return t
