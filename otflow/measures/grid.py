"""Densities on uniform grids in one, two or three dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import StepError
from otflow.base.parameters import Seen
from otflow.base.tangent import Tangent, as_tangent
from otflow.measures.base import Change, Measure, Random, total, uniforms, which
from otflow.measures.particles import Particles


@dataclass(frozen=True, eq=False)
class Grid(Measure):
    """A density rho on cells, with no flux through the boundary.

    Tangents are velocities on the interior faces, one piece per axis (the a-th is one cell shorter
    along axis a). ``move`` is the conservative upwind step: first order, mass kept to rounding,
    positive below its CFL limit, beyond which it refuses. ``inner`` and ``sharp`` weigh a face by the
    mean density of its two cells.

    Args:
        density: (*batch, n_1, ..., n_D), D = number of axes, >= 0, of integral one.
        axes: D increasing, equally spaced vectors of cell centres.

    >>> from otflow import Grid
    >>> import numpy as np
    >>> x = (np.arange(10) + 0.5) / 10
    >>> Grid(np.ones(10), [x])
    Grid(shape=(10,))
    """

    names: ClassVar[tuple[str, ...]] = ("density",)
    density: Tensor
    axes: tuple[Tensor, ...]

    def __init__(self, density: Any, axes: Sequence[Any]) -> None:
        density = checks.tensor(density, "density")
        axes = tuple(
            checks.alike(checks.tensor(a, f"axes[{i}]").clone(), f"axes[{i}]", density, "density")
            for i, a in enumerate(axes)
        )
        _check_axes(density, axes)
        self._set(density, axes)
        mass = self.density.reshape(*self.batch, -1) * self.cell
        object.__setattr__(
            self,
            "density",
            (
                checks.probability(mass, "density * cell", "pass density / (density.sum() * cell)")
                / self.cell
            ).reshape(density.shape),
        )

    def _set(self, density: Tensor, axes: tuple[Tensor, ...]) -> None:
        object.__setattr__(self, "density", density)
        object.__setattr__(self, "axes", axes)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Width of a cell along each axis."""
        if "_widths" not in vars(self):  # found out once, because every look makes an accelerator wait
            object.__setattr__(self, "_widths", tuple(Seen() for _ in self.axes))
        widths: tuple[Seen[float], ...] = vars(self)["_widths"]
        return tuple(
            width(a, lambda a: float(a[1] - a[0])) for width, a in zip(widths, self.axes, strict=True)
        )

    def _same_cells(self, other: Self) -> Self:
        """``other``, with what is known of the axes."""
        if "_widths" in vars(self):
            object.__setattr__(other, "_widths", vars(self)["_widths"])
        return other

    @property
    def cell(self) -> float:
        """Volume of a cell."""
        return math.prod(self.spacing)

    @property
    def coords(self) -> Tangent:
        return Tangent([self.density])

    @property
    def batch(self) -> torch.Size:
        return self.density.shape[: self.density.ndim - len(self.axes)]

    def at(self, coords: Sequence[Tensor]) -> Self:
        other = object.__new__(type(self))
        other._set(coords[0], self.axes)
        return self._same_cells(other)

    @classmethod
    def from_function(cls, f: Callable[..., Any], axes: Sequence[Any]) -> Self:
        """The density proportional to f >= 0 at the cell centres, f a function of as many arrays as axes.

        >>> import numpy as np
        >>> from otflow import Grid
        >>> x = (np.arange(10) + 0.5) / 10
        >>> Grid.from_function(lambda x, y: x + y, [x, x])
        Grid(shape=(10, 10))
        """
        points = np.meshgrid(*(np.asarray(a, dtype=np.float64) for a in axes), indexing="ij")
        values = checks.tensor(checks.function(f, "f")(*points), "f(*points)")
        cell = math.prod(float(a[1] - a[0]) for a in axes)
        rule = "a density needs some mass"
        checks.require(
            bool(values.sum() > 0),
            "sum of f",
            float(values.sum()),
            rule,
            "pass an f that is positive somewhere between the ends of the axes",
        )
        return cls(values / (values.sum() * cell), axes)

    @classmethod
    def histogram(cls, mu: Measure, axes: Sequence[Any]) -> Self:
        """The mass of ``mu`` in each cell, over its volume; what lies outside of the grid is refused.

        >>> import numpy as np
        >>> from otflow import Grid, Particles
        >>> Grid.histogram(Particles([[0.1], [0.2], [0.9], [0.6]]), [np.array([0.25, 0.75])]).density
        tensor([1., 1.], dtype=torch.float64)
        """
        x, w = checks.instance(mu, Measure, "mu").nodes()
        grid = cls.from_function(lambda *points: np.ones(points[0].shape), axes)
        shape, k = grid.density.shape, torch.zeros(x.shape[:-1], dtype=torch.long, device=x.device)
        rule = f"the grid has {len(shape)} axes"
        checks.require(x.shape[-1] == len(shape), "d", x.shape[-1], rule, "pass as many axes as coordinates")
        for i, (a, h) in enumerate(zip(grid.axes, grid.spacing, strict=True)):
            place = torch.floor((x[..., i] - a[0]) / h + 0.5).long()
            rule, remedy = (
                f"it is off the grid along axis {i}",
                f"pass axes from {x[..., i].min().item():g} to {x[..., i].max().item():g} or wider",
            )
            low, high = int(place.min()), int(place.max())
            checks.require(low >= 0 and high < len(a), f"mu.x[..., {i}]", "a point", rule, remedy)
            k = k * len(a) + place
        mass = torch.zeros(*w.shape[:-1], shape.numel(), dtype=w.dtype, device=w.device).scatter_add(-1, k, w)
        return cls(mass.reshape(*w.shape[:-1], *shape) / grid.cell, axes)

    def each(self, f: Change, exact: Change) -> Self:
        other = object.__new__(type(self))
        other._set(f(self.density), tuple(f(a) for a in self.axes))
        if other.dtype == self.dtype:
            widths = tuple(map(Seen.known, other.axes, self.spacing))
            object.__setattr__(other, "_widths", widths)
        return other

    def parts(self) -> dict[str, Tensor]:
        return {"density": self.density} | {f"axis{i}": a for i, a in enumerate(self.axes)}

    def sample(self, n: int, *, rng: Random) -> Particles:
        """Points that are uniform within cells drawn by their mass.

        >>> from otflow import Grid
        >>> Grid([0.25, 0.75], [[0.5, 1.5]]).sample(4, rng=0)
        Particles(n=4, d=1, space=Euclidean())
        """
        x, mass = self.nodes()
        u = uniforms(self, (1 + len(self.axes), checks.count(n, "n")), rng)
        i = which(mass, u[..., 0, :].contiguous())
        width = torch.tensor(self.spacing, dtype=x.dtype, device=x.device)
        centre = x.gather(-2, i[..., None].expand(*i.shape, len(self.axes)))
        return Particles(centre.detach() + (u[..., 1:, :].mT.to(x.dtype) - 0.5) * width)

    def nodes(self) -> tuple[Tensor, Tensor]:
        x = torch.stack(torch.meshgrid(*self.axes, indexing="ij"), -1).reshape(-1, len(self.axes))
        return x.expand(*self.batch, *x.shape), self.density.reshape(*self.batch, -1) * self.cell

    @property
    def requires_grad(self) -> bool:
        return any(a.requires_grad for a in (self.density, *self.axes))

    def inner(self, u: Tangent, v: Tangent) -> Tensor:
        faces = [total(rho * a * b, self.batch) for rho, a, b in zip(self._faces(), u, v, strict=True)]
        return torch.stack(faces).sum(0) * self.cell

    def sharp(self, covector: Tangent) -> Tangent:
        # dF/drho_i = cell * (first variation at i); its discrete gradient lives on the faces.
        variation = covector[0] / self.cell
        return Tangent(
            torch.diff(variation, dim=i) / h for i, h in zip(self._dims, self.spacing, strict=True)
        )

    def move(self, u: Tangent) -> Self:
        u = as_tangent(u, "u", self.shapes())
        rho, flow_out = self.density, torch.zeros_like(self.density)
        for i, h, speed in zip(self._dims, self.spacing, u, strict=True):
            left, right = self.density.narrow(i, 0, speed.shape[i]), self.density.narrow(i, 1, speed.shape[i])
            flux = (speed.clamp(min=0) * left + speed.clamp(max=0) * right) / h
            rho = rho - torch.diff(_pad(flux, i), dim=i)
            flow_out = flow_out + (_pad(speed, i, 1).clamp(min=0) - _pad(speed, i, 0).clamp(max=0)) / h
        self._check_cfl(flow_out)
        return self.at([rho])

    def _check_cfl(self, flow_out: Tensor) -> None:
        flow_out = flow_out.detach()
        # One look rather than two; what is not finite is left for the flow to judge.
        cfl = torch.where(torch.isfinite(flow_out).all(), flow_out.max(), torch.nan).item()
        if cfl > 1 + 1e-12:
            raise StepError(
                f"CFL number = {cfl:.3g}: an explicit step on a grid must not empty a cell (limit 1); "
                f"take dt at most {1 / cfl:.3g} times as large."
            )

    @property
    def _dims(self) -> range:
        return range(self.density.ndim - len(self.axes), self.density.ndim)

    def shapes(self) -> list[torch.Size]:
        return [face.shape for face in self._faces()]

    def _faces(self) -> list[Tensor]:
        sizes = self.density.shape
        return [
            (self.density.narrow(i, 0, sizes[i] - 1) + self.density.narrow(i, 1, sizes[i] - 1)) / 2
            for i in self._dims
        ]

    def __repr__(self) -> str:
        batch = f", batch={tuple(self.batch)}" if self.batch else ""
        return f"Grid(shape={tuple(self.density.shape[len(self.batch) :])}{batch})"


