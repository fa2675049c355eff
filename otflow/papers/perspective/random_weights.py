"""Random weights Q, K, V: Ginibre, GOE, a stylised learned matrix, and weights redrawn along depth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import batch_shape
from otflow.fields import Layers


def _normal(rng: int | np.random.Generator, batch: tuple[int, ...], *shape: int) -> Tensor:
    return torch.from_numpy(checks.generator(rng).standard_normal((*batch_shape(batch), *shape)))


def ginibre(d: int, *, rng: int | np.random.Generator, batch: tuple[int, ...] = ()) -> Tensor:
    """Independent entries N(0, 1/d), (*batch, d, d): for large d the eigenvalues fill the unit disc.

    The norm |G| is about 2. The phase diagrams of arXiv 2312.10794 with random weights have entries N(0, 1)
    in Q and K (Figure 5), which is ``sqrt(d)`` times this matrix.

    >>> import numpy as np
    >>> from otflow.papers.perspective import ginibre
    >>> ginibre(3, rng=np.random.default_rng(0), batch=(2,)).shape
    torch.Size([2, 3, 3])
    """
    d = checks.count(d, "d")
    return _normal(rng, batch, d, d) / math.sqrt(d)


def goe(d: int, *, rng: int | np.random.Generator, batch: tuple[int, ...] = ()) -> Tensor:
    """(G + G^T) / sqrt(2 d), G standard normal, (*batch, d, d): for large d the spectrum fills [-2, 2].

    With A = K^T Q = V = goe(d), attention without softmax ascends an energy, and with V = -A it descends one
    (arXiv 2312.10794, section 3.4).

    >>> import numpy as np
    >>> import torch
    >>> from otflow.papers.perspective import goe
    >>> H = goe(3, rng=np.random.default_rng(0))
    >>> torch.equal(H, H.mT)
    True
    """
    d = checks.count(d, "d")
    G = _normal(rng, batch, d, d)
    return (G + G.mT) / math.sqrt(2 * d)


def learned_like(
    d: int,
    rank: int,
    *,
    rng: int | np.random.Generator,
    decay: float = 1.0,
    identity: float = 0.5,
    batch: tuple[int, ...] = (),
) -> Tensor:
    """identity I + sum_{k <= rank} k^(-decay) u_k v_k^T with random orthonormal u and v, (*batch, d, d).

    A stylised picture of trained matrices K^T Q and V: a few strong directions, a spectrum that decays like a
    power, and a multiple of the identity. It is no fit to any network. Use it as Q with K = I.

    Args:
        d, rank: the size of the matrix and of its part of low rank, rank <= d.
        decay: exponent of the singular values, >= 0.
        identity: the multiple of the identity.

    >>> import numpy as np
    >>> import torch
    >>> from otflow.papers.perspective import learned_like
    >>> A = learned_like(4, 2, rng=np.random.default_rng(0), identity=0.0)
    >>> torch.linalg.svdvals(A).round(decimals=6)
    tensor([1.0000, 0.5000, 0.0000, 0.0000], dtype=torch.float64)
    """
    d, rank = checks.count(d, "d"), checks.count(rank, "rank")
    if rank > d:
        checks.fail("rank", rank, f"a matrix of size {d} has no larger rank", f"choose rank <= {d}")
    if checks.number(decay, "decay") < 0:
        checks.fail("decay", decay, "singular values do not grow", "choose decay >= 0")
    rng = checks.generator(rng)  # once: a seed would give u = v
    u, v = (torch.linalg.qr(_normal(rng, batch, d, rank)).Q for _ in range(2))
    s = torch.arange(1, rank + 1, dtype=torch.float64) ** -decay
    low: Tensor = (u * s) @ v.mT
    return checks.number(identity, "identity") * torch.eye(d, dtype=torch.float64) + low


def redrawn(draw: Callable[[], Any], period: float, t1: float) -> Layers:
    """Weights that are drawn anew every ``period`` until t1, to be passed as Q, K or V.

    Args:
        draw: makes a matrix (*batch, d, d) with every call.
        period, t1: how long one lasts, and the end of the flow.

    >>> import numpy as np
    >>> from otflow.papers.perspective import ginibre, redrawn
    >>> rng = np.random.default_rng(0)
    >>> Q = redrawn(lambda: ginibre(2, rng=rng), period=0.5, t1=1.2)
    >>> Q.values.shape, Q.switches
    (torch.Size([3, 2, 2]), (0.5, 1.0))
    """
    checks.function(draw, "draw")
    # A t1 of whole periods must not gain a layer by rounding.
    layers = math.ceil(checks.positive(t1, "t1") / checks.positive(period, "period") * (1 - 1e-12))
    drawn = [checks.tensor(draw(), "draw()") for _ in range(layers)]
    shapes = sorted({tuple(M.shape) for M in drawn})
    if len(shapes) > 1 or drawn[0].ndim < 2:
        checks.fail("draw().shape", shapes, "all are (*batch, d, d), of one shape", "draw the same shape")
    return Layers(torch.stack(drawn), dt=period)
