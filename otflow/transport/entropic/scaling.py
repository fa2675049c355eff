"""The scaling of a kernel: a state of the iteration, with all that its next step needs.

Given scores S (B, n, m) and weights a, b we look for a column potential G such that, with the row potential
F_i = -log sum_j b_j exp(S_ij + G_j),

    k_ij = exp(S_ij + F_i + G_j)   has   sum_j b_j k_ij = 1   and   s_j = sum_i a_i k_ij = 1.

A state is a G with its column sums s. Sinkhorn's sweep is G <- G - log s. Newton's step d solves
(I - C R) d = 1/s - 1 with the Markov operators R_ij = b_j k_ij and C_ji = a_i k_ij / s_j; C R is self-adjoint
and positive in L2(b s).

If S is symmetric and a = b, then F = G at the solution. A symmetric state keeps F = G throughout and looks
at the row sums r instead; its sweep is the averaged one, G <- G - log(r) / 2, which costs half as much, and
Newton's operator is I + R, of condition number two for positive definite kernels however sharp they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from otflow.base.kernels import row_tiles
from otflow.base.linalg import conjugate_gradient
from otflow.transport.comparable import side_by_side
from otflow.transport.entropic import laplacian
from otflow.transport.entropic.log_kernel import LogKernel

ABSORB = 2**26  # entries of a kernel that are held in memory, at most; chosen: 512 MB
# Potentials that have moved by more than this are absorbed into the kernel anew; chosen: exp(2 * 40) is far
# from overflow.
RANGE = 40.0


@dataclass(frozen=True)
class AbsorbedKernel:
    """exp(S) between the weights exp(log a) and exp(log b); ``symmetric`` promises S = S^T and a = b."""

    scores: LogKernel  # (B, n, m)
    loga: Tensor  # (B, n)
    logb: Tensor  # (B, m)
    symmetric: bool = False

    def __getitem__(self, members: Tensor) -> AbsorbedKernel:
        return AbsorbedKernel(self.scores[members], self.loga[members], self.logb[members], self.symmetric)

    def times(self, theta: Tensor) -> AbsorbedKernel:
        """The kernel exp(theta S)."""
        return AbsorbedKernel(self.scores.times(theta), self.loga, self.logb, self.symmetric)

    @property
    def fits(self) -> bool:
        return self.scores.shape.numel() <= ABSORB

    def rows(self, G: Tensor) -> Tensor:
        """F(G), (B, n)."""
        return -self.scores.lse(G + self.logb)

    def sharp_rows(self, G: Tensor) -> Tensor:
        """F(G) = -log(1 + sum_j b_j (exp(S_ij + G_j) - 1)), given that b sums to one: exact for small scores.

        The logarithm of a sum near one knows it up to 1e-16, and nothing of scores of 1e-20.
        """
        b, (size, n, m) = self.logb.exp()[:, None], self.scores.shape

        def part(rows: slice) -> Tensor:
            z = torch.where(b > 0, self.scores.tile(rows) + G[:, None], 0.0)
            return -torch.log1p((b * torch.expm1(z)).sum(-1))

        return side_by_side(part, list(row_tiles(n, size * m)))

    def columns(self, F: Tensor) -> Tensor:
        """The column potential that F asks for, (B, m)."""
        return -self.scores.mT.lse(F + self.loga)

    def error(self, G: Tensor) -> tuple[Tensor, Tensor]:
        """F(G) and the L1 error of the marginals of the plan (F, G), (B,), in the log domain."""
        F = self.rows(G)
        b = self.logb.exp()
        return F, _l1(b, _where(b, G - self.columns(F)))

    def state(self, G: Tensor) -> ScalingState:
        """The state at G; `State.absorbed` makes it cheap to move."""
        return SymmetricStreamed(self, G) if self.symmetric else Streamed(self, G)


def _l1(w: Tensor, log_sums: Tensor) -> Tensor:
    """sum_i w_i |exp(z_i) - 1|, finite however far off z is."""
    return (w * torch.expm1(log_sums.clamp(max=500.0)).abs()).sum(-1)


def _where(w: Tensor, x: Tensor) -> Tensor:
    """x where there is mass, else 0."""
    return torch.where(w > 0, x, torch.zeros_like(x))


def _massive(potential: Tensor, logw: Tensor) -> Tensor:
    """The potential, -infinity at atoms without mass: what it is there must not overflow in a kernel."""
    return torch.where(torch.isfinite(logw), potential, -torch.inf)


def _times(K: Tensor, x: Tensor) -> Tensor:
    return (K @ x[..., None])[..., 0]


class ScalingState(ABC):
    """G, the logarithms of the sums that should be one, and the steps that would repair them."""

    kernel: AbsorbedKernel
    G: Tensor
    logs: Tensor  # (B, m)

    @property
    @abstractmethod
    def error(self) -> Tensor:
        """L1 error of the marginals, or a bound of it, (B,)."""

    @property
    @abstractmethod
    def sweep(self) -> Tensor:
        """The change of G by Sinkhorn's iteration."""

    @abstractmethod
    def improves(self, old: ScalingState) -> Tensor:
        """Whether this state is closer to the solution than ``old``, (B,)."""

    def climbs(self, old: ScalingState) -> Tensor:
        """Whether this state is well above ``old`` in a function that the solution maximises, (B,)."""
        return torch.zeros_like(self.error, dtype=torch.bool)

    @abstractmethod
    def moved(self, d: Tensor) -> ScalingState:
        """The state at G + d; no number of it is looked at, see `strained`."""

    @property
    def strained(self) -> Tensor:
        """Whether potentials have moved so far that sums may be wrong, (): then `renewed` is needed."""
        return torch.zeros_like(self.G[:1, 0], dtype=torch.bool)[0]

    def renewed(self) -> ScalingState:
        """The state at the same potential, absorbed anew."""
        return self.kernel.state(self.G).absorbed()

    @abstractmethod
    def absorbed(self) -> ScalingState:
        """A state at or next to this one with the kernel in memory, if that fits."""

    @abstractmethod
    def newton(self, *, tol: float, max_iter: int) -> tuple[Tensor, int, bool]:
        """Newton's step by conjugate gradients, the sweeps that it cost, and whether it was solved."""

    def direct_newton(self) -> Tensor | None:
        """Newton's step for sharp plans, where that is possible."""
        return None


