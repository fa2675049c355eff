"""Long sequences under masked attention, and the laws on [0, 1] x R^d that they converge to, or do not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import otflow as of
from otflow.transport.exact.sequences import positions, sequence_distance

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

    >>> import numpy as np
    >>> import otflow as of
    >>> from otflow.papers.masked_stability.long_sequences import longer
    >>> zero = of.SoftmaxAttention(np.eye(2), np.eye(2), 0 * np.eye(2), causal=True)
    >>> longer(zero, np.random.default_rng(0), sizes=1, many=64).curve.shape
    (1, 3)
    """
    n, random = (first * 2 ** np.arange(sizes) for first in (16, 32))
    limit, law = _run(on_curve(many), field), _run(fibred(many // 16, 16), on_line())
    curves = [_run(on_curve(k), field) for k in n.tolist()]
    clouds = [_run(at_random(k, 16, rng), on_line()) for k in random.tolist()]
    curve, plain, conditional = (
        np.array([[_mean(d(a, b)) for a, b in zip(run, end, strict=True)] for run in some])
        for d, some, end in (
            (sequence_distance, curves, limit),
            (of.wasserstein, clouds, law),
            (sequence_distance, clouds, law),
        )
    )
    return LongSequences(n, curve, random, plain, conditional)


def _run(mu: of.Particles, field: of.VelocityField) -> tuple[of.Measure, ...]:
    """The flow at all of TIMES."""
    return tuple(of.flow(mu, field, of.RK4(), t1=TIMES[-1], dt=0.1, save_at=TIMES).measures)


def _mean(d: Tensor) -> float:
    """Root mean square over repetitions."""
    return float(d.square().mean().sqrt())


def on_curve(n: int) -> of.Particles:
    """Tokens x(s) on an arc of a spiral, one at the middle of each of n intervals of labels.

    >>> from otflow.papers.masked_stability.long_sequences import on_curve
    >>> on_curve(3)
    Particles(n=3, d=2, labelled, space=Euclidean())
    """
    s = positions(n)
    return of.Particles((0.2 + 0.8 * s)[:, None] * torch.stack([(5 * s).cos(), (5 * s).sin()], -1), label=s)


def on_line() -> of.VelocityField:
    """Causal softmax attention on the line with A = 1 and V = 0.8.

    >>> from otflow.papers.masked_stability.long_sequences import on_line
    >>> on_line()
    SoftmaxAttention(d=1, causal=True)
    """
    return of.SoftmaxAttention([[1.0]], [[1.0]], [[0.8]], causal=True)


def at_random(n: int, copies: int, rng: np.random.Generator) -> of.Particles:
    """Tokens sin(4s)/2 + noise, the noise uniform on [-1/2, 1/2]: (copies, n, 1).

    >>> import numpy as np
    >>> from otflow.papers.masked_stability.long_sequences import at_random
    >>> at_random(3, 2, np.random.default_rng(0))
    Particles(n=3, d=1, batch=(2,), labelled, space=Euclidean())
    """
    s = positions(n)
    noise = torch.from_numpy(rng.uniform(-0.5, 0.5, (copies, n, 1)))
    return of.Particles((4 * s).sin()[:, None] / 2 + noise, label=s)


def fibred(labels: int, atoms: int) -> of.Particles:
    """The law of these tokens: at each label, quantiles of their conditional law.

    >>> from otflow.papers.masked_stability.long_sequences import fibred
    >>> fibred(4, 2)
    Particles(n=8, d=1, labelled, space=Euclidean())
    """
    s = positions(labels)
    x = (4 * s).sin()[:, None] / 2 + positions(atoms) - 0.5
    return of.Particles(x.reshape(-1, 1), label=s.repeat_interleave(atoms))


def average_errors(sizes: Array) -> list[Tensor]:
    """Distances to the explicit limit at t = 1 of n tokens (1, s, s^2), where A = 0 and V = I.

    x(s)' is the mean of x over [0, s], for which s^k grows like exp(t / (k + 1)).

    >>> import numpy as np
    >>> from otflow.papers.masked_stability.long_sequences import average_errors
    >>> [round(float(d), 3) for d in average_errors(np.array([32, 64]))]
    [0.028, 0.014]
    """
    field = of.SoftmaxAttention(np.zeros((3, 3)), np.zeros((3, 3)), np.eye(3), causal=True)
    powers = torch.arange(3.0).double()

    def monomials(n: int, factors: Tensor | float = 1.0) -> of.Particles:
        return of.Particles(factors * positions(n)[:, None] ** powers, label=positions(n))

    limit = monomials(8192, (TIMES[-1] / (powers + 1)).exp())
    return [sequence_distance(_run(monomials(n), field)[-1], limit) for n in sizes.tolist()]
