"""Measures, spaces and tangents: constructors, moments, moves and samples from their definitions."""

from __future__ import annotations

import numpy as np
import scipy.special

from tests.fuzz import draws
from tests.fuzz.clouds import Cloud
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family
from tests.fuzz.families.exact_transport import lengths, normalised


@family
def moments_of_particles(rng: Rng) -> Case:
    cloud = Cloud(rng, size=draws.scale(rng, -12, 12))
    far = abs(cloud.x).max()
    unit = 16 * cloud.unit * (cloud.n + cloud.d)

    def covariance(x: Array, w: Array) -> Array:
        c = x - w @ x
        return (w[:, None] * c).T @ c

    return Case(
        f"mu = {cloud.code}\n"
        "mu.x, mu.w, of.observables.mean(mu), of.observables.covariance(mu), "
        "of.observables.second_moment(mu), "
        "of.observables.radius(mu), of.observables.diameter(mu)",
        cloud.values,
        lambda: (
            cloud.x,
            cloud.mass,
            cloud.each(lambda x, w: w @ x),
            cloud.each(covariance),
            cloud.each(lambda x, w: np.asarray(w @ (x * x).sum(-1))),
            cloud.each(lambda x, w: np.asarray(np.sqrt((x[w > 0] ** 2).sum(-1)).max())),
            cloud.each(lambda x, w: np.asarray(lengths(x[w > 0], x[w > 0]).max())),
        ),
        lambda: (
            0.0,
            4 * cloud.unit * cloud.n,
            unit * far,
            4 * unit * far**2,
            unit * far**2,
            unit * far,
            unit * far,
        ),
    )


@family
def shapes_of_clouds(rng: Rng) -> Case:
    """Effective rank and clusters of well-conditioned clouds, the latter by a search through the graph."""
    n, d = draws.size(rng), draws.dimension(rng)
    x, reach = draws.cloud(rng, (n, d)), float(10 ** rng.uniform(-1, 0.5))
    w = draws.weights(rng, (n,))
    mass = draws.known(w, (n,))
    near = lengths(x, x) <= reach
    sure = abs(lengths(x, x) - reach).min() > 1e-12
    keep = np.flatnonzero(mass > 0)
    clusters, left = 0, set(keep.tolist())
    while left:
        clusters, front = clusters + 1, [left.pop()]
        while front:
            i = front.pop()
            found = {j for j in left if near[i, j]}
            left, front = left - found, front + list(found)
    c = x - mass @ x
    values = np.linalg.eigvalsh(((mass[:, None] * c).T @ c).astype(float))
    spread = values.max() > 1e-10 * (1 + abs(x).max() ** 2)
    p = np.clip(values, 0, None) / max(values.sum(), 1e-300)
    rank = float(np.exp(-sum(q * np.log(q) for q in p if q > 1e-15)))
    weight = "" if w is None else ", w"
    return Case(
        f"mu = of.Particles(x{weight})\n"
        f"of.observables.cluster_count(mu, {reach!r}), of.observables.effective_rank(mu)",
        {"x": x} | ({} if w is None else {"w": w}),
        lambda: (clusters, rank),
        lambda: (0.0 if sure else n, 1e-4 if spread else d),
    )


@family
def moments_of_gaussians(rng: Rng) -> Case:
    batch, d, dtype = draws.batch(rng), draws.dimension(rng), draws.precision(rng)
    size = draws.scale(rng, -12, 12)
    m = (size * rng.standard_normal((*batch, d))).astype(dtype)
    R = (size * draws.matrix(rng, *batch, d, int(rng.integers(1, d + 2)))).astype(dtype)
    long = R.astype(LONG)
    S = long @ np.swapaxes(long, -1, -2)
    second = (m.astype(LONG) ** 2).sum(-1) + (long**2).sum((-1, -2))
    layout = draws.laid_out(rng, "R", R)
    unit = 16 * draws.unit(dtype) * (d + 2)
    return Case(
        f"mu = of.Gaussian({draws.laid_out(rng, 'm', m)}, root={layout})\n"
        "of.observables.mean(mu), of.observables.covariance(mu), of.observables.second_moment(mu), mu.cov",
        {"m": m, "R": R},
        lambda: (m, S, second, S),
        lambda: (0.0, *(unit * (abs(m).max() + abs(R).max()) ** 2,) * 3),
    )


@family
def gaussians_by_covariance(rng: Rng) -> Case:
    """N(m, cov=S) has the covariance S, singular ones included, and a root that is symmetric."""
    d, size = draws.dimension(rng), draws.scale(rng, -12, 12)
    R = draws.matrix(rng, d, int(rng.integers(1, d + 1)))
    S = size * (R @ R.T)
    S = (S + S.T) / 2
    m = rng.standard_normal(d)
    return Case(
        f"mu = of.Gaussian(m, cov={draws.laid_out(rng, 'S', S)})\nmu.cov, mu.root - mu.root.mT",
        {"m": m, "S": S},
        lambda: (S, np.zeros((d, d))),
        lambda: (1e-9 * abs(S).max() + 1e-300, 1e-12 * np.sqrt(abs(S).max()) + 1e-300),
    )


