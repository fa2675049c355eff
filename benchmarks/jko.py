"""JKO steps against what else one would do, as ratios measured in one run.

    python benchmarks/jko.py [--grid]

Gaussians: 1,000 problems in dimension 8 in one closed-form step, against a loop over scipy's matrix roots.
Particles: a step of 200 particles, against scipy's L-BFGS on the same objective and gradient, which stops
earlier than asked because differences of the objective drown in rounding.
`--grid`: the Barenblatt test on 256 x 256 cells, t from 0.001 to 0.004 at four step sizes, beside 300 pairs
of FFTs on the same grid (minutes).
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import scipy.fft
import torch
from scipy.linalg import sqrtm
from scipy.optimize import minimize
from timing import timed

import otflow as of
from otflow import closed_forms

# --- Gaussians -----------------------------------------------------------------------------------------


def gaussians(n: int = 1000, d: int = 8, tau: float = 0.1) -> None:
    rng = np.random.default_rng(0)
    W = rng.standard_normal((n, d, d))
    A, S = W @ W.swapaxes(-1, -2) / d, np.einsum("...ij,...kj->...ik", *[rng.standard_normal((n, d, d))] * 2)
    mu = of.Gaussian(np.zeros(d), cov=S)
    F = of.QuadraticPotential(A) + of.Entropy()
    ours, move = timed(lambda: of.jko_step(mu, F, tau))
    loop, covs = timed(lambda: [_step(s, a, tau) for s, a in zip(S, A, strict=True)], repeats=1)
    gap = np.abs(move.mu.cov.numpy() - np.stack(covs)).max()
    ratio = loop / ours
    print(
        f"gaussians   {n} in d = {d}: {ours:.3f} s, scipy loop {loop:.2f} s, ratio {ratio:.1f}, gap {gap:.0e}"
    )


def _step(S: np.ndarray, A: np.ndarray, tau: float) -> np.ndarray:
    eye = np.eye(len(A))
    half = np.linalg.inv(np.real(sqrtm(eye + tau * A)))
    M = half @ S @ half
    return np.asarray(half @ (M + 2 * tau * eye + np.real(sqrtm(M @ (M + 4 * tau * eye)))) @ half / 2)


# --- particles -----------------------------------------------------------------------------------------


def log_gas(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    r = (x - y).square().sum(-1)
    return r / 2 - torch.log(r) / 2


def particles(n: int = 200, tau: float = 0.5) -> None:
    mu = of.Particles(np.random.default_rng(0).standard_normal((n, 2)))
    F = of.Interaction(log_gas, diagonal=False)
    ours, move = timed(lambda: of.jko_step(mu, F, tau))
    theirs, found = timed(lambda: _lbfgs(mu, F, tau))
    end = mu.at([torch.from_numpy(found.x.reshape(mu.x.shape))])
    print(f"particles   {n}, log gas: {ours:.2f} s, |u/tau + grad F| = {_residual(mu, move.mu, F, tau):.0e}")
    print(f"            L-BFGS {theirs:.2f} s, {_residual(mu, end, F, tau):.0e}, ratio {theirs / ours:.1f}")


def _residual(mu: of.Particles, end: of.Particles, F: of.Energy, tau: float) -> float:
    return float(((end.x - mu.x) / tau + F.differential(end)[0] * mu.n).norm(dim=-1).square().mean().sqrt())


def _lbfgs(mu: of.Particles, F: of.Energy, tau: float) -> Any:
    x0 = mu.x.numpy().ravel()

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        nu = mu.at([torch.from_numpy(x.reshape(mu.x.shape))])
        grad = F.differential(nu)[0].numpy().ravel() + (x - x0) / (tau * mu.n)
        return float(F(nu)) + ((x - x0) ** 2).sum() / (2 * tau * mu.n), grad

    options = {"maxiter": 5000, "ftol": 0.0, "gtol": 1e-12}
    return minimize(objective, x0, jac=True, method="L-BFGS-B", options=options)


# --- grids ---------------------------------------------------------------------------------------------


def grids(n: int = 256) -> None:
    x = (np.arange(n) + 0.5) / n - 0.5
    q, m = 4.0, 2.0
    noise = np.random.default_rng(0).standard_normal((n, n))
    pairs, _ = timed(
        lambda: [scipy.fft.irfft2(scipy.fft.rfft2(noise, workers=2), workers=2) for _ in range(300)]
    )
    print(f"grid        {n} x {n}: 300 pairs of FFTs {pairs:.2f} s")
    R0 = 1e-3 ** (1 / q)
    mu = of.Grid(closed_forms.barenblatt_grid([x, x], R0, m), [x, x])
    field = of.SteepestDescent(of.PorousMedium(m), of.Wasserstein())
    for tau in (1e-3, 5e-4, 2.5e-4, 1.25e-4):
        start = time.perf_counter()
        traj = of.flow(mu, field, of.JKO(), t1=3e-3, dt=tau)
        spent = time.perf_counter() - start
        R = R0
        for _ in range(round(3e-3 / tau)):
            R = float(closed_forms.barenblatt_radius_step(R, tau, m, 2))
        oracle = closed_forms.barenblatt_grid([x, x], R, m)
        error = float((traj.final.density - oracle).abs().sum()) / n**2
        times = spent / pairs
        print(
            f"grid        tau = {tau:g}: {spent:.1f} s, {times:.1f} x the FFTs, L1 to the oracle {error:.1e}"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    gaussians()
    particles()
    torch.set_num_threads(2)
    if "--grid" in sys.argv:
        grids()
