"""Steps against their own formulas, flows against closed forms and scipy's integrator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
from scipy.integrate import solve_ivp

from tests.fuzz import attention_oracle as oracle
from tests.fuzz import draws
from tests.fuzz.clouds import Cloud
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family, slow_family

Rate = Callable[[Array], Array]
TABLEAUS: dict[str, tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]] = {
    "of.Euler()": (((),), (1.0,)),
    "of.Heun()": (((), (1.0,)), (0.5, 0.5)),
    "of.RK4()": (((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}


def runge_kutta(f: Rate, x: Array, dt: Any, name: str) -> Array:
    rows, b = TABLEAUS[name]
    k: list[Array] = []
    for row in rows:
        k.append(f(x + dt * sum((LONG(a) * one for a, one in zip(row, k, strict=True)), start=0 * x)))
    return np.asarray(x + dt * sum((LONG(c) * one for c, one in zip(b, k, strict=True)), start=0 * x))


@family
def explicit_steps(rng: Rng) -> Case:
    """A few steps of softmax attention in extended precision, member by member."""
    cloud = Cloud(rng, size=draws.scale(rng, -6, 0))
    m = tuple(draws.matrix(rng, cloud.d, cloud.d, size=0.5).astype(cloud.dtype) for _ in range(3))
    name, steps, dt = (
        str(draws.pick(rng, tuple(TABLEAUS))),
        int(rng.integers(1, 4)),
        2.0 ** -int(rng.integers(2, 6)),
    )

    def final(x: Array, w: Array) -> Array:
        for _ in range(steps):
            x = runge_kutta(lambda y: oracle.velocity("Softmax", oracle.long(m), y, w, y), x, LONG(dt), name)
        return x

    def bound(x: Array, w: Array) -> Array:
        one = oracle.velocity_bound("Softmax", oracle.long(m), x, w, x, cloud.unit).max()
        far = abs(x).max() * (1 + abs(np.asarray(m, dtype=LONG)).max() * cloud.d) ** 2
        return np.full(x.shape, 64 * steps * (one + cloud.unit * far))

    return Case(
        f"traj = of.flow({cloud.code}, of.SoftmaxAttention(Q, K, V), {name}, t1={steps * dt!r}, dt={dt!r})\n"
        "traj.final.x, traj.status",
        {"Q": m[0], "K": m[1], "V": m[2], **cloud.values},
        lambda: cloud.each(final),
        lambda: cloud.each(bound),
    )


@slow_family
def adaptive_flows(rng: Rng) -> Case:
    """Attention to the end against scipy's DOP853, where it stays moderate."""
    kind = str(draws.pick(rng, ("Softmax", "L2", "Sigmoid")))
    cloud = Cloud(rng, batch=(), dtype=np.float64)
    x = rng.standard_normal(cloud.x.shape)
    cloud.put(rng, x)
    m = tuple(draws.matrix(rng, cloud.d, cloud.d, size=0.4) for _ in range(3))
    w = cloud.mass.astype(float)
    stepper = str(
        draws.pick(rng, ("of.Dopri5(1e-9, 1e-11)", "of.Dopri5(1e-9, 1e-11)", "of.Rosenbrock(1e-8, 1e-10)"))
    )

    def truth() -> Array:
        def rate(_: float, y: Array) -> Array:
            y = y.reshape(x.shape)
            return oracle.velocity(kind, m, y, w, y).astype(float).ravel()

        found = solve_ivp(rate, (0, 1), x.ravel(), method="DOP853", rtol=1e-11, atol=1e-12)
        return np.asarray(found.y[:, -1].reshape(x.shape))

    return Case(
        f"traj = of.flow({cloud.code}, of.{kind}Attention(Q, K, V), {stepper}, t1=1.0)\ntraj.final.x, "
        "traj.status",
        {**cloud.values, "Q": m[0], "K": m[1], "V": m[2]},
        truth,
        lambda: 1e-4 * (1 + abs(x).max()) if "Rosenbrock" in stepper else 1e-5 * (1 + abs(x).max()),
    )


