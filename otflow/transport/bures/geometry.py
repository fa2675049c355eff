"""Bures-Wasserstein geometry: W2 between Gaussians, in closed form.

On roots, cov = R R^T, everything is one orthogonal Procrustes problem: U brings R2 U nearest to R1, the
optimal coupling pairs m1 + R1 z with m2 + R2 U z, and no covariance is ever inverted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.derivatives import ByFormula, keep
from otflow.base.errors import ONCE, ConvergenceError, DerivativeError
from otflow.base.linalg import known, procrustes, ratio
from otflow.base.matrices import of_covariance
from otflow.base.spaces import Euclidean, norm, power_of_two
from otflow.base.tangent import Tangent, align
from otflow.measures import Gaussian, Particles
from otflow.transport.bures import covariances, roots
from otflow.transport.ranges import matrices_in_units, rounded

NOISE = 64 * torch.finfo(torch.float64).eps  # of the size of roots: what equal laws may be apart; chosen

__all__ = [
    "AffineMap",
    "bures",
    "bures_wasserstein",
    "bures_map",
    "bures_geodesic",
    "bures_exp",
    "bures_log",
]


def bures(S1: Any, S2: Any) -> Tensor:
    """(tr S1 + tr S2 - 2 tr (S1^(1/2) S2 S1^(1/2))^(1/2))^(1/2): the Bures distance between covariances.

    To relative precision however close they are: about 1e-16 times the condition number. A singular
    covariance is known up to the rounding of its entries only, and the distance with it: up to 1e-8 times
    the root of the largest eigenvalue, unless its zeros are exact. `bures_wasserstein` has no such limit.

    The gradient is (I - T) / (2 distance), T the optimal map, and 0 at S1 = S2. At a singular S1 that S2
    reaches beyond it is infinite; then backward raises `DerivativeError`.

    Args:
        S1, S2: symmetric positive semidefinite (*batch, d, d), numpy or torch; their batches broadcast.

    >>> from otflow.transport import bures
    >>> import numpy as np
    >>> bures(np.diag([4.0, 1.0]), np.eye(2)).item()
    1.0
    >>> bures(np.eye(2), np.diag([1.0, 1.0 + 2e-12])).item()
    1.0e-12

    References: Bhatia, Jain and Lim, On the Bures-Wasserstein distance between positive definite matrices,
    2019.
    """
    s1, s2 = _covariance(S1, "S1"), _covariance(S2, "S2")
    checks.alike(s2, "S2", s1, "S1")
    rule = f"S1 has shape {tuple(s1.shape)}"
    checks.require(s1.shape[-1] == s2.shape[-1], "S2.shape", s2.shape, rule, "pass matrices of one size")
    batch = _broadcast(s1.shape[:-2], s2.shape[:-2], "S2")
    a, b = (s.double().expand(*batch, *s.shape[-2:]).reshape(-1, *s.shape[-2:]) for s in (s1, s2))
    w: Tensor = _Bures.apply(a, b, 1e-10 if s1.dtype == torch.float64 else 1e-5)  # type: ignore[no-untyped-call]
    return rounded(w.reshape(batch), s1.dtype, "distance", noise=lambda: _small_root(a, b).reshape(batch))


def _small_root(a: Tensor, b: Tensor) -> Tensor:
    """The distance that the rounding of covariances may leave between equal ones, (n,)."""
    size = torch.maximum(*(s.detach().abs().amax((-1, -2)) for s in (a, b)))
    return (NOISE * size).sqrt()


def _covariance(S: Any, name: str) -> Tensor:
    s = checks.tensor(S, name)
    if s.ndim < 2 or s.shape[-1] != s.shape[-2] or s.shape[-1] == 0:
        checks.fail(
            f"{name}.shape", tuple(s.shape), "a covariance has shape (*batch, d, d)", "pass a square matrix"
        )
    return s if torch.equal(s, s.mT) else of_covariance(s, name)


def _broadcast(a: torch.Size, b: torch.Size, name: str) -> torch.Size:
    rule = f"it does not match {tuple(a)}"
    return checks.common(a, b, f"batch of {name}", b, rule, "make the batches broadcast")


class _Bures(ByFormula):
    """The distance between covariances, (n, d, d) -> (n,), with the derivative of its closed form."""

    @staticmethod
    def forward(ctx: Any, s1: Tensor, s2: Tensor, tol: float) -> Tensor:
        w = covariances.distance(s1, s2, tol)
        keep(ctx, s1, s2, w)
        return w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        if torch.is_grad_enabled():
            raise DerivativeError("second derivatives of the Bures distance are not available; " + ONCE)
        g1, g2 = _gradients(*ctx.saved_tensors, *ctx.needs_input_grad[:2])
        return g1 * grad[:, None, None], g2 * grad[:, None, None], None

    @staticmethod
    def jvp(ctx: Any, ds1: Tensor | None, ds2: Tensor | None, dtol: None) -> Tensor:
        s1, s2, w = ctx.saved_tensors
        wanted = (ds is not None and bool(ds.any()) for ds in (ds1, ds2))
        both = zip(_gradients(s1, s2, w, *wanted), (ds1, ds2), strict=True)
        return sum(((g * ds).sum((-1, -2)) for g, ds in both if ds is not None), torch.zeros_like(w))


def _gradients(s1: Tensor, s2: Tensor, w: Tensor, first: bool, second: bool) -> tuple[Tensor, Tensor]:
    """(I - T12) / (2 w) and (I - T21) / (2 w), or an error if one that is asked for is infinite."""
    g1, g2 = covariances.slopes(s1, s2)
    moved = w > 0
    for name, g, asked in (("S1", g1, first), ("S2", g2, second)):
        if asked and bool(torch.isinf(g[moved]).any()):
            raise DerivativeError(
                f"the derivative of the Bures distance in {name} is infinite: {name} is singular where the "
                "other covariance is not; use bures_wasserstein, whose gradient in the root is finite"
            )
    factor = ratio(torch.full_like(w, 0.5), w)
    g1, g2 = (torch.where(torch.isinf(g), torch.zeros_like(g), g) * factor[:, None, None] for g in (g1, g2))
    return g1, g2


# --- Gaussians ---------------------------------------------------------------------------------------


def bures_wasserstein(mu: Gaussian, nu: Gaussian) -> Tensor:
    """(|m1 - m2|^2 + min_U |R1 - R2 U|^2)^(1/2), U orthogonal: W2 between Gaussians, (*batch,).

    Roots of any rank and width. To relative precision if they are close to each other column by column, as
    along a flow, else with an absolute error of 1e-15 |R|, which is what the rounding of the roots allows.

    Differentiable in means and roots, with gradient (R1 - R2 U) / distance in R1 and 0 where the distance
    is 0. Where R1^T R2 is singular the optimal U need not be unique; then one of them is taken.

    >>> from otflow import Gaussian, bures_wasserstein
    >>> mu = Gaussian([0.0, 0.0], root=[[1.0, 0.0], [0.0, 1.0]])
    >>> nu = Gaussian([3.0, 0.0], root=[[0.0, 5.0], [1.0, 0.0]])
    >>> bures_wasserstein(mu, nu).item()
    5.0

    References: Gelbrich, On a formula for the L2 Wasserstein metric, 1990, Theorem 2.1.
    """
    mu, nu = matched(mu, nu)
    return rounded(in_double(mu, nu), mu.dtype, "distance", noise=lambda: _noise(mu, nu))


def _noise(mu: Gaussian, nu: Gaussian) -> Tensor:
    """The distance that the rounding of roots may leave between equal laws, (*batch,)."""
    return NOISE * torch.maximum(*(g.root.detach().double().abs().amax((-1, -2)) for g in (mu, nu)))


def in_double(mu: Gaussian, nu: Gaussian) -> Tensor:
    """The distance between matched Gaussians in double precision."""
    d = roots.distance(mu.root.double(), nu.root.double())
    shift = norm(mu.mean.double() - nu.mean.double())
    return norm(torch.stack([shift, d], -1))


def matched(mu: Gaussian, nu: Gaussian) -> tuple[Gaussian, Gaussian]:
    """Both Gaussians with a common batch, or an error."""
    for g, name in ((mu, "mu"), (nu, "nu")):
        checks.instance(g, Gaussian, name)
        for part, numbers in zip(g.names, g.coords, strict=True):
            checks.finite(numbers, f"{name}.{part}")
    checks.alike(nu.mean, "nu", mu.mean, "mu")
    checks.require(
        mu.d == nu.d, "nu.d", nu.d, f"mu lives in dimension {mu.d}", f"pass nu with {mu.d} coordinates"
    )
    batch = _broadcast(mu.batch, nu.batch, "nu")
    mu, nu = (g.at([g.mean.expand(*batch, -1), g.root.expand(*batch, -1, -1)]) for g in (mu, nu))
    return mu, nu


def bures_geodesic(mu: Gaussian, nu: Gaussian, t: float | Tensor) -> Gaussian:
    """((1 - t) m1 + t m2, (1 - t) R1 + t R2 U): the geodesic from mu to nu at time t in [0, 1].

    U aligns the roots, so it exists also where no transport map does. It has constant speed W2(mu, nu).

    Args:
        t: a number, or one per member of the batch.

    >>> from otflow import Gaussian
    >>> from otflow.transport import bures_geodesic
    >>> mu, nu = Gaussian([0.0], root=[[1.0]]), Gaussian([4.0], root=[[-3.0]])
    >>> middle = bures_geodesic(mu, nu, 0.5)
    >>> middle.mean, middle.cov
    (tensor([2.], dtype=torch.float64), tensor([[4.]], dtype=torch.float64))

    References: McCann, A convexity principle for interacting gases, 1997, Example 1.7.
    """
    mu, nu = matched(mu, nu)
    time = _time(t, mu)
    a, b = roots.equal_width(mu.root.double(), nu.root.double())
    mean, other = mu.mean.double(), nu.mean.double()
    coords = [mean + align(time, mean) * (other - mean), a + align(time, a) * procrustes(a, b)]
    return mu.at([c.to(mu.dtype) for c in coords])


def _time(t: float | Tensor, mu: Gaussian) -> Tensor:
    time = checks.tensor(t, "t").double().to(mu.device)
    rule = "a geodesic runs from t = 0 to t = 1"
    checks.require(((time >= 0) & (time <= 1)).all(), "t", t, rule, "choose a time in [0, 1]")
    good = not time.ndim or _broadcast(mu.batch, time.shape, "t") == mu.batch
    checks.require(good, "t.shape", time.shape, f"the batch is {tuple(mu.batch)}", "pass one time per member")
    return time.expand(mu.batch)


def bures_exp(mu: Gaussian, u: Tangent) -> Gaussian:
    """(id + u)_# mu: the end of the geodesic that leaves mu with velocity u, the same as ``mu.move(u)``.

    A tangent (b, B R) is the affine field b + B (x - m). It leaves along a geodesic if B is symmetric, which
    stays minimal until t = 1 if I + B >= 0; velocities of gradient flows and `bures_log` are of this kind.

    >>> from otflow import Gaussian
    >>> from otflow.transport import bures_exp, bures_log
    >>> mu = Gaussian([0.0], root=[[1.0]])
    >>> bures_exp(mu, bures_log(mu, Gaussian([1.0], root=[[2.0]]))).cov.item()
    4.0
    """
    return checks.instance(mu, Gaussian, "mu").move(u)


def bures_log(mu: Gaussian, nu: Gaussian) -> Tangent:
    """(m2 - m1, R2 U - R1): the velocity at mu of the geodesic to nu, so that ``bures_exp`` leads to nu.

    Its norm in L2(mu) is W2(mu, nu). Also where no transport map exists, as long as the root of mu has as
    many columns as nu has rank: zero columns may be appended to it.

    >>> from otflow import Gaussian
    >>> from otflow.transport import bures_log
    >>> mu = Gaussian([0.0], root=[[1.0]])
    >>> u = bures_log(mu, Gaussian([3.0], root=[[5.0]]))
    >>> mu.inner(u, u).sqrt().item()
    5.0
    """
    mu, nu = matched(mu, nu)
    a = mu.root.double()
    b = _narrow(nu.root.double(), a.shape[-1], torch.finfo(mu.dtype).eps)
    root = procrustes(*roots.equal_width(a, b))
    return Tangent([nu.mean - mu.mean, root.to(mu.dtype)])


def _narrow(b: Tensor, width: int, eps: float) -> Tensor:
    """A root of the same covariance with at most that many columns."""
    if b.shape[-1] <= width:
        return b
    _, s, yt = torch.linalg.svd(b.detach(), full_matrices=False)
    rank = (s > max(b.shape[-2:]) * eps * s[..., :1]).sum(-1).max().item()
    rule = f"the root of mu has {width} columns, too few to carry it"
    checks.require(rank <= width, "rank of nu", rank, rule, "append columns of zeros to the root of mu")
    return b @ yt[..., :width, :].mT


# --- maps --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AffineMap:
    """x -> y0 + A (x - x0), on points (*batch, n, d), on `Particles` in R^d and on Gaussians.

    Args:
        matrix: A, (*batch, d, d).
        source: x0, (*batch, d).
        target: y0, (*batch, d).
        status: "ok", or "degenerate" where it misses its aim; an array of these for a batch.

    >>> from otflow.transport import AffineMap
    >>> import torch
    >>> AffineMap(2 * torch.eye(1), torch.tensor([1.0]), torch.tensor([5.0])).shift
    tensor([3.])
    """

    matrix: Tensor
    source: Tensor
    target: Tensor
    status: Any = "ok"

    @property
    def shift(self) -> Tensor:
        """b in x -> A x + b, (*batch, d)."""
        return self.target - _apply(self.matrix, self.source)

    def __call__(self, x: Any) -> Any:
        return _push(x, self)

    def __repr__(self) -> str:
        ended = status.summary(self.status)
        return f"AffineMap(matrix of shape {tuple(self.matrix.shape)}, status={ended!r})"


class AffineParts(NamedTuple):
    """An affine map whose matrix is known up to a factor that may leave floating point."""

    matrix: Tensor  # (*batch, d, d), in double precision
    unit: Tensor  # (*batch,)
    source: Tensor  # (*batch, d)
    target: Tensor  # (*batch, d)
    codes: Tensor  # (*batch,)

    @property
    def map(self) -> AffineMap:
        """The map in the dtype of its points, or an error if its matrix has no room there."""
        A = matrices_in_units(self.matrix, self.unit, 1, self.source.dtype, "the matrix of the map")
        return AffineMap(A, self.source, self.target, status.names(self.codes))


def _apply(matrix: Tensor, x: Tensor) -> Tensor:
    return (matrix @ x[..., None])[..., 0]


@singledispatch
def _push(x: Any, f: AffineMap) -> Any:
    points = checks.alike(checks.tensor(x, "x"), "x", f.matrix, "the map")
    good = points.ndim >= 2 and points.shape[-1] == f.source.shape[-1]
    rule = f"points have shape (*batch, n, {f.source.shape[-1]})"
    checks.require(good, "x.shape", points.shape, rule, "for one point pass x[None]")
    return f.target[..., None, :] + (points - f.source[..., None, :]) @ f.matrix.mT


@_push.register
def _(x: Gaussian, f: AffineMap) -> Gaussian:
    return x.at([f.target + _apply(f.matrix, x.mean - f.source), f.matrix @ x.root])


@_push.register
def _(x: Particles, f: AffineMap) -> Particles:
    rule = "an affine map acts on R^d"
    checks.require(x.space == Euclidean(), "x.space", x.space, rule, "pass Particles on Euclidean()")
    return x.at([_push(x.x, f)])


def bures_map(mu: Gaussian, nu: Gaussian, *, on_failure: Literal["raise", "return"] = "raise") -> AffineMap:
    """x -> m2 + T (x - m1), T = S1^(-1/2) (S1^(1/2) S2 S1^(1/2))^(1/2) S1^(-1/2): the optimal map.

    Computed as T = R2 U R1^+. Where S1 is singular T vanishes on its kernel, where mu has no mass. There may
    then be no map from mu to nu at all, since nu would need more than the randomness of mu: status
    "degenerate", and T x is the mean of what the optimal plan sends x to.

    The roots are taken at their word: only singular values below max(d, r) times the rounding of their dtype,
    relative to the largest, are zero. A target that was made of a covariance, ``Gaussian(m, cov=S)``, is
    known only as well as that: what S1 does not reach counts as rounding if its eigenvalues are below 64 d
    times the rounding of the dtype. The error of T is about 1e-16 times the condition number of R1.

    Args:
        on_failure: "raise" raises `ConvergenceError`, which carries the map, if it does not lead to nu;
            "return" returns it.

    >>> from otflow import Gaussian
    >>> from otflow.transport import bures_map
    >>> import numpy as np
    >>> mu, nu = Gaussian(np.zeros(2), root=np.eye(2)), Gaussian(np.ones(2), root=np.diag([3.0, 1.0]))
    >>> f = bures_map(mu, nu)
    >>> f([[1.0, 0.0]])
    tensor([[4., 1.]], dtype=torch.float64)

    References: Peyré and Cuturi, Computational optimal transport, 2019, Remark 2.31.
    """
    loud = checks.raises(on_failure)
    parts = affine_parts(*matched(mu, nu), grain=nu.grain)
    f = parts.map
    if loud and bool(parts.codes.any()):
        raise ConvergenceError(
            "no map leads from mu to nu: the covariance of mu is singular where that of nu is not; "
            'use bures_geodesic, or on_failure="return" for the conditional mean of the optimal plan',
            f,
        )
    return f


def affine_parts(mu: Gaussian, nu: Gaussian, *, grain: float) -> AffineParts:
    """The optimal map between matched Gaussians; eigenvalues of nu up to ``grain`` may be rounding."""
    units = [power_of_two(g.root.detach().double()) for g in (mu, nu)]
    r1, r2 = (g.root.double() / unit for g, unit in zip((mu, nu), units, strict=True))
    rtol = max(*r1.shape[-2:], r2.shape[-1]) * torch.finfo(mu.dtype).eps
    a, target = aligned(r1, r2)
    matrix, unit = target @ torch.linalg.pinv(a, rtol=rtol), (units[1] / units[0])[..., 0, 0]
    missed = _missed(a.detach(), target.detach(), rtol, max(4 * rtol, grain**0.5))
    codes = torch.where(missed, status.code("degenerate"), 0)
    return AffineParts(matrix, unit, mu.mean.clone(), nu.mean.clone(), codes)


def aligned(r1: Tensor, r2: Tensor) -> tuple[Tensor, Tensor]:
    """The graded root A of S1 and the root B U of S2 that is nearest to it."""
    a, b = roots.equal_width(roots.graded(r1), roots.graded(r2))
    x, _, yt = torch.linalg.svd((b.mT @ a).detach())
    # The value without a detour over a, in which small columns of B U would drown.
    return a, known(b.detach() @ (x @ yt), a + procrustes(a, b))


def _missed(a: Tensor, target: Tensor, rtol: float, noise: float) -> Tensor:
    """Whether a direction that S1 lacks, one of the orthogonal columns of A, has an image beyond noise."""
    size, image = norm(a.mT), norm(target.mT)
    lacking = size <= rtol * size.amax(-1, keepdim=True)
    return (lacking & (image > noise * norm(image)[..., None])).any(-1)
