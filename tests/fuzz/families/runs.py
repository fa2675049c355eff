"""Runs: batches, pieces, times to save at and datasets give the same states as a plain run."""

from __future__ import annotations

import numpy as np

from tests.fuzz import draws
from tests.fuzz.draws import Rng
from tests.fuzz.engine import Case, family, slow_family

FIXED = ("of.Euler()", "of.Heun()", "of.RK4()", "of.Dopri5(adaptive=False)")
FIELDS = (
    "of.SoftmaxAttention(A, B, B)",
    "of.L2Attention(A, B, A)",
    "of.SinkhornAttention(A, B, B)",
    "of.SoftmaxAttention(A, B, B, causal=True)",
    "of.Perceptron(A, B, activation=torch.tanh)",
    "of.SteepestDescent(of.QuadraticInteraction(A @ A.T), of.Wasserstein())",
    "of.SteepestDescent(of.SigmoidInteraction(A + A.T), of.Wasserstein())",
    "of.SoftmaxAttention(of.Layers(np.stack([A, B]), [0.0, 0.3, 1.0]), B, A)",
)


@family
def batches_in_fixed_steps(rng: Rng) -> Case:
    """Each member of a batch moves as it does alone."""
    k, n, d, dtype = int(rng.integers(1, 4)), draws.size(rng), draws.dimension(rng), draws.precision(rng)
    x = rng.standard_normal((k, n, d)).astype(dtype)
    A, B = (0.4 * rng.standard_normal((2, d, d))).astype(dtype)
    field, stepper = str(draws.pick(rng, FIELDS)), str(draws.pick(rng, FIXED))
    t0, dt = float(rng.choice([0.0, -0.5, 0.2])), float(rng.uniform(0.07, 0.3))
    times = f"t0={t0!r}, t1={t0 + 0.5!r}, dt={dt!r}"
    loose = 1e-6 if dtype is np.float64 else 1e-3  # Sinkhorn's iterations start warm
    return Case(
        f"field, s = {field}, np.arange({n}) / {n}\n"
        f"whole = of.flow(of.Particles(x, label=s), field, {stepper}, {times})\n"
        f"alone = [of.flow(of.Particles(one, label=s), field, {stepper}, {times}) for one in x]\n"
        "gap = whole.x - torch.stack([run.x for run in alone], 1)\n"
        "gap.abs().max(), (whole.ts - alone[0].ts).abs().max(), whole.ts[-1]",
        {"x": x, "A": A, "B": B},
        lambda: (0.0, 0.0, t0 + 0.5),
        lambda: (loose * (1 + abs(x).max()), 0.0, 1e-15),
    )


@slow_family
def batches_in_adaptive_steps(rng: Rng) -> Case:
    """Each member has a clock of its own, so that it ends where it does alone, to the tolerance."""
    k, n, d = int(rng.integers(1, 4)), draws.size(rng), int(rng.integers(1, 4))
    x = rng.standard_normal((k, n, d)) * 10.0 ** rng.uniform(-1, 0.5, (k, 1, 1))
    A, B = 0.4 * rng.standard_normal((2, d, d))
    field = str(draws.pick(rng, FIELDS))
    stepper = str(draws.pick(rng, ("of.Dopri5(1e-9, 1e-11)", "of.Rosenbrock(1e-8, 1e-10)")))
    return Case(
        f"field, s = {field}, np.arange({n}) / {n}\n"
        f"whole = of.flow(of.Particles(x, label=s), field, {stepper}, t1=0.5)\n"
        f"alone = [of.flow(of.Particles(one, label=s), field, {stepper}, t1=0.5) for one in x]\n"
        "whole.final.x - torch.stack([run.final.x for run in alone])",
        {"x": x, "A": A, "B": B},
        lambda: np.zeros(x.shape),
        lambda: 1e-4 * (1 + abs(x).max()) if "Rosenbrock" in stepper else 1e-5 * (1 + abs(x).max()),
    )


@family
def runs_in_pieces(rng: Rng) -> Case:
    """A run of fixed steps, cut between two of them; and joined again."""
    n, d, steps = draws.size(rng), draws.dimension(rng), int(rng.integers(2, 5))
    x, (A, B) = rng.standard_normal((n, d)), 0.4 * rng.standard_normal((2, d, d))
    cut, dt, stepper = int(rng.integers(1, steps)), 0.125, str(draws.pick(rng, FIXED))
    times = f"t0={cut * dt!r}, t1={steps * dt!r}, dt={dt!r}"
    return Case(
        "field = of.SoftmaxAttention(A, B, B)\n"
        f"whole = of.flow(of.Particles(x), field, {stepper}, t1={steps * dt!r}, dt={dt!r})\n"
        f"first = of.flow(of.Particles(x), field, {stepper}, t1={cut * dt!r}, dt={dt!r})\n"
        f"second = of.flow(first.final, field, {stepper}, {times})\n"
        f"whole[{cut}].x - first.final.x, whole.x[{cut}:] - second.x, whole.ts[{cut}:] - second.ts, "
        "len(whole)",
        {"x": x, "A": A, "B": B},
        lambda: (np.zeros((n, d)), np.zeros((steps - cut + 1, n, d)), np.zeros(steps - cut + 1), steps + 1),
        lambda: (1e-13 * (1 + abs(x).max()),) * 2 + (1e-15, 0.0),
    )


@family
def times_to_save_at(rng: Rng) -> Case:
    """They are hit exactly, and the state there is that of x' = -x, whatever else is asked for."""
    n, d = draws.size(rng), draws.dimension(rng)
    x, ts = rng.standard_normal((n, d)), np.sort(rng.uniform(0.05, 0.9, int(rng.integers(1, 5))))
    stepper = str(draws.pick(rng, ("of.RK4(), dt=0.05", "of.Dopri5(1e-9, 1e-11)")))
    every = np.append(ts, 1.0)
    return Case(
        "pull = of.SteepestDescent(of.QuadraticPotential(np.eye(x.shape[-1])), of.Wasserstein())\n"
        f"run = of.flow(of.Particles(x), pull, {stepper}, t1=1.0, save_at=ts)\n"
        "back = of.Trajectory.from_xarray(run.to_xarray())\n"
        "run.ts, run.x, back.ts, back.x, back.final.w",
        {"x": x, "ts": ts},
        lambda: (every, path(every, x), every, path(every, x), np.full(n, 1 / n)),
        lambda: (0.0, 1e-6 * (1 + abs(x).max()), 0.0, 1e-6 * (1 + abs(x).max()), 1e-15),
    )


def path(ts: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-ts)[:, None, None] * x)
