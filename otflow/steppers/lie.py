"""Exponential steps for laws that move by affine fields."""

from __future__ import annotations

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.linalg import matrix_exp, product
from otflow.base.tangent import leading
from otflow.fields import VelocityField
from otflow.measures import Gaussian, Measure
from otflow.steppers.base import Memory, Step, Stepper


class Lie(Stepper):
    """S -> exp(hB) S exp(hB)^T and the mean likewise, for Gaussians that move by x -> b + B(x - mean).

    The field is frozen over a step and followed exactly. The rank of the covariance never changes, however
    long the step; an explicit step, (I + hB) S (I + hB)^T, may destroy it or overshoot. Order 1.

    >>> import otflow as of
    >>> mu = of.Gaussian([0.0], root=[[1.0]])
    >>> of.flow(mu, of.Perceptron([[-1.0]], [[1.0]], activation=None), of.Lie(), t1=9.0, dt=9.0).final.root
    tensor([[0.0001]], dtype=torch.float64)
    """

    def step(self, field: VelocityField, t: Tensor, dt: Tensor, mu: Measure, memory: Memory) -> Step:
        if not isinstance(mu, Gaussian):
            checks.fail("mu", repr(mu), "Lie steps need a field that is affine, on a Gaussian", "use Euler()")
        (b, _), _ = field.evaluate(t, mu)
        B = field.matrix(t, mu).expand(*mu.batch, mu.d, mu.d)
        # Augmented by b, one exponential moves points and the mean: exp(h [[B, b], [0, 0]]).
        rows = torch.nn.functional.pad(torch.cat([B, b[..., None]], -1), (0, 0, 0, 1))
        flow = matrix_exp(leading(dt, rows) * rows)
        moved = mu.at([mu.mean + flow[..., :-1, -1], product(flow[..., :-1, :-1], mu.root)])
        return Step(moved, dt, dt, Memory())

    def __repr__(self) -> str:
        return "Lie()"
