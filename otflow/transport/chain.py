"""A chain of distances: pairs of measures along time, each solved from where the one before ended."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import ConvergenceError
from otflow.base.progress import bar
from otflow.measures import Gaussian, Grid, Measure, Particles, Quantiles
from otflow.transport.bures.geometry import bures_wasserstein
from otflow.transport.exact.conditional import conditional_wasserstein
from otflow.transport.exact.densities import TOL, DensityDistance, in_motion
from otflow.transport.exact.wasserstein import w2

Distance = Callable[..., Any]  # of(mu, nu) -> Tensor, or of(mu, nu, start=...) -> something with a distance


def chain(
    ts: Sequence[float], pairs: Iterable[tuple[Measure, Measure]], of: Distance, *, progress: bool = False
) -> Tensor:
    """of(mu, nu) for each pair, shape (T, *batch); the times ts are for messages.

    A function whose result has a ``distance``, as plans have, is asked for that; if it takes ``start=`` as
    well, it gets the result of the pair before. A solve that does not converge does not stop the others: the
    error comes at the end, with all values as they were computed.
    """
    warm, last = _takes_start(checks.function(of, "of")), None
    values: list[Tensor] = []
    failures: list[str] = []
    with bar(len(ts), "distances", "pairs", progress=progress) as shown:
        for t, (mu, nu) in zip(ts, pairs, strict=True):
            try:
                last = of(mu, nu) if last is None else of(mu, nu, start=last)
                value = getattr(last, "distance", None)
            except ConvergenceError as error:
                last, value = None, getattr(error.result, "distance", error.result)
                failures.append(f"t = {t:g}: {error}")
            values.append(_number(last if value is None else value, failed=last is None))
            last = last if warm and value is not None else None
            shown.update(1)
    out = torch.stack(torch.broadcast_tensors(*values))
    if failures:
        raise ConvergenceError(
            f"{len(failures)} of {len(ts)} distances did not converge, first at {failures[0]} "
            "All values are in the .result of this exception.",
            out,
        )
    return out


@singledispatch
def geodesic(mu: Measure, nu: Measure, *, start: Any = None) -> Any:
    """W2 as `distance` understands it: a distance, or a plan that has one and may serve as ``start``."""
    return w2(mu, nu, start=start)


@geodesic.register(Gaussian)
def _(mu: Gaussian, nu: Measure, *, start: Any = None) -> Tensor:
    return bures_wasserstein(mu, checks.instance(nu, Gaussian, "nu"))


@geodesic.register(Quantiles)
def _(mu: Quantiles, nu: Measure, *, start: Any = None) -> Any:
    return mu.distance(checks.instance(nu, Quantiles, "nu"))


@geodesic.register(Particles)
def _(mu: Particles, nu: Measure, *, start: Any = None) -> Any:
    labelled = [one.label is not None for one in (mu, nu) if isinstance(one, Particles)]
    rule = "only one of the measures has labels"
    checks.require(len(set(labelled)) <= 1, "nu", nu, rule, "label both, or ignore labels with wasserstein")
    together = len(labelled) == 2 and all(labelled)
    return conditional_wasserstein(mu, nu) if together else w2(mu, nu, start=start)


@singledispatch
def small_move(mu: Measure, nu: Measure, *, start: Any = None) -> Any:
    """`geodesic` between measures of one motion at times close together, for speeds."""
    return geodesic(mu, nu, start=start)


@small_move.register(Grid)
def _(mu: Grid, nu: Measure, *, start: Any = None) -> Any:
    if not isinstance(nu, Grid) or len(nu.axes) != len(mu.axes):
        return geodesic(mu, nu, start=start)
    moved = in_motion(mu, nu)
    if len(mu.axes) == 1:
        return _on_a_line(mu, geodesic(mu, nu), moved).trusted(mu).distance
    known = moved is not None and bool((moved.error <= TOL).all())
    return moved if known else geodesic(mu, nu, start=start)


def _on_a_line(mu: Grid, exact: Tensor, moved: DensityDistance | None) -> DensityDistance:
    """The distance of the densities where cells play no part in it, else that of the law in motion."""
    size = exact.detach()
    if moved is None:
        return DensityDistance(exact, size, size)
    alike = (size >= mu.spacing[0]) | ((moved.distance - size).abs() <= TOL * size)
    distance = torch.where(alike, exact, moved.distance)
    return DensityDistance(
        distance, torch.where(alike, size, moved.low), torch.where(alike, size, moved.high)
    )


def _takes_start(of: Distance) -> bool:
    try:
        return "start" in inspect.signature(of).parameters
    except ValueError:  # some functions written in C keep their signature to themselves
        return False


def _number(value: Any, *, failed: bool) -> Tensor:
    """A distance as plain float64 numbers; NaN where a failure left none, for whoever catches the error."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "biuf":
        return torch.from_numpy(array)
    if not failed:
        checks.fail(
            "of(mu, nu)", f"{value!r:.60}", "a distance is a number or a tensor", "let of(mu, nu) return one"
        )
    return torch.tensor(torch.nan, dtype=torch.float64)
