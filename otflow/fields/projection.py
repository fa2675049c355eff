"""The projection of a field that does not keep Gaussians Gaussian onto those that do.

Of all affine fields b + B(x - m), the nearest to v in L2(mu), mu = N(m, R R^T), has b = E[v(X)] and
B = E[grad v(X)] (Stein's lemma), so that with X = m + R z the coordinates of the law move by

    dm/dt = E[v(m + R z)],    dR/dt = B R = E[v(m + R z) z^T].

No covariance is inverted. With Y = m + R w independent of X, the score is the bilinear form

    AX.Y = s + a.w + c.z + w.N z,    s = Am.m,   a = R^T A m,   c = R^T A^T m,   N = R^T A R,

and attention with kernel k needs only the moments of (1, w) (1, z)^T k(AX.Y), which are closed forms for the
exponential and one integral over frequencies for the sigmoid, in any dimension.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import lru_cache, singledispatch
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks
from otflow.base.integrals import quadrature
from otflow.base.linalg import widen
from otflow.base.tangent import Tangent
from otflow.fields.attention import Attention, SigmoidAttention, UnnormalisedAttention, Weights
from otflow.fields.base import Carry, SumField, VelocityField
from otflow.fields.multihead import MultiHead
from otflow.fields.perceptron import Perceptron
from otflow.fields.tokens import TokenField
from otflow.measures import Gaussian, Measure, Particles

# Gauss-Hermite nodes per column of the root, by their number; chosen: at most some thousand nodes in all.
AXIS = {1: 48, 2: 24, 3: 12, 4: 8, 5: 5, 6: 4, 7: 3}
# More nodes per axis of a rule to compare with, up to where these are some thousand; of other parity.
MORE = {1: 3, 2: 3, 3: 1}
# Half-width of a Gaussian integral in standard deviations, and the highest frequency; rounding: exp(-72)
# and 1 / sinh(12 pi) are below it.
REACH = 12.0
# At most this many nodes in frequency; chosen: enough for scores up to 2 pi 2^17 / 12 = 7e4.
FREQUENCIES = 2**17
TILE = 2**20  # numbers per array while frequencies are summed; chosen: 8 MB


class GaussianProjection(TokenField):
    """The projection of a field onto affine fields in L2(mu): (E[v(X)], E[v(X) z^T]), X = m + R z ~ mu.

    A Gaussian stays Gaussian under it. That is the Bures-Wasserstein projection of the motion, not the
    evolution of the law itself, which leaves the Gaussians: mean and covariance have the right
    velocity as long as the law is Gaussian. Fields that do keep Gaussians Gaussian are left as they are.

    Args:
        field: `UnnormalisedAttention` (in closed form, for a law with |R^T A R| < 1, else the mean velocity
            is infinite), `SigmoidAttention` and `Perceptron` (by integrals in one dimension, to rounding),
            heads and sums of these, or any field of tokens (by quadrature, refused if the law is too wide).

    >>> import otflow as of
    >>> relu = of.Perceptron(W=[[1.0]], U=[[1.0]])
    >>> mean, root = of.GaussianProjection(relu)(0.0, of.Gaussian([0.0], root=[[2.0]]))
    >>> round(mean.item() / 2 * (2 * 3.141592653589793) ** 0.5, 12), round(root.item(), 12)
    (1.0, 1.0)

    References: Lambert, Chewi, Bach, Bonnabel and Rigollet, Variational inference via Wasserstein gradient
    flows, 2022, which projects gradient flows in the same way.
    """

    def __init__(self, field: VelocityField) -> None:
        self.field: VelocityField = checks.instance(field, VelocityField, "field")
        self.switches = field.switches

    def evaluate(self, t: Tensor, mu: Measure, carry: Carry | None = None) -> tuple[Tangent, Carry | None]:
        if not isinstance(mu, Gaussian):
            self._refuse(mu)
        return super().evaluate(t, mu, carry)

    def closure(self, t: Tensor, mu: Gaussian) -> Tangent:
        return project(self.field, t, mu)

    def velocity_at(
        self, t: Tensor, mu: Particles, points: Tensor, label: Tensor | None, carry: Carry | None
    ) -> tuple[Tensor, Carry | None]:
        self._refuse(mu)

    def _refuse(self, mu: Measure) -> NoReturn:
        checks.fail("mu", repr(mu), f"{self!r} moves Gaussians only", f"use the field itself, {self.field!r}")

    def tensors(self, t: Tensor) -> Iterator[Tensor]:
        return self.field.tensors(t)

    def requires_grad(self, t: Tensor, mu: Measure) -> bool:
        return self.field.requires_grad(t, mu)

    def batch(self, t: Tensor) -> torch.Size:
        return self.field.batch(t)

    def __repr__(self) -> str:
        return f"GaussianProjection({self.field!r})"


@singledispatch
def project(field: VelocityField, t: Tensor, mu: Gaussian) -> Tangent:
    """(E[v(X)], E[v(X) z^T]) of a field; register your own formula for a field of yours.

    Fields that are no fields of tokens know themselves how a Gaussian moves.
    """
    v, carry = field.evaluate(t, mu)
    _insist(field, carry, v)
    return v


def _insist(field: VelocityField, carry: Carry | None, v: Tangent) -> None:
    if carry is not None:  # what is not finite is left for the flow to judge
        field.insist(carry, v)


@project.register(TokenField)
def _(field: TokenField, t: Tensor, mu: Gaussian) -> Tangent:
    closed = type(field).closure is not TokenField.closure
    return field.closure(t, mu) if closed else _over_nodes(field, t, mu)


@project.register(Attention)
def _(field: Attention, t: Tensor, mu: Gaussian) -> Tangent:
    own, base = type(field), Attention
    closed = (own.closure, own.affine, own.response) != (base.closure, base.affine, base.response)
    return field.closure(t, mu) if closed or field.causal else _over_nodes(field, t, mu)


@project.register(SumField)
def _(field: SumField, t: Tensor, mu: Gaussian) -> Tangent:
    first, *rest = (c * GaussianProjection(term).evaluate(t, mu)[0] for term, c in field.pairs())
    return sum(rest, start=first)


@project.register(MultiHead)
def _(field: MultiHead, t: Tensor, mu: Gaussian) -> Tangent:
    heads = copy.copy(field)
    heads.heads = tuple(GaussianProjection(head) for head in field.heads)  # type: ignore[misc]
    return heads.closure(t, mu)


# --- attention: moments of the kernel ----------------------------------------------------------------


class _Form(NamedTuple):
    """The score AX.Y = s + a.w + c.z + w.N z in standard normal w and z."""

    s: Tensor  # (*batch,)
    a: Tensor  # (*batch, r, 1)
    c: Tensor  # (*batch, r, 1)
    N: Tensor  # (*batch, r, r)

    @staticmethod
    def of(m: Weights, mu: Gaussian) -> _Form:
        q, k = m.Q @ mu.mean[..., None], m.K @ mu.mean[..., None]
        QR, KR = m.Q @ mu.root, m.K @ mu.root
        return _Form((q * k).sum((-1, -2)), KR.mT @ q, QR.mT @ k, KR.mT @ QR)


class _Moments(NamedTuple):
    """E[k], E[k w], E[k z] and E[k w z^T] for k = k(AX.Y); vectors are columns."""

    one: Tensor
    w: Tensor
    z: Tensor
    wz: Tensor


def _tangent(V: Tensor, mu: Gaussian, e: _Moments) -> Tangent:
    """E[k V Y] and E[k V Y z^T] with Y = m + R w."""
    m = mu.mean[..., None]
    return Tangent([(V @ (e.one * m + mu.root @ e.w))[..., 0], V @ (m @ e.z.mT + mu.root @ e.wz)])


@project.register(UnnormalisedAttention)
def _(field: UnnormalisedAttention, t: Tensor, mu: Gaussian) -> Tangent:
    if field.causal:
        return field.closure(t, mu)
    m = field.weights(t, mu)
    return _tangent(m.V, mu, _exponential(_Form.of(m, mu), mu))


def _exponential(f: _Form, mu: Gaussian) -> _Moments:
    """Under exp(AX.Y), z has covariance P^-1, P = I - N^T N, and mean P^-1 (c + N^T a)."""
    N = f.N.detach()
    norm = torch.linalg.matrix_norm(N, 2).max().item() if bool(torch.isfinite(N).all()) else math.inf
    if norm >= 1:
        rule = f"the mean of exp(Ax.y) over {mu!r} is finite below the limit 1 only"
        checks.fail("|R^T A R|", f"{norm:.6g}", rule, f"divide A by {2 * norm:.3g}, or pass Particles")
    P = _eye(f.N) - f.N.mT @ f.N
    pull = f.c + f.N.mT @ f.a
    z = torch.linalg.solve(P, pull)
    w = f.a + f.N @ z
    exponent = f.s + (f.a.square() + pull * z).sum((-1, -2)) / 2 - torch.linalg.slogdet(P).logabsdet / 2
    one = exponent.exp()[..., None, None]
    return _Moments(one, one * w, one * z, one * (w @ z.mT + f.N @ torch.linalg.inv(P)))


def _eye(N: Tensor) -> Tensor:
    return torch.eye(N.shape[-1], dtype=N.dtype, device=N.device)


@project.register(SigmoidAttention)
def _(field: SigmoidAttention, t: Tensor, mu: Gaussian) -> Tangent:
    if field.causal:
        return field.closure(t, mu)
    m = field.weights(t, mu)
    wide = Weights(*(a.double() for a in m)), mu.at([c.double() for c in mu.coords])
    v = _tangent(wide[0].V, wide[1], _sigmoid(_Form.of(*wide)))
    return v.map(lambda a: a.to(mu.dtype))


def _sigmoid(f: _Form) -> _Moments:
    """sigmoid(s) = 1/2 + int_0^inf sin(u s) / sinh(pi u) du: moments of exp(i u AX.Y), all u together.

    The midpoint rule with step h makes of this a function of period 4 pi / h that differs from the sigmoid
    by exp(-(2 pi / h - |s|)) at most; h is chosen such that no score comes near 2 pi / h.
    """
    spread = _spread(f)
    # Beyond 40 the sigmoid is 0 or 1: scores that all lie there may as well lie nearer.
    f = f._replace(s=torch.maximum(torch.minimum(f.s, spread + 40), -spread - 40))
    largest = float((f.s.detach().abs() + spread).max()) + 40
    if not REACH * largest <= 2 * math.pi * FREQUENCIES:
        rule = "the law is too wide for the projection of a sigmoid"
        remedy = "scale the tokens or A down, or use Particles"
        checks.fail("score of a pair of tokens", f"{largest:.3g}", rule, remedy)
    count = math.ceil(REACH * largest / (2 * math.pi))
    u = (torch.arange(count, dtype=f.s.dtype, device=f.s.device) + 0.5) * (2 * math.pi / largest)
    tile = max(1, TILE // f.N.numel())
    parts = [_oscillating(f, piece, 2 * math.pi / largest) for piece in u.split(tile)]
    one, w, z, wz = (torch.stack(p).sum(0) for p in zip(*parts, strict=True))
    return _Moments(one + 0.5, w, z, wz)


def _spread(f: _Form) -> Tensor:
    """How far scores stray from s, but for a probability of about 1e-16."""
    a, c, N = (x.detach().square().sum((-1, -2)) for x in (f.a, f.c, f.N))
    return 10 * (a + c).sqrt() + 40 * N.sqrt()


def _oscillating(f: _Form, u: Tensor, h: float) -> _Moments:
    """h sum_u Im E[exp(i u AX.Y) (1, w) (1, z)^T] / sinh(pi u).

    As in `_exponential` with i u A for A; P = I + u^2 N^T N and P' = I + u^2 N N^T are positive definite, and
    w = i u P'^-1 a - u^2 N p, z = i u p - u^2 N^T P'^-1 a with p = P^-1 c are complex means.
    """
    a, c, N, u = f.a[..., None, :, :], f.c[..., None, :, :], f.N[..., None, :, :], u[:, None, None]
    eye = _eye(N)
    inverse = torch.linalg.inv(eye + u**2 * (N.mT @ N))
    p, q = inverse @ c, torch.linalg.solve(eye + u**2 * (N @ N.mT), a)
    w, w_, z, z_ = -(u**2) * (N @ p), u * q, -(u**2) * (N.mT @ q), u * p  # real and imaginary parts
    angle = u * f.s[..., None, None, None] + u * (a.mT @ w)
    log = torch.linalg.slogdet(inverse).logabsdet[..., None, None] / 2 - u * (a.mT @ w_ + c.mT @ z_) / 2
    size = h * log.exp() / torch.sinh(math.pi * u)
    C, S = size * angle.cos(), size * angle.sin()
    wz = C * (w @ z_.mT + w_ @ z.mT + u * N @ inverse) + S * (w @ z.mT - w_ @ z_.mT)
    return _Moments(*(x.sum(-3) for x in (S, C * w_ + S * w, C * z_ + S * z, wz)))


# --- perceptrons: one integral per neuron ------------------------------------------------------------


@project.register(Perceptron)
def _(field: Perceptron, t: Tensor, mu: Gaussian) -> Tangent:
    """E[act(y)] and E[act(y) xi] / s for y = mean + s xi, the law of a neuron; s = |R^T u|."""
    if field.activation is None:
        return field.closure(t, mu)
    W, U, b = field.weights(t, mu)
    UR = U @ mu.root
    mean = (U @ mu.mean[..., None])[..., 0] + (0 if b is None else b)
    s, felt = _lengths(UR.double())
    level, slope = _trusted_neurons(field, mean.double(), s)
    level = torch.where(felt, level, field.activation(mean.double()))
    gain = (slope / s).to(mu.dtype)
    return Tangent([(W @ level.to(mu.dtype)[..., None])[..., 0], W @ (gain[..., None] * UR)])


def _lengths(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of rows, and which are not 0; for these 1e-6 is used, from which to see a slope."""
    unit = rows.detach().abs().amax(-1, keepdim=True)
    felt = unit > 0
    square = torch.where(felt, rows / torch.where(felt, unit, 1.0), 1.0).square().sum(-1)
    return torch.where(felt, unit, 1e-6)[..., 0] * square.sqrt(), felt[..., 0]


