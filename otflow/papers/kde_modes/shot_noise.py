"""Shot noise, bumps exp(-(s - u)^2 / 2) at the points u of a Poisson process, and how many modes it has."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import numbers

NOISE = math.sqrt(1.5) / (2 * math.pi)  # 0.194924: modes per bandwidth of a Gaussian process with these bumps
TRIPLES = 0.803  # third order in the intensity: modes of three tokens by inclusion and exclusion, integrated
HALF = 0.5  # the intensity in the middle of the scale of the fit
TERMS = 7  # that are fitted

# Intensity, modes per bandwidth and standard error. Each row is the mean over at least 60 lines of 1e5
# bandwidths (20 where nu is 20, 40 where it is 10), counted by `mode_count`; up to 2.5 the numbers of gaps
# above 0, 0.5, .. 6, whose means are known, served as control variates.
MEASURED = (
    (0.01, 0.0098009, 3.2e-07),
    (0.02, 0.0192078, 9.1e-07),
    (0.03, 0.0282261, 1.6e-06),
    (0.05, 0.0451293, 3.5e-06),
    (0.07, 0.0605835, 4.9e-06),
    (0.1, 0.0812104, 7.3e-06),
    (0.14, 0.1044004, 1.1e-05),
    (0.2, 0.1313639, 1.8e-05),
    (0.28, 0.1558841, 2.8e-05),
    (0.4, 0.1766031, 3.3e-05),
    (0.55, 0.1879193, 4.1e-05),
    (0.7, 0.1920819, 4.8e-05),
    (0.85, 0.1936301, 5.0e-05),
    (1, 0.1941841, 4.7e-05),
    (1.2, 0.1944522, 4.7e-05),
    (1.5, 0.1947183, 4.8e-05),
    (2, 0.1946936, 5.7e-05),
    (2.5, 0.1946651, 4.8e-05),
    (3, 0.1947153, 5.4e-05),
    (4, 0.1947173, 5.8e-05),
    (6, 0.1947838, 5.9e-05),
    (10, 0.1948750, 8.7e-05),
    (20, 0.1949410, 1.0e-04),
)


def shot_noise_modes(nu: Any) -> Tensor:
    """M(nu): maxima per unit length of s -> sum_u exp(-(s - u)^2 / 2), u a Poisson process of intensity nu.

    M = nu - 2 nu^2 + 0.803 nu^3 .. for nu -> 0, where a pair of tokens less than 2 apart makes one mode, and
    M -> sqrt(3/2) / (2 pi) for nu -> infinity, where the sum is a Gaussian process. In between we know of no
    closed form: log(M (1 / nu + 1 / M(inf))) is w (1 - w) times a polynomial in w = nu / (nu + 0.5), whose
    first two coefficients follow from M at 0; the others are fitted to simulations (MEASURED), with standard
    errors of 5e-4 of M or less.

    Args:
        nu: tokens per bandwidth, >= 0, of any shape.

    >>> from otflow.papers.kde_modes import shot_noise_modes
    >>> shot_noise_modes([0.0, 0.1, 1.0, 1e9])
    tensor([0.0000, 0.0812, 0.1942, 0.1949], dtype=torch.float64)
    """
    (nu,) = numbers.tensors(nu=nu)
    numbers.at_least_zero(nu, "nu")
    w = nu / (nu + HALF)
    exponent = torch.zeros_like(w)
    for c in _polynomial()[::-1]:
        exponent = exponent * w + c
    M: Tensor = nu / (1 + nu / NOISE) * (w * (1 - w) * exponent).exp()
    return M


@lru_cache(maxsize=1)
def _polynomial() -> tuple[float, ...]:
    """Its coefficients: two from M = nu - 2 nu^2 + TRIPLES nu^3, the others by weighted least squares."""
    nu, M, error = np.array(MEASURED).T
    first = HALF * (1 / NOISE - 2)
    second = 2 * first + HALF**2 * (TRIPLES - 2 - 1 / (2 * NOISE**2))
    w = nu / (nu + HALF)
    y = np.log(M * (1 / nu + 1 / NOISE)) / (w * (1 - w)) - first - second * w
    weight = w * (1 - w) * M / error
    powers = w[:, None] ** np.arange(2, TERMS + 2)
    fit = np.linalg.lstsq(weight[:, None] * powers, weight * y, rcond=None)[0]
    return (first, second, *fit.tolist())
