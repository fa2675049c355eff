"""Measures on the line, held by their quantile function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.linalg.lapack import dpttrf, dpttrs
from scipy.special import betainc
from torch import Tensor

from otflow.base import checks
from otflow.base.errors import StepError
from otflow.base.tangent import Tangent, as_tangent
from otflow.measures.base import Change, Measure, Random, total, uniforms
from otflow.measures.particles import Particles

GAUSS = 3  # Gauss points per interval: exact for polynomials of degree five on each
LAGUERRE = 12  # Gauss-Laguerre points in a tail; chosen
FLAT = 1e-10  # share of the uniform mesh in a graded one; chosen: the last levels stay apart in float64


class _Solve(torch.autograd.Function):
    """A^-1 b for a fixed symmetric positive definite tridiagonal A: its derivatives are solves again."""

    @staticmethod
    def forward(b: Tensor, A: Tridiagonal) -> Tensor:
        size = b.shape[-1]
        d, e = A.blocks(b.shape[:-1])
        d, e, info = dpttrf(d.reshape(-1), e.reshape(-1)[:-1])
        if info:
            return torch.full_like(b, torch.nan)
        out, _ = dpttrs(d, e, b.detach().cpu().double().numpy().reshape(-1))
        return torch.from_numpy(out.reshape(*b.shape[:-1], size)).to(b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.A = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.A.solve(g), None

    @staticmethod
    def jvp(ctx: Any, b: Tensor, _: None) -> Tensor:
        return ctx.A.solve(b)


@dataclass(frozen=True)
class Tridiagonal:
    """A symmetric tridiagonal matrix: diag (*batch, k) and off (*batch, k - 1); linear time and memory.

    >>> import torch
    >>> from otflow.measures.quantiles import Tridiagonal
    >>> A = Tridiagonal(torch.tensor([2.0, 2.0]), torch.tensor([1.0]))
    >>> A @ A.solve(torch.tensor([1.0, 5.0]))
    tensor([1., 5.])
    """

    diag: Tensor
    off: Tensor

    @classmethod
    def from_intervals(cls, left: Tensor, cross: Tensor, right: Tensor) -> Tridiagonal:
        """The sum over intervals i of the form left u_i^2 + 2 cross u_i u_i+1 + right u_i+1^2."""
        zero = torch.zeros_like(left[..., :1])
        return cls(torch.cat([left, zero], -1) + torch.cat([zero, right], -1), cross)

    def __add__(self, other: Tridiagonal) -> Tridiagonal:
        return Tridiagonal(self.diag + other.diag, self.off + other.off)

    def __mul__(self, c: float | Tensor) -> Tridiagonal:
        """The multiple c A; a tensor c has shape (*batch, 1)."""
        return Tridiagonal(self.diag * c, self.off * c)

    def __matmul__(self, u: Tensor) -> Tensor:
        zero = torch.zeros_like(u[..., :1])
        above, below = self.off * u[..., 1:], self.off * u[..., :-1]
        return self.diag * u + torch.cat([above, zero], -1) + torch.cat([zero, below], -1)

    def solve(self, b: Tensor) -> Tensor:
        """A^-1 b for b (*batch, k) and positive definite A, else NaN; differentiable in b alone."""
        return _Solve.apply(b, self)  # type: ignore[no-untyped-call]

    def dense(self) -> Tensor:
        return torch.diag_embed(self.diag) + torch.diag_embed(self.off, 1) + torch.diag_embed(self.off, -1)

    def blocks(self, batch: torch.Size) -> tuple[np.ndarray, np.ndarray]:
        """Copies of both diagonals, for each member of the batch, the other one with a zero behind.

        Flattened, these are one long tridiagonal matrix, which LAPACK takes in one call.
        """
        off = torch.nn.functional.pad(self.off, (0, 1))
        d, e = (
            a.detach().cpu().double().expand(*batch, a.shape[-1]).contiguous().numpy().copy()
            for a in (self.diag, off)
        )
        return d.reshape(batch.numel(), -1), e.reshape(batch.numel(), -1)

    def definite(self) -> Tensor:
        """Which members are positive definite, (*batch,)."""
        batch = self.diag.shape[:-1]
        d, e = self.blocks(batch)
        good = np.isfinite(d).all(-1) & np.isfinite(e).all(-1)
        d[~good], e[~good] = 1.0, 0.0
        while info := dpttrf(d.reshape(-1), e.reshape(-1)[:-1])[2]:  # the first pivot that is not positive
            member = (info - 1) // d.shape[-1]
            good[member], d[member], e[member] = False, 1.0, 0.0
        return torch.from_numpy(good).reshape(batch).to(self.diag.device)


@dataclass(frozen=True, eq=False)
class Quantiles(Measure):
    """mu = X_# ds on [0, 1], X the piecewise linear function with X(s_i) = x_i: its quantile function.

    The density is constant on each [x_i, x_i+1], namely (s_i+1 - s_i) / (x_i+1 - x_i). In X the metric W2 is
    flat, W2(mu, nu)^2 = int |X - Y|^2 ds (Santambrogio 2015, Section 2.1), and tangents are functions of s,
    piecewise linear as X is: ``inner`` is int u v ds exactly (the consistent mass matrix), ``sharp`` solves
    with that matrix, in linear time. ``move`` refuses to let quantiles cross.

    Args:
        x: (*batch, n + 1), increasing.
        levels: (n + 1,), increasing from 0 to 1, the same for the whole batch; kept in double precision.

    >>> from otflow import Quantiles
    >>> mu = Quantiles([0.0, 1.0, 4.0], [0.0, 0.5, 1.0])
    >>> mu
    Quantiles(n=2)
    >>> mu.density()[1]
    tensor([0.5000, 0.1667], dtype=torch.float64)
    """

    names: ClassVar[tuple[str, ...]] = ("x",)
    x: Tensor
    levels: Tensor

    def __init__(self, x: Any, levels: Any) -> None:
        x = checks.tensor(x, "x").clone()  # so that no later change of x changes the measure
        levels = checks.beside(checks.tensor(levels, "levels").clone(), "levels", x, "x").double()
        _check_levels(levels.detach())
        _check_x(x.detach(), levels)
        self._set(x, levels.detach())

    def _set(self, x: Tensor, levels: Tensor) -> None:
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "levels", levels)

    @classmethod
    def from_ppf(cls, ppf: Callable[[np.ndarray], Any], n: int, *, grading: float = 6.0) -> Self:
        """The measure with quantile function ``ppf`` at `graded_levels`, n intervals.

        ``ppf`` takes a numpy array of levels (k,), as the distributions of scipy.stats do, and gives
        (*batch, k) in numpy or torch. Where it is infinite at 0 or 1, the outermost point is put such that
        its interval keeps the mean of the tail; what else is in the tail is lost, which costs sqrt(s_1) times
        the standard deviation within the tail in W2.

        >>> from otflow import Quantiles
        >>> from scipy.stats import norm
        >>> mu = Quantiles.from_ppf(norm.ppf, 1000)
        >>> x, w = mu.nodes()
        >>> round((w * x[:, 0] ** 2).sum().item(), 4)
        1.0
        """
        s = graded_levels(n, grading=grading)
        checks.require(n >= 2, "n", n, "tails need a level between 0 and 1", "pass n=2 or more")
        inside, ends, means = (_values(ppf, z) for z in (s[1:-1], s[[0, -1]], _in_tails(s)))
        means = means.unflatten(-1, (2, -1)) @ torch.from_numpy(_laguerre()[1])
        first = _end(ends[..., :1], 2 * means[..., :1] - inside[..., :1])
        last = _end(ends[..., 1:], 2 * means[..., 1:] - inside[..., -1:])
        return cls(torch.cat([first, inside, last], -1), s)

    @property
    def coords(self) -> Tangent:
        return Tangent([self.x])

    @property
    def batch(self) -> torch.Size:
        return self.x.shape[:-1]

    @property
    def n(self) -> int:
        """Number of intervals."""
        return len(self.levels) - 1

    @property
    def mass(self) -> Tensor:
        """Mass of each interval, (n,)."""
        return torch.diff(self.levels).to(self.dtype)

    @property
    def gram(self) -> Tridiagonal:
        """The matrix of the inner product int u v ds."""
        m = self.mass / 6
        return Tridiagonal.from_intervals(2 * m, m, 2 * m)

    def density(self) -> tuple[Tensor, Tensor]:
        """Edges (*batch, n + 1) and the constant density between each two, (*batch, n)."""
        return self.x.clone(), self.mass / torch.diff(self.x)

    def ppf(self, s: Any) -> Tensor:
        """X(s) for levels s (k,) or (*batch, k), shape (*batch, k)."""
        s = checks.beside(checks.tensor(s, "s"), "s", self.x, "x").double()
        i = (torch.searchsorted(self.levels, s, right=True) - 1).clamp(0, self.n - 1)
        r = ((s - self.levels[i]) / torch.diff(self.levels)[i]).to(self.dtype)
        i = i.expand(*self.batch, i.shape[-1])
        return torch.lerp(self.x.gather(-1, i), self.x.gather(-1, i + 1), r)

    def at(self, coords: Sequence[Tensor]) -> Self:
        return self._with(coords[0], self.levels)

    def _with(self, x: Tensor, levels: Tensor) -> Self:
        other = object.__new__(type(self))
        other._set(x, levels)
        return other

    def each(self, f: Change, exact: Change) -> Self:
        return self._with(f(self.x), exact(self.levels))

    def parts(self) -> dict[str, Tensor]:
        return {"x": self.x, "levels": self.levels}

    def sample(self, n: int, *, rng: Random) -> Particles:
        """X(u) at uniform levels u: points on the line.

        >>> from otflow import Quantiles
        >>> Quantiles([0.0, 1.0], [0.0, 1.0]).sample(4, rng=0)
        Particles(n=4, d=1, space=Euclidean())
        """
        return Particles(self.ppf(uniforms(self, (checks.count(n, "n"),), rng))[..., None])

    def nodes(self) -> tuple[Tensor, Tensor]:
        """Three Gauss points in each interval: int f dmu is exact for f of degree five between the x_i."""
        r, share = gauss(self.x)
        x = torch.lerp(self.x[..., :-1, None], self.x[..., 1:, None], r)
        w = (self.mass[:, None] * share).flatten()
        return x.flatten(-2)[..., None], w.expand(*self.batch, len(w))

    @property
    def requires_grad(self) -> bool:
        return self.x.requires_grad  # levels never do

    def inner(self, u: Tangent, v: Tangent) -> Tensor:
        return total(u[0] * (self.gram @ v[0]), self.batch)

    def sharp(self, covector: Tangent) -> Tangent:
        return covector.map(self.gram.solve)

    def move(self, u: Tangent) -> Self:
        u = as_tangent(u, "u", self.shapes())
        x = self.x + u[0]
        shrunk = (torch.diff(x.detach()) / torch.diff(self.x.detach())).amin().item()
        if shrunk <= 0:
            raise StepError(
                f"a gap between quantiles changes by the factor {shrunk:.3g}: they must not cross; "
                f"take dt less than {1 / (1 - shrunk):.3g} times as large."
            )
        return self.at([x])

    def distance(self, other: Quantiles) -> Tensor:
        """W2(mu, nu) = (int |X - Y|^2 ds)^(1/2), exact, shape (*batch,); the levels may differ.

        >>> from otflow import Quantiles
        >>> mu = Quantiles([0.0, 2.0], [0.0, 1.0])
        >>> mu.distance(Quantiles([1.0, 2.0, 3.0], [0.0, 0.5, 1.0])).item()
        1.0
        """
        levels = torch.cat([self.levels, checks.instance(other, Quantiles, "other").levels]).unique()
        gap = self._with(self.ppf(levels) - other.ppf(levels), levels)
        square = gap.inner(gap.coords, gap.coords)
        return torch.where(square > 0, square, torch.ones_like(square)).sqrt() * (square > 0)

    def refined(self, k: int) -> Self:
        """k times as many intervals, with X between the old levels by monotone cubic interpolation.

        The slopes are those of Fritsch and Butland (1984).

        >>> from otflow import Quantiles
        >>> Quantiles([0.0, 1.0, 4.0], [0.0, 0.5, 1.0]).refined(2).x
        tensor([0.0000, 0.3125, 1.0000, 2.1875, 4.0000], dtype=torch.float64)
        """
        r = torch.arange(checks.count(k, "k"), dtype=torch.float64, device=self.device) / k
        s = self.levels[:-1, None] + torch.diff(self.levels)[:, None] * r
        left, middle, right = (a[..., None] for a in _monotone_slopes(self))
        r = r.to(self.dtype)
        rise = middle * r**2 * (3 - 2 * r) + left * r * (1 - r) ** 2 - right * r**2 * (1 - r)
        x = self.x[..., :-1, None] + self.mass[:, None] * rise
        return self._with(
            torch.cat([x.flatten(-2), self.x[..., -1:]], -1), torch.cat([s.flatten(), self.levels[-1:]])
        )

    def __repr__(self) -> str:
        batch = f", batch={tuple(self.batch)}" if self.batch else ""
        return f"Quantiles(n={self.n}{batch})"


def graded_levels(n: int, *, grading: float = 6.0) -> Tensor:
    """s(i / n) with s(r) = I_r(p, p), the incomplete beta function of order p = ``grading``: (n + 1,).

    Intervals shrink like s^(1 - 1/p) towards both ends. Piecewise linear functions approximate best in L2
    with intervals like |X''|^(-2/5), that is p = 5 for X'' of order s^-2, as in Gaussian tails, and p = 5/2
    for s^-3/2, as at the edges of Barenblatt's profile for m = 2; a little more costs little and leaves
    smoother errors to `richardson`. p = 1 is the uniform mesh. A share of 1e-10 is uniform, so that the last
    levels differ in double precision. Every second level of 2n is one of n.

    >>> from otflow.measures import graded_levels
    >>> graded_levels(4, grading=1.0)
    tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64)
    """
    n, p = checks.count(n, "n"), checks.positive(grading, "grading")
    checks.require(
        p >= 1,
        "grading",
        grading,
        "intervals shrink towards the ends for grading > 1",
        "pass grading=1.0 or more",
    )
    r = np.arange(n + 1) / n
    low = (1 - FLAT) * betainc(p, p, np.minimum(r, 1 - r)) + FLAT * np.minimum(r, 1 - r)
    return torch.from_numpy(np.where(r <= 0.5, low, 1 - low))


def richardson(coarse: Quantiles, fine: Quantiles, *, refine: int = 8) -> Quantiles:
    """x + (x - x_coarse) / 3 at the levels of ``fine``, of which ``coarse`` has every second one; `refined`.

    Errors of second order in the mesh cancel if both come from the same scheme on graded levels. Between the
    levels of ``coarse`` the correction is the mean of its neighbours. The points are then of higher order,
    but straight lines between them are not, so the result is refined ``refine`` times.

    >>> from otflow import Quantiles
    >>> from otflow.measures import richardson
    >>> f = lambda n: Quantiles.from_ppf(lambda s: s + 1 / n**2, n)
    >>> round(richardson(f(4), f(8)).x[0].item(), 12)
    0.0
    """
    good = fine.n == 2 * coarse.n and torch.allclose(fine.levels[::2], coarse.levels, rtol=0, atol=1e-12)
    rule = f"it must have every second level of {fine!r}"
    checks.require(good, "coarse", coarse, rule, f"pass coarse with {fine.n // 2} intervals, of the same law")
    c = (fine.x[..., ::2] - coarse.x) / 3
    between = (c[..., 1:] + c[..., :-1]) / 2
    both = torch.stack([c[..., :-1], between], -1).flatten(-2)
    return type(fine)(fine.x + torch.cat([both, c[..., -1:]], -1), fine.levels).refined(refine)


def gauss(like: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss points in [0, 1] and their weights, of sum one."""
    r, w = np.polynomial.legendre.leggauss(GAUSS)
    a, b = (torch.as_tensor(v, dtype=like.dtype, device=like.device) for v in ((r + 1) / 2, w / 2))
    return a, b


