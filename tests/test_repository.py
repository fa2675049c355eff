"""The shape of the repository: layers, budgets for length, no trace of the machine it was written on."""

from __future__ import annotations

import ast
import re
import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from otflow import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "otflow"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Part -> the parts it may import, as drawn in docs/design.md; a part is a module or folder in otflow/.
GROUND = {"errors", "checks", "linalg", "status", "algebra"}
BOTTOM = GROUND | {"tangent", "spaces", "kernels"}
MEASURES = BOTTOM | {"measures"}
ENERGIES = MEASURES | {"transport", "energies"}
FIELDS = ENERGIES | {"metrics", "fields"}
STEPPERS = FIELDS | {"steppers"}
FLOW = STEPPERS | {"noise", "schedule", "trajectory", "recorder", "driver", "store"}
LEAVES = {"balance", "limits", "closed_forms", "observables", "stability", "systems", "models", "plot"}
EVERYTHING = FLOW | LEAVES
ALLOWED = {
    "errors": set(),
    "status": set(),
    "checks": {"errors"},
    "linalg": {"errors", "checks"},
    "algebra": {"errors", "checks"},
    "schedule": GROUND,
    "tangent": GROUND,
    "spaces": GROUND,
    "kernels": GROUND,
    "measures": BOTTOM,
    "transport": MEASURES,
    "metrics": MEASURES | {"transport"},
    "energies": MEASURES | {"transport"},
    "fields": ENERGIES | {"metrics"},
    "steppers": FIELDS,
    "noise": FIELDS,
    "trajectory": STEPPERS,
    "store": STEPPERS | {"trajectory"},
    "recorder": STEPPERS,
    "driver": STEPPERS | {"noise", "schedule", "trajectory", "recorder", "store"},
    "balance": FLOW,
    "limits": FLOW,
    "closed_forms": MEASURES | {"transport"},
    "observables": FLOW,
    "stability": FLOW,
    "systems": FLOW,
    "models": FLOW,
    "plot": FLOW | {"stability"},
    "__init__": EVERYTHING,
    "experiments": EVERYTHING | {"__init__"},
    "report": {"__init__", "experiments"},
    "cli": {"__init__", "experiments", "report"},
    "__main__": {"cli"},
}
# Arrows that point up for the type checker only, each with its reason.
TYPES_ONLY = {("errors", "trajectory")}  # an error names the type of the partial result that it carries
# Libraries that only one part may import.
CONFINED = {"ot": "transport", "geomloss": "transport", "matplotlib": "plot"}


def part(path: Path) -> str:
    """The part of otflow that a source file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, wherever in the file."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def parts_used(path: Path) -> set[str]:
    """The other parts of otflow that a file imports; the package itself counts as '__init__'."""
    names = [name.split(".")[1:] for name in imported(path) if name.split(".")[0] == "otflow"]
    used = {name[0] if len(name) > 1 or is_part(*name) else "__init__" for name in names}
    return used - {part(path)}


def is_part(name: str = "") -> bool:
    """Whether `name` is a module or folder of otflow, rather than something else that the package offers."""
    return bool(name) and ((PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file())


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of every function body, docstring left out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            yield f"{path.relative_to(ROOT)}:{node.name}", length


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_between_parts_point_downwards(path: Path) -> None:
    assert part(path) in ALLOWED, f"{part(path)!r} is a new part of otflow: give it a place in ALLOWED"
    upward = {used for used in parts_used(path) - ALLOWED[part(path)] if (part(path), used) not in TYPES_ONLY}
    assert not upward, f"{part(path)} must not import {sorted(upward)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_confined_library_is_imported_in_its_part_only(path: Path) -> None:
    libraries = {name.split(".")[0] for name in imported(path)}
    escaped = {name for name in libraries & CONFINED.keys() if CONFINED[name] != part(path)}
    assert not escaped


def test_the_table_of_layers_has_no_cycle() -> None:
    remaining = {name: set(allowed) for name, allowed in ALLOWED.items()}
    while free := {name for name, allowed in remaining.items() if not allowed & remaining.keys()}:
        remaining = {name: allowed for name, allowed in remaining.items() if name not in free}
    assert not remaining


def test_relative_and_absolute_imports_are_both_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    source = tmp_path / "otflow" / "measures" / "new.py"
    source.parent.mkdir(parents=True)
    source.write_text("from ..flow import flow\nfrom . import base\nimport ot\nfrom otflow.cli import main\n")
    assert list(imported(source)) == ["otflow.flow.flow", "otflow.measures.base", "ot", "otflow.cli.main"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_body_is_longer_than_60_lines(path: Path) -> None:
    assert {name: length for name, length in functions(path) if length > 60} == {}


def test_half_of_all_functions_have_at_most_8_lines_and_nine_tenths_at_most_30() -> None:
    lengths = [length for path in SOURCES for _, length in functions(path)]
    assert statistics.median(lengths) <= 8
    assert statistics.quantiles(lengths, n=10)[-1] <= 30


def texts() -> Iterator[Path]:
    """The files people wrote, as far as they are text."""
    folders = ("otflow", "tests", "docs", "examples", "benchmarks", ".ci", ".github")
    generated = {"__pycache__", "_build", "gallery"}
    candidates = [*ROOT.glob("*"), *(path for name in folders for path in (ROOT / name).rglob("*"))]
    for path in candidates:
        is_text = path.suffix in {
            "",
            ".py",
            ".md",
            ".rst",
            ".toml",
            ".txt",
            ".cff",
            ".html",
            ".yml",
            ".yaml",
            ".json",
        }
        if path.is_file() and is_text and not generated & set(path.relative_to(ROOT).parts):
            yield path


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    machine = re.compile(r"(?<![\w.}~-])(?:/(?:home|root|Users|tmp|work|opt|mnt|private)/|[A-Z]:\\Users)\w")
    found = {
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if machine.search(line)
    }
    assert not found


def test_the_version_is_written_in_one_place() -> None:
    literal = re.compile(rf"[\"' ]{re.escape(__version__)}(?![\w.])")
    files = [*SOURCES, ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "docs" / "conf.py"]
    places = [path for path in files if literal.search(path.read_text(encoding="utf-8"))]
    assert places == [PACKAGE / "__init__.py"]


def test_every_constraint_pins_one_version_without_local_suffix() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    loose = [
        line for line in lines if not line.startswith("#") and not re.fullmatch(r"[\w.-]+==[\w.]+", line)
    ]
    assert loose == []


def test_every_dependency_has_a_constraint() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    pinned = {
        line.split("==")[0].lower()
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    }
    missing = {re.split(r"[>=\[]", one)[0].lower() for one in wanted} - pinned - {"otflow"}
    assert not missing
