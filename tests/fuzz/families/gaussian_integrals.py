"""Integrals against Gaussians in up to three dimensions: energies, their slopes and projections of fields.

Functions of a.x have means in closed form, for s = a.x is normal. As functions of the mean of s they have the
derivatives E f' and E f'', by Stein's identity, whether f has a derivative or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from tests.fuzz import draws
from tests.fuzz.draws import Array, Rng
from tests.fuzz.engine import Case, family, slow_family

RTOL = 1e-6  # of energies and projections, relative to integrals of absolute values, unless the user says
ORDER = 2  # by which those of |f z| and |f (zz - 1)| may exceed that of |f| (1 + |a.z|)^2, in 3 dimensions
Mean = Callable[[Any, Any], tuple[Any, Any, Any]]


class Ridge(NamedTuple):
    """f(s) as code of s; E f(s), E f'(s) and E f''(s) for s ~ N(mean, sigma^2)."""

    code: str
    values: Callable[[Array], Array]
    means: Mean


def bell(x: Any) -> Any:
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def exponential(m: Any, s: Any) -> tuple[Any, Any, Any]:
    value = np.exp(m + s**2 / 2)
    return value, value, value


def cosine(m: Any, s: Any) -> tuple[Any, Any, Any]:
    damp = np.exp(-(s**2) / 2)
    return damp * np.cos(m), -damp * np.sin(m), -damp * np.cos(m)


def bump(m: Any, s: Any) -> tuple[Any, Any, Any]:
    wide = 1 + s**2
    value = np.exp(-(m**2) / (2 * wide)) / np.sqrt(wide)
    return value, -m / wide * value, (m**2 / wide**2 - 1 / wide) * value


def quartic(m: Any, s: Any) -> tuple[Any, Any, Any]:
    return m**4 + 6 * m**2 * s**2 + 3 * s**4, 4 * m**3 + 12 * m * s**2, 12 * (m**2 + s**2)


def cubic(m: Any, s: Any) -> tuple[Any, Any, Any]:
    return m**3 + 3 * m * s**2 - m, 3 * (m**2 + s**2) - 1, 6 * m


def jump(m: Any, s: Any) -> tuple[Any, Any, Any]:
    return ndtr(m / s), bell(m / s) / s, -m / s**3 * bell(m / s)


def relu(m: Any, s: Any) -> tuple[Any, Any, Any]:
    return m * ndtr(m / s) + s * bell(m / s), ndtr(m / s), bell(m / s) / s


def modulus(m: Any, s: Any) -> tuple[Any, Any, Any]:
    value, first, second = relu(m, s)
    return 2 * value - m, 2 * first - 1, 2 * second


SMOOTH = (
    Ridge("s**4", lambda s: s**4, quartic),
    Ridge("s**3 - s", lambda s: s**3 - s, cubic),
    Ridge("s.exp()", np.exp, exponential),
    Ridge("s.cos()", np.cos, cosine),
    Ridge("torch.exp(-s.square() / 2)", lambda s: np.exp(-(s**2) / 2), bump),
)
KINKED = (
    Ridge("s.relu()", lambda s: np.maximum(s, 0), relu),
    Ridge("s.abs()", abs, modulus),
    Ridge("(s > 0).to(s.dtype)", lambda s: 1.0 * (s > 0), jump),
)


class Law(NamedTuple):
    """N(m, R R^T), a direction a and a shift b."""

    m: Array
    R: Array
    a: Array
    b: float

    @staticmethod
    def drawn(rng: Rng, d: int) -> Law:
        R = np.linalg.cholesky(draws.spd(rng, d, d, condition=10.0)) * rng.uniform(0.3, 1)
        a = rng.standard_normal(d)
        return Law(
            rng.normal(size=d) * 0.7,
            R,
            a / np.linalg.norm(a) * draws.pick(rng, (0.3, 1.0, 2.0)),
            float(rng.normal()),
        )

    def near(self, rng: Rng, one: Ridge) -> Law:
        """With its kink within four deviations: what is further out may be met by no node at all."""
        mean, sigma = self.along
        return self._replace(b=self.b - mean + float(rng.uniform(-4, 4)) * sigma) if one in KINKED else self

    @property
    def along(self) -> tuple[float, float]:
        """Mean and deviation of a.x + b."""
        return float(self.a @ self.m + self.b), float(np.linalg.norm(self.R.T @ self.a))

    def size(self, f: Callable[[Array], Array], power: int = 0) -> float:
        """E |f| (1 + |z|)^power, for bounds."""
        mean, sigma = self.along
        z = np.linspace(-16, 16, 8001)
        terms = abs(f(mean + sigma * z)) * (1 + abs(z)) ** power * bell(z)
        return float(terms.sum() * (z[1] - z[0]))

    def slack(self, f: Callable[[Array], Array]) -> float:
        """What the slopes may be off by, given that integrals of f z and f (zz - 1) are known to RTOL."""
        return RTOL * ORDER * self.size(f, 2) * (1 + np.linalg.norm(np.linalg.inv(self.R), 2))

    @property
    def values(self) -> dict[str, Array]:
        return {"m": self.m, "R": self.R, "a": self.a}


def potential(law: Law, one: Ridge) -> Case:
    """U = f(a.x + b): the mean moves with -a E f', the root with -a a^T R E f''."""
    value, first, second = one.means(*law.along)
    return Case(
        f"def U(x):\n    s = x @ torch.from_numpy(a) + {law.b!r}\n    return {one.code}\n"
        "mu, F = of.Gaussian(m, root=R), of.Potential(U)\n"
        "v = of.SteepestDescent(F, of.Wasserstein())(0.0, mu)\nF(mu), v[0], v[1]",
        law.values,
        lambda: (value, -first * law.a, -second * np.outer(law.a, law.a) @ law.R),
        lambda: (RTOL * law.size(one.values) + 1e-13, law.slack(one.values), law.slack(one.values)),
    )


