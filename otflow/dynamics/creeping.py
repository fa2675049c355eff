"""Creeping: whether a law that seems at rest still moves by more than rounding, and ever slower.

A mode with d lambda/dt = -a lambda and a tiny a > 0 has the slope d log lambda / d log t = -a t: near zero
for very long, but growing. One that approaches a positive limit like t^-p has a slope that falls like t^-p.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base.linalg import ratio
from otflow.dynamics.stretched_time import Modes, Stretched, shaken
from otflow.measures import Gaussian

# Chosen: motion up to this many times the largest effect of so many roundings of the law counts as none.
NOISE, PATTERNS = 8.0, 4
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
        return self.speeds > NOISE * rounding

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


class Windows:
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
