"""Steps in energies with several wells: "ok" is the least value of all by brute force, "local" a minimum.

Statuses decide which of the two is asked, so the code of a case compares with the least value itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import minimum_filter
from scipy.optimize import minimize

from tests.fuzz import draws
from tests.fuzz.draws import Array, Rng
from tests.fuzz.engine import Case, family, slow_family

POINTS = {1: 8_001, 2: 241, 3: 61}  # along each axis of a search by brute force
WELLS = 6  # lowest minima of the grid that are followed to their ends
EQUAL = 1e-9  # of values, in units of the terms they are sums of: searches call 1e-10 equal
SOLVED = 1e-9  # of slopes, in units of the first: the tolerance of the solver is 1e-10


class Landscape(NamedTuple):
    """A function as code of coordinates x and y, of cos and of exp, and a number that it is nowhere below."""

    code: str
    floor: float

    def at(self, points: Array) -> Array:
        """Its values at (..., d)."""
        names = {"cos": np.cos, "exp": np.exp, **dict(zip("xy", np.moveaxis(points, -1, 0), strict=False))}
        return np.asarray(eval(self.code, names) + np.zeros(points.shape[:-1]))


def landscape(rng: Rng, d: int) -> Landscape:
    """Wells on a circle, with waves or bumps in it."""
    square = "(x**2 + y**2)" if d == 2 else "x**2"
    a, b, c = rng.uniform(0.2, 1.5), rng.uniform(0.2, 2), rng.uniform(-1, 1)
    code, floor = f"{a!r} * ({square} - {b!r}) ** 2 / 4", 0.0
    if draws.chance(rng, 0.6):
        phase = f"{rng.uniform(1, 5)!r} * x + {rng.uniform(0, 6)!r}" + (f" - {c!r} * y" if d == 2 else "")
        code, floor = f"{code} + {c!r} * cos({phase})", floor - abs(c)
    for _ in range(int(rng.integers(0, 3))):
        height, width = rng.uniform(-1, 1), rng.uniform(0.3, 1)
        gaps = [f"({z} - {rng.uniform(-1.5, 1.5)!r}) ** 2" for z in "xy"[:d]]
        code += f" + {height!r} * exp(-({' + '.join(gaps)}) / {2 * width**2!r})"
        floor += min(height, 0.0)
    return Landscape(code, floor)


def least(phi: Callable[[Array], Array], centre: Array, reach: float) -> float:
    """min phi over a box around a point of R^1, R^2 or R^3: on a grid, and downhill from its minima."""
    k = len(centre)
    axes = [np.linspace(c - reach, c + reach, POINTS[k]) for c in centre]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    values = phi(points)
    wells = points[minimum_filter(values, 3, mode="nearest") == values]
    wells = wells[np.argsort(phi(wells))[:WELLS]]
    ends = [minimize(phi, one, method="BFGS", options={"gtol": 1e-8}).fun for one in wells]
    return float(min(values.min(), *ends))


def potential(U: Landscape, d: int) -> str:
    names = "x, y = x[..., 0], x[..., 1]" if d == 2 else "x = x[..., 0]"
    return f"cos, exp = torch.cos, torch.exp\ndef U(x):\n    {names}\n    return {U.code}\n"


JUDGED = """
proved = torch.tensor(np.equal(move.status, 'ok'))[..., None]
above = phi(y) - torch.from_numpy(low)
slope = torch.func.grad(lambda y: phi(y).sum())(y)
fall, better = mean(y) - mean(x), mean(of.jko_step(mu, F, tau, starts=4).mu.x) - mean(y)
missed = above.clamp(min=0) * proved
above.clamp(max=0), missed, slope, bend.clamp(max=0), fall.clamp(min=0), better.clamp(min=0)"""
# never below the least value; at it, if proved; stationary; no maximum; not above the start; starts only help


def bounds(size: Any, slope: Any, bend: Any) -> tuple[Any, ...]:
    return EQUAL * size, EQUAL * size, slope, bend, EQUAL * size, EQUAL * size


def alone(rng: Rng, d: int, members: int) -> Case:
    """Particles in a potential, each of which goes by itself: phi(y) = U(y) + |y - x|^2 / (2 tau)."""
    U, tau = landscape(rng, d), float(10 ** rng.uniform(-1.3, 1 if d == 1 else 0.5))
    shape = (members, int(rng.integers(1, 4)), d)
    x = rng.uniform(-2.2, 2.2, shape if members > 1 else shape[1:])
    w = rng.uniform(0.2, 1, x.shape[-2]) if draws.chance(rng, 0.3) else np.ones(x.shape[-2])
    w, above = w / w.sum(), U.at(x) - U.floor
    low = np.empty(above.shape)
    for k in np.ndindex(above.shape):
        low[k] = least(
            lambda y, x=x[k]: U.at(y) + ((y - x) ** 2).sum(-1) / (2 * tau), x[k], reach(above[k], tau)
        )
    known = str(draws.pick(rng, ("", "", f", infimum={U.floor!r}")))
    opaque = draws.chance(rng, 0.2)  # an operation of which interval arithmetic knows nothing
    size = 1 + abs(U.floor) + above.max()
    F = "of.Potential(lambda x: torch.einsum('...->...', U(x)))" if opaque else f"of.Potential(U{known})"
    return Case(
        f"{potential(U, d)}tau, mu, F = {tau!r}, of.Particles(x, w), {F}\n"
        "move = of.jko_step(mu, F, tau)\nx, y = torch.from_numpy(x), move.mu.x\n"
        "phi = lambda y: U(y) + (y - x).square().sum(-1) / (2 * tau)\n"
        "mean = lambda y: (phi(y) * torch.from_numpy(w)).sum(-1)\n"
        f"each = y.reshape(-1, {d}), x.reshape(-1, {d})\n"
        "one = lambda y, x: U(y) + (y - x).square().sum(-1) / (2 * tau)\n"
        "hessian = torch.func.jacrev(torch.func.jacrev(one))\n"
        f"bend = torch.linalg.eigvalsh(torch.func.vmap(hessian)(*each)){JUDGED}",
        {"x": x, "w": w, "low": low},
        lambda: tuple(np.zeros(one) for one in shapes(x)),
        lambda: bounds(
            size, SOLVED * steepest(U, x) / w.min() ** 0.5 + 1e-12 * size / tau, 1e-6 * (1 + 1 / tau)
        ),
    )


def shapes(x: Array) -> tuple[tuple[int, ...], ...]:
    n = int(np.prod(x.shape[:-1]))
    return x.shape[:-1], x.shape[:-1], x.shape, (n, x.shape[-1]), x.shape[:-2], x.shape[:-2]


def reach(above: Any, tau: float) -> float:
    """|y - x|^2 <= 2 tau (U(x) - inf U) for every y that is no worse than x; and a little more."""
    return 1.01 * float(np.sqrt(2 * tau * above)) + 1e-3


def steepest(U: Landscape, x: Array) -> float:
    """A bound on the slopes of U at the points, by differences."""
    h = 1e-6
    return 2 * max(abs(U.at(x + h * e) - U.at(x - h * e)).max() / (2 * h) for e in np.eye(x.shape[-1])) + 1e-3


@family
def steps_between_wells_on_the_line(rng: Rng) -> Case:
    """One to three particles, some of them in batches, by 8,001 points each."""
    return alone(rng, 1, int(draws.pick(rng, (1, 1, 3))))


@slow_family
def steps_between_wells_in_the_plane(rng: Rng) -> Case:
    """One to three particles, by 241 x 241 points each."""
    return alone(rng, 2, 1)


FORCES: tuple[tuple[str, str], ...] = (  # of z, and what they are not below
    ("h * z**4 / 4 - k * z**2 / 2", "-k**2 / (4 * h)"),
    ("h * cos(k * z)", "-h"),
    ("-h * exp(-k * z**2)", "-h"),
    ("h * exp(-k * z**2)", "0"),
)


@slow_family
def steps_of_particles_that_interact(rng: Rng) -> Case:
    """Up to three particles on the line, all displacements at once by brute force in R^n."""
    n, tau = int(rng.integers(1, 4)), float(10 ** rng.uniform(-1.3, 0.3))
    U, h, k = landscape(rng, 1), float(rng.uniform(0.2, 1.5)), float(rng.uniform(0.5, 3))
    force, below = draws.pick(rng, FORCES)
    floor = U.floor + eval(below, {"h": h, "k": k}) / 2
    x = rng.uniform(-1.6, 1.6, (n, 1))

    def energy(y: Array) -> Array:
        names = {"cos": np.cos, "exp": np.exp, "h": h, "k": k, "z": y[..., :, None] - y[..., None, :]}
        return np.asarray(U.at(y[..., None]).mean(-1) + eval(force, names).mean((-1, -2)) / 2)

    start = x[:, 0]
    above = float(energy(start) - floor)
    low = least(lambda y: energy(y) + ((y - start) ** 2).mean(-1) / (2 * tau), start, reach(above * n, tau))
    size = 1 + abs(floor) + above
    return Case(
        f"{potential(U, 1)}h, k, tau, mu = {h!r}, {k!r}, {tau!r}, of.Particles(x)\n"
        f"def W(x, y):\n    z = (x - y)[..., 0]\n    return {force}\n"
        "F = of.Potential(U) + of.Interaction(W)\n"
        "move = of.jko_step(mu, F, tau)\nx, y = torch.from_numpy(x), move.mu.x\n"
        "def phi(y):\n"
        "    own, pairs = U(y) + (y - x).square().sum(-1) / (2 * tau), W(y[:, None], y[None])\n"
        "    return (own.mean(-1) + pairs.mean((-1, -2)) / 2)[None]\n"
        "mean = lambda y: phi(y)[0]\n"
        "hessian = torch.func.jacrev(torch.func.jacrev(lambda y: phi(y[:, None])[0]))\n"
        "bend = torch.linalg.eigvalsh(hessian(y[:, 0])) * len(x)"
        f"{JUDGED}",
        {"x": x, "low": np.array([low])},
        lambda: tuple(np.zeros(one) for one in ((1,), (1,), (n, 1), (n,), (), ())),
        lambda: bounds(size, SOLVED * 30 * (1 + size) + 1e-12 * size / tau, 1e-6 * (1 + 1 / tau)),
    )
