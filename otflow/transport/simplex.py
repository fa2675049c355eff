"""One transport problem by network simplex, with a proof of optimality, in numpy.

    min sum_ij P_ij c_ij,   c_ij = (D_ij / unit)^p,   over P >= 0 with marginals a and b.

POT's simplex computes with absolute errors of about 1e-16 (n + m) max c, and calls the result optimal. Two
tight clusters far apart are beyond it: all costs that matter drown in the rounding of those that do not.
So nothing is believed that is not proved. Potentials with f_i + g_j <= c_ij give the lower bound

    sum_i a_i f_i + sum_j b_j g_j <= value,

and the answer counts as certified if both sides agree up to `TOL`. If they do not, distances are cut off at
a small multiple of the longest one in use and the problem is solved again at that scale. Cutting off lowers
costs only, so what was proved for the new costs holds for the old ones as well; and each round gains ten or
more digits, since the mass that travels far, if any, was found in the round before.

Weights are known up to rounding only. Two clusters whose masses agree up to (n + m) units of rounding count
as equal, or else 1e-17 of mass that travels far would outweigh 1e-8 travelled by all the rest.
"""

from __future__ import annotations

import inspect
import math
import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from otflow import checks
from otflow.kernels import row_tiles
from otflow.status import code

Array = np.ndarray[Any, np.dtype[Any]]

TOL = 1e-9  # relative duality gap of a certified answer
LOST = 1e-12  # mass by which the marginals of an answer may be wrong
LEVELS = 8  # scales to try
MARGIN = 4.0  # between the cost at which the next one cuts off and the largest cost in use
PIVOTS = 10_000  # of the simplex, per atom
WIDTH = 12  # edges per atom to look at first when potentials of a nearby problem are known
ROUNDS = 4  # of adding edges to these
FEW = 3  # violated edges per atom, beyond which the nearby problem was not near
SMALL = 2**14  # pairs up to which that is not worth the trouble
EPS, MAX = np.finfo(np.float64).eps, np.finfo(np.float64).max


class Problem(NamedTuple):
    """Distances and weights of sum one."""

    D: Array  # (n, m)
    a: Array  # (n,)
    b: Array  # (m,)
    p: float

    def costs(self, unit: float) -> Array:
        """(D / unit)^p."""
        with np.errstate(over="ignore", under="ignore"):
            c = self.D / unit
            return np.power(c, self.p, out=c) if self.p not in (1, 2) else c if self.p == 1 else c * c


class Edges(NamedTuple):
    """What a solver says: a plan, and potentials of its rows; neither is believed."""

    rows: Array  # (k,)
    cols: Array  # (k,)
    mass: Array  # (k,)
    f: Array  # (n,)
    code: int


class Answer(NamedTuple):
    """A sparse plan and feasible potentials; values in units of unit^p."""

    rows: Array  # (k,)
    cols: Array  # (k,)
    mass: Array  # (k,)
    f: Array  # (n,)
    g: Array  # (m,)
    value: float
    bound: float
    unit: float
    code: int
    reach: float  # the longest distance in use
    lost: float  # mass by which the marginals are wrong

    @property
    def error(self) -> float:
        """|value - bound| / value, if that has a meaning."""
        if self.reach == 0 and self.lost <= LOST:
            return 0.0
        if self.lost > LOST or not 0 < self.value < math.inf or not math.isfinite(self.bound):
            return math.inf
        return abs(self.value - self.bound) / self.value


class Guess(NamedTuple):
    """The answer to a nearby problem; potentials in units of distance^p."""

    rows: Array  # (k,)
    cols: Array  # (k,)
    mass: Array  # (k,)
    f: Array  # (n,)


def couple(D: Array, a: Array, b: Array, start: Guess | None, p: float) -> Answer:
    """The optimal plan for distances D (n, m) and weights a (n,), b (m,) of sum one, some maybe 0."""
    whole, i, j = Problem(D, a, b, p), np.flatnonzero(a), np.flatnonzero(b)
    if len(i) == len(a) and len(j) == len(b):
        return (_nearby(whole, start) if start is not None and D.size > SMALL else None) or _levels(whole)
    answer = _levels(Problem(np.ascontiguousarray(D[np.ix_(i, j)]), a[i], b[j], p))
    f, g = _extend(whole.costs(answer.unit), answer, i, j)
    return answer._replace(rows=i[answer.rows], cols=j[answer.cols], f=f, g=g)


