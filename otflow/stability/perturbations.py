"""Perturbations of a cloud of tokens: other clouds at a given distance from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.kernels import row_tiles
from otflow.base.spaces import norm
from otflow.base.tangent import Tangent, align, as_tangent
from otflow.measures import Particles
from otflow.transport.comparable import exponent, merge, power_mean
from otflow.transport.exact.conditional import conditional_wasserstein
from otflow.transport.exact.wasserstein import wasserstein

# Relative error of a distance that counts as reached, on top of the rounding of positions; chosen.
NEAR = 1e-9
# Of the step until the distance is passed, and secants and bisections until it is met; chosen: bisections
# alone would need fifty.
DOUBLINGS, CUTS = 30, 100


def perturbations(
    mu0: Particles, size: Any, *, p: float = 2.0, rng: int | np.random.Generator
) -> dict[str, Particles]:
    """Simple clouds nu0 with d(mu0, nu0) = size: name -> nu0, each with the tokens of mu0 moved.

    "random" moves every token by a normal vector, "token" one token chosen at random, "first" that with the
    smallest label, "outwards" the token farthest from the mean m, away from it; "translation" moves all
    alike, "dilation" moves x_i along x_i - m, "rotation" along S (x_i - m) with a random antisymmetric S.
    Families that do not move mu0, like rotations on a line, or that do not get as far as ``size``, are left
    out. For other directions see `scaled`.

    Args:
        mu0: a cloud; members of a batch have perturbations of their own.
        size: the distance, a number or one per member, (*batch,): W_p, conditional if mu0 is labelled.
        p: the order of the distance, from 1.
        rng: a seed or a `numpy.random.Generator`.

    >>> import otflow as of
    >>> from otflow.stability.perturbations import perturbations
    >>> mu0 = of.Particles([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> family = perturbations(mu0, 0.1, rng=0)
    >>> sorted(family)
    ['dilation', 'outwards', 'random', 'rotation', 'token', 'translation']
    >>> round(of.wasserstein(mu0, family["rotation"]).item(), 9)
    0.1
    """
    mu0, p = plain(mu0), exponent(p)
    far = sizes(size, mu0)
    family: dict[str, Particles] = {}
    for name, u in _directions(mu0, checks.generator(rng)).items():
        if bool((length(mu0, u, p) > 64 * rounding(mu0)).all()):
            nu, reached = reach(mu0, u, far, p)
            family |= {name: nu} if bool(reached.all()) else {}
    return family


def scaled(mu0: Particles, u: Tangent, size: Any, p: float = 2.0) -> Particles:
    """nu0 = exp(s u)_# mu0 with the s > 0 for which d(mu0, nu0) = size.

    As long as every token stays nearest to where it was, s = size / (sum_i w_i |u_i|^p)^(1/p). Beyond,
    another matching may be shorter than that by index, and s is found by a search.

    Args:
        mu0: a cloud.
        u: a tangent at mu0.
        size: the distance, a number or one per member, (*batch,): W_p, conditional if mu0 is labelled.
        p: the order of the distance, from 1.

    >>> import otflow as of
    >>> from otflow.stability.perturbations import scaled
    >>> mu0 = of.Particles([[0.0], [1.0]])
    >>> scaled(mu0, mu0.coords, 0.1, p=1).x.flatten()
    tensor([0.0000, 1.2000], dtype=torch.float64)
    """
    mu0, p = plain(mu0), exponent(p)
    u = mu0.tangent(as_tangent(u, "u", mu0.shapes()))
    good = (length(mu0, u, p) > 0).all()
    remedy = "pass one that moves a token with mass, say Tangent([torch.randn(mu0.x.shape)])"
    checks.require(good, "u", "a tangent of length 0", "it moves no mass", remedy)
    nu, reached = reach(mu0, u, sizes(size, mu0), p)
    if not reached.all():
        rule, far = "moving along u does not get that far", apart(mu0, nu, p).min().item()
        checks.fail("size", f"{size!r:.60}", rule, f"pass size={far:.3g}, which is reached, or less")
    return nu


def plain(mu0: Particles) -> Particles:
    """The cloud without its graph."""
    cloud: Particles = checks.instance(mu0, Particles, "mu0")
    return cloud.at([cloud.x.detach()])


def sizes(size: Any, mu0: Particles) -> Tensor:
    """One positive distance per member, (*batch,)."""
    far = per_member(size, "size", mu0)
    rule = "a distance > 0 is needed, above the rounding of positions"
    least = 64 * rounding(mu0)
    if not (far > least).all():
        checks.fail("size", f"{size!r:.60}", rule, f"pass size={2 * least.max().item():.3g} or more")
    return far


def per_member(value: Any, name: str, mu: Particles) -> Tensor:
    """A number, or one for each member of the batch of mu, (*batch,)."""
    a = checks.tensor(value, name).detach().to(mu.x)
    return checks.expanded(
        a, mu.batch, name, f"one per member is needed, {tuple(mu.batch)}", "pass one number"
    )


def farthest(mu: Particles, size: Tensor, p: float) -> Tensor:
    """How far a token can be moved by e with (sum_i w_i |e_i|^p)^(1/p) = size, (*batch,)."""
    return size / mu.w.masked_fill(mu.w == 0, 1).amin(-1) ** (1 / p)


def rounding(mu: Particles) -> Tensor:
    """The unit of rounding of the largest coordinate, (*batch,)."""
    return torch.finfo(mu.dtype).eps * mu.x.abs().amax((-1, -2))


def length(mu: Particles, u: Tangent, p: float) -> Tensor:
    """|u|_p = (sum_i w_i |u_i|^p)^(1/p), (*extra, *batch) for a tangent with axes in front."""
    return power_mean(norm(u[0]), mu.w, p)


# --- distances -----------------------------------------------------------------------------------------


def apart(mu: Particles, nu: Particles, p: float) -> Tensor:
    """W_p(mu, nu), conditional if labelled, where nu is mu with its tokens moved; (*batch,) of nu.

    If for every i the nearest token of nu (with the same label) to x_i is y_i, matching by index is optimal:
    f_i = |x_i - y_i|^p and g = 0 are then feasible potentials. The solver sees only the other members.
    """
    mu = mu.at([mu.x.expand(nu.x.shape)])
    d, hard = power_mean(mu.space.distance(mu.x, nu.x), mu.w, p), ~_by_index(mu, nu)
    if not bool(hard.any()):
        return d
    solver = wasserstein if mu.label is None else conditional_wasserstein
    rest = torch.zeros_like(d).masked_scatter(hard, solver(mu[hard], nu[hard], p))
    return torch.where(hard, rest, d)


def _by_index(mu: Particles, nu: Particles) -> Tensor:
    """Whether y_i is nearest to x_i for every token with mass, (*batch,)."""
    x, y = (merge(z.detach(), nu.batch, 2) for z in (mu.x, nu.x))
    w = merge(mu.w, nu.batch, 1)
    label = None if mu.label is None else merge(mu.label, nu.batch, 1)
    out = torch.ones_like(w[:, 0], dtype=torch.bool)
    for some in row_tiles(len(x), mu.n**2):
        for rows in row_tiles(mu.n, mu.n * len(x[some])):
            D = mu.space.pairwise(x[some, rows], y[some])
            worse = D.diagonal(rows.start, -2, -1)[..., None] > D
            if label is not None:
                worse &= label[some, rows, None] == label[some, None, :]
            out[some] &= ~(worse.any(-1) & (w[some, rows] > 0)).any(-1)
    return out.reshape(nu.batch)


# --- going so far --------------------------------------------------------------------------------------


def reach(mu: Particles, u: Tangent, size: Tensor, p: float) -> tuple[Particles, Tensor]:
    """exp(s u)_# mu at distance ``size``, and which members got there; the others go as far by index."""
    u = u / length(mu, u, p)
    slack = NEAR * size + 8 * rounding(mu)

    def excess(s: Tensor) -> Tensor:
        return apart(mu, mu.exp(u * s), p) - size

    low, below = size, excess(size)
    if bool((below >= -slack).all()):
        return mu.exp(u * size), torch.ones_like(size, dtype=torch.bool)
    high, above = low, below
    for _ in range(DOUBLINGS):
        if bool((above >= -slack).all()):
            break
        high = torch.where(above < -slack, 2 * high, high)
        above = excess(high)
    s = _meet(excess, (low, below), (high, above), slack)
    reached = excess(s).abs() <= slack
    return mu.exp(u * torch.where(reached, s, size)), reached


def _meet(excess: Any, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], slack: Tensor) -> Tensor:
    """s with |excess(s)| <= slack between two ends, by secants and bisections in turn."""
    (a, fa), (b, fb) = left, right
    for turn in range(CUTS):
        open_ = (fb > slack) & (b > a)
        if not bool(open_.any()):
            break
        part = torch.where(open_, -fa / torch.where(open_, fb - fa, 1.0), 0.0) if turn % 3 else 0.5
        s = a + part * (b - a)
        f = excess(s)
        over = f >= -slack
        b, fb = (torch.where(open_ & over, new, old) for new, old in ((s, b), (f, fb)))
        a, fa = (torch.where(open_ & ~over, new, old) for new, old in ((s, a), (f, fa)))
    return b


# --- directions ----------------------------------------------------------------------------------------


def _directions(mu: Particles, rng: np.random.Generator) -> dict[str, Tangent]:
    """Tangents of any length, some maybe 0."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((*mu.batch, *shape))).to(mu.x)

    n, d = mu.n, mu.d
    off = mu.x - (mu.w[..., None] * mu.x).sum(-2, keepdim=True)
    S = normal(d, d)
    out = {
        "random": normal(n, d),
        "token": _one(mu, normal(n), normal(n, d)),
        "outwards": _one(mu, norm(off), off),
        "translation": normal(1, d).expand(mu.x.shape),
        "dilation": off,
        "rotation": off @ (S - S.mT),
    }
    if mu.label is not None:
        out["first"] = _one(mu, -mu.label, normal(n, d))
    return {name: mu.tangent(Tangent([u])) for name, u in out.items()}


def _one(mu: Particles, rank: Tensor, u: Tensor) -> Tensor:
    """u for the token of highest rank among those with mass, else 0."""
    index = rank.masked_fill(mu.w <= 0, -torch.inf).argmax(-1, keepdim=True)
    chosen = torch.zeros_like(mu.w).scatter(-1, index, 1.0)
    return align(chosen, u) * u
