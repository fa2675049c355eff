"""Contracts: what is asked of energies, metrics and fields, tried out on one measure.

`otflow.energies.check`, `otflow.metrics.check` and `otflow.fields.check` do so with what stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.tangent import Tangent
from otflow.measures.base import Measure
from otflow.measures.gaussian import Gaussian
from otflow.measures.grid import Grid
from otflow.measures.particles import Particles
from otflow.measures.quantiles import Quantiles

NEAR = 1e-2  # how far the second member of a batch is from the first, in units of its size
Pieces = Sequence[Tensor]


def admit(mu: Measure) -> None:
    """Refuse a batch: the checks make one themselves."""
    rule, remedy = "a contract is tried on one measure, from which batches are made", "pass a member, mu[0]"
    checks.require(not checks.instance(mu, Measure, "mu").batch, "mu", mu, rule, remedy)


@singledispatch
def direction(mu: Measure) -> Tangent:
    """A random direction of the size of the coordinates, in which small steps stay measures."""
    checks.fail("mu", mu, "directions are known of otflow's own measures", "use Particles")


@direction.register(Particles)
@direction.register(Gaussian)
def _(mu: Particles | Gaussian) -> Tangent:
    return mu.tangent(mu.coords.map(lambda c: _noise(c) * _size(c)))


@direction.register
def _(mu: Grid) -> Tangent:
    return mu.coords.map(lambda c: c * (_noise(c) - (c * _noise(c)).sum() / c.sum()))  # keeps the mass


@direction.register
def _(mu: Quantiles) -> Tangent:
    return mu.coords.map(lambda c: c - 0.5 * _size(c))  # a stretch and a shift, which keep the order


def _noise(c: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(c.numel())
    return (2 * torch.rand(c.shape, generator=generator, dtype=torch.float64) - 1).to(c)


def _size(c: Tensor) -> Tensor:
    """The root mean square; 1 if all is zero."""
    size = c.detach().square().mean().sqrt()
    return torch.where(size > 0, size, torch.ones_like(size))


def pair(mu: Measure) -> Measure:
    """A batch of two: mu, and a measure near it."""
    u = NEAR * direction(mu)
    nu = mu.move(u) if isinstance(mu, Particles) else mu.at(mu.coords + u)
    return mu.at(mu.coords.zip(nu.coords, lambda a, b: torch.stack([a, b])))


def difference(f: Callable[[Measure], Pieces], mu: Measure, u: Tangent) -> list[Tensor]:
    """The central difference of f along u."""
    h = step(mu)
    ahead, behind = f(mu.at(mu.coords + h * u)), f(mu.at(mu.coords - h * u))
    return [(a - b).detach() / (2 * h) for a, b in zip(ahead, behind, strict=True)]


def step(mu: Measure) -> float:
    """The step at which rounding and curvature of a central difference are in balance."""
    return float(torch.finfo(mu.dtype).eps ** (1 / 3))


def slack(mu: Measure) -> float:
    """Relative error of sums in another order, and of inner solvers that start elsewhere."""
    return 1e-7 if mu.dtype == torch.float64 else 1e4 * float(torch.finfo(mu.dtype).eps)


def tolerance(mu: Measure) -> float:
    """Relative error that a central difference may have."""
    return 300 * step(mu) ** 2 if mu.dtype == torch.float32 else 1e-6


def pairing(a: Pieces, b: Pieces) -> Tensor:
    """The sum of all products."""
    return torch.stack([(p * q).sum() for p, q in zip(a, b, strict=True)]).sum()


def gap(a: Pieces, b: Pieces, size: Pieces = ()) -> float:
    """The largest difference, in units of the largest number in a, b or ``size``."""
    off = [float((x - y).detach().abs().max()) for x, y in zip(a, b, strict=True)]
    whole = max(float(x.detach().abs().max()) for x in (*a, *b, *size))
    return max(off) / whole if whole > 0 else 0.0


def holds(found: float, limit: float, thing: Any, rule: str, remedy: str) -> float:
    """``found``, if that is at most ``limit``."""
    checks.require(found <= limit, type(thing).__name__, f"{found:.2g} off", rule, remedy)
    return found


def shaped(thing: Any, name: str, pieces: Pieces, shapes: Sequence[Sequence[int]], mu: Measure) -> None:
    """Refuse pieces of other shapes, of another precision, or elsewhere than mu."""
    kind, found = f"{name} of {type(thing).__name__}", [tuple(p.shape) for p in pieces]
    wanted = [tuple(s) for s in shapes]
    rule, remedy = f"{wanted} is needed", "reduce over negative axes"
    checks.require(found == wanted, f"{kind}, shapes", found, rule, remedy)
    for p in pieces:
        checks.alike(p, kind, mu.coords[0], "the measure")


def same_again(f: Callable[[Measure], Pieces], mu: Measure, thing: Any) -> list[Tensor]:
    """f(mu), if a second call gives it too and the measure is what it was."""
    before = [a.clone() for a in mu.parts().values()]
    first, second = [a.clone() for a in f(mu)], f(mu)
    unchanged = all(torch.equal(a, b) for a, b in zip(before, mu.parts().values(), strict=True))
    name, rule = type(thing).__name__, "it must not change the measure it is given"
    checks.require(unchanged, name, "an edit in place", rule, "write x = x + 1 rather than x += 1")
    rule = "the same measure must give the same numbers"
    holds(gap(first, second), 0.0, thing, rule, "draw no random numbers and keep no counters in it")
    return first


def as_members(f: Callable[[Measure], Pieces], mu: Measure, thing: Any, limit: float) -> float:
    """How far f of a batch is from f of its members, for one and for two axes in front."""
    rule, remedy = "a batch must give what its members give", "count axes from the end: x.sum(-2), x.mT"
    two = pair(mu)
    alone = [torch.stack(p) for p in zip(*(f(one) for one in two), strict=True)]
    found = holds(_against(f, two, alone, rule, remedy, thing), limit, thing, rule, remedy)
    deeper = two.expand(3, *two.batch)
    deep = [a.expand(3, *a.shape) for a in alone]
    return max(found, holds(_against(f, deeper, deep, rule, remedy, thing), limit, thing, rule, remedy))


def _against(
    f: Callable[[Measure], Pieces], mu: Measure, expected: Pieces, rule: str, remedy: str, thing: Any
) -> float:
    found = f(mu)
    shapes = [tuple(a.shape) for a in found], [tuple(a.shape) for a in expected]
    name = f"{type(thing).__name__} on a batch {tuple(mu.batch)}, shapes"
    checks.require(shapes[0] == shapes[1], name, shapes[0], f"{rule}, {shapes[1]}", remedy)
    return gap(found, expected)
