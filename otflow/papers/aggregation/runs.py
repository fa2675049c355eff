"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of

Plan = tuple[tuple[float, int], ...]  # (tau, number of steps), one after the other


class Descent(NamedTuple):
    """JKO steps, possibly of several lengths; all but ``t`` and ``clouds`` have one entry a step."""

    energy: of.Energy
    t: Tensor  # (K + 1,)
    clouds: list[of.Particles]  # K + 1 of them
    tau: Tensor
    cost: Tensor
    residual: Tensor
    energy_gap: Tensor
    concavity: Tensor

    @property
    def x(self) -> Tensor:
        """Positions, (K + 1, N, d)."""
        return torch.stack([mu.x for mu in self.clouds])


def discrepancy(x: Tensor) -> float:
    """sup over r of |share of particles within r - r^2|: Kolmogorov's distance of radii to the uniform disc.

    >>> discrepancy(torch.tensor([[0.5, 0.0], [0.0, 1.0]]))
    0.5
    """
    area = x.norm(dim=-1).sort().values.clamp(max=1).square().numpy()
    steps = np.arange(len(area) + 1) / len(area)
    return float(max((steps[1:] - area).max(), (area - steps[:-1]).max()))


def edge(x: Tensor) -> float:
    """1 - max |x|: how far the cloud stays inside the unit disc.

    >>> edge(torch.tensor([[0.0, 0.5]]))
    0.5
    """
    return 1 - float(x.norm(dim=-1).max())


def radial(W: Callable[[Tensor], Tensor], *, diagonal: bool = True) -> of.Interaction:
    """The interaction energy of W as a function of the squared distance.

    >>> radial(lambda s: s / 2)(of.Particles([[0.0], [2.0]])).item()
    0.5
    """
    return of.Interaction(lambda x, y: W((x - y).square().sum(-1)), diagonal=diagonal)


def quartic() -> of.Interaction:
    """W = |x|^4/4 - |x|^2/2.

    >>> round(quartic()(of.Particles([[0.0], [1.0]])).item(), 6)  # W(1) / 4
    -0.0625
    """
    return radial(lambda s: s.square() / 4 - s / 2)


def logarithmic() -> of.Interaction:
    """W = |x|^2/2 - log|x|; no particle acts on itself.

    >>> logarithmic()(of.Particles([[0.0], [1.0]])).item()  # W(1) / 4
    0.125
    """
    return radial(lambda s: s / 2 - s.log() / 2, diagonal=False)


def newtonian_line() -> of.Interaction:
    """W = |x|^2/2 - |x| on the line.

    >>> newtonian_line()(of.Particles([[0.0], [1.0]])).item()  # W(1) / 4
    -0.125
    """
    return of.Interaction(lambda x, y: ((x - y).square() / 2 - (x - y).abs()).sum(-1))


def descend(mu: of.Particles, energy: of.Energy, plan: Plan) -> Descent:
    """JKO steps, every one saved.

    >>> descend(of.Particles([[0.0], [1.0]]), quartic(), ((0.1, 2), (0.5, 1))).t.tolist()
    [0.0, 0.1, 0.2, 0.7]
    """
    field, t, clouds = of.SteepestDescent(energy, of.Wasserstein()), [0.0], [mu]
    seen: dict[str, list[Tensor]] = {"cost": [], "residual": [], "energy_gap": [], "concavity": []}
    for tau, steps in plan:
        traj = of.flow(clouds[-1], field, of.JKO(), t1=steps * tau, dt=tau)
        clouds += [nu for nu in traj.measures[1:] if isinstance(nu, of.Particles)]
        t += [round(t[-1] + s, 9) for s in traj.ts[1:].tolist()]
        for name, values in seen.items():
            values.append(traj.certificates[name][1:])
    taus = torch.cat([torch.full((steps,), tau, dtype=torch.float64) for tau, steps in plan])
    return Descent(energy, torch.tensor(t, dtype=torch.float64), clouds, taus, *map(torch.cat, seen.values()))


class Behind(NamedTuple):
    """Distances of JKO and of its extrapolation to the explicit flow at t = 1/4, and a balance of JKO."""

    plain: float
    extrapolated: float
    balance: of.EnergyBalance


def second_moment(x: Tensor) -> Tensor:
    """mean |x|^2 of clouds (*batch, n, d).

    >>> second_moment(torch.tensor([[3.0, 4.0]])).item()
    25.0
    """
    return x.square().sum(-1).mean(-1)
