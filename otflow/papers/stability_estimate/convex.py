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
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.closed_forms import (
    l2_sensitivity,
    sinkhorn_sensitivity,
    softmax_blow_up_sensitivity,
    softmax_path_sensitivity,
    softmax_sensitivity,
)
from otflow.reproduce.claim import Claim, Source
from otflow.reproduce.fits import slope
from otflow.stability.coupled import coupled

AGS = Source("Ambrosio, Gigli, Savaré 2008, Theorem 11.2.1")
PROX = Source("the step is a proximal map, see the text")
CASTIN = Source("Castin et al. 2025, arXiv 2501.18322, section 4; derivative of the closed form")
LAM, END = 0.5, 3.0  # of the contraction of Gaussians
TAUS = (1.0, 0.5, 0.25)
TURN = np.array([[0.8, -0.6], [0.6, 0.8]])
S0 = np.array([[2.0, 0.1], [0.1, 0.1]])
A = np.array([[0.1, 0.9], [0.2, 2.5]])
L2_RATE = 9 / 8  # the largest slopes of sigma' over all Gaussians, for the fields below
SINKHORN_RATE = math.sqrt(3 * math.sqrt(3) / (2 + math.sqrt(3)))
FIELDS = {
    "softmax": of.SoftmaxAttention([[0.5]], [[1.0]], [[1.0]]),
    "L2": of.L2Attention([[0.5]], [[0.5]], [[1.0]]),
    "Sinkhorn": of.SinkhornAttention([[0.5]], [[1.0]], [[1.0]]),
}
Array = np.ndarray[Any, Any]


class Contraction(NamedTuple):
    """Ratios W2(mu_t, nu_t) / W2(mu_0, nu_0) of the Fokker-Planck equation on Gaussians of the plane.

    Of the JKO scheme for each tau and, under 0, of the flow: times, the largest ratio of random pairs, and
    the ratio of two laws that differ by a shift along the weakest direction.
    """

    t: dict[float, Array]
    random: dict[float, Array]
    shift: dict[float, Array]


class Parting(NamedTuple):
    """Ratios under attention against 1 - t/t*, t* the blow-up under softmax."""

    left: Array
    observed: dict[str, Array]  # on the line, by two runs side by side; under "mean", of shifted laws
    exact: dict[str, Array]
    plane: Array
    plane_exact: Array


class Measured(NamedTuple):
    """What the picture shows."""

    contraction: Contraction
    parting: Parting


@cache
def measured(quick: bool) -> Measured:
    """All runs behind the picture.

    >>> measured(True).parting.left[:2].tolist()
    [0.5, 0.25]
    """
    return Measured(_contraction(10 if quick else 100), _parting(7 if quick else 12))


def arrays(m: Measured) -> dict[str, Array]:
    """The same as arrays with names.

    >>> sorted(arrays(measured(True)))[:2]
    ['contraction_flow', 'contraction_tau_0p25']
    """
    rows = {
        f"contraction_{'flow' if tau == 0 else f'tau_{tau:g}'.replace('.', 'p')}": np.stack(
            [m.contraction.t[tau], m.contraction.random[tau], m.contraction.shift[tau]]
        )
        for tau in m.contraction.t
    }
    lines = {f"parting_{name}": np.stack([m.parting.left, y]) for name, y in m.parting.observed.items()}
    plane = np.stack([m.parting.left, m.parting.plane, m.parting.plane_exact])
    return rows | lines | {"parting_plane": plane}


def claims(quick: bool) -> list[Claim]:
    """What is stated about contraction and sensitivity, next to what was measured.

    >>> {str(claim.verdict) for claim in claims(True)}
    {'holds'}
    """
    m = measured(quick)
    return [
        *_gaussian_claims(m.contraction),
        *_cloud_claims(),
        *_line_claims(30 if quick else 100),
        *_blow_up_claims(m.parting),
        *_uniform_claims(),
    ]


# --- contraction ---------------------------------------------------------------------------------------


