"""Blurred steps on grids: a start for the exact step, on a coarse mesh, or its replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow.base.errors import InputError
from otflow.base.status import code
from otflow.base.tangent import align
from otflow.fields import SteepestDescent
from otflow.measures import Grid
from otflow.steppers.jko.base import Move, MovementProblem
from otflow.steppers.jko.grid.entropic import EntropicJKO
from otflow.steppers.jko.grid.spline import Array
from otflow.transport.entropic.options import Sinkhorn

COARSE = 64  # cells along an axis that are enough for a start; chosen


class BlurredState(NamedTuple):
    """A warm start: the potential at the nodes, (members, n_1, .., n_D)."""

    f: Array


def blurred(mu: Grid, problem: MovementProblem) -> tuple[Grid, Grid, int] | None:
    """A coarser mu, the end of an entropic step from it, debiased, and how often the cells were doubled.

    None where the energy has no entropic step. The blur is as small as that mesh can carry.
    """
    coarse, times = mu, 0
    while (other := _halved(coarse)) is not None:
        coarse, times = other, times + 1
    move = replacement(coarse, problem, tol=1e-5, max_iter=2000)
    end = None if move is None else move.mu
    return (coarse, end, times) if isinstance(end, Grid) and bool(end.finite().all()) else None


def replacement(
    mu: Grid, problem: MovementProblem, *, tol: float = 1e-7, max_iter: int = 20_000
) -> Move | None:
    """The debiased entropic step with the least blur that the mesh can carry, 0.7 cells wide.

    None where the energy has no entropic step, and where cells are so long that it would blur by several.
    """
    if max(mu.spacing) > 1.5 * min(mu.spacing):
        return None
    stepper = EntropicJKO(Sinkhorn(max(mu.spacing) ** 2, tol=tol, max_iter=max_iter), debiased=True)
    try:
        with torch.no_grad():
            return stepper.move(SteepestDescent(problem.energy, problem.metric), problem.tau, mu, None)
    except InputError:
        return None


def patched(move: Move, mu: Grid, problem: MovementProblem) -> Move:
    """A move whose failed members are replaced by blurred steps, unless the user's max_iter stopped them."""
    other = replacement(mu, problem)
    if other is None:
        return move
    asked = (move.failed == code("max_iter")) & (problem.max_iter is not None)
    which = (move.failed > 0) & ~asked & (other.failed == 0)
    failed = torch.where(which, 0, move.failed)

    def mixed(b: Tensor, a: Tensor) -> Tensor:
        return torch.where(align(which, a), b.to(a), a)

    return replace(
        move,
        mu=mu.at([mixed(other.mu.coords[0], move.mu.coords[0])]),
        cost=mixed(other.cost, move.cost),
        residual=mixed(other.residual, move.residual),
        gap=torch.where(which, torch.nan, torch.zeros_like(move.cost) if move.gap is None else move.gap),
        blur=which.to(move.cost) * max(mu.spacing) ** 2 / 2,
        failed=failed,
        message=move.message if bool((failed > 0).any()) else "",
        state=None,
    )


def joined(moves: Sequence[Move], mu: Grid) -> Move:
    """The moves of all members as one, in the batch of mu."""

    def stack(name: str) -> Tensor:
        return torch.cat([getattr(move, name).reshape(1) for move in moves]).reshape(mu.batch)

    states = [move.state for move in moves]
    known = all(state is not None for state in states)
    return Move(
        mu=mu.at([torch.cat([move.mu.coords[0] for move in moves]).reshape(mu.density.shape)]),
        cost=stack("cost"),
        residual=stack("residual"),
        failed=stack("failed"),
        iterations=max(move.iterations for move in moves),
        message=next((move.message for move in moves if move.message), ""),
        gap=stack("gap"),
        blur=stack("blur"),
        state=BlurredState(np.concatenate([state.f for state in states])) if known else None,
    )


def _halved(mu: Grid) -> Grid | None:
    """Cells twice as wide along each axis, as long as the mesh is finer than needed."""
    sizes = mu.density.shape[len(mu.batch) :]
    if max(sizes) <= COARSE or any(n % 2 for n in sizes):
        return None
    density: Tensor = mu.density.detach().to(torch.float64)
    for axis in range(len(mu.batch), density.ndim):
        density = density.unflatten(axis, (-1, 2)).mean(axis + 1)
    return Grid(density, [a.to(torch.float64).unflatten(0, (-1, 2)).mean(1) for a in mu.axes])
