"""Causal attention with ALiBi on the circle: the field, prompts, and what is measured on them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy import special
from torch import Tensor

from otflow.base import checks
from otflow.base.numbers import at_least_zero, batch_shape
from otflow.base.spaces import Torus
from otflow.base.tangent import Tangent
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles
from otflow.papers.lost_in_the_middle.retrieval import inverse_temperature, vocabulary

SMALL = 1e-14  # modes are dropped when together they are smaller than this part of the force
SPAN = 60.0  # weights within a block of tokens differ by exp(60) at most; beyond it, they do not count
COPIES = 2  # of the Gaussian around the circle on either side: the next is below exp(-25 M^2 / 2) <= 2e-22


class CausalAlibi(VelocityField):
    """v_j = 1/Z_j sum_{k<j} exp(-lam (j-k)/N) w'(theta_j - theta_k), w(x) = exp(beta cos x).

    Tokens are angles, ``Particles(theta[..., None], space=Torus())``, as `tokens` makes them. Their position
    in the sequence is the order of the labels if there are any (equal ones in the order of their index), else
    that of their index. The first token never moves. Z normalises the weights of ALiBi only: no softmax.

    As w'(x) = -2 sum_n n I_n(beta) sin(nx) and the weights factorise, each mode is a weighted prefix sum:
    O(N modes) operations and O(N) memory.

    The error of a velocity is absolute: up to 1e-14 beta exp(beta), and beta exp(beta) bounds the force of a
    token. A token at distance x pulls by beta |sin x| exp(beta cos x); its digits, and for small pulls its
    sign, are lost as exp(-beta (1 - cos x)) comes down to 1e-14. Up to beta = 8 the whole circle keeps six
    digits or more away from 0 and pi; from beta = 16 on, nothing of the far side is left; at beta = 150 only
    tokens within 0.6 are felt. It matters where a token has no other near it that pulls.

    Args:
        beta: inverse temperature, 0 or from 1e-100 to 700.
        lam: slope of ALiBi >= 0, per length of the sequence; 0 weighs all earlier tokens alike.
        modes: number of Fourier modes of w'; by default so many that the others are below 1e-14 of
            2 sum_n n I_n(beta). The number is kept as ``modes``.

    >>> from otflow.papers.lost_in_the_middle import CausalAlibi, tokens
    >>> import numpy as np
    >>> field = CausalAlibi(beta=1.0, lam=1.0)
    >>> field
    CausalAlibi(beta=1, lam=1, modes=14)
    >>> field(0.0, tokens([0.0, np.pi / 2, np.pi]))[0].flatten()
    tensor([ 0.0000, -1.0000, -0.5826], dtype=torch.float64)
    """

    def __init__(self, beta: float, lam: float, *, modes: int | None = None) -> None:
        self.beta = float(inverse_temperature(checks.number(beta, "beta")))
        self.lam = checks.number(lam, "lam")
        at_least_zero(self.lam, "lam")
        self.modes = _enough_modes(self.beta) if modes is None else checks.count(modes, "modes")

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        theta, order = _sequence(mu)
        v = torch.nn.functional.pad(self._force(theta.double()), (1, 0)).to(theta.dtype)
        if order is not None:
            v = torch.zeros_like(v).scatter(-1, order, v)
        return Tangent([v[..., None]])

    def _force(self, theta: Tensor) -> Tensor:
        """Velocities (*batch, N - 1) of all tokens but the first: Im sum_n c_n z_j^n mean_k conj(z_k)^n."""
        N = theta.shape[-1]
        weights = _Weights(N - 1, self.lam / N, theta.device)
        z = torch.complex(theta.cos(), theta.sin())
        own, past = weights.blocks(z[..., 1:]), weights.blocks(z[..., :-1]).conj().resolve_conj()
        n = np.arange(1, self.modes + 1)
        power, other, total = own, past * weights.up, torch.zeros_like(own)
        for k, c in enumerate(-2 * n * special.ive(n, self.beta)):
            if k:  # powers by products: each costs one rounding, and no digits are lost near 0 or pi
                power, other = power * own, other * past
            total = torch.addcmul(total, power, weights.sums(other), value=float(c))
        return math.exp(self.beta) * weights.down * total.flatten(-2)[..., : N - 1].imag

    def pick(self, which: Tensor) -> Self:
        """The same field: it holds nothing that depends on the member."""
        return self

    def __repr__(self) -> str:
        return f"CausalAlibi(beta={self.beta:g}, lam={self.lam:g}, modes={self.modes})"


class _Weights:
    """The weights q^(j-k) / sum_{k<=j} q^(j-k), q = exp(-rate), for 0 <= k <= j < N, as up_k * down_j.

    So that weighted means are cumulative sums. In blocks, within which the factors neither overflow nor
    vanish; of the blocks before, only the last is still heard.
    """

    def __init__(self, N: int, rate: float, device: torch.device) -> None:
        self.length = max(1, N if rate * N <= SPAN else int(SPAN / rate))
        j = torch.arange(N, dtype=torch.float64, device=device)
        inner = torch.remainder(j, self.length)
        self.up = (rate * inner[: self.length]).exp()
        self.down = (-rate * inner).exp() / _geometric(j + 1, rate)
        self.carry = math.exp(-rate * self.length)

    def blocks(self, z: Tensor) -> Tensor:
        """(*batch, N) -> (*batch, blocks, length), with zeros at the end."""
        full = torch.nn.functional.pad(z, (0, -z.shape[-1] % self.length))
        return full.reshape(*z.shape[:-1], full.shape[-1] // self.length, self.length)

    def sums(self, z: Tensor) -> Tensor:
        """Cumulative sums through a block and the one before it, in the units of the block."""
        inside: Tensor = z.cumsum(-1)
        if z.shape[-2] == 1:
            return inside
        return inside + self.carry * torch.nn.functional.pad(inside[..., :-1, -1:], (0, 0, 1, 0))


def _geometric(m: Tensor, rate: float) -> Tensor:
    """1 + q + ... + q^(m-1)."""
    return torch.expm1(-rate * m) / math.expm1(-rate) if rate > 0 else m


def _enough_modes(beta: float) -> int:
    """The number of modes beyond which 2 sum n I_n(beta) is below 1e-14 of the whole sum."""
    n = np.arange(1, int(60 + 10 * math.sqrt(beta) + beta / 4))
    size = n * special.ive(n, beta)
    tail = size[::-1].cumsum()[::-1]
    return max(1, int((tail > SMALL * tail[0]).sum()))


def _sequence(mu: Measure) -> tuple[Tensor, Tensor | None]:
    """Angles (*batch, N) in the order of the sequence, and which token is where unless that is the index."""
    if not isinstance(mu, Particles) or not isinstance(mu.space, Torus) or mu.d != 1:
        checks.fail("mu", repr(mu), "angles on the circle are needed", "make them with causal.tokens(theta)")
    if not math.isclose(mu.space.period, 2 * math.pi, rel_tol=1e-12):
        checks.fail("mu.space", mu.space, "angles have the period 2 pi", "use Torus()")
    if not mu.uniform:
        checks.fail("mu.w", "given", "the tokens of a prompt have equal weights", "leave w out")
    if mu.label is None:
        return mu.x[..., 0], None
    order = mu.label.argsort(dim=-1, stable=True)
    return mu.x[..., 0].gather(-1, order), order


# --- prompts -------------------------------------------------------------------------------------------


def tokens(theta: Any) -> Particles:
    """Angles (*batch, N), in the order of the sequence, as tokens on the circle; angles count modulo 2 pi.

    >>> from otflow.papers.lost_in_the_middle import tokens
    >>> tokens([0.0, 1.0, 2.0])
    Particles(n=3, d=1, space=Torus(period=6.283185307179586))
    """
    theta = checks.tensor(theta, "theta")
    if theta.ndim == 0:
        checks.fail("theta", theta.item(), "angles have shape (*batch, N)", "pass a list of angles")
    return Particles(theta[..., None], space=Torus())


def angles(mu: Measure) -> Tensor:
    """Angles (*batch, N) of tokens, in the order of the sequence: that of the labels, if there are any.

    >>> from otflow.papers.lost_in_the_middle import angles, tokens
    >>> angles(tokens([0.0, 7.0]))
    tensor([0.0000, 0.7168], dtype=torch.float64)
    """
    return _sequence(mu)[0]


def prompts(
    N: int, M: int | None = None, *, rng: int | np.random.Generator, batch: int | tuple[int, ...] = ()
) -> Particles:
    """Prompts of N independent uniform tokens: anywhere on the circle, or among the M words 2 pi m / M.

    The theory is that of the continuous law; M words have the same Fourier modes up to M - 1.

    Args:
        N: number of tokens; M: number of words; batch: how many prompts.
        rng: a seed or a `numpy.random.Generator`.

    >>> from otflow.papers.lost_in_the_middle import angles, prompts
    >>> import numpy as np
    >>> angles(prompts(4, 2, rng=np.random.default_rng(0), batch=(2,))).shape
    torch.Size([2, 4])
    """
    rng, shape = checks.generator(rng), (*batch_shape(batch), checks.count(N, "N"))
    if M is None:
        return tokens(rng.uniform(0, 2 * math.pi, shape))
    return tokens(2 * math.pi * rng.integers(checks.count(M, "M"), size=shape) / M)


# --- what is measured ----------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """A mean over prompts and its standard error."""

    value: Tensor
    error: Tensor


def correlations(theta0: Any, reader: Any, n: int = 1) -> Estimate:
    """E cos(n (theta_N(t) - theta_i(0))) for all i, from prompts and where their last token went.

    Times N this tends to `response` with a = `coupling` (n, beta); the standard error before that is
    (2B)^(-1/2), so that many prompts are needed. `gradient_correlations` needs far fewer.

    The last of them, i = N, is not small.

    Args:
        theta0: angles (B, N) at the start; reader: angles (B,) of the last token later; n: Fourier mode.

    >>> from otflow.papers.lost_in_the_middle import correlations
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> correlations(rng.uniform(0, 6.28, (100, 8)), rng.uniform(0, 6.28, 100)).value.shape
    torch.Size([8])
    """
    theta0, reader = _pair(theta0, reader)
    return _estimate(torch.cos(checks.count(n, "n") * (reader[:, None] - theta0)))


def gradient_correlations(theta0: Any, reader: Any, slope: Any, n: int = 1) -> Estimate:
    """E slope_i cos(n (theta_N(t) - theta_i(0))), slope_i = d theta_N(t) / d theta_i(0): the same, sharper.

    Integration by parts in theta_i(0), which is uniform, gives the expectation of `correlations` exactly, for
    i < N; but the slopes are of order 1/N, and so is the standard error times B^(1/2).

    Args:
        theta0: angles (B, N); reader: angles (B,); slope: (B, N), by autograd; n: Fourier mode.

    >>> from otflow.papers.lost_in_the_middle import gradient_correlations
    >>> gradient_correlations([[0.0, 1.0], [2.0, 3.0]], [1.0, 3.0], [[0.5, 1.0], [0.5, 1.0]]).value
    tensor([0.2702, 1.0000], dtype=torch.float64)
    """
    theta0, reader = _pair(theta0, reader)
    slope = checks.tensor(slope, "slope").detach().double()
    if slope.shape != theta0.shape:
        checks.fail("slope.shape", tuple(slope.shape), "it must be that of theta0", "pass theta0.grad")
    return _estimate(slope * torch.cos(checks.count(n, "n") * (reader[:, None] - theta0)))


def soft_accuracy(reader: Any, star: Any, M: int) -> Tensor:
    """sum_k exp(-M^2 (theta_N - theta_* - 2 pi k)^2 / (2 pi^2)): does the reader name the word theta_*?

    A Gaussian of width pi/M around the word, wrapped around the circle. Its mean over prompts is
    `predicted_accuracy`.

    Args:
        reader, star: angles, which broadcast; M: number of words.

    >>> from otflow.papers.lost_in_the_middle import soft_accuracy
    >>> soft_accuracy(0.0, [0.0, 6.283185307179586, 0.5], 8)
    tensor([1.0000, 1.0000, 0.4445], dtype=torch.float64)
    """
    M = vocabulary(M)
    reader, star = checks.tensor(reader, "reader").double(), checks.tensor(star, "star").double()
    try:
        x = reader - star
    except RuntimeError:
        shapes = (tuple(reader.shape), tuple(star.shape))
        checks.fail("shapes of reader, star", shapes, "they do not broadcast", "give them equal axes")
    x = x - 2 * math.pi * torch.round(x / (2 * math.pi))
    copies = [torch.exp(-((M * (x / math.pi - 2 * k)) ** 2) / 2) for k in range(-COPIES, COPIES + 1)]
    return torch.stack(copies).sum(0)


def _pair(theta0: Any, reader: Any) -> tuple[Tensor, Tensor]:
    theta0, reader = (
        checks.tensor(a, name).detach().double() for a, name in ((theta0, "theta0"), (reader, "reader"))
    )
    if theta0.ndim != 2 or len(theta0) < 2 or reader.shape != theta0.shape[:1]:
        shapes = (tuple(theta0.shape), tuple(reader.shape))
        checks.fail(
            "theta0.shape, reader.shape",
            shapes,
            "(B, N) and (B,) with B >= 2 are needed",
            "call prompts(N, rng=0, batch=B) for theta0",
        )
    return theta0, reader


def _estimate(x: Tensor) -> Estimate:
    return Estimate(x.mean(0), x.std(0) / math.sqrt(len(x)))
