"""Convex flows contract, and attention pulls Gaussians apart: a part of the experiment `stability`.

Contraction. If F is lambda-convex, W2(mu_t, nu_t) <= exp(-lambda t) W2(mu_0, nu_0) along its flow (Ambrosio,
Gigli, Savaré 2008, Theorem 11.2.1). For k minimising movements of length tau one would like

    W2(mu_k, nu_k) <= (1 + lambda tau)^-k W2(mu_0, nu_0),    1 + lambda tau > 0.

This is a theorem wherever the step is the proximal map of a lambda-convex function on a Hilbert space: for
potentials and interactions on particles (the space L2(w; R^d)) and on Gaussians (means and roots, between
which W2 is the least distance), and on the line for internal energies as well (quantile functions). Entropy
is not convex in roots, but with quadratic energies the bound holds on Gaussians in every dimension:
S' = B^(-1/2) f(B^(-1/2) S B^(-1/2)) B^(-1/2) with B >= 1 + lambda tau, and f, a heat step, does not expand.
Between eigenvectors of S with the new variances x h and y h, where x, y >= 1 and h is the step of the heat
equation, its derivative multiplies lengths by the root of (1 + 1/(xy) - 4/(x + y)) / (1 - 1/(xy))^2, which is
at most 1 because (3 - 1/(xy)) (1/x + 1/y) <= 4. For internal energies in general the scheme contracts up to
terms of higher order in tau (Craig 2016, "The exponential formula for the Wasserstein metric").

Sensitivity. Softmax attention on centred Gaussians of the line, s' = 2 v a s^2, has the derivative
(1 - t/t*)^(-3/2) in W2: finite before the blow-up, and unbounded over all Gaussians at every time. In more
dimensions and for V = I the same power has the factor |S0^(1/2) w| |S0^(-1/2) w|, w the top eigenvector of
S0^(1/2) (A + A^T) S0^(1/2), which the perturbation u e^T + e u^T attains, u = S0^(1/2) w, e = S0^(-1/2) w.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.papers.stability_estimate import runs
from otflow.papers.stability_estimate.runs import ON_LINE, S0, TAUS, A, Contraction, Parting, turned
from otflow.reproduce.claim import Claim, Source
from otflow.reproduce.fits import slope
from otflow.stability.coupled import coupled

AGS = Source("Ambrosio, Gigli, Savaré 2008, Theorem 11.2.1")
PROX = Source("the step is a proximal map, see the text")
FORMULA = Source("Lipschitz constant of the closed form, see the text")
MEANS = Source("means of Gaussians")
CASTIN = Source("Castin et al. 2025, arXiv 2501.18322, section 4; derivative of the closed form")
# The largest slopes of sigma' over all Gaussians of the line, for the fields of the runs.
L2_RATE, SINKHORN_RATE = 9 / 8, math.sqrt(3 * math.sqrt(3) / (2 + math.sqrt(3)))


def contraction_claims(found: dict[float, Contraction]) -> list[Claim]:
    """Gaussians of the plane: below the bound, and on it for shifts."""
    excess = {tau: (c.random / runs.bound(tau, c.t))[1:].max() for tau, c in found.items()}
    defect = {tau: np.abs(c.shift / runs.bound(tau, c.t) - 1).max() for tau, c in found.items()}
    word = "Fokker-Planck equation, Gaussians of the plane"
    flow = f"{word}: exp(lambda t) W2(mu_t, nu_t) / W2(mu_0, nu_0) (largest)"
    steps = f"{word}: (1 + lambda tau)^k W2(mu_k, nu_k) / W2(mu_0, nu_0) for JKO (largest)"
    shifts = f"{word}: equality for shifts along the weakest direction, {{}} (largest defect)".format
    return [
        AGS(flow).at_most(1.0, excess[0.0], slack=1e-7),
        FORMULA(steps).at_most(1.0, max(excess[tau] for tau in TAUS), slack=1e-9),
        MEANS(shifts("JKO")).at_most(1e-9, max(defect[tau] for tau in TAUS)),
        MEANS(shifts("flow")).at_most(1e-6, defect[0.0]),
    ]


def _bowl(x: Tensor) -> Tensor:
    r = x.square().sum(-1)
    return r.square() / 4 + 0.15 * r


def _far_pull(x: Tensor, y: Tensor) -> Tensor:
    return (1 + (x - y).square().sum(-1)).sqrt()


def cloud_claims() -> list[Claim]:
    """Clouds of different sizes and weights, with equal means: on those, quadratic interactions are convex.

    >>> from otflow.papers.stability_estimate.convex import cloud_claims
    >>> {str(claim.verdict) for claim in cloud_claims()}
    {'holds'}
    """
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(12, 2)), rng.normal(0.5, 0.7, size=(8, 2))
    w = rng.dirichlet(np.ones(8))
    mu, nu = of.Particles(x - x.mean(0)), of.Particles(y - w @ y, w)
    bowl = of.Potential(_bowl) + of.Interaction(_far_pull)
    pull, push = (of.QuadraticInteraction(turned(*values)) for values in ((0.6, 2.0), (-0.5, -0.2)))
    words = "(1 + lambda tau)^k W2(mu_k, nu_k) / W2(mu_0, nu_0) (largest)"
    return [
        PROX(f"clouds, {name}, lambda = {lam:g}: {words}").at_most(
            1.0, runs.worst_ratio(mu, nu, energy, lam, 0.1, tau), slack=1e-9
        )
        for name, energy, lam, tau in (
            ("bowl |x|^4/4 + 0.15 |x|^2 and attraction", bowl, 0.3, 1.0),
            ("quadratic attraction with equal means", pull, 0.6, 2.0),
            ("quadratic repulsion with equal means", push, -0.5, 1.0),
        )
    ]


def line_claims(n: int) -> list[Claim]:
    """Densities on the line, by n quantiles.

    >>> from otflow.papers.stability_estimate.convex import line_claims
    >>> {str(claim.verdict) for claim in line_claims(10)}
    {'holds'}
    """
    laws = stats.norm(0.2, 0.6), stats.gumbel_r(-0.5, 0.8)
    mu, nu = (of.Quantiles.from_ppf(law.ppf, n) for law in laws)
    energies = {"entropy": of.Entropy(), "porous medium, m = 2,": of.PorousMedium(2.0)}
    well = of.QuadraticPotential([[0.7]])
    return [
        PROX(f"densities on the line, {name} and a well, lambda = 0.7: the same for JKO (largest)").at_most(
            1.0, runs.worst_ratio(mu, nu, energy + well, 0.7, 0.1, 1.0), slack=1e-8
        )
        for name, energy in energies.items()
    ]


def parting_claims(p: Parting) -> list[Claim]:
    """Powers of 1 - t/t* at the blow-up, and the factor before them."""
    seen, factor, last = p.observed, closed_forms.softmax_blow_up_sensitivity(S0, A), float(p.left[-1])
    power = "softmax, line: deviations part like (1 - t/t*)^-1.5 (slope)"
    means = "softmax, line: means part like exp(v t) (1 - t/t*)^-0.5 (slope without the exponential)"
    near = "line: nearby Gaussians part by the derivative (largest relative defect)"
    norm = "softmax, plane: u e^T + e u^T is not amplified beyond the norm (largest ratio to it)"
    limit = "softmax, plane: |S0^(1/2) w| |S0^(-1/2) w| before (1 - t/t*)^-1.5, at the last time"
    defects = {name: np.abs(seen[name] / p.exact[name] - 1).max() for name in ON_LINE}
    return [
        CASTIN(power).equal(-1.5, slope(p.left, seen["softmax"]), atol=1e-4),
        CASTIN(means).equal(-0.5, slope(p.left, seen["mean"] * np.exp(p.left - 1)), atol=1e-4),
        *(CASTIN(f"{name}, {near}").at_most(1e-4, defect) for name, defect in defects.items()),
        CASTIN(norm).at_most(1.0, (seen["plane"] / p.exact["plane"]).max(), slack=1e-4),
        CASTIN(limit).equal(factor, seen["plane"][-1] * last**1.5, rtol=4 * last),
    ]


def uniform_claims() -> list[Claim]:
    """At a fixed time, over Gaussians of all sizes.

    >>> from otflow.papers.stability_estimate.convex import uniform_claims
    >>> {str(claim.verdict) for claim in uniform_claims()}
    {'holds'}
    """
    t, left = 0.5, 1e-3
    pair = runs.around(math.sqrt((1 - left) / t), 1e-3 * left)  # blows up a little later than t
    seen = coupled(*pair, ON_LINE["softmax"], runs.FINE, t1=t, save_at=[0])
    s0 = torch.logspace(-6, 6, 2001, dtype=torch.float64)
    l2, sinkhorn = (
        closed_forms.l2_sensitivity(s0, 0.5, 0.5, 1.0, t),
        closed_forms.sinkhorn_sensitivity(s0, 0.5, 1.0, t),
    )
    none = "softmax, line, t = 1/2: no constant for all Gaussians, ratios such as 1000^1.5 occur"
    rate = "line, t = 1/2: log of the largest derivative over all Gaussians, over t"
    return [
        CASTIN(none).equal(1000**1.5, seen.final, rtol=1e-4),
        *(
            Source(f"{CASTIN}: at most {formula}")(f"{name}, {rate}").within(
                0.9 * top, top, d.max().log() / t
            )
            for name, formula, top, d in (
                ("L2", "9 v q / (8 k)", L2_RATE, l2),
                ("Sinkhorn", "1.17996 v / eps", SINKHORN_RATE, sinkhorn),
            )
        ),
    ]
