"""Energies add, scale, and know their differential."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from otflow import checks
from otflow.measures import Measure
from otflow.tangent import Tangent


class Energy(ABC):
    """A functional F of measures: a value, and a differential by autograd unless a subclass knows better.

    >>> import torch
    >>> from otflow import Particles, Potential
    >>> F = 2 * Potential(lambda x: x.square().sum(-1) / 2)
    >>> F(Particles([[1.0], [3.0]])).item()
    5.0
    """

    @abstractmethod
    def __call__(self, mu: Measure) -> Tensor:
        """F(mu), shape (*batch,)."""

    def differential(self, mu: Measure) -> Tangent:
        """The derivative of F with respect to the coordinates of mu: a covector, shaped like them."""
        create = _wants_graph(mu.coords)
        with torch.enable_grad():
            coords = [c if create and c.requires_grad else c.detach().requires_grad_() for c in mu.coords]
            value = self(mu.at(coords)).sum()
            return gradient(value, coords, create_graph=create)

    def __add__(self, other: Energy) -> Energy:
        return Sum((self, other), (1.0, 1.0)) if isinstance(other, Energy) else NotImplemented

    def __sub__(self, other: Energy) -> Energy:
        return Sum((self, other), (1.0, -1.0)) if isinstance(other, Energy) else NotImplemented

    def __mul__(self, c: float) -> Energy:
        return Sum((self,), (checks.number(c, "factor"),))

    __rmul__ = __mul__

    def __neg__(self) -> Energy:
        return Sum((self,), (-1.0,))


class Sum(Energy):
    """A linear combination of energies."""

    def __init__(self, terms: Sequence[Energy], factors: Sequence[float]) -> None:
        pairs = [p for term, c in zip(terms, factors, strict=True) for p in _flat(term, c)]
        self.terms = tuple(term for term, _ in pairs)
        self.factors = tuple(c for _, c in pairs)

    def __call__(self, mu: Measure) -> Tensor:
        return torch.stack([c * term(mu) for term, c in zip(self.terms, self.factors, strict=True)]).sum(0)

    def differential(self, mu: Measure) -> Tangent:
        first, *rest = (c * term.differential(mu) for term, c in zip(self.terms, self.factors, strict=True))
        return sum(rest, start=first)


def _flat(term: Energy, c: float) -> list[tuple[Energy, float]]:
    """Sums of sums are one sum."""
    if isinstance(term, Sum):
        return [(t, c * f) for t, f in zip(term.terms, term.factors, strict=True)]
    return [(term, c)]


def gradient(value: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = False) -> Tangent:
    """Autograd's gradient, zero for inputs that ``value`` does not see."""
    if not value.requires_grad:
        return Tangent(torch.zeros_like(c) for c in inputs)
    grads = torch.autograd.grad(value, list(inputs), create_graph=create_graph, allow_unused=True)
    return Tangent(torch.zeros_like(c) if g is None else g for g, c in zip(grads, inputs, strict=True))


def _wants_graph(coords: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(c.requires_grad for c in coords)
