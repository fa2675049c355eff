"""What the README and the documentation show, runs: each block alone, or on what it says it builds on."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import matplotlib
import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
BUILDS_ON = re.compile(r"# builds on (.*)\n")  # the first line of a block that uses names from above
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if BLOCK.search(page.read_text(encoding="utf-8"))
]


def test_readme_and_the_page_on_extending_have_code_to_run() -> None:
    assert {"README.md", "extending.md"} <= {page.name for page in PAGES}


@pytest.mark.thorough
@pytest.mark.slow(but_for=["README.md", "choosing.md"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_runs_on_what_it_declares(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    text = page.read_text(encoding="utf-8")
    above: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        line, code = text.count("\n", 0, block.start(2)), dedent(block[2])
        namespace: dict[str, object] = {"__name__": page.stem}
        declared = BUILDS_ON.match(code)
        if declared:  # the names it lists, and what the page has imported
            modules = {name: value for name, value in above.items() if isinstance(value, ModuleType)}
            namespace |= modules | {name: above[name] for name in declared[1].split(", ")}
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
        above |= namespace
