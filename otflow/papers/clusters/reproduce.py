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

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.dynamics.trajectory import Trajectory
from otflow.papers import clusters
from otflow.papers.clusters.runs import (
    Array,
    ClusterRun,
    boxes,
    case,
    eighty,
    eye,
    polytopes,
    repelled,
    spectra,
    times,
    violations,
)
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.fits import slope
from otflow.reproduce.frame import Frame

PAPER = Source("Geshkovski, Letrouit, Polyanskiy, Rigollet 2023, arXiv:2305.05465 (as formalised)")
OURS = Source("otflow.papers.clusters")
LONG = 12.0
PUBLISHED = torch.tensor([[0.64709742, 0.81911926], [0.61210449, 0.63263484]], dtype=torch.float64)
DOUBLE = torch.diag(torch.tensor([1.0, 1.0, -0.1], dtype=torch.float64))
HEIGHT = 0.5  # of the pair of tokens in the remark at the end of section 7


def run(frame: Frame) -> Result:
    """All runs, all claims, all figures."""
    from otflow.papers.clusters import draw

    seeds, m = (3, 10) if frame.quick else (12, 20)
    frame.stage(0.0, "tokens on a line")
    line = case(boxes(12, 1, seeds), eye(1), times(LONG, m))
    frame.stage(0.1, "tokens in the plane")
    plane = case(boxes(40, 2, seeds), eye(2), times(LONG, m))
    frame.stage(0.3, "hyperplanes")
    planes = case(boxes(20, 2, seeds), PUBLISHED, times(9.0, m))
    frame.stage(0.45, "polytope times line")
    prism = case(boxes(40, 3, 1 if frame.quick else 4), DOUBLE, times(LONG, m))
    frame.stage(0.6, "eighty dimensions")
    deep = eighty(1 if frame.quick else 3, of.Dopri5(1e-3, 1e-5) if frame.quick else of.Dopri5(1e-5, 1e-7))
    frame.stage(0.85, "V = -I")
    fall = repelled(seeds)
    claims = [
        *_line_claims(line),
        *_plane_claims(plane),
        *_hyperplane_claims(planes),
        *_prism_claims(prism),
        *_deep_claims(deep),
        *_decay_claims(fall),
        *_pair_claims(),
    ]
    frame.stage(0.95, "figures")
    figures = {
        "polytope": draw.polytope(plane),
        "boolean": draw.boolean(line),
        "hyperplanes": draw.planes(planes),
        "prism": draw.prism(prism),
        "rank": draw.ranks(deep, plane, line),
        "decay": draw.decay(fall),
    }
    return Result(claims, figures, _data(line, plane, planes, prism, deep, fall))


# --- what is measured ----------------------------------------------------------------------------------


# --- claims --------------------------------------------------------------------------------------------


def _line_claims(c: ClusterRun) -> list[Claim]:
    source, last, x = PAPER.at("Theorem 2.1"), c.P[-1], c.z[0, ..., 0]
    ends = torch.stack([x.argmin(-1), x.argmax(-1)], -1).sort(-1).values
    found = [led.nonzero().flatten().tolist() for led in c.leaders]
    return [
        source(
            f"d = 1, V = 1: distance of P(t) at t = {LONG:g} from a Boolean matrix (largest entry)"
        ).at_most(1e-12, (last - clusters.boolean_limit(last)).abs().max()),
        source("d = 1, V = 1: rank of the attention matrix at the end (largest)").at_most(
            2.0, clusters.rank(last).max()
        ),
        OURS("d = 1, V = 1: clouds whose leaders are not the smallest and the largest token").equal(
            0.0, sum(a != b for a, b in zip(found, ends.tolist(), strict=True))
        ),
    ]


def _plane_claims(c: ClusterRun) -> list[Claim]:
    source, ends = PAPER.at("Theorem 3.1"), polytopes(c, eye(2))
    sets = [clusters.limit_set(K.vertices, eye(2)) for _, K in ends]
    late = (c.ts > 5) & (c.ts < LONG)
    falls = violations(c)[late].max(1)
    return [
        PAPER.at("Proposition 8.2")(
            "d = 2, V = I: by how much the convex hull grows between two times (largest)"
        ).at_most(1e-5, max(_growth(c.z[:, b]) for b in range(c.z.shape[1]))),
        source(
            f"d = 2, V = I: distance of a token at t = {LONG:g} to the set S of its polytope (largest)"
        ).at_most(
            1e-3, max(float(torch.cdist(z, S).amin(1).max()) for (z, _), S in zip(ends, sets, strict=True))
        ),
        source("d = 2, V = I: distance of a vertex of the polytope to S (largest)").at_most(
            1e-9,
            max(
                float(torch.cdist(K.vertices, S).amin(1).max()) for (_, K), S in zip(ends, sets, strict=True)
            ),
        ),
        source(
            f"d = 2, V = I: distance of a token at t = {LONG:g} to the boundary or to 0 (largest)"
        ).at_most(1e-3, max(float(torch.minimum(K.excess(z).abs(), z.norm(dim=-1)).max()) for z, K in ends)),
        Source(f"{OURS} (a token that follows a leader at rest)")(
            "d = 2, V = I: exponential rate at which tokens approach S"
        ).within(-1.02, -0.98, slope(np.exp(c.ts[late]), falls)),
        source(
            "d = 2, V = I: clouds where vertices, leaders, clusters and the rank of P differ in number"
        ).equal(0.0, sum(len(_counts(c, b, K)) > 1 for b, (_, K) in enumerate(ends))),
    ]


