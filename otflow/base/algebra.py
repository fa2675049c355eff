"""An algebra of things that add and scale, shared by energies and velocity fields."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, Self, TypeVar

from otflow.base import checks

T = TypeVar("T", bound="Linear[Any]")


class Linear(Generic[T]):
    """Sums, differences and multiples, all by way of one method that makes a linear combination.

    A sum gives its parts from `pairs`, so that sums of sums are one sum.
    """

    @property
    @abstractmethod
    def kind(self) -> type[T]:
        """What it may be added to: an energy and a field both add, but not to each other."""

    @abstractmethod
    def combination(self, pairs: list[tuple[T, float]]) -> T:
        """sum_i c_i f_i for the pairs (f_i, c_i)."""

    def pairs(self) -> list[tuple[Any, float]]:
        """Itself as a linear combination."""
        return [(self, 1.0)]

    def __add__(self, other: T) -> T:
        return self._plus(other, 1.0) if isinstance(other, self.kind) else NotImplemented

    def __radd__(self, other: object) -> Self:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # sum([...]) starts with 0

    def __sub__(self, other: T) -> T:
        return self._plus(other, -1.0) if isinstance(other, self.kind) else NotImplemented

    def __mul__(self, c: float) -> T:
        return self.combination(_scaled(self.pairs(), checks.number(c, "factor")))

    __rmul__ = __mul__

    def __truediv__(self, c: float) -> T:
        return self.combination(_scaled(self.pairs(), 1 / checks.number(c, "divisor")))

    def __neg__(self) -> T:
        return self.combination(_scaled(self.pairs(), -1.0))

    def _plus(self, other: T, c: float) -> T:
        return self.combination(self.pairs() + _scaled(other.pairs(), c))


def _scaled(pairs: list[tuple[Any, float]], c: float) -> list[tuple[Any, float]]:
    return [(term, c * factor) for term, factor in pairs]
