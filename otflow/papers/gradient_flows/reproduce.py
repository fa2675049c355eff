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
from otflow.papers.gradient_flows import draw, runs
from otflow.papers.gradient_flows.runs import DEFINITE, EPS, EYE, KINDS, MIXED, Q, case, cloud, law
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.quadrature import nodes, scaled

SINKFORMERS = Source("Sander, Ablin, Blondel, Peyré 2022, Propositions 2 and 3")
SPHERE = Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2025, section 3")
CLOSED = Source("closed forms of energies on Gaussians, V = -A")
AGS = Source("Ambrosio, Gigli, Savaré 2008")
BALANCE = AGS.at("section 11.1")
TOTAL = Source("Cavagnari, Savaré, Sodini 2023, arXiv 2305.05211")
NONE = ("softmax", "softmax, masked", "softmax, masked, weighed by Z", "L2, other Q")  # without energy
Cases = dict[str, list[runs.DescentCase]]


def run(frame: Frame) -> Result:
    """Identities, then runs, then convexity and the two warnings."""
    frame.stage(0.0, "fields against descents")
    claims = [*_descent_claims(cases := _cases()), *_gaussian_claims(), *_sphere_claims()]
    frame.stage(0.03, "dissipation")
    claims += _dissipation_claims(cases)
    frame.stage(0.1, "Jacobians")
    uneven, followed = runs.asymmetries(), {}
    steps, t1, pairs, geodesics = frame.size(
        ((0.05, 0.025), 0.1, 20, 100), ((0.1, 0.05, 0.025), 0.5, 100, 1000)
    )
    for k, (name, c) in enumerate(runs.to_follow().items()):
        frame.stage(0.15 + 0.1 * k, f"explicit and implicit runs, {name}")
        followed[name] = runs.follow(c, steps, t1=t1)
    frame.stage(0.85, "convexity")
    bent, path = runs.curvatures(geodesics), runs.infinite_path()
    claims += [*_asymmetry_claims(uneven), *_run_claims(followed), *_balance_claims(followed)]
    claims += [*_convexity_claims(bent, pairs), *_infinite_claims(path), *_wrong_cost_claims()]
    frame.stage(0.95, "figures")
    figures = {"runs": draw.runs(followed), "structure": draw.structure(uneven, bent, path)}
    return Result(claims, figures, _data(uneven, followed, bent))


def _at_most(words: str, source: Source, bound: float, found: Mapping[str, Any]) -> list[Claim]:
    """One claim for every name."""
    return [source(f"{name}: {words}").at_most(bound, value) for name, value in found.items()]


def _within(words: str, source: Source, low: float, high: float, found: Mapping[str, Any]) -> list[Claim]:
    """One claim for every name."""
    return [source(f"{name}: {words}").within(low, high, value) for name, value in found.items()]


# --- fields and descents -----------------------------------------------------------------------------


def _cases() -> Cases:
    """Scores of both signs, with all values that are allowed."""
    A, P, mu, nu = MIXED, runs.P, cloud(), law()
    values = (-A, A, -0.5 * A, P @ A, -P @ A)
    K = torch.tensor([[0.8, -0.3], [0.2, 0.6]], dtype=torch.float64)
    H = 1.3 * K.mT @ K
    heads = of.MultiHead([of.SoftmaxAttention(B, EYE, -B) for B in (A, DEFINITE)])
    return {
        **{name: [case(make(A, EYE, V), mu) for V in values] for name, make in KINDS.items()},
        **{
            f"{k}, Gaussians": [case(KINDS[k](A, EYE, V), nu) for V in values]
            for k in ("softmax", "Sinkhorn")
        },
        "L2 with Q = cK, Gaussians": [case(of.L2Attention(-1.3 * K, K, V), nu) for V in (H, -P @ H)],
        "two heads of softmax, Gaussians": [case(heads, nu)],
    }


