"""Claims that several figures of Castin et al. on Gaussians share, each for its kind of attention."""

from __future__ import annotations

import numpy as np

import otflow as of
from otflow.papers.unified.parameters import Panel
from otflow.papers.unified.runs import (
    SCIPY,
    SECTION,
    apart,
    degrees,
    ended,
    far,
    final,
    isotropic,
    profile,
    ranks,
    reference,
    scores,
    stable_lines,
    unevenness,
)
from otflow.reproduce.claim import Claim, Source

LENGTH = 400.0  # of the independent run of `settling`, in times of its own


def dying(p: Panel, traj: of.Trajectory, label: str, source: Source) -> list[Claim]:
    """S -> 0, and t S(t) -> M whatever S0 is; M is the `profile`."""
    t = float(traj.ts[-1])
    return [
        source(f"{label}: every limit is zero (members whose eigenvalues all fall like a power of t)").equal(
            len(p.covariances), int((ranks(traj) == 0).sum())
        ),
        Source(f"{SECTION}: self-similar solution, by Newton's method")(
            f"{label}: t S(t) -> M with B(M) M + M B(M)^T = -M (largest relative distance at t = {t:g})"
        ).at_most(1e-3, far(t * final(traj), profile(p))),
    ]


def rank_one(p: Panel, traj: of.Trajectory, label: str, source: Source) -> list[Claim]:
    """S -> N (N^T S0^-1 N)^-1 N^T, N across q, for A = -qq^T times a constant and V = I."""
    t, across = float(traj.ts[-1]), np.array([[-p.Q[0, 1], p.Q[0, 0]]])
    exact = of.closed_forms.softmax_limit(p.covariances, scores(p))
    return [
        source(f"{label}: every limit has rank d - rank(A + A^T) = 1 (members)").equal(
            len(p.covariances), int((ranks(traj) == 1).sum())
        ),
        Source(f"{SECTION}: S^-1 grows by multiples of qq^T")(
            f"{label}: S -> N (N^T S0^-1 N)^-1 N^T, N across q (largest relative distance at t = {t:g})"
        ).at_most(1e-4, far(final(traj), exact)),
        source(f"{label}: the limits are orthogonal to q (largest angle, radians)").at_most(
            1e-5, apart(final(traj), across)[0].max()
        ),
    ]


def settling(p: Panel, traj: of.Trajectory, label: str, source: Source) -> list[Claim]:
    """S -> c uu^T with u^T A u = 0, on the lines at which this is stable, for A + A^T of both signs."""
    S, lines = final(traj), isotropic(p.A)
    sine, which = apart(S, lines)
    other = apart(reference(p, length=LENGTH, own_time=True).S, lines)[1]
    return [
        source(f"{label}: every member comes to rest (members)").equal(
            len(S), int(ended(traj, "stopped").sum())
        ),
        source(f"{label}: every limit has rank one (largest ratio of its eigenvalues)").at_most(
            1e-5, unevenness(S).max()
        ),
        Source(f"{source}; stationary matrices uu^T")(
            f"{label}: every limit lies along a u with u^T A u = 0 (largest angle, radians)"
        ).at_most(1e-5, sine.max()),
        Source("linearisation at c uu^T: u^T (A + A^T) V u < 0 and u^T A V u < 0")(
            f"{label}: lines that are reached, against those that are stable"
        ).equal(len(stable_lines(p)), len(np.unique(which))),
        SCIPY(f"{label}: members that end on the line at {degrees(lines[0]):.1f} degrees").equal(
            int((other == 0).sum()), int((which == 0).sum())
        ),
    ]
