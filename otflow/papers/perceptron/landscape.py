"""The landscape that attention and a perceptron make on a sphere: first and second variation.

Everything here is in the shifted kernel k(x, y) = exp(beta (x.y - 1)) <= 1, which no beta overflows:

    E[mu] = 1/(2 beta) int int k dmu dmu + 1/2 int v dmu,   v(x) = sum_j omega_j phi(a_j.x),   phi' = 2 sigma.

`otflow.papers.perceptron` says how this is the printed energy, and offers all of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.spaces import Sphere, norm
from otflow.measures import Measure, Particles

LEAST, MOST = 1e-300, 1e12  # of beta: 1 / beta is a number, and beta x.y has digits after the point


class Activation(ABC):
    """sigma with its derivative and the primitive phi, phi' = 2 sigma, which the energy needs.

    To write your own, give the three functions, elementwise in torch, and a Lipschitz constant of sigma.

    >>> from otflow.papers.perceptron import ReLU
    >>> import torch
    >>> z = torch.tensor([-1.0, 2.0])
    >>> ReLU()(z), ReLU().primitive(z)
    (tensor([0., 2.]), tensor([0., 4.]))
    """

    lipschitz: ClassVar[float]

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """sigma(z)."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """sigma'(z)."""

    @abstractmethod
    def primitive(self, z: Tensor) -> Tensor:
        """phi(z), with phi' = 2 sigma."""


@dataclass(frozen=True)
class ReLU(Activation):
    """sigma(z) = max(z, 0), phi(z) = max(z, 0)^2; sigma'(0) is taken as 0.

    >>> from otflow.papers.perceptron import ReLU
    >>> import torch
    >>> ReLU().derivative(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0., 0., 1.])
    """

    lipschitz: ClassVar[float] = 1.0

    def __call__(self, z: Tensor) -> Tensor:
        return z.clamp(min=0)

    def derivative(self, z: Tensor) -> Tensor:
        return (z > 0).to(z.dtype)

    def primitive(self, z: Tensor) -> Tensor:
        return z.clamp(min=0).square()


@dataclass(frozen=True)
class GELU(Activation):
    """sigma(z) = z N(z), phi(z) = (z^2 - 1) N(z) + z N'(z), N the distribution function of N(0, 1).

    The steepest place of sigma is z = sqrt(2), with slope 1.1289.

    >>> from otflow.papers.perceptron import GELU
    >>> import torch
    >>> GELU()(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.8413])
    """

    lipschitz: ClassVar[float] = 0.5 * (1 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)

    def __call__(self, z: Tensor) -> Tensor:
        return z * _normal(z)

    def derivative(self, z: Tensor) -> Tensor:
        return _normal(z) + z * _bell(z)

    def primitive(self, z: Tensor) -> Tensor:
        return (z.square() - 1) * _normal(z) + z * _bell(z)


@dataclass(frozen=True)
class Tanh(Activation):
    """sigma(z) = tanh(z), phi(z) = 2 log cosh(z).

    >>> from otflow.papers.perceptron import Tanh
    >>> import torch
    >>> Tanh().primitive(torch.tensor(1000.0)).item()  # 2 (1000 - log 2)
    1998.6137...
    """

    lipschitz: ClassVar[float] = 1.0

    def __call__(self, z: Tensor) -> Tensor:
        return torch.tanh(z)

    def derivative(self, z: Tensor) -> Tensor:
        return 1 - torch.tanh(z).square()

    def primitive(self, z: Tensor) -> Tensor:
        size = z.abs()
        return 2 * (size + torch.log1p(torch.exp(-2 * size)) - math.log(2))


def _normal(z: Tensor) -> Tensor:
    out: Tensor = torch.special.ndtr(z)
    return out


def _bell(z: Tensor) -> Tensor:
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


RELU = ReLU()  # the default: it has no state, so that one serves all


