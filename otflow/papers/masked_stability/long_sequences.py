"""Long sequences under masked attention: the part of the experiment `masked-stability` about their limits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.reproduce.claim import Claim, Source
from otflow.reproduce.fits import slope
from otflow.transport.exact.sequences import positions, sequence_distance

PAPER = Source("Castin, Ablin, Carrillo, Peyré 2025")
TIMES = (0.0, 0.5, 1.0)
Array = np.ndarray[Any, Any]


class LongSequences(NamedTuple):
    """Distances to the limit: rows n, columns the times 0, 1/2 and 1."""

    n: Array
    curve: Array  # tokens on a curve, conditional d_2
    random: Array  # numbers of tokens that are random given their label
    plain: Array  # W_2 of those
    conditional: Array  # d_2 of those


def longer(field: of.VelocityField, rng: np.random.Generator, *, sizes: int, many: int) -> LongSequences:
    """Sequences on a curve in the plane under ``field``, and random ones on the line, against long ones.

    >>> zero = of.SoftmaxAttention(np.eye(2), np.eye(2), 0 * np.eye(2), causal=True)
    >>> longer(zero, np.random.default_rng(0), sizes=1, many=64).curve.shape
    (1, 3)
    """
    n, random = (first * 2 ** np.arange(sizes) for first in (16, 32))
    limit = _run(on_curve(many), field)
    ends = [_run(on_curve(k), field) for k in n.tolist()]
    curve = [[float(sequence_distance(a, b)) for a, b in zip(end, limit, strict=True)] for end in ends]
    law = _run(fibred(many // 16, 16), on_line())
    clouds = [_run(at_random(k, 16, rng), on_line()) for k in random.tolist()]
    plain, conditional = (
        np.array([[_mean(d(a, b)) for a, b in zip(end, law, strict=True)] for end in clouds])
        for d in (of.wasserstein, sequence_distance)
    )
    return LongSequences(n, np.array(curve), random, plain, conditional)


def _run(mu: of.Particles, field: of.VelocityField) -> tuple[of.Measure, ...]:
    return tuple(of.flow(mu, field, of.RK4(), t1=TIMES[-1], dt=0.1, save_at=TIMES).measures)


def _mean(d: Tensor) -> float:
    """Root mean square over repetitions."""
    return float(d.square().mean().sqrt())


def on_curve(n: int) -> of.Particles:
    """Tokens x(s) on an arc of a spiral, one at the middle of each of n intervals of labels.

    >>> on_curve(3)
    Particles(n=3, d=2, labelled, space=Euclidean())
    """
    s = positions(n)
    return of.Particles((0.2 + 0.8 * s)[:, None] * torch.stack([(5 * s).cos(), (5 * s).sin()], -1), label=s)


def on_line() -> of.VelocityField:
    """Causal softmax attention on the line with A = 1 and V = 0.8.

    >>> on_line()
    SoftmaxAttention(causal=True)
    """
    return of.SoftmaxAttention([[1.0]], [[1.0]], [[0.8]], causal=True)


def at_random(n: int, copies: int, rng: np.random.Generator) -> of.Particles:
    """Tokens sin(4s)/2 + noise, the noise uniform on [-1/2, 1/2]: (copies, n, 1).

    >>> at_random(3, 2, np.random.default_rng(0))
    Particles(n=3, d=1, batch=(2,), labelled, space=Euclidean())
    """
    s = positions(n)
    noise = torch.from_numpy(rng.uniform(-0.5, 0.5, (copies, n, 1)))
    return of.Particles((4 * s).sin()[:, None] / 2 + noise, label=s)


def fibred(labels: int, atoms: int) -> of.Particles:
    """The law of these tokens: at each label, quantiles of their conditional law.

    >>> fibred(4, 2)
    Particles(n=8, d=1, labelled, space=Euclidean())
    """
    s = positions(labels)
    x = (4 * s).sin()[:, None] / 2 + positions(atoms) - 0.5
    return of.Particles(x.reshape(-1, 1), label=s.repeat_interleave(atoms))


def limit_claims(found: LongSequences) -> list[Claim]:
    """Rates at the first and the last time.

    >>> n, one = np.array([1.0, 2.0]), np.ones((2, 3))
    >>> [claim.verdict.value for claim in limit_claims(LongSequences(n, one, n, one, one))][:2]
    ['fails', 'fails']
    """
    source = PAPER.at("Theorem 3.4 (limit of long sequences)")
    words = "tokens that are random given their label, on the line"
    rows = [
        (f"{place}, t = {TIMES[k]:g}: {name}", size, values[:, k], low, high)
        for k in (0, 2)
        for place, name, size, values, low, high in (
            ("tokens on a curve", "d_2 to the limit falls like 1/n", found.n, found.curve, -1.1, -0.9),
            (words, "W_2 to the limit falls like n^-0.5", found.random, found.plain, -0.65, -0.35),
            (words, "d_2 to the limit does not fall", found.random, found.conditional, -0.05, 0.05),
        )
    ]
    return [
        source(f"{text} (slope)").within(low, high, slope(size, values))
        for text, size, values, low, high in rows
    ]


def average_claim() -> Claim:
    """A = 0, V = I: x(s)' is the mean of x over [0, s], for which s^k grows like exp(t / (k + 1)).

    >>> average_claim().verdict.value
    'holds'
    """
    field = of.SoftmaxAttention(np.zeros((3, 3)), np.zeros((3, 3)), np.eye(3), causal=True)
    powers, fine, sizes = torch.arange(3.0).double(), positions(8192), np.array([32, 64, 128])
    limit = of.Particles((TIMES[-1] / (powers + 1)).exp() * fine[:, None] ** powers, label=fine)
    errors = []
    for n in sizes.tolist():
        mu = of.Particles(positions(n)[:, None] ** powers, label=positions(n))
        errors.append(float(sequence_distance(_run(mu, field)[-1], limit)))
    return Source("monomials are eigenfunctions of the mean over [0, s]")(
        "A = 0, V = I, tokens (1, s, s^2), t = 1: d_2 to (e, e^(1/2) s, e^(1/3) s^2) falls like 1/n (slope)"
    ).within(-1.05, -0.95, slope(sizes, np.array(errors)))