def _pad(flux: Tensor, dim: int, side: int | None = None) -> Tensor:
    """Zeros for the walls: on both sides, or only before (0) or after (1)."""
    wall = torch.zeros_like(flux.narrow(dim, 0, 1))
    return torch.cat([wall] * (side != 1) + [flux] + [wall] * (side != 0), dim)


def _check_axes(density: Tensor, axes: tuple[Tensor, ...]) -> None:
    remedy = "pass one vector of cell centres per dimension"
    checks.require(1 <= len(axes) <= 3, "len(axes)", len(axes), "grids have one, two or three axes", remedy)
    shape = tuple(density.shape[-len(axes) :])
    good = shape == tuple(a.numel() for a in axes) and all(a.ndim == 1 and len(a) >= 2 for a in axes)
    rule = f"it must end in the lengths of the axes, {tuple(a.numel() for a in axes)}, each >= 2"
    checks.require(
        good,
        "density.shape",
        density.shape,
        rule,
        f"pass {len(shape)} axes, np.linspace(low, high, n) with n in {shape}",
    )
    for i, a in enumerate(axes):
        h, rounding = torch.diff(a), 2 * torch.finfo(a.dtype).eps * a.abs().max()
        if (h <= 0).any() or ((h - h[0]).abs() > 1e-6 * h[0].abs() + rounding).any():
            rule, remedy = "cell centres increase in equal steps", "use numpy.linspace"
            checks.fail(f"axes[{i}]", f"steps from {h.min().item():g} to {h.max().item():g}", rule, remedy)
