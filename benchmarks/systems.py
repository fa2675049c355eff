"""Token systems against straightforward numpy, as ratios measured in one run.

    python benchmarks/systems.py [--large]

Phases: a phase diagram of 32 tokens in dimension 128, against the same Euler steps in numpy, not rotated.
Causal: the velocity of a prompt of 4,000 tokens by prefix sums, against the double sum.
Modes: the number of modes of a density estimator with 20,000 tokens, against a fine grid of the line.
Equiangular: 1,000 overlaps by the inverted closed form, against scipy's integrator, one ODE each.
Atoms: where 300 repelling tokens with a perceptron settle, against gradient descent in numpy, 3,000 steps at
most; the energies tell how far each came.
`--large`: the sizes that are promised: the phase diagram with 90 temperatures, 64 samples and times to 30; a
million tokens with a million modes' worth of bandwidths; a prompt of 10,000 tokens with its peak memory.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from scipy import integrate
from timing import peak_memory, timed

import otflow as of
from otflow.papers import kde_modes, perceptron, perspective
from otflow.papers import lost_in_the_middle as causal


def report(name: str, what: str, ours: float, theirs: float, gap: str) -> None:
    print(f"{name:<12} {what}: {ours:.3g} s, numpy {theirs:.3g} s, ratio {theirs / ours:.3g}, {gap}")


# --- phase diagrams ------------------------------------------------------------------------------------


def phases(n: int = 32, d: int = 128, samples: int = 64) -> None:
    beta, t = np.linspace(0.5, 4.5, 4), np.linspace(0, 6, 31)
    ours, found = timed(lambda: perspective.phase_diagram(beta, t, n=n, d=d, samples=samples, rng=0), 2)
    theirs, other = timed(lambda: np.stack([_phases(b, t, n, d, samples) for b in beta], -1), 2)
    gap = (
        f"largest gap of probabilities {np.abs(found.probability.numpy() - other).max():.2f} (other samples)"
    )
    report("phases", f"n = {n}, d = {d}, {len(beta)} betas, {samples} samples", ours, theirs, gap)


def _phases(beta: float, t: Any, n: int, d: int, samples: int, dt: float = 0.1) -> Any:
    x = np.random.default_rng(1).standard_normal((samples, n, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    upper = np.triu_indices(n, 1)
    out = [0.0]
    for _ in range(len(t) - 1):
        for _ in range(round((t[1] - t[0]) / dt)):
            P = np.exp(beta * (x @ x.swapaxes(1, 2)))
            v = P @ x / P.sum(-1, keepdims=True)
            x = x + dt * (v - (v * x).sum(-1, keepdims=True) * x)
            x /= np.linalg.norm(x, axis=-1, keepdims=True)
        out.append(float(((x @ x.swapaxes(1, 2))[:, upper[0], upper[1]] >= 1 - 1e-3).mean()))
    return np.array(out)


# --- causal attention ----------------------------------------------------------------------------------


def prompts(N: int = 4000) -> None:
    theta = np.random.default_rng(0).uniform(0, 2 * np.pi, N)
    field, mu = causal.CausalAlibi(1.0, 1.0), causal.tokens(theta)
    ours, v = timed(lambda: field(0.0, mu)[0][:, 0])
    theirs, dense = timed(lambda: _double_sum(theta, 1.0, 1.0), 1)
    gap = f"gap {np.abs(v.numpy() - dense).max():.0e}"
    report("causal", f"N = {N}, {field.modes} modes", ours, theirs, gap)


def _double_sum(theta: Any, beta: float, lam: float) -> Any:
    N = len(theta)
    j = np.arange(N)
    x = theta[:, None] - theta
    w = np.where(j[:, None] > j, np.exp(-lam * (j[:, None] - j) / N), 0.0)
    force = w * -beta * np.sin(x) * np.exp(beta * np.cos(x))
    return force.sum(-1) / np.maximum(w.sum(-1), 1e-300)


# --- modes ---------------------------------------------------------------------------------------------


def estimators(n: int = 20_000) -> None:
    x = np.random.default_rng(0).standard_normal(n)
    ours, count = timed(lambda: kde_modes.count_modes(x, float(n)))
    theirs, grid = timed(lambda: _on_grid(x, float(n)), 1)
    report("modes", f"n = beta = {n}", ours, theirs, f"{count} modes, {grid} on the grid")


def _on_grid(x: Any, beta: float, each: int = 20) -> int:
    """Changes of sign of the slope on a grid with so many points to the bandwidth, in pieces that fit."""
    h = 1 / math.sqrt(beta)
    s = np.arange(x.min() - 3 * h, x.max() + 3 * h, h / each)
    slopes = [
        ((x - part[:, None]) * np.exp(-beta * (x - part[:, None]) ** 2 / 2)).sum(-1)
        for part in np.array_split(s, max(1, len(s) * len(x) // 2**24))
    ]
    sign = np.sign(np.concatenate(slopes))
    sign = sign[sign != 0]
    return int(((sign[:-1] > 0) & (sign[1:] < 0)).sum())


# --- equiangular tokens --------------------------------------------------------------------------------


def overlaps(many: int = 1000) -> None:
    beta, t, n = np.linspace(0, 8, many), np.linspace(0.1, 9, many), 32
    ours, gamma = timed(lambda: perspective.equiangular(t, beta, n))

    def ode(b: float, end: float) -> float:
        def rate(_: float, g: Any) -> Any:
            return 2 * np.exp(b * g) * (1 - g) * ((n - 1) * g + 1) / (np.exp(b) + (n - 1) * np.exp(b * g))

        return float(integrate.solve_ivp(rate, (0, end), [0.0], rtol=1e-10, atol=1e-12).y[0, -1])

    theirs, other = timed(lambda: np.array([ode(b, end) for b, end in zip(beta, t, strict=True)]), 1)
    report("equiangular", f"{many} overlaps", ours, theirs, f"gap {np.abs(gamma.numpy() - other).max():.0e}")


# --- atoms ---------------------------------------------------------------------------------------------


def atoms(n: int = 300, beta: float = 9.0) -> None:
    a, omega = np.array([[1.0, 0.3], [-0.4, 1.0]]), 0.3 * np.array([0.8, -0.6])
    theta = 2 * np.pi * (np.arange(n) + 0.5) / n
    ours, found = timed(lambda: perceptron.find_atoms(perspective.circle(theta), beta, a, omega), 1)
    low = float(found.energy)
    theirs, (energy, steps) = timed(lambda: _descent(theta, beta, a, omega, low * (1 + 1e-4)), 1)
    gap = f"energies {low:.6f} and {energy:.6f} after {steps} steps"
    report("atoms", f"n = {n}, beta = {beta:g}", ours, theirs, gap)


def _descent(theta: Any, beta: float, a: Any, omega: Any, goal: float) -> tuple[float, int]:
    """theta <- theta - 0.2 n dE/dtheta, at most 3,000 times."""
    energy, steps = math.inf, 0
    while energy > goal and steps < 3_000:
        x = theta[:, None] - theta
        K = np.exp(beta * (np.cos(x) - 1))
        z = np.stack([np.cos(theta), np.sin(theta)], -1) @ a.T
        energy = K.mean() / (2 * beta) + (np.maximum(z, 0) ** 2 @ omega).mean() / 2
        turn = np.stack([-np.sin(theta), np.cos(theta)], -1) @ a.T
        theta = theta - 0.2 * (-(K * np.sin(x)).mean(-1) + (np.maximum(z, 0) * turn) @ omega)
        steps += 1
    return float(energy), steps


# --- the sizes that are promised -----------------------------------------------------------------------


def large() -> None:
    rng = np.random.default_rng(0)
    beta, t = np.linspace(0.1, 9, 90), np.linspace(0, 30, 200)
    seconds, _ = timed(lambda: perspective.phase_diagram(beta, t, n=32, d=128, samples=64, rng=rng), 1)
    print(f"phases       n = 32, d = 128, 90 betas, 64 samples, t to 30: {seconds:.0f} s")
    x = rng.standard_normal(1_000_000)
    seconds, count = timed(lambda: kde_modes.count_modes(x, 1e6), 1)
    print(f"modes        n = beta = 1e6: {seconds:.1f} s, {count} modes")
    field, mu = (
        causal.CausalAlibi(1.0, 1.0, modes=20),
        causal.prompts(10_000, rng=rng),
    )
    before = peak_memory()
    seconds, _ = timed(lambda: of.flow(mu, field, of.RK4(), t1=1.0, dt=0.05), 1)
    grown = (peak_memory() - before) / 1024
    print(f"causal       N = 10,000, 20 modes, 20 steps of RK4: {seconds:.1f} s, +{grown:.0f} MB")


if __name__ == "__main__":
    for benchmark in (phases, prompts, estimators, overlaps, atoms):
        benchmark()
    if "--large" in sys.argv:
        large()
