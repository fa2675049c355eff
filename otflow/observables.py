"""Observables, functions of a measure: moments, extent, rank, clusters, dissipation.

Each takes a measure with any batch and returns one value per member, so that it can be handed to
``flow(..., observe={"rank": effective_rank})`` as it is, or applied to ``traj.stacked`` afterwards.
Energies are functions of a measure already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat, zip_longest
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.kernels import row_tiles
from otflow.base.spaces import Torus, norm
from otflow.dynamics.trajectory import Trajectory
from otflow.fields import SteepestDescent, VelocityField
from otflow.measures import Gaussian, Measure, Particles
from otflow.metrics import Wasserstein
from otflow.transport.chain import Distance, chain, geodesic

# A cloud narrower than this many roundings of its positions has no spread; chosen: a few more than a sum
# makes.
ROUNDINGS = 16

# --- moments -------------------------------------------------------------------------------------------


def mean(mu: Measure) -> Tensor:
    """m = int x dmu(x), shape (*batch, d).

    On a sphere this is the mean in the ambient space, whose norm says how far the tokens agree; a torus
    has none. A density on a grid counts as atoms in the centres of its cells.

    >>> from otflow.observables import mean
    >>> import otflow as of
    >>> mean(of.Particles([[0.0], [4.0]], w=[0.25, 0.75]))
    tensor([3.], dtype=torch.float64)
    """
    if isinstance(mu, Gaussian):
        return mu.mean.clone()
    x, w = _linear_nodes(mu)
    return (w[..., None] * x).sum(-2)


def covariance(mu: Measure) -> Tensor:
    """S = int (x - m)(x - m)^T dmu(x), shape (*batch, d, d): divided by the mass, not by n - 1.

    >>> from otflow.observables import covariance
    >>> import otflow as of
    >>> covariance(of.Particles([[0.0, 0.0], [4.0, 2.0]]))
    tensor([[4., 2.],
            [2., 1.]], dtype=torch.float64)
    """
    if isinstance(mu, Gaussian):
        return mu.cov
    x, w = _linear_nodes(mu)
    c = x - mean(mu)[..., None, :]
    return (w[..., None] * c).mT @ c


def second_moment(mu: Measure) -> Tensor:
    """int |x|^2 dmu(x) = |m|^2 + tr S, shape (*batch,).

    >>> from otflow.observables import second_moment
    >>> import otflow as of
    >>> second_moment(of.Gaussian([3.0, 0.0], root=[[2.0, 0.0], [0.0, 1.0]])).item()
    14.0
    """
    if isinstance(mu, Gaussian):
        return mu.mean.square().sum(-1) + mu.root.square().sum((-1, -2))
    x, w = _linear_nodes(mu)
    return (w * x.square().sum(-1)).sum(-1)


def effective_rank(mu: Measure) -> Tensor:
    """exp(-sum_k p_k log p_k), p_k = lambda_k / sum_j lambda_j, for the eigenvalues lambda of S; (*batch,).

    The number of directions in which mu spreads: d when it spreads evenly, 1 on a line, and 0, like the
    rank, when it does not spread at all, which for a cloud means no further than rounding. Scaling mu
    changes nothing while squares of positions stay within floating point. Reference: Roy and Vetterli
    2007, "The effective rank", for S.

    >>> from otflow.observables import effective_rank
    >>> import otflow as of
    >>> effective_rank(of.Particles([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])).item()
    2.0
    """
    S = covariance(mu)
    trace = S.diagonal(dim1=-1, dim2=-2).sum(-1)
    spread = trace > _noise(mu)
    safe = torch.where(spread, trace, torch.ones_like(trace))
    p = (torch.linalg.eigvalsh(S) / safe[..., None]).clamp(min=0)
    some = p > 0  # p log p is 0 at 0, but its derivative is not finite
    entropy = -torch.where(some, p * torch.where(some, p, torch.ones_like(p)).log(), torch.zeros_like(p)).sum(
        -1
    )
    return torch.where(spread, entropy.exp(), torch.zeros_like(trace))


def _noise(mu: Measure) -> Tensor:
    """The trace of a covariance that is nothing but rounding of the positions."""
    if isinstance(mu, Gaussian):
        return torch.zeros_like(mu.mean[..., 0])  # the root does not know the size of the mean
    return (ROUNDINGS * torch.finfo(mu.dtype).eps) ** 2 * second_moment(mu).detach()


def _linear_nodes(mu: Measure) -> tuple[Tensor, Tensor]:
    """Nodes of a measure on a space where points can be averaged."""
    if isinstance(mu, Particles) and isinstance(mu.space, Torus):
        rule = "moments on a torus depend on where it is cut open"
        remedy = "embed the tokens by cosines and sines first, or use diameter"
        checks.fail("mu.space", mu.space, rule, remedy)
    return mu.nodes()


# --- extent and clusters of a cloud --------------------------------------------------------------------


def radius(mu: Measure) -> Tensor:
    """max |x_i| over the atoms with mass, shape (*batch,).

    >>> from otflow.observables import radius
    >>> import otflow as of
    >>> radius(of.Particles([[3.0, 4.0], [30.0, 40.0]], w=[1.0, 0.0])).item()
    5.0
    """
    x, w = _linear_nodes(_cloud(mu, "radius"))
    return torch.where(w > 0, norm(x), torch.zeros_like(w)).amax(-1)


def diameter(mu: Measure) -> Tensor:
    """max d(x_i, x_j) over the atoms with mass, shape (*batch,), d the geodesic distance of the space.

    Takes O(n^2) time and O(n) memory; the gradient is that of one farthest pair.

    >>> from otflow.observables import diameter
    >>> import otflow as of
    >>> diameter(of.Particles([[0.1], [0.5], [0.9]], space=of.Torus(1.0))).item()
    0.4
    """
    cloud = _cloud(mu, "diameter")
    x = _massive(cloud)  # (B, n, d)
    far, i, j = (torch.zeros(len(x), dtype=k, device=x.device) for k in (x.dtype, torch.long, torch.long))
    # The farthest pair is found without a graph; only its distance is differentiated.
    for rows, d in _distances(cloud, x.detach()):
        top, where = d.flatten(1).max(-1)
        better = top > far
        far = torch.where(better, top, far)
        i = torch.where(better, where // d.shape[-1] + rows.start, i)
        j = torch.where(better, where % d.shape[-1], j)
    member = torch.arange(len(x), device=x.device)
    return cloud.space.distance(x[member, i], x[member, j]).reshape(mu.batch)


def cluster_count(mu: Measure, radius: float) -> Tensor:
    """The number of connected components of the graph d(x_i, x_j) <= radius, shape (*batch,), integers.

    ``radius`` is an absolute distance, in the units of the tokens and geodesic on spheres and tori; atoms
    without mass neither count nor connect. Takes about log n sweeps of O(n^2) time, and O(n) memory.

    >>> from otflow.observables import cluster_count
    >>> import otflow as of
    >>> cluster_count(of.Particles([[0.0], [1.0], [2.0], [9.0]]), radius=1.5).item()
    2
    """
    radius = checks.positive(radius, "radius")
    cloud = _cloud(mu, "cluster_count")
    x = _massive(cloud).detach()
    own = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    label, old = own, torch.full_like(own, -1)
    while not torch.equal(label, old):
        old = label
        for rows, d in _distances(cloud, x):
            label = _hook(label, d <= radius, rows)
    return (label == own).sum(-1).reshape(mu.batch)


def _hook(label: Tensor, near: Tensor, rows: slice) -> Tensor:
    """A step of min-label propagation for some rows of the graph; labels (B, n) are indices of tokens.

    Labels point to members of the same component, never upwards. The smallest label around a token
    goes to the token that it points to (the root of its tree, so that whole trees merge and the number of
    sweeps stays logarithmic, as in Shiloach and Vishkin 1982); then all pointers jump.
    """
    least = torch.where(near, label[:, None, :], label.shape[-1]).amin(-1)
    label = label.scatter_reduce(-1, label[:, rows], least, "amin")
    return label.gather(-1, label)


def _distances(mu: Particles, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Tiles of the distance matrices of clouds (B, n, d)."""
    for rows in row_tiles(x.shape[1], x.numel()):
        yield rows, mu.space.pairwise(x[:, rows], x)


