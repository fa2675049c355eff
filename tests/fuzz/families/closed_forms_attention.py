"""Closed forms of Gaussians under attention, against iterations, integrals and equations solved by scipy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
from scipy.integrate import solve_ivp

from tests.fuzz import draws
from tests.fuzz.draws import Array, Rng
from tests.fuzz.engine import Case, family
from tests.fuzz.families.bures import entropic_gaussians

C = "of.closed_forms"


def gaussian(rng: Rng, condition: float = 30.0) -> tuple[int, Array]:
    d = draws.dimension(rng)
    return d, draws.spd(rng, d, d, condition=condition)


def top(*arrays: Array) -> float:
    return 1.0 + max(float(abs(a).max()) for a in arrays)


@family
def rates_of_covariances(rng: Rng) -> Case:
    """dS/dt of all kinds of attention; Sinkhorn's by its iteration on quadratic potentials."""
    d, S = gaussian(rng)
    A, V, K, Q = (draws.matrix(rng, d, d, size=0.4) for _ in range(4))
    eps = float(10 ** rng.uniform(0, 1.5))
    heads, mixes = rng.standard_normal((2, 3, d, d)) * 0.4

    def symmetric(B: Array) -> Array:
        return B + B.T

    P = S @ np.linalg.inv(np.eye(d) + 2 * K.T @ K @ S)
    cross = bistochastic(S, A, eps)
    many = sum(symmetric(one @ S @ a @ S) for one, a in zip(mixes, heads, strict=True))
    size = top(S) ** 2 * top(V, mixes) * top(A, heads, K) * top(Q) * 10 * d**3
    return Case(
        f"{C}.softmax_rate(S, A, V), {C}.l2_rate(S, Q, K, V), {C}.multihead_rate(S, heads, mixes), "
        f"{C}.sinkhorn_cross(S, A, eps={eps!r}), {C}.sinkhorn_rate(S, A, V, eps={eps!r})",
        {"S": S, "A": A, "V": V, "K": K, "Q": Q, "heads": heads, "mixes": mixes},
        lambda: (
            symmetric(V @ S @ A @ S),
            symmetric(2 * V @ P @ K.T @ Q @ S),
            many,
            cross,
            symmetric(V @ cross) / eps,
        ),
        lambda: 1e-14 * size,
    )


def bistochastic(S: Array, A: Array, eps: float) -> Array:
    """E[y x^T] of the plan exp(Ax.y / eps) scaled to have both marginals N(0, S).

    Potentials -x.Fx / 2 and -y.Gy / 2 give F = A^T (P + G)^-1 A / eps^2 and G = A (P + F)^-1 A^T / eps^2,
    P = S^-1, and E[y | x] = (P + G)^-1 A x / eps.
    """
    P = np.linalg.inv(S)
    G = np.zeros_like(S)
    for _ in range(100_000):
        F = A.T @ np.linalg.solve(P + G, A) / eps**2
        new = A @ np.linalg.solve(P + F, A.T) / eps**2
        moved, G = abs(new - G).max(), new
        if moved <= 1e-16 * (1 + abs(G).max()):
            break
    return np.asarray(np.linalg.solve(P + G, A) @ S / eps)


@family
def sinkhorn_rate_by_inverses(rng: Rng) -> Case:
    """Two formulas for invertible matrices, against the iteration."""
    d = int(rng.integers(1, 4))
    S, A = draws.spd(rng, d, d, condition=5.0), draws.spd(rng, d, d, condition=3.0)
    V, eps = draws.matrix(rng, d, d), float(10 ** rng.uniform(0, 1))
    Y = V @ bistochastic(S, A, eps) / eps
    return Case(
        f"{C}.sinkhorn_rate_inverse_left(S, A, V, eps={eps!r}), {C}.sinkhorn_rate_inverse_right(S, A, V, "
        f"eps={eps!r})",
        {"S": S, "A": A, "V": V},
        lambda: (Y + Y.T, Y + Y.T),
        lambda: 1e-12 * top(V) * top(S) ** 2 * eps,
    )


