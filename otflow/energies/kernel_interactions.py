"""Interactions through functions of the scores Ax.y, whose descent in W2 is attention without softmax.

With symmetric A = -V, on every cloud, weighted, batched or on a sphere:

    unnormalised attention    ExponentialInteraction(A)
    sigmoid attention         SigmoidInteraction(A)

Differentials are closed forms, streamed in O(n) memory. On a Gaussian N(m, R R^T) both energies are closed
forms in s = Am.m, b = R^T A m and B = R^T A R, since AX.Y = s + b.z + b.w + w.Bz with independent standard
normal z and w.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, kernels
from otflow.base.errors import NotFiniteError
from otflow.base.matrices import fitting
from otflow.base.tangent import Tangent
from otflow.energies.base import MatrixEnergy, refuse_density
from otflow.measures import Gaussian, Measure, Particles
from otflow.transport.comparable import merge, streamed

REACH = 12.0  # the highest frequency; rounding: 1 / sinh(12 pi) = 8e-17 is below it
FREQUENCIES = 2**17  # at most this many frequencies; chosen: enough for scores up to 2 pi 2^17 / 12 = 7e4


class ExponentialInteraction(MatrixEnergy):
    """F(mu) = 1/2 int int exp(Ax.y) dmu dmu, A symmetric.

    Its descent is unnormalised attention with V = -A (Sander et al. 2022, Proposition 2), and in the metric
    weighed by int exp(Ax.y) dmu(y) softmax attention. On the sphere the energy E_beta = 1/(2 beta) int int
    exp(beta x.y) of Geshkovski et al. 2025 is ``ExponentialInteraction(beta * I) / beta``.

    On a Gaussian N(m, R R^T), with b = R^T A m and B = R^T A R,

        log 2F = Am.m + b.(I - B)^-1 b - 1/2 log det(I - B^2)   if |B| < 1, else F = +inf.

    F may exceed the largest number and is then inf, though `log_value` is finite. The differential is then
    not finite either: `SteepestDescent` raises `NotFiniteError`, and a flow ends with "invalid".

    Args:
        A: (d, d), symmetric. Another A would make F a sum of two energies, for A and its transpose, whose
            descent is no attention; so it is refused.

    >>> from otflow import ExponentialInteraction
    >>> import otflow as of
    >>> mu = of.Particles([[1.0], [2.0]])
    >>> F = ExponentialInteraction([[0.5]])
    >>> round(F(mu).item(), 6)  # (e^(1/2) + 2 e + e^2) / 8
    1.809293
    >>> v = of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[0]
    >>> w = of.UnnormalisedAttention([[0.5]], [[1.0]], [[-0.5]])(0.0, mu)[0]
    >>> bool((v - w).abs().max() < 1e-14)
    True
    """

    def __call__(self, mu: Measure) -> Tensor:
        return self.log_value(mu).exp()

    def log_value(self, mu: Measure) -> Tensor:
        """log F(mu), (*batch,), which does not overflow.

        >>> from otflow import ExponentialInteraction
        >>> import otflow as of
        >>> F = ExponentialInteraction([[1.0]])
        >>> round(F.log_value(of.Particles([[100.0]])).item(), 6)
        9999.306853
        """
        return _log_mean_exp(mu, self) - math.log(2)

    def differential(self, mu: Measure) -> Tangent:
        """w_i sum_j w_j exp(Ax_i.x_j) A x_j on a cloud, which is differentiable in its turn."""
        if not isinstance(mu, Particles):
            return super().differential(mu)
        x, Ax = _tokens(mu, self.A)
        logw = mu.w.log()
        mean, lse = kernels.attend(Ax, x, Ax, logw)
        return Tangent([torch.exp(logw + lse)[..., None] * mean])


class SigmoidInteraction(MatrixEnergy):
    """F(mu) = 1/2 int int log(1 + exp(Ax.y)) dmu dmu, A symmetric.

    Its descent is sigmoid attention with V = -A. On a Gaussian, with s = Am.m and the characteristic function
    phi(u) = E exp(iu AX.Y) of the scores in closed form,

        2F = log 2 + s / 2 + int_0^inf (1 - Re phi(u)) / (u sinh(pi u)) du,

    an integral over one variable in any dimension, to rounding.

    Args:
        A: (d, d), symmetric, as for `ExponentialInteraction`.

    >>> from otflow import SigmoidInteraction
    >>> import otflow as of
    >>> mu = of.Particles([[1.0], [2.0]])
    >>> F = SigmoidInteraction([[0.0]])
    >>> round(F(mu).item(), 6)  # log(2) / 2
    0.346574
    >>> v = of.SteepestDescent(SigmoidInteraction([[0.5]]), of.Wasserstein())(0.0, mu)[0]
    >>> w = of.SigmoidAttention([[0.5]], [[1.0]], [[-0.5]])(0.0, mu)[0]
    >>> bool((v - w).abs().max() < 1e-14)
    True
    """

    def __call__(self, mu: Measure) -> Tensor:
        return _mean_softplus(mu, self) / 2

    def differential(self, mu: Measure) -> Tangent:
        """w_i sum_j w_j sigmoid(Ax_i.x_j) A x_j on a cloud, which is differentiable in its turn."""
        if not isinstance(mu, Particles):
            return super().differential(mu)
        x, Ax = _tokens(mu, self.A)
        w = mu.w[..., None]
        return Tangent([w * kernels.sigmoid_sum(Ax, x, w * Ax)])


# --- clouds --------------------------------------------------------------------------------------------


def _tokens(mu: Particles, A: Tensor) -> tuple[Tensor, Tensor]:
    """The points x and Ax, (*batch, n, d)."""
    rule = "matrices do not act on tokens that wrap around"
    checks.require(mu.space.linear, "space", mu.space, rule, "use Euclidean()")
    return mu.x, mu.x @ fitting(A, "A", mu.d, mu.x)


@singledispatch
def _log_mean_exp(mu: Measure, F: ExponentialInteraction) -> Tensor:
    """log int int exp(Ax.y) dmu dmu."""
    refuse_density(mu)


@_log_mean_exp.register(Particles)
def _(mu: Particles, F: ExponentialInteraction) -> Tensor:
    x, Ax = _tokens(mu, F.A)
    good, logw = _in_range(x, Ax), mu.w.log()
    _, lse = kernels.attend(Ax, x, x[..., :1], logw)
    return checks.sound(torch.logsumexp(logw + lse, -1), good)


@singledispatch
def _mean_softplus(mu: Measure, F: SigmoidInteraction) -> Tensor:
    """int int log(1 + exp(Ax.y)) dmu dmu."""
    refuse_density(mu)


@_mean_softplus.register(Particles)
def _(mu: Particles, F: SigmoidInteraction) -> Tensor:
    x, Ax = _tokens(mu, F.A)
    good = _in_range(x, Ax)
    q, k, w = merge(Ax, mu.batch, 2), merge(x, mu.batch, 2), merge(mu.w, mu.batch, 1)
    rows = streamed(_softplus_rows, kernels.row_tiles(mu.n, w.numel()), q, k, w)
    return checks.sound((w * rows).sum(-1).reshape(mu.batch), good)


def _softplus_rows(rows: slice, q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """sum_j w_j log(1 + exp(q_i.k_j)), (B, r)."""
    s = q[:, rows] @ k.mT
    # Not by torch's softplus, which is linear from 20 on: too early for double precision.
    return (torch.logaddexp(s, torch.zeros_like(s)) @ w[..., None])[..., 0]


# --- Gaussians -----------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """AX.Y = s + b.z + b.w + w.Bz, for X = m + Rz and Y = m + Rw."""

    s: Tensor  # (*batch,)
    b: Tensor  # (*batch, r, 1)
    B: Tensor  # (*batch, r, r)

    @staticmethod
    def of(mu: Gaussian, A: Tensor) -> _Form:
        A, m = fitting(A, "A", mu.d, mu.root), mu.mean[..., None]
        AR = A @ mu.root
        return _Form((m * (A @ m)).sum((-1, -2)), AR.mT @ m, mu.root.mT @ AR)


@_log_mean_exp.register(Gaussian)
def _(mu: Gaussian, F: ExponentialInteraction) -> Tensor:
    s, b, B = _Form.of(mu, F.A)
    eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
    finite = _positive(eye - B) & _positive(eye + B)
    near = torch.where(finite[..., None, None], B, torch.zeros_like(B))
    tilt = (b * torch.linalg.solve_ex(eye - near, b).result).sum((-1, -2))
    logdet = torch.linalg.slogdet(eye - near).logabsdet + torch.linalg.slogdet(eye + near).logabsdet
    # Where it is infinite so shall be its slope, rather than zero; B does not vanish there.
    beyond = B.square().sum((-1, -2)) * torch.where(finite, 0.0, math.inf).to(B.dtype)
    return s + tilt - logdet / 2 + beyond


def _positive(m: Tensor) -> Tensor:
    """Which symmetric matrices are positive definite, (*batch,)."""
    return torch.linalg.cholesky_ex(m.detach()).info == 0


@_mean_softplus.register(Gaussian)
def _(mu: Gaussian, F: SigmoidInteraction) -> Tensor:
    form = _Form(*(a.double() for a in _Form.of(mu, F.A)))
    return _softplus_of_form(form).to(mu.dtype)


def _softplus_of_form(f: _Form) -> Tensor:
    """E log(1 + exp(AX.Y)) by the midpoint rule in frequency, exponentially accurate if no score comes near
    the inverse of its step."""
    spread = _spread(f)
    # Beyond 40 log(1 + exp) is 0 or the score itself: scores that all lie there may as well lie nearer.
    s = torch.maximum(torch.minimum(f.s, spread + 40), -spread - 40)
    u = _frequencies(s, spread)
    rate, angle = _characteristic(f._replace(s=s), u)
    # 1 - Re phi for phi = exp(-rate + i angle), without cancellation where both are small
    rest = 2 * torch.exp(-rate) * torch.sin(angle / 2).square() - torch.expm1(-rate)
    integral = (rest / (u * torch.sinh(math.pi * u))).sum(-1) * (2 * u[0])
    return math.log(2) + s / 2 + integral + (f.s - s).clamp(min=0)


def _spread(f: _Form) -> Tensor:
    """How far scores stray from s, but for a probability of about 1e-16; (*batch,)."""
    return (
        10 * (2 * f.b.detach().square().sum((-1, -2))).sqrt()
        + 40 * f.B.detach().square().sum((-1, -2)).sqrt()
    )


def _frequencies(s: Tensor, spread: Tensor) -> Tensor:
    largest = float((s.detach().abs() + spread).max()) + 40
    if not REACH * largest <= 2 * math.pi * FREQUENCIES:
        rule = "the law is too wide for the integral over frequencies"
        remedy = "scale the tokens or A down, or use Particles"
        checks.fail("score of a pair of tokens", f"{largest:.3g}", rule, remedy)
    count = math.ceil(REACH * largest / (2 * math.pi))
    return (torch.arange(count, dtype=s.dtype, device=s.device) + 0.5) * (2 * math.pi / largest)


def _characteristic(f: _Form, u: Tensor) -> tuple[Tensor, Tensor]:
    """rate and angle of E exp(iu AX.Y) = exp(-rate + i angle), (*batch, frequencies).

    It is exp(ius - u^2 b.(I - iuB)^-1 b) det(P)^(-1/2), P = I + u^2 B^2, and (I - iuB)^-1 = (I + iuB) P^-1.
    """
    b, B = f.b[..., None, :, :], f.B[..., None, :, :]
    P = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device) + u[:, None, None] ** 2 * (B @ B)
    p = torch.linalg.solve_ex(P, b).result
    rate = u**2 * (b * p).sum((-1, -2)) + torch.linalg.slogdet(P).logabsdet / 2
    return rate, u * f.s[..., None] - u**3 * (b * (B @ p)).sum((-1, -2))


# --- checks --------------------------------------------------------------------------------------------


def _in_range(x: Tensor, Ax: Tensor) -> Tensor | None:
    """An error if scores might overflow, because inf - inf would be NaN. Off the host, whether none does."""
    bound = x.shape[-1] * x.detach().abs().amax() * Ax.detach().abs().amax()
    if not checks.on_host(bound):
        return torch.isfinite(bound)
    if not bool(torch.isfinite(bound)):
        raise NotFiniteError(
            "the scores Ax.y leave the range of floating point; rescale A / 10, say, or x / 3.", bound
        )
    return None
