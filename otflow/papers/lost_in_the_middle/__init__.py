"""Causal attention with ALiBi on the circle, and the lost-in-the-middle phenomenon.

A prompt of N tokens theta_1, ..., theta_N on the circle moves by

    d theta_j / dt = 1/Z_j sum_{k<j} exp(-lam (j-k)/N) w'(theta_j - theta_k),    w(x) = exp(beta cos x),

with Z_j = sum_{k<j} exp(-lam (j-k)/N): every token listens to those before it, more to the near ones. In the
mean-field limit positions do not matter; what the last token knows of another one is of order 1/N, and this
order has a closed form (Duerinckx, Geshkovski, Rossi 2026, arXiv 2605.09213). The field, prompts and what is
measured on them are in `causal`, the closed forms in `retrieval`, finite N in `rollout`, prompts with any
density in `hierarchy`.
"""

from otflow.papers.lost_in_the_middle.causal import (
    CausalAlibi,
    Estimate,
    angles,
    correlations,
    gradient_correlations,
    prompts,
    soft_accuracy,
    tokens,
)
from otflow.papers.lost_in_the_middle.hierarchy import Correlations, correlation_functions
from otflow.papers.lost_in_the_middle.retrieval import (
    accuracy,
    coupling,
    critical_time,
    depth,
    dominant_mode,
    graphon,
    hop,
    predicted_accuracy,
    response,
    retrieval_profile,
    u_shape_time,
)
from otflow.papers.lost_in_the_middle.rollout import alibi_matrix, finite_profile, finite_response

__all__ = [
    "CausalAlibi",
    "tokens",
    "angles",
    "prompts",
    "Estimate",
    "correlations",
    "gradient_correlations",
    "soft_accuracy",
    "graphon",
    "depth",
    "coupling",
    "response",
    "retrieval_profile",
    "hop",
    "critical_time",
    "dominant_mode",
    "u_shape_time",
    "accuracy",
    "predicted_accuracy",
    "alibi_matrix",
    "finite_response",
    "finite_profile",
    "Correlations",
    "correlation_functions",
]
