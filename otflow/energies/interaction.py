"""Pairwise interaction energies, summed over tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import refuse_func
from otflow.base.enclosures import everywhere
from otflow.base.integrals import quadrature
from otflow.base.integrals.meshes import AXES
from otflow.base.kernels import row_tiles
from otflow.base.tables import named
from otflow.base.tangent import Tangent
from otflow.energies.base import Bounds, Energy, called, gradient, trust_nodes
from otflow.energies.gaussian_means import (
    RTOL,
    Doubt,
    Doubted,
    Function,
    lean,
    mean,
    pulled_slope,
    resolvable,
)
from otflow.measures import Gaussian, Measure

PROBES = 32  # pairs of points of each kind at which it is tried whether W depends on differences; chosen
SCALES = (1.0, 2.0, 4.0, 8.0)  # standard deviations of pairs that are tried, beside those that are close
CLOSE = (1e-6, 0.3)  # and the distances of these
DOUBTED = 1024  # points of a mesh at which it is tried again, at most; chosen


class Interaction(Energy):
    """F(mu) = 1/2 int int W(x, y) dmu(x) dmu(y).

    The differential costs O(n^2) time and O(n) memory: each tile of rows is summed and differentiated
    by itself.

    On Gaussians quadrature checks itself, as that of `Potential`. If W depends on x - y only, which is tried
    at some points, the integral is one over N(0, 2 Cov), and W may have kinks, jumps and narrow bumps; so it
    may if the covariance has rank one. Else two product rules have to agree.

    Args:
        W: broadcasts (*batch, n, 1, d) against (*batch, 1, n, d) to (*batch, n, n), in torch operations.
        diagonal: whether a token interacts with itself; False for kernels that are singular there,
            such as -log|x - y|.
        curvature: a number c for which W(x, y) - c |x - y|^2 / 2 is convex in (x, y), for proofs that a JKO
            step is the best of all. Of W(x, y) = w(x - y) that is a number which no eigenvalue of D^2 w is
            below. If left out it is found by interval arithmetic, where that can. Then for displacements u of
            all particles D^2 F(u, u) >= min(c, 0) |u|^2: F is jointly convex if c >= 0, and never more than
            that, since it does not feel a common translation.
        rtol: bound on the quadrature error on Gaussians, relative to the integral of |W|.

    >>> from otflow import Interaction
    >>> from otflow import Particles
    >>> F = Interaction(lambda x, y: (x - y).square().sum(-1) / 2)
    >>> F(Particles([[0.0], [2.0]])).item()
    0.5
    """

    def __init__(
        self,
        W: Callable[[Tensor, Tensor], Tensor],
        *,
        diagonal: bool = True,
        curvature: float | None = None,
        rtol: float = RTOL,
    ) -> None:
        self.W = checks.function(W, "W")
        self.diagonal = diagonal
        self.curvature = checks.optional(curvature, "curvature")
        self.rtol = checks.positive(rtol, "rtol")

    def __call__(self, mu: Measure) -> Tensor:
        for f, nu, doubt in self._pairs(mu) if isinstance(mu, Gaussian) else ():
            with suppress(Doubted):
                return mean(f, nu, self.rtol, f"{self!r}", doubt)
        mu = self._admit(mu)
        value = self._double_integral(mu)
        self._trust_value(mu, value)
        return value

    def __repr__(self) -> str:
        return f"Interaction({named(self.W)}{'' if self.diagonal else ', diagonal=False'})"

    def curvature_bounds(self, mu: Measure) -> Bounds:
        if self.curvature is not None:
            return min(self.curvature, 0.0), math.inf
        x = mu.probe().detach()[..., None, :]
        known = everywhere(self.W, torch.cat([x, x], -1), pair=True)
        return (-math.inf if known is None else known.low[..., 0, 0].clamp(max=0)), math.inf

    def wants_graph(self, mu: Measure) -> bool:
        if super().wants_graph(mu) or not torch.is_grad_enabled():
            return torch.is_grad_enabled()
        x = mu.probe().detach()
        return called(self.W, "W(x, y)", x[..., None, :], x[..., None, :, :] + 1.0).requires_grad

    def _pairs(self, mu: Gaussian) -> Iterator[tuple[Function, Gaussian, Doubt | None]]:
        """W / 2 as a function on a Gaussian of low dimension: that of x - y, if it is one, or of (x, y)."""
        self._atoms(mu)
        mu = lean(mu)
        d, r = mu.root.shape[-2:]
        if resolvable(mu) and self._of_differences(mu):
            nu = mu.at([mu.mean - mu.mean, math.sqrt(2) * mu.root])
            yield lambda z: self._at(z, torch.zeros_like(z)) / 2, nu, lambda z, w: self._doubt(mu, z, w)
        if r <= 1:
            none = torch.zeros_like(mu.root)
            blocks = torch.cat([torch.cat([mu.root, none], -1), torch.cat([none, mu.root], -1)], -2)
            nu = mu.at([torch.cat([mu.mean, mu.mean], -1), blocks])
            yield lambda z: self._at(z[..., :d], z[..., d:]) / 2, nu, None

    def _at(self, x: Tensor, y: Tensor) -> Tensor:
        """W of pairs (*batch, n, d) of points, one by one."""
        values = called(self.W, "W(x, y)", x[..., None, :], y[..., None, :])
        if values.shape != (*x.shape[:-1], 1):
            self._misshapen(values, (*x.shape[:-1], 1))
        return values[..., 0]

    @torch.no_grad()
    def _of_differences(self, mu: Gaussian) -> bool:
        """Whether W(x, y) = W(x - y, 0), tried at pairs of points of the law, wider ones and close ones."""
        z = torch.as_tensor(_probes(mu.root.shape[-1]), dtype=mu.dtype, device=mu.device)
        x, y = (mu.mean[..., None, :] + z @ mu.root.mT).chunk(2, -2)
        both = self._at(torch.cat([x, x - y], -2), torch.cat([y, torch.zeros_like(y)], -2))
        value, moved = both.chunk(2, -1)
        if bool((value == moved).all()):  # as a rule, and a fast answer
            return bool(value.any())
        value, moved = (a.unflatten(-1, (-1, PROBES)) for a in (value, moved))
        size = value.abs().nan_to_num(0.0, 0.0).amax(-1)
        size = torch.maximum(size, size[..., :1])[..., None]  # W may vanish far away, or grow
        slack = 1e4 * torch.finfo(mu.dtype).eps
        same = ((value - moved).abs() <= slack * size) | (value == moved) | (value.isnan() & moved.isnan())
        return bool(same.all() & (size > 0).any())

    @torch.no_grad()
    def _doubt(self, mu: Gaussian, z: Tensor, w: Tensor) -> Tensor:
        """E|W(x, y) - W(x - y, 0)| relative to E|W|, where x - y are points z with weights w, (*batch,).

        Given x - y = z, y is normal with mean m - z / 2 and covariance Sigma / 2.
        """
        step = math.ceil(z.shape[-2] / DOUBTED)
        z, w = z[..., ::step, :], w[..., ::step]
        random = _normal(z.shape[-2], mu.root.shape[-1])
        normal = torch.as_tensor(random, dtype=mu.dtype, device=mu.device)
        y = mu.mean[..., None, :] - z / 2 + math.sqrt(0.5) * normal @ mu.root.mT
        x = y + z
        value, moved = self._at(x, y), self._at(x - y, torch.zeros_like(y))
        gap = torch.where(value == moved, 0.0, (value - moved).abs())
        return (w * gap).sum(-1) / (w * moved.abs()).sum(-1).clamp(min=torch.finfo(mu.dtype).tiny)

    def _atoms(self, mu: Measure) -> None:
        good = self.diagonal or not isinstance(mu, Gaussian)
        rule = "a Gaussian has no atoms to leave out"
        checks.require(good, "diagonal", False, rule, "sample it and use Particles")

    def _admit(self, mu: Measure) -> Measure:
        """The measure with a root of few columns, or an error where it has no double integral over nodes."""
        self._atoms(mu)
        if isinstance(mu, Gaussian) and resolvable(mu):
            return lean(mu)
        trust_nodes(mu, self._double_integral, lambda mu: self._double_integral(mu, absolute=True))
        return mu

    def _double_integral(self, mu: Measure, *, absolute: bool = False) -> Tensor:
        return self._sum(*mu.nodes(), absolute=absolute)

    def _sum(self, x: Tensor, w: Tensor, *, absolute: bool = False) -> Tensor:
        return torch.stack([self._tile(x, w, rows, absolute=absolute) for rows in self._tiles(x)]).sum(0)

    def differential(self, mu: Measure) -> Tangent:
        if isinstance(mu, Gaussian) or self.wants_graph(mu):
            return super().differential(mu)  # small problems: autograd keeps the whole graph
        refuse_func()
        with torch.enable_grad():
            coords = [c.detach().requires_grad_() for c in mu.coords]
            return self._streamed(mu.at(coords), coords)

    def covector_at(self, mu: Measure, coords: Sequence[Tensor], *, create_graph: bool) -> Tangent:
        if type(self).__call__ is not Interaction.__call__ or not isinstance(mu, Gaussian):
            return super().covector_at(mu, coords, create_graph=create_graph)  # of the value, by autograd
        for f, nu, doubt in self._pairs(mu):
            with suppress(Doubted):
                return pulled_slope(f, nu, coords, self.rtol, f"{self!r}", doubt, create_graph=create_graph)
        if create_graph:
            return super().covector_at(mu, coords, create_graph=True)
        return self._streamed(mu, coords)

    def _streamed(self, mu: Measure, coords: Sequence[Tensor]) -> Tangent:
        """The derivative in ``coords``, of which mu is made, by tiles that are forgotten one by one."""
        mu = self._admit(mu)
        nodes = mu.nodes()
        x, w = (a.detach().requires_grad_() for a in nodes)
        parts = (gradient(self._tile(x, w, rows).sum(), (x, w)) for rows in self._tiles(x))
        grads = sum(parts, start=Tangent([torch.zeros_like(x), torch.zeros_like(w)]))
        # The chain rule by hand: gradients at the nodes, then the nodes as functions of the coordinates.
        own = list(mu.coords)
        through = torch.stack([(a * g).sum() for a, g in zip(nodes, grads, strict=True)]).sum()
        found = gradient(through, own)
        if isinstance(mu, Gaussian):
            self._trust_value(mu, (w * grads[1]).sum(-1) / 2)  # a quadratic form is half its slope
            self._trust_slope(mu, grads[1], found)
        return gradient(torch.stack([(a * g).sum() for a, g in zip(own, found, strict=True)]).sum(), coords)

    @torch.no_grad()
    def _trust_value(self, mu: Measure, value: Tensor) -> None:
        """Refuse a double integral that a coarser product rule contradicts."""
        r = mu.root.shape[-1] if isinstance(mu, Gaussian) else 0
        if not isinstance(mu, Gaussian) or r > AXES:  # the cubature has been checked
            return
        z, w = (
            torch.as_tensor(a, dtype=mu.dtype, device=mu.device)
            for a in quadrature.hermite(r, quadrature.HERMITE[r][0])
        )
        x, w = mu.mean[..., None, :] + z @ mu.root.mT, w.expand(*mu.batch, len(w))
        size = self._sum(x, w, absolute=True).clamp(min=torch.finfo(mu.dtype).tiny)
        self._trust((self._sum(x, w) - value).abs() / size)

    @torch.no_grad()
    def _trust_slope(self, mu: Gaussian, variation: Tensor, found: Tangent) -> None:
        """Refuse a slope that is not that of the moving density, by Stein's identity for the variation."""
        if mu.root.shape[-1] > AXES:
            return
        z, w = mu.standard_nodes()
        slopes = mu.root.mT @ torch.cat([found[0][..., None], found[1]], -1)
        self._trust(quadrature.worst_gap(variation, quadrature.Rules.of(z, w, w), slopes))

    def _trust(self, error: Tensor) -> None:
        worst = float(error.nan_to_num(0.0).max())  # what is not finite is left for the flow to judge
        if worst > max(self.rtol, 1e3 * torch.finfo(error.dtype).eps):
            why = f"{self!r} is not resolved by product rules, and does not depend on x - y only"
            known = f"pass rtol={10.0 ** math.ceil(math.log10(2 * worst)):g}, or " if worst < 0.05 else ""
            remedy = f"{known}sample the law and use Particles"
            checks.fail("rtol", f"{self.rtol:.3g}", f"an error of {worst:.1e} is left, since {why}", remedy)
        quadrature.note(error)

    def _tiles(self, x: Tensor) -> Iterator[slice]:
        return row_tiles(x.shape[-2], x.numel())  # W makes arrays of size rows * n * d

    @staticmethod
    def _misshapen(values: Tensor, expected: tuple[int, ...]) -> NoReturn:
        rule = f"W broadcasts to one number per pair, {expected}"
        checks.fail("W(x, y).shape", tuple(values.shape), rule, "sum over the last axis in W")

    def _tile(self, x: Tensor, w: Tensor, rows: slice, *, absolute: bool = False) -> Tensor:
        """1/2 sum over i in rows, all j, of w_i w_j W(x_i, x_j)."""
        far = x[..., None, :, :]
        if not self.diagonal:  # move the token's own copy away *before* W sees it: no inf or NaN arises
            index = torch.arange(w.shape[-1], device=w.device)
            own = index[rows, None] == index
            far = torch.where(own[..., None], far.detach() + 1.0, far)
        values = called(self.W, "W(x, y)", x[..., rows, None, :], far)
        expected = (*w.shape[:-1], rows.stop - rows.start, w.shape[-1])
        if tuple(values.shape) != expected:
            self._misshapen(values, expected)
        if not self.diagonal:
            values = torch.where(own, torch.zeros_like(values), values)
        terms = w[..., rows, None] * values * w[..., None, :]
        return 0.5 * (terms.abs() if absolute else terms).sum((-1, -2))


@lru_cache(maxsize=8)
def _normal(n: int, r: int) -> np.ndarray:
    """Some points (n, r) of the standard normal law."""
    return np.random.default_rng(r).standard_normal((n, r))


@lru_cache(maxsize=8)
def _probes(r: int) -> np.ndarray:
    """Points of the standard normal law in r dimensions, first x and then y: `PROBES` pairs of each kind."""
    x, y = np.random.default_rng(r).standard_normal((2, len(SCALES) + 1, PROBES, r))
    wide = np.array(SCALES)[:, None, None]
    near = x[-1:] + np.geomspace(*CLOSE, PROBES)[:, None] * y[-1:]
    return np.concatenate([wide * x[:-1], x[-1:], wide * y[:-1], near]).reshape(-1, r)
