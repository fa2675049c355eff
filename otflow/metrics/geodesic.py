"""Distances in a twisted metric, between bounds: paths made shorter, and a floor under the weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import ConvergenceError, InputError, NotFiniteError
from otflow.base.linalg import ratio, sqrtm, widen
from otflow.base.spaces import Euclidean
from otflow.base.tables import table
from otflow.base.tangent import Tangent
from otflow.measures import Gaussian, Measure, Particles
from otflow.metrics.base import distance
from otflow.metrics.bounds import GroundDistances, lower_bound
from otflow.metrics.twisted import Twisted, flatten, in_double, straight_action, weight_at
from otflow.transport.comparable import power_mean
from otflow.transport.ranges import leaves, lost, rounded, squared
from otflow.transport.result import Transport

if TYPE_CHECKING:
    from otflow.transport.exact.plans import ExactTransport

FAR = 1e10  # the objective where a weight is not defined; chosen: it is 1 for the straight path


FINER = 8  # parts of a piece, to check the quadrature of its length; chosen


@dataclass(frozen=True, eq=False, repr=False)
class TwistedTransport:
    """Bounds of a twisted distance, and the path whose length is the upper one.

    Attributes:
        upper: the length of ``path``, (*batch,).
        lower: what no path can be shorter than, (*batch,); 0 if nothing is known.
        path: measures from mu to nu, at equal times.
        refinements: the upper bounds found with more and more measures on the path, (levels, *batch).
        coupling: the solution of W2 between the images under M^(1/2), whose matching the path follows.
        metric: the metric.
        status: "ok", or why the path is not the shortest with its number of measures; an array for a batch.
    """

    upper: Tensor
    lower: Tensor
    path: list[Measure]
    refinements: Tensor
    coupling: Transport
    metric: Twisted
    status: Any

    @property
    def batch(self) -> torch.Size:
        """Shape of the leading axes."""
        return self.upper.shape

    @property
    def distance(self) -> Tensor:
        """The upper bound, (*batch,); the distance itself if there is no weight."""
        return self.upper

    @property
    def cost(self) -> Tensor:
        """The action of the path, which is the square of its length, (*batch,)."""
        return squared(self.upper, "cost")

    @property
    def plan(self) -> Any:
        """Which atom goes where, (*batch, n, m); between Gaussians the joint law of (x, y)."""
        coupled = self.coupling.plan
        if not isinstance(coupled, Gaussian):
            return coupled
        mean, root = (self._straightened(z) for z in (coupled.mean[..., None], coupled.root))
        return coupled.at([mean[..., 0], root])

    @property
    def potentials(self) -> tuple[Any, Any]:
        """f and g with f + g <= (x - y).M (x - y), if there is no weight.

        With a weight the dual problem lives on paths, and no pair of functions of x and y solves it. Between
        Gaussians they are functions of M^(1/2) x and M^(1/2) y.
        """
        rule = "with a weight the dual problem is one of paths, without f and g"
        remedy = "read upper and lower instead, or use Twisted(matrix=M)"
        checks.require(self.metric.weight is None, "potentials", self.metric, rule, remedy)
        return self.coupling.potentials

    @property
    def certificates(self) -> dict[str, Tensor]:
        """``lower``, and how far it is below the upper bound, relative, as ``gap``."""
        return {"gap": ratio(self.upper - self.lower, self.upper), "lower": self.lower}

    def _straightened(self, z: Tensor) -> Tensor:
        """Columns of R^(2d) under M^(-1/2) in both halves."""
        if self.metric.matrix is None:
            return z
        root = sqrtm(self.metric.matrix).to(z)
        return torch.cat([torch.linalg.solve(root, half) for half in z.chunk(2, -2)], -2)

    def _repr_html_(self) -> str:
        rows = {"upper": self.upper, "lower": self.lower, "measures on the path": len(self.path)}
        return table("TwistedTransport", rows | {"status": status.summary(self.status)})

    def __repr__(self) -> str:
        ended = status.summary(self.status)
        if self.batch:
            return f"TwistedTransport(batch={tuple(self.batch)}, status={ended!r})"
        lower, upper = self.lower.item(), self.upper.item()
        return f"TwistedTransport({lower:g} <= distance <= {upper:g}, status={ended!r})"


def solve_twisted(
    mu: Measure,
    nu: Measure,
    metric: Twisted,
    *,
    nodes: int = 8,
    levels: int = 3,
    lower: float | None = None,
    tol: float = 1e-9,
    max_iter: int = 1000,
    on_failure: Literal["raise", "return"] = "raise",
) -> TwistedTransport:
    """d(mu, nu)^2 = inf int_0^1 int a_(mu_t)(x) v_t.M v_t dmu_t dt over paths, d mu_t / dt = -div(mu_t v_t).

    Without a weight this is W2 between images under M^(1/2), and both bounds are equal. With a weight:

    * The upper bound is the length of a path of atoms, piecewise straight, that is made as short as possible
      by moving the measures on it, first 8 pieces, then twice as many, and again. Each of them is a length,
      up to a quadrature of five nodes a piece, so that each is a bound, and they decrease. Atoms are matched
      and split as in the optimal plan of W2 (for labelled ones: within labels). Another matching, or more
      splitting, may be shorter: in general the upper bound does not tend to the distance.
    * The lower bound is c^(1/2) W2 for a floor ``lower`` = c under the weight, if that is given. Without,
      there is one for `Partition`, which assumes nothing on the path: a multiple of W1, and on the sphere at
      least exp(-|A| / 2) W2; see `otflow.metrics.bounds`. For other weights it is 0.

    Args:
        mu, nu: `Particles` in the same space, with any weights; Gaussians if the metric has no weight.
            Their batches broadcast.
        metric: the metric; whether it is ``frozen`` makes no difference.
        nodes: how many straight pieces the first path has.
        levels: how many paths are tried, each with twice as many pieces.
        lower: a number that the weight does not fall below on any path that you allow: for `Partition` and
            paths within |x| <= r that is exp(-|A| r^2).
        tol: bound on how far the squared length of a path is above the least with as many pieces, relative.
            Single precision is computed in double; a weight that only takes, or gives, single precision
            leaves at least 64 roundings.
        max_iter: limit on the iterations for each path.
        on_failure: "raise" raises `ConvergenceError`, which carries the result, if ``tol`` is missed;
            "return" returns it, the bounds being valid still.

    Reference: Burger, Kabri, Korolev, Roith, Weigand 2025, "Analysis of mean-field models arising from
    self-attention dynamics in transformer architectures with layer normalization", for the distance;
    Dolbeault, Nazaret, Savaré 2009, "A new class of transport distances between measures", for mobilities.

    >>> import otflow as of
    >>> from otflow.metrics import solve_twisted
    >>> mu, nu = of.Particles([[0.0]]), of.Particles([[1.0]])
    >>> way = solve_twisted(mu, nu, of.Twisted(lambda mu, x: (1 + x[..., 0]) ** 2), lower=1.0)
    >>> way.refinements, way.lower.item()  # int_0^1 (1 + x) dx = 1.5
    (tensor([1.5006, 1.5001, 1.5000], dtype=torch.float64), 1.0)
    """
    checks.instance(metric, Twisted, "metric")
    options = Options(
        checks.count(nodes, "nodes"),
        checks.count(levels, "levels"),
        None if lower is None else checks.positive(lower, "lower"),
        checks.positive(tol, "tol"),
        checks.count(max_iter, "max_iter"),
    )
    strict = checks.raises(on_failure)
    with torch.no_grad():
        if isinstance(mu, Particles) and mu.dtype == torch.float32 and metric.weight is not None:
            result = _in_double(mu, nu, metric, options)
        else:
            result = _solve(mu, nu, metric, options)
    if strict and not status.all_ok(result.status):
        raise ConvergenceError(
            f"solve_twisted: the path is not the shortest ({result.status}); raise max_iter or tol, or "
            "take the bounds as they are with on_failure='return'.",
            result,
        )
    return result


class Options(NamedTuple):
    nodes: int
    levels: int
    lower: float | None
    tol: float
    max_iter: int


@singledispatch
def _solve(mu: Measure, nu: Measure, metric: Twisted, options: Options) -> TwistedTransport:
    checks.fail(
        "mu",
        repr(mu),
        "twisted distances are those of Particles and Gaussians",
        "pass Particles(*mu.nodes())",
    )


@_solve.register(Gaussian)
def _(mu: Gaussian, nu: Measure, metric: Twisted, options: Options) -> TwistedTransport:
    from otflow.transport.bures.gaussian_transport import solve_gaussians

    d = distance(mu, checks.instance(nu, Gaussian, "nu"), metric)
    columns = max(one.root.shape[-1] for one in (mu, nu) if isinstance(one, Gaussian))
    start = mu.at([mu.mean, widen(mu.root, columns)])
    flat: tuple[Any, Any] = flatten(mu, metric), flatten(nu, metric)
    return _exact(d, start, metric.displacement(start, nu), solve_gaussians(*flat), metric, options)


def _exact(
    d: Tensor, mu: Measure, u: Tangent, coupling: Transport, metric: Twisted, options: Options
) -> TwistedTransport:
    """The straight path, where it is the shortest."""
    path = [mu.exp(u * (i / options.nodes)) for i in range(options.nodes + 1)]
    fine = status.names(torch.zeros(d.shape, dtype=torch.long))
    return TwistedTransport(d, d, path, d[None], coupling, metric, fine)


# --- precision -----------------------------------------------------------------------------------------


def _in_double(mu: Particles, nu: Measure, metric: Twisted, options: Options) -> TwistedTransport:
    """The search in double precision: in single, its objective is rounded far above the tolerance."""
    if nu.dtype != mu.dtype or not isinstance(nu, Particles):
        return _solve(mu, nu, metric, options)  # which says why not
    straight_action(mu, metric, mu.coords * 0.0)  # what is refused in the precision of mu stays refused
    wide = _solve(mu.to(torch.float64), nu.to(torch.float64), in_double(metric, mu), options)
    bounds = [rounded(z, mu.dtype, "a twisted length") for z in (wide.upper, wide.lower, wide.refinements)]
    path = [one.to(mu.dtype) for one in wide.path if isinstance(one, Particles)]
    return TwistedTransport(bounds[0], bounds[1], list(path), bounds[2], wide.coupling, metric, wide.status)


# --- clouds --------------------------------------------------------------------------------------------


@_solve.register(Particles)
def _(mu: Particles, nu: Measure, metric: Twisted, options: Options) -> TwistedTransport:
    ends: tuple[Particles, Particles] = mu, checks.instance(nu, Particles, "nu")
    flat: tuple[Any, Any] = flatten(mu, metric), flatten(nu, metric)
    coupling = _coupled(*flat)
    start, y, w2 = _match(*ends, *flat, coupling)
    u = _straight(start, y)
    if metric.weight is None:
        return _exact(w2, start, u, coupling, metric, options)
    noise = _noise(weight_at(metric, start).dtype)
    problem = GeodesicProblem(start, metric, _in_range(straight_action(start, metric, u), w2), w2, noise)
    path, lengths, codes = _shorten(problem, u, y, options)
    measures = [start.at([x]) for x in path]
    ratio = _finer(measures, metric)
    missed = (ratio - 1).abs() > 1e-3  # the quadrature does not see all of the weight
    codes = status.merge(codes, status.code("uncertified"), missed)
    upper = torch.where(missed, lengths[-1] * ratio, lengths[-1])
    least = _least(metric, flat, w2, options)
    if options.lower is not None and bool((least > upper * (1 + 1e-6)).any()):
        checks.fail(
            "lower",
            options.lower,
            "a path exists that is shorter than that allows",
            f"pass lower={options.lower * float((upper / least).square().min()):.3g} or less",
        )
    least = torch.minimum(least, upper)  # up to rounding, where both are equal
    ended, tried = status.names(codes), torch.stack(lengths)
    return TwistedTransport(upper, least, list(measures), tried, coupling, metric, ended)


def _in_range(action: Tensor, w2: Tensor) -> Tensor:
    """The action itself, or an error where the square of a distance has no room."""
    if bool((bad := lost(w2, action)).any()):
        leaves("an action", f"about ({w2.detach()[bad][0].item():.3g})^2", action.dtype, action.detach())
    return action


def _finer(path: list[Particles], metric: Twisted) -> Tensor:
    """The length of a path with each piece in FINER parts, relative to that by one quadrature a piece."""
    coarse = fine = torch.zeros(())
    for mu, nu in pairwise(path):
        u = mu.space.log(mu.x, nu.x)
        coarse = coarse + straight_action(mu, metric, Tangent([u]))
        for k in range(FINER):
            here, there = (mu.exp(Tangent([u * (j / FINER)])) for j in (k, k + 1))
            part = Tangent([here.space.log(here.x, there.x)])
            fine = fine + FINER * straight_action(here, metric, part)
    return (fine / torch.where(coarse > 0, coarse, torch.ones_like(coarse))).sqrt().where(coarse > 0, 1.0)


def _least(metric: Twisted, flat: tuple[Particles, Particles], w2: Tensor, options: Options) -> Tensor:
    from otflow.transport.exact.conditional import conditional_wasserstein
    from otflow.transport.exact.wasserstein import wasserstein

    if options.lower is not None:
        return math.sqrt(options.lower) * w2
    w1 = (wasserstein if flat[0].label is None else conditional_wasserstein)(*flat, p=1)
    return lower_bound(metric.weight, metric, *flat, GroundDistances(w1, w2))


def _match(
    mu: Particles, nu: Particles, flat: Particles, other: Particles, coupling: ExactTransport
) -> tuple[Particles, Tensor, Tensor]:
    """mu with its atoms split as in the optimal plan, where each of them goes, and W2."""
    seen = (coupling.mass > 0).reshape(-1, coupling.mass.shape[-1]).any(0)
    rows, cols, mass = (z[..., seen] for z in (coupling.rows, coupling.cols, coupling.mass))
    batch = rows.shape[:-1]
    label = None if mu.label is None else mu.label.expand(*batch, -1).gather(-1, rows)
    x, y, p, q = (_take(one.x, i, batch) for one, i in ((mu, rows), (nu, cols), (flat, rows), (other, cols)))
    w = mass.to(mu.dtype) / mass.sum(-1, keepdim=True).to(mu.dtype)
    equal = bool((w - w[..., :1]).abs().max() < 8 * torch.finfo(w.dtype).eps * w.max())
    start = Particles(x, None if equal else w, label, mu.space)
    return start, y, power_mean(mu.space.distance(p, q), start.w, 2)


def _take(x: Tensor, index: Tensor, batch: torch.Size) -> Tensor:
    d = x.shape[-1]
    return x.expand(*batch, *x.shape[-2:]).gather(-2, index[..., None].expand(*index.shape, d))


def _coupled(mu: Particles, nu: Particles) -> ExactTransport:
    """The plan of W2, among those that move no label if there are labels."""
    from otflow.transport.exact.conditional import solve_conditional
    from otflow.transport.exact.wasserstein import solve

    if (mu.label is None) != (nu.label is None):
        checks.fail("nu", repr(nu), "only one of the measures has labels", "label both, or none")
    return solve(mu, nu) if mu.label is None else solve_conditional(mu, nu)


def _straight(mu: Particles, y: Tensor) -> Tangent:
    """From x_i to y_i, or an error where there is no way that is the shortest."""
    u = mu.space.log(mu.x, y)
    off = mu.space.distance(mu.space.exp(mu.x, u), y)
    if mu.space != Euclidean() and bool((off > 1e-3).any()):  # in R^d that is rounding, far from the origin
        checks.fail(
            "nu",
            "antipodes of atoms of mu",
            "no way between them is the shortest",
            "pass nu.move(Tangent([1e-6 * torch.randn(nu.x.shape)]))",
        )
    return Tangent([u])


# --- paths ---------------------------------------------------------------------------------------------


class GeodesicProblem(NamedTuple):
    mu: Particles
    metric: Twisted
    scale: Tensor  # (*batch,), the action of the straight path
    w2: Tensor  # (*batch,)
    noise: float  # what rounding leaves of the square of a slope

    def actions(self, path: Tensor) -> Tensor:
        """Of each piece, (K, *batch), for a path (K + 1, *batch, n, d)."""
        space, here = self.mu.space, path[:-1]
        return straight_action(self.mu.at([here]), self.metric, Tangent([space.log(here, path[1:])]))

    def length(self, path: Tensor) -> Tensor:
        """The sum of roots of actions: what the action is if each piece takes its time; (*batch,)."""
        return self.actions(path).sqrt().sum(0)


def _shorten(
    problem: GeodesicProblem, u: Tangent, y: Tensor, options: Options
) -> tuple[Tensor, list[Tensor], Tensor]:
    """The last path, the lengths of all, and how the last one ended."""
    mu, K = problem.mu, options.nodes
    path = torch.stack([mu.space.exp(mu.x, u[0] * (i / K)) for i in range(K)] + [y])
    lengths: list[Tensor] = []
    codes = torch.zeros_like(problem.scale, dtype=torch.long)
    for level in range(options.levels):
        path = path if level == 0 else _refine(path, problem)
        better, codes = _relax(path, problem, options)
        gain = problem.length(better) <= problem.length(path)  # never worse, for no member of the batch
        path = torch.where(gain[..., None, None], better, path)
        lengths.append(problem.length(path))
    return path, lengths, codes


def _refine(path: Tensor, problem: GeodesicProblem) -> Tensor:
    """Twice as many pieces, with their ends in the middle of the old ones."""
    space = problem.mu.space
    middle = space.exp(path[:-1], space.log(path[:-1], path[1:]) / 2)
    return torch.cat([torch.stack([path[:-1], middle], 1).flatten(0, 1), path[-1:]])


def _relax(path: Tensor, problem: GeodesicProblem, options: Options) -> tuple[Tensor, Tensor]:
    """The least action with as many pieces, and status codes."""
    from scipy.optimize import minimize

    K = len(path) - 1
    if K == 1:
        return path, torch.zeros_like(problem.scale, dtype=torch.long)
    spread, shape = _spread(path, problem), path[1:-1].shape

    def value(z: np.ndarray) -> tuple[float, np.ndarray]:
        f, g = _slope(
            torch.as_tensor(z, dtype=path.dtype, device=path.device).reshape(shape), spread, problem
        )
        return f.item(), g.double().cpu().numpy().ravel()

    size = math.prod(shape)
    goal = 2 * math.sqrt(options.tol / size)
    wanted = {"gtol": goal, "ftol": 0.0, "maxiter": options.max_iter, "maxfun": 20 * options.max_iter}
    found = minimize(value, np.zeros(size), jac=True, method="L-BFGS-B", options={**wanted, "maxcor": 20})
    z = torch.as_tensor(found.x, dtype=path.dtype, device=path.device).reshape(shape)
    slope = _slope(z, spread, problem)[1]
    # With unit curvature 2 or more, |slope|^2 / 4 is how much less the action could be, relative.
    missed = slope.square().movedim(0, -1).flatten(-3).sum(-1) > 4 * max(options.tol, problem.noise)
    code = status.code("max_iter" if found.nit >= options.max_iter else "stalled")
    return spread(z), torch.where(missed, code, 0)


def _noise(dtype: torch.dtype) -> float:
    """What rounding leaves of a slope, squared.

    A weight in single precision is rounded before the search, which then ends where it sees no decrease.
    """
    eps = torch.finfo(dtype).eps
    return 1e4 * eps**2 if dtype == torch.float64 else 64 * eps


def _spread(path: Tensor, problem: GeodesicProblem) -> Callable[[Tensor], Tensor]:
    """Paths by coordinates z in which the action of W2 is |z|^2, relative, whatever K and the weights are."""
    mu, K = problem.mu, len(path) - 1
    T = K * (2 * torch.eye(K - 1) - torch.ones(K - 2).diag(1) - torch.ones(K - 2).diag(-1)).to(path)
    inverse = torch.linalg.inv(torch.linalg.cholesky(T)).mT
    unit = torch.where(problem.w2 > 0, problem.w2, torch.ones_like(problem.w2))[..., None]
    each = (unit / torch.where(mu.w > 0, mu.w, torch.ones_like(mu.w)).sqrt())[..., None]

    def to(z: Tensor) -> Tensor:
        moved = torch.tensordot(inverse, z, 1) * each
        return torch.cat([path[:1], mu.space.retract(path[1:-1], moved), path[-1:]])

    return to


def _slope(z: Tensor, spread: Callable[[Tensor], Tensor], problem: GeodesicProblem) -> tuple[Tensor, Tensor]:
    """The actions of all members, in units of those of the straight paths, and the derivative."""
    scale = torch.where(problem.scale > 0, problem.scale, torch.ones_like(problem.scale))
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        try:
            path = spread(z)
            f = ((len(path) - 1) * problem.actions(path).sum(0) / scale).sum()
        except (InputError, NotFiniteError):  # a trial step out of where the weight is defined
            return z.new_tensor(FAR), torch.zeros_like(z)
        (g,) = torch.autograd.grad(f, z)
    return f.detach(), g
