"""The local Lipschitz constant of a velocity field on a cloud of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow import checks, status
from otflow.errors import ConvergenceError, NotFiniteError
from otflow.fields import VelocityField
from otflow.measures import Particles
from otflow.tangent import Tangent, as_tangent


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
    field: VelocityField,
    mu: Particles,
    t: float = 0.0,
    *,
    tol: float = 1e-6,
    max_iter: int = 500,
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
        field, t: any velocity field, and when.
        mu: a cloud without tokens of weight zero.
        tol: on the residual; at least 100 rounding errors of the dtype of mu.
        max_iter: limit on the steps.
        basis: how many directions are kept; when they are all there, the best half stays.
        rng: a seed for the random direction that the search starts from.
        start: a direction to begin with, say that of a similar cloud; a random one is always added.
        on_failure: "raise" raises `ConvergenceError`, which carries the result, if ``tol`` is missed.

    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[0.0]], [[0.0]], [[3.0]])  # the mean, times three
    >>> local_constant(field, of.Particles([[0.0], [1.0], [5.0]]))
    LocalConstant(3, residual ...)
    """
    J = Jacobian(checks.instance(field, VelocityField, "field"), detached(mu), t)
    tol = max(checks.positive(tol, "tol"), 100 * torch.finfo(mu.dtype).eps)
    if checks.count(basis, "basis") < 4:
        checks.fail("basis", basis, "at least four directions are needed", "leave it at 12")
    strict, max_iter = checks.raises(on_failure), checks.count(max_iter, "max_iter")
    found = _lanczos(J, _first(J, rng, start), tol, max_iter, max(2, min(basis, mu.n * mu.d)))
    late = found.residual > tol
    ended = status.names(torch.where(late, status.code("max_iter"), status.code("ok")))
    u, image = (J.tangent(y) for y in (found.u, found.image))
    result = LocalConstant(found.sigma, u, image, found.residual, found.steps, ended)
    if strict and bool(late.any()):
        raise ConvergenceError(
            f"local_constant: residual {float(found.residual.max()):.1g} after {found.steps} steps, tol = "
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
    """J on flat vectors sqrt(w) u, (*batch, n d), where L2(mu) is Euclidean and J* is the transpose."""

    field: VelocityField
    mu: Particles
    t: float

    @property
    def root(self) -> Tensor:
        return self.mu.w.detach().sqrt()[..., None]

    def flat(self, u: Tangent) -> Tensor:
        """sqrt(w) u."""
        return (self.root * self.mu.tangent(u)[0].detach()).reshape(*self.mu.batch, -1)

    def tangent(self, y: Tensor) -> Tangent:
        """u, of sqrt(w) u."""
        return self.mu.tangent(Tangent([y.reshape(self.mu.x.shape) / self.root]))

    def push(self, y: Tensor) -> Tensor:
        """J y."""
        return self._finite(self.field.jvp(self.t, self.mu, self.tangent(y)))

    def pull(self, y: Tensor) -> Tensor:
        """J* y: `vjp` maps covectors, which have weights, to covectors."""
        covector = self.tangent(y) * self.mu.w.detach()
        return self._finite(self.mu.sharp(self.field.vjp(self.t, self.mu, covector)))

    def _finite(self, u: Tangent) -> Tensor:
        if not bool(torch.isfinite(u[0]).all()):
            raise NotFiniteError(f"a derivative of {self.field!r} is not finite; rescale its weights.", u)
        return self.flat(u)


def _first(J: Jacobian, rng: int | np.random.Generator, start: Tangent | None) -> list[Tensor]:
    """The flat vectors to start from."""
    noise = np.random.default_rng(rng).standard_normal(J.mu.x.shape)
    ways = [Tangent([torch.from_numpy(noise).to(J.mu.x)])]
    if start is not None:
        ways.insert(0, as_tangent(start, "start", J.mu.shapes()))
    return [J.flat(u) for u in ways]


class Found(NamedTuple):
    """The best direction so far: flat u and Ju, |Ju|, and how far it is from singular."""

    u: Tensor
    image: Tensor
    sigma: Tensor
    residual: Tensor
    steps: int


def _lanczos(J: Jacobian, first: list[Tensor], tol: float, max_iter: int, room: int) -> Found:
    """Rayleigh and Ritz on a growing basis U with images Z = JU, enlarged by the residual of the best."""
    U, Z = (torch.zeros_like(first[0])[..., None, :].repeat_interleave(room, -2) for _ in range(2))
    for i, r in enumerate(first):
        _enlarge(J, U, Z, i, r)
    k, steps = len(first), 1
    while True:
        Y = torch.linalg.eigh(Z[..., :k, :] @ Z[..., :k, :].mT).eigenvectors.flip(-1)
        found, r = _best(J, U[..., :k, :], Z[..., :k, :], Y[..., 0], steps)
        if steps == max_iter or bool((found.residual <= tol).all()):
            return found
        if k == room:  # thick restart
            k = room // 2
            for W in (U, Z):
                W[..., :k, :] = Y[..., :k].mT @ W
        _enlarge(J, U, Z, k, r)
        k, steps = k + 1, steps + 1


def _enlarge(J: Jacobian, U: Tensor, Z: Tensor, k: int, r: Tensor) -> None:
    """The part of r that is orthogonal to the first k rows of U becomes the next one; zero if it has none."""
    for _ in range(3):  # the first pass may leave rounding only, which the others make orthogonal
        r = _unit(r)
        r = r - ((r[..., None, :] @ U[..., :k, :].mT) @ U[..., :k, :])[..., 0, :]
    spent = torch.linalg.vector_norm(r, dim=-1, keepdim=True) < 0.5
    U[..., k, :] = torch.where(spent, 0.0, _unit(r))
    Z[..., k, :] = J.push(U[..., k, :])


def _unit(r: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(r, dim=-1, keepdim=True)
    return r / torch.where(length > 0, length, 1.0)


def _best(J: Jacobian, U: Tensor, Z: Tensor, y: Tensor, steps: int) -> tuple[Found, Tensor]:
    """The combination y of the basis, and J*z - sigma u where Ju = sigma z."""
    u, image = ((y[..., None, :] @ W)[..., 0, :] for W in (U, Z))
    sigma = torch.linalg.vector_norm(image, dim=-1)
    r = J.pull(_unit(image)) - sigma[..., None] * u
    scale = torch.where(sigma > 0, sigma, 1.0)  # J = 0 needs no direction
    return Found(u, image, sigma, torch.linalg.vector_norm(r, dim=-1) / scale, steps), r
