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

from typing import Any

import numpy as np
import torch

import otflow as of
from otflow.papers.unified import draw
from otflow.papers.unified.claims import dying, rank_one, settling
from otflow.papers.unified.parameters import PAPER, Panel
from otflow.papers.unified.runs import (
    SCIPY,
    Array,
    Effort,
    apart,
    covariances,
    decades,
    effort,
    ended,
    explosive_line,
    far,
    final,
    follow,
    motion,
    panel,
    profile,
    reference,
    stable_lines,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

NAMES = ("A1 L2", "A2 L2 rank one", "A2 L2 mixed", "A3 L2")
LAST = 1e6  # the time until which what falls like 1/t is followed
CALM = 1e-10  # |dS/dt| at which the second panel of A2 is stopped
END = 150.0  # time until which A3 is followed


def run(frame: Frame) -> Result:
    """The four panels."""
    p = {
        name: panel(name, quick=frame.quick, keep=9) for name in NAMES
    }  # 9 keeps one whose trace passes 1000
    runs: dict[str, of.Trajectory] = {}
    for i, name in enumerate(NAMES):
        frame.stage(0.8 * i / len(NAMES), f"panel {name}")
        runs[name] = _flow(name, p[name], effort(quick=frame.quick))
    frame.stage(0.8, "claims")
    claims = [
        *dying(p["A1 L2"], runs["A1 L2"], "A1", PAPER.at("Fig. A1")),
        _half(p["A1 L2"], runs["A1 L2"]),
        *rank_one(p["A2 L2 rank one"], runs["A2 L2 rank one"], "A2", PAPER.at("Fig. A2")),
        *settling(p["A2 L2 mixed"], runs["A2 L2 mixed"], "A2", PAPER.at("Fig. A2")),
        *_both(p["A3 L2"], runs["A3 L2"]),
    ]
    frame.stage(0.9, "figure")
    data = {f"final_{name.replace(' ', '_')}": final(traj) for name, traj in runs.items()}
    return Result(claims, {"l2": _draw(p, runs)}, data)


def _flow(name: str, p: Panel, work: Effort) -> of.Trajectory:
    if name in ("A1 L2", "A2 L2 rank one"):
        return follow(p, t1=LAST, save_at=decades(LAST, count=work.saves), rtol=work.rtol)
    if name == "A2 L2 mixed":
        return follow(p, t1=1e4, calm=CALM, save_at=decades(1e4, count=work.saves))
    return follow(
        p,
        t1=END,
        calm=100 * work.rtol,
        rtol=10 * work.rtol,
        save_at=np.union1d(decades(END, count=work.saves), np.linspace(0.0, END, 31)),
    )


def _half(p: Panel, traj: of.Trajectory) -> Claim:
    softmax = panel("1a", quick=True)
    return PAPER.at("Fig. A1; L2 attention near zero")(
        "A1: t S(t) tends to half of what it tends to under softmax attention (relative distance)"
    ).at_most(1e-3, far(LAST * final(traj), profile(softmax) / 2))


def _both(p: Panel, traj: of.Trajectory) -> list[Claim]:
    S, other = covariances(traj), reference(p, length=END, own_time=False)
    size = np.trace(S, axis1=-2, axis2=-1)
    times = traj.ts[:, None].expand(-1, size.shape[1])
    bound = of.closed_forms.l2_trace_bound(p.covariances, p.Q / np.sqrt(p.d), p.K, p.V, times).log().numpy()
    source = f"{PAPER}, Fig. A3"
    return [
        Source(f"{source}; global existence of L2 attention for invertible K")(
            "A3: covariances that blow up"
        ).equal(0, int(ended(traj, "blow_up").sum())),
        Source("closed_forms.l2_trace_bound: |x'| <= |V K^-1| |Q| |x|")(
            "A3: log tr S(t) is at most 2 |V K^-1| |Q| t (largest ratio at t > 0)"
        ).at_most(1.0, (np.log(size[1:]) / bound[1:]).max()),
        Source(f"{source}; {SCIPY}")("A3: covariances whose limit has a trace beyond a thousand").equal(
            int(other.exploded.sum()), int(_large(traj).sum())
        ),
        SCIPY("A3: covariances that converge").equal(_resting(p, other.S), int(ended(traj, "stopped").sum())),
        Source(f"released scripts of {PAPER}, L2_both; {SCIPY}")(
            "A3: covariances that diverge; the scripts count those whose trace passes a thousand, but these "
            "turn and converge"
        ).erratum(
            printed=int((size.max(0) > 1e3).sum()),
            corrected=len(p.covariances) - _resting(p, other.S),
            measured=int((~ended(traj, "stopped")).sum()),
        ),
        Source("linearisation at c uu^T: u^T (A + A^T) V u < 0 and u^T A V u < 0")(
            "A3: every limit lies along the stable u with u^T A u = 0 (largest angle, radians)"
        ).at_most(1e-5, apart(S[-1], stable_lines(p))[0].max()),
        SCIPY("A3: the largest trace of a limit").equal(
            np.trace(other.S, axis1=-2, axis2=-1).max(), size[-1].max(), rtol=1e-3
        ),
    ]


def _resting(p: Panel, S: Array) -> int:
    """How many members have |dS/dt| < 1e-5 max(1, tr S)."""
    moves = torch.linalg.matrix_norm(motion(p.rate(), torch.from_numpy(S))).numpy()
    return int((moves < 1e-5 * np.trace(S, axis1=-2, axis2=-1).clip(min=1.0)).sum())


def _large(traj: of.Trajectory) -> Array:
    return np.asarray(np.trace(final(traj), axis1=-2, axis2=-1) > 1e3)


# --- figure ------------------------------------------------------------------------------------------


def _draw(p: dict[str, Panel], runs: dict[str, of.Trajectory]) -> Any:
    fig, axes = draw.board(4, cones=[2])
    for k, name in enumerate(NAMES[:3]):
        draw.eigenvalues(axes[1, k], runs[name], floor=1e-10 if k == 2 else 1e-16)
    _draw_limits(axes[0], p, runs)
    _draw_cone(axes[0, 2], p[NAMES[2]], runs[NAMES[2]])
    _draw_both(axes[:, 3], p["A3 L2"], runs["A3 L2"])
    words = (
        "both fall like $1/t$",
        "one falls like $1/t$",
        "one falls exponentially",
        "growth along $v$ (dashed), for a while",
    )
    for ax, word in zip(axes[1], words, strict=True):
        ax.set_title(word, fontsize=9, color=draw.INK)
    return fig


def _draw_limits(axes: Array, p: dict[str, Panel], runs: dict[str, of.Trajectory]) -> None:
    for ax, name in zip(axes, NAMES[:2], strict=False):
        draw.discs(ax, runs[name])
    draw.titled(axes[0], "A1", "L2, $V>0$, $A+A^T<0$\n" + r"$S\to 0$ along one direction")
    draw.mark(axes[0], profile(p["A1 L2"]), "$M$")
    draw.titled(axes[1], "A2", r"L2, $V=I$, $A\propto -qq^T$" + "\nlimits of rank one, across $q$")
    q = p[NAMES[1]].Q[0]
    draw.rim(axes[1], np.array([-q[1], q[0]]), r"$\perp q$", color=draw.RED)
    draw.rim(axes[1], q, "$q$")


def _draw_cone(ax: Any, p: Panel, traj: of.Trajectory) -> None:
    draw.settled(ax, p, traj)
    draw.titled(ax, "A2", "L2, $A+A^T$ of both signs\nlimits on two lines $u^TAu=0$")


def _draw_both(axes: Array, p: Panel, traj: of.Trajectory) -> None:
    large = _large(traj)
    shades = np.where(large, draw.RED, draw.BLUE)
    draw.discs(axes[0], traj, color=shades.tolist(), many=True)
    line, pace = explosive_line(p)
    draw.rim(axes[0], line, "$v$", color=draw.RED)
    draw.rim(axes[0], stable_lines(p)[0], "$u$", color=draw.BLUE)
    draw.titled(axes[0], "A3", "L2, $A+A^T$ of both signs\nall converge, some after a long way")
    draw.traces(axes[1], traj, color=shades)
    t = np.linspace(0.0, 100.0, 50)
    axes[1].plot(t, 0.3 * np.exp(pace / np.sum((p.K @ line) ** 2) * t), color=draw.INK, ls="--", lw=1)
    axes[1].set(xlim=(0, 110.0), ylim=(1e-2, 1e6))
    draw.key(
        axes[1],
        {f"{large.sum()} beyond 1000": draw.RED, f"{(~large).sum()} others": draw.BLUE},
        loc="upper left",
    )
