"""Merging of clusters on the circle: when and where two of them meet, and the staircase of several."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import insist, positive, tensors
from otflow.papers.metastability.arclength import SAME, Arclength, apart, row, shares, still
from otflow.papers.tokens.circle import TURN, gaps

PANELS, NODES = 256, 16  # relative error below 1e-10 for all gaps up to pi - 1e-12


def merge_time(theta: Any, beta: Any, masses: Any, *, normalised: bool = False) -> Tensor:
    """log T, T = int dtheta / (c(theta) E sin(theta)) ~ exp(beta (1 - cos(theta))) / (c beta sin(theta)^2).

    The time in which two clusters alone come from a gap theta to the gap where the energy is halfway between
    its values at the start and at the end; c = m_p + m_q (USA), and with ``normalised=True`` (SA)
    c = m_q / (m_p + m_q E) + m_p / (m_q + m_p E), which is m_p / m_q + m_q / m_p at large beta. By quadrature
    in log tan(theta / 2), where the integrand is smooth, up to gaps of pi - 1e-12. Masses need not sum to
    one; SA depends on their ratio only.

    Args:
        theta: the gap, in (0, pi), (*batch,).
        beta: the inverse temperature, > 0, (*batch,).
        masses: those of the two clusters, (*batch, 2), positive.
        normalised: SA rather than USA.

    >>> from otflow.papers.metastability import merge_time
    >>> merge_time(1.2, 60.0, [0.3, 0.7]).exp()
    tensor(8.0338e+14, dtype=torch.float64)
    """
    theta, beta, p, q = _pair(theta, beta, masses)
    high = torch.tan(theta / 2).log()
    rise = 2 * (beta.sqrt() * torch.sin(theta / 2)).square()  # beta (1 - cos): theta^2 alone may underflow
    d, weight = _graded(high - _halfway(theta, beta, rise), 1 / (1 + beta))
    tan = (high[..., None] - d).exp()  # of half the gap
    rise_d = 2 * (beta.sqrt()[..., None] * tan / torch.hypot(tan, torch.ones_like(tan))).square()
    a, b = _ratio(p, q)
    slow = _slowness(torch.exp(-rise_d), a[..., None], b[..., None]) if normalised else torch.ones_like(d)
    area = (weight * slow * torch.exp(rise_d - rise[..., None])).sum(-1)
    log_T: Tensor = rise + area.log() - (0.0 if normalised else torch.logaddexp(p.log(), q.log()))
    insist(
        log_T.isfinite(),
        "beta",
        beta,
        "float64 does not resolve the time",
        "pass beta / 10, or a gap farther from pi",
    )
    return log_T


def _halfway(theta: Tensor, beta: Tensor, rise: Tensor) -> Tensor:
    """log tan of half the gap at half the energy, where 1 - cos = -log1p(expm1(-rise) / 2) / beta."""
    fall = -torch.log1p(torch.expm1(-rise) / 2)
    flat = rise < 1e-20  # a quarter of sin^2 then, as the energy is a parabola
    usual = torch.where(flat, torch.ones_like(fall), fall)
    log_half = torch.where(flat, 2 * torch.sin(theta / 2).log() - math.log(2), usual.log() - (2 * beta).log())
    return (log_half - torch.log1p(-log_half.exp())) / 2


def _ratio(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Masses over the larger one: squares do not underflow."""
    top = torch.maximum(p, q)
    return p / top, q / top


