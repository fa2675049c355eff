"""The line: variances of Gaussians on R under softmax, L2 and Sinkhorn attention.

    softmax    s' = 2 v a s^2
    L2         s' = 4 v k q s^2 / (1 + 2 k^2 s)
    Sinkhorn   s' = v / (eps a) (sqrt(eps^2 + 4 a^2 s^2) - eps)

The last two are solved for the logarithm of s / s0, in which all terms of the integrated equation have one
sign: nothing cancels, neither for short times nor as k or a tends to zero.

Castin, Ablin, Carrillo, Peyré, A unified perspective on the dynamics of deep Transformers, 2025,
arXiv 2501.18322, section 4, for d = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from otflow.base import checks, numbers
from otflow.base.errors import ConvergenceError
from otflow.base.linalg import ratio


def softmax_variance(s0: Any, a: Any, v: Any, t: Any) -> Tensor:
    """s(t) = s0 / (1 - 2 v a s0 t) under softmax attention, numbers that broadcast.

    Domain: before the blow-up, an error beyond.

    >>> from otflow.closed_forms import softmax_variance
    >>> softmax_variance(1.0, 0.25, 1.0, 1.0).item()
    2.0
    """
    s, a, v, t = numbers.alongside(s0=numbers.variance(s0, "s0"), a=a, v=v, t=t)
    left = 1 - 2 * v * a * s * t
    if bool((left <= 0).any()):
        time = softmax_variance_blow_up(s.detach(), a.detach(), (v * t.sign()).detach()).min().item()
        rule = f"a variance blows up at |t| = {time:g}"
        checks.fail(
            "t", numbers.shown(t), rule, f"pass |t| < {time:g}, as softmax_variance_blow_up(s0, a, v) says"
        )
    return s / left


def softmax_variance_blow_up(s0: Any, a: Any, v: Any) -> Tensor:
    """t* = 1 / (2 v a s0) if that is positive, else infinity.

    >>> from otflow.closed_forms import softmax_variance_blow_up
    >>> softmax_variance_blow_up(1.0, 0.25, 1.0).item(), softmax_variance_blow_up(1.0, -1.0, 1.0).item()
    (2.0, inf)
    """
    s, a, v = numbers.alongside(s0=numbers.variance(s0, "s0"), a=a, v=v)
    rate = 2 * v * a * s
    return torch.where(rate > 0, ratio(torch.ones_like(rate), rate), torch.inf)


def l2_variance(s0: Any, q: Any, k: Any, v: Any, t: Any) -> Tensor:
    """s(t) = 1 / (b W(exp(z) / b)), z = (1 / s0 - 4 v k q t) / b - log s0, b = 2 k^2: L2 attention.

    W is Lambert's function. Solved is exp(r) - 1 + 2 k^2 s0 r = -4 v k q s0 t for r = log(s0 / s), which also
    has a meaning as k -> 0. For k = 0 nothing moves. Exists for all t, of both signs;
    an error where s leaves floating point.

    >>> from otflow.closed_forms import l2_variance
    >>> import math
    >>> round(l2_variance(1.0, 1.0, 1.0, 0.25, 3 - 1 / math.e).item() - math.e, 12)
    0.0
    """
    s, q, k, v, t = numbers.alongside(s0=numbers.variance(s0, "s0"), q=q, k=k, v=v, t=t)
    y, b = torch.broadcast_tensors(-4 * v * k * q * s * t, 2 * k**2 * s)

    def rest(r: Tensor) -> Tensor:
        return torch.expm1(r) + b * r - y

    def slope(r: Tensor) -> Tensor:
        return r.exp() + b

    # rest is convex with slope 1 + b at 0, so that rest >= 0 here: Newton falls to the root.
    start = torch.minimum(y / (1 + b), torch.log1p(y.clamp(min=0)) + torch.where(y > 0, 0, torch.inf))
    return _representable(s * torch.exp(-_newton(rest, slope, start)), t)


def sinkhorn_variance(s0: Any, a: Any, v: Any, t: Any, *, eps: float = 1.0) -> Tensor:
    """s(t) with asinh u - (1 + sqrt(1 + u^2)) / u = const + 2 v t / eps, u = 2 a s / eps: Sinkhorn attention.

    Tends to the softmax law with v a / eps^2 in place of v a as a -> 0. Exists for all t, of both signs; an
    error where s leaves floating point. The kernel is exp(a x y / eps), the velocity has the factor 1 / eps.

    >>> from otflow.closed_forms import sinkhorn_variance
    >>> import math
    >>> round(sinkhorn_variance(3 / 8, 1.0, 0.5, 1 + math.log(3 / 2)).item() - 2 / 3, 12)
    0.0
    """
    eps = checks.positive(eps, "eps")
    s, a, v, t = numbers.alongside(s0=numbers.variance(s0, "s0"), a=a, v=v, t=t)
    # With p = log(s / s0) and u0 = 2 |a| s0 / eps, the equation times u0 is a sum of three increasing terms.
    y, u = torch.broadcast_tensors(4 * a * v * s * t / eps**2, 2 * a.abs() * s / eps)
    q = torch.hypot(torch.ones_like(u), u)

    def rest(p: Tensor) -> Tensor:
        e, h = torch.exp(-p), torch.hypot(torch.exp(-p), u)
        logs = u * torch.asinh(2 * u * torch.sinh(p) / (q + h))
        return logs - torch.expm1(-p) + 2 * torch.sinh(p) * (e / (q + h)) - y

    def slope(p: Tensor) -> Tensor:
        return torch.exp(-p) + torch.hypot(torch.exp(-p), u)

    # rest is concave with slope 1 + q at 0, and below -expm1(-p) - y for p < 0, so that rest <= 0 here:
    # Newton rises to the root.
    start = torch.maximum(y / (1 + q), -torch.log1p(-y.clamp(max=0)) - torch.where(y < 0, 0, torch.inf))
    return _representable(s * torch.exp(_newton(rest, slope, start)), t)


def _newton(rest: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The root of a monotone function, from a side where Newton's method does not overshoot.

    The last step is taken at the root itself and carries the derivatives.
    """
    x = _descend(rest, slope, start.detach())
    return x - rest(x) / slope(x).detach()


@torch.no_grad()
def _descend(
    rest: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], x: Tensor, max_iter: int = 200
) -> Tensor:
    way, tiny = rest(x).sign(), 2 * torch.finfo(x.dtype).eps
    open_ = torch.ones_like(x, dtype=torch.bool)
    for _ in range(max_iter):
        step = rest(x) / slope(x)
        open_ = open_ & (way * step > tiny * x.abs())  # a step back is rounding; a NaN ends it, too
        if not bool(open_.any()):
            return x
        x = torch.where(open_, x - step, x)
    raise ConvergenceError(f"Newton's method is not done after {max_iter} steps; halve t", x)


def _representable(s: Tensor, t: Tensor) -> Tensor:
    if not bool(torch.isfinite(s).all()):
        rule = "a variance leaves the range of floating point by then"
        checks.fail("t", numbers.shown(t), rule, f"pass t up to {t.abs().max().item() / 2:g}, say")
    return s