def _massive(mu: Particles) -> Tensor:
    """Positions (B, n, d) in which atoms without mass hide behind the heaviest one."""
    heaviest = mu.w.argmax(-1)[..., None, None].expand(*mu.batch, 1, mu.d)
    x = torch.where(mu.w[..., None] > 0, mu.x, mu.x.gather(-2, heaviest))
    return x.reshape(-1, mu.n, mu.d)


def _cloud(mu: Measure, name: str) -> Particles:
    if not isinstance(mu, Particles):
        checks.fail(
            "mu", repr(mu), f"{name} looks at single atoms, which only Particles have", "use covariance"
        )
    return mu


# --- along a flow --------------------------------------------------------------------------------------


def dissipation(mu: Measure, field: VelocityField, t: float | Tensor) -> Tensor:
    """<v, v> at mu for v = field(t, mu), shape (*batch,).

    In the metric of the field if that is a `SteepestDescent`, where it is the rate -dF/dt at which the
    energy falls; else int |v|^2 dmu (also for sums of fields, which have no metric of their own).

    >>> from otflow.observables import dissipation
    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> dissipation(of.Particles([[3.0], [5.0]]), pull, 0.0).item()
    17.0
    """
    v = field(t, mu)
    metric = field.metric if isinstance(field, SteepestDescent) else Wasserstein()
    return metric.inner(mu, v, v)


