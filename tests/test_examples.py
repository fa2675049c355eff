"""Every example runs from an empty folder, without a display, and draws something in every panel."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from otflow.plot import figure
from tests import gallery, panels

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
EXAMPLES = sorted(FOLDER.rglob("*.py"))
ORDER: dict[str, list[str]] = tomllib.loads((FOLDER / "order.toml").read_text(encoding="utf-8"))


def test_every_example_has_one_place_in_the_order_of_the_gallery() -> None:
    placed = [FOLDER / folder / f"plot_{name}.py" for folder, names in ORDER.items() for name in names]
    assert sorted(placed) == EXAMPLES
    assert EXAMPLES


def test_every_group_of_examples_has_a_heading() -> None:
    headings = {path.parent.name for path in FOLDER.glob("*/GALLERY_HEADER.rst")}
    assert headings == set(ORDER)


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
def test_the_example_runs_without_a_warning_and_fills_every_panel(path: Path, tmp_path: Path) -> None:
    quiet = ["-W", "error", "-W", "ignore:FigureCanvasAgg is non-interactive"]
    run = subprocess.run(
        [sys.executable, *quiet, "-m", "tests.gallery", path],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr


SPLIT = """
import matplotlib.pyplot as plt

fig, (left, right) = plt.subplots(1, 2)
left.plot([0, 1], label="a line")
left.legend(loc="lower right")
right.set(title="the right one")

# %%
# The picture of the first block has been taken.

right.plot([0, 1])
"""


def test_a_panel_that_is_filled_after_its_block_is_found(tmp_path: Path) -> None:
    plt.switch_backend("Agg")
    path = tmp_path / "split.py"
    path.write_text(SPLIT, encoding="utf-8")
    assert gallery.run(path) == ["nothing is drawn in the panel 'the right one' when its block ends"]
    assert plt.get_fignums() == []


def test_data_off_the_limits_and_lines_across_a_panel_do_not_fill_it() -> None:
    fig, axes = figure(1, 4)
    for ax, title in zip(axes.flat, ("nothing", "off", "across", "full"), strict=True):
        ax.set(title=title, xlim=(0, 1), ylim=(0, 1))
    axes[0, 1].plot([2, 3], [2, 3])
    axes[0, 2].axhline(0.5)
    axes[0, 3].plot([0.1, 0.9], [0.1, 0.9])
    assert panels.judge(fig).empty == ["nothing", "off", "across"]


@pytest.mark.parametrize("place", ["upper left", "upper right"])
def test_a_legend_on_a_curve_is_found(place: str) -> None:
    fig, axes = figure()
    axes[0, 0].plot([0, 1], [0, 1], label="rising")
    axes[0, 0].set_title("rising")
    axes[0, 0].legend(loc=place)
    assert panels.judge(fig).covered == (["rising"] if place == "upper right" else [])
