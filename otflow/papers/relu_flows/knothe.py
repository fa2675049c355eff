"""Knothe-Rosenblatt maps by staircases and one monotone map per coordinate (our construction).

`otflow.papers.relu_flows` offers `knothe_rosenblatt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm, qmc
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import InputError
from otflow.base.numbers import Array
from otflow.papers.relu_flows.laws import Law, TailEnd, is_law, obstruction, on_the_line
from otflow.papers.relu_flows.pieces import PiecewiseFlow
from otflow.papers.relu_flows.shears import joined, monotone, shear, staircase
from otflow.papers.relu_flows.transport import GAP, ReluTransport, levels, quantiles, rounded

SPAN = float(norm.cdf(-4.5))  # levels at which slabs end: 3.4e-6, or 4.5 standard deviations of a Gaussian
STRAIGHT = 1e-9  # nodes that are this near to the line through their neighbours are left out
ROOM = 1.5  # the distance of windows over the width of what lies in them
FINE = 4  # nodes of the shear by the conditional median, for each slab
MOST = 1_000_000  # nodes in all, which grow like K^d
SAMPLES = 2**24  # at most
Target = Callable[[int, Array], Law]


def knothe_rosenblatt(
    base: Sequence[Law],
    target: Callable[[int, Array], Law],
    K: int,
    *,
    nodes: int | None = None,
    centre: bool = False,
    tail: float = SPAN,
    delta: float = 1e-5,
    samples: int = 2**15,
    rng: int | np.random.Generator = 0,
) -> ReluTransport:
    """y_j = F*_j^-1(F_j(x_j) | y_1, .., y_(j-1)) for j = 1..d, constant on slabs of earlier coordinates.

    For each j, staircases lift x_j by H for each slab of the earlier coordinates, so that K^(j-1) windows of
    x_j hold one conditional law each; one monotone map of x_j carries all conditional maps; the lift is
    undone. Of the order K^d pieces in general, since windows need nodes. Nodes on a line are dropped: affine
    conditional maps in two dimensions with the first coordinate in place need 6 K - 3. KL decays like K^-2,
    the L2 error like K^-1. With ``centre`` conditional medians are taken off first and put back by an exact
    piecewise linear shear, 4 K + 2 pieces more for each earlier coordinate, and KL is far smaller.

    A base without full support may leave target mass uncovered in strips of measure K delta, where
    conditional maps are mixed: KL is then infinite, and seen to be so only if a sample falls there.

    Args:
        base: d laws, one for each coordinate, independent.
        target: target(j, y) is the conditional law of coordinate j (from 0) given the earlier ones y (n, j),
            with methods that broadcast over n: ``scipy.stats.norm(mean(y), scale(y))``.
        K: number of slabs along each coordinate.
        nodes: for the conditional maps, K + 1 if None.
        centre: along one earlier coordinate at a time, the others at the middle; exact if medians add up.
        tail: level at which nodes and slabs end.
        delta: width of the strips in which staircases climb.
        samples: how many, for the estimates of KL, TV and L2.
        rng: a seed or a `numpy.random.Generator`, for these samples.

    >>> from otflow.papers.relu_flows import knothe_rosenblatt
    >>> from scipy.stats import norm
    >>> import numpy as np
    >>> law = lambda j, y: norm(0.5 * y[:, 0], 0.9) if j else norm(np.zeros(len(y)), 1)
    >>> rough, fine = (knothe_rosenblatt([norm(), norm()], law, K) for K in (9, 18))
    >>> rough.pieces, fine.pieces, round(rough.kl / fine.kl)
    (51, 105, 4)

    Reference: regular maps such as Knothe-Rosenblatt's are announced in Geshkovski, Ruiz-Balet 2026, arXiv
    2602.08606, and Alvarez-Lopez, Geshkovski, Ruiz-Balet 2025, arXiv 2412.19366; the construction is ours.
    """
    laws = _laws(base)
    plan = _Plan(
        laws,
        checks.function(target, "target"),
        checks.count(K, "K"),
        checks.count(K + 1 if nodes is None else nodes, "nodes"),
        bool(centre),
        checks.number(tail, "tail"),
        checks.positive(delta, "delta"),
    )
    _affordable(plan, checks.count(samples, "samples"))
    flow, edges, why = PiecewiseFlow.identity(len(laws)), list[Array](), list[str]()
    for j in range(len(laws)):
        step = _coordinate(plan, j, edges)
        flow, edges, why = flow.then(step.flow), [*edges, step.edges], why + [step.why] * bool(step.why)
    return _measured(plan, flow, why[0] if why else None, samples, rng)


class _Plan(NamedTuple):
    """What was asked for."""

    base: list[Law]
    target: Target
    K: int
    nodes: int
    centre: bool
    tail: float
    delta: float


class _Step(NamedTuple):
    """The pieces for one coordinate, the edges of its slabs for those that follow, and an obstruction."""

    flow: PiecewiseFlow
    edges: Array
    why: str


def _coordinate(plan: _Plan, j: int, edges: list[Array]) -> _Step:
    """Lift, one monotone map, drop; then the shear by medians, if they were taken off."""
    d = len(plan.base)
    places = _grid([(e[1:] + e[:-1]) / 2 for e in edges])  # (n, j), centres of the cells of slabs
    u = np.broadcast_to(levels(plan.nodes, plan.tail)[:, None], (plan.nodes, len(places)))
    x = quantiles(plan.base[j], u[:, 0], f"base[{j}]")
    y = _conditional(plan, j, places, u)  # (nodes, n)
    medians = _medians(plan, j, edges) if plan.centre else []
    bare = y - sum((np.interp(places[:, i], t, g) for i, (t, g) in enumerate(medians)), np.zeros(len(places)))
    H = ROOM * max(np.ptp(x), np.ptp(bare))
    lifts = [
        staircase(
            e[1:-1], np.full(plan.K - 1, H * plan.K ** (j - 1 - i)), delta=plan.delta, source=i, target=j, d=d
        )
        for i, e in enumerate(edges)
        if plan.K > 1
    ]
    shift = H * np.arange(len(places))[:, None]
    within = _carried((x + shift).ravel(), (bare.T + shift).ravel(), j, d)
    shears = [shear(t, g, source=i, target=j, d=d) for i, (t, g) in enumerate(medians)]
    if len(within):  # nothing needs to be lifted for the identity
        within = joined(*lifts, within, *(lift.reversed for lift in reversed(lifts)))
    why = _why(plan, j, places, x, y)
    return _Step(joined(within, *shears), np.linspace(y.min(), y.max(), plan.K + 1), why or "")


def _carried(x: Array, y: Array, j: int, d: int) -> PiecewiseFlow:
    """The monotone map through all nodes, less those on a line; nothing at all for the identity."""
    if bool((np.abs(y - x) < STRAIGHT).all()):
        return PiecewiseFlow.identity(d)
    keep = _corners(x, y)
    return monotone(x[keep], y[keep], axis=j, d=d)


def _corners(x: Array, y: Array) -> Array:
    """The nodes that are off the line through the two beside them; both ends stay."""
    keep = np.ones(len(x), dtype=bool)
    line = y[:-2] + (y[2:] - y[:-2]) * (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    keep[1:-1] = np.abs(y[1:-1] - line) > STRAIGHT * np.maximum(1.0, np.abs(y[2:] - y[:-2]))
    return keep


def _medians(plan: _Plan, j: int, edges: list[Array]) -> list[tuple[Array, Array]]:
    """Nodes and values of one function per earlier coordinate, the others held at the middle."""
    middle = np.array([(e[0] + e[-1]) / 2 for e in edges])
    out = []
    for i, e in enumerate(edges):
        t = np.linspace(e[0], e[-1], FINE * plan.K + 1)
        line = np.tile(middle, (len(t), 1))
        line[:, i] = t
        g = _conditional(plan, j, line, np.full((1, len(t)), 0.5))[0]
        at_middle = _conditional(plan, j, middle[None], np.full((1, 1), 0.5))[0, 0]
        out.append((t, g - at_middle if i else g))
    return out


def _conditional(plan: _Plan, j: int, places: Array, u: Array) -> Array:
    """Quantiles (m, n) of the conditional laws at places (n, j), for levels u (m, n)."""
    law = is_law(plan.target(j, places), f"target({j}, y)")
    try:
        found = quantiles(law, u, f"target({j}, y)")
    except InputError:
        raise
    except ValueError:
        found = np.zeros(0)
    if found.shape != u.shape:
        rule = f"its methods must broadcast over {len(places)} places"
        checks.fail(f"target({j}, y)", f"{law!r:.60}", rule, "give it arrays of that length, or numbers")
    return found


def _why(plan: _Plan, j: int, places: Array, x: Array, y: Array) -> str | None:
    """Whether conditional laws have tails that an affine map of base cannot have."""
    law, slope = plan.target(j, places), np.diff(y, axis=0) / np.diff(x)[:, None]
    ends = TailEnd(x[0], y[0], slope[0], False), TailEnd(x[-1], y[-1], slope[-1], True)
    found = obstruction(plan.base[j], law, ends)
    return found and f"coordinate {j}: {found}"


def _grid(axes: list[Array]) -> Array:
    """All combinations (n, j), the last coordinate fastest; one empty place for j = 0."""
    return (
        np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes)) if axes else np.zeros((1, 0))
    )


# --- how good it is ------------------------------------------------------------------------------------


def _measured(plan: _Plan, flow: PiecewiseFlow, why: str | None, samples: int, rng: Any) -> ReluTransport:
    """KL, TV and L2 at points of a scrambled Sobol sequence, carried by the exact map."""
    d = len(plan.base)
    sobol = qmc.Sobol(d, rng=checks.generator(rng))
    u = np.clip(sobol.random_base2(max(int(np.ceil(np.log2(samples))), 1)), 1e-12, 1 - 1e-12)
    x = np.stack([np.asarray(law.ppf(u[:, j])) for j, law in enumerate(plan.base)], -1)
    y, log_target = np.zeros((len(u), 0)), np.zeros(len(u))
    for j in range(d):
        law = plan.target(j, y)
        new = np.broadcast_to(law.ppf(u[:, j]), len(u))
        log_target = log_target + law.logpdf(new)
        y = np.concatenate([y, new[:, None]], 1)

    def log_base(points: Tensor) -> Array:
        columns = points.numpy().T
        return np.asarray(sum(law.logpdf(c) for law, c in zip(plan.base, columns, strict=True)))

    with np.errstate(divide="ignore", invalid="ignore"):
        g = log_target - flow.log_density(y, log_base).numpy()
    g = np.where(np.isfinite(log_target), g, 0.0)  # at ends of supports, by rounding
    why = why or (GAP if bool(np.isposinf(g).any()) else None)
    l2 = float(np.sqrt(((flow(x).numpy() - y) ** 2).sum(-1).mean()))
    kl = np.inf if why else float(g.mean())
    error = 0.0 if why else float(g.std() / np.sqrt(len(g)))
    tv = float(-np.expm1(-np.maximum(g, 0.0)).mean())
    return ReluTransport(flow, rounded(kl), rounded(tv), rounded(l2), rounded(error), why)


def _laws(base: Any) -> list[Law]:
    if not isinstance(base, Sequence) or isinstance(base, str) or not len(base):
        checks.fail("base", f"{base!r:.60}", "a list of laws, one per coordinate, is needed", "use [law] * d")
    return [on_the_line(law, f"base[{j}]") for j, law in enumerate(base)]


def _affordable(plan: _Plan, samples: int) -> None:
    most = plan.nodes * plan.K ** (len(plan.base) - 1)
    if plan.nodes < 2:
        checks.fail("nodes", plan.nodes, "at least 2 are needed", f"pass nodes={plan.K + 1}, or leave it out")
    if most > MOST:
        checks.fail(
            "nodes K^(d-1)",
            most,
            f"more than {MOST} nodes are too many",
            f"pass K={int((MOST / plan.nodes) ** (1 / max(1, len(plan.base) - 1)))} or less",
        )
    if samples > SAMPLES:
        checks.fail("samples", samples, f"more than {SAMPLES} are too many", f"pass samples={SAMPLES}")
