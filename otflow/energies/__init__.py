"""Energies of measures, and their differentials."""

from otflow.energies.base import Energy
from otflow.energies.interaction import Interaction
from otflow.energies.potential import Potential

__all__ = ["Energy", "Interaction", "Potential"]
