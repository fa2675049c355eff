"""Token fields, which give a velocity at every point, whether a token is there or not."""

from __future__ import annotations

from abc import abstractmethod
from functools import singledispatch
from typing import Any, NoReturn

from torch import Tensor

from otflow.base import checks
from otflow.base.tangent import Tangent
from otflow.fields.base import Carry, VelocityField, as_time, refuse_clocks
from otflow.measures import Gaussian, Measure, Particles


class TokenField(VelocityField):
    """A field x -> v(t, mu, x), given by its values at any points; some are affine on Gaussians."""

    @abstractmethod
    def velocity_at(
        self, t: Tensor, mu: Particles, points: Tensor, label: Tensor | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        """Values at ``points`` (*batch, m, d), before projection to the space."""

    def closure(self, t: Tensor, mu: Gaussian) -> Tangent:
        """(b, BR) when the field is the affine x -> b + B(x - mean) on the Gaussian mu."""
        self.refuse(mu)

    def refuse(self, mu: Gaussian) -> NoReturn:
        """Say that this field is not affine on Gaussians."""
        remedy = "use Particles, or GaussianProjection(field) for the nearest motion among Gaussians"
        checks.fail("mu", repr(mu), f"{type(self).__name__} does not keep Gaussians Gaussian", remedy)

    def evaluate(self, t: Tensor, mu: Measure, carry: Carry | None = None) -> tuple[Tangent, Carry | None]:
        try:
            return evaluate(mu, self, t, carry)
        except (RuntimeError, ValueError) as error:
            refuse_clocks(self, t, mu, error)
            raise

    def at(self, t: float | Tensor, mu: Measure, points: Any, label: Any = None) -> Tensor:
        if not isinstance(mu, Particles):
            checks.fail(
                "mu",
                repr(mu),
                "velocities at other points need a cloud of tokens",
                "pass Particles(*mu.nodes())",
            )
        points = checks.alike(checks.tensor(points, "points"), "points", mu.x, "the measure")
        if points.ndim < 2 or points.shape[-1] != mu.d:
            checks.fail(
                "points.shape",
                tuple(points.shape),
                f"(*batch, m, {mu.d}) is needed",
                f"pass points of shape (m, {mu.d}), points[None] for one",
            )
        if label is not None:
            label = _labels(checks.tensor(label, "label"), points)
        v, carry = _values(self, as_time(t, mu), mu, points, label, None)
        self.insist(carry, Tangent([v]))
        return mu.space.tangent(points, v)


@singledispatch
def evaluate(mu: Measure, field: TokenField, t: Tensor, carry: Carry | None) -> tuple[Tangent, Carry | None]:
    """The velocity of a token field on each kind of measure."""
    checks.fail(
        "mu", repr(mu), f"{type(field).__name__} moves Particles and Gaussians", "use Particles(*mu.nodes())"
    )


@evaluate.register(Particles)
def _(mu: Particles, field: TokenField, t: Tensor, carry: Carry | None) -> tuple[Tangent, Carry | None]:
    v, carry = _values(field, t, mu, mu.x, mu.label, carry)
    return mu.tangent(Tangent([v.expand(mu.x.shape)])), carry


def _values(
    field: TokenField, t: Tensor, mu: Particles, points: Tensor, label: Tensor | None, carry: Carry | None
) -> tuple[Tensor, Carry | None]:
    """Values in the dimension of the tokens, where matrices may act on them."""
    if not mu.space.linear:
        rule = f"{type(field).__name__} applies matrices to tokens, which would jump where coordinates wrap"
        checks.fail("space", mu.space, rule, "use Sphere(), or an Interaction that is periodic")
    v, carry = field.velocity_at(t, mu, points, label, carry)
    return _full(v, mu.d), carry


@evaluate.register(Gaussian)
def _(mu: Gaussian, field: TokenField, t: Tensor, carry: Carry | None) -> tuple[Tangent, Carry | None]:
    mean, root = field.closure(t, mu)
    return Tangent([_full(mean, mu.d).expand(mu.mean.shape), root.expand(mu.root.shape)]), None


def _full(v: Tensor, d: int) -> Tensor:
    if v.shape[-1] != d:
        rule = f"a field of its own needs values in dimension {d}"
        remedy = "put the head into MultiHead(heads, mix=...), which maps it back"
        checks.fail("V.shape", f"({v.shape[-1]}, {d})", rule, remedy)
    return v


def _labels(label: Tensor, points: Tensor) -> Tensor:
    rule = f"one label per point is needed, {tuple(points.shape[:-1])}"
    return checks.expanded(
        label.double(), points.shape[:-1], "label", rule, f"pass a label of shape {tuple(points.shape[:-1])}"
    )
