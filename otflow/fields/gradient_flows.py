"""Gradient flows among attention fields: which is the steepest descent of an energy, and in which metric.

With A = K^T Q symmetric and V = -A (Sander et al. 2022, Prop. 2 and 3; Geshkovski et al. 2025, section 3;
Castin et al. 2025, section 5):

    unnormalised   ExponentialInteraction(A)    in W2
    sigmoid        SigmoidInteraction(A)        in W2
    Sinkhorn       SelfTransport(A, eps)        in W2
    softmax        ExponentialInteraction(A)    in the twisted metric of weight int exp(Ax.y) dmu(y)

V = cA multiplies the energy by -c, so that c > 0 is ascent; V = -PA with P symmetric positive definite is
the same descent where lengths are measured by P^-1. On centred Gaussians softmax and L2 attention descend
`SquaredScores` and `L2Energy` in the Bures-Wasserstein metric.
"""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.linalg import symmetric
from otflow.energies import (
    Energy,
    ExponentialInteraction,
    L2Energy,
    SelfTransport,
    SigmoidInteraction,
    SquaredScores,
)
from otflow.fields.attention import (
    Attention,
    L2Attention,
    SigmoidAttention,
    SoftmaxAttention,
    UnnormalisedAttention,
    Weights,
)
from otflow.fields.base import SumField, VelocityField, gradient_flow, refuse
from otflow.fields.descent import SteepestDescent
from otflow.fields.multihead import MultiHead
from otflow.fields.sinkhorn import SinkhornAttention
from otflow.measures import Gaussian, Measure, Particles
from otflow.metrics import Partition, Twisted, Wasserstein

# Relative; chosen: V = PA is found by a division, which loses digits if A is nearly singular.
ROUNDING = 1e-10
KINDS = (Particles, Gaussian)


class Twist(NamedTuple):
    """V = c A, or V = c P A with c = 1 or -1 and P symmetric positive definite."""

    c: float
    P: Tensor | None


class CentredDescent(SteepestDescent):
    """A descent that equals attention on centred Gaussians, and refuses others."""

    def admit(self, mu: Measure) -> None:
        if isinstance(mu, Gaussian) and bool((mu.mean.abs().amax(-1) > _hair(mu)).any()):
            rule = "attention descends this energy on centred Gaussians only"
            checks.fail("mean", mu.mean.tolist(), rule, "subtract the mean, or use the field itself")


def _hair(mu: Gaussian) -> Tensor:
    return 1e-9 * mu.root.abs().amax((-1, -2))


@gradient_flow.register
def _(field: SteepestDescent, kind: type[Measure]) -> SteepestDescent:
    return field


@gradient_flow.register
def _(field: SumField, kind: type[Measure]) -> SteepestDescent:
    return _together(field, [(gradient_flow(term, kind), c) for term, c in field.pairs()])


@gradient_flow.register
def _(field: MultiHead, kind: type[Measure]) -> SteepestDescent:
    heads = [_head(field, h) for h in range(len(field.heads))]
    if any(isinstance(head, SoftmaxAttention) for head in field.heads) and kind is Particles:
        refuse(field, "softmax heads have a metric each, with their own partition functions")
    return _together(field, [(_attention(head, m, kind), 1.0) for head, m in heads])


@gradient_flow.register
def _(field: Attention, kind: type[Measure]) -> SteepestDescent:
    return _attention(field, _constant(field), kind)


def _together(field: VelocityField, parts: list[tuple[SteepestDescent, float]]) -> SteepestDescent:
    """One descent of a sum of energies, in one metric."""
    first = parts[0][0]
    if len(parts) > 1 and not all(isinstance(part.metric, Wasserstein) for part, _ in parts):
        refuse(field, "its parts descend in different metrics")
    flat = [(term, c * b) for part, c in parts for term, b in part.energy.pairs()]
    kind = CentredDescent if any(isinstance(part, CentredDescent) for part, _ in parts) else SteepestDescent
    return kind(first.energy.combination(flat), first.metric)


def _head(field: MultiHead, h: int) -> tuple[Attention, Weights]:
    """A head, with its values mapped back by the mixing matrix."""
    head, m = field.heads[h], _constant(field.heads[h])
    if field.mix is None:
        return head, m
    W = field.mix[h](torch.zeros((), dtype=torch.float64))
    if field.mix[h].varies or W.ndim != 2:
        refuse(field, f"mix[{h}] varies, and an energy does not")
    return head, m._replace(V=W @ m.V)


def _constant(field: Attention) -> Weights:
    """Q, K, V, if they do not change."""
    if field.causal:
        refuse(field, "causal = True: the velocity of masked attention has no symmetric derivative")
    if any(w.varies for w in (field.Q, field.K, field.V)):
        refuse(field, "its weights vary in time, and an energy does not")
    m = Weights(*(w(torch.zeros((), dtype=torch.float64)) for w in (field.Q, field.K, field.V)))
    if any(w.ndim != 2 for w in m):
        refuse(field, "its weights differ between members of a batch; take them one by one")
    return m


# --- energy and metric of each kind of attention ---------------------------------------------------------


@singledispatch
def _attention(field: Attention, m: Weights, kind: type[Measure]) -> SteepestDescent:
    refuse(field, "no energy is known of which it is the descent")


