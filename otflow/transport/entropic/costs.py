"""Costs c(x, y) of moving mass from x to y."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import learns
from otflow.base.errors import DerivativeError
from otflow.base.parameters import Derived
from otflow.base.spaces import Euclidean, Space


class Features(NamedTuple):
    """A cost c_ij = row_i + column_j - <q_i, k_j>, which never needs a matrix."""

    q: Tensor  # (*batch, n, c)
    k: Tensor  # (*batch, m, c)
    row: Tensor  # (*batch, n)
    column: Tensor  # (*batch, m)


class Parts(NamedTuple):
    """A cost as one between other points, plus terms of one side each: c_ij = c'_ij + row_i + column_j."""

    x: Tensor
    y: Tensor
    row: Tensor
    column: Tensor


class Cost(ABC):
    """c(x, y), evaluated between all points of two clouds on a space."""

    @abstractmethod
    def scores(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Tensor:
        """-c(x_i, y_j) / eps, (*batch, n, m)."""

    def features(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Features | None:
        """c / eps split into rows, columns and a scalar product, when the cost is of that form."""
        return None

    def parts(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Parts:
        """c / eps with what potentials can absorb taken out, to save digits."""
        return Parts(x, y, torch.zeros_like(x[..., 0]), torch.zeros_like(y[..., 0]))

    def learns(self, x: Tensor, y: Tensor) -> bool:
        """Whether the cost has derivatives in something of its own."""
        return False

    def flipped(self) -> Cost:
        """c(y, x)."""
        return self

    @property
    def symmetric(self) -> bool:
        """Whether c(x, y) = c(y, x) is known."""
        return False


class PowerCost(Cost):
    """c(x, y) = d(x, y)^p with the geodesic distance d of the space, p > 0.

    >>> import torch
    >>> from otflow import Euclidean
    >>> from otflow.transport import PowerCost
    >>> PowerCost(2).scores(torch.zeros(1, 1), torch.tensor([[3.0]]), Euclidean(), 1.0)
    tensor([[-9.]])
    """

    def __init__(self, p: float = 2.0) -> None:
        self.p = checks.positive(p, "p")

    def scores(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Tensor:
        # Distances are scaled before the power is taken, so that neither over- nor underflows by itself.
        distance: Tensor = space.pairwise(x, y) / _power(eps, 1 / self.p)
        return -distance.pow(self.p)

    def features(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Features | None:
        if self.p != 2 or not isinstance(space, Euclidean):
            return None
        x, y, shift = _centred(x, y, eps**0.5)
        row = x.square().sum(-1) + 2 * (x * shift).sum(-1) + shift.square().sum(-1)
        return Features(2 * x, y, row, y.square().sum(-1) - 2 * (y * shift).sum(-1))

    def parts(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Parts:
        """|x - y|^2 = |x' - y'|^2 + 2 (x' - y').h + |h|^2 for clouds x', y' centred apart, shift h."""
        if self.p != 2 or not isinstance(space, Euclidean):
            return super().parts(x, y, space, eps)
        root = eps**0.5
        u, v, h = _centred(x, y, root)
        return Parts(u * root, v * root, 2 * (u * h).sum(-1) + h.square().sum(-1), -2 * (v * h).sum(-1))

    @property
    def symmetric(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"PowerCost({self.p:g})"


def _power(eps: float, q: float) -> float:
    try:
        return float(eps**q)
    except OverflowError:
        return math.inf


def _centred(x: Tensor, y: Tensor, unit: float) -> tuple[Tensor, Tensor, Tensor]:
    """Both clouds about their own centres, and the shift between these, in units of ``unit``."""
    m, k = (z.detach().median(-2, keepdim=True).values for z in (x, y))  # outliers do not move it
    return (x - m) / unit, (y - k) / unit, (m - k) / unit


class BilinearCost(Cost):
    """c(x, y) = -<A x, y>, the cost behind Sinkhorn attention.

    >>> import torch
    >>> from otflow import Euclidean
    >>> from otflow.transport import BilinearCost
    >>> BilinearCost([[2.0]]).scores(torch.ones(1, 1), torch.ones(1, 1), Euclidean(), 1.0)
    tensor([[2.]])
    """

    A = Derived[Tensor]()

    def __init__(self, A: Any) -> None:
        self.A = A
        checks.require(
            self.A.ndim == 2, "A.shape", self.A.shape, "a matrix is needed", "pass a (d, d) matrix"
        )

    def scores(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Tensor:
        f = self.features(x, y, space, eps)
        return f.q @ f.k.mT

    def features(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Features:
        if not space.linear:
            checks.fail("cost", repr(self), f"matrices do not act on {space}", "use PowerCost(p)")
        A = self.A.to(x)
        if A.shape != (y.shape[-1], x.shape[-1]):
            checks.fail(
                "A.shape", tuple(A.shape), f"points have {x.shape[-1]} coordinates", "pass a (d, d) matrix"
            )
        return Features(x @ A.mT / eps, y, torch.zeros_like(x[..., 0]), torch.zeros_like(y[..., 0]))

    def learns(self, x: Tensor, y: Tensor) -> bool:
        return learns(self.A)

    def flipped(self) -> Cost:
        return BilinearCost(self.A.mT)

    @property
    def symmetric(self) -> bool:
        return torch.equal(self.A, self.A.mT)

    def __repr__(self) -> str:
        return f"BilinearCost({tuple(self.A.shape)})"


class FunctionCost(Cost):
    """A function c(x, y) that broadcasts (*batch, n, 1, d) against (*batch, 1, m, d) to (*batch, n, m)."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def scores(self, x: Tensor, y: Tensor, space: Space, eps: float) -> Tensor:
        c = self.function(x[..., :, None, :], y[..., None, :, :])
        shape = (*torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-2])
        if not isinstance(c, Tensor) or c.shape != shape:
            got = tuple(c.shape) if isinstance(c, Tensor) else type(c).__name__
            checks.fail("cost(x, y)", got, f"a tensor of shape {shape} is needed", "let the cost broadcast")
        return -checks.finite(c, "cost(x, y)") / eps

    def learns(self, x: Tensor, y: Tensor) -> bool:
        one = self.function(x.detach()[..., :1, None, :], y.detach()[..., None, :1, :])
        if learns(one):
            raise DerivativeError("a cost function with parameters that require gradients: detach them")
        return False

    def flipped(self) -> Cost:
        return FunctionCost(lambda y, x: self.function(x.transpose(-2, -3), y.transpose(-2, -3)).mT)

    def __repr__(self) -> str:
        return f"FunctionCost({self.function})"


def as_cost(cost: Any) -> Cost:
    """A `Cost`: the squared distance by default, or one made of the user's function."""
    if cost is None:
        return PowerCost(2.0)
    if isinstance(cost, type):
        checks.fail("cost", repr(cost), "an instance is needed", f"call it: {cost.__name__}(...)")
    return cost if isinstance(cost, Cost) else FunctionCost(checks.function(cost, "cost"))
