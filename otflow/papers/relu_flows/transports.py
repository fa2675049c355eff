"""Transports that the claims and the pictures of `controllability` look at."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import cauchy, norm, t

from otflow.papers import relu_flows as rf

MIXTURE = rf.Mixture1d([0.3, 0.7], [norm(-2, 0.5), norm(1, 0.8)])
LINE = np.array([4, 8, 16, 32, 64, 128])
LEVELS = np.geomspace(1e-12, 1e-2, 41)
HEAVY = {"Cauchy": cauchy(), "t, 2 degrees": t(2), "t, 3 degrees": t(3), "mixture": MIXTURE}
Array = np.ndarray


class Plane(NamedTuple):
    """Runs in the plane for several K, as they are and with medians off."""

    K: Array
    plain: list[rf.ReluTransport]
    centred: list[rf.ReluTransport]


def curved(j: int, y: Array) -> Any:
    """x_1 ~ N(0, 1), x_2 | x_1 ~ N(0.6 (x_1^2 - 1), (0.5 + 0.2 tanh x_1)^2).

    >>> import numpy as np
    >>> from otflow.papers.relu_flows.transports import curved
    >>> float(curved(1, np.array([[1.0]])).mean()[0])
    0.0
    """
    if j == 0:
        return norm(np.zeros(len(y)), 1)
    return norm(0.6 * (y[:, 0] ** 2 - 1), 0.5 + 0.2 * np.tanh(y[:, 0]))


def in_the_plane(cells: tuple[int, ...], samples: int) -> Plane:
    """Knothe-Rosenblatt maps from a standard Gaussian, with strips so thin that they do not count."""
    base = [norm(), norm()]
    plain, centred = (
        [rf.knothe_rosenblatt(base, curved, K, centre=c, delta=1e-8, samples=samples) for K in cells]
        for c in (False, True)
    )
    return Plane(np.array(cells), plain, centred)


def values(runs: list[rf.ReluTransport], name: str) -> Array:
    """The errors of that name, "kl", "tv" or "l2"."""
    return np.array([getattr(run, name) for run in runs])


def log_normal(x: Any) -> Array:
    """The log-density of a standard Gaussian at points (*batch, d)."""
    return np.asarray(norm.logpdf(x).sum(-1))


def beyond(run: rf.ReluTransport, law: Any) -> Array:
    """u g(u), the part of KL in d log u at upper quantile u: KL is finite if it decays as u falls."""
    y = np.asarray(law.isf(LEVELS))
    return np.asarray(LEVELS * np.abs(law.logpdf(y) - run.flow.log_density(y[:, None], log_normal).numpy()))
