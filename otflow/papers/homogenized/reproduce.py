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

import numpy as np

from otflow.papers import homogenized as hom
from otflow.papers.homogenized.runs import (
    U0,
    Array,
    LayerRuns,
    chain_and_ode,
    chain_and_sde,
    crowd,
    equal_angles,
    few_tokens,
    high_temperature,
)
from otflow.reproduce.claim import Result
from otflow.reproduce.frame import Frame


def run(frame: Frame) -> Result:
    """All chains, all claims, all figures."""
    from otflow.papers.homogenized.claims import every_claim
    from otflow.papers.homogenized.draw import collapse, freezing, limits, low_temperature, simplices

    samples = 240 if frame.quick else 2400
    frame.stage(0.0, "chain and SDE")
    pair = chain_and_sde(samples)
    frame.stage(0.2, "chain and ODE")
    ode, heads = chain_and_ode(samples // 10)
    frame.stage(0.3, "equal angles")
    simplex = tuple(equal_angles(n, d, samples, beta) for n, d, beta in ((8, 64, 1.0), (4, 6, 1.0)))
    hot = high_temperature(samples // 4)
    frame.stage(0.5, "low temperature")
    ends = hom.low_temperature_paths(U0, [16.0], samples=2 * samples, rng=5, dt=1 / 8)[0].numpy()
    many, layers = (800, 300) if frame.quick else (4000, 1000)
    paths, crowded = crowd(many, layers=layers, rotation=True)
    _, product = crowd(many, layers=layers, rotation=False)
    few = {n: few_tokens(n, 6 if frame.quick else 60) for n in (8, 32, 128)}
    runs = LayerRuns(*pair, ode, heads, simplex, hot, ends, paths, crowded, product, few)
    frame.stage(0.7, "claims")
    claims = every_claim(runs, 40_000 if frame.quick else 400_000)
    frame.stage(0.9, "figures")
    figures = {
        "limits": limits(runs),
        "simplex": simplices(runs),
        "low_temperature": low_temperature(runs),
        "freezing": freezing(),
        "collapse": collapse(24 if frame.quick else 60),
    }
    return Result(claims, figures, _data(runs))


# --- what is computed ----------------------------------------------------------------------------------


# --- data -------------------------------------------------------------------------------------------


def _data(runs: LayerRuns) -> dict[str, Array]:
    out = {
        "rotation": runs.crowd,
        "product": runs.product,
        "diffusion": runs.ends,
        "ode_t": runs.ode[0],
        "ode": runs.ode[1],
    }
    bands = {"chain": runs.chain, "sde": runs.sde, "hot": runs.hot}
    bands |= {f"chain_{h}_heads": band for h, band in runs.heads.items()}
    for name, band in bands.items():
        out[name] = np.stack(band)
    for c in runs.simplex:
        out[f"simplex_{c.n}_{c.d}"] = np.stack([*c.chain, c.exact, c.large])
    return out