def _relative(found: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """The largest difference over the largest value, all pieces together."""
    both = list(zip(found, exact, strict=True))
    return max(float((a - b).abs().max()) for a, b in both) / max(float(b.abs().max()) for _, b in both)


def _descent_claims(cases: Cases) -> list[Claim]:
    """The claim of the whole page, at one measure for each case."""
    words = "the descent of the energy is the field"
    all_of, rest = (
        {
            name: max(_relative(c.descent(0.0, c.mu), c.field(0.0, c.mu)) for c in group)
            for name, group in cases.items()
            if (len(group) == 5) is full
        }
        for full in (True, False)
    )
    values = f"{words}, for V = -A, A, -A / 2, PA, -PA"
    return _at_most(values, SINKFORMERS, 1e-10, all_of) + _at_most(words, CLOSED, 1e-10, rest)


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
    """Of the field and x -> -2 grad G(S) x, both as velocities of a root of S."""
    mu = law()
    S = mu.cov.clone().requires_grad_()
    (g,) = torch.autograd.grad(G((S + S.mT) / 2), S)
    return _relative([-(g + g.mT) @ mu.root], [field(0.0, mu)[1]])


def _sphere_claims() -> list[Claim]:
    """On the sphere of R^3, against the tangential gradient of E_beta, over w Z for softmax and w else."""
    x, beta = torch.from_numpy(np.random.default_rng(runs.SEED).normal(size=(runs.N, 3))), runs.BETA
    mu = of.Particles(x / x.norm(dim=-1, keepdim=True), cloud().w, space=of.Sphere())
    at, eye = mu.x.clone().requires_grad_(), torch.eye(3, dtype=torch.float64)
    kernel = mu.w * torch.exp(beta * at @ at.mT)
    (g,) = torch.autograd.grad((mu.w @ kernel).sum() / (2 * beta), at)
    up = (g - (g * mu.x).sum(-1, keepdim=True) * mu.x) / mu.w[:, None]
    worst = {}
    for name, exact in {"softmax": up / kernel.detach().sum(-1, keepdim=True), "unnormalised": up}.items():
        c = case(KINDS[name](beta * eye, eye, eye), mu)
        worst[name] = max(_relative(v(0.0, mu), [exact]) for v in (c.field, c.descent))
    return _at_most(f"on the sphere, with V = I, ascent of E_beta, beta = {beta:g}", SPHERE, 1e-10, worst)


def _dissipation_claims(cases: Cases) -> list[Claim]:
    """Along runs, at three times; the first ascent blows up at t = 0.27."""
    worst = {
        name: max(
            _rate_error(c._replace(mu=mu))
            for c in group
            for mu in of.flow(c.mu, c.field, of.RK4(), t1=0.2, dt=0.02, save_at=[0.0, 0.1, 0.2]).measures
        )
        for name, group in cases.items()
    }
    words = "dF/dt = -<v, v> in the metric of the descent, along runs (relative difference)"
    return _at_most(words, BALANCE, 1e-8, worst)


def _rate_error(c: runs.DescentCase) -> float:
    """Central differences of order six of the energy, along the velocity of the field."""
    v, F = c.field(0.0, c.mu), c.descent.energy
    h = 0.005 / max(float(p.abs().max()) for p in v)
    a, b, c3 = (float(F(c.mu.move(k * h * v)) - F(c.mu.move(-k * h * v))) for k in (1, 2, 3))
    return abs((45 * a - 9 * b + c3) / (60 * h) / float(c.descent.metric.inner(c.mu, v, v)) + 1)


def _asymmetry_claims(found: dict[str, float]) -> list[Claim]:
    """Clouds first, then Gaussians, and the matrix B of L2 attention, which is symmetric and no gradient."""
    K, claims, source = runs.OTHER, [], Source("a gradient has a symmetric Jacobian")
    for gaussian, words in (
        (False, "asymmetry |J - J^T| / |J| of the Jacobian of the covectors"),
        (True, "on Gaussians, V = -A^T, asymmetry of the Jacobian of S -> B(S)"),
    ):
        here = {k: v for k, v in found.items() if k.startswith("L2") is gaussian}
        yes, no = ({k: v for k, v in here.items() if (k in NONE) is none} for none in (False, True))
        claims += _at_most(f"a gradient, {words}", source, 1e-8, yes)
        claims += _within(f"not a gradient, {words}", source, 0.1, 2.0, no)
    B = of.L2Attention(Q, K, -Q.mT @ K).matrix(torch.zeros((), dtype=torch.float64), law())
    only = {"L2, other Q": runs.skew(B)}
    return claims + _at_most("on Gaussians, V = -A^T, asymmetry of B(S)", CLOSED, 1e-12, only)


# --- explicit and implicit runs ----------------------------------------------------------------------


def _run_claims(followed: dict[str, runs.Followed]) -> list[Claim]:
    """Both orders, and the energies on the sides where they belong."""
    first, second = (
        {name: runs.order(f.errors[scheme]) for name, f in followed.items()}
        for scheme in ("JKO", "extrapolated")
    )
    words = "meets the attention flow at {} order (slope of W2 in the step)".format
    sides = {name: f.excess() for name, f in followed.items()}
    enclosed = "energies of JKO are above, those of Euler below the flow's (largest excess, relative)"
    return [
        *_within(f"JKO {words('first')}", AGS.at("section 4"), 0.9, 1.1, first),
        *_within(f"extrapolated JKO {words('second')}", Source("Richardson"), 1.7, 2.2, second),
        *_at_most(enclosed, Source("positive curvature along the flow, A > 0"), 0.0, sides),
    ]


def _balance_claims(followed: dict[str, runs.Followed]) -> list[Claim]:
    """The energy-dissipation identity tells metrics apart."""
    orders = {name: of.dynamics.balance_order(f.balances()[-2:]) for name, f in followed.items()}
    words = "what JKO leaves of the energy-dissipation identity is of second order (slope)"
    (_, twisted, _), exact, *_ = followed["softmax"]
    plain = of.SteepestDescent(twisted.energy, of.Wasserstein())
    own, flat = (of.energy_balance(exact, d).relative for d in (twisted, plain))
    missing = "missing from the energy-dissipation identity (relative to the fall)"
    return [
        *_within(words, BALANCE, 1.7, 2.3, orders),
        *_at_most(missing, SPHERE, 2e-3, {"softmax in the twisted metric": own}),
        *_within(missing, SPHERE, 0.02, 10.0, {"softmax in W2": flat}),
    ]


# --- convexity on Gaussians --------------------------------------------------------------------------


def _convexity_claims(bent: dict[str, dict[str, np.ndarray]], count: int) -> list[Claim]:
    """Second derivatives, and what minimising movements do to distances."""
    convex, mixed, concave = bent.values()
    what = "second derivatives along Bures geodesics of length one"
    source = Source("convex functions of X, S = X X^T")
    shrinks = {f"{k}, A > 0, V = -A": _stretch(G, count, 1.0) for k, G in runs.energies(DEFINITE).items()}
    grows = {f"{k}, A of both signs": _stretch(G, count, 0.1) for k, G in runs.energies(MIXED).items()}
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
    """The largest factor by which a minimising movement of length tau multiplies distances."""
    mu, nu = runs.pairs(count)
    a, b = (of.jko_step(m, G, tau).mu for m in (mu, nu))
    return float((of.wasserstein(a, b) / of.wasserstein(mu, nu)).max())


# --- two warnings ------------------------------------------------------------------------------------


def _infinite_claims(path: runs.DescentPath) -> list[Claim]:
    """The last by linear extrapolation of det(I - SASA) = 1 / (4 F^2) to zero."""
    (x, w), A = nodes(law().cov.numpy(), 40), MIXED.numpy()
    F, big = of.ExponentialInteraction(A), of.Gaussian([0.0, 0.0], root=1.5 * EYE)
    (t0, d0), (t1, d1) = [(t, 0.25 / f**2) for t, f in zip(path.t, path.F, strict=True) if np.isfinite(f)][:2]
    words, sums = "1/2 iint exp(Ax.y) of a Gaussian", w @ np.exp(x @ A @ x.T) @ w / 2
    below = Source("Gauss-Hermite quadrature")(f"{words}, eigenvalues of SASA below one")
    above = Source("closed form")(f"{words}, not all eigenvalues of SASA below one")
    later = Source("explicit solution for diagonal A and S")(f"{words} under softmax: finite from")
    return [
        below.equal(sums, F(law()), rtol=1e-8),
        above.equal("inf", str(float(F(big)))),
        later.equal(path.last, t0 - d0 * (t1 - t0) / (d1 - d0), atol=1e-3),
    ]


class WrongCost(of.Energy):
    """-OT_eps(mu, mu) / (2 eps) for the cost |Qx - Qy|^2 / 2, which is half of OT_(2 eps) for |Qx - Qy|^2."""

    def __call__(self, mu: of.Measure) -> Tensor:
        image = mu.at([mu.coords[0] @ Q.mT])
        return -of.sinkhorn(image, image, of.Sinkhorn(2 * EPS, tol=1e-12)).regularised_cost / (4 * EPS)


def _wrong_cost_claims() -> list[Claim]:
    """Against a plan that is scaled by hand."""
    mu, envelope = cloud(), Source("envelope theorem")
    x, w = mu.x.numpy(), mu.w.numpy()
    z = x @ Q.numpy().T
    plan = scaled(-((z[:, None] - z) ** 2).sum(-1) / (2 * EPS), w, w)
    exact = torch.from_numpy((x - plan @ x / w[:, None]) @ DEFINITE.numpy() / EPS)
    found = of.SteepestDescent(WrongCost(), of.Wasserstein())(0.0, mu)
    attention = KINDS["Sinkhorn"](DEFINITE, EYE, -DEFINITE)(0.0, mu)[0]
    words = "Sinkhorn with the cost |Qx - Qy|^2 / 2: descent against"
    right = {
        f"{words} Q^T Q (x - E[y|x]) / eps": _relative(found, [exact]),
        f"{words} attention + Q^T Q x / eps": _relative(found, [attention + mu.x @ DEFINITE / EPS]),
    }
    other = {f"{words} attention": _relative(found, [attention])}
    what = "relative difference"
    return _at_most(what, envelope, 1e-8, right) + _within(what, envelope, 0.5, 10.0, other)


def _data(
    uneven: dict[str, float], followed: dict[str, runs.Followed], bent: dict[str, dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Errors (steps, schemes), exact energies, asymmetries, and curvatures (places, geodesics)."""
    data = {"asymmetries": np.array(list(uneven.values()))}
    for name, f in followed.items():
        data["steps"] = np.array(list(f.runs["JKO"]))
        data[f"error {name}"] = np.array([list(e.values()) for e in f.errors.values()]).T
        data[f"energy {name}"] = f.exact.observed["F"].numpy()
    data |= {f"curvature {name} {k}": v for name, each in bent.items() for k, v in each.items()}
    # Keys become names of files and arrays: no commas, no signs, no spaces.
    return {"_".join(key.replace(",", "").replace("=", "").split()): value for key, value in data.items()}
