"""Barycentres of Gaussians: the fixed point of averaging the optimal displacements of a root.

With X the root of the barycentre and F_k = R_k U_k - X the displacement to the k-th member, the gradient of
the mean squared distance is -2 sum_k w_k F_k. The iteration X <- X + sum_k w_k F_k inverts nothing. Its
derivative is symmetric, so one conjugate-gradient solve with I - J serves twice: for Newton steps where the
plain iteration is slow, and for the derivative of the barycentre in its members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.derivatives import ByFormula
from otflow.base.errors import ONCE, ConvergenceError, DerivativeError
from otflow.base.linalg import conjugate_gradient, lyapunov, procrustes, ratio, widen
from otflow.base.spaces import norm, power_of_two
from otflow.measures import Gaussian
from otflow.transport.bures.roots import thin

GAUGE = 1e-8  # relative error of a derivative, at most; chosen
TURNING = 64  # roundings that may turn a root; chosen
SLOW = 0.3  # an iteration that leaves more than this part of the gradient calls for Newton; chosen


@dataclass(frozen=True, eq=False)
class Barycentre:
    """A barycentre and how well it is known.

    Args:
        measure: the barycentre, with a square root (*batch, d, d).
        residual: the norm of the Riemannian gradient sum_k w_k log(k-th member) at ``measure``, over the
            spread (sum_k w_k W2^2)^(1/2) of the members about it, all of them centred, (*batch,).
        iterations: how often displacements to all members were computed.
        status: "ok", or "max_iter"; an array of these for a batch.
    """

    measure: Gaussian
    residual: Tensor
    iterations: int
    status: Any


def bures_barycentre(
    mus: Gaussian,
    weights: Any = None,
    *,
    tol: float = 1e-12,
    max_iter: int = 1000,
    on_failure: Literal["raise", "return"] = "raise",
) -> Barycentre:
    """argmin_nu sum_k w_k W2(nu, mu_k)^2 over the last batch axis of ``mus``, which is a Gaussian.

    It stops when the Riemannian gradient, measured at the iterate that is returned, is at most ``tol`` times
    the spread, or below the rounding of the roots. Means and covariances average separately, so that the
    spread is that of the centred members. The barycentre is unique if some member of positive weight
    has an invertible covariance; without one, a stationary point is found, which may not be the only one.

    Differentiable in means, roots and weights, as a function of the measure: an expression that depends on
    the choice of the root rather than on the measure has no derivative, and backward raises.

    Args:
        mus: Gaussians of batch (*batch, k).
        weights: (*batch, k) or (k,), >= 0 and summing to 1; uniform if left out.
        tol: bound on ``residual``.
        max_iter: limit on ``iterations``.
        on_failure: "raise" raises `ConvergenceError`, which carries the result, if ``tol`` is missed;
            "return" returns it.

    >>> from otflow import Gaussian
    >>> from otflow.transport import bures_barycentre
    >>> import numpy as np
    >>> mus = Gaussian(np.zeros((2, 1)), root=np.array([[[1.0]], [[3.0]]]))
    >>> bures_barycentre(mus).measure.cov.item()
    4.0

    References: Álvarez-Esteban, del Barrio, Cuesta-Albertos and Matrán, A fixed-point approach to
    barycenters in Wasserstein space, 2016, Theorem 4.2.
    """
    loud = checks.raises(on_failure)
    checks.positive(tol, "tol")
    checks.count(max_iter, "max_iter")
    w = _weights(weights, mus)
    mean = (w[..., None] * mus.mean.double()).sum(-2)
    r = thin(mus.root.double())
    r = widen(r, r.shape[-2])
    unit = power_of_two(r.detach().flatten(-3, -2))[..., None]
    root, state, used = _solve(r / unit, w, tol, max_iter, torch.finfo(mus.dtype).eps)
    measure = mus.at([c.to(mus.dtype) for c in (mean, root * unit[..., 0, :, :])])
    codes = torch.where(state.done, 0, status.code("max_iter"))
    out = Barycentre(measure, state.residual.to(mus.dtype), used, status.names(codes))
    if loud and bool(codes.any()):
        raise ConvergenceError(
            f"Bures barycentre: residual {state.residual.max():.2g} after {used} iterations, tol = {tol:g}; "
            "raise max_iter or tol, or pass on_failure='return'.",
            out,
        )
    return out


def _weights(weights: Any, mus: Gaussian) -> Tensor:
    checks.instance(mus, Gaussian, "mus")
    for part, numbers in zip(mus.names, mus.coords, strict=True):
        checks.finite(numbers, f"mus.{part}")
    checks.require(
        mus.batch, "mus.batch", (), "one Gaussian has no barycentre", "pass Gaussians of batch (*batch, k)"
    )
    if weights is None:
        return torch.full(mus.batch, 1 / mus.batch[-1], dtype=torch.float64, device=mus.device)
    w = checks.beside(checks.tensor(weights, "weights").double(), "weights", mus.mean, "mus")
    rule = f"one per member is needed, {tuple(mus.batch)}"
    w = checks.expanded(w, mus.batch, "weights", rule, f"pass weights with {mus.batch[-1]} entries")
    return checks.probability(w, "weights", "pass weights / weights.sum()")


# --- the iteration -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """A root, the mean displacement away from it, and what it says about the root."""

    x: Tensor  # (*batch, d, d)
    step: Tensor
    gap: Tensor  # (*batch,), |step|
    residual: Tensor
    done: Tensor


def _solve(r: Tensor, w: Tensor, tol: float, max_iter: int, eps: float) -> tuple[Tensor, _State, int]:
    """From the mean of the symmetric roots, which is the answer if the covariances commute."""

    def state(x: Tensor) -> _State:
        f = _displacements(x, r.detach())
        step = _mean(f, w.detach())
        gap, size = norm(step.flatten(-2)), norm(x.flatten(-2))
        spread = _mean(f.square(), w.detach()).sum((-1, -2)).sqrt()
        rounding = 8 * x.shape[-1] * torch.finfo(x.dtype).eps * size
        return _State(x, step, gap, ratio(gap, spread), gap <= tol * spread + rounding)

    with torch.no_grad():
        v, s, _ = torch.linalg.svd(r)
        now, used, slow = state(_mean((v * s[..., None, :]) @ v.mT, w)), 1, False
        while not bool(now.done.all()) and used < max_iter:
            before = now.gap
            if slow and used + 1 < max_iter:
                now, used = _newton(now, state, r, w), used + 1
            now, used = state(now.x + torch.where(now.done[..., None, None], 0.0, now.step)), used + 1
            slow = bool((now.gap > SLOW * before)[~now.done].any())
    x: Tensor = _Attached.apply(now.x, r, w, eps)  # type: ignore[no-untyped-call]
    return x, now, used


def _displacements(x: Tensor, r: Tensor) -> Tensor:
    return procrustes(x[..., None, :, :].expand_as(r), r)


def _mean(f: Tensor, w: Tensor) -> Tensor:
    return (w[..., None, None] * f).sum(-3)


def _newton(now: _State, state: Callable[[Tensor], _State], r: Tensor, w: Tensor) -> _State:
    """A Newton step for those members of the batch that it helps."""
    forcing = min(0.1, float(now.residual[~now.done].max()))  # superlinear, without solving too much
    step = _resolvent(now.x, r, w, now.step, tol=forcing, max_iter=50)[0]
    trial = state(now.x + step)
    better = (trial.gap < now.gap) & ~now.done

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(better.reshape(better.shape + (1,) * (a.ndim - better.ndim)), a, b)

    return _State(*(pick(getattr(trial, k), getattr(now, k)) for k in _State.__dataclass_fields__))


def _resolvent(
    x: Tensor, r: Tensor, w: Tensor, b: Tensor, *, tol: float, max_iter: int
) -> tuple[Tensor, int, bool]:
    """v with (I - J) v = b, where I - J is the Hessian of half the mean squared distance in the root X."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        pull = _mean(_displacements(leaf, r.detach()), w.detach())

    def hessian(v: Tensor) -> Tensor:
        (out,) = torch.autograd.grad(pull, leaf, v.reshape(x.shape), retain_graph=True)
        return -out.flatten(-2)

    ones = torch.ones_like(b.flatten(-2))
    v, used, done = conjugate_gradient(hessian, b.flatten(-2), ones, tol=tol, max_iter=max_iter)
    return v.reshape(x.shape), used, done