@dataclass(frozen=True, eq=False)
class Landscape:
    """beta and the perceptron, checked: the common ground of all functions here."""

    beta: float
    a: Tensor
    omega: Tensor
    activation: Activation

    @staticmethod
    def of(beta: float, a: Any, omega: Any, activation: Activation) -> Landscape:
        if not LEAST <= checks.positive(beta, "beta") <= MOST:
            rule = f"beta x.y and 1 / beta have digits for beta in [{LEAST:g}, {MOST:g}]"
            checks.fail("beta", beta, rule, f"pass beta={min(max(beta, LEAST), MOST):g}")
        return Landscape(float(beta), *neurons(a, omega), known(activation))

    def detached(self) -> Landscape:
        """Without derivatives in the neurons."""
        return replace(self, a=self.a.detach(), omega=self.omega.detach())

    def admit(self, mu: Measure) -> tuple[Tensor, Tensor]:
        """Positions (*batch, n, d) and weights (*batch, n) in float64, of tokens on the sphere."""
        if not isinstance(mu, Particles) or not isinstance(mu.space, Sphere):
            remedy = "pass Particles(x, space=Sphere()), |x| = 1"
            checks.fail("mu", repr(mu), "tokens on a sphere are needed", remedy)
        self.fits(mu.d)
        return mu.x.double(), mu.w.double()

    def fits(self, d: int) -> None:
        if d < 2 or self.a.shape[-1] != d:
            rule = f"neurons and tokens share one dimension d >= 2, and tokens have d = {d}"
            checks.fail("a.shape", tuple(self.a.shape), rule, "pass a with d columns")

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """exp(beta (x.y - 1)), (*batch, n, m)."""
        return torch.exp(self.beta * (x @ y.mT - 1))

    def potential(self, x: Tensor) -> Tensor:
        """v(x), (*batch, n)."""
        return self.activation.primitive(x @ self.a.mT) @ self.omega

    def pull(self, x: Tensor) -> Tensor:
        """sum_j omega_j sigma(a_j.x) a_j, which is half the gradient of v in the ambient space."""
        return (self.activation(x @ self.a.mT) * self.omega) @ self.a

    def bend(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Matrices (*batch, n, d, d) whose form on tangent vectors at x is the Hessian of dE/dmu there."""
        k, z = w[..., None, :] * self.kernel(x, y), x @ self.a.mT
        gate = self.omega * self.activation.derivative(z)
        outer = self.beta * _moments(k, y) + _moments(gate, self.a)
        # Along a great circle x'' = -|xi|^2 x, so that every gradient g adds -g.x |xi|^2.
        radial = (k * (x @ y.mT)).sum(-1) + (self.activation(z) * z) @ self.omega
        return outer - radial[..., None, None] * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def _moments(c: Tensor, y: Tensor) -> Tensor:
    """sum_j c_ij y_j y_j^T, (*batch, n, d, d)."""
    return torch.einsum("...ij,...ja,...jb->...iab", c, y, y)


def neurons(a: Any, omega: Any) -> tuple[Tensor, Tensor]:
    """a (m, d) and omega (m,) in float64."""
    a, omega = (checks.tensor(value, name).double() for value, name in ((a, "a"), (omega, "omega")))
    if a.ndim != 2 or 0 in a.shape or omega.shape != a.shape[:1]:
        shapes = tuple(a.shape), tuple(omega.shape)
        rule = "(m, d) and (m,) are needed: a direction and a weight for each of m >= 1 neurons"
        checks.fail("a.shape, omega.shape", shapes, rule, "pass one omega per row of a")
    curvature_bound(a, omega)
    return a, omega


def curvature_bound(a: Tensor, omega: Tensor) -> Tensor:
    """2 sum_j |omega_j| |a_j|^2, if that is a number; v and its derivatives are no larger."""
    C = 2 * (omega.abs() * a.square().sum(-1)).sum()
    if not C.isfinite():
        rule = "it leaves floating point"
        checks.fail("sum_j |omega_j| |a_j|^2", C.item(), rule, f"divide omega by {C.item():.3g}")
    return C


def known(activation: Any) -> Activation:
    """An activation that has a primitive."""
    if not isinstance(activation, Activation):
        rule = "the energy needs a primitive of sigma, which a bare function does not have"
        remedy = "pass ReLU(), GELU(), Tanh(), or an Activation of your own"
        checks.fail("activation", f"{activation!r:.60}", rule, remedy)
    return activation


def first_variation(
    mu: Measure, x: Any, beta: float, a: Any, omega: Any, activation: Activation = RELU
) -> Tensor:
    """dE/dmu(x) = 1/beta int exp(beta (x.y - 1)) dmu(y) + v(x) / 2: what a grain of mass feels at x.

    E is strictly convex along mixtures of measures, since its kernel is positive definite; so mu is the one
    global minimiser iff this is least on all of supp(mu).

    Args:
        mu: tokens (*batch, n, d) on the sphere.
        x: points (*batch, m, d) of the sphere.
        beta, a, omega, activation: as in `energy`.

    Returns:
        (*batch, m).

    >>> from otflow.papers.perceptron import first_variation
    >>> import otflow as of
    >>> mu = of.Particles([[1.0, 0.0]], space=of.Sphere())
    >>> first_variation(mu, [[1.0, 0.0]], 2.0, [[1.0, 0.0]], [3.0])  # 1/2 + 3/2
    tensor([2.], dtype=torch.float64)
    """
    L = Landscape.of(beta, a, omega, activation)
    y, w = L.admit(mu)
    points, _ = L.admit(Particles(checks.tensor(x, "x").double(), space=Sphere()))
    try:
        torch.broadcast_shapes(points.shape[:-2], y.shape[:-2])
    except RuntimeError:
        checks.fail("x.shape", tuple(points.shape), f"mu has {tuple(y.shape)}", "pass batches that broadcast")
    return (L.kernel(points, y) @ w[..., None])[..., 0] / L.beta + L.potential(points) / 2


def residual(mu: Measure, beta: float, a: Any, omega: Any, activation: Activation = RELU) -> Tensor:
    """max |int exp(beta (x.y - 1)) P_x y dmu(y) + u(x)| over x in supp(mu): 0 iff mu is stationary.

    Tokens without mass do not count.

    Args:
        mu: tokens (*batch, n, d) on the sphere.
        beta, a, omega, activation: as in `energy`.

    Returns:
        (*batch,).

    >>> from otflow.papers.perceptron import residual
    >>> import otflow as of
    >>> mu = of.Particles([[1.0, 0.0], [-1.0, 0.0]], space=of.Sphere())
    >>> residual(mu, 2.0, [[0.0, 1.0]], [3.0]).item()
    0.0

    Reference: Alvarez-Lopez, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366.
    """
    L = Landscape.of(beta, a, omega, activation)
    x, w = L.admit(mu)
    size = norm(Sphere().tangent(x, slope(L, x, w)))
    return torch.where(w > 0, size, torch.zeros_like(size)).amax(-1)


def slope(L: Landscape, x: Tensor, w: Tensor) -> Tensor:
    """The gradient of dE/dmu at the tokens in the ambient space, (*batch, n, d)."""
    return L.kernel(x, x) @ (w[..., None] * x) + L.pull(x)


@dataclass(frozen=True, eq=False)
class SecondVariation:
    """The Hessian of E at a cloud, what it says of atoms that move whole, and of atoms that split.

    With orthonormal ``frames`` (*batch, n, d-1, d) of the tangent spaces, ``matrix`` (*batch, n(d-1), n(d-1))
    is the form of xi -> d^2/ds^2 E[(exp(s xi))_# mu] for fields xi_i = frame_i^T c_i with one value on each
    atom, and ``least`` (*batch,) its smallest value where int |xi|^2 dmu = 1. ``splitting`` (*batch, n) are
    the smallest eigenvalues of Hess dE/dmu at the atoms.
    """

    matrix: Tensor
    frames: Tensor
    least: Tensor
    splitting: Tensor

    def __repr__(self) -> str:
        return f"SecondVariation(least={self.least.min():.6g}, splitting={self.splitting.min():.6g})"


def second_variation(
    mu: Measure, beta: float, a: Any, omega: Any, activation: Activation = RELU
) -> SecondVariation:
    """d^2/ds^2 E = sum_i w_i H_i[xi_i, xi_i] + sum_ij w_i w_j M_ij[xi_i, xi_j], along great circles.

    Here H_i is the Hessian of dE/dmu at x_i, the atom's own share -w_i |xi|^2 included, and M_ij[xi, eta] =
    k(x_i, x_j) (xi.eta + beta (xi.x_j)(x_i.eta)), the mixed derivative of k / beta, is positive semidefinite
    as that of a positive definite kernel. Two tests follow:

    - A stationary mu is second-order (SOPD) iff the whole form is >= 0, ``least >= 0``: every atom moves as
      one. This is the notion of the paper.
    - If the mass of an atom may go different ways, xi_i is random and its mean alone enters M. With mean zero
      H_i >= 0 is seen to be necessary; since M >= 0 it also suffices. So mu is stable against splitting iff
      ``splitting >= 0``, and then it is second-order too.

    For ReLU, v'' jumps where a_j.x = 0; there the side a_j.x <= 0 is meant.

    Args:
        mu: tokens (*batch, n, d) on the sphere.
        beta, a, omega, activation: as in `energy`.

    >>> from otflow.papers.perceptron import second_variation
    >>> import otflow as of
    >>> mu = of.Particles([[1.0, 0.0], [-1.0, 0.0]], space=of.Sphere())
    >>> second_variation(mu, 0.02, [[1.0, 0.0]], [0.0])  # antipodes: second-order, but they would split
    SecondVariation(least=0, splitting=-0.0196053)

    References: Alvarez-Lopez, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366, for the notion.
    """
    L = Landscape.of(beta, a, omega, activation)
    x, w = L.admit(mu)
    F, H = hessians(L, x, w)
    n, r = H.shape[-3:-1]
    own = torch.eye(n, dtype=x.dtype, device=x.device)[:, None, :, None]
    root = w.sqrt()[..., None].expand(*w.shape, r).flatten(-2)
    pairs = root[..., :, None] * root[..., None, :]
    # In the unknowns sqrt(w_i) c_i nothing is divided by a mass, which may be tiny.
    scaled = (H[..., None, :] * own).reshape(pairs.shape) + pairs * _mixed(L, x, F).reshape(pairs.shape)
    least = torch.linalg.eigvalsh((scaled + scaled.mT) / 2)[..., 0]
    return SecondVariation(pairs * scaled, F, least, torch.linalg.eigvalsh(H)[..., 0])


def hessians(L: Landscape, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Frames of the tangent spaces, and in them the Hessians of dE/dmu, (*batch, n, d-1, d-1)."""
    F = frames(x)
    return F, F @ L.bend(x, x, w) @ F.mT


def frames(x: Tensor) -> Tensor:
    """Orthonormal bases of the tangent spaces, (*batch, n, d-1, d), by a reflection of e_1 to x or -x."""
    d = x.shape[-1]
    eye = torch.eye(d, dtype=x.dtype, device=x.device)
    v = x + torch.where(x[..., :1] >= 0, 1.0, -1.0) * eye[0]
    reflected = eye - 2 * v[..., :, None] * v[..., None, :] / v.square().sum(-1)[..., None, None]
    return reflected[..., 1:, :]


def _mixed(L: Landscape, x: Tensor, F: Tensor) -> Tensor:
    """M_ij in the frames, (*batch, n, d-1, n, d-1)."""
    turn = torch.einsum("...iad,...jbd->...iajb", F, F)
    seen = torch.einsum("...iad,...jd->...iaj", F, x)
    crossed = torch.einsum("...iaj,...jbi->...iajb", seen, seen)
    return L.kernel(x, x)[..., :, None, :, None] * (turn + L.beta * crossed)
