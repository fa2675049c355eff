"""Which public names the cases use, read from their code, and which they leave out, with the reason."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from types import ModuleType

import otflow as of
from tests.fuzz.engine import FAMILIES, draw

LOOKED_AT = 8  # cases of each family whose code is read: what a family uses now and then is found in these
PAPERS = "papers"  # has claims of its own
RETURNED = "is what a function that is covered returns"
ABSTRACT = "is a base class: its kinds are covered"
CONTRACT = "is what parts of one's own give and take: `check` and the steppers are covered"
ERROR = "is an error: that it is one of these is what `refused` means"
PICTURE = "draws: pictures are judged by their pixels"

WITHOUT: dict[str, str] = {
    **dict.fromkeys(
        ("of.Energy", "of.Measure", "of.Metric", "of.Stepper", "of.VelocityField", "of.dynamics.Noise"),
        ABSTRACT,
    ),
    **dict.fromkeys(("of.energies.Internal", "of.measures.Space", "of.transport.Cost"), ABSTRACT),
    **dict.fromkeys(("of.transport.Engine", "of.transport.Transport", "of.reproduce.Experiment"), ABSTRACT),
    **dict.fromkeys(("of.fields.Carry", "of.steppers.Memory", "of.steppers.Step"), CONTRACT),
    **dict.fromkeys(
        ("of.transport.ColumnPotential", "of.transport.Features", "of.transport.Parts"), CONTRACT
    ),
    **dict.fromkeys(
        (
            *("of.dynamics.EnergyBalance", "of.dynamics.Limit", "of.steppers.Move"),
            *("of.closed_forms.L2Counterexample", "of.metrics.TwistedTransport"),
            *(f"of.transport.{kind}Transport" for kind in ("Entropic", "Exact", "Gaussian")),
            *("of.transport.RelaxedConditional", "of.reproduce.Claim", "of.reproduce.Statement"),
            *("of.reproduce.Result", "of.stability.APosteriori", "of.stability.APriori"),
            *("of.stability.Adversary", "of.stability.Constants", "of.stability.Coupled"),
            *("of.stability.Ladder", "of.stability.LocalConstant", "of.stability.Spectrum"),
        ),
        RETURNED,
    ),
    **{f"of.errors.{name}": ERROR for name in of.errors.__all__ if name not in of.__all__},
    **dict.fromkeys(("of.InputError", "of.OtflowError"), ERROR),
    **{f"of.plot.{name}": PICTURE for name in of.plot.__all__},
}


@cache
def public() -> dict[str, object]:
    """Shortest full name -> object, for all that otflow and its public parts list, papers excepted."""
    found: dict[int, tuple[str, object]] = {}
    waiting: list[tuple[str, ModuleType]] = [("of", of)]
    while waiting:
        path, module = waiting.pop(0)
        for name in listed(module):
            one = getattr(module, name)
            if name == PAPERS or name.startswith("__"):
                continue
            if isinstance(one, ModuleType):
                waiting.append((f"{path}.{name}", one))
            else:
                found.setdefault(id(one), (f"{path}.{name}", one))
    return dict(found.values())


def listed(module: ModuleType) -> list[str]:
    """``__all__``, or else the functions and classes that the module itself defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [
        (name, one)
        for name, one in vars(module).items()
        if not name.startswith("_") and getattr(one, "__module__", None) == module.__name__
    ]
    return [name for name, one in own if inspect.isclass(one) or inspect.isfunction(one)]


@cache
def used() -> set[str]:
    """Names of public objects in the code of some cases of every family."""
    names = {id(one): name for name, one in public().items()}
    paths = {path for family in FAMILIES for k in range(LOOKED_AT) for path in attributes(family, k)}
    objects = (resolved(path) for path in paths)
    return {names[id(one)] for one in objects if id(one) in names}


def attributes(family: str, index: int) -> set[str]:
    """Every "of.a.b" in a case."""
    tree = ast.parse(draw(family, 0, index).code)
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def resolved(path: str) -> object:
    """What a dotted path that starts with of means, None for other paths."""
    first, *rest = path.split(".")
    one: object = of if first == "of" else None
    for name in rest:
        one = getattr(one, name, None) if name.isidentifier() else None
    return one