def _monotone_slopes(mu: Quantiles) -> tuple[Tensor, Tensor, Tensor]:
    """X' at the left end, in the mean, and at the right end of each interval, X monotone in between."""
    h, d = mu.mass, torch.diff(mu.x) / mu.mass
    if mu.n == 1:
        return d, d, d
    a, b = (h[:-1] + 2 * h[1:]), (2 * h[:-1] + h[1:])
    inside = (a + b) / (a / d[..., :-1] + b / d[..., 1:])
    r = h[:-1] / (h[:-1] + h[1:])
    first = torch.minimum((d[..., 0] + r[0] * (d[..., 0] - d[..., 1])).clamp(min=0), 3 * d[..., 0])
    last = (d[..., -1] + (1 - r[-1]) * (d[..., -1] - d[..., -2])).clamp(min=0)
    last = torch.minimum(last, 3 * d[..., -1])
    left, right = torch.cat([first[..., None], inside], -1), torch.cat([inside, last[..., None]], -1)
    return left, d, right


def _values(ppf: Callable[[np.ndarray], Any], s: Tensor) -> Tensor:
    """ppf(s), infinite at most at the levels 0 and 1."""
    value = checks.function(ppf, "ppf")(s.numpy())
    x = value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value, dtype=np.float64))
    rule = f"one number per level is needed, (*batch, {len(s)})"
    checks.require(
        x.shape[-1:] == s.shape,
        "ppf(s).shape",
        x.shape,
        rule,
        "let ppf(s) return an array like s, say scipy.stats.norm(0, 1).ppf",
    )
    checks.finite(x[..., (s > 0) & (s < 1)], "ppf(s)")
    return x


