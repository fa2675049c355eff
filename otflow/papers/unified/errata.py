"""Errata: what is printed, what is true, and the computation that tells

Formulas and pictures on Gaussian attention circulate with mistakes, some of them in the poster and in the
released scripts of Castin, Ablin, Carrillo and Peyré (2025), one in a book, one in a summary of the paper.
None of them touches a theorem of the paper. Each claim below puts the printed value, the corrected one and an
independent measurement side by side: sums over quadrature nodes with a kernel that is scaled by hand, or
the flow itself, followed accurately.

Formulas. The covariance under Sinkhorn attention is printed on the poster with two factors in the wrong
order, and with the constants of the kernel exp(Ax.y) although the kernel there, exp(-|Qx - Ky|^2), scales to
that of exp(2 Ax.y). The scripts replace inverses by pseudo-inverses, which is not the same for a singular A.
The book Optimal Transport for Machine Learners has a rate for the debiased Sinkhorn divergence under which
the target itself does not stand still. A summary of the paper moves covariances by V S + S V^T on top, a term
that belongs to the law of the mean.

Theorem without its hypothesis. "We always have global existence" under L2 attention needs an injective K. A
covariance that explodes at t = 3 is given in closed form.

Pictures. Figure 1d, captioned softmax, is drawn from the list that the L2 run has overwritten. The
two-headed picture of the appendix is run with one head, which is softmax. The histograms of ranks count
eigenvalues above 0.1, leave out ranks above ceil(d/2), and rest on coarse projected Euler steps, some of
which diverge although tr(V^-1 S) cannot grow. (The order in which the scripts draw V for the second row is
our reading; that no flow diverges does not depend on it.) Lie steps, S <- e^{hB} S e^{hB^T}, do better at the
same length, while those of a residual layer, (I + hB) S (I + hB)^T, do worse. In the L2 picture with both
behaviours, runs count as divergent once their trace passes 1000; these turn and converge (castin-l2).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import sqrtm
from torch import Tensor

import otflow as of
from otflow import closed_forms
from otflow.papers.unified import draw_errata
from otflow.papers.unified.examples import START, A, K, Q, S, V, debiased, explosion
from otflow.papers.unified.parameters import (
    DIMENSIONS,
    PAPER,
    Outcome,
    Panel,
    above,
    first,
    histograms,
    lie,
    multihead,
    projected_euler,
    residual,
    trace,
)
from otflow.papers.unified.printed import debiased_rate_erratum, sinkhorn_poster_rate
from otflow.papers.unified.runs import panel, reference
from otflow.reproduce.claim import Claim, Result, Source
from otflow.reproduce.frame import Frame
from otflow.reproduce.quadrature import nodes, normalised, power, scaled

POSTER = Source(f"poster of {PAPER}")
SCRIPTS = Source(f"released scripts of {PAPER}")
COUNTS = SCRIPTS.at("histograms_trad")
BOOK = Source("Peyré, Optimal Transport for Machine Learners, catalogue of covariance flows")
CARD = Source("a summary of the paper in circulation ('paper card')")


def run(frame: Frame) -> Result:
    """All measurements, all claims, all figures."""
    order, dimensions = frame.size((12, DIMENSIONS[:1]), (28, DIMENSIONS))
    frame.stage(0.0, "formulas, by quadrature")
    claims = [*_sinkhorn_claims(order), *_debiased_claims(order), *_card_claims(order)]
    frame.stage(0.3, "L2 attention that explodes")
    claims += _l2_claims(order)
    frame.stage(0.4, "pictures")
    claims += [*_picture_claims(frame), *(_threshold_claim(d, frame) for d in dimensions)]
    claims += [_dropped_claim(frame)]
    frame.stage(0.7, "coarse steps")
    coarse = {d: _coarse(histograms()["3", 2, d]) for d in dimensions}
    claims += [claim for d, found in coarse.items() for claim in _coarse_claims(d, found)]
    frame.stage(0.9, "figures")
    figures = {
        "formulas": draw_errata.formulas(order),
        "ranks": draw_errata.ranks(frame.size(8, 100)),
        "steps": draw_errata.steps(),
    }
    diverged = {f"diverged_d{d}": np.stack([o.diverged for o in found.ends]) for d, found in coarse.items()}
    peaks = {f"peak_d{d}": found.peak.numpy() for d, found in coarse.items()}
    return Result(claims, figures, diverged | peaks)


# --- formulas ----------------------------------------------------------------------------------------


def _sinkhorn_claims(order: int) -> list[Claim]:
    """The order of the factors, for exp(Ax.y); the constants, for exp(-|Qx - Ky|^2); a singular A."""
    x, w = nodes(S, order)
    singular = np.outer([1.0, -0.5], [0.6, 0.9])
    distance = np.square((x @ Q.T)[:, None] - x @ K.T).sum(-1)
    mended = closed_forms.sinkhorn_rate_inverse_right

    def measured(score: np.ndarray) -> float:
        return power(scaled(score, w, w), x, x @ V.T)

    return [
        POSTER("Sinkhorn, kernel exp(Ax.y): d/dt tr S; printed: V X S^-1 A^-T S, true: V X A^-T").erratum(
            printed=trace(sinkhorn_poster_rate(S, A, V)),
            corrected=trace(mended(S, A, V)),
            measured=measured(x @ A.T @ x.T),
            rtol=1e-5,
        ),
        POSTER(
            "Sinkhorn, kernel exp(-|Qx - Ky|^2): d/dt tr S; printed constants 1/2 and 4 (with the order "
            "mended), true: 1/4 and 16"
        ).erratum(
            printed=trace(mended(S, A, V)),
            corrected=trace(mended(S, A, V, eps=0.5)) / 2,
            measured=measured(-distance),
            rtol=1e-4,
        ),
        SCRIPTS(
            "Sinkhorn, A of rank one: d/dt tr S; the scripts invert A by pinv, which is wrong for singular A"
        ).erratum(
            printed=_pinv_rate(singular),
            corrected=trace(closed_forms.sinkhorn_rate(S, singular, V)),
            measured=measured(x @ singular.T @ x.T),
            rtol=1e-5,
        ),
    ]


def _pinv_rate(a: np.ndarray) -> float:
    """d/dt tr S by the formula of the scripts, with pseudo-inverses: 2 tr(V A^-T S^-1 X S)."""
    R = sqrtm(S)
    X = (R @ sqrtm(4 * R @ a.T @ S @ a @ R + np.eye(2)) @ np.linalg.inv(R) - np.eye(2)) / 2
    return 2 * float(np.trace(V @ np.linalg.pinv(a.T) @ np.linalg.pinv(S) @ X @ S))


def _debiased_claims(order: int) -> list[Claim]:
    return [
        BOOK(f"debiased Sinkhorn divergence to N(0, 1), eps = 2: dC/dt at C = {c:g}" + words).erratum(
            printed=debiased_rate_erratum([[c]], 2.0),
            corrected=closed_forms.debiased_rate([[c]], 2.0),
            measured=debiased(c, order),
            atol=1e-6,
        )
        for c, words in ((1.0, ", where the flow has arrived"), (2.0, ""), (0.3, ""))
    ]


def _card_claims(order: int) -> list[Claim]:
    """The mean m' = V (I + S A) m has the term V m; the covariance has no such term."""
    (x, w), m = nodes(S, order), np.array([0.4, -0.3])
    y = x + m
    rows, exact = normalised(y @ A.T @ y.T, w), trace(closed_forms.softmax_rate(S, A, V))
    drift, mean = rows.sum(0) @ y @ V.T, V @ (np.eye(2) + S @ A) @ m
    return [
        CARD("softmax: d/dt tr S; printed with V S + S V^T added, which belongs to the mean only").erratum(
            printed=exact + 2 * trace(V @ S), corrected=exact, measured=power(rows, x, y @ V.T), rtol=1e-5
        ),
        PAPER.at("Prop. 4.2")(
            "softmax: the first entry of dm/dt = V (I + S A) m, which does have the term V m"
        ).equal(mean[0], drift[0], rtol=1e-5),
    ]


