"""Multi-head attention: several heads, mixed by matrices and summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.tangent import Tangent
from otflow.fields.attention import Attention
from otflow.fields.base import Carry, joint_carry, merged_batch, merged_switches
from otflow.fields.tokens import TokenField
from otflow.fields.weights import Weight, apply, axes, fits, pace, weight
from otflow.measures import Gaussian, Measure, Particles


class MultiHead(TokenField):
    """sum_h W_h Gamma^h_mu(x): heads of any kind, mapped back by the mixing matrices.

    Args:
        heads: attention fields; V_h may be (d_v, d) with d_v < d.
        mix: one W_h of shape (d, d_v) per head (tensor, `Layers` or callable); None means the plain
            sum, for which every V_h is (d, d).

    >>> import torch
    >>> import otflow as of
    >>> mu = of.Particles([[0.0, 1.0], [1.0, 0.0]])
    >>> I, O = torch.eye(2).double(), torch.zeros(1, 2).double()
    >>> heads = [of.SoftmaxAttention(O, O, I[:1]), of.SoftmaxAttention(O, O, I[1:])]
    >>> of.MultiHead(heads, mix=[I[:, :1], I[:, 1:]])(0.0, mu)[0][0]
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, heads: Sequence[Attention], mix: Sequence[Any] | None = None) -> None:
        self.heads = tuple(heads) if isinstance(heads, Sequence) else (heads,)
        checks.require(
            self.heads and all(isinstance(h, Attention) for h in self.heads),
            "heads",
            [type(h).__name__ for h in self.heads],
            "at least one attention field is needed",
            "pass a list such as [SoftmaxAttention(Q, K, V), ...]",
        )
        if mix is not None and len(mix) != len(self.heads):
            checks.fail(
                "len(mix)", len(mix), f"one matrix per head is needed, {len(self.heads)}", "add or drop some"
            )
        self.mix = None if mix is None else tuple(weight(w, f"mix[{h}]") for h, w in enumerate(mix))
        self.switches = merged_switches((*self.heads, *(self.mix or ())))

    def velocity_at(
        self, t: Tensor, mu: Particles, points: Tensor, label: Tensor | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        old = carry.parts if carry else (None,) * len(self.heads)
        pairs = [head.velocity_at(t, mu, points, label, c) for head, c in zip(self.heads, old, strict=True)]
        first, *rest = (self._mixed(h, v, t, mu) for h, (v, _) in enumerate(pairs))
        return sum(rest, start=first), joint_carry([c for _, c in pairs])

    def closure(self, t: Tensor, mu: Gaussian) -> Tangent:
        parts = [head.closure(t, mu) for head in self.heads]
        first, *rest = (
            Tangent([self._mixed(h, b[..., None, :], t, mu)[..., 0, :], self._mixed(h, r.mT, t, mu).mT])
            for h, (b, r) in enumerate(parts)
        )
        return sum(rest, start=first)

    def matrix(self, t: Tensor, mu: Gaussian) -> Tensor:
        parts = [head.matrix(t, mu) for head in self.heads]
        first, *rest = (self._mixed(h, B.mT, t, mu).mT for h, B in enumerate(parts))
        return sum(rest, start=first)

    def pick(self, which: Tensor) -> MultiHead | None:
        heads = [head.pick(which) for head in self.heads]
        mix = [w.pick(which) for w in self.mix or ()]
        if any(part is None for part in (*heads, *mix)):
            return None
        return MultiHead([h for h in heads if h], mix if self.mix else None)

    def _mixed(self, h: int, v: Tensor, t: Tensor, mu: Measure) -> Tensor:
        """W_h v for rows v, (*batch, n, d_v) -> (*batch, n, d)."""
        d = mu.coords[0].shape[-1]
        out = v if self.mix is None else apply(_fits(self.mix[h], v, h, mu, t), v)
        if out.shape[-1] != d:
            rule, remedy = f"tokens have dimension {d}", "pass mix=[W_1, ...] with W_h of shape (d, d_v)"
            checks.fail(f"values of head {h}", f"dimension {out.shape[-1]}", rule, remedy)
        return out

    def __repr__(self) -> str:
        counted = Counter(map(repr, self.heads))  # twelve heads of one size are one word
        heads = [head if n == 1 else f"{n} x {head}" for head, n in counted.items()]
        mixed = [] if self.mix is None else ["mixed", *pace(self.mix)]
        return f"MultiHead({len(self.heads)} heads: {', '.join([*heads, *mixed])})"

    def batch(self, t: Tensor) -> torch.Size:
        mix = [axes(w, t) for w in self.mix or ()]
        return merged_batch([*(head.batch(t) for head in self.heads), *mix])

    def tensors(self, t: Tensor) -> Iterator[Tensor]:
        yield from (a for head in self.heads for a in head.tensors(t))
        yield from (w(t) for w in self.mix or ())


def _fits(f: Weight, v: Tensor, h: int, mu: Measure, t: Tensor) -> Tensor:
    w = fits(f, f"mix[{h}]", 2, mu, t)
    if w.shape[-1] != v.shape[-1]:
        rule = f"head {h} has values in dimension {v.shape[-1]}"
        checks.fail(f"mix[{h}].shape", tuple(w.shape), rule, "W_h needs the shape (d, d_v)")
    return w
