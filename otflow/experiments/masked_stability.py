"""Masked attention is stable in a distance that keeps labels, for every order but one

A sequence is a law on [0, 1] x R^d: labels and tokens. With a causal mask a token attends to the labels up to
its own. Theorem 3.4 of Castin, Ablin, Carrillo and Peyré (2025) compares two sequences in the conditional
distance d_p, which moves no label: with distinct labels, the mean of |x_i - y_i|^p, position by position.

Softmax and L2 attention renormalise over what a token sees, so a change of the past enters through its mean
over the labels up to one's own: Hardy's operator, with norm p / (p - 1) in L^p. This gives

    d_p(mu_t, nu_t) <= exp(int_0^t Lip_x + p / (p - 1) Lip_mu) d_p(mu_0, nu_0)        for p > 1,

with the constants of attention on balls that contain the tokens. At p = 1 there is no such bound. Without
scores (A = 0, V = I) every token follows the mean of its past. Moving the first of n tokens by one moves
velocities by 1, 1/2, ..., 1/n, so that d_1 grows by the harmonic number H_n. The flow is worse. The matrix of
means is a Hausdorff matrix, with moments 1 / (k + 1), and its exponential has the moments exp(t / (k + 1)).
Undoing the moments, d_1 grows by E I_0(2 sqrt(t M)), where I_0 is Bessel's function and M the largest of n
independent standard exponential variables. As E M = H_n, this is at least I_0(2 sqrt(t H_n)), more than any
power of log n. In d_2 the same move gains less than a constant for all n, and the worst move exp(2t).

The plain W_2, which does not see labels, controls nothing: the same tokens in the reverse order are at
distance zero and flow apart.

Sequences of different lengths are compared at the same quantile of their labels. If tokens lie on a curve
x(s), long sequences converge like 1/n, before and along the flow. If they are random given their label, the
law of the tokens still converges, in plain W_2 like n^(-1/2) on the line, but no conditional distance does:
at each label there is one token, which is at least a standard deviation away from the law there.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import iv

import otflow as of
from otflow.experiments import masked_stability_draw as draw
from otflow.experiments.base import Claim, Progress, Result
from otflow.experiments.fits import slope
from otflow.experiments.masked_stability_limits import Limits, average_claim, limit_claims, longer
from otflow.stability.apriori import a_priori
from otflow.stability.runs import coupled
from otflow.transport.sequences import positions

PAPER = "Castin, Ablin, Carrillo, Peyré 2025"
SEED = 34
TIME = 1.0
Q, K = ((0.7, 0.2), (-0.3, 0.5)), ((0.6, -0.4), (0.1, 0.7))
V = ((0.3, -0.8), (0.8, 0.3))
Array = np.ndarray[Any, Any]


class Estimate(NamedTuple):
    """log d_p(mu_t, nu_t) / d_p(mu_0, nu_0) of several perturbations (T, B), and its bound (T,)."""

    t: Array
    gain: Array
    bound: Array


class Growth(NamedTuple):
    """By how much d_1 and d_2 grow when the first of n tokens moves, and d_2 at worst (measured)."""

    n: Array
    one: Array
    two: Array
    worst: Array


class Orders(NamedTuple):
    """Two orders of the same tokens: both runs, and the distances between them."""

    mu: of.Trajectory
    nu: of.Trajectory
    plain: Array
    conditional: Array
    offsets: Array  # sizes of a perturbation that is added to the second one ...
    ratios: Array  # ... and the growth of W_2 then


def run(*, quick: bool, progress: Progress) -> Result:
    """All flows, all claims, all figures."""
    rng = np.random.default_rng(SEED)
    progress(0.0, "stability estimate")
    estimates = _estimates(32 if quick else 64, rng)
    progress(0.1, "the first token")
    velocity = velocities((10, 100, 1000, 10_000))
    flows = growth((10, 30, 100, 300) if quick else (10, 30, 100, 300, 1000, 3000))
    progress(0.4, "another order")
    orders = reordered(40)
    progress(0.5, "long sequences")
    limits = longer(attention(), rng, sizes=4 if quick else 6, many=1024 if quick else 4096)
    claims = [
        *_estimate_claims(estimates),
        *_velocity_claims(velocity),
        *_flow_claims(flows),
        *_order_claims(orders),
        *limit_claims(limits),
        average_claim(),
    ]
    figures = {
        "ratios": draw.ratios(velocity, flows),
        "orders": draw.orders(orders),
        "estimates": draw.estimates(estimates),
        "limits": draw.limits(limits),
    }
    return Result(claims, figures, _data(estimates, velocity, flows, orders, limits))


# --- the estimate ------------------------------------------------------------------------------------


def attention() -> of.VelocityField:
    """Causal softmax attention with the weights of this experiment.

    >>> attention()
    SoftmaxAttention(causal=True)
    """
    return of.SoftmaxAttention(Q, K, V, causal=True)


def estimate(field: of.VelocityField, p: float, n: int, d: int, rng: np.random.Generator) -> Estimate:
    """Perturbations of n tokens in B_(1/2): eight of all tokens, eight of the first, eight that fade away.

    >>> found = estimate(average(), 2.0, 4, 1, np.random.default_rng(0))
    >>> bool((found.gain <= found.bound[:, None]).all())
    True
    """
    x = rng.uniform(-0.35, 0.35, (n, d))
    move = rng.normal(size=(24, n, d))
    move[8:16, 1:] = 0.0
    move[16:] = rng.normal(size=(8, 1, d)) * np.arange(1, n + 1)[:, None] ** (-1 / p)
    y = x + 1e-3 * move / np.abs(move).max((1, 2), keepdims=True)
    mu, nu = (of.Particles(z, label=positions(n)) for z in (x, y))
    both = coupled(mu, nu, field, of.RK4(), t1=TIME, dt=0.05, p=p)
    bound = a_priori(field, 0.5, t1=TIME, ts=both.ts, p=p).log_C
    return Estimate(both.ts.numpy(), both.ratios.log().numpy(), bound.numpy())


def _estimates(n: int, rng: np.random.Generator) -> dict[str, Estimate]:
    return {
        "softmax, p = 2": estimate(attention(), 2.0, n, 2, rng),
        "softmax, p = 4": estimate(attention(), 4.0, n, 2, rng),
        "A = 0, V = I, p = 2": estimate(average(), 2.0, 4 * n, 1, rng),
    }


def _estimate_claims(estimates: dict[str, Estimate]) -> list[Claim]:
    return [
        Claim.at_most(
            f"{name}: log of d_p(mu_t, nu_t) / d_p(mu_0, nu_0) over int L (largest)",
            f"{PAPER}, Theorem 3.4, with Hardy's inequality",
            bound=1.0,
            measured=float((found.gain[1:] / found.bound[1:, None]).max()),
        )
        for name, found in estimates.items()
    ]


# --- the first token ---------------------------------------------------------------------------------


def average() -> of.VelocityField:
    """Each token follows the mean of the tokens up to its own: A = 0, V = I, on the line.

    >>> average()(0.0, of.Particles([[1.0], [3.0]], label=[0, 1]))[0].flatten().tolist()
    [1.0, 2.0]
    """
    return of.SoftmaxAttention([[0.0]], [[0.0]], [[1.0]], causal=True)


def bessel_mean(n: float, t: float) -> float:
    """E I_0(2 sqrt(t M)), M the largest of n standard exponential variables: sum of column one of exp(t C).

    E f(M) = f(0) + int f'(s) (1 - (1 - exp(-s))^n) ds, with s = r^2.

    >>> bessel_mean(1, 1.0)  # exp(t)
    2.7183
    """
    c = 2 * math.sqrt(t)
    end = math.sqrt(math.log(n) + 45.0)  # beyond, the largest is with probability 1e-19

    def integrand(r: float) -> float:
        return -c * float(iv(1, c * r)) * math.expm1(n * math.log1p(-math.exp(-r * r))) if r > 0 else 0.0

    return 1.0 + float(quad(integrand, 0.0, end, limit=200, epsabs=0.0, epsrel=1e-11)[0])


def harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n.

    >>> harmonic(2)
    1.5
    """
    return math.fsum(1 / np.arange(1, n + 1))