def _l2_claims(order: int) -> list[Claim]:
    """A K that is not injective lets L2 attention explode; one that is does not."""
    example = closed_forms.l2_counterexample()
    x, w = nodes(np.asarray(example.path(START, 1.5)), max(order, 20))
    q, k, v = (np.asarray(a) for a in (example.Q, example.K, example.V))
    rows = normalised(-np.square((x @ q.T)[:, None] - x @ k.T).sum(-1), w)
    mu0 = of.Gaussian([0.0, 0.0], cov=S)
    end = of.flow(mu0, of.L2Attention(Q, K, V), of.Dopri5(), t1=2.0, save_at=[0.0]).final
    return [
        POSTER(
            "L2, K = e1^T, Q = e2^T, V = e2 e2^T: time of the blow-up; printed: always global existence"
        ).erratum(
            printed=math.inf,
            corrected=example.blow_up_time(START),
            measured=explosion(10.0, [0.0]).blow_up_time,
            rtol=1e-5,
        ),
        Source("closed form of S(t)")(
            "the same flow at half that time: d/dt tr S = 2 * 4 * 2/3, by quadrature of the attention itself"
        ).equal(16 / 3, power(rows, x, x @ v.T), rtol=1e-5),
        POSTER(
            "L2, injective K: tr S(2) / (exp(4 |V K^-1| |Q|) tr S(0)), so global existence is true there"
        ).at_most(1.0, trace(of.observables.covariance(end)) / closed_forms.l2_trace_bound(S, Q, K, V, 2.0)),
    ]


# --- pictures ----------------------------------------------------------------------------------------


