"""What every solution of a problem of optimal transport tells: one protocol for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class Transport(Protocol):
    """The solution of a transport problem, whoever solved it.

    `solve` and `solve_conditional` return `ExactTransport`, `sinkhorn` an `EntropicTransport`, both a
    `GaussianTransport` between Gaussians, and `solve_twisted` a `TwistedTransport`. They tell more, each in
    its own way; this is what they have in common, so that code written for one takes the others.

    Distance, certificates and status are known at every scale. What has no room in its dtype, like a cost
    of 1e-50 in single precision, raises `NotFiniteError` when it is asked for.

    Attributes:
        cost: what the plan costs, int c dP, (*batch,).
        distance: cost^(1/p) for the cost d^p, (*batch,).
        potentials: the pair (f, g) of the dual problem: numbers on the atoms, or functions for Gaussians.
        plan: the coupling P: a dense (*batch, n, m), or the joint `Gaussian` in R^(2d).
        certificates: what was measured to prove the solution, by name, (*batch,) each: ``gap`` for exact
            transport, ``marginal_error`` for entropic transport, ``residual`` for closed forms, ``gap`` and
            ``lower`` for bounds.
        status: "ok", or how it failed; an array of these for a batch.
        batch: the shape of the leading axes.

    >>> import otflow as of
    >>> mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[0.0], [3.0]])
    >>> for found in (of.solve(mu, nu), of.sinkhorn(mu, nu, eps=0.1)):
    ...     round(found.cost.item(), 4), found.status, list(found.certificates)
    (2.0, 'ok', ['gap'])
    (2.0, 'ok', ['marginal_error'])
    """

    @property
    def cost(self) -> Tensor: ...

    @property
    def distance(self) -> Tensor: ...

    @property
    def potentials(self) -> tuple[Any, Any]: ...

    @property
    def plan(self) -> Any: ...

    @property
    def certificates(self) -> Mapping[str, Tensor]: ...

    @property
    def status(self) -> Any: ...

    @property
    def batch(self) -> torch.Size: ...
