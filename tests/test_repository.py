"""The shape of the repository: layers, names, lengths, no trace of the machine it was written on."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from otflow import __version__
from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "otflow"
SOURCES = sorted(PACKAGE.rglob("*.py"))
RULES = tomllib.loads((ROOT / "docs" / "layers.toml").read_text(encoding="utf-8"))
ROW = {part: number for number, row in enumerate(RULES["layers"]) for part in row}
RIDDLES = {
    "states",
    "scores",
    "lazy",
    "pairs",
    "worst",
    "along",
    "rungs",
    "watch",
    "families",
    "balls",
    "utils",
}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module(path: Path) -> str:
    """The name of a source file below otflow, such as 'transport.exact.line'; the package is '__init__'."""
    parts = path.relative_to(ROOT / "otflow").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module(path): path for path in SOURCES}


def imported(path: Path) -> Iterator[str]:
    """Full names of all that a file imports, wherever in the file."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def home(name: str) -> str:
    """The module of otflow that an imported name is, or comes from."""
    inner = name.removeprefix("otflow").lstrip(".")
    while inner and inner not in MODULES:
        inner = inner.rpartition(".")[0]
    return inner or "__init__"


@cache
def arrows() -> dict[str, set[str]]:
    """Module -> the other modules of otflow that it imports."""
    ours = {
        name: [one for one in imported(path) if one.split(".")[0] == "otflow"]
        for name, path in MODULES.items()
    }
    return {name: {home(one) for one in used} - {name} for name, used in ours.items()}


def part(name: str) -> str:
    """The part of docs/layers.toml that a module belongs to."""
    while name and name not in ROW:
        name = name.rpartition(".")[0]
    return name


def exceptions() -> set[tuple[str, str]]:
    """Arrows that may point up: for the type checker only, or only while a method runs."""
    return {*RULES["types_only"].items(), *RULES["when_called"].items()}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of lines of every function body, docstring left out."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            yield f"{path.relative_to(ROOT)}:{node.name}", length


# --- layers --------------------------------------------------------------------------------------------


def test_every_module_has_a_place_in_the_layers_and_every_place_a_module() -> None:
    assert [name for name in MODULES if not part(name)] == []
    assert {part(name) for name in MODULES} == set(ROW)


def test_imports_point_downwards_at_every_depth() -> None:
    allowed = exceptions()
    upward = [
        f"{name} imports {other}"
        for name, used in arrows().items()
        for other in used
        if part(name) != part(other) and ROW[part(other)] >= ROW[part(name)]
        if (name, other) not in allowed and (part(name), part(other)) not in allowed
    ]
    assert upward == []


def test_no_module_imports_itself_through_others() -> None:
    allowed = exceptions()
    graph = {
        name: {other for other in used if (name, other) not in allowed} for name, used in arrows().items()
    }
    graph["__init__"] = set()  # it imports what it is asked for, and the rest is for the type checker
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_arrows_for_the_type_checker_are_for_nobody_else() -> None:
    for name, other in RULES["types_only"].items():
        guarded = [node for node in tree(MODULES[name]).body if isinstance(node, ast.If)]
        assert {home(one) for node in guarded for one in _names(node)} >= {other}
        plain = {
            home(one) for node in tree(MODULES[name]).body if node not in guarded for one in _names(node)
        }
        assert other not in plain


def test_arrows_of_a_call_stand_inside_functions() -> None:
    for name, other in RULES["when_called"].items():
        found = [node for node in ast.walk(tree(MODULES[name])) if other in {home(one) for one in _own(node)}]
        inside = {
            id(node)
            for function in ast.walk(tree(MODULES[name]))
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
        }
        assert found
        assert all(id(node) in inside for node in found)


def _own(node: ast.AST) -> list[str]:
    return list(_names(node)) if isinstance(node, ast.Import | ast.ImportFrom) else []


def _names(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.ImportFrom):
            yield from (f"{one.module}.{alias.name}" for alias in one.names)
        elif isinstance(one, ast.Import):
            yield from (alias.name for alias in one.names)


def test_a_picture_never_imports_the_experiment_that_asks_for_it() -> None:
    experiments = {name for name in MODULES if name.startswith("papers.") and _runs(MODULES[name])}
    assert len(experiments) >= 29
    pictures = {name for name in MODULES if name.startswith("papers.") and "draw" in name.rpartition(".")[2]}
    assert {
        f"{name} imports {arrows()[name] & experiments}" for name in pictures if arrows()[name] & experiments
    } == set()


def _runs(path: Path) -> bool:
    """Whether a module is an experiment: it has a function `run(frame)`."""
    found = [node for node in tree(path).body if isinstance(node, ast.FunctionDef) and node.name == "run"]
    return any([one.arg for one in node.args.args] == ["frame"] for node in found)


def test_a_confined_library_is_imported_in_its_part_only() -> None:
    confined = RULES["confined"]
    escaped = [
        f"{name} imports {library}"
        for name, path in MODULES.items()
        for library in {one.split(".")[0] for one in imported(path)} & confined.keys()
        if not name.startswith(confined[library])
    ]
    assert escaped == []


def test_relative_and_absolute_imports_are_both_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    source = tmp_path / "otflow" / "measures" / "new.py"
    source.parent.mkdir(parents=True)
    source.write_text("from ..flow import flow\nfrom . import base\nimport ot\nfrom otflow.cli import main\n")
    assert list(imported(source)) == ["otflow.flow.flow", "otflow.measures.base", "ot", "otflow.cli.main"]