class _Attached(ByFormula):
    """X itself, with its derivative in roots and weights by the implicit function theorem."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, r: Tensor, w: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, r, w)
        ctx.eps = eps  # of the dtype in which X is handed out, and gradients come back
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
        if torch.is_grad_enabled():
            raise DerivativeError("second derivatives of Bures barycentres are not available; " + ONCE)
        x, r, w = ctx.saved_tensors
        grad, turning = _without_turning(x, grad)
        v, _, done = _resolvent(x, r, w, grad, tol=1e-12, max_iter=10 * x.shape[-1] ** 2 + 100)
        seen = bool((turning > max(GAUGE, TURNING * ctx.eps)).any())
        if seen or (not done and not _solved(x, r, w, v, grad)):
            raise DerivativeError(
                "the derivative of this barycentre does not exist or is not known: either the expression "
                "depends on the root and not only on the measure, or the members are too singular; "
                "differentiate a function of the covariance, or add 1e-6 I to those of the members"
            )
        with torch.enable_grad():
            leaves = [a.detach().requires_grad_() for a in (r, w)]
            pull = _mean(_displacements(x, leaves[0]), leaves[1])
            gr, gw = torch.autograd.grad(pull, leaves, v)
        return None, gr, gw, None


def _without_turning(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient without its part along X K, K skew, and how large that is, relative, (*batch,).

    A rotation X (I + K) leaves the measure alone, so a function of the measure has no slope along it, but
    for the rounding of X and of the gradient, which in single precision is far above the tolerance here.
    """
    skew = lyapunov(x.mT @ x, x.mT @ grad - grad.mT @ x)
    turn = x @ ((skew - skew.mT) / 2)
    sizes = (norm(z.flatten(-2)) for z in (turn, grad))
    return grad - turn, ratio(*sizes)


def _solved(x: Tensor, r: Tensor, w: Tensor, v: Tensor, b: Tensor) -> bool:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        pull = _mean(_displacements(leaf, r), w)
        (out,) = torch.autograd.grad(pull, leaf, v)
    return bool((norm((out + b).flatten(-2)) <= GAUGE * norm(b.flatten(-2))).all())
