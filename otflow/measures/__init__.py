"""Measures: clouds of particles, Gaussians, densities on grids, quantile functions on the line."""

from otflow.measures.base import Measure, where
from otflow.measures.gaussian import Gaussian
from otflow.measures.grid import Grid
from otflow.measures.particles import Particles
from otflow.measures.quantiles import Quantiles, graded_levels, richardson

__all__ = [
    "Gaussian",
    "Grid",
    "Measure",
    "Particles",
    "Quantiles",
    "graded_levels",
    "richardson",
    "where",
]
