"""Steepest descent of an energy in a metric: where the two meet, once."""

from __future__ import annotations

from torch import Tensor

from otflow import checks
from otflow.energies import Energy
from otflow.fields.base import VelocityField
from otflow.measures import Measure
from otflow.metrics import Metric
from otflow.tangent import Tangent


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
        return f"SteepestDescent({type(self.energy).__name__}, {self.metric!r})"

    def requires_grad(self, t: Tensor, mu: Measure) -> bool:
        return self.energy.wants_graph(mu)

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        return -self.metric.gradient(mu, self.energy.differential(mu))
