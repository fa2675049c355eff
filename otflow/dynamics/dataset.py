"""The dataset of a trajectory: everything that a run holds, in names and numbers that files can keep.

The coordinates of the measure stand under their own names (x, mean, root, density), observables under
theirs, with ``observed_`` in front where that name is taken or not allowed in files, and certificates always
with ``certificate_``. What the run called them is in the attribute ``name`` of the variable, and what they
are in its attribute ``role``. Weights and labels, status and end of every member, cell centres and levels are
coordinates of the dataset. NetCDF 3 knows no int64, no half precision and few names: numbers are widened, or
kept as they are where that loses nothing, and the attribute ``torch_dtype`` says what they were.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from otflow.base import checks, status
from otflow.base.errors import MissingExtraError
from otflow.base.spaces import Euclidean, Space, Sphere, Torus
from otflow.measures import Gaussian, Grid, Measure, Particles, Quantiles
from otflow.measures.parts import KINDS, alike, fixed, rebuilt

if TYPE_CHECKING:
    import xarray

SPACES: Mapping[str, type[Space]] = {kind.__name__: kind for kind in (Euclidean, Sphere, Torus)}
ENDS = ("ended", "blow_up_time", "blow_up_error")  # of every member
PER_TOKEN = ("w", "label")
# What a run was started with, as attributes; a seed may have more digits than netCDF 3 knows.
ORIGIN: Mapping[str, type] = {
    **dict.fromkeys(("field", "stepper", "noise"), str),
    **dict.fromkeys(("t0", "t1", "dt"), float),
    "seed": int,
}
# Names that netCDF 3 keeps for itself.
RESERVED = {"byte", "char", "short", "ushort", "int", "uint", "int64", "uint64", "float", "real", "double"}
RESERVED |= {"bool", "string"}
# Names of the axes that each of the coordinates has after time and batch; a grid has as many as dimensions.
DIMS: Mapping[type[Measure], dict[str, tuple[str, ...]]] = {
    Particles: {"x": ("token", "coordinate")},
    Gaussian: {"mean": ("coordinate",), "root": ("coordinate", "column")},
    Quantiles: {"x": ("level",)},
}
SMALL = (torch.int8, torch.uint8, torch.int16)  # widened to int32
Variable = tuple[tuple[str, ...], np.ndarray, dict[str, str]]
BatchNames: TypeAlias = Sequence[str] | Mapping[str, Any]


def pack(run: Mapping[str, Any], batch: BatchNames | None = None) -> xarray.Dataset:
    """The fields of a trajectory as a dataset; ``batch`` names its batch axes, a mapping with their ticks.

    >>> from otflow.dynamics.dataset import pack
    >>> import torch
    >>> from otflow.measures import Particles
    >>> nan = torch.tensor(torch.nan)
    >>> run = {"ts": torch.zeros(1), "measures": (Particles([[1.0]]),), "observed": {}, "certificates": {}}
    >>> run |= dict.fromkeys(("ended", "blow_up_time", "blow_up_error"), nan)
    >>> pack(run | {"status": "ok", "message": "", "steps": 0})["x"].dims
    ('t', 'token', 'coordinate')
    """
    try:
        import xarray
    except ImportError as error:
        raise MissingExtraError("to_xarray needs xarray: pip install 'otflow[xarray]'") from error
    measures = run["measures"]
    remedy = "save at least one time"
    checks.require(measures, "len(trajectory)", 0, "a dataset needs a measure", remedy)
    own = own_dims(measures[-1])
    axes = _batch_axes(measures[-1], own, batch)
    coords = _run(run, axes) | _carried(measures, own, axes) | _batch_ticks(measures[-1], batch)
    arrays = _moved(measures, own, axes) | _records(run, axes, {*coords, *own, *axes, *sum(own.values(), ())})
    return xarray.Dataset(arrays, coords=coords, attrs=_attributes(run))


def unpack(ds: xarray.Dataset) -> dict[str, Any]:
    """The fields of the trajectory of which ``ds`` is the dataset, also after a file or a selection."""
    kind = _kind(ds)
    T = ds.sizes["t"]
    rest = _read_fixed(ds, kind)
    pieces = [_tensor(ds[name].transpose("t", ..., *own)) for name, own in _read_dims(ds, kind).items()]
    return {
        "ts": _tensor(ds["t"]),
        "measures": tuple(rebuilt(kind, [p[k] for p in pieces], _at(rest, k)) for k in range(T)),
        "observed": _read_records(ds, "observed"),
        "certificates": _read_records(ds, "certificate"),
        "status": _read_status(ds["status"].values),
        **{name: _tensor(ds[name]) for name in ENDS},
        "message": str(ds.attrs["message"]),
        "steps": int(ds.attrs["steps"]),
        "shared": _read_shared(ds),
        "origin": {name: kind(ds.attrs[name]) for name, kind in ORIGIN.items() if name in ds.attrs},
    }


# --- names of axes -------------------------------------------------------------------------------------


def own_dims(mu: Measure) -> dict[str, tuple[str, ...]]:
    """Names of the axes after time and batch, those of measures that are not known here by number.

    >>> from otflow import Grid
    >>> from otflow.dynamics.dataset import own_dims
    >>> own_dims(Grid([[1.0, 1.0], [1.0, 1.0]], [[0.25, 0.75], [0.25, 0.75]]))
    {'density': ('x', 'y')}
    """
    if isinstance(mu, Grid):
        return {"density": tuple("xyz"[: len(mu.axes)])}
    for kind in type(mu).__mro__:
        if kind in DIMS:
            return DIMS[kind]
    pieces = zip(mu.names, mu.coords, strict=True)
    return {name: tuple(f"{name}_dim{i}" for i in range(c.ndim - len(mu.batch))) for name, c in pieces}


def _batch_axes(mu: Measure, own: Mapping[str, tuple[str, ...]], given: BatchNames | None) -> tuple[str, ...]:
    names = tuple(f"batch{i}" for i in range(len(mu.batch))) if given is None else tuple(given)
    rule = f"one name per batch axis is needed, and the batch is {tuple(mu.batch)}"
    good = not isinstance(given, str) and len(set(names)) == len(names) == len(mu.batch)
    checks.require(good, "batch", repr(given), rule, 'pass batch=("temperature", "seed"), say')
    taken = {"t", "status", *ENDS, *PER_TOKEN, *own, *(axis for axes in own.values() for axis in axes)}
    clash = sorted(taken & set(names))
    checks.require(
        not clash,
        "batch",
        clash,
        "the dataset uses this name itself",
        f"pass {clash[0]}_ there, say" if clash else "",
    )
    return names


def _batch_ticks(mu: Measure, given: BatchNames | None) -> dict[str, Variable]:
    """What the members along each batch axis stand for, as far as it is given: temperatures, seeds."""
    table = given if isinstance(given, Mapping) else {}
    return {
        name: ((name,), _tick(values, name, n), {})
        for (name, values), n in zip(table.items(), mu.batch, strict=False)
        if values is not None
    }


def _tick(values: Any, name: str, n: int) -> np.ndarray:
    array = np.array(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    rule, remedy = f"one entry per member along this axis is needed, ({n},)", "pass a vector, or None"
    checks.require(array.shape == (n,), f'batch["{name}"].shape', array.shape, rule, remedy)
    return _portable(array)


def _portable(array: np.ndarray) -> np.ndarray:
    """Strings as objects: those of one width have no place in format 3 of zarr."""
    return array.astype(object) if array.dtype.kind == "U" else array


def _free(name: str, prefix: str, taken: set[str]) -> str:
    """A name for a variable that files allow and nobody has."""
    plain = re.sub(r"[^\w.@+-]", "_", unicodedata.normalize("NFC", name))
    if plain in taken | RESERVED or not plain[:1].isalnum():
        plain = f"{prefix}_{plain}"
    while plain in taken:
        plain += "_"
    return plain


# --- writing -------------------------------------------------------------------------------------------


def _attributes(run: Mapping[str, Any]) -> dict[str, Any]:
    mu = run["measures"][-1]
    space = fixed(mu).get("space")
    return {
        "otflow": sys.modules["otflow"].__version__,  # loaded, since it holds this module
        "measure": type(mu).__name__,
        "dtype": str(mu.dtype).removeprefix("torch."),
        **({} if space is None else _described(space)),
        "status": status.summary(run["status"]),
        "message": run["message"],
        "steps": run["steps"],
        **{name: str(value) if name == "seed" else value for name, value in run.get("origin", {}).items()},
    }


def _described(space: Space) -> dict[str, Any]:
    """The kind of a space and its numbers, such as the period of a torus."""
    own: list[str] = [one.name for one in fields(space)] if is_dataclass(space) else []
    return {"space": type(space).__name__} | {f"space_{name}": getattr(space, name) for name in own}


def _run(run: Mapping[str, Any], axes: tuple[str, ...]) -> dict[str, Variable]:
    """Times, and how every member ended."""
    ended = np.asarray(run["status"])
    return {
        "t": _variable(run["ts"], ("t",), "t"),
        "status": (axes[: ended.ndim], _portable(ended), {}),
        **{name: _variable(run[name], axes, name) for name in ENDS},
    }


def _moved(
    measures: Sequence[Measure], own: Mapping[str, tuple[str, ...]], axes: tuple[str, ...]
) -> dict[str, Variable]:
    """The coordinates of the measure along time."""
    pieces = zip(*(mu.coords for mu in measures), strict=True)
    return {
        name: _variable(torch.stack(piece), ("t", *axes, *dims), name)
        for (name, dims), piece in zip(own.items(), pieces, strict=True)
    }


def _carried(
    measures: Sequence[Measure], own: Mapping[str, tuple[str, ...]], axes: tuple[str, ...]
) -> dict[str, Variable]:
    """What the measure carries along: weights and labels, cell centres, levels; along time if it changes."""
    table = [fixed(mu) for mu in measures]
    found: dict[str, Variable] = {}
    for name, value in table[-1].items():
        same = all(alike(row[name], value) for row in table)
        if name in PER_TOKEN and value is not None:
            rows = value if same else torch.stack([row[name] for row in table])
            found[name] = _variable(rows, (*(() if same else ("t",)), *axes, "token"), name)
        else:
            rule, remedy = "a dataset holds measures that share it", "make one dataset of each"
            checks.require(same, name, value, rule, remedy)
    for name, value in _ticks(table[-1]).items():
        found[name] = _variable(value, (name,), name)
    return found


def _ticks(rest: Mapping[str, Any]) -> dict[str, Tensor]:
    """The numbers along axes: centres of cells, levels of quantiles."""
    centres = dict(zip("xyz", rest.get("axes", ()), strict=False))
    return centres | ({"level": rest["levels"]} if "levels" in rest else {})


def _records(run: Mapping[str, Any], axes: tuple[str, ...], taken: set[str]) -> dict[str, Variable]:
    """Observables and certificates, each under a name of its own."""
    batch = run["measures"][-1].batch
    found: dict[str, Variable] = {}
    for role, table, prefix in (
        ("observed", run["observed"], ""),
        ("certificate", run["certificates"], "certificate_"),
    ):
        for name, value in table.items():
            key = _free(f"{prefix}{name}", role, taken)
            shared = role == "observed" and name in run.get("shared", ())
            members = axes if value.shape[1 : 1 + len(batch)] == batch and not shared else ()
            left = value.ndim - 1 - len(members)
            own = tuple(_free(f"{key}_dim{i}", "axis", {*taken, key}) for i in range(left))
            taken |= {key, *own}
            found[key] = _variable(value, ("t", *members, *own), name, role=role, name=name)
    return found


def _variable(a: Tensor, dims: tuple[str, ...], what: str, **attributes: str) -> Variable:
    """Plain numbers in a dtype that every file knows, with the one they had."""
    rule, remedy = "files hold real numbers", "observe its real and its imaginary part"
    checks.require(not a.is_complex(), what, a.dtype, rule, remedy)
    kind, a = str(a.dtype).removeprefix("torch."), a.detach().cpu()
    if a.dtype in checks.HALVES:
        a = a.float()
    elif a.dtype in SMALL:
        a = a.int()
    elif a.dtype == torch.int64 and a.numel() and 2**31 <= int(a.abs().max()) <= 2**53:
        a = a.double()
    return dims, np.array(a.numpy()), {"torch_dtype": kind, **attributes}


# --- reading -------------------------------------------------------------------------------------------


def _kind(ds: xarray.Dataset) -> type[Measure]:
    name = getattr(ds, "attrs", {}).get("measure")
    remedy = "pass what Trajectory.to_xarray() gave, with its attributes"
    checks.require(name, "ds", f"{type(ds).__name__} without attribute 'measure'", "not a trajectory", remedy)
    rule = f"only {', '.join(KINDS)} can be built again"
    checks.require(name in KINDS, "ds.attrs['measure']", name, rule, "build the measures from ds by hand")
    return KINDS[str(name)]


def _read_dims(ds: xarray.Dataset, kind: type[Measure]) -> dict[str, tuple[str, ...]]:
    if kind is Grid:
        return {"density": tuple(axis for axis in "xyz" if axis in ds["density"].dims)}
    return DIMS[kind]


def _read_fixed(ds: xarray.Dataset, kind: type[Measure]) -> dict[str, Any]:
    """What does not move; per token along time if the dataset says so, as a tuple of its rows."""
    if kind is Particles:
        per_token = {name: _rows(ds[name]) if name in ds else None for name in PER_TOKEN}
        return {**per_token, "space": _read_space(ds.attrs)}
    if kind is Grid:
        return {"axes": [_tensor(ds[axis]) for axis in _read_dims(ds, kind)["density"]]}
    return {"levels": _tensor(ds["level"])} if kind is Quantiles else {}


def _rows(a: xarray.DataArray) -> Any:
    a = a.transpose(..., "token")
    return tuple(_tensor(a.transpose("t", ...))) if "t" in a.dims else _tensor(a)


def _at(rest: Mapping[str, Any], k: int) -> dict[str, Any]:
    """The fixed parts at one time; axes of a grid are a tuple."""
    moving = {name: value[k] if isinstance(value, tuple) else value for name, value in rest.items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in moving.items()}


def _read_space(attributes: Mapping[Any, Any]) -> Space:
    name = attributes["space"]
    rule, remedy = f"only {', '.join(SPACES)} can be built again", "build the measures from ds by hand"
    checks.require(name in SPACES, "ds.attrs['space']", name, rule, remedy)
    kind: Any = SPACES[str(name)]
    return kind(**{one.name: float(attributes[f"space_{one.name}"]) for one in fields(kind)})


def _read_records(ds: xarray.Dataset, role: str) -> dict[str, Tensor]:
    found = [a for a in ds.data_vars.values() if a.attrs.get("role") == role]
    return {str(a.attrs["name"]): _tensor(a) for a in found}


def _read_shared(ds: xarray.Dataset) -> tuple[str, ...]:
    """Observables without the axes of the batch, which are those of the status."""
    found = [a for a in ds.data_vars.values() if a.attrs.get("role") == "observed"]
    batch = set(ds["status"].dims)
    return tuple(sorted(str(a.attrs["name"]) for a in found if not batch <= set(a.dims)))


def _read_status(values: Any) -> Any:
    given = np.asarray(values)  # strings of any kind, as files give them
    found = np.array([str(one) for one in given.ravel()]).reshape(given.shape)
    return str(found) if found.ndim == 0 else found.astype(np.result_type(found, np.array(status.STATUSES)))


def _tensor(a: xarray.DataArray) -> Tensor:
    """The numbers in the dtype they had, in the byte order of this machine."""
    values = np.array(a.values, dtype=a.dtype.newbyteorder("="))
    kind = a.attrs.get("torch_dtype", str(values.dtype))
    return torch.from_numpy(values).to(getattr(torch, str(kind)))
