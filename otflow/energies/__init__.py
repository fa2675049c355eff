"""Energies of measures, and their differentials."""

from otflow.energies import quantiles  # noqa: F401  (registers internal energies on quantiles)
from otflow.energies.base import Energy
from otflow.energies.contract import check
from otflow.energies.gaussian_attention import L2Energy, SelfTransport, SquaredScores
from otflow.energies.interaction import Interaction
from otflow.energies.internal import DensityBound, Entropy, Internal, PorousMedium
from otflow.energies.kernel_interactions import ExponentialInteraction, SigmoidInteraction
from otflow.energies.potential import Potential
from otflow.energies.quadratic import QuadraticInteraction, QuadraticPotential
from otflow.energies.targets import MMD, SinkhornDivergence, SquaredWasserstein

__all__ = [
    "DensityBound",
    "Energy",
    "Entropy",
    "ExponentialInteraction",
    "Interaction",
    "Internal",
    "L2Energy",
    "MMD",
    "PorousMedium",
    "Potential",
    "QuadraticInteraction",
    "QuadraticPotential",
    "SelfTransport",
    "SigmoidInteraction",
    "SinkhornDivergence",
    "SquaredScores",
    "SquaredWasserstein",
    "check",
]
