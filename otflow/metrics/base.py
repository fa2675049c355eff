"""The base of all metrics, the metric of W2, and distances and actions in a metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.linalg import procrustes, widen
from otflow.base.parameters import Parametric
from otflow.base.tangent import Tangent
from otflow.measures import Gaussian, Measure, Particles


class Metric(Parametric, ABC):
    """A Riemannian metric on measures, in the sense of Otto."""

    @abstractmethod
    def inner(self, mu: Measure, u: Tangent, v: Tangent) -> Tensor:
        """<u, v> at mu, shape (*batch,)."""

    @abstractmethod
    def gradient(self, mu: Measure, covector: Tangent) -> Tangent:
        """The tangent g with inner(mu, g, u) = <covector, u> for all u."""

    def action(self, mu: Measure, u: Tangent) -> Tensor:
        """The squared length of the move u; JKO steps pay for it."""
        return self.inner(mu, u, u)

    @property
    def quadratic(self) -> bool:
        """Whether `action` is <u, u>."""
        return True

    def held(self, mu: Measure) -> Metric:
        """The metric at mu alone, with what depends on mu computed once: for solvers that ask many times."""
        return self

    def displacement(self, mu: Measure, nu: Measure) -> Tangent:
        """The u with mu.exp(u) = nu that moves atom i to atom i, or one Gaussian optimally to the other."""
        return displacement(mu, nu)


class Wasserstein(Metric):
    """W2: <u, v> = int u.v dmu. Bures-Wasserstein on Gaussians, conditional on labelled particles.

    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [4.0]], w=[0.25, 0.75])
    >>> u = of.Tangent([mu.x])
    >>> of.Wasserstein().inner(mu, u, u).item()
    12.0
    """

    def inner(self, mu: Measure, u: Tangent, v: Tangent) -> Tensor:
        return mu.inner(u, v)

    def gradient(self, mu: Measure, covector: Tangent) -> Tangent:
        return mu.sharp(covector)

    def __repr__(self) -> str:
        return "Wasserstein()"


# --- distances -----------------------------------------------------------------------------------------


def distance(mu: Measure, nu: Measure, metric: Metric) -> Tensor:
    """The geodesic distance of a metric, shape (*batch,).

    For `Wasserstein()` the measures decide what that is: W2 for `Particles` and densities on a `Grid` (which
    are constant on cells: `wasserstein` says how well it is known), conditional W2 (mass keeps its label) for
    particles that are labelled, Bures-Wasserstein for Gaussians.
    `Twisted` by a constant matrix M it is the same between the images under M^(1/2); with a weight there is
    no formula, and `solve_twisted` gives bounds.

    >>> from otflow import distance
    >>> import otflow as of
    >>> x, y = [[0.0], [1.0]], [[1.0], [0.0]]
    >>> distance(of.Particles(x), of.Particles(y), of.Wasserstein()).item()
    0.0
    >>> distance(of.Particles(x, label=[0, 1]), of.Particles(y, label=[0, 1]), of.Wasserstein()).item()
    1.0
    """
    return geodesic_distance(checks.instance(metric, Metric, "metric"), mu, nu)


@singledispatch
def geodesic_distance(metric: Metric, mu: Measure, nu: Measure) -> Tensor:
    """`distance`, by the kind of the metric."""
    checks.fail(
        "metric", repr(metric), "its distance is not available", "use Wasserstein(), or a function of yours"
    )


@geodesic_distance.register(Wasserstein)
def _(metric: Wasserstein, mu: Measure, nu: Measure) -> Tensor:
    from otflow.transport.chain import geodesic

    result = geodesic(mu, nu)
    return getattr(result, "distance", result)


# --- paths ---------------------------------------------------------------------------------------------


def path_action(measures: Sequence[Measure], metric: Metric, *, ts: Any = None) -> Tensor:
    """sum_k action(mu_k, u_k) / (t_(k+1) - t_k), (*batch,), where u_k moves mu_k to mu_(k+1).

    The action of the path that joins the measures by straight moves, atom by atom (by geodesics on a sphere
    or torus); Gaussians are joined by their optimal maps. It is exact for metrics whose `action` is that of a
    straight move, as with `Wasserstein` and ``Twisted(..., frozen=False)``, and then an upper bound for the
    squared distance of the ends, divided by the time between them.

    Args:
        measures: two or more `Particles` with the same atoms, or `Gaussian`.
        metric: what a move costs.
        ts: increasing times, one for each measure; equally spaced from 0 to 1 if left out. For a run of which
            members ended early ``traj.clocks``, (T, *batch): there they stand still.

    Reference: Benamou and Brenier 2000, "A computational fluid mechanics solution to the Monge-Kantorovich
    mass transfer problem".

    >>> from otflow.metrics import path_action
    >>> import otflow as of
    >>> path = [of.Particles([[x]]) for x in (0.0, 1.0, 3.0)]
    >>> path_action(path, of.Wasserstein()).item(), path_action(path, of.Wasserstein(), ts=[0, 1, 3]).item()
    (10.0, 3.0)
    """
    checks.instance(metric, Metric, "metric")
    pieces = zip(measures[:-1], measures[1:], _steps(measures, ts), strict=True)
    return torch.stack(
        [_rate(metric.action(mu, metric.displacement(mu, nu)), dt) for mu, nu, dt in pieces]
    ).sum(0)


def _rate(action: Tensor, dt: Tensor) -> Tensor:
    """action / dt; no move in no time costs nothing."""
    dt = dt.to(action)
    still = (dt == 0) & (action == 0)
    return torch.where(still, 0.0, action / torch.where(still, 1.0, dt))


def _steps(measures: Sequence[Measure], ts: Any) -> list[Tensor]:
    n = len(measures)
    checks.require(n >= 2, "len(measures)", n, "a path has two ends", "pass two measures or more")
    times = torch.linspace(0, 1, n, dtype=torch.float64) if ts is None else checks.tensor(ts, "ts").double()
    dt = times.diff(dim=0)
    own = (
        times.shape == (n, *measures[0].batch) and times.ndim > 1
    )  # members may stand still, but not together
    if (times.shape != (n,) and not own) or bool((dt < 0 if own else dt <= 0).any()):
        checks.fail("ts", f"{ts!r:.60}", f"{n} increasing times are needed", "pass one for each measure")
    return list(dt)


@singledispatch
def displacement(mu: Measure, nu: Measure) -> Tangent:
    """`Metric.displacement` for W2."""
    rule, remedy = "a path is made of Particles or Gaussians", "take distance(mu, nu, metric) along the path"
    checks.fail("mu", repr(mu), rule, remedy)


@displacement.register(Particles)
def _(mu: Particles, nu: Measure) -> Tangent:
    same = isinstance(nu, Particles) and nu.x.shape == mu.x.shape and nu.space == mu.space
    if not same or not torch.equal(nu.nodes()[1], mu.w):
        checks.fail("nu", repr(nu), f"the same atoms as in {mu!r} are needed", "keep number and weights")
    return Tangent([mu.space.log(mu.x, nu.coords[0])])


@displacement.register(Gaussian)
def _(mu: Gaussian, nu: Measure) -> Tangent:
    mean, root = checks.instance(nu, Gaussian, "nu").coords
    if root.shape[-1] > mu.root.shape[-1]:
        rule = f"a move keeps the {mu.root.shape[-1]} columns of the root of mu"
        remedy = "give both roots as many columns, with Gaussian(mean, cov=...)"
        checks.fail("nu.root.shape", tuple(root.shape), rule, remedy)
    return Tangent([mean - mu.mean, procrustes(mu.root, widen(root, mu.root.shape[-1]))])
