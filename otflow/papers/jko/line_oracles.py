"""The part of the experiment `jko-oracles` that runs on the line, in the quantile function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special

import otflow as of
from otflow import closed_forms
from otflow.reproduce.claim import Claim, Source
from otflow.reproduce.oracle import JKO98, Oracle, distance, gauss_points

TAUS = (0.1, 0.05, 0.025)
START, END = 1.0, 1.5  # of Barenblatt's profile


class LineOracle(NamedTuple):
    """Runs on the line, on one mesh and extrapolated from two."""

    plain: list[Oracle]
    refined: list[Oracle]

    def claims(self) -> list[Claim]:
        """What one mesh gives."""
        return [
            Source(str(o.source))(
                f"{o.name}: one mesh, solver against scheme (W2, largest over tau)"
            ).at_most(1e-4, max(o.solver.values()))
            for o in self.plain
        ]


def on_line(n: int) -> LineOracle:
    """The heat equation and two porous media, on n and n / 2 intervals.

    >>> len(on_line(40).plain)
    3
    """
    heat = (
        of.Entropy(),
        _heat_scheme,
        lambda t: float(closed_forms.heat_deviation(1.0, t)),
        _normal,
    )
    cases: dict[str, tuple[Any, ...]] = {"heat equation, quantiles": heat}
    for m in (2.0, 4.0):
        cases[f"porous medium, m = {m:g}, quantiles"] = (
            of.PorousMedium(m),
            lambda tau, m=m: _porous_scheme(tau, m),
            lambda t, m=m: (START + t) ** (1 / (m + 1)),
            lambda s, R, m=m: closed_forms.barenblatt_quantile(s, R, m).numpy(),
        )
    both = [_on_line(name, n, *case) for name, case in cases.items()]
    return LineOracle([a for a, _ in both], [b for _, b in both])


def _heat_scheme(tau: float) -> float:
    sigma = torch.tensor(1.0, dtype=torch.float64)
    for _ in range(round((END - START) / tau)):
        sigma = closed_forms.heat_step(sigma, tau)
    return float(sigma)


def _porous_scheme(tau: float, m: float) -> float:
    R = torch.tensor(START, dtype=torch.float64)
    for _ in range(round((END - START) / tau)):
        R = closed_forms.barenblatt_radius_step(R, tau, m, 1)
    return float(R)


def _normal(s: np.ndarray, sigma: float) -> np.ndarray:
    return np.asarray(sigma * special.ndtri(s))


def _on_line(
    name: str,
    n: int,
    energy: of.Energy,
    scheme: Callable[[float], float],
    exact: Callable[[float], float],
    ppf: Callable[[Any, float], np.ndarray],
) -> tuple[Oracle, Oracle]:
    """All laws are one profile scaled by a number, which the scheme and the equation know at the end."""
    field, length = of.SteepestDescent(energy, of.Wasserstein()), END - START
    last, size = exact(length), root_mean_square(lambda s: ppf(s, 1.0))
    plain, refined, behind = {}, {}, {}
    for tau in TAUS:
        ends = []
        for k in (n // 2, n):
            mu = of.Quantiles.from_ppf(lambda s: ppf(s, exact(0.0)), k)
            end = of.flow(mu, field, of.JKO(), t1=length, dt=tau, save_at=[0.0]).final
            ends.append(of.Quantiles(end.coords[0], mu.levels))
        R = scheme(tau)
        plain[tau] = distance(ends[1], _at(ppf, R))
        refined[tau] = distance(of.richardson(*ends), _at(ppf, R))
        behind[tau] = abs(R - last) * size
    return (
        Oracle(name, "W2", JKO98, plain, behind, 1e-4),
        Oracle(
            name,
            "W2",
            Source(f"{JKO98}; extrapolated from {n // 2} and {n} intervals"),
            refined,
            behind,
            1e-6,
        ),
    )


def _at(ppf: Callable[[Any, float], np.ndarray], R: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda s: ppf(s, R)


def root_mean_square(ppf: Callable[[np.ndarray], np.ndarray]) -> float:
    """(int ppf^2 ds)^(1/2): the laws of a X and b X are |a - b| times this apart.

    >>> round(root_mean_square(lambda s: 2 * s - 1), 9)  # 1 / sqrt(3)
    0.577350269
    """
    s, w = gauss_points(of.graded_levels(1000).numpy())
    return float(np.sqrt((w * ppf(s) ** 2).sum()))
