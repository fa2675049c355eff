"""Comparable measures: the checks before a distance between two, and the power means that distances are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import singledispatch
from numbers import Real
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import ByFormula, learns
from otflow.base.errors import DerivativeError
from otflow.base.spaces import Euclidean, Space
from otflow.measures import Gaussian, Grid, Measure, Particles


class Pair(NamedTuple):
    """Two clouds in double precision, on one flat batch axis."""

    x: Tensor  # (B, n, d)
    w: Tensor  # (B, n)
    y: Tensor  # (B, m, d)
    v: Tensor  # (B, m)
    space: Space
    batch: torch.Size  # what B stands for

    @property
    def requires_grad(self) -> bool:
        return learns(*self[:4])

    @property
    def forward(self) -> bool:
        """Whether forward-mode derivatives come in."""
        return any(forward_ad.unpack_dual(a).tangent is not None for a in self[:4])

    @property
    def moves(self) -> bool:
        """Whether derivatives of either mode are asked for."""
        return self.requires_grad or self.forward


def pair(mu: Measure, nu: Measure) -> Pair:
    """Atoms and weights of two measures that live in the same space and whose batches broadcast."""
    (x, w, space), (y, v, other) = atoms(mu, "mu"), atoms(nu, "nu")
    if space != other or x.shape[-1] != y.shape[-1]:
        rule = f"mu lives on {space} in dimension {x.shape[-1]}"
        checks.fail(
            "nu",
            f"{nu!r} in dimension {y.shape[-1]}",
            rule,
            f"compare in one space: pass nu with space={space} and {x.shape[-1]} coordinates",
        )
    checks.alike(checks.finite(y, "nu.x"), "nu", checks.finite(x, "mu.x"), "mu")
    batch = common_batch(mu, nu)
    x, w, y, v = (merge(a.double(), batch, keep) for a, keep in ((x, 2), (w, 1), (y, 2), (v, 1)))
    w, v = (m / m.sum(-1, keepdim=True) for m in (w, v))  # single precision sums to one only roughly
    return Pair(x, w, y, v, space, batch)


def merge(a: Tensor, batch: torch.Size, keep: int) -> Tensor:
    """a broadcast to ``batch``, whose axes become one; the last ``keep`` axes stay."""
    own = a.shape[a.ndim - keep :]
    return a.expand(*batch, *own).reshape(batch.numel(), *own)


def common_batch(mu: Measure, nu: Measure) -> torch.Size:
    """The shape to which both batches broadcast."""
    rule = f"it does not broadcast with {tuple(mu.batch)} of mu"
    return checks.common(
        mu.batch, nu.batch, "nu.batch", nu.batch, rule, "pass nu[0], one member, or as many as mu has"
    )


def places(count: Tensor) -> Tensor:
    """0, ..., count_1 - 1, 0, ..., count_2 - 1, and so on."""
    before = (count.cumsum(0) - count).repeat_interleave(count)
    return torch.arange(len(before), device=count.device) - before


@singledispatch
def atoms(mu: Measure, name: str = "mu") -> tuple[Tensor, Tensor, Space]:
    """Positions, weights and space; a density counts as atoms in the centres of its cells."""
    checks.fail(name, f"{mu!r:.60}", "a measure with atoms is needed", "pass Particles or a Grid")


@atoms.register(Particles)
def _(mu: Particles, name: str = "mu") -> tuple[Tensor, Tensor, Space]:
    return mu.x, mu.w, mu.space


@atoms.register(Grid)
def _(mu: Grid, name: str = "mu") -> tuple[Tensor, Tensor, Space]:
    return *mu.nodes(), Euclidean()


@atoms.register(Gaussian)
def _(mu: Gaussian, name: str = "mu") -> tuple[Tensor, Tensor, Space]:
    checks.fail(name, repr(mu), "a Gaussian has no atoms", "sample it, or use bures_wasserstein")


def exponent(p: float) -> float:
    """The order of a distance: a number >= 1, infinity included."""
    if not isinstance(p, Real) or isinstance(p, bool) or not p >= 1:
        checks.fail("p", repr(p), "the order of a distance is a number >= 1", "choose p = 1, 2 or more")
    return float(p)


def power_mean(v: Tensor, w: Tensor, p: float) -> Tensor:
    """(sum_i w_i |v_i|^p)^(1/p) over the last axis, the largest |v_i| with mass for p = inf.

    Scaled against overflow; entries without mass do not count. The gradient is 0 where the mean is 0. A
    second derivative is refused where there is none: where the mean is 0 or, if p < 2, some v_i with mass is.

    >>> from otflow.transport.comparable import power_mean
    >>> import torch
    >>> power_mean(torch.tensor([3e200, -4e200], dtype=torch.float64), torch.ones(2), 2).item()
    5e+200
    """
    v = torch.where(w > 0, v, torch.zeros_like(v))
    top = v.detach().abs().amax(-1, keepdim=True)
    if math.isinf(p):
        return v.abs().amax(-1)
    scale = torch.where(top > 0, top, torch.ones_like(top))
    return root((w * _power(v / scale, w, p)).sum(-1), p) * scale[..., 0]


def _power(z: Tensor, w: Tensor, p: float) -> Tensor:
    """|z|^p, smooth at 0 if p >= 2."""
    q = z.square()
    if p == 2:
        return q
    if p < 2:
        q = kinked(q, lambda w, q: bool(((q == 0) & (w > 0)).any()), w)
    zero = q == 0
    return torch.where(zero, torch.zeros_like(q), torch.where(zero, torch.ones_like(q), q) ** (p / 2))


def root(total: Tensor, p: float) -> Tensor:
    """total^(1/p) with gradient 0 at 0, where a second derivative is refused."""
    total = kinked(total, lambda total: bool((total == 0).any()))
    zero = total == 0
    return torch.where(zero, total, torch.where(zero, torch.ones_like(total), total) ** (1 / p))


def kinked(v: Tensor, kink: Callable[..., bool], *where: Tensor) -> Tensor:
    """``v`` itself; its second derivatives raise `DerivativeError` if there is a kink(*where, v)."""
    if not learns(v):
        return v
    return _Kinked.apply(v, kink, *where)  # type: ignore[no-untyped-call]


class _Kinked(ByFormula):
    """The identity. Only a second backward pass through it meets `_Refusal`."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, kink: Callable[..., bool], *where: Tensor) -> Tensor:
        ctx.save_for_backward(*where, v)  # rather than in the closure: what is computed again must not stay
        ctx.kink = kink
        return v.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *where, v = ctx.saved_tensors
        if torch.is_grad_enabled() and ctx.kink(*where, v):
            grad = _Refusal.apply(grad, v)  # type: ignore[no-untyped-call]
        return grad, None, *(None for _ in where)

    @staticmethod
    def jvp(ctx: Any, dv: Tensor, *_: Any) -> Tensor:
        return dv.clone()


