"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

import otflow as of
from otflow.papers.metastability import (
    Caps,
    SaddleToSaddle,
    Staircase,
)
from otflow.papers.tokens import sphere

KINDS = {"USA": False, "SA": True}
COLD = 200.0
EPS, LAM, APART, N = 0.01, 0.8, 2.5, 4  # two caps at an angle of 2.5, two tokens in each
MOVIE = (0.0, 10.0, 100.0, 400.0)
Array = np.ndarray


class StaircaseRun(NamedTuple):
    """A simulation and what was predicted of it."""

    run: SaddleToSaddle
    predicted: Staircase

    @property
    def error(self) -> Array:
        """Relative errors of log t / beta."""
        return np.asarray(np.abs(self.run.jumps.numpy() / self.predicted.log_times.numpy() - 1))


class MergeTimes(NamedTuple):
    """Two caps at one beta: the bounds of the theorem, and log t of the collapse and of the exit."""

    beta: float
    kind: str
    bounds: Caps
    collapse: float
    exit: float


def attention(beta: float, kind: str, d: int) -> of.VelocityField:
    """SA, or USA in the time of the kernel exp(beta (<x, y> - 1))."""
    field = sphere.attention(beta, d, normalised=KINDS[kind])
    return field if KINDS[kind] else math.exp(-beta) * field


def plateaus(steps: StaircaseRun) -> Array:
    """The energy of the simulation amid the predicted plateaus, first and last included."""
    s = steps.predicted.log_times
    amid = torch.searchsorted(steps.run.s, (s[1:] + s[:-1]) / 2)
    inner = steps.run.energy[amid.clamp(max=len(steps.run.s) - 1)]
    return torch.cat([steps.run.energy[:1], inner, steps.run.energy[-1:]]).numpy()
