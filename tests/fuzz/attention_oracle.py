"""Attention from its definition in extended precision, with what rounding may do to it.

Every function takes complex points too: the imaginary part of v(x + ihu) / h, h = 1e-100, is the derivative
along u without cancellation. One cloud at a time: x (n, d), w (n,), points (m, d), seen (m, n).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray
LONG = np.longdouble
STEP = LONG("1e-100")
SAFETY = 8  # of error bounds, which count roundings one by one but not how libraries order them

Weights = tuple[Array, Array, Array]


def scores(kind: str, m: Weights, x: Array, points: Array) -> Array:
    q, k = points @ m[0].T, x @ m[1].T
    if kind == "L2":
        gap = q[:, None] - k[None]
        return np.asarray(-(gap * gap).sum(-1))
    return np.asarray(q @ k.T)


def masses(kind: str, s: Array, w: Array, seen: Array) -> Array:
    """p_ij in v(x_i) = sum_j p_ij V x_j."""
    w = w * seen
    if kind == "Unnormalised":
        return np.where(w > 0, w * np.exp(s), 0)
    if kind == "Sigmoid":
        small = np.exp(np.where(s.real > 0, -s, s))
        return w * np.where(s.real > 0, 1, small) / (1 + small)
    top = np.max(np.where(w > 0, s.real, -np.inf), axis=1, keepdims=True)
    p = np.where(w > 0, w * np.exp(np.where(w > 0, s - np.where(np.isfinite(top), top, 0), 0)), 0)
    z = p.sum(1, keepdims=True)
    return np.asarray(p / np.where(z == 0, 1, z))


def velocity(kind: str, m: Weights, x: Array, w: Array, points: Array, seen: Any = True) -> Array:
    m = long(m)
    p = masses(kind, scores(kind, m, x, points), w, np.broadcast_to(seen, (len(points), len(x))))
    return np.asarray(p @ (x @ m[2].T))


def jacobian_vector(kind: str, m: Weights, x: Array, w: Array, u: Array, seen: Any = True) -> Array:
    """d/dh of the velocities of the tokens when they move by h u."""
    moved = x + 1j * STEP * u
    return np.asarray(velocity(kind, m, moved, w, moved, seen).imag / STEP)


def long(m: Weights) -> Weights:
    Q, K, V = (a.astype(LONG) for a in m)
    return Q, K, V


def sizes(kind: str, m: Weights, x: Array, points: Array) -> Array:
    """What a score is a sum of, in absolute values, (m, n)."""
    q, k = abs(points) @ abs(m[0]).T, abs(x) @ abs(m[1]).T
    if kind == "L2":  # seen from a point amid the tokens, which has a query and a key of its own
        c = abs(x).max(0)
        q, k = q + c @ abs(m[0]).T + c @ abs(m[1]).T, k + c @ abs(m[1]).T
        return np.asarray(((q[:, None] + k[None]) ** 2).sum(-1))
    return np.asarray(q @ k.T)


def relative(kind: str, m: Weights, x: Array, points: Array, unit: float, w: Array | None = None) -> Array:
    """By which factor - 1 rounding may change a mass, (m, 1); kernels hold log w in the exponent."""
    n, d = x.shape
    top = sizes(kind, m, x, points).max(1, keepdims=True)
    log = 0.0 if w is None else abs(np.log(w[w > 0])).max()
    return np.asarray(np.expm1(SAFETY * unit * (n + d + 8 + (2 * d + 4) * top + log)))


def velocity_bound(
    kind: str, m: Weights, x: Array, w: Array, points: Array, unit: float, seen: Any = True
) -> Array:
    """relative * sum_j p_ij |V| |x_j|, at most the diameter of all values for averages; plus underflow."""
    m = long(m)
    p = masses(kind, scores(kind, m, x, points), w, np.broadcast_to(seen, (len(points), len(x))))
    values = abs(x) @ abs(m[2]).T
    return np.asarray(relative(kind, m, x, points, unit, w) * (p @ values) + floor(unit) * values.max(0))


def derivative_bound(
    kind: str, m: Weights, x: Array, w: Array, u: Array, unit: float, seen: Any = True
) -> Array:
    """relative * (sum_j p_ij |V| |u_j| + 4 D_i sum_j p_ij |V| |x_j|), D_i bounding derivatives of scores."""
    m = long(m)
    p = masses(kind, scores(kind, m, x, x), w, np.broadcast_to(seen, (len(x), len(x))))
    q, k, dq, dk = abs(x) @ abs(m[0]).T, abs(x) @ abs(m[1]).T, abs(u) @ abs(m[0]).T, abs(u) @ abs(m[1]).T
    if kind == "L2":
        steps = 2 * ((q[:, None] + k[None]) * (dq[:, None] + dk[None])).sum(-1)
    else:
        steps = q @ dk.T + dq @ k.T
    values, moved = abs(x) @ abs(m[2]).T, abs(u) @ abs(m[2]).T
    top = steps.max(1, keepdims=True)
    tiny = floor(unit) * (1 + top) * (values + moved).max(0)
    return np.asarray(relative(kind, m, x, x, unit, w) * (p @ moved + 4 * top * (p @ values)) + tiny)


def floor(unit: float) -> float:
    """Masses below this part of one may underflow: e^-87 in single, e^-708 in double precision."""
    return 1e-36 if unit > 1e-10 else 1e-300
