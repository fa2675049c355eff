"""Configuration of the documentation; build it with `make docs`."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx
from sphinx_gallery.sorting import ExplicitOrder

from otflow import __version__

project = "otflow"
author = copyright = "the otflow authors"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
default_role = "code"
suppress_warnings = ["config.cache"]  # the gallery sorts with objects that Sphinx cannot store

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

GALLERY = Path(__file__).parents[1] / "examples"
ORDER = tomllib.loads((GALLERY / "order.toml").read_text(encoding="utf-8"))


class Listed:
    """Sort the examples of one folder as order.toml lists them."""

    def __init__(self, folder: str) -> None:
        self.names = ORDER.get(Path(folder).name, [])

    def __call__(self, file: str) -> int:
        return self.names.index(Path(file).stem.removeprefix("plot_"))


sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "subsection_order": ExplicitOrder([f"../examples/{folder}" for folder in ORDER]),
    "within_subsection_order": Listed,
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "download_all_examples": False,
    "abort_on_example_error": True,
}

html_theme = "furo"
html_title = f"otflow {release}"


SPECIAL = re.compile(r"(``.*?``|`.*?`)|([*|\\]|(?<=\w)_(?!\w))")


def escape(line: str) -> str:
    """Keep stars, bars and underscores of formulas as they are, outside of backticks."""
    return SPECIAL.sub(lambda found: found[1] or "\\" + found[2], line)


def as_typed(lines: list[str]) -> Iterator[str]:
    """Plain docstrings as reStructuredText: an indented block after a blank line is a formula."""
    block, previous = "", ""
    for line in lines:
        if line.lstrip().startswith(">>>"):
            block = "doctest"
        elif not line.strip():
            block = "" if block == "doctest" else block
        elif block != "doctest" and not line.startswith("    "):
            block = ""
        elif not block and not previous.strip():
            block = "formula"
            yield from (".. code-block:: text", "")
        yield line if block else escape(line)
        previous = line


def translate(_app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    lines[:] = list(as_typed(lines))


def setup(app: Sphinx) -> None:
    """Translate docstrings before napoleon reads their sections."""
    app.connect("autodoc-process-docstring", translate, priority=400)
