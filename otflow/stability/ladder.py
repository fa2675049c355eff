"""The ladder of a stability estimate: the observed growth, the worst one found, and the bounds above it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import UnknownBoundError
from otflow.base.tables import table
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import VelocityField
from otflow.measures import Particles
from otflow.stability.adversary import Adversary, adversary
from otflow.stability.bounds.a_posteriori import APosteriori, a_posteriori
from otflow.stability.bounds.a_priori import APriori, a_priori, support_radius
from otflow.stability.bounds.constants import constants
from otflow.stability.coupled import coupled
from otflow.stability.perturbations import farthest, per_member, perturbations, sizes
from otflow.steppers import RK4, Stepper
from otflow.transport.comparable import exponent


@dataclass(frozen=True, eq=False)
class Ladder:
    """W_p(mu_t, nu_t) / W_p(mu_0, nu_0): observed, worst, bounded after the run, bounded before it.

    Attributes:
        ts: save times, (T,).
        observed: name of a perturbation -> logarithm of its ratio at every time, (T, *batch).
        worst: the same for the adversary's perturbation.
        adversary: how that was found; its ``linearised`` is the norm of the derivative of the flow.
        a_posteriori, a_priori: the bounds, with ``log_C`` of shape (T, *batch); None if none is known.
        size, p: the size of the perturbations and the order of the distance.
        step_error: by how much steps of half the length change the logarithm of the worst ratio, (*batch,).
        unknown: why no bound is known, else empty.
    """

    ts: Tensor
    observed: Mapping[str, Tensor]
    worst: Tensor
    adversary: Adversary
    a_posteriori: APosteriori | None
    a_priori: APriori | None
    size: Tensor
    p: float
    step_error: Tensor
    unknown: str = ""

    @property
    def rungs(self) -> dict[str, Tensor]:
        """Logarithms of the ratio and of its bounds at the final time, from the lowest to the highest."""
        logs = {
            "observed": torch.stack([a[-1] for a in self.observed.values()]).amax(0),
            "adversary": self.adversary.ratio.log(),
        }
        bounds = {"a posteriori": self.a_posteriori, "a priori": self.a_priori}
        return logs | {name: bound.log_C[-1] for name, bound in bounds.items() if bound is not None}

    def holds(self, rtol: float | None = None) -> Tensor:
        """Whether no rung is above the next one, (*batch,), up to ``rtol``; not of members that ended early.

        Ratios are those of a run in steps, the bounds those of the flow: the default allows 1e-9 and twice
        what halving the steps changes.
        """
        slack, more = (1e-9, 2 * self.step_error) if rtol is None else (rtol, 0.0)
        pairs = itertools.pairwise(self.rungs.values())
        return torch.stack([low <= high + slack * high.abs().clamp(min=1) + more for low, high in pairs]).all(
            0
        )

    def _repr_html_(self) -> str:
        title = f"d_{self.p:g}(mu_t, nu_t) / d_{self.p:g}(mu_0, nu_0) at t = {float(self.ts[-1]):g}"
        rows = {f"log C, {name}": float(log.median()) for name, log in self.rungs.items()}
        return table(title, rows, of=self)

    def __repr__(self) -> str:
        logs = ", ".join(f"{name} {float(log.median()):.4g}" for name, log in self.rungs.items())
        return f"Ladder(p={self.p:g}, log C({float(self.ts[-1]):g}): {logs})"

    def __str__(self) -> str:
        """The rungs as a table, of a batch the medians, and what there is to say of the infinite ones."""
        p = f"{self.p:g}"
        lines = [
            f"d_{p}(mu_t, nu_t) / d_{p}(mu_0, nu_0) at t = {float(self.ts[-1]):g}",
            f"{'':14}{'log C':>16}{'C':>20}",
        ]
        for name, log in self.rungs.items():
            value = float(log.median())
            shown = f"{value:.6g}", _power(value)
            if name == "a priori" and value == math.inf:
                shown = self._iterated()
            lines.append(f"{name:14}{shown[0]:>16}{shown[1]:>20}")
        return "\n".join([*lines, *self._notes()])

    def _iterated(self) -> tuple[str, str]:
        """log C and C of the a-priori bound where log C overflows."""
        log_log = math.inf if self.a_priori is None else float(self.a_priori.log_log_C[-1].median())
        return ("inf", "inf") if log_log == math.inf else (f"e^{log_log:.6g}", f"e^e^{log_log:.6g}")

    def _notes(self) -> list[str]:
        if self.a_priori is None or self.a_posteriori is None:
            return [f"no upper bound: {self.unknown}"]
        notes = []
        if bool(self.a_posteriori.log_C[-1].isinf().any()):
            notes.append("a posteriori is infinite where no tube could be followed: smaller size, more steps")
        if bool(self.a_priori.blow_up_time.isfinite().any()):
            notes.append("a priori is infinite where the ball that must contain all solutions blows up")
        elif bool((self.a_priori.log_log_C[-1] == math.inf).any()):
            notes.append("a priori is infinite: no constant exists for this p")
        return notes


def _power(log: float) -> str:
    """exp(log) with its decimal exponent, as long as that has few digits."""
    if math.isinf(log):
        return "inf" if log > 0 else "0"
    if abs(log) > 2e4:
        return f"e^{log:.6g}"
    exponent, rest = divmod(log / math.log(10), 1)
    return f"{10**rest:.3f}e{int(exponent):+d}" if abs(exponent) > 3 else f"{math.exp(log):.6g}"


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
    Fields, spaces and orders without known constants get the rungs from below.

    Args:
        mu0: tokens; labelled if the field is causal, and then distances are conditional.
        field: any; bounds are known for attention, heads of it, sums with perceptrons, and weights that may
            depend on time.
        t1, t0: the times.
        steps: how many steps of fixed length; every one of them is saved.
        stepper: `RK4()` by default.
        size: the size of perturbations, a number or (*batch,); a millionth of the radius by default, more in
            float32.
        R0: the radius of a ball that contains all tokens and their perturbations, for the a-priori bound; by
            default the smallest.
        p: the order of the distance, from 1.
        rng: a seed or a `numpy.random.Generator`, for random perturbations.

    >>> import torch
    >>> import otflow as of
    >>> I = torch.eye(2, dtype=torch.float64)
    >>> mu0 = of.Particles([[1.0, 0.0], [0.0, 1.0], [-0.5, -0.5]])
    >>> found = of.ladder(mu0, of.SoftmaxAttention(I, I, I), t1=0.5)
    >>> bool(found.holds())
    True
    """
    stepper, steps = RK4() if stepper is None else stepper, checks.count(steps, "steps")
    _admit(mu0, field)
    t0, t1, p = checks.number(t0, "t0"), checks.number(t1, "t1"), exponent(p)
    dt, size = (t1 - t0) / steps, _size(mu0, size)
    R, unknown = _ball(mu0, field, size, R0, p, t0)
    tried = perturbations(mu0, size, p=p, rng=rng)
    found = adversary(mu0, field, stepper, t1=t1, dt=dt, t0=t0, size=size, p=p, tries=tried, rng=rng)
    family = mu0.at([torch.stack([*(nu0.x for nu0 in tried.values()), found.nu0.x])])
    run = coupled(mu0, family, field, stepper, t1=t1, dt=dt, t0=t0, p=p)
    logs = dict(zip(tried, run.ratios.log().unbind(1), strict=False))
    after, before = (None, None) if unknown else _bounds(run.mu, field, size, R, p)
    worst = run.ratios[:, -1].log()
    fine = coupled(mu0, found.nu0, field, stepper, t1=t1, dt=dt / 2, t0=t0, p=p, save_at=[t1])
    error = (worst[-1] - fine.final.log()).abs()
    return Ladder(run.ts, logs, worst, found, after, before, size, p, error, unknown)


