"""Optimal transport: exact, entropic, between Gaussians, conditional on labels; and cheaper distances."""

from otflow.transport.bures.barycentre import bures_barycentre
from otflow.transport.bures.gaussian_transport import GaussianTransport
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
from otflow.transport.entropic.costs import BilinearCost, Cost, Features, Parts, PowerCost
from otflow.transport.entropic.engines import POT, ColumnPotential, Engine, GeomLoss
from otflow.transport.entropic.newton import NewtonSinkhorn
from otflow.transport.entropic.options import Sinkhorn
from otflow.transport.entropic.sinkhorn import EntropicTransport, sinkhorn, sinkhorn_divergence
from otflow.transport.exact.conditional import (
    RelaxedConditional,
    conditional_wasserstein,
    relaxed_conditional,
    solve_conditional,
)
from otflow.transport.exact.plans import ExactTransport
from otflow.transport.exact.sequences import positions, sequence_distance
from otflow.transport.exact.sliced import sliced_wasserstein
from otflow.transport.exact.wasserstein import solve, wasserstein
from otflow.transport.result import Transport

__all__ = [
    "AffineMap",
    "BilinearCost",
    "ColumnPotential",
    "Cost",
    "EnergyKernel",
    "Engine",
    "EntropicTransport",
    "ExactTransport",
    "Features",
    "GaussianKernel",
    "GaussianTransport",
    "GeomLoss",
    "LaplaceKernel",
    "NewtonSinkhorn",
    "POT",
    "Parts",
    "PowerCost",
    "RelaxedConditional",
    "Sinkhorn",
    "Transport",
    "bures",
    "bures_barycentre",
    "bures_exp",
    "bures_geodesic",
    "bures_log",
    "bures_map",
    "bures_wasserstein",
    "conditional_wasserstein",
    "mmd",
    "positions",
    "relaxed_conditional",
    "sequence_distance",
    "sinkhorn",
    "sinkhorn_divergence",
    "sliced_wasserstein",
    "solve",
    "solve_conditional",
    "wasserstein",
]
