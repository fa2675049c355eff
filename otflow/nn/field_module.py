"""A field as a module of torch, which registers the parameters that the field holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn

from otflow.base import checks
from otflow.base.parameters import convert, leaves, live
from otflow.fields import VelocityField
from otflow.measures import Measure, Particles


class FieldModule(nn.Module):
    """x -> v(t, mu)(x), mu the tokens x with equal weights: a field as a layer.

    Its parameters are those of the field, under the names of `VelocityField.named_parameters`; modules
    within the field are sub-modules. `to` converts the plain weights of the field too.

    Args:
        field: its weights to be learnt are `torch.nn.Parameter`.

    >>> import torch
    >>> import otflow as of
    >>> V = torch.nn.Parameter(torch.eye(2))
    >>> layer = of.nn.FieldModule(of.SoftmaxAttention(torch.eye(2), torch.eye(2), V))
    >>> layer(torch.ones(5, 3, 2)).shape, list(layer.state_dict())
    (torch.Size([5, 3, 2]), ['V'])
    """

    def __init__(self, field: VelocityField) -> None:
        super().__init__()
        self._field: VelocityField = checks.instance(field, VelocityField, "field")
        for name, one in leaves(field):
            _register(self, name, one)

    @property
    def velocity_field(self) -> VelocityField:
        """The field itself."""
        return self._field

    def forward(self, x: Any, t: float | Tensor = 0.0) -> Any:
        """The velocity at time t: of tokens (*batch, n, d) a tensor like them, of a measure a `Tangent`."""
        v = self._field(t, as_measure(x))
        return v if isinstance(x, Measure) else v[0]

    def extra_repr(self) -> str:
        return repr(self._field)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `double` and the like call: parameters change in place, plain weights are replaced."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        convert(self._field, fn)
        return self


def as_measure(x: Any) -> Measure:
    """Tokens with equal weights, or the measure itself."""
    return x if isinstance(x, Measure) else Particles(x)


def _register(root: nn.Module, name: str, one: Tensor | nn.Module) -> None:
    """Put a parameter or a module under its dotted name, with empty modules on the way."""
    if isinstance(one, Tensor) and not (live(one) and one.is_leaf):
        return  # plain weights, and those that are themselves made of parameters elsewhere
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if isinstance(one, nn.Module):
        root.add_module(last, one)
    elif isinstance(one, nn.Parameter):
        root.register_parameter(last, one)
    else:
        rule = "a module registers parameters only"
        checks.fail(name, "a tensor that requires grad", rule, "make it a torch.nn.Parameter")
