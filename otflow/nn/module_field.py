"""A module of torch as a field: whatever maps tokens to tokens may move them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from otflow.base import checks
from otflow.base.tangent import Tangent
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles


class ModuleField(VelocityField):
    """v(t, mu)(x_i) = module(x)_i: a module from tokens (B, n, d) to (B, n, d) as a velocity field.

    The module sees positions only: weights must be equal, time and labels do not reach it. Axes in front of
    (n, d), any number of them, come as one. With dropout that is on the velocity is random; call
    ``module.eval()``.

    Args:
        module: any `torch.nn.Module`; its parameters are those of the field.

    >>> import torch
    >>> import otflow as of
    >>> field = of.nn.ModuleField(torch.nn.Softmax(-1))
    >>> of.flow(of.Particles([[0.0, 0.0]]), field, of.Euler(), t1=1.0, dt=0.5).final.x
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: nn.Module = checks.instance(module, nn.Module, "module")

    def velocity(self, t: Tensor, mu: Measure) -> Tangent:
        if not isinstance(mu, Particles):
            checks.fail("mu", repr(mu), "a module moves tokens", "use Particles")
        if not mu.uniform:
            rule = "a module sees positions only, and would treat all tokens alike"
            checks.fail("w", "weights of particles", rule, "leave w out, or use the fields of otflow")
        for name, p in self.module.named_parameters():
            checks.alike(p, f"module.{name}", mu.x, "the measure")
        x = mu.x.reshape(-1, mu.n, mu.d)
        with _forward_mode() if forward_ad.unpack_dual(x).tangent is not None else _as_it_is():
            v = self.module(x)
        if not isinstance(v, Tensor) or v.shape != x.shape:
            got = tuple(v.shape) if isinstance(v, Tensor) else f"a {type(v).__name__}"
            rule = f"a velocity for each token is needed, {tuple(x.shape)}"
            checks.fail("module(x)", got, rule, "wrap the module in one that maps (B, n, d) to (B, n, d)")
        return mu.tangent(Tangent([v.reshape(mu.x.shape)]))

    def __repr__(self) -> str:
        return f"ModuleField({type(self.module).__name__})"


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _forward_mode() -> Iterator[None]:
    """Only kernels that have derivatives in forward mode: the fused ones of attention have none."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
