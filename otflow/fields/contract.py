"""The contract of a velocity field, tried out: any axes in front, and both directions of differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import InputError
from otflow.base.tangent import Tangent
from otflow.fields.base import Carry, VelocityField, as_time
from otflow.measures import Measure, contract

LATER = 1e-2  # how much the clock of the second member of a batch is ahead of the first; chosen


def check(field: VelocityField, mu: Measure, *, t: float = 0.0) -> dict[str, float]:
    """Try out what steppers, stability and training ask of a field; for fields of your own.

    Velocities are finite, with the shapes and the precision of the measure; batches give what their members
    give, however many axes stand in front, and whether they have one clock or one each; nothing is changed or
    remembered; `jvp` is the derivative, found by differences, and `vjp` its transpose.

    Args:
        field: yours.
        mu: one measure of the kind it is for, without batch.
        t: at what time; no jump lies between it and t + 0.01.

    Returns the relative errors that were met. Raises `InputError` at the first broken promise.

    >>> import otflow as of
    >>> field = of.SoftmaxAttention([[1.0]], [[1.0]], [[-1.0]])
    >>> errors = of.fields.check(field, of.Particles([[1.0], [2.0]]))
    >>> sorted(errors), max(errors.values()) < 1e-6
    (['batch', 'clocks', 'jvp', 'vjp'], True)
    """
    checks.instance(field, VelocityField, "field")
    contract.admit(mu)
    with torch.no_grad():
        v, carry = field.evaluate(as_time(t, mu), mu)
        contract.shaped(field, "velocity", v, mu.shapes(), mu)
        field.insist(_carry(carry), v)
        noise = 0.0 if carry is None else 10 * carry.residual  # of an inner solver
        contract.same_again(lambda nu: field(t, nu), mu, field)
        limit = noise + contract.slack(mu)
        errors = {"batch": contract.as_members(lambda nu: field(t, nu), mu, field, limit)}
        errors["clocks"] = _clocks(field, mu, t, limit)
    return errors | _derivatives(field, mu, t, v, noise)


def _clocks(field: VelocityField, mu: Measure, t: float, limit: float) -> float:
    """How far members with clocks of their own, as in adaptive runs, are from each alone at its time."""
    two = contract.pair(mu)
    times = as_time(torch.tensor([t, t + LATER], dtype=torch.float64), mu)
    rule = f"times of shape {tuple(times.shape)} must give what members give at theirs"
    remedy = "let t broadcast from the left, torch.cos(t)[..., None, None] * x"
    alone = [
        torch.stack(p) for p in zip(*(field(s, one) for s, one in zip(times, two, strict=True)), strict=True)
    ]
    try:
        found = [p.expand(q.shape) for p, q in zip(field(times, two), alone, strict=True)]
    except InputError:
        raise
    except (RuntimeError, ValueError) as error:  # shapes that do not match, or a number wanted of two clocks
        checks.fail(type(field).__name__, error, rule, remedy)
    return contract.holds(contract.gap(found, alone), limit, field, rule, remedy)


def _carry(carry: Any) -> Carry | None:
    rule, remedy = "a Carry or None is needed", "put what the next call needs into Carry(state=...)"
    good = carry is None or isinstance(carry, Carry)
    checks.require(good, "the second of field.evaluate", type(carry).__name__, rule, remedy)
    return carry


def _derivatives(
    field: VelocityField, mu: Measure, t: float, v: Sequence[Tensor], noise: float
) -> dict[str, float]:
    u = contract.direction(mu)
    dv = field.jvp(t, mu, u)
    with torch.no_grad():
        expected = contract.difference(lambda nu: field(t, nu), mu, u)
    limit = contract.tolerance(mu) + noise / contract.step(mu)
    floor = [1e-4 * c for c in mu.coords]  # where velocities cancel, differences are rounding
    remedy = "compute in torch from the coordinates, without .item(), .detach(), numpy or branches on values"
    rule = "jvp is not the derivative of the velocity"
    forward = contract.holds(contract.gap(dv, expected, [*v, *floor]), limit, field, rule, remedy)
    c = Tangent(v)
    back = field.vjp(t, mu, c)
    pairings = [contract.pairing(c, dv)], [contract.pairing(back, u)]
    rule = "vjp is not the transpose of jvp"
    size = [contract.pairing(c, c), 1e-4 * contract.pairing(mu.coords, mu.coords)]
    return {"jvp": forward, "vjp": contract.holds(contract.gap(*pairings, size), limit, field, rule, remedy)}
