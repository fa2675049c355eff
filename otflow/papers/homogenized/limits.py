"""Limits of deep random Transformers: an ODE of means, an SDE with common noise, and laws of overlaps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import NotFiniteError
from otflow.base.kernels import attend
from otflow.base.spaces import Sphere
from otflow.base.tangent import Tangent
from otflow.dynamics.flow import flow
from otflow.dynamics.noise import BrownianPath, Noise
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles
from otflow.papers.homogenized.random_layers import LIMIT, Draws, barycentres, chunks, width
from otflow.papers.homogenized.weights import GaussianWeights, Seed, gaussian, of_dimension, tokens
from otflow.steppers import Dopri5, Euler

FRESH = 16  # heads that the noise draws in every step


# --- the matrix s --------------------------------------------------------------------------------------


def s_matrix(x: Any, *, weights: GaussianWeights, beta: float, draws: int = 1024, rng: Seed) -> Tensor:
    """s_ij = E_A <m_A(x_i), m_A(x_j)>, m_A(x) = sum_k softmax_k(beta <A x, x_k>) x_k; (*batch, n, n).

    The noise of tokens i and j has covariance sigma_V^2 s_ij P_i P_j. It is an average over draws of A, exact
    if beta = 0, where s_ij = |mean of x|^2, or if A is not random.

    Args:
        x: tokens (*batch, n, d) on the sphere.
        weights, beta: as in `chain`.
        draws: of A, for each member of the batch; the error is that of a mean of so many numbers in [-1, 1].
        rng: a seed or a `numpy.random.Generator`.

    >>> import torch
    >>> from otflow.papers.homogenized import GaussianWeights, s_matrix
    >>> x = torch.eye(2, dtype=torch.float64)
    >>> s_matrix(x, weights=GaussianWeights(2), beta=0.0, rng=0)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    x, (weights, beta) = tokens(x), gaussian(weights, beta)
    of_dimension(weights, x.shape[-1])
    total = checks.count(draws, "draws") if beta * weights.sigma_A > 0 else 1
    flat, source = x.reshape(-1, *x.shape[-2:]), Draws(checks.generator(rng))
    out = torch.zeros(flat.shape[0], x.shape[-2], x.shape[-2], dtype=torch.float64)
    step = max(1, LIMIT // (flat.shape[0] * x.shape[-2] * max(x.shape[-2:])))
    with torch.no_grad():
        for k in range(0, total, step):
            m = barycentres(weights, flat, beta, min(step, total - k), source, ambient=False)
            out += (m @ m.mT).sum(1)
    if not bool(torch.isfinite(out).all()):
        raise NotFiniteError(
            f"s is not finite (scores overflow); pass a smaller beta, {beta / 10:g} say.", out
        )
    return (out / total).reshape(*x.shape[:-1], x.shape[-2])


# --- drift and bracket of overlaps ---------------------------------------------------------------------


def overlap_drift(R: Any, s: Any, d: int) -> Tensor:
    """D_ij = (d - 2 + R_ij^2) s_ij / d - (d - 1) R_ij (s_ii + s_jj) / (2 d), so that dR_ij = D_ij dt + noise.

    Args:
        R: overlaps <x_i, x_j>, (*batch, n, n).
        s: `s_matrix`, of the same shape.
        d: dimension of tokens; time is the rescaled clock.

    >>> import torch
    >>> from otflow.papers.homogenized import overlap_drift
    >>> R = torch.eye(2, dtype=torch.float64)
    >>> overlap_drift(R, torch.full((2, 2), 0.5), 4)[0, 1].item()  # s (d - 2) / d
    0.25

    Reference: Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978, the drift of overlaps.
    """
    R, s, ends, d = _overlaps(R, s, d)
    drift: Tensor = (d - 2 + R.square()) / d * s - (d - 1) / (2 * d) * R * ends
    return drift


def overlap_bracket(R: Any, s: Any, d: int) -> Tensor:
    """d<R_ij>/dt = (1 - R_ij^2) (s_ii + s_jj - 2 R_ij s_ij) / d, the rate of the variance of R_ij (ours).

    Args:
        R, s, d: as in `overlap_drift`.

    >>> import torch
    >>> from otflow.papers.homogenized import overlap_bracket
    >>> R = torch.eye(2, dtype=torch.float64)
    >>> overlap_bracket(R, torch.full((2, 2), 0.5), 4)[0, 1].item()
    0.25
    """
    R, s, ends, d = _overlaps(R, s, d)
    bracket: Tensor = (1 - R.square()) * (ends - 2 * R * s) / d
    return bracket


def _overlaps(R: Any, s: Any, d: int) -> tuple[Tensor, Tensor, Tensor, int]:
    R, s = (checks.tensor(M, name).detach().double() for M, name in ((R, "R"), (s, "s")))
    if R.ndim < 2 or R.shape[-1] != R.shape[-2] or R.shape != s.shape:
        shapes = tuple(R.shape), tuple(s.shape)
        checks.fail("shapes of R, s", shapes, "both are (*batch, n, n)", "pass x @ x.mT and s_matrix(x, ...)")
    if bool((R.abs() > 1 + 1e-9).any()):
        checks.fail("max |R|", R.abs().max().item(), "tokens have norm 1", "pass x @ x.mT")
    own = s.diagonal(dim1=-2, dim2=-1)
    return R, s, own[..., :, None] + own[..., None, :], checks.count(d, "d")


def flat_drift(R: Any, d: int) -> Tensor:
    """D_ij = m (1 - R_ij) (d - 2 - R_ij) / d with m = n^-2 sum_ij R_ij: `overlap_drift` at beta = 0 (ours).

    Args:
        R: overlaps (*batch, n, n); d: dimension of tokens.

    >>> import torch
    >>> from otflow.papers.homogenized import flat_drift
    >>> flat_drift(torch.eye(2), 4)[0, 1].item()
    0.25
    """
    R, _, _, d = _overlaps(R, R, d)
    drift: Tensor = R.mean((-1, -2), keepdim=True) * (1 - R) * (d - 2 - R) / d
    return drift


# --- ODE -----------------------------------------------------------------------------------------------


class ExpectedAttention(VelocityField):
    """b(x) = mean_V E_A m_A(x), projected to the sphere: what a layer does on average.

    The mean over A is one over a bank of ``draws`` heads, drawn once, so that the field does not change.

    Args:
        weights: `GaussianWeights`; without a mean of V the field is zero.
        beta: inverse temperature >= 0.
        draws: size of the bank, if A is random. The field differs from its mean by O(draws^-1/2): with 256
            heads, overlaps along a run were seen to differ by up to 0.03 from one seed to another.
        rng: a seed or a `numpy.random.Generator`.

    >>> from otflow import Particles, Sphere
    >>> from otflow.papers.homogenized import ExpectedAttention, GaussianWeights
    >>> x = Particles([[1.0, 0.0], [0.0, 1.0]], space=Sphere())
    >>> ExpectedAttention(GaussianWeights(2, mean_V=2.0), 0.0, rng=0)(0.0, x)[0]
    tensor([[0., 1.],
            [1., 0.]], dtype=torch.float64)
    """

    def __init__(self, weights: GaussianWeights, beta: float, *, draws: int = 256, rng: Seed) -> None:
        self.weights, self.beta = gaussian(weights, beta)
        random = self.beta * weights.sigma_A > 0 and weights.mean_V is not None  # else no bank is needed
        self.draws = checks.count(draws, "draws") if random else 1
        self.A = weights(checks.generator(rng), (self.draws,))[1]

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        x = spherical(mu, self.weights)
        mean = self.weights.mean_V
        if mean is None:
            return Tangent([torch.zeros_like(x)])
        xs, total = x[..., None, :, :], torch.zeros_like(x)
        step = max(1, 16 * LIMIT // (x.numel() * max(1, x.shape[-2] // x.shape[-1])))
        for A in self.A.to(x).split(step):
            total = total + attend(self.beta * xs @ A.mT, xs, xs)[0].sum(-3)
        return mu.tangent(Tangent([total / self.draws @ mean.to(x).mT]))

    def __repr__(self) -> str:
        return f"ExpectedAttention(d={self.weights.d}, beta={self.beta:g}, draws={self.draws})"


def spherical(mu: Measure, weights: GaussianWeights) -> Tensor:
    """The tokens of mu, if they are on the sphere and equal in weight and dimension."""
    if not (isinstance(mu, Particles) and isinstance(mu.space, Sphere) and mu.uniform):
        rule = "Particles(x, space=Sphere()) of equal weights are needed"
        checks.fail("mu", repr(mu), rule, "pass Particles(x / x.norm(dim=-1, keepdim=True), space=Sphere())")
    of_dimension(weights, mu.d)
    return mu.x


# --- SDE -----------------------------------------------------------------------------------------------


class HeadNoise(Noise):
    """sqrt(rate) sigma_V P_i sum_j C_ij dW_j with C C^T = s, the noise that all tokens share.

    It is an Ito noise. Moves on the sphere end with a normalisation, from which the Ito correction
    -(d - 1)/2 rate sigma_V^2 s_ii x_i dt comes by itself. s is estimated in every step from ``draws`` new
    heads, drawn by the time of the step; since only the mean of s enters the generator, few do. If V has a
    mean and A is random, the noise of mean_V (m_A - E m_A) is added, from ``draws`` numbers more.

    Args:
        weights: `GaussianWeights`.
        beta: inverse temperature >= 0.
        rate: 1 on the rescaled clock eta^2 L / H, eta / H in depth eta L.
        draws: heads in every step, at least 2.
        path, rng: as in `Noise`; W has shape (*batch, n, d), or (*batch, n d + draws) with a mean.

    >>> import torch
    >>> from otflow.papers.homogenized import ExpectedAttention, GaussianWeights, HeadNoise
    >>> import otflow as of
    >>> mu = of.Particles(torch.eye(3), space=of.Sphere())
    >>> noise = HeadNoise(GaussianWeights(3), 1.0, rng=0)
    >>> field = ExpectedAttention(noise.weights, 1.0, rng=0)
    >>> of.flow(mu, field, of.Euler(), t1=0.5, dt=0.1, noise=noise).status
    'ok'

    Reference: Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978; without draws of V, ours.
    """

    def __init__(
        self,
        weights: GaussianWeights,
        beta: float,
        *,
        rate: float = 1.0,
        draws: int = FRESH,
        path: BrownianPath | None = None,
        rng: Seed | None = None,
    ) -> None:
        super().__init__(path=path, rng=rng if rng is None else checks.generator(rng))
        self.weights, self.beta = gaussian(weights, beta)
        self.rate, self.draws = checks.positive(rate, "rate"), checks.count(draws, "draws")
        if self.draws < 2:
            checks.fail("draws", draws, "a covariance needs two heads at least", "choose draws >= 2")
        self.random = self.beta * weights.sigma_A > 0
        self.spread = self.random and weights.mean_V is not None
        self.seed = path.seed if path is not None else _seed(self.rng)

    def shape(self, mu: Measure) -> tuple[int, ...]:
        x = spherical(mu, self.weights)
        return (*x.shape[:-2], x.shape[-2] * x.shape[-1] + self.draws) if self.spread else tuple(x.shape)

    def increment(self, t: Tensor, mu: Measure, dW: Tensor) -> Tangent:
        x = spherical(mu, self.weights)
        flat = x.detach().double().reshape(-1, *x.shape[-2:])
        source = Draws(np.random.default_rng([self.seed, *np.float64(t.item()).tobytes()]))
        paths = dW.double().reshape(len(flat), -1)
        each = self.draws * width(self.weights, *x.shape[-2:])
        parts = [self._shift(flat[k], paths[k], source) for k in chunks(len(flat), each)]
        return mu.tangent(Tangent([math.sqrt(self.rate) * torch.cat(parts).reshape(x.shape).to(x)]))

    def _shift(self, x: Tensor, dW: Tensor, source: Draws) -> Tensor:
        """The increment of (B, n, d), not yet projected."""
        heads = self.draws if self.random else 1
        m = barycentres(self.weights, x, self.beta, heads, source, ambient=self.spread)
        own = x[0].numel()
        u = self.weights.sigma_V * cholesky(m) @ dW[:, :own].reshape(x.shape)
        if not self.spread or self.weights.mean_V is None:
            return u
        about = (m - m.mean(1, keepdim=True)) @ self.weights.mean_V.mT
        return u + torch.einsum("bhnd,bh->bnd", about, dW[:, own:]) / math.sqrt(heads - 1)


def _seed(rng: Seed | None) -> int:
    return 0 if rng is None else int(checks.generator(rng).integers(2**63))


def cholesky(m: Tensor) -> Tensor:
    """C (B, n, n), lower triangular with diagonal >= 0, C C^T = 1/H sum_h m_h m_h^T; by QR, not from s."""
    n = m.shape[-2]
    r = torch.linalg.qr(m.permute(0, 1, 3, 2).flatten(1, 2), mode="r").R
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    C = (sign[..., None] * r).mT / math.sqrt(m.shape[1])
    return torch.nn.functional.pad(C, (0, n - C.shape[-1]))


# --- runs ----------------------------------------------------------------------------------------------


def ode(
    x0: Any,
    *,
    weights: GaussianWeights,
    beta: float,
    t1: float,
    rng: Seed,
    draws: int = 256,
    save_at: Any = None,
) -> Trajectory:
    """x_i' = P_i mean_V E_A m_A(x_i) in depth t = eta L: the limit eta / H -> 0 of the chain.

    Args:
        x0: tokens (*batch, n, d) on the sphere.
        weights, beta, draws, rng: as in `ExpectedAttention`.
        t1, save_at: as in `otflow.flow`, by the adaptive `Dopri5`.

    >>> from otflow.papers.homogenized import GaussianWeights, ode
    >>> law = GaussianWeights(2, mean_V=1.0)
    >>> end = ode([[1.0, 0.0], [0.0, 1.0]], weights=law, beta=0.0, t1=9.0, rng=0).final
    >>> (end.x[0] @ end.x[1]).item() > 0.999
    True
    """
    field = ExpectedAttention(weights, beta, draws=draws, rng=rng)
    return flow(Particles(tokens(x0), space=Sphere()), field, Dopri5(), t1=t1, save_at=save_at)


def sde(
    x0: Any,
    *,
    weights: GaussianWeights,
    beta: float,
    t1: float,
    dt: float,
    rng: Seed,
    rate: float = 1.0,
    draws: int = FRESH,
    bank: int = 256,
    samples: int | None = None,
    save_at: Any = None,
) -> Trajectory:
    """dx_i = P_i b(x_i) dt + sqrt(rate) sigma_V P_i sum_j C_ij dW_j - (d - 1)/2 rate sigma_V^2 s_ii x_i dt.

    By Euler and Maruyama's steps in `otflow.flow`, no V drawn. Each member of the batch has its own W, shared
    by its tokens; for many tokens it is a particle system of the McKean-Vlasov equation given W. The first
    two terms are those for a random V; `HeadNoise` says what a random A adds.

    Args:
        x0: tokens (*batch, n, d) on the sphere.
        weights, beta, rate, draws: as in `HeadNoise`; a mean of V asks for rate = eta / H.
        t1, dt, save_at: as in `otflow.flow`.
        bank: draws of A in `ExpectedAttention`; its error is that of a mean, and no average over samples
            takes it away.
        samples: so many copies of x0, as a new first axis.

    >>> import torch
    >>> from otflow.papers.homogenized import GaussianWeights, sde
    >>> law = GaussianWeights(3)
    >>> sde(torch.eye(3), weights=law, beta=1.0, t1=0.2, dt=0.1, rng=0, samples=4).final
    Particles(n=3, d=3, batch=(4,), space=Sphere(atol=1e-06))
    """
    rng, mu = checks.generator(rng), Particles(tokens(x0, samples), space=Sphere())
    field = ExpectedAttention(weights, beta, draws=bank, rng=rng)
    noise = HeadNoise(weights, beta, rate=rate, draws=draws, rng=rng)
    return flow(mu, field, Euler(), t1=t1, dt=dt, noise=noise, save_at=save_at)
