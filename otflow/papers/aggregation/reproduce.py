"""Particles that attract from afar and repel from near settle on a ring, a disc and an interval

Minimising movements of interaction energies F(mu) = 1/2 iint W(x - y) dmu(x) dmu(y), with four kernels whose
ends are known.

W = |x|^4/4 - |x|^2/2 in the plane: F sees no more of a centred law than int |x|^4 and its second moments,
and its minimum -1/12 is attained by all laws on the circle of radius 1/sqrt(3) whose second moments are I/6.
Clouds end on the ring without spreading evenly along it.

W = |x|^2/2 - log|x| in the plane: Newtonian repulsion. The density on the support of the minimiser is
constant, and N particles fill the unit disc with an error in proportion to the distance between neighbours,
N^(-1/2). Their second moment M obeys dM/dt = -2 (M - c) with c = (1 - 1/N)/2, whatever else they do: the
virial theorem, since x.grad W = |x|^2 - 1. A JKO step of length tau has a virial theorem of its own,

    (1 + 2 tau) (M_(k+1) - c) = M_k - c - W2(mu_(k+1), mu_k)^2,

from |x_k|^2 = |x_(k+1) + tau grad F|^2, which checks steps and their costs to rounding.

W = |x|^2/2 - |x| on the line: Newtonian repulsion again. As long as the order x_1 < ... < x_N is kept the
force -x_i + c_i, c_i = (2i - 1 - N)/N, is linear, so that the flow is c + exp(-t) (x(0) - c), a JKO step
divides x - c by 1 + tau, and neither ever lets two particles meet: W is smooth where it is used. The c_i are
the midpoints of N equal parts of [-1, 1].

W = |x|^2/2: every step is known.

A JKO step over displacements of particles minimises over maps, while the scheme asks for W2. Both are the
same if the displacement is an optimal map, so every displacement is compared with the exact transport cost.
Clouds start so that short steps are convex problems; the long steps that bring a run to its end need not be,
and find one of the many configurations of a disc that are stable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import otflow as of
from otflow import closed_forms
from otflow.papers.aggregation import draw
from otflow.papers.aggregation.runs import (
    Behind,
    Descent,
    Plan,
    descend,
    discrepancy,
    edge,
    logarithmic,
    newtonian_line,
    quartic,
    radial,
    second_moment,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

SEED = 3
JKO98 = Source("Jordan, Kinderlehrer, Otto 1998")
RINGS = "Kolokolnikov, Sun, Uminsky, Bertozzi 2011"
SWARMS = "Fetecau, Huang, Kolokolnikov 2011"
RING_TAUS = (0.025, 0.0125)  # steps at which JKO is compared with the explicit flow, until t = 1/4
CONVEX = 0.5  # the longest step that is to be convex; longer ones only hasten the end
ROUNDING = 1e-12  # squared distances below are lost in the rounding of positions
Array = np.ndarray[Any, Any]
DISC_PLAN: Plan = ((0.1, 8), (1.0, 8), (10.0, 6), (100.0, 4))


def run(frame: Frame) -> Result:
    """All four kernels, all claims, one figure."""
    rng = np.random.default_rng(SEED)
    frame.stage(0.0, "ring")
    ring = descend(_scattered(32 if frame.quick else 80, rng), quartic(), ((0.5, 24), (10.0, 14)))
    behind = {tau: _against_explicit(ring.clouds[0], tau) for tau in RING_TAUS}
    discs = {}
    for k, n in enumerate((25, 81) if frame.quick else (25, 49, 100, 196)):
        frame.stage(0.2 + 0.15 * k, f"disc, {n} particles")
        discs[n] = descend(_jittered(n, rng), logarithmic(), DISC_PLAN)
    frame.stage(0.8, "interval")
    start = torch.from_numpy(np.sort(rng.normal(0.4, 0.2, (20 if frame.quick else 40, 1)), axis=0))
    interval = descend(of.Particles(start), newtonian_line(), ((0.25, 20), (2.0, 12)))
    runs = {"ring": ring, "interval": interval} | {f"disc of {n}": found for n, found in discs.items()}
    frame.stage(0.9, "certificates")
    claims = [
        *_ring_claims(ring, behind),
        *_disc_claims(discs),
        *_virial_claims(discs),
        *_interval_claims(interval),
        _quadratic_claim(rng),
        *_certificates(runs),
    ]
    figure = draw.figure(ring, discs, interval)
    return Result(
        claims, {"aggregation": figure}, {name.replace(" ", "_"): a.x.numpy() for name, a in runs.items()}
    )


# --- kernels and runs --------------------------------------------------------------------------------


def _scattered(n: int, rng: np.random.Generator) -> of.Particles:
    x = rng.normal(scale=0.35, size=(n, 2))
    return of.Particles(x - x.mean(0))


def _jittered(n: int, rng: np.random.Generator) -> of.Particles:
    """One particle near the middle of each of n small squares: no two so close that a step is not convex."""
    k = round(n**0.5)
    squares = np.stack(np.divmod(np.arange(n), k), -1)
    x = 1.2 * (squares + rng.uniform(-0.3, 0.3, (n, 2))) / k
    return of.Particles(x - x.mean(0))


# --- ring --------------------------------------------------------------------------------------------


def _against_explicit(mu: of.Particles, tau: float) -> Behind:
    """JKO and its extrapolation against Dormand and Prince's method, root mean square over particles."""
    field = of.SteepestDescent(quartic(), of.Wasserstein())
    fine = of.flow(mu, field, of.Dopri5(1e-10, 1e-12), t1=0.25, save_at=[0.0])
    traj = of.flow(mu, field, of.JKO(), t1=0.25, dt=tau)
    second = of.flow(mu, field, of.Extrapolated(of.JKO()), t1=0.25, dt=tau)
    return Behind(_apart(traj, fine), _apart(second, fine), of.energy_balance(traj, field))


