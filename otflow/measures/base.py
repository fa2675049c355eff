"""The base of all measures: what fields, metrics and steppers need to know of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.tables import table
from otflow.base.tangent import Tangent, align

Change: TypeAlias = Callable[[Tensor], Tensor]
Random: TypeAlias = int | np.random.Generator


class Measure(ABC):
    """A probability measure given by finitely many numbers, its coordinates.

    Coordinates are moved by tangents, u -> (id + u)_# mu. Everything that depends on the
    representation is one of the methods below; ``*batch`` leads every shape.

    It is built of copies, and it is made of the tensors that it shows: to edit ``mu.x`` in place is to edit
    mu, and views of it such as ``mu.detach()``, ``mu.expand(3)`` and ``mu.at(...)``, but nothing that was
    computed from it: flows, energies with a target and plans keep copies.
    """

    names: ClassVar[tuple[str, ...]] = ()  # of the coordinates

    @property
    @abstractmethod
    def coords(self) -> Tangent:
        """The numbers that change along a flow."""

    @property
    @abstractmethod
    def batch(self) -> torch.Size:
        """Shape of the leading axes, which hold independent problems."""

    @abstractmethod
    def at(self, coords: Sequence[Tensor]) -> Self:
        """The same measure with other coordinates (unchecked; extra leading axes are welcome)."""

    @abstractmethod
    def nodes(self) -> tuple[Tensor, Tensor]:
        """Quadrature: points (*batch, n, d) and weights (*batch, n), differentiable in the coordinates."""

    def probe(self) -> Tensor:
        """The first of the nodes, (*batch, 1, d)."""
        return self.nodes()[0][..., :1, :]

    @property
    def requires_grad(self) -> bool:
        """Whether the nodes are differentiated; measures that build nodes say so without building any."""
        return any(a.requires_grad for a in (*self.coords, *self.nodes()))

    @abstractmethod
    def inner(self, u: Tangent, v: Tangent) -> Tensor:
        """The inner product of L2(mu), shape (*batch,)."""

    @abstractmethod
    def sharp(self, covector: Tangent) -> Tangent:
        """The Riesz map: the tangent g with inner(g, u) = <covector, u> for all tangents u.

        ``covector`` is the derivative of a function with respect to the coordinates.
        """

    @abstractmethod
    def move(self, u: Tangent) -> Self:
        """(id + u)_# mu, staying on the space."""

    def exp(self, u: Tangent) -> Self:
        """(id + u)_# mu along geodesics of the space, so that |u| is the length of the way; u is tangent."""
        return self.move(u)

    @abstractmethod
    def sample(self, n: int, *, rng: Random) -> Measure:
        """`Particles` of equal weight, n independent draws from each member of the batch: (*batch, n, d).

        Args:
            n: how many.
            rng: a seed or a `numpy.random.Generator`; the same seed draws the same numbers.
        """

    def shapes(self) -> list[torch.Size]:
        """The shapes of the pieces of a tangent; those of the coordinates, except on grids."""
        return [c.shape for c in self.coords]

    def expand(self, *batch: int) -> Self:
        """The same measure for every member of a batch; axes broadcast as those of arrays do, without copies.

        >>> from otflow import Particles
        >>> Particles([[0.0], [1.0]]).expand(5, 3)
        Particles(n=2, d=1, batch=(5, 3), space=Euclidean())
        """
        own = len(self.batch)
        rule, remedy = f"its batch is {tuple(self.batch)}", "pass axes to which that broadcasts"
        checks.require(checks.extends(torch.Size(batch), self.batch), "batch", batch, rule, remedy)
        return self.at(self.coords.map(lambda c: c.expand(*batch, *c.shape[own:])))

    def twin(self) -> Self | None:
        """The same measure with other quadrature nodes, when these are not to be trusted blindly."""
        return None

    def tangent(self, u: Tangent) -> Tangent:
        """The part of ``u`` that is tangent to the space."""
        return u

    def __getitem__(self, index: Any) -> Self:
        """Members of the batch, ``mu[0]`` or ``mu[:, 1]``; only batch axes can be indexed."""
        return self.at(self.coords.map(lambda c: pick(c, self.batch, index)))

    @abstractmethod
    def parts(self) -> dict[str, Tensor]:
        """All that the measure is made of, by name."""

    @abstractmethod
    def each(self, f: Change, exact: Change) -> Self:
        """The same measure, its numbers changed by f, and by ``exact`` what is always in double precision."""

    def to(
        self,
        dtype: torch.dtype | torch.device | str | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """The same measure in another precision, or on another device; labels and levels stay in double.

        >>> import torch
        >>> from otflow import Particles
        >>> Particles([[1.0]]).to(torch.float32).to("cpu").dtype
        torch.float32
        """
        if isinstance(dtype, torch.device | str):  # the device alone, as torch takes it
            dtype, device = None, dtype
        dtype, device = checks.dtype(dtype), checks.device(device)
        return self.each(lambda a: a.to(device=device, dtype=dtype), lambda a: a.to(device=device))

    def detach(self) -> Self:
        """The same measure without the graph of its numbers."""
        return self.each(Tensor.detach, Tensor.detach)

    def numpy(self) -> dict[str, np.ndarray]:
        """Copies of all numbers as arrays, by name: x and w of particles, mean, cov and root of Gaussians.

        >>> from otflow import Particles
        >>> Particles([[1.0], [2.0]]).numpy()["w"]
        array([0.5, 0.5])
        """
        return {name: a.detach().cpu().numpy().copy() for name, a in self.parts().items()}

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        rule = "a measure is more than one array"
        checks.fail("measure", repr(self), rule, f"take mu.numpy(), which has {', '.join(self.parts())}")

    def __len__(self) -> int:
        """The length of the first batch axis, along which ``mu[0]`` and ``for nu in mu`` go."""
        if not self.batch:
            raise TypeError(f"{self!r} is one measure and not a batch, so it has no length.")
        return self.batch[0]

    def _repr_html_(self) -> str:
        """Sizes for a batch, moments too for one measure: what a notebook shows."""
        rows: dict[str, Any] = {"batch": tuple(self.batch)} if self.batch else {}
        rows |= {"dimension": self.probe().shape[-1], "precision": str(self.dtype).removeprefix("torch.")}
        if not self.batch:  # the nodes of many laws would be many
            x, w = self.detach().nodes()
            mean = (w[..., None] * x).sum(-2)
            deviation = (w[..., None] * (x - mean).square()).sum(-2).sqrt()
            mean = torch.where(mean.abs() < 1e-12 * deviation, 0.0, mean)  # rounding looks like news
            rows |= {"mean": mean, "standard deviation": deviation}
        return table(repr(self), rows, of=self)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Self]:
        return (self[k] for k in range(len(self)))

    @property
    def dtype(self) -> torch.dtype:
        return self.coords[0].dtype

    @property
    def device(self) -> torch.device:
        return self.coords[0].device

    def finite(self) -> Tensor:
        """Which members of the batch have finite coordinates, shape (*batch,)."""
        own = [c.detach().sum(tuple(range(len(self.batch), c.ndim))) for c in self.coords]
        quick = torch.isfinite(torch.stack(own)).all(0)  # but a sum may overflow though its terms are finite
        if checks.on_host(quick) and bool(quick.all()):
            return quick
        ok = [torch.isfinite(c.detach()).reshape(*self.batch, -1).all(-1) for c in self.coords]
        return torch.stack(ok).all(0)


