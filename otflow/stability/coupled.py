"""Coupled runs: one flow from two measures, and the distance between them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.tangent import align
from otflow.dynamics.flow import flow
from otflow.dynamics.noise import IndependentNoise, Noise
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles
from otflow.stability.perturbations import apart
from otflow.steppers import Stepper
from otflow.transport.chain import Distance, chain, geodesic
from otflow.transport.comparable import exponent
from otflow.transport.exact.conditional import conditional_wasserstein
from otflow.transport.exact.wasserstein import wasserstein


@dataclass(frozen=True, eq=False)
class Coupled:
    """Two runs of one flow and the distance between them.

    Attributes:
        mu, nu: the runs.
        ts: the save times that both runs reached, (T,).
        start: d(mu_0, nu_0), (*batch,).
        distances: d(mu_t, nu_t) at these times, (T, *batch); NaN for members of which a run ended before.
        p: the order of the distance; None if it was the user's.
    """

    mu: Trajectory
    nu: Trajectory
    ts: Tensor
    start: Tensor
    distances: Tensor
    p: float | None

    @property
    def ratios(self) -> Tensor:
        """What a stability estimate bounds, d(mu_t, nu_t) / d(mu_0, nu_0), (T, *batch)."""
        return self.distances / self.start

    @property
    def final(self) -> Tensor:
        """The last ratio, (*batch,)."""
        return self.ratios[-1]

    @property
    def status(self) -> Any:
        """How the runs ended: the worse of both, "ok" or "local" if all went well; an array for a batch."""
        first, second = np.broadcast_arrays(self.mu.status, self.nu.status)
        both = np.where((first == "ok") | ((first == "local") & (second != "ok")), second, first)
        return both.item() if both.ndim == 0 else both

    def __repr__(self) -> str:
        order = "" if self.p is None else f" p={self.p:g},"
        bad = sorted({str(one) for one in np.atleast_1d(self.status)} - {"ok"})
        end = f", status {', '.join(bad)}" if bad else ""
        span, ratio = f"[{float(self.ts[0]):g}, {float(self.ts[-1]):g}]", status.brief(self.final)
        return f"Coupled({len(self.ts)} times in {span},{order} ratio {ratio} at the last{end})"


def coupled(
    mu0: Measure,
    nu0: Measure,
    field: VelocityField,
    stepper: Stepper,
    *,
    t1: float,
    dt: float | None = None,
    t0: float = 0.0,
    p: float = 2.0,
    of: Distance | None = None,
    noise: Noise | None = None,
    save_at: Any = None,
    progress: bool = False,
    on_failure: Literal["raise", "return"] = "raise",
) -> Coupled:
    """d(mu_t, nu_t) along the flows from mu0 and nu0, which share their noise.

    The distance is W_p; the conditional one, which moves no label, if both measures are labelled; that of
    Bures on Gaussians. Every value comes with the certificate of its solver or an error.

    Steps of fixed length make one smooth map of mu0, so that differences of size 1e-6 and less keep their
    digits. Adaptive steppers choose their steps for each run: differences below their tolerance mean little.

    Args:
        mu0, nu0: the measures at t0. nu0 may have batch axes that mu0 lacks: a family of perturbations.
        field, stepper, t1, dt, t0, save_at, on_failure: as in `flow`.
        p: the order of the distance, from 1 (2 except on particles).
        of: another distance, a function of two measures.
        noise: moves both runs by one path. Independent noise needs equally many tokens in both.
        progress: show a bar, one for the runs and one for the distances.

    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> mu0, nu0 = of.Particles([[0.0], [1.0]]), of.Particles([[0.5], [1.0]])
    >>> of.coupled(mu0, nu0, pull, of.RK4(), t1=1.0, dt=0.5).ratios  # exp(-t)
    tensor([1.0000, 0.6068, 0.3682], dtype=torch.float64)
    """
    d, order = (_distance(mu0, nu0, exponent(p)), float(p)) if of is None else (of, None)
    (start,) = chain([t0], [(mu0, nu0)], d)
    rule = "it is at distance 0 from mu0"
    checks.require((start > 0).all(), "nu0", nu0, rule, "perturb it, see stability.perturbations")
    if noise is not None:
        noise = _shared(checks.instance(noise, Noise, "noise"), mu0, nu0)
    run = partial(
        flow,
        field=field,
        stepper=stepper,
        t1=t1,
        dt=dt,
        t0=t0,
        noise=noise,
        save_at=save_at,
        progress=progress,
        on_failure=on_failure,
    )
    mu, nu = run(mu0), run(nu0)
    ts = _common(mu, nu)
    pairs = zip(mu.measures[: len(ts)], nu.measures[: len(ts)], strict=True)
    distances = chain(ts.tolist(), pairs, d, progress=progress)
    return Coupled(mu, nu, ts, start, _until(mu.ended.fmin(nu.ended), ts, distances), order)


def _common(mu: Trajectory, nu: Trajectory) -> Tensor:
    """The save times of both: a run that broke off ends with a time of its own."""
    ts = mu.ts[: min(len(mu), len(nu))]
    return ts[: int((ts == nu.ts[: len(ts)]).cumprod(0).sum())]


def _until(ended: Tensor, ts: Tensor, distances: Tensor) -> Tensor:
    """The distances, NaN for members of which one run had ended by then."""
    late = align(ts.to(ended), torch.empty(len(ts), *ended.shape)) > ended
    return distances.masked_fill(late.to(distances.device), torch.nan)


def _distance(mu: Measure, nu: Measure, p: float) -> Distance:
    for name, one in (("mu0", mu), ("nu0", nu)):
        checks.instance(one, Measure, name)
    if not isinstance(mu, Particles):
        rule = f"only particles have distances of any order, this is {mu!r}"
        checks.require(p == 2, "p", p, rule, "pass p=2")
        return geodesic
    _comparable(mu, nu)
    if isinstance(nu, Particles) and _same(mu.w, nu.w) and _same(mu.label, nu.label):
        return partial(apart, p=p)  # small perturbations match by index, which is cheap to check
    if p == 2:
        return geodesic
    return partial(wasserstein if mu.label is None else conditional_wasserstein, p=p)


def _comparable(mu: Particles, nu: Measure) -> None:
    if not isinstance(nu, Particles):
        checks.fail("nu0", repr(nu), "it is not of the kind of mu0", "pass Particles(*nu0.nodes())")
    checks.require(
        nu.d == mu.d, "nu0.d", nu.d, f"mu0 is in dimension {mu.d}", f"pass nu0 with {mu.d} coordinates"
    )
    rule = f"its batch must extend that of mu0, {tuple(mu.batch)}"
    remedy = "give nu0 the axes of mu0, and others in front"
    checks.require(checks.extends(nu.batch, mu.batch), "nu0.batch", nu.batch, rule, remedy)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape[-1] == b.shape[-1] and bool((a == b).all())


def _shared(noise: Noise, mu0: Measure, nu0: Measure) -> Noise:
    """The same noise with its path drawn, so that every run sees it."""
    count = [one.n if isinstance(one, Particles) else None for one in (mu0, nu0)]
    if isinstance(noise, IndependentNoise) and count[0] != count[1]:
        rule = f"runs of {count[0]} and {count[1]} tokens cannot share the noise of each token"
        checks.fail("noise", repr(noise), rule, "use CommonNoise")
    own = copy(noise)
    own.path, own.rng = noise.bind(mu0), None
    return own
