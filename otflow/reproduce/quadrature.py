"""Attention on Gaussians by quadrature: sums over nodes, kernels scaled by hand, nothing of the library."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

Array = np.ndarray


class Nodes(NamedTuple):
    """Points x (n, d) and weights w (n,) of a Gauss-Hermite rule for a centred Gaussian."""

    x: Array
    w: Array


def nodes(cov: Array, order: int) -> Nodes:
    """A rule with ``order`` points along each axis.

    >>> import numpy as np
    >>> from otflow.reproduce.quadrature import nodes
    >>> x, w = nodes(np.diag([2.0, 1.0]), 8)
    >>> bool(np.allclose((w[:, None] * x).T @ x, np.diag([2.0, 1.0])))
    True
    """
    z, w = np.polynomial.hermite_e.hermegauss(order)
    d = len(cov)
    grid = np.stack(np.meshgrid(*[z] * d, indexing="ij"), -1).reshape(-1, d)
    weights = np.stack(np.meshgrid(*[w / w.sum()] * d, indexing="ij"), -1).reshape(-1, d).prod(-1)
    return Nodes(grid @ np.linalg.cholesky(cov).T, weights)


def scaled(score: Array, a: Array, b: Array, *, sweeps: int = 500) -> Array:
    """The plan with marginals a and b (weights) and density exp(f + g + score), by Sinkhorn's iteration.

    >>> import numpy as np
    >>> from otflow.reproduce.quadrature import scaled
    >>> scaled(np.zeros((2, 2)), np.array([0.5, 0.5]), np.array([0.25, 0.75])).tolist()
    [[0.125, 0.375], [0.125, 0.375]]
    """
    f, g = np.zeros(len(a)), np.zeros(len(b))
    for _ in range(sweeps):
        f = -logsumexp(score + g + np.log(b), axis=1)
        new = -logsumexp(score.T + f + np.log(a), axis=1)
        done, g = np.abs(new - g).max() < 1e-13, new
        if done:
            break
    return np.asarray(np.exp(score + f[:, None] + g) * a[:, None] * b)


def power(plan: Array, x: Array, values: Array) -> float:
    """d/dt tr S = 2 E[x.v], where v is the average of the values under the plan.

    >>> import numpy as np
    >>> from otflow.reproduce.quadrature import power
    >>> power(np.eye(2) / 2, np.array([[1.0], [-1.0]]), np.array([[3.0], [-3.0]]))
    6.0
    """
    return float(2 * np.einsum("ij,ik,jk->", plan, x, values))


def normalised(score: Array, w: Array) -> Array:
    """The plan of softmax: each row has the mass of its node.

    >>> import numpy as np
    >>> from otflow.reproduce.quadrature import normalised
    >>> normalised(np.zeros((2, 2)), np.array([0.5, 0.5])).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """
    return np.asarray(w[:, None] * np.exp(score + np.log(w) - logsumexp(score + np.log(w), axis=1)[:, None]))
