"""The claims of the experiment `homogenized`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ive, ndtr
from torch import Tensor

from otflow.papers import homogenized as hom
from otflow.papers.homogenized.random_energy import chi_rule
from otflow.papers.homogenized.runs import CROWD, HEADS, U0, Array, cloud, overlap, pairs, product_of
from otflow.reproduce.claim import Claim, Source

if TYPE_CHECKING:
    from otflow.papers.homogenized.runs import LayerRuns

PAPER = Source("Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978")
OURS = Source("otflow.papers.homogenized")


def every_claim(runs: LayerRuns, samples: int) -> list[Claim]:
    """All of them; so many samples for those on one layer."""
    return [
        *_layer_claims(samples),
        *_limit_claims(runs),
        *_angle_claims(runs),
        *_low_claims(runs),
        *_freezing_claims(),
        _dimension_erratum(samples),
        _temperature_erratum(),
    ]


def strays(sample: Tensor, truth: Tensor) -> float:
    """How many standard errors the mean is off, at worst."""
    error = sample.std(0) / math.sqrt(len(sample))
    return float(((sample.mean(0) - truth).abs() / error).max())


def _layer_claims(samples: int) -> list[Claim]:
    n, d, beta, eta = 4, 8, 6.0, 0.03
    x, law = cloud(n, d), hom.GaussianWeights(d)
    i, j = np.triu_indices(n, 1)
    R, s = x @ x.mT, hom.s_matrix(x, weights=law, beta=beta, draws=samples, rng=1)
    run = hom.chain(x, weights=law, beta=beta, eta=eta, layers=1, samples=samples, antithetic=True, rng=2)
    moved = (run.overlaps[-1] - R)[:, i, j].reshape(-1, 2, len(i))
    return [
        Source(f"{PAPER}: the drift of overlaps")(
            "one layer: the mean change of overlaps against their drift, in standard errors (worst pair)"
        ).at_most(3.0, strays(moved.mean(1) / eta**2, hom.overlap_drift(R, s, d)[i, j])),
        Source(f"{OURS}.overlap_bracket")(
            "one layer: the mean square change of overlaps against their bracket, in standard errors"
        ).at_most(3.0, strays(moved.square().mean(1) / eta**2, hom.overlap_bracket(R, s, d)[i, j])),
    ]


def _limit_claims(runs: LayerRuns) -> list[Claim]:
    a, b = runs.chain, runs.sde
    z = np.abs(a.mean - b.mean)[1:] / np.hypot(a.error, b.error)[1:]
    spread = np.abs(a.spread[1:] / b.spread[1:] - 1)
    _, mean = runs.ode
    spreads = [runs.heads[h].spread.max() for h in HEADS]
    return [
        Source(f"{PAPER}: the SDE with common noise")(
            "overlap of chain and SDE: difference of means in standard errors (worst time)"
        ).at_most(3.5, z.max()),
        Source(f"{PAPER}: the SDE with common noise")(
            "overlap of chain and SDE: relative difference of deviations (worst time)"
        ).at_most(0.12, spread.max()),
        Source(f"{PAPER}: fluctuations of order sqrt(eta / H)")(
            "chain and ODE: 64 heads instead of one divide fluctuations by 8, roughly"
        ).within(5.0, 12.0, spreads[0] / spreads[-1]),
        Source(f"{PAPER}: the ODE as eta / H -> 0")(
            "chain of 64 heads and step 0.05 against the ODE: mean overlap (worst time)"
        ).at_most(0.05, np.abs(runs.heads[HEADS[-1]].mean - mean).max()),
    ]


def _angle_claims(runs: LayerRuns) -> list[Claim]:
    claims = []
    for curves in runs.simplex:
        k = slice(2, 8)
        off = [np.abs(c - curves.chain.mean)[k].sum() for c in (curves.exact, curves.large)]
        claims.append(
            Source(f"{OURS}.simplex_velocity")(
                f"{curves.n} tokens, d = {curves.d}: distance of the chain to the ODE of this dimension,"
                " over that to the printed one"
            ).at_most(0.8, off[0] / off[1])
        )
    gap = np.abs(runs.hot.mean - hom.logistic(runs.hot.t, 1 / 8).numpy())
    return [
        *claims,
        Source(f"{PAPER}: high temperature, error of order 1/d = 0.004 times e^(C t), t <= 4")(
            "high temperature, d = 256: mean overlap against the logistic law (worst time)"
        ).at_most(0.03, gap.max()),
    ]


def _low_claims(runs: LayerRuns) -> list[Claim]:
    p = hom.aligned_probability(U0).numpy()

    def worst(ends: Array) -> float:
        return float((np.abs((ends > 0).mean(0) - p) / np.sqrt(p * (1 - p) / len(ends))).max())

    return [
        Source(f"{PAPER}: low temperature, arcsin u is a martingale")(
            "low temperature: share of paths to u = 1 against the arcsine law, in standard errors (worst u0)"
        ).at_most(3.0, worst(runs.ends)),
        Source(f"{PAPER}: low temperature, arcsin u is a martingale")(
            "pairs in a uniform crowd, d = 24, A a rotation: mean of 1/2 + arcsin(u) / pi, gap to its start"
        ).at_most(0.06, np.abs(hom.aligned_probability(runs.crowd.clip(-1, 1)).numpy().mean(0) - p).max()),
        Source(f"{OURS}.low_temperature_paths")(
            "pairs in a uniform crowd, d = 24, A = W W'^T: share with u > 0, gap to artanh u Brownian"
        ).at_most(0.06, np.abs((runs.product > 0).mean(0) - brownian(U0, CROWD)).max()),
        _drift_claim(100_000),
        Source(f"{OURS}.chain")(
            "32 tokens in dimension 4 instead of a crowd: share of pairs that end parallel (a crowd: 0.5)"
        ).within(0.75, 1.0, runs.few[32]),
    ]


def brownian(u0: Any, t: float) -> Array:
    """P(u(t) > 0) if artanh u is sqrt(2) times a Brownian motion."""
    return np.asarray(ndtr(np.arctanh(u0) / math.sqrt(2 * t)))


def _drift_claim(samples: int) -> Claim:
    """c in the drift -c u (1 - u^2) / d, from s_ij = E cos(A x_i, A x_j)."""
    d, u = 24, 0.8
    s = overlap(product_of(pairs(np.full(samples, u)), d, np.random.default_rng(6))).mean()
    drift = hom.overlap_drift([[1.0, u], [u, 1.0]], [[1.0, s], [s, 1.0]], d)[0, 1].item()
    return Source(f"{OURS}.low_temperature_paths")(
        "uniform crowd at zero temperature, A = W W'^T, d = 24, u = 0.8: c in the drift -c u (1 - u^2) / d"
        " (the law with an arcsine has c = 1)"
    ).equal(2.0, -drift * d / (u * (1 - u**2)), atol=0.2)


def _freezing_claims() -> list[Claim]:
    n = 2000
    f = hom.participation(hom.critical_scale(n).item() * np.array([0.5, 1.0, 2.0]), n).numpy()
    rng = np.random.default_rng(0)
    scores = 2 * hom.critical_scale(n).item() * rng.standard_normal((1000, n))
    p = np.exp(scores - scores.max(1, keepdims=True))
    q = ((p / p.sum(1, keepdims=True)) ** 2).sum(1)
    big = hom.participation(2 * hom.critical_scale(1e8).item(), 1e8).item()
    return [
        Source(f"{OURS}.participation")(
            "2000 scores at twice the critical scale: participation ratio against samples, standard errors"
        ).at_most(3.0, abs(q.mean() - f[2]) / (q.std() / math.sqrt(len(q)))),
        Source(f"{OURS}.participation: frozen above sqrt(2 log n) only")(
            "2000 scores at half the critical scale: participation ratio"
        ).at_most(0.02, f[0]),
        Source("Derrida 1981, the random-energy model")(
            "10^8 scores at twice the critical scale: participation ratio 1 - b_c / b"
        ).equal(0.5, big, atol=0.05),
    ]


def _dimension_erratum(samples: int) -> Claim:
    """The first layer from orthonormal tokens at beta = 0, where g = 1/n."""
    n, d, eta = 3, 4, 0.03
    law = hom.GaussianWeights(d)
    run = hom.chain(
        hom.simplex(n, d), weights=law, beta=0.0, eta=eta, layers=1, samples=samples, antithetic=True, rng=3
    )
    return Source(f"{PAPER}: the ODE of simplex data")(
        "3 orthonormal tokens in dimension 4, beta = 0: speed at which their overlap grows"
    ).erratum(
        printed=hom.simplex_velocity(0.0, 1 / n, 1 / n).item(),
        corrected=hom.simplex_velocity(0.0, 1 / n, 1 / n, d).item(),
        measured=run.pair_overlap[-1].mean().item() / eta**2,
        atol=0.01,
    )


def _temperature_erratum() -> Claim:
    """Near the uniform law m_A(x) has length I_{d/2}(k) / I_{d/2 - 1}(k), k = beta |A x|."""
    d, beta = 8, 2000.0
    r, p = chi_rule(d)

    def missing(sigma2: float) -> float:
        k = beta * sigma2 * d * np.multiply.outer(r, r)
        return float(1 - p @ (ive(d / 2, k) / ive(d / 2 - 1, k)) ** 2 @ p)

    return Source(f"{PAPER}: low temperature")(
        "uniform law, d = 8, beta = 2000: factor of 1 - s_ii when sigma_A^2 is four times smaller"
        " (printed: beta alone matters)"
    ).erratum(printed=1.0, corrected=4.0, measured=missing(0.25 / d) / missing(1 / d), rtol=0.02)
