"""Closed forms of attention and of gradient flows: oracles that use none of the code they can judge.

S is a covariance, A = K^T Q, and attention moves tokens of law N(0, S) linearly, x' = B x, so that
dS/dt = B S + S B^T (Castin, Ablin, Carrillo, Peyré, A unified perspective on the dynamics of deep
Transformers, 2025, arXiv 2501.18322). Everything takes numpy or torch, batch axes in front, and gives
float64.
"""

from otflow.closed_forms.aggregation import (
    keller_segel_rate,
    line_equilibrium,
    log_gas_second_moment,
    riesz_radius,
    ring_radius,
)
from otflow.closed_forms.barenblatt import (
    barenblatt,
    barenblatt_constant,
    barenblatt_grid,
    barenblatt_profile,
    barenblatt_quantile,
    barenblatt_radius,
)
from otflow.closed_forms.bounds import (
    L2Counterexample,
    l2_counterexample,
    l2_trace_bound,
    sinkhorn_trace_bound,
)
from otflow.closed_forms.diffusion import fokker_planck, heat_deviation
from otflow.closed_forms.energies import (
    l2_descent,
    l2_energy,
    multihead_descent,
    multihead_energy,
    sinkhorn_descent,
    sinkhorn_energy,
    softmax_descent,
    softmax_energy,
    twisted_energy,
)
from otflow.closed_forms.entropic import (
    debiased_rate,
    entropic_cross,
    entropic_value,
    heat_path,
    l2_displacement,
    score,
    sinkhorn_displacement,
)
from otflow.closed_forms.jko import aggregation_step, barenblatt_radius_step, fokker_planck_step, heat_step
from otflow.closed_forms.line import (
    l2_variance,
    sinkhorn_variance,
    softmax_variance,
    softmax_variance_blow_up,
)
from otflow.closed_forms.rates import (
    l2_rate,
    multihead_rate,
    sinkhorn_cross,
    sinkhorn_rate,
    sinkhorn_rate_inverse_left,
    sinkhorn_rate_inverse_right,
    softmax_rate,
)
from otflow.closed_forms.sensitivity import (
    l2_sensitivity,
    sinkhorn_sensitivity,
    softmax_blow_up_sensitivity,
    softmax_path_sensitivity,
    softmax_sensitivity,
)
from otflow.closed_forms.softmax import (
    softmax_blow_up_bound,
    softmax_blow_up_direction,
    softmax_blow_up_profile,
    softmax_blow_up_time,
    softmax_limit,
    softmax_limit_rank,
    softmax_limit_rank_bound,
    softmax_lyapunov,
    softmax_lyapunov_rate,
    softmax_path,
)

__all__ = [
    "L2Counterexample",
    "aggregation_step",
    "barenblatt",
    "barenblatt_constant",
    "barenblatt_grid",
    "barenblatt_profile",
    "barenblatt_quantile",
    "barenblatt_radius",
    "barenblatt_radius_step",
    "debiased_rate",
    "entropic_cross",
    "entropic_value",
    "fokker_planck",
    "fokker_planck_step",
    "heat_deviation",
    "heat_path",
    "heat_step",
    "keller_segel_rate",
    "l2_counterexample",
    "l2_descent",
    "l2_displacement",
    "l2_energy",
    "l2_rate",
    "l2_sensitivity",
    "l2_trace_bound",
    "l2_variance",
    "line_equilibrium",
    "log_gas_second_moment",
    "multihead_descent",
    "multihead_energy",
    "multihead_rate",
    "riesz_radius",
    "ring_radius",
    "score",
    "sinkhorn_cross",
    "sinkhorn_descent",
    "sinkhorn_displacement",
    "sinkhorn_energy",
    "sinkhorn_rate",
    "sinkhorn_rate_inverse_left",
    "sinkhorn_rate_inverse_right",
    "sinkhorn_sensitivity",
    "sinkhorn_trace_bound",
    "sinkhorn_variance",
    "softmax_blow_up_bound",
    "softmax_blow_up_direction",
    "softmax_blow_up_profile",
    "softmax_blow_up_sensitivity",
    "softmax_blow_up_time",
    "softmax_descent",
    "softmax_energy",
    "softmax_limit",
    "softmax_limit_rank",
    "softmax_limit_rank_bound",
    "softmax_lyapunov",
    "softmax_lyapunov_rate",
    "softmax_path",
    "softmax_path_sensitivity",
    "softmax_rate",
    "softmax_sensitivity",
    "softmax_variance",
    "softmax_variance_blow_up",
    "twisted_energy",
]