@slow_family
def linear_flows(rng: Rng) -> Case:
    """x' = Ax + b moves particles and Gaussians by one exponential."""
    d, n, t = draws.dimension(rng), draws.size(rng), float(rng.uniform(0.1, 2))
    W, U = draws.matrix(rng, d, d), draws.matrix(rng, d, d, size=1.0)
    A = W @ U
    x, m, R = (
        rng.standard_normal((n, d)),
        rng.standard_normal(d),
        draws.matrix(rng, d, int(rng.integers(1, d + 1))),
    )
    E = scipy.linalg.expm(t * A)
    size = (
        np.linalg.norm(E) * (1 + abs(x).max() + abs(m).max() + abs(R).max()) * np.exp(np.linalg.norm(A) * t)
    )
    return Case(
        "field = of.Perceptron(W, U, activation=None)\n"
        "mu, nu = of.Particles(x), of.Gaussian(m, root=R)\n"
        f"runs = [of.flow(one, field, of.Dopri5(1e-10, 1e-12), t1={t!r}) for one in (mu, nu)]\n"
        f"exact = of.flow(nu, field, of.Lie(), t1={t!r}, dt={t / 3!r})\n"
        "runs[0].final.x, runs[1].final.mean, runs[1].final.cov, exact.final.mean, exact.final.cov, "
        "exact.status",
        {"W": W, "U": U, "x": x, "m": m, "R": R},
        lambda: (x @ E.T, E @ m, E @ R @ R.T @ E.T, E @ m, E @ R @ R.T @ E.T),
        lambda: (1e-6 * size, 1e-6 * size, 1e-6 * size**2, 1e-14 * size, 1e-14 * size**2),
    )


@slow_family
def gaussian_flows(rng: Rng) -> Case:
    """Softmax attention with V = I on centred Gaussians: S(t) = (S^-1 - t (A + A^T))^-1."""
    d = int(rng.integers(1, 5))
    S, A = draws.spd(rng, d, d, condition=10.0), draws.matrix(rng, d, d, size=0.5)
    H = A + A.T
    largest = np.linalg.eigvals(S @ H).real.max()
    t = float(rng.uniform(0.1, 0.8) * min(1.0, 1 / max(largest, 1e-9)))
    path = np.linalg.inv(np.linalg.inv(S) - t * H)
    return Case(
        f"mu = of.Gaussian(np.zeros({d}), cov=S)\n"
        f"traj = of.flow(mu, of.SoftmaxAttention(A, np.eye({d}), np.eye({d})), of.Dopri5(1e-10, 1e-12), "
        f"t1={t!r})\n"
        "traj.final.cov, traj.status",
        {"S": S, "A": A},
        lambda: path,
        lambda: 1e-6 * (1 + abs(path).max()) ** 2,
    )


@slow_family
def flows_with_layers(rng: Rng) -> Case:
    """Piecewise constant linear fields: the product of exponentials, steps ending at the jumps."""
    d, n, count = draws.dimension(rng), draws.size(rng), int(rng.integers(1, 4))
    W = draws.matrix(rng, count, d, d)
    edges = np.concatenate([[0.0], np.cumsum(rng.uniform(0.2, 0.7, count))])
    x, E = rng.standard_normal((n, d)), np.eye(d)
    for one, dt in zip(W, np.diff(edges), strict=True):
        E = scipy.linalg.expm(dt * one) @ E
    size = (1 + abs(x).max()) * np.exp(sum(np.linalg.norm(one) for one in W))
    return Case(
        "field = of.Perceptron(of.Layers(W, edges), np.eye(W.shape[-1]), activation=None)\n"
        f"of.flow(of.Particles(x), field, of.Dopri5(1e-10, 1e-12), t1={float(edges[-1])!r}).final.x",
        {"W": W, "edges": edges, "x": x},
        lambda: x @ E.T,
        lambda: 1e-6 * size,
    )


@slow_family
def descents_on_spheres(rng: Rng) -> Case:
    """A token pulled to a pole: the angle solves theta' = -c sin theta."""
    n, c, t = draws.size(rng), float(rng.uniform(0.2, 2)), float(rng.uniform(0.1, 2))
    theta, turn = rng.uniform(0.1, 3.0, n), rng.uniform(0, 2 * np.pi, n)
    x = np.stack([np.sin(theta) * np.cos(turn), np.sin(theta) * np.sin(turn), np.cos(theta)], 1)
    end = 2 * np.arctan(np.tan(theta / 2) * np.exp(-c * t))
    y = np.stack([np.sin(end) * np.cos(turn), np.sin(end) * np.sin(turn), np.cos(end)], 1)
    return Case(
        f"F = of.Potential(lambda x: -{c!r} * x[..., 2])\n"
        "field = of.SteepestDescent(F, of.Wasserstein())\n"
        f"of.flow(of.Particles(x, space=of.Sphere()), field, of.Dopri5(1e-10, 1e-12), t1={t!r}).final.x",
        {"x": x},
        lambda: y,
        lambda: 1e-6,
    )


