"""The twisted metric: lengths weighed by where the mass is, and by a matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import InputError
from otflow.base.linalg import sqrtm, symmetric
from otflow.base.parameters import Derived
from otflow.base.spaces import Euclidean, Torus
from otflow.base.tables import named
from otflow.base.tangent import Tangent
from otflow.measures import Gaussian, Grid, Measure, Particles
from otflow.metrics.base import Metric, Wasserstein, displacement, distance, geodesic_distance
from otflow.metrics.partition import Partition

# Gauss-Legendre nodes along a move: exact if the weight is a polynomial of degree nine along it; chosen.
NODES = 5


class Twisted(Metric):
    """The twisted metric <u, v> = int a_mu(x) u(x).M v(x) dmu(x).

    With a_mu(x) = int exp(Ax.y) dmu(y), which is ``Partition(A)``, and M = I this is the geometry in which
    softmax attention with symmetric A = -V is a gradient flow.

    Args:
        weight: ``weight(mu, x)`` -> (*batch, n), positive; None means 1.
        matrix: a constant symmetric positive definite M, (d, d); None means the identity.
        frozen: what `action` pays for a move: with the weight at its start, or (False) along all of it.

    >>> import otflow as of
    >>> mu = of.Particles([[1.0], [3.0]])
    >>> metric = of.Twisted(lambda mu, x: 2 * x[..., 0])
    >>> metric.gradient(mu, of.Tangent([mu.w[:, None]]))[0].flatten()
    tensor([0.5000, 0.1667], dtype=torch.float64)
    """

    matrix = Derived[Tensor | None](lambda m, name: _spd(m))

    def __init__(
        self,
        weight: Callable[[Measure, Tensor], Tensor] | None = None,
        *,
        matrix: Any = None,
        frozen: bool = True,
    ) -> None:
        self.weight = None if weight is None else checks.function(weight, "weight")
        self.matrix = matrix
        self.frozen = frozen

    def inner(self, mu: Measure, u: Tangent, v: Tangent) -> Tensor:
        return mu.inner(u, twist(mu, self, v, inverse=False))

    def gradient(self, mu: Measure, covector: Tangent) -> Tangent:
        return twist(mu, self, mu.sharp(covector), inverse=True)

    def action(self, mu: Measure, u: Tangent) -> Tensor:
        """The squared length of the move u: inner(mu, u, u) if frozen, else `straight_action`.

        >>> import torch
        >>> import otflow as of
        >>> mu, u = of.Particles([[1.0]]), of.Tangent([torch.ones(1, 1, dtype=torch.float64)])
        >>> for frozen in (True, False):
        ...     of.Twisted(lambda mu, x: 2 * x[..., 0], frozen=frozen).action(mu, u).item()
        2.0
        3.0
        """
        return self.inner(mu, u, u) if self.frozen else straight_action(mu, self, u)

    @property
    def quadratic(self) -> bool:
        return self.frozen or self.weight is None

    def held(self, mu: Measure) -> Metric:
        if self.weight is None or not isinstance(mu, Particles):
            return self
        a = weight_at(self, mu).detach()
        return Twisted(lambda mu, x: a, matrix=self.matrix)

    def displacement(self, mu: Measure, nu: Measure) -> Tangent:
        return twisted_displacement(mu, nu, self)

    def __repr__(self) -> str:
        parts = [] if self.weight is None else [_word(self.weight)]
        parts += [] if self.matrix is None else [f"matrix={tuple(self.matrix.shape)}"]
        return f"Twisted({', '.join(parts + ([] if self.frozen else ['frozen=False']))})"


def _word(weight: Any) -> str:
    """A weight of otflow shows itself, a function of the user its name."""
    return named(weight) if hasattr(weight, "__name__") else repr(weight)


def _spd(m: Tensor) -> Tensor:
    good = m.ndim == 2 and m.shape[0] == m.shape[1] and torch.allclose(m, m.mT)
    checks.require(good, "matrix.shape", m.shape, "a symmetric (d, d) matrix is needed", "pass (M + M.T) / 2")
    low = torch.linalg.eigvalsh(m.detach())[0].item()
    rule = "the matrix of a metric is positive definite"
    checks.require(
        low > 0, "min eigenvalue of matrix", low, rule, f"pass M + c I with c > {max(-low, 0.0):.3g}"
    )
    return symmetric(m)  # so that its gradient is symmetric too, and steps along it keep it so


# --- at a measure --------------------------------------------------------------------------------------


@singledispatch
def twist(mu: Measure, metric: Twisted, v: Tangent, *, inverse: bool) -> Tangent:
    """a M v, or its inverse M^-1 v / a."""
    checks.fail(
        "mu", repr(mu), "the twisted metric is defined for Particles and Gaussian", "use Wasserstein()"
    )


@twist.register(Grid)
def _(mu: Grid, metric: Twisted, v: Tangent, *, inverse: bool) -> Tangent:
    checks.fail(
        "mu", repr(mu), "the twisted metric is not defined on grids", "use Particles, or Wasserstein()"
    )


@twist.register(Particles)
def _(mu: Particles, metric: Twisted, v: Tangent, *, inverse: bool) -> Tangent:
    u = multiply(metric.matrix, v[0].mT, mu, inverse=inverse).mT
    if metric.weight is None:
        return mu.tangent(Tangent([u]))
    a = weight_at(metric, mu)[..., None]
    return mu.tangent(Tangent([u / a if inverse else u * a]))


@twist.register(Gaussian)
def _(mu: Gaussian, metric: Twisted, v: Tangent, *, inverse: bool) -> Tangent:
    rule = "a Gaussian stays Gaussian under a constant matrix only"
    checks.require(metric.weight is None, "weight", metric.weight, rule, "pass weight=None, or use Particles")
    mean = multiply(metric.matrix, v[0][..., None], mu, inverse=inverse)[..., 0]
    return Tangent([mean, multiply(metric.matrix, v[1], mu, inverse=inverse)])


def weight_at(metric: Twisted, mu: Particles) -> Tensor:
    """a_mu(x_i), (*batch, n), checked; 1 without a weight."""
    if metric.weight is None:
        return torch.ones_like(mu.x[..., 0])
    a: Tensor = metric.weight(mu, mu.x)
    if a.shape == mu.x.shape[:-1] and not checks.on_host(a):
        return checks.sound(a, a > 0)
    if a.shape != mu.x.shape[:-1] or not bool((a > 0).all()):
        rule, remedy = (
            f"it must be positive, of shape {tuple(mu.x.shape[:-1])}",
            "let weight(mu, x) return exp(...), say",
        )
        checks.fail("weight(mu, x)", f"shape {tuple(a.shape)}, minimum {a.min().item():g}", rule, remedy)
    return a


def in_double(metric: Twisted, mu: Particles) -> Twisted:
    """The metric for clouds like mu in double precision; a weight that refuses them is asked in its own."""
    given: Any = metric.weight
    matrix = None if metric.matrix is None else metric.matrix.double()
    if type(given) is Partition:
        return Twisted(Partition(given.A.double()), matrix=matrix)

    def narrow(nu: Particles, x: Tensor) -> Tensor:
        out: Tensor = given(nu.to(mu.dtype), x.to(mu.dtype))
        return out

    try:
        given(mu.to(torch.float64), mu.x.double())
    except (RuntimeError, TypeError, InputError):  # as of a product with a matrix in single precision
        return Twisted(narrow, matrix=matrix)  # type: ignore[arg-type]
    return Twisted(given, matrix=matrix)


def multiply(m: Tensor | None, u: Tensor, mu: Measure, *, inverse: bool = False) -> Tensor:
    """M u or M^-1 u, columns of u, if that makes sense in the space of mu."""
    if m is None:
        return u
    space = mu.space if isinstance(mu, Particles) else Euclidean()
    if not isinstance(space, Euclidean | Torus):
        rule = f"a constant matrix does not preserve the tangent spaces of {space}"
        checks.fail("matrix", "M", rule, "use weight= alone there")
    if m.shape[-1] != u.shape[-2]:
        checks.fail(
            "matrix.shape", tuple(m.shape), f"mu lives in dimension {u.shape[-2]}", "pass a (d, d) matrix"
        )
    m = checks.alike(m, "matrix", u, "mu")
    return torch.linalg.solve_ex(m, u).result if inverse else m @ u  # m was found to be positive definite


# --- along a move --------------------------------------------------------------------------------------


@singledispatch
def straight_action(mu: Measure, metric: Twisted, u: Tangent) -> Tensor:
    """int_0^1 sum_i w_i a_(mu_s)(x_i + s u_i) u_i.M u_i ds, mu_s the measure moved by s u; (*batch,).

    The atoms move at constant speed, on a sphere along great circles. By Gauss-Legendre with five nodes,
    which for a weight like exp(c s) along the move errs by 1e-9 of itself for c = 2 and by 1e-5 for c = 6.
    Differentiable in u, with the weight; mu.exp(u) is where it ends.
    """
    return metric.inner(mu, u, u)


@straight_action.register(Particles)
def _(mu: Particles, metric: Twisted, u: Tangent) -> Tensor:
    speed = (u[0] * multiply(metric.matrix, u[0].mT, mu).mT).sum(-1)
    if metric.weight is not None:
        s, ds = (torch.as_tensor(z, dtype=mu.dtype, device=mu.device) for z in _legendre())
        along = mu.at([mu.space.exp(mu.x, s.reshape(-1, *[1] * mu.x.ndim) * u[0])])
        speed = (ds.reshape(-1, *[1] * speed.ndim) * weight_at(metric, along)).sum(0) * speed
    return (mu.w * speed).sum(-1)


def _legendre() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]."""
    z, w = np.polynomial.legendre.leggauss(NODES)
    return (z + 1) / 2, w / 2


