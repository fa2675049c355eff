"""Entropic transport against dense iterations in extended precision, discrepancies against double sums."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz import draws
from tests.fuzz.clouds import Cloud
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family
from tests.fuzz.families.exact_transport import lengths

TOL = 1e-9  # of the marginals, by default
COSTS = {
    "": lambda x, y: lengths(x, y) ** 2,
    ", cost=of.transport.PowerCost(1)": lengths,
    ", cost=of.transport.PowerCost(2.0)": lambda x, y: lengths(x, y) ** 2,
    ", cost=of.transport.BilinearCost(np.eye(x.shape[-1]))": lambda x, y: (
        -(x.astype(LONG) @ y.astype(LONG).T)
    ),
    ", cost=lambda x, y: (x - y).abs().sum(-1)": lambda x, y: abs(x.astype(LONG)[:, None] - y[None]).sum(-1),
}
ENGINES = ("", "", "", ", engine=of.transport.POT()", ", engine=of.transport.GeomLoss()", "newton")


class Plan(NamedTuple):
    """The entropic plan, what it costs, and by which factor a sweep contracts."""

    plan: Array
    cost: Any
    regularised: Any
    contraction: float
    swing: Any  # of the potentials


def log_sum(a: Array, axis: int) -> Array:
    top = a.max(axis, keepdims=True)
    return np.asarray(np.log(np.exp(a - top).sum(axis)) + np.squeeze(top, axis))


def entropic(c: Array, a: Array, b: Array, eps: float, sweeps: int = 20_000) -> Plan:
    """Sinkhorn's iteration in the log domain until it stands still, without the atoms of no mass."""
    i, j = a > 0, b > 0
    s, la, lb = -c[np.ix_(i, j)] / LONG(eps), np.log(a[i]), np.log(b[j])
    G = np.zeros(len(lb), LONG)
    for _ in range(sweeps):
        F = -log_sum(s + G + lb, 1)
        new = -log_sum(s + (F + la)[:, None], 0)
        moved, G = abs(new - G - (new - G).mean()).max(), new
        if moved < 1e-17 * (1 + abs(G).max()):
            break
    F = -log_sum(s + G + lb, 1)
    density = np.exp(s + F[:, None] + G)
    plan = np.zeros(c.shape, LONG)
    plan[np.ix_(i, j)] = a[i][:, None] * density * b[j]
    regularised = eps * ((a[i] * F).sum() + (b[j] * G).sum())
    root = (np.sqrt(a[i])[:, None] * density * np.sqrt(b[j])).astype(float)
    values = np.linalg.svd(root, compute_uv=False)
    contraction = float(min(values[1] ** 2, 1 - 1e-9)) if len(values) > 1 else 0.0
    return Plan(plan, (plan * c).sum(), regularised, contraction, eps * (np.ptp(F) + np.ptp(G)))


def off(one: Plan, c: Array, eps: float, tol: float) -> tuple[Any, Any, Any]:
    """Bounds of plan, cost and regularised cost from the tolerance of the marginals and rounding."""
    rounded = 64 * 2.0**-53 * (len(c) + c.shape[1] + abs(c).max() / eps)
    plan = (16 * tol + rounded) / (1 - one.contraction)
    return plan, plan * abs(c).max(), 4 * tol * one.swing + rounded * (abs(c).max() + eps)


def two_clouds(rng: Rng) -> tuple[Array, Array, Array | None, Array | None, dict[str, Any], str, str]:
    d = draws.dimension(rng)
    n, m = draws.size(rng), draws.size(rng)
    x, y = draws.cloud(rng, (n, d)), draws.cloud(rng, (m, d))
    w, v = draws.weights(rng, (n,)), draws.weights(rng, (m,))
    values = {"x": x, "y": y} | ({} if w is None else {"w": w}) | ({} if v is None else {"v": v})
    mu = f"of.Particles({draws.laid_out(rng, 'x', x)}{'' if w is None else ', w'})"
    nu = f"of.Particles({draws.laid_out(rng, 'y', y)}{'' if v is None else ', v'})"
    return x, y, w, v, values, mu, nu