class _Alternating(ScalingState):
    """F = F(G): the rows are right, the columns are to be repaired."""

    F: Tensor

    @property
    def error(self) -> Tensor:
        return _l1(self.kernel.logb.exp(), self.logs)

    @property
    def sweep(self) -> Tensor:
        return -self.logs

    @property
    def dual(self) -> Tensor:
        """<a, F> + <b, G>, (B,), which the solution maximises."""
        a, b = self.kernel.loga.exp(), self.kernel.logb.exp()
        return (a * self.F).sum(-1) + (b * self.G).sum(-1)

    def improves(self, old: ScalingState) -> Tensor:
        # Far from the solution the error may rise on the best way there, and close to it rounding hides
        # the increase of the dual.
        return (self.error < old.error) | self._gains(old, 1e-13 * self.dual.abs())

    def climbs(self, old: ScalingState) -> Tensor:
        return self._gains(old, 0.1 * self.error)

    def _gains(self, old: ScalingState, least: Tensor) -> Tensor:
        return self.dual > old.dual + least if isinstance(old, _Alternating) else self.error < 0

    @abstractmethod
    def forth(self, x: Tensor) -> Tensor:
        """R x."""

    @abstractmethod
    def back(self, y: Tensor) -> Tensor:
        """C y."""

    def newton(self, *, tol: float, max_iter: int) -> tuple[Tensor, int, bool]:
        return self.resolvent(torch.expm1(-self.logs.clamp(min=-50.0)), tol=tol, max_iter=max_iter)

    def resolvent(self, rhs: Tensor, *, tol: float, max_iter: int) -> tuple[Tensor, int, bool]:
        """x of mean zero with (I - C R) x = rhs up to a constant, the products it took, and success."""
        weight = self.kernel.logb.exp() * self.logs.clamp(max=500.0).exp()
        return conjugate_gradient(
            lambda x: _centred(weight, x - self.back(self.forth(x))),
            _centred(weight, rhs),
            weight,
            tol=tol,
            max_iter=max_iter,
        )


def _centred(w: Tensor, x: Tensor) -> Tensor:
    """x shifted to mean zero: only potentials up to a constant have a meaning."""
    mean = (w * x).sum(-1, keepdim=True) / w.sum(-1, keepdim=True)
    return torch.where(w > 0, x - mean, torch.zeros_like(x))


class Streamed(_Alternating):
    """Every product runs through the scores, O(n + m) memory."""

    def __init__(self, kernel: AbsorbedKernel, G: Tensor) -> None:
        self.kernel, self.G = kernel, G
        self.F = kernel.rows(G)
        self.logs = _where(kernel.logb.exp(), G - kernel.columns(self.F))

    def moved(self, d: Tensor) -> Streamed:
        return Streamed(self.kernel, self.G + d)

    def absorbed(self) -> Streamed | Absorbed:
        if not self.kernel.fits:
            return self
        G = self.G - self.logs  # a sweep, so that no column underflows as a whole
        F_, G_ = _massive(self.F, self.kernel.loga), _massive(G, self.kernel.logb)
        K = self.kernel.scores.dense().add_(F_[..., :, None]).add_(G_[..., None, :]).exp_()
        return Absorbed(self.kernel, G, K, self.F, torch.zeros_like(G))

    def forth(self, x: Tensor) -> Tensor:
        return self.kernel.scores.attend(x[..., None], self.G + self.kernel.logb)[0][..., 0]

    def back(self, y: Tensor) -> Tensor:
        return self.kernel.scores.mT.attend(y[..., None], self.F + self.kernel.loga)[0][..., 0]


