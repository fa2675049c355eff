"""Steps in double precision, for quantiles and Gaussians in single.

Internal energies see gaps between quantiles and the smallest axis of a Gaussian, of which single precision
leaves few digits or none. There are few numbers, so that double precision costs little.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from otflow.base.errors import InputError
from otflow.base.tangent import Tangent
from otflow.energies import Energy, QuadraticInteraction, QuadraticPotential
from otflow.energies.base import Bounds, Sum
from otflow.energies.internal import Internal
from otflow.energies.quantiles import curvature
from otflow.measures import Measure
from otflow.measures.quantiles import Quantiles, Tridiagonal
from otflow.steppers.jko.base import Move

M = TypeVar("M", bound=Measure)
SINGLE = torch.finfo(torch.float32).eps


class Asked(Energy):
    """An energy that takes single precision only, asked there on behalf of a measure in double."""

    def __init__(self, term: Energy) -> None:
        self.term = term

    def __call__(self, mu: Measure) -> Tensor:
        return self.term(_single(mu)).double()

    def differential(self, mu: Measure) -> Tangent:
        return self.term.differential(_single(mu)).map(lambda a: a.double())

    def wants_graph(self, mu: Measure) -> bool:
        return self.term.wants_graph(_single(mu))

    def curvature_bounds(self, mu: Measure) -> Bounds:
        return self.term.curvature_bounds(_single(mu))


@curvature.register(Asked)
def _(energy: Asked, mu: Quantiles) -> Tridiagonal | Tensor:
    H = curvature(energy.term, _single(mu))
    return Tridiagonal(H.diag.double(), H.off.double()) if isinstance(H, Tridiagonal) else H.double()


def _single(mu: M) -> M:
    return mu.at([c.float() for c in mu.coords])


def doubled(mu: M) -> M:
    """The same measure in double precision."""
    return mu.at([c.double() for c in mu.coords])


def in_double(energy: Energy, mu: Measure) -> Energy:
    """The energy for measures like mu, but in double precision."""
    if mu.dtype == torch.float64:
        return energy
    return Sum([(_widened(term, mu), c) for term, c in energy.pairs()])


def _widened(term: Energy, mu: Measure) -> Energy:
    """The term itself, if it takes double precision; a function with a matrix in single, say, does not."""
    if type(term) is QuadraticPotential:
        return QuadraticPotential(term.A.double(), term.b.double())
    if type(term) is QuadraticInteraction:
        return QuadraticInteraction(term.K.double())
    try:
        if not isinstance(term, Internal):
            term.differential(doubled(mu.at([c.detach() for c in mu.coords])))
    except (RuntimeError, TypeError, InputError):
        return Asked(term)
    return term


def rounded(move: Move, mu: Measure) -> Move:
    """The move in the precision of mu."""
    if mu.dtype == torch.float64:
        return move
    return replace(
        move,
        mu=mu.at([c.to(mu.dtype) for c in move.mu.coords]),
        cost=move.cost.to(mu.dtype),
        residual=move.residual.to(mu.dtype),
        concavity=None if move.concavity is None else move.concavity.to(mu.dtype),
        gap=None if move.gap is None else move.gap.to(mu.dtype),
    )
