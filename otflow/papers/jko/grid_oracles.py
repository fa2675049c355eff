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
from otflow import closed_forms
from otflow.reproduce.claim import Claim, Source
from otflow.reproduce.frame import Progress
from otflow.reproduce.oracle import JKO98, Oracle, box, l1, order, unit

PEYRE = Source("Peyré 2015")
BDP = "Blanchet, Dolbeault, Perthame 2006"
BORN, END = 1e-3, 4e-3  # of Barenblatt's profile in the plane, m = 2, on the box [-1/2, 1/2]^2
TAUS = (1e-3, 5e-4, 2.5e-4, 1.25e-4)
BLUR_TAU = 5e-4
HEAT = (0.08, 0.004)  # first deviation and length of the run, on the same box
OWN = math.exp(-1.5 + math.pi / 4) / math.sqrt(2)  # log|x| has the mean log OWN over [-1/2, 1/2]^2
MASSES = (0.0, 0.5, 1.0, 1.5)  # in units of 8 pi
KELLER_TAU, KELLER_WIDTH, KELLER_DEVIATION = 5e-4, 3.0, 0.2


class Blurred(NamedTuple):
    """L1 distances of an entropic run to the exact scheme and to the equation."""

    scheme: float
    equation: float


class Grids(NamedTuple):
    """Everything that was run on grids."""

    oracles: list[Oracle]
    blur: dict[float, Blurred]  # for every eps
    debiased: dict[float, Blurred]
    sharp: Blurred  # the same run without blur
    keller: dict[float, float]  # rates of the second moment, for every mass in units of 8 pi

    def claims(self) -> list[Claim]:
        """Those beyond `Oracle.claims`."""
        return [*_blur_claims(self), *_keller_claims(self.keller)]


def compute(*, quick: bool, progress: Progress) -> Grids:
    """All runs on grids.

    The progress is that of the whole experiment, of which this is the part from 0.35 to 0.95.
    """
    n = 128 if quick else 256
    porous = barenblatt_oracle(n, TAUS[:2] if quick else TAUS)
    progress(0.6, "heat on a grid")
    heat = heat_oracle(64 if quick else 128, 2 if quick else 3)
    progress(0.7, "entropic steps")
    cells, eps = (64, (1e-3, 3e-4)) if quick else (128, (1e-3, 3e-4, 1e-4))
    runs = [{e: _against(cells, of.EntropicJKO(e, debiased=d), BLUR_TAU) for e in eps} for d in (False, True)]
    sharp = _against(128, of.JKO(), BLUR_TAU)
    progress(0.9, "Keller and Segel")
    keller = {share: keller_rate(share, 48 if quick else 64) for share in MASSES}
    return Grids([porous, heat], runs[0], runs[1], sharp, keller)


# --- porous medium -----------------------------------------------------------------------------------


def profile(n: int, R: float) -> Tensor:
    """Barenblatt's density, m = 2, on n^2 cells, of radius R in units of that at t = 1.

    >>> round(float(profile(32, 0.2).mean()), 5)
    1.0
    """
    return closed_forms.barenblatt_grid([box(n), box(n)], R, 2.0)


def radius(tau: float) -> float:
    """The R of the exact scheme at the end.

    >>> radius(1e-3) < END**0.25
    True
    """
    R = torch.tensor(BORN**0.25, dtype=torch.float64)
    for _ in range(round((END - BORN) / tau)):
        R = closed_forms.barenblatt_radius_step(R, tau, 2.0, 2)
    return float(R)


def _final(n: int, stepper: of.Stepper, tau: float) -> Tensor:
    field = of.SteepestDescent(of.PorousMedium(2.0), of.Wasserstein())
    mu = unit(profile(n, BORN**0.25), box(n))
    return of.flow(mu, field, stepper, t0=BORN, t1=END, dt=tau, save_at=[BORN]).final.coords[0]


def _against(n: int, stepper: of.Stepper, tau: float) -> Blurred:
    rho = _final(n, stepper, tau)
    return Blurred(l1(rho, profile(n, radius(tau))), l1(rho, profile(n, END**0.25)))


def barenblatt_oracle(n: int, taus: tuple[float, ...]) -> Oracle:
    """The benchmark: d = m = 2, mass one, t from 0.001 to 0.004, n^2 cells.

    >>> barenblatt_oracle(32, (1e-3,)).name
    'porous medium, m = 2, grid 32 x 32'
    """
    solver = {tau: l1(_final(n, of.JKO(), tau), profile(n, radius(tau))) for tau in taus}
    scheme = {tau: l1(profile(n, radius(tau)), profile(n, END**0.25)) for tau in taus}
    return Oracle(f"porous medium, m = 2, grid {n} x {n}", "L1", JKO98, solver, scheme, 1.5e-3)


