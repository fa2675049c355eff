"""Barenblatt's solution of the porous medium equation, d rho / dt = Laplace rho^m with m > 1.

    rho(t, x) = t^(-alpha) (C - k |x|^2 t^(-2 alpha / d))_+^p,   p = 1 / (m - 1),
    alpha = d / q,  q = d (m - 1) + 2,  k = (m - 1) alpha / (2 m d),

the flow of int rho^m / (m - 1) from a point mass. All times look alike: rho = R^-d rho_1(x / R), R = t^(1/q).

Vázquez 2007, "The porous medium equation: mathematical theory".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import betainc, betaincinv
from torch import Tensor

from otflow.base import checks, numbers
from otflow.base.linalg import ratio

# Gauss-Legendre nodes per cell along all axes but the last; chosen: `barenblatt_grid` states the error.
NODES = 12


class Exponents(NamedTuple):
    p: float  # of the profile
    q: float  # R = t^(1/q)
    k: float


def exponents(m: float, d: int) -> Exponents:
    """p, q and k of a porous medium in dimension d."""
    rule = "a porous medium has m > 1, and else the support is unbounded"
    checks.require(checks.number(m, "m") > 1, "m", m, rule, "choose m > 1")
    q = checks.count(d, "d") * (m - 1) + 2
    return Exponents(1 / (m - 1), q, (m - 1) / (2 * m * q))


def barenblatt_constant(m: float, d: int, *, mass: float = 1.0) -> float:
    """C = (mass k^(d/2) Gamma(p + 1 + d/2) / (pi^(d/2) Gamma(p + 1)))^(1 / (p + d/2)).

    In the plane, with mass one, (m' k / pi)^(1/m') for m' = m / (m - 1).

    >>> from otflow.closed_forms import barenblatt_constant
    >>> import math
    >>> round(barenblatt_constant(2.0, 2) * math.sqrt(8 * math.pi), 12)
    1.0
    """
    p, _, k = exponents(m, d)
    log = math.log(checks.positive(mass, "mass")) + d / 2 * math.log(k / math.pi)
    return math.exp((log + math.lgamma(p + 1 + d / 2) - math.lgamma(p + 1)) / (p + d / 2))


def barenblatt_radius(t: Any, m: float, d: int, *, mass: float = 1.0) -> Tensor:
    """(C / k)^(1/2) t^(1/q): the radius of the support at time t.

    >>> from otflow.closed_forms import barenblatt_radius
    >>> round(barenblatt_radius(1.0, 2.0, 1).item() - 9 ** (1 / 3), 12)  # (12)^(1/2) (3 / 4 / 12^(1/2))^(1/3)
    0.0
    """
    _, q, k = exponents(m, d)
    return math.sqrt(barenblatt_constant(m, d, mass=mass) / k) * numbers.variance(t, "t") ** (1 / q)


def barenblatt(r: Any, t: Any, m: float, d: int, *, mass: float = 1.0) -> Tensor:
    """rho at distance r >= 0 from the origin and time t > 0, numbers that broadcast.

    >>> from otflow.closed_forms import barenblatt
    >>> barenblatt([0.0, 9.0], 1.0, 2.0, 2)
    tensor([0.1995, 0.0000], dtype=torch.float64)
    """
    return barenblatt_profile(r, positive(t, "t") ** (1 / exponents(m, d).q), m, d, mass=mass)


def barenblatt_profile(r: Any, R: Any, m: float, d: int, *, mass: float = 1.0) -> Tensor:
    """R^-d (C - k r^2 / R^2)_+^p: the density at distance r, of the radius R in units of that at t = 1.

    >>> from otflow.closed_forms import barenblatt, barenblatt_profile
    >>> barenblatt_profile(0.0, 2.0, 2.0, 2).item() == barenblatt(0.0, 16.0, 2.0, 2).item()
    True
    """
    p, _, k = exponents(m, d)
    r, R = numbers.alongside(r=r, R=positive(R, "R"))
    inside = (barenblatt_constant(m, d, mass=mass) - k * (r / R) ** 2).clamp(min=0)
    seen = inside > 0  # powers below one have no derivative at zero
    return R ** (-d) * torch.where(seen, torch.where(seen, inside, torch.ones_like(inside)) ** p, 0.0)


def barenblatt_quantile(u: Any, R: Any, m: float) -> Tensor:
    """X(u) = R s (2 I^-1(u; p + 1, p + 1) - 1) on the line, mass one: the part u is left of it.

    I is the regularised incomplete Beta function, s = (C / k)^(1/2) the radius at t = 1. For m = 2 this is
    2 R s sin(asin(2u - 1) / 3). Once differentiable in u inside (0, 1), to any order in R.

    >>> from otflow.closed_forms import barenblatt_quantile, barenblatt_radius
    >>> barenblatt_quantile([0.0, 0.5], 1.0, 2.0) / barenblatt_radius(1.0, 2.0, 1)
    tensor([-1.,  0.], dtype=torch.float64)
    """
    u, R = numbers.alongside(u=u, R=positive(R, "R"))
    if bool(((u < 0) | (u > 1)).any()):
        checks.fail("u", numbers.shown(u), "quantiles are those of probabilities", "pass 0 <= u <= 1")
    a = exponents(m, 1).p + 1
    z = torch.as_tensor(2 * betaincinv(a, a, u.detach().cpu().numpy()) - 1, device=u.device)
    s = barenblatt_radius(1.0, m, 1).to(u.device)
    # Adds zero, with the derivative 1 / rho; at the ends, where rho = 0, there is none.
    rho = barenblatt_profile(s * z, 1.0, m, 1)
    return R * (s * z + ratio(u - u.detach(), rho))


def barenblatt_grid(axes: Sequence[Any], R: float, m: float, *, mass: float = 1.0) -> Tensor:
    """The mean of `barenblatt_profile` over every cell, (n_1, ..., n_d), given the centres of equal cells.

    Exact along the last axis, an incomplete Beta function, and Gauss-Legendre with 12 nodes a cell along the
    others, which errs at the edge of the support: in the plane the mass is off by 1e-7 for m = 2 and 2e-6 for
    m = 3 on 64^2 cells, by 1e-9 and 1e-7 on 256^2.

    >>> from otflow.closed_forms import barenblatt_grid
    >>> import numpy as np
    >>> x = np.linspace(-0.95, 0.95, 20)
    >>> round(barenblatt_grid([x, x], 0.2, 2.0).sum().item() * 0.01, 8)
    1.0
    """
    edges = [_edges(a, f"axes[{i}]") for i, a in enumerate(axes)]
    d = checks.count(len(edges), "len(axes)")
    scale = float(positive(R, "R")) * barenblatt_radius(1.0, m, d, mass=mass).item()
    z, w = np.polynomial.legendre.leggauss(NODES)
    height = np.ones(())  # of the support along the last axis, squared, in units of its radius
    for e in edges[:-1]:
        x = e[:-1, None] + np.diff(e)[:, None] * (z + 1) / 2
        height = height[..., None] - (x.flatten() / scale) ** 2
    mean = _slab(np.maximum(height, 0), edges[-1] / scale, exponents(m, d).p)
    for i in range(d - 1):
        mean = (mean.reshape(*mean.shape[:i], -1, NODES, *mean.shape[i + 1 :]) * _axis(w / 2, mean, i)).sum(
            i + 1
        )
    top = barenblatt_profile(0.0, R, m, d, mass=mass).item()
    return torch.as_tensor(top * mean)


def _axis(w: np.ndarray, mean: np.ndarray, i: int) -> np.ndarray:
    """Weights along the axis i + 1 of an array that gains one there."""
    return w.reshape(-1, *[1] * (mean.ndim - i - 1))


def _slab(height: np.ndarray, e: np.ndarray, p: float) -> np.ndarray:
    """The means of (height - y^2)_+^p over the cells between the edges e."""
    h = np.sqrt(height)[..., None]
    z = np.clip(np.divide(e, h, out=np.zeros(h.shape[:-1] + e.shape), where=h > 0), -1, 1)
    whole = math.exp(math.lgamma(p + 1) + math.lgamma(0.5) - math.lgamma(p + 1.5))
    primitive = np.sign(z) * betainc(0.5, p + 1, z**2) * (whole / 2) * h ** (2 * p + 1)
    return np.diff(primitive) / np.diff(e)


def _edges(axis: Any, name: str) -> np.ndarray:
    """The n + 1 ends of n equal cells with these centres."""
    x = numbers.number(axis, name).detach().cpu().numpy()
    step = np.diff(x)
    good = x.ndim == 1 and len(x) >= 2 and np.allclose(step, step[0], rtol=1e-6, atol=0) and step[0] > 0
    checks.require(
        good,
        name,
        f"shape {x.shape}",
        "equally spaced, increasing centres of cells",
        f"pass {name}=np.linspace(first, last, n)",
    )
    h = (x[-1] - x[0]) / (len(x) - 1)
    return x[0] + h * (np.arange(len(x) + 1) - 0.5)


def positive(value: Any, name: str) -> Tensor:
    """Numbers > 0."""
    return numbers.above(value, name, "it must be > 0", f"drop the entries <= 0, or pass {name}=1.0, say")
