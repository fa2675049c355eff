"""What the corpus asks of a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def without_assertions() -> dict[str, Any]:
    """What `alone.py` reports when Python drops assertions: refusals, and peaks of memory."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peaks of memory are known on Linux only")
    command = [sys.executable, "-O", str(Path(__file__).parent / "alone.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report
