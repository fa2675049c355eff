"""Very many random layers: an ODE, a common noise, and tokens that freeze or collapse

A deep Transformer whose heads draw their weights at random moves tokens along a Markov chain on the sphere.
Koubbi, Geshkovski and Rigollet (2026) find its limits: an ODE if the mean of the weights is not zero and
steps are small, and with centred weights an SDE whose noise all tokens share. Here chains are compared with
both, through `flow`, and overlaps <x_i, x_j> with their drift and bracket.

Overlaps have closed laws in three cases. Orthonormal tokens follow an ODE for one number; the printed one is
its limit of infinite dimension, and in dimension 64 the difference is visible. At high temperature the mean
overlap is logistic. At zero temperature, two tokens in a crowd that stays uniform end parallel or antipodal,
with probabilities given by an arcsine, if the scores A keep angles. If A = W W'^T is a product of Gaussian
matrices, it blurs angles by a term of order 1/d, which over times of order d doubles the drift: artanh of the
overlap is then a Brownian motion, and pairs keep changing sides (ours). A crowd of few tokens is another
matter again: most pairs of 32 tokens in dimension 4 end parallel, so that the limit of many tokens has to
come first.

Temperature and length of context meet in one number. Scores of orthonormal tokens are those of a
random-energy model: below the scale sqrt(2 log n) a head averages over many tokens and draws them together,
above it looks at few, and the collapse slows down. This reading, and the quadrature behind the diagram, are
ours.

Two printed formulas need a correction that a computation shows: the ODE of orthonormal tokens in dimension d,
and the inverse temperature in the bound for low temperature, which is beta d sigma_A^2 rather than beta. That
bound also lacks a factor T in its last term: a drift that is off by a constant moves overlaps in proportion
to the time T.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ive, softmax
from torch import Tensor

from otflow.papers import homogenized as hom
from otflow.papers.homogenized import runs as rn
from otflow.papers.homogenized.random_energy import chi_rule
from otflow.papers.homogenized.runs import CROWD, HEADS, U0, Array, LayerRuns
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

PAPER, OURS = "Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978", "otflow.papers.homogenized"
COMMON_NOISE = Source(f"{PAPER}: the SDE with common noise")
MARTINGALE = Source(f"{PAPER}: low temperature, arcsin u is a martingale")
LOW = Source(f"{OURS}.low_temperature_paths")


def run(frame: Frame) -> Result:
    """All chains, all claims, all figures."""
    from otflow.papers.homogenized import draw

    samples, many, layers = frame.size((240, 800, 300), (2400, 4000, 1000))
    frame.stage(0.0, "chain and SDE")
    pair = rn.chain_and_sde(samples)
    frame.stage(0.2, "chain and ODE")
    ode, heads = rn.chain_and_ode(samples // 10)
    frame.stage(0.3, "equal angles")
    simplex = tuple(rn.equal_angles(n, d, samples, beta) for n, d, beta in ((8, 64, 1.0), (4, 6, 1.0)))
    hot = rn.high_temperature(samples // 4)
    frame.stage(0.5, "low temperature")
    ends = hom.low_temperature_paths(U0, [16.0], samples=2 * samples, rng=5, dt=1 / 8)[0].numpy()
    paths, crowded = rn.crowd(many, layers=layers, rotation=True)
    _, product = rn.crowd(many, layers=layers, rotation=False)
    few = {n: rn.few_tokens(n, frame.size(6, 60)) for n in (8, 32, 128)}
    runs = LayerRuns(*pair, ode, heads, simplex, hot, ends, paths, crowded, product, few)
    frame.stage(0.7, "claims")
    draws = frame.size(40_000, 400_000)
    claims = [
        *_layer_claims(draws),
        *_limit_claims(runs),
        *_angle_claims(runs),
        *_low_claims(runs),
        *_freezing_claims(),
        _dimension_erratum(draws),
        _temperature_erratum(),
    ]
    frame.stage(0.9, "figures")
    figures = {
        "limits": draw.limits(runs),
        "simplex": draw.simplices(runs),
        "low_temperature": draw.low_temperature(runs),
        "freezing": draw.freezing(),
        "collapse": draw.collapse(frame.size(24, 60)),
    }
    return Result(claims, figures, _data(runs))


def _data(runs: LayerRuns) -> dict[str, Array]:
    bands = {"chain": runs.chain, "sde": runs.sde, "hot": runs.hot}
    bands |= {f"chain_{h}_heads": band for h, band in runs.heads.items()}
    ends = {"rotation": runs.crowd, "product": runs.product, "diffusion": runs.ends}
    curves = {f"simplex_{c.n}_{c.d}": np.stack([*c.chain, c.exact, c.large]) for c in runs.simplex}
    ode = dict(zip(("ode_t", "ode"), runs.ode, strict=True))
    return ends | ode | {name: np.stack(band) for name, band in bands.items()} | curves


# --- one layer, and many -------------------------------------------------------------------------------


def _layer_claims(samples: int) -> list[Claim]:
    """Means over pairs of opposite noise are independent; members of a pair are not."""
    n, d, beta = 4, 8, 6.0
    x, (i, j) = rn.cloud(n, d), np.triu_indices(n, 1)
    R, s = x @ x.mT, hom.s_matrix(x, weights=hom.GaussianWeights(d), beta=beta, draws=samples, rng=1)
    run = rn.one_layer(x, beta, samples, 2)
    moved = (run.overlaps[-1] - R)[:, i, j].reshape(-1, 2, len(i))

    def strays(sample: Tensor, rate: Tensor) -> Tensor:
        """How many standard errors the mean is off, at worst."""
        sample = sample.mean(1) / run.eta**2
        return ((sample.mean(0) - rate[i, j]).abs() / (sample.std(0) / math.sqrt(len(sample)))).max()

    return [
        Source(f"{PAPER}: the drift of overlaps")(
            "one layer: the mean change of overlaps against their drift, in standard errors (worst pair)"
        ).at_most(3.0, strays(moved, hom.overlap_drift(R, s, d))),
        Source(f"{OURS}.overlap_bracket")(
            "one layer: the mean square change of overlaps against their bracket, in standard errors"
        ).at_most(3.0, strays(moved.square(), hom.overlap_bracket(R, s, d))),
    ]


def _limit_claims(runs: LayerRuns) -> list[Claim]:
    a, b = runs.chain, runs.sde
    z = np.abs(a.mean - b.mean)[1:] / np.hypot(a.error, b.error)[1:]
    spread = np.abs(a.spread[1:] / b.spread[1:] - 1)
    one, many = runs.heads[HEADS[0]], runs.heads[HEADS[-1]]
    return [
        COMMON_NOISE("overlap of chain and SDE: difference of means in standard errors (worst time)").at_most(
            3.5, z.max()
        ),
        COMMON_NOISE("overlap of chain and SDE: relative difference of deviations (worst time)").at_most(
            0.12, spread.max()
        ),
        Source(f"{PAPER}: fluctuations of order sqrt(eta / H)")(
            "chain and ODE: 64 heads instead of one divide fluctuations by 8, roughly"
        ).within(5.0, 12.0, one.spread.max() / many.spread.max()),
        Source(f"{PAPER}: the ODE as eta / H -> 0")(
            "chain of 64 heads and step 0.05 against the ODE: mean overlap (worst time)"
        ).at_most(0.05, np.abs(many.mean - runs.ode[1]).max()),
    ]


# --- closed laws ---------------------------------------------------------------------------------------


def _angle_claims(runs: LayerRuns) -> list[Claim]:
    gap = np.abs(runs.hot.mean - hom.logistic(runs.hot.t, 1 / 8).numpy())

    def off(curves: rn.Curves, ode: Array) -> float:
        """Between the times 0.96 and 3.4, where the overlap is neither near 0 nor near 1."""
        return float(np.abs(ode - curves.chain.mean)[2:8].sum())

    return [
        *(
            Source(f"{OURS}.simplex_velocity")(
                f"{c.n} tokens, d = {c.d}: distance of the chain to the ODE of this dimension,"
                " over that to the printed one"
            ).at_most(0.8, off(c, c.exact) / off(c, c.large))
            for c in runs.simplex
        ),
        Source(f"{PAPER}: high temperature, error of order 1/d = 0.004 times e^(C t), t <= 4")(
            "high temperature, d = 256: mean overlap against the logistic law (worst time)"
        ).at_most(0.03, gap.max()),
    ]


def _low_claims(runs: LayerRuns) -> list[Claim]:
    p = hom.aligned_probability(U0).numpy()
    z = np.abs((runs.ends > 0).mean(0) - p) / np.sqrt(p * (1 - p) / len(runs.ends))
    later = hom.aligned_probability(runs.crowd.clip(-1, 1)).numpy().mean(0)
    return [
        MARTINGALE(
            "low temperature: share of paths to u = 1 against the arcsine law, in standard errors (worst u0)"
        ).at_most(3.0, z.max()),
        MARTINGALE(
            "pairs in a uniform crowd, d = 24, A a rotation: mean of 1/2 + arcsin(u) / pi, gap to its start"
        ).at_most(0.06, np.abs(later - p).max()),
        LOW(
            "pairs in a uniform crowd, d = 24, A = W W'^T: share with u > 0, gap to artanh u Brownian"
        ).at_most(0.06, np.abs((runs.product > 0).mean(0) - rn.brownian(U0, CROWD)).max()),
        LOW(
            "uniform crowd at zero temperature, A = W W'^T, d = 24, u = 0.8: c in the drift"
            " -c u (1 - u^2) / d (the law with an arcsine has c = 1)"
        ).equal(2.0, rn.drift_constant(24, 0.8, 100_000), atol=0.2),
        Source(f"{OURS}.chain")(
            "32 tokens in dimension 4 instead of a crowd: share of pairs that end parallel (a crowd: 0.5)"
        ).within(0.75, 1.0, runs.few[32]),
    ]


def _freezing_claims() -> list[Claim]:
    n, many = 2000, 10**8
    b = hom.critical_scale([n, many])
    half, twice = hom.participation([0.5 * b[0], 2 * b[0]], n)
    scores = 2 * b[0].item() * np.random.default_rng(0).standard_normal((1000, n))
    q = (softmax(scores, axis=1) ** 2).sum(1)
    return [
        Source(f"{OURS}.participation")(
            "2000 scores at twice the critical scale: participation ratio against samples, standard errors"
        ).at_most(3.0, abs(q.mean() - twice.item()) / (q.std() / math.sqrt(len(q)))),
        Source(f"{OURS}.participation: frozen above sqrt(2 log n) only")(
            "2000 scores at half the critical scale: participation ratio"
        ).at_most(0.02, half),
        Source("Derrida 1981, the random-energy model")(
            "10^8 scores at twice the critical scale: participation ratio 1 - b_c / b"
        ).equal(0.5, hom.participation(2 * b[1], many), atol=0.05),
    ]


# --- errata --------------------------------------------------------------------------------------------


def _dimension_erratum(samples: int) -> Claim:
    """The first layer from orthonormal tokens at beta = 0, where g = 1/n."""
    n, d = 3, 4
    run = rn.one_layer(hom.simplex(n, d).x, 0.0, samples, 3)
    return Source(f"{PAPER}: the ODE of simplex data")(
        "3 orthonormal tokens in dimension 4, beta = 0: speed at which their overlap grows"
    ).erratum(
        printed=hom.simplex_velocity(0.0, 1 / n, 1 / n),
        corrected=hom.simplex_velocity(0.0, 1 / n, 1 / n, d),
        measured=run.pair_overlap[-1].mean() / run.eta**2,
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