@family
def samples(rng: Rng) -> Case:
    """Every draw is where the measure has mass, and half a batch is drawn as the whole."""
    cloud, seed, k = Cloud(rng, batch=(), dtype=np.float64), int(rng.integers(1000)), int(rng.integers(1, 9))
    inside = (
        f"[bool(((s == mu.x) & (mu.w > 0)[:, None]).all(-1).any()) for s in mu.sample({k}, rng={seed}).x]"
    )
    rho = rng.uniform(0, 1, 5)
    rho[rng.integers(5)] = 0.0
    rho = rho / rho.sum()
    return Case(
        f"mu, nu, xi = {cloud.code}, of.Grid(rho, [np.arange(5.0)]), of.Quantiles([0.0, 1.0, 5.0], [0.0, "
        "0.5, 1.0])\n"
        f"at = nu.sample({k}, rng={seed}).x[:, 0].numpy()\n"
        f"between = xi.sample({k}, rng={seed}).x\n"
        f"{inside}, rho[np.round(at).astype(int)] > 0, (between >= 0) & (between <= 5), "
        f"of.Gaussian(np.ones(2), root=np.zeros((2, 1))).sample({k}, rng={seed}).x",
        {**cloud.values, "rho": rho},
        lambda: (*np.ones(k), np.ones(k), np.ones((k, 1)), np.ones((k, 2))),
        lambda: 0.0,
    )


@family
def grids(rng: Rng) -> Case:
    """A density from a function, from a histogram, and its moments as atoms in the centres of cells."""
    n, m = int(rng.integers(2, 8)), int(rng.integers(2, 8))
    s, t = (np.arange(n) + 0.5) / n, 3 * (np.arange(m) + 0.5) / m - 1
    f = np.exp(np.outer(s, t)) + s[:, None]
    rho = f / (f.sum() * (s[1] - s[0]) * (t[1] - t[0]))
    x = np.stack([rng.uniform(0.01, 0.99, 9), rng.uniform(-0.99, 1.99, 9)], 1)
    counts = np.histogram2d(x[:, 0], x[:, 1], [n, m], [[0, 1], [-1, 2]])[0] / 9
    mass = rho / rho.sum()
    mean = np.array([(mass.sum(1) * s).sum(), (mass.sum(0) * t).sum()])
    square = (mass.sum(1) * s**2).sum() + (mass.sum(0) * t**2).sum()
    return Case(
        "mu = of.Grid.from_function(lambda x, y: np.exp(x * y) + x, [s, t])\n"
        "nu = of.Grid.histogram(of.Particles(x), [s, t])\n"
        "mu.density, nu.density * nu.cell, of.observables.mean(mu), of.observables.second_moment(mu), "
        "of.Particles.from_grid(mu).w",
        {"s": s, "t": t, "x": x},
        lambda: (rho, counts, mean, square, mass.ravel()),
        lambda: 1e-12 * (1 + rho.max()),
    )


@family
def quantile_functions(rng: Rng) -> Case:
    """Values between levels, inner products and distances of piecewise linear functions."""
    n, m = int(rng.integers(1, 7)), int(rng.integers(1, 7))
    size = draws.scale(rng, -9, 9)
    first, second = (steps(rng, k, size) for k in (n, m))
    (x, s), (y, t) = first, second
    at = np.sort(rng.uniform(0, 1, 4))
    cuts = np.unique(np.concatenate([s, t]))
    gap = interpolated(cuts, s, x) - interpolated(cuts, t, y)
    square = (np.diff(cuts.astype(LONG)) * (gap[1:] ** 2 + gap[1:] * gap[:-1] + gap[:-1] ** 2)).sum() / 3
    middle = (x[1:].astype(LONG) + x[:-1]) / 2
    mean = (np.diff(s.astype(LONG)) * middle).sum()
    far = abs(x).max() + abs(y).max()
    return Case(
        "mu, nu = of.Quantiles(x, s), of.Quantiles(y, t)\n"
        "mu.ppf(at), mu.distance(nu), of.wasserstein(mu, nu), (mu.nodes()[0][:, 0] * mu.nodes()[1]).sum(), "
        "mu.inner(mu.coords, mu.coords), mu.density()[1]",
        {"x": x, "s": s, "y": y, "t": t, "at": at},
        lambda: (
            interpolated(at, s, x),
            np.sqrt(square),
            np.sqrt(square),
            mean,
            (
                np.diff(s.astype(LONG))
                * (x[1:].astype(LONG) ** 2 + x[1:] * x[:-1].astype(LONG) + x[:-1] ** 2)
            ).sum()
            / 3,
            np.diff(s.astype(LONG)) / np.diff(x.astype(LONG)),
        ),
        lambda: (
            1e-12 * far * 10,
            1e-12 * far,
            1e-12 * far,
            1e-13 * far,
            1e-13 * far**2,
            1e-10 * (np.diff(s) / np.diff(x)).max() * far / np.diff(x).min(),
        ),
    )


