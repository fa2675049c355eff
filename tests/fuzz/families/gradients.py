"""Derivatives by backward passes, against complex steps, envelopes and matchings."""

from __future__ import annotations

from functools import cache
from typing import Any

import mpmath
import numpy as np

from tests.fuzz import attention_oracle as oracle
from tests.fuzz import draws
from tests.fuzz.clouds import Cloud
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family
from tests.fuzz.families.bures import DIGITS, back, mp, optimal_map
from tests.fuzz.families.entropic_transport import TOL, entropic, off
from tests.fuzz.families.exact_transport import best, lengths, normalised, second_best

KINDS = ("Softmax", "L2", "Sigmoid", "Unnormalised")


@family
def gradients_in_weights_of_attention(rng: Rng) -> Case:
    """d<c, v> / dQ, dK, dV, entry by entry."""
    kind = str(draws.pick(rng, KINDS))
    cloud = Cloud(rng, batch=(), dtype=np.float64, size=draws.scale(rng, -6, 0))
    d = cloud.d
    k = int(rng.integers(1, d + 1))
    m = (draws.matrix(rng, k, d), draws.matrix(rng, k, d), draws.matrix(rng, d, d))
    c = rng.standard_normal(cloud.x.shape)
    x, w = cloud.x.astype(LONG), cloud.mass

    @cache
    def known() -> tuple[tuple[Array, ...], Any]:
        slopes = []
        for i in range(3):
            units = np.eye(m[i].size, dtype=LONG).reshape(-1, *m[i].shape)
            parts = []
            for e in units:
                moved = [a.astype(LONG) for a in m]
                moved[i] = moved[i] + 1j * oracle.STEP * e
                p = oracle.masses(kind, oracle.scores(kind, tuple(moved), x, x), w, np.ones((len(x), len(x))))
                parts.append((c * (p @ (x @ moved[2].T)).imag).sum() / oracle.STEP)
            slopes.append(np.array(parts).reshape(m[i].shape))
        p = oracle.masses(kind, oracle.scores(kind, oracle.long(m), x, x), w, np.ones((len(x), len(x))))
        far = float(abs(x).max())
        sizes = (
            float(p.sum(1).max())
            * abs(c).sum()
            * (far + far**3 * (1 + sum(abs(a).max() for a in m)) ** 3 * d**2)
        )
        return tuple(slopes), oracle.relative(kind, m, x, x, cloud.unit).max() * sizes * 4

    return Case(
        "Q, K, V = (torch.from_numpy(a).requires_grad_() for a in (Q, K, V))\n"
        f"v = of.{kind}Attention(Q, K, V)(0.0, {cloud.code})[0]\n"
        "(v * torch.from_numpy(c)).sum().backward()\nQ.grad, K.grad, V.grad",
        {"Q": m[0], "K": m[1], "V": m[2], "c": c, **cloud.values},
        lambda: known()[0],
        lambda: known()[1] + 1e-300,
    )


@family
def gradients_of_entropic_costs(rng: Rng) -> Case:
    """2 sum_j P_ij (x_i - y_j), by the envelope theorem."""
    n, m, d = draws.size(rng), draws.size(rng), draws.dimension(rng)
    x, y = draws.cloud(rng, (n, d)), draws.cloud(rng, (m, d))
    c = lengths(x, y) ** 2
    eps = float(max(c.max(), 1e-3) * 10 ** rng.uniform(-1, 2))
    known = cache(lambda: entropic(c, np.full(n, LONG(1) / n), np.full(m, LONG(1) / m), eps))
    gap = x.astype(LONG)[:, None] - y[None]
    return Case(
        "x = torch.from_numpy(x).requires_grad_()\n"
        f"cost = of.sinkhorn(of.Particles(x), of.Particles(y), {eps!r}).regularised_cost\n"
        "cost.backward()\nx.grad",
        {"x": x, "y": y},
        lambda: 2 * (known().plan[..., None] * gap).sum(1),
        lambda: 4 * off(known(), c, eps, TOL)[0] * (abs(x).max() + abs(y).max()) + 1e-13,
    )


@family
def gradients_of_discrepancies(rng: Rng) -> Case:
    """2 w_i grad f(x_i) for MMD^2 with the witness f of a Gaussian kernel, and the same of its energy."""
    n, m, d, s = draws.size(rng), draws.size(rng), draws.dimension(rng), float(10 ** rng.uniform(-0.5, 1))
    x, y = rng.standard_normal((n, d)), rng.standard_normal((m, d))

    def pull(a: Array, b: Array) -> Array:
        gap = a.astype(LONG)[:, None] - b[None]
        return np.asarray((-gap / s**2 * np.exp(-(gap**2).sum(-1) / (2 * s * s))[..., None]).mean(1))

    slope = (pull(x, x) - pull(x, y)) / n
    return Case(
        f"x, kernel = torch.from_numpy(x).requires_grad_(), of.transport.GaussianKernel({s!r})\n"
        "F = of.MMD(of.Particles(y), kernel)\n"
        "of.mmd(of.Particles(x), of.Particles(y), kernel).square().backward()\n"
        "first, x.grad = x.grad, None\n"
        "F(of.Particles(x)).backward()\nfirst, x.grad",
        {"x": x, "y": y},
        lambda: (2 * slope, slope),
        lambda: 1e-13 / s,
    )


