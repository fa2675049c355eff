"""The emergence of clusters in self-attention dynamics: polytopes, hyperplanes, Boolean attention.

Tokens in R^d, without normalisation, with the same weights in every layer,

    dx_i/dt = sum_j P_ij V x_j,    P_ij = exp <Q x_i, K x_j> / sum_k exp <Q x_i, K x_k>,

grow like exp(tV). What is left once this growth is taken away, z_i = exp(-tV) x_i, converges, and to what
depends on the spectrum of V:

    V = I, Q^T K > 0                     points of a convex polytope, its vertices as a rule    (Theorem 3.1)
    leading eigenvalue simple            at most three parallel hyperplanes                     (Theorem 4.2)
    leading eigenvalue multiple          a polytope times a subspace                            (Theorem 5.2)
    d = 1, V > 0, QK > 0                 P becomes a Boolean matrix of rank at most two         (Theorem 2.1)
    V = -I, Q^T K = I                    the tokens themselves go to 0, like 1 / sqrt(t)

Reference: Geshkovski, Letrouit, Polyanskiy and Rigollet 2023, arXiv:2305.05465. Numbers of theorems,
equations and sections follow a third-party formalisation of its statements.
"""

from otflow.papers.clusters.polytopes import Polytope, distinct, hull, limit_set, violation
from otflow.papers.clusters.rescaling import (
    attention_matrix,
    boolean_limit,
    decay,
    horizon,
    is_boolean,
    leaders,
    pair_limit,
    rank,
    rescaled,
    run,
    undecided,
)
from otflow.papers.clusters.spectrum import Directions, Hyperplanes, directions, hyperplanes, metric

__all__ = [
    "rescaled",
    "run",
    "horizon",
    "attention_matrix",
    "undecided",
    "is_boolean",
    "boolean_limit",
    "rank",
    "leaders",
    "Polytope",
    "hull",
    "metric",
    "violation",
    "limit_set",
    "distinct",
    "Hyperplanes",
    "hyperplanes",
    "Directions",
    "directions",
    "decay",
    "pair_limit",
]
