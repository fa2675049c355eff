"""Atoms of stationary measures: descend the energy of many particles, merge those that meet, polish.

`otflow.papers.perceptron` offers `find_atoms`; the rest is how it is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import minimize
from scipy.spatial.distance import squareform
from torch import Tensor

from otflow.base import checks
from otflow.base.spaces import Sphere, norm, normalise
from otflow.measures import Measure, Particles
from otflow.papers.perceptron.landscape import (
    RELU,
    Activation,
    Landscape,
    hessians,
    residual,
    second_variation,
    slope,
)

Array = np.ndarray
FLOOR = 1e-6  # distances below this are nothing but the tolerance of the descent
ROUNDINGS = 64  # by which two energies may differ and be called equal
CROWD = 0.5  # particles that have met are nearer than this share of the spacing of an even spread
FEW = 100  # atoms that are worth a Newton step, which takes n^3 operations
NEWTON, HALVINGS = 100, 32  # steps of the polish, which mostly needs about five, and attempts at each
FAR = 4.0  # a place in the chart at which slopes are too small to be trusted
KINK = 1e-4  # how far from the kink of a neuron a particle may lean on it


@dataclass(frozen=True, eq=False)
class Atoms:
    """What a descent of many particles ended in.

    ``measure`` has the atoms with their masses, heaviest first; ``energy`` is E there, ``gradient`` the
    residual max |grad dE/dmu| on them. Particles nearer than ``radius`` were merged; ``gap`` are the largest
    distance below it and the smallest above it (single linkage), so any radius between gives the same atoms;
    if they are not far apart, there is doubt about the number of atoms.
    ``status`` is "max_iter" or "stalled" (rounding) if the gradient missed the tolerance; "degenerate" if
    merging raised the energy, or if an atom of several particles would still lower it by splitting: a radius
    was given within which particles had not met, particles started at one place and could not part, or the
    descent had come to rest at a saddle that Newton's method left for another valley (start anew from a
    spread of the measure, or from elsewhere); else "ok".
    """

    measure: Particles
    energy: float
    gradient: float
    radius: float
    gap: tuple[float, float]
    iterations: int
    status: str

    @property
    def n(self) -> int:
        """The number of atoms."""
        return self.measure.n

    def __repr__(self) -> str:
        return f"Atoms(n={self.n}, energy={self.energy:.6g}, gradient={self.gradient:.1e}, {self.status})"


def find_atoms(
    mu: Measure,
    beta: float,
    a: Any,
    omega: Any,
    activation: Activation = RELU,
    *,
    tol: float = 1e-8,
    radius: float | None = None,
    max_iter: int = 10_000,
) -> Atoms:
    """A local minimiser of E over the positions of the particles of mu, as atoms.

    L-BFGS on the angles of a circle, or on y with x = y / |y| in higher dimension; then particles that have
    met are merged; then Newton's method moves the atoms, masses held. Minimisers are many and depend on mu;
    particles of an atom with at least two of them had the freedom to part, so that up to ``tol`` what is
    found is stable against splitting as well (see `second_variation`). This is checked, and so is that
    merging does not raise E.

    Args:
        mu: one cloud (n, d) on the sphere to start from; its masses are kept.
        beta, a, omega, activation: as in `energy`.
        tol: bound on the residual, max |grad dE/dmu| over the particles.
        radius: distance at which particles count as one; if None, amid the widest gap (by ratio) of the
            distances at which they link up, among those whose lower end is below half the spacing of n evenly
            spread particles; if such a merge fails the checks, amid the widest of the gaps below it, and so
            on, down to 1e-6.
        max_iter: limit on ``iterations``, those of L-BFGS.

    >>> from otflow.papers.perceptron import find_atoms
    >>> import numpy as np, otflow as of
    >>> t = 2 * np.pi * np.arange(60) / 60
    >>> mu = of.Particles(np.stack([np.cos(t), np.sin(t)], -1), space=of.Sphere())
    >>> find_atoms(mu, 4.0, [[1.0, 0.3], [-0.4, 1.0]], [0.8, -0.6]).n
    5

    References: Alvarez-Lopez, Geshkovski, Ruiz-Balet 2026, arXiv 2601.21366.
    """
    L = Landscape.of(beta, a, omega, activation).detached()
    x, w = (t.detach() for t in L.admit(_single(mu)))
    tol = checks.positive(tol, "tol")
    radius = None if radius is None else checks.positive(radius, "radius")
    x, iterations = _descend(L, x, w, tol, checks.count(max_iter, "max_iter"))
    c, gap, sound = _merged(L, _Cloud(x, w, torch.ones_like(w)), tol, radius)
    found = Particles(c.x, w=c.w, space=Sphere())
    gradient = residual(found, L.beta, L.a, L.omega, L.activation).item()
    missed = "max_iter" if iterations >= max_iter else "stalled"
    status = missed if gradient > tol else "ok" if sound else "degenerate"
    return Atoms(found, _energy(L, c.x, c.w).item(), gradient, gap.radius, gap.ends, iterations, status)


def _single(mu: Measure) -> Measure:
    if isinstance(mu, Particles) and (mu.batch or bool((mu.w <= 0).any())):
        checks.fail(
            "mu",
            repr(mu),
            "atoms are found for one cloud at a time, in which every particle has mass",
            "pass mu[i] for a member of a batch, and drop particles without mass",
        )
    return mu


def _energy(L: Landscape, x: Tensor, w: Tensor) -> Tensor:
    return (w @ (L.kernel(x, x) @ w / L.beta + L.potential(x))) / 2


# --- descent -------------------------------------------------------------------------------------------


class _Chart(Protocol):
    """Coordinates z in R^N of a cloud."""

    def start(self, x: Tensor) -> Tensor: ...

    def points(self, z: Tensor) -> Tensor: ...

    def covector(self, z: Tensor, x: Tensor, g: Tensor) -> Tensor:
        """The derivative in z of a function with ambient gradient g (n, d)."""

    def stretch(self, z: Tensor) -> float:
        """By how much a slope on the sphere may exceed that in z."""


class _Angles:
    """x = (cos z, sin z)."""

    def start(self, x: Tensor) -> Tensor:
        return torch.atan2(x[:, 1], x[:, 0])

    def points(self, z: Tensor) -> Tensor:
        return torch.stack([z.cos(), z.sin()], -1)

    def covector(self, z: Tensor, x: Tensor, g: Tensor) -> Tensor:
        return x[:, 0] * g[:, 1] - x[:, 1] * g[:, 0]

    def stretch(self, z: Tensor) -> float:
        return 1.0


class _Rays:
    """x = z / |z|."""

    def __init__(self, d: int) -> None:
        self.d = d

    def start(self, x: Tensor) -> Tensor:
        return x.flatten()

    def points(self, z: Tensor) -> Tensor:
        return normalise(z.reshape(-1, self.d))

    def covector(self, z: Tensor, x: Tensor, g: Tensor) -> Tensor:
        return (Sphere().tangent(x, g) / norm(z.reshape(-1, self.d))[:, None]).flatten()

    def stretch(self, z: Tensor) -> float:
        return norm(z.reshape(-1, self.d)).max().item()


def _descend(L: Landscape, x: Tensor, w: Tensor, tol: float, max_iter: int) -> tuple[Tensor, int]:
    """L-BFGS, begun anew where it ends because of far places in the chart, at which all slopes seem small."""
    chart: _Chart = _Angles() if x.shape[-1] == 2 else _Rays(x.shape[-1])
    options = {"gtol": tol * w.min().item(), "ftol": 0.0, "maxcor": 20}
    objective, done = _objective(L, w, chart), 0
    while True:
        limits = {"maxiter": max_iter - done, "maxfun": 2 * max_iter}
        start = chart.start(x).numpy()
        found = minimize(objective, start, jac=True, method="L-BFGS-B", options={**options, **limits})
        z = torch.from_numpy(found.x)
        x, done = chart.points(z), done + int(found.nit)
        if done >= max_iter or found.nit == 0 or chart.stretch(z) < FAR:
            return x, done


def _objective(L: Landscape, w: Tensor, chart: _Chart) -> Callable[[Array], tuple[float, Array]]:
    """E and its derivative at once, from one kernel matrix."""
    one = torch.ones_like(w)[:, None]

    def value_and_slope(coordinates: Array) -> tuple[float, Array]:
        z = torch.from_numpy(coordinates)
        x = chart.points(z)
        felt = L.kernel(x, x) @ (w[:, None] * torch.cat([one, x], -1))  # sums of k and of k x_j
        value = (w @ (felt[:, 0] / L.beta + L.potential(x))) / 2
        g = w[:, None] * (felt[:, 1:] + L.pull(x))
        return value.item(), chart.covector(z, x, g).numpy()

    return value_and_slope


# --- merging -------------------------------------------------------------------------------------------


class _Cloud(NamedTuple):
    """Places (n, d), masses (n,), and how many particles are in each (n,)."""

    x: Tensor
    w: Tensor
    size: Tensor


class _Gap(NamedTuple):
    """The radius within which particles were merged, and the distances on either side of it."""

    radius: float
    ends: tuple[float, float]


def _merged(L: Landscape, start: _Cloud, tol: float, radius: float | None) -> tuple[_Cloud, _Gap, bool]:
    """The first sound one of the merges, or the last of them if none is."""
    tree = _tree(start.x)
    heights = tree[:, 2]
    crowd = CROWD * _spacing(*start.x.shape)
    gaps = _descending(heights, crowd) if radius is None else [_at(heights, radius)]
    for gap in gaps:
        c = _settled(L, _gathered(start, tree, gap.radius), gap.radius)
        if sound := _is_sound(L, start, c, tol):
            break
    return c, gap, sound


def _settled(L: Landscape, c: _Cloud, radius: float) -> _Cloud:
    """Polished, and merged again as long as atoms meet."""
    while (n := len(c.x)) <= FEW:
        c = c._replace(x=_polished(L, c.x, c.w))
        c = _gathered(c, _tree(c.x), radius)
        if len(c.x) == n:
            break
    return c


def _is_sound(L: Landscape, before: _Cloud, after: _Cloud, tol: float) -> bool:
    """Whether the energy has not risen, and no atom of several particles would split."""
    rounding = ROUNDINGS * torch.finfo(after.x.dtype).eps
    if _energy(L, after.x, after.w) > _energy(L, before.x, before.w) + rounding * _terms(L, before):
        return False
    least = torch.linalg.eigvalsh(hessians(L, after.x, after.w)[1])[..., 0]
    return bool((least[after.size > 1] >= -tol).all())


def _terms(L: Landscape, c: _Cloud) -> Tensor:
    """The size of the terms of E, which may cancel."""
    return (c.w @ (L.kernel(c.x, c.x) @ c.w / L.beta + L.potential(c.x).abs())) / 2


def _tree(x: Tensor) -> Array:
    """Single linkage; no rows for one particle."""
    if len(x) == 1:
        return np.zeros((0, 4))
    return np.asarray(linkage(squareform(Sphere().pairwise(x, x).numpy(), checks=False), "single"))


def _gathered(c: _Cloud, tree: Array, radius: float) -> _Cloud:
    """Atoms at the centres of mass of what links up, heaviest first."""
    if len(c.x) == 1:
        return c
    label = torch.from_numpy(fcluster(tree, radius, "distance").astype(np.int64) - 1)
    m = int(label.max()) + 1
    mass, size = (torch.zeros(m, dtype=c.w.dtype).index_add(0, label, t) for t in (c.w, c.size))
    centre = torch.zeros(m, c.x.shape[-1], dtype=c.x.dtype).index_add(0, label, c.w[:, None] * c.x)
    order = torch.argsort(mass, descending=True, stable=True)
    return _Cloud(normalise(centre)[order], mass[order], size[order])


def _at(heights: Array, radius: float) -> _Gap:
    """Around the radius that is given; ``heights`` are the distances at which particles link up."""
    h, k = _ladder(heights), int(np.searchsorted(heights, radius, side="right"))
    return _Gap(radius, (float(h[k]), float(h[k + 1])))


def _descending(heights: Array, crowd: float) -> Iterable[_Gap]:
    """The widest gap of which the lower end is below ``crowd``, then the widest below that one, and so on."""
    h = np.unique(_ladder(heights))
    ratio, k = h[1:] / h[:-1], int((h[:-1] <= max(FLOOR, crowd)).sum())
    while k > 0:
        k = int(ratio[:k].argmax())
        yield _Gap(math.sqrt(h[k] * h[k + 1]), (float(h[k]), float(h[k + 1])))


def _ladder(heights: Array) -> Array:
    """From the floor to the largest distance there is."""
    return np.concatenate([[FLOOR], np.maximum(heights, FLOOR), [math.pi]])


def _spacing(n: int, d: int) -> float:
    """The side of a cube of dimension d - 1 that has a share 1/n of the area of the sphere."""
    area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
    return math.exp((area - math.log(n)) / (d - 1))


# --- polish --------------------------------------------------------------------------------------------


def _polished(L: Landscape, x: Tensor, w: Tensor) -> Tensor:
    """Newton steps for the positions as long as E or its gradient falls, down to rounding."""
    for _ in range(NEWTON):
        value, size = _energy(L, x, w).item(), _length(L, x, w)
        noise = 4 * torch.finfo(x.dtype).eps * abs(value)
        for y in _trials(L, x, w):
            change = _energy(L, y, w).item() - value
            if change < -noise or (change <= noise and _length(L, y, w) < size):
                x = y
                break
        else:
            return x
    return x


def _trials(L: Landscape, x: Tensor, w: Tensor) -> Iterator[Tensor]:
    """Newton steps and halves of them; then those of a particle that leans on the kink of a neuron."""
    leaning = replace(L, activation=_Beyond(L.activation))
    for own in (L, leaning):
        step = _newton(own, x, w)
        yield from (Sphere().exp(x, 0.5**k * step) for k in range(HALVINGS))


@dataclass(frozen=True)
class _Beyond(Activation):
    """sigma with the slope that it has a little further on."""

    sigma: Activation

    def __call__(self, z: Tensor) -> Tensor:
        return self.sigma(z)

    def derivative(self, z: Tensor) -> Tensor:
        return self.sigma.derivative(z + KINK)

    def primitive(self, z: Tensor) -> Tensor:
        return self.sigma.primitive(z)


def _length(L: Landscape, x: Tensor, w: Tensor) -> float:
    """The length of the gradient in L2(mu)."""
    g = Sphere().tangent(x, slope(L, x, w))
    return math.sqrt((w[:, None] * g.square()).sum().item())


def _newton(L: Landscape, x: Tensor, w: Tensor) -> Tensor:
    """A tangent field (n, d)."""
    second = second_variation(Particles(x, w=w, space=Sphere()), L.beta, L.a, L.omega, L.activation)
    F, (n, d) = second.frames, x.shape
    g = (F @ (w[:, None] * slope(L, x, w))[..., None]).flatten()
    values, vectors = torch.linalg.eigh(second.matrix)
    # Directions flatter than rounding are left alone, and none is climbed.
    firm = values.abs() > 1e-12 * values.abs().max()
    gain = torch.where(firm, 1 / torch.where(firm, values.abs(), 1.0), 0.0)
    c = -(vectors @ (gain * (vectors.mT @ g))).reshape(n, 1, d - 1)
    step: Tensor = (c @ F)[:, 0]
    return step
