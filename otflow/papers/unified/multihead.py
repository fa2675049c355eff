"""The same pictures with two heads

The appendix of Castin, Ablin, Carrillo and Peyré (2025) repeats their figures with two heads of one row
each, B = sum_h e_h v_h^T S k_h q_h^T. With the weights of Fig. 1a (A1) covariances shrink to zero like M / t,
as with one head, but M now has rank one: the smaller eigenvalue falls faster. With the weights of Fig. 2d
(A3), where one head makes 57 of 648 covariances blow up and the others converge soon, two heads do neither:
at t = 100 every covariance is bounded and still moves, and it goes on shrinking slowly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow.papers.unified import claims, draw, runs
from otflow.papers.unified.parameters import PAPER, Panel, trace
from otflow.papers.unified.runs import LAST, SCIPY, Array, PanelRun, far
from otflow.papers.unified.table import PanelRow, reproduce
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

EARLY, LATE = 100.0, 500.0  # times at which A3 is looked at
LOW, HIGH = 1e-4, 1e3  # |dS/dt| and tr S at which the scripts of the paper end a run


def _slow(p: Panel, rtol: float, saves: int) -> of.Trajectory:
    return runs.follow(p, t1=LATE, save_at=np.union1d(runs.decades(LATE, count=saves), [EARLY]), rtol=rtol)


def _dying(run: PanelRun) -> list[Claim]:
    return [
        *claims.dying(run, PAPER.at("Fig. A1")),
        Source("self-similar solution: the root M of B(M) M + M B(M)^T = -M has det M = 0")(
            f"A1: the profile M has rank one (largest ratio of eigenvalues at t = {LAST:g})"
        ).at_most(1e-6, runs.unevenness(run.end).max()),
    ]


def _both(run: PanelRun) -> list[Claim]:
    def over(S: Array) -> Array:
        """Which covariances a script of the paper would no longer follow."""
        return (runs.speed(run.panel, S) < LOW) | (trace(S) > HIGH)

    k = int(np.flatnonzero(run.t == EARLY)[0])
    source = PAPER.at("Fig. A3 with the two heads that are meant")
    return [
        Source(f"{source}; {SCIPY}")(
            f"A3: covariances that have converged or blown up by t = {EARLY:g}, by the rules of the scripts"
        ).equal(over(run.other.S).sum(), over(run.S[: k + 1]).any(0).sum()),
        SCIPY(f"A3: S at t = {EARLY:g} (largest relative difference)").at_most(
            1e-5, far(run.S[k], run.other.S)
        ),
        source(f"A3: the trace falls from t = {EARLY:g} to t = {LATE:g} (largest ratio)").at_most(
            1.0, (trace(run.end) / trace(run.S[k])).max()
        ),
    ]


def _draw_dying(run: PanelRun, above: Any, below: Any) -> None:
    draw.dying(run, above, below)
    draw.titled(below, "like $1/t$, and faster")
    below.set_ylim(1e-12, 3)
    draw.hyperbola(below, 120.0, since=100.0)


def _draw_both(run: PanelRun, above: Any, below: Any) -> None:
    draw.discs(above, run.traj, many=True)
    draw.titled(above, f"no end, and no blow-up, by $t={LATE:g}$", run)
    draw.eigenvalues(below, run.traj, "slow decay")


PANELS = [
    PanelRow("A1 heads", "two heads, $V>0$, $A+A^T<0$", runs.decay, _dying, _draw_dying),
    PanelRow(
        "A3 heads", "two heads, $A+A^T$ of both signs", _slow, _both, _draw_both, check=EARLY, own_time=False
    ),
]


def run(frame: Frame) -> Result:
    """Both panels."""
    return reproduce(frame, "multihead", PANELS, lambda found: {"covariances": found.S})
