"""The claims of the experiment `perspective`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import torch
from scipy.integrate import quad, simpson

import otflow as of
from otflow.papers import perspective
from otflow.papers.perspective.phases import tokens_in_span
from otflow.papers.perspective.runs import CIRCLE, KINDS, DiagramCurve, Diagrams
from otflow.reproduce.claim import Claim, Source

PAPER = Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2025")
OURS = Source("otflow.papers.perspective")
RNG = np.random.default_rng


def all_claims(
    curves: dict[str, DiagramCurve], diagrams: Diagrams, rings: dict[float, of.Trajectory], *, quick: bool
) -> list[Claim]:
    return [
        *_equal(curves),
        *_rates(),
        *_closed_forms(),
        *_high_dimension(6 if quick else 24),
        *_phases(diagrams),
        *_energies(),
        *_extremes(),
        *_meeting(8 if quick else 32),
        _cone(),
        _wendel(5_000 if quick else 40_000),
        *_circles(rings),
        *_symmetric_weights(),
        *_layers(),
    ]


# --- equal angles --------------------------------------------------------------------------------------


def _equal(curves: dict[str, DiagramCurve]) -> Iterator[Claim]:
    for name, c in curves.items():
        yield PAPER.at("Theorem 6.8")(
            f"{name}: orthonormal tokens keep equal angles, of cosine gamma(t) (largest difference)"
        ).at_most(1e-8, np.abs(c.followed - c.closed[:, None]).max())


def _rates() -> Iterator[Claim]:
    for kind, normalised in KINDS.items():
        t = perspective.collapse_time(1.0, 8, [1e-8, 1e-9], normalised=normalised)
        yield PAPER.at("Theorem 6.8")(
            f"{kind}: 1 - gamma falls at the rate {'2' if normalised else '2 exp(beta)'} (beta = 1)"
        ).equal(2.0 if normalised else 2 * math.e, math.log(10) / float(t[1] - t[0]), rtol=1e-5)


def _closed_forms() -> Iterator[Claim]:
    for kind, normalised in KINDS.items():
        for beta in (1.0, 4.0):
            yield Source(f"{OURS}.collapse_time, against quadrature")(
                f"{kind}, n = 32, beta = {beta:g}: the time at which gamma = 0.999"
            ).equal(
                _time(beta, 32, 1e-3, normalised),
                perspective.collapse_time(beta, 32, 1e-3, normalised=normalised).item(),
                rtol=1e-10,
            )


def _time(beta: float, n: int, delta: float, normalised: bool) -> float:
    """int dgamma / gamma', in v = log 1 / (1 - gamma)."""

    def density(v: float) -> float:
        u = math.exp(-v)
        top = math.exp(beta * u) + n - 1 if normalised else n * math.exp(-beta * (1 - u))
        return top / (2 * (n - (n - 1) * u))

    return float(quad(density, 0, -math.log(delta), epsabs=0, epsrel=1e-12)[0])


# --- high dimension ------------------------------------------------------------------------------------


def _high_dimension(samples: int) -> Iterator[Claim]:
    worst = {d: deviation(d, samples) for d in (128, 1024)}
    for d, value in worst.items():
        yield PAPER.at("Theorem 6.9 (without the factor c(beta)^(nt))")(
            f"n = 16, beta = 3, d = {d}: |<x_i, x_j> - gamma| of uniform tokens, over sqrt(log d / d) "
            "(largest over time and pairs, mean over starts)"
        ).at_most(2.0, value / math.sqrt(math.log(d) / d))
    yield PAPER.at("Theorem 6.9")(
        "n = 16, beta = 3: that deviation falls like d^(-1/2) from d = 128 to 1024 (exponent)"
    ).within(-0.6, -0.4, math.log(worst[1024] / worst[128]) / math.log(8))


def deviation(d: int, samples: int, n: int = 16, beta: float = 3.0) -> float:
    mu, ts = tokens_in_span(n, d, samples, rng=RNG(0)), np.linspace(0, 12, 49)
    path = of.flow(mu, perspective.attention(beta, n), of.RK4(), t1=12.0, dt=0.25, save_at=ts).stacked.coords[
        0
    ]
    gamma = perspective.equiangular(ts, beta, n)[:, None, None, None]
    off = ~torch.eye(n, dtype=torch.bool)
    return (path @ path.mT - gamma)[..., off].abs().amax((0, 2)).mean().item()


