"""Targets: energies that draw a measure towards one, squared distances to it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.derivatives import refuse_func
from otflow.base.kernels import row_tiles
from otflow.base.linalg import procrustes
from otflow.base.spaces import Euclidean, Space
from otflow.base.tangent import Tangent, align
from otflow.energies.base import Bounds, Energy, gradient, one_each
from otflow.measures import Gaussian, Measure, Particles
from otflow.measures.base import copied
from otflow.transport.bures.roots import equal_width
from otflow.transport.comparable import Pair, atoms, pair, side_by_side
from otflow.transport.discrepancy import GaussianKernel, Kernel, admit_kernel, kernel_values, mmd
from otflow.transport.entropic.options import Sinkhorn, as_options
from otflow.transport.entropic.sinkhorn import sinkhorn_divergence, unrounded_divergence
from otflow.transport.exact.wasserstein import wasserstein
from otflow.transport.ranges import squared


class Towards(Energy):
    """A function of a measure and a target, which is checked against the measure."""

    def __init__(self, target: Measure) -> None:
        self.target: Measure = copied(checks.instance(target, Measure, "target"))

    def admit(self, mu: Measure) -> None:
        """Refuse measures that live elsewhere than the target, or are of another kind."""
        (space, d), (own, own_d) = place(mu, "mu"), place(self.target, "target")
        if isinstance(mu, Gaussian) != isinstance(self.target, Gaussian):
            checks.fail(
                "target",
                repr(self.target),
                f"it cannot be compared with {mu!r}, since a Gaussian has no atoms",
                "pass two Gaussians, or sample the Gaussian",
            )
        if (own, own_d) != (space, d):
            rule = f"the measure lives on {space} in dimension {d}"
            checks.fail(
                "target",
                f"{self.target!r} in dimension {own_d}",
                rule,
                "pass a target of that space and dimension",
            )
        checks.alike(self.target.coords[0], "target", mu.coords[0], "the measure")
        if not checks.extends(mu.batch, self.target.batch):
            rule = f"it does not broadcast to that of the measure, {tuple(mu.batch)}"
            remedy = "give the target the batch axes of the measure, or none"
            checks.fail("target.batch", self.target.batch, rule, remedy)

    @abstractmethod
    def unrefused(self, mu: Measure) -> Tensor:
        """F(mu) as well as floating point can say it: 0, say, where a square has no room."""

    def covector_at(self, mu: Measure, coords: Sequence[Tensor], *, create_graph: bool) -> Tangent:
        # Slopes are of the size of a distance, and known where its square is refused.
        value = self.unrefused(mu)
        one_each(value, mu)
        return gradient(value.sum(), coords, create_graph=create_graph)

    def wants_graph(self, mu: Measure) -> bool:
        return super().wants_graph(mu) or super().wants_graph(self.target)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r})"


class SquaredWasserstein(Towards):
    """F(mu) = W2(mu, target)^2, without a factor 1/2: its descent runs at x' = -2 (x - Tx).

    T is the optimal map, or the mean of where the optimal plan sends x; between Gaussians all is in closed
    form. The plan is exact and certified, see `wasserstein`. Labels are ignored.

    The gradient is that of F wherever the optimal plan is unique, and else one of the possible slopes, as
    where tokens coincide that are to go apart. F itself has second derivatives between Gaussians through its
    differential only, and between clouds not at mu = target.

    Args:
        target: of the kind of the measures that come: `Particles` on the same space or a `Grid`, whose
            density is constant on cells (in the plane, what cells decide is refused), or a `Gaussian`. Its
            batch axes are those of the measure, or broadcast to them.

    References: Ambrosio, Gigli and Savare 2008, "Gradient flows", Section 10.2.

    >>> from otflow import SquaredWasserstein
    >>> import otflow as of
    >>> F = SquaredWasserstein(of.Particles([[0.0], [1.0]]))
    >>> mu = of.Particles([[3.0], [2.0]])
    >>> F(mu).item()
    4.0
    >>> of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[0].flatten()
    tensor([-4., -4.], dtype=torch.float64)
    """

    def __call__(self, mu: Measure) -> Tensor:
        self.admit(mu)
        return squared(wasserstein(mu, self.target), "F(mu)")

    def unrefused(self, mu: Measure) -> Tensor:
        self.admit(mu)
        return wasserstein(mu, self.target).square()

    def covector_at(self, mu: Measure, coords: Sequence[Tensor], *, create_graph: bool) -> Tangent:
        # 2 W2 dW2 rather than d(W2^2), on whose way through units squares may over- or underflow.
        distance = wasserstein(mu, self.target)
        one_each(distance, mu)
        slope = gradient(distance.sum(), coords, create_graph=create_graph)
        factor = 2 * (distance if create_graph else distance.detach())
        return slope.map(lambda c: c * align(factor, c))

    def differential(self, mu: Measure) -> Tangent:
        self.admit(mu)
        if not isinstance(mu, Gaussian):
            return super().differential(mu)
        # 2 (m1 - m2) and 2 (R1 - R2 U), U orthogonal, which is differentiable in its turn
        own = len(self.target.batch)
        mean, root = (c.double().expand(*mu.batch, *c.shape[own:]) for c in self.target.coords)
        a, b = equal_width(mu.root.double(), root)
        slope = Tangent([2 * (mu.mean.double() - mean), -2 * procrustes(a, b)[..., : mu.root.shape[-1]]])
        return slope.map(lambda c: c.to(mu.dtype))


class SinkhornDivergence(Towards):
    """F(mu) = OT_eps(mu, target) - (OT_eps(mu, mu) + OT_eps(target, target)) / 2, for the cost |x - y|^2.

    The differential is that of the optimal dual potentials (envelope theorem); Gaussians are compared in
    closed form. Labels are ignored.

    Args:
        target: as for `SquaredWasserstein`.
        eps: regularisation, > 0, in units of squared distances, or `Sinkhorn` with its options.

    References: Feydy, Sejourne, Vialard, Amari, Trouve and Peyre 2019, "Interpolating between optimal
    transport and MMD using Sinkhorn divergences", (3) and Theorem 1.

    >>> from otflow import SinkhornDivergence
    >>> import otflow as of
    >>> F = SinkhornDivergence(of.Particles([[0.0], [1.0]]), 0.5)
    >>> mu = of.Particles([[2.0], [3.0]])
    >>> round(F(mu).item(), 6)  # a translation by 2
    4.0
    >>> of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[0].flatten()
    tensor([-4., -4.], dtype=torch.float64)
    """

    def __init__(
        self,
        target: Measure,
        eps: float | Sinkhorn,
    ) -> None:
        super().__init__(target)
        self.sinkhorn = as_options(eps)
        self.eps = self.sinkhorn.eps

    @property
    def precision(self) -> float:
        return self.sinkhorn.tol

    def __call__(self, mu: Measure) -> Tensor:
        self.admit(mu)
        return sinkhorn_divergence(mu, self.target, self.sinkhorn)

    def unrefused(self, mu: Measure) -> Tensor:
        self.admit(mu)
        return unrounded_divergence(mu, self.target, self.sinkhorn)

    def __repr__(self) -> str:
        return f"SinkhornDivergence({self.target!r}, eps={self.eps:g})"


class MMD(Towards):
    """F(mu) = 1/2 MMD(mu, target)^2 = 1/2 int int k(x, y) d(mu - target)(x) d(mu - target)(y).

    The square, since the distance itself has no gradient at the target; and half of it, as of all
    interactions, so that the first variation of F is the witness f = int k(., y) d(mu - target)(y), along
    whose gradient the descent runs: x' = -grad f(x). The differential takes O(n) memory. Labels are ignored.

    Args:
        target: `Particles` on the same space, or a `Grid`.
        kernel: `GaussianKernel(scale)`, `LaplaceKernel(scale)`, `EnergyKernel()` or a symmetric function,
            as for `mmd`.

    References: Arbel, Korba, Salim and Gretton 2019, "Maximum mean discrepancy gradient flow", Section 2.

    >>> from otflow import MMD
    >>> import otflow as of
    >>> F = MMD(of.Particles([[3.0]]), of.transport.EnergyKernel())
    >>> mu = of.Particles([[0.0], [1.0]])
    >>> F(mu).item()  # half of 2 * 2.5 - 0.5 - 0
    2.25
    >>> of.SteepestDescent(F, of.Wasserstein())(0.0, mu)[0].flatten()
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """

    def __init__(self, target: Measure, kernel: Kernel) -> None:
        super().__init__(target)
        atoms(self.target, "target")
        self.kernel: Kernel = checks.function(kernel, "kernel")

    def __call__(self, mu: Measure) -> Tensor:
        self.admit(mu)
        return squared(mmd(mu, self.target, self.kernel), "2 F(mu)") / 2

    def unrefused(self, mu: Measure) -> Tensor:
        self.admit(mu)
        return mmd(mu, self.target, self.kernel).square() / 2

    def curvature_bounds(self, mu: Measure) -> Bounds:
        """D^2 k of a Gaussian kernel has eigenvalues in [-1, 2 e^(-3/2)] / scale^2; mu and target add up."""
        if not isinstance(self.kernel, GaussianKernel):
            return super().curvature_bounds(mu)
        bound = (1 + 2 * math.exp(-1.5)) / self.kernel.scale**2
        return -bound, bound

    def differential(self, mu: Measure) -> Tangent:
        self.admit(mu)
        graph, kinks = self.wants_graph(mu), not getattr(self.kernel, "smooth", True)
        # Where kernels with a kink meet, second derivatives do not exist; those of `mmd` say so.
        if not isinstance(mu, Particles) or (graph and kinks):
            return super().differential(mu)
        return _witness_slope(mu, self, graph)

    def wants_graph(self, mu: Measure) -> bool:
        if super().wants_graph(mu) or not torch.is_grad_enabled():
            return torch.is_grad_enabled()
        x = mu.probe().detach().double()
        return self.kernel(x[..., :, None, :], x[..., None, :, :]).requires_grad

    def __repr__(self) -> str:
        return f"MMD({self.target!r}, {self.kernel!r})"


# --- the slope of the witness --------------------------------------------------------------------------


def _witness_slope(mu: Particles, F: MMD, graph: bool) -> Tangent:
    """w_i grad f(x_i), the measures under the integral of f standing still: k is symmetric."""
    both = pair(mu, F.target)
    admit_kernel(both, F.kernel)
    if not graph:
        both = both._replace(x=both.x.detach(), w=both.w.detach(), y=both.y.detach(), v=both.v.detach())
    tiles = row_tiles(mu.n, both.x.numel() + both.y.numel())
    slope = side_by_side(lambda rows: _pull(F.kernel, both, rows, graph), list(tiles))
    return Tangent([slope.reshape(mu.x.shape).to(mu.dtype)])


def _pull(kernel: Kernel, both: Pair, rows: slice, graph: bool) -> Tensor:
    """w_i grad f(x_i) for some rows, (B, r, d)."""
    refuse_func()
    with torch.enable_grad():
        z = both.x[:, rows]
        z = z if z.requires_grad else z.requires_grad_()
        terms = (
            kernel_values(kernel, z, far) * mass[:, None, :]
            for far, mass in ((both.x, both.w), (both.y, both.v))
        )
        ours, theirs = (part.sum(-1) for part in terms)
        total = (both.w[:, rows] * (ours - theirs)).sum()
        return gradient(total, [z], create_graph=graph)[0]


# --- checks --------------------------------------------------------------------------------------------


def place(mu: Measure, name: str) -> tuple[Space, int]:
    """The space in which a measure lives, and its dimension."""
    if isinstance(mu, Gaussian):
        return Euclidean(), mu.d
    x, _, space = atoms(mu, name)
    return space, x.shape[-1]
