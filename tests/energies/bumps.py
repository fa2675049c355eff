"""Functions that fixed rules get wrong, and their means and slopes by scipy, between break points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import quad
from torch import Tensor

Function = Callable[[Tensor], Tensor]


def bump(width: float, centre: float | Tensor = 0.0) -> Function:
    return lambda x: torch.exp(-((x - centre) / width).square().sum(-1) / 2)


@dataclass(frozen=True)
class Case:
    """A function on the line, with the points between which it is smooth."""

    U: Function
    breaks: tuple[float, ...]

    def truth(self, m: float, s: float) -> tuple[float, float, float]:
        """E[U], and its derivatives in m and s by Stein's identity."""
        ends = sorted({m - 14 * s, m + 14 * s, *(b for b in self.breaks if abs(b - m) < 14 * s)})

        def integral(weight: Callable[[float], float]) -> float:
            def f(x: float) -> float:
                z = (x - m) / s
                density = math.exp(-z * z / 2) / (s * math.sqrt(2 * math.pi))
                return float(self.U(torch.tensor([x], dtype=torch.float64))) * density * weight(z)

            pieces = itertools.pairwise(ends)
            return sum(quad(f, a, b, limit=400, epsabs=1e-14, epsrel=1e-12)[0] for a, b in pieces)

        return integral(lambda z: 1.0), integral(lambda z: z) / s, integral(lambda z: z * z - 1) / s


CASES = {
    "bump": Case(bump(0.05), tuple(np.linspace(-0.5, 0.5, 11))),
    "narrow bump": Case(bump(0.005), tuple(np.linspace(-0.05, 0.05, 11))),
    "bump on a floor": Case(lambda x: 1 + bump(0.005, 0.3)(x), tuple(np.linspace(0.25, 0.35, 11))),
    "bump in a bowl": Case(lambda x: x[..., 0] ** 2 + bump(0.02, 1.0)(x), tuple(np.linspace(0.8, 1.2, 11))),
    "indicator": Case(lambda x: (x[..., 0] > 0).to(x.dtype), (0.0,)),
    "step": Case(lambda x: 3.0 + torch.sign(x[..., 0] - 0.37), (0.37,)),
    "relu": Case(lambda x: torch.relu(x[..., 0] - 2), (2.0,)),
    "modulus": Case(lambda x: x[..., 0].abs(), (0.0,)),
    "logarithm": Case(lambda x: x[..., 0].abs().log(), (0.0,)),
}
