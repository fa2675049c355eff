"""Attention as a velocity field: softmax, L2, sigmoid and unnormalised, masked or not.

With A = K^T Q, so that Ax.y = <Qx, Ky>, the law mu of the tokens moves with

    softmax        int Vy exp(Ax.y) dmu(y) / int exp(Ax.y) dmu(y)
    L2             int Vy exp(-|Qx - Ky|^2) dmu(y) / int exp(-|Qx - Ky|^2) dmu(y)
    sigmoid        int Vy sigmoid(Ax.y) dmu(y)
    unnormalised   int Vy exp(Ax.y) dmu(y)

(Castin, Ablin, Carrillo, Peyré 2025, section 2.) With ``causal=True`` the integrals run over the
tokens with a label up to that of x, ties included; only softmax and L2 renormalise.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from otflow.base import checks, kernels
from otflow.base.derivatives import followed
from otflow.base.linalg import product
from otflow.base.spaces import Sphere
from otflow.base.tangent import Tangent
from otflow.fields.base import Carry, merged_batch, merged_switches
from otflow.fields.tokens import TokenField
from otflow.fields.weights import Weight, act, apply, axes, fits, last, pace, weight
from otflow.measures import Gaussian, Measure, Particles

Response = Callable[[Tensor], Tensor]


class Weights(NamedTuple):
    """Q, K, V at one time."""

    Q: Tensor
    K: Tensor
    V: Tensor


class Attention(TokenField):
    """Base of all attention fields: holds Q, K, V and checks them against the tokens."""

    def __init__(self, Q: Any, K: Any, V: Any, *, causal: bool = False) -> None:
        self.Q, self.K, self.V = weight(Q, "Q"), weight(K, "K"), weight(V, "V")
        self.causal = causal
        self.switches = merged_switches((self.Q, self.K, self.V))

    @abstractmethod
    def attend(
        self, m: Weights, mu: Particles, points: Tensor, mask: kernels.Mask | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        """The velocity at ``points``, (*batch, m, d_v)."""

    def response(self, m: Weights, mu: Gaussian) -> Response:
        """q -> the change of E[Vy] when the law is tilted by exp(q.Ky), where it is linear; q in columns."""
        self.refuse(mu)

    def affine(self, m: Weights, mu: Gaussian) -> Tangent:
        """(b, BR) when the field is x -> b + B(x - mean) on this Gaussian."""
        response = self.response(m, mu)
        moved = response(product(m.Q, mu.root))
        if _centred(mu):
            return Tangent([torch.zeros_like(moved[..., 0]), moved])
        mean = mu.mean[..., None]
        b = product(m.V, mean) + response(product(self.query(m), mean))
        return Tangent([b[..., 0], moved])

    def query(self, m: Weights) -> Tensor:
        """The matrix that makes of the mean the query of a token there, as a tilt of the law."""
        return m.Q

    def velocity_at(
        self, t: Tensor, mu: Particles, points: Tensor, label: Tensor | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        return self.attend(self.weights(t, mu), mu, points, self._mask(mu, label), carry)

    def closure(self, t: Tensor, mu: Gaussian) -> Tangent:
        self._admit(mu)
        return self.affine(self.weights(t, mu), mu)

    def matrix(self, t: Tensor, mu: Gaussian) -> Tensor:
        self._admit(mu)
        m = self.weights(t, mu)
        return self.response(m, mu)(m.Q)

    def _admit(self, mu: Gaussian) -> None:
        checks.require(
            not self.causal,
            "causal",
            True,
            "a Gaussian has no labels; if tokens have the same Gaussian law at all labels, the mask "
            "changes nothing, otherwise each label sees a mixture of Gaussians",
            "use causal=False in the first case, Particles(x, label=...) in the second",
        )

    def weights(self, t: Tensor, mu: Measure) -> Weights:
        """Q, K, V at time t, checked against the dimension of mu."""
        d = mu.coords[0].shape[-1]
        m = Weights(
            *(_matrix(f, name, mu, t) for name, f in zip("QKV", (self.Q, self.K, self.V), strict=True))
        )
        if m.Q.shape[-2] != m.K.shape[-2] or m.Q.shape[-2] > d:
            rule = f"both are (k, d) with one k <= d = {d}"
            remedy = "only A = K^T Q matters, so pass Q = A and K = I"
            checks.fail("Q.shape, K.shape", (tuple(m.Q.shape), tuple(m.K.shape)), rule, remedy)
        return m

    def _mask(self, mu: Particles, label: Tensor | None) -> kernels.Mask | None:
        if not self.causal:
            return None
        if mu.label is None:
            rule = "causal attention needs to know the order of the tokens"
            checks.fail("label", None, rule, "pass Particles(x, label=torch.arange(n) / n)")
        if label is None:
            rule = "causal attention at other points needs a label for each"
            checks.fail("label", None, rule, "pass field.at(t, mu, points, label=...)")
        return label, mu.label

    def tensors(self, t: Tensor) -> Iterator[Tensor]:
        return (f(t) for f in (self.Q, self.K, self.V))

    def pick(self, which: Tensor) -> Self | None:
        Q, K, V = (f.pick(which) for f in (self.Q, self.K, self.V))
        if Q is None or K is None or V is None:
            return None
        other = copy(self)
        other.Q, other.K, other.V = Q, K, V
        return other

    def batch(self, t: Tensor) -> torch.Size:
        return merged_batch([axes(w, t) for w in (self.Q, self.K, self.V)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([*self._sizes(), *['causal=True'] * self.causal])})"

    def _sizes(self) -> list[str]:
        """Dimensions, batch axes and dependence on time, as far as they are known without a call."""
        weights = (self.Q, self.K, self.V)
        d = next((n for w in weights if (n := last(w, -1)) is not None), None)
        k = next((n for w in weights[:2] if (n := last(w, -2)) is not None), d)
        size = {
            "d": d,
            "k": None if k == d else k,
            "d_v": None if last(self.V, -2) == d else last(self.V, -2),
        }
        batch = merged_batch([w.shape[:-2] for w in weights if w.shape is not None])
        words = [f"{name}={n}" for name, n in size.items() if n is not None]
        return [*words, *([f"batch={tuple(batch)}"] if batch else []), *pace(weights)]


def _matrix(f: Weight, name: str, mu: Measure, t: Tensor) -> Tensor:
    a, d = fits(f, name, 2, mu, t), mu.coords[0].shape[-1]
    if a.shape[-1] != d:
        checks.fail(
            f"{name}.shape", tuple(a.shape), f"tokens have dimension {d}", f"{name} needs {d} columns"
        )
    return a


def _centred(mu: Gaussian) -> bool:
    """Whether the mean is zero for good: then so is its velocity, and half of the products are saved.

    An accelerator has done these products before the host has seen the mean.
    """
    return checks.on_host(mu.mean) and not followed(mu.mean) and not bool(mu.mean.any())


def log_weights(mu: Particles) -> Tensor | None:
    """log w, or None when the weights are uniform (softmax does not see a constant)."""
    return None if mu.uniform else mu.w.log()


class SoftmaxAttention(Attention):
    """int Vy exp(Ax.y) dmu(y) / int exp(Ax.y) dmu(y), A = K^T Q.

    Args:
        Q, K: (k, d) with k <= d; V: (d, d). Each a tensor (batch axes in front allowed), `Layers`, or a
            callable of t.
        causal: a token sees the labels up to its own.

    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [1.0]])
    >>> of.SoftmaxAttention([[0.0]], [[0.0]], [[1.0]])(0.0, mu)[0].flatten()
    tensor([0.5000, 0.5000], dtype=torch.float64)

    On a Gaussian the field is affine, x -> V(m + S A x) with covariance S (Castin et al. 2025, Prop. 4.2).
    """

    def attend(
        self, m: Weights, mu: Particles, points: Tensor, mask: kernels.Mask | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        # Softmax does not see a common shift of the keys, which saves digits far from the origin.
        keys = act(self.K, m.K, mu.x - centre(mu, self.causal))
        out, _ = kernels.attend(apply(m.Q, points), keys, act(self.V, m.V, mu.x), log_weights(mu), mask)
        return out, None

    def response(self, m: Weights, mu: Gaussian) -> Response:
        """q -> V S K^T q."""
        # (KR)^T (QR) keeps digits that R^T A R loses where A S tends to zero.
        VR, RK = product(m.V, mu.root), product(m.K, mu.root).mT
        return lambda q: product(VR, product(RK, q))


class L2Attention(Attention):
    """int Vy exp(-|Qx - Ky|^2) dmu(y) / int exp(-|Qx - Ky|^2) dmu(y) (Kim, Papamakarios, Mnih 2021; no 1/2).

    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [9.0]])
    >>> of.L2Attention([[1.0]], [[1.0]], [[1.0]])(0.0, mu)[0].flatten().round(decimals=6)
    tensor([0., 9.], dtype=torch.float64)

    On a Gaussian: x -> V P (2 A x + S^-1 m) with P = S (I + 2 K^T K S)^-1 (Prop. 4.4 of Castin et al. 2025).
    """

    def attend(
        self, m: Weights, mu: Particles, points: Tensor, mask: kernels.Mask | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        # -|Qx - Ky|^2 = 2 q.k - |k|^2 + const loses digits far from the origin, so both start at c.
        c = centre(mu, self.causal)
        q, k = apply(m.Q, points - c) + apply(m.Q - m.K, c), apply(m.K, mu.x - c)
        bias, logw = -k.square().sum(-1), log_weights(mu)
        out, _ = kernels.attend(2 * q, k, apply(m.V, mu.x), bias if logw is None else bias + logw, mask)
        return out, None

    def response(self, m: Weights, mu: Gaussian) -> Response:
        """q -> 2 V R (I + 2 (KR)^T KR)^-1 (KR)^T q."""
        VR, KR = product(m.V, mu.root), product(m.K, mu.root)
        gram = torch.eye(KR.shape[-1], dtype=KR.dtype, device=KR.device) + 2 * product(KR.mT, KR)
        return lambda q: 2 * product(VR, torch.linalg.solve_ex(gram, product(KR.mT, q)).result)

    def query(self, m: Weights) -> Tensor:
        return m.Q - m.K  # at the mean, |Qx - Ky|^2 = |(Q - K) mean - K (y - mean)|^2


class UnnormalisedAttention(Attention):
    """int Vy exp(Ax.y) dmu(y): no softmax ("USA" on the sphere), and blow-up in finite time is possible.

    >>> import otflow as of
    >>> mu = of.Particles([[1.0]])
    >>> of.UnnormalisedAttention([[1.0]], [[1.0]], [[1.0]])(0.0, mu)[0]
    tensor([[2.7183]], dtype=torch.float64)
    """

    def attend(
        self, m: Weights, mu: Particles, points: Tensor, mask: kernels.Mask | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        keys, values = act(self.K, m.K, mu.x), act(self.V, m.V, mu.x)
        out, lse = kernels.attend(apply(m.Q, points), keys, values, mu.w.log(), mask)
        return torch.exp(lse)[..., None] * out, None


class SigmoidAttention(Attention):
    """int Vy sigmoid(Ax.y) dmu(y).

    >>> import otflow as of
    >>> mu = of.Particles([[0.0], [2.0]])
    >>> of.SigmoidAttention([[0.0]], [[0.0]], [[1.0]])(0.0, mu)[0].flatten()
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def attend(
        self, m: Weights, mu: Particles, points: Tensor, mask: kernels.Mask | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        values = apply(m.V, mu.x) * mu.w[..., None]
        return kernels.sigmoid_sum(apply(m.Q, points), apply(m.K, mu.x), values, mask), None


def centre(mu: Particles, causal: bool = False) -> Tensor:
    """A point amid the tokens, (*batch, 1, d), from which they are seen with all their digits.

    The median, which a few tokens far away do not move; tokens without mass do not count. With a mask it
    is the first token, which everybody sees, so that the future does not touch the past. On a sphere nobody
    is far away, and any token will do. Detached: what it is used for does not depend on it.
    """
    x = mu.x.detach()
    if isinstance(mu.space, Sphere) and not causal:
        return x[..., :1, :]
    if causal and mu.label is not None:
        rank = mu.label if mu.uniform else mu.label.masked_fill(mu.w == 0, math.inf)
        return _take(x, rank.argmin(-1))
    if not mu.uniform:
        x = torch.where(mu.w[..., None] > 0, x, _take(x, mu.w.argmax(-1)))
    return x.median(-2, keepdim=True).values


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x[index] along the tokens, (*batch, 1, d)."""
    return torch.take_along_dim(x, index[..., None, None], -2)
