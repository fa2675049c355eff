"""Bistochastic scaling of the kernel exp(s_ij), s_ij = <q_i, k_j>, against weights w, in the log domain.

We look for a column potential g such that, with the row potential f_i = -log sum_j w_j exp(s_ij + g_j),

    k_ij = exp(s_ij + f_i + g_j)   has   sum_j w_j k_ij = 1   and   sum_i w_i k_ij = 1.

Sinkhorn's iteration is the fixed point g = T(g), T(g)_j = -log sum_i w_i exp(s_ij + f_i(g)). Its derivative
is T' = C R with the Markov operators R_ij = w_j k_ij and C_ji = w_i k_ij, self-adjoint and positive in
L2(w). So one conjugate-gradient solve with I - C R serves twice: as a Newton finish of the iteration, and
for the derivative of g in q and k (implicit function theorem).

A symmetric kernel has f = g at the solution; then the averaged iteration g <- (g + f(g)) / 2 costs half a
sweep and converges much faster when s is positive, and Newton's operator is I + R.

Nothing here holds an n x n matrix unless the problem is small.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otflow import kernels
from otflow.errors import ConvergenceError, DerivativeError
from otflow.linalg import conjugate_gradient
from otflow.spaces import norm

SLOW = 0.3  # a sweep that leaves more than this part of the error calls for Newton
CLOSE = 0.5  # marginal error below which Newton is worth a try


@dataclass(frozen=True)
class Scaling:
    """The potential g, its L1 marginal error measured at g itself, and how many sweeps it took."""

    g: Tensor  # (*batch, n)
    error: Tensor  # (*batch,)
    sweeps: int
    converged: Tensor  # (*batch,)


class Kernel:
    """log-sum-exps and Markov operators of exp(s_ij), dense when small and streamed when not."""

    def __init__(self, q: Tensor, k: Tensor, logw: Tensor) -> None:
        self.q, self.k, self.logw, self.w = q, k, logw, logw.exp()
        batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], logw.shape[:-1])
        self.shape = torch.Size((*batch, logw.shape[-1]))
        small = q.shape[-2] * k.shape[-2] * batch.numel() <= kernels.DENSE
        self.scores = q @ k.mT if small else None  # computed once, used by every sweep

    def reach(self) -> Tensor:
        """More than any sensible potential; an astronomic Newton step would drown the error in rounding."""
        return 4 * norm(self.q).amax(-1) * norm(self.k).amax(-1) + 100.0

    def rows(self, g: Tensor) -> Tensor:
        """f(g)."""
        if self.scores is not None:
            return -torch.logsumexp(self.scores + (g + self.logw)[..., None, :], -1)
        return -kernels.attend(self.q, self.k, self.k[..., :1], g + self.logw)[1]

    def columns(self, f: Tensor) -> Tensor:
        if self.scores is not None:
            return -torch.logsumexp(self.scores + (f + self.logw)[..., :, None], -2)
        return -kernels.attend(self.k, self.q, self.q[..., :1], f + self.logw)[1]

    def forth(self, g: Tensor) -> Callable[[Tensor], Tensor]:
        """R: the mean of x_j over j as row i sees it."""
        if self.scores is not None:
            p = torch.softmax(self.scores + (g + self.logw)[..., None, :], -1)
            return lambda x: (p @ x[..., None])[..., 0]
        return lambda x: kernels.attend(self.q, self.k, x[..., None], g + self.logw)[0][..., 0]

    def back(self, f: Tensor) -> Callable[[Tensor], Tensor]:
        """C: the mean of y_i over i as column j sees it."""
        if self.scores is not None:
            p = torch.softmax(self.scores + (f + self.logw)[..., :, None], -2).mT
            return lambda y: (p @ y[..., None])[..., 0]
        return lambda y: kernels.attend(self.k, self.q, y[..., None], f + self.logw)[0][..., 0]

    def centred(self, g: Tensor) -> Tensor:
        """g shifted to mean zero: only g up to a constant has a meaning."""
        return g - torch.where(self.w > 0, self.w * g, torch.zeros_like(g)).sum(-1, keepdim=True)

    def resolvent(self, g: Tensor, b: Tensor, *, tol: float, max_iter: int) -> tuple[Tensor, int, bool]:
        """x of mean zero with (I - C R) x = b, up to a constant."""
        R, C = self.forth(g), self.back(self.rows(g))
        x, used, done = conjugate_gradient(
            lambda x: self.centred(x - C(R(x))), self.centred(b), self.w, tol=tol, max_iter=max_iter
        )
        return self.centred(x), used, done


class Iteration(ABC):
    """One way to solve for g: a plain iteration, the error that it reveals, and a Newton step."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @abstractmethod
    def image(self, g: Tensor) -> Tensor:
        """Where the plain iteration sends g."""

    @abstractmethod
    def error(self, g: Tensor, image: Tensor) -> Tensor:
        """The L1 error of the marginals at g with f = f(g), (*batch,)."""

    @abstractmethod
    def newton(self, g: Tensor, image: Tensor, *, tol: float, max_iter: int) -> tuple[Tensor, int]:
        """The Newton step from g, and the sweeps that it cost."""


