"""Derivatives of entropic transport: of its value by the envelope theorem, of its potentials implicitly.

The dual value D(S, a, b; G) = <a, F(G)> + <b, G> is stationary in G at the solution, so its derivatives in S,
a and b are those at fixed G. The potential itself is the fixed point G = T(G) of Sinkhorn's iteration, and
dG = (I - C R)^-1 dT at fixed G; second derivatives of the value need it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from otflow.base import kernels
from otflow.base.derivatives import ByFormula, keep, learns
from otflow.base.errors import ONCE, ConvergenceError, DerivativeError
from otflow.transport.entropic.log_kernel import Bilinear, LogKernel
from otflow.transport.entropic.scaling import AbsorbedKernel, Streamed


class DualPieces(NamedTuple):
    """A problem as a function of its points: c / eps = row_i + column_j - S_ij."""

    scores: LogKernel
    row: Tensor  # (B, n)
    column: Tensor  # (B, m)


Make = Callable[[Tensor, Tensor], DualPieces]


class _Potential(ByFormula):
    """G as a function of (q, k, log a, log b), for the scores <q, k>."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, loga: Tensor, logb: Tensor, G: Tensor) -> Tensor:
        keep(ctx, q, k, loga, logb, G)
        return G.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DerivativeError("second derivatives of entropic potentials are not available; " + ONCE)
        q, k, loga, logb, G = ctx.saved_tensors
        kernel = AbsorbedKernel(Bilinear(q, k), loga, logb)
        # The transpose of C R is W C R W^-1, W = diag(b), so its resolvent is a solve between two weightings.
        b, zero = logb.exp(), torch.zeros_like(grad)
        rhs = torch.where(b > 0, grad / torch.where(b > 0, b, torch.ones_like(b)), zero)
        x = _resolvent(kernel, G, rhs)
        with torch.enable_grad():
            leaves = [z.detach().requires_grad_() for z in (q, k, loga, logb)]
            own = AbsorbedKernel(Bilinear(*leaves[:2]), *leaves[2:])
            image = own.columns(own.rows(G.detach()))
            grads = torch.autograd.grad(image, leaves, torch.where(b > 0, b * x, zero))
        return *grads, None

    @staticmethod
    def jvp(ctx: Any, dq: Any, dk: Any, dloga: Any, dlogb: Any, dG: None) -> Tensor:
        q, k, loga, logb, G = ctx.saved_tensors
        moved = zip((q, k, loga, logb), (dq, dk, dloga, dlogb), strict=True)
        dq, dk, dloga, dlogb = (torch.zeros_like(z) if dz is None else dz for z, dz in moved)
        if learns(q, k, loga, logb, dq, dk, dloga, dlogb):
            raise DerivativeError(
                "tangents of entropic potentials cannot be differentiated; use torch.no_grad()"
            )
        kernel = AbsorbedKernel(Bilinear(q, k), loga, logb)
        F = kernel.rows(G)
        dF = -kernels.lse_tangent(q, k, G + logb, dq, dk, dlogb)
        return _resolvent(kernel, G, -kernels.lse_tangent(k, q, F + loga, dk, dq, dF + dloga))


def _resolvent(kernel: AbsorbedKernel, G: Tensor, rhs: Tensor) -> Tensor:
    """(I - C R)^-1 rhs, or an error: a derivative has no status to report a missed tolerance in."""
    state = Streamed(kernel, G).absorbed()
    x, used, done = state.resolvent(rhs, tol=1e-12, max_iter=1000)
    if not done:
        again, _, _ = state.resolvent(rhs, tol=1e-12, max_iter=500)
        if not bool(((again - x).abs().amax(-1) <= 1e-6 * x.abs().amax(-1)).all()):
            raise ConvergenceError(
                f"derivative of entropic potentials: {used} steps were not enough; raise eps", x
            )
    return x


def potential(q: Tensor, k: Tensor, loga: Tensor, logb: Tensor, G: Tensor) -> Tensor:
    """G itself, (B, m), with its derivatives in q, k, log a and log b attached."""
    return _Potential.apply(q, k, loga, logb, G)  # type: ignore[no-untyped-call]


