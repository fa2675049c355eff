"""Entropic optimal transport between Gaussians in closed form: cost |x - y|^2, penalty eps KL(pi | mu x nu).

With roots R1, R2, N = R1^T R2 of singular values s_i, z_i = 4 s_i / eps and q_i = (1 + z_i^2)^(1/2), the
optimal plan is the Gaussian with cross-covariance R1 M R2^T, where M has the singular vectors of N and the
singular values g_i = z_i / (1 + q_i) (it is `linalg.contraction` of 2 N / eps), and

    OT_eps = |m1 - m2|^2 + tr S1 + tr S2 - Phi(N),   Phi(N) = (eps / 2) sum_i (q_i - 1 - log((1 + q_i) / 2)).

Nothing is inverted, so covariances may be singular. Phi is convex with gradient 2 M.

Values are computed as sums of terms >= 0, so that nothing cancels: OT_eps as W2^2 plus the cost of blurring,
and the debiased divergence as follows. Let R2 be aligned with R1 and F = R2 - R1, so that N >= 0 is
symmetric, and M_k = M(R_k^T R_k). Since Phi is the Legendre transform of -(eps / 2) log det(I - M^2), whose
Bregman divergence splits into two of log det,

    OT_eps(mu, nu) - (OT_eps(mu, mu) + OT_eps(nu, nu)) / 2
        = |m1 - m2|^2 + tr(F M F^T) + (eps / 4) sum_(k = 1, 2) sum_(+-) D(I +- M, I +- M_k),

with D(Y, Z) = sum_i (y_i - 1 - log y_i) over the eigenvalues y of Z^-1 Y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import ByFormula, keep
from otflow.base.linalg import contraction, displacement, known, ratio, symmetric
from otflow.base.spaces import power_of_two
from otflow.measures import Gaussian
from otflow.transport.bures.geometry import matched
from otflow.transport.bures.roots import common, distance, equal_width, frame, thin
from otflow.transport.ranges import in_units


class BlurredCoupling(NamedTuple):
    """The optimal entropic plan between two Gaussians, in double precision."""

    regularised_cost: Tensor  # in units of unit^2, (*batch,)
    cost: Tensor  # in units of unit^2, (*batch,)
    cross: Tensor  # in units of unit^2, (*batch, d, d)
    unit: Tensor  # (*batch,)
    forward: Tensor  # the slope of x -> E[y | x], (*batch, d, d)
    backward: Tensor  # the slope of y -> E[x | y]
    root: Tensor  # of the joint covariance, (*batch, 2d, 2r), without derivatives
    residual: Tensor  # (*batch,)


@dataclass(frozen=True)
class _Problem:
    """Roots, means and eps in units in which the roots are of size one."""

    a: Tensor  # (*batch, d, r1)
    b: Tensor  # (*batch, d, r2)
    shift: Tensor  # m2 - m1, (*batch, d)
    eps: Tensor  # (*batch,)
    unit: Tensor  # (*batch,), a power of two

    @property
    def sizes(self) -> Tensor:
        """|m1 - m2|^2 + tr S1 + tr S2."""
        return self.shift.square().sum(-1) + sum(r.square().sum((-1, -2)) for r in (self.a, self.b))


def _problem(mu: Gaussian, nu: Gaussian, eps: float) -> _Problem:
    checks.positive(eps, "eps")
    a, b = mu.root.double(), nu.root.double()
    shift = nu.mean.double() - mu.mean.double()
    unit = power_of_two(torch.cat([a, b, shift[..., None]], -1))
    relative = eps / unit[..., 0, 0] ** 2
    rule = "in units of the covariances it leaves floating point"
    remedy = "pass eps of the size of the covariances, mu.cov.abs().max(), say"
    checks.require((torch.isfinite(relative) & (relative != 0)).all(), "eps", eps, rule, remedy)
    return _Problem(a / unit, b / unit, shift / unit[..., 0], relative, unit[..., 0, 0])


def blurred(mu: Gaussian, nu: Gaussian, eps: float) -> BlurredCoupling:
    """min over plans pi of E|x - y|^2 + eps KL(pi | mu x nu), for Gaussians that match."""
    p = _problem(mu, nu, eps)
    a, b = equal_width(thin(p.a), thin(p.b))
    n, M = _coupling(a, b, p.eps)
    return BlurredCoupling(
        regularised_cost=_value(p, n),
        cost=_transport_cost(p, n, M),
        cross=a @ M @ b.mT,
        unit=p.unit,
        forward=_conditional(p, b, n, M),
        backward=_conditional(p, a, n.mT, M.mT),
        root=_joint_root(p, a, b, n, M) * p.unit[..., None, None],
        residual=_residual(p, n, M),
    )


@torch.no_grad()
def _joint_root(p: _Problem, a: Tensor, b: Tensor, n: Tensor, M: Tensor) -> Tensor:
    """[[A, 0], [B M^T, B (I - M^T M)^(1/2)]], where I - M^T M = 2 / (1 + q) in the right basis of N."""
    u, s, _ = torch.linalg.svd(n.mT)
    _, q, _ = _spectrum(s, p.eps)
    rest = (u * (2 / (1 + q)).sqrt()[..., None, :]) @ u.mT
    upper = torch.cat([a, torch.zeros_like(a)], -1)
    return torch.cat([upper, torch.cat([b @ M.mT, b @ rest], -1)], -2)


@torch.no_grad()
def _residual(p: _Problem, n: Tensor, M: Tensor) -> Tensor:
    """|M - (I - M M^T)(2 / eps) N| relative to |M| + |2 N / eps|: of the equation that M solves."""
    goal = 2 * n / p.eps[..., None, None]
    off, own, size = (z.square().sum((-1, -2)).sqrt() for z in (M - goal + M @ (M.mT @ goal), M, goal))
    return ratio(off, own + size)


def _coupling(a: Tensor, b: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """N = A^T B and M."""
    n = a.mT @ b
    return n, contraction(2 * n / eps[..., None, None])


def _value(p: _Problem, n: Tensor) -> Tensor:
    """W2^2 + (eps / 2) sum_i ((z + q - 1) / (z + q) + log(1 + (q - 1) / 2))."""
    z, q, less = _spectrum(torch.linalg.svdvals(n.detach()), p.eps)
    blur = (z + less) / (z + q) + torch.log1p(less / 2)
    return known(_w2_squared(p) + p.eps / 2 * blur.sum(-1), p.sizes - _phi(p.a, p.b, p.eps))


def _transport_cost(p: _Problem, n: Tensor, M: Tensor) -> Tensor:
    """W2^2 + 2 sum_i s_i (1 - g_i)."""
    s = torch.linalg.svdvals(n.detach())
    z, q, _ = _spectrum(s, p.eps)
    blur = 2 * (s * _complement(z, q)).sum(-1)
    return known(_w2_squared(p) + blur, p.sizes - 2 * (M * n).sum((-1, -2)))


def _conditional(p: _Problem, b: Tensor, n: Tensor, M: Tensor) -> Tensor:
    """(2 / eps) R2 (I - M^T M) R2^T: no inverse of S1, and I - M^T M = 2 / (1 + q) in the right basis."""
    eps = p.eps[..., None, None]
    _, s, wt = torch.linalg.svd(n.detach())
    _, q, _ = _spectrum(s, p.eps)
    rest = (wt.mT * (2 / (1 + q))[..., None, :]) @ wt
    eye = torch.eye(n.shape[-1], dtype=n.dtype, device=n.device)
    return b @ (known(rest, eye - M.mT @ M) * (2 / eps)) @ b.mT


def _spectrum(s: Tensor, eps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """z = 4 s / eps, q = (1 + z^2)^(1/2) and q - 1, without cancellation."""
    z = 4 * s / eps[..., None]
    q = torch.hypot(torch.ones_like(z), z)
    return z, q, z * (z / (1 + q))


def _complement(z: Tensor, q: Tensor) -> Tensor:
    """1 - g."""
    return (1 + 1 / (z + q)) / (1 + q)


@torch.no_grad()
def _w2_squared(p: _Problem) -> Tensor:
    return p.shift.square().sum(-1) + distance(p.a, p.b).square()


class _Phi(ByFormula):
    """(A, B) -> Phi(A^T B), with gradients 2 B M^T and 2 A M, themselves differentiable."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, eps: Tensor) -> Tensor:
        keep(ctx, a, b, eps)
        _, _, less = _spectrum(torch.linalg.svdvals(thin(a).mT @ thin(b)), eps)
        return eps / 2 * (less - torch.log1p(less / 2)).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        # Second derivatives see what moves out of the frames of thin roots, so there they are left as wide
        # as they are.
        pulls = _pulls(*ctx.saved_tensors) if torch.is_grad_enabled() else _thin_pulls(*ctx.saved_tensors)
        ga, gb = (2 * grad[..., None, None] * pull for pull in pulls)
        return ga, gb, None

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, deps: None) -> Tensor:
        a, b, eps = ctx.saved_tensors
        both = zip(_thin_pulls(a, b, eps), (da, db), strict=True)
        return sum((2 * (g * dr).sum((-1, -2)) for g, dr in both if dr is not None), torch.zeros_like(eps))


