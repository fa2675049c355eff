"""Minimising movements against linear algebra, a Newton method of our own, and closed entropic steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz import draws
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family

SOLVED = 1e-8  # of displacements, relative: the tolerance of the solver is 1e-10 of the gradient


def convex(rng: Rng, d: int) -> Array:
    return draws.spd(rng, d, d, condition=30.0)


@family
def steps_of_quadratic_energies(rng: Rng) -> Case:
    """(I + tau A)(c' - b) = c - b for the mean, (I + tau (A + K)) y = x for what deviates from it."""
    n, d, tau, batch = (
        draws.size(rng),
        draws.dimension(rng),
        float(10 ** rng.uniform(-3, 2)),
        draws.batch(rng),
    )
    A, K, b = convex(rng, d), convex(rng, d), rng.standard_normal(d)
    x, w = draws.cloud(rng, (*batch, n, d)), draws.weights(rng, (n,), zeros=False)
    mass = draws.known(w, (n,)).astype(float)
    c = np.einsum("i,...id->...d", mass, x)[..., None, :]
    eye = np.eye(d)
    mean = (c - b) @ np.linalg.inv(eye + tau * A) + b
    y = (x - c) @ np.linalg.inv(eye + tau * (A + K)) + mean
    weight = "" if w is None else ", w"
    size = 1 + abs(x).max() + abs(b).max()
    way = str(
        draws.pick(
            rng,
            (
                f"of.jko_step(mu, F, {tau!r}).mu.x",
                f"of.flow(mu, field, of.JKO(), t1={tau!r}, dt={tau!r}).final.x",
                f"of.steppers.minimise(mu, of.steppers.MovementProblem(F, of.Wasserstein(), {tau!r})).mu.x",
            ),
        )
    )
    return Case(
        f"mu, F = of.Particles(x{weight}), of.QuadraticPotential(A, b) + of.QuadraticInteraction(K)\n"
        f"field = of.SteepestDescent(F, of.Wasserstein())\n{way}",
        {"x": x, "A": A, "K": K, "b": b} | ({} if w is None else {"w": w}),
        lambda: y,
        lambda: SOLVED * size * 30 / max(1e-12, mass.min()) ** 0.5,
    )


@family
def split_and_extrapolated_steps(rng: Rng) -> Case:
    """Euler for one part, then the implicit step for the other; twice two half steps less a whole one."""
    n, d, tau = draws.size(rng), draws.dimension(rng), float(10 ** rng.uniform(-3, 0))
    A, B = convex(rng, d), convex(rng, d)
    x, eye = draws.cloud(rng, (n, d)), np.eye(d)
    whole, half = (np.linalg.inv(eye + t * A) for t in (tau, tau / 2))
    forward = (x - tau * x @ B) @ whole
    extrapolated = 2 * x @ half @ half - x @ whole
    size = (1 + abs(x).max()) * (1 + tau * abs(B).max() * d)
    return Case(
        "mu, F, G = of.Particles(x), of.QuadraticPotential(A), of.QuadraticPotential(B)\n"
        "one, both = (of.SteepestDescent(E, of.Wasserstein()) for E in (F, F + G))\n"
        f"split = of.flow(mu, both, of.ForwardBackward(G), t1={tau!r}, dt={tau!r})\n"
        f"better = of.flow(mu, one, of.Extrapolated(of.JKO()), t1={tau!r}, dt={tau!r})\n"
        "split.final.x, better.final.x",
        {"x": x, "A": A, "B": B},
        lambda: (forward, extrapolated),
        lambda: SOLVED * size * 10,
    )


@family
def steps_of_gaussians(rng: Rng) -> Case:
    """(I + tau A) m' = m + tau A b, and x -> (I + tau A) x - (tau / beta) S'^-1 x leads from S' back to S."""
    d, tau, beta = draws.dimension(rng), float(10 ** rng.uniform(-2, 1)), float(rng.uniform(0.5, 5))
    A, S, m, b = convex(rng, d), convex(rng, d), *rng.standard_normal((2, d))
    mean = np.linalg.solve(np.eye(d) + tau * A, m + tau * A @ b)
    return Case(
        f"F = of.QuadraticPotential(A, b) + of.Entropy() / {beta!r}\n"
        f"move = of.jko_step(of.Gaussian(m, cov=S), F, {tau!r})\n"
        "new = move.mu.cov\n"
        f"T = torch.eye({d}) + {tau!r} * torch.from_numpy(A) - {tau!r} / {beta!r} * torch.linalg.inv(new)\n"
        "move.mu.mean, T @ new @ T.mT, move.status",
        {"A": A, "S": S, "m": m, "b": b},
        lambda: (mean, S),
        lambda: (1e-10 * (1 + abs(m).max() + abs(b).max()), 1e-7 * (1 + tau) * abs(S).max() * 30),
    )


@family
def steps_of_quantiles(rng: Rng) -> Case:
    """sum_i m_i log(m_i / (x_i+1 - x_i)) + |x - y|^2 / (2 tau) in the norm of L2, by Newton's method."""
    n, tau, a = int(rng.integers(1, 7)), float(10 ** rng.uniform(-2, 1)), float(rng.uniform(0, 2))
    y = np.cumsum(rng.uniform(0.2, 1, n + 1))
    s = np.concatenate([[0.0], np.cumsum(rng.uniform(0.2, 1, n))])
    s = s / s[-1]
    mass = np.diff(s)
    gram = np.zeros((n + 1, n + 1))
    for i, m in enumerate(mass):
        gram[i : i + 2, i : i + 2] += m / 6 * np.array([[2, 1], [1, 2]])
    D = np.diff(np.eye(n + 1), axis=0)
    x = y.copy()
    for _ in range(200):
        gap = D @ x
        slope = -D.T @ (mass / gap) + gram @ (x - y) / tau + a * gram @ x
        hessian = D.T @ np.diag(mass / gap**2) @ D + gram / tau + a * gram
        step = np.linalg.solve(hessian, -slope)
        decrement = float(np.sqrt(max(-slope @ step, 0.0)))
        x = x + step / (1 + decrement / np.sqrt(mass.min()))  # self-concordant: the step stays inside
        if decrement < 1e-15:
            break
    return Case(
        f"F = of.Entropy() + of.QuadraticPotential([[{a!r}]])\n"
        f"move = of.jko_step(of.Quantiles(y, s), F, {tau!r})\nmove.mu.x, move.status",
        {"y": y, "s": s},
        lambda: x,
        lambda: 1e-7 * (1 + abs(y).max()) * (1 + tau),
    )


@family
def entropic_steps(rng: Rng) -> Case:
    """A potential alone: P_ij = mu_i K_ij e_j / sum_k K_ik e_k, e = exp(-2 tau U / eps), in closed form."""
    n, tau, eps = (
        int(rng.integers(2, 10)),
        float(10 ** rng.uniform(-2, 0)),
        float(10 ** rng.uniform(-1.5, 0.5)),
    )
    axis = (np.arange(n) + 0.5) / n
    rho = rng.uniform(0.2, 1, n)
    rho = rho / rho.mean()
    c = float(rng.normal())
    s = -((axis[:, None] - axis) ** 2).astype(LONG) / eps - 2 * tau * c * axis**2 / eps
    P = np.exp(s - s.max(1, keepdims=True))
    P = P / P.sum(1, keepdims=True) * rho[:, None]
    return Case(
        f"F = of.Potential(lambda x: {c!r} * x.square().sum(-1))\n"
        "field = of.SteepestDescent(F, of.Wasserstein())\n"
        f"of.flow(of.Grid(rho, [axis]), field, of.EntropicJKO({eps!r}), t1={tau!r}, "
        f"dt={tau!r}).final.density",
        {"rho": rho, "axis": axis},
        lambda: P.sum(0),
        lambda: 1e-6,
    )


@family
def steps_of_one_particle(rng: Rng) -> Case:
    """One token in a convex potential |x|^4 / 4 + |x - b|^2 / 2, by bisection along the ray to the answer."""
    d, tau = draws.dimension(rng), float(10 ** rng.uniform(-2, 1))
    b, x = rng.standard_normal((2, d))
    push = x + tau * b  # (1 + tau + tau |y|^2) y = x + tau b
    low, high = 0.0, float(np.linalg.norm(push))
    target = high
    for _ in range(200):
        middle = (low + high) / 2
        if (1 + tau + tau * middle**2) * middle < target:
            low = middle
        else:
            high = middle
    y: Any = push / (1 + tau + tau * low**2)
    return Case(
        "quartic = of.Potential(lambda x: x.square().sum(-1).square() / 4)\n"
        "F = quartic + of.QuadraticPotential(np.eye(len(b)), b)\n"
        f"move = of.jko_step(of.Particles(x[None]), F, {tau!r})\nmove.mu.x[0], move.status",
        {"x": x, "b": b},
        lambda: y,
        lambda: 1e-7 * (1 + abs(push).max()),
    )
