"""The emergence of clusters: Boolean attention, polytopes, hyperplanes, and a slow decay

Tokens that softmax attention moves with the same weights in every layer, and without normalisation, grow like
exp(tV). Geshkovski, Letrouit, Polyanskiy and Rigollet (2023) take this growth away, z = exp(-tV) x, and ask
where z goes. The answer depends on the spectrum of the value matrix V, and is checked here case by case.

If V = I and Q^T K = A^T A is positive definite, the convex hull of the tokens shrinks to a polytope K, and
every token tends to a point of the finite set S = {x in K : |Ax|^2 = max over vertices v of <Ax, Av>}. The
set is computed: besides the vertices it has the origin and feet of perpendiculars from the origin to edges
and faces. Only the vertices are seen as limits; the others repel. The tokens at the vertices are leaders: in
the end each token attends to one of them alone, and the rank of the attention matrix is their number. The
distance to S falls like exp(-t), which is the rate of a token that follows its leader at a fixed place.

On a line, the attention matrix becomes Boolean with two columns, those of the smallest and of the largest
token. If the leading eigenvalue of V is simple, tokens end on at most three parallel hyperplanes; for the
matrix of the paper they are two lines. If it is double, they end on a polytope times a subspace. In eighty
dimensions, the rank of attention falls step by step. If V = -I, the tokens themselves go to the origin,
and their covariance, which follows dS/dt = -2 S^2, is I / (2t) in the end.

Scores grow like exp(2 lambda t), so that float64 carries these runs to about t = 15 and no further. Numbers
of theorems follow a third-party formalisation of the statements of the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.papers import clusters
from otflow.papers.clusters import runs
from otflow.papers.clusters.runs import LONG, Array, ClusterRun, eye
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, arXiv:2305.05465 (as formalised)")
OURS, DECAY, PAIR = (Source(f"otflow.papers.clusters{name}") for name in ("", ".decay", ".pair_limit"))
HEIGHT = 0.5  # of the pair of tokens in the remark at the end of section 7


def run(frame: Frame) -> Result:
    """All runs, all claims, all figures."""
    from otflow.papers.clusters import draw

    found = runs.cases(frame)
    frame.stage(0.85, "V = -I")
    fall = runs.repelled(frame.size(3, 12))
    claims = [
        *_line_claims(found["line"]),
        *_plane_claims(found["plane"]),
        *_hyperplane_claims(found["hyperplanes"]),
        *_prism_claims(found["prism"]),
        *_deep_claims(found["deep"]),
        *_decay_claims(fall),
        *_pair_claims(),
    ]
    frame.stage(0.95, "figures")
    figures = {
        "polytope": draw.polytope(found["plane"]),
        "boolean": draw.boolean(found["line"]),
        "hyperplanes": draw.planes(found["hyperplanes"]),
        "prism": draw.prism(found["prism"]),
        "rank": draw.ranks(found["deep"], found["plane"], found["line"]),
        "decay": draw.decay(fall),
    }
    return Result(claims, figures, _data(found, fall))


def _line_claims(c: ClusterRun) -> list[Claim]:
    source, last, x = PAPER.at("Theorem 2.1"), c.P[-1], c.z[0, ..., 0]
    ends = torch.stack([x.argmin(-1), x.argmax(-1)], -1).sort(-1).values.tolist()
    found = [led.nonzero().flatten().tolist() for led in c.leaders]
    return [
        source(
            f"d = 1, V = 1: distance of P(t) at t = {LONG:g} from a Boolean matrix (largest entry)"
        ).at_most(1e-12, (last - clusters.boolean_limit(last)).abs().max()),
        source("d = 1, V = 1: rank of the attention matrix at the end (largest)").at_most(
            2.0, c.rank[-1].max()
        ),
        OURS("d = 1, V = 1: clouds whose leaders are not the smallest and the largest token").equal(
            0.0, sum(a != b for a, b in zip(found, ends, strict=True))
        ),
    ]


def _plane_claims(c: ClusterRun) -> list[Claim]:
    source, ends, late = PAPER.at("Theorem 3.1"), c.limits(eye(2)), (c.ts > 5) & (c.ts < LONG)
    return [
        PAPER.at("Proposition 8.2")(
            "d = 2, V = I: by how much the convex hull grows between two times (largest)"
        ).at_most(1e-5, max(_growth(z) for z in c.z.transpose(0, 1))),
        source(
            f"d = 2, V = I: distance of a token at t = {LONG:g} to the set S of its polytope (largest)"
        ).at_most(1e-3, _farthest((z, S) for z, _, S in ends)),
        source("d = 2, V = I: distance of a vertex of the polytope to S (largest)").at_most(
            1e-9, _farthest((K.vertices, S) for _, K, S in ends)
        ),
        source(
            f"d = 2, V = I: distance of a token at t = {LONG:g} to the boundary or to 0 (largest)"
        ).at_most(1e-3, max(torch.minimum(K.excess(z).abs(), z.norm(dim=-1)).max() for z, K, _ in ends)),
        Source(f"{OURS} (a token that follows a leader at rest)")(
            "d = 2, V = I: exponential rate at which tokens approach S"
        ).within(-1.02, -0.98, slope(np.exp(c.ts[late]), c.violations[late].max(1))),
        source(
            "d = 2, V = I: clouds where vertices, leaders, clusters and the rank of P differ in number"
        ).equal(0.0, sum(len(_counts(c, b, K)) > 1 for b, (_, K, _) in enumerate(ends))),
    ]


def _farthest(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """The largest distance of a point of X to the set S, over pairs X, S."""
    return max(torch.cdist(X, S).amin(1).max() for X, S in pairs)


def _growth(z: Tensor) -> Tensor:
    """By how much tokens z (T, n, d) are outside the hull of the time before, at most."""
    return max(clusters.hull(before).excess(after).max() for before, after in pairwise(z))


def _counts(c: ClusterRun, b: int, K: clusters.Polytope) -> set[int]:
    """What should be one number: vertices, leaders, groups of tokens, and the rank of attention."""
    groups = len(clusters.distinct(c.z[-1, b], 1e-2))
    return {len(K.vertices), int(c.leaders[b].sum()), groups, int(c.rank[-1, b])}


def _hyperplane_claims(c: ClusterRun) -> list[Claim]:
    found, source = clusters.hyperplanes(eye(2), eye(2), c.V), PAPER.at("Theorem 4.2")
    ends = c.z[-1] @ found.normal
    values = [clusters.distinct(own, 1e-2) for own in ends]
    return [
        PAPER.at("figures for Theorem 4.2")("the matrix V of the figure: leading eigenvalue").equal(
            1.348, found.value, atol=5e-4
        ),
        source("that V: number of parallel lines on which tokens end (largest)").at_most(
            3.0, max(map(len, values))
        ),
        source(
            f"that V: distance of a token at t = {c.ts[-1]:g} to its line, along the eigenvector (largest)"
        ).at_most(1e-3, _farthest((x[:, None], v[:, None]) for x, v in zip(ends, values, strict=True))),
    ]


def _prism_claims(c: ClusterRun) -> list[Claim]:
    ends = c.limits(clusters.directions(eye(3), eye(3), c.V).basis)
    groups = [len(clusters.distinct(y, 1e-2)) for y, _, _ in ends]
    heights = [len(clusters.distinct(z[:, 2], 1e-2)) for z in c.z[-1]]
    return [
        PAPER.at("Theorem 5.2")(
            "V = diag(1, 1, -0.1): distance of a projected token to S of its polytope (largest)"
        ).at_most(1e-2, _farthest((y, S) for y, _, S in ends)),
        PAPER.at("Theorem 5.2 (a subspace, not points)")(
            "V = diag(1, 1, -0.1): number of clusters over the number of distinct heights (largest)"
        ).at_most(0.5, max(a / b for a, b in zip(groups, heights, strict=True))),
    ]


def _deep_claims(c: ClusterRun) -> list[Claim]:
    rank = c.rank[-1]
    return [
        PAPER.at("numerical experiments")(
            "d = 80, n = 40: rank of the attention matrix at t = 11 (largest)"
        ).at_most(10.0, rank.max()),
        OURS("d = 80, n = 40: rank less number of leaders at t = 11 (largest modulus)").equal(
            0.0, (rank - c.leaders.sum(-1)).abs().max()
        ),
    ]


def _decay_claims(fall: of.Trajectory) -> list[Claim]:
    late, radius = fall.ts > 50, of.observables.radius(fall.stacked).amax(-1)
    return [
        DECAY("V = -I: |2t eig S(t) - 1| at t = 2000 (largest)").at_most(
            1e-3, (runs.spectra(fall)[-1] - 1).abs().max()
        ),
        Source(f"{PAPER} (V = -I: convergence to 0); {DECAY} has -1/2")(
            "V = -I: exponent of t in the largest norm of a token"
        ).within(-0.51, -0.49, slope(fall.ts[late].numpy(), radius[late].numpy())),
    ]


def _pair_claims() -> list[Claim]:
    x, two = np.array([[[1.0, HEIGHT], [1.0, -HEIGHT]]]), "two tokens (1, y), (1, -y), V = I"
    z = runs.case(x, eye(2), np.array([0.0, LONG]), of.Dopri5(1e-10, 1e-12)).z[-1, 0]
    return [
        PAPER.at("remark at the end of section 7, as transcribed in a formalisation")(
            f"{two}: number of clusters, while P tends to the identity"
        ).erratum(printed=1.0, corrected=2.0, measured=len(clusters.distinct(z, 1e-2))),
        PAIR(f"{two}: height of their limits for y = {HEIGHT:g}").equal(
            clusters.pair_limit(HEIGHT), z[0, 1], rtol=1e-6
        ),
    ]


def _data(found: dict[str, ClusterRun], fall: of.Trajectory) -> dict[str, Array]:
    """Times and ranks of all runs, places of those that are not deep, and the spectra of the decay."""
    out = {"decay_t": fall.ts.numpy()[1:], "decay_2t_eigenvalues": runs.spectra(fall).numpy()}
    for name, c in found.items():
        out |= {f"{name}_t": c.ts, f"{name}_rank": c.rank.numpy()}
    return out | {f"{name}_z": c.z.numpy() for name, c in found.items() if name != "deep"}