def along(traj: Trajectory, f: Callable[[float, Measure], Any]) -> Tensor:
    """f(t, mu_t) at every save time, shape (T, *batch, ...): for what depends on time as well.

    >>> from otflow.observables import along, dissipation
    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> traj = of.flow(of.Particles([[1.0]]), pull, of.RK4(), t1=1.0, dt=0.5)
    >>> along(traj, lambda t, mu: dissipation(mu, pull, t)).shape
    torch.Size([3])
    """
    return torch.stack(
        [torch.as_tensor(f(float(t), mu)) for t, mu in zip(traj.ts, traj.measures, strict=True)]
    )


# --- between trajectories ------------------------------------------------------------------------------


def distances(
    a: Trajectory, b: Trajectory | Measure, of: Distance | None = None, *, progress: bool = False
) -> Tensor:
    """d(mu_t, nu_t) at every save time, shape (T, *batch).

    Args:
        a, b: two trajectories with the same save times, or one and a fixed measure; batches broadcast.
            Members that have ended stand still; between two runs, NaN while only one of them goes on.
        of: any function of two measures; by default the distance that `distance` gives them under
            `Wasserstein()`, which is conditional if they are labelled. Others are `wasserstein`, or
            ``lambda mu, nu: sinkhorn_divergence(mu, nu, 0.1)``. If its result has a ``distance``, as that of
            `solve` or of ``functools.partial(sinkhorn, eps=0.1)``, this is recorded; if it takes ``start=``
            as well, it starts from its result at the time before.
        progress: show a bar.

    Raises:
        ConvergenceError: at the end, if a distance did not converge, or if it depends on the cells of a
            `Grid` (see `wasserstein`); its ``result`` has all values.

    >>> from otflow.observables import distances
    >>> import otflow as of
    >>> pull = of.SteepestDescent(of.Potential(lambda x: x.square().sum(-1) / 2), of.Wasserstein())
    >>> a, b = (of.flow(of.Particles([[x]]), pull, of.RK4(), t1=1.0, dt=0.5) for x in (1.0, 3.0))
    >>> distances(a, b)  # 2 exp(-t)
    tensor([2.0000, 1.2135, 0.7363], dtype=torch.float64)
    """
    checks.require(
        len(a), "len(a)", 0, "a trajectory without save times has no distances", "save some states"
    )
    pairs = zip(a.measures, _partners(b, a), strict=True)
    found = chain(a.ts.tolist(), pairs, geodesic if of is None else of, progress=progress)
    if isinstance(b, Trajectory):
        found = found.masked_fill(_apart_in_time(a, b, found), torch.nan)
    return found


def _apart_in_time(a: Trajectory, b: Trajectory, found: Tensor) -> Tensor:
    """Members of which one has ended and the other has not, or later."""
    one, two = (
        c.reshape(len(c), *[1] * (found.ndim - c.ndim), *c.shape[1:]).to(found.device)
        for c in (a.clocks, b.clocks)
    )
    scale = float(a.ts.abs().max())
    return (one - two).abs() > 1e-9 * scale


def _partners(b: Trajectory | Measure, a: Trajectory) -> Iterable[Measure]:
    """What the measures of a are compared with, one after the other."""
    if isinstance(b, Measure):
        return repeat(b, len(a))
    if not isinstance(b, Trajectory):
        checks.fail("b", f"{b!r:.60}", "a Trajectory or a measure is needed", "pass what flow returned")
    scale = float(a.ts.abs().max())
    for i, (s, t) in enumerate(zip_longest(a.ts.tolist(), b.ts.tolist())):
        if s is None or t is None or abs(s - t) > 1e-9 * scale:
            rule = f"a was saved at {s}" if s is not None else "a was not saved as often"
            checks.fail(f"b.ts[{i}]", t, rule, "save both at the same times with save_at=")
    return b.measures
