"""Checks of arguments: each gives back what came in, cleaned, or raises an error that says what is wrong."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
import torch.utils.dlpack
from torch import Tensor

from otflow.base.errors import InputError

FLOATS = (torch.float32, torch.float64)  # the dtypes in which otflow computes
HALVES = (torch.float16, torch.bfloat16)  # refused: their four digits or fewer do not carry a flow
SINGLE_ONLY = ("mps",)  # devices without float64: refused, because times, labels and searches are kept in it


def fail(name: str, value: object, rule: str, remedy: str, error: type[InputError] = InputError) -> NoReturn:
    """Raise the one kind of sentence that otflow uses for wrong input; a shape is shown as a plain tuple."""
    shown = tuple(value) if isinstance(value, torch.Size) else value
    raise error(f"{name} = {shown}: {rule}; {remedy}.")


def require(
    good: object, name: str, value: object, rule: str, remedy: str, error: type[InputError] = InputError
) -> None:
    """`fail` unless ``good``.

    Python evaluates the arguments even if nothing is wrong. So ``value`` is best an object that costs nothing
    (a measure rather than its repr, a shape rather than a tuple): it is put into words on failure only. Where
    the words are costly and the code is hot, write `if` and `fail`.
    """
    if not good:
        fail(name, value, rule, remedy, error)


def tensor(value: Any, name: str) -> Tensor:
    """A real, finite tensor of dtype float32 or float64 out of numbers in any container.

    That is numpy, torch, nested lists, pandas, xarray, and arrays of other libraries by DLPack.

    Integers become float64. Numpy input is copied (so that a later change of the array cannot
    change a measure, and read-only or memory-mapped arrays are safe); a tensor keeps its graph.
    """
    if not isinstance(value, Tensor):
        value = _stacked(value)
    if hasattr(value, "__dlpack__") and not isinstance(value, Tensor | np.ndarray):
        value = torch.utils.dlpack.from_dlpack(value).clone()  # arrays of other libraries, on their device
    out = value if isinstance(value, Tensor) else _from_numpy(value, name)
    kind = f"a tensor of dtype {out.dtype}"
    require(not out.is_complex(), name, kind, "complex numbers have no meaning here", "pass its real part")
    rule = "half precision is too coarse for flows"
    require(out.dtype not in HALVES, name, kind, rule, "convert it to float32 or float64")
    kind = f"a tensor of layout {out.layout}"
    require(out.layout is torch.strided, name, kind, "a dense tensor is needed", "call .to_dense() on it")
    device(out.device, f"{name}.device")
    return finite(out if out.dtype in FLOATS else out.to(torch.float64), name)


def device(value: torch.device | str | int | None, name: str = "device") -> torch.device | None:
    """A device on which otflow computes, or None.

    >>> from otflow.base import checks
    >>> checks.device("cuda:1")
    device(type='cuda', index=1)
    """
    if value is None:
        return None
    place = value if isinstance(value, torch.device) else torch.device(value)
    if place.type in SINGLE_ONLY:
        rule = "it has no float64, in which otflow keeps times and labels and solves, also for float32"
        fail(name, repr(str(place)), rule, "stay on the CPU, or use a CUDA device")
    return place


def dtype(value: torch.dtype | None, name: str = "dtype") -> torch.dtype | None:
    """float32 or float64, or None."""
    rule = "otflow computes in float32 or float64"
    require(value in (None, *FLOATS), name, value, rule, f"pass {name}=torch.float64")
    return value


def _stacked(value: Any) -> Any:
    """A list of tensors as one tensor, with its graph; anything else as it is."""
    if isinstance(value, list | tuple | torch.nn.ParameterList) and all(isinstance(v, Tensor) for v in value):
        return torch.stack(list(value)) if len(value) else value
    return value


def _from_numpy(value: Any, name: str) -> Tensor:
    """A copy, in float32 if it is given so, else in float64."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(
            f"{name} is not a rectangular array ({error}); pass rows of equal length."
        ) from error
    require(
        value is not None,
        name,
        None,
        "numbers are needed",
        f"pass {name}=[...], numbers in a list, an array or a tensor",
    )
    kind, numeric = f"an array of dtype {array.dtype}", array.dtype.kind in "fiub"
    require(numeric, name, kind, "real numbers are needed", "convert it with .astype(float)")
    size, half = array.dtype.itemsize if array.dtype.kind == "f" else 8, "an array of dtype float16"
    require(size != 2, name, half, "half precision is too coarse for flows", "use .astype(float)")
    return torch.from_numpy(
        np.array(array, dtype=np.float32 if size == 4 else np.float64, order="C", copy=True)
    )


def finite(x: Tensor, name: str) -> Tensor:
    """``x`` itself, or an error that names the first entry that is not finite."""
    device = "a tensor on the meta device"
    require(x.device.type != "meta", name, device, "it holds no numbers", "move it to a real device")
    bad = ~torch.isfinite(x.detach())
    if bad.any():
        index = tuple(int(i) for i in bad.nonzero()[0])
        entry = f"{name}[{', '.join(map(str, index))}]"
        fail(
            entry,
            x[index].item(),
            "every entry must be finite",
            f"drop it, or put a number in its place: {name}.nan_to_num(0.0)",
        )
    return x


def on_host(x: Tensor) -> bool:
    """Whether a look at the numbers is free. On an accelerator it waits until all work there is done."""
    return x.device.type == "cpu"


def sound(value: Tensor, good: Tensor | None) -> Tensor:
    """``value`` where ``good`` holds, else NaN: what a check does to numbers that the host does not look at.

    A flow looks once a step whether its state is finite, so that a NaN does not go far. None means that the
    host has looked.
    """
    return value if good is None else torch.where(good, value, torch.nan)


