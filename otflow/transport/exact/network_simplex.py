"""The network simplex for one transport problem, with a proof of optimality, in numpy.

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

Large problems never see all costs at once. There the simplex works on few pairs, see `lazy`, and what it
says is proved by the same potentials, a tile of costs at a time.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from otflow.base import checks
from otflow.base.status import code
from otflow.transport.exact import column_generation

Array = np.ndarray[Any, np.dtype[Any]]

TOL = 1e-9  # relative duality gap of a certified answer; chosen
LOST = 1e-12  # mass by which the marginals of an answer may be wrong; chosen: some thousand roundings
LEVELS = 8  # levels at which distances are cut off, at most; chosen
MARGIN = 4.0  # factor between the cost at which the next level cuts off and the largest cost in use; chosen
PIVOTS = 10_000  # of the simplex per atom, at most; chosen
WIDTH = 20  # pairs per atom to begin with when potentials are nearly known, and to add in each round; chosen
ROUNDS = 200  # of adding pairs, at most; chosen
MOST = 60  # pairs per atom, beyond which the loosest ones are dropped; chosen
FEW = 8  # violated pairs per atom, beyond which a nearby problem was not near; chosen
SMALL = 2**17  # pairs up to which a whole problem is solved faster than a nearby one is used; chosen
# Mass of all atoms together where the simplex knows few pairs, because POT drops masses below 1e-15.
MASS = 2**12
COARSE = 2**20  # pairs of the smallest sample; chosen
SPARSER = 4  # atoms of a problem per atom of the sample that comes before it; chosen
EPS, MAX = np.finfo(np.float64).eps, np.finfo(np.float64).max
# Values below have lost digits, since some of their terms may be below the smallest number that has them all.
LEAST = np.finfo(np.float64).tiny / EPS


class SimplexProblem(NamedTuple):
    """Distances and weights of sum one."""

    D: Any  # (n, m): an array, or `lazy.Distances`
    a: Array  # (n,)
    b: Array  # (m,)
    p: float

    @property
    def dense(self) -> bool:
        return isinstance(self.D, np.ndarray)

    def costs(self, unit: float, cut: float = math.inf) -> Any:
        """(D / unit)^p, an array if D is one; min((D / unit)^p, cut) / cut if it is to be cut off."""
        cost = partial(_cost, unit, self.p, cut)
        return cost(self.D) if self.dense else column_generation.Costs(self.D, cost)

    def at(self, i: Array, j: Array) -> SimplexProblem:
        """The atoms i and j alone."""
        D = self.D[np.ix_(i, j)] if self.dense else self.D.at(i, j)
        return SimplexProblem(D, self.a[i], self.b[j], self.p)


class Edges(NamedTuple):
    """What a solver returns: a plan, and potentials of its rows; both are checked later."""

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
        if self.lost > LOST or not LEAST < self.value < math.inf or not math.isfinite(self.bound):
            return math.inf
        return abs(self.value - self.bound) / self.value


class Guess(NamedTuple):
    """The answer to a nearby problem; potentials in units of unit^p."""

    rows: Array  # (k,)
    cols: Array  # (k,)
    mass: Array  # (k,)
    f: Array  # (n,)
    unit: float


def couple(D: Any, a: Array, b: Array, start: Guess | None, p: float) -> Answer:
    """The optimal plan for distances D (n, m) and weights a (n,), b (m,) of sum one, some maybe 0."""
    problem, i, j = SimplexProblem(D, a, b, p), np.flatnonzero(a), np.flatnonzero(b)
    if len(i) == len(a) and len(j) == len(b):
        return _solve(problem, start)
    answer = _solve(problem.at(i, j), None)
    f, g = _extend(problem.costs(answer.unit), answer, i, j)
    return answer._replace(rows=i[answer.rows], cols=j[answer.cols], f=f, g=g)


def _extend(c: Any, answer: Answer, i: Array, j: Array) -> tuple[Array, Array]:
    """Potentials also of atoms without mass: the largest ones that are feasible."""
    f, g = (np.full(k, -np.inf) for k in c.shape)
    f[i], g[j] = answer.f, answer.g
    f = np.where(np.isinf(f), _rows(c, g), f)
    return f, np.where(np.isinf(g), _rows(c.T, f), g)


def _solve(problem: SimplexProblem, start: Guess | None) -> Answer:
    """The answer where every atom has mass."""
    n, m = problem.D.shape
    if start is not None and n * m > SMALL:
        answer = _nearby(problem, start)
        if answer is not None:
            return answer
    if problem.dense:
        return _levels(problem, reachable(problem.D.max()), None)
    return _levels(problem, *_from_sample(problem))


def _from_sample(problem: SimplexProblem) -> tuple[float, Array]:
    """A level to begin with, and pairs that are nearly tight for what is optimal between fewer atoms."""
    D, a, b, p = problem
    (i, v), (j, w) = (column_generation.sample(z, -(-len(z) // SPARSER)) for z in (a, b))
    few = D.at(i, j)
    answer = _solve(SimplexProblem(few[:] if len(i) * len(j) <= COARSE else few, v, w, p), None)
    c = problem.costs(answer.unit)
    g = _columns(c, _rows(problem.at(np.arange(len(a)), j).costs(answer.unit), answer.g))
    pairs = column_generation.nearest(c, _rows(c, g), g, WIDTH)
    return min(MARGIN ** (1 / p) * answer.reach, MAX), np.union1d(pairs, column_generation.staircase(a, b))


def _levels(problem: SimplexProblem, level: float, pairs: Array | None) -> Answer:
    """Solve with distances cut off at lower and lower levels until the answer is certified."""
    answers: list[Answer] = []
    low, high = 0.0, math.inf
    while low <= level < high and len(answers) < LEVELS:
        answer, pairs = _at_level(problem, level, pairs)
        answers.append(answer)
        if answer.error <= TOL:
            return answer._replace(code=0)
        if answer.reach > level:  # what was cut off is in use: too low
            low, level = level, math.sqrt(level * high) if high < math.inf else reachable(problem.D.max())
        else:
            high, level = level, max(MARGIN ** (1 / problem.p) * answer.reach, math.sqrt(low * level))
    best = min(answers, key=lambda answer: answer.error)
    return best._replace(code=best.code or code("uncertified"))


def _at_level(problem: SimplexProblem, level: float, pairs: Array | None) -> tuple[Answer, Array | None]:
    """The answer for the distances min(D, level), with what it proves for D; among pairs, if given."""
    unit = unit_of(level)
    cut = (level / unit) ** problem.p or 1.0
    low = problem.costs(unit, cut)
    edges, pairs = (_dense(problem, low), None) if pairs is None else _among(problem, low, pairs)
    del low  # an array is large
    c, edges = problem.costs(unit), edges._replace(f=cut * edges.f)
    answer = _answer(problem, edges, c, unit)
    if answer.error <= TOL or not len(edges.mass):
        return answer, pairs
    near = _nearly_tight(c, edges.f) if pairs is None else pairs
    better = _answer(problem, edges._replace(f=_along_tree(edges, near, c)), c, unit)
    return better if better.error < answer.error else answer, pairs


def _among(problem: SimplexProblem, c: Any, pairs: Array, few: float = math.inf) -> tuple[Edges, Array]:
    """A plan among some pairs, and those it violates added until there are none, or more than a few."""
    n, m = c.shape
    for _ in range(ROUNDS):
        edges, g = _sparse(problem, c, pairs)
        value = float(edges.mass @ c[edges.rows, edges.cols])
        noise = max(TOL / 4 * value, (n + m) * EPS)
        worst, best = column_generation.violated(c, edges.f, g, WIDTH, noise)
        proved = value - float(problem.a @ edges.f + problem.b @ best) <= TOL * value
        new = column_generation.missing(worst, pairs)
        if edges.code or proved or not len(new) or len(new) > few * max(n, m):
            return edges, pairs
        if len(pairs) > MOST * (n + m):
            used = edges.rows * m + edges.cols
            pairs = column_generation.tightest(c, edges.f, g, pairs, used, len(pairs) // 2)
        pairs = np.sort(np.concatenate([pairs, new]))
    return edges._replace(code=code("max_iter")), pairs


def _nearby(problem: SimplexProblem, start: Guess) -> Answer | None:
    """The plan ``start`` if it is optimal here too, else one of pairs nearly tight for its potentials.

    None if this proves nothing.
    """
    D = problem.D
    unit = unit_of(D.max())
    c = problem.costs(unit)
    with np.errstate(all="ignore"):
        f = start.f * (start.unit / np.float64(unit)) ** problem.p
    if not np.isfinite(f).all():
        return None
    answer = _answer(problem, Edges(*start[:3], f, 0), c, unit)
    if answer.error <= TOL:
        return answer
    pairs = np.union1d(
        column_generation.nearest(c, answer.f, answer.g, WIDTH // 2), start.rows * D.shape[1] + start.cols
    )
    unit = unit_of(D[np.divmod(pairs, D.shape[1])].max())
    c = problem.costs(unit)
    answer = _answer(problem, _among(problem, c, pairs, FEW)[0], c, unit)
    return answer if answer.code == 0 and answer.error <= TOL else None


def _answer(problem: SimplexProblem, edges: Edges, c: Any, unit: float) -> Answer:
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


def _along_tree(edges: Edges, near: Array, c: Any) -> Array:
    """Potentials f without the rounding errors of the simplex: exact along a tree of tight pairs.

    These are the pairs that carry mass, joined by others that are nearly tight.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    n, m = c.shape
    used, g = edges.rows * m + edges.cols, _columns(c, edges.f)
    near = np.union1d(near, used)
    rows, cols = np.divmod(near, m)
    slack = np.where(np.isin(near, used), -1.0, c[rows, cols] - edges.f[rows] - g[cols])
    rank = np.argsort(np.argsort(slack)) + 1.0
    ends = rows.astype(np.int32), (n + cols).astype(np.int32)  # older graph routines of scipy take no others
    graph = coo_array((rank, ends), shape=(n + m, n + m))
    up = breadth_first_order(minimum_spanning_tree(graph), edges.rows[0], directed=False)[1]
    step, hung = np.concatenate([edges.f, g]), np.flatnonzero(up >= 0)
    step[hung] = c[np.minimum(hung, up[hung]), np.maximum(hung, up[hung]) - n]
    return _unroll(step, np.where(up >= 0, up, np.arange(n + m)), np.where(up >= 0, -1.0, 0.0))[:n]


