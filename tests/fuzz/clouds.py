"""Tokens as families draw them, together with the code that makes particles of them."""

from __future__ import annotations

from typing import Any

from tests.fuzz import draws
from tests.fuzz.draws import LONG, Array, Rng


class Cloud:
    """Tokens, and the code that makes particles of them."""

    def __init__(
        self,
        rng: Rng,
        *,
        dtype: Any = None,
        batch: Any = None,
        label: bool = False,
        size: float = 1,
        massless: bool = True,
    ) -> None:
        self.dtype = draws.precision(rng) if dtype is None else dtype
        self.batch = draws.batch(rng) if batch is None else batch
        n, d = draws.size(rng), draws.dimension(rng)
        shape = (*self.batch, n, d)
        self.x = draws.cloud(rng, shape, size).astype(self.dtype)
        shared = draws.chance(rng, 0.5)
        self.w = draws.weights(rng, (n,) if shared else shape[:-1], zeros=massless)
        self.label = draws.labels(rng, n) if label else None
        self.n, self.d, self.unit = n, d, draws.unit(self.dtype)
        if self.w is not None:
            self.w = self.w.astype(self.dtype)
        self.mass = draws.known(self.w, shape[:-1])
        self.values = {"x": self.x} | ({} if self.w is None else {"w": self.w})
        self.values |= {} if self.label is None else {"label": self.label}
        self.code = f"of.Particles({self.arguments(rng)})"

    def put(self, rng: Rng, x: Array) -> None:
        """Other positions, with code for them."""
        self.x = x.astype(self.dtype)
        self.values = {**self.values, "x": self.x}
        self.code = f"of.Particles({self.arguments(rng)})"

    def arguments(self, rng: Rng) -> str:
        parts = [draws.laid_out(rng, "x", self.x)]
        parts += [] if self.w is None else [f"w={draws.laid_out(rng, 'w', self.w)}"]
        parts += [] if self.label is None else ["label=label"]
        return ", ".join(parts)

    def seen(self) -> Any:
        return True if self.label is None else self.label[None, :] <= self.label[:, None]

    def each(self, f: Any) -> Array:
        """f(x, w) for every member, in extended precision."""
        parts = [f(self.x[k].astype(LONG), self.mass[k]) for k in draws.members(self.batch)]
        return draws.stacked(self.batch, parts)
