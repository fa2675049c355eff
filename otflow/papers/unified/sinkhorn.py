"""The same pictures under Sinkhorn attention

Sinkhorn attention scales the kernel until its rows and its columns average to one, so that it is a transport
plan from the tokens to themselves: its cross-covariance C has |S^-1/2 C S^-1/2| <= 1, and tr S(t) is at most
exp(2 |V| t / eps) tr S0, whatever Q and K are. Nothing blows up. Two pictures of Castin, Ablin, Carrillo and
Peyré (2025) show it, with eps = 1 and scores A that are not scaled. With the weights of Fig. 1a covariances
shrink to zero like M / t, with the M of softmax attention over sqrt 2, since near zero Sinkhorn attention is
softmax attention. With those of Fig. 2a, where softmax attention blows up, they grow exponentially. For large
S the plan is that of optimal transport, C = S^1/2 O S^1/2 with O the rotation in the polar decomposition of
S^1/2 A S^1/2, so that in the plane, with V = I,

    dS/dt = 2 cos(theta) S,    cos(theta) = tr(AS) / sqrt(tr(AS)^2 + (A12 - A21)^2 det S):

directions freeze, and every covariance grows at a rate of its own, up to 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
    ended,
    far,
    final,
    follow,
    growth,
    panel,
    profile,
    reference,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

SHRINK, GROW = "A Sinkhorn 1a", "A Sinkhorn 2a"
APPENDIX = PAPER.at("appendix (Sinkhorn)")
LAST = 1e6  # the time until which what falls like 1/t is followed
EARLY, END = 5.0, 12.0  # times at which growth is compared with scipy, and until which it is followed


def run(frame: Frame) -> Result:
    """Both panels."""
    work = effort(quick=frame.quick)
    p = {name: panel(name, quick=frame.quick) for name in (SHRINK, GROW)}
    frame.stage(0.0, "shrinking")
    runs = {SHRINK: follow(p[SHRINK], t1=LAST, save_at=decades(LAST, count=work.saves), rtol=work.rtol)}
    frame.stage(0.4, "growing")
    runs[GROW] = follow(p[GROW], t1=END, save_at=np.linspace(0.0, END, 61), rtol=work.rtol)
    frame.stage(0.8, "claims")
    claims = [
        *dying(p[SHRINK], runs[SHRINK], "1a with Sinkhorn", APPENDIX),
        *_shrinking(p[SHRINK], runs[SHRINK]),
        *_growing(p[GROW], runs[GROW]),
    ]
    frame.stage(0.9, "figure")
    data = {f"final_{name.split()[-1]}": final(traj) for name, traj in runs.items()}
    return Result(claims, {"sinkhorn": _draw(p, runs)}, data)


def _shrinking(p: Panel, traj: of.Trajectory) -> list[Claim]:
    y = np.trace(np.linalg.solve(p.V, covariances(traj)), axis1=-2, axis2=-1)
    return [
        Source("d/dt tr(V^-1 S) = 2 tr C / eps, and tr C < 0 for A = A^T < 0")(
            "1a with Sinkhorn: tr(V^-1 S) never grows (largest ratio of successive values)"
        ).at_most(1.0, (y[1:] / y[:-1]).max()),
        Source(f"{APPENDIX}; Sinkhorn attention near zero")(
            "1a with Sinkhorn: t S(t) -> M / sqrt 2, M that of softmax attention (relative distance)"
        ).at_most(1e-3, far(LAST * final(traj), profile(panel("1a", quick=True)) / np.sqrt(2))),
    ]


def transport_rate(S: Array, A: Array) -> Array:
    """2 tr(AS) / sqrt(tr(AS)^2 + (A12 - A21)^2 det S): d/dt log tr S for large S, V = I, eps = 1, (N,).

    >>> transport_rate(np.eye(2)[None], np.eye(2))
    array([2.])
    """
    level = np.trace(A @ S, axis1=-2, axis2=-1)
    return np.asarray(2 * level / np.sqrt(level**2 + (A[0, 1] - A[1, 0]) ** 2 * np.linalg.det(S)))


def _growing(p: Panel, traj: of.Trajectory) -> list[Claim]:
    S, t = covariances(traj), traj.ts
    size = np.trace(S, axis1=-2, axis2=-1)
    bound = of.closed_forms.sinkhorn_trace_bound(p.covariances, p.V, t[:, None].expand(-1, size.shape[1]))
    k = int(np.searchsorted(t.numpy(), EARLY - 1e-9))
    label = "2a with Sinkhorn"
    return [
        Source(f"{APPENDIX}; global existence")(f"{label}: covariances that blow up until t = {END:g}").equal(
            0, int((~ended(traj, "ok")).sum())
        ),
        Source("closed_forms.sinkhorn_trace_bound")(
            f"{label}: tr S(t) is at most exp(2 |V| t / eps) tr S0 (largest ratio at t > 0)"
        ).at_most(1.0, (size / bound.numpy())[1:].max()),
        Source("optimal transport plan between large Gaussians, polar decomposition")(
            f"{label}: d/dt log tr S -> 2 tr(AS) / sqrt(tr(AS)^2 + (A12 - A21)^2 det S) (at t = {END:g})"
        ).at_most(1e-3, np.abs(growth(traj) - transport_rate(S[-1], p.A)).max()),
        Source("optimal transport plan between large Gaussians: dS/dt is a multiple of S")(
            f"{label}: directions freeze (largest change of S / tr S over the last unit of time)"
        ).at_most(1e-3, far(S[-6] / size[-6, :, None, None], S[-1] / size[-1, :, None, None])),
        SCIPY(f"{label}: S at t = {EARLY:g} (largest relative difference)").at_most(
            1e-5, far(S[k], reference(p, length=EARLY, own_time=False).S)
        ),
    ]


# --- figure ------------------------------------------------------------------------------------------


def _draw(p: dict[str, Panel], runs: dict[str, of.Trajectory]) -> Any:
    fig, axes = draw.board(2)
    draw.discs(axes[0, 0], runs[SHRINK])
    draw.titled(axes[0, 0], "1a", "with Sinkhorn attention\n" + r"$S\to 0$ along one direction")
    draw.mark(axes[0, 0], profile(p[SHRINK]), "$M$")
    draw.eigenvalues(axes[1, 0], runs[SHRINK], floor=1e-16)
    axes[1, 0].set_title("both fall like $1/t$", fontsize=9, color=draw.INK)
    draw.discs(axes[0, 1], runs[GROW], color=draw.GREEN, many=True)
    draw.titled(axes[0, 1], "2a", "with Sinkhorn attention\nall grow, none blows up, directions freeze")
    draw.traces(axes[1, 1], runs[GROW], color=draw.GREEN)
    t = runs[GROW].ts.numpy()
    axes[1, 1].plot(t, np.exp(2 * t), color=draw.INK, ls="--", lw=1)
    axes[1, 1].text(
        0.06, 0.93, "dashed: the bound $e^{2t}$", fontsize=8, va="top", transform=axes[1, 1].transAxes
    )
    axes[1, 1].set(xlim=(0, END), ylim=(0.5, None))
    axes[1, 1].set_title("exponential growth", fontsize=9, color=draw.INK)
    return fig
