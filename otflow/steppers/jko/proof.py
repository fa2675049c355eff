"""Proofs that a minimiser of a step is the only one: where the step is strictly convex wherever one can be.

Any minimiser z of Phi(z) = F(z) + |z - mu|^2 / (2 tau) satisfies, for every trial y,

    |z - mu|^2 <= 2 tau (Phi(y) - inf F),

because F(z) >= inf F. Where D^2 F >= lambda and 1 + tau lambda > 0 on this ball, and y is stationary up to
the residual r, the minimiser is alone in it, and |y - z| <= |r| / (1 / tau + lambda).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, singledispatch

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.spaces import Euclidean
from otflow.energies import Potential
from otflow.energies.base import combined
from otflow.measures import Gaussian, Measure, Particles
from otflow.metrics import Wasserstein
from otflow.steppers.jko.base import MovementProblem

# Chosen: 1 + tau lambda has to be above, so that a relative residual of 1e-10 leaves 1e-4 at worst.
MARGIN = 1e-6
# Chosen: above the rounding of terms that cancel, also in single precision.
GUARD = 1e-6
# Chosen: what a number that is given to few digits may be off, relative to the curvatures of the step.
DIGITS = 1e-3
UNPROVED = (
    "the JKO step found a minimiser that is not proved to be the best one: give what is known, as in "
    "Potential(U, curvature=..., infimum=...) or Interaction(W, curvature=...), or take a smaller dt"
)


def proved(mu: Measure, problem: MovementProblem, end: Measure) -> Tensor:
    """Where a stationary point ``end`` is proved to be the only minimiser of the step, (*batch,)."""
    whole = convex(mu, problem) & optimal(mu, end)
    each = None if bool(whole.all()) else Separate.of(mu, problem)
    return whole if each is None or not each.bounded else whole | each.alone(end.coords[0]).all(-1)


def refuse_refuted(mu: Measure, problem: MovementProblem, met: Tensor, noise: Tensor) -> None:
    """Refuse a ``curvature`` of the user above what a search met, (*batch,), by more than noise."""
    given = [c for term, _ in problem.energy.pairs() if (c := getattr(term, "curvature", None)) is not None]
    if not given or not (isinstance(problem.metric, Wasserstein) and flat(mu)):
        return
    low = torch.as_tensor(problem.energy.curvature_bounds(mu)[0], dtype=met.dtype, device=met.device)
    low = low.expand(met.shape)
    size = low.abs() + met.abs() + 1 / problem.tau  # less is rounding, and does not matter to the step
    wrong = torch.isfinite(low) & (met < low - noise - DIGITS * size)
    if bool(wrong.any()):
        rule = f"D^2 F would be at least {float(low[wrong].max()):.6g}, and is {float(met[wrong].min()):.6g}"
        remedy = "pass a number that no eigenvalue of D^2 is below anywhere, or leave it out"
        checks.fail(
            "curvature", given[0] if len(given) == 1 else given, f"{rule} where the search met it", remedy
        )


def convex(mu: Measure, problem: MovementProblem) -> Tensor:
    """Where the step is strictly convex in all displacements, (*batch,)."""
    low, _ = problem.energy.curvature_bounds(mu)
    low = torch.as_tensor(low, dtype=mu.dtype, device=mu.device)
    good = 1 + problem.tau * low > MARGIN
    if not isinstance(problem.metric, Wasserstein):  # of another metric it is known only that it is positive
        good = (low >= 0) & problem.metric.quadratic
    return (good & flat(mu)).expand(mu.batch)


def flat(mu: Measure) -> bool:
    """Whether displacements add: geodesics on a sphere do not, and a torus has several ways to a place."""
    return not isinstance(mu, Particles) or isinstance(mu.space, Euclidean)


@singledispatch
def optimal(mu: Measure, end: Measure) -> Tensor:
    """Where mu is moved to ``end`` by an optimal map, if bounds on curvature hold along these only."""
    return torch.ones((), dtype=torch.bool, device=mu.device)


@optimal.register(Gaussian)
def _(mu: Gaussian, end: Gaussian) -> Tensor:
    """R' = T R for a semidefinite T, that is, R^T R' = R^T T R is semidefinite."""
    product = mu.root.mT.double() @ end.root.double()
    size = torch.linalg.matrix_norm(product)
    slack = 100 * torch.finfo(mu.dtype).eps ** 0.5 * size  # for what the search leaves; chosen
    skew = torch.linalg.matrix_norm(product - product.mT)
    low = torch.linalg.eigvalsh(product + product.mT)[..., 0] / 2
    return (skew <= slack) & (low >= -slack)


@dataclass(frozen=True)
class Separate:
    """A step of potentials alone: each particle minimises phi(z) = U(z) + |z - x|^2 / (2 tau) by itself."""

    mu: Particles
    tau: float
    pairs: list[tuple[Potential, float]]

    @classmethod
    def of(cls, mu: Measure, problem: MovementProblem) -> Separate | None:
        """The step, if it is of this kind."""
        pairs = [(term, c) for term, c in problem.energy.pairs() if isinstance(term, Potential)]
        alone = len(pairs) == len(problem.energy.pairs()) and all(c > 0 for _, c in pairs)
        if not (isinstance(mu, Particles) and alone and isinstance(problem.metric, Wasserstein) and flat(mu)):
            return None
        return cls(mu, problem.tau, pairs)

    @cached_property
    def infimum(self) -> Tensor:
        """A number that U is nowhere below, (*batch,) or ()."""
        return torch.stack(torch.broadcast_tensors(*(c * U.least(self.mu) for U, c in self.pairs))).sum(0)

    @property
    def bounded(self) -> bool:
        """Whether U is known to be bounded below, for some member."""
        return bool(torch.isfinite(self.infimum).any())

    def heights(self, z: Tensor) -> Tensor:
        """phi at points (*, n, d)."""
        return self.values(z) + (z - self.mu.x).square().sum(-1) / (2 * self.tau)

    def values(self, z: Tensor) -> Tensor:
        """U at points (*, n, d)."""
        found = torch.stack([c * U.values(z) for U, c in self.pairs]).sum(0)
        low, least = found.detach(), self.infimum[..., None]
        wrong = low < least - GUARD * (1 + low.abs() + least.abs())
        if bool(wrong.any()):
            rule = f"the potential is {float(low[wrong].min()):.6g} at a point that was met"
            checks.fail("infimum", float(least.max()), rule, "pass a number that it is nowhere below")
        return found

    def curvature(self, lower: Tensor, upper: Tensor) -> Tensor:
        """A lower bound of the eigenvalues of D^2 U on boxes with corners (*batch, n, d)."""
        low, _ = combined([(U.on_boxes(lower, upper), c) for U, c in self.pairs])
        return torch.as_tensor(low)

    def radius(self, y: Tensor) -> Tensor:
        """No minimiser is farther from x than this, (*batch, n), for any trial points y."""
        height = self.heights(y).detach() - self.infimum[..., None]
        return (2 * self.tau * height.clamp(min=0)).sqrt() * (1 + 1e-6)  # above rounding; chosen

    def alone(self, y: Tensor) -> Tensor:
        """Which particles have no other stationary point than y where a minimiser can be, (*batch, n)."""
        r = self.radius(y)[..., None]
        low = self.curvature(self.mu.x - r, self.mu.x + r)
        return torch.isfinite(r[..., 0]) & (1 + self.tau * low > MARGIN)
