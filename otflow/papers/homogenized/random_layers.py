"""A deep random Transformer, layer after layer: every head draws its own weights.

With Gaussian weights no matrix of size d is drawn. Write the tokens as x = L Q^T, Q with orthonormal columns
and L of shape (n, k), k = min(n, d). The law of Q^T W W'^T Q is sigma_A^2 times that of T Z, where T is lower
triangular, T_ii^2 chi-square with d - i + 1 degrees of freedom (i from 1), all other entries standard normal
(Bartlett), and Z is a Gaussian (k, k) matrix. Given the barycentres, what the values add to the tokens is
Gaussian as well. This is exact in law, and for few tokens in high dimension much cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, numbers
from otflow.base.errors import NotFiniteError
from otflow.base.kernels import attend
from otflow.papers.homogenized import weights as laws
from otflow.papers.homogenized.weights import GaussianWeights, Law, Seed, normal, tokens

LIMIT = 2**18  # numbers per array: a chunk stays in cache


# --- one layer -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draws:
    """Random numbers for a batch; in pairs, members 2j and 2j + 1 share them up to the sign of values."""

    rng: np.random.Generator
    pairs: bool = False

    def normal(self, shape: Sequence[int], *, odd: bool = False) -> Tensor:
        z = normal(self.rng, (shape[0] // 2, *shape[1:]) if self.pairs else shape)
        return torch.stack([z, -z if odd else z], 1).flatten(0, 1) if self.pairs else z

    def bartlett(self, shape: Sequence[int], d: int) -> Tensor:
        """T of shape (*shape, k, k), k = shape[-1]: T T^T is Wishart with d degrees of freedom."""
        k, size = shape[-1], (shape[0] // 2 if self.pairs else shape[0], *shape[1:])
        chi = torch.from_numpy(np.sqrt(self.rng.chisquare(d - np.arange(k), size)))
        T = torch.tril(normal(self.rng, (*size, k)), -1) + torch.diag_embed(chi)
        return T.repeat_interleave(2, 0) if self.pairs else T


def frame(x: Tensor) -> Tensor:
    """L (*batch, n, k) with L L^T = x x^T, k = min(n, d); by QR, which loses no digits when tokens meet."""
    return x if x.shape[-2] >= x.shape[-1] else torch.linalg.qr(x.mT, mode="r").R.mT


def barycentres(
    weights: GaussianWeights, x: Tensor, beta: float, heads: int, draws: Draws, *, ambient: bool
) -> Tensor:
    """m_A(x_i) = sum_k softmax_k(beta <A x_i, x_k>) x_k for each head, (B, heads, n, d).

    Unless ``ambient``, in coordinates of `frame`, (B, heads, n, k): inner products are the same.
    """
    L = frame(x)
    values = (x if ambient else L)[:, None].expand(-1, heads, -1, -1)
    q, keys = [], []
    if beta > 0 and weights.sigma_A > 0:
        size = (x.shape[0], heads, L.shape[-1])
        core = draws.bartlett(size, weights.d) @ draws.normal((*size, size[-1]))
        q.append(beta * weights.sigma_A**2 * L[:, None] @ core)
        keys.append(L)
    if beta > 0 and weights.mean_A is not None:
        q.append((beta * x @ weights.mean_A.mT)[:, None].expand(-1, heads, -1, -1))
        keys.append(x)
    if not q:  # all scores are zero, and a head looks at all tokens alike
        return values.mean(-2, keepdim=True).expand_as(values)
    return attend(torch.cat(q, -1), torch.cat(keys, -1)[:, None], values)[0]


@singledispatch
def pushed(weights: Any, x: Tensor, beta: float, heads: int, draws: Draws) -> Tensor:
    """sum_h V_h m_{A_h}(x_i), (B, n, d), for any law that draws matrices."""
    shape = (x.shape[0], heads, x.shape[-1], x.shape[-1])
    drawn = weights(draws.rng, shape[:2])
    if not (isinstance(drawn, tuple | list) and len(drawn) == 2):
        checks.fail("weights(rng, shape)", type(drawn).__name__, "a pair V, A is needed", "return V, A")
    V, A = (checks.tensor(M, name).detach().double() for M, name in zip(drawn, "VA", strict=True))
    for M, name in ((V, "V"), (A, "A")):
        if M.shape != shape:
            rule = f"weights(rng, {shape[:2]}) returns V, A"
            checks.fail(f"shape of {name} drawn", tuple(M.shape), rule, f"{shape}")
    xs = x[:, None]
    return (attend(beta * xs @ A.mT, xs, xs)[0] @ V.mT).sum(1)


@pushed.register
def _(weights: GaussianWeights, x: Tensor, beta: float, heads: int, draws: Draws) -> Tensor:
    m = barycentres(weights, x, beta, heads, draws, ambient=weights.mean_V is not None)
    out = torch.zeros_like(x)
    if weights.sigma_V > 0:
        C = root(m)
        out = weights.sigma_V * C @ draws.normal((x.shape[0], C.shape[-1], x.shape[-1]), odd=True)
    return out if weights.mean_V is None else out + m.sum(1) @ weights.mean_V.mT


def root(m: Tensor) -> Tensor:
    """C (B, n, r) with C C^T = sum_h m_h m_h^T, r <= n."""
    side = m.transpose(1, 2).flatten(2)  # (B, n, heads k)
    return side if side.shape[-1] <= m.shape[2] else torch.linalg.qr(side.mT, mode="r").R.mT


def layer(weights: Law, x: Tensor, beta: float, eta: float, heads: int, draws: Draws) -> Tensor:
    """N(x_i + eta/H sum_h V_h m_{A_h}(x_i)), N(x) = x / |x|, for (B, n, d)."""
    step = max(1, LIMIT // (x.shape[0] * width(weights, *x.shape[-2:])))  # heads at once
    total = sum(pushed(weights, x, beta, min(step, heads - h), draws) for h in range(0, heads, step))
    return torch.nn.functional.normalize(x + eta / heads * total, dim=-1, eps=0.0)


def width(weights: Law, n: int, d: int) -> int:
    """Numbers that one head needs for one member."""
    if not isinstance(weights, GaussianWeights):
        return max(n * n, 2 * d * d)
    inner = min(n, d) if weights.mean_V is None and weights.mean_A is None else d
    return max(n, inner) * inner


# --- the chain -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ChainRun:
    """Tokens x (saves, *batch, n, d) after ``layers`` (saves,) layers of step eta with so many heads."""

    x: Tensor
    layers: Tensor
    eta: float
    heads: int

    @property
    def depth(self) -> Tensor:
        """eta L, the time of the ODE."""
        return self.eta * self.layers

    @property
    def clock(self) -> Tensor:
        """eta^2 L / H, the time of the SDE if sigma_V^2 = 1/d."""
        return self.eta**2 / self.heads * self.layers

    @property
    def overlaps(self) -> Tensor:
        """R_ij = <x_i, x_j>, (saves, *batch, n, n)."""
        return self.x @ self.x.mT

    @property
    def mean_overlap(self) -> Tensor:
        """n^-2 sum_ij R_ij = |mean of x|^2, (saves, *batch)."""
        return self.x.mean(-2).square().sum(-1)

    @property
    def pair_overlap(self) -> Tensor:
        """The mean of R_ij over i != j, (saves, *batch)."""
        n = self.x.shape[-2]
        return (n * self.mean_overlap - 1) / (n - 1) if n > 1 else torch.ones_like(self.mean_overlap)

    def __repr__(self) -> str:
        what = f"layers={int(self.layers[-1])}, x={tuple(self.x.shape)}"
        return f"ChainRun({what}, eta={self.eta:g}, heads={self.heads})"


def chain(
    x0: Any,
    *,
    weights: Law,
    beta: float,
    eta: float,
    layers: int,
    rng: Seed,
    heads: int = 1,
    samples: int | None = None,
    antithetic: bool = False,
    save_at: Sequence[int] | None = None,
) -> ChainRun:
    """x_i <- N(x_i + eta/H sum_h B_h(x_i)), B_h(z) = sum_k softmax_k(beta <A_h z, x_k>) V_h x_k, repeated.

    Weights are shared by all tokens, and drawn anew for every head, layer and member of the batch.

    Args:
        x0: tokens (*batch, n, d) on the sphere, or `Particles`.
        weights: `GaussianWeights`, or any function (rng, shape) -> V, A, both (*shape, d, d).
        beta, eta, heads, layers: inverse temperature >= 0, step > 0, heads and layers >= 1.
        rng: a seed or a `numpy.random.Generator`.
        samples: so many independent copies of x0, as a new first axis.
        antithetic: members 2j and 2j + 1 of the flattened batch get opposite G in V (Gaussian weights).
        save_at: increasing numbers of layers in [0, layers] to save at; by default 0 and the last.

    >>> import torch
    >>> from otflow.papers.homogenized import GaussianWeights, chain
    >>> run = chain(torch.eye(3), weights=GaussianWeights(3), beta=1.0, eta=0.1, layers=50, rng=0, samples=4)
    >>> run
    ChainRun(layers=50, x=(2, 4, 3, 3), eta=0.1, heads=1)
    >>> round(run.clock[-1].item(), 6)
    0.5

    Reference: Koubbi, Geshkovski, Rigollet 2026, arXiv 2604.01978.
    """
    x, beta, eta = tokens(x0, samples), laws.inverse_temperature(beta), checks.positive(eta, "eta")
    laws.of_dimension(weights, x.shape[-1])
    heads, saves = checks.count(heads, "heads"), _saves(save_at, checks.count(layers, "layers"))
    flat = x.reshape(-1, *x.shape[-2:])
    draws = _draws(weights, rng, flat.shape[0], antithetic)
    with torch.no_grad():
        parts = [
            _run(flat[part], weights, beta, eta, heads, draws, saves)
            for part in chunks(flat.shape[0], heads * width(weights, *x.shape[-2:]))
        ]
    return ChainRun(torch.cat(parts, 1).reshape(len(saves), *x.shape), torch.tensor(saves), eta, heads)


def _run(
    x: Tensor, weights: Law, beta: float, eta: float, heads: int, draws: Draws, saves: Sequence[int]
) -> Tensor:
    kept, at = [], 0
    for save in saves:
        while at < save:
            x, at = layer(weights, x, beta, eta, heads, draws), at + 1
        kept.append(x)
        if not bool(((x.norm(dim=-1) - 1).abs() < 1e-6).all()):  # 0 if the norm overflows
            raise NotFiniteError(
                f"tokens are not finite after {at} layers (scores or values overflow); "
                "rescale the weights, sigma_V / 10, say, or eta.",
                torch.stack(kept),
            )
    return torch.stack(kept)


def _saves(save_at: Sequence[int] | None, layers: int) -> list[int]:
    if save_at is None:
        return [0, layers]
    saves = checks.tensor(save_at, "save_at").detach().double().flatten().numpy()
    rule = f"increasing whole numbers in [0, {layers}] are needed"
    if not saves.size or (np.diff(saves) <= 0).any() or (saves % 1 != 0).any():
        checks.fail("save_at", f"{saves.tolist()!s:.60}", rule, f"pass save_at=[0, {layers}], say")
    numbers.insist(
        (saves >= 0) & (saves <= layers), "save_at", saves, rule, f"pass save_at=[0, {layers}], say"
    )
    return [int(k) for k in saves]


def _draws(weights: Law, rng: Seed, size: int, antithetic: bool) -> Draws:
    if antithetic and not isinstance(weights, GaussianWeights):
        rule = "the sign of other laws is not known to be fair"
        checks.fail("antithetic", True, rule, "use GaussianWeights")
    if antithetic and size % 2:
        checks.fail("samples", size, "antithetic members come in pairs", "choose an even number")
    return Draws(checks.generator(rng), bool(antithetic))


def chunks(size: int, each: int) -> Iterator[slice]:
    """Members at once; an even number, so that no pair is cut."""
    step = max(2, LIMIT // max(each, 1) // 2 * 2)
    return (slice(i, min(i + step, size)) for i in range(0, size, step))
