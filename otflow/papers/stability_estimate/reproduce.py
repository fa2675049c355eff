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
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.papers.stability_estimate import convex, draw, draw_convex
from otflow.papers.stability_estimate.random_fields import FIELDS, cloud
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

PAPER = Source("Castin et al. 2025, Theorem 3.1")
T = 1.0


def run(frame: Frame) -> Result:
    """One ladder to look at and many to count, for each kind of attention."""
    shown, claims = {}, [_overflow()]
    for k, name in enumerate(FIELDS):
        frame.stage(k / (len(FIELDS) + 1), f"ladder of {name} attention")
        shown[name] = _ladder(name, (), n=12, seed=17, steps=20 if frame.quick else 60)
        many = _ladder(name, (20 if frame.quick else 500,), n=5, seed=2, steps=20)
        claims += _claims(name, many)
    frame.stage(len(FIELDS) / (len(FIELDS) + 1), "convex flows and Gaussians")
    claims += convex.claims(frame.quick)
    parts = convex.measured(frame.quick)
    figures = {
        "ladders": draw.ladders(shown),
        "convex-and-gaussian": draw_convex.draw(parts),
    }
    rungs = {f"rungs-{name.replace(' ', '-')}": _numbers(found) for name, found in shown.items()}
    return Result(claims, figures, {**rungs, **convex.arrays(parts)})


def _numbers(found: of.Ladder) -> np.ndarray:
    return np.array([float(log) for log in found.rungs.values()])


def _ladder(name: str, batch: tuple[int, ...], *, n: int, seed: int, steps: int) -> of.Ladder:
    rng = np.random.default_rng(seed)
    field, mu0 = FIELDS[name](batch, 2, rng), cloud(batch, n, 2, rng, labelled="masked" in name)
    return of.ladder(mu0, field, t1=T, steps=steps, rng=seed)


def _claims(name: str, found: of.Ladder) -> list[Claim]:
    observed, worst, after, before = found.rungs.values()
    many, source = len(worst), Source("masked: Theorem 3.4") if "masked" in name else PAPER
    reached = (found.adversary.ratio >= 0.9 * found.adversary.linearised).double().mean()
    excess = torch.where(before.isfinite(), (after - before) / before.abs().clamp(min=1), -1.0)
    return [
        _below(f"{name}: observed / adversary, largest of {many} configurations", observed - worst, source),
        _below(
            f"{name}: adversary / a-posteriori bound, largest of {many} configurations", worst - after, source
        ),
        source(f"{name}: log C a posteriori less log C a priori, relative, largest of {many}").at_most(
            1e-9, excess.max()
        ),
        Source("leading singular value of the derivative of the flow")(
            f"{name}: share of configurations in which the adversary reaches 90 % of the linearised constant"
        ).within(0.95, 1.0, reached),
    ]


def _below(statement: str, log: Tensor, source: Source) -> Claim:
    return source(statement).at_most(1.0, math.exp(float(log.max())), slack=1e-9)


class _Printed(NamedTuple):
    """Numbers for which the constant of the theorem overflows."""

    R0: float = 1.0
    v: float = 1.1
    a: float = 1.0


def _overflow() -> Claim:
    """int v (a R^2 + (1 + 2 a R^2) e^(2 a R^2)) dt with R = R0 e^(vt): integrated by hand in z = R^2."""
    from scipy.special import expi

    m = _Printed()
    field = of.SoftmaxAttention(
        m.a * torch.eye(2).double(), torch.eye(2).double(), m.v * torch.eye(2).double()
    )
    low, high = m.R0**2, m.R0**2 * math.exp(2 * m.v * T)
    exact = [(m.a * z + float(expi(2 * m.a * z)) + math.exp(2 * m.a * z)) / 2 for z in (low, high)]
    return PAPER("softmax, R0 = 1, |V| = 1.1, |A| = 1, t = 1: log C, while C overflows").equal(
        exact[1] - exact[0], of.stability.a_priori(field, m.R0, t1=T).log_C[-1], rtol=1e-8
    )
