"""The Bures distance between covariances, to relative precision however close they are.

With S1 = L L^T, S2 = K K^T, N = K^T L, N^T N = Q diag(m^2) Q^T and P = L Q, the optimal map T = I + X from S1
to S2 satisfies P^T T P = diag(m). So E = P^T X P = diag(m) - P^T P, and

    d^2 = tr S1 + tr S2 - 2 sum_i m_i = |P^-T E|^2.

The first form is accurate unless d^2 is small. Then E must not be taken as a difference either, but

    m_i E_ij + E_ij m_j = (P^T (S2 - S1) P + E^2)_ij

returns it to relative precision: the error of a first guess enters the right-hand side multiplied by E.
One Cholesky factor of each covariance and one eigendecomposition are enough.

A singular S1 = S + 0 on range + kernel sees of S2 only its block on the range and the trace on the kernel:
d(S1, S2)^2 = d(S, S2 on range)^2 + tr(S2 on kernel). Used for S1 and then for S2, this leaves two definite
matrices; kernels are filled by the same multiple of the identity in both, which moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.linalg import ratio, symmetric
from otflow.base.matrices import not_semidefinite

EPS = torch.finfo(torch.float64).eps
CHUNK = 2**16  # numbers worked on at a time; chosen: 512 kB, which stay in the cache
# Part of its diagonal entry below which a pivot may be the rounding of zero; chosen: 1e5 roundings.
# Part of its diagonal entry below which a pivot may be the rounding of zero; chosen: 1e4 roundings.
PIVOT = 1e-11
CLOSE = 1e-13  # relative error of d^2 that calls for no more work; chosen: some hundred roundings
NEAR = 0.1  # d^2 relative to the traces below which "trace minus twice root" loses more than a digit


def distance(s1: Tensor, s2: Tensor, tol: float) -> Tensor:
    """d of symmetric float64 matrices, (n, d, d) -> (n,); they are checked: eigenvalues >= -tol * largest."""
    d = s1.shape[-1]
    size = CHUNK // d**2 + 1
    one = _line if d == 1 else _plane if d == 2 else _space
    parts = []
    for a, b in zip(s1.split(size), s2.split(size), strict=True):
        unit = _unit(a, b)
        parts.append(one(a / unit**2, b / unit**2, tol).clamp(min=0).sqrt() * unit[:, 0, 0])
    return torch.cat(parts)


def _unit(a: Tensor, b: Tensor) -> Tensor:
    """A power of two whose square is about the largest entry, (n, 1, 1): scaling by it changes no digit."""
    size = torch.maximum(*(s.abs().amax((-1, -2), keepdim=True) for s in (a, b)))
    return torch.exp2(torch.div(torch.frexp(size).exponent - 1, 2, rounding_mode="floor").to(a.dtype))


def _check(s: Tensor, name: str, tol: float) -> None:
    """An error if one of these matrices, which a cheaper test left in doubt, is not semidefinite."""
    if not len(s):
        return
    values = torch.linalg.eigvalsh(s)
    low, high = values[:, 0], values.abs().amax(-1)
    if bool((low < -tol * high).any()):
        least = (low / high.clamp(min=torch.finfo(s.dtype).tiny)).min().item()
        checks.fail(f"min eigenvalue of {name}", f"{least:.3g} times the largest", *not_semidefinite(tol))


def _line(s1: Tensor, s2: Tensor, tol: float) -> Tensor:
    """(sqrt a - sqrt b)^2, from the difference a - b."""
    for s, name in ((s1, "S1"), (s2, "S2")):
        _check(s[s[:, 0, 0] < 0], name, tol)
    a, b = s1[:, 0, 0], s2[:, 0, 0]
    return ratio(a - b, a.sqrt() + b.sqrt()).square()


def _plane(s1: Tensor, s2: Tensor, tol: float) -> Tensor:
    """4 ((a - b)^2 + |w1 - w2|^2) / (t1 + t2 + 2 sqrt(tr S1 S2 + 2 a b)), in terms of S = (t/2) I + w.

    Here w is the traceless part (u, v; v, -u), t the trace, a and b the roots of the determinants. It is
    (t1 + t2)^2 - 4 (tr (S1 S2)^(1/2))^2 over t1 + t2 + 2 tr (S1 S2)^(1/2), by Cayley-Hamilton.
    """
    (x1, y1, z1), (x2, y2, z2) = ((s[:, 0, 0], s[:, 0, 1], s[:, 1, 1]) for s in (s1, s2))
    det1, det2, change = _determinants(x1, y1, z1, x2, y2, z2)
    _check(s1[(det1 < 0) | (x1 < 0) | (z1 < 0)], "S1", tol)
    _check(s2[(det2 < 0) | (x2 < 0) | (z2 < 0)], "S2", tol)
    a, b = det1.clamp(min=0).sqrt(), det2.clamp(min=0).sqrt()
    # Below zero a determinant counts as zero, and the exact difference with it.
    change = torch.where((det1 < 0) | (det2 < 0), det1.clamp(min=0) - det2.clamp(min=0), change)
    dw = (((x1 - x2) - (z1 - z2)) / 2).square() + (y1 - y2).square()
    root = (x1 * x2 + 2 * y1 * y2 + z1 * z2 + 2 * a * b).clamp(min=0).sqrt()
    return ratio(4 * (ratio(change, a + b).square() + dw), x1 + z1 + x2 + z2 + 2 * root)


def _determinants(
    x1: Tensor, y1: Tensor, z1: Tensor, x2: Tensor, y2: Tensor, z2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """det S1, det S2 and their difference, as accurate as if products were exact."""
    (p1, e1), (q1, f1), (p2, e2), (q2, f2) = map(_product, (x1, y1, x2, y2), (z1, y1, z2, y2))
    (h1, r1), (h2, r2) = _sum(p1, -q1), _sum(p2, -q2)
    low1, low2 = r1 + (e1 - f1), r2 + (e2 - f2)
    return h1 + low1, h2 + low2, (h1 - h2) + (low1 - low2)


def _product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a b and its rounding error, exactly (Dekker 1971)."""
    p = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return p, a2 * b2 - (((p - a1 * b1) - a2 * b1) - a1 * b2)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    c = 134217729.0 * a  # 2^27 + 1
    high = c - (c - a)
    return high, a - high


