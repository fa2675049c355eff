"""Builders of piecewise ReLU flows: monotone maps, staircases, and permutations of cells (our constructions).

`otflow.papers.relu_flows` offers `monotone`, `shear`, `staircase` and `permutation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from otflow.base import checks
from otflow.base.numbers import Array
from otflow.papers.relu_flows.pieces import Piece, PiecewiseFlow
from otflow.papers.relu_flows.tables import Index

RESOLVED = 64 * float(np.finfo(np.float64).eps)  # so many roundings of its place must fit into a strip
SLOT = 2.0  # the distance of slots over the width of what lies in them


# --- in one coordinate ---------------------------------------------------------------------------------


def monotone(
    x: Any, y: Any, *, left: float | None = None, right: float | None = None, axis: int = 0, d: int = 1
) -> PiecewiseFlow:
    """The increasing piecewise linear map of one coordinate with x_k -> y_k, k = 0..K: K + 2 or K + 3 pieces.

    A translation by y_0 - x_0; a = -e, b = y_0, w = -log(left) e for the slope below x_0; then for k = 0, 1,
    .. a = e, b = -y_k, w = log(m_k / m_(k-1)) e, where m_k are the slopes between nodes (and m_(-1) = 1).

    Args:
        x, y: K + 1 increasing numbers each, K >= 1.
        left, right: slopes > 0 outside of the nodes; those of the first and last interval if None.
        axis, d: which coordinate of how many.

    >>> from otflow.papers.relu_flows import monotone
    >>> f = monotone([0.0, 1.0, 3.0], [0.0, 2.0, 3.0])
    >>> f([[0.0], [0.5], [1.0], [3.0], [5.0]]).flatten()
    tensor([0., 1., 2., 3., 4.], dtype=torch.float64)
    >>> len(f)
    4
    """
    x, y = _nodes(x, "x"), _nodes(y, "y")
    if len(x) != len(y):
        checks.fail(
            "len(x), len(y)",
            (len(x), len(y)),
            "as many images as nodes are needed",
            "pass x, y = zip(*pairs)",
        )
    e = _unit(axis, d)
    with np.errstate(over="ignore", under="ignore"):
        slopes, shift = np.diff(y) / np.diff(x), y[0] - x[0]
    if not bool(((slopes > 0) & np.isfinite(slopes)).all()):
        rule = "a slope leaves floating point"
        checks.fail(
            "(y[k + 1] - y[k]) / (x[k + 1] - x[k])",
            slopes.max(),
            rule,
            "pass x = np.linspace(low, high, n), nodes that are farther apart",
        )
    below = slopes[0] if left is None else checks.positive(left, "left")
    inner = slopes if right is None else np.append(slopes, checks.positive(right, "right"))
    kinks = np.diff(np.log(inner), prepend=0.0)
    pieces = [Piece(shift * e, 0 * e, 1.0), Piece(-math.log(below) * e, -e, y[0])]
    rest = Piece(kinks[:, None] * e, np.tile(e, (len(kinks), 1)), -y[: len(kinks)])
    return PiecewiseFlow(pieces).then(PiecewiseFlow(rest))


def shear(x: Any, y: Any, *, source: int = 0, target: int = 1, d: int = 2) -> PiecewiseFlow:
    """x_target += g(x_source), g piecewise linear with g(x_k) = y_k, k = 0..K, in K + 2 pieces; log det = 0.

    Outside of the nodes, g goes on with its first and last slope.

    Args:
        x: K + 1 increasing numbers; y: K + 1 numbers.
        source, target: two different coordinates of d.

    >>> from otflow.papers.relu_flows import shear
    >>> shear([0.0, 1.0, 2.0], [0.0, 1.0, 0.0])([[0.5, 0.0], [2.0, 5.0]]).tolist()
    [[0.5, 0.5], [2.0, 5.0]]
    """
    x, y = _nodes(x, "x"), _finite(y, "y")
    if len(x) != len(y):
        checks.fail(
            "len(x), len(y)",
            (len(x), len(y)),
            "as many values as nodes are needed",
            "pass x, y = zip(*pairs)",
        )
    a, w = _two(source, target, d)
    slopes = _ratio(np.diff(y), np.diff(x), "(y[k + 1] - y[k]) / (x[k + 1] - x[k])")
    pieces = [Piece(math.copysign(1.0, y[0]) * w, 0 * a, abs(y[0])), Piece(-slopes[0] * w, -a, x[0])]
    pieces += [Piece(k * w, a, -at) for k, at in zip(np.diff(slopes, prepend=0.0), x, strict=False)]
    return PiecewiseFlow(pieces)


def staircase(
    at: Any, heights: Any, *, delta: Any, source: int = 0, target: int = 1, d: int = 2
) -> PiecewiseFlow:
    """x_target += sum_k h_k ramp((x_source - c_k) / delta), ramp from 0 to 1 on [-1/2, 1/2]; log det = 0.

    Two pieces for each step, w = +-h_k / delta e_target; constant off strips of width delta.

    Args:
        at: positions c_k (n,), increasing.
        heights: (n,), added to coordinate ``target``; or (n, d), with 0 for coordinate ``source``.
        delta: widths of the strips, one number or (n,); strips may not overlap, and must be at least 64
            roundings of their position wide.
        source, target, d: as in `shear`.

    >>> from otflow.papers.relu_flows import staircase
    >>> staircase([0.0, 1.0], [2.0, -5.0], delta=1e-3)([[-1.0, 0.0], [0.5, 0.0], [2.0, 0.0]])[:, 1]
    tensor([ 0.,  2., -3.], dtype=torch.float64)
    """
    d = checks.count(d, "d")
    a, w = _two(source, target, d)
    c, h = _nodes(at, "at", least=1), _finite(heights, "heights", ndim=None)
    h = h[:, None] * w if h.ndim == 1 else h
    if h.shape != (len(c), d) or bool(h[:, source].any()):
        rule = f"({len(c)},) or ({len(c)}, {d}) with zeros for coordinate {source} is needed"
        checks.fail("heights.shape", h.shape, rule, "pass one height per step")
    low, high = _strips(c, delta)
    # Of strips as they are after rounding: heights are then exact.
    steep = _ratio(h, (high - low)[:, None], "heights / delta")
    w = np.stack([steep, -steep], 1).reshape(-1, d)
    return PiecewiseFlow(Piece(w, np.tile(a, (len(w), 1)), -np.stack([low, high], 1).ravel()))


def _ratio(up: Array, down: Array, name: str) -> Array:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        out: Array = up / down
    if not bool(np.isfinite(out).all()):
        checks.fail(
            name, out.max(), "a slope leaves floating point", "divide the heights by 10, or pass delta=1e-3"
        )
    return out


def _strips(c: Array, delta: Any) -> tuple[Array, Array]:
    """Both ends of each strip, once it is clear that float64 tells them apart."""
    width = _finite(delta, "delta", ndim=None)
    if width.shape not in ((), c.shape):
        checks.fail("delta.shape", width.shape, f"a number or {c.shape} is needed", "pass one per step")
    width = np.broadcast_to(width, c.shape)
    if bool((width <= 0).any()):
        checks.fail("min(delta)", width.min(), "a width > 0 is needed", "pass delta=1e-3, say")
    limit = RESOLVED * np.abs(c)
    if bool((width < limit).any()):
        k = int(np.argmax(limit - width))
        rule = f"float64 resolves no strip narrower than {limit[k]:.1e} at {c[k]:g} (64 roundings)"
        checks.fail("delta", width[k], rule, f"choose delta >= {limit[k]:.1e}, or fewer cells")
    low, high = c - width / 2, c + width / 2
    if bool((low[1:] < high[:-1]).any()):
        k = int(np.argmax(high[:-1] - low[1:]))
        rule = f"strips at {c[k]:g} and {c[k + 1]:g} overlap"
        checks.fail("delta", width[k], rule, f"pass delta={(c[1:] - c[:-1]).min() / 2:.3g}")
    return low, high


# --- permutations --------------------------------------------------------------------------------------


def permutation(perm: Any, *, delta: float = 1e-5, box: Any = (0.0, 1.0)) -> PiecewiseFlow:
    """Carries each of K_1 x .. x K_d equal cells of a box to another one, by shears alone: log det = 0.

    Slabs of x_2, .., x_d shift x_1, so that each cell has an interval of x_1 for itself; a staircase in x_1
    lifts it to a slot of x_2 for itself; a staircase in x_2 puts all other coordinates in place, x_1 up to a
    shift by the new slab; a staircase in x_1 sets x_2; the shifts are undone. With n cells in all that is
    6 n - 3 + 4 sum_{j >= 2} (K_j - 1) pieces, 6 K^2 + 4 K - 7 on a square. Exact off strips of total measure
    at most 2 sum_j (K_j - 1) delta / width_j. In strips points go to places between, and volume is still
    kept. Forward then inverse is the identity to 1e-14 off strips for every delta; in strips, where it is
    steep, to about 1e-12 / delta (measured, K = 8). Below 64 roundings of the largest coordinate, about
    2 K^2 widths of a row, delta is refused: 2e-13 for K = 8 on the unit square.

    Args:
        perm: whole numbers (K_1, .., K_d), d >= 2: cell c goes to cell perm[c], counted row by row as in
            ``numpy.ravel``; axis j of perm is coordinate j.
        delta: width of the strips.
        box: lower and upper corner, numbers or (d,).

    >>> from otflow.papers.relu_flows import permutation
    >>> import numpy as np
    >>> swap = permutation([[3, 1], [2, 0]])  # two corners of a square change places
    >>> swap([[0.2, 0.3], [0.7, 0.6], [0.2, 0.7]])
    tensor([[0.7000, 0.8000],
            [0.2000, 0.1000],
            [0.2000, 0.7000]], dtype=torch.float64)
    >>> len(swap), swap.log_det([0.2, 0.3]).item()
    (25, 0.0)

    Reference: permutations by shears are announced in Geshkovski, Ruiz-Balet 2026, arXiv 2602.08606; the
    construction is ours.
    """
    table, low, high = _permutation(perm, box)
    shape, d = np.array(table.shape), table.ndim
    size = (high - low) / shape
    cells = np.stack(np.unravel_index(np.arange(table.size), table.shape), -1)
    start, end = low + cells * size, low + cells[table.ravel()] * size
    G = SLOT * (high - low)[0]
    code = np.concatenate([[0.0], G * np.cumprod([1, *shape[1:-1]])])  # shift of x_1 for a slab of x_j
    delta = checks.positive(delta, "delta")
    if bool(((shape > 1) & (size <= delta)).any()):
        rule = f"cells of width {size[shape > 1].min():.3g} are lost in strips"
        checks.fail("delta", delta, rule, f"pass delta={size[shape > 1].min() / 10:.3g}")
    spread = [slabs(j, low[j], size[j], shape[j], code[j], delta, d) for j in range(1, d)]
    moves = rearrangement(start, end, size, cells @ code, cells[table.ravel()] @ code, delta=delta)
    return joined(*spread, moves, *(flow.reversed for flow in reversed(spread)))


def rearrangement(
    start: Array, end: Array, size: Array, shift: Array, shift_end: Array, *, delta: float
) -> PiecewiseFlow:
    """Cells [start, start + size] with x_1 shifted go to [end, end + size] with x_1 shifted otherwise.

    After the shift, and also at the end, cells must have intervals of x_1 of their own (they may touch).

    Args:
        start, end: lower corners (n, d); size: (d,), or (n, d) with equal x_2; shift, shift_end: (n,).
        delta: width of the strips where intervals touch.
    """
    n, d = start.shape
    size = np.broadcast_to(size, (n, d))
    first, last = start[:, 0] + shift, end[:, 0] + shift_end
    source, target = np.argsort(first, kind="stable"), np.argsort(last, kind="stable")
    H = SLOT * size[0, 1]
    slot = np.empty(n)
    slot[source] = start[:, 1].min() + H * (1 + np.arange(n))
    across = end - start
    across[:, 0] += shift_end - shift
    across[:, 1] = 0.0
    up, down = np.zeros((n, d)), np.zeros((n, d))
    up[:, 1], down[:, 1] = slot - start[:, 1], end[:, 1] - slot
    lift = _levels(first[source], size[source, 0], up[source], 0, delta)
    move = _levels(slot[source], size[source, 1], across[source], 1, delta)
    drop = _levels(last[target], size[target, 0], down[target], 0, delta)
    return joined(lift, move, drop)


def _levels(low: Array, width: Array, values: Array, source: int, delta: float) -> PiecewiseFlow:
    """x += values[k] where x_source is in [low_k, low_k + width_k]: a translation and a staircase.

    Strips are delta wide where intervals touch, and as wide as half of the gap where there is one.
    """
    d = values.shape[1]
    e = _unit(source, d)
    whole = PiecewiseFlow([Piece(values[0], 0 * e, 1.0)])
    if len(low) == 1:
        return whole
    gap = low[1:] - (low[:-1] + width[:-1])
    if bool((np.minimum(width[1:], width[:-1]) <= delta).any()):
        rule = f"cells of width {width.min():.3g} are lost in strips"
        checks.fail("delta", delta, rule, f"pass delta={width.min() / 10:.3g}")
    middle = low[1:] - gap / 2
    strips, steps = np.maximum(gap / 2, delta), np.diff(values, axis=0)
    return whole.then(staircase(middle, steps, delta=strips, source=source, target=1 - source, d=d))


def slabs(j: int, low: float, size: float, K: int, height: float, delta: float, d: int) -> PiecewiseFlow:
    """x_1 += height for each of K slabs of x_j; with one slab, nothing."""
    if K == 1:
        return PiecewiseFlow.identity(d)
    edges = low + size * np.arange(1, K)
    return staircase(edges, np.full(K - 1, height), delta=delta, source=j, target=0, d=d)


def joined(first: PiecewiseFlow, *others: PiecewiseFlow) -> PiecewiseFlow:
    """One flow after another."""
    return reduce(PiecewiseFlow.then, others, first)


# --- what comes in -------------------------------------------------------------------------------------


def _permutation(perm: Any, box: Any) -> tuple[Index, Array, Array]:
    numbers = checks.tensor(perm, "perm").detach().numpy()
    table = numbers.astype(np.int64)
    if table.ndim < 2 or table.size < 1:
        rule = "one whole number per cell, (K_1, .., K_d) with d >= 2, is needed"
        checks.fail(
            "perm.shape",
            table.shape,
            rule,
            "pass perm.reshape(K, K); on a line the order of cells never changes",
        )
    if bool((table != numbers).any()) or not np.array_equal(np.sort(table.ravel()), np.arange(table.size)):
        rule = f"each of 0..{table.size - 1} must come once"
        checks.fail("perm", f"{numbers.ravel().tolist()!s:.60}", rule, "use rng.permutation(n).reshape(K, K)")
    return table, *corners(box, table.ndim)


def corners(box: Any, d: int) -> tuple[Array, Array]:
    """Lower and upper corner (d,) of a box."""
    if not isinstance(box, Sequence | np.ndarray) or isinstance(box, str) or len(box) != 2:
        checks.fail("box", f"{box!r:.60}", "(low, high) is needed", "pass two corners, box=(0.0, 1.0), say")
    low, high = (_finite(corner, f"box[{i}]", ndim=None) for i, corner in enumerate(box))
    with np.errstate(over="ignore"):
        fits = low.shape in ((), (d,)) and high.shape in ((), (d,)) and bool(np.isfinite(high - low).all())
    if not fits or bool((low >= high).any()):
        checks.fail(
            "box",
            f"{box!r:.60}",
            f"corners low < high, numbers or ({d},), are needed",
            "pass box=(0.0, 1.0), say",
        )
    return np.broadcast_to(low, d), np.broadcast_to(high, d)


def _finite(values: Any, name: str, ndim: int | None = 1) -> Array:
    out: Array = checks.tensor(values, name).detach().cpu().double().numpy()
    if ndim is not None and out.ndim != ndim:
        checks.fail(f"{name}.shape", out.shape, "one axis is needed", f"flatten {name}")
    return out


def _nodes(values: Any, name: str, least: int = 2) -> Array:
    out = _finite(values, name)
    if len(out) < least:
        checks.fail(
            f"len({name})", len(out), f"at least {least} numbers are needed", f"pass {name}=[0.0, 1.0], say"
        )
    with np.errstate(over="ignore"):
        gaps = np.diff(out)
    if bool((gaps <= 0).any()):
        k = int(np.argmin(gaps))
        which, pair = f"{name}[{k}], {name}[{k + 1}]", f"{out[k]:g}, {out[k + 1]:g}"
        checks.fail(which, pair, f"{name} must increase", "sort it, drop repetitions")
    if bool(np.isinf(gaps).any()):
        checks.fail(f"max({name}) - min({name})", math.inf, "it leaves floating point", f"scale {name}")
    return out


def _unit(axis: int, d: int) -> Array:
    d = checks.count(d, "d")
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not 0 <= axis < d:
        rule = f"a coordinate in 0..{d - 1} is needed"
        checks.fail(
            "axis",
            repr(axis),
            rule,
            f"pass axis={d - 1}, or d={int(axis) + 1 if isinstance(axis, int) and axis >= d else d}",
        )
    return np.asarray(np.eye(d)[axis])


def _two(source: int, target: int, d: int) -> tuple[Array, Array]:
    a, w = _unit(source, d), _unit(target, d)
    if source == target:
        checks.fail(
            "target", target, f"it must differ from source = {source}", f"pass target={int(source == 0)}"
        )
    return a, w