@family
def smooth_potentials_of_gaussians(rng: Rng) -> Case:
    """Polynomials, exponentials, waves and bumps across any direction, in one to three dimensions."""
    return potential(Law.drawn(rng, int(rng.integers(1, 4))), draws.pick(rng, SMOOTH))


@slow_family
def potentials_with_kinks_of_gaussians(rng: Rng) -> Case:
    """Half spaces, relu and |s|, on the line and in the plane; in space they may take half a minute."""
    one = draws.pick(rng, KINKED)
    return potential(Law.drawn(rng, int(rng.integers(1, 3))).near(rng, one), one)


@slow_family
def waves_that_grow(rng: Rng) -> Case:
    """Re exp(c.x) for a complex c, which is no function of one a.x: E = exp(c.m + c.S c / 2)."""
    law = Law.drawn(rng, int(rng.integers(1, 4)))
    k = float(draws.pick(rng, (1, 3))) * rng.standard_normal(len(law.m))
    c = law.a + 1j * k
    mean = np.exp(c @ law.m + c @ law.R @ law.R.T @ c / 2)
    size = float(np.exp(law.a @ law.m) * law._replace(m=0 * law.m, b=0.0).size(np.exp, 2))
    slack = RTOL * ORDER * size * (1 + np.linalg.norm(np.linalg.inv(law.R), 2))
    return Case(
        "wave = lambda x: (x @ torch.from_numpy(a)).exp() * (x @ torch.from_numpy(k)).cos()\n"
        "mu, F = of.Gaussian(m, root=R), of.Potential(wave)\n"
        "v = of.SteepestDescent(F, of.Wasserstein())(0.0, mu)\nF(mu), v[0], v[1]",
        {**law.values, "k": k},
        lambda: (mean.real, -(c * mean).real, -(np.outer(c, c) * mean).real @ law.R),
        lambda: (RTOL * size, slack, slack),
    )


@slow_family
def interactions_of_gaussians(rng: Rng) -> Case:
    """f(a.(x - y)) / 2: differences are N(0, 2S), and only the root feels it, by -a a^T R E f''."""
    law = Law.drawn(rng, int(rng.integers(1, 4)))
    law = law._replace(m=0 * law.m, R=law.R * np.sqrt(2), b=0.0)  # the law of differences
    even = [SMOOTH[k] for k in (0, 3, 4)] + ([KINKED[1]] if len(law.m) < 3 else [])
    one = draws.pick(rng, even)
    value, _, second = one.means(*law.along)
    R, m = law.R / np.sqrt(2), rng.standard_normal(len(law.m))
    return Case(
        f"def W(x, y):\n    s = (x - y) @ torch.from_numpy(a)\n    return {one.code}\n"
        "mu, F = of.Gaussian(m, root=R), of.Interaction(W)\n"
        "v = of.SteepestDescent(F, of.Wasserstein())(0.0, mu)\nF(mu), v[0], v[1]",
        {"m": m, "R": R, "a": law.a},
        lambda: (value / 2, 0 * m, -second * np.outer(law.a, law.a) @ R),
        lambda: (RTOL * law.size(one.values) + 1e-13, law.slack(one.values), law.slack(one.values)),
    )


@family
def projections_of_fields_of_ones_own(rng: Rng) -> Case:
    """v(x) = f(a.x + b) u moves the mean by E f u and the root by E f' u a^T R, where it is not refused."""
    law = Law.drawn(rng, int(rng.integers(1, 4)))
    one = draws.pick(rng, SMOOTH * 3 + KINKED)
    law = law.near(rng, one)
    u = rng.standard_normal(len(law.m))
    value, first, _ = one.means(*law.along)
    slack = RTOL * ORDER * law.size(one.values, 1) * np.linalg.norm(u)
    return Case(
        "class Push(of.fields.TokenField):\n"
        "    def velocity_at(self, t, mu, points, label, carry):\n"
        f"        s = points @ torch.from_numpy(a) + {law.b!r}\n"
        f"        return ({one.code})[..., None] * torch.from_numpy(u), None\n"
        "mu = of.Gaussian(m, root=R)\n"
        "v = of.GaussianProjection(Push())(0.0, mu)\nv[0], v[1]",
        {**law.values, "u": u},
        lambda: (value * u, first * np.outer(u, law.a) @ law.R),
        lambda: slack,
    )


@family
def projections_of_perceptrons(rng: Rng) -> Case:
    """W act(Ux + b) neuron by neuron, with kinks at zero or none, to rounding."""
    law = Law.drawn(rng, int(rng.integers(1, 4)))
    one = draws.pick(rng, (*SMOOTH, *KINKED[:2]))
    W, U, b = (
        rng.standard_normal((len(law.m), 3)),
        rng.standard_normal((3, len(law.m))) / 2,
        rng.normal(size=3),
    )
    laws = [law._replace(a=a, b=float(shift)) for a, shift in zip(U, b, strict=True)]
    value, first, _ = np.array([one.means(*neuron.along) for neuron in laws]).T
    size = max(neuron.size(one.values) for neuron in laws) * abs(W).max() * 10
    return Case(
        f"field = of.Perceptron(W, U, b, lambda s: {one.code})\n"
        "v = of.GaussianProjection(field)(0.0, of.Gaussian(m, root=R))\nv[0], v[1]",
        {"m": law.m, "R": law.R, "W": W, "U": U, "b": b},
        lambda: (W @ value, W @ (first[:, None] * U) @ law.R),
        lambda: 1e-11 * size,
    )