ENERGIES: dict[str, Callable[[Array, Array, float], float]] = {
    "softmax": lambda S, A, eps: np.trace(A @ S @ A @ S) / 4,
    "multihead": lambda S, A, eps: np.trace(A @ S @ A @ S) / 4,
    "sinkhorn": lambda S, A, eps: -sinkhorn_cost(S, A, eps) / (2 * eps),
}


def sinkhorn_cost(S: Array, A: Array, eps: float) -> float:
    """OT_eps of N(0, S) to itself for the cost -Ax.y, from its plan."""
    cross = bistochastic(S, A, eps)
    joint = np.block([[S, cross.T], [cross, S]])
    entropy = np.linalg.slogdet(S)[1] - np.linalg.slogdet(joint)[1] / 2
    return float(-np.trace(A @ cross.T) + eps * entropy)


@family
def energies_of_covariances(rng: Rng) -> Case:
    """G(S), and B = -2 grad G by central differences along a symmetric direction."""
    d, S = gaussian(rng)
    A, eps = draws.symmetric(rng, d), float(10 ** rng.uniform(0, 1))
    kind = str(draws.pick(rng, tuple(ENERGIES)))
    G = ENERGIES[kind]
    H = draws.symmetric(rng, d)
    h = 1e-4 * np.linalg.eigvalsh(S)[0] / top(H)
    slope = 8 * (G(S + h * H, A, eps) - G(S - h * H, A, eps)) - (
        G(S + 2 * h * H, A, eps) - G(S - 2 * h * H, A, eps)
    )
    slope = slope / (12 * h)
    word = "A[None]" if kind == "multihead" else "A"
    extra = f", eps={eps!r}" if kind == "sinkhorn" else ""
    size = top(S) ** 2 * top(A) ** 2 * d**2
    return Case(
        f"B = {C}.{kind}_descent(S, {word}{extra})\n{C}.{kind}_energy(S, {word}{extra}), "
        "(B * torch.from_numpy(H)).sum() / -2",
        {"S": S, "A": A, "H": H},
        lambda: (G(S, A, eps), slope),
        lambda: (1e-14 * size, 1e-10 * size / h * 1e-2 + 1e-8 * size),
    )


@family
def l2_energy_of_covariances(rng: Rng) -> Case:
    d, S = gaussian(rng)
    K, c = draws.matrix(rng, int(rng.integers(1, d + 1)), d), float(rng.uniform(0.2, 2))
    H = K.T @ K
    value = c**2 / 2 * (np.trace(H @ S) - np.linalg.slogdet(np.eye(d) + 2 * H @ S)[1] / 2)
    B = -2 * c**2 * H @ S @ np.linalg.inv(np.eye(d) + 2 * H @ S) @ H
    return Case(
        f"{C}.l2_energy(S, K, {c!r}), {C}.l2_descent(S, K, {c!r})",
        {"S": S, "K": K},
        lambda: (value, B),
        lambda: 1e-14 * top(S) * top(K) ** 4 * d**3 * 10,
    )


@family
def softmax_paths(rng: Rng) -> Case:
    """S(t) = (S0^-1 - t H)^-1, when it blows up, and how perturbations grow along it."""
    d, S = gaussian(rng)
    A = draws.matrix(rng, d, d)
    H = A + A.T
    root = np.real(scipy.linalg.sqrtm(S))
    values = np.linalg.eigvalsh(root @ H @ root)
    clear = abs(values[-1]) > 1e-6 * top(H)
    when = 1 / values[-1] if values[-1] > 0 and clear else np.inf
    before = 1 / values[0] if values[0] < -1e-6 else -np.inf
    t = float(rng.uniform(max(before, -2.0), min(when, 2.0)) * 0.9)
    path = np.linalg.inv(np.linalg.inv(S) - t * H)
    G = np.linalg.inv(np.eye(d) - t * S @ H)
    growth = norm_between(G, S, (path + path.T) / 2)
    size = top(path) * top(S, np.linalg.inv(S)) * d**2
    late = np.inf if not clear else 1e-12 * when if np.isfinite(when) else 0.0
    return Case(
        f"{C}.softmax_path(S, A, {t!r}), {C}.softmax_path_sensitivity(S, A, {t!r}), "
        f"{C}.softmax_blow_up_time(S, A)",
        {"S": S, "A": A},
        lambda: (path, growth, when),
        lambda: (1e-13 * size, 1e-11 * growth * size, late),
    )


