"""Clusters of tokens on the circle that wait exponentially long before they merge: when, where, which.

Attention on the circle, with inverse temperature beta, moves clusters of masses m_q at angles theta_q with

    USA   theta_p' = -sum_q m_q E_pq sin(theta_p - theta_q),   E_pq = exp(beta (cos(theta_p - theta_q) - 1))
    SA    the same over sum_q m_q E_pq

(Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833; time is that of this kernel, exp(beta) times
slower for USA than with exp(beta <x, y>)). Two clusters alone are solved by quadrature (`merge_time`,
`merge_point`); several merge pair by pair (`staircase`), which `slow_flow` checks without that assumption.
How long tokens near k points of a sphere stay there is bounded by `metastable_times`. Numbers of sections and
printed formulas follow a third-party formalisation of the statements of the paper, not the paper itself.
"""

from otflow.papers.metastability.arclength import Arclength, Merge, SaddleToSaddle, energy, slow_flow
from otflow.papers.metastability.caps import (
    Caps,
    UniformCaps,
    cap_index,
    metastable_times,
    separation,
    uniform_condition,
)
from otflow.papers.metastability.merging import Staircase, merge_point, merge_time, staircase

__all__ = [
    "Arclength",
    "Caps",
    "Merge",
    "SaddleToSaddle",
    "Staircase",
    "UniformCaps",
    "cap_index",
    "energy",
    "merge_point",
    "merge_time",
    "metastable_times",
    "separation",
    "slow_flow",
    "staircase",
    "uniform_condition",
]
