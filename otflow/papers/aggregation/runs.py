"""Kernels, clouds to start from, runs by JKO steps, and how far clouds are from their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of

Plan = tuple[tuple[float, int], ...]  # (tau, number of steps), one after the other
CERTIFICATES = ("cost", "residual", "energy_gap", "concavity")


class Descent(NamedTuple):
    """K JKO steps, possibly of several lengths."""

    energy: of.Energy
    t: Tensor  # (K + 1,)
    clouds: list[of.Measure]  # K + 1 of them
    tau: Tensor  # (K,)
    certificates: dict[str, Tensor]  # (K,) each

    @property
    def x(self) -> Tensor:
        """Positions, (K + 1, N, d)."""
        return torch.stack([mu.coords[0] for mu in self.clouds])


def discrepancy(x: Tensor) -> float:
    """sup over r of |share of particles within r - r^2|: Kolmogorov's distance of radii to the uniform disc.

    >>> import torch
    >>> from otflow.papers.aggregation.runs import discrepancy
    >>> discrepancy(torch.tensor([[0.5, 0.0], [0.0, 1.0]]))
    0.5
    """
    return kolmogorov(x.norm(dim=-1).sort().values.clamp(max=1).square())


def kolmogorov(share: Tensor) -> float:
    """sup over u of |part of the shares below u - u|: the distance of sorted shares to the uniform law.

    >>> import torch
    >>> from otflow.papers.aggregation.runs import kolmogorov
    >>> kolmogorov(torch.tensor([0.25, 0.75]))
    0.25
    """
    # The empirical distribution function jumps at every share: look at it from both sides.
    found, steps = share.numpy(), np.arange(len(share) + 1) / len(share)
    return float(max((steps[1:] - found).max(), (found - steps[:-1]).max()))


def edge(x: Tensor) -> float:
    """1 - max |x|: how far the cloud stays inside the unit disc.

    >>> import torch
    >>> from otflow.papers.aggregation.runs import edge
    >>> edge(torch.tensor([[0.0, 0.5]]))
    0.5
    """
    return 1 - float(x.norm(dim=-1).max())


def radial(W: Callable[[Tensor], Tensor], *, diagonal: bool = True) -> of.Interaction:
    """The interaction energy of W as a function of the squared distance.

    >>> import otflow as of
    >>> from otflow.papers.aggregation.runs import radial
    >>> radial(lambda s: s / 2)(of.Particles([[0.0], [2.0]])).item()
    0.5
    """
    return of.Interaction(lambda x, y: W((x - y).square().sum(-1)), diagonal=diagonal)


def quartic() -> of.Interaction:
    """W = |x|^4/4 - |x|^2/2.

    >>> import otflow as of
    >>> from otflow.papers.aggregation.runs import quartic
    >>> round(quartic()(of.Particles([[0.0], [1.0]])).item(), 6)  # W(1) / 4
    -0.0625
    """
    return radial(lambda s: s.square() / 4 - s / 2)


def logarithmic() -> of.Interaction:
    """W = |x|^2/2 - log|x|; no particle acts on itself.

    >>> import otflow as of
    >>> from otflow.papers.aggregation.runs import logarithmic
    >>> logarithmic()(of.Particles([[0.0], [1.0]])).item()  # W(1) / 4
    0.125
    """
    return radial(lambda s: s / 2 - s.log() / 2, diagonal=False)


def newtonian_line() -> of.Interaction:
    """W = |x|^2/2 - |x| on the line.

    >>> import otflow as of
    >>> from otflow.papers.aggregation.runs import newtonian_line
    >>> newtonian_line()(of.Particles([[0.0], [1.0]])).item()  # W(1) / 4
    -0.125
    """
    return of.Interaction(lambda x, y: ((x - y).square() / 2 - (x - y).abs()).sum(-1))


def descend(mu: of.Measure, energy: of.Energy, plan: Plan) -> Descent:
    """JKO steps, every one saved.

    >>> import otflow as of
    >>> from otflow.papers.aggregation.runs import descend, quartic
    >>> descend(of.Particles([[0.0], [1.0]]), quartic(), ((0.1, 2), (0.5, 1))).t.tolist()
    [0.0, 0.1, 0.2, 0.7]
    """
    field, t, clouds, parts = of.SteepestDescent(energy, of.Wasserstein()), [0.0], [mu], []
    for tau, steps in plan:
        parts.append(of.flow(clouds[-1], field, of.JKO(), t1=steps * tau, dt=tau))
        clouds += parts[-1].measures[1:]
        t += [round(t[-1] + s, 9) for s in parts[-1].ts[1:].tolist()]  # sums of steps without their rounding
    certificates = {name: torch.cat([part.certificates[name][1:] for part in parts]) for name in CERTIFICATES}
    taus = torch.cat([torch.full((steps,), tau, dtype=torch.float64) for tau, steps in plan])
    return Descent(energy, torch.tensor(t, dtype=torch.float64), clouds, taus, certificates)


def against_explicit(mu: of.Measure, tau: float) -> tuple[float, float, of.dynamics.EnergyBalance]:
    """JKO on the quartic kernel and its extrapolation against Dormand and Prince's method at t = 1/4.

    Root mean squares over particles, and what JKO loses and dissipates.

    >>> import otflow as of
    >>> from otflow.papers.aggregation.runs import against_explicit
    >>> first, second, _ = against_explicit(of.Particles([[0.0], [2.0]]), 0.0625)
    >>> second < first
    True
    """
    field = of.SteepestDescent(quartic(), of.Wasserstein())
    fine = of.flow(mu, field, of.Dopri5(1e-10, 1e-12), t1=0.25, save_at=[0.0])
    steppers = of.JKO(), of.Extrapolated(of.JKO())
    traj, second = (of.flow(mu, field, stepper, t1=0.25, dt=tau) for stepper in steppers)
    apart = [one.final.coords[0] - fine.final.coords[0] for one in (traj, second)]
    rms = [float(z.square().sum(-1).mean().sqrt()) for z in apart]
    return rms[0], rms[1], of.energy_balance(traj, field)


def scattered(n: int, rng: np.random.Generator) -> of.Particles:
    """A normal cloud about 0 in the plane.

    >>> import numpy as np
    >>> from otflow.papers.aggregation.runs import scattered
    >>> scattered(5, np.random.default_rng(0)).x.shape
    torch.Size([5, 2])
    """
    x = rng.normal(scale=0.35, size=(n, 2))
    return of.Particles(x - x.mean(0))


def jittered(n: int, rng: np.random.Generator) -> of.Particles:
    """One particle near the middle of each of n small squares: no two so close that a step is not convex.

    >>> import numpy as np
    >>> from otflow.papers.aggregation.runs import jittered
    >>> jittered(9, np.random.default_rng(0)).x.shape
    torch.Size([9, 2])
    """
    k = round(n**0.5)
    squares = np.stack(np.divmod(np.arange(n), k), -1)
    x = 1.2 * (squares + rng.uniform(-0.3, 0.3, (n, 2))) / k
    return of.Particles(x - x.mean(0))


def second_moment(x: Tensor) -> Tensor:
    """mean |x|^2 of clouds (*batch, n, d).

    >>> import torch
    >>> from otflow.papers.aggregation.runs import second_moment
    >>> second_moment(torch.tensor([[3.0, 4.0]])).item()
    25.0
    """
    return x.square().sum(-1).mean(-1)