def _pulls(a: Tensor, b: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """B M^T and A M, as wide as A and B."""
    x, y = equal_width(a, b)
    _, M = _coupling(x, y, eps)
    return (y @ M.mT)[..., : a.shape[-1]], (x @ M)[..., : b.shape[-1]]


def _thin_pulls(a: Tensor, b: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """The same by way of thin roots."""
    pulls, frames = _pulls(thin(a), thin(b), eps), (frame(a), frame(b))
    ga, gb = (g if turn is None else g @ turn.mT for g, turn in zip(pulls, frames, strict=True))
    return ga, gb


def _phi(a: Tensor, b: Tensor, eps: Tensor) -> Tensor:
    return _Phi.apply(a, b, eps)  # type: ignore[no-untyped-call]


# --- the debiased divergence -------------------------------------------------------------------------


def gaussian_sinkhorn_divergence(mu: Gaussian, nu: Gaussian, eps: float) -> Tensor:
    """OT_eps(mu, nu) - (OT_eps(mu, mu) + OT_eps(nu, nu)) / 2, (*batch,): >= 0, and 0 if and only if mu = nu.

    Tends to W2^2 as eps -> 0, to |m1 - m2|^2 as eps -> infinity. Computed as a sum of terms >= 0: its
    relative error is that of W2^2, rounding for roots close column by column, else about 1e-15 |R| / W2.
    Differentiable in means and roots, twice.

    >>> from otflow import Gaussian
    >>> from otflow.transport.bures.entropic import gaussian_sinkhorn_divergence
    >>> mu, nu = Gaussian([0.0], root=[[1.0]]), Gaussian([0.0], root=[[1.0 + 1e-9]])
    >>> gaussian_sinkhorn_divergence(mu, mu, 1.0).item()
    0.0
    >>> gaussian_sinkhorn_divergence(mu, nu, 1e-6).item()
    1.0e-18

    References: Mallasto, Gerolin and Minh, Entropy-regularized 2-Wasserstein distance between Gaussian
    measures, 2022.
    """
    # Equal laws given by different roots are a few roundings apart, and their divergence the square of that.
    noise = (64 * torch.finfo(torch.float64).eps) ** 2
    return in_units(*divergence_in_units(mu, nu, eps), 2, mu.dtype, "Sinkhorn divergence", noise)


def divergence_in_units(mu: Gaussian, nu: Gaussian, eps: float) -> tuple[Tensor, Tensor]:
    """The divergence in units of unit^2, and the unit, in double precision."""
    mu, nu = matched(mu, nu)
    p = _problem(mu, nu, eps)
    both, first, second = (_phi(x, y, p.eps) for x, y in ((p.a, p.b), (p.a, p.a), (p.b, p.b)))
    formula = p.shift.square().sum(-1) + (first + second) / 2 - both
    return known(_divergence(p), formula), p.unit


@torch.no_grad()
def _divergence(p: _Problem) -> Tensor:
    a, change, _ = common(p.a, p.b)
    f = displacement(a, change)
    b = a + f
    now = _Blur.of(a.mT @ a + symmetric(a.mT @ f), p.eps)
    out = p.shift.square().sum(-1) + ((f @ now.v).square().sum(-2) * now.g).sum(-1)
    for root, change in ((a, a.mT @ f), (b, -b.mT @ f)):
        out = out + p.eps / 4 * _bregman(now, _Blur.of(root.mT @ root, p.eps), symmetric(change), p.eps)
    return out


@dataclass(frozen=True)
class _Blur:
    """M(N) for symmetric N >= 0, by its eigenvectors and eigenvalues g, with 1 - g, and 1 - g^2."""

    v: Tensor
    g: Tensor
    less: Tensor
    rest: Tensor

    @staticmethod
    def of(n: Tensor, eps: Tensor) -> _Blur:
        s, v = torch.linalg.eigh(n)
        z, q, _ = _spectrum(s.clamp(min=0), eps)
        return _Blur(v, z / (1 + q), _complement(z, q), 2 / (1 + q))


def _bregman(now: _Blur, other: _Blur, change: Tensor, eps: Tensor) -> Tensor:
    """sum_(+-) D(I +- M, I +- M'), where M and M' belong to matrices that differ by ``change``.

    M - M' by divided differences between the two eigenbases, (g_i - g'_j) / (z_i - z'_j) =
    (1 - g_i^2)(1 - g'_j^2) / (2 (1 + g_i g'_j)).
    """
    turn = other.v.mT @ now.v
    ratio = now.rest[..., :, None] * other.rest[..., None, :]
    ratio = ratio / (1 + now.g[..., :, None] * other.g[..., None, :]) * (2 / eps)[..., None, None]
    moved = symmetric(turn @ (ratio * (now.v.mT @ change @ other.v)))
    total = torch.zeros_like(eps)
    for sign, y in ((1.0, 1 + other.g), (-1.0, other.less)):
        scale = y.rsqrt()
        x = sign * torch.linalg.eigvalsh(moved * scale[..., :, None] * scale[..., None, :])
        total = total + excess(x).sum(-1)
    return total


def excess(x: Tensor) -> Tensor:
    """x - log(1 + x), also for small x: with u = x / (2 + x) it is x u - 2 (u^3 / 3 + u^5 / 5 + ...)."""
    small = x.abs() < 0.5
    u = torch.where(small, x / (2 + x), torch.zeros_like(x))
    series = torch.zeros_like(x)
    for k in range(35, 1, -2):
        series = (series + 1 / k) * u.square()
    return torch.where(small, x * u - 2 * u * series, x - torch.log1p(torch.where(small, 0.0, x)))
