"""The partition function of softmax attention, its normaliser, as the weight of a metric."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import NotFiniteError
from otflow.base.kernels import attend
from otflow.base.matrices import squares
from otflow.base.parameters import Derived, Parametric
from otflow.measures import Gaussian, Measure, Particles


class Partition(Parametric):
    """a_mu(x) = int exp(Ax.y) dmu(y): in ``Twisted(Partition(A))`` softmax attention with V = -A descends
    (1/2) iint exp(Ax.y) dmu dmu, if A is symmetric.

    Streamed, in O(n) memory; differentiable in mu, x and A. Where it leaves the range of floating point an
    error says so; `log` does not leave it.

    Args:
        A: (d, d), or (*batch, d, d).

    References: Sander, Ablin, Blondel, Peyré 2022, "Sinkformers"; Burger, Kabri, Korolev, Roith,
    Weigand 2025, "Analysis of mean-field models arising from self-attention dynamics in transformer
    architectures with layer normalization".

    >>> from otflow.metrics import Partition
    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [1.0]])
    >>> a = Partition([[2.0]])
    >>> a(mu, mu.x)  # 1 and (1 + e^2) / 2
    tensor([1.0000, 4.1945], dtype=torch.float64)
    >>> a.log(mu, 400 * mu.x)  # 0 and log((1 + e^800) / 2)
    tensor([  0.0000, 799.3069], dtype=torch.float64)
    """

    A = Derived[Tensor](squares)

    def __init__(self, A: Any) -> None:
        self.A = A

    def log(self, mu: Measure, x: Tensor) -> Tensor:
        """log a_mu(x), (*batch, n), for x of shape (*batch, n, d)."""
        if x.ndim < 2 or x.shape[-1] != self.A.shape[-1]:
            rule = f"A is made for points (*batch, n, {self.A.shape[-1]})"
            checks.fail(
                "x.shape",
                tuple(x.shape),
                rule,
                f"pass x with {self.A.shape[-1]} coordinates, or A with {x.shape[-1]} columns",
            )
        return _log_partition(mu, x @ checks.alike(self.A, "A", x, "x").mT)

    def __call__(self, mu: Measure, x: Tensor) -> Tensor:
        """a_mu(x), (*batch, n)."""
        log, info = self.log(mu, x), torch.finfo(x.dtype)
        low, high = torch.aminmax(log.detach())
        if not checks.on_host(log):
            return checks.sound(log, (low > math.log(info.tiny)) & (high < math.log(info.max))).exp()
        if not (low > math.log(info.tiny) and high < math.log(info.max)):
            raise NotFiniteError(
                f"int exp(Ax.y) dmu(y) reaches from exp({low.item():.4g}) to exp({high.item():.4g}), beyond "
                f"the range of {log.dtype}; rescale A / 10, say, or x / 3.",
                log,
            )
        return log.exp()

    def __repr__(self) -> str:
        return f"Partition(d={self.A.shape[-1]})"


@singledispatch
def _log_partition(mu: Measure, q: Tensor) -> Tensor:
    """log int exp(q.y) dmu(y) for q = Ax."""
    y, w = mu.nodes()
    if isinstance(mu, Particles) and mu.uniform:  # no bias to stream
        return attend(q, y, y[..., :1])[1] - math.log(y.shape[-2])
    return attend(q, y, y[..., :1], w.log())[1]


@_log_partition.register(Gaussian)
def _(mu: Gaussian, q: Tensor) -> Tensor:
    return (q @ mu.mean[..., None])[..., 0] + (q @ mu.root).square().sum(-1) / 2