def _phases(diagrams: Diagrams) -> Iterator[Claim]:
    high = [name for name in diagrams if not name.endswith((" 2", " 8", " 32"))]
    for name in high:
        diagram = diagrams[name]
        low = diagram.beta <= math.log(diagram.n)
        ratio = (diagram.boundary() / diagram.prediction)[low]
        yield PAPER.at(f"Figure 3 and Theorem 6.9; {OURS}.collapse_time")(
            f"{name}, beta <= log n: half of the pairs have met at the time of the closed form "
            "(largest relative difference)"
        ).at_most(0.08, (ratio - 1).abs().max())
    flat = diagrams["SA, d = 2"]
    share = flat.probability[-1, -1].item()
    yield PAPER.at("section 6.3 and Figure 3")(
        f"SA, d = 2, beta = {flat.beta[-1]:g}: the probability at the last time is neither 0 nor 1"
    ).within(0.15, 0.85, share)
    yield _knee()


def _knee(n: int = 1024) -> Claim:
    """Where the slope of log t is half of its limit 1."""
    beta = np.linspace(0.5, 20, 400)
    slope = np.gradient(perspective.collapse_time(beta, n, 1e-3).log().numpy(), beta)
    return Source(f"{OURS}.collapse_time")(
        "SA, n = 1024: the boundary turns up near log n (beta where d log t / d beta = 1/2, over log n)"
    ).within(0.8, 1.4, float(beta[slope > 0.5][0]) / math.log(n))


# --- energies ------------------------------------------------------------------------------------------


def _energies(beta: float = 2.0, d: int = 3, n: int = 16) -> Iterator[Claim]:
    E = perspective.energy(beta, d)
    for kind, normalised in KINDS.items():
        field = perspective.attention(beta, d, normalised=normalised)
        traj = of.flow(perspective.uniform(n, d, rng=RNG(2)), field, of.RK4(), t1=1.0, dt=0.01)
        weight = of.Partition(beta * torch.eye(d, dtype=torch.float64)) if normalised else None
        rate = []
        for mu in traj.measures:
            x = mu.coords[0]
            speed = field(0.0, mu)[0].square().sum(-1)
            rate.append((speed if weight is None else speed * weight(mu, x)).mean())
        yield PAPER.at(f"{'section 3.4' if normalised else 'Lemma 3.7'}")(
            f"{kind}: E grows by int int |v|^2 {'Z ' if normalised else ''}dmu dt (n = {n}, beta = {beta:g})"
        ).equal(
            simpson(torch.stack(rate).numpy(), dx=0.01),
            (E(traj.final) - E(traj.measures[0])).item(),
            rtol=1e-6,
        )


def _extremes() -> Iterator[Claim]:
    even = perspective.circle(np.arange(64) * 2 * np.pi / 64)
    for beta in (1.0, 9.0):
        low = perspective.extreme_energies(beta, 2)[0].item()
        yield PAPER.at("Proposition 3.4; 0F1(; d/2; beta^2/4) / (2 beta)")(
            f"d = 2, beta = {beta:g}: 64 tokens at equal distances have the energy of the uniform law"
        ).equal(low, perspective.energy(beta, 2)(even).item(), rtol=1e-12)
    mu = perspective.uniform(256, 3, rng=RNG(3), batch=(32,))
    least, most = perspective.extreme_energies(2.0, 3)
    E = perspective.energy(2.0, 3)(mu)
    yield PAPER.at("Proposition 3.4")(
        "d = 3, beta = 2: the least value over the energy of random clouds (largest of 32)"
    ).at_most(1.0, (least / E).max().item())
    final = of.flow(mu[0], perspective.attention(2.0, 3), of.RK4(), t1=60.0, dt=0.25, save_at=[60.0]).final
    yield PAPER.at("Proposition 3.4")(
        "d = 3, beta = 2: tokens that have met have the largest energy, exp(beta) / (2 beta)"
    ).equal(most.item(), perspective.energy(2.0, 3)(final).item(), rtol=1e-9)


# --- meeting -------------------------------------------------------------------------------------------


def _meeting(samples: int) -> Iterator[Claim]:
    cases = (
        ("beta = 0", "Theorem 4.1", 0.0, 8, 2),
        ("beta = 1 / n", "Theorem 4.3", 0.125, 8, 2),
        ("beta = 1", "Theorem 4.3 (beta <= 1 if d = 2)", 1.0, 8, 2),
        ("beta = 1", "Theorem 6.1", 1.0, 16, 3),
        ("beta = 3", "Theorem 6.3 (d > n)", 3.0, 6, 8),
    )
    for name, where, beta, n, d in cases:
        mu = perspective.uniform(n, d, rng=RNG(4), batch=(samples,))
        final = of.flow(mu, perspective.attention(beta, d), of.RK4(), t1=60.0, dt=0.5, save_at=[60.0]).final
        count = of.observables.cluster_count(final, tol=1e-3)
        yield PAPER.at(f"{where}")(
            f"SA, {name}, n = {n}, d = {d}: all tokens are in one point at t = 60 (share of random starts)"
        ).equal(1.0, (count == 1).double().mean().item())


