"""Maximum mean discrepancies: distances between measures seen through a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import NotFiniteError
from otflow.base.kernels import row_tiles
from otflow.base.spaces import norm
from otflow.measures import Measure
from otflow.transport.comparable import Pair, kinked, pair, root, streamed
from otflow.transport.ranges import rounded

ROUNDINGS = 64  # a sum is known up to so many roundings of the sum of its absolute values; chosen

Kernel = Callable[[Tensor, Tensor], Tensor]


class RadialKernel(ABC):
    """k(x, y) as a function of x - y in R^d, broadcast over all axes but the last."""

    smooth: ClassVar[bool] = False  # at x = y

    @abstractmethod
    def __call__(self, x: Tensor, y: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class GaussianKernel(RadialKernel):
    """k(x, y) = exp(-|x - y|^2 / (2 scale^2)).

    >>> from otflow.transport import GaussianKernel
    >>> import torch
    >>> GaussianKernel(2.0)(torch.zeros(1), torch.tensor([2.0]))
    tensor(0.6065)
    """

    smooth: ClassVar[bool] = True
    scale: float

    def __post_init__(self) -> None:
        checks.positive(self.scale, "scale")

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-((x - y) / self.scale).square().sum(-1) / 2)


@dataclass(frozen=True)
class LaplaceKernel(RadialKernel):
    """k(x, y) = exp(-|x - y| / scale).

    >>> from otflow.transport import LaplaceKernel
    >>> import torch
    >>> LaplaceKernel(2.0)(torch.zeros(1), torch.tensor([2.0]))
    tensor(0.3679)
    """

    scale: float

    def __post_init__(self) -> None:
        checks.positive(self.scale, "scale")

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-norm((x - y) / self.scale))


@dataclass(frozen=True)
class EnergyKernel(RadialKernel):
    """k(x, y) = -|x - y|, whose squared discrepancy is the energy distance 2E|X-Y| - E|X-X'| - E|Y-Y'|.

    Positive only between measures of equal mass, which is all that is needed. It has no scale to choose.

    >>> from otflow.transport import EnergyKernel
    >>> import torch
    >>> EnergyKernel()(torch.zeros(2), torch.tensor([3.0, 4.0]))
    tensor(-5.)
    """

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return -norm(x - y)


def mmd(mu: Measure, nu: Measure, kernel: Kernel) -> Tensor:
    """MMD = (int int k(x, y) d(mu - nu)(x) d(mu - nu)(y))^(1/2), shape (*batch,).

    The norm of mu - nu in the Hilbert space of the kernel. Takes O(n^2) time and O(n) memory, also for the
    gradient. The square is a sum with cancellation, known up to 64 eps int int |k| d(mu + nu)^2; so
    discrepancies below about 1e-7 times the root of that integral (in double precision) are mostly rounding,
    except that of a measure from itself, atom by atom, which is 0. A square that is negative within that
    bound is taken for 0; one beyond it means that the kernel is not positive definite, which is an error.

    Args:
        mu, nu: `Particles`, or densities on a `Grid`, which count as atoms in the centres of the cells.
        kernel: `GaussianKernel(scale)`, `LaplaceKernel(scale)`, `EnergyKernel()`, or any symmetric function
            that broadcasts (*batch, n, 1, d) against (*batch, 1, m, d) to (*batch, n, m), made of torch.

    References: Gretton, Borgwardt, Rasch, Scholkopf and Smola 2012, "A kernel two-sample test", Lemma 6;
    Szekely and Rizzo 2013, "Energy statistics".

    >>> from otflow import mmd
    >>> from otflow.transport import EnergyKernel
    >>> import otflow as of
    >>> mu, nu = of.Particles([[0.0], [1.0]]), of.Particles([[3.0]])
    >>> mmd(mu, nu, EnergyKernel()).square().item()  # 2 * 2.5 - 0.5 - 0
    4.5
    """
    checks.function(kernel, "kernel")
    both = pair(mu, nu)
    admit_kernel(both, kernel)
    ours, theirs = (_integral(both, kernel, of_nu=of_nu) for of_nu in (False, True))
    square = ours[:, 0] - theirs[:, 0]
    _trust(square.detach(), (ours + theirs)[:, 1].detach())
    if both.requires_grad and not getattr(kernel, "smooth", True):
        square = kinked(square, _touch, both.x, both.w, both.y, both.v)
    d = root(torch.where(square > 0, square, torch.zeros_like(square)), 2)
    size = (ours + theirs)[:, 1].detach().reshape(both.batch)
    eps = ROUNDINGS * torch.finfo(square.dtype).eps
    return rounded(d.reshape(both.batch), mu.dtype, "MMD", noise=lambda: (eps * size).sqrt())


def admit_kernel(both: Pair, kernel: Kernel) -> None:
    if isinstance(kernel, RadialKernel) and not both.space.linear:
        rule = f"it does not wrap around like {both.space}"
        checks.fail("kernel", kernel, rule, "pass a periodic function of x and y")


def _integral(both: Pair, kernel: Kernel, *, of_nu: bool) -> Tensor:
    """The integral over mu, or over nu, of the witness f = int k(., y) d(mu - nu)(y), and of a bound on its
    terms; (B, 2)."""
    points, masses = (both.y, both.v) if of_nu else (both.x, both.w)
    tiles = row_tiles(points.shape[1], both.x.numel() + both.y.numel())
    f = partial(_witness, kernel)
    args = (points, both.x, both.w, both.y, both.v)
    values = (
        torch.cat([f(rows, *args) for rows in tiles], 1)
        if _learns(both, kernel)
        else streamed(f, tiles, *args)
    )
    return (masses[..., None] * values).sum(1)


def _learns(both: Pair, kernel: Kernel) -> bool:
    """Whether the kernel has parameters with derivatives of its own, which only the whole graph knows."""
    x, y = both.x[:, :1].detach(), both.y[:, :1].detach()
    return torch.is_grad_enabled() and kernel_values(kernel, x, y).requires_grad


def _witness(kernel: Kernel, rows: slice, z: Tensor, x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """f(z_i) for some rows, and the sum of the absolute values of its terms, (B, r, 2)."""
    of_mu, of_nu = (
        kernel_values(kernel, z[:, rows], far) * mass[:, None, :] for far, mass in ((x, w), (y, v))
    )
    size = of_mu.detach().abs().sum(-1) + of_nu.detach().abs().sum(-1)
    # Each sum by itself: those of equal measures are then equal to the last digit.
    return torch.stack([of_mu.sum(-1) - of_nu.sum(-1), size], -1)


def kernel_values(kernel: Kernel, x: Tensor, y: Tensor) -> Tensor:
    """k(x_i, y_j), (B, r, m)."""
    values = kernel(x[:, :, None, :], y[:, None, :, :])
    expected = (len(x), x.shape[1], y.shape[1])
    if tuple(values.shape) != expected:
        rule = f"a kernel gives one number per pair, {expected}"
        checks.fail("kernel(x, y).shape", tuple(values.shape), rule, "sum over the last axis in the kernel")
    return values


def _trust(square: Tensor, size: Tensor) -> None:
    """Refuse what is not finite, and what is more negative than rounding can be."""
    if not bool(torch.isfinite(square).all()):
        raise NotFiniteError(
            "the kernel is not finite between atoms of the two measures; let it be bounded, "
            "such as GaussianKernel(1.0)",
            square,
        )
    if bool((square < -ROUNDINGS * torch.finfo(square.dtype).eps * size).any()):
        rule = "a positive definite kernel gives no negative squares"
        remedy = "pass GaussianKernel(1.0), say; of a distance its negative, as EnergyKernel() does"
        checks.fail("MMD^2", square.min().item(), rule, remedy)


def _touch(x: Tensor, w: Tensor, y: Tensor, v: Tensor, _: Tensor) -> bool:
    """Whether an atom of one measure sits on one of the other, or on another one of a measure that moves."""
    tiles = row_tiles(x.shape[1], x.numel() + y.numel())
    across = any(bool(_same(x[:, rows], y).any()) for rows in tiles)
    return across or any(z.requires_grad and _crowded(z, mass) for z, mass in ((x, w), (y, v)))


def _same(x: Tensor, y: Tensor) -> Tensor:
    """Which atoms coincide, (B, n, m)."""
    return (x[:, :, None, :] == y[:, None, :, :]).all(-1)


def _crowded(x: Tensor, w: Tensor) -> bool:
    """Whether two atoms of one measure coincide that have mass, or may be given some."""
    heavy = (w > 0) | w.requires_grad
    tiles = row_tiles(x.shape[1], 2 * x.numel())
    return any(bool(((_same(x[:, r], x) & heavy[:, None]).sum(-1) > 1)[heavy[:, r]].any()) for r in tiles)
