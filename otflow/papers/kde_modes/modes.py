"""Modes of Gaussian kernel density estimators: counts, positions, and what is expected of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, numbers
from otflow.papers.kde_modes import counting
from otflow.papers.kde_modes.shot_noise import NOISE, shot_noise_modes
from otflow.papers.tokens import circle

MOST_BOXES = 2**31  # around a circle; beyond, the bandwidth is below the last digits of angles


class ModeCount(NamedTuple):
    """Numbers of modes and, as a certificate, of places where rounding leaves it open; (*batch,) both."""

    modes: Tensor
    undecided: Tensor


# --- counting ------------------------------------------------------------------------------------------


def count_modes(x: Any, beta: Any) -> Tensor:
    """The number of local maxima of t -> sum_i exp(-beta (t - x_i)^2 / 2), integers of shape (*batch,).

    Takes O(n log n) time, and O(n) memory. What it can miss is a maximum next to a minimum if the slopes in
    between stay below about 1e-14 of the terms of the sum (more by sqrt(n) / 64 for very many tokens in a
    bandwidth), or one that moving tokens by a unit in the last place creates; `certified_modes` tells whether
    the former is possible. The count never grows with the bandwidth (Silverman 1981, Gaussian kernels only).

    Args:
        x: tokens (*batch, n), in any order, repetitions allowed.
        beta: inverse squared bandwidth, > 0; one, or one for each member of the batch (broadcast).

    >>> from otflow.papers.kde_modes import count_modes
    >>> count_modes([0.0, 2.01], 1.0).item(), count_modes([0.0, 1.99], 1.0).item()
    (2, 1)
    """
    return certified_modes(x, beta).modes


def certified_modes(x: Any, beta: Any) -> ModeCount:
    """`count_modes`, and how many boxes of one bandwidth hold a piece in which rounding hides the sign of P'.

    If `undecided` is zero, every sign of P' that the count rests on is above rounding. In an undecided box
    P' is, on some piece, nothing but rounding: a flat maximum, which is counted anyhow, or nearly an
    inflection point, where there may be one mode more. Two tokens 2 bandwidths apart:

    >>> from otflow.papers.kde_modes import certified_modes
    >>> certified_modes([0.0, 2.0], 1.0)
    ModeCount(modes=tensor(1), undecided=tensor(1))
    """
    x, (root,) = _tokens(x), _positive(beta=beta)
    root = root.sqrt()
    try:
        batch = torch.broadcast_shapes(x.shape[:-1], root.shape)
    except RuntimeError:
        rule = f"the batch of x is {tuple(x.shape[:-1])}"
        checks.fail("beta.shape", tuple(root.shape), rule, "pass one beta, or one for each member")
    if 0 in batch:
        checks.fail("beta.shape", tuple(root.shape), "it is empty", "pass at least one beta")
    found, _ = _on_the_line(x.expand(*batch, x.shape[-1]), root.expand(batch))
    return ModeCount(*(torch.from_numpy(a).reshape(batch) for a in (found.number, found.undecided)))


def mode_positions(x: Any, beta: float) -> Tensor:
    """The local maxima of t -> sum_i exp(-beta (t - x_i)^2 / 2), increasing, shape (number of modes,).

    By Newton's method on the expansions in which they were counted, to a few units in the last place of a
    bandwidth, and of x, unless the maximum is flat.

    >>> from otflow.papers.kde_modes import mode_positions
    >>> mode_positions([0.0, 5.0, 5.0], 1.0).round(decimals=4)
    tensor([0.0000, 5.0000], dtype=torch.float64)
    """
    x, beta = _tokens(x), checks.positive(beta, "beta")
    if x.ndim != 1:
        rule = "members of a batch have different numbers of modes"
        checks.fail("x.shape", tuple(x.shape), rule, "pass one member")
    found, clusters = _on_the_line(x, torch.full((), math.sqrt(beta), dtype=torch.float64))
    which = np.searchsorted(clusters.start - 1, found.box, side="right") - 1
    u = (found.box - clusters.start[which]) + found.z / 2
    return torch.from_numpy(clusters.origin[which] + u / math.sqrt(beta))


def count_modes_circle(theta: Any, beta: float) -> Tensor:
    """The number of local maxima on the circle of t -> sum_i exp(beta cos(t - theta_i)), integers (*batch,).

    As exact as `count_modes`. There is one at least; it alone is counted where all are below rounding, as for
    many tokens evenly spread and a small beta.

    Args:
        theta: angles (*batch, n), any real numbers.
        beta: inverse temperature, one number > 0.

    >>> from otflow.papers.kde_modes import count_modes_circle
    >>> count_modes_circle([0.0, 3.1], 1.0).item(), count_modes_circle([0.0, 3.1], 0.1).item()
    (2, 2)
    """
    theta, beta = _tokens(theta, "theta"), checks.positive(beta, "beta")
    if 2 * math.pi * math.sqrt(beta) > MOST_BOXES:
        checks.fail("beta", beta, "angles have too few digits for it", "choose a beta below 1e17")
    batch, ring = theta.shape[:-1], counting.circle(beta)
    angles = theta.reshape(-1, theta.shape[-1]).numpy()
    layout = counting.circle_layout(angles, ring)
    found = counting.find_maxima(layout, ring.bumps, len(angles), periodic=True)
    return torch.from_numpy(np.maximum(found.number, 1)).reshape(batch)


def clusters_of_state(theta: Any, beta: float) -> Tensor:
    """The number of gaps > 1 / sqrt(beta) between neighbours on the circle, or 1 if there is none; (*batch,).

    Tokens less than a bandwidth apart are in one cluster. In a metastable state, when tokens on the circle
    have formed clusters that have not merged yet, this is the number of those clusters.

    >>> from otflow.papers.kde_modes import clusters_of_state
    >>> clusters_of_state([0.0, 0.01, 3.0, 6.28], beta=25.0).item()
    2
    """
    theta, beta = _tokens(theta, "theta"), checks.positive(beta, "beta")
    return (circle.gaps(theta)[1] > 1 / math.sqrt(beta)).sum(-1).clamp(min=1)


def _on_the_line(x: Tensor, root: Tensor) -> tuple[counting.Found, counting.BumpClusters]:
    tokens = np.sort(x.reshape(-1, x.shape[-1]).numpy(), -1)
    layout, clusters = counting.line_layout(tokens, root.reshape(-1).numpy())
    return counting.find_maxima(layout, counting.gaussian_bumps(), len(tokens)), clusters


def _tokens(x: Any, name: str = "x") -> Tensor:
    (out,) = numbers.tensors(**{name: x})
    if out.ndim == 0 or 0 in out.shape:
        rule = "at least one token is needed"
        checks.fail(f"{name}.shape", tuple(out.shape), rule, "pass an array (*batch, n)")
    return out


def _positive(**named: Any) -> list[Tensor]:
    values = numbers.tensors(**named)
    for name, value in zip(named, values, strict=True):
        numbers.positive(value, name)
    return values


def _place(t: Any, n: Any, beta: Any) -> list[Tensor]:
    t, n, beta = numbers.tensors(t=t, n=n, beta=beta)
    return [t, *_positive(n=n, beta=beta)]


# --- what is expected for tokens drawn from N(0, 1) ----------------------------------------------------


def expected_modes(n: Any, beta: Any) -> Tensor:
    """E # = int `mode_density` (t) dt: the number of modes for n tokens drawn from N(0, 1), broadcast.

    Within 3 % of simulations from beta = n^0.6 on (n = 20,000), and 1 % from n^0.7 on, without limit: every
    token is a mode in the end. Its law at n -> infinity is `asymptotic_constant` (b) sqrt(beta log beta).

    >>> from otflow.papers.kde_modes import expected_modes
    >>> expected_modes(20_000, 20_000).round().item()
    194.0
    """
    n, beta = _positive(n=n, beta=beta)
    top = (2 * n.log().clamp(min=0.0) + 90.0).sqrt()  # n phi(top) < 1e-19
    return 2 * _integral(lambda t: mode_density(t, n[..., None], beta[..., None]), top)


def mode_density(t: Any, n: Any, beta: Any) -> Tensor:
    """kappa(t) M(nu) / M(inf), nu = n phi(t) / sqrt(beta): expected modes per unit length at t, broadcast.

    kappa is `kac_rice_density`, which knows how the slope of the density of the tokens sweeps modes away but
    takes P' for Gaussian; M, `shot_noise_modes`, knows how many modes there are where tokens are sparse. The
    simpler sqrt(beta) M(nu) exp(-A_t) with `drift_damping` is its limit for beta >> n^(2/3). For n = 20,000
    its integral is lower by 0.6 % at beta = n^0.6, and by a fifth at n^0.4.

    >>> from otflow.papers.kde_modes import mode_density
    >>> mode_density(3.0, 10_000, 300.0)
    tensor(2.4287, dtype=torch.float64)
    """
    t, n, beta = _place(t, n, beta)
    nu = n * (-t.square() / 2).exp() / (2 * math.pi * beta).sqrt()
    return kac_rice_density(t, n, beta) * shot_noise_modes(nu) / NOISE


def kac_rice_density(t: Any, n: Any, beta: Any) -> Tensor:
    """E[max(-F', 0) | F = 0] p_F(0) for jointly Gaussian (F, F') with the exact moments, broadcast.

    F(t) = sum_i (X_i - t) exp(-beta (t - X_i)^2 / 2) is P' / beta, and its changes from plus to minus are the
    modes (Kac 1943, Rice 1944). For beta >> n^(2/3) this is 0.194924 sqrt(beta) exp(-A_t). F is Gaussian
    where many tokens lie within a bandwidth of t; where there are none, the formula is meaningless.

    >>> from otflow.papers.kde_modes import kac_rice_density
    >>> kac_rice_density(2.0, 1e6, 1e4) / 100
    tensor(0.0901, dtype=torch.float64)
    """
    t, n, beta = _place(t, n, beta)
    one, two = _moments(t, beta, 1), _moments(t, beta, 2)
    # All is divided by E exp(-y^2), which underflows in the tails; only ratios matter.
    ratio = _log_mass(t, beta) - _log_mass(t, 2 * beta) / 2
    f, g = (ratio.exp() * m for m in (one[1], one[2] - 1))
    a = two[2] - f.square()
    b = two[3] - two[1] - f * g
    c = two[4] - 2 * two[2] + 1 - g.square()
    shift, spread = g - b / a * f, (c - b.square() / a).clamp(min=0.0).sqrt()
    z = n.sqrt() * shift / spread
    below = _normal(z) - z * torch.special.ndtr(-z)  # E max(-Y, 0) / spread
    density: Tensor = beta.sqrt() * _normal(n.sqrt() * f / a.sqrt()) * (spread / a.sqrt()) * below
    return density


def kac_rice_modes(n: Any, beta: Any, *, between: tuple[float, float] | None = None) -> Tensor:
    """int kac_rice_density over ``between``, or over both halves of the `belt`; broadcast.

    The modes of the sparse tails are not in it.

    >>> from otflow.papers.kde_modes import kac_rice_modes
    >>> kac_rice_modes(1000, 1000).round(decimals=1)
    tensor(31.8000, dtype=torch.float64)
    """
    n, beta = _positive(n=n, beta=beta)

    def up_to(s: Tensor) -> Tensor:
        return _integral(lambda t: kac_rice_density(t, n[..., None], beta[..., None]), s)

    if between is None:
        low, high = belt(n, beta)
        return 2 * (up_to(high) - up_to(low))
    start, stop = (torch.full_like(n, end) for end in _ends(between))
    total: Tensor = stop.sign() * up_to(stop.abs()) - start.sign() * up_to(start.abs())
    return total


def _ends(between: Any) -> list[float]:
    if not isinstance(between, tuple | list) or len(between) != 2:
        checks.fail("between", repr(between), "two ends are needed", "pass (start, stop)")
    return [checks.number(end, "between") for end in between]


def drift_damping(t: Any, n: Any, beta: Any) -> Tensor:
    """A_t = sqrt(2) n beta^(-3/2) t^2 exp(-t^2 / 2): the slope of the tokens' density at t against the noise.

    Modes survive where A_t is small. (It is E[F]^2 / (2 Var F) for beta >> 1, linear in n.)

    >>> from otflow.papers.kde_modes import drift_damping
    >>> drift_damping(1.0, 1000, 100.0)
    tensor(0.8578, dtype=torch.float64)
    """
    t, n, beta = _place(t, n, beta)
    A: Tensor = math.sqrt(2) * n * beta**-1.5 * t.square() * (-t.square() / 2).exp()
    return A


def belt(n: Any, beta: Any) -> tuple[Tensor, Tensor]:
    """t_low, t_high >= 0 with t^2 = 2 log n - 3 log beta (or 0) and t^2 = 2 log n - log beta, broadcast.

    Where all but a vanishing share of the modes are, with both signs of t (arXiv 2412.09080).

    >>> from otflow.papers.kde_modes import belt
    >>> belt(10_000, 300.0)
    (tensor(1.1443, dtype=torch.float64), tensor(3.5661, dtype=torch.float64))
    """
    n, beta = _positive(n=n, beta=beta)
    low, high = (2 * n.log() - k * beta.log() for k in (3, 1))
    if (high < 0).any():
        checks.fail("beta", beta.max().item(), "the belt is empty beyond n^2", "choose a beta <= n^2")
    return low.clamp(min=0.0).sqrt(), high.sqrt()


def asymptotic_constant(b: Any) -> Tensor:
    """(1 / pi) sqrt(3/2) (sqrt(2/b - 1) - sqrt((2/b - 3)_+)): lim E # / sqrt(beta log beta) for beta = n^b.

    The width of the belt times 0.194924 = sqrt(3/2) / (2 pi), the density of modes of noise. The limit is
    approached like 1 / log n.

    >>> from otflow.papers.kde_modes import asymptotic_constant
    >>> asymptotic_constant(1.0)
    tensor(0.3898, dtype=torch.float64)
    """
    (b,) = numbers.tensors(b=b)
    numbers.insist((b > 0) & (b < 2), "b", b, "beta = n^b with 0 < b < 2", "pass b=1.0, say")
    constant: Tensor = 2 * NOISE * ((2 / b - 1).sqrt() - (2 / b - 3).clamp(min=0.0).sqrt())
    return constant


def _normal(z: Tensor) -> Tensor:
    return (-z.square() / 2).exp() / math.sqrt(2 * math.pi)


def _log_mass(t: Tensor, c: Tensor) -> Tensor:
    """log E exp(-c z^2 / 2), z ~ N(-t, 1)."""
    return -(torch.log1p(c) + t.square() * c / (1 + c)) / 2


def _moments(t: Tensor, beta: Tensor, k: int) -> list[Tensor]:
    """E[y^p exp(-k y^2 / 2)] / E[exp(-k y^2 / 2)], y = sqrt(beta) (X - t), X ~ N(0, 1), p = 0..4.

    The moments of a Gaussian, with variance beta / (1 + k beta).
    """
    s = beta / (1 + k * beta)
    m = -t * beta.sqrt() / (1 + k * beta)
    m2 = m.square()
    return [torch.ones_like(m), m, m2 + s, m * (m2 + 3 * s), m2.square() + 6 * m2 * s + 3 * s.square()]


def _integral(f: Callable[[Tensor], Tensor], top: Tensor) -> Tensor:
    """int_0^top f by Gauss on panels that shrink towards zero, where one mode may be within 1 / sqrt(n)."""
    x, w = np.polynomial.legendre.leggauss(16)
    edges = np.append(2.0 ** (-np.arange(120.0) / 4), 0.0)[::-1]
    half = np.diff(edges)[:, None] / 2
    u, weight = (torch.from_numpy(a.ravel()) for a in (edges[:-1, None] + half * (1 + x), half * w))
    total: Tensor = top * (f(top[..., None] * u) * weight).sum(-1)
    return total
