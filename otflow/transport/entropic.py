"""Entropic optimal transport and the Sinkhorn divergence between clouds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, Literal

import torch
from torch import Tensor

from otflow import checks, status
from otflow.errors import ConvergenceError
from otflow.measures import Gaussian, Measure
from otflow.spaces import Euclidean
from otflow.transport.costs import Cost, Features, PowerCost, as_cost
from otflow.transport.engines import Engine, Scaling, scale
from otflow.transport.implicit import dual
from otflow.transport.newton import NewtonSinkhorn
from otflow.transport.pairs import Pair, merge, pair
from otflow.transport.scores import Bilinear, Pairwise, Scores
from otflow.transport.states import Kernel

DIFFERENCES = 2**22  # pairs up to which costs come from differences rather than from scalar products
MATRIX = 2**27  # entries of a plan that `matrix` is willing to make


@dataclass(frozen=True)
class EntropicPlan:
    """P_ij = a_i b_j exp((f_i + g_j - c_ij) / eps), the solution of `sinkhorn`, as its potentials.

    Attributes:
        f, g: potentials (*batch, n) and (*batch, m), in float64; the rows of P sum to a.
        eps: the regularisation.
        regularised_cost: <P, c> + eps KL(P | a b), (*batch,), as the dual value <a, f> + <b, g>: a lower
            bound of it however large the marginal error is. Has derivatives in points and weights.
        error: L1 distance of the columns of P from b, measured at f and g, (*batch,).
        status: "ok", "stalled" or "max_iter", an array of these for a batch.
        sweeps: how many sweeps through the kernel it took.
    """

    f: Tensor
    g: Tensor
    eps: float
    regularised_cost: Tensor
    error: Tensor
    status: Any
    sweeps: int
    problem: Problem = field(repr=False)

    @property
    def transport_cost(self) -> Tensor:
        """<P, c>, (*batch,): an upper bound of the optimal cost, up to the marginal error."""
        return self.problem.transport_cost(self._scaled()).to(self.regularised_cost.dtype)

    @property
    def distance(self) -> Tensor:
        """transport_cost^(1/p) for the cost d^p, (*batch,)."""
        cost = self.problem.cost
        if not isinstance(cost, PowerCost):
            checks.fail("cost", repr(cost), "only powers of a distance have one", "look at transport_cost")
        return self.transport_cost.clamp(min=0) ** (1 / cost.p)

    def barycentric(self) -> Tensor:
        """x_i -> sum_j P_ij y_j / a_i, (*batch, n, d): where the plan sends x_i on average.

        On a sphere or torus the points are averaged as vectors.
        """
        return self.average(
            self.problem.pair.y.detach().reshape((*self.problem.pair.batch, *self.problem.pair.y.shape[1:]))
        )

    def average(self, v: Tensor) -> Tensor:
        """sum_j P_ij v_j / a_i, (*batch, n, e), for values v (*batch, m, e) on nu; the plan is not formed."""
        both, (_, G) = self.problem.pair, self._scaled()
        v = checks.tensor(v, "v").double()
        if v.ndim < 2 or v.shape[-2] != G.shape[-1]:
            checks.fail("v.shape", tuple(v.shape), f"(*batch, {G.shape[-1]}, e) is needed", "reshape v")
        flat = merge(v, both.batch, 2)
        out, _ = self.problem.scores.attend(flat, G + both.v.detach().log())
        return out.reshape(*both.batch, *out.shape[1:]).to(self.regularised_cost.dtype)

    def matrix(self) -> Tensor:
        """P, (*batch, n, m)."""
        both, (F, G) = self.problem.pair, self._scaled()
        if self.problem.scores.shape.numel() > MATRIX:
            checks.fail(
                "P", tuple(self.problem.scores.shape), "that is too large", "use average or barycentric"
            )
        S = self.problem.scores.dense().add_(F[..., :, None]).add_(G[..., None, :])
        P = S.exp_() * both.w.detach()[..., :, None] * both.v.detach()[..., None, :]
        return P.reshape(*both.batch, *P.shape[1:])

    def _scaled(self) -> tuple[Tensor, Tensor]:
        return self.problem.scaled(self.f, self.g)

    def __repr__(self) -> str:
        n, m = self.f.shape[-1], self.g.shape[-1]
        return (
            f"EntropicPlan({n} x {m}, eps={self.eps:g}, error={float(self.error.max()):.1e}, {self.status!r})"
        )


@dataclass(frozen=True)
class Problem:
    """Two clouds, a cost and eps, with the scores -c / eps up to terms that belong to one side only."""

    pair: Pair
    cost: Cost
    eps: float
    scores: Scores
    features: Features | None  # if given, the scores are those of Bilinear(q, k)

    def kernel(self) -> Kernel:
        return Kernel(self.scores, self.pair.w.detach().log(), self.pair.v.detach().log(), self._symmetric())

    def _symmetric(self) -> bool:
        p = self.pair
        same = p.x is p.y and p.w is p.v
        return same and self.cost.symmetric

    def potentials(self, s: Scaling) -> tuple[Tensor, Tensor]:
        """f and g in units of the cost, (*batch, n) and (*batch, m)."""
        F, G = s.F, s.G
        if self.features is not None:
            F, G = F + self.features.row, G + self.features.column
        return self._batched(self.eps * F), self._batched(self.eps * G)

    def scaled(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """F and G, the inverse of `potentials`."""
        F, G = f.reshape(-1, f.shape[-1]) / self.eps, g.reshape(-1, g.shape[-1]) / self.eps
        if self.features is not None:
            F, G = F - self.features.row, G - self.features.column
        return F, G

    def value(self, s: Scaling) -> Tensor:
        """<a, f> + <b, g>, (*batch,), with derivatives if the clouds ask for them."""
        f, g = self.potentials(s)
        p = self.pair
        a, b = (self._batched(w.detach()) for w in (p.w, p.v))
        number = torch.where(a > 0, a * f, 0.0).sum(-1) + torch.where(b > 0, b * g, 0.0).sum(-1)
        if not p.requires_grad:
            return number
        follows = self._batched(self._traced(s))
        return number + self.eps * (follows - follows.detach())

    def _traced(self, s: Scaling) -> Tensor:
        """The dual value over eps, (B,), up to rounding, as a function of points and weights."""
        p, f = self.pair, self.cost.features(self.pair.x, self.pair.y, self.pair.space, self.eps)
        if f is None:
            one = torch.ones_like(p.w[:, 0])
            return dual(
                lambda x, y: Pairwise(self.cost, x, y, p.space, self.eps, one), p.x, p.y, p.w, p.v, s.G
            )
        G = s.G if self.features is not None else s.G - f.column.detach()
        return dual(Bilinear, f.q, f.k, p.w, p.v, G) + (p.w * f.row).sum(-1) + (p.v * f.column).sum(-1)

    def transport_cost(self, scaled: tuple[Tensor, Tensor]) -> Tensor:
        a, bias = self.pair.w.detach(), scaled[1] + self.pair.v.detach().log()
        cost = -self.scores.expected(bias)
        if self.features is not None:
            column = self.scores.attend(self.features.column[..., None], bias)[0][..., 0]
            cost = cost + self.features.row + column
        return self._batched(self.eps * (a * cost).sum(-1))

    def _batched(self, a: Tensor) -> Tensor:
        return a.reshape((*self.pair.batch, *a.shape[1:]))


def _problem(both: Pair, cost: Cost, eps: float) -> Problem:
    x, y = both.x.detach(), both.x.detach() if both.y is both.x else both.y.detach()
    f = cost.features(x, y, both.space, eps)
    pairs = x.shape[0] * x.shape[1] * y.shape[1]
    if f is not None and pairs > DIFFERENCES:
        return Problem(both, cost, eps, Bilinear(f.q, f.k), f)
    one = torch.ones(len(x), dtype=x.dtype, device=x.device)
    return Problem(both, cost, eps, Pairwise(cost, x, y, both.space, eps, one), None)


def sinkhorn(
    mu: Measure,
    nu: Measure,
    eps: float,
    *,
    cost: Any = None,
    engine: Engine | None = None,
    tol: float = 1e-9,
    max_iter: int = 10_000,
    start: EntropicPlan | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> EntropicPlan:
    """min <P, c> + eps KL(P | a b) over couplings P of mu and nu (Cuturi 2013; Peyre and Cuturi 2019, (4.2)).

    Everything is computed in the log domain or with absorbed potentials, in float64, and the marginal error
    is measured at the potentials that are returned. Costs are on the scale of the data: eps = 0.01 blurs
    positions by about 0.1 for the squared distance, which carries no factor 1/2.

    Args:
        mu, nu: `Particles` or `Grid` on the same space; batches broadcast, labels are ignored.
        eps: regularisation, > 0, in units of the cost.
        cost: a `Cost` such as `PowerCost(p)` or `BilinearCost(A)`, or a function c(x, y) that broadcasts
            (*batch, n, 1, d) against (*batch, 1, m, d); the squared geodesic distance by default.
        engine: who computes, `NewtonSinkhorn()` by default, or `POT()` or `GeomLoss()`.
        tol: L1 marginal error to be reached; max_iter: limit on the sweeps.
        start: the solution of a nearby problem of the same shape.
        on_failure: "raise" a `ConvergenceError` that carries the plan, or "return" the plan with its status.

    >>> import otflow as of
    >>> mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[0.0], [3.0]])
    >>> plan = sinkhorn(mu, nu, eps=0.1)
    >>> plan.matrix().round(decimals=4)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    >>> round(plan.transport_cost.item(), 4)
    2.0
    """
    both = pair(mu, mu) if nu is mu else pair(mu, nu)
    if nu is mu:
        both = both._replace(y=both.x, v=both.w)
    problem = _problem(both, as_cost(cost), checks.positive(eps, "eps"))
    plan = _solve(problem, mu.dtype, engine, tol, max_iter, start)
    return _trusted(plan) if checks.raises(on_failure) else plan


def _solve(
    problem: Problem,
    dtype: torch.dtype,
    engine: Engine | None,
    tol: float,
    max_iter: int,
    start: EntropicPlan | None,
) -> EntropicPlan:
    engine = NewtonSinkhorn() if engine is None else checks.instance(engine, Engine, "engine")
    tol, max_iter = checks.positive(tol, "tol"), checks.count(max_iter, "max_iter")
    with torch.no_grad():
        G = _start(problem, start)
        s = scale(problem.kernel(), engine, tol=tol, max_iter=max_iter, start=G)
        f, g = problem.potentials(s)
    value, batch = problem.value(s).to(dtype), problem.pair.batch
    codes = status.names(s.codes.reshape(batch))
    return EntropicPlan(f, g, problem.eps, value, s.error.reshape(batch), codes, s.sweeps, problem)


def _start(problem: Problem, start: EntropicPlan | None) -> Tensor | None:
    if start is None:
        return None
    shapes = (problem.pair.batch, *problem.scores.shape[1:])
    if (start.g.shape[:-1], start.f.shape[-1], start.g.shape[-1]) != shapes:
        checks.fail("start", repr(start), f"a plan of shape {shapes} is needed", "leave start out")
    return problem.scaled(start.f, start.g)[1]


def _trusted(plan: EntropicPlan) -> EntropicPlan:
    if not bool((torch.as_tensor(plan.error) <= torch.inf).all()) or _failed(plan):
        raise ConvergenceError(
            f"entropic transport with eps = {plan.eps:g}: marginal error {float(plan.error.max()):.2e} after "
            f"{plan.sweeps} sweeps, status {plan.status}; raise eps, tol or max_iter, or take the plan as it "
            'is with on_failure="return".',
            plan,
        )
    return plan


def _failed(plan: EntropicPlan) -> bool:
    names = [plan.status] if isinstance(plan.status, str) else plan.status.ravel().tolist()
    return any(name != "ok" for name in names)


@singledispatch
def sinkhorn_divergence(
    mu: Measure,
    nu: Measure,
    eps: float,
    *,
    cost: Any = None,
    engine: Engine | None = None,
    tol: float = 1e-9,
    max_iter: int = 10_000,
) -> Tensor:
    """OT_eps(mu, nu) - (OT_eps(mu, mu) + OT_eps(nu, nu)) / 2, shape (*batch,) (Feydy et al. 2019, (3)).

    Zero at mu = nu and positive elsewhere for powers p <= 2 of the Euclidean distance; for small eps it is
    close to the transport cost, for large eps to the squared MMD with kernel -c/2. The three terms are
    computed apart, so differences below about 1e-15 times their size are rounding; a negative result within
    the rounding and the marginal errors is returned as 0. Two Gaussians are compared in closed form.

    Arguments as for `sinkhorn`; a `ConvergenceError` is raised if one of the three problems fails.

    >>> import otflow as of
    >>> mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[2.0], [3.0]])
    >>> round(sinkhorn_divergence(mu, nu, eps=10.0).item(), 6)  # a translation by 2
    4.0
    """

    def part(one: Measure, other: Measure) -> EntropicPlan:
        return sinkhorn(one, other, eps, cost=cost, engine=engine, tol=tol, max_iter=max_iter)

    if mu is nu:
        return torch.zeros(mu.batch, dtype=mu.dtype, device=mu.device)
    plans = part(mu, nu), part(mu, mu), part(nu, nu)
    across, own, other = (plan.regularised_cost for plan in plans)
    value = across - (own + other) / 2
    return _nonnegative(value, plans)


@sinkhorn_divergence.register(Gaussian)
def _(
    mu: Gaussian,
    nu: Measure,
    eps: float,
    *,
    cost: Any = None,
    engine: Engine | None = None,
    tol: float = 1e-9,
    max_iter: int = 10_000,
) -> Tensor:
    from otflow.transport.entropic_bures import gaussian_sinkhorn_divergence

    if cost is not None:
        checks.fail("cost", repr(cost), "Gaussians are compared by the squared distance", "leave cost out")
    return gaussian_sinkhorn_divergence(mu, checks.instance(nu, Gaussian, "nu"), eps)


def _nonnegative(value: Tensor, plans: tuple[EntropicPlan, ...]) -> Tensor:
    """Clamp what rounding and marginal errors explain; refuse what they do not."""
    problem = plans[0].problem
    if not (
        isinstance(problem.cost, PowerCost)
        and problem.cost.p <= 2
        and isinstance(problem.pair.space, Euclidean)
    ):
        return value  # with other costs a divergence may be negative in earnest
    swing = [(plan.g.amax(-1) - plan.g.amin(-1)) * plan.error for plan in plans]
    size = [plan.regularised_cost.detach().abs() for plan in plans]
    bound = 1e-12 * torch.stack(torch.broadcast_tensors(*size)).sum(0) + torch.stack(
        torch.broadcast_tensors(*swing)
    ).sum(0).to(value.dtype)
    if bool((value < -bound).any()):
        raise ConvergenceError(
            f"Sinkhorn divergence = {float(value.min()):.3g}, below zero by more than its error bound.", value
        )
    return torch.where(value < 0, value * 0, value)
