"""Runs that the claims and the pictures of `homogenized` look at."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from otflow.papers import homogenized as hom
from otflow.papers.tokens import sphere

Array = np.ndarray
U0 = (-0.8, -0.4, 0.0, 0.4, 0.8)
LENGTHS = (20, 2000, 200_000, 10_000_000)
REDUCED = np.linspace(0.02, 4.0, 100)  # b / b_c
HEADS = (1, 8, 64)
CROWD = 2.0  # how long pairs in a crowd are followed, in units of d


class Band(NamedTuple):
    """Mean, deviation and standard error over samples, along time."""

    t: Array
    mean: Array
    spread: Array
    error: Array

    @classmethod
    def of(cls, t: Tensor, values: Tensor) -> Band:
        """values: (times, samples)."""
        spread = values.std(1)
        return cls(*(a.numpy() for a in (t, values.mean(1), spread, spread / math.sqrt(values.shape[1]))))


class Curves(NamedTuple):
    """A chain from orthonormal tokens, and two ODEs."""

    n: int
    d: int
    chain: Band
    exact: Array
    large: Array


class LayerRuns(NamedTuple):
    """All that is computed."""

    chain: Band
    sde: Band
    ode: tuple[Array, Array]
    heads: dict[int, Band]
    simplex: tuple[Curves, ...]
    hot: Band
    ends: Array  # (paths, u0): overlaps of the diffusion at the end
    paths: Array  # (times, paths): of pairs in a crowd, A a rotation
    crowd: Array  # (samples, u0): where such pairs are at the end, t = CROWD
    product: Array  # the same for A = W W'^T
    few: dict[int, float]  # number of tokens -> share of pairs that end parallel


def cloud(n: int, d: int, seed: int = 3) -> Tensor:
    """Tokens (n, d) from the uniform law."""
    return sphere.uniform(n, d, rng=seed).x


# --- pairs in a crowd ----------------------------------------------------------------------------------


def crowd(samples: int, *, layers: int, rotation: bool, d: int = 24) -> tuple[Array, Array]:
    """Two tokens in a uniform crowd at zero temperature, m_A(x) = A x / |A x|, until the clock d CROWD.

    Only inner products matter: the pair is kept as a triangle L with L L^T = x x^T, and a step has two
    coordinates in the plane of the pair and Bartlett's triangle for the d - 2 others. Overlaps along the
    chain (saves, 40), for u0 = 0, and at the end (samples, u0).
    """
    rng, eps = np.random.default_rng(4), math.sqrt(CROWD / layers)
    u, kept = np.tile(U0, samples), []
    L = pairs(u, np.sqrt(1 - u**2))
    for k in range(layers):
        if k % (layers // 100) == 0:
            kept.append(overlap(L)[2 : 5 * 40 : 5])
        m = L if rotation else product_of(L, d, rng)  # V x and V A x have one law if A is a rotation
        within, across = rng.standard_normal(L.shape), wishart(len(L), d - 2, rng)
        L = triangle(np.concatenate([L + eps * m @ within, eps * m @ across], -1))
    return np.array(kept), overlap(L).reshape(samples, len(U0))


def pairs(u: Array, across: Array) -> Array:
    """Two unit vectors of overlap u, (size, 2, 2), as a triangle: e_1 and u e_1 + across e_2."""
    return np.stack([np.ones_like(u), np.zeros_like(u), u, across], -1).reshape(-1, 2, 2)


def overlap(L: Array) -> Array:
    """<x_1, x_2> of pairs, (size,)."""
    return np.asarray((L[:, 0] * L[:, 1]).sum(-1))


def triangle(x: Array) -> Array:
    """The same for the directions of two rows, (size, 2, k)."""
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    along = overlap(x)
    return pairs(along, np.linalg.norm(x[:, 1] - along[:, None] * x[:, 0], axis=-1))


def wishart(size: int, k: int, rng: np.random.Generator) -> Array:
    """T (size, 2, 2), with T T^T the inner products of two normal vectors of k coordinates."""
    T = np.zeros((size, 2, 2))
    T[:, 0, 0], T[:, 1, 1] = (np.sqrt(rng.chisquare(k - i, size)) for i in range(2))
    T[:, 1, 0] = rng.standard_normal(size)
    return T


def product_of(L: Array, d: int, rng: np.random.Generator) -> Array:
    """W W'^T x / |W W'^T x| for pairs, up to a rotation: W'^T x, then W of it, are normal."""
    for _ in range(2):
        L = L @ wishart(len(L), d, rng)
    return triangle(L)


