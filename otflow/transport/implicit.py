"""Derivatives of entropic transport: of its value by the envelope theorem, of its potentials implicitly.

The dual value D(S, a, b; G) = <a, F(G)> + <b, G> is stationary in G at the solution, so its derivatives in S,
a and b are those at fixed G. The potential itself is the fixed point G = T(G) of Sinkhorn's iteration, and
dG = (I - C R)^-1 dT at fixed G; second derivatives of the value need it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from otflow import kernels
from otflow.errors import ConvergenceError, DerivativeError
from otflow.transport.scores import Bilinear, Scores
from otflow.transport.states import Kernel, Streamed

Make = Callable[[Tensor, Tensor], Scores]  # scores from two tensors with derivatives: features or points


class _Potential(torch.autograd.Function):
    """G as a function of (q, k, log a, log b), for the scores <q, k>."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, loga: Tensor, logb: Tensor, G: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, loga, logb, G)
        ctx.save_for_forward(q, k, loga, logb, G)
        return G.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DerivativeError("second derivatives of entropic potentials are not available")
        q, k, loga, logb, G = ctx.saved_tensors
        kernel = Kernel(Bilinear(q, k), loga, logb)
        # The transpose of C R is W C R W^-1, W = diag(b), so its resolvent is a solve between two weightings.
        b, zero = logb.exp(), torch.zeros_like(grad)
        rhs = torch.where(b > 0, grad / torch.where(b > 0, b, torch.ones_like(b)), zero)
        x = _resolvent(kernel, G, rhs)
        with torch.enable_grad():
            leaves = [z.detach().requires_grad_() for z in (q, k, loga, logb)]
            own = Kernel(Bilinear(*leaves[:2]), *leaves[2:])
            image = own.columns(own.rows(G.detach()))
            grads = torch.autograd.grad(image, leaves, torch.where(b > 0, b * x, zero))
        return *grads, None

    @staticmethod
    def jvp(ctx: Any, dq: Any, dk: Any, dloga: Any, dlogb: Any, dG: None) -> Tensor:
        q, k, loga, logb, G = ctx.saved_tensors
        moved = zip((q, k, loga, logb), (dq, dk, dloga, dlogb), strict=True)
        dq, dk, dloga, dlogb = (torch.zeros_like(z) if dz is None else dz for z, dz in moved)
        kernel = Kernel(Bilinear(q, k), loga, logb)
        F = kernel.rows(G)
        dF = -kernels.lse_tangent(q, k, G + logb, dq, dk, dlogb)
        return _resolvent(kernel, G, -kernels.lse_tangent(k, q, F + loga, dk, dq, dF + dloga))


def _resolvent(kernel: Kernel, G: Tensor, rhs: Tensor) -> Tensor:
    """(I - C R)^-1 rhs, or an error: a derivative has no status to report a missed tolerance in."""
    state = Streamed(kernel, G).absorbed()
    x, used, done = state.resolvent(rhs, tol=1e-12, max_iter=1000)
    if not done:
        again, _, _ = state.resolvent(rhs, tol=1e-12, max_iter=500)
        if not bool(((again - x).abs().amax(-1) <= 1e-6 * x.abs().amax(-1)).all()):
            raise ConvergenceError(f"derivative of entropic potentials: {used} steps were not enough", x)
    return x


def potential(q: Tensor, k: Tensor, loga: Tensor, logb: Tensor, G: Tensor) -> Tensor:
    """G itself, (B, m), with its derivatives in q, k, log a and log b attached."""
    out: Tensor = _Potential.apply(q, k, loga, logb, G)  # type: ignore[no-untyped-call]
    return out


class _Dual(torch.autograd.Function):
    """D as a function of what the scores are made of and of the weights, G at its solution."""

    @staticmethod
    def forward(ctx: Any, make: Make, s: Tensor, t: Tensor, a: Tensor, b: Tensor, G: Tensor) -> Tensor:
        ctx.make = make
        F = -make(s, t).lse(G + b.log())
        ctx.save_for_backward(s, t, a, b, F, G)
        return _inner(a, F) + _inner(b, G)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        s, t, a, b, F, G = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_second(ctx.make, s, t, a, b, G, grad), None
        with torch.enable_grad():
            leaves = [z.detach().requires_grad_() for z in (s, t)]
            rows = -ctx.make(*leaves).lse(G + b.log())
            ds, dt = torch.autograd.grad(rows, leaves, grad[:, None] * a)
        return None, ds, dt, grad[:, None] * F, grad[:, None] * G, None


def _second(make: Make, s: Tensor, t: Tensor, a: Tensor, b: Tensor, G: Tensor, grad: Tensor) -> list[Tensor]:
    """The first derivatives once more, in a form that knows how G follows."""
    scores = make(s, t)
    if not isinstance(scores, Bilinear) or bool((a == 0).any() | (b == 0).any()):
        raise DerivativeError(
            "second derivatives of entropic transport need a squared distance or bilinear cost and positive "
            "weights"
        )
    G = potential(scores.q, scores.k, a.log(), b.log(), G)
    fixed = [z.clone() for z in (s, t)]  # so that the derivative below does not go through G
    F = -make(*fixed).lse(G + b.log())
    ds, dt = torch.autograd.grad(F, fixed, grad[:, None] * a, create_graph=True)
    return [ds, dt, grad[:, None] * F, grad[:, None] * G]


def _inner(w: Tensor, h: Tensor) -> Tensor:
    return torch.where(w > 0, w * h, torch.zeros_like(h)).sum(-1)


def dual(make: Make, s: Tensor, t: Tensor, a: Tensor, b: Tensor, G: Tensor) -> Tensor:
    """<a, F> + <b, G>, (B,), with derivatives in all that it is made of.

    Weights that sum to one are meant: the derivatives in them are the potentials, up to constants.
    """
    out: Tensor = _Dual.apply(make, s, t, a, b, G)  # type: ignore[no-untyped-call]
    return out
