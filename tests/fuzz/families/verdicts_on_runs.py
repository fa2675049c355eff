"""How runs end: stiff systems against powers of stability functions, poles against their known times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz import draws
from tests.fuzz.draws import LONG, Array, Rng
from tests.fuzz.engine import Case, family, slow_family
from tests.fuzz.families.flows import TABLEAUS, runge_kutta

FIXED = tuple(TABLEAUS)
TERMS = {"of.Euler()": 2, "of.Heun()": 3, "of.RK4()": 5}  # of e^z that R(z) has
LIMIT = {"of.Euler()": 2.0, "of.Heun()": 2.0, "of.RK4()": 2.785}  # |z| on the negative axis, where |R(z)| = 1
SEEN = 1e3  # growth after which steps beyond half of that limit must be told from the equation
ADAPTIVE = (
    "of.Dopri5()",
    "of.Dopri5(1e-8, 1e-10)",
    "of.Rosenbrock()",
)  # tighter, it takes 10^4 steps to a pole


def stiff(rng: Rng, d: int) -> Array:
    """Normal, with eigenvalues to the left of the imaginary axis, moduli from 0.01 to 1."""
    A, k = np.zeros((d, d)), 0
    while k < d:
        size, angle = 10 ** rng.uniform(-2, 0), rng.uniform(0, 0.45 * np.pi)
        if k + 1 < d and draws.chance(rng, 0.5):
            a, b = -size * np.cos(angle), size * np.sin(angle)
            A[k : k + 2, k : k + 2], k = [[a, b], [-b, a]], k + 2
        else:
            A[k, k], k = -size, k + 1
    q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return np.asarray(q @ A @ q.T)


def amplification(z: Array, name: str) -> Array:
    """R(z) = sum_k z^k / k! of a matrix, up to the order."""
    total = term = np.eye(len(z), dtype=LONG)
    for k in range(1, TERMS[name]):
        term = term @ z / k
        total = total + term
    return np.asarray(total)


@family
def stiff_linear_systems(rng: Rng) -> Case:
    """x' = Ax decays. R(dt A)^n x0 is what a run may say unless it has grown, and then it must not."""
    d, n, name = int(rng.integers(1, 5)), int(rng.integers(1, 4)), str(draws.pick(rng, FIXED))
    A, dt, steps = stiff(rng, d), float(10 ** rng.uniform(-1.5, 1.2)), int(rng.integers(2, 60))
    descent = draws.chance(rng, 0.3)
    A = (A + A.T) / 2 if descent else A
    x, R = rng.standard_normal((n, d)), amplification(dt * A.astype(LONG), name)
    ends = x.astype(LONG) @ np.linalg.matrix_power(R.T, steps)
    grown = abs(ends).max() / abs(x).max()
    stable = np.linalg.norm(R.astype(float), 2) <= 1
    pull = "of.SteepestDescent(of.QuadraticPotential(-A), of.Wasserstein())"
    field = pull if descent else "of.Perceptron(A, np.eye(len(A)), activation=None)"
    named = grown > SEEN and dt * abs(np.linalg.eigvals(A)).max() > LIMIT[name] / 2
    told = "['ok', 'blow_up', 'overflow', 'invalid']" if named else "['blow_up', 'overflow', 'invalid']"
    told = "['unstable', 'blow_up', 'overflow', 'invalid']" if stable else told
    last = "" if named else ", run.final.x, run.status"
    return Case(
        f"run = of.flow(of.Particles(x), {field}, {name}, t1={steps * dt!r}, dt={dt!r}, "
        f"on_failure='return')\nrun.status in {told}{last}",
        {"x": x, "A": A},
        lambda: (0.0,) if named else (0.0, ends),
        lambda: (0.0,) if named else (0.0, 1e-14 * steps * 2 * d * (1 + grown) * abs(x).max()),
    )


class Equation(NamedTuple):
    """y' = c f(y): its code, as numpy has it, and when it ends or where it is at time t."""

    code: str
    rate: Callable[[Array], Array]
    known: Callable[..., Any]
    start: tuple[float, float]


