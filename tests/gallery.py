"""One example, run as the gallery runs it: block by block, every figure judged and closed after its block.

A figure that is begun in one block and completed in the next is shown half empty, because the gallery takes
its picture at the end of each block.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from tests import panels


def run(path: Path) -> list[str]:
    """What is wrong with the pictures of an example."""
    text, names, faults, line = path.read_text(encoding="utf-8"), {"__name__": "__main__"}, [], 0
    for block in re.split(r"(?m)^(?=# %%)", text):
        exec(compile("\n" * line + block, str(path), "exec"), names)
        line += block.count("\n")
        faults += [fault for number in plt.get_fignums() for fault in judged(plt.figure(number))]
        plt.close("all")
    return faults


def judged(figure: Any) -> list[str]:
    empty, covered = panels.judge(figure)
    return [
        *(f"nothing is drawn in the panel {name!r} when its block ends" for name in empty),
        *(f"a legend lies on what is drawn in the panel {name!r}" for name in covered),
    ]


if __name__ == "__main__":
    sys.exit("\n".join(run(Path(sys.argv[1]))) or None)
