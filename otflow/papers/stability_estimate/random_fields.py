"""Random attention fields of every kind, with weights of its own for each member of a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import otflow as of


def matrices(*shape: int, rng: np.random.Generator, scale: float = 1.0) -> Tensor:
    """Gaussian matrices whose spectral norms are near ``scale``."""
    a: Tensor = torch.from_numpy(rng.standard_normal(shape))
    scaled: Tensor = a * (scale / (shape[-1] ** 0.5 + shape[-2] ** 0.5))
    return scaled


def _qkv(batch: tuple[int, ...], d: int, rng: np.random.Generator, scale: float) -> list[Tensor]:
    return [matrices(*batch, d, d, rng=rng, scale=s) for s in (scale, scale, 1.0)]


def _heads(batch: tuple[int, ...], d: int, rng: np.random.Generator, *, causal: bool = False) -> of.MultiHead:
    heads = [
        of.SoftmaxAttention(*_qkv(batch, d, rng, 1.0), causal=causal),
        of.SigmoidAttention(*_qkv(batch, d, rng, 1.0), causal=causal),
    ]
    return of.MultiHead(heads, mix=[matrices(*batch, d, d, rng=rng) for _ in heads])


Maker = Callable[[tuple[int, ...], int, np.random.Generator], of.VelocityField]

FIELDS: dict[str, Maker] = {
    "softmax": lambda b, d, rng: of.SoftmaxAttention(*_qkv(b, d, rng, 1.0)),
    "L2": lambda b, d, rng: of.L2Attention(*_qkv(b, d, rng, 0.8)),
    "sigmoid": lambda b, d, rng: of.SigmoidAttention(*_qkv(b, d, rng, 1.5)),
    "unnormalised": lambda b, d, rng: of.UnnormalisedAttention(*_qkv(b, d, rng, 0.5)),
    "multi-head": lambda b, d, rng: _heads(b, d, rng),
    "Sinkhorn": lambda b, d, rng: _sinkhorn(*_qkv(b, d, rng, 1.0)),
    "masked softmax": lambda b, d, rng: of.SoftmaxAttention(*_qkv(b, d, rng, 1.0), causal=True),
    "masked L2": lambda b, d, rng: of.L2Attention(*_qkv(b, d, rng, 0.8), causal=True),
    "masked multi-head": lambda b, d, rng: _heads(b, d, rng, causal=True),
    "time-dependent": lambda b, d, rng: _turning(_qkv(b, d, rng, 1.0)),
}


def _sinkhorn(Q: Tensor, K: Tensor, V: Tensor) -> of.VelocityField:
    return of.SinkhornAttention(Q, K, V, tol=1e-11)


def _turning(m: list[Tensor]) -> of.VelocityField:
    return of.SoftmaxAttention(m[0], m[1], lambda t: torch.cos(3 * t) * m[2])


def cloud(
    batch: tuple[int, ...],
    n: int,
    d: int,
    rng: np.random.Generator,
    *,
    labelled: bool,
    weighted: bool = False,
) -> of.Particles:
    """Tokens in the unit ball, one of them on its boundary."""
    x = torch.from_numpy(rng.standard_normal((*batch, n, d)))
    x = x / x.norm(dim=-1).amax(-1)[..., None, None]
    w = torch.from_numpy(rng.uniform(0.5, 1.5, (*batch, n))) if weighted else None
    label = torch.arange(n) / n if labelled else None
    return of.Particles(x, None if w is None else w / w.sum(-1, keepdim=True), label=label)
