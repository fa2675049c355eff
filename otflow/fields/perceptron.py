"""The perceptron, the feed-forward block of a Transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.parameters import tensors
from otflow.base.tables import named
from otflow.base.tangent import Tangent
from otflow.fields.base import Carry, merged_batch, merged_switches
from otflow.fields.tokens import TokenField
from otflow.fields.weights import apply, axes, fits, last, pace, weight
from otflow.measures import Gaussian, Measure, Particles


class Perceptron(TokenField):
    """x -> W act(U x + b), the same for every token.

    Args:
        W: (d, m); U: (m, d); b: (m,) or None. Each a tensor, `Layers`, or a callable of t.
        activation: elementwise, in torch operations; None for a linear block, which keeps Gaussians Gaussian.

    >>> import otflow as of
    >>> field = of.Perceptron(W=[[1.0]], U=[[2.0]], b=[-1.0])
    >>> field(0.0, of.Particles([[0.0], [3.0]]))[0].flatten()
    tensor([0., 5.], dtype=torch.float64)
    """

    def __init__(
        self, W: Any, U: Any, b: Any = None, activation: Callable[[Tensor], Tensor] | None = torch.relu
    ) -> None:
        self.W, self.U = weight(W, "W"), weight(U, "U")
        self.b = None if b is None else weight(b, "b", ndim=1)
        self.activation = None if activation is None else checks.function(activation, "activation")
        self.switches = merged_switches([m for m in (self.W, self.U, self.b) if m is not None])

    def velocity_at(
        self, t: Tensor, mu: Particles, points: Tensor, label: Tensor | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        W, U, b = self.weights(t, mu)
        z = apply(U, points) if b is None else apply(U, points) + b[..., None, :]
        return apply(W, z if self.activation is None else self.activation(z)), None

    def closure(self, t: Tensor, mu: Gaussian) -> Tangent:
        if self.activation is not None:
            self.refuse(mu)
        W, U, b = self.weights(t, mu)
        mean = (U @ mu.mean[..., None])[..., 0]
        return Tangent([(W @ (mean if b is None else mean + b)[..., None])[..., 0], W @ U @ mu.root])

    def matrix(self, t: Tensor, mu: Gaussian) -> Tensor:
        if self.activation is not None:
            self.refuse(mu)
        W, U, _ = self.weights(t, mu)
        return W @ U

    def weights(self, t: Tensor, mu: Measure) -> tuple[Tensor, Tensor, Tensor | None]:
        d = mu.coords[0].shape[-1]
        W, U = fits(self.W, "W", 2, mu, t), fits(self.U, "U", 2, mu, t)
        if U.shape[-1] != d or W.shape[-2:] != U.mT.shape[-2:]:
            rule, remedy = (
                f"(d, m) and (m, d) with d = {d}",
                f"pass W and U like torch.ones({d}, m) and torch.ones(m, {d})",
            )
            checks.fail("W.shape, U.shape", (tuple(W.shape), tuple(U.shape)), rule, remedy)
        return W, U, None if self.b is None else _bias(fits(self.b, "b", 1, mu, t), U.shape[-2])

    def __repr__(self) -> str:
        weights = [w for w in (self.W, self.U, self.b) if w is not None]
        sizes = {"d": last(self.U, -1) or last(self.W, -2), "hidden": last(self.U, -2) or last(self.W, -1)}
        words = [f"{name}={n}" for name, n in sizes.items() if n is not None]
        act = "None" if self.activation is None else named(self.activation)
        return f"Perceptron({', '.join([*words, *pace(weights), f'activation={act}'])})"

    def batch(self, t: Tensor) -> torch.Size:
        b = () if self.b is None else axes(self.b, t, keep=1)
        return merged_batch([axes(self.W, t), axes(self.U, t), b])

    def tensors(self, t: Tensor) -> Iterator[Tensor]:
        yield from (f(t) for f in (self.W, self.U, self.b) if f is not None)
        yield from tensors(self.activation)


def _bias(b: Tensor, rows: int) -> Tensor:
    if b.shape[-1] != rows:
        checks.fail("b.shape", tuple(b.shape), f"U has {rows} rows", "give b one entry for each of them")
    return b
