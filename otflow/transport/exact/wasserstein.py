"""Exact optimal transport between clouds of atoms, with a certificate, and the Wasserstein distances."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import singledispatch
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import refuse_func
from otflow.base.errors import ConvergenceError
from otflow.base.kernels import row_tiles
from otflow.base.spaces import Euclidean, Space
from otflow.measures import Gaussian, Grid, Measure, Particles, Quantiles
from otflow.transport.bures.gaussian_transport import GaussianTransport, solve_gaussians
from otflow.transport.bures.geometry import bures_wasserstein
from otflow.transport.comparable import Pair, exponent, pair, root
from otflow.transport.exact import densities, envelope, network_simplex
from otflow.transport.exact.column_generation import LazyDistances, distances
from otflow.transport.exact.line import line, units
from otflow.transport.exact.line_densities import line_distance, on_line
from otflow.transport.exact.plans import Coupling, ExactTransport, in_units
from otflow.transport.ranges import rounded

# Order p, at most: 2^500 and 2^-500, powers of numbers between 1/2 and 2, are far from the ends of float64.
LARGEST = 500
LARGE = 2**25  # pairs of atoms, beyond which not all distances are held at once; chosen: 256 MB
BYTES = 64  # of memory per pair of atoms while the simplex works, up to `LARGE`: eight numbers
SPARSE = 2**14  # of memory per atom, beyond


@overload
def solve(
    mu: Gaussian,
    nu: Gaussian,
    p: float = 2,
    *,
    start: ExactTransport | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> GaussianTransport: ...


@overload
def solve(
    mu: Particles | Grid,
    nu: Particles | Grid,
    p: float = 2,
    *,
    start: ExactTransport | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> ExactTransport: ...


@overload
def solve(
    mu: Measure,
    nu: Measure,
    p: float = 2,
    *,
    start: ExactTransport | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> ExactTransport | GaussianTransport: ...


def solve(
    mu: Measure,
    nu: Measure,
    p: float = 2,
    *,
    start: ExactTransport | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> ExactTransport | GaussianTransport:
    """The coupling P of mu and nu that minimises sum_ij P_ij d(x_i, y_j)^p, with a proof that it does.

    Between clouds and densities this is an `ExactTransport`, and d is the geodesic distance of the space. The
    plan is certified: its cost exceeds a lower bound from duality by at most 1e-9 of itself (``gap``), at
    every scale and also for tight clusters far apart, or else the status is not "ok". Masses are taken as
    known up to (n + m) units of rounding.

    On the line this takes O(n log n) time and O(n) memory. Elsewhere a network simplex takes about 0.1 s
    for 1000 atoms, 0.5 s for 2000 and then four to five times as much for twice as many, and 64 n m bytes up
    to n m = 2^25. Beyond, it looks only at the pairs of atoms that matter, in O(n) memory: 10000 atoms in the
    unit cube take 15 s and 0.2 GB, 20000 take 45 s and 0.2 GB, and 50000 should take five minutes. Clumps of
    atoms, or p = 1 in the plane, take up to three times as long. What would take more memory than the machine
    has is refused before it starts.

    Between Gaussians the plan is known in closed form, for p = 2: a `GaussianTransport`.

    Args:
        mu, nu: `Particles` on the same space, or densities on a `Grid`, which count as atoms in the centres
            of the cells (so that moves below a cell come out too long: `wasserstein` knows better); or two
            `Gaussian`. Their batches broadcast. Labels are ignored: `solve_conditional` keeps them.
        p: the order, from 1 to 500.
        start: the plan of a nearby problem with as many atoms, say of the step before. It makes problems
            with 500 atoms or more two to five times faster as long as the atoms have moved by less than
            their spacing, and never makes the answer worse.
        on_failure: "raise" raises `ConvergenceError`, which carries the plan, if any member of the batch is
            not certified; "return" returns the plan, whose ``status`` says so.

    Reference: Peyre and Cuturi 2019, "Computational optimal transport", Sections 2.5 and 3.5.

    >>> from otflow import solve
    >>> import otflow as of
    >>> mu = of.Particles([[0.0, 0.0], [1.0, 0.0]])
    >>> nu = of.Particles([[1.0, 1.0], [0.0, 1.0], [0.0, 2.0]])
    >>> found = solve(mu, nu)
    >>> found.cost.item(), found.status
    (2.1667, 'ok')
    >>> f, g = found.potentials
    >>> (mu.w @ f + nu.w @ g).item()  # the lower bound
    2.1667
    """
    strict = checks.raises(on_failure)
    if isinstance(mu, Gaussian):
        return solve_gaussians(mu, _other_gaussian(nu, p))
    p, both = _order(p), pair(mu, nu)
    plan = in_units(_couple(both, p, start), p, both.batch)
    return _trusted(plan) if strict else plan


@singledispatch
def wasserstein(mu: Measure, nu: Measure, p: float = 2, *, start: ExactTransport | None = None) -> Tensor:
    """W_p(mu, nu) = (min_P sum_ij P_ij d(x_i, y_j)^p)^(1/p), shape (*batch,).

    Between atoms the minimum is exact and certified, see `solve`. Between two Gaussians, and between two
    quantile functions, there is a closed form for p = 2. Labels are ignored.

    A density on a `Grid` is constant on cells. On the line its distance to others, or to atoms, is exact by
    quantile functions for every p, also between different cells and far below a cell. In the plane and in
    space W2 between densities on the same cells that are close is |mu - nu|_{H^-1((mu + nu)/2)}, of second
    order in the cells and in the displacement over the length on which densities vary; between others cells
    count as atoms. Both come with bounds: what they do not determine to 5% is refused. Beside `Particles`
    cells in the plane count as atoms.

    Differentiable in points and weights by the envelope theorem, the plan standing still: right wherever the
    optimal plan (for weights: the pair of potentials) is unique, and else one of the possible slopes. The
    derivative is 0 where the distance is 0, and atoms that coincide with their image have the slope 0; second
    derivatives are refused there unless they exist, and so are those in weights and points together. Close
    densities in the plane have first derivatives only, and need mass in every cell for them.

    Args:
        mu, nu: `Particles` on the same space, densities on a `Grid`, two `Gaussian`, or two `Quantiles`.
        p: the order, from 1 to 500.
        start: the solution of a nearby problem, to save time.

    Raises:
        ConvergenceError: a distance is not known well enough; its ``result`` has what is known. Between
            densities in the plane that is a ``distance`` with bounds ``low`` and ``high``.

    Reference: Peyre 2018, "Comparison between W2 distance and H^-1 norm, and localization of Wasserstein
    distance".

    >>> from otflow import wasserstein
    >>> import otflow as of
    >>> wasserstein(of.Particles([[0.0, 0.0]]), of.Particles([[3.0, 0.0], [0.0, 4.0]]), p=1)
    tensor(3.5000, dtype=torch.float64)
    """
    p = _order(p)
    if on_line(mu, nu):
        return line_distance(mu, nu, p)
    if densities.admit(mu, nu):
        return _between_densities(mu, nu, p, start).distance
    both = pair(mu, nu)
    c = _couple(both, p, start)
    if bool((c.codes != 0).any()):
        _trusted(in_units(c, p, both.batch))
    return rounded(_value(both, c, p).reshape(both.batch), mu.dtype, "distance")


def _value(both: Pair, c: Coupling, p: float) -> Tensor:
    """The distance (B,), with derivatives."""
    return root(envelope.value(both, c, p), p) * c.unit


def _between_densities(mu: Any, nu: Any, p: float, start: Any) -> densities.DensityDistance:
    plan = start.plan if isinstance(start, densities.DensityDistance) else start

    def atoms(both: Pair) -> tuple[Tensor, ExactTransport]:
        fits = plan is not None and plan.relative.f.shape == (*both.batch, both.w.shape[-1])
        c = _couple(both, p, plan if fits else None)
        return _value(both, c, p), _trusted(in_units(c, p, both.batch))

    found = densities.between(mu, nu, p, atoms).trusted(mu)
    return replace(found, distance=rounded(found.distance, mu.dtype, "distance"))


def w2(mu: Measure, nu: Measure, *, start: Any = None) -> Any:
    """W2, or a plan for it that may serve as the next ``start``; distances have derivatives if asked for."""
    if on_line(mu, nu):
        return line_distance(mu, nu, 2.0)
    if densities.admit(mu, nu):
        return _between_densities(mu, nu, 2.0, start)
    both = pair(mu, nu)
    plan = _trusted(in_units(_couple(both, 2.0, start), 2.0, both.batch))
    if torch.is_grad_enabled() and (mu.requires_grad or nu.requires_grad):
        return replace(plan, distance=wasserstein(mu, nu, start=plan))
    return replace(plan, distance=rounded(plan.distance, mu.dtype, "distance"))


@wasserstein.register(Gaussian)
def _(mu: Gaussian, nu: Measure, p: float = 2, *, start: Any = None) -> Tensor:
    return bures_wasserstein(mu, _other_gaussian(nu, p))


@wasserstein.register(Quantiles)
def _(mu: Quantiles, nu: Measure, p: float = 2, *, start: Any = None) -> Tensor:
    rule = "between quantile functions only W2 is known"
    checks.require(p == 2, "p", repr(p), rule, "use p=2")
    return mu.distance(checks.instance(nu, Quantiles, "nu"))


def _other_gaussian(nu: Measure, p: float) -> Gaussian:
    """nu, if it and p are what the closed form between Gaussians needs."""
    if not isinstance(nu, Gaussian):
        checks.fail(
            "nu", repr(nu), "mu is a Gaussian, which has no atoms", "sample mu, or pass two Gaussians"
        )
    checks.require(p == 2, "p", repr(p), "between Gaussians only p = 2 is known", "use p=2, or sample both")
    return nu


def _order(p: float) -> float:
    p = exponent(p)
    rule = f"beyond {LARGEST} powers of distances leave floating point"
    checks.require(p <= LARGEST, "p", p, rule, f"pass p={LARGEST} or less")
    return p


def _trusted(plan: ExactTransport) -> ExactTransport:
    """The plan itself, or an error unless all of it is certified."""
    bad = plan.codes != 0
    if bool(bad.any()):
        gap = plan.gap[bad].max().item()
        raise ConvergenceError(
            f"{int(bad.sum())} of {bad.numel()} transport plans are not certified (relative gap up to "
            f"{gap:.1g}, {network_simplex.TOL:g} allowed); on_failure='return' returns the plan.",
            plan,
        )
    return plan


def _couple(both: Pair, p: float, start: ExactTransport | None) -> Coupling:
    """Certified plans, on the cheapest way there is."""
    x, y = checks.finite(both.x.detach(), "mu"), checks.finite(both.y.detach(), "nu")
    w, v = checks.finite(both.w.detach(), "weights of mu"), checks.finite(both.v.detach(), "weights of nu")
    a, b = w / w.sum(-1, keepdim=True), v / v.sum(-1, keepdim=True)
    if x.shape[-2] == 1 or y.shape[-2] == 1:
        return _product(both.space, x, y, a, b, p)
    if isinstance(both.space, Euclidean) and x.shape[-1] == 1:
        return line(x[..., 0], y[..., 0], a, b, p)
    _check_memory(a.shape[-1], b.shape[-1])
    guesses = _guesses(start, both)
    return Coupling(*(z.to(x.device) for z in _stack(_answers(both.space, x, y, a, b, p, guesses))))


def _product(space: Space, x: Tensor, y: Tensor, a: Tensor, b: Tensor, p: float) -> Coupling:
    """The only coupling with a single atom."""
    distance, mass = space.pairwise(x, y).flatten(1), (a[:, :, None] * b[:, None, :]).flatten(1)
    unit = units(torch.where(mass > 0, distance, 0.0).amax(-1))
    c = ((distance / unit[:, None]) ** p).clamp(max=torch.finfo(mass.dtype).max)
    value = (mass * c).sum(-1)
    alone = x.shape[-2] == 1
    f, g = (torch.zeros_like(a), c) if alone else (c, torch.zeros_like(b))
    k = torch.arange(c.shape[-1], device=x.device).expand(c.shape)
    rows, cols = (torch.zeros_like(k), k) if alone else (k, torch.zeros_like(k))
    return Coupling(rows, cols, mass, f, g, value, value, unit, torch.zeros_like(rows[:, 0]))


def _check_memory(n: int, m: int) -> None:
    """Refuse a problem that does not fit into memory, because else the system would kill the process."""
    need, have = SPARSE * (n + m) if _is_large(n, m) else BYTES * n * m, _memory()
    if need > have:
        checks.fail(
            "n, m",
            (n, m),
            f"exact transport would take {need / 2**30:.1f} GiB, and this machine has {have / 2**30:.1f} GiB",
            "use fewer atoms, sliced_wasserstein or sinkhorn_divergence",
        )


def _is_large(n: int, m: int) -> bool:
    """Whether to look at distances a tile at a time."""
    return n * m > LARGE


def _memory() -> int:
    """Bytes of this machine; a modest guess where it does not say."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 * 2**30


