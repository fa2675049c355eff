"""An adversary that searches for the perturbation of a cloud that grows most under a flow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.spaces import norm
from otflow.base.tangent import Tangent, align
from otflow.fields import VelocityField
from otflow.measures import Particles
from otflow.stability.perturbations import apart, length, perturbations, plain, reach, sizes
from otflow.stability.propagator import Propagator, spectrum
from otflow.steppers import Stepper
from otflow.transport.comparable import exponent, power_mean

STARTS = 2  # random starts of the linearised search, for p other than 2; chosen
# Limits of the linearised search; chosen: a direction known to 1e-3 gives its growth to 1e-6, because that
# is stationary.
ROUNDS, TOL = 30, 1e-3
GAIN = 1e-5  # relative gain below which an ascent has ended; chosen
SHORT = 0.01  # damping at which an ascent is given up; chosen


@dataclass(frozen=True, eq=False)
class Adversary:
    """A perturbation that grows much under a flow, and how much.

    Attributes:
        nu0: the worst perturbation of mu0 that was found.
        ratio: d(mu_T, nu_T) / d(mu_0, nu_0), (*batch,), of certified distances; infinite if nu_t blows up.
            A lower bound on the Lipschitz constant of the flow map.
        linearised: the growth of infinitesimal perturbations, |DPhi|_p, (*batch,); largest singular value
            for p = 2, the largest local maximum that was found for other p.
        residual: how far ``linearised`` is from stationary, relative, (*batch,).
        observed: name -> ratio, (*batch,), of simple perturbations and of ``tries``; none exceeds ``ratio``.
        p: the order of the distance.
        span: t1 - t0.
    """

    nu0: Particles
    ratio: Tensor
    linearised: Tensor
    residual: Tensor
    observed: dict[str, Tensor]
    p: float
    span: float

    @property
    def exponents(self) -> Tensor:
        """log(ratio) / (t1 - t0), (*batch,)."""
        return self.ratio.log() / self.span

    def __repr__(self) -> str:
        return (
            f"Adversary(ratio={status.brief(self.ratio)}, p={self.p:g}, {len(self.observed)} families tried)"
        )


def adversary(
    mu0: Particles,
    field: VelocityField,
    stepper: Stepper,
    *,
    t1: float,
    dt: float,
    t0: float = 0.0,
    size: Any,
    p: float = 2.0,
    tries: Mapping[str, Particles] | None = None,
    rounds: int = 5,
    rng: int | np.random.Generator = 0,
) -> Adversary:
    """The largest d(mu_T, nu_T) / d(mu_0, nu_0) over nu0 with d(mu_0, nu_0) = size that a search finds.

    d is W_p, conditional if mu0 is labelled. The search starts from the direction u with the largest
    |DPhi u|_p / |u|_p, Phi the flow map and |u|_p = (sum_i w_i |u_i|^p)^(1/p): the leading singular vector
    for p = 2, else the power method of Boyd, u <- J_q(DPhi* J_p(DPhi u)) with the duality maps J_p and
    1/p + 1/q = 1, which for p = 1 moves one token at a time (Hager). It is followed in both senses and
    compared with simple `perturbations`. From the best of all, the gradient of d(mu_T, nu_T) in nu_0, with
    the optimal matching at time T, leads uphill on the sphere of radius ``size``.

    Tokens that the flow brings closer than the perturbation may be matched otherwise than by index at time T;
    then ``ratio`` is less than ``linearised`` even for a small size.

    Args:
        mu0: a cloud whose tokens all have mass; members of a batch are searched independently, at once.
        field, t1, dt, t0: as in `flow`.
        stepper: of fixed step and differentiable, as for `Propagator`.
        size: the distance d(mu_0, nu_0), a number or one per member, (*batch,). Beyond the distance of tokens
            the result is that of a local search.
        p: the order of the distance, from 1; infinity too as long as tokens are matched by index.
        tries: name -> nu0, other perturbations to compare with, at any distance: the tokens of mu0, moved.
        rounds: how many runs uphill to take at most.
        rng: a seed or a `numpy.random.Generator`, for the starts of the search.

    References: Boyd 1974, "The power method for l^p norms"; Hager 1984, "Condition estimates".

    >>> import otflow as of
    >>> from otflow.stability.adversary import adversary
    >>> saddle = of.Perceptron([[1.0, 0.0], [0.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]], activation=None)
    >>> mu0 = of.Particles([[0.0, 0.0], [1.0, 1.0]])
    >>> worst = adversary(mu0, saddle, of.RK4(), t1=1.0, dt=0.1, size=1e-3)
    >>> worst.exponents.round(decimals=5), worst.observed.keys() >= {"random", "rotation"}
    (tensor(1.0000, dtype=torch.float64), True)
    """
    mu0, p, rng = plain(mu0), exponent(p), checks.generator(rng)
    far, rounds = sizes(size, mu0), checks.count(rounds, "rounds")
    prop = Propagator(mu0, field, stepper, t1=t1, dt=dt, t0=t0)
    search = Search(prop, mu0, mu0.at(prop.final.coords), far, p)
    family = perturbations(mu0, far, p=p, rng=rng) | _tried(tries, mu0)
    u, linearised, residual = _linear(search, rng)
    x = torch.stack([nu.x for nu in (*family.values(), search.at(u), search.at(-u))])
    ratios = search.ratio(mu0.at([x]))
    nu0, ratio = _uphill(search, mu0.at([_largest(ratios, x)]), ratios.amax(0), rounds)
    observed = dict(zip(family, ratios, strict=False))
    return Adversary(nu0, ratio, linearised, residual, observed, p, prop.span)


def _tried(tries: Mapping[str, Particles] | None, mu0: Particles) -> dict[str, Particles]:
    """The user's perturbations, if they move the tokens of mu0 and nothing else."""
    out = {}
    for name, nu in checks.instance({} if tries is None else tries, Mapping, "tries").items():
        out[name] = _moved(plain(checks.instance(nu, Particles, f"tries[{name!r}]")), mu0, name)
        rule = "it is at distance 0 from mu0"
        checks.require(
            (apart(mu0, out[name], 2.0) > 0).all(),
            f"tries[{name!r}]",
            nu,
            rule,
            "drop it, or pass mu0.move(Tangent([1e-3 * torch.randn(mu0.x.shape)]))",
        )
    return out


