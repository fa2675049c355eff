"""What the statuses "ok" and "local" of a JKO step promise: brute force on fine grids is the judge."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import otflow as of

FINE = torch.linspace(-6, 6, 4001, dtype=torch.float64)
TAUS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0, 7.0, 10.0)


class Wells(NamedTuple):
    """U(z) = sum_k a (z_k^2 - 1)^2 / 4 + b cos(w z_k + p), another one for each member of a batch."""

    a: Tensor
    b: Tensor
    w: Tensor
    p: Tensor

    @staticmethod
    def drawn(count: int, seed: int) -> Wells:
        rng = np.random.default_rng(seed)
        ranges = ((0.2, 1.5), (-1.0, 1.0), (1.0, 6.0), (0.0, 2 * math.pi))
        return Wells(*(torch.from_numpy(rng.uniform(*r, (count, 1, 1))) for r in ranges))

    def each(self, z: Tensor) -> Tensor:
        return self.a * (z.square() - 1).square() / 4 + self.b * torch.cos(self.w * z + self.p)

    def __call__(self, z: Tensor) -> Tensor:
        return self.each(z).sum(-1)

    def curvature(self, lower: Tensor, upper: Tensor) -> Tensor:
        """a (3 z^2 - 1) - b w^2 cos(...) from below, on boxes."""
        nearest = torch.where((lower < 0) & (upper > 0), 0.0, torch.minimum(lower.abs(), upper.abs()))
        return (self.a * (3 * nearest.square() - 1) - self.b.abs() * self.w.square()).amin(-1)

    def least(self, x: Tensor, tau: float) -> Tensor:
        """The least value of U(z) + |z - x|^2 / (2 tau), which splits into coordinates, by brute force."""
        z, members = FINE[:, None], range(len(x))
        rows = []
        for k in members:
            own = Wells(*(c[k] for c in self))
            rows.append((own.each(z) + (z - x[k]).square() / (2 * tau)).amin(0).sum())
        return torch.stack(rows)


def swept(d: int, count: int, tau: float, seed: int, *, known: bool, **options: Any) -> tuple[Any, Tensor]:
    """Statuses of one-particle steps, and where they are not the argmin."""
    U = Wells.drawn(count, seed)
    x = torch.from_numpy(np.random.default_rng(seed + 1).uniform(-2.5, 2.5, (count, 1, d)))
    given: dict[str, Any] = {"curvature": U.curvature, "infimum": -d} if known else {}
    move = of.jko_step(of.Particles(x), of.Potential(U, **given), tau, on_failure="return", **options)
    value = U(move.mu.x)[:, 0] + move.cost / (2 * tau)
    return np.atleast_1d(move.status), (value > U.least(x[:, 0], tau) + 1e-4).numpy()


@pytest.mark.parametrize("d", [1, 2])
def test_no_step_that_is_ok_misses_the_argmin(d: int) -> None:
    for k, tau in enumerate((0.1, 0.7, 4.0)):
        for known in (False, True):
            status, wrong = swept(d, 25, tau, seed=10 * k + d, known=known)
            assert not bool((wrong & (status == "ok")).any())
            assert set(status.tolist()) <= {"ok", "local", "uncertified", "max_iter"}
