"""The runs that the claims and the pictures of this room look at."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
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
    return sphere.uniform(n, d, rng=seed).x


def crowd(samples: int, *, layers: int, rotation: bool, d: int = 24) -> tuple[Array, Array]:
    """Two tokens in a uniform crowd at zero temperature, m_A(x) = A x / |A x|, until the clock d CROWD.

    Only inner products matter: the pair is kept as a triangle L with L L^T = x x^T, and a step has two
    coordinates in the plane of the pair and Bartlett's triangle for the d - 2 others. Overlaps along the
    chain (saves, 40), for u0 = 0, and at the end (samples, u0).
    """
    rng, eps = np.random.default_rng(4), math.sqrt(CROWD / layers)
    L, kept = pairs(np.tile(U0, samples)), []
    for k in range(layers):
        if k % (layers // 100) == 0:
            kept.append(overlap(L)[2 : 5 * 40 : 5])
        m = L if rotation else product_of(L, d, rng)  # V x and V A x have one law if A is a rotation
        within, across = rng.standard_normal(L.shape), wishart(len(L), d - 2, rng)
        L = triangle(np.concatenate([L + eps * m @ within, eps * m @ across], -1))
    return np.array(kept), overlap(L).reshape(samples, len(U0))


def pairs(u: Array) -> Array:
    """Two unit vectors of overlap u, (size, 2, 2)."""
    return np.stack([np.ones_like(u), np.zeros_like(u), u, np.sqrt(1 - u**2)], -1).reshape(-1, 2, 2)


def overlap(L: Array) -> Array:
    return np.asarray((L[:, 0] * L[:, 1]).sum(-1))


def triangle(x: Array) -> Array:
    """The same for the directions of two rows, (size, 2, k)."""
    x = x / np.linalg.norm(x, axis=-1, keepdims=True)
    along = overlap(x)
    across = np.linalg.norm(x[:, 1] - along[:, None] * x[:, 0], axis=-1)
    return np.stack([np.ones_like(along), np.zeros_like(along), along, across], -1).reshape(-1, 2, 2)


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


def chain_and_sde(samples: int) -> tuple[Band, Band]:
    """The overlap of the first two of four tokens, beta = 5, d = 6; chains of two heads and eta = 0.2."""
    x, law, beta = cloud(4, 6), hom.GaussianWeights(6), 5.0
    chain = hom.chain(
        x,
        weights=law,
        beta=beta,
        eta=0.2,
        heads=2,
        layers=200,
        samples=2 * samples,
        rng=0,
        save_at=list(range(0, 201, 25)),
    )
    t = chain.clock
    sde = hom.sde(
        x, weights=law, beta=beta, t1=4.0, dt=1 / 16, samples=2 * samples, draws=2, rng=1, save_at=t
    )
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
        chain = hom.chain(
            x,
            weights=law,
            beta=1.0,
            eta=0.05,
            heads=heads,
            layers=80,
            samples=samples,
            rng=heads,
            save_at=list(range(0, 81, 2)),
        )
        bands[heads] = Band.of(chain.depth, chain.mean_overlap)
    return (t.numpy(), mean), bands


def equal_angles(n: int, d: int, samples: int, beta: float) -> Curves:
    law, eta, layers = hom.GaussianWeights(d), 0.2, 144
    run = hom.chain(
        hom.simplex(n, d),
        weights=law,
        beta=beta,
        eta=eta,
        layers=layers,
        samples=samples,
        rng=d,
        save_at=list(range(0, layers + 1, 12)),
    )
    b, t = law.logit_scale(beta), run.clock
    odes = (hom.simplex_overlap(t, n, b, d=k, samples=2048).numpy() for k in (d, math.inf))
    return Curves(n, d, Band.of(t, run.pair_overlap), *odes)


def high_temperature(samples: int) -> Band:
    law = hom.GaussianWeights(256)
    run = hom.chain(
        hom.simplex(8, 256),
        weights=law,
        beta=0.05,
        eta=0.25,
        layers=64,
        samples=samples,
        rng=2,
        save_at=list(range(0, 65, 8)),
    )
    return Band.of(run.clock, run.mean_overlap)


def few_tokens(n: int, samples: int, d: int = 4) -> float:
    """The share of pairs of n tokens with <x_i, x_j> > 0 after a long chain at zero temperature."""
    x = sphere.uniform(n, d, rng=n, batch=(samples,))
    run = hom.chain(x, weights=hom.GaussianWeights(d), beta=1e4, eta=0.5, layers=160, rng=1)
    i, j = np.triu_indices(n, 1)
    return (run.overlaps[-1][:, i, j] > 0).double().mean().item()
