"""Self-attention on the sphere: clusters, energies, equiangular tokens and phase diagrams.

The model of Geshkovski, Letrouit, Polyanskiy and Rigollet, A mathematical perspective on Transformers,
Bulletin of the AMS 2025, arXiv 2312.10794. Tokens on the unit sphere of R^d move with

    SA:    x_i' = P_i sum_j exp(beta x_i.x_j) x_j / sum_j exp(beta x_i.x_j)
    USA:   x_i' = P_i sum_j exp(beta x_i.x_j) x_j / n

where P_i projects to the tangent space at x_i. Both ascend E_beta = 1/(2 beta) int int exp(beta x.y) dmu dmu.
"""

from otflow.papers.perspective.energies import (
    energy,
    extreme_energies,
    hemisphere_probability,
    log_extreme_energies,
)
from otflow.papers.perspective.overlaps import (
    collapse_time,
    equiangular,
    high_dimension_bound,
    layer_overlap,
    temperature_regime,
)
from otflow.papers.perspective.phases import PhaseDiagram, phase_diagram
from otflow.papers.perspective.random_weights import ginibre, goe, learned_like, redrawn
from otflow.papers.tokens.sphere import angles, attention, circle, uniform

__all__ = [
    "attention",
    "circle",
    "angles",
    "uniform",
    "hemisphere_probability",
    "energy",
    "extreme_energies",
    "log_extreme_energies",
    "equiangular",
    "collapse_time",
    "high_dimension_bound",
    "PhaseDiagram",
    "phase_diagram",
    "layer_overlap",
    "temperature_regime",
    "ginibre",
    "goe",
    "learned_like",
    "redrawn",
]
