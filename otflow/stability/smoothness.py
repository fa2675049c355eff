"""Smoothness of a layer of softmax attention: bounds on its Lipschitz constant, and clouds that are worst.

Displace token i by e_i. Softmax attention with scores Ax_i.x_j and weights P_ij has the derivative

    (Je)_i = V C_i A e_i + V sum_j P_ij (e_j + (x_j - m_i) (Ax_i . e_j)),

m_i and C_i being mean and covariance of the tokens under P_i. Its norm in L2(mu) is the local Lipschitz
constant, that of Frobenius if weights are uniform. As a map from L2(P_i), the sum has at most the norm
(|V|^2 + |Ax_i|^2 |V C_i V^T|)^(1/2), without loss if V = I, and averages over P_i become averages over mu at
the price of c = max_j sum_i (w_i / w_j) P_ij, hence

    |J| <= max_i |V C_i A| + (c max_i (|V|^2 + |Ax_i|^2 |V C_i V^T|))^(1/2).

All bounds below are this one or coarser.

Reference: Castin, Ablin and Peyré 2024, "How smooth is attention?", arXiv 2312.14820.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.kernels import row_tiles
from otflow.base.spaces import Euclidean, Space
from otflow.fields import MultiHead, SoftmaxAttention, VelocityField
from otflow.fields.base import SumField
from otflow.fields.weights import apply
from otflow.measures import Particles
from otflow.stability.local_constant import detached

# --- bounds --------------------------------------------------------------------------------------------


class HeadNorms(NamedTuple):
    """Scores Ax.y and values M y = W V y of one head."""

    A: Tensor
    M: Tensor
    causal: bool

    @property
    def norms(self) -> tuple[Tensor, Tensor]:
        """|A| and |M|."""
        a, v = (torch.linalg.matrix_norm(m.detach(), 2) for m in (self.A, self.M))
        return a, v


@singledispatch
def _parts(field: VelocityField, t: Tensor) -> Iterator[HeadNorms]:
    """The heads of softmax attention that a field is the sum of."""
    remedy = "use local_constant, which knows every field, or constants(field, R)"
    checks.fail("field", repr(field), "these bounds are for softmax attention, its heads and sums", remedy)


@_parts.register
def _(field: SoftmaxAttention, t: Tensor) -> Iterator[HeadNorms]:
    yield HeadNorms(field.K(t).mT @ field.Q(t), field.V(t), field.causal)


@_parts.register
def _(field: MultiHead, t: Tensor) -> Iterator[HeadNorms]:
    for h, head in enumerate(field.heads):
        for A, M, causal in _parts(head, t):
            yield HeadNorms(A, M if field.mix is None else field.mix[h](t) @ M, causal)


@_parts.register
def _(field: SumField, t: Tensor) -> Iterator[HeadNorms]:
    for term, c in field.pairs():
        yield from (HeadNorms(A, c * M, causal) for A, M, causal in _parts(term, t))


def _heads(field: VelocityField, t: float) -> list[HeadNorms]:
    checks.instance(field, VelocityField, "field")
    return list(_parts(field, torch.as_tensor(t, dtype=torch.float64)))


def _sum(terms: list[Tensor]) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def _log_sum(terms: list[Tensor]) -> Tensor:
    return torch.logsumexp(torch.stack(torch.broadcast_tensors(*terms)), 0)


def discrete_bound(field: VelocityField, R: float, n: int, t: float = 0.0) -> Tensor:
    """sqrt(3) |V| (|A|^2 R^4 (4n + 1) + n)^(1/2), a bound of |J| on clouds of n tokens in B_R.

    Softmax attention, masked or not, with tokens of equal weight; heads add up with |W_h V_h|. One value per
    member of a batch of weights. `ball_bound` is smaller.

    Reference: Castin, Ablin and Peyré 2024, section 3.

    >>> from otflow.stability import discrete_bound
    >>> import otflow as of
    >>> discrete_bound(of.SoftmaxAttention([[1.0]], [[1.0]], [[2.0]]), 1.0, 3).item()  # 2 sqrt(3 (13 + 3))
    13.8564
    """
    n, R = checks.count(n, "n"), checks.positive(R, "R")
    return _sum([_discrete(head, R, n) for head in _heads(field, t)])


def _discrete(head: HeadNorms, R: float, n: int) -> Tensor:
    a, v = head.norms
    y = a * R**2
    return math.sqrt(3) * v * torch.hypot(y * math.sqrt(4 * n + 1), torch.full_like(y, math.sqrt(n)))


def mean_field_bound(field: VelocityField, R: float, t: float = 0.0) -> Tensor:
    """The logarithm of |V| (1 + 3 |A| R^2) exp(2 |A| R^2), a bound of |J| on all laws in B_R.

    For softmax attention; heads add up with |W_h V_h|. Under a mask the averages over the past, by the
    inequality of Hardy, make it |V| (|A| R^2 + 2 (1 + 2 |A| R^2) exp(2 |A| R^2)). `ball_bound` is smaller.

    Reference: Castin, Ablin and Peyré 2024, section 3.

    >>> from otflow.stability import mean_field_bound
    >>> import otflow as of
    >>> mean_field_bound(of.SoftmaxAttention([[1.0]], [[1.0]], [[1.0]]), 10.0).item()  # 200 + log 301
    205.7071
    """
    R = checks.positive(R, "R")
    return _log_sum([_mean_field(head, R) for head in _heads(field, t)])


def _mean_field(head: HeadNorms, R: float) -> Tensor:
    a, v = head.norms
    y = a * R**2
    return v.log() + (torch.logaddexp(y.log(), _hardy(y)) if head.causal else torch.log1p(3 * y) + 2 * y)


def _hardy(y: Tensor) -> Tensor:
    """log(2 (1 + 2y) exp(2y))."""
    return math.log(2) + torch.log1p(2 * y) + 2 * y


def ball_bound(field: VelocityField, R: float, n: float = math.inf, t: float = 0.0) -> Tensor:
    """log of |V| (y + (c (1 + y^2))^(1/2)), y = |A| R^2, 1/c = 1/n + (1 - 1/n) exp(-2y): |J| in B_R.

    Bounds the local constant of softmax attention at all clouds of n tokens of equal weight in B_R, at all
    laws in B_R if n is infinite; never above `discrete_bound` and `mean_field_bound`. Covariances in a ball
    are at most R^2, no weight P_ij exceeds c / n, and the formula at the head of this module does the rest.
    The order exp(y), which is the root of what `mean_field_bound` has, is reached: `adversarial_tokens` with
    A = -1 and 2y = log n come within a factor of two. Under a mask c = n, or Hardy as in `mean_field_bound`
    if that is less.

    >>> from otflow.stability import ball_bound
    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[1.0]])
    >>> [ball_bound(field, 3.0, n).exp().item() for n in (1, 100)], ball_bound(field, 3.0).item()
    ([18.0554, 99.5538], 11.2035)
    """
    R = checks.positive(R, "R")
    log_n = math.log(n if n == math.inf else checks.count(n, "n"))  # type: ignore[arg-type]
    return _log_sum([_ball(head, R, log_n) for head in _heads(field, t)])


def _ball(head: HeadNorms, R: float, log_n: float) -> Tensor:
    a, v = head.norms
    y = a * R**2
    fewer = torch.hypot(torch.ones_like(y), y).log()  # log (1 + y^2)^(1/2)
    plain = fewer + _crowding(2 * y, log_n) / 2
    masked = torch.minimum(fewer + log_n / 2, _hardy(y))
    return v.log() + torch.logaddexp(y.log(), masked if head.causal else plain)


def _crowding(gap: Tensor, log_n: float | Tensor) -> Tensor:
    """log c, 1/c = 1/n + (1 - 1/n) exp(-gap): scores that differ by at most ``gap`` make P_ij <= c / n."""
    log_n = torch.as_tensor(log_n, dtype=gap.dtype, device=gap.device)
    return -torch.logaddexp(-log_n, torch.log(-torch.expm1(-log_n)) - gap)


def data_bound(mu: Particles, field: VelocityField, t: float = 0.0) -> Tensor:
    """r_V r_A / 4 + (c (|V|^2 + R^2 r_V^2 / 4))^(1/2), a bound of |J| at one cloud, (*batch,).

    R = max |Ax_i|, and r, r_V, r_A are the diameters of the tokens, of {V x_i} and of {A^T x_i};
    1/c = w + (1 - w) exp(-R r) with the smallest weight w, which is 1/n if weights are uniform. Softmax
    attention; heads add up with W_h V_h. Takes O(n^2) time and O(n) memory.

    The formula |V| (R^2 r^2 (n + 1) + n)^(1/2), which one also finds for this purpose, holds if A is normal
    but not otherwise: A = 8 e_1 e_2^T and the tokens -e_1 and e_1 have R = 0, hence sqrt(2), but |J| = 8.12.
    Where the queries are does not tell how they move.

    >>> from otflow.stability import data_bound
    >>> import otflow as of
    >>> from otflow.stability.local_constant import local_constant
    >>> I = [[1.0, 0.0], [0.0, 1.0]]
    >>> field = of.SoftmaxAttention([[0.0, 8.0], [0.0, 0.0]], I, I)
    >>> mu = of.Particles([[-1.0, 0.0], [1.0, 0.0]])
    >>> round(data_bound(mu, field).item(), 6), round(local_constant(mu, field).value.item(), 6)
    (9.0, 8.123106)
    """
    mu = detached(mu)
    checks.instance(mu.space, Euclidean, "space")
    return _sum([_data(head, mu) for head in _heads(field, t)])


def _data(head: HeadNorms, mu: Particles) -> Tensor:
    x, w = mu.x, mu.w.amin(-1)
    R = torch.linalg.vector_norm(apply(head.A, x), dim=-1).amax(-1)
    r, r_V, r_A = (_diameter(y, mu.space) for y in (x, apply(head.M, x), apply(head.A.mT, x)))
    v = head.norms[1]
    far = torch.hypot(v.expand(R.shape), R * r_V / 2)
    plain = torch.exp(_crowding(R * r, -w.log()) / 2)
    masked = torch.minimum(1 / w.sqrt(), math.sqrt(20) * torch.exp(R * r))  # Hardy: v + R r_V <= sqrt(5) far
    return r_V * r_A / 4 + far * (masked if head.causal else plain)


def _diameter(x: Tensor, space: Space) -> Tensor:
    """max |x_i - x_j|, (*batch,), over tiles of rows."""
    tiles = row_tiles(x.shape[-2], x[..., 0].numel())
    return torch.stack([space.pairwise(x[..., rows, :], x).amax((-1, -2)) for rows in tiles]).amax(0)


# --- clouds that are bad -------------------------------------------------------------------------------


def adversarial_tokens(scores: Any, R: float, n: int, t: float = 0.0) -> Particles:
    """n tokens in B_R on a line along u, one of which all others look at: |J| grows like sqrt(n).

    With l = u.Au the largest and the smallest value of x.Ax on unit vectors, whichever does more:

        l > 0:  x_1 = R u,   x_i = R u / 2,   the others prefer x_1 by the factor exp(g), g = l R^2 / 4,
        l < 0:  x_1 = -R u,  x_i = R u,       g = 2 |l| R^2,

    which is the first if l_max > 8 max(0, -l_min). Moving x_1 shows that, without a mask,

        |J| >= sqrt(n - 1) p (1 + (1 - p) g) |Vu|,      p = 1 / (1 + (n - 1) exp(-g)),

    so sqrt(n) lasts until n = exp(g), where |J| is of order exp(g / 2) g |Vu| / 4, and is lost from there on.
    Far below that n a smaller R does more: the best has g near log n.

    Args:
        scores: A, a tensor (*batch, d, d), or softmax attention with one head (labelled in order if it is
            masked, so that all see x_1).
        R: radius; n: number of tokens, at least 2; t: time at which the field is asked for A.

    Reference: Castin, Ablin and Peyré 2024, section 3, whose A has a real eigenvalue; on a line only x.Ax
    counts, so any A will do that is not antisymmetric.

    >>> from otflow.stability import adversarial_tokens
    >>> adversarial_tokens([[-1.0]], 2.0, 3).x.flatten()
    tensor([-2., 2., 2.], dtype=torch.float64)
    """
    R, n = checks.positive(R, "R"), checks.count(n, "n")
    checks.require(n >= 2, "n", n, "one token has nothing to look at", "pass n >= 2")
    A, causal = _scores(scores, t)
    values, vectors = torch.linalg.eigh((A + A.mT) / 2)
    low, high = values[..., 0], values[..., -1]
    if not bool((torch.maximum(-low, high) > 0).all()):
        checks.fail(
            "A",
            A.tolist(),
            "x.Ax = 0 for every x: all tokens look alike",
            "pass scores with a symmetric part, such as torch.eye(d)",
        )
    up = (high > 8 * (-low).clamp(min=0.0))[..., None]
    u, v = R * vectors[..., -1], R * vectors[..., 0]
    first, rest = torch.where(up, u, -v), torch.where(up, u / 2, v)
    x = torch.cat([first[..., None, :], rest[..., None, :].expand(*rest.shape[:-1], n - 1, -1)], -2)
    return Particles(x, label=torch.arange(n) if causal else None)


def _scores(scores: Any, t: float) -> tuple[Tensor, bool]:
    """A, and whether there is a mask."""
    if isinstance(scores, VelocityField):
        found = _heads(scores, t)
        checks.require(
            len(found) <= 1, "scores", scores, "several heads look in several ways", "pass A of one head"
        )
        return found[0].A.detach(), found[0].causal
    A = checks.tensor(scores, "scores")
    rule = "A is (*batch, d, d)"
    checks.require(A.ndim >= 2 and A.shape[-1] == A.shape[-2], "scores.shape", A.shape, rule, "pass K^T Q")
    return A, False
