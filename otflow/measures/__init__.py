"""Measures: clouds of particles, Gaussians, densities on grids."""

from otflow.measures.base import Measure, where
from otflow.measures.gaussian import Gaussian
from otflow.measures.grid import Grid
from otflow.measures.particles import Particles

__all__ = ["Gaussian", "Grid", "Measure", "Particles", "where"]