def _descent(energy: of.Energy) -> of.SteepestDescent:
    return of.SteepestDescent(energy, of.Wasserstein())


def _turned(*values: float) -> Array:
    out: Array = TURN @ np.diag(values) @ TURN.T
    return out


def _random_gaussians(n: int, rng: np.random.Generator) -> of.Gaussian:
    """With deviations from 1/2 to 2: short ones make explicit steps stiff."""
    Q = np.linalg.qr(rng.normal(size=(n, 2, 2)))[0]
    return of.Gaussian(0.3 * rng.normal(size=(n, 2)), Q * 2 ** rng.uniform(-1, 1, (n, 1, 2)))


def _contraction(n: int) -> Contraction:
    """The last pair of the batch differs by a shift, the others are random."""
    rng = np.random.default_rng(1)
    mu, nu = _random_gaussians(n + 1, rng), _random_gaussians(n + 1, rng)
    mean, root = nu.mean.clone(), nu.root.clone()
    mean[-1], root[-1] = mu.mean[-1] + torch.from_numpy(TURN[:, 0]), mu.root[-1]
    field, pair = _descent(of.QuadraticPotential(_turned(LAM, 3.0)) + of.Entropy()), (mu, nu.at([mean, root]))
    runs = {tau: coupled(*pair, field, of.JKO(), t1=END, dt=tau) for tau in TAUS}
    runs[0.0] = coupled(*pair, field, of.RK4(), t1=END, dt=0.05, save_at=np.linspace(0, END, 7))
    return Contraction(
        {tau: r.ts.numpy() for tau, r in runs.items()},
        {tau: r.ratios[:, :-1].amax(-1).numpy() for tau, r in runs.items()},
        {tau: r.ratios[:, -1].numpy() for tau, r in runs.items()},
    )


def bound(tau: float, t: Array, lam: float = LAM) -> Array:
    """(1 + lambda tau)^(-t/tau), and exp(-lambda t) for tau = 0.

    >>> bound(1.0, np.array([2.0]), 1.0).item()
    0.25
    """
    out: Array = np.exp(-lam * t) if tau == 0 else (1 + lam * tau) ** (-t / tau)
    return out


def _gaussian_claims(c: Contraction) -> list[Claim]:
    excess = {tau: float((c.random[tau] / bound(tau, t))[1:].max()) for tau, t in c.t.items()}
    exact = {tau: float(np.abs(c.shift[tau] / bound(tau, t) - 1).max()) for tau, t in c.t.items()}
    word = "Fokker-Planck equation, Gaussians of the plane"
    return [
        AGS(f"{word}: exp(lambda t) W2(mu_t, nu_t) / W2(mu_0, nu_0) (largest)").at_most(
            1.0, excess[0.0], slack=1e-7
        ),
        Source("Lipschitz constant of the closed form, see the text")(
            f"{word}: (1 + lambda tau)^k W2(mu_k, nu_k) / W2(mu_0, nu_0) for JKO (largest)"
        ).at_most(1.0, max(excess[tau] for tau in TAUS), slack=1e-9),
        Source("means of Gaussians")(
            f"{word}: equality for shifts along the weakest direction, JKO (largest defect)"
        ).at_most(1e-9, max(exact[tau] for tau in TAUS)),
        Source("means of Gaussians")(
            f"{word}: equality for shifts along the weakest direction, flow (largest defect)"
        ).at_most(1e-6, exact[0.0]),
    ]


def _bowl(x: Tensor) -> Tensor:
    r = x.square().sum(-1)
    return r.square() / 4 + 0.15 * r


def _far_pull(x: Tensor, y: Tensor) -> Tensor:
    return (1 + (x - y).square().sum(-1)).sqrt()


def _worst(mu: of.Measure, nu: of.Measure, energy: of.Energy, lam: float, taus: tuple[float, ...]) -> float:
    """The largest (1 + lambda tau)^k times the ratio after k steps, k = 1, ..., 4."""
    worst = 0.0
    for tau in taus:
        ratios = coupled(mu, nu, _descent(energy), of.JKO(), t1=4 * tau, dt=tau).ratios.numpy()
        worst = max(worst, float((ratios / bound(tau, tau * np.arange(len(ratios)), lam))[1:].max()))
    return worst