def _moved(nu: Particles, mu0: Particles, name: str) -> Particles:
    own = (mu0.label is None) == (nu.label is None) and nu.space == mu0.space and nu.dtype == mu0.dtype
    try:
        x = nu.x.expand(mu0.x.shape)
        pairs = [(nu.w, mu0.w), *([] if nu.label is None or mu0.label is None else [(nu.label, mu0.label)])]
        own = own and all(torch.allclose(a.expand(b.shape), b, rtol=1e-9, atol=0) for a, b in pairs)
    except RuntimeError:
        own = False
    rule = f"a perturbation has the tokens of {mu0!r}, with their weights and labels, moved"
    checks.require(
        own, f"tries[{name!r}]", nu, rule, "pass mu0.at([x]); coupled(mu0, nu0, ...) takes any other measure"
    )
    return mu0.at([x])


class Search(NamedTuple):
    """A flow map, the cloud at both ends, and how far to go."""

    prop: Propagator
    mu0: Particles
    end: Particles
    size: Tensor
    p: float

    @property
    def q(self) -> float:
        """1/p + 1/q = 1."""
        return math.inf if self.p == 1 else 1.0 if math.isinf(self.p) else self.p / (self.p - 1)

    def at(self, u: Tangent) -> Particles:
        """mu0 moved along u."""
        return reach(self.mu0, u, self.size, self.p)[0]

    def ratio(self, nu: Particles) -> Tensor:
        """d(mu_T, nu_T) / d(mu_0, nu_0), infinite if nu_t blows up and 0 if nu_0 is mu_0; axes of nu."""
        start, traj = apart(self.mu0, plain(nu), self.p), self.prop.trajectory(nu)
        d = apart(self.end, self.mu0.at(traj.final.coords), self.p)
        ended = torch.as_tensor(~status.arrived(traj.status), device=d.device)
        still = start == 0
        return torch.where(still, 0.0, d / torch.where(still, 1.0, start)).masked_fill(ended, torch.inf)

    def climb(self, nu: Particles) -> tuple[Tensor, Tangent]:
        """The ratio, and the gradient in L2(mu_0) of its numerator over its denominator."""
        with torch.enable_grad():
            x = nu.x.detach().requires_grad_()
            ratio = self.ratio(nu.at([x]))
            finite = ratio[torch.isfinite(ratio)].sum() + 0 * x.sum()  # on x even if no member arrived
            (g,) = torch.autograd.grad(finite, x)
        return ratio.detach(), self.mu0.tangent(self.mu0.sharp(nu.tangent(Tangent([g]))))


def _largest(ratios: Tensor, x: Tensor) -> Tensor:
    """For each member, the cloud among (C, *batch, n, d) with the largest ratio."""
    return torch.take_along_dim(x, align(ratios.argmax(0), x[0])[None], 0)[0]