class Alternating(Iteration):
    """g <- T(g)."""

    def image(self, g: Tensor) -> Tensor:
        return self.kernel.columns(self.kernel.rows(g))

    def error(self, g: Tensor, image: Tensor) -> Tensor:
        # Rows are exact by the choice of f; column j sums to exp(g_j - T(g)_j).
        return _distance(self.kernel.w, g - image)

    def newton(self, g: Tensor, image: Tensor, *, tol: float, max_iter: int) -> tuple[Tensor, int]:
        return self.kernel.resolvent(g, image - g, tol=tol, max_iter=max_iter)[:2]


class Averaged(Iteration):
    """g <- (g + f(g)) / 2, for symmetric kernels."""

    def image(self, g: Tensor) -> Tensor:
        return (g + self.kernel.rows(g)) / 2

    def error(self, g: Tensor, image: Tensor) -> Tensor:
        # With f = g the rows sum to r_i = exp(2 (g_i - image_i)). Renormalising them moves the columns by
        # as much again, so twice sum w |r - 1| bounds the column error of the plan that is used.
        return 2 * _distance(self.kernel.w, 2 * (g - image))

    def newton(self, g: Tensor, image: Tensor, *, tol: float, max_iter: int) -> tuple[Tensor, int]:
        R = self.kernel.forth(g)
        return conjugate_gradient(
            lambda x: x + R(x), 2 * (image - g), self.kernel.w, tol=tol, max_iter=max_iter
        )[:2]


def _distance(w: Tensor, log_sums: Tensor) -> Tensor:
    """sum_i w_i |exp(z_i) - 1|, finite however far off z is."""
    return (w * torch.expm1(log_sums.clamp(max=500.0)).abs()).sum(-1)


def scale(
    q: Tensor,
    k: Tensor,
    logw: Tensor,
    *,
    tol: float,
    max_iter: int,
    start: Tensor | None = None,
    symmetric: bool = False,
) -> Scaling:
    """Iterate from ``start`` until the marginal error at the potential that is returned is at most ``tol``.

    Newton steps take over where the plain iteration is slow; one that does not help is undone.
    """
    kernel = Kernel(q, k, logw)
    it: Iteration = Averaged(kernel) if symmetric else Alternating(kernel)
    g = torch.zeros(kernel.shape, dtype=q.dtype, device=q.device)
    if start is not None and start.shape == g.shape:
        g = torch.where(torch.isfinite(start).all(-1, keepdim=True), start, g)
    image = it.image(g)
    error, sweeps, slow = it.error(g, image), 1, False
    while bool(_open(error, tol).any()) and sweeps < max_iter:
        before = error
        budget = max_iter - sweeps - 2  # a Newton step ends with two sweeps
        if slow and budget > 0 and bool((error[_open(error, tol)] < CLOSE).all()):
            g, image, error, used = _newton(it, g, image, error, tol, budget)
            sweeps += used
        g, image = image, it.image(image)
        error = it.error(g, image)
        sweeps, slow = sweeps + 1, bool((error > SLOW * before).any())
    return Scaling(g if symmetric else kernel.centred(g), error, sweeps, error <= tol)


