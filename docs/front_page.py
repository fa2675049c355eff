"""The picture on the front page: drawn by the code above it, whenever the documentation is built."""

import re
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from sphinx.application import Sphinx

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = "reference/front.png"


def draw(app: Sphinx) -> None:
    """Run the first block of code of the front page, and save the figure that it leaves."""
    code = BLOCK.search((Path(app.srcdir) / "index.md").read_text(encoding="utf-8"))
    if code is None:
        raise ValueError("docs/index.md shows no code to draw the picture with; open a block of python")
    mpl.use("Agg")
    exec(compile(code[1], "index.md", "exec"), {"__name__": "front_page"})
    path = Path(app.srcdir) / PICTURE
    path.parent.mkdir(exist_ok=True)
    plt.gcf().savefig(path, dpi=200, bbox_inches="tight")
    plt.close("all")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", draw, priority=300)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