def _uphill(search: Search, nu: Particles, ratio: Tensor, rounds: int) -> tuple[Particles, Tensor]:
    """The nonlinear power method from nu, damped: e <- e + s (size J_q(g) - e), g the gradient, s <= 1."""
    mu0, size = search.mu0, search.size
    again, g = search.climb(nu)
    ratio, step = torch.maximum(ratio, again), torch.ones_like(ratio)
    for _ in range(rounds):
        e = Tangent([mu0.space.log(mu0.x, nu.x)])
        promise = size * length(mu0, g, search.q) - mu0.inner(g, e)
        open_ = torch.isfinite(ratio) & (promise > GAIN * ratio) & (step > SHORT)
        if not bool(open_.any()):
            break
        h = Tangent([dual(g[0], mu0.w, search.q)]) * size
        new = search.at(e + (h - e) * torch.where(open_, step, 0.0))
        now, slope = search.climb(new)
        better = now > ratio
        nu, ratio = mu0.at([_choose(better, new.x, nu.x)]), torch.maximum(ratio, now)
        g = Tangent([_choose(better, slope[0], g[0])])
        step = torch.where(better, 1.0, step / 3)
    return nu, ratio


def _choose(which: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(align(which, a), a, b)


# --- infinitesimal perturbations -----------------------------------------------------------------------


def _linear(search: Search, rng: np.random.Generator) -> tuple[Tangent, Tensor, Tensor]:
    """A tangent u with the largest |DPhi u|_p / |u|_p, that number, and its relative residual."""
    first = spectrum(search.prop, 1, TOL, ROUNDS, rng)
    if search.p == 2:
        s, rest = first.values[..., 0], first.residuals[..., 0]
        return first.initial.map(lambda a: a[0]), s, torch.where(rest > 0, rest / s, 0.0)
    u, value, residual = _boyd(search, _starts(search, first.initial, rng))
    at = value.argmax(0, keepdim=True)
    value, residual = (torch.take_along_dim(a, at, 0)[0] for a in (value, residual))
    return Tangent([torch.take_along_dim(u[0], align(at, u[0]), 0)[0]]), value, residual


def _starts(search: Search, first: Tangent, rng: np.random.Generator) -> Tangent:
    """Tangents (S, *batch, n, d) to start from: a good one, random ones and, if that is cheap, corners.

    The corners of the unit ball for p = 1 move one token along one axis. Those for p = inf move all tokens so
    that one coordinate of one token moves most at the end.
    """
    mu, prop = search.mu0, search.prop
    u = [first[0], torch.from_numpy(rng.standard_normal((STARTS, *mu.x.shape))).to(mu.x)]
    if prop.small:
        M = prop.whole
        axes = torch.eye(M.shape[-1], dtype=mu.dtype, device=mu.device).expand(M.shape)
        u += [prop.tangents(columns)[0] for columns in (axes, M.mT)]
    tangents = mu.tangent(Tangent([torch.cat(u)]))
    return tangents.map(lambda a: torch.where(align(length(mu, tangents, 2.0) > 0, a), a, first[0]))


def _boyd(search: Search, u: Tangent) -> tuple[Tangent, Tensor, Tensor]:
    """The power method for |DPhi|_p from several starts (S, *batch, n, d).

    With y = DPhi u, |u|_p = 1, and g = DPhi* J_p(y), |y|_p = <g, u> <= |g|_q <= |DPhi J_q(g)|_p: what
    the next step gains at least is the residual.
    """
    mu = search.mu0
    u = u / length(mu, u, search.p)
    g, value, residual = _slope(search, u)
    for _ in range(ROUNDS):
        if bool((residual <= TOL).all()):
            break
        u = Tangent([dual(g[0], mu.w, search.q)])
        g, value, residual = _slope(search, u)
    return u, value, residual


def _slope(search: Search, u: Tangent) -> tuple[Tangent, Tensor, Tensor]:
    """g, |y|_p and |g|_q / |y|_p - 1 of `_boyd`."""
    mu, prop = search.mu0, search.prop
    y = prop.tangents(prop.whole @ prop.isometric(u)) if prop.small else prop.push(u)
    z = Tangent([dual(y[0], mu.w, search.p)])
    g = prop.tangents(prop.whole.mT @ prop.isometric(z)) if prop.small else prop.pull(z)
    value, top = length(mu, y, search.p), length(mu, g, search.q)
    return g, value, torch.where(top > value, top / value.clamp(min=torch.finfo(value.dtype).tiny) - 1, 0.0)


def dual(u: Tensor, w: Tensor, p: float) -> Tensor:
    """J_p(u), the z with |z|_q = 1 and sum_i w_i z_i.u_i = |u|_p, 1/p + 1/q = 1; 0 if u is 0."""
    r = norm(u)
    along = u / torch.where(r > 0, r, 1.0)[..., None]
    if math.isinf(p):
        only = torch.zeros_like(r).scatter(-1, r.argmax(-1, keepdim=True), 1.0)
        return along * (only / w)[..., None]
    top = r.amax(-1, keepdim=True)
    a = (r / torch.where(top > 0, top, 1.0)) ** (p - 1)
    size = power_mean(a, w, math.inf if p == 1 else p / (p - 1))
    return along * (a / torch.where(size > 0, size, 1.0)[..., None])[..., None]
