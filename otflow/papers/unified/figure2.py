"""Covariances under attention that explodes

Figure 2 of Castin, Ablin, Carrillo and Peyré (2025) follows Gaussian token laws in the plane that grow. Here
every panel is integrated accurately, and blow-up times and directions are compared with formulas:

a. Softmax, A + A^T > 0 and V = I: every covariance blows up, at a time and in a direction that are explicit.
b. The same weights in two heads: every covariance blows up, in one of few directions x. For an exploding
   covariance xx^T obeys x_h' = x_h (k_h.x)(q_h.x), head by head, so that either x_h = 0 or the products of
   the two heads are equal.
c. The same weights under L2 attention: no blow-up, since K is invertible, but at least one eigenvalue
   diverges. For X = 2 K S K^T and G = Q K^-1 the trace obeys tr X' = tr((G + G^T) X^2 (I + X)^-1), and
   G + G^T > 0, so that it grows exponentially, at rates between the eigenvalues of G + G^T.
d. Softmax with A + A^T of both signs: some covariances blow up, and most tend to a matrix uu^T of rank one
   with u^T A u = 0. For xx^T the flow is x' = (x^T A x) V x, so that what blows up does so along an
   eigenvector v of V, with eigenvalue l and l v^T A v > 0, and (t* - t) tr S tends to 1 / (2 l v^T A v).
   Of the two lines u only the one is reached at which u^T (A + A^T) V u and u^T A V u are negative.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import otflow as of
from otflow.papers.unified import draw, runs
from otflow.papers.unified.claims import STABLE
from otflow.papers.unified.parameters import PAPER, Panel, trace
from otflow.papers.unified.runs import SCIPY, SECTION, Array, PanelRun, far
from otflow.papers.unified.table import PanelRow, reproduce
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

LENGTH = 260.0  # of the orbits of panel d and of their check, in times of their own
EARLY, LAST = 10.0, 30.0  # times at which panel c is compared with scipy, and until which it is followed


def _explode(p: Panel, rtol: float, _: int) -> of.Trajectory:
    return runs.follow(p, t1=1e4, rtol=10 * rtol)


def _grow(p: Panel, rtol: float, _: int) -> of.Trajectory:
    return runs.follow(p, t1=LAST, save_at=np.linspace(0.0, LAST, 31), rtol=rtol)


def _split(p: Panel, rtol: float, _: int) -> of.Trajectory:
    # |dS/dt| below ten tolerances is nothing but errors
    return runs.follow(p, t1=1e4, calm=10 * rtol, rtol=rtol)


def _softmax(run: PanelRun) -> list[Claim]:
    S0, V, A, found = run.panel.covariances, run.panel.V, runs.scores(run.panel), run.traj.blow_up_time
    exact = of.closed_forms.softmax_blow_up_time(S0, A)
    u, w = runs.main_axis(of.closed_forms.softmax_blow_up_profile(S0, A)), runs.main_axis(run.end)
    alike = PAPER.at("section 4: (t* - t) S(t) -> t* uu^T")
    return [
        PAPER.at("section 4: all of them, for A + A^T > 0 and V = I")("2a: covariances that blow up").equal(
            exact.isfinite().sum(), run.ended("blow_up").sum()
        ),
        SECTION("2a: blow-up at t* = 1 / max eig(S0^1/2 (A + A^T) S0^1/2) (largest relative error)").at_most(
            1e-3, (found / exact - 1).abs().max()
        ),
        PAPER.at("section 4: Lyapunov function of softmax attention with V > 0")(
            "2a: blow-up before d / (min eig(A + A^T) min eig(V)^2 tr(V^-1 S0)) (largest ratio)"
        ).at_most(1.0, (found / of.closed_forms.softmax_blow_up_bound(S0, A, V)).max()),
        alike("2a: at blow-up the rank is one (largest ratio of eigenvalues)").at_most(
            1e-6, runs.unevenness(run.end).max()
        ),
        alike(
            "2a: the direction of blow-up is S0^1/2 w, w the top eigenvector (largest angle, radians)"
        ).at_most(1e-5, np.abs(w[:, 0] * u[:, 1] - w[:, 1] * u[:, 0]).max()),
    ]


def head_directions(p: Panel) -> Array:
    """Unit vectors x with x_h (k_h.x)(q_h.x) proportional to x_h over two heads of one row each, as rows.

    >>> from otflow.papers.unified.figure2 import head_directions
    >>> from otflow.papers.unified.runs import panel
    >>> head_directions(panel("2b", quick=True)).shape
    (4, 2)
    """
    first, second = (np.outer(p.K[h], p.Q[h]) for h in range(2))
    return np.concatenate([np.eye(2), runs.isotropic(first - second)])


def _heads(run: PanelRun) -> list[Claim]:
    lines, other = head_directions(run.panel), run.other
    sine, which = runs.apart(run.end, lines)
    return [
        PAPER.at(f"Fig. 2b; {SCIPY}")("2b: covariances that blow up").equal(
            other.exploded.sum(), run.ended("blow_up").sum()
        ),
        SCIPY("2b: blow-up times (largest relative difference)").at_most(
            1e-3, np.abs(run.blow_up_time / other.t - 1).max()
        ),
        PAPER.at("Fig. 2b")("2b: at blow-up the rank is one (largest ratio of eigenvalues)").at_most(
            1e-6, runs.unevenness(run.end).max()
        ),
        Source("x_h = 0, or (k_1.x)(q_1.x) = (k_2.x)(q_2.x)")(
            "2b: the direction of blow-up is stationary for two heads (largest angle, radians)"
        ).at_most(1e-3, sine.max()),
        SCIPY(f"2b: covariances that blow up along the line at {runs.degrees(lines[1]):.0f} degrees").equal(
            (runs.apart(other.S, lines)[1] == 1).sum(), (which == 1).sum()
        ),
    ]


def l2_rates(p: Panel) -> Array:
    """The eigenvalues of G + G^T, G = Q K^-1, with Q / sqrt(d): rates of growth of large S if V = I.

    >>> from otflow.papers.unified.figure2 import l2_rates
    >>> from otflow.papers.unified.runs import panel
    >>> low, high = l2_rates(panel("2c", quick=True))
    >>> bool(0 < low < high)
    True
    """
    G = p.Q @ np.linalg.inv(p.K) / np.sqrt(p.d)
    return np.linalg.eigvalsh(G + G.T)


def _l2(run: PanelRun) -> list[Claim]:
    p, S, t = run.panel, run.S, run.t
    low, high = l2_rates(p)
    seen = trace(p.K @ S @ p.K.T)
    bound = of.closed_forms.l2_trace_bound(p.covariances, p.Q / np.sqrt(p.d), p.K, p.V, t[:, None])
    law = Source("d/dt tr X = tr((G + G^T) X^2 (I + X)^-1), X = 2 K S K^T, G = Q K^-1, for V = I")
    between = f"{law}, so eventually between the eigenvalues of G + G^T, which are positive"
    return [
        PAPER.at("Fig. 2c; global existence of L2 attention for invertible K")(
            f"2c: covariances that blow up until t = {LAST:g}"
        ).equal(0, (~run.ended("ok")).sum()),
        Source("closed_forms.l2_trace_bound: |x'| <= |V K^-1| |Q| |x|")(
            "2c: tr S(t) is at most exp(2 |V K^-1| |Q| t) tr S0 (largest ratio at t > 0)"
        ).at_most(1.0, (trace(S) / bound.numpy())[1:].max()),
        law(
            "2c: tr K S K^T is at most exp(r t) times what it was, r = max eig(G + G^T) (largest ratio)"
        ).at_most(1.0, (seen / seen[0] * np.exp(-high * t)[:, None])[1:].max()),
        PAPER.at(f"Fig. 2c; {between}")(
            f"2c: one eigenvalue of S diverges: the least rate of log tr K S K^T at t = {LAST:g}"
        ).within(low * (1 - 1e-3), high, runs.growth(seen, t).min()),
        SCIPY(f"2c: S at t = {EARLY:g} (largest relative difference)").at_most(
            1e-5, far(S[np.searchsorted(t, EARLY)], run.other.S)
        ),
    ]


def _both(run: PanelRun) -> list[Claim]:
    up, end, other = run.ended("blow_up"), run.end, run.other
    line, pace = runs.explosive_line(run.panel)
    counted, single = PAPER.at(f"Fig. 2d; {SCIPY}"), Source("x' = (x^T A x) V x for covariances xx^T")
    return [
        counted("2d: covariances that blow up").equal(other.exploded.sum(), up.sum()),
        counted("2d: covariances that converge").equal((~other.exploded).sum(), run.ended("stopped").sum()),
        SCIPY("2d: blow-up times (largest relative difference)").at_most(
            1e-3, np.abs(run.blow_up_time / other.t - 1)[up].max()
        ),
        single(
            "2d: what blows up does so along the eigenvector v of V with l v^T A v > 0 (angle, radians)"
        ).at_most(1e-3, runs.apart(end[up], line[None])[0].max()),
        single(
            "2d: (t* - t) tr S -> 1 / (2 l v^T A v) at blow-up (largest relative error at tr S = 1e4)"
        ).at_most(1e-2, _profile_error(run, pace)),
        PAPER.at("Fig. 2d")(
            "2d: every limit and every blow-up has rank one (largest ratio of eigenvalues)"
        ).at_most(1e-5, runs.unevenness(end).max()),
        STABLE("2d: every limit lies along the stable u with u^T A u = 0 (largest angle, radians)").at_most(
            1e-4, runs.apart(end[~up], runs.stable_lines(run.panel))[0].max()
        ),
    ]


def _profile_error(run: PanelRun, pace: float) -> float:
    """How far (t* - t) tr S is from 1 / pace when the trace passes ten thousand."""
    up = run.ended("blow_up")
    few = replace(run.panel, covariances=run.panel.covariances[up])
    near = runs.follow(few, t1=1e4, high=1e4, rtol=1e-7)
    left = run.blow_up_time[up] - near.ended.numpy()
    return float(np.abs(left * trace(runs.final(near)) * pace - 1).max())


def _draw_softmax(run: PanelRun, above: Any, below: Any) -> None:
    draw.discs(above, runs.orbits(run.panel, length=30.0, count=run.saves), color=draw.RED, many=True)
    draw.titled(above, "all blow up, each in its direction", run)
    exact = of.closed_forms.softmax_blow_up_time(run.panel.covariances, runs.scores(run.panel)).numpy()
    draw.against(below, exact, run.blow_up_time, "closed form")


def _draw_heads(run: PanelRun, above: Any, below: Any) -> None:
    lines = head_directions(run.panel)
    which = runs.apart(run.end, lines)[1]
    shades = [draw.RED if k == 1 else draw.PINK for k in which]
    draw.discs(above, runs.orbits(run.panel, length=60.0, count=run.saves), color=shades, many=True)
    for k, shade in zip(np.unique(which), (draw.RED, draw.PINK), strict=False):
        draw.rim(above, lines[k], f"{runs.degrees(lines[k]):.0f}°", color=shade)
    draw.titled(above, "all blow up, in two directions", run)
    draw.against(below, run.other.t, run.blow_up_time, "scipy")


def _draw_l2(run: PanelRun, above: Any, below: Any) -> None:
    draw.discs(above, run.traj, color=draw.GREEN, many=True)
    draw.titled(above, "all grow, none blows up", run)
    draw.traces(below, run.t, run.panel.K @ run.S @ run.panel.K.T)
    for rate in l2_rates(run.panel):
        below.plot(run.t, np.exp(rate * run.t), color=draw.INK, ls="--", lw=1)
    of.plot.panel(below, y="tr $KSK^T$, over its start", ylim=(0.5, None), xlim=(0, LAST))
    draw.note(below, 0.04, 0.95, "dashed: $e^{rt}$ with the eigenvalues\n$r$ of $G+G^T$, $G=QK^{-1}$")


def _draw_both(run: PanelRun, above: Any, below: Any) -> None:
    p, up = run.panel, run.ended("blow_up")
    shades = np.where(up, draw.RED, draw.BLUE).tolist()
    draw.discs(above, runs.orbits(p, length=LENGTH, count=run.saves), color=shades, many=True)
    draw.rim(above, runs.explosive_line(p)[0], "$v$", color=draw.RED)
    draw.rim(above, runs.stable_lines(p)[0], "$u$", color=draw.BLUE)
    draw.titled(above, f"{up.sum()} blow up, {(~up).sum()} converge", run)
    draw.against(below, run.other.t[up], run.blow_up_time[up], "scipy")


PANELS = [
    PanelRow("2a", "softmax, $V=I$, $A+A^T>0$", _explode, _softmax, _draw_softmax),
    PanelRow("2b", "the same in two heads", _explode, _heads, _draw_heads, check=150.0),
    PanelRow("2c", "the same under L2 attention", _grow, _l2, _draw_l2, check=EARLY, own_time=False),
    PanelRow("2d", "softmax, $A+A^T$ of both signs", _split, _both, _draw_both, check=LENGTH),
]


def run(frame: Frame) -> Result:
    """The four panels."""
    return reproduce(frame, "figure-2", PANELS, _data)


def _data(found: PanelRun) -> dict[str, Array]:
    return {"final": found.end} | ({} if found.label == "2c" else {"blow_up_time": found.blow_up_time})
