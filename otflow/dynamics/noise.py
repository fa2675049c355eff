"""Brownian paths and the noise that they drive."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.parameters import Derived
from otflow.base.tangent import Tangent
from otflow.fields.weights import apply
from otflow.measures import Gaussian, Measure, Particles


class BrownianPath:
    """A Brownian motion W(t), t >= 0, that anyone can query at any time and get the same answer.

    The path is a tree of Brownian bridges: unit increments, then midpoints of halves, down to
    2^-depth, below which it is linear. Every normal variable is drawn from a seed of its own (its
    place in the tree), so the path does not depend on who asked for what before: two runs share it,
    and a run with half the step sees the same path refined.

    Args:
        rng: a seed or a `numpy.random.Generator`, from which a seed is drawn.
        shape: shape of W(t), such as (n, d) for independent and (d,) for common noise.

    >>> import numpy as np
    >>> from otflow.dynamics import BrownianPath
    >>> path = BrownianPath(0, (2,))
    >>> coarse = path.increment(0.0, 0.5)
    >>> fine = path.increment(0.0, 0.25) + path.increment(0.25, 0.5)
    >>> bool(np.allclose(coarse, fine, atol=1e-15))
    True
    """

    def __init__(
        self, rng: int | np.random.Generator, shape: int | tuple[int, ...], *, depth: int = 30
    ) -> None:
        source = checks.generator(rng)
        self.seed = int(rng) if isinstance(rng, int | np.integer) else int(source.integers(2**63))
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.depth = checks.count(depth, "depth")
        self._integers: list[np.ndarray] = [np.zeros(self.shape)]  # W at 0, 1, 2, ...
        self._last = (0.0, self._integers[0])
        self._midpoints: dict[
            int, tuple[int, np.ndarray]
        ] = {}  # last midpoint per level: queries move on slowly

    def __call__(self, t: float) -> np.ndarray:
        """W(t), an array of your own."""
        checks.require(
            math.isfinite(t) and t >= 0,
            "t",
            t,
            "a Brownian path starts at 0",
            "pass t0=0.0 to flow, and a field of t - t0",
        )
        cell, rest = int(t), t - int(t)
        left, right = self._integer(cell), self._integer(cell + 1)
        for level in range(1, self.depth + 1):
            if rest == 0.0:
                return left.copy()  # the path is shared: nobody may edit it
            cell, rest = 2 * cell, 2 * rest
            middle = self._midpoint(level, cell, left, right)
            if rest >= 1.0:
                cell, rest, left = cell + 1, rest - 1.0, middle
            else:
                right = middle
        return np.asarray(left + rest * (right - left))

    def __repr__(self) -> str:
        return f"BrownianPath({self.seed}, {self.shape})"

    def increment(self, a: float, b: float) -> np.ndarray:
        """W(b) - W(a)."""
        start = self._last[1] if a == self._last[0] else self(a)  # runs ask for one step after the other
        self._last = (b, self(b))
        return np.asarray(self._last[1] - start)

    def _integer(self, k: int) -> np.ndarray:
        while len(self._integers) <= k:
            self._integers.append(self._integers[-1] + self._normal(0, len(self._integers)))
        return self._integers[k]

    def _midpoint(self, level: int, cell: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """W in the middle of a cell of width 2^(1 - level)."""
        known = self._midpoints.get(level)
        if known is None or known[0] != cell:
            spread = math.sqrt(2.0 ** (1 - level)) / 2
            known = (cell, (left + right) / 2 + spread * self._normal(level, cell))
            self._midpoints[level] = known
        return known[1]

    def _normal(self, level: int, cell: int) -> np.ndarray:
        key = np.random.SeedSequence(self.seed, spawn_key=(level, cell))
        return np.random.Generator(np.random.PCG64(key)).standard_normal(self.shape)


class Noise(ABC):
    """sigma(t, mu) dW in the sense of Ito, for Euler-Maruyama steps.

    Subclass it for noise that depends on the state: give `increment`, and `shape` if W is not (n, d).
    Pass a `path` to share it between runs, or an `rng` to draw a new one.

    >>> import otflow as of
    >>> class Geometric(of.dynamics.Noise):
    ...     def increment(self, t, mu, dW):
    ...         return of.Tangent([mu.x * dW])
    >>> noise = Geometric(rng=0)
    """

    def __init__(
        self, *, path: BrownianPath | None = None, rng: int | np.random.Generator | None = None
    ) -> None:
        rule = "exactly one of them says where randomness comes from"
        remedy = "pass rng=0, say, or path=BrownianPath(rng, shape)"
        checks.require((path is None) != (rng is None), "path, rng", (path, rng), rule, remedy)
        self.path: BrownianPath | None = None if path is None else checks.instance(path, BrownianPath, "path")
        self.rng = rng

    @abstractmethod
    def increment(self, t: Tensor, mu: Measure, dW: Tensor) -> Tangent:
        """The displacement of mu caused by the increment dW of the path."""

    def shape(self, mu: Measure) -> tuple[int, ...]:
        """The shape of dW for this measure."""
        return tuple(mu.coords[0].shape)

    def parameters(self) -> Iterator[Tensor]:
        """Tensors that a flow may be differentiated in."""
        return iter(())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source()})"

    def _source(self) -> str:
        if self.path is not None:
            return f"path={self.path!r}"
        return f"rng={self.rng if isinstance(self.rng, int) else 'Generator'}"

    def bind(self, mu: Measure) -> BrownianPath:
        """The path that will drive mu: the given one, checked, or a new one."""
        shape = self.shape(mu)
        if self.rng is not None:
            return BrownianPath(self.rng, shape)
        path = self.path
        if path is None or path.shape not in (shape, shape[len(mu.batch) :]):
            rule, remedy = f"this noise on this measure needs {shape}", f"use BrownianPath(rng, {shape})"
            checks.fail("path.shape", None if path is None else path.shape, rule, remedy)
        return path


class Scaled(Noise):
    """sigma dW with a constant sigma, a number or a (d, d) matrix."""

    sigma = Derived[Tensor]()

    def __init__(
        self, sigma: Any, *, path: BrownianPath | None = None, rng: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(path=path, rng=rng)
        self.sigma = sigma
        rule = "a number or a (d, d) matrix is needed"
        checks.require(
            self.sigma.ndim in (0, 2),
            "sigma.shape",
            self.sigma.shape,
            rule,
            "pass a number, or torch.diag(sigma) for one number per coordinate",
        )

    def parameters(self) -> Iterator[Tensor]:
        return iter((self.sigma,))

    def bind(self, mu: Measure) -> BrownianPath:
        d = mu.coords[0].shape[-1]
        if self.sigma.ndim and tuple(self.sigma.shape) != (d, d):
            rule = f"tokens have dimension {d}"
            checks.fail("sigma.shape", tuple(self.sigma.shape), rule, f"pass a ({d}, {d}) matrix")
        return super().bind(mu)

    def __repr__(self) -> str:
        sigma = f"{self.sigma.item():g}" if self.sigma.ndim == 0 else f"matrix={tuple(self.sigma.shape)}"
        return f"{type(self).__name__}({sigma}, {self._source()})"

    def scaled(self, dW: Tensor) -> Tensor:
        sigma = self.sigma.to(dW)
        return sigma * dW if sigma.ndim == 0 else apply(sigma, dW)


class IndependentNoise(Scaled):
    """sigma dW_i for each token, with independent W_i; sigma a number or a (d, d) matrix."""

    def increment(self, t: Tensor, mu: Measure, dW: Tensor) -> Tangent:
        return mu.tangent(Tangent([self.scaled(dW)]))

    def shape(self, mu: Measure) -> tuple[int, ...]:
        if not isinstance(mu, Particles):
            rule = "independent noise blurs a law, which only particles can sample"
            remedy = "use Particles; for a density this noise is the gradient flow of Entropy"
            checks.fail("mu", repr(mu), rule, remedy)
        return super().shape(mu)


class CommonNoise(Scaled):
    """sigma dW, the same for every token: the law itself is random. sigma a number or a (d, d) matrix.

    A path of shape (d,) is shared by all members of a batch; one of shape (*batch, d) gives each its own.
    """

    def increment(self, t: Tensor, mu: Measure, dW: Tensor) -> Tangent:
        return shift(mu, self.scaled(dW[..., None, :])[..., 0, :])

    def shape(self, mu: Measure) -> tuple[int, ...]:
        return (*mu.batch, mu.coords[0].shape[-1])


@singledispatch
def shift(mu: Measure, b: Tensor) -> Tangent:
    """The tangent that translates mu by b, (*batch, d)."""
    checks.fail(
        "mu", repr(mu), "common noise translates Particles and Gaussians", "pass Particles(*mu.nodes())"
    )


@shift.register(Particles)
def _(mu: Particles, b: Tensor) -> Tangent:
    return mu.tangent(Tangent([b[..., None, :].expand(mu.x.shape)]))


@shift.register(Gaussian)
def _(mu: Gaussian, b: Tensor) -> Tangent:
    return Tangent([b, torch.zeros_like(mu.root)])
