"""Runs behind the figures of Castin et al. on Gaussians: flows, and an independent check of them.

Planar covariances are followed in three ways. `follow` is the library's adaptive flow of the root. `orbits`
is the same flow in a time of its own for every member, which makes explosions last for ever, so that whole
orbits can be drawn. `reference` shares nothing with either but the weights: scipy's eighth-order method on
the covariance itself, again in times of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import root as solve_root
from torch import Tensor

import otflow as of
from otflow.base.tangent import Tangent
from otflow.fields import Carry
from otflow.measures import Measure
from otflow.papers.unified.parameters import PAPER, Panel, motion, panels, trace
from otflow.reproduce.claim import Source

SECTION = PAPER.at("section 4")
SCIPY = Source("independent integrator: scipy's DOP853 on the covariances")
LAST = 1e6  # the time until which what falls like 1/t is followed: long past the start, which M / t forgets
CALM = 1e-10  # |dS/dt| at which what falls exponentially is stopped: limits have traces of about one
CAP = 1e9  # traces beyond stand for infinity: the clocks of `orbits` and `reference` stop there
Array = np.ndarray


def panel(name: str, *, quick: bool, keep: int = 7) -> Panel:
    """The panel of this name; if quick, only every ``keep``-th of its initial covariances.

    >>> from otflow.papers.unified.runs import panel
    >>> len(panel("2a", quick=True).covariances), len(panel("2a", quick=False).covariances)
    (170, 1184)
    """
    found = panels()[name]
    return replace(found, covariances=found.covariances[::keep]) if quick else found


def scores(p: Panel) -> Array:
    """A as softmax and L2 attention use it, K^T Q / sqrt(d).

    >>> from otflow.papers.unified.runs import panel, scores
    >>> scores(panel("1b", quick=True)).shape
    (2, 2)
    """
    return np.asarray(p.A / math.sqrt(p.d))


def clock(S: Tensor) -> Tensor:
    """dt/ds = 1 / ((1 + tr S) (1 + (tr S / CAP)^2)), so that nothing explodes in the time s, (*batch,).

    >>> import torch
    >>> from otflow.papers.unified.runs import clock
    >>> clock(torch.eye(1).double()).item()
    0.5
    """
    size = trace(S)
    return 1 / ((1 + size) * (1 + (size / CAP).square()))


def speed(p: Panel, S: Array) -> Array:
    """|dS/dt| in the Frobenius norm, (*batch,).

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import panel, speed
    >>> speed(panel("1b", quick=True), np.zeros((3, 2, 2))).tolist()
    [0.0, 0.0, 0.0]
    """
    at = torch.from_numpy(S)
    return np.asarray(torch.linalg.matrix_norm(motion(p.rate()(at), at)))


# --- flows -------------------------------------------------------------------------------------------


def decades(last: float, *, count: int = 60) -> Array:
    """0 and ``count`` - 1 times from 0.01 to ``last``, evenly spread in their logarithm.

    >>> from otflow.papers.unified.runs import decades
    >>> decades(100.0, count=6).round(2).tolist()
    [0.0, 0.01, 0.1, 1.0, 10.0, 100.0]
    """
    return np.concatenate([[0.0], np.geomspace(0.01, last, count - 1)])


def follow(
    p: Panel,
    *,
    t1: float,
    calm: float = 0.0,
    high: float = math.inf,
    save_at: Any = (0.0,),
    rtol: float = 1e-9,
) -> of.Trajectory:
    """The flow of the library; members with |dS/dt| < calm max(1, tr S), or with tr S > high, are stopped.

    >>> from otflow.papers.unified.runs import follow, panel
    >>> follow(panel("1b", quick=True), t1=1.0).status[0]
    np.str_('ok')
    """
    rate = p.rate()

    def stop(t: Tensor, mu: Measure) -> Tensor:
        S = cast(of.Gaussian, mu).cov
        size = trace(S)
        speed: Tensor = torch.linalg.matrix_norm(motion(rate(S), S))
        return (speed < calm * size.clamp(min=1.0)) | (size > high)

    return of.flow(p.gaussians(), p.field(), of.Dopri5(rtol, 1e-5 * rtol), t1=t1, save_at=save_at, stop=stop)


def decay(p: Panel, rtol: float, saves: int) -> of.Trajectory:
    """The flow up to t = 1e6, at save times that are even in log t: for what falls like a power of t.

    >>> from otflow.papers.unified.runs import decay, panel
    >>> decay(panel("1b", quick=True, keep=50), 1e-4, 5).ts[-1].item()
    1000000.0
    """
    return follow(p, t1=LAST, save_at=decades(LAST, count=saves), rtol=rtol)


def rest(p: Panel, _: float, saves: int) -> of.Trajectory:
    """The flow until it stands still, |dS/dt| < 1e-10, which asks for the best tolerance at all times.

    >>> from otflow.papers.unified.runs import panel, rest
    >>> rest(panel("1c", quick=True, keep=50), 0.0, 5).status[0]
    np.str_('stopped')
    """
    return follow(p, t1=1e4, calm=CALM, save_at=decades(1e4, count=saves))


class Slowed(of.VelocityField):
    """v dt/ds with the `clock`: the same orbits as those of v, in a time of their own."""

    def __init__(self, field: of.VelocityField) -> None:
        self.field = field

    def evaluate(self, t: Tensor, mu: Measure, carry: Carry | None = None) -> tuple[Tangent, Carry | None]:
        v, carry = self.field.evaluate(t, mu, carry)
        return clock(cast(of.Gaussian, mu).cov) * v, carry


def orbits(p: Panel, *, length: float, count: int = 60) -> of.Trajectory:
    """The flow of the library up to the time ``length`` of the `clock`, which no orbit leaves.

    >>> from otflow.papers.unified.runs import orbits, panel
    >>> len(orbits(panel("1b", quick=True), length=1.0, count=5))
    5
    """
    times = np.linspace(0.0, length, count)
    return of.flow(p.gaussians(), Slowed(p.field()), of.Dopri5(1e-5, 1e-8), t1=length, save_at=times)


class Reference(NamedTuple):
    """Covariances (N, d, d) at the times t (N,)."""

    S: Array
    t: Array

    @property
    def exploded(self) -> Array:
        """Which members have a trace beyond a thousand, as the scripts of the paper count."""
        return trace(self.S) > 1e3


def reference(p: Panel, *, length: float, own_time: bool) -> Reference:
    """(S, t)' = (BS + SB^T, 1) dt/ds up to s = ``length``: scipy's DOP853, all members as one system.

    Args:
        p: the panel; its `rate` is the matrix formula, not the field.
        length: of time, in the `clock` of every member if ``own_time``, else in t itself.

    >>> import math
    >>> import otflow as of
    >>> from otflow.papers.unified.runs import panel, reference
    >>> p = panel("2a", quick=True)
    >>> exact = of.closed_forms.softmax_blow_up_time(p.covariances, p.A / math.sqrt(2)).numpy()
    >>> bool((abs(reference(p, length=150.0, own_time=True).t / exact - 1) < 1e-6).all())
    True
    """
    rate, shape, cut = p.rate(), p.covariances.shape, p.covariances.size

    def slope(_: float, y: Array) -> Array:
        S = torch.from_numpy(y[:cut].reshape(shape))
        dt = clock(S) if own_time else torch.ones_like(trace(S))
        return np.concatenate([(dt[:, None, None] * motion(rate(S), S)).numpy().ravel(), dt.numpy()])

    start = np.concatenate([p.covariances.ravel(), np.zeros(shape[0])])
    y = solve_ivp(slope, (0.0, length), start, method="DOP853", rtol=1e-8, atol=1e-12).y[:, -1]
    return Reference(y[:cut].reshape(shape), y[cut:])


def profile(p: Panel) -> Array:
    """M with B(M) M + M B(M)^T = -M, B homogeneous: S(t) ~ M / t where attention dies out, (2, 2).

    B is the rate near zero, where all kinds of attention are linear in S: L2 attention is twice softmax
    attention there, and Sinkhorn attention (eps = 1) once. The root is the one near t S(t) of a short
    `reference` from an isotropic start.

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import panel, profile
    >>> M = profile(panel("1a", quick=True))
    >>> bool(np.linalg.eigvalsh(M).min() > 0)
    True
    """
    rate, small = p.rate(), 1e-9  # so small that terms of the next order do not count
    short = reference(replace(p, covariances=np.eye(2)[None] / 2), length=1e4, own_time=True)

    def unfold(y: Array) -> Tensor:
        R = torch.tensor([[y[0], 0.0], [y[1], y[2]]]).double()
        return R @ R.mT

    def balance(y: Array) -> Array:
        M = unfold(y)
        X = motion(rate(small * M), small * M) / small**2 + M
        return np.array([X[0, 0], X[0, 1], X[1, 1]])

    guess = np.linalg.cholesky(short.t[0] * short.S[0])[[0, 1, 1], [0, 0, 1]]
    return unfold(solve_root(balance, guess, tol=1e-12).x).numpy()


@dataclass(frozen=True)
class PanelRun:
    """One panel, followed: what its claims and its pictures are made of.

    Attributes:
        label, words: its name on the page, and what it shows.
        panel, traj: where it starts, and its flow.
        saves: how many times a picture of its orbits needs.
        check, own_time: length of the independent run, and whether in the clocks of its members.

    >>> from otflow.papers.unified.runs import PanelRun, far, follow, panel
    >>> found = PanelRun("1b", "softmax", p := panel("1b", quick=True), follow(p, t1=1.0), 5, 1.0, False)
    >>> found.S.shape, found.ended("ok").all(), far(found.end, found.other.S) < 1e-6
    ((2, 15, 2, 2), np.True_, True)
    """

    label: str
    words: str
    panel: Panel
    traj: of.Trajectory
    saves: int
    check: float
    own_time: bool

    @property
    def t(self) -> Array:
        """The save times, (T,)."""
        return self.traj.ts.numpy()

    @property
    def end(self) -> Array:
        """The last covariances, (N, d, d)."""
        return final(self.traj)

    @property
    def blow_up_time(self) -> Array:
        """When each member explodes, (N,); no number for those that do not."""
        return self.traj.blow_up_time.numpy()

    @cached_property
    def S(self) -> Array:
        """Covariances at all save times, (T, N, d, d)."""
        return covariances(self.traj)

    @cached_property
    def profile(self) -> Array:
        """M, the limit of t S(t) where attention dies out, (2, 2)."""
        return profile(self.panel)

    @cached_property
    def other(self) -> Reference:
        """The independent run."""
        return reference(self.panel, length=self.check, own_time=self.own_time)

    def ended(self, how: str) -> Array:
        """Which members ended like this, (N,) of truth values."""
        return np.asarray(self.traj.status == how)


# --- directions --------------------------------------------------------------------------------------


def isotropic(A: Array) -> Array:
    """The two unit vectors u with u^T A u = 0, for A + A^T of both signs in the plane, as rows.

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import isotropic
    >>> isotropic(np.diag([1.0, -1.0])).round(3).tolist()
    [[0.707, 0.707], [-0.707, 0.707]]
    """
    values, vectors = np.linalg.eigh(A + A.T)
    low, high = math.sqrt(-values[0]), math.sqrt(values[1])
    u = np.stack([low * vectors[:, 1] + s * high * vectors[:, 0] for s in (1.0, -1.0)])
    u = u / np.linalg.norm(u, axis=-1, keepdims=True)
    return np.asarray(np.where(u[:, 1:] < 0, -u, u))  # a line has two unit vectors: take the upper one


def stable_lines(p: Panel) -> Array:
    """The unit u with u^T A u = 0 at which the stationary matrices c uu^T are stable, as rows.

    >>> from otflow.papers.unified.runs import panel, stable_lines
    >>> len(stable_lines(panel("1d", quick=True))), len(stable_lines(panel("2d", quick=True)))
    (2, 1)
    """
    A = scores(p)
    return np.stack([u for u in isotropic(A) if max(u @ (A + A.T) @ p.V @ u, u @ A @ p.V @ u) < 0])


def explosive_line(p: Panel) -> tuple[Array, float]:
    """The unit eigenvector v of V with an eigenvalue l such that l v^T A v > 0, and 2 l v^T A v.

    >>> from otflow.papers.unified.runs import explosive_line, panel
    >>> explosive_line(panel("2d", quick=True))[0].round(3).tolist()
    [0.197, 0.98]
    """
    values, vectors = np.linalg.eig(p.V)
    paces = [2 * value * v @ scores(p) @ v for value, v in zip(values, vectors.T, strict=True)]
    k = int(np.argmax(paces))
    v = vectors[:, k]
    return v * np.sign(v[1]), float(paces[k])


def degrees(u: Array) -> float:
    """The angle of a line with the first axis, from 0 to 180.

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import degrees
    >>> degrees(np.array([1.0, -1.0]))
    135.0
    """
    return math.degrees(math.atan2(u[1], u[0])) % 180


def main_axis(S: Any) -> Array:
    """The unit eigenvector of the largest eigenvalue, (*batch, d).

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import main_axis
    >>> main_axis(np.diag([2.0, 1.0])).tolist()
    [1.0, 0.0]
    """
    return np.asarray(np.linalg.eigh(np.asarray(S))[1][..., -1])


def apart(S: Any, lines: Array) -> tuple[Array, Array]:
    """Sine of the angle between the main axis of S and the nearest of the lines (rows), and which it is.

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import apart
    >>> apart(np.diag([2.0, 1.0])[None], np.eye(2))
    (array([0.]), array([0]))
    """
    w = main_axis(S)
    sines = np.abs(w[:, None, 0] * lines[:, 1] - w[:, None, 1] * lines[:, 0])
    return sines.min(-1), sines.argmin(-1)


def unevenness(S: Any) -> Array:
    """Smallest over largest eigenvalue, (*batch,): zero where the rank is not full.

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import unevenness
    >>> unevenness(np.diag([4.0, 1.0])).item()
    0.25
    """
    values = np.linalg.eigvalsh(np.asarray(S))
    return np.asarray(np.abs(values[..., 0]) / values[..., -1])


def far(S: Any, target: Any) -> float:
    """max |S - target| / |target| over the members, in the Frobenius norm.

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import far
    >>> far(np.array([[[1.1]]]), np.array([[[1.0]]])).__round__(3)
    0.1
    """
    S, target = np.asarray(S), np.asarray(target)
    return float((np.linalg.norm(S - target, axis=(-2, -1)) / np.linalg.norm(target, axis=(-2, -1))).max())


def final(traj: of.Trajectory) -> Array:
    """The last covariances, (N, d, d).

    >>> from otflow.papers.unified.runs import final, follow, panel
    >>> final(follow(panel("1b", quick=True), t1=1.0)).shape
    (15, 2, 2)
    """
    return cast(of.Gaussian, traj.final).cov.numpy()


def covariances(traj: of.Trajectory) -> Array:
    """Covariances at all save times, (T, N, d, d).

    >>> from otflow.papers.unified.runs import covariances, follow, panel
    >>> covariances(follow(panel("1b", quick=True), t1=1.0)).shape
    (2, 15, 2, 2)
    """
    return cast(of.Gaussian, traj.stacked).cov.numpy()


def growth(size: Array, t: Array) -> Array:
    """d/dt log size between the last two times, (N,), of sizes (T, N).

    >>> import numpy as np
    >>> from otflow.papers.unified.runs import growth
    >>> growth(np.exp([[0.0], [6.0]]), np.array([0.0, 2.0]))
    array([3.])
    """
    return np.asarray(np.log(size[-1] / size[-2]) / (t[-1] - t[-2]))


def ranks(traj: of.Trajectory) -> Array:
    """How many eigenvalues stay, (N,): those that fall like a power of t, or are rounding, do not.

    The power is measured between the last two save times, and counts from t^-1/4 on.

    >>> from otflow.papers.unified.runs import decades, follow, panel, ranks
    >>> ranks(follow(panel("1b", quick=True), t1=1e4, save_at=decades(1e4))).max()
    np.int64(1)
    """
    late, last = np.linalg.eigvalsh(covariances(traj)[-2:])
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.log(np.abs(last / late)) / math.log(traj.ts[-1] / traj.ts[-2])
    stays = (slope > -0.25) & (last > 1e-12 * last[:, -1:])
    return np.asarray(stays.sum(-1))