def _extend(c: Array, answer: Answer, i: Array, j: Array) -> tuple[Array, Array]:
    """Potentials also of atoms without mass: the largest ones that are feasible."""
    f, g = np.full(len(c), -np.inf), np.full(c.shape[1], -np.inf)
    f[i], g[j] = answer.f, answer.g
    rest = np.flatnonzero(np.isinf(f))
    f[rest] = _rows(c[np.ix_(rest, j)], answer.g)
    rest = np.flatnonzero(np.isinf(g))
    g[rest] = _rows(c[:, rest].T, f)
    return f, g


def _levels(problem: Problem) -> Answer:
    """Solve with distances cut off at lower and lower levels until the answer is certified."""
    answers: list[Answer] = []
    level, low, high = reachable(problem.D.max()), 0.0, math.inf
    while low <= level < high and len(answers) < LEVELS:
        answers.append(_at_level(problem, level))
        reach = answers[-1].reach
        if answers[-1].error <= TOL:
            return answers[-1]._replace(code=0)
        if reach > level:  # what was cut off is in use: too low
            low, level = level, math.sqrt(level * high)
        else:
            high, level = level, max(MARGIN ** (1 / problem.p) * reach, math.sqrt(low * level))
    best = min(answers, key=lambda answer: answer.error)
    return best._replace(code=best.code or code("uncertified"))


def _at_level(problem: Problem, level: float) -> Answer:
    """The answer for the distances min(D, level), with what it proves for D."""
    unit = unit_of(level)
    c, cut = problem.costs(unit), (level / unit) ** problem.p or 1.0
    edges = _dense(problem, np.minimum(c, cut) / cut)
    edges = edges._replace(f=cut * edges.f)
    answer = _answer(problem, edges, c, unit)
    if answer.error <= TOL or not len(edges.mass):
        return answer
    better = _answer(problem, edges._replace(f=_along_tree(edges, c)), c, unit)
    return better if better.error < answer.error else answer


def _nearby(problem: Problem, start: Guess) -> Answer | None:
    """The plan ``start`` if it is optimal here too, else one of edges nearly tight for its potentials.

    Edges that the result violates are added until there are none. None if all of this proves nothing.
    """
    unit = unit_of(problem.D.max())
    c = problem.costs(unit)
    with np.errstate(all="ignore"):
        f = start.f / np.float64(unit) ** problem.p
    if not np.isfinite(f).all():
        return None
    answer = _answer(problem, Edges(*start[:3], f, 0), c, unit)
    return answer if answer.error <= TOL else _on_few_edges(problem, start, _slack(c, f))


def _on_few_edges(problem: Problem, start: Guess, slack: Array) -> Answer | None:
    D, count = problem.D, WIDTH * max(slack.shape)
    if count >= D.size // 2 or not _has_sparse():
        return None
    chosen = slack <= np.partition(slack, count, axis=None)[count]
    chosen[start.rows, start.cols] = True
    unit = unit_of(D[chosen].max())
    c = problem.costs(unit)
    for _ in range(ROUNDS):
        edges, g = _sparse(problem, c, chosen)
        answer = _answer(problem, edges, c, unit)
        if edges.code == 0 and answer.error <= TOL:
            return answer
        violated = c - edges.f[:, None] < g
        if edges.code or violated.sum() > FEW * max(D.shape):
            return None
        chosen |= violated
    return None


def _answer(problem: Problem, edges: Edges, c: Array, unit: float) -> Answer:
    """The plan without noise, with potentials made feasible, and what they prove."""
    D, a, b, _ = problem
    rows, cols, mass = _without_noise(edges, a, b)
    with np.errstate(over="ignore", invalid="ignore"):  # where far pairs cost more than floating point knows
        g = _columns(c, edges.f)
        f = _rows(c, g)
        value, bound = float(mass @ c[rows, cols]), float(a @ f + b @ g)
    lost = max(np.abs(np.bincount(k, mass, len(w)) - w).sum() for k, w in ((rows, a), (cols, b)))
    reach = float(D[rows, cols].max(initial=0.0))
    return Answer(rows, cols, mass, f, g, value, max(bound, 0.0), unit, edges.code, reach, lost)  # costs >= 0


