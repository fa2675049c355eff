"""The limit of a flow of Gaussians: what it is, how fast it is reached, and its rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import ConvergenceError
from otflow.base.linalg import ratio, widen
from otflow.base.tangent import align
from otflow.dynamics.flow import flow
from otflow.dynamics.precision import in_double
from otflow.dynamics.settling import LARGE, NOTHING, Watch
from otflow.dynamics.stretched_time import Modes, Stretched
from otflow.fields import VelocityField
from otflow.fields.base import extended
from otflow.measures import Gaussian, where
from otflow.measures.base import pick
from otflow.steppers import Dopri5, Rosenbrock
from otflow.steppers.adaptive import Adaptive

__all__ = ["Limit", "limit"]

# |dR/dt| t / |R| beyond which growth is taken for a blow-up at a finite time; chosen: a power of
# t stays far below.
SHEER = 1e4
# Rounds of implicit steps; chosen: a root that starts to turn in the first one is held still in the second.
ROUNDS = 2
# The longest implicit step in log t; chosen: t grows by no more than a half within it.
STRIDE = 0.4
# How far laws with small survivors are followed by implicit steps to see if they stay; chosen: 3 decades.
# Farther on rounding, which grows like t, is soon all that they show.
AHEAD = 3 * math.log(10)
# Chosen: a root turns if holding it still leaves less than a tenth of its velocity, or less than half where
# the velocity exceeds three times the root per unit of log t.
TURNING, FAST = 0.1, 3.0
TENSORS = ("rank", "spectrum", "slopes", "rate", "time", "blow_up_time")


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

    def member(self, index: Any) -> Limit:
        """What was found for one member of a batch, ``member(0)``, or for several, ``member(slice(3))``."""
        batch = self.rank.shape
        return Limit(
            measure=self.measure[index],
            status=_plain(np.array(self.status)[index.cpu().numpy() if isinstance(index, Tensor) else index]),
            **{name: pick(getattr(self, name), batch, index) for name in TENSORS},
        )

    def __repr__(self) -> str:
        if self.rank.ndim:
            return f"Limit(batch={tuple(self.rank.shape)}, status={status.summary(self.status)!r})"
        values = ", ".join(f"{v:.3g}" for v in self.spectrum.tolist())
        return f"Limit(status={self.status!r}, rank={int(self.rank)}, spectrum=[{values}])"


def limit(
    mu0: Gaussian,
    field: VelocityField,
    *,
    tol: float = 1e-7,
    decades: int = 40,
    rtol: float = 1e-9,
    max_steps: int = 2000,
    on_failure: Literal["raise", "return"] = "raise",
) -> Limit:
    """The limit of mu_t as t -> infinity, for a field that keeps Gaussians Gaussian.

    Covariances often converge only like 1/t. So time is stretched, t = c (exp(s) - 1), and the flow followed
    until a unit of s changes the covariance by less than ``tol`` times itself, and ever less. Eigenvalues
    that still fall like a power of t then have the limit zero: a gap that no threshold on their size shows.
    The limit has to be at rest itself: a law that has settled is followed on until the limit that would be
    reported moves by no more than a change of its last digits explains. A mode slower than that cannot be
    told from one that rests; any other is followed until it has vanished or grown, or has no verdict.
    The whole law is followed. A mean that grows, as under softmax with V = I, makes it diverge; the
    covariance does not feel the mean, so centre the law to ask for the covariance alone. A law in single
    precision is followed in double, except by a field with functions that insist on single: there only
    looser tolerances (1e-4 and 1e-5, say) are above rounding.

    Args:
        mu0: where to start; any batch.
        field: a field that is affine on Gaussians.
        tol: bound on the change of the covariance at the end, relative and per unit of log t.
        decades: how many powers of ten of time to follow, from the time scale of the start on.
        rtol: accuracy of the steps of `Dopri5`. Laws on which these stay short, because of modes that decay
            exponentially, go on with `Rosenbrock`, the square root of ``rtol``, and ten times ``tol``.
        max_steps: limit on the steps of each kind.
        on_failure: "raise" raises `ConvergenceError`, which carries the result, where there is no verdict;
            "return" returns it.

    >>> import torch, otflow as of
    >>> field = of.SoftmaxAttention([[1.0, 0.0]], [[-1.0, 0.0]], torch.eye(2).double())  # A = -e1 e1^T
    >>> of.limit(of.Gaussian([0.0, 0.0], root=torch.eye(2).double()), field).measure.cov
    tensor([[0., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    mu0, field = checks.instance(mu0, Gaussian, "mu0"), checks.instance(field, VelocityField, "field")
    checks.raises(on_failure)
    rule = "a limit is that of weights which do not jump any more"
    remedy = "flow to the last jump first, and ask for the limit of the last layer"
    checks.require(not field.switches, "field.switches", field.switches, rule, remedy)
    dtype, mu0 = mu0.dtype, _narrow(extended(mu0, field, 0.0))
    options = _Options(
        tol=checks.positive(tol, "tol"),
        length=math.log(10) * checks.count(decades, "decades"),
        rtol=checks.positive(rtol, "rtol"),
        max_steps=checks.count(max_steps, "max_steps"),
    )
    with torch.no_grad():
        field, mu0 = in_double(field, mu0)
        path = Stretched.of(field, mu0)
        first = _run(path, mu0, mu0, Dopri5(options.rtol, _atol(mu0)), options)
        found = _again(first, mu0, options)
        result = _rounded(
            _confirmed(first, found, mu0, _patiently(options), torch.ones_like(first.open)), dtype
        )
    missing = int((torch.as_tensor(result.status == "budget")).sum())
    if missing and on_failure == "raise":
        raise ConvergenceError(
            f"{missing} of {max(1, mu0.batch.numel())} laws neither settle nor diverge within the decades "
            "and steps allowed: they may oscillate, or change too slowly; raise decades or max_steps, or "
            "pass on_failure='return'",
            result,
        )
    return result


def _rounded(found: Limit, dtype: torch.dtype) -> Limit:
    """What was found, the law and its spectrum in the precision of the start."""
    if found.measure.dtype == dtype:
        return found
    measure = found.measure.at([c.to(dtype) for c in found.measure.coords])
    return replace(found, measure=measure, spectrum=found.spectrum.to(dtype), slopes=found.slopes.to(dtype))


def _narrow(mu: Gaussian) -> Gaussian:
    """The same law by a root with no more columns than rows, because a wider one could turn without end."""
    if mu.root.shape[-1] <= mu.d:
        return mu
    return mu.at([mu.mean, torch.linalg.qr(mu.root.mT).R.mT])


def _atol(mu0: Gaussian) -> float:
    """An absolute tolerance far below every law of the batch, because vanishing ones are followed."""
    sizes = mu0.root.abs().amax((-1, -2))
    return 1e-16 * float(torch.where(sizes > 0, sizes, torch.ones_like(sizes)).min())


class _Options(NamedTuple):
    tol: float
    length: float
    rtol: float
    max_steps: int


Follow = Callable[[Stretched, Gaussian, Gaussian, Tensor | None], "Limit"]


class _Run(NamedTuple):
    """A path as far as it was followed; as a check, to see whether a claim holds."""

    path: Stretched
    watch: Watch
    mu: Gaussian
    s: Tensor
    codes: Tensor
    check: bool

    @property
    def open(self) -> Tensor:
        """Members without a verdict."""
        return ~(self.watch.held | self.unresolved | self.diverged)

    @property
    def diverged(self) -> Tensor:
        if self.watch.rank is None:
            return self.watch.grown | self._ended
        # What creeps has to grow before the eyes of the watch; a run so late may end by rounding.
        return self.watch.grown & ~self.unresolved

    @property
    def unresolved(self) -> Tensor:
        """Claims neither confirmed nor refuted, because steps are too short or too rough for stiff modes."""
        if not self.check:
            return torch.zeros_like(self.watch.held)
        explicit = torch.full_like(self.watch.held, self.watch.explicit)
        return (explicit | self.watch.grown | self._ended) & ~(self.watch.held | self.watch.creeps)

    @property
    def _ended(self) -> Tensor:
        return self.codes == status.code("blow_up")

    @property
    def small(self) -> Tensor:
        """Members in which an eigenvalue stays that could fall while the law is at rest to its tolerance."""
        modes = Modes.of(self.path, self.s, self.mu)
        values = modes.sigma.square()
        return (_staying(self, modes) & (values <= LARGE * values[..., :1])).any(-1)

    def verdict(self) -> Limit:
        v = self.path.evaluate(self.s, self.mu)[0]
        t = self.path.time(self.s)
        diverged = self.diverged
        settled = self.watch.held & ~diverged
        modes = Modes.of(self.path, self.s, self.mu)
        stays = _staying(self, modes)
        growth = ratio(torch.linalg.matrix_norm(v[1]), torch.linalg.matrix_norm(self.mu.root)).double()
        when = torch.where(growth <= SHEER, torch.full_like(t, math.inf), t)
        # What a check has not decided stays as claimed.
        claim, rank = self.unresolved, stays.sum(-1)
        rank = rank if self.watch.rank is None else torch.where(claim, self.watch.rank, rank)
        codes = torch.where(
            settled | claim, 0, torch.where(diverged, status.code("blow_up"), status.code("budget"))
        )
        return Limit(
            measure=_where(settled, self.mu.at([self.mu.mean, modes.root(stays)]), self.mu),
            status=status.names(codes),
            rank=rank,
            spectrum=widen(modes.sigma.square(), self.mu.d)[..., : self.mu.d],
            slopes=widen(modes.slopes, self.mu.d)[..., : self.mu.d],
            rate=torch.where(settled, self.watch.rate, math.nan),
            time=t,
            blow_up_time=torch.where(diverged, when, math.nan),
        )


def _run(
    path: Stretched,
    mu: Gaussian,
    mu0: Gaussian,
    stepper: Adaptive,
    options: _Options,
    *,
    rank: Tensor | None = None,
    check: bool = False,
) -> _Run:
    watch = Watch(path, mu0, options.tol, explicit=isinstance(stepper, Dopri5), rank=rank)
    traj = flow(
        mu,
        path,
        stepper,
        t1=options.length,
        save_at=[0.0],
        stop=watch,
        max_steps=options.max_steps,
        on_failure="return",
    )
    s = torch.where(traj.ended.isnan(), options.length, traj.ended)
    codes = torch.as_tensor([status.code(name) for name in np.ravel(traj.status)]).reshape(mu.batch)
    return _Run(path, watch, checks.instance(traj.final, Gaussian, "mu"), s, codes, check)


def _again(first: _Run, mu0: Gaussian, options: _Options, rounds: int = ROUNDS) -> Limit:
    """The verdict, after implicit steps for members without one.

    Roots that only turn are held still in these steps, because they would be damped.
    """
    which, result = first.open, first.verdict()
    if not rounds or not bool(which.any()):
        return result

    def on(path: Stretched, mu: Gaussian, mu0: Gaussian, rank: Tensor | None) -> Limit:
        run = _run(path, mu, mu0, _implicit(mu0, options), options, rank=rank)
        return _confirmed(run, _again(run, mu0, options, rounds - 1), mu0, _ahead(options), run.small)

    path = first.path.after(first.s, _turning(first))
    return _filled(which, _some(which, on, path, first.mu, mu0, first.watch.rank), result)


def _implicit(mu0: Gaussian, options: _Options) -> Rosenbrock:
    return Rosenbrock(options.rtol**0.5, _atol(mu0), longest=STRIDE)


def _confirmed(first: _Run, result: Limit, mu0: Gaussian, on: Follow, among: Tensor) -> Limit:
    """The verdicts, after following laws at rest to see whether what they are said to tend to moves.

    What was found first is kept, to the last digit, unless the verdict changes.
    """
    which = first.watch.settled & first.watch.moves & (first.watch.rank is None) & among
    if not bool(which.any()):
        return result
    later = _some(which, on, first.path.after(first.s, first.path.still), first.mu, mu0, result.rank)
    now = result.member(which)
    other = torch.as_tensor(later.status != now.status) | (later.rank != now.rank)
    if not bool(other.any()):
        return result
    return _filled(which.masked_scatter(which, other), later.member(other), result)


def _patiently(options: _Options) -> Follow:
    """Explicit steps until only rounding is left, and what follows; where they fail, a look ahead."""

    def on(path: Stretched, mu: Gaussian, mu0: Gaussian, rank: Tensor | None) -> Limit:
        run = _run(path, mu, mu0, Dopri5(options.rtol, _atol(mu0)), options, rank=rank, check=True)
        found, rough = _again(run, mu0, options), run.unresolved
        if not bool(rough.any()):
            return found
        start = path.after(torch.zeros_like(run.s), _turning(run._replace(mu=mu, s=torch.zeros_like(run.s))))
        return _filled(rough, _some(rough, _ahead(options), start, mu, mu0, rank), found)

    return on


def _ahead(options: _Options) -> Follow:
    """A few decades of implicit steps."""
    short = options._replace(length=min(options.length, AHEAD))

    def on(path: Stretched, mu: Gaussian, mu0: Gaussian, rank: Tensor | None) -> Limit:
        return _run(path, mu, mu0, _implicit(mu0, options), short, rank=rank, check=True).verdict()

    return on


def _some(
    which: Tensor, on: Follow, path: Stretched, mu: Gaussian, mu0: Gaussian, rank: Tensor | None
) -> Limit:
    """What is found for some members."""
    field = path.field.pick(which)
    if field is None:
        return on(path, mu, mu0, rank).member(which)
    some = Stretched(field, path.scale[which], path.start[which], path.still[which])
    return on(some, mu[which], mu0[which], None if rank is None else rank[which])


def _turning(run: _Run) -> Tensor:
    """Which roots do little but turn, which leaves the covariance R R^T as it is."""
    zero, every = torch.zeros_like(run.s), torch.ones_like(run.open)
    free, still = (run.path.after(run.s, b).evaluate(zero, run.mu)[0][1] for b in (~every, every))
    a, b, size = (torch.linalg.matrix_norm(x) for x in (still, free, run.mu.root))
    return (a < TURNING * b) | ((a < b / 2) & (b > FAST * size))


def _staying(run: _Run, modes: Modes) -> Tensor:
    """Which eigenvalues do not vanish."""
    stays, rests = run.watch.staying(run.s, run.mu, modes)
    small = modes.sigma[..., :1].square() <= NOTHING * run.watch.size0[..., None]
    return stays & ~(small & ~rests.any(-1, keepdim=True))


def _where(condition: Tensor, mu: Gaussian, nu: Gaussian) -> Gaussian:
    return cast(Gaussian, where(condition, mu, nu))


def _plain(state: Any) -> Any:
    return state if np.ndim(state) else str(state)


def _filled(which: Tensor, some: Limit, old: Limit) -> Limit:
    """The old verdicts, with those on some members replaced."""

    def fill(a: Tensor, b: Tensor) -> Tensor:
        return b.masked_scatter(align(which, b).expand_as(b), a)

    state = np.array(old.status, dtype="U16")
    state[which.cpu().numpy()] = some.status
    return Limit(
        measure=old.measure.at(some.measure.coords.zip(old.measure.coords, fill)),
        status=_plain(state),
        **{name: fill(getattr(some, name), getattr(old, name)) for name in TENSORS},
    )
