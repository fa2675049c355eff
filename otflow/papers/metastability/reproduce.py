"""Tokens wait, then merge in pairs: a staircase of the energy, with its times predicted

Under attention at low temperature, tokens on a circle form clusters which seem to stay for ever, until two of
them merge, and so on down to one. The energy climbs a staircase, on a clock that counts log t / beta
(Geshkovski, Koubbi, Polyanskiy and Rigollet 2024). Two clusters alone can be solved by quadrature. Taking
neighbours pair by pair then predicts every step: who merges, when, where, and how high the energy jumps. This
is laid over a simulation that makes no such assumption. Velocities go down to exp(-2 beta), beyond floating
point from beta = 400 on, so the flow is run along its arclength and time is kept as a logarithm.

Predictions of log t / beta are good to a fraction of a per cent wherever one pair is clearly first. For the
start of the authors' figure this excludes the first step, since their first two tokens are so close that
nothing waits there, and for beta = 500 the others are good to two per cent: there, competing merges are
within a factor of three in time. Without normalisation clusters meet in their centre of mass. With softmax,
the heavier one moves less, as if masses were squared, up to a correction of order beta^(-1/2).

The theorem of metastability, which holds on spheres of any dimension, is checked as well: tokens collapse
before T1 and stay in their caps until T2. Both bounds are safe, and not sharp: the collapse is much faster
than T1, and the time at which caps are left has a larger rate than T2. Two errors, in the statements as they
are transcribed in a third-party formalisation, are shown with the computations that tell. (The energy has a
factor 1 / (2 beta) there with which it would tend to zero; the staircase is that of the energy without it.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import brentq

import otflow as of
from otflow.papers.metastability import (
    cap_index,
    merge_point,
    merge_time,
    metastable_times,
    separation,
    slow_flow,
    staircase,
)
from otflow.papers.metastability.runs import (
    APART,
    COLD,
    EPS,
    KINDS,
    LAM,
    MOVIE,
    Array,
    MergeTimes,
    N,
    StaircaseRun,
    attention,
    plateaus,
)
from otflow.papers.tokens import sphere
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833 (as formalised)")
SCALES, THEOREM, UNIFORM = (PAPER.at(f"section {k}") for k in (6, 2, 4))
PAIRS = Source("two clusters alone, by quadrature (otflow.papers.metastability)")
AUTHORS = np.array([0, 0.5, 2, 4, 7]) / 2 * math.log(2000) / math.sqrt(2000)
LEVELS = (0.2, 0.28, 0.44, 0.52, 1.0)
STARTS: dict[str, tuple[list[float], list[float] | None]] = {
    "four unequal clusters": ([0.0, 0.6, 1.5, 3.2], [0.1, 0.4, 0.3, 0.2]),
    "five clusters around the circle": ([6.0, 0.5, 2.1, 3.3, 4.6], [0.3, 0.1, 0.15, 0.25, 0.2]),
    "four equal clusters": ([0.0, 0.5, 2.0, 3.3], None),
}


def run(frame: Frame) -> Result:
    """All staircases, all times, all claims, all figures."""
    from otflow.papers.metastability.draw import circles, paths, scales, staircases

    betas = (1000.0, 4000.0) if frame.quick else (500.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0)
    authors = {}
    for i, beta in enumerate(betas):
        frame.stage(0.3 * i / len(betas), f"staircase, beta = {beta:g}")
        authors[beta] = _steps(list(AUTHORS), None, beta, False)
    frame.stage(0.3, "predictions")
    names = list(STARTS)[: 1 if frame.quick else None]
    cold = {(name, kind): _steps(*STARTS[name], COLD, KINDS[kind]) for name in names for kind in KINDS}
    frame.stage(0.6, "caps")
    times = list(_times(np.array([8.0, 14.0, 24.0]) if frame.quick else np.arange(8.0, 42.0, 3.0)))
    frame.stage(0.8, "the theorem")
    claims = [
        *_staircase_claims(authors),
        *_cold_claims(cold),
        *_pair_claims(),
        *_theorem_claims(),
        *_time_claims(times),
        *_errata(),
    ]
    frame.stage(0.9, "figures")
    movie = _movie()
    figures = {
        "staircases": staircases(authors, cold),
        "paths": paths({kind: cold[names[0], kind] for kind in KINDS}),
        "circle": circles(movie),
        "caps": scales(times),
    }
    return Result(claims, figures, _data(authors, cold, times, movie))


def _steps(theta: list[float], masses: list[float] | None, beta: float, normalised: bool) -> StaircaseRun:
    run = slow_flow(theta, beta, masses=masses, normalised=normalised)
    return StaircaseRun(run, staircase(theta, beta, masses, normalised=normalised))


def _times(betas: Array) -> Iterator[MergeTimes]:
    """Tokens on the rims of two caps collapse, then wait, then leave."""
    for beta in betas.tolist():
        caps = metastable_times(sphere.circle([0.0, APART]).x, EPS, beta, N, LAM)
        for kind in KINDS:
            yield MergeTimes(beta, kind, caps, _collapse(beta, kind), _exit(beta, kind))


def _collapse(beta: float, kind: str) -> float:
    """log t at which |x_i - x_j|^2 <= 2 exp(-lam beta) in both caps."""
    rim = math.acos(1 - EPS)
    theta = np.array([-rim, rim, APART - rim, APART + rim])

    def collapsed(t: torch.Tensor, mu: of.measures.Measure) -> torch.Tensor:
        x = mu.nodes()[0]
        return (x[..., ::2, :] - x[..., 1::2, :]).square().sum(-1).amax() <= 2 * math.exp(-LAM * beta)

    field = attention(beta, kind, 2)
    traj = of.flow(sphere.circle(theta), field, of.RK4(), t1=1e3, dt=0.2, save_at=[1e3], stop=collapsed)
    return math.log(float(traj.ended))


def _exit(beta: float, kind: str) -> float:
    """log t at which the clusters leave the caps of height 2 eps."""
    run = slow_flow([0.0, APART], beta, normalised=KINDS[kind])
    moved = (run.theta[:, 0]).abs() > math.acos(1 - 2 * EPS)
    return run.log_t[int(moved.to(torch.int8).argmax())].item()


def _movie() -> Array:
    """Five tokens on the circle at beta = 4, from a start that leaves one cluster; angles (T, 5)."""
    theta = np.random.default_rng(18).uniform(0, 2 * np.pi, 5)
    traj = of.flow(sphere.circle(theta), attention(4.0, "SA", 2), of.Dopri5(), t1=MOVIE[-1], save_at=MOVIE)
    x = traj.stacked.nodes()[0].numpy()
    return np.asarray(np.arctan2(x[..., 1], x[..., 0]))


def _staircase_claims(authors: dict[float, StaircaseRun]) -> list[Claim]:
    coldest = max(authors)
    late = max(steps.error[1:].max() for beta, steps in authors.items() if beta >= 1000)
    return [
        SCALES(
            f"the authors' start, beta = {coldest:g}: plateaus at 0.2, 0.28, 0.44, 0.52, 1 (largest error)"
        ).at_most(0.005, np.abs(plateaus(authors[coldest]) - np.array(LEVELS)).max()),
        PAIRS(
            "the authors' start, beta from 1000 to 4000: log t / beta of steps two to four (relative error)"
        ).at_most(0.01, late),
    ]


def _cold_claims(cold: dict[tuple[str, str], StaircaseRun]) -> Iterator[Claim]:
    for (name, kind), (run, predicted) in cold.items():
        same = [set(m.clusters) for m in run.merges] == [set(pair) for pair in predicted.pairs]
        yield PAIRS(f"beta = {COLD:g}, {name}, {kind}: log t / beta of all steps (relative error)").at_most(
            0.01, float(StaircaseRun(run, predicted).error.max()) if same else math.inf
        )
        points = np.array([m.theta for m in run.merges]) - predicted.merge_points.numpy()
        yield PAIRS(f"beta = {COLD:g}, {name}, {kind}: merge points (error of the angle)").at_most(
            0.002, float(np.abs(points).max()) if same else math.inf
        )


def _pair_claims() -> list[Claim]:
    theta, beta, (p, q) = 1.2, 60.0, (0.3, 0.7)
    exact = merge_time(theta, beta, [p, q]).item()
    formula = beta * (1 - math.cos(theta)) - math.log((p + q) * beta * math.sin(theta) ** 2)
    run = slow_flow([0.0, theta], beta, masses=[p, q])
    betas = np.array([100.0, 400.0, 1600.0])
    leading = theta * q**2 / (p**2 + q**2)
    off = leading - merge_point(theta, betas, [p, q], normalised=True).numpy()
    two = f"masses 0.3 and 0.7, gap {theta:g}, beta = {beta:g}, USA"
    return [
        PAIRS(f"{two}: merge time of the simulation").equal(
            math.exp(exact), math.exp(run.merges[0].log_t), rtol=0.005
        ),
        PAIRS(f"{two}: exp(beta (1 - cos)) / (beta sin^2) against quadrature").equal(
            math.exp(exact), math.exp(formula), rtol=0.02
        ),
        SCALES(f"{two}: clusters meet in their centre of mass").equal(
            theta * q / (p + q), run.merges[0].theta, atol=1e-9
        ),
        PAIRS("SA: the merge point tends to the centre of squared masses like beta^-0.5 (slope)").within(
            -0.51, -0.49, slope(betas, off)
        ),
    ]


def _theorem_claims() -> Iterator[Claim]:
    """Three caps on a sphere in three dimensions, tokens on their rims."""
    angle = 2 * np.pi * np.arange(3) / 3
    w = np.stack([np.cos(angle), np.sin(angle), 0 * angle], -1)
    beta, lam = 11.0, 0.6
    x = _rims(w, np.random.default_rng(0))
    caps = metastable_times(w, EPS, beta, 6, lam)
    T1, T2 = math.exp(caps.log_T1), math.exp(caps.log_T2)
    for kind in KINDS:
        cloud = of.Particles(x.reshape(-1, 3), space=of.Sphere())
        saved = np.linspace(0, T2, 200)
        traj = of.flow(cloud, attention(beta, kind, 3), of.Dopri5(), t1=T2, save_at=saved)
        states = traj.stacked.nodes()[0].reshape(-1, 3, 2, 3)
        own = torch.arange(3)[:, None]
        away = (cap_index(states, w, 2 * EPS) != own).sum().item() if caps.applies else math.inf
        late = states[traj.ts >= T1]
        spread = (late[:, :, 0] - late[:, :, 1]).square().sum(-1).max().item()
        yield THEOREM(
            f"three caps, beta = {beta:g}, {kind}: tokens outside their caps at 200 times until T2"
        ).equal(0.0, away)
        yield THEOREM(f"three caps, beta = {beta:g}, {kind}: |x_i - x_j|^2 from T1 to T2 (largest)").at_most(
            2 * math.exp(-lam * beta), spread
        )


def _rims(w: Array, rng: np.random.Generator) -> Array:
    """Two points with <x, w_q> = 1 - eps in random directions for each centre, (k, 2, d)."""
    u = rng.normal(size=(len(w), 2, w.shape[-1]))
    u -= (u * w[:, None]).sum(-1, keepdims=True) * w[:, None]
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    return np.asarray((1 - EPS) * w[:, None] + math.sqrt(EPS * (2 - EPS)) * u)


def _time_claims(times: list[MergeTimes]) -> Iterator[Claim]:
    bound = [t for t in times if t.bounds.applies]
    yield THEOREM("two caps, all beta: log of the collapse time, less log T1 (largest)").at_most(
        0.0, max((t.collapse - t.bounds.log_T1 for t in bound), default=math.inf)
    )
    yield THEOREM(
        "two caps, all beta: log T2, less log of the time at which caps are left (largest)"
    ).at_most(0.0, max((t.bounds.log_T2 - t.exit for t in bound), default=math.inf))
    for kind in KINDS:
        last = [t for t in times if t.kind == kind][-1]
        merged = merge_time(APART, last.beta, [0.5, 0.5], normalised=KINDS[kind]).item()
        yield PAIRS(
            f"two caps, beta = {last.beta:g}, {kind}: caps are left when clusters merge (log t)"
        ).equal(merged, last.exit, rtol=0.01)


def _errata() -> list[Claim]:
    w, beta = sphere.circle([0.0, np.pi]).x, 4.45
    caps = metastable_times(w, EPS, beta, N, 1e-3)
    factor = (beta - 1) * EPS / (beta**2 * N**2 * math.e)
    rest = math.exp((1 - caps.alpha) * beta) * (1 - math.exp(-caps.gamma * beta))

    def excess(log_lam: float) -> float:
        at = metastable_times(w, EPS, beta, N, math.exp(log_lam))
        return at.log_T1 - at.log_T2

    eps = 0.02
    return [
        THEOREM.at("as transcribed in a formalisation: a sign in the condition on lambda")(
            f"antipodal caps, eps = {EPS:g}, n = {N}, beta = {beta:g}: lambda up to which T1 < T2"
        ).erratum(
            printed=rest / factor,
            corrected=rest * factor,
            measured=math.exp(brentq(excess, -20.0, 20.0, xtol=1e-13)),
            rtol=1e-6,
        ),
        UNIFORM.at("as transcribed in a formalisation: at most eps^2 + 2 eps")(
            f"caps of orthogonal centres, eps = {eps:g}: the largest cosine between their points"
        ).erratum(
            printed=eps**2 + 2 * eps,
            corrected=separation(np.eye(2), eps).item(),
            measured=_largest_cosine(eps),
            rtol=1e-6,
        ),
    ]


def _largest_cosine(eps: float) -> float:
    """On a grid of pairs of points of two caps of height 2 eps on the circle, at right angles."""
    rim = math.acos(1 - 2 * eps)
    a = np.linspace(-rim, rim, 401)
    return float((sphere.circle(a).x @ sphere.circle(np.pi / 2 + a).x.mT).max())


def _data(
    authors: dict[float, StaircaseRun],
    cold: dict[tuple[str, str], StaircaseRun],
    times: list[MergeTimes],
    movie: Array,
) -> dict[str, Array]:
    out = {"movie_times": np.array(MOVIE), "movie_angles": movie}
    runs = {f"authors_{beta:g}": steps for beta, steps in authors.items()}
    runs |= {f"{name.replace(' ', '_')}_{kind}": steps for (name, kind), steps in cold.items()}
    for key, (run, predicted) in runs.items():
        out |= {f"{key}_s": run.s.numpy(), f"{key}_energy": run.energy.numpy()}
        out |= {f"{key}_jumps": run.jumps.numpy(), f"{key}_predicted": predicted.log_times.numpy()}
    for kind in KINDS:
        own = [t for t in times if t.kind == kind]
        rows = [(t.beta, t.bounds.log_T1, t.collapse, t.bounds.log_T2, t.exit) for t in own]
        out[f"caps_{kind}"] = np.array(rows)
    return out
