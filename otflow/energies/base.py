"""The base of all energies: functionals of measures that add, scale, and have a differential."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.algebra import Linear
from otflow.base.derivatives import dual, forward_mode, learns, refuse_func, without_graph
from otflow.base.errors import DerivativeError, InputError
from otflow.base.matrices import of_energy, one_square
from otflow.base.parameters import Derived, Parametric, tensors
from otflow.base.tables import signed
from otflow.base.tangent import Tangent
from otflow.measures import Measure

Bounds: TypeAlias = tuple[Tensor | float, Tensor | float]


class Energy(Parametric, Linear["Energy"], ABC):
    """A functional F of measures: a value, and a differential by autograd unless a subclass knows better.

    >>> import torch
    >>> from otflow import Particles, Potential
    >>> F = 2 * Potential(lambda x: x.square().sum(-1) / 2)
    >>> F(Particles([[1.0], [3.0]])).item()
    5.0
    """

    @property
    def precision(self) -> float:
        """Relative error of the differential beyond rounding: 0, or what an inner solver leaves."""
        return 0.0

    @abstractmethod
    def __call__(self, mu: Measure) -> Tensor:
        """F(mu), shape (*batch,)."""

    def differential(self, mu: Measure) -> Tangent:
        """The derivative of F with respect to the coordinates of mu: a covector, shaped like them."""
        refuse_func()
        create, forward = self.wants_graph(mu), forward_mode() and any(dual(a) for a in tensors(self))
        with torch.enable_grad():
            coords = [c if create and c.requires_grad else c.detach().requires_grad_() for c in mu.coords]
            # Tangents of parameters get lost in factors that torch keeps, unless it builds a graph.
            slope = self.covector_at(mu.at(coords), coords, create_graph=create or forward)
        return slope.map(without_graph) if forward and not create else slope

    def covector_at(self, mu: Measure, coords: Sequence[Tensor], *, create_graph: bool) -> Tangent:
        """The derivative at a measure made of ``coords``, which require gradients."""
        value = self(mu)
        one_each(value, mu)
        return gradient(value.sum(), coords, create_graph=create_graph)

    def wants_graph(self, mu: Measure) -> bool:
        """Whether the differential will itself be differentiated: in mu, or in parameters of the energy."""
        return torch.is_grad_enabled() and (mu.requires_grad or learns(*tensors(self)))

    def curvature_bounds(self, mu: Measure) -> Bounds:
        """(low, high) with low |u|^2 <= D^2 F(u, u) <= high |u|^2, for displacements u in L2(mu), everywhere.

        That is at every measure to which displacements (for internal energies, optimal maps) lead from mu,
        not at mu alone. Numbers or (*batch,); infinite where nothing is known, as here. A JKO step with
        1 + tau low > 0 has one minimiser.

        >>> import otflow as of
        >>> of.QuadraticPotential([[2.0]]).curvature_bounds(of.Particles([[0.0]]))[0].item()
        2.0
        """
        return -math.inf, math.inf

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def kind(self) -> type[Energy]:
        return Energy

    def combination(self, pairs: list[tuple[Energy, float]]) -> Energy:
        return Sum(pairs)


class Sum(Energy):
    """A linear combination of energies."""

    def __init__(self, pairs: Sequence[tuple[Energy, float]]) -> None:
        self.terms, self.factors = zip(*pairs, strict=True)

    def pairs(self) -> list[tuple[Energy, float]]:
        return list(zip(self.terms, self.factors, strict=True))

    def __call__(self, mu: Measure) -> Tensor:
        return torch.stack([c * term(mu) for term, c in self.pairs()]).sum(0)

    def curvature_bounds(self, mu: Measure) -> Bounds:
        return combined([(term.curvature_bounds(mu), c) for term, c in self.pairs()])

    @property
    def precision(self) -> float:
        return max(float(term.precision) for term in self.terms)

    def wants_graph(self, mu: Measure) -> bool:
        return any(term.wants_graph(mu) for term in self.terms)

    def __repr__(self) -> str:
        return signed(self.pairs())

    def differential(self, mu: Measure) -> Tangent:
        first, *rest = (c * term.differential(mu) for term, c in self.pairs())
        return sum(rest, start=first)


class MatrixEnergy(Energy):
    """An energy of the scores Ax.y between tokens, for one matrix A, which may be learnt."""

    A = Derived[Tensor](lambda A, name: of_energy(one_square(A, name), name))

    def __init__(self, A: Any) -> None:
        self.A = A

    def __repr__(self) -> str:
        return f"{type(self).__name__}(d={len(self.A)})"


def combined(parts: Sequence[tuple[Bounds, float]]) -> Bounds:
    """The bounds of sum_k c_k f_k, from those of the f_k.

    >>> from otflow.energies.base import combined
    >>> combined([((-1.0, 3.0), 2.0), ((0.0, 1.0), -1.0)])
    (-3.0, 6.0)
    """
    low: Tensor | float = 0.0
    high: Tensor | float = 0.0
    for (a, b), c in parts:
        if c != 0:
            least, most = (a, b) if c > 0 else (b, a)
            low, high = low + c * least, high + c * most
    return low, high


def refuse_density(mu: Measure) -> NoReturn:
    """The error of energies of scores on measures other than clouds and Gaussians."""
    remedy = "use Particles or a Gaussian, say Particles(*mu.nodes())"
    checks.fail("mu", mu, "scores are between tokens", remedy)


def one_each(value: Tensor, mu: Measure) -> None:
    """Refuse energies with more members than the measure: their sum would be differentiated."""
    if value.shape != mu.batch:
        rule = f"one number per member of the batch is needed, {tuple(mu.batch)}"
        remedy = "pass a measure with the batch of the matrices, or one matrix"
        checks.fail("energy(mu).shape", tuple(value.shape), rule, remedy)


def called(f: Callable[..., Any], name: str, *args: Tensor) -> Tensor:
    """f(*args) for a user's function, and a hint if that was written for numpy rather than torch."""
    try:
        out = f(*args)
    except (RuntimeError, TypeError) as error:
        if "numpy" not in str(error) and "keyword argument" not in str(error):
            raise
        raise InputError(
            f"{name}: {error}; write it in torch operations, such as torch.cos(x).sum(-1)."
        ) from error
    if not isinstance(out, Tensor):
        checks.fail(name, f"a {type(out).__name__}", "a tensor is needed", "write it in torch operations")
    return out


