"""Optimal transport: exact, entropic, between Gaussians, conditional on labels; and cheaper distances."""

from otflow.transport.barycentre import bures_barycentre
from otflow.transport.conditional import RelaxedConditional, conditional_wasserstein, relaxed_conditional
from otflow.transport.costs import BilinearCost, Cost, PowerCost
from otflow.transport.discrepancy import EnergyKernel, GaussianKernel, LaplaceKernel, mmd
from otflow.transport.engines import POT, Engine, GeomLoss
from otflow.transport.entropic import EntropicPlan, sinkhorn, sinkhorn_divergence
from otflow.transport.entropic_bures import (
    EntropicTransport,
    entropic_bures_wasserstein,
    gaussian_sinkhorn_divergence,
)
from otflow.transport.exact import solve, wasserstein
from otflow.transport.gaussians import (
    AffineMap,
    bures,
    bures_exp,
    bures_geodesic,
    bures_log,
    bures_map,
    bures_wasserstein,
)
from otflow.transport.newton import NewtonSinkhorn
from otflow.transport.plan import Plan
from otflow.transport.sequences import positions, sequence_distance
from otflow.transport.sliced import sliced_wasserstein

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
