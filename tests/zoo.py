"""One small instance of every public class, in dimension 3, for the laws that all of them must obey.

Everything is a table from a name to a function without arguments that makes a fresh instance:
`FIELDS`, `MEASURES`, `STEPPERS`, `ENERGIES`, `METRICS`, `SPACES`, `NOISES`. `PAIRS` lists the names
(field, measure) that make sense together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import otflow as of

D = 3
N = 7


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def matrix(seed: int, *shape: int, scale: float = 0.6) -> Tensor:
    """A reproducible random matrix, (3, 3) unless told otherwise."""
    return torch.from_numpy(scale * rng(seed).standard_normal(shape or (D, D)))


def weights(seed: int, *shape: int) -> np.ndarray:
    """Random weights that sum to one along the last axis."""
    w = rng(seed).uniform(0.2, 1.0, shape)
    return w / w.sum(-1, keepdims=True)


# --- measures ----------------------------------------------------------------------------------------

LABEL = np.array([0.5, 0.0, 0.5, 1.0, 0.25, 0.0, 0.75])  # out of order, with ties


def unit(*shape: int) -> np.ndarray:
    x = rng(5).standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def batched_labels() -> of.Particles:
    label = np.stack([LABEL, rng(6).permutation(N) / N])
    return of.Particles(rng(7).standard_normal((2, N, D)), weights(8, 2, N), label)


def bump(*shape: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """A positive density of integral one on the unit cube."""
    axes = [(np.arange(n) + 0.5) / n for n in shape]
    rho = np.exp(sum(np.cos(3 * x) for x in np.meshgrid(*axes, indexing="ij")))
    return rho / rho.mean(), axes


MEASURES: dict[str, Callable[[], of.Measure]] = {
    "cloud": lambda: of.Particles(rng(1).standard_normal((N, D))),
    "weighted": lambda: of.Particles(rng(2).standard_normal((N, D)), weights(3, N)),
    "labelled": lambda: of.Particles(rng(4).standard_normal((N, D)), label=LABEL),
    "batched": lambda: of.Particles(rng(9).standard_normal((2, N, D)), weights(10, N)),
    "batched_labelled": batched_labels,
    "sphere": lambda: of.Particles(unit(N, D), weights(11, N), LABEL, space=of.Sphere()),
    "torus": lambda: of.Particles(rng(12).uniform(0, 2, (N, D)), label=LABEL, space=of.Torus(2.0)),
    "gaussian": lambda: of.Gaussian(rng(13).standard_normal(D), root=matrix(14)),
    "gaussian_of_rank_two": lambda: of.Gaussian(rng(15).standard_normal(D), root=matrix(16, D, 2)),
    "gaussian_batched": lambda: of.Gaussian(rng(17).standard_normal((2, D)), root=matrix(18, 2, D, D)),
    "grid": lambda: of.Grid(*bump(12)),
    "grid_2d": lambda: of.Grid(*bump(6, 5)),
    "grid_3d": lambda: of.Grid(*bump(4, 3, 5)),
}

# --- energies, metrics, spaces, noise, steppers ------------------------------------------------------


def harmonic(x: Tensor) -> Tensor:
    return x.square().sum(-1) / 2


def bell(x: Tensor, y: Tensor) -> Tensor:
    return -torch.exp(-(x - y).square().sum(-1) / 2)


def log_distance(x: Tensor, y: Tensor) -> Tensor:
    return -torch.log((x - y).square().sum(-1)) / 2


def partition(mu: Any, x: Tensor) -> Tensor:
    """int exp(x.y) dmu(y), the weight of the geometry of softmax attention."""
    y, w = mu.nodes()
    return (torch.exp(x @ y.mT) * w[..., None, :]).sum(-1)


def spd() -> Tensor:
    m = matrix(19)
    return m @ m.mT + torch.eye(D, dtype=torch.float64)


ENERGIES: dict[str, Callable[[], of.Energy]] = {
    "potential": lambda: of.Potential(harmonic),
    "interaction": lambda: of.Interaction(bell),
    "interaction_without_diagonal": lambda: of.Interaction(log_distance, diagonal=False),
    "sum": lambda: of.Interaction(bell) - 0.5 * of.Potential(harmonic),
}

METRICS: dict[str, Callable[[], of.Metric]] = {
    "wasserstein": of.Wasserstein,
    "twisted": lambda: of.Twisted(partition),
    "twisted_by_a_matrix": lambda: of.Twisted(matrix=spd()),
}

SPACES: dict[str, Callable[[], of.measures.Space]] = {
    "euclidean": of.Euclidean,
    "sphere": of.Sphere,
    "torus": lambda: of.Torus(2.0),
}

NOISES: dict[str, Callable[[], of.dynamics.Noise]] = {
    "independent": lambda: of.IndependentNoise(0.3, rng=20),
    "common": lambda: of.CommonNoise(0.3, rng=21),
}

STEPPERS: dict[str, Callable[[], of.Stepper]] = {
    "euler": of.Euler,
    "heun": of.Heun,
    "rk4": of.RK4,
    "dopri5": of.Dopri5,
    "dopri5_fixed": lambda: of.Dopri5(adaptive=False),
    "rosenbrock": of.Rosenbrock,
}

# --- fields ------------------------------------------------------------------------------------------


def QKV(seed: int, k: int = D, e: int = D) -> tuple[Tensor, Tensor, Tensor]:
    return matrix(seed, k, D), matrix(seed + 1, k, D), matrix(seed + 2, e, D)


def symmetric() -> tuple[Tensor, Tensor, Tensor]:
    """Q = K and V = -A: the case in which there is an energy."""
    Q = matrix(22)
    return Q, Q, -Q.mT @ Q


def turning(seed: int, k: int = D) -> Callable[[Tensor], Tensor]:
    """A smooth function of time; works for a t of any shape."""
    a, b = matrix(seed, k, D), matrix(seed + 1, k, D)
    return lambda t: torch.cos(t)[..., None, None] * a + torch.sin(t)[..., None, None] * b


def layers(seed: int, k: int = D) -> of.Layers:
    """Three layers on [0, 1], [1, 1.5], [1.5, 2]."""
    return of.Layers(matrix(seed, 3, k, D), [0.0, 1.0, 1.5, 2.0])


ATTENTIONS: dict[str, Callable[[], of.VelocityField]] = {
    "softmax": lambda: of.SoftmaxAttention(*QKV(30)),
    "softmax_thin": lambda: of.SoftmaxAttention(*QKV(33, k=2)),
    "softmax_symmetric": lambda: of.SoftmaxAttention(*symmetric()),
    "softmax_of_time": lambda: of.SoftmaxAttention(turning(36), turning(38), turning(40)),
    "softmax_of_layers": lambda: of.SoftmaxAttention(layers(42, 2), layers(43, 2), layers(44)),
    "l2": lambda: of.L2Attention(*QKV(45)),
    "l2_thin": lambda: of.L2Attention(*QKV(48, k=1)),
    "sinkhorn": lambda: of.SinkhornAttention(*QKV(51), eps=of.Sinkhorn(1.0, tol=1e-12)),
    "sinkhorn_thin": lambda: of.SinkhornAttention(*QKV(54, k=2), eps=of.Sinkhorn(0.5, tol=1e-12)),
    "sinkhorn_symmetric": lambda: of.SinkhornAttention(*symmetric(), eps=of.Sinkhorn(0.7, tol=1e-12)),
    "sinkhorn_of_layers": lambda: of.SinkhornAttention(
        layers(57), layers(58), layers(59), of.Sinkhorn(1.0, tol=1e-12)
    ),
    "sigmoid": lambda: of.SigmoidAttention(*QKV(60)),
    "unnormalised": lambda: of.UnnormalisedAttention(*QKV(63)),
    "multihead": lambda: of.MultiHead(
        [
            of.SoftmaxAttention(*QKV(66, k=1, e=2)),
            of.L2Attention(*QKV(69, k=2, e=1)),
            of.SinkhornAttention(*QKV(72, e=2), eps=of.Sinkhorn(1.0, tol=1e-12)),
        ],
        mix=[matrix(75, D, 2), turning(76, D)(torch.tensor(0.3))[:, :1], of.Layers(matrix(78, 2, D, 2))],
    ),
    "multihead_plain": lambda: of.MultiHead([of.SoftmaxAttention(*QKV(79)), of.L2Attention(*QKV(82))]),
}

CAUSAL: dict[str, Callable[[], of.VelocityField]] = {
    "softmax_causal": lambda: of.SoftmaxAttention(*QKV(85), causal=True),
    "l2_causal": lambda: of.L2Attention(*QKV(88, k=2), causal=True),
    "sigmoid_causal": lambda: of.SigmoidAttention(*QKV(91), causal=True),
    "unnormalised_causal": lambda: of.UnnormalisedAttention(*QKV(94), causal=True),
    "multihead_causal": lambda: of.MultiHead(
        [of.SoftmaxAttention(*QKV(97, e=2), causal=True), of.SigmoidAttention(*QKV(100, e=1))],
        mix=[matrix(103, D, 2), matrix(104, D, 1)],
    ),
}


def perceptron() -> of.Perceptron:
    return of.Perceptron(matrix(105, D, 4), matrix(106, 4, D), matrix(107, 4), torch.tanh)


OTHERS: dict[str, Callable[[], of.VelocityField]] = {
    "perceptron": perceptron,
    "perceptron_of_time": lambda: of.Perceptron(
        of.Layers(matrix(108, 2, D, 4)), turning(109, 4), activation=torch.nn.functional.gelu
    ),
    "block": lambda: of.SoftmaxAttention(*QKV(111)) + 0.5 * perceptron(),
    "difference": lambda: (
        of.SinkhornAttention(*QKV(114), eps=of.Sinkhorn(1.0, tol=1e-12)) - of.SigmoidAttention(*QKV(117))
    ),
}

DESCENTS: dict[str, Callable[[], of.VelocityField]] = {
    "descent": lambda: of.SteepestDescent(ENERGIES["sum"](), of.Wasserstein()),
    "twisted_descent": lambda: of.SteepestDescent(of.Interaction(bell), METRICS["twisted"]()),
    "matrix_descent": lambda: of.SteepestDescent(of.Potential(harmonic), METRICS["twisted_by_a_matrix"]()),
    "scores_descent": lambda: of.SteepestDescent(of.SquaredScores(spd()), of.Wasserstein()),
    "transport_descent": lambda: of.SteepestDescent(of.SelfTransport(spd(), 0.8), of.Wasserstein()),
    "l2_descent": lambda: of.SteepestDescent(of.L2Energy(matrix(120), 0.7), of.Wasserstein()),
}

PROJECTIONS: dict[str, Callable[[], of.VelocityField]] = {
    "projected_sigmoid": lambda: of.GaussianProjection(of.SigmoidAttention(*QKV(121))),
    "projected_perceptron": lambda: of.GaussianProjection(perceptron()),
    "projected_block": lambda: of.GaussianProjection(of.SoftmaxAttention(*QKV(124)) + 0.5 * perceptron()),
}

FIELDS: dict[str, Callable[[], of.VelocityField]] = {
    **ATTENTIONS,
    **CAUSAL,
    **OTHERS,
    **DESCENTS,
    **PROJECTIONS,
}

# --- which field moves which measure -----------------------------------------------------------------

CLOUDS = ("cloud", "weighted", "labelled", "batched", "batched_labelled", "sphere")
LABELLED = ("labelled", "batched_labelled", "sphere")
GAUSSIANS = ("gaussian", "gaussian_of_rank_two", "gaussian_batched")
GRIDS = ("grid", "grid_2d", "grid_3d")
CLOSED = tuple(name for name in ATTENTIONS if name not in ("sigmoid", "unnormalised"))  # keep Gaussians so


def measures_for(field: str) -> tuple[str, ...]:
    """Names of the measures that a field of `FIELDS` can move."""
    if field in CAUSAL:
        return LABELLED
    if field in PROJECTIONS or field == "l2_descent":
        return GAUSSIANS
    if field in ("scores_descent", "transport_descent"):
        return CLOUDS + GAUSSIANS
    if field == "matrix_descent":
        return tuple(c for c in CLOUDS if c != "sphere") + GAUSSIANS
    gaussians = GAUSSIANS if field in CLOSED or field == "descent" else ()
    return CLOUDS + gaussians + (GRIDS if field == "descent" else ())


PAIRS: list[tuple[str, str]] = [(f, m) for f in FIELDS for m in measures_for(f)]
