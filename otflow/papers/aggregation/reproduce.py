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

import numpy as np
import torch

import otflow as of
from otflow import closed_forms
from otflow.papers.aggregation import draw, runs
from otflow.papers.aggregation.runs import Descent
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame
from otflow.reproduce.oracle import JKO98, largest

RING = Source("Kolokolnikov, Sun, Uminsky, Bertozzi 2011; minimum of a function of moments, see the text")
RICHARDSON = Source("Richardson's extrapolation")
DISSIPATION = Source("Ambrosio, Gigli, Savaré 2008").at("section 11.1")
SWARMS = "Fetecau, Huang, Kolokolnikov 2011"
SEED = 3
RING_TAUS = (0.025, 0.0125)  # steps at which JKO is compared with the explicit flow, until t = 1/4
CONVEX = 0.5  # the longest step that is to be convex; longer ones only hasten the end
ROUNDING = 1e-12  # squared distances below are lost in the rounding of positions
DISC_PLAN: runs.Plan = ((0.1, 8), (1.0, 8), (10.0, 6), (100.0, 4))


def run(frame: Frame) -> Result:
    """All four kernels, all claims, one figure."""
    rng = np.random.default_rng(SEED)
    frame.stage(0.0, "ring")
    ring = runs.descend(runs.scattered(frame.size(32, 80), rng), runs.quartic(), ((0.5, 24), (10.0, 14)))
    discs = {}
    for k, n in enumerate(frame.size((25, 81), (25, 49, 100, 196))):
        frame.stage(0.2 + 0.15 * k, f"disc, {n} particles")
        discs[n] = runs.descend(runs.jittered(n, rng), runs.logarithmic(), DISC_PLAN)
    frame.stage(0.8, "interval")
    start = of.Particles(np.sort(rng.normal(0.4, 0.2, (frame.size(20, 40), 1)), axis=0))
    interval = runs.descend(start, runs.newtonian_line(), ((0.25, 20), (2.0, 12)))
    found = {"ring": ring, "interval": interval} | {f"disc of {n}": disc for n, disc in discs.items()}
    frame.stage(0.9, "certificates")
    claims = [
        *_ring_claims(ring),
        *_disc_claims({n: disc.x[-1] for n, disc in discs.items()}),
        *_virial_claims(discs),
        *_interval_claims(interval),
        _quadratic_claim(rng),
        *_certificates(list(found.values())),
    ]
    data = {name.replace(" ", "_"): one.x.numpy() for name, one in found.items()}
    return Result(claims, {"aggregation": draw.figure(ring, discs, interval)}, data)


def _ring_claims(ring: Descent) -> list[Claim]:
    x, energy, last = ring.x[-1], ring.energy(ring.clouds[-1]), f"tau = {RING_TAUS[-1]:g}"
    far = (x.norm(dim=-1) - closed_forms.ring_radius(4, 2)).abs().max()
    moments = largest(x.mT @ x / len(x), torch.eye(2) / 6)
    explicit = [runs.against_explicit(ring.clouds[0], tau) for tau in RING_TAUS]
    first, second, balances = zip(*explicit, strict=True)
    meets = "meets the explicit flow"
    return [
        RING("ring: every particle ends 1/sqrt(3) from the centre (largest difference)").at_most(1e-6, far),
        RING("ring: the second moments end at I/6 (largest difference)").at_most(1e-6, moments),
        RING("ring: the energy ends at its minimum -1/12").equal(-1 / 12, energy, atol=1e-12),
        JKO98(f"ring: JKO {meets} (Dopri5) at t = 1/4 with the order 1").within(
            0.9, 1.1, slope(RING_TAUS, first)
        ),
        RICHARDSON(f"ring: extrapolated JKO {meets} with the order 2").within(
            1.8, 2.2, slope(RING_TAUS, second)
        ),
        RICHARDSON(f"ring: extrapolated JKO with {last} against the explicit flow (rms)").at_most(
            1e-4, second[-1]
        ),
        DISSIPATION("ring: the energy-dissipation identity is met with the order 2 in tau").within(
            1.7, 2.3, of.dynamics.balance_order(balances)
        ),
    ]


def _disc_claims(last: dict[int, torch.Tensor]) -> list[Claim]:
    moment, neighbours = (
        Source(f"{SWARMS}; {why}") for why in ("virial theorem", "neighbours are N^-0.5 apart")
    )
    rates = {
        "the outermost particle nears the unit circle": runs.edge,
        "the radii become those of the uniform disc (Kolmogorov's distance)": runs.discrepancy,
    }
    return [
        *(
            moment(f"disc: the second moment of {n} particles ends at (1 - 1/N)/2").equal(
                closed_forms.log_gas_second_moment(n), runs.second_moment(x), atol=1e-6
            )
            for n, x in last.items()
        ),
        *(
            neighbours(f"disc: {word} like N^-0.5 (slope)").within(
                -0.65, -0.35, slope(list(last), [far(x) for x in last.values()])
            )
            for word, far in rates.items()
        ),
    ]