def _nearly_tight(c: Array, f: Array) -> Array:
    """The 2 (n + m) pairs with the smallest c_ij - f_i - g_j, for the best g."""
    slack = (c - f[:, None]) - _columns(c, f)
    k = min(2 * sum(c.shape), slack.size - 1)
    return np.argpartition(slack, k, axis=None)[: k + 1]


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


def _cost(unit: float, p: float, cut: float, D: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        c = D / unit
        c = c if p == 1 else np.square(c, out=c) if p == 2 else np.power(c, p, out=c)
    return c if math.isinf(cut) else np.divide(np.minimum(c, cut, out=c), cut, out=c)


def _columns(c: Any, f: Array) -> Array:
    """g_j = min_i c_ij - f_i."""
    g = np.full(c.shape[1], MAX)
    for rows in column_generation.tiles(c):
        np.minimum(g, (c[rows] - f[rows, None]).min(0), out=g)
    return g


def _rows(c: Any, g: Array) -> Array:
    """f_i = min_j c_ij - g_j, or just below, so that rounding breaks no constraint."""
    f = np.empty(c.shape[0])
    for rows in column_generation.tiles(c):
        f[rows] = (c[rows] - g).min(1)
    return np.nextafter(np.minimum(f, MAX), -np.inf)


def reachable(distance: float) -> float:
    """The distance itself, or an error if it overflows."""
    rule = "it is beyond floating point"
    checks.require(
        math.isfinite(distance), "the largest distance", distance, rule, "rescale the points, x / 1e3, say"
    )
    return float(distance)


def unit_of(distance: float) -> float:
    """A power of two just above a distance: dividing by it changes no digit."""
    return math.ldexp(1.0, min(math.frexp(reachable(distance))[1], 1023)) if distance > 0 else 1.0


def _dense(problem: SimplexProblem, c: Array) -> Edges:
    plan, f, _, status = _emd(problem, c)
    rows, cols = np.nonzero(plan)
    return Edges(rows, cols, plan[rows, cols], f, status)


def _sparse(problem: SimplexProblem, c: Any, pairs: Array) -> tuple[Edges, Array]:
    from scipy.sparse import coo_array

    heavy = problem._replace(a=MASS * problem.a, b=MASS * problem.b)
    rows, cols = np.divmod(pairs, c.shape[1])
    plan, f, g, status = _emd(heavy, coo_array((c[rows, cols], (rows, cols)), shape=c.shape))
    plan = plan.tocoo()
    return Edges(plan.row.astype(np.int64), plan.col.astype(np.int64), plan.data / MASS, f, status), g


def _emd(problem: SimplexProblem, c: Any) -> tuple[Any, Array, Array, int]:
    """POT's plan, potentials and status; its warnings say no more than the status."""
    import ot

    pivots = PIVOTS * sum(c.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan, log = ot.emd(problem.a, problem.b, c, numItermax=pivots, log=True, check_marginals=False)
    return plan, log["u"], log["v"], {1: 0, 3: code("max_iter")}.get(log["result_code"], code("uncertified"))