@slow_family
def blow_ups(rng: Rng) -> Case:
    """One token under unnormalised attention on the line: x' = v x exp(a x^2), until E1(a x^2) / (2 v)."""
    from scipy.special import exp1

    x, a, v = float(rng.uniform(0.3, 1.5)), float(rng.uniform(0.3, 1.5)), float(rng.uniform(0.5, 2))
    when = float(exp1(a * x * x) / (2 * v))
    return Case(
        f"field = of.UnnormalisedAttention([[{a!r}]], [[1.0]], [[{v!r}]])\n"
        f"traj = of.flow(of.Particles([[{x!r}]]), field, of.Dopri5(), t1={2 * when!r})\n"
        "traj.blow_up_time, traj.status == 'blow_up'",
        {},
        lambda: (when, 1.0),
        lambda: (1e-4 * when, 0.0),
    )


@family
def observed_flows(rng: Rng) -> Case:
    """What is recorded along a flow is what its measures are; pulled tokens decay as exp(-t)."""
    n, d = draws.size(rng), draws.dimension(rng)
    x = rng.standard_normal((n, d))
    ts = np.array([0.0, 0.25, 0.5])
    path = np.exp(-ts)[:, None, None] * x
    moment = (path**2).sum((1, 2)) / n
    return Case(
        "pull = of.SteepestDescent(of.QuadraticPotential(np.eye(x.shape[-1])), of.Wasserstein())\n"
        "seen = {'square': of.observables.second_moment}\n"
        "run = of.flow(of.Particles(x), pull, of.Dopri5(1e-10, 1e-12), t1=0.5, save_at=[0, 0.25, 0.5], "
        "observe=seen)\n"
        "rest = of.Particles(np.zeros_like(x))\n"
        "fall = of.observables.along(run, lambda t, mu: of.observables.dissipation(mu, pull, t))\n"
        "balance = of.energy_balance(run, pull)\n"
        "run.ts, run.x, run.observed['square'], of.observables.distances(run, rest), fall, balance.energy",
        {"x": x},
        lambda: (ts, path, moment, np.sqrt(moment), moment, moment / 2),
        lambda: 1e-7 * (1 + (x**2).sum()),
    )


@family
def noise(rng: Rng) -> Case:
    """Euler-Maruyama of pure noise is the path itself; increments add up however they are asked for."""
    n, d, seed, sigma = (
        draws.size(rng),
        draws.dimension(rng),
        int(rng.integers(1000)),
        float(rng.uniform(0.1, 2)),
    )
    x = rng.standard_normal((n, d))
    return Case(
        "still = 0.0 * of.SteepestDescent(of.QuadraticPotential(np.eye(x.shape[-1])), of.Wasserstein())\n"
        f"tree, one = of.dynamics.BrownianPath({seed}, x.shape), of.dynamics.BrownianPath({seed}, "
        "x.shape[-1])\n"
        "whole, parts = tree.increment(0.0, 1.0), tree.increment(0.0, 0.3) + tree.increment(0.3, 1.0)\n"
        f"runs = [of.flow(of.Particles(x), still, of.Euler(), t1=1.0, dt=0.25, noise=kind) for kind in (\n"
        f"    of.IndependentNoise({sigma!r}, path=tree), of.CommonNoise({sigma!r}, path=one)\n"
        ")]\n"
        "np.asarray(whole) - np.asarray(parts), "
        f"runs[0].final.x.numpy() - x - {sigma!r} * np.asarray(whole), "
        f"runs[1].final.x.numpy() - x - {sigma!r} * np.asarray(one.increment(0.0, 1.0))",
        {"x": x},
        lambda: (np.zeros_like(x),) * 3,
        lambda: 1e-12,
    )


@slow_family
def energy_balances(rng: Rng) -> Case:
    """Of implicit steps of length h of x' = -a x: energy, slope and length by hand, and the order."""
    a, x, h, steps = float(rng.uniform(0.3, 3)), float(rng.uniform(0.3, 3)), float(rng.uniform(0.01, 0.05)), 4
    path = x / (1 + h * a) ** np.arange(steps + 1)
    return Case(
        f"pull = of.SteepestDescent(of.QuadraticPotential([[{a!r}]]), of.Wasserstein())\n"
        f"mu = of.Particles([[{x!r}]])\n"
        f"runs = [of.flow(mu, pull, of.JKO(), t1={steps * h!r}, dt={h!r} / 2**k) for k in range(3)]\n"
        "balances = [of.energy_balance(run, pull) for run in runs]\n"
        "one = balances[0]\n"
        "one.energy, one.slope, one.length, of.dynamics.balance_order(balances)",
        {},
        lambda: (a * path**2 / 2, (a * path) ** 2, np.diff(path) ** 2, 2.0),
        lambda: (1e-7 * x**2 * a, 1e-7 * (a * x) ** 2, 1e-7 * x**2, 0.3),
    )
