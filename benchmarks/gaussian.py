"""Flows of many covariances against a loop of scipy's solve_ivp, as a ratio measured in one run.

    python benchmarks/gaussian.py [--figures]

10,000 covariances in dimension 4 under softmax attention, to t = 5 with a relative tolerance of 1e-8: Dopri5
on the whole batch against RK45 on one covariance after the other, of which 100 are timed. `--figures` also
times all figures of Castin et al. 2025 (minutes).
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy.integrate import solve_ivp
from timing import peak_memory

import otflow as of
from otflow.papers import REGISTRY
from otflow.reproduce.frame import Frame

D, END, RTOL, ATOL = 4, 5.0, 1e-8, 1e-10
GOAL = 40.0  # times faster than the loop
FIGURES = 180.0  # seconds for all of them


def weights(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Q (K = -Q, so that all runs converge) and symmetric positive values."""
    Q, W = rng.standard_normal((D, D)) / 2, rng.standard_normal((D, D))
    return Q, np.eye(D) + 0.3 * W @ W.T / D


def ours(Q: np.ndarray, V: np.ndarray, roots: np.ndarray) -> np.ndarray:
    mu = of.Gaussian(np.zeros((len(roots), D)), root=roots)
    traj = of.flow(mu, of.SoftmaxAttention(Q, -Q, V), of.Dopri5(RTOL, ATOL), t1=END, save_at=[0.0])
    return np.asarray(traj.stacked.coords[1][-1].numpy())


def loop(Q: np.ndarray, V: np.ndarray, roots: np.ndarray) -> np.ndarray:
    A = -Q.T @ Q

    def rate(t: float, s: np.ndarray) -> np.ndarray:
        S = s.reshape(D, D)
        half = V @ S @ A @ S
        return np.asarray((half + half.T).ravel())

    ends = [
        solve_ivp(rate, (0.0, END), (R @ R.T).ravel(), method="RK45", rtol=RTOL, atol=ATOL).y[:, -1]
        for R in roots
    ]
    return np.stack(ends).reshape(-1, D, D)


def compare(n: int, timed: int, repeats: int = 3) -> None:
    rng = np.random.default_rng(0)
    Q, V = weights(rng)
    roots = rng.standard_normal((n, D, D)) / 2
    ours(Q, V, roots[:timed])
    mine = theirs = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        got = ours(Q, V, roots)
        mine = min(mine, time.perf_counter() - start)
        start = time.perf_counter()
        exact = loop(Q, V, roots[:timed])
        theirs = min(theirs, (time.perf_counter() - start) * n / timed)
    gap = np.abs(got[:timed] @ got[:timed].swapaxes(-1, -2) - exact).max()
    memory = peak_memory() / 2**20
    verdict = f" (goal {GOAL:g}: {'reached' if theirs >= GOAL * mine else 'missed'})" if n == 10_000 else ""
    print(f"{n} covariances, d = {D}: Dopri5 {mine:.2f} s, loop {theirs:.0f} s ({timed} timed)")
    print(f"  ratio {theirs / mine:.1f}{verdict}, difference {gap:.1e}, {memory:.2f} GB")


def figures() -> None:
    total = 0.0
    for name in (name for name in REGISTRY.names() if name.startswith("castin")):
        start = time.perf_counter()
        REGISTRY.load(name).run(Frame())
        total += (spent := time.perf_counter() - start)
        print(f"  {name}: {spent:.1f} s")
    print(f"all figures: {total:.0f} s (goal {FIGURES:g}: {'reached' if total <= FIGURES else 'missed'})")


if __name__ == "__main__":
    compare(10_000, 100)
    compare(100_000, 100, repeats=1)
    if "--figures" in sys.argv[1:]:
        figures()
