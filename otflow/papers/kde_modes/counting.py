"""Counting the local maxima of sums of bumps, to rounding and in linear time.

The derivative F(s) = sum_i K(s - u_i) of a sum of bumps is needed where it changes sign. The line is cut
into boxes of one bandwidth. A token acts through the Chebyshev moments sum_i T_a(z_i) of its box, z its place
there, so that the Chebyshev coefficients of F on a box are sums of moments of the boxes around it times fixed
matrices: a fast Gauss transform (Greengard and Strain 1991) with Chebyshev instead of Hermite series. Twenty
coefficients and twelve boxes to either side leave relative errors of about 1e-16.

F has no zero in a box if |c_0| > sum_{k>0} |c_k|, and is monotone, with one zero at most, if
|c_1| > sum_{k>1} k^2 |c_k|, for |T_k| <= 1 and |T_k'| <= k^2. A box that passes neither test is halved, until
all of F on a piece is below a tolerance of some 64 roundings of the largest terms of the sum. Such a piece is
undecided: a maximum and a minimum that are closer than rounding can tell may hide there.

A maximum of the sum lies within one bandwidth of a token, because the second derivative of a Gaussian bump is
positive beyond; so do the maxima of exp(beta cos). Hence boxes without a token in or next to them are left
out, and tokens further apart than the bumps reach are separate problems, which are laid on one line, with
all members of a batch, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DEGREES = 20  # Chebyshev coefficients of a box, of sources and of targets
REACH = 12  # boxes to either side: exp(-11^2 / 2) = 5e-27, so that 1e8 tokens there are nothing
NEGLIGIBLE = 60.5  # exponent at which a bump ends
TILE = 2**14  # boxes worked on at a time
ROUNDINGS = 64  # of the largest terms, below which the sign of F is left open
EPS = float(np.finfo(np.float64).eps)


class Bumps(NamedTuple):
    """K between boxes m = -R..R apart: matrices (2R + 1, p, p) from moments to coefficients, and max |K|."""

    matrices: Floats
    size: Floats

    @property
    def reach(self) -> int:
        """R."""
        return len(self.size) // 2


class Layout(NamedTuple):
    """Tokens on one line of boxes, in the order of the boxes, and the segments that are searched."""

    box: Ints  # of each token
    z: Floats  # place of each token in its box, in [-1, 1]
    first: Ints  # first box of each segment
    end: Ints  # one beyond its last box
    member: Ints  # member of the batch that a segment belongs to


class Signs(NamedTuple):
    """Signs of F in order; of each stretch of equal signs in a member the first, in `box` at `z`."""

    member: Ints
    sign: Ints
    box: Ints
    z: Floats


class Found(NamedTuple):
    """Number of maxima and of undecided boxes of each member; member, box and place of every maximum."""

    number: Ints
    undecided: Ints
    member: Ints
    box: Ints
    z: Floats


# --- bumps and layouts ---------------------------------------------------------------------------------


def _transform(size: int) -> tuple[Floats, Floats]:
    """Chebyshev nodes, and the matrix from values there to coefficients."""
    angle = np.pi * (np.arange(size) + 0.5) / size
    D = 2 / size * np.cos(np.arange(size)[:, None] * angle)
    D[0] /= 2
    return np.cos(angle), D


def bumps(K: Callable[[Floats], Floats], width: float, reach: int) -> Bumps:
    """The two-dimensional Chebyshev coefficients of K(y - z - m width), y and z in boxes about 0."""
    nodes, D = _transform(2 * DEGREES)
    y, m = width / 2 * nodes, width * np.arange(-reach, reach + 1)
    values = K(y[None, None, :] - y[None, :, None] - m[:, None, None])
    matrices = np.einsum("ai,mij,bj->mab", D[:DEGREES], values, D[:DEGREES], optimize=True)
    return Bumps(matrices, np.abs(K(y - m[:, None])).max(-1))


@lru_cache(maxsize=1)
def gaussian_bumps() -> Bumps:
    """K(x) = -x exp(-x^2 / 2) and boxes of width one."""
    return bumps(lambda x: -x * np.exp(-(x**2) / 2), 1.0, REACH)


class Circle(NamedTuple):
    """An odd number of boxes around the circle, and K(x) = -sin(x) exp(beta (cos x - 1)) between them."""

    boxes: int
    bumps: Bumps


@lru_cache(maxsize=8)
def circle(beta: float) -> Circle:
    """Boxes of at most one bandwidth and at most 2 pi / 9; all of them interact if beta is small."""
    boxes = max(9, int(np.ceil(2 * np.pi * np.sqrt(beta)))) | 1
    width = 2 * np.pi / boxes
    angle = np.arccos(1 - NEGLIGIBLE / beta) if 2 * beta > NEGLIGIBLE else np.pi
    reach = min(int(np.ceil(angle / width)) + 1, boxes // 2)
    return Circle(boxes, bumps(lambda x: -np.sin(x) * np.exp(-2 * beta * np.sin(x / 2) ** 2), width, reach))


class BumpClusters(NamedTuple):
    """Groups of tokens that do not reach each other: their first token, which is amid the box `start`."""

    origin: Floats
    start: Ints


def line_layout(x: Floats, root: Floats) -> tuple[Layout, BumpClusters]:
    """Sorted tokens (B, n) in units of 1 / root (B,); a gap beyond reach costs no more boxes than the reach.

    The first token of a cluster is amid its box, so that no maximum of a lone token is where boxes meet.
    """
    n = x.shape[1]
    with np.errstate(over="ignore"):
        far = np.diff(x, axis=1) * root[:, None] > REACH + 1
    head = np.flatnonzero(np.concatenate([np.ones_like(far, shape=(len(x), 1)), far], 1))
    sizes = np.diff(np.append(head, x.size))
    origin, member = x.ravel()[head], head // n
    u = (x.ravel() - np.repeat(origin, sizes)) * np.repeat(root, n) + 0.5
    boxes = np.floor(u).astype(np.int64)
    length = boxes[head + sizes - 1] + 1
    start = np.cumsum(length + REACH + 2) - length
    places = boxes + np.repeat(start, sizes), 2 * (u - boxes) - 1
    return Layout(*places, start - 1, start + length + 1, member), BumpClusters(origin, start)


def circle_layout(theta: Floats, ring: Circle) -> Layout:
    """Angles (B, n), with the boxes within reach of the cut repeated on its other side."""
    N, R, B = ring.boxes, ring.bumps.reach, len(theta)
    u = np.mod(theta, 2 * np.pi) * (N / (2 * np.pi))
    own = np.minimum(np.floor(u).astype(np.int64), N - 1)
    z = 2 * (u - own) - 1
    box = own + R + (N + 2 * R) * np.arange(B)[:, None]
    below, above = own >= N - R, own < R
    box = np.concatenate([box.ravel(), box[below] - N, box[above] + N])
    order = np.argsort(box, kind="stable")
    first = R + (N + 2 * R) * np.arange(B)
    z = np.concatenate([z.ravel(), z[below], z[above]])
    return _squeezed(Layout(box[order], z[order], first, first + N, np.arange(B)), R)


def _squeezed(layout: Layout, reach: int) -> Layout:
    """With no more empty boxes in a row than keep tokens, and the boxes next to them, out of reach."""
    marks = np.unique(np.concatenate([layout.box, layout.first, layout.end]))
    place = np.cumsum(np.minimum(np.diff(marks, prepend=marks[0]), reach + 2))
    box, first, end = (place[np.searchsorted(marks, a)] for a in (layout.box, layout.first, layout.end))
    return Layout(box, layout.z, first, end, layout.member)


# --- F on the boxes ------------------------------------------------------------------------------------


class ChebyshevPieces(NamedTuple):
    """Pieces [low, high] of boxes, and the Chebyshev coefficients (K, p) of F on them."""

    box: Ints
    low: Floats
    high: Floats
    c: Floats
    tolerance: Floats

    def take(self, which: NDArray[np.bool_] | Ints) -> ChebyshevPieces:
        return ChebyshevPieces._make(a[which] for a in self)


def _moments(box: Ints, z: Floats, size: int) -> Floats:
    """sum of T_a(z) over the tokens of a box, (size, p)."""
    out = np.empty((size, DEGREES))
    before, now = z, np.ones_like(z)
    for a in range(DEGREES):
        out[:, a] = np.bincount(box, now, size)
        before, now = now, 2 * z * now - before
    return out


def _expansions(layout: Layout, shapes: Bumps, a: int, b: int) -> ChebyshevPieces:
    """The boxes a <= k < b that can hold maxima."""
    R = shapes.reach
    i, j = np.searchsorted(layout.box, [a - R, b + R])
    moments = _moments(layout.box[i:j] - (a - R), layout.z[i:j], b - a + 2 * R)
    counts = moments[:, 0]
    full = counts > 0
    near = np.flatnonzero(full[R - 1 : R - 1 + b - a] | full[R : R + b - a] | full[R + 1 : R + 1 + b - a])
    segment = np.searchsorted(layout.first, near + a, side="right") - 1
    near = near[(segment >= 0) & (near + a < layout.end[segment])]
    c = np.zeros((len(near), DEGREES))
    for m, matrix in enumerate(shapes.matrices):
        some = full[near + m]
        if some.all():
            c += moments[near + m] @ matrix
        elif some.any():
            c[some] += moments[near[some] + m] @ matrix
    # Sums of N numbers lose about sqrt(N) roundings on top of those of the expansion.
    size = np.convolve(counts, shapes.size[::-1], "valid")[near]
    tolerance = (ROUNDINGS + np.sqrt(counts.max(initial=0.0))) * EPS * size
    return ChebyshevPieces(near + a, np.full(len(near), -1.0), np.ones(len(near)), c, tolerance)


# --- signs of F ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _halves() -> tuple[Floats, Floats]:
    """Matrices that take coefficients (as rows) on [-1, 1] to those on its halves."""
    nodes, D = _transform(DEGREES)
    values = [chebyshev.chebvander((nodes + side) / 2, DEGREES - 1) for side in (-1, 1)]
    return (D @ values[0]).T, (D @ values[1]).T


def _halved(p: ChebyshevPieces) -> ChebyshevPieces:
    """Every piece in two halves, each in its own coordinate."""
    left, right = _halves()
    middle = (p.low + p.high) / 2
    return ChebyshevPieces(
        np.tile(p.box, 2),
        np.concatenate([p.low, middle]),
        np.concatenate([middle, p.high]),
        np.concatenate([p.c @ left, p.c @ right]),
        np.tile(p.tolerance, 2),
    )


def _decided(p: ChebyshevPieces) -> Iterator[tuple[ChebyshevPieces, Ints]]:
    """Pieces without sign change, monotone, or too small to tell, and the signs of F at their ends."""
    k2 = np.arange(DEGREES, dtype=np.float64) ** 2
    while len(p.box):
        size = np.abs(p.c)
        rest = size[:, 1:].sum(-1)
        one_sign = size[:, 0] > rest + p.tolerance
        tiny = size[:, 0] + rest < 4 * p.tolerance
        monotone = size[:, 1] > size[:, 2:] @ k2[2:]
        ends = np.stack([p.c[:, ::2].sum(-1) - p.c[:, 1::2].sum(-1), p.c.sum(-1)], -1)
        sign = np.where(np.abs(ends) > p.tolerance[:, None], np.sign(ends), 0.0).astype(np.int64)
        sign[one_sign] = np.sign(p.c[one_sign, :1])
        sign[tiny] = 0
        done = one_sign | tiny | monotone
        yield p.take(done), sign[done]
        p = _halved(p.take(~done))


def _zeros(c: Floats) -> Floats:
    """The zero in [-1, 1] of decreasing polynomials with coefficients c (K, p): Newton within a bracket."""
    low, high = np.full(len(c), -1.0), np.full(len(c), 1.0)
    s, step = np.zeros(len(c)), np.ones(len(c))
    slope = chebyshev.chebder(c, axis=1).T
    for _ in range(64):
        f = chebyshev.chebval(s, c.T, tensor=False)
        low, high = np.where(f > 0, s, low), np.where(f > 0, high, s)
        d = chebyshev.chebval(s, slope, tensor=False)
        new = s - np.divide(f, d, out=np.full_like(f, np.inf), where=d < 0)
        new = np.where((new >= low) & (new <= high), new, (low + high) / 2)
        step, s = np.abs(new - s), new
        if step.max(initial=0.0) <= 4 * EPS:
            break
    return s


def _signs(p: ChebyshevPieces, layout: Layout) -> tuple[Signs, Ints]:
    """Stretches of equal sign in the pieces, and the members of undecided boxes."""
    parts, signs = zip(*_decided(p), strict=True)
    p = ChebyshevPieces._make(np.concatenate(a) for a in zip(*parts, strict=True))
    order = np.lexsort([p.low, p.box])
    p, sign = p.take(order), np.concatenate(signs)[order]
    z = _places(p, sign)
    hidden = np.unique(p.box[(sign == 0).all(-1)])
    ends = Signs(_member(layout, p.box).repeat(2), sign.ravel(), p.box.repeat(2), z.ravel())
    return _stretches(ends), _member(layout, hidden)


def _places(p: ChebyshevPieces, sign: Ints) -> Floats:
    """The ends of the pieces (K, 2); where F falls to minus, its zero instead of the upper one."""
    z = np.stack([p.low, p.high], -1)
    falls = (sign[:, 0] > 0) & (sign[:, 1] < 0)
    z[falls, 1] = (z[falls].sum(-1) + (z[falls, 1] - z[falls, 0]) * _zeros(p.c[falls])) / 2
    leaves = (sign[:, 0] == 0) & (sign[:, 1] < 0)
    z[leaves, 1] = z[leaves, 0]
    return z


def _member(layout: Layout, box: Ints) -> Ints:
    return layout.member[np.searchsorted(layout.first, box, side="right") - 1]


def _stretches(s: Signs) -> Signs:
    """The first of every stretch of equal signs; zeros count for nothing."""
    s = Signs._make(a[s.sign != 0] for a in s)
    new = np.ones(len(s.sign), dtype=bool)
    new[1:] = (np.diff(s.sign) != 0) | (np.diff(s.member) != 0)
    return Signs._make(a[new] for a in s)


def find_maxima(layout: Layout, shapes: Bumps, members: int, *, periodic: bool = False) -> Found:
    """Every change of F from plus to minus, in tiles of boxes; all of F is continuous around a circle."""
    parts: list[Signs] = []
    hidden = np.zeros(members, dtype=np.int64)
    for a in _tiles(layout):
        p = _expansions(layout, shapes, a, min(a + TILE, int(layout.end[-1])))
        if len(p.box):
            part, unsure = _signs(p, layout)
            parts.append(part)
            hidden += np.bincount(unsure, minlength=members)
    s = _stretches(Signs._make(np.concatenate(a) for a in zip(*parts, strict=True)))
    top = (_before(s, periodic) > 0) & (s.sign < 0)
    number = np.bincount(s.member[top], minlength=members)
    return Found(number, hidden, s.member[top], s.box[top], s.z[top])


def _tiles(layout: Layout) -> list[int]:
    """First boxes of the tiles with tokens in them or next to them."""
    near = np.concatenate([layout.box - 1, layout.box + 1]).clip(0, layout.end[-1] - 1)
    starts: list[int] = (TILE * np.unique(near // TILE)).tolist()
    return starts


def _before(s: Signs, periodic: bool) -> Ints:
    """The sign before each stretch: that of the last one of its member, or none, before the first."""
    new = np.ones(len(s.sign), dtype=bool)
    new[1:] = np.diff(s.member) != 0
    before = np.roll(s.sign, 1)
    before[new] = s.sign[np.roll(new, -1)] if periodic else 0
    return before
