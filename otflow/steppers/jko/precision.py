"""Energies of quantiles in double precision, for measures in single.

Internal energies see gaps between quantiles, of which single precision leaves few digits or none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otflow.base.errors import InputError
from otflow.base.tangent import Tangent
from otflow.energies import Energy, QuadraticInteraction, QuadraticPotential
from otflow.energies.base import Sum
from otflow.energies.internal import Internal
from otflow.energies.quantiles import curvature
from otflow.measures import Measure
from otflow.measures.quantiles import Quantiles, Tridiagonal

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


@curvature.register(Asked)
def _(energy: Asked, mu: Quantiles) -> Tridiagonal | Tensor:
    H = curvature(energy.term, _single(mu))
    return Tridiagonal(H.diag.double(), H.off.double()) if isinstance(H, Tridiagonal) else H.double()


def _single(mu: Any) -> Any:
    return mu.at([c.float() for c in mu.coords])


def in_double(energy: Energy, mu: Quantiles) -> Energy:
    """The energy for measures like mu, but in double precision."""
    if mu.dtype == torch.float64:
        return energy
    return Sum([(_widened(term, mu), c) for term, c in energy.pairs()])


def _widened(term: Energy, mu: Quantiles) -> Energy:
    """The term itself, if it takes double precision; a function with a matrix in single, say, does not."""
    if type(term) is QuadraticPotential:
        return QuadraticPotential(term.A.double(), term.b.double())
    if type(term) is QuadraticInteraction:
        return QuadraticInteraction(term.K.double())
    try:
        if not isinstance(term, Internal):
            term.differential(mu.at([mu.x.detach().double()]))
    except (RuntimeError, TypeError, InputError):
        return Asked(term)
    return term
