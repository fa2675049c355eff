"""The base of all solvers of a minimising movement: what one takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from torch import Tensor

from otflow.base import checks
from otflow.base.status import graded, names, summary
from otflow.energies import Energy
from otflow.measures import Measure
from otflow.metrics import Metric


@dataclass(frozen=True)
class MovementProblem:
    """min over nu of energy(nu) + d(nu, mu)^2 / (2 tau), d the distance of the metric.

    ``tol`` and ``max_iter`` are None where the solver of the measure is to take its own. Searches that may
    end in one minimum of several begin in ``starts`` places.
    """

    energy: Energy
    metric: Metric
    tau: float
    tol: float | None = None
    max_iter: int | None = None
    starts: int = 1


@dataclass(frozen=True)
class Move:
    """The answer of an inner solver.

    ``cost`` is d(nu, mu)^2; ``residual`` the optimality residual, relative to the gradient that drives the
    step, and 0 at a kink between slopes of either sign; ``gap`` the relative duality gap, where there is a
    dual; ``energy_gap`` is the energy of nu plus d^2/(2 tau) less the energy of mu, not positive;
    ``concavity`` is the largest -tau lambda met among curvatures lambda of the energy, a sample along the
    search that proves nothing; ``blur`` is the variance by which transport was blurred, 0 as a rule, where
    blur is possible; ``failed`` holds status codes, 0 where the tolerance was reached; ``local`` says for
    which of these it is not proved that no other measure is better, and is None where none can be; ``state``
    is a warm start for the next step.
    """

    mu: Measure
    cost: Tensor  # (*batch,)
    residual: Tensor  # (*batch,)
    failed: Tensor  # (*batch,), int64
    iterations: int = 0
    message: str = ""
    gap: Tensor | None = None
    energy_gap: Tensor | None = None
    concavity: Tensor | None = None
    blur: Tensor | None = None
    local: Tensor | None = None  # (*batch,), bool
    state: Any = None

    def __repr__(self) -> str:
        return f"Move(to {self.mu!r}, status={summary(self.status)!r})"

    @property
    def status(self) -> Any:
        """How the solve ended, in words; an array of them for a batch."""
        return names(graded(self.failed, self.local))


@singledispatch
def minimise(mu: Measure, problem: MovementProblem, start: Any = None) -> Move:
    """Solve the step from mu; ``start`` is the `state` of the step before, or None."""
    checks.fail(
        "mu", repr(mu), "no JKO solver is known for this kind of measure", "use Particles or Gaussian"
    )
