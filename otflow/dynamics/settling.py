"""Settling of a law: when it is at rest, creeps, has diverged, or is too stiff for explicit steps.

A mode with d lambda/dt = -a lambda and a tiny a > 0 has the slope d log lambda / d log t = -a t: near zero
for very long, but growing. One that approaches a positive limit like t^-p has a slope that falls like t^-p.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor

from otflow.base.linalg import ratio
from otflow.dynamics.stretched_time import Modes, Motion, Stretched, shaken
from otflow.measures import Gaussian, Measure

# Powers of t; chosen: an eigenvalue that changes slower than the first stays, one that falls faster than
# the second vanishes, and in between there is no verdict.
STAYS, FALLS = 0.05, 0.5
# Fraction of the first covariance; chosen: a law that has shrunk to it, and shrinks, has the limit zero.
NOTHING = 1e-12
# Fraction of the largest eigenvalue; chosen: one above it cannot fall while the law is at rest, because
# that would change the covariance by more than the default tolerance.
LARGE = 1e-4
HUGE = 1e12  # growth of the root beyond which a law diverges; chosen
HOLD = math.log(10)  # how long, in log t, a law must be at rest to have settled; chosen: a decade of time
# Chosen: a relative speed below the first counts as rest if it is also within the second number times the
# effect of a rounding of the root.
FLOOR, NOISE = 1e-5, 100.0
PATIENCE = 50  # explicit steps after which progress is judged; chosen
PACE = 0.01  # a law whose explicit steps are on average shorter than this in log t is stuck; chosen
# Chosen: the same for a law at rest that is followed only to see whether it stays there.
CHECK_PACE = 0.04
LATEST = math.log(1e290)  # log t after which times and velocities would soon be no numbers
STEEP = 10.0  # a law that grows faster than this in log t needs short steps and is not stuck; chosen
# Chosen: motion up to this many times the largest effect of so many roundings of the law counts as none.
ROUNDING, PATTERNS = 8.0, 4
PATTERN = 1009  # where one pattern of roundings ends and the next begins; larger than any root
# Chosen: motion does not slow down if all of it in a window of log t exceeds this fraction of its peak in the
# one before. At constant velocity that is one; errors of steps at the edge of stability go up and down.
SLOWER = 0.95


class _Rates(NamedTuple):
    """Velocities per unit of log t: of the covariance (d, d), of the mean, and of eigenvalues, relative."""

    cov: Tensor
    mean: Tensor
    modes: Tensor

    @classmethod
    def of(cls, path: Stretched, s: Tensor, mu: Gaussian, basis: Modes) -> _Rates:
        v = path.evaluate(s, mu)[0]
        half = v[1] @ mu.root.mT
        turned = (basis.u.mT @ v[1]) * (basis.u.mT @ mu.root)  # in a fixed basis, shaken or not
        return cls(half + half.mT, v[0], 2 * ratio(turned.sum(-1), basis.sigma.square()))

    def minus(self, other: _Rates) -> _Rates:
        return _Rates(*(a - b for a, b in zip(self, other, strict=True)))


class Creep(NamedTuple):
    """How fast a law moves on a path: of the eigenvalues only those that are claimed to stay count."""

    path: Stretched
    s: Tensor
    mu: Gaussian
    modes: Modes
    claimed: Tensor
    reach: Tensor
    rates: _Rates

    @classmethod
    def of(
        cls, path: Stretched, s: Tensor, mu: Gaussian, modes: Modes, claimed: Tensor, reach: Tensor
    ) -> Creep:
        return cls(path, s, mu, modes, claimed, reach, _Rates.of(path, s, mu, modes))

    def limit(self) -> Creep:
        """The same of the law that is claimed to be the limit, which has to be at rest."""
        mu = self.mu.at([self.mu.mean, _rounded(self.modes.root(self.claimed))])
        return Creep.of(self.path, self.s, mu, self.modes, self.claimed, self.reach)

    @property
    def speeds(self) -> Tensor:
        """Relative and per unit of log t, of covariance, mean and eigenvalues, (*batch, 2 + r)."""
        return self._sizes(self.rates)

    def seen(self) -> Tensor:
        """Which speeds are more than rounding, (*batch, 2 + r)."""
        rounding = torch.zeros_like(self.speeds)
        for k in range(PATTERNS):
            other = _Rates.of(self.path, self.s, shaken(self.mu, k * PATTERN), self.modes)
            rounding = torch.maximum(rounding, self._sizes(other.minus(self.rates)))
        return self.speeds > ROUNDING * rounding

    def _sizes(self, rates: _Rates) -> Tensor:
        cov = ratio(torch.linalg.matrix_norm(rates.cov), torch.linalg.matrix_norm(self.mu.cov)).double()
        mean = ratio(torch.linalg.vector_norm(rates.mean, dim=-1).double(), self.reach)
        modes = torch.where(self.claimed, rates.modes.abs(), 0.0).double()
        return torch.cat([cov[..., None], mean[..., None], modes], -1)


def _rounded(root: Tensor) -> Tensor:
    """The root without entries that are rounding beside its largest one.

    A mode that has vanished leaves such entries behind. Where coordinates and modes agree, what remains
    is the limit to all digits, and even the slowest motion of it can be seen.
    """
    size = root.abs()
    return torch.where(size > 4 * torch.finfo(root.dtype).eps * size.amax((-1, -2), keepdim=True), root, 0.0)


class Decades:
    """Speeds over windows of log t that follow each other, to see whether they rise.

    At its beginning a window says little, so what rose in the one before is said to rise until it ends.
    """

    def __init__(self, length: float, like: Tensor) -> None:
        self.length, self.start = length, torch.full_like(like, math.inf)
        self.before = self.low = self.peak = torch.full_like(like, math.inf)[..., None]
        self.rose = torch.zeros_like(self.peak, dtype=torch.bool)

    def add(self, s: Tensor, speeds: Tensor, rest: Tensor) -> None:
        """Speeds at the time s; members that do not rest begin anew when they do."""
        begins = (rest & self.start.isinf())[..., None]
        turns = begins | (s - self.start >= self.length)[..., None]
        self.rose = torch.where(turns, self._rises() & ~begins, self.rose) & rest[..., None]
        before = torch.where(begins, math.inf, torch.where(turns, self.peak, self.before))
        low = torch.where(turns, speeds, torch.minimum(self.low, speeds))
        peak = torch.where(turns, speeds, torch.maximum(self.peak, speeds))
        self.before, self.low, self.peak = (
            torch.where(rest[..., None], a, math.inf) for a in (before, low, peak)
        )
        self.start = torch.where(rest, torch.where(turns[..., 0], s, self.start), math.inf)

    def _rises(self) -> Tensor:
        return self.low > SLOWER * self.before

    @property
    def rising(self) -> Tensor:
        return self._rises() | self.rose


class Watch:
    """Decides, step after step, which members are done.

    A law has ``held`` if by now it has been at rest for long enough, and ever slower. It then has settled.
    Where the rank of the limit has been claimed, it is watched until that limit moves by rounding only, as
    long as steps are long and time is left; smaller eigenvalues may be errors of the steps by then.
    """

    def __init__(
        self, path: Stretched, mu0: Gaussian, tol: float, *, explicit: bool, rank: Tensor | None = None
    ) -> None:
        # Implicit steps leave the slow paths of stiff laws by more than explicit ones, and return fast.
        self.path, self.tol, self.explicit, self.calls = path, tol if explicit else 10 * tol, explicit, 0
        self.rank = rank
        self.size0 = torch.linalg.matrix_norm(mu0.cov).double()
        self.reach0 = torch.maximum(self.size0.sqrt(), torch.linalg.vector_norm(mu0.mean, dim=-1).double())
        self.s = self.mark = torch.full_like(self.size0, -math.inf)
        self.since = torch.full_like(self.size0, math.inf)  # s from which on the law was at rest
        self.speed = self.level = self.since
        self.rate = torch.full_like(self.size0, math.nan)
        self.settled = self.grown = self.stuck = torch.zeros_like(self.size0, dtype=torch.bool)
        self.held = self.moves = self.creeps = self.settled
        self.decades = Decades(HOLD, self.size0)

    def __call__(self, s: Tensor, mu: Measure) -> Tensor:
        m = self._motion(s, cast(Gaussian, mu))
        new = s > self.s
        held = self._rests(s, cast(Gaussian, mu), m, self._rounding(s, cast(Gaussian, mu), m))
        self.held = torch.where(new, held, self.held)
        self.settled = self.held if self.rank is None else self.held & ~self.moves
        self.grown = torch.maximum(m.size.sqrt(), m.offset) > HUGE * self.reach0
        self.stuck = self._slow(s) & (m.speed < STEEP * m.size) if self.explicit else self.stuck
        fall = (self.level.log() - m.speed.log()) / (s - self.since)  # over the time at rest
        self.rate = torch.where(new & torch.isfinite(fall), fall, self.rate)
        self.s, self.speed = torch.where(new, s, self.s), torch.where(new, m.speed, self.speed)
        late = self.path.scale.log() + self.path.start + s > LATEST
        return self.settled | self.grown | self.stuck | late

    def _motion(self, s: Tensor, mu: Gaussian) -> Motion:
        return Motion.of(self.path.evaluate(s, mu)[0], mu)

    def _rounding(self, s: Tensor, mu: Gaussian, m: Motion) -> Tensor:
        """How much of the speed comes from the last digit of the root; 0 unless the law is almost at rest."""
        if not bool((m.speed <= FLOOR * m.size).any()):
            return torch.zeros_like(m.speed)
        return NOISE * (self._motion(s, shaken(mu)).speed - m.speed).abs()

    def _rests(self, s: Tensor, mu: Gaussian, m: Motion, rounding: Tensor) -> Tensor:
        """Whether the law rests for long enough and ever slower, or has vanished, or moves by rounding."""
        rest = m.speed <= self.tol * m.size
        self.level = torch.where(rest & self.since.isinf(), m.speed, self.level)
        self.since = torch.where(rest, torch.minimum(self.since, s), math.inf)
        slower = (m.speed < self.level) | (m.speed <= 0.01 * self.tol * m.size)
        held = rest & (s - self.since >= HOLD) & slower
        if self.rank is not None:  # errors of short steps may go up and down beyond the tolerance
            rest = torch.ones_like(rest)
            held = (m.speed <= FLOOR * m.size) & (s >= HOLD)
        gone = (m.size <= NOTHING * self.size0) & (m.speed < self.speed)
        noise = (m.speed <= rounding) & (m.speed <= FLOOR * m.size)
        centred = m.drift <= self.tol * torch.maximum(m.offset, self.reach0)
        still = m.speed == 0
        if not bool((rest | gone | noise | still).any()):
            return torch.zeros_like(rest)
        modes = Modes.of(self.path, s, mu)
        stays, rests = self.staying(s, mu, modes)
        slopes = modes.slopes.abs()
        clear = ((slopes < STAYS) | (slopes > FALLS) | ~self._claimed(modes)).all(-1)
        gone = gone & ~rests.any(-1)
        creep = Creep.of(self.path, s, mu, modes, stays, torch.maximum(m.offset, self.reach0))
        steady = self._steady(s, creep, rest | noise | still, gone)
        return (gone | (((held & clear) | noise | still) & steady)) & centred

    def _claimed(self, modes: Modes) -> Tensor:
        """Which eigenvalues may stay: the largest ones, if it is known how many."""
        index = torch.arange(modes.sigma.shape[-1], device=modes.sigma.device)
        return torch.isfinite(modes.sigma) if self.rank is None else index < self.rank[..., None]

    def staying(self, s: Tensor, mu: Gaussian, modes: Modes) -> tuple[Tensor, Tensor]:
        """Which eigenvalues do not vanish, if the law is at rest, and which are at rest themselves.

        One below the tolerance counts if rounding leaves its slope alone.
        """
        values = modes.sigma.square()
        large = values > self.tol * values[..., :1]
        if self.explicit:
            other = Modes.of(self.path, s, shaken(mu))
            large = large | ((other.slopes - modes.slopes).abs() < STAYS)
        rests = (values > 0) & (modes.slopes.abs() < (STAYS + FALLS) / 2) & large & self._claimed(modes)
        return rests | ((values > LARGE * values[..., :1]) & self._claimed(modes)), rests

    def _steady(self, s: Tensor, creep: Creep, rest: Tensor, gone: Tensor) -> Tensor:
        """Whether all that is claimed to stay does so ever slower, or moves by rounding only."""
        limit = creep.limit()
        self.decades.add(s, torch.cat([creep.speeds, limit.speeds], -1), rest)
        rising = self.decades.rising
        if self.rank is None and not bool(rising[rest].any()):
            self.moves = rest
            return torch.ones_like(rest)
        seen = limit.seen()
        self.moves = seen.any(-1) & ~gone
        self.creeps = (seen & self.decades.rose[..., -seen.shape[-1] :]).any(-1)
        return ~(torch.cat([creep.seen(), seen], -1) & rising).any(-1)

    def _slow(self, s: Tensor) -> Tensor:
        self.calls += 1
        if self.calls % PATIENCE:
            return self.stuck
        pace = torch.where(self.held, CHECK_PACE, PACE)
        slow: Tensor = s - self.mark < PATIENCE * pace
        self.mark = s
        return slow
