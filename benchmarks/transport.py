"""Transport against POT, GeomLoss and OTT-JAX (if installed), as ratios measured in one run.

    python benchmarks/transport.py [--memory]

Every contestant is driven to the same marginal error, measured by the same code, and its iterations are
counted beforehand: nobody pays for looking for the stopping time. `--memory` reports the peak memory of a
streamed problem of 50,000 points instead (minutes).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import torch
from timing import peak_memory
from torch import Tensor

import otflow as of

TOL = 1e-6
GOALS = {"POT": 5.0, "GeomLoss": 5.0, "OTT": 2.0}


def best_time(f: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def marginal_error(x: Tensor, y: Tensor, g: Tensor, eps: float) -> float:
    """L1 error of the columns of the plan whose rows are exact, for the column potential g."""
    S = (g - torch.cdist(x, y) ** 2) / eps
    P = torch.softmax(S, -1) / len(x)
    return float((P.sum(0) - 1 / len(y)).abs().sum())


def least(run: Callable[[int], Tensor], error: Callable[[Tensor], float], limit: int) -> int | None:
    """The smallest of the numbers 10, 14, 20, 28, 40, ... of iterations that is enough."""
    count = 10.0
    while count <= limit:
        if error(run(int(count))) <= TOL:
            return int(count)
        count *= 2**0.5
    return None


def with_pot(x: Tensor, y: Tensor, eps: float) -> Callable[[int], Tensor]:
    a = torch.full((len(x),), 1 / len(x), dtype=x.dtype)

    def run(count: int) -> Tensor:
        M = ot.dist(x, y)
        _, log = ot.bregman.sinkhorn_log(a, a, M, eps, numItermax=count, stopThr=0.0, log=True, warn=False)
        g: Tensor = eps * (log["log_v"] - a.log())
        return g

    return run


def with_geomloss(x: Tensor, y: Tensor, eps: float) -> Callable[[int], Tensor]:
    from geomloss import ot as geomloss

    def run(count: int) -> Tensor:
        g: Tensor = geomloss.solve(torch.cdist(x, y) ** 2, reg=eps, max_iter=count).potential_b
        return g

    return run


def with_ott(x: Tensor, y: Tensor, eps: float) -> Callable[[int], Tensor] | None:
    try:
        import jax
        import jax.numpy as jnp
        from ott.geometry import pointcloud
        from ott.problems.linear import linear_problem
        from ott.solvers.linear import sinkhorn
    except ImportError:
        return None
    jax.config.update("jax_enable_x64", True)
    cloud, other = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
    compiled: dict[int, Any] = {}

    def make(count: int) -> Any:
        solver = sinkhorn.Sinkhorn(threshold=0.0, max_iterations=count, min_iterations=count)

        def potential(u: Any, v: Any) -> Any:
            geometry = pointcloud.PointCloud(u, v, epsilon=eps)
            return solver(linear_problem.LinearProblem(geometry)).g

        return jax.jit(potential)

    def run(count: int) -> Tensor:
        if count not in compiled:
            compiled[count] = make(count)
        return torch.from_numpy(np.array(compiled[count](cloud, other).block_until_ready()))

    return run


def entropic(n: int, d: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(2, n, d, generator=generator, dtype=torch.float64)
    y = 0.1 + 0.8 * y
    eps = 0.05 * float((torch.cdist(x, y) ** 2).mean())
    mu, nu = of.Particles(x), of.Particles(y)

    def own() -> Tensor:
        return of.sinkhorn(mu, nu, of.Sinkhorn(eps, tol=TOL)).g

    def error(g: Tensor) -> float:
        return marginal_error(x, y, g, eps)

    print(f"Sinkhorn to marginal error {TOL:g}, n = {n}, d = {d}, float64, otflow reaches {error(own()):.0e}")
    peers = {"POT": with_pot(x, y, eps), "GeomLoss": with_geomloss(x, y, eps), "OTT": with_ott(x, y, eps)}
    reference = best_time(own, 3)
    for name, run in peers.items():
        if run is None:
            print(f"  {name:9s} not installed")
            continue
        count = least(run, error, 2000 if name != "GeomLoss" else 200)
        steps = count or 200
        ratio = best_time(lambda run=run, steps=steps: run(steps), 2) / reference
        reached = (
            "" if count else f", which leaves an error of {error(run(steps)):.0e}: a lower bound of the ratio"
        )
        print(f"  {name:9s} {ratio:6.1f} x  ({steps} iterations{reached}; goal {GOALS[name]:g} x)")
    print(f"  otflow    {1e3 * reference:6.0f} ms")


def gaussians(d: int, pairs: int = 10_000) -> None:
    generator = torch.Generator().manual_seed(0)
    R = torch.randn(2, pairs, d, d, generator=generator, dtype=torch.float64)
    S1, S2 = R @ R.mT + 0.1 * torch.eye(d, dtype=torch.float64)
    A, B = S1.numpy(), S2.numpy()

    def loop() -> list[Any]:
        return [ot.gaussian.bures_distance(a, b) for a, b in zip(A, B, strict=True)]

    peer = best_time(loop, 1)
    own = best_time(lambda: of.transport.bures(S1, S2), 5)
    goal = {2: 50.0, 8: 6.0}.get(d)
    print(
        f"Bures distance of {pairs} pairs, d = {d}: POT loop {peer / own:6.1f} x  (otflow {1e3 * own:.0f} ms"
        + (f"; goal {goal:g} x)" if goal else ")")
    )


def along_a_trajectory(n: int = 500, steps: int = 20) -> None:
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(3, 2, 2))
    start = rng.normal(size=(2, n, 2))
    field = of.SoftmaxAttention(0.3 * Q, 0.3 * K, 0.5 * V)
    a, b = (of.flow(of.Particles(x), field, of.RK4(), t1=1.0, dt=1 / (steps - 1)) for x in start)
    weights = np.full(n, 1 / n)

    def cold() -> list[float]:
        pairs = zip(a.measures, b.measures, strict=True)
        return [
            ot.emd2(weights, weights, ot.dist(m.x.numpy(), k.x.numpy()), numItermax=10**7) for m, k in pairs
        ]

    times = {
        "cold POT, not certified": best_time(cold, 2),
        "otflow cold, certified": best_time(lambda: of.observables.distances(a, b, of=of.wasserstein), 2),
        "otflow warm, certified": best_time(lambda: of.observables.distances(a, b), 2),
    }
    print(f"Exact W2 at {steps} times of two flows of {n} tokens")
    for name, t in times.items():
        print(f"  {name:24s} {t:6.2f} s, {times['cold POT, not certified'] / t:5.2f} x as fast as cold POT")


def memory(n: int = 50_000, d: int = 8) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    start = time.perf_counter()
    plan = of.sinkhorn(of.Particles(x), of.Particles(y), of.Sinkhorn(4.0, tol=1e-6))
    peak = peak_memory() / 2**20
    seconds = time.perf_counter() - start
    print(f"{n} points, d = {d}: {plan}, {plan.sweeps} sweeps, {seconds:.0f} s, peak {peak:.2f} GB")


if __name__ == "__main__":
    if "--memory" in sys.argv:
        memory()
    else:
        for d in (2, 32):
            entropic(4000, d)
        for d in (2, 8, 32):
            gaussians(d)
        along_a_trajectory()
