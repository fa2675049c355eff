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

import otflow as of
from otflow import closed_forms
from otflow.papers.unified.parameters import (
    LEVEL,
    PAPER,
    Outcome,
    Panel,
    above,
    first,
    histograms,
    projected_euler,
)
from otflow.papers.unified.runs import far
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

NAMES = {"3": "softmax", "A5": "L2"}
VALUES = {1: "V = I", 2: "V = V^T > 0"}
WORST, COND = 4, 1e4  # how many flows are checked by another integrator, and the condition of V up to which
LATE = 16.0  # logarithm of the time at which they are
EXPLICIT = {1: 2000, 2: 500}  # steps on the way to a limit before ill-conditioned V get implicit ones
FEWER = {(2, 4): 40, (2, 5): 25}  # rows and dimensions of which not all runs are followed


class RankRun(NamedTuple):
    """One histogram, by figure, row and d: where its flows start, truly end, and where Euler steps end."""

    key: tuple[str, int, int]
    panel: Panel
    limit: of.dynamics.Limit
    euler: Outcome

    @property
    def where(self) -> str:
        """The histogram in words."""
        figure, row, d = self.key
        return f"{NAMES[figure]}, d = {d}, {VALUES[row]}"

    @property
    def settled(self) -> np.ndarray:
        """Which flows were followed to a limit, (N,)."""
        return np.asarray(self.limit.status == "ok")

    @property
    def series(self) -> dict[str, np.ndarray]:
        """The ranks of the three bars."""
        return {
            "exact rank": self.limit.rank[self.settled].numpy(),
            f"exact limit, eigenvalues > {LEVEL:g}": above(self.limit.measure.cov[self.settled]),
            f"projected Euler, eigenvalues > {LEVEL:g}": above(self.euler.covariances[~self.euler.diverged]),
        }


def run(frame: Frame) -> Result:
    """All flows, all claims, all figures."""
    chosen = {key: panel for key, panel in histograms().items() if not frame.quick or key[2] == 3}
    runs = []
    for i, (key, panel) in enumerate(chosen.items()):
        frame.stage(i / len(chosen), f"Fig. {key[0]}, d = {key[2]}, {VALUES[key[1]]}")
        some = first(panel, frame.size(4, FEWER.get(key[1:], len(panel.Q))))
        limit = some.limit(max_steps=EXPLICIT[key[1]])
        runs.append(RankRun(key, some, limit, some.march(projected_euler, max_iter=frame.size(200, 1500))))
    claims = [claim for found in runs for claim in CLAIMS[found.key[1]](found)]
    figures = {f"ranks-{NAMES[name]}": _draw([r for r in runs if r.key[0] == name]) for name in NAMES}
    return Result(claims, figures, {key: a for found in runs for key, a in _data(found).items()})


# --- claims ------------------------------------------------------------------------------------------


def _identity_claims(found: RankRun) -> list[Claim]:
    """V = I: the rank, and the limit itself."""
    S0, A, half = found.panel.covariances, found.panel.A, (found.key[2] + 1) // 2
    source = Source(f"{found.panel.source}; {PAPER}, section 4")
    exact = closed_forms.softmax_limit(S0, A)
    gap = torch.linalg.matrix_norm(found.limit.measure.cov - exact) / torch.linalg.matrix_norm(exact)
    return [
        source(f"{found.where}: every limit has rank ceil(d/2) = {half} (limits of this rank)").equal(
            (closed_forms.softmax_limit_rank(S0, A) == half).sum(),
            ((found.limit.rank == half).numpy() & found.settled).sum(),
        ),
        source(
            f"{found.where}: the limit is N (N^T S0^-1 N)^-1 N^T, N spanning ker(A + A^T) (largest error)"
        ).at_most(1e-6, gap.max()),
    ]


def _positive_claims(found: RankRun) -> list[Claim]:
    """V > 0: what the Lyapunov function forbids."""
    p, limit, where, count = found.panel, found.limit, found.where, len(found.settled)
    source = Source(f"{p.source}; tr(V^-1 S) falls")
    end, start = (closed_forms.softmax_lyapunov(S, p.V) for S in (limit.measure.cov, p.covariances))
    return [
        source(f"{where}: flows that converge, of the first {count}").equal(count, found.settled.sum()),
        source(f"{where}: flows that diverge, of the first {count}").equal(
            0.0, (limit.status == "blow_up").sum()
        ),
        source(f"{where}: rank of the limit minus (d - rank(A + A^T)), largest of {count}").at_most(
            0.0, (limit.rank - closed_forms.softmax_limit_rank_bound(p.A)).max()
        ),
        source(f"{where}: tr(V^-1 S) at the limit over its value at the start, largest of {count}").at_most(
            1.0, (end / start).max()
        ),
        _reference_claim(found),
    ]


