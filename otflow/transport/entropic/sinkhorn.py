"""Entropic optimal transport and the Sinkhorn divergence between clouds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.derivatives import refuse_func
from otflow.base.errors import ConvergenceError, DerivativeError
from otflow.base.spaces import Euclidean
from otflow.base.tables import table
from otflow.measures import Gaussian, Grid, Measure, Particles
from otflow.transport.bures.entropic import divergence_in_units, gaussian_sinkhorn_divergence
from otflow.transport.bures.gaussian_transport import GaussianTransport, sinkhorn_gaussians
from otflow.transport.comparable import Pair, merge, pair
from otflow.transport.entropic.costs import Cost, PowerCost, as_cost
from otflow.transport.entropic.engines import Scaling, scale
from otflow.transport.entropic.implicit import DualPieces, dual, plain
from otflow.transport.entropic.log_kernel import Bilinear, LogKernel, Pairwise
from otflow.transport.entropic.options import Sinkhorn, as_options
from otflow.transport.entropic.scaling import AbsorbedKernel
from otflow.transport.ranges import leaves, rounded

# Pairs up to which costs come from differences, which keep digits, rather than from scalar products, which
# are faster; chosen.
DIFFERENCES = 2**22
MATRIX = 2**27  # entries of a dense plan, at most; chosen: 1 GB
WEAK = 1e-2  # potentials over eps below which they lose more than two digits in logarithms; chosen
ROUNDINGS = 64  # a cost is known up to so many roundings of its terms; chosen
LEAST = 1e-290  # a cost below may consist of terms that have underflowed; chosen: far above the least number


@dataclass(frozen=True, eq=False)
class EntropicTransport:
    """P_ij = a_i b_j exp((f_i + g_j - c_ij) / eps), the solution of `sinkhorn`, as its potentials.

    Attributes:
        f, g: potentials (*batch, n) and (*batch, m), in float64; the rows of P sum to a.
        eps: the regularisation.
        error: L1 distance of the columns of P from b, measured at f and g, (*batch,).
        status: "ok", "stalled" or "max_iter", an array of these for a batch.
        sweeps: how many sweeps through the kernel it took.
    """

    f: Tensor
    g: Tensor
    eps: float
    value: Tensor = field(repr=False)  # the regularised cost in double precision
    error: Tensor
    status: Any
    sweeps: int
    dtype: torch.dtype
    problem: EntropicProblem = field(repr=False)
    scaled: tuple[Tensor, Tensor] = field(repr=False)  # F and G, which keep digits that f and g may lose

    @property
    def batch(self) -> torch.Size:
        """Shape of the leading axes."""
        return self.problem.pair.batch

    @property
    def regularised_cost(self) -> Tensor:
        """<P, c> + eps KL(P | a b), (*batch,), as the dual value <a, f> + <b, g>.

        A lower bound of it however large the marginal error is. Has derivatives in points and weights.
        """
        return rounded(self.problem.visible(self.value), self.dtype, "regularised cost", self._noise)

    @property
    def cost(self) -> Tensor:
        """<P, c>, (*batch,): an upper bound of the optimal cost, up to the marginal error; no derivatives."""
        return rounded(self._cost(), self.dtype, "cost", self._noise)

    @property
    def distance(self) -> Tensor:
        """cost^(1/p) for the cost d^p, (*batch,), without derivatives."""
        cost = self.problem.cost
        if not isinstance(cost, PowerCost):
            checks.fail("distance", repr(cost), "only powers of a distance have one", "take .cost instead")
        q = 1 / cost.p
        return rounded(self._cost().clamp(min=0) ** q, self.dtype, "distance", lambda: self._noise() ** q)

    def _cost(self) -> Tensor:
        return self.problem.visible(self.problem.transport_cost(self.scaled))

    def _noise(self) -> Tensor:
        """How far rounding may move a cost, (*batch,): costs are sums of potentials, which may be larger."""
        p = self.problem.pair
        largest = [
            torch.where(plain(w).reshape(h.shape) > 0, h.abs(), 0.0).amax(-1)
            for w, h in ((p.w, self.f), (p.v, self.g))
        ]
        return ROUNDINGS * torch.finfo(self.f.dtype).eps * (largest[0] + largest[1])

    @property
    def potentials(self) -> tuple[Tensor, Tensor]:
        """f and g."""
        return self.f, self.g

    @property
    def certificates(self) -> dict[str, Tensor]:
        """The error of the marginals, as ``marginal_error``."""
        return {"marginal_error": self.error}

    def barycentric(self) -> Tensor:
        """x_i -> sum_j P_ij y_j / a_i, (*batch, n, d): where the plan sends x_i on average.

        On a sphere the points are averaged as vectors of the space around it.
        """
        rule = "points that wrap around have no average"
        checks.require(self.problem.pair.space.linear, "space", self.problem.pair.space, rule, "use average")
        return self.average(
            plain(self.problem.pair.y).reshape((*self.problem.pair.batch, *self.problem.pair.y.shape[1:]))
        )

    @torch.no_grad()
    def average(self, v: Tensor) -> Tensor:
        """sum_j P_ij v_j / a_i, (*batch, n, e), for values v (*batch, m, e) on nu; the plan is not formed."""
        both, (_, G) = self.problem.pair, self.scaled
        v = checks.tensor(v, "v").double()
        rule = f"(*batch, {G.shape[-1]}, e) is needed"
        checks.require(
            v.ndim >= 2 and v.shape[-2] == G.shape[-1],
            "v.shape",
            v.shape,
            rule,
            f"pass v of shape ({G.shape[-1]}, e), v[:, None] for numbers",
        )
        flat = merge(v, both.batch, 2)
        out, _ = self.problem.scores.attend(flat, G + plain(both.v).log())
        return out.reshape(*both.batch, *out.shape[1:]).to(self.dtype)

    @property
    @torch.no_grad()
    def plan(self) -> Tensor:
        """P, (*batch, n, m), without derivatives."""
        both, (F, G) = self.problem.pair, self.scaled
        good = self.problem.scores.shape.numel() <= MATRIX
        rule = "that is too large"
        checks.require(good, "plan.shape", self.problem.scores.shape, rule, "use average or barycentric")
        # Masses in the exponent: without them the density may overflow where an atom has none.
        rows, columns = F + plain(both.w).log(), G + plain(both.v).log()
        P = self.problem.scores.dense().add_(rows[..., :, None]).add_(columns[..., None, :]).exp_()
        return P.reshape(*both.batch, *P.shape[1:])

    def _repr_html_(self) -> str:
        atoms = f"{self.f.shape[-1]} x {self.g.shape[-1]}"
        rows = {"atoms": atoms, "eps": self.eps, "regularised cost": self.value}
        return table(
            "EntropicTransport", rows | {"error": self.error.max(), "status": status.summary(self.status)}
        )

    def __repr__(self) -> str:
        n, m = self.f.shape[-1], self.g.shape[-1]
        batch = f", batch={tuple(self.batch)}" if self.batch else ""
        error, ended = float(self.error.max()), status.summary(self.status)
        return (
            f"EntropicTransport(n={n}, m={m}{batch}, eps={self.eps:g}, error={error:.1e}, status={ended!r})"
        )


@dataclass(frozen=True)
class EntropicProblem:
    """Two clouds, a cost and eps, with scores S such that c / eps = row_i + column_j - S_ij."""

    pair: Pair
    cost: Cost
    eps: float
    scores: LogKernel
    row: Tensor  # (B, n)
    column: Tensor  # (B, m)

    def kernel(self) -> AbsorbedKernel:
        p = self.pair
        symmetric = p.x is p.y and p.w is p.v and self.cost.symmetric
        return AbsorbedKernel(self.scores, plain(p.w).log(), plain(p.v).log(), symmetric)

    def potentials(self, s: Scaling) -> tuple[Tensor, Tensor]:
        """f and g in units of the cost, (*batch, n) and (*batch, m)."""
        return self._batched(self.eps * (s.F + self.row)), self._batched(self.eps * (s.G + self.column))

    def scaled(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """F and G, the inverse of `potentials`."""
        return f.reshape(self.row.shape) / self.eps - self.row, g.reshape(
            self.column.shape
        ) / self.eps - self.column

    def value(self, s: Scaling) -> Tensor:
        """<a, f> + <b, g>, (*batch,), with derivatives if clouds or cost ask for them."""
        f, g = self.potentials(s)
        a, b = (self._batched(plain(w)) for w in (self.pair.w, self.pair.v))
        number = torch.where(a > 0, a * f, 0.0).sum(-1) + torch.where(b > 0, b * g, 0.0).sum(-1)
        if not (self.cost.learns(self.pair.x, self.pair.y) or self.pair.moves):
            return number
        follows = self._batched(self._traced(s))
        return number + self.eps * (follows - plain(follows))

    def visible(self, cost: Tensor) -> Tensor:
        """A cost itself, or an error where that of the farthest atoms is too small for floating point."""
        if not isinstance(self.cost, PowerCost) or bool((cost.detach().abs() > LEAST).all()):
            return cost
        reach = self._batched(_reach(self.pair))
        far = torch.finfo(reach.dtype).tiny ** (1 / self.cost.p)
        if bool((bad := (reach > 0) & (reach < far) & (cost.detach().abs() <= LEAST)).any()):
            length = f"{reach[bad][0].item():.3g}"
            leaves(f"distance^{self.cost.p:g}", f"{length}^{self.cost.p:g}", cost.dtype, cost.detach())
        return cost

    def _traced(self, s: Scaling) -> Tensor:
        """The dual value over eps, (B,), up to rounding, as a function of points, weights and matrix."""
        p, G = self.pair, s.G + self.column
        f = self.cost.features(p.x, p.y, p.space, self.eps)
        if self.cost.learns(p.x, p.y) and f is not None:  # the matrix of a bilinear cost moves the features
            return dual(_products, _products, f.q, f.k, p.w, p.v, G)
        twice = self._features if f is not None else None
        if f is None or isinstance(self.scores, Pairwise):
            return dual(self._differences, twice, p.x, p.y, p.w, p.v, G)
        return dual(self._features, twice, p.x, p.y, p.w, p.v, G - plain(f.column))

    def _features(self, x: Tensor, y: Tensor) -> DualPieces:
        f = self.cost.features(x, y, self.pair.space, self.eps)
        if f is None:
            raise DerivativeError(
                f"{self.cost} is not made of scalar products; pass PowerCost(2) or BilinearCost(A)"
            )
        return DualPieces(Bilinear(f.q, f.k), f.row, f.column)

    def _differences(self, x: Tensor, y: Tensor) -> DualPieces:
        row, column = torch.zeros_like(x[..., 0]), torch.zeros_like(y[..., 0])
        one = torch.ones_like(row[:, 0])
        return DualPieces(Pairwise(self.cost, x, y, self.pair.space, self.eps, one), row, column)

    @torch.no_grad()
    def transport_cost(self, scaled: tuple[Tensor, Tensor]) -> Tensor:
        if self.pair.forward:
            raise DerivativeError("the cost of an entropic plan has no derivatives; its regularised_cost has")
        bias = scaled[1] + self.pair.v.log()
        column = self.scores.attend(self.column[..., None], bias)[0][..., 0]
        cost = self.row + column - self.scores.expected(bias)
        return self._batched(self.eps * (self.pair.w * cost).sum(-1))

    def _batched(self, a: Tensor) -> Tensor:
        return a.reshape((*self.pair.batch, *a.shape[1:]))


@torch.no_grad()
def _reach(both: Pair) -> Tensor:
    """A length between the largest distance of atoms with mass and twice that, or a part of it, (B,)."""
    x, y = (
        torch.where(plain(w)[..., None] > 0, plain(z), plain(z)[:, :1])
        for z, w in ((both.x, both.w), (both.y, both.v))
    )
    start = x[:, :1]
    return torch.maximum(*((z - start).abs().amax((-1, -2)) for z in (x, y)))


def _products(q: Tensor, k: Tensor) -> DualPieces:
    return DualPieces(Bilinear(q, k), torch.zeros_like(q[..., 0]), torch.zeros_like(k[..., 0]))


@torch.no_grad()
def _problem(both: Pair, cost: Cost, eps: float) -> EntropicProblem:
    x, y = plain(both.x), plain(both.y)
    if x.shape[0] * x.shape[1] * y.shape[1] > DIFFERENCES:
        f = cost.features(x, y, both.space, eps)
        if f is not None:
            return EntropicProblem(both, cost, eps, Bilinear(f.q, f.k), f.row, f.column)
    x, y, row, column = cost.parts(x, y, both.space, eps)
    one = torch.ones(len(x), dtype=x.dtype, device=x.device)
    return EntropicProblem(both, cost, eps, Pairwise(cost, x, y, both.space, eps, one), row, column)


@overload
def sinkhorn(
    mu: Gaussian,
    nu: Gaussian,
    eps: float | Sinkhorn,
    *,
    cost: Any = None,
    start: EntropicTransport | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> GaussianTransport: ...


@overload
def sinkhorn(
    mu: Particles | Grid,
    nu: Particles | Grid,
    eps: float | Sinkhorn,
    *,
    cost: Any = None,
    start: EntropicTransport | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> EntropicTransport: ...


@overload
def sinkhorn(
    mu: Measure,
    nu: Measure,
    eps: float | Sinkhorn,
    *,
    cost: Any = None,
    start: EntropicTransport | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> EntropicTransport | GaussianTransport: ...


def sinkhorn(
    mu: Measure,
    nu: Measure,
    eps: float | Sinkhorn,
    *,
    cost: Any = None,
    start: EntropicTransport | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> EntropicTransport | GaussianTransport:
    """min <P, c> + eps KL(P | a b) over couplings P of mu and nu (Cuturi 2013; Peyre and Cuturi 2019, (4.2)).

    Everything is computed in the log domain or with absorbed potentials, in float64, and the marginal error
    is measured at the potentials that are returned. Costs are on the scale of the data: eps = 0.01 blurs
    positions by about 0.1 for the squared distance, which carries no factor 1/2.

    Between Gaussians the plan is known in closed form, for the squared distance: a `GaussianTransport`
    instead of an `EntropicTransport`. It needs no iteration: of the options only eps counts, and no start.

    Args:
        mu, nu: `Particles` or `Grid` on the same space, or two `Gaussian`; batches broadcast, labels are
            ignored.
        eps: regularisation, > 0, in units of the cost, or `Sinkhorn` with tolerance, budget and engine.
        cost: a `Cost` such as `PowerCost(p)` or `BilinearCost(A)`, or a function c(x, y) that broadcasts
            (*batch, n, 1, d) against (*batch, 1, m, d); the squared geodesic distance by default.
        start: the solution of a nearby problem of the same shape.
        on_failure: "raise" raises `ConvergenceError`, which carries the plan, if ``tol`` is missed;
            "return" returns it, with its ``status``.

    >>> from otflow import sinkhorn
    >>> import otflow as of
    >>> mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[0.0], [3.0]])
    >>> found = sinkhorn(mu, nu, eps=0.1)
    >>> found.plan.round(decimals=4)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    >>> round(found.cost.item(), 4)
    2.0
    """
    refuse_func()
    options, loud = as_options(eps), checks.raises(on_failure)
    if isinstance(mu, Gaussian):
        return sinkhorn_gaussians(mu, _other_gaussian(nu, cost), options.eps)
    plan = _solve(_problem_of(mu, nu, options.eps, cost), options, start, mu.dtype)
    return _trusted(plan) if loud else plan


def _other_gaussian(nu: Measure, cost: Any) -> Gaussian:
    """nu, if it and the cost are what the closed form between Gaussians needs."""
    rule = "Gaussians are compared by the squared distance"
    checks.require(cost is None, "cost", cost, rule, "leave cost out")
    return checks.instance(nu, Gaussian, "nu")


def _problem_of(mu: Measure, nu: Measure, eps: float, cost: Any) -> EntropicProblem:
    both = pair(mu, nu)
    both = both._replace(x=both.x.clone(), y=both.y.clone())  # a plan is asked again, when mu may be edited
    if nu is mu:  # say so, and the symmetric iteration is used
        both = both._replace(y=both.x, v=both.w)
    return _problem(both, as_cost(cost), eps)


def _solve(
    problem: EntropicProblem, options: Sinkhorn, start: EntropicTransport | None, dtype: torch.dtype
) -> EntropicTransport:
    tol = options.tol
    with torch.no_grad():
        G = _start(problem, start)
        kernel = problem.kernel()
        s = scale(kernel, options.engine, tol=tol, max_iter=options.max_iter, start=G)
        s = _legible(kernel, _sharp(kernel, s), tol)
        f, g = problem.potentials(s)
    value, batch = problem.value(s), problem.pair.batch
    codes = status.names(s.codes.reshape(batch))
    error = s.error.reshape(batch)
    return EntropicTransport(f, g, problem.eps, value, error, codes, s.sweeps, dtype, problem, (s.F, s.G))


def _sharp(kernel: AbsorbedKernel, s: Scaling) -> Scaling:
    """The scaling, with the digits that row potentials lose where eps is far above all costs."""
    size = _largest(s.F, kernel.loga) + _largest(s.G, kernel.logb)
    weak = (size < WEAK) & (s.codes == 0)
    if not bool(weak.any()):
        return s
    F = s.F.clone()
    F[weak] = kernel[weak].sharp_rows(s.G[weak])
    return replace(s, F=torch.where(s.F.abs() < WEAK, F, s.F))  # not at atoms without mass


def _legible(kernel: AbsorbedKernel, s: Scaling, tol: float) -> Scaling:
    """The scaling, with a larger error where the rounding of large potentials hides the marginals."""
    digit = 2.0**-53 * (_largest(s.F, kernel.loga) + _largest(s.G, kernel.logb))
    error = torch.where(digit > max(tol, 1e-4), torch.maximum(s.error, digit), s.error)
    codes = torch.where((error > tol) & (s.codes == 0), status.code("stalled"), s.codes)
    return replace(s, error=error, codes=codes)


def _largest(potential: Tensor, logw: Tensor) -> Tensor:
    """max |potential| over the atoms with mass."""
    return torch.where(torch.isfinite(logw), potential.abs(), 0.0).amax(-1)


def _start(problem: EntropicProblem, start: EntropicTransport | None) -> Tensor | None:
    if start is None:
        return None
    checks.instance(start, EntropicTransport, "start")
    shapes = (problem.pair.batch, *problem.scores.shape[1:])
    good = (start.g.shape[:-1], start.f.shape[-1], start.g.shape[-1]) == shapes
    checks.require(good, "start", start, f"a plan of shape {shapes} is needed", "leave start out")
    return problem.scaled(start.f, start.g)[1]


def _trusted(plan: EntropicTransport) -> EntropicTransport:
    if not status.all_ok(plan.status):
        raise ConvergenceError(_complaint(plan), plan)
    return plan


def _complaint(plan: EntropicTransport) -> str:
    return (
        f"entropic transport with eps = {plan.eps:g}: marginal error {float(plan.error.max()):.2e} after "
        f"{plan.sweeps} sweeps ({status.summary(plan.status)}); raise eps or tol, or max_iter if that was "
        'reached; sinkhorn(..., on_failure="return") returns the plan as it is.'
    )


def sinkhorn_divergence(
    mu: Measure,
    nu: Measure,
    eps: float | Sinkhorn,
    *,
    cost: Any = None,
) -> Tensor:
    """OT_eps(mu, nu) - (OT_eps(mu, mu) + OT_eps(nu, nu)) / 2, shape (*batch,) (Feydy et al. 2019, (3)).

    Zero at mu = nu and positive elsewhere for powers p <= 2 of the Euclidean distance; for small eps it is
    close to the transport cost, for large eps to the squared MMD with kernel -c/2. The three terms are
    computed apart, so differences below about 1e-15 times their size are rounding; a negative result within
    the rounding and the marginal errors is returned as 0. Two Gaussians are compared in closed form.

    Arguments as for `sinkhorn`; a `ConvergenceError` is raised if one of the three problems fails.

    >>> from otflow import sinkhorn_divergence
    >>> import otflow as of
    >>> mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[2.0], [3.0]])
    >>> round(sinkhorn_divergence(mu, nu, eps=10.0).item(), 6)  # a translation by 2
    4.0
    """
    options = as_options(eps)
    if isinstance(mu, Gaussian):
        return gaussian_sinkhorn_divergence(mu, _other_gaussian(nu, cost), options.eps)
    plans = _three(mu, nu, options, cost)
    value = _nonnegative(plans[0].problem.visible(_debiased(plans)), plans)
    return rounded(value, mu.dtype, "Sinkhorn divergence", lambda: _rounding(plans))


def unrounded_divergence(mu: Measure, nu: Measure, options: Sinkhorn) -> Tensor:
    """The divergence in double precision, for its slope, which may have room where the value has none."""
    if isinstance(mu, Gaussian):
        relative, unit = divergence_in_units(mu, _other_gaussian(nu, None), options.eps)
        return relative * unit**2
    plans = _three(mu, nu, options, None)
    return _nonnegative(_debiased(plans), plans)


def _three(mu: Measure, nu: Measure, options: Sinkhorn, cost: Any) -> list[EntropicTransport]:
    """The plans between both measures, and from each to itself."""
    pairs = (mu, nu), (mu, mu), (nu, nu)
    known: dict[tuple[int, int], EntropicTransport] = {}  # a measure against itself is one problem, not three
    for one, other in pairs:
        if (id(one), id(other)) not in known:
            problem = _problem_of(one, other, options.eps, cost)
            known[id(one), id(other)] = _solve(problem, options, None, mu.dtype)
    plans = [known[id(one), id(other)] for one, other in pairs]
    failed = [plan for plan in plans if not status.all_ok(plan.status)]
    if failed:
        complaint = f"Sinkhorn divergence: {_complaint(failed[0])}"
        raise ConvergenceError(complaint, _debiased(plans).to(mu.dtype))
    return plans


def _debiased(plans: list[EntropicTransport]) -> Tensor:
    across, own, other_own = (plan.value for plan in plans)
    return across - (own + other_own) / 2


def _nonnegative(value: Tensor, plans: list[EntropicTransport]) -> Tensor:
    """Clamp what rounding and marginal errors explain; refuse what they do not."""
    problem = plans[0].problem
    if not (
        isinstance(problem.cost, PowerCost)
        and problem.cost.p <= 2
        and isinstance(problem.pair.space, Euclidean)
    ):
        return value  # with other costs a divergence may be negative in earnest
    bound = _rounding(plans)
    if bool((value < -bound).any()):
        raise ConvergenceError(
            f"Sinkhorn divergence = {float(value.min()):.3g}, below zero by more than its error bound; "
            "pass Sinkhorn(eps, tol=1e-12).",
            value,
        )
    return torch.where(value < 0, value - plain(value), value)  # rounding hides the value, not its slope


def _rounding(plans: list[EntropicTransport]) -> Tensor:
    """What rounding and marginal errors may make of a divergence, (*batch,)."""
    swing = [(plan.g.amax(-1) - plan.g.amin(-1)) * plan.error for plan in plans]
    size = [plan.value.detach().abs() for plan in plans]
    return 1e-12 * sum(torch.broadcast_tensors(*size)) + sum(torch.broadcast_tensors(*swing))
