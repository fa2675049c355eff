"""Closed forms of diffusion, aggregation and porous media, by quadrature, root finding and optimality."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
from scipy.integrate import quad
from scipy.optimize import brentq

from tests.fuzz import draws
from tests.fuzz.draws import Rng
from tests.fuzz.engine import Case, family

C = "of.closed_forms"


@family
def porous_media(rng: Rng) -> Case:
    """Profiles have the mass, solve the equation, and scale as they should."""
    m, d, mass = float(rng.uniform(1.3, 4)), int(rng.integers(1, 5)), float(rng.uniform(0.3, 3))
    t, r = float(10 ** rng.uniform(-2, 2)), float(rng.uniform(0, 1.2))
    p, q = 1 / (m - 1), d * (m - 1) + 2
    k = (m - 1) / (2 * m * q)
    sphere = 2 * math.pi ** (d / 2) / math.gamma(d / 2)

    def held(constant: float) -> float:
        edge = math.sqrt(constant / k)
        return (
            sphere
            * quad(
                lambda a: math.cos(a) ** (2 * p + 1) * math.sin(a) ** (d - 1) * constant**p * edge**d,
                0,
                math.pi / 2,
                epsabs=1e-14,
                epsrel=1e-13,
            )[0]
        )

    constant = brentq(lambda c: held(c) - mass, 1e-8, 1e4, xtol=1e-15, rtol=1e-14)
    R, edge = t ** (1 / q), math.sqrt(constant / k)
    at = r * R * edge
    rho = R**-d * max(constant - k * (at / R) ** 2, 0.0) ** p
    tau = float(10 ** rng.uniform(-3, 1))
    step = brentq(lambda s: s - R - tau / q * s ** (1 - q), R, R + 10 + tau, xtol=1e-15, rtol=1e-14)
    loose = 1e-11 * (1 + rho) * (1 + p)
    return Case(
        f"{C}.barenblatt_constant({m!r}, {d}, mass={mass!r}), {C}.barenblatt({at!r}, {t!r}, {m!r}, {d}, "
        f"mass={mass!r}), "
        f"{C}.barenblatt_profile({at!r}, {R!r}, {m!r}, {d}, mass={mass!r}), "
        f"{C}.barenblatt_radius({t!r}, {m!r}, {d}, mass={mass!r}), {C}.barenblatt_radius_step({R!r}, "
        f"{tau!r}, {m!r}, {d})",
        {},
        lambda: (constant, rho, rho, R * edge, step),
        lambda: (1e-11 * constant, loose, loose, 1e-11 * R * edge, 1e-13 * (1 + step)),
    )


@family
def porous_media_on_the_line(rng: Rng) -> Case:
    """Quantiles by integrating the profile, and means over cells by quadrature."""
    m, R = float(rng.uniform(1.3, 4)), float(10 ** rng.uniform(-2, 2))
    p, q = 1 / (m - 1), m + 1
    k = (m - 1) / (2 * m * q)
    s = quad(lambda a: math.cos(a) ** (2 * p + 1), -math.pi / 2, math.pi / 2, epsabs=1e-14)[0]
    constant = (s / math.sqrt(k)) ** (-1 / (p + 0.5))  # of mass one: s C^p (C / k)^(1/2)
    edge = math.sqrt(constant / k)
    a = float(rng.uniform(-0.95, 0.95) * math.pi / 2)
    u = quad(lambda b: math.cos(b) ** (2 * p + 1), -math.pi / 2, a, epsabs=1e-14, epsrel=1e-13)[0] / s
    n = int(rng.integers(4, 12))
    axis = (np.arange(n) + 0.5) / n * 2.4 * R * edge - 1.2 * R * edge
    h = axis[1] - axis[0]

    def mean(c: float) -> float:
        low, high = (float(np.clip((c + e * h / 2) / (R * edge), -1, 1)) for e in (-1, 1))
        angles = (math.asin(low), math.asin(high))
        return quad(lambda b: math.cos(b) ** (2 * p + 1), *angles, epsabs=1e-14)[0] / s / h

    cells = np.array([mean(c) for c in axis])
    return Case(
        f"{C}.barenblatt_quantile({u!r}, {R!r}, {m!r}), {C}.barenblatt_grid([axis], {R!r}, {m!r})",
        {"axis": axis},
        lambda: (R * edge * math.sin(a), cells),
        lambda: (1e-7 * R * edge, 1e-9 * (1 + cells.max())),
    )


@family
def heat_and_aggregation(rng: Rng) -> Case:
    """Steps are where derivatives of what they minimise vanish; forces vanish in equilibria."""
    sigma, tau, t = (float(10 ** rng.uniform(-3, 2)) for _ in range(3))
    step = max(np.roots([1.0, -sigma, -tau]).real)
    n, d = int(rng.integers(1, 8)), draws.dimension(rng)
    x, w = rng.standard_normal((n, d)), draws.weights(rng, (n,))
    mass = draws.known(w, (n,)).astype(float)
    inverse = np.linalg.solve((1 + tau) * np.eye(n) - tau * np.outer(np.ones(n), mass), x)
    z = np.arange(1, n + 1)
    rest = np.array([(np.sum(z < i) - np.sum(z > i)) / n for i in z])  # x_i = mean of sign(x_i - x_j)
    M = float(rng.uniform(0, 60))
    weight = "" if w is None else ", w=w"
    return Case(
        f"{C}.heat_step({sigma!r}, {tau!r}), {C}.heat_deviation({sigma!r}, {t!r}), "
        f"{C}.aggregation_step(x, {tau!r}{weight}), {C}.line_equilibrium({n}), {C}.keller_segel_rate({M!r}), "
        f"{C}.log_gas_second_moment({n})",
        {"x": x} | ({} if w is None else {"w": w}),
        lambda: (
            step,
            math.hypot(sigma, math.sqrt(2 * t)),
            inverse,
            rest,
            4 * M - M**2 / (2 * math.pi),
            gas(n),
        ),
        lambda: (1e-12 * step + 1e-13 * sigma, 1e-13 * (sigma + t), 1e-11 * (1 + tau), 1e-14, 1e-11, 1e-12),
    )


def gas(n: int) -> float:
    """Zeros of Hermite polynomials have sum_j 1 / (z_i - z_j) = z_i / 2 (Stieltjes): z / (2n)^(1/2) rests."""
    zeros = np.polynomial.hermite_e.hermegauss(n)[0]
    return float((zeros**2).mean() / (2 * n))


@family
def radii_of_repulsion(rng: Rng) -> Case:
    """A ring on which the force vanishes; on the line, masses of sign x - y spread at speed one."""
    b, extra = float(rng.uniform(0.5, 3)), float(rng.uniform(0.5, 3))
    a, t = b + extra, float(10 ** rng.uniform(-2, 2))

    def mean(power: float) -> float:
        return quad(lambda s: math.sin(s) ** power, 0, math.pi, epsabs=1e-14, epsrel=1e-13)[0]

    # At a point of the ring the force is int (2 r sin)^(a-1) sin - (2 r sin)^(b-1) sin over half-angles.
    r = (mean(b) / mean(a)) ** (1 / extra) / 2
    power, d = float(rng.uniform(0.2, 1.8)), int(rng.integers(1, 5))
    return Case(
        f"one = {C}.riesz_radius(1.0, {power!r}, {d})\n"
        f"{C}.ring_radius({a!r}, {b!r}), {C}.riesz_radius({t!r}, 1.0, 1), {C}.riesz_radius({t!r}, "
        f"{power!r}, {d}) / one",
        {},
        lambda: (r, t, t ** (1 / (2 - power))),
        lambda: (1e-11 * r, 1e-14 * t, 1e-13 * t ** (1 / (2 - power))),
    )


@family
def fokker_planck(rng: Rng) -> Case:
    """The linear equations of mean and covariance by a matrix exponential (Van Loan), steps by optimality."""
    d = int(rng.integers(1, 5))
    S, A, K = draws.spd(rng, d, d, condition=10.0), draws.symmetric(rng, d), draws.symmetric(rng, d)
    m, b = rng.standard_normal((2, d))
    beta, t = float(rng.uniform(0.5, 5)), float(rng.uniform(0, 2))
    B = A + K
    block = scipy.linalg.expm(t * np.block([[-B, 2 / beta * np.eye(d)], [np.zeros((d, d)), B.T]]))
    E = block[:d, :d]
    cov = E @ S @ E.T + block[:d, d:] @ E.T
    mean = b + scipy.linalg.expm(-t * A) @ (m - b)
    tau = float(
        0.4 / (1e-3 + abs(np.linalg.eigvalsh(A)).max() + abs(np.linalg.eigvalsh(B)).max()) * rng.uniform()
    )
    rest = np.linalg.solve(np.eye(d) + tau * A, m + tau * A @ b)
    grow = np.exp(2 * t * (abs(np.linalg.eigvalsh(B)).max() + abs(np.linalg.eigvalsh(A)).max()))
    return Case(
        f"mean, cov = {C}.fokker_planck({t!r}, m, S, A, b, {beta!r}, K=K)\n"
        f"after, S1 = {C}.fokker_planck_step(m, S, A, b, {beta!r}, {tau!r}, K=K)\n"
        "B, inverse = torch.from_numpy(A + K), torch.linalg.inv(S1)\n"
        f"T = torch.eye({d}) + {tau!r} * B - {tau!r} / {beta!r} * inverse\n"
        "mean, cov, after, T @ S1 @ T.mT",
        {"m": m, "S": S, "A": A, "K": K, "b": b},
        lambda: (mean, cov, rest, S),
        lambda: (1e-14 * grow * 10, 1e-13 * grow * 10, 1e-13, 1e-13 * np.linalg.cond(S) * 10),
    )
