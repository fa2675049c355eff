"""Optimal transport: exact, entropic, between Gaussians, conditional on labels; and cheaper distances."""

from otflow.transport.bures.barycentre import bures_barycentre
from otflow.transport.bures.entropic import (
    EntropicTransport,
    entropic_bures_wasserstein,
    gaussian_sinkhorn_divergence,
)
from otflow.transport.bures.geometry import (
    AffineMap,
    bures,
    bures_exp,
    bures_geodesic,
    bures_log,
    bures_map,
    bures_wasserstein,
)
from otflow.transport.discrepancy import EnergyKernel, GaussianKernel, LaplaceKernel, mmd
from otflow.transport.entropic.costs import BilinearCost, Cost, PowerCost
from otflow.transport.entropic.engines import POT, Engine, GeomLoss
from otflow.transport.entropic.newton import NewtonSinkhorn
from otflow.transport.entropic.options import Sinkhorn
from otflow.transport.entropic.sinkhorn import EntropicPlan, sinkhorn, sinkhorn_divergence
from otflow.transport.exact.conditional import (
    RelaxedConditional,
    conditional_wasserstein,
    relaxed_conditional,
)
from otflow.transport.exact.plans import Plan
from otflow.transport.exact.sequences import positions, sequence_distance
from otflow.transport.exact.sliced import sliced_wasserstein
from otflow.transport.exact.wasserstein import solve, wasserstein

__all__ = [
    "AffineMap",
    "BilinearCost",
    "Cost",
    "EnergyKernel",
    "Engine",
    "EntropicPlan",
    "EntropicTransport",
    "GaussianKernel",
    "GeomLoss",
    "LaplaceKernel",
    "NewtonSinkhorn",
    "POT",
    "Plan",
    "PowerCost",
    "RelaxedConditional",
    "Sinkhorn",
    "bures",
    "bures_barycentre",
    "bures_exp",
    "bures_geodesic",
    "bures_log",
    "bures_map",
    "bures_wasserstein",
    "conditional_wasserstein",
    "entropic_bures_wasserstein",
    "gaussian_sinkhorn_divergence",
    "mmd",
    "positions",
    "relaxed_conditional",
    "sequence_distance",
    "sinkhorn",
    "sinkhorn_divergence",
    "sliced_wasserstein",
    "solve",
    "wasserstein",
]