@family
def gradients_between_gaussians(rng: Rng) -> Case:
    """(I - T) / (2 distance) in S1; in root and mean of W2^2, 2 (I - T) R and 2 (m1 - m2)."""
    d = draws.dimension(rng)
    S1, S2 = (draws.spd(rng, d, d, condition=30.0) for _ in range(2))
    m1, m2 = rng.standard_normal((2, d))
    R = np.linalg.cholesky(S1)

    @cache
    def known() -> tuple[Array, ...]:
        with mpmath.workdps(DIGITS):
            a, b = mp(S1), mp(S2)
            T = optimal_map(a, b)
            gap = mpmath.eye(d) - T
            square = sum((gap * a * gap)[i, i] for i in range(d))
            slope, along = back(gap / (2 * mpmath.sqrt(square))), back(2 * gap * mp(R))
        return slope, 2 * (m1.astype(LONG) - m2), along

    return Case(
        "S, m, R = (torch.from_numpy(a).requires_grad_() for a in (S1, m1, R))\n"
        "of.transport.bures(S, S2).backward()\n"
        "of.bures_wasserstein(of.Gaussian(m, root=R), of.Gaussian(m2, cov=S2)).square().backward()\n"
        "S.grad, m.grad, R.grad",
        {"S1": S1, "S2": S2, "m1": m1, "m2": m2, "R": R},
        known,
        lambda: 1e-12 * (1 + abs(known()[0]).max() + abs(known()[2]).max()),
    )


@family
def gradients_of_other_distances(rng: Rng) -> Case:
    """Conditional, sliced and sequence distances: matchings by label, along lines, and of intervals."""
    n, d = int(rng.integers(1, 6)), draws.dimension(rng)
    x, y = rng.standard_normal((2, n, d))
    theta = normalised(rng.standard_normal((3, d)))
    gap = x.astype(LONG) - y
    slope = 2 * gap / n
    sliced = np.zeros_like(slope)
    for one in theta.astype(LONG):
        order = np.empty(n, dtype=int)
        order[np.argsort(x @ one)] = np.argsort(y @ one)
        sliced += 2 * ((x.astype(LONG) @ one) - (y.astype(LONG) @ one)[order])[:, None] * one / (3 * n)
    return Case(
        "x, s = torch.from_numpy(x).requires_grad_(), np.arange(len(x)) / 3\n"
        "grads = []\n"
        "mu, nu = of.Particles(x, label=s), of.Particles(y, label=s)\n"
        "for value in (of.conditional_wasserstein(mu, nu), of.sequence_distance(mu, nu),\n"
        "              of.sliced_wasserstein(mu, nu, directions=theta)):\n"
        "    x.grad = None\n"
        "    value.square().backward()\n"
        "    grads.append(x.grad.clone())\n"
        "grads",
        {"x": x, "y": y, "theta": theta},
        lambda: (slope, slope, sliced),
        lambda: 1e-12 * (1 + abs(x).max() + abs(y).max()),
    )


@family
def transport_of_broadcast_batches(rng: Rng) -> Case:
    """Batches (2, 1) and (3,) are compared as (2, 3): by permutations, with gradients."""
    n, d, dtype = int(rng.integers(1, 5)), draws.dimension(rng), draws.precision(rng)
    x, y = rng.standard_normal((2, 1, n, d)).astype(dtype), rng.standard_normal((3, n, d)).astype(dtype)
    costs, slope, unique = np.zeros((2, 3), LONG), np.zeros((2, 1, n, d), LONG), True
    for i in range(2):
        for j in range(3):
            c = lengths(x[i, 0], y[j]) ** 2
            costs[i, j], order = best(c)
            slope[i, 0] += 2 * (x[i, 0].astype(LONG) - y[j][order]) / n
            unique = unique and (n == 1 or second_best(c) > costs[i, j] * (1 + 1e-5))
    unit = draws.unit(dtype)
    return Case(
        "x = torch.from_numpy(x).requires_grad_()\n"
        "value = of.wasserstein(of.Particles(x), of.Particles(y)).square()\n"
        "value.sum().backward()\nvalue, x.grad",
        {"x": x, "y": y},
        lambda: (costs, slope),
        lambda: ((1e-8 + 16 * unit) * (1 + costs), 256 * unit * (1 + abs(slope).max()) if unique else np.inf),
    )


@family
def attention_on_spheres(rng: Rng) -> Case:
    """Velocities on the sphere are those of the definition less their part along x."""
    kind, d, n = str(draws.pick(rng, KINDS)), int(rng.integers(2, 5)), draws.size(rng)
    x = normalised(rng.standard_normal((n, d)))
    m = (draws.matrix(rng, d, d), draws.matrix(rng, d, d), draws.matrix(rng, d, d))
    even = np.full(n, LONG(1) / n)
    long = x.astype(LONG)
    v = oracle.velocity(kind, m, long, even, long)
    along = (v * long).sum(-1, keepdims=True) * long
    bound = oracle.velocity_bound(kind, m, long, even, long, draws.unit(np.float64)).max()
    return Case(
        "mu = of.Particles(x, space=of.Sphere())\n"
        f"v = of.{kind}Attention(Q, K, V)(0.0, mu)\nv[0] - (v[0] * mu.x).sum(-1, keepdim=True) * mu.x, "
        "mu.tangent(v)[0]",
        {"x": x, "Q": m[0], "K": m[1], "V": m[2]},
        lambda: (v - along, v - along),
        lambda: 16 * d * bound + 1e-15 * (1 + abs(v).max()),
    )