def _open(error: Tensor, tol: float) -> Tensor:
    """Members still to be improved; one that is not finite is beyond help."""
    return (error > tol) & torch.isfinite(error)


def _newton(
    it: Iteration, g: Tensor, image: Tensor, error: Tensor, tol: float, budget: int
) -> tuple[Tensor, Tensor, Tensor, int]:
    """A Newton step for those members of the batch that it helps."""
    forcing = min(0.1, float(error[_open(error, tol)].max()))  # superlinear, without solving too much
    step, used = it.newton(g, image, tol=forcing, max_iter=min(50, budget))
    trial = g + step
    trial_image = it.image(trial)
    trial_error = it.error(trial, trial_image)
    better = (trial_error < error) & (trial.abs().amax(-1) <= it.kernel.reach())
    g, image = (torch.where(better[..., None], a, b) for a, b in ((trial, g), (trial_image, image)))
    return g, image, torch.where(better, trial_error, error), used + 1


class _Potential(torch.autograd.Function):
    """g as a function of (q, k, log w) by the implicit function theorem: dg = (I - C R)^-1 dT at fixed g."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, logw: Tensor, g: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, logw, g)
        ctx.save_for_forward(q, k, logw, g)
        return g.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DerivativeError("second derivatives of Sinkhorn attention are not available")
        q, k, logw, g = ctx.saved_tensors
        kernel = Kernel(q, k, logw)
        # The transpose of C R is W C R W^-1, so its resolvent is the same solve between two weightings.
        seen = kernel.w > 0
        b = torch.where(
            seen, grad / torch.where(seen, kernel.w, torch.ones_like(grad)), torch.zeros_like(grad)
        )
        x = _implicit(kernel, g, b)
        with torch.enable_grad():
            leaves = [a.detach().requires_grad_() for a in (q, k, logw)]
            image = Alternating(Kernel(*leaves)).image(g.detach())
            grads = torch.autograd.grad(image, leaves, torch.where(seen, kernel.w * x, torch.zeros_like(x)))
        return *grads, None

    @staticmethod
    def jvp(ctx: Any, dq: Tensor | None, dk: Tensor | None, dlogw: Tensor | None, dg: None) -> Tensor:
        q, k, logw, g = ctx.saved_tensors
        dq, dk = (torch.zeros_like(a) if da is None else da for a, da in ((q, dq), (k, dk)))
        dl = torch.zeros_like(g) if dlogw is None else dlogw.expand(g.shape)
        kernel = Kernel(q, k, logw)
        f = kernel.rows(g)
        df = -kernels.lse_tangent(q, k, g + logw, dq, dk, dl)
        return _implicit(kernel, g, -kernels.lse_tangent(k, q, f + logw, dk, dq, df + dl))


def _implicit(kernel: Kernel, g: Tensor, b: Tensor) -> Tensor:
    """(I - C R)^-1 b, or an error: a derivative has no status to report a missed tolerance in."""
    x, used, done = kernel.resolvent(g, b, tol=1e-12, max_iter=1000)
    if not done:
        b, rest = kernel.centred(b), kernel.centred(x - kernel.back(kernel.rows(g))(kernel.forth(g)(x)))
        if not bool(((b - rest).abs().amax(-1) <= 1e-6 * b.abs().amax(-1)).all()):
            raise ConvergenceError(f"derivative of Sinkhorn potentials: {used} steps were not enough", x)
    return x


def potential(q: Tensor, k: Tensor, logw: Tensor, g: Tensor) -> Tensor:
    """g itself, with its derivatives in q, k and log w attached."""
    out: Tensor = _Potential.apply(q, k, logw, g)  # type: ignore[no-untyped-call]
    return out
