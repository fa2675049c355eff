"""Sequences of different lengths, compared token by token at the same quantile of their labels.

A labelled cloud is read as a law on [0, 1] x R^d. The tokens stand in the order of their labels, and those
with label s fill the interval of quantiles between the mass of the labels before s and that up to s; within a
fibre tokens are exchangeable, so that its law is the same all along its interval. Two sequences cut [0, 1]
into pieces on which both laws are constant, and each piece becomes a label that both share.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.spaces import Space
from otflow.measures import Measure, Particles
from otflow.transport.comparable import exponent, merge, pair, places
from otflow.transport.exact.conditional import conditional_wasserstein
from otflow.transport.exact.network_simplex import negligible
from otflow.transport.ranges import rounded


def sequence_distance(mu: Measure, nu: Measure, p: float = 2) -> Tensor:
    """d_p(mu, nu) = (int_0^1 W_p(mu^u, nu^u)^p du)^(1/p), (*batch,), with mu^u the law at the quantile u.

    Sequences of different lengths become comparable: n and m tokens with distinct labels and uniform weights
    are two step functions on [0, 1], and this is the L^p norm of their difference, a sum of at most n + m - 1
    terms in O((n + m) log(n + m)) time. Tokens that share a label share an interval; where both sequences
    have such fibres, each pair of them that meets is a problem of optimal transport.

    Only the order of the labels and their masses matter: labels 0, 1, 2 and labels 0, 1, 9 mean the same, as
    they do to masked attention. `conditional_wasserstein` instead compares tokens whose labels are the same
    number, and needs the same law of labels in both; where that is so, the two agree.

    Atoms without mass are ignored, and pieces within the rounding of cumulative weights. Differentiable in
    points as `conditional_wasserstein` is, and in weights wherever no two ends of intervals coincide.

    Args:
        mu, nu: labelled `Particles` on the same space. Their batches broadcast.
        p: the order, from 1 to 500; or infinity, as long as no two fibres with several atoms meet.

    References: Castin, Ablin, Carrillo and Peyré 2025, Definition 3.2 (the distance at one law of labels);
    Chemseddine, Hagemann, Steidl and Wald 2025, "Conditional Wasserstein distances".

    >>> from otflow import sequence_distance
    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [1.0]], label=[0, 1])
    >>> nu = of.Particles([[0.0], [1.0], [1.0]], label=[0, 5, 9])  # 1 from the quantile 1/3 on, not 1/2
    >>> sequence_distance(mu, nu, p=1).item()
    0.1667
    """
    p, both = exponent(p), pair(mu, nu)
    s, t = (merge(_label(one, name), both.batch, 1) for one, name in ((mu, "mu"), (nu, "nu")))
    ours, theirs = QuantileSteps.of(both.x, both.w, s), QuantileSteps.of(both.y, both.v, t)
    pieces = _common(ours, theirs)
    d = conditional_wasserstein(
        ours.on(pieces.ours, pieces, both.space), theirs.on(pieces.theirs, pieces, both.space), p
    )
    return rounded(d.reshape(both.batch), mu.dtype, "distance")


def positions(n: int) -> Tensor:
    """(i - 1/2) / n for i = 1, ..., n: the middles of the intervals of n tokens, as labels in [0, 1], (n,).

    >>> from otflow.transport import positions
    >>> positions(4)
    tensor([0.1250, 0.3750, 0.6250, 0.8750], dtype=torch.float64)
    """
    n = checks.count(n, "n")
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def _label(mu: Measure, name: str) -> Tensor:
    label = mu.label if isinstance(mu, Particles) else None
    if label is None:
        checks.fail(name, repr(mu), "a sequence has labels", "pass Particles(x, label=...)")
    return checks.finite(label, f"{name}.label")


class QuantilePieces(NamedTuple):
    """The common refinement of two partitions of [0, 1], for each member of a batch."""

    length: Tensor  # (B, K)
    ours: Tensor  # (B, K), the fibre of the first sequence
    theirs: Tensor  # (B, K), that of the second one
    kept: Tensor  # (B, K), False for pieces without length


class QuantileSteps(NamedTuple):
    """Sequences as step functions of the quantile: atoms by label, and fibres, which come with mass first."""

    x: Tensor  # (B, n, d)
    w: Tensor  # (B, n)
    order: Tensor  # (B, n), atoms in the order of their labels
    mass: Tensor  # (B, n), of each fibre
    size: Tensor  # (B, n), its number of atoms
    ends: Tensor  # (B, n), where its interval ends

    @classmethod
    def of(cls, x: Tensor, w: Tensor, label: Tensor) -> Self:
        """From tokens (B, n, d) in any order."""
        label, order = torch.where(w > 0, label, torch.inf).sort(-1)  # atoms without mass go to the end
        fresh = torch.ones_like(order)
        fresh[:, 1:] = label[:, 1:] != label[:, :-1]
        fibre = fresh.cumsum(-1) - 1
        mass = torch.zeros_like(w).scatter_add(-1, fibre, w.gather(-1, order))
        size = torch.zeros_like(order).scatter_add(-1, fibre, torch.ones_like(fibre))
        return cls(x, w, order, mass, size, _ends(mass))

    def on(self, fibre: Tensor, pieces: QuantilePieces, space: Space) -> Particles:
        """The same sequence with pieces for labels: an atom has a copy on every piece of its interval."""
        B, K = fibre.shape
        count = torch.where(pieces.kept, self.size.gather(-1, fibre), 0)
        piece = torch.arange(B * K, device=count.device).repeat_interleave(count.flatten())
        member, own = piece // K, fibre.flatten()[piece]
        atom = self.order[member, (self.size.cumsum(-1) - self.size)[member, own] + places(count.flatten())]
        share = pieces.length.flatten()[piece] * (self.w[member, atom] / self.mass[member, own])
        # Members with fewer copies are filled up by atoms without mass.
        place = (member, places(count.sum(-1)))
        blank = count.new_zeros(B, int(count.sum(-1).max()))
        w = share.new_zeros(blank.shape).index_put(place, share)
        atoms, label = blank.index_put(place, atom), blank.index_put(place, piece % K)
        return Particles(self.x.take_along_dim(atoms[..., None], 1), w, label, space)


def _ends(mass: Tensor) -> Tensor:
    """Cumulative masses, exactly one from the last fibre with mass on."""
    last = (mass > 0).sum(-1, keepdim=True) - 1
    inner = torch.arange(mass.shape[-1], device=mass.device) < last
    return torch.where(inner, mass.cumsum(-1).clamp(max=1.0), 1.0)


def _common(ours: QuantileSteps, theirs: QuantileSteps) -> QuantilePieces:
    cuts = torch.cat([ours.ends, theirs.ends], -1).sort(-1).values
    length = torch.diff(cuts, prepend=torch.zeros_like(cuts[:, :1]))
    r, s = (torch.searchsorted(one.ends.detach(), cuts.detach()) for one in (ours, theirs))
    # Ends that agree up to rounding, or exactly, enclose a piece that is none.
    noise = negligible(length, ours.mass.gather(-1, r), theirs.mass.gather(-1, s), cuts.shape[-1])
    return QuantilePieces(length, r, s, ~noise)
