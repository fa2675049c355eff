"""What is read off runs and what outlives a call: speeds, balances, members, buffers, edited weights."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.special import ndtr

from tests.fuzz import attention_oracle as oracle
from tests.fuzz import draws
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family, slow_family
from tests.fuzz.families.entropic_transport import between_quantiles, quantiles
from tests.fuzz.families.movements_on_grids import centres, walls

RUN = "none = torch.tensor(torch.nan)\n"
RUN += "run = of.Trajectory(torch.from_numpy(ts), measures, {}, {}, 'ok', none, none)"


def masses(cut: Array, mean: float, deviation: float) -> Array:
    part = np.diff(ndtr((cut - mean) / deviation))
    return np.asarray(part / part.sum())


def apart(rho: Array, other: Array, reach: float) -> float:
    """W2 of densities constant on cells, by their quantile functions in extended precision."""
    square = between_quantiles(*(quantiles(draws.known(z, z.shape)) for z in (rho, other)), 2)
    return float(2 * reach * np.sqrt(square))


@family
def speeds_on_the_line(rng: Rng) -> Case:
    """Normal laws that move by a thousandth of a cell or by three; distances from quantiles."""
    n, s = int(rng.integers(60, 200)), float(rng.uniform(0.5, 1))
    reach = 8 * s
    h = 2 * reach / n
    v, grow = float(rng.choice([-1, 1]) * rng.uniform(0.2, 2)), float(draws.pick(rng, (0.0, 0.3)))
    ts = np.cumsum(np.append(0, 10.0 ** rng.uniform(-3, 0.4, 3) * h / abs(v)))
    rho = np.stack([masses(walls(n, reach), v * t, s + grow * t) for t in ts]) / h
    known = [apart(a, b, reach) for a, b in pairwise(rho)]
    true = np.hypot(v, grow)
    return Case(
        f"measures = tuple(of.Grid(one, [axis]) for one in rho)\n{RUN}\n"
        "moves = [of.distance(a, b, of.Wasserstein()) for a, b in zip(measures, measures[1:])]\n"
        "run.speed(), moves",
        {"ts": ts, "rho": rho, "axis": centres(n, reach)},
        lambda: (np.full(3, true), *known),
        lambda: (0.5 * (h / s) ** 2 * true, *(1e-9 * one + 1e-12 / one for one in known)),
    )


@slow_family
def speeds_in_the_plane(rng: Rng) -> Case:
    """The same for products; of second order in cells and in the way over the width."""
    n, s = int(rng.integers(40, 64)), rng.uniform(0.7, 1, 2)
    reach = 6 * float(s.max())
    h, v = 2 * reach / n, rng.standard_normal(2)
    ts = np.array([0, float(10 ** rng.uniform(-3, 0.3)) * h / np.linalg.norm(v)])
    parts = [[masses(walls(n, reach), u * t, one) for u, one in zip(v, s, strict=True)] for t in ts]
    rho = np.stack([np.outer(*pair) for pair in parts]) / h**2
    true = float(np.linalg.norm(v))
    slack = ((h / s.min()) ** 2 + (true * ts[1] / s.min()) ** 2) / 2
    return Case(
        f"measures = tuple(of.Grid(one, [axis, axis]) for one in rho)\n{RUN}\n"
        "run.speed(), of.distance(*measures, of.Wasserstein())",
        {"ts": ts, "rho": rho, "axis": centres(n, reach)},
        lambda: (np.full(1, true), true * ts[1]),
        lambda: (slack * true, slack * true * ts[1]),
    )


@family
def members_that_end_early(rng: Rng) -> Case:
    """x' = -a x under RK4 until |x| < c, each member by itself: clocks, speeds and balances by hand."""
    k, a, h, steps = int(rng.integers(1, 5)), float(rng.uniform(0.5, 2)), float(rng.uniform(0.02, 0.2)), 8
    x, c = rng.uniform(0.5, 3, k), float(rng.uniform(0.3, 1.5))
    z = LONG(-a * h)
    path = x.astype(LONG) * (1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24) ** np.arange(steps + 1)[:, None]
    ends = np.where((path[1:] < c).any(0), 1 + (path[1:] < c).argmax(0), steps)  # asked after every step
    last = int(ends.max())
    index = np.minimum(np.arange(last + 1)[:, None], ends)
    path, clocks = np.take_along_axis(path, index, 0), h * index
    energy, slope, way = a * path**2 / 2, (a * path) ** 2, np.diff(path, axis=0) ** 2
    dt = np.diff(clocks, axis=0)
    speed = np.where(dt > 0, np.sqrt(way) / np.where(dt > 0, dt, 1), 0)
    spent = speed**2 * dt + dt * (slope[1:] + slope[:-1]) / 2
    residual = energy[0] - energy - np.vstack([np.zeros(k), spent.cumsum(0) / 2])
    one = int(rng.integers(k))
    return Case(
        f"pull = of.SteepestDescent(of.QuadraticPotential([[{a!r}]]), of.Wasserstein())\n"
        f"low = lambda t, mu: mu.x[..., 0, 0] < {c!r}\n"
        f"run = of.flow(of.Particles(x[:, None, None]), pull, of.RK4(), t1={steps * h!r}, dt={h!r}, "
        "stop=low)\n"
        f"all, own = of.energy_balance(run, pull), of.energy_balance(run.member({one}), pull)\n"
        "run.x[..., 0, 0], run.clocks, run.speed(), all.energy, all.slope, all.length, all.residual, "
        "own.residual, run.status",
        {"x": x},
        lambda: (path, clocks, speed, energy, slope, way, residual, residual[:, one]),
        lambda: (1e-13, 1e-13, 1e-12 / h, *(1e-12 * (1 + a**2) * 10,) * 5),
    )


