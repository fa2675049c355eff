"""Gaussians: Bures-Wasserstein geometry against sixty digits, entropic plans against Riccati iterations."""

from __future__ import annotations

from typing import Any, NamedTuple

import mpmath
import numpy as np

from tests.fuzz import draws
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family

DIGITS = 60


def mp(a: Array) -> Any:
    return mpmath.matrix(np.atleast_2d(a.astype(float)).tolist())


def back(a: Any) -> Array:
    """Two floats carry what extended precision can hold of a matrix of mpmath."""
    high = np.array([[float(a[i, j]) for j in range(a.cols)] for i in range(a.rows)])
    low = np.array([[float(a[i, j] - high[i, j]) for j in range(a.cols)] for i in range(a.rows)])
    return np.asarray(high.astype(LONG) + low)


def root(a: Any) -> Any:
    """The root of a symmetric matrix; eigenvalues below zero are rounding."""
    values, vectors = mpmath.eigsy((a + a.T) / 2)
    return vectors * mpmath.diag([mpmath.sqrt(max(v, mpmath.mpf(0))) for v in values]) * vectors.T


def optimal_map(S1: Any, S2: Any) -> Any:
    r = root(S1)
    inverse = r**-1
    return inverse * root(r * S2 * r) * inverse


class Gauss(NamedTuple):
    mean: Array
    root: Array
    code: str
    values: dict[str, Array]


def gauss(
    rng: Rng, name: str, d: int, *, size: float = 1.0, columns: int = 0, dtype: Any = np.float64
) -> Gauss:
    """N(m, R R^T), with a root of any width."""
    k = columns or int(rng.integers(1, d + 2))
    mean = size * draws.cloud(rng, (1, d))[0]
    R = size * draws.matrix(rng, d, k, size=1.0)
    mean, R = mean.astype(dtype), R.astype(dtype)
    values = {f"m{name}": mean, f"R{name}": R}
    return Gauss(mean, R, f"of.Gaussian(m{name}, root={draws.laid_out(rng, f'R{name}', R)})", values)


def full(
    rng: Rng, name: str, d: int, *, condition: float = 1e3
) -> tuple[Array, Array, str, dict[str, Array]]:
    """N(m, S) by its covariance, invertible."""
    mean, S = rng.standard_normal(d), draws.spd(rng, d, d, condition=condition)
    return mean, S, f"of.Gaussian(m{name}, cov=S{name})", {f"m{name}": mean, f"S{name}": S}


@family
def bures_wasserstein(rng: Rng) -> Case:
    """|m1 - m2|^2 + |R1|^2 + |R2|^2 - 2 |R1^T R2|_1, the last the sum of singular values."""
    d, dtype, size = draws.dimension(rng), draws.precision(rng), draws.scale(rng, -9, 9)
    mu, nu = gauss(rng, "1", d, size=size, dtype=dtype), gauss(rng, "2", d, size=size, dtype=dtype)

    def truth() -> Any:
        with mpmath.workdps(DIGITS):
            product = mp(mu.root).T * mp(nu.root)
            nuclear = sum(mpmath.svd_r(product, compute_uv=False)) if product.rows else 0
            gap = [mpmath.mpf(float(a)) - mpmath.mpf(float(b)) for a, b in zip(mu.mean, nu.mean, strict=True)]
            squares = sum(g * g for g in gap) + sum(mpmath.mpf(float(r)) ** 2 for r in mu.root.ravel())
            squares += sum(mpmath.mpf(float(r)) ** 2 for r in nu.root.ravel()) - 2 * nuclear
            return LONG(str(mpmath.sqrt(max(squares, mpmath.mpf(0)))))

    span = np.linalg.norm(mu.root.astype(float)) + np.linalg.norm(nu.root.astype(float))
    return Case(
        f"of.bures_wasserstein({mu.code}, {nu.code})",
        mu.values | nu.values,
        truth,
        lambda: 64 * d * 2.0**-53 * span + 8 * draws.unit(dtype) * truth() + 1e-37,
    )


