"""Energies against double sums, and their descents against complex steps of the first variation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from scipy.stats import norm

from tests.fuzz import draws
from tests.fuzz.clouds import Cloud
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family, slow_family
from tests.fuzz.families.entropic_transport import TOL, divergence, entropic, off
from tests.fuzz.families.exact_transport import best, lengths

STEP = LONG("1e-100")  # of complex steps
SAFETY = 64  # of rounding, for sums of so few terms

Variation = Callable[[Array, Array, Array], Array]  # (points, x, w) -> first variation of F at the points


def gradient(f: Variation, x: Array, w: Array) -> Array:
    """The gradient of the first variation at the tokens, by complex steps."""
    moves = np.eye(x.shape[1], dtype=LONG)
    return np.stack([f(x + 1j * STEP * e, x, w).imag / STEP for e in moves], axis=-1)


def descent(
    cloud: Cloud, energy: str, value: Variation, variation: Variation, values: Any, sizes: Any
) -> Case:
    """The value of an energy and the velocity of its descent on a cloud.

    ``sizes(x)`` is what value and velocity are sums of, in absolute values, for the tokens of all members.
    """
    unit = SAFETY * cloud.unit * (cloud.n + cloud.d)
    return Case(
        f"mu, F = {cloud.code}, {energy}\nF(mu), of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[0]",
        {**cloud.values, **values},
        lambda: (
            cloud.each(lambda x, w: np.asarray((w * value(x, x, w).real).sum())),
            cloud.each(lambda x, w: -gradient(variation, x, w)),
        ),
        lambda: tuple(unit * one + 1e-300 for one in sizes(cloud.x.reshape(-1, cloud.d).astype(LONG))),
    )


@family
def potential_energy(rng: Rng) -> Case:
    """int |x|^4 / 4, and quadratic potentials: c U + V."""
    cloud = Cloud(rng, size=draws.scale(rng, -6, 3))
    A, b = draws.symmetric(rng, cloud.d), rng.standard_normal(cloud.d)
    A, b, c = A.astype(cloud.dtype), b.astype(cloud.dtype), float(np.round(rng.normal(), 3))

    def U(points: Array, x: Array, w: Array) -> Array:
        gap = points - b
        return c * (points * points).sum(-1) ** 2 / 4 + (gap * (gap @ A.astype(LONG))).sum(-1) / 2

    def sizes(x: Array) -> tuple[Any, Any]:
        far = abs(x).max() + abs(b).max()
        pull = cloud.d * abs(A).max() * far
        return abs(c) * cloud.d**2 * far**4 + cloud.d * pull * far, abs(c) * cloud.d * far**3 + pull

    energy = f"{c!r} * of.Potential(lambda x: x.square().sum(-1).square() / 4) + of.QuadraticPotential(A, b)"
    return descent(cloud, energy, U, U, {"A": A, "b": b}, sizes)


@family
def interaction_energy(rng: Rng) -> Case:
    """1/2 iint exp(-|x - y|^2 / 2) and a quadratic interaction, with any masses."""
    cloud = Cloud(rng, size=draws.scale(rng, -6, 1))
    K = draws.symmetric(rng, cloud.d).astype(cloud.dtype)

    def W(points: Array, x: Array, w: Array) -> Array:
        gap = points[:, None] - x[None]
        bell = np.exp(-(gap * gap).sum(-1) / 2)
        return (bell + (gap * (gap @ K.astype(LONG))).sum(-1) / 2) @ w

    def sizes(x: Array) -> tuple[Any, Any]:
        far = abs(x).max()
        return (1 + far**2) * (1 + cloud.d * abs(K).max()) * 4, (1 + far**2) * far * (
            1 + cloud.d * abs(K).max()
        ) * 8

    energy = (
        "of.Interaction(lambda x, y: torch.exp(-(x - y).square().sum(-1) / 2)) + of.QuadraticInteraction(K)"
    )
    return descent(cloud, energy, lambda p, x, w: W(p, x, w) / 2, W, {"K": K}, sizes)


@family
def log_gas(rng: Rng) -> Case:
    """-1/2 iint log|x - y| off the diagonal, between tokens that are apart."""
    cloud = Cloud(rng, batch=())
    cloud.put(rng, np.arange(cloud.n)[:, None] + 0.3 * rng.uniform(0, 1, (cloud.n, cloud.d)))

    def W(points: Array, x: Array, w: Array) -> Array:
        gap = points[:, None] - x[None]
        square = (gap * gap).sum(-1)
        own = np.eye(len(x), dtype=bool)
        return np.where(own, 0, -np.log(np.where(own, 1, square)) / 2) @ w

    energy = "of.Interaction(lambda x, y: -torch.log((x - y).square().sum(-1)) / 2, diagonal=False)"
    size = 1 + np.log(1 + cloud.n * cloud.d)
    return descent(cloud, energy, lambda p, x, w: W(p, x, w) / 2, W, {}, lambda x: (size, 8 * cloud.n))


def softplus(s: Array) -> Array:
    """log(1 + e^s), complex too."""
    large = s.real > 0
    return np.where(large, s, 0) + np.log(1 + np.exp(np.where(large, -s, s)))


SCORES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "of.ExponentialInteraction(A)": (np.exp, np.exp),
    "of.SigmoidInteraction(A)": (softplus, np.abs),
    "of.SquaredScores(A)": (lambda s: s * s / 2, lambda s: s * s / 2),
}


@family
def score_energy(rng: Rng) -> Case:
    """1/2 iint f(Ax.y), f = exp, log(1 + exp) or a square: energies of attention."""
    cloud = Cloud(rng, size=draws.scale(rng, -6, 0.3))
    A = draws.symmetric(rng, cloud.d).astype(cloud.dtype)
    energy = str(draws.pick(rng, tuple(SCORES)))
    f, absolute = SCORES[energy]

    def W(points: Array, x: Array, w: Array) -> Array:
        return f(points @ A.astype(LONG) @ x.T) @ w

    def sizes(x: Array) -> tuple[Any, Any]:
        top = (abs(x) @ abs(A).astype(LONG) @ abs(x).T).max()
        most = (1 + absolute(top)) * (1 + top)
        return most, most * cloud.d * abs(A).max() * abs(x).max() * (1 + top)

    return descent(cloud, energy, lambda p, x, w: W(p, x, w) / 2, W, {"A": A}, sizes)


@family
def log_value_of_exponential_interaction(rng: Rng) -> Case:
    """log F stays finite where F does not."""
    cloud = Cloud(rng, batch=(), size=draws.scale(rng, -3, 6), dtype=np.float64)
    A = draws.symmetric(rng, cloud.d)

    def truth() -> Any:
        x, keep = cloud.x.astype(LONG), cloud.mass > 0
        s = (x @ A.astype(LONG) @ x.T)[np.ix_(keep, keep)]
        s = s + np.log(cloud.mass[keep])[:, None] + np.log(cloud.mass[keep])
        return s.max() + np.log(np.exp(s - s.max()).sum()) - np.log(LONG(2))

    top = (abs(cloud.x) @ abs(A) @ abs(cloud.x).T).max()
    return Case(
        f"of.ExponentialInteraction(A).log_value({cloud.code})",
        {**cloud.values, "A": A},
        truth,
        lambda: SAFETY * cloud.unit * (cloud.n + cloud.d) * (1 + top),
    )


@family
def mmd_energy(rng: Rng) -> Case:
    """Half the squared discrepancy, whose first variation is the witness function."""
    cloud, m = Cloud(rng, batch=(), dtype=np.float64), draws.size(rng)
    y = rng.standard_normal((m, cloud.d)) + 0.1

    def k(points: Array, x: Array) -> Array:
        gap = points[:, None] - x[None]
        return np.exp(-(gap * gap).sum(-1) / 8)

    even = np.full(m, LONG(1) / m)

    def witness(points: Array, x: Array, w: Array) -> Array:
        return k(points, x) @ w - k(points, y.astype(LONG)) @ even

    def value(points: Array, x: Array, w: Array) -> Array:
        target = (k(y.astype(LONG), x) @ w - k(y.astype(LONG), y.astype(LONG)) @ even) @ even
        return (witness(points, x, w) - target) / 2

    code = "of.MMD(of.Particles(y), of.transport.GaussianKernel(2.0))"
    return descent(
        cloud, code, value, witness, {"y": y}, lambda x: (4, 4 * (1 + abs(x).max() + abs(y).max()))
    )


@family
def transport_energy(rng: Rng) -> Case:
    """W2^2 to a target: the descent runs along the best permutation, where that is unique."""
    n, d = int(rng.integers(1, 6)), draws.dimension(rng)
    x, y = rng.standard_normal((2, n, d))
    cost, order = best(lengths(x, y) ** 2)
    pull = -2 * (x.astype(LONG) - y[order])
    return Case(
        "mu, F = of.Particles(x), of.SquaredWasserstein(of.Particles(y))\n"
        "F(mu), of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[0]",
        {"x": x, "y": y},
        lambda: (cost, pull),
        lambda: (TOL * cost + 1e-15, 1e-12 * (1 + abs(x).max() + abs(y).max())),
    )


@family
def entropic_energies(rng: Rng) -> Case:
    """OT_eps(mu, nu) - (OT_eps(mu, mu) + OT_eps(nu, nu)) / 2 and -OT_eps(mu, mu) / (2 eps) for -Ax.y."""
    n, m, d, eps = draws.size(rng), draws.size(rng), draws.dimension(rng), float(10 ** rng.uniform(0, 2))
    x, y, A = rng.standard_normal((n, d)), rng.standard_normal((m, d)), draws.symmetric(rng, d)
    a, b = np.full(n, LONG(1) / n), np.full(m, LONG(1) / m)
    long = x.astype(LONG)
    c = [lengths(x, y) ** 2, lengths(x, x) ** 2, lengths(y, y) ** 2, -(long @ A @ long.T)]
    masses = ((a, b), (a, a), (b, b), (a, a))
    far = (abs(x).max() + abs(y).max()) * n * 4
    known = cache(lambda: [entropic(one, *pair, eps) for one, pair in zip(c, masses, strict=True)])

    def truth() -> tuple[Any, ...]:
        plans = known()
        pull = 2 * n * (plans[0].plan @ y.astype(LONG) - plans[1].plan @ long)  # towards nu, and apart
        attention = -n * plans[3].plan @ (long @ A.T) / eps
        return divergence(plans), pull, -plans[3].regularised / (2 * eps), attention

    def bound() -> tuple[Any, ...]:
        slack = [off(plan, one, eps, TOL) for plan, one in zip(known(), c, strict=True)]
        return (
            sum(one[2] for one in slack[:3]),
            (slack[0][0] + slack[1][0]) * far,
            slack[3][2] / eps + 1e-13,
            slack[3][0] * far * d * abs(A).max() / min(eps, 1.0) + 1e-13,
        )

    return Case(
        f"F, G = of.SinkhornDivergence(of.Particles(y), {eps!r}), of.SelfTransport(A, {eps!r})\n"
        "mu = of.Particles(x)\n"
        "descents = [of.SteepestDescent(E, of.Wasserstein())(0.0, mu)[0] for E in (F, G)]\n"
        "F(mu), descents[0], G(mu), descents[1]",
        {"x": x, "y": y, "A": A},
        truth,
        bound,
    )


@family
def quadratic_energies_of_gaussians(rng: Rng) -> Case:
    """Means and covariances in closed form, and tangents that move roots."""
    d, k = draws.dimension(rng), int(rng.integers(1, 4))
    m, R = rng.standard_normal(d), draws.matrix(rng, d, k)
    A, K, b = draws.symmetric(rng, d), draws.symmetric(rng, d), rng.standard_normal(d)
    lm, lR, lA, lK = (a.astype(LONG) for a in (m, R, A, K))
    S, M = lR @ lR.T, lR @ lR.T + np.outer(lm, lm)
    value = ((lm - b) @ lA @ (lm - b) + np.trace(lA @ S) + np.trace(lK @ S)) / 2 + np.trace(
        lA @ M @ lA.T @ M
    ) / 4
    linear = lA.T @ M @ lA  # = A M A, for symmetric A
    return Case(
        "mu = of.Gaussian(m, root=R)\n"
        "F = of.QuadraticPotential(A, b) + of.QuadraticInteraction(K) + of.SquaredScores(A)\n"
        "v = of.SteepestDescent(F, of.Wasserstein())(0.0, mu)\nF(mu), v[0], v[1]",
        {"m": m, "R": R, "A": A, "K": K, "b": b},
        lambda: (value, -lA @ (lm - b) - linear @ lm, -(lA + lK + linear) @ lR),
        lambda: (
            1e-12 * (1 + abs(m).max() + abs(R).max()) ** 4 * d**2 * (1 + abs(A).max() + abs(b).max()) ** 2
        ),
    )


@family
def entropy_of_gaussians(rng: Rng) -> Case:
    """-1/2 log det(2 pi e S) and int rho^m / (m - 1), with descents S^-1 (x - mean) and a multiple of it."""
    d, power = int(rng.integers(1, 4)), float(draws.pick(rng, (1.5, 2.0, 3.0)))
    S, m = draws.spd(rng, d, d, condition=30.0), rng.standard_normal(d)
    _, log_det = np.linalg.slogdet(S)
    entropy = -(log_det + d * np.log(2 * np.pi * np.e)) / 2
    density = (2 * np.pi) ** (-d / 2) * np.exp(-log_det / 2)
    porous = density ** (power - 1) * power ** (-d / 2) / (power - 1)
    root = np.linalg.cholesky(S)
    push = np.linalg.inv(S) @ root  # B R for B = S^-1
    return Case(
        f"mu, F, G = of.Gaussian(m, root=L), of.Entropy(), of.PorousMedium({power!r})\n"
        "F(mu), G(mu), of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[1]",
        {"m": m, "L": root},
        lambda: (entropy, porous, push),
        lambda: (1e-13, 1e-13 * porous, 1e-13 * (1 + abs(push).max())),
    )


@family
def internal_energies_of_densities(rng: Rng) -> Case:
    """Sums over cells and over intervals between quantiles."""
    n = int(rng.integers(2, 12))
    rho = rng.uniform(0, 1, n) * (rng.uniform(0, 1, n) < 0.8) + (0.0 if draws.chance(rng, 0.5) else 0.1)
    rho[rng.integers(n)] += 0.5
    h = 10.0 ** rng.uniform(-2, 2)
    rho = rho / (rho.sum() * h)
    x = np.cumsum(rng.uniform(0.1, 1, n + 1)) * 10.0 ** rng.uniform(-2, 2)
    levels = np.concatenate([[0.0], np.cumsum(rng.uniform(0.1, 1, n))])
    levels = levels / levels[-1]
    m = float(draws.pick(rng, (0.5, 1.5, 2.0, 3.0)))
    limit = float(rho.max() * draws.pick(rng, (0.5, 1.5)))

    def sums(density: Array, volume: Array) -> tuple[Any, Any]:
        density, volume = density.astype(LONG), volume.astype(LONG)
        plain = np.where(density > 0, density * np.log(np.where(density > 0, density, 1)), 0)
        return (plain * volume).sum(), (density**m * volume).sum() / (m - 1)

    cells = sums(rho, np.full(n, h))
    pieces = sums(np.diff(levels) / np.diff(x), np.diff(x))
    size = max(float(abs(np.asarray(one))) for one in (*cells, *pieces)) + 10
    return Case(
        f"F, G, H = of.Entropy(), of.PorousMedium({m!r}), of.DensityBound({limit!r})\n"
        "mu, nu = of.Grid(rho, [axis]), of.Quantiles(x, levels)\n"
        "F(mu), G(mu), F(nu), G(nu), H(mu)",
        {"rho": rho, "axis": (np.arange(n) + 0.5) * h, "x": x, "levels": levels},
        lambda: (*cells, *pieces, 0.0 if limit > rho.max() else np.inf),
        lambda: 1e-13 * size,
    )


@family
def l2_energy(rng: Rng) -> Case:
    """c^2 / 2 (tr HS - log det(I + 2HS) / 2), whose descent is L2 attention with Q = cK and V = -c K^T K."""
    d, c = draws.dimension(rng), float(rng.uniform(0.2, 2))
    k = int(rng.integers(1, d + 1))
    K, R = draws.matrix(rng, k, d), draws.matrix(rng, d, int(rng.integers(1, d + 1)))
    H, S = K.T @ K, R @ R.T
    value = c**2 / 2 * (np.trace(H @ S) - np.linalg.slogdet(np.eye(d) + 2 * H @ S)[1] / 2)
    B = -(c**2) * 2 * H @ S @ np.linalg.inv(np.eye(d) + 2 * H @ S) @ H
    return Case(
        f"mu, F = of.Gaussian(np.zeros({d}), root=R), of.L2Energy(K, {c!r})\n"
        f"field = of.L2Attention({c!r} * K, K, -{c!r} * K.T @ K)\n"
        "F(mu), of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[1], field(0.0, mu)[1]",
        {"K": K, "R": R},
        lambda: (value, B @ R, B @ R),
        lambda: 1e-13 * (1 + abs(K).max() + abs(R).max()) ** 6,
    )


@family
def contracts(rng: Rng) -> Case:
    """What `check` measures of parts of the library is small."""
    d, n = draws.dimension(rng), int(rng.integers(1, 6))
    x, A = rng.standard_normal((n, d)), draws.symmetric(rng, d)
    part = draws.pick(
        rng,
        (
            "of.energies.check(of.ExponentialInteraction(A), mu)",
            "of.energies.check(of.QuadraticInteraction(A), mu)",
            "of.fields.check(of.SoftmaxAttention(A, np.eye(len(A)), A), mu)",
            "of.fields.check(of.Perceptron(A, A, activation=torch.tanh), mu)",
            "of.metrics.check(of.Wasserstein(), mu)",
            "of.metrics.check(of.Twisted(of.metrics.Partition(A)), mu)",
        ),
    )
    return Case(f"mu = of.Particles(x)\nmax({part}.values())", {"x": x, "A": A}, lambda: 0.0, lambda: 1e-5)


# --- on Gaussians: jumps and kinks anywhere, with their closed forms ------------------------------------

RTOL = 1e-6  # of energies on Gaussians
# For standard normal z: code, E f(z - c) and E f', E f'', and what these are relative to, up to a factor.
EDGES: dict[str, Callable[[Array], tuple[Array, Array, Array, Array]]] = {
    "(s > 0).double()": lambda c: (
        *(norm.sf(c), norm.pdf(c), c * norm.pdf(c)),
        (1 + abs(c)) * norm.pdf(c) + norm.sf(abs(c)),
    ),
    "torch.relu(s)": lambda c: (
        *(relu := (norm.pdf(c) - c * norm.sf(c), norm.sf(c), norm.pdf(c))),
        sum(relu),
    ),
    "s.abs()": lambda c: (
        *(2 * norm.pdf(c) + c * (2 * norm.cdf(c) - 1), 1 - 2 * norm.cdf(c), 2 * norm.pdf(c)),
        1 + 0 * c,
    ),
}


def edge(rng: Rng, size: int) -> Array:
    """Places of jumps and kinks, half of them close to eighths, where pieces of meshes may end."""
    near = rng.integers(-24, 25, size) / 8 + rng.choice([-1, 1], size) * 10 ** rng.uniform(-5, -2, size)
    return np.where(rng.uniform(size=size) < 0.5, rng.uniform(-4, 4, size), near)


def edges(rng: Rng, law: str, c: Array, values: dict[str, Any], e: Array) -> Case:
    """The mean of f(e.x - c) at standard laws, for c of any shape, and its slopes in mean and root."""
    code = str(draws.pick(rng, tuple(EDGES)))
    value, first, second, size = EDGES[code](c)
    return Case(
        f"f = lambda s: {code}\nF = of.Potential(lambda x: f(x @ torch.tensor(e) - c))\n"
        f"mu = {law}\nF(mu), *F.differential(mu)",
        {**values, "e": e},
        lambda: (value, first[..., None] * e, second[..., None, None] * np.outer(e, e)),
        lambda: (RTOL * abs(value), 2 * RTOL * size[..., None], 4 * RTOL * size[..., None, None]),
    )


@family
def edges_on_the_line(rng: Rng) -> Case:
    """A jump or a kink under one law."""
    c = edge(rng, 1)[0]
    return edges(rng, "of.Gaussian([0.0], root=[[1.0]])", c, {"c": float(c)}, np.ones(1))


@family
def edges_under_many_laws(rng: Rng) -> Case:
    """A jump or a kink, in another place for each law of a batch; of more than 64 fewer points are taken."""
    c = edge(rng, int(rng.integers(2, 100)))
    law = "of.Gaussian(m[:, None], root=np.ones((len(m), 1, 1)))"
    return edges(rng, law, c, {"c": 0.0, "m": -c}, np.ones(1))


@slow_family
def edges_in_the_plane(rng: Rng) -> Case:
    """A jump or a kink along an axis, or across both."""
    angle = float(draws.pick(rng, (0, 0.5, rng.uniform(0, 2)))) * np.pi
    c, e = edge(rng, 1)[0], np.array([np.cos(angle), np.sin(angle)]).round(15)
    law = "of.Gaussian([0.0, 0.0], root=np.eye(2))"
    return edges(rng, law, c, {"c": float(c)}, e / np.linalg.norm(e))