class Absorbed(_Alternating):
    """k = u K v with the matrix K = exp(S + F0 + G0) in memory and u, v near one: products with K only."""

    def __init__(self, kernel: AbsorbedKernel, G: Tensor, K: Tensor, F0: Tensor, logv: Tensor) -> None:
        self.kernel, self.G, self.K, self.F0, self.logv = kernel, G, K, F0, logv
        self.a, self.b = kernel.loga.exp(), kernel.logb.exp()
        self.v = logv.exp()
        # Atoms without mass count for nothing, and their part of K may have underflowed.
        self.u = _where(self.a, 1 / _times(K, self.b * self.v))
        self.F = F0 + _where(self.a, self.u.log())
        self.logs = _where(self.b, (self.v * _times(K.mT, self.a * self.u)).log())

    def absorbed(self) -> Absorbed:
        return self

    def moved(self, d: Tensor) -> Absorbed:
        return Absorbed(self.kernel, self.G + d, self.K, self.F0, self.logv + d)

    @property
    def strained(self) -> Tensor:
        return (self.logv.abs() > RANGE).any()

    def forth(self, x: Tensor) -> Tensor:
        return self.u * _times(self.K, self.b * self.v * x)

    def back(self, y: Tensor) -> Tensor:
        return self.v * _times(self.K.mT, self.a * self.u * y) * (-self.logs).exp()

    def direct_newton(self) -> Tensor | None:
        P = self.u[..., None] * self.K * (self.b * self.v)[..., None, :]
        return laplacian.solve(P, self.a, self.b, self.b * (1 - self.logs.clamp(max=500.0).exp()))


class _Symmetric(ScalingState):
    """F = G: the same potential on both sides, r_i = sum_j w_j exp(S_ij + G_i + G_j)."""

    @property
    def error(self) -> Tensor:
        # Renormalising the rows moves the columns by as much again: twice sum w |r - 1| bounds their error.
        return 2 * _l1(self.kernel.logb.exp(), self.logs)

    @property
    def sweep(self) -> Tensor:
        return -self.logs / 2

    def improves(self, old: ScalingState) -> Tensor:
        return self.error < old.error

    @abstractmethod
    def forth(self, x: Tensor) -> Tensor:
        """R x, rows normalised."""

    def newton(self, *, tol: float, max_iter: int) -> tuple[Tensor, int, bool]:
        weight = self.kernel.logb.exp() * self.logs.clamp(max=500.0).exp()
        rhs = torch.expm1(-self.logs.clamp(min=-50.0))
        return conjugate_gradient(lambda x: x + self.forth(x), rhs, weight, tol=tol, max_iter=max_iter)


class SymmetricStreamed(_Symmetric):
    def __init__(self, kernel: AbsorbedKernel, G: Tensor) -> None:
        self.kernel, self.G = kernel, G
        self.logs = _where(kernel.logb.exp(), G - kernel.rows(G))

    def moved(self, d: Tensor) -> SymmetricStreamed:
        return SymmetricStreamed(self.kernel, self.G + d)

    def absorbed(self) -> SymmetricStreamed | SymmetricAbsorbed:
        if not self.kernel.fits:
            return self
        G = self.G - self.logs / 2
        G_ = _massive(G, self.kernel.logb)
        K = self.kernel.scores.dense().add_(G_[..., :, None]).add_(G_[..., None, :]).exp_()
        return SymmetricAbsorbed(self.kernel, G, K, torch.zeros_like(G))

    def forth(self, x: Tensor) -> Tensor:
        return self.kernel.scores.attend(x[..., None], self.G + self.kernel.logb)[0][..., 0]


class SymmetricAbsorbed(_Symmetric):
    def __init__(self, kernel: AbsorbedKernel, G: Tensor, K: Tensor, logv: Tensor) -> None:
        self.kernel, self.G, self.K, self.logv = kernel, G, K, logv
        self.w, self.v = kernel.logb.exp(), logv.exp()
        self.logs = _where(self.w, (self.v * _times(K, self.w * self.v)).log())

    def absorbed(self) -> SymmetricAbsorbed:
        return self

    def moved(self, d: Tensor) -> SymmetricAbsorbed:
        return SymmetricAbsorbed(self.kernel, self.G + d, self.K, self.logv + d)

    @property
    def strained(self) -> Tensor:
        return (self.logv.abs() > RANGE).any()

    def forth(self, x: Tensor) -> Tensor:
        return self.v * _times(self.K, self.w * self.v * x) * (-self.logs).exp()