@family
def bures_of_close_covariances(rng: Rng) -> Case:
    """To relative precision however close they are, in proportion to the condition number."""
    d, condition = draws.dimension(rng), 1e3
    S = draws.spd(rng, d, d, condition=condition)
    h = draws.symmetric(rng, d) * 10.0 ** rng.uniform(-14, -2) * np.linalg.eigvalsh(S)[0]
    T = S + (h + h.T) / 2

    def truth() -> Any:
        with mpmath.workdps(DIGITS):
            a, b = mp(S), mp(T)
            r = root(a)
            m = root(r * b * r)
            square = sum(a[i, i] + b[i, i] - 2 * m[i, i] for i in range(d))
            return LONG(str(mpmath.sqrt(max(square, mpmath.mpf(0)))))

    return Case(
        "of.transport.bures(S, T)",
        {"S": S, "T": T},
        truth,
        lambda: 64 * d * 2.0**-53 * np.linalg.cond(S) * truth() + 1e-28,  # sixty digits of a square,
    )


@family
def bures_map_and_geodesic(rng: Rng) -> Case:
    d, t = draws.dimension(rng), float(rng.uniform())
    (m1, S1, mu, first), (m2, S2, nu, second) = full(rng, "1", d), full(rng, "2", d)

    def truth() -> tuple[Any, ...]:
        with mpmath.workdps(DIGITS):
            T = optimal_map(mp(S1), mp(S2))
            way = (1 - mpmath.mpf(t)) * mpmath.eye(d) + mpmath.mpf(t) * T
            cov = way * mp(S1) * way.T
            gap = (T - mpmath.eye(d)) * mp(S1) * (T - mpmath.eye(d))
            square = sum(gap[i, i] for i in range(d)) + sum(
                (mpmath.mpf(float(a)) - mpmath.mpf(float(b))) ** 2 for a, b in zip(m1, m2, strict=True)
            )
            return back(T), back(cov), S2, m2, LONG(str(square))

    worst = 256 * d * 2.0**-53 * 1e3
    return Case(
        f"mu, nu = {mu}, {nu}\n"
        "u = of.transport.bures_log(mu, nu)\n"
        "end = of.transport.bures_exp(mu, u)\n"
        f"of.transport.bures_map(mu, nu).matrix, of.transport.bures_geodesic(mu, nu, {t!r}).cov, "
        "end.cov, end.mean, mu.inner(u, u)",
        first | second,
        truth,
        lambda: (worst, worst, worst, 1e-14, worst),
    )


@family
def bures_barycentre(rng: Rng) -> Case:
    """The fixed point S = sum_k w_k (S^(1/2) S_k S^(1/2))^(1/2), iterated as by Alvarez-Esteban et al."""
    d, k = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    means, S = rng.standard_normal((k, d)), draws.spd(rng, k, d, d, condition=30.0)
    w = draws.weights(rng, (k,))
    exact = draws.known(w, (k,)).astype(float)

    def truth() -> tuple[Array, Array]:
        X = np.tensordot(exact, S, 1)
        for _ in range(500):
            r = power(X, 0.5)
            inside = sum(weight * power(r @ one @ r, 0.5) for weight, one in zip(exact, S, strict=True))
            inverse = power(X, -0.5)
            new = inverse @ inside @ inside @ inverse
            moved, X = abs(new - X).max(), (new + new.T) / 2
            if moved < 1e-15:
                break
        return exact @ means, X

    return Case(
        f"found = of.transport.bures_barycentre(of.Gaussian(means, cov=S){'' if w is None else ', w'})\n"
        "found.measure.mean, found.measure.cov, found.status",
        {"means": means, "S": S} | ({} if w is None else {"w": w}),
        truth,
        lambda: (1e-13, 1e-10),
    )


def power(S: Array, p: float) -> Array:
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    return np.asarray((vectors * values**p) @ vectors.T)