POLES = (  # the time of the pole for c = 1
    Equation("torch.square", np.square, lambda y: 1 / y, (0.3, 3)),
    Equation("lambda y: y**3", lambda y: y**3, lambda y: 1 / (2 * y**2), (0.3, 3)),
    Equation("lambda y: 1 + y**2", lambda y: 1 + y**2, lambda y: np.pi / 2 - np.arctan(y), (-2, 2)),
    Equation("torch.exp", np.exp, lambda y: np.exp(-y), (-1, 1)),
    Equation("lambda y: y.abs() ** 1.5", lambda y: abs(y) ** 1.5, lambda y: 2 / y**0.5, (0.3, 3)),
)
FOREVER = (  # y(t) for c = 1
    Equation("torch.tanh", np.tanh, lambda y, t: np.arcsinh(np.sinh(y) * np.exp(t)), (-2, 2)),
    Equation("torch.sin", np.sin, lambda y, t: 2 * np.arctan(np.tan(y / 2) * np.exp(t)), (-3, 3)),
    Equation("lambda y: (-y).exp()", lambda y: np.exp(-y), lambda y, t: np.log(np.exp(y) + t), (-3, 2)),
    Equation("lambda y: -(y**3)", lambda y: -(y**3), lambda y, t: y / np.sqrt(1 + 2 * t * y**2), (-10, 10)),
    Equation(
        "lambda y: (1 + y**2).sqrt()",
        lambda y: np.sqrt(1 + y**2),
        lambda y, t: np.sinh(np.arcsinh(y) + t),
        (-3, 3),
    ),
)


class Posed(NamedTuple):
    """An equation for x, where y = ax + b, as code; particles of one member or members of one particle."""

    code: str
    x: Array
    y: Array
    c: float
    a: float
    b: float

    def back(self, y: Array) -> Array:
        return np.asarray((y - self.b) / self.a)


def posed(rng: Rng, one: Equation) -> Posed:
    a, b = float(rng.uniform(0.5, 2) * rng.choice([-1, 1])), float(rng.normal())
    c = float(rng.uniform(0.3, 3))
    shape = draws.pick(rng, ((1, 1), (2, 1), (3, 1), (2, 1, 1), (3, 1, 1)))
    y = rng.uniform(*one.start, shape)
    field = f"of.Perceptron([[{c / a!r}]], [[{a!r}]], [{b!r}], {one.code})"
    return Posed(field, (y - b) / a, y, c, a, b)


def recursion(one: Equation, what: Posed, name: str, dt: float, steps: int) -> Array:
    """The same steps in extended precision."""
    y = what.y.astype(LONG)
    for _ in range(steps):
        y = runge_kutta(lambda y: LONG(what.c) * one.rate(y), y, LONG(dt), name)
    return y


@slow_family
def poles_in_fixed_steps(rng: Rng) -> Case:
    """Times of poles are within their error bars; no run that passes one is ok, overflows or is invalid."""
    one, name = draws.pick(rng, POLES), str(draws.pick(rng, FIXED))
    what = posed(rng, one)
    when = (one.known(what.y) / what.c)[..., 0].min(-1)  # of the first particle of each member
    dt, t1 = float(when.min() * 10 ** rng.uniform(-2, -1)), float(when.max() * rng.uniform(1.5, 3))
    return Case(
        f"run = of.flow(of.Particles(x), {what.code}, {name}, t1={t1!r}, dt={dt!r}, on_failure='return')\n"
        "blown, bar = torch.tensor(np.equal(run.status, 'blow_up')), run.blow_up_error\n"
        "miss = ((run.blow_up_time - torch.from_numpy(np.asarray(when))).abs() - bar).clamp(min=0)\n"
        "np.isin(run.status, ['ok', 'overflow', 'invalid']), torch.where(blown, miss, 0.0), "
        "torch.where(blown, (bar / torch.from_numpy(np.asarray(when)) - 0.25).clamp(min=0), 0.0), "
        "np.where(blown, 'ok', run.status)",
        {"x": what.x, "when": np.asarray(when)},
        lambda: (np.zeros(when.shape),) * 3,
        lambda: (0.0, 1e-12, 0.0),
    )


