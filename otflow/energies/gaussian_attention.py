"""Energies of scores Ax.y, of which attention on Gaussians is the steepest descent in W2.

With symmetric A = -V (compare Sander et al. 2022; Castin, Ablin, Carrillo and Peyré 2025):

    softmax attention    SquaredScores(A)         on centred Gaussians
    Sinkhorn attention   SelfTransport(A, eps)    on any law
    L2 attention         L2Energy(K, c)           on centred Gaussians, Q = cK and V = -c K^T K
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import ByFormula, dual, keep
from otflow.base.errors import DerivativeError
from otflow.base.linalg import contraction
from otflow.base.matrices import fitting, one_square
from otflow.base.parameters import Derived
from otflow.base.tangent import Tangent
from otflow.energies.base import Bounds, Energy, MatrixEnergy, refuse_density
from otflow.measures import Gaussian, Measure, Particles
from otflow.transport.bures.entropic import excess
from otflow.transport.entropic.costs import BilinearCost
from otflow.transport.entropic.options import Sinkhorn, as_options
from otflow.transport.entropic.sinkhorn import sinkhorn


class SquaredScores(MatrixEnergy):
    """F(mu) = 1/4 int int (Ax.y)^2 dmu dmu = 1/4 tr(A M A^T M), with the second moments M; O(n d^2).

    Its descent is linear attention, x -> -(A^T M A + A M A^T) x / 2. On centred Gaussians that is softmax
    attention with V = -A for symmetric A, and with V = A for skew A; a sum of such energies is multi-head
    attention. Convex along geodesics of centred Gaussians if A is symmetric and semidefinite.

    Args:
        A: (d, d).

    >>> from otflow import SquaredScores
    >>> import otflow as of
    >>> mu = of.Gaussian([0.0], root=[[2.0]])
    >>> F = SquaredScores([[0.5]])
    >>> F(mu).item()
    1.0
    >>> of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[1].item()
    -2.0
    >>> of.SoftmaxAttention([[0.5]], [[1.0]], [[-0.5]])(0.0, mu)[1].item()
    -2.0
    """

    A = Derived[Tensor](one_square)  # not symmetric in general

    def __call__(self, mu: Measure) -> Tensor:
        M = _second_moments(mu)
        A = fitting(self.A, "A", M.shape[-1], M)
        return ((A @ M) * (M @ A)).sum((-1, -2)) / 4

    def curvature_bounds(self, mu: Measure) -> Bounds:
        """For A = B^2 or -B^2 and M = X X^T, F is |BX|^4 / 4 in the Schatten norm, and X moves linearly."""
        good = torch.equal(self.A, self.A.mT) and (_semidefinite(self.A) or _semidefinite(-self.A))
        return (0.0 if good else -math.inf), math.inf


class SelfTransport(MatrixEnergy):
    """F(mu) = -1/(2 eps) OT_eps(mu, mu), the entropic cost of mu to itself for the cost -Ax.y, A symmetric.

    Its descent is Sinkhorn attention with V = -A, on every law (Sander et al. 2022, Proposition 3). On a
    Gaussian N(m, R R^T), with s_i the singular values of R^T A R and q_i = (1 + 4 s_i^2 / eps^2)^(1/2),

        F = Am.m / (2 eps) + 1/4 sum_i (q_i - 1 - log((1 + q_i) / 2)).

    Convex along geodesics of Gaussians if A is positive semidefinite.

    Args:
        A: (d, d), symmetric.
        eps: entropic regularisation, > 0, or `Sinkhorn` with tolerance, budget and engine.

    >>> from otflow import SelfTransport
    >>> import otflow as of
    >>> mu = of.Gaussian([1.0], root=[[0.0]])
    >>> SelfTransport([[3.0]])(mu).item()
    1.5
    >>> cloud = of.Particles([[0.0], [1.0], [5.0]])
    >>> v = of.SteepestDescent(SelfTransport([[1.0]], eps=2.0), of.Wasserstein())(0.0, cloud)[0]
    >>> w = of.SinkhornAttention([[1.0]], [[1.0]], [[-1.0]], eps=2.0)(0.0, cloud)[0]
    >>> bool((v - w).abs().max() < 1e-7)
    True
    """

    def __init__(
        self,
        A: Any,
        eps: float | Sinkhorn = 1.0,
    ) -> None:
        super().__init__(A)
        self.sinkhorn = as_options(eps)
        self.eps = self.sinkhorn.eps

    @property
    def precision(self) -> float:
        return self.sinkhorn.tol

    def __call__(self, mu: Measure) -> Tensor:
        if isinstance(mu, Gaussian):
            A = fitting(self.A, "A", mu.d, mu.root)
            mean = (mu.mean * (A @ mu.mean[..., None])[..., 0]).sum(-1) / (2 * self.eps)
            N = mu.root.mT @ A @ mu.root / self.eps
            return mean + _spectral(N, _transport_value, _transport_slope) / 4
        if not isinstance(mu, Particles):
            refuse_density(mu)
        cost = BilinearCost(fitting(self.A, "A", mu.d, mu.x))
        plan = sinkhorn(mu, mu, self.sinkhorn, cost=cost)
        return -plan.regularised_cost / (2 * self.eps)

    def differential(self, mu: Measure) -> Tangent:
        if dual(self.A) and not isinstance(mu, Gaussian):
            raise DerivativeError(
                "a tangent in A does not pass the differential of SelfTransport on clouds; use the field "
                "SinkhornAttention(A, I, -A), which is its descent, and passes it."
            )
        return super().differential(mu)

    def curvature_bounds(self, mu: Measure) -> Bounds:
        """For A = B^2 a sum over singular values s of BR of functions of s that are convex and even."""
        good = isinstance(mu, Gaussian) and _semidefinite(self.A)
        return (0.0 if good else -math.inf), math.inf

    def __repr__(self) -> str:
        return f"SelfTransport(d={len(self.A)}, eps={self.eps:g})"


class L2Energy(Energy):
    """F = c^2/2 (tr(H S) - 1/2 log det(I + 2 H S)), H = K^T K, for Gaussians with covariance S.

    On centred Gaussians its descent is L2 attention with Q = cK and V = -c H. The mean does not enter.

    Args:
        K: (k, d).
        c: the ratio of queries to keys.

    >>> from otflow import L2Energy
    >>> import otflow as of
    >>> mu = of.Gaussian([0.0], root=[[1.0]])
    >>> of.SteepestDescent(L2Energy([[1.0]], 3.0), of.Wasserstein())(0.0, mu)[1].item()
    -6.0
    >>> of.L2Attention([[3.0]], [[1.0]], [[-3.0]])(0.0, mu)[1].item()
    -6.0
    """

    K = Derived[Tensor]()

    def __init__(self, K: Any, c: float = 1.0) -> None:
        self.K, self.c = K, checks.number(c, "c")
        good = self.K.ndim == 2 and 0 not in self.K.shape
        checks.require(good, "K.shape", self.K.shape, "a matrix is needed", "pass a (k, d) matrix")

    def __call__(self, mu: Measure) -> Tensor:
        if not isinstance(mu, Gaussian):
            rule = "L2 attention is a gradient flow of this energy on Gaussians only"
            remedy = "pass a Gaussian; for particles use the field L2Attention itself"
            checks.fail("mu", repr(mu), rule, remedy)
        KR = fitting(self.K, "K", mu.d, mu.root) @ mu.root
        return self.c**2 / 4 * _spectral(KR.mT @ KR, _l2_value, _l2_slope)

    def curvature_bounds(self, mu: Measure) -> Bounds:
        """A sum over singular values s of KR of 2 s^2 - log(1 + 2 s^2), whose slope grows."""
        return 0.0, math.inf

    def __repr__(self) -> str:
        return f"L2Energy(K={tuple(self.K.shape)}, c={self.c:g})"


def _semidefinite(A: Tensor) -> bool:
    eigenvalues = torch.linalg.eigvalsh(A.detach())
    rounding = len(A) * torch.finfo(A.dtype).eps * eigenvalues.abs().max()
    return bool(eigenvalues[0] >= -rounding)


def _second_moments(mu: Measure) -> Tensor:
    """E[x x^T], (*batch, d, d)."""
    if isinstance(mu, Gaussian):
        return mu.root @ mu.root.mT + mu.mean[..., :, None] * mu.mean[..., None, :]
    if not isinstance(mu, Particles):
        refuse_density(mu)
    rule = "matrices do not act on tokens that wrap around"
    checks.require(mu.space.linear, "space", mu.space, rule, "use Euclidean()")
    return (mu.w[..., None] * mu.x).mT @ mu.x


# --- functions of a matrix whose derivative is a function of it --------------------------------------


class _Spectral(ByFormula):
    """N -> F(N) with dF/dN = G(N) given, right also where singular values meet or vanish."""

    @staticmethod
    def forward(
        ctx: Any, n: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
    ) -> Tensor:
        keep(ctx, n)
        ctx.slope = slope
        return value(n)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (n,) = ctx.saved_tensors
        return grad[..., None, None] * ctx.slope(n), None, None

    @staticmethod
    def jvp(ctx: Any, dn: Tensor, value: None, slope: None) -> Tensor:
        (n,) = ctx.saved_tensors
        return (ctx.slope(n) * dn).sum((-1, -2))


def _spectral(n: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
    return _Spectral.apply(n, value, slope)  # type: ignore[no-untyped-call]


def _transport_value(n: Tensor) -> Tensor:
    """sum_i (q_i - 1 - log((1 + q_i) / 2)), q = (1 + 4 s^2)^(1/2), without cancellation of q - 1."""
    z = 2 * torch.linalg.svdvals(n)
    less = z * (z / (1 + torch.hypot(torch.ones_like(z), z)))
    return (less - torch.log1p(less / 2)).sum(-1)


def _transport_slope(n: Tensor) -> Tensor:
    """Per singular value 4 s / (1 + q)."""
    return 2 * contraction(n)


def _l2_value(g: Tensor) -> Tensor:
    """sum_i (2 l_i - log(1 + 2 l_i)) over eigenvalues l >= 0."""
    return excess(2 * torch.linalg.eigvalsh(g).clamp(min=0)).sum(-1)


def _l2_slope(g: Tensor) -> Tensor:
    """Per eigenvalue 4 l / (1 + 2 l)."""
    eye = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)
    return 4 * torch.linalg.solve_ex(eye + 2 * g, g).result
