"""Laws of the random weights of a head, and the tokens that they act on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.spaces import Sphere
from otflow.measures import Particles

LARGEST = 1e150  # its square is finite

Law = Callable[[np.random.Generator, tuple[int, ...]], tuple[Any, Any]]
Seed: TypeAlias = int | np.random.Generator


@dataclass(frozen=True, eq=False, init=False)
class GaussianWeights:
    """V = mean_V + sigma_V G and A = mean_A + W W'^T, with normal G (variance 1) and W, W' (sigma_A^2).

    Values and scores of one head; called with a generator and a shape it draws them. With the defaults
    sigma_V^2 = sigma_A^2 = 1/d a token and its image by V or A have norms alike.

    Args:
        d: dimension of tokens.
        sigma_V, sigma_A: deviations of entries, in [0, 1e150].
        mean_V, mean_A: a number, for that multiple of the identity, or (d, d).

    >>> import numpy as np
    >>> from otflow.papers.homogenized import GaussianWeights
    >>> law = GaussianWeights(64)
    >>> law.sigma_V**2 * 64, law.logit_scale(8.0), law.effective_beta(8.0)
    (1.0, 1.0, 8.0)
    >>> V, A = law(np.random.default_rng(0), (5, 2))
    >>> V.shape
    torch.Size([5, 2, 64, 64])

    Reference: Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978, the Gaussian law; means are ours.
    """

    d: int
    sigma_V: float
    sigma_A: float
    mean_V: Tensor | None
    mean_A: Tensor | None

    def __init__(
        self,
        d: int,
        sigma_V: float | None = None,
        sigma_A: float | None = None,
        *,
        mean_V: Any = None,
        mean_A: Any = None,
    ) -> None:
        d = checks.count(d, "d")
        own = {"sigma_V": _deviation(sigma_V, "sigma_V", d), "sigma_A": _deviation(sigma_A, "sigma_A", d)}
        means = {"mean_V": _mean(mean_V, "mean_V", d), "mean_A": _mean(mean_A, "mean_A", d)}
        for name, value in ({"d": d} | own | means).items():
            object.__setattr__(self, name, value)  # the class is frozen

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """V and A of shape (*shape, d, d), as matrices."""
        rng, size = checks.generator(rng), (*shape, self.d, self.d)
        V = self.sigma_V * normal(rng, size)
        A = self.sigma_A**2 * normal(rng, size) @ normal(rng, size).mT
        return _shifted(V, self.mean_V), _shifted(A, self.mean_A)

    def logit_scale(self, beta: float) -> float:
        """b = beta sigma_A^2 sqrt(d): scores of orthonormal tokens have variance b^2."""
        return inverse_temperature(beta) * self.sigma_A**2 * math.sqrt(self.d)

    def effective_beta(self, beta: float) -> float:
        """beta_eff = beta d sigma_A^2, the size of beta A x."""
        return inverse_temperature(beta) * self.sigma_A**2 * self.d


def _deviation(value: float | None, name: str, d: int) -> float:
    if value is None:
        return 1 / math.sqrt(d)
    if not 0 <= checks.number(value, name) <= LARGEST:
        checks.fail(
            name,
            value,
            f"a deviation is in [0, {LARGEST:g}]",
            f"pass {name}={1 / math.sqrt(d):.3g}, which is 1 / sqrt(d)",
        )
    return float(value)


def _mean(value: Any, name: str, d: int) -> Tensor | None:
    if value is None:
        return None
    M = checks.tensor(value, name).detach().double()
    if M.ndim == 0:
        M = M * torch.eye(d, dtype=torch.float64)
    if M.shape != (d, d):
        checks.fail(
            f"{name}.shape",
            tuple(M.shape),
            f"a number or ({d}, {d}) is needed",
            f"pass a number c for c I, or {name} of shape ({d}, {d})",
        )
    return M if bool((M != 0).any()) else None


def _shifted(M: Tensor, mean: Tensor | None) -> Tensor:
    return M if mean is None else M + mean


def normal(rng: np.random.Generator, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers."""
    return torch.from_numpy(rng.standard_normal(tuple(shape)))


def inverse_temperature(beta: float) -> float:
    """beta >= 0."""
    if not checks.number(beta, "beta") >= 0:
        rule, remedy = "an inverse temperature is >= 0", f"pass beta={-beta:g} and -A: A may have any sign"
        checks.fail("beta", beta, rule, remedy)
    return float(beta)


def tokens(x: Any, samples: int | None = None) -> Tensor:
    """Tokens (*batch, n, d) on the sphere, in float64, from an array or `Particles` of equal weights.

    With ``samples``, so many copies, as a new first axis.
    """
    if isinstance(x, Particles):
        if not x.uniform:
            checks.fail("x", repr(x), "all tokens have the same weight here", "leave out w")
        x = x.x
    one = Particles(checks.tensor(x, "x").detach().double(), space=Sphere()).x
    return one if samples is None else one.expand(checks.count(samples, "samples"), *one.shape)


def gaussian(weights: Any, beta: float) -> tuple[GaussianWeights, float]:
    """Weights and beta of a limit, or an error: it is known in closed form for Gaussian values only."""
    return checks.instance(weights, GaussianWeights, "weights"), inverse_temperature(beta)


def of_dimension(weights: Law, d: int) -> Law:
    """A law of weights for tokens of dimension d, or an error."""
    checks.function(weights, "weights")
    if isinstance(weights, GaussianWeights) and weights.d != d:
        checks.fail("weights.d", weights.d, f"tokens have dimension {d}", f"use GaussianWeights({d})")
    return weights