@family
def runs_that_end_before_a_pole(rng: Rng) -> Case:
    """Up to 0.8 of the way they are their recursion, and nothing is said of a pole."""
    one, name = draws.pick(rng, POLES), str(draws.pick(rng, FIXED))
    what, steps = posed(rng, one), int(rng.integers(16, 64))
    dt = float(0.8 * (one.known(what.y) / what.c).min() / steps)
    size = float(abs(what.back(recursion(one, what, name, dt, steps))).max() + abs(what.b / what.a))
    return Case(
        f"run = of.flow(of.Particles(x), {what.code}, {name}, t1={steps * dt!r}, dt={dt!r}, "
        "on_failure='return')\nrun.final.x, np.not_equal(run.status, 'ok')",
        {"x": what.x},
        lambda: (what.back(recursion(one, what, name, dt, steps)), np.zeros(what.x.shape[:-2])),
        lambda: (1e-11 * (1 + size), 0.0),
    )


@slow_family
def runs_without_poles(rng: Rng) -> Case:
    """No step is so long that a pole is seen where there is none, nor a velocity that is no number."""
    one, name = draws.pick(rng, FOREVER), str(draws.pick(rng, FIXED))
    what, dt, steps = posed(rng, one), float(10 ** rng.uniform(-2, 0.5)), int(rng.integers(5, 100))
    gentle = dt * what.c <= 0.3 and "y**3" not in one.code
    truth = recursion(one, what, name, dt, steps) if gentle else what.y
    size = float(abs(what.back(truth)).max() + abs(what.b / what.a))
    state = "run.final.x" if gentle else "torch.zeros(x.shape)"
    return Case(
        f"run = of.flow(of.Particles(x), {what.code}, {name}, t1={steps * dt!r}, dt={dt!r}, "
        f"on_failure='return')\nnp.isin(run.status, ['blow_up', 'invalid']), {state}, run.status",
        {"x": what.x},
        lambda: (np.zeros(what.x.shape[:-2]), what.back(truth) if gentle else np.zeros(what.x.shape)),
        lambda: (0.0, 1e-10 * (1 + size) * (1 + size / np.maximum(1e-9, abs(what.y).min()))),
    )


@slow_family
def poles_in_adaptive_steps(rng: Rng) -> Case:
    """Dopri5 and Rosenbrock end at the pole; Riccati equations, which the latter solves exactly, included."""
    one, name = draws.pick(rng, POLES), str(draws.pick(rng, ADAPTIVE))
    what = posed(rng, one)
    when = (one.known(what.y) / what.c)[..., 0].min(-1)
    t1 = float(when.max() * rng.uniform(1.2, 3))
    return Case(
        f"run = of.flow(of.Particles(x), {what.code}, {name}, t1={t1!r}, "
        "on_failure='return')\nrun.blow_up_time, np.not_equal(run.status, 'blow_up')",
        {"x": what.x},
        lambda: (when, np.zeros(when.shape)),
        lambda: ((1e-3 if "Rosenbrock()" in name else 1e-4) * when, 0.0),
    )


@slow_family
def adaptive_runs_without_poles(rng: Rng) -> Case:
    """They arrive, and where the formula says."""
    one, name = draws.pick(rng, FOREVER), str(draws.pick(rng, ADAPTIVE))
    what, t = posed(rng, one), float(10 ** rng.uniform(-1, 1))
    ends = what.back(one.known(what.y, what.c * t))
    size = 1 + abs(ends) + abs(what.b / what.a)
    return Case(
        f"run = of.flow(of.Particles(x), {what.code}, {name}, t1={t!r}, on_failure='return')\n"
        "run.final.x, np.not_equal(run.status, 'ok')",
        {"x": what.x},
        lambda: (ends, np.zeros(what.x.shape[:-2])),
        lambda: (1e-4 * size * (1 + abs(what.c) * t), 0.0),
    )
