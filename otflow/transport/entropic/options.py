"""Options of entropic transport, one object for distances, energies, attention and steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from otflow.base import checks
from otflow.transport.entropic.engines import Engine
from otflow.transport.entropic.newton import NewtonSinkhorn


@dataclass(frozen=True)
class Sinkhorn:
    """How entropic transport is regularised and computed: wherever an ``eps`` is asked for, this will do too.

    The kernel is exp(-cost / eps), with the cost |x - y|^2, no 1/2, unless another one is given.

    Attributes:
        eps: regularisation, > 0, in units of the cost.
        tol: bound on the L1 error of the marginals.
        max_iter: limit on the sweeps.
        engine: who computes: `NewtonSinkhorn()`, `POT()` or `GeomLoss()`.

    >>> import otflow as of
    >>> options = of.Sinkhorn(1.0, tol=1e-6, engine=of.transport.POT())
    >>> mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[0.0], [3.0]])
    >>> of.sinkhorn(mu, nu, options).status
    'ok'
    """

    eps: float
    tol: float = 1e-9
    max_iter: int = 10_000
    engine: Engine = field(default_factory=NewtonSinkhorn)

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", checks.positive(self.eps, "eps"))
        object.__setattr__(self, "tol", checks.positive(self.tol, "tol"))
        object.__setattr__(self, "max_iter", checks.count(self.max_iter, "max_iter"))
        checks.instance(self.engine, Engine, "engine")


def as_options(eps: float | Sinkhorn) -> Sinkhorn:
    """The options themselves, or those of a number."""
    return eps if isinstance(eps, Sinkhorn) else Sinkhorn(eps)
