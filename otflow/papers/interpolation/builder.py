"""What an interpolation is built with: the clouds as they move, and the pieces that have moved them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from otflow.base.errors import ConvergenceError
from otflow.base.numbers import Array
from otflow.papers.interpolation.pieces import SpherePiece

Indices: TypeAlias = NDArray[np.int64]


@dataclass
class Builder:
    """The clouds as they move, and the pieces that have moved them."""

    x: list[Array]
    w: list[Array]
    rng: np.random.Generator
    pieces: list[SpherePiece] = field(default_factory=list)
    # Of each cloud: the points that go to each atom, and the alpha that drove the others aside for it.
    groups: list[list[Indices]] = field(default_factory=list)
    alphas: list[Array | None] = field(default_factory=list)
    returned: list[float] = field(default_factory=list)  # how far steps leave others from where they were

    def __post_init__(self) -> None:
        self.groups, self.alphas = [[np.arange(len(x))] for x in self.x], [None for _ in self.x]

    @property
    def d(self) -> int:
        return int(self.x[0].shape[1])

    def run(self, piece: SpherePiece, cut: int | None = None) -> None:
        """Move all clouds, and note what the gate had to spare; a cloud that it cuts is left out of that."""
        if piece.gain == 0 and piece.a is not None:
            spare = [float(np.abs(piece.gate(x)).min()) for j, x in enumerate(self.x) if j != cut]
            piece = replace(piece, margin=min(spare, default=np.inf))
        self.x = [piece.move(x, w) for x, w in zip(self.x, self.w, strict=True)]
        self.pieces.append(piece)

    def means(self) -> Array:
        """Barycentres (N, d)."""
        return np.stack([w @ x for x, w in zip(self.x, self.w, strict=True)])


def unit(x: Array) -> Array:
    """x / |x|; the zero vector stays."""
    out: Array = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300)
    return out


def fail(words: str) -> ConvergenceError:
    """A step that cannot be done; `interpolate` adds what was built until then."""
    return ConvergenceError(words, None)
