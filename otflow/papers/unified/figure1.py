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

from functools import partial
from typing import Any

import numpy as np

import otflow as of
from otflow.papers.unified import claims, draw
from otflow.papers.unified.parameters import PAPER, trace
from otflow.papers.unified.runs import SECTION, Array, PanelRun, decay, far, rest, scores
from otflow.papers.unified.table import PanelRow, reproduce
from otflow.reproduce.claim import Claim, Result
from otflow.reproduce.frame import Frame


def _dying(run: PanelRun) -> list[Claim]:
    A, V = scores(run.panel), run.panel.V
    y = trace(np.linalg.solve(V, run.S))
    c = -np.linalg.eigvalsh(A + A.T)[-1] * np.linalg.eigvalsh(V)[0] ** 2 / run.panel.d
    return [
        *claims.dying(run, PAPER.at("Fig. 1a; limits have rank at most d - rank(A + A^T) = 0")),
        PAPER.at("section 4: Lyapunov function of softmax attention with V > 0")(
            "1a: tr(V^-1 S) is at most 1 / (1 / y0 + c t), c = -max eig(A + A^T) min eig(V)^2 / d "
            "(ratio, t > 0)"
        ).at_most(1.0, (y * (1 / y[0] + c * run.t[:, None]))[1:].max()),
    ]


def _rank_one(run: PanelRun) -> list[Claim]:
    path = of.closed_forms.softmax_path(run.panel.covariances, scores(run.panel), run.t[1:, None])
    return [
        *claims.rank_one(run, PAPER.at("Fig. 1b")),
        SECTION(
            "1b: S(t) = (S0^-1 - t (A + A^T))^-1 along the whole path (largest relative distance)"
        ).at_most(1e-6, far(run.S[1:], path)),
    ]


def two_head_limit(S0: Array, q: Array) -> Array:
    """(I - c e1 q^T) S0 (I - c q e1^T), c = e1^T S0 q / q^T S0 q; needs q2 e2^T S0 q > 0.

    >>> import numpy as np
    >>> from otflow.papers.unified.figure1 import two_head_limit
    >>> two_head_limit(np.eye(2), np.array([0.0, 1.0]))
    array([[1., 0.],
           [0., 1.]])
    """
    Sq = S0 @ q
    c = Sq[..., 0] / (Sq @ q)
    shear = np.eye(2) - c[..., None, None] * np.outer([1.0, 0.0], q)
    return np.asarray(shear @ S0 @ shear.swapaxes(-1, -2))


def _heads(run: PanelRun) -> list[Claim]:
    q, S, source = run.panel.Q[0], run.end, PAPER.at("Fig. 1c")
    exact = two_head_limit(run.panel.covariances, q)
    low, found = (np.linalg.eigvalsh(a)[:, 0] for a in (exact, S))
    explicit = PAPER.at("Fig. 1c; explicit because only the first coordinate moves")
    return [
        source(
            "1c: every member comes to rest, with rank 2 (members with smallest eigenvalue above 0.01)"
        ).equal(len(S), ((found > 0.01) & run.ended("stopped")).sum()),
        explicit(
            "1c: S -> (I - c e1 q^T) S0 (I - c q e1^T), c = e1^T S0 q / q^T S0 q (relative distance)"
        ).at_most(1e-6, far(S, exact)),
        source("1c: the limits lie in the plane e1^T S q = 0 (largest value)").at_most(
            1e-8, np.abs(S[:, 0] @ q).max()
        ),
        *(
            explicit(f"1c: the {word} of the smallest eigenvalues of the limits").equal(
                pick(low), pick(found), rtol=1e-6
            )
            for word, pick in (("least", np.min), ("greatest", np.max))
        ),
    ]


def _draw_dying(run: PanelRun, above: Any, below: Any) -> None:
    draw.dying(run, above, below)
    draw.hyperbola(below, 3 * np.linalg.eigvalsh(run.profile)[-1])


def _draw_rank_one(run: PanelRun, above: Any, below: Any) -> None:
    draw.rank_one(run, above, below)
    draw.hyperbola(below, 3.0)


def _draw_heads(run: PanelRun, above: Any, below: Any) -> None:
    """The line is e1^T S q = 0, which reads q1 (1 + u) + q2 w = 0 in the coordinates u, w of the disk."""
    q, u = run.panel.Q[0], np.linspace(-1.0, 1.0, 400)
    w = -q[0] / q[1] * (1 + u)
    inside = u**2 + w**2 <= 1
    draw.discs(above, run.traj)
    above.plot(u[inside], w[inside], color=draw.RED, lw=1.2, ls=(0, (4, 2)), zorder=2)
    above.text(0.62, -0.92, "$e_1^TSq=0$", color=draw.RED, fontsize=8, ha="left", va="center")
    draw.titled(above, "limits of full rank, on a line", run)
    draw.eigenvalues(below, run.traj, "both stay")
    of.plot.panel(below, ylim=(0.07, 1.0), yticks=[0.1, 0.2, 0.5, 1.0])


PANELS = [
    PanelRow("1a", "softmax, $V>0$, $A+A^T<0$", decay, _dying, _draw_dying),
    PanelRow("1b", "softmax, $V=I$, $A=-qq^T$", decay, _rank_one, _draw_rank_one),
    PanelRow("1c", "two heads, one of them idle", rest, _heads, _draw_heads),
    PanelRow(
        "1d",
        "softmax, $A+A^T$ of both signs",
        rest,
        partial(claims.settling, source=PAPER.at("Fig. 1d")),
        draw.settled,
        check=400.0,
        cone=True,
    ),
]


def run(frame: Frame) -> Result:
    """The four panels."""
    return reproduce(frame, "figure-1", PANELS, lambda found: {"covariances": found.S, "t": found.t})
