"""The energy balance of a trajectory: the energy of a gradient flow falls by what is dissipated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.status import brief
from otflow.base.tables import table
from otflow.base.tangent import Tangent
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import SteepestDescent, VelocityField
from otflow.measures import Grid, Measure, Particles
from otflow.metrics import Metric, Wasserstein
from otflow.steppers.jko.stepper import admit, as_descent
from otflow.transport.chain import small_move


@dataclass(frozen=True)
class EnergyBalance:
    """What an energy lost, and what the motion and the slope account for.

    Attributes:
        ts: save times (T,).
        energy: F(mu_t), (T, *batch).
        slope: |grad F|^2 at each save time, (T, *batch).
        length: squared length of the way between save times, (T - 1, *batch).
        residual: F(mu_0) - F(mu_t) - 1/2 int |mu'|^2 - 1/2 int |grad F|^2 up to t, (T, *batch).
        clocks: the time of each member, ``ts`` until it has ended, (T, *batch); all else stands still then.
    """

    ts: Tensor
    energy: Tensor
    slope: Tensor
    length: Tensor
    residual: Tensor
    clocks: Tensor

    def __repr__(self) -> str:
        fall, relative = brief(self.energy[0] - self.energy[-1]), brief(self.relative)
        span = f"{len(self.ts)} times in [{float(self.ts[0]):g}, {float(self.ts[-1]):g}]"
        return f"EnergyBalance({span}, fall {fall}, relative residual {relative})"

    def _repr_html_(self) -> str:
        rows = {
            "times": f"{len(self.ts)} in [{float(self.ts[0]):g}, {float(self.ts[-1]):g}]",
            "energy, at the start": self.energy[0],
            "energy, at the end": self.energy[-1],
            "relative residual": self.relative,
            "monotone": bool(self.monotone.all()),
        }
        return table("Energy balance", rows)

    @property
    def increase(self) -> Tensor:
        """The largest rise of the energy between two save times, (*batch,); not positive if it only falls."""
        rise, still = self.energy.diff(dim=0), (self.clocks.diff(dim=0) == 0).to(self.energy.device)
        most = rise.masked_fill(still, -torch.inf).amax(0)
        return most.masked_fill(still.all(0), 0.0)  # of those that ended at the start

    @property
    def monotone(self) -> Tensor:
        """Whether the energy never rises beyond rounding, (*batch,)."""
        size = self.energy.abs().amax(0)
        return self.increase <= 64 * torch.finfo(size.dtype).eps * size

    @property
    def relative(self) -> Tensor:
        """The largest |residual| in units of the whole fall of the energy, (*batch,)."""
        fall = (self.energy[0] - self.energy[-1]).abs()
        worst = self.residual.abs().amax(0)
        return worst / torch.where(fall > 0, fall, torch.ones_like(fall))


def energy_balance(traj: Trajectory, field: VelocityField, *, lengths: Any = None) -> EnergyBalance:
    """The energy-dissipation identity of gradient flows, F(0) - F(t) = 1/2 int |mu'|^2 + 1/2 int |grad F|^2.

    Equality characterises the flow (De Giorgi; Ambrosio, Gigli and Savaré 2008, section 11.1). For any
    trajectory of any stepper: integrals are taken between save times, by the trapezoidal rule for the slope
    and by chords for the speed. The residual is -1/2 int (|mu'| - |grad F|)^2 or less where the motion is not
    along the gradient, and so of order two in dt even for steppers of order one, JKO and Euler. A member of a
    batch that ended early is balanced up to its own end.

    Args:
        traj: a trajectory.
        field: a `SteepestDescent` (or a sum of them in one metric), whose energy and metric are meant.
        lengths: squared lengths (T - 1, *batch) between save times, when they are known better:
            ``traj.certificates["cost"][1:]`` of a JKO run that saved every step. On grids of two or three
            dimensions they are otherwise those of `Trajectory.speed`, which may refuse.

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.QuadraticPotential([[1.0]]), of.Wasserstein())
    >>> traj = of.flow(of.Particles([[2.0]]), pull, of.RK4(), t1=1.0, dt=0.01)
    >>> balance = of.energy_balance(traj, pull)
    >>> bool(balance.monotone), bool(balance.relative < 1e-4)
    (True, True)
    """
    descent = as_descent(checks.instance(field, VelocityField, "field"))
    checks.require(
        len(traj) >= 2, "len(traj)", len(traj), "a balance needs two save times", "run flow with save_at=None"
    )
    admit(field, traj.measures[0])
    with torch.no_grad():
        energy = torch.stack([descent.energy(mu) for mu in traj.measures])
        slope = torch.stack([_slope(mu, descent) for mu in traj.measures])
        dt = traj.clocks.diff(dim=0).to(energy)
        still = dt == 0  # what a solver says of members that have ended means nothing
        length = _lengths(traj, descent.metric) if lengths is None else _given(lengths, energy)
        length = length.masked_fill(still, 0.0)
        spent = length / dt.masked_fill(still, 1.0) + (dt * (slope[1:] + slope[:-1]) / 2).masked_fill(
            still, 0.0
        )
        gone = 0.5 * spent.cumsum(0)
    residual = energy[0] - energy - torch.cat([torch.zeros_like(gone[:1]), gone])
    return EnergyBalance(traj.ts, energy, slope, length, residual, traj.clocks.to(energy.device))


def balance_order(balances: Sequence[EnergyBalance]) -> Tensor:
    """The slope of log |residual| at the end against log dt, over runs with different steps, (*batch,).

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.QuadraticPotential([[1.0]]), of.Wasserstein())
    >>> mu0 = of.Particles([[2.0]])
    >>> runs = [of.flow(mu0, pull, of.JKO(), t1=1.0, dt=0.1 / 2**k) for k in range(3)]
    >>> round(of.dynamics.balance_order([of.energy_balance(run, pull) for run in runs]).item(), 1)
    2.0
    """
    checks.require(
        len(balances) >= 2, "len(balances)", len(balances), "an order needs two runs", "run with another dt"
    )
    last = torch.stack([b.residual[-1].abs().log() for b in balances])
    x = torch.stack([b.clocks.diff(dim=0).amax(0).log() for b in balances]).to(last)
    x = x - x.mean(0)
    return (x * last).sum(0) / x.square().sum(0)


def _slope(mu: Measure, descent: SteepestDescent) -> Tensor:
    g = descent.metric.gradient(mu, descent.energy.differential(mu))
    square = descent.metric.inner(mu, g, g)
    return square.nan_to_num(nan=torch.inf)  # of entropy where a grid has empty cells


def _lengths(traj: Trajectory, metric: Metric) -> Tensor:
    """Squared lengths of the ways between save times."""
    chords = [_chord(mu, nu, metric) for mu, nu in zip(traj.measures, traj.measures[1:], strict=False)]
    return torch.stack(chords)


@singledispatch
def _chord(mu: Measure, nu: Measure, metric: Metric) -> Tensor:
    """A straight move of the coordinates, weighed where it starts and where it ends.

    Roots of Gaussians are carried along by a flow, not chosen anew, so that their difference is a move.
    """
    u = nu.coords - mu.coords
    return (metric.inner(mu, u, u) + metric.inner(nu, u, u)) / 2


@_chord.register(Particles)
def _(mu: Particles, nu: Particles, metric: Metric) -> Tensor:
    there, back = Tangent([mu.space.log(mu.x, nu.x)]), Tangent([mu.space.log(nu.x, mu.x)])
    return (metric.inner(mu, there, there) + metric.inner(nu, back, back)) / 2


@_chord.register(Grid)
def _(mu: Grid, nu: Grid, metric: Metric) -> Tensor:
    """int J^2 / rho for the flux J that makes mu into nu: there is one on the line, else that of least W2."""
    if len(mu.axes) > 1:
        rule = "on grids of several dimensions the way between densities is known for Wasserstein() only"
        remedy = "pass lengths=..., the squared lengths between save times"
        checks.require(isinstance(metric, Wasserstein), "metric", metric, rule, remedy)
        found = small_move(mu, nu)
        return getattr(found, "distance", found).square()
    middle = mu.at([(mu.density + nu.density) / 2])
    flux = ((mu.density - nu.density) * mu.spacing[0]).cumsum(-1)[..., :-1]
    faces = (middle.density[..., 1:] + middle.density[..., :-1]) / 2
    real = flux.abs() > 1e-12  # of a mass of one; in empty tails a rounding over next to nothing is huge
    v = torch.where(real, flux / torch.where(real, faces, torch.ones_like(faces)), 0.0)
    return metric.inner(middle, Tangent([v]), Tangent([v]))


def _given(lengths: Any, energy: Tensor) -> Tensor:
    out = checks.tensor(lengths, "lengths")
    rule = f"one number per step is needed, {tuple(energy[1:].shape)}"
    checks.require(out.shape == energy[1:].shape, "lengths.shape", out.shape, rule, "save every step")
    return out.to(energy)
