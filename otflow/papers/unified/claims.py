"""Claims that several figures of Castin et al. on Gaussians share, each for its kind of attention."""

from __future__ import annotations

import numpy as np

import otflow as of
from otflow.papers.unified import runs
from otflow.papers.unified.runs import SCIPY, SECTION, PanelRun, far
from otflow.reproduce.claim import Claim, Source

STABLE = Source("linearisation at c uu^T: u^T (A + A^T) V u < 0 and u^T A V u < 0")


def dying(run: PanelRun, source: Source) -> list[Claim]:
    """S -> 0, and t S(t) -> M whatever S0 is; M is the `profile`."""
    label, t = run.label, run.t[-1]
    zero = source(f"{label}: every limit is zero (members whose eigenvalues all fall like a power of t)")
    alike = Source(f"{SECTION}: self-similar solution, by Newton's method")(
        f"{label}: t S(t) -> M with B(M) M + M B(M)^T = -M (largest relative distance at t = {t:g})"
    )
    return [
        zero.equal(len(run.end), (runs.ranks(run.traj) == 0).sum()),
        alike.at_most(1e-3, far(t * run.end, run.profile)),
    ]


def rank_one(run: PanelRun, source: Source) -> list[Claim]:
    """S -> N (N^T S0^-1 N)^-1 N^T, N across q, for A = -qq^T times a constant and V = I."""
    label, p = run.label, run.panel
    across = np.array([[-p.Q[0, 1], p.Q[0, 0]]])
    limit = Source(f"{SECTION}: S^-1 grows by multiples of qq^T")(
        f"{label}: S -> N (N^T S0^-1 N)^-1 N^T, N across q (largest relative distance at t = {run.t[-1]:g})"
    )
    return [
        source(f"{label}: every limit has rank d - rank(A + A^T) = 1 (members)").equal(
            len(run.end), (runs.ranks(run.traj) == 1).sum()
        ),
        limit.at_most(1e-4, far(run.end, of.closed_forms.softmax_limit(p.covariances, runs.scores(p)))),
        source(f"{label}: the limits are orthogonal to q (largest angle, radians)").at_most(
            1e-5, runs.apart(run.end, across)[0].max()
        ),
    ]


def settling(run: PanelRun, source: Source) -> list[Claim]:
    """S -> c uu^T with u^T A u = 0, on the lines at which this is stable, for A + A^T of both signs."""
    label, lines = run.label, runs.isotropic(run.panel.A)
    sine, which = runs.apart(run.end, lines)
    other = runs.apart(run.other.S, lines)[1]
    along = Source(f"{source}; stationary matrices uu^T")
    return [
        source(f"{label}: every member comes to rest (members)").equal(len(sine), run.ended("stopped").sum()),
        source(f"{label}: every limit has rank one (largest ratio of its eigenvalues)").at_most(
            1e-5, runs.unevenness(run.end).max()
        ),
        along(f"{label}: every limit lies along a u with u^T A u = 0 (largest angle, radians)").at_most(
            1e-5, sine.max()
        ),
        STABLE(f"{label}: lines that are reached, against those that are stable").equal(
            len(runs.stable_lines(run.panel)), len(np.unique(which))
        ),
        SCIPY(f"{label}: members that end on the line at {runs.degrees(lines[0]):.1f} degrees").equal(
            (other == 0).sum(), (which == 0).sum()
        ),
    ]
