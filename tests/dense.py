"""All velocities again, dense and in numpy, written from their definitions and sharing no code with otflow.

One cloud at a time: ``x`` (n, d), ``w`` (n,), velocities at ``points`` (m, d). ``seen`` (m, n) says which
tokens a point sees; None means all. `over_batch` loops over leading axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

Array = np.ndarray


def scores(Q: Array, K: Array, points: Array, x: Array) -> Array:
    """Ax.y = <Qx, Ky>."""
    return (points @ Q.T) @ (x @ K.T).T


def visible(label: Array, label_of_points: Array | None = None) -> Array:
    """Token j is seen by point i if its label is not larger; ties are seen."""
    of_points = label if label_of_points is None else label_of_points
    return label[None, :] <= of_points[:, None]


def averages(logits: Array, values: Array, w: Array, seen: Array | None) -> Array:
    """sum_j w_j e^(s_ij) v_j / sum_j w_j e^(s_ij) over the seen tokens, 0 if there is none."""
    p = np.broadcast_to(w, logits.shape) * (1.0 if seen is None else seen)
    top = np.max(np.where(p > 0, logits, -np.inf), axis=1, keepdims=True)
    p = np.where(p > 0, p * np.exp(np.where(p > 0, logits - np.where(np.isfinite(top), top, 0), 0)), 0)
    z = p.sum(1, keepdims=True)
    return (p / np.where(z > 0, z, 1)) @ values


def softmax(Q: Array, K: Array, V: Array, x: Array, w: Array, points: Array, seen: Any = None) -> Array:
    return averages(scores(Q, K, points, x), x @ V.T, w, seen)


def l2(Q: Array, K: Array, V: Array, x: Array, w: Array, points: Array, seen: Any = None) -> Array:
    gap = (points @ Q.T)[:, None, :] - (x @ K.T)[None, :, :]
    return averages(-(gap**2).sum(-1), x @ V.T, w, seen)


def sigmoid(Q: Array, K: Array, V: Array, x: Array, w: Array, points: Array, seen: Any = None) -> Array:
    s = scores(Q, K, points, x)
    gate = np.where(s > 0, 1 / (1 + np.exp(-np.abs(s))), np.exp(-np.abs(s)) / (1 + np.exp(-np.abs(s))))
    return (gate * w * (1.0 if seen is None else seen)) @ (x @ V.T)


def unnormalised(Q: Array, K: Array, V: Array, x: Array, w: Array, points: Array, seen: Any = None) -> Array:
    return (np.exp(scores(Q, K, points, x)) * w * (1.0 if seen is None else seen)) @ (x @ V.T)


def log_sum_exp(a: Array, axis: int) -> Array:
    top = a.max(axis, keepdims=True)
    return np.log(np.exp(a - top).sum(axis)) + np.squeeze(top, axis)


def sinkhorn_potential(s: Array, w: Array, sweeps: int = 200_000) -> Array:
    """g such that e^(s_ij + f_i + g_j) is bistochastic against w.

    Plain Sinkhorn until it stands still, which is not yet the solution where it creeps; then Newton steps
    by least squares on the dense Jacobian.
    """
    keep = w > 0
    logw, s = np.log(w[keep]), s[np.ix_(keep, keep)]
    g = np.zeros(keep.sum())
    for _ in range(sweeps):
        f = -log_sum_exp(s + g + logw, 1)
        new = -log_sum_exp(s + (f + logw)[:, None], 0)
        new -= new.mean()
        moved, g = np.abs(new - g).max(), new
        if moved < 4e-15 * max(1.0, np.abs(g).max()):
            break
    for _ in range(3):
        a = s + g + logw
        f = -log_sum_exp(a, 1)
        c = s + (f + logw)[:, None]
        image = -log_sum_exp(c, 0)
        rows, columns = np.exp(a + f[:, None]), np.exp(c + image)
        step = np.linalg.lstsq(np.eye(len(g)) - columns.T @ rows, image - g, rcond=1e-13)[0]
        g = g + step - step.mean()
    out = np.full(len(w), -np.inf)
    out[keep] = g
    return out


def sinkhorn(
    Q: Array, K: Array, V: Array, x: Array, w: Array, points: Array, seen: Any = None, eps: float = 1.0
) -> Array:
    g = sinkhorn_potential(scores(Q, K, x, x) / eps, w)
    keep = w > 0
    logits = scores(Q, K, points, x[keep]) / eps + g[keep]
    return averages(logits, x[keep] @ V.T, w[keep], None) / eps


def sinkhorn_plan(Q: Array, K: Array, x: Array, w: Array, eps: float = 1.0) -> Array:
    """w_i k_ij w_j for tokens of positive weight, with both marginals w."""
    s = scores(Q, K, x, x) / eps
    a = s + sinkhorn_potential(s, w) + np.log(w)
    return w[:, None] * np.exp(a - log_sum_exp(a, 1)[:, None])


def perceptron(W: Array, U: Array, b: Array, act: Callable[[Array], Array], points: Array) -> Array:
    return act(points @ U.T + b) @ W.T


VELOCITIES: dict[str, Callable[..., Array]] = {
    "softmax": softmax,
    "l2": l2,
    "sigmoid": sigmoid,
    "unnormalised": unnormalised,
    "sinkhorn": sinkhorn,
}


def multihead(heads: list[tuple[Any, ...]], x: Array, w: Array, points: Array, seen: Any = None) -> Array:
    """sum_h W_h Gamma_h, for heads (kind, Q, K, V, W, causal)."""
    total = np.zeros_like(points)
    for kind, Q, K, V, W, causal in heads:
        total = total + VELOCITIES[kind](Q, K, V, x, w, points, seen if causal else None) @ W.T
    return total


def over_batch(f: Callable[..., Array], *arrays: tuple[Array, int]) -> Array:
    """f on every member of a batch; each array comes with the number of its own axes."""
    batch = np.broadcast_shapes(*(a.shape[: a.ndim - own] for a, own in arrays))
    full = [np.broadcast_to(a, batch + a.shape[a.ndim - own :]) for a, own in arrays]
    members = [f(*(a[index] for a in full)) for index in np.ndindex(*batch)]
    return np.stack(members).reshape(*batch, *members[0].shape)


def exact(kind: str, Q: Array, K: Array, V: Array, x: Array, w: Array, points: Array) -> Array:
    """Softmax, L2, sigmoid or unnormalised attention with 60 digits, rounded once at the end."""
    with mpmath.workdps(60):
        mp = [[[mpmath.mpf(float(c)) for c in row] for row in a] for a in (Q, K, V, x, points)]
        mQ, mK, mV, mx, mpoints = mp

        def apply(m: list[Any], y: list[Any]) -> list[Any]:
            return [mpmath.fsum(a * b for a, b in zip(row, y, strict=True)) for row in m]

        keys, values = [apply(mK, y) for y in mx], [apply(mV, y) for y in mx]
        out = []
        for point in mpoints:
            q = apply(mQ, point)
            if kind == "l2":
                s = [-mpmath.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True)) for k in keys]
            else:
                s = [mpmath.fsum(a * b for a, b in zip(q, k, strict=True)) for k in keys]
            gate = [1 / (1 + mpmath.exp(-a)) if kind == "sigmoid" else mpmath.exp(a) for a in s]
            p = [mpmath.mpf(float(c)) * g for c, g in zip(w, gate, strict=True)]
            z = mpmath.fsum(p) if kind in ("softmax", "l2") else mpmath.mpf(1)
            out.append(
                [
                    float(mpmath.fsum(a * v[e] for a, v in zip(p, values, strict=True)) / z)
                    for e in range(len(mV))
                ]
            )
        return np.array(out)
