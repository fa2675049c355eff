"""Velocity fields: attention in all its kinds, the feed-forward block, and steepest descent."""

from otflow.fields import gradient_flows  # noqa: F401  (it registers which fields are descents)
from otflow.fields.attention import L2Attention, SigmoidAttention, SoftmaxAttention, UnnormalisedAttention
from otflow.fields.base import Carry, VelocityField
from otflow.fields.contract import check
from otflow.fields.descent import SteepestDescent
from otflow.fields.multihead import MultiHead
from otflow.fields.perceptron import Perceptron
from otflow.fields.projection import GaussianProjection, project
from otflow.fields.sinkhorn import SinkhornAttention
from otflow.fields.tokens import TokenField
from otflow.fields.weights import Layers

__all__ = [
    "Carry",
    "GaussianProjection",
    "L2Attention",
    "Layers",
    "MultiHead",
    "Perceptron",
    "SigmoidAttention",
    "SinkhornAttention",
    "SoftmaxAttention",
    "SteepestDescent",
    "TokenField",
    "UnnormalisedAttention",
    "VelocityField",
    "check",
    "project",
]