def _guesses(start: ExactTransport | None, both: Pair) -> list[network_simplex.Guess | None]:
    """A start for each member of the batch, from the plan of a nearby problem."""
    if start is None:
        return [None] * len(both.x)
    shapes = [(*both.batch, w.shape[-1]) for w in (both.w, both.v)]
    known = start.relative
    if [known.f.shape, known.g.shape] != shapes:
        checks.fail(
            "start", start, f"potentials of shapes {shapes[0]} and {shapes[1]} are needed", "leave it out"
        )
    parts = (z.reshape(len(both.x), -1).cpu().numpy() for z in (start.rows, start.cols, start.mass, known.f))
    units = known.unit.flatten().tolist()
    return [network_simplex.Guess(*each) for each in zip(*parts, units, strict=True)]


def _answers(
    space: Space,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    p: float,
    guesses: list[network_simplex.Guess | None],
) -> list[network_simplex.Answer]:
    """One member after the other; distances of many small ones at once."""
    refuse_func()
    weights = list(zip(a.cpu().numpy(), b.cpu().numpy(), guesses, strict=True))
    if _is_large(a.shape[-1], b.shape[-1]):
        clouds = zip(x, y, weights, strict=True)
        return [network_simplex.couple(LazyDistances(space, x, y), *each, p) for x, y, each in clouds]
    out = []
    for members in row_tiles(len(x), x.shape[-2] * y.shape[-2]):
        D = distances(space, x[members], y[members]).cpu().numpy()
        out += [network_simplex.couple(d, *each, p) for d, each in zip(D, weights[members], strict=True)]
    return out


def _stack(answers: list[network_simplex.Answer]) -> Coupling:
    """Answers as tensors; shorter plans repeat their last pair, without mass."""
    shape = len(answers), max(len(answer.mass) for answer in answers)
    rows, cols, mass = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    for i, answer in enumerate(answers):
        used = len(answer.mass)
        rows[i, :used], cols[i, :used], mass[i, :used] = answer[:3]
        rows[i, used:], cols[i, used:] = (z[-1] if used else 0 for z in answer[:2])
    f, g = (np.stack(z) for z in zip(*(answer[3:5] for answer in answers), strict=True))
    numbers = (np.array(z) for z in zip(*(answer[5:9] for answer in answers), strict=True))
    return Coupling(*(torch.from_numpy(z) for z in (rows, cols, mass, f, g, *numbers)))
