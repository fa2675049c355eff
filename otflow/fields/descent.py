"""Steepest descent of an energy in a metric: the one place where the two meet."""

from __future__ import annotations

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import dual, learns
from otflow.base.errors import DerivativeError
from otflow.base.parameters import tensors
from otflow.base.tangent import Tangent
from otflow.energies import Energy
from otflow.energies.base import gradient
from otflow.fields.base import VelocityField
from otflow.measures import Measure
from otflow.metrics import Metric, Wasserstein


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
        first, *rest = (c * _differential(term, mu) for term, c in self.energy.pairs())
        return -self.metric.gradient(mu, sum(rest, start=first))


def joint_descent(field: VelocityField) -> SteepestDescent | None:
    """A sum of steepest descents in one metric as the descent of one energy; None if it is no such sum."""
    if isinstance(field, SteepestDescent):
        return field
    parts = [(term, c) for term, c in field.pairs() if isinstance(term, SteepestDescent)]
    if len(parts) < len(field.pairs()):
        return None
    first = parts[0][0]
    plain = all(isinstance(term.metric, Wasserstein) for term, _ in parts)
    if not (plain or all(term.metric is first.metric for term, _ in parts)):
        return None
    pairs = [(energy, c * b) for term, c in parts for energy, b in term.energy.pairs()]
    return SteepestDescent(first.energy.combination(pairs), first.metric)


def _differential(energy: Energy, mu: Measure) -> Tangent:
    """The differential of one term, with the forward tangents that autograd loses put back."""
    found, inputs = energy.differential(mu), [forward_ad.unpack_dual(c) for c in mu.coords]
    if all(c.tangent is None for c in inputs):
        return found
    parts = [forward_ad.unpack_dual(p) for p in found]
    if all(p.tangent is not None for p in parts):
        return found
    if any(dual(a) for a in tensors(energy)):
        raise DerivativeError(
            f"tangents in the measure and in the parameters of {energy!r} do not pass its differential "
            "together; ask for the derivative in each of them alone, and add."
        )
    u = Tangent(torch.zeros_like(c.primal) if c.tangent is None else c.tangent for c in inputs)
    second = _hessian(energy, mu.at([c.primal for c in inputs]), u)
    return Tangent(forward_ad.make_dual(p.primal.contiguous(), d) for p, d in zip(parts, second, strict=True))


def _hessian(energy: Energy, mu: Measure, u: Tangent) -> Tangent:
    """The second derivative of the energy applied to u: the gradient of <differential, u>."""
    with torch.enable_grad():
        coords = [c.detach().requires_grad_() for c in mu.coords]
        slope = energy.differential(mu.at(coords))
        along = torch.stack([(g * d).sum() for g, d in zip(slope, u, strict=True)]).sum()
        if not along.requires_grad and type(energy).differential is Energy.differential:
            return u.map(torch.zeros_like)  # a linear energy; a differential without a graph is refused
        return gradient(along, coords)
