"""Parameters behind the figures of Castin, Ablin, Carrillo, Peyré (2025) on Gaussians, digit by digit.

The released scripts of the paper draw their weights from numpy's legacy generator; here the same streams are
drawn from generators of their own. Scores are scaled as there: A = K^T Q becomes A / sqrt(d) for softmax and
L2 (whose K^T K stays as it is), A_h / sqrt(k) for heads of k = d / H rows, and stays as it is for Sinkhorn.

The scripts integrate dS/dt = BS + SB^T for the covariance itself, by explicit Euler steps that are projected
on the semidefinite matrices, `projected_euler`; `lie` and `residual` need no projection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.base import checks
from otflow.base.linalg import matrix_exp
from otflow.reproduce.claim import Source

Rate: TypeAlias = Callable[[Tensor], Tensor]  # S -> B
Step: TypeAlias = Callable[[Tensor, Tensor, float], Tensor]  # S, B, h -> S
T = TypeVar("T", np.ndarray, Tensor)

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
DIMENSIONS = (3, 4, 5)  # of the histograms of ranks
RUNS = 100  # behind each histogram
LEVEL = 0.1  # above which the histograms count an eigenvalue
TINY = 1e-14  # what the projection of the scripts makes of negative eigenvalues


@dataclass(frozen=True, eq=False)
class Panel:
    """One picture: weights, initial covariances, and how the scripts integrated them.

    Attributes:
        source: figure of the paper, and the name of the file that the script writes.
        kind: which attention.
        Q, K, V: (*batch, k, d), (*batch, k, d), (*batch, d, d), as drawn: without any scaling.
        covariances: at time zero, (N, d, d).
        h: step.
        tol: a run with |dS/dt| below has converged; 0 where no run is meant to.
        high: a run with a trace above has diverged.
        max_iter, heads: limit on the steps, and number of heads.

    >>> from otflow.papers.unified.parameters import panels
    >>> panel = panels()["1d"]
    >>> panel.Q.shape, panel.covariances.shape, panel.field()
    ((2, 2), (276, 2, 2), SoftmaxAttention(d=2))
    """

    source: str
    kind: Kind
    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    covariances: np.ndarray
    h: float
    tol: float = 0.0
    high: float = 1e3
    max_iter: int = 50_000
    heads: int = 1

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return int(self.V.shape[-1])

    @property
    def A(self) -> np.ndarray:
        """K^T Q, without any scaling."""
        return np.asarray(self.K.swapaxes(-1, -2) @ self.Q)

    def gaussians(self) -> of.Gaussian:
        """The centred Gaussians with the initial covariances."""
        return of.Gaussian(np.zeros(self.covariances.shape[:-1]), cov=self.covariances)

    def field(self) -> of.VelocityField:
        """The attention of this panel, with its scores scaled."""
        return self.kind.field(self)

    def rate(self) -> Rate:
        """S -> B, the velocity x -> Bx of this attention on N(0, S)."""
        return self.kind.rate(self)

    def limit(self, **options: Any) -> of.dynamics.Limit:
        """The limits of the flow itself; those that are not found are marked, not an error."""
        return of.limit(self.gaussians(), self.field(), on_failure="return", **options)

    def march(self, integrate: Callable[..., Outcome], **limits: Any) -> Outcome:
        """Where steps lead, such as those of `projected_euler`; by default of the length of the scripts."""
        given: dict[str, Any] = {"h": self.h, "tol_low": self.tol, "tol_high": self.high}
        return integrate(self.rate(), torch.tensor(self.covariances), **given | limits)


def trace(S: T) -> T:
    """tr S, (*batch,), of arrays and of tensors.

    >>> import numpy as np
    >>> import torch
    >>> from otflow.papers.unified.parameters import trace
    >>> trace(torch.eye(2)).item(), trace(np.ones((3, 2, 2))).tolist()
    (2.0, [2.0, 2.0, 2.0])
    """
    total: T = S.diagonal(0, -2, -1).sum(-1)
    return total


def motion(B: Tensor, S: Tensor) -> Tensor:
    """dS/dt = BS + SB^T, where tokens move by x' = Bx.

    >>> import torch
    >>> from otflow.papers.unified.parameters import motion
    >>> motion(-torch.eye(1), torch.eye(1)).item()
    -2.0
    """
    half = B @ S
    return half + half.mT


def above(S: Tensor) -> np.ndarray:
    """How many eigenvalues of each covariance are above 0.1: what the histograms take for the rank.

    >>> import torch
    >>> from otflow.papers.unified.parameters import above
    >>> above(torch.diag(torch.tensor([1.0, 0.09]))).item()
    1
    """
    return np.asarray((torch.linalg.eigvalsh(S) > LEVEL).sum(-1))


class Kind(NamedTuple):
    """One kind of attention: as a field, and as a rate of covariances."""

    field: Callable[[Panel], of.VelocityField]
    rate: Callable[[Panel], Rate]


def softmax(panel: Panel) -> of.SoftmaxAttention:
    """Softmax attention with scores A / sqrt(d).

    >>> from otflow.papers.unified.parameters import panels, softmax
    >>> softmax(panels()["1a"])
    SoftmaxAttention(d=2)
    """
    return of.SoftmaxAttention(panel.Q / math.sqrt(panel.d), panel.K, panel.V)


def l2(panel: Panel) -> of.L2Attention:
    """L2 attention with Q / sqrt(d), while K is not scaled.

    >>> from otflow.papers.unified.parameters import l2, panels
    >>> l2(panels()["2c"])
    L2Attention(d=2)
    """
    return of.L2Attention(panel.Q / math.sqrt(panel.d), panel.K, panel.V)


def multihead(panel: Panel, heads: int) -> of.MultiHead:
    """Softmax heads of k = d / H successive rows of Q, K and V each, with scores A_h / sqrt(k).

    >>> from otflow.papers.unified.parameters import multihead, panels
    >>> multihead(panels()["2b"], 2)
    MultiHead(2 heads: 2 x SoftmaxAttention(d=2, k=1, d_v=1), mixed)
    """
    k = _rows_per_head(panel, heads)
    Q, K, eye = _padded(panel.Q, panel.d), _padded(panel.K, panel.d), np.eye(panel.d)
    blocks = [slice(h * k, (h + 1) * k) for h in range(heads)]
    fields = [of.SoftmaxAttention(Q[b] / math.sqrt(k), K[b], panel.V[b]) for b in blocks]
    return of.MultiHead(fields, mix=[eye[:, b] for b in blocks])


def sinkhorn(panel: Panel) -> of.SinkhornAttention:
    """Sinkhorn attention with eps = 1 and scores A that are not scaled.

    >>> from otflow.papers.unified.parameters import panels, sinkhorn
    >>> sinkhorn(panels()["A Sinkhorn 1a"])
    SinkhornAttention(d=2, eps=1)
    """
    return of.SinkhornAttention(panel.Q, panel.K, panel.V)


def _softmax_rate(panel: Panel) -> Rate:
    """B = V S A / sqrt(d) (Castin et al. 2025, Prop. 4.2)."""
    A, V = torch.tensor(panel.A / math.sqrt(panel.d)), torch.tensor(panel.V)
    return lambda S: V @ S @ A


def _l2_rate(panel: Panel) -> Rate:
    """B = 2 V (I + 2 S K^T K)^-1 S A / sqrt(d) (Castin et al. 2025, Prop. 4.4)."""
    A, V, K = torch.tensor(panel.A / math.sqrt(panel.d)), torch.tensor(panel.V), torch.tensor(panel.K)
    eye, H = torch.eye(panel.d).double(), K.mT @ K
    return lambda S: 2 * V @ torch.linalg.solve(eye + 2 * S @ H, S @ A)


def _multihead_rate(panel: Panel) -> Rate:
    """B = sum_h C_h S A_h / sqrt(k), C_h the rows of V that belong to head h, in their places."""
    k = _rows_per_head(panel, panel.heads)
    Q, K, V = (torch.tensor(_padded(a, panel.d)).unflatten(0, (-1, k)) for a in (panel.Q, panel.K, panel.V))
    A = K.mT @ Q / math.sqrt(k)
    return lambda S: (V @ S[..., None, :, :] @ A).flatten(-3, -2)


def _sinkhorn_rate(panel: Panel) -> Rate:
    """B = 2 V S A (I + (I + 4 S A^T S A)^1/2)^-1, for d = 2 (eps = 1); neither S nor A is inverted."""
    if panel.d != 2:
        checks.fail("d", panel.d, "this closed form is for the plane", "use panel.field()")
    A, V, eye = torch.tensor(panel.A), torch.tensor(panel.V), torch.eye(2).double()

    def rate(S: Tensor) -> Tensor:
        M = eye + 4 * S @ A.mT @ S @ A  # with eigenvalues > 0, so that its root is the one of Cayley-Hamilton
        det = torch.linalg.det(M).sqrt()[..., None, None]
        root = (M + det * eye) / (trace(M)[..., None, None] + 2 * det).sqrt()
        B: Tensor = 2 * V @ torch.linalg.solve(eye + root, S @ A, left=False)
        return B

    return rate


def _rows_per_head(panel: Panel, heads: int) -> int:
    heads = checks.count(heads, "heads")
    if panel.d % heads:
        checks.fail(
            "heads",
            heads,
            f"it must divide d = {panel.d}",
            f"pass one of {[h for h in range(1, panel.d + 1) if panel.d % h == 0]}",
        )
    return panel.d // heads


def _padded(a: np.ndarray, d: int) -> np.ndarray:
    """(k, d) with rows of zeros up to d: heads beyond the rows that there are have A_h = 0."""
    return np.concatenate([a, np.zeros((d - len(a), d))])


SOFTMAX = Kind(softmax, _softmax_rate)
L2 = Kind(l2, _l2_rate)
HEADS = Kind(lambda panel: multihead(panel, panel.heads), _multihead_rate)
SINKHORN = Kind(sinkhorn, _sinkhorn_rate)


def unit_trace_grid(n: int, reach: float) -> np.ndarray:
    """((1 + u) / 2, w / 2; w / 2, (1 - u) / 2), u and w on n points of [-reach, reach], u^2 + w^2 < 1.

    >>> from otflow.papers.unified.parameters import unit_trace_grid
    >>> unit_trace_grid(10, 0.5).shape, unit_trace_grid(20, 1.0).shape, unit_trace_grid(30, 1.0).shape
    ((100, 2, 2), (276, 2, 2), (648, 2, 2))
    """
    u, w = (a.ravel() for a in np.meshgrid(*[np.linspace(-reach, reach, n)] * 2, indexing="ij"))
    u, w = u[u**2 + w**2 < 1], w[u**2 + w**2 < 1]
    return np.stack([1 + u, w, w, 1 - u], -1).reshape(-1, 2, 2) / 2


def panels() -> dict[str, Panel]:
    """The planar pictures by the name of their panel: Fig. 1 and 2, and their variants in the appendix.

    >>> from otflow.papers.unified.parameters import panels
    >>> list(panels())[:8]
    ['1a', '1b', '1c', '1d', '2a', '2b', '2c', '2d']
    """
    return dict(sorted([*_contracting(), *_rank_one(), *_mixed(), *_exploding(), *_both()]))


def _file(figure: str, name: str) -> str:
    return f"{PAPER}, {figure} ({name})"


def _contracting() -> Iterator[tuple[str, Panel]]:
    """A + A^T < 0 and V > 0: one stream of seed 35 gives a uniform Q, then a normal V."""
    draw = np.random.RandomState(35)
    Q, V = draw.rand(2, 2), draw.randn(2, 2)
    weights, S = (Q, -Q, V @ V.T), unit_trace_grid(10, 0.5)
    yield "1a", Panel(_file("Fig. 1a", "trad_neg_def_V"), SOFTMAX, *weights, S, 0.3, 1e-5)
    yield "A1 L2", Panel(_file("Fig. A1", "L2_neg_def_V"), L2, *weights, S, 0.3, 1e-5)
    yield "A1 heads", Panel(_file("Fig. A1", "MH_neg_def_V"), HEADS, *weights, S, 0.3, 1e-5, heads=2)
    yield "A Sinkhorn 1a", Panel(_file("appendix", "sink_convergence"), SINKHORN, *weights, S, 0.5, 1e-5)


def _rank_one() -> Iterator[tuple[str, Panel]]:
    """A = -qq^T and V = I; with two heads the second one finds no row of Q and K left, so A_2 = 0."""
    q = np.random.RandomState(36).randn(1, 2)
    q = q / np.linalg.norm(q)
    weights, S = (q, -q, np.eye(2)), unit_trace_grid(10, 0.5)
    yield "1b", Panel(_file("Fig. 1b", "trad_rank_1"), SOFTMAX, *weights, S, 0.5, 1e-4)
    yield "1c", Panel(_file("Fig. 1c", "MH_rank_1"), HEADS, *weights, S, 0.5, 1e-4, heads=2)
    yield "A2 L2 rank one", Panel(_file("Fig. A2", "L2_rank_1"), L2, *weights, S, 0.5, 1e-4)


def _indefinite() -> tuple[np.ndarray, np.ndarray]:
    """Q, then K, the first two draws of seed 36: A + A^T has eigenvalues of both signs."""
    draw = np.random.RandomState(36)
    return draw.randn(2, 2), draw.randn(2, 2)


def _mixed() -> Iterator[tuple[str, Panel]]:
    """An indefinite A + A^T, and V from a stream of its own, seed 32."""
    weights, S = (*_indefinite(), np.random.RandomState(32).randn(2, 2)), unit_trace_grid(20, 1.0)
    yield "1d", Panel(_file("Fig. 1d", "trad_mixed_3d"), SOFTMAX, *weights, S, 0.01, 1e-7)
    yield "A2 L2 mixed", Panel(_file("Fig. A2", "L2_mixed_3d"), L2, *weights, S, 0.01, 1e-7)


def _exploding() -> Iterator[tuple[str, Panel]]:
    """A + A^T > 0 and V = I: the second pair (Q, K) of seed 33, so two draws are skipped."""
    draw = np.random.RandomState(33)
    draw.randn(2, 2, 2)
    weights, S = (draw.randn(2, 2), draw.randn(2, 2), np.eye(2)), unit_trace_grid(40, 1.0)
    yield "2a", Panel(_file("Fig. 2a", "trad_explosion"), SOFTMAX, *weights, S, 0.01)
    yield "2b", Panel(_file("Fig. 2b", "MH_explosion"), HEADS, *weights, S, 0.002, heads=2)
    yield "2c", Panel(_file("Fig. 2c", "L2_divergence"), L2, *weights, S, 0.001, high=1e4)
    yield "A Sinkhorn 2a", Panel(_file("appendix", "sink_divergence"), SINKHORN, *weights, S, 0.01, high=1e4)


def _both() -> Iterator[tuple[str, Panel]]:
    """Some converge, some blow up: V from seed 35, after 8 x 7 numbers that are thrown away.

    The released script draws MH_both with one head, which is softmax; here it has the two that are meant.
    """
    draw = np.random.RandomState(35)
    draw.randn(8, 7)
    weights, S = (*_indefinite(), draw.randn(2, 2)), unit_trace_grid(30, 1.0)
    yield "2d", Panel(_file("Fig. 2d", "trad_both_V"), SOFTMAX, *weights, S, 0.003, 1e-4)
    yield "A3 L2", Panel(_file("Fig. A3", "L2_both"), L2, *weights, S, 0.002, 1e-4)
    yield "A3 heads", Panel(_file("Fig. A3", "MH_both"), HEADS, *weights, S, 0.002, 1e-4, heads=2)


def histograms() -> dict[tuple[str, int, int], Panel]:
    """The hundred runs behind each histogram of limit ranks, by figure ("3" or "A5"), row and d.

    In row 1 V is the identity, in row 2 it is V^T V with a normal V for every run. Every picture has the
    same Q of half rank, K = -Q.

    >>> from otflow.papers.unified.parameters import histograms
    >>> panel = histograms()["3", 2, 5]
    >>> panel.Q.shape, panel.V.shape, panel.covariances.shape, panel.h
    ((100, 2, 5), (100, 5, 5), (100, 5, 5), 0.02)
    """
    identities = [np.broadcast_to(np.eye(d), (RUNS, d, d)) for d in DIMENSIONS]
    rows = {
        ("3", 1): (SOFTMAX, identities, (0.09, 0.05, 0.02), 1e-4, 60_000),
        ("3", 2): (SOFTMAX, _squares(26), (0.09, 0.06, 0.02), 5e-5, 90_000),
        ("A5", 1): (L2, identities, (0.09, 0.06, 0.02), 5e-5, 50_000),
        ("A5", 2): (L2, _squares(27), (0.15, 0.15, 0.15), 5e-5, 50_000),
    }
    files, found, Q = {"3": "histograms_trad", "A5": "histograms_L2"}, {}, _half_rank()
    for (figure, row), (kind, V, hs, tol, max_iter) in rows.items():
        source = _file(f"Fig. {figure}, row {row}", files[figure])
        for d, q, v, h in zip(DIMENSIONS, Q, V, hs, strict=True):
            found[figure, row, d] = Panel(source, kind, q, -q, v, _starts(d), h, tol, max_iter=max_iter)
    return found


def _half_rank() -> list[np.ndarray]:
    """Q of floor(d/2) rows: one stream of seed 40, all runs in d = 3 first, then d = 4, then d = 5."""
    draw = np.random.RandomState(40)
    return [draw.randn(RUNS, d // 2, d) for d in DIMENSIONS]


def _squares(seed: int) -> list[np.ndarray]:
    """V^T V for every run, in the same order: found by trial, out of 48 orders and scalings, as the only one
    with which `projected_euler` diverges in 12, 34 and 28 runs of Fig. 3; the same is assumed for Fig. A5."""
    draw = np.random.RandomState(seed)
    drawn = [draw.randn(RUNS, d, d) for d in DIMENSIONS]
    return [V.swapaxes(-1, -2) @ V for V in drawn]


def _starts(d: int) -> np.ndarray:
    """SS^T, S normal; seed 41 anew for every dimension."""
    S = np.random.RandomState(41).randn(RUNS, d, d)
    return S @ S.swapaxes(-1, -2)


class Outcome(NamedTuple):
    """Where the runs ended, which of them converged or diverged, and how many steps each took."""

    covariances: Tensor
    converged: Tensor
    diverged: Tensor
    steps: Tensor


def projected_euler(rate: Rate, S0: Tensor, **limits: Any) -> Outcome:
    """S <- P(S + h (BS + SB^T)), P setting eigenvalues < 0 to 1e-14: how the scripts integrate.

    A run ends after the first step with |BS + SB^T|_F < tol_low at its start, which has converged, or with
    a trace above tol_high at its end, which has diverged. The step knows no bound on h B, so that it can
    jump out of the cone; what the projection cuts off there is not a property of the flow.
    ``rate`` is given all of S (N, d, d) at once; the ``limits`` are h, tol_low, tol_high and max_iter.

    >>> import torch
    >>> from otflow.papers.unified.parameters import projected_euler
    >>> projected_euler(lambda S: -S, torch.eye(2).double()[None], h=0.1, tol_low=1e-3).converged
    tensor([True])
    """
    return _march(_euler, rate, S0, **limits)


def lie(rate: Rate, S0: Tensor, **limits: Any) -> Outcome:
    """S <- e^{hB} S e^{hB^T}, which keeps the rank; ends as `projected_euler` does.

    >>> import torch
    >>> from otflow.papers.unified.parameters import lie
    >>> lie(lambda S: -S, torch.eye(2).double()[None], h=0.1, tol_low=1e-3).converged
    tensor([True])
    """
    return _march(lambda S, B, h: _congruence(matrix_exp(h * B), S), rate, S0, **limits)


def residual(rate: Rate, S0: Tensor, **limits: Any) -> Outcome:
    """S <- (I + hB) S (I + hB)^T, the layer x + hBx of a Transformer; ends as `projected_euler` does.

    >>> import torch
    >>> from otflow.papers.unified.parameters import residual
    >>> residual(lambda S: -S, torch.eye(2).double()[None], h=0.1, tol_low=1e-3).converged
    tensor([True])
    """
    eye = torch.eye(S0.shape[-1]).double()
    return _march(lambda S, B, h: _congruence(eye + h * B, S), rate, S0, **limits)


def _march(
    step: Step,
    rate: Rate,
    S: Tensor,
    *,
    h: float,
    tol_low: float,
    tol_high: float = 1e3,
    max_iter: int = 50_000,
) -> Outcome:
    """Steps until every run has ended; those that have stand still, at their last finite state."""
    S = checks.tensor(S, "S0").clone()
    converged, diverged = (torch.zeros(len(S), dtype=torch.bool) for _ in range(2))
    steps = torch.zeros(len(S), dtype=torch.int64)
    for _ in range(checks.count(max_iter, "max_iter")):
        runs = (~(converged | diverged)).nonzero()[:, 0]
        if not len(runs):
            break
        B = rate(S)[runs]
        new = step(S[runs], B, h)
        calm = torch.linalg.matrix_norm(motion(B, S[runs])) < tol_low
        converged[runs] = calm
        diverged[runs] = ~calm & ~(trace(new) <= tol_high)  # also what is no number any more
        S[runs] = torch.where(new.isfinite().all(-1).all(-1)[:, None, None], new, S[runs])
        steps[runs] += 1
    return Outcome(S, converged, diverged, steps)


def _euler(S: Tensor, B: Tensor, h: float) -> Tensor:
    values, vectors = torch.linalg.eigh(S + h * motion(B, S))
    projected: Tensor = (vectors * torch.where(values < 0, TINY, values)[:, None, :]) @ vectors.mT
    return projected


def _congruence(E: Tensor, S: Tensor) -> Tensor:
    return E @ S @ E.mT


def first(panel: Panel, count: int) -> Panel:
    """The same picture with the first ``count`` of its runs.

    >>> from otflow.papers.unified.parameters import first, histograms
    >>> first(histograms()["3", 1, 4], 7).Q.shape
    (7, 2, 4)
    """
    Q, K, V, S = (a[:count] for a in (panel.Q, panel.K, panel.V, panel.covariances))
    return replace(panel, Q=Q, K=K, V=V, covariances=S)