def _picture_claims(frame: Frame) -> list[Claim]:
    keep = frame.size(60, 12)
    soft, l2, heads = (panel(name, quick=True, keep=keep) for name in ("1d", "A2 L2 mixed", "A3 heads"))
    drawn = [trace(reference(p, length=800.0, own_time=True).S).mean() for p in (soft, l2)]
    limit = soft.limit()

    def passed(field: of.VelocityField) -> int:
        """How many traces pass 1000 before t = 20."""
        options: Any = {"t1": 20.0, "save_at": [0.0], "stop": _huge}
        return int((of.flow(heads.gaussians(), field, of.Dopri5(), **options).status != "ok").sum())

    return [
        SCRIPTS.at("trad_mixed_3d")(
            "Fig. 1d, captioned softmax, shows the L2 run that overwrote it: mean trace of the limits from "
            f"{len(limit.rank)} of its starts; both values by scipy's DOP853 on the covariances"
        ).erratum(printed=drawn[1], corrected=drawn[0], measured=trace(limit.measure.cov).mean(), rtol=1e-3),
        SCRIPTS.at("MH_both")(
            f"appendix, two heads: starts out of {len(heads.covariances)} whose trace passes 1000 before "
            "t = 20; the script has one head, which is softmax"
        ).erratum(
            printed=passed(multihead(heads, 1)),
            corrected=heads.march(lie, tol_low=0.0, h=0.02, max_iter=1000).diverged.sum(),
            measured=passed(heads.field()),
        ),
    ]


def _huge(_: Tensor, mu: of.Measure) -> Tensor:
    return trace(of.observables.covariance(mu)) > 1e3


def _threshold_claim(d: int, frame: Frame) -> Claim:
    """V = I: ranks of the limits, known in closed form, against eigenvalues above 0.1."""
    p, half = first(histograms()["3", 1, d], frame.size(8, 100)), (d + 1) // 2
    return COUNTS(
        f"Fig. 3, V = I, d = {d}: limits out of {len(p.Q)} with a rank below {half}; counting eigenvalues > "
        "0.1 reports many, though all have this rank"
    ).erratum(
        printed=(above(closed_forms.softmax_limit(p.covariances, p.A)) < half).sum(),
        corrected=(closed_forms.softmax_limit_rank(p.covariances, p.A) < half).sum(),
        measured=(p.limit().rank < half).sum(),
    )


def _dropped_claim(frame: Frame) -> Claim:
    """The rule of the histograms on limits of full rank: Fig. 1c, d = 2, two heads."""
    limit = panel("1c", quick=frame.quick, keep=20).limit()
    count = len(limit.rank)
    return COUNTS(
        f"histograms leave out ranks above ceil(d/2): limits that they would count of {count} of Fig. 1c "
        "(two heads, d = 2), all of rank 2"
    ).erratum(
        printed=(above(limit.measure.cov) <= 1).sum(), corrected=count, measured=(limit.rank == 2).sum()
    )


# --- coarse steps ------------------------------------------------------------------------------------


class Coarse(NamedTuple):
    """How Euler, Lie and residual steps of the scripts' length end, and how the flow itself behaves.

    Attributes:
        ends: of the three kinds of steps, in this order.
        peak: the largest tr S of each flow.
        growth: the largest ratio of successive values of tr(V^-1 S).
    """

    ends: tuple[Outcome, ...]
    peak: Tensor
    growth: Tensor


def _coarse(p: Panel) -> Coarse:
    ends = tuple(p.march(step, max_iter=100) for step in (projected_euler, lie, residual))
    last = p.h * float(ends[0].steps[ends[0].diverged].max())
    inverse = torch.linalg.inv(torch.tensor(p.V))
    watched = {"tr": lambda mu: trace(mu.cov), "lyapunov": lambda mu: trace(inverse @ mu.cov)}
    seen = of.flow(p.gaussians(), p.field(), of.Dopri5(), t1=last, observe=watched).observed
    return Coarse(ends, seen["tr"].amax(0), (seen["lyapunov"][1:] / seen["lyapunov"][:-1]).max())


def _coarse_claims(d: int, found: Coarse) -> list[Claim]:
    source, where = COUNTS.at("row 2; tr(V^-1 S) falls"), f"V > 0, d = {d}"
    euler, steps, layers = (int(outcome.diverged.sum()) for outcome in found.ends)
    return [
        source(
            f"{where}: flows out of 100 whose trace passes 1000 (largest: {found.peak.max():.3g}); coarse "
            "Euler steps do"
        ).erratum(printed=euler, corrected=0, measured=(found.peak > 1e3).sum()),
        source(f"{where}: tr(V^-1 S) never grows (largest ratio of successive values)").at_most(
            1.0, found.growth, slack=1e-8
        ),
        source(f"{where}: Lie steps of the same length that diverge, against {euler} Euler steps").at_most(
            euler / 4, steps
        ),
        source(
            f"{where}: Lie steps that diverge, against {layers} residual layers of the same length"
        ).at_most(layers / 4, steps),
    ]
