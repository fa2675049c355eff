"""The whole ladder of a stability estimate: what happens, the worst that was found, what is certain."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow import checks
from otflow.fields import VelocityField
from otflow.measures import Particles
from otflow.stability.aposteriori import APosteriori, a_posteriori
from otflow.stability.apriori import APriori, a_priori
from otflow.stability.families import perturbations
from otflow.stability.runs import coupled
from otflow.stability.worst import Adversary, adversary
from otflow.steppers import RK4, Stepper


@dataclass(frozen=True, eq=False)
class Ladder:
    """W_p(mu_t, nu_t) / W_p(mu_0, nu_0): observed, worst, bounded after the run, bounded before it.

    Attributes:
        ts: save times, (T,).
        observed: name of a perturbation -> logarithm of its ratio at every time, (T, *batch).
        worst: the same for the adversary's perturbation.
        adversary: how that was found; its ``linearised`` is the norm of the derivative of the flow.
        a_posteriori, a_priori: the bounds, with ``log_C`` of shape (T, *batch).
        size, p: the size of the perturbations and the order of the distance.
    """

    ts: Tensor
    observed: Mapping[str, Tensor]
    worst: Tensor
    adversary: Adversary
    a_posteriori: APosteriori
    a_priori: APriori
    size: Tensor
    p: float

    @property
    def rungs(self) -> dict[str, Tensor]:
        """Logarithms of the ratio and of its bounds at the final time, from the lowest to the highest."""
        return {
            "observed": torch.stack([a[-1] for a in self.observed.values()]).amax(0),
            "adversary": self.adversary.ratio.log(),
            "a posteriori": self.a_posteriori.log_C[-1],
            "a priori": self.a_priori.log_C[-1],
        }

    def holds(self, rtol: float = 1e-9) -> Tensor:
        """Whether no rung is above the next one, up to ``rtol``, (*batch,)."""
        steps = list(self.rungs.values())
        pairs = itertools.pairwise(steps)
        return torch.stack([low <= high + rtol * high.abs().clamp(min=1) for low, high in pairs]).all(0)

    def __str__(self) -> str:
        """The rungs as a table; of a batch, the median."""
        p = f"{self.p:g}"
        lines = [
            f"d_{p}(mu_t, nu_t) / d_{p}(mu_0, nu_0) at t = {self.ts[-1]:g}",
            f"{'':14}{'log C':>14}{'C':>14}",
        ]
        for name, log in self.rungs.items():
            value = float(log.median())
            lines.append(f"{name:14}{value:14.6g}{_power(value):>14}")
        return "\n".join(lines)


def _power(log: float) -> str:
    """exp(log) with its decimal exponent, however large."""
    if not abs(log) < 1e15:
        return "inf" if log > 0 else "0"
    exponent, rest = divmod(log / np.log(10), 1)
    return f"{10**rest:.3f}e{int(exponent):+d}" if abs(exponent) > 3 else f"{np.exp(log):.6g}"


def ladder(
    mu0: Particles,
    field: VelocityField,
    *,
    t1: float,
    t0: float = 0.0,
    steps: int = 50,
    stepper: Stepper | None = None,
    size: float | Tensor | None = None,
    R0: float | Tensor | None = None,
    p: float = 2.0,
    rng: int | np.random.Generator = 0,
) -> Ladder:
    """Everything that is known of C in d_p(mu_t, nu_t) <= C d_p(mu_0, nu_0), from below and from above.

    Perturbations of several kinds are tried, an adversary looks for the worst one, the flow itself gives a
    bound along its way (`a_posteriori`), and the norms of the weights give one beforehand (`a_priori`).

    Args:
        mu0: tokens in R^d; labelled if the field is causal, and then distances are conditional.
        field: attention, heads of it, sums with perceptrons, with weights that may depend on time.
        t1, t0: the times.
        steps: how many steps of fixed length; every one of them is saved.
        stepper: `RK4()` by default.
        size: the size of perturbations, a number or (*batch,); a millionth of the radius by default.
        R0: the radius of a ball that contains all tokens and their perturbations, for the a-priori bound; by
            default the smallest.
        p: the order of the distance, from 1.
        rng: where random perturbations come from.

    >>> import otflow as of
    >>> I = torch.eye(2, dtype=torch.float64)
    >>> mu0 = of.Particles([[1.0, 0.0], [0.0, 1.0], [-0.5, -0.5]])
    >>> found = of.ladder(mu0, of.SoftmaxAttention(I, I, I), t1=0.5)
    >>> bool(found.holds())
    True
    """
    stepper, steps = RK4() if stepper is None else stepper, checks.count(steps, "steps")
    checks.instance(mu0, Particles, "mu0")
    dt = (t1 - t0) / steps
    radius = mu0.x.norm(dim=-1).amax(-1)
    size = 1e-6 * radius if size is None else checks.tensor(size, "size").to(mu0.x).expand(mu0.batch)
    tried = perturbations(mu0, size, p=p, rng=rng)
    found = adversary(mu0, field, stepper, t1=t1, dt=dt, t0=t0, size=size, p=p, tries=tried, rng=rng)
    family = mu0.at([torch.stack([*(nu0.x for nu0 in tried.values()), found.nu0.x])])
    run = coupled(mu0, family, field, stepper, t1=t1, dt=dt, t0=t0, p=p)
    logs = dict(zip(tried, run.ratios.log().unbind(1), strict=False))
    after = a_posteriori(run.mu, field, size=size, p=p)
    before = a_priori(field, _ball(mu0, radius + after.tube[0], R0), t1=t1, t0=t0, ts=after.ts, p=p)
    return Ladder(after.ts, logs, run.ratios[:, -1].log(), found, after, before, size, p)


def _ball(mu0: Particles, needed: Tensor, R0: Any) -> Tensor:
    if R0 is None:
        return needed
    given = checks.tensor(R0, "R0").to(mu0.x)
    if bool((given < needed).any()):
        checks.fail(
            "R0",
            R0,
            f"tokens and their perturbations reach to {float(needed.max()):.6g}",
            "choose a larger radius, or leave it out",
        )
    return given.expand(needed.shape)
