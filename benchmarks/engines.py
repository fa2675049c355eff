"""The three engines of entropic transport against each other, as ratios of CPU time on one thread in one run.

    OMP_NUM_THREADS=1 python benchmarks/engines.py

Every engine solves the same problem through `sinkhorn`, which measures its marginal error: this is what a
user gets who switches engines. The table in docs/choosing.md is part of its output.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import otflow as of

ENGINES = {
    "NewtonSinkhorn": of.transport.NewtonSinkhorn(),
    "POT": of.transport.POT(),
    "GeomLoss": of.transport.GeomLoss(),
}
SIZES = 200, 1000
SHARES = 1.0, 0.1, 0.05, 0.01, 0.001
TOL, BUDGET = 1e-6, 3000
SLOW = 5.0  # seconds of CPU time beyond which one run is enough


def clouds(n: int, d: int) -> tuple[of.Particles, of.Particles]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, n, d, generator=generator, dtype=torch.float64)
    return of.Particles(x), of.Particles(0.1 + 0.8 * y)


def cpu(mu: of.Particles, nu: of.Particles, options: of.Sinkhorn, repeats: int) -> tuple[float, Any]:
    """Least CPU seconds of a few runs, and the solution."""
    best, found = float("inf"), None
    for _ in range(repeats):
        start = time.process_time()
        found = of.sinkhorn(mu, nu, options, on_failure="return")
        best = min(best, time.process_time() - start)
        if best > SLOW:
            break
    return best, found


def row(n: int, d: int, share: float) -> str:
    mu, nu = clouds(n, d)
    eps = share * float(torch.cdist(mu.x, nu.x).square().mean())
    cells, reference = [], 0.0
    for name, engine in ENGINES.items():
        seconds, found = cpu(mu, nu, of.Sinkhorn(eps, tol=TOL, max_iter=BUDGET, engine=engine), 3)
        reference = reference or seconds
        ended = "" if found.status == "ok" else f" ({found.status} at {float(found.error):.0e})"
        cells.append(
            f"{seconds / reference:.2g} x{ended}" if name != "NewtonSinkhorn" else f"{seconds:.2g} s"
        )
    return f"| {n} | {d} | {share:g} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| n | d | eps / mean cost | " + " | ".join(ENGINES) + " |")
    print("|---|---|---|---|---|---|")
    for d in (2, 32):
        for n in SIZES:
            for share in SHARES:
                print(row(n, d, share), flush=True)
