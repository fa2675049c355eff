"""An accelerator where there is none: torch's fake tensors, and a count of what is read back to the host.

A fake tensor has a shape, a dtype and a device, but no numbers. Operations on two devices at once raise an
error, and so does every question whose answer depends on numbers. Without a CUDA build of torch, a backward
pass through fake CUDA tensors is not possible, because it asks for a stream. There the device "lazy" stands
in, which is no more the CPU than CUDA is.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import otflow as of
from otflow.base import checks
from otflow.base.integrals import quadrature
from otflow.base.parameters import Parametric

CUDA, STAND_IN = torch.device("cuda", 0), torch.device("lazy", 0)
T = TypeVar("T")


class Accelerator(FakeTensorMode):
    """Inside, objects that were made by `take` live on a device that is not the CPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.taken: list[object] = []
        quadrature.pair.cache_clear()  # what is kept for this device is made of another fake
        _guarded()

    def tensor(self, a: Tensor) -> Tensor:
        """A fake tensor like ``a``, on the device."""
        like = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")
        return FakeTensor(self, like, self.device).requires_grad_(a.requires_grad)

    def take(self, thing: T) -> T:
        """A measure, a tangent, or something that holds tensors, moved to the device; that in place."""
        if isinstance(thing, Tensor):
            return self.tensor(thing)  # type: ignore[return-value]
        if isinstance(thing, of.Measure):
            return thing.each(self.tensor, self.tensor)  # type: ignore[return-value]
        if any(thing is one for one in self.taken):
            return thing  # functions of an object may refer to it
        if isinstance(thing, Parametric | nn.Module | FunctionType):
            self.taken.append(thing)
        if isinstance(thing, Parametric | nn.Module):
            _replace(vars(thing), self.take)
        elif isinstance(thing, FunctionType):
            for cell in thing.__closure__ or ():
                cell.cell_contents = self.take(cell.cell_contents)
        elif type(thing) in (tuple, list, of.Tangent):
            return type(thing)(self.take(one) for one in thing)  # type: ignore[call-arg, attr-defined]
        elif type(thing) is dict:
            _replace(thing, self.take)
        return thing


def _replace(table: dict[str, Any], f: Callable[[Any], Any]) -> None:
    table.update({name: f(one) for name, one in table.items()})


@cache
def _guarded() -> None:
    """Give CUDA a device guard where torch was built without one: that of a device that needs none.

    A guard says which of several devices is current. Indexing asks for it whatever a tensor is made of.
    """
    if torch.backends.cuda.is_built():
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 20).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[14]  # CUDA and meta, as in DeviceType.h


READS = ("_local_scalar_dense", "equal", "is_nonzero", "item", "_linalg_check_errors")
SHAPES = ("nonzero", "masked_select", "_unique2", "unique_dim", "repeat_interleave")  # shaped by numbers
CHECKED = ("_linalg_eigh", "_linalg_svd", "_linalg_eigvals", "linalg_eig", "linalg_lstsq")  # by torch itself
INDEXED = ("index", "index_put", "index_put_", "_unsafe_index_put")  # by a mask: also shaped by numbers
COPIES = ("cpu", "numpy", "tolist", "__array__")


class HostReads(TorchDispatchMode):
    """Counts, by name, the operations that make the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.copies = _Copies(self.found)

    @property
    def total(self) -> int:
        return self.found.total()

    def __enter__(self) -> HostReads:
        self.copies.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self.copies.__exit__(*args)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS + SHAPES + CHECKED or (name in INDEXED and _by_mask(args[1])):
            self.found[name] += 1
        if name == "_to_copy" and _leaves(args[0], (kwargs or {}).get("device")):
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


class _Copies(TorchFunctionMode):
    """What torch does for tensors on the CPU without telling the dispatcher."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in COPIES:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


def _by_mask(indices: Any) -> bool:
    """Whether an index is a mask, which torch turns into places that it has to count."""
    return any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)


def _leaves(a: Tensor, device: torch.device | None) -> bool:
    return device is not None and device.type == "cpu" and a.device.type != "cpu"


@contextmanager
def far_away() -> Iterator[None]:
    """Tensors keep their numbers, but the library takes them for ones that the host would wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "on_host", lambda a: False)
        yield


class Answers(TorchDispatchMode):
    """Answers every question about a number with zero, or no (yes): for code that asks a fake tensor."""

    def __init__(self, *, yes: bool = False) -> None:
        super().__init__()
        self.yes, self.asked = yes, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.asked += 1
            return self.yes if args[0].dtype == torch.bool else 0
        return func(*args, **(kwargs or {}))
