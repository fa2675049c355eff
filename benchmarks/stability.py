"""Local Lipschitz constants against what else one would do, as ratios measured in one run.

    python benchmarks/stability.py [--large]

Dense: the largest singular value of the Jacobian of 200 tokens in dimension 16, against the whole Jacobian by
torch.func and its singular values.
Power: the same constant of 1,000 tokens in dimension 16, against power iteration on J^T J with autograd
through dense attention, both to a residual of 1e-5.
`--large`: a few steps for 20,000 tokens in dimension 64, with their time and the peak memory (minutes); one
matrix of scores alone would take 3.2 GB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from timing import peak_memory, timed
from torch import Tensor

import otflow as of
from otflow.stability.local_constant import local_constant
from otflow.stability.smoothness import data_bound


def problem(n: int, d: int, scale: float = 1.0) -> tuple[of.SoftmaxAttention, of.Particles, list[Tensor]]:
    """Random weights and tokens, with scores of order ``scale``."""
    rng = np.random.default_rng(0)
    QKV = [torch.from_numpy(rng.standard_normal((d, d)) / d**0.5) for _ in range(3)]
    QKV[0] *= scale / d**0.5
    return of.SoftmaxAttention(*QKV), of.Particles(rng.standard_normal((n, d))), QKV


def attention(x: Tensor, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    return torch.softmax((x @ Q.mT) @ (x @ K.mT).mT, -1) @ (x @ V.mT)


# --- against the dense Jacobian ------------------------------------------------------------------------


def dense(n: int = 200, d: int = 16) -> None:
    field, mu, QKV = problem(n, d, 3.0)
    local_constant(mu, field, max_iter=1, on_failure="return")  # torch loads its forward mode
    ours, found = timed(lambda: local_constant(mu, field))

    def whole() -> Tensor:
        J = torch.func.jacrev(lambda x: attention(x, *QKV))(mu.x).reshape(n * d, n * d)
        return torch.linalg.matrix_norm(J, 2)

    theirs, value = timed(whole, repeats=1)
    gap = abs(found.value / value - 1).item()
    print(
        f"dense   n = {n}, d = {d}: {ours:.3f} s, {found.iterations} steps; Jacobian and its singular values "
        f"{theirs:.1f} s, ratio {theirs / ours:.0f}, gap {gap:.0e}"
    )


# --- against power iteration with autograd -------------------------------------------------------------


def power(n: int = 1000, d: int = 16, tol: float = 1e-5) -> None:
    field, mu, QKV = problem(n, d, 3.0)
    ours, found = timed(lambda: local_constant(mu, field, tol=tol), repeats=2)
    theirs, (value, steps) = timed(lambda: _power(lambda x: attention(x, *QKV), mu.x, tol), repeats=1)
    gap = abs(found.value / value - 1).item()
    each = f"{ours / found.iterations:.2f} s"
    print(f"power   n = {n}, d = {d}: {ours:.2f} s, {found.iterations} steps of {each}; power iteration")
    each, ratio = f"{theirs / steps:.2f} s", theirs / ours
    print(f"        {theirs:.1f} s, {steps} steps of {each}, ratio {ratio:.1f}, gap {gap:.0e}")


def _power(f: Callable[[Tensor], Tensor], x: Tensor, tol: float, limit: int = 500) -> tuple[Tensor, int]:
    """|J| by u <- J^T J u / |J^T J u|, with one graph of f that is kept, and the steps taken."""
    u = torch.from_numpy(np.random.default_rng(0).standard_normal(x.shape))
    _, back = torch.func.vjp(f, x)
    steps = 0
    while True:
        u, steps = u / u.norm(), steps + 1
        Ju = torch.func.jvp(f, (x,), (u,))[1]
        (v,) = back(Ju)
        sigma = Ju.norm()
        if steps == limit or (v - sigma**2 * u).norm() <= tol * sigma**2:
            return sigma, steps
        u = v


# --- large clouds --------------------------------------------------------------------------------------


def large(n: int = 20_000, d: int = 64, steps: int = 3) -> None:
    field, mu, _ = problem(n, d)
    before = peak_memory()
    spent, found = timed(lambda: local_constant(mu, field, max_iter=steps, on_failure="return"), repeats=1)
    after = peak_memory()
    print(
        f"large   n = {n}, d = {d}: {spent / steps:.1f} s a step (one jvp, one vjp), peak memory "
        f"+{(after - before) / 1024:.0f} MB, |J| >= {found.value:.4g}, residual {found.residual:.0e}"
    )
    bound, value = timed(lambda: data_bound(mu, field), repeats=1)
    print(f"        data_bound {bound:.1f} s: |J| <= {value:.4g}")


if __name__ == "__main__":
    torch.set_num_threads(2 if "--large" in sys.argv else 1)
    if "--large" in sys.argv:
        large()
    else:
        dense()
        power()
