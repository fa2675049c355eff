"""Energies of measures, and their differentials."""

from otflow.energies.base import Energy
from otflow.energies.interaction import Interaction
from otflow.energies.potential import Potential
from otflow.energies.scores import L2Energy, SelfTransport, SquaredScores

__all__ = ["Energy", "Interaction", "L2Energy", "Potential", "SelfTransport", "SquaredScores"]