def _virial_claims(discs: dict[int, Descent]) -> list[Claim]:
    n, disc = max(discs.items()) if len(discs) < 3 else sorted(discs.items())[1]
    c, M = closed_forms.log_gas_second_moment(n), runs.second_moment(disc.x)
    defect = (1 + 2 * disc.tau) * (M[1:] - c) - (M[:-1] - c) + disc.certificates["cost"]
    field = of.SteepestDescent(disc.energy, of.Wasserstein())
    times = torch.linspace(0.0, 2.0, 5, dtype=torch.float64)
    traj = of.flow(disc.clouds[0], field, of.Dopri5(1e-9, 1e-11), t1=2.0, save_at=times)
    off = largest(runs.second_moment(traj.stacked.coords[0]), c + (M[0] - c) * torch.exp(-2 * traj.ts))
    explicit = f"disc: M(t) - c = exp(-2t) (M(0) - c) in the explicit flow, N = {n} (largest defect)"
    steps = f"disc: (1 + 2 tau)(M' - c) = M - c - W2^2 for all JKO steps, N = {n} (largest defect)"
    return [
        Source("virial theorem")(explicit).at_most(1e-7, off),
        Source("virial theorem of the scheme, see the text")(steps).at_most(1e-9, defect.abs().max()),
    ]


def _interval_claims(run: Descent) -> list[Claim]:
    x = run.x[..., 0]
    n, centre = x.shape[-1], x[0].mean()
    rest = closed_forms.line_equilibrium(n) + centre
    share = torch.cat([torch.ones(1), torch.cumprod(1 / (1 + run.tau), 0)])[:, None]
    tail = float(share[-1] * (x[0] - rest).abs().max())  # what the run has not yet come nearer
    apart = runs.kolmogorov((x[-1] - centre + 1) / 2)
    return [
        Source(f"{JKO98}; the force is linear between particles in order")(
            "interval: x - c is divided by 1 + tau in every step (largest difference)"
        ).at_most(1e-9, (x - rest - share * (x[0] - rest)).abs().max()),
        Source("gaps are averages of positive ones")(
            "interval: no two particles meet (the smallest gap between neighbours, negative)"
        ).at_most(0.0, -x.diff(dim=-1).min()),
        Source(f"{SWARMS}; midpoints of N equal parts: 1/(2N)")(
            f"interval: Kolmogorov's distance of {n} particles to the uniform law on [-1, 1]"
        ).equal(1 / (2 * n), apart, atol=tail + 1e-9),
    ]


def _quadratic_claim(rng: np.random.Generator) -> Claim:
    """Clouds with weights, three lengths of steps."""
    x, w = rng.normal(size=(4, 30, 2)), rng.dirichlet(np.ones(30), 4)
    mu, energy = of.Particles(x, w), runs.radial(lambda s: s / 2)
    taus, step = (0.1, 1.0, 10.0), closed_forms.aggregation_step
    worst = max(largest(of.jko_step(mu, energy, tau).mu.coords[0], step(x, tau, w=w)) for tau in taus)
    statement = "W = |x|^2/2: one step is c + (x - c)/(1 + tau), c the mean (largest difference)"
    return JKO98(statement).at_most(1e-10, worst)


def _wasted(run: Descent) -> float:
    """How much more a displacement costs than optimal transport, relatively; the worst of all steps."""
    cost = run.certificates["cost"]
    exact = [of.wasserstein(mu, nu).square() for mu, nu in zip(run.clouds, run.clouds[1:], strict=False)]
    return float(((cost - torch.stack(exact)).abs() / cost.clamp(min=ROUNDING)).max())


def _certificates(found: list[Descent]) -> list[Claim]:
    steps = sum(len(one.tau) for one in found)
    gap = max((one.certificates["energy_gap"] / one.energy(one.clouds[0]).abs()).max() for one in found)
    residual = max(one.certificates["residual"].max() for one in found)
    concavity = max(one.certificates["concavity"][one.tau <= CONVEX].max() for one in found)
    excess = f"F(mu') + W2(mu', mu)^2 / (2 tau) <= F(mu), {steps} steps (largest excess)"
    optimal = "all runs: |u/tau + grad F| relative to |grad F| (largest)"
    return [
        JKO98(f"all runs: {excess}").at_most(1e-14, gap),
        Source("optimality of the step")(optimal).at_most(1e-8, residual),
        Source("below 1 the step is convex where it was looked at")(
            f"all runs: -tau times the lowest curvature met, where tau <= {CONVEX:g} (largest)"
        ).at_most(1.0, concavity),
        Source(f"{JKO98}; exact transport, certified")(
            "all runs: displacements are optimal maps (cost against W2^2, relatively)"
        ).at_most(1e-9, max(map(_wasted, found))),
    ]