@family
def observables_of_batches(rng: Rng) -> Case:
    """One value for each member, a buffer that is used again, and three numbers about all members."""
    k, d = int(draws.pick(rng, (1, 2, 3, 3))), draws.dimension(rng)
    n, h, steps = draws.size(rng), 0.125, 3
    x, one = rng.standard_normal((k, n, d)), int(rng.integers(k))
    damp = (1 - h) ** np.arange(steps + 1)
    path = damp[:, None, None, None] * x
    each, flat = path.mean((-1, -2)), path.reshape(steps + 1, -1)
    whole = np.stack([flat.min(1), flat.mean(1), flat.max(1)], 1)
    return Case(
        "pull = of.SteepestDescent(of.QuadraticPotential(np.eye(x.shape[-1])), of.Wasserstein())\n"
        "buffer = torch.zeros(3, dtype=torch.float64)\n"
        "def reused(mu):\n"
        "    buffer[0], buffer[1], buffer[2] = mu.x.min(), mu.x.mean(), mu.x.max()\n    return buffer\n"
        "seen = {'each': lambda mu: mu.x.mean((-1, -2)), 'all': reused}\n"
        "seen['square'] = of.observables.second_moment\n"
        f"run = of.flow(of.Particles(x), pull, of.Euler(), t1={steps * h!r}, dt={h!r}, observe=seen)\n"
        f"buffer.fill_(7.0)\nown = run.member({one})\n"
        "run.observed['each'], run.observed['all'], own.observed['each'], own.observed['all'], "
        "own.observed['square'], own.x",
        {"x": x},
        lambda: (each, whole, each[:, one], whole, (path[:, one] ** 2).sum((1, 2)) / n, path[:, one]),
        lambda: 1e-13 * (1 + abs(x).max()) ** 2 * d,
    )


EDITS = ("{0}.mul_(3.0)", "{0}[:] = 3 * {0}", "{0}.data.mul_(3.0)", "{0}.copy_({0} * 3.0)")


@family
def weights_edited_in_place(rng: Rng) -> Case:
    """Arrays and plain tensors are copied when a field or a measure is built; parameters are followed."""
    kind = str(draws.pick(rng, ("Softmax", "L2", "Sigmoid", "Unnormalised")))
    n, d = draws.size(rng), int(rng.integers(1, 4))
    x, m = rng.standard_normal((n, d)), [draws.matrix(rng, d, d, size=0.4) for _ in range(3)]
    which, live = int(rng.integers(3)), draws.chance(rng, 0.5)
    held = "QKV"[which]
    plain = not live and draws.chance(rng, 0.3)  # an array of numpy
    edit = f"{held}[:] = 3 * {held}" if plain else str(draws.pick(rng, EDITS)).format(held)
    made = "" if plain else f"{held} = torch.from_numpy({held}){'.requires_grad_()' if live else ''}\n"
    after = [3 * a if live and k == which else a for k, a in enumerate(m)]
    w = np.full(n, LONG(1) / n)

    def velocities(m: list[Array]) -> Array:
        return oracle.velocity(kind, oracle.long((m[0], m[1], m[2])), x, w, x)

    def bound(m: list[Array]) -> Array:
        return oracle.velocity_bound(kind, (m[0], m[1], m[2]), x, w, x, draws.unit(np.float64))

    return Case(
        f"points = torch.from_numpy(x)\n{made}field, mu = of.{kind}Attention(Q, K, V), of.Particles(points)\n"
        f"first = field(0.0, mu)[0]\nwith torch.no_grad():\n    {edit}\n    points.mul_(5.0)\n"
        "first, field(0.0, mu)[0], mu.x",
        {"x": x, "Q": m[0], "K": m[1], "V": m[2]},
        lambda: (velocities(m), velocities(after), x),
        lambda: (bound(m), bound(after), 0.0),
    )


@family
def energies_edited_in_place(rng: Rng) -> Case:
    """The same for quadratic potentials and interactions, in value and in descent, also under JKO steps."""
    n, d = draws.size(rng), int(rng.integers(1, 4))
    x, A, K = rng.standard_normal((n, d)), draws.spd(rng, d, d, condition=10.0), draws.spd(rng, d, d)
    live, tau = draws.chance(rng, 0.5), float(10 ** rng.uniform(-1, 0))
    edit = str(draws.pick(rng, EDITS))
    grad = ".requires_grad_()" if live else ""
    a, k = (3 * A, 3 * K) if live else (A, K)
    c = x.mean(0)
    value = ((x @ a * x).sum(1) + ((x - c) @ k * (x - c)).sum(1)).mean() / 2
    eye = np.eye(d)
    step = c @ np.linalg.inv(eye + tau * a) + (x - c) @ np.linalg.inv(eye + tau * (a + k))
    size = (1 + abs(x).max()) ** 2 * (1 + abs(a).max() + abs(k).max()) * d
    return Case(
        f"A, K = torch.from_numpy(A){grad}, torch.from_numpy(K){grad}\nmu = of.Particles(x)\n"
        "F = of.QuadraticPotential(A) + of.QuadraticInteraction(K)\n"
        "field = of.SteepestDescent(F, of.Wasserstein())\nF(mu), field(0.0, mu)\n"
        f"with torch.no_grad():\n    {edit.format('A')}\n    {edit.format('K')}\n"
        f"    move = of.jko_step(mu, F, {tau!r})\n"
        "F(mu), field(0.0, mu)[0], move.mu.x",
        {"x": x, "A": A, "K": K},
        lambda: (value, -(x @ a) - (x - c) @ k, step),
        lambda: (1e-13 * size, 1e-13 * size, 1e-7 * size),
    )