CLAIMS = {1: _identity_claims, 2: _positive_claims}


def _reference_claim(found: RankRun) -> Claim:
    """Ill-conditioned V, followed by scipy's stiff method in the time log t.

    Beyond a condition of 1e4, and much later, rounding makes the steps of this method short. A flow that
    still moves at the end says nothing about the limit, and the next V is taken in its place.
    """
    cond = np.linalg.cond(found.panel.V)
    ends = ((i, *_stiff(found, i)) for i in np.argsort(-cond) if cond[i] < COND)
    chosen, limits = zip(*islice(((i, S) for i, S, moves in ends if moves < 1e-3), WORST), strict=True)
    return Source("independent integration")(
        f"{found.where}: the limit against scipy's BDF at t = e^{LATE:g}, for {len(chosen)} V of condition "
        f"up to {cond[chosen[0]]:.2g} whose flows are at rest by then (largest relative error)"
    ).at_most(1e-3, far(found.limit.measure.cov[list(chosen)], np.stack(limits)))


def _stiff(found: RankRun, i: int) -> tuple[np.ndarray, float]:
    """S(e^16) for one run, and |dS/ds| / |S| there: dR/ds = e^s V R W, S = RR^T, from s = -16."""
    p, d = found.panel, found.panel.d
    Q, K, V = p.Q[i] / math.sqrt(d), p.K[i], p.V[i]

    def velocity(s: float, y: np.ndarray) -> np.ndarray:
        R = y.reshape(d, d)
        W = (K @ R).T @ (Q @ R)
        if found.key[0] == "A5":
            W = 2 * np.linalg.solve(np.eye(d) + 2 * (K @ R).T @ (K @ R), W)
        return np.asarray(math.exp(s) * V @ R @ W).ravel()

    start = np.linalg.cholesky(p.covariances[i]).ravel()
    end = solve_ivp(velocity, (-16.0, LATE), start, method="BDF", rtol=1e-7, atol=1e-12).y[:, -1]
    R, U = end.reshape(d, d), velocity(LATE, end).reshape(d, d)
    return R @ R.T, float(np.linalg.norm(U @ R.T + R @ U.T) / np.linalg.norm(R @ R.T))


def _data(found: RankRun) -> dict[str, np.ndarray]:
    (figure, row, d), limit, euler = found.key, found.limit, found.euler
    data = {
        "rank": np.where(found.settled, limit.rank.numpy(), -1),  # -1 where there is none
        "spectrum": limit.spectrum.numpy(),
        "slopes": limit.slopes.numpy(),
        "euler_spectrum": torch.linalg.eigvalsh(euler.covariances).flip(-1).numpy(),
        "euler_diverged": euler.diverged.numpy(),
    }
    return {f"{name}_{NAMES[figure]}_row{row}_d{d}": array for name, array in data.items()}


# --- figures -----------------------------------------------------------------------------------------


def _draw(runs: list[RankRun]) -> Any:
    cols = len(runs) // len(VALUES)
    fig, axes = of.plot.figure(len(VALUES), cols, size=(3.5 * max(cols, 2), 6.4))
    for ax, found in zip(axes.flat, runs, strict=True):
        _bars(ax, found)
    bars, words = axes[0, 0].get_legend_handles_labels()
    fig.legend(bars, words, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    return fig


def _bars(ax: Any, found: RankRun) -> None:
    (figure, row, d), lost = found.key, int(found.euler.diverged.sum())
    half, values = (d + 1) // 2, VALUES[row].replace("V^T", "$V^{\\top}$").replace("V ", "$V$ ")
    title = f"{NAMES[figure]}, $d$ = {d}, {values}" + f"; Euler: {lost} diverge" * (lost > 0)
    of.plot.ranks(found.series, d=d, ax=ax, width=0.86)
    ax.get_legend().remove()  # there is one for the whole figure
    # Labels on the outer panels only; those that the bars came with go.
    ax.set(xlabel=r"rank of the limit (shaded: $\lceil d/2\rceil$)" * (row == 2), ylabel="flows" * (d == 3))
    of.plot.panel(ax, title, ylim=(0, 1.12 * len(found.settled)))
    ax.axvspan(half - 0.5, half + 0.5, color=of.plot.FAINT, alpha=0.35, lw=0, zorder=-1)