def steps(rng: Rng, n: int, size: float) -> tuple[Array, Array]:
    x = size * (np.cumsum(rng.uniform(0.05, 1, n + 1)) - rng.uniform(0, n))
    s = np.concatenate([[0.0], np.cumsum(rng.uniform(0.05, 1, n))])
    return x, s / s[-1]


def interpolated(at: Array, s: Array, x: Array) -> Array:
    i = np.clip(np.searchsorted(s, at, side="right") - 1, 0, len(s) - 2)
    s, x = s.astype(LONG), x.astype(LONG)
    return np.asarray(x[i] + (at - s[i]) / (s[i + 1] - s[i]) * (x[i + 1] - x[i]))


@family
def levels_of_quantiles(rng: Rng) -> Case:
    """Graded levels are incomplete Beta functions; between them the normal law keeps its variance."""
    n, grading = int(rng.integers(2, 40)), float(rng.uniform(1, 8))
    r, uniform = np.arange(n + 1) / n, 1e-10  # a share of the levels, as documented
    s = (1 - uniform) * scipy.special.betainc(grading, grading, r) + uniform * r
    coarse, fine = (np.linspace(0, 1, k + 1) for k in (8, 16))
    line = 3 * fine - 1  # richardson of two straight lines is that line
    return Case(
        f"s = of.measures.graded_levels({n}, grading={grading!r})\n"
        "a, b = of.Quantiles(3 * coarse - 1, coarse), of.Quantiles(3 * fine - 1, fine)\n"
        "s, of.measures.richardson(a, b, refine=1).x, b.refined(3).x",
        {"coarse": coarse, "fine": fine},
        lambda: (s, line, np.linspace(-1, 2, 49)),
        lambda: (1e-12, 1e-13, 1e-13),
    )


@family
def choice_of_members(rng: Rng) -> Case:
    n, d, k = draws.size(rng), draws.dimension(rng), int(rng.integers(1, 5))
    x, y, pick = rng.standard_normal((k, n, d)), rng.standard_normal((k, n, d)), rng.uniform(0, 1, k) < 0.5
    chosen = np.where(pick[:, None, None], x, y)
    return Case(
        "mu = of.measures.where(torch.from_numpy(pick), of.Particles(x), of.Particles(y))\n"
        "mu.x, mu[-1].x, of.Particles(x[0]).expand(2, 3).x, np.stack([one.x.numpy() for one in mu])",
        {"x": x, "y": y, "pick": pick},
        lambda: (chosen, chosen[-1], np.broadcast_to(x[0], (2, 3, n, d)), chosen),
        lambda: 0.0,
    )


@family
def tangents(rng: Rng) -> Case:
    """Sums, multiples by numbers and by one number for each member, and inner products."""
    cloud = Cloud(rng, dtype=np.float64, size=draws.scale(rng, -6, 6))
    u, v = rng.standard_normal((2, *cloud.x.shape))
    c, own = float(rng.normal()), rng.standard_normal(cloud.batch)
    lu, lv = u.astype(LONG), v.astype(LONG)
    inner = (cloud.mass[..., None] * lu * lv).sum((-1, -2))
    return Case(
        f"mu = {cloud.code}\n"
        "u, v = (of.Tangent([torch.from_numpy(a)]) for a in (u, v))\n"
        f"(u + {c!r} * v - v / 2)[0], (u * torch.as_tensor(own))[0], sum([u, v])[0], mu.inner(u, v), "
        "mu.move(u).x, "
        "of.Wasserstein().inner(mu, u, v)",
        {**cloud.values, "u": u, "v": v, "own": own},
        lambda: (lu + c * lv - lv / 2, own[..., None, None] * lu, lu + lv, inner, cloud.x + lu, inner),
        lambda: 1e-13 * (1 + abs(cloud.x).max()) * (1 + abs(u).max() + abs(v).max()) ** 2,
    )


@family
def geometry_of_spaces(rng: Rng) -> Case:
    """exp(log) leads to where it should, along a way of the right length that is tangent."""
    n, d = draws.size(rng), max(2, draws.dimension(rng))
    size = 10.0 ** rng.uniform(-9, 0)
    x = rng.standard_normal((n, d))
    y = x + size * rng.standard_normal((n, d))
    space, short = draws.pick(
        rng, (("of.Euclidean()", ""), ("of.Torus(1.0)", "Torus"), ("of.Sphere()", "Sphere"))
    )
    if short == "Sphere":
        x, y = normalised(x), normalised(y)
    elif short == "Torus":
        x, y = np.mod(x, 1.0), np.mod(y, 1.0)
    d_xy = lengths(x, y, short)
    norms = np.diag(d_xy)
    return Case(
        f"s, x, y = {space}, torch.from_numpy(x), torch.from_numpy(y)\n"
        "u = s.log(x, y)\n"
        "s.pairwise(x, y), s.distance(x, y), u.norm(dim=-1), s.distance(s.exp(x, u), y), (s.tangent(x, "
        "u) - u)",
        {"x": x, "y": y},
        lambda: (d_xy, norms, norms, np.zeros(n), np.zeros((n, d))),
        lambda: 1e-14 * (1 + abs(x).max() + abs(y).max()) * 8,
    )
