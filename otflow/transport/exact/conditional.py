"""Conditional Wasserstein distances: transport that never moves a label, or pays for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import ConvergenceError
from otflow.base.linalg import ratio
from otflow.base.spaces import Euclidean, Space
from otflow.measures import Measure, Particles
from otflow.transport.comparable import Pair, atoms, exponent, kinked, merge, pair, places, root
from otflow.transport.exact.envelope import power
from otflow.transport.exact.line import units
from otflow.transport.exact.plans import ExactTransport, InUnits
from otflow.transport.exact.wasserstein import LARGEST, solve, w2, wasserstein
from otflow.transport.ranges import rounded

# Masses of a label that differ by no more are equal; chosen: sums of many weights round.
SAME = {torch.float64: 1e-9, torch.float32: 1e-6}


def conditional_wasserstein(mu: Measure, nu: Measure, p: float = 2) -> Tensor:
    """d_p(mu, nu) = (sum_s theta(s) W_p(mu^s, nu^s)^p)^(1/p), shape (*batch,): mass keeps its label.

    theta is the law of the labels, which both measures share, and mu^s is the law of the tokens with label s.
    Where labels are all distinct this is (sum_i w_i |x_i - y_i|^p)^(1/p), matched by label, the distance in
    which masked attention is stable; fibres with several atoms are optimal transport problems of their own.
    Distances are those of the space, geodesic on spheres and tori. Labels count as equal if they are the same
    number, their masses if they differ by at most 1e-9 (1e-6 in float32); atoms without mass are ignored. The
    gradient is 0 where the distance is 0.

    A batch gives one distance per sequence. Batches as a whole, labelled by sequence and position, have the
    mean of the p-th powers: ``(d ** p).mean() ** (1 / p)``.

    Args:
        mu, nu: labelled `Particles`, in any order.
        p: the order, from 1 to 500; or infinity (the largest distance), as long as no label has several atoms
            in both.

    Raises:
        InputError: if the laws of the labels differ; `relaxed_conditional` lets labels move at a price.

    References: Hosseini, Hsu and Taghvaei 2025, "Conditional optimal transport on function spaces";
    Chemseddine, Hagemann, Steidl and Wald 2025, "Conditional Wasserstein distances".

    >>> from otflow import conditional_wasserstein
    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [1.0]], label=[0, 1])
    >>> nu = of.Particles([[0.0], [1.0]], label=[1, 0])  # the same tokens in the other order
    >>> conditional_wasserstein(mu, nu).item()
    1.0
    """
    p = _order(p)
    both, ours, theirs = _alike(mu, nu)
    d, codes = _distance(both, ours, theirs, p)
    d = rounded(d.reshape(both.batch), mu.dtype, "distance")
    if bool((codes > 0).any()):
        raise ConvergenceError(
            "conditional_wasserstein: a plan within a fibre is not certified; "
            "solve_conditional(..., on_failure='return') returns it.",
            d,
        )
    return d


def solve_conditional(
    mu: Measure, nu: Measure, p: float = 2, *, on_failure: Literal["raise", "return"] = "raise"
) -> ExactTransport:
    """The plan of `conditional_wasserstein`: optimal among those that move no label, with its proof.

    Every fibre, the atoms with one label, is a transport problem of its own, and the potentials prove them
    all: f_i + g_j <= d(x_i, y_j)^p for atoms i and j with mass and the same label, whence ``bound``, a lower
    bound of d_p^p, and ``gap``. They are 0 on atoms without mass.

    Args:
        mu, nu: labelled `Particles` with the same law of labels. Their batches broadcast.
        p: the order, from 1 to 500.
        on_failure: "raise" raises `ConvergenceError`, which carries the plan, if it is not certified;
            "return" returns it, with its ``status``.

    >>> from otflow import Particles
    >>> from otflow.transport import solve_conditional
    >>> mu = Particles([[0.0], [1.0]], label=[0, 1])
    >>> nu = Particles([[0.0], [1.0]], label=[1, 0])
    >>> found = solve_conditional(mu, nu)
    >>> found.plan, found.distance.item()
    (tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64), 1.0)
    """
    strict, p = checks.raises(on_failure), _order(p)
    checks.require(not math.isinf(p), "p", p, "a plan minimises a sum of powers", "choose p <= 500")
    both, ours, theirs = _alike(mu, nu)
    with torch.no_grad():
        found = _gathered(both, ours, theirs, p)
    if strict and bool((found.codes > 0).any()):
        raise ConvergenceError(
            "solve_conditional: a plan within a fibre is not certified; on_failure='return' returns it.",
            found,
        )
    return found


def _order(p: float) -> float:
    p = exponent(p)
    rule = f"beyond {LARGEST} powers of distances leave floating point"
    checks.require(not LARGEST < p < math.inf, "p", p, rule, f"pass p={LARGEST} or less, or p=math.inf")
    return p


# --- fibres --------------------------------------------------------------------------------------------


class Fibres(NamedTuple):
    """Atoms with mass, grouped by label within each member of a batch: flat lists over all members."""

    member: Tensor  # (F,)
    label: Tensor  # (F,)
    mass: Tensor  # (F,)
    start: Tensor  # (F,): where a fibre starts in `atom`
    size: Tensor  # (F,)
    atom: Tensor  # (N,): indices into the flat (B, n)


def _fibred(mu: Measure, nu: Measure) -> tuple[Pair, Fibres, Fibres]:
    both = pair(mu, nu)
    ours, theirs = (merge(_label(one, name), both.batch, 1) for one, name in ((mu, "mu"), (nu, "nu")))
    return both, _fibres(both.w, ours), _fibres(both.v, theirs)


def _alike(mu: Measure, nu: Measure) -> tuple[Pair, Fibres, Fibres]:
    """The fibres of two measures with the same law of labels, or an error."""
    both, ours, theirs = _fibred(mu, nu)
    unlike = _unlike(ours, theirs, SAME[mu.dtype])
    if unlike is not None:
        _refuse(unlike, both.batch)
    return both, ours, theirs


def _label(mu: Measure, name: str) -> Tensor:
    label = mu.label if isinstance(mu, Particles) else None
    if label is None:
        checks.fail(name, repr(mu), "labels are needed", "pass Particles(x, label=...), or use wasserstein")
    return label


def _fibres(w: Tensor, label: Tensor) -> Fibres:
    B, n = w.shape
    label, order = torch.where(w > 0, label, torch.inf).sort(-1)
    seen = torch.isfinite(label).flatten()  # atoms without mass have gone to the end
    rows = torch.arange(B, device=w.device)[:, None]
    member = rows.expand(B, n).flatten()[seen]
    atom, label = (order + n * rows).flatten()[seen], label.flatten()[seen]
    fresh = torch.ones_like(member, dtype=torch.bool)
    fresh[1:] = (label[1:] != label[:-1]) | (member[1:] != member[:-1])
    start = fresh.nonzero()[:, 0]
    size = torch.diff(start, append=start.new_tensor([len(atom)]))
    mass = w.new_zeros(len(start)).index_add(0, fresh.cumsum(0) - 1, w.flatten()[atom])
    return Fibres(member[start], label[start], mass, start, size, atom)


def _unlike(ours: Fibres, theirs: Fibres, tol: float) -> Tensor | None:
    """Fibres without counterpart of the same mass, rows (member, label, mass in mu, mass in nu); or None."""
    same = len(ours.label) == len(theirs.label) and bool(
        (
            (ours.member == theirs.member)
            & (ours.label == theirs.label)
            & ((ours.mass - theirs.mass).abs() <= tol)
        ).all()
    )
    if same:
        return None
    keys = [torch.stack([f.member.double(), f.label], -1) for f in (ours, theirs)]
    key, back = torch.cat(keys).unique(dim=0, return_inverse=True)
    masses = torch.zeros_like(key)
    masses[back[: len(keys[0])], 0] = ours.mass.detach()
    masses[back[len(keys[0]) :], 1] = theirs.mass.detach()
    bad = (torch.diff(masses)[:, 0].abs() > tol) | (masses == 0).any(-1)
    return torch.cat([key, masses], -1)[bad]


def _refuse(unlike: Tensor, batch: torch.Size) -> None:
    member, label, ours, theirs = unlike[0].tolist()
    index = [int(i) for i in np.unravel_index(int(member), batch)]
    checks.fail(
        f"mass of label {label}" + (f" in member {index} of the batch" if batch else ""),
        f"{ours:.10g} in mu and {theirs:.10g} in nu",
        "the conditional distance is infinite unless both measures have the same law of labels",
        "call relaxed_conditional, which lets labels move at a price, or sequence_distance for sequences of "
        "different length",
    )


# --- the distance --------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Fibres with equally many atoms in each measure."""

    own: Tensor  # (G,): which fibres
    x: Tensor  # (G, k, d)
    a: Tensor  # (G, k), weights within the fibre
    atoms: Tensor  # (G, k), where they are among all of (B, n)
    y: Tensor  # (G, m, d)
    b: Tensor  # (G, m)
    others: Tensor  # (G, m), among all of (B, m)
    space: Space

    @property
    def single(self) -> bool:
        """Whether there is only one way to transport."""
        return min(self.a.shape[-1], self.b.shape[-1]) == 1

    @property
    def clouds(self) -> tuple[Particles, Particles]:
        """The fibres as measures of their own."""
        return Particles(self.x, self.a, space=self.space), Particles(self.y, self.b, space=self.space)

    def spans(self) -> Tensor:
        """All distances, (G, k m)."""
        return self.space.distance(self.x[:, :, None, :], self.y[:, None, :, :]).flatten(1)

    def mean_power(self, unit: Tensor, p: float) -> Tensor:
        """The mean of (d / unit)^p over all pairs, (G,), for unit (G,)."""
        q = power(self.space, self.x[:, :, None, :], self.y[:, None, :, :], unit[:, None, None], p)
        if p < 2:
            q = kinked(q, lambda q: bool((q == 0).any()))
        return (self.a[:, :, None] * self.b[:, None, :] * q).sum((-1, -2))

    def wasserstein(self, p: float) -> tuple[Tensor, Tensor]:
        """W_p and how its computation ended, (G,) and (G,)."""
        checks.require(
            not math.isinf(p), "p", p, "a label has several atoms in both measures", "choose a finite p"
        )
        try:
            d = kinked(wasserstein(*self.clouds, p), lambda d: bool((d == 0).any()))
        except ConvergenceError as error:
            return error.result.distance, error.result.codes
        return d, torch.zeros_like(self.own)


