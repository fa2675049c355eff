"""Rates at which an attention field pulls clouds apart: bounds on its Jacobian in a tube around a cloud.

Displace token i by e_i. On a cloud, attention with scores s_ij has the derivative

    (Je)_i = X_i e_i + sum_j P_ij V e_j + sum_j S_ij V (x_j - m_i) (g_ij . e_j),      X_i = V C_i A,

where P_ij are the weights of the values and S_ij their derivatives in s_ij, g_ij is the gradient of s_ij in
x_j, and C_i = sum_j S_ij (x_j - m_i)(x_j - m_i)^T. Softmax and L2 attention have S = P and C_i is the
covariance of the law mu tilted by the query of token i, m_i its mean; without normalisation m_i = 0. Hence
||e||_p = (sum_i w_i |e_i|^p)^(1/p) grows at most at the rate

    max_i top(X_i) + |V| max_j (sum_i w_i P_ij / w_j)^(1/p)
        + max_j (sum_i w_i S_ij (G_i |g_ij|)^p / w_j)^(1/p)

for p >= 2, with top(X) the largest eigenvalue of (X + X^T) / 2 and G_i = |V C_i V^T|^(1/2). All of it is
bounded over the clouds z with |z_i - x_i| <= rho, by what rho can do to scores, means and covariances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from otflow.base import checks, kernels
from otflow.base.errors import UnknownBoundError
from otflow.base.kernels import row_tiles
from otflow.base.linalg import symmetric
from otflow.base.tangent import Tangent
from otflow.fields import MultiHead, Perceptron, SinkhornAttention, VelocityField
from otflow.fields.attention import (
    Attention,
    L2Attention,
    SigmoidAttention,
    SoftmaxAttention,
    UnnormalisedAttention,
    Weights,
)
from otflow.fields.base import SumField
from otflow.fields.weights import apply, fits
from otflow.measures import Particles
from otflow.stability.bounds.constants import constants, hardy_factor

Kernel = Callable[[Tensor], tuple[Tensor, Tensor]]


class Rates(NamedTuple):
    """Bounds on the growth of displacements, (*batch,) each."""

    p: Tensor  # of (sum_i w_i |e_i|^p)^(1/p)
    sup: Tensor  # of max_i |e_i|

    def plus(self, other: Rates) -> Rates:
        """The rates of a sum of fields."""
        return Rates(self.p + other.p, self.sup + other.sup)


@singledispatch
def rates(
    field: VelocityField, mu: Particles, t: Tensor, rho: Tensor, p: float, left: Tensor | None = None
) -> Rates:
    """Growth rates of displacements under left @ field, over all clouds within rho (*batch,) of mu.

    A field of which no more is known has its constants on a ball that contains these clouds.
    """
    radius = mu.x.norm(dim=-1).amax(-1) + rho
    factor = 1.0 if left is None else norm(left)
    found = constants(field, radius, t)
    return Rates(*(factor * found.log_lip(q).exp() for q in (p, math.inf)))


@rates.register
def _(field: SumField, mu: Particles, t: Tensor, rho: Tensor, p: float, left: Tensor | None = None) -> Rates:
    eye = torch.eye(mu.d, dtype=mu.dtype, device=mu.device) if left is None else left
    first, *rest = (rates(term, mu, t, rho, p, factor * eye) for term, factor in field.pairs())
    return _sum(first, rest)


@rates.register
def _(
    field: Perceptron, mu: Particles, t: Tensor, rho: Tensor, p: float, left: Tensor | None = None
) -> Rates:
    """A linear one is known exactly, of others only the norms are used."""
    if field.activation is not None:
        return rates.dispatch(VelocityField)(field, mu, t, rho, p, left)
    W, U = (fits(w, name, 2, mu, t) for name, w in (("W", field.W), ("U", field.U)))
    rate = _largest(W @ U if left is None else left @ W @ U).expand(rho.shape)
    return Rates(rate, rate)


@rates.register
def _(field: MultiHead, mu: Particles, t: Tensor, rho: Tensor, p: float, left: Tensor | None = None) -> Rates:
    mixes = field.mix or (None,) * len(field.heads)
    both = [_product(left, None if W is None else fits(W, "mix", 2, mu, t)) for W in mixes]
    first, *rest = (rates(head, mu, t, rho, p, W) for head, W in zip(field.heads, both, strict=True))
    return _sum(first, rest)


@rates.register
def _(field: Attention, mu: Particles, t: Tensor, rho: Tensor, p: float, left: Tensor | None = None) -> Rates:
    m = field.weights(t, mu)
    m = m if left is None else m._replace(V=left @ m.V)
    return _of_head(head(field, m, mu), mu, rho, p, field.causal)


@rates.register
def _(
    field: SinkhornAttention, mu: Particles, t: Tensor, rho: Tensor, p: float, left: Tensor | None = None
) -> Rates:
    m = field.weights(t, mu)
    if p != 2:
        rule = "for Sinkhorn attention a bound is known in W_2 only"
        checks.fail("p", p, rule, "choose p = 2", UnknownBoundError)
    return _of_sinkhorn(field, m if left is None else m._replace(V=left @ m.V), mu, rho)


def _sum(first: Rates, rest: list[Rates]) -> Rates:
    for other in rest:
        first = first.plus(other)
    return first


def _product(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a @ b


def norm(a: Tensor) -> Tensor:
    """The spectral norm, (*batch,)."""
    return torch.linalg.matrix_norm(a, 2)


# --- attention with explicit weights -------------------------------------------------------------------


@dataclass(frozen=True)
class HeadOnCloud:
    """Scores s_ij = q_i.k_j + b_j on a cloud, and what displacements by rho do to them."""

    q: Tensor
    k: Tensor
    b: Tensor | None
    A: Tensor  # the gradient of s_ij in x_i is A^T x_j, up to what does not depend on j
    V: Tensor
    slopes: Callable[[slice], Tensor]  # |g_ij| for some rows, (*batch, r, n) or (*batch, r, 1)
    stiff: Tensor  # |g_ij| changes by at most stiff rho
    bend: Tensor  # the second order of s_ij is at most bend rho^2
    kernel: Kernel | None  # log k(s) and log k'(s); None for the exponential, normalised

    @property
    def averages(self) -> bool:
        """Whether the weights of each row sum to one."""
        return self.kernel is None


@singledispatch
def head(field: Attention, m: Weights, mu: Particles) -> HeadOnCloud:
    """The head of an attention field."""
    rule, remedy = "no bound on its Jacobian is known", "register constants with stability.constants"
    checks.fail("field", repr(field), rule, remedy, UnknownBoundError)


def _bilinear(m: Weights, mu: Particles, kernel: Kernel | None) -> HeadOnCloud:
    A = m.K.mT @ m.Q
    slope = apply(A, mu.x).norm(dim=-1)
    a = norm(A)
    return HeadOnCloud(
        apply(m.Q, mu.x), apply(m.K, mu.x), None, A, m.V, lambda r: slope[..., r, None], a, a, kernel
    )


@head.register
def _(field: SoftmaxAttention, m: Weights, mu: Particles) -> HeadOnCloud:
    return _bilinear(m, mu, None)


@head.register
def _(field: UnnormalisedAttention, m: Weights, mu: Particles) -> HeadOnCloud:
    return _bilinear(m, mu, lambda s: (s, s))


@head.register
def _(field: SigmoidAttention, m: Weights, mu: Particles) -> HeadOnCloud:
    return _bilinear(m, mu, lambda s: (logsigmoid(s), logsigmoid(s) + logsigmoid(-s)))


@head.register
def _(field: L2Attention, m: Weights, mu: Particles) -> HeadOnCloud:
    """s_ij = 2 Ax_i.x_j - |Kx_j|^2, with gradient 2 K^T (Qx_i - Kx_j) in x_j."""
    A, key = m.K.mT @ m.Q, apply(m.K, mu.x)
    ours, theirs = 2 * apply(A, mu.x), 2 * apply(m.K.mT, key)
    q, k = norm(m.Q), norm(m.K)
    return HeadOnCloud(
        2 * apply(m.Q, mu.x),
        key,
        -key.square().sum(-1),
        2 * A,
        m.V,
        lambda r: torch.cdist(ours[..., r, :], theirs),
        2 * k * (q + k),
        2 * norm(A) + k**2,
        None,
    )


class Tube(NamedTuple):
    """The clouds z with |z_i - x_i| <= rho, and what is needed of x again and again."""

    x: Tensor  # (*batch, n, d)
    w: Tensor  # (*batch, n)
    label: Tensor | None  # (*batch, n), if labels hide tokens
    y: Tensor  # x seen from where distances are taken
    outer: Tensor  # y_j y_j^T, (*batch, n, d^2)
    rho: Tensor  # (*batch, 1)


def _tube(mu: Particles, rho: Tensor, *, centred: bool, causal: bool = False) -> Tube:
    x, w = mu.x.detach(), mu.w.detach()
    c = (w[..., None] * x).sum(-2, keepdim=True) if centred else torch.zeros_like(x[..., :1, :])
    outer = ((x - c)[..., :, None] * (x - c)[..., None, :]).flatten(-2)
    return Tube(x, w, mu.label if causal else None, x - c, outer, rho[..., None])


class _Rows(NamedTuple):
    """What some rows contribute."""

    top: Tensor  # top(X_i), (*batch, r)
    own: Tensor  # the gain of row i for sup |e|, (*batch, r)
    averaged: Tensor  # the gain of row i over the average of |e| that it sees, (*batch, r)
    values: Tensor  # log sum_i w_i P_ij / w_j, raised as p wants it, (*batch, n)
    scores: Tensor  # the same with S_ij (G_i |g_ij|)^p, (*batch, n)


def _of_head(h: HeadOnCloud, mu: Particles, rho: Tensor, p: float, causal: bool) -> Rates:
    tube = _tube(mu, rho, centred=h.averages, causal=causal)
    parts = [_rows(h, tube, r, p) for r in row_tiles(mu.n, math.prod(mu.batch) * mu.n)]
    massive = tube.w > 0  # tokens without mass are free to go anywhere
    top, own, averaged = (_most(torch.cat(rows, -1), massive) for rows in list(zip(*parts, strict=True))[:3])
    columns = [torch.stack(sums).logsumexp(0) for sums in list(zip(*parts, strict=True))[3:]]
    values, scores = ((_most(c, massive) / p).exp() for c in columns)
    mean = own if math.isinf(p) else norm(h.V) * values + scores
    if causal and h.averages:
        mean = torch.minimum(mean, hardy_factor(p) * averaged)
    return Rates(top + mean, top + own)


def _most(a: Tensor, massive: Tensor) -> Tensor:
    return a.masked_fill(~massive, -math.inf).amax(-1)


def _rows(h: HeadOnCloud, tube: Tube, r: slice, p: float) -> _Rows:
    value, score = _densities(h, tube, r)
    S = score.exp() * tube.w[..., None, :]
    q, total = S.sum(-1), (value.exp() * tube.w[..., None, :]).sum(-1)
    C = _moments(S, tube, centred=h.averages)
    slope = h.slopes(r)
    E = _shift(h, tube, slope)
    slope = slope + (h.stiff[..., None] * tube.rho)[..., None]
    if not h.averages:  # the masses of rows may grow, those of normalised rows are one
        q, total = E.exp() * q, E.exp() * total
    v, steep = norm(h.V)[..., None], slope.amax(-1)
    G = (E / 2).exp() * width(h.V, C) + v * tube.rho * q.sqrt()
    far = _far(h, tube)
    seen = (tube.w[..., None, :] * torch.isfinite(value)).sum(-1)
    gain = G * q ** (0.5 - 1 / p) if p >= 2 else far * q ** (1 - 1 / p)
    mass = tube.w[..., r].log() + E
    first = mass + (p - 1) * total.log() if p < math.inf else mass
    second = mass[..., None] + p * torch.log(gain[..., None] * slope) if p < math.inf else mass[..., None]
    return _Rows(
        top=_top(h, C, q, E, tube.rho),
        own=v * total + G * q.sqrt() * steep,
        averaged=(E + value.amax(-1)).exp() * seen * (v + far * steep),
        values=(first[..., None] + value).logsumexp(-2),
        scores=(second + score).logsumexp(-2),
    )


def _densities(h: HeadOnCloud, tube: Tube, r: slice) -> tuple[Tensor, Tensor]:
    """log P_ij / w_j and log S_ij / w_j for some rows; -infinity where a label hides a token."""
    s = h.q[..., r, :] @ h.k.mT
    s = s if h.b is None else s + h.b[..., None, :]
    hidden = None if tube.label is None else tube.label[..., None, :] > tube.label[..., r, None]
    if h.kernel is None:
        s = s if hidden is None else s.masked_fill(hidden, -math.inf)
        s = s - (s + tube.w.log()[..., None, :]).logsumexp(-1, keepdim=True)
        return s, s
    value, score = h.kernel(s)
    if hidden is None:
        return value, score
    return value.masked_fill(hidden, -math.inf), score.masked_fill(hidden, -math.inf)


def _moments(S: Tensor, tube: Tube, *, centred: bool) -> Tensor:
    """C_i for some rows, (*batch, r, d, d)."""
    d = tube.y.shape[-1]
    C: Tensor = (S @ tube.outer).reshape(*S.shape[:-1], d, d)
    m = S @ tube.y
    return C - m[..., :, None] * m[..., None, :] if centred else C


def _shift(h: HeadOnCloud, tube: Tube, slope: Tensor) -> Tensor:
    """E_i: by how much log P_ij and log S_ij can change in the tube.

    A row that is normalised does not see shifts of its scores, so only distances from the centre count, but
    it feels the change of its sum.
    """
    D: Tensor = tube.y.norm(dim=-1).amax(-1, keepdim=True)
    change: Tensor = norm(h.A)[..., None] * D + h.bend[..., None] * tube.rho + slope.amax(-1)
    return (2.0 if h.averages else 1.0) * change * tube.rho


def width(M: Tensor, C: Tensor) -> Tensor:
    """|M C M^T|^(1/2) for each row."""
    M = M[..., None, :, :]
    return _largest(M @ C @ M.mT).clamp(min=0.0).sqrt()


def _largest(a: Tensor) -> Tensor:
    """The largest eigenvalue of the symmetric part; infinity if that is not finite."""
    fine = torch.isfinite(a).all(-1).all(-1)
    safe = torch.where(fine[..., None, None], a, torch.zeros_like(a))
    top: Tensor = torch.linalg.eigvalsh(symmetric(safe))[..., -1]
    return top.masked_fill(~fine, math.inf)


def _far(h: HeadOnCloud, tube: Tube) -> Tensor:
    """A bound on |V (z_j - m_i)| in the tube, (*batch, 1): m_i is in the hull of the tokens, or 0."""
    reach = [apply(h.V, z).norm(dim=-1).amax(-1, keepdim=True) for z in (tube.x, tube.y)]
    drift = norm(h.V)[..., None] * tube.rho
    return 2 * (torch.minimum(*reach) + drift) if h.averages else reach[0] + drift


def _top(h: HeadOnCloud, C: Tensor, q: Tensor, E: Tensor, rho: Tensor) -> Tensor:
    """top(V C_i A) over the tube, where C_i moves by at most dC in norm."""
    X = h.V[..., None, :, :] @ C @ h.A[..., None, :, :]
    s, grow = _largest(C).clamp(min=0).sqrt(), torch.expm1(E)
    dC = grow * s**2 + 2 * rho * (E / 2).exp() * q.sqrt() * s + q * rho**2
    if h.averages:  # the mean moves as well
        dC = dC + (grow * s + rho) ** 2
    return _largest(X) + (norm(h.V) * norm(h.A))[..., None] * dC


# --- Sinkhorn ------------------------------------------------------------------------------------------


def _of_sinkhorn(field: SinkhornAttention, m: Weights, mu: Particles, rho: Tensor) -> Rates:
    """(|V| + G (max_i |A^T C_i A|^(1/2) + max_j |A C'_j A^T|^(1/2)) / eps) / eps, for p = 2.

    The weights P are bistochastic, and d log P is ds / eps less its projection, in L2 of the plan w_i P_ij,
    on the sums a_i + b_j: no exponential appears. C'_j is the covariance of the tokens that look at j.
    """
    tube, A, eps = _tube(mu, rho, centred=True), m.K.mT @ m.Q, field.eps
    q, k, logw = apply(m.Q, tube.y) / eps, apply(m.K, tube.y), tube.w.log()
    g, carry = field.scaling(m, q, k, logw, None)
    field.insist(carry, Tangent([g]))
    f = -kernels.attend(q, k, k, g + logw)[1]
    G, ours = _widths(q, k, g + logw, tube, m.V, A.mT)
    (theirs,) = _widths(k, q, f + logw, tube, A)
    v, a = norm(m.V), norm(A)
    grow = (_sinkhorn_shift(tube, a / eps) / 2).exp()
    rate = (v + (grow * G + v * rho) * (grow * (ours + theirs) + 2 * a * rho) / eps) / eps
    return Rates(rate, torch.full_like(rate, math.inf))


def _widths(q: Tensor, k: Tensor, b: Tensor, tube: Tube, *matrices: Tensor) -> list[Tensor]:
    """max_i |M C_i M^T|^(1/2) for each M, C_i the covariance under the softmax of q_i.k_j + b_j."""
    n, massive = tube.w.shape[-1], tube.w > 0
    found: list[list[Tensor]] = [[] for _ in matrices]
    for r in row_tiles(n, tube.w.numel()):
        C = _moments(torch.softmax(q[..., r, :] @ k.mT + b[..., None, :], -1), tube, centred=True)
        for rows, M in zip(found, matrices, strict=True):
            rows.append(width(M, C))
    return [_most(torch.cat(rows, -1), massive) for rows in found]


def _sinkhorn_shift(tube: Tube, a: Tensor) -> Tensor:
    """By how much log P_ij can change in the tube, (*batch,), for |A| / eps = a.

    The scores change by at most eta, up to sums a_i + b_j. Both half-steps of the scaling contract by kappa =
    tanh(a D^2) (Birkhoff), so the potentials change by at most eta / (1 - kappa), up to constants.
    """
    D, rho = tube.y.norm(dim=-1).amax(-1), tube.rho[..., 0]
    eta = a * (2 * D + rho) * rho
    E = 2 * eta + 2 * eta * (1 + (2 * a * D**2).exp())
    return torch.where(rho == 0, torch.zeros_like(E), E)
