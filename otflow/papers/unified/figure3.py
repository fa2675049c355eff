"""The rank of the limits, exactly and as the figure counts it

Figure 3 of Castin, Ablin, Carrillo and Peyré (2025) and its L2 twin in the appendix follow a hundred random
covariances in dimension 3, 4 and 5 through attention with scores A = -Q^T Q of rank floor(d/2), once with
V = I and once with a random V = V^T > 0, and count the ranks of the limits. The histograms there spread over
several ranks. Here the same hundred flows, from the same streams of random numbers, are followed to their
limits.

For V = I the limit is known: its rank is d - rank(A + A^T) = ceil(d/2), always. So the spread is not one of
ranks. Two things make it. The figure counts eigenvalues above 0.1, and true limits have smaller ones: the
second bars count so on exact limits. And it integrates the covariance by explicit Euler steps that jump out
of the semidefinite cone and are projected back, which cuts off eigenvalues that the flow keeps: the third
bars. (Our Euler runs take at most 1500 steps; the few that would go on hardly change the counts.)

For V = V^T > 0 the Lyapunov function tr(V^-1 S) falls, so nothing can diverge, and limits satisfy
(A + A^T) S = 0, so that their rank is at most ceil(d/2). All flows converge, although with condition numbers
of V up to a billion some take until t = 1e13. Of the third bars those runs are left out in which Euler steps
diverge all the same; the titles tell how many. Implicit steps are dear, so that only the first 40 of the
hundred runs with V > 0 are followed in dimension 4, and the first 25 in dimension 5. What vanishes is told
from what stays by how fast it falls: eigenvalues that still fall like a power of the time have the limit
zero, however large they are, and those that have come to rest do not, however small.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.papers.unified.parameters import PAPER, Outcome, Panel, first, histograms, projected_euler
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

LEVEL = 0.1  # above which the figure counts an eigenvalue
NAMES = {"3": "softmax", "A5": "L2"}
VALUES = {1: "V = I", 2: "V = V^T > 0"}
SERIES = ("exact rank", f"exact limit, eigenvalues > {LEVEL:g}", f"projected Euler, eigenvalues > {LEVEL:g}")
WORST, COND = 4, 1e4  # how many flows are checked by another integrator, and the condition of V up to which
LATE = 16.0  # logarithm of the time at which they are
EXPLICIT = {1: 2000, 2: 500}  # steps on the way to a limit before ill-conditioned V get implicit ones
FEWER = {(2, 4): 40, (2, 5): 25}  # rows and dimensions of which not all runs are followed
Key = tuple[str, int, int]


class RankRun(NamedTuple):
    """One histogram: where its flows start, where they truly end, and where Euler steps end."""

    panel: Panel
    limit: of.Limit
    euler: Outcome

    @property
    def settled(self) -> np.ndarray:
        """Which flows were followed to a limit, (N,)."""
        return np.asarray(self.limit.status == "ok")

    def series(self) -> dict[str, np.ndarray]:
        """The ranks of the three bars."""
        exact, euler = self.limit.measure.cov[self.settled], self.euler.covariances[~self.euler.diverged]
        ranks = self.limit.rank[self.settled].numpy()
        return dict(zip(SERIES, (ranks, above(exact), above(euler)), strict=True))


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    chosen = {key: panel for key, panel in histograms().items() if not frame.quick or key[2] == 3}
    runs = {}
    for i, (key, panel) in enumerate(chosen.items()):
        frame.stage(i / len(chosen), f"Fig. {key[0]}, d = {key[2]}, {VALUES[key[1]]}")
        runs[key] = _run(key, panel, quick=frame.quick)
    claims = [claim for key, found in runs.items() for claim in CLAIMS[key[1]](key, found)]
    figures = {f"ranks-{NAMES[name]}": _draw(name, runs) for name in NAMES}
    return Result(claims, figures, _data(runs))


def above(S: Tensor) -> np.ndarray:
    """How many eigenvalues of each covariance are above 0.1: what the figure takes for the rank.

    >>> above(torch.diag(torch.tensor([1.0, 0.09]))).item()
    1
    """
    return np.asarray((torch.linalg.eigvalsh(S) > LEVEL).sum(-1))


def _run(key: Key, panel: Panel, *, quick: bool) -> RankRun:
    panel = first(panel, 4 if quick else FEWER.get(key[1:], len(panel.Q)))
    limit = of.limit(panel.field(), panel.gaussians(), on_failure="return", max_steps=EXPLICIT[key[1]])
    S0, steps = torch.tensor(panel.covariances), 200 if quick else 1500
    euler = projected_euler(panel.rate(), S0, h=panel.h, tol_low=panel.tol, max_iter=steps)
    return RankRun(panel, limit, euler)


def _where(key: Key) -> str:
    return f"{NAMES[key[0]]}, d = {key[2]}, {VALUES[key[1]]}"


def _identity_claims(key: Key, found: RankRun) -> list[Claim]:
    """V = I: the rank, and the limit itself."""
    exact = closed_forms.softmax_limit(found.panel.covariances, found.panel.A)
    ranks = closed_forms.softmax_limit_rank(found.panel.covariances, found.panel.A)
    gap = torch.linalg.matrix_norm(found.limit.measure.cov - exact) / torch.linalg.matrix_norm(exact)
    half, source = (key[2] + 1) // 2, Source(f"{found.panel.source}; {PAPER}, section 4")
    return [
        source(f"{_where(key)}: every limit has rank ceil(d/2) = {half} (limits of this rank)").equal(
            (ranks == half).sum(), ((found.limit.rank == half).numpy() & found.settled).sum()
        ),
        source(
            f"{_where(key)}: the limit is N (N^T S0^-1 N)^-1 N^T, N spanning ker(A + A^T) (largest error)"
        ).at_most(1e-6, gap.max()),
    ]


def _positive_claims(key: Key, found: RankRun) -> list[Claim]:
    """V > 0: what the Lyapunov function forbids."""
    bound = closed_forms.softmax_limit_rank_bound(found.panel.A)
    count, ends = len(found.settled), found.limit.status
    source = Source(f"{found.panel.source}; tr(V^-1 S) falls")
    return [
        source(f"{_where(key)}: flows that converge, of the first {count}").equal(count, found.settled.sum()),
        source(f"{_where(key)}: flows that diverge, of the first {count}").equal(
            0.0, (ends == "blow_up").sum()
        ),
        source(f"{_where(key)}: rank of the limit minus (d - rank(A + A^T)), largest of {count}").at_most(
            0.0, (found.limit.rank - bound).max()
        ),
        source(
            f"{_where(key)}: tr(V^-1 S) at the limit over its value at the start, largest of {count}"
        ).at_most(1.0, _lyapunov(found).max()),
        _reference_claim(key, found),
    ]


def _reference_claim(key: Key, found: RankRun) -> Claim:
    """Ill-conditioned V, followed by scipy's stiff method in the time log t.

    Beyond a condition of 1e4, and much later, rounding makes the steps of this method short. A flow that
    still moves at the end says nothing about the limit, and the next V is taken in its place.
    """
    cond = np.linalg.cond(found.panel.V)
    order = [int(i) for i in np.argsort(-cond) if cond[i] < COND]
    ends = ((i, _stiff(key[0], found.panel, i)) for i in order)
    chosen = list(islice(((i, S) for i, (S, moves) in ends if moves < 1e-3), WORST))
    errors = [_apart(found.limit.measure.cov[i].numpy(), S) for i, S in chosen]
    return Source("independent integration")(
        f"{_where(key)}: the limit against scipy's BDF at t = e^{LATE:g}, for {len(chosen)} V of condition "
        f"up to {cond[chosen[0][0]]:.2g} whose flows are at rest by then (largest relative error)"
    ).at_most(1e-3, max(errors))


def _apart(S: np.ndarray, T: np.ndarray) -> float:
    return float(np.linalg.norm(S - T) / np.linalg.norm(T))


def _stiff(figure: str, panel: Panel, i: int) -> tuple[np.ndarray, float]:
    """S(e^16) for one run, and |dS/ds| / |S| there: dR/ds = e^s V R W, S = RR^T, from s = -16."""
    d, Q, K, V = panel.d, panel.Q[i] / math.sqrt(panel.d), panel.K[i], panel.V[i]

    def velocity(s: float, y: np.ndarray) -> np.ndarray:
        R = y.reshape(d, d)
        W = (K @ R).T @ (Q @ R)
        if figure == "A5":
            W = 2 * np.linalg.solve(np.eye(d) + 2 * (K @ R).T @ (K @ R), W)
        return np.asarray(math.exp(s) * V @ R @ W).ravel()

    start = np.linalg.cholesky(panel.covariances[i]).ravel()
    end = solve_ivp(velocity, (-16.0, LATE), start, method="BDF", rtol=1e-7, atol=1e-12).y[:, -1]
    R, U = end.reshape(d, d), velocity(LATE, end).reshape(d, d)
    return R @ R.T, float(np.linalg.norm(U @ R.T + R @ U.T) / np.linalg.norm(R @ R.T))


def _lyapunov(found: RankRun) -> np.ndarray:
    """tr(V^-1 S) at the end, in units of its value at the start, (N,)."""
    end, start = found.limit.measure.cov, found.panel.covariances
    ends, starts = (closed_forms.softmax_lyapunov(S, found.panel.V) for S in (end, start))
    return np.asarray(ends / starts)


CLAIMS = {1: _identity_claims, 2: _positive_claims}


def _data(runs: dict[Key, RankRun]) -> dict[str, np.ndarray[Any, Any]]:
    out = {}
    for (figure, row, d), found in runs.items():
        name = f"{NAMES[figure]}_row{row}_d{d}"
        out[f"rank_{name}"] = np.where(found.settled, found.limit.rank.numpy(), -1)
        out[f"spectrum_{name}"] = found.limit.spectrum.numpy()
        out[f"slopes_{name}"] = found.limit.slopes.numpy()
        out[f"euler_spectrum_{name}"] = torch.linalg.eigvalsh(found.euler.covariances).flip(-1).numpy()
        out[f"euler_diverged_{name}"] = found.euler.diverged.numpy()
    return out


# --- figures -----------------------------------------------------------------------------------------


def _draw(figure: str, runs: dict[Key, RankRun]) -> Any:
    keys = [key for key in runs if key[0] == figure]
    cols = len(keys) // len(VALUES)
    fig, axes = of.plot.figure(len(VALUES), cols, size=(3.5 * max(cols, 2), 6.4))
    for ax, key in zip(axes.flat, keys, strict=True):
        _bars(ax, key, runs[key])
    bars, words = axes[0, 0].get_legend_handles_labels()
    fig.legend(bars, words, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return fig


def _bars(ax: Any, key: Key, found: RankRun) -> None:
    of.plot.ranks(found.series(), d=key[2], ax=ax, width=0.86)
    ax.get_legend().remove()
    lost = int(found.euler.diverged.sum())
    values = VALUES[key[1]].replace("V^T", "$V^{\\top}$").replace("V ", "$V$ ")
    ax.set_title(
        f"{NAMES[key[0]]}, $d$ = {key[2]}, {values}" + f"; Euler: {lost} diverge" * (lost > 0), fontsize=9
    )
    ax.set(xlabel="", ylabel="flows" if key[2] == 3 else "", ylim=(0, 1.12 * len(found.settled)))
    ax.axvspan(
        (key[2] + 1) // 2 - 0.5, (key[2] + 1) // 2 + 0.5, color=of.plot.FAINT, alpha=0.35, lw=0, zorder=-1
    )
    if key[1] == 2:
        ax.set_xlabel("rank of the limit (shaded: ceil(d/2))")
