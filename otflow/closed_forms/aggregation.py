"""Aggregation by interaction energies (1/2) iint W(x - y) dmu dmu: equilibria and moments in closed form."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks, numbers


def ring_radius(a: float, b: float) -> float:
    """(2r)^(a - b) = S_b / S_a, S_a = Gamma((a + 1)/2) / (sqrt(pi) Gamma(a/2 + 1)): a ring in the plane.

    The radius at which a uniform ring is in equilibrium for W(x) = |x|^a / a - |x|^b / b, a > b > 0; S_a is
    the mean of |sin|^a. For a = 4, b = 2 it is 1 / sqrt(3).

    Reference: Kolokolnikov, Sun, Uminsky, Bertozzi 2011, "Stability of ring patterns arising from
    two-dimensional particle interactions".

    >>> from otflow.closed_forms import ring_radius
    >>> round(ring_radius(4, 2) * 3**0.5, 12)
    1.0
    """
    a, b = checks.number(a, "a"), checks.positive(b, "b")
    checks.require(
        a > b,
        "a, b",
        (a, b),
        "attraction at a distance needs a > b > 0",
        f"pass a={max(a, b):g}, b={min(a, b):g}" if a != b else f"pass a={b + 1:g}",
    )
    log = (
        math.lgamma((b + 1) / 2) - math.lgamma(b / 2 + 1) - math.lgamma((a + 1) / 2) + math.lgamma(a / 2 + 1)
    )
    return math.exp(log / (a - b)) / 2


def log_gas_second_moment(n: int) -> float:
    """(1 - 1/n) / 2: of n equal particles in equilibrium for W(x) = |x|^2 / 2 - log|x|, about their centre.

    In every dimension, from sum_(i != j) (x_i - x_j).grad W(x_i - x_j) = 0. Particles do not act on
    themselves. In the plane they fill the unit disc uniformly as n grows.

    >>> from otflow.closed_forms import log_gas_second_moment
    >>> log_gas_second_moment(2)
    0.25
    """
    return (1 - 1 / checks.count(n, "n")) / 2


def line_equilibrium(n: int) -> Tensor:
    """x_i = (2i - 1 - n) / n, (n,): n equal particles in equilibrium for W(x) = |x|^2 / 2 - |x| on the line.

    Uniform on [-1, 1] as n grows.

    >>> from otflow.closed_forms import line_equilibrium
    >>> line_equilibrium(4)
    tensor([-0.7500, -0.2500,  0.2500,  0.7500], dtype=torch.float64)
    """
    n = checks.count(n, "n")
    return (2 * torch.arange(1, n + 1, dtype=torch.float64) - 1 - n) / n


def riesz_radius(t: Any, r: float, d: int) -> Tensor:
    """((2 - r) t c)^(1 / (2 - r)): the flow of -(1/2) iint |x - y|^r dmu dmu from a point mass, 0 < r < 2.

    If d + r < 4, mu is (R^2 - |x|^2)^(1 - (d + r)/2), normalised, on the ball of this radius R, and
    c = r Gamma(2 - r/2) Gamma((d + r)/2) / (d/2 Gamma(d/2)). If d + r >= 4, it is uniform on the sphere of
    this radius, and c = (r/2) Gamma(d/2) Gamma(d + r - 1) / (Gamma((d + r)/2) Gamma(d - 1 + r/2)).

    Reference: Hertrich, Gräf, Beinert, Steidl 2024, "Wasserstein steepest descent flows of discrepancies with
    Riesz kernels".

    >>> from otflow.closed_forms import riesz_radius
    >>> import math
    >>> round(riesz_radius(1.0, 1.0, 2).item() - math.pi / 4, 12)
    0.0
    """
    r, d, t = checks.positive(r, "r"), checks.count(d, "d"), numbers.variance(t, "t")
    checks.require(r < 2, "r", r, "Riesz kernels have 0 < r < 2", "pass r=1.0, say")
    g = math.lgamma
    if d + r < 4:
        c = r * math.exp(g(2 - r / 2) + g((d + r) / 2) - g(d / 2)) / (d / 2)
    else:
        c = r / 2 * math.exp(g(d / 2) + g(d + r - 1) - g((d + r) / 2) - g(d - 1 + r / 2))
    return ((2 - r) * c * t) ** (1 / (2 - r))


def keller_segel_rate(mass: Any) -> Tensor:
    """d/dt int |x|^2 rho = 4 M (1 - M / (8 pi)), M the mass: Keller and Segel's equation in the plane.

    d rho / dt = Laplace rho - div(rho grad c), -Laplace c = rho: the second moment grows below the critical
    mass 8 pi and reaches zero in finite time above it.

    Reference: Blanchet, Dolbeault, Perthame 2006, "Two-dimensional Keller-Segel model: optimal critical mass
    and qualitative properties of the solutions".

    >>> from otflow.closed_forms import keller_segel_rate
    >>> import math
    >>> keller_segel_rate(8 * math.pi).item()
    0.0
    """
    M = numbers.variance(mass, "mass")
    return 4 * M * (1 - M / (8 * math.pi))