def _distance(both: Pair, ours: Fibres, theirs: Fibres, p: float) -> tuple[Tensor, Tensor]:
    """d_p of every member and how its computation ended, (B,) and (B,), given that the fibres match."""
    groups, member, size = list(_groups(both, ours, theirs)), ours.member, len(both.w)
    reach = [(g.spans().amax(-1), torch.zeros_like(g.own)) if g.single else g.wasserstein(p) for g in groups]
    codes = _spread(groups, [code for _, code in reach], member, size, "amax")
    top = _spread(groups, [d for d, _ in reach], member, size, "amax")
    if math.isinf(p):
        return top, codes
    unit, theta = units(top.detach()), (ours.mass + theirs.mass) / 2
    shares = [
        theta[g.own] * (g.mean_power(u, p) if g.single else (d / u) ** p)
        for g, (d, _), u in zip(groups, reach, (unit[member[g.own]] for g in groups), strict=True)
    ]
    return root(_spread(groups, shares, member, size, "sum"), p) * unit, codes


def _spread(groups: list[Group], values: list[Tensor], member: Tensor, size: int, how: str) -> Tensor:
    """Sums or maxima over the fibres of every member, (B,)."""
    own = member[torch.cat([g.own for g in groups])]
    return torch.cat(values).new_zeros(size).scatter_reduce(0, own, torch.cat(values), how)


