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
from typing import Any, NamedTuple

import numpy as np

import otflow as of
from otflow.papers.unified import draw
from otflow.papers.unified.parameters import PAPER, Panel
from otflow.papers.unified.runs import (
    SCIPY,
    SECTION,
    Array,
    Reference,
    apart,
    covariances,
    degrees,
    effort,
    ended,
    explosive_line,
    far,
    final,
    follow,
    isotropic,
    main_axis,
    orbits,
    panel,
    reference,
    scores,
    stable_lines,
    unevenness,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame

FIGURE = f"{PAPER}, Fig. 2"
LENGTHS = {"2b": 150.0, "2d": 260.0}  # of the independent runs, in times of their own
EARLY, LAST = 10.0, 30.0  # times at which panel c is compared with scipy, and until which it is followed


class ExplodingRuns(NamedTuple):
    """Panels, their flows (with blow-up times), and the independent runs of two of them."""

    panels: dict[str, Panel]
    flows: dict[str, of.Trajectory]
    checks: dict[str, Reference]


def run(frame: Frame) -> Result:
    """The four panels."""
    p = {name: panel(name, quick=frame.quick) for name in ("2a", "2b", "2c", "2d")}
    flows: dict[str, of.Trajectory] = {}
    for i, name in enumerate(p):
        frame.stage(0.6 * i / len(p), f"panel {name}")
        flows[name] = _flow(name, p[name], effort(quick=frame.quick).rtol)
    frame.stage(0.6, "independent runs")
    checks = {name: reference(p[name], length=s, own_time=True) for name, s in LENGTHS.items()}
    runs = ExplodingRuns(p, flows, checks)
    frame.stage(0.75, "claims")
    claims = [*_softmax(runs), *_heads(runs), *_l2(runs), *_both(runs)]
    frame.stage(0.85, "figure")
    data = {f"blow_up_time_{name}": flows[name].blow_up_time.numpy() for name in ("2a", "2b", "2d")}
    ends = {f"final_{name}": final(traj) for name, traj in flows.items()}
    return Result(claims, {"figure-2": _draw(runs, 12 if frame.quick else 60)}, data | ends)


def _flow(name: str, p: Panel, rtol: float) -> of.Trajectory:
    if name == "2c":
        return follow(p, t1=LAST, save_at=np.linspace(0.0, LAST, 31), rtol=rtol)
    if name == "2d":  # |dS/dt| below ten times the tolerance is nothing but errors
        return follow(p, t1=1e4, calm=10 * rtol, rtol=rtol)
    return follow(p, t1=1e4, rtol=10 * rtol)


def _softmax(runs: ExplodingRuns) -> list[Claim]:
    p, traj = runs.panels["2a"], runs.flows["2a"]
    A, found = scores(p), traj.blow_up_time
    exact = of.closed_forms.softmax_blow_up_time(p.covariances, A)
    bound = of.closed_forms.softmax_blow_up_bound(p.covariances, A, p.V)
    u = main_axis(of.closed_forms.softmax_blow_up_profile(p.covariances, A))
    w = main_axis(final(traj))
    return [
        Source(f"{SECTION}: all of them, for A + A^T > 0 and V = I")("2a: covariances that blow up").equal(
            int(exact.isfinite().sum()), int(ended(traj, "blow_up").sum())
        ),
        SECTION("2a: blow-up at t* = 1 / max eig(S0^1/2 (A + A^T) S0^1/2) (largest relative error)").at_most(
            1e-3, (found / exact - 1).abs().max()
        ),
        Source(f"{SECTION}: Lyapunov function of softmax attention with V > 0")(
            "2a: blow-up before d / (min eig(A + A^T) min eig(V)^2 tr(V^-1 S0)) (largest ratio)"
        ).at_most(1.0, (found / bound).max()),
        Source(f"{SECTION}: (t* - t) S(t) -> t* uu^T")(
            "2a: at blow-up the rank is one (largest ratio of eigenvalues)"
        ).at_most(1e-6, unevenness(final(traj)).max()),
        Source(f"{SECTION}: (t* - t) S(t) -> t* uu^T")(
            "2a: the direction of blow-up is S0^1/2 w, w the top eigenvector (largest angle, radians)"
        ).at_most(1e-5, np.abs(w[:, 0] * u[:, 1] - w[:, 1] * u[:, 0]).max()),
    ]


def head_directions(p: Panel) -> Array:
    """Unit vectors x with x_h (k_h.x)(q_h.x) proportional to x_h over two heads of one row each, as rows.

    >>> head_directions(panel("2b", quick=True)).shape
    (4, 2)
    """
    first, second = (np.outer(p.K[h], p.Q[h]) for h in range(2))
    return np.concatenate([np.eye(2), isotropic(first - second)])


def _heads(runs: ExplodingRuns) -> list[Claim]:
    p, traj, other = runs.panels["2b"], runs.flows["2b"], runs.checks["2b"]
    lines, S = head_directions(p), final(traj)
    sine, which = apart(S, lines)
    vertical = degrees(lines[1])
    return [
        Source(f"{FIGURE}b; {SCIPY}")("2b: covariances that blow up").equal(
            int(other.exploded.sum()), int(ended(traj, "blow_up").sum())
        ),
        SCIPY("2b: blow-up times (largest relative difference)").at_most(
            1e-3, np.abs(traj.blow_up_time.numpy() / other.t - 1).max()
        ),
        Source(f"{FIGURE}b")("2b: at blow-up the rank is one (largest ratio of eigenvalues)").at_most(
            1e-6, unevenness(S).max()
        ),
        Source("x_h = 0, or (k_1.x)(q_1.x) = (k_2.x)(q_2.x)")(
            "2b: the direction of blow-up is stationary for two heads (largest angle, radians)"
        ).at_most(1e-3, sine.max()),
        SCIPY(f"2b: covariances that blow up along the line at {vertical:.0f} degrees").equal(
            int((apart(other.S, lines)[1] == 1).sum()), int((which == 1).sum())
        ),
    ]


def _l2(runs: ExplodingRuns) -> list[Claim]:
    p, traj = runs.panels["2c"], runs.flows["2c"]
    Q, S = p.Q / np.sqrt(p.d), covariances(traj)
    size, seen = (np.trace(a, axis1=-2, axis2=-1) for a in (S, p.K @ S @ p.K.T))
    times = traj.ts[:, None].expand(-1, size.shape[1])
    bound = of.closed_forms.l2_trace_bound(p.covariances, Q, p.K, p.V, times).numpy()
    low, high = l2_rates(p)
    rates = np.log(seen[-1] / seen[-2]) / float(traj.ts[-1] - traj.ts[-2])
    other = reference(p, length=EARLY, own_time=False).S
    source = Source("d/dt tr X = tr((G + G^T) X^2 (I + X)^-1), X = 2 K S K^T, G = Q K^-1, for V = I")
    return [
        Source(f"{FIGURE}c; global existence of L2 attention for invertible K")(
            f"2c: covariances that blow up until t = {LAST:g}"
        ).equal(0, int((~ended(traj, "ok")).sum())),
        Source("closed_forms.l2_trace_bound: |x'| <= |V K^-1| |Q| |x|")(
            "2c: tr S(t) is at most exp(2 |V K^-1| |Q| t) tr S0 (largest ratio at t > 0)"
        ).at_most(1.0, (size / bound)[1:].max()),
        source(
            "2c: tr K S K^T is at most exp(r t) times what it was, r = max eig(G + G^T) (largest ratio)"
        ).at_most(1.0, (seen / seen[0] * np.exp(-high * traj.ts.numpy())[:, None])[1:].max()),
        Source(f"{FIGURE}c; {source}, so eventually between the eigenvalues of G + G^T, which are positive")(
            f"2c: one eigenvalue of S diverges: the least rate of log tr K S K^T at t = {LAST:g}"
        ).within(low * (1 - 1e-3), high, rates.min()),
        SCIPY(f"2c: S at t = {EARLY:g} (largest relative difference)").at_most(
            1e-5, far(S[np.searchsorted(traj.ts.numpy(), EARLY)], other)
        ),
    ]


def l2_rates(p: Panel) -> tuple[float, float]:
    """The eigenvalues of G + G^T, G = Q K^-1, with Q / sqrt(d): rates of growth of large S if V = I.

    >>> low, high = l2_rates(panel("2c", quick=True))
    >>> 0 < low < high
    True
    """
    G = p.Q @ np.linalg.inv(p.K) / np.sqrt(p.d)
    low, high = np.linalg.eigvalsh(G + G.T)
    return float(low), float(high)


def _both(runs: ExplodingRuns) -> list[Claim]:
    p, traj, other = runs.panels["2d"], runs.flows["2d"], runs.checks["2d"]
    up, S = ended(traj, "blow_up"), final(traj)
    line, pace = explosive_line(p)
    u = stable_lines(p)
    return [
        Source(f"{FIGURE}d; {SCIPY}")("2d: covariances that blow up").equal(
            int(other.exploded.sum()), int(up.sum())
        ),
        Source(f"{FIGURE}d; {SCIPY}")("2d: covariances that converge").equal(
            int((~other.exploded).sum()), int(ended(traj, "stopped").sum())
        ),
        SCIPY("2d: blow-up times (largest relative difference)").at_most(
            1e-3, np.abs(traj.blow_up_time.numpy() / other.t - 1)[up].max()
        ),
        Source("x' = (x^T A x) V x for covariances xx^T")(
            "2d: what blows up does so along the eigenvector v of V with l v^T A v > 0 (angle, radians)"
        ).at_most(1e-3, apart(S[up], line[None])[0].max()),
        Source("x' = (x^T A x) V x for covariances xx^T")(
            "2d: (t* - t) tr S -> 1 / (2 l v^T A v) at blow-up (largest relative error at tr S = 1e4)"
        ).at_most(1e-2, _profile_error(p, traj, pace)),
        Source(f"{FIGURE}d")(
            "2d: every limit and every blow-up has rank one (largest ratio of eigenvalues)"
        ).at_most(1e-5, unevenness(S).max()),
        Source("linearisation at c uu^T: u^T (A + A^T) V u < 0 and u^T A V u < 0")(
            "2d: every limit lies along the stable u with u^T A u = 0 (largest angle, radians)"
        ).at_most(1e-4, apart(S[~up], u)[0].max()),
    ]


def _profile_error(p: Panel, traj: of.Trajectory, pace: float) -> float:
    """How far (t* - t) tr S is from 1 / pace when the trace passes ten thousand."""
    up = ended(traj, "blow_up")
    near = follow(replace(p, covariances=p.covariances[up]), t1=1e4, high=1e4, rtol=1e-7)
    left = traj.blow_up_time.numpy()[up] - near.ended.numpy()
    return float(np.abs(left * np.trace(final(near), axis1=-2, axis2=-1) * pace - 1).max())


# --- figure ------------------------------------------------------------------------------------------


def _draw(runs: ExplodingRuns, count: int) -> Any:
    fig, axes = draw.board(4)
    _draw_softmax(axes[:, 0], runs, count)
    _draw_heads(axes[:, 1], runs, count)
    _draw_l2(axes[:, 2], runs)
    _draw_both(axes[:, 3], runs, count)
    return fig


def _draw_softmax(axes: Array, runs: ExplodingRuns, count: int) -> None:
    p = runs.panels["2a"]
    draw.discs(axes[0], orbits(p, length=30.0, count=count), color=draw.RED, many=True)
    draw.titled(axes[0], "2a", "softmax, $V=I$, $A+A^T>0$\nall blow up, each in its direction")
    exact = of.closed_forms.softmax_blow_up_time(p.covariances, scores(p)).numpy()
    draw.against(axes[1], exact, runs.flows["2a"].blow_up_time.numpy(), "closed form")


def _draw_heads(axes: Array, runs: ExplodingRuns, count: int) -> None:
    p, traj = runs.panels["2b"], runs.flows["2b"]
    lines = head_directions(p)
    which = apart(final(traj), lines)[1]
    shades = [draw.RED if k == 1 else draw.PINK for k in which]
    draw.discs(axes[0], orbits(p, length=60.0, count=count), color=shades, many=True)
    for k, shade in zip(np.unique(which), (draw.RED, draw.PINK), strict=False):
        draw.rim(axes[0], lines[k], f"{degrees(lines[k]):.0f}°", color=shade)
    draw.titled(axes[0], "2b", "the same in two heads\nall blow up, in two directions")
    draw.against(axes[1], runs.checks["2b"].t, traj.blow_up_time.numpy(), "scipy")


def _draw_l2(axes: Array, runs: ExplodingRuns) -> None:
    p, traj = runs.panels["2c"], runs.flows["2c"]
    draw.discs(axes[0], traj, color=draw.GREEN, many=True)
    draw.titled(axes[0], "2c", "the same under L2 attention\nall grow, none blows up")
    draw.traces(axes[1], traj, color=draw.GREEN, weight=p.K)
    t = traj.ts.numpy()
    for rate in l2_rates(p):
        axes[1].plot(t, np.exp(rate * t), color=draw.INK, ls="--", lw=1)
    axes[1].set(ylim=(0.5, None), xlim=(0, LAST), ylabel="tr $KSK^T$, over its start")
    axes[1].text(
        0.04,
        0.95,
        "dashed: $e^{rt}$ with the eigenvalues\n$r$ of $G+G^T$, $G=QK^{-1}$",
        va="top",
        fontsize=8,
        transform=axes[1].transAxes,
    )


def _draw_both(axes: Array, runs: ExplodingRuns, count: int) -> None:
    p, traj = runs.panels["2d"], runs.flows["2d"]
    up = ended(traj, "blow_up")
    shades = np.where(up, draw.RED, draw.BLUE)
    draw.discs(axes[0], orbits(p, length=LENGTHS["2d"], count=count), color=shades.tolist(), many=True)
    draw.rim(axes[0], explosive_line(p)[0], "$v$", color=draw.RED)
    draw.rim(axes[0], stable_lines(p)[0], "$u$", color=draw.BLUE)
    words = f"softmax, $A+A^T$ of both signs\n{up.sum()} blow up, {(~up).sum()} converge"
    draw.titled(axes[0], "2d", words)
    draw.against(axes[1], runs.checks["2d"].t[up], traj.blow_up_time.numpy()[up], "scipy")
