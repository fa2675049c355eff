"""Modes of Gaussian kernel density estimators: how many tokens make how many clusters.

The estimator of tokens X_1..X_n with inverse temperature beta is, up to a factor,

    P(t) = sum_i exp(-beta (t - X_i)^2 / 2),    bandwidth 1 / sqrt(beta),

and its modes are where mean shift, that is attention with a frozen cloud, carries tokens. For X_i ~ N(0, 1)
and n^c <= beta <= n^(2-c) there are of order sqrt(beta log beta) of them, nearly all in the belt
t^2 in [2 log n - 3 log beta, 2 log n - log beta] (Geshkovski, Rigollet, Sun, On the number of modes of
Gaussian kernel density estimators, 2026, arXiv 2412.09080). Below the belt P follows the density of the
tokens, above it tokens are alone. In a fixed interval around zero (Mammen, as quoted there) there is one
mode for beta << n^(2/5), of order n^(-1/2) beta^(5/4) for n^(2/5) << beta << n^(2/3), and of order sqrt(beta)
beyond.

Modes are counted to rounding by `otflow.papers.kde_modes.counting`; here are the counts and what is expected.
"""

from otflow.papers.kde_modes.modes import (
    ModeCount,
    asymptotic_constant,
    belt,
    certified_modes,
    clusters_of_state,
    count_modes,
    count_modes_circle,
    drift_damping,
    expected_modes,
    kac_rice_density,
    kac_rice_modes,
    mode_density,
    mode_positions,
)
from otflow.papers.kde_modes.shot_noise import shot_noise_modes

__all__ = [
    "count_modes",
    "mode_positions",
    "certified_modes",
    "ModeCount",
    "count_modes_circle",
    "clusters_of_state",
    "expected_modes",
    "mode_density",
    "shot_noise_modes",
    "kac_rice_modes",
    "kac_rice_density",
    "drift_damping",
    "belt",
    "asymptotic_constant",
]