def _cloud_claims() -> list[Claim]:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(12, 2)), rng.normal(0.5, 0.7, size=(8, 2))
    w = rng.dirichlet(np.ones(8))
    mu, nu = of.Particles(x - x.mean(0)), of.Particles(y - w @ y, w)
    cases = {
        "bowl |x|^4/4 + 0.15 |x|^2 and attraction, lambda = 0.3": (
            of.Potential(_bowl) + of.Interaction(_far_pull),
            0.3,
            (0.1, 1.0),
        ),
        "quadratic attraction with equal means, lambda = 0.6": (
            of.QuadraticInteraction(_turned(0.6, 2.0)),
            0.6,
            (0.1, 2.0),
        ),
        "quadratic repulsion with equal means, lambda = -0.5": (
            of.QuadraticInteraction(_turned(-0.5, -0.2)),
            -0.5,
            (0.1, 1.0),
        ),
    }
    return [
        PROX(f"clouds, {name}: (1 + lambda tau)^k W2(mu_k, nu_k) / W2(mu_0, nu_0) (largest)").at_most(
            1.0, _worst(mu, nu, *case), slack=1e-9
        )
        for name, case in cases.items()
    ]


def _line_claims(n: int) -> list[Claim]:
    from scipy import stats

    mu = of.Quantiles.from_ppf(stats.norm(0.2, 0.6).ppf, n)
    nu = of.Quantiles.from_ppf(stats.gumbel_r(-0.5, 0.8).ppf, n)
    well = of.QuadraticPotential([[0.7]])
    cases = {"entropy": of.Entropy(), "porous medium, m = 2,": of.PorousMedium(2.0)}
    return [
        PROX(f"densities on the line, {name} and a well, lambda = 0.7: the same for JKO (largest)").at_most(
            1.0, _worst(mu, nu, energy + well, 0.7, (0.1, 1.0)), slack=1e-8
        )
        for name, energy in cases.items()
    ]


# --- sensitivity ---------------------------------------------------------------------------------------


def _around(sigma: float, size: float) -> tuple[of.Gaussian, of.Gaussian]:
    return of.Gaussian([0.0], [[sigma - size]]), of.Gaussian([0.0], [[sigma + size]])


