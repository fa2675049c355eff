"""What an interpolation is built with: the clouds as they move, and the pieces that have moved them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from otflow.errors import ConvergenceError
from otflow.systems.inputs import Array
from otflow.systems.interpolation_pieces import Piece


@dataclass
class Builder:
    """The clouds as they move, and the pieces that have moved them."""

    x: list[Array]
    w: list[Array]
    rng: np.random.Generator
    pieces: list[Piece] = field(default_factory=list)
    groups: list[list[Array]] = field(default_factory=list)  # of each cloud: the points that go to each atom
    returned: list[float] = field(default_factory=list)  # how far step i leaves the others from where they were

    @property
    def d(self) -> int:
        return self.x[0].shape[1]

    def run(self, piece: Piece) -> None:
        """Move all clouds, and note what the gate had to spare."""
        if piece.gain == 0 and piece.a is not None:
            spare = min(float(np.abs(piece.gate(x)).min()) for x in self.x)
            piece = replace(piece, margin=min(spare, piece.margin))
        self.x = [piece.move(x, w) for x, w in zip(self.x, self.w, strict=True)]
        self.pieces.append(piece)

    def means(self) -> Array:
        """Barycentres (N, d)."""
        return np.stack([w @ x for x, w in zip(self.x, self.w, strict=True)])


def unit(x: Array) -> Array:
    out: Array = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return out


def fail(words: str) -> ConvergenceError:
    return ConvergenceError(words, None)
