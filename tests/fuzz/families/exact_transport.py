"""Exact transport: against all permutations, sorting on the line, linear programs and closed forms."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from tests.fuzz import draws
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family

PROOF = 1e-9  # of the cost: the gap up to which otflow certifies
MOST = 6  # units of mass: 720 permutations
ROOM = 1e-290, 1e290  # between which costs are asked for: elsewhere otflow refuses them

SPACES = ("", "", "", "", "space=of.Torus(1.0)", "space=of.Sphere()")


class Coin(NamedTuple):
    """A cloud of few units of mass: atom i has the mass counts_i / sum(counts)."""

    x: Array
    counts: Array
    code: str
    values: dict[str, Array]

    @property
    def spread(self) -> Array:
        """Every atom as often as it has units."""
        return np.repeat(self.x, self.counts, axis=0)


def coin(rng: Rng, name: str, x: Array, units: int, extra: str = "") -> Coin:
    """Atoms x with `units` units of mass in all, at least as many as atoms."""
    counts = 1 + rng.multinomial(units - len(x), np.full(len(x), 1 / len(x)))
    values = {name: x}
    parts = [draws.laid_out(rng, name, x)]
    if units > len(x) or draws.chance(rng, 0.3):
        values[f"w_{name}"] = counts / units
        parts.append(f"w_{name}")
    parts += [extra] if extra else []
    return Coin(x, counts, f"of.Particles({', '.join(parts)})", values)


def normalised(x: Array) -> Array:
    x = x + (x == 0).all(-1, keepdims=True)
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def two_coins(rng: Rng, *, space: str = "", dtype: Any = np.float64, dimension: int = 0) -> tuple[Coin, Coin]:
    d = dimension or draws.dimension(rng)
    units = int(rng.integers(1, MOST + 1))
    shapes = [(int(rng.integers(1, units + 1)), d) for _ in range(2)]
    size = draws.wide_scale(rng, dtype)
    x, y = (draws.cloud(rng, shape, size).astype(dtype) for shape in shapes)
    if draws.chance(rng, 0.1) and x.shape == y.shape:
        y = x[rng.permutation(len(x))]
    if "Torus" in space:
        x, y = np.mod(x / size, 1.0) % 1.0, np.mod(y / size, 1.0) % 1.0
    if "Sphere" in space:
        x, y = (normalised(a / size) for a in (x, y))
    return coin(rng, "x", x, units, space), coin(rng, "y", y, units, space)


def lengths(x: Array, y: Array, space: str = "") -> Array:
    """d(x_i, y_j) in extended precision; the angle by its half, good from zero to antipodes."""
    x, y = x.astype(LONG)[:, None], y.astype(LONG)[None]
    gap = x - y
    if "Torus" in space:
        gap = gap - np.round(gap)
    r = np.sqrt((gap * gap).sum(-1))
    return np.asarray(2 * np.arctan2(r, np.sqrt(((x + y) ** 2).sum(-1))) if "Sphere" in space else r)


def has_room(cost: Any) -> bool:
    return bool(cost == 0 or ROOM[0] < cost < ROOM[1])


def tiny(dtype: Any) -> float:
    return float(np.finfo(dtype).tiny)


def best(c: Array) -> tuple[Any, Array]:
    """The least mean of c over permutations, and one that has it."""
    every = np.array(list(permutations(range(len(c)))))
    totals = c[np.arange(len(c)), every].sum(1)
    k = int(totals.argmin())
    return totals[k] / len(c), every[k]


def rounding(mu: Coin, nu: Coin, c: Array, space: str) -> Any:
    """What the rounding of masses and of points on curved spaces may do to a mean of c."""
    weighted = any(name.startswith("w_") for name in (*mu.values, *nu.values))
    unit = draws.unit(np.float64)
    return (8 * (len(mu.x) + len(nu.x)) * unit * c.max() if weighted else 0) + 64 * unit * (space != "")


@family
def transport_by_permutations(rng: Rng) -> Case:
    space, p = str(draws.pick(rng, SPACES)), draws.pick(rng, (1, 2, 2, 3, 1.5))
    mu, nu = two_coins(rng, space=space, dimension=2 if "Sphere" in space else 0)
    c = lengths(mu.spread, nu.spread, space) ** p
    cost, _ = best(c)
    slack = PROOF * cost + rounding(mu, nu, c, space)
    room = has_room(cost)
    code = f"plan = of.solve({mu.code}, {nu.code}, {p!r})\n" + "plan.cost, plan.bound, " * room
    code += "plan.distance, plan.status"
    far = (cost + slack) ** (LONG(1) / p) - cost ** (LONG(1) / p)
    near = cost ** (LONG(1) / p) - max(cost - slack, LONG(0)) ** (LONG(1) / p)
    bounds = (slack + 1e-300, slack + 1e-300, max(far, near) + 1e-15 * cost ** (LONG(1) / p) + 1e-300)
    values = (cost, cost, cost ** (LONG(1) / p))
    first = 0 if room else 2
    return Case(code, mu.values | nu.values, lambda: values[first:], lambda: bounds[first:])


@family
def transport_plan_and_gradient(rng: Rng) -> Case:
    """The gradient of W_p^p is that of the matching, wherever that is unique."""
    p, dtype = draws.pick(rng, (2, 2, 3)), draws.precision(rng)
    n, d = int(rng.integers(1, MOST + 1)), draws.dimension(rng)
    size = draws.wide_scale(rng, dtype)
    x, y = (size * rng.standard_normal((2, n, d))).astype(dtype)
    c = lengths(x, y) ** p
    cost, order = best(c)
    gap = x.astype(LONG) - y[order].astype(LONG)
    r = np.sqrt((gap * gap).sum(-1, keepdims=True))
    slope = p * gap * r ** (p - 2) / n * (cost ** (LONG(1) / p - 1)) / p
    unit = draws.unit(dtype)
    code = (
        "x = torch.from_numpy(x).requires_grad_()\n"
        f"distance = of.wasserstein(of.Particles(x), of.Particles(y), {p})\n"
        "distance.backward()\ndistance, x.grad"
    )
    value = cost ** (LONG(1) / p)
    bounds = (PROOF * value + 8 * unit * value, 64 * unit * (d + n) * abs(slope).max() + 1e-37)
    unique = n == 1 or second_best(c) > cost * (1 + 1e-6)
    return Case(
        code, {"x": x, "y": y}, lambda: (value, slope), lambda: bounds if unique else (bounds[0], np.inf)
    )


def second_best(c: Array) -> Any:
    every = np.array(list(permutations(range(len(c)))))
    return np.partition(c[np.arange(len(c)), every].sum(1), 1)[1] / len(c)


@family
def transport_on_the_line(rng: Rng) -> Case:
    """Any masses, batches, single precision: by quantile functions."""
    batch, p, dtype = draws.batch(rng), draws.pick(rng, (1, 2, 2, 4)), draws.precision(rng)
    n, m, size = draws.size(rng), draws.size(rng), draws.wide_scale(rng, dtype)
    x, y = (draws.cloud(rng, (*batch, k, 1), size).astype(dtype) for k in (n, m))
    w, v = (draws.weights(rng, (*batch, k)) for k in (n, m))
    w, v = (None if a is None else a.astype(dtype) for a in (w, v))
    values = {"x": x, "y": y} | ({} if w is None else {"w": w}) | ({} if v is None else {"v": v})
    first, second = draws.laid_out(rng, "x", x), draws.laid_out(rng, "y", y)
    code = (
        f"of.wasserstein(of.Particles({first}, {'w' if w is not None else None}), "
        f"of.Particles({second}, {'v' if v is not None else None}), {p})"
    )
    a, b = draws.known(w, (*batch, n), dtype), draws.known(v, (*batch, m), dtype)

    def each(f: Any) -> Array:
        parts = [
            f(x[k][:, 0].astype(LONG), a[k], y[k][:, 0].astype(LONG), b[k]) for k in draws.members(batch)
        ]
        return draws.stacked(batch, parts)

    def bound(x: Array, a: Array, y: Array, b: Array) -> Any:
        cost = line(x, a, y, b, p)
        unit = 2.0**-53
        slack = PROOF * cost + 16 * (n + m) * unit * (abs(x).max() + abs(y).max()) ** p
        value = cost ** (LONG(1) / p)
        far = (cost + slack) ** (LONG(1) / p) - max(cost - slack, LONG(0)) ** (LONG(1) / p)
        return far + 8 * draws.unit(dtype) * value + tiny(dtype)

    return Case(code, values, lambda: each(lambda *one: line(*one, p) ** (LONG(1) / p)), lambda: each(bound))


def line(x: Array, a: Array, y: Array, b: Array, p: float) -> Any:
    """int_0^1 |X(s) - Y(s)|^p ds, with the quantile functions X and Y."""
    i, j = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    A, B = np.cumsum(a[i]), np.cumsum(b[j])
    cuts = np.unique(np.concatenate([[LONG(0)], A[:-1], B[:-1], [LONG(1)]]))
    total = LONG(0)
    for low, high in pairwise(cuts):
        middle = (low + high) / 2
        k, q = (min(int(np.searchsorted(c, middle)), len(c) - 1) for c in (A, B))
        total += (high - low) * abs(x[i[k]] - y[j[q]]) ** p
    return total


@family
def transport_by_linear_programming(rng: Rng) -> Case:
    """Masses of any kind in several dimensions, where a linear program knows seven digits."""
    p, d = draws.pick(rng, (1, 2)), int(rng.integers(2, 4))
    n, m = (int(rng.integers(1, 9)) for _ in range(2))
    x, y = rng.standard_normal((n, d)), rng.standard_normal((m, d)) + rng.standard_normal(d)
    w, v = (a / a.sum() for a in (rng.uniform(0, 1, k) ** 2 + 1e-3 for k in (n, m)))
    c = (lengths(x, y) ** p).astype(float)

    def program() -> float:
        rows = np.kron(np.eye(n), np.ones(m))
        columns = np.kron(np.ones(n), np.eye(m))
        found = linprog(c.ravel(), A_eq=np.vstack([rows, columns[:-1]]), b_eq=np.concatenate([w, v[:-1]]))
        return float(found.fun)

    return Case(
        f"plan = of.solve(of.Particles(x, w), of.Particles(y, v), {p})\n"
        "plan.cost, plan.plan.sum(1), plan.plan.sum(0), (plan.plan * torch.from_numpy(c)).sum(), plan.status",
        {"x": x, "y": y, "w": w, "v": v, "c": c},
        lambda: (program(), w, v, program()),
        lambda: (1e-6 * c.max(), 1e-14, 1e-14, 1e-6 * c.max()),
    )


@family
def transport_of_translations(rng: Rng) -> Case:
    """A cloud moved by h is at the distance |h|, for every order and in every batch."""
    batch, p, dtype = draws.batch(rng), draws.pick(rng, (1, 2, 7, 100)), draws.precision(rng)
    n, d, size = draws.size(rng), draws.dimension(rng), draws.wide_scale(rng, dtype)
    x = draws.cloud(rng, (*batch, n, d), size).astype(dtype)
    h = (size * 2.0 ** rng.integers(-3, 4) * rng.standard_normal(d)).astype(dtype)
    y = x + h
    w = draws.weights(rng, (n,))
    w = None if w is None else w.astype(dtype)
    moved = y.astype(LONG) - x.astype(LONG)
    length = np.sqrt((moved * moved).sum(-1))
    far = abs(x).max() + abs(h).max()
    slack = 2 * d * draws.unit(dtype) * far  # by which y is off x + h, and costs differ between atoms
    exact = np.sqrt((h.astype(LONG) ** 2).sum())
    values = {"x": x, "y": y[..., rng.permutation(n), :] if w is None else y} | (
        {} if w is None else {"w": w}
    )
    weight = "" if w is None else ", w"
    return Case(
        f"of.wasserstein(of.Particles(x{weight}), of.Particles(y{weight}), {p})",
        values,
        lambda: np.broadcast_to(exact, batch),
        lambda: slack * 4 + (PROOF + 64 * draws.unit(dtype)) * length.max(),
    )


@family
def conditional_transport(rng: Rng) -> Case:
    """Every label is a problem of its own: all permutations within each."""
    p, dtype = draws.pick(rng, (1, 2, 2, 3)), draws.precision(rng)
    d, size = draws.dimension(rng), draws.wide_scale(rng, dtype)
    fibres = [int(k) for k in rng.integers(1, 5, int(rng.integers(1, 4)))]
    n = sum(fibres)
    label = np.repeat(np.arange(len(fibres)) / 2.0, fibres)
    x, y = (draws.cloud(rng, (n, d), size).astype(dtype) for _ in range(2))
    parts = [best(lengths(x[label == s], y[label == s]) ** p)[0] * (label == s).sum() / n for s in set(label)]
    cost = sum(parts, LONG(0))
    i, j = rng.permutation(n), rng.permutation(n)
    values = {"x": x[i], "y": y[j], "s": label[i], "t": label[j]}
    value, unit = cost ** (LONG(1) / p), draws.unit(dtype)
    slack = 64 * n * 2.0**-53 * (LONG(abs(x).max()) + abs(y).max()) ** p * d  # masses of fibres are rounded
    far = (cost + slack) ** (LONG(1) / p) - max(cost - slack, LONG(0)) ** (LONG(1) / p)
    near, room = far + (PROOF + 8 * unit) * value + tiny(dtype), has_room(cost)
    return Case(
        "mu, nu = of.Particles(x, label=s), of.Particles(y, label=t)\n"
        f"plan = of.transport.solve_conditional(mu, nu, {p})\n"
        f"of.conditional_wasserstein(mu, nu, {p}), plan.distance, {'plan.cost, ' * room}plan.status",
        values,
        lambda: (value, value, cost)[: 2 + room],
        lambda: (near, near, slack + PROOF * cost + 1e-300)[: 2 + room],
    )


@family
def conditional_transport_at_a_price(rng: Rng) -> Case:
    """Labels may move at the price beta: all permutations of the cost beta |s - t|^2 + |x - y|^2."""
    n, d = int(rng.integers(1, MOST + 1)), draws.dimension(rng)
    x, y = (draws.cloud(rng, (n, d)) for _ in range(2))
    s, t = (rng.integers(0, 3, n) / 2.0 for _ in range(2))
    betas = np.sort(10.0 ** rng.uniform(-3, 3, int(rng.integers(1, 4))))
    moved = (s[:, None] - t[None]).astype(LONG) ** 2
    c = [LONG(beta) * moved + lengths(x, y) ** 2 for beta in betas]
    costs = np.array([best(one)[0] for one in c])
    slack = PROOF * costs + 64 * n * 2.0**-53 * np.array([one.max() for one in c])
    return Case(
        "found = of.transport.relaxed_conditional(\n"
        "    of.Particles(x, label=s), of.Particles(y, label=t), betas\n)\n"
        "found.values.square(), found.status",
        {"x": x, "y": y, "s": s, "t": t, "betas": betas},
        lambda: costs,
        lambda: slack,
    )


@family
def sequence_distance(rng: Rng) -> Case:
    """Two step functions on [0, 1], whatever numbers their labels are."""
    p, dtype = draws.pick(rng, (1, 2, 3)), draws.precision(rng)
    n, m, d = draws.size(rng), draws.size(rng), draws.dimension(rng)
    size = draws.wide_scale(rng, dtype)
    x, y = (draws.cloud(rng, (k, d), size).astype(dtype) for k in (n, m))
    s, t = (np.sort(rng.choice(100, k, replace=False)) / 7 for k in (n, m))
    i, j = rng.permutation(n), rng.permutation(m)
    cuts = sorted({k * m for k in range(n + 1)} | {k * n for k in range(m + 1)})  # in units of 1 / (n m)
    cost = LONG(0)
    for low, high in pairwise(cuts):
        gap = x[low // m].astype(LONG) - y[low // n].astype(LONG)
        cost += LONG(high - low) / (n * m) * np.sqrt((gap * gap).sum()) ** p
    value, unit = cost ** (LONG(1) / p), draws.unit(dtype)
    slack = 64 * (n + m) * 2.0**-53 * (LONG(abs(x).max()) + abs(y).max()) ** p * d
    far = (cost + slack) ** (LONG(1) / p) - max(cost - slack, LONG(0)) ** (LONG(1) / p)
    return Case(
        f"of.sequence_distance(of.Particles(x, label=s), of.Particles(y, label=t), {p})",
        {"x": x[i], "y": y[j], "s": s[i], "t": t[j]},
        lambda: value,
        lambda: far + 16 * (d + n + m) * unit * value + tiny(dtype),
    )


@family
def sliced_transport(rng: Rng) -> Case:
    """Each direction is a problem on the line."""
    p, d = draws.pick(rng, (1, 2)), draws.dimension(rng)
    n, m, size = draws.size(rng), draws.size(rng), draws.wide_scale(rng, np.float64)
    x, y = draws.cloud(rng, (n, d), size), draws.cloud(rng, (m, d), size)
    w, v = draws.weights(rng, (n,)), draws.weights(rng, (m,))
    theta = normalised(rng.standard_normal((int(rng.integers(1, 6)), d)))
    a, b = draws.known(w, (n,)), draws.known(v, (m,))
    values = (
        {"x": x, "y": y, "theta": theta} | ({} if w is None else {"w": w}) | ({} if v is None else {"v": v})
    )

    def value() -> Any:
        costs = [line(x.astype(LONG) @ one, a, y.astype(LONG) @ one, b, p) for one in theta.astype(LONG)]
        return (sum(costs) / len(costs)) ** (LONG(1) / p)

    def bound() -> Any:
        far = LONG(np.sqrt(d)) * (abs(x).max() + abs(y).max())
        slack = 64 * (n + m + d) * 2.0**-53 * far**p
        cost = value() ** p
        return (cost + slack) ** (LONG(1) / p) - max(cost - slack, LONG(0)) ** (LONG(1) / p) + 1e-300

    return Case(
        f"of.sliced_wasserstein(of.Particles(x, {'w' if w is not None else None}), "
        f"of.Particles(y, {'v' if v is not None else None}), {p}, directions=theta)",
        values,
        value,
        bound,
    )


@family
def sliced_transport_at_random(rng: Rng) -> Case:
    """On the line there is only one direction, whatever is drawn."""
    n, size, seed = draws.size(rng), draws.wide_scale(rng, np.float64), int(rng.integers(100))
    x, y = draws.cloud(rng, (n, 1), size), draws.cloud(rng, (n, 1), size)
    even = np.full(n, LONG(1) / n)
    value = np.sqrt(line(x[:, 0].astype(LONG), even, y[:, 0].astype(LONG), even, 2))
    far = abs(x).max() + abs(y).max()
    return Case(
        f"of.sliced_wasserstein(of.Particles(x), of.Particles(y), directions=7, rng={seed})",
        {"x": x, "y": y},
        lambda: value,
        lambda: 64 * n * 2.0**-53 * far + 1e-300,
    )
