"""Constants of a field on a ball, known before anything is run: its size and its Lipschitz constants.

On the ball B_R, for laws mu, nu and points x, y in it,

    |Gamma_mu(x)|               <= sup
    |Gamma_mu(x) - Gamma_mu(y)| <= Lip_x |x - y|
    |Gamma_mu(x) - Gamma_nu(x)| <= Lip_mu W_1(mu, nu),

so that two solutions in the ball part in W_p at the rate L_p = Lip_x + Lip_mu at most. With v = |V|, a = |A|,
A = K^T Q, and spectral norms:

                    sup              Lip_x                 Lip_mu
    softmax         v R              v a R^2               v (1 + 2 a R^2) exp(2 a R^2)
    L2              v R              2 v a R^2             v (1 + 2 R |K| sqrt(2/e)) exp((|Q| + |K|)^2 R^2)
    unnormalised    v R exp(a R^2)   v a R^2 exp(a R^2)    v (1 + a R^2) exp(a R^2)
    sigmoid         v R              v a R^2 / 4           v (1 + a R^2 / 4)
    Sinkhorn        v R / eps        v a R^2 / eps^2       (v / eps)(1 + a R^2 / eps), for p = 2 only

Heads add up, with W_h V_h for V. Masked softmax and L2 attention divide by the mass of the labels seen, so
that Lip_mu is met by an average over these; by Hardy's inequality it counts p / (p - 1) times in the
conditional distance d_p. All numbers are logarithms: the constants overflow for quite harmless weights.

For softmax: Castin, Ablin, Peyré 2024, "How smooth is attention?", arXiv 2312.14820, and Castin, Ablin,
Carrillo, Peyré 2025, arXiv 2501.18322, appendix B. For Sinkhorn attention: the derivative of the logarithm of
the plan is that of the scores minus its projection on sums f(x) + g(y) in L2 of the plan, hence no larger.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import KW_ONLY, dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from otflow.base import checks
from otflow.base.errors import UnknownBoundError
from otflow.base.status import brief
from otflow.fields import (
    L2Attention,
    MultiHead,
    Perceptron,
    SigmoidAttention,
    SinkhornAttention,
    SoftmaxAttention,
    UnnormalisedAttention,
    VelocityField,
)
from otflow.fields.attention import Attention
from otflow.fields.base import SumField
from otflow.stability.bounds.time_and_radius import Mixed, Moment, Radius, log_radius, moment
from otflow.transport.comparable import exponent

ZERO = torch.tensor(-math.inf, dtype=torch.float64)  # the logarithm of a constant that is not there


@dataclass(frozen=True, eq=False)
class Constants:
    """Bounds of a field on a ball, as natural logarithms, each (*batch,); -inf stands for 0.

    Attributes:
        log_sup: of the velocity.
        log_x: of its Lipschitz constant in the point.
        log_mu: of that in the law, against W_1.
        log_hardy: of the part of it that is an average over the labels seen.
        order: the only p for which they bound a rate in W_p; None if they do for each.

    Constants add, and scale by numbers.

    >>> import torch
    >>> from otflow.stability import Constants
    >>> one = Constants(*torch.tensor([1.0, 2.0, 3.0]).log())
    >>> (one + 2 * one).log_lip(2.0).exp().item()  # 3 (2 + 3)
    15.000
    """

    log_sup: Tensor
    log_x: Tensor
    log_mu: Tensor
    log_hardy: Tensor = ZERO
    _: KW_ONLY
    order: float | None = None

    def __post_init__(self) -> None:
        names = ("log_sup", "log_x", "log_mu", "log_hardy")
        for name, part in zip(names, torch.broadcast_tensors(*self._parts()), strict=True):
            object.__setattr__(self, name, part)

    def __repr__(self) -> str:
        parts = ("log_sup", "log_x", "log_mu", "log_hardy")
        order = "" if self.order is None else f", order={self.order:g}"
        return f"Constants({', '.join(f'{name}={brief(getattr(self, name))}' for name in parts)}{order})"

    def log_lip(self, p: float) -> Tensor:
        """log(Lip_x + Lip_mu), the averaged part of Lip_mu counted `hardy_factor` times; (*batch,)."""
        p = exponent(p)
        if self.order not in (None, p):
            rule = f"no explicit constant is known for Sinkhorn attention except for p = {self.order:g}"
            checks.fail("p", p, rule, f"pass p={self.order:g}", UnknownBoundError)
        averaged = _times(self.log_hardy, torch.tensor(hardy_factor(p), dtype=torch.float64).log())
        return torch.logaddexp(torch.logaddexp(self.log_x, self.log_mu), averaged)

    def __add__(self, other: Constants) -> Constants:
        pairs = zip(self._parts(), other._parts(), strict=True)
        return Constants(*(torch.logaddexp(a, b) for a, b in pairs), order=_common(self.order, other.order))

    def __mul__(self, c: float) -> Constants:
        log_c = torch.tensor(abs(checks.number(c, "factor")), dtype=torch.float64).log()
        return Constants(*(_times(part, log_c) for part in self._parts()), order=self.order)

    __rmul__ = __mul__

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.log_sup, self.log_x, self.log_mu, self.log_hardy


def hardy_factor(p: float) -> float:
    """p / (p - 1): the norm in L^p of the average over what came before (Hardy); infinite for p = 1.

    The same for averages with weights, sum_n w_n (A_n / W_n)^p <= (p / (p - 1))^p sum_n w_n a_n^p, where
    A_n = sum_{k <= n} w_k a_k and W_n = sum_{k <= n} w_k (Copson 1928, "Note on series of positive terms").

    >>> from otflow.stability import hardy_factor
    >>> hardy_factor(2.0), hardy_factor(1.0), hardy_factor(float("inf"))
    (2.0, inf, 1.0)
    """
    p = exponent(p)
    return math.inf if p == 1 else 1 + 1 / (p - 1)


def _common(p: float | None, q: float | None) -> float | None:
    good = p is None or q is None or p == q
    rule = "they hold for no common p"
    checks.require(
        good,
        "order",
        (p, q),
        rule,
        "call constants(...) for each of the fields and add the bounds",
        UnknownBoundError,
    )
    return q if p is None else p


def _times(*logs: Tensor) -> Tensor:
    """The logarithm of a product in which 0 times infinity is 0."""
    total = torch.stack(torch.broadcast_tensors(*logs)).sum(0)
    return total.masked_fill(total.isnan(), -math.inf)


def _log1p(log_x: Tensor) -> Tensor:
    """log(1 + x)."""
    return torch.logaddexp(torch.zeros_like(log_x), log_x)


# --- fields --------------------------------------------------------------------------------------------


@singledispatch
def constants(
    field: VelocityField, R: float | Tensor | Radius, t: float | Tensor | Moment = 0.0
) -> Constants:
    """The `Constants` of a field on the ball of radius R around 0 at time t; table at the top of this module.

    They are differentiable in R and in the weights. For a field of your own, register a function of
    (field, R, t) that calls ``log_radius(R)`` and, if it depends on time, ``moment(t).t``.

    Args:
        field: attention of any kind, `MultiHead`, `Perceptron`, their sums, or what was registered.
        R: a number or a tensor, (*batch,) or with axes in front of it.
        t: the time, one number.

    >>> import torch
    >>> from otflow.stability import Constants, constants
    >>> from otflow.stability.bounds.constants import ZERO
    >>> from otflow.stability.bounds.time_and_radius import log_radius
    >>> import otflow as of
    >>> I = torch.eye(2).double()
    >>> constants(of.SigmoidAttention(I, I, 3 * I), 2.0).log_lip(1.0).exp().item()  # 3 (4/4 + 1 + 4/4)
    9.000
    >>> class Pull(of.VelocityField):
    ...     def velocity(self, t, mu):
    ...         return -1.0 * mu.coords
    >>> @constants.register
    ... def _(field: Pull, R, t=0.0):
    ...     return Constants(log_radius(R), torch.zeros(()), ZERO)
    >>> constants(2 * Pull(), 5.0).log_sup.exp().item()
    10.000
    """
    rule = f"no constants are known for {type(field).__name__}"
    shown = f"{checks.instance(field, VelocityField, 'field')!r:.60}"
    checks.fail("field", shown, rule, "give them with constants.register", UnknownBoundError)


def _attention(
    field: Attention, R: float | Tensor | Radius, t: float | Tensor | Moment
) -> tuple[Tensor, Tensor, Tensor, Moment]:
    """log R, log |V|, log(|A| R^2), and the time."""
    now = moment(t)
    log_a = now.log_norm("K^T Q", lambda K, Q: K.mT @ Q, field.K, field.Q)
    r = log_radius(R).to(log_a.device)
    return r, now.log_norm("V", lambda V: V, field.V), log_a + 2 * r, now


def _normalised(field: Attention, log_sup: Tensor, log_x: Tensor, log_mu: Tensor) -> Constants:
    """The constants of a field that averages: over the labels seen, if it is masked."""
    return Constants(log_sup, log_x, *((ZERO, log_mu) if field.causal else (log_mu, ZERO)))


@constants.register
def _(field: SoftmaxAttention, R: Any, t: Any = 0.0) -> Constants:
    r, v, s, _ = _attention(field, R, t)
    log_mu = _times(v, _log1p(math.log(2) + s), 2 * s.exp())
    return _normalised(field, v + r, v + s, log_mu)


@constants.register
def _(field: L2Attention, R: Any, t: Any = 0.0) -> Constants:
    r, v, s, now = _attention(field, R, t)
    q, k = now.log_norm("Q", lambda Q: Q, field.Q), now.log_norm("K", lambda K: K, field.K)
    slope = _log1p(math.log(2) + r + k + (math.log(2) - 1) / 2)
    log_mu = _times(v, slope, (2 * (torch.logaddexp(q, k) + r)).exp())
    return _normalised(field, v + r, math.log(2) + v + s, log_mu)


@constants.register
def _(field: UnnormalisedAttention, R: Any, t: Any = 0.0) -> Constants:
    r, v, s, _ = _attention(field, R, t)
    grown = _times(v, s.exp())
    return Constants(grown + r, _times(grown, s), _times(grown, _log1p(s)))


@constants.register
def _(field: SigmoidAttention, R: Any, t: Any = 0.0) -> Constants:
    r, v, s, _ = _attention(field, R, t)
    s = s - math.log(4)
    return Constants(v + r, v + s, v + _log1p(s))


@constants.register
def _(field: SinkhornAttention, R: Any, t: Any = 0.0) -> Constants:
    r, v, s, _ = _attention(field, R, t)
    v, s = v - math.log(field.eps), s - math.log(field.eps)
    return Constants(v + r, v + s, v + _log1p(s), order=2.0)


@constants.register
def _(field: MultiHead, R: Any, t: Any = 0.0) -> Constants:
    now = moment(t)
    first, *rest = (constants(head, R, now) for head in _heads(field))
    return sum(rest, start=first)


def _heads(field: MultiHead) -> list[Attention]:
    """Heads with W_h V_h for V, whose norm may be far below the product of theirs."""
    if field.mix is None:
        return list(field.heads)
    heads = [copy(head) for head in field.heads]
    for head, W in zip(heads, field.mix, strict=True):
        head.V = Mixed(W, head.V)
    return heads


@constants.register
def _(field: SumField, R: Any, t: Any = 0.0) -> Constants:
    now = moment(t)
    first, *rest = (c * constants(term, R, now) for term, c in field.pairs())
    return sum(rest, start=first)


# --- the feed-forward block ------------------------------------------------------------------------------

GELU = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi)  # its slope at sqrt(2), where it is largest
TANH = 1.1289930686588  # the slope of GELU by tanh at 1.4185, where it is largest, rounded up
SILU = 1.09983932012887  # its slope at 2.39935728, where x tanh(x / 2) = 2 and it is largest, rounded up
ONE = (torch.relu, torch.tanh, torch.sin, torch.cos, functional.relu, functional.leaky_relu, functional.elu)
LIPSCHITZ: dict[Any, float] = {
    **dict.fromkeys((*ONE, functional.softplus, nn.ReLU, nn.Tanh, nn.Softplus), 1.0),
    **dict.fromkeys((torch.sigmoid, nn.Sigmoid), 0.25),
    **dict.fromkeys((functional.silu, nn.SiLU), SILU),
    **dict.fromkeys((functional.gelu, nn.GELU), GELU),
    "tanh": TANH,
}


@constants.register
def _(field: Perceptron, R: Any, t: Any = 0.0) -> Constants:
    """|W act(b)| + |W| |U| Lip(act) R, and |W| |U| Lip(act); a linear one has |W U|."""
    now = moment(t)
    log_x = _slope(field, now)
    log_R = log_radius(R).to(log_x.device)
    return Constants(torch.logaddexp(_at_origin(field, now), log_x + log_R), log_x, ZERO)


def _slope(field: Perceptron, now: Moment) -> Tensor:
    if field.activation is None:
        return now.log_norm("W U", lambda W, U: W @ U, field.W, field.U)
    W, U = (now.log_norm(name, lambda m: m, w) for name, w in (("W", field.W), ("U", field.U)))
    return W + U + math.log(_lipschitz(field.activation))


def _at_origin(field: Perceptron, now: Moment) -> Tensor:
    """log |W act(b)|."""
    act = field.activation or (lambda z: z)
    name = f"W act(b), act {id(field.activation)}"  # blocks with other activations may share W and b
    if field.b is None:
        return now.log_norm(name, lambda W: W @ act(W.new_zeros(W.shape[-1], 1)), field.W)
    return now.log_norm(name, lambda W, b: W @ act(b)[..., None], field.W, field.b)


def _lipschitz(activation: Any) -> float:
    """That of a known activation, or its own attribute ``lipschitz``."""
    kind = type(activation) if isinstance(activation, nn.Module) else activation
    if isinstance(activation, nn.GELU) and activation.approximate != "none":
        kind = activation.approximate
    known = LIPSCHITZ.get(kind, getattr(activation, "lipschitz", None))
    if known is None:
        shown, rule = getattr(activation, "__name__", repr(activation)), "its Lipschitz constant is not known"
        checks.fail("activation", shown, rule, "state it: activation.lipschitz = 1, say", UnknownBoundError)
    return checks.positive(known, "activation.lipschitz")