def _admit(mu0: Any, field: Any) -> None:
    checks.instance(field, VelocityField, "field")
    if not isinstance(mu0, Particles):
        rule = "a ladder is about clouds of tokens"
        checks.fail("mu0", f"{mu0!r:.60}", rule, "pass Particles, for a law without atoms a sample of it")


def _size(mu0: Particles, size: Any) -> Tensor:
    if size is not None:
        return sizes(size, mu0)
    radius: Tensor = mu0.x.detach().norm(dim=-1).amax(-1)
    checks.require(
        (radius > 0).all(),
        "mu0",
        mu0,
        "all tokens are at 0, which says nothing of a scale",
        "pass size=1e-6, say",
    )
    return radius * max(1e-6, 256 * torch.finfo(mu0.dtype).eps)


def _ball(
    mu0: Particles, field: VelocityField, size: Tensor, R0: Any, p: float, t0: float
) -> tuple[Tensor | None, str]:
    """A radius if it was given, and the reason why no bound is known, if none is: before anything is run."""
    try:
        needed = support_radius(mu0).to(size) + farthest(mu0, size, p)
        constants(field, needed, t0).log_lip(p)
    except UnknownBoundError as error:
        return None, str(error)
    if R0 is None:
        return None, ""
    given = per_member(R0, "R0", mu0)
    if bool((given < needed).any()):
        reach = f"tokens and their perturbations reach to {float(needed.max()):.6g}"
        checks.fail("R0", R0, reach, "choose a larger radius, or leave it out")
    return given, ""


def _bounds(
    traj: Trajectory, field: VelocityField, size: Tensor, R0: Tensor | None, p: float
) -> tuple[APosteriori, APriori]:
    after = a_posteriori(traj, field, size=size, p=p)
    if R0 is None:
        return after, after.a_priori
    t0, t1 = float(traj.ts[0]), float(traj.ts[-1])
    return after, a_priori(field, R0, t1=t1, t0=t0, ts=traj.ts, p=p)
