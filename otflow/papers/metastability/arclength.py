"""Arclength as the clock of attention on the circle at low temperature, with merges where tokens meet.

Velocities go down to exp(-2 beta), beyond floating point from beta = 400 on. So the field is divided by its
largest entry, in the logarithmic domain, and time is a sum of steps over speeds, as a logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.tangent import Tangent
from otflow.dynamics.flow import flow
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles
from otflow.papers.tokens.circle import TURN, angles, gaps
from otflow.steppers import RK4

SAME = 1e-12  # angles closer than that are the same
STILL = 1e-13  # an equilibrium is not told from one that is so near


class Arclength(VelocityField):
    """theta_i' = v_i / max_j |v_j|,  v_i = -sum_j m_j exp(beta (cos(theta_ij) - 1)) sin(theta_ij).

    The path of unnormalised attention (USA) on the circle, theta_ij = theta_i - theta_j, run with speed one
    in the largest norm; with ``normalised=True`` that of softmax attention (SA), where v_i is divided by
    sum_j m_j exp(...). The sums leave out the token itself, which does not pull, and are scaled by their
    largest term: nothing underflows.

    Args:
        beta: the inverse temperature, > 0.
        normalised: SA rather than USA.

    >>> from otflow.papers.metastability import Arclength
    >>> import otflow as of
    >>> field = Arclength(4000.0)
    >>> mu = of.Particles([[0.0], [1.0], [2.5]])
    >>> field(0.0, mu)[0].flatten().round(decimals=6)
    tensor([ 1., -1., -0.], dtype=torch.float64)
    >>> field.log_speed(mu).round(decimals=3)  # log(sin(1) / 3) - 4000 (1 - cos(1))
    tensor(-1840.0620, dtype=torch.float64)

    Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833, section 6.
    """

    def __init__(self, beta: float, *, normalised: bool = False) -> None:
        self.beta, self.normalised = checks.positive(beta, "beta"), normalised

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        pull, _ = self._pulls(mu)
        v = pull.sum(-1)
        top = v.abs().amax(-1)
        safe = torch.where(top > 0, top, torch.ones_like(top))  # one token alone stays where it is
        return Tangent([(v / safe[..., None])[..., None]])

    def log_speed(self, mu: Measure) -> Tensor:
        """log max_i |v_i|, (*batch,), in the time of the kernel exp(beta (cos - 1))."""
        pull, scale = self._pulls(mu)
        return scale + pull.sum(-1).abs().amax(-1).log()

    def reach(self, mu: Measure) -> Tensor:
        """A length (*batch,) over which the speed hardly changes its order: 0 at an equilibrium.

        Next to one, it is the distance in angle: to antipodes, where pulls vanish, or to where they cancel.
        """
        pull, _ = self._pulls(mu)
        top = pull.sum(-1).abs().amax(-1)
        left = top / pull.abs().amax((-2, -1)).clamp_min(torch.finfo(top.dtype).tiny)
        return torch.where(left < 0.25, torch.minimum(top, left / max(1.0, self.beta)), top)

    def _pulls(self, mu: Measure) -> tuple[Tensor, Tensor]:
        """Velocities (*batch, k, k) of each token due to each other, over exp(scale); the scale (*batch,)."""
        x, w = mu.nodes()
        if x.shape[-1] != 1:
            checks.fail("d", x.shape[-1], "tokens are angles", "pass Particles(theta[:, None])")
        between = x - x.mT
        score = w.log()[..., None, :] - 2 * self.beta * (between / 2).sin().square()
        if self.normalised:
            score = score - score.logsumexp(-1, keepdim=True)
        self_term = torch.eye(x.shape[-2], dtype=torch.bool, device=x.device)
        score = score.masked_fill(self_term, -math.inf)
        scale = score.amax((-2, -1)) if x.shape[-2] > 1 else torch.zeros_like(x[..., 0, 0])
        return -(score - scale[..., None, None]).exp() * between.sin(), scale

    def __repr__(self) -> str:
        return f"Arclength({self.beta:g}{', normalised=True' * self.normalised})"


class Merge(NamedTuple):
    """Clusters that became one: when (log t), where (an angle), and which tokens each of them held."""

    log_t: float
    theta: float
    clusters: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class SaddleToSaddle:
    """What `slow_flow` returns: a path from one configuration of clusters to the next.

    Attributes:
        beta: the inverse temperature.
        log_t: the logarithm of time, (T,), of every state but the start, t = 0.
        theta: angles (T, n) of all tokens; those that have merged have the same, up to full turns.
        energy: sum_ij m_i m_j exp(beta (cos(theta_i - theta_j) - 1)), (T,).
        merges: one `Merge` after the other.
        status: "ok", or "equilibrium" if several clusters are left that stay where they are.
    """

    beta: float
    log_t: Tensor
    theta: Tensor
    energy: Tensor
    merges: tuple[Merge, ...]
    status: str

    @property
    def s(self) -> Tensor:
        """log t / beta, (T,)."""
        return self.log_t / self.beta

    @property
    def jumps(self) -> Tensor:
        """log t / beta of the merges, (number of merges,)."""
        return torch.tensor([m.log_t for m in self.merges], dtype=torch.float64) / self.beta

    def __repr__(self) -> str:
        return f"SaddleToSaddle({len(self.merges)} merges in {len(self.log_t)} states, {self.status!r})"


class ArcClusters(NamedTuple):
    """Clusters at angles x (k,) with masses m (k,), and the cluster of every token, (n,)."""

    x: Tensor
    m: Tensor
    owner: Tensor

    def tokens(self, q: int) -> tuple[int, ...]:
        return tuple((self.owner == q).nonzero().flatten().tolist())


def energy(theta: Any, beta: float, masses: Any = None) -> Tensor:
    """sum_ij m_i m_j exp(beta (cos(theta_i - theta_j) - 1)), between sum_i m_i^2 and 1.

    It grows along both flows. (2 beta times the energy of Geshkovski et al. 2024, which is at most
    1 / (2 beta); the staircase is that of this one.)

    Args:
        theta: angles (*batch, n).
        beta: the inverse temperature, > 0.
        masses: (n,), positive with sum one; equal if left out.

    >>> from otflow.papers.metastability import energy
    >>> energy([0.0, 0.0, 3.0, 4.0], 100.0)
    tensor(0.3750, dtype=torch.float64)
    """
    beta, x = checks.positive(beta, "beta"), angles(theta)
    m = shares(masses, x.shape[-1])
    kernel = torch.exp(-2 * beta * ((x[..., :, None] - x[..., None, :]) / 2).sin().square())
    return (m * (kernel @ m[:, None])[..., 0]).sum(-1)


def slow_flow(
    theta0: Any,
    beta: float,
    *,
    masses: Any = None,
    normalised: bool = False,
    merge_gap: float | None = None,
    step: float = 1.0,
) -> SaddleToSaddle:
    """Follow attention on the circle from n tokens to one, for any beta, with time as log t.

    `flow` runs `Arclength` until two clusters are closer than ``merge_gap``; they become one at their centre
    of mass, and so on. Time is int ds / |v|, by a rule that is exact where log |v| is linear in s. Between
    two merges log |v| may vary by hundreds, and the rule is of second order. Next to an equilibrium, steps
    are as short as the distance from it. Their number grows like beta if gaps stay the same.

    A cluster of mass q that is pulled alike from both sides, by masses p, is at an unstable place. Its
    distance from there grows by exp(2 beta (1 - cos(gap)) p / q) until the gaps have closed, so that rounding
    decides to which side it goes if the start is symmetric, [0, 0.6, 1.2] for example, or nearly so. For
    equal masses the time of the first merge is then right, but not its pair, and the time of the next means
    nothing; for a light cluster between heavy ones, the first time depends on rounding as well. Such starts
    have ``margins`` near 0 in `staircase`.

    Args:
        theta0: angles (n,), n >= 2, no two closer than ``merge_gap``.
        beta: the inverse temperature, > 0.
        masses: (n,), positive with sum one; equal if left out.
        normalised: SA rather than USA; time is that of `staircase`.
        merge_gap: (beta log beta)^(-1/2) if left out, which asks for beta > e.
        step: a factor of the steps, at most 2; they resolve the merge gap and the growth of velocities.

    >>> from otflow.papers.metastability import slow_flow
    >>> run = slow_flow([0.0, 0.5, 2.0], 200.0)
    >>> run
    SaddleToSaddle(2 merges in 363 states, 'ok')
    >>> run.merges[0].clusters, round(run.merges[0].theta, 6)
    (((0,), (1,)), 0.25)

    Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833, section 6 (USA with enforced collisions).
    """
    x, field = row(theta0, least=2), Arclength(beta, normalised=normalised)
    m, step = shares(masses, len(x)), checks.positive(step, "step")
    if step > 2:
        checks.fail("step", step, "tokens would jump over each other", "choose step <= 2")
    gap = _merge_gap(field.beta) if merge_gap is None else checks.positive(merge_gap, "merge_gap")
    apart(x, max(gap, SAME))
    if still(x, m, field):
        checks.fail(
            "theta0",
            x.tolist(),
            "all pulls cancel: an equilibrium, where tokens stay",
            "pass theta0 + 1e-3 * torch.randn(len(theta0))",
        )
    stages = list(_stages(ArcClusters(x, m, torch.arange(len(x))), field, gap, step))
    return _run(stages, m, field.beta)


def row(theta0: Any, least: int) -> Tensor:
    """Angles (n,) with n >= least."""
    x = angles(theta0, "theta0")
    if x.ndim > 1 or len(x) < least:
        checks.fail(
            "theta0.shape",
            tuple(x.shape),
            f"(n,) with n >= {least} is needed",
            "pass theta0=[0.0, 1.0, 3.0], say",
        )
    return x


def shares(masses: Any, n: int) -> Tensor:
    """Masses (n,), positive with sum one."""
    if masses is None:
        return torch.full((n,), 1 / n, dtype=torch.float64)
    m = checks.tensor(masses, "masses").detach().to(torch.float64)
    if m.shape != (n,):
        checks.fail(
            "masses.shape",
            tuple(m.shape),
            f"one mass for each of {n} angles",
            "leave masses out for equal ones",
        )
    if not bool((m > 0).all()):
        checks.fail(
            "min(masses)", m.min().item(), "masses must be > 0", "pass theta0[masses > 0], masses[masses > 0]"
        )
    return checks.probability(m, "masses", "pass masses / masses.sum()")


def apart(x: Tensor, least: float) -> None:
    """Fail if two angles are closer than ``least``, or the same."""
    order, gap = gaps(x)
    i = int(gap.argmin())
    if gap[i] <= least:
        pair = f"theta0[{order[i]}], theta0[{order[(i + 1) % len(x)]}]"
        rule = f"tokens must be more than {least:.3g} apart"
        remedy = "pass them as one token with masses=..." + " or a smaller merge_gap" * (least > SAME)
        checks.fail(pair, f"{gap[i]:.3g} apart", rule, remedy)


def _merge_gap(beta: float) -> float:
    if beta <= math.e:
        remedy = "pass merge_gap=..., or use flow directly"
        checks.fail("beta", beta, "(beta log beta)^(-1/2) needs beta > e", remedy)
    return 1 / math.sqrt(beta * math.log(beta))


def still(x: Tensor, m: Tensor, field: Arclength) -> bool:
    """Whether all pulls on clusters at x (k,) cancel, as far as can be told."""
    return float(field.reach(Particles(x[:, None], w=m))) < STILL


class _Stage(NamedTuple):
    """States x (T, k) between two merges, the logarithms (T,) of the times between them, and the clusters."""

    x: Tensor
    log_dt: Tensor
    clusters: ArcClusters


def _stages(start: ArcClusters, field: Arclength, gap: float, step: float) -> Iterator[_Stage]:
    """Run, merge, run again, until one cluster is left or nothing moves."""
    while len(start.x) > 1:
        mu = Particles(start.x[:, None], w=start.m)
        reach = float(field.reach(mu))
        if reach < STILL:
            break
        nearest = min(float(gaps(start.x)[1].min()), math.pi / 2)
        ds = step * min(gap / 8, 1 / (field.beta * math.sin(nearest)))
        # Next to an equilibrium, in steps that grow with the distance from it. Else to the next merge, which
        # comes before the fastest token has gone around as often as this.
        ds, end = (step * reach / 4, 2 * step * reach) if step * reach / 4 < ds else (ds, TURN * len(start.x))
        traj = flow(mu, field, RK4(), t1=end, dt=ds, stop=lambda t, mu: _near(mu, gap))
        x = traj.stacked.nodes()[0]
        log_v = torch.cat([field.log_speed(mu.at([part])) for part in _parts(x, len(mu.x))])
        yield _Stage(x[..., 0], _log_steps(traj.ts, log_v), start)
        start = _merged(traj.final, start, gap)
    zero = torch.full((1,), -math.inf, dtype=torch.float64)
    yield _Stage(start.x[None], zero, start)


def _parts(x: Tensor, k: int) -> tuple[Tensor, ...]:
    """States in groups whose matrices (k, k) fit into memory."""
    parts: tuple[Tensor, ...] = x.split(max(1, 2**22 // k**2))
    return parts


def _near(mu: Measure, gap: float) -> Tensor:
    return (gaps(mu.nodes()[0][..., 0])[1] <= gap).any(-1)


def _log_steps(s: Tensor, log_v: Tensor) -> Tensor:
    """log int exp(-log v) ds between the states, -inf in front: exact where log v is linear in s."""
    a, b = -log_v[:-1], -log_v[1:]
    d = (b - a).abs()
    # The mean between both ends is (1 - exp(-d)) / d of the larger one, exp(-d / 2) where that is 0 / 0.
    small = torch.where(d > 1e-8, d, torch.ones_like(d))
    mean = torch.where(d > 1e-8, torch.log(-torch.expm1(-small) / small), -d / 2)
    first = torch.full((1,), -math.inf, dtype=torch.float64)
    return torch.cat([first, s.diff().log() + torch.maximum(a, b) + mean])


def _merged(mu: Measure, old: ArcClusters, gap: float) -> ArcClusters:
    """Neighbours closer than the gap as one, at their centre of mass."""
    x = mu.nodes()[0][:, 0]
    order, between = gaps(x)
    last = int(between.argmax())  # the widest gap stays open: start behind it
    order, between = order.roll(-last - 1), between.roll(-last - 1)
    line = x[order[0]] + torch.cat([torch.zeros(1, dtype=x.dtype), between[:-1].cumsum(0)])
    group = torch.cat([torch.zeros(1, dtype=torch.long), (between[:-1] > gap).long().cumsum(0)])
    k, m = int(group[-1]) + 1, old.m[order]
    mass = torch.zeros(k, dtype=x.dtype).scatter_add(0, group, m)
    centre = torch.zeros(k, dtype=x.dtype).scatter_add(0, group, m * line) / mass
    place = torch.empty_like(order)
    place[order] = group
    return ArcClusters(centre, mass, place[old.owner])


def _run(stages: list[_Stage], m: Tensor, beta: float) -> SaddleToSaddle:
    """All stages on one clock, with the angles of all tokens."""
    log_t = torch.cat([stage.log_dt for stage in stages]).logcumsumexp(0)[1:]
    tokens = torch.cat([stage.x[:, stage.clusters.owner] for stage in stages])
    theta = tokens - TURN * torch.cumsum(torch.round(tokens.diff(dim=0, prepend=tokens[:1]) / TURN), 0)
    ends = torch.tensor([len(stage.x) for stage in stages]).cumsum(0) - 2  # the start was left out
    pairs = zip(stages, stages[1:], ends.tolist(), strict=False)
    merges = [merge for a, b, i in pairs for merge in _merges(a.clusters, b.clusters, log_t[i].item())]
    status = "ok" if len(stages[-1].clusters.x) == 1 else "equilibrium"
    levels = torch.cat([energy(part, beta, m) for part in _parts(theta[1:], len(m))])
    return SaddleToSaddle(beta, log_t, theta[1:], levels, tuple(merges), status)


def _merges(a: ArcClusters, b: ArcClusters, log_t: float) -> Iterator[Merge]:
    """The clusters of b that hold several of a."""
    for q in range(len(b.x)):
        parts = a.owner[b.owner == q].unique().tolist()
        if len(parts) > 1:
            held = tuple(sorted(a.tokens(p) for p in parts))
            yield Merge(log_t, torch.remainder(b.x[q], TURN).item(), held)