# --- distances with a matrix ---------------------------------------------------------------------------


@geodesic_distance.register(Twisted)
def _(metric: Twisted, mu: Measure, nu: Measure) -> Tensor:
    good = metric.weight is None
    rule = "a weight leaves no formula for the distance"
    checks.require(good, "metric", metric, rule, "use solve_twisted for bounds, or Wasserstein()")
    return distance(flatten(mu, metric), flatten(nu, metric), Wasserstein())


@singledispatch
def flatten(mu: Measure, metric: Twisted) -> Measure:
    """The image under M^(1/2), between which W2 is the distance that M twists."""
    checks.require(
        metric.matrix is None,
        "mu",
        mu,
        "a matrix twists Particles and Gaussians only",
        "pass Particles(*mu.nodes())",
    )
    return mu


@flatten.register(Particles)
def _(mu: Particles, metric: Twisted) -> Particles:
    good = metric.matrix is None or isinstance(mu.space, Euclidean)
    rule = "distances by a matrix are those of R^d"
    checks.require(good, "mu.space", mu.space, rule, "leave the matrix out")
    return mu if metric.matrix is None else mu.at([multiply(sqrtm(metric.matrix), mu.x.mT, mu).mT])


@flatten.register(Gaussian)
def _(mu: Gaussian, metric: Twisted) -> Gaussian:
    if metric.matrix is None:
        return mu
    mean, root = (multiply(sqrtm(metric.matrix), z, mu) for z in (mu.mean[..., None], mu.root))
    return mu.at([mean[..., 0], root])


@singledispatch
def twisted_displacement(mu: Measure, nu: Measure, metric: Twisted) -> Tangent:
    """`Metric.displacement`: the matrix makes no difference to atoms."""
    return displacement(mu, nu)


@twisted_displacement.register(Gaussian)
def _(mu: Gaussian, nu: Measure, metric: Twisted) -> Tangent:
    """Optimal between the images under M^(1/2), and mapped back."""
    u = displacement(flatten(mu, metric), flatten(nu, metric))
    if metric.matrix is None:
        return u
    mean, root = (torch.linalg.solve(sqrtm(metric.matrix), z) for z in (u[0][..., None], u[1]))
    return Tangent([mean[..., 0], root])
