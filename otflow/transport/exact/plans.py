"""Transport plans: sparse, with potentials that prove how good they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.status import summary
from otflow.base.tables import table
from otflow.transport import ranges

LARGEST = 2**27  # entries of a dense plan, at most; chosen: 1 GB


class Coupling(NamedTuple):
    """Plans on one flat batch axis, their costs and potentials in units of unit^p."""

    rows: Tensor  # (B, k)
    cols: Tensor  # (B, k)
    mass: Tensor  # (B, k)
    f: Tensor  # (B, n)
    g: Tensor  # (B, m)
    value: Tensor  # (B,)
    bound: Tensor  # (B,)
    unit: Tensor  # (B,)
    codes: Tensor  # (B,)


class InUnits(NamedTuple):
    """Costs and potentials of a plan in units of unit^p, which may have no room in floating point."""

    f: Tensor  # (*batch, n)
    g: Tensor  # (*batch, m)
    cost: Tensor  # (*batch,)
    bound: Tensor  # (*batch,)
    unit: Tensor  # (*batch,), a power of two


@dataclass(frozen=True, eq=False, repr=False)
class ExactTransport:
    """An optimal coupling P of two measures for the cost d(x, y)^p, with a proof of optimality.

    The potentials satisfy f_i + g_j <= d(x_i, y_j)^p, so that

        bound = sum_i mu_i f_i + sum_j nu_j g_j  <=  W_p^p  <=  cost = sum_k mass_k d(x_rows_k, y_cols_k)^p,

    all up to a few units of rounding. From `solve_conditional` they satisfy this for equal labels, and the
    bound is one of the conditional distance. Everything here is a number in double precision, without
    derivatives: `wasserstein` and `conditional_wasserstein` have them.

    Plan, distance and gap are known at every scale. Where d^p has no room in floating point, as the square of
    1e-170, asking for the cost, the bound or the potentials raises `NotFiniteError`.

    >>> import otflow as of
    >>> found = of.solve(of.Particles([[0.0], [1.0]]), of.Particles([[3.0], [1.0]]))
    >>> found
    ExactTransport(n=2, m=2, p=2, distance=1.58114, gap=0, status='ok')
    >>> found.plan
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """

    p: float
    relative: InUnits
    rows: Tensor  # (*batch, k), long
    cols: Tensor  # (*batch, k), long
    mass: Tensor  # (*batch, k), padded by zeros
    distance: Tensor  # (*batch,), W_p
    gap: Tensor  # (*batch,), |cost - bound| / cost, 0 if the cost is 0
    codes: Tensor  # (*batch,)

    @cached_property
    def cost(self) -> Tensor:
        """W_p^p, (*batch,)."""
        return self.relative.cost * self._unit

    @cached_property
    def bound(self) -> Tensor:
        """What no coupling can cost less than, (*batch,)."""
        return self.relative.bound * self._unit

    @cached_property
    def f(self) -> Tensor:
        """The potential on the atoms of mu, (*batch, n)."""
        return self._potential(self.relative.f)

    @cached_property
    def g(self) -> Tensor:
        """The potential on the atoms of nu, (*batch, m)."""
        return self._potential(self.relative.g)

    def _potential(self, h: Tensor) -> Tensor:
        # Far from an atom without mass costs may overflow, and with them what its potential may be at most.
        return (h * self._unit[..., None]).clamp(max=torch.finfo(h.dtype).max)

    @cached_property
    def _unit(self) -> Tensor:
        """unit^p, or an error if costs have no room."""
        unit = self.relative.unit**self.p
        cost = self.relative.cost * unit
        if not ranges.ordinary(cost) and bool((bad := ranges.lost(self.relative.cost, cost)).any()):
            length = f"{self.distance.detach()[bad][0].item():.3g}"
            ranges.leaves(f"distance^{self.p:g}", f"{length}^{self.p:g}", unit.dtype, self.distance.detach())
        return unit

    @property
    def status(self) -> Any:
        """How it ended: a string, or an array of strings for a batch."""
        return status.names(self.codes)

    @property
    def batch(self) -> torch.Size:
        """Shape of the leading axes."""
        return self.gap.shape

    @property
    def potentials(self) -> tuple[Tensor, Tensor]:
        """f and g."""
        return self.f, self.g

    @property
    def certificates(self) -> dict[str, Tensor]:
        """The relative duality gap, as ``gap``."""
        return {"gap": self.gap}

    @property
    def plan(self) -> Tensor:
        """P as a dense (*batch, n, m); ``rows``, ``cols`` and ``mass`` are the same without the zeros."""
        return dense(self.rows, self.cols, self.mass, self.atoms)

    @property
    def atoms(self) -> tuple[int, int]:
        """How many atoms mu and nu have."""
        return self.relative.f.shape[-1], self.relative.g.shape[-1]

    def average(self, z: Tensor) -> Tensor:
        """sum_j P_ij z_j / sum_j P_ij, (*batch, n, e), for z (*batch, m, e); 0 for atoms without mass.

        With z = nu.x this is the barycentric projection of the plan, and the optimal map if there is one.

        Reference: Ambrosio, Gigli and Savare 2008, "Gradient flows", Definition 5.4.2.

        >>> import otflow as of
        >>> mu, nu = of.Particles([[0.0]]), of.Particles([[1.0], [3.0]], w=[0.25, 0.75])
        >>> of.solve(mu, nu).average(nu.x)
        tensor([[2.5000]], dtype=torch.float64)
        """
        z = z.to(self.mass.dtype).expand(*self.batch, *z.shape[-2:])
        moved = self.mass[..., None] * z.gather(
            -2, self.cols[..., None].expand(*self.cols.shape, z.shape[-1])
        )
        total = torch.zeros_like(self.relative.f).scatter_add(-1, self.rows, self.mass)[..., None]
        out = torch.zeros(*total.shape[:-1], z.shape[-1], dtype=z.dtype, device=z.device)
        out = out.scatter_add(-2, self.rows[..., None].expand(moved.shape), moved)
        return out / torch.where(total > 0, total, torch.ones_like(total))

    def _repr_html_(self) -> str:
        size, ended = self.atoms, summary(self.status)
        rows = {"atoms": f"{size[0]} x {size[1]}", "p": self.p, "distance": self.distance}
        return table("ExactTransport", rows | {"gap, at worst": self.gap.max(), "status": ended})

    def __repr__(self) -> str:
        n, m = self.atoms
        batch = f", batch={tuple(self.batch)}" if self.batch else ""
        distance = f", distance={self.distance.item():g}" if self.batch.numel() == 1 else ""
        gap = self.gap.max().item()
        ended = self.status if not self.batch else sorted(set(self.status.flatten().tolist()))
        return f"ExactTransport(n={n}, m={m}{batch}, p={self.p:g}{distance}, gap={gap:.1g}, status={ended!r})"


def dense(rows: Tensor, cols: Tensor, mass: Tensor, shape: tuple[int, int]) -> Tensor:
    """The matrix (*batch, n, m) with these entries, those at the same place added."""
    (n, m), batch = shape, mass.shape[:-1]
    good = batch.numel() * n * m <= LARGEST
    rule = f"a dense plan may have {LARGEST} entries"
    checks.require(good, "plan.shape", (*batch, n, m), rule, "use rows, cols and mass")
    flat = torch.zeros(*batch, n * m, dtype=mass.dtype, device=mass.device)
    return flat.scatter_add(-1, rows * m + cols, mass).reshape(*batch, n, m)


def in_units(c: Coupling, p: float, batch: torch.Size) -> ExactTransport:
    """A coupling as a plan in units of length."""
    gap = torch.where(c.value > 0, (c.value - c.bound).abs() / c.value, torch.zeros_like(c.value))
    parts = (c.rows, c.cols, c.mass, c.value ** (1 / p) * c.unit, gap, c.codes)
    relative = (c.f, c.g, c.value, c.bound, c.unit)
    shaped, kept = ([z.reshape((*batch, *z.shape[1:])) for z in group] for group in (parts, relative))
    return ExactTransport(p, InUnits(*kept), *shaped)
