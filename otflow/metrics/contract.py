"""The contract of a metric, tried out: an inner product, and the gradient that belongs to it."""

from __future__ import annotations

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.tangent import Tangent
from otflow.measures import Gaussian, Measure, Particles, contract
from otflow.metrics.base import Metric


def check(metric: Metric, mu: Measure) -> dict[str, float]:
    """Try out what steepest descent asks of a metric; for metrics of your own.

    <u, v> is symmetric and positive; the gradient g of a covector c has <g, u> = c(u) for all u; batches give
    what their members give; nothing is changed or remembered.

    Args:
        metric: yours.
        mu: a cloud or a Gaussian, without batch.

    Returns the relative errors that were met. Raises `InputError` at the first broken promise.

    >>> import otflow as of
    >>> errors = of.metrics.check(of.Wasserstein(), of.Particles([[1.0, 2.0], [0.0, 1.0]]))
    >>> max(errors.values()) < 1e-9
    True
    """
    checks.instance(metric, Metric, "metric")
    contract.admit(mu)
    rule, remedy = "tangents and covectors have one shape on clouds and Gaussians only", "use Particles"
    checks.require(isinstance(mu, Particles | Gaussian), "mu", mu, rule, remedy)
    with torch.no_grad():
        return _tried(metric, mu)


def _tried(metric: Metric, mu: Measure) -> dict[str, float]:
    limit = contract.slack(mu)
    one = contract.direction(mu)
    other = one.map(lambda a: a.flip(0) + a)

    def tangents(nu: Measure) -> list[Tangent]:
        """The same two for every member, up to what its space makes of them."""
        return [nu.tangent(w.map(lambda a: a.expand(*nu.batch, *a.shape))) for w in (one, other)]

    def products(nu: Measure) -> list[Tensor]:
        u, v = tangents(nu)
        return [metric.inner(nu, u, v), metric.inner(nu, v, u), metric.inner(nu, u, u)]

    def slope(nu: Measure) -> Tangent:
        return metric.gradient(nu, tangents(nu)[1])

    contract.shaped(metric, "inner product", products(mu), [()] * 3, mu)
    contract.shaped(metric, "gradient", slope(mu), mu.shapes(), mu)
    uv, vu, uu = contract.same_again(products, mu, metric)
    checks.require(
        bool(uu > 0),
        "<u, u>",
        float(uu),
        "a metric is positive",
        "let inner(mu, u, u) be positive for u != 0",
    )
    g, (u, c) = Tangent(contract.same_again(slope, mu, metric)), tangents(mu)
    odd, off = (
        contract.gap([uv], [vu], [uu]),
        contract.gap([metric.inner(mu, g, u)], [contract.pairing(c, u)], [uu]),
    )
    rule = "<gradient(c), u> is not c(u)"
    return {
        "symmetry": contract.holds(odd, limit, metric, "<u, v> is not <v, u>", "make inner symmetric"),
        "gradient": contract.holds(off, limit, metric, rule, "make gradient the inverse of inner"),
        "batch": contract.as_members(lambda nu: [*products(nu), *slope(nu)], mu, metric, limit),
    }