def _cone(beta: float = 1.0, n: int = 8, d: int = 3) -> Claim:
    x = perspective.uniform(n, d, rng=RNG(5), batch=(16,)).x
    x = torch.where(x[..., :1] > 0, x, -x)
    mu = of.Particles(x, space=of.Sphere())
    traj = of.flow(mu, perspective.attention(beta, d), of.RK4(), t1=40.0, dt=0.25)
    path = traj.stacked.coords[0]
    gap = 1 - (path @ path[-1, :, :1].mT)[..., 0].amin(-1)  # 1 - min <x_i, limit>, (T, starts)
    bound = gap[0] * torch.exp(-traj.ts / (2 * n * math.exp(2 * beta)))[:, None]
    return PAPER.at("Lemma 6.4")(
        "SA from a hemisphere: 1 - min <x_i, x*> over its first value times exp(-t / (2 n exp(2 beta)))"
    ).at_most(1.0, (gap / bound).max().item(), slack=1e-12)


def _wendel(samples: int, n: int = 10) -> Claim:
    """Tokens share a hemisphere of R^3 if all lie on one side of a plane through two of them."""
    x = perspective.uniform(n, 3, rng=RNG(6), batch=(samples,)).x
    i, j = (list(k) for k in zip(*combinations(range(n), 2), strict=True))
    side = (torch.linalg.cross(x[:, i], x[:, j]) @ x.mT).sign()  # (samples, pairs, n)
    rows = torch.arange(len(i))
    side[:, rows, i], side[:, rows, j] = 0.0, 0.0
    share = (side.sum(-1).abs() == n - 2).any(-1).double().mean().item()
    p = perspective.hemisphere_probability(n, 3).item()
    return Source("Wendel 1962")(
        f"n = 10 uniform tokens of R^3 share a hemisphere with probability 46 / 512 ({samples} draws)"
    ).equal(p, share, atol=4 * math.sqrt(p * (1 - p) / samples))


# --- circle, weights, layers ---------------------------------------------------------------------------


def _circles(rings: dict[float, of.Trajectory]) -> Iterator[Claim]:
    for beta, traj in rings.items():
        count = of.observables.cluster_count(traj.final, tol=0.1)
        yield PAPER.at("Figure 4")(
            f"SA, d = 2, n = 32, beta = {beta:g}: clusters at t = 30 (median over random starts)"
        ).equal(CIRCLE[beta], count.double().median().item())
    theta = RNG(7).uniform(-np.pi, np.pi, 12)
    gap = theta[:, None] - theta
    for beta in (0.0, 2.0):
        v = perspective.attention(beta, 2, normalised=False)(0.0, perspective.circle(theta))[0].numpy()
        speed = v[:, 1] * np.cos(theta) - v[:, 0] * np.sin(theta)
        formula = -(np.exp(beta * np.cos(gap)) * np.sin(gap)).mean(1)
        what = "Kuramoto's model" if beta == 0 else "the equation of angles"
        yield PAPER.at("section 7")(
            f"USA, d = 2, beta = {beta:g} is {what} (largest difference of velocities)"
        ).at_most(1e-13, np.abs(speed - formula).max())


def _symmetric_weights(d: int = 8) -> Iterator[Claim]:
    A = 2 * perspective.goe(d, rng=RNG(8))
    E, eye = of.ExponentialInteraction(A), torch.eye(d, dtype=torch.float64)
    mu = perspective.uniform(16, d, rng=RNG(9), batch=(8,))
    for sign, what in ((1.0, "grows"), (-1.0, "falls")):
        field = of.SoftmaxAttention(A, eye, sign * A)
        log_E = of.flow(mu, field, of.RK4(), t1=4.0, dt=0.05, observe={"E": E.log_value}).observed["E"]
        yield PAPER.at("section 3.4")(
            f"A from GOE, V = {'' if sign > 0 else '-'}A: int int exp(Ax.y) only {what} "
            "(largest step of its logarithm the other way)"
        ).at_most(1e-12, (-sign * log_E.diff(dim=0)).max().item())


def _layers(rho: float = 0.5, n: float = 1e12) -> Iterator[Claim]:
    for gamma, where in ((1.5, "below"), (2.0, "at"), (2.5, "above")):
        yield Source(f"{OURS}.temperature_regime")(
            f"rho = 1/2, beta = gamma log n, gamma {where} 1 / (1 - rho): overlap after a layer (n = 1e12)"
        ).equal(
            perspective.temperature_regime(rho, gamma).item(),
            perspective.layer_overlap(rho, gamma * math.log(n), n).item(),
            atol=0.01,
        )
