"""Covariances under attention that contracts

Figure 1 of Castin, Ablin, Carrillo and Peyré (2025) follows Gaussian token laws in the plane, drawn as points
(S11 - S22, 2 S12) / tr S of a disk whose circle is rank one, or as points (S11 - S22, 2 S12, tr S) of a cone.
Here every panel is integrated accurately, and its limits are compared with formulas:

a. Softmax, A + A^T < 0 and V > 0: S shrinks to zero, and t S(t) forgets where it came from.
b. Softmax, A of rank one and V = I: S tends to a matrix of rank one across q, which is known explicitly.
c. The same with two heads, the second of them idle: the limits have full rank. They lie in the plane
   e1^T S q = 0, which is a line of the disk, and are explicit too. For the first coordinate alone moves, by
   multiples of q.x, so that S(t) = (I - c e1 q^T) S0 (I - c q e1^T) with c growing until e1^T S q = 0.
d. Softmax, A + A^T of both signs: S tends to multiples of uu^T with u^T A u = 0, of which there are two
   lines. Both attract: the stationary matrices c uu^T are stable if u^T (A + A^T) V u < 0 (moving u) and
   u^T A V u < 0 (opening up a second direction).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import otflow as of
from otflow.papers.unified import draw
from otflow.papers.unified.claims import dying, rank_one, settling
from otflow.papers.unified.parameters import PAPER, Panel
from otflow.papers.unified.runs import (
    SECTION,
    Array,
    Effort,
    covariances,
    decades,
    effort,
    far,
    final,
    follow,
    panel,
    profile,
    scores,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

FIGURE = f"{PAPER}, Fig. 1"
LAST = 1e6  # the time until which what falls like 1/t is followed
CALM = 1e-10  # |dS/dt| at which what falls exponentially is stopped


def run(frame: Frame) -> Result:
    """The four panels."""
    p = {name: panel(name, quick=frame.quick) for name in ("1a", "1b", "1c", "1d")}
    runs: dict[str, of.Trajectory] = {}
    for i, name in enumerate(p):
        frame.stage(0.8 * i / len(p), f"panel {name}")
        runs[name] = _flow(name, p[name], effort(quick=frame.quick))
    frame.stage(0.8, "claims")
    claims = [
        *dying(
            p["1a"], runs["1a"], "1a", Source(f"{FIGURE}a; limits have rank at most d - rank(A + A^T) = 0")
        ),
        _lyapunov(p["1a"], runs["1a"]),
        *_rank_one(p["1b"], runs["1b"]),
        *_heads(p["1c"], runs["1c"]),
        *settling(p["1d"], runs["1d"], "1d", Source(f"{FIGURE}d")),
    ]
    frame.stage(0.9, "figure")
    data = {f"covariances_{name}": covariances(traj) for name, traj in runs.items()}
    times = {f"t_{name}": traj.ts.numpy() for name, traj in runs.items()}
    return Result(claims, {"figure-1": _draw(p, runs)}, data | times)


def _flow(name: str, p: Panel, work: Effort) -> of.Trajectory:
    if name in ("1a", "1b"):
        return follow(p, t1=LAST, save_at=decades(LAST, count=work.saves), rtol=work.rtol)
    return follow(p, t1=1e4, calm=CALM, save_at=decades(1e4, count=work.saves))


def _lyapunov(p: Panel, traj: of.Trajectory) -> Claim:
    y = np.trace(np.linalg.solve(p.V, covariances(traj)), axis1=-2, axis2=-1)
    A = scores(p)
    c = -np.linalg.eigvalsh(A + A.T)[-1] * np.linalg.eigvalsh(p.V)[0] ** 2 / p.d
    return Source(f"{SECTION}: Lyapunov function of softmax attention with V > 0")(
        "1a: tr(V^-1 S) is at most 1 / (1 / y0 + c t), c = -max eig(A + A^T) min eig(V)^2 / d (ratio, t > 0)"
    ).at_most(1.0, (y * (1 / y[0] + c * traj.ts.numpy()[:, None]))[1:].max())


def _rank_one(p: Panel, traj: of.Trajectory) -> list[Claim]:
    n, limits = len(p.covariances), rank_one(p, traj, "1b", Source(f"{FIGURE}b"))
    path = of.closed_forms.softmax_path(p.covariances, scores(p), traj.ts[1:, None].expand(-1, n))
    exact = SECTION(
        "1b: S(t) = (S0^-1 - t (A + A^T))^-1 along the whole path (largest relative distance)"
    ).at_most(1e-6, far(covariances(traj)[1:], path))
    return [*limits, exact]


def two_head_limit(S0: Array, q: Array) -> Array:
    """(I - c e1 q^T) S0 (I - c q e1^T), c = e1^T S0 q / q^T S0 q; needs q2 e2^T S0 q > 0.

    >>> two_head_limit(np.eye(2), np.array([0.0, 1.0]))
    array([[1., 0.],
           [0., 1.]])
    """
    Sq = S0 @ q
    c = Sq[..., 0] / (Sq @ q)
    shear = np.eye(2) - c[..., None, None] * np.outer([1.0, 0.0], q)
    return np.asarray(shear @ S0 @ shear.swapaxes(-1, -2))


def _heads(p: Panel, traj: of.Trajectory) -> list[Claim]:
    q, S = p.Q[0], final(traj)
    exact = two_head_limit(p.covariances, q)
    low, found = (np.linalg.eigvalsh(a)[:, 0] for a in (exact, S))
    source = Source(f"{FIGURE}c; explicit because only the first coordinate moves")
    return [
        Source(f"{FIGURE}c")(
            "1c: every member comes to rest, with rank 2 (members with smallest eigenvalue above 0.01)"
        ).equal(len(S), int(((found > 0.01) & (np.asarray(traj.status) == "stopped")).sum())),
        source(
            "1c: S -> (I - c e1 q^T) S0 (I - c q e1^T), c = e1^T S0 q / q^T S0 q (relative distance)"
        ).at_most(1e-6, far(S, exact)),
        Source(f"{FIGURE}c")("1c: the limits lie in the plane e1^T S q = 0 (largest value)").at_most(
            1e-8, np.abs(S[:, 0] @ q).max()
        ),
        *(
            source(f"1c: the {word} of the smallest eigenvalues of the limits").equal(
                pick(low), pick(found), rtol=1e-6
            )
            for word, pick in (("least", np.min), ("greatest", np.max))
        ),
    ]


# --- figure ------------------------------------------------------------------------------------------


def _draw(p: dict[str, Panel], runs: dict[str, of.Trajectory]) -> Any:
    fig, axes = draw.board(4, cones=[3])
    _draw_disks(axes[0], p, runs)
    _draw_cone(axes[0, 3], p["1d"], runs["1d"])
    for ax, (name, traj) in zip(axes[1], runs.items(), strict=True):
        draw.eigenvalues(ax, traj, floor=1e-10 if name == "1d" else 1e-16)
    t = np.array([30.0, LAST])
    M = profile(p["1a"])
    draw.mark(axes[0, 0], M, "$M$")
    axes[1, 2].set(ylim=(0.07, 1.0), yticks=[0.1, 0.2, 0.5, 1.0])
    axes[1, 2].minorticks_off()
    axes[1, 2].set_yticklabels(["0.1", "0.2", "0.5", "1"])
    draw.slope(axes[1, 0], t, 3 * np.linalg.eigvalsh(M)[-1] / t, "$1/t$")
    draw.slope(axes[1, 1], t, 3 / t, "$1/t$")
    words = ("both fall like $1/t$", "one falls like $1/t$", "both stay", "one falls exponentially")
    for ax, word in zip(axes[1], words, strict=True):
        ax.set_title(word, fontsize=9, color=draw.INK)
    return fig


def _draw_disks(axes: Array, p: dict[str, Panel], runs: dict[str, of.Trajectory]) -> None:
    titles = {
        "1a": "softmax, $V>0$, $A+A^T<0$\n" + r"$S\to 0$ along one direction",
        "1b": "softmax, $V=I$, $A=-qq^T$\nlimits of rank one, across $q$",
        "1c": "two heads, one of them idle\nlimits of full rank, on a line",
    }
    for ax, (name, words) in zip(axes, titles.items(), strict=False):
        draw.discs(ax, runs[name])
        draw.titled(ax, name, words)
    q = p["1b"].Q[0]
    draw.rim(axes[1], np.array([-q[1], q[0]]), r"$\perp q$", color=draw.RED)
    draw.rim(axes[1], q, "$q$")
    u = np.linspace(-1.0, 1.0, 400)  # q1 (1 + u) + q2 w = 0 inside the disk
    w = -q[0] / q[1] * (1 + u)
    inside = u**2 + w**2 <= 1
    axes[2].plot(u[inside], w[inside], color=draw.RED, lw=1.2, ls=(0, (4, 2)), zorder=2)
    axes[2].text(0.62, -0.92, "$e_1^TSq=0$", color=draw.RED, fontsize=8, ha="left", va="center")


def _draw_cone(ax: Any, p: Panel, traj: of.Trajectory) -> None:
    draw.settled(ax, p, traj)
    draw.titled(ax, "1d", "softmax, $A+A^T$ of both signs\nlimits on two lines $u^TAu=0$")