# --- heat --------------------------------------------------------------------------------------------


def normal(n: int, sigma: float) -> Tensor:
    """The means over n^2 cells of the density of N(0, sigma^2 I).

    >>> round(float(normal(32, 0.1).mean()), 5)
    1.0
    """
    one = torch.from_numpy(np.diff(ndtr((np.arange(n + 1) / n - 0.5) / sigma)) * n)
    return torch.outer(one, one)


def heat_oracle(n: int, halvings: int) -> Oracle:
    """The heat equation in the plane: along each axis the scheme is that of the line.

    >>> heat_oracle(32, 1).name
    'heat equation, grid 32 x 32'
    """
    sigma0, length = HEAT
    field = of.SteepestDescent(of.Entropy(), of.Wasserstein())
    last = normal(n, float(closed_forms.heat_deviation(sigma0, length)))
    solver, scheme = {}, {}
    for k in range(2, 2 + halvings):
        tau = length / 2**k
        end = of.flow(unit(normal(n, sigma0), box(n)), field, of.JKO(), t1=length, dt=tau, save_at=[0.0])
        sigma = torch.tensor(sigma0, dtype=torch.float64)
        for _ in range(2**k):
            sigma = closed_forms.heat_step(sigma, tau)
        oracle = normal(n, float(sigma))
        solver[tau], scheme[tau] = l1(end.final.coords[0], oracle), l1(oracle, last)
    return Oracle(f"heat equation, grid {n} x {n}", "L1", JKO98, solver, scheme, 2e-3)


# --- blur --------------------------------------------------------------------------------------------


def _blur_claims(found: Grids) -> list[Claim]:
    eps, last = min(found.blur.items())
    words = f"tau = {BLUR_TAU:g}"
    return [
        PEYRE(f"entropic steps, {words}: L1 to the exact scheme is proportional to eps (slope)").within(
            0.85, 1.15, order({e: b.scheme for e, b in found.blur.items()})
        ),
        Source("Conforti, Tamanini 2021")(
            f"the same with the blur taken away to first order, over that without, at eps = {eps:g}"
        ).at_most(0.5, found.debiased[eps].scheme / last.scheme),
        Source("errors of opposite signs, see the text")(
            f"blur hides the error of the scheme: L1 to the equation at eps = {eps:g}, over that without"
        ).at_most(1.0, last.equation / found.sharp.equation),
        Source("errors of opposite signs, see the text")(
            "while without blur L1 to the exact scheme is smaller (ratio)"
        ).at_most(0.1, found.sharp.scheme / last.scheme),
    ]


# --- Keller and Segel --------------------------------------------------------------------------------


def attraction(h: float) -> Callable[[Tensor, Tensor], Tensor]:
    """log|x - y| / (2 pi) between the centres of squares of width h; a square sees its own mean.

    >>> x = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    >>> round(float(attraction(1.0)(x, x)) * 2 * math.pi, 4)
    -1.0612
    """
    return lambda x, y: (x - y).square().sum(-1).clamp(min=(OWN * h) ** 2).log() / (4 * math.pi)


def keller_rate(share: float, n: int) -> float:
    """(M2' - M2 + W2^2) / tau of one JKO step from a Gaussian, for the mass 8 pi share.

    >>> round(keller_rate(0.0, 48), 1)
    4.0
    """
    x = box(n, KELLER_WIDTH)
    r2 = torch.from_numpy(x[:, None] ** 2 + x**2)
    mu = unit(torch.exp(-r2 / (2 * KELLER_DEVIATION**2)), x)
    energy: of.Energy = of.Entropy()
    if share:
        energy = energy + 8 * math.pi * share * of.Interaction(attraction(KELLER_WIDTH / n))
    move = of.jko_step(mu, energy, KELLER_TAU)
    growth = ((move.mu.coords[0] - mu.density) * r2).sum() * mu.cell
    return float(growth + move.cost) / KELLER_TAU


def _keller_claims(rates: dict[float, float]) -> list[Claim]:
    return [
        Source(f"{BDP}; virial theorem, see the text")(
            f"Keller and Segel, mass {share:g} x 8 pi: (M2' - M2 + W2^2) / tau for tau = {KELLER_TAU:g}"
        ).equal(4 * (1 - share), rate, atol=0.12)
        for share, rate in rates.items()
    ]
