"""Every example runs from an empty folder, without a display."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def test_there_are_examples() -> None:
    assert EXAMPLES


def test_every_name_that_an_example_takes_from_otflow_exists() -> None:
    """What a renaming breaks, without running anything."""
    for path in EXAMPLES:
        for name in names(ast.parse(path.read_text(encoding="utf-8"))):
            assert resolves(name), f"{path.name}: {name}"


def names(tree: ast.Module) -> set[str]:
    """What is imported from a part of otflow, and chains like `of.stability.ladder`."""
    found = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    chains = {"otflow" + name[2:] for name in found if re.fullmatch(r"of(\.\w+)+", name)}
    origins = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {f"{node.module}.{one.name}" for node in origins for one in node.names}
    return chains | {name for name in imported if name.startswith("otflow.")}


def resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_without_a_warning(path: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:FigureCanvasAgg is non-interactive", path],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
