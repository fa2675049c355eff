"""Means E[f(X)] under Gaussian laws, with slopes that are right where f has a kink or jumps.

With X = m + R z the slope in (m, R) is (E[grad f], E[grad f z^T]) for smooth f. By Stein's identity

    R^T E[grad f] = E[f z],    R^T E[grad f z^T] = E[f (z z^T - I)],

and the right sides need no derivative of f. Where both sides agree on the points of a small rule the left
ones are used; else points stay where they are and the density moves, f being sampled on a mesh made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import followed
from otflow.base.integrals import meshes, quadrature
from otflow.base.linalg import sqrtm
from otflow.base.tangent import Tangent, align
from otflow.measures import Gaussian

RTOL = 1e-6  # of energies, unless the user says
ROUNDED = 100  # roundings below which no tolerance is asked for: 2e-14, and 1e-5 in single precision; chosen
Function = Callable[[Tensor], Tensor]  # (*batch, n, d) -> (*batch, n)
Doubt = Callable[[Tensor, Tensor], Tensor]  # points and weights -> relative error of what f was taken for


class Doubted(Exception):
    """A function of differences is none, at the points of a mesh that was made for it."""


def mean(f: Function, mu: Gaussian, rtol: float, name: str, doubt: Doubt | None = None) -> Tensor:
    """E[f(X)] for X ~ mu up to rtol E|f(X)|, (*batch,); differentiable as often as f is, on a mesh always.

    A function of differences comes with a ``doubt``: it may be narrow at 0, and `Doubted` is raised if it is
    not that after all. Raises `InputError` if the tolerance cannot be had, with one that can.
    """
    rules, u = _sampled(f, mu)
    value = u @ rules.fine
    with torch.no_grad():
        error = quadrature.worst_gap(u, rules, mean=value)  # of slopes too: both ask for a mesh, or neither
        good = _good(error, u, rules, mu, rtol)
    if good is None:
        quadrature.note(error)
        return value
    found = _mesh(f, mu, value, good, rtol, name, doubt)
    quadrature.note(torch.where(good, error, found.error.reshape(mu.batch).to(mu.dtype)))
    return torch.where(good, value, _moving(f, mu, found))


def slope(
    f: Function, mu: Gaussian, rtol: float, name: str, doubt: Doubt | None = None, *, create_graph: bool
) -> Tangent:
    """The derivative of E[f(X)] in mean and root, which must require gradients."""
    rules, u = _sampled(f, mu)
    value = u @ rules.fine
    path = _gradient(value, mu, create_graph)
    with torch.no_grad():
        found = mu.root.mT @ torch.cat([path[0][..., None], path[1]], -1)
        error = quadrature.worst_gap(u, rules, found, value)
        good = _good(error, u, rules, mu, rtol)
    if good is None:
        quadrature.note(error)
        return path
    points = _mesh(f, mu, value, good, rtol, name, doubt)
    quadrature.note(torch.where(good, error, points.error.reshape(mu.batch).to(mu.dtype)))
    moved = _gradient(_moving(f, mu, points), mu, create_graph)
    return path.zip(moved, lambda a, b: torch.where(align(good, a), a, b))


def pulled_slope(
    f: Function,
    mu: Gaussian,
    coords: Sequence[Tensor],
    rtol: float,
    name: str,
    doubt: Doubt | None = None,
    *,
    create_graph: bool,
) -> Tangent:
    """The derivative of E[f(X)] in ``coords``, of which the law was made."""
    found = slope(f, mu, rtol, name, doubt, create_graph=create_graph)
    if all(own is c for own, c in zip(mu.coords, coords, strict=True)):
        return found
    seen = [(c, g) for c, g in zip(mu.coords, found, strict=True) if c.requires_grad]
    outputs, slopes = ([both[k] for both in seen] for k in (0, 1))
    grads = torch.autograd.grad(outputs, list(coords), slopes, create_graph=create_graph, allow_unused=True)
    return Tangent(torch.zeros_like(c) if g is None else g for g, c in zip(grads, coords, strict=True))


def lean(mu: Gaussian) -> Gaussian:
    """The same law with a root of at most d columns."""
    return mu if mu.root.shape[-1] <= mu.d else mu.at([mu.mean, sqrtm(mu.root @ mu.root.mT)])


def resolvable(mu: Gaussian) -> bool:
    """Whether meshes go up to so many dimensions."""
    return min(mu.root.shape[-2:]) <= meshes.AXES


def _sampled(f: Function, mu: Gaussian) -> tuple[quadrature.Rules, Tensor]:
    """The two rules that are tried first, and f at their points."""
    rules = quadrature.pair(mu.root.shape[-1], quadrature.grid(mu.batch.numel()), mu.dtype, mu.device)
    return rules, f(mu.mean[..., None, :] + rules.z @ mu.root.mT)


def _good(error: Tensor, u: Tensor, rules: quadrature.Rules, mu: Gaussian, rtol: float) -> Tensor | None:
    """For which laws the first rules will do, (*batch,); None for all.

    Where f has left the finite numbers around the mean, or soon will, better points are of no help.
    """
    trusted = quadrature.STRICT[mu.root.shape[-1]]
    if bool((error <= max(trusted * rtol, _least(mu))).all()):
        return None
    core = u[..., rules.z.square().sum(-1) < 1].abs().nan_to_num(torch.inf, torch.inf).amin(-1)
    good = (error <= _tolerance(mu, trusted * rtol)) | ~(core < torch.finfo(mu.dtype).max ** 0.5)
    return None if bool(good.all()) else good


def _least(mu: Gaussian) -> float:
    return ROUNDED * torch.finfo(mu.dtype).eps


def _tolerance(mu: Gaussian, rtol: float) -> Tensor:
    """rtol, or what the rounding of m + R z leaves of it where the law is narrow, (*batch,)."""
    eps = torch.finfo(mu.dtype).eps
    width = mu.root.detach().abs().amax((-1, -2))
    rounded = 32 * eps * mu.mean.detach().abs().amax(-1) / width
    return torch.where(width > 0, rounded, torch.inf).clamp(min=max(rtol, _least(mu)))


def _gradient(value: Tensor, mu: Gaussian, create_graph: bool) -> Tangent:
    if not value.requires_grad:
        return mu.coords.map(torch.zeros_like)
    inputs = list(mu.coords)
    grads = torch.autograd.grad(
        value.sum(), inputs, create_graph=create_graph, retain_graph=True, allow_unused=True
    )
    return Tangent(torch.zeros_like(c) if g is None else g for g, c in zip(grads, inputs, strict=True))


def _mesh(
    f: Function,
    mu: Gaussian,
    centre: Tensor,
    good: Tensor,
    rtol: float,
    name: str,
    doubt: Doubt | None = None,
) -> meshes.Mesh:
    """Points made for f, for the laws on which the first rules are not good."""
    at, members = mu.detach(), mu.batch.numel()
    r = mu.root.shape[-1]

    def u(z: Tensor) -> Tensor:
        points = at.mean[..., None, :] + z.to(mu.dtype).reshape(*mu.batch, -1, r) @ at.root.mT
        return f(points).detach().reshape(members, -1)

    wanted = ~good.reshape(-1)
    tol = float(_tolerance(mu, rtol).reshape(-1)[wanted].max())
    goal = min(tol, max(meshes.GOAL, _least(mu)))
    start = centre.detach().reshape(-1).double().nan_to_num(0.0, 0.0, 0.0)  # only to subtract
    try:
        with torch.no_grad():
            found = meshes.mesh(u, start, wanted, r, tol, goal, kernel=doubt is not None)
    except meshes.Unresolved as failure:
        _refuse(failure, mu, tol, name)
    if doubt is not None:
        z, w = (a.reshape(*mu.batch, *a.shape[1:]).to(mu.dtype) for a in (found.z, found.w))
        if not bool((doubt(at.mean[..., None, :] + z @ at.root.mT, w) <= tol).all()):
            raise Doubted
    return found


def _refuse(failure: meshes.Unresolved, mu: Gaussian, tol: float, name: str) -> NoReturn:
    where = ""
    if failure.at is not None:
        member, z = failure.at
        m, R = (
            mu.mean.detach().reshape(-1, mu.d)[member],
            mu.root.detach().reshape(-1, *mu.root.shape[-2:])[member],
        )
        where = f" at x = {[float(f'{c:.4g}') for c in m.double() + R.double() @ z]}"
    why = f"{name} on {mu!r}: {failure}{where}"
    if failure.reachable is None:
        remedy = "take an energy that grows less, is wider or less singular, or Particles of the law"
        checks.fail("mu", repr(mu), why, remedy)
    remedy = f"pass rtol={failure.reachable:g} to the energy, or sample the law and use Particles"
    checks.fail("rtol", f"{tol:.3g}", why, remedy)


def _moving(f: Function, mu: Gaussian, mesh: meshes.Mesh) -> Tensor:
    """sum_q w_q rho(z_q) f(x_q), points standing still: rho is the density of the law as it is now over that
    for which the mesh was made. Where the root is singular points move along with what it does not reach.
    """
    z, w = (a.reshape(*mu.batch, *a.shape[1:]).to(mu.dtype) for a in (mesh.z, mesh.w))
    at = mu.detach()
    x = at.mean[..., None, :] + z @ at.root.mT
    forward = any(followed(c) and not c.requires_grad for c in mu.coords)  # by tangents, or by torch.func
    if not (forward or (torch.is_grad_enabled() and mu.requires_grad)):
        return (w * f(x)).sum(-1)
    inverse = torch.linalg.pinv(at.root, rtol=1e-10 if mu.dtype == torch.float64 else 1e-5)
    shift, turn = (mu.mean - at.mean)[..., None, :], mu.root - at.root
    M = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device) + inverse @ turn
    y = torch.linalg.solve(M, (z - shift @ inverse.mT).mT).mT
    log = (z.square().sum(-1) - y.square().sum(-1)) / 2 - torch.linalg.slogdet(M).logabsdet[..., None]
    off = torch.eye(mu.d, dtype=z.dtype, device=z.device) - at.root @ inverse
    if bool((off.abs() > 1e-6).any()):
        x = x + (shift + y @ turn.mT) @ off.mT
    return (w * log.exp() * f(x)).sum(-1)
