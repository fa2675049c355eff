"""Where a flow of Gaussians ends: its limit, how fast it is reached, and of which rank it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from otflow import checks, status
from otflow.driver import flow
from otflow.errors import ConvergenceError
from otflow.fields import Carry, VelocityField
from otflow.linalg import lyapunov, ratio, widen
from otflow.measures import Gaussian, Measure, where
from otflow.steppers import Dopri5
from otflow.tangent import Tangent, align

VANISHING = 0.25  # eigenvalues that still fall like t to minus this power, or faster, have the limit zero
NOTHING = 1e-12  # a law that has shrunk to this fraction of its covariance, and shrinks, has the limit zero
DUST = 1e-26  # eigenvalues below this fraction of the largest one are rounding of the root
HUGE = 1e12  # growth of the root beyond which a law diverges
SHEER = 1e4  # |dR/dt| t / |R| beyond which growth is an explosion at a finite time
FAST, SLOW = 10.0, 0.1  # a root that moves this fast, in units of log t, while its law is this slow, turns
FLOOR = 1e-6  # changes below this that fall no more are rounding


@dataclass(frozen=True)
class Limit:
    """What `limit` found, for each member of the batch.

    Attributes:
        measure: the limit, its root with exactly ``rank`` directions; the last state if there is no limit.
        status: "ok" where the flow converges, "blow_up" where it diverges, "budget" where neither was seen.
        rank: the number of eigenvalues of the covariance that do not vanish, (*batch,).
        spectrum: eigenvalues of the covariance at the end of the run, the largest first, (*batch, d).
        slopes: their d log(eigenvalue) / d log t there: near 0 for those that stay, (*batch, d).
        rate: p, if the covariance approaches its limit like t^-p; large where it does so exponentially.
        time: the time that was reached, (*batch,).
        blow_up_time: when the law explodes; infinity if it grows for ever, NaN where it does not diverge.
    """

    measure: Gaussian
    status: Any
    rank: Tensor
    spectrum: Tensor
    slopes: Tensor
    rate: Tensor
    time: Tensor
    blow_up_time: Tensor

    def __repr__(self) -> str:
        if self.rank.ndim:
            return f"Limit(batch={tuple(self.rank.shape)})"
        values = ", ".join(f"{v:.3g}" for v in self.spectrum.tolist())
        return f"Limit(status={self.status!r}, rank={int(self.rank)}, spectrum=[{values}])"


def limit(
    field: VelocityField,
    mu0: Gaussian,
    *,
    tol: float = 1e-7,
    decades: int = 40,
    stepper: Dopri5 | None = None,
    max_steps: int = 20_000,
    on_failure: Literal["raise", "return"] = "raise",
) -> Limit:
    """The limit of mu_t as t -> infinity, for a field that keeps Gaussians Gaussian.

    Covariances often converge only like 1/t. So time is stretched, t = c (exp(s) - 1), and the flow followed
    until a unit of s changes the covariance by less than ``tol`` times itself, and ever less. Eigenvalues
    that still fall like a power of t then have the limit zero: a gap that no threshold on their size shows.
    The whole law is followed. A mean that grows, as under softmax with V = I, makes it diverge; the
    covariance does not feel the mean, so centre the law to ask for the covariance alone.

    Args:
        field: a field that is affine on Gaussians.
        mu0: where to start; any batch.
        tol: change of the covariance at which to stop.
        decades: how many powers of ten of time to follow, from the time scale of the start on.
        stepper: a `Dopri5` with other tolerances than 1e-9.
        max_steps: limit on the steps. Fast exponential modes beside slow algebraic ones need many.
        on_failure: "raise" raises `ConvergenceError`, which carries the result, where there is no verdict.

    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[1.0, 0.0]], [[-1.0, 0.0]], torch.eye(2).double())  # A = -e1 e1^T
    >>> of.limit(field, of.Gaussian([0.0, 0.0], torch.eye(2).double())).measure.cov
    tensor([[0., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    mu0, field = checks.instance(mu0, Gaussian, "mu0"), checks.instance(field, VelocityField, "field")
    checks.raises(on_failure)
    options = _Options(
        tol=checks.positive(tol, "tol"),
        length=math.log(10) * checks.count(decades, "decades"),
        stepper=stepper or _default(mu0),
        max_steps=max_steps,
    )
    with torch.no_grad():
        path = _Stretched.of(field, mu0)
        first = _run(path, mu0, mu0, options)
        result = first.verdict()
        if bool(first.turning.any()):
            again = _run(path.after(first.s), first.mu, mu0, options)
            result = _chosen(first.turning, again.verdict(), result)
    missing = int((torch.as_tensor(result.status == "budget")).sum())
    if missing and on_failure == "raise":
        raise ConvergenceError(
            f"{missing} of {max(1, mu0.batch.numel())} laws neither settle nor diverge within the decades "
            "and steps allowed: they may oscillate, or change too slowly; raise decades or max_steps, or "
            "pass on_failure='return'",
            result,
        )
    return result


def _default(mu0: Gaussian) -> Dopri5:
    sizes = mu0.root.abs().amax((-1, -2))
    return Dopri5(1e-9, 1e-16 * float(torch.where(sizes > 0, sizes, torch.ones_like(sizes)).min()))


class _Stretched(VelocityField):
    """A field in the time s, t = scale (exp(s) - 1); s counts from ``start``.

    Roots R and R O mean the same law, and a root may turn for ever though its law is at rest. With ``still``,
    R W is added to the velocity U of the root, with the skew W that makes it least,
    R^T R W + W R^T R = U^T R - R^T U; the law does not feel it.
    """

    def __init__(self, field: VelocityField, scale: Tensor, start: Tensor, *, still: bool) -> None:
        self.field, self.scale, self.start, self.still = field, scale, start, still

    @classmethod
    def of(cls, field: VelocityField, mu0: Gaussian) -> _Stretched:
        """From 0, on the time scale of the covariance (or, if that is at rest, of the mean)."""
        start = torch.zeros(mu0.batch, dtype=torch.float64, device=mu0.device)
        motion = _Motion.of(field.evaluate(start, mu0)[0], mu0)
        rate = torch.maximum(ratio(motion.speed, motion.size), ratio(motion.drift, motion.offset))
        return cls(field, torch.where(rate > 0, 1 / rate, 1.0), start, still=False)

    def after(self, s: Tensor) -> _Stretched:
        """The same path from s on, with the root kept from turning."""
        return _Stretched(self.field, self.scale, self.start + s, still=True)

    def time(self, s: Tensor) -> Tensor:
        return self.scale * torch.expm1(self.start + s)

    def evaluate(self, t: Tensor, mu: Measure, carry: Carry | None = None) -> tuple[Tangent, Carry | None]:
        v, carry = self.field.evaluate(self.time(t), mu, carry)
        if self.still:
            R = mu.coords[1]
            gram, turn = R.mT @ R, R.mT @ v[1]
            gram = torch.where(torch.isfinite(gram).all(-1, keepdim=True).all(-2, keepdim=True), gram, 0.0)
            v = Tangent([v[0], v[1] + R @ lyapunov(gram, turn.mT - turn)])
        return self.scale * torch.exp(self.start + t) * v, carry


@dataclass(frozen=True)
class _Motion:
    """How fast a law moves: Frobenius norms of the covariance, its velocity, and the like for the mean."""

    size: Tensor
    speed: Tensor
    spin: Tensor  # the speed of the root, relative to its size
    offset: Tensor
    drift: Tensor

    @classmethod
    def of(cls, v: Tangent, mu: Gaussian) -> _Motion:
        R, U = mu.root, v[1]
        half = U @ R.mT
        frobenius = torch.linalg.matrix_norm
        return cls(
            size=frobenius(R @ R.mT).double(),
            speed=frobenius(half + half.mT).double(),
            spin=ratio(frobenius(U), frobenius(R)).double(),
            offset=torch.linalg.vector_norm(mu.mean, dim=-1).double(),
            drift=torch.linalg.vector_norm(v[0], dim=-1).double(),
        )


class _Options(NamedTuple):
    tol: float
    length: float
    stepper: Dopri5
    max_steps: int


class _Watch:
    """Decides, step after step, which members are done; remembers the speed to tell whether it falls."""

    def __init__(self, path: _Stretched, mu0: Gaussian, tol: float) -> None:
        self.path, self.tol = path, tol
        self.size0 = torch.linalg.matrix_norm(mu0.cov).double()
        self.reach0 = torch.maximum(self.size0.sqrt(), torch.linalg.vector_norm(mu0.mean, dim=-1).double())
        self.s = torch.full_like(self.size0, -math.inf)
        self.speed = self.least = torch.full_like(self.size0, math.inf)
        self.rate = torch.full_like(self.size0, math.nan)
        self.settled = self.grown = self.turning = torch.zeros_like(self.size0, dtype=torch.bool)

    def __call__(self, s: Tensor, mu: Measure) -> Tensor:
        m = _Motion.of(self.path.evaluate(s, mu)[0], checks.instance(mu, Gaussian, "mu"))
        new, falls = s > self.s, m.speed < self.speed
        slope = (self.speed.log() - m.speed.log()) / (s - self.s)
        self.rate = torch.where(new & torch.isfinite(slope), slope, self.rate)
        still = (m.speed <= self.tol * m.size) | (m.size <= NOTHING * self.size0)
        noise = (m.speed > 2 * self.least) & (self.least <= FLOOR * m.size)
        centred = m.drift <= self.tol * torch.maximum(m.offset, self.reach0)
        settled = ((still & (falls | (m.speed == 0))) | noise) & centred
        self.settled = torch.where(new, settled, self.settled)
        self.least = torch.minimum(self.least, m.speed)
        self.grown = torch.maximum(m.size.sqrt(), m.offset) > HUGE * self.reach0
        if not self.path.still:
            self.turning = (m.spin > FAST) & (m.speed < SLOW * m.size) & ~self.settled
        self.s, self.speed = torch.where(new, s, self.s), torch.where(new, m.speed, self.speed)
        return self.settled | self.grown | self.turning


class _Run(NamedTuple):
    """A path as far as it was followed."""

    path: _Stretched
    watch: _Watch
    mu: Gaussian
    s: Tensor
    codes: Tensor

    @property
    def turning(self) -> Tensor:
        return self.watch.turning & (self.codes == status.code("stopped"))

    def verdict(self) -> Limit:
        v = self.path.evaluate(self.s, self.mu)[0]
        t = self.path.time(self.s)
        diverged = self.watch.grown | (self.codes == status.code("blow_up"))
        settled = self.watch.settled & ~diverged
        spectrum, slopes, rank, root = _spectrum(self.mu, v, settled, self.watch.size0)
        growth = ratio(torch.linalg.matrix_norm(v[1]), torch.linalg.matrix_norm(self.mu.root)).double()
        when = torch.where(growth <= SHEER, torch.full_like(t, math.inf), t)
        codes = torch.where(settled, 0, torch.where(diverged, status.code("blow_up"), status.code("budget")))
        return Limit(
            measure=_where(settled, self.mu.at([self.mu.mean, root]), self.mu),
            status=status.names(codes),
            rank=rank,
            spectrum=spectrum,
            slopes=slopes,
            rate=torch.where(settled, self.watch.rate, math.nan),
            time=t,
            blow_up_time=torch.where(diverged, when, math.nan),
        )


def _run(path: _Stretched, mu: Gaussian, mu0: Gaussian, options: _Options) -> _Run:
    watch = _Watch(path, mu0, options.tol)
    traj = flow(
        mu,
        path,
        options.stepper,
        t1=options.length,
        save_at=[0.0],
        stop=watch,
        max_steps=options.max_steps,
        on_failure="return",
    )
    s = torch.where(traj.ended.isnan(), options.length, traj.ended)
    codes = torch.as_tensor([status.code(name) for name in np.ravel(traj.status)]).reshape(mu.batch)
    return _Run(path, watch, checks.instance(traj.final, Gaussian, "mu"), s, codes)


def _spectrum(
    mu: Gaussian, v: Tangent, settled: Tensor, size0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Eigenvalues, their slopes in log t, how many of them stay, and a root without the others."""
    u, sigma, wt = torch.linalg.svd(mu.root, full_matrices=False)
    pace = (u * (v[1] @ wt.mT)).sum(-2)  # d sigma / ds
    slopes = 2 * ratio(pace, sigma)
    values = sigma.square()
    stays = (values > DUST * values[..., :1]) & (slopes > -VANISHING)
    stays = stays & ~(settled & (values[..., 0] <= NOTHING * size0))[..., None]
    root = (u * torch.where(stays, sigma, 0.0)[..., None, :]) @ wt
    return widen(values, mu.d)[..., : mu.d], widen(slopes, mu.d)[..., : mu.d], stays.sum(-1), root


def _where(condition: Tensor, mu: Gaussian, nu: Gaussian) -> Gaussian:
    return cast(Gaussian, where(condition, mu, nu))


def _chosen(which: Tensor, new: Limit, old: Limit) -> Limit:
    """The new verdict where asked for."""

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(align(which, a), a, b)

    return Limit(
        measure=_where(which, new.measure, old.measure),
        status=np.where(which.cpu().numpy(), new.status, old.status)[()],
        **{name: pick(getattr(new, name), getattr(old, name)) for name in TENSORS},
    )


TENSORS = ("rank", "spectrum", "slopes", "rate", "time", "blow_up_time")
