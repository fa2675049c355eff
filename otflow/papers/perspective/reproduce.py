"""Transformers as interacting particles on the sphere: clusters, energies and phase transitions

With layer normalisation tokens live on the unit sphere. Geshkovski, Letrouit, Polyanskiy and Rigollet (2025)
study attention with Q = K = V = I and inverse temperature beta there: with softmax (SA), and without (USA).
Both ascend the energy E = 1/(2 beta) int int exp(beta x.y), which is least for uniform tokens and largest
when all agree; from almost every start all tokens meet in one point.

How long that takes is seen in phase diagrams: the probability that two tokens have met, over time and beta.
In high dimension random tokens are almost orthogonal, all angles between them stay almost equal, and one ODE
for the cosine gamma of the angle tells the whole story. Its time is a closed form in exponential integrals.
The curve on which gamma = 1 - delta is drawn over the diagrams: it is the boundary, and turns up near beta =
log n. In low dimension there is another region where the probability is neither 0 nor 1. Tokens there sit in
a few clusters, two on the circle for beta = 4 and three for beta = 9, for a very long time.

The diagrams use Euler's steps of 0.1, brought back to the sphere, as the paper does; the step is projected to
the tangent space first. Weights can be random, too: symmetric ones keep the structure of an ascent or
descent, and tokens meet for many others as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import torch

import otflow as of
from otflow.papers import perspective
from otflow.papers.perspective import runs
from otflow.papers.perspective.runs import CIRCLE, KINDS, Array, Diagrams
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

PAPER = Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2025")
ANGLES, LEAST = PAPER.at("Theorem 6.8"), PAPER.at("Proposition 3.4")
TIME = Source("otflow.papers.perspective.collapse_time")
REGIME = Source("otflow.papers.perspective.temperature_regime")


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    from otflow.papers.perspective import draw

    frame.stage(0.0, "equal angles")
    curves = {f"{kind}, beta = {b:g}": runs.equal_angles(b, kind) for kind in KINDS for b in (1.0, 3.0)}
    frame.stage(0.05, "circle and sphere")
    rings = {beta: runs.on_the_circle(beta, frame.size(16, 64)) for beta in CIRCLE}
    globe = runs.on_the_sphere()
    frame.stage(0.2, "random weights")
    shares = runs.random_weights(frame.size(6, 24))
    diagrams = runs.phases(frame)
    frame.stage(0.9, "claims")
    claims = [
        *_equal(curves),
        *_high_dimension(frame.size(6, 24)),
        *_phases(diagrams),
        *_energies(),
        *_meeting(frame.size(8, 32)),
        _wendel(frame.size(5_000, 40_000)),
        *_circles(rings),
        *_symmetric_weights(),
        *_layers(),
    ]
    figures = {
        "phases": draw.phases(diagrams),
        "equal-angles": draw.equal_angles(curves),
        "circle": draw.circles(rings),
        "sphere": draw.globes(globe),
        "random-weights": draw.random_weights(shares),
    }
    return Result(claims, figures, _data(diagrams, curves, shares))


def _equal(curves: dict[str, Array]) -> Iterator[Claim]:
    for name, c in curves.items():
        yield ANGLES(
            f"{name}: orthonormal tokens keep equal angles, of cosine gamma(t) (largest difference)"
        ).at_most(1e-8, np.abs(c[:, 2:] - c[:, 1:2]).max())
    for (kind, soft), rate in zip(KINDS.items(), (2.0, 2 * math.e), strict=True):
        decade = perspective.collapse_time(1.0, 8, [1e-8, 1e-9], normalised=soft).diff().item()
        yield ANGLES(
            f"{kind}: 1 - gamma falls at the rate {'2' if soft else '2 exp(beta)'} (beta = 1)"
        ).equal(rate, math.log(10) / decade, rtol=1e-5)
    for kind, soft in KINDS.items():
        for beta in (1.0, 4.0):
            time = perspective.collapse_time(beta, 32, 1e-3, normalised=soft)
            exact = runs.time_by_quadrature(beta, 32, 1e-3, soft)
            yield TIME.at("against quadrature")(
                f"{kind}, n = 32, beta = {beta:g}: the time at which gamma = 0.999"
            ).equal(exact, time, rtol=1e-10)


def _high_dimension(samples: int) -> Iterator[Claim]:
    worst = {d: runs.deviation(d, samples) for d in (128, 1024)}
    for d, value in worst.items():
        yield PAPER.at("Theorem 6.9 (without the factor c(beta)^(nt))")(
            f"n = 16, beta = 3, d = {d}: |<x_i, x_j> - gamma| of uniform tokens, over sqrt(log d / d) "
            "(largest over time and pairs, mean over starts)"
        ).at_most(2.0, value / math.sqrt(math.log(d) / d))
    yield PAPER.at("Theorem 6.9")(
        "n = 16, beta = 3: that deviation falls like d^(-1/2) from d = 128 to 1024 (exponent)"
    ).within(-0.6, -0.4, math.log(worst[1024] / worst[128]) / math.log(8))


def _phases(diagrams: Diagrams) -> Iterator[Claim]:
    for name, diagram in diagrams.items():
        if not name.endswith((" 2", " 8", " 32")):  # the dimension is high
            ratio = (diagram.boundary() / diagram.prediction)[diagram.beta <= math.log(diagram.n)]
            yield PAPER.at(f"Figure 3 and Theorem 6.9; {TIME}")(
                f"{name}, beta <= log n: half of the pairs have met at the time of the closed form "
                "(largest relative difference)"
            ).at_most(0.08, (ratio - 1).abs().max())
    flat = diagrams["SA, d = 2"]
    yield PAPER.at("section 6.3 and Figure 3")(
        f"SA, d = 2, beta = {flat.beta[-1]:g}: the probability at the last time is neither 0 nor 1"
    ).within(0.15, 0.85, flat.probability[-1, -1])
    beta = np.linspace(0.5, 20, 400)
    slope = np.gradient(perspective.collapse_time(beta, 1024, 1e-3).log(), beta)  # from 0 to 1
    yield TIME(
        "SA, n = 1024: the boundary turns up near log n (beta where d log t / d beta = 1/2, over log n)"
    ).within(0.8, 1.4, beta[slope > 0.5][0] / math.log(1024))


def _energies() -> Iterator[Claim]:
    for kind, where, Z in (("SA", "section 3.4", "Z "), ("USA", "Lemma 3.7", "")):
        yield PAPER.at(where)(f"{kind}: E grows by int int |v|^2 {Z}dmu dt (n = 16, beta = 2)").equal(
            *runs.growth(2.0, 3, 16, kind), rtol=1e-6
        )
    even = perspective.circle(np.arange(64) * 2 * np.pi / 64)
    for beta in (1.0, 9.0):
        low, found = perspective.extreme_energies(beta, 2)[0], perspective.energy(beta, 2)(even)
        yield PAPER.at("Proposition 3.4; 0F1(; d/2; beta^2/4) / (2 beta)")(
            f"d = 2, beta = {beta:g}: 64 tokens at equal distances have the energy of the uniform law"
        ).equal(low, found, rtol=1e-12)
    mu, E = perspective.uniform(256, 3, rng=3, batch=(32,)), perspective.energy(2.0, 3)
    least, most = perspective.extreme_energies(2.0, 3)
    yield LEAST("d = 3, beta = 2: the least value over the energy of random clouds (largest of 32)").at_most(
        1.0, (least / E(mu)).max()
    )
    met = runs.follow(mu[0], 2.0, 60.0, 0.25, save_at=[60.0]).final
    yield LEAST("d = 3, beta = 2: tokens that have met have the largest energy, exp(beta) / (2 beta)").equal(
        most, E(met), rtol=1e-9
    )


def _meeting(samples: int) -> Iterator[Claim]:
    for name, where, beta, n, d in (
        ("beta = 0", "Theorem 4.1", 0.0, 8, 2),
        ("beta = 1 / n", "Theorem 4.3", 0.125, 8, 2),
        ("beta = 1", "Theorem 4.3 (beta <= 1 if d = 2)", 1.0, 8, 2),
        ("beta = 1", "Theorem 6.1", 1.0, 16, 3),
        ("beta = 3", "Theorem 6.3 (d > n)", 3.0, 6, 8),
    ):
        mu = perspective.uniform(n, d, rng=4, batch=(samples,))
        count = of.observables.cluster_count(
            runs.follow(mu, beta, 60.0, 0.5, save_at=[60.0]).final, radius=1e-3
        )
        yield PAPER.at(where)(
            f"SA, {name}, n = {n}, d = {d}: all tokens are in one point at t = 60 (share of random starts)"
        ).equal(1.0, (count == 1).double().mean())
    yield PAPER.at("Lemma 6.4")(
        "SA from a hemisphere: 1 - min <x_i, x*> over its first value times exp(-t / (2 n exp(2 beta)))"
    ).at_most(1.0, runs.cone(), slack=1e-12)


def _wendel(samples: int) -> Claim:
    p = perspective.hemisphere_probability(10, 3).item()
    return Source("Wendel 1962")(
        f"n = 10 uniform tokens of R^3 share a hemisphere with probability 46 / 512 ({samples} draws)"
    ).equal(p, runs.share_in_hemispheres(samples), atol=4 * math.sqrt(p * (1 - p) / samples))


def _circles(rings: dict[float, of.Trajectory]) -> Iterator[Claim]:
    for beta, traj in rings.items():
        count = of.observables.cluster_count(traj.final, radius=0.1)
        yield PAPER.at("Figure 4")(
            f"SA, d = 2, n = 32, beta = {beta:g}: clusters at t = 30 (median over random starts)"
        ).equal(CIRCLE[beta], count.double().median())
    theta = np.random.default_rng(7).uniform(-np.pi, np.pi, 12)
    gap = theta[:, None] - theta
    for beta, what in ((0.0, "Kuramoto's model"), (2.0, "the equation of angles")):
        v = perspective.attention(beta, 2, normalised=False)(0.0, perspective.circle(theta))[0].numpy()
        speed = v[:, 1] * np.cos(theta) - v[:, 0] * np.sin(theta)
        formula = -(np.exp(beta * np.cos(gap)) * np.sin(gap)).mean(1)
        yield PAPER.at("section 7")(
            f"USA, d = 2, beta = {beta:g} is {what} (largest difference of velocities)"
        ).at_most(1e-13, np.abs(speed - formula).max())


def _symmetric_weights(d: int = 8) -> Iterator[Claim]:
    A, eye = 2 * perspective.goe(d, rng=8), torch.eye(d, dtype=torch.float64)
    mu, observe = perspective.uniform(16, d, rng=9, batch=(8,)), {"E": of.ExponentialInteraction(A).log_value}
    for sign, V, what in ((1.0, "A", "grows"), (-1.0, "-A", "falls")):
        field = of.SoftmaxAttention(A, eye, sign * A)
        log_E = of.flow(mu, field, of.RK4(), t1=4.0, dt=0.05, observe=observe).observed["E"]
        yield PAPER.at("section 3.4")(
            f"A from GOE, V = {V}: int int exp(Ax.y) only {what} "
            "(largest step of its logarithm the other way)"
        ).at_most(1e-12, (-sign * log_E.diff(dim=0)).max())


def _layers(rho: float = 0.5, n: float = 1e12) -> Iterator[Claim]:
    for gamma, where in ((1.5, "below"), (2.0, "at"), (2.5, "above")):
        found = perspective.layer_overlap(rho, gamma * math.log(n), n)
        yield REGIME(
            f"rho = 1/2, beta = gamma log n, gamma {where} 1 / (1 - rho): overlap after a layer (n = 1e12)"
        ).equal(perspective.temperature_regime(rho, gamma), found, atol=0.01)


def _data(diagrams: Diagrams, curves: dict[str, Array], shares: dict[str, Array]) -> dict[str, Array]:
    """All curves and diagrams, by names of letters, digits and _ only."""
    fields = ("t", "beta", "probability", "stderr", "prediction")
    named = {f"random {name.replace('-A', 'minus A')}": share for name, share in shares.items()}
    named |= {f"equal {name}": curve for name, curve in curves.items()}
    named |= {f"phases {name} {f}": getattr(d, f).numpy() for name, d in diagrams.items() for f in fields}
    return {"_".join(re.findall(r"[A-Za-z0-9]+", name)): values for name, values in named.items()}
