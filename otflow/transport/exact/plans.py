"""Transport plans: sparse, with potentials that prove how good they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.status import summary
from otflow.base.tables import table

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


@dataclass(frozen=True, eq=False, repr=False)
class ExactTransport:
    """An optimal coupling P of two measures for the cost d(x, y)^p, with a proof of optimality.

    The potentials satisfy f_i + g_j <= d(x_i, y_j)^p, so that

        bound = sum_i mu_i f_i + sum_j nu_j g_j  <=  W_p^p  <=  cost = sum_k mass_k d(x_rows_k, y_cols_k)^p,

    all up to a few units of rounding. From `solve_conditional` they satisfy this for equal labels, and the
    bound is one of the conditional distance. Everything here is a number in double precision, without
    derivatives: `wasserstein` and `conditional_wasserstein` have them.

    >>> import otflow as of
    >>> found = of.solve(of.Particles([[0.0], [1.0]]), of.Particles([[3.0], [1.0]]))
    >>> found
    ExactTransport(n=2, m=2, p=2, distance=1.58114, gap=0, status='ok')
    >>> found.plan
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """

    p: float
    rows: Tensor  # (*batch, k), long
    cols: Tensor  # (*batch, k), long
    mass: Tensor  # (*batch, k), padded by zeros
    f: Tensor  # (*batch, n)
    g: Tensor  # (*batch, m)
    cost: Tensor  # (*batch,), W_p^p
    distance: Tensor  # (*batch,), W_p
    bound: Tensor  # (*batch,)
    gap: Tensor  # (*batch,), |cost - bound| / cost, 0 if the cost is 0
    codes: Tensor  # (*batch,)

    @property
    def status(self) -> Any:
        """How it ended: a string, or an array of strings for a batch."""
        return status.names(self.codes)

    @property
    def batch(self) -> torch.Size:
        """Shape of the leading axes."""
        return self.cost.shape

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
        return dense(self.rows, self.cols, self.mass, (self.f.shape[-1], self.g.shape[-1]))

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
        total = torch.zeros_like(self.f).scatter_add(-1, self.rows, self.mass)[..., None]
        out = torch.zeros(*self.f.shape, z.shape[-1], dtype=z.dtype, device=z.device)
        out = out.scatter_add(-2, self.rows[..., None].expand(moved.shape), moved)
        return out / torch.where(total > 0, total, torch.ones_like(total))

    def _repr_html_(self) -> str:
        size, ended = (self.f.shape[-1], self.g.shape[-1]), summary(self.status)
        rows = {"atoms": f"{size[0]} x {size[1]}", "p": self.p, "distance": self.distance, "cost": self.cost}
        return table("ExactTransport", rows | {"gap, at worst": self.gap.max(), "status": ended})

    def __repr__(self) -> str:
        n, m = self.f.shape[-1], self.g.shape[-1]
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


def beyond(c: Coupling, p: float) -> Tensor:
    """Whose cost distance^p has no room in floating point, (B,), though the distance itself may have."""
    value = c.value * c.unit**p
    return (c.value > 0) & ~(torch.isfinite(value) & (value > torch.finfo(value.dtype).tiny))


def in_units(c: Coupling, p: float, batch: torch.Size) -> ExactTransport:
    """A coupling in units of length^p."""
    scale, largest, wrong = c.unit**p, torch.finfo(c.value.dtype).max, beyond(c, p)
    value, bound = c.value * scale, c.bound * scale
    if wrong.any():
        rule = "it leaves the range of floating point"
        remedy = "call wasserstein for the distance itself, or divide the points by their size"
        checks.fail(f"distance^{p:g}", f"{c.unit[wrong][0].item():.3g}^{p:g}", rule, remedy)
    gap = torch.where(c.value > 0, (c.value - c.bound).abs() / c.value, torch.zeros_like(c.value))
    fields = (
        *(c.rows, c.cols, c.mass, *((h * scale[:, None]).clamp(max=largest) for h in (c.f, c.g))),
        *(value, c.value ** (1 / p) * c.unit, bound, gap, c.codes),
    )
    return ExactTransport(p, *(z.reshape((*batch, *z.shape[1:])) for z in fields))
