"""What new users do on their first day, each in a process of its own and in at most fifteen lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STORIES = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_"))


@pytest.mark.slow
@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_runs_as_it_is_told(path: Path) -> None:
    run = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_is_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if line.strip() and not line.startswith(('"""', "import ", "from "))]
    assert len(code) <= 15
