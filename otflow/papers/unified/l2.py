"""The same pictures under L2 attention

The appendix of Castin, Ablin, Carrillo and Peyré (2025) repeats their figures with L2 attention, whose scores
are -|Qx - Ky|^2. The limits are those of softmax attention, reached at another pace: zero for A + A^T < 0 and
V > 0 (A1; near zero L2 attention is twice softmax attention, so that t S(t) tends to half the matrix M of
softmax), a matrix of rank one across q for A of rank one and V = I (A2), and multiples of uu^T with
u^T A u = 0 for A + A^T of both signs (A2).

Where softmax attention blows up, L2 attention with an invertible K does not (A3). Covariances xx^T follow
x' = 2 (x^T A x) / (1 + 2 |Kx|^2) V x, so that some grow along the eigenvector v of V, at the exponential rate
2 l v^T A v / |K v|^2. But to first order their determinant grows at the same rate, so that the smaller
eigenvalue stays; it grows slowly, and in the end carries them off. All of them converge, also those whose
trace passes the thousand that the scripts of the paper count as divergence.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import otflow as of
from otflow.papers.unified import claims, draw, runs
from otflow.papers.unified.parameters import PAPER, Panel, trace
from otflow.papers.unified.runs import LAST, SCIPY, PanelRun, far
from otflow.papers.unified.table import PanelRow, reproduce
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

END = 150.0  # time until which A3 is followed
MANY = 1e3  # the trace that the scripts of the paper count as divergence


def _long(p: Panel, rtol: float, saves: int) -> of.Trajectory:
    times = np.union1d(runs.decades(END, count=saves), np.linspace(0.0, END, 31))
    return runs.follow(p, t1=END, calm=100 * rtol, rtol=10 * rtol, save_at=times)


def _dying(run: PanelRun) -> list[Claim]:
    return [
        *claims.dying(run, PAPER.at("Fig. A1")),
        PAPER.at("Fig. A1; L2 attention near zero")(
            "A1: t S(t) tends to half of what it tends to under softmax attention (relative distance)"
        ).at_most(1e-3, far(LAST * run.end, runs.profile(runs.panel("1a", quick=True)) / 2)),
    ]


def _both(run: PanelRun) -> list[Claim]:
    p, other, stopped, size = run.panel, run.other, run.ended("stopped"), trace(run.S)
    bound = of.closed_forms.l2_trace_bound(p.covariances, p.Q / np.sqrt(p.d), p.K, p.V, run.t[:, None])
    resting = (runs.speed(p, other.S) < 1e-5 * trace(other.S).clip(min=1.0)).sum()
    return [
        PAPER.at("Fig. A3; global existence of L2 attention for invertible K")(
            "A3: covariances that blow up"
        ).equal(0, run.ended("blow_up").sum()),
        Source("closed_forms.l2_trace_bound: |x'| <= |V K^-1| |Q| |x|")(
            "A3: log tr S(t) is at most 2 |V K^-1| |Q| t (largest ratio at t > 0)"
        ).at_most(1.0, (np.log(size[1:]) / bound.log().numpy()[1:]).max()),
        PAPER.at(f"Fig. A3; {SCIPY}")("A3: covariances whose limit has a trace beyond a thousand").equal(
            other.exploded.sum(), (trace(run.end) > MANY).sum()
        ),
        SCIPY("A3: covariances that converge").equal(resting, stopped.sum()),
        Source(f"released scripts of {PAPER}, L2_both; {SCIPY}")(
            "A3: covariances that diverge; the scripts count those whose trace passes a thousand, but these "
            "turn and converge"
        ).erratum(
            printed=(size.max(0) > MANY).sum(), corrected=len(stopped) - resting, measured=(~stopped).sum()
        ),
        claims.STABLE(
            "A3: every limit lies along the stable u with u^T A u = 0 (largest angle, radians)"
        ).at_most(1e-5, runs.apart(run.end, runs.stable_lines(p))[0].max()),
        SCIPY("A3: the largest trace of a limit").equal(trace(other.S).max(), size[-1].max(), rtol=1e-3),
    ]


def _draw_both(run: PanelRun, above: Any, below: Any) -> None:
    large, (line, pace) = trace(run.end) > MANY, runs.explosive_line(run.panel)
    shades, t = np.where(large, draw.RED, draw.BLUE), np.linspace(0.0, 100.0, 50)
    draw.discs(above, run.traj, color=shades.tolist(), many=True)
    draw.rim(above, line, "$v$", color=draw.RED)
    draw.rim(above, runs.stable_lines(run.panel)[0], "$u$", color=draw.BLUE)
    draw.titled(above, "all converge, some after a long way", run)
    draw.traces(below, run.t, run.S, color=shades)
    rate = pace / np.sum((run.panel.K @ line) ** 2)
    below.plot(t, 0.3 * np.exp(rate * t), color=draw.INK, ls="--", lw=1)
    below.set(xlim=(0, 110.0), ylim=(1e-2, 1e6))
    draw.titled(below, "growth along $v$ (dashed), for a while")
    counts = {f"{large.sum()} beyond 1000": draw.RED, f"{(~large).sum()} others": draw.BLUE}
    draw.key(below, counts, loc="upper left")


_rank_one, _settling = (
    partial(shared, source=PAPER.at("Fig. A2")) for shared in (claims.rank_one, claims.settling)
)
SIGNS = "L2, $A+A^T$ of both signs"
PANELS = [
    PanelRow("A1 L2", "L2, $V>0$, $A+A^T<0$", runs.decay, _dying, draw.dying),
    PanelRow("A2 L2 rank one", r"L2, $V=I$, $A\propto -qq^T$", runs.decay, _rank_one, draw.rank_one),
    PanelRow("A2 L2 mixed", SIGNS, runs.rest, _settling, draw.settled, check=400.0, cone=True),
    PanelRow("A3 L2", SIGNS, _long, _both, _draw_both, check=END, own_time=False),
]


def run(frame: Frame) -> Result:
    """The four panels."""
    # Every ninth of the covariances of A3: among them is one whose trace passes 1000.
    return reproduce(frame, "l2", PANELS, lambda found: {"final": found.end}, keep=9)