def norm_between(G: Array, S: Array, T: Array) -> float:
    """sup |G D G^T|_T / |D|_S over symmetric D, |D|_S the Bures norm: L with LS + SL = D, tr(L S L)^(1/2).

    By the dense matrix of the map on symmetric matrices.
    """
    d = len(S)
    basis = [np.asarray(e).reshape(d, d) for e in symmetric_basis(d)]
    first = np.array([[bures_inner(a, b, S) for b in basis] for a in basis])
    last = np.array([[bures_inner(G @ a @ G.T, G @ b @ G.T, T) for b in basis] for a in basis])
    return float(np.sqrt(scipy.linalg.eigh(last, first, eigvals_only=True)[-1]))


def symmetric_basis(d: int) -> list[Array]:
    out = []
    for i in range(d):
        for j in range(i + 1):
            e = np.zeros((d, d))
            e[i, j] = e[j, i] = 1.0
            out.append(e)
    return out


def bures_inner(D: Array, E: Array, S: Array) -> float:
    values, U = np.linalg.eigh(S)
    D, E = U.T @ D @ U, U.T @ E @ U
    return float((D * E / (values[:, None] + values[None]) / 2).sum())


@family
def softmax_at_the_end(rng: Rng) -> Case:
    """Limits, their ranks, and profiles of blow-up for invertible starts."""
    d = int(rng.integers(1, 5))
    S = draws.spd(rng, d, d, condition=10.0)
    r = int(rng.integers(0, d))  # of A
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = -(q[:, :r] * rng.uniform(0.5, 2, r)) @ q[:, :r].T
    A = (A + A.T) / 2
    N = q[:, r:]
    limit = N @ np.linalg.inv(N.T @ np.linalg.inv(S) @ N) @ N.T
    B = draws.spd(rng, d, d, condition=10.0)
    V = draws.spd(rng, d, d, condition=5.0)
    root = np.real(scipy.linalg.sqrtm(S))
    values, vectors = np.linalg.eigh(root @ (2 * B) @ root)
    w = vectors[:, -1]
    u = root @ w
    u = u * np.sign(u[abs(u).argmax()])
    stretch = np.linalg.norm(root @ w) * np.linalg.norm(np.linalg.solve(root, w))
    gap = 1.0 if d == 1 else (values[-1] - values[-2]) / values[-1]
    bound = d / (
        2 * np.linalg.eigvalsh(B)[0] * np.linalg.eigvalsh(V)[0] ** 2 * np.trace(np.linalg.solve(V, S))
    )
    loose = 1e-12 / max(gap, 1e-6)
    return Case(
        f"{C}.softmax_limit(S, A), {C}.softmax_limit_rank(S, A), {C}.softmax_limit_rank_bound(A), "
        f"{C}.softmax_blow_up_direction(S, B), {C}.softmax_blow_up_profile(S, B), "
        f"{C}.softmax_blow_up_sensitivity(S, B), {C}.softmax_blow_up_bound(S, B, V), "
        f"{C}.softmax_lyapunov(S, V), {C}.softmax_lyapunov_rate(S, B)",
        {"S": S, "A": A, "B": B, "V": V},
        lambda: (
            *(limit, d - r, d - r, u, np.outer(u, u) / values[-1], stretch, bound),
            *(np.trace(np.linalg.solve(V, S)), np.trace(2 * S @ B @ S)),
        ),
        lambda: (
            1e-12,
            0.0,
            0.0,
            loose * top(u),
            loose * top(u) ** 2,
            loose * stretch,
            1e-13 * bound,
            1e-12,
            1e-12,
        ),
    )


