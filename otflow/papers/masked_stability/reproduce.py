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

import numpy as np
from scipy.special import iv

from otflow.papers.masked_stability import draw, runs
from otflow.papers.masked_stability.long_sequences import TIMES, Array, LongSequences, average_errors, longer
from otflow.papers.masked_stability.runs import TIME, DistanceGrowth, MaskedEstimate, Orders
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
ESTIMATE = PAPER.at("Theorem 3.4, with Hardy's inequality")
HARDY = Source("Hardy 1920")
SEED = 34


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    rng = np.random.default_rng(SEED)
    frame.stage(0.0, "stability estimate")
    n, sizes, many = frame.size((32, 4, 1024), (64, 6, 4096))
    estimates = {
        "softmax, p = 2": runs.estimate(runs.attention(), 2.0, n, 2, rng),
        "softmax, p = 4": runs.estimate(runs.attention(), 4.0, n, 2, rng),
        "A = 0, V = I, p = 2": runs.estimate(runs.average(), 2.0, 4 * n, 1, rng),
    }
    frame.stage(0.1, "the first token")
    velocity = runs.velocities((10, 100, 1000, 10_000))
    flows = runs.growth((10, 30, 100, 300, 1000, 3000)[:sizes])
    frame.stage(0.4, "another order")
    orders = runs.reordered(40)
    frame.stage(0.5, "long sequences")
    limits = longer(runs.attention(), rng, sizes=sizes, many=many)
    claims = [
        *_estimate_claims(estimates),
        *_velocity_claims(velocity),
        *_flow_claims(flows),
        *_order_claims(orders),
        *_limit_claims(limits),
        _average_claim(),
    ]
    figures = {
        "ratios": draw.ratios(velocity, flows),
        "orders": draw.orders(orders),
        "estimates": draw.estimates(estimates),
        "limits": draw.limits(limits),
    }
    tables = {"velocity": velocity._asdict(), "flow": flows._asdict(), "limit": limits._asdict()}
    arrays = {f"{name}_{key}": a for name, table in tables.items() for key, a in table.items()}
    return Result(claims, figures, arrays | _data(estimates, orders))


def _estimate_claims(estimates: dict[str, MaskedEstimate]) -> list[Claim]:
    """The theorem, for all perturbations and times."""
    words = "log of d_p(mu_t, nu_t) / d_p(mu_0, nu_0) over int L (largest)"
    return [
        ESTIMATE(f"{name}: {words}").at_most(1.0, (found.gain[1:] / found.bound[1:, None]).max())
        for name, found in estimates.items()
    ]


def _velocity_claims(found: DistanceGrowth) -> list[Claim]:
    """From tokens to velocities: no bound at p = 1, and Hardy's constant at p = 2."""
    source = Source(f"means over the past, without scores; cf. {PAPER}, Theorem 3.4")
    first = "A = 0, V = I, the first of {} tokens moves: d_1 of the velocities grows by H_n".format
    second = source("the same in d_2: at most pi / sqrt(6) for every n (largest)")
    worst = f"velocities in d_2, tokens moved by i^(-1/2), n = {found.n[-1]}: towards Hardy's constant 2"
    return [
        *(
            source(first(n)).equal(runs.harmonic(int(n)), one, rtol=1e-10)
            for n, one in zip(found.n, found.one, strict=True)
        ),
        second.at_most(math.pi / math.sqrt(6), found.two.max()),
        HARDY(worst).within(1.6, 2.0, found.worst[-1]),
    ]


def _flow_claims(found: DistanceGrowth) -> list[Claim]:
    """The same along the flow, where d_1 grows by a mean of Bessel functions."""
    exact = np.array([runs.bessel_mean(int(n), TIME) for n in found.n])
    low = iv(0, 2 * np.sqrt(TIME * np.array([runs.harmonic(int(n)) for n in found.n])))
    bessel = "d_1 grows by E I_0(2 sqrt(t M)) (relative error, largest over n)"
    jensen = "I_0(2 sqrt(t H_n)) over the growth of d_1 is at most one (largest over n)"
    second = "d_2 grows by at most exp(2 t) when the first token moves (largest over n)"
    worst = f"tokens moved by i^(-1/2), n = {found.n[-1]}: growth of d_2, exp(2 t) at most"
    moments, convex = Source("moments exp(t / (k + 1)) of a Hausdorff matrix"), Source("Jensen's inequality")
    return [
        moments(f"flow to t = 1: {bessel}").at_most(1e-5, np.abs(found.one / exact - 1).max()),
        convex(f"flow to t = 1: {jensen}").at_most(1.0, (low / found.one).max()),
        ESTIMATE(f"flow to t = 1: {second}").at_most(math.exp(2 * TIME), found.two.max()),
        HARDY(f"flow to t = 1, {worst}").within(4.0, math.exp(2 * TIME), found.worst[-1]),
    ]


def _order_claims(found: Orders) -> list[Claim]:
    """W_2 does not see labels and controls nothing: distance zero becomes a distance."""
    source = PAPER.at("Theorem 3.4, in the conditional distance")
    blows_up = source("reverse order, shifted by h: W_2(1) / W_2(0) grows like h^-1 (slope)")
    return [
        source("the same tokens in the reverse order: W_2 at t = 0").at_most(1e-12, found.plain[0]),
        source("the same tokens in the reverse order: W_2 at t = 1").within(0.1, 2.0, found.plain[-1]),
        blows_up.within(-1.05, -0.95, slope(found.offsets, found.ratios)),
    ]


def _limit_claims(found: LongSequences) -> list[Claim]:
    """Rates at the first and the last time."""
    source = PAPER.at("Theorem 3.4 (limit of long sequences)")
    random = "tokens that are random given their label, on the line"
    rows = (
        ("tokens on a curve", "d_2 to the limit falls like 1/n", found.n, found.curve, -1.1, -0.9),
        (random, "W_2 to the limit falls like n^-0.5", found.random, found.plain, -0.65, -0.35),
        (random, "d_2 to the limit does not fall", found.random, found.conditional, -0.05, 0.05),
    )
    return [
        source(f"{place}, t = {TIMES[k]:g}: {word} (slope)").within(low, high, slope(n, values[:, k]))
        for k in (0, 2)
        for place, word, n, values, low, high in rows
    ]


def _average_claim() -> Claim:
    """A limit in closed form."""
    words = "d_2 to (e, e^(1/2) s, e^(1/3) s^2) falls like 1/n (slope)"
    sizes = np.array([32, 64, 128])
    return Source("monomials are eigenfunctions of the mean over [0, s]")(
        f"A = 0, V = I, tokens (1, s, s^2), t = 1: {words}"
    ).within(-1.05, -0.95, slope(sizes, average_errors(sizes)))


def _data(estimates: dict[str, MaskedEstimate], orders: Orders) -> dict[str, Array]:
    """The estimates are numbered in the order of their panels."""
    gains = {f"gain_{k}": found.gain for k, found in enumerate(estimates.values())}
    bounds = {f"bound_{k}": found.bound for k, found in enumerate(estimates.values())}
    times = next(iter(estimates.values())).t
    return {"t": times, "plain": orders.plain, "conditional": orders.conditional} | gains | bounds