def _trusted_neurons(field: Perceptron, mean: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The integrals, refused if a rule of lower order has other values."""
    act = field.activation or torch.nn.Identity()
    level, slope, size = _neurons(act, mean, s, 16)
    with torch.no_grad():
        rough, tilt, _ = _neurons(act, mean, s, 12)
        gap = torch.maximum((rough - level).abs(), (tilt - slope).abs()) / size.clamp(min=1e-300)
        quadrature.note(gap.amax(-1))
    if bool((gap > 1e-6).any()):
        checks.fail(
            "relative quadrature error",
            gap.max().item(),
            f"activations are integrated as functions that are smooth but for a kink at 0, unlike {field!r}",
            "write it as a sum of relu(x - kink), one neuron each, or use Particles",
        )
    return level, slope


def _neurons(
    act: Callable[[Tensor], Tensor], mean: Tensor, s: Tensor, order: int
) -> tuple[Tensor, Tensor, Tensor]:
    """E[f], E[f xi] and E|f| for f = act(mean + s xi); panels shrink towards the zero of mean + s xi."""
    near = mean.abs() < REACH * s
    split = torch.where(near, -mean / torch.where(near, s, 1.0), -REACH * mean.sign())[..., None, :]
    mean, s = mean[..., None, :], s[..., None, :]
    # The last panel spans 1/256 in units of the activation.
    widest = min(1e15, float(s.detach().max()))
    levels = min(24, max(4, math.ceil(math.log(REACH / 4 * widest, 4)) + 4))
    tau, w = (torch.as_tensor(a, dtype=s.dtype, device=s.device)[:, None] for a in _graded(order, levels))
    left, right = split + REACH, REACH - split
    xi = torch.cat([split - left * tau, split + right * tau], -2)
    weight = torch.cat([left * w, right * w], -2) * torch.exp(-xi.square() / 2) / math.sqrt(2 * math.pi)
    f = act(mean + s * xi)
    tilted = weight * (f - act(mean)) * xi  # the constant has no slope, but rounding would give it one
    return (weight * f).sum(-2), tilted.sum(-2), (weight * f).abs().sum(-2)


@lru_cache(maxsize=64)
def _graded(order: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre on panels of [0, 1], eighths and then quarters of what is left towards 0."""
    x, w = np.polynomial.legendre.leggauss(order)
    edges = np.concatenate([[0.0], 0.125 * 4.0 ** np.arange(-levels, 0), np.arange(1, 9) / 8])
    width = np.diff(edges)[:, None]
    return (edges[:-1, None] + width * (x + 1) / 2).ravel(), (width * w / 2).ravel()


# --- any other field: a cloud of quadrature nodes ----------------------------------------------------


def _over_nodes(field: TokenField, t: Tensor, mu: Gaussian) -> Tangent:
    """The field of the law's quadrature nodes, refused unless another root and another rule give the same.

    At a kink two rules may agree by chance, three hardly do.
    """
    r = mu.root.shape[-1]
    if r not in AXIS:
        remedy = "pass Gaussian(mean, cov=cov) if d is less, or use Particles"
        checks.fail("root.shape", tuple(mu.root.shape), f"quadrature goes up to {max(AXIS)} columns", remedy)
    v, sizes = _cloud(field, t, mu)
    with torch.no_grad():
        turn = torch.as_tensor(_rotation(max(r, 2)), dtype=mu.dtype, device=mu.device)
        other, _ = _cloud(field, t, mu.at([mu.mean, widen(mu.root, max(r, 2)) @ turn]))
        turned = other[0], (other[1] @ turn.mT)[..., :r]
        others = [turned] if r not in MORE else [turned, _cloud(field, t, mu, MORE[r])[0]]
        pairs = [pair for other in others for pair in zip(v, other, sizes, strict=True)]
        gap = max(float(((a - b).abs().amax(-1) / size).max()) for a, b, size in pairs)
        quadrature.note(torch.tensor(gap))
    if not gap <= max(1e-6, 1e3 * torch.finfo(mu.dtype).eps):
        rule = f"the field of {field!r} is not resolved by the nodes of {mu!r}"
        remedy = "use a narrower law, or sample it and use Particles"
        checks.fail("relative quadrature error", gap, rule, remedy)
    return v


def _cloud(
    field: TokenField, t: Tensor, mu: Gaussian, more: int = 0
) -> tuple[Tangent, tuple[Tensor, Tensor]]:
    """E[v] and E[v z^T] over nodes, and the sizes E|v| and E|v||z| of what is averaged."""
    z, w = (torch.as_tensor(a, dtype=mu.dtype, device=mu.device) for a in _nodes(mu.root.shape[-1], more))
    cloud = Particles(mu.mean[..., None, :] + z @ mu.root.mT, w)
    v, carry = field.velocity_at(t, cloud, cloud.x, None, None)
    v = v.expand(*mu.batch, *v.shape[-2:])
    _insist(field, carry, Tangent([v]))
    weighted = v * w[:, None]
    size = weighted.detach().square().sum(-1).sqrt()
    tiny = torch.finfo(mu.dtype).tiny
    sizes = size.sum(-1), (size * z.square().sum(-1).sqrt()).sum(-1)[..., None]
    return Tangent([weighted.sum(-2), weighted.mT @ z]), (sizes[0].clamp(min=tiny), sizes[1].clamp(min=tiny))


@lru_cache(maxsize=8)
def _nodes(r: int, more: int) -> tuple[np.ndarray, np.ndarray]:
    """A product rule for N(0, I_r); unlike a cubature it has positive weights, as attention needs them."""
    return quadrature.hermite(r, AXIS[r] + more)


@lru_cache(maxsize=8)
def _rotation(r: int) -> np.ndarray:
    q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((r, r)))
    return q