def _apart(a: of.Trajectory, b: of.Trajectory) -> float:
    return float((a.final.coords[0] - b.final.coords[0]).square().sum(-1).mean().sqrt())


def _ring_claims(ring: Descent, behind: dict[float, Behind]) -> list[Claim]:
    x, source = ring.x[-1], Source(f"{RINGS}; minimum of a function of moments, see the text")
    far = (x.norm(dim=-1) - closed_forms.ring_radius(4, 2)).abs().max()
    covariance = x.mT @ x / len(x)
    orders = [slope(list(behind), [getattr(b, name) for b in behind.values()]) for name in Behind._fields[:2]]
    balance = of.balance_order([b.balance for b in behind.values()])
    return [
        source("ring: every particle ends 1/sqrt(3) from the centre (largest difference)").at_most(1e-6, far),
        source("ring: the second moments end at I/6 (largest difference)").at_most(
            1e-6, (covariance - torch.eye(2) / 6).abs().max()
        ),
        source("ring: the energy ends at its minimum -1/12").equal(
            -1 / 12, ring.energy(ring.clouds[-1]), atol=1e-12
        ),
        JKO98("ring: JKO meets the explicit flow (Dopri5) at t = 1/4 with the order 1").within(
            0.9, 1.1, orders[0]
        ),
        Source("Richardson's extrapolation")(
            "ring: extrapolated JKO meets the explicit flow with the order 2"
        ).within(1.8, 2.2, orders[1]),
        Source("Richardson's extrapolation")(
            f"ring: extrapolated JKO with tau = {RING_TAUS[-1]:g} against the explicit flow (rms)"
        ).at_most(1e-4, behind[RING_TAUS[-1]].extrapolated),
        Source("Ambrosio, Gigli, Savaré 2008, section 11.1")(
            "ring: the energy-dissipation identity is met with the order 2 in tau"
        ).within(1.7, 2.3, balance),
    ]


# --- disc --------------------------------------------------------------------------------------------


def _disc_claims(discs: dict[int, Descent]) -> list[Claim]:
    last = {n: run.x[-1] for n, run in discs.items()}
    moments = [
        Source(f"{SWARMS}; virial theorem")(
            f"disc: the second moment of {n} particles ends at (1 - 1/N)/2"
        ).equal(closed_forms.log_gas_second_moment(n), second_moment(x), atol=1e-6)
        for n, x in last.items()
    ]
    rates = {
        "the outermost particle nears the unit circle": [edge(x) for x in last.values()],
        "the radii become those of the uniform disc (Kolmogorov's distance)": [
            discrepancy(x) for x in last.values()
        ],
    }
    return moments + [
        Source(f"{SWARMS}; neighbours are N^-0.5 apart")(f"disc: {word} like N^-0.5 (slope)").within(
            -0.65, -0.35, slope(list(last), values)
        )
        for word, values in rates.items()
    ]