def _laguerre() -> tuple[np.ndarray, np.ndarray]:
    """Gauss' rule for the mean of f(s) over 0 < s < 1 where f is smooth in log s."""
    y, w = np.polynomial.laguerre.laggauss(LAGUERRE)
    return np.exp(-y), w / w.sum()


def _in_tails(s: Tensor) -> Tensor:
    """Levels for the means over the first and the last interval, none of them 1."""
    r = torch.from_numpy(_laguerre()[0])
    return torch.cat([s[1] * r, (1 - (s[-1] - s[-2]) * r).clamp(max=1 - 2.0**-53)])


def _end(value: Tensor, tail: Tensor) -> Tensor:
    """The end of the support where it is finite; infinite ends leave the graph, whose NaN would spread."""
    good = torch.isfinite(value)
    return torch.where(good, value, tail) if bool(good.any()) else tail


def _check_levels(levels: Tensor) -> None:
    rule = "at least two levels, in one axis"
    checks.require(levels.ndim == 1 and len(levels) >= 2, "levels.shape", levels.shape, rule, "pass (n + 1,)")
    if levels[0] != 0 or levels[-1] != 1:
        ends = (levels[0].item(), levels[-1].item())
        checks.fail("levels[0], levels[-1]", ends, "levels run from 0 to 1", "use graded_levels(n)")
    _increasing(levels, "levels")


def _check_x(x: Tensor, levels: Tensor) -> None:
    good = x.shape[-1:] == levels.shape and 0 not in x.shape
    checks.require(good, "x.shape", x.shape, f"(*batch, {len(levels)}) is needed", "pass one x per level")
    _increasing(x, "x")


def _increasing(a: Tensor, name: str) -> None:
    gap = torch.diff(a)
    if (gap <= 0).any():
        index = tuple(int(i) for i in (gap <= 0).nonzero()[0])
        where = ", ".join(map(str, index))
        rule = f"{name} must increase"
        remedy = f"pass {name}.sort().values; a measure with atoms has no density and needs Particles"
        checks.fail(f"{name}[{where} + 1] - {name}[{where}]", gap[index].item(), rule, remedy)
