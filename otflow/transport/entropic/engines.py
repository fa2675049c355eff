"""Engines that compute entropic potentials; the marginals of what they return are measured by the caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.transport.entropic.scaling import AbsorbedKernel

DENSE = 2**27  # entries of a cost matrix that an engine without streaming may ask for; chosen: 1 GB


class ColumnPotential(NamedTuple):
    """What an engine returns, before its marginals are measured."""

    G: Tensor  # (B, m)
    sweeps: int
    stalled: Tensor  # (B,)


class Engine(ABC):
    """A way to find the column potential G of a kernel; see `otflow.transport.entropic.scaling`."""

    @abstractmethod
    def potential(
        self, kernel: AbsorbedKernel, *, tol: float, max_iter: int, start: Tensor | None
    ) -> ColumnPotential:
        """G with marginal error at most ``tol``, if all goes well."""


@dataclass(frozen=True)
class Scaling:
    """Potentials F = F(G) and G, the L1 marginal error measured at them, and how they were found."""

    F: Tensor  # (B, n)
    G: Tensor  # (B, m)
    error: Tensor  # (B,)
    sweeps: int
    codes: Tensor  # (B,), see otflow.base.status

    @property
    def converged(self) -> Tensor:
        return self.codes == 0


def scale(
    kernel: AbsorbedKernel, engine: Engine, *, tol: float, max_iter: int, start: Tensor | None = None
) -> Scaling:
    """Ask the engine, then measure in the log domain what it has found."""
    found = engine.potential(kernel, tol=tol, max_iter=max_iter, start=start)
    b = kernel.logb.exp()
    shift = 0.0 if kernel.symmetric else torch.where(b > 0, b * found.G, 0.0).sum(-1, keepdim=True)
    G = found.G - shift
    if bool((b == 0).any()):  # columns without mass get the potential that the others imply
        G = torch.where(b > 0, G, kernel.columns(kernel.rows(G)))
    F, error = kernel.error(G)
    if kernel.symmetric and not bool((error <= tol).all()):
        # F = G is a bad restriction on the way for kernels that are not positive.
        return scale(replace(kernel, symmetric=False), engine, tol=tol, max_iter=max_iter, start=start)
    reason = "max_iter" if found.sweeps >= max_iter else "stalled"
    codes = torch.where(found.stalled, status.code("stalled"), status.code(reason))
    return Scaling(F, G, error, found.sweeps, torch.where(error <= tol, status.code("ok"), codes))


class _Matrix(Engine):
    """An engine that wants the cost matrix of one problem at a time, without atoms of weight zero."""

    def potential(
        self, kernel: AbsorbedKernel, *, tol: float, max_iter: int, start: Tensor | None
    ) -> ColumnPotential:
        _refuse_large(kernel, type(self).__name__)
        members = [self._member(kernel, i, tol, max_iter) for i in range(kernel.scores.shape[0])]
        G = torch.stack([G for G, _ in members])
        stalled = torch.zeros(len(G), dtype=torch.bool, device=G.device)
        return ColumnPotential(G, max(used for _, used in members), stalled)

    def _member(self, kernel: AbsorbedKernel, i: int, tol: float, max_iter: int) -> tuple[Tensor, int]:
        one = kernel[torch.tensor([i])]
        rows, columns = (torch.isfinite(w[0]) for w in (one.loga, one.logb))
        cost, G = -one.scores.dense()[0], torch.zeros_like(one.logb[0])
        a, b = one.loga[0].exp()[rows], one.logb[0].exp()[columns]
        if not bool(torch.isfinite(cost[rows][:, columns]).all()):
            return torch.full_like(G, torch.nan), 0  # beyond floating point, where other libraries assert
        G[columns], used = self.solve(cost[rows][:, columns], a, b, tol, max_iter)
        return G, used

    @abstractmethod
    def solve(self, cost: Tensor, a: Tensor, b: Tensor, tol: float, max_iter: int) -> tuple[Tensor, int]:
        """The column potential (m,) for the kernel exp(-cost), and the number of iterations."""


def _refuse_large(kernel: AbsorbedKernel, name: str) -> None:
    _, n, m = kernel.scores.shape
    if n * m > DENSE:
        rule = f"{name} needs the cost matrix, {8 * n * m / 1e9:.1f} GB each time"
        checks.fail("n x m", f"{n} x {m}", rule, "use NewtonSinkhorn(), which streams")


@dataclass(frozen=True)
class POT(_Matrix):
    """``ot.bregman.sinkhorn_log`` of POT (Flamary et al. 2021): plain iterations in the log domain.

    Starts cold, whatever ``start`` is.

    >>> from otflow.transport import POT
    >>> POT()
    POT()
    """

    def solve(self, cost: Tensor, a: Tensor, b: Tensor, tol: float, max_iter: int) -> tuple[Tensor, int]:
        import ot

        # It stops by the Euclidean norm of the error, and sqrt(m) times that bounds the L1 norm.
        _, log = ot.bregman.sinkhorn_log(
            a, b, cost, 1.0, numItermax=max_iter, stopThr=tol / len(b) ** 0.5, log=True, warn=False
        )
        return log["log_v"] - b.log(), log["niter"] + 1


@dataclass(frozen=True)
class GeomLoss(_Matrix):
    """``geomloss.ot.solve`` of GeomLoss (Feydy et al. 2019): symmetrised iterations with annealing.

    Its annealing spends a fixed number of iterations, ``annealing``, on the way from eps = infinity and ends
    a few per cent off the marginals; from there plain sweeps go on until these are right. Starts cold.

    >>> from otflow.transport import GeomLoss
    >>> GeomLoss()
    GeomLoss(annealing=100)
    """

    annealing: int = 100

    def __post_init__(self) -> None:
        checks.count(self.annealing, "annealing")

    def solve(self, cost: Tensor, a: Tensor, b: Tensor, tol: float, max_iter: int) -> tuple[Tensor, int]:
        from geomloss import ot

        used = min(self.annealing, max_iter)
        G: Tensor = ot.solve(cost, reg=1.0, a=a, b=b, max_iter=used).potential_b
        while used < max_iter:
            F = -torch.logsumexp(G + b.log() - cost, -1)
            image = -torch.logsumexp((F + a.log())[:, None] - cost, 0)
            if float((b * torch.expm1(G - image).abs()).sum()) <= tol:
                break
            G, used = image, used + 1
        return G, used