class _Dual(ByFormula):
    """D as a function of points and weights, with G at its solution for the pieces of ``make``."""

    @staticmethod
    def forward(
        ctx: Any, make: Make, twice: Make | None, x: Tensor, y: Tensor, a: Tensor, b: Tensor, G: Tensor
    ) -> Tensor:
        ctx.make, ctx.twice = make, twice
        keep(ctx, x, y, a, b, G)
        f, g = _rows(make(x, y), b, G)
        return _inner(a, f) + _inner(b, g)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, a, b, G = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *_second(ctx.make, ctx.twice, x, y, a, b, G, grad), None
        return None, None, *_first(ctx.make, x, y, a, b, G, grad), None

    @staticmethod
    def jvp(ctx: Any, make: None, twice: None, *moves: Any) -> Tensor:
        x, y, a, b, G = ctx.saved_tensors
        grads = _first(ctx.make, x, y, a, b, G, torch.ones_like(a[:, 0]))
        parts = [(g * d).flatten(1).sum(-1) for g, d in zip(grads, moves[:4], strict=True) if d is not None]
        return torch.stack(parts).sum(0)


def _rows(pieces: DualPieces, b: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """f / eps and g / eps."""
    return pieces.row - pieces.scores.lse(G + b.log()), G + pieces.column


def _first(make: Make, x: Tensor, y: Tensor, a: Tensor, b: Tensor, G: Tensor, grad: Tensor) -> list[Tensor]:
    with torch.enable_grad():
        leaves = [plain(z).requires_grad_() for z in (x, y)]
        f, g = _rows(make(*leaves), plain(b), plain(G))
        total = _inner(plain(a), f) + _inner(plain(b), g)
        dx, dy = torch.autograd.grad(total, leaves, grad)
    return [dx, dy, grad[:, None] * f.detach(), grad[:, None] * g.detach()]


def _second(
    make: Make, twice: Make | None, x: Tensor, y: Tensor, a: Tensor, b: Tensor, G: Tensor, grad: Tensor
) -> list[Tensor | None]:
    """The first derivatives once more, in a form whose derivative includes that of G."""
    if twice is None or bool((a == 0).any() | (b == 0).any()):
        raise DerivativeError(
            "second derivatives of entropic transport need a squared distance or bilinear cost and positive "
            "weights; pass PowerCost(2), and drop atoms without mass"
        )
    pieces = twice(x, y)
    scores = pieces.scores
    if not isinstance(scores, Bilinear):
        raise DerivativeError(
            "second derivatives need scores that are scalar products; pass PowerCost(2) or BilinearCost(A)"
        )
    G = G + (make(x, y).column - pieces.column).detach()  # the same potential, for the other pieces
    G = potential(scores.q, scores.k, a.log(), b.log(), G)
    fixed = [z.clone() for z in (x, y)]  # so that the derivative below does not go through G
    f, g = _rows(twice(*fixed), b, G)
    wanted = [z for z in fixed if z.requires_grad]
    total = _inner(a, f) + _inner(b, g)
    found = iter(torch.autograd.grad(total, wanted, grad, create_graph=True) if wanted else ())
    return [next(found) if z.requires_grad else None for z in fixed] + [grad[:, None] * f, grad[:, None] * g]


def _inner(w: Tensor, h: Tensor) -> Tensor:
    return torch.where(w > 0, w * h, torch.zeros_like(h)).sum(-1)


def plain(a: Tensor) -> Tensor:
    """The numbers alone: no graph, no tangent."""
    primal: Tensor = forward_ad.unpack_dual(a.detach()).primal
    return primal.detach()


def dual(make: Make, twice: Make | None, x: Tensor, y: Tensor, a: Tensor, b: Tensor, G: Tensor) -> Tensor:
    """<a, f> + <b, g> over eps, (B,), with derivatives in points and weights.

    ``make`` is used for values and first derivatives, ``twice``, whose scores are scalar products, for second
    ones. Weights that sum to one are meant: the derivatives in them are the potentials, up to constants.
    """
    return _Dual.apply(make, twice, x, y, a, b, G)  # type: ignore[no-untyped-call]