def _slowness(E: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """1 / c of SA, where the gap closes with velocity c E sin(gap)."""
    return (p * q * (1 + E * E) + (p * p + q * q) * E) / (p * p + q * q + 2 * p * q * E)


def merge_point(theta: Any, beta: Any, masses: Any, *, normalised: bool = False) -> Tensor:
    """How far from the first cluster the two meet: theta m_q / (m_p + m_q) (USA), their centre of mass.

    With ``normalised=True`` (SA) int_0^theta m_q (m_q + m_p E) / (m_p^2 + m_q^2 + 2 m_p m_q E) dtheta. At
    large beta this is theta m_q^2 / (m_p^2 + m_q^2): heavy clusters count for more, since they attend more to
    themselves. The correction is of order beta^(-1/2).

    Args:
        theta: the gap, in (0, pi), (*batch,).
        beta: the inverse temperature, > 0, (*batch,).
        masses: those of the two clusters, (*batch, 2), positive.
        normalised: SA rather than USA.

    >>> from otflow.papers.metastability import merge_point
    >>> merge_point(1.2, 60.0, [0.3, 0.7])
    tensor(0.8400, dtype=torch.float64)
    >>> merge_point(1.2, 60.0, [0.3, 0.7], normalised=True)  # 1.0138 as beta tends to infinity
    tensor(0.9864, dtype=torch.float64)
    """
    theta, beta, p, q = _pair(theta, beta, masses)
    p, q = _ratio(p, q)
    if not normalised:
        centre: Tensor = theta * q / (p + q)
        return centre
    d, weight = _graded(theta, (1 + beta).rsqrt())
    E = torch.exp(-2 * beta[..., None] * torch.sin(d / 2).square())
    share = q[..., None] * (q[..., None] + p[..., None] * E)
    both = (p * p + q * q)[..., None] + 2 * (p * q)[..., None] * E
    return (weight * share / both).sum(-1)


def _pair(theta: Any, beta: Any, masses: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    m = checks.tensor(masses, "masses").detach().cpu().double()
    if m.ndim < 1 or m.shape[-1] != 2:
        checks.fail("masses.shape", tuple(m.shape), "two masses are needed", "pass (*batch, 2)")
    positive(m, "masses")
    gap, b, p, q = tensors(theta=theta, beta=beta, first_masses=m[..., 0], second_masses=m[..., 1])
    positive(b, "beta")
    rule = "a gap is in (0, pi); antipodes stay where they are"
    insist((gap > 0) & (gap < math.pi - SAME), "theta", gap, rule, "measure it along the shorter arc")
    return gap, b, p, q


def _graded(length: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes in (0, length) and weights, (*batch, PANELS NODES), in panels that grow from the scale on."""
    node, weight = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(NODES))
    top = torch.log1p(length / scale)[..., None]
    z = (torch.arange(PANELS)[:, None] + (1 + node) / 2).flatten() / PANELS * top
    inner = weight.repeat(PANELS) / (2 * PANELS) * top
    return scale[..., None] * torch.expm1(z), inner * scale[..., None] * torch.exp(z)


@dataclass(frozen=True, eq=False)
class Staircase:
    """What `staircase` predicts.

    Attributes:
        beta: the inverse temperature.
        levels: the energies sum_q m_q^2 of the plateaus, (k,), the first that of the start.
        log_t: the logarithms of the times of the k - 1 jumps.
        merge_points: the angles in [0, 2 pi) at which clusters merge, (k - 1,).
        pairs: for every jump the two clusters that merge, as tuples of indices of tokens.
        margins: by how much log t of a jump is below that of the nearest merge that competes for one of the
            two clusters, (k - 1,); inf where there is none. The prediction can be trusted where it is large,
            and not where it is near 0, nor from there on.
    """

    beta: float
    levels: Tensor
    log_t: Tensor
    merge_points: Tensor
    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    margins: Tensor

    @property
    def log_times(self) -> Tensor:
        """log t / beta of the jumps, (k - 1,)."""
        return self.log_t / self.beta

    def energy(self, s: Any) -> Tensor:
        """The level at log t / beta = s, of the shape of s."""
        at = checks.tensor(s, "s").to(torch.float64)
        return self.levels[torch.searchsorted(self.log_times, at.contiguous(), right=True)]


def staircase(theta0: Any, beta: float, masses: Any = None, normalised: bool = False) -> Staircase:
    """The jumps of the energy sum_ij m_i m_j E_ij of tokens on the circle: when, how high, who and where.

    Every pair of neighbours closer than pi is taken to move as if alone, from the time on at which it became
    a pair of neighbours; the pair that is through first merges (the nearest one, for equal masses and large
    beta), at the time of `merge_time` and in the point of `merge_point`, and the energy jumps by 2 m_p m_q. A
    pair which shares no cluster with it goes on as before; the others start anew. The list ends early if
    all pulls cancel, up to rounding: antipodes, or equal clusters at equal distances around the circle.

    The assumption is good where ``margins`` are large: for masses of one order, errors of log t are of order
    exp(-margin), of this and of later jumps. Do not trust it where a margin is near 0. There, two gaps next
    to each other are nearly equal, and the cluster between them, of mass q, is pulled both ways, so that the
    first jump is late by a factor of up to (p + q) / q in t (USA), 1 + (p / q)^2 (SA), for masses p on both
    sides: two for equal masses, where the second jump comes soon, but fifty if q is p / 49. Near an
    equilibrium all jumps are late, without a bound. A jump is where the energy of the pair is halfway, not
    where its gap closes; this matters where beta (1 - cos(gap)) is of order one and nothing is metastable.

    Args:
        theta0: angles (n,), all different.
        beta: the inverse temperature, > 0.
        masses: (n,), positive with sum one; equal if left out.
        normalised: SA rather than USA.

    >>> from otflow.papers.metastability import staircase
    >>> steps = staircase([0.0, 0.5, 2.0], 200.0)
    >>> steps.levels
    tensor([0.3333, 0.5556, 1.0000], dtype=torch.float64)
    >>> steps.log_times
    tensor([0.1055, 1.1519], dtype=torch.float64)
    >>> steps.pairs[1], steps.merge_points[1].round(decimals=6)
    (((0, 1), (2,)), tensor(0.8333, dtype=torch.float64))

    Two-cluster asymptotics of Geshkovski, Koubbi, Polyanskiy, Rigollet 2024, arXiv 2410.06833, section 6.
    """
    x, field = row(theta0, least=1), Arclength(beta, normalised=normalised)
    beta = field.beta
    m = shares(masses, len(x))
    if len(x) > 1:
        apart(x, SAME)
    chain = _chain(x, m, beta, normalised)
    levels, jumps = [chain.level], []
    while math.isfinite(float(chain.alarm.min())) and not still(chain.x, chain.m, field):
        jump, chain = _jump(chain, beta, normalised)
        jumps.append(jump)
        levels.append(chain.level)
    column = [torch.tensor([j[i] for j in jumps], dtype=torch.float64) for i in range(3)]
    return Staircase(beta, torch.stack(levels), column[0], column[1], tuple(j.pair for j in jumps), column[2])


class _Jump(NamedTuple):
    log_t: float
    theta: float
    margin: float
    pair: tuple[tuple[int, ...], tuple[int, ...]]


class _Chain(NamedTuple):
    """Clusters in their order around the circle; alarm is log t of the merge of each with the next one."""

    x: Tensor
    m: Tensor
    held: list[tuple[int, ...]]
    alarm: Tensor

    @property
    def level(self) -> Tensor:
        return self.m.square().sum()


def _chain(x: Tensor, m: Tensor, beta: float, normalised: bool) -> _Chain:
    order = torch.remainder(x, TURN).argsort()
    x, m = torch.remainder(x, TURN)[order], m[order]
    held: list[tuple[int, ...]] = [(i,) for i in order.tolist()]
    return _Chain(x, m, held, _alarms(x, m, beta, normalised))


def _alarms(x: Tensor, m: Tensor, beta: float, normalised: bool, which: Tensor | None = None) -> Tensor:
    """log T of the pairs (i, i + 1), inf where the arc is pi or more."""
    gap = gaps(x)[1]
    i = torch.arange(len(x)) if which is None else which
    out = torch.full((len(i),), math.inf, dtype=torch.float64)
    near = gap[i] < math.pi - SAME
    if len(x) > 1 and bool(near.any()):
        both = torch.stack([m[i], m[(i + 1) % len(x)]], -1)
        out[near] = merge_time(gap[i][near], beta, both[near], normalised=normalised)
    return out


def _jump(chain: _Chain, beta: float, normalised: bool) -> tuple[_Jump, _Chain]:
    """The first pair merges."""
    k, i = len(chain.x), int(chain.alarm.argmin())
    j, log_t = (i + 1) % k, chain.alarm[i]
    gap, pair = gaps(chain.x)[1][i], (chain.held[i], chain.held[j])
    way = merge_point(gap, beta, torch.stack([chain.m[i], chain.m[j]]), normalised=normalised)
    x = chain.x.clone()
    x[i] = torch.remainder(x[i] + way, TURN)
    m = chain.m.clone()
    m[i] = m[i] + m[j]
    held = list(chain.held)
    held[i] = tuple(sorted(pair[0] + pair[1]))
    rivals = torch.stack([chain.alarm[i - 1], chain.alarm[j]]).min() - log_t if k > 2 else math.inf
    keep = [q for q in range(k) if q != j]
    merged = _Chain(x[keep], m[keep], [held[q] for q in keep], chain.alarm[keep])
    jump = _Jump(float(log_t), float(x[i]), float(rivals), pair)
    return jump, _anew(merged, keep.index(i), log_t, beta, normalised)


def _anew(chain: _Chain, i: int, log_t: Tensor, beta: float, normalised: bool) -> _Chain:
    """The gaps on both sides of cluster i start at time t, others go on; the order starts at angle 0."""
    k = len(chain.x)
    first = int(chain.x.argmin())  # a merge across angle 0 may have changed which cluster is the first
    x, m, alarm = (a.roll(-first) for a in (chain.x, chain.m, chain.alarm))
    held = chain.held[first:] + chain.held[:first]
    which = torch.tensor(sorted({(i - first) % k, (i - first - 1) % k}))
    alarm[which] = torch.logaddexp(log_t, _alarms(x, m, beta, normalised, which))
    return _Chain(x, m, held, alarm)