@family
def gaussian_transport(rng: Rng) -> Case:
    """The entropic plan by Sinkhorn's iteration on quadratic potentials, of which eps = 0 is the limit."""
    d = draws.dimension(rng)
    (m1, S1, mu, first), (m2, S2, nu, second) = (full(rng, name, d, condition=30.0) for name in "12")
    eps = float(10 ** rng.uniform(0, 2))

    def truth() -> tuple[Any, ...]:
        cost, value, C = entropic_gaussians(m1, S1, m2, S2, eps)
        with mpmath.workdps(DIGITS):
            T = optimal_map(mp(S1), mp(S2))
            cross = back(mp(S1) * T)
        exact = ((m1 - m2) ** 2).sum() + np.trace(S1) + np.trace(S2) - 2 * np.trace(cross)
        return cost, value, C, exact, cross

    return Case(
        f"mu, nu = {mu}, {nu}\n"
        f"found, exact = of.sinkhorn(mu, nu, {eps!r}), of.solve(mu, nu)\n"
        "found.cost, found.regularised_cost, found.cross, exact.cost, exact.cross, "
        "found.status, exact.status",
        first | second,
        truth,
        lambda: 1e-13 * (np.trace(S1) + np.trace(S2) + ((m1 - m2) ** 2).sum() + eps),
    )


def entropic_gaussians(m1: Array, S1: Array, m2: Array, S2: Array, eps: float) -> tuple[float, float, Array]:
    """Cost, regularised cost and cross-covariance: the joint precision [[A, -B], [-B, D]] has B = 2 / eps.

    Its marginals are right where A = S1^-1 + B D^-1 B and D = S2^-1 + B A^-1 B.
    """
    d, B = len(m1), 2 / eps
    P1, P2 = np.linalg.inv(S1), np.linalg.inv(S2)
    D = P2.copy()
    for _ in range(100_000):
        A = P1 + B**2 * np.linalg.inv(D)
        new = P2 + B**2 * np.linalg.inv(A)
        moved, D = abs(new - D).max(), new
        if moved < 1e-15 * abs(D).max():
            break
    C = S1 @ (B * np.linalg.inv(D))
    joint = np.block([[S1, C], [C.T, S2]])
    entropy = (np.linalg.slogdet(S1)[1] + np.linalg.slogdet(S2)[1] - np.linalg.slogdet(joint)[1]) / 2
    cost = float(((m1 - m2) ** 2).sum() + np.trace(S1) + np.trace(S2) - 2 * np.trace(C))
    assert C.shape == (d, d)
    return cost, cost + eps * entropy, C


@family
def gaussian_sinkhorn_divergence(rng: Rng) -> Case:
    d, eps = draws.dimension(rng), float(10 ** rng.uniform(0, 2))
    (m1, S1, mu, first), (m2, S2, nu, second) = (full(rng, name, d, condition=30.0) for name in "12")

    def truth() -> float:
        across = entropic_gaussians(m1, S1, m2, S2, eps)[1]
        own = [entropic_gaussians(m, S, m, S, eps)[1] for m, S in ((m1, S1), (m2, S2))]
        return across - sum(own) / 2

    return Case(
        f"of.sinkhorn_divergence({mu}, {nu}, {eps!r})",
        first | second,
        truth,
        lambda: 1e-13 * (np.trace(S1) + np.trace(S2) + ((m1 - m2) ** 2).sum() + eps),
    )


@family
def affine_map(rng: Rng) -> Case:
    d, n = draws.dimension(rng), draws.size(rng)
    A, a, b = draws.matrix(rng, d, d), rng.standard_normal(d), rng.standard_normal(d)
    x, S = draws.cloud(rng, (n, d)), draws.spd(rng, d, d)
    long = A.astype(LONG)
    truth = (b + (x - a) @ long.T, b - long @ a, long @ S @ long.T)
    return Case(
        "T = of.transport.AffineMap(*(torch.from_numpy(one) for one in (A, a, b)))\n"
        "T(of.Particles(x)).x, T.shift, T(of.Gaussian(a, cov=S)).cov",
        {"A": A, "a": a, "b": b, "x": x, "S": S},
        lambda: truth,
        lambda: 1e-14 * (1 + abs(A).max()) ** 2 * (1 + abs(x).max() + abs(S).max() * d + abs(a).max()),
    )
