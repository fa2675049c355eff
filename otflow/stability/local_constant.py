"""The local Lipschitz constant of a velocity field on a cloud of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import ConvergenceError, NotFiniteError
from otflow.base.tangent import Tangent, as_tangent
from otflow.fields import VelocityField
from otflow.measures import Particles
from otflow.stability.krylov import largest, orthonormal


@dataclass(frozen=True, eq=False)
class LocalConstant:
    """The largest singular value of the Jacobian of a field on a cloud, in L2(mu).

    Attributes:
        value: sigma = |Ju| <= |J|, (*batch,).
        direction: u, of norm one.
        image: Ju.
        residual: |J*Ju - sigma^2 u| / sigma^2, (*batch,): J has a singular value s with
            |s^2 - sigma^2| <= residual sigma^2.
        iterations: the steps taken, each one product with J and one with J*.
        status: "ok", or "max_iter" where the residual is above the tolerance.
    """

    value: Tensor
    direction: Tangent
    image: Tangent
    residual: Tensor
    iterations: int
    status: Any

    def __repr__(self) -> str:
        return f"LocalConstant({status.brief(self.value)}, residual {float(self.residual.max()):.1g})"


def local_constant(
    mu: Particles,
    field: VelocityField,
    t: float = 0.0,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    basis: int = 12,
    rng: int | np.random.Generator = 0,
    start: Tangent | None = None,
    on_failure: Literal["raise", "return"] = "raise",
) -> LocalConstant:
    """sup |Je| / |e|, J the derivative of (x_i)_i -> (Gamma_mu(x_i))_i, norms of L2(mu); (*batch,).

    That is the local Lipschitz constant of one layer of attention, or of any other field, at mu. Lanczos
    iteration for J*J: each step takes one `jvp` and one `vjp` of the field, and the memory is that of
    2 `basis` clouds, so that no matrix is ever held. The value is a lower bound of |J| whatever happens, and
    carries no graph. On a sphere J is the covariant derivative.

    Args:
        mu: a cloud without tokens of weight zero.
        field, t: any velocity field, and when.
        tol: bound on ``residual``; at least 100 rounding errors of the dtype of mu.
        max_iter: limit on ``iterations``.
        basis: how many directions are kept; when they are all there, the best half stays.
        rng: a seed or a `numpy.random.Generator`, for the random direction that the search starts from.
        start: a direction to begin with, say that of a similar cloud; a random one is always added.
        on_failure: "raise" raises `ConvergenceError`, which carries the result, if ``tol`` is missed;
            "return" returns it.

    >>> from otflow.stability import local_constant
    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[0.0]], [[0.0]], [[3.0]])  # the mean, times three
    >>> local_constant(of.Particles([[0.0], [1.0], [5.0]]), field)
    LocalConstant(3, residual ...)
    """
    J = Jacobian(checks.instance(field, VelocityField, "field"), detached(mu), t)
    tol = max(checks.positive(tol, "tol"), 100 * torch.finfo(mu.dtype).eps)
    rule = "at least four directions are needed"
    checks.require(checks.count(basis, "basis") >= 4, "basis", basis, rule, "leave it at 12")
    strict, max_iter = checks.raises(on_failure), checks.count(max_iter, "max_iter")
    V = _start(J, rng, start)
    found, steps = largest(J, V, J.push(V), 1, tol=tol, max_iter=max_iter, room=basis)
    sigma = found.s[..., 0]
    residual = found.residuals[..., 0] / torch.where(sigma > 0, sigma, 1.0)  # J = 0 needs no direction
    late = residual > tol
    ended = status.names(torch.where(late, status.code("max_iter"), status.code("ok")))
    u, image = J.tangent(found.right), J.tangent(found.left * found.s[..., None, :])
    result = LocalConstant(sigma, u, image, residual, steps, ended)
    if strict and bool(late.any()):
        raise ConvergenceError(
            f"local_constant: residual {float(residual.max()):.1g} after {steps} steps, tol = "
            f"{tol:g}; raise max_iter or basis, relax tol, or pass on_failure='return' for a lower bound.",
            result,
        )
    return result


def detached(mu: Particles) -> Particles:
    """The cloud without its graph, if every token has mass."""
    checks.instance(mu, Particles, "mu")
    mu = mu.at([mu.x.detach()])
    mu.sharp(Tangent([torch.zeros_like(mu.x)]))  # refuses tokens without mass
    return mu


class Jacobian(NamedTuple):
    """J on columns sqrt(w) u, (*batch, n d, k), where L2(mu) is Euclidean and J* is the transpose."""

    field: VelocityField
    mu: Particles
    t: float

    @property
    def root(self) -> Tensor:
        return self.mu.w.detach().sqrt()[..., None]

    def flat(self, u: Tangent) -> Tensor:
        """sqrt(w) u, one column."""
        return (self.root * self.mu.tangent(u)[0].detach()).reshape(*self.mu.batch, -1, 1)

    def tangent(self, y: Tensor) -> Tangent:
        """u, of the column sqrt(w) u."""
        return self.mu.tangent(Tangent([y.reshape(self.mu.x.shape) / self.root]))

    def push(self, V: Tensor) -> Tensor:
        """J V."""
        moved = (self.field.jvp(self.t, self.mu, self.tangent(y)) for y in V.unbind(-1))
        return torch.cat([self._finite(u) for u in moved], -1)

    def pull(self, W: Tensor) -> Tensor:
        """J* W: `vjp` maps covectors, which have weights, to covectors."""
        covectors = (self.tangent(y) * self.mu.w.detach() for y in W.unbind(-1))
        pulled = (self.mu.sharp(self.field.vjp(self.t, self.mu, c)) for c in covectors)
        return torch.cat([self._finite(u) for u in pulled], -1)

    def _finite(self, u: Tangent) -> Tensor:
        if not bool(torch.isfinite(u[0]).all()):
            raise NotFiniteError(
                f"a derivative of {self.field!r} is not finite; divide its Q and V by 10.", u
            )
        return self.flat(u)


def _start(J: Jacobian, rng: int | np.random.Generator, start: Tangent | None) -> Tensor:
    """Orthonormal columns to start from, a random one and perhaps that of the user."""
    noise = checks.generator(rng).standard_normal(J.mu.x.shape)
    V = _unit(J.flat(Tangent([torch.from_numpy(noise).to(J.mu.x)])))
    if start is None:
        return V
    own = J.flat(as_tangent(start, "start", J.mu.shapes()))
    return torch.cat([V, orthonormal(own, V)], -1)


def _unit(V: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(V, dim=-2, keepdim=True)
    return V / torch.where(length > 0, length, 1.0)