class _Refusal(ByFormula):
    """grad as a function of (grad, v), without derivative."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, v: Tensor) -> Tensor:
        return grad.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        raise DerivativeError(
            "a distance has no second derivative where atoms that are matched coincide; move them apart"
        )


def streamed(f: Callable[..., Tensor], tiles: Iterable[slice], *args: Tensor) -> Tensor:
    """f(rows, *args) for each tile of rows, side by side along axis 1, one tile in memory at a time.

    The gradient computes every tile again. A second derivative keeps them all. ``f`` must not depend on
    tensors with derivatives other than ``args``.
    """
    tiles = list(tiles)
    if len(tiles) > 1 and learns(*args):
        return _Streamed.apply(f, tiles, *args)  # type: ignore[no-untyped-call]
    return f(tiles[0], *args) if len(tiles) == 1 else side_by_side(lambda rows: f(rows, *args), tiles)


def side_by_side(f: Callable[[slice], Tensor], tiles: list[slice]) -> Tensor:
    """f(rows) for each tile, in memory that is taken once: small results between tiles would fragment it."""
    first = f(tiles[0])
    out = first.new_empty(first.shape[0], tiles[-1].stop, *first.shape[2:])
    out[:, tiles[0]] = first
    for rows in tiles[1:]:
        out[:, rows] = f(rows)
    return out


class _Streamed(ByFormula):
    # Checkpoints would do the same, but they leave a small graph behind for every tile, between which the
    # memory of the large ones is not reused: measured, 1.9 GB instead of 0.3.

    @staticmethod
    def forward(ctx: Any, f: Callable[..., Tensor], tiles: list[slice], *args: Tensor) -> Tensor:
        ctx.f, ctx.tiles = f, tiles
        ctx.save_for_backward(*args)
        return side_by_side(lambda rows: f(rows, *args), tiles)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        args, graph = ctx.saved_tensors, torch.is_grad_enabled()
        # Views, since an argument that comes twice has two derivatives.
        views = [a.view_as(a) if graph else a.detach().requires_grad_(a.requires_grad) for a in args]
        wanted = [view for view, a in zip(views, args, strict=True) if a.requires_grad]
        sums = [torch.zeros_like(a) for a in wanted]
        for rows, g in zip(ctx.tiles, grad.split([r.stop - r.start for r in ctx.tiles], 1), strict=True):
            with torch.enable_grad():
                out = ctx.f(rows, *views)
            parts = torch.autograd.grad(out, wanted, g, create_graph=graph, materialize_grads=True)
            sums = [a + b for a, b in zip(sums, parts, strict=True)]
        rest = iter(sums)
        return None, None, *(next(rest) if a.requires_grad else None for a in args)