UNWANTED = {
    "import otflow": "torch numpy scipy matplotlib ot",
    "import otflow as of; of.Euler, of.Dopri5, of.flow": "otflow.steppers.jko otflow.stability matplotlib",
    "import otflow as of; of.Particles([[0.0]])._repr_html_()": "matplotlib.pyplot otflow.stability ot",
    "import otflow.reproduce.claim as c; c.Source('')('').equal(1, 1)._repr_html_()": "torch numpy",
    "import otflow.plot": "otflow.stability otflow.steppers.jko otflow.papers",
    "import otflow.papers.metastability.reproduce": "otflow.papers.perspective otflow.papers.clusters",
    "import otflow as of; of.papers.clusters.hull": "otflow.papers.jko otflow.papers.clusters.reproduce",
}


@pytest.mark.thorough
@pytest.mark.parametrize("code", UNWANTED)
def test_what_is_not_asked_for_is_not_loaded(code: str) -> None:
    unwanted = UNWANTED[code].split()
    ask = f"import sys; {code}; print([name for name in {unwanted} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd=ROOT)
    assert answer.stdout.strip() == "[]"


# --- names and sizes -----------------------------------------------------------------------------------


def test_a_public_class_name_is_defined_once() -> None:
    places = defaultdict(list)
    for name, path in MODULES.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_file_name_stands_once_in_a_folder_tree_and_is_no_riddle() -> None:
    trees = defaultdict(list)
    for name in MODULES:
        parts = name.split(".")
        top = parts[:2] if parts[0] == "papers" else parts[:1]
        if MODULES[name].name != "__init__.py":
            trees[".".join([*top, "..", parts[-1]])].append(name)
    repeated = {key: names for key, names in trees.items() if len(names) > 1}
    # What a measure is called, and what every kind of thing starts from, the folder says.
    allowed = re.compile(r"steppers\.\.\.(base|gaussian|quantiles)|.*\.\.\.base")
    assert {key: names for key, names in repeated.items() if not allowed.fullmatch(key)} == {}
    assert [name for name in MODULES if name.rpartition(".")[2] in RIDDLES] == []


def test_a_file_starts_with_one_sentence() -> None:
    first = {name: (ast.get_docstring(tree(path)) or "").partition("\n")[0] for name, path in MODULES.items()}
    assert [name for name, sentence in first.items() if len(sentence.split()) < 3] == []


def test_no_folder_holds_more_than_20_files() -> None:
    many = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in SOURCES}}
    assert {str(folder.relative_to(ROOT)): count for folder, count in many.items() if count > 20} == {}


def test_no_file_is_longer_than_600_lines() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES
    }
    smell = {name: length for name, length in lengths.items() if length > 400}
    if smell:
        print("more than 400 lines, worth a look:", smell)  # noqa: T201
    assert {name: length for name, length in smell.items() if length > 600} == {}


def test_functions_are_short() -> None:
    lengths = dict(one for path in SOURCES for one in functions(path))
    assert {name: length for name, length in lengths.items() if length > 60} == {}
    assert statistics.median(lengths.values()) <= 8
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 30


# --- texts ---------------------------------------------------------------------------------------------


def texts() -> Iterator[Path]:
    """The files people wrote, as far as they are text."""
    folders = ("otflow", "tests", "docs", "examples", "benchmarks", ".ci", ".github")
    generated = {"__pycache__", "_build", "gallery", "reference", ".git"}  # .git is a file in a worktree
    endings = {"", ".py", ".md", ".rst", ".toml", ".txt", ".cff", ".html", ".yml", ".yaml", ".json"}
    candidates = [*ROOT.glob("*"), *(path for name in folders for path in (ROOT / name).rglob("*"))]
    for path in candidates:
        if path.is_file() and path.suffix in endings and not generated & set(path.relative_to(ROOT).parts):
            yield path


@pytest.mark.thorough
def test_no_file_names_a_path_of_somebodys_machine() -> None:
    machine = re.compile(r"(?<![\w.}~-])(?:/(?:home|root|Users|tmp|work|opt|mnt|private)/|[A-Z]:\\Users)\w")
    found = {
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if machine.search(line)
    }
    assert not found


def test_every_module_that_is_imported_anywhere_exists() -> None:
    """Also in code that is a string, which nobody runs before a slow test does."""
    imports = re.compile(r"^\s*(?:from|import) (otflow(?:\.\w+)*)", re.MULTILINE)
    found = {
        (path.name, name) for path in texts() for name in imports.findall(path.read_text(encoding="utf-8"))
    }
    missing = {(file, name) for file, name in found if not exists(ROOT.joinpath(*name.split(".")))}
    assert not missing


def exists(path: Path) -> bool:
    return path.is_dir() or path.with_suffix(".py").is_file()


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
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0].lower() for line in lines}
    missing = {re.split(r"[>=\[]", one)[0].lower() for one in wanted} - pinned - {"otflow"}
    assert not missing


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_line_that_is_there_and_compiles(mutant: Mutant) -> None:
    right = (ROOT / mutant.path).read_text(encoding="utf-8")
    wrong = mutant.applied(right)
    assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(right))
    assert all((ROOT / "tests" / name).exists() for name in mutant.tests.split())