def _growth(z: Tensor) -> float:
    hulls = [clusters.hull(p) for p in z[:-1]]
    return max(float(K.excess(later).max()) for K, later in zip(hulls, z[1:], strict=True))


def _counts(c: ClusterRun, b: int, K: clusters.Polytope) -> set[int]:
    groups = len(clusters.distinct(c.z[-1, b], 1e-2))
    return {len(K.vertices), int(c.leaders[b].sum()), groups, int(clusters.rank(c.P[-1, b]))}


def _hyperplane_claims(c: ClusterRun) -> list[Claim]:
    found = clusters.hyperplanes(eye(2), eye(2), c.V)
    ends = c.z[-1] @ found.normal
    values = [clusters.distinct(own, 1e-2) for own in ends]
    spread = max(float((own[:, None] - v).abs().amin(1).max()) for own, v in zip(ends, values, strict=True))
    return [
        PAPER.at("figures for Theorem 4.2")("the matrix V of the figure: leading eigenvalue").equal(
            1.348, found.value, atol=5e-4
        ),
        PAPER.at("Theorem 4.2")("that V: number of parallel lines on which tokens end (largest)").at_most(
            3.0, max(map(len, values))
        ),
        PAPER.at("Theorem 4.2")(
            f"that V: distance of a token at t = {c.ts[-1]:g} to its line, along the eigenvector (largest)"
        ).at_most(1e-3, spread),
    ]


def _prism_claims(c: ClusterRun) -> list[Claim]:
    basis = clusters.directions(eye(3), eye(3), c.V).basis
    ends = polytopes(c, basis)
    return [
        PAPER.at("Theorem 5.2")(
            "V = diag(1, 1, -0.1): distance of a projected token to S of its polytope (largest)"
        ).at_most(
            1e-2,
            max(float(torch.cdist(y, clusters.limit_set(K.vertices, eye(2))).amin(1).max()) for y, K in ends),
        ),
        PAPER.at("Theorem 5.2 (a subspace, not points)")(
            "V = diag(1, 1, -0.1): number of clusters over the number of distinct heights (largest)"
        ).at_most(
            0.5,
            max(
                len(clusters.distinct(y, 1e-2)) / len(clusters.distinct(z[:, 2], 1e-2))
                for (y, _), z in zip(ends, c.z[-1], strict=True)
            ),
        ),
    ]


def _deep_claims(c: ClusterRun) -> list[Claim]:
    return [
        PAPER.at("numerical experiments")(
            "d = 80, n = 40: rank of the attention matrix at t = 11 (largest)"
        ).at_most(10.0, clusters.rank(c.P[-1]).max()),
        OURS("d = 80, n = 40: rank less number of leaders at t = 11 (largest modulus)").equal(
            0.0, (clusters.rank(c.P[-1]) - c.leaders.sum(-1)).abs().max()
        ),
    ]


def _decay_claims(fall: Trajectory) -> list[Claim]:
    late = fall.ts.numpy() > 50
    radius = of.observables.radius(fall.stacked).amax(-1).numpy()
    return [
        Source(f"{OURS}.decay")("V = -I: |2t eig S(t) - 1| at t = 2000 (largest)").at_most(
            1e-3, (spectra(fall)[-1] - 1).abs().max()
        ),
        Source(f"{PAPER} (V = -I: convergence to 0); {OURS}.decay has -1/2")(
            "V = -I: exponent of t in the largest norm of a token"
        ).within(-0.51, -0.49, slope(fall.ts.numpy()[late], radius[late])),
    ]


def _pair_claims() -> list[Claim]:
    x = np.array([[[1.0, HEIGHT], [1.0, -HEIGHT]]])
    c = case(x, eye(2), np.array([0.0, LONG]), of.Dopri5(1e-10, 1e-12))
    source = PAPER.at("remark at the end of section 7, as transcribed in a formalisation")
    return [
        source(
            "two tokens (1, y), (1, -y), V = I: number of clusters, while P tends to the identity"
        ).erratum(printed=1.0, corrected=2.0, measured=float(len(clusters.distinct(c.z[-1, 0], 1e-2)))),
        Source(f"{OURS}.pair_limit")(
            f"two tokens (1, y), (1, -y), V = I: height of their limits for y = {HEIGHT:g}"
        ).equal(clusters.pair_limit(HEIGHT), c.z[-1, 0, 0, 1], rtol=1e-6),
    ]


def _data(
    line: ClusterRun,
    plane: ClusterRun,
    planes: ClusterRun,
    prism: ClusterRun,
    deep: ClusterRun,
    fall: Trajectory,
) -> dict[str, Array]:
    out = {"decay_t": fall.ts.numpy()[1:], "decay_2t_eigenvalues": spectra(fall).numpy()}
    for name, c in (("line", line), ("plane", plane), ("hyperplanes", planes), ("prism", prism)):
        out |= {f"{name}_t": c.ts, f"{name}_z": c.z.numpy(), f"{name}_rank": clusters.rank(c.P).numpy()}
    return out | {"deep_t": deep.ts, "deep_rank": clusters.rank(deep.P).numpy()}
