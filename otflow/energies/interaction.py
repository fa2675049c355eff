"""Pairwise interaction energies, summed over tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.enclosures import everywhere
from otflow.base.kernels import row_tiles
from otflow.base.tables import named
from otflow.base.tangent import Tangent
from otflow.energies.base import Bounds, Energy, called, gradient, trust_nodes
from otflow.measures import Gaussian, Measure


class Interaction(Energy):
    """F(mu) = 1/2 int int W(x, y) dmu(x) dmu(y).

    The differential costs O(n^2) time and O(n) memory: each tile of rows is summed and differentiated
    by itself.

    Args:
        W: broadcasts (*batch, n, 1, d) against (*batch, 1, n, d) to (*batch, n, n), in torch operations.
        diagonal: whether a token interacts with itself; False for kernels that are singular there,
            such as -log|x - y|.
        curvature: a number c for which W(x, y) - c |x - y|^2 / 2 is convex in (x, y), for proofs that a JKO
            step is the best of all. Of W(x, y) = w(x - y) that is a number which no eigenvalue of D^2 w is
            below. If left out it is found by interval arithmetic, where that can. Then for displacements u of
            all particles D^2 F(u, u) >= min(c, 0) |u|^2: F is jointly convex if c >= 0, and never more than
            that, since it does not feel a common translation.

    >>> from otflow import Interaction
    >>> from otflow import Particles
    >>> F = Interaction(lambda x, y: (x - y).square().sum(-1) / 2)
    >>> F(Particles([[0.0], [2.0]])).item()
    0.5
    """

    def __init__(
        self,
        W: Callable[[Tensor, Tensor], Tensor],
        *,
        diagonal: bool = True,
        curvature: float | None = None,
    ) -> None:
        self.W = checks.function(W, "W")
        self.diagonal = diagonal
        self.curvature = checks.optional(curvature, "curvature")

    def __call__(self, mu: Measure) -> Tensor:
        self._admit(mu)
        return self._double_integral(mu)

    def __repr__(self) -> str:
        return f"Interaction({named(self.W)}{'' if self.diagonal else ', diagonal=False'})"

    def curvature_bounds(self, mu: Measure) -> Bounds:
        if self.curvature is not None:
            return min(self.curvature, 0.0), math.inf
        x = mu.probe().detach()[..., None, :]
        known = everywhere(self.W, torch.cat([x, x], -1), pair=True)
        return (-math.inf if known is None else known.low[..., 0, 0].clamp(max=0)), math.inf

    def wants_graph(self, mu: Measure) -> bool:
        if super().wants_graph(mu) or not torch.is_grad_enabled():
            return torch.is_grad_enabled()
        x = mu.probe().detach()
        return called(self.W, "W(x, y)", x[..., None, :], x[..., None, :, :] + 1.0).requires_grad

    def _admit(self, mu: Measure) -> None:
        """Refuse measures on which the double sum over the nodes is not the double integral."""
        good = self.diagonal or not isinstance(mu, Gaussian)
        rule = "a Gaussian has no atoms to leave out"
        checks.require(good, "diagonal", False, rule, "sample it and use Particles")
        trust_nodes(mu, self._double_integral, lambda mu: self._double_integral(mu, absolute=True))

    def _double_integral(self, mu: Measure, *, absolute: bool = False) -> Tensor:
        x, w = mu.nodes()
        return torch.stack([self._tile(x, w, rows, absolute=absolute) for rows in self._tiles(x)]).sum(0)

    def differential(self, mu: Measure) -> Tangent:
        if self.wants_graph(mu):
            return super().differential(mu)  # small problems: autograd keeps the whole graph
        self._admit(mu)
        with torch.enable_grad():
            coords = [c.detach().requires_grad_() for c in mu.coords]
            nodes = mu.at(coords).nodes()
            x, w = (a.detach().requires_grad_() for a in nodes)
            parts = (gradient(self._tile(x, w, rows).sum(), (x, w)) for rows in self._tiles(x))
            grads = sum(parts, start=Tangent([torch.zeros_like(x), torch.zeros_like(w)]))
            # The chain rule by hand: gradients at the nodes, then the nodes as functions of the coordinates.
            through = torch.stack([(a * g).sum() for a, g in zip(nodes, grads, strict=True)]).sum()
            return gradient(through, coords)

    def _tiles(self, x: Tensor) -> Iterator[slice]:
        return row_tiles(x.shape[-2], x.numel())  # W makes arrays of size rows * n * d

    def _tile(self, x: Tensor, w: Tensor, rows: slice, *, absolute: bool = False) -> Tensor:
        """1/2 sum over i in rows, all j, of w_i w_j W(x_i, x_j)."""
        far = x[..., None, :, :]
        if not self.diagonal:  # move the token's own copy away *before* W sees it: no inf or NaN arises
            index = torch.arange(w.shape[-1], device=w.device)
            own = index[rows, None] == index
            far = torch.where(own[..., None], far.detach() + 1.0, far)
        values = called(self.W, "W(x, y)", x[..., rows, None, :], far)
        expected = (*w.shape[:-1], rows.stop - rows.start, w.shape[-1])
        if tuple(values.shape) != expected:
            rule = f"W broadcasts to one number per pair, {expected}"
            checks.fail("W(x, y).shape", tuple(values.shape), rule, "sum over the last axis in W")
        if not self.diagonal:
            values = torch.where(own, torch.zeros_like(values), values)
        terms = w[..., rows, None] * values * w[..., None, :]
        return 0.5 * (terms.abs() if absolute else terms).sum((-1, -2))
