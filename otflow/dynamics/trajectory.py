"""The trajectory that a flow returns: measures at the save times, and what was observed on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import ConvergenceError
from otflow.base.tables import table
from otflow.base.tangent import align
from otflow.dynamics.dataset import pack, unpack
from otflow.measures import Measure
from otflow.measures.base import pick
from otflow.measures.parts import alike, fixed
from otflow.transport.chain import chain, small_move

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class Trajectory:
    """A measure along time, with everything that was observed of it: a sequence of measures.

    ``traj[k]`` is the k-th saved measure, ``traj[a:b]`` a shorter trajectory, ``for mu in traj`` visits all.

    Attributes:
        ts: save times (T,).
        measures: the measure at each of them.
        observed: name -> values (T, *batch, ...).
        certificates: name -> worst value since the previous save time, (T, *batch) or (T,); 0 at the start,
            where nothing has happened yet.
        status: how the run ended: "ok", "stopped", "blow_up", "unstable", ...; an array of these for a batch.
            "local" is "ok" but for JKO steps that are not proved to be the best of all.
        blow_up_time: time of the last finite state of the members that blew up, by the shortest steps that
            were taken, else NaN; (*batch,).
        ended: time at which a member ended early, else NaN; (*batch,). The last entry of a batch that ended
            as a whole holds each member at its own time.
        message: why a run ended early, in words.
        steps: number of steps that were tried.
        origin: what the run was started with: ``field`` and ``stepper`` in words, ``t0``, ``t1``, ``dt``,
            ``noise`` and its ``seed``, as far as there were any.
        blow_up_error: error bar of the time of blow-up, from repetitions with shorter steps; NaN where there
            is none, as after adaptive steps.
        shared: names of the observables of a batch that are about all of it, with no value for each member.

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> traj = of.flow(of.Particles([[1.0]]), pull, of.RK4(), t1=1.0, dt=0.25, observe={"F": pull.energy})
    >>> traj
    Trajectory(5 times in [0, 1], Particles(n=1, d=1, space=Euclidean()), status='ok')
    >>> traj.x.shape, traj.observed["F"].shape
    (torch.Size([5, 1, 1]), torch.Size([5]))
    >>> traj[-1], len(traj[1:3]), [round(mu.x.item(), 2) for mu in traj]
    (Particles(n=1, d=1, space=Euclidean()), 2, [1.0, 0.78, 0.61, 0.47, 0.37])
    """

    ts: Tensor
    measures: tuple[Measure, ...]
    observed: Mapping[str, Tensor]
    certificates: Mapping[str, Tensor]
    status: Any
    blow_up_time: Tensor
    ended: Tensor
    message: str = ""
    steps: int = 0
    origin: Mapping[str, Any] = field(default_factory=dict)
    blow_up_error: Tensor = field(default_factory=lambda: torch.tensor(torch.nan))
    shared: tuple[str, ...] = ()

    @property
    def clocks(self) -> Tensor:
        """The time at which each member stands at each save time, (T, *batch): ``ts`` until it has ended.

        >>> import otflow as of
        >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
        >>> early = lambda t, mu: mu.x[..., 0, 0] < 0.7
        >>> traj = of.flow(of.Particles([[[1.0]], [[9.0]]]), pull, of.RK4(), t1=1.0, dt=0.5, stop=early)
        >>> traj.clocks.T
        tensor([[0.0000, 0.5000, 0.5000],
                [0.0000, 0.5000, 1.0000]], dtype=torch.float64)
        """
        ts = self.ts.to(self.ended.device)
        return align(ts, torch.empty(len(ts), *self.ended.shape)).fmin(self.ended)

    @property
    def final(self) -> Measure:
        """The last measure."""
        return self.measures[-1]

    @property
    def stacked(self) -> Measure:
        """All measures as one, with time as the leading batch axis."""
        pieces = zip(*(mu.coords for mu in self.measures), strict=True)
        return self.final.at([torch.stack(p) for p in pieces])

    @property
    def x(self) -> Tensor:
        """Positions along time: (T, *batch, n, d) of `Particles`, (T, *batch, n + 1) of `Quantiles`."""
        if "x" not in self.final.names:
            kind, names = type(self.final).__name__, " and ".join(self.final.names)
            hint = f"it has {names}: take traj.stacked.{self.final.names[0]}"
            raise AttributeError(f"a trajectory of {kind} has no x; {hint}", name=None)
        return torch.stack([mu.coords[mu.names.index("x")] for mu in self.measures])

    def __len__(self) -> int:
        return len(self.measures)

    def __iter__(self) -> Iterator[Measure]:
        return iter(self.measures)

    def __reversed__(self) -> Iterator[Measure]:
        return reversed(self.measures)

    @overload
    def __getitem__(self, index: slice) -> Trajectory: ...
    @overload
    def __getitem__(self, index: int) -> Measure: ...
    def __getitem__(self, index: int | slice) -> Measure | Trajectory:
        """The measure at one save time, or the trajectory at several: ``traj[-1]``, ``traj[2:5]``.

        How the run ended is kept in every piece. Certificates of ``traj[::k]`` include those of the times
        that are left out, so that they are still the worst since the previous save time.
        """
        if not isinstance(index, slice):
            return self.measures[index]
        kept = range(len(self))[index]
        rule, remedy = "time runs forward", "use reversed(traj) for the measures from the last to the first"
        checks.require(kept.step > 0, "step of the slice", kept.step, rule, remedy)
        return replace(
            self,
            ts=self.ts[index],
            measures=self.measures[index],
            observed={name: a[index] for name, a in self.observed.items()},
            certificates={name: _since(a, kept) for name, a in self.certificates.items()},
        )

    def join(self, *others: Trajectory) -> Trajectory:
        """Consecutive runs as one: each starts when and where the one before has ended.

        The shared time is kept once, with what was observed and certified before it. A certificate that only
        some of the runs have is NaN, not known, in the others. How it ended is told by the last run, except
        that "ok" after "local" is "local"; all messages are kept, and steps add up.

        >>> import otflow as of
        >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
        >>> first = of.flow(of.Particles([[1.0]]), pull, of.RK4(), t1=1.0, dt=0.5)
        >>> later = of.flow(first.final, pull, of.RK4(), t0=1.0, t1=5.0, dt=1.0)
        >>> first.join(later).ts
        tensor([0.0000, 0.5000, 1.0000, 2.0000, 3.0000, 4.0000, 5.0000], dtype=torch.float64)
        """
        joined = self
        for other in others:
            joined = _joined(joined, checks.instance(other, Trajectory, "other"))
        return joined

    def member(self, index: Any) -> Trajectory:
        """The run of one member of a batch, ``traj.member(0)``, or of several, ``traj.member(slice(3))``."""
        batch = self.final.batch

        def own(a: Tensor) -> Tensor:  # (T, *batch, ...); what does not know of the batch is shared
            if a.shape[1 : 1 + len(batch)] != batch:
                return a
            return torch.stack([pick(row, batch, index) for row in a])

        measures = tuple(mu[index] for mu in self.measures)
        return replace(
            self,
            measures=measures,
            observed={name: a if name in self.shared else own(a) for name, a in self.observed.items()},
            shared=self.shared if measures[-1].batch else (),
            certificates={name: own(a) for name, a in self.certificates.items()},
            status=_plain(np.asarray(self.status)[index]),
            blow_up_time=pick(self.blow_up_time, batch, index),
            blow_up_error=pick(self.blow_up_error, batch, index),
            ended=pick(self.ended, batch, index),
        )

    def speed(self, of: Callable[..., Any] | None = None, *, progress: bool = False) -> Tensor:
        """|mu'|(t_k) ~ d(mu_k, mu_k+1) / (t_k+1 - t_k) between successive save times, (T - 1, *batch).

        The metric derivative, by default in the geometry that `distance` gives to the measures under
        `Wasserstein()`: conditional W2 if they are labelled. Members that have ended stand still: their speed
        is 0, and that of their last interval is taken over the time until they ended.

        On a `Grid` it does not depend on how small a part of a cell the mass moves between save times. It is
        that of densities constant on cells, see `wasserstein`, but where a front enters empty cells: there it
        is that of the flux through their walls, as for ``Grid.inner``.

        Args:
            of: another distance: a function of two measures, as for `observables.distances`.
            progress: show a bar.

        Raises:
            ConvergenceError: at the end, if a distance is not known; its ``result`` has all speeds. So it is
                where the cells of a grid decide, as for densities that vary within two cells. Refine the
                grid, or save less often.

        >>> import otflow as of
        >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
        >>> traj = of.flow(of.Particles([[1.0], [-1.0]]), pull, of.RK4(), t1=0.02, dt=0.01)
        >>> traj.speed()  # exp(-t), between save times
        tensor([0.9950, 0.9851], dtype=torch.float64)
        """
        checks.require(
            len(self) >= 2,
            "len(trajectory)",
            len(self),
            "a speed needs two save times",
            "run flow with save_at=None",
        )
        pairs = zip(self.measures, self.measures[1:], strict=False)
        try:
            return self._rate(chain(self.ts[1:].tolist(), pairs, of or small_move, progress=progress))
        except ConvergenceError as error:
            raise ConvergenceError(str(error), self._rate(error.result)) from error

    def _rate(self, change: Tensor) -> Tensor:
        """Changes between save times over the time that each member took; 0 in no time is 0."""
        dt = torch.diff(self.clocks, dim=0)
        dt = align(dt, change).to(change).expand_as(change)
        still = (dt == 0) & (change == 0)
        return torch.where(
            still, torch.zeros_like(change), change / torch.where(still, torch.ones_like(dt), dt)
        )

    def plot(self, ax: Any = None) -> Any:
        """The natural picture, as `otflow.plot.trajectory` draws it: ways, ellipses, or densities.

        Args:
            ax: matplotlib's axes, by default the current ones of pyplot; they are returned.

        >>> import otflow as of
        >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[-1.0]])
        >>> traj = of.flow(of.Particles([[1.0], [2.0]]), field, of.RK4(), t1=1.0, dt=0.25)
        >>> _, axes = of.plot.figure()
        >>> traj.plot(axes[0, 0]).get_xlabel()
        '$t$'
        """
        from otflow.plot import trajectories

        return trajectories.trajectory(self, ax=ax)

    def animate(self, interval: float = 50.0, frames: int | None = None) -> Any:
        """A film, ``interval`` milliseconds per save time, as `otflow.plot.animate` makes it.

        A notebook plays it; elsewhere ``traj.animate().save("run.gif", writer="pillow")``. It is one of
        matplotlib's `FuncAnimation`.
        """
        from otflow.plot import trajectories

        return trajectories.animate(self, interval=interval, frames=frames)

    def to_xarray(self, batch: Sequence[str] | Mapping[str, Any] | None = None) -> xarray.Dataset:
        """All of it as an `xarray.Dataset` (needs the extra ``xarray``), which `from_xarray` reads back.

        Axes are ``t``, those of the batch, and ``token``, ``coordinate`` for `Particles`; ``coordinate``,
        ``column`` for `Gaussian`; ``x``, ``y``, ``z`` with the centres of cells for `Grid`; ``level`` for
        `Quantiles`. Variables are the coordinates of the measure, the observables (``observed_x`` where the
        name x is taken) and the certificates (``certificate_residual``). Weights ``w``, ``label``,
        ``status``, ``ended`` and ``blow_up_time`` are coordinates of the dataset, the rest are attributes. It
        can be written with ``ds.to_netcdf``, in netCDF 3 as well, and with ``ds.to_zarr``. Gradients and
        devices are left behind.

        Args:
            batch: names of the batch axes, such as ("temperature", "seed"), or a mapping from names to what
                the members stand for, {"temperature": [0.5, 1.0], "seed": None}; else batch0, batch1, ...

        >>> import otflow as of
        >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[-1.0]])
        >>> traj = of.flow(of.Particles([[[1.0], [2.0]]] * 3), field, of.RK4(), t1=1.0, dt=0.25)
        >>> ds = traj.to_xarray(batch={"seed": [7, 8, 9]})
        >>> dict(ds["x"].sizes), ds["status"].sel(seed=8).item()
        ({'t': 5, 'seed': 3, 'token': 2, 'coordinate': 1}, 'ok')
        """
        return pack({one.name: getattr(self, one.name) for one in fields(self)}, batch)

    @classmethod
    def from_xarray(cls, ds: xarray.Dataset) -> Trajectory:
        """The trajectory of which ``ds`` is the dataset, bit for bit; also of a part, ``ds.isel(batch0=0)``.

        >>> import otflow as of
        >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[-1.0]])
        >>> traj = of.flow(of.Particles([[1.0], [2.0]], w=[0.3, 0.7]), field, of.RK4(), t1=1.0, dt=0.25)
        >>> again = of.Trajectory.from_xarray(traj.to_xarray())
        >>> again, bool((again.x == traj.x).all())
        (Trajectory(5 times in [0, 1], Particles(n=2, d=1, weighted, space=Euclidean()), status='ok'), True)
        """
        return cls(**unpack(ds))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        rule = "a trajectory is more than one array"
        remedy = "take traj.stacked.numpy(), which has all of them along time, or traj.to_xarray()"
        checks.fail("trajectory", self, rule, remedy)

    def _repr_html_(self) -> str:
        """What a notebook shows: how the run ended, its worst certificates, the last of what was observed."""
        rows: dict[str, Any] = {"status": status.summary(self.status), "steps": self.steps}
        rows |= {"message": self.message} if self.message else {}
        if self.measures:
            rows |= {
                "times": f"{len(self)} in [{self.ts[0]:g}, {self.ts[-1]:g}]",
                "measure": repr(self.final),
            }
            rows |= {f"{name}, at the end": a[-1] for name, a in self.observed.items()}
            rows |= {f"{name}, at worst": a.max() for name, a in self.certificates.items() if a.numel()}
        return table("Trajectory", rows, of=self)

    def __repr__(self) -> str:
        ended = status.summary(self.status)
        if not self.measures:
            return f"Trajectory(nothing saved, status={ended!r})"
        span = f"[{self.ts[0]:g}, {self.ts[-1]:g}]"
        return f"Trajectory({len(self)} times in {span}, {self.final!r}, status={ended!r})"


def _since(a: Tensor, kept: range) -> Tensor:
    """The largest of the rows of ``a`` after the previous kept one; NaN if one of them is."""
    rows = a[kept.start : kept.stop : kept.step]
    if kept.step == 1 or len(rows) < 2:
        return rows
    for back in range(1, kept.step):
        skipped = a[kept.start + kept.step - back : kept[-1] : kept.step]
        rows = torch.cat([rows[:1], torch.maximum(rows[1:], skipped)])
    return rows


def _joined(one: Trajectory, two: Trajectory) -> Trajectory:
    _check_joint(one, two)
    return replace(
        two,
        ts=torch.cat([one.ts, two.ts[1:]]),
        measures=(*one.measures, *two.measures[1:]),
        observed={name: torch.cat([a, two.observed[name][1:]]) for name, a in one.observed.items()},
        certificates={
            name: _glued(one.certificates.get(name), two.certificates.get(name), len(one), len(two))
            for name in sorted({*one.certificates, *two.certificates})
        },
        status=_plain(np.where(_after_local(one, two), "local", two.status)),
        message="; ".join(filter(None, (one.message, two.message))),
        steps=one.steps + two.steps,
        shared=tuple(sorted({*one.shared, *two.shared})),
        origin=_common(one.origin, two.origin),
    )


def _after_local(one: Trajectory, two: Trajectory) -> np.ndarray:
    return (np.asarray(one.status) == "local") & (np.asarray(two.status) == "ok")


def _common(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """What both runs were started with, from the t0 of the first to the t1 of the second."""
    ends = {name: of[name] for name, of in (("t0", one), ("t1", two)) if name in of}
    return {name: value for name, value in one.items() if two.get(name) == value} | ends


def _glued(a: Tensor | None, b: Tensor | None, rows_a: int, rows_b: int) -> Tensor:
    """Certificates (T, ...) one after the other, without the first row of b; NaN for what is missing."""
    given = next(v for v in (a, b) if v is not None)
    pieces = [
        given.new_full((n, *given.shape[1:]), torch.nan) if v is None else v
        for v, n in ((a, rows_a), (b, rows_b))
    ]
    shape = torch.broadcast_shapes(*(p.shape[1:] for p in pieces))
    return torch.cat([p.expand(len(p), *shape) for p in (pieces[0], pieces[1][1:])])


def _check_joint(one: Trajectory, two: Trajectory) -> None:
    """Refuse what does not follow on: in time, in the measure, or in what was observed."""
    rule, remedy = "a joint needs measures on both sides", "save at least the start and the end of a run"
    checks.require(len(one) and len(two), "len", (len(one), len(two)), rule, remedy)
    end, start = float(one.ts[-1]), float(two.ts[0])
    remedy = "run flow(traj.final, ..., t0=float(traj.ts[-1])), and let save_at keep the start"
    checks.require(end == start, "other.ts[0]", start, f"the run before ends at {end!r}", remedy)
    early = one.ended[~one.ended.isnan() & (one.ended < end)]
    if len(early):
        rule = f"this member has ended before {end!r}, where the next run starts"
        remedy = "join the runs of the others: traj.member(index)"
        checks.fail("min(traj.ended)", float(early.min()), rule, remedy)
    rule, remedy = f"the run before ends with another measure, {one.final!r}", "start from traj.final"
    checks.require(_same(one.final, two[0]), "other[0]", two[0], rule, remedy)
    rule, remedy = f"the run before observed {sorted(one.observed)}", "observe the same in all runs"
    checks.require(
        one.observed.keys() == two.observed.keys(), "other.observed", sorted(two.observed), rule, remedy
    )


def _same(mu: Measure, nu: Measure) -> bool:
    """Whether two measures agree bit for bit, in what moves and in what does not."""
    if type(mu) is not type(nu) or not alike(tuple(mu.coords), tuple(nu.coords)):
        return False
    return all(alike(a, b) for a, b in zip(fixed(mu).values(), fixed(nu).values(), strict=True))


def _plain(status: Any) -> Any:
    return str(status) if np.ndim(status) == 0 else status