def solved(
    f: Callable[[float], float], slope: Callable[[float], float], s0: float, t: float
) -> tuple[float, float]:
    """s(t) of s' = f(s), and d sqrt(s)(t) / d sqrt(s)(0) by the equation of first variation."""
    found = solve_ivp(
        lambda _, y: [f(y[0]), slope(y[0]) * y[1]], (0, t), [s0, 1.0], method="DOP853", rtol=1e-12, atol=1e-14
    )
    s, growth = found.y[:, -1]
    return float(s), float(growth * np.sqrt(s0 / s))


@family
def variances_on_the_line(rng: Rng) -> Case:
    """s(t) and d sigma(t) / d sigma(0) under softmax, L2 and Sinkhorn attention, by scipy's integrator."""
    s0, a, v, k, q = (
        float(c) for c in (rng.uniform(0.2, 2), rng.normal(), rng.normal(), *rng.normal(size=2))
    )
    eps = float(rng.uniform(0.5, 3))
    blow = 2 * v * a * s0
    t = float(rng.uniform(0.05, 0.8) * (min(1.0, 1 / blow) if blow > 0 else 1.0))
    soft = solved(lambda s: 2 * v * a * s * s, lambda s: 4 * v * a * s, s0, t)
    b = 2 * k * k
    l2 = solved(
        lambda s: 4 * v * k * q * s * s / (1 + b * s),
        lambda s: 4 * v * k * q * (2 * s + b * s * s) / (1 + b * s) ** 2,
        s0,
        t,
    )

    def plan(s: float) -> float:
        return 2 * (v / eps) * 2 * a * s * s / eps / (1 + np.sqrt(1 + (2 * a * s / eps) ** 2))

    def slope(s: float) -> float:
        h = 1e-4 * s
        return (8 * (plan(s + h) - plan(s - h)) - (plan(s + 2 * h) - plan(s - 2 * h))) / (12 * h)

    sink = solved(plan, slope, s0, t)
    when = 1 / blow if blow > 0 else np.inf
    loose = 1e-8 * (1 + soft[0] + l2[0] + sink[0])
    return Case(
        f"x, y, z = ({s0!r}, {a!r}, {v!r}, {t!r}), ({s0!r}, {q!r}, {k!r}, {v!r}, {t!r}), ({s0!r}, {a!r}, "
        f"{v!r}, {t!r})\n"
        f"{C}.softmax_variance(*x), {C}.softmax_sensitivity(*x), {C}.l2_variance(*y), "
        f"{C}.l2_sensitivity(*y), "
        f"{C}.sinkhorn_variance(*z, eps={eps!r}), {C}.sinkhorn_sensitivity(*z, eps={eps!r}), "
        f"{C}.softmax_variance_blow_up(*x[:3])",
        {},
        lambda: (*soft, *l2, *sink, when),
        lambda: (loose, loose * (1 + soft[1]), loose, loose * 10, loose, loose * 10, 1e-12 * when),
    )


@family
def kernels_at_small_temperature(rng: Rng) -> Case:
    """Slopes of displacements and scores; the bistochastic one by iterating the plan of N(0, S) to itself."""
    d, S = gaussian(rng)
    eps, t = float(10 ** rng.uniform(0, 1.5)), float(rng.uniform(0, 2))
    cross = entropic_gaussians(np.zeros(d), S, np.zeros(d), S, 2 * eps)[2]
    slope = (np.linalg.solve(S, cross).T - np.eye(d)) / eps
    return Case(
        f"{C}.score(S), {C}.l2_displacement(S, {eps!r}), {C}.sinkhorn_displacement(S, {eps!r}), "
        f"{C}.heat_path(S, {t!r})",
        {"S": S},
        lambda: (-np.linalg.inv(S), -np.linalg.inv(S + eps * np.eye(d)), slope, S + 2 * t * np.eye(d)),
        lambda: 1e-13 * top(S, np.linalg.inv(S)) ** 2,
    )


