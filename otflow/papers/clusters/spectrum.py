"""What the spectrum of V says of the limits of rescaled tokens: hyperplanes, or polytope times subspace.

The theorems are those of Geshkovski, Letrouit, Polyanskiy and Rigollet 2023, arXiv:2305.05465; their numbers
follow a third-party formalisation of the statements.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.linalg import sqrtm
from otflow.papers.clusters.polytopes import matrix

__all__ = ["Directions", "Hyperplanes", "directions", "hyperplanes", "metric", "weights"]

ALIKE = 1e-8  # eigenvalues closer than this share of |V| count as equal


def metric(Q: Any, K: Any) -> Tensor:
    """A = (Q^T K)^(1/2), (d, d), if Q^T K is symmetric and positive definite, as Theorems 3.1 and 5.2 ask.

    >>> from otflow.papers.clusters import metric
    >>> metric([[2.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]])
    tensor([[2., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    Q, K = (matrix(M, name) for M, name in ((Q, "Q"), (K, "K")))
    if Q.shape != K.shape:
        checks.fail("Q.shape, K.shape", (tuple(Q.shape), tuple(K.shape)), "they must agree", "pass K=Q, say")
    M = Q.mT @ K
    S = (M + M.mT) / 2
    size, least, skew = (
        float(a) for a in (M.abs().max(), torch.linalg.eigvalsh(S)[0], (M - M.mT).abs().max())
    )
    if skew > 1e-10 * size or least <= 1e-12 * size:
        found = f"a matrix with least eigenvalue {least:.4g} and asymmetry {skew:.4g}"
        rule = "it must be symmetric and positive definite"
        checks.fail("Q^T K", found, rule, "pass K = Q with independent columns")
    return sqrtm(S)


class Hyperplanes(NamedTuple):
    """lambda (), its eigenvector ``direction`` (d,) of norm 1, and the left one, <normal, direction> = 1."""

    value: Tensor
    direction: Tensor
    normal: Tensor


def hyperplanes(Q: Any, K: Any, V: Any) -> Hyperplanes:
    """V phi = lambda phi, phi* V = lambda phi*: <phi*, z_i(t)> tends to one of three values.

    They are some a < 0, b > 0 and 0, not all of which need occur; so the tokens end on at most three parallel
    hyperplanes with the normal phi* (Theorem 4.2). That is if lambda > 0 is simple, all other eigenvalues are
    smaller in modulus, and <Q phi, K phi> > 0; otherwise an error says what fails.

    >>> from otflow.papers.clusters import hyperplanes
    >>> I = [[1.0, 0.0], [0.0, 1.0]]
    >>> hyperplanes(I, I, [[2.0, 1.0], [0.0, 1.0]]).normal  # tokens end on lines x + y = const
    tensor([1., 1.], dtype=torch.float64)
    """
    Q, K, V = weights(Q, K, V)
    values, left, right = scipy.linalg.eig(V.numpy(), left=True, right=True)
    first = _leading(values, V, once=True)
    phi, psi = right[:, first].real, left[:, first].real
    phi = phi * np.sign(phi[np.abs(phi).argmax()]) / np.linalg.norm(phi)
    out = Hyperplanes(*map(torch.from_numpy, (np.array(values[first].real), phi, psi / (psi @ phi))))
    score = float((Q @ out.direction) @ (K @ out.direction))
    if score <= 0:
        rule = "it must be > 0 for the leading eigenvector phi of V"
        checks.fail("<Q phi, K phi>", score, rule, "pass K=Q, for which it is |Q phi|^2, or K=-K")
    return out


class Directions(NamedTuple):
    """lambda () and an orthonormal basis (d, m) of its eigenspace F; the projector is basis basis^T."""

    value: Tensor
    basis: Tensor


def directions(Q: Any, K: Any, V: Any) -> Directions:
    """F = {Vx = lambda x}: projected to F, the tokens z_i tend to the boundary of a polytope, or to 0.

    Nothing is said of the other directions G: the limit is a polytope times a subspace (Theorem 5.2).
    ``z @ basis`` are the coordinates in F, and ``metric(Q, K) @ basis`` is then the A of `violation` and
    `limit_set`. Needed are Q^T K > 0 and that V is paranormal: lambda > 0, F and G are orthogonal, V maps
    each into itself, and its eigenvalues on G are less than lambda in modulus.

    >>> from otflow.papers.clusters import directions
    >>> I = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> directions(I, I, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -0.5]]).basis.abs().sum(1)
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    Q, K, V = weights(Q, K, V)
    metric(Q, K)
    values = np.linalg.eigvals(V.numpy())
    lead, size = values[_leading(values, V, once=False)].real, torch.linalg.matrix_norm(V, 2)
    many = int((np.abs(values - lead) <= ALIKE * float(size)).sum())
    shifted = V - lead * torch.eye(len(V), dtype=V.dtype)
    basis = torch.linalg.svd(shifted).Vh[-many:].mT
    for name, M in (("V F - lambda F", shifted), ("V^T F - lambda F", shifted.mT)):
        gap = float(torch.linalg.matrix_norm(M @ basis, 2) / size)
        if gap > ALIKE:
            rule = "V must be paranormal: lambda I on F, and F orthogonal to G"
            remedy = "pass (V + V^T) / 2, or call hyperplanes(Q, K, V) if the leading eigenvalue is simple"
            checks.fail(f"|{name}| / |V|", gap, rule, remedy)
    return Directions(torch.tensor(float(lead), dtype=V.dtype), basis)


def _leading(values: Any, V: Tensor, *, once: bool) -> int:
    """The position of the leading eigenvalue, if it is real, positive and, in modulus, above all others."""
    first = int(np.lexsort((-np.abs(values.imag), values.real))[-1])
    lead, size = values[first], float(torch.linalg.matrix_norm(V, 2))
    others = np.delete(values, first)
    if not once:
        others = others[np.abs(others - lead) > ALIKE * size]
    if abs(lead.imag) > ALIKE * size or lead.real <= 0 or (np.abs(others) >= lead.real - ALIKE * size).any():
        checks.fail(
            "eigenvalues of V",
            np.array2string(values, precision=4),
            f"the leading one must be real, > 0{', simple' * once} and larger than the others in modulus",
            "pass V + c I with a c that makes it so, or -V"
            + ", or call directions(Q, K, V) if the leading one has several independent eigenvectors" * once,
        )
    return first


def weights(Q: Any, K: Any, V: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K (k, d) and V (d, d) in float64, if they fit together."""
    Q, K, V = (matrix(M, name) for M, name in ((Q, "Q"), (K, "K"), (V, "V")))
    d = V.shape[-1]
    if V.shape[0] != d or Q.shape != K.shape or Q.shape[-1] != d:
        shapes, rule = tuple(tuple(M.shape) for M in (Q, K, V)), "(k, d), (k, d) and (d, d) are needed"
        checks.fail("Q.shape, K.shape, V.shape", shapes, rule, f"pass Q and K with {d} columns")
    return Q, K, V