def _moves(n: int) -> tuple[of.Particles, of.Particles]:
    """A sequence of zeros, and two perturbations: the first token, and i^(-1/2)."""
    x = torch.arange(1, n + 1, dtype=torch.float64) ** -0.5
    first = torch.zeros_like(x)
    first[0] = 1.0
    label = positions(n)
    return of.Particles(torch.zeros(n, 1).double(), label=label), of.Particles(
        torch.stack([first, x])[..., None], label=label
    )


def velocities(sizes: tuple[int, ...]) -> Growth:
    """The growth from tokens to velocities.

    >>> velocities((2,)).one.tolist()
    [1.5]
    """
    rows = []
    for n in sizes:
        pair = _moves(n)
        after = [of.Particles(average()(0.0, mu)[0], label=mu.label) for mu in pair]
        rows.append(_gains(*pair, *after))
    return Growth(np.array(sizes), *np.array(rows).T)


def growth(sizes: tuple[int, ...]) -> Growth:
    """The growth from t = 0 to t = 1 along the flow.

    >>> growth((1,)).one.round(5).tolist()
    [2.71828]
    """
    rows = []
    for n in sizes:
        pair = _moves(n)
        after = [of.flow(mu, average(), of.RK4(), t1=TIME, dt=TIME / 20, save_at=[TIME]).final for mu in pair]
        rows.append(_gains(*pair, *after))
    return Growth(np.array(sizes), *np.array(rows).T)


def _gains(mu: of.Particles, nu: of.Particles, after: Any, then: Any) -> list[float]:
    one, two = (
        (of.conditional_wasserstein(after, then, p) / of.conditional_wasserstein(mu, nu, p)).tolist()
        for p in (1, 2)
    )
    return [one[0], two[0], two[1]]