@family
def entropic_closed_forms(rng: Rng) -> Case:
    d, S = gaussian(rng)
    T, eps, h = draws.spd(rng, d, d, condition=30.0), float(10 ** rng.uniform(0, 2)), rng.standard_normal(d)
    _, value, cross = entropic_gaussians(np.zeros(d), S, h, T, eps)
    values, U = np.linalg.eigh(S)
    rate = (U * (np.sqrt(16 * values + eps**2) - np.sqrt(16 * values**2 + eps**2))) @ U.T
    return Case(
        f"{C}.entropic_cross(S, T, {eps!r}), {C}.entropic_value(S, T, {eps!r}, shift=h), "
        f"{C}.debiased_rate(S, {eps!r})",
        {"S": S, "T": T, "h": h},
        lambda: (cross, value, rate),
        lambda: 1e-13 * (top(S, T) + top(h) ** 2 + eps) * d,
    )


@family
def twisted_energy_by_quadrature(rng: Rng) -> Case:
    """(1/2) E exp(a x y) for independent x and y on the line, by the trapezoidal rule."""
    s, a = float(rng.uniform(0.3, 2)), float(rng.normal())
    a = float(np.clip(a, -0.6 / s, 0.6 / s))

    def value() -> float:
        z = np.linspace(-14, 14, 701)
        p = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
        return float((p[:, None] * p * np.exp(a * s * np.outer(z, z))).sum() / 2)

    return Case(f"{C}.twisted_energy([[{s!r}]], [[{a!r}]])", {}, value, lambda: 1e-11)


@family
def bounds_of_traces(rng: Rng) -> Case:
    """exp(2 |V K^+| |Q| |t|) tr S0 and exp(2 |V| |t| / eps) tr S0, norms by singular values."""
    d, S = gaussian(rng)
    K = draws.spd(rng, d, d, condition=10.0)
    Q, V = draws.matrix(rng, d, d), draws.matrix(rng, d, d)
    t, eps = float(rng.normal()), float(rng.uniform(0.5, 3))

    def norm(a: Array) -> Any:
        return np.linalg.svd(a, compute_uv=False)[0]

    one = np.exp(2 * norm(V @ np.linalg.inv(K)) * norm(Q) * abs(t)) * np.trace(S)
    two = np.exp(2 * norm(V) * abs(t) / eps) * np.trace(S)
    loose = 1e-13 * (1 + norm(V @ np.linalg.inv(K)) * norm(Q) * abs(t))
    return Case(
        f"{C}.l2_trace_bound(S, Q, K, V, {t!r}), {C}.sinkhorn_trace_bound(S, V, {t!r}, eps={eps!r})",
        {"S": S, "Q": Q, "K": K, "V": V},
        lambda: (one, two),
        lambda: (loose * one, loose * two),
    )


@family
def l2_counterexample(rng: Rng) -> Case:
    """S_12' = 2 S_12^2 / (1 + 2 S_11), and S_22 by the same field."""
    S = draws.spd(rng, 2, 2, condition=5.0)
    S[0, 1] = S[1, 0] = abs(S[0, 1]) + 0.05
    S = S + 0.2 * np.eye(2)
    when = (1 + 2 * S[0, 0]) / (2 * S[0, 1])
    t = float(rng.uniform(0, 0.8) * when)

    def rate(_: float, y: Array) -> list[float]:
        c = 2 * y[0] / (1 + 2 * S[0, 0])
        return [c * y[0], 2 * c * y[1]]

    y = solve_ivp(rate, (0, t), [S[0, 1], S[1, 1]], method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]
    path = np.array([[S[0, 0], y[0]], [y[0], y[1]]])
    return Case(
        f"example = {C}.l2_counterexample()\nexample.blow_up_time(S), example.path(S, {t!r})",
        {"S": S},
        lambda: (when, path),
        lambda: (1e-14 * when, 1e-10 * top(path)),
    )
