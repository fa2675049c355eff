"""Fields: attention against its definition, derivatives against complex steps, sums, layers, perceptrons."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz import attention_oracle as oracle
from tests.fuzz import draws
from tests.fuzz.clouds import Cloud
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family

KINDS = ("Softmax", "L2", "Sigmoid", "Unnormalised")


def matrices(rng: Rng, d: int, dtype: Any) -> oracle.Weights:
    k = int(rng.integers(1, d + 1))
    size = 1.0 if draws.chance(rng, 0.7) else float(10 ** rng.uniform(-6, 3))
    Q, K, V = draws.matrix(rng, k, d, size=size), draws.matrix(rng, k, d), draws.matrix(rng, d, d)
    return Q.astype(dtype), K.astype(dtype), V.astype(dtype)


def attention(rng: Rng, kind: str, **options: Any) -> tuple[Cloud, oracle.Weights, str, dict[str, Any]]:
    """A cloud, weights, the code of a field that is causal if there are labels, and all numbers."""
    causal = draws.chance(rng, 0.4)
    size = draws.scale(rng, -12, 3 if kind != "Unnormalised" else 0.3)
    cloud = Cloud(rng, label=causal, size=size, **options)
    m = matrices(rng, cloud.d, cloud.dtype)
    code = f"of.{kind}Attention(Q, K, V{', causal=True' if causal else ''})"
    return cloud, m, code, {"Q": m[0], "K": m[1], "V": m[2], **cloud.values}


def plain(rng: Rng, kind: str) -> Case:
    cloud, m, field, values = attention(rng, kind)
    seen, unit = cloud.seen(), cloud.unit
    return Case(
        f"{field}(0.0, {cloud.code})[0]",
        values,
        lambda: cloud.each(lambda x, w: oracle.velocity(kind, m, x, w, x, seen)),
        lambda: cloud.each(lambda x, w: oracle.velocity_bound(kind, m, x, w, x, unit, seen)),
    )


@family
def softmax_attention(rng: Rng) -> Case:
    return plain(rng, "Softmax")


@family
def l2_attention(rng: Rng) -> Case:
    return plain(rng, "L2")


@family
def sigmoid_attention(rng: Rng) -> Case:
    return plain(rng, "Sigmoid")


@family
def unnormalised_attention(rng: Rng) -> Case:
    return plain(rng, "Unnormalised")


@family
def attention_at_other_points(rng: Rng) -> Case:
    kind = str(draws.pick(rng, KINDS))
    cloud, m, field, values = attention(rng, kind, batch=())
    points = draws.cloud(rng, (draws.size(rng), cloud.d), float(abs(cloud.x).max() or 1)).astype(cloud.dtype)
    seen: Any = True
    label = ""
    if cloud.label is not None:
        of_points = draws.labels(rng, len(points))
        values["of_points"], label = of_points, ", label=of_points"
        seen = cloud.label[None, :] <= of_points[:, None]
    y, unit = points.astype(LONG), cloud.unit
    return Case(
        f"{field}.at(0.0, {cloud.code}, points{label})",
        {**values, "points": points},
        lambda: cloud.each(lambda x, w: oracle.velocity(kind, m, x, w, y, seen)),
        lambda: cloud.each(lambda x, w: oracle.velocity_bound(kind, m, x, w, y, unit, seen)),
    )


@family
def attention_jvp(rng: Rng) -> Case:
    kind = str(draws.pick(rng, KINDS))
    cloud, m, field, values = attention(rng, kind, batch=())
    u = (rng.standard_normal(cloud.x.shape) * draws.scale(rng)).astype(cloud.dtype)
    direction, seen, unit = u.astype(LONG), cloud.seen(), cloud.unit
    return Case(
        f"{field}.jvp(0.0, {cloud.code}, of.Tangent([torch.from_numpy(u)]))[0]",
        {**values, "u": u},
        lambda: cloud.each(lambda x, w: oracle.jacobian_vector(kind, m, x, w, direction, seen)),
        lambda: cloud.each(lambda x, w: oracle.derivative_bound(kind, m, x, w, direction, unit, seen)),
    )


@family
def attention_vjp(rng: Rng) -> Case:
    """Against the dense Jacobian, column by column."""
    kind = str(draws.pick(rng, KINDS))
    cloud, m, field, values = attention(rng, kind, batch=())
    c = rng.standard_normal(cloud.x.shape).astype(cloud.dtype)
    seen, unit = cloud.seen(), cloud.unit

    def transposed(column: Any) -> Array:
        x, w = cloud.x.astype(LONG), cloud.mass
        units = np.eye(x.size, dtype=LONG).reshape(-1, *x.shape)
        return np.stack([column(x, w, e) for e in units]).reshape(x.shape)

    return Case(
        f"{field}.vjp(0.0, {cloud.code}, of.Tangent([torch.from_numpy(c)]))[0]",
        {**values, "c": c},
        lambda: transposed(lambda x, w, e: (c * oracle.jacobian_vector(kind, m, x, w, e, seen)).sum()),
        lambda: transposed(
            lambda x, w, e: (abs(c) * oracle.derivative_bound(kind, m, x, w, e, unit, seen)).sum()
        ),
    )


@family
def attention_as_a_batch(rng: Rng) -> Case:
    """A member of a batch is what it is alone, for weights with batch axes too."""
    kind = str(draws.pick(rng, KINDS))
    cloud = Cloud(rng, batch=draws.pick(rng, ((1,), (3,), (2, 3))), size=draws.scale(rng, -6, 0))
    shape = (*cloud.batch, cloud.d, cloud.d)
    Q, K, V = (draws.matrix(rng, *shape).astype(cloud.dtype) for _ in range(3))

    def each(f: Any) -> Array:
        parts = [
            f((Q[k], K[k], V[k]), cloud.x[k].astype(LONG), cloud.mass[k]) for k in draws.members(cloud.batch)
        ]
        return draws.stacked(cloud.batch, parts)

    return Case(
        f"of.{kind}Attention(Q, K, V)(0.0, {cloud.code})[0]",
        {"Q": Q, "K": K, "V": V, **cloud.values},
        lambda: each(lambda m, x, w: oracle.velocity(kind, m, x, w, x)),
        lambda: each(lambda m, x, w: oracle.velocity_bound(kind, m, x, w, x, cloud.unit)),
    )


@family
def multihead(rng: Rng) -> Case:
    """Heads of different kinds, widths and masks, mixed by matrices and in layers of time."""
    label = draws.chance(rng, 0.5)
    cloud = Cloud(rng, label=label, size=draws.scale(rng, -6, 0))
    values, heads, parts = dict(cloud.values), [], []
    for h in range(int(rng.integers(1, 4))):
        kind, causal = str(draws.pick(rng, KINDS)), label and draws.chance(rng, 0.5)
        k, e = (int(rng.integers(1, cloud.d + 1)) for _ in range(2))
        shapes = ((k, cloud.d), (k, cloud.d), (e, cloud.d), (cloud.d, e))
        Q, K, V, W = (draws.matrix(rng, *shape).astype(cloud.dtype) for shape in shapes)
        values |= {f"Q{h}": Q, f"K{h}": K, f"V{h}": V, f"W{h}": W}
        heads.append(f"of.{kind}Attention(Q{h}, K{h}, V{h}{', causal=True' if causal else ''})")
        parts.append((kind, (Q, K, V), W.astype(LONG), cloud.seen() if causal else True))
    mix = [f"of.Layers(np.stack([0 * W{h}, W{h}]))" if h == 0 else f"W{h}" for h in range(len(heads))]
    code = f"of.MultiHead([{', '.join(heads)}], mix=[{', '.join(mix)}])(1.5, {cloud.code})[0]"

    def total(f: Any, absolute: Any) -> Array:
        return cloud.each(
            lambda x, w: sum(f(kind, m, x, w, seen) @ absolute(W).T for kind, m, W, seen in parts)
        )

    def rounded(kind: str, m: oracle.Weights, x: Array, w: Array, seen: Any) -> Array:
        own = oracle.velocity_bound(kind, m, x, w, x, cloud.unit, seen)
        return own + 16 * oracle.SAFETY * cloud.unit * abs(oracle.velocity(kind, m, x, w, x, seen))

    return Case(
        code,
        values,
        lambda: total(lambda kind, m, x, w, seen: oracle.velocity(kind, m, x, w, x, seen), np.asarray),
        lambda: total(rounded, abs),
    )


@family
def perceptron_plus_attention(rng: Rng) -> Case:
    """A block of a Transformer: fields add, and scale by numbers."""
    cloud = Cloud(rng, size=draws.scale(rng, -6, 0))
    m, c = matrices(rng, cloud.d, cloud.dtype), float(rng.normal())
    width = int(rng.integers(1, 6))
    W, U = draws.matrix(rng, cloud.d, width), draws.matrix(rng, width, cloud.d)
    b = rng.standard_normal(width)
    W, U, b = (a.astype(cloud.dtype) for a in (W, U, b))
    name, act = draws.pick(rng, (("torch.relu", lambda z: np.maximum(z, 0)), ("torch.tanh", np.tanh)))

    def block(x: Array, w: Array) -> Array:
        return oracle.velocity("Softmax", m, x, w, x) + c * act(x @ U.T + b.astype(LONG)) @ W.T

    def rounded(x: Array, w: Array) -> Array:
        inner = (abs(x) @ abs(U).T + abs(b)) @ abs(W).T
        own = oracle.velocity_bound("Softmax", m, x, w, x, cloud.unit)
        size = abs(oracle.velocity("Softmax", m, x, w, x)) + abs(c) * inner
        return own + oracle.SAFETY * (cloud.d + width + 8) * cloud.unit * size

    return Case(
        f"(of.SoftmaxAttention(Q, K, V) + {c!r} * of.Perceptron(W, U, b, {name}))(0.0, {cloud.code})[0]",
        {"Q": m[0], "K": m[1], "V": m[2], "W": W, "U": U, "b": b, **cloud.values},
        lambda: cloud.each(block),
        lambda: cloud.each(rounded),
    )


@family
def sinkhorn_attention(rng: Rng) -> Case:
    """Against dense Sinkhorn iterations in extended precision, where sweeps contract."""
    cloud = Cloud(rng, batch=draws.pick(rng, ((), (2,))), size=draws.scale(rng, -6, 0))
    m, eps = matrices(rng, cloud.d, cloud.dtype), float(10 ** rng.uniform(-0.5, 3))
    m = (m[0] / max(1.0, abs(m[0]).max()), m[1], m[2])

    def scaled(x: Array, w: Array) -> tuple[Array, Array]:
        Q, K, V = oracle.long(m)
        keep = w > 0
        s, g = (x @ Q.T) @ (x[keep] @ K.T).T / LONG(eps), np.zeros(keep.sum(), LONG)
        for _ in range(20_000):
            f = -log_sum(s[keep] + g + np.log(w[keep]), 1)
            new = -log_sum(s[keep] + (f + np.log(w[keep]))[:, None], 0)
            new -= new.mean()
            moved, g = abs(new - g).max(), new
            if moved < 1e-17:
                break
        p = np.exp(s + g + np.log(w[keep]) - log_sum(s + g + np.log(w[keep]), 1)[:, None])
        values = x[keep] @ V.T / LONG(eps)
        own = 1e-9 + oracle.relative("Softmax", m, x, x, cloud.unit) / min(1.0, eps)
        contraction = second_singular_value(w[keep] * 1.0, p[keep])
        return p @ values, own * 16 / (1 - contraction) * np.broadcast_to(abs(values).max(0), x.shape)

    return Case(
        f"of.SinkhornAttention(Q, K, V, eps={eps!r})(0.0, {cloud.code})[0]",
        {"Q": m[0], "K": m[1], "V": m[2], **cloud.values},
        lambda: cloud.each(lambda x, w: scaled(x, w)[0]),
        lambda: cloud.each(lambda x, w: scaled(x, w)[1]),
    )


def log_sum(a: Array, axis: int) -> Array:
    top = a.max(axis, keepdims=True)
    return np.asarray(np.log(np.exp(a - top).sum(axis)) + np.squeeze(top, axis))


def second_singular_value(w: Array, p: Array) -> float:
    """By which a sweep of Sinkhorn's iteration contracts."""
    root = np.sqrt(w.astype(float))
    values = np.linalg.svd(root[:, None] * p.astype(float) / root, compute_uv=False)
    return float(min(values[1] ** 2, 1 - 1e-12)) if len(values) > 1 else 0.0
