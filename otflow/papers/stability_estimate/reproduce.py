"""Stability: how far two flows drift apart

Theorem 3.1 of Castin, Ablin, Carrillo and Peyré says that two solutions of the Transformer PDE with
compactly supported data satisfy W_p(mu_t, nu_t) <= C(t, R0) W_p(mu_0, nu_0), for every kind of attention.
Between what happens and the constant of the proof there are many orders of magnitude, and this experiment
measures them. For random weights and random clouds in the unit ball, each kind of attention gets a ladder:

* observed: the largest ratio over translations, rotations, dilations, single tokens and random directions;
* adversary: the largest ratio that power iteration on the derivative of the flow and ascent find;
* a posteriori: the exponential of the integral of local Lipschitz constants, from the tilted covariances that
  occurred, over a tube that contains both runs;
* a priori: the exponential of the integral of global constants on balls that grow like exp(int |V|).

The a-priori constant is doubly exponential. With R0 = 1, |V| = 1.1, |A| = 1 and t = 1 its logarithm is
3.7e7, so all constants are computed as logarithms.

For Sinkhorn attention no constant was explicit. In W_2 there is one, without any exponential: the weights of
Sinkhorn attention are bistochastic, and the derivative of their logarithm is that of the scores less its
orthogonal projection on sums of functions of one variable, so that the velocity has the Lipschitz constant
(|V| / eps)(1 + 2 |A| R^2 / eps) in L2 of any coupling. It is an upper rung here.

The last picture is about flows with convexity: minimising movements contract by 1 / (1 + lambda tau) a step;
and Gaussians, which have no compact support, lose stability at the time of blow-up.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import expi

import otflow as of
from otflow.papers.stability_estimate import convex, draw, runs
from otflow.papers.stability_estimate.random_fields import FIELDS
from otflow.papers.stability_estimate.runs import Contraction, Parting
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

PAPER = Source("Castin et al. 2025, Theorem 3.1")
MASKED = Source("masked: Theorem 3.4")
SINGULAR = Source("leading singular value of the derivative of the flow")


def run(frame: Frame) -> Result:
    """One ladder to look at and many to count, for each kind of attention; then convexity."""
    shown, claims = {}, [_overflow()]
    steps, many, pairs, halvings, quantiles = frame.size((20, 20, 10, 7, 30), (60, 500, 100, 12, 100))
    for k, name in enumerate(FIELDS):
        frame.stage(k / (len(FIELDS) + 1), f"ladder of {name} attention")
        shown[name] = runs.ladder(name, (), n=12, seed=17, steps=steps)
        claims += _ladder_claims(name, runs.ladder(name, (many,), n=5, seed=2, steps=20))
    frame.stage(len(FIELDS) / (len(FIELDS) + 1), "convex flows and Gaussians")
    contraction, parting = runs.contraction(pairs), runs.parting(halvings)
    claims += [
        *convex.contraction_claims(contraction),
        *convex.cloud_claims(),
        *convex.line_claims(quantiles),
    ]
    claims += [*convex.parting_claims(parting), *convex.uniform_claims()]
    figures = {"ladders": draw.ladders(shown), "convex-and-gaussian": draw.convex(contraction, parting)}
    return Result(claims, figures, _data(shown, contraction, parting))


def _ladder_claims(name: str, found: of.stability.Ladder) -> list[Claim]:
    """The rungs are in order, and the adversary is good at what it does."""
    observed, worst, after, before = found.rungs.values()
    source, many = MASKED if "masked" in name else PAPER, f"largest of {len(worst)}"
    reached = (found.adversary.ratio >= 0.9 * found.adversary.linearised).double().mean()
    share = "share of configurations in which the adversary reaches 90 % of the linearised constant"
    # Where the a-priori bound overflows even as a logarithm, it is above everything.
    excess = torch.where(before.isfinite(), (after - before) / before.abs().clamp(min=1), -1.0).max()
    pairs = {"observed / adversary": observed - worst, "adversary / a-posteriori bound": worst - after}
    ratios = {words: math.exp(float(log.max())) for words, log in pairs.items()}
    return [
        *(
            source(f"{name}: {k}, {many} configurations").at_most(1.0, r, slack=1e-9)
            for k, r in ratios.items()
        ),
        source(f"{name}: log C a posteriori less log C a priori, relative, {many}").at_most(1e-9, excess),
        SINGULAR(f"{name}: {share}").within(0.95, 1.0, reached),
    ]


def _overflow() -> Claim:
    """int v (a R^2 + (1 + 2 a R^2) e^(2 a R^2)) dt with R = R0 e^(vt): integrated by hand in z = R^2."""
    R0, v, a, eye = 1.0, 1.1, 1.0, torch.eye(2).double()
    ends = (R0**2, R0**2 * math.exp(2 * v * runs.T))
    low, high = ((a * z + float(expi(2 * a * z)) + math.exp(2 * a * z)) / 2 for z in ends)
    found = of.stability.a_priori(of.SoftmaxAttention(a * eye, eye, v * eye), R0, t1=runs.T).log_C[-1]
    words = "softmax, R0 = 1, |V| = 1.1, |A| = 1, t = 1: log C, while C overflows"
    return PAPER(words).equal(high - low, found, rtol=1e-8)


def _data(
    shown: dict[str, of.stability.Ladder], contraction: dict[float, Contraction], p: Parting
) -> dict[str, np.ndarray]:
    """Logarithms of the rungs; times and ratios of contractions; what is left of time, and ratios."""
    taus = {tau: f"tau_{tau:g}".replace(".", "p") if tau else "flow" for tau in contraction}
    return {
        **{
            f"rungs-{k.replace(' ', '-')}": np.array([float(log) for log in one.rungs.values()])
            for k, one in shown.items()
        },
        **{f"contraction_{taus[tau]}": np.stack(c) for tau, c in contraction.items()},
        **{f"parting_{name}": np.stack([p.left, y]) for name, y in p.observed.items()},
        "parting_plane": np.stack([p.left, p.observed["plane"], p.exact["plane"]]),
    }
