"""Homogenized Transformers: what very many layers of random weights do to tokens.

Every layer has H heads with random values V and scores A, and normalises (Koubbi, Geshkovski, Rigollet,
"Homogenized Transformers", 2026, arXiv 2604.01978, read in a formalised transcription):

    x_i <- N(x_i + eta/H sum_h B_h(x_i)),  B_h(z) = sum_k softmax_k(beta <A_h z, x_k>) V_h x_k,  N(x) = x/|x|.

For many layers and small steps this is an ODE, x_i' = P_i E B(x_i) in depth eta L, if eta / H -> 0, and an
SDE in which all tokens share the noise otherwise. With centred Gaussian values the mean is zero, and on the
rescaled clock t = eta^2 L / H, with V of entries N(0, 1/d),

    dx_i = d^-1/2 P_i sum_j (s^1/2)_ij dW_j - (d - 1)/(2 d) s_ii x_i dt,     s_ij = E_A <m_A(x_i), m_A(x_j)>,

m_A(x) the softmax barycentre. Such a chain is itself a scheme for this SDE: its step on the clock is
eta^2 / H, its s that of H heads (ours), so that its weak error is of that order.

Overlaps R_ij = <x_i, x_j> have the drift `overlap_drift`. At high temperature their mean is logistic; for
tokens at equal angles they follow one ODE; at low temperature a pair ends parallel or antipodal, by the
arcsine law. In between, a head looks at few tokens or many as in a random-energy model: `participation`,
`collapse_diagram`. For A = W W'^T itself the drift at low temperature is twice the printed one, as
`low_temperature_paths` explains.

Printed statements that need a correction: the ODE for equal angles, gamma' = (1 - gamma)(gamma + g - gamma
f), is the limit d -> infinity of `simplex_velocity`; and in the bound for low temperature, that overlaps near
the uniform law move by at most T/d + C sqrt(T/d log(1/delta)) + C T (d^-3/2 + beta_eff^-1/2) until T, the
factor T of the last term is left out, and beta stands for beta_eff = beta d sigma_A^2.
"""

from __future__ import annotations

from otflow.papers.homogenized.closed_laws import (
    Ratios,
    aligned_probability,
    logistic,
    low_temperature_paths,
    simplex,
    simplex_overlap,
    simplex_ratios,
    simplex_velocity,
)
from otflow.papers.homogenized.limits import (
    ExpectedAttention,
    HeadNoise,
    flat_drift,
    ode,
    overlap_bracket,
    overlap_drift,
    s_matrix,
    sde,
)
from otflow.papers.homogenized.random_energy import (
    CollapseDiagram,
    collapse_diagram,
    critical_scale,
    frozen_participation,
    participation,
)
from otflow.papers.homogenized.random_layers import ChainRun, chain
from otflow.papers.homogenized.weights import GaussianWeights, Law

__all__ = [
    "GaussianWeights",
    "Law",
    "chain",
    "ChainRun",
    "s_matrix",
    "overlap_drift",
    "overlap_bracket",
    "flat_drift",
    "ExpectedAttention",
    "HeadNoise",
    "ode",
    "sde",
    "simplex",
    "simplex_ratios",
    "Ratios",
    "simplex_velocity",
    "simplex_overlap",
    "logistic",
    "aligned_probability",
    "low_temperature_paths",
    "participation",
    "frozen_participation",
    "critical_scale",
    "collapse_diagram",
    "CollapseDiagram",
]