def brownian(u0: Any, t: float) -> Array:
    """P(u(t) > 0) if artanh u is sqrt(2) times a Brownian motion."""
    return np.asarray(ndtr(np.arctanh(u0) / math.sqrt(2 * t)))


def drift_constant(d: int, u: float, samples: int) -> float:
    """c in the drift -c u (1 - u^2) / d of a pair in a crowd, from s_ij = E cos(A x_i, A x_j), A = W W'^T."""
    L = pairs(np.full(samples, u), np.full(samples, np.sqrt(1 - u**2)))
    s = overlap(product_of(L, d, np.random.default_rng(6))).mean()
    drift = hom.overlap_drift([[1.0, u], [u, 1.0]], [[1.0, s], [s, 1.0]], d)[0, 1].item()
    return -drift * d / (u * (1 - u**2))


# --- chains --------------------------------------------------------------------------------------------


def _chain(x: Any, law: hom.GaussianWeights, layers: int, every: int, **options: Any) -> hom.ChainRun:
    """A chain that is looked at after every so many layers."""
    return hom.chain(x, weights=law, layers=layers, save_at=list(range(0, layers + 1, every)), **options)


def chain_and_sde(samples: int) -> tuple[Band, Band]:
    """The overlap of the first two of four tokens, beta = 5, d = 6; chains of two heads and eta = 0.2."""
    x, law = cloud(4, 6), hom.GaussianWeights(6)
    same: Any = {"beta": 5.0, "samples": 2 * samples}
    chain = _chain(x, law, 200, 25, eta=0.2, heads=2, rng=0, **same)
    t = chain.clock
    sde = hom.sde(x, weights=law, t1=4.0, dt=1 / 16, draws=2, rng=1, save_at=t, **same)
    along = torch.stack([m.coords[0] for m in sde.measures])
    return Band.of(t, chain.overlaps[..., 0, 1]), Band.of(t, (along[..., 0, :] * along[..., 1, :]).sum(-1))


def chain_and_ode(samples: int) -> tuple[tuple[Array, Array], dict[int, Band]]:
    """The mean overlap with values I + noise: the ODE, and chains of step 1/20 with more and more heads."""
    x, law = cloud(6, 4), hom.GaussianWeights(4, mean_V=1.0, mean_A=1.0)
    t = torch.linspace(0, 4, 41, dtype=torch.float64)
    ode = hom.ode(x, weights=law, beta=1.0, t1=4.0, rng=0, save_at=t, draws=512)
    mean = np.array([m.coords[0].mean(-2).square().sum().item() for m in ode.measures])
    bands = {}
    for heads in HEADS:
        chain = _chain(x, law, 80, 2, beta=1.0, eta=0.05, heads=heads, samples=samples, rng=heads)
        bands[heads] = Band.of(chain.depth, chain.mean_overlap)
    return (t.numpy(), mean), bands


def equal_angles(n: int, d: int, samples: int, beta: float) -> Curves:
    """The mean overlap of n orthonormal tokens beside the ODEs of this and of infinite dimension."""
    law = hom.GaussianWeights(d)
    run = _chain(hom.simplex(n, d), law, 144, 12, beta=beta, eta=0.2, samples=samples, rng=d)
    b, t = law.logit_scale(beta), run.clock
    odes = (hom.simplex_overlap(t, n, b, d=k, samples=2048).numpy() for k in (d, math.inf))
    return Curves(n, d, Band.of(t, run.pair_overlap), *odes)


def high_temperature(samples: int, d: int = 256) -> Band:
    """The mean overlap of eight orthonormal tokens, 1/8 at the start."""
    law = hom.GaussianWeights(d)
    run = _chain(hom.simplex(8, d), law, 64, 8, beta=0.05, eta=0.25, samples=samples, rng=2)
    return Band.of(run.clock, run.mean_overlap)


def few_tokens(n: int, samples: int, d: int = 4) -> float:
    """The share of pairs of n tokens with <x_i, x_j> > 0 after a long chain at zero temperature."""
    x = sphere.uniform(n, d, rng=n, batch=(samples,))
    run = hom.chain(x, weights=hom.GaussianWeights(d), beta=1e4, eta=0.5, layers=160, rng=1)
    i, j = np.triu_indices(n, 1)
    return (run.overlaps[-1][:, i, j] > 0).double().mean().item()


def one_layer(x: Any, beta: float, samples: int, rng: int, eta: float = 0.03) -> hom.ChainRun:
    """A small step; in pairs of opposite noise, so that its first order drops out of the means."""
    law = hom.GaussianWeights(x.shape[-1])
    return hom.chain(x, weights=law, beta=beta, eta=eta, layers=1, samples=samples, antithetic=True, rng=rng)