def beside(x: Tensor, name: str, reference: Tensor, other: str) -> Tensor:
    """``x`` itself, or an error if it lives on another device than ``reference``."""
    if x.device != reference.device:  # this and the next at every stage of a flow: no words unless needed
        remedy = f"move it there, {name}.to({str(reference.device)!r})"
        fail(name, f"a tensor on {x.device}", f"{other} is on {reference.device}", remedy)
    return x


def alike(x: Tensor, name: str, reference: Tensor, other: str) -> Tensor:
    """``x`` itself, or an error if it lives on another device or has another dtype than ``reference``."""
    beside(x, name, reference, other)
    if x.dtype != reference.dtype:
        rule, kind = f"{other} has dtype {reference.dtype}", str(reference.dtype).removeprefix("torch.")
        fail(name, f"a tensor of dtype {x.dtype}", rule, f"convert {name}: .to(torch.{kind})")
    return x


def expanded(a: Tensor, shape: Sequence[int], name: str, rule: str, remedy: str) -> Tensor:
    """``a`` broadcast to ``shape``, or an error that shows the shape of ``a``."""
    try:
        return a.expand(shape)
    except RuntimeError:
        fail(f"{name}.shape", a.shape, rule, remedy)


def common(a: torch.Size, b: torch.Size, name: str, value: object, rule: str, remedy: str) -> torch.Size:
    """The shape to which two shapes broadcast, or an error that shows ``value``."""
    try:
        return torch.Size(torch.broadcast_shapes(a, b))
    except RuntimeError:
        fail(name, value, rule, remedy)


def extends(batch: torch.Size, own: Sequence[int]) -> bool:
    """Whether axes ``own`` broadcast to ``batch`` without enlarging it."""
    paired = zip(reversed(own), reversed(batch), strict=False)
    return len(own) <= len(batch) and all(a in (1, b) for a, b in paired)


def number(value: float, name: str) -> float:
    """A finite real number."""
    require(_is_number(value), name, repr(value), "a finite number is needed", _instead(value, name))
    return float(value)


def optional(value: float | None, name: str) -> float | None:
    """A finite real number, or None for one that is not known."""
    return None if value is None else number(value, name)


def positive(value: float, name: str) -> float:
    """A finite number above zero."""
    good = _is_number(value) and value > 0
    require(good, name, repr(value), "a finite number > 0 is needed", _instead(value, name, above=0.0))
    return float(value)


def count(value: int, name: str) -> int:
    """A whole number, at least one."""
    good = _is_number(value) and value >= 1 and value == int(value)
    require(good, name, repr(value), "a whole number >= 1 is needed", _instead(value, name, whole=True))
    return int(value)


def probability(w: Tensor, name: str, remedy: str) -> Tensor:
    """Weights that are >= 0 and sum to one within 1e-6 along the last axis, renormalised."""
    if (w < 0).any():
        fail(
            f"min({name})",
            w.min().item(),
            "weights must be >= 0",
            f"remove these points, or pass {name}.clamp(min=0) if they are rounding",
        )
    total = w.sum(-1, keepdim=True)
    if ((total - 1).abs() > 1e-6).any():
        worst = total.flatten()[(total - 1).abs().argmax()].item()
        fail(f"sum({name})", worst, "weights must sum to 1 within 1e-6", remedy)
    return w / total


def generator(rng: int | np.random.Generator, name: str = "rng") -> np.random.Generator:
    """numpy's generator of random numbers, from a seed or itself; never from the clock."""
    try:
        if rng is not None and not isinstance(rng, bool):
            return np.random.default_rng(rng)
    except (TypeError, ValueError):
        pass
    seed = rng.initial_seed() if isinstance(rng, torch.Generator) else 0
    fail(name, f"{rng!r:.60}", "a seed >= 0 or a numpy.random.Generator is needed", f"pass {name}={seed}")


def function(value: Any, name: str) -> Any:
    """Something that can be called, and not a class, because calling that would only make an instance."""
    if isinstance(value, type):
        fail(name, value.__name__, "an instance is needed", f"call it: {value.__name__}(...)")
    if not callable(value):
        fail(name, repr(value), "a function is needed", f"pass one, such as {name}=lambda *arguments: ...")
    return value


def instance(value: Any, kind: type, name: str) -> Any:
    """An instance of ``kind``, not the class itself nor something else."""
    if not isinstance(value, kind):
        hint = (
            f"call it: {value.__name__}()" if isinstance(value, type) else f"pass {name}={kind.__name__}(...)"
        )
        fail(name, f"{value!r:.60}", f"an instance of {kind.__name__} is needed", hint)
    return value


def raises(on_failure: str) -> bool:
    """Whether a failure is to be raised rather than returned."""
    known = on_failure in ("raise", "return")
    remedy = 'pass on_failure="return" for a result with its status, or leave it out for an error'
    require(known, "on_failure", repr(on_failure), 'it is "raise" or "return"', remedy)
    return on_failure == "raise"


def _instead(value: object, name: str, *, above: float | None = None, whole: bool = False) -> str:
    """What to pass in place of ``value``: the nearest number that is allowed, as far as that is known."""
    try:
        near = None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        near = None
    if near is None or not math.isfinite(near):
        return f"pass a number, such as {name}={'1' if whole else '1.0'}"
    if whole:
        return f"pass {name}={max(1, round(near))}"
    if above is None or near > above:
        return f"pass {name}={near:g}, a plain number"
    return f"pass {name}={-near:g}" if near < 0 else f"pass a number above, such as {name}=1e-3"


def _is_number(value: object) -> bool:
    """Python's and numpy's numbers that fit into a float64; True and False are not meant."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # whole numbers beyond 1e308
        return False
