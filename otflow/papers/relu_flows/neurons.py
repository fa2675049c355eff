"""A field of many neurons by one neuron at a time: at random (Maurey), or in turn (Lie and Trotter).

`otflow.papers.relu_flows` offers `maurey` and `lie_trotter`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.papers.relu_flows.pieces import Piece, PiecewiseFlow, stacked


def maurey(neurons: Piece | Any, M: int, *, T: float = 1.0, rng: int | np.random.Generator) -> PiecewiseFlow:
    """M pieces of length T / M with weights w_p / pi_p, p drawn with pi_p ~ |w_p| sqrt(|a_p|^2 + b_p^2).

    On average they move as v(x) = sum_p w_p (a_p.x + b_p)_+ during T; the root mean square error decays like
    M^(-1/2), whatever the dimension.

    Args:
        neurons: (w, a, b) with w, a (P, d) and b (P,), or a `Piece` of such arrays, whose T is not used.
        M: number of pieces.
        T: how long v is to act.
        rng: a seed or a `numpy.random.Generator`.

    >>> import torch
    >>> from otflow.papers.relu_flows import maurey
    >>> flow = maurey(([[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]], [1.0, 3.0]), 4000, rng=0)
    >>> (flow([0.0, 0.0]) - torch.tensor([1.0, 3.0])).abs().max().item() < 0.1
    True

    Reference: announced for regular maps with eps^-2 switches in Geshkovski, Ruiz-Balet 2026, arXiv
    2602.08606; the sampling scheme is ours.
    """
    w, a, b = _neurons(neurons)
    M, T = checks.count(M, "M"), checks.positive(T, "T")
    size = w.norm(dim=-1) * (a.square().sum(-1) + b.square()).sqrt()
    total = size.sum()
    if not 0 < total.item() < torch.inf:
        rule = "a field that moves something, in floating point, is needed"
        checks.fail("sum |w| sqrt(|a|^2 + b^2)", total.item(), rule, "pass finite w, a, b that are not all 0")
    share = (size / total).detach()
    p = torch.from_numpy(checks.generator(rng).choice(len(w), size=M, p=share.numpy() / share.numpy().sum()))
    return PiecewiseFlow(Piece(w[p] / share[p, None], a[p], b[p], T / M))


def lie_trotter(neurons: Piece | Any, M: int, *, T: float = 1.0) -> PiecewiseFlow:
    """M sweeps through all P neurons, each for a time T / M: M P pieces, with an error of order 1 / M.

    Args:
        neurons, T: as in `maurey`.
        M: number of sweeps.

    >>> from otflow.papers.relu_flows import lie_trotter
    >>> flow = lie_trotter(([[1.0], [1.0]], [[1.0], [0.0]], [0.0, 1.0]), 1000)  # x' = x + 1 for x > 0
    >>> len(flow), round(flow([1.0]).item(), 2)  # 2 e - 1 = 4.44
    (2000, 4.44)
    """
    w, a, b = _neurons(neurons)
    M, T = checks.count(M, "M"), checks.positive(T, "T")
    return PiecewiseFlow(Piece(w.repeat(M, 1), a.repeat(M, 1), b.repeat(M), T / M))


def _neurons(neurons: Any) -> tuple[Tensor, Tensor, Tensor]:
    if not isinstance(neurons, tuple | list) or len(neurons) not in (3, 4):
        checks.fail("neurons", f"{neurons!r:.60}", "(w, a, b) is needed", "pass arrays (P, d), (P, d), (P,)")
    w, a, b, _ = stacked(Piece(*neurons[:3]))
    if not len(w):
        checks.fail("neurons", "no rows", "at least one neuron is needed", "pass arrays (P, d), (P, d), (P,)")
    return w, a, b
