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
from otflow.papers.unified import claims, draw, runs
from otflow.papers.unified.parameters import PAPER, Panel, trace
from otflow.papers.unified.runs import LAST, SCIPY, Array, PanelRun, far
from otflow.papers.unified.table import PanelRow, reproduce
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

APPENDIX = PAPER.at("appendix (Sinkhorn)")
EARLY, END = 5.0, 12.0  # times at which growth is compared with scipy, and until which it is followed


def _grow(p: Panel, rtol: float, _: int) -> of.Trajectory:
    return runs.follow(p, t1=END, save_at=np.linspace(0.0, END, 61), rtol=rtol)


def _dying(run: PanelRun) -> list[Claim]:
    y = trace(np.linalg.solve(run.panel.V, run.S))
    return [
        *claims.dying(run, APPENDIX),
        Source("d/dt tr(V^-1 S) = 2 tr C / eps, and tr C < 0 for A = A^T < 0")(
            f"{run.label}: tr(V^-1 S) never grows (largest ratio of successive values)"
        ).at_most(1.0, (y[1:] / y[:-1]).max()),
        Source(f"{APPENDIX}; Sinkhorn attention near zero")(
            f"{run.label}: t S(t) -> M / sqrt 2, M that of softmax attention (relative distance)"
        ).at_most(1e-3, far(LAST * run.end, runs.profile(runs.panel("1a", quick=True)) / np.sqrt(2))),
    ]


def transport_rate(S: Array, A: Array) -> Array:
    """2 tr(AS) / sqrt(tr(AS)^2 + (A12 - A21)^2 det S): d/dt log tr S for large S, V = I, eps = 1, (N,).

    >>> import numpy as np
    >>> from otflow.papers.unified.sinkhorn import transport_rate
    >>> transport_rate(np.eye(2)[None], np.eye(2))
    array([2.])
    """
    level = trace(A @ S)
    return np.asarray(2 * level / np.sqrt(level**2 + (A[0, 1] - A[1, 0]) ** 2 * np.linalg.det(S)))


def _growing(run: PanelRun) -> list[Claim]:
    label, p, S, t, size = run.label, run.panel, run.S, run.t, trace(run.S)
    bound = of.closed_forms.sinkhorn_trace_bound(p.covariances, p.V, t[:, None]).numpy()
    shape = S / size[..., None, None]
    plan, early = "optimal transport plan between large Gaussians", np.searchsorted(t, EARLY - 1e-9)
    return [
        Source(f"{APPENDIX}; global existence")(f"{label}: covariances that blow up until t = {END:g}").equal(
            0, (~run.ended("ok")).sum()
        ),
        Source("closed_forms.sinkhorn_trace_bound")(
            f"{label}: tr S(t) is at most exp(2 |V| t / eps) tr S0 (largest ratio at t > 0)"
        ).at_most(1.0, (size / bound)[1:].max()),
        Source(f"{plan}, polar decomposition")(
            f"{label}: d/dt log tr S -> 2 tr(AS) / sqrt(tr(AS)^2 + (A12 - A21)^2 det S) (at t = {END:g})"
        ).at_most(1e-3, np.abs(runs.growth(size, t) - transport_rate(S[-1], p.A)).max()),
        Source(f"{plan}: dS/dt is a multiple of S")(
            f"{label}: directions freeze (largest change of S / tr S over the last unit of time)"
        ).at_most(1e-3, far(shape[-6], shape[-1])),
        SCIPY(f"{label}: S at t = {EARLY:g} (largest relative difference)").at_most(
            1e-5, far(S[early], run.other.S)
        ),
    ]


def _draw_growing(run: PanelRun, above: Any, below: Any) -> None:
    draw.discs(above, run.traj, color=draw.GREEN, many=True)
    draw.titled(above, "all grow, none blows up, directions freeze", run)
    draw.traces(below, run.t, run.S)
    below.plot(run.t, np.exp(2 * run.t), color=draw.INK, ls="--", lw=1)
    draw.note(below, 0.06, 0.93, "dashed: the bound $e^{2t}$")
    below.set(xlim=(0, END), ylim=(0.5, None))
    draw.titled(below, "exponential growth")


WORDS, SHRINKS, GROWS = "with Sinkhorn attention", "1a with Sinkhorn", "2a with Sinkhorn"
PANELS = [
    PanelRow("A Sinkhorn 1a", WORDS, runs.decay, _dying, draw.dying, SHRINKS),
    PanelRow("A Sinkhorn 2a", WORDS, _grow, _growing, _draw_growing, GROWS, check=EARLY, own_time=False),
]


def run(frame: Frame) -> Result:
    """Both panels."""
    return reproduce(frame, "sinkhorn", PANELS, lambda found: {"final": found.end})
