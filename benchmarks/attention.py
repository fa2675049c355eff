"""Softmax attention against dense torch (and KeOps, if installed), as ratios measured in one run.

    python benchmarks/attention.py [--memory]

Each line alternates between the contestants and takes the best time of each, so that a noisy machine
disturbs them alike. `--memory` also reports the peak memory of velocities of 50,000 tokens (minutes).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from timing import peak_memory
from torch import Tensor

import otflow as of

GOALS = {2: 3.0, 16: 3.0, 64: 2.0}  # times faster than dense at n = 8000


def dense(x: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    return torch.softmax((x @ Q.mT) @ (x @ K.mT).mT, -1) @ (x @ V.mT)


def keops(x: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    from pykeops.torch import Vi, Vj

    scores = Vi((x @ Q.mT).contiguous()) | Vj((x @ K.mT).contiguous())
    return scores.sumsoftmaxweight(Vj((x @ V.mT).contiguous()), dim=1)


def best_times(contestants: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(contestants, float("inf"))
    for f in contestants.values():
        f()
    for _ in range(repeats):
        for name, f in contestants.items():
            start = time.perf_counter()
            f()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def has_keops() -> bool:
    try:
        import pykeops.torch  # noqa: F401
    except ImportError:
        return False
    return True


def compare(n: int, d: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, (Q, K, V) = (torch.randn(*s, d, generator=generator, dtype=dtype) for s in ((n,), (3, d)))
    Q, K = Q / d**0.5, K / d**0.5
    mu, field = of.Particles(x), of.SoftmaxAttention(Q, K, V)
    contestants: dict[str, Callable[[], Any]] = {
        "otflow": lambda: field(0.0, mu)[0],
        "dense": lambda: dense(x, Q, K, V),
    }
    if has_keops():
        contestants["KeOps"] = lambda: keops(x, Q, K, V)
    error = float((field(0.0, mu)[0] - dense(x, Q, K, V)).abs().max() / dense(x, Q, K, V).abs().max())
    times = best_times(contestants, 7 if n < 5000 else 5)
    own = times.pop("otflow")
    ratios = "  ".join(f"{name} {t / own:5.2f} x" for name, t in times.items())
    goal = f"(goal: dense {GOALS[d]:g} x)" if n == 8000 else ""
    kind = str(dtype).removeprefix("torch.")
    print(f"n = {n:5d}  d = {d:2d}  {kind}  otflow {1e3 * own:7.1f} ms  {ratios}  error {error:.0e} {goal}")


def memory(n: int = 50_000, d: int = 16) -> None:
    generator = torch.Generator().manual_seed(0)
    mu = of.Particles(torch.randn(n, d, generator=generator, dtype=torch.float64))
    Q, K, V = torch.randn(3, d, d, generator=generator, dtype=torch.float64) / d
    fields = {
        "softmax": of.SoftmaxAttention(Q, K, V),
        "Sinkhorn, 10 sweeps": of.SinkhornAttention(Q, K, V, of.Sinkhorn(1.0, max_iter=10)),
    }
    for name, field in fields.items():
        start = time.perf_counter()
        _, carry = field.evaluate(torch.zeros((), dtype=torch.float64), mu)
        peak = peak_memory() / 2**20
        note = "" if carry is None else f", marginal error {carry.residual:.1e}"
        print(f"n = {n}  d = {d}  {name}: {time.perf_counter() - start:.0f} s, peak {peak:.2f} GB{note}")


if __name__ == "__main__":
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; how many times slower than otflow:")
    for dtype in (torch.float32, torch.float64):
        for n in (2000, 8000):
            for d in (2, 16, 64):
                compare(n, d, dtype)
    if "--memory" in sys.argv[1:]:
        memory()
