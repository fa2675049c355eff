"""Kernels summed over all pairs of tokens, without an n x n matrix in memory when n is large.

Everything here is built on scores between queries and keys,

    s_ij = <q_i, k_j> + b_j,      or -infinity where the mask hides key j from query i,

and there are two primitives:

    attend:       out_i = sum_j softmax_j(s_ij) v_j   with   lse_i = log sum_j exp(s_ij),
    sigmoid_sum:  out_i = sum_j sigmoid(s_ij) v_j .

Small problems run as plain dense torch, differentiable to any order. Larger ones stream: the forward
pass of `attend` uses torch's fused attention on CPU (O(n) memory, exact in float64), and derivatives,
which fused attention lacks in forward mode, are closed forms summed over tiles of rows.

Shapes: q (*batch, n, c), k (*batch, m, c), v (*batch, m, e), b (*batch, m); batch axes broadcast.
A mask is a pair of labels (of queries, of keys): key j is seen by query i when label_j <= label_i.
A query that sees nothing gets out = 0 and lse = -infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base.derivatives import ByFormula, keep
from otflow.base.errors import DerivativeError

# Scores of a differentiable dense matrix, at most; chosen: 2 MB in float64, below which dense is fast.
DENSE = 2**18
SECOND = 2**25  # scores when a second derivative needs the dense matrix, at most; chosen: 256 MB
# Queries that share a prefix of keys in causal attention; chosen: half a tile of ragged tail each.
BLOCK = 512  # queries that share a prefix of keys in causal attention; chosen
TILE = 2**20  # scores per tile when streaming; chosen: 8 MB in float64, about the size of a cache

Mask = tuple[Tensor, Tensor]


class AttentionScores(NamedTuple):
    """The matrix s_ij, not yet computed; all parts share one flat batch axis."""

    q: Tensor  # (B, n, c)
    k: Tensor  # (B, m, c)
    b: Tensor | None  # (B, m)
    mask: Mask | None  # (B, n), (B, m)

    @property
    def size(self) -> int:
        return self.q.shape[0] * self.q.shape[1] * self.k.shape[1]

    def tile(self, rows: slice) -> Tensor:
        """s_ij for some rows, (B, r, m)."""
        s = self.q[:, rows] @ self.k.mT
        if self.b is not None:
            s = s + self.b[:, None, :]
        if self.mask is None:
            return s
        of_query, of_key = self.mask
        return s.masked_fill(of_key[:, None, :] > of_query[:, rows, None], -math.inf)


def row_tiles(n: int, width: int) -> Iterator[slice]:
    """Slices of 0..n such that a tile of ``width`` scores a row stays near `TILE` scores."""
    step = max(1, TILE // max(width, 1))
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


def attend(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor | None = None, mask: Mask | None = None
) -> tuple[Tensor, Tensor]:
    """Attention with its normaliser: ``out`` (*batch, n, e) and ``lse`` (*batch, n).

    >>> from otflow.base.kernels import attend
    >>> import torch
    >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    >>> out, lse = attend(x, x, x)
    >>> out[1].item() == torch.sigmoid(torch.tensor(1.0, dtype=torch.float64)).item()
    True
    """
    flat, (scores, v_) = _flatten(q, k, v, b, mask)
    if scores.size <= DENSE:
        out, lse = _dense(scores, v_)
    else:
        rows, keys = scores.mask or (None, None)
        out, lse = _Attend.apply(scores.q, scores.k, v_, scores.b, rows, keys)  # type: ignore[no-untyped-call]
    return out.reshape(*flat, *out.shape[1:]), lse.reshape(*flat, *lse.shape[1:])


def sigmoid_sum(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None) -> Tensor:
    """sum_j sigmoid(<q_i, k_j>) v_j over the keys that query i sees, (*batch, n, e).

    >>> from otflow.base.kernels import sigmoid_sum
    >>> import torch
    >>> sigmoid_sum(torch.zeros(1, 1), torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
    tensor([[2.]])
    """
    flat, (scores, v_) = _flatten(q, k, v, None, mask)
    if scores.size <= DENSE:
        out = _dense_sigmoid(scores, v_)
    else:
        rows, keys = scores.mask or (None, None)
        out = _SigmoidSum.apply(scores.q, scores.k, v_, rows, keys)  # type: ignore[no-untyped-call]
    return out.reshape(*flat, *out.shape[1:])


def _flatten(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor | None, mask: Mask | None
) -> tuple[torch.Size, tuple[AttentionScores, Tensor]]:
    """Broadcast the batch axes and merge them into one."""
    extra = [] if b is None else [b.shape[:-1]]
    extra += [] if mask is None else [mask[0].shape[:-1], mask[1].shape[:-1]]
    batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2], *extra)

    def flat(a: Tensor, keep: int) -> Tensor:
        return a.expand(batch + a.shape[-keep:]).reshape(math.prod(batch), *a.shape[-keep:])

    scores = AttentionScores(
        flat(q, 2),
        flat(k, 2),
        None if b is None else flat(b, 1),
        mask and (flat(mask[0], 1), flat(mask[1], 1)),
    )
    return batch, (scores, flat(v, 2))


def _dense(scores: AttentionScores, v: Tensor) -> tuple[Tensor, Tensor]:
    s = scores.tile(slice(None))
    # The shift by the maximum keeps exp from overflowing. It cancels, so it needs no derivative.
    top = s.detach().amax(-1, keepdim=True)
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))  # rows that see nothing
    p = torch.exp(s - top)
    z = p.sum(-1, keepdim=True)
    seen = z > 0
    safe = torch.where(seen, z, torch.ones_like(z))
    lse = torch.where(seen, safe.log() + top, torch.full_like(z, -math.inf))
    return (p / safe) @ v, lse[..., 0]


def _dense_sigmoid(scores: AttentionScores, v: Tensor) -> Tensor:
    return torch.sigmoid(scores.tile(slice(None))) @ v


# --- streaming: the forward passes -------------------------------------------------------------------


def _fused(scores: AttentionScores, v: Tensor) -> tuple[Tensor, Tensor]:
    """torch's fused CPU attention; the bias rides along as one more coordinate of the keys."""
    q, k, e = scores.q, scores.k, v.shape[-1]
    lowest = torch.finfo(q.dtype).min / 8  # stands for -infinity: finite, so that no inf - inf appears
    if scores.b is not None:
        q = torch.cat([q, torch.ones_like(q[..., :1])], -1)
        k = torch.cat([k, scores.b.clamp(min=lowest)[..., None]], -1)
    # Narrow heads are slower than padded ones (measured: 2 to 16 coordinates in float32, 2 to 4 in float64).
    width = max(q.shape[-1], e, 16 if q.dtype == torch.float32 else 4)
    q, k, v = (torch.nn.functional.pad(a, (0, width - a.shape[-1]))[:, None] for a in (q, k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)
    out, lse = out[:, 0, :, :e], lse[:, 0]
    unseen = lse < lowest / 2
    return out.masked_fill(unseen[..., None], 0.0), lse.masked_fill(unseen, -math.inf)


def _tiled(scores: AttentionScores, v: Tensor) -> tuple[Tensor, Tensor]:
    width = scores.q.shape[0] * scores.k.shape[1]
    pairs = [_dense(_take(scores, rows), v) for rows in row_tiles(scores.q.shape[1], width)]
    return torch.cat([out for out, _ in pairs], 1), torch.cat([lse for _, lse in pairs], 1)


def _take(scores: AttentionScores, rows: slice, keys: slice = slice(None)) -> AttentionScores:
    mask = scores.mask and (scores.mask[0][:, rows], scores.mask[1][:, keys])
    return AttentionScores(
        scores.q[:, rows], scores.k[:, keys], None if scores.b is None else scores.b[:, keys], mask
    )


def _stream(scores: AttentionScores, v: Tensor) -> tuple[Tensor, Tensor]:
    if scores.q.device.type != "cpu":
        return _tiled(scores, v)
    if scores.mask is None:
        return _fused(scores, v)
    pairs = [_causal(*_batch_slice(scores, scores.mask, v, part)) for part in _members(scores)]
    return torch.cat([o for o, _ in pairs]), torch.cat([a for _, a in pairs])


def _members(scores: AttentionScores) -> Iterator[slice]:
    """Parts of the batch so small that a ragged tail of all its members fits into a few tiles."""
    block = min(scores.q.shape[1], BLOCK) * min(scores.k.shape[1], BLOCK)
    return _blocks(scores.q.shape[0], max(1, 4 * TILE // block))


def _batch_slice(
    scores: AttentionScores, mask: Mask, v: Tensor, part: slice
) -> tuple[AttentionScores, Mask, Tensor]:
    b, own = None if scores.b is None else scores.b[part], (mask[0][part], mask[1][part])
    return AttentionScores(scores.q[part], scores.k[part], b, own), own, v[part]


def _causal(scores: AttentionScores, mask: Mask, v: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by label; then every block of queries sees one common prefix of the keys, by fused
    attention, and a short ragged tail, by a masked tile; the two are merged by their lse."""
    rows, by_row = mask[0].sort(stable=True)
    keys, by_key = mask[1].sort(stable=True)
    b = None if scores.b is None else scores.b.gather(1, by_key)
    ordered = AttentionScores(_permute(scores.q, by_row), _permute(scores.k, by_key), b, (rows, keys))
    seen = torch.searchsorted(keys, rows, right=True)  # (B, n): length of the prefix of each query
    pairs = [_block(ordered, _permute(v, by_key), seen, r) for r in _blocks(rows.shape[1], BLOCK)]
    back = by_row.argsort(-1)
    out, lse = torch.cat([o for o, _ in pairs], 1), torch.cat([a for _, a in pairs], 1)
    return _permute(out, back), lse.gather(1, back)


def _blocks(n: int, size: int) -> Iterator[slice]:
    return (slice(i, min(i + size, n)) for i in range(0, n, size))


def _permute(a: Tensor, index: Tensor) -> Tensor:
    return a.gather(1, index[..., None].expand(*index.shape, a.shape[-1]))


def _block(scores: AttentionScores, v: Tensor, seen: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    low, high = int(seen[:, rows].min()), int(seen[:, rows].max())
    part = _take(scores, rows, slice(0, low))
    out = torch.zeros(*part.q.shape[:2], v.shape[-1], dtype=v.dtype, device=v.device)
    total = torch.full(part.q.shape[:2], -math.inf, dtype=v.dtype, device=v.device)
    if low:
        out, total = _fused(part._replace(mask=None), v[:, :low])
    width = part.q.shape[0] * part.q.shape[1]
    for tail in row_tiles(high - low, width):
        keys = slice(low + tail.start, low + tail.stop)
        out, total = _merge(out, total, *_dense(_take(scores, rows, keys), v[:, keys]))
    return out, total


def _merge(a: Tensor, la: Tensor, b: Tensor, lb: Tensor) -> tuple[Tensor, Tensor]:
    """The attention over the union of two sets of keys, from the attention over each."""
    lse = torch.logaddexp(la, lb)
    # Where neither set is seen all three are -inf, and their difference would be NaN.
    base = torch.where(torch.isfinite(lse), lse, torch.zeros_like(lse))
    return torch.exp(la - base)[..., None] * a + torch.exp(lb - base)[..., None] * b, lse


# --- streaming: the derivatives ----------------------------------------------------------------------


class _Attend(ByFormula):
    """Streamed attention with both modes of differentiation in closed form.

    With P = softmax(s): forward mode (see `jvp`) uses ds_ij = <dq_i, k_j> + <q_i, dk_j> + db_j and
    dlse_i = sum_j P_ij ds_ij, dout_i = sum_j P_ij (ds_ij v_j + dv_j) - dlse_i out_i; reverse mode (see
    `backward`) is its transpose.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, b: Tensor | None, rows: Tensor | None, keys: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        scores = _scores(q, k, b, rows, keys)
        out, lse = _stream(scores, v)
        keep(ctx, q, k, v, b, rows, keys, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, b, rows, keys, out, lse = ctx.saved_tensors
        scores = _scores(q, k, b, rows, keys)
        if torch.is_grad_enabled():
            return (
                *_differentiable(lambda: _dense(scores, v), (q, k, v, b), (grad_out, grad_lse), scores),
                None,
                None,
            )
        shift = grad_lse - (grad_out * out).sum(-1)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        db = torch.zeros(k.shape[:2], dtype=k.dtype, device=k.device)
        for r, p in _probabilities(scores, lse):
            ds = p * (grad_out[:, r] @ v.mT + shift[:, r, None])
            dq[:, r] = ds @ k
            dk += ds.mT @ q[:, r]
            dv += p.mT @ grad_out[:, r]
            db += ds.sum(1)
        return dq, dk, dv, None if b is None else db, None, None

    @staticmethod
    def jvp(
        ctx: Any, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, db: Tensor | None, *_: None
    ) -> tuple[Tensor, Tensor]:
        q, k, v, b, rows, keys, out, lse = ctx.saved_tensors
        return _attend_tangent(_scores(q, k, b, rows, keys), v, out, lse, dq, dk, dv, db)


def _attend_tangent(
    scores: AttentionScores,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    db: Tensor | None,
) -> tuple[Tensor, Tensor]:
    dot, dout = torch.empty_like(lse), torch.empty_like(out)
    for r, p in _probabilities(scores, lse):
        pds = p * _score_tangent(scores.q, scores.k, dq, dk, db, r)
        dot[:, r] = pds.sum(-1)
        dout[:, r] = pds @ v - dot[:, r, None] * out[:, r]
        if dv is not None:
            dout[:, r] += p @ dv
    return dout, dot


def lse_tangent(q: Tensor, k: Tensor, b: Tensor, dq: Tensor, dk: Tensor, db: Tensor) -> Tensor:
    """The derivative of lse(q, k, b), (*batch, n), in the direction (dq, dk, db)."""
    batch, (scores, v) = _flatten(q, k, k[..., :1], b, None)
    _, (moved, _) = _flatten(
        dq.expand(*batch, *dq.shape[-2:]), dk, v.reshape(*batch, *v.shape[-2:]), db, None
    )
    out, lse = _stream(scores, v)
    return _attend_tangent(scores, v, out, lse, moved.q, moved.k, None, moved.b)[1].reshape(*batch, -1)


class _SigmoidSum(ByFormula):
    """Streamed sigmoid attention: dout_i = sum_j sigmoid'(s_ij) ds_ij v_j + sigmoid(s_ij) dv_j."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None, keys: Tensor | None
    ) -> Tensor:
        keep(ctx, q, k, v, rows, keys)
        out = v.new_empty(*q.shape[:2], v.shape[-1])  # pieces kept apart until the end would scatter memory
        for r, p in _sigmoids(_scores(q, k, None, rows, keys)):
            out[:, r] = p @ v
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, rows, keys = ctx.saved_tensors
        if torch.is_grad_enabled():
            scores = _scores(q, k, None, rows, keys)
            return (
                *_differentiable(lambda: (_dense_sigmoid(scores, v),), (q, k, v), (grad,), scores),
                None,
                None,
            )
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for r, p in _sigmoids(_scores(q, k, None, rows, keys)):
            ds = p * (1 - p) * (grad[:, r] @ v.mT)
            dq[:, r] = ds @ k
            dk += ds.mT @ q[:, r]
            dv += p.mT @ grad[:, r]
        return dq, dk, dv, None, None

    @staticmethod
    def jvp(ctx: Any, dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, *_: None) -> Tensor:
        q, k, v, rows, keys = ctx.saved_tensors
        parts = []
        for r, p in _sigmoids(_scores(q, k, None, rows, keys)):
            part = (p * (1 - p) * _score_tangent(q, k, dq, dk, None, r)) @ v
            parts.append(part if dv is None else part + p @ dv)
        return torch.cat(parts, 1)


def _differentiable(
    dense: Callable[[], tuple[Tensor, ...]],
    inputs: tuple[Tensor | None, ...],
    grads: tuple[Tensor, ...],
    scores: AttentionScores,
) -> list[Tensor | None]:
    """Gradients that can be differentiated again, which only the dense matrix gives."""
    if scores.size > SECOND:
        raise DerivativeError(
            f"a second derivative needs all {scores.size} scores in memory (limit {SECOND}); "
            f"take {math.isqrt(SECOND)} tokens or fewer"
        )
    real = [a for a in inputs if a is not None and a.requires_grad]
    found = iter(torch.autograd.grad(dense(), real, grads, create_graph=True, allow_unused=True))
    return [next(found) if a is not None and a.requires_grad else None for a in inputs]


def _scores(
    q: Tensor, k: Tensor, b: Tensor | None, rows: Tensor | None, keys: Tensor | None
) -> AttentionScores:
    return AttentionScores(q, k, b, None if rows is None or keys is None else (rows, keys))


def _probabilities(scores: AttentionScores, lse: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Tiles of P_ij = exp(s_ij - lse_i)."""
    base = torch.where(torch.isfinite(lse), lse, torch.zeros_like(lse))
    for r in row_tiles(scores.q.shape[1], scores.q.shape[0] * scores.k.shape[1]):
        yield r, torch.exp(scores.tile(r) - base[:, r, None])


def _sigmoids(scores: AttentionScores) -> Iterator[tuple[slice, Tensor]]:
    for r in row_tiles(scores.q.shape[1], scores.q.shape[0] * scores.k.shape[1]):
        yield r, torch.sigmoid(scores.tile(r))


def _score_tangent(
    q: Tensor, k: Tensor, dq: Tensor | None, dk: Tensor | None, db: Tensor | None, r: slice
) -> Tensor:
    ds = torch.zeros((), dtype=q.dtype, device=q.device)
    if dq is not None:
        ds = ds + dq[:, r] @ k.mT
    if dk is not None:
        ds = ds + q[:, r] @ dk.mT
    return ds if db is None else ds + db[:, None, :]
