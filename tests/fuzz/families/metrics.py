"""Metrics: inner products, gradients, actions and distances from their definitions."""

from __future__ import annotations

import numpy as np

from tests.fuzz import draws
from tests.fuzz.clouds import Cloud
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family
from tests.fuzz.families.exact_transport import best, lengths


def root(M: Array) -> Array:
    values, vectors = np.linalg.eigh(M)
    return np.asarray((vectors * np.sqrt(values)) @ vectors.T)


@family
def twisted_metric(rng: Rng) -> Case:
    """<u, v> = sum_i w_i a(x_i) u_i.M v_i and its gradients, a the partition function of attention."""
    cloud = Cloud(rng, dtype=np.float64, size=draws.scale(rng, -6, 0), massless=False)
    A, M = draws.symmetric(rng, cloud.d), draws.spd(rng, cloud.d, cloud.d, condition=10.0)
    u, v = rng.standard_normal((2, *cloud.x.shape))
    c = u * cloud.mass[..., None].astype(float)  # a covector: a derivative in positions

    def weight(x: Array, w: Array) -> Array:
        return np.asarray(np.exp(x @ A.astype(LONG) @ x.T) @ w)

    a = cloud.each(weight)
    top = np.exp((abs(cloud.x) @ abs(A) @ abs(np.swapaxes(cloud.x, -1, -2))).max())
    inner = (cloud.mass * a * (u * (v @ M)).sum(-1)).sum(-1)
    gradient = u @ np.linalg.inv(M) / a[..., None]
    size = 1e-14 * top * (1 + abs(M).max()) * cloud.d * (1 + abs(u).max() * abs(v).max()) * 10
    return Case(
        f"mu, partition = {cloud.code}, of.metrics.Partition(A)\n"
        "metric = of.Twisted(partition, matrix=M)\n"
        "u, v, c = (of.Tangent([torch.from_numpy(one)]) for one in (u, v, c))\n"
        "metric.inner(mu, u, v), metric.gradient(mu, c)[0], partition(mu, mu.x), partition.log(mu, mu.x), "
        "of.metrics.twist(mu, metric, u, inverse=False)[0], metric.action(mu, u)",
        {**cloud.values, "A": A, "M": M, "u": u, "v": v, "c": c},
        lambda: (
            inner,
            gradient,
            a,
            np.log(a),
            a[..., None] * (u @ M),
            (cloud.mass * a * (u * (u @ M)).sum(-1)).sum(-1),
        ),
        lambda: size * (1 + abs(u).max() ** 2) / float(cloud.mass.min()),
    )


@family
def geodesic_distances(rng: Rng) -> Case:
    """W2, conditional and twisted by a matrix: all permutations, of the images under M^(1/2)."""
    n, d = int(rng.integers(1, 6)), draws.dimension(rng)
    x, y = draws.cloud(rng, (n, d)), draws.cloud(rng, (n, d))
    M = draws.spd(rng, d, d, condition=10.0)
    label = rng.permutation(n) / 2
    R = root(M)
    plain, twisted = (np.sqrt(best(lengths(a, b) ** 2)[0]) for a, b in ((x, y), (x @ R, y @ R)))
    matched = np.sqrt(((x - y) ** 2).sum() / n)
    size = 1 + abs(x).max() + abs(y).max()
    slack = 1e-7 * size  # a root of what is known to 1e-15
    return Case(
        "mu, nu = of.Particles(x), of.Particles(y)\n"
        "seen = [of.Particles(one, label=label) for one in (x, y)]\n"
        "found = of.metrics.solve_twisted(mu, nu, of.Twisted(matrix=M))\n"
        "of.distance(mu, nu, of.Wasserstein()), of.distance(*seen, of.Wasserstein()), "
        "of.distance(mu, nu, of.Twisted(matrix=M)), found.upper, found.lower, found.status",
        {"x": x, "y": y, "label": label, "M": M},
        lambda: (plain, matched, twisted, twisted, twisted),
        lambda: slack * (1 + abs(M).max()),
    )


@family
def actions_of_paths(rng: Rng) -> Case:
    """sum_k |mu_k+1 - mu_k|^2 / (t_k+1 - t_k) atom by atom."""
    n, d, k = draws.size(rng), draws.dimension(rng), int(rng.integers(2, 5))
    x, w = rng.standard_normal((k, n, d)), draws.weights(rng, (n,))
    ts = np.cumsum(rng.uniform(0.1, 1, k))
    mass, M = draws.known(w, (n,)), draws.spd(rng, d, d, condition=10.0)
    moves = np.diff(x.astype(LONG), axis=0)
    plain = ((mass * (moves**2).sum(-1)).sum(-1) / np.diff(ts)).sum()
    twisted = ((mass * (moves * (moves @ M)).sum(-1)).sum(-1) / np.diff(ts)).sum()
    weight = "" if w is None else ", w"
    return Case(
        f"path = [of.Particles(one{weight}) for one in x]\n"
        "of.metrics.path_action(path, of.Wasserstein(), ts=ts), "
        "of.metrics.path_action(path, of.Twisted(matrix=M, frozen=False), ts=ts)",
        {"x": x, "ts": ts, "M": M} | ({} if w is None else {"w": w}),
        lambda: (plain, twisted),
        lambda: 1e-14 * (1 + plain + twisted) * 10,
    )
