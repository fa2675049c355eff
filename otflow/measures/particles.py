"""Clouds of weighted, possibly labelled tokens on a space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.parameters import Seen
from otflow.base.spaces import Euclidean, Space
from otflow.base.tangent import Tangent, as_tangent
from otflow.measures.base import Change, Measure, Random, pick, total, uniforms, which


@dataclass(frozen=True, eq=False)
class Particles(Measure):
    """mu = sum_i w_i delta_{x_i}: tokens at x_i, with weights and optional labels.

    A label is the position of a token in its sequence; it is carried along and never moved, and
    causal attention reads it. On ``Sphere()`` the points must have norm one.

    Args:
        x: positions (*batch, n, d), numpy or torch.
        w: weights (*batch, n) or (n,), >= 0 and summing to 1; uniform if left out.
        label: real labels (*batch, n) or (n,), in any order, ties allowed.
        space: `Euclidean()`, `Sphere()` or `Torus(period)`.

    >>> from otflow import Particles
    >>> import numpy as np
    >>> mu = Particles(np.zeros((5, 2)))
    >>> mu
    Particles(n=5, d=2, space=Euclidean())
    """

    names: ClassVar[tuple[str, ...]] = ("x",)
    x: Tensor
    _w: Tensor | None  # None if uniform, so that fields can leave them out
    label: Tensor | None
    space: Space = field(default_factory=Euclidean)

    def __init__(self, x: Any, w: Any = None, label: Any = None, space: Space | None = None) -> None:
        space = Euclidean() if space is None else space
        remedy = "pass Euclidean(), Sphere() or Torus()"
        checks.require(isinstance(space, Space), "space", space, "an instance of a space is needed", remedy)
        x = _positions(x, space)
        self._set(
            x, None if w is None else _weights(w, x), None if label is None else _labels(label, x), space
        )
        self._massless()  # here, where the weights are looked at anyway

    def _set(self, x: Tensor, w: Tensor | None, label: Tensor | None, space: Space) -> None:
        for name, value in (("x", x), ("_w", w), ("label", label), ("space", space)):
            object.__setattr__(self, name, value)

    @property
    def coords(self) -> Tangent:
        return Tangent([self.x])

    @property
    def batch(self) -> torch.Size:
        return self.x.shape[:-2]

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.x.shape[-2]

    @property
    def d(self) -> int:
        """Dimension of the ambient space."""
        return self.x.shape[-1]

    @property
    def uniform(self) -> bool:
        """Whether no weights were given, so that all are 1/n."""
        return self._w is None

    @property
    def w(self) -> Tensor:
        """Weights (*batch, n), also when they are uniform."""
        if self._w is not None:
            return self._w
        return torch.full((), 1.0 / self.n, dtype=self.dtype, device=self.device).expand(self.x.shape[:-1])

    def _massless(self) -> bool:
        """Whether an atom has no mass. Found out once, because every look makes an accelerator wait."""
        if self._w is None:
            return False
        if "_empty" not in vars(self):
            object.__setattr__(self, "_empty", Seen())
        seen: Seen[bool] = vars(self)["_empty"]
        return seen(self._w, lambda w: bool((w == 0).any()))

    def _same_masses(self, other: Self) -> Self:
        """``other``, with what is known of the weights."""
        if "_empty" in vars(self):
            object.__setattr__(other, "_empty", vars(self)["_empty"])
        return other

    def at(self, coords: Sequence[Tensor]) -> Self:
        (x,) = coords
        other = object.__new__(type(self))
        w, label = (None if a is None else a.expand(x.shape[:-1]) for a in (self._w, self.label))
        other._set(x, w, label, self.space)
        return self._same_masses(other)

    def each(self, f: Change, exact: Change) -> Self:
        other = object.__new__(type(self))
        w, label = (None if a is None else g(a) for a, g in ((self._w, f), (self.label, exact)))
        other._set(f(self.x), w, label, self.space)
        if (
            self._w is not None and other._w is not None and other.dtype == self.dtype
        ):  # else some may round to 0
            object.__setattr__(other, "_empty", Seen.known(other._w, self._massless()))
        return other

    def parts(self) -> dict[str, Tensor]:
        return {"x": self.x, "w": self.w} | ({} if self.label is None else {"label": self.label})

    def sample(self, n: int, *, rng: Random) -> Particles:
        """n tokens drawn with replacement, each with probability w_i; they keep their labels.

        >>> from otflow import Particles
        >>> Particles([[1.0], [2.0]], w=[0.0, 1.0]).sample(3, rng=0).x[:, 0].tolist()
        [2.0, 2.0, 2.0]
        """
        n = checks.count(n, "n")
        i = which(self.w, uniforms(self, (n,), rng))
        label = None if self.label is None else self.label.gather(-1, i)
        x = self.x.gather(-2, i[..., None].expand(*i.shape, self.d))
        other = object.__new__(Particles)
        other._set(x, None, label, self.space)
        return other

    @classmethod
    def from_grid(cls, grid: Measure) -> Self:
        """Atoms at the centres of the cells, with their masses; empty cells are kept, so that batches fit.

        >>> from otflow import Grid, Particles
        >>> Particles.from_grid(Grid([0.25, 0.75], [[0.5, 1.5]])).w
        tensor([0.2500, 0.7500], dtype=torch.float64)
        """
        rule = "it has no cells"
        checks.require(hasattr(grid, "axes"), "grid", grid, rule, "pass a Grid, or draw mu.sample(n, rng=0)")
        return cls(*grid.nodes())

    def __getitem__(self, index: Any) -> Self:
        other = object.__new__(type(self))
        w, label = (None if a is None else pick(a, self.batch, index) for a in (self._w, self.label))
        other._set(pick(self.x, self.batch, index), w, label, self.space)
        return other

    def nodes(self) -> tuple[Tensor, Tensor]:
        return self.x, self.w

    def inner(self, u: Tangent, v: Tangent) -> Tensor:
        return total(self.w[..., None] * u[0] * v[0], self.batch)

    def sharp(self, covector: Tangent) -> Tangent:
        rule = "the gradient at an atom without mass is not defined"
        remedy = "drop the atom; attention can be evaluated there with field.at(t, mu, points)"
        checks.require(self.uniform or not self._massless(), "min(w)", 0.0, rule, remedy)
        return self.tangent(covector.map(lambda c: c / self.w[..., None]))

    def move(self, u: Tangent) -> Self:
        u = as_tangent(u, "u", self.shapes())
        return self.at([self.space.retract(self.x, u[0])])

    def exp(self, u: Tangent) -> Self:
        u = as_tangent(u, "u", self.shapes())
        return self.at([self.space.exp(self.x, u[0])])

    def tangent(self, u: Tangent) -> Tangent:
        return Tangent([self.space.tangent(self.x, u[0])])

    def __repr__(self) -> str:
        extra = "".join(
            f", {key}"
            for key, has in (("weighted", not self.uniform), ("labelled", self.label is not None))
            if has
        )
        batch = f", batch={tuple(self.batch)}" if self.batch else ""
        return f"Particles(n={self.n}, d={self.d}{batch}{extra}, space={self.space})"


def _positions(x: Any, space: Space) -> Tensor:
    x = checks.tensor(x, "x").clone()  # so that no later change of x changes the measure
    rule = "positions have shape (*batch, n, d)"
    checks.require(x.ndim >= 2, "x.shape", x.shape, rule, "for tokens on a line pass x[:, None]")
    rule = "at least one token in at least one dimension is needed"
    checks.require(0 not in x.shape, "x.shape", x.shape, rule, "pass a non-empty cloud")
    return space.check(x)


def _weights(w: Any, x: Tensor) -> Tensor:
    w = checks.alike(checks.tensor(w, "w"), "w", x, "x")
    return checks.probability(_per_token(w, "w", x), "w", "pass w / w.sum()")


def _labels(label: Any, x: Tensor) -> Tensor:
    label = checks.tensor(label, "label").to(torch.float64, copy=True)  # float32 would merge large labels
    return checks.beside(_per_token(label, "label", x), "label", x, "x")


def _per_token(a: Tensor, name: str, x: Tensor) -> Tensor:
    rule = f"one number per token is needed, shape {tuple(x.shape[:-1])}"
    return checks.expanded(a, x.shape[:-1], name, rule, f"pass {name} with {x.shape[-2]} entries per cloud")
