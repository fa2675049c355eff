"""Random attention fields of every kind, with weights of its own for each member of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import otflow as of

Maker = Callable[[tuple[int, ...], int, np.random.Generator], of.VelocityField]


def matrices(*shape: int, rng: np.random.Generator, scale: float = 1.0) -> Tensor:
    """Gaussian matrices whose spectral norms are near ``scale``.

    >>> import numpy as np
    >>> from otflow.papers.stability_estimate.random_fields import matrices
    >>> matrices(5, 2, 2, rng=np.random.default_rng(0)).shape
    torch.Size([5, 2, 2])
    """
    # |G| is near sqrt(rows) + sqrt(columns) for matrices G with independent standard Gaussian entries.
    return torch.from_numpy(rng.standard_normal(shape) * (scale / (shape[-1] ** 0.5 + shape[-2] ** 0.5)))


def _qkv(batch: tuple[int, ...], d: int, rng: np.random.Generator, scale: float = 1.0) -> list[Tensor]:
    """Queries and keys of this size, values of size one."""
    return [matrices(*batch, d, d, rng=rng, scale=s) for s in (scale, scale, 1.0)]


def _maker(kind: Callable[..., of.VelocityField], scale: float = 1.0, **options: Any) -> Maker:
    """One head of this kind."""
    return lambda batch, d, rng: kind(*_qkv(batch, d, rng, scale), **options)


def _heads(batch: tuple[int, ...], d: int, rng: np.random.Generator, *, causal: bool = False) -> of.MultiHead:
    """A head of softmax, one of sigmoid attention, and matrices that mix them."""
    kinds = (of.SoftmaxAttention, of.SigmoidAttention)
    heads = [kind(*_qkv(batch, d, rng), causal=causal) for kind in kinds]
    return of.MultiHead(heads, mix=[matrices(*batch, d, d, rng=rng) for _ in heads])


def _turning(Q: Tensor, K: Tensor, V: Tensor) -> of.VelocityField:
    """Softmax attention that pulls and pushes by turns."""
    return of.SoftmaxAttention(Q, K, lambda t: torch.cos(3 * t) * V)


# The number, where there is one, is the size of queries and keys.
FIELDS: dict[str, Maker] = {
    "softmax": _maker(of.SoftmaxAttention),
    "L2": _maker(of.L2Attention, 0.8),
    "sigmoid": _maker(of.SigmoidAttention, 1.5),
    "unnormalised": _maker(of.UnnormalisedAttention, 0.5),
    "multi-head": _heads,
    "Sinkhorn": _maker(of.SinkhornAttention, eps=of.Sinkhorn(1.0, tol=1e-11)),
    "masked softmax": _maker(of.SoftmaxAttention, causal=True),
    "masked L2": _maker(of.L2Attention, 0.8, causal=True),
    "masked multi-head": partial(_heads, causal=True),
    "time-dependent": _maker(_turning),
}


def cloud(
    batch: tuple[int, ...],
    n: int,
    d: int,
    rng: np.random.Generator,
    *,
    labelled: bool,
    weighted: bool = False,
) -> of.Particles:
    """Tokens in the unit ball, one of them on its boundary.

    >>> import numpy as np
    >>> from otflow.papers.stability_estimate.random_fields import cloud
    >>> cloud((), 3, 2, np.random.default_rng(0), labelled=True)
    Particles(n=3, d=2, labelled, space=Euclidean())
    """
    x = torch.from_numpy(rng.standard_normal((*batch, n, d)))
    x = x / x.norm(dim=-1).amax(-1)[..., None, None]
    w = torch.from_numpy(rng.uniform(0.5, 1.5, (*batch, n))) if weighted else None
    label = torch.arange(n) / n if labelled else None
    return of.Particles(x, None if w is None else w / w.sum(-1, keepdim=True), label=label)
