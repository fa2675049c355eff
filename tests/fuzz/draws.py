"""What families draw from: clouds, weights, matrices and layouts, ordinary and hostile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Rng = np.random.Generator
LONG = np.longdouble

SIZES = (1, 1, 2, 2, 3, 4, 6, 9)
DIMENSIONS = (1, 1, 2, 2, 3, 5)
BATCHES: tuple[tuple[int, ...], ...] = ((), (), (), (), (1,), (2,), (2, 3))


def pick(rng: Rng, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def chance(rng: Rng, p: float) -> bool:
    return bool(rng.random() < p)


def size(rng: Rng) -> int:
    return int(pick(rng, SIZES))


def dimension(rng: Rng) -> int:
    return int(pick(rng, DIMENSIONS))


def batch(rng: Rng) -> tuple[int, ...]:
    return tuple(pick(rng, BATCHES))


def precision(rng: Rng) -> type:
    return np.float32 if chance(rng, 0.25) else np.float64


def scale(rng: Rng, low: float = -12, high: float = 12) -> float:
    """Mostly 1, sometimes any power of ten in the range."""
    return 1.0 if chance(rng, 0.6) else float(10 ** rng.uniform(low, high))


def wide_scale(rng: Rng, dtype: Any) -> float:
    """A scale at which differences of nearby points are ordinary numbers, though their squares are not."""
    most = 28 if dtype == np.float32 else 280
    return scale(rng, -most, most) if chance(rng, 0.5) else scale(rng)


def unit(dtype: Any) -> float:
    """Half the distance from 1 to the next number."""
    return float(np.finfo(dtype).eps) / 2


def cloud(rng: Rng, shape: tuple[int, ...], size: float = 1.0) -> Array:
    """Points (*batch, n, d): spread, repeated, tight clusters, lattice, line, far away or all 0."""
    x = rng.standard_normal(shape)
    n = shape[-2]
    kind = pick(rng, ("spread",) * 4 + ("repeated", "clusters", "lattice", "line", "far", "zero"))
    if kind == "repeated":
        x = np.take(x, rng.integers(n, size=n), axis=-2)
    elif kind == "clusters":
        centres = np.take(x, rng.integers(min(2, n), size=n), axis=-2)
        x = centres + 10.0 ** rng.uniform(-9, -2) * rng.standard_normal(shape)
    elif kind == "lattice":
        x = np.round(x)
    elif kind == "line":
        x = x[..., :1] * rng.standard_normal(shape[-1])
    elif kind == "far":
        x = x + 10.0 ** rng.uniform(0, 3)
    elif kind == "zero":
        x = np.zeros(shape)
    return size * x


def weights(rng: Rng, shape: tuple[int, ...], *, zeros: bool = True) -> Array | None:
    """Masses (*batch, n) that sum to one, or None for equal ones; some may be 0 or next to nothing."""
    kind = pick(rng, ("none", "none", "even", "any", "zeros", "tiny", "skewed"))
    if kind == "none":
        return None
    w = rng.uniform(0.1, 1.0, shape) if kind != "even" else np.ones(shape)
    n = shape[-1]
    if kind == "zeros" and zeros and n > 1:
        w[..., rng.permutation(n)[: rng.integers(1, n)]] = 0.0
    elif kind == "tiny" and n > 1:
        w[..., rng.integers(n)] = 10.0 ** rng.uniform(-30, -8)
    elif kind == "skewed":
        w = w ** rng.integers(1, 20)
    return np.asarray(w / w.sum(-1, keepdims=True))


def known(w: Array | None, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
    """The weights in extended precision, as they are in that dtype, normalised as otflow promises."""
    if w is None:
        return np.full(shape, LONG(1) / shape[-1])
    exact = np.broadcast_to(w.astype(dtype).astype(LONG), shape)
    return np.asarray(exact / exact.sum(-1, keepdims=True))


def matrix(rng: Rng, *shape: int, size: float = 0.7) -> Array:
    """Any, of rank one, diagonal, the identity, antisymmetric or zero."""
    a = rng.standard_normal(shape)
    kind = pick(rng, ("any",) * 5 + ("rank one", "diagonal", "identity", "skew", "zero"))
    square = shape[-1] == shape[-2]
    if kind == "rank one":
        a = a[..., :1] * a[..., :1, :]
    elif kind == "diagonal":
        a = a * np.eye(*shape[-2:])
    elif kind == "identity":
        a = np.broadcast_to(np.eye(*shape[-2:]), shape).copy()
    elif kind == "skew" and square:
        a = a - np.swapaxes(a, -1, -2)
    elif kind == "zero":
        a = np.zeros(shape)
    return size * a


def labels(rng: Rng, n: int) -> Array:
    """Out of order, and often with ties."""
    return rng.permutation(n) / n if chance(rng, 0.5) else rng.integers(0, 3, n) / 2


LAYOUTS = (
    *("{0}",) * 6,
    "np.asfortranarray({0})",
    "{0}[..., ::-1][..., ::-1]",
    "np.repeat({0}, 2, axis=0)[::2]",
    "torch.from_numpy({0})",
    "torch.from_numpy({0}).mT.contiguous().mT",
    "{0}.astype('>f{1}')",
    "{0}.tolist()",
)


def laid_out(rng: Rng, name: str, a: Array) -> str:
    """Code for the same numbers in another layout or container."""
    usable = [one for one in LAYOUTS if a.ndim >= 2 or ".mT" not in one]
    if a.dtype == np.float64 and a.size and (a == np.round(a)).all() and abs(a).max() < 2**31:
        usable += ["{0}.astype(int)", "{0}.astype(np.int32).tolist()"]  # integers become double precision
    if a.dtype != np.float64:
        usable = [one for one in usable if "tolist" not in one]  # a list has no precision
    return str(pick(rng, usable)).format(name, a.dtype.itemsize)


def spd(rng: Rng, *shape: int, condition: float = 1e3) -> Array:
    """Symmetric and positive definite (*batch, d, d)."""
    q, _ = np.linalg.qr(rng.standard_normal(shape))
    values = condition ** rng.uniform(-0.5, 0.5, shape[:-1])
    s = (q * values[..., None, :]) @ np.swapaxes(q, -1, -2)
    return np.asarray((s + np.swapaxes(s, -1, -2)) / 2)


def symmetric(rng: Rng, d: int, size: float = 0.5) -> Array:
    a = matrix(rng, d, d, size=size)
    return np.asarray((a + a.T) / 2)


def members(batch: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(np.ndindex(*batch))


def stacked(batch: tuple[int, ...], parts: list[Array]) -> Array:
    """One result for each member, as the batch would give it."""
    return np.stack(parts).reshape(batch + np.shape(parts[0]))
