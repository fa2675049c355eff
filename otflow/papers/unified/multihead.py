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
import torch

import otflow as of
from otflow.papers.unified import draw
from otflow.papers.unified.claims import dying
from otflow.papers.unified.parameters import PAPER, Panel
from otflow.papers.unified.runs import (
    SCIPY,
    Array,
    covariances,
    decades,
    effort,
    far,
    final,
    follow,
    motion,
    panel,
    profile,
    reference,
    unevenness,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

LAST = 1e6  # the time until which A1 is followed
EARLY, LATE = 100.0, 500.0  # times at which A3 is looked at
LOW, HIGH = 1e-4, 1e3  # |dS/dt| and tr S at which the scripts of the paper end a run


def run(frame: Frame) -> Result:
    """Both panels."""
    work = effort(quick=frame.quick)
    p = {name: panel(name, quick=frame.quick) for name in ("A1 heads", "A3 heads")}
    frame.stage(0.0, "panel A1")
    runs = {
        "A1 heads": follow(p["A1 heads"], t1=LAST, save_at=decades(LAST, count=work.saves), rtol=work.rtol)
    }
    frame.stage(0.3, "panel A3")
    times = np.union1d(decades(LATE, count=work.saves), [EARLY])
    runs["A3 heads"] = follow(p["A3 heads"], t1=LATE, save_at=times, rtol=work.rtol)
    frame.stage(0.8, "claims")
    claims = [
        *dying(p["A1 heads"], runs["A1 heads"], "A1", PAPER.at("Fig. A1")),
        Source("self-similar solution: the root M of B(M) M + M B(M)^T = -M has det M = 0")(
            f"A1: the profile M has rank one (largest ratio of eigenvalues at t = {LAST:g})"
        ).at_most(1e-6, unevenness(final(runs["A1 heads"])).max()),
        *_both(p["A3 heads"], runs["A3 heads"]),
    ]
    frame.stage(0.9, "figure")
    data = {f"covariances_{name.replace(' ', '_')}": covariances(traj) for name, traj in runs.items()}
    return Result(claims, {"multihead": _draw(p, runs)}, data)


def _both(p: Panel, traj: of.Trajectory) -> list[Claim]:
    S, t = covariances(traj), traj.ts.numpy()
    k = int(np.flatnonzero(t == EARLY)[0])
    other = reference(p, length=EARLY, own_time=False).S
    size = np.trace(S, axis1=-2, axis2=-1)
    source = PAPER.at("Fig. A3 with the two heads that are meant")
    return [
        Source(f"{source}; {SCIPY}")(
            f"A3: covariances that have converged or blown up by t = {EARLY:g}, by the rules of the scripts"
        ).equal(int(_over(p, other).sum()), int(np.any([_over(p, s) for s in S[: k + 1]], 0).sum())),
        SCIPY(f"A3: S at t = {EARLY:g} (largest relative difference)").at_most(1e-5, far(S[k], other)),
        source(f"A3: the trace falls from t = {EARLY:g} to t = {LATE:g} (largest ratio)").at_most(
            1.0, (size[-1] / size[k]).max()
        ),
    ]


def _over(p: Panel, S: Array) -> Array:
    """Which covariances a script of the paper would no longer follow."""
    s = torch.from_numpy(S)
    moves = torch.linalg.matrix_norm(motion(p.rate(), s)).numpy()
    return np.asarray((moves < LOW) | (np.trace(S, axis1=-2, axis2=-1) > HIGH))


# --- figure ------------------------------------------------------------------------------------------


def _draw(p: dict[str, Panel], runs: dict[str, of.Trajectory]) -> Any:
    fig, axes = draw.board(2)
    one, two = runs.values()
    draw.discs(axes[0, 0], one)
    draw.titled(axes[0, 0], "A1", "two heads, $V>0$, $A+A^T<0$\n" + r"$S\to 0$ along one direction")
    draw.mark(axes[0, 0], profile(p["A1 heads"]), "$M$")
    draw.discs(axes[0, 1], two, many=True)
    draw.titled(
        axes[0, 1], "A3", f"two heads, $A+A^T$ of both signs\nno end, and no blow-up, by $t={LATE:g}$"
    )
    for ax, traj, word in zip(axes[1], (one, two), ("like $1/t$, and faster", "slow decay"), strict=True):
        draw.eigenvalues(ax, traj, floor=1e-16)
        ax.set_title(word, fontsize=9, color=draw.INK)
    axes[1, 0].set_ylim(1e-12, 3)
    t = np.array([100.0, LAST])
    draw.slope(axes[1, 0], t, 120 / t, "$1/t$")
    return fig