@family
def entropic_transport(rng: Rng) -> Case:
    x, y, w, v, values, mu, nu = two_clouds(rng)
    word = str(draws.pick(rng, tuple(COSTS)))
    c = COSTS[word](x, y)
    engine = str(draws.pick(rng, ENGINES)).replace("newton", ", engine=of.transport.NewtonSinkhorn()")
    eps = float(max(abs(c).max(), 1e-3) * 10 ** rng.uniform(-1, 2))
    tol = TOL if not engine or draws.chance(rng, 0.5) else 1e-7
    options = f"of.Sinkhorn({eps!r}, tol={tol!r}{engine})" if engine or tol != TOL else repr(eps)
    a, b = draws.known(w, (len(x),)), draws.known(v, (len(y),))
    known = cache(lambda: entropic(c, a, b, eps))
    return Case(
        f"found = of.sinkhorn({mu}, {nu}, {options}{word})\n"
        "found.plan, found.cost, found.regularised_cost, found.status",
        values,
        lambda: (known().plan, known().cost, known().regularised),
        lambda: off(known(), c, eps, tol),
    )


@family
def entropic_transport_at_small_eps(rng: Rng) -> Case:
    """A plan of Gibbs' form with the right marginals is the solution, whatever eps is."""
    x, y, w, v, values, mu, nu = two_clouds(rng)
    c = lengths(x, y) ** 2
    eps = float(max(c.max(), 1e-3) * 10 ** rng.uniform(-5, -1))
    a, b = draws.known(w, (len(x),)), draws.known(v, (len(y),))
    code = (
        f"found = of.sinkhorn({mu}, {nu}, {eps!r})\n"
        "f, g = (t.numpy().astype(np.longdouble) for t in found.potentials)\n"
        f"P = a[:, None] * b * np.exp(np.where(a[:, None] * b > 0, f[:, None] + g - c, 0) / {eps!r})\n"
        "mass = np.where(a > 0, a * f, 0).sum() + np.where(b > 0, b * g, 0).sum()\n"
        "P.sum(1), P.sum(0), found.regularised_cost.item() - mass, found.plan.numpy() - P, found.status"
    )
    rounded = 256 * 2.0**-53 * (1 + c.max() / eps - np.log(min(a[a > 0].min(), b[b > 0].min())))
    loose = 4 * TOL + rounded
    return Case(
        code,
        {**values, "a": a.astype(float), "b": b.astype(float), "c": c.astype(float)},
        lambda: (a, b, 0.0, np.zeros(c.shape)),
        lambda: (loose, loose, rounded * eps * 4, loose),
    )


def divergence(plans: list[Plan]) -> Any:
    """OT(mu, nu) - (OT(mu, mu) + OT(nu, nu)) / 2."""
    return plans[0].regularised - (plans[1].regularised + plans[2].regularised) / 2


@family
def sinkhorn_divergences(rng: Rng) -> Case:
    x, y, w, v, values, mu, nu = two_clouds(rng)
    word = str(draws.pick(rng, ("", ", cost=of.transport.PowerCost(1)")))
    c = [COSTS[word](*pair) for pair in ((x, y), (x, x), (y, y))]
    eps = float(max(abs(c[0]).max(), abs(c[1]).max(), abs(c[2]).max(), 1e-3) * 10 ** rng.uniform(-1, 2))
    a, b = draws.known(w, (len(x),)), draws.known(v, (len(y),))
    pairs = ((a, b), (a, a), (b, b))
    known = cache(lambda: [entropic(one, *pair, eps) for one, pair in zip(c, pairs, strict=True)])
    return Case(
        f"of.sinkhorn_divergence({mu}, {nu}, {eps!r}{word})",
        values,
        lambda: divergence(known()),
        lambda: sum(off(plan, one, eps, TOL)[2] for plan, one in zip(known(), c, strict=True)),
    )


KERNELS = {
    "of.transport.GaussianKernel({s!r})": lambda r, s: np.exp(-((r / s) ** 2) / 2),
    "of.transport.LaplaceKernel({s!r})": lambda r, s: np.exp(-r / s),
    "of.transport.EnergyKernel()": lambda r, s: -r,
}


def squared(k: Any, x: Array, a: Array, y: Array, b: Array) -> tuple[Any, Any]:
    """The square of a discrepancy, and the sum of absolute values of which it is made."""
    terms = [a @ k(x, x) @ a, b @ k(y, y) @ b, -2 * (a @ k(x, y) @ b)]
    return sum(terms), sum(abs(t) for t in terms)