def _virial_claims(discs: dict[int, Descent]) -> list[Claim]:
    n, run = max(discs.items()) if len(discs) < 3 else sorted(discs.items())[1]
    c, M = closed_forms.log_gas_second_moment(n), second_moment(run.x)
    defect = (1 + 2 * run.tau) * (M[1:] - c) - (M[:-1] - c) + run.cost
    field = of.SteepestDescent(run.energy, of.Wasserstein())
    times = torch.linspace(0.0, 2.0, 5, dtype=torch.float64)
    traj = of.flow(run.clouds[0], field, of.Dopri5(1e-9, 1e-11), t1=2.0, save_at=times)
    law = c + (M[0] - c) * torch.exp(-2 * traj.ts)
    found = second_moment(traj.stacked.coords[0])
    return [
        Source("virial theorem")(
            f"disc: M(t) - c = exp(-2t) (M(0) - c) in the explicit flow, N = {n} (largest defect)"
        ).at_most(1e-7, (found - law).abs().max()),
        Source("virial theorem of the scheme, see the text")(
            f"disc: (1 + 2 tau)(M' - c) = M - c - W2^2 for all JKO steps, N = {n} (largest defect)"
        ).at_most(1e-9, defect.abs().max()),
    ]


# --- interval and quadratic kernel -------------------------------------------------------------------


def _interval_claims(run: Descent) -> list[Claim]:
    x = run.x[..., 0]
    n, centre = x.shape[-1], x[0].mean()
    rest = closed_forms.line_equilibrium(n) + centre
    share = torch.cat([torch.ones(1), torch.cumprod(1 / (1 + run.tau), 0)])[:, None]
    area = (x[-1] - centre + 1).numpy() / 2
    steps = np.arange(n + 1) / n
    tail = float(share[-1] * (x[0] - rest).abs().max())
    return [
        Source(f"{JKO98}; the force is linear between particles in order")(
            "interval: x - c is divided by 1 + tau in every step (largest difference)"
        ).at_most(1e-9, (x - rest - share * (x[0] - rest)).abs().max()),
        Source("gaps are averages of positive ones")(
            "interval: no two particles meet (the smallest gap between neighbours, negative)"
        ).at_most(0.0, -float(x.diff(dim=-1).min())),
        Source(f"{SWARMS}; midpoints of N equal parts: 1/(2N)")(
            f"interval: Kolmogorov's distance of {n} particles to the uniform law on [-1, 1]"
        ).equal(1 / (2 * n), max((steps[1:] - area).max(), (area - steps[:-1]).max()), atol=tail + 1e-9),
    ]


def _quadratic_claim(rng: np.random.Generator) -> Claim:
    """Clouds with weights, three lengths of steps."""
    x, w = rng.normal(size=(4, 30, 2)), rng.dirichlet(np.ones(30), 4)
    worst = 0.0
    for tau in (0.1, 1.0, 10.0):
        found = of.jko_step(of.Particles(x, w), radial(lambda s: s / 2), tau).mu.coords[0]
        worst = max(worst, float((found - closed_forms.aggregation_step(x, tau, w=w)).abs().max()))
    return JKO98("W = |x|^2/2: one step is c + (x - c)/(1 + tau), c the mean (largest difference)").at_most(
        1e-10, worst
    )


# --- certificates ------------------------------------------------------------------------------------


def _wasted(run: Descent) -> float:
    """How much more a displacement costs than optimal transport, relatively; the worst of all steps."""
    exact = [of.wasserstein(mu, nu).square() for mu, nu in zip(run.clouds, run.clouds[1:], strict=False)]
    return float(((run.cost - torch.stack(exact)).abs() / run.cost.clamp(min=ROUNDING)).max())


def _certificates(runs: dict[str, Descent]) -> list[Claim]:
    every = list(runs.values())
    gap = max(float((a.energy_gap / a.energy(a.clouds[0]).abs()).max()) for a in every)
    count = sum(len(a.tau) for a in every)
    return [
        JKO98(f"all runs: F(mu') + W2(mu', mu)^2 / (2 tau) <= F(mu), {count} steps (largest excess)").at_most(
            1e-14, gap
        ),
        Source("optimality of the step")("all runs: |u/tau + grad F| relative to |grad F| (largest)").at_most(
            1e-8, max(float(a.residual.max()) for a in every)
        ),
        Source("below 1 the step is convex where it was looked at")(
            f"all runs: -tau times the lowest curvature met, where tau <= {CONVEX:g} (largest)"
        ).at_most(1.0, max(float(a.concavity[a.tau <= CONVEX].max()) for a in every)),
        Source(f"{JKO98}; exact transport, certified")(
            "all runs: displacements are optimal maps (cost against W2^2, relatively)"
        ).at_most(1e-9, max(map(_wasted, every))),
    ]
