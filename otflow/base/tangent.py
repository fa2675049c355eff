"""Tangents: vectors in pieces, one for each coordinate of a measure, that add and scale as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Size, Tensor

from otflow.base.checks import fail

if TYPE_CHECKING:
    _Pieces = tuple[Tensor, ...]
else:
    _Pieces = tuple

FEW = 24  # numbers that a tangent shows; chosen: a screen holds them


class Tangent(_Pieces):
    """A tuple of tensors that adds and scales like one vector.

    A cloud of particles moves by one piece, of shape ``(*batch, n, d)``; a Gaussian by two, for its
    mean and its root. A factor of shape ``(*batch,)`` scales each member of a batch by its own number.

    >>> from otflow import Tangent
    >>> import torch
    >>> u = Tangent([torch.ones(2), torch.ones(2, 2)])
    >>> (u + 2 * u)[0]
    tensor([3., 3.])
    >>> (u * torch.tensor([1.0, 5.0]))[1]
    tensor([[1., 1.],
            [5., 5.]])
    """

    __slots__ = ()
    __array_ufunc__ = None  # so that numpy numbers on the left leave the product to us

    def __repr__(self) -> str:
        """The numbers if they are few, else the shapes."""
        few = sum(piece.numel() for piece in self) <= FEW
        return f"Tangent({super().__repr__() if few else ', '.join(str(tuple(p.shape)) for p in self)})"

    def map(self, f: Callable[[Tensor], Tensor]) -> Tangent:
        """Apply ``f`` to every piece."""
        return Tangent(f(piece) for piece in self)

    def zip(self, other: Iterable[Tensor], f: Callable[[Tensor, Tensor], Tensor]) -> Tangent:
        """Apply ``f`` to pairs of pieces."""
        return Tangent(f(a, b) for a, b in zip(self, other, strict=True))

    def __add__(self, other: Tangent) -> Tangent:  # type: ignore[override]
        return self.zip(other, lambda a, b: a + b)

    def __radd__(self, other: object) -> Tangent:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # sum([...]) starts with 0

    def __sub__(self, other: Tangent) -> Tangent:
        return self.zip(other, lambda a, b: a - b)

    def __mul__(self, c: float | Tensor) -> Tangent:  # type: ignore[override]
        return self.map(lambda a: a * leading(c, a))

    __rmul__ = __mul__  # type: ignore[assignment]

    def __truediv__(self, c: float | Tensor) -> Tangent:
        return self.map(lambda a: a / leading(c, a))

    def __neg__(self) -> Tangent:
        return self.map(lambda a: -a)


def as_tangent(u: object, name: str, shapes: Sequence[Size] | None = None) -> Tangent:
    """``u`` if it is a Tangent, of these shapes; a bare tensor would be taken apart row by row."""
    if not isinstance(u, Tangent):
        rule = "a Tangent is needed"
        fail(name, f"a {type(u).__name__}", rule, "wrap it: Tangent([v]), one tensor per coordinate")
    if shapes is not None and [p.shape for p in u] != list(shapes):
        found, wanted = [tuple(p.shape) for p in u], [tuple(s) for s in shapes]
        rule = f"a tangent of this measure has pieces of shape {wanted}"
        fail(
            f"{name}.shape",
            found,
            rule,
            "build it alike: Tangent([torch.zeros(shape) for shape in mu.shapes()])",
        )
    return u


def align(c: Tensor, like: Tensor) -> Tensor:
    """A tensor of shape ``(*batch,)`` with axes appended until it meets ``like`` from the left."""
    return c.reshape(c.shape + (1,) * (like.ndim - c.ndim))


def leading(c: float | Tensor, like: Tensor) -> float | Tensor:
    """A factor, aligned and in the dtype of ``like``."""
    return align(c, like).to(like.dtype) if isinstance(c, Tensor) else c
