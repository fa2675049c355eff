"""Examples that tell printed formulas from right ones: a covariance, weights, and a flow that explodes."""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow import closed_forms
from otflow.reproduce.quadrature import nodes, power, scaled

EPS = 2.0  # of the debiased divergence
S = np.array([[0.8, 0.3], [0.3, 0.4]])
Q = np.array([[0.9, -0.5], [0.2, 0.7]])
K = np.array([[0.6, 0.4], [-0.7, 0.8]])
V = np.array([[1.0, 0.5], [-0.3, 0.7]])
A = K.T @ Q  # like V neither symmetric nor commuting with S, so that the order of factors is seen
START = np.array([[1.0, 0.5], [0.5, 1.0]])  # of the flow that explodes, at t = 3


def debiased(c: float, order: int) -> float:
    """4 (E[xy] across - E[xy] within): the rate of the variance c on its way to 1, cost |x - y|^2, eps = 2.

    >>> from otflow.papers.unified.examples import debiased
    >>> abs(debiased(1.0, 8)) < 1e-12
    True
    """
    own, target = nodes(np.array([[c]]), 2 * order), nodes(np.array([[1.0]]), 2 * order)
    plans = [scaled(-np.square(own.x - other.x.T) / EPS, own.w, other.w) for other in (target, own)]
    across, within = (power(p, own.x, other.x) / 2 for p, other in zip(plans, (target, own), strict=True))
    return 4 * (across - within)


def explosion(t1: float, save_at: Any) -> of.Trajectory:
    """The flow of `closed_forms.l2_counterexample` from ((1, 1/2), (1/2, 1)).

    >>> from otflow.papers.unified.examples import explosion
    >>> round(explosion(10.0, [0.0]).blow_up_time.item(), 4)
    3.0
    """
    example = closed_forms.l2_counterexample()
    field, mu0 = of.L2Attention(example.Q, example.K, example.V), of.Gaussian([0.0, 0.0], cov=START)
    return of.flow(mu0, field, of.Dopri5(), t1=t1, save_at=save_at)