def worst_perturbation(S: Any, A: Any) -> Tensor:
    """u e^T + e u^T, u = S^(1/2) w, e = S^(-1/2) w: what softmax with V = I amplifies most at its blow-up.

    >>> worst_perturbation([[4.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]])
    tensor([[2., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    u = closed_forms.softmax_blow_up_direction(S, A)[:, None]
    half = u @ torch.linalg.solve(torch.as_tensor(S, dtype=torch.float64), u).mT
    out: Tensor = half + half.mT
    return out


def _parting(n: int) -> Parting:
    """From t*/2 to (1 - 2^-n) t*; t* = 1 on the line."""
    left = 2.0 ** -np.arange(1, n + 1)
    fine, size = of.Dopri5(1e-10, 1e-12), 5e-4 * left[-1]  # perturbations small against what is left of time
    t = 1 - left
    # Two pairs at once: deviations that differ, and means that differ.
    mu = of.Gaussian([[0.0], [0.0]], [[[1.0 - size]], [[1.0]]])
    nu = of.Gaussian([[0.0], [1e-3]], [[[1.0 + size]], [[1.0]]])
    softmax = coupled(mu, nu, FIELDS["softmax"], fine, t1=t[-1], save_at=t).ratios.numpy()
    observed = {"softmax": softmax[:, 0], "mean": softmax[:, 1]} | {
        name: coupled(
            *_around(1.0, 1e-4), FIELDS[name], of.RK4(), t1=t[-1], dt=0.02, save_at=t
        ).ratios.numpy()
        for name in ("L2", "Sinkhorn")
    }
    end = closed_forms.softmax_blow_up_time(S0, A).item()
    D, S = size * worst_perturbation(S0, A), torch.from_numpy(S0)
    low, high = (of.Gaussian.from_cov(torch.zeros(2).double(), S + sign * D) for sign in (-1, 1))
    field = of.SoftmaxAttention(A, np.eye(2), np.eye(2))
    plane = coupled(low, high, field, fine, t1=end * t[-1], save_at=end * t).ratios.numpy()
    norm = softmax_path_sensitivity(S0, A, end * t).numpy()
    return Parting(left, observed, exact_on_line(left), plane, norm)


def exact_on_line(left: Array) -> dict[str, Array]:
    """The derivatives of the same flows in closed form.

    >>> exact_on_line(np.array([0.25]))["softmax"].item()
    8.0
    """
    t = 1 - left
    return {
        "softmax": softmax_sensitivity(1.0, 0.5, 1.0, t).numpy(),
        "L2": l2_sensitivity(1.0, 0.5, 0.5, 1.0, t).numpy(),
        "Sinkhorn": sinkhorn_sensitivity(1.0, 0.5, 1.0, t).numpy(),
        "mean": np.exp(t) * left**-0.5,
    }


def _blow_up_claims(p: Parting) -> list[Claim]:
    defects = {name: float(np.abs(y / p.exact[name] - 1).max()) for name, y in p.observed.items()}
    factor, last = float(softmax_blow_up_sensitivity(S0, A)), float(p.left[-1])
    return [
        CASTIN("softmax, line: deviations part like (1 - t/t*)^-1.5 (slope)").equal(
            -1.5, slope(p.left, p.observed["softmax"]), atol=1e-4
        ),
        CASTIN(
            "softmax, line: means part like exp(v t) (1 - t/t*)^-0.5 (slope without the exponential)"
        ).equal(-0.5, slope(p.left, p.observed["mean"] * np.exp(p.left - 1)), atol=1e-4),
        *(
            CASTIN(
                f"{name}, line: nearby Gaussians part by the derivative (largest relative defect)"
            ).at_most(1e-4, defects[name])
            for name in FIELDS
        ),
        CASTIN(
            "softmax, plane: u e^T + e u^T is not amplified beyond the norm (largest ratio to it)"
        ).at_most(1.0, (p.plane / p.plane_exact).max(), slack=1e-4),
        CASTIN("softmax, plane: |S0^(1/2) w| |S0^(-1/2) w| before (1 - t/t*)^-1.5, at the last time").equal(
            factor, p.plane[-1] * last**1.5, rtol=4 * last
        ),
    ]


def _uniform_claims() -> list[Claim]:
    """At a fixed time, over Gaussians of all sizes."""
    t, left = 0.5, 1e-3
    sigma = math.sqrt((1 - left) / t)  # blows up a little later than t
    seen = coupled(
        *_around(sigma, 1e-3 * left), FIELDS["softmax"], of.Dopri5(1e-10, 1e-12), t1=t, save_at=[0]
    )
    s0 = torch.logspace(-6, 6, 2001, dtype=torch.float64)
    l2 = l2_sensitivity(s0, 0.5, 0.5, 1.0, t).max().log() / t
    sinkhorn = sinkhorn_sensitivity(s0, 0.5, 1.0, t).max().log() / t
    return [
        CASTIN("softmax, line, t = 1/2: no constant for all Gaussians, ratios such as 1000^1.5 occur").equal(
            1000**1.5, seen.final, rtol=1e-4
        ),
        Source(f"{CASTIN}: at most 9 v q / (8 k)")(
            "L2, line, t = 1/2: log of the largest derivative over all Gaussians, over t"
        ).within(0.9 * L2_RATE, L2_RATE, l2),
        Source(f"{CASTIN}: at most 1.17996 v / eps")(
            "Sinkhorn, line, t = 1/2: log of the largest derivative over all Gaussians, over t"
        ).within(0.9 * SINKHORN_RATE, SINKHORN_RATE, sinkhorn),
    ]