def trust_nodes(
    mu: Measure, integral: Callable[[Measure], Tensor], size: Callable[[Measure], Tensor]
) -> None:
    """Refuse if the quadrature of mu does not resolve an integral: other nodes must give the same value.

    ``size`` is the integral of the absolute value, against which a difference counts.
    """
    twin = mu.twin()
    if twin is None:
        return
    with torch.no_grad():
        gap = (integral(twin) - integral(mu)).abs() / size(mu).clamp(min=torch.finfo(mu.dtype).tiny)
    if not bool((gap <= max(1e-6, 1e3 * torch.finfo(mu.dtype).eps)).all()):
        rule = f"the nodes of {mu!r} integrate polynomials up to degree five only"
        remedy = "sample the Gaussian and use Particles"
        checks.fail("relative quadrature error", gap.max().item(), rule, remedy)


def gradient(value: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = False) -> Tangent:
    """Autograd's gradient, zero for inputs that ``value`` does not see."""
    if not value.requires_grad:
        raise DerivativeError(
            "the energy has no derivative in the coordinates: it was computed without torch, detached, or "
            "under torch.inference_mode(); write it in torch operations, or give Energy.differential."
        )
    grads = torch.autograd.grad(value, list(inputs), create_graph=create_graph, allow_unused=True)
    return Tangent(torch.zeros_like(c) if g is None else g for g, c in zip(grads, inputs, strict=True))