def _groups(both: Pair, ours: Fibres, theirs: Fibres) -> Iterator[Group]:
    code = ours.size * (theirs.size.max() + 1) + theirs.size
    for one in code.unique():
        own = (code == one).nonzero()[:, 0]
        yield Group(own, *_take(both.x, both.w, ours, own), *_take(both.y, both.v, theirs, own), both.space)


def _take(x: Tensor, w: Tensor, fibres: Fibres, own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The atoms (G, k, d) of fibres of equal size k, their weights (G, k) within the fibre, their indices."""
    steps = torch.arange(int(fibres.size[own[0]]), device=own.device)
    atom = fibres.atom[fibres.start[own, None] + steps]
    return x.flatten(0, 1)[atom], w.flatten()[atom] / fibres.mass[own, None], atom


# --- the plan ------------------------------------------------------------------------------------------


def _gathered(both: Pair, ours: Fibres, theirs: Fibres, p: float) -> ExactTransport:
    """The plans of all fibres as one."""
    groups = list(_groups(both, ours, theirs))
    plans = [solve(*g.clouds, p, on_failure="return") for g in groups]
    theta = [((ours.mass + theirs.mass) / 2)[g.own] for g in groups]
    member, size = ours.member, len(both.w)
    unit = _spread(groups, [plan.relative.unit for plan in plans], member, size, "amax")
    fibres = [_in_unit(plan, unit[member[g.own]]) for g, plan in zip(groups, plans, strict=True)]
    costs, bounds = (
        [share * getattr(fibre, name) for share, fibre in zip(theta, fibres, strict=True)]
        for name in ("cost", "bound")
    )
    cost, bound = (_spread(groups, values, member, size, "sum") for values in (costs, bounds))
    codes = _spread(groups, [plan.codes for plan in plans], member, size, "amax")
    numbers = (cost ** (1 / p) * unit, ratio((cost - bound).abs(), cost), codes)
    parts = (*_padded(groups, plans, theta, both), *numbers)
    relative = (*(_placed(groups, fibres, both, side) for side in ("f", "g")), cost, bound, unit)
    shaped, kept = ([z.reshape((*both.batch, *z.shape[1:])) for z in group] for group in (parts, relative))
    return ExactTransport(p, InUnits(*kept), *shaped)


def _in_unit(plan: ExactTransport, unit: Tensor) -> InUnits:
    """Costs and potentials of a plan in other units, (G,): powers of two, so that no digit changes."""
    f, g, cost, bound, own = plan.relative
    factor = (own / unit) ** plan.p
    largest = torch.finfo(f.dtype).max
    f, g = ((h * factor[:, None]).clamp(max=largest) for h in (f, g))
    return InUnits(f, g, cost * factor, bound * factor, unit)


def _placed(groups: list[Group], fibres: list[InUnits], both: Pair, side: str) -> Tensor:
    """Potentials of the fibres in the places of their atoms, (B, n)."""
    whole = torch.zeros_like(both.w if side == "f" else both.v)
    places = [(g.atoms if side == "f" else g.others).flatten() for g in groups]
    values = [getattr(fibre, side).flatten() for fibre in fibres]
    return whole.flatten().index_put((torch.cat(places),), torch.cat(values)).reshape(whole.shape)


def _padded(
    groups: list[Group], plans: list[ExactTransport], theta: list[Tensor], both: Pair
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and masses of all fibres, (B, K); members with fewer are filled up without mass."""
    n, m = both.w.shape[-1], both.v.shape[-1]
    pairs = list(zip(groups, plans, strict=True))
    rows = torch.cat([g.atoms.gather(-1, plan.rows).flatten() for g, plan in pairs])
    cols = torch.cat([g.others.gather(-1, plan.cols).flatten() for g, plan in pairs])
    mass = torch.cat([(t[:, None] * plan.mass).flatten() for t, plan in zip(theta, plans, strict=True)])
    member, order = (rows // n).sort(stable=True)
    count = torch.bincount(member, minlength=len(both.w))
    place = member, places(count)
    blank = rows.new_zeros(len(both.w), int(count.max()))
    rows, cols = (blank.index_put(place, z[order]) for z in (rows % n, cols % m))
    return rows, cols, mass.new_zeros(blank.shape).index_put(place, mass[order])


# --- relaxed -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class RelaxedConditional:
    """Distances in which a label may move by |s - s'| at the price beta |s - s'|^2, for increasing beta.

    Attributes:
        betas: the prices, (k,).
        values: the distance for each of them, (k, *batch); they increase towards ``conditional``.
        moved: sum_ij P_ij |s_i - s'_j|^2 for each of them, (k, *batch): how far the labels have moved.
        conditional: `conditional_wasserstein`, infinite for members whose laws of labels differ; (*batch,).
        status: "ok", or what went wrong; an array of these for a batch.
    """

    betas: Tensor
    values: Tensor
    moved: Tensor
    conditional: Tensor
    status: Any

    @property
    def distance(self) -> Tensor:
        """The distance for the last beta, (*batch,)."""
        return self.values[-1]

    @property
    def shortfall(self) -> Tensor:
        """How far it is below the conditional distance, (*batch,)."""
        return self.conditional - self.distance

    def __repr__(self) -> str:
        batch = f", batch={tuple(self.conditional.shape)}" if self.conditional.ndim else ""
        ended = status.summary(self.status)
        return (
            f"RelaxedConditional({len(self.betas)} betas up to {self.betas[-1]:g}{batch}, status={ended!r})"
        )


def relaxed_conditional(
    mu: Measure, nu: Measure, betas: Any, *, on_failure: Literal["raise", "return"] = "raise"
) -> RelaxedConditional:
    """D_beta = (min_P sum_ij P_ij (beta |s_i - s'_j|^2 + |x_i - y_j|^2))^(1/2), (*batch,), for each beta.

    W2 of the tokens together with their labels. It is finite also where the laws of the labels differ, which
    is what it is for. Where they agree, it increases in beta to the conditional distance, which it reaches
    once sqrt(beta) times the smallest distance of labels exceeds the largest of tokens: then moving mass from
    one label to another costs more than it can gain. Each beta starts from the plan of the one before.

    Args:
        mu, nu: labelled `Particles` in R^d.
        betas: one price or several, increasing.
        on_failure: "raise" raises `ConvergenceError`, which carries the result, if a plan is not certified;
            "return" returns it.

    >>> from otflow.transport import relaxed_conditional
    >>> import otflow as of
    >>> mu, nu = of.Particles([[0.0], [1.0]], label=[0, 1]), of.Particles([[1.0], [0.0]], label=[0, 1])
    >>> relaxed = relaxed_conditional(mu, nu, [0.25, 4.0])
    >>> relaxed.values, relaxed.moved, relaxed.shortfall.item()
    (tensor([0.5000, 1.0000], dtype=torch.float64), tensor([1., 0.], dtype=torch.float64), 0.0)
    """
    loud = checks.raises(on_failure)
    prices, (limit, codes) = _prices(betas), _limit(mu, nu)
    plans: list[Any] = []
    origin = _label(mu, "mu").amin(-1, keepdim=True)
    for beta in prices.tolist():
        lifted = (_lifted(one, beta, origin) for one in (mu, nu))
        try:
            plans.append(w2(*lifted, start=plans[-1] if plans else None))
        except ConvergenceError as error:
            plans.append(error.result)
    codes = torch.stack([codes, *(plan.codes for plan in plans)]).amax(0)
    result = RelaxedConditional(
        prices,
        rounded(torch.stack([plan.distance for plan in plans]).double(), mu.dtype, "distance"),
        rounded(torch.stack([_moved(plan, mu, nu) for plan in plans]), mu.dtype, "moved"),
        limit,
        status.names(codes),
    )
    if loud and bool((codes > 0).any()):
        raise ConvergenceError(
            "relaxed_conditional: not all plans are certified; "
            "on_failure='return' returns them with their status.",
            result,
        )
    return result


def _prices(betas: Any) -> Tensor:
    prices = checks.tensor(betas, "betas").detach().double().cpu()
    prices = prices[None] if prices.ndim == 0 else prices
    if prices.ndim != 1 or not len(prices) or (prices <= 0).any() or (prices.diff() <= 0).any():
        checks.fail("betas", f"{betas!r:.60}", "prices are positive and increase", "pass 1.0, or [1.0, 10.0]")
    return prices


def _limit(mu: Measure, nu: Measure) -> tuple[Tensor, Tensor]:
    """The conditional W2, infinite where the labels have different laws, and its status, (*batch,) each."""
    both, ours, theirs = _fibred(mu, nu)
    rule = "labels are one more coordinate of R^d"
    checks.require(both.space == Euclidean(), "mu.space", both.space, rule, "use Euclidean()")
    unlike = _unlike(ours, theirs, SAME[mu.dtype])
    alike = torch.ones(len(both.w), dtype=torch.bool, device=both.w.device)
    if unlike is not None:
        alike[unlike[:, 0].long()] = False
        ours, theirs = (_of_members(f, alike) for f in (ours, theirs))
    d, codes = torch.full_like(both.w[:, 0], torch.inf), torch.zeros_like(alike, dtype=torch.long)
    if bool(alike.any()):
        some, codes = _distance(both, ours, theirs, 2.0)
        d = torch.where(alike, rounded(some, mu.dtype, "distance").double(), d)
    return d.reshape(both.batch).to(mu.dtype), codes.reshape(both.batch)


def _of_members(fibres: Fibres, some: Tensor) -> Fibres:
    member, label, mass, start, size = (a[some[fibres.member]] for a in fibres[:-1])
    return Fibres(member, label, mass, start, size, fibres.atom)


def _lifted(mu: Measure, beta: float, origin: Tensor) -> Particles:
    """(x, sqrt(beta) s), with labels counted from ``origin`` so that large ones keep their digits."""
    s = beta**0.5 * (_label(mu, "mu") - origin)
    x, w, _ = atoms(mu)
    x, w = x.double().expand(*s.shape, -1), w.double().expand(s.shape)
    return Particles(torch.cat([x, s[..., None]], -1), w)


def _moved(plan: Any, mu: Measure, nu: Measure) -> Tensor:
    ours, theirs = (
        _label(one, name).expand(*plan.batch, -1).gather(-1, index)
        for one, name, index in ((mu, "mu", plan.rows), (nu, "nu", plan.cols))
    )
    return (plan.mass * (ours - theirs).square()).sum(-1)
