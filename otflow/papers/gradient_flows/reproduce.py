"""Attention as a gradient flow: which energy, in which metric, and where there is none

Let A = K^T Q be symmetric and V = -A. Unnormalised, sigmoid and Sinkhorn attention are the steepest
descents in W2 of 1/2 iint exp(Ax.y), of 1/2 iint log(1 + exp(Ax.y)) and of -OT_eps(mu, mu) / (2 eps) with
the cost -Ax.y (Sander et al. 2022, Propositions 2 and 3). Softmax attention is not: in W2 a gradient v has
covectors w_i v_i with a symmetric Jacobian, and those of softmax have not. But Z_i w_i v_i have one, Z_i =
int exp(A x_i.y) dmu(y): softmax attention descends the energy of unnormalised attention where lengths are
weighed by Z (Geshkovski et al. 2025, section 3). A mask leaves nothing symmetric. V = +A is ascent, V = PA
changes the metric by P^-1, and on centred Gaussians, where softmax attention is linear attention, its
energy is 1/4 tr(ASAS) and its metric that of Bures. L2 attention is a gradient there if Q = cK; for other Q
the matrix B of x' = Bx is symmetric with V = -A^T, but not the derivative of an energy.

A gradient flow can be followed by minimising movements as well as by explicit steps. Both are of first
order, and the energy tells them apart: where its curvature along the flow is positive, as in the runs shown
here, implicit steps lose too little of it and explicit ones too much, so that the two enclose the flow. The
energy-dissipation identity is quadratic in the error, and shows that softmax attention is a gradient flow
in its own metric and not in W2.

If A is semidefinite, then the energies of Gaussians are convex functions of every matrix X with S = X X^T.
So they are convex along geodesics, and minimising movements are contractions: the proximal map of a convex
function that sees no more of a random variable than its law contracts every coupling. If A has eigenvalues
of both signs, neither is true. With V = +A convex becomes concave, and 1/4 tr(ASAS), now with a minus,
falls faster than squared distances grow: no step has a minimiser.

Two warnings. The energy 1/2 iint exp(Ax.y) of a Gaussian is infinite if an eigenvalue of SASA reaches one,
although the flow is harmless there: the twisted metric is for laws with thin tails. And the cost -Ax.y must
not be replaced by |Qx - Qy|^2 / 2: the plan is the same, but the descent is Q^T Q (x - E[y|x]) / eps, with
a term that attention does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.papers.gradient_flows import draw
from otflow.papers.gradient_flows.draw import (
    BETA,
    DEFINITE,
    EPS,
    EYE,
    KINDS,
    MIXED,
    OTHER,
    SEED,
    DescentCase,
    DescentPath,
    Followed,
    N,
    P,
    Q,
    asymmetries,
    case,
    cloud,
    curvatures,
    energies,
    follow,
    infinite_path,
    law,
    order,
    pairs,
    skew,
    to_follow,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.quadrature import nodes, scaled

SINKFORMERS = Source("Sander, Ablin, Blondel, Peyré 2022, Propositions 2 and 3")
SPHERE = Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2025, section 3")
CLOSED = Source("closed forms of energies on Gaussians, V = -A")
AGS = Source("Ambrosio, Gigli, Savaré 2008")
TOTAL = Source("Cavagnari, Savaré, Sodini 2023, arXiv 2305.05211")
NONE = ("softmax", "softmax, masked", "softmax, masked, weighed by Z", "L2, other Q")  # without energy


def run(frame: Frame) -> Result:
    """Identities, then runs, then convexity and the two warnings."""
    frame.stage(0.0, "fields against descents")
    identities = [*_descent_claims(cases := _cases()), *_gaussian_claims(), *_sphere_claims()]
    frame.stage(0.03, "dissipation")
    identities += _dissipation_claims(cases)
    frame.stage(0.1, "Jacobians")
    uneven, runs = asymmetries(), {}
    for k, (name, c) in enumerate(to_follow().items()):
        frame.stage(0.15 + 0.1 * k, f"explicit and implicit runs, {name}")
        runs[name] = follow(
            c, (0.05, 0.025) if frame.quick else (0.1, 0.05, 0.025), t1=0.1 if frame.quick else 0.5
        )
    frame.stage(0.85, "convexity")
    bent, path = curvatures(100 if frame.quick else 1000), infinite_path()
    rest = [
        *_convexity_claims(bent, 20 if frame.quick else 100),
        *_infinite_claims(path),
        *_wrong_cost_claims(),
    ]
    frame.stage(0.95, "figures")
    claims = [*identities, *_asymmetry_claims(uneven), *_run_claims(runs), *_balance_claims(runs), *rest]
    figures = {"runs": draw.runs(runs), "structure": draw.structure(uneven, bent, path)}
    return Result(claims, figures, _data(uneven, runs, bent))


def _at_most(words: str, source: Source, bound: float, found: Mapping[str, float]) -> list[Claim]:
    """One claim for every name."""
    return [source(f"{name}: {words}").at_most(bound, value) for name, value in found.items()]


def _within(words: str, source: Source, low: float, high: float, found: Mapping[str, float]) -> list[Claim]:
    return [source(f"{name}: {words}").within(low, high, value) for name, value in found.items()]


# --- fields and descents -----------------------------------------------------------------------------


def _cases() -> dict[str, list[DescentCase]]:
    """Scores of both signs, with all values that are allowed."""
    A, mu, nu = MIXED, cloud(), law()
    values = (-A, A, -0.5 * A, P @ A, -P @ A)
    K = torch.tensor([[0.8, -0.3], [0.2, 0.6]], dtype=torch.float64)
    H, soft, sinkhorn = 1.3 * K.mT @ K, KINDS["softmax"], KINDS["Sinkhorn"]
    heads = of.MultiHead([of.SoftmaxAttention(B, EYE, -B) for B in (A, DEFINITE)])
    return {
        **{name: [case(make(A, EYE, V), mu) for V in values] for name, make in KINDS.items()},
        "softmax, Gaussians": [case(soft(A, EYE, V), nu) for V in values],
        "Sinkhorn, Gaussians": [case(sinkhorn(A, EYE, V), nu) for V in values],
        "L2 with Q = cK, Gaussians": [case(of.L2Attention(-1.3 * K, K, V), nu) for V in (H, -P @ H)],
        "two heads of softmax, Gaussians": [case(heads, nu)],
    }


def _relative(found: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """The largest difference over the largest value, all pieces together."""
    both = list(zip(found, exact, strict=True))
    return max(float((a - b).abs().max()) for a, b in both) / max(float(b.abs().max()) for _, b in both)


def _descent_claims(cases: dict[str, list[DescentCase]]) -> list[Claim]:
    worst = {
        name: max(_relative(c.descent(0.0, c.mu), c.field(0.0, c.mu)) for c in group)
        for name, group in cases.items()
    }
    words = "the descent of the energy is the field, for V = -A, A, -A / 2, PA, -PA"
    few = "the descent of the energy is the field"
    all_of = {name: value for name, value in worst.items() if len(cases[name]) == 5}
    rest = {name: value for name, value in worst.items() if name not in all_of}
    return _at_most(words, SINKFORMERS, 1e-10, all_of) + _at_most(few, CLOSED, 1e-10, rest)


def _gaussian_claims() -> list[Claim]:
    """Fields against derivatives of closed forms."""
    A, K, c, heads = MIXED, Q, 0.7, torch.stack([MIXED, DEFINITE])
    both = of.MultiHead([of.SoftmaxAttention(B, EYE, -B) for B in heads])
    l2 = of.L2Attention(c * K, K, -c * K.mT @ K)
    soft, sinkhorn = (KINDS[name](A, EYE, -A) for name in ("softmax", "Sinkhorn"))
    found = {
        "tr(ASAS) / 4": _misfit(soft, lambda S: closed_forms.softmax_energy(S, A)),
        "tr(ASAS) / 4, summed over heads": _misfit(both, lambda S: closed_forms.multihead_energy(S, heads)),
        "sum (q - 1 - log((1 + q) / 2)) / 4, q^2 = 1 + 4 s^2 / eps^2": _misfit(
            sinkhorn, lambda S: closed_forms.sinkhorn_energy(S, A, eps=EPS)
        ),
        "c^2 (tr HS - log det(I + 2HS) / 2) / 2": _misfit(l2, lambda S: closed_forms.l2_energy(S, K, c)),
    }
    return _at_most("x' = -2 grad G(S) x is the attention of Gaussians", CLOSED, 1e-10, found)


def _misfit(field: of.VelocityField, G: Callable[[Tensor], Tensor]) -> float:
    mu = law()
    S = mu.cov.clone().requires_grad_()
    (g,) = torch.autograd.grad(G((S + S.mT) / 2), S)
    return _relative([-(g + g.mT) @ mu.root], [field(0.0, mu)[1]])


def _sphere_claims() -> list[Claim]:
    """On the sphere of R^3, against the tangential gradient of E_beta, over w Z for softmax and w else."""
    x = torch.from_numpy(np.random.default_rng(SEED).normal(size=(N, 3)))
    mu = of.Particles(x / x.norm(dim=-1, keepdim=True), cloud().w, space=of.Sphere())
    at, eye = mu.x.clone().requires_grad_(), torch.eye(3, dtype=torch.float64)
    kernel = mu.w * torch.exp(BETA * at @ at.mT)
    (g,) = torch.autograd.grad((mu.w @ kernel).sum() / (2 * BETA), at)
    up = (g - (g * mu.x).sum(-1, keepdim=True) * mu.x) / mu.w[:, None]
    exact = {"softmax": up / kernel.detach().sum(-1, keepdim=True), "unnormalised": up}
    both = {name: case(KINDS[name](BETA * eye, eye, eye), mu) for name in exact}
    worst = {
        name: max(_relative(v(0.0, mu), [exact[name]]) for v in (c.field, c.descent))
        for name, c in both.items()
    }
    return _at_most(f"on the sphere, with V = I, ascent of E_beta, beta = {BETA:g}", SPHERE, 1e-10, worst)


def _dissipation_claims(cases: dict[str, list[DescentCase]]) -> list[Claim]:
    worst = {name: max(map(_imbalance, group)) for name, group in cases.items()}
    words = "dF/dt = -<v, v> in the metric of the descent, along runs (relative difference)"
    return _at_most(words, AGS.at("section 11.1"), 1e-8, worst)


def _imbalance(c: DescentCase) -> float:
    traj = of.flow(c.mu, c.field, of.RK4(), t1=0.5, dt=0.25)
    return max(_rate_error(c._replace(mu=mu)) for mu in traj.measures)


def _rate_error(c: DescentCase) -> float:
    """Central differences of order six of the energy, along the velocity of the field."""
    v, F = c.field(0.0, c.mu), c.descent.energy
    h = 0.005 / max(float(p.abs().max()) for p in v)
    gaps = [float(F(c.mu.move(k * h * v)) - F(c.mu.move(-k * h * v))) for k in (1, 2, 3)]
    rate = (45 * gaps[0] - 9 * gaps[1] + gaps[2]) / (60 * h)
    return abs(rate / float(c.descent.metric.inner(c.mu, v, v)) + 1)


def _asymmetry_claims(found: dict[str, float]) -> list[Claim]:
    clouds, laws = ({k: v for k, v in found.items() if k.startswith("L2") is both} for both in (False, True))
    B = of.L2Attention(Q, OTHER, -Q.mT @ OTHER).matrix(torch.zeros((), dtype=torch.float64), law())
    return [
        *_symmetry("asymmetry |J - J^T| / |J| of the Jacobian of the covectors", clouds),
        *_symmetry("on Gaussians, V = -A^T, asymmetry of the Jacobian of S -> B(S)", laws),
        *_at_most("on Gaussians, V = -A^T, asymmetry of B(S)", CLOSED, 1e-12, {"L2, other Q": skew(B)}),
    ]


def _symmetry(words: str, found: dict[str, float]) -> list[Claim]:
    yes, no = ({k: v for k, v in found.items() if (k in NONE) is none} for none in (False, True))
    source = Source("a gradient has a symmetric Jacobian")
    return [
        *_at_most(f"a gradient, {words}", source, 1e-8, yes),
        *_within(f"not a gradient, {words}", source, 0.1, 2.0, no),
    ]


# --- explicit and implicit runs ----------------------------------------------------------------------


def _run_claims(runs: dict[str, Followed]) -> list[Claim]:
    first, second = (
        {name: order(f.errors[scheme]) for name, f in runs.items()} for scheme in ("JKO", "extrapolated")
    )
    words = "meets the attention flow at {} order (slope of W2 in the step)".format
    side = {name: f.excess() for name, f in runs.items()}
    enclosed = "energies of JKO are above, those of Euler below the flow's (largest excess, relative)"
    return [
        *_within(f"JKO {words('first')}", AGS.at("section 4"), 0.9, 1.1, first),
        *_within(f"extrapolated JKO {words('second')}", Source("Richardson"), 1.7, 2.2, second),
        *_at_most(enclosed, Source("positive curvature along the flow, A > 0"), 0.0, side),
    ]


def _balance_claims(runs: dict[str, Followed]) -> list[Claim]:
    orders = {name: float(of.balance_order(f.balances()[-2:])) for name, f in runs.items()}
    words = "what JKO leaves of the energy-dissipation identity is of second order (slope)"
    c, exact = runs["softmax"].case, runs["softmax"].exact
    plain = of.SteepestDescent(c.descent.energy, of.Wasserstein())
    twisted, flat = (float(of.energy_balance(exact, d).relative) for d in (c.descent, plain))
    missing = "missing from the energy-dissipation identity (relative to the fall)"
    return [
        *_within(words, AGS.at("section 11.1"), 1.7, 2.3, orders),
        *_at_most(missing, SPHERE, 2e-3, {"softmax in the twisted metric": twisted}),
        *_within(missing, SPHERE, 0.02, 10.0, {"softmax in W2": flat}),
    ]


# --- convexity on Gaussians --------------------------------------------------------------------------


def _convexity_claims(bent: dict[str, dict[str, np.ndarray]], count: int) -> list[Claim]:
    convex, mixed, concave = bent.values()
    what = "second derivatives along Bures geodesics of length one"
    source = Source("convex functions of X, S = X X^T")
    shrinks = {f"{name}, A > 0, V = -A": _stretch(G, count, 1.0) for name, G in energies(DEFINITE).items()}
    grows = {f"{name}, A of both signs": _stretch(G, count, 0.1) for name, G in energies(MIXED).items()}
    ratio = f"largest W2(J mu, J nu) / W2(mu, nu) over {count} pairs, for JKO steps J of length"
    low = {f"{name}, A > 0, V = -A": -a.min() for name, a in convex.items()}
    high = {f"{name}, A > 0, V = A": a.max() for name, a in concave.items()}
    both = {f"{name}, A of both signs, V = -A": a.min() for name, a in mixed.items()}
    return [
        *_at_most(f"convex, {what} (minus the least)", source, 0.0, low),
        *_at_most(f"concave, {what} (the largest)", source, 0.0, high),
        *_at_most(f"not convex, {what} (the least)", source, -0.5, both),
        *_at_most(f"{ratio} 1", TOTAL, 1.0, shrinks),
        *_within(f"{ratio} 0.1", Source("no contraction without convexity"), 1.01, 2.0, grows),
    ]


def _stretch(G: of.Energy, count: int, tau: float) -> float:
    mu, nu = pairs(count)
    a, b = (of.jko_step(m, G, tau).mu for m in (mu, nu))
    return float((of.wasserstein(a, b) / of.wasserstein(mu, nu)).max())


# --- two warnings ------------------------------------------------------------------------------------


def _infinite_claims(path: DescentPath) -> list[Claim]:
    """The last by linear extrapolation of det(I - SASA) = 1 / (4 F^2) to zero."""
    (x, w), A = nodes(law().cov.numpy(), 40), MIXED.numpy()
    sums = float(w @ np.exp(x @ A @ x.T) @ w) / 2
    F, big = of.ExponentialInteraction(A), of.Gaussian([0.0, 0.0], 1.5 * EYE)
    (t0, d0), (t1, d1) = [(t, 0.25 / f**2) for t, f in zip(path.t, path.F, strict=True) if np.isfinite(f)][:2]
    found, when = float(F(law())), t0 - d0 * (t1 - t0) / (d1 - d0)
    words = "1/2 iint exp(Ax.y) of a Gaussian"
    rule = Source("Gauss-Hermite quadrature")
    exact = Source("explicit solution for diagonal A and S")
    return [
        rule(f"{words}, eigenvalues of SASA below one").equal(sums, found, rtol=1e-8),
        Source("closed form")(f"{words}, not all eigenvalues of SASA below one").equal(
            "inf", str(float(F(big)))
        ),
        exact(f"{words} under softmax: finite from").equal(path.last, when, atol=1e-3),
    ]


class WrongCost(of.Energy):
    """-OT_eps(mu, mu) / (2 eps) for the cost |Qx - Qy|^2 / 2, which is half of OT_(2 eps) for |Qx - Qy|^2."""

    def __call__(self, mu: of.Measure) -> Tensor:
        image = mu.at([mu.coords[0] @ Q.mT])
        return -of.sinkhorn(image, image, 2 * EPS, tol=1e-12).regularised_cost / (4 * EPS)


def _wrong_cost_claims() -> list[Claim]:
    """Against a plan that is scaled by hand."""
    mu = cloud()
    x, w = mu.x.numpy(), mu.w.numpy()
    z = x @ Q.numpy().T
    plan = scaled(-((z[:, None] - z) ** 2).sum(-1) / (2 * EPS), w, w)
    exact = torch.from_numpy((x - plan @ x / w[:, None]) @ DEFINITE.numpy() / EPS)
    found = of.SteepestDescent(WrongCost(), of.Wasserstein())(0.0, mu)[0]
    attention = KINDS["Sinkhorn"](DEFINITE, EYE, -DEFINITE)(0.0, mu)[0]
    words = "Sinkhorn with the cost |Qx - Qy|^2 / 2"
    right = {f"{words}: descent against Q^T Q (x - E[y|x]) / eps": _relative([found], [exact])}
    right[f"{words}: descent against attention + Q^T Q x / eps"] = _relative(
        [found], [attention + mu.x @ DEFINITE / EPS]
    )
    other = {f"{words}: descent against attention": _relative([found], [attention])}
    what = "relative difference"
    return [
        *_at_most(what, Source("envelope theorem"), 1e-8, right),
        *_within(what, Source("envelope theorem"), 0.5, 10.0, other),
    ]


def _data(
    uneven: dict[str, float], runs: dict[str, Followed], bent: dict[str, dict[str, np.ndarray]]
) -> dict[str, np.ndarray[Any, Any]]:
    """Errors (steps, schemes), exact energies, asymmetries, and curvatures (places, geodesics)."""
    return {
        "asymmetries": np.array(list(uneven.values())),
        "steps": np.array(list(next(iter(runs.values())).runs["JKO"])),
        **{
            f"error_{_key(n)}": np.array([list(e.values()) for e in f.errors.values()]).T
            for n, f in runs.items()
        },
        **{f"energy_{_key(n)}": f.exact.observed["F"].numpy() for n, f in runs.items()},
        **{f"curvature_{_key(n)}_{k}": v for n, each in bent.items() for k, v in each.items()},
    }


def _key(name: str) -> str:
    return "_".join(name.replace(",", "").replace("=", "").split())
