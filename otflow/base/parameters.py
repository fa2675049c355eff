"""Parameters: the tensors that an object holds, by name, for optimisers and for files.

One law for all fields, energies and metrics: plain arrays and plain tensors are copied when an object is
built, so that a later change of them changes nothing. Tensors that learn (parameters, and whatever else
requires a gradient) are held themselves, since an optimiser edits them in place; nothing that is derived from
their values is kept, so nothing can be out of date. What an object hands out is a copy or the tensor itself:
then an edit of it is an edit of the object, and all that was derived is derived, and checked, again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from otflow.base import checks

T = TypeVar("T")
Raw = Tensor | tuple[Tensor, ...]


def live(a: Tensor) -> bool:
    """Whether a tensor is held itself rather than copied: it requires a gradient, or may later."""
    # The plain case first: torch's test of what is a parameter is slow, and this is asked at every stage.
    return a.requires_grad or (type(a) is not Tensor and isinstance(a, nn.Parameter))


def held(value: Any, name: str) -> Raw:
    """A tensor to keep: a copy of what is plain, the thing itself if it learns.

    A list with tensors that learn stays a list of them, because their stack would be a copy; of what is plain
    among them it is one.

    >>> import torch
    >>> from otflow.base.parameters import held
    >>> a, p = torch.zeros(1), torch.nn.Parameter(torch.zeros(1))
    >>> held(a, "a") is a, held(p, "p") is p
    (False, True)
    """
    if isinstance(value, list | tuple | nn.ParameterList):
        items = list(value)
        if any(isinstance(a, Tensor) and live(a) for a in items):
            return tuple(_copied(a, f"{name}[{i}]") for i, a in enumerate(items))
    return _copied(value, name)


def _copied(value: Any, name: str) -> Tensor:
    out = checks.tensor(value, name)
    return out.clone() if out is value and not live(out) else out


def edits(a: Tensor) -> int:
    """How often a tensor, or a view of it, was edited in place; -1 in inference mode, which counts none."""
    return -1 if a.is_inference() else a._version


class Seen(Generic[T]):
    """A fact about a tensor, found out once and again whenever the tensor was edited in place.

    Views share the version of what they are views of, and so what is known of it. Writes through ``.data``
    leave no trace: of a tensor that learns nothing is to be kept.

    >>> import torch
    >>> from otflow.base.parameters import Seen
    >>> a, total = torch.ones(2), Seen()
    >>> [total(a, lambda a: a.sum().item()), total(a.mul_(3), lambda a: a.sum().item())]
    [2.0, 6.0]
    """

    def __init__(self) -> None:
        self.of: Tensor | None = None
        self.version = -1
        self.fact: T

    @classmethod
    def known(cls, a: Tensor, fact: T) -> Seen[T]:
        """What is known of ``a`` without a look."""
        return cls()._note(a, fact)

    def __reduce__(self) -> tuple[type[Seen[T]], tuple[()]]:
        return type(self), ()  # a copy is of a copy, whose age begins anew

    def __call__(self, a: Tensor, find: Callable[[Tensor], T]) -> T:
        """``find(a)``, as found before if nothing has changed since."""
        if self.outdated(a):
            self._note(a, find(a))
        return self.fact

    def outdated(self, a: Tensor) -> bool:
        """Whether ``a`` is not as it was seen."""
        version = edits(a)
        if version < 0 or version != self.version:
            return True
        # Another tensor of the same age is another tensor, but to look at one on an accelerator is to wait.
        return _whole(a) is not self.of and checks.on_host(a)

    def _note(self, a: Tensor, fact: T) -> Seen[T]:
        self.of, self.version, self.fact = _whole(a), edits(a), fact
        return self


def _whole(a: Tensor) -> Tensor:
    """What a tensor is a view of, which has the same version."""
    return a if a._base is None else a._base


class Derived(Generic[T]):
    """An attribute that is ``derive(tensor, name)`` of the tensor, or None, that is assigned to it.

    What comes from a plain tensor is computed once, and again if that was edited in place. What comes from
    one that learns, or did when it was given, is computed, and checked, at every use: in the graph
    of the moment, from the values of the moment. (The version of a tensor would tell most changes, but not
    those through ``.data``.) The object's ``vars`` hold the tensor itself, under the same name.
    """

    def __init__(self, derive: Callable[[Tensor, str], Tensor] = lambda a, name: a) -> None:
        self.derive = derive

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, holder: object, value: Any) -> None:
        raw = None if value is None else held(value, self.name)
        derived = None if raw is None else self._value(raw)  # also of what learns: wrong input is refused now
        vars(holder).setdefault("_seen", {}).pop(self.name, None)
        if derived is None or raw is None or _learns(raw):
            vars(holder)[self.name] = raw
        else:
            self._remember(holder, derived)

    @overload
    def __get__(self, holder: None, owner: type) -> Derived[T]: ...
    @overload
    def __get__(self, holder: object, owner: type | None = None) -> T: ...
    def __get__(self, holder: object | None, owner: type | None = None) -> T | Derived[T]:
        if holder is None:  # asked of the class, as by help() and tools of documentation
            return self
        raw = vars(holder)[self.name]
        if raw is None:
            return cast(T, None)
        return cast(T, self._value(raw) if _learns(raw) else self._plain(holder, raw))

    def _plain(self, holder: object, raw: Tensor) -> Tensor:
        """What was derived, and is handed out; derived again if somebody has edited it."""
        seen = vars(holder)["_seen"].get(self.name)
        if seen is None:  # it was to learn when it was given, and is held since
            return self._value(raw)
        return self._remember(holder, self._value(raw)) if seen.outdated(raw) else raw

    def _remember(self, holder: object, derived: Tensor) -> Tensor:
        vars(holder)[self.name], vars(holder)["_seen"][self.name] = derived, Seen.known(derived, None)
        return derived

    def _value(self, raw: Raw) -> Tensor:
        return self.derive(torch.stack(raw) if isinstance(raw, tuple) else raw, self.name)


def _learns(raw: Raw) -> bool:
    return isinstance(raw, tuple) or live(raw)


class Parametric:
    """What holds tensors: in attributes, in lists of them, in modules and in objects of its own kind.

    >>> import torch
    >>> import otflow as of
    >>> Q = torch.nn.Parameter(torch.eye(2).double())
    >>> field = of.SoftmaxAttention(Q, [[1.0, 0.0], [0.0, 1.0]], Q) + of.Perceptron([[0.0], [1.0]], Q[:1])
    >>> [name for name, _ in field.named_parameters()], list(field.state_dict())
    (['terms.0.Q'], ['terms.0.Q', 'terms.0.V'])
    """

    anonymous: ClassVar[tuple[str, ...]] = ()  # attributes that add nothing to a name: Q, not Q.value
    aside: ClassVar[tuple[str, ...]] = ("switches",)  # attributes that are no weights, such as times

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The leaf tensors that require a gradient, each once, by name.

        Functions are not looked into: what a lambda closes over is for you to name. A `torch.nn.Module` in
        place of a function is.
        """
        seen: set[int] = set()
        for name, a in _named(self):
            if a.requires_grad and a.is_leaf and id(a) not in seen:
                seen.add(id(a))
                yield name, a

    def parameters(self) -> Iterator[Tensor]:
        """The leaf tensors that require a gradient, each once: what ``torch.optim.Adam`` takes."""
        return (a for _, a in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """The values of all that learns or may learn, by name, detached; plain weights are no part of it.

        They share their memory with the parameters, as those of a module do.
        """
        return {name: a.detach() for name, a in _state(self).items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Write the values of a `state_dict` into the tensors that are held."""
        own = _state(self)
        if own.keys() != state.keys():
            missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
            rule = f"missing are {missing}, unknown are {unknown}"
            checks.fail("state.keys()", sorted(state), rule, "pass the state_dict() of an object built alike")
        for name, a in own.items():
            if a.shape != state[name].shape:
                rule = f"{tuple(a.shape)} is held"
                checks.fail(f"state[{name!r}].shape", state[name].shape, rule, "build the object alike")
        with torch.no_grad():
            for name, a in own.items():
                a.copy_(state[name])

    def to(self, *, dtype: torch.dtype | None = None, device: Any = None) -> Self:
        """Convert all tensors, in place as modules do: parameters stay the same objects. Returns itself.

        Functions of time and measures (targets of energies) are left as they are.
        """
        dtype, device = checks.dtype(dtype), checks.device(device)

        def move(a: Tensor) -> Tensor:
            return a.to(device=device, dtype=dtype if a.is_floating_point() else None)

        for _, one in leaves(self):
            if isinstance(one, nn.Module):
                one.to(device=device, dtype=dtype)
            elif live(one) and one.is_leaf:
                one.data, one.grad = move(one.data), None
        convert(self, move)
        return self


def leaves(
    value: Any, name: str = "", above: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """The tensors and modules that something holds, by dotted names; one that is held twice comes twice."""
    if isinstance(value, Tensor | nn.Module):
        yield name, value
    elif not any(value is one for one in above):
        for part, inner in _parts(value):
            yield from leaves(inner, f"{name}.{part}".strip("."), (*above, value))


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors that something holds, those of its modules included."""
    return (a for _, a in _named(value))


def convert(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """Replace the tensors that are no parameters by what ``move`` makes of them; parameters stay."""
    if isinstance(value, Tensor):
        return value if live(value) and value.is_leaf else move(value)
    if isinstance(value, Seen):
        return type(value)()  # what was known of the tensors before
    if isinstance(value, Parametric):
        for name, inner in vars(value).items():
            vars(value)[name] = _placed(inner, move) if name in value.aside else convert(inner, move)
    elif type(value) in (tuple, list):
        return type(value)(convert(inner, move) for inner in value)
    elif type(value) is dict:
        return {key: convert(inner, move) for key, inner in value.items()}
    return value


def _placed(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """What is no weight goes to the device of the weights, and keeps its precision."""
    return value.to(move(value).device) if isinstance(value, Tensor) else value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Parametric):
        for name, inner in vars(value).items():
            if name not in value.aside and name != "_seen":
                yield "" if name in value.anonymous else name, inner
    elif isinstance(value, tuple | list):
        yield from ((str(i), inner) for i, inner in enumerate(value))
    elif isinstance(value, dict):
        yield from ((str(key), inner) for key, inner in value.items())


def _named(value: Any) -> Iterator[tuple[str, Tensor]]:
    for name, one in leaves(value):
        if isinstance(one, nn.Module):
            yield from one.named_parameters(prefix=name)
        else:
            yield name, one


def _state(value: Any) -> dict[str, Tensor]:
    """What learns, and all that modules keep."""
    found: dict[str, Tensor] = {}
    for name, one in leaves(value):
        if isinstance(one, nn.Module):
            prefix = f"{name}." if name else ""
            found |= {prefix + key: a for key, a in one.state_dict(keep_vars=True).items()}
        elif live(one) and one.is_leaf:
            found[name] = one
    return found