def _along_tree(edges: Edges, c: Array) -> Array:
    """Potentials f without the rounding errors of the simplex: exact along a tree of tight edges.

    These are the edges that carry mass, joined by others that are nearly tight.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    n, m = c.shape
    slack = _slack(c, edges.f)
    slack[edges.rows, edges.cols] = -1.0
    near = np.argpartition(slack, min(2 * (n + m), slack.size - 1), axis=None)[: 2 * (n + m)]
    near = near[np.argsort(slack.flat[near])]
    rows, cols = np.divmod(near, m)
    graph = coo_array((np.arange(1.0, len(near) + 1), (rows, n + cols)), shape=(n + m, n + m))
    up = breadth_first_order(minimum_spanning_tree(graph), edges.rows[0], directed=False)[1]
    step = np.concatenate([edges.f, _columns(c, edges.f)])
    hung = np.flatnonzero(up >= 0)
    step[hung] = c[np.minimum(hung, up[hung]), np.maximum(hung, up[hung]) - n]
    return _unroll(step, np.where(up >= 0, up, np.arange(n + m)), np.where(up >= 0, -1.0, 0.0))[:n]


def _unroll(step: Array, up: Array, sign: Array) -> Array:
    """h with h_v = step_v + sign_v h_up(v), by doubling the steps; sign is 0 at roots."""
    while sign.any():
        step, sign, up = step + sign * step[up], sign * sign[up], up[up]
    return step


def _without_noise(edges: Edges, a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Edges whose mass is not there by the rounding of weights alone."""
    noise = negligible(edges.mass, a[edges.rows], b[edges.cols], len(a) + len(b))
    return edges.rows[~noise], edges.cols[~noise], edges.mass[~noise]


def negligible(mass: Any, a: Any, b: Any, atoms: int) -> Any:
    """Whether mass is within the rounding of all weights, and next to nothing for both of its atoms."""
    return (mass <= atoms * EPS) & (mass <= 1e-6 * a) & (mass <= 1e-6 * b)


def _columns(c: Array, f: Array) -> Array:
    """g_j = min_i c_ij - f_i."""
    tiles = row_tiles(len(c), c.shape[1])
    g: Array = np.minimum(np.min([(c[rows] - f[rows, None]).min(0) for rows in tiles], 0), MAX)
    return g


def _rows(c: Array, g: Array) -> Array:
    """f_i = min_j c_ij - g_j, or just below, so that rounding breaks no constraint."""
    tiles = row_tiles(len(c), c.shape[1])
    f = np.concatenate([np.empty(0), *((c[rows] - g).min(1) for rows in tiles)])
    below: Array = np.nextafter(np.minimum(f, MAX), -np.inf)
    return below


def _slack(c: Array, f: Array) -> Array:
    """c_ij - f_i - g_j for the best g."""
    return (c - f[:, None]) - _columns(c, f)


def reachable(distance: float) -> float:
    """The distance itself, if floating point knows it."""
    if not math.isfinite(distance):
        checks.fail("the largest distance", distance, "it is beyond floating point", "rescale the points")
    return float(distance)


def unit_of(distance: float) -> float:
    """A power of two just above a distance: dividing by it changes no digit."""
    return math.ldexp(1.0, min(math.frexp(reachable(distance))[1], 1023)) if distance > 0 else 1.0


def _dense(problem: Problem, c: Array) -> Edges:
    plan, f, _, status = _emd(problem, c)
    rows, cols = np.nonzero(plan)
    return Edges(rows, cols, plan[rows, cols], f, status)


def _sparse(problem: Problem, c: Array, chosen: Array) -> tuple[Edges, Array]:
    from scipy.sparse import coo_array

    rows, cols = np.nonzero(chosen)
    plan, f, g, status = _emd(problem, coo_array((c[rows, cols], (rows, cols)), shape=c.shape))
    plan = plan.tocoo()
    return Edges(plan.row.astype(np.int64), plan.col.astype(np.int64), plan.data, f, status), g


def _emd(problem: Problem, c: Any) -> tuple[Any, Array, Array, int]:
    """POT's plan, potentials and status; its warnings say no more than the status."""
    import ot

    pivots = PIVOTS * sum(c.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan, log = ot.emd(problem.a, problem.b, c, numItermax=pivots, log=True, check_marginals=False)
    return plan, log["u"], log["v"], {1: 0, 3: code("max_iter")}.get(log["result_code"], code("uncertified"))


@cache
def _has_sparse() -> bool:
    """Whether POT takes sparse costs, as it does since it takes potentials to start from."""
    import ot

    return "potentials_init" in inspect.signature(ot.emd).parameters
