"""JKO steps of densities on grids against closed forms and fine quantile functions.

Errors are in W1 and in the length of the step. Grids are of second order in cells over the width of the
density, at edges where it vanishes like |x - x0|^p of order 1 + p. They are solved to 1e-4 of the
displacement on the line, to 3e-3 or 0.4 over the cells of an axis in the plane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import solveh_banded
from scipy.optimize import brentq
from scipy.special import beta, ndtr

from tests.fuzz import draws
from tests.fuzz.draws import Array, Rng
from tests.fuzz.engine import Case, family, slow_family

LINE_TOL = 1e-4  # relative, of displacements
LEVELS = 4000  # of the quantile functions that stand for the exact step


def centres(n: int, reach: float) -> Array:
    return np.asarray((np.arange(n) + 0.5) * (2 * reach / n) - reach)


def walls(n: int, reach: float) -> Array:
    return np.linspace(-reach, reach, n + 1)


class Step(NamedTuple):
    """What is below each wall before and after, the length of the way, and the least scale of both."""

    levels: Array
    after: Array
    length: float
    width: float
    order: float = 2.0


def on_the_line(energy: str, tau: float, axis: Array, step: Step) -> Case:
    h = axis[1] - axis[0]
    # Cells shift equilibria too, by a part of their width, so that the shortest ways have errors as well.
    slack = 2 * LINE_TOL * (step.length + h) + (h / step.width) ** step.order * (step.length + step.width)
    return Case(
        f"mu = of.Grid(np.diff(levels) / {h!r}, [axis])\nmove = of.jko_step(mu, {energy}, {tau!r})\n"
        f"below = np.cumsum(move.mu.density.numpy()) * {h!r}\n"
        f"abs(below - after[1:]).sum() * {h!r}, move.cost.sqrt()",
        {"axis": axis, "levels": step.levels, "after": step.after},
        lambda: (0.0, step.length),
        lambda: slack,
    )


@family
def steps_of_normal_densities(rng: Rng) -> Case:
    """Entropy and a quadratic potential: (1 + ta) m' = m + tab, and (1 + ta) s' - t / (beta s') = s."""
    n, tau, a = int(rng.integers(60, 200)), float(10 ** rng.uniform(-2, 0)), float(rng.uniform(0, 2))
    m, b, s, c = rng.normal() / 2, rng.normal() / 2, float(rng.uniform(0.5, 1)), float(rng.uniform(0.2, 1.5))
    new = (s + np.sqrt(s**2 + 4 * (1 + tau * a) * tau * c)) / (2 * (1 + tau * a))
    there, reach = (m + tau * a * b) / (1 + tau * a), 2 + 7 * max(s, new)
    energy = f"{c!r} * of.Entropy() + of.QuadraticPotential([[{a!r}]], [{b!r}])"
    cut = walls(n, reach)
    below, after = ndtr((cut - m) / s), ndtr((cut - there) / new)
    below = (below - below[0]) / (below[-1] - below[0])
    length = float(np.hypot(there - m, new - s))
    return on_the_line(energy, tau, centres(n, reach), Step(below, after, length, min(s, new)))


@family
def steps_of_barenblatt_profiles(rng: Rng) -> Case:
    """C (R^2 - x^2)_+ = rho^(m - 1) is stretched: (1 - 1 / a) / tau + c = 2 m C / (m - 1) / a^(m + 1)."""
    n, m = int(rng.integers(80, 200)), float(draws.pick(rng, (1.5, 2.0, 3.0)))
    R, tau, c = float(rng.uniform(0.5, 1.5)), float(10 ** rng.uniform(-2, 0)), float(rng.uniform(0, 2))
    p = 1 / (m - 1)
    C = (R ** (2 * p + 1) * beta(0.5, p + 1)) ** (-1 / p)
    a = float(brentq(lambda a: (1 - 1 / a) / tau + c - 2 * m * C / (m - 1) / a ** (m + 1), 1e-3, 1e3))
    reach = 1.3 * R * max(1.0, a)
    cut, fine = walls(n, reach), np.linspace(-1, 1, 200_001)
    mass = np.concatenate([[0], np.cumsum((1 - ((fine[1:] + fine[:-1]) / 2) ** 2) ** p)])
    below, after = (np.interp(cut / scale, fine, mass / mass[-1]) for scale in (R, a * R))
    spread = R / np.sqrt(2 * p + 3)  # the deviation
    energy = f"of.PorousMedium({m!r}) + of.QuadraticPotential([[{c!r}]])"
    step = Step(below, after, abs(a - 1) * spread, spread * min(a, 1.0), min(2.0, 1 + p))
    return on_the_line(energy, tau, centres(n, reach), step)


@slow_family
def steps_of_densities_between_walls(rng: Rng) -> Case:
    """Entropy and any potential, also between wells: Newton's method for 4,000 quantiles."""
    n, c = int(rng.integers(60, 200)), float(rng.uniform(0.3, 1.5))
    k, d, shift = float(rng.uniform(0.5, 2.5)), float(rng.uniform(-1, 1)), float(rng.uniform(0, 6))
    tau = min(float(10 ** rng.uniform(-2, 0)), 0.5 / (abs(d) * k**2 + 1e-9))  # 1 + tau U'' > 0: one minimiser
    reach, (one, two) = 2.0, rng.uniform(-1, 1, 2)

    def below(x: Array) -> Array:
        parts = ((x + reach) / (2 * reach), ndtr((x - one) / 0.5), ndtr((x - two) / 0.7))
        return np.asarray(sum(w * p for w, p in zip((0.3, 0.4, 0.3), parts, strict=True)))

    cut = walls(n, reach)
    levels = (below(cut) - below(cut)[0]) / (below(cut)[-1] - below(cut)[0])
    fine = np.linspace(-reach, reach, 200_001)
    start = np.interp(
        np.linspace(0, 1, LEVELS + 1), (below(fine) - below(fine)[0]) / np.ptp(below(fine)), fine
    )
    ends = moved(
        start, c, tau, lambda x: -d * k * np.sin(k * x + shift), lambda x: -d * k**2 * np.cos(k * x + shift)
    )
    after = np.interp(cut, ends, np.linspace(0, 1, LEVELS + 1))
    gap = (ends - start)[1:-1]
    energy = f"{c!r} * of.Entropy() + of.Potential(lambda x: {d!r} * ({k!r} * x[..., 0] + {shift!r}).cos())"
    step = Step(levels, after, float(np.sqrt((gap**2).mean())), 0.4)
    return on_the_line(energy, tau, centres(n, reach), step)


def moved(
    x: Array, c: float, tau: float, slope: Callable[[Array], Array], bend: Callable[[Array], Array]
) -> Array:
    """min sum_i [U(y_i) + |y_i - x_i|^2 / (2 tau)] - c sum_i log(y_i+1 - y_i), fixed ends, by Newton."""
    y = x.copy()
    for _ in range(100):
        gap = np.diff(y)
        g = slope(y[1:-1]) + (y - x)[1:-1] / tau + c * np.diff(1 / gap)
        diagonal = np.maximum(bend(y[1:-1]) + 1 / tau, 0.1 / tau) + c * (1 / gap[1:] ** 2 + 1 / gap[:-1] ** 2)
        bands = np.vstack([np.concatenate([[0], -c / gap[1:-1] ** 2]), diagonal])
        step = np.concatenate([[0], -solveh_banded(bands, g), [0]])
        shrink = -np.diff(step) / gap
        y = y + step * min(1.0, 0.9 / max(shrink.max(), 1e-9))
        if abs(step).max() < 1e-12:
            break
    return y


@slow_family
def steps_of_normal_densities_in_the_plane(rng: Rng) -> Case:
    """Products, each factor of which goes as on the line; errors in the marginals."""
    n, tau, c = int(rng.integers(32, 56)), float(10 ** rng.uniform(-1.5, 0)), float(rng.uniform(0.2, 1))
    a, s, m = rng.uniform(0, 2, 2), rng.uniform(0.6, 1, 2), rng.normal(size=2) / 2
    new = (s + np.sqrt(s**2 + 4 * (1 + tau * a) * tau * c)) / (2 * (1 + tau * a))
    there, reach = m / (1 + tau * a), 1.5 + 6 * max(*s, *new)
    axis, cut = centres(n, reach), walls(n, reach)
    h = axis[1] - axis[0]
    parts = [np.diff(ndtr((cut - mean) / size)) for mean, size in zip(m, s, strict=True)]
    rho = np.outer(*(part / part.sum() for part in parts)) / h**2
    after = np.stack([ndtr((cut[1:] - mean) / size) for mean, size in zip(there, new, strict=True)])
    length = float(np.linalg.norm([there - m, new - s]))
    slack = (max(3e-3, 0.4 / n) + (h / min(*s, *new)) ** 2) * (length + h)
    return Case(
        f"F = {c!r} * of.Entropy() + of.QuadraticPotential(np.diag(a))\n"
        f"move = of.jko_step(of.Grid(rho, [axis, axis]), F, {tau!r})\n"
        f"mass = move.mu.density.numpy() * {h!r}**2\n"
        "below = np.stack([np.cumsum(mass.sum(1)), np.cumsum(mass.sum(0))])\n"
        f"abs(below - after).sum(1) * {h!r}, move.cost.sqrt()",
        {"rho": rho, "axis": axis, "a": a, "after": after},
        lambda: (np.zeros(2), length),
        lambda: (slack, slack),
    )
