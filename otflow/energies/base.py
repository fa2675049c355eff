"""Energies add, scale, and know their differential."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from otflow import checks
from otflow.errors import DerivativeError
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
        create = self.wants_graph(mu)
        with torch.enable_grad():
            coords = [c if create and c.requires_grad else c.detach().requires_grad_() for c in mu.coords]
            value = self(mu.at(coords)).sum()
            return gradient(value, coords, create_graph=create)

    def wants_graph(self, mu: Measure) -> bool:
        """Whether the differential will itself be differentiated: in mu, or in parameters of the energy."""
        return torch.is_grad_enabled() and any(a.requires_grad for a in (*mu.coords, *mu.nodes()))

    def __add__(self, other: Energy) -> Energy:
        return Sum((self, other), (1.0, 1.0)) if isinstance(other, Energy) else NotImplemented

    def __sub__(self, other: Energy) -> Energy:
        return Sum((self, other), (1.0, -1.0)) if isinstance(other, Energy) else NotImplemented

    def __mul__(self, c: float) -> Energy:
        return Sum((self,), (checks.number(c, "factor"),))

    __rmul__ = __mul__

    def __truediv__(self, c: float) -> Energy:
        return self * (1 / checks.number(c, "divisor"))

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

    def wants_graph(self, mu: Measure) -> bool:
        return any(term.wants_graph(mu) for term in self.terms)

    def differential(self, mu: Measure) -> Tangent:
        first, *rest = (c * term.differential(mu) for term, c in zip(self.terms, self.factors, strict=True))
        return sum(rest, start=first)


def _flat(term: Energy, c: float) -> list[tuple[Energy, float]]:
    """Sums of sums are one sum."""
    if isinstance(term, Sum):
        return [(t, c * f) for t, f in zip(term.terms, term.factors, strict=True)]
    return [(term, c)]


def trusted(f: Callable[[Measure], Tensor], mu: Measure) -> Tensor:
    """f(mu), or an error if the quadrature of mu does not resolve f: other nodes must agree."""
    value, twin = f(mu), mu.twin()
    if twin is not None:
        with torch.no_grad():
            gap = (f(twin) - value).abs() / value.abs().clamp(min=1e-12)
        if not bool((gap <= 1e-6).all()):
            checks.fail(
                "relative quadrature error",
                gap.max().item(),
                f"the nodes of {mu!r} integrate polynomials up to degree five only",
                "sample the Gaussian and use Particles",
            )
    return value


def gradient(value: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = False) -> Tangent:
    """Autograd's gradient, zero for inputs that ``value`` does not see."""
    if not value.requires_grad:
        raise DerivativeError(
            "the energy has no derivative in the coordinates: it was computed without torch, detached, or "
            "under torch.inference_mode(); write it in torch operations, or give Energy.differential."
        )
    grads = torch.autograd.grad(value, list(inputs), create_graph=create_graph, allow_unused=True)
    return Tangent(torch.zeros_like(c) if g is None else g for g, c in zip(grads, inputs, strict=True))
