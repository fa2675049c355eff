"""Measures: clouds of particles, Gaussians, densities on grids, quantile functions on the line."""

from otflow.base.spaces import Euclidean, Space, Sphere, Torus
from otflow.measures.base import Measure, where
from otflow.measures.gaussian import Gaussian
from otflow.measures.grid import Grid
from otflow.measures.particles import Particles
from otflow.measures.quantiles import Quantiles, graded_levels, richardson

__all__ = [
    "Euclidean",
    "Gaussian",
    "Grid",
    "Measure",
    "Particles",
    "Quantiles",
    "Space",
    "Sphere",
    "Torus",
    "graded_levels",
    "richardson",
    "where",
]
