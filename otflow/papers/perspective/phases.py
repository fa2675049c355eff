"""Phase diagrams: how likely two tokens are to have met, over inverse temperature and time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import insist
from otflow.base.spaces import Sphere
from otflow.dynamics.flow import flow
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles
from otflow.papers.perspective.overlaps import collapse_time
from otflow.papers.tokens.sphere import attention, uniform
from otflow.steppers import Euler

CHECKPOINTS = 10  # saved at once: a flow keeps the tokens at each of them


@dataclass(frozen=True)
class PhaseDiagram:
    """The probability that two tokens have met, and how it was found.

    Attributes:
        t: times (T,).
        beta: inverse temperatures (B,).
        probability: of <x_i, x_j> >= 1 - delta for a pair i < j, (T, B).
        stderr: its standard error over the samples, (T, B); 0 for a single sample.
        n, d, samples, delta, normalised: the arguments of `phase_diagram`.
    """

    t: Tensor
    beta: Tensor
    probability: Tensor
    stderr: Tensor
    n: int
    d: int
    samples: int
    delta: float
    normalised: bool

    @property
    def prediction(self) -> Tensor:
        """`collapse_time` at each beta, (B,): where tokens meet in high dimension."""
        return collapse_time(self.beta, self.n, self.delta, normalised=self.normalised)

    def boundary(self, level: float = 0.5) -> Tensor:
        """The first time at which the probability is ``level``, (B,); infinite where it is not reached.

        Linear between the times of the diagram.
        """
        if not 0 < checks.number(level, "level") <= 1:
            checks.fail("level", level, "a probability in (0, 1] is needed", "pass level=0.5, say")
        p, t = self.probability, self.t
        # The first time at the level, and the one before it, unless it is the first of all.
        k = (p >= level).to(torch.int8).argmax(0)
        before = (k - 1).clamp(min=0)
        high, low = p.gather(0, k[None])[0], p.gather(0, before[None])[0]
        rise = torch.where(high > low, high - low, torch.ones_like(high))
        part = torch.where(k > before, (level - low) / rise, torch.zeros_like(high))
        return torch.where(high >= level, t[before] + part * (t[k] - t[before]), torch.inf)


def phase_diagram(
    beta: Any,
    t: Any,
    *,
    n: int,
    d: int,
    samples: int,
    rng: int | np.random.Generator,
    delta: float = 1e-3,
    normalised: bool = True,
    dt: float = 0.1,
) -> PhaseDiagram:
    """P(<x_i(t), x_j(t)> >= 1 - delta) for tokens that start uniform on the sphere, over beta and t.

    Figure 3 of arXiv 2312.10794, for attention with Q = beta I, K = V = I. The probability is
    averaged over the samples and over all pairs of tokens: tokens are exchangeable, so that the expectation
    is that of one pair, and the variance is smaller. All beta share their starts, so that errors at different
    beta are alike. Steps are those of Euler, brought back to the sphere; with dt = 0.1 tokens that are close
    approach each other 5 % too fast. For d > n the tokens are drawn in their span, of dimension n, to which
    the motion is confined. A sample whose tokens have all met is not followed any more: once all are within a
    cap, their least inner product does not fall.

    Args:
        beta: inverse temperatures (B,), >= 0.
        t: times (T,), >= 0 and increasing.
        n, d, samples: number of tokens, dimension, number of independent starts.
        delta: tokens have met from 1 - delta on, 0 < delta <= 1.
        rng: a seed or a `numpy.random.Generator`.
        normalised: SA rather than USA.
        dt: largest step; for USA divided by max(sqrt(beta) exp(beta - 1/2), 1), which makes large beta slow.

    >>> import numpy as np
    >>> from otflow.papers.perspective import phase_diagram
    >>> diagram = phase_diagram([1.0], [0.0, 9.0], n=4, d=8, samples=5, rng=np.random.default_rng(0))
    >>> diagram.probability
    tensor([[0.],
            [1.]], dtype=torch.float64)
    """
    betas, times = _axis(beta, "beta"), _axis(t, "t")
    if bool((times.diff() <= 0).any()):
        checks.fail("t", times.tolist(), "times increase", "pass t=np.unique(t)")
    if not 0 < checks.number(delta, "delta") <= 1:
        checks.fail("delta", delta, "0 < delta <= 1 is needed", "pass delta=0.01, say")
    n, d, samples = (checks.count(v, k) for v, k in ((n, "n"), (d, "d"), (samples, "samples")))
    if n < 2:
        checks.fail("n", n, "one token has nobody to meet", "choose n >= 2")
    step = checks.positive(dt, "dt")
    if not normalised:
        rule = f"the step of USA, dt / (sqrt(beta) exp(beta - 1/2)), is too short for t = {times[-1]:g}"
        insist(
            _step(betas, step) > 1e-12 * times[-1],
            "beta",
            betas,
            rule,
            "pass beta / 2 or less, or normalised=True",
        )
    start = tokens_in_span(n, d, samples, rng=rng)
    steps = [step] * len(betas) if normalised else _step(betas, step).tolist()
    columns = [
        _column(start, attention(b, start.d, normalised=normalised), times, delta, h)
        for b, h in zip(betas.tolist(), steps, strict=True)
    ]
    met = torch.stack(columns, -1)  # (T, samples, B)
    stderr = met.std(1) / math.sqrt(samples) if samples > 1 else torch.zeros_like(met[:, 0])
    return PhaseDiagram(times, betas, met.mean(1), stderr, n, d, samples, float(delta), normalised)


def tokens_in_span(n: int, d: int, samples: int, *, rng: int | np.random.Generator) -> Particles:
    """Uniform tokens on the sphere of R^d up to rotation, (samples, n, min(n, d)).

    For d > n the triangular factor of a Gaussian matrix is drawn itself: independent entries, normal below
    the diagonal and chi of d, d - 1, ... degrees of freedom on it (Bartlett).
    """
    rng = checks.generator(rng)
    if d <= n:
        return uniform(n, d, rng=rng, batch=(samples,))
    g = np.tril(rng.standard_normal((samples, n, n)), -1)
    index = np.arange(n)
    g[:, index, index] = np.sqrt(rng.chisquare(d - index, (samples, n)))
    return Particles(g / np.linalg.norm(g, axis=-1, keepdims=True), space=Sphere())


def _axis(value: Any, name: str) -> Tensor:
    """One axis of a diagram."""
    out = checks.tensor(value, name).detach().double().cpu()
    if out.ndim != 1 or not len(out):
        rule = "a list of numbers is needed"
        checks.fail(f"{name}.shape", tuple(out.shape), rule, f"pass {name} as a list")
    if bool((out < 0).any()):
        checks.fail(f"min({name})", out.min().item(), "it must be >= 0", f"choose {name} >= 0")
    return out


def _step(beta: Tensor, dt: float) -> Tensor:
    """The steps of USA, whose velocities change at rates up to sqrt(beta) exp(beta - 1/2), (B,)."""
    return dt * torch.exp(-(beta.log() / 2 + beta - 0.5).clamp(min=0.0))


def _column(start: Particles, field: VelocityField, times: Tensor, delta: float, dt: float) -> Tensor:
    """The share of pairs that have met in each sample, (T, samples)."""
    out = torch.ones(len(times), *start.batch, dtype=torch.float64)
    active, mu, now = torch.arange(len(out[0])), start, 0.0
    for rows in torch.arange(len(times)).split(CHECKPOINTS):
        part, end = times[rows].tolist(), float(times[rows[-1]])
        if end > now:
            observe = {"met": lambda nu: share_met(nu, delta)}
            traj = flow(mu, field, Euler(), t0=now, t1=end, dt=dt, save_at=part, observe=observe)
            mu, now = checks.instance(traj.final, Particles, "mu"), end
            out[rows[:, None], active] = traj.observed["met"]
        else:
            out[rows[:, None], active] = share_met(mu, delta)  # the time 0 alone
        apart = share_met(mu, delta) < 1  # once all have met, they stay together: such samples are done
        if not bool(apart.any()):
            break
        active, mu = active[apart], mu[apart]
    return out


def share_met(mu: Measure, delta: float) -> Tensor:
    """The share of pairs i < j with <x_i, x_j> >= 1 - delta, (*batch,); two tokens at least are needed.

    >>> from otflow.papers.perspective.phases import share_met
    >>> import otflow as of
    >>> share_met(of.Particles([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], space=of.Sphere()), 1e-3).item()
    0.333...
    """
    x: Tensor = checks.instance(mu, Particles, "mu").x
    n = x.shape[-2]
    if n < 2:
        checks.fail("mu.n", n, "one token has nobody to meet", "pass at least two tokens")
    near = torch.triu(x @ x.mT - (1 - delta) >= 0, diagonal=1)
    return near.sum((-1, -2)).double() / (n * (n - 1) / 2)
