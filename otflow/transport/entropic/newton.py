"""Newton's method as an engine for entropic transport, with sweeps and annealing before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.transport.entropic.engines import ColumnPotential, Engine
from otflow.transport.entropic.laplacian import FACTORISE
from otflow.transport.entropic.scaling import AbsorbedKernel, ScalingState

SLOW = 0.4  # a sweep that leaves more than this part of the error calls for Newton; chosen
FAR = 0.1  # marginal error above which annealing pays; chosen
CLOSE = 0.5  # marginal error below which Newton is worth a try; chosen
STAGE = 0.005  # marginal error at which annealing goes on to the next temperature; chosen
COOLING = 2.0  # factor between temperatures; chosen
PATIENCE = 30  # Newton steps without progress before giving up; chosen
CG = 50  # products with the kernel in one Newton step, to begin with; chosen


@dataclass(frozen=True)
class NewtonSinkhorn(Engine):
    """Sinkhorn's iteration that stays fast and accurate at every eps.

    The start is a warm one, or the solution between Gaussians of the same moments. From far away the
    temperature is lowered by halves. A kernel that fits into memory (2^26 entries) is held there with the
    potentials absorbed, and a sweep is two matrix-vector products; a larger one is streamed through fused
    attention with O(n) memory. Where sweeps are slow, Newton steps on the semi-dual take over: conjugate
    gradients or, where these fail, a factorisation (up to 3072 columns) or a sparse system (sharp plans).
    Each component of a step is limited, because for small eps parts of the plan hardly see each other; a
    step that does not help is undone.

    >>> from otflow.transport import NewtonSinkhorn
    >>> NewtonSinkhorn()
    NewtonSinkhorn()
    """

    def potential(
        self, kernel: AbsorbedKernel, *, tol: float, max_iter: int, start: Tensor | None
    ) -> ColumnPotential:
        G = _first(kernel, start)
        state = kernel.state(G)
        far = state.error > FAR
        parts = [
            _solve(kernel, state, members, tol, max_iter - 1)
            for members in (~far, far)
            if bool(members.any())
        ]
        stalled = torch.zeros_like(far)
        for part in parts:
            G, stalled = (
                G.index_copy(0, part.members, part.G),
                stalled.index_copy(0, part.members, part.stalled),
            )
        return ColumnPotential(G, 1 + max(part.sweeps for part in parts), stalled)


def _first(kernel: AbsorbedKernel, start: Tensor | None) -> Tensor:
    """The warm start, or the Gaussian guess for members without a finite one."""
    if start is not None and bool(torch.isfinite(start).all()):
        return start
    G = kernel.scores.guess(kernel.loga.exp(), kernel.logb.exp())
    return G if start is None else torch.where(torch.isfinite(start).all(-1, keepdim=True), start, G)


class _Part(NamedTuple):
    """The solution of some members of a batch."""

    members: Tensor
    G: Tensor
    sweeps: int
    stalled: Tensor


def _solve(kernel: AbsorbedKernel, state: ScalingState, members: Tensor, tol: float, max_iter: int) -> _Part:
    """Anneal if the state is far off, then refine; members that are close do not wait for others."""
    index, sweeps = members.nonzero()[:, 0], 0
    far = bool((state.error[index] > FAR).all())
    if far or len(index) < len(members):
        own = kernel[index]
        G = state.G[index]
        if far:
            G, sweeps = anneal(own, max_iter)
        state = own.state(G)
    G, used, stalled = refine(state, tol, max_iter - sweeps)
    return _Part(index, G, sweeps + used, stalled)


def anneal(kernel: AbsorbedKernel, max_iter: int) -> tuple[Tensor, int]:
    """A fair guess of G by solving roughly for the kernels exp(theta S), theta -> 1.

    A stage that needs no work is followed by a longer one: tokens far apart do not feel the temperature.
    """
    a, b = kernel.loga.exp(), kernel.logb.exp()
    theta = 2 / kernel.scores.spread(a, b).clamp(min=2.0)
    G, sweeps, cooling = torch.zeros_like(b), 0, COOLING
    while True:
        G, used, _ = refine(kernel.times(theta).state(G), STAGE, min(500, max_iter - sweeps))
        sweeps += used + 1
        if bool((theta >= 1).all()) or sweeps >= max_iter:
            return G / theta[:, None], sweeps
        cooling = COOLING if used else min(cooling**2, 1e30)
        cooler = (cooling * theta).clamp(max=1.0)
        G, theta = G * (cooler / theta)[:, None], cooler


def refine(state: ScalingState, tol: float, max_iter: int) -> tuple[Tensor, int, Tensor]:
    """G, the sweeps that it took, and which members have stalled; each stops when its error is at most tol.

    When half of a batch is done, the rest goes on by itself.
    """
    run = _Run(state, tol)
    if run.seen.open and max_iter > 0:
        run.start(state.absorbed())
    while run.seen.open and run.sweeps < max_iter and not run.stalled:
        members = len(run.state.G)
        if members > 1 and 2 * run.seen.open <= members:
            return run.split(max_iter)
        if run.seen.slow and run.seen.close:
            run.newton(max_iter)
        run.sweep()
    return run.state.G, run.sweeps, run.open & run.stalled


class _Seen(NamedTuple):
    """What decides how to go on, fetched from the device at once: every look waits for all work there."""

    open: int  # how many members are to be improved
    slow: bool  # whether the last sweep left much of the error of one that was open
    close: bool  # whether Newton is worth a try for all
    strained: bool  # whether the sums are not to be trusted


class _Run:
    """The loop of `refine` with its memory."""

    def __init__(self, state: ScalingState, tol: float) -> None:
        self.tol = tol
        self.reach = torch.full_like(state.G[:, :1], 2.0)  # largest component of a Newton step
        self.sweeps, self.failures, self.sharp = 0, 0, False
        self.best, self.products = state.error, CG
        self.start(state)

    def start(self, state: ScalingState) -> None:
        """Go on from a state that no sweep has led to."""
        self.state = state
        self.seen = self._look(torch.full_like(state.error, torch.inf), torch.zeros_like(self.open))

    @property
    def open(self) -> Tensor:
        """Members still to be improved; one that is not finite is beyond help."""
        return (self.state.error > self.tol) & torch.isfinite(self.state.error)

    @property
    def stalled(self) -> bool:
        return self.failures >= PATIENCE

    def _look(self, before: Tensor, swept: Tensor) -> _Seen:
        """``before`` is the error that members had which were ``swept``."""
        error, open_ = self.state.error, self.open
        slow, far = swept & (error > SLOW * before), open_ & (error >= CLOSE)
        counts = [mask.sum() for mask in (open_, slow, far, self.state.strained)]
        left, slowly, away, strained = torch.stack(counts).tolist()
        return _Seen(left, slowly > 0, not away, strained > 0)

    def sweep(self) -> None:
        before, swept = self.state.error, self.open
        self.state = self.state.moved(torch.where(swept[:, None], self.state.sweep, 0.0))
        self.sweeps += 1
        self.seen = self._look(before, swept)
        if self.seen.strained:
            self.state = self.state.renewed()
            self.seen = self._look(before, swept)

    def _moved(self, d: Tensor) -> ScalingState:
        state = self.state.moved(d)
        return state.renewed() if bool(state.strained) else state

    def newton(self, max_iter: int) -> None:
        """A Newton step for those members that it helps."""
        old, open_ = self.state, self.open
        d = self._direction(max_iter)
        d = torch.where(open_[:, None], torch.maximum(torch.minimum(d, self.reach), -self.reach), 0.0)
        trial = self._moved(d)
        better = ~open_ | trial.improves(self.state)
        self.reach = torch.where(better[:, None], (1.5 * self.reach).clamp(max=8.0), self.reach / 2)
        self.state = trial if bool(better.all()) else self._moved(torch.where(better[:, None], d, 0.0))
        self.sweeps += 1
        self._judge(old)

    def _judge(self, old: ScalingState) -> None:
        """Count the steps that brought no open member forward."""
        progress, open_ = (self.state.error < 0.9 * self.best) | self.state.climbs(old), self.open
        self.failures = 0 if bool((progress & open_).any() | ~open_.any()) else self.failures + 1
        self.best = torch.minimum(self.best, self.state.error)

    def _direction(self, max_iter: int) -> Tensor:
        d = self.state.direct_newton() if self.sharp else None
        if d is not None:
            self.sweeps += min(d.shape[-1], FACTORISE) // 20  # what it costs, in sweeps
            return d
        forcing = min(0.1, max(0.01, float(torch.where(self.open, self.state.error, 0.0).max())))
        budget = max(1, min(self.products, max_iter - self.sweeps))
        d, used, done = self.state.newton(tol=forcing, max_iter=budget)
        self.sweeps += used
        if not done:
            self.sharp, self.products = True, 2 * self.products
        return d

    def split(self, max_iter: int) -> tuple[Tensor, int, Tensor]:
        """The open members by themselves."""
        members = self.open.nonzero()[:, 0]
        own = self.state.kernel[members].state(self.state.G[members])
        G, used, stalled = refine(own, self.tol, max_iter - self.sweeps)
        done = torch.zeros(len(self.state.G), dtype=torch.bool, device=G.device)
        return (
            self.state.G.index_copy(0, members, G),
            self.sweeps + used,
            done.index_copy(0, members, stalled),
        )
