"""The contract of an energy, tried out: one number per member of a batch, and a derivative that is right."""

from __future__ import annotations

import torch

from otflow.base import checks
from otflow.base.spaces import Euclidean
from otflow.base.tangent import Tangent
from otflow.energies.base import Energy
from otflow.measures import Measure, Particles, contract

LENGTHS = (0.1, 1.0, 10.0)  # of the moves whose second differences are held against bounds; chosen


def check(energy: Energy, mu: Measure) -> dict[str, float]:
    """Try out what flows and JKO steps ask of an energy; for energies of your own.

    The value has the shape of the batch; batches give what their members give, however many axes stand in
    front; nothing is changed or remembered; the differential is the derivative, found by differences; on
    particles in R^d second differences keep to `curvature_bounds`, which proofs of JKO steps rest on.

    Args:
        energy: yours.
        mu: one measure of the kind it is for, without batch.

    Returns the relative errors that were met. Raises `InputError` at the first broken promise.

    >>> import otflow as of
    >>> F = of.Potential(lambda x: x.square().sum(-1))
    >>> errors = of.energies.check(F, of.Particles([[1.0, 2.0], [0.0, 1.0]]))
    >>> max(errors.values()) < 1e-6
    True
    """
    checks.instance(energy, Energy, "energy")
    contract.admit(mu)
    with torch.no_grad():
        contract.shaped(energy, "value", [energy(mu)], [()], mu)
        value = contract.same_again(lambda nu: [energy(nu)], mu, energy)
        errors = {"batch": contract.as_members(lambda nu: [energy(nu)], mu, energy, contract.slack(mu))}
    slope = contract.same_again(energy.differential, mu, energy)
    contract.shaped(energy, "differential", slope, [c.shape for c in mu.coords], mu)
    u = contract.direction(mu)
    errors["batch of differentials"] = contract.as_members(
        energy.differential, mu, energy, contract.slack(mu)
    )
    with torch.no_grad():
        found = contract.gap(
            [contract.pairing(slope, u)], contract.difference(lambda nu: [energy(nu)], mu, u), value
        )
    limit = contract.tolerance(mu) + 10 * energy.precision
    rule = "its differential is not the slope of its value"
    remedy = "mend differential(mu), or leave it out; in the value, keep to torch and to what is smooth"
    errors["differential"] = contract.holds(found, limit, energy, rule, remedy)
    if isinstance(mu, Particles) and isinstance(mu.space, Euclidean):
        errors["curvature"] = _beyond(energy, mu, u, limit)
    return errors


def _beyond(energy: Energy, mu: Measure, u: Tangent, limit: float) -> float:
    """By how much second differences of short and long moves leave the bounds, relative to the values."""
    worst = 0.0
    for length in LENGTHS:
        v = u * length
        with torch.no_grad():
            values = [energy(mu.move(-v)), energy(mu), energy(mu.move(v))]
            second, size = values[0] - 2 * values[1] + values[2], mu.inner(v, v)
            low, high = (torch.as_tensor(b).to(second) for b in energy.curvature_bounds(mu))
            off = torch.maximum(low * size - second, second - high * size).clamp(min=0)
        whole = torch.stack([*(a.abs() for a in values), second.abs()]).amax(0)
        worst = max(worst, float(off / whole) if float(whole) > 0 else 0.0)
    rule = "its second differences leave its curvature_bounds"
    remedy = "pass curvature= as a number that no eigenvalue of D^2 is below, or mend curvature_bounds(mu)"
    return contract.holds(worst, limit, energy, rule, remedy)