def uniforms(mu: Measure, shape: tuple[int, ...], rng: Random) -> Tensor:
    """Uniform numbers in [0, 1) next to a measure, from numpy's generator whatever the device."""
    drawn = checks.generator(rng).random((*mu.batch, *shape))
    return torch.from_numpy(drawn).to(mu.device)


def which(w: Tensor, u: Tensor) -> Tensor:
    """Indices drawn with probabilities w (*batch, k), for uniform numbers u (*batch, n)."""
    steps = w.detach().double().cumsum(-1)
    return torch.searchsorted(steps, u * steps[..., -1:], right=True).clamp(max=w.shape[-1] - 1)


def copied(mu: Measure) -> Measure:
    """The same measure with numbers of its own, which keep their graph: for what outlives a call."""
    return mu.each(Tensor.clone, Tensor.clone)


def where(condition: Tensor, mu: Measure, nu: Measure) -> Measure:
    """Members of ``mu`` where the condition (*batch,) holds, of ``nu`` elsewhere."""
    if checks.on_host(condition) and bool(condition.all()):
        return mu
    return mu.at(mu.coords.zip(nu.coords, lambda a, b: torch.where(align(condition, a), a, b)))


def pick(a: Tensor, batch: torch.Size, index: Any) -> Tensor:
    """a[index], with the index confined to the leading ``batch`` axes."""
    mask = isinstance(index, Tensor)  # one of shape () picks all or nothing
    if not batch and not mask and index not in ((), Ellipsis):
        raise IndexError("one measure and not a batch has no members; index its numbers, such as mu.x[0].")
    members = torch.arange(batch.numel(), device=a.device).reshape(batch)[index]
    return a.reshape(batch.numel(), *a.shape[len(batch) :])[members]


def total(u: Tensor, batch: torch.Size) -> Tensor:
    """The sum over all axes but the leading ``batch`` ones."""
    return u.reshape(*batch, -1).sum(-1)
