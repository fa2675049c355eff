"""Polytopes that tokens span, and the points of them at which rescaled tokens may end."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import ConvexHull, cKDTree
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import Array

__all__ = ["Polytope", "hull", "violation", "limit_set", "distinct", "matrix"]

Index: TypeAlias = NDArray[np.int64]
FLAT = 1e-10  # a cloud thinner than this share of its width has no extent in that direction
WIDEST = 8  # Qhull's work grows like the number of points to the power of half the dimension
NOISE = 4 * float(np.finfo(float).eps)  # of coordinates: differences below it are their rounding
TINY = float(np.finfo(float).tiny)
SAME = 1e-9  # inequalities between scores of vertices hold within this share of the largest


@dataclass(frozen=True)
class Polytope:
    """conv{v_1, ..., v_m}, of dimension r in R^d: vertices, and facets as simplices with outer normals.

    Attributes:
        vertices: (m, d), counter-clockwise if d = r = 2.
        index: (m,), where they are among the points that were given.
        volume: r-dimensional: length, area, ...; 0 for a point.
        facets: (f, r) indices into ``vertices``; facets with more than r vertices are cut into simplices.
        normals, offsets: (f, d) and (f,): the polytope is where <normal, x> <= offset, within its span.
        origin, basis: (d,) and (d, r): its affine span, with orthonormal columns.
    """

    vertices: Tensor
    index: Tensor
    volume: Tensor
    facets: Tensor
    normals: Tensor
    offsets: Tensor
    origin: Tensor
    basis: Tensor

    @property
    def dimension(self) -> int:
        """The dimension r of the affine span."""
        return self.basis.shape[-1]

    def excess(self, points: Any) -> Tensor:
        """By how much points (*batch, d) are outside, (*batch,): <= 0 inside, 0 on the boundary.

        The largest <normal, x> - offset or, off the span, the distance to the span if that is larger.

        >>> from otflow.papers.clusters import hull
        >>> hull([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).excess([0.2, -0.5]).item()
        0.5
        """
        x = _in_dimension(points, "points", len(self.origin)) - self.origin
        off: Tensor = torch.linalg.vector_norm(x - (x @ self.basis) @ self.basis.mT, dim=-1)
        if not self.dimension:
            return off
        across: Tensor = (x @ self.normals.mT - (self.offsets - self.normals @ self.origin)).amax(-1)
        flat = self.dimension < len(self.origin)
        return torch.maximum(across, off) if flat else across


def hull(z: Any) -> Polytope:
    """conv{z_1, ..., z_n}: the convex hull of a cloud (n, d), also if it lies in an affine subspace.

    Of a cloud that rescaled attention with V = I moves, the hull never grows (Geshkovski, Letrouit,
    Polyanskiy and Rigollet 2023, Proposition 8.2).

    >>> from otflow.papers.clusters import hull
    >>> K = hull([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.5, 0.5]])
    >>> K.index.tolist(), K.volume.item(), K.dimension
    ([0, 1, 2], 2.0, 2)
    """
    z = matrix(z, "z", "one cloud (n, d) is needed", "take the members of a batch one by one")
    size = 2.0 ** math.floor(math.log2(max(float(z.abs().max()), TINY)))  # a power of two: no digit is lost
    return _scaled(_hull_of_order_one(z / size), size, z)


def _scaled(K: Polytope, size: float, z: Tensor) -> Polytope:
    """The polytope of z, from that of z / size."""
    volume = K.volume * torch.tensor(size, dtype=z.dtype) ** K.dimension
    if not bool(volume.isfinite()):
        checks.fail(
            "z", f"a cloud of size {size:.3g}", "its volume is beyond float64", f"pass z / {size:.0e}"
        )
    return replace(K, vertices=z[K.index], volume=volume, offsets=K.offsets * size, origin=K.origin * size)


def _hull_of_order_one(z: Tensor) -> Polytope:
    origin = z.mean(0)
    _, s, Vh = torch.linalg.svd(z - origin, full_matrices=False)
    # thin against its own width, or not thicker than the rounding of its coordinates
    r = int((s > max(FLAT * float(s[0]), NOISE * float(z.abs().max()) * math.sqrt(len(z)))).sum())
    if r > WIDEST:
        rule = f"hulls are found up to dimension {WIDEST}"
        checks.fail(
            "z", f"a cloud of dimension {r}", rule, f"pass the first {WIDEST} coordinates, z[:, :{WIDEST}]"
        )
    # In the plane itself its own axes are kept, so that no digit is lost in a rotation.
    basis = torch.eye(r, dtype=z.dtype) if r == z.shape[-1] else Vh[:r].mT
    if r < 2:
        return _segment(z, origin, basis)
    flat = (z - origin) @ basis
    width = float(flat.abs().max())
    return _of_qhull(z, origin, basis, ConvexHull((flat / width).numpy()), width)


def _segment(z: Tensor, origin: Tensor, basis: Tensor) -> Polytope:
    """A point, or the segment between two of them."""
    r = basis.shape[-1]
    along = (z - origin) @ basis
    ends = [int(along.argmin()), int(along.argmax())] if r else [0]
    index, normals = torch.tensor(ends), torch.cat([-basis.mT, basis.mT])
    return Polytope(
        z[index],
        index,
        torch.linalg.vector_norm(z[ends[-1]] - z[ends[0]]),
        torch.arange(2 * r).reshape(2 * r, r),
        normals,
        (normals * z[index][: 2 * r]).sum(-1) if r else z.new_zeros(0),
        origin,
        basis,
    )


def _of_qhull(z: Tensor, origin: Tensor, basis: Tensor, found: ConvexHull, width: float) -> Polytope:
    """From the hull of the cloud in coordinates of its span, over its width."""
    index = torch.from_numpy(np.asarray(found.vertices)).long()
    place = torch.full((len(z),), -1)
    place[index] = torch.arange(len(index))
    equations = torch.from_numpy(np.asarray(found.equations))
    normals = equations[:, :-1] @ basis.mT
    return Polytope(
        z[index],
        index,
        torch.tensor(float(found.volume), dtype=z.dtype) * width ** basis.shape[-1],
        place[torch.from_numpy(np.asarray(found.simplices)).long()],
        normals,
        normals @ origin - equations[:, -1] * width,
        origin,
        basis,
    )


def violation(z: Any, vertices: Any, A: Any) -> Tensor:
    """max_v <Az, Av> - |Az|^2 for tokens (*batch, n, d): 0 on S, > 0 elsewhere in the polytope.

    Args:
        z: tokens, inside the polytope (outside of it the number may be negative).
        vertices: (m, d), or any points whose hull it is.
        A: (k, d), a root of Q^T K = A^T A.

    >>> from otflow.papers.clusters import violation
    >>> violation([[2.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0]], [[1.0, 0.0], [0.0, 1.0]])
    tensor([0., 1.], dtype=torch.float64)
    """
    A = matrix(A, "A")
    Az = _in_dimension(z, "z", A.shape[-1]) @ A.mT
    Av = _in_dimension(vertices, "vertices", A.shape[-1]) @ A.mT
    excess: Tensor = (Az @ Av.mT).amax(-1) - Az.square().sum(-1)
    return excess


def limit_set(vertices: Any, A: Any) -> Tensor:
    """S = {x in K : |Ax|^2 = max_v <Ax, Av>}, all its points, for the polytope K of these vertices; (k, d).

    Rescaled tokens with V = I and Q^T K = A^T A end in S (Geshkovski et al. 2023, Theorem 3.1). A point x of
    K is a mean of vertices, and |Ax|^2 is the mean of <Ax, Av> over them; hence x is in S if and only if it
    is the projection of 0, in the metric of A, to the affine hull of vertices between which it lies, and no
    other vertex has a larger <Ax, Av>. There are finitely many: 0 if it is in K, and at most one for every
    face. Vertices of an arbitrary polytope need not be in S; those of the limit of a cloud are.

    Args:
        vertices: (m, d); A: (k, d) with independent columns.

    >>> from otflow.papers.clusters import limit_set
    >>> limit_set([[2.0, 0.0], [-2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    tensor([[-2.,  0.],
            [ 0.,  0.],
            [ 2.,  0.]], dtype=torch.float64)
    """
    A, K = matrix(A, "A"), hull(vertices)
    rank, d = int(torch.linalg.matrix_rank(A)), K.vertices.shape[-1]
    if rank < A.shape[-1] or A.shape[-1] != d:
        rule = f"independent columns are needed, one for each of the {d} coordinates"
        checks.fail("A.shape, rank", (tuple(A.shape), rank), rule, "take A from metric(Q, K)")
    size = torch.linalg.vector_norm(K.vertices @ A.mT, dim=-1).max()
    found = torch.cat([_centre(K, A), *(_feet(K, A, k) for k in range(1, K.dimension + 1))])
    found = found[violation(found, K.vertices, A) <= SAME * size.square()]
    return distinct(found, 1e-7 * max(float(K.vertices.abs().max()), 1e-300))


def _centre(K: Polytope, A: Tensor) -> Tensor:
    """The projection of 0 to the affine span of K if it is in K: (1, d) or (0, d)."""
    x = K.origin
    if K.dimension:
        x = x + K.basis @ torch.linalg.lstsq(A @ K.basis, -(A @ x)[:, None], driver="gelsd").solution[:, 0]
    inside = K.excess(x) <= SAME * K.vertices.abs().max()
    return x[None][: int(inside)]


def _feet(K: Polytope, A: Tensor, k: int) -> Tensor:
    """The projections of 0 to the affine hulls of all k vertices of a facet that fall between them."""
    choices = [list(c) for c in combinations(range(K.dimension), k)]
    corners = torch.unique(K.facets[:, choices].sort(-1).values.flatten(0, 1), dim=0)  # (c, k)
    w = K.vertices[corners]
    edges, start = (w[:, 1:] - w[:, :1]) @ A.mT, w[:, 0] @ A.mT
    if k == 1:
        return w[:, 0]
    rest = torch.linalg.lstsq(edges.mT, -start[..., None], driver="gelsd").solution[..., 0]
    share = torch.cat([1 - rest.sum(-1, keepdim=True), rest], -1)
    x = w[:, 0] + (rest[:, None, :] @ (w[:, 1:] - w[:, :1]))[:, 0]
    between: Tensor = x[share.amin(-1) >= -SAME]
    return between


def distinct(values: Any, radius: float) -> Tensor:
    """The means of the groups into which values fall: chains of neighbours within ``radius``.

    Args:
        values: (n,) numbers or (n, d) points; radius: >= 0.

    Returns the means, sorted, by the first coordinate first: (k,) or (k, d).

    >>> from otflow.papers.clusters import distinct
    >>> distinct([3.0, 1.0, 1.001, 3.0], 0.01)
    tensor([1.0005, 3.0000], dtype=torch.float64)
    """
    values = checks.tensor(values, "values").detach().double()
    if values.ndim not in (1, 2) or 0 in values.shape:
        checks.fail(
            "values.shape",
            tuple(values.shape),
            "(n,) or (n, d) is needed",
            "pass a list of numbers or of points",
        )
    if not (checks.number(radius, "radius") >= 0):
        checks.fail("radius", radius, "a distance is >= 0", f"pass radius={-radius:g}")
    x = values.reshape(len(values), -1).numpy()
    points, place = np.unique(x, axis=0, return_inverse=True)
    many, group = _chains(points, float(radius))
    group = group[place.reshape(-1)]
    means = np.stack([np.bincount(group, c, many) for c in x.T], -1) / np.bincount(group)[:, None]
    means = means[np.lexsort(means.T[::-1])] + 0.0  # no -0
    return torch.from_numpy(means).reshape(many, *values.shape[1:])


def _chains(x: Array, radius: float) -> tuple[int, Index]:
    """How many chains of neighbours within radius there are, and the chain of each row of x (n, d), sorted.

    All pairs of neighbours would be n^2 where tokens have met. So balls of half that radius are chosen that
    cover the points: each is in one chain, and there are few of them where there are many points. Two of them
    are joined by their centres or, if these are too far from each other, by their nearest members.
    """
    if not radius:
        return len(x), np.arange(len(x))
    if x.shape[1] == 1:
        group = np.concatenate([[0], np.cumsum(np.diff(x[:, 0]) > radius)])
        return int(group[-1]) + 1, group
    ball, centres = _cover(x, radius / 2)
    pairs = cKDTree(x[centres]).query_pairs(2 * radius * (1 + 1e-9), output_type="ndarray")
    far = np.linalg.norm(x[centres[pairs[:, 0]]] - x[centres[pairs[:, 1]]], axis=-1) > radius
    _, first = _joined(pairs[~far], len(centres))
    open_ = pairs[far & (first[pairs[:, 0]] != first[pairs[:, 1]])]
    order = np.argsort(ball, kind="stable")
    members = np.split(x[order], np.cumsum(np.bincount(ball))[:-1])
    touching = np.array([_touch(members[a], members[b], radius) for a, b in open_], dtype=bool)
    many, group = _joined(np.concatenate([pairs[~far], open_[touching]]), len(centres))
    return many, group[ball]


def _cover(x: Array, radius: float) -> tuple[Index, Index]:
    """Balls around some of the points that cover all: the ball of each point (n,), and the centres."""
    tree, ball = cKDTree(x), np.full(len(x), -1)
    centres: list[int] = []
    for i in range(len(x)):
        if ball[i] < 0:
            inside = np.array(tree.query_ball_point(x[i], radius), dtype=int)
            ball[inside[ball[inside] < 0]] = len(centres)
            ball[i] = len(centres)
            centres.append(i)
    return ball, np.array(centres)


def _joined(pairs: Index, n: int) -> tuple[int, Index]:
    graph = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    many, group = connected_components(graph, directed=False)
    return int(many), group


def _touch(a: Array, b: Array, radius: float) -> bool:
    """Whether some point of a is within radius of one of b."""
    if len(a) == len(b) == 1:
        return False  # both are centres, and these are too far from each other
    few, lots = (a, b) if len(a) < len(b) else (b, a)
    return bool(cKDTree(lots).query(few)[0].min() <= radius)


def matrix(
    M: Any, name: str, rule: str = "one matrix is needed", remedy: str = "treat the members one by one"
) -> Tensor:
    """Two axes, none of them empty, in float64 and without derivatives."""
    out: Tensor = checks.tensor(M, name).detach().double()
    if out.ndim != 2 or 0 in out.shape:
        checks.fail(f"{name}.shape", tuple(out.shape), rule, remedy)
    return out


def _in_dimension(x: Any, name: str, d: int) -> Tensor:
    out: Tensor = checks.tensor(x, name).double()
    if not out.ndim or out.shape[-1] != d:
        rule = f"the last axis must have length d = {d}"
        checks.fail(f"{name}.shape", tuple(out.shape), rule, f"pass {name} with {d} coordinates")
    return out