def _velocity_claims(found: Growth) -> list[Claim]:
    source = f"means over the past, without scores; cf. {PAPER}, Theorem 3.4"
    return [
        *(
            Claim.equal(
                f"A = 0, V = I, the first of {n} tokens moves: d_1 of the velocities grows by H_n",
                source,
                predicted=harmonic(int(n)),
                measured=one,
                rtol=1e-10,
            )
            for n, one in zip(found.n, found.one, strict=True)
        ),
        Claim.at_most(
            "the same in d_2: at most pi / sqrt(6) for every n (largest)",
            source,
            bound=math.pi / math.sqrt(6),
            measured=found.two.max(),
        ),
        Claim.within(
            f"velocities in d_2, tokens moved by i^(-1/2), n = {found.n[-1]}: towards Hardy's constant 2",
            "Hardy 1920",
            low=1.6,
            high=2.0,
            measured=found.worst[-1],
        ),
    ]


def _flow_claims(found: Growth) -> list[Claim]:
    exact = np.array([bessel_mean(int(n), TIME) for n in found.n])
    low = iv(0, 2 * np.sqrt(TIME * np.array([harmonic(int(n)) for n in found.n])))
    return [
        Claim.at_most(
            "flow to t = 1: d_1 grows by E I_0(2 sqrt(t M)) (relative error, largest over n)",
            "moments exp(t / (k + 1)) of a Hausdorff matrix",
            bound=1e-5,
            measured=float(np.abs(found.one / exact - 1).max()),
        ),
        Claim.at_most(
            "flow to t = 1: I_0(2 sqrt(t H_n)) over the growth of d_1 is at most one (largest over n)",
            "Jensen's inequality",
            bound=1.0,
            measured=float((low / found.one).max()),
        ),
        Claim.at_most(
            "flow to t = 1: d_2 grows by at most exp(2 t) when the first token moves (largest over n)",
            f"{PAPER}, Theorem 3.4, with Hardy's inequality",
            bound=math.exp(2 * TIME),
            measured=float(found.two.max()),
        ),
        Claim.within(
            f"flow to t = 1, tokens moved by i^(-1/2), n = {found.n[-1]}: growth of d_2, exp(2 t) at most",
            "Hardy 1920",
            low=4.0,
            high=math.exp(2 * TIME),
            measured=found.worst[-1],
        ),
    ]


# --- another order -----------------------------------------------------------------------------------


def reordered(n: int) -> Orders:
    """A spiral read from inside and from outside.

    >>> abs(reordered(4).plain[0].item()) < 1e-12
    True
    """
    s = positions(n)
    angle = 5.0 * s
    x = (0.2 + 0.8 * s)[:, None] * torch.stack([angle.cos(), angle.sin()], -1)
    offsets = 10.0 ** -torch.arange(1.0, 5.0).double()
    mu, nu = of.Particles(x, label=s), of.Particles(x.flip(0), label=s)
    near = of.Particles(x.flip(0) + offsets[:, None, None], label=s)
    a, b, c = (of.flow(one, attention(), of.RK4(), t1=TIME, dt=0.05) for one in (mu, nu, near))
    plain, conditional = (
        np.array([float(d(u, v)) for u, v in zip(a.measures, b.measures, strict=True)])
        for d in (of.wasserstein, of.conditional_wasserstein)
    )
    ratios = of.wasserstein(a.final, c.final) / of.wasserstein(mu, near)
    return Orders(a, b, plain, conditional, offsets.numpy(), ratios.numpy())


def _order_claims(found: Orders) -> list[Claim]:
    source = f"{PAPER}, Theorem 3.4, in the conditional distance"
    return [
        Claim.at_most(
            "the same tokens in the reverse order: W_2 at t = 0",
            source,
            bound=1e-12,
            measured=found.plain[0],
        ),
        Claim.within(
            "the same tokens in the reverse order: W_2 at t = 1",
            source,
            low=0.1,
            high=2.0,
            measured=found.plain[-1],
        ),
        Claim.within(
            "reverse order, shifted by h: W_2(1) / W_2(0) grows like h^-1 (slope)",
            source,
            low=-1.05,
            high=-0.95,
            measured=slope(found.offsets, found.ratios),
        ),
    ]


def _data(
    estimates: dict[str, Estimate], velocity: Growth, flows: Growth, orders: Orders, limits: Limits
) -> dict[str, Array]:
    gains = {f"gain_{k}": found.gain for k, found in enumerate(estimates.values())}
    bounds = {f"bound_{k}": found.bound for k, found in enumerate(estimates.values())}
    return (
        {"t": next(iter(estimates.values())).t, "plain": orders.plain, "conditional": orders.conditional}
        | gains
        | bounds
        | {f"velocity_{key}": a for key, a in velocity._asdict().items()}
        | {f"flow_{key}": a for key, a in flows._asdict().items()}
        | {f"limit_{key}": a for key, a in limits._asdict().items()}
    )