def _sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b and its rounding error, exactly (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


# --- dimension three and beyond ----------------------------------------------------------------------


def _cholesky(s: Tensor) -> tuple[Tensor, Tensor]:
    """A Cholesky factor, and where it can be trusted: the matrix is certainly not singular."""
    factor, info = torch.linalg.cholesky_ex(s)
    pivots, diagonal = factor.diagonal(dim1=-2, dim2=-1).square(), s.diagonal(dim1=-2, dim2=-1)
    return factor, (info == 0) & (pivots > PIVOT * diagonal).all(-1)


def _space(s1: Tensor, s2: Tensor, tol: float) -> Tensor:
    (l1, ok1), (l2, ok2) = _cholesky(s1), _cholesky(s2)
    _check(s1[~ok1], "S1", tol)
    _check(s2[~ok2], "S2", tol)
    return split(
        ok1 & ok2,
        lambda s1, s2, l1, l2: _definite(l1, l2, s2 - s1, _trace(s1) + _trace(s2)),
        lambda s1, s2, l1, l2: _singular(s1, s2),
        (s1, s2, l1, l2),
    )


def split(
    yes: Tensor, f: Callable[..., Tensor], g: Callable[..., Tensor], args: tuple[Tensor, ...]
) -> Tensor:
    """f for the members of the batch that say yes, g for the others."""
    if bool(yes.all()):
        return f(*args)
    if not bool(yes.any()):
        return g(*args)
    ours, theirs = (h(*(a[k] for a in args)) for h, k in ((f, yes), (g, ~yes)))
    out = theirs.new_empty(len(yes), *theirs.shape[1:])
    out[yes], out[~yes] = ours, theirs
    return out


def _definite(L: Tensor, K: Tensor, delta: Tensor, traces: Tensor) -> Tensor:
    # Where d^2 <= |delta|_1 <= d^(1/2) |delta| (Powers and Stormer 1970) is small, eigenvalues will not do.
    near = delta.shape[-1] * delta.square().sum((-1, -2)) < (NEAR * traces).square()
    return split(near, _from_roots, _from_eigenvalues, (L, K, delta, traces))


def _from_eigenvalues(L: Tensor, K: Tensor, delta: Tensor, traces: Tensor) -> Tensor:
    """d^2 by the eigenvalues of N^T N, without eigenvectors, wherever that is good enough."""
    determinant = (L.diagonal(dim1=-2, dim2=-1) * K.diagonal(dim1=-2, dim2=-1)).log().sum(-1)
    total, error = nuclear(K.mT @ L, determinant)
    out = traces - 2 * total
    loose = ~((out >= NEAR * traces) & (error <= CLOSE * out))
    if bool(loose.any()):
        out[loose] = _from_roots(*(a[loose] for a in (L, K, delta, traces)))
    return out


def nuclear(n: Tensor, determinant: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the singular values of N, given log |det N|, and a bound for its error.

    The root of an eigenvalue of N^T N loses digits in proportion to m_max / m; the least one is had from the
    determinant instead.
    """
    m = torch.linalg.eigvalsh(n.mT @ n).clamp(min=0).sqrt()
    rest = m[:, 1:]
    least = torch.minimum((determinant - rest.log().sum(-1)).exp(), rest[:, 0])
    return least + rest.sum(-1), EPS * m[:, -1].square() * rest.reciprocal().sum(-1)


def _from_roots(L: Tensor, K: Tensor, delta: Tensor, traces: Tensor) -> Tensor:
    """d^2 of S1 = L L^T and S2 = K K^T = S1 + delta, for triangular and invertible L."""
    q, g, m = _spectrum(L, K)
    out = traces - 2 * m.sum(-1)
    near = out < NEAR * traces
    if bool(near.any()):
        L, q, g, m, delta = (a[near] for a in (L, q, g, m, delta))
        lifted = torch.linalg.solve_triangular(L.mT, q @ _difference(L, q, g, m, delta), upper=True)
        same = (delta == 0).flatten(1).all(-1)
        out[near] = torch.where(same, torch.zeros_like(m[:, 0]), lifted.square().sum((-1, -2)))
    return out


def _spectrum(L: Tensor, K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q, G = N Q and m: the norms of the columns of G have more digits than roots of eigenvalues."""
    n = K.mT @ L
    q = torch.linalg.eigh(n.mT @ n).eigenvectors
    g = n @ q
    return q, g, g.square().sum(-2).sqrt()


def _difference(L: Tensor, q: Tensor, g: Tensor, m: Tensor, delta: Tensor) -> Tensor:
    """E. Where rounding keeps Q from being exact, P^T T P is diag(m) + off to first order."""
    p, sums, diagonal = L @ q, m[:, :, None] + m[:, None, :], torch.diag_embed(m)
    off = g.mT @ g / sums
    off = off - torch.diag_embed(off.diagonal(dim1=-2, dim2=-1))
    e = (diagonal + off) - p.mT @ p
    return (p.mT @ delta @ p + e @ e - (off @ e + e @ off)) / sums


def _trace(s: Tensor) -> Tensor:
    return s.diagonal(dim1=-2, dim2=-1).sum(-1)


# --- singular covariances ----------------------------------------------------------------------------


def _singular(s1: Tensor, s2: Tensor) -> Tensor:
    a, b, delta, lost1 = _on_range(s1, s2, s2 - s1)
    b, a, delta, lost2 = _on_range(b, a, -delta)  # b is diagonal now
    K = _root(a, at_least=EPS)
    return lost1 + lost2 + _from_roots(b.sqrt(), K, delta, _trace(a) + _trace(b))


def _on_range(a: Tensor, b: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In the eigenbasis of a: a, b and delta = b - a on its range, kernels filled, and tr(b on ker a)."""
    values, v = torch.linalg.eigh(a)
    kernel = values <= _noise(values)
    fill = torch.where(values[:, -1:] > 0, values[:, -1:], torch.ones_like(values[:, -1:]))
    inside = ~(kernel[:, :, None] | kernel[:, None, :])
    turned, seen = v.mT @ delta @ v, v.mT @ b @ v
    lost = torch.where(kernel, _on_kernel(turned, b, v), torch.zeros_like(values)).sum(-1)
    b, delta = (torch.where(inside, x, torch.zeros_like(x)) for x in (seen, turned))
    filled = torch.where(kernel, fill, torch.zeros_like(values))
    a = torch.diag_embed(torch.where(kernel, fill, values))
    return a, b + torch.diag_embed(filled), delta, lost


def _on_kernel(turned: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """v_i^T b v_i for those v_i that a sends to zero: v_i^T (b - a) v_i, or by a root of b if that is noise.

    Through a root, what is zero comes out as the square of rounding.
    """
    direct, noise = turned.diagonal(dim1=-2, dim2=-1), 8 * EPS * turned.flatten(1).norm(dim=-1)[:, None]
    return torch.where(direct >= noise, direct, (_root(b).mT @ v).square().sum(-2))


def _noise(values: Tensor) -> Tensor:
    """What the rounding of a matrix may make of an eigenvalue zero, (n, 1)."""
    return values.shape[-1] * EPS * values[:, -1:].clamp(min=0)


def _root(s: Tensor, at_least: float = 0.0) -> Tensor:
    """V diag(values)^(1/2), with zero for what is rounding (or a least value, relative to the largest)."""
    values, v = torch.linalg.eigh(s)
    floor = at_least * values[:, -1:].clamp(min=0)
    return v * torch.where(values > _noise(values), values, floor).sqrt()[:, None, :]


# --- derivatives -------------------------------------------------------------------------------------


def slopes(s1: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives I - T12 and I - T21 of d^2 in S1 and S2, T12 the optimal map from S1 to S2.

    All -inf where S1 is singular and S2 has mass beyond the reach of its range.
    """
    unit = _unit(s1, s2)
    s1, s2 = s1 / unit**2, s2 / unit**2
    (l1, ok1), (l2, ok2) = _cholesky(s1), _cholesky(s2)
    both = split(ok1 & ok2, _smooth_slopes, _singular_slopes, (s1, s2, l1, l2))
    return both[:, 0], both[:, 1]


def _smooth_slopes(s1: Tensor, s2: Tensor, L: Tensor, K: Tensor) -> Tensor:
    """-P^-T E P^-1 and P diag(1/m) E P^-1."""
    q, g, m = _spectrum(L, K)
    e = _difference(L, q, g, m, s2 - s1)
    lifted = torch.linalg.solve_triangular(L.mT, q, upper=True)
    both: Tensor = torch.stack([-lifted @ e, (L @ q) @ (e / m[:, :, None])], 1) @ lifted.mT[:, None]
    return symmetric(both)


def _singular_slopes(s1: Tensor, s2: Tensor, L: Tensor, K: Tensor) -> Tensor:
    """T12 = sum_i y_i y_i^T / s_i with y_i = R2 x_i, for the singular values s and vectors x of R2^T R1."""
    r1, r2 = _root(s1), _root(s2)
    x, s, yt = torch.linalg.svd(r2.mT @ r1)
    small = 2 * s1.shape[-1] * EPS
    size1, size2 = (r.square().sum((-1, -2)) for r in (r1, r2))
    seen = s > small * (size1 * size2).sqrt()[:, None]
    return torch.stack(
        [_slope(r2 @ x, s, seen, small * size2), _slope(r1 @ yt.mT, s, seen, small * size1)], 1
    )


def _slope(y: Tensor, s: Tensor, seen: Tensor, small: Tensor) -> Tensor:
    weight = ratio(torch.ones_like(s), s, seen)
    finite = torch.eye(y.shape[-2], dtype=y.dtype, device=y.device) - (y * weight[:, None, :]) @ y.mT
    missed = torch.where(seen, torch.zeros_like(s), y.square().sum(-2)).sum(-1)
    return torch.where((missed > small)[:, None, None], torch.full_like(finite, -torch.inf), finite)
