"""Steepest descent of an energy in a metric: the one place where the two meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import learns
from otflow.base.parameters import tensors
from otflow.base.tangent import Tangent
from otflow.energies import Energy
from otflow.energies.base import gradient
from otflow.fields.base import VelocityField
from otflow.measures import Measure
from otflow.metrics import Metric


class SteepestDescent(VelocityField):
    """v = -grad F: the gradient flow of ``energy`` in ``metric``.

    In W2, v(x) = -grad (dF/dmu)(x); ascent is the descent of ``-energy``.

    >>> import otflow as of
    >>> field = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> field(0.0, of.Particles([[3.0], [5.0]]))[0].flatten()
    tensor([-3., -5.], dtype=torch.float64)
    """

    def __init__(self, energy: Energy, metric: Metric) -> None:
        self.energy: Energy = checks.instance(energy, Energy, "energy")
        self.metric: Metric = checks.instance(metric, Metric, "metric")

    def __repr__(self) -> str:
        return f"SteepestDescent({self.energy!r}, {self.metric!r})"

    def admit(self, mu: Measure) -> None:
        """Refuse measures on which this is not the descent that was asked for."""

    def requires_grad(self, t: Tensor, mu: Measure) -> bool:
        return self.energy.wants_graph(mu) or learns(*tensors(self.metric))

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        self.admit(mu)
        v = -self.metric.gradient(mu, self.energy.differential(mu))
        u = [forward_ad.unpack_dual(c) for c in mu.coords]
        if all(c.tangent is None for c in u) or any(forward_ad.unpack_dual(p).tangent is not None for p in v):
            return v
        return self._dual(mu, u)

    def _dual(self, mu: Measure, u: Sequence[Any]) -> Tangent:
        """The velocity with its derivative along u, where differentials by autograd lose forward tangents.

        The transposed derivative c -> <c, dv> is linear in c, and its own transpose is the derivative.
        """
        with torch.enable_grad():
            coords = [c.primal.detach().requires_grad_() for c in u]
            at = mu.at(coords)
            v = -self.metric.gradient(at, self.energy.differential(at))
            c = [torch.zeros_like(p, requires_grad=True) for p in v]
            paired = torch.stack([(p * q).sum() for p, q in zip(v, c, strict=True)]).sum()
            pulled = gradient(paired, coords, create_graph=True)
            along = [(g * d.tangent).sum() for g, d in zip(pulled, u, strict=True) if d.tangent is not None]
            dv = gradient(torch.stack(along).sum(), c)
        return Tangent(forward_ad.make_dual(p.detach(), d) for p, d in zip(v, dv, strict=True))
