"""Tokens on the sphere and the attention that moves them, with Q = beta I and K = V = I."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import batch_shape
from otflow.base.spaces import Sphere
from otflow.fields import SoftmaxAttention, UnnormalisedAttention
from otflow.measures import Particles


def attention(beta: Any, d: int, *, normalised: bool = True) -> SoftmaxAttention | UnnormalisedAttention:
    """v(x) = int y exp(beta x.y) dmu(y), over int exp(beta x.y) dmu(y) if normalised (SA, else USA).

    On ``Particles(space=Sphere())`` it is projected to the tangent space, and the flow is, in the units of
    time of the paper, x_i' = P_i sum_j exp(beta x_i.x_j) x_j / Z_i with Z_i = sum_j exp(beta x_i.x_j) for SA
    and Z_i = n for USA (Geshkovski, Letrouit, Polyanskiy and Rigollet 2025, arXiv 2312.10794, equations (SA)
    and (USA)). For other Q, K, V use ``of.SoftmaxAttention(Q, K, V)`` on the same tokens.

    Args:
        beta: inverse temperature, a number or (*batch,) to match tokens (*batch, n, d).
        d: dimension of the ambient space.
        normalised: softmax (SA) rather than a plain sum (USA).

    >>> from otflow.papers.tokens.sphere import attention
    >>> import otflow as of
    >>> mu = of.Particles([[1.0, 0.0], [0.0, 1.0]], space=of.Sphere())
    >>> attention(0.0, 2)(0.0, mu)[0]
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    b = checks.tensor(beta, "beta").double()
    eye = torch.eye(checks.count(d, "d"), dtype=torch.float64)
    kind = SoftmaxAttention if normalised else UnnormalisedAttention
    return kind(b[..., None, None] * eye, eye, eye)


def circle(theta: Any) -> Particles:
    """Tokens (cos theta_i, sin theta_i) on the circle, from angles (*batch, n) in radians.

    There USA reads theta_i' = -1/n sum_j exp(beta cos(theta_i - theta_j)) sin(theta_i - theta_j), which at
    beta = 0 is Kuramoto's model of equal oscillators (arXiv 2312.10794, sections 7.1 and 7.2).

    >>> import torch
    >>> from otflow.papers.tokens.sphere import circle
    >>> circle([0.0, torch.pi]).x.round(decimals=6)
    tensor([[ 1.,  0.],
            [-1.,  0.]], dtype=torch.float64)
    """
    angle = checks.tensor(theta, "theta").double()
    if not angle.ndim or not angle.shape[-1]:
        checks.fail("theta.shape", tuple(angle.shape), "(*batch, n) is needed", "pass a list of angles")
    return Particles(torch.stack([angle.cos(), angle.sin()], -1), space=Sphere())


def angles(mu: Particles) -> Tensor:
    """theta_i = atan2(y_i, x_i) in (-pi, pi] of tokens on the circle, (*batch, n).

    >>> from otflow.papers.tokens.sphere import angles, circle
    >>> angles(circle([0.5, -2.0]))
    tensor([ 0.5000, -2.0000], dtype=torch.float64)
    """
    checks.instance(mu, Particles, "mu")
    if mu.d != 2:
        checks.fail(
            "mu.d",
            mu.d,
            "angles are of tokens in the plane",
            "pass Particles(x[..., :2] / x[..., :2].norm(dim=-1, keepdim=True), space=Sphere())",
        )
    return torch.atan2(mu.x[..., 1], mu.x[..., 0])


def uniform(n: int, d: int, *, rng: int | np.random.Generator, batch: tuple[int, ...] = ()) -> Particles:
    """n tokens drawn independently and uniformly on the unit sphere of R^d, for each member of a batch.

    >>> import numpy as np
    >>> from otflow.papers.tokens.sphere import uniform
    >>> uniform(5, 3, rng=np.random.default_rng(0), batch=(4,))
    Particles(n=5, d=3, batch=(4,), space=Sphere(atol=1e-06))
    """
    shape = (*batch_shape(batch), checks.count(n, "n"), checks.count(d, "d"))
    g = checks.generator(rng).standard_normal(shape)
    return Particles(g / np.linalg.norm(g, axis=-1, keepdims=True), space=Sphere())
