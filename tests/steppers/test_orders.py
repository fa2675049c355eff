"""Orders of convergence, measured against references computed by scipy in numpy alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import otflow as of
from tests.samples import normal, slope, unit

Array = np.ndarray
ORDERS = {of.Euler: 1, of.Heun: 2, of.RK4: 4, of.Dopri5: 5}
COARSEST = {of.Euler: 32, of.Heun: 16, of.RK4: 8}  # steps in [0, 1]; then four halvings of dt
JUMP = 0.37

# Values that turn quickly: the leading term of the error then stands well above rounding and higher terms.
TURN = np.array([[-0.3, 4.0], [-4.0, -0.3]])
Q0, Q1, K0, K1 = (0.6 * normal(2, 2, seed=s) for s in range(4))


def smooth(lib: Any, number: Callable[[Array], Any]) -> list[Callable[[Any], Any]]:
    """Q, K and V as smooth functions of time, in numpy or in torch."""
    a, b, c, d, turn = map(number, (Q0, Q1, K0, K1, TURN))
    return [
        lambda t: a + 0.5 * lib.sin(t) * b,
        lambda t: c + 0.5 * lib.cos(t) * d,
        lambda t: turn + 0.5 * lib.sin(t) * b,
    ]


def softmax(x: Array, Q: Array, K: Array, V: Array) -> Array:
    """Softmax attention, straight from its formula."""
    p = np.exp((x @ Q.T) @ (x @ K.T).T)
    return (p / p.sum(-1, keepdims=True)) @ (x @ V.T)


def reference(rhs: Callable[[float, float, Array], Array], y0: Array, *breaks: float) -> Array:
    """The solution at the last break, integrated piece by piece with DOP853."""
    y = np.asarray(y0, dtype=float).ravel()
    for a, b in itertools.pairwise(breaks):
        piece = partial(
            rhs, (a + b) / 2
        )  # the middle says which piece of a discontinuous right-hand side is meant
        y = solve_ivp(piece, (a, b), y, method="DOP853", rtol=1e-13, atol=1e-15).y[:, -1]
    return y


@dataclass(frozen=True)
class Problem:
    mu0: of.Measure
    field: of.VelocityField
    exact: Array  # coordinates at t = 1, flat
    coarsest: int  # steps of Dopri5, whose range between higher terms and rounding is the narrowest


def particles() -> Problem:
    x = normal(5, 2)

    def rhs(_: float, t: float, y: Array) -> Array:
        return softmax(y.reshape(5, 2), *(f(t) for f in smooth(np, np.asarray))).ravel()

    field = of.SoftmaxAttention(*smooth(torch, torch.tensor))
    return Problem(of.Particles(x), field, reference(rhs, x, 0.0, 1.0), 16)


def sphere() -> Problem:
    x, Q, K = unit(6, 3, seed=4), 0.5 * normal(3, 3, seed=94), 0.5 * normal(3, 3, seed=124)
    V = np.array([[-0.2, -3.5, 4.6], [3.7, 0.4, -0.7], [-5.3, 1.1, -0.1]])

    def rhs(_: float, t: float, y: Array) -> Array:
        z = y.reshape(6, 3)
        v = softmax(z, Q, K, V)
        return (v - (z * v).sum(-1, keepdims=True) * z).ravel()

    mu0, field = of.Particles(x, space=of.Sphere()), of.SoftmaxAttention(Q, K, V)
    return Problem(mu0, field, reference(rhs, x, 0.0, 1.0), 16)


def gaussian_attention() -> Problem:
    m, R = normal(2, seed=2), np.eye(2) + 0.3 * normal(2, 2, seed=2)
    Q, K, V = 0.5 * normal(2, 2, seed=32), 0.5 * normal(2, 2, seed=42), TURN

    def rhs(_: float, t: float, y: Array) -> Array:
        m, R = y[:2], y[2:].reshape(2, 2)
        B = V @ (R @ R.T) @ K.T @ Q  # x -> V (m + S A x), A = K^T Q
        return np.concatenate([V @ m + B @ m, (B @ R).ravel()])

    y0 = np.concatenate([m, R.ravel()])
    return Problem(of.Gaussian(m, root=R), of.SoftmaxAttention(Q, K, V), reference(rhs, y0, 0.0, 1.0), 12)


def gaussian_descent() -> Problem:
    """A periodic potential and quadratic repulsion: E sin = sin(m) exp(-r^2 / 2), likewise for cos."""
    energy = of.Potential(lambda x: torch.cos(x).sum(-1)) - 1.5 * of.Interaction(
        lambda x, y: (x - y).square().sum(-1) / 2
    )

    def rhs(_: float, t: float, y: Array) -> Array:
        (m, r), damping = y, np.exp(-(y[1] ** 2) / 2)
        return np.array([np.sin(m) * damping, (np.cos(m) * damping + 1.5) * r])

    y0 = np.array([0.8, 0.2])
    field = of.SteepestDescent(energy, of.Wasserstein())
    return Problem(of.Gaussian(y0[:1], root=y0[1:, None]), field, reference(rhs, y0, 0.0, 1.0), 8)


def jumping_layers() -> Problem:
    x, Q, K = normal(5, 2), Q0, K0
    V = np.stack([TURN, 0.5 * TURN.T])

    def rhs(inside: float, t: float, y: Array) -> Array:
        return softmax(y.reshape(5, 2), Q, K, V[int(inside > JUMP)]).ravel()

    field = of.SoftmaxAttention(Q, K, of.Layers(V, edges=[0.0, JUMP, 1.0]))
    return Problem(of.Particles(x), field, reference(rhs, x, 0.0, JUMP, 1.0), 12)


PROBLEMS = {
    "particles": particles,
    "sphere": sphere,
    "gaussian attention": gaussian_attention,
    "gaussian descent": gaussian_descent,
    "jumping layers": jumping_layers,
}


@cache
def problem(name: str) -> Problem:
    return PROBLEMS[name]()


def flat(mu: of.Measure) -> Array:
    return np.concatenate([c.numpy().ravel() for c in mu.coords])


def stepper(kind: type[of.Stepper]) -> of.Stepper:
    return of.Dopri5(adaptive=False) if kind is of.Dopri5 else kind()


def errors(case: Problem, kind: type[of.Stepper]) -> tuple[Array, Array]:
    dts = 1.0 / (COARSEST.get(kind, case.coarsest) * 2.0 ** np.arange(5))
    ends = [of.flow(case.mu0, case.field, stepper(kind), t1=1.0, dt=dt, save_at=[1.0]).final for dt in dts]
    return dts, np.array([np.abs(flat(mu) - case.exact).max() for mu in ends])


@pytest.mark.thorough
@pytest.mark.slow(
    but_for=[
        "*-particles",
        "Heun-sphere",
        "RK4-gaussian attention",
        "Dopri5-gaussian attention",
        "*-jumping layers",
    ]
)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("kind", ORDERS, ids=lambda kind: kind.__name__)
def test_a_stepper_has_its_order_on_every_kind_of_measure_and_across_jumps(
    kind: type[of.Stepper], name: str
) -> None:
    dts, found = errors(problem(name), kind)
    assert found.min() > 2e-14, "rounding would spoil the slope"
    assert slope(dts, found) == pytest.approx(ORDERS[kind], abs=0.15)
