"""The trajectory that a flow returns: measures at the save times, and what was observed on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import ConvergenceError, MissingExtraError
from otflow.base.tangent import align
from otflow.measures import Measure
from otflow.measures.base import pick
from otflow.transport.chain import chain, geodesic

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class Trajectory:
    """A measure along time, with everything that was observed of it.

    Attributes:
        ts: save times (T,).
        measures: the measure at each of them.
        observed: name -> values (T, *batch, ...).
        certificates: name -> worst value since the previous save time, (T, *batch) or (T,).
        status: how the run ended: "ok", "stopped", "blow_up", ... ; an array of these for a batch.
        blow_up_time: time of the last finite state of the members that blew up, else NaN; (*batch,).
        ended: time at which a member ended early, else NaN; (*batch,). The last entry of a batch that ended
            as a whole holds each member at its own time.
        message: why a run ended early, in words.
        steps: number of steps that were tried.

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> traj = of.flow(of.Particles([[1.0]]), pull, of.RK4(), t1=1.0, dt=0.25, observe={"F": pull.energy})
    >>> traj
    Trajectory(5 times in [0, 1], Particles(n=1, d=1, space=Euclidean()), status='ok')
    >>> traj.stacked.x.shape, traj.observed["F"].shape
    (torch.Size([5, 1, 1]), torch.Size([5]))
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

    @property
    def final(self) -> Measure:
        """The last measure."""
        return self.measures[-1]

    @property
    def stacked(self) -> Measure:
        """All measures as one, with time as the leading batch axis."""
        pieces = zip(*(mu.coords for mu in self.measures), strict=True)
        return self.final.at([torch.stack(p) for p in pieces])

    def member(self, index: Any) -> Trajectory:
        """The run of one member of a batch, ``traj.member(0)``, or of several, ``traj.member(slice(3))``."""
        batch = self.final.batch

        def own(a: Tensor) -> Tensor:  # (T, *batch, ...); what does not know of the batch is shared
            if a.shape[1 : 1 + len(batch)] != batch:
                return a
            return torch.stack([pick(row, batch, index) for row in a])

        return replace(
            self,
            measures=tuple(mu[index] for mu in self.measures),
            observed={name: own(a) for name, a in self.observed.items()},
            certificates={name: own(a) for name, a in self.certificates.items()},
            status=_plain(np.asarray(self.status)[index]),
            blow_up_time=pick(self.blow_up_time, batch, index),
            ended=pick(self.ended, batch, index),
        )

    def speed(self, of: Callable[..., Any] | None = None, *, progress: bool = False) -> Tensor:
        """|mu'|(t_k) ~ d(mu_k, mu_k+1) / (t_k+1 - t_k) between successive save times, (T - 1, *batch).

        The metric derivative, by default in the geometry that `distance` gives to the measures under
        `Wasserstein()`: conditional W2 if they are labelled. Members that have ended stand still: their speed
        is 0, and that of their last interval is taken over the time until they ended.

        Args:
            of: another distance: a function of two measures, as for `observables.distances`.
            progress: show a bar.

        >>> import otflow as of
        >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
        >>> traj = of.flow(of.Particles([[1.0], [-1.0]]), pull, of.RK4(), t1=0.02, dt=0.01)
        >>> traj.speed()  # exp(-t), between save times
        tensor([0.9950, 0.9851], dtype=torch.float64)
        """
        checks.require(
            len(self) >= 2, "len(trajectory)", len(self), "a speed needs two save times", "save more often"
        )
        pairs = zip(self.measures, self.measures[1:], strict=False)
        try:
            return self._rate(chain(self.ts[1:].tolist(), pairs, of or geodesic, progress=progress))
        except ConvergenceError as error:
            raise ConvergenceError(str(error), self._rate(error.result)) from error

    def _rate(self, change: Tensor) -> Tensor:
        """Changes between save times over the time that each member took; 0 in no time is 0."""
        ts = align(self.ts.to(self.ended.device), torch.empty(len(self), *self.final.batch))
        dt = torch.diff(ts.fmin(self.ended), dim=0)
        dt = align(dt, change).to(change).expand_as(change)
        still = (dt == 0) & (change == 0)
        return torch.where(
            still, torch.zeros_like(change), change / torch.where(still, torch.ones_like(dt), dt)
        )

    def __len__(self) -> int:
        return len(self.measures)

    def to_xarray(self) -> xarray.Dataset:
        """Coordinates and observables as an `xarray.Dataset` (needs the extra ``xarray``)."""
        try:
            import xarray
        except ImportError as error:
            raise MissingExtraError("to_xarray needs xarray: pip install 'otflow[xarray]'") from error
        mu = self.stacked
        pieces = dict(zip(mu.names, mu.coords, strict=True)) | dict(self.observed)
        arrays = {
            name: (_dims(name, value, self.final.batch), value.detach().cpu().numpy())
            for name, value in pieces.items()
        }
        return xarray.Dataset(arrays, coords={"t": self.ts.cpu().numpy()}, attrs={"status": str(self.status)})

    def __repr__(self) -> str:
        if not self.measures:
            return f"Trajectory(nothing saved, status={self.status!r})"
        span = f"[{self.ts[0]:g}, {self.ts[-1]:g}]"
        return f"Trajectory({len(self)} times in {span}, {self.final!r}, status={self.status!r})"


def _plain(status: Any) -> Any:
    return str(status) if np.ndim(status) == 0 else status


def _dims(name: str, value: Tensor, batch: torch.Size) -> list[str]:
    """Time, then the batch if the value has its axes, then axes of its own."""
    shared = [f"batch{i}" for i in range(len(batch))] if value.shape[1 : 1 + len(batch)] == batch else []
    own = [f"{name}_dim{i}" for i in range(value.ndim - 1 - len(shared))]
    return ["t", *shared, *own]