@_attention.register
def _(field: UnnormalisedAttention, m: Weights, kind: type[Measure]) -> SteepestDescent:
    A, twist = _scores(field, m)
    return _descent(ExponentialInteraction(A), twist)


@_attention.register
def _(field: SigmoidAttention, m: Weights, kind: type[Measure]) -> SteepestDescent:
    A, twist = _scores(field, m)
    return _descent(SigmoidInteraction(A), twist)


@_attention.register
def _(field: SinkhornAttention, m: Weights, kind: type[Measure]) -> SteepestDescent:
    A, twist = _scores(field, m)
    energy = SelfTransport(A, field.sinkhorn)
    return _descent(energy, twist)


@_attention.register
def _(field: SoftmaxAttention, m: Weights, kind: type[Measure]) -> SteepestDescent:
    if issubclass(kind, Gaussian):
        A, twist = _skew(field, m) or _scores(field, m)
        return _centred(_descent(SquaredScores(A), twist))
    A, twist = _scores(field, m)
    return _descent(ExponentialInteraction(A), twist, Partition(A))


@_attention.register
def _(field: L2Attention, m: Weights, kind: type[Measure]) -> SteepestDescent:
    if not issubclass(kind, Gaussian):
        refuse(field, "L2 attention descends an energy on Gaussians only: ask for as_gradient_flow(Gaussian)")
    c = float((m.Q * m.K).sum() / m.K.square().sum())
    if not _close(m.Q, c * m.K):
        refuse(field, f"Q = cK fails: |Q - {c:.3g} K| = {_size(m.Q - c * m.K):.2g}")
    _, twist = _scores(field, m)
    return _centred(_descent(L2Energy(m.K, c), twist))


def _descent(energy: Energy, twist: Twist, weight: Partition | None = None) -> SteepestDescent:
    """The descent of -c energy, lengths measured by P^-1 and the weight."""
    matrix = None if twist.P is None else symmetric(torch.linalg.inv(twist.P))
    plain = weight is None and matrix is None
    scaled = energy if twist.c == -1.0 else -twist.c * energy
    return SteepestDescent(scaled, Wasserstein() if plain else Twisted(weight, matrix=matrix))


def _centred(descent: SteepestDescent) -> CentredDescent:
    return CentredDescent(descent.energy, descent.metric)


# --- conditions ------------------------------------------------------------------------------------------


def _scores(field: VelocityField, m: Weights) -> tuple[Tensor, Twist]:
    """A = K^T Q, and how V is made of it."""
    A = m.K.mT @ m.Q
    if not _close(A, A.mT):
        refuse(field, f"A = A^T fails: |A - A^T| = {_size(A - A.mT):.2g}, |A| = {_size(A):.2g}")
    A = symmetric(A)
    if m.V.shape != A.shape:
        refuse(field, f"V has shape {tuple(m.V.shape)}, and A {tuple(A.shape)}")
    return A, _twist(field, m.V, A)


def _skew(field: VelocityField, m: Weights) -> tuple[Tensor, Twist] | None:
    """A = -A^T and V = cA, which is linear attention too: its energy has the other sign."""
    A = m.K.mT @ m.Q
    c = float((m.V * A).sum() / A.square().sum()) if m.V.shape == A.shape and bool(A.any()) else 0.0
    return (A, Twist(-c, None)) if c and _close(A, -A.mT) and _close(m.V, c * A) else None


def _twist(field: VelocityField, V: Tensor, A: Tensor) -> Twist:
    c = float((V * A).sum() / A.square().sum()) if bool(A.any()) else 0.0
    if _close(V, c * A):
        return Twist(c, None)
    found = [(sign, _positive(sign * V, A)) for sign in (-1.0, 1.0)]
    twists = [Twist(sign, P) for sign, P in found if P is not None and _close(P @ A, sign * V)]
    if not twists:
        refuse(field, "V = -PA or V = PA fails for every symmetric positive definite P")
    return twists[0]


def _positive(V: Tensor, A: Tensor) -> Tensor | None:
    """A symmetric positive definite P with PA = V, if there is one.

    In a basis of eigenvectors of A, V fixes the columns of P on the range of A; the block on the kernel is
    free, and large enough makes P positive.
    """
    values, U = torch.linalg.eigh(A)
    some = values.abs() > ROUNDING * values.abs().max()
    if not bool(some.any()):
        return None
    columns = (U.mT @ V @ U)[:, some] / values[some]
    top, low = columns[some], columns[~some]
    if not _close(top, top.mT) or not bool((torch.linalg.eigvalsh(symmetric(top)) > 0).all()):
        return None
    P = torch.eye(len(A), dtype=A.dtype, device=A.device)
    index, free = some.nonzero()[:, 0], (~some).nonzero()[:, 0]
    P[index[:, None], index] = symmetric(top)
    P[free[:, None], index], P[index[:, None], free] = low, low.mT
    P[free[:, None], free] += low @ torch.linalg.solve(symmetric(top), low.mT)
    return symmetric(U @ P @ U.mT)


def _close(a: Tensor, b: Tensor) -> bool:
    return _size(a - b) <= ROUNDING * max(_size(a), _size(b))


def _size(a: Tensor) -> float:
    return float(a.detach().abs().max())
