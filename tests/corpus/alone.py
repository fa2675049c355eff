"""Run in a process of its own: which lengths are refused, and how much memory transport takes at its peak.

Transport is exact, or entropic, streamed, with its gradient, for every kind of cost.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import otflow as of
from otflow.transport.entropic import scaling

N, D = 4000, 16
COSTS: dict[str, Any] = {
    "squared distance": of.transport.PowerCost(2),
    "distance": of.transport.PowerCost(1),
    "bilinear": of.transport.BilinearCost(-np.eye(D)),
    "function": lambda x, y: (x - y).abs().sum(-1),
}


def refusals() -> list[str]:
    """What comes of measures in different dimensions."""
    mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[0.0, 1.0]])
    seen = []
    for call in (of.wasserstein, of.sliced_wasserstein, lambda a, b: of.sinkhorn(a, b, 1.0)):
        try:
            seen.append(repr(call(mu, nu)))
        except ValueError as error:
            seen.append(type(error).__name__)
    return seen


def peak(call: Callable[[], Any]) -> int:
    """The bytes by which the largest memory during a call exceeds what was in use before."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    call()
    return _memory("VmHWM") - before


def _memory(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def exact(n: int) -> dict[str, int]:
    x, y = np.random.default_rng(0).standard_normal((2, n, 2))
    of.solve(of.Particles(x[:50]), of.Particles(y[:50]))  # imports
    return {"n": n, "peak": peak(lambda: of.solve(of.Particles(x), of.Particles(y)))}


def entropic(cost: Any) -> dict[str, int]:
    """Two sweeps, the cost, the projection, and the gradient in all points."""

    def run(k: int) -> None:
        mu, nu = of.Particles(torch.from_numpy(x[:k]).requires_grad_()), of.Particles(y[:k])
        plan = of.sinkhorn(mu, nu, of.Sinkhorn(5.0 * D, max_iter=2), cost=cost, on_failure="return")
        _ = plan.cost, plan.barycentric()
        plan.regularised_cost.backward()

    x, y = np.random.default_rng(0).standard_normal((2, N, D))
    run(50)
    return {"n": N, "d": D, "peak": peak(lambda: run(N))}


def main() -> None:
    report: dict[str, Any] = {"refused": refusals(), "solve": exact(1200)}
    scaling.ABSORB = 0  # kernels of this size would be held in memory otherwise
    json.dump(report | {name: entropic(cost) for name, cost in COSTS.items()}, sys.stdout)


if __name__ == "__main__":
    main()
