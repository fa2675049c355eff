"""The part of the experiment `jko-oracles` that runs on the line, in the quantile function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import special

import otflow as of
from otflow import closed_forms as exact
from otflow.reproduce.claim import Source
from otflow.reproduce.oracle import JKO98, Oracle, distance, final, gauss_points, march

TAUS = (0.1, 0.05, 0.025)
START, END = 1.0, 1.5  # of Barenblatt's profile; heat spreads for as long, from N(0, 1)
LENGTH = END - START


def on_line(n: int) -> list[tuple[Oracle, Oracle]]:
    """The heat equation and two porous media: on n intervals, and extrapolated from n / 2 and n.

    >>> [plain.name.split(",")[0] for plain, refined in on_line(40)]
    ['heat equation', 'porous medium', 'porous medium']
    """
    heat = float(exact.heat_deviation(1.0, LENGTH))
    both = [_both("heat equation, quantiles", n, of.Entropy(), _normal, heat, exact.heat_step)]
    for m in (2.0, 4.0):
        energy, ppf = of.PorousMedium(m), partial(exact.barenblatt_quantile, m=m)
        name, last = f"porous medium, m = {m:g}, quantiles", END ** (1 / (m + 1))
        both.append(_both(name, n, energy, ppf, last, exact.barenblatt_radius_step, m, 1))
    return both


def _normal(s: Any, R: float) -> Any:
    return R * special.ndtri(s)


def _both(
    name: str, n: int, energy: of.Energy, ppf: Callable[..., Any], last: float, step: Any, *args: Any
) -> tuple[Oracle, Oracle]:
    """All laws are one profile times R: 1 at the start, `last` at the end, ``step(R, tau)`` in the scheme."""
    plain, refined, behind = {}, {}, {}
    for tau in TAUS:
        R = float(march(step, 1.0, LENGTH, tau, *args))
        start = [of.Quantiles.from_ppf(partial(ppf, R=1.0), k) for k in (n // 2, n)]
        coarse, fine = (final(mu, energy, LENGTH, tau) for mu in start)
        plain[tau] = distance(fine, partial(ppf, R=R))
        refined[tau] = distance(of.richardson(coarse, fine), partial(ppf, R=R))
        behind[tau] = abs(R - last) * root_mean_square(partial(ppf, R=1.0))
    meshes = Source(f"{JKO98}; extrapolated from {n // 2} and {n} intervals")
    return (
        Oracle(name, "W2", JKO98, plain, behind, 1e-4),
        Oracle(name, "W2", meshes, refined, behind, 1e-6),
    )


def root_mean_square(ppf: Callable[[np.ndarray], Any]) -> float:
    """(int ppf^2 ds)^(1/2): the laws of a X and b X are |a - b| times this apart.

    >>> round(root_mean_square(lambda s: 2 * s - 1), 9)  # 1 / sqrt(3)
    0.577350269
    """
    s, w = gauss_points(of.graded_levels(1000).numpy())
    return float(np.sqrt((w * np.asarray(ppf(s)) ** 2).sum()))