@family
def maximum_mean_discrepancy(rng: Rng) -> Case:
    size = draws.scale(rng, -9, 9)
    mu = Cloud(rng, batch=(), size=size)
    m = draws.size(rng)
    y = draws.cloud(rng, (m, mu.d), size).astype(mu.dtype)
    v = draws.weights(rng, (m,))
    v = None if v is None else v.astype(mu.dtype)
    word = str(draws.pick(rng, tuple(KERNELS)))
    s = float(size * 10 ** rng.uniform(-1, 1))

    def k(x: Array, z: Array) -> Array:
        return np.asarray(KERNELS[word](lengths(x, z), LONG(s)))

    square, total = squared(k, mu.x, mu.mass, y, draws.known(v, (m,), mu.dtype))
    slack = 2 * 64 * 2 * draws.unit(np.float64) * total
    value = np.sqrt(max(square, LONG(0)))
    far = np.sqrt(max(square, LONG(0)) + slack) - np.sqrt(max(square - slack, LONG(0)))
    weight = "" if v is None else ", v"
    return Case(
        f"of.mmd({mu.code}, of.Particles(y{weight}), {word.format(s=s)})",
        {**mu.values, "y": y} | ({} if v is None else {"v": v}),
        lambda: value,
        lambda: far + 4 * mu.unit * value + 1e-300,
    )


@family
def energy_distance_on_the_line(rng: Rng) -> Case:
    """MMD^2 of -|x - y| is 2 int (F - G)^2 dx, with the distribution functions F and G."""
    n, m = draws.size(rng), draws.size(rng)
    x, y = rng.standard_normal(n), rng.standard_normal(m)
    cuts = np.sort(np.concatenate([x, y])).astype(LONG)
    F = np.array([(x <= c).sum() * LONG(m) - (y <= c).sum() * LONG(n) for c in cuts[:-1]]) / (n * m)
    square = 2 * (F**2 * np.diff(cuts)).sum()
    slack = 512 * 2.0**-53 * (abs(x).max() + abs(y).max())
    far = np.sqrt(square + slack) - np.sqrt(max(square - slack, LONG(0)))
    return Case(
        "of.mmd(of.Particles(x[:, None]), of.Particles(y[:, None]), of.transport.EnergyKernel())",
        {"x": x, "y": y},
        lambda: np.sqrt(square),
        lambda: far,
    )


@family
def densities_on_the_line(rng: Rng) -> Case:
    """Densities constant on cells by their quantile functions, which are linear between all the masses."""
    n, m = int(rng.integers(2, 9)), int(rng.integers(2, 9))
    axes = [(np.arange(k) + 0.5) / k for k in (n, m)]
    rho, other = (rng.uniform(0, 1, k) * (rng.uniform(0, 1, k) < 0.8) + 1e-6 for k in (n, m))
    rho, other = rho / rho.mean(), other / other.mean()
    p = int(draws.pick(rng, (1, 2)))
    cost = between_quantiles(*(quantiles(draws.known(z, z.shape)) for z in (rho, other)), p)
    value, slack = cost ** (LONG(1) / p), 64 * (n + m) * 2.0**-53
    far = (cost + slack) ** (LONG(1) / p) - max(cost - slack, LONG(0)) ** (LONG(1) / p)
    return Case(
        f"of.wasserstein(of.Grid(rho, [s]), of.Grid(other, [t]), {p})",
        {"rho": rho, "other": other, "s": axes[0], "t": axes[1]},
        lambda: value,
        lambda: far + 2 * TOL * value,
    )


def quantiles(rho: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cumulated masses and the places where they are reached, for cells of [0, 1]."""
    mass = np.concatenate([[LONG(0)], (rho / rho.sum()).cumsum()])
    mass[-1] = 1
    return mass, np.arange(len(rho) + 1, dtype=LONG) / len(rho)


def _along(ends: np.ndarray, mass: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The quantile function at both ends of each piece, on which it is linear."""
    k = np.searchsorted(mass, (ends[1:] + ends[:-1]) / 2) - 1
    slope = np.diff(place)[k] / np.diff(mass)[k]
    start, end = (place[k] + (z - mass[k]) * slope for z in (ends[:-1], ends[1:]))
    return start, end


def between_quantiles(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], p: int) -> LONG:
    """int |Q_a - Q_b|^p, piece by piece, for p = 1 or 2."""
    ends = np.unique(np.concatenate([a[0], b[0]]))
    (p0, p1), (q0, q1) = (_along(ends, *z) for z in (a, b))
    u, v = p0 - q0, p1 - q1
    if p == 2:
        return (np.diff(ends) * (u * u + u * v + v * v) / 3).sum()
    size = abs(u) + abs(v)
    crossing = (u * u + v * v) / (2 * np.where(size > 0, size, 1))
    return (np.diff(ends) * np.where(u * v < 0, crossing, size / 2)).sum()


@family
def positions_of_labels(rng: Rng) -> Case:
    n = int(rng.integers(1, 50))
    truth = (np.arange(1, n + 1, dtype=LONG) - 0.5) / n
    return Case(f"of.transport.positions({n})", {}, lambda: truth, lambda: 2.0**-52)
