"""A diffeomorphism of a planar box as: shears, one monotone map, shears (our construction).

`otflow.papers.relu_flows` offers `polar` and `Polar`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from scipy.stats import qmc

from otflow.base import checks
from otflow.base.numbers import Array
from otflow.papers.relu_flows.pieces import PiecewiseFlow
from otflow.papers.relu_flows.shears import RESOLVED, SLOT, corners, joined, monotone, rearrangement, slabs
from otflow.papers.relu_flows.tables import Index

FINE = 12  # sub-squares along each side of a cell, whose images are measured
PROBES = 14  # log2 of the number of points at which the error is measured
STRETCH = 16  # rows have the height of cells, so that images should be about as tall as the box
THIN = 0.02  # slivers below this share of their cell are given to the widest one


@dataclass(frozen=True, eq=False)
class Polar:
    """The flow, and how it was made.

    ``jacobians`` (K, K) are the areas of the images of the cells over those of the cells, which are the
    Jacobians of the flow, off strips; ``slivers`` is the number of upright rectangles into which the cells
    were cut; ``l2`` is the root mean square distance of flow and map at 2^14 points.
    """

    flow: PiecewiseFlow
    jacobians: Array
    slivers: int
    l2: float

    def __repr__(self) -> str:
        K = len(self.jacobians)
        return f"Polar({K} x {K} cells, {self.slivers} slivers, {len(self.flow)} pieces, L2={self.l2:.4g})"


def polar(
    map: Callable[[Any], Any], mesh: int, *, box: Any = (0.0, 1.0), delta: float | None = None
) -> Polar:
    """Approximates a map of a planar box that keeps orientation: permute, compress, permute.

    The K x K cells are lined up along x_1 by a staircase; one monotone map of x_1, the gradient of a convex
    function, gives cell i the area that its image has in the piecewise linear interpolant of the map; cells,
    cut into slivers of the height of a cell, one for each row that the image meets, are permuted into these
    rows, in the order of the images. Each point ends within a distance of the order 1 / K of where the map
    takes it, and log det is the logarithm of the mean Jacobian of its cell, exactly, off strips of measure
    O(K delta). About 15 K^2 pieces.

    Args:
        map: points (n, 2) to points (n, 2), in numpy or torch.
        mesh: the number K of cells along each side.
        box: lower and upper corner, numbers or (2,); cells are squares if the box is.
        delta: width of the strips; if None, 256 roundings of the largest coordinate on the way. In strips
            points may end far away, so that thin ones are best; the inverse is of no use within them.

    >>> from otflow.papers.relu_flows import polar
    >>> turn = polar(lambda x: x[:, [1, 0]] * [-1.0, 1.0], 8)  # by a quarter
    >>> turn.l2 < 0.1, round(float(turn.jacobians.min()), 9)
    (True, 1.0)

    Reference: the factorisation into permutations and a compressible gradient of a convex function is
    announced in Geshkovski, Ruiz-Balet 2026, arXiv 2602.08606; the construction is ours.
    """
    K = checks.count(mesh, "mesh")
    low, high = corners(box, 2)
    size = (high - low) / K
    image = _triangles(checks.function(map, "map"), K, low, high)
    cut = _slivers(image, K, size)
    place = _packed(cut)
    wide = SLOT * float(np.ptp(np.concatenate([place, place + cut.width])))
    reach = np.abs([low, high]).max() + 2 * K * SLOT * K * size[0] + len(place) * SLOT * size[1]
    reach += (wide + size[1]) * (cut.row.max() + 1) + np.abs(place).max() + abs(cut.height)
    delta = 4 * RESOLVED * float(reach) if delta is None else checks.positive(delta, "delta")
    flow = _assembled(cut, place, K, low, size, wide, delta)
    jacobians = np.bincount(cut.cell, cut.width, K * K).reshape(K, K) / size[0]
    return Polar(flow, jacobians, len(cut.cell), _distance(flow, map, low, high))


class Triangles(NamedTuple):
    """Triangles of the fine mesh: cell, centroid before and after, area after; the lowest image."""

    cell: Index
    start: Array
    end: Array
    area: Array
    bottom: float


class Slivers(NamedTuple):
    """Parts of cells: which cell (i K + j), which row they go to, how wide, and around which x_1."""

    cell: Index
    row: Index
    width: Array
    centre: Array
    height: float


def _triangles(map: Callable[[Any], Any], K: int, low: Array, high: Array) -> Triangles:
    """The piecewise linear interpolant on a mesh of 2 (12 K)^2 triangles."""
    n = FINE * K
    axes = [np.linspace(low[i], high[i], n + 1) for i in (0, 1)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    y = _mapped(map, x.reshape(-1, 2)).reshape(x.shape)
    cell = (np.arange(n)[:, None] // FINE) * K + np.arange(n)[None] // FINE
    halves = []
    for p, q in (((1, 0), (1, 1)), ((1, 1), (0, 1))):  # each square is cut along its diagonal
        (x0, x1, x2), (y0, y1, y2) = ([z[i : n + i, j : n + j] for i, j in ((0, 0), p, q)] for z in (x, y))
        u, v = y1 - y0, y2 - y0
        area = (u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0]) / 2
        halves.append((cell, (x0 + x1 + x2) / 3, (y0 + y1 + y2) / 3, area))
    both = ([part.reshape(-1, *part.shape[2:]) for part in pair] for pair in zip(*halves, strict=True))
    cells, starts, ends, areas = (np.concatenate(pair) for pair in both)
    if bool((areas <= 0).any()):
        worst = starts[np.argmin(areas)]
        rule = f"a triangle near {worst.round(3).tolist()} is turned over or flat: orientation must be kept"
        checks.fail("map", f"{map!r:.40}", rule, "take a diffeomorphism with det > 0, or a finer mesh")
    tall = np.ptp(y[..., 1]) / (high[1] - low[1])
    if not 1 / STRETCH <= tall <= STRETCH:
        rule = f"the image must be as tall as the box, up to a factor {STRETCH}"
        checks.fail(
            "height of the image over that of the box",
            tall,
            rule,
            f"divide the second coordinate of map(x) by {tall:.3g}",
        )
    return Triangles(cells, starts, ends, areas, float(y[..., 1].min()))


def _mapped(map: Callable[[Any], Any], x: Array) -> Array:
    """The images, whether the map speaks numpy or torch."""
    try:
        out = map(x)
    except (TypeError, AttributeError):
        out = map(torch.from_numpy(x))
    y: Array = checks.tensor(out, "map(x)").detach().double().numpy()
    if y.shape != x.shape:
        checks.fail("map(x).shape", y.shape, f"{x.shape} is needed", "map points (n, 2) to points (n, 2)")
    return y


def _slivers(image: Triangles, K: int, size: Array) -> Slivers:
    """Cut each cell by the rows of height size_2 that its image meets."""
    row = np.floor((image.end[:, 1] - image.bottom) / size[1]).astype(np.int64)
    rows = int(row.max()) + 1
    mass, moment = (
        np.bincount(image.cell * rows + row, weight, K * K * rows).reshape(K * K, rows)
        for weight in (image.area, image.area * image.end[:, 0])
    )
    thin, area = mass < THIN * mass.sum(1, keepdims=True), mass.copy()
    area[np.arange(K * K), area.argmax(1)] += np.where(thin, area, 0.0).sum(1)
    area[thin] = 0.0
    cell, to = (index.astype(np.int64) for index in np.nonzero(area))
    return Slivers(cell, to, area[cell, to] / size[1], moment[cell, to] / mass[cell, to], image.bottom)


def _packed(cut: Slivers) -> Array:
    """Left ends of the slivers: in each row as near to their centres as they can be without overlap."""
    out = np.empty(len(cut.cell))
    for row in np.unique(cut.row):
        own = np.flatnonzero(cut.row == row)
        own = own[np.argsort(cut.centre[own], kind="stable")]
        before = np.cumsum(cut.width[own]) - cut.width[own]
        wanted = cut.centre[own] - cut.width[own] / 2 - before
        out[own] = isotonic_regression(wanted, weights=cut.width[own]).x + before
    return out


def _assembled(
    cut: Slivers, place: Array, K: int, low: Array, size: Array, wide: float, delta: float
) -> PiecewiseFlow:
    """Line up, compress, rearrange, and close the rows again."""
    i, j = np.divmod(cut.cell, K)
    G = SLOT * K * size[0]
    spread = slabs(1, low[1], size[1], K, G, delta, 2)
    order = np.lexsort((i, j)).astype(np.int64)  # along x_1 once rows are apart
    stretched, left = _stretch(cut, order, K, low, size, G)
    start = np.stack([left, low[1] + j * size[1]], -1)
    rows, far = int(cut.row.max()) + 1, np.asarray(wide * cut.row, dtype=np.float64)
    end = np.stack([place, cut.height + cut.row * size[1]], -1)
    box = np.stack([cut.width, np.full(len(i), size[1])], -1)
    moves = rearrangement(start, end, box, np.zeros(len(i)), far, delta=delta)
    close = slabs(1, cut.height, size[1], rows, wide, delta, 2).reversed
    return joined(spread, stretched, moves, close)


def _stretch(
    cut: Slivers, order: Index, K: int, low: Array, size: Array, G: float
) -> tuple[PiecewiseFlow, Array]:
    """The monotone map of x_1 that gives every cell its new width, and where slivers then begin."""
    width = np.bincount(cut.cell, cut.width, K * K).reshape(K, K).T  # by row j, then column i
    x = low[0] + size[0] * np.arange(K + 1) + G * np.arange(K)[:, None]
    span = np.cumsum(np.concatenate([np.zeros((K, 1)), width], 1), 1)
    apart = np.concatenate([[0.0], np.cumsum(span[:-1, -1] + G / 2)])  # rows keep a gap
    y = low[0] + span + apart[:, None]
    ranked = cut.width[order]
    before = np.cumsum(ranked) - ranked
    row = (cut.cell % K)[order]
    first = np.concatenate([[0.0], np.cumsum(span[:-1, -1])])
    left = np.empty(len(order))
    left[order] = low[0] + before - first[row] + apart[row]
    return monotone(x.ravel(), y.ravel(), axis=0, d=2), left


def _distance(flow: PiecewiseFlow, map: Callable[[Any], Any], low: Array, high: Array) -> float:
    x = low + (high - low) * qmc.Sobol(2, rng=np.random.default_rng(0)).random_base2(PROBES)
    apart = flow(x).numpy() - _mapped(map, x)
    return float(np.sqrt((apart**2).sum(-1).mean()))
