"""The part of the experiment `jko-oracles` that runs on grids: Barenblatt, heat, blur, Keller and Segel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

import otflow as of
from otflow import closed_forms as exact
from otflow.reproduce.oracle import Oracle, box, final, l1, march, unit

BORN, END = 1e-3, 4e-3  # of Barenblatt's profile in the plane, m = 2, on the box [-1/2, 1/2]^2
TAUS = (1e-3, 5e-4, 2.5e-4, 1.25e-4)
BLUR_TAU = 5e-4
HEAT = (0.08, 0.004)  # first deviation and length of the run, on the same box
OWN = math.exp(-1.5 + math.pi / 4) / math.sqrt(2)  # log|x| has the mean log OWN over [-1/2, 1/2]^2
MASSES = (0.0, 0.5, 1.0, 1.5)  # in units of 8 pi
KELLER_TAU, KELLER_WIDTH, KELLER_DEVIATION = 5e-4, 3.0, 0.2


# --- porous medium -----------------------------------------------------------------------------------


def profile(n: int, R: float) -> Tensor:
    """Barenblatt's density, m = 2, on n^2 cells, of radius R in units of that at t = 1.

    >>> from otflow.papers.jko.grid_oracles import profile
    >>> round(float(profile(32, 0.2).mean()), 5)
    1.0
    """
    return exact.barenblatt_grid([box(n), box(n)], R, 2.0)


def radius(tau: float) -> float:
    """The R of the exact scheme at the end.

    >>> from otflow.papers.jko.grid_oracles import END, radius
    >>> radius(1e-3) < END**0.25
    True
    """
    return float(march(exact.barenblatt_radius_step, BORN**0.25, END - BORN, tau, 2.0, 2))


def spread(n: int, stepper: of.Stepper, tau: float) -> Tensor:
    """The density at the end of a run from Barenblatt's profile.

    >>> import otflow as of
    >>> from otflow.papers.jko.grid_oracles import spread
    >>> spread(32, of.EntropicJKO(2e-3), 3e-3).shape
    torch.Size([32, 32])
    """
    start = unit(profile(n, BORN**0.25), box(n))
    return final(start, of.PorousMedium(2.0), END - BORN, tau, stepper).density


def barenblatt_oracle(n: int, taus: tuple[float, ...]) -> Oracle:
    """The benchmark: d = m = 2, mass one, t from 0.001 to 0.004, n^2 cells.

    >>> from otflow.papers.jko.grid_oracles import barenblatt_oracle
    >>> barenblatt_oracle(32, (1e-3,)).name
    'porous medium, m = 2, grid 32 x 32'
    """
    runs = {tau: spread(n, of.JKO(), tau) for tau in taus}
    scheme = {tau: profile(n, radius(tau)) for tau in taus}
    name, last = f"porous medium, m = 2, grid {n} x {n}", profile(n, END**0.25)
    return Oracle.between(name, "L1", 1.5e-3, l1, runs, scheme, last)


class Blurred(NamedTuple):
    """L1 distances at the end to the exact scheme and to the equation."""

    scheme: float
    equation: float


def blurred(n: int, stepper: of.Stepper) -> Blurred:
    """The same for one step tau and any stepper, which may blur.

    >>> import otflow as of
    >>> from otflow.papers.jko.grid_oracles import blurred
    >>> blurred(32, of.EntropicJKO(2e-2)).scheme > 0.1
    True
    """
    rho = spread(n, stepper, BLUR_TAU)
    return Blurred(l1(rho, profile(n, radius(BLUR_TAU))), l1(rho, profile(n, END**0.25)))


# --- heat --------------------------------------------------------------------------------------------


def normal(n: int, sigma: float) -> Tensor:
    """The means over n^2 cells of the density of N(0, sigma^2 I).

    >>> from otflow.papers.jko.grid_oracles import normal
    >>> round(float(normal(32, 0.1).mean()), 5)
    1.0
    """
    one = torch.from_numpy(np.diff(ndtr((np.arange(n + 1) / n - 0.5) / sigma)) * n)
    return torch.outer(one, one)


def heat_oracle(n: int, halvings: int) -> Oracle:
    """The heat equation in the plane: along each axis the scheme is that of the line.

    >>> from otflow.papers.jko.grid_oracles import heat_oracle
    >>> heat_oracle(32, 1).name
    'heat equation, grid 32 x 32'
    """
    sigma, length = HEAT
    taus = [length / 2**k for k in range(2, 2 + halvings)]
    start, last = unit(normal(n, sigma), box(n)), normal(n, float(exact.heat_deviation(sigma, length)))
    runs = {tau: final(start, of.Entropy(), length, tau).density for tau in taus}
    scheme = {tau: normal(n, float(march(exact.heat_step, sigma, length, tau))) for tau in taus}
    return Oracle.between(f"heat equation, grid {n} x {n}", "L1", 2e-3, l1, runs, scheme, last)


# --- Keller and Segel --------------------------------------------------------------------------------


def attraction(h: float) -> Callable[[Tensor, Tensor], Tensor]:
    """log|x - y| / (2 pi) between the centres of squares of width h; a square sees its own mean.

    >>> import math
    >>> import torch
    >>> from otflow.papers.jko.grid_oracles import attraction
    >>> x = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    >>> round(float(attraction(1.0)(x, x)) * 2 * math.pi, 4)
    -1.0612
    """
    return lambda x, y: (x - y).square().sum(-1).clamp(min=(OWN * h) ** 2).log() / (4 * math.pi)


def keller_rate(share: float, n: int) -> float:
    """(M2' - M2 + W2^2) / tau of one JKO step from a Gaussian, for the mass 8 pi share.

    >>> from otflow.papers.jko.grid_oracles import keller_rate
    >>> round(keller_rate(0.0, 48), 1)
    4.0
    """
    x = box(n, KELLER_WIDTH)
    r2 = torch.from_numpy(x[:, None] ** 2 + x**2)
    mu = unit(torch.exp(-r2 / (2 * KELLER_DEVIATION**2)), x)
    energy: of.Energy = of.Entropy()
    if share:  # without attraction the step needs no linearisation
        energy = energy + 8 * math.pi * share * of.Interaction(attraction(KELLER_WIDTH / n))
    move = of.jko_step(mu, energy, KELLER_TAU)
    growth = ((move.mu.coords[0] - mu.density) * r2).sum() * mu.cell
    return float(growth + move.cost) / KELLER_TAU
