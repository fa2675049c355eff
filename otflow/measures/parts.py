"""The parts of a measure: the coordinates that a flow moves, and the rest, which it carries along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from otflow.measures.base import Measure
from otflow.measures.gaussian import Gaussian
from otflow.measures.grid import Grid
from otflow.measures.particles import Particles
from otflow.measures.quantiles import Quantiles

KINDS: Mapping[str, type[Measure]] = {kind.__name__: kind for kind in (Particles, Gaussian, Grid, Quantiles)}


@singledispatch
def fixed(mu: Measure) -> dict[str, Any]:
    """What a flow does not move, by name; nothing is known of measures of other kinds.

    >>> from otflow import Particles
    >>> from otflow.measures.parts import fixed
    >>> fixed(Particles([[0.0], [1.0]], label=[1.0, 2.0]))["label"]
    tensor([1., 2.], dtype=torch.float64)
    """
    return {}


@fixed.register
def _(mu: Particles) -> dict[str, Any]:
    return {"w": None if mu.uniform else mu.w, "label": mu.label, "space": mu.space}


@fixed.register
def _(mu: Grid) -> dict[str, Any]:
    return {"axes": mu.axes}


@fixed.register
def _(mu: Quantiles) -> dict[str, Any]:
    return {"levels": mu.levels}


def rebuilt(kind: type[Measure], coords: Sequence[Tensor], rest: Mapping[str, Any]) -> Measure:
    """The measure with these parts, bit for bit: nothing is checked, rounded or normalised.

    >>> from otflow import Particles
    >>> from otflow.measures.parts import fixed, rebuilt
    >>> mu = Particles([[0.0], [3.0]], w=[0.9, 0.1])
    >>> bool((rebuilt(Particles, mu.coords, fixed(mu)).w == mu.w).all())
    True
    """
    mu: Any = object.__new__(kind)
    mu._set(*coords, *rest.values())
    return mu


def alike(a: Any, b: Any) -> bool:
    """Whether two fixed parts are the same, bit for bit.

    >>> import torch
    >>> from otflow.measures.parts import alike
    >>> alike(None, None), alike(torch.zeros(2), torch.zeros(2)), alike(torch.zeros(2), torch.ones(2))
    (True, True, False)
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.dtype == b.dtype and torch.equal(a, b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(alike(p, q) for p, q in zip(a, b, strict=True))
    return type(a) is type(b) and a == b
