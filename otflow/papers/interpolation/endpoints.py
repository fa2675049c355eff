"""Sources and targets of an interpolation, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from otflow.base import checks
from otflow.base.numbers import Array
from otflow.base.spaces import Sphere
from otflow.measures import Particles

MOST = 9  # atoms of a target


@dataclass(frozen=True)
class Target:
    """Atoms x (M, d) of masses w (M,)."""

    x: Array
    w: Array

    def nearest(self, mu: Particles) -> tuple[float, Array]:
        """The largest angle between points of mu and the atom nearest to each; masses at each atom."""
        mass, x = mu.w.numpy(), mu.x.numpy()
        apart = np.linalg.norm(x[:, None] - self.x, axis=2)
        k = apart.argmin(1)
        worst = float(apart.min(1)[mass > 0].max())
        angle = 2 * float(np.arcsin(min(worst / 2, 1.0)))
        return angle, np.bincount(k, weights=mass, minlength=len(self.x)).astype(np.float64)

    def equals(self, other: Target) -> bool:
        return self.x.shape == other.x.shape and bool(
            np.allclose(self.x, other.x, 0, 1e-9) and np.allclose(self.w, other.w, 0, 1e-9)
        )


def dimension(mu: Any, name: str) -> Particles:
    """Particles on a sphere of dimension at least two, without batch axes, in float64 and without graph."""
    checks.instance(mu, Particles, name)
    if not isinstance(mu.space, Sphere):
        rule = "measures on the unit sphere are needed"
        checks.fail(f"{name}.space", mu.space, rule, "pass space=Sphere()")
    if mu.batch:
        checks.fail(
            f"{name}.x.shape",
            tuple(mu.x.shape),
            "one measure is needed, (n, d)",
            f"pass {name}[0], {name}[1], ... in a list",
        )
    if mu.d < 3:
        rule = "on a circle points cannot pass each other, so that their order stays; d >= 3 is needed"
        checks.fail(f"{name}.d", mu.d, rule, "embed the circle in a sphere of R^3")
    weights = None if mu.uniform else mu.w.detach().cpu().double()
    label = None if mu.label is None else mu.label.detach().cpu()
    x = checks.finite(mu.x.detach().cpu().double(), f"{name}.x")
    return Particles(x, w=weights, label=label, space=mu.space)


def sources_of(sources: Any) -> list[Particles]:
    """At least one measure, all of one dimension."""
    if isinstance(sources, Particles) or not isinstance(sources, Sequence) or isinstance(sources, str):
        checks.fail("sources", f"{sources!r:.60}", "a list of measures is needed", "pass [mu, nu, ...]")
    if not len(sources):
        checks.fail("sources", sources, "at least one measure is needed", "pass [mu, nu, ...]")
    mus = [dimension(mu, f"sources[{i}]") for i, mu in enumerate(sources)]
    dims = [mu.d for mu in mus]
    if len(set(dims)) > 1:
        checks.fail("dimensions of sources", dims, "they must be the same", "embed them in one space")
    return mus


def targets_of(targets: Any, mus: list[Particles]) -> list[Target]:
    """A target for every source, on the same sphere."""
    single = isinstance(targets, Particles | str) or getattr(targets, "ndim", 1) == 0
    if single or not hasattr(targets, "__len__"):
        rule = "a target for each source is needed"
        checks.fail("targets", f"{targets!r:.60}", rule, "pass a list of them")
    if len(targets) != len(mus):
        rule = f"there are {len(mus)} sources"
        checks.fail("len(targets)", len(targets), rule, "pass one target for each of them")
    return [_target(y, f"targets[{i}]", mus[i]) for i, y in enumerate(targets)]


def _target(value: Any, name: str, mu: Particles) -> Target:
    if isinstance(value, Particles):
        nu = dimension(value, name)
        kept = nu.w > 0
        x, w = _merged(nu.x[kept].numpy(), nu.w[kept].numpy())
    else:
        x, w = on_sphere(value, name)[None], np.ones(1)
    if x.shape[1] != mu.d:
        rule = f"the sources have d = {mu.d}"
        checks.fail(f"{name}.d", x.shape[1], rule, f"pass a target with {mu.d} coordinates")
    if len(x) > MOST:
        checks.fail(
            f"{name}.n",
            len(x),
            f"a target of at most {MOST} atoms is needed",
            f"pass the first {MOST} atoms, or call interpolate for parts of the target",
        )
    if len(x) > (points := int((mu.w > 0).sum())):
        rule = f"its source has {points} points"
        checks.fail(f"{name}.n", len(x), rule, "take fewer atoms, or more points")
    return Target(x, w)


def _merged(x: Array, w: Array) -> tuple[Array, Array]:
    """Without repetition: atoms at one place are one, of the sum of their masses."""
    first = np.array([int(np.argmax(np.abs(x - y).max(1) < 1e-9)) for y in x])
    kept = np.unique(first)
    return x[kept], np.bincount(first, weights=w)[kept]


def on_sphere(value: Any, name: str) -> Array:
    """One point (d,) of the sphere, cleaned of rounding."""
    point = checks.tensor(value, name).detach().cpu().double()
    if point.ndim != 1 or not len(point):
        checks.fail(
            f"{name}.shape",
            tuple(point.shape),
            "one point (d,) is needed",
            f"pass {name}[0], or Particles({name}, space=Sphere()) for several",
        )
    length = float(point.norm())
    if abs(length - 1) > 1e-6:
        checks.fail(
            f"|{name}|", length, "points lie on the unit sphere within 1e-6", f"pass {name} / {length:.6g}"
        )
    out: Array = (point / length).numpy()
    return out


def same(mus: list[Particles], aims: list[Target]) -> list[int]:
    """Sources without repetition; an error if two that are the same measure have different targets."""
    chosen: list[int] = []
    for i, mu in enumerate(mus):
        twin = next((j for j in chosen if _equal(mu, mus[j])), None)
        if twin is None:
            chosen.append(i)
        elif not aims[i].equals(aims[twin]):
            both, rule = f"sources[{twin}], sources[{i}]", "one flow takes a measure to one place"
            remedy = "give them one target, or change one of them"
            checks.fail(both, "the same measure", f"{rule}, and their targets differ", remedy)
    return chosen


def _equal(mu: Particles, nu: Particles) -> bool:
    one, other = _atoms(mu), _atoms(nu)
    return one.shape == other.shape and bool(np.abs(one - other).max() < 1e-12)


def _atoms(mu: Particles) -> Array:
    """Points and their masses in order, without those that have none, each point once, (n, d + 1)."""
    x, k = np.unique(mu.x[mu.w > 0].numpy(), axis=0, return_inverse=True)
    out: Array = np.c_[x, np.bincount(k.ravel(), weights=mu.w[mu.w > 0].numpy())]
    return out
