"""Energies of tokens on the sphere, and how likely tokens are to share a hemisphere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import Array, insist, numbers, tensor, whole
from otflow.energies import Energy, ExponentialInteraction


def hemisphere_probability(n: Any, d: Any) -> Tensor:
    """2^(1 - n) sum_{k < d} binom(n - 1, k): n uniform tokens in R^d share an open hemisphere (Wendel 1962).

    From there all tokens meet in one point, exponentially fast (arXiv 2312.10794, Lemma 6.4); for n <= d
    the probability is 1 (Theorem 6.3). It is the distribution function of a binomial
    law, here by the incomplete beta function, and 0 below the smallest number. n and d broadcast.

    >>> from otflow.papers.perspective import hemisphere_probability
    >>> hemisphere_probability(10, [2, 3, 10])
    tensor([0.0195, 0.0898, 1.0000], dtype=torch.float64)
    """
    n, d = numbers(n=n, d=d)
    whole(n, "n", 1)
    whole(d, "d", 1)
    return tensor(np.where(n <= d, 1.0, betainc(np.maximum(n - d, 1.0), d, 0.5)))


# --- energies ------------------------------------------------------------------------------------------


def energy(beta: float, d: int) -> Energy:
    """E_beta(mu) = 1/(2 beta) int int exp(beta x.y) dmu(x) dmu(y), beta > 0.

    USA is its steepest ascent in W2, and SA is in the metric that weighs velocities by
    Z(x) = int exp(beta x.y) dmu(y): with v the velocity,

        dE/dt = int |v|^2 dmu  (USA),        dE/dt = int |v|^2 Z dmu  (SA)

    (arXiv 2312.10794, Lemmas 3.6 and 3.7, section 3.4). For n tokens the gradient in all positions is v / n,
    whence the factor n in X' = n grad E of Remark 3.8.

    >>> import math
    >>> from otflow.papers.perspective import energy
    >>> import otflow as of
    >>> mu = of.Particles([[1.0, 0.0], [0.0, 1.0]], space=of.Sphere())
    >>> energy(1.0, 2)(mu).item() - (1 + math.e) / 4
    0.0
    """
    b = checks.positive(beta, "beta")
    return ExponentialInteraction(b * torch.eye(checks.count(d, "d"), dtype=torch.float64)) / b


def extreme_energies(beta: Any, d: Any) -> tuple[Tensor, Tensor]:
    """The least and the largest E_beta: 0F1(; d/2; beta^2/4) / (2 beta) and exp(beta) / (2 beta).

    The first is the energy of the uniform law, the only minimiser, the second that of a single point, and
    only of these (arXiv 2312.10794, Proposition 3.4). beta > 0 and d >= 2 broadcast. An error where the
    energy exceeds the largest number; `log_extreme_energies` does not.

    >>> from otflow.papers.perspective import extreme_energies
    >>> low, high = extreme_energies(2.0, 3)  # sinh(2) / 8, exp(2) / 4
    >>> low, high
    (tensor(0.4534, dtype=torch.float64), tensor(1.8473, dtype=torch.float64))
    """
    low, high = log_extreme_energies(beta, d)
    beta, _ = numbers(beta=beta, d=d)
    fits = high.numpy() < math.log(np.finfo(float).max)
    insist(fits, "beta", beta, "exp(beta) / (2 beta) exceeds the largest number", "use log_extreme_energies")
    return low.exp(), high.exp()


def log_extreme_energies(beta: Any, d: Any) -> tuple[Tensor, Tensor]:
    """Logarithms of `extreme_energies`, for all beta > 0 and d >= 2, up to rounding of about 1e-14 beta.

    >>> import math
    >>> from otflow.papers.perspective import log_extreme_energies
    >>> log_extreme_energies(1e4, 3)[1].item() - (1e4 - math.log(2e4))
    0.0
    """
    beta, d = numbers(beta=beta, d=d)
    insist(beta > 0, "beta", beta, "the energy is divided by beta", "choose beta > 0")
    whole(d, "d", 2)
    return tensor(_log_0f1(beta, d) - np.log(2 * beta)), tensor(beta - np.log(2 * beta))


def _log_0f1(beta: Array, d: Array) -> Array:
    """log sum_k (beta/2)^(2k) / (k! (d/2)_k), all terms positive, the largest at k < beta/2."""
    top = float(beta.max(initial=1.0))
    k = np.arange(1.0, math.ceil(top / 2 + 10 * math.sqrt(top) + 40))
    ratios = 2 * np.log(beta[..., None] / 2) - np.log(k) - np.log(k - 1 + d[..., None] / 2)
    terms = np.cumsum(ratios, -1)
    peak = np.maximum(terms.max(-1), 0.0)
    rest = np.exp(terms - peak[..., None]).sum(-1)
    # log(exp(-peak) + rest) as log1p where the first term, 1, is the largest: small beta, or large d
    return np.asarray(peak + np.where(peak > 0, np.log(np.exp(-peak) + rest), np.log1p(rest)))
