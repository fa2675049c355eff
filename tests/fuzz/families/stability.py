"""Stability: derivatives against complex steps, bounds as the inequalities that they promise."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from tests.fuzz import attention_oracle as oracle
from tests.fuzz import draws
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family, slow_family
from tests.fuzz.families.exact_transport import best, lengths
from tests.fuzz.families.flows import runge_kutta

KINDS = ("Softmax", "L2", "Sigmoid", "Unnormalised")


def setting(rng: Rng, *, most: int = 5) -> tuple[int, int, Array, oracle.Weights, dict[str, Array]]:
    n, d = int(rng.integers(1, most)), int(rng.integers(1, 4))
    x = rng.standard_normal((n, d))
    Q, K, V = (draws.matrix(rng, d, d, size=0.4) for _ in range(3))
    return n, d, x, (Q, K, V), {"x": x, "Q": Q, "K": K, "V": V}


def jacobian(f: Any, x: Array) -> Array:
    """The matrix of the derivative of f at x by complex steps."""
    columns = [f(x + 1j * oracle.STEP * e.reshape(x.shape)).imag.ravel() for e in np.eye(x.size, dtype=LONG)]
    return np.asarray(np.stack(columns, 1) / oracle.STEP).astype(float)


@family
def propagators(rng: Rng) -> Case:
    """The derivative of a few steps of RK4, its transpose and singular values."""
    n, _, x, m, values = setting(rng)
    kind, steps, dt = str(draws.pick(rng, KINDS)), int(rng.integers(1, 4)), 0.125
    w = np.full(n, LONG(1) / n)

    def flow(y: Array) -> Array:
        for _ in range(steps):
            y = runge_kutta(lambda z: oracle.velocity(kind, m, z, w, z), y, LONG(dt), "of.RK4()")
        return y

    u, k = rng.standard_normal(x.shape), min(2, x.size)

    @cache
    def known() -> tuple[Array, Array]:
        J = jacobian(flow, x.astype(LONG))
        return J, np.linalg.svd(J, compute_uv=False)

    def truth() -> tuple[Array, ...]:
        J, singular = known()
        return J, (J @ u.ravel()).reshape(x.shape), (J.T @ u.ravel()).reshape(x.shape), singular[:k]

    def bound() -> tuple[float, ...]:
        size = 1e-10 * (1 + known()[1][0]) * (1 + abs(u).max()) * x.size
        return size, size, size, 1e-5 * (1 + known()[1][0])

    times = f"t1={steps * dt!r}, dt={dt!r}"
    return Case(
        f"mu, field = of.Particles(x), of.{kind}Attention(Q, K, V)\n"
        f"prop = of.stability.Propagator(mu, field, of.RK4(), {times})\n"
        "t = of.Tangent([torch.from_numpy(u)])\n"
        f"found = of.stability.singular_values(mu, field, of.RK4(), {times}, k={k})\n"
        "prop.matrix(), prop.push(t)[0], prop.pull(t)[0], found.values, found.status",
        {**values, "u": u},
        truth,
        bound,
    )


@family
def local_constants(rng: Rng) -> Case:
    """The largest singular value of w_i^(1/2) J_ij w_j^(-1/2)."""
    n, d, x, m, values = setting(rng)
    kind = str(draws.pick(rng, KINDS))
    w = draws.weights(rng, (n,), zeros=False)
    mass = draws.known(w, (n,))
    if mass.min() < 1e-4:
        w, mass = None, draws.known(None, (n,))
    root = np.repeat(np.sqrt(mass.astype(float)), d)

    @cache
    def top() -> float:
        J = jacobian(lambda y: oracle.velocity(kind, m, y, mass, y), x.astype(LONG))
        return spectral(root[:, None] * J / root)

    weight = "" if w is None else ", w"
    return Case(
        f"found = of.stability.local_constant(of.Particles(x{weight}), of.{kind}Attention(Q, K, V))\n"
        "found.value, found.status",
        values | ({} if w is None else {"w": w}),
        top,
        lambda: 1e-5 * top() + 1e-12,
    )


def spectral(a: Array) -> float:
    return float(np.linalg.svd(a, compute_uv=False)[0])


@family
def bounds_of_local_constants(rng: Rng) -> Case:
    """Formulas of the docstrings, and none is below the largest singular value of the dense Jacobian."""
    n, _, x, m, values = setting(rng)
    w = np.full(n, LONG(1) / n)
    J = jacobian(lambda y: oracle.velocity("Softmax", m, y, w, y), x.astype(LONG))
    true = spectral(J)
    A, V, R = m[1].T @ m[0], m[2], float(np.sqrt((x**2).sum(1)).max())
    a, v, p = spectral(A), spectral(V), float(rng.uniform(1.1, 5))
    discrete = math.sqrt(3) * v * math.sqrt(a**2 * R**4 * (4 * n + 1) + n)
    mean_field = v * (1 + 3 * a * R**2) * math.exp(2 * a * R**2)
    y = a * R**2
    c = 1 / (1 / n + (1 - 1 / n) * math.exp(-2 * y))
    ball = v * (y + math.sqrt(c * (1 + y**2)))
    far = float(max(np.sqrt(((x @ A.T) ** 2).sum(1))))
    r, rV, rA = (float(lengths(z, z).max()) for z in (x, x @ V.T, x @ A))
    e = 1 / (1 / n + (1 - 1 / n) * math.exp(-far * r))
    data = rV * rA / 4 + math.sqrt(e * (v**2 + far**2 * rV**2 / 4))
    loose = 1e-9 * (1 + y)
    return Case(
        "mu, field = of.Particles(x), of.SoftmaxAttention(Q, K, V)\n"
        f"found = of.stability.discrete_bound(field, {R!r}, {n}), of.stability.mean_field_bound(field, "
        f"{R!r}), "
        f"of.stability.ball_bound(field, {R!r}, {n}), of.stability.data_bound(mu, field)\n"
        f"ball = of.stability.constants(field, {R!r})\n"
        "bounds = found[0], found[1].exp(), found[2].exp(), found[3]\n"
        f"*bounds, of.stability.hardy_factor({p!r}), "
        f"[bool(b >= {true * (1 - 1e-9) - 1e-9!r}) for b in bounds], "
        "bool(ball.log_sup.exp() >= field(0.0, mu)[0].norm(dim=-1).max() * (1 - 1e-9) - 1e-12)",
        values,
        lambda: (discrete, mean_field, ball, data, p / (p - 1), *(1.0,) * 5),
        lambda: (
            loose * discrete + 1e-12,
            loose * mean_field + 1e-12,
            loose * ball + 1e-12,
            loose * data + 1e-12,
            1e-12 * p / (p - 1),
            *(0.0,) * 5,
        ),
    )


@family
def perturbed_clouds(rng: Rng) -> Case:
    """Every perturbation is at the distance that was asked for, by all permutations."""
    n, d, p = int(rng.integers(2, 6)), int(rng.integers(1, 4)), float(draws.pick(rng, (1, 2)))
    x, size, seed = rng.standard_normal((n, d)), float(10 ** rng.uniform(-6, -0.5)), int(rng.integers(100))
    u = rng.standard_normal((n, d))
    length = float(((u**2).sum(1) ** (p / 2)).mean() ** (1 / p))
    tiny = size < 0.01 * np.min(lengths(x, x) + 10 * np.eye(n))
    moved = x + size / length * u
    return Case(
        "from itertools import permutations\n"
        "mu = of.Particles(x)\n"
        f"clouds = [*of.stability.perturbations(mu, {size!r}, p={p!r}, rng={seed}).values()]\n"
        f"one = of.stability.scaled(mu, of.Tangent([torch.from_numpy(u)]), {size!r}, {p!r})\n"
        "clouds = [c.x.numpy().astype(np.longdouble) for c in [*clouds, one]]\n"
        f"every = [list(s) for s in permutations(range({n}))]\n"
        f"costs = [[(((x - y[s]) ** 2).sum(1) ** ({p!r} / 2)).mean() for s in every] for y in clouds]\n"
        f"max(abs(min(c) ** (1 / {p!r}) / {size!r} - 1) for c in costs), one.x",
        {"x": x, "u": u},
        lambda: (0.0, moved),
        lambda: (1e-6, 1e-9 * (1 + abs(u).max()) if tiny else math.inf),
    )


@slow_family
def growth_and_its_bounds(rng: Rng) -> Case:
    """observed <= worst that was found <= a posteriori <= a priori, with distances by permutations."""
    n, _, _, _, values = setting(rng, most=4)
    size, t, seed = 1e-3, 0.5, int(rng.integers(100))
    return Case(
        "mu, field = of.Particles(x), of.SoftmaxAttention(Q, K, V)\n"
        f"rungs = of.ladder(mu, field, t1={t!r}, steps=8, size={size!r}, rng={seed})\n"
        f"foe = of.adversary(mu, field, of.RK4(), t1={t!r}, dt=0.0625, size={size!r}, rng={seed}, rounds=1)\n"
        "run = of.flow(mu, field, of.RK4(), t1=0.5, dt=0.0625)\n"
        f"after = of.stability.a_posteriori(run, field, size={size!r}).log_C[-1]\n"
        "before = of.stability.a_priori(field, mu0=mu, "
        f"R0=float(of.observables.radius(mu)) + {size!r} * {n}**0.5, "
        "t1=0.5, ts=[0.5]).log_C[-1]\n"
        "[bool(foe.ratio.log() <= after + 1e-6), bool(after <= before + 1e-6), "
        "bool(torch.as_tensor(rungs.holds()).all())]",
        values,
        lambda: (1.0, 1.0, 1.0),
        lambda: 0.0,
    )


@family
def coupled_flows(rng: Rng) -> Case:
    """The distance between two runs, by permutations of the final tokens in extended precision."""
    n, _, x, m, values = setting(rng)
    y = x + 0.1 * rng.standard_normal(x.shape)
    w = np.full(n, LONG(1) / n)

    def flow(z: Array) -> Array:
        for _ in range(2):
            z = runge_kutta(lambda a: oracle.velocity("Softmax", m, a, w, a), z, LONG(0.25), "of.RK4()")
        return z

    def apart(a: Array, b: Array) -> Any:
        return np.sqrt(best(lengths(a, b) ** 2)[0])

    return Case(
        "mu, nu, field = of.Particles(x), of.Particles(y), of.SoftmaxAttention(Q, K, V)\n"
        "pair = of.coupled(mu, nu, field, of.RK4(), t1=0.5, dt=0.25)\n"
        "pair.start, pair.distances[-1]",
        {**values, "y": y},
        lambda: (apart(x, y), apart(flow(x.astype(LONG)), flow(y.astype(LONG)))),
        lambda: 1e-9 * (1 + abs(x).max()),
    )


@family
def adversarial_clouds(rng: Rng) -> Case:
    """Tokens on a line in the ball, of which the first stands out."""
    d, n, R = int(rng.integers(1, 4)), int(rng.integers(2, 9)), float(rng.uniform(0.5, 5))
    A = draws.symmetric(rng, d)
    values = np.linalg.eigvalsh(A)
    positive = values[-1] > 8 * max(0.0, -values[0])
    length = abs(values).max()
    first, others = (R, R / 2) if positive else (R, R)
    return Case(
        f"x = of.stability.adversarial_tokens(A, {R!r}, {n}).x\nx[0].norm(), x[1:].norm(dim=-1)",
        {"A": A},
        lambda: (first, np.full(n - 1, others)),
        lambda: 1e-9 * R if length > 1e-9 else math.inf,
    )
